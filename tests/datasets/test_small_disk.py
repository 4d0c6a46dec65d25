"""A run on a disk that is really full, or can only be read: a small one in memory, where it may be mounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import deeptaylor as dt
from deeptaylor.datasets import store as stores
from deeptaylor.datasets.commits import StoreError
from deeptaylor.datasets.store import DiskFullError
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")
pytestmark = pytest.mark.slow


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    if not _mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)):
        pytest.skip("no disk may be mounted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])  # full while the store is made, in its ledger, in its shards
def test_a_full_disk_ends_the_run_and_it_goes_on(
    share: float, watched: bool, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Squares(50), tmp_path / "whole")
    before = shutil.disk_usage(disk).free
    run(Squares(50), disk / "tried")
    free = shutil.disk_usage(disk).free
    (disk / "filling").write_bytes(bytes(free - int(share * (before - free))))  # what is left
    if not watched:
        monkeypatch.setattr(stores.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**9})())
    with pytest.raises(DiskFullError, match="ake room"):
        run(Squares(50), disk / "store", check_space=False)
    (disk / "filling").unlink()
    run(Squares(50), disk / "store", check_space=False)
    assert arrays(disk / "store") == arrays(tmp_path / "whole")


def test_a_disk_that_can_only_be_read(disk: Path) -> None:
    run(Squares(20), disk / "store")
    assert _mount("-o", "remount,ro", str(disk))
    assert dt.open_dataset(disk / "store").complete
    with pytest.raises(dt.InputError, match="Read-only"):
        run(Squares(20), disk / "other")
    with pytest.raises(StoreError, match="cannot be written to"):
        run(Squares(20), disk / "store")
