"""`deeptaylor explain --box`, `--region`, `--pixel`: coordinates of the photograph, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cli_model import said
from detectors import ColorDetector, ColorSegmenter

HOW = [
    "--model", "cells.pth", "--architecture", "detectors:ColorDetector", "--class-names", "names.txt", "--size", "32",
    "--resize", "32", "--channels", "RGB", "--white", "1", "--mean", "0", "--std", "1", "--interpolation", "nearest",
]  # fmt: skip
DENSE = ["--architecture", "detectors:ColorSegmenter"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(ColorDetector().state_dict(), "cells.pth")
    Path("names.txt").write_text("face\nhand\n")
    photo = np.zeros((64, 96, 3), np.uint8)  # resized to 32 × 48; the network sees columns 16 to 80
    photo[16:32, 32:48] = 51
    Image.fromarray(photo).save("photo.png")


def test_a_box_is_given_in_pixels_of_the_photograph(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photo.png", *HOW, "--box", "32,16,48,32", "--target", "face", "--out", "new")
    assert out.startswith("photo.png: explained: face, score 0.99, in the box (8, 8, 16, 16). Saved to new/photo_place")
    assert "the boxes are read as yolov8" in out
    with Image.open("new/photo_place.png") as picture:
        assert picture.size == (96, 64)
    record = json.loads(Path("new/photo_place_record.json").read_text())
    assert record["box"] == "32,16,48,32"
    assert record["check"]["accounted"]


def test_the_best_box_needs_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photo.png", *HOW, "--box", "best", "--out", "new")
    assert "face, score 0.99, in the box (8, 8, 16, 16)" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--box", "1,2,3"], "4 numbers are needed, --box x1,y1,x2,y2"),
        (["--box", "0,0,8,8"], "is outside of the picture"),
        (["--box", "best", "--target", "hand"], "does not find hand in the picture"),
        (["--box", "best", "--pixel", "1,2"], "Give one of --box, --region and --pixel"),
        (["--pixel", "1,2"], "outside of what the network sees of the photograph: rows 0 to 64, columns 16 to 80"),
        (["--pixel", "1,20"], "needs one output of shape"),
        (["--layout", "yolov8"], "Give one of --box"),
        (["--region", "photo.png", "--layout", "yolov8"], "give --box as well"),
        (["--region", "small.png"], "has 4 × 4 pixels, the photograph 64 × 96"),
        (["--box", "best", "--flip"], "--flip does not apply to a place"),
        (["--box", "best", "--target", "face", "--target", "hand"], "A place has one class"),
    ],
)
def test_bad_places(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (4, 4), 255).save("small.png")
    _, err = said(capsys, 2, "explain", "photo.png", *HOW, *given)
    assert message in " ".join(err.split())


@pytest.mark.parametrize("given", [["--pixel", "20,40"], ["--region", "mask.png"]])
def test_dense_outputs(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(ColorSegmenter().state_dict(), "cells.pth")
    mask = np.zeros((64, 96), np.uint8)
    mask[16:32, 32:48] = 255
    Image.fromarray(mask).save("mask.png")
    how = [*HOW[:2], *DENSE, *HOW[4:]]
    out, _ = said(capsys, 0, "explain", "photo.png", *how, *given, "--target", "face", "--out", "new")
    assert "explained: face, " in out
    assert "output 3.2, " in out  # 16 pixels of 0.2
