"""Networks that decide by their data are explained along the way that they took."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.graph.control_flow import as_taken


class Experts(nn.Module):
    """One of three experts by the data, some halvings, and a last decision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.head = nn.Linear(4, 3), nn.Linear(2, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3))

    def way(self, x: Tensor) -> tuple[int, int, bool]:
        """The expert, how many halvings, and the last decision."""
        k = int(self.gate(x).mean(0).argmax())
        y, times = self.experts[k](x), 0
        while y.abs().max() > 0.3:
            y, times = y * 0.5, times + 1
        return k, times, bool(y.sum() > 0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.experts[int(self.gate(x).mean(0).argmax())](x)
        while y.abs().max() > 0.3:
            y = y * 0.5
        if y.sum() > 0:
            return self.head(torch.relu(y))
        return self.head(torch.relu(-y))


class Straight(nn.Module):
    """The same without decisions, which were made before."""

    def __init__(self, network: Experts, way: tuple[int, int, bool]) -> None:
        super().__init__()
        self.expert, self.head, self.times, self.positive = network.experts[way[0]], network.head, way[1], way[2]

    def forward(self, x: Tensor) -> Tensor:
        y = self.expert(x)
        for _ in range(self.times):
            y = y * 0.5
        return self.head(torch.relu(y if self.positive else -y))


def test_the_way_taken_is_explained_as_if_it_had_been_written_so() -> None:
    network = Experts().eval()
    ways = set()
    for seed in range(8):
        x = torch.randn(1, 4, generator=torch.Generator().manual_seed(seed))
        taken, way = as_taken(network, x), network.way(x)
        assert torch.equal(taken(x), network(x))
        ours = dt.explain(taken, x)
        straight = dt.explain(Straight(network, way), x)
        assert torch.equal(ours.relevance, straight.relevance)
        assert ours.score.item() == network(x).max().item()
        ways.add(way)
    assert len(ways) > 2  # else nothing was decided


def test_it_has_the_networks_own_modules_and_leaves_it_alone() -> None:
    network = Experts().eval()
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(3))
    taken = as_taken(network, x)
    assert [name for name, _ in taken.named_modules()] == [name for name, _ in network.named_modules()]
    assert all(a is b for a, b in zip(taken.parameters(), network.parameters(), strict=True))
    assert "forward" not in network.__dict__
    assert "experts." in str(dt.Explainer(taken, x).plan)


def test_the_refusal_names_it() -> None:
    with pytest.raises(dt.CaptureError, match=r"dt\.explain\(dt\.as_taken\(model, x\), x\)"):
        dt.explain(Experts().eval(), torch.rand(1, 4))


class Counting(nn.Module):
    """Reads one more value at every call."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * sum(float(x.sum()) for _ in range(self.calls))


def test_a_network_that_depends_on_something_else_is_told() -> None:
    taken = as_taken(Counting(), torch.ones(1, 2))
    with pytest.raises(dt.CaptureError, match="more values"):
        taken(torch.ones(1, 2)), taken(torch.ones(1, 2))


@pytest.mark.parametrize("wrong", [(), [1.0], ("photo.jpg",)])
def test_what_is_no_tensor_is_refused(wrong: object) -> None:
    with pytest.raises(dt.InputError, match=r"dt\.as_taken\(model, x\)"):
        dt.as_taken(Experts(), wrong)  # type: ignore[arg-type]
