"""Relevance models: the min-max model by hand, its fit to data and to networks, and the training-free pooling ratio."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError, InputError, PlanError
from deeptaylor.methods.relevance_fit import (
    LayerPlace,
    RelevanceSamples,
    collect,
    explain,
    fit,
    initialise_,
    make_start,
    unroll,
)
from deeptaylor.methods.relevance_model import MinMaxModel, measure_pooling_ratio, measure_r_squared
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.paper_networks import TwoLayer, WeightsError, save_network
from deeptaylor.paper import relevance_training, training
from deeptaylor.paper.digit_pairs import Digits, held_out_pairs
from deeptaylor.rules import Epsilon, Rule, WSquare, ZBox, ZPlus
from digit_bars import digit_bars
from min_max_samples import HIGH, LOW, drawn, known, seeded, trained_like
from untouched import changes, snapshot

RULES: dict[str, Rule] = {"w2": WSquare(), "z+": ZPlus(), "zB": ZBox(LOW, HIGH)}


# --- the formula ------------------------------------------------------------------------------------------------------


def by_hand() -> tuple[MinMaxModel, Tensor, Tensor]:
    """Two units of one group: v_1 = (1, −1), v_2 = (1/2, 1); x = (2, 1), R_l = 3."""
    model = MinMaxModel(inputs=2, upper=1, groups=1, units=2).double()
    with torch.no_grad():
        model.v_ij.copy_(torch.tensor([[[1.0, 0.5]], [[-1.0, 1.0]]]))
        model.v_lj.copy_(torch.tensor([[[0.5, 1.0]]]))
        model.d_j.copy_(torch.tensor([[-2.0, -1.0]]))
    return model, torch.tensor([[2.0, 1.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)


def test_prediction_by_hand() -> None:
    model, x, R_l = by_hand()
    # a_1 = min(0, 3/2 − 2) = −1/2;  a_2 = min(0, 3 − 1) = 0
    assert model.inhibition(R_l).tolist() == [[[-0.5, 0.0]]]
    # y_1 = 2 − 1 − 1/2 = 1/2;  y_2 = 1 + 1 + 0 = 2
    assert model.detection(x, R_l).tolist() == [[[0.5, 2.0]]]
    assert model(x, R_l).tolist() == [[2.5]]
    # Without relevance above: a = (−2, −1), y = (max(0, −1), 1)
    assert model.detection(x, 0 * R_l).tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # q_1 = (1, 1), q_2 = (1/4, 1): R = 1/2 (1/2, 1/2) + 2 (1/5, 4/5)
        (WSquare(), (0.65, 1.85)),
        # q_1 = (2, 0), q_2 = (1, 1): R = 1/2 (1, 0) + 2 (1/2, 1/2)
        (ZPlus(), (1.5, 1.0)),
        # l = −1, h = 3. q_1 = (2 + 1, −1 + 3) = (3, 2), q_2 = (1 + 1/2, 1 + 1) = (3/2, 2):
        # R = 1/2 (3/5, 2/5) + 2 (3/7, 4/7)
        (ZBox(-1.0, 3.0), (0.3 + 6 / 7, 0.2 + 8 / 7)),
    ],
    ids=str,
)
def test_propagation_by_hand(rule: Rule, expected: tuple[float, float]) -> None:
    model, x, R_l = by_hand()
    e = model.explain(x, R_l, rule)
    np.testing.assert_allclose(e.relevance.numpy(), [expected], rtol=1e-15)
    assert e.predicted.tolist() == [[2.5]]
    assert e.score.tolist() == [3.0]  # Σ_l R_l
    np.testing.assert_allclose(e.residual.numpy(), [0.5], rtol=1e-14)  # 3 − 5/2, the error of the fit
    assert model.explain(x, R_l, rule, score=torch.tensor([4.0])).score.tolist() == [4.0]


def test_inhibition_is_never_positive() -> None:
    model = trained_like()
    a_j = model.inhibition(drawn(model, 200)[1])
    assert (a_j <= 0).all()
    assert (a_j == 0).any()
    assert (a_j < 0).any()


# --- propagation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_relevance_is_positive_and_adds_up_to_what_is_predicted(name: str) -> None:
    model = trained_like()
    x, R_l = drawn(model, 100, low=0.0 if name == "z+" else LOW)
    e = model.explain(x, R_l, RULES[name])
    assert (e.relevance >= 0).all()
    assert float(e.predicted.min()) == 0 < float(e.predicted.max())
    np.testing.assert_allclose(e.relevance.sum(1).numpy(), e.predicted.sum(1).numpy(), rtol=0, atol=1e-10)
    assert not e.dropped.any()
    assert torch.equal(e.predicted, model(x, R_l))
    np.testing.assert_allclose(e.residual.numpy(), (R_l.sum(1) - e.predicted.sum(1)).numpy(), atol=1e-10)


@pytest.mark.parametrize("name", RULES)
def test_propagation_is_the_sum_over_units(name: str) -> None:
    """R_i = Σ_j q_ij / Σ_i' q_i'j y_j, written out."""
    model = trained_like()
    x, R_l = drawn(model, 10, low=0.0 if name == "z+" else LOW)
    v, y = model.v_ij.detach().flatten(1).numpy(), model.detection(x, R_l).detach().flatten(1).numpy()
    up, down = np.maximum(0, v), np.minimum(0, v)
    expected = np.zeros(x.shape)
    for n, x_n in enumerate(x.numpy()):
        q = {"w2": v**2, "z+": x_n[:, None] * up, "zB": x_n[:, None] * v - LOW * up - HIGH * down}[name]
        expected[n] = (q / q.sum(0) * y[n]).sum(1)
    np.testing.assert_allclose(model.explain(x, R_l, RULES[name]).relevance.numpy(), expected, rtol=0, atol=1e-12)


def test_inputs_keep_their_shape_and_bounds_fit_it() -> None:
    model = trained_like()
    x, R_l = drawn(model, 5)
    flat = model.explain(x, R_l, ZBox(LOW, HIGH))
    # Three channels of two pixels, a bound for each channel.
    box = ZBox([LOW] * 3, [HIGH] * 3)
    image = model.explain(x.reshape(5, 3, 1, 2), R_l, box)
    assert image.relevance.shape == (5, 3, 1, 2)
    assert torch.equal(image.relevance.flatten(1), flat.relevance)


def test_what_cannot_be_handed_on_is_dropped_and_said() -> None:
    """Denormal weights: y_j > 0, but Σ q = Σ v² is zero, and 0/0 hands out nothing."""
    model = MinMaxModel(1, 1, 1, 1).double()
    with torch.no_grad():
        model.v_ij.fill_(1e-200)
    x, R_l = torch.tensor([[3.0]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    e = model.explain(x, R_l, WSquare())
    assert e.relevance.tolist() == [[0.0]]
    assert e.dropped.tolist() == e.predicted.sum(1).tolist() == [3e-200]


@pytest.mark.parametrize(
    ("change", "rule", "error", "said"),
    [
        ({}, ZPlus(), InputError, "declared non-negative"),
        ({}, ZBox(0.0, 1.0), InputError, "declared in the box"),
        ({}, ZBox(), PlanError, "WSquare.*ZPlus.*ZBox"),
        ({}, Epsilon(), PlanError, "WSquare.*ZPlus.*ZBox"),
        ({"x": torch.zeros(4, 5, dtype=torch.float64)}, WSquare(), InputError, r"x must hold 6 numbers"),
        ({"R_l": torch.zeros(3, 5, dtype=torch.float64)}, WSquare(), InputError, r"R_l must hold 5 .* 4 samples"),
        ({"R_l": torch.zeros(4, 5)}, WSquare(), InputError, r"R_l is torch.float32"),
        ({"R_l": -torch.ones(4, 5, dtype=torch.float64)}, WSquare(), InputError, "R_l holds negative"),
        ({"x": torch.full((4, 6), math.nan, dtype=torch.float64)}, WSquare(), InputError, "x holds numbers .* NaN"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    change: dict[str, Tensor], rule: Rule, error: type[DeepTaylorError], said: str
) -> None:
    model = trained_like()
    x, R_l = drawn(model, 4)
    with pytest.raises(error, match=said):
        model.explain(**{"x": x, "R_l": R_l, **change}, rule=rule)


# --- networks ---------------------------------------------------------------------------------------------------------


class Small(nn.Module):
    """Convolution, max pooling, and two layers of detection above."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.relu = nn.Conv2d(1, 3, 3), nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.linear1, self.relu1 = nn.Linear(27, 12), nn.ReLU()
        self.linear2, self.relu2 = nn.Linear(12, 8), nn.ReLU()
        self.out = nn.Linear(8, 2)
        with torch.no_grad():
            for layer in (self.conv, self.linear1, self.linear2, self.out):
                nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.linear1(self.pool(self.relu(self.conv(x))).flatten(1)))
        return self.out(self.relu2(self.linear2(h)))  # type: ignore[no-any-return]


def small_images(count: int, seed: int) -> Tensor:
    """Blobs: a bright square somewhere on a dim ground."""
    generator = seeded(seed)
    x = 0.2 * torch.rand(count, 1, 8, 8, generator=generator)
    corners = torch.randint(0, 6, (count, 2), generator=generator)
    for image, (i, j) in zip(x, corners.tolist(), strict=True):
        image[0, i : i + 3, j : j + 3] += 0.8
    return x


MAX_POOLED = LayerPlace(lower="x", pooled="pool", upper="relu1")


@pytest.mark.parametrize("from_layer", [True, False])
def test_fit_to_a_convolutional_network_with_max_pooling(from_layer: bool) -> None:
    network = Small()
    explainer = dt.Explainer(network, small_images(2, 0), dt.Box(0.0, 1.0), bias="neuron")
    before = snapshot(network)
    layer: dict[str, Any] = {"detection": network.conv, "pooling": network.pool} if from_layer else {}
    batches = [small_images(2000, 1), small_images(2000, 2)]
    model = fit(explainer, MAX_POOLED, batches, target=1, steps=2000, **layer)
    assert tuple(model.v_ij.shape) == (64, 27, 4)
    assert not changes(network, before)
    x = small_images(500, 3)
    held_out = collect(explainer, MAX_POOLED, x, 1)
    assert torch.equal(held_out.R_k, explainer.relevance_at("pool", x, 1))
    assert measure_r_squared(model, held_out.x, held_out.R_l, held_out.R_k) > 0.9
    e = explain(model, explainer, MAX_POOLED, x, ZBox(0.0, 1.0), 1)
    assert e.relevance.shape == x.shape
    assert (e.relevance >= 0).all()
    assert torch.equal(e.score, explainer.explain(x, 1).score.clamp(min=0))
    np.testing.assert_allclose(e.relevance.flatten(1).sum(1).numpy(), e.predicted.sum(1).numpy(), rtol=1e-4, atol=1e-5)
    assert not changes(network, before)


def test_a_layer_inside_a_network_is_fitted_from_its_activations() -> None:
    network = Small()
    explainer = dt.Explainer(network, small_images(2, 0), dt.Box(0.0, 1.0), bias="neuron")
    x = small_images(200, 1)
    samples = collect(explainer, LayerPlace("pool", "relu1", "relu2"), x, 1)
    with torch.no_grad():
        assert torch.equal(samples.x, network.pool(network.relu(network.conv(x))))
    assert samples.R_k.shape == (200, 12)
    assert samples.R_l.shape == (200, 8)
    model = make_start(samples, nn.Sequential(nn.Flatten(), network.linear1), lambda x_j: x_j).model
    assert tuple(model.v_ij.shape) == (27, 12, 1)
    e = model.explain(samples.x, samples.R_l, ZPlus())
    assert e.relevance.shape == samples.x.shape
    assert (e.relevance >= 0).all()


def test_a_place_that_is_none_is_refused() -> None:
    explainer = dt.Explainer(Small(), small_images(2, 0), dt.Box(0.0, 1.0), bias="neuron")
    with pytest.raises(dt.BoundaryError, match=r"no node or module 'pol'\. Did you mean 'pool'"):
        collect(explainer, LayerPlace("x", "pol", "relu1"), small_images(2, 1))
    with pytest.raises(PlanError, match="No detection layer reads 'conv'"):
        collect(explainer, LayerPlace("conv", "pool", "relu1"), small_images(2, 1))


def test_a_layer_is_unrolled_window_by_window() -> None:
    network, x = Small(), small_images(7, 1)
    v_ij, d_j = unroll(network.conv, network.pool, x)
    with torch.no_grad():
        z = (x.flatten(1) @ v_ij.flatten(1) + d_j.flatten()).unflatten(1, d_j.shape)
        pooled = network.pool(network.conv(x)).flatten(1)
    np.testing.assert_allclose(z.amax(2).numpy(), pooled.numpy(), atol=1e-6)


def test_windows_of_different_sizes_are_filled_up() -> None:
    """Windows (0, 1) and (2): the second has a unit without weights."""
    layer, x = nn.Linear(2, 3), torch.randn(4, 2, generator=seeded(0))
    v_ij, d_j = unroll(layer, lambda x_j: torch.stack([x_j[:, :2].sum(1), x_j[:, 2]], 1), x)
    np.testing.assert_allclose(v_ij[:, 0].numpy(), layer.weight[:2].T.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(v_ij[:, 1, 0].numpy(), layer.weight[2].detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(d_j[0].numpy(), layer.bias[:2].detach().numpy())
    assert not v_ij[:, 1, 1].any()
    assert d_j[1, 1] == 0


@pytest.mark.parametrize(
    ("detection", "pooling", "said"),
    [
        (nn.Sequential(nn.Linear(6, 12), nn.ReLU()), lambda x: x.unflatten(1, (3, 4)).sum(2), "not affine"),
        (nn.Linear(6, 8), lambda x: x.unflatten(1, (2, 4)).sum(2), "pooled to 2 units, the pooled layer named has 3"),
        (nn.Linear(6, 12), None, "give both"),
        (None, lambda x: x, "give both"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(
    detection: nn.Module | None, pooling: Callable[[Tensor], Tensor] | None, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        make_start(known(50, 1), detection if detection is None else detection.double(), pooling)


def test_the_start_is_scaled_and_inhibited() -> None:
    """Two groups of one unit; the bias of the second is too high and goes."""
    model = MinMaxModel(1, 1, 2, 1).double()
    with torch.no_grad():
        model.v_ij.fill_(1.0)
        model.d_j.copy_(torch.tensor([[-1.0], [5.0]]))
    # x = (2, 4), R_k = ((0, 1), (6, 2)). First group: R̂ = (1, 3), scale = 18 / 10, y = (1.8, 5.4), mean 3.6.
    # Second: R̂ = (2, 4), scale = (2 + 8) / (4 + 16) = 1/2, y = (1, 2), mean 1.5; d = min(0, 2.5 − 1.5).
    x, R_l, R_k = [[2.0], [4.0]], [[0.0], [7.0]], [[0.0, 1.0], [6.0, 2.0]]
    initialise_(model, RelevanceSamples(*(torch.tensor(t, dtype=torch.float64) for t in (x, R_l, R_k))))
    np.testing.assert_allclose(model.v_ij.detach().flatten().numpy(), [1.8, 0.5])
    np.testing.assert_allclose(model.d_j.detach().flatten().numpy(), [-1.8 - 3.6, 0.0])
    assert not model.v_lj.any()


# --- the two-layer network, and files ---------------------------------------------------------------------------------


def digits() -> Digits:
    return digit_bars(100)


@pytest.mark.slow
def test_two_layer_network() -> None:
    network = TwoLayer(seed=0)
    before = snapshot(network)
    model = relevance_training.train(network, digits(), steps=300)
    assert tuple(model.v_ij.shape) == (1568, 100, 4)
    assert tuple(model.v_lj.shape) == (400, 100, 4)
    assert not changes(network, before)
    images = held_out_pairs(digits(), 100).images
    assert relevance_training.evaluate(model, network, images)["r_squared"] > 0.9


def test_the_places_of_the_two_layer_network() -> None:
    """x_i are the pixels, R_l = x_l, and R_k = Σ_l x_k w⁺_kl / Σ_k' x_k' w⁺_k'l R_l."""
    network, images = TwoLayer(seed=0), held_out_pairs(digits(), 10).images
    samples = collect(paper_networks.two_layer_explainer(network), paper_networks.TWO_LAYER, images)
    with torch.no_grad():
        x_k, w = network.features(images), network.detection2.weight.T.clamp(min=0)
        x_l = network.relu2(network.detection2(x_k))
    assert torch.equal(samples.x, images)
    np.testing.assert_allclose(samples.R_l.numpy(), x_l.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(samples.R_k.numpy(), (x_k * ((x_l / (x_k @ w)) @ w.T)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(relevance_training, "load_digits", lambda folder: digits())
    monkeypatch.setattr(training, "_HELD_OUT", 50)
    weights, out = tmp_path / "net.safetensors", tmp_path / "new" / "model.safetensors"
    save_network(TwoLayer(seed=0), weights)
    assert relevance_training.main(["--out", str(out), "--steps", "20", "--network", str(weights)]) == 0
    said = capsys.readouterr().out
    assert "20 steps" in said
    assert said.count("R² 0.") == 2
    assert tuple(paper_networks.load_relevance_model(out).v_ij.shape) == (1568, 100, 4)
    assert relevance_training.main(["--out", str(out), "--steps", "1", "--network", str(tmp_path / "none")]) == 2
    assert "no weights could be read" in capsys.readouterr().err
    assert relevance_training.main(["--out", str(out), "--steps", "0", "--network", str(weights)]) == 2
    assert "error: steps must be a whole number" in capsys.readouterr().err


def test_save_and_load(tmp_path: Path) -> None:
    model = trained_like()
    path = paper_networks.save_relevance_model(model, tmp_path / "model.safetensors", {"steps": "7"})
    again = paper_networks.load_relevance_model(path)
    assert {k: v.tolist() for k, v in again.state_dict().items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }
    x, R_l = drawn(model, 3)
    assert torch.equal(again(x, R_l), model(x, R_l))
    assert not again.training


def test_files_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"python -m deeptaylor\.paper\.relevance_training"):
        paper_networks.load_relevance_model(tmp_path / "none")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(WeightsError, match="not a safetensors file"):
        paper_networks.load_relevance_model(tmp_path / "junk")
    save_network(TwoLayer(), tmp_path / "network")
    with pytest.raises(WeightsError, match=r"detection1.bias.*expected v_ij"):
        paper_networks.load_relevance_model(tmp_path / "network")
    broken = trained_like()
    with torch.no_grad():
        broken.d_j[0, 0] = math.nan
    with pytest.raises(WeightsError, match="finite"):
        paper_networks.load_relevance_model(paper_networks.save_relevance_model(broken, tmp_path / "nan"))


@pytest.mark.parametrize("size", ["inputs", "upper", "groups", "units"])
def test_a_model_of_no_size_is_refused(size: str) -> None:
    with pytest.raises(InputError, match=f"{size} must be a whole number, at least 1; got 0"):
        MinMaxModel(**{**dict.fromkeys(("inputs", "upper", "groups", "units"), 2), size: 0})


# --- the training-free model: the pooling ratio -----------------------------------------------------------------------

NORMS = [1.0, 2.0, 3.0, 10.0, math.inf]


@pytest.mark.parametrize(
    ("p", "expected"),
    # (3, 4): ‖x‖_1 = 7; ‖x‖_2 = 5; ‖x‖_3 = (27 + 64)^(1/3); ‖x‖_∞ = 4
    [(1, 1.0), (2, 5 / 7), (3, 91 ** (1 / 3) / 7), (math.inf, 4 / 7)],
)
def test_pooling_ratio_by_hand(p: float, expected: float) -> None:
    assert float(measure_pooling_ratio(torch.tensor([3.0, 4.0], dtype=torch.float64), p)) == pytest.approx(
        expected, rel=1e-14
    )


@pytest.mark.parametrize("p", NORMS)
def test_pooling_ratio_is_constant_under_permutation_and_scaling(p: float) -> None:
    x = torch.rand(50, 6, dtype=torch.float64, generator=seeded(0))
    c = measure_pooling_ratio(x, p)
    assert c.shape == (50,)
    order = torch.randperm(6, generator=seeded(1))
    np.testing.assert_allclose(measure_pooling_ratio(x[:, order], p).numpy(), c.numpy(), rtol=1e-14)
    for scale in (1e-200, 3.7, 1e200):  # powers of these would not be numbers
        np.testing.assert_allclose(measure_pooling_ratio(scale * x, p).numpy(), c.numpy(), rtol=1e-13)


@pytest.mark.parametrize("p", NORMS)
def test_pooling_ratio_lies_between_all_alike_and_one_alone(p: float) -> None:
    x = torch.rand(50, 6, dtype=torch.float64, generator=seeded(0))
    least = 6 ** (1 / p - 1)
    assert (measure_pooling_ratio(x, p) >= least * (1 - 1e-14)).all()
    assert (measure_pooling_ratio(x, p) <= 1 + 1e-14).all()
    assert float(measure_pooling_ratio(torch.ones(6, dtype=torch.float64), p)) == pytest.approx(least, rel=1e-14)
    assert float(measure_pooling_ratio(torch.eye(6)[2], p)) == 1
    assert float(measure_pooling_ratio(torch.zeros(6), p)) == 0


def test_pooling_ratio_refuses_what_is_no_norm() -> None:
    for p in (0.5, math.nan):
        with pytest.raises(InputError, match="p must be a number from 1"):
            measure_pooling_ratio(torch.ones(3), p)
    with pytest.raises(InputError, match="declared non-negative"):
        measure_pooling_ratio(-torch.ones(3), 2)


class Pooled(nn.Module):
    """Detection, L^p pooling in fours, detection; biases at zero."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.lower, self.lower_relu = nn.Linear(6, 20, bias=False), nn.ReLU()
        self.pool = pool
        self.upper, self.upper_relu = nn.Linear(5, 7, bias=False), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.upper_relu(self.upper(self.pool(self.lower_relu(self.lower(x))))).sum(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("p", NORMS)
def test_the_engine_pools_as_the_training_free_model_says(p: float) -> None:
    """R_k = (Σ_j x_j) · c_k · d_k with d_k = Σ_l w⁺_kl R_l / Σ_k' x_k' w⁺_k'l, and R_j = x_j / Σ_j' x_j' R_k."""
    network = Pooled(nn.MaxPool1d(4) if p == math.inf else nn.LPPool1d(p, 4)).double()
    x = torch.rand(8, 6, dtype=torch.float64, generator=seeded(4)) * 3 - 1
    e = dt.explain(network, x, domain=dt.Box(-1.0, 2.0), bias="neuron")
    with torch.no_grad():
        x_j = network.lower_relu(network.lower(x)).unflatten(1, (5, 4))
        x_k, w = network.pool(x_j.flatten(1)), network.upper.weight.T.clamp(min=0)
    R_l, R_k, R_j = e.at("upper_relu"), e.at("pool"), e.at("lower_relu").unflatten(1, (5, 4))
    total = x_k @ w
    d_k = torch.where(total > 0, R_l / total, 0) @ w.T
    assert float(R_k.max()) > 0
    np.testing.assert_allclose(
        R_k.numpy(), (x_j.sum(2) * measure_pooling_ratio(x_j, p) * d_k).numpy(), rtol=0, atol=1e-12
    )
    share = torch.where(x_j.sum(2) > 0, R_k / x_j.sum(2), 0)
    np.testing.assert_allclose(R_j.numpy(), (x_j * share[:, :, None]).numpy(), rtol=0, atol=1e-12)
