"""Mixtures of experts of transformers: each sample by itself, the network untouched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph import experts
from deeptaylor.graph.modes import eval_mode
from untouched import changes, snapshot

hf = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 50, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "use_cache": False, "num_experts_per_tok": 2,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Mixtral", {"num_local_experts": 4}),
    "with a shared expert": ("Qwen2Moe", {
        "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "transposed, with biases and a gate of their own": ("GptOss", {"num_local_experts": 4}),
}  # fmt: skip


class Last(nn.Module):
    """The scores of the next token."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.network(input_ids=tokens).logits[:, -1]
        return scores


def build(name: str) -> Last:
    family, more = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(hf, f"{family}Config")(**SIZES, **more)
    network = getattr(hf, f"{family}ForCausalLM")(config).eval()
    for parameter in network.parameters():  # some are left as they are in memory, or all alike
        nn.init.normal_(parameter, std=0.2)
    return Last(network)


def tokens(seed: int, count: int = 2) -> Tensor:
    return torch.randint(1, 50, (count, 7), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_forward_that_is_written_out_is_the_same(name: str) -> None:
    network, x = build(name), tokens(1)
    before, wanted = snapshot(network), network(x)
    with eval_mode(network), torch.no_grad():
        experts.write_experts_out(network)
        found = network(x)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not changes(network, before)


@pytest.mark.parametrize("name", FAMILIES)
def test_secants_add_up_where_tokens_are_routed_otherwise(name: str) -> None:
    network, x, x0 = build(name), tokens(1), tokens(2, 1)
    before = snapshot(network)
    found = dt.Explainer(network).between(x, x0, 3)
    assert float(found.ledger.gap.max()) < 1e-5
    assert not changes(network, before)


@pytest.mark.parametrize("name", ["plain", "with a shared expert"])
def test_deep_taylor_takes_the_routing_as_gates(name: str) -> None:
    found = dt.Explainer(build(name), method="deep-taylor").explain(tokens(1))
    assert found.relevance.shape == (2, 7)
    assert float(found.relevance.min()) >= 0
    assert float(found.relevance.sum()) > 0
