"""The paper's properties of a heatmap, measured: conservative, positive, consistent; this library adds accounted.

What this cannot catch: the two trivial heatmaps of the paper (the score spread evenly over all pixels, or put on the
first pixel) are both consistent. Consistency is needed, not enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deeptaylor.errors import Wording
from deeptaylor.formatting import format_percent

# A gap of this much of the score is rounding. Only the reverse pass can open one, by about ½ √n units for n roundings
# one after the other (docs/theory.md, section 7): there is room for 2,600 in bfloat16, some 300 layers, and more above.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}


MAX_OVERLAP = 0.98  # a map that shares more than this with the next class's does not depend on the class
DEEP_TAYLOR = "deep Taylor"
BY_RULES = (DEEP_TAYLOR, "cp-lrp")  # methods whose relevance is on the input, absorbed by biases, or dropped
_SENSITIVITY = (
    "Sensitivity does not split the score: its values, squared slopes, say where a small change would matter most. "
    "They need not add up to anything."
)


@dataclass(frozen=True)
class Check:
    """Definitions 1–3 of the paper on a batch of explanations, with the worst measured gaps, relative to the score."""

    conservative: bool  # Definition 1: the input alone sums to f, before anything was redistributed to it
    positive: bool  # Definition 2: no negative relevance
    consistent: bool  # Definition 3: both
    accounted: bool  # input + bias + dropped = f
    conservation_gap: float
    most_negative: float
    accounting_gap: float
    input_share: float  # the smallest share of the score that the map sums to, over the batch
    own_share: float  # the same before relevance absorbed by biases was redistributed (bias="returned")
    bias_share: float  # the largest share that biases absorbed, before redistribution
    dropped_share: float
    empty: int  # samples with f = 0: no evidence
    negative: int  # samples with f < 0
    samples: int
    residual_share: float = 0.0  # of a Taylor expansion: the share that its first-order terms leave out
    method: str = DEEP_TAYLOR
    notes: tuple[str, ...] = ()
    flipping: float | None = None  # if measured: the mean area of patch flipping over the batch
    rescaled: bool = False  # the map shows what biases absorbed, too: it was redistributed to the pixels
    overlap: tuple[float, ...] | None = None  # if measured: the part of each map that is the same for the next class
    next_classes: tuple[str, ...] = ()  # the classes that `overlap` compares with, one per sample
    outputs: int | None = None  # how many numbers the network gives per sample, if that is known

    def __repr__(self) -> str:
        said = [
            name if getattr(self, name) else f"not {name}"
            for name in ("conservative", "positive", "consistent", "accounted")
        ]
        empty = f", {self.negative + self.empty} without a positive score" if self.negative + self.empty else ""
        faithful = "" if self.flipping is None else f"; flipping {self.flipping:.2f}"
        return f"<Check of {self.samples} score(s){empty}: {', '.join(said)}{faithful}; print it for the numbers>"

    def __str__(self) -> str:
        """Return the properties as sentences; if biases absorbed much of the score, that comes first."""
        return "\n".join(map(str, self.sentences()))

    def sentences(self) -> list[str | Wording]:
        """Return one sentence per property; sentences that name settings are a `Wording`."""
        lines: list[str | Wording] = [_SENSITIVITY] if self.method == "sensitivity" else self._describe_properties()
        if self.flipping is not None:
            lines.append(self._describe_flipping())
        if self.overlap is not None:
            lines.insert(0 if self.same_for_classes else len(lines), self._describe_overlap(self.overlap))
        return [*lines, *[f"note: {n}" for n in self.notes]]

    @property
    def same_for_classes(self) -> int:
        """The number of maps that do not depend on the class; 0 if that was not measured."""
        return sum(share > MAX_OVERLAP for share in self.overlap or ())

    def _describe_overlap(self, shares: tuple[float, ...]) -> str | Wording:
        several, same = len(shares) > 1, self.same_for_classes
        part = f"{'up to ' if several else ''}{format_percent(max(shares))} of {'a' if several else 'the'} map"
        shared = f"{part} is the same for the next class{'' if several else f' {self.next_classes[0]}'}."
        if not same:
            return f"Classes: {shared}"
        maps = f"{same} of {len(shares)} maps do" if several else "This map does"
        shared = shared if several else shared.replace("the map", "it", 1)
        return Wording(
            f"{maps} not depend on the class: {shared} Ask what sets the class apart: {{contrast}}.", contrast=...
        )

    def _describe_properties(self) -> list[str | Wording]:
        lines: list[str | Wording] = []
        explained = self.samples > self.negative + self.empty
        if explained:
            lines.append(self._describe_rescaling() if self.is_rescaled else self._describe_input_share())
        if self.negative or self.empty:
            lines.append(self._describe_missing_evidence())
        if explained:
            off, least = _format_share(self.conservation_gap), _format_share(self.most_negative)
            if not self.is_rescaled:
                said = _format_yes(self.conservative)
                lines.append(f"Conservative: {said} (the sum differs from the score by at most {off} of it).")
            lines += [
                f"Positive: {_format_yes(self.positive)} (the smallest value is {least} of the score).",
                f"Consistent (conservative and positive): {_format_yes(self.consistent)}.",
                self._describe_account(),
            ]
        return lines

    @property
    def is_rescaled(self) -> bool:
        """True if the map was rescaled, and is not conservative without that."""
        return self.rescaled and not self.conservative

    def _describe_rescaling(self) -> str:
        several = self.samples > 1
        usual = " (usual for networks with BatchNorm)" if self.bias_share > 0.5 else ""
        whole = self.input_share >= 0.9995
        to = (
            "the score" if whole else f"{'at least ' if several else ''}{format_percent(self.input_share)} of the score"
        )
        return (
            f"Conservative: no. Biases absorbed {'up to ' if several else ''}{format_percent(self.bias_share)} of the "
            f"score{usual}; the map is rescaled to {to} so that you can read it."
        )

    def _describe_input_share(self) -> str:
        """Return a sentence about how much of the score the heatmap explains."""
        several = self.samples > 1
        if self.conservative:
            return "The input accounts for the whole score."
        if abs(1 - self.input_share - self.conservation_gap) > 1e-6:  # another sample has the smallest share
            return f"The input accounts for up to {format_percent(self.conservation_gap)} more or less than the score."
        little = self.input_share < 0.5
        limit = "only " if little else "at least " if several else ""
        held = f"{limit}{format_percent(self.input_share)}"
        worst = f" in the worst of the {self.samples} scores" if several and little else ""
        rest = ""
        if self.method not in BY_RULES:
            rest = f"; {self.method} does not redistribute the rest" if little else ""
        elif little or abs(self.conservation_gap - self.bias_share) < 1e-3:
            rest = f"; biases absorbed {'at most ' if several else ''}{format_percent(self.bias_share)}"
        return f"The input accounts for {held} of the score{worst}{rest}."

    def _describe_flipping(self) -> str:
        return (
            f"Faithful: {self.flipping:.2f}. Hiding the least relevant patches leaves the class's probability higher, "
            "by this much on average, than hiding the most relevant ones. A random map scores 0."
        )

    def _describe_account(self) -> str:
        if self.method not in BY_RULES:
            share = _format_share(self.residual_share)
            return f"Residual: {share} of the score, which {self.method} does not redistribute."
        answer = "yes" if self.accounted else "NO"  # in capitals: this one is a failure
        return (
            f"Accounted for: {answer} (input, biases and what was dropped differ from the score by at most "
            f"{_format_share(self.accounting_gap)} of it; dropped: {_format_share(self.dropped_share)})."
        )

    def _describe_missing_evidence(self) -> Wording:
        texts = []
        empty = ", so the map is empty" if self.method == DEEP_TAYLOR else ""
        if self.empty:
            texts.append(f"{self._count_scores(self.empty)} zero: no evidence{empty and ', an empty map'}.")
        if self.negative:
            texts.append(f"{self._count_scores(self.negative)} negative: there is no evidence for this answer{empty}.")
        if self.outputs == 1:
            texts.append(
                "The network has one output: {negative} explains it where it is negative, and no target where it is "
                "positive."
            )
        else:
            texts.append(
                "To ask why one class rather than another, explain a difference of scores: {margin}, with the higher "
                "score first."
            )
        if self.outputs is None:
            texts.append("Of a network with one output, {negative} explains a negative score.")
        return Wording(" ".join(texts), negative=..., margin=...)

    def _count_scores(self, count: int) -> str:
        return "The score is" if self.samples == 1 else f"{count} of {self.samples} scores are"


def _format_yes(value: bool) -> str:
    """Return "yes" or "no" in lower case: a property that a heatmap lacks is not a failure."""
    return "yes" if value else "no"


def _format_share(share: float) -> str:
    """Return a part of the score as text: in per cent if that is meaningful, else as a number."""
    return format_percent(share) if share == 0 or abs(share) >= 1e-3 else f"{share:.1e}"


def check(
    relevance: Sequence[Tensor],
    score: Tensor,
    input_total: Tensor,
    bias: Tensor,
    dropped: Tensor,
    notes: tuple[str, ...] = (),
    residual: Tensor | None = None,
    method: str = DEEP_TAYLOR,
    arrived: Tensor | None = None,
    flipping: Tensor | None = None,
    redistributed: Tensor | None = None,
) -> Check:
    """Measure the properties of a batch of heatmaps against max(0, f).

    input_total     the relevance of the input, summed per sample
    arrived         the same before redistribution, used for conservation; default `input_total`
    redistributed   the relevance absorbed by biases that was redistributed to pixels
    """
    f = score.detach().to(torch.float64).clamp(min=0)
    alive = f > 0
    tolerance = TOLERANCE.get(score.dtype, 1e-4)

    def find_worst(t: Tensor) -> float:
        ratio = (t.detach().to(torch.float64).abs() / torch.where(alive, f, 1))[alive]
        return float(ratio.max()) if ratio.numel() else 0.0

    rest = torch.zeros_like(input_total) if residual is None else residual
    h, b, d, e = (t.detach().to(torch.float64) for t in (input_total, bias, dropped, rest))
    lowest = torch.stack([_find_lowest(r, score.ndim) for r in relevance]).amin(0).to(torch.float64)
    negative = float((lowest / torch.where(alive, f, 1)).amin())
    reached = h if arrived is None else arrived.detach().to(torch.float64)
    given = torch.zeros_like(h) if redistributed is None else redistributed.detach().to(torch.float64)
    conservation, accounting = find_worst(reached - f), find_worst(h + b + d + e - f)
    share, own_share = ((t / torch.where(alive, f, 1))[alive] for t in (h, reached))
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
        bias_share=find_worst(b + given),
        dropped_share=find_worst(d),
        empty=int((score == 0).sum()),
        negative=int((score < 0).sum()),
        samples=score.numel(),
        residual_share=find_worst(e),
        method=method,
        notes=notes,
        flipping=None if flipping is None else float(flipping.mean()),
        rescaled=bool((given > 0).any()),
    )


def _find_lowest(relevance: Tensor, lead: int) -> Tensor:
    """Return the lowest relevance per score; the first `lead` axes are those of the scores."""
    flat = relevance.detach().flatten(lead) if relevance.ndim > lead else relevance.detach().unsqueeze(-1)
    return flat.amin(-1)
