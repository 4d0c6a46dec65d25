"""The plain call and those around it: what it refuses, vmap, inference mode, a batch that is fixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from refusals import mlp


def test_no_state_dict_is_loaded_into_the_users_network() -> None:
    net, other, x = mlp(), mlp(), torch.rand(2, 4)
    nn.init.normal_(other[0].weight)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    assert not explainer.state_dict()
    explainer.load_state_dict(dt.Explainer(other, x, dt.NonNegative(), bias="neuron").state_dict())
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


def test_a_network_made_in_inference_mode_is_explained() -> None:
    with torch.inference_mode():
        net = mlp()
        x = torch.rand(2, 4)
        e = dt.Explainer(net, x, dt.NonNegative(), bias="neuron").explain(x)
    assert e.check().accounted


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (3, "out of range"),
        (-1, "out of range"),
        (torch.tensor([0, 7]), "out of range"),
        (torch.arange(6) % 3, "shape"),
        (torch.eye(3), "output's shape"),
        (torch.tensor([True, False]), "A target must be"),
        ([0.5], "A list as a target must hold"),
    ],
    ids=["class 3 of 3", "negative", "one of two", "too many", "weights", "bool", "list"],
)
def test_a_call_refuses_the_targets_that_explain_refuses(target: Any, what: str) -> None:
    explainer, x = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative(), bias="neuron"), torch.rand(2, 4)
    for refused in (explainer, explainer.explain):
        with pytest.raises(dt.TargetError, match=what):
            refused(x, target)


def test_a_call_refuses_an_empty_batch() -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative(), bias="neuron")
    with pytest.raises(dt.InputError, match="empty"):
        explainer(torch.rand(0, 4))


@pytest.mark.parametrize(
    ("x", "what"),
    [
        (torch.rand(2, 4, dtype=torch.float64), "computes in torch.float32"),
        (torch.rand(2, 4).half(), "computes in torch.float32"),
        ("abc", "must be"),
        (None, "must be"),
        (torch.rand(2, 4, device="meta"), "meta"),
        ((torch.rand(2, 4), torch.rand(2, 4)), "takes 1 input"),
        (torch.ones(2, 4, dtype=torch.bool), "torch.bool"),
        (torch.tensor(1.0), "no batch dimension"),
        (torch.ones(2, 4, dtype=torch.long), "holds integers"),
        (torch.rand(2, 5), "expected 4 features"),
    ],
    ids=["float64", "half", "word", "nothing", "meta", "two", "bool", "scalar", "integers", "features"],
)
def test_a_call_refuses_the_inputs_that_explain_refuses(x: Any, what: str) -> None:
    explainer = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative(), bias="neuron")
    for refused in (explainer, explainer.explain):
        with pytest.raises(dt.InputError, match=what):
            refused(x, 0)


def test_vmap_over_an_explainer() -> None:
    """Values are not there to be looked at, and nothing looks."""
    explainer, x = dt.Explainer(mlp(), torch.rand(2, 4), dt.NonNegative(), bias="neuron"), torch.rand(3, 2, 4)
    classes, weights = torch.tensor([[0, 1], [2, 0], [1, 1]]), torch.rand(3, 2, 3)
    for target in (classes, weights):
        expected = torch.stack([explainer(a, t)[1] for a, t in zip(x, target, strict=True)])
        torch.testing.assert_close(torch.vmap(lambda a, t: explainer(a, t)[1])(x, target), expected)


def test_a_network_that_insists_on_its_batch_is_refreshed_and_scored() -> None:
    class Four(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.view(4, 4))

    x = torch.rand(4, 4)
    explainer = dt.Explainer(Four().eval(), x, dt.NonNegative(), bias="neuron")
    expected = explainer(x, 0)[1]
    assert torch.equal(explainer.refresh()(x, 0)[1], expected)
    assert torch.allclose(explainer(x, lambda out: out[:, 0])[1], expected)
