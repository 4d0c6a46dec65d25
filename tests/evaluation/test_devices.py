"""Metrics stay on the device of their inputs: on one without values, which refuses to be read; and on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deeptaylor.engine.deletion import Case, Deletion, Flipping, Insertion
from deeptaylor.evaluation import metrics
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
)
from judged import maps

METRICS = {
    m.name: m
    for m in (
        Flipping(patch=4), Deletion(patch=0), Insertion(patch=4, fill="mean"), Inside(), Road(), RandomLogit(),
        RandomLogitSSIM(), LeaveOneOut(patch=4), Continuity(), MaxSensitivity(), TopDown(), BottomUp(), Complexity(),
    )
}  # fmt: skip


def given(device: str) -> tuple[Case, Tensor]:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 256, 5)]
    net = nn.Sequential(*layers).double().eval().to(device)
    x = torch.rand(3, 2, 16, 16, dtype=torch.float64).to(device)
    inside = (torch.rand(3, 16, 16) > 0.5).to(device)
    case = Case(net, x, torch.tensor([0, 3, 1]).to(device), inside=inside)
    return case, maps(net, x, case.classes).sum(1)


@pytest.mark.parametrize("name", METRICS)
def test_nothing_is_read_or_moved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether pixels are filled in well enough is the one thing that is looked at.
    monkeypatch.setattr(metrics, "_solve", lambda A, b: A(b))
    case, R = given("meta")
    measured = METRICS[name].measure(case, R, maps)
    assert measured.values.shape == (3,)
    assert {t.device.type for t in (measured.values, *measured.curves.values())} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METRICS)
def test_a_gpu_says_the_same(name: str) -> None:
    found: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        case, R = given(device)
        found[device] = METRICS[name].measure(case, R, maps).values
    assert found["cuda"].is_cuda
    assert torch.allclose(found["cuda"].cpu(), found["cpu"], atol=1e-8)
