"""Decoders of detectors' outputs, each on an output that is written by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.engine.box_layouts import Boxes, find_strides, make_grid, measure_overlap, read_boxes

SIZE = (64, 64)  # 8² + 4² + 2² = 84 places
BOX = [8.0, 16.0, 24.0, 48.0]
CENTRE = [16.0, 32.0, 16.0, 32.0]  # the same: centre and size


def read(returned: Any, layout: str | None = None) -> Boxes:
    found = read_boxes(returned, SIZE, layout)
    assert found.boxes.shape == (*found.scores.shape[:2], 4)
    return found


def marked(found: Boxes, n: int, c: int) -> list[list[int]]:
    """The entries of the output that hold the score of one box, with the batch index."""
    v = torch.zeros_like(found.scores)
    v[0, n, c] = 1
    spread: list[list[int]] = found.spread(v).nonzero().tolist()
    return spread


def test_yolov8() -> None:
    output = torch.zeros(1, 6, 84)
    output[0, :, 5] = torch.tensor([*CENTRE, 0.25, 0.5])
    found = read(output)
    assert (found.layout, found.output) == ("yolov8", 0)
    assert found.boxes[0, 5].tolist() == BOX
    assert found.scores[0, 5].tolist() == [0.25, 0.5]
    assert marked(found, 5, 1) == [[0, 5, 5]]


def test_mask_coefficients_of_yolov8_are_no_classes() -> None:
    output = torch.zeros(1, 4 + 2 + 3, 84)
    output[0, 6:] = -7.0
    found = read((output, torch.zeros(1, 3, 16, 16)))
    assert found.scores.shape == (1, 84, 2)
    assert marked(found, 0, 0) == [[0, 4, 0]]


def test_yolov5_multiplies_by_objectness_and_both_are_marked() -> None:
    output = torch.zeros(1, 3 * 84, 7)
    output[0, 7] = torch.tensor([*CENTRE, 0.5, 0.25, 0.5])
    found = read(output)
    assert found.layout == "yolov5"
    assert found.boxes[0, 7].tolist() == BOX
    assert found.scores[0, 7].tolist() == [0.125, 0.25]
    assert marked(found, 7, 1) == [[0, 7, 4], [0, 7, 6]]


def test_yolox_is_decoded_from_offsets_and_logarithms() -> None:
    output = torch.zeros(1, 84, 6)
    # Place 64 + 5 is row 1, column 1 of the grid of stride 16.
    output[0, 69] = torch.tensor([0.0, 1.0, math.log(1.0), math.log(2.0), 0.5, 0.5])
    found = read(output)
    assert found.layout == "yolox"
    torch.testing.assert_close(found.boxes[0, 69], torch.tensor(BOX))
    assert found.scores[0, 69].tolist() == [0.25]
    assert marked(found, 69, 0) == [[0, 69, 4], [0, 69, 5]]


def test_decoded_boxes_of_one_anchor_are_not_decoded_again() -> None:
    grid, stride = make_grid((8, 16, 32), SIZE, torch.zeros(()))
    output = torch.cat([(grid + 0.5) * stride, torch.full((84, 2), 16.0), torch.full((84, 3), 0.5)], 1)[None]
    found = read(output)
    assert found.layout == "yolov5"
    torch.testing.assert_close(found.boxes[0, 0], torch.tensor([-4.0, -4.0, 12.0, 12.0]))


def queries(logits: Tensor) -> dict[str, Tensor]:
    boxes = torch.full((1, 5, 4), 0.5)
    boxes[0, 2] = torch.tensor(CENTRE) / 64
    return {"logits": logits, "pred_boxes": boxes}


def test_detr_has_a_last_class_for_no_object() -> None:
    logits = torch.tensor([0.0, 0.0, 4.0]).repeat(1, 5, 1)
    logits[0, 2] = torch.tensor([3.0, 0.0, 0.0])
    found = read(queries(logits))
    assert (found.layout, found.output) == ("detr", 0)
    assert found.boxes[0, 2].tolist() == BOX
    torch.testing.assert_close(found.scores[0, 2], logits[0, 2].softmax(0)[:2])
    assert marked(found, 2, 1) == [[0, 2, 1]]


def test_logits_without_such_a_class_are_read_by_sigmoid() -> None:
    logits = torch.tensor([-1.0, -3.0, -5.0]).repeat(1, 5, 1)
    found = read(queries(logits))
    assert found.layout == "rt-detr"
    torch.testing.assert_close(found.scores, logits.sigmoid())
    named = read(queries(logits), "detr")
    assert named.scores.shape == (1, 5, 2)


def test_a_pair_without_names_is_told_by_its_four_shares() -> None:
    logits, boxes = queries(torch.tensor([-1.0, -3.0, -5.0]).repeat(1, 5, 1)).values()
    found = read((boxes, logits))
    assert (found.layout, found.output) == ("rt-detr", 1)


def test_torchvision_with_labels() -> None:
    boxes = torch.tensor([[BOX, [0.0, 0.0, 4.0, 4.0]]])
    returned = {"boxes": boxes, "labels": torch.tensor([[1, 3]]), "scores": torch.tensor([[0.5, 0.25]])}
    found = read(returned)
    assert (found.layout, found.output) == ("torchvision", 2)
    assert found.scores[0].tolist() == [[0, 0.5, 0, 0], [0, 0, 0, 0.25]]
    assert marked(found, 1, 3) == [[0, 1]]
    assert marked(found, 1, 2) == []


def test_torchvision_with_a_score_for_each_class() -> None:
    found = read({"boxes": torch.tensor([[BOX]]), "scores": torch.tensor([[[0.5, 0.25]]])})
    assert found.boxes.tolist() == [[BOX]]
    assert marked(found, 0, 1) == [[0, 0, 1]]


def test_centerface() -> None:
    heat, sizes, offsets = torch.zeros(1, 1, 16, 16), torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 16)
    heat[0, 0, 7, 3] = 0.5
    sizes[0, :, 7, 3] = torch.tensor([8.0, 4.0]).log()  # height, width in places of 4 pixels
    offsets[0, :, 7, 3] = torch.tensor([0.5, 0.5])  # row, column
    found = read((heat, sizes, offsets, torch.zeros(1, 10, 16, 16)))
    assert (found.layout, found.output) == ("centerface", 0)
    torch.testing.assert_close(found.boxes[0, 7 * 16 + 3], torch.tensor(BOX))
    assert marked(found, 7 * 16 + 3, 0) == [[0, 0, 7, 3]]


def test_an_unknown_layout_is_refused_with_what_to_give() -> None:
    with pytest.raises(dt.TargetError, match=r"its layout is not known\. Name it, layout= one of 'torchvision'"):
        read(torch.zeros(1, 300, 6))
    with pytest.raises(dt.TargetError, match=r"output \(1, 6, 84\) .* it does not fit 'yolox'"):
        read(torch.zeros(1, 6, 84), "yolox")
    with pytest.raises(dt.TargetError, match="'yolo' is not known; the layouts are"):
        read(torch.zeros(1, 6, 84), "yolo")


def test_strides() -> None:
    assert find_strides(84, SIZE) == (8, 16, 32)
    assert find_strides(64, SIZE) == (8,)
    assert find_strides(3549, (416, 416)) == (8, 16, 32)
    assert find_strides(65, SIZE) is None


def test_overlap() -> None:
    boxes = torch.tensor([[[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [5.0, 5.0, 6.0, 6.0], [1.0, 1.0, 1.0, 1.0]]])
    assert measure_overlap(boxes, torch.tensor([[0.0, 0.0, 2.0, 2.0]])).tolist() == [[1, pytest.approx(1 / 3), 0, 0]]
