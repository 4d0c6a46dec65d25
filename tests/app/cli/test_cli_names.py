"""Names that would move a terminal, break a line or turn it around are spelled out wherever they are shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import cli_model
import deeptaylor as dt
from cli_model import MODEL, pixels
from deeptaylor.app.cli import main
from deeptaylor.app.server.explanations import command
from deeptaylor.app.server.schema import ExplainOptions
from deeptaylor.formatting import CONTROL_CHARACTERS, escape_name

EVIL = "a\x1b[2J\x1b]0;owned\x07\n\r\x9b31m\u202egnp.png"
RAW = re.compile(f"(?!\n)[{CONTROL_CHARACTERS}]")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli_model.write(tmp_path)


def everything(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(list(words))
    captured = capsys.readouterr()
    return captured.out + captured.err


def evil_photo(name: str = EVIL) -> str:
    try:
        Image.fromarray(pixels()).save(name, "PNG")
    except (OSError, ValueError):
        pytest.skip("files cannot be called so here")
    return name


@pytest.mark.parametrize("verb", ["explain", "compare"])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["words", "json"])
def test_a_photograph(verb: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = everything(capsys, verb, evil_photo(), *MODEL, "--out", "o", *more)
    assert not RAW.search(said)
    assert r"a\x1b[2J" in said or r"a\u001b[2J" in said
    for file in Path("o").iterdir():
        assert not RAW.search(file.name)
        if file.suffix == ".json":
            assert not RAW.search(file.read_text())
            assert json.loads(file.read_text())["photo"] == EVIL  # and nothing is lost


@pytest.mark.parametrize("verb", ["explain", "compare"])
def test_a_photograph_that_cannot_be_read(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(evil_photo()).write_bytes(b"no picture")
    assert not RAW.search(said := everything(capsys, verb, EVIL, *MODEL))
    assert r"\n\r\x9b31m\u202egnp.png is not a picture" in said
    assert not RAW.search(said := everything(capsys, verb, f"not{EVIL}", *MODEL))
    assert r"no such file: nota\x1b[2J" in said


def test_bytes_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    name = evil_photo(os.fsdecode(b"caf\xe9.png"))
    assert main(["explain", name, *MODEL, "--out", "o"]) == 0
    assert r"caf\udce9.png" in capsys.readouterr().out
    assert json.loads(Path("o/caf__record.json").read_text())["photo"] == name
    Path("p").mkdir()
    Path("p", name).write_bytes(Path(name).read_bytes())
    assert main(["explain", name, f"p/{name}", *MODEL, "--out", "o2"]) == 0  # two of one name: by their hash


def test_two_names_that_look_alike_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = evil_photo("a\x1b.png"), evil_photo("a\x07.png")
    assert main(["explain", one, two, *MODEL, "--out", "o"]) == 0
    assert len(list(Path("o").glob("a_-*_record.json"))) == 2


def test_classes_and_files_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("dai\x1b[2Jsy\nro\x9bse\ntulip\u202e\n")
    said = everything(capsys, "explain", "photo.png", *MODEL, "--target", "all-top-3")
    assert not RAW.search(said)
    assert r"dai\x1b[2Jsy" in said
    for words in (
        ["check", "no\x1bsuch"],
        ["no\x1bverb"],
        ["explain", "photo.png", "-m", "no\x1bsuch.onnx"],
        ["export", "flowers.pth", "no\x1b/x.onnx"],
        ["explain", "photo.png", *MODEL, "--target", "no\x1bclass"],
        ["explain", "photo.png", *MODEL, "--class-names", "no\x1bfile"],
        ["explain", "photo.png", *MODEL, "--out", "photo.png/\x1b"],
    ):
        said = everything(capsys, *words)
        assert "error" in said.lower()
        assert not RAW.search(said), words


def test_python_hears_the_same() -> None:
    Path("bad\x1b\n.png").write_bytes(b"no picture")
    network = dt.load(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval(),
        class_names=None,
        preparation=dt.Preparation(
            size=2, resize=2, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear"
        ),
    )
    with pytest.raises(dt.InputError) as info:
        dt.explain(network, "bad\x1b\n.png", bias="neuron")
    assert str(info.value).startswith(r"bad\x1b\n.png is not a picture")
    evil_photo("gray\x1b.png")
    Image.open("gray\x1b.png").convert("L").save("gray\x1b.png")
    with pytest.warns(dt.DeepTaylorWarning, match=re.escape(r"gray\x1b.png is grayscale")):
        dt.explain(network, "gray\x1b.png", 0, bias="neuron")
    x = torch.ones(1, 3, 2, 2)
    with pytest.raises(dt.BoundaryError) as missing:
        dt.Explainer(network.network, x, network.domain, bias="neuron").explain(x, 0).at("no\x1bnode")
    assert "\x1b" not in str(missing.value)


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="no bash here")
@pytest.mark.parametrize("name", ["a b.png", "it's\x1b[2J \\n\n.png", "ro\x9bse\u202e'.png", "$(ls)\x07`ls`.png"])
def test_the_command_on_the_page_can_be_pasted(name: str) -> None:
    text = command(ExplainOptions(model="one-layer", file=name), "one-layer", {}, None, None)
    assert escape_name(text) == text
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {text.split(' explain ')[1].partition(' --model')[0]}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.decode() == name
    if name == "a b.png":
        assert shlex.split(text)[2] == name
