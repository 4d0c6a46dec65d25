"""The server as a process of its own: many requests at once, callers who leave, and questions made by a machine."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from live_server import Live, digits, heat, running


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running() as started:
        started.load("two-layer")
        yield started


def test_it_prints_its_address_and_stops_when_interrupted() -> None:
    with running("--model", "two-layer") as started:
        assert started.ask("/api/models")[1]["chosen"] == "two-layer"
        port = started.host.split(":")[1]
        address = next(a for a in listening(started.process.pid) if a.endswith(f":{int(port):04X}"))
        assert address.startswith("0100007F:"), "it listens on 127.0.0.1 only"
        started.process.send_signal(signal.SIGINT)
        assert started.process.wait(timeout=20) == 0


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on, as Linux writes them."""
    if not Path("/proc/net/tcp").exists():
        pytest.skip("no /proc here")
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return [line.split()[1] for line in lines if line.split()[3] == "0A"]


def test_a_caller_who_leaves_frees_its_place(live: Live) -> None:
    host, port = live.host.split(":")
    head = (
        f"POST /api/explain?model=two-layer HTTP/1.1\r\nHost: {live.host}\r\nX-Deeptaylor-Token: {live.token}\r\n"
        "Content-Length: 1000000\r\n\r\n"
    ).encode()
    held = []
    for _ in range(32):  # every place: half a request each
        s = socket.create_connection((host, int(port)))
        s.sendall(head + bytes(500_000))
        held.append(s)
    for _ in range(100):
        status, answer = live.ask("/api/explain", digits(0), model="two-layer")
        if status == 429:
            break
        time.sleep(0.05)
    assert (status, "try again" in answer["error"]) == (429, True)
    for s in held:
        s.close()
    for _ in range(100):
        status, answer = live.ask("/api/explain", digits(0), model="two-layer")
        if status == 200:
            break
        time.sleep(0.05)
    assert status == 200


DROPPED = "file=a.onnx&size=8&resize=8&channels=RGB&white=1&mean=0&std=1&interpolation=bilinear&names=none"


@pytest.mark.parametrize("path", ["/api/explain?model=two-layer", f"/api/networks?{DROPPED}"])
def test_two_hundred_slow_uploads_hold_up_nobody(live: Live, path: str) -> None:
    host, port = live.host.split(":")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {live.host}\r\nX-Deeptaylor-Token: {live.token}\r\n"
        "Content-Length: 100000\r\n\r\n"
    ).encode()
    assert live.ask("/api/explain", digits(0), model="two-layer")[0] == 200  # captured
    held = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        for _ in range(3):
            for s in held:
                with contextlib.suppress(OSError):
                    s.sendall(head or b"x")
            head = b""
            began = time.perf_counter()
            status, _answer = live.ask("/api/explain", digits(0), model="two-layer")
            assert (status, time.perf_counter() - began < 2) == (200, True)
            time.sleep(0.2)
    finally:
        for s in held:
            s.close()


def test_a_large_body_sent_to_a_refusal_still_gets_its_words(live: Live) -> None:
    for size, model, wanted in ((11, "nothing", 404), (13, "two-layer", 413), (40, "two-layer", 413)):
        status, answer = live.ask("/api/explain", bytes(size * 2**20), model=model)
        assert status == wanted
        assert answer["error"]


@pytest.mark.slow
def test_two_hundred_at_once(live: Live) -> None:
    """Every answer is right and belongs to its own request; past the queue 429; memory stays bounded."""
    count, network = 200, dt.load("two-layer")
    biases = ("neuron", "spread")
    explainers: dict[str, dt.Explainer] = {}
    wanted = []
    for k in range(count):
        x, _ = network.preprocess(Image.open(io.BytesIO(digits(k))))
        bias = biases[k % 2]
        if bias not in explainers:
            explainers[bias] = dt.Explainer(network.network, x, domain=network.domain, bias=bias)
        e = explainers[bias].explain(x)
        wanted.append((float(e.score[0]), e.heatmap()[0].numpy()))
    assert len({round(score, 3) for score, _ in wanted}) > 190, "answers must differ to be told apart"
    for bias in biases:
        live.ask("/api/explain", digits(0), model="two-layer", bias=bias)
    before, most, stop, busy = live.memory(), 0, threading.Event(), [0]
    lock, began = threading.Lock(), time.perf_counter()

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.02):
            most = max(most, live.memory())

    together = threading.Barrier(count)

    def one(k: int) -> dict[str, Any]:
        together.wait(60)
        while True:
            status, answer = live.ask(
                "/api/explain", digits(k), model="two-layer", bias=biases[k % 2], file=f"file-{k}.png"
            )
            if status == 200:
                return answer  # type: ignore[no-any-return]
            assert status == 429, answer
            with lock:
                busy[0] += 1
            time.sleep(0.1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(one, range(count)))
    seconds = time.perf_counter() - began
    stop.set()
    watcher.join()
    for k, answer in enumerate(answers):
        score, map_ = wanted[k]
        assert answer["score"] == pytest.approx(score, rel=1e-5)
        assert np.allclose(heat(answer), map_, rtol=1e-4, atol=1e-6)
        assert f"'file-{k}.png'" in answer["snippet"]
    assert busy[0] > 0, "two hundred at once do not fit into the queue"
    print(
        f"\n200 at once: {seconds:.1f} s, {count / seconds:.0f} a second, {busy[0]} answers of 429; memory "
        f"{before / 2**20:.0f} MiB before, {most / 2**20:.0f} at most, {live.memory() / 2**20:.0f} after"
    )
    assert most - before < 200 * 2**20


@pytest.mark.slow
def test_large_uploads_at_once_are_bounded_in_memory(live: Live) -> None:
    """A hundred pictures of ten million pixels: those in the queue are held as files, and one is decoded at a time."""
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (2240, 4480), dtype=np.uint8)
    Image.fromarray(noise).save(file, "PNG", compress_level=1)
    data = file.getvalue()
    assert 9 * 2**20 < len(data) < 12 * 2**20
    assert live.ask("/api/explain", data, model="two-layer")[0] == 200  # the network is there now
    before, most, stop = live.memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not stop.wait(0.02):
            most = max(most, live.memory())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with ThreadPoolExecutor(100) as pool:
        found = list(pool.map(lambda _: live.ask("/api/explain", data, model="two-layer")[0], range(100)))
    stop.set()
    watcher.join()
    assert set(found) <= {200, 429}
    assert found.count(200) >= 32
    print(
        f"\n100 × {len(data) / 2**20:.0f} MiB: {found.count(200)} explained, {found.count(429)} of 429; "
        f"memory {before / 2**20:.0f} MiB before, {most / 2**20:.0f} at most"
    )
    assert most - before < 60 * len(data)  # the 32 places, as they grow, and one picture being decoded


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["a known network", "any words"])
def test_questions_made_by_a_machine(live: Live, tmp_path: Path, known: bool) -> None:
    """Schemathesis: what the schema allows is answered as it says, what it forbids is refused, nothing breaks."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    # Half of the questions are about a network that is there, so that they reach the bottom.
    given = '[parameters]\n"query.model" = "two-layer"\n"path.node" = "linear_1"\n"path.name" = "two-layer"\n'
    (tmp_path / "schemathesis.toml").write_text(given if known else "")
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run",
        f"http://{live.host}/api/openapi.json",
        "--header",
        f"x-deeptaylor-token: {live.token}",
        "--max-examples",
        os.environ.get("DEEPTAYLOR_EXAMPLES", "60"),
        "--checks",
        "all",
        "--exclude-checks",
        "positive_data_acceptance",  # no schema says which bytes are a picture, or which classes a network has
        "--workers",
        "1",
        "--generation-database",
        "none",
        "--no-color",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
