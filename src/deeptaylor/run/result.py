"""What comes of a pass, and how the results of parts of a batch are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.errors import BoundaryError
from deeptaylor.plan import guard
from deeptaylor.run.values import Layout

__all__ = ["Result", "Rivals", "joined"]


@dataclass(frozen=True)
class Rivals:
    """Who they are, what each counts, and a relevance of all together for each input, of whatever sum."""

    classes: Tensor  # (B, [K,] M)
    scores: Tensor
    weights: Tensor
    relevance: tuple[Tensor, ...]
    began: Tensor  # (B, [K]): the relevance that they began with together
    places: tuple[Tensor, ...] = ()  # as in Result


pytree.register_dataclass(Rivals)


@dataclass(frozen=True)
class Result:
    """One run: the score, a relevance for each input, and on request the ledger's entries and inner relevances."""

    score: Tensor
    relevance: tuple[Tensor, ...]
    entries: Tensor | None  # ([K,] pages, 4, batch): arrived, went on, bias, dropped (books.py)
    kept: dict[str, Tensor]
    lowest: Tensor | None = None  # the smallest value of every watched tensor (guard.py), where books are kept
    rivals: Rivals | None = None  # where the target is one class against others
    chosen: Tensor | None = None  # (B,): the classes that were explained, where the network's answer was asked for
    places: tuple[Tensor, ...] = ()  # relevance at the last feature map without channels, for redistribution
    redistributed: Tensor | None = None  # what pixels were given of the relevance absorbed by biases (returned.py)
    values: dict[str, Tensor] = field(default_factory=dict)  # of the forward pass, where relevance is kept


def joined(parts: Sequence[Result], layout: Mapping[str, Layout]) -> Result:
    """The results of parts of a batch as those of the whole; `layout` tells where kept tensors have their samples."""
    entries = [p.entries for p in parts if p.entries is not None]
    return Result(
        torch.cat([p.score for p in parts]),
        tuple(torch.cat(rs) for rs in zip(*(p.relevance for p in parts), strict=True)),
        torch.cat(entries, -1) if entries else None,
        {name: _joined_at([p.kept[name] for p in parts], where) for name, where in layout.items()},
        guard.lowest_of([p.lowest for p in parts if p.lowest is not None]),
        pytree.tree_map(lambda *ts: torch.cat(ts), *others) if (others := _rivals(parts)) else None,
        torch.cat(chosen) if (chosen := [p.chosen for p in parts if p.chosen is not None]) else None,
        tuple(torch.cat(ps) for ps in zip(*(p.places for p in parts), strict=True)),
        values={name: _joined_at([p.values[name] for p in parts], layout[name]) for name in parts[0].values},
    )


def _rivals(parts: Sequence[Result]) -> list[Rivals]:
    return [p.rivals for p in parts if p.rivals is not None]


def _joined_at(parts: Sequence[Tensor], where: Layout) -> Tensor:
    if where.outer != 1:
        raise BoundaryError(
            "This batch was explained in parts, and here samples lie between each other: give smaller batches."
        )
    many = parts[0].ndim > len(where.sizes)  # an axis of targets, behind the first
    return torch.cat(list(parts), where.dim + (many and where.dim > 0))
