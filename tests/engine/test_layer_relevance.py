"""What passes through a layer: its channels, and layers that are watched in every pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.captured_network import Batch
from deeptaylor.engine.layer_relevance import LayerRelevance, find_watched_nodes, read_layers
from deeptaylor.errors import BoundaryError
from small_networks import close

X = torch.rand(2, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


class Joining(nn.Module):
    """Two branches side by side, read together; `again`: one of them is read once more, past the join."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.a, self.b, self.last = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 2, 3), nn.Conv2d(5, 4, 3)
        self.head, self.again = nn.Linear(4, 3), again
        for layer in (self.last, self.head):  # so that every channel counts
            nn.init.uniform_(layer.weight, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.a(x)), F.relu(self.b(x))
        h = F.relu(self.last(torch.cat([a, b], 1))).mean((2, 3))
        return self.head(h + a.mean((2, 3)).sum(1, keepdim=True)) if self.again else self.head(h)


def explained(again: bool, bias: str = "neuron") -> dt.Explanation:
    return dt.explain(Joining(again).double().eval(), X, None, dt.Box(0, 1), bias=bias)


@pytest.mark.parametrize("bias", ["neuron", "returned", "spread"])
def test_a_layer_that_joins_others_has_the_channels_of_both(bias: str) -> None:
    e = explained(again=False, bias=bias)
    joined, first, second = (e.channels(name) for name in ("cat", "relu", "relu_1"))
    close(joined.relevance, torch.cat([first.relevance, second.relevance], 1))
    close(joined.total, e.score)
    assert not bool(joined.past.any())
    assert bool((first.past > 0).all()), "past the one goes what passes through the other"
    maps = joined.maps(range(5))
    close(torch.stack([part.relevance for part in maps]).sum(0) + joined.past_map().relevance, e.relevance)
    assert bool((joined.relevance > 0).any(1).all())
    for own, part in zip(second.maps([0, 1]), maps[3:], strict=True):
        assert torch.allclose(own.relevance, part.relevance, rtol=1e-10, atol=1e-15)
    assert all(part.check().accounted for part in maps)


def test_it_has_none_where_something_else_reads_a_part_of_it() -> None:
    with pytest.raises(dt.BoundaryError, match="'cat' lies inside the detection block"):
        explained(again=True).channels("cat")


def test_nothing_is_booked_twice() -> None:
    c = explained(again=False).channels("cat")
    assert isinstance(c.through, LayerRelevance)
    assert bool((c.relevance > 0).any())
    for k, part in enumerate(c.maps(range(5))):
        arrived, on, bias, dropped = part.ledger.entries[0]
        assert torch.allclose(arrived, c.relevance[:, k], rtol=1e-12)
        assert torch.allclose(arrived, on + bias + dropped, rtol=1e-12)


# --- watched layers ---------------------------------------------------------------------------------------------------


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
    forward = type(explainer.captured.engine).forward_pass
    monkeypatch.setattr(type(explainer.captured.engine), "forward_pass", lambda *a: (passes.append(1), forward(*a))[1])
    explainer.explain(x)
    assert passes == [1]


def test_a_layer_that_no_step_reads_is_asked_for() -> None:
    x = torch.rand(2, 1, 10, 10)
    explainer = dt.Explainer(network(), x, dt.Box(0, 1))
    engine = explainer.captured.engine_for((x,))
    result = engine.run((x,), None, "in total", find_watched_nodes(engine, ["3"]))
    result.values.clear()
    found = read_layers(engine, result, ["3"], lambda layer: explainer.activations(layer, x))
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
