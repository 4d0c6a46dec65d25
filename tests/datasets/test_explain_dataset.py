"""A run over a small data set: what it holds, what is refused, what is recorded, and that it goes on."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor.datasets import explain_dataset as runs
from deeptaylor.datasets.commits import BusyError, Lock, at_work
from deeptaylor.datasets.items import DatasetSource
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.datasets.store import STATUS
from deeptaylor.support.files import DiskFullError
from small_runs import BOX, Squares, arrays, explainer, network, run

pytest.importorskip("zarr")


def test_a_run_holds_what_the_explainer_says(tmp_path: Path) -> None:
    done = run(Squares(40), tmp_path / "store", contrast=True, relevance=True)
    assert done.complete
    assert done.heatmaps.shape == (40, 8, 8)
    for first in range(0, 15, 5):  # batches as the run had them
        x = torch.stack([Squares(40).x(k) for k in range(first, first + 5)])
        e, c = explainer().explain(x), explainer().contrast(x)
        rows = slice(first, first + 5)
        np.testing.assert_allclose(done.heatmaps[rows], e.heatmap(), atol=5e-4 * float(e.heatmap().max()))
        np.testing.assert_allclose(done.contrasts[rows], c.heatmap(), atol=5e-4 * float(c.heatmap().max()))
        np.testing.assert_allclose(done.array("relevance")[rows], e.relevance, rtol=1e-5, atol=1e-7)
        assert done.table["score"][rows].tolist() == e.score.tolist()
        assert done.table["target"][rows].tolist() == done.table["prediction"][rows].tolist() == e.classes.tolist()
    table = done.table
    assert table["label"].tolist() == [k % 3 for k in range(40)]
    total = table["input"] + table["shared"] + table["bias"] + table["dropped"]
    np.testing.assert_allclose(total, table["score"].clip(0), rtol=1e-4, atol=1e-6)


def test_a_network_in_another_precision_is_begun_where_it_is(tmp_path: Path) -> None:
    done = dt.explain_dataset(Squares(7), network().double(), tmp_path / "store", domain=BOX)
    plain = run(Squares(7), tmp_path / "single")
    np.testing.assert_allclose(done.table["score"], plain.table["score"], rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_run_says_the_same(tmp_path: Path) -> None:
    plain = dt.explain_dataset(Squares(10), network(), tmp_path / "plain", domain=BOX)
    done = dt.explain_dataset(Squares(10), network(), tmp_path / "store", domain=BOX, compiled=True)
    np.testing.assert_allclose(done.heatmaps[:], plain.heatmaps[:], atol=1e-3 * float(plain.heatmaps[:].max()))
    np.testing.assert_allclose(done.table["score"], plain.table["score"], rtol=1e-5)


def test_a_run_is_compiled_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(dt.Explainer, "compile", lambda _: asked.append("compile"))
    dt.explain_dataset(Squares(3), network(), tmp_path / "plain", domain=BOX)
    assert asked == []
    dt.explain_dataset(Squares(3), network(), tmp_path / "store", domain=BOX, compiled=True)
    assert len(asked) == 1


def test_every_class_of_its_own(tmp_path: Path) -> None:
    done = run(Squares(7), tmp_path / "store", target="label")
    assert done.table["target"].tolist() == [k % 3 for k in range(7)]
    output = network()(torch.stack([Squares(7).x(k) for k in range(7)])).detach()
    assert done.table["prediction"].tolist() == output.argmax(1).tolist()
    np.testing.assert_allclose(done.table["score"], [float(output[k, k % 3]) for k in range(7)], rtol=1e-5)


def test_maps_by_number_slice_and_list(tmp_path: Path) -> None:
    maps = run(Squares(40), tmp_path / "store").heatmaps
    every = maps[:]
    assert every.dtype == np.float32
    assert np.array_equal(maps[-1], every[39])
    assert np.array_equal(maps[30:10:-7], every[30:10:-7])
    assert np.array_equal(maps[[33, 2, 2]], every[[33, 2, 2]])
    assert np.array_equal(maps[np.arange(40) % 2 == 0], every[::2])
    assert np.array_equal(np.stack(list(maps)), every)
    with pytest.raises(IndexError):
        maps[40]


def test_bad_items_are_recorded_and_change_nothing_for_the_others(tmp_path: Path) -> None:
    bad = {
        3: torch.full((1, 8, 8), torch.nan),
        17: ValueError("no such row"),
        18: torch.zeros(1, 9, 9),
        33: -torch.ones(1, 8, 8),
    }
    whole, holed = run(Squares(40), tmp_path / "a"), run(Squares(40, bad), tmp_path / "b")
    assert {t.item: STATUS[t.status] for t in holed.errors} == {
        3: "not finite", 17: "unreadable", 18: "refused", 33: "refused"
    }  # fmt: skip
    assert "no such row" in holed.errors[1].reason
    assert "(1, 9, 9)" in holed.errors[2].reason
    good = [k for k in range(40) if k not in bad]
    assert np.array_equal(whole.heatmaps[good], holed.heatmaps[good])
    assert np.array_equal(whole.table["score"][good], holed.table["score"][good])
    assert np.isnan(holed.table["score"][list(bad)]).all()
    assert [STATUS[s] for s in holed.table["status"][[2, 3]]] == ["explained", "not finite"]


@pytest.mark.parametrize(
    "wrong",
    [
        TypeError("t"), AttributeError("a"), AssertionError("as"), EOFError("eof"), ZeroDivisionError("z"),
        Exception("e"), StopIteration(), "a name", Path("a.png"), object(),
    ],
)  # fmt: skip
def test_whatever_is_wrong_with_an_item_stops_nothing(tmp_path: Path, wrong: Any) -> None:
    for data in (Squares(20, {7: wrong}), Together(20, {7: wrong})):
        done = run(data, tmp_path / type(data).__name__)
        assert [(t.item, STATUS[t.status]) for t in done.errors] == [(7, "unreadable")]
        assert done.errors[0].reason
        assert done.complete


def test_pictures_of_a_dataset_as_bytes_and_arrays(tmp_path: Path) -> None:
    how = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.0, std=1.0, interpolation="bilinear")
    torch.manual_seed(0)
    model = dt.Pretrained(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), None, how)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    data = [pixels, pixels.transpose(2, 0, 1), file.getvalue(), None]
    done = dt.explain_dataset(data, model, tmp_path / "store")
    assert [STATUS[k] for k in done.table["status"]] == ["explained", "unreadable", "explained", "unreadable"]
    assert done.table["score"][0] == done.table["score"][2]
    assert "has the shape (height, width, 3); this one has (3, 8, 8)" in done.errors[0].reason
    assert "got NoneType" in done.errors[1].reason


def test_a_run_that_was_broken_off_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    class Breaking(Squares):
        def __getitem__(self, k: int) -> Any:
            if k == 37:
                raise MemoryError  # the one fault that is not the item's own
            return super().__getitem__(k)

    run(Squares(50), tmp_path / "whole")
    with pytest.raises(MemoryError):
        run(Breaking(50), tmp_path / "broken")
    assert dt.open_dataset(tmp_path / "broken").progress[0] < 4
    assert not dt.open_dataset(tmp_path / "broken").complete
    run(Squares(50), tmp_path / "broken")
    assert arrays(tmp_path / "whole") == arrays(tmp_path / "broken")
    assert len(arrays(tmp_path / "whole")) == 10 * 5  # arrays, each with four shards and what zarr says of it


def test_what_is_not_the_same_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    store = tmp_path / "store"
    was = run(Squares(20), store).manifest
    other = network()
    with torch.no_grad():
        other[0].weight[0, 0, 0, 0] += 1e-3
    with pytest.raises(ChangedError, match="another network") as refused:
        dt.explain_dataset(Squares(20), other, store, domain=BOX)
    assert was["network"]["fingerprint"] in str(refused.value)
    with pytest.raises(ChangedError, match=r"another plan.*differ in: bias") as refused:
        dt.explain_dataset(Squares(20), explainer(bias="neuron"), store)
    assert was["plan"]["fingerprint"] in str(refused.value)
    with pytest.raises(ChangedError, match=r"another plan.*target"):
        run(Squares(20), store, target=1)
    with pytest.raises(ChangedError, match="another input set") as refused:
        run(Squares(19), store)
    assert was["inputs"]["fingerprint"] in str(refused.value)
    with pytest.raises(ChangedError, match="shards of 16"):
        run(Squares(20), store, shard=8)


def test_another_batch_size_goes_on(tmp_path: Path) -> None:
    first = run(Squares(20), tmp_path / "a")
    again = run(Squares(20), tmp_path / "a", batch=3)
    assert again.manifest == first.manifest


def test_two_runs_on_one_store_are_refused(tmp_path: Path) -> None:
    run(Squares(3), tmp_path / "store")
    lock = Lock(tmp_path / "store")
    with pytest.raises(BusyError, match=r"process [0-9]+ on"):
        run(Squares(3), tmp_path / "store")
    lock.release()
    run(Squares(3), tmp_path / "store")


def test_who_looks_at_a_store_keeps_no_run_from_it(tmp_path: Path) -> None:
    run(Squares(3), tmp_path / "store")
    assert not at_work(tmp_path / "store")
    assert not at_work(tmp_path)
    looking = Lock(tmp_path / "store")
    assert at_work(tmp_path / "store")
    gone = threading.Timer(0.2, looking.release)
    gone.start()
    run(Squares(3), tmp_path / "store")
    gone.join()


def test_the_layers_that_the_user_watches_are_watched_afterwards(tmp_path: Path) -> None:
    own = explainer().watch(["1"])
    try:
        run(Squares(3), tmp_path / "store", also=[dt.Concepts("0")])
        assert own.watched == ("1",)
    finally:
        own.watch([])


class Together(Squares):
    """Gives several at once."""

    asked: ClassVar[list[list[int]]] = []

    def __getitems__(self, several: list[int]) -> list[Any]:
        self.asked.append(several)
        return [self[k] for k in several]


def test_a_dataset_that_gives_several_at_once_is_asked_so(tmp_path: Path) -> None:
    bad = {7: ValueError("no such row")}
    run(Squares(20, bad), tmp_path / "one", threads=1)
    run(Together(20, bad), tmp_path / "several", threads=1)
    assert Together.asked[1] == [5, 6, 7, 8, 9]
    assert arrays(tmp_path / "one") == arrays(tmp_path / "several")


def test_small_items_of_a_small_network_are_saved_in_larger_shards(tmp_path: Path) -> None:
    assert dt.explain_dataset(Squares(4), explainer(), tmp_path / "small").manifest["shard"] == 2048
    wide = dt.Explainer(nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 4, 2)), torch.zeros(1, 1, 128, 128), BOX)
    data = [torch.rand(1, 128, 128)]  # 32 kB of heatmap
    assert dt.explain_dataset(data, wide, tmp_path / "large").manifest["shard"] == 512


def test_the_hash_of_a_sample_is_that_of_type_shape_and_bytes() -> None:
    for x in (torch.rand(2, 3), torch.rand(3, 2).T, torch.rand(2, 3).bfloat16(), torch.tensor(4), torch.ones(2) > 0):
        raw = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        said = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}\n".encode() + raw).digest()
        assert DatasetSource([x]).read("0", "").digest == said


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(dt.InputError, match="already holds other files"):
        run(Squares(3), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(dt.InputError, match="is not the store of a run"):
        dt.open_dataset(tmp_path)


class Means:
    """Keeps the mean heat of every item."""

    name = "means"

    def batch(self, numbers: Any, x: torch.Tensor, e: dt.Explanation) -> Mapping[str, Any]:
        assert len(numbers) == len(x)
        return {"numbers": numbers, "means": e.heatmap().mean((1, 2)).numpy()}

    def shard(self, parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {key: np.concatenate([part[key] for part in parts]) for key in ("numbers", "means")}


def test_observers_are_kept_with_their_shards(tmp_path: Path) -> None:
    done = run(Squares(40, {3: torch.full((1, 8, 8), torch.nan)}), tmp_path / "store", also=[Means()])
    kept = list(done.also("means"))
    assert len(kept) == 3
    numbers = np.concatenate([part["numbers"] for part in kept])
    assert numbers.tolist() == [-1 if k == 3 else k for k in range(40)]
    means = np.concatenate([part["means"] for part in kept])
    np.testing.assert_allclose(means[4:], done.heatmaps[4:].mean((1, 2)), rtol=1e-3)


def test_a_folder_of_pictures_with_classes(tmp_path: Path) -> None:
    for k in range(6):
        folder = tmp_path / "data" / ("tulip", "rose")[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((Squares(6).x(k)[0] * 255).byte().numpy()).save(folder / f"{k}.png")
    (tmp_path / "data" / "rose" / "cut.png").write_bytes((tmp_path / "data" / "rose" / "1.png").read_bytes()[:40])
    preparation = dt.Preparation(size=8, resize=8, channels="L", white=1, mean=0.0, std=1.0, interpolation="bilinear")
    model = dt.Pretrained(network(), ("daisy", "rose", "tulip"), preparation)
    done = dt.explain_dataset(tmp_path / "data", model, tmp_path / "store", shard=4)
    assert done.names == [*[f"rose/{k}.png" for k in ("1", "3", "5", "cut")], *[f"tulip/{k}.png" for k in "024"]]
    assert done.table["label"].tolist() == [1] * 4 + [2] * 3
    assert [STATUS[t.status] for t in done.errors] == ["unreadable"]
    assert done.classes == ["daisy", "rose", "tulip"]
    assert done.picture(4).size == (8, 8)
    Image.new("L", (8, 8)).save(tmp_path / "data" / "rose" / "2.png")
    with pytest.warns(dt.DeepTaylorWarning, match="New items since the run started: 1"):
        again = dt.explain_dataset(tmp_path / "data", model, tmp_path / "store")
    assert again.names == done.names
    (tmp_path / "data" / "tulip" / "0.png").unlink()
    with pytest.raises(ChangedError, match=r"tulip/0\.png"):
        dt.explain_dataset(tmp_path / "data", model, tmp_path / "store")


def test_a_table_for_pandas_and_arrow(tmp_path: Path) -> None:
    done = run(Squares(5), tmp_path / "store")
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    assert isinstance(done.to_pandas(), pandas.DataFrame)
    assert isinstance(done.to_arrow(), arrow.Table)
    assert done.to_pandas().loc[2, "score"] == done.to_arrow()["score"][2].as_py() == done.table["score"][2]


def test_too_small_a_disk_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(runs.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DiskFullError, match="1 kB are free"):
        run(Squares(20), tmp_path / "store")
