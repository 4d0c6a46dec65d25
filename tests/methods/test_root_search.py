"""The nearest root: closed forms, the exact judge on tiny networks, and what a search must not do."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import InputError
from deeptaylor.methods.bundle import project
from exact_root import DOMAINS, Case, exact_root, random_case

torch.set_num_threads(1)


def linear(w: list[float], b: float = 0.0) -> nn.Module:
    f = nn.Linear(len(w), 1).double()
    with torch.no_grad():
        f.weight.copy_(torch.tensor([w]))
        f.bias.fill_(b)
    return f


def points(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def near(found: Tensor, wanted: list[float], gap: float = 1e-6) -> None:
    assert torch.allclose(found, torch.tensor(wanted, dtype=found.dtype), atol=gap), found.tolist()


# --- closed forms --------------------------------------------------------------------------------------------------


def test_one_neuron_in_three_domains() -> None:
    # f = 3 x0 + 4 x1 at (2, 1): f = 10. Level 0: the root (2, 1) − 10/25 (3, 4) = (0.8, −0.6), distance 2.
    f, x = linear([3.0, 4.0]), points([2.0, 1.0])
    root = dt.nearest_root(f, x, 0, level=0.0)
    near(root.point[0], [0.8, -0.6])
    assert float(root.distance) == pytest.approx(2.0)
    assert float(root.angle) < 1e-3
    assert float(root.kkt) < 1e-8
    # Level 0.1: f falls to 1, 9/25 of (3, 4) away: (0.92, −0.44).
    near(dt.nearest_root(f, x, 0).point[0], [0.92, -0.44])
    # x ≥ 0, level 0: 3 x0 + 4 x1 = 0 only at the origin.
    near(dt.nearest_root(f, x, 0, dt.NonNegative(), 0.0).point[0], [0.0, 0.0])
    # x1 ≥ −0.2 (box): x1 = −0.2, then 3 x0 = 0.8: (0.8/3, −0.2).
    near(dt.nearest_root(f, x, 0, dt.Box([-1.0, -0.2], [2.0, 2.0]), 0.0).point[0], [0.8 / 3, -0.2])


def test_one_layer_by_hand() -> None:
    # f = max(0, x0) + max(0, x1) at (3, 1), level 0.25: f ≤ 1. In x0, x1 ≥ 0 the nearest point of x0 + x1 = 1 is
    # (1.5, −0.5): x1 is at its kink, so the root is (1, 0), distance √5.
    root = dt.nearest_root(lambda x: x.clamp(min=0).sum(1), points([3.0, 1.0]), level=0.25)
    near(root.point[0], [1.0, 0.0], 1e-4)
    assert float(root.distance) == pytest.approx(math.sqrt(5), rel=1e-5)


def test_level_zero_where_f_is_never_negative() -> None:
    # max(0, x0 + x1 − 1) at (2, 1) is 2, and 0 first on x0 + x1 = 1: (1, 0), distance √2.
    root = dt.nearest_root(lambda x: (x.sum(1) - 1).clamp(min=0), points([2.0, 1.0]), level=0.0)
    assert float(root.value) == 0
    near(root.point[0], [1.0, 0.0], 1e-5)


@pytest.mark.parametrize(
    ("f", "x", "distance"),
    [
        # ‖x‖² ≤ level ‖x‖²: go straight in, to √0.1 of the length.
        (lambda x: x.square().sum(1), [3.0, 4.0], 5 * (1 - math.sqrt(0.1))),
        # exp(x0): x0 falls by log 10.
        (lambda x: x[:, 0].exp(), [0.5, 7.0], math.log(10)),
        # sin has its nearest tenth on the nearer side: from 2 up to π − asin(0.1 sin 2).
        (lambda x: x[:, 0].sin(), [2.0, 0.0], math.pi - math.asin(0.1 * math.sin(2.0)) - 2.0),
    ],
    ids=["square", "exp", "sin"],
)
def test_functions_that_are_no_relu_networks(f: object, x: list[float], distance: float) -> None:
    root = dt.nearest_root(f, points(x))  # type: ignore[arg-type]
    assert float(root.distance) == pytest.approx(distance, rel=1e-6)
    assert float(root.kkt) < 1e-6


def test_projection_by_hand() -> None:
    # From (2, 2) onto x + y ≤ 2 and x ≤ 0.5 in [0, 3]²: (0.5, 1.5), where both are equalities; without the 2nd (1, 1).
    a, low, high = points([2, 2], [2, 2]), torch.zeros(2, 2).double(), torch.full((2, 2), 3.0).double()
    G = torch.tensor([[[1.0, 1.0], [1.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]).double()
    e = points([2, 0.5], [2, 0])
    y, multipliers = project(a, G, e, low, high)
    near(y[0], [0.5, 1.5])
    near(y[1], [1.0, 1.0])
    # y = a − Gᵀ λ: (1.5, 0.5) = λ0 (1, 1) + λ1 (1, 0): λ = (0.5, 1).
    near(multipliers[0], [0.5, 1.0])
    assert float(multipliers[1, 1]) == 0


# --- the exact judge -----------------------------------------------------------------------------------------------


def module(case: Case) -> nn.Module:
    layers: list[nn.Module] = []
    for W, b in case.network.layers:
        layer = nn.Linear(W.shape[1], W.shape[0]).double()
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(W))
            layer.bias.copy_(torch.tensor(b))
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def domain_of(case: Case, name: str) -> dt.Domain:
    if name == "box":
        return dt.Box(torch.tensor(case.low), torch.tensor(case.high))
    return dt.NonNegative() if name == "nonnegative" else dt.Real()


def ratios(name: str, seeds: range) -> list[float]:
    """Distance over the exact one; every answer is checked on the way."""
    found = []
    for seed in seeds:
        case = random_case(seed, name)
        exact = exact_root(case.network, case.x, case.c, case.low, case.high)
        root = dt.nearest_root(module(case), torch.tensor(case.x)[None], 0, domain_of(case, name), case.level)
        if exact is None:
            assert not bool(root.converged), (seed, "a root where there is none")
            assert torch.isnan(root.point).all()
            assert "no root in the domain was found" in root.reason[0] or "budget spent" in root.reason[0]
            continue
        assert bool(root.converged), (seed, "missed")
        point = root.point[0].numpy()
        assert case.network(point[None])[0] <= case.c, (seed, "infeasible")
        assert np.all((point >= case.low) & (point <= case.high)), (seed, "outside")
        found.append(float(root.distance) / exact.distance)
        assert found[-1] >= 1 - 1e-8, (seed, "nearer than the nearest")
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "real" else pytest.mark.slow) for name in DOMAINS]
)
def test_a_few_tiny_networks_against_the_exact_judge(name: str) -> None:
    found = np.array(ratios(name, range(1000, 1025)))
    assert len(found) >= 18
    assert np.mean(found <= 1.01) >= 0.9
    assert np.mean(found <= 1.1) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", DOMAINS)
def test_tiny_networks_against_the_exact_judge(name: str) -> None:
    """Never infeasible, never missed; within 1 % of the optimum on 95 %, within 10 % on 99.5 % of 300 cases."""
    found = np.array(ratios(name, range(300)))
    close, fair = np.mean(found <= 1.01), np.mean(found <= 1.1)
    print(f"{name}: {len(found)} roots, {close:.4f} within 1 %, {fair:.4f} within 10 %")
    assert len(found) >= 250
    assert np.mean(found <= 1.01) >= 0.95
    assert np.mean(found <= 1.1) >= 0.995


# --- batches -------------------------------------------------------------------------------------------------------


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def test_a_sample_does_not_depend_on_its_batch() -> None:
    f = small_network()
    x = torch.randn(6, 5, dtype=torch.float64)
    together = dt.nearest_root(f, x, 1, starts=8)
    assert together.converged.any()
    for k in range(6):
        alone = dt.nearest_root(f, x[k : k + 1], 1, starts=8)
        assert bool(alone.converged) == bool(together.converged[k])
        if alone.converged:
            # Rounding differs with the batch, and at a kink that decides the way; not more than that.
            assert float(alone.distance) == pytest.approx(float(together.distance[k]), rel=1e-2)


def test_the_same_twice_and_the_seed_matters_only_for_starts() -> None:
    f, x = small_network(1), torch.randn(4, 5, dtype=torch.float64)
    a, b = dt.nearest_root(f, x, 0, starts=6), dt.nearest_root(f, x, 0, starts=6)
    assert torch.equal(a.point.nan_to_num(), b.point.nan_to_num())
    random = torch.random.get_rng_state()
    dt.nearest_root(f, x, 0, starts=6, seed=5)
    assert torch.equal(random, torch.random.get_rng_state())


def test_progress_counts_up_to_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    x = torch.randn(5, 5, dtype=torch.float64)
    dt.nearest_root(small_network(), x, 2, starts=4, progress=lambda done, of: seen.append((done, of)))
    assert seen
    assert seen[-1][0] == seen[-1][1]
    assert all(a[0] <= b[0] <= b[1] for a, b in pairwise(seen))


def test_targets_and_pictures() -> None:
    f = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    x = torch.rand(3, 1, 8, 8)
    score = f(x).detach()
    target = score.argmax(1)
    for chosen in (None, target, torch.nn.functional.one_hot(target, 3).float()):
        root = dt.nearest_root(f, x, chosen, dt.Box(0.0, 1.0))
        up = score.amax(1) > 0
        assert root.point.shape == x.shape
        assert up.any()
        value = f(root.point).detach().gather(1, target[:, None])[:, 0]
        assert (value <= 0.1 * score.amax(1))[up & root.converged].all()
        assert ((root.point >= 0) & (root.point <= 1))[up & root.converged].all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_agrees_with_the_cpu() -> None:
    f, x = small_network(2), torch.randn(8, 5, dtype=torch.float64)
    a = dt.nearest_root(f, x, 0)
    b = dt.nearest_root(f.cuda(), x.cuda(), 0)
    assert torch.equal(a.converged, b.converged.cpu())
    assert torch.allclose(a.distance[a.converged], b.distance.cpu()[a.converged], rtol=1e-4)


# --- honesty -------------------------------------------------------------------------------------------------------


def test_a_negative_score_is_already_a_root() -> None:
    root = dt.nearest_root(linear([1.0, 1.0]), points([-1.0, -2.0], [1.0, 2.0]), 0)
    assert root.converged.tolist() == [True, True]
    assert root.reason == ("f(x) = -3 ≤ 0: x is already a root", "")
    assert torch.equal(root.point[0], points([-1.0, -2.0])[0])
    assert float(root.distance[0]) == 0
    assert int(root.iterations[0]) == 0
    assert str(root).startswith("sample 0: f(x) = -3 ≤ 0: x is already a root\nsample 1: distance 1.9")


def test_no_root_in_the_domain() -> None:
    # 1 + x0 over [0, 2]: never below 1, and a tenth of f(x) = 2 is 0.2.
    root = dt.nearest_root(linear([1.0], 1.0), points([1.0]), 0, dt.Box(0.0, 2.0))
    assert root.converged.tolist() == [False]
    assert root.reason[0] == "no root in the domain was found (the smallest f seen is 1, the level asks for 0.2)"
    assert torch.isnan(root.point).all()
    assert torch.isnan(root.value).all()


def test_the_gradient_at_a_kink_satisfies_the_conditions_of_a_nearest_root() -> None:
    """f = max(2a + b, a + 2b) = 3 nearest to (3, 3): the corner (1, 1), where the gradients (2, 1) and (1, 2) meet.

    x − ξ = (2, 2) is 4/3 of their mean (3/2, 3/2). Either gradient alone gives (4, 2) or (2, 4) as a map, their mean
    (3, 3): Σ R = f(x) − f(ξ) = 6.
    """

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.maximum(2 * x[:, 0] + x[:, 1], x[:, 0] + 2 * x[:, 1])

    x = torch.tensor([[3.0, 3.0]], dtype=torch.float64)
    root = dt.nearest_root(f, x, level=1 / 3)
    torch.testing.assert_close(root.point, torch.ones_like(x), atol=1e-6, rtol=0)
    torch.testing.assert_close(root.gradient, torch.full_like(x, 1.5), atol=1e-6, rtol=0)
    assert float(root.kkt) < 1e-6
    torch.testing.assert_close(dt.taylor(f, x, root=root).relevance, x, atol=1e-5, rtol=0)


def test_maps_at_the_kinks_of_a_network_are_positive() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(30, 12), torch.nn.ReLU()).double()
    with torch.no_grad():
        network[0].bias.clamp_(max=0)
    x = torch.rand(20, 30, dtype=torch.float64)
    root = dt.nearest_root(network, x, target=lambda y: y.sum(1), domain=dt.Box(-0.5, 1.5))
    z = network[0](root.point).abs()
    assert int((z < 1e-6 * z.amax(1, keepdim=True)).sum()) > 20, "no root lies on a kink: the test is empty"
    R = dt.taylor(network, x, target=lambda y: y.sum(1), root=root).relevance
    assert float(R.clamp(max=0).abs().sum()) < 1e-3 * float(R.abs().sum())
    assert float(root.kkt.median()) < 1e-6


def test_points_to_begin_at_find_what_x_alone_does_not() -> None:
    """f = min(a − 1, 4 (b − 1)) + 1 has the level 1/2 at a = 1/2 and at b = 7/8; from (2, 3) the second is farther."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(x[:, 0] - 1, 4 * (x[:, 1] - 1)) + 1

    x = torch.tensor([[2.0, 1.3]], dtype=torch.float64)
    level = float(0.5 / f(x))
    alone = dt.nearest_root(f, x, level=level, starts=1)
    begun = dt.nearest_root(f, x, level=level, starts=1, begin=torch.tensor([[[2.0, 0.5]]]))
    assert float(begun.distance) == pytest.approx(1.3 - 0.875, abs=1e-6)
    assert float(begun.distance) < float(alone.distance) - 0.1
    with pytest.raises(InputError, match="begin must hold points shaped like x"):
        dt.nearest_root(f, x, begin=torch.zeros(1, 2))


def test_the_budget_is_named() -> None:
    f = small_network(3)
    x = torch.randn(20, 5, dtype=torch.float64)
    root = dt.nearest_root(f, x, 0, starts=1, iterations=1)
    texts = [r for r in root.reason if r.startswith("budget spent: no root after 1 evaluations from each start")]
    assert texts
    assert texts[0].endswith("raise iterations")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: dt.nearest_root(lambda x: x.sum(1) * 0 + 3, x), "f is constant: its gradient is zero at x"),
        (lambda x: dt.nearest_root(lambda x: torch.ones(len(x)), x), "does not depend on its input"),
        (lambda x: dt.nearest_root(lambda x: (x - x).sqrt().sum(1), x), "the gradient of f at x is NaN"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, domain=dt.Box(3.0, 1.0)), "low must not exceed high"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, domain=dt.Box(0.0, 1.0)), "1 of 2 values lie outside"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), -x, domain=dt.NonNegative()), "is declared non-negative"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, domain="box"), "A domain is dt.Real"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, level=1.0), r"level must lie in \[0, 1\), got 1.0"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, level=-0.1), r"level must lie in \[0, 1\), got -0.1"),
        (lambda x: dt.nearest_root(lambda x: x.sum(1), x, starts=0), "starts and iterations must be at least 1"),
    ],
)
def test_bad_input_is_a_clear_error(call: object, text: str) -> None:
    with pytest.raises((dt.InputError, dt.PlanError), match=text):
        call(torch.tensor([[1.0, 2.0]]))  # type: ignore[operator]


# --- two-digit images ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_pictures_cost_at_most_400_passes() -> None:
    """The paper's trained one-layer network on images of its kind: every root holds, in at most 400 passes' time."""
    from deeptaylor.models.networks.paper_networks import load_network

    f = load_network("one-layer").eval()
    x = digit_pairs(1000)

    def one_pass() -> None:
        xi = x.clone().requires_grad_()
        torch.autograd.grad(f(xi).sum(), xi)

    def timed(job: object) -> float:
        begin = time.process_time()  # other work on the machine does not count
        job()  # type: ignore[operator]
        return time.process_time() - begin

    timed(one_pass)
    before = [timed(one_pass) for _ in range(10)]
    begin = time.process_time()
    root = dt.nearest_root(f, x, None, dt.Box(-0.5, 1.5))
    spent = time.process_time() - begin
    unit = np.median(before + [timed(one_pass) for _ in range(10)])
    score = f(x).detach()
    assert int((score > 1).sum()) > 300, "the pictures must excite the network"
    assert root.converged.all()
    assert (f(root.point).detach() <= (0.1 * score).clamp(min=0) + (score <= 0) * score)[score > 0].all()
    assert ((root.point >= -0.5) & (root.point <= 1.5)).all()
    print(f"{spent / unit:.0f} forward-backward passes")
    assert spent / unit <= 400


def digit_pairs(count: int) -> Tensor:
    """Pictures 28 × 56 of two handwritten digits each: scikit-learn's, which are 8 × 8, drawn out to 20 × 20."""
    digits = pytest.importorskip("sklearn.datasets").load_digits().images
    small = torch.tensor(digits / 16, dtype=torch.float32)[:, None]
    large = torch.nn.functional.interpolate(small, size=(20, 20), mode="bicubic").clamp(0, 1)
    large = torch.nn.functional.pad(large, (4, 4, 4, 4))
    chosen = torch.randint(len(large), (count, 2), generator=torch.Generator().manual_seed(0))
    return 2 * torch.cat([large[chosen[:, 0]], large[chosen[:, 1]]], 3) - 0.5
