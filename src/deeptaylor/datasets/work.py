"""The work of a run: items are read, prepared and explained in batches, and batches become a shard.

Work
├── prepared(items)           read and decoded, in any thread; or why not (reader.py)
├── rows(batch)               rows of a batch: maps, scores, ledgers
└── shard(number, batches)    all rows of a shard as arrays
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
import torch
from torch import Tensor

from deeptaylor.datasets.commits import Item, Trouble
from deeptaylor.datasets.items import Labels, Source
from deeptaylor.datasets.reader import Failure, InputBatch, Reader, shorten_reason
from deeptaylor.datasets.store import PARTS, STATUS, Array, BatchRows, Field, Shard
from deeptaylor.errors import NOT_FINITE as KIND_NOT_FINITE
from deeptaylor.errors import InputError, TargetError, TooLargeError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.modes import eval_mode
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.support.class_names import to_probabilities
from deeptaylor.viz.heatmap import Axis, sum_channels

__all__ = ["LABEL", "Observer", "Work"]

LABEL = "label"  # as a target: every item's own class
EXPLAINED, NOT_FINITE, REFUSED = (STATUS.index(name) for name in ("explained", "not finite", "refused"))
_NOT_EXPLAINED = (InputError, TargetError, TooLargeError)  # which an item may be to blame for


class Observer(Protocol):
    """Watches a run (`also=`): what it keeps of each shard is entered together with the shard.

    name      the folder below also/ in the store, of which each observer of a run has its own
    batch     what it keeps of a batch; `numbers` are those of the items, −1 where a row is to be left out
    shard     what it keeps of a shard, from all of its batches, as arrays
    layers    where it has them: names of inner layers, which are then in `e.seen`
    settings  where it has them, as text: a run that was begun with others is not gone on with
    """

    @property
    def name(self) -> str:
        """The folder below also/."""

    def batch(self, numbers: Array, x: Tensor, e: Explanation) -> Mapping[str, Array]:
        """Return what is kept of a batch."""

    def shard(self, parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return what is kept of a shard."""


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
    label_of: Labels = field(default_factory=lambda: Labels(None))

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def reader(self) -> Reader:
        """What reads items."""
        preparation = None if self.model is None else self.model.preparation
        return Reader(self.source, preparation, self.label_of)

    def read_batch(self, items: Sequence[Item]) -> InputBatch:
        """Read items and bring them to the network's form; nothing that is wrong with one stops a run."""
        return self.reader.read_batch(items, self.explainer.captured.example[0].shape[1:])

    def example(self, item: Item) -> Tensor:
        """Return the input that an item is, as a batch of one."""
        return self.reader.input(self.source.read(item.name, item.place).data, item.name)[None]

    # --- explaining -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile the explainer sees the layers of the observers; afterwards those that it saw before."""
        before = self.explainer.watched
        self.explainer.watch([layer for one in self.also for layer in getattr(one, "layers", ())])
        try:
            yield
        finally:
            self.explainer.watch(before)

    def rows(self, batch: InputBatch) -> BatchRows:
        """Explain a batch; what cannot be is told with its reason, and changes nothing for the others."""
        if self.target == LABEL:
            why = Failure(REFUSED, "The target is the item's own class, which is not known.")
            batch.set_aside({k: why for k, label in enumerate(batch.labels) if label < 0 and k not in batch.bad})
        x = self.moved(batch.x)
        if x is None:
            return self._put(batch, None, None)
        try:
            return self._put(batch, x, self._explained(x, self._asked(batch, x)))
        except _NOT_EXPLAINED:
            batch.set_aside(self._culprits(batch, x))
        x = self.moved(batch.x)
        return self._put(batch, x, None if x is None else self._explained(x, self._asked(batch, x)))

    def _culprits(self, batch: InputBatch, x: Tensor) -> dict[int, Failure]:
        """Explain one by one to see which cannot be, and why."""
        bad: dict[int, Failure] = {}
        asked = self._asked(batch, x)
        for k in range(len(x)):
            if k in batch.bad:
                continue
            one = x[k : k + 1]
            if not bool(torch.isfinite(one).all()):
                bad[k] = Failure(NOT_FINITE, "The input holds NaN or infinite values.")
                continue
            try:
                self._explained(one, asked[k : k + 1] if isinstance(asked, Tensor) else asked)
            except _NOT_EXPLAINED as error:
                bad[k] = Failure(NOT_FINITE if error.kind == KIND_NOT_FINITE else REFUSED, shorten_reason(error))
        return bad

    @overload
    def moved(self, x: Tensor) -> Tensor: ...

    @overload
    def moved(self, x: None) -> None: ...

    def moved(self, x: Tensor | None) -> Tensor | None:
        """Inputs where the network is, in its precision."""
        like = self.explainer.captured.like
        if x is None or like is None:
            return x
        there = x.to(like.device, non_blocking=True)  # first: a CPU takes longer to convert
        return there.to(like.dtype) if there.is_floating_point() else there

    def _asked(self, batch: InputBatch, x: Tensor) -> Any:
        return torch.tensor(batch.classes(), device=x.device) if self.target == LABEL else self.target

    def _explained(self, x: Tensor, target: Any) -> Explanation:
        with self.explainer.captured.watch.trust():  # it is looked at once per shard
            return self.explainer.contrast(x, target) if self.contrast else self.explainer.explain(x, target)

    def check_network(self) -> None:
        """Refuse what was explained of a network that changed meanwhile; after every shard, and before it is saved."""
        self.explainer.captured.check_unchanged()

    # --- rows -----------------------------------------------------------------------------------------------------

    def _put(self, batch: InputBatch, x: Tensor | None, e: Explanation | None) -> BatchRows:
        """Return the rows of a batch, empty where an item is bad."""
        found = {} if e is None or x is None else self._numbers(x, e)
        bad, count = batch.bad, len(batch.items)
        finite = np.isfinite(found["score"]) & np.isfinite(found["scale"]) if found else np.ones(count, bool)
        for k in np.flatnonzero(~finite).tolist():
            bad.setdefault(k, Failure(NOT_FINITE, "The network gives values that are not finite."))
        rows = sorted(bad)
        found["status"] = np.full(count, EXPLAINED)
        found["status"][rows] = [bad[k].status for k in rows]
        found["label"] = np.array(batch.labels)
        found["input_hash"] = np.frombuffer(b"".join(batch.digests), np.uint8).reshape(-1, 32)
        arrays = {one.name: self._column(one, found.get(one.name), rows, count) for one in self.fields}
        troubles = [Trouble(batch.items[k].number, *bad[k]) for k in rows]
        also: dict[str, Mapping[str, Array]] = {}
        if self.also and e is not None and x is not None:
            numbers = np.array([item.number for item in batch.items])
            numbers[rows] = -1
            also = {one.name: one.batch(numbers, x, e) for one in self.also}
        return BatchRows(arrays, troubles, also)

    def _column(self, one: Field, values: Array | None, bad: list[int], count: int) -> Array:
        """Return a field's rows, empty where an item is bad."""
        if values is None:
            return np.full((count, *one.shape), one.fill, dtype=one.dtype)
        column: Array = values.astype(one.dtype, copy=False)
        if bad and one.name not in ("status", "label", "input_hash"):
            column = column.copy()
            column[bad] = one.fill
        return column

    def _numbers(self, x: Tensor, e: Explanation) -> dict[str, Array]:
        """Maps, scores and ledger of an explanation, as arrays."""
        many, ledger = e.score.ndim, e.ledger
        heat = e.heatmap(axis=self.axis)
        found: dict[str, Array] = {}
        if isinstance(e, Contrast):
            found["contrast"], found["contrast_scale"] = _halves(heat)
            heat = heat + sum_channels(e.shared, many, e.axis_of(0, self.axis))
        found["heatmap"], found["scale"] = _halves(heat)
        if any(one.name == "relevance" for one in self.fields):
            raw = e.relevance + e.shared if isinstance(e, Contrast) else e.relevance
            found["relevance"] = _array(raw)
        found["score"] = _array(e.score)
        parts = [getattr(ledger, name) for name in PARTS]
        none = torch.full_like(e.score, torch.nan)
        found["ledger"] = _array(torch.stack([none if part is None else part for part in parts], 1))
        output = self._output(x, e)
        found["prediction"] = self._prediction(x, e, output)
        found["target"] = self._target(x, e, found["prediction"])
        found["probability"] = self._probability(output, found["target"])
        return found

    def _output(self, x: Tensor, e: Explanation) -> Tensor | None:
        """Return the output of the network, (batch, classes), if something is read from it; None if there are none."""
        if self.target is None and e.classes is None:  # the network gives one number, and no class
            return None
        if e.classes is not None and all(one.name != "probability" for one in self.fields):
            return None
        with eval_mode(self.explainer.model), torch.no_grad():
            output = self.explainer.model(x)
        is_of_classes = isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1
        return output if is_of_classes else None

    def _prediction(self, x: Tensor, e: Explanation, output: Tensor | None) -> Array:
        """Return the network's answer; −1 where it gives no classes."""
        if e.classes is not None:
            return _array(e.classes)
        return np.full(len(x), -1) if output is None else _array(output.argmax(1))

    def _probability(self, output: Tensor | None, target: Array) -> Array:
        """Return the probability of each explained class; NaN if it has none, or if samples have several labels."""
        read = to_probabilities if self.model is None else self.model.probabilities
        several = "sigmoid" in self.explainer.captured.engine.planned.removed_operations
        if output is None or read is None or several:
            return np.full(len(target), np.nan)
        found = _array(read(output.float()))[np.arange(len(target)), target.clip(min=0)]
        return np.where(target >= 0, found, np.nan)

    def _target(self, x: Tensor, e: Explanation, prediction: Array) -> Array:
        if self.target is None:
            return prediction
        if isinstance(e.target, Tensor) and not e.target.is_floating_point() and e.target.ndim == 1:
            return _array(e.target)
        return np.full(len(x), e.target if isinstance(e.target, int) else -1)

    def shard(self, number: int, batches: Sequence[BatchRows]) -> Shard:
        """Join all batches of a shard."""
        arrays = {one.name: np.concatenate([rows.arrays[one.name] for rows in batches]) for one in self.fields}
        troubles = [t for rows in batches for t in rows.troubles]
        also = {
            one.name: one.shard([rows.also[one.name] for rows in batches if one.name in rows.also]) for one in self.also
        }
        return Shard(number, len(arrays["status"]), arrays, troubles, also)


def _halves(heat: Tensor) -> tuple[Array, Array]:
    """Maps as float16 between −1 and 1, and the scale that they were divided by."""
    flat = heat.flatten(1)
    scale = flat.abs().amax(1)
    divided = flat / scale.clamp_min(torch.finfo(scale.dtype).tiny)[:, None]
    return _array(divided.to(torch.float16).reshape(heat.shape)), _array(scale.float())


def _array(t: Tensor) -> Array:
    t = t.detach().cpu()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()
