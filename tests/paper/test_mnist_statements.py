"""Statements of the paper's text: measured as they are said, by code that shares nothing with the package's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.models.networks.paper_networks import BOX, OneLayer, TwoLayer, two_layer_explainer
from deeptaylor.paper import mnist_statements as statements
from deeptaylor.paper.relevance_training import compute_context


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.rand(6, 1, 28, 56, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 0.5


def test_garson_by_loops(x: torch.Tensor) -> None:
    network, before = OneLayer(seed=1).double(), OneLayer(seed=2).double()
    found = statements.compare_with_garson(network, before, x)
    W, b = network.detection.weight.detach().numpy(), network.detection.bias.detach().numpy()
    squared, absolute = np.zeros((2, 6, 1568))
    for n, point in enumerate(x.flatten(1).numpy()):
        for w, bias in zip(W, b, strict=True):
            R = max(0.0, point @ w + bias)
            squared[n] += w**2 / (w**2).sum() * R
            absolute[n] += abs(w) / abs(w).sum() * R
    np.testing.assert_allclose(
        found["alike"], [np.corrcoef(s, a)[0, 1] for s, a in zip(squared, absolute, strict=True)]
    )
    np.testing.assert_allclose(found["others"], [np.corrcoef(squared[n], squared[n - 1])[0, 1] for n in range(6)])
    assert np.abs(found["untrained"]).max() < 0.2 < found["alike"].min()


def test_matrices_computed_once_give_the_same_maps(x: torch.Tensor) -> None:
    found = statements.reuse_matrices(OneLayer(seed=1).double(), OneLayer(seed=2).double(), x, BOX)
    for rule in ("w2", "zB"):
        assert found[f"{rule}_gap"] < 1e-13
        assert found[f"{rule}_untrained_gap"] > 0.01
        assert found[f"{rule}_seconds"].shape == (3,)  # reused, made anew, and made anew once more
        assert (found[f"{rule}_seconds"] >= 0).all()


def test_layers_keep_the_score_unless_one_of_them_does_not(x: torch.Tensor) -> None:
    network = TwoLayer(seed=1).double()
    found = statements.follow_layers(network, x, BOX)
    f = network(x).detach().numpy()
    alive = f > 0
    assert alive.any()
    assert found["sums"].shape == (4, 6)  # the upper detectors, the pooled units, the lower detectors, the pixels
    np.testing.assert_allclose(found["sums"][:, alive], np.broadcast_to(f, (4, 6))[:, alive], rtol=1e-12)
    assert found["lowest"].min() >= 0
    np.testing.assert_allclose(found["broken_sums"][0], found["sums"][0])  # above the layer that is broken
    assert (found["broken_sums"][1:, alive] < 0.999 * f[alive]).all()


def test_contexts_change_on_the_way_to_a_root_as_the_networks_say(x: torch.Tensor) -> None:
    """d_k from the explainer's own relevances, R_j = x_j d_k; a_j of a model that looks at nothing stays."""
    network, model = TwoLayer(seed=1).double(), MinMaxModel(1568, 400, 100, 4, seed=3).double()
    found = statements.follow_context(network, model, x, BOX)
    assert {values.shape for values in found.values()} == {(6, statements.FOLLOWED)}
    assert found["inhibition"].max() == 0  # v_lj = 0 and d_j = 0
    with torch.no_grad():
        model.v_lj.fill_(-0.01)
        found = statements.follow_context(network, model, x, BOX)
    assert found["inhibition"].mean() > 0.01
    assert found["context"].mean() < found["context_other"].mean()
    explainer = two_layer_explainer(network)
    R_k, x_k = explainer.relevance_at("sum_1", x), network.features(x)
    torch.testing.assert_close(x_k * compute_context(network, x)[2], R_k)


def test_the_box_is_what_may_be_chosen(x: torch.Tensor) -> None:
    found = statements.widen_box(OneLayer(seed=1).double(), x, BOX)
    assert found["alike"].min() > 0.9
    assert found["alike"].mean() > found["other"].mean()
