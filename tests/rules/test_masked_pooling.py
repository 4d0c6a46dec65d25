"""CP-LRP, AttnLRP and deep Taylor behind masked mean pooling: the mask is a constant gate for the text's vectors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from masked_pooling import MASKED_MEANS, Pooling

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import text_rivals
from text_network import Encoder, Shape

F64 = torch.float64
SHAPE = Shape(vocabulary=60, width=24, layers=2, heads=4, inner=48, positions=16)


class Pooled(nn.Module):
    """An encoder of texts, pooled, and a head."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.bert, self.head, self.pooling = Encoder(SHAPE), nn.Linear(SHAPE.width, 2), pooling

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.head(self.pooling(self.bert(x, mask), mask))
        return found


def drawn(pooling: Pooling) -> Pooled:
    """Random weights far from zero, and scores above zero."""
    torch.manual_seed(0)
    network = Pooled(pooling)
    for name, p in network.named_parameters():
        nn.init.normal_(p, 1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.3)
    nn.init.constant_(network.head.bias, 20.0)
    return network.to(F64).eval().requires_grad_(False)


def texts() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(1, 60, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, 5:] = 0
    return tokens, mask


@pytest.mark.parametrize("name", MASKED_MEANS)
@pytest.mark.parametrize(("method", "rules"), [("cp-lrp", text_rivals.CP), ("attnlrp", text_rivals.ATTN)])
def test_equal_to_a_gradient_with_the_rules(name: str, method: str, rules: dict[str, object]) -> None:
    """The rules written as gradients of the same network, whose pooling is linear in the vectors."""
    network, (tokens, mask) = drawn(MASKED_MEANS[name]), texts()
    e = dt.Explainer(network, method=method).explain((tokens, mask), 1)
    vectors = network.bert.embeddings.word_embeddings(tokens)
    wanted = text_rivals.lrp(lambda v: network(v, mask)[:, 1], vectors, rules)  # type: ignore[arg-type]
    assert torch.allclose(e.relevance[0], wanted, atol=1e-7)
    assert e.check().accounted
    assert e.check().accounting_gap < 1e-12
    assert not bool(e.relevance[0][0, 5:].any())  # tokens that the mask hides
    assert not bool(e.relevance[1].any())  # the mask itself


@pytest.mark.parametrize("name", MASKED_MEANS)
def test_deep_taylor_accounts_for_the_score(name: str) -> None:
    network, x = drawn(MASKED_MEANS[name]), texts()
    e = dt.Explainer(network, method="deep-taylor").explain(x, 1)
    assert torch.allclose(e.ledger.input + e.ledger.bias, network(*x)[:, 1])
    assert not bool(e.relevance[0][0, 5:].any())


class Counted(nn.Module):
    """A gate in [0, 1] made of the text times a mask: the mask is the gate, whatever the order."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.words, self.out, self.first = nn.Embedding(9, 4), nn.Linear(4, 2, bias=False), first

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        h, m = torch.sigmoid(self.words(tokens)), mask.unsqueeze(-1).to(F64)
        found: Tensor = self.out(((m * h) if self.first else (h * m)).sum(1))
        return found


@pytest.mark.parametrize("first", [False, True])
def test_a_mask_is_the_gate_of_values_that_look_like_gates(first: bool) -> None:
    torch.manual_seed(0)
    network = Counted(first).to(F64).eval()
    nn.init.uniform_(network.out.weight, 0.1, 1.0)
    tokens, mask = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 0]])
    e = dt.Explainer(network, (tokens, mask), bias="spread").explain((tokens, mask), 0)
    with torch.no_grad():
        words = (torch.sigmoid(network.words(tokens)) * network.out.weight[0]).sum(-1) * mask
    assert torch.allclose(e.relevance[0], words)
