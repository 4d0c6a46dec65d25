"""Root points: by hand, on their segments and planes, and the rules as first-order Taylor terms there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor import rules
from deeptaylor.methods.root_point import RootPoint, root_point, taylor_term

MANY = settings(max_examples=150, deadline=None, derandomize=True, database=None)
NAMES = ("w2", "z", "z+", "zB")


def double(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor | None, *expected: Any) -> None:
    assert found is not None
    torch.testing.assert_close(found, double(*expected), rtol=1e-14, atol=1e-15)


# --------------------------------------------------------------------------------------------------------------------
# By hand: x = (3, 1), two units. w_1 = (2, -1), b_1 = -1: R_1 = 6 - 1 - 1 = 4. w_2 = (1, 1), b_2 = -2: R_2 = 2.
# --------------------------------------------------------------------------------------------------------------------

W, B, X = double([2, 1], [-1, 1]), double(-1, -2), double(3, 1)


def test_w_square_by_hand() -> None:
    """Unit 1: Σ w² = 5, t = -4/5, (3 - 8/5, 1 + 4/5) = (7/5, 9/5). Unit 2: Σ w² = 2, t = -1, (2, 0)."""
    root = root_point(rules.WSquare(), W, B, X)
    close(root.R, 4, 2)
    close(root.direction, [2, -1], [1, 1])
    assert root.end is None
    close(root.t, -4 / 5, -1)
    close(root.point, [7 / 5, 9 / 5], [2, 0])
    # R_1 shares 4 · (4, 1)/5 = (16/5, 4/5), R_2 shares (1, 1).
    close(taylor_term(W, root, X), 21 / 5, 9 / 5)


def test_z_by_hand() -> None:
    """Unit 1: Σ x w = 5, t = -4/5, x/5. Unit 2: Σ x w = 4, t = -1/2, x/2."""
    root = root_point(rules.Z(), W, B, X)
    close(root.direction, [3, 1], [3, 1])
    close(root.end, [0, 0], [0, 0])
    close(root.t, -4 / 5, -1 / 2)
    close(root.point, [3 / 5, 1 / 5], [3 / 2, 1 / 2])
    # R_1 shares 4 · (6, -1)/5 = (24/5, -4/5), R_2 shares 2 · (3, 1)/4 = (3/2, 1/2).
    close(taylor_term(W, root, X), 63 / 10, -3 / 10)


def test_z_plus_by_hand() -> None:
    """Unit 1: from (0, 1), v = (3, 0), Σ v w = 6, t = -2/3, (1, 1). Unit 2 as in z."""
    root = root_point(rules.ZPlus(), W, B, X)
    close(root.direction, [3, 0], [3, 1])
    close(root.end, [0, 1], [0, 0])
    close(root.t, -2 / 3, -1 / 2)
    close(root.point, [1, 1], [3 / 2, 1 / 2])
    # R_1 goes to the first input, R_2 shares (3/2, 1/2).
    close(taylor_term(W, root, X), 11 / 2, 1 / 2)


@pytest.mark.parametrize(
    ("rule", "domain"),
    [
        (rules.ZBox(torch.tensor([-1.0, -2.0]), [4.0, 3.0]), None),
        (rules.ZBox(), dt.Box([-1.0, -2.0], [4.0, 3.0])),
        (rules.ZBox([-1.0, -2.0], [4.0, 3.0]), dt.Box(-9.0, 9.0)),
    ],
    ids=["its own bounds", "the domain's", "its own before the domain's"],
)
def test_z_box_by_hand(rule: rules.Rule, domain: dt.Domain | None) -> None:
    """The box [-1, 4] × [-2, 3].

    Unit 1: from (l_1, h_2) = (-1, 3), v = (4, -2), Σ v w = 10, t = -2/5, (3 - 8/5, 1 + 4/5) = (7/5, 9/5).
    Unit 2: from (-1, -2), v = (4, 3), Σ v w = 7, t = -2/7, (3 - 8/7, 1 - 6/7) = (13/7, 1/7).
    """
    root = root_point(rule, W, B, X, domain)
    close(root.direction, [4, -2], [4, 3])
    close(root.end, [-1, 3], [-1, -2])
    close(root.t, -2 / 5, -2 / 7)
    close(root.point, [7 / 5, 9 / 5], [13 / 7, 1 / 7])
    # R_1 shares 4 · (8, 2)/10 = (16/5, 4/5), R_2 shares 2 · (4, 3)/7 = (8/7, 6/7).
    close(taylor_term(W, root, X), 16 / 5 + 8 / 7, 4 / 5 + 6 / 7)


def test_a_weight_of_zero() -> None:
    """w = (0, 1): z⁺ moves x_1 as well (1[w≥0]), z^B moves it to 0 (neither bound), as the supplement writes them."""
    w, b, x = double([0], [1]), double(-1), double(3, 2)
    close(root_point(rules.ZPlus(), w, b, x).direction, [3, 2])
    close(root_point(rules.ZBox(-1.0, 4.0), w, b, x).end, [0, -1])


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_without_relevance_has_the_data_point_as_root(name: str) -> None:
    """Case C1, R_j = 0: x̃ = x and t = 0, also where Σ_i v_i w_ij is zero; no relevance goes on."""
    w, b, x = double([0, -1, 1], [0, -1, -1]), double(-1, 0, -1), double(1, 0.5)
    root = root_point(rule_of(name), w, b, x)
    assert torch.equal(root.R, torch.zeros(3).double())
    assert torch.equal(root.t, torch.zeros(3).double())
    assert torch.equal(root.point, x.expand(3, 2))
    assert torch.equal(taylor_term(w, root, x), torch.zeros(2).double())


def test_w_square_takes_any_bias() -> None:
    """w = (1, 1), b = 2, x = (1, 1): R = 4, t = -2, x̃ = (-1, -1)."""
    root = root_point(rules.WSquare(), double([1], [1]), double(2), double(1, 1))
    close(root.point, [-1, -1])


# --------------------------------------------------------------------------------------------------------------------
# Properties
# --------------------------------------------------------------------------------------------------------------------


def rule_of(name: str, low: Any = -2.0, high: Any = 2.0) -> rules.Rule:
    return {"w2": rules.WSquare(), "z": rules.Z(), "z+": rules.ZPlus(), "zB": rules.ZBox(low, high)}[name]


def problem(name: str, batch: int | None, d: int, J: int, seed: int) -> tuple[rules.Rule, Tensor, Tensor, Tensor]:
    """A rule and W, b, x as it takes them; some weights, biases and inputs are zero, some inputs on a bound."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        t = torch.randn(shape, generator=g, dtype=torch.float64)
        return t * (torch.rand(shape, generator=g) > 0.1)

    w, b, x = normal(d, J), normal(J), normal(*((d,) if batch is None else (batch, d)))
    low, high = -abs(normal(d)), abs(normal(d))
    if name != "w2":
        b = -abs(b) / 2
    if name == "z+":
        x = abs(x)
    if name == "zB":
        x = torch.minimum(torch.maximum(x, low), high)
    return rule_of(name, low, high), w, b, x


def plane(w: Tensor, b: Tensor, point: Tensor) -> Tensor:
    """Σ_i x̃_i w_ij + b_j for points (..., J, d)."""
    return (point * w.T).sum(-1) + b


def check_root(rule: rules.Rule, w: Tensor, b: Tensor, x: Tensor, root: RootPoint) -> None:
    """A root, on the segment, in the domain, of the promised shapes."""
    shape = (*x.shape[:-1], w.shape[1], w.shape[0])
    assert root.point.shape == root.direction.shape == shape
    assert root.t.shape == root.R.shape == shape[:-1]
    here = x.unsqueeze(-2).expand(shape)
    torch.testing.assert_close(root.R, plane(w, b, here).clamp(min=0), rtol=1e-12, atol=1e-12)
    active = root.R > 0
    size = (1 + abs(root.point * w.T).sum(-1))[active]
    assert (abs(plane(w, b, root.point)[active]) <= 1e-10 * size).all()
    assert torch.equal(root.point[~active], here[~active])
    assert not root.t[~active].any()
    assert (root.t[active] < 0).all()
    if isinstance(rule, rules.WSquare):
        assert root.end is None
        return
    assert root.end is not None
    assert root.end.shape == shape
    assert root.t.min() >= -1
    torch.testing.assert_close(here - root.direction, root.end, rtol=0, atol=1e-14)
    torch.testing.assert_close(here + root.t.unsqueeze(-1) * (here - root.end), root.point, rtol=0, atol=1e-13)
    assert (plane(w, b, root.end) <= 1e-12).all(), "the far end is a root"
    if isinstance(rule, rules.ZPlus):
        assert root.point.min() >= 0
    if isinstance(rule, rules.ZBox):
        assert isinstance(rule.low, Tensor)
        assert isinstance(rule.high, Tensor)
        assert (root.point - rule.low).min() >= -1e-14
        assert (rule.high - root.point).min() >= -1e-14


@pytest.mark.parametrize("name", NAMES)
@given(batch=st.none() | st.integers(1, 5), d=st.integers(1, 12), J=st.integers(1, 9), seed=st.integers(0, 2**32))
@MANY
def test_roots_lie_on_the_plane_on_the_segment_and_in_the_domain(
    name: str, batch: int | None, d: int, J: int, seed: int
) -> None:
    rule, w, b, x = problem(name, batch, d, J, seed)
    w, b = w[:, w.any(0)], b[w.any(0)]  # a unit without connections has no root
    if w.shape[1]:
        check_root(rule, w, b, x, root_point(rule, w, b, x))


@pytest.mark.parametrize("name", NAMES)
def test_rounding_leaves_no_segment(name: str) -> None:
    """Large inputs that cancel, b = 0, a permuted memory layout and float32: t is in [-1, 0] all the same."""
    g = torch.Generator().manual_seed(0)
    w = torch.randn(300, 40, generator=g)
    x = (1e4 * torch.rand(300, 16, generator=g)).T
    x[:8] -= x[:8].mean(1, keepdim=True) * (0 if name == "z+" else 1)
    root = root_point(rule_of(name, -1e4, 1e4), w, torch.zeros(40), x)
    assert (root.R > 0).any()
    if name != "w2":
        assert root.t.min() >= -1
        assert root.t.max() <= 0


class OneLayer(nn.Module):
    """Σ_j max(0, Σ_i x_i w_ij + b_j)."""

    def __init__(self, w: Tensor, b: Tensor) -> None:
        super().__init__()
        self.detection = nn.Linear(*w.shape)
        self.detection.weight, self.detection.bias = nn.Parameter(w.T.contiguous()), nn.Parameter(b)

    def forward(self, x: Tensor) -> Tensor:
        return self.detection(x).relu().sum(1, keepdim=True)


@pytest.mark.parametrize(("batch", "d", "J"), [(1, 2, 1), (7, 1, 1), (3, 1, 5), (4, 5, 4), (16, 30, 20)])
@pytest.mark.parametrize("name", NAMES)
def test_the_rules_are_first_order_taylor_terms_at_their_roots(name: str, batch: int, d: int, J: int) -> None:
    """What the package propagates, and the expansion of each unit at its root point: two ways to one relevance.

    The z rule has no bias neuron; in the other rules a bias b ≤ 0 takes nothing.
    """
    rule, w, b, x = problem(name, batch, d, J, seed=10 * d + J)
    # Turned so that the first sample activates every unit.
    w = torch.where(x[0] @ w < 0, -w, w)
    b = torch.maximum(b, -(x[0] @ w) / 2)
    explainer = dt.Explainer(OneLayer(w, b), x, first=rule, bias="neuron")
    assert explainer.plan.rows[-1].rule == name
    relevance = explainer.explain(x).relevance
    term = taylor_term(w, root_point(rule, w, b, x), x)
    assert relevance[0].any()
    assert term.shape == x.shape
    torch.testing.assert_close(term, relevance, rtol=1e-10, atol=1e-10 * float(abs(relevance).max()))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_samples(name: str) -> None:
    rule, w, b, x = problem(name, 5, 6, 4, seed=3)
    together, alone = root_point(rule, w, b, x), [root_point(rule, w, b, sample) for sample in x]
    for field in ("point", "direction", "t", "R", *(() if name == "w2" else ("end",))):
        torch.testing.assert_close(getattr(together, field), torch.stack([getattr(r, field) for r in alone]))
    term = torch.stack([taylor_term(w, r, sample) for r, sample in zip(alone, x, strict=True)])
    torch.testing.assert_close(taylor_term(w, together, x), term)


def test_w_square_finds_the_nearest_root() -> None:
    """No point of the plane Σ_i x̃_i w_ij + b_j = 0, of many near and far, is nearer to x."""
    _, w, b, x = problem("w2", 6, 4, 5, seed=0)
    root = root_point(rules.WSquare(), w, b, x)
    nearest = (root.point - x[:, None]).norm(dim=-1)
    g = torch.Generator().manual_seed(1)
    for scale in (1e-3, 0.1, 1.0, 10.0):
        other = root.point + scale * torch.randn(2000, 6, 5, 4, generator=g, dtype=torch.float64)
        other = other - (plane(w, b, other) / (w * w).sum(0)).unsqueeze(-1) * w.T
        assert abs(plane(w, b, other)).max() < 1e-10
        distance = (other - x[:, None]).norm(dim=-1)
        assert (distance >= nearest - 1e-12)[:, root.R > 0].all()
    assert (root.R > 0).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types_are_kept(name: str, dtype: torch.dtype) -> None:
    rule, w, b, x = problem(name, 4, 6, 3, seed=2)
    exact = root_point(rule, w, b, x)
    root = root_point(rule, w.to(dtype), b.to(dtype), x.to(dtype))
    assert {root.point.dtype, root.direction.dtype, root.t.dtype, root.R.dtype} == {dtype}
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(root.point.double(), exact.point, rtol=tolerance, atol=tolerance)


def test_parameters_can_be_given() -> None:
    layer = nn.Linear(3, 2)
    assert not root_point(rules.WSquare(), layer.weight.T, layer.bias, torch.ones(3)).point.requires_grad


def test_rounding_outside_the_box_is_brought_back() -> None:
    """1e-9 beyond the box is what a normalisation leaves; the segment then begins at the bound."""
    root = root_point(rules.ZBox(-1.0, 1.0), double([1], [1]), double(-3), double(1 + 1e-9, -1 - 1e-9))
    close(root.point, [1, -1])
    root = root_point(rules.ZPlus(), double([-1], [1]), double(0), double(-1e-9, 1))
    close(root.point, [0, 0])


def test_an_empty_batch() -> None:
    assert root_point(rules.Z(), W, B, X.expand(0, 2)).point.shape == (0, 2, 2)


# --------------------------------------------------------------------------------------------------------------------
# Errors
# --------------------------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
Given = dict[str, Any]
REFUSED: dict[str, tuple[type[Exception], Given, str]] = {
    "epsilon": (
        dt.PlanError,
        {"rule": rules.Epsilon(0.25)},
        ("Epsilon(epsilon=0.25) has no root point in the paper; WSquare(), Z(), ZPlus() and ZBox(low, high) have."),
    ),
    "gamma": (dt.PlanError, {"rule": rules.Gamma()}, "Gamma(gamma=0.25) has no root point"),
    "flat": (dt.PlanError, {"rule": rules.Flat()}, "Flat() has no root point"),
    "alpha beta": (dt.PlanError, {"rule": rules.AlphaBeta()}, "AlphaBeta(alpha=2.0, beta=1.0) has no root point"),
    "pass": (dt.PlanError, {"rule": rules.Pass()}, "Pass() has no root point"),
    "a name": (dt.PlanError, {"rule": "z"}, "'z' has no root point in the paper; WSquare(), Z(),"),
    "not a domain": (
        dt.PlanError,
        {"domain": (-1, 1)},
        "a domain is dt.Real(), dt.NonNegative() or dt.Box(low, high); got (-1, 1).",
    ),
    "no box": (
        dt.PlanError,
        {"rule": rules.ZBox()},
        "the zB rule needs a box: give dt.rules.ZBox(low, high) or domain=dt.Box(low, high).",
    ),
    "w2 in a box": (
        dt.PlanError,
        {"rule": rules.WSquare(), "domain": dt.Box(-1.0, 4.0)},
        (
            "the w2 rule belongs to the domain 'real', not to '[-1, 4]'; leave `domain` out, or take that "
            "domain's rule (w2: real, z+: x ≥ 0, zB: a box, z: any)."
        ),
    ),
    "z+ in the reals": (
        dt.PlanError,
        {"rule": rules.ZPlus(), "domain": dt.Real()},
        "the z+ rule belongs to the domain 'x ≥ 0', not to 'real'; ",
    ),
    "a list": (
        dt.InputError,
        {"x": [3.0, 1.0]},
        "x must be a torch tensor of floating-point numbers, got list.",
    ),
    "integers": (
        dt.InputError,
        {"b": torch.tensor([-1, -2])},
        "b must be a torch tensor of floating-point numbers, got",
    ),
    "types": (
        dt.InputError,
        {"x": torch.ones(2)},
        "W is torch.float64 on cpu, x is torch.float32 on cpu; convert one with .to().",
    ),
    "devices": (dt.InputError, {"b": B.to("meta")}, "W is torch.float64 on cpu, b is torch.float64 on meta; convert"),
    "W of one dimension": (
        dt.InputError,
        {"W": double(1, 2)},
        "W must be (d inputs, J units), got shape (2,).",
    ),
    "b": (dt.InputError, {"b": double(-1)}, "W has 2 units, so b must have shape (2,); got (1,)."),
    "x": (
        dt.InputError,
        {"x": double(1, 2, 3)},
        "W has 2 inputs, so x must have shape (2,) or (B, 2); got (3,).",
    ),
    "x of three dimensions": (
        dt.InputError,
        {"x": X[None, None]},
        "W has 2 inputs, so x must have shape (2,) or (B, 2); got (1, 1, 2).",
    ),
    "a weight of nn.Linear": (
        dt.InputError,
        {"W": double([1, 2, 3], [4, 5, 6]), "x": double(1, 2, 3)},
        (
            "W has 3 units, so b must have shape (3,); got (2,). The weight of nn.Linear is (J, d): give its "
            "transpose, weight.T."
        ),
    ),
    "nan": (
        dt.InputError,
        {"x": double([3, 1], [NAN, INF])},
        "x has 2 value(s) that are NaN or infinite, the first at index (1, 0).",
    ),
    "nan in W": (
        dt.InputError,
        {"W": double([1, 1], [1, NAN])},
        "W has 1 value(s) that are NaN or infinite, the first",
    ),
    "inf in b": (
        dt.InputError,
        {"b": double(-1, -INF)},
        "b has 1 value(s) that are NaN or infinite, the first at index (1",
    ),
    "b > 0, z": (
        dt.InputError,
        {"b": double(-1, 0.5)},
        (
            "the z rule needs b ≤ 0, but 1 of 2 biases are positive (first b[1] = 0.5): its segment then need "
            "not hold a root. Leave these units out, or take WSquare(), which searches a whole line."
        ),
    ),
    "b > 0, z+": (
        dt.InputError,
        {"rule": rules.ZPlus(), "b": double(1, 2)},
        "the z+ rule needs b ≤ 0, but 2 of 2 biases",
    ),
    "b > 0, zB": (
        dt.InputError,
        {"rule": rules.ZBox(-4.0, 4.0), "b": double(0, 2)},
        "the zB rule needs b ≤ 0, but 1 of 2",
    ),
    "x < 0": (
        dt.InputError,
        {"rule": rules.ZPlus(), "x": double(3, -0.5)},
        (
            "the z+ rule searches within 'x ≥ 0'. Input 'x' is declared non-negative, but 1 of 2 values lie "
            "outside, by up to 0.5 (first at index (0, 1): -0.5)."
        ),
    ),
    "x outside": (
        dt.InputError,
        {"rule": rules.ZBox(-1.0, 2.0)},
        (
            "the zB rule searches within '[-1, 2]'. Input 'x' is declared in the box [-1, 2], but 1 of 2 values "
            "lie outside, by up to 1 (first at index (0, 0): 3)."
        ),
    ),
    "x outside, z": (dt.InputError, {"domain": dt.Box(-1.0, 2.0)}, "the z rule searches within '[-1, 2]'."),
    "a box without 0": (
        dt.InputError,
        {"rule": rules.ZBox([-1.0, 0.5], 4.0)},
        (
            "the zB rule needs a box that holds 0 (l ≤ 0 ≤ h), but input 1 lies in [0.5, 4]: its segment then "
            "need not hold a root inside the box. Widen the box to 0, or shift x and b so that it holds 0."
        ),
    ),
    "a box below 0": (
        dt.InputError,
        {"rule": rules.Z(), "domain": dt.Box(-4.0, -1.0), "x": -X},
        "the z rule needs a box that holds 0 (l ≤ 0 ≤ h), but input 0 lies in [-4, -1]",
    ),
    "bounds of another shape": (
        dt.InputError,
        {"rule": rules.ZBox([-1.0, -1.0, -1.0], 4.0)},
        "the zB rule searches within '[-1, 4]'. Box: a bound of shape (3,) does not fit samples of shape (2,)",
    ),
    "a constant unit": (
        dt.InputError,
        {"rule": rules.WSquare(), "W": double([2, 0], [1, 0]), "b": double(-1, 0.5)},
        "unit 1 has no connections, so R_j = b_j = 0.5 everywhere: it has no root. Leave it out.",
    ),
    "underflow": (
        dt.InputError,
        {"rule": rules.WSquare(), "W": double([2, 1e-200], [1, 0]), "b": double(-1, 0.5)},
        (
            "the root of unit 1 (R_j = 0.5) along the w2 rule's direction cannot be expressed in torch.float64; "
            "scale W, b and x, or use torch.float64."
        ),
    ),
    "overflow of Σ v w": (
        dt.InputError,
        {"rule": rules.WSquare(), "W": double([2, 1e200], [1, 0])},
        "the root of unit 1 (R_j = 3e+200) along the w2 rule's direction cannot",
    ),
    "overflow that cancels": (
        dt.InputError,
        {"W": double([1e308, 1], [-1e308, 0]), "x": double(3, 3)},
        "the root of unit 0 (R_j = nan) along the z rule's",
    ),
    "overflow of R": (
        dt.InputError,
        {"W": double([1e308, 1], [1, 0])},
        "the root of unit 0 (R_j = inf) along the z rule's",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    kind, changed, text = REFUSED[case]
    arguments: Given = {"rule": rules.Z(), "W": W, "b": B, "x": X} | changed
    with pytest.raises(kind, match="^root_point: " + re.escape(text)):
        root_point(**arguments)


def test_a_taylor_term_of_another_input_is_refused() -> None:
    root = root_point(rules.Z(), W, B, X)
    text = (
        "taylor_term: x (3, 2) and W (2, 2) need root points of shape (3, 2, 2), got (2, 2); give "
        "the same W and x as to root_point."
    )
    with pytest.raises(dt.InputError, match=re.escape(text)):
        taylor_term(W, root, X.expand(3, 2))
