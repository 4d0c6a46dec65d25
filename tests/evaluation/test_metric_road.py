"""ROAD: pixels that are filled in, by hand and against a direct solver; and what the curves say."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.evaluation import metrics as module
from deeptaylor.evaluation.metrics import Road, impute
from known_truth import Quarters, case, random_maps, true_maps
from untouched import changes, snapshot

WEIGHTS = {(r, c): (1 / 6 if 0 in (r, c) else 1 / 12) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)}


def solved(picture: np.ndarray, away: np.ndarray) -> np.ndarray:
    """The same, pixel by pixel and solved at once."""
    places = [tuple(p) for p in np.argwhere(away)]
    A, b = np.zeros((len(places), len(places))), np.zeros(len(places))
    for k, (row, column) in enumerate(places):
        for (r, c), weight in WEIGHTS.items():
            there = (row + r, column + c)
            if 0 <= there[0] < picture.shape[0] and 0 <= there[1] < picture.shape[1]:
                A[k, k] += weight
                if away[there]:
                    A[k, places.index(there)] -= weight
                else:
                    b[k] += weight * picture[there]
    filled = picture.copy()
    filled[away] = np.linalg.solve(A, b)
    return filled


def test_by_hand() -> None:
    # In the corner two pixels beside it and one across are left: weights 1/6, 1/6, 1/12, made to add up to one.
    corner = torch.tensor([[[[9.0, 1.0], [2.0, 4.0]]]], dtype=torch.float64)
    away = torch.tensor([[[True, False], [False, False]]])
    wanted = (Fraction(1, 6) + Fraction(2, 6) + Fraction(4, 12)) / Fraction(5, 12)
    assert float(impute(corner, away)[0, 0, 0, 0]) == pytest.approx(float(wanted), abs=1e-12)
    # Two in a row of one: each knows one neighbour that stays and one that does not; u = (0 + v)/2, v = (u + 3)/2.
    row = torch.tensor([[[[0.0, 7.0, 7.0, 3.0]]]], dtype=torch.float64)
    found = impute(row, torch.tensor([[[False, True, True, False]]]))
    assert found.flatten().tolist() == pytest.approx([0, 1, 2, 3], abs=1e-12)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_the_solution_is_that_of_a_direct_solver(share: float) -> None:
    lot = torch.Generator().manual_seed(0)
    x = torch.rand(3, 2, 14, 11, generator=lot, dtype=torch.float64)
    away = torch.rand(3, 14, 11, generator=lot) < share
    found = impute(x, away)
    for sample in range(3):
        for channel in range(2):
            wanted = solved(x[sample, channel].numpy(), away[sample].numpy())
            np.testing.assert_allclose(found[sample, channel].numpy(), wanted, atol=1e-6)


def test_large_holes_are_filled_to_one_in_a_million() -> None:
    lot = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1, 96, 96, generator=lot)
    away = torch.zeros(1, 96, 96, dtype=torch.bool)
    away[:, 2:94, 3:93] = True
    found = impute(x, away)
    assert found.dtype == torch.float32
    # What is filled in is the mean of what is around it: the equations themselves, in what came out.
    around = sum(w * found.double().roll((r, c), (2, 3)) for (r, c), w in WEIGHTS.items())
    assert float((found - around)[:, 0][away].abs().max()) < 1e-6


def test_what_stays_is_untouched_and_an_empty_picture_is_its_mean() -> None:
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    away = torch.stack([torch.zeros(8, 8), torch.ones(8, 8)]).bool()
    found = impute(x, away)
    assert torch.equal(found[0], x[0])
    assert torch.allclose(found[1], x[1].mean((1, 2), keepdim=True).expand(3, 8, 8))


def test_a_true_map_is_best_and_noise_is_near_zero() -> None:
    given = case(40)
    road = Road(shares=(0.05, 0.1, 0.2, 0.4))
    values = {
        name: float(road.measure(given, maps(given.network, given.x, given.classes).sum(1), maps).values.mean())
        for name, maps in (("true", true_maps), ("random", random_maps))
    }
    assert values["true"] > 0.3
    assert abs(values["random"]) < 0.1


def test_curves_and_value() -> None:
    given = case()
    measured = Road().measure(given, true_maps(given.network, given.x, given.classes).sum(1), true_maps)
    most, least, kept, kept_least = measured.curves.values()
    assert list(measured.curves) == ["most first", "least first", "most first, class kept", "least first, class kept"]
    assert torch.allclose(measured.values, (least - most).mean(1))
    assert measured.at == tuple(n / 10 for n in range(1, 10))
    assert set(kept.unique().tolist()) <= {0.0, 1.0}
    # The class is the first where it is likelier than the three others together.
    assert bool((kept[most > 0.5] == 1).all())
    assert bool((kept_least[least > 0.5] == 1).all())


def test_noise_is_where_pixels_are_gone_and_the_same_again() -> None:
    given = case()
    seen: list[Tensor] = []
    given.network.register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))
    R = random_maps(given.network, given.x, given.classes).sum(1)
    for noise in (0.0, 0.1, 0.1):
        Road(shares=(0.5,), noise=noise).measure(given, R, random_maps)
    plain, first, second = seen
    stays = plain == given.x.repeat(2, 1, 1, 1)
    assert 0.4 < float(stays.double().mean()) < 0.6
    assert torch.equal(first == plain, stays)
    assert float((first - plain)[~stays].std()) == pytest.approx(0.1, rel=0.1)
    assert torch.equal(first, second)


def test_steps_and_orders_share_passes() -> None:
    given = case(batch=16)
    before = snapshot(given.network)
    R = true_maps(given.network, given.x, given.classes).sum(1)
    Road(shares=(0.1, 0.5, 0.9)).measure(given, R, true_maps)
    assert isinstance(given.network, Quarters)
    assert given.network.passes == [16, 16, 4]  # 6 samples, 3 steps, 2 orders
    given.network.passes.clear()
    assert changes(given.network, before) == []


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"shares of all pixels, 0 to 1, growing; got \(0.5, 0.1\)"):
        Road(shares=(0.5, 0.1))
    with pytest.raises(InputError, match=r"fills in pixels of pictures; these inputs have shape \(5,\)"):
        impute(torch.rand(2, 5), torch.ones(2, dtype=torch.bool))
    monkeypatch.setattr(module, "MOST", 3)
    away = torch.zeros(1, 20, 20, dtype=torch.bool)
    away[:, 1:-1, 1:-1] = True
    with pytest.raises(InputError, match="3 steps of conjugate gradients are not enough for pictures of 20 × 20"):
        impute(torch.rand(1, 1, 20, 20), away)
