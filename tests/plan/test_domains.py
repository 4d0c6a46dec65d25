"""What is inferred of a tensor's values is true of them: every row of the flow table, constants of every sign."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

import deeptaylor as dt
from deeptaylor.domain import Box, Domain, NonNegative, Real
from deeptaylor.engine.result import join_results
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.maps import ops
from deeptaylor.operations.flow import UNKNOWN_FLOW
from deeptaylor.operations.table import TABLE, find_data_nodes
from deeptaylor.plan.domains import infer_domains
from operation_checks import checked_operations

aten = torch.ops.aten

SHAPE = (2, 4, 6, 6)
DOMAINS = [Real(), NonNegative(), Box(0.0, 1.0), Box(-0.5, 2.0), Box(-3.0, -1.0), Box(0.5, 0.75)]


# --- one operation at a time ------------------------------------------------------------------------------------------


class Small:
    """A graph by hand, with values: `x` is the input, `make` adds an operation."""

    def __init__(self, x: Tensor) -> None:
        self.graph, self.constants, self.values = fx.Graph(), dict[str, Tensor](), dict[fx.Node, Any]()
        self.x = self._valued(self.graph.placeholder("x"), x)

    def _valued(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["val"] = self.values[node] = value
        return node

    def constant(self, value: Tensor) -> fx.Node:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return self._valued(self.graph.get_attr(name), value)

    def make(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        read, named = fx.map_arg((args, kwargs), self.values.__getitem__)
        return self._valued(node, target(*read, **named))

    def broken_claims(self, domain: Domain) -> list[str]:
        """What is inferred for the nodes of this graph, and is not so."""
        captured = CapturedGraph(
            self.graph, self.constants, [self.x], next(iter(reversed(self.graph.nodes))), "", SHAPE[0]
        )
        found, _ = infer_domains(captured, {self.x: domain}, find_data_nodes(captured))
        return [
            f"{node.target} of {node.args[1:]} under {domain}: {said}"
            for node, inferred in found.items()
            if isinstance(self.values[node], Tensor) and (said := broken(inferred, self.values[node]))
        ]


def broken(inferred: Domain, value: Tensor) -> str:
    """How values contradict a domain; empty where they do not. What is not finite is refused elsewhere."""
    value = value[value.isfinite()] if value.is_floating_point() else value[:0]
    if not value.numel():
        return ""
    if inferred.non_negative and bool((value < 0).any()):
        return f"{inferred}, but there is {float(value.min()):.3g}"
    if inferred.gate and bool(((value < -1e-9) | (value > 1 + 1e-9)).any()):
        return f"a gate, but there is {float(value.min()):.3g} to {float(value.max()):.3g}"
    if isinstance(inferred, Box):
        least, most = (float(torch.as_tensor(b).amin()) for b in (inferred.low, -torch.as_tensor(inferred.high)))
        if float(value.min()) < least - 1e-9 or float(value.max()) > -most + 1e-9:
            return f"{inferred}, but there is {float(value.min()):.3g} to {float(value.max()):.3g}"
    return ""


def inside(domain: Domain, seed: int) -> Tensor:
    """Values of a domain: its bounds, zero, the very small and the very large."""
    torch.manual_seed(seed)
    x = torch.randn(SHAPE, dtype=torch.float64) * 10 ** torch.randint(-3, 5, SHAPE).double()
    x = torch.where(torch.rand(SHAPE) < 0.1, 0.0, x)
    if isinstance(domain, NonNegative):
        x = x.abs()
    if isinstance(domain, Box):
        x = x.clamp(float(domain.low), float(domain.high))  # type: ignore[arg-type]
    return x


def constants_of(*shape: int) -> list[Tensor]:
    """Of both signs, of each sign alone, and nothing but zeros."""
    c = torch.randn(shape, dtype=torch.float64)
    return [c, c.abs(), -c.abs(), c * 0]


NUMBERS = [-2.0, -0.5, 0.0, 0.5, 1.0, 3.0]
Trial = tuple[Any, ...]  # the arguments behind the data; a tensor becomes a constant

NO_ARGUMENTS = [
    aten.relu.default, aten.relu6.default, aten.selu.default, aten.gelu.default, aten.silu.default, aten.mish.default,
    aten.hardswish.default, aten.sigmoid.default, aten.hardsigmoid.default, aten.tanh.default, aten.softplus.default,
    aten.log_sigmoid.default, aten.abs.default, aten.square.default, aten.sqrt.default, aten.exp.default,
    aten.expm1.default, aten.log1p.default, aten.erf.default, aten.sin.default, aten.cos.default, aten.atan.default,
    aten.asinh.default,
    aten.numpy_T.default, aten.mT.default, aten.squeeze.default,
    # not in the table: they can be gates and denominators
    aten.reciprocal.default, aten.rsqrt.default, aten.neg.default, aten.log.default, aten.sign.default,
    aten.floor.default, aten.round.default, aten.logical_not.default, aten.asin.default, aten.tan.default,
]  # fmt: skip

TRIALS: dict[Any, list[Trial]] = {
    **{target: [()] for target in NO_ARGUMENTS},
    aten.hardtanh.default: [(a, b) for a in NUMBERS for b in NUMBERS if a <= b],
    aten.clamp.default: [(a, b) for a in [None, *NUMBERS] for b in [None, *NUMBERS] if (a, b) != (None, None)],
    aten.clamp_min.default: [(a,) for a in NUMBERS],
    aten.clamp_max.default: [(a,) for a in NUMBERS],
    aten.threshold.default: [(a, b) for a in NUMBERS for b in NUMBERS],
    aten.leaky_relu.default: [(a,) for a in NUMBERS],
    aten.rrelu.default: [(0.1, 0.3), (-0.5, 0.1), (-0.5, -0.1)],
    aten.elu.default: [(a, b, c) for a in NUMBERS for b in (1.0, -1.0) for c in (1.0, 0.5)],
    aten.celu.default: [(a,) for a in NUMBERS if a],
    aten.softplus.default: [(a, 20.0) for a in NUMBERS if a],
    aten.hardshrink.default: [(a,) for a in (0.0, 0.5, 2.0)],
    aten.softshrink.default: [(a,) for a in (0.0, 0.5, 2.0)],
    aten.pow.Tensor_Scalar: [(a,) for a in (-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 3.0, 4)],
    aten._prelu_kernel.default: [(c,) for c in constants_of(1, 4, 1, 1)],
    aten.prelu.default: [(c,) for c in constants_of(4)],
    aten.view.default: [([2, 24, 6],)],
    aten._unsafe_view.default: [([2, 24, 6],)],
    aten.reshape.default: [([2, -1],)],
    aten.flatten.using_ints: [(1,)],
    aten.unflatten.int: [(1, [2, 2])],
    aten.squeeze.dim: [(1,)],
    aten.squeeze.dims: [([1, 2],)],
    aten.unsqueeze.default: [(1,)],
    aten.view_as.default: [(torch.zeros(SHAPE),), (torch.full(SHAPE, -1.0),)],
    aten.reshape_as.default: [(torch.full((2, 24, 6), -1.0),)],
    aten.expand_as.default: [(torch.full((3, *SHAPE), -1.0),)],
    aten.permute.default: [([0, 2, 3, 1],)],
    aten.transpose.int: [(1, 2)],
    aten.swapaxes.default: [(1, 2)],
    aten.movedim.int: [(1, 2)],
    aten.movedim.intlist: [([1], [2])],
    aten.expand.default: [([5, 2, 4, 6, 6],)],
    aten.repeat.default: [([1, 2, 1, 1],)],
    aten.tile.default: [([1, 2, 1, 1],)],
    aten.repeat_interleave.self_int: [(2, 1)],
    ops.repeat_heads: [(2,)],
    aten.slice.Tensor: [(1, 0, 2), (1, 1, 9, 2)],
    aten.select.int: [(1, -1)],
    aten.narrow.default: [(1, 1, 2)],
    aten.index.Tensor: [([None, torch.tensor([0, -1])],)],
    aten.index_select.default: [(1, torch.tensor([0, 3]))],
    aten.gather.default: [(1, torch.zeros(2, 2, 6, 6, dtype=torch.int64))],
    aten.roll.default: [([1], [1])],
    aten.flip.default: [([1],)],
    aten.constant_pad_nd.default: [(p, a) for p in ([1, 1], [-1, -1], [-1, 1], [0, 0]) for a in NUMBERS] + [([1, 1],)],
    aten.pad.default: [([1, 1, 0, 0], "reflect"), ([1, 1, 0, 0], "circular")],
    aten.reflection_pad1d.default: [([1, 1],)],
    aten.reflection_pad2d.default: [([1, 1, 0, 0],)],
    aten.reflection_pad3d.default: [([1, 1, 0, 0, 0, 0],)],
    aten.replication_pad1d.default: [([1, 1],)],
    aten.replication_pad2d.default: [([1, 1, 0, 0],)],
    aten.replication_pad3d.default: [([1, 1, 0, 0, 0, 0],)],
    aten.pixel_shuffle.default: [(2,)],
    aten.pixel_unshuffle.default: [(2,)],
    aten.channel_shuffle.default: [(2,)],
    aten.masked_fill.Scalar: [(torch.rand(SHAPE) < 0.5, a) for a in NUMBERS],
    aten.linear.default: [(w, b) for w in constants_of(3, 6) for b in [None, *constants_of(3)]],
    **{
        target: [(w, b) for w in constants_of(3, 4, *[2] * n) for b in [None, *constants_of(3)]]
        for n, target in ((1, aten.conv1d.default), (2, aten.conv2d.default), (3, aten.conv3d.default))
    },
    **{
        target: [(w, b) for w in constants_of(4, 3, *[2] * n) for b in [None, *constants_of(3)]]
        for n, target in (
            (1, aten.conv_transpose1d.default),
            (2, aten.conv_transpose2d.input),
            (3, aten.conv_transpose3d.input),
        )
    },
    aten.matmul.default: [(c,) for c in constants_of(6, 3)],
    aten.mul.Tensor: [(c,) for c in constants_of(4, 1, 6)] + [(torch.randn((), dtype=torch.float64),)],
    aten.div.Tensor: [(c + 0.5 * c.sign(),) for c in constants_of(4, 1, 6)[:3]],
    aten.add.Tensor: [(c,) for c in constants_of(4, 1, 6)],
    aten.sub.Tensor: [(c,) for c in constants_of(4, 1, 6)],
    **{
        target: [(a,), (a, [2] * n, [1] * n), (a, [2] * n, [1] * n, True, False)]
        for n, target in ((1, aten.avg_pool1d.default), (2, aten.avg_pool2d.default), (3, aten.avg_pool3d.default))
        for a in [[2] * n]
    },
    aten.adaptive_avg_pool1d.default: [([2],)],
    **{target: [([2, 1],)] for target in (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)},
    **{target: [([2, 1, 1],)] for target in (aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default)},
    **{
        target: [([4] * n, None)]
        for n, target in (
            (1, aten.upsample_nearest1d.vec),
            (2, aten.upsample_nearest2d.vec),
            (3, aten.upsample_nearest3d.vec),
            (1, aten._upsample_nearest_exact1d.vec),
            (2, aten._upsample_nearest_exact2d.vec),
            (3, aten._upsample_nearest_exact3d.vec),
        )
    },
    aten.upsample_linear1d.vec: [([4], False, None), ([9], True, None)],
    aten.upsample_bilinear2d.vec: [([4, 9], False, None), ([9, 4], True, None)],
    aten.upsample_trilinear3d.vec: [([4, 9, 3], False, None)],
    aten.mean.dim: [([2, 3],), ([1], True)],
    aten.sum.dim_IntList: [([2, 3],), ([1], True)],
    ops.centre: [(w, b, 1, 0) for w in [None, *constants_of(6)] for b in [None, *constants_of(6)]],
    ops.scale_shift: [
        (s, t)
        for s, t in itertools.product([None, *constants_of(4, 1, 1)], [None, *constants_of(4, 1, 1)])
        if (s, t) != (None, None)
    ],
    ops.divide_by_std: [(1e-5, 1, 0), (1e-5, 0, 2)],
    ops.divide_by_rms: [(1e-5, 1), (None, 2)],
    ops.max_pool: [([2, 2], [2, 2], [0, 0], [1, 1], False), ([3, 3], [2, 2], [1, 1], [1, 1], True)],
    ops.adaptive_max_pool: [([2, 1],)],
    aten.amax.default: [([1],), ([2, 3], True)],
    ops.lp_pool: [(p, [2, 2], [2, 2], False) for p in (1.0, 2.0, 3.0)],
    aten.softmax.int: [(1,)],
    aten._softmax.default: [(1, False)],
    # not in the table: they can be gates and denominators
    aten.pow.Tensor_Tensor: [(c,) for c in constants_of(4, 1, 1)],
    aten.maximum.default: [(c,) for c in constants_of(4, 1, 1)],
    aten.minimum.default: [(c,) for c in constants_of(4, 1, 1)],
    aten.var.correction: [([2, 3],)],
    aten.std.correction: [([2, 3],)],
    aten.linalg_vector_norm.default: [(2, [1])],
    aten.amin.default: [([1],)],
    aten.gt.Scalar: [(0.0,)],
    aten.cumsum.default: [(1,)],
    aten.prod.dim_int: [(1,)],
    aten.addcmul.default: [(constants_of(4, 1, 1)[2], constants_of(4, 1, 1)[1])],
    aten.remainder.Scalar: [(-2.0,), (2.0,)],
    aten.fmod.Scalar: [(2.0,)],
}
# Rows whose arguments have a form of their own are tried in test_rows_of_another_form.
OTHER_FORMS = {
    aten.t.default, aten.cat.default, aten.concat.default, aten.stack.default, aten.where.self, aten.mm.default,
    aten.bmm.default, aten.einsum.default, aten.embedding.default, aten.log_sigmoid_forward.default,
}  # fmt: skip


def rank_of(target: Any) -> int:
    """How many axes an operation wants: those for signals and volumes say so in their names."""
    return next((n + 2 for n in (1, 2, 3) if f"{n}d" in _called(target)), 4)


def operands_for(small: Small, rank: int = 4) -> list[fx.Node]:
    """The input, and data of each sign made of it."""
    shape = {3: [2, 4, 36], 5: [2, 4, 6, 3, 2]}.get(rank)
    x = small.x if shape is None else small.make(aten.reshape.default, small.x, shape)
    above = small.make(aten.relu.default, x)
    below = small.make(ops.scale_shift, above, small.constant(torch.tensor(-1.0, dtype=torch.float64)), None)
    gate = small.make(aten.sigmoid.default, x)
    one = small.constant(torch.ones((), dtype=torch.float64))
    return [x, above, below, gate, small.make(ops.scale_shift, gate, None, one), small.make(aten.tanh.default, x)]


def check_claims(build: Callable[[Small], None]) -> None:
    said: list[str] = []
    for seed, domain in enumerate(DOMAINS):
        small = Small(inside(domain, seed))
        build(small)
        said += small.broken_claims(domain)
    assert not said, "\n".join(said[:20])


def test_every_row_of_the_table_is_tried() -> None:
    with_flow = {target for target, row in TABLE.items() if row.flow is not UNKNOWN_FLOW}
    assert with_flow - OTHER_FORMS - checked_operations() == (with_flow & set(TRIALS)) - checked_operations()


def _called(target: Any) -> str:
    """An operation's name: as text, one of our own would have its address in it."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else str(target.__name__)


@pytest.mark.parametrize("target", TRIALS, ids=_called)
def test_values_lie_where_they_are_inferred(target: Any) -> None:
    def build(small: Small) -> None:
        for x in operands_for(small, rank_of(target)):
            for trial in TRIALS[target]:
                small.make(target, x, *pytree.tree_map_only(Tensor, small.constant, list(trial)))

    check_claims(build)


BINARY = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.matmul.default,
          aten.maximum.default, aten.minimum.default, aten.pow.Tensor_Tensor, aten.bmm.default, aten.mm.default,
          aten.atan2.default]  # fmt: skip


@pytest.mark.parametrize("target", BINARY, ids=_called)
def test_values_of_two_operands_lie_where_they_are_inferred(target: Any) -> None:
    shape = {aten.bmm.default: [8, 6, 6], aten.mm.default: [12, 24]}.get(target)

    def build(small: Small) -> None:
        xs = operands_for(small)
        if shape is not None:
            xs = [small.make(aten.reshape.default, x, shape) for x in xs]
        cs = [small.constant(c) for c in constants_of(*small.values[xs[0]].shape)]
        for a, b in itertools.product([*xs, *cs], [*xs, *cs]):
            if a in xs or b in xs:
                small.make(target, a, small.make(aten.mT.default, b) if target is aten.mm.default else b)
                if target in (aten.add.Tensor, aten.sub.Tensor):
                    for alpha in (-1.5, 0, 2):
                        small.make(target, a, b, alpha=alpha)

    check_claims(build)


def test_rows_of_another_form() -> None:
    def build(small: Small) -> None:
        xs = operands_for(small)
        cs = [small.constant(c) for c in constants_of(*SHAPE)]
        batch = [
            small.make(aten.ones_like.default, small.x),
            small.make(aten.zeros_like.default, small.x),
            small.make(aten.full_like.default, small.x, -2.0),
            small.make(aten.full.default, list(SHAPE), -2.0, dtype=torch.float64),
            small.make(aten.new_full.default, small.x, list(SHAPE), -2.0),
            small.make(aten.rand_like.default, small.x),
            small.make(aten.expand.default, small.constant(-torch.ones(1, 4, 1, 1, dtype=torch.float64)), list(SHAPE)),
        ]
        batch.append(small.make(aten.neg.default, batch[0]))
        mask = small.make(aten.gt.Scalar, small.x, 0.3)
        fixed = small.constant(torch.rand(SHAPE) < 0.5)
        for x, other in itertools.product(xs, [*xs, *cs, *batch]):
            for a, b in ((x, other), (other, x)):
                small.make(aten.cat.default, [a, b], 1)
                small.make(aten.concat.default, [a, b], 1)
                small.make(aten.stack.default, [a, b], 1)
                small.make(aten.where.self, mask, a, b)
                small.make(aten.where.self, fixed, a, b)
                small.make(aten.mul.Tensor, a, b)
                small.make(aten.div.Tensor, a, b)
                small.make(aten.add.Tensor, a, b)
                small.make(aten.einsum.default, "bchw,bdhw->bcd", [a, b])
                small.make(ops.scale_shift, x, other, other)
                small.make(aten.einsum.default, "bchw,bdhw,bdhk->bck", [a, b, x])
        for x in xs:
            small.make(aten.einsum.default, "bchw->bc", [x])
            small.make(aten.masked_fill.Scalar, x, mask, -1.0)
            small.make(aten.masked_fill.Scalar, x, mask, 1.0)
            small.make(aten.t.default, small.make(aten.reshape.default, x, [2, -1]))
            small.make(ops.attention_weights, x, x, None, False, None, False)
            small.make(aten.pow.Scalar, 2.0, x)
            small.make(aten.pow.Scalar, 0.5, x)
            small.make(aten.to.dtype, mask, torch.float64)
            for weight in constants_of(1):
                small.make(aten.mul.Tensor, small.make(aten.to.dtype, mask, torch.float64), small.constant(weight))
        half = small.make(aten.reshape.default, mask, [2, -1])
        tokens = small.make(aten.to.dtype, half, torch.int64)
        for table in constants_of(2, 5):
            small.make(aten.embedding.default, small.constant(table), tokens)

    check_claims(build)


def test_log_sigmoid_with_its_buffer() -> None:
    x = inside(Real(), 0)
    small = Small(x)
    made = small.graph.call_function(aten.log_sigmoid_forward.default, (small.x,))
    made.meta["val"] = small.values[made] = aten.log_sigmoid_forward.default(x)
    assert small.broken_claims(Real()) == []


# --- whole networks ---------------------------------------------------------------------------------------------------

W6 = torch.tensor([0.7, -1.3, 0.4, -0.2, 1.1, -0.6], dtype=torch.float64)


class Middle(nn.Module):
    """An operation between two layers, on data that are ≥ 0."""

    def __init__(self, operation: Callable[[Tensor], Tensor], width: int = 6, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.below, self.above, self.out = nn.Linear(6, 6), nn.Linear(width, 24), nn.Linear(24, 3)
        self.operation = operation
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(F.relu(self.above(self.operation(F.relu(self.below(x))))))
        return out


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "RMSNorm by hand": lambda h: h * (W6 / torch.sqrt(h.square().mean(-1, keepdim=True) + 1e-5)),
    "RMSNorm by hand, rsqrt": lambda h: W6 * h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5),
    "w / data": lambda h: h * (W6 / (1 + h)),
    "data * w as a gate": lambda h: h * (h.mean(-1, keepdim=True) * W6),
    "threshold": lambda h: F.threshold(h, 0.4, -2.0),
    "clamp(max)": lambda h: h.clamp(max=0.5) * h.clamp(max=-0.5),
    "clamp(max < 0)": lambda h: h.clamp(max=-0.5),
    "clamp(min, max)": lambda h: h.clamp(-3.0, -1.0) + h,
    "hardtanh": lambda h: F.hardtanh(h, -3.0, -0.2) + F.relu(h),
    "pad(-3)": lambda h: (
        torch.nn.functional.pad(h, (1, 0), value=-3.0)[:, :6].abs() + F.pad(h, (0, 1), value=-3.0)[:, 1:]
    ),
    "padded, read twice": lambda h: (p := F.pad(h, (1, 1), value=-3.0))[:, 1:7] + p[:, :6] + p[:, 2:],
    "negative divisor": lambda h: h / (-1 - h),
    "divided by a constant": lambda h: (h.sqrt() + 0.1) / W6,
    "odd power": lambda h: (h - 0.3) ** 3,
    "inverse": lambda h: h * (h - 5.0) ** -1,
    "where": lambda h: torch.where(h > 0.2, h, torch.full_like(h, -1.0)),
    "where of a constant": lambda h: torch.where(W6 > 0, h, W6),
    "masked_fill": lambda h: h.masked_fill(h > 0.5, -2.0),
    "cat": lambda h: torch.cat([h[:, :3], W6[:3].expand(h.shape[0], 3)], 1),
    "sum with a constant of the batch": lambda h: h + torch.full((h.shape[0], 6), -0.4, dtype=h.dtype),
    "sub": lambda h: h.sqrt() - h,
    "sub, alpha": lambda h: torch.add(h.sqrt(), h, alpha=-2),
    "leaky": lambda h: F.leaky_relu(h - 0.5, -0.3) - F.leaky_relu(h, 0.1),
    "elu": lambda h: F.elu(h - 0.5, -1.0) * torch.sigmoid(F.elu(h, 1.0)),
    "hardswish": lambda h: F.hardswish(h) + F.silu(h) + F.gelu(h) + F.mish(h),
    "sin": lambda h: torch.sin(3 * h),
    "cos": lambda h: torch.cos(3 * h),
    "atan, erf, log1p": lambda h: torch.atan(h) + torch.erf(h) - torch.log1p(h),
    "einsum": lambda h: torch.einsum("bi,ij->bj", h, torch.outer(W6, W6)),
    "1 − sigmoid": lambda h: (1 - torch.sigmoid(h)) * h,
    "max pool of what may be negative": lambda h: F.max_pool1d((h - 0.3).unsqueeze(1), 2, 1, 1).squeeze(1)[:, :6],
    "max pool of clamped": lambda h: F.max_pool1d(h.clamp(-1.0, -0.1).unsqueeze(1), 2, 1, 1).squeeze(1)[:, :6],
}


def without_inference(captured: CapturedGraph, given: Any, data: Any) -> Any:
    """As if nothing were known of inner tensors but whether they are gates: the general rule then holds everywhere."""
    domain, pixels = infer_domains(captured, given, data)
    return {n: d if n in pixels or n.op == "placeholder" or d.gate else Real() for n, d in domain.items()}, pixels


@pytest.mark.parametrize("name", OPERATIONS)
def test_inference_saves_work_and_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Neighbours in the table take different domains and conventions for biases.
    turn = list(OPERATIONS).index(name)
    domain, bias = (Real(), NonNegative(), Box(-3.0, 3.0))[turn % 3], ("neuron", "neuron", "neuron", "spread")[turn % 4]
    network = Middle(OPERATIONS[name])
    x = torch.rand(8, 6, dtype=torch.float64) * 3
    classes = torch.tensor([[0, 1, 2]] * len(x))  # of some class some score is positive, and its map not empty
    found = dt.explain(network, x, classes, domain, bias=bias)
    monkeypatch.setattr("deeptaylor.plan.planner.infer_domains", without_inference)
    general = dt.explain(network, x, classes, domain, bias=bias)
    assert bool((general.score > 0).any())
    torch.testing.assert_close(found.relevance, general.relevance, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.ledger.bias, general.ledger.bias, rtol=1e-9, atol=1e-12)
    assert bool((found.relevance >= 0).all())


def test_a_negative_constant_around_inputs_is_no_input() -> None:
    """x ≥ 0 padded with −3 and read twice: the rule for signed inputs, and the constant's share is booked."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            p = F.pad(x, (1, 1), value=-3.0)
            return F.relu(self.a(p)) + F.relu(self.b(p))

    x = torch.rand(5, 2, dtype=torch.float64)
    e = dt.explain(Padded(), x, 0, NonNegative(), bias="neuron")
    assert bool((e.relevance >= 0).all())
    held = e.relevance.sum(1) + e.ledger.bias + e.ledger.dropped
    torch.testing.assert_close(held, e.score.clamp(min=0))


# --- the guard --------------------------------------------------------------------------------------------------------


def lying(*names: str) -> Callable[..., Any]:
    """An inference that takes tensors for ≥ 0 that are not."""

    def infer(captured: CapturedGraph, given: Any, data: Any) -> Any:
        domain, pixels = infer_domains(captured, given, data)
        return {n: NonNegative() if n.name in names else d for n, d in domain.items()}, pixels

    return infer


class Signed(nn.Module):
    """A hidden tensor that is negative here and there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(torch.tanh(self.a(x)))
        return out


X4 = torch.tensor([[1.0, -2.0, 0.5, 3.0], [0.3, 0.2, -0.1, 0.6]])


def test_a_wrong_sign_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Signed()
    least = float(torch.tanh(network.a(X4)).min().detach())
    monkeypatch.setattr("deeptaylor.plan.planner.infer_domains", lying("tanh"))
    explainer = dt.Explainer(network, X4, bias="neuron")
    with pytest.raises(dt.PlanError) as error:
        explainer.explain(X4, 0)
    said = str(error.value)
    for part in ("tanh", "test_domains.py", "torch.tanh(self.a(x))", f"{least:.4g}", "report it", "Epsilon"):
        assert part in said, said
    with pytest.raises(dt.PlanError, match="inferred to be ≥ 0"):
        explainer.explain(X4, torch.tensor([[0, 1], [2, 0]]))  # two maps per sample
    with pytest.raises(dt.PlanError, match="inferred to be ≥ 0"):
        explainer.relevance_at("a", X4, 0)
    score, _ = explainer(X4, 0)  # a plain call keeps no books
    assert score.shape == (2,)
    above = torch.linalg.lstsq(network.a.weight, (1 - network.a.bias).unsqueeze(1)).solution.T.detach()
    if bool((network.a(above) >= 0).all()):  # nothing is wrong for this input
        explainer.explain(above, 0)


def test_the_way_round_it_that_the_guard_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeptaylor.plan.planner.infer_domains", lying("tanh"))
    e = dt.Explainer(Signed(), X4, rules={"b": dt.rules.Epsilon(0.01)}, bias="neuron").explain(X4, 0)
    monkeypatch.undo()
    true = dt.Explainer(Signed(), X4, rules={"b": dt.rules.Epsilon(0.01)}, bias="neuron").explain(X4, 0)
    torch.testing.assert_close(e.relevance, true.relevance)


def test_a_wrong_sign_below_max_pooling_and_of_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pooled(Signed):
        def forward(self, x: Tensor) -> Tensor:
            h = F.max_pool1d(torch.tanh(self.a(x)).unsqueeze(1), 2, 1, 1).squeeze(1)[:, :6]
            out: Tensor = self.b(F.relu(h))
            return out

    class Weighed(Signed):
        def forward(self, x: Tensor) -> Tensor:
            gate = torch.tanh(self.a(x)).unsqueeze(1)
            v = x.unsqueeze(2).expand(-1, -1, 6).transpose(1, 2)
            out: Tensor = (gate @ v).squeeze(1)
            return out

    monkeypatch.setattr("deeptaylor.plan.planner.infer_domains", lying("unsqueeze"))
    for network in (Pooled(), Weighed()):
        with pytest.raises(dt.PlanError, match=r"unsqueeze .*the smallest value is -"):
            dt.explain(network, X4.abs(), 0, NonNegative(), bias="neuron")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_the_guard_in_parts_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeptaylor.plan.planner.infer_domains", lying("tanh"))
    explainer = dt.Explainer(Signed(), X4, bias="neuron")
    engine = next(iter(explainer.captured.engines.values()))
    whole = engine.run([X4], 0, "by step")
    parts = [engine.run([X4[k : k + 1]], 0, "by step") for k in (0, 1)]
    whole_again = join_results(parts, {})
    assert whole.lowest is not None
    torch.testing.assert_close(whole_again.lowest, whole.lowest)
    with pytest.raises(dt.PlanError, match="inferred to be ≥ 0"):
        explainer.compile().explain(X4, 0)


def test_what_is_evident_is_not_watched() -> None:
    """A guard costs a look at a tensor: none where a rectifier made it."""

    class Usual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = F.max_pool2d(F.relu(self.a(x)), 2)
            h = F.relu(self.b(h) + h)
            h = torch.cat([h, F.relu6(self.b(h))], 1)
            out: Tensor = self.c(F.adaptive_avg_pool2d(h, 1).flatten(1))
            return out

    x = torch.randn(2, 3, 8, 8)
    engine = next(iter(dt.Explainer(Usual(), x, bias="neuron").captured.engines.values()))
    assert engine.watched == {}
    assert engine.run([x], 0, "by step").lowest is None
    assert (
        len(
            next(
                iter(
                    dt.Explainer(
                        Middle(lambda h: h.sqrt() * h), x[0, 0, :, :6].double(), bias="neuron"
                    ).captured.engines.values()
                )
            ).watched
        )
        == 1
    )
