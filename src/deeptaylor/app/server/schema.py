"""Types of the page's requests and answers; the browser's side is web/src/api.ts, gallery_api.ts and text_api.ts.

A rule is written as its symbol with its numbers, never as code (rules/parse.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "CHARACTERS",
    "LEVEL",
    "OUTSIDE",
    "PER_PAGE",
    "Account",
    "Answer",
    "Channel",
    "ChannelAnswer",
    "ChannelItem",
    "ChannelList",
    "ClassProbability",
    "ClusterAnswer",
    "ClustersAnswer",
    "Count",
    "DeletionAnswer",
    "ErrorAnswer",
    "ExplainOptions",
    "ExplainerOptions",
    "GalleryItem",
    "GalleryOffer",
    "Heat",
    "ItemAnswer",
    "ItemFilter",
    "ItemsAnswer",
    "LayerAnswer",
    "LayerRow",
    "Limits",
    "MethodName",
    "ModelAnswer",
    "ModelsAnswer",
    "Rival",
    "SampleAnswer",
    "Separation",
    "Text",
    "TextAnswer",
    "TextChoice",
    "TextGuess",
    "TextOffer",
    "TextPart",
    "TextQuestion",
    "TextWord",
]

# --- what can be asked about a picture --------------------------------------------------------------------------------

LEVEL = 0.1  # of the root, as the command has it

Text = Annotated[str, Field(max_length=200)]


MethodName = Literal["auto", "deep-taylor", "paper", "secant", "attnlrp", "cp-lrp", "sensitivity", "taylor"]
OUTSIDE = ("sensitivity", "taylor")  # they see the network from outside
_DEEP = ("bias", "max_pool", "first", "above", "rules")  # settings of deep Taylor


class ExplainerOptions(BaseModel):
    """How an explainer is built; two requests with equal settings share one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: MethodName = Field(default="auto", description="the method; auto: the one that fits the network")
    bias: Literal["returned", "neuron", "spread"] = Field(
        default="returned", description="what becomes of the biases' share of the score"
    )
    max_pool: Literal["proportional", "winner"] = Field(default="proportional", description="how max pooling shares")
    first: Text = Field(default="", description="rule of the layer that reads the picture; empty: chosen by the domain")
    above: Text = Field(default="", description="rule of all other layers; empty: chosen by each domain")
    rules: Annotated[str, Field(max_length=2000)] = Field(
        default="", description="`pattern=rule` for single layers, by `;`"
    )


class ExplainOptions(ExplainerOptions):
    """A question about a picture."""

    model: Text = Field(description="the network, by name")
    question: Literal["evidence", "apart"] = Field(
        default="evidence", description="all evidence for a class, or the part that rivals do not share"
    )
    target: Text = Field(default="", description="the class, by number or name; empty: the most probable one")
    against: Text = Field(default="", description="the rival to compare with, by number or name; empty: all rivals")
    level: float = Field(default=LEVEL, ge=0, le=0.99, description="taylor: the score at the root, as a part of f(x)")
    file: Text = Field(
        default="picture.png",
        description="the picture's name, for the Python code and the command; never opened",
    )

    @property
    def settings(self) -> ExplainerOptions:
        """Return the settings that the explainer depends on; a setting of deep Taylor means that method."""
        if self.method == "auto" and not self.model_fields_set.isdisjoint(_DEEP):
            return self._settings(method="deep-taylor")
        if self.method == "deep-taylor":
            return self._settings()
        return ExplainerOptions(method=self.method)

    def _settings(self, **instead: MethodName) -> ExplainerOptions:
        return ExplainerOptions(**{name: getattr(self, name) for name in ExplainerOptions.model_fields} | instead)


# --- the store of a run -----------------------------------------------------------------------------------------------

PER_PAGE = 48


class Count(BaseModel):
    """A class or a status, and the number of its items."""

    number: int
    name: str
    count: int


class GalleryOffer(BaseModel):
    """The run that is shown."""

    title: str = Field(description="the name of its folder")
    about: str
    items: int
    answers: list[Count] = Field(description="the classes that the network answered with")
    labels: list[Count] = Field(description="the items' own classes, if they are known")
    explained: list[Count] = Field(description="the classes that were explained")
    statuses: list[Count]
    lowest: float | None = Field(description="the lowest score")
    highest: float | None
    note: str = Field(description="why photographs or the items' own classes are missing; may be empty")
    pictured: bool = Field(description="whether photographs may be available")
    layers: list[str] = Field(description="the layers whose channels were recorded")


class ItemFilter(BaseModel):
    """A filter of items; all given conditions must hold."""

    model_config = ConfigDict(extra="forbid")

    prediction: int | None = Field(default=None, ge=0, description="the network's answer, by number")
    label: int | None = Field(default=None, ge=0, description="the item's own class, by number")
    target: int | None = Field(default=None, ge=0, description="the class that was explained, by number")
    right: bool | None = Field(default=None, description="whether the network's answer is the item's own class")
    status: int | None = Field(default=None, ge=0, description="by number")
    low: float | None = Field(default=None, description="the lowest score")
    high: float | None = Field(default=None, description="the highest score")
    cluster: int | None = Field(default=None, ge=0, description="a cluster of similar heatmaps, by number")
    order: Literal["run", "highest", "lowest"] = Field(default="run", description="the order of the run, or by score")
    page: int = Field(default=0, ge=0, le=10**9)


class GalleryItem(BaseModel):
    """One item of a page."""

    index: int
    name: str
    said: str = Field(description="the network's answer, or why the item was not explained")
    wrong: bool | None = Field(description="whether it differs from the item's own class; null if unknown")
    score: float | None


class ItemsAnswer(BaseModel):
    """One page of the items."""

    total: int
    page: int
    pages: int
    items: list[GalleryItem]
    sentence: str
    mean: str = Field(description="what their mean heatmap shows; empty if there is none")


class ItemAnswer(GalleryItem):
    """All that the store holds about an item, in sentences."""

    sentences: list[str]
    pictured: bool = Field(description="whether its photograph can be read")
    mapped: bool = Field(description="whether it has a heatmap")


class ClusterAnswer(BaseModel):
    """Similar heatmaps."""

    number: int
    size: int
    alike: float
    sentence: str


class ClustersAnswer(BaseModel):
    """Progress and result of clustering."""

    state: Literal["waiting", "working", "ready", "failed"]
    message: str
    seconds: float
    clusters: list[ClusterAnswer]
    points: list[tuple[int, int, float, float]] = Field(description="item, cluster, and position from 0 to 1")
    note: str


class ChannelItem(GalleryItem):
    """An item and the relevance of a channel in it."""

    value: float


class ChannelList(BaseModel):
    """The channels of a layer, the largest relevance first."""

    layer: str
    channels: list[int]
    sentence: str


class ChannelAnswer(BaseModel):
    """The items in which a channel has the most relevance."""

    layer: str
    channel: int
    sentence: str
    items: list[ChannelItem]


# --- texts ------------------------------------------------------------------------------------------------------------

CHARACTERS = 20_000  # of a text
Long = Annotated[str, Field(max_length=CHARACTERS)]


class TextQuestion(BaseModel):
    """A question about a text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Long
    other: Long = Field(default="", description="the text to compare with, for embedding networks")
    target: Text = Field(default="", description="the class, by number or name; empty: the network's answer")
    continuation: Text = Field(default="", description="for language models: the continuation; empty: the most likely")
    token: int | None = Field(default=None, ge=0, description="the same as the number of a token")
    against: Text = Field(default="", description="the class or the continuation to compare with")
    method: Text = Field(default="", description="the method; empty: the first of the list")
    reference: Text = Field(default="", description="what words are compared with; empty: the first of the list")


class TextChoice(BaseModel):
    """A method or a reference to choose."""

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
    references: list[TextChoice] = Field(description="for the first method only")
    characters: int = Field(description="the largest length of a text")
    examples: list[list[str]] = Field(description="example texts; pairs if two texts are compared")


class TextGuess(BaseModel):
    """A probable class or token."""

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


# --- answers about pictures and networks ------------------------------------------------------------------------------


class ClassChoice(BaseModel):
    """A class with a name similar to an unknown one."""

    index: int
    name: str


class ErrorAnswer(BaseModel):
    """What went wrong, and what to do."""

    error: str
    swap: dict[Literal["target", "against"], int] | None = Field(
        default=None, description="the two classes swapped, if the rival scores higher"
    )
    classes: list[ClassChoice] | None = Field(
        default=None, description="classes with similar names, if no class has the name"
    )


class ModelAnswer(BaseModel):
    """A network to choose."""

    name: str
    title: str
    about: str
    kind: Literal["photograph", "digits"]
    state: Literal["waiting", "loading", "ready", "failed"]
    message: str = Field(description="what is being done, or why it failed")
    seconds: float = Field(description="since loading began")


class Limits(BaseModel):
    """Limits of inputs."""

    bytes: int
    pixels: int
    network: int = Field(description="the largest size of a dropped network, in bytes")


class SampleAnswer(BaseModel):
    """An example photograph."""

    name: str
    title: str
    credit: str


class ModelsAnswer(BaseModel):
    """All networks, the first one, the names of rules, the limits, example photographs, texts, and a run."""

    models: list[ModelAnswer]
    chosen: str
    rules: list[str]
    limits: Limits
    samples: list[SampleAnswer]
    text: TextOffer | None = Field(description="the network that reads texts; null if the command was given none")
    gallery: GalleryOffer | None = Field(description="the run that is shown; null if none was given")


class ClassProbability(BaseModel):
    """A probable class."""

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
    shared: float = Field(description="the part that rivals share, in a comparison with rivals")
    bias: float
    dropped: float
    returned: float


class LayerRow(BaseModel):
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
    """A rival of the explained class."""

    index: int
    name: str
    weight: float = Field(description="its weight among all rivals, 0 to 1")


class Separation(BaseModel):
    """The comparison of a class with its rivals."""

    size: float = Field(description="the part of the map that is specific to the class, 0 to 1")
    percent: str = Field(description="the same as text; `sentence` continues it")
    sentence: str
    nothing: str = Field(description="a warning if hardly anything is specific to the class; otherwise empty")
    difference: Heat = Field(description="red for the class, blue for its rivals")
    rivals: list[Rival]
    more: int = Field(description="rivals that are not listed")


class Answer(BaseModel):
    """An explanation."""

    model: str
    method: str = Field(description="the method that answered")
    reason: str = Field(description="which method answered, and why")
    bias: Literal["returned", "neuron", "spread"] | None = Field(description="null if the method does not treat biases")
    target: int | None
    target_name: str
    against: int | None
    against_name: str
    question: Literal["evidence", "apart"]
    classes: list[ClassProbability]
    score: float = Field(description="the score of the network, f(x); its positive part is explained")
    title: str = Field(description="what was computed, in one line")
    sentences: list[str] = Field(description="the numbers, in sentences")
    same: str = Field(description="that the map does not depend on the class, and what to ask instead; or empty")
    warning: str = Field(description="the most important warning, such as that the input holds little; or empty")
    consistent: str = Field(description="whether the map is consistent, and why not; or empty")
    account: Account | None = Field(description="where the score went; null if the method does not split it")
    check: str
    notes: list[str]
    seen: str = Field(description="what the network saw, a PNG in base64")
    heat: Heat
    apart: Separation | None
    layers: list[LayerRow]
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
    channels: list[Channel] = Field(description="the channels with the most relevance, the largest first")


class DeletionAnswer(BaseModel):
    """The result of hiding patches in the order of a map."""

    area: float = Field(description="a difference of probabilities, −1 to 1; a random map scores 0")
    sentence: str
