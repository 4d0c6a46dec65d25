"""The exact judge, judged: by hand, by sampling, and by an enumeration that shares nothing with its search."""

from __future__ import annotations

from itertools import combinations, islice, product

import numpy as np
import pytest

from exact_root import (
    DOMAINS,
    Case,
    Exact,
    TinyNetwork,
    certified_root,
    exact_root,
    is_projection,
    nearest_point,
    random_case,
)

OPEN = np.full(2, np.inf)


def network(*layers) -> TinyNetwork:
    return TinyNetwork([(np.array(W, dtype=float), np.array(b, dtype=float)) for W, b in layers])


def root(f: TinyNetwork, x, c: float, low=-OPEN, high=OPEN) -> Exact | None:
    return exact_root(f, np.array(x, dtype=float), c, np.array(low, dtype=float), np.array(high, dtype=float))


def solve(case: Case) -> Exact | None:
    return exact_root(case.network, case.x, case.c, case.low, case.high)


# By hand


def test_one_linear_unit():
    # f = max(0, 3a + 4b) at x = (3, 4) is 25. The line 3a + 4b = 5 is (25 − 5) / ‖(3, 4)‖ = 4 away,
    # along −(3, 4)/5: (3, 4) − 4 (3/5, 4/5) = (3/5, 4/5).
    found = root(network(([[3, 4]], [0]), ([[1]], [0])), (3, 4), 5)
    assert found.distance == pytest.approx(4, rel=1e-10)
    assert found.point == pytest.approx([0.6, 0.8], rel=1e-10)


def test_root_at_a_kink():
    # f = 2 max(0, a − 1) + max(0, 1 − a) is 4 at a = 3 and has its minimum 0 at the kink a = 1 alone: 2 away.
    found = root(network(([[1, 0], [-1, 0]], [-1, 1]), ([[2, 1]], [0])), (3, 7), 0)
    assert found.distance == pytest.approx(2, rel=1e-10)
    assert found.point == pytest.approx([1, 7], rel=1e-10)


def test_root_where_two_kinks_cross():
    # f = |a| + |b| is 0 at the origin alone, 5 away from (3, 4). Each |t| is max(0, t) + max(0, −t).
    found = root(network(([[1, 0], [-1, 0], [0, 1], [0, -1]], [0] * 4), ([[1, 1, 1, 1]], [0])), (3, 4), 0)
    assert found.distance == pytest.approx(5, rel=1e-10)
    assert found.point == pytest.approx([0, 0], abs=1e-10)


def test_the_nearer_of_two_valleys_behind_a_ridge():
    # f = max(0, a + 3) − 2 max(0, a − 1): rises from 0 at a = −3 to 4 at a = 1, falls by 1 a step to 1 at a = 4.
    # From a = 0, where f = 3, downhill leads to f = 1 at a = −2, 2 away; over the ridge lies a = 4, 4 away.
    # From a = 1.5, where f = 3.5, they are 3.5 and 2.5 away: over there is nearer.
    f = network(([[1, 0], [1, 0]], [3, -1]), ([[1, -2]], [0]))
    assert root(f, (0, 0), 1).point == pytest.approx([-2, 0], rel=1e-10)
    assert root(f, (1.5, 0), 1).point == pytest.approx([4, 0], rel=1e-10)


def test_root_in_the_corner_of_a_box():
    # f = max(0, a + b) is 4 at (2, 2). In the box [1, 3] × [½, 3] it is 3/2 in the corner (1, ½) and more elsewhere:
    # that is √(1 + 9/4) away.
    found = root(network(([[1, 1]], [0]), ([[1]], [0])), (2, 2), 1.5, (1, 0.5), (3, 3))
    assert found.distance == pytest.approx(np.sqrt(3.25), rel=1e-10)
    assert found.point == pytest.approx([1, 0.5], rel=1e-10)


def test_root_on_the_edge_of_the_positive_orthant():
    # f = max(0, 2a + b) is 5 at (1, 3). The line 2a + b = 1 is met straight at (1, 3) − 4/5 (2, 1) = (−3/5, 11/5),
    # outside. On the edge a = 0 it is b = 1: √(1 + 4) away.
    found = root(network(([[2, 1]], [0]), ([[1]], [0])), (1, 3), 1, (0, 0))
    assert found.distance == pytest.approx(np.sqrt(5), rel=1e-10)
    assert found.point == pytest.approx([0, 1], abs=1e-10)


def test_two_hidden_layers():
    # h = max(0, a), g = max(0, 2h − 4), f = 5 − g: f = 5 until a = 2, then falls by 2 a step. From a = 1, f ≤ 1 needs
    # g = 4, h = 4: 3 away.
    found = root(network(([[1, 0]], [0]), ([[2]], [-4]), ([[-1]], [5])), (1, 1), 1)
    assert found.distance == pytest.approx(3, rel=1e-10)
    assert found.point == pytest.approx([4, 1], rel=1e-10)


def test_a_root_far_away():
    # f = 100 − max(0, a) / 100 is 100 at a = 0 and 10 at a = 9000.
    found = root(network(([[1, 0]], [0]), ([[-0.01]], [100])), (0, 0), 10)
    assert found.distance == pytest.approx(9000, rel=1e-10)


def test_an_x_which_is_a_root_is_its_own_nearest():
    f = network(([[3, 4]], [0]), ([[1]], [0]))
    assert root(f, (3, 4), 25).distance == 0
    assert root(f, (-3, -4), 0).distance == 0  # here f is flat


@pytest.mark.parametrize(
    ("f", "c", "low", "high"),
    [
        (network(([[1, 0]], [0]), ([[1]], [2])), 1, -OPEN, OPEN),  # f = max(0, a) + 2 is never below 2
        (network(([[1, 1]], [1]), ([[1]], [0])), 0.5, (0, 0), OPEN),  # f = a + b + 1 ≥ 1 where a, b ≥ 0
        (network(([[1, 1]], [0]), ([[1]], [0])), 1.25, (1, 0.5), (3, 3)),  # the corner of the box has 3/2
    ],
)
def test_no_root(f, c, low, high):
    assert root(f, (2, 2), c, low, high) is None


def test_contradicting_halfspaces_hold_no_point():
    # a ≥ 1 and a ≤ 1 meet in a line; a ≥ 1 and a ≤ 1 − 1e-4 do not.
    assert nearest_point(np.zeros(2), [np.array([1, 0, 1.0]), np.array([-1, 0, -1.0])]).distance == pytest.approx(1)
    assert nearest_point(np.zeros(2), [np.array([1, 0, 1.0]), np.array([-1, 0, -0.9999])]) is None


def test_certificates_refuse_what_is_no_root_or_no_projection():
    # f = max(0, a), x = (2, 0), c = 1, a ≥ ½: (1.1, 0) has f > c, and (0.4, 0) is outside.
    case = Case(network(([[1, 0]], [0]), ([[1]], [0])), np.array([2.0, 0]), np.array([0.5, -np.inf]), OPEN, 1.0)
    for a in (1.1, 0.4):
        with pytest.raises(ArithmeticError, match="is no root"):
            certified_root(case, Exact(2 - a, np.array([a, 0.0])))
    # ζ₁ ≥ 1, with multiplier ½: (1, 0) is the projection of 0, (2, 0) is too long, (½, 0) does not satisfy the row.
    G, k = np.array([[1.0, 0]]), np.array([1.0])
    verdicts = [is_projection(np.array([a, 0]), G, k, np.array([0.5, 0]), 0.5) for a in (1.0, 2.0, 0.5)]
    assert verdicts == [True, False, False]


# By sampling


def grid(case: Case, centre: np.ndarray, radius: float, n: int = 300) -> np.ndarray:
    axis = np.linspace(-radius, radius, n)
    return np.clip(centre + np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2), case.low, case.high)


def plane_cases(domain: str, n: int) -> list[Case]:
    cases = (random_case(seed, domain) for seed in range(1000))
    return list(islice((case for case in cases if len(case.x) == 2), n))


@pytest.mark.parametrize("domain", DOMAINS)
def test_sampling_finds_nothing_nearer_and_something_as_near(domain):
    rootless = 0
    for case in plane_cases(domain, 25):
        found = solve(case)
        reaches = [0.1, 1.0, 10.0, 100.0] if found is None else [found.distance, found.distance / 3]
        for reach in reaches:
            points = grid(case, case.x, reach)
            distances = np.linalg.norm(points - case.x, axis=1)[case.network(points) <= case.c]
            assert distances.min(initial=np.inf) >= (np.inf if found is None else found.distance * (1 - 1e-9))
        if found is None:
            rootless += 1
            continue
        points = grid(case, found.point, 0.03 * found.distance)
        distances = np.linalg.norm(points - case.x, axis=1)[case.network(points) <= case.c]
        assert distances.min(initial=np.inf) <= 1.03 * found.distance
    assert rootless


# By enumeration


def projection_by_subsets(x: np.ndarray, G: np.ndarray, h: np.ndarray) -> float:
    """The distance from x to {G ξ ≥ h}: the nearest point has equality on some d or fewer rows, which pin it down."""
    norms = np.linalg.norm(G, axis=1)
    G, h = G / norms[:, None], h / norms
    k, best = h - G @ x, np.inf
    for n in range(len(x) + 1):
        for some in map(list, combinations(range(len(G)), n)):
            zeta = np.linalg.pinv(G[some]) @ k[some] if some else np.zeros(len(x))
            if (G @ zeta >= k - 1e-9).all():
                best = min(best, float(np.linalg.norm(zeta)))
    return best


def blind_distance(case: Case) -> float:
    """The nearest root over all 2ⁿ sign patterns, whether they have a cell or not."""
    *hidden, (W_out, b_out) = case.network.layers
    d = len(case.x)
    bounds = [(e, a) for e, a in zip(np.eye(d), case.low, strict=True) if np.isfinite(a)]
    bounds += [(-e, -a) for e, a in zip(np.eye(d), case.high, strict=True) if np.isfinite(a)]
    best = np.inf
    for pattern in product([0, 1], repeat=sum(len(b) for _, b in hidden)):
        rows, signs = list(bounds), iter(pattern)
        S, t = np.eye(d), np.zeros(d)
        possible = True
        for W, b in hidden:
            S, t = W @ S, W @ t + b
            on = np.array([next(signs) for _ in b])
            for g, a, side in zip(S, t, 2 * on - 1, strict=True):
                if g.any():
                    rows.append((side * g, -side * a))
                else:
                    possible &= side * a >= 0
            S, t = on[:, None] * S, on * t
        slope, offset = W_out[0] @ S, W_out[0] @ t + b_out[0]
        if slope.any():
            rows.append((-slope, offset - case.c))
        else:
            possible &= offset <= case.c
        if possible:
            G, h = map(np.array, zip(*rows, strict=True))
            best = min(best, projection_by_subsets(case.x, G, h))
    return best


def small_cases(domain: str, depth: int, n: int) -> list[Case]:
    """Cases with few enough units and inputs for blind enumeration."""
    cases = (random_case(seed, domain) for seed in range(2000))
    small = (case for case in cases if len(case.x) <= 3 and sum(len(b) for _, b in case.network.layers) <= 7)
    return list(islice((case for case in small if len(case.network.layers) == depth + 1), n))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("domain", DOMAINS)
def test_search_agrees_with_blind_enumeration(domain, depth):
    cases = small_cases(domain, depth, 5)
    assert len(cases) == 5
    for case in cases:
        found = solve(case)
        assert (np.inf if found is None else found.distance) == pytest.approx(blind_distance(case), rel=1e-7)


def test_projection_agrees_with_all_subsets_of_rows():
    rng = np.random.default_rng(0)
    empty = 0
    for _ in range(60):
        d = int(rng.integers(2, 6))
        x, G, h = rng.normal(size=d), rng.normal(size=(int(rng.integers(3, 10)), d)), rng.normal(size=1)
        h = h + 0.5 * rng.normal(size=len(G))
        norms = np.linalg.norm(G, axis=1)
        found = nearest_point(x, list(np.column_stack([G, h]) / norms[:, None]))
        empty += found is None
        assert (np.inf if found is None else found.distance) == pytest.approx(projection_by_subsets(x, G, h), rel=1e-7)
    assert 5 < empty < 30


def test_degenerate_networks_of_whole_numbers_agree_too():
    # Walls which coincide, cross in one point or touch: in cells without inside nothing may be lost to rounding.
    rng = np.random.default_rng(0)
    for trial in range(300):
        d, units = int(rng.integers(2, 4)), int(rng.integers(2, 11))
        W, b, u, b_out = (rng.integers(-1, 2, shape) for shape in ((units, d), units, (1, units), 1))
        x = rng.integers(0, 3, d).astype(float)
        case = Case(network((W, b), (u, b_out)), x, np.zeros(d), np.full(d, np.inf), 0.0)
        found = solve(case)
        if trial < 100 and units <= 4:
            assert (np.inf if found is None else found.distance) == pytest.approx(blind_distance(case), abs=1e-8)


# The cases


@pytest.mark.parametrize("domain", DOMAINS)
def test_cases_are_varied_and_repeatable(domain):
    cases = [random_case(seed, domain) for seed in range(100)]
    assert {len(case.x) for case in cases} == {2, 3, 4, 5}
    assert max(sum(len(b) for _, b in case.network.layers[:-1]) for case in cases) == 12
    positive = [case for case in cases if (case.network.layers[-1][0] > 0).all()]
    assert 25 <= len(positive) <= 75
    assert any(case.network.layers[-1][1] > 0 for case in positive)
    assert any(case.network.layers[-1][1] == 0 for case in positive)
    for seed, case in enumerate(cases):
        assert case.c == pytest.approx(case.level * case.network(case.x[None])[0])
        assert case.c > 0
        assert (case.low <= case.x).all()
        assert (case.x <= case.high).all()
        assert (random_case(seed, domain).x == case.x).all()
    rootless = np.mean([solve(case) is None for case in cases])
    assert 0.03 <= rootless <= 0.2
