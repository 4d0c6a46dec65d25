"""The classes of items: what a data set may say, and that their numbers are the same at every start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import deeptaylor as dt
from small_runs import BOX, Squares, network, run

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


def test_names_of_a_dataset_are_no_numbers_where_the_network_has_no_names(tmp_path: Path) -> None:
    data = labelled("zebra", "ant", "2", np.str_("zebra"))
    with pytest.warns(dt.DeepTaylorWarning, match="recorded without a class.*give the network's class_names") as said:
        done = run(data, tmp_path / "store")
    assert len(said) == 1
    assert done.table["label"].tolist() == [-1, -1, 2, -1]
    assert done.classes is None
    named = dt.Pretrained(network(), ("ant", "bee", "zebra"), None, BOX)
    done = dt.explain_dataset(data, named, tmp_path / "named")
    assert done.table["label"].tolist() == [2, 0, 2, 2]
    assert len(done.where(label="zebra")) == 3


def folders(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        Image.fromarray((Squares(1).x(0)[0] * 255).byte().numpy()).save(root / name / "a.png")
    return root


def unnamed() -> dt.Pretrained:
    how = dt.Preparation(size=8, resize=8, channels="L", white=1, mean=0.0, std=1.0, interpolation="bilinear")
    return dt.Pretrained(network(), None, how)


def shown(done: dt.Run) -> dict[str, str]:
    return {name: done.view().class_name(int(k)) for name, k in zip(done.names, done.table["label"], strict=True)}


def test_folders_named_by_numbers_are_these_classes(tmp_path: Path) -> None:
    done = dt.explain_dataset(folders(tmp_path / "data", "1", "002"), unnamed(), tmp_path / "store")
    assert shown(done) == {"1/a.png": "class 1", "002/a.png": "class 2"}
    assert done.where(label="1").names == ["1/a.png"]


def test_folders_named_by_words_are_numbered_in_their_order(tmp_path: Path) -> None:
    done = dt.explain_dataset(folders(tmp_path / "data", "cat", "dog"), unnamed(), tmp_path / "store")
    assert shown(done) == {"cat/a.png": "cat", "dog/a.png": "dog"}
    assert done.table["label"].tolist() == [0, 1]


def test_numbers_and_words_do_not_share_a_class(tmp_path: Path) -> None:
    with pytest.warns(dt.DeepTaylorWarning, match="Some classes are numbers and some are names") as said:
        done = dt.explain_dataset(folders(tmp_path / "data", "1", "cat", "dog"), unnamed(), tmp_path / "store")
    assert len(said) == 1
    assert done.table["label"].tolist() == [1, -1, -1]
    assert done.classes is None
