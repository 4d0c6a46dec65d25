"""An explainer exported to ONNX says what the explainer says: ten architectures, and what is refused."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.networks import googlenet, squeezenet1_1
from deeptaylor.models.networks.paper_networks import TwoLayer
from deeptaylor.models.onnx import exporter
from deeptaylor.models.onnx.exporter import ExportError, export_explainer
from deeptaylor.support.optional import how_to_install

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))


class Residual(nn.Module):
    """Convolutions, BatchNorm, a residual sum, a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.two, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 5)
        nn.init.uniform_(self.norm.running_mean, -0.2, 0.2)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.one(x)).relu()
        h = torch.cat([h, (self.two(h) + h).relu()], 1)
        return self.last(h.mean((2, 3)))


class Tokens(nn.Module):
    """Patches, a class token, LayerNorm, tokens mixed, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 8, 4, stride=4), nn.Parameter(torch.randn(1, 1, 8))
        self.norm, self.mix, self.last = nn.LayerNorm(8), nn.Linear(5, 5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), h], 1)
        h = h + self.mix(self.norm(h).transpose(1, 2)).transpose(1, 2)
        return self.last(nn.functional.gelu(h)[:, 0])


def family(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import hf_zoo

        network: nn.Module = hf_zoo.family(name, seed=0).model
        return network

    return build


FAST: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (3, 8, 8)),
    "tokens": (Tokens, (3, 8, 8)),
}
TEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two-layer": (TwoLayer, (1, 28, 56)),
    "squeezenet": (squeezenet1_1, (3, 64, 64)),
    "googlenet": (googlenet, (3, 224, 224)),
    **{
        name: (family(name), (3, size, size))
        for name, size in {
            "resnet": 32, "regnet": 32, "convnext": 64, "efficientnet": 64, "mobilenet_v1": 64, "vit": 32, "swin": 32,
        }.items()
    },
}  # fmt: skip


def agrees(build: Callable[[], nn.Module], shape: tuple[int, ...], bias: str, target: str, path: Path) -> None:
    """Exported, then run on inputs that the export never saw."""
    torch.manual_seed(0)
    network = build().eval()
    low, high = (-0.5, 1.5) if shape[0] == 1 else (-1.0, 1.0)
    explainer = dt.Explainer(network, torch.zeros(1, *shape), dt.Box(low, high), bias=bias)
    done = export_explainer(explainer, torch.zeros(1, *shape), path, target=target)  # type: ignore[arg-type]
    assert max(done.score_gap, done.relevance_gap) <= 1e-4
    assert done.empty < done.samples
    session = runtime.InferenceSession(path.read_bytes())
    for batch in (1, 4):
        x = low + (high - low) * torch.rand(batch, *shape, generator=torch.Generator().manual_seed(batch + 100))
        top = network(x).argmax(1).detach() if target == "input" else None
        feed = {"x": x.numpy()} | ({} if top is None else {"target": top.numpy()})
        score, relevance = session.run(["score", "relevance"], feed)
        e = explainer.explain(x, top)
        assert (e.score > 0).any(), "empty maps agree with anything"
        assert np.abs(score - e.score.numpy()).max() <= 1e-4 * np.abs(e.score.numpy()).max()
        for ours, theirs in zip(relevance, e.numpy(), strict=True):
            assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("name", "bias", "target"),
    [("residual", "spread", "top"), pytest.param("tokens", "neuron", "input", marks=pytest.mark.slow)],
)
def test_two_architectures(name: str, bias: str, target: str, tmp_path: Path) -> None:
    agrees(*FAST[name], bias, target, tmp_path / "e.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", TEN)
def test_ten_architectures(name: str, tmp_path: Path) -> None:
    if name not in ("two-layer", "squeezenet", "googlenet"):
        pytest.importorskip("transformers")
    agrees(*TEN[name], "neuron", "top", tmp_path / "e.onnx")


def small(bias: float = 1.0) -> tuple[dt.Explainer, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    nn.init.constant_(network[2].bias, bias)
    x = torch.rand(1, 4)
    return dt.Explainer(network, x, dt.Box(0, 1), bias="neuron"), x


def test_a_difference_is_noticed_and_nothing_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    explainer, x = small()
    honest = exporter.open_session

    def lying(data: bytes) -> object:
        session = honest(data)

        class Session:
            def run(self, names: list[str], feed: object) -> list[object]:
                score, relevance = session.run(names, feed)
                return [score, relevance * 1.001]

        return Session()

    monkeypatch.setattr(exporter, "open_session", lying)
    with pytest.raises(ExportError, match=r"differs from the explainer by \S+ of the score and 1.0e-03 of the largest"):
        export_explainer(explainer, x, tmp_path / "e.onnx")
    assert list(tmp_path.iterdir()) == []


def test_not_a_number_is_no_agreement() -> None:
    x = torch.ones(2)
    assert not exporter.measure_gap(x * torch.nan, x, x.max()) <= 1
    assert exporter.measure_gap(x[:1], x, x.max()) == float("inf")


def test_where_no_score_is_positive_there_is_nothing_to_compare(tmp_path: Path) -> None:
    explainer, x = small(bias=-100.0)
    with pytest.raises(ExportError, match="has a positive score, so there is no relevance to compare"):
        export_explainer(explainer, x, tmp_path / "e.onnx")


def test_no_classes_to_ask_for(tmp_path: Path) -> None:
    explainer = dt.Explainer(
        nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).eval(), torch.rand(1, 4), dt.Box(0, 1), bias="neuron"
    )
    with pytest.raises(dt.InputError, match="there are no classes to ask for"):
        export_explainer(explainer, torch.rand(1, 4), tmp_path / "e.onnx", target="input")


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    explainer, x = small()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(dt.DeepTaylorError, match=re.escape(how_to_install("export"))):
        export_explainer(explainer, x, tmp_path / "e.onnx")


@pytest.mark.slow
def test_what_packages_say_about_each_other_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "torchvision" else found(n, *a))
    x = torch.rand(2, 4)
    export_explainer(dt.Explainer(nn.Linear(4, 3), x, bias="neuron"), x, tmp_path / "e.onnx")
    assert "torchvision" not in capfd.readouterr().err
    assert logging.getLogger("torch.onnx").level != logging.ERROR
