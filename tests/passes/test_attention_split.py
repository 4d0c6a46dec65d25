"""Layers that give queries, keys and values at once: split, they give the same explanation for less."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import prepare
from deeptaylor.maps.linear_map import Linear
from deeptaylor.passes.rewrite import rewrite, split_attention
from graphs import captured_of, operations, value_of

WIDTH, HEADS, TOKENS = 12, 3, 5


def by_unbind(x: Tensor) -> list[Tensor]:
    b, n, _ = x.shape
    return list(x.reshape(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0))


def by_chunk(x: Tensor) -> list[Tensor]:
    b, n, _ = x.shape
    return [part.reshape(b, n, HEADS, -1).transpose(1, 2) for part in x.chunk(3, -1)]


def by_heads(x: Tensor) -> list[Tensor]:
    """Each head's query, key and value side by side: no part is a plain block of features."""
    b, n, _ = x.shape
    return list(x.reshape(b, n, HEADS, 3, -1).permute(3, 0, 2, 1, 4).unbind(0))


class Attention(nn.Module):
    def __init__(self, parts: Callable[[Tensor], list[Tensor]]) -> None:
        super().__init__()
        self.parts = parts
        self.norm, self.packed, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.packed(self.norm(x)))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(y + x).mean(1)


class Torchs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0] + x).mean(1)


class Whole(Attention):
    """What is taken apart is read whole as well."""

    def forward(self, x: Tensor) -> Tensor:
        packed = self.packed(self.norm(x))
        q, k, v = self.parts(packed)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.out(y + packed.mean(-1, keepdim=True)).mean(1)


CASES = {
    "unbind": (lambda: Attention(by_unbind), True),
    "chunk": (lambda: Attention(by_chunk), True),
    "torch": (Torchs, True),
    "heads": (lambda: Attention(by_heads), False),
    "whole": (lambda: Whole(by_chunk), False),
}


def rows(explainer: dt.Explainer) -> list[int]:
    """How many rows the weight of every layer has through which relevance goes."""
    (one,) = explainer.captured.engines.values()
    maps = [m for m in one.modules() if isinstance(m, Linear)]
    return [one.constant(m.name).shape[0] for m in maps]  # type: ignore[operator]


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("name", CASES)
def test_a_packed_layer_is_split_and_explained_as_before(name: str, bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, splits = CASES[name]
    model = make().double().eval()
    x = torch.randn(3, TOKENS, WIDTH, dtype=torch.float64)
    explainer = dt.Explainer(model, x, bias=bias)
    assert (3 * WIDTH not in rows(explainer)) == splits
    found = explainer.explain(x, 1)
    monkeypatch.setattr(prepare, "split_attention", lambda captured: None)
    plain = dt.Explainer(model, x, bias=bias)
    assert 3 * WIDTH in rows(plain)
    expected = plain.explain(x, 1)
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.score, expected.score)
    torch.testing.assert_close(found.score, model(x)[:, 1])


def test_another_batch_size_after_the_split() -> None:
    torch.manual_seed(0)
    model = Attention(by_unbind).double().eval()
    x = torch.randn(7, TOKENS, WIDTH, dtype=torch.float64)
    explainer = dt.Explainer(model, x[:2], bias="neuron")
    torch.testing.assert_close(explainer.explain(x, 1).relevance[:1], explainer.explain(x[:1], 1).relevance)


def attended(s: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*s.all(x).chunk(3, -1))


def added(s: nn.Module, x: Tensor) -> Tensor:
    q, k, v = s.all(x).chunk(3, -1)
    return q.relu() + k.relu() + v.relu()


@pytest.mark.parametrize(("program", "layers"), [(attended, 3), (added, 1)], ids=["attention", "no attention"])
def test_a_layer_is_split_where_a_part_of_it_makes_attention_weights(
    program: Callable[..., Tensor], layers: int
) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    captured = captured_of(program, x, all=nn.Linear(4, 12))
    rewrite(captured)
    assert operations(captured).count("linear") == 1
    expected = value_of(captured, x)
    split_attention(captured)
    assert operations(captured).count("linear") == layers
    torch.testing.assert_close(value_of(captured, x), expected)
    assert ("linear" in captured.fold_targets) == (layers == 3)
