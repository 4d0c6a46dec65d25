"""The page in a real Chromium: opened, given a picture, looked at.

Skipped where there is no Chromium (`make browser` installs Debian's where apt is there). Set DEEPTAYLOR_SCREENSHOTS to
a folder to keep a picture of every state.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SHOWN = "canvas.shown"
WEB = Path(__file__).parents[2] / "web"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"


class Small(nn.Module):
    """Pictures (batch, 3, 24, 24) to six classes, with biases that take more than half of the score."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 6)
        nn.init.constant_(self.conv1.bias, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return torch.abs(self.fc.weight.sum()) + self.fc(h.mean((2, 3)))


def photo() -> bytes:
    """A picture with a bright disc, left of the middle."""
    y, x = np.mgrid[:48, :64]
    disc = ((x - 24) ** 2 + (y - 24) ** 2 < 150).astype(np.float64)
    picture = np.stack([40 + 200 * disc, 60 + 100 * disc, 90 + 2.0 * x], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A Chromium; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def run_node(*words: str, needs: str = "onnxruntime-web") -> str:
    """What a program prints in web/; the test is skipped where node or one of its packages is missing."""
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules" / needs).is_dir():
        pytest.skip("this page is built with node: `npm ci` in web/ installs what it needs")
    return subprocess.run([node, *words], cwd=WEB, check=True, capture_output=True, text=True).stdout


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server that hands out the files of a folder and nothing else."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def opened(chromium: Any, address: str, ready: str = "Ready.", tour: bool = False, **context: Any) -> Iterator[Any]:
    """The page in a window of its own; an error in its console fails the test. `tour`: as on the first visit."""
    window = chromium.new_context(**{"viewport": DESK, **context})
    if not tour:
        window.add_init_script("localStorage.setItem('deeptaylor-tour', 'shown')")
    page, errors = window.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(20_000)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.get_by_text(ready, exact=True).wait_for()
    yield page
    window.close()
    assert [error for error in errors if "status of 4" not in error] == []


def upload(page: Any, name: str = "photo.png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": photo()})
    page.locator("#file-name").get_by_text(name, exact=True).wait_for()
    settled(page)


def settled(page: Any, panes: int = 1) -> None:
    """Wait until nothing is being explained and so many explanations are shown."""
    page.wait_for_selector(f"#stage:not([aria-busy]) .pane:nth-child({panes}):not([hidden])")


def refused(page: Any) -> str:
    """What is said where a question cannot be answered."""
    page.wait_for_selector("#stage:not([aria-busy]) #refusal:not([hidden])")
    said: str = page.inner_text("#refusal")
    return said


def ask(page: Any, field: str, words: str) -> None:
    """Type the name of a class into #class-name or #against and press Enter."""
    page.fill(field, words)
    page.press(field, "Enter")


def in_view(page: Any, selector: str = SHOWN) -> None:
    """All of it is on the screen, without scrolling."""
    box, size = page.locator(selector).first.bounding_box(), page.viewport_size
    assert box["y"] >= 0, box
    assert box["y"] + box["height"] <= size["height"], (box, size)
    assert box["x"] >= 0, box
    assert box["x"] + box["width"] <= size["width"], (box, size)


def violations(page: Any) -> list[str]:
    """What axe-core finds wrong for those who use the page by other means than eyes and a pointer."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: `npm ci` in web/ installs it")
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(AXE.read_text("utf-8") + "; true")
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [f"{v['id']}: {v['help']}: {n['html'][:200]}" for v in found for n in v["nodes"]]


def shoot(page: Any, name: str) -> None:
    if folder := os.environ.get("DEEPTAYLOR_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def pixels(page: Any, selector: str) -> np.ndarray[Any, Any]:
    flat, width = page.eval_on_selector(
        selector, "c => [[...c.getContext('2d').getImageData(0, 0, c.width, c.height).data], c.width]"
    )
    return np.array(flat, dtype=np.int64).reshape(-1, width, 4)[..., :3]


def explanation(own: dt.Pretrained, target: int | None = None, bias: str = "returned") -> dt.Explanation:
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    return dt.Explainer(own.network, x, domain=own.domain, bias=bias).explain(x, target)
