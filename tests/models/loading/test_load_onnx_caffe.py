"""`dt.load` of ONNX and Caffe files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from caffe_reference import Layer, caffemodel, prototxt
from deeptaylor.models.loading import model_files
from deeptaylor.models.networks.catalog import CatalogEntry
from loading import NAMES, PREPARATION, SAID, Named, caffe_layers, explained, load_module, refused, small


def onnx_file(path: str, change: Callable[[Any, Any], None] = lambda helper, model: None) -> None:
    """`small` as ONNX, written node by node, and changed."""
    onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    state = {k.replace(".", "_"): v.numpy() for k, v in small().state_dict().items() if v.ndim}
    nodes = [
        helper.make_node("Conv", ["x", "0_weight", "0_bias"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "1_weight", "1_bias", "1_running_mean", "1_running_var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "5_weight", "5_bias"], ["y"], transB=1),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", 1, ["batch", 3, 16, 16])],
        [value("y", 1, ["batch", 3])],
        [numpy_helper.from_array(v, k) for k, v in state.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    change(helper, model)
    onnx.save(model, path)


def test_onnx(folder: Path) -> None:
    onnx_file("a.onnx")
    explained(dt.load(Path("a.onnx"), **SAID))
    refused("a.onnx does not say how photographs are prepared, nor what its classes", "a.onnx")
    larger = dt.Preparation(size=24, resize=24, channels="RGB", white=1, mean=0, std=1, interpolation="box")
    refused(
        "a.onnx takes samples of shape (3, 16, 16), but the preparation makes (3, 24, 24).",
        "a.onnx",
        preparation=larger,
        class_names=None,
    )


def test_onnx_with_the_channels_last(folder: Path) -> None:
    """As Keras and TensorFlow are exported; the shape that the file declares leaves no doubt."""

    def turn(helper: Any, model: Any) -> None:
        graph = model.graph
        graph.input[0].CopyFrom(helper.make_tensor_value_info("nhwc", 1, ["batch", 16, 16, 3]))
        graph.node.insert(0, helper.make_node("Transpose", ["nhwc"], ["x"], perm=[0, 3, 1, 2]))

    onnx_file("a.onnx", turn)
    model = dt.load("a.onnx", **SAID)
    explained(model)
    assert model.notes == ("the file has the channels last; here they come first",)


def test_onnx_with_several_outputs(folder: Path) -> None:
    def twice(helper: Any, model: Any) -> None:
        model.graph.node.append(helper.make_node("Softmax", ["y"], ["probability"]))
        model.graph.output.insert(0, helper.make_tensor_value_info("probability", 1, ["batch", 3]))

    onnx_file("a.onnx", twice)
    message = refused("a.onnx has 2 outputs; choose one, the logits if they are there: output=", "a.onnx", **SAID)
    assert "There are: probability, y; output='all' returns all" in message
    explained(dt.load("a.onnx", output="y", **SAID))
    both = dt.load("a.onnx", output="all", domain=dt.Real(), class_names=None).network(torch.rand(1, 3, 16, 16))
    assert list(both) == ["probability", "y"]
    refused("has no value called 'z'", "a.onnx", output="z", **SAID)


def test_a_softmax_at_the_end_of_a_file_is_set_aside(folder: Path) -> None:
    def last(helper: Any, model: Any) -> None:
        model.graph.node[-1].output[0] = "logits"
        model.graph.node.append(helper.make_node("Softmax", ["logits"], ["y"]))

    onnx_file("plain.onnx")
    onnx_file("a.onnx", last)
    x = torch.rand(1, 3, 16, 16)
    plain, after = (dt.load(file, **SAID) for file in ("plain.onnx", "a.onnx"))
    explainer = dt.Explainer(after.network, x, domain=after.domain, bias="neuron")
    assert any("softmax" in note and "the logit, is explained" in note for note in explainer.plan.notes)
    expected = dt.Explainer(plain.network, x, domain=plain.domain, bias="neuron").explain(x, target=1)
    torch.testing.assert_close(explainer.explain(x, target=1).relevance, expected.relevance)


@pytest.mark.parametrize("kind", [10, 11, 16], ids=["float16", "float64", "bfloat16"])
def test_onnx_in_another_precision_is_computed_in_float32(folder: Path, kind: int) -> None:
    onnx = pytest.importorskip("onnx", reason="the onnx package is not installed")

    def convert(helper: Any, model: Any) -> None:
        for tensor in model.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor).flatten().tolist()
            tensor.CopyFrom(helper.make_tensor(tensor.name, kind, tensor.dims, values))
        model.graph.node[0].input[0] = "cast"
        model.graph.node.insert(0, helper.make_node("Cast", ["x"], ["cast"], to=kind))

    onnx_file("a.onnx", convert)
    model = dt.load("a.onnx", **SAID)
    assert "a.onnx: other precisions are computed in float32" in model.notes
    x = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(model.network(x), small()(x), rtol=0.02, atol=0.02)
    assert (
        dt.Explainer(model.network, x, domain=model.domain, bias="neuron")
        .explain(x, target=dt.margin())
        .check()
        .accounted
    )


def test_onnx_that_takes_no_photograph(folder: Path) -> None:
    def two(helper: Any, model: Any) -> None:
        model.graph.input.append(helper.make_tensor_value_info("age", 1, ["batch", 1]))

    onnx_file("two.onnx", two)
    refused("two.onnx takes 2 inputs (x, age); a photograph is only one.", "two.onnx", **SAID)

    def whole(helper: Any, model: Any) -> None:
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("pixels", 2, ["batch", 3, 16, 16]))
        model.graph.node.insert(0, helper.make_node("Cast", ["pixels"], ["x"], to=1))

    onnx_file("whole.onnx", whole)
    refused(
        "whole.onnx takes pixels as whole numbers from 0 to 255, but the preparation makes -2 to 3; give white=255,",
        "whole.onnx",
        **SAID,
    )
    pixels = dt.Preparation(size=16, resize=20, channels="RGB", white=255, mean=0, std=1, interpolation="bilinear")
    assert dt.load("whole.onnx", preparation=pixels, class_names=NAMES).domain == dt.Box(0.0, 255.0)

    def mixed(helper: Any, model: Any) -> None:
        model.graph.node[-1].output[0] = "z"
        model.graph.node.append(helper.make_node("Transpose", ["z"], ["y"], perm=[1, 0]))
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4

    onnx_file("mixed.onnx", mixed)
    refused("mixed.onnx takes 4 pictures at once and mixes them; export it with a free batch.", "mixed.onnx", **SAID)


def test_onnx_of_a_future_version(folder: Path) -> None:
    def later(helper: Any, model: Any) -> None:
        model.opset_import[0].version = 1000

    onnx_file("a.onnx", later)
    refused("a.onnx uses opset 1000, and the onnx package here knows opsets up to", "a.onnx", **SAID)


def test_tensors_in_other_files_count_for_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_file("a.onnx")
    onnx = pytest.importorskip("onnx")
    how: dict[str, Any] = {"save_as_external_data": True, "location": "a.data", "size_threshold": 0}
    onnx.save(onnx.load("a.onnx"), "b.onnx", **how)
    size = Path("b.onnx").stat().st_size
    monkeypatch.setattr(model_files, "_measure_free_memory", lambda: 2 * size)
    monkeypatch.setattr("deeptaylor.models.onnx.importer.read_tensor", lambda *_: pytest.fail("it was read"))
    refused("b.onnx would take about", "b.onnx", **SAID)


def test_caffe_with_its_definition(folder: Path) -> None:
    layers = caffe_layers()
    Path("a.caffemodel").write_bytes(caffemodel(layers))
    Path("deploy.prototxt").write_text(prototxt((3, 16, 16), layers))
    model = dt.load("a.caffemodel", prototxt="deploy.prototxt", **SAID)
    x = torch.rand(2, 3, 16, 16)
    assert (
        dt.Explainer(model.network, x, domain=model.domain, bias="neuron")
        .explain(x, target=dt.margin())
        .check()
        .accounted
    )
    message = refused(
        "a.caffemodel holds the weights alone. Give the definition too, prototxt=", "a.caffemodel", **SAID
    )
    assert "such as caffenet, with weights='a.caffemodel'." in message
    refused("a.caffemodel does not say", "a.caffemodel", prototxt="deploy.prototxt")


def test_caffe_where_the_text_says_neither_size_nor_output(folder: Path) -> None:
    """A network's text for training: the size follows from the preparation."""
    layers = caffe_layers()
    Path("a.caffemodel").write_bytes(caffemodel(layers))
    text = prototxt((3, 16, 16), [*layers, Layer("more", "ReLU", "conv", "more")])
    Path("train.prototxt").write_text(re.sub(r"(?s)layer \{.*?\n\}", 'input: "data"', text, count=1))
    refused("it has 2 outputs, ", "a.caffemodel", prototxt="train.prototxt", **SAID)
    model = dt.load("a.caffemodel", prototxt="train.prototxt", output="fc", **SAID)
    assert model.network(torch.rand(2, 3, 16, 16)).shape == (2, 3)
    Path("deploy.prototxt").write_text(prototxt((3, 16, 16), layers))
    larger = dt.Preparation(size=24, resize=24, channels="RGB", white=1, mean=0, std=1, interpolation="box")
    refused(
        "takes samples of shape (3, 16, 16), but the preparation makes (3, 24, 24).",
        "a.caffemodel",
        prototxt="deploy.prototxt",
        preparation=larger,
        class_names=None,
    )


@pytest.mark.parametrize("old", [True, False])
def test_published_caffe_weights_by_name(folder: Path, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = [
        Layer(
            "loss1/fc",
            "InnerProduct",
            "conv",
            "",
            {"inner_product_param": {"num_output": 1}},
            [np.ones((1, 784)), np.ones(1)],
        )
    ]
    content = caffemodel([*caffe_layers(), *heads], old=old)
    Path("a.caffemodel").write_bytes(content)
    sha1 = hashlib.sha1(content).hexdigest()
    known = CatalogEntry(Named, PREPARATION, published=("published.caffemodel", sha1), left_out=("loss1/", "loss2/"))
    monkeypatch.setattr(load_module, "CATALOG", {"googlenet": known})
    monkeypatch.setattr(load_module, "imagenet_names", lambda: NAMES)
    model = dt.load("googlenet", weights="a.caffemodel")
    assert model.notes == ("a.caffemodel: its SHA-1 matches that of the published published.caffemodel",)
    assert model.class_names == NAMES
    w, b = caffe_layers()[2].blobs
    torch.testing.assert_close(model.network.state_dict()["fc.weight"], torch.from_numpy(w))
    torch.testing.assert_close(model.network.state_dict()["fc.bias"], torch.from_numpy(b))

    other = caffe_layers()
    Path("other.caffemodel").write_bytes(caffemodel(other, old=old))
    with pytest.warns(
        dt.DeepTaylorWarning, match=r"other.caffemodel: its SHA-1, \w+, differs from that of the published"
    ):
        model = dt.load("googlenet", weights="other.caffemodel")
    assert "differs from that of the published published.caffemodel" in model.notes[0]


def test_networks_whose_weights_the_user_brings() -> None:
    message = refused(
        "the weights of caffenet are in no package. Download bvlc_reference_caffenet.caffemodel", "caffenet"
    )
    assert "SHA-1 4c8d77deb20ea792f84eb5e6d0a11ca0a8660a46" in message
    assert "give the file: weights='bvlc_reference_caffenet.caffemodel'." in message
    assert "405fc5acd08a3bb12de8ee5e23a96bec22f08204" in refused("bvlc_googlenet.caffemodel", "googlenet")
    refused("there is no file none.caffemodel.", "googlenet", weights="none.caffemodel")
