"""Other types: an explainer that moves, types of few digits, overflow, and numbers near the smallest."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.engine import inputs
from deeptaylor.engine.inputs import _supports_bfloat16
from refusals import mlp, says
from small_networks import TOP, Net, batch


def test_the_explainer_moves_to_another_type_and_the_network_stays() -> None:
    model = Net().eval()
    explainer = dt.Explainer(model, batch(1).float(), dt.Box(0, 1), bias="neuron")
    single = explainer.explain(batch().float(), TOP)
    assert explainer.to(torch.float64) is explainer
    double = explainer.explain(batch(), TOP)
    assert double.relevance.dtype == double.ledger.bias.dtype == torch.float64
    assert torch.allclose(double.relevance.float(), single.relevance, atol=1e-5 * float(single.score.abs().max()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_moved_explainer_stays_moved() -> None:
    explainer = dt.Explainer(Net().eval(), batch(1).float(), dt.Box(0, 1), bias="neuron").to(torch.float64)
    assert explainer.explain(batch(2, side=8), TOP).relevance.dtype == torch.float64
    assert explainer.explain(batch(), lambda out: out[:, TOP]).relevance.dtype == torch.float64
    assert explainer.refresh().explain(batch(), TOP).relevance.dtype == torch.float64


def test_bfloat16_is_close() -> None:
    if not _supports_bfloat16():
        pytest.skip("this processor dies of matrix products in bfloat16")
    model = Net().eval()
    exact = dt.Explainer(model.double(), batch(1), dt.Box(0, 1), bias="neuron").explain(batch(), TOP)
    x = batch().bfloat16()
    coarse = dt.Explainer(Net().eval().bfloat16(), x, dt.Box(0, 1), bias="neuron").explain(x, TOP)
    assert coarse.relevance.dtype == torch.bfloat16
    gap = (coarse.relevance.double() - exact.relevance).abs().sum() / exact.relevance.sum()
    assert float(gap) < 0.03


def test_tiny_scores_are_explained_as_exactly_as_others() -> None:
    """Relevances near the smallest numbers there are: they would lose digits, and make convolutions slow."""

    def network(scale: float) -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
        last = nn.Linear(8 * 36, 4)
        with torch.no_grad():
            last.weight.mul_(scale)
            last.bias.mul_(scale)
        return nn.Sequential(*layers, last)

    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = dt.explain(network(1.0), x, domain=dt.Box(0, 1), bias="neuron")
    tiny = dt.explain(network(2.0**-110), x, domain=dt.Box(0, 1), bias="neuron")
    assert (plain.score > 0).all()
    assert torch.equal(tiny.score, plain.score * 2.0**-110)
    # The results themselves are as exact as so small numbers can be: a step of the smallest is 1.4e-45.
    assert ((tiny.relevance.double() - plain.relevance.double() * 2.0**-110).abs() <= 1.5e-45).all()
    assert torch.allclose(tiny.ledger.bias * 2.0**110, plain.ledger.bias, rtol=1e-4)
    boundary = (tiny.at("1").double() - plain.at("1").double() * 2.0**-110).abs()
    assert (boundary <= 1.5e-45).all()


def half(rows: list[list[float]], top: float) -> nn.Sequential:
    """A bias-free network in float16: equal units, then `top` times their sum."""
    weight = torch.tensor(rows)
    net = nn.Sequential(
        nn.Linear(weight.shape[1], len(rows), bias=False), nn.ReLU(), nn.Linear(len(rows), 1, bias=False)
    )
    with torch.no_grad():
        net[0].weight.copy_(weight)
        net[2].weight.fill_(top)
    return net.eval().half()


def test_a_score_that_overflows_float16_is_said_and_computed_again() -> None:
    # 4 units of 1000 · 4 = 4000 each; 100 · 4 · 4000 = 1.6e6 > 65504.
    x = torch.ones(2, 4, dtype=torch.float16)
    explainer = dt.Explainer(half([[1000.0] * 4] * 4, 100.0), x, dt.NonNegative(), bias="neuron")
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed.*float32"):
        e = explainer.explain(x)
    assert e.score.tolist() == [1.6e6, 1.6e6]
    assert torch.allclose(e.relevance.float(), torch.full((2, 4), 4e5))
    says(e.check(), "float16 overflowed", "float32")
    assert explainer.captured.engines["4f"].network is not None
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed"):
        assert torch.allclose(e.at("1").float(), torch.full((2, 4), 4e5))


def test_a_denominator_that_overflows_float16_is_said_and_computed_again() -> None:
    # z = 3 · 30000 − 3 · 29000 = 3000 fits float16, Σ z⁺ = 90000 does not: R / ∞ = 0 would lose everything silently.
    x = torch.ones(2, 6, dtype=torch.float16)
    explainer = dt.Explainer(half([[30000.0] * 3 + [-29000.0] * 3] * 4, 1.0), x, dt.NonNegative(), bias="neuron")
    with pytest.warns(dt.DeepTaylorWarning, match="float16 overflowed.*float32"):
        e = explainer.explain(x)
    assert torch.allclose(e.relevance.float()[:, :3], e.score.float()[:, None] / 3, rtol=1e-2)
    assert e.check().accounted


def test_float16_that_does_not_overflow_is_explained_in_float16() -> None:
    x = torch.ones(2, 4, dtype=torch.float16)
    e = dt.Explainer(half([[1.0] * 4] * 4, 1.0), x, dt.NonNegative(), bias="neuron").explain(x)
    assert e.relevance.dtype == torch.float16
    assert e.relevance.tolist() == [[4.0] * 4] * 2
    assert not e.notes


def test_overflow_in_float32_is_an_error() -> None:
    net = half([[1000.0] * 4] * 4, 100.0).float()
    explainer = dt.Explainer(net, torch.ones(1, 4), dt.NonNegative(), bias="neuron")
    with pytest.raises(dt.InputError) as info:
        explainer.explain(torch.full((1, 4), 1e36))
    says(info.value, "not finite", "overflow", "scale")


@pytest.mark.parametrize("rule", [dt.rules.Epsilon(), dt.rules.Z(), dt.rules.Gamma(), dt.rules.AlphaBeta()], ids=str)
def test_rules_that_take_differences_are_refused_in_types_of_few_digits(rule: dt.rules.Rule) -> None:
    net = half([[1.0] * 4] * 4, 1.0)
    x = torch.ones(2, 4, dtype=torch.float16)
    explainer = dt.Explainer(net, x, dt.NonNegative(), rules={"0": rule}, bias="neuron")
    for explain in (explainer.explain, explainer, lambda x: explainer.relevance_at("1", x)):
        with pytest.raises(dt.PlanError) as info:
            explain(x)
        says(info.value, str(rule), "differences", "float16", "explainer.float()")
    explainer.float().explain(x.float())


def test_a_logit_difference_is_refused_in_types_of_few_digits() -> None:
    x = torch.ones(2, 4, dtype=torch.float16)
    two = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval().half()
    with pytest.raises(dt.TargetError) as info:
        dt.explain(two, x, dt.margin(1, 0), dt.NonNegative(), bias="neuron")
    says(info.value, "float16", "float32")


@pytest.mark.parametrize("survives", [False, True])
def test_bfloat16_on_a_processor_that_dies_of_it_is_refused(survives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "" if survives else "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **rest: real([*command[:2], code], **rest))
    inputs._supports_bfloat16.cache_clear()
    try:
        if survives:
            inputs.check_processor([torch.ones(2, dtype=torch.bfloat16)])
            return
        with pytest.raises(dt.InputError) as info:
            dt.Explainer(mlp().bfloat16(), torch.ones(2, 4, dtype=torch.bfloat16), bias="neuron")
        says(info.value, "bfloat16", "explainer.float()")
    finally:
        inputs._supports_bfloat16.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("move", [lambda e: e.to("cuda"), lambda e: e.cuda()])
def test_a_move_to_a_gpu_that_is_not_there_is_one_sentence(move: Any) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x = torch.rand(1, 2)
    explainer = dt.Explainer(network, x, dt.Box(0, 1))
    before = explainer.explain(x, dt.margin()).relevance
    with pytest.raises(dt.InputError, match=r"cannot be moved: .*; this torch finds no GPU, so stay on 'cpu'") as e:
        move(explainer)
    assert "\n" not in str(e.value)
    assert torch.equal(explainer.explain(x, dt.margin()).relevance, before)
