"""The method of a run: decided once, recorded, kept to by whoever goes on, and part of what a store is of."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.datasets.explain_dataset import settle, work_of
from deeptaylor.datasets.manifest import ChangedError
from deeptaylor.engine.method_choice import Choice
from small_runs import BOX, Squares

KEPT = {"shard": 4, "batch": 2}


def soft() -> nn.Module:
    """A network of which the operations do not decide the method."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 3)
    ).eval()  # fmt: skip


def run(out: Path, count: int = 6, **more: Any) -> dt.Run:
    return dt.explain_dataset(Squares(count), soft(), out, **{"domain": BOX, "target": 1, **KEPT, **more})


def kept(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())["method"]
    return found


def test_auto_is_decided_on_the_first_items_in_order_and_recorded(tmp_path: Path) -> None:
    made = run(tmp_path / "a")
    x = torch.stack([Squares(6).x(k) for k in range(4)])
    wanted = dt.Explainer(soft(), x[:1], BOX).choose(x, 1)
    assert kept(tmp_path / "a") == {
        "asked": "auto", "method": wanted.method, "reason": wanted.reason, "areas": dict(wanted.areas),
    }  # fmt: skip
    assert made.reason.endswith(f"because {wanted.reason}.")
    broken = Squares(6, {0: ValueError("cannot be read"), 2: torch.full((1, 8, 8), torch.nan)})
    dt.explain_dataset(broken, soft(), tmp_path / "b", domain=BOX, target=1, **KEPT)
    others = torch.stack([Squares(6).x(k) for k in (1, 3, 4, 5)])
    assert kept(tmp_path / "b")["areas"] == dict(dt.Explainer(soft(), x[:1], BOX).choose(others, 1).areas)


def test_a_run_that_goes_on_does_not_decide_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole").heatmaps[:]

    class Stopping(Squares):
        def __getitem__(self, k: int) -> Any:
            if k == 5:
                raise KeyboardInterrupt
            return super().__getitem__(k)

    with pytest.raises(KeyboardInterrupt):
        dt.explain_dataset(Stopping(6), soft(), tmp_path / "a", domain=BOX, target=1, **KEPT)

    def never(*_: Any) -> Choice:
        raise AssertionError("the method is decided again")

    monkeypatch.setattr("deeptaylor.explainer.choose_by_test", never)
    monkeypatch.setattr("deeptaylor.datasets.explain_dataset.choose_by_graph", never)
    assert np.array_equal(run(tmp_path / "a").heatmaps[:], whole)


@pytest.mark.parametrize("method", ["deep-taylor", "secant"])
def test_workers_get_the_choice_with_the_network(method: str, tmp_path: Path) -> None:
    work = work_of(Squares(6), dt.Explainer(soft(), torch.zeros(1, 1, 8, 8), BOX), 1, None, False, (), None, None, {})
    settle(work, iter(()), {"method": {"method": method, "reason": "it was recorded", "areas": {}}})
    there = pickle.loads(pickle.dumps(work.explainer))
    assert there.choice == Choice(method, "it was recorded")
    assert there.explain(Squares(6).x(0)[None], 1).reason.endswith("because it was recorded.")


def test_method_reference_and_background_are_part_of_what_a_store_is_of(tmp_path: Path) -> None:
    zeros, ones = torch.zeros(1, 8, 8), torch.ones(1, 8, 8)
    asked: list[dict[str, Any]] = [
        {"method": "deep-taylor"}, {"method": "paper"}, {"method": "secant"}, {"reference": "zeros"},
        {"reference": zeros}, {"reference": ones}, {"reference": [zeros, ones]}, {"background": zeros[None]},
        {"background": ones[None]}, {"method": "attnlrp"}, {"method": "sensitivity"},
    ]  # fmt: skip
    for k, settings in enumerate(asked):
        run(tmp_path / str(k), 2, **settings)
        run(tmp_path / str(k), 2, **copy.deepcopy(settings))  # the same again is gone on with
        other = asked[(k + 1) % len(asked)]
        with pytest.raises(ChangedError, match=r"They differ in: .*(method|reference|background)"):
            run(tmp_path / str(k), 2, **other)


def test_a_store_of_an_older_release_is_gone_on_with(tmp_path: Path) -> None:
    run(tmp_path / "now", method="deep-taylor")
    plan = json.loads((tmp_path / "now" / "manifest.json").read_text())["plan"]
    assert not {"method", "reference", "background"} & plan.keys()  # as it was before there were other methods
    work = work_of(Squares(6), soft(), 1, BOX, False, (), None, None, {})
    settle(work, iter(()), {})
    assert work.explainer.choice is not None
    assert work.explainer.choice.method == "deep-taylor"


class Inner:
    """An observer that reads a layer."""

    name, layers = "inner", ("0",)

    def batch(self, numbers: Any, x: Tensor, e: dt.Explanation) -> dict[str, Any]:
        return {"total": e.seen["0"].relevance.flatten(1).sum(1).numpy()}

    def shard(self, parts: Any) -> dict[str, Any]:
        return {"total": np.concatenate([part["total"] for part in parts])}


@pytest.mark.parametrize(("more", "named"), [({"contrast": True}, "contrast=True"), ({"also": [Inner()]}, "inner")])
def test_what_reads_inner_relevance_means_deep_taylor(more: dict[str, Any], named: str, tmp_path: Path) -> None:
    run(tmp_path / "a", 2, **more)
    assert kept(tmp_path / "a")["method"] == "deep-taylor"
    assert kept(tmp_path / "a")["reason"] == f"{named} needs relevance inside the network"
    with pytest.raises(dt.InputError, match=f"{named} needs relevance inside the network, which the method 'secant'"):
        run(tmp_path / "b", 2, method="secant", **more)


def test_signed_maps_and_their_account_are_kept(tmp_path: Path) -> None:
    made = run(tmp_path / "a", 3, method="secant")
    x = torch.stack([Squares(3).x(k) for k in range(3)])
    e = dt.Explainer(soft(), x[:1], BOX, method="secant").explain(x, 1)
    assert np.allclose(made.heatmaps[:], e.heatmap().numpy(), atol=1e-3)
    assert made.heatmaps[:].min() < 0
    assert np.allclose(made.table["score"], e.score.numpy(), atol=1e-6)
    assert np.allclose(made.table["input"], e.ledger.input.numpy(), atol=1e-6)
