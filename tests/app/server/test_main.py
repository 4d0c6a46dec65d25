"""`deeptaylor serve --model FILE`: a network of one's own, read as `deeptaylor explain` reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.app.server import main
from deeptaylor.support.optional import how_to_install
from page_client import Small
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
    assert "nothing is guessed" in said
    assert "--size 224 --resize 256" in said
    assert main.main(["--model", str(file), "--class-names", "none", "--domain", "real"]) == 2
    assert "say how they are prepared" in capsys.readouterr().err
    assert served == []


def test_without_the_command_a_file_cannot_be_read(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else real(name))
    monkeypatch.setitem(__import__("sys").modules, "typer", None)
    assert main.main(["--model", "mine.onnx"]) == 2
    assert how_to_install("cli") in capsys.readouterr().err
