"""Relevance models of one's own network: found, fitted, resumed, explained through, kept in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import InputError, PlanError
from deeptaylor.methods.relevance_models import find_place
from deeptaylor.rules import WSquare, ZBox, ZPlus
from deeptaylor.support.tensor_files import WeightsError
from untouched import changes, snapshot


class Known(nn.Module):
    """One detection layer above the pooled one, whose weights are all alike.

    R_k = x_k / Σ_k' x_k' · R_l with f = R_l = Σ_k x_k: so R_k = x_k, and the layer's own weights are the best model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.detection, self.relu = nn.Linear(5, 8, bias=False), nn.ReLU()
        self.above, self.relu_above = nn.Linear(4, 1, bias=False), nn.ReLU()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            self.detection.weight.normal_(0, 1, generator=generator)
            self.above.weight.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        x_k = self.relu(self.detection(x)).unflatten(1, (4, 2)).sum(2)
        score: Tensor = self.relu_above(self.above(x_k))
        return score


class Deep(nn.Module):
    """Convolution, max pooling, two layers of detection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.relu, self.pool = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.linear1, self.relu1 = nn.Linear(27, 12), nn.ReLU()
        self.linear2, self.relu2 = nn.Linear(12, 12), nn.ReLU()
        self.out = nn.Linear(12, 2)
        with torch.no_grad():
            self.out.weight.abs_()  # so that there is a score to explain

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.linear1(self.pool(self.relu(self.conv(x))).flatten(1)))
        y: Tensor = self.out(self.relu2(self.linear2(h)))
        return y


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def known() -> dt.Explainer:
    return dt.Explainer(Known(), drawn(2, 5), dt.Box(0.0, 1.0))


def deep() -> dt.Explainer:
    return dt.Explainer(Deep(), drawn(2, 1, 8, 8), dt.Box(0.0, 1.0), bias="neuron")


def test_a_network_whose_relevance_is_known() -> None:
    """R_k = x_k: from the layer's own weights the model is right before any training, and its maps are the same."""
    explainer = known()
    fitted = dt.relevance_models.fit(explainer, "sum_1", drawn(400, 5), steps=20, detection=explainer.model.detection,
                                     pooling=lambda x_j: x_j.unflatten(1, (4, 2)).sum(2))  # fmt: skip
    x = drawn(50, 5, seed=1)
    quality = fitted.quality(x)
    assert quality.r_squared > 0.9999
    assert quality.correlation > 0.9999
    assert quality.gap < 1e-3
    np.testing.assert_allclose(fitted.explain(x).relevance.numpy(), explainer.explain(x).relevance.numpy(), atol=1e-3)


def test_from_a_random_start_the_known_relevance_is_learned() -> None:
    fitted = dt.relevance_models.fit(known(), "sum_1", drawn(2000, 5), steps=6000, units=2, begin="random", seed=1)
    assert fitted.quality(drawn(200, 5, seed=1)).r_squared > 0.95


@pytest.mark.parametrize(
    ("layer", "lower", "upper", "units"),
    [("pool", "x", "relu_1", 4), ("relu", "x", None, 1), ("relu1", "max_pool", "relu_2", 1)],
)
def test_places_are_found(layer: str, lower: str, upper: str | None, units: int) -> None:
    explainer, x = deep(), drawn(2, 1, 8, 8)
    if upper is None:  # a max pooling, not a layer with weights, reads it
        with pytest.raises(PlanError, match="needs exactly one layer with weights and a ReLU above 'relu'"):
            find_place(explainer, layer, x)
        return
    here = find_place(explainer, layer, x)
    assert (here.place.lower, here.place.upper) == (lower, upper)
    assert here.detection is not None
    assert here.pooling is not None
    fitted = dt.relevance_models.fit(explainer, layer, drawn(60, 1, 8, 8), target=1, steps=5)
    assert fitted.model.d_j.shape[1] == units


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("linear1", "inside the detection block|pools no detection layer"),
        ("relu2", "needs exactly one layer with weights and a ReLU above 'relu2'"),
        ("x", "pools no detection layer"),
        ("pol", "no node or module 'pol'"),
    ],
)
def test_layers_without_a_model_are_refused(layer: str, said: str) -> None:
    with pytest.raises(dt.DeepTaylorError, match=said):
        dt.relevance_models.fit(deep(), layer, drawn(60, 1, 8, 8), steps=5)


def test_explaining_through_an_inner_layer_goes_on_to_the_input() -> None:
    explainer, x = deep(), drawn(6, 1, 8, 8, seed=2)
    before = snapshot(explainer.model)
    fitted = dt.relevance_models.fit(explainer, "relu1", drawn(400, 1, 8, 8), target=1, steps=400)
    assert isinstance(fitted.rule, ZPlus)
    e = fitted.explain(x, 1)
    assert e.relevance.shape == x.shape
    assert (e.relevance >= 0).all()
    assert fitted.quality(x, 1).r_squared > 0.8
    assert not changes(explainer.model, before)
    # With the true R of the layer's input in place of the model's, the map would be the explainer's own.
    onward = fitted.onward(explainer.relevance_at("pool", x, 1), (x,))
    np.testing.assert_allclose(onward.numpy(), explainer.explain(x, 1).relevance.numpy(), rtol=1e-4, atol=1e-6)


def test_the_residual_is_what_the_model_missed() -> None:
    fitted = dt.relevance_models.fit(deep(), "pool", drawn(300, 1, 8, 8), target=1, steps=100)
    assert isinstance(fitted.rule, ZBox)
    e = fitted.explain(drawn(9, 1, 8, 8, seed=2), 1)
    missed = e.score - e.relevance.flatten(1).sum(1)
    np.testing.assert_allclose(e.ledger.residual.numpy(), missed.numpy(), atol=1e-6)
    assert any("of the score is not in the layer above 'pool'" in note for note in e.notes)
    assert isinstance(
        dt.relevance_models.fit(deep(), "pool", drawn(60, 1, 8, 8), target=1, steps=5, rule=WSquare()).rule, WSquare
    )


class StopError(Exception):
    """The training is broken off."""


@pytest.mark.parametrize("as_tensor", [True, False])
def test_a_fit_that_was_broken_off_goes_on_to_the_same_bytes(tmp_path: Path, as_tensor: bool) -> None:
    pytest.importorskip("safetensors")
    data: Any = drawn(500, 5) if as_tensor else list(drawn(500, 5).split(100))
    settings: dict[str, Any] = {"steps": 120, "checkpoint_every": 20}
    whole = dt.relevance_models.fit(known(), "sum_1", data, **settings)

    def stop(step: int, loss: float) -> None:
        if step > 60:
            raise StopError

    file = tmp_path / "fit.checkpoint"
    with pytest.raises(StopError):
        dt.relevance_models.fit(known(), "sum_1", data, **settings, checkpoint=file, progress=stop)
    assert file.exists()
    seen: list[int] = []
    resumed = dt.relevance_models.fit(
        known(), "sum_1", data, **settings, checkpoint=file, progress=lambda step, loss: seen.append(step)
    )
    assert min(seen) > 60
    a, b = (m.save(tmp_path / name).read_bytes() for m, name in ((whole, "a"), (resumed, "b")))
    assert a == b
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(InputError, match=r"checkpoint of another training \(seed 0, now 1\)"):
        dt.relevance_models.fit(known(), "sum_1", data, **settings, checkpoint=file, seed=1)


def test_files(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    explainer, x = known(), drawn(20, 5, seed=1)
    fitted = dt.relevance_models.fit(explainer, "sum_1", drawn(200, 5), steps=30)
    again = dt.relevance_models.load(fitted.save(tmp_path / "m", {"seed": "0"}), explainer, x)
    assert again.place == fitted.place
    assert torch.equal(again.explain(x).relevance, fitted.explain(x).relevance)
    with pytest.raises(dt.DeepTaylorError, match=r"no node or module 'sum_1'|another network"):
        dt.relevance_models.load(tmp_path / "m", deep(), drawn(2, 1, 8, 8))
    with pytest.raises(WeightsError, match="no weights could be read"):
        dt.relevance_models.load(tmp_path / "none", explainer, x)


def test_no_data_is_refused() -> None:
    with pytest.raises(InputError, match="it is empty"):
        dt.relevance_models.fit(known(), "sum_1", [])
