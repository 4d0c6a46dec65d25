"""The routes for texts. A question is read as a picture is: in its turn, bounded in size and in time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError

from deeptaylor.app.server.jobs import Jobs
from deeptaylor.app.server.text_schema import CHARACTERS, TextAnswer, TextQuestion
from deeptaylor.app.server.texts import Texts
from deeptaylor.errors import InputError

__all__ = ["PATHS", "Png", "add_text_api"]

T = TypeVar("T")
PATHS = ("/api/text", "/api/text/words.html", "/api/text/words.png")
_BYTES = 16 * CHARACTERS  # two texts, with letters that take several bytes each
_QUESTION: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "the text and what is asked about it",
        "content": {"application/json": {"schema": TextQuestion.model_json_schema()}},
    }
}
NONE = "No network that reads texts is served. Start the page with one: deeptaylor serve --model hf:FOLDER."
LONG = f"The text is too long: at most {CHARACTERS:,} characters are taken."


def add_text_api(
    app: FastAPI,
    texts: Texts | None,
    jobs: Jobs,
    read: Callable[..., Awaitable[None]],
    gone: Callable[[Request], Awaitable[None]],
) -> None:
    """Add what answers questions about texts; without a network they are refused in words."""

    async def answered(request: Request, then: Callable[[Texts, TextQuestion], T]) -> T:
        async with AsyncExitStack() as place:
            if texts is None:
                raise InputError(NONE)
            asked = await _question(request, partial(read, place=place))
            return await jobs.run(lambda: then(texts, asked), lambda: gone(request))

    @app.post(PATHS[0], openapi_extra=_QUESTION)
    async def text(request: Request) -> TextAnswer:
        """Explain a text."""
        return await answered(request, Texts.answer)

    @app.post(PATHS[1], openapi_extra=_QUESTION, response_class=_Page)
    async def page(request: Request) -> Response:
        """The coloured words as a page of their own."""
        return _Page(await answered(request, Texts.page))

    @app.post(PATHS[2], openapi_extra=_QUESTION, response_class=Png)
    async def picture(request: Request) -> Response:
        """The coloured words as a picture."""
        return Png(await answered(request, Texts.picture))


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
