"""Comparisons of maps of pairs: the numbers are those of the maps, and maps without information have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deeptaylor.paper import measures
from deeptaylor.paper.digit_pairs import Digits, Pairs, held_out_pairs
from deeptaylor.paper.mnist_arrays import METHODS
from deeptaylor.paper.mnist_comparisons import BLIND, EVEN, NOISE, OTHER, PICTURE, SIGNED, compare_maps, make_uninformed

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    labels = (np.arange(30) % 10).astype(np.uint8)
    images = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    return held_out_pairs(Digits(images, labels, images, labels), 24)


@pytest.fixture(scope="module")
def maps(pairs: Pairs) -> dict[str, dict[str, dict[str, Any]]]:
    """Random maps with both signs; the first pair with a target has no score in the second network."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for network, methods in METHODS.items():
        f = 1 + RNG.random(len(pairs))
        f[int(np.flatnonzero(pairs.side.numpy() >= 0)[0])] *= network == "one-layer"
        found[network] = {m.key: {"maps": RNG.normal(0.3, 1, (len(pairs), 28, 56)), "score": f} for m in methods}
    return found


def test_levels_are_those_of_the_maps(pairs: Pairs, maps: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Recomputed plainly, pair by pair."""
    found = compare_maps(maps, pairs)
    there = np.flatnonzero((pairs.side.numpy() >= 0) & (maps["two-layer"]["taylor"]["score"] > 0))
    assert len(there) == int((pairs.side >= 0).sum()) - 1
    values: dict[str, list[float]] = {name: [] for name in ("ink", "near", "complete", "irrelevant", "dark", "uneven")}
    for n in there:
        R, image, side = maps["two-layer"]["min-max"]["maps"][n], pairs.images[n, 0].numpy(), int(pairs.side[n])
        P = np.maximum(R, 0)
        ours = np.arange(56)[None, :] // 28 == side
        ink = (image > 0.5) & ours
        rows, columns = np.indices(R.shape)
        beside = np.zeros_like(ink)
        for r, c in np.argwhere(ink):
            beside |= np.abs(rows - r) + np.abs(columns - c) <= 2
        border = (rows < 4) | (rows >= 24) | (columns < 4) | (columns >= 52)
        values["ink"].append(P[ink].sum() / P.sum())
        values["near"].append(P[beside & ours].sum() / P.sum())
        above = P.mean() <= P
        values["complete"].append(above[ink].mean() - above[(image > 0.5) & ~ours].mean())
        values["irrelevant"].append(P[~ours | border].sum() / P.sum())
        values["dark"].append(np.maximum(-R, 0)[image <= -0.5].sum() / np.abs(R).sum())
        values["uneven"].append(P[ink].std() / P[ink].mean())
    levels = found["levels"]["two-layer"]["min-max"]
    assert {name: levels[name] for name in values} == pytest.approx({name: np.mean(v) for name, v in values.items()})
    hottest = [m["maps"][there].max((1, 2)) for m in (maps["one-layer"]["zB"], maps["one-layer"]["w2"])]
    difference = found["differences"]["one-layer"]["hottest"]["zB − w2"]
    assert difference["mean"] == pytest.approx(np.mean(hottest[0] - hottest[1]))
    assert found["differences"]["one-layer"]["hottest"]["w2 − zB"]["mean"] == pytest.approx(-difference["mean"])
    assert found["areas"]["border"] == pytest.approx(1 - 20 * 48 / (28 * 56))


def test_similar_is_the_correlation_of_what_the_picture_does_not_explain(
    pairs: Pairs, maps: dict[str, dict[str, dict[str, Any]]]
) -> None:
    there = np.flatnonzero((pairs.side.numpy() >= 0) & (maps["two-layer"]["taylor"]["score"] > 0))
    expected = []
    for n in there:
        picture = np.stack([np.ones(1568), pairs.images[n].numpy().ravel()], axis=1)
        left = []
        for network in ("one-layer", "two-layer"):
            R = maps[network]["taylor"]["maps"][n].ravel()
            left.append(R - picture @ np.linalg.lstsq(picture, R, rcond=None)[0])
        expected.append(np.corrcoef(*left)[0, 1])
    found = compare_maps(maps, pairs)["similar"]
    assert found["taylor"]["mean"] == pytest.approx(np.mean(expected), abs=1e-9)
    assert found["taylor"]["low"] < found["taylor"]["mean"] < found["taylor"]["high"]
    assert {abs(value) < 0.05 for value in found["taylor"]["blind"].values()} == {True}
    assert list(found["taylor"]["blind"]) == [NOISE, SIGNED, OTHER]  # nothing is left of the others
    praised = "Taylor, w2"
    more = found["more"][f"{praised} − sensitivity"]
    assert set(more["blind"]) == {NOISE, SIGNED, OTHER}
    assert more["blind"][NOISE]["mean"] == pytest.approx(found[praised]["blind"][NOISE] - found["sensitivity"]["mean"])


def test_maps_without_information(pairs: Pairs, maps: dict[str, dict[str, dict[str, Any]]]) -> None:
    f = maps["one-layer"]["zB"]["score"]
    made = make_uninformed(pairs, f)
    assert set(made) == {EVEN, NOISE, SIGNED, PICTURE}
    for name, R in made.items():
        assert np.abs(R).sum() == pytest.approx(f.sum())  # one factor for all pairs
        assert (R.min() < 0) == (name == SIGNED)
    assert np.ptp(made[EVEN]) == 0
    lit = pairs.images.numpy()[:, 0] + 0.5
    np.testing.assert_allclose(made[PICTURE], lit * f.sum() / lit.sum(dtype=float), rtol=1e-5)
    found = compare_maps(maps, pairs)
    even = found["levels"]["one-layer"][EVEN]
    assert (even["half"], even["few"]) == pytest.approx((0.5, 0.5), abs=1e-3)
    assert (even["complete"], even["uneven"]) == pytest.approx((0, 0), abs=1e-9)
    assert even["covered"] == 1  # every pixel has the average
    levels = found["levels"]["one-layer"]
    assert set(BLIND) <= set(levels)
    for a, b in ((EVEN, "zB"), ("zB", NOISE)):  # also in the place of a method
        difference = found["differences"]["one-layer"]["distractor"][f"{a} − {b}"]
        assert difference["mean"] == pytest.approx(levels[a]["distractor"] - levels[b]["distractor"])
    assert found["amounts"]["one-layer"][SIGNED]["negative_share"] == pytest.approx(0.5, abs=0.02)
    assert found["amounts"]["one-layer"][OTHER]["kept"] == pytest.approx(
        maps["one-layer"]["zB"]["maps"].sum() / f.sum()
    )
    assert even["border"] == pytest.approx(found["areas"]["border"])
    assert even["near"] == pytest.approx(found["areas"]["near"])
    assert OTHER in found["levels"]["one-layer"]
    assert found["amounts"]["one-layer"][EVEN]["worst_gap"] > 0.1


def test_partial_correlation_takes_a_third_map_out() -> None:
    given, a, b = RNG.normal(size=(3, 40, 9, 11))
    alike = measures.partial_correlation(a + 5 * given, b + 5 * given, given)
    assert np.abs(alike).mean() < 0.1
    assert measures.correlation(a + 5 * given, b + 5 * given).mean() > 0.9
    np.testing.assert_allclose(measures.partial_correlation(a, a + 3 * given, given), 1)
    assert not measures.partial_correlation(2 * given + 1, a, given).any()  # nothing is left
    assert not measures.partial_correlation(np.ones_like(a), a, given).any()


def test_widened_masks_and_unevenness_by_hand() -> None:
    mask = np.zeros((1, 5, 5), dtype=bool)
    mask[0, 0, 2] = True
    expected = ["01110", "00100", "00000"]
    assert measures.widen(mask, 1)[0, :3].astype(int).tolist() == [[int(c) for c in row] for row in expected]
    assert measures.widen(mask, 2).sum() == 9
    R = np.array([[[1.0, 3.0], [-9.0, 7.0]]])
    on = np.array([[[True, True], [True, False]]])  # 1, 3 and 0: mean 4/3, variance 14/9
    assert measures.unevenness(R, on)[0] == pytest.approx(np.sqrt(14) / 4)
    assert np.isnan(measures.unevenness(-R, np.array([[[True, True], [False, False]]]))[0])
