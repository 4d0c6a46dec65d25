"""Relevance at every block boundary of random networks, and contrasts, against the dense matrices of reference.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.engine.engine import Engine
from random_networks import build, family, package_domain, reference_relevances
from reference_contrast import distinctive

SEEDS = [*range(24), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(24, 200))]
LOCAL_SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 240))]
NOT_TENSORS = {"input", "bias", "dropped", "score"}


def is_boundary(engine: Engine, name: str) -> bool:
    try:
        engine.boundary(name)
    except dt.BoundaryError:
        return False
    return True


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_boundary_agrees(seed: int, bias: str) -> None:
    agrees(seed, bias, averaged=False)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("seed", LOCAL_SEEDS)
def test_every_boundary_agrees_where_classes_read_an_average(seed: int, bias: str) -> None:
    agrees(seed, bias, averaged=True)


def agrees(seed: int, bias: str, averaged: bool) -> None:
    """Scores, the ledger and relevance at every boundary are the reference's."""
    network = build(seed, averaged)
    max_pool = "winner" if seed % 7 == 3 else "proportional"
    expected = reference_relevances(seed, None, bias, max_pool, averaged)
    explainer = dt.Explainer(
        network.model, network.example, package_domain(network.domain), bias=bias, max_pool=max_pool
    )
    if seed % 2:  # the same, whatever is kept
        explainer.recompute()
    e = explainer.explain(network.example)
    scale = float(np.abs(expected["score"]).max())

    def close(name: str, ours: torch.Tensor, theirs: np.ndarray) -> None:
        gap = np.abs(ours.numpy() - theirs).max() / scale
        assert gap <= 1e-10, f"{family(seed)} network {seed}, {name}: {gap:.2e}\n{explainer.plan}"

    close("score", e.score, expected["score"])
    close("input", e.relevance, expected["input"])
    close("bias", e.ledger.bias, expected["bias"])
    close("dropped", e.ledger.dropped, expected["dropped"])
    if averaged:
        c = explainer.contrast(network.example)
        wanted = distinctive(network.graph, network.example, bias, max_pool)
        close("distinctive", c.relevance, wanted)
        close("shared", c.shared, expected["input"] - wanted)
    engine = explainer.captured.engine
    expected = {name: value for name, value in expected.items() if name not in NOT_TENSORS}
    # Where attention is not written by hand, the layer of all three was split.
    for name in [n for n in expected if n.endswith(".attn.qkv") and not is_boundary(engine, n)]:
        whole, third = expected.pop(name), 6  # only the values take relevance
        assert not whole[..., : 2 * third].any()
        expected[name.removesuffix("qkv") + "v"] = whole[..., 2 * third :]
    boundaries = {name: engine.boundary(name) for name in expected}
    assert boundaries, "the reference names no inner boundary"
    kept = engine.run((network.example,), None, keep=frozenset(boundaries.values())).kept
    for name, node in boundaries.items():
        close(name, kept[node].reshape(expected[name].shape), expected[name])
