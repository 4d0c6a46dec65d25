"""ONNX files: every operator against onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeptaylor.models.onnx import file as onnx_file
from deeptaylor.models.onnx import importer as onnx_import
from deeptaylor.models.onnx.importer import read_onnx
from deeptaylor.models.onnx.operators import OPERATORS
from deeptaylor.models.onnx.shape_operators import SHAPE_OPERATORS
from onnx_files import TensorProto, agree, helper, ints, model_of, onnx, ours, rand, written


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
    *[case(op, (2, 3), opsets=(13,)) for op in ("Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Tan")],
    *[case(op, (2, 3), opsets=(13,)) for op in ("Acosh", "Ceil", "Floor", "Round", "Sign", "Softsign")],
    *[case(op, (2, 3, 4), opsets=(11, 13), axes=[2]) for op in ("ReduceL1", "ReduceSumSquare", "ReduceLogSumExp")],
    case("ReduceLogSum", (2, 3, 4), opsets=(11, 13), axes=[2]),
    case("SpaceToDepth", (2, 2, 4, 6), opsets=(1, 13), blocksize=2),
    case("Trilu", (2, 3, 4), opsets=(14,)),
    case("Trilu", (2, 3, 4), np.array(1), opsets=(14,), upper=0),
    case("CastLike", (2, 3), np.float32([1.0]), opsets=(15,)),
    case("Upsample", (2, 3, 4, 5), np.array([1, 1, 2, 3], np.float32), opsets=(9,), mode="nearest"),
    case("LayerNormalization", (2, 4, 6), rand(6), rand(6), outputs=3),
    case("LpNormalization", (2, 3, 4), opsets=(1, 22), axis=1, p=1),
    case("LpNormalization", (2, 3, 4), axis=-1, p=2),
    case("ReduceProd", (2, 3, 4), opsets=(11, 13), axes=[2]),
    case("ReduceProd", (2, 3, 4), ints(1, 2), opsets=(18,), keepdims=0),
    case("Pow", (2, 3, 4), rand(3, 4, low=0.5, high=2), low=0.2),
    case("Clip", (2, 3, 4), np.float32(-0.3), ""),
    case("Shrink", (2, 3, 4), opsets=(9,), lambd=0.4, bias=0.1),
    case("Mod", (2, 3, 4), rand(4, low=0.3), opsets=(13,), fmod=1),
    case("Det", (2, 3, 3), opsets=(11, 22)),
    case("Hardmax", (2, 3, 4), opsets=(11, 13)),
    case("ArgMax", (2, 3, 4), opsets=(11, 13), axis=2, keepdims=0),
    case("ArgMin", (2, 3, 4), opsets=(13,), axis=1, select_last_index=1),
    case("TopK", (2, 3, 5), ints(2), opsets=(11, 24), axis=2, outputs=2),
    case("TopK", (2, 3, 5), ints(3), axis=1, largest=0, outputs=2),
    case("Compress", (2, 3, 4), np.array([False, True, True]), opsets=(11,), axis=1),
    case("GatherElements", (2, 3, 4), np.tile(ints(2, 0, -1, 1), (2, 2, 1)), opsets=(11, 13), axis=1),
    case("ScatterElements", (2, 3, 4), np.tile(ints(2, 0, -1, 1), (2, 1, 1)), rand(2, 1, 4), opsets=(11, 16), axis=1),
    case("ScatterElements", (2, 3, 4), np.tile(ints(1), (2, 1, 4)), rand(2, 1, 4), opsets=(16,), reduction="add"),
    case("Scatter", (2, 3, 4), np.tile(ints(2, 0, 1, 1), (2, 1, 1)), rand(2, 1, 4), opsets=(9,), axis=1),
    case("ScatterND", (2, 3, 4), np.array([[0, 2], [1, -1]]), rand(2, 4), opsets=(11, 16)),
    case("ScatterND", (2, 3, 4), np.array([[1, 2], [1, 2]]), rand(2, 4), opsets=(16,), reduction="add"),
    case("ReverseSequence", (2, 3, 4), ints(3, 2), opsets=(10,), time_axis=1, batch_axis=0),
    case("CenterCropPad", (2, 5, 4), ints(3, 7), opsets=(18,), axes=[1, 2]),
    case("CumSum", (2, 3, 4), np.array(2), opsets=(11, 14)),
    case("CumSum", (2, 3, 4), np.array(1), opsets=(14,), exclusive=1, reverse=1),
    case("EyeLike", (3, 4), opsets=(9, 22), k=1),
    case("GridSample", (2, 3, 4, 5), rand(2, 6, 7, 2) * 1.2, opsets=(20, 22), mode="linear"),
    case("GridSample", (2, 3, 4, 5), rand(2, 6, 7, 2) * 1.2, opsets=(16,), mode="nearest", padding_mode="border"),
    case("AffineGrid", (2, 2, 3), ints(2, 1, 5, 6), opsets=(20,), align_corners=1),
    case("LSTM", (5, 2, 3), rand(2, 16, 3), rand(2, 16, 4), rand(2, 32), opsets=(7, 14, 22),
         hidden_size=4, direction="bidirectional", outputs=3),
    case("LSTM", (5, 2, 3), rand(1, 16, 3), rand(1, 16, 4), rand(1, 32), ints(3, 5).astype(np.int32), rand(1, 2, 4),
         rand(1, 2, 4) / 2, rand(1, 12), hidden_size=4, direction="reverse", outputs=3),
    case("GRU", (5, 2, 3), rand(2, 12, 3), rand(2, 12, 4), rand(2, 24), opsets=(7, 14),
         hidden_size=4, direction="bidirectional", outputs=2),
    case("GRU", (5, 2, 3), rand(1, 12, 3), rand(1, 12, 4), rand(1, 24), "", rand(1, 2, 4), hidden_size=4,
         linear_before_reset=1, clip=0.6, outputs=2),
    case("RNN", (5, 2, 3), rand(1, 4, 3), rand(1, 4, 4), rand(1, 8), opsets=(7, 14), hidden_size=4, outputs=2),
    case("RNN", (5, 2, 3), rand(1, 4, 3), rand(1, 4, 4), hidden_size=4, activations=["LeakyRelu"],
         activation_alpha=[0.3], outputs=2),
    case("Attention", (2, 3, 4, 5), rand(2, 3, 6, 5), rand(2, 3, 6, 2), opsets=(23,)),
    case("Attention", (2, 4, 12), rand(2, 4, 6), rand(2, 4, 8), rand(4, 4), opsets=(23,),
         q_num_heads=4, kv_num_heads=2, is_causal=1, softcap=2.0),
    case("RotaryEmbedding", (2, 3, 4, 6), rand(8, 3), rand(8, 3), np.tile(ints(0, 5, 1, 2), (2, 1)), opsets=(23,)),
    case("RotaryEmbedding", (2, 4, 12), rand(2, 4, 2), rand(2, 4, 2), opsets=(23,), num_heads=2, interleaved=1,
         rotary_embedding_dim=4),
    case("QuantizeLinear", (2, 3, 4), np.float32(0.02), np.uint8(100), opsets=(10, 13, 21)),
    case("QuantizeLinear", (2, 3, 4), rand(3, low=0.01, high=0.02), np.zeros(3, np.int8), axis=1),
    case("DynamicQuantizeLinear", (2, 3, 4), opsets=(11,), outputs=3),
]  # fmt: skip


# Operators whose constants have a row for each sample, or whose samples lie along another axis.
WHOLE = {
    "Concat", "GatherND", "Expand", "Resize", "MatMul", "GatherElements", "ScatterElements", "Scatter", "ScatterND",
    "ReverseSequence", "EyeLike", "GridSample", "AffineGrid", "LSTM", "GRU", "RNN", "Attention", "RotaryEmbedding",
    "DynamicQuantizeLinear",
}  # fmt: skip
KINDS = {  # of outputs that are not float32
    "ArgMax": (TensorProto.INT64,), "ArgMin": (TensorProto.INT64,), "TopK": (TensorProto.FLOAT, TensorProto.INT64),
    "DynamicQuantizeLinear": (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8),
}  # fmt: skip


def file_of(c: Case, opset: int, folder: Path) -> Path:
    names = ["" if isinstance(v, str) else f"c{k}" for k, v in enumerate(c.constants)]
    constants = {n: np.asarray(v) for n, v in zip(names, c.constants, strict=True) if n}
    inputs = ["x", *names] if c.first else [*names, "x"]
    if c.op == "Where":
        inputs, constants = ["c0", "x", "zero"], {**constants, "zero": np.float32([0.25])}
    outputs = [f"y{k}" for k in range(c.outputs)]
    shape: list[int | str] = list(c.shape)
    if c.op not in WHOLE and not c.attributes.get("transA"):
        shape[0] = "n"
    model = model_of([helper.make_node(c.op, inputs, outputs, **c.attributes)], shape, constants, outputs, opset)
    if c.op == "Cast":
        model.graph.output[0].type.tensor_type.elem_type = c.attributes["to"]
    for output, kind in zip(model.graph.output, KINDS.get(c.op, ()), strict=False):
        output.type.tensor_type.elem_type = kind
    if c.op == "QuantizeLinear":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8 if c.constants[1].shape == () else 3
    return written(model, folder)


@pytest.mark.parametrize(
    ("c", "opset"), [(c, o) for c in CASES for o in c.opsets], ids=[f"{c}-{o}" for c in CASES for o in c.opsets]
)
def test_operator(c: Case, opset: int, tmp_path: Path) -> None:
    x = rand(*c.shape, low=c.low, high=c.high)
    agree(file_of(c, opset, tmp_path), x)


COMPARED = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


@pytest.mark.parametrize("op", COMPARED)
@pytest.mark.parametrize("joined", ["And", "Or", "Xor"])
def test_comparisons(op: str, joined: str, tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [
        n(op, ["x", "w"], ["a"]),
        n("IsInf", ["x"], ["i"]),
        n("Not", ["i"], ["b"]),
        n(joined, ["a", "b"], ["c"]),
        n("Cast", ["c"], ["y"], to=1),
    ]
    x = np.float32([[0, 1, -1], [np.inf, 0, 2]])
    agree(written(model_of(nodes, ("n", 3), {"w": np.float32([0, 1, 2])}), tmp_path), x)


def test_every_operator_is_tested() -> None:
    elsewhere = {"ConstantOfShape", "IsNaN", "Swish", "IsInf", "And", "Or", "Xor", "Not", *COMPARED}
    elsewhere |= {
        "OneHot",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "BitwiseNot",
    }  # of whole numbers, below
    elsewhere |= {"DequantizeLinear", "MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"}  # below
    # The standard's own tests alone have these (test_onnx_node_suite.py): onnxruntime lacks them, or they are losses.
    elsewhere |= {"SwiGLU", "LinearAttention", "CausalConvWithState", "TensorScatter", "CumProd"}
    elsewhere |= {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
    assert set(OPERATORS) - {c.op for c in CASES} == elsewhere


def test_whole_numbers(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [
        n("BitShift", ["x", "s"], ["a"], direction="LEFT"),
        n("BitwiseNot", ["a"], ["b"]),
        n("BitwiseAnd", ["b", "m"], ["c"]),
        n("BitwiseOr", ["c", "s"], ["d"]),
        n("BitwiseXor", ["d", "x"], ["y"]),
    ]
    weights = {"s": np.uint8([1, 2, 3]), "m": np.uint8([85, 15, 240])}
    model = model_of(nodes, ("n", 3), weights, opset=18, kind=TensorProto.UINT8)
    x = np.uint8([[1, 2, 250], [0, 17, 3]])
    [y] = ours(read_onnx(written(model, tmp_path)), x)
    shifted = ~(x << weights["s"]) & weights["m"]
    np.testing.assert_array_equal(y, (shifted | weights["s"]) ^ x)


def test_one_hot(tmp_path: Path) -> None:
    node = helper.make_node("OneHot", ["x", "d", "v"], ["y"], axis=1)
    model = model_of([node], ("n", 3), {"d": np.array(4), "v": np.float32([-1, 2])}, kind=TensorProto.INT64)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    agree(written(model, tmp_path), np.array([[0, 3, -1], [1, 4, 2]]))


def quantised(op: str, x_shape: tuple[int, ...], w: Any, *more: Any, **attributes: Any) -> Any:
    """A network of one quantised product: its input is float, and is quantised first; the result is float again."""
    n, scale, zero = helper.make_node, np.float32(0.02), np.uint8(120)
    constants = {"xs": scale, "xz": zero, "w": w, **{f"m{k}": v for k, v in enumerate(more)}}
    names = ["q", "xs", "xz", "w", *[k for k in constants if k.startswith("m")]]
    if op.endswith("Integer"):
        names = ["q", "w", "xz", "m0"]
    last = n("Cast", ["z"], ["y"], to=1)
    if not op.endswith("Integer"):
        last = n("DequantizeLinear", ["z", "m2", "m3"], ["y"])
    nodes = [n("QuantizeLinear", ["x", "xs", "xz"], ["q"]), n(op, names, ["z"], **attributes), last]
    return model_of(nodes, ("n", *x_shape), constants)


@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv"])
def test_quantised_products(op: str, tmp_path: Path) -> None:
    conv = "Conv" in op
    shape = (3, 6, 6) if conv else (5, 4)
    w = np.random.default_rng(0).integers(-128, 127, (2, 3, 3, 3) if conv else (4, 3)).astype(np.int8)
    more: tuple[Any, ...] = (np.int8(0),)
    if op.startswith("QLinear"):
        more = (np.float32(0.01), np.int8(0), np.float32(0.05), np.uint8(130))
        if conv:
            more = (*more, np.random.default_rng(1).integers(-500, 500, 2).astype(np.int32))
    model = quantised(op, shape, w, *more, **({"pads": [1, 1, 1, 1]} if conv else {}))
    agree(written(model, tmp_path), rand(2, *shape))


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


def test_tables_do_not_name_what_onnx_does_not_have() -> None:
    known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
    assert set(itertools.chain(OPERATORS, SHAPE_OPERATORS)) <= known
    assert set(onnx_file.__all__) <= set(vars(onnx_file))
    assert set(onnx_import.__all__) <= set(vars(onnx_import))
