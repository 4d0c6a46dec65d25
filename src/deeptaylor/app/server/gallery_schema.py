"""What can be asked about the store of a run, and what is answered; the page's side is web/src/gallery_api.ts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "PER_PAGE",
    "ChannelAnswer",
    "ChannelItem",
    "ChannelList",
    "ClusterAnswer",
    "ClustersAnswer",
    "Counted",
    "GalleryOffer",
    "Item",
    "ItemAnswer",
    "ItemsAnswer",
    "Which",
]

PER_PAGE = 48


class Counted(BaseModel):
    """A class or a status, and how many items are of it."""

    number: int
    name: str
    count: int


class GalleryOffer(BaseModel):
    """The run that is looked at."""

    title: str = Field(description="what its folder is called")
    about: str
    items: int
    answers: list[Counted] = Field(description="the classes that the network answered with")
    labels: list[Counted] = Field(description="the items' own classes, where they are known")
    explained: list[Counted] = Field(description="the classes that were explained")
    statuses: list[Counted]
    lowest: float | None = Field(description="the lowest score")
    highest: float | None
    note: str = Field(description="why there are no photographs, or no classes of the items' own; may be empty")
    pictured: bool = Field(description="whether photographs may be there")
    layers: list[str] = Field(description="those whose channels were watched")


class Which(BaseModel):
    """Which items: all of what is given must be so."""

    model_config = ConfigDict(extra="forbid")

    prediction: int | None = Field(default=None, ge=0, description="the network's answer, by number")
    label: int | None = Field(default=None, ge=0, description="the item's own class, by number")
    target: int | None = Field(default=None, ge=0, description="the class that was explained, by number")
    right: bool | None = Field(default=None, description="whether the network's answer is the item's own class")
    status: int | None = Field(default=None, ge=0, description="by number")
    low: float | None = Field(default=None, description="the lowest score")
    high: float | None = Field(default=None, description="the highest score")
    cluster: int | None = Field(default=None, ge=0, description="heatmaps that look alike, once they were found")
    order: Literal["run", "highest", "lowest"] = Field(default="run", description="the run's, or by the score")
    page: int = Field(default=0, ge=0, le=10**9)


class Item(BaseModel):
    """One of a page."""

    index: int
    name: str
    said: str = Field(description="the network's answer; why there is none where it was not explained")
    wrong: bool | None = Field(description="whether that is another class than the item's; none where that is unknown")
    score: float | None


class ItemsAnswer(BaseModel):
    """One page of the items."""

    total: int
    page: int
    pages: int
    items: list[Item]
    sentence: str
    mean: str = Field(description="what their mean heatmap is of; empty where none of them has one")


class ItemAnswer(Item):
    """All that the store has of an item, in sentences."""

    sentences: list[str]
    pictured: bool = Field(description="whether its photograph can be read")
    mapped: bool = Field(description="whether it has a heatmap")


class ClusterAnswer(BaseModel):
    """Heatmaps that look alike."""

    number: int
    size: int
    alike: float
    sentence: str


class ClustersAnswer(BaseModel):
    """How far clustering is, and what was found."""

    state: Literal["waiting", "working", "ready", "failed"]
    message: str
    seconds: float
    clusters: list[ClusterAnswer]
    points: list[tuple[int, int, float, float]] = Field(description="item, cluster, and its place from 0 to 1")
    note: str


class ChannelItem(Item):
    """An item in which a channel counted, and how much."""

    value: float


class ChannelList(BaseModel):
    """The channels of a layer, the one that counted most first."""

    layer: str
    channels: list[int]
    sentence: str


class ChannelAnswer(BaseModel):
    """The items in which a channel counted most."""

    layer: str
    channel: int
    sentence: str
    items: list[ChannelItem]
