"""A small network of photographs as an ONNX file: (n, 3, 24, 24) to four classes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.external_data_helper

from onnx_files import helper, model_of, rand


def small_onnx() -> bytes:
    """Convolution, ReLU, average, scores; all of them above zero."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["y"]),
    ]
    weights = {
        "w": rand(6, 3, 3, 3),
        "v": rand(6, 4, low=0.1),
        "b": np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32),
    }
    written: bytes = model_of(nodes, ("n", 3, 24, 24), weights).SerializeToString()
    return written


def without_weights() -> bytes:
    """The same with the weights of its convolution in a second file, which is not there."""
    model = onnx.load_model_from_string(small_onnx())
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    onnx.external_data_helper.set_external_data(tensor, "network.onnx.data", offset=0, length=len(tensor.raw_data))
    tensor.ClearField("raw_data")
    written: bytes = model.SerializeToString()
    return written


SAID = {
    "file": "mine.onnx",
    "size": "24",
    "resize": "28",
    "channels": "RGB",
    "white": "1",
    "mean": "0.5,0.5,0.5",
    "std": "0.5,0.5,0.5",
    "interpolation": "bilinear",
    "names": "none",
}
