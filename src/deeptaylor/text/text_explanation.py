"""The answer for texts: tokens and words in colours, and plain sentences that add up, made of what was computed."""

from __future__ import annotations

import html
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from torch import Tensor

from deeptaylor.between import BetweenLedger
from deeptaylor.check import Check
from deeptaylor.errors import InputError
from deeptaylor.explanation import Explanation
from deeptaylor.formatting import escape_text, format_percent
from deeptaylor.formatting import format_number as digits
from deeptaylor.ledger import Ledger
from deeptaylor.support.files import output_suffix, write_whole
from deeptaylor.support.optional import find_notebook
from deeptaylor.text.encoding import Line
from deeptaylor.text.text_references import GIVEN, HIDDEN
from deeptaylor.viz.heatmap import ColorScale
from deeptaylor.viz.named_values import TEXT_KINDS, TEXT_PAGE, TokenMap, make_bars

if TYPE_CHECKING:
    from deeptaylor.viz.figures import Figure, Size

__all__ = [
    "DifferenceAccount",
    "SharedAccount",
    "TextExplanation",
    "describe_negative",
    "describe_score",
    "format_signed",
]


def format_signed(value: float) -> str:
    """Format three digits, with a typographic minus."""
    return digits(value + 0.0).replace("-", "−")  # no −0


def describe_score(quantity: str, asked: str) -> str:
    """Name the explained score, such as "score of 'positive'".

    >>> describe_score("difference of scores", "'a' rather than 'b'")
    "difference of scores, 'a' rather than 'b'"
    >>> describe_score("cosine similarity", "the similarity of …")
    'cosine similarity'
    """
    if quantity.startswith("difference"):
        return f"{quantity}, {asked}"
    return quantity if "similarity" in asked else f"{quantity} of {asked}"


def _describe_value(quantity: str, asked: str, score: float, probability: float | None = None) -> str:
    """State the score; a logit with its probability if that is given."""
    two = "," if quantity.startswith("difference") else ""
    if quantity == "log-probability":
        probability = math.exp(min(0.0, score))
    chance = "" if probability is None else f", a probability of {format_percent(probability, '.3g')}"
    return f"The {describe_score(quantity, asked)}{two} is {format_signed(score)}{chance}."


class DifferenceAccount(NamedTuple):
    """The account of secants: two scores, what speaks for the one, and what against it."""

    score: float
    reference: float
    raised: float
    lowered: float
    residual: float | None  # where it does not add up

    def describe(self, quantity: str, asked: str, compared: str, probability: float | None = None) -> str:
        """Return the account as sentences; `compared` introduces the score without the words."""
        f, f0, a, b = (format_signed(v) for v in self[:4])
        wrong = "" if self.residual is None else f" NOT accounted for: {format_signed(self.residual)}."
        value = _describe_value(quantity, asked, self.score, probability)
        return (
            f"{value} {compared} it is {f0}. Words for it add {a}, and words against it subtract {b}: "
            f"{f0} + {a} − {b} = {f}.{wrong}"
        )

    @property
    def is_negligible(self) -> bool:
        """True where the words change so little that hardly anything of the score is due to them."""
        return self.raised + self.lowered < _LITTLE * max(abs(self.score), abs(self.reference))

    def describe_smallness(self, compared: str) -> str:
        """Return a note that the words change the score little."""
        f, f0 = format_signed(self.score), format_signed(self.reference)
        same = f"nearly the same, {f0} in place of {f}" if f0 != f else f"the same to three digits, {f}"
        return (
            f"{compared[0].lower()}{compared[1:]} the score is {same}: these words explain little of it. Strong "
            "colours are the largest of small numbers"
        )


_LITTLE = 0.2  # of the score: where all words together count less, that is said


class SharedAccount(NamedTuple):
    """The account of methods that share out a score: words, special tokens, the rest, what the softmax leaves out."""

    score: float
    words: float
    special: float
    rest: float
    left: float

    def describe(self, quantity: str, asked: str, probability: float | None = None) -> str:
        """Return the account as sentences."""
        value = _describe_value(quantity, asked, self.score, probability)
        words, special, rest = (format_signed(v) for v in (self.words, self.special, self.rest))
        left = f" The softmax leaves out {format_signed(self.left)}, which no token holds." if self.left else ""
        return (
            f"{value} The words hold {words} of it, special tokens {special}, and positions, biases and other "
            f"constants {rest}.{left}"
        )


def describe_negative(quantity: str, asked: str, score: float, probability: float | None = None) -> str:
    """State a score below zero, of a method that explains only positive ones."""
    said = _describe_value(quantity, asked, score, probability)
    return f"{said} This method explains what is above zero, so no word holds anything."


# --- the answer -------------------------------------------------------------------------------------------------------


_MOST_SHOWN = 8  # texts in a notebook


@dataclass(frozen=True, repr=False)
class TextExplanation:
    """Which words decided the network's answer, and how much each counted.

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

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.lines)

    def __getitem__(self, sample: int | slice) -> Self:
        """Return the explanation of one text, or of several: e[1], e[-1], e[:4]."""
        count = len(self)
        if isinstance(sample, slice):
            return self._select(range(count)[sample])
        if not -count <= sample < count:
            raise IndexError(f"This explanation has {count} text{'s' * (count > 1)}, from 0 on; got {sample}.")
        return self._select([sample % count])

    def _select(self, samples: Sequence[int]) -> Self:
        """Return the explanation of some of the texts."""
        return replace(
            self, answer=self.answer.select(samples), relevance=tuple(self.relevance[k] for k in samples),
            lines=tuple(self.lines[k] for k in samples), asked=tuple(self.asked[k] for k in samples),
            probabilities=tuple(self.probabilities[k] for k in samples) if self.probabilities else (),
        )  # fmt: skip

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
        about = [n for k in range(len(self.lines)) for n in (*self._note_first_token(k), *self._note_small_change(k))]
        return (*self.answer.notes, *dict.fromkeys(about))

    def check(self) -> Check:
        """Check whether all adds up."""
        return self.answer.check()

    # --- tokens and words -----------------------------------------------------------------------------------------

    def tokens(self, sample: int = 0, target: int = 0, words: bool = False) -> TokenMap:
        """Return the tokens of one text in the colours of their relevance; `words`: sub-words summed to words.

        Shows itself in a notebook and a terminal; .save("x.html"), ("x.png") or ("x.txt") writes it to a file.
        """
        line, R = self.lines[sample], self._select_map(sample, target)
        names, values, breaks = list(line.pieces), R.tolist(), line.breaks
        if words:
            names, values, breaks = _join_words(line, values)
        if not any(R[len(line) - line.held :]):  # a continuation is in the title, and holds nothing
            count = len(line) - line.held
            shown = len(dict.fromkeys(line.words[:count])) if words else count
            names, values = names[:shown], values[:shown]
        high = max(map(abs, values), default=0.0) or 1.0
        return TokenMap(
            tuple(names), tuple(values), ColorScale(high, signed=True, largest=high), self.title(sample, target),
            self.sentence(sample, target, words), breaks,
            legend=f"Red speaks for it, blue against it; the strongest colour stands for {format_signed(high)}.",
        )  # fmt: skip

    def words(self, sample: int = 0, target: int = 0) -> TokenMap:
        """Return the words of one text, each with the sum of its tokens' relevance."""
        return self.tokens(sample, target, words=True)

    def _select_map(self, sample: int, target: int) -> Tensor:
        R = self.relevance[sample]
        return R[target] if R.ndim == 2 else R

    # --- in words -------------------------------------------------------------------------------------------------

    def title(self, sample: int = 0, target: int = 0) -> str:
        """Return the question that is answered."""
        return f"Which words speak for {self.asked[sample][target]}?"

    def sentence(self, sample: int = 0, target: int = 0, words: bool = False) -> str:
        """State the account of one text: the score, the score without the words, and their contributions.

        words   what speaks for the score and against it is summed over words; else, as in the ledger, over tokens
        """
        account, asked = self.account(sample, target, words), self.asked[sample][target]
        chance = self.probabilities[sample][target] if self.probabilities else None
        if isinstance(account, DifferenceAccount):
            return account.describe(self.quantity, asked, self.without, chance)
        if isinstance(account, float):
            return describe_negative(self.quantity, asked, account, chance)
        return account.describe(self.quantity, asked, chance)

    def account(
        self, sample: int = 0, target: int = 0, words: bool = False
    ) -> DifferenceAccount | SharedAccount | float:
        """Return the numbers of the sentence; only the score if it is negative and not explained."""
        pick = _Selection(sample, target)
        ledger, R, line = self.answer.ledger, self._select_map(sample, target), self.lines[sample]
        if isinstance(ledger, BetweenLedger):
            sums = pick(ledger.in_favour), pick(ledger.against)
            if words:
                _, whole, _ = _join_words(line, R.tolist())
                sums = sum(v for v in whole if v > 0), -sum(v for v in whole if v < 0)
            wrong = None if pick(ledger.accounted) else pick(ledger.residual)
            return DifferenceAccount(pick(ledger.score), pick(ledger.reference), *sums, wrong)
        if pick(self.score) < 0 <= pick(ledger.score):
            return pick(self.score)
        values, special = R.detach().cpu().numpy(), np.array(line.special)
        own, others, left = float(values[~special].sum()), float(values[special].sum()), pick(ledger.residual)
        return SharedAccount(pick(ledger.score), own, others, pick(ledger.total) - own - others - left, left)

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
        """Return the account line by line: every token; special tokens and positions have lines of their own."""
        line, R = self.lines[sample], self._select_map(sample, target).tolist()
        ledger, pick = self.answer.ledger, _Selection(sample, target)
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
            rows.append(("positions, biases and other constants", f"{rest:.4g}", ""))
            rows += [("left out by the softmax", f"{left:.4g}", "")] * bool(left)
        rows.append(("not accounted for", f"{pick(ledger.score) - pick(ledger.total):.2g}", "rounding" * between))
        names, numbers = (max(len(row[k]) for row in rows) for k in (0, 1))
        return escape_text("\n".join(f"{a.ljust(names)}  {b.rjust(numbers)}  {c}".rstrip() for a, b, c in rows))

    def _note_first_token(self, sample: int) -> list[str]:
        """Return a note if a first token holds most relevance: an attention sink."""
        R = self._select_map(sample, 0).abs()
        whole = float(R.sum())
        if not self.sink or len(R) < 3 or whole == 0 or int(R.argmax()) != 0:
            return []
        piece = self.lines[sample].pieces[0]
        share = format_percent(float(R[0]) / whole)
        said = f"the first token, {piece!r}, holds {share} of the relevance, more than any other: many language models"
        return [f"{said} let attention rest there, whatever the token is (an attention sink)"]

    def _note_small_change(self, sample: int) -> list[str]:
        """Return a note if the score is nearly the same without the words."""
        found = [self.account(sample, t) for t in range(len(self.asked[sample]))]
        return [
            one.describe_smallness(self.without)
            for one in found
            if isinstance(one, DifferenceAccount) and one.is_negligible
        ]

    # --- how it shows itself --------------------------------------------------------------------------------------

    def save(
        self, path: str | os.PathLike[str], sample: int | None = None, target: int | None = None, words: bool = True
    ) -> Path:
        """Write the coloured words, or tokens, as a page (.html), a picture (.png) or numbers (.txt).

        sample, target   which text, and which of its classes; None: all of them, of which a picture has but one
        """
        return write_whole(path, self.file_bytes(output_suffix(path, TEXT_KINDS), sample, target, words))

    def file_bytes(self, kind: str, sample: int | None = None, target: int | None = None, words: bool = True) -> bytes:
        """Return the content of a file of this kind."""
        which = self._pick_maps(sample, target)
        if kind == ".png" and len(which) > 1:
            raise InputError(f"A .png file holds one text, and here are {len(which)}: give sample=, or save as .html.")
        told = [self.tokens(*one, words) for one in which]
        if kind == ".html":
            notes = [f"<p>Note: {html.escape(note)}.</p>" for note in self.notes]
            body = "".join([*(t._repr_html_() for t in told), *notes])
            return TEXT_PAGE.format(title=html.escape(self.title(*which[0])), body=body).encode()
        return b"\n\n".join(t.file_bytes(kind) for t in told)

    def _pick_maps(self, sample: int | None, target: int | None) -> list[tuple[int, int]]:
        """Return the pairs of text and class; None means all."""
        which = [(s, t) for s, t in self._list_maps() if sample in (None, s) and target in (None, t)]
        if not which:
            raise InputError(
                f"There is no text {sample}, or no class {target} of it: there are {len(self.lines)} texts."
            )
        return which

    def _list_maps(self) -> list[tuple[int, int]]:
        return [(s, t) for s, names in enumerate(self.asked) for t in range(len(names))]

    def plot(
        self, sample: int | None = None, target: int | None = None, words: bool = True, top: int = 20, size: Size = None
    ) -> Figure:
        """Return a figure of matplotlib: the words that count most as bars, for each text and class. For the text in
        colours, see `save` and `show`.

        sample, target   which text, and which of its classes; None: all of them
        words            sub-words are summed to words; False: a bar for each token
        top              how many words, those that count most
        size             the width in inches, or (width, height)
        """
        from deeptaylor.viz.figures import plot_bars

        told = [self.tokens(*place, words) for place in self._pick_maps(sample, target)]
        return plot_bars([make_bars(t.words, np.array(t.values), top, t.title, t.caption) for t in told], size)

    def show(self) -> None:
        """Show the coloured words: in a notebook below the cell, elsewhere in the terminal."""
        if (display := find_notebook()) is not None:
            display(self)
        else:
            sys.stdout.write(f"{self}\n")

    def _repr_html_(self) -> str:
        shown = self._list_maps()
        parts = [self.words(*which)._repr_html_() for which in shown[:_MOST_SHOWN]]
        more = len(shown) - _MOST_SHOWN
        parts += [f"<p>… and {more} more</p>"] * (more > 0)
        return "".join([*parts, *(f"<p>Note: {html.escape(note)}.</p>" for note in self.notes)])

    def __str__(self) -> str:
        said = [f"Method: {self.method}."] + [f"Note: {note}." for note in self.notes]
        return "\n\n".join([*(str(self.words(*which)) for which in self._list_maps()), escape_text("\n".join(said))])

    def __repr__(self) -> str:
        more = f" and {len(self._list_maps()) - 1} more" if len(self._list_maps()) > 1 else ""
        pick, ledger = _Selection(0, 0), self.ledger
        other = f", without the words {pick(ledger.reference):.3g}" if isinstance(ledger, BetweenLedger) else ""
        name = type(self).__name__
        return escape_text(f"<{name} of {self.asked[0][0]}{more}: {self.quantity} {pick(self.score):.3g}{other}>")


class _Selection:
    """One sample's number, of one class."""

    def __init__(self, sample: int, target: int) -> None:
        self.sample, self.target = sample, target

    def __call__(self, t: Tensor) -> float:
        return float(t[self.sample, self.target] if t.ndim == 2 else t[self.sample])


def _join_words(line: Line, values: Sequence[float]) -> tuple[list[str], list[float], tuple[int, ...]]:
    """Join sub-words to words: their text, the sums of their relevance, and where lines break."""
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
