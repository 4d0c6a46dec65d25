"""CaffeNet and GoogLeNet against their published figures, against their import, and explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from caffe_reference import Layer, Name, caffemodel, lrn, prototxt
from deeptaylor.models.caffe import read_caffe
from deeptaylor.models.networks.imagenet_networks import CaffeNet, GoogLeNet, caffenet, googlenet

Shape = tuple[int, ...]

# Every blob of the published networks, for one image.
CAFFENET_BLOBS: dict[str, Shape] = {
    "data": (3, 227, 227),
    "conv1": (96, 55, 55),
    "pool1": (96, 27, 27),
    "norm1": (96, 27, 27),
    "conv2": (256, 27, 27),
    "pool2": (256, 13, 13),
    "norm2": (256, 13, 13),
    "conv3": (384, 13, 13),
    "conv4": (384, 13, 13),
    "conv5": (256, 13, 13),
    "pool5": (256, 6, 6),
    "fc6": (4096,),
    "fc7": (4096,),
    "fc8": (1000,),
}
GOOGLENET_BLOBS: dict[str, Shape] = {
    "data": (3, 224, 224),
    "conv1/7x7_s2": (64, 112, 112),
    "pool1/3x3_s2": (64, 56, 56),
    "pool1/norm1": (64, 56, 56),
    "conv2/3x3_reduce": (64, 56, 56),
    "conv2/3x3": (192, 56, 56),
    "conv2/norm2": (192, 56, 56),
    "pool2/3x3_s2": (192, 28, 28),
    "pool3/3x3_s2": (480, 14, 14),
    "pool4/3x3_s2": (832, 7, 7),
    "pool5/7x7_s1": (1024, 1, 1),
    "loss3/classifier": (1000,),
}
# Side of the image; channels of 1x1, 3x3_reduce, 3x3, 5x5_reduce, 5x5, pool, pool_proj, output.
for _name, (_side, *_channels) in {
    "3a": (28, 64, 96, 128, 16, 32, 192, 32, 256),
    "3b": (28, 128, 128, 192, 32, 96, 256, 64, 480),
    "4a": (14, 192, 96, 208, 16, 48, 480, 64, 512),
    "4b": (14, 160, 112, 224, 24, 64, 512, 64, 512),
    "4c": (14, 128, 128, 256, 24, 64, 512, 64, 512),
    "4d": (14, 112, 144, 288, 32, 64, 512, 64, 528),
    "4e": (14, 256, 160, 320, 32, 128, 528, 128, 832),
    "5a": (7, 256, 160, 320, 32, 128, 832, 128, 832),
    "5b": (7, 384, 192, 384, 48, 128, 832, 128, 1024),
}.items():
    for _part, _n in zip(
        ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool", "pool_proj", "output"), _channels, strict=True
    ):
        GOOGLENET_BLOBS[f"inception_{_name}/{_part}"] = (_n, _side, _side)


# --- the published texts, once more ---------------------------------------------------------------------------------


def conv(name: str, bottom: str, outputs: int, kernel: int, rectified: str, **p: Any) -> list[Layer]:
    fields = {"convolution_param": {"num_output": outputs, "kernel_size": kernel, **p}}
    return [Layer(name, "Convolution", bottom, "", fields), Layer(rectified, "ReLU", name, name)]


def pool(name: str, bottom: str, kernel: int = 3, stride: int = 2, how: str = "MAX", **p: int) -> Layer:
    fields = {"pool": Name(how), "kernel_size": kernel, "stride": stride, **p}
    return Layer(name, "Pooling", bottom, "", {"pooling_param": fields})


def norm(name: str, bottom: str) -> Layer:
    return Layer(name, "LRN", bottom, "", {"lrn_param": {"local_size": 5, "alpha": 0.0001, "beta": 0.75}})


def dense(name: str, bottom: str, outputs: int) -> Layer:
    return Layer(name, "InnerProduct", bottom, "", {"inner_product_param": {"num_output": outputs}})


def drop(name: str, bottom: str, ratio: float) -> Layer:
    return Layer(name, "Dropout", bottom, bottom, {"dropout_param": {"dropout_ratio": ratio}})


def caffenet_layers() -> list[Layer]:
    return [
        *conv("conv1", "data", 96, 11, "relu1", stride=4),
        pool("pool1", "conv1"),
        norm("norm1", "pool1"),
        *conv("conv2", "norm1", 256, 5, "relu2", pad=2, group=2),
        pool("pool2", "conv2"),
        norm("norm2", "pool2"),
        *conv("conv3", "norm2", 384, 3, "relu3", pad=1),
        *conv("conv4", "conv3", 384, 3, "relu4", pad=1, group=2),
        *conv("conv5", "conv4", 256, 3, "relu5", pad=1, group=2),
        pool("pool5", "conv5"),
        dense("fc6", "pool5", 4096),
        Layer("relu6", "ReLU", "fc6", "fc6"),
        drop("drop6", "fc6", 0.5),
        dense("fc7", "fc6", 4096),
        Layer("relu7", "ReLU", "fc7", "fc7"),
        drop("drop7", "fc7", 0.5),
        dense("fc8", "fc7", 1000),
    ]


def inception_layers(block: str, bottom: str, widths: Sequence[int]) -> list[Layer]:
    def branch(part: str, below: str, outputs: int, kernel: int, **p: int) -> list[Layer]:
        return conv(f"{block}/{part}", below, outputs, kernel, f"{block}/relu_{part}", **p)

    one, three_reduce, three, five_reduce, five, projection = widths
    stacked = [f"{block}/{part}" for part in ("1x1", "3x3", "5x5", "pool_proj")]
    return [
        *branch("1x1", bottom, one, 1),
        *branch("3x3_reduce", bottom, three_reduce, 1),
        *branch("3x3", f"{block}/3x3_reduce", three, 3, pad=1),
        *branch("5x5_reduce", bottom, five_reduce, 1),
        *branch("5x5", f"{block}/5x5_reduce", five, 5, pad=2),
        pool(f"{block}/pool", bottom, stride=1, pad=1),
        *branch("pool_proj", f"{block}/pool", projection, 1),
        Layer(f"{block}/output", "Concat", stacked),
    ]


def googlenet_layers() -> list[Layer]:
    layers = [
        *conv("conv1/7x7_s2", "data", 64, 7, "conv1/relu_7x7", pad=3, stride=2),
        pool("pool1/3x3_s2", "conv1/7x7_s2"),
        norm("pool1/norm1", "pool1/3x3_s2"),
        *conv("conv2/3x3_reduce", "pool1/norm1", 64, 1, "conv2/relu_3x3_reduce"),
        *conv("conv2/3x3", "conv2/3x3_reduce", 192, 3, "conv2/relu_3x3", pad=1),
        norm("conv2/norm2", "conv2/3x3"),
        pool("pool2/3x3_s2", "conv2/norm2"),
    ]
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        block = f"inception_{name}"
        parts = ("1x1", "3x3_reduce", "3x3", "5x5_reduce", "5x5", "pool_proj")
        layers += inception_layers(block, layers[-1].name, [GOOGLENET_BLOBS[f"{block}/{p}"][0] for p in parts])
        if name in ("3b", "4e"):
            layers.append(pool(f"pool{name[0]}/3x3_s2", f"{block}/output"))
    return [
        *layers,
        pool("pool5/7x7_s1", "inception_5b/output", 7, 1, "AVE"),
        drop("pool5/drop_7x7_s1", "pool5/7x7_s1", 0.4),
        dense("loss3/classifier", "pool5/7x7_s1", 1000),
    ]


def weighted(layers: Sequence[Layer], network: nn.Module) -> list[Layer]:
    """The layers with the weights of a network of the same names."""
    found = []
    for layer in layers:
        blobs = [p.detach().numpy() for p in network.get_submodule(layer.name).parameters()]
        found.append(Layer(layer.name, layer.type, layer.bottom, layer.top, layer.param, blobs))
    return found


# --- figures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def caffe() -> CaffeNet:
    torch.manual_seed(0)
    return caffenet()


@pytest.fixture(scope="module")
def google() -> GoogLeNet:
    torch.manual_seed(0)
    return googlenet()


def images(count: int, side: int) -> Tensor:
    """Pixels minus a mean, as the networks take them."""
    torch.manual_seed(1)
    mean = torch.tensor([104.0, 117.0, 123.0]).reshape(3, 1, 1)
    return torch.randint(0, 256, (count, 3, side, side)).float() - mean


def box() -> dt.Box:
    mean = torch.tensor([104.0, 117.0, 123.0]).reshape(3, 1, 1)
    return dt.Box(-mean, 255 - mean)


def shapes(network: nn.Module, x: Tensor) -> dict[str, Shape]:
    """What every submodule puts out, for one image."""
    found = {"data": tuple(x.shape[1:])}
    handles = [
        module.register_forward_hook(lambda _m, _x, y, name=name: found.update({name: tuple(y.shape[1:])}))
        for name, module in network.named_children()
    ]
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    return found


def test_parameters_as_published(caffe: CaffeNet, google: GoogLeNet) -> None:
    assert sum(p.numel() for p in caffe.parameters()) == 60_965_224
    assert sum(p.numel() for p in google.parameters()) == 6_998_552
    assert not caffe.training
    assert not google.training


def test_blobs_as_published(caffe: CaffeNet, google: GoogLeNet) -> None:
    for network, blobs in ((caffe, CAFFENET_BLOBS), (google, GOOGLENET_BLOBS)):
        made = shapes(network, torch.zeros(1, *blobs["data"]))
        assert {name: made[name] for name in blobs} == blobs
        # Nothing but these and layers that write in place.
        rest = {name.split("/")[-1] for name in made.keys() - blobs.keys()}
        assert all(name.startswith(("relu", "drop", "flatten")) for name in rest), rest
    assert len(GOOGLENET_BLOBS) == 12 + 9 * 8
    # At 227 pixels rounding up changes nothing in CaffeNet; it is what was published all the same.
    pools = [m for network in (caffe, google) for m in network.modules() if isinstance(m, nn.MaxPool2d)]
    assert len(pools) == 3 + 4 + 9
    assert all(m.ceil_mode for m in pools)


def test_normalisation_is_the_one_of_caffe(caffe: CaffeNet) -> None:
    # α is divided by the window's size by both; a large α, so that it would show.
    x = np.random.default_rng(0).normal(size=(2, 9, 3, 3))
    y = nn.LocalResponseNorm(5, alpha=0.9, beta=0.75, k=1.0)(torch.from_numpy(x))
    np.testing.assert_allclose(y, lrn(x, {"local_size": 5, "alpha": 0.9, "beta": 0.75, "k": 1.0}))
    norm1 = caffe.get_submodule("norm1")
    assert (norm1.size, norm1.alpha, norm1.beta, norm1.k) == (5, 1e-4, 0.75, 1.0)


@pytest.mark.parametrize("old", [False, True])
def test_googlenet_out_of_caffe_files(google: GoogLeNet, tmp_path: Path, old: bool) -> None:
    text, model = tmp_path / "deploy.prototxt", tmp_path / "googlenet.caffemodel"
    layers = weighted(googlenet_layers(), google)
    text.write_text(prototxt((3, 224, 224), [*layers, Layer("prob", "Softmax", "loss3/classifier")], old, batch=10))
    model.write_bytes(caffemodel(layers, old))
    imported = read_caffe(text, model, output="loss3/classifier")
    assert imported.shapes == GOOGLENET_BLOBS
    assert imported.state_dict().keys() == google.state_dict().keys()
    GoogLeNet().load_state_dict(imported.state_dict())
    x = images(1, 224)
    with torch.no_grad():
        expected = google(x)
        assert torch.equal(imported(x), expected)
        torch.testing.assert_close(read_caffe(text, model)(x), expected.softmax(1))


def test_caffenet_out_of_a_caffe_text(caffe: CaffeNet, tmp_path: Path) -> None:
    text = tmp_path / "deploy.prototxt"
    text.write_text(prototxt((3, 227, 227), caffenet_layers(), old=True, batch=10))
    imported = read_caffe(text)
    assert imported.shapes == CAFFENET_BLOBS
    imported.load_state_dict(caffe.state_dict(), assign=True)
    x = images(1, 227)
    with torch.no_grad():
        assert torch.equal(imported(x), caffe(x))


# --- explained ------------------------------------------------------------------------------------------------------


def accounted(network: nn.Module, side: int, bias: str) -> dt.Explanation:
    x = images(10, side)
    explanation = dt.Explainer(network, x[:2], domain=box(), bias=bias).explain(x)
    checked = explanation.check()
    assert checked.accounted, str(checked)
    assert checked.positive, str(checked)
    assert checked.empty == checked.negative == 0
    assert checked.accounting_gap < 1e-4
    # And at every step: what arrives goes on, to a bias, or is dropped; the next step receives it.
    arrived, on, to_bias, dropped = explanation.ledger.entries.double().unbind(1)
    gap = (arrived - on - to_bias - dropped).abs() / explanation.score.double()
    assert float(gap.max()) < 1e-4
    ops = {row[2] for row in explanation.ledger.rows}
    assert {"conv2d", "max_pool", "div"} <= ops  # LRN is a division by a gate
    passed = [k for k, row in enumerate(explanation.ledger.rows) if row[2] == "div"]
    assert len(passed) == 2
    assert torch.equal(explanation.ledger.entries[passed, 0], explanation.ledger.entries[passed, 1])
    assert explanation.heatmap().shape == (10, side, side)
    return explanation


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("caffe", 227), ("google", 224)])
def test_ten_images_are_accounted_for(request: pytest.FixtureRequest, name: str, side: int) -> None:
    explanation = accounted(request.getfixturevalue(name), side, "neuron")
    assert float(explanation.ledger.bias.min()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("caffe", 227), ("google", 224)])
def test_ten_images_are_consistent(request: pytest.FixtureRequest, name: str, side: int) -> None:
    assert accounted(request.getfixturevalue(name), side, "spread").check().consistent
