"""Channels over a whole data set: how much each counted in every item, and the items in which it counted most.

dt.explain_dataset(…, also=[Concepts(layer)])     an observer that sees the layer in the pass that makes the heatmaps
└── batch, shard                       of each shard two columns per channel, and each channel's best items
run.channels(layer)                    ChannelTable: what was kept of all shards, put together (`merged`)
├── top(channel)                       RelMax, or by="activation" ActMax
└── examples(explainer, inputs, …)     the same with the pieces of pictures that the channel counted in
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deeptaylor.concepts.channels import ChannelExamples, Example
from deeptaylor.engine.target import check_channel, find_channel_axis
from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation

__all__ = ["ChannelTable", "Concepts", "merge_tables"]

By = Literal["relevance", "activation"]
Array = npt.NDArray[Any]
_COLUMNS = get_args(By)


class Concepts:
    """Keeps, for every channel of a layer, its relevance and its activation in every item of a run.

    layer    the layer, by module path or node name
    top      how many items are kept as a channel's best, by relevance (RelMax) and by activation (ActMax)
    columns  False: the best items alone, where a number per item and channel would take too much room
    axis     that of the layer's output which counts the channels, as in `dt.unit`

    Relevance is what arrived at the channel, summed over its places; activation is that at its most active place. Both
    come out of the pass that makes the heatmaps.
    """

    def __init__(self, layer: str, top: int = 16, columns: bool = True, axis: int | None = None) -> None:
        if top < 1:
            raise InputError(f"top={top}: at least one.")
        self.layer, self.top, self.columns, self.axis = layer, top, columns, axis

    @property
    def layers(self) -> tuple[str, ...]:
        """What the explainer has to watch."""
        return (self.layer,)

    @property
    def name(self) -> str:
        """The folder of its files in a store."""
        return _name(self.layer)

    @property
    def settings(self) -> str:
        """What a run of this layer does not go on with, where it was begun with others."""
        usual = Concepts(self.layer)
        return ", ".join(f"{n}={vars(self)[n]}" for n in ("top", "columns", "axis") if vars(self)[n] != vars(usual)[n])

    def batch(self, numbers: Array, x: Tensor, e: Explanation) -> Mapping[str, Array]:
        """Both columns of a batch; an item that could not be explained is left out."""
        if self.layer not in e.seen:
            raise InputError(f"The layer {self.layer!r} was not watched: explainer.watch([{self.layer!r}]).")
        good = numbers >= 0
        seen = e.seen[self.layer]
        axis = find_channel_axis(self.layer, seen.relevance.shape, self.axis)
        places = [d for d in range(1, seen.relevance.ndim) if d != axis]
        found = {"relevance": seen.relevance, "activation": seen.activation}
        if places:  # summed where they lie: to bring them beside each other would take as long as a layer
            found = {"relevance": seen.relevance.sum(places), "activation": seen.activation.amax(places)}
        kept = {name: t.detach().to("cpu", torch.float32).numpy()[good] for name, t in found.items()}
        return {"numbers": numbers[good], **kept}

    def shard(self, parts: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return the columns of a shard, and the best items of every channel in it."""
        if not parts:
            return {"numbers": np.zeros(0, np.int64)}
        joined = {name: np.concatenate([part[name] for part in parts]) for name in ("numbers", *_COLUMNS)}
        found: dict[str, Array] = {"numbers": joined["numbers"]}
        for name in _COLUMNS:
            numbers = np.broadcast_to(joined["numbers"], (joined[name].shape[1], len(joined["numbers"])))
            found[f"{name}_best"], found[f"{name}_items"] = _best(joined[name].T, numbers, self.top)
        return found | ({name: joined[name] for name in _COLUMNS} if self.columns else {})


def _name(layer: str) -> str:
    return "concepts-" + re.sub(r"[^\w.-]", "_", layer)


def _best(values: Array, numbers: Array, top: int) -> tuple[Array, Array]:
    """Return (channels, top): the largest values above 0 and their items, of equal ones the earlier first; −1: none."""
    short = ((0, 0), (0, max(0, top - values.shape[1])))
    values, numbers = np.pad(values, short), np.pad(numbers, short, constant_values=-1)
    order = np.lexsort((numbers, -values), axis=1)[:, :top]
    best, items = np.take_along_axis(values, order, 1), np.take_along_axis(numbers, order, 1)
    none = ~(best > 0)
    return np.where(none, 0, best).astype(np.float32), np.where(none, -1, items).astype(np.int64)


@dataclass(frozen=True, repr=False)
class ChannelTable:
    """What the channels of a layer did in the items of a run.

    numbers      (n,): the items that were explained
    relevance    (n, channels): what arrived at each channel, summed over its places; None where columns were not kept
    activation   (n, channels): at its most active place, likewise
    best         {"relevance" or "activation": (values, items)}, each (channels, top), the largest first; −1: none
    """

    layer: str
    axis: int | None
    numbers: Array
    relevance: Array | None
    activation: Array | None
    best: Mapping[str, tuple[Array, Array]]

    @property
    def channels(self) -> int:
        """How many there are."""
        return len(self.best["relevance"][0])

    def top(self, channel: int, by: By = "relevance") -> list[tuple[int, float]]:
        """Return the items in which a channel counted most (RelMax) or was most active (ActMax), with their numbers."""
        if by not in _COLUMNS:
            raise InputError(f"by={by!r}: there are {' and '.join(map(repr, _COLUMNS))}.")
        check_channel(self.layer, channel, self.channels)
        values, items = self.best[by]
        return [(int(k), float(v)) for v, k in zip(values[channel], items[channel], strict=True) if k >= 0]

    def strongest(self, count: int = 10) -> list[tuple[int, float]]:
        """Return the channels with the greatest mean relevance over all items."""
        if self.relevance is None:
            raise InputError("The columns of this layer were not saved (columns=False).")
        mean = self.relevance.mean(0, dtype=np.float64)
        return [(int(c), float(mean[c])) for c in np.argsort(-mean, kind="stable")[:count]]

    def examples(
        self, explainer: Any, inputs: Callable[[int], Any], channels: Sequence[int], targets: Array | None = None,
        by: By = "relevance", count: int = 8,
    ) -> ChannelExamples:  # fmt: skip
        """Return the best items of some channels as `dt.ChannelExamples`, which cuts and draws the pieces that counted.

        inputs    from an item's number to what the explainer takes: the name of its file, a tensor (1, …)
        targets   (items,): the class that was explained in each; None: the network's answer
        """
        found = {}
        for channel in channels:
            best = self.top(channel, by)[:count]
            asked = [None if targets is None or by == "activation" else int(targets[k]) for k, _ in best]
            titles = ["" if c is None else f"class {c}" for c in asked]
            found[channel] = tuple(
                Example(k, v, title, inputs(k), c) for (k, v), c, title in zip(best, asked, titles, strict=True)
            )
        return ChannelExamples(explainer, self.layer, by, self.axis, len(self.numbers), found)

    def __repr__(self) -> str:
        return f"<ChannelTable of {self.channels} channels of {self.layer} in {len(self.numbers)} items>"


def merge_tables(layer: str, shards: Iterable[Mapping[str, Array]], axis: int | None = None) -> ChannelTable:
    """Merge the tables of all shards, of any number and in any order."""
    columns: dict[str, list[Array]] = {name: [] for name in ("numbers", *_COLUMNS)}
    best: dict[str, tuple[Array, Array]] = {}
    for shard in shards:
        for name in columns:
            columns[name] += [shard[name]] if name in shard else []
        for name in _COLUMNS:
            if f"{name}_best" in shard:
                own = shard[f"{name}_best"], shard[f"{name}_items"]
                best[name] = own if name not in best else _merge_best(best[name], own)
    if not best:
        raise InputError(f"Nothing is saved for the layer {layer!r} yet: no shard is finished.")
    joined = {name: np.concatenate(parts) if parts else None for name, parts in columns.items()}
    numbers, whole = joined["numbers"], {}
    assert numbers is not None
    order = np.argsort(numbers, kind="stable")
    for name in _COLUMNS:
        column = joined[name]
        whole[name] = None if column is None else column[order]
    return ChannelTable(layer, axis, numbers[order], whole["relevance"], whole["activation"], best)


def _merge_best(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    values, items = (np.concatenate(pair, 1) for pair in zip(a, b, strict=True))
    return _best(values, items, a[0].shape[1])
