"""The classes of items: what a data set may say, and that their numbers are the same at every start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import deeptaylor as dt
from small_runs import Squares, run

pytest.importorskip("zarr")


def labelled(*labels: Any) -> list[tuple[torch.Tensor, Any]]:
    return [(Squares(9).x(k), label) for k, label in enumerate(labels)]


def test_classes_of_a_dataset_in_tensors_and_arrays(tmp_path: Path) -> None:
    x = torch.stack([Squares(6).x(k) for k in range(6)])
    done = run(TensorDataset(x, torch.arange(6) % 3), tmp_path / "store", target="label")
    assert done.table["label"].tolist() == done.table["target"].tolist() == [0, 1, 2, 0, 1, 2]
    given = labelled(torch.tensor([2]), np.int64(1), np.array([2]), np.float32(1), True, None, 2**40, -7, 2**70)
    assert run(given, tmp_path / "mixed").table["label"].tolist() == [2, 1, 2, 1, 1, -1, -1, -1, -1]


@pytest.mark.parametrize("label", [np.eye(3)[1], torch.eye(3)[1], np.float32(0.7), {"boxes": []}])
def test_what_is_no_class_is_said_and_stops_nothing(tmp_path: Path, label: Any) -> None:
    with pytest.warns(dt.DeepTaylorWarning, match=f"neither a name nor a whole number.*{type(label).__name__}") as said:
        done = run(labelled(1, label, label), tmp_path / "store")
    assert done.table["label"].tolist() == [1, -1, -1]
    assert not done.errors
    assert len(said) == 1
