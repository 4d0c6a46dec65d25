"""Files: what they are, whatever their name; what is too large; formats of other libraries' programs."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.loading import model_files
from loading import SAID, explained, refused, small

HDF5 = b"\x89HDF\r\n\x1a\n"
WEB_PAGE = (
    "a.onnx is not what its name says: a .onnx file is an ONNX file, and this is a web page, perhaps the error of"
)
KNOWN = "a.h5 is not a known model file; known are: .bin, .caffemodel, .ckpt, .onnx, .pt, .pt2, .pth, .safetens"


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
        ("a.tar", b"words", "a.tar is not a known model file"),
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
    refused("Weights belong to a network by name, and net.onnx is not one.", "net.onnx", weights="a.pth")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder: Path) -> None:
    Path("a.onnx").write_bytes(b"x")
    Path("a.onnx").chmod(0)
    refused("a.onnx cannot be read: Permission denied.", "a.onnx", **SAID)


def test_a_model_larger_than_memory_is_refused_with_the_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.zeros(2**20)}, "a.pth")  # 4 MiB of numbers
    monkeypatch.setattr(model_files, "_measure_free_memory", lambda: 7 * 2**20)
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
    monkeypatch.setattr(model_files, "_measure_free_memory", lambda: 2**22)
    refused("would take about 0.01 GiB of memory", "a.pt", architecture=small, **SAID)


def test_a_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))  # ulimit -v: it uses more already
    assert model_files._measure_free_memory() == 0
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert model_files._measure_free_memory() != 0


def test_free_memory_is_a_plausible_number() -> None:
    free = model_files._measure_free_memory()
    assert free is None or 2**20 < free < 2**50


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
    assert "and unpickling them runs code. If you know who made the file, give trust=True." in message
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


@pytest.mark.parametrize("wrapped", [lambda state: state, lambda state: {"module": state, "decay": 0.99}])
def test_of_two_state_dicts_the_one_that_was_taken_is_named(folder: Path, wrapped: Any) -> None:
    taken, mean = small().state_dict(), {k: v + 1 for k, v in small().state_dict().items()}
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"model": taken, "ema": wrapped(mean), "optimizer": optimizer, "epoch": 3}, "a.pth")
    note = "a.pth holds several state dicts: 'model' was taken, and not 'ema'"
    with pytest.warns(dt.DeepTaylorWarning, match=f"^{note}. Save the other one"):
        p = dt.load("a.pth", architecture=small, **SAID)
    assert p.notes == (note,)
    assert all(torch.equal(w, taken[k]) for k, w in p.network.state_dict().items())
    torch.save({"model": taken, "optimizer": optimizer, "epoch": 3}, "a.pth")
    assert dt.load("a.pth", architecture=small, **SAID).notes == ()
    torch.save({"model": taken, "net": mean}, "a.pth")
    refused("a.pth holds several state dicts: 'model', 'net'.", "a.pth", architecture=small, **SAID)


def test_a_pickle_that_unpacks_to_more_than_a_network_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile("a.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"N0" * 2**26)
    monkeypatch.setattr(model_files, "_list_globals", lambda file: pytest.fail("it was read"))
    refused("a.pth is rejected: its list of names unpacks to 0.12 GiB", "a.pth", architecture=small, **SAID)
    monkeypatch.setattr(model_files, "_measure_free_memory", lambda: 1000)
    refused("a.pth would take about 0.25 GiB of memory", "a.pth", architecture=small, **SAID)


@pytest.mark.parametrize("free", [True, False])
def test_exported_programs(folder: Path, free: bool) -> None:
    shapes = ({0: torch.export.Dim("batch")},) if free else None
    example = torch.zeros(2 if free else 1, 3, 16, 16)
    torch.export.save(torch.export.export(small(), (example,), dynamic_shapes=shapes), "a.pt2")
    message = refused(
        "a.pt2 is not read without your explicit trust: it is a program exported by torch.export", "a.pt2", **SAID
    )
    assert "reading a program runs it" in message
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
    assert (
        dt.Explainer(model.network, x, domain=model.domain, bias="neuron")
        .explain(x, target=dt.margin())
        .check()
        .accounted
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["traced", "scripted"])
def test_torchscript(folder: Path, how: str) -> None:
    program = torch.jit.trace(small(), torch.zeros(1, 3, 16, 16)) if how == "traced" else torch.jit.script(small())
    program.save("a.pt")
    refused("a.pt is not read without your explicit trust: it is a TorchScript program", "a.pt", **SAID)
    explained(dt.load("a.pt", trust=True, **SAID))
    refused(
        "which is read with an example of its input; give preparation=….",
        "a.pt",
        trust=True,
        domain=dt.Real(),
        class_names=None,
    )
