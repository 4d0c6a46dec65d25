"""What a path is, before it is opened: pipes, sockets and devices are named at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.support.files import special_kind

_LOAD = "import deeptaylor as dt; dt.load({path!r}, domain=dt.Real(), class_names=None)"
_SHOW = "from deeptaylor.models.networks.photo_files import load_photo; load_photo({path!r}, 'RGB')"
_READ = "from deeptaylor.datasets.items import ListFile; ListFile(__import__('pathlib').Path('.')).read({path!r}, '')"


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """A socket; its path is short, as sockets want it."""
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s.onnx")
            yield tmp_path / "s.onnx"
    finally:
        os.chdir(before)


def test_special_files_are_named(tmp_path: Path, bound: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "plain").write_bytes(b"")
    paths = (tmp_path / "pipe", bound, Path("/dev/null"), tmp_path / "plain", tmp_path, tmp_path / "absent")
    assert [special_kind(path) for path in paths] == ["a named pipe", "a socket", "a device", "", "", ""]


@pytest.mark.parametrize("code", [_LOAD, _SHOW, _READ])
def test_a_pipe_is_refused_and_not_waited_for(code: str, tmp_path: Path) -> None:
    """In another process: what waits for the other end of a pipe can only be killed."""
    pipe = tmp_path / "network.onnx"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-c", code.format(path=str(pipe))], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "is a named pipe" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.parametrize("ending", [".pth", ".safetensors", ".caffemodel", ".pt2", ".tgz", ".unknown"])
def test_every_kind_of_model_file(ending: str, tmp_path: Path) -> None:
    from deeptaylor.errors import LoadError
    from deeptaylor.models.loading.model_files import find_kind

    os.mkfifo(tmp_path / f"model{ending}")
    with pytest.raises(LoadError, match=r"is a named pipe, and a network is read from a plain file"):
        find_kind(tmp_path / f"model{ending}")


def test_plain_files_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    from deeptaylor.models.networks.photo_files import load_photo

    assert load_photo(tmp_path / "a.png", "RGB").size == (3, 2)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "a/" * 3000, "\ud800"], ids=["NUL", "long", "deep", "no text"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    p = dt.Pretrained(torch.nn.Linear(3, 2), None, None, domain=dt.Box(0, 1))
    message = "cannot be the name of a file"
    for source in (name, f"{name}.pth", f"{name}.onnx", f"hf:{name}", f"hf:./{name}"):
        with pytest.raises(dt.LoadError, match=message):
            dt.load(source)
    with pytest.raises(dt.LoadError, match=message):
        dt.load("squeezenet1_1", weights=f"{name}.pth")
    pytest.importorskip("zarr")
    with pytest.raises(dt.InputError, match=message):
        dt.explain_dataset(torch.rand(2, 3), p, name)
    with pytest.raises(dt.InputError, match=message):
        dt.explain_dataset(name, p, "out")
    with pytest.raises(dt.InputError, match=message) as raised:
        dt.open_dataset(name)
    assert len(str(raised.value)) < 200
    assert not list(tmp_path.iterdir())
