"""The answer: how the score of x came from that of a reference, with what speaks for it and what against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from deeptaylor.explanation import Explanation
from deeptaylor.ledger import Ledger
from deeptaylor.pictures import sentences
from deeptaylor.pictures.axes import Axis
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.properties import TOLERANCE, Check
from deeptaylor.shown import printable

__all__ = ["METHOD", "Between", "BetweenLedger"]

METHOD = "secants"


@dataclass(frozen=True, kw_only=True, repr=False)
class BetweenLedger(Ledger):
    """f(x) = f(reference) + in favour − against + residual, one number per sample (and target).

    `input` is Σ R = in favour − against. The residual is rounding: every step of the decomposition is exact.
    """

    reference: Tensor
    in_favour: Tensor
    against: Tensor

    @classmethod
    def made(cls, score: Tensor, reference: Tensor, in_favour: Tensor, against: Tensor) -> BetweenLedger:
        """The ledger of two scores and of the two sums between them."""
        none, held = torch.zeros_like(score), in_favour - against
        return cls(
            input=held, bias=none, dropped=none, residual=(score - reference) - held, score=score, rows=(),
            by_step=score.new_zeros(0, 4, len(score)), reference=reference, in_favour=in_favour, against=against,
        )  # fmt: skip

    @property
    def total(self) -> Tensor:
        """The reference's score + in favour − against; equal to f but for rounding."""
        return self.reference + self.input

    @property
    def gap(self) -> Tensor:
        """The residual relative to the largest number in the account."""
        largest = torch.stack([self.score.abs(), self.reference.abs(), self.in_favour + self.against]).amax(0)
        return self.residual.abs() / torch.where(largest > 0, largest, 1)

    @property
    def accounted(self) -> Tensor:
        """True where the residual is rounding."""
        return self.gap <= TOLERANCE.get(self.score.dtype, 1e-4)

    def sentence(self, sample: int = 0, target: int = 0) -> str:
        """The account of one sample, in plain English."""
        return self._line(sample, target)

    def _line(self, sample: int, target: int) -> str:
        def pick(t: Tensor) -> float:
            return float(t[sample, target] if t.ndim == 2 else t[sample])

        residual = pick(self.residual)
        wrong = "" if pick(self.accounted) else f"; NOT accounted for: {residual:.4g}"
        return (
            f"score {pick(self.score):.4g} = reference's {pick(self.reference):.4g} + {pick(self.in_favour):.4g} for "
            f"− {pick(self.against):.4g} against (residual {residual:.1g}){wrong}"
        )


class _Account(Check):
    """Whether the two scores and what lies between them add up."""

    def _account(self) -> list[str]:
        answer = "yes" if self.accounted else "NO"
        return [
            (
                f"The reference's score and the relevance add up to the score: {answer} (they differ by at most "
                f"{self.accounting_gap:.1e} of the largest of these numbers)."
            )
        ]


@dataclass(frozen=True, kw_only=True, repr=False)
class Between(Explanation):
    """What made the difference between a score and that of a reference.

    relevance         positive where the input raises the score above the reference's, negative where it lowers it; in
                      all f(x) − f(reference)
    score             f(x); of K targets (B, K)
    reference_score   f(reference); the mean where there are several references
    ledger            f(x) = f(reference) + in favour − against, with the residual, which is rounding
    """

    ledger: BetweenLedger
    reference_score: Tensor

    @property
    def in_favour(self) -> Any:
        """What raises the score: the positive part of the relevance."""
        return _each(self.relevance, lambda R: R.clamp(min=0))

    @property
    def against(self) -> Any:
        """What lowers the score, as positive numbers."""
        return _each(self.relevance, lambda R: (-R).clamp(min=0))

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Whether all adds up; `faithful` asks the network, as for an explanation without a reference."""
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        lowest, ledger = min(float(R.min()) for R in maps), self.ledger
        gap, right = float(ledger.gap.max()), bool(ledger.accounted.all())
        return _Account(
            conservative=right, positive=lowest >= 0, consistent=right and lowest >= 0, accounted=right,
            conservation_gap=gap, most_negative=lowest, accounting_gap=gap, input_share=1.0, own_share=1.0,
            bias_share=0.0, dropped_share=0.0, empty=0, negative=0, samples=self.score.numel(), residual_share=gap,
            method=self.method, notes=self.notes, flipping=super().check(faithful, axis, classes).flipping,
        )  # fmt: skip

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        more = f", and {self.score.numel() - 1} more" if self.score.numel() > 1 else ""
        name = self._class_title(0, 0)
        of = f" of {name}" if name else ""
        return printable(f"<Between{of}: {self.ledger.sentence()}{more}; relevance {shapes}>")

    def _class_title(self, sample: int, target: int) -> str:
        asked = self.classes if self.target is None else self.target
        return sentences.class_title(asked, self.titles, sample, target)

    def drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        name, ledger = self._class_title(sample, target), self.ledger
        f, f0, raised, lowered = (
            float(t[sample].flatten()[target])
            for t in (self.score, self.reference_score, ledger.in_favour, ledger.against)
        )
        d = super().drawing(sample, target, *where)
        return replace(
            d,
            title=f"What took the score{f' of {name}' if name else ''} from the reference's {f0:.4g} to {f:.4g}",
            caption=(f"Red raised the score by {raised:.4g} in all; blue lowered it by {lowered:.4g}.",),
        )


def _each(maps: Any, change: Any) -> Any:
    return tuple(map(change, maps)) if isinstance(maps, tuple) else change(maps)
