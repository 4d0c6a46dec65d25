"""Fitting a min-max model to samples: what a step does, where training begins, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.methods.relevance_fit import RelevanceSamples, StepRule, fit_samples, make_start, start_randomly
from deeptaylor.methods.relevance_model import MinMaxModel, measure_r_squared
from min_max_samples import known, trained_like


def test_fit_recovers_a_min_max_model() -> None:
    seen: list[tuple[int, float]] = []
    model = fit_samples(
        [known(10_000, 1)], make_start, steps=10_000, learning_rate=0.2, progress=lambda *now: seen.append(now)
    )
    held_out = known(2000, 2)
    before = make_start(known(10_000, 1)).model
    assert measure_r_squared(before, held_out.x, held_out.R_l, held_out.R_k) < 0.9
    assert measure_r_squared(model, held_out.x, held_out.R_l, held_out.R_k) > 0.99
    assert (model.d_j <= 0).all()
    assert [step for step, _ in seen] == list(range(500, 10_001, 500))
    assert seen[-1][1] < seen[0][1] / 5


def test_the_top_down_term_is_needed() -> None:
    """The same fit without sight of the relevances above."""

    def blind(count: int, seed: int) -> RelevanceSamples:
        samples = known(count, seed)
        return RelevanceSamples(samples.x, torch.ones_like(samples.R_l), samples.R_k)

    model = fit_samples([blind(10_000, 1)], make_start, steps=3000, learning_rate=0.2)
    held_out = blind(2000, 2)
    assert measure_r_squared(model, held_out.x, held_out.R_l, held_out.R_k) < 0.9


def test_the_plain_training_takes_the_step_of_the_gradient() -> None:
    """From its own start: v ← v − η ∂/∂v, for all parameters with the same η, and no projection."""
    samples = known(20, 1)
    told: list[float] = []
    rate = 1e-3 * min(1.0, 1 / (1 / 3))  # the last step of three: the rate falls in the last third
    now = fit_samples(
        [samples], start_randomly, steps=1, training="plain", learning_rate=1e-3,
        progress=lambda step, loss: told.append(loss),
    )  # fmt: skip
    was = start_randomly(samples).model
    loss = (was(samples.x, samples.R_l) - samples.R_k).square().sum(1).mean()
    loss.backward()
    np.testing.assert_allclose(told, [loss.item()], rtol=1e-12)
    for name in ("v_ij", "v_lj", "d_j"):
        before = getattr(was, name)
        assert before.grad.abs().max() > 0
        expected = (before - rate * before.grad).detach()
        np.testing.assert_allclose(getattr(now, name).detach().numpy(), expected.numpy(), rtol=1e-12)
    assert (now.d_j > 0).any(), "nothing holds d_j down"


def test_a_guided_step_is_the_gradient_rescaled_centred_and_projected() -> None:
    """The step rule that the guided training makes for its data, against autograd on centred inputs."""
    samples, model, plain = known(20, 1), trained_like(seed=8), trained_like(seed=8)
    with torch.no_grad():
        assert (model.d_j > 0.01).any()  # not a state of training, but then the projection is seen
    x, R_l, _ = samples.flat()
    mean = x.mean(0)
    loss = (plain(samples.x, samples.R_l) - samples.R_k).square().sum(1).mean()
    loss.backward()
    told = StepRule.guided(samples, None).step_(model, samples, 1e-3)
    np.testing.assert_allclose(float(told), loss.item(), rtol=1e-12)
    # ∂/∂v_ij = Σ_n x_i g_j, and ∂/∂z_j summed over samples is what a constant input would get.
    z = ((x @ plain.v_ij.flatten(1)) + plain.inhibition(samples.R_l).flatten(1)).detach()
    error = (plain(samples.x, samples.R_l) - samples.R_k).detach()
    g = 2 / len(x) * error.repeat_interleave(plain.d_j.shape[1], 1) * (z > 0)
    centred = plain.v_ij.grad.flatten(1) - torch.outer(mean, g.sum(0))
    c = x - mean
    size = max(float(c.square().sum(1).mean()), float((c @ mean).square().mean().sqrt()))
    expected = {
        "v_ij": plain.v_ij.flatten(1) - 1e-3 / size * centred,
        "v_lj": (plain.v_lj - 1e-3 / R_l.square().sum(1).mean() * plain.v_lj.grad).flatten(1),
        "d_j": (plain.d_j - 1e-3 * plain.d_j.grad).clamp(max=0),
    }
    for name, value in expected.items():
        now = getattr(model, name).detach()
        np.testing.assert_allclose(now.reshape(value.shape).numpy(), value.detach().numpy(), rtol=1e-9, atol=1e-15)


def test_the_plain_training_fits_too_and_needs_more_steps() -> None:
    held_out = known(2000, 2)

    def fitted(steps: int) -> float:
        model = fit_samples([known(10_000, 1)], start_randomly, steps=steps, training="plain", learning_rate=0.02)
        return measure_r_squared(model, held_out.x, held_out.R_l, held_out.R_k)

    assert fitted(200) < 0.9 < 0.95 < fitted(10_000)


def test_a_training_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="training must be 'guided' or 'plain'; got 'careful'"):
        fit_samples([known(20, 1)], make_start, steps=1, training="careful")  # type: ignore[arg-type]


def test_the_model_is_inspected_at_checkpoints() -> None:
    seen: list[int] = []
    fit_samples(
        [known(200, 1)], make_start, steps=30, checkpoint_every=20, inspect=lambda step, loss, model: seen.append(step)
    )
    assert seen == [20, 30]


def test_an_input_that_never_changes_keeps_its_weights() -> None:
    """Else it would serve as a bias, and get relevance for it: the red frame of heatmaps."""
    samples = known(400, 1)
    x = samples.x.clone()
    x[:, 2] = -0.5
    before = make_start(RelevanceSamples(x, samples.R_l, samples.R_k)).model
    after = fit_samples([RelevanceSamples(x, samples.R_l, samples.R_k)], make_start, steps=200)
    assert torch.equal(after.v_ij[2], before.v_ij[2])
    assert not torch.equal(after.v_ij[1], before.v_ij[1])


def test_weights_are_pulled_towards_those_of_the_layer() -> None:
    samples = known(20, 1)
    model = trained_like(seed=8, U=1)
    before, anchor = model.v_ij.detach().clone(), torch.ones_like(model.v_ij)
    StepRule(0.0, 0.0, 0.0, anchor=anchor).step_(model, samples, rate=0.5, pull=0.2)
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
                lambda s, begin=begin: make_start(s, layer, pooled, begin=begin),  # type: ignore[misc]
                steps=2000,
                pull=(pull, pull),
            )
            for begin in ("layer", "random")
        )
        return float((a.v_ij - b.v_ij).detach().abs().mean())

    assert apart(0.05) < apart(0.0) / 2


def test_a_start_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="begin must be 'layer' or 'random'; got 'here'"):
        make_start(known(20, 1), begin="here")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pull must be two numbers"):
        fit_samples([known(20, 1)], make_start, steps=1, pull=(-1.0, 0.0))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_of_measurement_do_not_matter(scale: float) -> None:
    """x and R in other units: weights in other units, the same fit."""
    samples, held_out = known(2000, 1), known(500, 2)
    other, other_held_out = (RelevanceSamples(s.x, scale * s.R_l, scale * s.R_k) for s in (samples, held_out))
    found = [fit_samples([s], make_start, steps=500) for s in (samples, other)]
    expected = measure_r_squared(found[0], held_out.x, held_out.R_l, held_out.R_k)
    assert measure_r_squared(found[1], other_held_out.x, other_held_out.R_l, other_held_out.R_k) == pytest.approx(
        expected, abs=1e-6
    )


def test_a_seed_decides_all() -> None:
    a, b, c = (
        fit_samples([known(200, 1)], lambda s, seed=seed: make_start(s, seed=seed), steps=50)  # type: ignore[misc]
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
    assert measure_r_squared(model, zeros, zeros, R_k) == pytest.approx(1 - 50 / 14)
    with pytest.raises(InputError, match="no variance"):
        measure_r_squared(model, zeros, zeros, torch.ones(2, 2))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive"),
        ({"learning_rate": 1e308}, "learning rate 1e.308 is too high"),
        ({"batch": 300}, "ran out after 0 of 10 steps; a step takes 300"),
    ],
)
def test_a_fit_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit_samples([known(200, 1)], make_start, **{"steps": 10, **settings})


def test_batches_that_cannot_be_gone_through_again_run_out() -> None:
    with pytest.raises(InputError, match="ran out after 10 of 50 steps"):
        fit_samples(iter([known(200, 1)]), make_start, steps=50)


def test_a_layer_without_relevance_is_refused() -> None:
    s = known(20, 1)
    with pytest.raises(InputError, match="No relevance reaches"):
        make_start(RelevanceSamples(s.x, s.R_l, 0 * s.R_k))
