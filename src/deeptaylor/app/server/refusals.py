"""Words in place of stack traces, for everything that can go wrong with a request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deeptaylor.app.server.explaining import PictureError, RivalError
from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.jobs import BusyError, GoneError
from deeptaylor.app.server.models import NotReadyError, UnknownModelError
from deeptaylor.app.server.security import TooLargeError
from deeptaylor.errors import BoundaryError, DeepTaylorError

__all__ = ["add_errors"]

_log = logging.getLogger(__name__)


def add_errors(app: FastAPI) -> None:
    """Words in place of stack traces, always in the same shape."""

    def said(status: int, words: str | None = None, **headers: str) -> Callable[[Request, Any], Any]:
        async def answer(_: Request, error: Exception) -> Response:
            return JSONResponse({"error": words or without_folders(str(error))}, status, headers or None)

        return answer

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    async def rival(_: Request, error: Exception) -> Response:
        assert isinstance(error, RivalError)
        swap = {"target": error.target, "against": error.against}
        return JSONResponse({"error": str(error), "swap": swap}, 422)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        words = "; ".join(f"{'.'.join(map(str, e['loc'][1:]))}: {e['msg']}" for e in error.errors())
        return JSONResponse({"error": words}, 422)

    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        words = "something unexpected went wrong; the window of the command says what."
        return JSONResponse({"error": words}, 500)

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(DeepTaylorError, said(422))
    app.add_exception_handler(RivalError, rival)
    app.add_exception_handler(BoundaryError, said(422))
    app.add_exception_handler(PictureError, said(415))
    app.add_exception_handler(UnknownModelError, said(404))
    app.add_exception_handler(NotReadyError, said(409))
    app.add_exception_handler(TooLargeError, said(413))
    app.add_exception_handler(TimeoutError, said(408, "it did not arrive in time."))
    app.add_exception_handler(GoneError, said(499, "the caller left."))
    app.add_exception_handler(ClientDisconnect, said(499, "the caller left."))
    busy = "many explanations are waiting already; try again in a moment."
    app.add_exception_handler(BusyError, said(429, busy, **{"Retry-After": "1"}))
    app.add_exception_handler(Exception, unexpected)
