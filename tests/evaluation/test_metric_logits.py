"""Random logit: a map that knows the class is another for another class."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.evaluation.metrics import RandomLogit, RandomLogitSSIM, draw_other_class
from deeptaylor.support.statistics import scale, spearman, ssim
from known_truth import CLASSES, Quarters, case, random_maps, true_maps
from untouched import changes, snapshot


def test_the_other_class_is_never_the_same_and_any_of_the_others() -> None:
    given = case(300)
    others = draw_other_class(given)
    ahead = (others - given.classes) % CLASSES
    assert sorted(ahead.unique().tolist()) == [1, 2, 3]
    assert int(ahead.bincount().max()) < 140
    assert torch.equal(draw_other_class(given), others)
    assert not torch.equal(draw_other_class(replace(given, seed=1)), others)


@pytest.mark.parametrize("metric", [RandomLogit(), RandomLogitSSIM()])
def test_a_map_that_knows_no_class_is_worst(metric: RandomLogit) -> None:
    given = case()
    before = snapshot(given.network)
    found = {
        maps.__name__: metric.measure(given, maps(given.network, given.x, given.classes).sum(1), maps).values
        for maps in (true_maps, random_maps)
    }
    assert float(found["true_maps"].abs().max()) < 0.5
    assert found["random_maps"].tolist() == pytest.approx([1] * 6)
    assert isinstance(given.network, Quarters)
    given.network.passes.clear()
    assert changes(given.network, before) == []


def test_by_hand() -> None:
    given = case()
    others = (given.classes + 1) % CLASSES
    a, b = (true_maps(given.network, given.x, c)[:, 0] for c in (given.classes, others))
    assert torch.equal(RandomLogit().likeness(given, a, true_maps, others), spearman(a, b))
    assert torch.equal(RandomLogitSSIM().likeness(given, a, true_maps, others), ssim(scale(a), scale(b)))
    # Structural similarity sees the scale; of maps that are shown it must not.
    assert torch.allclose(
        RandomLogitSSIM().likeness(given, 9 * a, true_maps, others), ssim(scale(a), scale(b)), atol=1e-12
    )


def test_the_method_is_asked_once_and_the_network_for_its_classes() -> None:
    given, asked = case(), list[int]()

    def counted(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.append(len(x))
        return true_maps(net, x, classes)

    RandomLogit().measure(given, true_maps(given.network, given.x, given.classes).sum(1), counted)
    assert isinstance(given.network, Quarters)
    assert (asked, given.network.passes) == ([6], [1])


@pytest.mark.parametrize("metric", [RandomLogit(), RandomLogitSSIM()])
def test_an_empty_map_is_not_counted(metric: RandomLogit) -> None:
    given = case()

    def empty(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        return torch.zeros_like(x)

    R = true_maps(given.network, given.x, given.classes).sum(1)
    assert bool(metric.measure(given, R, empty).values.isnan().all())
    R[1] = 3
    assert metric.measure(given, R, true_maps).values.isnan().tolist() == [False, True, False, False, False, False]
