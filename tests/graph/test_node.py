"""Tensors without numbers: operations on them give the shapes, types and devices that they would have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deeptaylor.graph.node import FREE_BATCH, evaluate_size, find_batch_factor
from deeptaylor.graph.recipe import ShapeTensor

CPU = torch.device("cpu")


def outline(*sizes: int, dtype: torch.dtype = torch.float32) -> ShapeTensor:
    return ShapeTensor.of(sizes, dtype, CPU)


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (lambda x: x.permute(1, 0, 2), (3, FREE_BATCH, 5)),
        (lambda x: x.sum(1), (FREE_BATCH, 5)),
        (lambda x: x[..., 1:3], (FREE_BATCH, 3, 2)),
        (lambda x: x.new_empty((2, 7)), (2, 7)),
        (lambda x: x.flatten(0, 1), (3 * FREE_BATCH, 5)),
        (lambda x: x * torch.ones(5, device="meta"), (FREE_BATCH, 3, 5)),
    ],
)
def test_operations_give_outlines(made: Callable[[Tensor], Tensor], sizes: tuple[int, ...]) -> None:
    result = made(outline(FREE_BATCH, 3, 5))
    assert isinstance(result, ShapeTensor)
    assert (tuple(result.shape), result.dtype, result.device) == (sizes, torch.float32, CPU)


def test_types_and_devices_follow() -> None:
    x = outline(FREE_BATCH, 3)
    assert x.to(torch.float64).dtype is torch.float64
    assert not x.long().is_floating_point()
    there = torch.empty_like(x, device="meta")
    assert isinstance(there, ShapeTensor)
    assert there.device.type == "meta"
    assert [part.shape for part in x.split(2, 1)] == [(FREE_BATCH, 2), (FREE_BATCH, 1)]
    assert repr(x) == f"ShapeTensor(({FREE_BATCH}, 3), torch.float32, cpu)"
    assert isinstance(x, Tensor)


def test_sizes_that_follow_the_batch_are_told_from_others() -> None:
    assert [find_batch_factor(n) for n in (FREE_BATCH, 49 * FREE_BATCH)] == [1, 49]
    assert [find_batch_factor(n) for n in (0, 1, 2, 2**31, 2**31 - 1, 2**62)] == [None] * 6


def test_so_are_the_symbols_of_an_exported_network() -> None:
    class Flat(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(0, 1)

    program = torch.export.export(Flat(), (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    shapes = {n.op: n.meta["val"].shape for n in program.graph.nodes if n.op != "output"}
    assert [find_batch_factor(n) for n in shapes["placeholder"]] == [1, None]
    assert [find_batch_factor(n) for n in shapes["call_function"]] == [3]


def test_every_input_has_a_symbol_of_its_own_and_so_has_what_a_mask_picks() -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return y.flatten(0, 1).reshape(x.shape[0], -1), x[x > 0].reshape(x.shape[0], -1)

    free = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(Mixed(), (torch.ones(2, 1), torch.ones(2, 3)), dynamic_shapes=(free, free))
    shapes = [n.meta["val"].shape for n in next(n for n in program.graph.nodes if n.op == "output").args[0]]
    assert [[find_batch_factor(n) for n in shape] for shape in shapes] == [[1, None], [1, None]]
    assert [[evaluate_size(n, 5) for n in shape] for shape in shapes] == [[5, 3], [5, 1]]
