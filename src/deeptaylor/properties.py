"""The paper's properties of a heatmap, measured: conservative, positive, consistent; and accounted, which is ours.

What this cannot catch: the two trivial heatmaps of the paper (the score spread evenly over all pixels, or put on the
first pixel) are both consistent. Consistency is needed, not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.shown import percent

# A gap of this much of the score is rounding. Only the reverse pass can open one, by about ½ √n units for n roundings
# one after the other (docs/theory.md, section 7): there is room for 2,600 in bfloat16, some 300 layers, and more above.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}


DEEP_TAYLOR = "deep Taylor"


@dataclass(frozen=True)
class Check:
    """Definitions 1–3 of the paper on a batch of explanations, with the worst measured gaps, relative to the score."""

    conservative: bool  # Definition 1: the input alone sums to f
    positive: bool  # Definition 2: no negative relevance
    consistent: bool  # Definition 3: both
    accounted: bool  # input + bias + dropped = f
    conservation_gap: float
    most_negative: float
    accounting_gap: float
    input_share: float  # the smallest share of the score that the input holds, over the batch
    own_share: float  # the same without what biases handed back
    bias_share: float
    dropped_share: float
    empty: int  # samples with f = 0: no evidence
    negative: int  # samples with f < 0
    samples: int
    residual_share: float = 0.0  # of a Taylor expansion: what its first-order terms leave out
    method: str = DEEP_TAYLOR
    notes: tuple[str, ...] = ()
    flipping: float | None = None  # where it was asked for: the area, a mean over the batch

    def __repr__(self) -> str:
        said = [
            name if getattr(self, name) else f"not {name}"
            for name in ("conservative", "positive", "consistent", "accounted")
        ]
        empty = f", {self.negative + self.empty} without a positive score" if self.negative + self.empty else ""
        faithful = "" if self.flipping is None else f"; flipping {self.flipping:.2f}"
        return f"<Check of {self.samples} score(s){empty}: {', '.join(said)}{faithful}; print it for the numbers>"

    def __str__(self) -> str:
        lines = []
        explained = self.samples > self.negative + self.empty
        if explained and self.own_share < 0.5:
            lines.append(self._little_text())
        if self.negative or self.empty:
            lines.append(self._empty_text())
        if explained:
            gap, least = f"|Σ R − f| ≤ {self.conservation_gap:.2e} f", f"{self.most_negative:.2e} f"
            some = "no" if self.positive else "some"
            lines += [
                f"conservative  {_yes(self.conservative)}  {self._held_text()}: {gap}",
                f"positive      {_yes(self.positive)}  {some} relevance is negative: the smallest is {least}",
                f"consistent    {_yes(self.consistent)}  conservative and positive, both",
                self._account_text(),
            ]
        if self.flipping is not None:
            lines.append(
                f"faithful      {self.flipping:.2f} the class's probability while the least relevant patches are taken "
                "away, minus that for the most relevant: 0 for a map that knows nothing"
            )
        return "\n".join([*lines, *[f"note: {n}" for n in self.notes]])

    def _held_text(self) -> str:
        """How much of the score the heatmap explains, for whoever does not know what conservative means."""
        if self.conservative:
            return "the input holds the whole score"
        if abs(1 - self.input_share - self.conservation_gap) > 1e-6:  # the worst sample is not the one that holds least
            return f"the input holds up to {percent(self.conservation_gap)} more or less than the score"
        return f"the input holds {percent(self.input_share)} of the score" + (" or more" if self.samples > 1 else "")

    def _little_text(self) -> str:
        held = f"The input holds only {percent(self.input_share)} of the score"
        if self.method != DEEP_TAYLOR:
            return f"{held}; the rest is not redistributed. The heatmap explains that part alone."
        if self.own_share < self.input_share:
            return (
                f"The input itself holds only {percent(self.own_share)} of the score; the rest, which biases took, was "
                'handed back in proportion to that part (bias="neuron" leaves it with the biases).'
            )
        return (
            f"{held}; biases took {percent(self.bias_share)}. "
            'The heatmap explains that part alone (bias="returned" hands the rest back to it).'
        )

    def _account_text(self) -> str:
        if self.method != DEEP_TAYLOR:
            return (
                f"residual           |f − Σ R| ≤ {self.residual_share:.2e} f: what {self.method} does not redistribute"
            )
        answer = "yes  all" if self.accounted else "NO   not all"  # in capitals: this one is a failure
        return (
            f"accounted     {answer} of the score is accounted for: "
            f"|input + bias + dropped − f| ≤ {self.accounting_gap:.2e} f, dropped ≤ {self.dropped_share:.2e} f"
        )

    def _empty_text(self) -> str:
        texts = []
        empty = ", so the map is empty" if self.method == DEEP_TAYLOR else ""
        if self.empty:
            texts.append(f"{self.empty} of {self.samples} scores are zero: no evidence{empty and ', an empty map'}.")
        if self.negative:
            texts.append(
                f"{self.negative} of {self.samples} scores are negative: the network sees no such object{empty}."
            )
        texts.append("To ask why one class rather than another, explain a logit difference: target=dt.margin(a, b).")
        return " ".join(texts)


def _yes(value: bool) -> str:
    """Lower case: a property that a heatmap lacks is no failure."""
    return "yes" if value else "no "


def check(
    relevance: Sequence[Tensor],
    score: Tensor,
    held: Tensor,
    bias: Tensor,
    dropped: Tensor,
    notes: tuple[str, ...] = (),
    residual: Tensor | None = None,
    method: str = DEEP_TAYLOR,
    own: Tensor | None = None,
    flipping: Tensor | None = None,
) -> Check:
    """Measure the properties of a batch of heatmaps against max(0, f)."""
    f = score.detach().to(torch.float64).clamp(min=0)
    alive = f > 0
    tolerance = TOLERANCE.get(score.dtype, 1e-4)

    def worst(t: Tensor) -> float:
        ratio = (t.detach().to(torch.float64).abs() / torch.where(alive, f, 1))[alive]
        return float(ratio.max()) if ratio.numel() else 0.0

    rest = torch.zeros_like(held) if residual is None else residual
    h, b, d, e = (t.detach().to(torch.float64) for t in (held, bias, dropped, rest))
    lowest = torch.stack([_lowest(r, score.ndim) for r in relevance]).amin(0).to(torch.float64)
    negative = float((lowest / torch.where(alive, f, 1)).amin())
    conservation, accounting = worst(h - f), worst(h + b + d + e - f)
    by_itself = h if own is None else own.detach().to(torch.float64)
    share, own_share = ((t / torch.where(alive, f, 1))[alive] for t in (h, by_itself))
    conservative, positive = conservation <= tolerance, negative >= 0
    return Check(
        conservative=conservative,
        positive=positive,
        consistent=conservative and positive,
        accounted=accounting <= tolerance,
        conservation_gap=conservation,
        most_negative=negative,
        accounting_gap=accounting,
        input_share=float(share.min()) if share.numel() else 1.0,
        own_share=float(own_share.min()) if own_share.numel() else 1.0,
        bias_share=worst(b),
        dropped_share=worst(d),
        empty=int((score == 0).sum()),
        negative=int((score < 0).sum()),
        samples=score.numel(),
        residual_share=worst(e),
        method=method,
        notes=notes,
        flipping=None if flipping is None else float(flipping.mean()),
    )


def _lowest(relevance: Tensor, lead: int) -> Tensor:
    flat = relevance.detach().flatten(lead) if relevance.ndim > lead else relevance.detach().unsqueeze(-1)
    return flat.amin(-1)
