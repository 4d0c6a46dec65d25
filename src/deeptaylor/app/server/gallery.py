"""The store of a run, looked at: pages of its items, one of them in sentences, and the classes they are of.

Items are asked for by their number alone; where they lie is in the store, and no request says it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.gallery_pictures import mean_words
from deeptaylor.app.server.gallery_schema import (
    PER_PAGE,
    Counted,
    GalleryOffer,
    Item,
    ItemAnswer,
    ItemsAnswer,
    Which,
)
from deeptaylor.app.server.gallery_study import Study
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.ledger import Ledger
from deeptaylor.pictures import sentences
from deeptaylor.runs.reading import Maps, Run
from deeptaylor.runs.store import PARTS, STATUS
from deeptaylor.runs.view import View
from deeptaylor.secant.front_door import DEEP_TAYLOR, PRESETS, SECANT
from deeptaylor.shown import number as digits
from deeptaylor.shown import percent, shown

__all__ = ["Gallery"]

_EXPLAINED = STATUS.index("explained")
_UNREAD = "The photograph cannot be read: "
_WITHOUT = {
    "waiting": "It has not been explained yet.",
    "unreadable": "It could not be read.",
    "not finite": "Some of its numbers, or the network's, are not finite.",
    "refused": "It could not be explained.",
}


class _Kept:
    """A run whose table is read again only when more of it is done: every view asks for all of it."""

    statuses: Sequence[str] = STATUS

    def __init__(self, run: Run, data: Any) -> None:
        self.run, self._data = run, data
        self.manifest = run.manifest
        self._lock = threading.Lock()
        self._table: tuple[tuple[int, int, int], dict[str, Any]] | None = None

    @property
    def names(self) -> list[str]:
        return self.run.names

    @property
    def classes(self) -> list[str] | None:
        return self.run.classes

    @property
    def heatmaps(self) -> Maps:
        return self.run.heatmaps

    @property
    def table(self) -> dict[str, Any]:
        with self._lock:
            done = self.run.progress
            if self._table is None or self._table[0] != done:
                self._table = done, self.run.table
            return self._table[1]

    def picture(self, item: int, data: Any = None) -> Image.Image:
        """An item's photograph; where it cannot be read, an error in words, whatever it was read by."""
        try:
            return self.run.picture(item, self._data if data is None else data)
        except DeepTaylorError:
            raise
        except Exception as error:
            raise InputError(f"{_UNREAD}{without_folders(str(error))}") from error


@dataclass
class Gallery:
    """A run as the page shows it; `data`: the Dataset that its items came from, where they came from one."""

    run: Run
    data: Any = None
    study: Study = field(default_factory=Study)
    _kept: _Kept = field(init=False)

    def __post_init__(self) -> None:
        if len(self.run.heatmaps.shape) != 3:
            raise InputError(
                f"The gallery shows maps with height and width; those of this run are {self.run.heatmaps.shape[1:]}."
            )
        self._kept = _Kept(self.run, self.data)

    @property
    def view(self) -> View:
        """All items."""
        return View(self._kept)

    @property
    def pictured(self) -> bool:
        """Whether the items' photographs may be there."""
        return self.data is not None or self.run.manifest["inputs"]["kind"] != "dataset"

    @property
    def layers(self) -> list[str]:
        """Those whose channels were watched."""
        return [n.removeprefix("concepts-") for n in self.run.manifest["also"] if n.startswith("concepts-")]

    def offer(self) -> GalleryOffer:
        """What is in it."""
        view = self.view
        table = view.table
        good = table["status"] == _EXPLAINED
        scores = table["score"][good & np.isfinite(table["score"])]
        statuses = [Counted(number=k, name=n, count=int((table["status"] == k).sum())) for k, n in enumerate(STATUS)]
        return GalleryOffer(
            title=shown(self.run.path.resolve().name), about=self._about(table), items=len(view),
            answers=_counted(view, table["prediction"][good]), labels=_counted(view, table["label"]),
            explained=_counted(view, table["target"][good]), statuses=[s for s in statuses if s.count],
            lowest=float(scores.min()) if len(scores) else None, highest=float(scores.max()) if len(scores) else None,
            note=self._note(table), pictured=self.pictured, layers=self.layers,
        )  # fmt: skip

    def _about(self, table: dict[str, Any]) -> str:
        total, good = len(table["status"]), int((table["status"] == _EXPLAINED).sum())
        waiting = int((table["status"] == STATUS.index("waiting")).sum())
        said = [f"{good:,} of {total:,} items were explained."]
        said += [f"{waiting:,} have not been reached yet."] * bool(waiting)
        known = (table["label"] >= 0) & (table["status"] == _EXPLAINED)
        if known.any():
            right = float((table["prediction"] == table["label"])[known].mean())
            said.append(f"The network is right in {percent(right)} of those with a known class.")
        return " ".join(said)

    def _note(self, table: dict[str, Any]) -> str:
        said = []
        if not self.pictured:
            said.append("The items came from a Dataset, which the store does not hold, so there are no photographs.")
        if not (table["label"] >= 0).any():
            said.append("The items' own classes are not known, so right and wrong answers cannot be told apart.")
        return " ".join(said)

    # --- items ----------------------------------------------------------------------------------------------------

    def chosen(self, which: Which) -> View:
        """The items that were asked for, in their order."""
        view = self.view
        if which.cluster is not None:
            view = View(self._kept, self.study.items(which.cluster))
        given = {name: getattr(which, name) for name in ("prediction", "label", "target", "status")}
        asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if which.low is not None or which.high is not None:
            asked["score"] = (which.low, which.high)
        view = view.where(which.right, **asked)
        if which.right is not None:
            view = view.where(status="explained")
        return view if which.order == "run" else view.by("score", descending=which.order == "highest")

    def page(self, which: Which) -> ItemsAnswer:
        """A page of them; the last one where there are fewer."""
        view = self.chosen(which)
        pages = max(1, -(-len(view) // PER_PAGE))
        page = min(which.page, pages - 1)
        some = view[page * PER_PAGE : (page + 1) * PER_PAGE]
        total = len(self.run)
        sentence = f"{len(view):,} of {total:,} items" if len(view) != total else f"All {total:,} items"
        if not len(view):
            sentence = "No item is like that."
        return ItemsAnswer(
            total=len(view), page=page, pages=pages, items=self.listed(some),
            sentence=sentence if pages == 1 else f"{sentence}; page {page + 1:,} of {pages:,}", mean=mean_words(view),
        )  # fmt: skip

    def listed(self, view: View) -> list[Item]:
        """Items in a line each."""
        table, names = view.table, view.names
        return [self._item(view, k, names[k], {n: c[k] for n, c in table.items()}) for k in range(len(view))]

    def _item(self, view: View, place: int, name: str, row: dict[str, Any]) -> Item:
        good = row["status"] == _EXPLAINED
        answer = int(row["prediction"])
        wrong = bool(answer != row["label"]) if good and answer >= 0 and row["label"] >= 0 else None
        said = view.class_name(answer) if answer >= 0 else ""
        return Item(
            index=int(view.rows[place]), name=shown(without_folders(name)),
            said=said if good else STATUS[int(row["status"])],
            wrong=wrong, score=float(row["score"]) if good and np.isfinite(row["score"]) else None,
        )  # fmt: skip

    def one(self, number: int) -> View:
        """An item by its number."""
        if not 0 <= number < len(self.run):
            raise InputError(f"There is no item {number}: there are {len(self.run):,}, from 0 on.")
        return View(self._kept, [number])

    def photo(self, number: int) -> Image.Image:
        """An item's photograph, as it lies in its file."""
        self.one(number)
        return self._kept.picture(number)

    def item(self, number: int) -> ItemAnswer:
        """All that the store has of it."""
        view = self.one(number)
        row = {name: column[0] for name, column in view.table.items()}
        good = bool(row["status"] == _EXPLAINED)
        said = _said(view, row) if good else [_WITHOUT[STATUS[int(row["status"])]], *self._reason(number)]
        pictured = self.pictured and view.readable(0)
        if pictured:
            try:
                self._kept.picture(number)
            except DeepTaylorError as error:  # it has been moved since
                why = without_folders(str(error)).removeprefix(_UNREAD)
                pictured, said = False, [*said, f"Its photograph cannot be shown: {why}"]
        return ItemAnswer(
            **self._item(view, 0, view.names[0], row).model_dump(), sentences=said, mapped=good, pictured=pictured
        )

    def _reason(self, number: int) -> list[str]:
        return [shown(without_folders(one.reason)) for one in self.run.errors if one.item == number]


def _counted(view: View, column: Any) -> list[Counted]:
    numbers, counts = np.unique(column[column >= 0], return_counts=True)
    return [
        Counted(number=int(n), name=view.class_name(int(n)), count=int(c)) for n, c in zip(numbers, counts, strict=True)
    ]


def _said(view: View, row: dict[str, Any]) -> list[str]:
    """Answer and ledger in sentences."""
    answer, own, target = (int(row[name]) for name in ("prediction", "label", "target"))
    rest = ""
    if own >= 0:
        twice = own != answer and view.class_name(own) == view.class_name(answer)  # ImageNet has two cranes
        rest = f", but the item's own class is {_quoted(view, own)}{f' (class {own}, not {answer})' * twice}"
        rest = rest if own != answer else ", and that is the item's own class"
    said = [f"The network says {_quoted(view, answer)}{rest}."] * (answer >= 0)
    ledger = _ledger(row)
    has = f"The score of {_quoted(view, target)}" if target >= 0 else "The network’s answer"
    said.append(f"{has} is {digits(float(row['score']))}. {_account(view, ledger, float(row['score']))}")
    if ledger.shared is not None and (apart := sentences.split(ledger, 0, 0)):
        said.append(f"{apart} The heatmap shows all of it.")
    return said


def _account(view: View, ledger: Ledger, score: float) -> str:
    """What the pixels hold of the score; by secants, what took it from the reference's."""
    method = view.run.manifest.get("method", {}).get("method", DEEP_TAYLOR)
    if method == SECANT:
        return (
            f"The reference's is {digits(score - float(ledger.input))}; the pixels make the difference: red ones raise "
            "the score, blue ones lower it."
        )
    return sentences.account(ledger, 0, 0, "pixels", *[method] * (method not in PRESETS))


def _quoted(view: View, number: int) -> str:
    return f"“{view.class_name(number)}”"


def _ledger(row: dict[str, Any]) -> Ledger:
    """The ledger of an item, without its steps, which a run does not keep; a part that was not kept is not finite."""
    parts: dict[str, Any] = {name: torch.tensor([float(row.get(name, np.nan))]) for name in PARTS}
    for name in ("shared", "returned", "own"):
        parts[name] = parts[name] if bool(parts[name].isfinite()) else None
    score = torch.tensor([max(0.0, float(row["score"]))])
    return Ledger(score=score, rows=(), by_step=torch.zeros(0, 4, 1), **parts)
