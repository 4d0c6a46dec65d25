"""Fitting a min-max model to samples: what a step does, where training begins, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.methods.relevance_fit import Descent, fit_samples
from deeptaylor.methods.relevance_model import MinMaxModel, r_squared
from deeptaylor.methods.relevance_samples import Samples
from deeptaylor.methods.relevance_start import start
from min_max_samples import known, trained_like


def test_fit_recovers_a_min_max_model() -> None:
    seen: list[tuple[int, float]] = []
    model = fit_samples(
        [known(10_000, 1)], start, steps=10_000, learning_rate=0.2, progress=lambda *now: seen.append(now)
    )
    held_out = known(2000, 2)
    before = start(known(10_000, 1)).model
    assert r_squared(before, held_out.x, held_out.R_l, held_out.R_k) < 0.9
    assert r_squared(model, held_out.x, held_out.R_l, held_out.R_k) > 0.99
    assert (model.d_j <= 0).all()
    assert [step for step, _ in seen] == list(range(500, 10_001, 500))
    assert seen[-1][1] < seen[0][1] / 5


def test_the_top_down_term_is_needed() -> None:
    """The same fit without sight of the relevances above."""

    def blind(count: int, seed: int) -> Samples:
        samples = known(count, seed)
        return Samples(samples.x, torch.ones_like(samples.R_l), samples.R_k)

    model = fit_samples([blind(10_000, 1)], start, steps=3000, learning_rate=0.2)
    held_out = blind(2000, 2)
    assert r_squared(model, held_out.x, held_out.R_l, held_out.R_k) < 0.9


def test_a_step_is_down_the_gradient() -> None:
    samples, model, plain = known(20, 1), trained_like(seed=8), trained_like(seed=8)
    with torch.no_grad():
        assert (model.d_j > 0.01).any()  # not a state of training, but then the last step is seen
    loss = (plain(samples.x, samples.R_l) - samples.R_k).square().sum(1).mean()
    loss.backward()
    told = Descent(torch.zeros(6, dtype=torch.float64), 1e-3, 2e-3, 3e-3).step_(model, samples, 1.0)
    np.testing.assert_allclose(float(told), loss.item(), rtol=1e-12)
    for name, rate in (("v_ij", 1e-3), ("v_lj", 2e-3), ("d_j", 3e-3)):
        now, was = getattr(model, name).detach(), getattr(plain, name)
        assert was.grad.abs().max() > 0
        stepped = (was - rate * was.grad).detach()
        expected = stepped.clamp(max=0) if name == "d_j" else stepped
        np.testing.assert_allclose(now.numpy(), expected.numpy(), rtol=1e-12)


def test_an_input_that_never_changes_keeps_its_weights() -> None:
    """Else it would serve as a bias, and get relevance for it: the red frame of heatmaps."""
    samples = known(400, 1)
    x = samples.x.clone()
    x[:, 2] = -0.5
    before = start(Samples(x, samples.R_l, samples.R_k)).model
    after = fit_samples([Samples(x, samples.R_l, samples.R_k)], start, steps=200)
    assert torch.equal(after.v_ij[2], before.v_ij[2])
    assert not torch.equal(after.v_ij[1], before.v_ij[1])


def test_weights_are_pulled_towards_those_of_the_layer() -> None:
    samples = known(20, 1)
    model = trained_like(seed=8, U=1)
    before, anchor = model.v_ij.detach().clone(), torch.ones_like(model.v_ij)
    mean = torch.zeros(6, dtype=torch.float64)
    Descent(mean, 0.0, 0.0, 0.0, anchor).step_(model, samples, rate=0.5, pull=0.2)
    np.testing.assert_allclose(model.v_ij.detach().numpy(), (0.9 * before + 0.1).numpy(), rtol=1e-12)


def test_a_pull_decides_more_than_the_start() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 12, dtype=torch.float64)

    def pooled(x_j: Tensor) -> Tensor:
        return x_j.unflatten(1, (3, 4)).sum(2)

    def apart(pull: float) -> float:
        a, b = (
            fit_samples(
                [known(500, 1)],
                lambda s, begin=begin: start(s, layer, pooled, begin=begin),  # type: ignore[misc]
                steps=2000,
                pull=(pull, pull),
            )
            for begin in ("layer", "random")
        )
        return float((a.v_ij - b.v_ij).detach().abs().mean())

    assert apart(0.05) < apart(0.0) / 2


def test_a_start_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="begin is 'layer' or 'random'; got 'here'"):
        start(known(20, 1), begin="here")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pull is two numbers"):
        fit_samples([known(20, 1)], start, steps=1, pull=(-1.0, 0.0))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_measurement_do_not_matter(scale: float) -> None:
    """x and R in other units: weights in other units, the same fit."""
    samples, held_out = known(2000, 1), known(500, 2)
    other, other_held_out = (Samples(s.x, scale * s.R_l, scale * s.R_k) for s in (samples, held_out))
    found = [fit_samples([s], start, steps=500) for s in (samples, other)]
    expected = r_squared(found[0], held_out.x, held_out.R_l, held_out.R_k)
    assert r_squared(found[1], other_held_out.x, other_held_out.R_l, other_held_out.R_k) == pytest.approx(
        expected, abs=1e-6
    )


def test_a_seed_decides_all() -> None:
    a, b, c = (
        fit_samples([known(200, 1)], lambda s, seed=seed: start(s, seed=seed), steps=50)  # type: ignore[misc]
        for seed in (3, 3, 4)
    )
    assert torch.equal(a.v_ij, b.v_ij)
    assert not torch.equal(a.v_ij, c.v_ij)


def test_share_of_variance_by_hand() -> None:
    """R = (1, 2, 3, 6) has the mean 3 and Σ (R − 3)² = 14; predicted 0 each time, Σ R² = 50: 1 − 50/14."""
    model = MinMaxModel(1, 1, 2, 1)
    with torch.no_grad():
        model.v_ij.zero_()
    zeros, R_k = torch.zeros(2, 1), torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert r_squared(model, zeros, zeros, R_k) == pytest.approx(1 - 50 / 14)
    with pytest.raises(InputError, match="no variance"):
        r_squared(model, zeros, zeros, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 0}, "steps is a whole number"),
        ({"batch": 1.5}, "batch is a whole number"),
        ({"learning_rate": 0.0}, "learning_rate is a positive"),
        ({"learning_rate": 1e308}, "learning rate 1e.308 is too high"),
        ({"batch": 300}, "ran out after 0 of 10 steps; a step takes 300"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit_samples([known(200, 1)], start, **{"steps": 10, **settings})


def test_batches_that_cannot_be_gone_through_again_run_out() -> None:
    with pytest.raises(InputError, match="ran out after 10 of 50 steps"):
        fit_samples(iter([known(200, 1)]), start, steps=50)


def test_a_layer_without_relevance_is_refused() -> None:
    s = known(20, 1)
    with pytest.raises(InputError, match="No relevance reaches"):
        start(Samples(s.x, s.R_l, 0 * s.R_k))
