"""State dicts: wrapped in every way, without an architecture, with other names, with broken numbers."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.networks import mobilenet_v2
from loading import SAID, explained, refused, small

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
    Path("nets_of_mine.py").write_text("from loading import small\nnumber = 3\ndef words(): return 'words'\n")
    monkeypatch.syspath_prepend(str(folder))
    torch.save(small().state_dict(), "a.pth")
    explained(dt.load("a.pth", architecture="nets_of_mine:small", **SAID))
    refused(
        "The architecture 'nets_of_mine:none' cannot be imported: module 'nets_of_mine' has no attribute 'none'",
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
        "The architecture nets_of_mine:words gave a str, not a torch.nn.Module.",
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
        "  the file has and the network lacks (1):",
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
    assert "other.0.weight" in refused("the network lacks (2)", "a.pth", architecture=Whole, **SAID)


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
        "an architecture belongs to a state dict; a.onnx is an ONNX file and has its own.",
        "a.onnx",
        architecture=small,
        **SAID,
    )


def test_what_would_be_passed_over_is_refused() -> None:
    message = "an architecture belongs to a file with a state dict; "
    refused(message + "Sequential has its own.", small(), architecture=small, **SAID)
    refused(message + "squeezenet1_1 has its own.", "squeezenet1_1", architecture=small)
    refused(message + "timm:resnet18 has its own.", "timm:resnet18", architecture=small)
    for source in (small(), "googlenet", "a.onnx"):
        refused("a prototxt belongs to a .caffemodel file; ", source, prototxt="deploy.prototxt", **SAID)


def test_a_function_in_the_place_of_a_network_is_told_where_it_belongs() -> None:
    with pytest.raises(dt.LoadError, match="is the architecture of a file with its weights"):
        dt.load("my_networks:flower_net")
