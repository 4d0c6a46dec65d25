"""Modules of the engine by themselves: where relevance is defined, what is read, joined and watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import captured_network, precision, sample_layout
from deeptaylor.engine.captured_network import CapturedNetwork
from deeptaylor.engine.change_detection import AttributeTraits, ModelSnapshot, tensors_of, traits
from deeptaylor.engine.engine import Engine, find_boundary
from deeptaylor.engine.inputs import first_float
from deeptaylor.engine.result import Result, join_results
from deeptaylor.engine.sample_layout import Layout
from deeptaylor.engine.target_reader import read_score_function
from graphs import captured_of
from refusals import mlp


def engine_of(network: nn.Module, x: Tensor) -> Engine:
    (engine,) = dt.Explainer(network, x, dt.NonNegative(), bias="neuron").captured.engines.values()
    return engine


def test_boundaries_are_where_relevance_is_defined() -> None:
    engine = engine_of(mlp(), torch.rand(2, 4))
    assert find_boundary(engine, "1") == "relu"
    with pytest.raises(dt.BoundaryError, match="the output's block"):
        find_boundary(engine, "2")
    with pytest.raises(dt.BoundaryError, match="Did you mean 'relu'"):
        find_boundary(engine, "rely")


def test_callables_are_read_as_weights_where_they_are_linear() -> None:
    output = torch.rand(2, 3)
    linear = read_score_function(lambda z: 2 * z[:, 0] - z[:, 2], output)
    assert linear.weights is not None
    assert linear.weights.tolist() == [[2, 0, -1]] * 2
    other = read_score_function(lambda z: z[:, 0] ** 2, output)
    assert other.weights is None
    assert other.signature is not None
    assert other.signature != read_score_function(lambda z: z[:, 0] ** 3, output).signature
    with pytest.raises(dt.TargetError, match="one number per sample"):
        read_score_function(lambda z: z, output)
    with pytest.raises(dt.TargetError, match="mixes samples"):
        read_score_function(lambda z: z.flip(0)[:, 0], output)


def test_a_batch_that_does_not_fit_is_explained_in_parts() -> None:
    engine, x = engine_of(mlp(), torch.rand(2, 4)), torch.rand(5, 4)
    batch, seen = captured_network.Batch((x,), torch.arange(5) % 3, None, frozenset()), []

    def narrow(inputs: Any, *rest: Any) -> Result:
        seen.append(len(inputs[0]))
        if seen[-1] > 2:
            raise MemoryError
        return engine.run(inputs, *rest)

    with pytest.warns(dt.DeepTaylorWarning, match="2 at a time"), torch.no_grad():
        found = captured_network.explain_in_parts(engine, batch, lambda: narrow, lambda: None)
    assert seen == [5, 3, 2, 2, 1]
    with torch.no_grad():
        torch.testing.assert_close(found.relevance, engine.run([x], batch.target).relevance)


def test_results_of_parts_are_joined_where_their_samples_are() -> None:
    parts = [Result(torch.full((n,), float(n)), (torch.ones(n, 3),), None, {"a": torch.ones(4, n)}) for n in (1, 2)]
    whole = join_results(parts, {"a": Layout(((4, False), (1, True)), 1)})
    assert whole.score.tolist() == [1, 2, 2]
    assert whole.relevance[0].shape == (3, 3)
    assert whole.kept["a"].shape == (4, 3)


def test_a_network_is_known_again_until_a_bit_of_it_changes() -> None:
    network, x = mlp(), torch.rand(2, 4)
    known = ModelSnapshot(network, [x], [dt.NonNegative()])
    assert list(tensors_of(network)) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert known.seems_unchanged()
    assert known.find_changes() == []
    network[0].bias.data[1] += 1e-6  # which torch does not count
    assert known.seems_unchanged()
    assert known.find_changes() == ["0.bias"]
    network[0].bias.data[1] -= 1e-6
    network.double()
    assert not known.seems_unchanged()


def test_a_moved_network_is_told_from_a_changed_one() -> None:
    network, x = mlp(), torch.rand(2, 4)
    known = ModelSnapshot(network, [x], [dt.NonNegative()])
    assert known.find_move() is None
    network.double()
    assert known.find_move() == (torch.device("cpu"), torch.float64)
    network[0].weight.data[0, 0] += 1
    assert known.find_move() is None


def test_a_captured_network_has_an_engine_a_shape() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    explainer = dt.Explainer(network.eval(), torch.rand(1, 1, 6, 6), dt.NonNegative(), bias="neuron")
    assert isinstance(explainer.captured, CapturedNetwork)
    assert len(explainer.captured.engines) == 1
    explainer.explain(torch.rand(4, 1, 6, 6))
    assert len(explainer.captured.engines) == 1  # the batch is free
    explainer.explain(torch.rand(1, 1, 8, 8))
    assert len(explainer.captured.engines) == 2
    assert first_float([torch.ones(1, dtype=torch.long), torch.ones(2)]).shape == (2,)


def test_precision_sees_what_a_narrow_type_did() -> None:
    def result(score: float, *relevance: float) -> Result:
        return Result(torch.tensor([score]).half(), (torch.tensor([relevance]).half(),), None, {})

    assert precision.find_problem(result(3, 1, 2), torch.float16) == ""
    assert precision.find_problem(result(3, 1, float("inf")), torch.float16) == "float16 overflowed"
    assert "this small" in precision.find_problem(result(6e-8, 0, 0), torch.float16)
    assert precision.dtype_of([torch.ones(1, dtype=torch.long), torch.ones(1).bfloat16()]) is torch.bfloat16


def test_samples_are_found_in_every_tensor() -> None:
    x = torch.rand(2, 3, 4)
    captured = captured_of(lambda x: (x.transpose(0, 1) + 1).reshape(-1, 4).relu().reshape(3, -1, 4).sum(0), x)
    found = sample_layout.find_layouts(captured, [x])
    assert found[captured.inputs[0].name].plain
    assert found["transpose"].dim == 1
    assert (found["relu"].dim, found["relu"].outer, found["relu"].inner) == (0, 3, 1)
    sample_layout.check_samples(captured, found, found)
    lost = captured_of(lambda x: x.sum(0, keepdim=True).relu(), x)
    with pytest.raises(dt.PlanError, match="has no axis for samples"):
        sample_layout.check_samples(lost, sample_layout.find_layouts(lost, [x]), ["relu"])


def test_traits_are_what_a_forward_pass_may_read_besides_tensors() -> None:
    class Scaled(nn.Module):
        scale, names = 2.0, ("a",)

        def __init__(self) -> None:
            super().__init__()
            self.factor, self.held = 3.0, [1, torch.ones(2)]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    network = nn.Sequential(Scaled())
    before, seen = traits(network), AttributeTraits(network, ())
    assert "0.factor" in before
    assert traits(network) == before
    assert seen.are_unchanged()
    network[0].held[1][0] = 5
    assert not seen.are_unchanged()
    changed = [name for name, value in traits(network).items() if value != before[name]]
    assert changed == ["0.held (tensor 0)"]
    handle = network[0].register_forward_hook(lambda *_: None)
    assert any("forward hook" in name for name in traits(network))
    handle.remove()
