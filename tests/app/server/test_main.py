"""`deeptaylor serve --model FILE`: a network of one's own, read as `deeptaylor explain` reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from torch import nn

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.app.server import main
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import make_app
from deeptaylor.support.optional import how_to_install
from page_client import HOST, ORIGIN, TOKEN, Small
from small_onnx import small_onnx

SAID = {"size": 24, "resize": 28, "channels": "RGB", "white": 1, "mean": 0.5, "std": 0.5, "interpolation": "bilinear"}
PREPARATION = [word for name, value in SAID.items() for word in (f"--{name}", str(value))]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be served: the network and its title."""
    found: list[Any] = []

    def serve(host: str, port: int, model: Any, open_browser: bool, title: str, run: str | None) -> None:
        found[:] = [model, title]

    monkeypatch.setattr(main, "serve", serve)
    return found


def test_a_network_by_name_is_loaded_by_the_page(served: list[Any]) -> None:
    assert main.main(["--model", "two-layer"]) == 0
    assert served == ["two-layer", ""]
    assert main.main([]) == 0
    assert served == [None, ""]


@pytest.mark.parametrize(
    ("here", "first"),
    [
        (("squeezenet1_1", "efficientnet-lite0"), "efficientnet-lite0"),
        (("resnet50-keras", "mobilenet_v2"), "mobilenet_v2"),
        (("squeezenet1_1",), "squeezenet1_1"),
        ((), "efficientnet-lite0"),  # fetched, as any of them would be
    ],
    ids=str,
)
def test_the_page_begins_with_a_network_whose_weights_are_here(
    monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], first: str
) -> None:
    monkeypatch.setattr(assets, "is_here", lambda name: name in here)
    assert first_of(make_app(frozenset({HOST}), TOKEN)) == first
    assert first_of(make_app(frozenset({HOST}), TOKEN, chosen="two-layer")) == "two-layer"


def first_of(app: Any) -> str:
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as client:
        found: str = client.get("/api/models").json()["chosen"]
    return found


def test_a_network_of_one_s_own_comes_first() -> None:
    said: dict[str, Any] = {**SAID, "size": 8, "resize": 8}
    own = dt.load(Small().eval(), preparation=dt.Preparation(**said), class_names=None)
    assert first_of(make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(own))) == OWN


def test_an_onnx_file(served: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "mine.onnx"
    file.write_bytes(small_onnx())
    assert main.main(["--model", str(file), "--class-names", "none", *PREPARATION]) == 0
    assert isinstance(served[0], dt.Pretrained)
    assert served[1] == "mine.onnx"
    assert served[0].output(torch.zeros(1, 3, 24, 24)).shape == (1, 4)


def small() -> nn.Module:
    return Small()


def test_weights_with_an_architecture(served: list[Any], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    file = tmp_path / "mine.safetensors"
    save_file(Small().state_dict(), file)
    words = ["--class-names", "none", "--architecture", f"{small.__module__}:small", *PREPARATION]
    words[words.index("24")], words[words.index("28")] = "8", "8"
    assert main.main(["--model", str(file), *words]) == 0
    assert torch.equal(served[0].network.fc.weight, Small().fc.weight)


def test_a_pickle_is_read_only_if_trusted(served: list[Any], tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.pt"
    torch.save(Small().eval(), file)
    words = ["--model", str(file), "--class-names", "none", *PREPARATION]
    words[words.index("24")], words[words.index("28")] = "8", "8"
    assert main.main(words) == 2
    assert "--trust" in capsys.readouterr().err
    assert main.main([*words, "--trust"]) == 0
    assert isinstance(served[0].network, Small)


def test_what_the_file_does_not_say_is_asked_for(served: list[Any], tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "mine.onnx"
    file.write_bytes(small_onnx())
    assert main.main(["--model", str(file)]) == 2
    said = capsys.readouterr().err
    assert "A wrong guess would go unnoticed" in said
    assert "--size 224 --resize 256" in said
    assert main.main(["--model", str(file), "--class-names", "none", "--domain", "real"]) == 2
    assert "give their preprocessing" in capsys.readouterr().err
    assert served == []


def test_without_the_command_a_file_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else real(name))
    monkeypatch.setitem(__import__("sys").modules, "typer", None)
    assert main.main(["--model", "mine.onnx"]) == 2
    assert how_to_install("cli") in capsys.readouterr().err
