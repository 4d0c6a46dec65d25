"""Caffe's files: what is imported computes what slow NumPy computes; what is broken is refused with a reason."""

from __future__ import annotations

import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeptaylor as dt
from caffe_reference import Layer, Name, blob, caffemodel, chunk, forward, new_layer, number, prototxt, varint
from deeptaylor.models.caffe import CaffeError, CaffeGraph, read_caffe, text, weights
from deeptaylor.models.caffe.text import read_prototxt
from deeptaylor.models.caffe.weights import read_weights

Shape = tuple[int, ...]


def array(*shape: int, seed: int = 0, low: float = -0.5) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(low, 0.7, shape).astype(np.float32)


def conv(name: str, bottom: str, inputs: int, outputs: int, kernel: Shape, bias: bool = True, **p: Any) -> Layer:
    blobs = [array(outputs, inputs // p.get("group", 1), *kernel), array(outputs)]
    if kernel[0] == kernel[1]:
        p["kernel_size"] = kernel[0]
    else:
        p["kernel_h"], p["kernel_w"] = kernel
    if not bias:
        p["bias_term"] = False
    return Layer(
        name, "Convolution", bottom, "", {"convolution_param": {"num_output": outputs, **p}}, blobs[: 1 + bias]
    )


def dense(name: str, bottom: str, inputs: int, outputs: int, **p: Any) -> Layer:
    w = array(inputs, outputs) if p.get("transpose") else array(outputs, inputs)
    return Layer(
        name, "InnerProduct", bottom, "", {"inner_product_param": {"num_output": outputs, **p}}, [w, array(outputs)]
    )


def relu(name: str, blob_name: str) -> Layer:
    return Layer(name, "ReLU", blob_name, blob_name)


def pool(name: str, bottom: str, **p: Any) -> Layer:
    return Layer(name, "Pooling", bottom, "", {"pooling_param": p})


def norm(name: str, bottom: str, **p: Any) -> Layer:
    return Layer(name, "LRN", bottom, "", {"lrn_param": p})


# The first layers of CaffeNet in small: groups, rectangles, LRN, windows over the edge.
CAFFENET = [
    conv("conv1", "data", 4, 6, (3, 2), group=2, pad_h=2, pad_w=1, stride_h=2, stride_w=1),
    relu("relu1", "conv1"),
    pool("pool1", "conv1", pool=Name("MAX"), kernel_size=3, stride=2),
    norm("norm1", "pool1", local_size=3, alpha=0.3, beta=0.6, k=1.5),
    conv("conv2", "norm1", 6, 4, (2, 2), bias=False, pad=1),
    relu("relu2", "conv2"),
    dense("fc3", "conv2", 4 * 4 * 6, 7),
    relu("relu3", "fc3"),
    Layer("drop3", "Dropout", "fc3", "fc3", {"dropout_param": {"dropout_ratio": 0.5}}),
    dense("fc4", "fc3", 7, 3),
    Layer("prob", "Softmax", "fc4"),
]
# An inception module: branches, padded pooling, concatenation, averages over padding.
INCEPTION = [
    conv("a/1x1", "data", 4, 3, (1, 1)),
    relu("a/relu_1x1", "a/1x1"),
    conv("a/3x3", "data", 4, 2, (3, 3), pad=1),
    relu("a/relu_3x3", "a/3x3"),
    pool("a/pool", "data", pool=Name("MAX"), kernel_size=3, stride=1, pad=1),
    Layer("a/output", "Concat", ["a/1x1", "a/3x3", "a/pool"], "", {"concat_param": {"concat_dim": 1}}),
    pool("pool2", "a/output", pool=Name("AVE"), kernel_size=3, stride=2, pad=1),
    norm("norm2", "pool2", alpha=0.2),
    pool("pool3", "norm2", pool=Name("AVE"), kernel_size=2, stride=2),
    conv("b", "pool3", 9, 4, (2, 2)),
    conv("c", "pool3", 9, 4, (2, 2)),
    Layer("sum", "Eltwise", ["b", "c"], "", {"eltwise_param": {"operation": Name("SUM"), "coeff": [0.5, -2.0]}}),
    dense("classifier", "sum", 16, 5),
]
# Residual blocks with normalisation by learned statistics.
RESIDUAL = [
    conv("conv1", "data", 4, 4, (3, 3), pad=2, dilation=2),
    Layer("bn1", "BatchNorm", "conv1", "conv1", {}, [array(4), array(4, low=0.1), np.array([0.999], np.float32)]),
    Layer(
        "scale1", "Scale", "conv1", "conv1", {"scale_param": {"bias_term": True}}, [array(4, seed=1), array(4, seed=2)]
    ),
    relu("relu1", "conv1"),
    Layer("sum", "Eltwise", ["conv1", "data"], "sum"),
    Layer("product", "Eltwise", ["sum", "conv1"], "", {"eltwise_param": {"operation": Name("PROD")}}),
    Layer("largest", "Eltwise", ["product", "sum", "data"], "", {"eltwise_param": {"operation": Name("MAX")}}),
    Layer("prelu", "PReLU", "largest", "", {}, [array(4)]),
    pool("gap", "prelu", pool=Name("AVE"), global_pooling=True),
    dense("fc", "gap", 4, 6, transpose=True),
]
# Whatever else there is.
OTHERS = [
    norm("within", "data", local_size=3, alpha=0.7, norm_region=Name("WITHIN_CHANNEL")),
    Layer("parts", "Slice", "within", ["p", "q"], {"slice_param": {"axis": 1, "slice_point": [1]}}),
    Layer("copies", "Split", "q", ["q1", "q2"]),
    Layer("squash", "Sigmoid", "q1"),
    Layer("tanh", "TanH", "q2"),
    Layer("joined", "Concat", ["p", "squash"], "", {"concat_param": {"axis": -3}}),
    Layer("gate", "Eltwise", ["squash", "tanh"]),
    Layer("abs", "AbsVal", "gate"),
    Layer("power", "Power", "abs", "", {"power_param": {"power": 2.0, "scale": 0.5, "shift": 0.1}}),
    Layer("leaky", "ReLU", "tanh", "", {"relu_param": {"negative_slope": 0.1}}),
    Layer("elu", "ELU", "leaky", "", {"elu_param": {"alpha": 0.7}}),
    Layer("all", "Concat", ["power", "elu", "joined"]),
    Layer("shape", "Reshape", "all", "", {"reshape_param": {"shape": {"dim": [0, 0, -1]}}}),
    dense("rows", "shape", 99, 3, axis=2),
    Layer("flat", "Flatten", "rows"),
    dense("fc", "flat", 30, 2),
]
SHAPE = (4, 11, 9)
NETS = {"caffenet": CAFFENET, "inception": INCEPTION, "residual": RESIDUAL, "others": OTHERS}


class Files:
    """A folder for a network's two files."""

    def __init__(self, folder: Path) -> None:
        self.text, self.model = folder / "net.prototxt", folder / "net.caffemodel"

    def write(self, text: str | bytes, model: bytes | None = None) -> tuple[Path, Path | None]:
        self.text.write_bytes(text.encode() if isinstance(text, str) else text)
        if model is not None:
            self.model.write_bytes(model)
        return self.text, self.model if model is not None else None

    def load(self, layers: Sequence[Layer], shape: Shape = SHAPE, old: bool = False, **how: bool) -> CaffeGraph:
        return read_caffe(*self.write(prototxt(shape, layers, old), caffemodel(layers, old, **how)))

    def refused(self, text: str | bytes, model: bytes | None = None, **how: Any) -> str:
        with pytest.raises(CaffeError) as caught:
            read_caffe(*self.write(text, model), **how)
        return str(caught.value)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def attempt(proto: Path, model: Path | None) -> CaffeGraph | dt.DeepTaylorError:
    """The network or the reason why there is none; anything else is a crash."""
    try:
        return read_caffe(proto, model)
    except dt.DeepTaylorError as error:
        return error


def images(shape: Shape = SHAPE, batch: int = 3) -> np.ndarray:
    return array(batch, *shape, seed=7)


def agrees(network: CaffeGraph, layers: Sequence[Layer], x: np.ndarray) -> None:
    with torch.no_grad():
        y = network(torch.from_numpy(x))
    expected = forward(layers, x)[layers[-1].tops[-1]]
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 1e-2  # something was compared


# --- what is imported computes the same -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("caffenet", False),
        ("caffenet", True),
        ("inception", False),
        ("inception", True),
        ("residual", False),
        ("others", False),
    ],
)
def test_imported_networks_compute_what_numpy_computes(files: Files, name: str, old: bool) -> None:
    network = files.load(NETS[name], old=old)
    assert not network.training
    assert (network.input_shape, network.input_blob, network.output_blob) == (SHAPE, "data", NETS[name][-1].name)
    assert {layer.name for layer in NETS[name]} == {n for n, _ in network.named_children()}
    agrees(network, NETS[name], images())
    x = images()
    assert network.shapes == {b: y.shape[1:] for b, y in forward(NETS[name], x).items()}


@pytest.mark.parametrize("how", [{"double": True}, {"packed": False}, {"double": True, "packed": False}])
def test_every_way_to_write_the_numbers(files: Files, how: dict[str, bool]) -> None:
    agrees(files.load(CAFFENET, **how), CAFFENET, images())


def test_weights_arrive_bit_for_bit(files: Files) -> None:
    state = files.load(CAFFENET).state_dict()
    assert torch.equal(state["conv1.weight"], torch.from_numpy(np.asarray(CAFFENET[0].blobs[0])))
    assert torch.equal(state["fc4.bias"], torch.from_numpy(np.asarray(CAFFENET[9].blobs[1])))


@pytest.mark.parametrize("name", ["caffenet", "inception", "residual"])
def test_imported_networks_are_explained_and_exported(files: Files, name: str) -> None:
    network, x = files.load(NETS[name]), torch.from_numpy(images()).clamp(-0.5, 0.7)
    explanation = dt.Explainer(network, x[:2], domain=dt.Box(-0.5, 0.7)).explain(x)
    checked = explanation.check()
    assert checked.accounted, str(checked)
    assert checked.positive, str(checked)
    exported = torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with torch.no_grad():
        torch.testing.assert_close(exported.module()(x[:2]), network(x[:2]))


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    how=st.sampled_from(["MAX", "AVE"]),
)
def test_pooling_of_any_geometry(
    tmp_path_factory: pytest.TempPathFactory, size: Shape, kernel: Shape, stride: Shape, pad: Shape, how: str
) -> None:
    files = Files(tmp_path_factory.mktemp("pool"))
    p = {
        f"{n}_{a}": v
        for n, vs in (("kernel", kernel), ("stride", stride), ("pad", pad))
        for a, v in zip("hw", vs, strict=True)
    }
    layers = [pool("pool", "data", pool=Name(how), **p)]
    x = array(2, 2, *size)
    network = attempt(*files.write(prototxt((2, *size), layers)))
    if isinstance(network, CaffeError):
        reasons = r"outside the image|not smaller than the kernel|larger than the image|above half the kernel"
        assert re.search(reasons, str(network))
        if "outside" in str(network):
            assert any(s > k and not b for k, s, b in zip(kernel, stride, pad, strict=True))
        return
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x)), forward(layers, x)["pool"], rtol=1e-5, atol=1e-6)


def test_the_last_window_must_begin_inside(files: Files) -> None:
    # Kernel 2, stride 3, padding 1. Six pixels: ⌈(6 + 2 − 2) / 3⌉ + 1 = 3 windows, at −1, 2 and 5. Five pixels: also
    # ⌈5 / 3⌉ + 1 = 3, but the third would begin at 5, where the image has ended: it is left out.
    for size, count in ((6, 3), (5, 2)):
        layers = [pool("pool", "data", kernel_size=2, stride=3, pad=1)]
        assert read_caffe(*files.write(prototxt((1, size, size), layers))).shapes["pool"] == (1, count, count)


def test_rounding_down_where_the_text_says_so(files: Files) -> None:
    layers = [pool("pool", "data", kernel_size=3, stride=2, round_mode=Name("FLOOR"))]
    assert read_caffe(*files.write(prototxt((1, 6, 6), layers))).shapes["pool"] == (1, 2, 2)


def test_random_weights_without_a_weights_file(files: Files) -> None:
    network = read_caffe(*files.write(prototxt(SHAPE, RESIDUAL)))
    with torch.no_grad():
        assert network(torch.rand(2, *SHAPE)).isfinite().all()
    assert network.get_submodule("scale1").weight.tolist() == [1.0] * 4


def test_a_factor_as_second_input(files: Files) -> None:
    layers = [
        pool("gap", "data", pool=Name("AVE"), global_pooling=True),
        dense("fc", "gap", 4, 4),
        Layer("gate", "Sigmoid", "fc"),
        Layer("scaled", "Scale", ["data", "gate"], "", {"scale_param": {"axis": 0}}),
    ]
    agrees(files.load(layers), layers, images())


def test_a_scale_over_several_axes(files: Files) -> None:
    shift = [array(9, seed=4)]
    layers = [
        Layer("one", "Scale", "data", "", {"scale_param": {"axis": 2, "num_axes": -1}}, [array(11, 9)]),
        Layer("two", "Scale", "one", "", {"scale_param": {"axis": -1, "bias_term": True}}, [array(9), *shift]),
    ]
    assert forward(layers[:1], images())["one"].shape == images().shape
    network = files.load(layers)
    one = images().astype(float) * array(11, 9)
    expected = one * array(9) + shift[0]
    np.testing.assert_allclose(network(torch.from_numpy(images())).detach(), expected, rtol=1e-5, atol=1e-6)


# --- the training network -------------------------------------------------------------------------------------------

TRAINING = """
# two data layers, a classifier, an auxiliary classifier, losses
name: "train" ; force_backward: false
layer { name: "data" type: "Data" top: "data" top: "label" include { phase: TRAIN } transform_param { crop_size: 9 } }
layer { name: "data" type: "Data" top: "data" top: "label" include: < phase: TEST > data_param { batch_size: 50 } }
layer { name: "aux" type: "InnerProduct" bottom: "data" top: "aux" inner_product_param { num_output: 2 } }
layer { name: "aux_loss" type: "SoftmaxWithLoss" bottom: "aux" bottom: "label" top: "aux_loss" }
layer { name: "strange" type: "Python" bottom: "aux" top: "strange" python_param { module: 'os' layer: "system" } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } param {} }
layer { name: "only_training" type: "Dropout" bottom: "fc" top: "fc" exclude { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" loss_weight: [1.0] }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" include { phase: TEST } }
"""


def test_a_training_network_gives_the_branch_asked_for(files: Files) -> None:
    model = caffemodel([dense("fc", "data", 12, 3), dense("other", "data", 5, 5)])
    network = read_caffe(*files.write(TRAINING, model), input_shape=(3, 2, 2), output="fc")
    assert [n for n, _ in network.named_children()] == ["fc"]
    assert network(torch.rand(5, 3, 2, 2)).shape == (5, 3)


def test_what_the_text_does_not_say_is_asked_for(files: Files) -> None:
    assert "2 outputs: choose one with output=…: strange, fc" in files.refused(TRAINING, input_shape=(3, 2, 2))
    assert "no layer makes the output 'prob'" in files.refused(TRAINING, input_shape=(3, 2, 2), output="prob")
    assert "Give it: input_shape=(channels, height, width)" in files.refused(TRAINING, output="fc")
    assert "cannot have the shape" in files.refused(TRAINING, output="fc", input_shape=(3, 0, 2))
    assert "layer 'strange' (Python)" in files.refused(TRAINING, output="strange", input_shape=(3, 2, 2))


def test_layers_written_in_place_keep_the_value_before(files: Files) -> None:
    layers = [
        conv("a", "data", 4, 4, (1, 1)),
        Layer("before", "TanH", "a"),
        relu("r", "a"),
        Layer("y", "Eltwise", ["before", "a"]),
    ]
    x = images()
    a = forward(layers[:1], x)["a"]
    y = files.load(layers)(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(y, np.tanh(a) + a.clip(0), rtol=1e-4, atol=1e-5)


def test_names_that_a_module_cannot_have(files: Files) -> None:
    names = ["", "forward", "a.b", "training", "a_b", "a_b#7", "a_b", "steps", "add_module"]
    layers = [
        Layer(n, "Power", f"t{k - 1}" if k else "data", f"t{k}", {"power_param": {"shift": k + 1}})
        for k, n in enumerate(names)
    ]
    network = files.load(layers)
    assert len(list(network.children())) == len(names)
    x = torch.zeros(1, *SHAPE)
    assert torch.equal(network(x), x + sum(range(1, len(names) + 1)))


# --- the text -------------------------------------------------------------------------------------------------------


def by_reason(*cases: tuple[Any, str]) -> list[Any]:
    """Cases that are called by what they should be told."""
    return [pytest.param(*case, id=case[1]) for case in cases]


def test_every_spelling_of_the_text(files: Files) -> None:
    text = b"""\xef\xbb\xbf# a comment in another encoding: \xc4\xe3\xba\xc3
    a: 1, b: -2; c: 0x1F d: 017 e: 1.5e-3 f: 2.f g: .5 h: +3 i: -inf
    s: "one" 'two'  # joined
    t: "quote \\" tab \\t octal \\101 hex \\x42" u: TRUE v: [1, 2, 3] w: [] x < y { } > z: { k: word } z { k: 'text' }
    """
    message = read_prototxt(files.write(text)[0]).message
    assert {k: v for k, v in message.items() if k not in "xz"} == {
        "a": [1], "b": [-2], "c": [31], "d": [15], "e": [0.0015], "f": [2.0], "g": [0.5], "h": [3],
        "i": [-float("inf")], "s": ["onetwo"], "t": ['quote " tab \t octal A hex B'], "u": ["TRUE"],
        "v": [1, 2, 3], "w": [],
    }  # fmt: skip
    assert message["x"] == [{"y": [{}]}]
    assert message["z"] == [{"k": ["word"]}, {"k": ["text"]}]


@pytest.mark.parametrize(
    ("text", "reason"),
    by_reason(
        ("", "it has no layers"),
        ("name: ", "line 1: a value expected, found 'the end'"),
        ("name", "a colon or a brace expected"),
        ("\n\nname: }", "line 3: a value expected, found '}'"),
        ("}", "the name of a field expected"),
        ("layer { name: 'a'", "1 braces are not closed. It is cut short"),
        ("layer { x < } >", "the name of a field expected, found '}'"),
        ("name: 'open", "is no part of it"),
        ("name: 'a\\q'", "unknown escape"),
        ("v: [1 2]", "a comma expected"),
        ("v: [1, ", "a value expected"),
        ("\x00\x01", "is no part of it"),
        ("v: " + "9" * 100, "a value expected"),
        ("a {" * 40 + "}" * 40, "messages nest more than 32 deep"),
        ("a {" * 500_000, "messages nest more than 32 deep"),
        ("layer: 3", "'layer' should be a message in braces, got 3"),
        ("layer { name: 3 }", "'name' should be text, got 3"),
        ("layer { name: 'a' name: 'b' }", "'name' is given 2 times and can be given once"),
        ("layer {} layers {}", "layers of both formats"),
        ("layers { layer { name: 'a' } }", "first format (V0, 2013)"),
        ("layer { include { phase: NEVER } }", "'phase' should be one of TRAIN, TEST"),
        ("input: 'data' input_dim: 1 layer {}", "1 inputs need 4 'input_dim', got 1"),
        ("input: 'data' input_dim: 0 layer {}", "'input_dim' should be a whole number from 1"),
        ("layer {}" * 4_001, "4,001 layers, above 4,000"),
        ("a: 1 " * 200_000, "more than 500,000 words"),
    ),
)
def test_broken_text_is_refused_with_a_reason(files: Files, text: str, reason: str) -> None:
    message = files.refused(text)
    assert reason in message
    assert message.startswith(str(files.text))


def one(kind: str, param: str = "", shape: Shape = SHAPE, more: str = "") -> str:
    """The text of a network of one layer."""
    dims = " ".join(f"dim: {n}" for n in (2, *shape))
    head = f"layer {{ name: 'data' type: 'Input' top: 'data' input_param {{ shape {{ {dims} }} }} }}"
    return f"{head} layer {{ name: 'y' type: '{kind}' bottom: 'data' top: 'y' {param} {more} }}"


def convolved(param: str, shape: Shape = SHAPE) -> str:
    return one("Convolution", f"convolution_param {{ {param} }}", shape)


def pooled(param: str, shape: Shape = SHAPE) -> str:
    return one("Pooling", f"pooling_param {{ {param} }}", shape)


@pytest.mark.parametrize(
    ("text", "reason"),
    by_reason(
        (one("Convolution"), "4 to 0 channels in 1 groups is not possible"),
        (convolved("num_output: 3"), "'kernel_size' should be given for an image's two axes"),
        (convolved("num_output: 3 kernel_size: 3 group: 2"), "4 to 3 channels in 2 groups"),
        (convolved("num_output: 3 kernel_h: 3"), "give 'kernel_size', or 'kernel_h' and"),
        (convolved("num_output: 3 kernel_size: 3 kernel_size: 3 kernel_size: 3"), "two axes"),
        (convolved("num_output: 3 kernel_size: 30"), "does not fit its input"),
        (convolved("num_output: 3 kernel_size: 100000"), "is 100,000, above 65,536"),
        (convolved("num_output: 99999999999 kernel_size: 1"), "a whole number from 0 to"),
        (convolved("num_output: 2147483647 kernel_size: 65536"), "layer 'y' (Convolution)"),
        (convolved("num_output: 9 kernel_size: 1 pad: 60000"), "makes 'y' with the shape"),
        (convolved("num_output: 9 kernel_size: 1 stride: 0"), "'stride' should be a whole number"),
        (convolved("num_output: 9 kernel_size: 1 axis: 2"), "other axes"),
        (convolved("num_output: 9 kernel_size: 1 bias_term: maybe"), "should be true or false"),
        (convolved("num_output: 9 kernel_size: 1", (4,)), "reads images"),
        (pooled("kernel_size: 2 stride: 3", (1, 6, 7)), "its last window lies outside the image"),
        (pooled("kernel_size: 2 pad: 2"), "is not smaller than the kernel"),
        (pooled("kernel_size: 13"), "is larger than the image"),
        (pooled("pool: STOCHASTIC kernel_size: 3"), "stochastic pooling is not a function"),
        (pooled("pool: MEDIAN kernel_size: 3"), "one of MAX, AVE, STOCHASTIC"),
        (pooled("pool: AVE kernel_size: 3 pad: 2"), "above half the kernel"),
        (pooled("global_pooling: true pad: 1"), "neither stride nor padding"),
        (one("LRN", "lrn_param { local_size: 4 }"), "should be odd"),
        (one("LRN", "lrn_param { alpha: 'much' }"), "'alpha' should be a number, got 'much'"),
        (one("InnerProduct", "inner_product_param { axis: 0 num_output: 3 }"), "the axes 1 to 3 will do"),
        (one("InnerProduct"), "it has no outputs"),
        (one("BatchNorm", "batch_norm_param { use_global_stats: false }"), "that is not a function"),
        (one("Scale", "scale_param { axis: 2 num_axes: 3 }"), "are more than the shape"),
        (one("Scale", more="bottom: 'data'"), "needs axis: 0 and no bias"),
        (one("Concat", "concat_param { axis: 7 }"), "the axes 1 to 3 will do"),
        (one("Eltwise"), "cannot have 1 inputs and 1 outputs"),
        (one("Eltwise", "eltwise_param { coeff: 2 }", more="bottom: 'data'"), "1 coefficients for a SUM of 2 inputs"),
        (one("Softmax", "softmax_param { axis: 0 }"), "the axes 1 to 3 will do"),
        (one("Dropout", "dropout_param { dropout_ratio: 1.5 }"), "should be in [0, 1)"),
        (one("Flatten", "flatten_param { axis: 3 end_axis: 2 }"), "comes before"),
        (one("Reshape", "reshape_param { shape { dim: -1 dim: 4 } }"), "mixes the samples of a batch"),
        (one("Reshape", "reshape_param { shape { dim: 0 dim: 5 } }"), "cannot become [0, 5]"),
        (one("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: -1 } }"), "cannot become"),
        (one("Slice", "slice_param { slice_point: 9 }", more="top: 'z'"), "cannot be cut at [9] into 2 pieces"),
        (one("ReLU", more="top: 'z'"), "makes 1 outputs, the text names 2"),
        (one("ReLU", more="bottom: 'data'"), "cannot have 2 inputs"),
        (one("ReLU", more="top: 'y'"), "makes 'y', which exists already"),
        (one("ReLU", more="bottom: 'label'"), "reads 'label', which no layer before it makes"),
        (one("ReLU", shape=(9, 99999, 99999)), "the input 'data' cannot have the shape"),
    ),
)
def test_impossible_layers_are_refused_with_a_reason(files: Files, text: str, reason: str) -> None:
    assert reason in files.refused(text, output="y")


def test_all_unknown_layers_at_once(files: Files) -> None:
    layers = [
        Layer(f"odd{k}", kind, f"odd{k - 1}" if k else "data")
        for k, kind in enumerate(["Deconvolution", "ReLU", "SPP", "Crop"])
    ]
    message = files.refused(prototxt(SHAPE, layers))
    assert (
        "3 layers that are not known: layer 'odd0' (Deconvolution), layer 'odd2' (SPP), layer 'odd3' (Crop)" in message
    )
    assert "Known: AbsVal, BatchNorm, Concat, Convolution" in message


def test_a_cycle_is_refused_with_names(files: Files) -> None:
    layers = [Layer("a", "Eltwise", ["data", "b"]), Layer("b", "ReLU", "a")]
    message = files.refused(prototxt(SHAPE, layers))
    assert "layer 'a' (Eltwise) reads 'b', which no layer before it makes; it is made by layer 'b' (ReLU)" in message
    assert "reads 'a'" in files.refused(prototxt(SHAPE, [Layer("a", "ReLU", "a")]))


def test_several_inputs_are_refused(files: Files) -> None:
    inputs = "input: 'a' input: 'b' input_shape { dim: 1 dim: 4 }"
    text = f"{inputs} layer {{ name: 'y' type: 'Eltwise' bottom: 'a' bottom: 'b' top: 'y' }}"
    assert "networks with one input are read; this has a, b" in files.refused(text)


# --- the weights ----------------------------------------------------------------------------------------------------

FC = [dense("fc", "data", 4, 3)]
FC_TEXT = prototxt((4,), FC)


def with_blobs(*blobs: bytes, name: str = "fc") -> bytes:
    return chunk(100, new_layer(name, "InnerProduct", blobs))


GOOD = blob(array(3, 4)), blob(array(3))
HUGE = chunk(5, b"\0" * 8) + chunk(7, chunk(1, varint(2**30) + varint(2**30)))


@pytest.mark.parametrize(
    ("model", "reason"),
    by_reason(
        (b"", "it has no layers"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"PK\x03\x04 a zip file", "not a whole .caffemodel file"),
        (b"\x80\x02}q\x00.", "not a whole .caffemodel file"),
        (with_blobs(GOOD[0]), "expects [(3, 4), (3,)], received [(3, 4)]"),
        (with_blobs(blob(array(4, 3)), GOOD[1]), "layer 'fc' (InnerProduct) expects [(3, 4), (3,)], received [(4, 3)"),
        (with_blobs(*GOOD, GOOD[1]), "do not fit"),
        (with_blobs(*GOOD, name="other"), "it has no weights for layer 'fc' (InnerProduct); it has them for other"),
        (with_blobs(*GOOD) * 2, "two layers with weights are called 'fc'"),
        (
            with_blobs(blob(np.full((3, 4), np.nan)), GOOD[1]),
            "layer 'fc' (InnerProduct) has weights that are not finite",
        ),
        (with_blobs(blob(np.full((3, 4), 1e300), double=True), GOOD[1]), "not finite"),
        (with_blobs(HUGE, GOOD[1]), "has 1,152,921,504,606,846,976 numbers, the file 2"),
        (with_blobs(chunk(5, b"\0" * 8), GOOD[1]), "layer 'fc', array 0: it has no shape"),
        (with_blobs(chunk(5, b"\0" * 7) + number(1, 1), GOOD[1]), "end in the middle of one"),
        (with_blobs(number(1, -5), GOOD[1]), "an axis below zero or above"),
        (with_blobs(chunk(7, chunk(1, b"\1" * 100)), GOOD[1]), "more than 32 axes"),
        (with_blobs(chunk(1, b"x"), GOOD[1]), "its shape is not a number"),
        (chunk(100, number(7, 1)), "blobs should be a message and is a number"),
        (number(100, 1), "a layer should be a message and is a number"),
        (chunk(2, chunk(1, chunk(1, b"conv1"))), "first format (V0, 2013)"),
        (chunk(100, b"")[:-1] + varint(2**63), "9,223,372,036,854,775,808 bytes, 0 are left. It is cut short"),
        (b"\xff" * 20, "a number of more than ten bytes"),
        (b"\x00\x00", "a field with the number 0"),
        (varint(3 << 3 | 3), "field 3 has the unknown wire type 3"),
        (varint(3 << 3 | 1) + b"1234", "field 3 should have 8 bytes, 4 are left"),
    ),
)
def test_broken_weights_are_refused_with_a_reason(files: Files, model: bytes, reason: str) -> None:
    message = files.refused(FC_TEXT, model)
    assert reason in message
    assert message.startswith(str(files.model))


def test_unknown_fields_are_passed_over(files: Files) -> None:
    extra = (
        chunk(999, b"anything") + number(998, 3) + varint(997 << 3 | 1) + b"8 bytes!" + varint(996 << 3 | 5) + b"four"
    )
    model = extra + chunk(100, extra + new_layer("fc", "InnerProduct", [extra + b for b in GOOD]) + extra)
    text = (
        FC_TEXT
        + 'future { a: 1 b { c: "d" } }\n'
        + 'layer { name: "s" type: "Softmax" bottom: "fc" top: "s" novelty: 3 }'
    )
    assert read_caffe(*files.write(text, model))(torch.rand(2, 4)).shape == (2, 3)


def test_statistics_that_cannot_be(files: Files) -> None:
    for stats in ([array(4), -array(4, low=0.1), np.ones(1)], [array(4), array(4, low=0.1), np.array([1e-45])]):
        layers = [Layer("bn", "BatchNorm", "data", "", {}, stats)]
        assert "layer 'bn' (BatchNorm) has" in files.refused(prototxt(SHAPE, layers), caffemodel(layers))
    zero = [Layer("bn", "BatchNorm", "data", "", {}, [array(4), array(4), np.zeros(1)])]
    agrees(files.load(zero), zero, images())


def test_every_prefix_of_a_file_is_refused(files: Files) -> None:
    layers = [conv("a", "data", 4, 2, (1, 1)), relu("r", "a"), pool("b", "a", kernel_size=9), dense("c", "b", 6, 2)]
    text, model = prototxt(SHAPE, layers), caffemodel(layers)
    ends = []
    for length in range(len(model)):
        files.write(text, model[:length])
        try:
            read_weights(files.model)
        except CaffeError:
            continue
        ends.append(length)
    # Where a file may end by the format, at the end of a layer, the layers that are missing are named.
    assert len(ends) == 3
    for length in ends:
        assert "it has no weights for" in files.refused(text, model[:length])
    for length in range(0, len(text) - 1, 7):
        files.refused(text[:length], model)


def test_the_size_is_checked_before_the_file_is_read(files: Files) -> None:
    files.write(FC_TEXT, b"")
    with files.model.open("wb") as stream:
        stream.truncate(weights.MAX_BYTES + 1)  # a hole: no disk is used
    with pytest.raises(CaffeError, match="2,147,483,649 bytes; files above 2,147,483,648 bytes are not read"):
        read_caffe(files.text, files.model)
    with files.text.open("wb") as stream:
        stream.truncate(text.MAX_BYTES + 1)
    with pytest.raises(CaffeError, match="files above 4,194,304 bytes are not read"):
        read_caffe(files.text)


def test_what_is_no_file(files: Files, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CaffeError, match="no such file"):
            read_caffe(path)


def test_too_many_fields(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_RECORDS", 1000)
    assert "more than 1,000 fields" in files.refused(FC_TEXT, number(999, 1) * 1001)


def test_random_weights_have_a_limit(files: Files) -> None:
    text = prototxt((4,), [Layer("fc", "InnerProduct", "data", "", {"inner_product_param": {"num_output": 2**27}})])
    assert "random weights asked for, above" in files.refused(text)
    # With a file the text alone makes nothing of that size.
    assert "expects [(134217728, 4), (134217728,)], received [(3, 4), (3,)]" in files.refused(text, with_blobs(*GOOD))


def test_two_layers_of_one_name_with_weights(files: Files) -> None:
    layers = [
        dense("fc", "data", 4, 4),
        Layer("fc", "InnerProduct", "fc", "z", {"inner_product_param": {"num_output": 3}}),
    ]
    assert "two layers of the text are called 'fc'" in files.refused(prototxt((4,), layers), caffemodel(layers[:1]))


# --- hostile files --------------------------------------------------------------------------------------------------

NUMBERS = [
    b"0",
    b"-1",
    b"1",
    b"2",
    b"3",
    b"65536",
    b"2147483647",
    b"99999999999999999999",
    b"1e38",
    b"nan",
    b"0.5",
    b"-0",
]


def cut(r: random.Random, data: bytes) -> bytes:
    return data[: r.randrange(len(data))]


def flip(r: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 8))):
        out[r.randrange(len(out))] = r.choice((r.randrange(256), 0, 255, 128, out[0]))
    return bytes(out)


def piece(r: random.Random, data: bytes) -> tuple[int, int]:
    start = r.randrange(len(data))
    return start, min(len(data), start + r.choice((1, 2, 8, 40, 200)))


def remove(r: random.Random, data: bytes) -> bytes:
    a, b = piece(r, data)
    return data[:a] + data[b:]


def repeat(r: random.Random, data: bytes) -> bytes:
    a, b = piece(r, data)
    return data[:b] + data[a:b] * r.choice((1, 2, 30)) + data[b:]


def insert(r: random.Random, data: bytes) -> bytes:
    at = r.randrange(len(data))
    return (
        data[:at] + r.choice((varint(r.getrandbits(r.randrange(1, 65))), r.randbytes(r.randrange(1, 20)))) + data[at:]
    )


def move(r: random.Random, data: bytes) -> bytes:
    (a, b), at = piece(r, data), r.randrange(len(data))
    return data[:at] + data[a:b] + data[at:]


def swap_word(r: random.Random, data: bytes) -> bytes:
    """Another word, name or number of the same text in place of one."""
    words = list(re.finditer(rb"[\w./-]+|[{}]", data))
    target, source = r.choice(words), r.choice(words).group()
    if re.fullmatch(rb"[\d.-]+", target.group()) and r.random() < 0.7:
        source = r.choice(NUMBERS)
    return data[: target.start()] + source + data[target.end() :]


BYTES: list[Callable[[random.Random, bytes], bytes]] = [cut, flip, flip, flip, remove, repeat, insert, move]


def fuzz(files: Files, count: int, seed: int) -> dict[str, int]:
    """Mutated files one after the other: a network or an error of ours, soon, and no memory to speak of."""
    r = random.Random(seed)
    originals = [
        (prototxt(SHAPE, layers, old).encode(), caffemodel(layers, old))
        for layers, old in [(CAFFENET, False), (CAFFENET, True), (INCEPTION, True), (RESIDUAL, False), (OTHERS, False)]
    ]
    for proto, model in originals:
        read_caffe(*files.write(proto, model))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"network": 0, "error": 0}
    for k in range(count):
        proto, model = r.choice(originals)
        for _ in range(r.choice((1, 1, 1, 2, 5))):
            which = r.random()
            if which < 0.4:
                model = r.choice(BYTES)(r, model) or b"\0"
            elif which < 0.8:
                proto = swap_word(r, proto) if re.search(rb"\w", proto) else proto
            else:
                proto = r.choice(BYTES)(r, proto) or b" "
        started = time.perf_counter()
        result = attempt(*files.write(proto, model))
        if isinstance(result, CaffeGraph):
            assert all(p.device.type == "cpu" for p in result.parameters()), k
            found["network"] += 1
        else:
            assert isinstance(result, CaffeError), k
            assert len(str(result)) < 20_000, k
            found["error"] += 1
        assert time.perf_counter() - started < 5, f"file {k} of seed {seed} took too long"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 100, f"{grown:.0f} MiB for files of a few kilobytes"
    return found


def test_mutated_files(files: Files) -> None:
    found = fuzz(files, 300, seed=1)
    assert min(found.values()) > 20, found  # both happen, or nothing was tested


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_mutated_files(files: Files, seed: int) -> None:
    found = fuzz(files, 2_500, seed=100 + seed)
    assert min(found.values()) > 200, found
