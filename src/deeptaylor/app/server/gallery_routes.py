"""The routes of the gallery. Items, clusters, layers and channels are numbers; no request names a file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response

from deeptaylor.app.server import gallery_pictures as pictures
from deeptaylor.app.server.gallery import Gallery
from deeptaylor.app.server.gallery_channels import Channels
from deeptaylor.app.server.gallery_schema import (
    ChannelAnswer,
    ChannelList,
    ClustersAnswer,
    ItemAnswer,
    ItemsAnswer,
    Which,
)
from deeptaylor.app.server.jobs import Jobs
from deeptaylor.app.server.text_routes import Png
from deeptaylor.errors import InputError
from deeptaylor.models.networks.pretrained import Pretrained

__all__ = ["NO_RUN", "add_gallery_api"]

T = TypeVar("T")
NO_RUN = "No run is looked at. Start the page with the store of one: deeptaylor serve --run STORE."
Number = Annotated[int, Path(ge=0, le=10**12)]
Chosen = Annotated[Which, Query()]
Gone = Callable[[Request], Awaitable[None]]


def add_gallery_api(
    app: FastAPI,
    gallery: Gallery | None,
    reading: Jobs,
    explaining: Jobs,
    gone: Gone,
    network: Callable[[], Pretrained],
) -> None:  # fmt: skip
    """Add what answers questions about a run; without one they are refused in words.

    reading      where the store is read
    explaining   where networks are at work
    """
    channels = None if gallery is None else Channels(gallery, network)

    async def asked(request: Request, then: Callable[[Gallery], T], jobs: Jobs = reading) -> T:
        async with jobs.place():
            if gallery is None:
                raise InputError(NO_RUN)
            return await jobs.run(lambda: then(gallery), lambda: gone(request))

    async def of_channels(request: Request, then: Callable[[Channels], T], jobs: Jobs = reading) -> T:
        def work(_: Gallery) -> T:
            assert channels is not None
            return then(channels)

        return await asked(request, work, jobs)

    _add_items(app, asked)

    @app.get("/api/gallery/clusters")
    async def clusters(request: Request) -> ClustersAnswer:
        """How far the grouping of heatmaps is, and what was found."""
        return await asked(request, lambda g: g.study.answer(g.view))

    @app.post("/api/gallery/clusters")
    async def begin(request: Request) -> ClustersAnswer:
        """Begin to group the heatmaps that look alike; ask for the state until it is ready."""

        def work(g: Gallery) -> ClustersAnswer:
            g.study.begin(g.view)
            return g.study.answer(g.view)

        return await asked(request, work)

    @app.get("/api/gallery/layers/{layer}")
    async def layer(request: Request, layer: Number) -> ChannelList:
        """The channels of a layer that was watched."""
        return await of_channels(request, lambda c: c.all(layer))

    @app.get("/api/gallery/layers/{layer}/{channel}")
    async def channel(request: Request, layer: Number, channel: Number) -> ChannelAnswer:
        """The items in which a channel counted most."""
        return await of_channels(request, lambda c: c.one(layer, channel))

    @app.get("/api/gallery/layers/{layer}/{channel}/{place}/crop.png", response_class=Png)
    async def crop(request: Request, layer: Number, channel: Number, place: Number) -> Response:
        """The piece of one of them that the channel counted in; the run's network must be served."""
        return Png(await of_channels(request, lambda c: c.crop(layer, channel, place), explaining))


def _add_items(app: FastAPI, asked: Callable[..., Awaitable[T]]) -> None:
    @app.get("/api/gallery/items")
    async def items(request: Request, which: Chosen) -> ItemsAnswer:
        """A page of the items that are like this."""
        return await asked(request, lambda g: g.page(which))  # type: ignore[return-value]

    @app.get("/api/gallery/mean.png", response_class=Png)
    async def mean(request: Request, which: Chosen) -> Response:
        """The mean heatmap of the items that are like this."""
        return Png(await asked(request, lambda g: pictures.mean(g.chosen(which))))

    @app.get("/api/gallery/items/{number}")
    async def item(request: Request, number: Number) -> ItemAnswer:
        """All that the store has of an item."""
        return await asked(request, lambda g: g.item(number))  # type: ignore[return-value]

    @app.get("/api/gallery/items/{number}/small.png", response_class=Png)
    async def small(request: Request, number: Number) -> Response:
        """Its heatmap over its photograph, small."""
        return Png(await asked(request, lambda g: pictures.thumbnail(g.one(number), g.pictured)))

    @app.get("/api/gallery/items/{number}/heatmap.png", response_class=Png)
    async def heat(request: Request, number: Number) -> Response:
        """Its heatmap over its photograph."""
        return Png(await asked(request, lambda g: pictures.large(g.one(number), True, g.pictured)))

    @app.get("/api/gallery/items/{number}/seen.png", response_class=Png)
    async def seen(request: Request, number: Number) -> Response:
        """Its photograph as the network saw it."""
        return Png(await asked(request, lambda g: pictures.large(g.one(number), False, g.pictured)))

    @app.get("/api/gallery/items/{number}/photograph.png", response_class=Png)
    async def photograph(request: Request, number: Number) -> Response:
        """Its photograph, to be explained anew."""
        return Png(await asked(request, lambda g: pictures.photograph(g.photo(number))))
