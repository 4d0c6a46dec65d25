"""An attention mask that differs between the input and the reference: hidden exactly as the network hides by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from masked_pooling import MASKED_MEANS, UNMASKED, Pooling

F64 = torch.float64
INF = float("inf")
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v (B, T, D) and mask (B, T)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5


def key_padding(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask == 0, -INF)[:, None, :]
    return F.scaled_dot_product_attention(q, k, v, bias.expand(-1, q.shape[1], -1))


def causal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
    hidden = scores(q, k).masked_fill(later, -INF).masked_fill(mask[:, None, :] == 0, -INF)
    return hidden.softmax(-1) @ v


ATTENTIONS: dict[str, Attention] = {
    "boolean": lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m.bool()[:, None, :].expand(-1, 4, -1)),
    "minus infinity": lambda q, k, v, m: scores(q, k).masked_fill(m[:, None, :] == 0, -INF).softmax(-1) @ v,
    "where": lambda q, k, v, m: torch.where(m.bool()[:, None, :], scores(q, k), torch.tensor(-INF)).softmax(-1) @ v,
    "a large number": lambda q, k, v, m: scores(q, k).masked_fill(~m.bool()[:, None, :], -1e9).softmax(-1) @ v,
    "the lowest number": lambda q, k, v, m: (
        (scores(q, k) + (1.0 - m)[:, None, :] * torch.finfo(q.dtype).min).softmax(-1) @ v
    ),
    "key padding": key_padding,
    "causal": causal,
}


class Reader(nn.Module):
    """Tokens, attention twice, a pooling and a head."""

    def __init__(self, attention: Attention, pooling: Pooling) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)
        self.layers = nn.ModuleList(nn.Linear(6, 18) for _ in range(2))
        self.attention, self.pooling = attention, pooling

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        h = self.words(tokens)
        for layer in self.layers:
            h = torch.tanh(h + self.attention(*layer(h).chunk(3, -1), mask))
        found: Tensor = self.head(self.pooling(h, mask))
        return found


TOKENS = torch.tensor([[3, 7, 1, 9], [2, 6, 5, 0]])
SHOWN = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
LESS = torch.tensor([[1, 0, 1, 0], [1, 0, 0, 0]])


def check_exact(network: nn.Module, to: torch.dtype = F64, most: float = 1e-12) -> None:
    network = network.to(to).eval()
    e = dt.Explainer(network).between((TOKENS, SHOWN.to(to)), (None, LESS.to(to)), 1)
    with torch.no_grad():
        score, less = (network(TOKENS, mask.to(to))[:, 1] for mask in (SHOWN, LESS))
    assert torch.allclose(e.score, score, atol=most)
    assert torch.allclose(e.reference_score, less, atol=most)
    assert float(e.ledger.gap.max()) < most
    assert not bool(e.relevance[0].any())  # the tokens are the same
    assert (e.relevance[1] != 0).tolist() == (SHOWN != LESS).tolist()


CASES = [(attention, name) for attention in ATTENTIONS for name in (*MASKED_MEANS, "class token")]
CASES.remove(("causal", "class token"))  # the first token reads no other one


@pytest.mark.parametrize(("attention", "name"), CASES)
def test_a_mask_that_differs_is_exact(attention: str, name: str) -> None:
    check_exact(Reader(ATTENTIONS[attention], {**MASKED_MEANS, **UNMASKED}[name]))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_in_float32(attention: str) -> None:
    check_exact(Reader(ATTENTIONS[attention], MASKED_MEANS["expand and clamp"]), torch.float32, 1e-5)


def test_the_layer_of_torch() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            h = self.layer(self.words(tokens), src_key_padding_mask=mask == 0)
            found: Tensor = self.head(MASKED_MEANS["sum over sum"](h, mask))
            return found

    check_exact(Encoder())


def test_a_row_that_is_hidden_whole() -> None:
    """Where no token is shown at the reference, boolean attention gives zeros: all of it is of the mask."""

    class Alone(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, mask.bool()[:, None, :].expand(-1, 3, -1)).sum(1)

    x = torch.randn(1, 3, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    shown = torch.tensor([[1.0, 1.0, 0.0]], dtype=F64)
    e = dt.Explainer(Alone()).make_unplanned().between((x, shown), (None, torch.zeros_like(shown)), 0)
    assert float(e.reference_score[0]) == 0
    assert float(e.relevance[1].sum()) == pytest.approx(float(Alone()(x, shown)[0, 0]))
    assert float(e.relevance[1][0, 2]) == 0
    assert e.check().accounted


def test_scores_that_fall_without_limit() -> None:
    """The mask's share is the limit of scores that fall: compared with a score of −1e6 in float64."""

    class Limit(nn.Module):
        def forward(self, s: Tensor, s2: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(s, s2, s2, mask.bool()[:, None, :], scale=1.0).sum(-1)

    class Far(nn.Module):
        def forward(self, s: Tensor, s2: Tensor, mask: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(s, s2, s2, (1 - mask)[:, None, :] * -1e6, scale=1.0).sum(-1)

    draw = torch.Generator().manual_seed(3)
    q, q0 = torch.randn(2, 1, 1, 2, dtype=F64, generator=draw)
    kv, kv0 = torch.randn(2, 1, 4, 2, dtype=F64, generator=draw)
    mask, mask0 = torch.tensor([[[1.0, 1, 1, 0]], [[1, 0, 1, 1]]], dtype=F64)
    limit, far = (
        dt.Explainer(n).make_unplanned().between((q, kv, mask), (q0, kv0, mask0), 0).relevance for n in (Limit(), Far())
    )
    for a, b in zip(limit, far, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert bool(limit[2][0, [1, 3]].all())
