"""Tensors in safetensors files: the same tensors and notes give the same bytes, in any order of the notes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from deeptaylor.support.tensors import WeightsError, read_notes, read_tensors, write_tensors

pytest.importorskip("safetensors")


def test_equal_contents_are_equal_bytes(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2)
    notes = {f"note {n}": str(n) for n in range(20)}
    written = [
        write_tensors(layer, tmp_path / str(n), dict(some)).read_bytes()
        for n, some in enumerate([notes.items(), reversed(notes.items()), notes.items()])
    ]
    assert written[0] == written[1] == written[2]
    assert read_notes(tmp_path / "0") == notes
    assert torch.equal(read_tensors(tmp_path / "1")["weight"], layer.weight)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no weights could be read from .*; make them"):
        read_tensors(tmp_path / "none", "; make them")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(WeightsError, match="not a safetensors file"):
        read_tensors(tmp_path / "junk")
