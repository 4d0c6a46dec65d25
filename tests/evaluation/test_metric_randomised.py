"""Randomised parameters: which, in which order, and what maps make of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case
from deeptaylor.errors import InputError
from deeptaylor.evaluation.metrics import BottomUp, Complexity, TopDown, complexity, list_layers, randomise
from deeptaylor.support.statistics import spearman
from known_truth import case, random_maps
from small_networks import Attention, Net, batch
from untouched import changes, snapshot


class Backwards(nn.Module):
    """Its layers are written from the output down, and the first is only read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.body, self.norm, self.first = (
            nn.Linear(4, 3),
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            nn.Linear(2, 4),
        )
        self.unit = nn.Sequential(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unit(self.body(self.norm(self.first(x)))))


def net() -> Net:
    return Net().eval().double()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items() if t.is_floating_point()}


def changed(model: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name.rpartition(".")[0] for name, t in weights(model).items() if not torch.equal(t, before[name])}


def test_layers_are_in_the_order_in_which_they_run() -> None:
    assert list_layers(Backwards().eval(), torch.rand(2, 2)) == ["first", "norm", "body", "head"]
    assert list_layers(net(), batch(2)) == ["conv1", "bn1", "squeeze", "excite", "conv2", "bn2", "head"]
    # A token of the network's own comes first; a projection that is only read, with the attention that reads it.
    found = list_layers(Attention().eval(), torch.rand(2, 3, 4))
    assert found == ["", "embed", "norm", "attend", "attend.out_proj", "head"]


@pytest.mark.parametrize("top_down", [True, False])
@pytest.mark.parametrize("how", ["permuted", "reset"])
def test_layers_are_randomised_one_after_the_other(top_down: bool, how: str) -> None:
    model = net()
    before, was = weights(model), snapshot(model)
    order = list_layers(model, batch(2))
    order = order[::-1] if top_down else order
    random = torch.get_rng_state()
    found = list(randomise(model, batch(2), top_down=top_down, how=how))  # type: ignore[arg-type]
    assert [share for share, _ in found] == pytest.approx([k / 7 for k in range(1, 8)])
    for number, (_, step) in enumerate(found, 1):
        assert changed(step, before) == set(order[:number])
    assert len({id(step) for _, step in found}) == 7, "each is a network of its own: methods may remember them"
    assert changes(model, was) == []
    assert torch.equal(torch.get_rng_state(), random)


def test_both_orders_end_in_the_same_network_and_a_seed_in_another() -> None:
    model = net()

    def last(**how: int | bool) -> dict[str, Tensor]:
        *_, (share, found) = randomise(model, batch(2), **how)  # type: ignore[arg-type]
        assert share == 1
        return weights(found)

    down, up, few, other = (
        last(top_down=True), last(top_down=False), last(top_down=True, steps=2), last(top_down=True, seed=7)
    )  # fmt: skip
    assert all(torch.equal(down[name], up[name]) and torch.equal(down[name], few[name]) for name in down)
    assert not torch.equal(down["head.weight"], other["head.weight"])
    twins = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    twins[1].load_state_dict(twins[0].state_dict())
    *_, (_, found) = randomise(twins, torch.rand(1, 4), top_down=True)
    assert not torch.equal(found.get_parameter("0.weight"), found.get_parameter("1.weight"))


def test_permuted_values_stay_the_same_values_and_statistics_too() -> None:
    model = net()
    *_, (_, found) = randomise(model, batch(2), top_down=True)
    now = weights(found)
    for name, before in weights(model).items():
        assert torch.equal(now[name].flatten().sort().values, before.flatten().sort().values)
    assert not torch.equal(now["bn1.running_var"], model.bn1.running_var)
    assert not torch.equal(now["bn1.running_mean"], model.bn1.running_mean)


def test_reset_layers_are_as_the_module_draws_them() -> None:
    model = net()
    *_, (_, found) = randomise(model, batch(2), top_down=False, how="reset", seed=3)
    wanted = nn.Linear(6, 10).double()
    torch.manual_seed(4)
    wanted.reset_parameters()
    now = weights(found)
    assert torch.equal(now["head.weight"], wanted.weight)
    assert torch.equal(now["head.bias"], wanted.bias)
    assert now["bn1.running_var"].tolist() == [1] * 6
    assert now["bn1.running_mean"].tolist() == [0] * 6


def test_few_steps_take_several_layers_and_shared_weights_are_randomised_once() -> None:
    steps = list(randomise(net(), batch(2), top_down=True, steps=3))
    assert [share for share, _ in steps] == pytest.approx([3 / 7, 5 / 7, 1])
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    first, second = (step for _, step in randomise(tied, torch.rand(1, 3), top_down=False))
    assert torch.equal(first.get_parameter("0.weight"), second.get_parameter("0.weight"))
    assert second.get_parameter("0.weight") is second.get_parameter("2.weight")
    assert not torch.equal(first.get_parameter("2.bias"), second.get_parameter("2.bias"))


def test_refusals() -> None:
    with pytest.raises(InputError, match="how='permuted' or 'reset', in 1 step or more; got 'drawn', None"):
        next(randomise(net(), batch(2), top_down=True, how="drawn"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="got 'permuted', 0"):
        next(randomise(net(), batch(2), top_down=True, steps=0))
    with pytest.raises(InputError, match="ReLU has no parameters that could be randomised"):
        next(randomise(nn.ReLU(), batch(2), top_down=True))


# --- metrics ----------------------------------------------------------------------------------------------------------


def gradient(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    score = model(x).gather(1, classes[:, None]).sum()
    return torch.autograd.grad(score, x)[0] * x.detach()


def given_net() -> Case:
    x = batch(5, side=9)
    return Case(net(), x, torch.arange(5) % 10, seed=2)


@pytest.mark.parametrize("metric", [TopDown(), BottomUp()])
def test_a_map_that_does_not_look_at_the_network_is_worst(metric: TopDown | BottomUp) -> None:
    given = given_net()
    before = snapshot(given.network)
    asked = list[tuple[int, int]]()

    def counted(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.append((id(model), len(x)))
        return gradient(model, x, classes)

    R = gradient(given.network, given.x, given.classes).sum(1)
    measured = metric.measure(given, R, counted)
    assert [count for _, count in asked] == [5] * 7  # once a layer
    assert measured.curves["rank correlation"].shape == (5, 7)
    assert torch.allclose(measured.values, measured.curves["rank correlation"].mean(1))
    assert measured.at == pytest.approx([k / 7 for k in range(1, 8)])
    assert float(measured.values.max()) < 0.9
    R = random_maps(given.network, given.x, given.classes).sum(1)
    assert metric.measure(given, R, random_maps).values.tolist() == pytest.approx([1] * 5)
    assert changes(given.network, before) == []


def test_the_curve_is_the_similarity_of_the_maps_of_the_random_networks() -> None:
    given = given_net()
    R = gradient(given.network, given.x, given.classes).sum(1)
    steps: Iterator[tuple[float, nn.Module]] = randomise(given.network, given.x, top_down=True, steps=3, seed=2)
    wanted = [spearman(R, gradient(model, given.x, given.classes).sum(1)) for _, model in steps]
    measured = TopDown(steps=3).measure(given, R, gradient)
    assert torch.equal(measured.curves["rank correlation"], torch.stack(wanted, 1))


def test_an_empty_map_of_one_step_is_not_counted() -> None:
    given, calls = given_net(), list[int]()

    def once_empty(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        calls.append(1)
        return gradient(model, x, classes) * (len(calls) != 2)

    R = gradient(given.network, given.x, given.classes).sum(1)
    measured = TopDown(steps=3).measure(given, R, once_empty)
    alike = measured.curves["rank correlation"]
    assert alike.isnan().any(0).tolist() == [False, True, False]
    assert torch.allclose(measured.values, alike[:, [0, 2]].mean(1))


def test_complexity_by_hand() -> None:
    # Four bins over 0 … 4: 0 and 0.9 in the first, 4 in the last with 3.5, 2 in the third.
    maps = torch.tensor([[0.0, 0.9, 2.0, 3.5, 4.0], [5.0] * 5, [1.0, 2.0, torch.nan, 0.0, 0.0]])
    found = complexity(maps, bins=4)
    shares = [2 / 5, 1 / 5, 2 / 5]
    assert float(found[0]) == pytest.approx(-sum(s * math.log(s) for s in shares))
    assert found[1:].isnan().all()
    assert torch.allclose(complexity(3 * maps[:1] - 7, bins=4), found[:1])


def test_a_map_that_notices_becomes_more_complex() -> None:
    given, asked = case(), list[int]()
    learned = given.network.get_parameter("w").detach().clone()

    def noticing(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        """Two values for the learned network, any for a random one."""
        asked.append(len(x))
        return x.sign() if torch.equal(model.get_parameter("w"), learned) else x

    R = noticing(given.network, given.x, given.classes).sum(1)
    found = Complexity().measure(given, R, noticing).values
    a, b = complexity(given.x.sign()), complexity(given.x)
    assert torch.allclose(found, (b - a) / a)
    assert float(found.min()) > 3
    assert asked == [6, 6]  # here, and once for the random network
    same = random_maps(given.network, given.x, given.classes).sum(1)
    assert Complexity().measure(given, same, random_maps).values.tolist() == [0] * 6
