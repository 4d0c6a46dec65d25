"""Every metric that Quantus has too says the same as it: by a record, and by Quantus itself where it is there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import judged
import quantus_judge as judge
from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.evaluation.metrics import (
    BottomUp,
    Complexity,
    Continuity,
    Inside,
    LeaveOneOut,
    MaxSensitivity,
    RandomLogit,
    RandomLogitSSIM,
    Road,
    TopDown,
    add_noise,
    impute,
)
from deeptaylor.support.statistics import pearson, spearman, ssim
from layout import ROOT

RECORD = ROOT / "tests" / "golden" / "quantus.json"
SAID: dict[str, Any] = json.loads(RECORD.read_text())
GAP = 1e-5


def case(**more: Any) -> tuple[Case, Tensor]:
    net, x, of = judged.network(), torch.from_numpy(judged.pictures()), torch.from_numpy(judged.classes())
    given = Case(net, x, of, inside=torch.from_numpy(judged.masks())[:, 0], **more)
    return given, judged.maps(net, x, of).sum(1)


def agrees(ours: Tensor, name: str) -> None:
    said = torch.tensor(SAID[name], dtype=torch.float64)
    assert ours.shape == said.shape
    assert float(said.std()) > 1e-3, "the record says the same of everything"
    assert float((ours - said).abs().max()) < GAP


def darkest(x: Tensor) -> Tensor:
    """Quantus' "black"."""
    return x.flatten(1).amin(dim=1).reshape(-1, 1, 1, 1).expand_as(x)


def test_pixel_flipping() -> None:
    given, R = case()
    shares = tuple(n / 256 for n in range(0, 257, judge.FEATURES))
    agrees(Flipping(patch=0, fill="zero", shares=shares).curve(given, R)[:, 1:], "PixelFlipping")


@pytest.mark.parametrize(("sign", "name"), [(1, "RegionPerturbation"), (-1, "RegionPerturbation, lerf")])
def test_region_perturbation(sign: int, name: str) -> None:
    given, R = case()
    curve = Flipping(patch=4, fill=darkest, shares=tuple(n / 16 for n in range(17))).curve(given, sign * R)
    agrees(curve[:, :1] - curve[:, 1:], name)


def test_road_keeps_the_same_share_of_classes() -> None:
    given, R = case()
    road = Road(shares=tuple(p / 100 for p in judge.PERCENTAGES), noise=0)
    measured = road.measure(given, R, judged.maps)
    agrees(measured.curves["most first, class kept"].mean(0), "ROAD")
    agrees(measured.curves["least first, class kept"].mean(0), "ROAD, least first")
    measured = road.measure(given, torch.from_numpy(judged.noise_maps())[:, 0], judged.maps)
    agrees(measured.curves["most first, class kept"].mean(0), "ROAD, noise")


def test_road_fills_in_the_same_colours() -> None:
    picture, away = (torch.from_numpy(a)[None] for a in judged.colours())
    agrees(impute(picture, away)[0], "noisy_linear_imputation")


def test_random_logit() -> None:
    given, R = case()
    others = torch.tensor(SAID["RandomLogit, others"])
    agrees(RandomLogit().likeness(given, R, judged.maps, others), "RandomLogit, spearman")
    in_a_row = RandomLogitSSIM(by=lambda a, b: ssim(a.flatten(1), b.flatten(1)))
    agrees(in_a_row.likeness(given, R, judged.maps, others), "RandomLogit, ssim")


@pytest.mark.parametrize(("metric", "name"), [(TopDown, "MPRT, top-down"), (BottomUp, "MPRT, bottom-up")])
def test_randomisation(metric: type[TopDown | BottomUp], name: str) -> None:
    given, R = case(seed=judge.SEED)
    measured = metric(steps=None, how="reset").measure(given, R, judged.maps)
    said = SAID[name]
    assert list(said) == ["original", *(["5", "2", "0"] if metric is TopDown else ["0", "2", "5"])]
    wanted = torch.tensor([v for layer, v in said.items() if layer != "original"], dtype=torch.float64).T
    assert float((measured.curves["rank correlation"] - wanted).abs().max()) < GAP
    assert measured.at == (1 / 3, 2 / 3, 1)


def test_efficient_mprt() -> None:
    given, R = case(seed=judge.SEED)
    agrees(Complexity(how="reset").measure(given, R, judged.maps).values, "EfficientMPRT")


def test_continuity() -> None:
    given, R = case()
    shifts = tuple(s for s in range(-15, 13) if s)  # of 28 steps in 33: from -16, one at a time
    agrees(Continuity(shifts).measure(given, R, judged.maps).values, "Continuity")


def test_max_sensitivity() -> None:
    given, R = case(seed=judge.SEED)
    lengths = (add_noise(given.x, judge.AMOUNT, judge.DRAWS, judge.SEED) - given.x).flatten(2).norm(dim=2)
    said = torch.tensor(SAID["MaxSensitivity"]) / (lengths / given.x.flatten(1).norm(dim=1))
    measured = MaxSensitivity(judge.AMOUNT, judge.DRAWS).measure(given, R, judged.maps)
    assert float((measured.values - said.amax(0)).abs().max()) < GAP


def test_faithfulness_estimate() -> None:
    given, R = case()
    agrees(LeaveOneOut(None, "zero", pearson).measure(given, R, judged.maps).values, "FaithfulnessEstimate")


def test_relevance_mass_accuracy() -> None:
    given, R = case()
    agrees(Inside().measure(given, R.abs(), judged.maps).values, "RelevanceMassAccuracy")


def test_maps_have_no_ties() -> None:
    _, R = case()
    assert all(len(r.unique()) == r.numel() for r in R)
    assert float(spearman(R, R).min()) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("quantus") is None, reason="Quantus is not installed")
def test_the_record_is_what_quantus_says_now() -> None:
    helpers = Path(judge.__file__).parent
    program = f"import runpy, sys; sys.path[:0] = {[str(helpers), str(ROOT / 'src')]!r}; "
    program += f"runpy.run_path({judge.__file__!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    now = json.loads(done.stdout)
    assert now.keys() == SAID.keys()
    assert now["version"] == SAID["version"], "Quantus is another: look at what it says, and write the record anew"
    for name in now.keys() - {"version"}:
        a, b = ([*of.values()] if isinstance(of, dict) else of for of in (now[name], SAID[name]))
        np.testing.assert_allclose(np.array(a), np.array(b), atol=1e-8, err_msg=name)
