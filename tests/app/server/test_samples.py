"""Photographs to begin with: out of installed packages, fetched from nowhere."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from starlette.testclient import TestClient

from deeptaylor import assets
from deeptaylor.app.server.models import OfferedNetworks
from deeptaylor.app.server.routes import list_samples, make_app
from page_client import BOUNDS, HOST, ORIGIN, TOKEN


def test_every_sample_is_a_picture_with_a_credit(client: TestClient) -> None:
    offered = client.get("/api/models").json()["samples"]
    assert [sample["name"] for sample in offered] == [sample.name for sample in list_samples()]
    for sample in offered:
        assert sample["credit"]
        with Image.open(io.BytesIO(client.get(f"/api/samples/{sample['name']}").content)) as picture:
            assert min(picture.size) >= 200


def test_one_is_two_above_each_other() -> None:
    if not list_samples():
        pytest.skip("scikit-image is not installed")
    with Image.open(io.BytesIO(list_samples()[0].read())) as both:
        assert both.size == (448, 448)


def test_without_the_packages_none_is_offered_and_none_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "is_here", lambda _: False)
    monkeypatch.setattr(assets, "path", lambda name: pytest.fail(f"{name} would be fetched"))
    assert list_samples() == ()
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(), bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        assert made.get("/api/models").json()["samples"] == []
        assert made.get("/api/samples/cat").status_code == 404


def test_they_need_the_token(client: TestClient) -> None:
    assert client.get("/api/samples/cat", headers={"X-Deeptaylor-Token": "wrong"}).status_code == 401
