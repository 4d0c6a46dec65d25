"""What the page's server answers, as types; the browser's side of them is web/src/api.ts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from deeptaylor.app.server.gallery_schema import GalleryOffer
from deeptaylor.app.server.text_schema import TextOffer

__all__ = [
    "Account",
    "Answer",
    "Apart",
    "BelievedAnswer",
    "Channel",
    "ErrorAnswer",
    "Found",
    "Heat",
    "Layer",
    "LayerAnswer",
    "Limits",
    "ModelAnswer",
    "ModelsAnswer",
    "Rival",
    "SampleAnswer",
]


class ErrorAnswer(BaseModel):
    """What went wrong, and what to do."""

    error: str
    swap: dict[Literal["target", "against"], int] | None = Field(
        default=None, description="where the rival scores higher: classes for the same question the other way round"
    )


class ModelAnswer(BaseModel):
    """A network on offer."""

    name: str
    title: str
    about: str
    kind: Literal["photograph", "digits"]
    state: Literal["waiting", "loading", "ready", "failed"]
    message: str = Field(description="what is being done, or why it failed")
    seconds: float = Field(description="since loading began")


class Limits(BaseModel):
    """What is taken at most."""

    bytes: int
    pixels: int
    network: int = Field(description="bytes of a network that is dropped on the page")


class SampleAnswer(BaseModel):
    """A photograph to begin with."""

    name: str
    title: str
    credit: str


class ModelsAnswer(BaseModel):
    """All networks, the one to begin with, the rules that can be named, the limits, photographs, texts, and a run."""

    models: list[ModelAnswer]
    chosen: str
    rules: list[str]
    limits: Limits
    samples: list[SampleAnswer]
    text: TextOffer | None = Field(description="the network that reads texts; none where none was given to the command")
    gallery: GalleryOffer | None = Field(description="the run that is looked at; none where none was given")


class Found(BaseModel):
    """A class that the network holds to be probable."""

    index: int
    name: str
    probability: float


class Heat(BaseModel):
    """Relevance summed over channels, row by row."""

    height: int
    width: int
    scale: float = Field(description="the relevance that gets full colour")
    values: str = Field(description="float32, little-endian, in base64")


class Account(BaseModel):
    """score = input + shared + bias + dropped; `returned`: what of the input's part biases absorbed."""

    score: float
    input: float
    shared: float = Field(description="where a class is set apart: what rivals share, beside `input`")
    bias: float
    dropped: float
    returned: float


class Layer(BaseModel):
    """A line of the ledger; lines run from the output to the input."""

    node: str
    module: str
    op: str
    rule: str
    arrived: float
    onward: float
    bias: float
    dropped: float


class Rival(BaseModel):
    """A class that another one is set apart from."""

    index: int
    name: str
    weight: float = Field(description="its part of all rivals, 0 to 1")


class Apart(BaseModel):
    """How far a class and its rivals are apart."""

    size: float = Field(description="the part of the relevance that lies elsewhere than the rivals', 0 to 1")
    percent: str = Field(description="the same in words; `sentence` goes on from there")
    sentence: str
    nothing: str = Field(description="that nothing sets the class apart; empty where something does")
    difference: Heat = Field(description="red for the class, blue for its rivals")
    rivals: list[Rival]
    more: int = Field(description="rivals that are not listed")


class Answer(BaseModel):
    """An explanation."""

    model: str
    method: str = Field(description="the one that answered")
    reason: str = Field(description="which method answered, and why")
    bias: Literal["returned", "neuron", "spread"] | None = Field(description="none where a method knows no biases")
    target: int | None
    target_name: str
    against: int | None
    against_name: str
    question: Literal["evidence", "apart"]
    classes: list[Found]
    score: float = Field(description="the network's own number, f(x); its positive part is explained")
    title: str = Field(description="what was computed, in one line")
    sentences: list[str] = Field(description="what its numbers are")
    same: str = Field(description="that the map does not depend on the class, and what to ask instead; or empty")
    warning: str = Field(description="what must be said first, such as that the input holds little; or empty")
    consistent: str = Field(description="whether the map is consistent, and why not; or empty")
    account: Account | None = Field(description="where the score went; none where a method does not split it")
    check: str
    notes: list[str]
    seen: str = Field(description="what the network saw, a PNG in base64")
    heat: Heat
    apart: Apart | None
    layers: list[Layer]
    plan: str
    snippet: str
    command: str


class Channel(BaseModel):
    """One channel of a layer."""

    index: int
    total: float
    heat: Heat


class LayerAnswer(BaseModel):
    """Relevance inside the network."""

    node: str
    shape: list[int]
    total: float
    title: str
    sentence: str
    heat: Heat
    channels: list[Channel] = Field(description="those that hold most, the strongest first")


class BelievedAnswer(BaseModel):
    """What the network does when a map is believed."""

    area: float = Field(description="a difference of probabilities, −1 to 1; 0 for a map that knows nothing")
    sentence: str
