"""Convergence: relevance of different classes becomes one on the way down."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import BoundaryError, InputError, TargetError

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from convergence import convergence


def deep(width: int = 12, depth: int = 5) -> nn.Sequential:
    """Many layers of matrices without negative entries."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width, bias=False) for _ in range(depth)]
    for layer in layers:
        layer.weight.data.abs_()
    mixed = [m for layer in layers for m in (layer, nn.ReLU())]
    return nn.Sequential(*mixed, nn.Linear(width, 4, bias=False)).double().eval()


def inputs(count: int = 3) -> Tensor:
    return torch.rand(count, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@functools.cache
def explainer() -> dt.Explainer:
    net = deep()
    net[-1].weight.data = torch.eye(4, 12, dtype=torch.float64)  # classes begin at different units
    return dt.Explainer(net, inputs(), dt.NonNegative())


def test_positive_layers_converge_from_the_output_to_the_input() -> None:
    found = convergence(explainer(), inputs(), [0, 1, 2, 3])
    cosines = list(found.values())
    assert cosines[0] == pytest.approx(0)
    assert cosines == sorted(cosines)
    assert cosines[-1] > 0.99


def test_by_hand() -> None:
    own, x = explainer(), inputs()
    classes = torch.tensor([[0, 1, 2], [1, 2, 3], [3, 0, 1]])
    found = convergence(own, x, classes, layers=["3", "input_1"])
    assert list(found) == ["3", "input_1"]
    for name, value in found.items():
        cosines = []
        for a, b in ((0, 1), (0, 2), (1, 2)):
            R, S = (own.relevance_at(name, x, classes[:, k]) for k in (a, b))
            cosines.append(torch.cosine_similarity(R, S, dim=1))
        assert value == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-12)


def test_a_class_without_a_positive_score_is_not_counted() -> None:
    net = deep()
    net[-1].weight.data = torch.eye(4, 12, dtype=torch.float64)
    net[-1].weight.data[3] *= -1
    own = dt.Explainer(net, inputs(), dt.NonNegative())
    assert convergence(own, inputs(), [0, 1, 3]) == pytest.approx(convergence(own, inputs(), [0, 1]))


def test_refusals() -> None:
    own = explainer()
    with pytest.raises(InputError, match=r"give two or more; got shape \(3, 1\)"):
        convergence(own, inputs(), [2])
    with pytest.raises(TargetError, match="out of range"):
        convergence(own, inputs(), [0, 4])
    with pytest.raises(BoundaryError, match="no node or module 'nowhere'"):
        convergence(own, inputs(), [0, 1], layers=["nowhere"])
