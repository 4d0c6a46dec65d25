"""A text and a question in, an answer out, by the library's own TextExplainer.

All of it runs in one thread (`jobs.py`), as for pictures.
"""

from __future__ import annotations

import html
import shlex
from dataclasses import dataclass

from deeptaylor.app.server.schema import (
    CHARACTERS,
    TextAnswer,
    TextChoice,
    TextGuess,
    TextOffer,
    TextPart,
    TextQuestion,
    TextWord,
)
from deeptaylor.between import BetweenLedger
from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_name
from deeptaylor.text.model import TextModel
from deeptaylor.text.networks import Guess
from deeptaylor.text.text_explainer import METHODS, SECANT
from deeptaylor.text.text_explanation import TextExplanation, describe_score
from deeptaylor.viz.named_values import TEXT_PAGE

__all__ = ["METHOD_TITLES", "TextPage"]

TOKENS = 512  # that the page explains at most: time and memory grow with their square
GUESSES = 5


@dataclass
class TextPage:
    """The network that reads texts."""

    model: TextModel
    title: str = "Your network"

    def offer(self) -> TextOffer:
        """What can be asked of it."""
        kind = self.model.kind
        names = [SECANT] if kind == "embedding" else list(METHODS)
        return TextOffer(
            title=self.title, kind=kind, about=describe_network(self.model), classes=list(self.model.class_names or ()),
            methods=[_method(name) for name in names],
            references=self._references(), characters=CHARACTERS, examples=[list(e) for e in EXAMPLES[kind]],
        )  # fmt: skip

    def _references(self) -> list[TextChoice]:
        """The usual one first, by what the tokenizer has."""
        own, similar = self.model.tokenizer, self.model.kind == "embedding"
        said = self.model.explainer().references[0].said
        if similar:
            found = [TextChoice(name="", title=said, about="Every word is replaced by the tokenizer’s placeholder")]
        else:
            about = f"The mean over references in which all or half of the words are replaced ({said}) or hidden"
            found = [TextChoice(name="", title="all or half of the words missing", about=about)]
        others = {"mask": own.mask_token, "pad": own.pad_token, "mean": "the mean embedding"}
        if not similar:
            others["hidden"] = "hidden"
        for name, token in others.items():
            if token is not None and token != found[0].title:
                found.append(TextChoice(name=name, title=token, about=REFERENCES[name]))
        return found

    def prepare(self) -> None:
        """Capture the network for texts as long as the first example, so that the first text need not wait for it."""
        text, *other = EXAMPLES[self.model.kind][0]
        self.explain(TextQuestion(text=text, other="".join(other)))

    def explain(self, asked: TextQuestion) -> TextExplanation:
        """The library's own answer."""
        self._check(asked)
        method = asked.method or SECANT
        reference = asked.reference or None if method == SECANT else None  # the others take none
        if self.model.kind == "embedding":
            return self.model.similarity(asked.text, asked.other, reference=reference)
        how = {"against": asked.against or None, "method": method, "reference": reference}
        if not self.model.speaks:
            return self.model.explain(asked.text, asked.target or None, **how)
        follows = [[asked.token]] if asked.token is not None else asked.continuation or None
        return self.model.explain(asked.text, continuation=follows, **how)

    def _check(self, asked: TextQuestion) -> None:
        """What the library would not refuse, or in words that are not the page's."""
        if not asked.text.strip():
            raise InputError("The text is empty: write one, or begin with an example.")
        if self.model.kind == "embedding" and not asked.other.strip():
            raise InputError("The second text is empty: write what the first one is compared with.")
        tokenizer = self.model.tokenizer
        for text in (asked.text, asked.other):
            count = len(tokenizer(text, truncation=False, verbose=False)["input_ids"])
            longest = self.model.longest
            if count > TOKENS and (longest is None or longest >= TOKENS):
                raise InputError(f"The text has {count} tokens, and this page explains at most {TOKENS}: shorten it.")
        if asked.token is not None and asked.token >= len(tokenizer):
            raise InputError(f"There is no token {asked.token}: the tokenizer has {len(tokenizer)}.")

    def answer(self, asked: TextQuestion) -> TextAnswer:
        """An explanation as the page shows it."""
        e = self.explain(asked)
        guesses = self.model.explainer().guesses(asked.text, GUESSES)
        names = [name_guess(self.model, guess) for guess in guesses]
        return TextAnswer(
            title=e.title(), made=f"{self.title}. {describe_method(e)}", method=e.method, asked=e.asked[0][0],
            score=float(e.score[0]), sentences=write_sentences(e), parts=_parts(e), tokens=_listed(e, False),
            words=_listed(e, True),
            guesses=[TextGuess(index=g.index, name=g.name, probability=g.probability) for g in guesses],
            chosen=next((k for k, name in enumerate(names) if e.asked[0][0] == name), None),
            notes=[f"{note[0].upper()}{note[1:].rstrip('.')}." for note in e.notes], table=e.table(),
            snippet=write_snippet(self.model, asked), command=write_command(self.model, asked),
        )  # fmt: skip

    def page(self, asked: TextQuestion) -> bytes:
        """The coloured words as a page of their own, with what there is to say of them."""
        e = self.explain(asked)
        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in [describe_method(e), *write_sentences(e)])
        return TEXT_PAGE.format(title=html.escape(e.title()), body=e.words()._repr_html_() + said).encode()

    def picture(self, asked: TextQuestion) -> bytes:
        """The coloured words as a picture."""
        return self.explain(asked).words().file_bytes(".png")


def _method(name: str) -> TextChoice:
    title, about = METHOD_TITLES[name]
    return TextChoice(name=name, title=title, about=about)


def _parts(e: TextExplanation) -> list[TextPart]:
    return [TextPart(name=name, label=label, value=value) for name, label, value in list_parts(e)]


def _listed(e: TextExplanation, whole: bool) -> list[TextWord]:
    """Tokens, or words; a special token is a word of its own."""
    told, line = e.tokens(words=whole), e.lines[0]
    special = dict(zip(line.words, line.special, strict=True)) if whole else dict(enumerate(line.special))
    kinds = [special[k] for k in sorted(special)]
    return [
        TextWord(text=text, value=value, special=kind, breaks=k in told.breaks)
        for k, (text, value, kind) in enumerate(zip(told.words, told.values, kinds, strict=True))
    ]


# --- sentences of an answer -------------------------------------------------------------------------------------------

METHOD_TITLES = {
    SECANT: ("Secant", "compares the text with a reference; words for and against add up to the exact difference"),
    "deep Taylor": ("Deep Taylor", "treats attention weights as constants; not recommended for transformers"),
    "attnlrp": ("AttnLRP", "splits products equally, linearises the softmax and treats norms as scales"),
    "cp-lrp": ("CP-LRP", "treats attention and norms as constants; every layer uses the z rule"),
}
REFERENCES = {
    "mask": "Every word is replaced by the mask token",
    "pad": "Every word is replaced by the padding token",
    "mean": "Every word is replaced by the mean of all word vectors",
    "hidden": "Every word stays in place, but no other token reads it",
}
EXAMPLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "classifier": (
        ("The film was not bad at all.",),
        ("Great actors, but the plot is dull and far too long.",),
        ("I expected little and was pleasantly surprised: a warm, funny story.",),
    ),
    "language model": (
        ("The capital of France is",),
        ("The opposite of hot is",),
        ("Once upon a time there was a little",),
    ),
    "encoder–decoder": (
        ("translate English to German: The house is old.",),
        ("Is the sky blue? Answer yes or no.",),
    ),
    "embedding": (
        ("A man is playing the guitar.", "Someone performs a piece of music."),
        ("The plane landed two hours late.", "Our flight arrived with a delay."),
    ),
}
_ABOUT = {
    "classifier": "classifies texts",
    "language model": "predicts the next token",
    "encoder–decoder": "reads a text and writes another",
    "embedding": "maps texts to vectors, which are close for similar texts",
}


def describe_network(model: TextModel) -> str:
    """What the network does, in one sentence."""
    limit = f" It takes at most {model.longest} tokens." if model.longest else ""
    return f"The network that was given to the command: it {_ABOUT[model.kind]}.{limit}"


def name_guess(model: TextModel, guess: Guess) -> str:
    """What a guess is called where it is explained."""
    return f"{guess.name!r} next" if model.speaks else repr(guess.name)


def describe_method(e: TextExplanation) -> str:
    """How it was computed, and with what the words were compared."""
    if e.parts:
        return f"Method: {METHOD_TITLES[SECANT][0]}; the text is compared with {e.copies}."
    if e.reference:
        return f"Method: {METHOD_TITLES[SECANT][0]}; words are compared with {e.reference}."
    return f"Method: {METHOD_TITLES[e.method][0]}; words are compared with nothing."


def list_parts(e: TextExplanation) -> list[tuple[str, str, float]]:
    """The account of the one text, line by line: which, in words, and how much."""
    ledger, special = e.ledger, e.lines[0].special
    held = sum(value for value, kind in zip(e.relevance[0].tolist(), special, strict=True) if kind)
    whole = float(e.score[0])
    found = [("score", describe_score(e.quantity, e.asked[0][0]), whole)]
    if isinstance(ledger, BetweenLedger):
        return [
            *found,
            ("reference", "without the words", float(ledger.reference[0])),
            ("for", "words that speak for it", float(ledger.in_favour[0])),
            ("against", "words that speak against it", 0.0 - float(ledger.against[0])),
            ("unaccounted", "not accounted for (rounding)", float(ledger.residual[0])),
        ]
    if whole < 0 <= float(ledger.score[0]):
        return found  # this method explains what is above zero
    own, left = float(e.relevance[0].sum()) - held, float(ledger.residual[0])
    return [
        *found,
        ("words", "the words", own),
        ("special", "special tokens", held),
        ("rest", "positions, biases and other constants", float(ledger.total[0]) - own - held - left),
        *[("left", "what the softmax leaves out", left)] * bool(left),
        ("unaccounted", "not accounted for (rounding)", whole - float(ledger.total[0])),
    ]


def _below_zero(e: TextExplanation) -> list[str]:
    if not e.quantity.startswith("difference") or float(e.score[0]) >= 0:
        return []
    return ["It is below zero: the network prefers the other one."]


def write_sentences(e: TextExplanation) -> list[str]:
    """The account in words."""
    said = [e.sentence(), *_below_zero(e)]
    if isinstance(e.ledger, BetweenLedger):
        said.append("Special tokens and positions are the same with and without the words, so they hold nothing.")
    return [*said, *_not_accounted(e)]


def _not_accounted(e: TextExplanation) -> list[str]:
    return [] if e.check().accounted else ["These numbers do NOT add up to the score: see the account below."]


# --- the same elsewhere -----------------------------------------------------------------------------------------------


def _said(model: TextModel, asked: TextQuestion) -> dict[str, str]:
    """What was asked, by the names of the library."""
    follows = asked.continuation
    if asked.token is not None:
        follows = str(model.tokenizer.decode([asked.token]))
    said = {"continuation": follows} if model.speaks else {"target": asked.target}
    said |= {"against": asked.against, "method": asked.method if asked.method != SECANT else ""}
    if asked.method in ("", SECANT):
        said["reference"] = asked.reference
    return {name: value for name, value in said.items() if value}


def write_snippet(model: TextModel, asked: TextQuestion) -> str:
    """Python that gives the same explanation."""
    load = ["import deeptaylor as dt", "", 'p = dt.load("hf:…")  # as you gave it to the command']
    if model.kind == "embedding":
        more = f", reference={asked.reference!r}" if asked.reference else ""
        call = f"e = dt.similarity(p, {asked.text!r}, {asked.other!r}{more})"
    else:
        more = "".join(f", {name}={value!r}" for name, value in _said(model, asked).items())
        call = f"e = dt.explain(p, {asked.text!r}{more})"
    return "\n".join([*load, call, "print(e.words())", "print(e.table())", 'e.save("words.html", words=True)', ""])


def write_command(model: TextModel, asked: TextQuestion) -> str:
    """The command that gives the same explanation."""
    said = ["deeptaylor", "explain", "--model", "hf:…", "--text", asked.text]
    if model.kind == "embedding":
        said += ["--similar-to", asked.other, *(["--reference", asked.reference] if asked.reference else [])]
    else:
        said += [word for name, value in _said(model, asked).items() for word in (f"--{name}", value)]
    return " ".join(shlex.quote(escape_name(word)) for word in said)
