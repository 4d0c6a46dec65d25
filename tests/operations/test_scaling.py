"""Constants and data, element by element: one shape and one constant, however they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.graph.editing import constant_of
from deeptaylor.operations.scaling import broadcast
from deeptaylor.operations.table import find_data_nodes
from graphs import captured_of, operations, value_of
from rows import drawn


def settled(program: Callable[[Tensor], Tensor], x: Tensor) -> CapturedGraph:
    """The program with its last operation brought to one shape; it computes the same for any number of samples."""
    captured = captured_of(program, x)
    expected = [program(y) for y in (x, x[:1], torch.cat([x, x]))]
    broadcast(captured, captured.output, find_data_nodes(captured))
    captured.graph.eliminate_dead_code()
    for y, z in zip((x, x[:1], torch.cat([x, x])), expected, strict=True):
        torch.testing.assert_close(value_of(captured, y), z)
    return captured


def constant_read(captured: CapturedGraph) -> Tensor | None:
    return next((c for n in captured.output.args if (c := constant_of(captured, n)) is not None), None)


CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "ones_like": lambda x: torch.ones_like(x) * 2,
    "ones of the batch": lambda x: torch.ones(x.shape[0], 4, 6) + 1,
    "full": lambda x: torch.full((x.shape[0], 1, 6), 2.0),
    "full of one sample": lambda x: torch.full((4, 6), 2.0),
    "new_full": lambda x: x.new_full(x.shape, 2.0),
    "zeros + 2": lambda x: torch.zeros_like(x) + 2,
    "expanded": lambda x: torch.tensor(2.0).expand_as(x),
    "repeated": lambda x: torch.tensor([[[2.0]]]).repeat(x.shape[0], 4, 6),
    "counted": lambda x: torch.arange(x.shape[0]).reshape(-1, 1, 1) * 0.0 + 2,
    "of one feature": lambda x: torch.ones_like(x[:, :1]) * 2,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_filled_tensor_is_one_number(name: str) -> None:
    captured = settled(lambda x: x + CONSTANTS[name](x), drawn(3, 4, 6))
    found = constant_read(captured)
    assert found is not None
    assert found.numel() == 1
    assert float(found) == 2


def test_what_varies_is_kept() -> None:
    found = constant_read(settled(lambda x: x * torch.arange(4.0)[:, None].expand(x.shape[0], 4, 6), drawn(3, 4, 6)))
    assert found is not None
    assert found.shape == (1, 4, 1)


def test_what_differs_from_sample_to_sample_is_not_a_constant() -> None:
    captured = captured_of(lambda x: x + torch.arange(x.shape[0])[:, None], drawn(3, 4))
    broadcast(captured, captured.output, find_data_nodes(captured))
    assert constant_read(captured) is None


def test_what_depends_on_the_number_of_samples_is_not_a_constant() -> None:
    assert constant_read(settled(lambda x: x + torch.full_like(x, 1.0) * x.shape[0], drawn(3, 4))) is None


def test_a_constant_keeps_the_axis_that_only_it_has() -> None:
    """Beside two data tensors nothing is expanded, so that the constant decides the shape."""
    captured = settled(lambda x: torch.where(x.flip(1) > 0, x, torch.zeros(3, 1, 1)), drawn(1, 4))
    found = constant_read(captured)
    assert found is not None
    assert found.shape == (3, 1, 1)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda x: x.unsqueeze(2) + torch.arange(3.0), ["unsqueeze", "expand", "add"]),
        (lambda x: torch.arange(2.0)[:, None, None] - x, ["expand", "sub"]),
        (lambda x: x.mean(1, keepdim=True) * torch.arange(5.0), ["mean", "expand", "mul"]),
        (lambda x: x + torch.arange(4.0), ["add"]),
        (lambda x: x.unsqueeze(2) * x.sigmoid().unsqueeze(1), ["unsqueeze", "sigmoid", "unsqueeze", "mul"]),
    ],
)
def test_data_is_expanded_where_a_constant_is_larger(program: Callable[[Tensor], Tensor], words: list[str]) -> None:
    captured = settled(program, drawn(3, 4))
    assert [w for w in operations(captured) if w != "arange"] == words
