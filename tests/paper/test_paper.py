"""The paper's statements about its one-layer network: x_j = max(0, Σ_i x_i w_ij + b_j) with b ≤ 0, then a sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import deeptaylor as dt
import reference_rules
from deeptaylor import rules
from deeptaylor.check import check
from reference_rules import Array

# Each example captures a network: few, and always the same.
FEW = settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


class OneLayer(nn.Module):
    """Equations 5 and 6 of the paper; W is (inputs, units) as there."""

    def __init__(self, W: Array, b: Array) -> None:
        super().__init__()
        self.detection = nn.Linear(*W.shape)
        self.rectifier = nn.ReLU()
        self.detection.weight = nn.Parameter(torch.tensor(W.T, dtype=torch.float64))
        self.detection.bias = nn.Parameter(torch.tensor(b, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.rectifier(self.detection(x)).sum(1, keepdim=True)


@dataclass(frozen=True)
class Problem:
    """A network, a batch of inputs, and the box they lie in."""

    W: Array
    b: Array
    X: Array
    low: Array
    high: Array

    @property
    def network(self) -> OneLayer:
        return OneLayer(self.W, self.b)

    @property
    def x(self) -> Tensor:
        return torch.tensor(self.X)

    @property
    def box(self) -> dt.Box:
        return dt.Box(torch.tensor(self.low), torch.tensor(self.high))

    @property
    def activations(self) -> Array:
        """x_j, which is also R_j."""
        return np.maximum(0, self.X @ self.W + self.b)


def random_problem(seed: int, kind: str = "real") -> Problem:
    """Five inputs, four units with b ≤ 0, six samples; every unit has weights of both signs."""
    rng = np.random.default_rng(seed)
    W, b = rng.normal(size=(5, 4)), -rng.uniform(0, 0.3, size=4)
    W[0], W[1] = abs(W[0]), -abs(W[1])
    b[0] = 0
    low, high = -rng.uniform(0.5, 1.5, size=5), rng.uniform(0.5, 1.5, size=5)
    X = {
        "real": rng.normal(size=(6, 5)),
        "nonnegative": rng.uniform(0, 2, size=(6, 5)),
        "box": low + (high - low) * rng.uniform(size=(6, 5)),
    }[kind]
    return Problem(W, b, X, low, high)


# --------------------------------------------------------------------------------------------------------------------
# The supplement's algorithms
# --------------------------------------------------------------------------------------------------------------------

ALGORITHMS: dict[str, tuple[str, rules.Rule | None, Callable[[Problem, Array, Array], Array]]] = {
    "w2": ("real", None, lambda p, x, R: reference_rules.algorithm_w_square(p.W, R)),
    "z+": ("nonnegative", None, lambda p, x, R: reference_rules.algorithm_z_plus(p.W, x, R)),
    "zB": ("box", None, lambda p, x, R: reference_rules.algorithm_z_box(p.W, x, R, p.low, p.high)),
    "z": ("real", rules.Z(), lambda p, x, R: reference_rules.algorithm_z(p.W, x, R)),
}


def domain_of(kind: str, problem: Problem) -> dt.Domain:
    return {"real": dt.Real(), "nonnegative": dt.NonNegative(), "box": problem.box}[kind]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_of_the_supplement(name: str, seed: int) -> None:
    """R_j = x_j, and the procedure of the supplement gives R_i; the rule follows from the domain."""
    kind, rule, algorithm = ALGORITHMS[name]
    p = random_problem(seed, kind)
    explainer = dt.Explainer(p.network, p.x, domain_of(kind, p), first=rule, bias="neuron")
    assert explainer.plan.rows[-1].rule == name
    expected = np.stack([algorithm(p, x, R) for x, R in zip(p.X, p.activations, strict=True)])
    np.testing.assert_allclose(explainer.explain(p.x).relevance.numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["real", "nonnegative", "box"])
def test_pooling_hands_each_detector_its_activation(kind: str) -> None:
    """Equation 9: R_j = x_j."""
    p = random_problem(0, kind)
    e = dt.explain(p.network, p.x, domain=domain_of(kind, p), bias="neuron")
    np.testing.assert_allclose(e.at("rectifier").numpy(), p.activations, rtol=0, atol=1e-12)
    np.testing.assert_allclose(e.at("detection").numpy(), p.activations, rtol=0, atol=1e-12)
    np.testing.assert_allclose(e.score.numpy(), p.activations.sum(axis=1), rtol=0, atol=1e-12)


def directions(kind: str, p: Problem, x: Array) -> Array:
    """The search direction v_i of every unit (supplement, section I), as (inputs, units)."""
    if kind == "real":
        return p.W
    if kind == "nonnegative":
        return x[:, None] * (p.W > 0)
    return x[:, None] - p.low[:, None] * (p.W > 0) - p.high[:, None] * (p.W < 0)


@pytest.mark.parametrize("kind", ["real", "nonnegative", "box"])
def test_rules_are_taylor_decompositions_at_their_roots(kind: str) -> None:
    """Equation 11: R_i = Σ_j w_ij (x_i − x̃_i^(j)), the root x̃ on the rule's search line, within the domain."""
    p = random_problem(1, kind)
    relevance = dt.explain(p.network, p.x, domain=domain_of(kind, p), bias="neuron").relevance.numpy()
    for x, R, R_i in zip(p.X, p.activations, relevance, strict=True):
        v = directions(kind, p, x)
        t = np.where(R > 0, (x @ p.W + p.b) / (p.W * v).sum(axis=0), 0.0)
        roots = x[:, None] - t * v
        at_root = (p.W * roots).sum(axis=0) + p.b
        np.testing.assert_allclose(at_root[R > 0], 0, atol=1e-12)
        if kind == "nonnegative":
            assert roots.min() >= -1e-12
        if kind == "box":
            assert (roots - p.low[:, None]).min() >= -1e-12
            assert (p.high[:, None] - roots).min() >= -1e-12
        np.testing.assert_allclose(R_i, ((R > 0) * p.W * (x[:, None] - roots)).sum(axis=1), rtol=0, atol=1e-10)


# --------------------------------------------------------------------------------------------------------------------
# Propositions 1 to 3
# --------------------------------------------------------------------------------------------------------------------

# Quarters: exact in binary, often zero, often on a bound.
QUARTERS = st.integers(-8, 8).map(lambda k: k / 4)
INPUTS, UNITS, SAMPLES = 3, 3, 4


def arrays(elements: st.SearchStrategy[float], *shape: int) -> st.SearchStrategy[Array]:
    size = int(np.prod(shape))
    return st.lists(elements, min_size=size, max_size=size).map(lambda v: np.array(v, dtype=float).reshape(shape))


@st.composite
def problems(draw: st.DrawFn, kind: str) -> Problem:
    """Weights, columns of zeros among them; b ≤ 0; a box with l ≤ 0 ≤ h, also l = h = 0; inputs on its bounds."""
    W = draw(arrays(QUARTERS, INPUTS, UNITS)) * draw(arrays(st.sampled_from([0.0, 1.0, 1.0]), UNITS))
    b = -abs(draw(arrays(QUARTERS, UNITS))) * draw(arrays(st.sampled_from([0.0, 0.25, 1.0]), UNITS))
    low, high = -abs(draw(arrays(QUARTERS, INPUTS))), abs(draw(arrays(QUARTERS, INPUTS)))
    if kind == "real":
        X = draw(arrays(QUARTERS, SAMPLES, INPUTS))
    elif kind == "nonnegative":
        X = abs(draw(arrays(QUARTERS, SAMPLES, INPUTS)))
    else:
        X = low + (high - low) * draw(arrays(st.sampled_from([0.0, 0.25, 0.5, 1.0]), SAMPLES, INPUTS))
    X[-1] = 0
    return Problem(W, b, X, low, high)


def check_consistent(problem: Problem, domain: dt.Domain) -> None:
    """Conservative and positive, nothing in a bias or dropped, and f = 0 gives the empty map."""
    e = dt.explain(problem.network, problem.x, domain=domain, bias="neuron")
    f = problem.activations.sum(axis=1)
    relevance = e.relevance.numpy()
    np.testing.assert_allclose(e.score.numpy(), f, rtol=0, atol=1e-12)
    np.testing.assert_allclose(relevance.sum(axis=1), f, rtol=1e-12, atol=0)
    assert relevance.min() >= 0
    assert not relevance[f == 0].any()
    assert not e.ledger.bias.any()
    assert not e.ledger.dropped.any()
    report = e.check()
    assert report.conservative
    assert report.positive
    assert report.consistent
    assert report.accounted


def hand_made(W: list[list[float]], b: list[float], X: list[list[float]], low: float = -1, high: float = 1) -> Problem:
    """A problem for a degenerate case of the proofs."""
    n = len(W)
    return Problem(np.array(W, float), np.array(b, float), np.array(X, float), np.full(n, low), np.full(n, high))


ZERO_COLUMN = hand_made([[0, 1], [0, -1]], [0, -0.5], [[1, 0], [0, 1], [0, 0]])
ALL_ZERO = hand_made([[0, 0], [0, 0]], [0, -1], [[1, 1], [0, 0]])
NEGATIVE_ONLY = hand_made([[-1, -2], [-1, 0]], [0, 0], [[1, 1], [0, 1], [0, 0]])


@FEW
@example(ZERO_COLUMN)
@example(ALL_ZERO)
@given(problems("real"))
def test_proposition_1(problem: Problem) -> None:
    """w² is consistent; Σ_i w_ij² = 0 leaves z_j = b_j ≤ 0 and so R_j = 0."""
    check_consistent(problem, dt.Real())


@FEW
@example(ZERO_COLUMN)
@example(ALL_ZERO)
@example(NEGATIVE_ONLY)
@given(problems("nonnegative"))
def test_proposition_2(problem: Problem) -> None:
    """z⁺ is consistent on x ≥ 0; Σ_i z⁺_ij = 0 leaves z_j ≤ 0 and so R_j = 0."""
    check_consistent(problem, dt.NonNegative())


@FEW
@example(ZERO_COLUMN)
@example(ALL_ZERO)
# x_i = h_i = l_i, which is 0.
@example(hand_made([[1, -1], [2, 1]], [0, 0], [[0, 0]], low=0, high=0))
# x_i = h_i and w⁺ = 0.
@example(hand_made([[-1, -2], [-1, 0]], [0, 0], [[1, 1], [1, -1]]))
# x_i = l_i and w⁻ = 0.
@example(hand_made([[1, 2], [1, 0]], [0, 0], [[-1, -1], [-1, 1]]))
# One condition for one input, another for the other: x = (h, l), w = (−, +).
@example(hand_made([[-1, 1], [1, 1]], [0, 0], [[1, -1], [-1, 1], [1, 1]]))
@given(problems("box"))
def test_proposition_3(problem: Problem) -> None:
    """z^B is consistent on l ≤ x ≤ h; Σ_i q_ij = 0 leaves z_j ≤ 0 and so R_j = 0."""
    check_consistent(problem, problem.box)


# --------------------------------------------------------------------------------------------------------------------
# Symmetries
# --------------------------------------------------------------------------------------------------------------------


def heatmaps(p: Problem, kind: str) -> Array:
    return dt.explain(p.network, p.x, domain=domain_of(kind, p), bias="neuron").relevance.numpy()


@pytest.mark.parametrize("kind", ["real", "nonnegative", "box"])
def test_scale_equivariance(kind: str) -> None:
    """Without biases R(c x) = c R(x), the box scaled with x; and scaling all weights and biases scales R."""
    p = random_problem(2, kind)
    p = Problem(p.W, 0 * p.b, p.X, p.low, p.high)
    larger = Problem(p.W, p.b, 3 * p.X, 3 * p.low, 3 * p.high)
    np.testing.assert_allclose(heatmaps(larger, kind), 3 * heatmaps(p, kind), rtol=0, atol=1e-12)
    q = random_problem(3, kind)
    stronger = Problem(3 * q.W, 3 * q.b, q.X, q.low, q.high)
    np.testing.assert_allclose(heatmaps(stronger, kind), 3 * heatmaps(q, kind), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["real", "nonnegative", "box"])
def test_permutation_equivariance(kind: str) -> None:
    """Exchange inputs and their heat is exchanged; exchange units and nothing changes."""
    p = random_problem(4, kind)
    expected = heatmaps(p, kind)
    i, j = np.array([3, 0, 4, 1, 2]), np.array([2, 3, 1, 0])
    exchanged = Problem(p.W[i], p.b, p.X[:, i], p.low[i], p.high[i])
    np.testing.assert_allclose(heatmaps(exchanged, kind), expected[:, i], rtol=0, atol=1e-13)
    reordered = Problem(p.W[:, j], p.b[j], p.X, p.low, p.high)
    np.testing.assert_allclose(heatmaps(reordered, kind), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["real", "nonnegative", "box"])
def test_batch_independence(kind: str) -> None:
    """A sample is explained the same alone, in a batch, and at another place of it."""
    p = random_problem(5, kind)
    explainer = dt.Explainer(p.network, p.x[:1], domain_of(kind, p), bias="neuron")
    together = explainer.explain(p.x).relevance
    assert float(together.sum()) > 0
    for k in range(len(p.x)):
        torch.testing.assert_close(explainer.explain(p.x[k : k + 1]).relevance[0], together[k], rtol=0, atol=1e-14)
    torch.testing.assert_close(explainer.explain(p.x.flip(0)).relevance.flip(0), together, rtol=0, atol=1e-14)


# --------------------------------------------------------------------------------------------------------------------
# What consistency says, and what it cannot
# --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_no_object_no_relevance(bias: str) -> None:
    """f ≤ 0 gives an empty map that says so; a positive score beside it keeps its own."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight[:] = torch.eye(2)
        network[0].bias.zero_()
        network[2].weight[:] = torch.tensor([[1.0, -1.0]])
        network[2].bias.zero_()
    x = torch.tensor([[1.0, 3.0], [1.0, 1.0], [-1.0, -1.0], [3.0, 1.0]], dtype=torch.float64)
    e = dt.explain(network, x, bias=bias)
    assert e.score.flatten().tolist() == [-2, 0, 0, 2]
    assert not e.relevance[:3].any()
    assert float(e.relevance[3].sum()) == pytest.approx(2)
    assert not e.ledger.total[:3].any()
    report = e.check()
    assert (report.negative, report.empty, report.samples) == (1, 2, 4)
    assert report.consistent
    assert "1 of 4 scores are negative" in str(report)
    assert "dt.negative()" in str(report)


def test_trivial_heatmaps_pass_the_check() -> None:
    """Equations 1 and 2: uniform, and all on the first pixel. Consistent, and senseless: a limit of the check."""
    f = torch.tensor([2.0, 0.0, 5.0], dtype=torch.float64)
    nothing = torch.zeros_like(f)
    uniform = (f / 16).reshape(-1, 1, 1).expand(-1, 4, 4)
    first = torch.zeros(3, 4, 4, dtype=torch.float64)
    first[:, 0, 0] = f
    for heat in (uniform, first):
        report = check([heat], f, heat.sum((1, 2)), nothing, nothing)
        assert report.conservative
        assert report.positive
        assert report.consistent
        assert report.accounted


def test_the_check_catches_what_is_not_consistent() -> None:
    f, nothing = torch.tensor([4.0, 1.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    negative = torch.tensor([[5.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    report = check([negative], f, negative.sum(1), nothing, nothing)
    assert (report.conservative, report.positive, report.consistent) == (True, False, False)
    assert report.most_negative == pytest.approx(-0.25)
    short = torch.tensor([[1.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    report = check([short], f, short.sum(1), nothing, nothing)
    assert (report.conservative, report.positive, report.consistent, report.accounted) == (False, True, False, False)
    assert report.conservation_gap == pytest.approx(0.25)
    booked = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert check([short], f, short.sum(1), booked, nothing).accounted
