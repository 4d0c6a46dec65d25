"""Inputs that are given values or sizes when an ONNX file is read, and inputs of one number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.errors import LoadError, MismatchError
from deeptaylor.models.onnx import onnx_comparison
from deeptaylor.models.onnx.file import OnnxError
from deeptaylor.models.onnx.importer import read_onnx
from onnx_files import TensorProto, helper, ints, model_of, rand, written


def value_info(name: str, kind: int, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def with_rate() -> Any:
    """y = x · sr, where sr is one whole number."""
    nodes = [helper.make_node("Cast", ["sr"], ["r"], to=1), helper.make_node("Mul", ["x", "r"], ["y"])]
    model = model_of(nodes, ("n", 3))
    model.graph.input.append(value_info("sr", TensorProto.INT64, []))
    return model


def test_an_input_of_one_number(tmp_path: Path) -> None:
    path, x = written(with_rate(), tmp_path), torch.from_numpy(rand(2, 3))
    network = read_onnx(path)
    assert network.scalars == {"sr"}
    assert network.input_shape == (3,)
    assert network.batch is None
    assert torch.equal(network(x, torch.tensor(4)), 4 * x)
    with pytest.raises(LoadError, match=r"'sr', which is one number and has no samples. Give its value"):
        dt.load(path, domain=dt.Real(), class_names=None)


def test_an_input_at_a_fixed_value(tmp_path: Path) -> None:
    path, x = written(with_rate(), tmp_path), torch.from_numpy(rand(2, 3))
    loaded = dt.load(path, domain=dt.Real(), class_names=None, fixed={"sr": 4})
    network: Any = loaded.network  # type: ignore[union-attr]
    assert network.input_names == ("x",)
    assert network.notes == ()  # compared with onnxruntime, which is fed the value
    assert torch.equal(network(x), 4 * x)
    assert torch.allclose(dt.Explainer(network).between(x, "zeros", 1).relevance[:, 1], 4 * x[:, 1])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fixed": {"rate": 4}}, "has no input 'rate'; it has: x, sr"),
        ({"fixed": {"sr": [4, 5]}}, "the input 'sr' has 0 axes, and the value that it is fixed at has 1"),
        ({"shapes": {"z": (1, 3)}}, "has no input 'z'; it has: x, sr"),
        ({"shapes": {"x": (2, 4)}}, r"the input 'x' has the shape \[None, 3\]; got \[2, 4\]"),
        ({"shapes": {"x": (2, 3, 1)}}, r"the input 'x' has the shape \[None, 3\]; got \[2, 3, 1\]"),
    ],
)
def test_values_and_shapes_that_do_not_fit(given: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match=words):
        read_onnx(written(with_rate(), tmp_path), **given)


def test_values_are_for_onnx_files(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="inputs are fixed, and their shapes said, for an ONNX file"):
        dt.load("squeezenet1_1", fixed={"x": 1})


def sizes_of_data() -> Any:
    """The axes of a sum are an input, and the branch of an If depends on the number of columns."""
    n = helper.make_node
    branches = {
        f"{k}_branch": helper.make_graph([n(op, ["s"], [k])], k, [], [value_info(k, TensorProto.FLOAT, None)])
        for k, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        n("ReduceSum", ["x", "axes"], ["s"], keepdims=1),
        n("Shape", ["x"], ["shape"], start=1, end=2),
        n("Equal", ["shape", "three"], ["is_three"]),
        n("Squeeze", ["is_three"], ["choice"]),
        n("If", ["choice"], ["y"], **branches),
    ]
    model = model_of(nodes, ("n", "m"), {"three": ints(3)})
    model.graph.input.append(value_info("axes", TensorProto.INT64, [1]))
    return model


def test_sizes_that_the_file_leaves_open(tmp_path: Path) -> None:
    path = written(sizes_of_data(), tmp_path)
    with pytest.raises(OnnxError, match=r"It is an input: fix it at a value, fixed=\{'axes': …\}"):
        read_onnx(path)
    with pytest.raises(OnnxError, match=r"If the file leaves sizes open, say them: shapes=\{'x': \(1, …\)\}"):
        read_onnx(path, fixed={"axes": [1]})
    for columns, sign in ((3, 1), (4, -1)):
        network = read_onnx(path, fixed={"axes": [1]}, shapes={"x": (None, columns)})
        x = torch.rand(2, columns)
        assert network.notes == ()
        assert torch.allclose(network(x), sign * x.sum(1, keepdim=True))


def compared_tokens() -> Any:
    """A one-hot code as JAX exports it: tokens[…, None] == 0, 1, 2, …; then a table for each place."""
    n = helper.make_node
    nodes = [
        n("Reshape", ["x", "with_axis"], ["u"]),
        n("Expand", ["u", "wide"], ["e"]),
        n("Equal", ["e", "places"], ["h"]),
        n("Cast", ["h"], ["code"], to=1),
        n("Flatten", ["code"], ["f"]),
        n("MatMul", ["f", "w"], ["y"]),
    ]
    weights = {
        "with_axis": ints(-1, 4, 1), "wide": ints(1, 4, 6), "places": np.arange(6, dtype=np.int32).reshape(1, 1, 6),
        "w": rand(24, 2),
    }  # fmt: skip
    model = model_of(nodes, ("n", 4), weights, kind=TensorProto.INT32)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def test_tokens_that_are_compared_with_numbers_are_looked_up(tmp_path: Path) -> None:
    network = read_onnx(written(compared_tokens(), tmp_path))
    x, x0 = torch.tensor([[0, 3, 5, 1]], dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int32)
    found = dt.Explainer(network).between(x, x0, 1)
    table = torch.from_numpy(rand(24, 2)).reshape(4, 6, 2)[..., 1]
    assert torch.allclose(found.relevance[0], table[torch.arange(4), x[0].long()] - table[:, 0], atol=1e-6)


def magnified() -> Any:
    """The variance as the mean of squares minus the square of the mean, of numbers that are almost equal."""
    n = helper.make_node
    nodes = [
        n("Add", ["x", "large"], ["h"]),
        n("Mul", ["h", "h"], ["squares"]),
        n("ReduceMean", ["squares"], ["a"], axes=[1]),
        n("ReduceMean", ["h"], ["mean"], axes=[1]),
        n("Mul", ["mean", "mean"], ["b"]),
        n("Sub", ["a", "b"], ["y"]),
    ]
    return model_of(nodes, ("n", 997), {"large": np.float32([[700.0]])})


def test_rounding_is_told_from_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(magnified(), tmp_path)
    assert "differ from onnxruntime's by rounding" in read_onnx(path).notes[0]
    monkeypatch.setattr(onnx_comparison, "_ROUNDING", 0)
    with pytest.raises(MismatchError, match="differs by"):
        read_onnx(path)
