"""A small network of one's own, and a client of the page's server that has it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

import deeptaylor as dt
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import make_app
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, Small


@pytest.fixture(scope="module")
def own() -> dt.Pretrained:
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    names = ("one", "two", "<script>", "four")
    return dt.load(Small().eval(), preparation=preparation, class_names=names)


@pytest.fixture(scope="module")
def client(own: dt.Pretrained) -> Iterator[TestClient]:
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(own), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        assert made.post("/api/models/two-layer/load").json()["state"] in ("loading", "ready")
        for _ in range(600):
            state = made.get("/api/models/two-layer").json()
            if state["state"] != "loading":
                break
            time.sleep(0.05)
        assert state["state"] == "ready", state
        yield made
