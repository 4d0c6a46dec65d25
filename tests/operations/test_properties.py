"""The sample axis after operations that treat every sample alone; None where that is not certain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deeptaylor.graph.capture import CapturedGraph, capture
from deeptaylor.graph.editing import source_of
from deeptaylor.operations.properties import find_axis_after, is_pointwise, is_reshape
from deeptaylor.operations.table import find_data_nodes

W = torch.ones(4, 4)


class Call(nn.Module):
    """One operation."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operation(x)


def captured_call(operation: Any) -> CapturedGraph:
    """Return the graph of an operation on (samples, 3, 4)."""
    with torch.no_grad():
        return capture(Call(operation), [torch.rand(2, 3, 4)])


@pytest.mark.parametrize(
    ("operation", "axis", "after"),
    [
        (lambda x: x.relu(), 0, 0),
        (lambda x: x + W[:3], 0, 0),
        (lambda x: x.sum(1), 0, 0),
        (lambda x: x.sum(1), 2, 1),
        (lambda x: x.sum(1), 1, None),
        (lambda x: x.softmax(-1), 0, 0),
        (lambda x: x.softmax(0), 0, None),
        (lambda x: x.sum(), 0, None),
        (lambda x: x.roll(1), 0, None),
        (lambda x: x.flip(0), 0, None),
        (lambda x: x.renorm(2, 1, 1.0), 0, None),
        (lambda x: x.permute(1, 2, 0), 0, 2),
        (lambda x: x.transpose(0, -1), 0, 2),
        (lambda x: x.transpose(1, 2), 0, 0),
        (lambda x: F.linear(x, W), 0, 0),
        (lambda x: F.linear(x, W), 2, None),
        (lambda x: F.layer_norm(x, (4,)), 0, 0),
        (lambda x: F.layer_norm(x, (3, 4)), 1, None),
        (lambda x: F.conv1d(x, torch.ones(2, 3, 1)), 0, 0),
        (lambda x: F.conv1d(x, torch.ones(2, 3, 1)), 1, None),
        (lambda x: F.batch_norm(x, None, None, training=True), 0, None),
        (lambda x: x @ W, 0, 0),
        (lambda x: x @ W, 1, None),
        (lambda x: torch.einsum("bij,jk->bik", x, W), 0, 0),
        (lambda x: torch.einsum("bij,jk->ik", x, W), 0, None),
        (lambda x: F.pad(x, (1, 1)), 0, 0),
        (lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)), 0, None),
        (lambda x: x[:], 0, 0),
        (lambda x: x[1:], 0, None),
        (lambda x: x.sort(1).values, 0, 0),
        (lambda x: x.sort(0).values, 0, None),
        (lambda x: F.scaled_dot_product_attention(x, x, x), 0, 0),
        (lambda x: F.scaled_dot_product_attention(x, x, x), 1, None),
        (lambda x: torch.stack([x, x]), 0, 1),
        (lambda x: torch.stack([x, x], 1), 0, 0),
        (lambda x: torch.cat([x, x], 1), 0, 0),
        (lambda x: torch.cat([x, x]), 0, None),
    ],
)
def test_the_axis_of_the_samples_is_known_or_not(operation: Any, axis: int, after: int | None) -> None:
    captured = captured_call(operation)
    node, known = captured.output, find_data_nodes(captured)
    data = [n for n in source_of(node).all_input_nodes if n in known]
    assert find_axis_after(node, dict.fromkeys(data, axis)) == after


def test_kinds() -> None:
    assert is_pointwise(captured_call(lambda x: x.exp()).output)
    assert not is_pointwise(captured_call(lambda x: x.sum(1)).output)
    assert is_reshape(captured_call(lambda x: x.flatten(1)).output)
    assert not is_reshape(captured_call(lambda x: x.transpose(1, 2)).output)
