"""Grid pointing and shares inside masks: mosaics by hand, with a network that names the colour of a picture."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case
from deeptaylor.errors import InputError
from deeptaylor.evaluation.metrics import GridPointing, Inside, cell_mask, find_confident, make_mosaic, make_mosaics
from known_truth import true_maps

CLASSES = 6


class Grey(nn.Module):
    """Class k where the mean of a picture is near k; surer with a larger factor."""

    def __init__(self, factor: float = 50.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return -self.factor * (x.mean((1, 2, 3))[:, None] - torch.arange(CLASSES)).square()


def pictures(*greys: float) -> Tensor:
    return torch.tensor(greys, dtype=torch.float32)[:, None, None, None].expand(-1, 2, 3, 4).clone()


def test_a_mosaic_and_its_cells_row_by_row() -> None:
    found = make_mosaic(list(pictures(0, 1, 2, 3)))
    assert found.shape == (2, 6, 8)
    for k in range(4):
        inside = cell_mask(k, (3, 4))
        assert inside.shape == (6, 8)
        assert inside.sum() == 12
        assert (found[:, inside] == k).all()


def test_every_class_of_every_mosaic_is_explained_in_its_own_cell() -> None:
    x = pictures(*range(CLASSES), 0.01, 1.01)
    classes = torch.tensor([*range(CLASSES), 0, 1])
    found = make_mosaics(Grey(), x, classes, 20, seed=1, batch=5)
    assert found.x.shape == (80, 2, 6, 8)
    assert found.groups is not None
    assert found.inside is not None
    assert found.groups.tolist() == [k // 4 for k in range(80)]
    for k in range(0, 80, 4):
        assert torch.equal(found.x[k], found.x[k + 3])  # one picture, asked four times
        assert len(set(found.classes[k : k + 4].tolist())) == 4
    for x, c, inside in zip(found.x, found.classes, found.inside, strict=True):
        assert (x[:, inside] - c).abs().max() < 0.02
    assert len(set(found.classes.tolist())) == CLASSES
    assert (found.batch, found.seed) == (5, 1)
    again, other = (make_mosaics(Grey(), pictures(*range(6)), torch.arange(6), 20, seed=s).classes for s in (1, 2))
    assert torch.equal(again, make_mosaics(Grey(), pictures(*range(6)), torch.arange(6), 20, seed=1).classes)
    assert not torch.equal(again, other)


def test_only_what_is_well_recognised_takes_part() -> None:
    x, classes = pictures(0, 1, 2, 3.5, 4), torch.tensor([0, 2, 2, 3, 4])
    assert find_confident(Grey(), x, classes, 2, 0.8, True) == [0, 2, 4]
    assert find_confident(Grey(0.1), x, classes, 2, 0.8, True) == []


def test_probabilities_of_the_networks_own_are_taken_as_they_are() -> None:
    net = nn.Sequential(Grey(), nn.Softmax(1))
    found = make_mosaics(net, pictures(*range(6)), torch.arange(6), 2, softmax=False)
    assert len(found.x) == 8
    assert not found.softmax


def test_too_few_classes() -> None:
    x, classes = pictures(0, 1, 2, 2, 3.5), torch.tensor([0, 1, 2, 2, 3])
    with pytest.raises(InputError) as caught:
        make_mosaics(Grey(), x, classes, 5)
    assert str(caught.value) == (
        "Grid pointing needs pictures of at least 4 classes that the network recognises (its first class, with a "
        "probability of 0.8 or more); of 5 pictures 4 are recognised, of 3 classes."
    )


def test_one_number_is_no_class() -> None:
    with pytest.raises(InputError, match="of 3 pictures 3 are recognised, of 1 classes"):
        make_mosaics(nn.Flatten(0), torch.ones(3, 1, 1, 1), torch.zeros(3, dtype=torch.int64), 5)


def test_only_pictures_make_mosaics() -> None:
    with pytest.raises(InputError, match=r"made of pictures, not of inputs of shape \(5,\)"):
        make_mosaics(Grey(), torch.ones(3, 5), torch.arange(3), 5)


def test_the_share_inside_counts_positive_relevance_alone() -> None:
    R = torch.tensor([[[3.0, -9.0], [1.0, 0.0]], [[-1.0, 0.0], [0.0, -2.0]], [[0.0, 0.0], [0.0, 5.0]]])
    inside = torch.tensor([[[True, True], [False, False]]] * 3)
    given = Case(nn.Identity(), torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64), inside)
    found = Inside().measure(given, R, true_maps).values
    assert found[[0, 2]].tolist() == [0.75, 0.0]
    assert found[1].isnan()  # it has no positive relevance anywhere
    assert torch.equal(GridPointing().measure(given, R, true_maps).values[[0, 2]], found[[0, 2]])


def test_an_even_map_has_a_quarter_in_each_cell() -> None:
    given = make_mosaics(Grey(), pictures(*range(6)), torch.arange(6), 3)
    assert GridPointing().measure(given, torch.ones(12, 6, 8), true_maps).values.tolist() == [0.25] * 12


def test_without_masks() -> None:
    given = replace(make_mosaics(Grey(), pictures(*range(6)), torch.arange(6), 1), inside=None)
    with pytest.raises(InputError, match=r"^inside needs the true regions: give masks, \(samples, height"):
        Inside().measure(given, torch.ones(4, 6, 8), true_maps)
