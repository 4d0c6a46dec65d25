"""The result of a pass, and how the results of parts of a batch are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.engine.sample_layout import Layout
from deeptaylor.errors import BoundaryError
from deeptaylor.plan import domains

__all__ = ["Result", "Rivals", "join_results"]


@dataclass(frozen=True)
class Rivals:
    """Rival classes, their weights, and their combined relevance for each input, which need not sum to the score."""

    classes: Tensor  # (B, [K,] M)
    scores: Tensor
    weights: Tensor
    relevance: tuple[Tensor, ...]
    began: Tensor  # (B, [K]): the combined relevance at the score
    places: tuple[Tensor, ...] = ()  # as in Result


pytree.register_dataclass(Rivals)


@dataclass(frozen=True)
class Result:
    """The score, the relevance of each input, and on request the ledger entries and the relevance of inner tensors."""

    score: Tensor
    relevance: tuple[Tensor, ...]
    entries: Tensor | None  # ([K,] rows, 4, batch): arrived, went on, bias, dropped (ledger_entries.py)
    kept: dict[str, Tensor]
    lowest: Tensor | None = None  # the smallest value of every watched tensor (plan/domains.py)
    rivals: Rivals | None = None  # if the target is one class against others
    chosen: Tensor | None = None  # (B,): the top classes, if the target was None
    places: tuple[Tensor, ...] = ()  # relevance at the last feature map, summed over channels
    redistributed: Tensor | None = None  # relevance absorbed by biases that pixels were given (bias_redistribution.py)
    values: dict[str, Tensor] = field(default_factory=dict)  # of the forward pass, for tensors whose relevance is kept


def join_results(parts: Sequence[Result], layout: Mapping[str, Layout]) -> Result:
    """Return the result of a batch from the results of its parts; `layout`: the sample axis of each kept tensor."""
    entries = [p.entries for p in parts if p.entries is not None]
    return Result(
        torch.cat([p.score for p in parts]),
        tuple(torch.cat(rs) for rs in zip(*(p.relevance for p in parts), strict=True)),
        torch.cat(entries, -1) if entries else None,
        {name: _join_along([p.kept[name] for p in parts], where) for name, where in layout.items()},
        domains.combine_minima([p.lowest for p in parts if p.lowest is not None]),
        pytree.tree_map(lambda *ts: torch.cat(ts), *others) if (others := _join_rivals(parts)) else None,
        torch.cat(chosen) if (chosen := [p.chosen for p in parts if p.chosen is not None]) else None,
        tuple(torch.cat(ps) for ps in zip(*(p.places for p in parts), strict=True)),
        values={name: _join_along([p.values[name] for p in parts], layout[name]) for name in parts[0].values},
    )


def _join_rivals(parts: Sequence[Result]) -> list[Rivals]:
    """Return the rivals of the parts that have some."""
    return [p.rivals for p in parts if p.rivals is not None]


def _join_along(parts: Sequence[Tensor], where: Layout) -> Tensor:
    """Concatenate tensors along their sample axis; raise BoundaryError if samples are interleaved."""
    if where.outer != 1:
        raise BoundaryError(
            "This batch was explained in parts, which cannot be joined here, because samples are "
            "interleaved: give smaller batches."
        )
    many = parts[0].ndim > len(where.sizes)  # there is an axis of targets after the first
    return torch.cat(list(parts), where.dim + (many and where.dim > 0))
