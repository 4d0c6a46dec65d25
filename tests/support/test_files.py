"""What a path is, before it is opened: pipes, sockets and devices are named at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deeptaylor.support.files import special_kind

_LOAD = "import deeptaylor as dt; dt.load({path!r}, domain=dt.Real(), class_names=None)"
_SHOW = "from deeptaylor.models.networks.photo import upright; upright({path!r}, 'RGB')"
_READ = "from deeptaylor.runs.items import ListFile; ListFile(__import__('pathlib').Path('.')).read({path!r}, '')"


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
    from deeptaylor.models.loading.files import kind_of

    os.mkfifo(tmp_path / f"model{ending}")
    with pytest.raises(LoadError, match=r"is a named pipe, and a network is read from a plain file"):
        kind_of(tmp_path / f"model{ending}")


def test_plain_files_are_read(tmp_path: Path) -> None:
    Image.new("RGB", (3, 2)).save(tmp_path / "a.png")
    from deeptaylor.models.networks.photo import upright

    assert upright(tmp_path / "a.png", "RGB").size == (3, 2)
