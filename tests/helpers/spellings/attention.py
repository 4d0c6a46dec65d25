"""Attention and gated units, written otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from network_modules import MatMul, ScaledDotProduct, Scores
from spellings.modules import GLU, Causal, SelfAttention, SqueezeExcite, SwiGLU
from spellings.table import Spelled, simple, spelling


def _written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def _causal(q: Tensor, k: Tensor, v: Tensor, write: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(write(q @ k.mT / math.sqrt(q.shape[-1]), seen), -1) @ v


simple("attention", ScaledDotProduct, "written out", _written)
simple(
    "attention",
    ScaledDotProduct,
    "scaled queries",
    lambda q, k, v: torch.softmax(q * q.shape[-1] ** -0.5 @ k.mT, -1) @ v,
)
simple(
    "attention",
    ScaledDotProduct,
    "exp and a quotient",
    lambda q, k, v: (e := torch.exp(q @ k.mT / q.shape[-1] ** 0.5)) / e.sum(-1, keepdim=True) @ v,
)
simple(
    "attention",
    ScaledDotProduct,
    "a mask of zeros",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.zeros(q.shape[-2], k.shape[-2]).to(q)),
)
simple(
    "attention",
    ScaledDotProduct,
    "a mask that hides nothing",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)),
)
simple(
    "attention",
    ScaledDotProduct,
    "einsum",
    lambda q, k, v: torch.einsum(
        "...ts,...sd->...td", torch.softmax(torch.einsum("...td,...sd->...ts", q, k) / q.shape[-1] ** 0.5, -1), v
    ),
)
simple(
    "attention",
    ScaledDotProduct,
    "multiply and sum",
    lambda q, k, v: (torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
)
simple(
    "attention",
    Causal,
    "masked_fill",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a.masked_fill(~seen, -math.inf)),
)
simple(
    "attention",
    Causal,
    "−∞ added",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a + torch.zeros_like(a[0]).masked_fill(~seen, -math.inf)),
)
simple("attention", Causal, "where", lambda q, k, v: _causal(q, k, v, lambda a, seen: torch.where(seen, a, -math.inf)))
simple(
    "attention",
    Causal,
    "a mask given",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    ),
)
simple("attention", Scores, "einsum", lambda q, k: torch.einsum("...td,...sd->...ts", q, k) * q.shape[-1] ** -0.5)
simple("attention", MatMul, "einsum", lambda a, v: torch.einsum("...ts,...sd->...td", a, v))


def _packed(m: SelfAttention) -> dict[str, Tensor]:
    layers = (m.q, m.k, m.v)
    return {"w": torch.cat([f.weight for f in layers]), "b": torch.cat([f.bias for f in layers])}


@spelling("attention", SelfAttention, "nn.MultiheadAttention")
def _(m: SelfAttention, x: Tensor) -> nn.Module:
    whole = nn.MultiheadAttention(x.shape[-1], 1, batch_first=True).to(x)
    packed = _packed(m)
    state = {
        "in_proj_weight": packed["w"],
        "in_proj_bias": packed["b"],
        "out_proj.weight": m.out.weight,
        "out_proj.bias": m.out.bias,
    }
    whole.load_state_dict(state)
    return Spelled(lambda s, x: s.whole(x, x, x, need_weights=False)[0], whole=whole.eval())


@spelling("attention", SelfAttention, "one layer for all three")
def _(m: SelfAttention, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        return F.linear(_written(*F.linear(x, s.w, s.b).chunk(3, -1)), s.o, s.c)

    return Spelled(write, **_packed(m), o=m.out.weight, c=m.out.bias)


@spelling("gates", SwiGLU, "one layer, halves")
def _(m: SwiGLU, x: Tensor) -> nn.Module:
    w, b = torch.cat([m.gate.weight, m.up.weight]), torch.cat([m.gate.bias, m.up.bias])

    def write(s: Any, x: Tensor) -> Tensor:
        gate, up = F.linear(x, s.w, s.b).chunk(2, -1)
        return up * F.silu(gate)

    return Spelled(write, w=w, b=b)


@spelling("gates", GLU, "halves and a sigmoid")
def _(m: GLU, x: Tensor) -> nn.Module:
    def write(s: Any, x: Tensor) -> Tensor:
        a, g = s.both(x).chunk(2, -1)
        return torch.sigmoid(g) * a

    return Spelled(write, both=m.both)


@spelling("gates", GLU, "two layers")
def _(m: GLU, x: Tensor) -> nn.Module:
    n = len(m.both.weight) // 2

    def write(s: Any, x: Tensor) -> Tensor:
        return F.linear(x, s.w[:n], s.b[:n]) * torch.sigmoid(F.linear(x, s.w[n:], s.b[n:]))

    return Spelled(write, w=m.both.weight, b=m.both.bias)


simple(
    "attention",
    Causal,
    "masked_fill by a tensor",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a.masked_fill(~seen, torch.tensor(-math.inf).to(a))),
)
simple(
    "attention",
    Causal,
    "the least number",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a.masked_fill(~seen, torch.finfo(a.dtype).min)),
)
simple(
    "attention",
    Causal,
    "−∞ added to each sample",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a + torch.zeros_like(a).masked_fill(~seen, -math.inf)),
)
simple(
    "attention",
    Causal,
    "−∞ above the diagonal",
    lambda q, k, v: _causal(q, k, v, lambda a, seen: a + torch.full_like(a, -math.inf).triu(1)),
)
simple(
    "attention",
    Causal,
    "a mask of numbers given",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.full((q.shape[-2], k.shape[-2]), -math.inf).to(q).triu(1)
    ),
)


def excite(name: str, write: Callable[[Tensor, Tensor], Tensor], average: Callable[[Tensor], Tensor]) -> None:
    """A spelling of squeeze and excite: `write(x, gate)` of the layer on `average(x)`."""
    spelling("gates", SqueezeExcite, name)(
        lambda m, x: Spelled(lambda s, x: write(x, torch.sigmoid(s.gate(average(x)))), gate=m.gate)
    )


def _averages(x: Tensor) -> Tensor:
    return x.mean((2, 3))


excite("the gate first", lambda x, g: g.unsqueeze(-1).unsqueeze(-1) * x, _averages)
excite("the gate expanded", lambda x, g: x * g[:, :, None, None].expand_as(x), _averages)
excite("channels last", lambda x, g: (x.movedim(1, -1) * g[:, None, None]).movedim(-1, 1), _averages)
excite("adaptive", lambda x, g: x * g.view(*g.shape, 1, 1), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1))
excite("places in one row", lambda x, g: (x.flatten(2) * g.unsqueeze(2)).view_as(x), _averages)
