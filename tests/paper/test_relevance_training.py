"""The relevance model trained again: what was measured of the shipped one, tiny refits, and their place in a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeptaylor.methods.relevance_fit import RelevanceSamples, collect
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.paper_networks import WEIGHTS, TwoLayer, load_network
from deeptaylor.paper import measures, mnist_report, relevance_training, training
from deeptaylor.paper.digit_pairs import held_out_pairs
from deeptaylor.paper.experiment import Talk
from deeptaylor.support.tensor_files import read_notes
from digit_bars import digit_bars

pytest.importorskip("safetensors")
QUIET = Talk(quiet=True)


def shipped() -> dict[str, Any]:
    record = relevance_training.known(WEIGHTS, load_network("two-layer"), "guided")
    assert record is not None, "the numbers of another network are shipped"
    return record


def test_the_shipped_guided_refits_are_good_from_both_starts() -> None:
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


def test_the_shipped_model_is_trained_plainly_and_came_near_a_minimum() -> None:
    notes = read_notes(WEIGHTS / "min-max.safetensors")
    assert (notes["training"], notes["begin"], notes["batch"]) == ("plain", "random", "20")
    assert float(notes["held_out_r_squared"]) > 0.97
    curve = relevance_training.read_curve(WEIGHTS)
    assert curve[-1]["step"] == int(notes["steps"])
    assert curve[-1]["gradient"] < 0.2 * curve[0]["gradient"]
    assert curve[-1]["loss"] < 0.1 * curve[0]["loss"]
    gradient = {"norm": 2.0, "corrected": 1.0, "weights": 50.0, "pairs": 20000.0}
    said = mnist_report.describe_convergence(curve, gradient)
    assert f"After {notes['steps']} steps" in said
    assert "over 20000 training pairs is 2.0" in " ".join(said.split())
    assert relevance_training.read_curve(WEIGHTS / "none") == []


@pytest.mark.slow
def test_the_shipped_guided_model_is_the_first_of_its_refits() -> None:
    from deeptaylor.paper.digit_pairs import held_out_pairs, load_digits

    network = load_network("two-layer")
    assert isinstance(network, TwoLayer)
    found, _ = relevance_training.judged(
        paper_networks.load_relevance_model(name="min-max-guided"),
        network,
        held_out_pairs(load_digits(), relevance_training.PAIRS),
    )
    first = next(fit for fit in shipped()["fits"] if (fit["begin"], fit["seed"]) == ("layer", 0))
    for name, value in found.items():
        assert value == pytest.approx(first[name], abs=2e-4), name


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("refits")
    patch = pytest.MonkeyPatch()
    patch.setattr(relevance_training, "PAIRS", 30)
    record = relevance_training.refit(TwoLayer(seed=0), digit_bars(40), folder, QUIET, steps=3, seeds=(0, 1))
    patch.undo()
    return folder, record


def test_refits_are_written_with_how_they_were_made(small: tuple[Path, dict[str, Any]]) -> None:
    folder, record = small
    names = {f"min-max-guided-{begin}-{seed}" for begin in ("layer", "random") for seed in (0, 1)}
    assert {p.stem for p in folder.glob("*.safetensors")} == names
    assert {p.stem for p in folder.glob("*.checkpoint")} == names
    assert json.loads((folder / relevance_training.FILES["guided"]).read_text()) == record
    assert {"torch", "device", "commit", "network", "steps", "training"} <= record.keys()
    assert len(record["fits"]) == 4
    assert set(record["spread"]) == {"layer", "random", "different starts"}
    assert record["spread"]["layer"]["spread"] < record["spread"]["different starts"]["spread"]


def test_numbers_of_another_network_are_not_taken(small: tuple[Path, dict[str, Any]]) -> None:
    folder, record = small
    assert relevance_training.known(folder, TwoLayer(seed=0).double(), "guided") == record, "whatever the precision"
    assert relevance_training.known(folder, TwoLayer(seed=1), "guided") is None
    assert relevance_training.known(folder / "none", TwoLayer(seed=0), "guided") is None
    assert relevance_training.known(folder, TwoLayer(seed=0), "plain") is None


def test_the_table_has_a_row_a_model_and_the_training_free_one() -> None:
    record = shipped()
    table = mnist_report.tabulate_refits(record, "1590000")
    assert "trained for less long than the model of the figures (1590000 steps)" in table.caption
    assert "less long" not in mnist_report.tabulate_refits(record, record["steps"]).caption
    rows = table.rows
    assert len(rows) == 7
    assert rows[0][:3] == ["from the network's weights, seed 0", "0.972", "0.977"]
    assert rows[-1][0] == "training-free"
    assert "0.990" in mnist_report.describe_refits(record)


def test_unique_is_taken_from_refits_of_equal_length() -> None:
    found: dict[str, Any] = {
        "refits": {"plain": shipped()},
        "settings": {"fit_steps": 20},
        "unique": {"two-layer": {"min_max_map_spread": 0.5}},
    }
    assert mnist_report.measure_refit_spread(found) == pytest.approx(0.087, abs=1e-3)
    assert "3 models, each trained for 300000 steps" in mnist_report.describe_refit_spread(found)
    found["refits"]["plain"] = None
    assert mnist_report.measure_refit_spread(found) == 0.5
    assert "two models, each trained for 20 steps" in mnist_report.describe_refit_spread(found)


def test_correlations_by_hand() -> None:
    R = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    S = np.array([[2.0, 4.0, 6.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    np.testing.assert_allclose(measures.correlation(R, S), [1, -1, np.nan])


def test_the_samples_by_formula_are_those_of_the_explainer() -> None:
    network = TwoLayer(seed=3).double()
    images = held_out_pairs(digit_bars(40), 50).images.double()
    found = relevance_training.compute_samples(network, images)
    expected = collect(paper_networks.two_layer_explainer(network), paper_networks.TWO_LAYER, images)
    for name in ("x", "R_l", "R_k"):
        np.testing.assert_allclose(getattr(found, name).numpy(), getattr(expected, name).numpy(), rtol=1e-12)
    assert float(found.R_k.max()) > 0


def test_the_norm_of_the_gradient_by_hand() -> None:
    """R̂ = v x + min(0, R_l v_l + d), x = 2, v = 3, R_l = 4, R = 1: ∂/∂v = 2 (6 − 1) x, ∂/∂v_l = 10 R_l, ∂/∂d = 10."""
    model = MinMaxModel(1, 1, 1, 1)
    with torch.no_grad():
        model.v_ij.fill_(3)
    sample = RelevanceSamples(torch.tensor([[2.0]]), torch.tensor([[4.0]]), torch.tensor([[1.0]]))
    twice = RelevanceSamples(*(t.repeat(2, 1) for t in (sample.x, sample.R_l, sample.R_k)))
    found = relevance_training.estimate_gradient(model, twice)
    assert found["norm"] == pytest.approx((20**2 + 40**2 + 10**2) ** 0.5)
    assert found["corrected"] == pytest.approx(found["norm"])  # both halves agree
    assert (found["weights"], found["pairs"]) == (3, 2)
    other = RelevanceSamples(twice.x, twice.R_l, torch.tensor([[1.0], [11.0]]))  # their gradients cancel
    found = relevance_training.estimate_gradient(model, other)
    assert (found["norm"], found["corrected"]) == (0, 0)


def test_the_curve_of_a_training_has_a_line_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (relevance_training, training):
        monkeypatch.setattr(module, "load_digits", lambda folder: digit_bars(40))
    monkeypatch.setattr(training, "_HELD_OUT", 20)
    monkeypatch.setattr(relevance_training, "CURVE_PAIRS", 30)
    paper_networks.save_network(TwoLayer(seed=0), tmp_path / "network.safetensors")
    arguments = [
        "--training",
        "plain",
        "--begin",
        "random",
        "--steps",
        "4",
        "--out",
        str(tmp_path / "model.safetensors"),
    ]
    arguments += ["--network", str(tmp_path / "network.safetensors"), "--curve", str(tmp_path / "curve.jsonl")]
    assert relevance_training.main(arguments) == 0
    (line,) = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert line["step"] == 4
    assert line.keys() == {"step", "loss", "r_squared", "gradient", "gradient_corrected"}
    assert line["gradient"] > 0


def test_the_shipped_plain_refits_are_shorter_than_the_shipped_model_and_the_report_says_so() -> None:
    """From both starts with three seeds, 100000 steps each; the report's spread is theirs."""
    record = relevance_training.known(WEIGHTS, load_network("two-layer"), "plain")
    assert record is not None
    notes = read_notes(WEIGHTS / "min-max.safetensors")
    assert (record["training"], record["steps"]) == ("plain", "100000")
    assert {(fit["begin"], fit["seed"]) for fit in record["fits"]} == {
        (begin, seed) for begin in ("layer", "random") for seed in (0, 1, 2)
    }
    for fit in record["fits"]:
        assert 0.85 < fit["r_squared"] < float(notes["held_out_r_squared"]), fit
    caption = mnist_report.tabulate_refits(record, notes["steps"]).caption
    assert f"less long than the model of the figures ({notes['steps']} steps)" in caption
    found = {"refits": {"plain": record}, "settings": {}, "unique": {}}
    assert mnist_report.measure_refit_spread(found) == record["spread"]["random"]["spread"]
    assert "3 models, each trained for 100000 steps" in mnist_report.describe_refit_spread(found)
    assert "Here nothing pulls on the weights" in mnist_report.describe_refits(record)
