"""What an answer about a text says, in plain sentences: made of what was computed, never of what was typed.

parts       the account, line by line
sentences   the same in words, each number with what it is
snippet     Python that gives the same; `command`: the same on the command line
"""

from __future__ import annotations

import shlex

from deeptaylor.app.server.text_schema import TextQuestion
from deeptaylor.secant.between import BetweenLedger
from deeptaylor.shown import shown
from deeptaylor.text.explainer import SECANT
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.guesses import Guess
from deeptaylor.text.model import TextModel
from deeptaylor.text.sentences import score_of

__all__ = ["EXAMPLES", "METHODS", "REFERENCES", "about", "command", "made", "named", "parts", "sentences", "snippet"]

METHODS = {
    SECANT: ("Secant", "compares the text with a reference, exactly: for and against add up to the difference"),
    "deep Taylor": ("Deep Taylor", "attention weights are constants; of transformers its maps are not a good answer"),
    "attnlrp": ("AttnLRP", "products give half to each factor, the softmax is taken by its tangent, norms are scales"),
    "cp-lrp": ("CP-LRP", "attention and norms are constants, and every layer hands on in proportion (the z rule)"),
}
REFERENCES = {
    "mask": "Every word becomes the token that stands for a word one does not know",
    "pad": "Every word becomes the token that fills up short texts",
    "mean": "Every word becomes no word in particular: the mean of all words’ vectors",
    "hidden": "Every word stays where it is, and no other token reads it",
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
    "classifier": "tells classes of texts apart",
    "language model": "says what comes next",
    "encoder–decoder": "reads a text and writes another",
    "embedding": "gives texts places, near each other where they are alike",
}


def about(model: TextModel) -> str:
    """What the network does, in one sentence."""
    limit = f" It takes at most {model.longest} tokens." if model.longest else ""
    return f"The network that was given to the command: it {_ABOUT[model.kind]}.{limit}"


def named(model: TextModel, guess: Guess) -> str:
    """What a guess is called where it is explained."""
    return f"{guess.name!r} next" if model.speaks else repr(guess.name)


def made(e: TextExplanation) -> str:
    """How it was computed, and with what the words were compared."""
    if e.parts:
        return f"Method: {METHODS[SECANT][0]}; the text is compared with {e.copies}."
    if e.reference:
        return f"Method: {METHODS[SECANT][0]}; words are compared with {e.reference}."
    return f"Method: {METHODS[e.method][0]}; words are compared with nothing."


def parts(e: TextExplanation) -> list[tuple[str, str, float]]:
    """The account of the one text, line by line: which, in words, and how much."""
    ledger, special = e.ledger, e.lines[0].special
    held = sum(value for value, kind in zip(e.relevance[0].tolist(), special, strict=True) if kind)
    whole = float(e.score[0])
    found = [("score", score_of(e.quantity, e.asked[0][0]), whole)]
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
        ("rest", "positions, biases and what has no word", float(ledger.total[0]) - own - held - left),
        *[("left", "what the softmax leaves out", left)] * bool(left),
        ("unaccounted", "not accounted for (rounding)", whole - float(ledger.total[0])),
    ]


def _below_zero(e: TextExplanation) -> list[str]:
    if not e.quantity.startswith("difference") or float(e.score[0]) >= 0:
        return []
    return ["It is below zero: the network prefers the other one."]


def sentences(e: TextExplanation) -> list[str]:
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


def snippet(model: TextModel, asked: TextQuestion) -> str:
    """Python that gives the same explanation."""
    load = ["import deeptaylor as dt", "", 'p = dt.load("hf:…")  # as you gave it to the command']
    if model.kind == "embedding":
        more = f", reference={asked.reference!r}" if asked.reference else ""
        call = f"e = dt.similarity(p, {asked.text!r}, {asked.other!r}{more})"
    else:
        more = "".join(f", {name}={value!r}" for name, value in _said(model, asked).items())
        call = f"e = dt.explain(p, {asked.text!r}{more})"
    return "\n".join([*load, call, "print(e.words())", "print(e.table())", 'e.save("words.html", words=True)', ""])


def command(model: TextModel, asked: TextQuestion) -> str:
    """The command that gives the same explanation."""
    said = ["deeptaylor", "explain", "--model", "hf:…", "--text", asked.text]
    if model.kind == "embedding":
        said += ["--similar-to", asked.other, *(["--reference", asked.reference] if asked.reference else [])]
    else:
        said += [word for name, value in _said(model, asked).items() for word in (f"--{name}", value)]
    return " ".join(shlex.quote(shown(word)) for word in said)
