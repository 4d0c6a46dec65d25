"""One number of faithfulness: what the network does when an explanation is believed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.deletion import Case, Flipping, measure_flipping_area

ONE_CLASS = "Flipping measures maps of one class of one input: explain"


class Spot(nn.Module):
    """Its first class grows with the middle of the picture alone."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        w = torch.zeros(classes, 1, 28, 28, dtype=torch.float64)
        w[0, 0, 12:16, 12:16] = 0.1
        self.w = nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).flatten(1) @ self.w.flatten(1).T


def pictures(batch: int = 2) -> Tensor:
    x = torch.rand(batch, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, :, 12:16, 12:16] += 1
    return x


def explainer(network: nn.Module | None = None) -> dt.Explainer:
    return dt.Explainer(network or Spot(), pictures(), dt.NonNegative())


def test_the_area_is_that_of_the_metric_and_stands_in_the_text() -> None:
    net, x = Spot(), pictures()
    e = dt.Explainer(net, x, dt.NonNegative()).explain(x, 0)
    wanted = Flipping(patch=2).measure(Case(net, x, torch.tensor([0, 0])), e.heatmap()).values
    check = e.check(faithful=True)
    assert check.flipping == pytest.approx(float(wanted.mean()), abs=1e-12)
    assert check.flipping > 0.05
    (line,) = [line for line in str(check).splitlines() if line.startswith("Faithful")]
    assert line.startswith(f"Faithful: {check.flipping:.2f}. Hiding the least relevant patches leaves the class's")


def test_it_is_asked_for_only_where_it_is_wanted() -> None:
    net = Spot()
    e = dt.Explainer(net, pictures(), dt.NonNegative()).explain(pictures(), 0)
    net.register_forward_hook(lambda *_: pytest.fail("the network was asked"))
    check = e.check()
    assert check.flipping is None
    assert "faithful" not in str(check)


@pytest.mark.parametrize("target", [None, 0, torch.tensor([0, 0])])
def test_targets_that_name_one_class(target: Any) -> None:
    net, x = Spot(), pictures()
    wanted = measure_flipping_area(net, (x,), 0, x[:, 0] * net.w[0, 0].detach())
    assert torch.allclose(measure_flipping_area(net, (x,), target, x[:, 0] * net.w[0, 0].detach()), wanted)
    assert explainer(net).explain(x, target).check(faithful=True).flipping == pytest.approx(float(wanted.mean()))


def test_the_class_that_is_asked_for_counts() -> None:
    net, x = Spot(), pictures()
    R = x[:, 0] * net.w[0, 0].detach()
    # What speaks for one of two classes speaks against the other.
    assert torch.allclose(measure_flipping_area(net, (x,), 1, R), -measure_flipping_area(net, (x,), 0, R))


def test_probabilities_of_the_networks_own_are_taken_as_they_are() -> None:
    net, x = Spot(), pictures()
    R = x[:, 0] * net.w[0, 0].detach()
    own = nn.Sequential(net, nn.Softmax(1))
    assert torch.allclose(measure_flipping_area(own, (x,), 0, R), measure_flipping_area(net, (x,), 0, R))


def test_a_contrast_is_asked_about_its_distinctive_part() -> None:
    net, x = Spot(3), pictures()
    with torch.no_grad():
        net.w[1, 0, 12:16, 12:16] = 0.05
        net.w[1, 0, 2:6, 2:6] = 0.05
    c = explainer(net).contrast(x, 0)
    assert c.check(faithful=True).flipping == pytest.approx(
        float(measure_flipping_area(net, (x,), 0, c.heatmap()).mean())
    )


def test_a_vector_goes_place_by_place_and_the_mode_is_kept() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.9), nn.Linear(8, 3)).double().train()
    x = torch.rand(2, 6, dtype=torch.float64)
    with pytest.warns(dt.DeepTaylorWarning, match="in training mode"):
        found = measure_flipping_area(net, (x,), 1, torch.rand(2, 6, dtype=torch.float64))
    assert found.shape == (2,)
    assert net.training


class Turned(nn.Module):
    """A network for inputs whose channels lie elsewhere, or that have none."""

    def __init__(self, network: nn.Module, axis: int | tuple[()]) -> None:
        super().__init__()
        self.network, self.axis = network, axis

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.movedim(self.axis, 1) if isinstance(self.axis, int) else x.unsqueeze(1))


@pytest.mark.parametrize("axis", [3, -1, ()])
def test_channels_may_lie_elsewhere(axis: int | tuple[()]) -> None:
    net, x = Spot(), pictures()
    wanted = dt.Explainer(net, x, dt.NonNegative()).explain(x, 0).check(faithful=True).flipping
    moved = x.movedim(1, axis) if isinstance(axis, int) else x.squeeze(1)
    e = dt.Explainer(Turned(net, axis), moved, dt.NonNegative()).explain(moved, 0)
    assert e.check(faithful=True, axis=axis).flipping == pytest.approx(wanted)


def test_without_an_axis_inputs_of_two_are_refused() -> None:
    x = pictures().squeeze(1)
    e = dt.Explainer(Turned(Spot(), ()), x, dt.NonNegative()).explain(x, 0)
    with pytest.raises(dt.InputError, match="which does not say what to sum over"):
        e.check(faithful=True)


@pytest.mark.parametrize("target", [dt.margin(0, 1), torch.tensor([[0, 1], [0, 1]]), lambda y: y[:, 0] ** 2])
def test_other_targets_are_refused(target: Any) -> None:
    e = explainer().explain(pictures(), target)
    with pytest.raises(dt.InputError):
        e.check(faithful=True)


def test_margins_and_several_classes_are_refused_by_what_they_are() -> None:
    net, x = Spot(), pictures()
    for target in (dt.margin(0, 1), torch.tensor([[0, 1], [0, 1]]), torch.ones(2, 2)):
        with pytest.raises(dt.InputError, match=ONE_CLASS):
            measure_flipping_area(net, (x,), target, x[:, 0])


def test_several_inputs_are_refused() -> None:
    class Two(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.relu(a) + torch.relu(b)

    x = torch.rand(2, 4, dtype=torch.float64)
    e = dt.Explainer(Two(), (x, x), dt.NonNegative()).explain((x, x), 0)
    with pytest.raises(dt.InputError, match=ONE_CLASS):
        e.check(faithful=True)


@pytest.mark.parametrize("network", [Spot(1), nn.Sequential(Spot(1), nn.Flatten(0))])
def test_one_number_has_no_probability(network: nn.Module) -> None:
    e = explainer(network).explain(pictures())
    with pytest.raises(
        dt.InputError, match=r"needs the probability of a class: an output of shape \(batch, classes ≥ 2\)"
    ):
        e.check(faithful=True)


def test_a_loaded_explanation_and_other_methods_cannot_ask() -> None:
    e = explainer().explain(pictures(), 0)
    loaded = pickle.loads(pickle.dumps(e))
    for one in (loaded, dt.sensitivity(Spot(), pictures(), 0)):
        assert "faithful" not in str(one.check())
        with pytest.raises(dt.InputError, match=r"cannot call its network: it was loaded from a file, or made by a"):
            one.check(faithful=True)


def test_a_network_that_was_changed_since_is_not_asked() -> None:
    net = Spot()
    e = explainer(net).explain(pictures(), 0)
    with torch.no_grad():
        net.w.mul_(2)
    with pytest.raises(dt.StaleModelError):
        e.check(faithful=True)
