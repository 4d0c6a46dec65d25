"""What others do, on the networks of text_network.py; tests/test_text_study.py holds each against its own package.

AttnLRP     lxt's rules (LayerNorm's variance, half of every product, value over argument of a function), as gradients
CP-LRP      the same with attention and gates taken for constants
integrated gradients (captum's 50 steps of Gauss and Legendre), gradient x input, attention rollout, random
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import text_network

STEPS = 50
Score = Callable[[Tensor], Tensor]  # vectors (n, T, width) of the same texts → (n,)


def _half(x: Tensor) -> Tensor:
    """x, with half of its gradient."""
    return x / 2 + (x / 2).detach()


def _attn_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    weights = (_half(q @ k.mT) * q.shape[-1] ** -0.5 + bias).softmax(-1)
    return _half(weights @ v).transpose(1, 2).flatten(2)


def _cp_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1).detach()
    return (weights @ v).transpose(1, 2).flatten(2)


def _frozen_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().detach() * norm.weight + norm.bias


def _frozen_scale(x: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt().detach()


def _value_over_argument(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return x * (function(x) / (x + 1e-10)).detach()


def _half_gated(gate: Tensor, x: Tensor) -> Tensor:
    return _half(_value_over_argument(F.silu, gate) * x)


def _fixed_gate(gate: Tensor, x: Tensor) -> Tensor:
    return F.silu(gate).detach() * x


_NORMS = {"normed": _frozen_norm, "scaled": _frozen_scale, "activated": _value_over_argument}
ATTN = {**_NORMS, "attention": _attn_attention, "gated": _half_gated}
CP = {**_NORMS, "attention": _cp_attention, "gated": _fixed_gate}


def gradient(score: Score, vectors: Tensor) -> Tensor:
    """The score's gradient at the vectors."""
    at = vectors.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(score(at).sum(), at)
    return found


def gradient_times_input(score: Score, vectors: Tensor) -> Tensor:
    """Relevance (n, T) of the tokens whose vectors these are."""
    return (gradient(score, vectors) * vectors).sum(-1)


def lrp(score: Score, vectors: Tensor, rules: dict[str, Callable[..., Tensor]]) -> Tensor:
    """By the rules ATTN or CP."""
    with patch.multiple(text_network, **rules):
        return gradient_times_input(score, vectors)


def integrated(score: Score, vectors: Tensor, reference: Tensor) -> Tensor:
    """The path from the reference, straight."""
    places, weights = np.polynomial.legendre.leggauss(STEPS)
    total = torch.zeros_like(vectors)
    for place, weight in zip(places, weights, strict=True):
        total += float(weight) / 2 * gradient(score, reference + (1 + float(place)) / 2 * (vectors - reference))
    return ((vectors - reference) * total).sum(-1)


@contextmanager
def _looking() -> Iterator[list[Tensor]]:
    """The attention of every layer, the mean over heads."""
    seen: list[Tensor] = []
    plain = text_network.attention

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        seen.append((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1).mean(1))
        return plain(q, k, v, bias)

    with patch.object(text_network, "attention", attention):
        yield seen


def rollout(score: Score, vectors: Tensor, read: Tensor) -> Tensor:
    """Attention rollout (Abnar and Zuidema, 2020), for what is read with these weights (n, T) at the end."""
    with torch.no_grad(), _looking() as seen:
        score(vectors)
    one = torch.eye(vectors.shape[1], device=vectors.device)
    for weights in reversed(seen):
        read = (read.unsqueeze(1) @ ((weights + one) / 2)).squeeze(1)
    return read
