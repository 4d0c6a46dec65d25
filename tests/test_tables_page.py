"""The numbers in the how-to on tables are those of the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import tables

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tables.RECORD.read_text())
    return found


def test_the_pages_say_what_was_measured(record: dict[str, Any]) -> None:
    assert tables.lines(record["stopped"]) in (ROOT / "docs/howto/tables.md").read_text()
    ranks = sorted(m["rank"]["default"] for m in record["overfitted"])
    limits = (ROOT / "docs/limits.md").read_text()
    assert f"the rank correlation is {ranks[0]:.2f} to {ranks[-1]:.2f} (`benchmarks/tables.py`)" in limits


def test_the_default_ranks_columns_as_shapley_values_do(record: dict[str, Any]) -> None:
    assert len({m["data"] for m in record["stopped"]}) == len({m["network"] for m in record["stopped"]}) == 3
    for m in record["stopped"]:
        assert m["rank"]["default"] >= 0.94
        assert m["rank"]["deep Taylor"] is None or m["rank"]["deep Taylor"] < m["rank"]["default"]
    assert all(m["repeated"] > m["rank"]["default"] for m in record["stopped"] + record["overfitted"])


class Product(nn.Module):
    """a · b + c."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * x[:, 1:2] + x[:, 2:]


def test_the_sampler_finds_shapley_values() -> None:
    """Each order beside its reverse is exact for two that interact: a · b from (1, 1) to (2, 3) is 5 = 2 + 3."""
    x, mean = torch.tensor([[2.0, 3.0, 4.0]]), torch.tensor([1.0, 1.0, 1.0])
    found = tables.shapley(Product(), x, mean, torch.zeros(1, 1, dtype=torch.long), orders=2, seed=0)
    assert found.tolist() == [[2.0, 3.0, 3.0]]
