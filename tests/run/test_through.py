"""What passes through a layer that joins others, of which each has a relevance of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.run.through import Through
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
    assert isinstance(c.through, Through)
    assert bool((c.relevance > 0).any())
    for k, part in enumerate(c.maps(range(5))):
        arrived, on, bias, dropped = part.ledger.entries[0]
        assert torch.allclose(arrived, c.relevance[:, k], rtol=1e-12)
        assert torch.allclose(arrived, on + bias + dropped, rtol=1e-12)
