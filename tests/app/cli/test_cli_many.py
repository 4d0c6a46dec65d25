"""`deeptaylor explain` with many photographs, several classes, and one class against another."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from cli_model import MODEL, flower_net, pixels, said, write
from deeptaylor.app.cli import explain as explain_verb
from deeptaylor.app.cli.answers import PhotoAnswer, ReportEntry, draw_contact_sheet, render_page
from deeptaylor.app.cli.photos import find_photos
from deeptaylor.app.cli.questions import PhotoQuestion, TargetOptions
from deeptaylor.errors import InputError
from deeptaylor.viz.captions import describe_indistinct
from deeptaylor.viz.drawings import color_strength

SRC = Path(__file__).parents[3] / "src"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)


def some_photographs() -> None:
    for name in ("photos/a.png", "photos/more/b.PNG", "photos/.hidden.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(len(name))).save(name, format="png")
    Path("photos/notes.txt").write_text("words")


# --- many photographs -------------------------------------------------------------------------------------------------


def test_folders_patterns_and_files_each_once() -> None:
    some_photographs()
    both = [Path("photos/a.png"), Path("photos/more/b.PNG")]
    assert find_photos([Path("photos")]) == both
    assert find_photos([Path("photos/*.png"), Path("photos")]) == both
    assert find_photos([Path("photos/**/*.PNG")]) == [both[1]]
    with pytest.raises(InputError, match=r"no such file: nothing\*\.png, other"):
        find_photos([Path("nothing*.png"), Path("other"), Path("photo.png")])
    Path("empty").mkdir()
    with pytest.raises(InputError, match="the folder empty contains no picture"):
        find_photos([Path("empty")])


def test_an_interrupted_folder_says_how_far_it_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    some_photographs()
    whole = explain_verb.explain_photo

    def stopped(asked: PhotoQuestion, *more: Any) -> PhotoAnswer:
        if asked.photo.path.name == "b.PNG":
            raise KeyboardInterrupt
        return whole(asked, *more)

    monkeypatch.setattr(explain_verb, "explain_photo", stopped)
    out, err = said(capsys, 130, "explain", "photos", *MODEL, "--out", "o")
    assert "1 of 2 photographs are done; their files are in o. The same command begins again, and replaces" in out
    assert err == "interrupted; no file was left half-written\n"
    assert Path("o/a_record.json").exists()
    monkeypatch.setattr(explain_verb, "explain_photo", whole)
    assert "2 photographs explained" in said(capsys, 0, "explain", "photos", *MODEL, "--out", "o")[0]


def test_a_map_lies_over_the_photograph_in_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    for name, size in (("wide.png", (2400, 1200)), ("small.png", (500, 700))):
        Image.new("RGB", size, (40, 90, 200)).save(name)
    said(capsys, 0, "explain", "wide.png", "small.png", *MODEL, "--target", "tulip", "--out", "o")
    for name, size in (("wide", (1600, 800)), ("small", (500, 700))):
        with Image.open(f"o/{name}_tulip_overlay.png") as picture:
            assert picture.size == size
            edge, middle = picture.getpixel((1, 1)), picture.getpixel((size[0] // 2, size[1] // 2))
        assert edge != middle  # the network saw the middle alone, and the rest is paler


def test_a_refused_call_leaves_no_folder_behind(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 2, "explain", "photo.png", *MODEL, "--target", "nothing", "--out", "new/folder")
    said(capsys, 2, "compare", "photo.png", *MODEL, "--target", "nothing", "--out", "new/folder")
    assert not Path("new").exists()
    Path("mine").mkdir()
    said(capsys, 2, "explain", "photo.png", *MODEL, "--target", "nothing", "--out", "mine/new")
    assert list(Path("mine").iterdir()) == []


def test_a_folder_gives_a_line_each_a_report_and_a_contact_sheet(capsys: pytest.CaptureFixture[str]) -> None:
    some_photographs()
    Path("photos/bad.png").write_text("words")
    out, err = said(capsys, 3, "explain", "photos", *MODEL, "--out", "o")
    assert re.search(r"^error: .*bad\.png is not a picture that can be read", err)
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3:2]] == ["photos/a.png", "photos/more/b.PNG"]
    assert lines[1].startswith("  Method: deep Taylor, because the network consists of ")  # said once
    assert lines[3].startswith("Biases absorbed ")  # likewise
    assert len(lines) == 5
    assert lines[4] == (
        "2 photographs explained, 1 failed. Saved to o: open o/report.html, or look at contact_sheet.png."
    )
    html = Path("o/report.html").read_text(encoding="utf-8")
    assert html.count("<img ") == 2 * 3  # of each one in the overview; the photograph, and one map over it
    assert "2 photographs, explained with flowers.pth. Not explained: bad.png." in html
    assert "deeptaylor explain" in html
    assert "/photos --model flowers.pth" in html
    assert f"<p>{lines[0].partition(': ')[2]}" in html
    assert html.index("<figure>") < html.index(f"<p>{lines[0].partition(': ')[2]}")  # the picture comes first
    with Image.open("o/contact_sheet.png") as sheet:
        assert sheet.size == (2 * (24 + 8) + 8, 2 * (24 + 8 + 18) + 8)  # a row for each photograph: itself, its map
    said(capsys, 3, "explain", "photos", *MODEL, "--out", "o")  # the same command replaces its own
    Path("o/report.html").write_text("mine")
    assert "report.html is there already" in said(capsys, 2, "explain", "photos", *MODEL, "--out", "o")[1]


def test_one_photograph_has_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, "explain", "photo.png", *MODEL, "--out", "o")
    assert not Path("o/report.html").exists()


def test_the_page_has_room_for_some_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeptaylor.app.cli.answers._MOST", 2)
    white = np.full((300, 500, 3), 255, dtype=np.uint8)
    photos = [ReportEntry(f"{k}.png", ["a line <b>"], [], [("photograph", white), ("cat", white)]) for k in range(3)]
    html = render_page("deeptaylor explain <x>", "a network", photos)
    assert html.count("<h2") == 3  # two photographs, and how it was computed
    assert "This page shows the first 2 photographs" in html
    assert "<b>" not in html
    assert "<x>" not in html
    assert draw_contact_sheet(photos).shape[1] == 2 * (224 + 8) + 8


# --- classes ----------------------------------------------------------------------------------------------------------


def test_several_targets_by_name_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "photo.png", *MODEL, "--target", "tulip", "--target", "0", "--target", "TULIP"]
    out, _ = said(capsys, 0, *words, "--out", "o")
    assert re.match(r"photo.png: tulip, [\d.]+ %; daisy, [\d.]+ %. Saved to ", out)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["tulip:", "daisy:"]
    assert {"photo_tulip_heatmap.png", "photo_daisy_overlay.png"} < {p.name for p in Path("o").iterdir()}


def network() -> dt.Pretrained:
    net = flower_net()
    net.load_state_dict(torch.load("flowers.pth", weights_only=True))
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        interpolation="bilinear",
    )  # fmt: skip
    return dt.load(net, preparation=preparation, class_names=["daisy", "rose", "tulip"])


def alike(share: float) -> None:
    """Daisy's weights from tulip's (0) to its own (1), and beyond."""
    weights = torch.load("flowers.pth", weights_only=True)
    for name in ("7.weight", "7.bias"):
        weights[name][0] = share * weights[name][0] + (1 - share) * weights[name][2]
    torch.save(weights, "flowers.pth")


def test_one_class_against_another_is_the_contrast(capsys: pytest.CaptureFixture[str]) -> None:
    alike(1.5)
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--target", "tulip", "--against", "daisy", "--out", "o")
    c = dt.contrast(network(), "photo.png", "tulip", "daisy")
    with np.load("o/photo_tulip_against_daisy_relevance.npz") as arrays:
        assert np.array_equal(arrays["relevance"][0], c.numpy()[0])
        assert np.array_equal(arrays["shared"][0], np.asarray(c.shared[0]))
    names = {f"photo_tulip_against_daisy_{kind}.png" for kind in ("heatmap", "overlay", "difference")}
    assert names < {p.name for p in Path("o").iterdir()}
    own = float(c.ledger.input / c.ledger.input_total)
    assert 0.05 < own < 1
    assert f"; {100 * own:.1f} % of its relevance is distinctive, the rest is shared with rivals." in out
    record = json.loads(Path("o/photo_tulip_against_daisy_record.json").read_text())
    assert record["against"] == "daisy"
    assert record["explanations"][0]["targets"][0]["colours_times"] == 1
    ledger = record["explanations"][0]["targets"][0]["ledger"]
    assert ledger["input"] + ledger["shared"] == pytest.approx(float(c.score), rel=1e-5)


def test_its_own_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "photo.png", *MODEL, "--target", "tulip", "--target", "daisy", "--against", "rivals"]
    out, _ = said(capsys, 0, *words, "--out", "o")
    assert out.count(", compared with its rivals") == 2


def test_the_higher_score_is_asked_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", "photo.png", *MODEL, "--target", "daisy", "--against", "tulip", "--out", "o"]
    _, err = said(capsys, 2, *words)
    p = network()
    z = p.output(p.preprocess("photo.png")[0])[0]
    wanted = f"tulip scores higher than daisy, by {float(z[2] - z[0]):.4g}. Swap them: "
    assert wanted + '--target "tulip" --against "daisy".' in " ".join(err.split())
    assert not Path("o").exists()  # no blank picture


def test_a_class_without_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.load("flowers.pth", weights_only=True)
    weights["7.bias"][1] = -50.0
    torch.save(weights, "flowers.pth")
    _, err = said(capsys, 2, "explain", "photo.png", *MODEL, "--target", "rose", "--out", "o")
    assert re.search(
        r"no evidence for rose: the score is -\d+\.\d+, which is not above zero, and there is nothing to show", err
    )
    _, err = said(capsys, 2, "explain", "photo.png", *MODEL, "--target", "tulip", "--against", "rose", "--out", "o")
    assert "there is no evidence to compare tulip with. Leave out --against" in err
    assert not Path("o").exists()


def test_of_several_classes_those_without_evidence_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    weights = torch.load("flowers.pth", weights_only=True)
    weights["7.bias"][1] = -50.0
    torch.save(weights, "flowers.pth")
    words = ["explain", "photo.png", *MODEL, "--target", "rose", "--target", "tulip", "--out", "o"]
    out, _ = said(capsys, 0, *words)
    assert "note: no map for rose: the score is not above zero." in out
    assert {p.name for p in Path("o").glob("*_heatmap.png")} == {"photo_tulip_heatmap.png"}


def test_where_nothing_sets_a_class_apart_no_map_of_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    alike(0)  # the contrast is the floor everywhere
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--target", "tulip", "--against", "daisy", "--out", "o")
    sentence = describe_indistinct(0.5**6, "tulip")
    assert sentence.startswith("Nothing distinguishes tulip from its rivals: 1.6 %")
    assert f"{sentence} No map of the distinctive part is drawn: it would show shared evidence." in out
    assert [p.name for p in Path("o").glob("*.png")] == ["photo_tulip_against_daisy_difference.png"]
    record = json.loads(Path("o/photo_tulip_against_daisy_record.json").read_text())
    assert record["explanations"][0]["targets"][0]["colours_times"] == 0
    said(capsys, 0, "explain", "photo.png", *MODEL, "--out", "o")  # another question, the same folder


def test_what_hardly_sets_a_class_apart_is_drawn_in_stronger_colours(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photo.png", *MODEL, "--target", "tulip", "--against", "daisy", "--out", "o")
    c = dt.contrast(network(), "photo.png", "tulip", "daisy")
    share = float(c.ledger.input / c.ledger.input_total)
    assert "Hardly anything distinguishes tulip from its rivals: " in describe_indistinct(share, "tulip")
    times = color_strength(c, 0, 0)
    assert times > 8
    assert f"{describe_indistinct(share, 'tulip')} Its colours are {times:.0f} times as strong as" in out
    record = json.loads(Path("o/photo_tulip_against_daisy_record.json").read_text())
    assert record["explanations"][0]["targets"][0]["colours_times"] == pytest.approx(times, rel=1e-4)
    for kind in ("heatmap", "overlay"):
        with Image.open(f"o/photo_tulip_against_daisy_{kind}.png") as picture:
            red, green, _ = np.moveaxis(np.asarray(picture.convert("RGB")).astype(int), -1, 0)
        assert (red - green).max() > 100, kind  # strong colours somewhere
    assert describe_indistinct(share) in c.drawing(0, 0).caption  # the figure says the same


def test_a_question_is_checked_before_photographs() -> None:
    with pytest.raises(InputError, match="N must be at least 1"):
        TargetOptions(["all-top-0"]).check(network())


# --- on a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="terminals")
def test_lines_end_between_words_on_a_terminal() -> None:
    code = "from deeptaylor.app.cli.printer import Printer; Printer().say('wonderful ' * 20)"
    ours, theirs = pty.openpty()
    env = os.environ | {"PYTHONPATH": str(SRC), "TERM": "xterm", "COLUMNS": "47"}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert process.wait(60) == 0
    shown = os.read(ours, 4096).decode().split()
    os.close(ours)
    assert set(shown) == {"wonderful"}
