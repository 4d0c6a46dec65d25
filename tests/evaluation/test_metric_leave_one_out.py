"""Leave one out: relevance of regions, and what the answer loses without each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deeptaylor.engine.deletion import cut_patches, cut_pixels
from deeptaylor.evaluation.metrics import LeaveOneOut, measure_drops
from deeptaylor.support.statistics import pearson, spearman
from known_truth import SIDE, Quarters, case, random_maps, true_maps
from untouched import changes, snapshot


def test_what_a_pixel_gives_is_what_is_lost_without_it() -> None:
    given = case(softmax=False)
    given_by = true_maps(given.network, given.x, given.classes)[:, 0]
    found = measure_drops(given, cut_pixels((SIDE, SIDE)), torch.zeros_like(given.x))
    assert torch.allclose(found, given_by.flatten(1), atol=1e-12)


def test_patches_are_filled_one_at_a_time() -> None:
    given = case(softmax=False)
    regions = cut_patches((SIDE, SIDE), 5)  # 9, of which the last ones are smaller
    fills = torch.full_like(given.x, 0.25)
    found = measure_drops(given, regions, fills)
    assert found.shape == (6, 9)
    for number in range(9):
        filled = torch.where(regions.labels == number, fills, given.x)
        lost = (given.network(given.x) - given.network(filled)).gather(1, given.classes[:, None])[:, 0]
        assert torch.allclose(found[:, number], lost, atol=1e-12)


def test_a_true_map_is_best_and_noise_knows_nothing() -> None:
    given = case(40, softmax=False)
    for metric in (LeaveOneOut(patch=0, fill="zero"), LeaveOneOut(patch=3, fill="zero", by=pearson)):
        true, noise = (
            metric.measure(given, maps(given.network, given.x, given.classes).sum(1), maps).values
            for maps in (true_maps, random_maps)
        )
        assert true.tolist() == pytest.approx([1] * 40, abs=1e-9)
        assert abs(float(noise.mean())) < 0.05
        probability = metric.measure(
            replace(given, softmax=True), true_maps(given.network, given.x, given.classes).sum(1), true_maps
        )
        assert 0.5 < float(probability.values.mean()) < 1


def test_regions_and_the_whole_share_passes() -> None:
    given = case(batch=40)
    before = snapshot(given.network)
    R = true_maps(given.network, given.x, given.classes).sum(1)
    found = LeaveOneOut(patch=4, fill="mean").measure(given, R, true_maps).values
    assert isinstance(given.network, Quarters)
    assert given.network.passes == [40, 20]  # 6 samples, 9 patches and nothing
    given.network.passes.clear()
    assert changes(given.network, before) == []
    regions = cut_patches((SIDE, SIDE), 4)
    mean = given.x.mean((2, 3), keepdim=True).expand_as(given.x)
    assert torch.equal(found, spearman(regions.sums(R), measure_drops(given, regions, mean)))
