"""Masks of −∞ before a softmax that carries relevance: a finite, closed ledger, and one map however written."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.maps.linear_map import clamp_infinite
from fuzz import captured_once
from random_networks import package_domain
from reference import Domain, Graph

DOMAINS = {"real": Domain("real"), "non-negative": Domain("nonnegative"), "box": Domain("box", -4.0, 5.0)}
BIASES = ("neuron", "spread", "returned")
TOKENS, FEATURES, HEADS = 4, 6, 2


def seen(kind: str) -> Tensor:
    """Who sees whom: those before, all but one, or one token that sees a single other."""
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    if kind == "causal":
        return mask.tril()
    if kind == "one row":
        mask[1] = torch.arange(TOKENS) == 2
    else:
        mask[:, 3] = False
    return mask


def added(mask: Tensor, value: float) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, value)


MOST = torch.finfo(torch.float64).max
WRITTEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda s, m: s.masked_fill(~m, -math.inf),
    "masked_fill, a tensor": lambda s, m: s.masked_fill(~m, torch.tensor(-math.inf, dtype=s.dtype)),
    "added": lambda s, m: s + added(m, -math.inf),
    "added, of each sample": lambda s, m: s + added(m, -math.inf).expand(s.shape[0], *[1] * (s.ndim - 3), -1, -1),
    "where": lambda s, m: torch.where(m, s, -math.inf),
    "twice": lambda s, m: s.masked_fill(~m, -math.inf).masked_fill(~m, -math.inf),
    "scaled afterwards": lambda s, m: (s * 2).masked_fill(~m, -math.inf) / 2,
    "finfo.min": lambda s, m: s.masked_fill(~m, -MOST),
    "finfo.min added": lambda s, m: s + added(m, -MOST),
}


class Weights(nn.Module):
    """softmax of masked products: the score reads attention weights, so that relevance goes through the mask."""

    def __init__(self, write: Callable[[Tensor, Tensor], Tensor], mask: Tensor, heads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.last = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(16, 3)
        self.write, self.heads = write, heads
        self.mask = nn.Buffer(mask)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q(x).sigmoid(), self.k(x)
        if self.heads:
            q, k = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k))
        a = torch.softmax(self.write(q @ k.mT, self.mask), -1)
        return self.last((a.sum(1) if self.heads else a).flatten(1)) + 1


@cache
def example(domain: str) -> Tensor:
    x = torch.randn(2, TOKENS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x.clamp(min=0) if domain == "non-negative" else x


def explained(network: nn.Module, domain: str, bias: str) -> dt.Explanation:
    e = dt.Explainer(network, example(domain), package_domain(DOMAINS[domain]), bias=bias).explain(example(domain))
    parts = (e.relevance, e.ledger.bias, e.ledger.dropped, e.ledger.entries)
    assert all(bool(torch.isfinite(part).all()) for part in parts)
    assert e.check().accounted
    torch.testing.assert_close(e.ledger.total, e.score, rtol=1e-10, atol=1e-10)
    return e


@pytest.mark.parametrize("heads", [False, True], ids=["3-D", "4-D"])
@pytest.mark.parametrize("kind", ["causal", "one row", "one column"])
def test_masks_have_one_map_and_a_closed_ledger(kind: str, heads: bool) -> None:
    usual = WRITTEN["finfo.min"]  # finite: it is a large bias
    with captured_once():
        one = Weights(usual, seen(kind), heads).double().eval()
        expected = {(d, b): explained(one, d, b) for d in DOMAINS for b in BIASES}
        for write in WRITTEN.values():
            other = Weights(write, seen(kind), heads).double().eval()
            for (domain, bias), known in expected.items():
                found = explained(other, domain, bias)
                torch.testing.assert_close(found.relevance, known.relevance, rtol=1e-10, atol=1e-10)
                torch.testing.assert_close(found.ledger.bias, known.ledger.bias, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("kind", ["causal", "one row", "one column"])
def test_masks_agree_with_the_reference(kind: str, domain: str, bias: str) -> None:
    network = Weights(WRITTEN["masked_fill"], seen(kind), heads=False).double().eval()
    g = Graph()
    g.input("input", DOMAINS[domain])
    g.function("q", lambda x: network.q(x).sigmoid(), "input")
    g.affine("k", network.k, "input", kind="linear")
    g.affine("scores", lambda k, q: q @ k.mT, "k", kind="average", gates=("q",))
    g.affine("masked", lambda s: s + added(seen(kind), -1e200), "scores", kind="diagonal")
    g.activation("softmax", lambda z: z.softmax(-1), "masked", phi=torch.exp)
    g.affine("flat", lambda a: a.flatten(1), "softmax", kind="structural")
    g.affine("last", lambda a: network.last(a) + 1, "flat", kind="linear")
    expected = g.explain(example(domain), bias=bias)
    found = explained(network, domain, bias)
    ledger = found.ledger
    pairs = [(found.relevance, expected.at["input"]), (found.score, expected.score)]
    pairs += [(ledger.bias, expected.bias), (ledger.dropped, expected.dropped)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-10)


class Attention(nn.Module):
    """Attention with a mask: values carry relevance."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], heads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(FEATURES, FEATURES) for _ in range(3))
        self.last, self.attend, self.heads = nn.Linear(TOKENS * FEATURES, 3), attend, heads

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.q(x), self.k(x), self.v(x)]
        if self.heads:
            parts = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts]
        h = self.attend(*parts)
        return self.last((h.transpose(1, 2) if self.heads else h).flatten(1).relu()) + 1


@pytest.mark.parametrize("heads", [False, True], ids=["3-D", "4-D"])
@pytest.mark.parametrize("kind", ["causal", "one row", "one column"])
def test_masked_attention_has_the_map_of_one_operation(kind: str, heads: bool) -> None:
    mask = seen(kind)
    one = Attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), heads).double().eval()
    with captured_once():
        expected = {(d, b): explained(one, d, b).relevance for d in DOMAINS for b in BIASES}
        for write in WRITTEN.values():
            by_hand = Attention(
                lambda q, k, v, write=write: torch.softmax(write(q @ k.mT / q.shape[-1] ** 0.5, mask), -1) @ v, heads
            )
            by_hand = by_hand.double().eval()
            for (domain, bias), relevance in expected.items():
                found = explained(by_hand, domain, bias).relevance
                torch.testing.assert_close(found, relevance, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bounded_changes_infinities_alone(dtype: torch.dtype) -> None:
    x = torch.tensor([-math.inf, -3.0, 0.0, 2.0, math.inf], dtype=dtype)
    found = clamp_infinite(x)
    assert torch.equal(found[1:-1], x[1:-1])
    assert bool(torch.isfinite(found.abs() * 3).all())
