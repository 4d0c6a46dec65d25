"""ONNX files: shapes, constants, names, and the types they are written in."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.models.onnx import file as onnx_file
from deeptaylor.models.onnx.file import OnnxError
from deeptaylor.models.onnx.importer import read_onnx
from onnx_files import (
    TensorProto,
    agree,
    flattened_by_hand,
    helper,
    ints,
    model_of,
    numpy_helper,
    ours,
    rand,
    runtime,
    written,
)


@pytest.mark.parametrize("opset", [11, 17])
def test_shape_arithmetic_leaves_the_batch_free(opset: int, tmp_path: Path) -> None:
    network = agree(written(flattened_by_hand(opset), tmp_path), rand(5, 3, 4))
    assert (network.input_names[0], network.input_shape, network.output_names) == ("x", (3, 4), ("y",))
    assert network.batch is None
    explainer = dt.Explainer(network, torch.rand(2, 3, 4), bias="neuron")
    assert not [note for note in explainer.plan.notes if "batch" in note]
    assert explainer.explain(torch.rand(7, 3, 4)).relevance.shape == (7, 3, 4)


def test_names_come_from_the_file_and_constants_are_folded(tmp_path: Path) -> None:
    network = read_onnx(written(flattened_by_hand(), tmp_path))
    assert dict(network.named_parameters()).keys() == {"weight"}
    assert {"head_MatMul", "forward_1"} <= dict(network.named_modules()).keys()
    assert not network.training
    assert "head_MatMul" in str(dt.Explainer(network, torch.rand(2, 3, 4), bias="neuron").plan)


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
        assert torch.equal(onnx_file.read_tensor(proto, None), torch.tensor(values, dtype=torch.bfloat16))
    for kind in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64, np.bool_):
        array = np.array([0, 1, 1], kind)
        assert onnx_file.read_tensor(numpy_helper.from_array(array, "a"), None).tolist() == array.tolist()


def test_attention_guarded_against_nan_is_plain_softmax(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [n("Softmax", ["x"], ["s"]), n("IsNaN", ["s"], ["q"]), n("Where", ["q", "zero", "s"], ["y"])]
    network = agree(written(model_of(nodes, ("n", 3), {"zero": np.float32(0)}), tmp_path), rand(2, 3))
    assert [step.module for step in network.steps] == ["s"]
