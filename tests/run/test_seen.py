"""Layers that are watched: their relevance and activation come out of the pass that makes the explanation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.errors import BoundaryError
from deeptaylor.run.seen import seen_layers, watched_nodes
from deeptaylor.run.short_of_memory import Batch


class Joined(nn.Module):
    """Two branches that are joined, and nothing else reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 3, 3)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.a(x).relu(), self.b(x).relu()], 1))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(54, 3)
    )


@pytest.mark.parametrize(("model", "layer"), [(network(), "3"), (network(), "1"), (network(), "4"), (Joined(), "cat")])
@pytest.mark.parametrize("bias", ["returned", "neuron"])
def test_what_is_seen_is_what_a_second_pass_would_tell(model: nn.Module, layer: str, bias: str) -> None:
    x = torch.rand(5, 1, 10, 10)
    plain = dt.Explainer(model, x, dt.Box(0, 1), bias=bias)
    watching = dt.Explainer(model, x, dt.Box(0, 1), bias=bias).watch([layer])
    e, told = watching.explain(x), plain.explain(x)
    assert torch.equal(e.relevance, told.relevance)
    assert torch.allclose(e.seen[layer].relevance, told.channels(layer).at, atol=1e-7)
    assert torch.allclose(e.seen[layer].activation, plain.activations(layer, x), atol=1e-6)
    assert not told.seen


def test_only_one_pass_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 1, 10, 10)
    explainer = dt.Explainer(network(), x, dt.Box(0, 1)).watch(["3"])
    passes: list[int] = []
    forward = type(explainer.engine).forward_pass
    monkeypatch.setattr(type(explainer.engine), "forward_pass", lambda *a: (passes.append(1), forward(*a))[1])
    explainer.explain(x)
    assert passes == [1]


def test_a_layer_that_no_step_reads_is_asked_for() -> None:
    x = torch.rand(2, 1, 10, 10)
    explainer = dt.Explainer(network(), x, dt.Box(0, 1))
    engine = explainer.engine_for((x,))
    result = engine.run((x,), None, "in total", watched_nodes(engine, ["3"]))
    result.values.clear()
    found = seen_layers(engine, result, ["3"], lambda layer: explainer.activations(layer, x))
    assert torch.equal(found["3"].activation, explainer.activations("3", x))


def test_parts_of_a_batch_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(4, 1, 10, 10)
    explainer = dt.Explainer(network(), x, dt.Box(0, 1)).watch(["3"])
    whole = explainer.explain(x).seen["3"]
    run = Batch.run

    def short(batch: Batch, how: object, samples: slice) -> object:
        if len(range(4)[samples]) > 2:
            raise MemoryError
        return run(batch, how, samples)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "run", short)
    with pytest.warns(dt.DeepTaylorWarning, match="2 at a time"):
        parts = explainer.explain(x).seen["3"]
    assert torch.allclose(parts.relevance, whole.relevance)
    assert torch.allclose(parts.activation, whole.activation)


def test_contrasts_are_watched_and_parts_of_maps_are_not() -> None:
    x = torch.rand(2, 1, 10, 10)
    explainer = dt.Explainer(network(), x, dt.Box(0, 1)).watch(["3"])
    assert set(explainer.contrast(x).seen) == {"3"}
    e = explainer.explain(x)
    assert not e.channels("3").map(0).seen
    assert not explainer.watch([]).explain(x).seen


def test_a_layer_that_there_is_not_is_named() -> None:
    explainer = dt.Explainer(network(), torch.rand(1, 1, 10, 10), dt.Box(0, 1)).watch(["nowhere"])
    with pytest.raises(BoundaryError, match="There is no node or module 'nowhere'"):
        explainer.explain(torch.rand(1, 1, 10, 10))
