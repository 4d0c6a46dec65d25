"""The answer for texts: tokens and words in colours, and a sentence that adds up."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import Ledger
from deeptaylor.pictures.files import kind_of
from deeptaylor.pictures.scale import Scale
from deeptaylor.pictures.tokens import KINDS, PAGE, Tokens
from deeptaylor.properties import Check
from deeptaylor.secant.between import BetweenLedger
from deeptaylor.shown import percent, printable
from deeptaylor.support.files import write_whole
from deeptaylor.text.encoding import Line
from deeptaylor.text.references import GIVEN, HIDDEN
from deeptaylor.text.sentences import Difference, Shared, below, number

__all__ = ["TextExplanation"]

_MOST_SHOWN = 8  # texts in a notebook


@dataclass(frozen=True, repr=False)
class TextExplanation:
    """Which words made the network say so, and how much each counted.

    answer      the explanation of the padded batch; its ledger is that of the texts
    relevance   of each text one number a token, (tokens,) or, of K classes, (K, tokens)
    lines       of each text its tokens
    asked       of each text what is explained, one a class
    quantity    what the score is: "logit", "log-probability", "cosine similarity", …
    reference   what the words were replaced by; empty where there was no reference
    sink        a language model: its first token may hold much, whatever it is
    parts       with how many texts that lack all or half of their words it was compared; 0: with all words replaced
    probabilities   of each text, how probable the network holds each class that is explained; empty if there are none
    """

    answer: Explanation
    relevance: tuple[Tensor, ...]
    lines: tuple[Line, ...]
    asked: tuple[tuple[str, ...], ...]
    quantity: str
    reference: str
    sink: bool = False
    parts: int = 0
    probabilities: tuple[tuple[float, ...], ...] = ()

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
        about = [n for k in range(len(self.lines)) for n in (*self._about_first(k), *self._about_little(k))]
        return (*self.answer.notes, *dict.fromkeys(about))

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
        if not any(R[len(line) - line.held :]):  # a continuation is in the title, and holds nothing
            count = len(line) - line.held
            shown = len(dict.fromkeys(line.words[:count])) if words else count
            names, values = names[:shown], values[:shown]
        high = max(map(abs, values), default=0.0) or 1.0
        return Tokens(
            tuple(names), tuple(values), Scale(high, signed=True, largest=high), self.title(sample, target),
            self.sentence(sample, target, words), breaks,
            legend=f"Red speaks for it, blue against it; the strongest colour stands for {number(high)}.",
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
        account, asked = self.account(sample, target, words), self.asked[sample][target]
        chance = self.probabilities[sample][target] if self.probabilities else None
        if isinstance(account, Difference):
            return account.said(self.quantity, asked, self.without, chance)
        if isinstance(account, float):
            return below(self.quantity, asked, account, chance)
        return account.said(self.quantity, asked, chance)

    def account(self, sample: int = 0, target: int = 0, words: bool = False) -> Difference | Shared | float:
        """The numbers of it; of a method that explains what is above zero, a score below it alone."""
        pick = _Pick(sample, target)
        ledger, R, line = self.answer.ledger, self._map(sample, target), self.lines[sample]
        if isinstance(ledger, BetweenLedger):
            sums = pick(ledger.in_favour), pick(ledger.against)
            if words:
                _, whole, _ = _joined(line, R.tolist())
                sums = sum(v for v in whole if v > 0), -sum(v for v in whole if v < 0)
            wrong = None if pick(ledger.accounted) else pick(ledger.residual)
            return Difference(pick(ledger.score), pick(ledger.reference), *sums, wrong)
        if pick(self.score) < 0 <= pick(ledger.score):
            return pick(self.score)
        values, special = R.detach().cpu().numpy(), np.array(line.special)
        own, others, left = float(values[~special].sum()), float(values[special].sum()), pick(ledger.residual)
        return Shared(pick(ledger.score), own, others, pick(ledger.total) - own - others - left, left)

    @property
    def without(self) -> str:
        """What the text is compared with, as a sentence begins with it."""
        if self.reference == GIVEN:
            return "With the words of the reference"
        if self.parts:
            return f"On average over {self.copies},"
        if self.reference == HIDDEN.said:
            return "With all words hidden from the others"
        token, at_a_time, how = self.reference.partition(", ")
        return f"With {token} in the place of every word{at_a_time}{how}{at_a_time.rstrip()}"

    @property
    def copies(self) -> str:
        """What the text is compared with, where that is several texts."""
        hidden = " from the others" if self.reference.endswith(HIDDEN.said) else ""
        return f"{self.parts} copies of the text in which all or half of the words are {self.reference}{hidden}"

    def table(self, sample: int = 0, target: int = 0) -> str:
        """The account line by line: every token; special tokens and positions have lines of their own."""
        line, R = self.lines[sample], self._map(sample, target).tolist()
        ledger, pick = self.answer.ledger, _Pick(sample, target)
        between = isinstance(ledger, BetweenLedger)
        rows = [(f"{self.quantity}: {self.asked[sample][target]}", f"{pick(ledger.score):.4g}", "")]
        if isinstance(ledger, BetweenLedger):
            rows.append(("without the words", f"{pick(ledger.reference):.4g}", self.without.rstrip(",")))
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
        if not self.sink or len(R) < 3 or whole == 0 or int(R.argmax()) != 0:
            return []
        piece = self.lines[sample].pieces[0]
        share = percent(float(R[0]) / whole)
        said = f"the first token, {piece!r}, holds {share} of the relevance, more than any other: many language models"
        return [f"{said} let attention rest there, whatever the token is (an attention sink)"]

    def _about_little(self, sample: int) -> list[str]:
        """What is to be said where the score is nearly the same without the words."""
        found = [self.account(sample, t) for t in range(len(self.asked[sample]))]
        return [one.little(self.without) for one in found if isinstance(one, Difference) and one.empty]

    # --- how it shows itself --------------------------------------------------------------------------------------

    def save(
        self, path: str | os.PathLike[str], sample: int | None = None, target: int | None = None, words: bool = True
    ) -> Path:
        """Write the coloured words, or tokens, as a page (.html), a picture (.png) or numbers (.txt).

        sample, target   which text, and which of its classes; None: all of them, of which a picture has but one
        """
        return write_whole(path, self.file_bytes(kind_of(path, KINDS), sample, target, words))

    def file_bytes(self, kind: str, sample: int | None = None, target: int | None = None, words: bool = True) -> bytes:
        """What a file of this kind holds."""
        which = [(s, t) for s, t in self._shown() if sample in (None, s) and target in (None, t)]
        if not which:
            raise InputError(
                f"There is no text {sample}, or no class {target} of it: there are {len(self.lines)} texts."
            )
        if kind == ".png" and len(which) > 1:
            raise InputError(f"A .png file holds one text, and here are {len(which)}: say sample=, or save as .html.")
        told = [self.tokens(*one, words) for one in which]
        if kind == ".html":
            notes = [f"<p>Note: {html.escape(note)}.</p>" for note in self.notes]
            body = "".join([*(t._repr_html_() for t in told), *notes])
            return PAGE.format(title=html.escape(self.title(*which[0])), body=body).encode()
        return b"\n\n".join(t.file_bytes(kind) for t in told)

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
        pick, ledger = _Pick(0, 0), self.ledger
        other = f", without the words {pick(ledger.reference):.3g}" if isinstance(ledger, BetweenLedger) else ""
        name = type(self).__name__
        return printable(f"<{name} of {self.asked[0][0]}{more}: {self.quantity} {pick(self.score):.3g}{other}>")


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
