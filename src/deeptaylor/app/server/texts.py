"""A text and a question to an answer, by the library's own TextExplainer.

All of it runs in one thread (`jobs.py`), as for pictures.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from deeptaylor.app.server import text_words as words
from deeptaylor.app.server.text_schema import (
    CHARACTERS,
    TextAnswer,
    TextChoice,
    TextGuess,
    TextOffer,
    TextPart,
    TextQuestion,
    TextWord,
)
from deeptaylor.errors import InputError
from deeptaylor.pictures.tokens import PAGE
from deeptaylor.text.explainer import METHODS, SECANT
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.model import TextModel

__all__ = ["Texts"]

TOKENS = 512  # that the page explains at most: time and memory grow with their square
GUESSES = 5


@dataclass
class Texts:
    """The network that reads texts."""

    model: TextModel
    title: str = "Your network"

    def offer(self) -> TextOffer:
        """What can be asked of it."""
        kind = self.model.kind
        names = [SECANT] if kind == "embedding" else list(METHODS)
        return TextOffer(
            title=self.title, kind=kind, about=words.about(self.model), classes=list(self.model.class_names or ()),
            methods=[_method(name) for name in names],
            references=self._references(), characters=CHARACTERS, examples=[list(e) for e in words.EXAMPLES[kind]],
        )  # fmt: skip

    def _references(self) -> list[TextChoice]:
        """The usual one first, by what the tokenizer has."""
        own, similar = self.model.tokenizer, self.model.kind == "embedding"
        said = self.model.explainer().references[0].said
        if similar:
            found = [TextChoice(name="", title=said, about="Every word becomes what the tokenizer has for its place")]
        else:
            about = f"All words are missing, or half of them: {said}, or hidden from the others; the mean is taken"
            found = [TextChoice(name="", title="all or half of the words missing", about=about)]
        others = {"mask": own.mask_token, "pad": own.pad_token, "mean": "the mean embedding"}
        if not similar:
            others["hidden"] = "hidden"
        for name, token in others.items():
            if token is not None and token != found[0].title:
                found.append(TextChoice(name=name, title=token, about=words.REFERENCES[name]))
        return found

    def prepare(self) -> None:
        """Capture the network for texts as long as the first example, so that the first text need not wait for it."""
        text, *other = words.EXAMPLES[self.model.kind][0]
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
        names = [words.named(self.model, guess) for guess in guesses]
        return TextAnswer(
            title=e.title(), made=f"{self.title}. {words.made(e)}", method=e.method, asked=e.asked[0][0],
            score=float(e.score[0]), sentences=words.sentences(e), parts=_parts(e), tokens=_listed(e, False),
            words=_listed(e, True),
            guesses=[TextGuess(index=g.index, name=g.name, probability=g.probability) for g in guesses],
            chosen=next((k for k, name in enumerate(names) if e.asked[0][0] == name), None),
            notes=[f"{note[0].upper()}{note[1:].rstrip('.')}." for note in e.notes], table=e.table(),
            snippet=words.snippet(self.model, asked), command=words.command(self.model, asked),
        )  # fmt: skip

    def page(self, asked: TextQuestion) -> bytes:
        """The coloured words as a page of their own, with what there is to say of them."""
        e = self.explain(asked)
        said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in [words.made(e), *words.sentences(e)])
        return PAGE.format(title=html.escape(e.title()), body=e.words()._repr_html_() + said).encode()

    def picture(self, asked: TextQuestion) -> bytes:
        """The coloured words as a picture."""
        return self.explain(asked).words().file_bytes(".png")


def _method(name: str) -> TextChoice:
    title, about = words.METHODS[name]
    return TextChoice(name=name, title=title, about=about)


def _parts(e: TextExplanation) -> list[TextPart]:
    return [TextPart(name=name, label=label, value=value) for name, label, value in words.parts(e)]


def _listed(e: TextExplanation, whole: bool) -> list[TextWord]:
    """Tokens, or words; a special token is a word of its own."""
    told, line = e.tokens(words=whole), e.lines[0]
    special = dict(zip(line.words, line.special, strict=True)) if whole else dict(enumerate(line.special))
    kinds = [special[k] for k in sorted(special)]
    return [
        TextWord(text=text, value=value, special=kind, breaks=k in told.breaks)
        for k, (text, value, kind) in enumerate(zip(told.words, told.values, kinds, strict=True))
    ]
