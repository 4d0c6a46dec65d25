"""What does not fit into memory: a batch in parts, values computed again, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.forward import ForwardValues
from small_networks import batch, close, net


@pytest.mark.parametrize(
    "target",
    [None, 4, torch.tensor([4, 7, 9, 1, 2]), torch.tensor([[4, 7]] * 5), dt.margin(torch.arange(5), 6)],
    ids=["top", "int", "each", "many", "margin"],
)
def test_a_batch_that_does_not_fit_is_halved(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, explainer = net("neuron")
    x = batch(5)
    whole, inside = explainer.explain(x, target), explainer.relevance_at("pool", x, target)
    run = Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)
    with pytest.warns(
        dt.DeepTaylorWarning, match="A batch of 5 does not fit into memory; it was explained 2 at a time"
    ):
        halves = explainer.explain(x, target)
    close(halves.relevance, whole.relevance)
    close(halves.score, whole.score)
    close(halves.ledger.entries, whole.ledger.entries)
    with pytest.warns(dt.DeepTaylorWarning, match="does not fit"):
        close(explainer.relevance_at("pool", x, target), inside)
    with pytest.warns(dt.DeepTaylorWarning, match="does not fit"):
        close(explainer(x, target)[1], whole.relevance)


class Deep(nn.Module):
    """Residual blocks, a skip over all of them, pooling and a gate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(40))
        self.pool, self.gate, self.fc = nn.MaxPool2d(2), nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.constant_(self.fc.bias, 1.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        first = h = F.relu(self.stem(x))
        for block in self.blocks:
            h = F.relu(h + block(h) / 8)
        h = self.pool(h + first)
        h = h * torch.sigmoid(self.gate(h.mean((2, 3))))[:, :, None, None]
        return self.fc(h.mean((2, 3)))


def most_kept(explainer: dt.Explainer, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most elements that wait for the reverse pass at once."""
    found, value = [0], ForwardValues.value

    def counted(self: ForwardValues, name: str) -> Any:
        result = value(self, name)
        found.append(sum(t.numel() for t in self.values.values() if isinstance(t, Tensor)))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ForwardValues, "value", counted)
        explainer(x, 0)
    return max(found)


def test_what_is_kept_can_be_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(Deep(), x, dt.Box(0, 1), bias="spread")
    many = torch.tensor([[0, 1], [2, 3], [1, 1]])
    plain, inside, before = (
        explainer.explain(x, many),
        explainer.relevance_at("pool", x, 1),
        most_kept(explainer, x, monkeypatch),
    )
    assert explainer.recompute() is explainer
    again = explainer.explain(x, many)
    assert torch.equal(again.relevance, plain.relevance)
    assert torch.equal(again.ledger.entries, plain.ledger.entries)
    assert torch.equal(explainer.relevance_at("pool", x, 1), inside)
    assert most_kept(explainer, x, monkeypatch) < 0.6 * before
    explainer.recompute(False)
    assert most_kept(explainer, x, monkeypatch) == before
    assert torch.equal(explainer.explain(x, many).relevance, plain.relevance)


@pytest.mark.slow
def test_computing_again_holds_for_other_types_shapes_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    x, wide = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.rand(2, 1, 12, 12, dtype=torch.float64)
    explainer, thrifty = (dt.Explainer(Deep(), x, dt.Box(0, 1), bias="neuron") for _ in range(2))
    thrifty.float().recompute()
    explainer.float()
    assert torch.equal(thrifty(x.float(), 0)[1], explainer(x.float(), 0)[1])
    thrifty.double()
    explainer.double()
    score = lambda out: out[:, 0].exp() + out[:, 1]  # noqa: E731
    assert torch.equal(thrifty(wide, 0)[1], explainer(wide, 0)[1])
    assert torch.equal(thrifty(x, score)[1], explainer(x, score)[1])
    (scored,) = thrifty._variants.values()
    for engine in (*thrifty.captured.engines.values(), *scored.captured.engines.values()):
        assert engine.recomputes


def test_a_sample_that_does_not_fit_is_computed_again_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(Deep(), x, dt.Box(0, 1), bias="neuron")
    expected, run = explainer(x, 0), Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if len(inputs[0]) > 1 or not self.recomputes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)
    with (
        pytest.warns(dt.DeepTaylorWarning, match="explained 1 at a time"),
        pytest.warns(dt.DeepTaylorWarning, match="A sample does not fit into memory; from now on fewer values"),
    ):
        found = explainer(x, 0)
    close(found[1], expected[1])


def test_a_single_sample_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, explainer = net("neuron")

    def none(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "run", none)
    with (
        pytest.raises(dt.DeepTaylorError, match=r"does not fit into memory.*CUDA out of memory.*Explain smaller") as e,
        pytest.warns(dt.DeepTaylorWarning, match="A sample does not fit"),
    ):
        explainer.explain(batch(1))
    assert isinstance(e.value, MemoryError)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("could not create a primitive"),  # oneDNN's convolutions
    ],
)
def test_whatever_says_that_memory_ran_out_halves_the_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval(), torch.rand(6, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    expected, plain = explainer.explain(x).relevance, Engine.run

    def narrow(engine: Engine, inputs: Any, *rest: Any) -> Any:
        if len(inputs[0]) > 2:
            raise error
        return plain(engine, inputs, *rest)

    monkeypatch.setattr(Engine, "run", narrow)
    assert torch.allclose(explainer.explain(x).relevance, expected)
    assert "2 at a time" in str(recwarn[-1].message)
