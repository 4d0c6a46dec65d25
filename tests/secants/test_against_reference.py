"""Secants against dense matrices that go forwards, written by hand (reference_secants.py), in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
import reference_secants as rs

WIDTH, TOKENS = 4, 3


class Gated(nn.Module):
    """A product of two branches: one bent, one between −1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.a(x)) * torch.tanh(self.b(x)))


class Normed(nn.Module):
    """A layer norm between linear layers, and a softmax inside."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.out = nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.softmax(self.b(self.norm(self.a(x))), -1))


class Attention(nn.Module):
    """A layer of a transformer: attention with one head, a residual, a layer norm, the mean over tokens."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(1, 2) / WIDTH**0.5, -1) @ v
        return self.out(self.norm(x + mixed).mean(1))


def array(t: Tensor) -> rs.Array:
    return t.detach().numpy()


def layer(v: rs.Value, module: nn.Linear) -> rs.Value:
    """A linear layer on every row."""
    return rs.each(v, module.in_features, lambda row: rs.linear(row, array(module.weight), array(module.bias)))


def normed(v: rs.Value, norm: nn.LayerNorm) -> rs.Value:
    width = norm.normalized_shape[0]
    return rs.each(v, width, lambda row: rs.layer_norm(row, array(norm.weight), array(norm.bias), norm.eps))


def gated(net: Gated, x: rs.Value) -> rs.Value:
    bent = rs.unary(layer(x, net.a), lambda t: np.maximum(t, 0))
    return layer(rs.product(bent, rs.unary(layer(x, net.b), np.tanh)), net.out)


def with_norm(net: Normed, x: rs.Value) -> rs.Value:
    return layer(rs.softmax(layer(normed(layer(x, net.a), net.norm), net.b)), net.out)


def attention(net: Attention, x: rs.Value) -> rs.Value:
    q, k, v = (layer(x, module) for module in (net.q, net.k, net.v))
    scores = rs.matrices(q, rs.turned(k, TOKENS, WIDTH), TOKENS, WIDTH, TOKENS)
    scores = rs.linear(scores, np.eye(TOKENS * TOKENS) / WIDTH**0.5)
    mixed = rs.matrices(rs.each(scores, TOKENS, rs.softmax), v, TOKENS, TOKENS, WIDTH)
    mean = np.kron(np.full((1, TOKENS), 1 / TOKENS), np.eye(WIDTH))
    return layer(rs.linear(normed(rs.add(x, mixed), net.norm), mean), net.out)


CASES = {
    "gated": (Gated, gated, (5,)),
    "normed": (Normed, with_norm, (5,)),
    "attention": (lambda: Attention(fused=False), attention, (TOKENS, WIDTH)),
    "fused attention": (lambda: Attention(fused=True), attention, (TOKENS, WIDTH)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_dense_matrices(name: str, seed: int) -> None:
    make, by_hand, shape = CASES[name]
    torch.manual_seed(seed)
    net = make().double()
    for p in net.parameters():
        nn.init.normal_(p)
    x, x0 = torch.randn(2, 2, *shape, dtype=torch.float64)
    b = dt.Explainer(net).between(x, x0, [0, 1, 2])
    for n in range(2):
        start = rs.begin(array(x[n]), array(x0[n]))
        end = by_hand(net, start)
        np.testing.assert_allclose(array(b.score[n]), end.x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(array(b.reference_score[n]), end.x0, rtol=1e-12, atol=1e-12)
        for k in range(3):
            wanted = rs.relevance(end, k, start).reshape(shape)
            np.testing.assert_allclose(array(b.relevance[n, k]), wanted, rtol=1e-10, atol=1e-10)


def test_of_rectifiers_it_is_deeplift() -> None:
    """DeepLIFT's rescale rule, written by hand: multipliers Δout / Δin at every rectifier, weights elsewhere."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x, x0 = torch.randn(2, 3, 6, dtype=torch.float64)
    values, before = [x], [x0]
    for module in net:
        values.append(module(values[-1]))
        before.append(module(before[-1]))
    m = net[4].weight[1].expand(3, -1)
    for n in (3, 2, 1, 0):
        if isinstance(net[n], nn.ReLU):
            m = m * (values[n + 1] - before[n + 1]) / (values[n] - before[n])
        else:
            m = m @ net[n].weight
    b = dt.Explainer(net).between(x, x0, 1)
    torch.testing.assert_close(b.relevance, (m * (x - x0)).detach(), rtol=1e-12, atol=1e-12)


def test_of_a_linear_network_it_is_weight_times_change() -> None:
    net = nn.Linear(4, 3).double()
    x, x0 = torch.randn(2, 2, 4, dtype=torch.float64)
    b = dt.Explainer(net).between(x, x0, 2)
    torch.testing.assert_close(b.relevance, net.weight[2].detach() * (x - x0))


class Three(nn.Module):
    """A product of three numbers, in one of two bracketings."""

    def __init__(self, left: bool) -> None:
        super().__init__()
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x.unbind(1)
        return (a * b) * c if self.left else a * (b * c)


def test_bracketing_moves_a_quarter_of_all_changes_between_the_outer_factors() -> None:
    x, x0 = torch.randn(2, 5, 3, dtype=torch.float64)
    left, right = (dt.Explainer(Three(side)).between(x, x0).relevance for side in (True, False))
    moved = (x - x0).prod(1) / 4
    torch.testing.assert_close(left.sum(1), x.prod(1) - x0.prod(1))
    torch.testing.assert_close(right - left, torch.stack([moved, torch.zeros(5, dtype=x.dtype), -moved], 1))


class Root(nn.Module):
    """RMSNorm, its root spelled in several ways."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling, self.out = spelling, nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        square = x.pow(2).mean(-1, keepdim=True) + 1e-3
        y = {
            "rsqrt": lambda: x * torch.rsqrt(square),
            "quotient": lambda: x / torch.sqrt(square),
            "reciprocal": lambda: torch.reciprocal(square.sqrt()) * x,
            "power": lambda: x * square.pow(-0.5),
            "fused": lambda: F.rms_norm(x, (4,), eps=1e-3),
        }[self.spelling]()
        return self.out(y)


@pytest.mark.parametrize("spelling", ["quotient", "reciprocal", "power", "fused"])
def test_a_norm_is_the_same_however_its_root_is_spelled(spelling: str) -> None:
    torch.manual_seed(0)
    one = Root("rsqrt").double()
    other = Root(spelling).double()
    other.load_state_dict(one.state_dict())
    x, x0 = torch.randn(2, 3, 4, dtype=torch.float64)
    a, b = (dt.Explainer(net).between(x, x0, 0).relevance for net in (one, other))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def _normed_by_hand(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


def _softmax_by_hand(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


SPELLINGS = {
    "silu": (F.silu, lambda x: x * torch.sigmoid(x)),
    "gelu": (F.gelu, lambda x: 0.5 * x * (1 + torch.erf(x * 0.5**0.5))),
    "mish": (F.mish, lambda x: x * torch.tanh(F.softplus(x))),
    "tanh": (torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
    "softmax": (lambda x: x.softmax(-1), _softmax_by_hand),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), _normed_by_hand),
    "a linear sum": (lambda x: (x + x.flip(1)) / 2, lambda x: x / 2 + 0.5 * x.flip(1)),
}


class Inside(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.first, self.out = function, nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.function(self.first(x)))


@pytest.mark.parametrize("name", SPELLINGS)
def test_fused_or_written_out_the_map_is_the_same(name: str) -> None:
    x, x0 = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    maps = [dt.Explainer(Inside(f).double()).between(x, x0, 1).relevance for f in SPELLINGS[name]]
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-9, atol=1e-11)
