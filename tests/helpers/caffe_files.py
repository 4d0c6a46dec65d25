"""Caffe's networks in small, and the two files of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from caffe_reference import Layer, Name, caffemodel, forward, prototxt
from deeptaylor.models.caffe import CaffeError, CaffeGraph, read_caffe

Shape = tuple[int, ...]


def array(*shape: int, seed: int = 0, low: float = -0.5) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(low, 0.7, shape).astype(np.float32)


def conv(name: str, bottom: str, inputs: int, outputs: int, kernel: Shape, bias: bool = True, **p: Any) -> Layer:
    blobs = [array(outputs, inputs // p.get("group", 1), *kernel), array(outputs)]
    if kernel[0] == kernel[1]:
        p["kernel_size"] = kernel[0]
    else:
        p["kernel_h"], p["kernel_w"] = kernel
    if not bias:
        p["bias_term"] = False
    return Layer(
        name, "Convolution", bottom, "", {"convolution_param": {"num_output": outputs, **p}}, blobs[: 1 + bias]
    )


def dense(name: str, bottom: str, inputs: int, outputs: int, **p: Any) -> Layer:
    w = array(inputs, outputs) if p.get("transpose") else array(outputs, inputs)
    return Layer(
        name, "InnerProduct", bottom, "", {"inner_product_param": {"num_output": outputs, **p}}, [w, array(outputs)]
    )


def relu(name: str, blob_name: str) -> Layer:
    return Layer(name, "ReLU", blob_name, blob_name)


def pool(name: str, bottom: str, **p: Any) -> Layer:
    return Layer(name, "Pooling", bottom, "", {"pooling_param": p})


def norm(name: str, bottom: str, **p: Any) -> Layer:
    return Layer(name, "LRN", bottom, "", {"lrn_param": p})


# The first layers of CaffeNet in small: groups, rectangles, LRN, windows over the edge.
CAFFENET = [
    conv("conv1", "data", 4, 6, (3, 2), group=2, pad_h=2, pad_w=1, stride_h=2, stride_w=1),
    relu("relu1", "conv1"),
    pool("pool1", "conv1", pool=Name("MAX"), kernel_size=3, stride=2),
    norm("norm1", "pool1", local_size=3, alpha=0.3, beta=0.6, k=1.5),
    conv("conv2", "norm1", 6, 4, (2, 2), bias=False, pad=1),
    relu("relu2", "conv2"),
    dense("fc3", "conv2", 4 * 4 * 6, 7),
    relu("relu3", "fc3"),
    Layer("drop3", "Dropout", "fc3", "fc3", {"dropout_param": {"dropout_ratio": 0.5}}),
    dense("fc4", "fc3", 7, 3),
    Layer("prob", "Softmax", "fc4"),
]
# An inception module: branches, padded pooling, concatenation, averages over padding.
INCEPTION = [
    conv("a/1x1", "data", 4, 3, (1, 1)),
    relu("a/relu_1x1", "a/1x1"),
    conv("a/3x3", "data", 4, 2, (3, 3), pad=1),
    relu("a/relu_3x3", "a/3x3"),
    pool("a/pool", "data", pool=Name("MAX"), kernel_size=3, stride=1, pad=1),
    Layer("a/output", "Concat", ["a/1x1", "a/3x3", "a/pool"], "", {"concat_param": {"concat_dim": 1}}),
    pool("pool2", "a/output", pool=Name("AVE"), kernel_size=3, stride=2, pad=1),
    norm("norm2", "pool2", alpha=0.2),
    pool("pool3", "norm2", pool=Name("AVE"), kernel_size=2, stride=2),
    conv("b", "pool3", 9, 4, (2, 2)),
    conv("c", "pool3", 9, 4, (2, 2)),
    Layer("sum", "Eltwise", ["b", "c"], "", {"eltwise_param": {"operation": Name("SUM"), "coeff": [0.5, -2.0]}}),
    dense("classifier", "sum", 16, 5),
]
# Residual blocks with normalisation by learned statistics.
RESIDUAL = [
    conv("conv1", "data", 4, 4, (3, 3), pad=2, dilation=2),
    Layer("bn1", "BatchNorm", "conv1", "conv1", {}, [array(4), array(4, low=0.1), np.array([0.999], np.float32)]),
    Layer(
        "scale1", "Scale", "conv1", "conv1", {"scale_param": {"bias_term": True}}, [array(4, seed=1), array(4, seed=2)]
    ),
    relu("relu1", "conv1"),
    Layer("sum", "Eltwise", ["conv1", "data"], "sum"),
    Layer("product", "Eltwise", ["sum", "conv1"], "", {"eltwise_param": {"operation": Name("PROD")}}),
    Layer("largest", "Eltwise", ["product", "sum", "data"], "", {"eltwise_param": {"operation": Name("MAX")}}),
    Layer("prelu", "PReLU", "largest", "", {}, [array(4)]),
    pool("gap", "prelu", pool=Name("AVE"), global_pooling=True),
    dense("fc", "gap", 4, 6, transpose=True),
]
# Whatever else there is.
OTHERS = [
    norm("within", "data", local_size=3, alpha=0.7, norm_region=Name("WITHIN_CHANNEL")),
    Layer("parts", "Slice", "within", ["p", "q"], {"slice_param": {"axis": 1, "slice_point": [1]}}),
    Layer("copies", "Split", "q", ["q1", "q2"]),
    Layer("squash", "Sigmoid", "q1"),
    Layer("tanh", "TanH", "q2"),
    Layer("joined", "Concat", ["p", "squash"], "", {"concat_param": {"axis": -3}}),
    Layer("gate", "Eltwise", ["squash", "tanh"]),
    Layer("abs", "AbsVal", "gate"),
    Layer("power", "Power", "abs", "", {"power_param": {"power": 2.0, "scale": 0.5, "shift": 0.1}}),
    Layer("leaky", "ReLU", "tanh", "", {"relu_param": {"negative_slope": 0.1}}),
    Layer("elu", "ELU", "leaky", "", {"elu_param": {"alpha": 0.7}}),
    Layer("all", "Concat", ["power", "elu", "joined"]),
    Layer("shape", "Reshape", "all", "", {"reshape_param": {"shape": {"dim": [0, 0, -1]}}}),
    dense("rows", "shape", 99, 3, axis=2),
    Layer("flat", "Flatten", "rows"),
    dense("fc", "flat", 30, 2),
]
SHAPE = (4, 11, 9)
NETS = {"caffenet": CAFFENET, "inception": INCEPTION, "residual": RESIDUAL, "others": OTHERS}


class Files:
    """A folder for a network's two files."""

    def __init__(self, folder: Path) -> None:
        self.text, self.model = folder / "net.prototxt", folder / "net.caffemodel"

    def write(self, text: str | bytes, model: bytes | None = None) -> tuple[Path, Path | None]:
        self.text.write_bytes(text.encode() if isinstance(text, str) else text)
        if model is not None:
            self.model.write_bytes(model)
        return self.text, self.model if model is not None else None

    def load(self, layers: Sequence[Layer], shape: Shape = SHAPE, old: bool = False, **how: bool) -> CaffeGraph:
        return read_caffe(*self.write(prototxt(shape, layers, old), caffemodel(layers, old, **how)))

    def refused(self, text: str | bytes, model: bytes | None = None, **how: Any) -> str:
        with pytest.raises(CaffeError) as caught:
            read_caffe(*self.write(text, model), **how)
        return str(caught.value)


def attempt(proto: Path, model: Path | None) -> CaffeGraph | dt.DeepTaylorError:
    """The network or the reason why there is none; anything else is a crash."""
    try:
        return read_caffe(proto, model)
    except dt.DeepTaylorError as error:
        return error


def images(shape: Shape = SHAPE, batch: int = 3) -> np.ndarray:
    return array(batch, *shape, seed=7)


def agrees(network: CaffeGraph, layers: Sequence[Layer], x: np.ndarray) -> None:
    with torch.no_grad():
        y = network(torch.from_numpy(x))
    expected = forward(layers, x)[layers[-1].tops[-1]]
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 1e-2  # something was compared
