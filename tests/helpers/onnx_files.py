"""ONNX files written node by node, and what onnxruntime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeptaylor.models.onnx.importer import OnnxNetwork, read_onnx

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
helper, numpy_helper, TensorProto = onnx.helper, onnx.numpy_helper, onnx.TensorProto

Array = np.ndarray[Any, Any]


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
    for here, there in zip(ours(network, x), runtime(path, {network.input_names[0]: x}), strict=True):
        assert here.shape == there.shape
        largest = float(np.abs(there).max(where=np.isfinite(there), initial=0))
        np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance * min(1, largest))
    return network


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
