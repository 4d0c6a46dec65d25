"""A run that is killed within its first shard: what was saved of it is read, gone on with, and not computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import deeptaylor as dt
from damages import Means
from deeptaylor.datasets import explain_dataset, local
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.datasets.store import STATUS
from deeptaylor.datasets.work import Work
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of shards are saved after every batch, and each is a line in the log."""
    monkeypatch.setattr(local, "EVERY", 0.0)
    monkeypatch.setattr(explain_dataset, "_EVERY", 0.0)


def break_off(store: Path, at: int = 33, **more: Any) -> dt.Run:
    """A run that ends at an item as if it were killed: nothing is saved after that."""
    with pytest.raises(MemoryError):
        run(Squares(40, {3: ValueError("bad"), at: MemoryError()}), store, shard=512, threads=1, **more)
    return dt.open_dataset(store)


def test_what_was_saved_of_a_shard_is_read(tmp_path: Path) -> None:
    whole = run(Squares(40, {3: ValueError("bad")}), tmp_path / "whole", shard=512)
    broken = break_off(tmp_path / "broken")
    shards, items, bad = broken.progress
    assert (shards, bad) == (0, 1)
    assert items >= 10
    assert items % 5 == 0
    assert not broken.complete
    for name, column in broken.table.items():
        assert np.array_equal(column[:items], whole.table[name][:items], equal_nan=True)
    assert (broken.table["status"][items:] == STATUS.index("waiting")).all()
    assert np.array_equal(broken.heatmaps[:items], whole.heatmaps[:items])
    assert [t.reason for t in broken.errors] == ["bad"]


def test_it_goes_on_to_the_same_bytes_and_computes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Squares(40, {3: ValueError("bad")})
    run(data, tmp_path / "whole", shard=512, also=[Means()], contrast=True)
    items = break_off(tmp_path / "broken", also=[Means()], contrast=True).progress[1]
    explained: list[int] = []
    usual = Work.rows

    def rows(self: Work, batch: Any) -> Any:
        explained.extend(item.number for item in batch.items)
        return usual(self, batch)

    monkeypatch.setattr(Work, "rows", rows)
    seen: list[explain_dataset.Progress] = []
    done = run(data, tmp_path / "broken", shard=512, also=[Means()], contrast=True, progress=seen.append)
    assert explained == list(range(items, 40))
    assert done.complete
    assert done.progress == (1, 40, 1)
    assert seen[0].done == items + 5
    assert seen[-1].done == 40
    assert arrays(tmp_path / "whole") == arrays(tmp_path / "broken")
    assert not list((tmp_path / "broken" / "parts").iterdir())


def test_a_part_that_was_not_entered_is_removed(tmp_path: Path) -> None:
    break_off(tmp_path / "store")
    (tmp_path / "store" / "parts" / "00000.99999999.npz").write_bytes(b"half")
    run(Squares(40, {3: ValueError("bad")}), tmp_path / "store", shard=512)
    assert not list((tmp_path / "store" / "parts").iterdir())


def test_parts_are_saved_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.EVERY <= 20
    monkeypatch.setattr(local, "EVERY", 3600.0)
    assert break_off(tmp_path / "store").progress == (0, 0, 0)
    monkeypatch.setattr(local, "EVERY", 15.0)
    clock = iter(range(0, 10**6, 10))  # every look at it takes ten seconds
    monkeypatch.setattr(local.time, "monotonic", lambda: float(next(clock)))
    assert break_off(tmp_path / "store").progress[1] >= 20


def test_the_log_says_how_far_it_is(tmp_path: Path) -> None:
    store = tmp_path / "store"
    break_off(store)
    lines = (store / "run.log").read_text().splitlines()
    assert lines[0].endswith("A run begins: 0 of 40 items are saved, 0 of them bad.")
    assert any("10 of 40, " in line and "per second" in line for line in lines)
    assert "The run stopped: MemoryError" in lines[-1]
    run(Squares(40, {3: ValueError("bad")}), store, shard=512)
    lines = (store / "run.log").read_text().splitlines()
    assert "40 of 40, " in lines[-2]
    assert lines[-1].endswith("The run is done.")


# --- other data -------------------------------------------------------------------------------------------------------


class Other(Squares):
    """The same but for one item."""

    def __init__(self, count: int, item: int, label: int | None = None) -> None:
        super().__init__(count)
        self.item, self.label = item, label

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        x, label = super().__getitem__(k)
        if k != self.item:
            return x, label
        other = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1000))
        return (other, label) if self.label is None else (x, self.label)


@pytest.mark.parametrize("item", [0, 17, 39])
@pytest.mark.parametrize("label", [None, 2])
def test_other_values_in_a_dataset_as_long_are_refused(tmp_path: Path, item: int, label: int | None) -> None:
    store = run(Squares(40), tmp_path / "store").path
    what = "hash" if label is None else "class"
    with pytest.raises(ChangedError, match=rf"other data: the {what} of item {item} \({item}\) was"):
        run(Other(40, item, None if label is None else (item + 1) % 3), store)
    before = dt.open_dataset(store).table["score"]
    done = run(Other(40, item), store, check_items=False)
    assert np.array_equal(done.table["score"], before)


def test_other_values_are_refused_within_a_shard_that_is_not_done(tmp_path: Path) -> None:
    break_off(tmp_path / "store")
    with pytest.raises(ChangedError, match=r"other data: the hash of item 4 \(4\)"):
        run(Other(40, 4), tmp_path / "store", shard=512)


def test_an_item_that_can_no_longer_be_read_is_refused_and_one_that_never_could_is_not(tmp_path: Path) -> None:
    store = run(Squares(20, {3: ValueError("bad")}), tmp_path / "store").path
    with pytest.raises(ChangedError, match=r"item 5 \(5\) can no longer be read: gone"):
        run(Squares(20, {3: ValueError("bad"), 5: ValueError("gone")}), store)
    assert run(Squares(20), store).complete
