"""Continuity: maps of inputs that were moved by little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.evaluation.metrics import Continuity, MaxSensitivity, add_noise, shift
from known_truth import Quarters, case, random_maps, true_maps
from untouched import changes, snapshot


def halves(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """A map that is half the input."""
    return x / 2


def test_pictures_are_shifted_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], [[[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]]]])
    assert shift(x, 1).tolist() == [[[[1, 1, 2], [1, 4, 5]]], [[[4, 9, 8], [4, 6, 5]]]]
    assert shift(x, -2).tolist() == [[[[3, 1, 1], [6, 1, 1]]], [[[7, 4, 4], [4, 4, 4]]]]
    for by in (0, 3, -3):
        with pytest.raises(InputError, match=rf"of shape \(1, 2, 3\) cannot be shifted by {by} pixels"):
            shift(x, by)


def test_continuity_by_hand() -> None:
    given = case()
    R = halves(given.network, given.x, given.classes)[:, 0]
    measured = Continuity(shifts=(1, -3)).measure(given, R, halves)
    for column, by in enumerate((1, -3)):
        moved = shift(given.x, by)
        a, b = (x / x.abs().amax((1, 2, 3), keepdim=True) for x in (given.x, moved))
        wanted = (a - b).abs().sum((1, 2, 3)) / (given.x - moved).square().sum((1, 2, 3)).sqrt()
        assert torch.allclose(measured.curves["change"][:, column], wanted)
    assert torch.equal(measured.values, measured.curves["change"].amax(1))
    assert measured.at == (1.0, -3.0)


def test_sensitivity_by_hand() -> None:
    given = case()
    R = halves(given.network, given.x, given.classes)[:, 0]
    # The map of half the input changes, relatively, as the input does.
    assert MaxSensitivity().measure(given, R, halves).values.tolist() == pytest.approx([1] * 6)

    def squares(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        return x**2

    moved = add_noise(given.x, 0.1, 5, given.seed)
    found = MaxSensitivity(0.1, 5).measure(given, (given.x**2)[:, 0], squares).values
    of_maps = (moved**2 - given.x**2).flatten(2).norm(dim=2) / (given.x**2).flatten(1).norm(dim=1)
    of_inputs = (moved - given.x).flatten(2).norm(dim=2) / given.x.flatten(1).norm(dim=1)
    assert torch.allclose(found, (of_maps / of_inputs).amax(0))


def test_noise_has_the_length_that_is_asked_for_and_is_the_same_again() -> None:
    x = case().x
    x[:, :, 0, 0], x[:, :, 0, 1] = -9, 9  # so that nothing comes near the ends but these
    moved = add_noise(x, 0.02, 3, seed=1)
    assert moved.shape == (3, *x.shape)
    lengths = (moved - x).flatten(2).norm(dim=2) / x.flatten(1).norm(dim=1)
    assert lengths.flatten().tolist() == pytest.approx([0.02] * 18, rel=0.05)
    assert torch.equal(moved, add_noise(x, 0.02, 3, seed=1))
    assert not torch.allclose(moved, add_noise(x, 0.02, 3, seed=2))
    assert add_noise(x.float(), 0.02, 3, seed=1).dtype == torch.float32


def test_moved_pictures_stay_in_the_range_of_their_channels() -> None:
    x = (
        torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
        * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    )
    x[:, 1] -= 9
    for moved in (add_noise(x, 0.3, 4, 0), shift(x, 2)):
        assert bool((moved >= x.amin((2, 3), keepdim=True)).all())
        assert bool((moved <= x.amax((2, 3), keepdim=True)).all())
        assert not torch.equal(moved, x.expand_as(moved))
    words = torch.rand(2, 7)
    assert float(add_noise(words, 0.3, 4, 0).min()) >= 0


@pytest.mark.parametrize("metric", [Continuity((-2, 1)), MaxSensitivity(draws=2)])
def test_a_map_that_never_changes_is_best_and_an_erratic_one_worst(metric: Continuity | MaxSensitivity) -> None:
    given = case()
    before = snapshot(given.network)
    drawn, calls = torch.Generator().manual_seed(0), list[int]()

    def erratic(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        calls.append(len(x))
        return torch.rand(x.shape, generator=drawn, dtype=x.dtype)

    values = [
        metric.measure(given, maps(given.network, given.x, given.classes).sum(1), maps).values
        for maps in (random_maps, true_maps, erratic)
    ]
    assert values[0].tolist() == [0] * 6
    assert bool((values[0] < values[1]).all())
    assert bool((values[1] < values[2]).all())
    assert calls == [6, 6, 6]  # the map, and as many at a time for both moves
    assert isinstance(given.network, Quarters)
    assert given.network.passes == []
    assert changes(given.network, before) == []


def test_maps_that_are_no_numbers_are_left_out() -> None:
    given, calls = case(), list[int]()

    def sometimes(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        calls.append(len(x))
        maps = x / 2
        maps[0 if len(calls) > 1 else slice(0, 2)] = torch.nan
        return maps

    found = MaxSensitivity(draws=2).measure(given, (given.x / 2)[:, 0], sometimes).values
    assert found.isnan().tolist() == [True] + [False] * 5
    assert found[1:].tolist() == pytest.approx([1] * 5)
