"""Caffe's files: what is imported computes what slow NumPy computes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deeptaylor as dt
from caffe_files import (
    CAFFENET,
    NETS,
    RESIDUAL,
    SHAPE,
    Files,
    Shape,
    agrees,
    array,
    attempt,
    conv,
    dense,
    images,
    pool,
    relu,
)
from caffe_reference import Layer, Name, caffemodel, forward, prototxt
from deeptaylor.models.caffe import CaffeError, read_caffe


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
    explanation = dt.Explainer(network, x[:2], domain=dt.Box(-0.5, 0.7), bias="neuron").explain(x)
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
    assert "2 outputs, strange, fc: choose one, output=…" in files.refused(TRAINING, input_shape=(3, 2, 2))
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
