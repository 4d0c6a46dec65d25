"""ONNX files that cannot be read, and those that should not: unknown, hostile, broken."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeptaylor.models.onnx import file as onnx_file
from deeptaylor.models.onnx.file import OnnxError
from deeptaylor.models.onnx.importer import read_onnx
from deeptaylor.support.optional import how_to_install
from onnx_files import TensorProto, flattened_by_hand, helper, ints, model_of, rand, written


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
    nodes = [n("Unique", ["x"], ["a"], name="first"), n("Relu", ["a"], ["b"]), n("RoiAlign", ["b"], ["y"])]
    model = model_of(nodes, ("n", 3))
    refused(
        model,
        tmp_path,
        r"model.onnx \(opset 17\) has operators that are not supported: RoiAlign \(y\); Unique \(first\)",
    )


def test_quantised_networks_and_loops(tmp_path: Path) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), helper.make_node("Cast", ["q"], ["y"], to=1)]
    weights = {"z": np.int32(0), "s": np.float32(1)}
    refused(model_of(nodes, ("n", 3), weights), tmp_path, "quantisation to torch.int32 is not supported|not a valid")
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
        onnx_file.read_tensor(proto, None)


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
    refused(with_external("link.bin"), folder, "links to a place outside the model's folder")
    refused(with_external("way/w.bin"), folder, "links to a place outside the model's folder")
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
