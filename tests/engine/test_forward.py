"""What a forward pass keeps, what is computed again, and when a value can go; weights after another type."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

import deeptaylor as dt
from deeptaylor.engine import forward
from deeptaylor.engine.engine import Engine, find_lost_squares, put_channels_last, recompute_weight_readings
from deeptaylor.graph.editing import copy_graph
from deeptaylor.maps.linear_map import WeightedMap
from deeptaylor.plan.plan import Plan, StepPlan
from deeptaylor.rules.steps import BlockStep, Step
from graphs import Values, captured_of


def planned(*steps: Step) -> StepPlan:
    return StepPlan(Plan((), ()), steps, steps[0].node, (steps[-1].inputs[0],), {}, True, False, {})


def engine_of(network: nn.Module, x: Tensor, domain: dt.Domain | None = None) -> Engine:
    (engine,) = dt.Explainer(network.eval(), x, domain or dt.NonNegative(), bias="neuron").captured.engines.values()
    return engine


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_what_steps_read_is_kept_until_the_last_that_reads_it() -> None:
    steps = Step("out", ["b"], ["b", "out"]), Step("b", ["a"], ["a", "b"]), Step("a", ["x"], ["a"])
    found = forward.choose_kept(planned(*steps), {})
    assert found.kept == ("out", "b", "a")
    assert found.last_use == {0: ["out"], 1: ["b"], 2: ["a"]}
    assert "a" in found
    assert "x" not in found


def test_the_output_is_kept_though_no_step_reads_it() -> None:
    found = forward.choose_kept(planned(Step("out", ["a"]), Step("a", ["x"], ["a"])), {})
    assert found.kept == ("out", "a")
    assert found.last_use == {1: ["a"]}


def test_what_is_computed_again_is_not_kept_but_what_it_reads_is_until_then() -> None:
    captured = captured_of(lambda x: x.sin().relu().cos(), torch.rand(2, 3))
    x, sin, relu, cos = [n for n in captured.graph.nodes if n.op != "output"]
    again = forward.Recomputation([relu], [relu], hide_weights=False)
    steps = Step(cos.name, [relu.name], [relu.name]), Step(relu.name, [sin.name]), Step(sin.name, [x.name], [relu.name])
    found = forward.choose_kept(planned(*steps), {relu.name: again})
    assert found.kept == (cos.name, sin.name)
    assert found.last_use == {2: [relu.name], 0: [sin.name]}  # sin is read where relu is first asked for
    assert relu.name in found


def test_the_network_that_runs_returns_what_is_kept_and_holds_every_constant() -> None:
    x = torch.rand(2, 3)
    captured = captured_of(lambda s, x: s.b(s.a(x).relu()).exp(), x, a=nn.Linear(3, 4), b=nn.Linear(4, 2))
    network = forward.make_network(captured, ["relu", "linear"], captured.constants)
    found = network(x)
    assert [tuple(v.shape) for v in found] == [(2, 4), (2, 4)]
    assert torch.equal(found[0], found[1].relu())
    assert set(dict(network.named_buffers())) == set(captured.constants)  # the second layer's too, for its step
    assert network.state_dict() == {}


# --- computed again ---------------------------------------------------------------------------------------------------


def convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2),
        nn.ReLU(), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


class Recorder(fx.Interpreter):
    """Runs a graph and keeps the value of every node."""

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        self.found[n.name] = value
        return value

    def all(self, *x: Tensor) -> dict[str, object]:
        self.found: dict[str, object] = {}
        self.run(*x)
        return self.found


@pytest.mark.parametrize("thrifty", [False, True])
def test_values_that_are_computed_again_are_those_that_would_be_kept(thrifty: bool) -> None:
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    engine = engine_of(convolutions().double(), x)
    engine.recompute(thrifty)
    assert engine.keeping.again
    with torch.no_grad():
        run = engine.forward_pass([x])
        wanted = Recorder(fx.GraphModule(engine.captured.constants, copy_graph(engine.captured.graph))).all(x)
        for name in reversed(engine.keeping.again):
            assert name not in engine.keeping.kept
            torch.testing.assert_close(run.value(name), wanted[name])


def test_the_thriftiest_pass_keeps_less_and_explains_the_same() -> None:
    x = torch.rand(2, 16, dtype=torch.float64)
    engine = engine_of(nn.Sequential(*[nn.Linear(16, 16), nn.ReLU()] * 8, nn.Linear(16, 3)).double(), x)

    def kept() -> int:
        return sum(engine.layout[name].shape(2).numel() for name in engine.keeping.kept)

    with torch.no_grad():
        before, fast = engine.run([x], 0), kept()
        engine.recompute()
        after, thrifty = engine.run([x], 0), kept()
        assert thrifty < fast
        torch.testing.assert_close(after.relevance, before.relevance)
        engine.recompute(False)
        assert kept() == fast


def test_again_computes_what_is_cheap_and_a_convolution_once() -> None:
    x, conv = torch.rand(2, 3, 4, 4), nn.Conv2d(3, 4, 3)
    captured = captured_of(lambda s, x: s.conv(x).relu().flatten(1), x, conv=conv)
    assert set(forward.find_cheap(captured, {"relu": [0], "conv2d": [1]})) == {"conv2d"}
    found = forward.find_cheap(captured, {"relu": [0]})
    named = {n.name: captured.constants[str(n.target)] for n in captured.graph.nodes if n.op == "get_attr"}
    (value,) = found["relu"].compute(Values({captured.inputs[0].name: x, **named}), torch.ones(())).values()
    torch.testing.assert_close(value, conv(x).relu())
    wide = captured_of(lambda s, x: s.conv(x).relu().flatten(1), torch.rand(2, 64, 4, 4), conv=nn.Conv2d(64, 4, 3))
    assert not forward.find_cheap(wide, {"relu": [0]})  # 576 inputs a unit


def test_segments_are_cut_where_little_crosses() -> None:
    captured = captured_of(lambda x: x.repeat(1, 8).sin().sum(1, True).repeat(1, 8).cos().sum(1), torch.rand(2, 4))
    sizes = {n.name: n.meta["val"].shape[1:].numel() for n in captured.graph.nodes if n.op == "call_function"}
    found = forward.Segments(captured, ["sin", "cos"], lambda name: sizes.get(name, 4))
    (again,) = found.list_recomputations(["sin", "cos"])
    assert again.results == ["sin"]  # the last segment is there when the reverse pass begins
    assert again.reads == [captured.inputs[0].name]


# --- weights ----------------------------------------------------------------------------------------------------------


def weighted_of(engine: Engine) -> list[WeightedMap]:
    return [
        m for s in engine.planned.steps if isinstance(s, BlockStep) for m in s.block.maps if isinstance(m, WeightedMap)
    ]


def test_weights_are_read_again_in_a_type_of_more_digits() -> None:
    engine = engine_of(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.rand(2, 4), dt.Real())
    rounded = [m.squared.double() for m in weighted_of(engine) if "squared" in m._buffers]
    engine.double()
    found = [m for m in weighted_of(engine) if "squared" in m._buffers]
    assert len(found) == len(rounded) == 1
    assert torch.equal(found[0].squared, engine.constant(found[0].name) ** 2)
    assert not torch.equal(found[0].squared, rounded[0])


def test_read_again_computes_readings_from_the_constants_that_are_given() -> None:
    engine = engine_of(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.rand(2, 4), dt.Real())
    constants = {name: 2 * engine.constant(name) for name in engine.constant_names}
    recompute_weight_readings(engine.planned.steps, constants)
    squared = next(m for m in weighted_of(engine) if "squared" in m._buffers)
    assert torch.equal(squared.squared, constants[squared.name] ** 2)


def test_weights_of_convolutions_lie_with_their_channels_last() -> None:
    engine = engine_of(convolutions(), torch.rand(2, 1, 8, 8))
    found = [engine.constant(m.name) for m in weighted_of(engine)]
    assert [w.stride(1) for w in found if w.ndim == 4 and w.shape[1] > 1] == [1, 1]
    moved = nn.Module()
    moved.register_buffer("w", torch.rand(2, 3, 4, 4))
    put_channels_last(moved, engine.network)  # what is no convolution is left as it lies
    assert moved.w.is_contiguous()


@pytest.mark.parametrize(("size", "lost"), [(1.0, False), (1e-4, True)])
def test_squares_that_are_too_small_for_float16_are_named(size: float, lost: bool) -> None:
    network = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        network[0].weight.fill_(size)
    engine = engine_of(network, torch.rand(2, 4), dt.Real())
    assert find_lost_squares(engine.planned.steps, engine.constant) == ""
    engine.half()
    assert find_lost_squares(engine.planned.steps, engine.constant) == ("linear" if lost else "")
