"""A network that is dropped on the page: ONNX alone, with all that it does not say, and nothing left behind."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import deeptaylor as dt
from deeptaylor.app.server.models import OfferedNetworks, UploadedNetwork, UploadOptions
from deeptaylor.app.server.routes import Bounds, make_app
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, explain, png, values
from small_onnx import SAID, small_onnx, without_weights


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; it must be empty afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def open_page(bounds: Bounds) -> TestClient:
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(), bounds=bounds)
    return TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN})


@pytest.fixture
def client(temporary: Path) -> Iterator[TestClient]:
    with open_page(replace(BOUNDS, network=300_000)) as made:
        yield made
    assert list(temporary.glob("deeptaylor-*")) == []


def drop(client: TestClient, data: bytes, **said: str) -> dict[str, Any]:
    """The state of the network once it is loaded, or why it was not."""
    response = client.post("/api/networks", params=SAID | said, content=data)
    if response.status_code != 200:
        return {"status": response.status_code, **response.json()}
    state: dict[str, Any] = response.json()
    late = time.monotonic() + 30
    while state["state"] == "loading" and time.monotonic() < late:
        time.sleep(0.02)
        state = client.get(f"/api/models/{state['name']}").json()
    return state


def test_it_is_explained_as_the_library_does(client: TestClient, tmp_path: Path) -> None:
    state = drop(client, small_onnx())
    assert (state["state"], state["title"], state["name"]) == ("ready", "mine.onnx", "dropped-1")
    assert client.get("/api/models").json()["models"][0]["name"] == "dropped-1"
    found = explain(client, png(3, (40, 30)), model="dropped-1")
    file = tmp_path / "mine.onnx"
    file.write_bytes(small_onnx())
    numbers = (0.5, 0.5, 0.5)
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=numbers, std=numbers, interpolation="bilinear"
    )
    p = dt.load(file, preparation=preparation, class_names=None)
    x, _ = p.preprocess(Image.open(io.BytesIO(png(3, (40, 30)))))
    e = dt.Explainer(p.network, x, domain=p.domain).explain(x)
    assert np.allclose(values(found["heat"]), e.heatmap()[0].numpy(), rtol=1e-5)
    assert "p = dt.load(…)" in found["snippet"]


def test_a_further_one_takes_its_place(client: TestClient) -> None:
    drop(client, small_onnx())
    explain(client, png(3), model="dropped-1")
    assert drop(client, small_onnx(), file="other.ONNX")["name"] == "dropped-2"
    names = [model["name"] for model in client.get("/api/models").json()["models"]]
    assert [name for name in names if name.startswith("dropped")] == ["dropped-2"]
    assert client.post("/api/explain", params={"model": "dropped-1"}, content=png()).status_code == 404
    assert explain(client, png(3), model="dropped-2")["model"] == "dropped-2"


def test_classes_are_called_as_was_typed(client: TestClient) -> None:
    state = drop(client, small_onnx(), names="typed", typed="cat, dog , bird,fish")
    found = explain(client, png(3, (40, 30)), model=state["name"], target="fish")
    assert found["target_name"] == "fish"


@pytest.mark.parametrize(
    ("data", "said", "words"),
    [
        (b"nothing of the kind", {}, "mine.onnx"),
        (small_onnx()[:300], {}, "mine.onnx"),
        (small_onnx(), {"size": "32", "resize": "32"}, "takes samples of shape (3, 24, 24)"),
        (small_onnx(), {"names": "imagenet"}, "has 4 outputs, but there are 1000 class names"),
        (small_onnx(), {"names": "typed", "typed": "cat, dog"}, "has 4 outputs, but there are 2 class names"),
        (without_weights(), {}, "has its weights in a second file"),
    ],
    ids=["text", "cut", "size", "names", "typed names", "second file"],
)
def test_a_file_that_cannot_be_read_says_why(
    client: TestClient, temporary: Path, data: bytes, said: dict[str, str], words: str
) -> None:
    state = drop(client, data, **said)
    assert state["state"] == "failed"
    assert words in state["message"]
    assert str(temporary) not in state["message"]
    assert "network.onnx" not in state["message"]
    assert client.post(f"/api/models/{state['name']}/load").json()["message"] == state["message"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"file": "mine.pt"}, "mine.pt is not an ONNX file; the page accepts only ONNX files."),
        ({"size": "large"}, "size large: give a number of pixels"),
        ({"mean": "red"}, "mean red: give a number"),
        ({"mean": "123.7,116.3,103.5"}, "white is 1. Give white=255"),
        ({"channels": "GRB"}, "channels: "),
        ({"white": ""}, "white: "),
    ],
    ids=str,
)
def test_what_is_said_wrongly_is_refused_before_the_file_is_read(
    client: TestClient, said: dict[str, str], words: str
) -> None:
    found = drop(client, small_onnx(), **said)
    assert found["status"] == 422
    assert words in found["error"]


def test_all_of_it_must_be_said(client: TestClient) -> None:
    for name in SAID:
        params = {key: value for key, value in SAID.items() if key != name}
        assert client.post("/api/networks", params=params, content=small_onnx()).status_code == 422


def test_a_network_has_a_limit_of_its_own(client: TestClient) -> None:
    assert len(small_onnx()) < 300_000
    found = drop(client, bytes(300_001))
    assert found == {"status": 413, "error": f"the network is too large: at most {300_000 / 2**20:g} MiB are accepted."}

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(10_000)

    assert client.post("/api/networks", params=SAID, content=pieces()).status_code == 413
    picture = client.post("/api/explain", params={"model": "two-layer"}, content=bytes(BOUNDS.bytes + 1))
    assert "the picture is too large" in picture.json()["error"]


def test_no_other_file_can_be_asked_for(temporary: Path) -> None:
    """The file lies alone in a folder of its own, and both are gone once it was read."""
    file = UploadedNetwork(UploadOptions(**SAID))  # type: ignore[arg-type]  # as a query has it
    file.write(small_onnx())
    (folder,) = temporary.iterdir()
    assert [path.name for path in folder.iterdir()] == ["mine.onnx"]
    assert file.load().class_names is None
    assert list(temporary.iterdir()) == []
