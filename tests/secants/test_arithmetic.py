"""A linear layer computes one of several copies, and takes back no multipliers of zero; what it says is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deeptaylor.secants import arithmetic
from deeptaylor.secants.arithmetic import split_layer
from deeptaylor.secants.low_precision import cast_linear
from deeptaylor.secants.pair import Pair, trace_walk

COUNT, ROWS = 3, 2


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors each product of ours had."""
    found: list[int] = []
    linear = arithmetic.ops.linear

    def counted(x: Tensor, *more: Tensor) -> Tensor:
        found.append(len(x))
        return linear(x, *more)

    monkeypatch.setattr(arithmetic.ops, "linear", counted)
    return found


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 4, 5)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_copies_are_computed_once(shape: tuple[int, ...], bias: bool, rows: list[int]) -> None:
    x = torch.cat([draw(ROWS, *shape)] * COUNT).requires_grad_()
    read, weights = Pair(x, draw(COUNT * ROWS, *shape, seed=1)), (draw(7, 5, seed=2), draw(7, seed=3) if bias else None)
    with trace_walk():
        wanted = split_layer(cast_linear, (read, *weights), {})
    with arithmetic.declare_copies(COUNT):
        found = split_layer(cast_linear, (read, *weights), {})
    assert rows == [COUNT * ROWS, COUNT * ROWS, ROWS + COUNT * ROWS]
    m = draw(*wanted.x.shape, seed=4)
    back, wanted_back = (torch.autograd.grad(p.x, x, m)[0] for p in (found, wanted))
    for a, b in ((found.x, wanted.x), (found.x0, wanted.x0), (back, wanted_back)):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-300, float("nan")], ids=str)
def test_multipliers_of_zero_are_not_multiplied(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    m, weight, counts = draw(3, 4, 7), draw(7, 5, seed=1), []
    m[1, 2:] = 0
    m[2, 0, :] = 0
    m[2, 0, 3] = number
    wanted = m @ weight
    product = Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: counts.append(len(a)) or product(a, b))
    found = arithmetic.multiply_nonzero_rows(m, weight)
    assert counts == [9 if number == 0 else 10]
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-14, equal_nan=True)
    counts.clear()
    torch.testing.assert_close(arithmetic.multiply_nonzero_rows(m[0], weight), wanted[0], rtol=1e-13, atol=1e-14)
    assert counts == [4]
    assert not arithmetic.multiply_nonzero_rows(torch.zeros(2, 3, 7, dtype=torch.float64), weight).any()


def test_padding_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last layer says of one token alone goes back by that token alone."""
    x, x0, weight = draw(2, 4, 5).requires_grad_(), draw(2, 4, 5, seed=1), draw(7, 5, seed=2)
    found = split_layer(cast_linear, (Pair(x, x0), weight), {})
    rows, product = [], Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: rows.append(len(a)) or product(a, b))
    (back,) = torch.autograd.grad(found.x[:, 0].sum(), x)
    assert rows == [2]
    torch.testing.assert_close(back[:, 0], weight.sum(0).expand(2, -1), rtol=1e-13, atol=1e-14)
    assert not back[:, 1:].any()


def test_what_is_no_copy_is_found_by_its_numbers() -> None:
    with arithmetic.declare_copies(COUNT):
        for t in (
            draw(COUNT * ROWS, 5),  # samples differ
            torch.cat([draw(ROWS, 5)] * COUNT).mT,  # samples lie along another axis
            draw(COUNT * ROWS + 1, 5),
            torch.full((COUNT, 5), float("nan")),
        ):
            assert arithmetic.take_first_copy(t) is t
        assert len(arithmetic.take_first_copy(torch.ones(COUNT, 5))) == 1
    assert len(arithmetic.take_first_copy(torch.ones(COUNT, 5))) == COUNT


def test_numbers_are_looked_at_where_that_is_allowed_and_cheap() -> None:
    assert arithmetic.can_read(torch.ones(2))
    assert not arithmetic.can_read(torch.ones(2, device="meta"))
    with trace_walk():
        assert not arithmetic.can_read(torch.ones(2))
