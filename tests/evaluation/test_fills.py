"""What takes the place of what is taken away."""

from __future__ import annotations

import pytest
import torch

from deeptaylor.engine.deletion import FILLS, SIGMA, find_fill
from deeptaylor.errors import InputError


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_blur_of_a_point_is_a_bell() -> None:
    x = torch.zeros(1, 1, 112, 112, dtype=torch.float64)
    x[0, 0, 60, 50] = 1
    found, sigma = FILLS["blur"](x)[0, 0], SIGMA / 2
    assert float(found.sum()) == pytest.approx(1)
    for row, column in ((60, 50), (63, 50), (60, 44), (56, 55)):
        away = (row - 60) ** 2 + (column - 50) ** 2
        wanted = torch.exp(torch.tensor(-away / (2 * sigma**2), dtype=torch.float64))
        assert float(found[row, column] / found[60, 50]) == pytest.approx(float(wanted))


def test_the_blur_keeps_an_even_picture_and_its_channels_apart() -> None:
    x = drawn(2, 3, 1, 1).expand(2, 3, 9, 12)
    assert torch.allclose(FILLS["blur"](x), x)  # up to its edges: nothing dark comes in from beyond


def test_the_mean_is_that_of_each_channel_of_each_picture() -> None:
    x = drawn(2, 3, 4, 5)
    found = FILLS["mean"](x)
    assert found.shape == x.shape
    assert torch.allclose(found[1, 2], x[1, 2].mean())
    assert torch.allclose(FILLS["mean"](drawn(2, 3, 7))[0, 1], drawn(2, 3, 7)[0, 1].mean())
    assert not FILLS["mean"](drawn(2, 5)).any()  # the numbers of a vector have no average colour


def test_zero() -> None:
    assert torch.equal(FILLS["zero"](drawn(2, 3, 4, 4)), torch.zeros(2, 3, 4, 4, dtype=torch.float64))


def test_by_name_or_the_users_own() -> None:
    assert find_fill("mean") is FILLS["mean"]
    assert find_fill(torch.ones_like) is torch.ones_like
    with pytest.raises(InputError, match="no fill called 'grey'; use blur, mean, zero, or a function of a"):
        find_fill("grey")


def test_only_pictures_are_blurred() -> None:
    with pytest.raises(InputError, match=r"not inputs of shape \(5,\); use mean or zero"):
        FILLS["blur"](drawn(2, 5))
