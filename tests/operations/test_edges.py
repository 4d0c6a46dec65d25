"""Graph networks whose samples are graphs: sums over edges with fixed ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.operations.edges import ROWS

NODES, EDGES = 6, 13
ENDS = torch.randint(0, NODES - 1, (2, EDGES), generator=torch.Generator().manual_seed(0))  # nothing ends in the last
FROM, TO = ENDS


class Graph(nn.Module):
    """Two layers that pass messages along the edges, then the mean over nodes; samples are graphs."""

    def __init__(self, collect: Callable[[Tensor, Tensor, Tensor], Tensor], twice: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("start", FROM)
        self.register_buffer("end", TO)
        self.collect, self.twice = collect, twice
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b) if self.twice else (self.a,):
            h = layer(x)
            x = torch.relu(self.collect(h, h[:, self.start], self.end))
        out: Tensor = self.head(x.mean(1))
        return out


def wide(end: Tensor, messages: Tensor) -> Tensor:
    return end.view(1, -1, 1).expand_as(messages)


def matrix(mean: bool = False, keeps: bool = False) -> Tensor:
    A = torch.zeros(NODES, EDGES).index_put((TO, torch.arange(EDGES)), torch.ones(EDGES))
    return A / (A.sum(1, keepdim=True) + keeps).clamp(min=1) if mean else A


SUMS: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "index_add": (
        lambda h, m, end: torch.zeros_like(h).index_add(1, end, m),
        lambda h, m: matrix() @ m,
    ),
    "index_add to nodes": (lambda h, m, end: h.index_add(-2, end, m), lambda h, m: h + matrix() @ m),
    "scatter_add": (
        lambda h, m, end: torch.zeros_like(h).scatter_add(1, wide(end, m), m),
        lambda h, m: matrix() @ m,
    ),
    "scatter_add in place": (
        lambda h, m, end: h.new_zeros(h.shape).scatter_add_(-2, wide(end, m), m),
        lambda h, m: matrix() @ m,
    ),
    "scatter_reduce sum": (
        lambda h, m, end: h.scatter_reduce(1, wide(end, m), m, "sum"),
        lambda h, m: h + matrix() @ m,
    ),
    "scatter_reduce mean": (
        lambda h, m, end: torch.zeros_like(h).scatter_reduce(1, wide(end, m), m, "mean", include_self=False),
        lambda h, m: matrix(mean=True) @ m,
    ),
    "scatter_reduce mean with nodes": (
        lambda h, m, end: h.scatter_reduce(1, wide(end, m), m, "mean"),
        lambda h, m: matrix(mean=True, keeps=True) @ m + h / (matrix().sum(1, keepdim=True) + 1),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_edges_are_those_by_a_matrix(name: str) -> None:
    by_edges, by_matrix = SUMS[name]
    network = Graph(by_edges)
    plain = Graph(lambda h, m, end: by_matrix(h, m))
    x = torch.rand(3, NODES, 4)
    torch.testing.assert_close(network(x), plain(x))
    mine, other = (dt.Explainer(n).between(x, torch.zeros_like(x), 1) for n in (network, plain))
    torch.testing.assert_close(mine.relevance, other.relevance)
    assert float(mine.ledger.gap.abs().max()) < 1e-6
    e = dt.Explainer(network, method="deep-taylor").explain(x, 1)
    assert e.check().accounted
    assert bool((e.relevance >= 0).all())
    assert dt.explain(network, x[:1], target=1, method="deep-taylor").relevance.shape == (1, NODES, 4)


def test_a_message_gets_what_its_sum_gets() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("end", torch.tensor([0, 0, 1]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 2).index_add(1, self.end, x)

    x = torch.tensor([[1.0, 3.0, 5.0]])  # y = (1 + 3, 5)
    e = dt.Explainer(Sum(), domain=dt.NonNegative(), method="deep-taylor").explain(x, 0)
    torch.testing.assert_close(e.relevance, torch.tensor([[1.0, 3.0, 0.0]]))


@pytest.mark.parametrize(
    ("collect", "said"),
    [
        (lambda h, m, end: torch.zeros_like(h).scatter_reduce(1, wide(end, m), m, "amax"), "scatter_reduce"),
        (lambda h, m, end: h.scatter_reduce(1, wide(end, m), m, "mean", include_self=False), "scatter_reduce"),
        (lambda h, m, end: torch.zeros_like(h).index_add(1, end, m, alpha=2), "index_add"),
        (lambda h, m, end: torch.zeros_like(h).scatter_add(1, m.argsort(1) % NODES, m), "scatter_add"),
    ],
)
def test_other_sums_are_refused_by_name(collect: Any, said: str) -> None:
    with pytest.raises(dt.UnsupportedOpError, match=said):
        dt.explain(Graph(collect, twice=False), torch.rand(2, NODES, 4), target=0)


def test_nodes_as_samples_are_refused_with_the_reason() -> None:
    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("start", FROM)
            self.register_buffer("end", TO)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return torch.zeros_like(h).index_add(0, self.end, h[self.start])

    with pytest.raises(dt.DeepTaylorError, match=r"depends on the other samples.*index computes across"):
        dt.explain(Nodes(), torch.rand(NODES, 4), target=0)


def test_an_adjacency_that_stays_is_a_constant() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            places = torch.arange(NODES)
            adjacency = adjacency.clone()
            adjacency[:, places, places] = 1
            out: Tensor = self.head(torch.relu(adjacency @ self.layer(x)).mean(1))
            return out

    x, adjacency = torch.rand(2, NODES, 4), (torch.rand(2, NODES, NODES) > 0.5).float()
    found = dt.Explainer(Dense()).between((x, adjacency), (torch.zeros_like(x), None), 1)
    assert float(found.ledger.gap.abs().max()) < 1e-6
    assert not bool(found.relevance[1].any())


def test_every_row_is_a_sum() -> None:
    assert {str(op) for op in ROWS} == {"aten.index_add.default", "aten.scatter_add.default", "aten.scatter_reduce.two"}
