"""A network that was read gives what its file gives: test data beside it, or onnxruntime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.errors import LoadError, MismatchError
from deeptaylor.models.onnx import onnx_comparison
from deeptaylor.models.onnx.importer import read_onnx
from deeptaylor.models.onnx.operators import OPERATORS, Operator
from onnx_files import helper, ints, model_of, numpy_helper, ours, rand, runtime, written


def relu(folder: Path, shape: tuple[int | str, ...] = ("n", 3)) -> Path:
    return written(model_of([helper.make_node("Relu", ["x"], ["y"])], shape), folder)


def store(folder: Path, x: Any, y: Any, k: int = 0) -> None:
    place = folder / f"test_data_set_{k}"
    place.mkdir()
    (place / "input_0.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    (place / "output_0.pb").write_bytes(numpy_helper.from_array(y).SerializeToString())


def test_stored_outputs_that_agree(tmp_path: Path) -> None:
    x = rand(2, 3)
    store(tmp_path, x, np.maximum(x, 0))
    assert read_onnx(relu(tmp_path)).notes == ()


def test_stored_outputs_that_differ(tmp_path: Path) -> None:
    x = rand(2, 3)
    store(tmp_path, x, np.maximum(x, 0))
    store(tmp_path, x, np.maximum(x, 0) + np.float32(0.5), 1)
    with pytest.raises(MismatchError, match=r"output 'y' differs by 0\.5 from what .* test_data_set_1 say"):
        read_onnx(relu(tmp_path))
    with pytest.raises(LoadError, match=r"differs by 0\.5"):
        dt.load(tmp_path / "model.onnx", domain=dt.Real(), class_names=None)


def test_stored_outputs_of_another_shape(tmp_path: Path) -> None:
    store(tmp_path, rand(2, 3), rand(2, 3, 1))
    with pytest.raises(MismatchError, match=r"has the shape \(2, 3\) here; .* say \(2, 3, 1\)"):
        read_onnx(relu(tmp_path))


@pytest.mark.parametrize("why", ["of another input", "of one of two files", "damaged", "a pipe"])
def test_stored_outputs_that_cannot_be_of_this_file_are_left_alone(why: str, tmp_path: Path) -> None:
    import os

    store(tmp_path, rand(2, 4) if why == "of another input" else rand(2, 3), rand(2, 3))
    if why == "of one of two files":
        (tmp_path / "other.onnx").write_bytes(b"")
    elif why == "damaged":
        (tmp_path / "test_data_set_0" / "output_0.pb").write_bytes(b"\xff\xff\xff")
    elif why == "a pipe":
        (tmp_path / "test_data_set_0" / "output_0.pb").unlink()
        os.mkfifo(tmp_path / "test_data_set_0" / "output_0.pb")
    assert read_onnx(relu(tmp_path)).notes == ()


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_an_operator_read_wrong_is_noticed(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = {np.float32: 1, np.float64: 11, np.float16: 10}[kind]
    path = written(model_of([helper.make_node("Relu", ["x"], ["y"])], ("n", 3), kind=number), tmp_path)
    assert read_onnx(path).notes == ()

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 1.1

    monkeypatch.setitem(OPERATORS, "Relu", Operator.of(wrong))
    with pytest.raises(MismatchError, match=r"differs by \S+ from what onnxruntime gives, where outputs reach"):
        read_onnx(path)


def spread_of_bytes() -> Any:
    """The variance of whole numbers, as the mean of squares minus the square of the mean."""
    n = helper.make_node
    nodes = [
        n("Cast", ["x"], ["real"], to=1),
        n("Add", ["real", "large"], ["h"]),
        n("Mul", ["h", "h"], ["squares"]),
        n("ReduceMean", ["squares"], ["a"], axes=[1]),
        n("ReduceMean", ["h"], ["mean"], axes=[1]),
        n("Mul", ["mean", "mean"], ["b"]),
        n("Sub", ["a", "b"], ["y"]),
    ]
    model = model_of(nodes, ("n", 997), {"large": np.float32([[700.0]])}, kind=6)
    model.graph.output[0].type.tensor_type.elem_type = 1
    return model


def test_bytes_are_compared_in_their_range_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(spread_of_bytes(), tmp_path)
    monkeypatch.setattr(onnx_comparison, "_ROUNDING", 0)  # of 0 and 1 the difference is not excused
    assert read_onnx(path).notes == ()
    monkeypatch.setattr(onnx_comparison, "_BYTES", 2)
    with pytest.raises(MismatchError, match="differs by"):
        read_onnx(path)


def test_whole_numbers_stay_within_a_table(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    model = model_of(nodes, ("n", 4), {"table": rand(7, 2)}, kind=7)
    model.graph.output[0].type.tensor_type.elem_type = 1
    assert onnx_comparison._count_rows(model) == 7
    assert read_onnx(written(model, tmp_path)).notes == ()


def test_what_onnxruntime_cannot_run_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no kernel for this node")

    path = relu(tmp_path)
    monkeypatch.setattr(onnxruntime, "InferenceSession", fails)
    assert read_onnx(path).notes == (
        "model.onnx: not compared with onnxruntime, which cannot run it: no kernel for this node",
    )


def test_open_sizes_and_large_weights_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "leaves sizes of its input open" in read_onnx(relu(tmp_path, ("n", "c"))).notes[0]
    loaded = dt.load(tmp_path / "model.onnx", domain=dt.Real(), class_names=None)
    assert "leaves sizes of its input open" in loaded.notes[0]  # type: ignore[union-attr]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = written(model_of(nodes, ("n", 3), {"w": rand(3, 2)}), tmp_path)
    monkeypatch.setattr(onnx_comparison, "_MOST_BYTES", 20)
    assert "its weights are larger" in read_onnx(path).notes[0]


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert read_onnx(relu(tmp_path)).notes == ()


@pytest.mark.parametrize("shape", [(2, 5, 1, 1), (2, 5, 1)])
def test_trailing_axes_of_length_one_are_kept(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A file that is not of photographs has the outputs that it says."""
    path = written(model_of([helper.make_node("Relu", ["x"], ["y"])], ("n", *shape[1:])), tmp_path)
    loaded = dt.load(path, domain=dt.Real(), class_names=None)
    assert loaded.network(torch.zeros(shape)).shape == shape  # type: ignore[union-attr]
    assert loaded.notes == ()  # type: ignore[union-attr]


def test_classes_of_photographs_in_one_pixel_are_noted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"]),
        helper.make_node("GlobalAveragePool", ["h"], ["y"]),
    ]
    path = written(model_of(nodes, ("n", 3, 8, 8), {"w": rand(5, 3, 3, 3)}), tmp_path)
    how = dt.Preparation(
        size=8, resize=8, channels="RGB", white=1, mean=(0, 0, 0), std=(1, 1, 1), interpolation="bilinear"
    )
    loaded = dt.load(path, preparation=how, class_names=None)
    assert loaded.network(torch.zeros(2, 3, 8, 8)).shape == (2, 5)  # type: ignore[union-attr]
    said = "model.onnx: outputs of the shape (batch, classes, 1, 1) are returned as (batch, classes)"
    assert loaded.notes == (said,)  # type: ignore[union-attr]


def test_values_inside_the_graph(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    network = read_onnx(written(model_of(nodes), tmp_path), outputs=["h"])
    assert network.notes == ("model.onnx: not compared with onnxruntime: h is not an output of the file",)


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "outputs"),
    [
        ([helper.make_node("Split", ["x"], ["y", "z", "u"], axis=0)], (6, 2), {}, ("y", "z", "u")),
        ([helper.make_node("Gather", ["x", "i"], ["y"], axis=0)], (10, 2), {"i": ints(0, -9, -10)}, ("y",)),
        ([helper.make_node("Reshape", ["x", "i"], ["y"])], (2, 3, 4), {"i": ints(-1, 2, 3, 4)}, ("y",)),
        ([helper.make_node("Slice", ["x", "s", "e"], ["y"])], (4, 5), {"s": ints(9), "e": ints(12)}, ("y",)),
    ],
    ids=["Split", "Gather", "Reshape", "Slice"],
)
def test_files_that_put_samples_together(nodes: Any, shape: Any, weights: Any, outputs: Any, tmp_path: Path) -> None:
    """They are read as they are, and explained or refused."""
    path = written(model_of(nodes, shape, weights, outputs), tmp_path)
    x = rand(*shape)
    for here, there in zip(ours(read_onnx(path), x), runtime(path, {"x": x}), strict=True):
        np.testing.assert_array_equal(here, there)
    network = read_onnx(path, outputs=outputs[:1])
    with pytest.raises(dt.DeepTaylorError):
        dt.explain(network, torch.from_numpy(x), domain=dt.Real(), target=lambda o: o.flatten(1).sum(1))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64])
def test_unsigned_arithmetic_is_refused(op: str, kind: Any, tmp_path: Path) -> None:
    """It wraps around at an end that wider numbers do not have."""
    number = {np.uint16: 4, np.uint32: 12, np.uint64: 13}[kind]
    nodes = [helper.make_node(op, ["x", "w"], ["y"])]
    path = written(model_of(nodes, (2, 3), {"w": np.ones(3, kind)}, kind=number), tmp_path)
    with pytest.raises(dt.LoadError, match="unsigned whole numbers of 16 or more bits"):
        read_onnx(path)


def test_the_extreme_of_no_elements(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceMax", ["x", "a"], ["y"], keepdims=1)]
    path = written(model_of(nodes, (2, 0, 4), {"a": ints(1)}, opset=20), tmp_path)
    assert (ours(read_onnx(path), np.zeros((2, 0, 4), np.float32))[0] == -np.inf).all()
