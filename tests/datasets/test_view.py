"""Some items of a run: filters, mean maps, montages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.datasets.view import View
from deeptaylor.errors import InputError, TargetError
from small_runs import Squares, network, run

pytest.importorskip("zarr")
DATA = Squares(40, {5: ValueError("cannot be read"), 9: torch.full((1, 8, 8), torch.nan)})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dt.Run:
    return run(DATA, tmp_path_factory.mktemp("runs") / "store")


def test_filters_by_class_score_ledger_and_error(done: dt.Run) -> None:
    t = done.table
    some = done.where(label=1, score=(0.1, None))
    assert some.rows.tolist() == [k for k in range(40) if t["label"][k] == 1 and t["score"][k] >= 0.1]
    assert set(done.where(label=[0, 2]).table["label"].tolist()) == {0, 2}
    assert done.where(label=(0, 2)).rows.tolist() == done.where(label=[0, 2]).rows.tolist()
    assert done.where(status=("unreadable", "not finite")).rows.tolist() == [5, 9]
    assert done.where(status="unreadable").rows.tolist() == [5]
    assert done.where(status=["unreadable", "not finite"]).rows.tolist() == [5, 9]
    low = float(np.nanmedian(t["own"]))
    assert (done.where(own=(low, None)).table["own"] >= low).all()
    assert done.where(score=lambda s: s > 1e9).rows.tolist() == []
    right, wrong = done.where(right=True, status="explained"), done.where(right=False, status="explained")
    assert len(right) + len(wrong) == 38
    assert (wrong.table["prediction"] != wrong.table["label"]).all()


def test_views_of_views(done: dt.Run) -> None:
    some = done.where(label=1).where(status="explained").by("score")
    assert (np.diff(some.table["score"]) <= 0).all()
    statuses = done.view().by("status").table["status"]
    assert (np.diff(statuses.astype(int)) <= 0).all()
    assert some.names == [str(k) for k in some.rows]
    assert np.array_equal(some.heatmaps[1:3], done.heatmaps[some.rows[1:3]])
    assert np.array_equal(some.heatmaps[0], done.heatmap(int(some.rows[0])))
    assert len(some[:4]) == 4
    whole = done.heatmaps[:]
    for maps, all_of_them in ((done.heatmaps, whole), (some.heatmaps, whole[some.rows])):
        for index in (..., (0, 3), (..., 3), (slice(1, 4), 2), ([2, 0], slice(None), 5), (-1, 2, 3)):
            assert np.array_equal(maps[index], all_of_them[index]), index
    assert some[2].rows.tolist() == [some.rows[2]]
    assert repr(some).startswith(f"<View of {len(some)} of the 40 items")


def test_mean_maps(done: dt.Run) -> None:
    means = done.means("label")
    assert means.classes == (0, 1, 2)
    own = done.where(label=2, status="explained")
    assert means.counts[2] == len(own)
    assert np.allclose(means.maps[2], own.heatmaps[:].mean(0), atol=1e-6)
    even = done.means("label", normalised=True)
    R = own.heatmaps[:].astype(np.float64)
    assert np.allclose(even.maps[2], (R / R.sum((1, 2), keepdims=True)).mean(0), atol=1e-6)


def test_pictures_of_many(done: dt.Run, tmp_path: Path) -> None:
    sheet = done.montage(6, columns=3)
    assert sheet.dtype == np.uint8
    assert sheet.shape[2] == 3
    over = done.montage(6, columns=3, data=DATA)  # the fifth cannot be read, and is empty
    assert over.shape == sheet.shape
    assert not np.array_equal(over, sheet)
    with Image.open(done.means().save(tmp_path / "means.png")) as image:
        assert image.width > 100
    assert done.view().caption(5, "5") == "5\nunreadable"


def test_mean_maps_say_briefly_what_they_are_and_draw_themselves(done: dt.Run) -> None:
    means = done.means("label")
    assert str(means) == (
        "<MeanMaps of 3 classes: class 0 (13 items), class 1 (13 items) and class 2 (12 items); .figure() draws them>"
    )
    pytest.importorskip("matplotlib")
    figure = means.figure()
    assert [ax.get_title() for ax in figure.axes] == ["class 0\n13 items", "class 1\n13 items", "class 2\n12 items"]
    assert "for none of the items was explained" in str(done.where(status="unreadable").means())


def test_without_classes_of_their_own_nothing_is_right_or_wrong(tmp_path: Path) -> None:
    found = run([DATA.x(k) for k in range(3)], tmp_path / "store")
    with pytest.raises(InputError, match="The items' own classes are not known, so right and wrong answers cannot"):
        found.where(right=False)
    with pytest.raises(InputError, match="are not known, so there is no mean of each"):
        found.means("label")
    assert len(found.means("prediction").maps)


def test_pictures_are_cut_as_the_network_saw_them(tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "house_cat"
    folder.mkdir(parents=True)
    pixels = np.zeros((12, 20), np.uint8)
    pixels[:, 6:14] = 200  # what lies in the middle
    for k in range(3):
        Image.fromarray(pixels + k).save(folder / f"{k}.png")
    made = dt.Preparation(size=8, resize=8, channels="L", white=1.0, mean=0.0, std=1.0, interpolation="bilinear")
    p = dt.Pretrained(network(), preparation=made, class_names=["house cat", "dog", "cow"])
    found = dt.explain_dataset(tmp_path / "photos", p, tmp_path / "store")
    seen = np.asarray(found.view().seen(1).convert("L"))
    assert seen.shape == (8, 8)
    assert seen[:, 2:6].mean() > 150
    assert found.where(label="house cat").rows.tolist() == found.where(label="house_cat").rows.tolist() == [0, 1, 2]
    over = found.montage(3)
    assert over.shape[1] > 3 * 96
    (tmp_path / "photos").rename(tmp_path / "moved")  # what cannot be read any more is shown without its photograph
    assert np.array_equal(found.montage(3), found.montage(3, photos=False))
    assert np.array_equal(found.montage(3, data=tmp_path / "moved"), over)
    with pytest.raises(InputError, match="no such folder"):
        found.montage(3, photos=True)


def test_refusals(done: dt.Run) -> None:
    with pytest.raises(InputError, match="There is no column 'nope': there are index, target"):
        done.view().by("nope")
    with pytest.raises(InputError, match=r"'label' holds numbers; got None"):
        done.where(label=(1, None))
    with pytest.raises(InputError, match=r"'score' holds numbers; got \('low', 'high'\)"):
        done.where(score=("low", "high"))
    with pytest.raises(InputError, match="none of these items was explained"):
        done.where(status="unreadable").means().picture()
    with pytest.raises(InputError, match="There is no column 'scores': there are index, target"):
        done.where(scores=1)
    with pytest.raises(InputError, match="There is no status 'lost': there are waiting, explained"):
        done.where(status="lost")
    with pytest.raises(TargetError, match="have no names"):
        done.where(label="cat")
    with pytest.raises(InputError, match="holds numbers"):
        done.where(score="high")
    with pytest.raises(InputError, match=r"a pair \(low, high\)"):
        done.where(score=(1, 2, 3))
    with pytest.raises(InputError, match="1 to 400 items, and there are 0"):
        done.where(label=7).montage()
    with pytest.raises(InputError, match="by='score'"):
        done.means("score")
    with pytest.raises(InputError, match="0 to 39"):
        View(done, [40])
