"""The routes of the page: its own files, and /api/, which only the page's window can reach.

A text is read as a picture is: in its turn, bounded in size and in time. Items, clusters, layers and channels of a run
are numbers; no request names a file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.security import APIKeyHeader
from PIL import Image
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deeptaylor import assets
from deeptaylor.app.server.explanations import PictureAnswer, PictureError, PictureExplainer, RivalError
from deeptaylor.app.server.gallery import (
    Gallery,
    GalleryChannels,
    encode_photo,
    render_item,
    render_mean,
    render_thumbnail,
)
from deeptaylor.app.server.jobs import DisconnectError, JobQueue, NoPlaceError
from deeptaylor.app.server.models import (
    NotReadyError,
    OfferedNetwork,
    OfferedNetworks,
    UnknownModelError,
    UploadedNetwork,
    UploadOptions,
)
from deeptaylor.app.server.schema import (
    CHARACTERS,
    Answer,
    ChannelAnswer,
    ChannelList,
    ClustersAnswer,
    DeletionAnswer,
    ErrorAnswer,
    ExplainOptions,
    ItemAnswer,
    ItemFilter,
    ItemsAnswer,
    LayerAnswer,
    Limits,
    ModelAnswer,
    ModelsAnswer,
    SampleAnswer,
    Text,
    TextAnswer,
    TextQuestion,
)
from deeptaylor.app.server.security import TOKEN_HEADER, BodyTooLargeError, Guard, hide_folders
from deeptaylor.app.server.texts import TextPage
from deeptaylor.errors import BoundaryError, DeepTaylorError, InputError
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.rules.parse import RULES
from deeptaylor.support.class_names import UnknownClassError
from deeptaylor.viz import heatmap
from deeptaylor.viz.colors import style_sheet

__all__ = ["Bounds", "Page", "Sample", "list_samples", "make_app", "wait_for_disconnect"]

_HEAD = 64 * 2**10  # bytes of a body that are read before it takes a place


NETWORKS = "/api/networks"  # where a network is dropped
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_PICTURE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the picture, as in its file",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_NETWORK: dict[str, Any] = {
    "requestBody": _PICTURE["requestBody"] | {"description": "the ONNX file"},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/json": {"schema": ErrorAnswer.model_json_schema()}}}
    for status, what in {
        400: "the request is not valid HTTP",
        401: "the token is missing or old",
        403: "the request comes from elsewhere",
        404: "there is no such network or photograph",
        408: "the picture or the network did not arrive in time",
        409: "the network is not loaded yet",
        413: "the picture or the network is too large",
        415: "the picture cannot be read",
        422: "the question cannot be answered",
        429: "too many requests wait already",
        499: "the caller left",
        500: "an unexpected error occurred",
    }.items()
}


@dataclass(frozen=True)
class Bounds:
    """What the server takes at most."""

    bytes: int = 12 * 2**20
    pixels: int = 40_000_000
    network: int = 512 * 2**20  # bytes of a network that is dropped on the page
    places: int = 32  # requests that are read, wait or are worked on
    read_seconds: float = 10.0  # for a picture to arrive, and
    read_rate: int = 64 * 2**10  # bytes that earn it another second


@dataclass
class Page:
    """What lives as long as the server."""

    models: OfferedNetworks
    chosen: str
    bounds: Bounds
    texts: TextPage | None = None
    gallery: Gallery | None = None
    explaining: PictureExplainer = field(init=False)
    jobs: JobQueue = field(init=False)
    reading: JobQueue = field(init=False)  # of the store of a run, beside what is explained
    samples: dict[str, Sample] = field(init=False)
    prepared: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.samples = {sample.name: sample for sample in list_samples()}
        self.explaining = PictureExplainer(self.bounds.pixels)
        self.jobs, self.reading = JobQueue(self.bounds.places), JobQueue(self.bounds.places)

    async def explained(self, request: Request, options: ExplainOptions, then: Callable[[PictureAnswer], T]) -> T:
        """Read the picture, wait for a turn, explain, and make of it what was asked for."""
        async with AsyncExitStack() as place:
            loaded = self.models.ready(options.model)
            picture = bytearray()
            await self.read(request, picture.extend, place)

            def work() -> T:
                return then(self.explaining.explain(loaded, picture, options))

            return await self.jobs.run(work, lambda: wait_for_disconnect(request))

    def prepare(self, name: str) -> OfferedNetwork:
        """Begin to capture and plan a network, once; where that cannot be done, its first picture says why."""
        loaded = self.models.ready(name)
        if name not in self.prepared:
            self.prepared.add(name)
            self.jobs.begin(lambda: self.explaining.prepare(loaded, name))
        return self.models.get(name)

    async def dropped(self, request: Request, said: UploadOptions) -> OfferedNetwork:
        """Read a network into a file, and begin to load it."""
        async with AsyncExitStack() as place, AsyncExitStack() as written:
            made: list[UploadedNetwork] = []

            def take(piece: bytes) -> None:
                if not made:
                    made.append(UploadedNetwork(said))
                    written.callback(made[0].forget)
                made[0].write(piece)

            await self.read(request, take, place)
            written.pop_all()
            file = made[0]
            model, gone = self.models.drop(file.title, file.load)
            for name in gone:
                self.explaining.forget(name)
            return model

    async def read(self, request: Request, take: Callable[[bytes], object], place: AsyncExitStack) -> None:
        """Read the body piece by piece, as long as it keeps coming; take a place once much of it, or all, is here.

        Callers who send slowly would otherwise hold every place, and nobody else would be answered.
        """
        head: bytearray | None = bytearray()
        until, size = asyncio.get_running_loop().time() + self.bounds.read_seconds, 0
        async with asyncio.timeout_at(until) as clock:
            async for piece in request.stream():
                size += len(piece)
                if head is None:
                    take(piece)
                else:
                    head.extend(piece)
                    if size > _HEAD:
                        await place.enter_async_context(self.jobs.place())
                        take(bytes(head))
                        head = None
                clock.reschedule(until + size / self.bounds.read_rate)
        if head is not None:
            await place.enter_async_context(self.jobs.place())
            take(bytes(head))


async def wait_for_disconnect(request: Request) -> None:
    """Return once the caller has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- sample photographs -----------------------------------------------------------------------------------------------

_SKIMAGE = "from scikit-image, public domain"


@dataclass(frozen=True)
class Sample:
    """A photograph with what it shows and whose it is."""

    name: str
    title: str
    credit: str
    files: tuple[str, ...]  # one, or two that are put above each other

    def read(self) -> bytes:
        """The picture as a file."""
        if len(self.files) == 1:
            return assets.path(self.files[0]).read_bytes()
        top, bottom = (Image.open(assets.path(name)) for name in self.files)
        return heatmap.encode_png(np.asarray(heatmap.stack_photos(top, bottom)))


_ALL = (
    Sample("cat-and-cup", "A cat above a cup", _SKIMAGE, ("cat", "coffee")),
    Sample("cat", "A cat", _SKIMAGE, ("cat",)),
    Sample("coffee", "A cup of coffee", _SKIMAGE, ("coffee",)),
    Sample("rocket", "A rocket", _SKIMAGE, ("rocket",)),
    Sample("pagoda", "A pagoda", "by danielbuechele on Flickr, CC BY 2.0, from scikit-learn", ("pagoda",)),
    Sample("flower", "A flower", "by vultilion on Flickr, CC BY 2.0, from scikit-learn", ("flower",)),
)


def list_samples() -> tuple[Sample, ...]:
    """Those whose packages are installed here."""
    return tuple(sample for sample in _ALL if all(map(assets.is_here, sample.files)))


# --- the application --------------------------------------------------------------------------------------------------


def make_app(
    hosts: frozenset[str],
    token: str,
    *,
    models: OfferedNetworks | None = None,
    chosen: str | None = None,
    bounds: Bounds | None = None,
    texts: TextPage | None = None,
    gallery: Gallery | None = None,
) -> Guard:
    """The application, guarded. ``hosts`` are the values of Host that are ours, with their port."""
    offered = models or OfferedNetworks()
    page = Page(offered, chosen or offered.first(), bounds or Bounds(), texts, gallery)
    page.models.get(page.chosen)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        if page.texts is not None:
            page.jobs.begin(page.texts.prepare)
        yield
        page.jobs.close()
        page.reading.close()
        page.models.close()

    app = FastAPI(
        title="deeptaylor",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        responses=_ERRORS,
        # For the schema alone: the guard has looked at the token before.
        dependencies=[Depends(APIKeyHeader(name=TOKEN_HEADER, auto_error=False))],
        redirect_slashes=False,
    )
    add_errors(app)
    _add_files(app)
    _add_api(app, page)
    add_text_api(app, page.texts, page.jobs, page.read, wait_for_disconnect)
    add_gallery_api(
        app, page.gallery, page.reading, page.jobs, wait_for_disconnect, lambda: page.models.ready(page.chosen)
    )
    others = {NETWORKS: (page.bounds.network, "network")} | dict.fromkeys(PATHS, (page.bounds.bytes, "text"))
    return Guard(app, hosts, token, page.bounds.bytes, others)


def _add_api(app: FastAPI, page: Page) -> None:
    @app.get("/api/models")
    async def models() -> ModelsAnswer:
        """The networks on offer."""
        limits = Limits(bytes=page.bounds.bytes, pixels=page.bounds.pixels, network=page.bounds.network)
        every = [_model(m) for m in page.models.all()]
        shown = [SampleAnswer(name=s.name, title=s.title, credit=s.credit) for s in page.samples.values()]
        text = None if page.texts is None else page.texts.offer()
        gallery = None if page.gallery is None else page.gallery.offer()
        return ModelsAnswer(
            models=every,
            chosen=page.chosen,
            rules=list(RULES),
            limits=limits,
            samples=shown,
            text=text,
            gallery=gallery,
        )

    @app.get("/api/samples/{name}", response_class=_Picture)
    async def sample(name: Text) -> Response:
        """A photograph to begin with."""
        if name not in page.samples:
            raise HTTPException(404, f"no photograph on this page is called {name!r}.")
        return _Picture(page.samples[name].read())

    @app.post(NETWORKS, openapi_extra=_NETWORK)
    async def dropped(request: Request, said: Annotated[UploadOptions, Query()]) -> ModelAnswer:
        """Begin to load an ONNX file; it takes the place of the one before."""
        return _model(await page.dropped(request, said))

    @app.get("/api/models/{name}")
    async def model(name: Text) -> ModelAnswer:
        """How far a network has been loaded."""
        return _model(page.models.get(name))

    @app.get("/api/models/{name}/classes")
    async def classes(name: Text) -> list[str]:
        """What the classes of a loaded network are called, in order; none where they have no names."""
        return list(page.models.ready(name).class_names or ())

    @app.post("/api/models/{name}/load")
    async def load(name: Text) -> ModelAnswer:
        """Begin to load a network; ask for its state until it is ready."""
        return _model(page.models.begin(name))

    @app.post("/api/models/{name}/prepare")
    async def prepare(name: Text) -> ModelAnswer:
        """Begin to capture and plan a loaded network, so that its first picture need not wait for that."""
        return _model(page.prepare(name))

    @app.post("/api/explain", openapi_extra=_PICTURE)
    async def explain(request: Request, options: Annotated[ExplainOptions, Query()]) -> Answer:
        """Explain a picture."""
        return await page.explained(request, options, lambda found: found.answer())

    @app.post("/api/layers/{node}", openapi_extra=_PICTURE)
    async def layer(request: Request, node: Text, options: Annotated[ExplainOptions, Query()]) -> LayerAnswer:
        """The relevance at a layer, by the name of its node or module."""
        return await page.explained(request, options, lambda found: found.layer(node))

    @app.post("/api/believed", openapi_extra=_PICTURE)
    async def believed(request: Request, options: Annotated[ExplainOptions, Query()]) -> DeletionAnswer:
        """What the network does when the map is believed: patches are taken away by what it says."""
        return await page.explained(request, options, lambda found: found.believed())

    @app.post("/api/heatmap.png", openapi_extra=_PICTURE, response_class=Png)
    async def png(request: Request, options: Annotated[ExplainOptions, Query()]) -> Response:
        """The heatmap as a picture."""
        return Png(await page.explained(request, options, lambda found: found.png()))

    @app.post("/api/explanation.npz", openapi_extra=_PICTURE, response_class=_Npz)
    async def npz(request: Request, options: Annotated[ExplainOptions, Query()]) -> Response:
        """Relevance, score and ledger as NumPy arrays."""
        return _Npz(await page.explained(request, options, lambda found: found.npz()))


class _Picture(Response):
    media_type = "application/octet-stream"


class _Npz(Response):
    media_type = "application/zip"


def _model(model: OfferedNetwork) -> ModelAnswer:
    return ModelAnswer(
        name=model.name,
        title=model.title,
        about=model.about,
        kind=model.kind,
        state=model.state,
        message=hide_folders(model.message),
        seconds=round(model.seconds, 1),
    )


def _add_files(app: FastAPI) -> None:
    """The page's own files, read once: no path of a request ever touches the disk."""
    folder = files("deeptaylor.app.server") / "static"
    for file in folder.iterdir():
        kind = _TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            app.add_api_route(path, _file(file.read_bytes(), kind), methods=["GET", "HEAD"], include_in_schema=False)
    colors = _file(style_sheet().encode(), _TYPES["css"])
    app.add_api_route("/colors.css", colors, methods=["GET", "HEAD"], include_in_schema=False)


def _file(data: bytes, kind: str) -> Callable[[], Any]:
    async def answer() -> Response:
        return Response(data, media_type=kind)

    return answer


# --- texts ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
PATHS = ("/api/text", "/api/text/words.html", "/api/text/words.png")
_BYTES = 16 * CHARACTERS  # two texts, with letters that take several bytes each
_QUESTION: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the text and the question",
        "content": {"application/json": {"schema": TextQuestion.model_json_schema()}},
    }
}
NONE = "The page has no network for texts. Start it with one: deeptaylor serve --model hf:FOLDER."
LONG = f"The text is too long: at most {CHARACTERS:,} characters are accepted."


def add_text_api(
    app: FastAPI,
    texts: TextPage | None,
    jobs: JobQueue,
    read: Callable[..., Awaitable[None]],
    gone: Callable[[Request], Awaitable[None]],
) -> None:
    """Add what answers questions about texts; without a network they are refused in words."""

    async def answered(request: Request, then: Callable[[TextPage, TextQuestion], T]) -> T:
        async with AsyncExitStack() as place:
            if texts is None:
                raise InputError(NONE)
            asked = await _question(request, partial(read, place=place))
            return await jobs.run(lambda: then(texts, asked), lambda: gone(request))

    @app.post(PATHS[0], openapi_extra=_QUESTION)
    async def text(request: Request) -> TextAnswer:
        """Explain a text."""
        return await answered(request, TextPage.answer)

    @app.post(PATHS[1], openapi_extra=_QUESTION, response_class=_Page)
    async def page(request: Request) -> Response:
        """The coloured words as a page of their own."""
        return _Page(await answered(request, TextPage.page))

    @app.post(PATHS[2], openapi_extra=_QUESTION, response_class=Png)
    async def picture(request: Request) -> Response:
        """The coloured words as a picture."""
        return Png(await answered(request, TextPage.picture))


async def _question(request: Request, read: Callable[..., Awaitable[None]]) -> TextQuestion:
    body = bytearray()

    def take(piece: bytes) -> None:
        body.extend(piece)
        if len(body) > _BYTES:
            raise InputError(LONG)

    await read(request, take)
    try:
        return TextQuestion.model_validate_json(bytes(body))
    except ValidationError as error:
        if any(found["type"] == "string_too_long" and found["loc"][0] in ("text", "other") for found in error.errors()):
            raise InputError(LONG) from error
        raise RequestValidationError([{**e, "loc": ("body", *e["loc"])} for e in error.errors()]) from error


class _Page(Response):
    # As a file, and never as a page of this address.
    media_type = "application/octet-stream"


class Png(Response):
    """A picture."""

    media_type = "image/png"


# --- the store of a run -----------------------------------------------------------------------------------------------

NO_RUN = "No run is open. Start the page with one: deeptaylor serve --run STORE."
Number = Annotated[int, Path(ge=0, le=10**12)]
Chosen = Annotated[ItemFilter, Query()]
Gone = Callable[[Request], Awaitable[None]]


def add_gallery_api(
    app: FastAPI,
    gallery: Gallery | None,
    reading: JobQueue,
    explaining: JobQueue,
    gone: Gone,
    network: Callable[[], Pretrained],
) -> None:  # fmt: skip
    """Add what answers questions about a run; without one they are refused in words.

    reading      where the store is read
    explaining   where networks are at work
    """
    channels = None if gallery is None else GalleryChannels(gallery, network)

    async def asked(request: Request, then: Callable[[Gallery], T], jobs: JobQueue = reading) -> T:
        async with jobs.place():
            if gallery is None:
                raise InputError(NO_RUN)
            return await jobs.run(lambda: then(gallery), lambda: gone(request))

    async def of_channels(request: Request, then: Callable[[GalleryChannels], T], jobs: JobQueue = reading) -> T:
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
        return Png(await asked(request, lambda g: render_mean(g.chosen(which))))

    @app.get("/api/gallery/items/{number}")
    async def item(request: Request, number: Number) -> ItemAnswer:
        """All that the store has of an item."""
        return await asked(request, lambda g: g.item(number))  # type: ignore[return-value]

    @app.get("/api/gallery/items/{number}/small.png", response_class=Png)
    async def small(request: Request, number: Number) -> Response:
        """Its heatmap over its photograph, small."""
        return Png(await asked(request, lambda g: render_thumbnail(g.one(number), g.pictured)))

    @app.get("/api/gallery/items/{number}/heatmap.png", response_class=Png)
    async def heat(request: Request, number: Number) -> Response:
        """Its heatmap over its photograph."""
        return Png(await asked(request, lambda g: render_item(g.one(number), True, g.pictured)))

    @app.get("/api/gallery/items/{number}/seen.png", response_class=Png)
    async def seen(request: Request, number: Number) -> Response:
        """Its photograph as the network saw it."""
        return Png(await asked(request, lambda g: render_item(g.one(number), False, g.pictured)))

    @app.get("/api/gallery/items/{number}/photograph.png", response_class=Png)
    async def photograph(request: Request, number: Number) -> Response:
        """Its photograph, to be explained anew."""
        return Png(await asked(request, lambda g: encode_photo(g.photo(number))))


# --- errors -----------------------------------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


def add_errors(app: FastAPI) -> None:
    """Words in place of stack traces, always in the same shape."""

    def said(status: int, words: str | None = None, **headers: str) -> Callable[[Request, Any], Any]:
        async def answer(_: Request, error: Exception) -> Response:
            return JSONResponse({"error": words or hide_folders(str(error))}, status, headers or None)

        return answer

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    async def rival(_: Request, error: Exception) -> Response:
        assert isinstance(error, RivalError)
        swap = {"target": error.target, "against": error.against}
        return JSONResponse({"error": str(error), "swap": swap}, 422)

    async def unknown_class(_: Request, error: Exception) -> Response:
        assert isinstance(error, UnknownClassError)
        classes = [{"index": index, "name": name} for index, name in error.classes]
        return JSONResponse({"error": error.reason, "classes": classes}, 422)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        words = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return JSONResponse({"error": words}, 422)

    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        words = "an unexpected error occurred; the terminal shows the details."
        return JSONResponse({"error": words}, 500)

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(DeepTaylorError, said(422))
    app.add_exception_handler(RivalError, rival)
    app.add_exception_handler(UnknownClassError, unknown_class)
    app.add_exception_handler(BoundaryError, said(422))
    app.add_exception_handler(PictureError, said(415))
    app.add_exception_handler(UnknownModelError, said(404))
    app.add_exception_handler(NotReadyError, said(409))
    app.add_exception_handler(BodyTooLargeError, said(413))
    app.add_exception_handler(TimeoutError, said(408, "it did not arrive in time."))
    app.add_exception_handler(DisconnectError, said(499, "the caller left."))
    app.add_exception_handler(ClientDisconnect, said(499, "the caller left."))
    busy = "too many requests are waiting; try again in a moment."
    app.add_exception_handler(NoPlaceError, said(429, busy, **{"Retry-After": "1"}))
    app.add_exception_handler(Exception, unexpected)
