"""The work of a run: items are read, prepared and explained in batches, and batches become a shard.

Work
├── prepared(item)            read and decoded, in any thread; or why not
├── explained(batch)          rows of a batch: maps, scores, ledgers
└── shard(number, batches)    all rows of a shard as arrays

A batch always has its place for every item: where one cannot be read, a copy of another is explained in its place and
thrown away. So the numbers of the others are the same whether or not it could be read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.errors import DeepTaylorError, InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.models.networks.photo import opened
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.pictures.axes import Axis, summed
from deeptaylor.runs.commits import Item, Trouble
from deeptaylor.runs.items import Source
from deeptaylor.runs.store import PARTS, STATUS, Array, Field, Shard
from deeptaylor.shown import printable, shown

__all__ = ["LABEL", "Observer", "Prepared", "Work"]

LABEL = "label"  # as a target: every item's own class
EXPLAINED, UNREADABLE, NOT_FINITE, REFUSED = (
    STATUS.index(name) for name in ("explained", "unreadable", "not finite", "refused")
)
_LONGEST = 500  # letters of a reason


class Observer(Protocol):
    """Watches a run (`also=`): what it keeps of each shard is entered together with the shard.

    name    the folder below also/ in the store; it tells observers with other settings apart
    batch   what it keeps of a batch; `numbers` are those of the items, −1 where a row is to be left out
    shard   what it keeps of a shard, from all of its batches, as arrays
    layers  where it has them: names of inner layers, which are then in `e.seen`
    """

    @property
    def name(self) -> str:
        """The folder below also/."""

    def batch(self, numbers: Array, x: Tensor, e: Explanation) -> Mapping[str, Array]:
        """What is kept of a batch."""

    def shard(self, parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """What is kept of a shard."""


@dataclass(frozen=True)
class Prepared:
    """An item as the network takes it; or the status and the reason why it cannot be explained."""

    item: Item
    x: Tensor | None  # (1, …)
    digest: bytes
    label: int
    status: int = EXPLAINED
    reason: str = ""


@dataclass
class Rows:
    """What was computed of a batch, by field."""

    arrays: dict[str, Array]
    troubles: list[Trouble]
    also: dict[str, Mapping[str, Array]] = field(default_factory=dict)


@dataclass
class Work:
    """How items are explained; everything that a worker on another machine needs."""

    source: Source
    explainer: Explainer
    model: Pretrained | None  # what prepares photographs and names classes
    fields: Sequence[Field] = ()
    target: Any = None
    contrast: bool = False
    axis: Axis = None
    also: Sequence[Observer] = ()
    label_of: Callable[[str | int | None], int] = lambda _: -1

    # --- reading --------------------------------------------------------------------------------------------------

    def prepared(self, item: Item) -> Prepared:
        """Read an item and bring it to the network's form; nothing that is wrong with it stops a run."""
        digest, label = bytes(32), item.label
        try:
            content = self.source.read(item.name, item.place)
            digest, label = content.digest, label if content.label is None else self.label_of(content.label)
            x = self._input(content.data, item.name)
        except (DeepTaylorError, OSError, ValueError, RuntimeError, KeyError, IndexError, SyntaxError) as error:
            return Prepared(item, None, digest, label, UNREADABLE, _said(error))
        return Prepared(item, x, digest, label)

    def _input(self, data: Any, name: str) -> Tensor:
        if isinstance(data, bytes):
            with opened(io.BytesIO(data), shown(name)) as image:
                return self._photo(image)
        if isinstance(data, Image.Image):
            return self._photo(data)
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and self.model is not None:
            return self._photo(Image.fromarray(data))
        return torch.as_tensor(data).unsqueeze(0)

    def _photo(self, image: Image.Image) -> Tensor:
        if self.model is None or self.model.preparation is None:
            raise InputError("The network came without a preparation: it takes tensors, not pictures.")
        return self.model.preprocess(image)[0]

    # --- explaining -----------------------------------------------------------------------------------------------

    def rows(self, batch: Sequence[Prepared]) -> Rows:
        """Explain a batch; what cannot be is told with its reason, and changes nothing for the others."""
        batch = list(batch)
        good = self._checked(batch)
        if not good:
            return self._put(batch, None, None)
        x, targets = self._together(batch)
        try:
            return self._put(batch, x, self._explained(x, targets))
        except (InputError, TargetError):
            self._find_culprits(batch)
        x, targets = self._together(batch)
        if all(p.x is None for p in batch):
            return self._put(batch, None, None)
        return self._put(batch, x, self._explained(x, targets))

    def _checked(self, batch: list[Prepared]) -> bool:
        """Set aside what does not fit the others: another shape, no class where each is explained for its own."""
        shape = self.explainer.example[0].shape[1:]
        for k, p in enumerate(batch):
            if p.x is None:
                continue
            if p.x.shape[1:] != shape:
                said = f"The input has the shape {tuple(p.x.shape[1:])}, the others {tuple(shape)}."
                batch[k] = _refused(p, said)
            elif self.target == LABEL and p.label < 0:
                batch[k] = _refused(p, "The item has no class that the network knows, and its own was asked for.")
        return any(p.x is not None for p in batch)

    def _find_culprits(self, batch: list[Prepared]) -> None:
        """Explain one by one to see which cannot be, and set these aside."""
        for k, p in enumerate(batch):
            if p.x is None:
                continue
            if not bool(torch.isfinite(p.x).all()):
                batch[k] = _refused(p, "The input holds NaN or infinite values.", NOT_FINITE)
                continue
            try:
                self._explained(*self._together([p]))
            except (InputError, TargetError) as error:
                batch[k] = _refused(p, _said(error), NOT_FINITE if "finite" in str(error) else REFUSED)

    def _together(self, batch: Sequence[Prepared]) -> tuple[Tensor, Any]:
        """Inputs and targets of a batch; a copy of the first good one in the place of each bad one."""
        stand_in = next((p for p in batch if p.x is not None), None)
        if stand_in is None:
            return torch.empty(0), None
        filled = [stand_in if p.x is None else p for p in batch]
        x = torch.cat([p.x for p in filled if p.x is not None])
        like = self.explainer.like
        if like is not None:
            x = x.to(like) if x.is_floating_point() else x.to(like.device)
        return x, torch.tensor([p.label for p in filled], device=x.device) if self.target == LABEL else self.target

    def _explained(self, x: Tensor, target: Any) -> Explanation:
        self.explainer.watch([layer for one in self.also for layer in getattr(one, "layers", ())])
        return self.explainer.contrast(x, target) if self.contrast else self.explainer.explain(x, target)

    # --- rows -----------------------------------------------------------------------------------------------------

    def _put(self, batch: Sequence[Prepared], x: Tensor | None, e: Explanation | None) -> Rows:
        """The rows of a batch, empty where an item is bad."""
        found = {} if e is None or x is None else self._numbers(x, e)
        finite = np.ones(len(batch), bool)
        for name in ("score", "scale"):
            finite &= np.isfinite(found.get(name, np.ones(len(batch))))
        checked = [
            p if fine or p.x is None else _refused(p, "The network gives values that are not finite.", NOT_FINITE)
            for p, fine in zip(batch, finite, strict=True)
        ]
        keep = np.array([p.status == EXPLAINED for p in checked])
        found["status"] = np.array([p.status for p in checked])
        found["label"] = np.array([p.label for p in checked])
        found["input_hash"] = np.frombuffer(b"".join(p.digest for p in checked), np.uint8).reshape(-1, 32)
        arrays = {}
        for one in self.fields:
            if keep.all() and one.name in found:
                arrays[one.name] = found[one.name].astype(one.dtype, copy=False)
                continue
            rows = np.full((len(batch), *one.shape), one.fill, dtype=one.dtype)
            given = slice(None) if one.name in ("status", "label", "input_hash") else keep
            if one.name in found:
                rows[given] = found[one.name][given]
            arrays[one.name] = rows
        troubles = [Trouble(p.item.number, p.status, p.reason) for p in checked if p.status != EXPLAINED]
        also: dict[str, Mapping[str, Array]] = {}
        if e is not None and x is not None:
            numbers = np.array([p.item.number if fine else -1 for p, fine in zip(checked, keep, strict=True)])
            also = {one.name: one.batch(numbers, x, e) for one in self.also}
        return Rows(arrays, troubles, also)

    def _numbers(self, x: Tensor, e: Explanation) -> dict[str, Array]:
        """Maps, scores and ledger of an explanation, as arrays."""
        many, ledger = e.score.ndim, e.ledger
        heat = e.heatmap(axis=self.axis)
        found: dict[str, Array] = {}
        if isinstance(e, Contrast):
            found["contrast"], found["contrast_scale"] = _halves(heat)
            heat = heat + summed(e.shared, many, self.axis)
        found["heatmap"], found["scale"] = _halves(heat)
        if any(one.name == "relevance" for one in self.fields):
            raw = e.relevance + e.shared if isinstance(e, Contrast) else e.relevance
            found["relevance"] = _array(raw)
        found["score"] = _array(e.score)
        none = torch.full_like(e.score, torch.nan)
        parts = [getattr(ledger, name) for name in PARTS]
        found["ledger"] = _array(torch.stack([none if part is None else part for part in parts], 1))
        found["prediction"] = self._prediction(x, e)
        found["target"] = self._target(x, e, found["prediction"])
        return found

    def _prediction(self, x: Tensor, e: Explanation) -> Array:
        """The network's answer; −1 where it gives no classes."""
        if e.classes is not None:
            return _array(e.classes)
        if self.target is None:  # the network gives one number, and no class
            return np.full(len(x), -1)
        with eval_mode(self.explainer.model), torch.no_grad():
            output = self.explainer.model(x)
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            return np.full(len(x), -1)
        return _array(output.argmax(1))

    def _target(self, x: Tensor, e: Explanation, prediction: Array) -> Array:
        if self.target is None:
            return prediction
        if isinstance(e.target, Tensor) and not e.target.is_floating_point() and e.target.ndim == 1:
            return _array(e.target)
        return np.full(len(x), e.target if isinstance(e.target, int) else -1)

    def shard(self, number: int, batches: Sequence[Rows]) -> Shard:
        """All batches of a shard as one."""
        arrays = {one.name: np.concatenate([rows.arrays[one.name] for rows in batches]) for one in self.fields}
        troubles = [t for rows in batches for t in rows.troubles]
        also = {
            one.name: one.shard([rows.also[one.name] for rows in batches if one.name in rows.also]) for one in self.also
        }
        return Shard(number, len(arrays["status"]), arrays, troubles, also)


def _refused(p: Prepared, reason: str, status: int = REFUSED) -> Prepared:
    return Prepared(p.item, None, p.digest, p.label, status, reason)


def _halves(heat: Tensor) -> tuple[Array, Array]:
    """Maps as float16 between −1 and 1, and the scale that they were divided by."""
    flat = heat.flatten(1)
    scale = flat.abs().amax(1)
    divided = flat / torch.where(scale > 0, scale, torch.ones_like(scale))[:, None]
    return _array(divided.reshape(heat.shape).to(torch.float16)), _array(scale.float())


def _array(t: Tensor) -> Array:
    t = t.detach().cpu()
    return np.asarray(t.float() if t.dtype == torch.bfloat16 else t)


def _said(error: BaseException) -> str:
    return printable(str(error).strip() or type(error).__name__)[:_LONGEST]
