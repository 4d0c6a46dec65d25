"""A server as a process of its own, and pictures for it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
# It ends with the tests, whatever happens to them: its standard input is then closed.
PROGRAM = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(3)), daemon=True).start()
from deeptaylor.app.server.main import main
raise SystemExit(main(sys.argv[1:]))
"""


class Live(NamedTuple):
    process: subprocess.Popen[str]
    host: str
    token: str

    def ask(self, path: str, body: bytes | None = None, **params: Any) -> tuple[int, Any]:
        """Status and answer of one request, on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        try:
            method = "GET" if body is None else "POST"
            address = f"{path}?{urlencode(params)}" if params else path
            connection.request(method, address, body, {"X-Deeptaylor-Token": self.token})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def load(self, name: str) -> None:
        self.ask(f"/api/models/{name}/load", b"")
        for _ in range(1200):
            if self.ask(f"/api/models/{name}")[1]["state"] != "loading":
                break
            time.sleep(0.05)
        assert self.ask(f"/api/models/{name}")[1]["state"] == "ready"

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def running(*arguments: str, before: str = "") -> Iterator[Live]:
    """A server of its own; ``before`` is what its process runs first."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", before + PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        said = re.match(r"The page is at http://(127\.0\.0\.1:\d+)/#token=(\S+)", line)
        assert said, line
        yield Live(process, said[1], said[2])
    finally:
        process.kill()
        process.communicate()


def digits(seed: int) -> bytes:
    picture = np.zeros((28, 56), dtype=np.uint8)
    generator = np.random.default_rng(seed)
    picture[4:24, 6:22] = generator.integers(0, 256, (20, 16))
    picture[4:24, 34:50] = generator.integers(0, 256, (20, 16))
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def heat(answer: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(answer["heat"]["values"]), "<f4").reshape(28, 56)
