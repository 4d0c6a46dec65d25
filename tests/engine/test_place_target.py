"""Boxes, regions and pixels as targets, on networks whose answers are known by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.place_target import read_place
from detectors import CellDetector, ColorDetector, Segmenter

OBJECT = (8, 8, 16, 16)  # a cell of the detector: row 1, column 1


class TwoOutputs(CellDetector):
    def forward(self, x: Tensor) -> Any:
        boxes = (self.cells / 32).mT.expand(len(x), 16, 4)  # type: ignore[operator]
        return {"pred_boxes": boxes, "logits": self.sums(x).flatten(2).mT}


def picture(*values: float) -> Tensor:
    """One picture for each value, which fills the object's cell; everything else is 0.01."""
    x = torch.full((len(values), 1, 32, 32), 0.01)
    for k, value in enumerate(values):
        x[k, :, 8:16, 8:16] = value
    return x


def explainer(network: nn.Module | None = None, **settings: Any) -> dt.Explainer:
    return dt.Explainer(network or CellDetector(), domain=dt.NonNegative(), **settings)


def test_a_box_is_explained_by_its_own_pixels_alone() -> None:
    x = picture(0.2)  # the cell's sum is 12.8, its logit 4.8
    answer = explainer(bias="neuron").explain(x, dt.box(OBJECT, 0))
    assert float(answer.score) == pytest.approx(4.8 + np.log(19), rel=1e-4)  # above the logit of 0.05
    assert float(answer.relevance.sum()) == pytest.approx(float(answer.score), rel=1e-4)
    assert float(answer.relevance[..., 8:16, 8:16].sum()) == pytest.approx(float(answer.relevance.sum()), rel=1e-6)


def test_the_choice_is_reported() -> None:
    answer = explainer().explain(picture(0.2), dt.box((7, 8, 16, 16)))
    assert answer.notes[0] == "explained: class 0, score 0.99, in the box (8, 8, 16, 16)"
    assert "read as yolov8, in pixels of the network's input; which ones are explained is fixed" in answer.notes[1]
    assert any("sigmoid" in note and "set aside" in note for note in answer.notes)


def test_an_uncertain_box_has_an_explanation() -> None:
    x = picture(0.1)  # the logit is −1.6, the score 0.17
    answer = explainer().explain(x, dt.best_box())
    assert float(answer.score) == pytest.approx(-1.6 + np.log(19), rel=1e-4)
    assert float(answer.relevance.sum()) > 0
    assert answer.notes[0].startswith("explained: class 0, score 0.17, in the box (8, 8, 16, 16)")


def test_secants_explain_the_same_boxes() -> None:
    answer = explainer().between(picture(0.2), "zeros", dt.box(OBJECT, 0))
    assert answer.score == pytest.approx(torch.tensor([4.8]), rel=1e-4)
    assert answer.reference_score == pytest.approx(torch.tensor([-8.0]), rel=1e-4)
    assert float(answer.relevance[..., 8:16, 8:16].sum()) == pytest.approx(12.8, rel=1e-4)


def test_each_sample_has_its_own_box() -> None:
    x = picture(0.2, 0.3)
    x[1, :, 24:32, :8] = 0.4
    found = read_place(dt.box([OBJECT, (0, 24, 8, 32)], 0), CellDetector(), (x,))
    assert found.corners is not None
    assert found.corners.tolist() == [[8, 8, 16, 16], [0, 24, 8, 32]]
    assert found.notes[1].startswith("explained in sample 1: class 0, score 1, in the box (0, 24, 8, 32)")
    assert read_place(dt.best_box(0), CellDetector(), (x,)).corners.tolist() == found.corners.tolist()  # type: ignore[union-attr]


def test_scores_in_an_output_of_their_own_are_found() -> None:
    network = TwoOutputs().eval()
    answer = dt.Explainer(network, domain=dt.NonNegative()).explain(picture(0.2), dt.box(OBJECT, 0, layout="rt-detr"))
    assert "read as rt-detr" in answer.notes[1]
    assert float(answer.relevance[..., 8:16, 8:16].sum()) == pytest.approx(float(answer.relevance.sum()), rel=1e-5)


def test_a_name_is_a_class() -> None:
    loaded = dt.load(CellDetector(), domain=dt.NonNegative(), class_names=["face", "hand"])
    answer = dt.Explainer(loaded).explain(picture(0.2), dt.box(OBJECT, "face"))
    assert answer.notes[0].startswith("explained: face, score 0.99")
    with pytest.raises(
        dt.TargetError, match=r"does not find hand there: its best score is 0.0025. It finds face \(0.99\)"
    ):
        dt.Explainer(loaded).explain(picture(0.2), dt.box(OBJECT, "hand"))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            lambda: dt.box((40, 0, 50, 10)),
            r"\(40, 0, 50, 10\) is outside of the picture: x is 0 to 32 and y is 0 to 32",
        ),
        (lambda: dt.box((10, 10, 5, 20)), "needs x1 < x2 and y1 < y2"),
        (lambda: dt.box((1, 2, 3)), "needs four numbers"),
        (lambda: dt.box("here"), "needs four numbers"),
        (lambda: dt.box((0, 0, 1, 1)), r"No box of the detector overlaps .* the nearest is \(0, 0, 8, 8\), with 0.02"),
        (lambda: dt.box([OBJECT, OBJECT]), "2 boxes were given for 1 samples"),
        (lambda: dt.best_box(1), r"does not find class 1 in the picture: its best score is 0.0025. It finds class 0"),
        (lambda: dt.best_box(7), "class 7 is out of range: the network has 2 classes"),
        (lambda: dt.best_box("face"), "this network has no class names"),
        (lambda: dt.box(OBJECT, [0, 1]), "has one class"),
        (lambda: dt.box(OBJECT, overlap=2), "overlap is a number from 0 to 1"),
        (lambda: dt.box(OBJECT, layout="yolo"), "the layouts are"),
        (lambda: dt.pixel(0, 0), r"needs one output of shape \(batch, classes, rows, columns\)"),
    ],
)
def test_bad_boxes(target: Any, message: str) -> None:
    with pytest.raises(dt.TargetError, match=message):
        explainer().explain(picture(0.2), target())


def test_why_there_is_no_box_can_be_asked() -> None:
    answer = explainer().between(picture(0.2), "zeros", dt.box(OBJECT, 1, least=0))
    assert answer.score == pytest.approx(torch.tensor([-6.0]), rel=1e-4)


def test_other_questions_refuse_places() -> None:
    with pytest.raises(dt.TargetError, match=r"explained by explain\(x, target\) and between alone"):
        explainer(method="deep-taylor").forward(picture(0.2), dt.box(OBJECT, 0))


def test_a_picture_is_needed() -> None:
    with pytest.raises(dt.TargetError, match="need a picture"):
        explainer(nn.Linear(3, 2)).explain(torch.rand(1, 3), dt.best_box())


# --- dense outputs ----------------------------------------------------------------------------------------------------


def test_a_pixel_is_explained_by_the_place_that_covers_it() -> None:
    answer = explainer(Segmenter(), bias="neuron").explain(picture(0.5), dt.pixel(14, 9, 0))
    assert float(answer.score) == pytest.approx(8.0)  # 16 pixels of 0.5
    torch.testing.assert_close(answer.relevance[0, 0, 12:16, 8:12], torch.full((4, 4), 0.5))
    assert float(answer.relevance.sum()) == pytest.approx(8.0)
    assert answer.notes[0] == (
        "explained: class 0, output 8, at row 14, column 9 (row 3, column 2 of the output's 8 × 8 places)"
    )


@pytest.mark.parametrize("rows", [8, 32])
def test_a_region_is_explained_by_its_mean(rows: int) -> None:
    mask = np.zeros((rows, rows), bool)
    mask[rows // 4 : rows // 2, rows // 4 : rows // 2] = True  # the object
    answer = explainer(Segmenter(), bias="neuron").explain(picture(0.5), dt.region(mask))
    assert float(answer.score) == pytest.approx(8.0)
    assert answer.notes[0] == "explained: class 0, mean output 8, over 4 places"
    torch.testing.assert_close(answer.relevance[0, 0, 8:16, 8:16], torch.full((8, 8), 0.125))


def test_probabilities_weight_the_places_of_a_region() -> None:
    class Probabilities(Segmenter):
        def forward(self, x: Tensor) -> Any:
            return (super().forward(x) - 4).sigmoid()

    x, mask = picture(0.5), torch.zeros(32, 32)
    mask[8:20, 8:16] = 1  # four places of the object, with logit 4, and two below it, with −3.84
    found = read_place(dt.region(mask, 0), Probabilities(), (x,))
    inside, below = found.weights[0, 0, 2, 2], found.weights[0, 0, 4, 2]
    assert float(found.weights.sum()) == pytest.approx(1)
    assert float(below / inside) == pytest.approx(float(torch.tensor(-3.84).sigmoid() / torch.tensor(4.0).sigmoid()))
    answer = explainer(Probabilities()).explain(x, dt.region(mask, 0))
    assert float(answer.score) > 3.5


def test_a_thin_region_keeps_the_places_that_it_covers_most() -> None:
    mask = torch.zeros(32, 32)
    mask[9] = 1
    found = read_place(dt.region(mask, 0), Segmenter(), (picture(0.5),))
    assert found.weights[0, 0].nonzero().tolist() == [[2, k] for k in range(8)]


def test_a_named_output_of_several_is_chosen() -> None:
    class Several(Segmenter):
        def forward(self, x: Tensor) -> Any:
            return {"aux": x, "out": super().forward(x)}

    answer = dt.Explainer(Several(), domain=dt.NonNegative()).explain(picture(0.5), dt.pixel(10, 10, 0))
    assert float(answer.score) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: dt.region(np.zeros((32, 32))), "The mask is empty"),
        (lambda: dt.region(np.ones(5)), r"needs the shape \(rows, columns\)"),
        (lambda: dt.region(np.ones((5, 5))), "5 × 5 places; the picture has 32 × 32 pixels, the output 8 × 8"),
        (lambda: dt.region(np.ones((3, 8, 8))), "3 masks were given for 1 samples"),
        (lambda: dt.pixel(40, 2), r"\(40, 2\) is outside of the picture: rows are 0 to 31"),
        (lambda: dt.pixel(0.5, 2), "two whole numbers"),  # type: ignore[arg-type]
        (lambda: dt.pixel(1, 2, 5), "class 5 is out of range"),
        (dt.best_box, "its layout is not known"),
    ],
)
def test_bad_regions(target: Any, message: str) -> None:
    with pytest.raises(dt.TargetError, match=message):
        explainer(Segmenter()).explain(picture(0.2), target())


# --- with the rest of the library -------------------------------------------------------------------------------------


def test_a_detector_takes_photographs() -> None:
    gray = dt.Preparation(size=32, resize=32, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    loaded = dt.load(ColorDetector(), preparation=gray, class_names=["face", "hand"])
    photo = np.zeros((32, 32, 3), np.uint8)
    photo[8:16, 8:16] = 51  # 0.2
    answer = dt.Explainer(loaded).explain(photo, dt.best_box("face"))
    assert answer.notes[0].startswith("explained: face, score 0.99, in the box (8, 8, 16, 16)")
    assert answer.titles == (("face",),)
    assert len(answer.photos) == 1
    assert float(answer.relevance[..., 8:16, 8:16].sum()) == pytest.approx(float(answer.relevance.sum()), rel=1e-5)


def test_numbers_that_are_added_to_boxes_keep_the_type_of_the_data() -> None:
    """A block without weights has numbers of 64 bits alone: they must not make the scores' relevance 64 bits wide."""

    class Decoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 3, 2, 2), nn.Conv2d(3, 6, 1)

        def forward(self, x: Tensor) -> Tensor:
            z = self.head(self.conv(x).relu()).flatten(2)
            return torch.cat([z[:, :4] + 16, z[:, 4:]], 1)

    torch.manual_seed(0)
    x, weights = torch.rand(1, 1, 8, 8), torch.zeros(1, 6, 16)
    weights[:, 1, 3] = 1
    answer = explainer(Decoding()).explain(x, weights)
    assert answer.relevance.dtype == torch.float32
    assert float(answer.score) == pytest.approx(float(answer.ledger.input.sum() + answer.ledger.bias.sum()), rel=1e-4)
