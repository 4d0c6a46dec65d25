"""The answer for texts: tokens and words in colours, and a sentence that adds up."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from deeptaylor.explanation import Explanation
from deeptaylor.ledger import Ledger
from deeptaylor.pictures.scale import Scale
from deeptaylor.pictures.tokens import Tokens
from deeptaylor.properties import Check
from deeptaylor.secant.between import BetweenLedger
from deeptaylor.shown import percent, printable
from deeptaylor.text.encoding import Line
from deeptaylor.text.references import GIVEN

__all__ = ["TextExplanation"]

_SINK = 0.5  # of all relevance: where the first token of a language model holds as much, it is said
_MOST_SHOWN = 8  # texts in a notebook


@dataclass(frozen=True, repr=False)
class TextExplanation:
    """Which words made the network say so, and how much each counted.

    answer      the explanation of the padded batch; its ledger is that of the texts
    relevance   of each text one number a token, (tokens,) or, of K classes, (K, tokens)
    lines       of each text its tokens
    asked       of each text what is explained, one a class
    quantity    what the score is: "score", "log-probability", "cosine similarity", …
    reference   what the words were replaced by; empty where there was no reference
    sink        a language model: its first token may hold much, whatever it is
    parts       with how many texts that lack all or half of their words it was compared; 0: with all words replaced
    """

    answer: Explanation
    relevance: tuple[Tensor, ...]
    lines: tuple[Line, ...]
    asked: tuple[tuple[str, ...], ...]
    quantity: str
    reference: str
    sink: bool = False
    parts: int = 0

    @property
    def score(self) -> Tensor:
        """What is explained of each text."""
        return self.answer.score

    @property
    def ledger(self) -> Ledger:
        """The account of every score."""
        return self.answer.ledger

    @property
    def method(self) -> str:
        """How it was computed."""
        return self.answer.method

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say beside the numbers."""
        return (*self.answer.notes, *dict.fromkeys(n for k in range(len(self.lines)) for n in self._about_first(k)))

    def check(self) -> Check:
        """Whether all adds up."""
        return self.answer.check()

    # --- tokens and words -----------------------------------------------------------------------------------------

    def tokens(self, sample: int = 0, target: int = 0, words: bool = False) -> Tokens:
        """The tokens of one text in the colours of their relevance; `words`: sub-words summed to words.

        Shows itself in a notebook and a terminal; .save("x.html"), ("x.png") or ("x.txt") writes it to a file.
        """
        line, R = self.lines[sample], self._map(sample, target)
        names, values, breaks = list(line.pieces), R.tolist(), line.breaks
        if words:
            names, values, breaks = _joined(line, values)
        high = max(map(abs, values), default=0.0) or 1.0
        said = self.sentence(sample, target, words)
        caption = f"Red speaks for it, blue against it. {said[0].upper()}{said[1:]}"
        return Tokens(
            tuple(names), tuple(values), Scale(high, signed=True, largest=high), self.title(sample, target), caption,
            breaks,
        )  # fmt: skip

    def words(self, sample: int = 0, target: int = 0) -> Tokens:
        """The words of one text, each with the sum of its tokens' relevance."""
        return self.tokens(sample, target, words=True)

    def _map(self, sample: int, target: int) -> Tensor:
        R = self.relevance[sample]
        return R[target] if R.ndim == 2 else R

    # --- in words -------------------------------------------------------------------------------------------------

    def title(self, sample: int = 0, target: int = 0) -> str:
        """What was asked."""
        return f"Which words speak for {self.asked[sample][target]}?"

    def sentence(self, sample: int = 0, target: int = 0, words: bool = False) -> str:
        """The account of one text in plain English: the score, what it would be without the words, and the words.

        words   what speaks for the score and against it is summed over words; else, as in the ledger, over tokens
        """
        pick = _Pick(sample, target)
        ledger, R = self.answer.ledger, self._map(sample, target)
        if isinstance(ledger, BetweenLedger):
            wrong = "" if pick(ledger.accounted) else f"; NOT accounted for: {pick(ledger.residual):.2g}"
            sums = pick(ledger.in_favour), pick(ledger.against)
            if words:
                _, whole, _ = _joined(self.lines[sample], R.tolist())
                sums = sum(v for v in whole if v > 0), -sum(v for v in whole if v < 0)
            between = f"{sums[0]:.3g} for − {sums[1]:.3g} against"
            scores = f"{self.quantity} {pick(ledger.score):.3g} = {pick(ledger.reference):.3g}"
            return f"{scores} {self.without} + {between}{wrong}."
        if pick(self.score) < 0 <= pick(ledger.score):
            return f"{self.quantity} {pick(self.score):.3g} is below zero, and this method explains what is above it."
        special = np.array(self.lines[sample].special)
        values = R.detach().cpu().numpy()
        own, others = float(values[~special].sum()), float(values[special].sum())
        left = pick(ledger.residual)
        rest = pick(ledger.total) - own - others - left
        return (
            f"{self.quantity} {pick(ledger.score):.3g} = {own:.3g} from the words {_signed(others)} from special "
            f"tokens {_signed(rest)} from positions, biases and what has no word"
            + (f" {_signed(left)} that the softmax leaves out." if left else ".")
        )

    @property
    def without(self) -> str:
        """What the text is compared with, as it goes on in a sentence."""
        if self.reference == GIVEN:
            return "with the words of the reference"
        if self.parts:
            return f"on average over {self.copies}"
        return f"without the words (all of them {self.reference})"

    @property
    def copies(self) -> str:
        """What the text is compared with, where that is several texts."""
        return f"{self.parts} copies of the text in which all or half of the words are {self.reference}"

    def table(self, sample: int = 0, target: int = 0) -> str:
        """The account line by line: every token; special tokens and positions have lines of their own."""
        line, R = self.lines[sample], self._map(sample, target).tolist()
        ledger, pick = self.answer.ledger, _Pick(sample, target)
        between = isinstance(ledger, BetweenLedger)
        rows = [(f"{self.quantity}: {self.asked[sample][target]}", f"{pick(ledger.score):.4g}", "")]
        if isinstance(ledger, BetweenLedger):
            rows.append((self.without, f"{pick(ledger.reference):.4g}", ""))
        for piece, value, special, replaced in zip(line.pieces, R, line.special, line.replaced, strict=True):
            kind = "special token" if special else "" if replaced else "of the question"
            same = ", unchanged" if kind and between and not value else ""
            rows.append((piece, f"{value:.4g}", kind + same))
        if between:
            rows.append(("positions", "0", "unchanged"))
        else:
            left = pick(ledger.residual)
            rest = pick(ledger.total) - sum(R) - left
            rows.append(("positions, biases and what has no word", f"{rest:.4g}", ""))
            rows += [("left out by the softmax", f"{left:.4g}", "")] * bool(left)
        rows.append(("not accounted for", f"{pick(ledger.score) - pick(ledger.total):.2g}", "rounding" * between))
        names, numbers = (max(len(row[k]) for row in rows) for k in (0, 1))
        return printable("\n".join(f"{a.ljust(names)}  {b.rjust(numbers)}  {c}".rstrip() for a, b, c in rows))

    def _about_first(self, sample: int) -> list[str]:
        """What is to be said of a first token at which attention rests when it has nothing better to look at."""
        R = self._map(sample, 0).abs()
        whole = float(R.sum())
        if not self.sink or len(R) < 3 or whole == 0 or float(R[0]) < _SINK * whole:
            return []
        piece = self.lines[sample].pieces[0]
        share = percent(float(R[0]) / whole)
        said = f"the first token, {piece!r}, holds {share} of the relevance: many language models let attention rest"
        return [f"{said} there, whatever the token is (an attention sink)"]

    # --- how it shows itself --------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], sample: int = 0, target: int = 0, words: bool = True) -> Path:
        """Write the coloured words, or tokens, of one text as a page (.html), a picture (.png) or numbers (.txt)."""
        return self.tokens(sample, target, words).save(path)

    def _shown(self) -> list[tuple[int, int]]:
        return [(s, t) for s, names in enumerate(self.asked) for t in range(len(names))]

    def _repr_html_(self) -> str:
        shown = self._shown()
        parts = [self.words(*which)._repr_html_() for which in shown[:_MOST_SHOWN]]
        more = len(shown) - _MOST_SHOWN
        parts += [f"<p>… and {more} more</p>"] * (more > 0)
        return "".join([*parts, *(f"<p>Note: {html.escape(note)}.</p>" for note in self.notes)])

    def __str__(self) -> str:
        said = [f"Method: {self.method}."] + [f"Note: {note}." for note in self.notes]
        return "\n\n".join([*(str(self.words(*which)) for which in self._shown()), printable("\n".join(said))])

    def __repr__(self) -> str:
        more = f" and {len(self._shown()) - 1} more" if len(self._shown()) > 1 else ""
        return printable(f"<{type(self).__name__} of {self.asked[0][0]}{more}: {self.sentence()}>")


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {abs(value):.3g}"


class _Pick:
    """One sample's number, of one class."""

    def __init__(self, sample: int, target: int) -> None:
        self.sample, self.target = sample, target

    def __call__(self, t: Tensor) -> float:
        return float(t[self.sample, self.target] if t.ndim == 2 else t[self.sample])


def _joined(line: Line, values: Sequence[float]) -> tuple[list[str], list[float], tuple[int, ...]]:
    """Sub-words as words: their text, the sums of their relevance, and where lines break."""
    names: list[str] = []
    sums: list[float] = []
    breaks, before = [], -1
    for k, (piece, word, value) in enumerate(zip(line.pieces, line.words, values, strict=True)):
        if k in line.breaks:
            breaks.append(len(names))
        if word == before:
            names[-1] += piece.removeprefix("##")
            sums[-1] += value
        else:
            names.append(piece.strip() or piece)
            sums.append(value)
        before = word
    return names, sums, tuple(breaks)
