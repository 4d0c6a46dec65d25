"""A linear layer of copies computes one of them; what it says is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deeptaylor.secant import copies
from deeptaylor.secant.narrow import wide_layer
from deeptaylor.secant.pair import Pair, tracing
from deeptaylor.secant.products import layer

COUNT, ROWS = 3, 2


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors each product of ours had."""
    found: list[int] = []
    linear = copies.ops.linear

    def counted(x: Tensor, *more: Tensor) -> Tensor:
        found.append(len(x))
        return linear(x, *more)

    monkeypatch.setattr(copies.ops, "linear", counted)
    return found


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 4, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_copies_are_computed_once(shape: tuple[int, ...], bias: bool, rows: list[int]) -> None:
    x = torch.cat([draw(ROWS, *shape)] * COUNT).requires_grad_()
    read, weights = Pair(x, draw(COUNT * ROWS, *shape, seed=1)), (draw(7, 5, seed=2), draw(7, seed=3) if bias else None)
    wanted = layer(wide_layer, (read, *weights), {})
    with copies.copies(COUNT):
        found = layer(wide_layer, (read, *weights), {})
    assert rows == [COUNT * ROWS, COUNT * ROWS, ROWS + COUNT * ROWS]
    m = draw(*wanted.x.shape, seed=4)
    back, wanted_back = (torch.autograd.grad(p.x, x, m)[0] for p in (found, wanted))
    for a, b in ((found.x, wanted.x), (found.x0, wanted.x0), (back, wanted_back)):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)


def test_what_is_no_copy_is_found_by_its_numbers() -> None:
    with copies.copies(COUNT):
        assert copies.one_of(draw(COUNT * ROWS, 5)) is None  # samples differ
        assert copies.one_of(torch.cat([draw(ROWS, 5)] * COUNT).mT) is None  # samples lie along another axis
        assert copies.one_of(draw(COUNT * ROWS + 1, 5)) is None
        assert copies.one_of(torch.full((COUNT, 5), float("nan"))) is None
        with tracing():
            assert copies.one_of(torch.ones(COUNT, 5)) is None
        assert copies.one_of(torch.ones(COUNT, 5)) is not None
    assert copies.one_of(torch.ones(COUNT, 5)) is None
