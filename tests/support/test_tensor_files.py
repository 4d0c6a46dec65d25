"""Tensors in safetensors files: the same tensors and notes give the same bytes, in any order of the notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deeptaylor.errors import InputError
from deeptaylor.support.tensor_files import Checkpoint, WeightsError, read_notes, read_tensors, write_tensors

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


def test_a_state_is_given_back(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    kept = Checkpoint(tmp_path / "c", {"seed": 1})
    assert not kept.resume(found.append), "there is none yet"
    kept.write({"step": 7, "v": torch.arange(3)})
    assert kept.resume(found.append)
    assert found[0]["step"] == 7
    assert found[0]["v"].tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    kept = Checkpoint(None)
    kept.write({"step": 7})
    assert not kept.resume(lambda _: None)


def test_another_training_and_damage_are_refused(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "c", {"seed": 1, "steps": 5}).write({"step": 7})
    with pytest.raises(InputError, match=r"another training \(seed 1, now 2\); name another file"):
        Checkpoint(tmp_path / "c", {"seed": 2, "steps": 5}).resume(lambda _: None)
    with pytest.raises(InputError, match=r"not a checkpoint that can be read \('v'\)"):
        Checkpoint(tmp_path / "c").resume(lambda kept: kept["v"])
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:100])
    with pytest.raises(InputError, match=r"not a checkpoint that can be read .*remove it to start again"):
        Checkpoint(tmp_path / "c").resume(lambda _: None)
