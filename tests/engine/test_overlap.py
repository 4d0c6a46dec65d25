"""How much of a map is the same for the next class, and what the check says of a map that no class changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt


def classifier(weight: list[list[float]]) -> nn.Module:
    net = nn.Linear(len(weight[0]), len(weight), bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(weight))
    return net


def overlap(weight: list[list[float]], x: Tensor, target: object = None) -> Tensor:
    return dt.Explainer(classifier(weight), domain=dt.NonNegative()).explain(x, target).overlap()


ONE = torch.ones(1, 3, dtype=torch.float64)


def test_the_overlap_is_the_sum_of_the_smaller_parts() -> None:
    found = overlap([[6.0, 2.0, 0.0], [0.0, 2.0, 2.0], [0.1, 0.0, 0.0]], ONE)
    torch.testing.assert_close(found, torch.tensor([0.25], dtype=torch.float64))  # min(¼, ½)
    torch.testing.assert_close(overlap([[3.0, 0, 0], [2.0, 0, 0]], ONE), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(overlap([[3.0, 0, 0], [0, 2.0, 0]], ONE), torch.zeros(1, dtype=torch.float64))


def test_the_next_class_is_the_best_of_the_others() -> None:
    weight = [[3.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]]
    assert overlap(weight, ONE, 0).tolist() == [1]
    assert overlap(weight, ONE, 1).tolist() == [1]  # against class 0, which is above it
    assert overlap(weight, ONE, 2).tolist() == [0]
    both = overlap(weight, ONE.expand(2, -1), torch.tensor([0, 2]))
    assert both.tolist() == [1, 0]


def test_channels_of_a_pixel_are_one_place() -> None:
    net = nn.Sequential(nn.Flatten(), classifier([[1.0, 0, 0, 0], [0, 0, 0.9, 0]]))  # another channel of one pixel
    x = torch.ones(1, 2, 1, 2, dtype=torch.float64)
    assert dt.Explainer(net, domain=dt.NonNegative()).explain(x).overlap().tolist() == [1]


def test_an_empty_map_has_nothing_in_common() -> None:
    assert overlap([[3.0, 0, 0], [-2.0, 0, 0]], ONE, 0).tolist() == [0]
    assert overlap([[3.0, 0, 0], [-2.0, 0, 0]], ONE, 1).tolist() == [0]


def test_the_check_begins_with_a_map_that_no_class_changes() -> None:
    net = dt.load(classifier([[3.0, 0, 0], [2.0, 0, 0]]), class_names=["cat", "dog"], domain=dt.NonNegative())
    e = dt.Explainer(net).explain(ONE)
    first = str(e.check(classes=True)).splitlines()[0]
    assert first.startswith("This map does not depend on the class: 100")
    assert "the next class 'dog'" in first
    assert "explainer.contrast(x)" in first
    assert "class" not in str(e.check())
    assert e.check().overlap is None
    assert e.check(classes=True).overlap == (1.0,)


def test_a_map_that_is_its_own_says_how_much_is_shared() -> None:
    e = dt.Explainer(classifier([[3.0, 1.0, 0], [0, 1.0, 1.0]]), domain=dt.NonNegative()).explain(ONE)
    text = str(e.check(classes=True))
    assert "does not depend" not in text
    assert "25 % of the map is the same for the next class 1" in text.replace("25.0", "25")


def test_of_several_maps_the_check_counts() -> None:
    e = dt.Explainer(classifier([[3.0, 0, 0], [2.0, 0, 0], [0, 0, 1.0]]), domain=dt.NonNegative()).explain(
        ONE.expand(3, -1), torch.tensor([0, 1, 2])
    )
    assert str(e.check(classes=True)).startswith("2 of 3 maps do not depend on the class")


def test_what_has_no_next_class_is_refused() -> None:
    explainer = dt.Explainer(classifier([[3.0, 1.0, 0], [0, 1.0, 1.0]]), domain=dt.NonNegative())
    answers = [
        explainer.explain(ONE, [0, 1]),
        explainer.explain(ONE, dt.margin(0, 1)),
        explainer.explain(ONE, lambda o: o[:, 0].exp()),
        explainer.contrast(ONE),
        explainer.between(ONE, "zeros"),
        dt.Explainer(classifier([[3.0, 1.0, 0]]), domain=dt.NonNegative()).explain(ONE),
    ]
    for answer in answers:
        with pytest.raises(dt.DeepTaylorError):
            answer.overlap()
        with pytest.raises(dt.DeepTaylorError):
            answer.check(classes=True)


def test_a_network_that_changed_is_refused() -> None:
    net = classifier([[3.0, 1.0, 0], [0, 1.0, 1.0]])
    e = dt.Explainer(net, domain=dt.NonNegative()).explain(ONE)
    with torch.no_grad():
        net.weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        e.overlap()


def test_maps_that_are_parts_or_means_have_no_overlap_of_their_own() -> None:
    net = nn.Sequential(classifier([[3.0, 1.0, 0], [0, 1.0, 1.0]]), nn.ReLU(), classifier([[1.0, 0], [0, 1.0]]))
    explainer = dt.Explainer(net, domain=dt.NonNegative())
    for answer in (dt.average_copies(explainer, ONE, 0), explainer.explain(ONE, 0).channels("1").map(0)):
        with pytest.raises(dt.InputError):
            answer.overlap()
