"""A captured network cut at a layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

import deeptaylor as dt
from deeptaylor.graph.capture import capture
from deeptaylor.graph.editing import cut_at_layer, describe_unknown_name
from small_networks import small_cnn

X = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_it_gives_what_the_layer_gives_and_holds_nothing_else() -> None:
    model = small_cnn()
    captured = capture(model, [X])
    constants = len(captured.constants)
    cut_at_layer(captured, "3")
    assert captured.cut_layer == "3"
    assert len(captured.constants) < constants
    assert "8" not in captured.module_outputs
    with torch.no_grad():
        assert torch.allclose(fx.GraphModule(captured.constants, captured.graph)(X), model[:4](X))


class Ranked(nn.Module):
    """A layer that ends in whole numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argsort(1)


def test_a_layer_of_whole_numbers_is_refused() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rank = Ranked()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.rank(x).to(x.dtype)

    with pytest.raises(dt.BoundaryError, match="'rank' does not end in one tensor of real numbers"):
        cut_at_layer(capture(Network(), [torch.rand(2, 3)]), "rank")


def test_names_like_the_one_that_was_given_are_said() -> None:
    known = ["features.0", "features.3", "classifier"]
    assert describe_unknown_name("feature.3", known).startswith(
        "There is no node or module 'feature.3'. Did you mean 'featur"
    )
    assert describe_unknown_name("x", known).endswith("There are 'features.0', 'features.3', 'classifier', …")


def test_an_input_that_does_not_reach_the_layer_is_noted() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.relu(self.a(x)) + torch.relu(self.b(y))

    x, y = torch.rand(2, 3), torch.rand(2, 2)
    e = dt.explain(Two(), (x, y), dt.unit("a", 1), (dt.NonNegative(), dt.NonNegative()))
    assert any("'y' does not reach a" in note for note in e.notes)
    assert not bool(e.relevance[1].any())
