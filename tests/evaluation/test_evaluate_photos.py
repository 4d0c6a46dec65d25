"""Photographs of a folder and their classes: by subfolder, by file name, or the network's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.deletion import Flipping
from deeptaylor.evaluation.evaluate import load_photographs

NAMES = ("black", "dark grey", "white")


class Brightness(nn.Module):
    """Three classes by the mean brightness: 0, .5, 1."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.Parameter(torch.tensor([0.0, 0.5, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return 1 - (x.mean((1, 2, 3))[:, None] - self.levels).abs()


def model(names: tuple[str, ...] | None = NAMES, network: nn.Module | None = None) -> dt.Pretrained:
    preparation = dt.Preparation(size=6, resize=6, channels="L", white=1, mean=0, std=1, interpolation="box")
    return dt.Pretrained(network or Brightness(), names, preparation)


def photo(path: Path, level: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 9), level, dtype=np.uint8)).save(path)


def test_subfolders_by_the_name_or_the_number_of_a_class(tmp_path: Path) -> None:
    photo(tmp_path / "white" / "a.png", 10)
    photo(tmp_path / "Dark_Grey" / "b.PNG", 20)
    photo(tmp_path / "0" / "c.jpg", 255)
    (tmp_path / "0" / "notes.txt").write_text("no photograph")
    found = load_photographs(tmp_path, model())
    assert [f.name for f in found.files] == ["c.jpg", "b.PNG", "a.png"]
    assert found.classes.tolist() == [0, 1, 2]
    assert found.x.shape == (3, 1, 6, 6)
    assert found.x.flatten(1).mean(1).tolist() == pytest.approx([1, 20 / 255, 10 / 255])
    assert found.notes == ()


def test_numbers_before_the_name_of_a_file(tmp_path: Path) -> None:
    for name in ("2_white.png", "1-grey.png", "0_1.png"):
        photo(tmp_path / name, 255)
    assert load_photographs(tmp_path, model()).classes.tolist() == [0, 1, 2]
    assert load_photographs(tmp_path, model(names=None)).classes.tolist() == [0, 1, 2]


def test_a_folder_that_is_no_class_leaves_it_to_the_file(tmp_path: Path) -> None:
    photo(tmp_path / "holiday" / "1_x.png")
    assert load_photographs(tmp_path, model()).classes.tolist() == [1]


def test_where_nothing_says_a_class_the_networks_first_is_taken_and_said(tmp_path: Path) -> None:
    photo(tmp_path / "bright.png", 250)
    photo(tmp_path / "green" / "middle.png", 120)
    photo(tmp_path / "7_there_is_no_such_class.png", 3)
    photo(tmp_path / "white" / "dark.png", 0)
    found = load_photographs(tmp_path, model())
    assert dict(zip([f.stem for f in found.files], found.classes.tolist(), strict=True)) == {
        "bright": 2, "middle": 1, "7_there_is_no_such_class": 0, "dark": 2,
    }  # fmt: skip
    (note,) = found.notes
    assert note.startswith("3 of 4 photographs have no class that the network knows (7_there_is_no_such_class.png, ")
    assert "green/middle.png" in note
    assert note.endswith("or a number before the file's name, as in 207_dog.jpg.")


def test_a_long_list_is_cut_short(tmp_path: Path) -> None:
    for k in range(8):
        photo(tmp_path / f"photo{k}.png")
    assert "photo4.png and 3 more)" in load_photographs(tmp_path, model()).notes[0]


def test_networks_of_one_number_have_no_class_to_choose(tmp_path: Path) -> None:
    photo(tmp_path / "a.png", 250)
    one = nn.Sequential(nn.Flatten(), nn.Linear(36, 1), nn.Flatten(0))
    assert load_photographs(tmp_path, model(None, one)).classes.tolist() == [0]


def test_what_cannot_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    photo(tmp_path / "white" / "good.png")
    (tmp_path / "white" / "bad.png").write_text("words")
    found = load_photographs(tmp_path, model())
    assert [f.name for f in found.files] == ["good.png"]
    (note,) = found.notes
    assert note.startswith("1 of 2 photographs could not be read: bad.png (")
    (tmp_path / "white" / "good.png").unlink()
    with pytest.raises(dt.InputError, match=r"No photograph in .* could be read: bad.png \("):
        load_photographs(tmp_path, model())


def test_no_photographs_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(dt.InputError, match=r"There are not photographs in .* \(\.bmp, \.gif, \.jpeg, \.jpg, "):
        load_photographs(tmp_path, model())
    with pytest.raises(dt.InputError, match="nowhere is not a folder of photographs"):
        load_photographs(tmp_path / "nowhere", model())


def test_at_most_so_many_are_taken_from_all_classes(tmp_path: Path) -> None:
    for name in ("black", "dark grey", "white"):
        for k in range(4):
            photo(tmp_path / name / f"{k}.png")
    assert load_photographs(tmp_path, model(), most=3).classes.tolist() == [0, 1, 2]
    assert len(load_photographs(tmp_path, model(), most=99).files) == 12


def test_evaluate_takes_the_folder(tmp_path: Path) -> None:
    photo(tmp_path / "white" / "a.png", 200)
    photo(tmp_path / "b.png", 250)
    asked: list[int] = []

    def method(net: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        asked.extend(classes.tolist())
        return x

    found = dt.evaluate(model(), tmp_path, [method], [Flipping(patch=2)])
    assert asked == [2, 2]
    assert found.about["samples"] == 2
    assert found.notes[0].startswith("1 of 2 photographs have no class")
    dt.evaluate(model(), str(tmp_path), [method], [Flipping(patch=2)], classes=torch.tensor([0, 1]))
    assert asked[2:] == [0, 1]
