"""Σ R = f(x) − f(reference), with the network's own scores: on the zoo, on random graphs, on transformers by hand."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from random_networks import build

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
FAST = ("resnet", "vit", "bert", "roberta")
SLOW = (
    "swin", "convnextv2",
    "resnet_basic", "regnet", "convnext", "mobilenet_v1", "mobilenet_v2", "efficientnet", "bit", "poolformer",
    "focalnet", "vit_eager", "deit", "beit", "dinov2", "dinov2_swiglu", "swinv2", "levit", "cvt", "pvt", "segformer",
    "mobilevit", "bert_eager", "distilbert", "electra", "albert",
)  # fmt: skip
NARROW = ("vit_eager", "levit")  # have a softmax or a bias in float32 also where all else is float64
VISION = (
    "alexnet", "vgg11", "vgg16_bn", "googlenet", "inception_v3", "resnet18", "resnet50", "resnext50", "wide_resnet50",
    "densenet121", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5",
    "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf", "convnext_tiny", "vit_b_16", "swin_t", "maxvit_t",
)  # fmt: skip


def holds(explainer: dt.Explainer, model: nn.Module, x: Tensor, x0: Tensor, bound: float) -> dt.Between:
    """Relative to the largest of both scores and of what was shared out."""
    b = explainer.between(x, x0)
    with torch.no_grad():
        y, y0 = model(x), model(x0)
    k = y.argmax(1, keepdim=True)
    f, f0 = y.gather(1, k)[:, 0], y0.gather(1, k)[:, 0]
    held, size = b.relevance.flatten(1).sum(1), b.relevance.flatten(1).abs().sum(1)
    largest = torch.stack([f.abs(), f0.abs(), size]).amax(0)
    assert bool(((held - (f - f0)).abs() <= bound * largest).all()), (held, f - f0, size)
    assert float(b.ledger.gap.max()) <= bound
    return b


def other(x: Tensor) -> Tensor:
    """Another input like x."""
    draw = torch.Generator().manual_seed(5)
    return (
        torch.randn(x.shape, generator=draw).to(x)
        if x.is_floating_point()
        else torch.randint(3, 50, x.shape, generator=draw)
    )


def family(module: str, name: str) -> Any:
    if find_spec("torchvision") is not None:
        importlib.import_module("torchvision_shim")  # one whose compiled operators do not load stops transformers, too
    pytest.importorskip("transformers" if module == "hf_zoo" else "torchvision")
    return importlib.import_module(module).family(name, seed=0)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_families_of_transformers(name: str) -> None:
    net = family("hf_zoo", name)
    explainer = dt.Explainer(net.model, net.x)
    b = holds(explainer, net.model, net.x, other(net.x), 1e-6)
    assert b.relevance.shape == net.x.shape
    model, x = net.model.double(), net.x.double() if net.x.is_floating_point() else net.x
    explainer = dt.Explainer(model, x)
    narrow = explainer.captured.engine.captured.lowest_precision[0] == torch.float32
    assert narrow == (name in NARROW)
    holds(explainer, model, x, other(x), 1e-6 if narrow else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_families_of_the_zoo(name: str) -> None:
    net = family("zoo", name)
    explainer = dt.Explainer(net.model, net.x)
    holds(explainer, net.model, net.x, other(net.x), 1e-5)
    assert float(explainer.double().between(net.x.double(), "blur").ledger.gap.max()) <= 1e-12


SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed: int) -> None:
    net = build(seed)
    x = net.example
    torch.manual_seed(seed)
    holds(dt.Explainer(net.model), net.model, x, x[torch.randperm(2)] * torch.rand_like(x), 1e-12)


# --- transformers by hand ---------------------------------------------------------------------------------------------


class Llama(nn.Module):
    """Rotary positions, grouped queries, RMSNorm by hand, SwiGLU, a causal mask: the next token."""

    def __init__(self, vocabulary: int = 40, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, width // heads
        self.embed = nn.Embedding(vocabulary, width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, groups * self.each, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 32, bias=False) for _ in range(2))
        self.down, self.head = nn.Linear(32, width, bias=False), nn.Linear(width, vocabulary, bias=False)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def norm(self, x: Tensor) -> Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def turned(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2]).unsqueeze(1) / 10.0 ** torch.arange(self.each // 2)
        cos, sin = (t.repeat(1, 2).to(x.dtype) for t in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        h = self.norm(x)
        q, k, v = (t.unflatten(-1, (-1, self.each)).transpose(1, 2) for t in (self.q(h), self.k(h), self.v(h)))
        mixed = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.norm(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return self.head(self.norm(x)[:, -1])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_a_language_model(dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(0)
    net = Llama().to(dtype)
    ids, ids0 = torch.randint(0, 40, (2, 2, 7))
    b = holds(dt.Explainer(net), net, ids, ids0, bound)
    assert b.relevance.shape == (2, 7)
    same = ids == ids0
    assert not b.relevance[same].any()


class Chosen(nn.Module):
    """Choices that differ between the points: masks, the larger of two, signs, a mask as a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        chosen = torch.where((a > b) & ~(a < 0.1), a * b, torch.exp(-a))
        chosen = chosen.masked_fill(b.abs() < 0.2, 0.5) + torch.maximum(a, b) - torch.minimum(a.sin(), b)
        return self.out(chosen * (a >= 0).to(a.dtype))


def test_choices_that_differ() -> None:
    torch.manual_seed(0)
    net = Chosen().double()
    x, x0 = torch.randn(2, 20, 6, dtype=torch.float64)
    a, b, a0, b0 = net.a(x), net.b(x), net.a(x0), net.b(x0)
    assert bool(((a > b) != (a0 > b0)).any())
    holds(dt.Explainer(net), net, x, x0, 1e-12)


class Similar(nn.Module):
    """The cosine of two texts, each the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(30, 8), nn.Linear(8, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (torch.tanh(self.layer(self.embed(t))).mean(1) for t in (a, b))
        return F.normalize(a, dim=-1).mul(F.normalize(b, dim=-1)).sum(-1)


def test_similarity_of_two_inputs() -> None:
    torch.manual_seed(0)
    net = Similar().double()
    a, b, a0, b0 = torch.randint(0, 30, (4, 3, 5))
    found = dt.Explainer(net).between((a, b), (a0, b0))
    held = sum(R.sum(1) for R in found.relevance)
    torch.testing.assert_close(held, (net(a, b) - net(a0, b0)).detach(), rtol=1e-12, atol=1e-12)
    one = dt.Explainer(net).between((a, b), (a0, None))
    assert not one.relevance[1].any()
    torch.testing.assert_close(one.relevance[0].sum(1), (net(a, b) - net(a0, b)).detach(), rtol=1e-12, atol=1e-12)


class Recurrent(nn.Module):
    """The last state of a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase], **how: Any) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, **how)
        self.out = nn.Linear(8 if how.get("bidirectional") else 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0].sum(1))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (nn.LSTM, {}),
        pytest.param(nn.LSTM, {"num_layers": 2, "bidirectional": True}, marks=pytest.mark.slow),
        (nn.GRU, {}),
        pytest.param(nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}, marks=pytest.mark.slow),
        (nn.RNN, {}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers(kind: type[nn.RNNBase], how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = Recurrent(kind, **how).double()
    x, x0 = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    holds(dt.Explainer(net), net, x, x0, 1e-13)
