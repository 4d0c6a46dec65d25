"""The reverse pass by hand, several targets at once, and scores that are lifted before it and lowered after."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.result import Result
from deeptaylor.engine.reverse import find_lift, reverse, reverse_many, undo_lift
from deeptaylor.engine.sample_layout import Layout

# x = (3, 1), hidden = relu((2·3 − 1, 3 + 1·1 + 1)) = (5, 5), f = (5 + 2·5, 5 − 5).
X = torch.tensor([[3.0, 1.0]], dtype=torch.float64)


def by_hand() -> nn.Sequential:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        network[0].weight[:] = torch.tensor([[2.0, -1.0], [1.0, 1.0]])
        network[0].bias[:] = torch.tensor([0.0, 1.0])
        network[2].weight[:] = torch.tensor([[1.0, 2.0], [1.0, -1.0]])
    return network.eval()


@pytest.fixture
def engine() -> Engine:
    (engine,) = dt.Explainer(by_hand(), X, dt.NonNegative(), bias="neuron").captured.engines.values()
    return engine


def test_relevance_by_hand(engine: Engine) -> None:
    """R_f = 15 goes to the hidden units as 5 and 10; 5 all to x₀, and 10 as 6, 2 and the bias's 2."""
    with torch.no_grad():
        run = engine.forward_pass([X])
        found = reverse(engine, run, torch.tensor([[1.0, 0.0]], dtype=torch.float64), "by step", frozenset({"relu"}))
    assert found.score.tolist() == [15]
    assert found.kept["relu"].tolist() == [[5, 10]]
    assert found.relevance[0].tolist() == [[11, 2]]
    assert found.entries is not None
    assert found.entries[:, :, 0].tolist() == [[15, 15, 0, 0], [15, 15, 0, 0], [15, 13, 2, 0]]


class Branches(nn.Module):
    """h = relu(x), f = Σ relu(h) + relu(2 h) of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False).double() for _ in range(3))
        with torch.no_grad():
            for layer, size in zip(self.layers, (1, 1, 2), strict=True):
                layer.weight[:] = size * torch.eye(2)

    def forward(self, x: Tensor) -> Tensor:
        first, one, two = self.layers
        h = first(x).relu()
        return (one(h).relu() + two(h).relu()).sum(1, keepdim=True)


def test_what_arrives_over_several_branches_is_added_up() -> None:
    (engine,) = dt.Explainer(Branches(), X, dt.NonNegative(), bias="neuron").captured.engines.values()
    with torch.no_grad():
        v = torch.ones(1, 1, dtype=torch.float64)
        found = reverse(engine, engine.forward_pass([X]), v, None, frozenset({"relu"}))
    assert found.score.tolist() == [12]
    assert found.kept["relu"].tolist() == [[9, 3]]
    assert found.relevance[0].tolist() == [[9, 3]]


def test_a_negative_score_has_no_relevance(engine: Engine) -> None:
    with torch.no_grad():
        v = torch.tensor([[-1.0, 0.0]], dtype=torch.float64)
        found = reverse(engine, engine.forward_pass([X]), v, "in total")
    assert found.score.tolist() == [-15]
    assert not found.relevance[0].any()
    assert found.entries is not None
    assert not found.entries.any()


def test_values_are_forgotten_as_they_are_used_up(engine: Engine) -> None:
    with torch.no_grad():
        run = engine.forward_pass([X])
        assert run.values
        reverse(engine, run, torch.ones(1, 2, dtype=torch.float64))
    read = {name for names in engine.keeping.last_use.values() for name in names}
    assert set(run.values) == set(engine.keeping.kept) - read


def test_without_books_nothing_is_booked_and_the_relevance_is_the_same(engine: Engine) -> None:
    v = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    with torch.no_grad():
        plain, recorded = (reverse(engine, engine.forward_pass([X]), v, detail) for detail in (None, "by step"))
    assert plain.entries is None
    assert plain.lowest is None
    assert torch.equal(plain.relevance[0], recorded.relevance[0])


@pytest.mark.parametrize("detail", [None, "in total", "by step"])
def test_several_targets_at_once_are_each_as_if_alone(engine: Engine, detail: None) -> None:
    x = torch.rand(3, 2, dtype=torch.float64)
    v = torch.randn(4, 3, 2, dtype=torch.float64)
    keep = frozenset({"relu"})
    with torch.no_grad():
        many = reverse_many(engine, engine.forward_pass([x]), v, detail, keep)
        for k in range(4):
            one = reverse(engine, engine.forward_pass([x]), v[k], detail, keep)
            torch.testing.assert_close(many.score[:, k], one.score)
            torch.testing.assert_close(many.relevance[0][:, k], one.relevance[0])
            torch.testing.assert_close(many.kept["relu"][:, k], one.kept["relu"])
            if detail:
                torch.testing.assert_close(many.entries[k], one.entries)


# --- lift -------------------------------------------------------------------------------------------------------------


def test_small_scores_are_lifted_to_about_one_by_a_power_of_two() -> None:
    f = torch.tensor([1e-38, 3e-20, 0.3, 1.0, 7.0, 1e30, 0.0, -2.0])
    lift = find_lift(f)
    assert lift is not None
    assert torch.equal(lift, torch.exp2(torch.log2(lift).round()))
    lifted = (f * lift)[1:4]
    assert bool(((lifted >= 1) & (lifted < 2)).all())
    assert lift[[4, 5]].tolist() == [1, 1]  # large ones are left as they are
    assert float(lift.max()) == 2.0**100


def test_scores_of_half_precision_are_all_lifted_to_where_it_has_room() -> None:
    f = torch.tensor([0.2, 1.0, 60.0]).half()
    lift = find_lift(f)
    assert lift is not None
    assert bool(((f * lift >= 2**11) & (f * lift <= 2**12)).all())
    assert find_lift(torch.tensor([6e-8, 0.0, -1.0]).half()).tolist() == [2**15] * 3  # which it can hold


def test_scores_of_doubles_are_not_lifted() -> None:
    assert find_lift(torch.tensor([1e-200], dtype=torch.float64)) is None


def test_what_was_lifted_is_lowered_sample_by_sample() -> None:
    lift = torch.tensor([4.0, 2.0])
    layout = {"x": Layout(((1, True), (3, False)), 0), "h": Layout(((2, False), (1, True)), 1)}
    run = ForwardValues({}, {}, layout, 2)
    result = Result(torch.ones(2), (torch.ones(2, 3),), torch.ones(1, 4, 2), {"h": torch.ones(2, 2)}, torch.zeros(1))
    found = undo_lift(result, lift, ["x"], run)
    assert found.relevance[0].tolist() == [[0.25] * 3, [0.5] * 3]
    assert found.kept["h"].tolist() == [[0.25, 0.5]] * 2  # its samples are along the second axis
    assert found.entries is not None
    assert found.entries[0].tolist() == [[0.25, 0.5]] * 4
    assert found.score is result.score
    assert found.lowest is result.lowest


def test_a_tiny_score_has_the_relevance_of_a_large_one_but_for_its_size() -> None:
    def relevance(scale: float) -> Tensor:
        network = by_hand().float()
        with torch.no_grad():
            network[2].weight *= scale
        return dt.explain(network, X.float(), 0, domain=dt.NonNegative(), bias="neuron").relevance

    assert torch.equal(relevance(2.0**-120), relevance(1.0) * 2.0**-120)
