"""`deeptaylor evaluate`: what it says and writes, names that are refused, and runs that were broken off."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch import Tensor, nn

from cli_model import MODEL, pixels, said, write
from deeptaylor.app.cli import evaluate as module
from deeptaylor.app.cli import main
from deeptaylor.evaluation import evaluate as engine
from deeptaylor.evaluation.baselines import calling
from deeptaylor.evaluation.metrics import RandomLogit
from deeptaylor.evaluation.scores import Evaluation

WORDS = ["evaluate", "photos", *MODEL, "--methods", "gradient; random", "--patch", "4", "--fill", "mean"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for k, name in enumerate(("rose/a.png", "daisy/b.png", "2_tulip.png")):
        Path("photos", name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(k)).save(Path("photos", name))


def replaced(monkeypatch: pytest.MonkeyPatch, name: str, method: Any) -> None:
    """Another method under a name that is known."""
    chosen = engine.choose_methods
    monkeypatch.setattr(engine, "choose_methods", lambda *asked: {**chosen(*asked), name: method})


def raising(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    raise ValueError("cannot explain this")


def test_what_is_said_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, *WORDS, "--metrics", "flipping; random logit", "--out", "new/folder")
    assert err == ""
    assert {p.name for p in Path("new/folder").glob("[!.]*")} == {"report.html", "evaluation.json"}
    for method in ("gradient", "random"):
        assert len(re.findall(rf"\b{method} +-?[\d.]+ \[-?[\d.]+, -?[\d.]+\] +3\b", out)) == 2, out
    assert "* highest, or not distinguishable from the highest" in out
    assert "Saved to new/folder/report.html, new/folder/evaluation.json" in out
    found = json.loads(Path("new/folder/evaluation.json").read_text("utf-8"))
    assert [(s["metric"], s["method"]) for s in found["scores"]] == [
        ("flipping", "gradient"), ("random logit", "gradient"), ("flipping", "random"), ("random logit", "random"),
    ]  # fmt: skip
    assert all(len(s["values"]) == 3 for s in found["scores"])
    assert ">gradient</" in Path("new/folder/report.html").read_text("utf-8")


def test_no_method_is_best_if_neither_high_nor_low_is_good(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomLogit, "higher", None)
    out, _ = said(capsys, 0, *WORDS, "--metrics", "random logit", "--out", "o")
    assert re.search(r"\bgradient +-?[\d.]+ \[", out)
    assert "*" not in out
    assert "best" not in out


def test_json_is_the_record_with_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, *WORDS, "--most", "2", "--json", "--out", "o")
    found = json.loads(out)
    assert found.pop("exit_code") == 0
    assert found["about"]["samples"] == 2
    assert found == json.loads(Path("o/evaluation.json").read_text("utf-8"))


def test_what_was_left_out_stands_in_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos/bad.png").write_text("words")
    Image.fromarray(pixels(9)).save("photos/unnamed.png")
    out, _ = said(capsys, 0, *WORDS, "--out", "o")
    for text in (out, Path("o/report.html").read_text("utf-8")):
        assert text.count("1 of 5 photographs could not be read: bad.png") == 1
        assert text.count("1 of 4 photographs have no class that the network knows") == 1


def test_a_method_that_fails_is_named_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, "gradient", raising)
    out, err = said(capsys, 3, *WORDS, "--out", "o")
    assert "gradient: ValueError: cannot explain this" in err
    assert re.search(r"\brandom +-?[\d.]+ \[", out)
    assert "Left out: gradient. ValueError: cannot explain this" in Path("o/report.html").read_text("utf-8")
    replaced(monkeypatch, "random", raising)
    said(capsys, 2, *WORDS, "--out", "o2")


def test_a_run_that_was_broken_off_goes_on_with_the_same_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, asked = Path("o", module._PARTIAL), list[str]()

    def counted(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.append("gradient")
        return calling.gradient(net, x, classes)

    def broken_off(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        raise KeyboardInterrupt

    said(capsys, 0, *WORDS, "--out", "whole")
    replaced(monkeypatch, "gradient", counted)
    with monkeypatch.context() as patched:
        replaced(patched, "random", broken_off)
        assert main([*WORDS, "--out", "o"]) != 0
    assert begun.exists()
    assert not Path("o/report.html").exists()
    capsys.readouterr()
    said(capsys, 0, *WORDS, "--out", "o")
    assert asked == ["gradient"]
    assert not begun.exists()
    whole, again = (json.loads(Path(f, "evaluation.json").read_text("utf-8")) for f in ("whole", "o"))
    for record in (whole, again):
        for s in record["scores"]:
            s.pop("seconds")
    assert again == whole


def test_what_another_command_began_is_not_used(tmp_path: Path) -> None:
    begun = tmp_path / module._PARTIAL
    assert module._load_partial(tmp_path, "this") is None
    module._save_partial(tmp_path, "this", Evaluation((), {}))
    assert module._load_partial(tmp_path, "this") == Evaluation((), {})
    assert module._load_partial(tmp_path, "another") is None
    for words in ('{"asked": "this", "record": 1}', "[]", "words", "{}"):
        begun.write_text(words)
        assert module._load_partial(tmp_path, "this") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metrics", "flip"], "There is no metric called 'flip'; there are flipping, deletion"),
        (["--metrics", ";"], "--metrics names no metric. Choose from: flipping; deletion"),
        (["--methods", "gradients"], "There is no method called 'gradients'; there are auto, deep-taylor, "),
        (["--fill", "grey"], "There is no fill called 'grey'; use blur, mean, zero"),
        (["--device", "nonsense"], "--device nonsense: "),
    ],
)
def test_wrong_words_are_refused_before_any_work(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "load_photographs", lambda *_: pytest.fail("photographs were prepared"))
    assert message in said(capsys, 2, *WORDS, *words, "--out", "o")[1]
    assert not Path("o/report.html").exists()


def test_no_photographs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert "There are not photographs in empty" in said(capsys, 2, "evaluate", "empty", *MODEL)[1]
    assert "nowhere is not a folder of photographs" in said(capsys, 2, "evaluate", "nowhere", *MODEL)[1]


def test_too_few_classes_for_mosaics(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, *WORDS, "--metrics", "flipping; grid pointing", "--out", "o")
    assert "note: grid pointing: left out. Grid pointing needs pictures of at least 4 classes" in out
    assert "at least 4 classes" in said(capsys, 2, *WORDS, "--metrics", "grid pointing", "--out", "o2")[1]


def test_files_of_another_command_are_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, 0, *WORDS, "--out", "o")
    said(capsys, 0, *WORDS, "--out", "o")
    before = Path("o/evaluation.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(module, "load_photographs", lambda *_: pytest.fail("photographs were prepared"))
        said(capsys, 2, *WORDS, "--seed", "1", "--out", "o")
    assert Path("o/evaluation.json").read_bytes() == before
    said(capsys, 0, *WORDS, "--seed", "1", "--out", "o", "--overwrite")
    assert json.loads(Path("o/evaluation.json").read_text("utf-8"))["about"]["seed"] == 1
