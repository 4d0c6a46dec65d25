"""Every linear map that the flow table builds, by itself: ⟨W x, s⟩ = ⟨x, Wᵀ s⟩ in every reading of the weights."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from deeptaylor.engine.forward import ForwardValues
from deeptaylor.maps.at_places import PlacesAsSamples
from deeptaylor.maps.linear_map import Gate, LinearMap, read_sign
from deeptaylor.maps.structural import Keep, Structural
from deeptaylor.rules.steps import BlockStep, CarryStep
from operation_cases import BATCH, BY_NAME, FEATURES, explainer_of

pytestmark = pytest.mark.usefixtures("export_once")


READINGS = ("signed", "positive", "negative", "magnitude", "squared", "flat")


class Recorder(fx.Interpreter):
    """Runs a graph and keeps the value of every node."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n.name] = super().run_node(n)
        return self.values[n.name]


@functools.cache
def maps_of(name: str) -> list[tuple[LinearMap, ForwardValues]]:
    """The linear maps that the flow table built for a case, and a pass of three samples: shapes, gates, values."""
    (engine,) = explainer_of(name, True, "neuron").captured.engines.values()
    recorder = Recorder(fx.GraphModule(engine.captured.constants, engine.captured.graph))
    with torch.no_grad():
        recorder.run(torch.randn(BATCH, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
    ctx = ForwardValues(recorder.values, recorder.values.__getitem__, engine.layout, BATCH)
    maps: list[LinearMap] = []
    for step in engine.steps:
        if isinstance(step, BlockStep):
            maps += step.block.maps
        elif isinstance(step, CarryStep):
            maps.append(step.carried)
    return [(m, ctx) for m in maps]


def or_zeros(t: Tensor | None, shape: torch.Size) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64) if t is None else t.expand(shape)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_maps_are_the_operations(name: str) -> None:
    """W x + b is what the network computed at that node."""
    for m, ctx in maps_of(name):
        wanted, offset = ctx.value(m.node), m.offset(ctx)
        got = or_zeros(m.map("signed", [ctx.value(n) for n in m.operands], ctx), wanted.shape)
        torch.testing.assert_close(got if offset is None else got + offset, wanted, rtol=0, atol=1e-12, msg=str(m))


@pytest.mark.parametrize("name", list(BY_NAME))
def test_transposes_are_adjoint(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    for m, ctx in maps_of(name):
        shape = ctx.shape(m.node)
        for reading in READINGS:
            xs = [torch.rand(ctx.shape(n), dtype=torch.float64, generator=generator) for n in m.operands]
            s = torch.rand(shape, dtype=torch.float64, generator=generator)
            forth = (or_zeros(m.map(reading, xs, ctx), shape) * s).sum()
            back = m.transpose(reading, s, ctx)
            assert all(b is None or b.shape == x.shape for x, b in zip(xs, back, strict=True))
            total = sum(((x * b).sum() for x, b in zip(xs, back, strict=True) if b is not None), torch.zeros(()))
            assert float((forth - total).abs()) <= 1e-12 * max(1.0, float(forth.abs())), (m, reading)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_readings_are_of_one_matrix(name: str) -> None:
    """The response to an input element is a row w_i of the matrix; the readings are w, w⁺, |w⁻|, |w|, w² and w ≠ 0."""
    generator = torch.Generator().manual_seed(4)
    for m, ctx in maps_of(name):
        shape = ctx.shape(m.node)
        for k, operand in enumerate(m.operands):
            for at in torch.randint(ctx.shape(operand).numel(), (4,), generator=generator):
                e = torch.zeros(ctx.shape(operand), dtype=torch.float64)
                e.view(-1)[at] = 1
                xs = [e if n == k else torch.zeros(ctx.shape(o), dtype=torch.float64) for n, o in enumerate(m.operands)]
                row, *others = (or_zeros(m.map(reading, xs, ctx), shape) for reading in READINGS)
                # To the flat reading a weight that is zero may be a connection all the same.
                others[-1] = others[-1] * (row != 0)
                expected = row.clamp(min=0), (-row).clamp(min=0), row.abs(), row**2, (row != 0).double()
                for reading, got, wanted in zip(READINGS[1:], others, expected, strict=True):
                    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-13, msg=f"{m}, {reading}")


class Asked:
    """A pass that remembers whose values it was asked for."""

    def __init__(self, run: ForwardValues) -> None:
        self.run, self.is_non_negative, self.names = run, run.is_non_negative, set[str]()

    def shape(self, name: str) -> torch.Size:
        return self.run.shape(name)

    def value(self, name: str) -> Any:
        self.names.add(name)
        return self.run.value(name)


@pytest.mark.parametrize("name", list(BY_NAME))
def test_maps_ask_for_what_they_say_they_read_and_for_nothing_else(name: str) -> None:
    """What a map does not name is not kept for it; what it names in vain is kept for nothing."""
    for m, run in maps_of(name):
        ctx, xs, s = Asked(run), [run.value(n) for n in m.operands], run.value(m.node)
        p, n = [x.clamp(min=0) for x in xs], [(-x).clamp(min=0) for x in xs]
        for reading in READINGS:
            m.map(reading, xs, ctx)
            m.transpose(reading, s, ctx)
        m.map_parts(p, n, ctx)
        m.map_parts(p, [None] * len(p), ctx, m.offset(ctx))
        m.transpose_parts(s, ctx)
        assert ctx.names == set(m.reads), m


@pytest.mark.parametrize("name", list(BY_NAME))
def test_structural_maps_say_whether_they_bring_constants(name: str) -> None:
    """Every element is a copy of an input's, unless the map says that some are constants."""
    for m, run in maps_of(name):
        if not isinstance(m, Structural):
            continue
        ones = [torch.ones(run.shape(n), dtype=torch.float64) for n in m.operands]
        constants = bool((m.carry(ones, run) != 1).any())
        if m.offset(run) is not None:
            assert constants, m
        # Of a mask it is not known which elements it leaves out: it may say so for nothing.
        assert m.brings_constants == constants or (isinstance(m, Keep) and m.brings_constants), m


def test_the_sign_of_zero_is_positive() -> None:
    z = torch.tensor([-2.0, -0.0, 0.0, 3.0])
    assert read_sign(z).tolist() == [-1, 1, 1, 1]
    assert z.tolist() == [-2, 0, 0, 3]


def test_every_kind_of_linear_map_is_tried() -> None:
    tried = {type(m) for name in BY_NAME for m, _ in maps_of(name)} | {
        PlacesAsSamples,
        Gate,
    }  # of blocks: test_at_places.py
    elsewhere = {"_SmoothMaximum"}  # of logaddexp: tests/operations/test_comparisons.py
    assert {c.__name__ for c in leaves_of(LinearMap)} - {c.__name__ for c in tried} == elsewhere


def leaves_of(cls: type) -> Iterator[type]:
    """The classes without subclasses."""
    if not cls.__subclasses__():
        yield cls
    for sub in cls.__subclasses__():
        yield from leaves_of(sub)
