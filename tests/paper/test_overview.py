"""Figures 1 to 4 and 7 are drawn from what the networks compute: sums, products and both relevance models agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.models.networks.paper_networks import OneLayer, TwoLayer
from deeptaylor.paper import overview
from deeptaylor.paper.digit_pairs import Pairs
from deeptaylor.paper.experiment import write
from min_max_samples import fit_two_layer

pytest.importorskip("matplotlib")

X = 2 * torch.rand(1, 1, 28, 56, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 0.5


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return overview.compute_one_layer(OneLayer(seed=1).double(), X, 0.1)


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    network = TwoLayer(seed=1)
    model = fit_two_layer(network, X.float().repeat(20, 1, 1, 1), steps=2).double()
    return overview.compute_two_layer(network.double(), model, X)


def test_neurons_give_the_pixels_what_they_have(one: dict[str, Any]) -> None:
    network = OneLayer(seed=1).double()
    activation = torch.relu(network.detection(X.flatten(1)))[0].detach()
    np.testing.assert_allclose(one["activation"], activation.sort(descending=True).values[:6])
    np.testing.assert_allclose(one["maps"].sum((1, 2)), one["activation"][:3])
    assert (one["maps"] >= 0).all()
    expected = dt.Explainer(network, X, domain=dt.Box(-0.5, 1.5), bias="neuron").explain(X).relevance[0, 0]
    np.testing.assert_allclose(one["map"], expected.numpy(), rtol=1e-9, atol=1e-12)
    first = activation.argmax()
    np.testing.assert_array_equal(one["weights"][0].ravel(), network.detection.weight[first].detach().numpy())
    assert int(one["active"]) == int((activation > 0).sum())


def test_the_heatmap_is_the_gradient_times_the_difference(one: dict[str, Any]) -> None:
    np.testing.assert_allclose(one["gradient"] * (one["image"] - one["root"]), one["taylor"])
    assert one["root_score"] <= 0.1 * one["score"] * (1 + 1e-6)
    root = torch.from_numpy(one["root"])[None, None]
    assert OneLayer(seed=1).double()(root).item() == pytest.approx(float(one["root_score"]))


def test_every_layer_has_the_score(two: dict[str, Any]) -> None:
    for name in ("R_l", "R_k", "R_j", "map", "x_l"):
        assert two[name].sum() == pytest.approx(float(two["score"]))


def test_both_relevance_models_of_one_unit(two: dict[str, Any]) -> None:
    k = int(two["k"])
    assert two["R_k"][k] == two["R_k"].max()
    np.testing.assert_allclose(two["unit_x"].sum() * two["c_k"] * two["d_k"], two["R_k"][k])
    np.testing.assert_allclose(two["y_j"], np.maximum(0, two["z_j"] + two["a_j"]))
    np.testing.assert_allclose((two["unit_v"] * two["image"]).sum((1, 2)), two["z_j"])
    assert (two["a_j"] <= 0).all()
    np.testing.assert_array_equal(two["x_j"][4 * k : 4 * k + 4], two["unit_x"])


def test_a_zero_that_all_networks_detect_is_chosen() -> None:
    labels = torch.tensor([[0, 5], [7, -1], [3, 4], [6, 0], [0, 8]])
    side = torch.tensor([0, -1, 0, 1, 0])
    pairs = Pairs(torch.zeros(5, 1, 28, 56), torch.zeros(5), side, labels)
    scores = torch.tensor([[90.0, 99, 90, 90, 90], [20.0, 99, 90, 80, 90]])
    assert overview.choose_pair(pairs, scores) == 3
    assert overview.choose_pair(pairs, torch.tensor([[0.0, 9, 2, 3, 4]])) == 2


def test_the_figures_are_drawn(one: dict[str, Any], two: dict[str, Any], tmp_path: Path) -> None:
    for name, arrays in (
        ("draw_overview", one),
        ("draw_taylor", one),
        ("draw_flow", two),
        ("draw_detection_pooling", one),
        ("draw_relevance_models", two),
    ):
        png, svg = write(lambda name=name, arrays=arrays: getattr(overview, name)(arrays), tmp_path, name)
        assert png.read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in svg.read_bytes()
