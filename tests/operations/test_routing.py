"""The k largest as comparisons: the same numbers, and secants where the choice differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.operations import routing

EXPERTS, CHOSEN = 5, 2
Route = Callable[[Tensor], Tensor]  # scores (tokens, experts) → the weight of each expert


def compared(scores: Tensor) -> Tensor:
    """As mixtures of experts of transformers are captured (graph/experts.py)."""
    weights, places = scores.softmax(-1).topk(CHOSEN, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    return ((places.unsqueeze(-1) == torch.arange(EXPERTS)).to(weights.dtype) * weights.unsqueeze(-1)).sum(1)


def gathered(scores: Tensor) -> Tensor:
    """The choice is by other numbers than the weights."""
    places = torch.topk(scores + torch.tensor([0.0, 0.2, 0, -0.2, 0.1]), CHOSEN).indices
    chosen = scores.sigmoid().gather(-1, places)
    return torch.zeros_like(scores).scatter(-1, places, chosen)


def grouped(scores: Tensor) -> Tensor:
    """Only experts that are placed in a mask may be chosen."""
    mask = torch.zeros_like(scores).scatter_(1, scores.topk(3, dim=-1).indices, 1.0)
    weights, places = scores.sigmoid().masked_fill(mask == 0, 0.0).topk(CHOSEN, dim=-1)
    return torch.zeros_like(scores).scatter(1, places, weights.softmax(-1))


def best_groups(scores: Tensor) -> Tensor:
    """Experts come from the group whose two best scores have the largest sum, as in DeepSeek-V3."""
    each = scores.sigmoid()[:, :4]
    sums = each.view(-1, 2, 2).topk(2, dim=-1)[0].sum(-1)
    groups = torch.zeros_like(sums).scatter_(1, sums.topk(1, dim=-1, sorted=False)[1], 1)
    mask = groups.unsqueeze(-1).expand(-1, 2, 2).reshape(-1, 4)
    places = each.masked_fill(~mask.bool(), float("-inf")).topk(CHOSEN, dim=-1, sorted=False)[1]
    chosen = each.gather(1, places)
    weights = torch.zeros_like(each).scatter(1, places, chosen / chosen.sum(-1, keepdim=True))
    return torch.nn.functional.pad(weights, (0, 1))


class Mixture(nn.Module):
    def __init__(self, route: Route) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router, self.route = nn.Linear(6, EXPERTS), route
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(EXPERTS))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        w = self.route(self.router(x))
        parts = [w[:, e : e + 1] * torch.relu(expert(x)) for e, expert in enumerate(self.experts)]
        return torch.stack(parts).sum(0)


def samples() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)


@pytest.mark.parametrize("route", [compared, gathered, grouped, best_groups])
def test_secants_where_the_routing_differs(route: Route) -> None:
    network, (x, x0) = Mixture(route).eval(), samples()
    used, used0 = (network.route(network.router(t)) > 0 for t in (x, x0))
    assert bool((used != used0).any())
    found = dt.Explainer(network).between(x, x0, 1)
    assert torch.allclose(found.relevance.sum(1), (network(x) - network(x0))[:, 1], atol=1e-12)
    assert float(found.relevance.abs().max()) < 100  # no slope over a tiny change


def test_deep_taylor_holds_the_routing_fixed() -> None:
    network, (x, _) = Mixture(compared).eval(), samples()
    found = dt.Explainer(network, method="deep-taylor", bias="spread").explain(x, 1)
    assert torch.allclose(found.ledger.total, network(x)[:, 1], atol=1e-9)
    assert float(found.relevance.abs().sum()) > 0


def test_places_in_a_wider_tensor_are_left_alone() -> None:
    def first_four(scores: Tensor) -> Tensor:
        places = scores[:, :4].topk(CHOSEN, dim=-1).indices
        return torch.zeros_like(scores).scatter(1, places, scores.gather(1, places))

    network, (x, x0) = Mixture(first_four).eval(), samples()
    with pytest.raises(dt.UnsupportedOpError, match="topk: the sorted order differs"):
        dt.Explainer(network).between(x, x0, 1)


def test_other_uses_of_places_are_left_alone() -> None:
    """The order of what is read differs, which has no secant; the error names the operation."""

    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            values, places = x.topk(2, dim=-1)
            return values * (places + 1)

    x, x0 = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    explainer = dt.Explainer(Sorted())
    assert torch.allclose(explainer.between(x, 2 * x, 0).relevance, torch.tensor([[-3.0, 0, 0]]))
    with pytest.raises(dt.UnsupportedOpError, match=r"topk: .* order .*differs"):
        explainer.between(x, x0, 0)


def test_the_row_is_the_familys() -> None:
    assert list(routing.ROWS) == [torch.ops.aten.topk.default]
