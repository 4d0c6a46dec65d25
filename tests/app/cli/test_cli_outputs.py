"""What a command writes: over nothing that something else made, and nothing at all where the disk is full."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import cli_model
from cli_model import MODEL, SAID, pixels, said
from deeptaylor import demo
from deeptaylor.app.cli import programs
from deeptaylor.support import files


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli_model.write(tmp_path)


def contents(folder: str = "o") -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path(folder).iterdir()}


EXPLAIN = ["explain", "photo.png", *MODEL, "--out", "o"]


def test_the_same_command_replaces_its_own_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, *EXPLAIN)
    assert "replaced" not in out
    before = contents()
    out, _ = said(capsys, 0, *EXPLAIN)
    assert "(4 replaced)" in out
    assert contents() == before


@pytest.mark.parametrize("more", [["--bias", "spread"], ["--max-pool", "winner"]], ids=str)
def test_another_command_overwrites_nothing(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, *EXPLAIN)
    before = contents()
    _, err = said(capsys, 2, *EXPLAIN, *more)
    assert "o/photo_record.json is there already" in err
    assert "written by `deeptaylor explain " in err
    assert "--overwrite" in err
    assert contents() == before
    out, _ = said(capsys, 0, *EXPLAIN, *more, "--overwrite")
    assert "replaced" in out
    assert contents() != before


def other_network() -> list[str]:
    """The options of a second network, with the same classes."""
    torch.manual_seed(1)
    network = cli_model.flower_net()
    with torch.no_grad():
        network[7].bias.add_(0.3)
    torch.save(network.state_dict(), "garden.v2.pth")
    return [w.replace("flowers.pth", "garden.v2.pth") for w in MODEL]


@pytest.mark.parametrize("verb", ["explain", "compare"])
def test_a_second_network_gets_names_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ([verb, "photo.png", *model, "--out", "o"] for model in (MODEL, other_network()))
    said(capsys, 0, *first)
    before = contents()
    said(capsys, 0, *second)
    both = contents()
    assert {name: both[name] for name in before if name != files.LIST} == {
        name: before[name] for name in before if name != files.LIST
    }
    new = both.keys() - before.keys()
    assert len(new) == len(before) - 1
    assert all(name.startswith("photo-garden_v2_pth_") for name in new)
    for again in (first, second):  # each replaces its own
        assert "replaced" in said(capsys, 0, *again)[0]
        assert contents().keys() == both.keys()
    said(capsys, 0, *second, "--overwrite")
    assert any(contents()[name] != before[name] for name in before if name != files.LIST)


def test_a_second_network_with_another_question_gets_names_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, *EXPLAIN)
    shown = next(p.name for p in Path("o").glob("*_heatmap.png")).split("_")[1]
    before = contents()
    said(capsys, 0, "explain", "photo.png", *other_network(), "--target", shown, "--out", "o")
    assert all(contents()[name] == before[name] for name in before if name != files.LIST)
    assert any(name.startswith("photo-garden_v2_pth_") for name in contents())


@pytest.mark.parametrize("verb", ["explain", "compare"])
def test_a_bad_network_or_target_is_said_before_files_that_are_there(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = [verb, "photo.png", *MODEL, "--out", "o"]
    said(capsys, 0, *ask)
    unknown = [w.replace("flowers.pth", "flowres.pth") for w in ask]
    assert "flowres.pth" in said(capsys, 2, *unknown)[1]
    _, err = said(capsys, 2, *[w.replace("flower_net", "no_net") for w in ask])
    assert "no_net" in err
    assert "there already" not in err
    Path("o/photo_orchid_record.json").write_text("mine")
    _, err = said(capsys, 2, *ask, "--target", "orchid")
    assert "No class is called 'orchid'" in err


def test_another_photograph_of_the_same_name_overwrites_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, *EXPLAIN)
    Path("elsewhere").mkdir()
    Image.fromarray(pixels(1)).save("elsewhere/photo.png")
    before = contents()
    _, err = said(capsys, 2, "explain", "elsewhere/photo.png", *MODEL, "--out", "o")
    assert "is there already" in err
    assert contents() == before


def test_a_file_made_or_changed_by_hand_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o").mkdir()
    Path("o/photo_tulip_overlay.png").write_bytes(b"mine")
    _, err = said(capsys, 2, *EXPLAIN)
    assert "o/photo_tulip_overlay.png is there already: it was not written by this command" in err
    assert contents() == {"photo_tulip_overlay.png": hashlib.sha256(b"mine").hexdigest()}
    Path("o/photo_tulip_overlay.png").unlink()
    said(capsys, 0, *EXPLAIN)
    Path("o/photo_record.json").write_text("{} with notes of my own")
    _, err = said(capsys, 2, *EXPLAIN)
    assert "o/photo_record.json is there already: it was changed since it was written" in err
    assert Path("o/photo_record.json").read_text() == "{} with notes of my own"


def test_a_damaged_list_makes_no_file_ours(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, *EXPLAIN)
    for text in (b"", b"[]", b'{"files": 3}', b'{"files": {"photo_record.json": 4}}', b"\xff\xfe"):
        (Path("o") / files.LIST).write_bytes(text)
        assert "is there already" in said(capsys, 2, *EXPLAIN)[1]


def test_compare_overwrites_its_own_alone(capsys: pytest.CaptureFixture[str]) -> None:
    compare = ["compare", "photo.png", *MODEL, "--out", "o", "--methods"]
    said(capsys, 0, *compare, "sensitivity")
    assert "replaced" in said(capsys, 0, *compare, "sensitivity")[0]
    before = contents()
    assert "photo_compare.png is there already" in said(capsys, 2, *compare, "deep-taylor")[1]
    assert contents() == before


def test_export_overwrites_no_file_and_never_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    Path("explainer.onnx").write_bytes(b"mine")
    assert "explainer.onnx is there already" in said(capsys, 2, "export", *SAID[:1], "explainer.onnx", *SAID[1:])[1]
    assert Path("explainer.onnx").read_bytes() == b"mine"
    Path("net.onnx").write_bytes(b"a network")
    _, err = said(capsys, 2, "export", "net.onnx", "./net.onnx", "--overwrite")
    assert "is the network itself" in err
    assert Path("net.onnx").read_bytes() == b"a network"


def test_the_demo_overwrites_its_own_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "run", lambda out: files.write_whole(out / "report.html", b"report"))
    said(capsys, 0, "demo", "--out", "o")
    assert "replaced" in said(capsys, 0, "demo", "--out", "o")[0]
    Path("o/cat_photo.png").write_bytes(b"mine")
    assert "o/cat_photo.png is there already" in said(capsys, 2, "demo", "--out", "o")[1]
    said(capsys, 0, "demo", "--out", "o", "--overwrite")


def test_experiments_overwrite_their_own_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def experiment(words: list[str]) -> int:
        out = programs._out("mnist", words)
        out.mkdir(exist_ok=True)
        files.write_whole(out / "report.html", b"report")
        return 0

    monkeypatch.setattr(programs, "_main", lambda _: experiment)
    said(capsys, 0, "paper", "mnist", "--out", "o")
    assert "1 existing files were replaced" in said(capsys, 0, "paper", "mnist", "--out", "o")[0]
    _, err = said(capsys, 2, "paper", "imagenet", "--out", "o")
    assert "o/report.html is there already: it was written by `deeptaylor paper mnist`" in err
    said(capsys, 0, "paper", "imagenet", "--out", "o", "--overwrite")


def test_outside_of_commands_files_are_replaced_as_always(tmp_path: Path) -> None:
    files.write_whole(tmp_path / "a", b"1")
    files.write_whole(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert not (tmp_path / files.LIST).exists()


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_with_the_file_and_the_room(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, 0, *EXPLAIN)
    before, synced = contents(), list[int]()

    def full(_: int) -> None:
        synced.append(1)
        if len(synced) == 3:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", full)
    _, err = said(capsys, 2, *EXPLAIN)
    assert "o/photo_tulip_overlay.png cannot be written: the disk is full. It needs " in err
    assert "with the 4 that belong to it" in err
    assert "are free in " in err
    assert contents() == before


def test_another_trouble_names_the_file_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def trouble(_: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files.os, "fsync", trouble)
    with pytest.raises(PermissionError) as info:
        files.write_whole(tmp_path / "a.png", b"1")
    assert info.value.filename == str(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_too_little_room_for_the_rest_is_said_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(pixels(1)).save("second.png")
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    out, _ = said(capsys, 0, "explain", "photo.png", "second.png", *MODEL, "--out", "o")
    assert "1 more photographs need about " in out
    assert "10 bytes are free" in out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    command: list[Any] = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small_disk / "taken").write_bytes(bytes(56 * 1024))
    _, err = said(capsys, 2, "explain", "photo.png", *MODEL, "--out", str(small_disk))
    assert "the disk is full. It needs " in err
    assert f"8.19 kB are free in {small_disk}" in err
    assert [p.name for p in small_disk.iterdir()] == ["taken"]
