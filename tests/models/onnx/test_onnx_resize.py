"""Resize in every mode, and ConvTranspose in every size, against the standard's own reference and onnxruntime."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.models.onnx import shape_operators
from deeptaylor.models.onnx.importer import read_onnx
from onnx_files import agree, helper, ints, model_of, onnx, ours, rand, written

PLACES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
ROUNDED = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
MODES: list[dict[str, Any]] = [
    *({"mode": "nearest", "nearest_mode": r} for r in ROUNDED),
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
]
# As sizes, and as factors that make whole sizes: of others, the two disagree in some modes.
TARGETS: list[dict[str, Any]] = [
    {"sizes": (2, 2, 8, 15)}, {"sizes": (2, 2, 7, 3)}, {"sizes": (2, 2, 1, 1)}, {"sizes": (2, 2, 4, 10)},
    {"scales": (1, 1, 2, 3)}, {"scales": (1, 1, 0.5, 0.2)}, {"scales": (1, 1, 1.5, 2.4)},
]  # fmt: skip


def resize(folder: Path, target: dict[str, Any], opset: int = 19, shape: Any = (2, 2, 4, 5), **how: Any) -> Path:
    if "scales" in target:
        inputs, weights = ["x", "", "s"], {"s": np.array(target["scales"], np.float32)}
    else:
        inputs, weights = ["x", "", "", "s"], {"s": ints(*target["sizes"])}
    return written(model_of([helper.make_node("Resize", inputs, ["y"], **how)], shape, weights, opset=opset), folder)


def reference(path: Path, x: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_as_the_reference(places: str, target: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)  # it rounds some corners otherwise
    x = rand(2, 2, 4, 5)
    for how in MODES:
        path = resize(tmp_path, target, coordinate_transformation_mode=places, **how)
        there = reference(path, x)
        np.testing.assert_allclose(ours(read_onnx(path), x)[0], there, rtol=1e-5, atol=1e-5, err_msg=str(how))


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_as_onnxruntime(mode: str, opset: int, tmp_path: Path) -> None:
    for places, target in itertools.product(("half_pixel", "asymmetric"), TARGETS):
        if mode == "linear" and target.get("scales", ("", "", 0))[2] == 0.5:
            continue
        agree(resize(tmp_path, target, opset, mode=mode, coordinate_transformation_mode=places), rand(2, 2, 4, 5))


def test_factors_are_not_rounded_to_sizes(tmp_path: Path) -> None:
    path = resize(tmp_path, {"scales": (1, 1, 0.6, 0.6)}, shape=(1, 1, 2, 4), mode="linear")
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    np.testing.assert_allclose(ours(read_onnx(path), x)[0].reshape(-1), [2.6666665, 4.3333331], rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_before_opset_11(mode: str, tmp_path: Path) -> None:
    weights = {"s": np.array([1, 1, 2, 3], np.float32)}
    for op, opset in (("Resize", 10), ("Upsample", 9)):
        model = model_of([helper.make_node(op, ["x", "s"], ["y"], mode=mode)], ("n", 3, 4, 5), weights, opset=opset)
        agree(written(model, tmp_path), rand(2, 3, 4, 5))


def test_axes_and_proportions(tmp_path: Path) -> None:
    for policy, axes in itertools.product(("stretch", "not_larger", "not_smaller"), ([2, 3], [3, 2])):
        path = resize(tmp_path, {"sizes": (7, 8)}, axes=axes, keep_aspect_ratio_policy=policy, mode="nearest")
        agree(path, rand(2, 2, 4, 5))


@pytest.mark.parametrize(
    ("how", "target", "said"),
    [
        ({"mode": "linear"}, {"sizes": (4, 2, 4, 5)}, "resizes along the batch"),
        ({"mode": "linear"}, {"scales": (2, 1, 1, 1)}, "resizes along the batch"),
        ({"mode": "nearest", "exclude_outside": 1}, {"scales": (1, 1, 2, 2)}, "linear and cubic resizing alone"),
        ({"mode": "area"}, {"scales": (1, 1, 2, 2)}, "the mode 'area'"),
        ({"coordinate_transformation_mode": "odd"}, {"scales": (1, 1, 2, 2)}, "'odd' is not known"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, {"scales": (1, 1, 2, 2)}, "region of interest"),
    ],
)
def test_refused_by_name(how: dict[str, Any], target: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(dt.LoadError, match=said):
        read_onnx(resize(tmp_path, target, **how))


def network(folder: Path, **how: Any) -> Path:
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w"], ["h"], pads=[1] * 4),
        n("Relu", ["h"], ["a"]),
        n("Resize", ["a", "", "s"], ["r"], **how),
        n("Conv", ["r", "v"], ["c"]),
        n("Relu", ["c"], ["d"]),
        n("GlobalAveragePool", ["d"], ["p"]),
        n("Flatten", ["p"], ["y"]),
    ]
    weights = {"w": rand(4, 3, 3, 3), "v": rand(3, 4, 3, 3), "s": np.array([1, 1, 2, 1.6], np.float32)}
    return written(model_of(nodes, ("n", 3, 6, 5), weights, opset=19), folder)


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest"},
        {"mode": "nearest", "nearest_mode": "ceil"},
        {"mode": "linear"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "cubic"},
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", ["returned", "neuron", "spread"])
def test_resized_features_are_explained(bias: Any, how: dict[str, Any], tmp_path: Path) -> None:
    x = torch.from_numpy(rand(3, 3, 6, 5, low=0))
    e = dt.explain(read_onnx(network(tmp_path, **how)), x, domain=dt.Box(0, 1), target=0, bias=bias)
    assert e.check().accounted


def test_a_matrix_is_explained_as_an_interpolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(rand(3, 3, 6, 5, low=0))
    for how in ({"mode": "linear"}, {"mode": "nearest", "nearest_mode": "floor"}):
        path = network(tmp_path, **how)
        usual = dt.explain(read_onnx(path).double(), x.double(), domain=dt.Box(0, 1), target=0).relevance
        with monkeypatch.context() as patch:
            patch.setattr(shape_operators._AxisResize, "by_torch", lambda *_: False)
            other = dt.explain(read_onnx(path).double(), x.double(), domain=dt.Box(0, 1), target=0).relevance
        torch.testing.assert_close(other, usual, rtol=1e-6, atol=1e-8)


def test_transposed_convolution_of_a_given_shape(tmp_path: Path) -> None:
    """Where output_shape is larger than strides make it, what is lacking comes after."""
    compared, refused = 0, []
    for auto_pad, shape, stride, extra in itertools.product(
        ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), (None, 6, 7, 8, 9, 10, 12), (1, 2, 3), (0, 1)
    ):
        how: dict[str, Any] = {"strides": [stride], "auto_pad": auto_pad, "output_padding": [extra]}
        if extra >= stride:
            continue
        if shape is not None:
            how["output_shape"] = [shape]
        nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **how)]
        path = written(model_of(nodes, ("n", 2, 3), {"w": rand(2, 3, 4), "b": rand(3)}), tmp_path)
        try:
            runs = not read_onnx(path).notes  # onnxruntime runs fewer than are read
        except dt.LoadError as error:
            refused.append(str(error))
            continue
        if runs:
            agree(path, rand(2, 2, 3))
            compared += 1
    assert compared > 80
    assert all("is larger than strides" in said for said in refused)
