"""Roots, measured: where rules expand the units of a trained network, and what that moves (docs/theory.md, section 11).

A unit of a block has z_j = Σ_i w_ij x_i + b_j, with the sign s_j, and the relevance R_j. A rule is the first-order term
of R_j, modelled as max(0, s_j z_j) c_j with a constant c_j, at a root x̃^(j) = x − t v^(j) of the unit, biases fixed:

    z⁺     v_i = x_i where s_j w_ij x_i > 0, else 0               w²     v_i = s_j w_ij            z     v_i = x_i
    z^B    v_i = x_i − l_i where s_j w_ij > 0, else x_i − h_i     flat   v_i = 1 / (s_j w_ij)      nearest: a projection

`Passes` runs a captured network again from values that were moved, and its reverse pass with other rules for blocks.
`expansions` looks at the roots of units, `apart` at two maps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from deeptaylor.engine import target as targets
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.ledger_entries import LedgerEntries
from deeptaylor.errors import InputError, PlanError
from deeptaylor.explainer import Explainer
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.division import weigh
from deeptaylor.maps.linear_map import Maybe, plus
from deeptaylor.maps.structural import Structural
from deeptaylor.methods import likeness
from deeptaylor.methods.bundle import project
from deeptaylor.operations.table import flow_of
from deeptaylor.rules import Flat, LedgerWriter, Rule, WSquare, Z, ZBox, ZPlus, divide
from deeptaylor.rules.steps import BlockStep, ScoreStep

__all__ = [
    "Apart",
    "Expansions",
    "Nearest",
    "Passes",
    "Roots",
    "apart",
    "bound_leaves",
    "expansions",
    "nearest",
    "roots",
    "rows",
    "signs",
]


_AT_ONCE = 1 << 22  # numbers in a chunk of units


def nearest(x: Tensor, w: Tensor, z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The points of boxes (n, d) nearest to x where units of weights w (n, d) and values z > 0 (n,) are zero."""
    return project(x, w[:, None], ((w * x).sum(1) - z)[:, None], low, high)[0]


@dataclass(frozen=True)
class Nearest(Rule):
    """The rule of the nearest root; where the domain holds none, shares are those of the point that comes nearest."""

    symbol: ClassVar[str] = "nearest"

    def __call__(self, W: AffineMap, R: Tensor, ledger: LedgerWriter) -> list[Maybe]:
        if R.shape[0] != 1:
            raise InputError(f"the nearest root of every unit is sought for one input, not for {R.shape[0]} at once.")
        units = torch.nonzero((R * signs(W) * W.z > 0).flatten()).flatten()
        return _in_windows(W, R, units) if isinstance(W.block.maps[-1], Convolution) else _in_all(W, R, units)


def _shares(x: Tensor, w: Tensor, z: Tensor, low: Tensor, high: Tensor, R: Tensor) -> Tensor:
    """What the inputs of n units get of R (n,): (n, d)."""
    q = w * (x - nearest(x, w, z, low, high))
    return q * divide(R, q.sum(1))[:, None]


def _in_all(W: AffineMap, R: Tensor, units: Tensor) -> list[Maybe]:
    """Where units may read all inputs."""
    x, low, high = (_flatten(t) for t in (W.x, *bound_leaves(W)))
    out = torch.zeros_like(x[0])
    for some in units.split(max(1, _AT_ONCE // x.shape[1])):
        s = signs(W).flatten()[some]
        w = _flatten(rows(W, some, s))
        box = (low.expand_as(w), high.expand_as(w))
        out += _shares(x.expand_as(w), w, s * W.z.flatten()[some], *box, R.flatten()[some]).sum(0)
    parts = out.split([t.numel() for t in W.x])
    return [part.reshape(t.shape) for part, t in zip(parts, W.x, strict=True)]


def _in_windows(W: AffineMap, R: Tensor, units: Tensor) -> list[Maybe]:
    """Where units read windows of pictures."""
    conv, moves = W.block.maps[-1], W.block.maps[:-1]
    assert isinstance(conv, Convolution)
    if conv.n != 2 or conv.groups != 1 or conv.transposed or not all(isinstance(m, Structural) for m in moves):
        raise PlanError(
            f"the nearest root is not sought in the block of {W.block.head!r}: no plain convolution of pictures."
        )
    weight = conv.weight("signed", W.run)
    window = {"dilation": conv.dilation, "padding": conv.padding, "stride": conv.stride}
    x = _carried(W, W.x)
    a, low, high = (
        F.unfold(t, weight.shape[2:], **window)[0].T.contiguous()
        for t in (x, *(_carried(W, t) for t in bound_leaves(W)))
    )
    out = torch.zeros_like(a)
    for some in units.split(max(1, _AT_ONCE // a.shape[1])):
        s, channel, place = signs(W).flatten()[some], some // len(a), some % len(a)
        w = s[:, None] * weight.flatten(1)[channel]
        got = _shares(a[place], w, s * W.z.flatten()[some], low[place], high[place], R.flatten()[some])
        out.index_add_(0, place, got)
    at: dict[str, Maybe] = {conv.operands[0]: F.fold(out.T[None], x.shape[2:], weight.shape[2:], **window)}
    for m in reversed(moves):
        carried = at.pop(m.node)
        assert carried is not None
        for name, back in zip(m.operands, m.transpose("signed", carried, W.run), strict=True):
            at[name] = plus(at.get(name), back)
    return [at.get(leaf) for leaf in W.block.leaves]


def _carried(W: AffineMap, xs: Sequence[Tensor]) -> Tensor:
    """What the last map of a block reads, for these leaves; those before it only move elements."""
    at: dict[str, Maybe] = dict(zip(W.block.leaves, xs, strict=True))
    for m in W.block.maps[:-1]:
        at[m.node] = m.map("signed", [at[name] for name in m.operands], W.run)
    read = at[W.block.maps[-1].operands[0]]
    assert read is not None
    return read


def signs(W: AffineMap) -> Tensor:
    """s_j of every unit of a block."""
    return torch.ones_like(W.z) if W.rectified else torch.where(W.z >= 0, 1.0, -1.0).to(W.z)


def rows(W: AffineMap, units: Tensor, s: Tensor) -> list[Tensor]:
    """s_j w_ij of the units with these numbers (n,), one tensor (n, …) a leaf."""
    n, run = len(units), W.run
    assert isinstance(run, ForwardValues)
    ones = W.z.new_zeros(n, W.z[0].numel())
    ones[torch.arange(n), units] = s
    many = ForwardValues(run.values, run.constants, run.layout, n, is_non_negative=False)
    backs = W.block.transpose("signed", ones.reshape(n, *W.z.shape[1:]), many)
    shapes = [(n, *x.shape[1:]) for x in W.x]
    return [ones.new_zeros(size) if t is None else t.expand(size) for t, size in zip(backs, shapes, strict=True)]


def bound_leaves(W: AffineMap) -> tuple[list[Tensor], list[Tensor]]:
    """The lowest and the highest value that each element of the leaves may take."""
    low: list[Tensor] = []
    high: list[Tensor] = []
    for x, box, above in zip(W.x, W.boxes, W.non_negative, strict=True):
        bounds = (0.0 if above else -torch.inf, torch.inf) if box is None else box.bounds(x)
        for side, bound in zip((low, high), bounds, strict=True):
            side.append(torch.as_tensor(bound).to(x).expand_as(x))
    return low, high


def _flatten(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([p.reshape(p.shape[0], -1) for p in parts], 1)


BEFORE = 1e-3  # how far before the root the network is looked at, as a share of the way: at the root itself R_j bends
_ROUNDING = 1e-9  # less than this, as a share of the largest, is no move
_MET = 1e-6  # what is less of z_j is none


# --- a network, run again ---------------------------------------------------------------------------------------------


class Passes:
    """A captured network at one input (a batch of one): its values, its relevances, and both from moved values."""

    def __init__(self, explainer: Explainer, x: Tensor, target: Any = None) -> None:
        if x.shape[0] != 1:
            raise InputError(f"roots are measured one input at a time; this is a batch of {x.shape[0]}.")
        self.engine = explainer.captured.engine
        names = [n for s in self.engine.planned.steps for n in (s.node, *s.inputs)]
        mixed = [n for n in names if not self.engine.layout[n].plain]
        if mixed:
            raise PlanError(f"roots are measured where samples are the first axis; at {mixed[0]!r} they are not.")
        constants = {target: self.engine.constant(name) for name, target in self.engine.constant_names.items()}
        self._module = fx.GraphModule(constants, self.engine.captured.graph)
        self._values = self._computed({}, x)
        self.here = self._run({node.name: value for node, value in self._values.items()}, 1)
        self._v, _ = targets.output_weights(target, self.here.values[self.engine.planned.output])
        self.relevance = self.reverse(self.here)

    @property
    def blocks(self) -> list[BlockStep]:
        """The detection blocks, from the output down; without the score's, which is linear in what it reads."""
        return [s for s in self.engine.planned.steps if isinstance(s, BlockStep) and not isinstance(s, ScoreStep)]

    @torch.no_grad()
    def moved(self, values: Mapping[str, Tensor]) -> ForwardValues:
        """The network with these tensors in place of its own: n samples each."""
        n = next(iter(values.values())).shape[0]
        nodes = {node.name: node for node in self._values}
        below = _computed_from([nodes[name] for name in values])
        given: dict[fx.Node, Any] = {nodes[name]: value for name, value in values.items()}
        for node, value in self._values.items():
            if node not in below and node not in given:
                samples = isinstance(value, Tensor) and node.op != "get_attr"
                given[node] = value.expand(n, *value.shape[1:]) if samples else value
        return self._run({node.name: value for node, value in self._computed(given).items()}, n)

    @torch.no_grad()
    def reverse(
        self, run: ForwardValues, down_to: str | None = None, instead: Mapping[str, Rule] | None = None
    ) -> dict[str, Tensor]:
        """The relevance that arrives at every boundary; `instead`: other rules for the blocks that end in these."""
        planned, instead = self.engine.planned, instead or {}
        v = self._v.expand(run.batch, *self._v.shape[1:])
        f = run.sum_per_sample(planned.output, weigh(v, run.values[planned.output]))
        page = LedgerEntries(run, None, may_read=False).start_row(None, f, drops_nothing=False)
        arrived: dict[str, Tensor] = {}
        for step in planned.steps:
            if isinstance(step, ScoreStep):
                outs = step.start(f.clamp(min=0), v, f, run, page)
            elif step.node == down_to:
                break
            elif step.node in instead and isinstance(step, BlockStep):
                outs = instead[step.node](_map_of(step, run), arrived[step.node], page)
            elif step.node in arrived:
                outs = step.propagate(arrived[step.node], run, page)
            else:
                continue
            for name, out in zip(step.inputs, outs, strict=True):
                if out is not None:
                    arrived[name] = out.expand(run.shape(name)) + arrived.get(name, 0)
        return arrived

    def rectifiers(self) -> dict[str, str]:
        """Rectifiers, by name, with the name of what each reads."""
        return {n.name: n.args[0].name for n in self.engine.captured.graph.nodes if flow_of(n).rectifies}

    def _computed(self, given: dict[fx.Node, Any], *inputs: Tensor) -> dict[fx.Node, Any]:
        interpreter = fx.Interpreter(self._module, garbage_collect_values=False)
        interpreter.run(*inputs, initial_env=given)
        return {node: value for node, value in interpreter.env.items() if node.op != "output"}

    def _run(self, values: dict[str, Any], n: int) -> ForwardValues:
        return ForwardValues(values, self.engine.constant, self.engine.layout, n, is_non_negative=False)


def _computed_from(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """All that is computed from some nodes, without these."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        more = set(waiting.pop().users) - found - set(nodes)
        found |= more
        waiting += more
    return found


def _map_of(step: BlockStep, run: ForwardValues) -> AffineMap:
    return AffineMap(step.block, run, step.non_negative, step.boxes, step.rectified, step.spread)


# --- roots of units ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roots:
    """The roots of n units of a block, for one input.

    move      x̃ − x, one tensor (n, …) a leaf
    found     (n,): the search met a root
    inside    (n,): it lies in the domain of every leaf
    left      (n,): what a bias neuron keeps of R_j, β_j / (Σ_i q_ij + β_j); 0 for a search that has none
    """

    move: list[Tensor]
    found: Tensor
    inside: Tensor
    left: Tensor


@torch.no_grad()
def roots(rule: Rule, step: BlockStep, run: ForwardValues, units: Tensor) -> Roots:
    """The roots that a rule means, of the units with these numbers (n,), counted through the block's output."""
    n, W = len(units), _map_of(step, run)
    s = signs(W).flatten()[units]
    z = s * W.z.flatten()[units]
    w = _flatten(rows(W, units, s))
    x, low, high = (_flatten(parts).expand_as(w) for parts in (W.x, *bound_leaves(W)))
    left = torch.zeros_like(z)
    if isinstance(rule, Nearest):
        point = nearest(x, w, z, low, high)
    else:
        v = _direction(rule, x, w, low, high)
        q = (v * w).sum(1)
        point = x - torch.where(q > 0, z / q, 0)[:, None] * v
        if isinstance(rule, (ZPlus, ZBox)):
            beta = (z - (w * x).sum(1)).clamp(min=0)
            left = divide(beta, q + beta)
    found = (z > 0) & ((z - (w * (x - point)).sum(1)).abs() <= _MET * z)
    slack = _ROUNDING * x.abs().amax(1, keepdim=True)
    inside = found & ((point >= low - slack) & (point <= high + slack)).all(1)
    parts = (point - x).split([t[0].numel() for t in W.x], 1)
    return Roots([p.reshape(n, *t.shape[1:]) for p, t in zip(parts, W.x, strict=True)], found, inside, left)


def _direction(rule: Rule, x: Tensor, w: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """v (n, d) of a search x − t v, for weights that were turned to the unit's sign."""
    if isinstance(rule, WSquare):
        return w
    if isinstance(rule, Z):
        return x * (w != 0)
    if isinstance(rule, Flat):
        return torch.where(w != 0, 1 / w, 0)
    if isinstance(rule, ZBox):
        if rule.low is not None and rule.high is not None:
            low, high = (torch.as_tensor(t).to(x).expand_as(x) for t in (rule.low, rule.high))
        bound = torch.where(w > 0, low, high)
        return torch.where((w != 0) & bound.isfinite(), x - bound, 0)
    if isinstance(rule, ZPlus):
        return x * (w * x > 0)
    raise PlanError(f"{rule!r} has no root; ZPlus(), ZBox(), WSquare(), Z(), Flat() and Nearest() have.")


# --- what is found there ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expansions:
    """The expansions of units drawn in proportion to their relevance, a number a unit; NaN where there is none.

    found    1 where the search meets a root, biases held fixed
    inside   1 where it lies in the domain of what the block reads
    left     what a bias neuron keeps of R_j, for which the rule then needs no root
    own      1 where the unit is on the same linear piece just before the root as at x
    beside   of the block's other units that the move reaches, the share that is on another piece there
    above    the same of all rectified units beyond the block
    region   1 where all these units stay on their pieces (windows of max pooling are not looked at)
    model    |R_j(x) − R_j(x̃) − ∇R_j(x̃)·(x − x̃)| / R_j(x) of the model, c_j as at x
    true     the same of the relevance that the engine computes from there, its derivative by a difference
    stays    what that relevance still is, R_j(x̃) / R_j(x): at a root of the model it may be more than nothing
    """

    found: Tensor
    inside: Tensor
    left: Tensor
    own: Tensor
    beside: Tensor
    above: Tensor
    region: Tensor
    model: Tensor
    true: Tensor
    stays: Tensor

    @staticmethod
    def joined(parts: Sequence[Expansions]) -> Expansions:
        return Expansions(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Expansions)))

    def summary(self) -> dict[str, float | None]:
        """The mean of what is a number; of `true` the median: some differences are across a bend."""
        found = {f.name: float(getattr(self, f.name).nanmean()) for f in fields(self)}
        found["true"] = float(self.true.nanquantile(0.5))
        return {name: None if math.isnan(value) else value for name, value in found.items()}


@torch.no_grad()
def expansions(passes: Passes, step: BlockStep, rule: Rule, units: Tensor) -> Expansions:
    """What holds at the roots of these units, and a little before them."""
    found = roots(rule, step, passes.here, units)
    n, k = len(units), torch.arange(len(units))
    before = {}  # at one and at two steps before the root
    for leaf, move in zip(step.block.leaves, found.move, strict=True):
        before[leaf] = torch.cat([passes.here.values[leaf] + (1 - m * BEFORE) * move for m in (1, 2)])
    run = passes.moved(before)
    own, beside, above = _switched(passes, step.node, run, units)
    bent = next((r for r, read in passes.rectifiers().items() if read == step.node), step.node)
    (z, z_near), (y, y_near) = (
        (passes.here.values[name].flatten()[units], run.values[name].flatten(1)[k, units]) for name in (step.node, bent)
    )
    R = passes.relevance[step.node].flatten()[units]
    R_near, R_next = passes.reverse(run, down_to=step.node)[step.node].flatten(1)[:, units].reshape(2, n, n)[:, k, k]
    model = (R - R / y.abs() * (y_near.abs() + (z - z_near).abs())).abs() / R
    true = (R - R_near - (R_next - R_near) / BEFORE * (1 - BEFORE)).abs() / R
    region = own * (beside.nan_to_num() == 0) * (above.nan_to_num() == 0)
    none = torch.where(found.found, 0, torch.nan).to(R)
    rest = [t + none for t in (own, beside, above, region, model, true, R_near / R)]
    return Expansions(found.found.to(R), found.inside.to(R), found.left, *rest)


def _switched(passes: Passes, node: str, run: ForwardValues, units: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether each unit is on its piece, and the shares of others in its layer and of all elsewhere that are not."""
    n, like = len(units), run.values[node]
    own = like.new_ones(n)
    counts = like.new_zeros(2, 2, n)  # beside or above; switched or reached
    for rectifier, read in passes.rectifiers().items():
        before, after = passes.here.values[read], run.values[read][:n]
        reached = ((after - before).abs() > _ROUNDING * before.abs().amax()).flatten(1)
        piece = _piece(before, passes.here.values[rectifier])
        other = (piece != _piece(after, run.values[rectifier][:n])).flatten(1)
        if read == node:
            k = torch.arange(n)
            own = 1 - other[k, units].to(like)
            reached[k, units] = False
        counts[int(read != node)] += torch.stack([(other & reached).sum(1), reached.sum(1)]).to(like)
    shares = torch.where(counts[:, 1] > 0, counts[:, 0] / counts[:, 1], torch.nan)
    return own, shares[0], shares[1]


def _piece(z: Tensor, y: Tensor) -> Tensor:
    """0 below the hinge, 1 where a rectifier hands on what it reads, 2 above its ceiling."""
    return (z > 0).int() + (z > y).int()


# --- two maps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Apart:
    """How far two maps are apart: cosine, rank correlation, and the share of relevance that lies elsewhere."""

    cosine: float
    rank: float | None  # None where a map is the same everywhere
    moved: float


def apart(R: Tensor, other: Tensor) -> Apart:
    """Of two maps of pixels; each is divided by its sum first, ½ Σ |N − N'|."""
    a, b = ((t / t.sum()).flatten().double() for t in (R, other))
    cosine = float(F.cosine_similarity(a, b, dim=0))
    return Apart(cosine, likeness(a.numpy(), b.numpy()), float((a - b).abs().sum() / 2))
