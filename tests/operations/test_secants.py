"""Every operation of the table: slope · Δ adds up to the change of its result, wherever the two points are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.maps import ops
from deeptaylor.operations.table import secant_of
from deeptaylor.secants.pair import Pair, Secant, find_pairs

aten = torch.ops.aten
F64 = torch.float64


def points(*shape: int, low: float | None = None, seed: int = 0, dtype: torch.dtype = F64) -> Pair:
    """Two random points; at some places the same, at some all but the same."""
    generator = torch.Generator().manual_seed(seed)
    x, x0 = (torch.randn(shape, generator=generator, dtype=F64) for _ in range(2))
    if low is not None:
        x, x0 = x.abs() + low, x0.abs() + low
    near = torch.randint(0, 4, shape, generator=generator)
    x0 = torch.where(near == 0, x, torch.where(near == 1, x + 1e-9 * x0, x0))
    return Pair(x.to(dtype).requires_grad_(), x0.to(dtype))


def gap(target: Any, *args: Any, **kwargs: Any) -> tuple[float, float]:
    """How far Σ m Δ is from what it should be, for a random sum of the results; and how large that is."""
    y = secant(target)(target, args, kwargs)
    y = y[0] if not isinstance(y, Pair) else y
    now, before = (target(*[plain(a, k) for a in args], **kwargs) for k in ("value", "x0"))
    now, before = (t if isinstance(t, Tensor) else t[0] for t in (now, before))
    torch.testing.assert_close(y.x.detach(), now, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y.x0, before, rtol=1e-12, atol=1e-12)
    v = torch.randn(now.shape, generator=torch.Generator().manual_seed(9), dtype=F64)
    leaves = list({id(p): p for p in find_pairs(list(args))}.values())
    ms = torch.autograd.grad((v * y.x).sum(), [p.x for p in leaves], allow_unused=True)
    held = sum(float((m * p.change).sum()) for m, p in zip(ms, leaves, strict=True) if m is not None)
    return abs(held - float((v * (now - before)).sum())), float((v * now).abs().sum() + (v * before).abs().sum())


def secant(target: Any) -> Secant:
    """The secant that the table names for an operation."""
    found = secant_of(target)
    assert found is not None, f"no row names a secant for {target}"
    return found


def plain(value: Any, which: str) -> Any:
    if isinstance(value, list) and any(isinstance(v, Pair) for v in value):
        return [plain(v, which) for v in value]
    return getattr(value, which) if isinstance(value, Pair) else value


UNARY = [
    aten.relu.default, aten.relu6.default, aten.hardtanh.default, aten.abs.default, aten.sign.default,
    aten.leaky_relu.default, aten.hardsigmoid.default, aten.hardshrink.default, aten.softshrink.default,
    aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default, aten.softplus.default,
    aten.log_sigmoid.default, aten.mish.default, aten.expm1.default, aten.atan.default, aten.asinh.default,
    aten.sinh.default, aten.cosh.default, aten.elu.default, aten.celu.default, aten.selu.default, aten.exp.default,
    aten.tanh.default, aten.sigmoid.default, aten.silu.default, aten.hardswish.default, aten.erf.default,
    aten.gelu.default, aten.square.default, aten.sin.default, aten.cos.default, aten.neg.default,
]  # fmt: skip
POSITIVE = [aten.log.default, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.log1p.default]


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_functions_of_one_value(op: Any) -> None:
    off, size = gap(op, points(4, 40))
    assert off <= 1e-14 * size


@pytest.mark.parametrize("op", POSITIVE, ids=str)
def test_functions_of_positive_values(op: Any) -> None:
    off, size = gap(op, points(4, 40, low=0.01))
    assert off <= 1e-14 * size


@pytest.mark.parametrize("op", [o for o in UNARY if "shrink" not in str(o) and str(o) not in
    {"aten.sign.default", "aten.floor.default", "aten.ceil.default", "aten.round.default", "aten.trunc.default"}] +
    POSITIVE, ids=str)  # fmt: skip
def test_slopes_keep_their_digits_however_close_the_points_are(op: Any) -> None:
    """In float32 against float64: the quotient itself would lose all digits at Δ = 1e-7."""
    x = torch.linspace(0.05 if op in POSITIVE else -4, 4, 301, dtype=torch.float32)
    for step in (0.0, 1e-7, 1e-5, 1e-3, 1e-2, 0.1, 1.0):
        x0 = x + step
        slopes = []
        for dtype in (torch.float32, F64):
            p = Pair(x.to(dtype).requires_grad_(), x0.to(dtype))
            y = secant(op)(op, (p,), {})
            slopes.append(torch.autograd.grad(y.x.sum(), p.x)[0].double())
        torch.testing.assert_close(slopes[0], slopes[1], rtol=3e-5, atol=3e-5)


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "mul": lambda: (aten.mul.Tensor, points(3, 4), points(4, seed=1)),
    "mul with itself": lambda: (aten.mul.Tensor, *[points(3, 4)] * 2),
    "div": lambda: (aten.div.Tensor, points(3, 4), points(3, 1, low=0.1, seed=1)),
    "div, the sign changes": lambda: (aten.div.Tensor, points(30), points(30, seed=3)),
    "div of a number": lambda: (aten.div.Tensor, 2.0, points(3, 4, low=0.1)),
    "matmul": lambda: (aten.matmul.default, points(2, 3, 4), points(4, 5, seed=1)),
    "matmul of vectors": lambda: (aten.matmul.default, points(4), points(4, seed=1)),
    "bmm": lambda: (aten.bmm.default, points(2, 3, 4), points(2, 4, 5, seed=1)),
    "einsum": lambda: (aten.einsum.default, "bij,bkj->bik", [points(2, 3, 4), points(2, 5, 4, seed=1)]),
    "addmm": lambda: (aten.addmm.default, points(5), points(3, 4, seed=1), points(4, 5, seed=2)),
    "linear, weights change": lambda: (aten.linear.default, points(3, 4), points(5, 4, seed=1), points(5, seed=2)),
    "conv2d, weights change": lambda: (aten.conv2d.default, points(1, 2, 5, 5), points(3, 2, 3, 3, seed=1)),
    "conv2d": lambda: (aten.conv2d.default, points(1, 2, 5, 5), points(3, 2, 3, 3, seed=1).value),
    "softmax": lambda: (aten.softmax.int, points(3, 6), -1),
    "log_softmax": lambda: (aten.log_softmax.int, points(3, 6), 1),
    "logsumexp": lambda: (aten.logsumexp.default, points(3, 6), [-1], True),
    "attention weights": lambda: (
        ops.attention_weights, points(2, 3, 4), points(2, 5, 4, seed=1), None, False, None, False,
    ),
    "causal": lambda: (ops.attention_weights, points(2, 4, 3), points(2, 4, 3, seed=1), None, True, 0.3, False),
    "grouped": lambda: (ops.attention_weights, points(1, 4, 3, 2), points(1, 2, 3, 2, seed=1), None, False, None, True),
    "masked": lambda: (
        ops.attention_weights, points(2, 4, 3), points(2, 4, 3, seed=1),
        torch.tensor([True, True, False, True]).expand(4, 4), False, None, False,
    ),
    "a row is masked whole": lambda: (
        ops.attention_weights, points(2, 2, 3), points(2, 2, 3, seed=1),
        torch.tensor([[True, False], [False, False]]), False, None, False,
    ),
    "layer norm": lambda: (ops.divide_by_std, points(3, 6), 1e-5, 1, 0),
    "group norm": lambda: (ops.divide_by_std, points(2, 4, 3, 3), 1e-5, 0, 2),
    "rms norm": lambda: (ops.divide_by_rms, points(3, 6), None, 1),
    "var": lambda: (aten.var.correction, points(3, 6), [-1]),
    "std": lambda: (aten.std.correction, points(3, 6), [-1]),
    "length": lambda: (aten.linalg_vector_norm.default, points(3, 6), 2, [-1], True),
    "lp pool": lambda: (ops.lp_pool, points(1, 2, 6, 6), 2.0, [2, 2], [2, 2], False),
    "max pool": lambda: (ops.max_pool, points(2, 2, 7, 7), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "adaptive max pool": lambda: (ops.adaptive_max_pool, points(2, 2, 7, 7), [2, 3]),
    "amax": lambda: (aten.amax.default, points(3, 4, 5), [1, 2]),
    "amax, axis kept": lambda: (aten.amax.default, points(3, 4, 5), [1], True),
    "amin": lambda: (aten.amin.default, points(3, 4, 5), [-1]),
    "maximum": lambda: (aten.maximum.default, points(30), points(30, seed=1)),
    "maximum, a constant": lambda: (aten.maximum.default, points(30), points(30, seed=1).value),
    "minimum": lambda: (aten.minimum.default, points(3, 30), points(30, seed=1)),
    "clamp": lambda: (aten.clamp.default, points(30), -0.5, 0.7),
    "threshold": lambda: (aten.threshold.default, points(30), 0.1, -0.3),
    "prelu": lambda: (aten.prelu.default, points(3, 4), torch.rand(4, dtype=F64)),
    "pow 2": lambda: (aten.pow.Tensor_Scalar, points(30), 2),
    "pow 3": lambda: (aten.pow.Tensor_Scalar, points(30), 3.0),
    "pow 0.5": lambda: (aten.pow.Tensor_Scalar, points(30, low=0.01), 0.5),
    "pow -0.5": lambda: (aten.pow.Tensor_Scalar, points(30, low=0.01), -0.5),
    "pow -1": lambda: (aten.pow.Tensor_Scalar, points(30, low=0.01), -1),
    "pow 1.7": lambda: (aten.pow.Tensor_Scalar, points(30, low=0.01), 1.7),
    "pow, a tensor": lambda: (
        aten.pow.Tensor_Tensor, points(2, 5, low=0.01), torch.tensor([1.0, 2.0, 0.5, -1.0, 1.7], dtype=F64),
    ),
    "pow of a number": lambda: (aten.pow.Scalar, 2, points(30)),
    "pow of a tensor": lambda: (aten.pow.Tensor_Tensor, torch.tensor([[0.5], [1.0], [3.0]], dtype=F64), points(30)),
    "pow, both change": lambda: (aten.pow.Tensor_Tensor, points(3, 30, low=0.01), points(30, seed=1)),
    "cumsum": lambda: (aten.cumsum.default, points(3, 6), -1),
    "cat": lambda: (aten.cat.default, [points(3, 2), points(3, 4, seed=1)], 1),
    "index": lambda: (aten.index_select.default, points(3, 6), 1, torch.tensor([0, 3, 3])),
    "where": lambda: (aten.where.self, torch.rand(30) > 0.5, points(30), points(30, seed=1)),
    "sort, the same order": lambda: (aten.sort.default, Pair(*_ordered()), -1),
}  # fmt: skip


def _ordered() -> tuple[Tensor, Tensor]:
    x = torch.rand(3, 6, dtype=F64)
    return x.requires_grad_(), (2 * x + 1).detach()


@pytest.mark.parametrize("name", CASES)
def test_operations_are_exact(name: str) -> None:
    op, *args = CASES[name]()
    off, size = gap(op, *args)
    assert off <= 2e-14 * size, (off, size)


def test_gelu_approximated_by_tanh_is_exact() -> None:
    off, size = gap(aten.gelu.default, points(30), approximate="tanh")
    assert off <= 2e-14 * size, (off, size)


def test_of_the_largest_both_winners_take_a_share_between_none_and_all() -> None:
    """x = (3, 1), x0 = (0, 2): Δy = 1 = λ · 3 + (1 − λ) · (−1), so λ = ½."""
    p = Pair(torch.tensor([3.0, 1.0], requires_grad=True), torch.tensor([0.0, 2.0]))
    y = secant(aten.amax.default)(aten.amax.default, (p, [0]), {})
    (m,) = torch.autograd.grad(y.x.sum(), p.x)
    assert m.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("op", "more"), [(aten.amax, [-1]), (aten.amin, [-1]), (ops.adaptive_max_pool, [1])])
def test_values_that_win_together_share_equally(op: Any, more: Any) -> None:
    """The first and the third win at x; at the reference all are equal, where none has a change of its own."""
    sign = -1.0 if op is aten.amin else 1.0
    p = Pair((sign * torch.tensor([[[2.0, 1.0, 2.0, 0.5]]])).requires_grad_(), torch.zeros(1, 1, 4))
    op = getattr(op, "default", op)
    y = secant(op)(op, (p, more), {})
    (m,) = torch.autograd.grad(y.x.sum(), p.x)
    assert m.tolist() == [[[0.5, 0.0, 0.5, 0.0]]]


@pytest.mark.parametrize(
    ("name", "now", "before", "wanted"),
    [
        ("maximum", (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)),
        ("maximum", (2.0, 1.0), (0.0, 0.0), (1.5, 0.5)),
        ("minimum", (2.0, 1.0), (0.0, 0.0), (0.5, 0.5)),
        ("maximum", (3.0, 1.0), (0.0, 2.0), (1.5, -0.5)),  # ½ ((3 − 2) + (3 − 1)), ½ ((1 − 2) + (3 − 3))
        ("maximum", (3.0, -torch.inf), (2.0, -torch.inf), (1.0, 0.0)),
    ],
)
def test_of_two_each_takes_the_mean_of_its_effects_in_both_orders(
    name: str, now: tuple[float, float], before: tuple[float, float], wanted: tuple[float, float]
) -> None:
    a, b = (Pair(torch.tensor(x).requires_grad_(), torch.tensor(x0)) for x, x0 in zip(now, before, strict=True))
    op = getattr(aten, name).default
    y = secant(op)(op, (a, b), {})
    m = torch.autograd.grad(y.x, (a.x, b.x))
    assert all(0 <= float(t) <= 1 for t in m)
    change = [float((t * p.change).nan_to_num()) for t, p in zip(m, (a, b), strict=True)]
    assert change == list(wanted)


def test_softmax_does_not_see_what_is_added_to_all() -> None:
    p, v = points(3, 6), torch.randn(3, 6, dtype=F64)
    maps = []
    for shift in (0.0, 500.0):
        leaf = p.value.clone().requires_grad_()
        y = secant(aten.softmax.int)(aten.softmax.int, (Pair(leaf + shift, p.x0), -1), {})
        maps += torch.autograd.grad((v * y.x).sum(), leaf)
    torch.testing.assert_close(maps[0], maps[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(maps[0].sum(-1), torch.zeros(3, dtype=F64), rtol=0, atol=1e-12)


def test_complex_numbers_between_real_ones() -> None:
    """A Fourier transform, as in FNet, and a rotation of pairs as complex numbers, as in DeepSeek-V2."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
            self.register_buffer("turn", torch.polar(torch.ones(3), torch.arange(3.0)))

        def forward(self, x: Tensor) -> Tensor:
            mixed = torch.fft.fft(torch.fft.fft(torch.tanh(self.layer(x)), dim=-1), dim=-2).real
            pairs = torch.view_as_complex(mixed.unflatten(-1, (3, 2)).contiguous()) * self.turn
            out: Tensor = self.head(torch.view_as_real(pairs).flatten(-2)).sum(1)
            return out

    network, x, x0 = Network(), torch.rand(2, 4, 6), torch.rand(2, 4, 6)
    found = dt.Explainer(network).between(x, x0, 1)
    torch.testing.assert_close(found.relevance.sum((1, 2)), (network(x) - network(x0))[:, 1].detach())
