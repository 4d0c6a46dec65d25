"""Networks by name, with their weights out of packages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.models.networks import NAMED, squeezenet1_1
from deeptaylor.support.optional import how_to_install
from loading import refused


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite1"])
def test_networks_out_of_packages(packages: Path, name: str) -> None:
    torch.manual_seed(0)
    expected = {key: NAMED[key].build() for key in ("squeezenet1_1", "mobilenet_v2", "efficientnet-lite1")}[name]
    model = dt.load(name)
    assert not model.network.training
    assert model.preparation == NAMED[name].preparation
    assert model.class_names is not None
    assert (len(model.class_names), model.class_names[7]) == (1000, "name 7")
    x, _ = model.preprocess(Image.new("RGB", (300, 260), "olive"))
    with torch.no_grad():
        torch.testing.assert_close(model.network(x), expected(x))


def test_a_keras_file_without_the_layers(packages: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(packages / "squeezenet1_1", "w") as archive:
        archive["conv1/conv1_W:0"] = np.zeros((3, 3, 3, 64), np.float32)
    refused("squeezenet1_1 is not a Keras file with SqueezeNet's layers: ", "squeezenet1_1")


def test_without_h5py(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(f"the package h5py is not installed. Install it with: {how_to_install('networks')}", "squeezenet1_1")


@pytest.mark.parametrize("name", ["one-layer", "two-layer"])
def test_the_networks_of_the_paper(name: str) -> None:
    model = dt.load(name)
    assert (model.domain.low, model.domain.high) == (-0.5, 1.5)  # type: ignore[attr-defined]
    x, _ = model.preprocess(Image.new("L", (56, 28)))
    assert x.shape == (1, 1, 28, 56)
    assert model.network(x).shape == (1,)
    assert model.class_names is None


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite0"])
def test_photographs_are_recognised_by_trained_networks(name: str) -> None:
    """Runs where the packages with weights are installed (without their dependencies), as in the demo's set-up."""
    known = assets.ASSETS | assets.WEIGHTS
    for asset in (name, "imagenet-names", "cat", "coffee"):
        if assets._installed(known[asset]) is None:
            pytest.skip(f"not installed: {known[asset].package}; {known[asset].instead}")
    if name == "squeezenet1_1":
        pytest.importorskip("h5py")
    model = dt.load(name)
    for photo, labels in {"cat": {"tabby", "tiger cat", "Egyptian cat"}, "coffee": {"espresso"}}.items():
        x, _ = model.preprocess(assets.path(photo))
        assert model.top(x, 1)[0][0].name in labels


def test_squeezenet_reads_kernels_as_keras_lays_them(packages: Path) -> None:
    torch.manual_seed(0)
    expected = squeezenet1_1().state_dict()
    found = NAMED["squeezenet1_1"].read(packages / "squeezenet1_1")
    assert list(found) == list(expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
