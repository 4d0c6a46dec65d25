"""Recurrent layers are explained as the steps that they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph.modes import isolate_export
from deeptaylor.graph.recurrent import unroll_recurrent

X = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Layered(nn.Module):
    """A recurrent layer, and scores of its last step."""

    def __init__(self, kind: type[nn.RNNBase], **given: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.memory = kind(4, 6, batch_first=True, **given)
        width = given.get("proj_size") or 6
        self.head = nn.Linear(width * (2 if given.get("bidirectional") else 1), 3)
        nn.init.constant_(self.head.bias, 1.0)  # so that all scores are above zero
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


class Looped(nn.Module):
    """The same with a cell, called at every step."""

    def __init__(self, kind: type[nn.RNNCellBase], of: Layered) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 6), of.head
        self.double().eval()
        with torch.no_grad():
            for name, own in self.cell.named_parameters():
                own.copy_(getattr(of.memory, f"{name}_l0"))

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for k in range(x.shape[1]):
            state = self.cell(x[:, k], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Written(nn.Module):
    """A rectified recurrent layer by hand, without one of torch's."""

    def __init__(self, of: Layered) -> None:
        super().__init__()
        self.w, self.v, self.head = nn.Linear(4, 6), nn.Linear(6, 6), of.head
        self.double().eval()
        with torch.no_grad():
            for own, name in ((self.w, "ih"), (self.v, "hh")):
                own.weight.copy_(getattr(of.memory, f"weight_{name}_l0"))
                own.bias.copy_(getattr(of.memory, f"bias_{name}_l0"))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        for k in range(x.shape[1]):
            h = torch.relu(self.w(x[:, k]) + self.v(h))
        return self.head(h)


def explained(network: nn.Module, target: int = 1) -> dt.Explanation:
    return dt.explain(network, X, target=target, domain=dt.NonNegative(), bias="neuron")


PAIRS = [
    (nn.LSTM, nn.LSTMCell),
    pytest.param(nn.GRU, nn.GRUCell, marks=pytest.mark.slow),
    pytest.param(nn.RNN, nn.RNNCell, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "cell"), PAIRS, ids=lambda kind: kind.__name__)
def test_a_layer_is_its_cell_at_every_step(layer: type[nn.RNNBase], cell: type[nn.RNNCellBase]) -> None:
    network = Layered(layer)
    reached = False
    for target in range(2):
        a, b = explained(network, target), explained(Looped(cell, network), target)
        torch.testing.assert_close(a.relevance, b.relevance, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(a.ledger.bias, b.ledger.bias, rtol=1e-12, atol=1e-14)
        reached = reached or bool(a.relevance.any())
    assert reached


def test_a_rectified_layer_is_what_one_writes_by_hand() -> None:
    network = Layered(nn.RNN, nonlinearity="relu")
    a, b = explained(network), explained(Written(network))
    torch.testing.assert_close(a.relevance, b.relevance, rtol=1e-12, atol=1e-14)
    assert a.relevance.any()


KINDS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"bias": False}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {"num_layers": 2}),
    (nn.GRU, {"bidirectional": True}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
]
FAST = [KINDS[0]]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(
    ("kind", "given"),
    [k if k in FAST else pytest.param(*k, marks=pytest.mark.slow) for k in KINDS],
    ids=lambda g: getattr(g, "__name__", None) or "-".join(g) or "plain",
)
def test_the_score_is_accounted_for(kind: type[nn.RNNBase], given: dict[str, Any]) -> None:
    network = Layered(kind, **given)
    with torch.no_grad():
        score, best = network(X).max(1)
    assert (score > 0).all()
    for bias in ("neuron", "returned"):
        e = dt.explain(network, X, target=best, domain=dt.NonNegative(), bias=bias)
        check = e.check()
        assert check.accounted
        assert check.positive
        torch.testing.assert_close(e.score, score, rtol=1e-12, atol=0)
        assert e.relevance.flatten(1).any(1).all()


def test_the_steps_are_written_as_torch_computes_them() -> None:
    """The program with the steps in place of the layers, and the layers themselves."""
    for kind, given in KINDS:
        network = Layered(kind, **given)
        with torch.no_grad(), isolate_export():
            program = torch.export.export(network, (X,), strict=False)
            torch.testing.assert_close(unroll_recurrent(program).module()(X), network(X), rtol=1e-12, atol=1e-14)
