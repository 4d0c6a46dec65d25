"""A server, a Chromium, and the page open in it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import deeptaylor as dt
from browser import Small, launched, opened
from deeptaylor.app.server.main import serve


@pytest.fixture(scope="module")
def own() -> dt.Pretrained:
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear"
    )
    names = ("cat", "dog", "<b>bold</b>", "sun", "moon", "star")
    return dt.load(Small().eval(), preparation=preparation, class_names=names)


@pytest.fixture(scope="module")
def address(own: dt.Pretrained) -> str:
    """A server on a free port of 127.0.0.1, in a thread that ends with the tests."""
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve, kwargs={"model": own, "ready": told.put}, daemon=True).start()
    return told.get(timeout=30)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    with opened(chromium, address) as made:
        yield made
