"""`deeptaylor fit`: a relevance model of one layer, its file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
from cli_model import said
from deeptaylor.app.cli import fit as module
from deeptaylor.app.cli import main

pytest.importorskip("safetensors")

NET = ["net.pth", "x.npy", "--architecture", "test_cli_fit:small_net", "--domain", "box:0,1", "--class-names", "none"]
WORDS = ["fit", *NET, "--layer", "1", "--target", "0", "--steps", "200"]


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).eval()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    torch.manual_seed(1)
    net = small_net()
    with torch.no_grad():
        for weight in net.parameters():
            weight.abs_() if weight.shape[0] == 2 else weight.add_(0.1)
    torch.save(net.state_dict(), "net.pth")
    np.save("x.npy", np.random.default_rng(0).random((300, 4), dtype=np.float32))


def test_a_model_is_fitted_judged_and_saved(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, *WORDS, "--out", "new")
    assert err == ""
    assert "On 60 held-out inputs, the model explains" in out
    assert "Correlation with the training-free maps" in out
    assert "Saved to new/1.safetensors" in out
    assert {p.name for p in Path("new").iterdir()} == {"1.safetensors", ".deeptaylor-files"}
    net = small_net()
    net.load_state_dict(torch.load("net.pth", weights_only=True))
    x = torch.from_numpy(np.load("x.npy")[:5])
    explainer = dt.Explainer(net, x[:2], dt.Box(0.0, 1.0))
    e = dt.relevance_models.load("new/1.safetensors", explainer, x).explain(x, 0)
    assert e.relevance.shape == (5, 4)
    assert (e.relevance >= 0).all()


def test_a_training_that_was_broken_off_goes_on_with_the_same_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, 0, *WORDS, "--out", "whole")
    fit = dt.relevance_models.fit

    def stopped(*given, **more):  # type: ignore[no-untyped-def]
        def tell(step: int, loss: float) -> None:
            if step > 100:
                raise KeyboardInterrupt

        return fit(*given, **{**more, "checkpoint_every": 20, "progress": tell})

    monkeypatch.setattr(module.dt.relevance_models, "fit", stopped)
    assert main([*WORDS, "--out", "part"]) == 130
    assert {p.name for p in Path("part").iterdir()} == {".1.checkpoint"}
    monkeypatch.setattr(module.dt.relevance_models, "fit", fit)
    capsys.readouterr()
    said(capsys, 0, *WORDS, "--out", "part")
    assert Path("part/1.safetensors").read_bytes() == Path("whole/1.safetensors").read_bytes()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, *WORDS, "--json", "--out", "o")
    found = json.loads(out)
    assert found["file"] == "o/1.safetensors"
    assert (found["inputs"], found["held_out"], found["exit_code"]) == (300, 60, 0)
    assert found["r_squared"] <= 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--layer", "0"], "'0' "),
        (["--layer", "3"], "needs exactly one layer with weights and a ReLU above '3'"),
        (["--begin", "there"], "--begin there: layer or random."),
    ],
)
def test_what_cannot_be_fitted_is_refused(capsys: pytest.CaptureFixture[str], change: list[str], text: str) -> None:
    _, err = said(capsys, 2, *WORDS, *change)
    assert text in err


def test_files_that_hold_no_inputs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.npy").write_bytes(b"junk")
    _, err = said(capsys, 2, *WORDS)
    assert "x.npy is neither an array of inputs" in err
    np.save("x.npy", np.zeros((4, 4), dtype=np.float32))
    _, err = said(capsys, 2, *WORDS)
    assert "must hold one array of inputs (N, …), at least 10 of them" in err
