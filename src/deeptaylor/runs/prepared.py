"""Items that were read and brought to the network's form, all of a batch in one tensor; and those that could not be.

A batch always has a row for every item: where one cannot be explained, a copy of another is in its place, and what
comes of it is thrown away. So the numbers of the others are the same whether or not it could be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from deeptaylor.runs.commits import Item

__all__ = ["Bad", "Prepared", "joined"]


class Bad(NamedTuple):
    """Why an item is not explained."""

    status: int
    reason: str


@dataclass
class Prepared:
    """Items as the network takes them, one row each."""

    items: Sequence[Item]
    x: Tensor | None  # None where no item is good
    digests: list[bytes]
    labels: list[int]
    bad: dict[int, Bad] = field(default_factory=dict)  # by row

    def set_aside(self, bad: dict[int, Bad]) -> None:
        """Leave rows out: a copy of a good one takes the place of each."""
        self.bad |= bad
        self._fill(bad)

    def classes(self) -> list[int]:
        """The class of every row, of copies that of what they are copies of."""
        good = self._good()
        return [self.labels[good if k in self.bad else k] for k in range(len(self.items))]

    def _good(self) -> int:
        return next((k for k in range(len(self.items)) if k not in self.bad), -1)

    def _fill(self, rows: dict[int, Bad]) -> None:
        if self.x is None or not rows:
            return
        good = self._good()
        if good < 0:
            self.x = None
        else:
            self.x[list(rows)] = self.x[good].clone()

    @classmethod
    def of(
        cls, items: Sequence[Item], inputs: Sequence[Tensor | None], digests: list[bytes], labels: list[int],
        bad: dict[int, Bad],
    ) -> Prepared:  # fmt: skip
        """Inputs without a batch's axis, None for those that are bad."""
        stand_in = next((x for x in inputs if x is not None), None)
        if stand_in is None:
            return cls(items, None, digests, labels, bad)
        x = torch.stack([stand_in if one is None else one for one in inputs])
        return cls(items, x, digests, labels, bad)


def joined(parts: Sequence[Prepared], pinned: bool = False) -> Prepared:
    """Parts of a batch as one; `pinned`: in memory that a GPU copies from by itself."""
    whole = parts[0] if len(parts) == 1 else _joined(parts)
    if pinned and whole.x is not None and not whole.x.is_cuda:
        whole.x = whole.x.pin_memory()
    return whole


def _joined(parts: Sequence[Prepared]) -> Prepared:
    some = next((p.x for p in parts if p.x is not None), None)
    bad: dict[int, Bad] = {}
    first = 0
    for part in parts:
        bad |= {first + k: why for k, why in part.bad.items()}
        first += len(part.items)
    return Prepared(
        [item for p in parts for item in p.items],
        None
        if some is None
        else torch.cat([some[:1].expand(len(p.items), *some.shape[1:]) if p.x is None else p.x for p in parts]),
        [digest for p in parts for digest in p.digests],
        [label for p in parts for label in p.labels],
        bad,
    )
