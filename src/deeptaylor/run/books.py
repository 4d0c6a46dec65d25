"""The books of a reverse pass: what arrived, what went on, what biases took and what was dropped.

They are kept by step; or in total, on one page for the whole pass, where what arrived is the score and what went on is
the inputs'; or only what was dropped is summed, and what biases took is the rest. An entry is first summed along the
axes where its elements lie closest together, which a compiler does together with what makes or reads it; the rest waits
until the end, where entries of one size are summed together: hundreds of sums take the launches of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deeptaylor.graph.exporting import is_compiling
from deeptaylor.maps.division import undivided
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.run.values import ForwardValues

__all__ = ["DROPPED", "Books", "Kept"]

Kept = Literal["by step", "in total", "dropped"] | None
DROPPED: Literal["dropped"] = "dropped"
_FEW = 4  # the entries of one page


class Books:
    """One page a step, or one for all; kept where they are `open`, else nobody reads them.

    `look`: values may be looked at, which a trace cannot and a GPU would have to be waited for.
    """

    def __init__(self, run: ForwardValues, kept: Kept, look: bool) -> None:
        self.run, self.open, self.look, self._by_step = run, kept is not None, look, kept == "by step"
        self.books_bias = kept != DROPPED
        self._pages: list[Page] = []
        self._arrived: dict[str, list[Tensor]] = {}
        self._begun: list[Tensor] = []
        self._products: list[tuple[Tensor, Tensor]] = []  # of channels' sums and weights

    def begin(self, node: str, R: Tensor) -> None:
        """Books in total that begin inside the network: what arrives at a node."""
        self._begun.append(self.run.partial(node, R))

    def page(self, node: str | None, R: Tensor, settled: bool) -> Page:
        """The page of the next step, which takes what arrived at a node; of the first, which takes the score."""
        page = Page(self, node, settled)
        if self._by_step or not self._pages:
            page.arrived = [R] if node is None else self._arrived.pop(node, self._begun)
            if self.open:
                self._pages.append(page)
        else:
            page.taken, page.lost = self._pages[0].taken, self._pages[0].lost
        return page

    def hand_on(self, page: Page, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """What a step gives to each of its inputs."""
        if self._by_step:
            for name, out in zip(names, outs, strict=True):
                if out is not None:
                    page.on.append(self.run.partial(name, _widened(out, self.run.shape(name))))
                    self._arrived.setdefault(name, []).append(page.on[-1])

    def product(self, node: str, t: Tensor, weight: Tensor) -> bool:
        """Put off a product with a bias per channel until all can be done at once, where launching it takes longest.

        Only of quotients that cannot be large (Step.settled: R_j / Z_j ≤ R_j / |z_j|): their sums do not overflow.
        """
        pictures = t.ndim == 4 and t.shape == self.run.shape(node) and self.run.layout[node].plain
        by_channel = pictures and weight.shape[-3:] == (t.shape[1], 1, 1) and weight.numel() == t.shape[1]
        if self._by_step or not by_channel or is_compiling():
            return False
        self._products.append((t.sum((2, 3), dtype=torch.promote_types(t.dtype, torch.float32)), weight.reshape(-1)))
        return True

    def close(self, like: Tensor, names: Sequence[str], inputs: Sequence[Tensor]) -> Tensor | None:
        """(pages, 4, batch): arrived, went on, bias, dropped; `like`: one number per sample."""
        if not self.open:
            return None
        if not self._by_step:
            self._pages[0].on = [self.run.partial(name, R) for name, R in zip(names, inputs, strict=True)]
        if self._products:
            sums, weights = (torch.cat(parts, -1) for parts in zip(*self._products, strict=True))
            self._pages[0].taken.append((sums @ weights.to(sums.dtype)).to(like.dtype))
        if not self.books_bias:
            first = self._pages[0]
            arrived, on, dropped = (_total(parts, like) for parts in (first.arrived, first.on, first.lost))
            return torch.stack([arrived, on, (arrived - on - dropped).clamp(min=0), dropped])[None]
        entries = [entry for page in self._pages for entry in (page.arrived, page.on, page.taken, page.lost)]
        return torch.stack(_totals(entries, torch.zeros_like(like))).reshape(-1, 4, *like.shape)


def _total(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of one entry's parts; also where the size of the batch is a symbol (an export)."""
    total = torch.zeros_like(like)
    for part in parts:
        total = total + part.reshape(like.shape[0], -1).sum(1)
    return total


def _totals(entries: Sequence[Sequence[Tensor]], none: Tensor) -> list[Tensor]:
    """The sum of each entry's parts, one number per sample; parts of one shape together."""
    groups: dict[tuple[int | None, torch.Size], list[tuple[int, Tensor]]] = {}
    apart = len(entries) > _FEW  # of few entries the parts are summed at once, of many each by itself
    for k, parts in enumerate(entries):
        for part in parts:
            groups.setdefault((None if apart else k, part.shape), []).append((k, part))
    totals: list[Maybe] = [None] * len(entries)
    for group in groups.values():
        stacked = torch.stack([part for _, part in group])
        stacked = stacked.reshape(len(group), len(none), -1)
        if apart:
            for (k, _), total in zip(group, stacked.sum(2).unbind(), strict=True):
                totals[k] = plus(totals[k], total)
        else:
            k = group[0][0]
            totals[k] = plus(totals[k], stacked.sum((0, 2)))
    return [none if t is None else t for t in totals]


class Page:
    """Takes what a step hands on and what it does not, as sums that are still to be summed for each sample."""

    def __init__(self, books: Books, node: str | None, settled: bool) -> None:
        self.books, self.node, self.open, self.settled = books, node, books.open, settled
        self.arrived: list[Tensor] = []
        self.on: list[Tensor] = []
        self.taken: list[Tensor] = []
        self.lost: list[Tensor] = []

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        """What biases take; where there is a weight, times that."""
        if not self.open or not self.books.books_bias:
            return
        if self.node is None or weight is None or not (self.settled and self.books.product(self.node, share, weight)):
            self.taken.append(self._sum(share, weight))

    def dropped(self, share: Tensor) -> None:
        """What goes nowhere."""
        if self.open:
            self.lost.append(self._sum(share, None))

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        """What is dropped of R where Z is too small to divide by."""
        # Numbers that are too small are the smallest there are, but in float16.
        if not self.open or (self.settled and Z.dtype is not torch.float16):
            return
        # There is hardly ever anything to drop, and to see that takes less than to add it up.
        if not (self.books.look and float(Z.amin()) > torch.finfo(Z.dtype).tiny):
            self.dropped(undivided(R, Z))

    def _sum(self, t: Tensor, weight: Maybe) -> Tensor:
        if self.node is None:
            return t if weight is None else t * weight
        run = self.books.run
        t = _widened(t, run.shape(self.node))
        return run.partial(self.node, t) if weight is None else run.weighted(self.node, t, weight)


def _widened(t: Tensor, shape: torch.Size) -> Tensor:
    return t if t.shape == shape else t.expand(shape)
