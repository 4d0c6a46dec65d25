"""The routes of the page: its own files, and /api/, which only the page's window can reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import Response
from fastapi.security import APIKeyHeader
from starlette.exceptions import HTTPException

from deeptaylor.app.server.dropped import Dropped, File
from deeptaylor.app.server.explained import Explained
from deeptaylor.app.server.explaining import Explaining
from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.gallery import Gallery
from deeptaylor.app.server.gallery_routes import add_gallery_api
from deeptaylor.app.server.jobs import Jobs
from deeptaylor.app.server.models import Model, Models
from deeptaylor.app.server.options import Options, Text
from deeptaylor.app.server.refusals import add_errors
from deeptaylor.app.server.samples import Sample, samples
from deeptaylor.app.server.schema import (
    Answer,
    BelievedAnswer,
    ErrorAnswer,
    LayerAnswer,
    Limits,
    ModelAnswer,
    ModelsAnswer,
    SampleAnswer,
)
from deeptaylor.app.server.security import TOKEN_HEADER, Guard
from deeptaylor.app.server.text_routes import PATHS, Png, add_text_api
from deeptaylor.app.server.texts import Texts
from deeptaylor.rules.parse import RULES

__all__ = ["Bounds", "make_app"]

T = TypeVar("T")
_HEAD = 64 * 2**10  # bytes of a body that are read before it takes a place

NETWORKS = "/api/networks"  # where a network is dropped
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_PICTURE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the picture itself, as it lies in its file",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_NETWORK: dict[str, Any] = {
    "requestBody": _PICTURE["requestBody"] | {"description": "the ONNX file, as it is"},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/json": {"schema": ErrorAnswer.model_json_schema()}}}
    for status, what in {
        400: "the request is not HTTP as it should be",
        401: "the token is missing or old",
        403: "the request comes from elsewhere",
        404: "there is no such network or photograph",
        408: "the picture or the network did not arrive in time",
        409: "the network is not loaded yet",
        413: "the picture or the network is too large",
        415: "the picture cannot be read",
        422: "it cannot be explained as asked",
        429: "too many requests wait already",
        499: "the caller left",
        500: "something unexpected went wrong",
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

    models: Models
    chosen: str
    bounds: Bounds
    texts: Texts | None = None
    gallery: Gallery | None = None
    explaining: Explaining = field(init=False)
    jobs: Jobs = field(init=False)
    reading: Jobs = field(init=False)  # of the store of a run, beside what is explained
    samples: dict[str, Sample] = field(init=False)
    prepared: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.samples = {sample.name: sample for sample in samples()}
        self.explaining = Explaining(self.bounds.pixels)
        self.jobs, self.reading = Jobs(self.bounds.places), Jobs(self.bounds.places)

    async def explained(self, request: Request, options: Options, then: Callable[[Explained], T]) -> T:
        """Read the picture, wait for a turn, explain, and make of it what was asked for."""
        async with AsyncExitStack() as place:
            loaded = self.models.ready(options.model)
            picture = bytearray()
            await self.read(request, picture.extend, place)

            def work() -> T:
                return then(self.explaining.explain(loaded, picture, options))

            return await self.jobs.run(work, lambda: _gone(request))

    def prepare(self, name: str) -> Model:
        """Begin to capture and plan a network, once; where that cannot be done, its first picture says why."""
        loaded = self.models.ready(name)
        if name not in self.prepared:
            self.prepared.add(name)
            self.jobs.begin(lambda: self.explaining.prepare(loaded, name))
        return self.models.get(name)

    async def dropped(self, request: Request, said: Dropped) -> Model:
        """Read a network into a file, and begin to load it."""
        async with AsyncExitStack() as place, AsyncExitStack() as written:
            made: list[File] = []

            def take(piece: bytes) -> None:
                if not made:
                    made.append(File(said))
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


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def make_app(
    hosts: frozenset[str],
    token: str,
    *,
    models: Models | None = None,
    chosen: str | None = None,
    bounds: Bounds | None = None,
    texts: Texts | None = None,
    gallery: Gallery | None = None,
) -> Guard:
    """The application, guarded. ``hosts`` are the values of Host that are ours, with their port."""
    offered = models or Models()
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
    add_text_api(app, page.texts, page.jobs, page.read, _gone)
    add_gallery_api(app, page.gallery, page.reading, page.jobs, _gone, lambda: page.models.ready(page.chosen))
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
    async def dropped(request: Request, said: Annotated[Dropped, Query()]) -> ModelAnswer:
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
    async def explain(request: Request, options: Annotated[Options, Query()]) -> Answer:
        """Explain a picture."""
        return await page.explained(request, options, lambda found: found.answer())

    @app.post("/api/layers/{node}", openapi_extra=_PICTURE)
    async def layer(request: Request, node: Text, options: Annotated[Options, Query()]) -> LayerAnswer:
        """The relevance at a layer, by the name of its node or module."""
        return await page.explained(request, options, lambda found: found.layer(node))

    @app.post("/api/believed", openapi_extra=_PICTURE)
    async def believed(request: Request, options: Annotated[Options, Query()]) -> BelievedAnswer:
        """What the network does when the map is believed: patches are taken away by what it says."""
        return await page.explained(request, options, lambda found: found.believed())

    @app.post("/api/heatmap.png", openapi_extra=_PICTURE, response_class=Png)
    async def png(request: Request, options: Annotated[Options, Query()]) -> Response:
        """The heatmap as a picture."""
        return Png(await page.explained(request, options, lambda found: found.png()))

    @app.post("/api/explanation.npz", openapi_extra=_PICTURE, response_class=_Npz)
    async def npz(request: Request, options: Annotated[Options, Query()]) -> Response:
        """Relevance, score and ledger as NumPy arrays."""
        return _Npz(await page.explained(request, options, lambda found: found.npz()))


class _Picture(Response):
    media_type = "application/octet-stream"


class _Npz(Response):
    media_type = "application/zip"


def _model(model: Model) -> ModelAnswer:
    return ModelAnswer(
        name=model.name,
        title=model.title,
        about=model.about,
        kind=model.kind,
        state=model.state,
        message=without_folders(model.message),
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


def _file(data: bytes, kind: str) -> Callable[[], Any]:
    async def answer() -> Response:
        return Response(data, media_type=kind)

    return answer
