"""The answer: how the score of x came from that of a reference, with what speaks for it and what against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from deeptaylor.check import TOLERANCE, Check
from deeptaylor.engine.comparison import Comparison, InnerChange
from deeptaylor.engine.secant_walk import Side
from deeptaylor.errors import BoundaryError, InputError, Wording
from deeptaylor.explanation import Explanation
from deeptaylor.formatting import escape_text
from deeptaylor.ledger import Ledger, make_reader
from deeptaylor.viz import captions
from deeptaylor.viz.drawings import Drawing
from deeptaylor.viz.heatmap import Axis

__all__ = [
    "AGAINST_RIVALS",
    "LOG_ODDS",
    "METHOD",
    "OUTPUT",
    "Between",
    "BetweenLedger",
    "InnerChanges",
    "ScoreKind",
    "describe_score",
    "make_answer",
]  # fmt: skip

METHOD = "secants"
ScoreKind = Literal["output", "log-odds", "against rivals"]  # an output of the network; or a class against others
OUTPUT: Literal["output"] = "output"
LOG_ODDS: Literal["log-odds"] = "log-odds"
AGAINST_RIVALS: Literal["against rivals"] = "against rivals"


@dataclass(frozen=True, kw_only=True, repr=False)
class BetweenLedger(Ledger):
    """f(x) = f(reference) + in favour − against + residual, one number per sample (and target).

    `input` is Σ R = in favour − against. The residual is rounding: every step of the decomposition is exact.
    """

    reference: Tensor
    in_favour: Tensor
    against: Tensor

    @classmethod
    def from_scores(cls, score: Tensor, reference: Tensor, in_favour: Tensor, against: Tensor) -> BetweenLedger:
        """Return the ledger of two scores and of the two sums between them."""
        none, held = torch.zeros_like(score), in_favour - against
        return cls(
            input=held, bias=none, dropped=none, residual=(score - reference) - held, score=score, rows=(),
            by_step=score.new_zeros(0, 4, len(score)), reference=reference, in_favour=in_favour, against=against,
        )  # fmt: skip

    @property
    def total(self) -> Tensor:
        """The reference's score + in favour − against; equal to f up to rounding."""
        return self.reference + self.input

    @property
    def gap(self) -> Tensor:
        """The residual relative to the largest number in the account."""
        largest = torch.stack([self.score.abs(), self.reference.abs(), self.in_favour + self.against]).amax(0)
        return self.residual.abs() / torch.where(largest > 0, largest, 1)

    @property
    def accounted(self) -> Tensor:
        """True where the residual is only rounding."""
        return self.gap <= TOLERANCE.get(self.score.dtype, 1e-4)

    def sentence(self, sample: int = 0, target: int = 0) -> str:
        """Return the account of one sample, in plain English."""
        return self._format_line(sample, target)

    def _format_line(self, sample: int, target: int) -> str:
        pick = make_reader(sample, target)
        residual = pick(self.residual)
        wrong = "" if pick(self.accounted) else f"; NOT accounted for: {residual:.4g}"
        return (
            f"score {pick(self.score):.4g} = reference's {pick(self.reference):.4g} + {pick(self.in_favour):.4g} for "
            f"− {pick(self.against):.4g} against (residual {residual:.1g}){wrong}"
        )


class _AccountCheck(Check):
    """Whether the two scores and what lies between them add up."""

    def _describe_properties(self) -> list[str | Wording]:
        answer = "yes" if self.accounted else "NO"
        return [
            (
                f"The reference's score and the relevance add up to the score: {answer} (they differ by at most "
                f"{self.accounting_gap:.1e} of the largest of these numbers)."
            )
        ]


@dataclass(frozen=True)
class InnerChanges:
    """How inner values changed between the input and each reference.

    read   of a layer and one of its sides: the change from each reference
    """

    read: Callable[[str, Side], list[InnerChange]]

    def __call__(self, name: str, side: Side = "output") -> Tensor:
        """Return the relevance of a value; the mean over the references."""
        return torch.stack([change.relevance for change in self.read(name, side)]).mean(0)

    def select(self, rows: list[int]) -> InnerChanges:
        """Return the changes of some of the samples."""
        return InnerChanges(lambda *where: [InnerChange(*(t[rows] for t in change)) for change in self.read(*where)])


@dataclass(frozen=True, kw_only=True, repr=False)
class Between(Explanation):
    """What made the difference between a score and that of a reference.

    relevance         positive where the input raises the score above the reference's, negative where it lowers it; in
                      all f(x) − f(reference)
    score             f(x); of K targets (B, K)
    reference_score   f(reference); the mean where there are several references
    ledger            f(x) = f(reference) + in favour − against, with the residual, which is rounding
    score_kind        what the score is: an output of the network, log-odds, or a class against its rivals
    """

    ledger: BetweenLedger
    reference_score: Tensor
    score_kind: ScoreKind = OUTPUT

    def at(self, name: str, side: Side = "output") -> Tensor:
        """Return the relevance at an inner layer: how much of the score's change passes through each of its values.

        With several references it is the mean.

        name   the path of a module, or a suffix that only this path has; or the name of a node
        side   "output" or "input" of the layer
        """
        return self.source(name) if side == "output" else self._inner_changes(name)(name, side)

    def change_at(self, name: str, side: Side = "output") -> InnerChange:
        """Return how an inner value changed, the multiplier of that change, and their product, the relevance."""
        found = self._inner_changes(name).read(name, side)
        if len(found) > 1:
            raise InputError(
                f"There are {len(found)} references, and values inside the network differ between them: call"
                " at(…) for the mean relevance, or compare with one reference."
            )
        return found[0]

    def _inner_changes(self, name: str) -> InnerChanges:
        if not isinstance(self.source, InnerChanges):
            self.source(name)  # raises, if there is nothing to be told
            raise BoundaryError(
                "This result joins several comparisons: call explainer.between(x, reference) for a single one."
            )
        return self.source

    def select(self, samples: Sequence[int]) -> Self:
        rows, whole = list(samples), self.source
        source = whole.select(rows) if isinstance(whole, InnerChanges) else super().select(rows).source
        return replace(super().select(rows), reference_score=self.reference_score[rows], source=source)

    @property
    def in_favour(self) -> Any:
        """The positive part of the relevance, which raises the score."""
        return _map_each(self.relevance, lambda R: R.clamp(min=0))

    @property
    def against(self) -> Any:
        """The negative part of the relevance, which lowers the score, as positive numbers."""
        return _map_each(self.relevance, lambda R: (-R).clamp(min=0))

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Check whether the numbers add up; `faithful`: also measure the network, as `Explanation.check` does."""
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        lowest, ledger = min(float(R.min()) for R in maps), self.ledger
        gap, right = float(ledger.gap.max()), bool(ledger.accounted.all())
        return _AccountCheck(
            conservative=right, positive=lowest >= 0, consistent=right and lowest >= 0, accounted=right,
            conservation_gap=gap, most_negative=lowest, accounting_gap=gap, input_share=1.0, own_share=1.0,
            bias_share=0.0, dropped_share=0.0, empty=0, negative=0, samples=self.score.numel(), residual_share=gap,
            method=self.method, notes=self.notes, flipping=super().check(faithful, axis, classes).flipping,
        )  # fmt: skip

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        more = f", and {self.score.numel() - 1} more" if self.score.numel() > 1 else ""
        name = self.label()
        of = f" of {name}" if name else ""
        return escape_text(f"<Between{of}: {self.ledger.sentence()}{more}; relevance {shapes}>")

    def drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        ledger = self.ledger
        f, f0, raised, lowered = (
            float(t[sample].flatten()[target])
            for t in (self.score, self.reference_score, ledger.in_favour, ledger.against)
        )
        return replace(
            super().drawing(sample, target, *where),
            title=captions.map_title(self.label(sample, target), f, self.method, self.mean_of, f0),
            caption=(f"Red raised the score by {raised:.4g} in all; blue lowered it by {lowered:.4g}.",),
        )


def _map_each(maps: Any, change: Any) -> Any:
    return tuple(map(change, maps)) if isinstance(maps, tuple) else change(maps)


# --- made of a comparison ---------------------------------------------------------------------------------------------


def make_answer(
    found: Comparison, kind: ScoreKind, *, target: Any, flips: Callable[..., Tensor], notes: Sequence[str],
    channel_axis: int, source: InnerChanges,
) -> Between:  # fmt: skip
    """Make the result for the user from the result of the engine."""
    maps = found.relevance
    return Between(
        relevance=maps[0] if len(maps) == 1 else maps, score=found.score, target=target, notes=(*notes, *found.notes),
        ledger=BetweenLedger.from_scores(found.score, found.reference_score, found.in_favour, found.against),
        source=source, flips=flips, method=METHOD, classes=found.classes,
        reference_score=found.reference_score, channel_axis=channel_axis, score_kind=kind,
    )  # fmt: skip


def describe_score(kind: ScoreKind, has_weights: bool, removed_operations: Sequence[str]) -> list[str]:
    """Return the notes about the score.

    has_weights          True if the user gave the weights of the rivals
    removed_operations   the operations at the end of the network that were removed
    """
    if kind == LOG_ODDS:
        return ["the score is the log-odds of the class against the others, log p / (1 − p) of the softmax"]
    if kind == AGAINST_RIVALS:
        weights = "the numbers in against=" if has_weights else "their softmax; dt.logit(c) explains the logit alone"
        return [f"the score is the logit of the class minus the mean logit of its rivals, weighted by {weights}"]
    return [
        f"the final {operation} is set aside: score, reference_score and the sum of the relevance are of its input, "
        "the logit; target=dt.probability(c) explains the network's own output"
        for operation in removed_operations
    ]
