"""`deeptaylor explain --text`: coloured words, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import deeptaylor as dt
from cli_model import MODEL, said, write
from deeptaylor.app.cli.values import format_wording
from small_texts import classifier, embedder, library


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library()
    made = tmp_path_factory.mktemp("networks")
    for name, p in (("classifier", classifier()), ("embedder", embedder())):
        p.network.save_pretrained(made / name)  # type: ignore[operator]
        p.tokenizer.save_pretrained(made / name)
    return made


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_words_and_the_account_are_printed_and_saved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"hf:{folder / 'classifier'}")
    asked = ("explain", "--text", "The films was not bad", "--target", "positive", *model)
    out, _ = said(capsys, 0, *asked, "--out", "words.html")
    assert "Which words speak for 'positive'?" in out
    assert "On average over 10 copies of the text in which all or half of the words are [MASK] or hidden from" in out
    assert "Saved to words.html." in out
    assert "films</span>" in Path("words.html").read_text()
    said(capsys, 0, *asked, "--out", "words.png")
    with Image.open("words.png") as picture:
        assert picture.width == 720
    out, _ = said(capsys, 0, *asked, "--text", "a film", "--json", "--out", "words.json")
    found = json.loads(out)
    assert found["kind"] == "classifier"
    assert [t["text"] for t in found["texts"]] == ["The films was not bad", "a film"]
    assert json.loads(Path("words.json").read_text())["texts"] == found["texts"]
    _, err = said(capsys, 2, *asked, "--text", "a film", "--out", "two.png")
    assert "a .png file holds one text, but 2 were given" in err
    _, err = said(capsys, 2, *asked, "--out", "words.gif")
    assert "words.gif ends in .gif" in err


def test_check_prints_the_check_and_the_account(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"hf:{folder / 'classifier'}"
    asked = ("explain", "--text", "The films was not bad", "--text", "a film", "--target", "positive", "-m", source)
    plain, _ = said(capsys, 0, *asked)
    checked, _ = said(capsys, 0, *asked, "--check")
    e = dt.explain(dt.load(source), ["The films was not bad", "a film"], target="positive")
    checks = "\n\n".join(map(format_wording, e.check().sentences()))
    assert checked == f"{plain}\n{checks}\n\n{e.table(0)}\n\n{e.table(1)}\n"
    found = json.loads(said(capsys, 0, *asked, "--check", "--json")[0])
    assert found["check"]["accounted"] is True
    assert said(capsys, 0, *asked, "--check", "--quiet")[0] == ""


def test_similarity(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"hf:{folder / 'embedder'}")
    out, _ = said(capsys, 0, "explain", "--text", "a man plays guitar", "--similar-to", "the music", *model)
    assert "The cosine similarity is " in out


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    model = ("--model", f"hf:{folder / 'classifier'}")
    for words, wanted in (
        (model, "Nothing to explain"),
        (("--continuation", "x", *model), "--continuation is an option for texts: give --text as well"),
        (("photo.png", "--text", "a film", *model), "Give photographs or --text, not both"),
        (("--text", " ", *model), "The text is empty"),
        (("--text", "a film", "--flip", *model), "--flip is an option for photographs: leave it out with --text"),
        (
            ("--text", "a film", "--bias", "spread", *model),
            "--bias is an option for photographs: leave it out with --text",
        ),
        (("--text", "a film", "--rule", "*=z", *model), "--rule is an option for photographs"),
        (("--text", "a film", "--size", "224", *model), "--size is an option for photographs"),
        (("--text", "a film", "--device", "cpu", *model), "--device is an option for photographs"),
        (("--text", "a film", "--trust", *model), "--trust is an option for photographs"),
        (("--text", "a film", "--arrays", "none", *model), "--arrays is an option for photographs"),
        (("--text", "a film", *MODEL), "does not read texts: --text needs a transformers network"),
        (("photo.png", *model), "reads texts; a network for photographs or numbers is needed here"),
        (("--text", "a film", "--model", str(folder / "classifier")), f"Did you mean hf:{folder / 'classifier'}?"),
        (("--text", "a", "--similar-to", "b", "--target", "1", *model), "--target does not apply to two texts"),
    ):
        _, err = said(capsys, 2, "explain", *words)
        assert wanted in err
