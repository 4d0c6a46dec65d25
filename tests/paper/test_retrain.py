"""Retraining: equal runs give equal bytes, weights tell how they were made, two runs can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS, RELEVANCE_MODELS
from deeptaylor.paper import experiment, mnist
from deeptaylor.paper import relevance_training as train_model
from deeptaylor.paper import training as train_networks
from deeptaylor.paper.mnist_arrays import METHODS
from deeptaylor.support.tensor_files import read_notes
from digit_bars import digit_bars

pytest.importorskip("safetensors")
FILES = (*PAPER_NETWORKS, *RELEVANCE_MODELS)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (train_networks, train_model):
        monkeypatch.setattr(module, "load_digits", lambda folder: digit_bars(40))
    monkeypatch.setattr(train_networks, "_HELD_OUT", 20)


def test_equal_runs_give_equal_bytes_and_weights_tell_how_they_were_made(tmp_path: Path) -> None:
    a, b = (mnist.retrain(tmp_path / name, None, 3) for name in "ab")
    for name in FILES:
        file = f"{name}.safetensors"
        assert (a / file).read_bytes() == (b / file).read_bytes(), name
        assert (a / f"{name}.checkpoint").exists()
        notes = read_notes(a / file)
        assert notes["torch"] == torch.__version__
        assert (notes["device"], notes["seed"], notes["steps"]) == ("cpu", "0", "3")
        assert notes["commit"] == experiment.commit()
    trainings = [read_notes(a / f"{name}.safetensors") for name in RELEVANCE_MODELS]
    assert [(notes["training"], notes["begin"]) for notes in trainings] == [("plain", "random"), ("guided", "layer")]
    # A finished training is not begun again.
    before = {p: p.stat().st_mtime_ns for p in a.glob("*.checkpoint")}
    mnist.retrain(tmp_path / "a", None, 3)
    assert {p: p.stat().st_mtime_ns for p in a.glob("*.checkpoint")} == before


def test_no_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(mnist.MnistError, match="Training did not end well"):
        mnist.retrain(tmp_path, None, 3, "nowhere")
    assert "there is no device 'nowhere'" in capsys.readouterr().err


def test_the_commit_is_none_outside_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dt, "__file__", str(tmp_path / "__init__.py"))
    assert experiment.commit() == "none"


# --- two runs ---------------------------------------------------------------------------------------------------------


def numbers(mean: float, weights: str) -> dict[str, Any]:
    share = {"mean": mean, "low": mean - 0.01, "high": mean + 0.01}
    places = dict.fromkeys(("on_half", "on_ink", "coverage", "on_border"), share) | {"kept": 1.0}
    return {
        "weights": {"one-layer": "same", "two-layer": weights},
        "quality": {network: {"held_out": {"accuracy": 0.98}} for network in METHODS},
        "methods": {network: {m.key: places for m in methods} for network, methods in METHODS.items()},
        "min_max": {"r_squared": 0.97},
        "min_max_guided": {"r_squared": 0.98},
    }


def test_two_runs_are_compared(tmp_path: Path) -> None:
    lines = mnist.compare_numbers(numbers(0.5, "a"), numbers(0.515, "b"), tmp_path)
    assert lines[0] == "weights with the same bits: one-layer"
    assert "same   one-layer, Deep Taylor (zB): on_border: 0.5000 here, 0.5150 there" in lines
    assert lines[-1].startswith("60 of 60 intervals overlap")
    rows = json.loads((tmp_path / mnist.FILE).read_text())
    assert len(rows) == len(lines) - 2
    other = mnist.compare_numbers(numbers(0.5, "a"), numbers(0.6, "a"), tmp_path)
    assert "OTHER  one-layer, Deep Taylor (zB): on_border: 0.5000 here, 0.6000 there" in other
    assert other[-1].startswith("0 of 60 intervals overlap")


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mnist.CompareError, match="does not hold the numbers"):
        mnist.read_numbers(tmp_path)
    (tmp_path / "numbers.json").write_text("{}")
    with pytest.raises(mnist.CompareError, match="holds no numbers"):
        mnist.read_numbers(tmp_path / "numbers.json")
    (tmp_path / "numbers.json").write_text(json.dumps(numbers(0.5, "a")))
    assert mnist.read_numbers(tmp_path)["min_max"] == {"r_squared": 0.97}
