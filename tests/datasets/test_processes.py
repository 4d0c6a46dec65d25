"""Pictures that are read in processes: the same store as with threads, and processes that die are told of."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor.datasets.commits import Item
from deeptaylor.datasets.items import Folder, Labels
from deeptaylor.datasets.reader import Processes, ProcessesError, Reader
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from small_runs import Squares, arrays, run

pytest.importorskip("zarr")

PREPARATION = Preparation(
    size=8, resize=10, channels="BGR", white=1, mean=(0.4, 0.5, 0.6), std=0.3, interpolation="bilinear"
)


def photographs(folder: Path, count: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(count):
        Image.fromarray(rng.integers(0, 256, (12, 15, 3), dtype=np.uint8)).save(folder / f"{k:02d}.jpg")
    (folder / "05.jpg").write_bytes((folder / "05.jpg").read_bytes()[:200])
    return folder


@pytest.mark.slow
def test_processes_make_the_store_that_threads_make(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    trained, data = Pretrained(network, None, PREPARATION), photographs(tmp_path / "photos", 12)
    dt.explain_dataset(data, trained, tmp_path / "threads", shard=8, batch=4)
    found = dt.explain_dataset(data, trained, tmp_path / "processes", shard=8, batch=4, processes=1)
    assert found.progress == (2, 12, 1)
    assert arrays(tmp_path / "processes") == arrays(tmp_path / "threads")


def test_a_dataset_is_not_read_in_processes(tmp_path: Path) -> None:
    with pytest.raises(dt.InputError, match="Leave processes= out"):
        run(Squares(4), tmp_path / "store", processes=1)


def test_a_process_that_died_is_told_of_with_what_it_read(tmp_path: Path) -> None:
    died: Future[Any] = Future()
    died.set_exception(BrokenProcessPool())
    item = Item(0, "rose/1.jpg", "", 10, 0)
    with (
        Processes(Reader(Folder(photographs(tmp_path / "photos", 6)), PREPARATION, Labels(None)), 1) as readers,
        pytest.raises(ProcessesError, match=r"rose/1\.jpg.*the same command continues"),
    ):
        readers.finished([item], died)
