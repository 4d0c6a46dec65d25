"""Eager, compiled and exported explainers say the same."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from compiled_networks import MANY, ONE, Attention, Residual, agree


@dataclass
class Case:
    explainer: dt.Explainer
    shape: tuple[int, ...]

    def batch(self, size: int = 2) -> Tensor:
        # Always a new tensor: torch marks the tensors it traced with dynamic sizes.
        return torch.rand(size, *self.shape, generator=torch.Generator().manual_seed(size))


@functools.cache
def make(network: str, bias: str) -> Case:
    torch.manual_seed(3)
    if network == "residual":
        return Case(dt.Explainer(Residual().eval(), torch.rand(1, 3, 6, 6), dt.Box(0, 1), bias=bias), (3, 6, 6))
    return Case(dt.Explainer(Attention().eval(), torch.rand(1, 3, 4), dt.Real(), bias=bias), (3, 4))


CASES = [(network, bias) for network in ("residual", "attention") for bias in ("neuron", "spread")]
# Every network, bias mode and kind of target, but not every combination: compiling takes seconds.
TRIALS = [
    ("residual", "neuron", ONE),
    ("residual", "spread", MANY),
    ("attention", "neuron", MANY),
    ("attention", "spread", ONE),
]
IDS = ["residual-neuron-one", "residual-spread-many", "attention-neuron-many", "attention-spread-one"]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def plain(e: dt.Explanation) -> tuple[Tensor, Tensor]:
    return e.score, e.relevance


@pytest.mark.parametrize("target", [None, ONE, MANY], ids=["top", "one", "many"])
@pytest.mark.parametrize(("network", "bias"), CASES)
def test_the_plain_call_says_what_explain_says(network: str, bias: str, target: Tensor | None) -> None:
    case = make(network, bias)
    agree(case.explainer(case.batch(), target), plain(case.explainer.explain(case.batch(), target)))


@pytest.mark.parametrize(("network", "bias", "target"), TRIALS, ids=IDS)
@pytest.mark.slow
def test_compiled_in_one_graph(network: str, bias: str, target: Tensor) -> None:
    case = make(network, bias)
    compiled = torch.compile(case.explainer, fullgraph=True, backend="aot_eager")
    agree(compiled(case.batch(), target), plain(case.explainer.explain(case.batch(), target)))


@pytest.mark.parametrize(("network", "bias", "target"), TRIALS, ids=IDS)
def test_exported(network: str, bias: str, target: Tensor) -> None:
    case = make(network, bias)
    program = torch.export.export(case.explainer, (case.batch(), target.clone()), strict=False)
    agree(program.module()(case.batch(), target), plain(case.explainer.explain(case.batch(), target)))


@pytest.mark.parametrize(("network", "bias"), [("residual", "neuron"), ("residual", "spread"), ("attention", "neuron")])
def test_exported_with_a_free_batch_size(network: str, bias: str) -> None:
    case, free = make(network, bias), {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        case.explainer, (case.batch(), ONE.clone()), dynamic_shapes=(free, free), strict=False
    )
    for size in (2, 5):
        x, target = case.batch(size), torch.arange(size) % 4
        agree(program.module()(x, target), plain(case.explainer.explain(x, target)))


def test_a_slice_over_the_whole_batch_leaves_its_size_free() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(F.relu(self.embed(x))[:, 0])  # written as x[:] and then a choice along the tokens

    torch.manual_seed(0)
    explainer, free = (
        dt.Explainer(First().eval(), torch.rand(1, 3, 4), dt.Box(0, 1), bias="neuron"),
        {0: torch.export.Dim("batch")},
    )
    program = torch.export.export(explainer, (torch.rand(2, 3, 4),), dynamic_shapes=(free,), strict=False)
    x = torch.rand(5, 3, 4)
    agree(program.module()(x), plain(explainer.explain(x)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_by_inductor() -> None:
    # Small: inductor calls a C++ compiler for every kernel.
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)).eval()
    nn.init.uniform_(net[2].weight)
    explainer, x = dt.Explainer(net, torch.rand(1, 4), dt.Box(0, 1), bias="neuron"), torch.rand(2, 4)
    compiled = torch.compile(explainer, fullgraph=True, backend="inductor")
    agree(compiled(x, ONE), plain(explainer.explain(x, ONE)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch about itself
@pytest.mark.slow
def test_the_explainer_compiles_itself() -> None:
    """With inductor, as users call it; one compilation for all classes, another for the ledger."""
    torch.manual_seed(5)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)).eval()
    nn.init.constant_(network[4].bias, 1.0)  # every class has a positive score
    x = torch.rand(2, 4)
    eager = dt.Explainer(network, x, dt.Box(0, 1), bias="neuron")
    compiled = dt.Explainer(network, x, dt.Box(0, 1), bias="neuron").compile()
    for target in (0, 1, 2):
        agree(compiled(x, target), eager(x, target))
    explained, expected = compiled.explain(x), eager.explain(x)
    agree(plain(explained), plain(expected))
    assert torch.allclose(explained.ledger.entries, expected.ledger.entries, atol=1e-6)
    agree(plain(copy.deepcopy(compiled).explain(x)), plain(expected))  # a copy compiles by itself


@pytest.mark.slow
def test_as_many_sizes_as_one_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile gives up on a function after eight; here without its code generator, which takes seconds."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, options, **how: compiler(f, backend="eager", **how))
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    plain = dt.Explainer(network, torch.rand(2, 3), dt.NonNegative(), bias="neuron")
    compiled = dt.Explainer(network, torch.rand(2, 3), dt.NonNegative(), bias="neuron").compile()
    for size in range(1, 13):
        x = torch.rand(size, 3)
        torch.testing.assert_close(compiled(x, 0), plain(x, 0))


def test_layouts_of_one_shape_share_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, options, **how: compiler(f, backend="eager", **how))
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    compiled = dt.Explainer(network, torch.rand(2, 3), dt.NonNegative(), bias="neuron").compile()
    plain = dt.Explainer(network, torch.rand(2, 3), dt.NonNegative(), bias="neuron")
    for width in range(3, 15):  # cut out of wider tensors: torch.compile gives up after eight
        x = torch.rand(2, width)[:, :3].requires_grad_(width % 2 == 0)
        torch.testing.assert_close(compiled(x, torch.zeros(1, dtype=torch.long).expand(2)), plain(x, 0))


def test_a_move_to_where_it_is_keeps_what_was_compiled() -> None:
    explainer = dt.Explainer(nn.Linear(3, 2), torch.rand(2, 3), dt.NonNegative(), bias="neuron")
    explainer.captured._runs[0] = "compiled"  # type: ignore[assignment]
    assert explainer.to("cpu", torch.float32).captured._runs
    assert not explainer.double().captured._runs
