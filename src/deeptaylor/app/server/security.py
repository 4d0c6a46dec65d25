"""Who may talk to the page: this machine's own browser window that was opened with the token.

    Host          must be ours: a foreign name that was made to point to 127.0.0.1 (DNS rebinding) is refused
    Origin        must be ours where a browser sends one, and so must Sec-Fetch-Site: other web sites are refused,
                  but for a link to the page that is followed, as from the file that `main.py` writes
    token         new at every start, in a header that a foreign page cannot set; all of /api/ needs it
    body          counted while it streams in; past the limit of its path it is refused, whatever Content-Length said

The page's own files hold no secret and need no token: the token is in the part of the address after #, which a browser
never sends. Every answer carries a Content-Security-Policy that allows the page its own files and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["TOKEN_HEADER", "BodyTooLargeError", "Guard", "hide_folders"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

TOKEN_HEADER = "x-deeptaylor-token"  # noqa: S105  # the header's name, not the token
_DRAIN_SECONDS = 5.0

_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class BodyTooLargeError(Exception):
    """The body is larger than allowed; for the application to answer with 413."""

    @classmethod
    def of(cls, what: str, most_bytes: int) -> BodyTooLargeError:
        """In words."""
        return cls(f"the {what} is too large: at most {most_bytes / 2**20:g} MiB are accepted.")


@dataclass(frozen=True)
class Guard:
    """An ASGI application in front of another one."""

    app: App
    hosts: frozenset[str]  # such as 127.0.0.1:8000
    token: str
    most_bytes: int
    others: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # paths with another limit, and what it is of

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Refuse, or pass on with a counted body and with our headers on the answer."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the page speaks HTTP only, not {scope['type']}")

        most, what = self.others.get(scope["path"], (self.most_bytes, "picture"))
        body, begun = _Body(receive, most, what), False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if message["status"] >= 400:
                    await body.drain()
                own = [(k, v) for k, v in message.get("headers", []) if k.decode("latin-1").lower() not in HEADERS]
                message["headers"] = own + [(k.encode(), v.encode()) for k, v in HEADERS.items()]
            await send(message)

        headers = _headers(scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            body.ended = True  # a stranger's is not worth reading
            await _answer(guarded, *refused)
            return
        length = headers.get("content-length", ["0"])[0]
        if length.isascii() and length.isdigit() and int(length) > most:
            await _answer(guarded, 413, str(BodyTooLargeError.of(what, most)))
            return
        try:
            await self.app(scope, body, guarded)
        except asyncio.CancelledError:  # the server ends, and this request has had its grace
            if not begun:
                body.ended = True
                await _answer(guarded, 503, "the page's server was stopped.")

    def _refused(self, scope: MutableMapping[str, Any], headers: dict[str, list[str]]) -> tuple[int, str] | None:
        """Status and words for a request that is not ours."""
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self.hosts:
            return 403, "this address is not the page's own; open the one that the command printed."
        origins = {f"http://{name}" for name in self.hosts}
        if any(origin.lower() not in origins for origin in headers.get("origin", [])):
            return 403, "requests from other web sites are rejected."
        foreign = any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", []))
        if foreign and not _opens_the_page(scope, headers):
            return 403, "requests from other web sites are rejected."
        if scope["path"].startswith("/api/"):
            given = headers.get(TOKEN_HEADER, [])
            if len(given) != 1 or not hmac.compare_digest(given[0].encode("latin-1"), self.token.encode("latin-1")):
                return 401, "the token is missing or old; open the address that the command printed last."
        return None


class _Body:
    """The body of a request as it streams in, counted."""

    def __init__(self, receive: Receive, most_bytes: int, what: str) -> None:
        self._receive, self._most, self._what, self._seen = receive, most_bytes, what, 0
        self.ended = False

    async def __call__(self) -> Message:
        """The next piece, or BodyTooLargeError."""
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        self.ended = self.ended or not message.get("more_body", False)
        if self._seen > self._most:
            raise BodyTooLargeError.of(self._what, self._most)
        return message

    async def drain(self) -> None:
        """Read on for a while: a browser that is still sending would not see an answer. Nothing of it is kept."""
        left = 4 * self._most
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while left > 0 and not self.ended:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.ended = not message.get("more_body", False)


def _headers(scope: MutableMapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _opens_the_page(scope: MutableMapping[str, Any], headers: dict[str, list[str]]) -> bool:
    """A window that goes to the page: nobody but that window reads the answer, and it may be in no frame."""
    goes = headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
    return goes and scope["method"] in ("GET", "HEAD") and scope["path"] == "/"


async def _answer(send: Send, status: int, words: str) -> None:
    body = json.dumps({"error": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- texts without this machine's folders -----------------------------------------------------------------------------

_PLACE = re.compile(r"""(?<![\w:/\\.~])(?:[A-Za-z]:)?(?:[\\/][^\\/\s:'"(),]+)+[\\/]([^\\/\s:'"(),]+)""")


def hide_folders(text: str) -> str:
    """The same with the name alone of every file that is said with its folder.

    >>> hide_folders("no rule for cumsum; at cumsum (/home/jo/nets/mine.py:12: y = x.cumsum(1))")
    'no rule for cumsum; at cumsum (mine.py:12: y = x.cumsum(1))'
    """
    # Those that may have spaces in them, where a pattern would not know their end.
    known = {*sys.path, sys.prefix, os.environ.get("HOME", ""), str(Path.cwd())}
    for folder in sorted(known, key=len, reverse=True):
        if Path(folder).is_absolute() and folder != os.sep:
            text = text.replace(f"{folder}{os.sep}", "")
    return _PLACE.sub(r"\1", text)
