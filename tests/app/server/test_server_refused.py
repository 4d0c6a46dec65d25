"""What is not for the page's server, it refuses in words."""

from __future__ import annotations

import logging.handlers
import zlib
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from deeptaylor.app.server import explanations
from deeptaylor.app.server.models import OWN
from page_client import BOUNDS, ORIGIN, TOKEN, explain, png


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1", "127.0.0.1:9000", ""])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/api/models"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code == 403
        assert "not the page's own" in response.json()["error"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9000"},
        {"Origin": "https://127.0.0.1:8000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_another_site_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    response = client.post("/api/explain", params={"model": OWN}, content=png(), headers=headers)
    assert response.status_code == 403
    assert response.json() == {"error": "requests from other web sites are rejected."}
    assert "access-control-allow-origin" not in response.headers


def test_the_page_itself_is_not_refused(client: TestClient) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
    assert client.get("/api/models", headers=headers).status_code == 200


def test_a_link_to_the_page_may_be_followed_and_nothing_else(client: TestClient) -> None:
    """As from the file that `--open` writes, or from a terminal inside a browser."""
    follows = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=follows).status_code == 200
    for change in ({"Sec-Fetch-Mode": "no-cors"}, {"Sec-Fetch-Dest": "iframe"}, {"Origin": "null"}):
        assert client.get("/", headers=follows | change).status_code == 403
    assert client.get("/page.js", headers=follows).status_code == 403
    assert client.get("/api/models", headers=follows).status_code == 403
    assert client.post("/", headers=follows).status_code == 403


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", "ä"])
def test_without_the_token_nothing_is_answered(client: TestClient, token: str) -> None:
    given = {"X-Deeptaylor-Token": token.encode("latin-1")}
    for path in ("/api/models", "/api/openapi.json", "/api/nothing"):
        assert client.get(path, headers=given).status_code == 401
    assert client.post("/api/explain", params={"model": OWN}, content=png(), headers=given).status_code == 401
    assert client.get("/", headers=given).status_code == 200


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for path, status in (("/", 200), ("/page.js", 200), ("/colors.css", 200), ("/api/models", 200), ("/nothing", 404)):
        response = client.get(path)
        assert response.status_code == status
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_too_large_is_refused_by_length_and_while_it_streams(client: TestClient) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 1
            yield bytes(10_000)

    for content in (bytes(BOUNDS.bytes + 1), chunks()):
        response = client.post("/api/explain", params={"model": OWN}, content=content)
        assert response.status_code == 413
        assert "too large" in response.json()["error"]
    assert sent > 0
    assert explain(client, png())["model"] == OWN  # the place was given back


def bomb(side: int = 20_000) -> bytes:
    """A PNG of few bytes that claims to be enormous."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (b"", "is empty."),
        (b"not a picture", "is not a picture that can be read"),
        (png()[:60], "is damaged or cut short: "),
        (bomb(), "is rejected before decoding: "),
        (bomb(1200), "is rejected before decoding: 1200 × 1200 pixels, at most 1 million are taken."),
        (b"P5\n99999 99999\n255\n", "is rejected before decoding: "),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not a picture that can be read"),
    ],
    ids=["empty", "text", "cut", "bomb", "large", "pgm", "postscript"],
)
def test_a_picture_that_is_none(client: TestClient, picture: bytes, said: str) -> None:
    for name, params in (("the picture", {}), ("a b.png", {"file": "a b.png"})):
        response = client.post("/api/explain", params={"model": OWN, **params}, content=picture)
        assert response.status_code == 415  # nothing that was asked for is wrong, the picture is
        error = response.json()["error"]
        assert error.startswith((f"{name} {said}", f"the picture {said}"))  # the name of a file must not reach Pillow


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/api/explain", {}, 422),
        ("/api/explain", {"model": "nothing"}, 404),
        ("/api/explain", {"model": "../../etc/passwd"}, 404),
        ("/api/explain", {"model": "one-layer"}, 409),
        ("/api/explain", {"model": OWN, "target": "-1"}, 422),
        ("/api/explain", {"model": OWN, "target": "4"}, 422),
        ("/api/explain", {"model": OWN, "bias": "both"}, 422),
        ("/api/explain", {"model": OWN, "unknown": "1"}, 422),
        ("/api/explain", {"model": OWN, "rules": "x" * 3000}, 422),
        ("/api/explain", {"model": OWN, "rules": "nothing=w2"}, 422),
        ("/api/layers/nothing", {"model": OWN}, 422),
        ("/api/models/nothing/load", {}, 404),
        ("/api/models/timm:resnet18/load", {}, 404),
        ("/api/nothing", {}, 404),
        ("/api/models", {}, 405),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_in_words(
    client: TestClient, path: str, params: dict[str, str], status: int
) -> None:
    response = client.post(path, params=params, content=png())
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert "Traceback" not in response.text


def test_an_unexpected_failure_has_no_stack_trace(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    logged = logging.handlers.BufferingHandler(capacity=100)
    monkeypatch.setattr(logging.getLogger("deeptaylor.app.server.routes"), "handlers", [logged])
    monkeypatch.setattr(explanations, "sensitivity", broken)
    quiet = TestClient(client.app, base_url=ORIGIN, headers=dict(client.headers), raise_server_exceptions=False)
    response = quiet.post("/api/explain", params={"model": OWN, "method": "sensitivity"}, content=png())
    assert response.status_code == 500
    assert "secret" not in response.text
    assert ["secret detail" in str(record.exc_info) for record in logged.buffer] == [True]


def test_only_known_files_are_handed_out(client: TestClient) -> None:
    for path in ("/../main.py", "/%2e%2e/main.py", "/static/page.js", "/sources.sha256", "/docs", "/redoc"):
        assert client.get(path).status_code == 404
