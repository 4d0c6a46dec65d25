"""What is asked of a text and what is answered, as types; the browser's side of them is web/src/text_api.ts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from deeptaylor.app.server.options import Text

__all__ = ["CHARACTERS", "TextAnswer", "TextChoice", "TextGuess", "TextOffer", "TextPart", "TextQuestion", "TextWord"]

CHARACTERS = 20_000  # of a text
Long = Annotated[str, Field(max_length=CHARACTERS)]


class TextQuestion(BaseModel):
    """Everything that is said with a text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Long
    other: Long = Field(default="", description="of a network that gives embeddings: the text to compare with")
    target: Text = Field(default="", description="the class, by number or name; left out: the network's answer")
    continuation: Text = Field(default="", description="of a language model: what follows; left out: the likeliest")
    token: int | None = Field(default=None, ge=0, description="the same as the number of a token")
    against: Text = Field(default="", description="the class or the continuation in the place of which")
    method: Text = Field(default="", description="how it is explained; left out: the first on offer")
    reference: Text = Field(default="", description="what words are compared with; left out: the first on offer")


class TextChoice(BaseModel):
    """A method or a reference on offer."""

    name: str
    title: str
    about: str


class TextOffer(BaseModel):
    """The network that reads texts."""

    title: str
    kind: str = Field(description="classifier, language model, encoder–decoder or embedding")
    about: str
    classes: list[str]
    methods: list[TextChoice]
    references: list[TextChoice] = Field(description="for the first method; the others have none")
    characters: int = Field(description="that are taken at most")
    examples: list[list[str]] = Field(description="texts to begin with; pairs where two are compared")


class TextGuess(BaseModel):
    """A class, or a token, that the network holds to be probable."""

    index: int
    name: str
    probability: float


class TextPart(BaseModel):
    """A line of the account."""

    name: str = Field(description="score, reference, for, against, words, special, rest, left or unaccounted")
    label: str
    value: float


class TextWord(BaseModel):
    """A word, or a token, and its relevance."""

    text: str
    value: float
    special: bool
    breaks: bool = Field(description="whether a line begins here")


class TextAnswer(BaseModel):
    """An explanation of a text."""

    title: str = Field(description="what was computed, in one line")
    made: str = Field(description="how: the network, the method and the reference")
    method: str
    asked: str
    score: float
    sentences: list[str] = Field(description="the account in words")
    parts: list[TextPart]
    tokens: list[TextWord]
    words: list[TextWord]
    guesses: list[TextGuess]
    chosen: int | None = Field(description="which of the guesses is explained")
    notes: list[str]
    table: str = Field(description="the account token by token")
    snippet: str
    command: str
