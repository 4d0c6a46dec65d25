"""Several references of short texts are compared at once, as one larger batch: the network's weights are read once.

grouped(references, x, …)       those of the same form, as long as they are small
compared_together(run, …)       a group as one batch, and taken apart again; those that differ from x in other inputs by
                                themselves, where changes of both kinds meet in an operation that has no split for both
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.errors import UnsupportedOpError
from deeptaylor.run import target as targets
from deeptaylor.run.engine import Engine
from deeptaylor.secant.copies import copies
from deeptaylor.secant.traced import Found, Walk

__all__ = ["compared_together", "grouped"]

Inputs = Sequence[Tensor]
_MOST = 4096  # tokens in a batch; what is larger fills a processor by itself, and needs the memory


def grouped(references: Sequence[Inputs], x: Inputs, engine: Engine, target: Any) -> list[list[Inputs]]:
    """References that are compared at once."""
    rows = len(x[0])
    most = _MOST // max(1, x[0].numel()) if engine.fixed_batch is None and _repeats(target, x, rows) else 1
    groups: list[list[Inputs]] = []
    for reference in references:
        last = groups[-1] if groups else []
        if last and len(last) < most and engine.takes(rows * (len(last) + 1)) and _alike(last[0], reference):
            last.append(reference)
        else:
            groups.append([reference])
    return groups


def _repeats(target: Any, x: Inputs, rows: int) -> bool:
    """True where everything has one part per sample, so that it can be said several times."""
    asked = pytree.tree_leaves(targets.settled(target, x[0]))
    tensors = [t for t in asked if t is not None]
    return all(isinstance(t, Tensor) and t.ndim > 0 and len(t) == rows for t in (*x, *tensors))


def _alike(a: Inputs, b: Inputs) -> bool:
    """True where both have the same form."""
    return all((r.shape, r.dtype) == (s.shape, s.dtype) for r, s in zip(a, b, strict=True))


def compared_together(run: Walk, x: Inputs, references: Sequence[Inputs], target: Any) -> list[Found]:
    """What came of each reference; in the order in which they were compared."""
    kinds: dict[tuple[bool, ...], list[Inputs]] = {}
    for reference in references:
        kinds.setdefault(tuple(r is t for r, t in zip(reference, x, strict=True)), []).append(reference)
    try:
        return _as_one(run, x, references, target)
    except UnsupportedOpError:
        if len(kinds) == 1:
            raise
        return [found for kind in kinds.values() for found in _as_one(run, x, kind, target)]


def _as_one(run: Walk, x: Inputs, references: Sequence[Inputs], target: Any) -> list[Found]:
    count, rows = len(references), len(x[0])
    if count == 1:
        return [run(x, references[0], target)]
    larger = [torch.cat([t] * count) for t in x]
    others = [
        own if all(one is t for one in given) else torch.cat(given)
        for t, own, given in zip(x, larger, map(list, zip(*references, strict=True)), strict=True)
    ]
    settled = targets.settled(target, x[0])
    asked = pytree.tree_map_only(Tensor, lambda t: torch.cat([t] * count), settled)
    with copies(count):
        maps, score, reference, chosen = run(larger, others, asked)
    parts = [slice(k * rows, (k + 1) * rows) for k in range(count)]
    return [
        (tuple(R[part] for R in maps), score[part], reference[part], None if chosen is None else chosen[part])
        for part in parts
    ]
