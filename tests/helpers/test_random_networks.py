"""Random networks: graph and module are the same function, and they cover what they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import network_builder
import random_networks

SEEDS = range(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_graph_and_module_are_the_same_function(seed: int) -> None:
    model, example, _, graph = random_networks.build(seed)
    values = graph.forward(example)
    assert (values[graph.output] - model(example)).abs().max() < 1e-12
    outputs: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _m, _x, y, name=name: outputs.__setitem__(name, y))
    model(example)
    for name in random_networks.reference_relevances(seed):
        if name not in ("input", "bias", "dropped", "score"):
            assert (values[name] - outputs[name]).abs().max() < 1e-12, name


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_ledger_closes_and_nothing_is_negative(seed: int, bias: str) -> None:
    for max_pool in ("proportional", "winner"):
        found = random_networks.explain(seed, None, bias, max_pool)
        assert (found.score > 0).all()
        total = found.at["input"].reshape(2, -1).sum(axis=1) + found.bias + found.dropped
        np.testing.assert_allclose(total, np.maximum(0, found.score), rtol=0, atol=1e-10)
        assert all((R >= 0).all() for R in found.at.values())
        assert (found.bias >= 0).all()
        assert (found.dropped >= 0).all()


@pytest.mark.slow
def test_random_networks_cover_what_they_should() -> None:
    kinds: set[str] = set()
    domains: dict[str, set[str]] = {}
    fallbacks = 0
    for seed in SEEDS:
        network = random_networks.build(seed)
        domains.setdefault(random_networks.family(seed), set()).add(network.domain.kind)
        kinds |= {type(m).__name__ for m in network.model.modules()}
        fallbacks += random_networks.explain(seed, None, "spread").fallbacks > 0
    assert set(domains) == set(random_networks.FAMILIES)
    assert all(seen == {"real", "nonnegative", "box"} for seen in domains.values()), domains
    wanted = {type(make()).__name__ for make in network_builder.ACTIVATIONS.values()}
    wanted |= {"MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "LPPool2d", "ConvTranspose2d", "Upsample", "BatchNorm2d"}
    wanted |= {"LayerNorm", "GroupNorm", "MatMul", "ScaledDotProduct", "Add", "Subtract", "Concat", "Mul", "Divide"}
    assert wanted <= kinds, wanted - kinds
    # The conventions of `spread` are no rare event here.
    assert fallbacks >= 80


def test_networks_are_reproducible_and_leave_the_random_state_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = random_networks.build(3), random_networks.build(3)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.example, two.example)
    assert torch.equal(one.model(one.example), two.model(two.example))
