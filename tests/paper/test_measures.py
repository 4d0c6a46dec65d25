"""The measures of the ILSVRC report, on maps whose answer is known: they find what was put there, and only that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor.models.networks.catalog import CATALOG
from deeptaylor.models.networks.imagenet_networks import caffenet, googlenet
from deeptaylor.paper import measures as im
from deeptaylor.paper.imagenet_maps import PhotoNetwork
from deeptaylor.support.statistics import rank_correlation

ndimage = pytest.importorskip("scipy.ndimage")
stats = pytest.importorskip("scipy.stats")

RNG = np.random.default_rng(0)
NOISE = RNG.exponential(size=(3, 224, 224))


def test_rank_correlation_of_copies_and_of_noise() -> None:
    C = rank_correlation(NOISE, np.stack([NOISE[0] ** 3, -NOISE[1], np.zeros((224, 224))]))
    assert C[0, 0] == pytest.approx(1)
    assert C[1, 1] == pytest.approx(-1)
    assert abs(C[0, 1]) < 0.02
    assert np.isnan(C[:, 2]).all()
    ties = RNG.integers(0, 4, (2, 12, 9)).astype(float)
    expected = stats.spearmanr(ties[0], ties[1], axis=None).statistic
    assert rank_correlation(ties[:1], ties[1:])[0, 0] == pytest.approx(expected)


def test_smoothing_is_a_gaussian() -> None:
    assert (im.smoothed(NOISE, 0) == NOISE).all()
    expected = ndimage.gaussian_filter(NOISE[1], 4, truncate=3)
    np.testing.assert_allclose(im.smoothed(NOISE, 4)[1], expected, rtol=1e-10)


def test_few_pixels_by_hand() -> None:
    R = np.zeros((3, 4, 5))
    R[0, 0, :4] = [4, 3, 2, 1]  # 4 < 5, 4 + 3 ≥ 5: two pixels
    R[1] = 1
    R[1, 0, 0] = -7
    assert im.few_pixels(R)[:2] == pytest.approx([2 / 20, 10 / 20])
    assert np.isnan(im.few_pixels(R)[2])


def test_neighbours_tell_noise_from_areas() -> None:
    rows = np.arange(224.0)[:, None] * np.ones(224)
    near = im.neighbours(np.stack([NOISE[0], im.smoothed(NOISE[0], 20), rows + rows.T]), 8)
    assert abs(near[0]) < 0.02
    assert near[1] > 0.8
    assert near[2] > 0.99


@pytest.mark.parametrize("period", im.PERIODS)
def test_a_pattern_is_found_at_its_period_and_nowhere_else(period: int) -> None:
    rows, columns = np.mgrid[:224, :224]
    # An object in the middle: the pattern counts alike where there is much relevance and where there is little.
    envelope = 0.05 + np.exp(-((rows - 100) ** 2 + (columns - 90) ** 2) / 2000)
    wave = 1 + 0.2 * np.cos(2 * np.pi * rows / period)
    R = (envelope * wave * (0.5 + NOISE[0]))[None]
    power = {p: float(im.stride_power(R, p)[0]) for p in im.PERIODS}
    assert power.pop(period) > 20
    assert max(power.values()) < 6


def seen(R: np.ndarray[Any, Any]) -> int | None:
    """The grid that is seen in maps."""
    power, share = ({p: float(np.median(of(R, p))) for p in im.PERIODS} for of in (im.stride_power, im.pattern_share))
    return im.fundamental(power, share)


@pytest.mark.parametrize("period", im.PERIODS)
@pytest.mark.parametrize("axes", [1, 2])
def test_a_comb_has_the_period_of_its_teeth_and_not_of_a_harmonic(period: int, axes: int) -> None:
    """Teeth of one pixel: in the spectrum the harmonics are as strong as the fundamental."""
    rows, columns = np.mgrid[:224, :224]
    teeth = (rows % period == 1) & ((columns % period == 0) | (axes == 1))
    envelope = 0.05 + np.exp(-((rows - 100) ** 2 + (columns - 90) ** 2) / 2000)
    assert seen(envelope * (teeth + 0.3 * NOISE)) == period
    assert seen((envelope * teeth)[None]) == period


def test_a_map_without_a_comb_has_no_period() -> None:
    assert seen(NOISE) is None
    assert seen(im.smoothed(NOISE, 3)) is None


def test_a_faint_pattern_is_found_but_not_seen() -> None:
    rows = np.arange(224)[:, None]
    R = NOISE + 0.1 * (rows % 2 == 0)
    assert np.median(im.stride_power(R, 2)) > im.STANDS_OUT
    assert seen(R) is None


def test_teeth_of_two_heights() -> None:
    """Every second tooth a little lower: the shorter period is seen. Much lower: the longer one."""
    rows = np.arange(224)[:, None]
    for height, period in ((0.9, 2), (0.7, 2), (0.2, 4), (0.0, 4)):
        teeth = np.where(rows % 2 == 0, np.where(rows % 4 == 0, height, 1), 0)
        assert seen(teeth * teeth.T + 0.05 * NOISE) == period


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stride"), [("caffenet", 4), ("googlenet", 2)])
def test_the_grid_of_the_paper_s_networks_is_the_stride_of_their_first_convolution(name: str, stride: int) -> None:
    """The architectures with random weights: what is seen comes from strides, not from training."""
    torch.manual_seed(0)
    network = {"caffenet": caffenet, "googlenet": googlenet}[name]()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    pictures = [Image.fromarray((255 * im.smoothed(RNG.random((256, 256, 3)).T, 2).T).astype(np.uint8)) for _ in "ab"]
    case = PhotoNetwork(name, name, name, dt.load(network, preparation=CATALOG[name].preparation, class_names=None))
    assert case.stride == stride
    x = case.inputs(pictures)
    e = dt.Explainer(network, x[:1], domain=case.model.domain, bias="neuron").explain(x)
    assert seen(case.common(e.heatmap().numpy())) == stride


def test_noise_and_smooth_maps_have_no_pattern() -> None:
    for period in im.PERIODS:
        assert (im.stride_power(NOISE, period) < 6).all()
    assert np.mean([im.stride_power(RNG.random((20, 96, 96)), p).mean() for p in im.PERIODS]) == pytest.approx(
        1, abs=0.15
    )
    with pytest.raises(ValueError, match="24 pixels or more"):
        im.stride_power(np.ones((1, 20, 20)), 2)
    with pytest.raises(ValueError, match="period 5"):
        im.stride_power(np.ones((1, 48, 48)), 5)


def test_the_profile_of_a_known_map() -> None:
    """Dark left of column 32, bright right of it; relevance 4 within three pixels of it, 1 left and 2 right beyond."""
    columns = np.arange(64)
    light = np.where(columns < 32, 0.1, 0.9) * np.ones((64, 1))
    found = im.edges(light)
    assert set(found.at[:, 1]) == {31, 32}  # the edge lies between them, and both are as steep
    np.testing.assert_allclose(found.brighter, [[0, 1]] * len(found.at), atol=1e-12)
    R = np.where((columns > 28) & (columns < 35), 4.0, np.where(columns < 32, 1.0, 2.0)) * np.ones((64, 1))
    p = im.profile(R, found, 10) * R.mean()
    np.testing.assert_allclose(p[:7], 1)  # −10 … −4
    np.testing.assert_allclose(p[9:12], 4)  # −1 … 1
    np.testing.assert_allclose(p[14:], 2)  # 4 … 10
    turned = im.profile(R[:, ::-1], im.edges(light[:, ::-1]), 10) * R.mean()
    np.testing.assert_allclose(turned, p)  # the dark side is first, wherever it is
    assert im.edges(np.full((64, 64), 0.3)).at.size == 0
    assert np.isnan(im.profile(R, im.edges(np.full((64, 64), 0.3)))).all()
    assert np.isnan(im.profile(0 * R, found)).all()


def test_a_profile_stops_at_the_border() -> None:
    light = np.where(np.arange(64) < 4, 0.0, 1.0) * np.ones((64, 1))
    p = im.profile(np.ones((64, 64)), im.edges(light), 8)
    assert np.isnan(p[:4]).all()
    np.testing.assert_allclose(p[5:], 1)


def test_the_region_is_where_two_even_areas_meet() -> None:
    light = 0.5 + 0.05 * RNG.random((224, 224))
    light[80:150, 120:190] = np.where(np.arange(70) < 35, 0.0, 1.0)
    separation, top, left = im.two_sides(light, 56)
    assert 80 <= top <= 94
    assert 120 <= left <= 134
    assert separation == pytest.approx(0.25, abs=0.03)


def test_luminance() -> None:
    assert im.luminance(np.array([[[[255, 255, 255], [0, 255, 0]]]], dtype=np.uint8)).ravel() == pytest.approx(
        [1, 0.587]
    )
