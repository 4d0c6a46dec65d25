"""The relevance model trained again: what was measured of the shipped one, tiny refits, and their place in a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeptaylor.models.networks import min_max
from deeptaylor.models.networks.detection_pooling import WEIGHTS, TwoLayer, load
from deeptaylor.paper import measures, refits, refits_table
from deeptaylor.paper.saved import Talk
from digit_bars import digit_bars

pytest.importorskip("safetensors")
QUIET = Talk(quiet=True)


def shipped() -> dict[str, Any]:
    record = refits.known(WEIGHTS, load("two-layer"))
    assert record is not None, "the numbers of another network are shipped"
    return record


def test_the_shipped_refits_are_good_from_both_starts() -> None:
    record = shipped()
    assert record["pairs"] == 1000
    assert {(fit["begin"], fit["seed"]) for fit in record["fits"]} == {
        (begin, seed) for begin in ("layer", "random") for seed in (0, 1, 2)
    }
    for fit in record["fits"]:
        assert fit["r_squared"] >= 0.97, fit
        assert fit["correlation"] >= 0.97, fit
        assert abs(fit["border"] - record["training_free"]["border"]) < 0.02, fit
    assert record["spread"]["different starts"]["correlation"] > 0.98


@pytest.mark.slow
def test_the_shipped_model_is_the_first_of_its_refits() -> None:
    from deeptaylor.paper.data.digits import load_digits
    from deeptaylor.paper.data.pairs import held_out_pairs

    network = load("two-layer")
    assert isinstance(network, TwoLayer)
    found, _ = refits.judged(min_max.load(), network, held_out_pairs(load_digits(), refits.PAIRS))
    first = next(fit for fit in shipped()["fits"] if (fit["begin"], fit["seed"]) == ("layer", 0))
    for name, value in found.items():
        assert value == pytest.approx(first[name], abs=2e-4), name


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("refits")
    patch = pytest.MonkeyPatch()
    patch.setattr(refits, "PAIRS", 30)
    record = refits.refit(TwoLayer(seed=0), digit_bars(40), folder, QUIET, steps=3, seeds=(0, 1))
    patch.undo()
    return folder, record


def test_refits_are_written_with_how_they_were_made(small: tuple[Path, dict[str, Any]]) -> None:
    folder, record = small
    names = {f"min-max-{begin}-{seed}" for begin in ("layer", "random") for seed in (0, 1)}
    assert {p.stem for p in folder.glob("*.safetensors")} == names
    assert {p.stem for p in folder.glob("*.checkpoint")} == names
    assert json.loads((folder / refits.FILE).read_text()) == record
    assert {"torch", "device", "commit", "network", "steps"} <= record.keys()
    assert len(record["fits"]) == 4
    assert set(record["spread"]) == {"layer", "random", "different starts"}
    assert record["spread"]["layer"]["spread"] < record["spread"]["different starts"]["spread"]


def test_numbers_of_another_network_are_not_taken(small: tuple[Path, dict[str, Any]]) -> None:
    folder, record = small
    assert refits.known(folder, TwoLayer(seed=0).double()) == record, "whatever the precision"
    assert refits.known(folder, TwoLayer(seed=1)) is None
    assert refits.known(folder / "none", TwoLayer(seed=0)) is None


def test_the_table_has_a_row_a_model_and_the_training_free_one() -> None:
    record = shipped()
    rows = refits_table.table(record).rows
    assert len(rows) == 7
    assert rows[0][:3] == ["min-max, from the network's weights, seed 0", "0.972", "0.977"]
    assert rows[-1][0] == "training-free"
    assert "0.990" in refits_table.sentence(record)


def test_unique_is_taken_from_refits_of_equal_length() -> None:
    found: dict[str, Any] = {
        "refits": shipped(), "settings": {"fit_steps": 20}, "unique": {"two-layer": {"min_max_map_spread": 0.5}}
    }  # fmt: skip
    assert refits_table.unique(found) == pytest.approx(0.045, abs=1e-3)
    assert "three models, each trained for 300000 steps" in refits_table.unique_from(found)
    found["refits"] = None
    assert refits_table.unique(found) == 0.5
    assert "two models, each trained for 20 steps" in refits_table.unique_from(found)


def test_correlations_by_hand() -> None:
    R = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    S = np.array([[2.0, 4.0, 6.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(measures.correlation(R, S), [1, -1, np.nan])
