"""Caffe's files: every spelling of the text, and what is broken is refused with a reason."""

from __future__ import annotations

import random
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from caffe_files import (
    CAFFENET,
    INCEPTION,
    OTHERS,
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
from caffe_reference import Layer, blob, caffemodel, chunk, new_layer, number, prototxt, varint
from deeptaylor.models.caffe import CaffeError, CaffeGraph, caffe_files, read_caffe
from deeptaylor.models.caffe.caffe_files import read_prototxt, read_weights

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
        ("name: 'open", "is not valid syntax"),
        ("name: 'a\\q'", "unknown escape"),
        ("v: [1 2]", "a comma expected"),
        ("v: [1, ", "a value expected"),
        ("\x00\x01", "is not valid syntax"),
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
        (one("InnerProduct", "inner_product_param { axis: 0 num_output: 3 }"), "the axes 1 to 3 are supported"),
        (one("InnerProduct"), "it has no outputs"),
        (one("BatchNorm", "batch_norm_param { use_global_stats: false }"), "that is not a function"),
        (one("Scale", "scale_param { axis: 2 num_axes: 3 }"), "are more than the shape"),
        (one("Scale", more="bottom: 'data'"), "needs axis: 0 and no bias"),
        (one("Concat", "concat_param { axis: 7 }"), "the axes 1 to 3 are supported"),
        (one("Eltwise"), "cannot have 1 inputs and 1 outputs"),
        (one("Eltwise", "eltwise_param { coeff: 2 }", more="bottom: 'data'"), "1 coefficients for a SUM of 2 inputs"),
        (one("Softmax", "softmax_param { axis: 0 }"), "the axes 1 to 3 are supported"),
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
        "3 layers are not supported: layer 'odd0' (Deconvolution), layer 'odd2' (SPP), layer 'odd3' (Crop)" in message
    )
    assert "Supported: AbsVal, BatchNorm, Concat, Convolution" in message


def test_a_cycle_is_refused_with_names(files: Files) -> None:
    layers = [Layer("a", "Eltwise", ["data", "b"]), Layer("b", "ReLU", "a")]
    message = files.refused(prototxt(SHAPE, layers))
    assert "layer 'a' (Eltwise) reads 'b', which no layer before it makes; layer 'b' (ReLU) makes it" in message
    assert "reads 'a'" in files.refused(prototxt(SHAPE, [Layer("a", "ReLU", "a")]))


def test_several_inputs_are_refused(files: Files) -> None:
    inputs = "input: 'a' input: 'b' input_shape { dim: 1 dim: 4 }"
    text = f"{inputs} layer {{ name: 'y' type: 'Eltwise' bottom: 'a' bottom: 'b' top: 'y' }}"
    assert "only networks with one input are supported; this one has a, b" in files.refused(text)


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
        (b"PK\x03\x04 a zip file", "not a complete .caffemodel file"),
        (b"\x80\x02}q\x00.", "not a complete .caffemodel file"),
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
        (with_blobs(chunk(5, b"\0" * 7) + number(1, 1), GOOD[1]), "end in the middle of a number"),
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
        stream.truncate(caffe_files.MAX_WEIGHTS_BYTES + 1)  # a hole: no disk is used
    with pytest.raises(CaffeError, match="2,147,483,649 bytes; files above 2,147,483,648 bytes are not supported"):
        read_caffe(files.text, files.model)
    with files.text.open("wb") as stream:
        stream.truncate(caffe_files.MAX_TEXT_BYTES + 1)
    with pytest.raises(CaffeError, match="files above 4,194,304 bytes are not supported"):
        read_caffe(files.text)


def test_what_is_no_file(files: Files, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CaffeError, match="no such file"):
            read_caffe(path)


def test_too_many_fields(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caffe_files, "MAX_RECORDS", 1000)
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
