"""ONNX files: every operator, exported architectures and the files inside packages, against onnxruntime."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.networks.efficientnet_lite import efficientnet_lite0
from deeptaylor.models.onnx import file as onnx_file
from deeptaylor.models.onnx import importer as onnx_import
from deeptaylor.models.onnx import tensors as onnx_tensors
from deeptaylor.models.onnx.importer import OnnxNetwork, read_onnx
from deeptaylor.models.onnx.ops import OPS
from deeptaylor.models.onnx.shapes import SHAPES
from deeptaylor.models.onnx.tensors import OnnxError
from deeptaylor.support.optional import how_to_install

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

Array = np.ndarray[Any, Any]
WHEEL = Path(onnx.__file__).parent / "backend" / "test" / "data"


# --------------------------------------------------------------------------------------------------------------------
# Files, and what onnxruntime makes of them
# --------------------------------------------------------------------------------------------------------------------


def rand(*shape: int, low: float = -1.0, high: float = 1.0, kind: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape).astype(kind)


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def model_of(
    nodes: Sequence[Any],
    shape: Sequence[int | str] = ("n", 3),
    weights: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", kind, list(shape))],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()],
    )
    for o in graph.output:
        o.type.tensor_type.elem_type = kind  # of any shape
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10)


def written(model: Any, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def runtime(path: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """onnxruntime's outputs, without its rewrites of the graph: one of them makes BiT's padding wrong."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(inputs))
    return found


def ours(network: OnnxNetwork, *inputs: Array) -> list[Array]:
    with torch.no_grad():
        result = network(*[torch.from_numpy(x.copy()) for x in inputs])
    return [t.numpy() for t in (result.values() if isinstance(result, dict) else [result])]


def agree(path: Path, x: Array, tolerance: float = 1e-5) -> OnnxNetwork:
    """The file read here gives what onnxruntime gives, to a fraction of the largest output: those may be small."""
    network = read_onnx(path)
    for here, there in zip(ours(network, x), runtime(path, {network.input_name: x}), strict=True):
        assert here.shape == there.shape
        largest = float(np.abs(there).max(where=np.isfinite(there), initial=0))
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance * min(1, largest))
    return network


# --------------------------------------------------------------------------------------------------------------------
# Every operator
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An operator on an input of one shape and constants; "" stands for an input left out."""

    op: str
    shape: tuple[int, ...]
    constants: tuple[Any, ...] = ()
    opsets: tuple[int, ...] = (17,)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    low: float = -1.0
    high: float = 1.0
    first: bool = True  # the input comes before the constants

    def __str__(self) -> str:
        return f"{self.op}-{'_'.join(f'{k}{v}' for k, v in self.attributes.items())}".replace(" ", "")[:60]


def case(op: str, shape: tuple[int, ...], *constants: Any, opsets: Sequence[int] = (17,), **attributes: Any) -> Case:
    special = {k: attributes.pop(k) for k in ("outputs", "low", "high", "first") if k in attributes}
    return Case(op, shape, constants, tuple(opsets), attributes, **special)


PICTURE = (2, 4, 7, 8)
NORM = (rand(4), rand(4) + 1, rand(4), rand(4, low=0.5, high=1.5))

CASES = [
    case("Conv", PICTURE, rand(6, 4, 3, 3), opsets=(7, 11, 22), kernel_shape=[3, 3]),
    case("Conv", PICTURE, rand(6, 2, 3, 2), rand(6), group=2, strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]),
    case("Conv", PICTURE, rand(6, 4, 3, 3), rand(6), pads=[0, 1, 2, 0], strides=[2, 2]),
    case("Conv", PICTURE, rand(6, 4, 4, 3), rand(6), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", PICTURE, rand(6, 4, 4, 3), rand(6), auto_pad="SAME_LOWER", strides=[2, 3]),
    case("Conv", PICTURE, rand(6, 4, 4, 3), rand(6), auto_pad="VALID"),
    case("Conv", (2, 4, 9), rand(5, 4, 3), rand(5), pads=[1, 1]),
    case("Conv", (2, 4, 5, 6, 5), rand(3, 4, 3, 3, 3), rand(3)),
    case("ConvTranspose", PICTURE, rand(4, 3, 3, 3), rand(3), opsets=(11, 22), strides=[2, 2]),
    case("ConvTranspose", PICTURE, rand(4, 2, 3, 3), group=2, pads=[1, 1, 1, 1], output_padding=[1, 1], strides=[2, 2]),
    case("ConvTranspose", PICTURE, rand(4, 3, 3, 3), rand(3), pads=[1, 0, 0, 1], dilations=[2, 1]),
    case("ConvTranspose", PICTURE, rand(4, 3, 3, 3), output_shape=[14, 16], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("Gemm", (2, 5), rand(5, 3), rand(3), opsets=(7, 9, 13)),
    case("Gemm", (2, 5), rand(3, 5), rand(2, 3), transB=1, alpha=0.5, beta=2.0),
    case("Gemm", (2, 5), rand(5, 3), opsets=(11,)),
    case("Gemm", (5, 2), rand(5, 3), rand(1), transA=1),
    case("MatMul", (2, 4, 5), rand(5, 3), opsets=(9, 13)),
    case("MatMul", (2, 4, 5), rand(3, 4), first=False),
    case("Einsum", (2, 4, 5), rand(5, 3), equation="bij,jk->bik"),
    case("BatchNormalization", PICTURE, *NORM, opsets=(7, 9, 14, 15), epsilon=1e-3),
    case("BatchNormalization", (2, 4), *NORM, opsets=(9, 15)),
    case("LayerNormalization", (2, 4, 6), rand(6), rand(6), epsilon=1e-3),
    case("LayerNormalization", (2, 4, 6), rand(4, 6), axis=1),
    case("GroupNormalization", PICTURE, rand(2), rand(2), opsets=(18,), num_groups=2),
    case("GroupNormalization", PICTURE, rand(4), rand(4), opsets=(21,), num_groups=2),
    case("InstanceNormalization", PICTURE, rand(4), rand(4), opsets=(6, 22)),
    case("RMSNormalization", (2, 4, 6), rand(6), opsets=(23,)),
    case("LRN", PICTURE, size=3, alpha=0.5, beta=0.7, bias=2.0, opsets=(1, 13)),
    case("MaxPool", PICTURE, opsets=(8, 10, 12, 22), kernel_shape=[3, 2]),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], dilations=[1, 2]),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
    case("MaxPool", PICTURE, kernel_shape=[3, 3], strides=[1, 1], pads=[2, 0, 0, 2]),
    case("MaxPool", PICTURE, kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", PICTURE, kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", PICTURE, kernel_shape=[4, 3], strides=[2, 2], auto_pad="VALID"),
    case("MaxPool", (2, 4, 9), kernel_shape=[3], strides=[3]),
    case("MaxPool", (2, 4, 5, 6, 5), kernel_shape=[2, 3, 2], strides=[2, 2, 1]),
    case("AveragePool", PICTURE, opsets=(7, 10, 11, 19, 22), kernel_shape=[3, 2]),
    case("AveragePool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("AveragePool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1),
    case("AveragePool", PICTURE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 2, 0]),
    case("AveragePool", (2, 4, 6, 6), kernel_shape=[7, 7], pads=[0, 0, 1, 1]),
    case("AveragePool", PICTURE, opsets=(19,), kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    case("AveragePool", PICTURE, opsets=(19,), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    case("AveragePool", PICTURE, kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("AveragePool", PICTURE, kernel_shape=[4, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("AveragePool", (2, 4, 9), kernel_shape=[3], strides=[2]),
    case("LpPool", PICTURE, opsets=(11, 18), kernel_shape=[2, 3], strides=[2, 1], p=2),
    case("LpPool", PICTURE, kernel_shape=[2, 2], strides=[2, 2], p=3, pads=[1, 0, 0, 0]),
    case("GlobalAveragePool", PICTURE, opsets=(1, 22)),
    case("GlobalMaxPool", PICTURE, opsets=(1, 22)),
    *[
        case(op, (2, 3, 4), opsets=opsets, high=3.0)
        for op, opsets in [
            ("Relu", (6, 13, 14)),
            ("Sigmoid", (6, 13)),
            ("HardSwish", (14, 22)),
            ("Tanh", (6, 13)),
            ("Erf", (9, 13)),
            ("Softplus", (1, 22)),
            ("Abs", (6, 13)),
            ("Neg", (6, 13)),
            ("Exp", (6, 13)),
            ("Identity", (1, 13)),
            ("Mish", (18,)),
            ("Sin", (7,)),
            ("Cos", (7,)),
            ("Dropout", (7, 10, 13)),
        ]
    ],
    *[case(op, (2, 3, 4), opsets=(6, 13), low=0.2, high=3.0) for op in ("Sqrt", "Log", "Reciprocal")],
    case("LeakyRelu", (2, 3, 4), opsets=(6, 16), alpha=0.3),
    case("Elu", (2, 3, 4), opsets=(6, 22), alpha=0.7),
    case("Celu", (2, 3, 4), opsets=(12,), alpha=0.7),
    case("Selu", (2, 3, 4), opsets=(6, 22)),
    case("Selu", (2, 3, 4), alpha=2.0, gamma=1.5),
    case("ThresholdedRelu", (2, 3, 4), opsets=(10,), alpha=0.3),
    case("HardSigmoid", (2, 3, 4), opsets=(6, 22), high=6.0),
    case("HardSigmoid", (2, 3, 4), alpha=1 / 6, beta=0.5, low=-4.0, high=4.0),
    case("Gelu", (2, 3, 4), opsets=(20,)),
    case("Gelu", (2, 3, 4), opsets=(20,), approximate="tanh"),
    case("PRelu", (2, 3, 4, 4), rand(3, 1, 1), opsets=(7, 9, 16)),
    case("PRelu", (2, 3, 4, 4), rand(1)),
    case("PRelu", (2, 3, 4, 4), rand(4, 4)),
    case("Clip", (2, 3, 4), opsets=(6,), min=-0.2, max=0.5),
    case("Clip", (2, 3, 4), opsets=(6,), min=0.0),
    case("Clip", (2, 3, 4), np.float32(-0.2), np.float32(0.5), opsets=(11, 13)),
    case("Clip", (2, 3, 4), "", np.float32(0.5), opsets=(11, 13)),
    case("Softmax", (2, 3, 4), opsets=(7, 11, 13)),
    case("Softmax", (2, 3, 4), opsets=(11, 13), axis=1),
    case("Softmax", (2, 3, 4), opsets=(11, 13), axis=-1),
    case("Softmax", (2, 5, 1, 1), opsets=(9, 11)),
    case("LogSoftmax", (2, 3, 4), opsets=(11, 13), axis=2),
    case("Pow", (2, 3, 4), np.float32(2), opsets=(7, 13)),
    case("Pow", (2, 3, 4), ints(3), opsets=(15,)),
    case("Add", (2, 3, 4), rand(3, 1), opsets=(7, 14)),
    case("Sub", (2, 3, 4), rand(4), opsets=(7, 14), first=False),
    case("Mul", (2, 3, 4), rand(1), opsets=(7, 14)),
    case("Div", (2, 3, 4), rand(4, low=1, high=2), opsets=(7, 14)),
    case("Sum", (2, 3, 4), rand(3, 4), rand(4), opsets=(8, 13)),
    case("Mean", (2, 3, 4), rand(3, 4), rand(4), opsets=(8, 13)),
    case("Max", (2, 3, 4), np.float32(0), opsets=(8, 13)),
    case("Max", (2, 3, 4), rand(3, 4), rand(4)),
    case("Min", (2, 3, 4), np.float32(0.3), opsets=(8, 13), first=False),
    case("Where", (2, 3, 4), rand(3, 4) > 0, first=False, outputs=1),
    case("Flatten", (2, 3, 4, 5), opsets=(1, 9, 13)),
    case("Flatten", (2, 3, 4, 5), axis=2),
    case("Flatten", (2, 3, 4, 5), axis=-1),
    case("Reshape", (2, 3, 4), ints(0, 12), opsets=(5, 13, 14)),
    case("Reshape", (2, 3, 4), ints(-1, 4, 3)),
    case("Transpose", (2, 3, 4), opsets=(1, 13), perm=[0, 2, 1]),
    case("Transpose", (2, 3, 4)),
    case("Squeeze", (2, 1, 4, 1), opsets=(1, 11), axes=[1, 3]),
    case("Squeeze", (2, 1, 4, 1), ints(-1), opsets=(13,)),
    case("Squeeze", (2, 1, 4, 1), opsets=(11, 13)),
    case("Unsqueeze", (2, 4), opsets=(1, 11), axes=[1, 3]),
    case("Unsqueeze", (2, 4), ints(-1, 1), opsets=(13,)),
    case("Concat", (2, 3, 4), rand(2, 2, 4), opsets=(4, 13), axis=1),
    case("Split", (2, 6, 4), opsets=(2, 11), axis=1, split=[1, 5], outputs=2),
    case("Split", (2, 6, 4), ints(1, 5), opsets=(13,), axis=1, outputs=2),
    case("Split", (2, 6, 4), opsets=(11, 13), axis=1, outputs=3),
    case("Split", (2, 7, 4), opsets=(18,), axis=1, num_outputs=2, outputs=2),
    case("Slice", (2, 6, 7), opsets=(1, 9), starts=[1, -3], ends=[100, -1], axes=[1, 2]),
    case("Slice", (2, 6, 7), ints(1, -3), ints(2**63 - 1, -1), ints(1, 2), ints(2, 1), opsets=(10, 13)),
    case("Slice", (2, 6, 7), ints(-1, 5), ints(-(2**63), 0), ints(1, 2), ints(-1, -2)),
    case("Pad", (2, 3, 4, 5), opsets=(2, 10), pads=[0, 0, 1, 0, 0, 0, 2, 3], value=0.5),
    case("Pad", (2, 3, 4, 5), ints(0, 1, 1, 0, 0, 0, 2, 3), np.float32(0.5), opsets=(11, 13)),
    case("Pad", (2, 3, 4, 5), ints(0, 0, 1, 0, 0, 0, 2, 3), mode="reflect"),
    case("Pad", (2, 3, 4, 5), ints(0, 0, 1, 0, 0, 0, 2, 3), mode="edge"),
    case("Pad", (2, 3, 4, 5), ints(1, 2), "", ints(-1), opsets=(18,)),
    case("Gather", (2, 6, 4), ints(1, -1, 0), opsets=(1, 13), axis=1),
    case("Gather", (2, 6, 4), np.array(2), axis=1),
    case("Gather", (2, 6, 4), np.array([[0, 1], [2, 3]]), axis=2),
    case("GatherND", (2, 6, 4), np.array([[0, 1], [1, 3]]), opsets=(12, 13)),
    case("Expand", (2, 1, 4), ints(2, 3, 1), opsets=(8, 13)),
    case("Tile", (2, 3, 4), ints(1, 2, 1), opsets=(6, 13)),
    case("Cast", (2, 3, 4), opsets=(6, 13), to=TensorProto.DOUBLE),
    case("ReduceMean", (2, 3, 4), opsets=(1, 11, 13), axes=[-1]),
    case("ReduceMean", (2, 3, 4), ints(1, 2), opsets=(18,), keepdims=0),
    case("ReduceSum", (2, 3, 4), opsets=(1, 11), axes=[1], keepdims=0),
    case("ReduceSum", (2, 3, 4), ints(1), opsets=(13,)),
    case("ReduceSum", (2, 3, 4), opsets=(13,), noop_with_empty_axes=1),
    case("ReduceMax", (2, 3, 4), opsets=(11, 13), axes=[2]),
    case("ReduceMin", (2, 3, 4), opsets=(11, 13), axes=[2]),
    case("ReduceL2", (2, 3, 4), opsets=(11, 13), axes=[2]),
    case("DepthToSpace", (2, 8, 3, 4), opsets=(1, 11, 13), blocksize=2),
    case("DepthToSpace", (2, 8, 3, 4), opsets=(11,), blocksize=2, mode="CRD"),
    case(
        "Resize",
        (2, 3, 4, 5),
        "",
        np.array([1, 1, 2, 2], np.float32),
        opsets=(13, 18),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    case("Resize", (2, 3, 4, 5), "", "", ints(2, 3, 7, 9), mode="linear"),
    case(
        "Resize", (2, 3, 4, 5), "", "", ints(2, 3, 7, 9), mode="linear", coordinate_transformation_mode="align_corners"
    ),
    case("Upsample", (2, 3, 4, 5), np.array([1, 1, 2, 3], np.float32), opsets=(9,), mode="nearest"),
]


def file_of(c: Case, opset: int, folder: Path) -> Path:
    names = ["" if isinstance(v, str) else f"c{k}" for k, v in enumerate(c.constants)]
    constants = {n: np.asarray(v) for n, v in zip(names, c.constants, strict=True) if n}
    inputs = ["x", *names] if c.first else [*names, "x"]
    if c.op == "Where":
        inputs, constants = ["c0", "x", "zero"], {**constants, "zero": np.float32([0.25])}
    outputs = [f"y{k}" for k in range(c.outputs)]
    shape: list[int | str] = list(c.shape)
    if c.op not in ("Concat", "GatherND", "Expand", "Resize") and not c.attributes.get("transA") and c.op != "MatMul":
        shape[0] = "n"
    model = model_of([helper.make_node(c.op, inputs, outputs, **c.attributes)], shape, constants, outputs, opset)
    if c.op == "Cast":
        model.graph.output[0].type.tensor_type.elem_type = c.attributes["to"]
    return written(model, folder)


@pytest.mark.parametrize(
    ("c", "opset"), [(c, o) for c in CASES for o in c.opsets], ids=[f"{c}-{o}" for c in CASES for o in c.opsets]
)
def test_operator(c: Case, opset: int, tmp_path: Path) -> None:
    x = rand(*c.shape, low=c.low, high=c.high)
    agree(file_of(c, opset, tmp_path), x)


def test_every_operator_is_tested() -> None:
    elsewhere = {"ConstantOfShape", "IsNaN", "Swish"}
    assert set(OPS) - {c.op for c in CASES} == elsewhere


def test_swish_and_old_forms(tmp_path: Path) -> None:
    """Versions that onnxruntime does not run, by hand."""
    x = rand(2, 3, 4)
    node = helper.make_node("Swish", ["x"], ["y"], alpha=2.0)
    [y] = ours(read_onnx(written(model_of([node], ("n", 3, 4), opset=24), tmp_path)), x)
    np.testing.assert_allclose(y, x / (1 + np.exp(-2 * x)), atol=1e-6)
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    [y] = ours(read_onnx(written(model_of([node], ("n", 3, 4), {"b": rand(3)}, opset=6), tmp_path)), x)
    np.testing.assert_allclose(y, x + rand(3)[:, None], atol=1e-6)
    node = helper.make_node("LRN", ["x"], ["y"], size=4, alpha=0.5, beta=1.0)  # one channel before, two after
    [y] = ours(read_onnx(written(model_of([node], ("n", 3, 4)), tmp_path)), x)
    squares = np.pad(x**2, ((0, 0), (1, 2), (0, 0)))
    sums = sum(squares[:, k : k + 3] for k in range(4))
    np.testing.assert_allclose(y, x / (1 + 0.5 / 4 * sums), atol=1e-6)
    norm = [rand(3, 4), rand(3, 4) + 1, rand(3, 4), rand(3, 4, low=0.5)]
    node = helper.make_node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"], spatial=0, epsilon=1e-3)
    model = model_of([node], ("n", 3, 4), dict(zip("abcd", norm, strict=True)), opset=8)
    [y] = ours(read_onnx(written(model, tmp_path)), x)
    np.testing.assert_allclose(y, (x - norm[2]) / np.sqrt(norm[3] + 1e-3) * norm[0] + norm[1], atol=1e-5)


# --------------------------------------------------------------------------------------------------------------------
# Shapes, constants, names
# --------------------------------------------------------------------------------------------------------------------


def flattened_by_hand(opset: int = 17) -> Any:
    """x.view(x.size(0), -1) as exporters write it, then a layer whose weight the graph computes."""
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["s"]),
        n("Gather", ["s", "zero"], ["b"], axis=0),
        n("Unsqueeze", ["b", "axis"], ["b1"]) if opset >= 13 else n("Unsqueeze", ["b"], ["b1"], axes=[0]),
        n("Constant", [], ["rest"], value=numpy_helper.from_array(ints(-1))),
        n("Concat", ["b1", "rest"], ["shape"], axis=0),
        n("Reshape", ["x", "shape"], ["flat"]),
        n("ConstantOfShape", ["wshape"], ["ones"], value=numpy_helper.from_array(np.float32([0.5]))),
        n("Mul", ["ones", "w"], ["weight"]),
        n("MatMul", ["flat", "weight"], ["z"], name="head/MatMul"),
        n("Relu", ["z"], ["y"], name="forward"),
    ]
    weights = {"zero": np.array(0), "axis": ints(0), "wshape": ints(12, 5), "w": rand(12, 5)}
    return model_of(nodes, ("n", 3, 4), weights, opset=opset)


@pytest.mark.parametrize("opset", [11, 17])
def test_shape_arithmetic_leaves_the_batch_free(opset: int, tmp_path: Path) -> None:
    network = agree(written(flattened_by_hand(opset), tmp_path), rand(5, 3, 4))
    assert (network.input_name, network.input_shape, network.output_names) == ("x", (3, 4), ("y",))
    assert network.batch is None
    explainer = dt.Explainer(network, torch.rand(2, 3, 4))
    assert not [note for note in explainer.plan.notes if "batch" in note]
    assert explainer.explain(torch.rand(7, 3, 4)).relevance.shape == (7, 3, 4)


def test_names_come_from_the_file_and_constants_are_folded(tmp_path: Path) -> None:
    network = read_onnx(written(flattened_by_hand(), tmp_path))
    assert dict(network.named_parameters()).keys() == {"weight"}
    assert {"head_MatMul", "forward_1"} <= dict(network.named_modules()).keys()
    assert not network.training
    assert "head_MatMul" in str(dt.Explainer(network, torch.rand(2, 3, 4)).plan)


def test_a_network_can_be_copied_pickled_and_moved(tmp_path: Path) -> None:
    network = read_onnx(written(flattened_by_hand(), tmp_path))
    x = torch.rand(2, 3, 4)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(other(x), network(x))
    assert network.double()(x.double()).dtype == torch.float64
    assert copy.deepcopy(network).to("meta")(x.to("meta")).shape == (2, 5)


def test_a_batch_written_into_the_file_gives_way(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    path = written(model_of(nodes, (1, 3, 4), {"s": ints(1, 12), "w": rand(12, 5)}), tmp_path)
    network = agree(path, rand(1, 3, 4))
    assert network.batch is None
    x = rand(3, 3, 4)
    both = np.concatenate([runtime(path, {"x": x[k : k + 1]})[0] for k in range(3)])
    np.testing.assert_allclose(ours(network, x)[0], both, atol=1e-6)


def test_a_batch_that_cannot_be_freed_is_said(tmp_path: Path) -> None:
    node = helper.make_node("Concat", ["x", "c"], ["y"], axis=1)
    network = agree(written(model_of([node], (1, 3), {"c": rand(1, 2)}), tmp_path), rand(1, 3))
    assert network.batch == 1


def test_several_outputs_inner_values_and_open_sizes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"])]
    path = written(model_of(nodes, ("n", "m"), outputs=("a", "b")), tmp_path)
    network = agree(path, rand(2, 4))
    assert network.input_shape == (None,)
    with torch.no_grad():
        assert set(network(torch.rand(2, 3))) == {"a", "b"}
        assert isinstance(read_onnx(path, outputs=["a"])(torch.rand(2, 3)), Tensor)
    with pytest.raises(OnnxError, match="no value called 'logits'; its last are: a, b"):
        read_onnx(path, outputs=["logits"])


def test_flatten_makes_classes_of_a_picture_of_one_pixel(tmp_path: Path) -> None:
    path = written(model_of([helper.make_node("GlobalAveragePool", ["x"], ["y"])], ("n", 5, 4, 4)), tmp_path)
    x = torch.rand(2, 5, 4, 4)
    assert read_onnx(path)(x).shape == (2, 5, 1, 1)
    assert read_onnx(path, flatten=True)(x).shape == (2, 5)


@pytest.mark.parametrize("taken", [True, False])
def test_a_constant_branch_is_taken(taken: bool, tmp_path: Path) -> None:
    def branch(op: str) -> Any:
        out = [helper.make_tensor_value_info(op, TensorProto.FLOAT, None)]
        return helper.make_graph([helper.make_node(op, ["x"], [op])], op, [], out)

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Tanh"))
    agree(written(model_of([node], ("n", 3), {"c": np.array(taken)}), tmp_path), rand(2, 3))


@pytest.mark.parametrize(
    ("kind", "dtype"), [(np.float16, torch.float16), (np.float64, torch.float64), (np.float32, torch.float32)]
)
def test_real_types(kind: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], ("n", 4), {"w": rand(4, 3, kind=kind)}, kind=number)
    network = agree(written(model, tmp_path), rand(2, 4, kind=kind), 1e-3 if kind is np.float16 else 1e-5)
    assert network.w.dtype == dtype


def test_bfloat16_and_integer_initialisers(tmp_path: Path) -> None:
    values = [1.0, -2.5, 0.15625]
    for raw in (True, False):
        proto = helper.make_tensor("w", TensorProto.BFLOAT16, [3], values)
        if raw:
            proto = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[3])
            proto.raw_data = torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
        assert torch.equal(onnx_tensors.tensor_of(proto, None), torch.tensor(values, dtype=torch.bfloat16))
    for kind in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64, np.bool_):
        array = np.array([0, 1, 1], kind)
        assert onnx_tensors.tensor_of(numpy_helper.from_array(array, "a"), None).tolist() == array.tolist()


def test_attention_guarded_against_nan_is_plain_softmax(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [n("Softmax", ["x"], ["s"]), n("IsNaN", ["s"], ["q"]), n("Where", ["q", "zero", "s"], ["y"])]
    network = agree(written(model_of(nodes, ("n", 3), {"zero": np.float32(0)}), tmp_path), rand(2, 3))
    assert [step.module for step in network.steps] == ["s"]


# --------------------------------------------------------------------------------------------------------------------
# Architectures exported by torch
# --------------------------------------------------------------------------------------------------------------------


class Caffe(nn.Module):
    """AlexNet's ingredients: grouped convolution, LRN, ceiling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 5, 2), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.pool = nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(8 * 7 * 7, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(torch.relu(self.a(x))))
        y: Tensor = self.head(torch.relu(self.b(x)).flatten(1))
        return y


class Inception(nn.Module):
    """Branches of several kernels, concatenated; average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
        self.branches = nn.ModuleList(
            [nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 3, 5, padding=2)]
        )
        self.head = nn.Linear(21, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([*[torch.relu(b(x)) for b in self.branches], F.max_pool2d(x, 3, 1, 1)], 1)
        y: Tensor = self.head(F.avg_pool2d(x, 3, 2, 1).mean((2, 3)))
        return y


class Dense(nn.Module):
    """DenseNet: BatchNorm, ReLU, convolution, and everything before concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2, 1)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.BatchNorm2d(6 + 4 * k), nn.ReLU(), nn.Conv2d(6 + 4 * k, 4, 3, padding=1)) for k in (0, 1)]
        )
        self.head = nn.Sequential(
            nn.BatchNorm2d(14), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(14, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        y: Tensor = self.head(x)
        return y


class Shuffle(nn.Module):
    """ShuffleNet: halves, channels shuffled by reshape and transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        a, b = x.chunk(2, 1)
        x = torch.cat([a, torch.relu(self.branch(b))], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        y: Tensor = self.head(x.mean([2, 3]))
        return y


def vgg() -> nn.Module:
    conv: list[nn.Module] = []
    for before, after in [(3, 8), (8, 12), (12, 16)]:
        conv += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*conv, nn.Flatten(), nn.Linear(16 * 16, 20), nn.ReLU(), nn.Linear(20, 10))


def lite() -> nn.Module:
    return efficientnet_lite0(classes=10)


def from_zoo(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        pytest.importorskip("transformers")
        folder = str(Path(__file__).resolve().parents[3] / "benchmarks")
        if folder not in sys.path:
            sys.path.append(folder)
        import hf_zoo

        built: nn.Module = hf_zoo.family(name, seed=0).model
        return built

    return build


SIZES = {"convnext": 64, "mobilenet_v2": 64, "segformer": 64, "levit": 64, "lite": 64}
OWN: dict[str, Callable[[], nn.Module]] = {
    "caffe": Caffe,
    "vgg": vgg,
    "inception": Inception,
    "dense": Dense,
    "shuffle": Shuffle,
    "resnet": from_zoo("resnet"),
    "vit": from_zoo("vit"),
}
LARGER = {
    "lite": lite,
    **{
        k: from_zoo(k)
        for k in ("convnext", "regnet", "mobilenet_v2", "poolformer", "swin", "segformer", "levit", "focalnet")
    },
}


def exported(name: str, folder: Path, dynamo: bool) -> tuple[Path, nn.Module, Tensor]:
    torch.manual_seed(0)
    network = (OWN | LARGER)[name]().eval()
    for m in network.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0, 0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
    x = torch.rand(2, 3, SIZES.get(name, 32), SIZES.get(name, 32))
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            pytest.importorskip("onnxscript")
            free = ({0: torch.export.Dim.DYNAMIC},)
            torch.onnx.export(network, (x,), str(path), dynamo=True, dynamic_shapes=free, verbose=False)
        else:
            axes = {"x": {0: "n"}}
            torch.onnx.export(network, (x,), str(path), dynamo=False, input_names=["x"], dynamic_axes=axes)
    return path, network, x


# The exporter writes their norms and windows in other operations, which are explained each by itself.
RESPELLED = {"poolformer", "swin"}


def hold(path: Path, original: nn.Module, x: Tensor) -> None:
    """onnxruntime's outputs; the books close; and the explanation is that of the network it was exported from."""
    network = agree(path, x.numpy(), 1e-4)
    assert network.batch is None
    explainer = dt.Explainer(network, x, dt.Box(0.0, 1.0))
    assert not [note for note in explainer.plan.notes if "batch" in note]
    target = int(network(x)[0].argmax())
    explanation = explainer.explain(x, target)
    found = explanation.check()
    assert found.accounted, str(found)
    assert found.positive, str(found)
    assert found.negative + found.empty < found.samples
    if path.stem in RESPELLED:
        return
    expected = dt.Explainer(original, x, dt.Box(0.0, 1.0)).explain(x, target)
    scale = float(expected.relevance.abs().max())
    torch.testing.assert_close(explanation.relevance, expected.relevance, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("name", OWN)
def test_exported(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_exported_larger(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, "lite", "convnext", "regnet", "segformer"])
def test_exported_by_dynamo(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=True))


# --------------------------------------------------------------------------------------------------------------------
# Files inside packages
# --------------------------------------------------------------------------------------------------------------------


def stored(path: Path) -> Array:
    proto = TensorProto()
    proto.ParseFromString(path.read_bytes())
    array: Array = numpy_helper.to_array(proto)
    return array


CONVERTED = sorted(p.parent for k in ("pytorch-converted", "pytorch-operator") for p in WHEEL.glob(f"{k}/*/model.onnx"))


def test_the_wheel_holds_files() -> None:
    assert len(CONVERTED) > 100


@pytest.mark.parametrize("folder", CONVERTED, ids=lambda p: p.name)
def test_file_of_the_onnx_wheel(folder: Path) -> None:
    """The standard's own examples, by its own outputs; a power with data as exponent alone is not read."""
    if folder.name == "test_operator_pow":
        with pytest.raises(OnnxError, match="depends on the data, where a number must be known"):
            read_onnx(folder / "model.onnx")
        return
    network = read_onnx(folder / "model.onnx")
    data = folder / "test_data_set_0"
    found = ours(network, *[stored(data / f"input_{k}.pb") for k in range(len(network.input_names))])
    for k, y in enumerate(found):
        np.testing.assert_allclose(y, stored(data / f"output_{k}.pb"), rtol=1e-4, atol=1e-4)


def randomised(name: str, folder: Path) -> Path:
    """A network of the model zoo with random weights; in the wheel they are constants, and all classes are alike."""
    model = onnx.load(WHEEL / "light" / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    variances = {n.input[4] for n in model.graph.node if n.op_type == "BatchNormalization"}
    nodes = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shape = [int(s) for s in shapes[node.input[0]]]
        fan = max(int(np.prod(shape[1:])), 1)
        values = random.normal(0, (2 / fan) ** 0.5 if len(shape) > 1 else 0.1, shape)
        if node.output[0] in variances:
            values = random.uniform(0.5, 1.5, shape)
        elif any(k in node.output[0] for k in ("_s_", "scale", "_gamma")) and len(shape) == 1:
            values += 1
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return written(model, folder)


PARAMETERS = {"bvlc_alexnet": 60_965_224, "inception_v1": 6_998_552, "squeezenet": 1_235_496, "resnet50": 25_557_032}
QUICK = ("squeezenet", "shufflenet")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(k, marks=() if k in QUICK else pytest.mark.slow)
        for k in (
            *QUICK,
            "bvlc_alexnet",
            "densenet121",
            "inception_v1",
            "inception_v2",
            "resnet50",
            "zfnet512",
            "vgg19",
        )
    ],
)
def test_network_of_the_model_zoo(name: str, tmp_path: Path) -> None:
    path = randomised(name, tmp_path)
    x = rand(2, 3, 224, 224, low=0.0)
    network = read_onnx(path, flatten=True)
    assert (network.batch, network.input_shape) == (None, (3, 224, 224))
    if name in PARAMETERS:
        assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]
    last = onnx.load(path, load_external_data=False).graph.node[-1]
    logits = last.input[0] if last.op_type == "Softmax" else last.output[0]
    model = onnx.load(path)
    model.graph.output.append(helper.make_empty_tensor_value_info(logits))
    found = read_onnx(path, outputs=[logits], flatten=True)
    [y] = ours(found, x)
    there = [runtime(written(model, tmp_path, "more.onnx"), {network.input_name: x[k : k + 1]})[-1] for k in (0, 1)]
    expected = np.concatenate(there).reshape(2, -1)
    assert expected.std() > 1e-3
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    picture = torch.from_numpy(x[:1])
    check = dt.Explainer(network, picture, dt.Box(0.0, 1.0)).explain(picture).check()
    assert check.accounted, str(check)
    assert check.positive, str(check)


def test_files_of_the_onnxruntime_wheel() -> None:
    folder = Path(ort.__file__).parent / "datasets"
    agree(folder / "mul_1.onnx", rand(3, 2))
    agree(folder / "sigmoid.onnx", rand(3, 4, 5))
    with pytest.raises(OnnxError, match=r"outside the ONNX standard: ai\.onnx\.ml::LinearClassifier"):
        read_onnx(folder / "logreg_iris.onnx")


# --------------------------------------------------------------------------------------------------------------------
# What cannot be read, and what should not
# --------------------------------------------------------------------------------------------------------------------


def refused(model: Any, folder: Path, text: str) -> None:
    with pytest.raises(OnnxError, match=text):
        read_onnx(written(model, folder))


def test_the_onnx_package_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(flattened_by_hand(), tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(OnnxError, match=re.escape(how_to_install("onnx"))):
        read_onnx(path)


def test_all_unknown_operators_at_once(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [n("Det", ["x"], ["a"], name="first"), n("Relu", ["a"], ["b"]), n("TopK", ["b", "k"], ["y", "i"])]
    model = model_of(nodes, ("n", 3), {"k": ints(1)})
    refused(model, tmp_path, r"model.onnx \(opset 17\) has operators that are not read: Det \(first\); TopK \(y\)")


def test_quantised_networks_and_loops(tmp_path: Path) -> None:
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["f"])
    more = helper.make_node("Add", ["x", "f"], ["y"])
    weights = {"w": np.zeros(3, np.int8), "s": np.float32(1)}
    refused(model_of([node, more], ("n", 3), weights), tmp_path, "use the file in floating point")
    node = helper.make_node("Loop", ["", "c"], ["y"], body=helper.make_graph([], "g", [], []))
    refused(model_of([node], ("n", 3), {"c": np.array(True)}), tmp_path, "Loops have no fixed graph")


def test_a_branch_chosen_by_the_data(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])], "g", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"]),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph),
    ]
    refused(model_of(nodes), tmp_path, "chooses its branch by the data")


def test_custom_domains_and_functions(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Fast", ["x"], ["y"], name="f", domain="com.example")])
    refused(model, tmp_path, r"outside the ONNX standard: com\.example::Fast \(node 'f'\)")


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([("Add", "x b", "a"), ("Relu", "a", "b"), ("Neg", "b", "y")], "the graph is cyclic: 'a' needs 'b'"),
        ([("Relu", "a", "y"), ("Relu", "x", "a")], "not in topological order: 'y' reads 'a' before 'a' makes it"),
        ([("Relu", "ghost", "y")], "reads 'ghost', which nothing makes"),
        ([("Relu", "x", "y"), ("Neg", "x", "y")], "make 'y'; names must be unique"),
        ([("Relu", "x", "x"), ("Neg", "x", "y")], "make 'x'; names must be unique"),
        ([("Relu", "x", "z")], "nothing makes the output 'y'"),
        ([("Relu", "x x", "y")], "not a valid ONNX file"),
    ],
)
def test_graphs_that_are_none(nodes: list[tuple[str, str, str]], text: str, tmp_path: Path) -> None:
    refused(model_of([helper.make_node(op, i.split(), o.split()) for op, i, o in nodes]), tmp_path, text)


def test_twice_the_same_name(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])], weights={"b": rand(3)})
    model.graph.initializer.append(model.graph.initializer[0])
    refused(model, tmp_path, "the initialiser 'b' is there twice")


@pytest.mark.parametrize(
    ("node", "weights", "text"),
    [
        (("Add", "x s", "y"), {"s": rand(7)}, r"node 'y' \(Add, opset 17\) with a batch of 2"),
        (("Reshape", "x x", "y"), {}, "not a valid ONNX file|depends on the data"),
        (("Range", "x x x", "y"), {}, "reads the data; this operator is read only in the arithmetic of shapes"),
        (("Dropout", "x", "y m"), {}, "'m', which is used"),
        (("Conv", "x w", "y"), {"w": rand(2, 3, 3, 3)}, "a convolution or pooling over 0 axes"),
    ],
)
def test_nodes_that_do_not_fit(node: tuple[str, str, str], weights: Any, text: str, tmp_path: Path) -> None:
    op, inputs, made = node
    nodes = [helper.make_node(op, inputs.split(), made.split())]
    outputs = ("y", "m") if op == "Dropout" else ("y",)
    refused(model_of(nodes, ("n", 3), weights, outputs), tmp_path, text)


def test_training_mode_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("BatchNormalization", ["x", *"abcd"], ["y", "m", "v"], training_mode=1)
    model = model_of([node], ("n", 4), {k: rand(4, low=0.5) for k in "abcd"})
    refused(model, tmp_path, "export the network in eval mode")


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "text"),
    [
        ([("ConstantOfShape", "s", "c"), ("Add", "x c", "y")], ("n", 3), {"s": ints(2**20, 2**20)}, "the limit is"),
        ([("Expand", "w s", "c"), ("Add", "x c", "y")], ("n", 3), {"w": rand(1), "s": ints(2**31, 2**31)}, "opset 17"),
        ([("Tile", "x r", "y")], ("n", 3), {"r": ints(1, 2**40)}, r"it makes a tensor of the shape \(2, 3298534883328"),
        ([("Relu", "x", "y")], ("n", 2**40), {}, "the declared input is too large"),
        ([("Relu", "x", "y")], ("n", 2**62, 2**62), {}, "the declared input is too large"),
        (
            [("Range", "a b c", "r"), ("Add", "x r", "y")],
            ("n", 3),
            {"a": np.array(0), "b": np.array(2**50), "c": np.array(1)},
            "not of a sensible length",
        ),
    ],
)
def test_sizes_are_bounded(nodes: Any, shape: Any, weights: Any, text: str, tmp_path: Path) -> None:
    made = [helper.make_node(op, i.split(), o.split()) for op, i, o in nodes]
    refused(model_of(made, shape, weights), tmp_path, text)


@pytest.mark.parametrize(
    ("dims", "data", "text"),
    [
        ([2**40, 2**40], b"\0" * 12, r"more than \d+ bytes"),
        ([-3], b"\0" * 12, "negative"),
        ([4], b"\0" * 12, "holds 12 bytes, its shape"),
        ([3], None, "cannot be read"),
    ],
)
def test_tensors_that_lie(dims: list[int], data: bytes | None, text: str, tmp_path: Path) -> None:
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])])
    proto = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=dims)
    if data is not None:
        proto.raw_data = data
    model.graph.initializer.append(proto)
    refused(model, tmp_path, f"not a valid ONNX file|{text}")
    with pytest.raises(OnnxError, match=text):
        onnx_tensors.tensor_of(proto, None)


# --- external data --------------------------------------------------------------------------------------------------


def with_external(location: str, **more: str) -> Any:
    model = model_of([helper.make_node("Add", ["x", "b"], ["y"])])
    proto = TensorProto(name="b", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        proto.external_data.add(key=key, value=value)
    model.graph.initializer.append(proto)
    return model


def test_external_data_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    values = rand(5)
    (tmp_path / "deep" / "w.bin").write_bytes(values.tobytes())
    for more in ({"offset": "8", "length": "12"}, {"offset": "8"}):
        network = read_onnx(written(with_external("deep/w.bin", **more), tmp_path))
        np.testing.assert_array_equal(network.b.detach().numpy(), values[2:])


@pytest.mark.parametrize(
    "location", ["../w.bin", "a/../../w.bin", "/etc/passwd", "", "C:\\w.bin", "..\\w.bin", "\\\\host\\w.bin", "a\0b"]
)
def test_external_data_outside_by_name(location: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    (tmp_path / "model").mkdir()
    refused(with_external(location), tmp_path / "model", "must lie inside the model's own folder")


def test_external_data_outside_by_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "way").symlink_to(tmp_path)
    refused(with_external("link.bin"), folder, "a link out of the model's folder")
    refused(with_external("way/w.bin"), folder, "a link out of the model's folder")
    refused(with_external("inner"), folder, "not a plain file")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"offset": "4"}, "asks for 12 bytes from 4 on of 'w.bin', which has 12"),
        ({"length": str(2**40)}, "its shape .* needs 12"),
        ({"offset": "-4"}, "from -4 on"),
        ({"offset": "many"}, "not a number"),
        ({"length": "8"}, "needs 12"),
    ],
)
def test_external_data_that_is_not_there(more: dict[str, str], text: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 12)
    refused(with_external("w.bin", **more), tmp_path, text)
    refused(with_external("gone.bin"), tmp_path, "'gone.bin' of tensor 'b' cannot be read")


# --- broken files ---------------------------------------------------------------------------------------------------


def test_not_a_file_empty_or_something_else(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="is not a file"):
        read_onnx(tmp_path)
    for name, data in {"empty": b"", "picture": b"\x89PNG\r\n\x1a\n" + bytes(100), "text": b"hello, world"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(OnnxError, match=name):
            read_onnx(tmp_path / name)


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    """A file cut anywhere is refused, or is one whose weights are all there."""
    whole = flattened_by_hand().SerializeToString()
    for end in range(0, len(whole), 3):
        path = tmp_path / "cut.onnx"
        path.write_bytes(whole[:end])
        try:
            read_onnx(path)
        except OnnxError as error:
            assert "cut.onnx" in str(error) or "Tensor" in str(error)  # noqa: PT017


def test_mutated_files_never_crash(tmp_path: Path) -> None:
    whole = flattened_by_hand().SerializeToString()
    random = np.random.default_rng(0)
    read = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(int(random.integers(1, 6))):
            data[random.integers(len(data))] = random.integers(256)
        path = tmp_path / "mutated.onnx"
        path.write_bytes(bytes(data))
        try:
            read_onnx(path)
            read += 1
        except OnnxError:
            pass
    assert 0 < read < 400


def test_tables_do_not_name_what_onnx_does_not_have() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert set(itertools.chain(OPS, SHAPES)) <= known
    assert set(onnx_file.__all__) <= set(vars(onnx_file))
    assert set(onnx_import.__all__) <= set(vars(onnx_import))
