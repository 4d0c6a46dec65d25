"""The store of a run as the page shows it: items and their pictures, groups of similar heatmaps, channels of layers.

An item is requested by its number alone; where it lies is in the store, and no request names a file. Pieces of pictures
in which a channel counted are computed by the network of the run, if the page serves it.
"""

from __future__ import annotations

import io
import logging
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from deeptaylor.app.server.jobs import THREAD
from deeptaylor.app.server.schema import (
    PER_PAGE,
    ChannelAnswer,
    ChannelItem,
    ChannelList,
    ClusterAnswer,
    ClustersAnswer,
    Count,
    GalleryItem,
    GalleryOffer,
    ItemAnswer,
    ItemFilter,
    ItemsAnswer,
)
from deeptaylor.app.server.security import hide_folders
from deeptaylor.datasets.clusters import Clusters, cluster
from deeptaylor.datasets.concepts import ChannelTable
from deeptaylor.datasets.open_dataset import Maps, Run
from deeptaylor.datasets.store import PARTS, STATUS
from deeptaylor.datasets.view import View
from deeptaylor.errors import DeepTaylorError, InputError
from deeptaylor.explainer import Explainer
from deeptaylor.formatting import escape_name, format_percent
from deeptaylor.formatting import format_number as digits
from deeptaylor.ledger import Ledger
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.settings import DEEP_TAYLOR, PRESETS, SECANT
from deeptaylor.support.provenance import weights_fingerprint
from deeptaylor.viz import captions, heatmap
from deeptaylor.viz.heatmap import Picture
from deeptaylor.viz.photograph import Crop

__all__ = [
    "ClusterSearch",
    "Gallery",
    "GalleryChannels",
    "describe_mean",
    "encode_photo",
    "render_item",
    "render_mean",
    "render_thumbnail",
]

# --- pictures of items ------------------------------------------------------------------------------------------------

_SMALL, _LARGE = 160, 512  # pixels, the longer side
_TAKEN = 4000  # heatmaps that a mean is of at most
_READ = 256  # that are read at once
_SENT = 2048  # pixels, the longer side of a photograph that is explained anew


def render_thumbnail(view: View, pictured: bool) -> bytes:
    """The heatmap of an item over its photograph; what of the two there is."""
    if not _mapped(view):
        return _png(np.asarray(view.seen(0).convert("RGB")), _SMALL)
    return _png(_over(view, pictured), _SMALL)


def render_item(view: View, mapped: bool, pictured: bool) -> bytes:
    """The photograph as the network saw it; or the heatmap, over it where there is one."""
    if mapped:
        if not _mapped(view):
            raise InputError("The item was not explained, so it has no heatmap.")
        return _png(_over(view, pictured), _LARGE)
    return _png(np.asarray(view.seen(0).convert("RGB")), _LARGE)


def encode_photo(picture: Image.Image) -> bytes:
    """The photograph itself as a run reads it, at most so large, for the page to explain it anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the run read it
        image = load_photo(picture, "RGB")
    image.thumbnail((_SENT, _SENT), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def render_mean(view: View) -> bytes:
    """The mean heatmap of the items that were explained."""
    some = _some(view)
    if not len(some):
        raise InputError("None of these items was explained, so there is no mean heatmap.")
    total = np.zeros(some.heatmaps.shape[1:])
    for first in range(0, len(some), _READ):
        total += np.nan_to_num(some.heatmaps[np.arange(first, min(first + _READ, len(some)))]).sum(0, dtype=np.float64)
    return _png(heatmap.render(total / len(some)), _SMALL)


def describe_mean(view: View) -> str:
    """What `render_mean` is of."""
    good, taken = len(_explained(view)), len(_some(view))
    if not good:
        return ""
    if taken < good:
        return f"Mean heatmap of {taken:,} of these {good:,} items, evenly sampled"
    return f"Mean heatmap of {'this item' if good == 1 else f'these {good:,} items'}"


def _explained(view: View) -> View:
    return view.where(status="explained")


def _some(view: View) -> View:
    good = _explained(view)
    if len(good) <= _TAKEN:
        return good
    return good[np.linspace(0, len(good) - 1, _TAKEN).astype(np.int64)]


def _mapped(view: View) -> bool:
    return len(_explained(view)) == 1


def _heat(view: View) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.nan_to_num(view.heatmaps[np.arange(1)][0].astype(np.float64))
    return found


def _over(view: View, pictured: bool) -> Picture:
    if pictured:
        try:
            return heatmap.overlay(view.seen(0), _heat(view))
        except DeepTaylorError:
            pass  # it has been moved since; the heatmap is still there
    return heatmap.render(_heat(view))


def _png(picture: Picture, side: int) -> bytes:
    """Enlarged by a whole number, so that pixels stay squares; or made smaller."""
    times = side // max(picture.shape[:2])
    if times >= 1:
        return heatmap.encode_png(picture.repeat(times, 0).repeat(times, 1))
    image = Image.fromarray(picture)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return heatmap.encode_png(np.asarray(image))


# --- similar heatmaps -------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_POINTS = 3000  # that are drawn at most
_FEWEST = 8  # heatmaps


@dataclass
class ClusterSearch:
    """The clusters of the items that were explained when they were first asked for."""

    state: Literal["waiting", "working", "ready", "failed"] = "waiting"
    message: str = ""
    found: Clusters | None = None
    rows: Any = None  # the items that were clustered, by their numbers in the run
    _began: float = 0.0
    _ended: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, view: View) -> None:
        """Begin to find them, once; where it failed, again."""
        with self._lock:
            if self.state in ("working", "ready"):
                return
            self.state, self._began, self.message = "working", time.monotonic(), "The heatmaps are being read."
        threading.Thread(target=self._work, args=(view,), name=f"{THREAD}-clusters", daemon=True).start()

    def _work(self, view: View) -> None:
        try:
            good = view.where(status="explained")
            if len(good) < _FEWEST:
                raise DeepTaylorError(f"Clusters need at least {_FEWEST} heatmaps; there are {len(good)}.")
            self.rows = good.rows
            self.found = cluster(_CountedMaps(good.heatmaps, self))
            self.state, self.message = "ready", ""
        except DeepTaylorError as error:
            self.state, self.message = "failed", hide_folders(str(error))
        except Exception as error:  # noqa: BLE001  # a thread has nobody else to tell
            _log.error("the heatmaps could not be grouped", exc_info=error)
            self.state = "failed"
            self.message = "The heatmaps could not be grouped; the terminal shows why."
        finally:
            self._ended = time.monotonic()

    def items(self, number: int) -> Any:
        """The items of a cluster, by their numbers in the run."""
        if self.found is None:
            raise DeepTaylorError("The heatmaps have not been grouped yet.")
        return self.rows[self.found.of(number)]

    def answer(self, view: View) -> ClustersAnswer:
        """How far it is, and what was found."""
        seconds = (self._ended if self.state in ("ready", "failed") else time.monotonic()) - self._began
        told = ClustersAnswer(
            state=self.state, message=self.message, seconds=round(seconds if self._began else 0.0, 1),
            clusters=[], points=[], note="",
        )  # fmt: skip
        if self.state != "ready" or self.found is None:
            return told
        clusters = [self._cluster(view, number) for number in range(self.found.count)]
        points, left_out = self._points()
        return told.model_copy(update={"clusters": clusters, "points": points, "note": self._note(left_out)})

    def _cluster(self, view: View, number: int) -> ClusterAnswer:
        assert self.found is not None
        rows = self.items(number)
        classes, counts = np.unique(view.table["target"][rows], return_counts=True)
        most = int(counts.argmax())
        what = view.class_name(int(classes[most]))
        said = f"The most frequent class is “{what}”, {counts[most]} of them."
        if classes[most] < 0:
            said = ""  # the network gives one number, and no class
        elif counts[most] == 1 < len(rows):
            said = "No two of them are of the same class."
        elif counts[most] == len(rows):
            said = f"All of them are of “{what}”."
        return ClusterAnswer(
            number=number, size=len(rows), alike=float(self.found.alike[number]),
            sentence=said,
        )  # fmt: skip

    def _points(self) -> tuple[list[tuple[int, int, float, float]], int]:
        """Some of all maps, evenly taken, each with its place."""
        assert self.found is not None
        inside = np.flatnonzero(self.found.labels >= 0)
        drawn = inside[np.unique(np.linspace(0, len(inside) - 1, min(len(inside), _POINTS)).astype(np.int64))]
        places = self.found.embedding[drawn].astype(np.float64)
        low, high = places.min(0), places.max(0)
        places = (places - low) / np.where(high > low, high - low, 1.0)
        labels = self.found.labels[drawn]
        points = [
            (int(item), int(label), round(float(x), 4), round(float(y), 4))
            for item, label, (x, y) in zip(self.rows[drawn], labels, places, strict=True)
        ]
        return points, len(inside) - len(drawn)

    def _note(self, left_out: int) -> str:
        assert self.found is not None
        empty = int((self.found.labels < 0).sum())
        said = [f"{left_out:,} further items are in the clusters and not drawn."] * bool(left_out)
        return " ".join([*said, *[f"{empty:,} heatmaps are empty and in no cluster."] * bool(empty)])


class _CountedMaps:
    """Heatmaps that say how many of them were read."""

    def __init__(self, maps: Any, study: ClusterSearch) -> None:
        self._maps, self._study, self._read = maps, study, 0
        self.shape = maps.shape

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, which: Any) -> Any:
        found = self._maps[which]
        self._read = max(self._read, which.stop if isinstance(which, slice) and which.stop else 0)
        read = min(self._read, len(self))
        after = "" if read < len(self) else "; grouping similar heatmaps"
        self._study.message = f"{read:,} of {len(self):,} heatmaps were read{after}."
        return found


# --- items ------------------------------------------------------------------------------------------------------------

_EXPLAINED = STATUS.index("explained")
_WITHOUT = {
    "waiting": "It has not been explained yet.",
    "unreadable": "It could not be read.",
    "not finite": "Some of its numbers, or the network's, are not finite.",
    "refused": "It could not be explained.",
}


class _CachedRun:
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
            raise InputError(f"The photograph cannot be read: {hide_folders(str(error))}") from error


@dataclass
class Gallery:
    """A run as the page shows it; `data`: the Dataset that its items came from, where they came from one."""

    run: Run
    data: Any = None
    study: ClusterSearch = field(default_factory=ClusterSearch)
    _kept: _CachedRun = field(init=False)

    def __post_init__(self) -> None:
        if len(self.run.heatmaps.shape) != 3:
            raise InputError(
                f"The gallery shows maps with height and width; those of this run are {self.run.heatmaps.shape[1:]}."
            )
        self._kept = _CachedRun(self.run, self.data)

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
        statuses = [Count(number=k, name=n, count=int((table["status"] == k).sum())) for k, n in enumerate(STATUS)]
        return GalleryOffer(
            title=escape_name(self.run.path.resolve().name), about=self._about(table), items=len(view),
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
            said.append(f"The network is right in {format_percent(right)} of those with a known class.")
        return " ".join(said)

    def _note(self, table: dict[str, Any]) -> str:
        said = []
        if not self.pictured:
            said.append("The items came from a Dataset, which the store does not hold, so there are not photographs.")
        if not (table["label"] >= 0).any():
            said.append("The items' own classes are unknown, so answers cannot be marked right or wrong.")
        return " ".join(said)

    # --- items ----------------------------------------------------------------------------------------------------

    def chosen(self, which: ItemFilter) -> View:
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

    def page(self, which: ItemFilter) -> ItemsAnswer:
        """A page of them; the last one where there are fewer."""
        view = self.chosen(which)
        pages = max(1, -(-len(view) // PER_PAGE))
        page = min(which.page, pages - 1)
        some = view[page * PER_PAGE : (page + 1) * PER_PAGE]
        total = len(self.run)
        sentence = f"{len(view):,} of {total:,} items" if len(view) != total else f"All {total:,} items"
        if not len(view):
            sentence = "No item matches."
        if pages > 1:
            sentence += f"; page {page + 1:,} of {pages:,}"
        items = self.listed(some)
        return ItemsAnswer(
            total=len(view), page=page, pages=pages, items=items, sentence=sentence, mean=describe_mean(view)
        )

    def listed(self, view: View) -> list[GalleryItem]:
        """Items in a line each."""
        table, names = view.table, view.names
        return [self._item(view, k, names[k], {n: c[k] for n, c in table.items()}) for k in range(len(view))]

    def _item(self, view: View, place: int, name: str, row: dict[str, Any]) -> GalleryItem:
        good = row["status"] == _EXPLAINED
        answer = int(row["prediction"])
        wrong = bool(answer != row["label"]) if good and answer >= 0 and row["label"] >= 0 else None
        said = view.class_name(answer) if answer >= 0 else ""
        return GalleryItem(
            index=int(view.rows[place]), name=escape_name(hide_folders(name)),
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
                pictured, said = False, [*said, f"Its photograph cannot be shown. {hide_folders(str(error))}"]
        return ItemAnswer(
            **self._item(view, 0, view.names[0], row).model_dump(), sentences=said, mapped=good, pictured=pictured
        )

    def _reason(self, number: int) -> list[str]:
        return [escape_name(hide_folders(one.reason)) for one in self.run.errors if one.item == number]


def _counted(view: View, column: Any) -> list[Count]:
    numbers, counts = np.unique(column[column >= 0], return_counts=True)
    return [
        Count(number=int(n), name=view.class_name(int(n)), count=int(c)) for n, c in zip(numbers, counts, strict=True)
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
    if ledger.shared is not None and (apart := captions.describe_split(ledger, 0, 0)):
        said.append(f"{apart} The heatmap shows all of it.")
    return said


def _account(view: View, ledger: Ledger, score: float) -> str:
    """What the pixels hold of the score; by secants, what took it from the reference's."""
    method = view.run.manifest.get("method", {}).get("method", DEEP_TAYLOR)
    if method == SECANT:
        return (
            f"For the reference it is {digits(score - float(ledger.input))}. Red pixels raise the score, and "
            f"blue pixels lower it."
        )
    return captions.describe_account(ledger, 0, 0, "pixels", *[method] * (method not in PRESETS))


def _quoted(view: View, number: int) -> str:
    return f"“{view.class_name(number)}”"


def _ledger(row: dict[str, Any]) -> Ledger:
    """The ledger of an item, without its steps, which a run does not keep; a part that was not kept is not finite."""
    parts: dict[str, Any] = {name: torch.tensor([float(row.get(name, np.nan))]) for name in PARTS}
    for name in ("shared", "returned", "own"):
        parts[name] = parts[name] if bool(parts[name].isfinite()) else None
    score = torch.tensor([max(0.0, float(row["score"]))])
    return Ledger(score=score, rows=(), by_step=torch.zeros(0, 4, 1), **parts)


# --- channels ---------------------------------------------------------------------------------------------------------

_BEST = 8  # items of a channel
_LISTED = 200  # channels
_SIDE = 128  # pixels of a piece


@dataclass
class GalleryChannels:
    """The channels of a gallery's run; `network`: the one that the page serves."""

    gallery: Gallery
    network: Callable[[], Pretrained]
    _tables: dict[str, tuple[Any, ChannelTable]] = field(init=False, default_factory=dict)
    _explainer: tuple[Pretrained, Explainer] | None = field(init=False, default=None)
    _crops: dict[tuple[str, int], list[Crop]] = field(init=False, default_factory=dict)

    def layer(self, place: int) -> str:
        """A watched layer by its place in the offer."""
        layers = self.gallery.layers
        if not 0 <= place < len(layers):
            raise InputError(f"There is no layer {place}: the run watched {len(layers)} layers.")
        return layers[place]

    def _table(self, place: int) -> ChannelTable:
        layer, done = self.layer(place), self.gallery.run.progress
        if layer not in self._tables or self._tables[layer][0] != done:
            self._tables[layer] = done, self.gallery.run.channels(layer)
            self._crops.clear()
        return self._tables[layer][1]

    def all(self, place: int) -> ChannelList:
        """The channels of a layer."""
        table = self._table(place)
        if table.relevance is None:
            channels, order = list(range(table.channels))[:_LISTED], "in their order"
        else:
            channels, order = [c for c, _ in table.strongest(_LISTED)], "the greatest mean relevance first"
        return ChannelList(
            layer=table.layer, channels=channels, sentence=f"{table.channels} channels, {order}."
        )  # fmt: skip

    def one(self, place: int, channel: int) -> ChannelAnswer:
        """The items in which a channel counted most."""
        table = self._table(place)
        best = table.top(channel)[:_BEST]
        listed = self.gallery.listed(self.gallery.view[np.array([k for k, _ in best], dtype=np.int64)])
        items = [ChannelItem(**item.model_dump(), value=v) for item, (_, v) in zip(listed, best, strict=True)]
        what = f"Channel {channel} of the layer {table.layer}"
        sentence = f"{what} received no relevance in any of the {len(table.numbers):,} items."
        if items:
            sentence = f"{what}: the {len(items)} of {len(table.numbers):,} items with the most relevance at it."
        return ChannelAnswer(layer=table.layer, channel=channel, sentence=sentence, items=items)

    def crop(self, place: int, channel: int, which: int) -> bytes:
        """The piece of one of those items in which most of the channel's relevance lies, and its map beneath it."""
        table = self._table(place)
        key = table.layer, channel
        if key not in self._crops:
            explainer, view = self._own(), self.gallery.view
            found = table.examples(
                explainer, lambda k: self._photo(view, k), [channel], view.table["target"], count=_BEST
            )
            self._crops = {key: found.crops(channel)}
        crops = self._crops[key]
        if not 0 <= which < len(crops):
            raise InputError(f"Channel {channel} has {len(crops)} pieces, 0 to {len(crops) - 1}; got {which}.")
        piece = _coloured(crops[which].picture)
        under = heatmap.overlay(piece, np.clip(crops[which].heat, 0, None))
        return _png(np.concatenate([piece, under]), 2 * _SIDE)

    def _photo(self, view: View, item: int) -> Any:
        return view.run.picture(item)

    def _own(self) -> Explainer:
        """The explainer of the run's network; refused where another is served."""
        served = self.network()
        if self._explainer is not None and self._explainer[0] is served:
            return self._explainer[1]
        manifest = self.gallery.run.manifest
        plan = manifest["plan"]
        if served.preparation is None or weights_fingerprint(served.network) != manifest["network"]["fingerprint"]:
            raise InputError("Crops need the network of the run, but the page serves another one.")
        if (method := plan.get("method", DEEP_TAYLOR)) not in PRESETS:
            raise InputError(f"The run was explained by {method!r}, which has no relevance for inner channels.")
        if plan["rules"] or plan["first"]:
            raise InputError("The run has custom rules, for which the page cannot compute crops.")
        made = served.explainer(
            bias=plan["bias"], max_pool=plan["max_pool"], local=plan["local"], output=plan["output"]
        )  # fmt: skip
        self._explainer = served, made
        return made


def _coloured(picture: heatmap.Picture) -> heatmap.Picture:
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
