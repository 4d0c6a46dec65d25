"""The ledger: where the score went, in total and step by step (engine/ledger_entries.py records the numbers)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from deeptaylor.check import TOLERANCE
from deeptaylor.engine.result import Result
from deeptaylor.errors import BoundaryError, StaleModelError
from deeptaylor.plan.plan import Plan

__all__ = ["Ledger", "make_reader", "make_residual_ledger", "sum_relevance"]


@dataclass(frozen=True)
class Ledger:
    """f(x) = input + bias + dropped + residual, one number per sample (and target); each is a sum of entries.

    entries    ([K,] steps, 4, batch): the relevance that arrived at each step, was passed on, was absorbed by biases,
               was dropped; after an explanation on a GPU, they are computed on first access
    residual   the part of the score that a method does not redistribute; deep Taylor has none
    """

    input: Tensor
    bias: Tensor
    dropped: Tensor
    residual: Tensor
    score: Tensor
    rows: tuple[tuple[str, str, str, str], ...]
    by_step: Tensor | Callable[[], Tensor]  # the entries, or a function that computes them
    shared: Tensor | None = None  # of a contrast: the input's relevance shared with rivals; `input` is the rest
    returned: Tensor | None = None  # the part of `input` that biases had absorbed (bias="returned")
    own: Tensor | None = None  # `input` before that; a difference of the two would have no precision left
    score_is: str = ""  # describes the score, if it is not one of the network's outputs

    @classmethod
    def from_result(cls, result: Result, plan: Plan, later: Callable[[], Tensor]) -> Ledger:
        """Make the ledger of a run; `later` computes the entries of every step if only totals were recorded."""
        assert result.entries is not None
        many = result.entries.ndim == 4
        _, on, bias, dropped = result.entries.unbind(-2)
        in_total = on.shape[-2] == 1 < len(plan.rows)
        return cls(
            input=_move_samples_first(on.sum(-2), many) if in_total else sum_relevance(result.relevance, many),
            bias=_move_samples_first(bias.sum(-2), many),
            dropped=_move_samples_first(dropped.sum(-2), many),
            residual=torch.zeros_like(result.score),
            score=result.score.clamp(min=0),
            rows=tuple((row.node, row.module, row.op, row.rule) for row in plan.rows),
            by_step=later if in_total else result.entries,
        )

    def with_redistribution(self, result: Result) -> Ledger:
        """Return the ledger of a result in which relevance absorbed by biases was redistributed to pixels."""
        assert result.redistributed is not None
        given = result.redistributed.to(self.bias.dtype)
        return replace(
            self,
            input=sum_relevance(result.relevance, self.score.ndim == 2),
            bias=(self.bias - given).clamp(min=0),
            returned=given,
            own=self.input,
        )

    @functools.cached_property
    def entries(self) -> Tensor:
        """([K,] steps, 4, batch): the relevance that arrived, was passed on, was absorbed by biases, was dropped."""
        return self.by_step if isinstance(self.by_step, Tensor) else self.by_step()

    def __getstate__(self) -> dict[str, Any]:
        # A file holds numbers, not the network that computes them; all of them if the network is unchanged.
        try:
            return {**self.__dict__, "by_step": self.entries}
        except StaleModelError:
            return {**self.__dict__, "by_step": _raise_no_steps}

    def select(self, samples: Sequence[int]) -> Self:
        """Return the ledger of some of the samples."""
        rows = list(samples)
        numbers: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "by_step"}
        picked: dict[str, Any] = {name: t[rows] for name, t in numbers.items() if isinstance(t, Tensor)}
        return replace(self, **picked, by_step=lambda: self.entries[..., rows])

    @property
    def input_total(self) -> Tensor:
        """The relevance of the input; for a contrast, the sum of both parts."""
        return self.input if self.shared is None else self.input + self.shared

    @property
    def held(self) -> Tensor:
        """The former name of `input_total`."""
        warnings.warn("Ledger.held is now Ledger.input_total.", DeprecationWarning, stacklevel=2)
        return self.input_total

    @property
    def total(self) -> Tensor:
        """The relevance of the input + bias + dropped + residual; equal to max(0, f) up to rounding."""
        return self.input_total + self.bias + self.dropped + self.residual

    def table(self, sample: int = 0, target: int = 0) -> str:
        """Return one sample's ledger as text, step by step, before relevance absorbed by biases is redistributed."""
        entries = self.entries[target] if self.entries.ndim == 4 else self.entries
        head = ("node", "module", "op", "rule", "arrived", "went on", "bias", "dropped")
        lines: list[tuple[str, ...]] = [head]
        for row, numbers in zip(self.rows, entries[:, :, sample].tolist(), strict=True):
            lines.append((*row, *[f"{n:.6g}" for n in numbers]))
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        text = [
            "  ".join(c.ljust(w) if k < 4 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        return "\n".join(
            [text[0], "  ".join("─" * w for w in widths), *text[1:], str(self._format_line(sample, target))]
        )

    def _format_line(self, sample: int, target: int) -> str:
        pick = make_reader(sample, target)
        if not self.rows:
            return f"f = {pick(self.score):.6g} = input {pick(self.input):.6g} + residual {pick(self.residual):.6g}"
        gap = pick(self.score) - pick(self.total)
        wrong = abs(gap) > TOLERANCE.get(self.score.dtype, 1e-4) * pick(self.score)
        part = "which" if self.shared is None else "both,"
        back = "" if self.returned is None else f" (of {part} {pick(self.returned):.6g} was absorbed by biases)"
        score = "f" if pick(self.score) > 0 else "max(0, f)"
        return (
            f"{score} = {pick(self.score):.6g} = {self._format_parts(pick)}{back} + bias {pick(self.bias):.6g} + "
            f"dropped {pick(self.dropped):.6g}" + (f"; NOT accounted for: {gap:.6g}" if wrong else "")
        )

    def _format_parts(self, pick: Callable[[Tensor], float]) -> str:
        if self.shared is None:
            return f"input {pick(self.input):.6g}"
        return f"distinctive {pick(self.input):.6g} + shared {pick(self.shared):.6g}"

    def __repr__(self) -> str:
        targets = f" and {self.score.shape[1]} targets" if self.score.ndim == 2 else ""
        more = f", and {self.score.shape[0] - 1} more" if self.score.shape[0] > 1 else ""
        return f"<Ledger of {self.score.shape[0]} sample(s){targets}: {self._format_line(0, 0)}{more}>"

    def __str__(self) -> str:
        batch = self.score.shape[0]
        said = [f"Score: {self.score_is}."] * bool(self.score_is)
        return "\n".join([*said, *(f"sample {k}: {self._format_line(k, 0)}" for k in range(batch))])


def make_residual_ledger(relevance: Tensor, score: Tensor) -> Ledger:
    """Return the ledger of a method that explains f as a whole: unassigned relevance is the residual."""
    total, none = relevance.flatten(1).sum(1), torch.zeros_like(score)
    by_step = score.new_zeros(0, 4, len(score))
    return Ledger(total, none, none, residual=score - total, score=score, rows=(), by_step=by_step)


def sum_relevance(relevance: Sequence[Tensor], many: bool) -> Tensor:
    """Return Σ R per sample, and per target if there are `many`; summed over all inputs."""
    kept = 2 if many else 1
    sums = [R.sum(tuple(range(kept, R.ndim))) if R.ndim > kept else R for R in relevance]
    return torch.stack(sums, -1).sum(-1)


def make_reader(sample: int, target: int) -> Callable[[Tensor], float]:
    """Return a function that reads one number from a tensor (B,) or (B, K)."""
    return lambda t: float(t[sample, target] if t.ndim == 2 else t[sample])


def _move_samples_first(t: Tensor, many: bool) -> Tensor:
    """Move the sample's axis before the target's, if there are several targets."""
    return t.movedim(0, 1) if many else t


def _raise_no_steps() -> Tensor:
    """Raise BoundaryError: the entries of a saved ledger are missing."""
    raise BoundaryError(
        "This ledger was saved after its network had changed, and without the numbers of every "
        "step: only the totals are known. Explain again for the rest."
    )
