"""The ledger entries of a reverse pass: relevance that arrived, was passed on, was absorbed by biases, was dropped.

EntryDetail selects what is recorded: one row for each step; one row in total, whose relevance arrives with the score
and is passed on to the inputs; or only dropped relevance, so that biases absorbed the rest.

Each entry is summed in two stages. While the steps run, it is summed along the axes whose elements are closest together
in memory; a compiler fuses this with the operation that makes or reads it. At the end, entries of one size are summed
together, so that hundreds of sums need only a few kernel launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deeptaylor.engine.forward import ForwardValues
from deeptaylor.graph.modes import is_compiling
from deeptaylor.maps.division import undivided
from deeptaylor.maps.linear_map import Maybe, plus

__all__ = ["DROPPED", "EntryDetail", "LedgerEntries"]

EntryDetail = Literal["by step", "in total", "dropped"] | None
DROPPED: Literal["dropped"] = "dropped"
_ENTRIES_PER_ROW = 4  # arrived, passed on, absorbed by biases, dropped


class LedgerEntries:
    """Records the ledger entries of a reverse pass: one row per step, or one row in total.

    open         False if no entries are recorded
    may_read     True if values may be read; a trace cannot do that, and it synchronises with a GPU
    """

    def __init__(self, run: ForwardValues, detail: EntryDetail, may_read: bool) -> None:
        self.run, self.open, self.may_read, self._by_step = run, detail is not None, may_read, detail == "by step"
        self.records_bias = detail != DROPPED
        self._rows: list[LedgerRow] = []
        self._arrived: dict[str, list[Tensor]] = {}
        self._initial: list[Tensor] = []
        self._products: list[tuple[Tensor, Tensor]] = []  # pairs of sums per channel and weights

    def begin(self, node: str, R: Tensor) -> None:
        """Start the totals at a node inside the network, with the relevance that arrives there."""
        self._initial.append(self.run.sum_partly(node, R))

    def start_row(self, node: str | None, R: Tensor, drops_nothing: bool) -> LedgerRow:
        """Return the row of the next step.

        node            the tensor whose relevance R the step redistributes; None for the score
        drops_nothing   as in `Step`
        """
        row = LedgerRow(self, node, drops_nothing)
        if self._by_step or not self._rows:
            row.arrived = [R] if node is None else self._arrived.pop(node, self._initial)
            if self.open:
                self._rows.append(row)
        else:
            row.absorbed, row.lost = self._rows[0].absorbed, self._rows[0].lost
        return row

    def record_outputs(self, row: LedgerRow, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """Record the relevance that a step passes to each of its inputs."""
        if self._by_step:
            for name, out in zip(names, outs, strict=True):
                if out is not None:
                    row.passed.append(self.run.sum_partly(name, _expand(out, self.run.shape(name))))
                    self._arrived.setdefault(name, []).append(row.passed[-1])

    def defer_product(self, node: str, t: Tensor, weight: Tensor) -> bool:
        """Postpone the product of t with a weight per channel, so that `close` computes all of them in one launch.

        Return False if that is not possible. It is only used where quotients cannot be large
        (Step.drops_nothing: R_j / Z_j ≤ R_j / |z_j|), so that their sums stay finite.
        """
        pictures = t.ndim == 4 and t.shape == self.run.shape(node) and self.run.layout[node].plain
        by_channel = pictures and weight.shape[-3:] == (t.shape[1], 1, 1) and weight.numel() == t.shape[1]
        if self._by_step or not by_channel or is_compiling():
            return False
        self._products.append((t.sum((2, 3), dtype=torch.promote_types(t.dtype, torch.float32)), weight.reshape(-1)))
        return True

    def close(self, like: Tensor, names: Sequence[str], inputs: Sequence[Tensor]) -> Tensor | None:
        """Return the entries (rows, 4, batch): arrived, passed on, bias, dropped; None if none were recorded.

        like     a tensor with one number per sample
        inputs   the relevance of the network's inputs, which have these names
        """
        if not self.open:
            return None
        if not self._by_step:
            self._rows[0].passed = [self.run.sum_partly(name, R) for name, R in zip(names, inputs, strict=True)]
        if self._products:
            sums, weights = (torch.cat(parts, -1) for parts in zip(*self._products, strict=True))
            self._rows[0].absorbed.append((sums @ weights.to(sums.dtype)).to(like.dtype))
        if not self.records_bias:
            first = self._rows[0]
            arrived, passed, dropped = (_sum_entry(parts, like) for parts in (first.arrived, first.passed, first.lost))
            return torch.stack([arrived, passed, (arrived - passed - dropped).clamp(min=0), dropped])[None]
        entries = [entry for row in self._rows for entry in (row.arrived, row.passed, row.absorbed, row.lost)]
        return torch.stack(_sum_entries(entries, torch.zeros_like(like))).reshape(-1, 4, *like.shape)


def _sum_entry(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the sum of one entry's parts per sample; the batch size may be symbolic."""
    total = torch.zeros_like(like)
    for part in parts:
        total = total + part.reshape(like.shape[0], -1).sum(1)
    return total


def _sum_entries(entries: Sequence[Sequence[Tensor]], zeros: Tensor) -> list[Tensor]:
    """Return the sum of each entry's parts per sample; parts of the same shape are summed together."""
    groups: dict[tuple[int | None, torch.Size], list[tuple[int, Tensor]]] = {}
    is_separate = (
        len(entries) > _ENTRIES_PER_ROW
    )  # for one row, sum all parts at once; for more rows, each entry separately
    for k, parts in enumerate(entries):
        for part in parts:
            groups.setdefault((None if is_separate else k, part.shape), []).append((k, part))
    totals: list[Maybe] = [None] * len(entries)
    for group in groups.values():
        stacked = torch.stack([part for _, part in group])
        stacked = stacked.reshape(len(group), len(zeros), -1)
        if is_separate:
            for (k, _), total in zip(group, stacked.sum(2).unbind(), strict=True):
                totals[k] = plus(totals[k], total)
        else:
            k = group[0][0]
            totals[k] = plus(totals[k], stacked.sum((0, 2)))
    return [zeros if t is None else t for t in totals]


class LedgerRow:
    """The four entries of a step, each as partial sums; a rule writes to it (LedgerWriter in rules/base.py)."""

    def __init__(self, entries: LedgerEntries, node: str | None, drops_nothing: bool) -> None:
        self.entries, self.node, self.open, self.drops_nothing = entries, node, entries.open, drops_nothing
        self.arrived: list[Tensor] = []
        self.passed: list[Tensor] = []
        self.absorbed: list[Tensor] = []
        self.lost: list[Tensor] = []

    def bias(self, share: Tensor, weight: Maybe = None) -> None:
        """Record relevance that biases absorb: the share, times the weight if there is one."""
        if not self.open or not self.entries.records_bias:
            return
        if (
            self.node is None
            or weight is None
            or not (self.drops_nothing and self.entries.defer_product(self.node, share, weight))
        ):
            self.absorbed.append(self._sum(share, weight))

    def dropped(self, share: Tensor) -> None:
        """Record relevance that is dropped."""
        if self.open:
            self.lost.append(self._sum(share, None))

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        """Record the part of R that is dropped because Z is too small to divide by."""
        # In every dtype but float16, only subnormal numbers are too small to divide by.
        if not self.open or (self.drops_nothing and Z.dtype is not torch.float16):
            return
        # Usually nothing is dropped, and finding the minimum of Z is faster than summing what is dropped.
        if not (self.entries.may_read and float(Z.detach().amin()) > torch.finfo(Z.dtype).tiny):
            self.dropped(undivided(R, Z))

    def _sum(self, t: Tensor, weight: Maybe) -> Tensor:
        """Return partial sums of a tensor, times a weight if there is one."""
        if self.node is None:
            return t if weight is None else t * weight
        run = self.entries.run
        t = _expand(t, run.shape(self.node))
        return run.sum_partly(self.node, t) if weight is None else run.sum_weighted(self.node, t, weight)


def _expand(t: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor expanded to a shape."""
    return t if t.shape == shape else t.expand(shape)
