"""What the page's server answers, as types; the browser's side of them is web/src/api.ts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

__all__ = ["Account", "Answer", "ErrorAnswer", "Found", "Heat", "Layer", "LayerAnswer", "ModelAnswer", "ModelsAnswer"]


class ErrorAnswer(BaseModel):
    """What went wrong, and what to do."""

    error: str


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


class ModelsAnswer(BaseModel):
    """All networks, the one to begin with, the rules that can be named, and the limits."""

    models: list[ModelAnswer]
    chosen: str
    rules: list[str]
    limits: Limits


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
    """score = input + bias + dropped + residual; `returned`: what of the input's part biases handed back."""

    score: float
    input: float
    bias: float
    dropped: float
    residual: float
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


class Answer(BaseModel):
    """An explanation."""

    model: str
    method: str
    target: int | None
    target_name: str
    classes: list[Found]
    score: float = Field(description="the network's own number, f(x); its positive part is explained")
    warning: str = Field(description="what must be said first, such as that the input holds little; or empty")
    account: Account
    check: str
    notes: list[str]
    seen: str = Field(description="what the network saw, a PNG in base64")
    heat: Heat
    layers: list[Layer]
    plan: str
    snippet: str
    command: str


class LayerAnswer(BaseModel):
    """Relevance inside the network."""

    node: str
    shape: list[int]
    total: float
    heat: Heat
