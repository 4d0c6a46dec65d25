"""THE table: for every operation, how relevance flows through it.

A row is `operation: Flow(kind, build)`. The kinds, and what the plan makes of them (docs/theory.md):

    structural   elements are copied: relevance is carried back to where each came from
    mixing       weighted layers, averages, centring: the heart of a detection block
    diagonal     multiplication and addition of constants: part of a block
    sum          + and − of data tensors: part of a block, one denominator for all branches
    rectifier    ReLU and its like: relevance passes; the block below is read with s = +1
    activation   any other element-wise function: relevance passes, φ(0) is a bias neuron
    product      one factor carries the signal, the other is a gate
    quotient     the denominator is a gate
    pass         relevance passes unchanged (x/σ of a norm)
    max          max pooling in proportion to activations, or winner-take-all
    lp           L^p pooling in proportion to activations
    softmax      exp with a constant normaliser
    embedding    a token's relevance is the sum over its vector

`build(node, captured, operands)` makes the LinearMap of the affine kinds; it returns None where this use of the
operation has no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor import linear_map as lm
from deeptaylor import ops
from deeptaylor.capture import Captured, Node, is_node
from deeptaylor.rewrite import bound_args, shape_of, wide

aten = torch.ops.aten

FlowKind = Literal[
    "structural", "mixing", "diagonal", "sum", "rectifier", "activation", "product", "quotient", "pass", "max", "lp",
    "softmax", "embedding",
]  # fmt: skip
Build = Callable[[Node, Captured, Sequence[str]], lm.LinearMap | None]

AFFINE: frozenset[FlowKind] = frozenset({"structural", "mixing", "diagonal", "sum"})


@dataclass(frozen=True)
class Flow:
    """How relevance flows through one operation."""

    kind: FlowKind
    build: Build | None = None


def flow_of(node: Node) -> Flow | None:
    """The table's row for a node, looking at its arguments where the operation alone does not decide."""
    flow = TABLE.get(node.target)
    if flow is not None and flow.kind == "activation" and _rectifies(node):
        return Flow("rectifier")
    return flow


def kind_of(node: Node) -> FlowKind | None:
    """How relevance flows through a node, in one word; None if the table does not know it."""
    flow = flow_of(node)
    return None if flow is None else flow.kind


def _rectifies(node: Node) -> bool:
    """hardtanh(0, …), clamp(min=0) and threshold(0, 0) are ReLUs, perhaps with a ceiling."""
    if node.target in (aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default):
        a = bound_args(node)
        low, high = a.get("min_val", a.get("min")), a.get("max_val", a.get("max"))
        return low == 0 and (high is None or high > 0)
    return node.target is aten.threshold.default and tuple(node.args[1:3]) == (0, 0)


# --- structural ---------------------------------------------------------------------------------------------------


def _reshape(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.Reshape(node.name, operands)


def _permute(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    rank = len(shape_of(node))
    if node.target is aten.permute.default:
        return lm.Permute(node.name, operands, node.args[1])
    order = list(range(rank))
    if node.target in (aten.t.default, aten.numpy_T.default, aten.mT.default):
        i, j = (-1, -2) if rank > 1 else (0, 0)
        if node.target is aten.numpy_T.default:
            return lm.Permute(node.name, operands, order[::-1])
    else:
        i, j = node.args[1], node.args[2]
    order[i], order[j] = order[j], order[i]
    return lm.Permute(node.name, operands, order)


def _movedim(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    order = torch.empty([1] * 0 + list(range(1, len(shape_of(node)) + 1)))
    moved = torch.movedim(order, node.args[1], node.args[2])
    return lm.Permute(node.name, operands, [n - 1 for n in moved.shape])


def _expand(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.Expand(node.name, operands)


def _repeat(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.Repeat(node.name, operands)


def _repeat_interleave(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    if node.target is ops.repeat_heads:
        return lm.RepeatInterleave(node.name, operands, node.args[1], -3)
    a = bound_args(node)
    return None if a["dim"] is None else lm.RepeatInterleave(node.name, operands, a["repeats"], a["dim"])


def _parts_of(node: Node) -> tuple[list[str], int]:
    parts: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [p.name for p in parts], dim % len(shape_of(node))


def _cat(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    parts, dim = _parts_of(node)
    return lm.Cat(node.name, list(dict.fromkeys(operands)), parts, dim)


def _stack(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    parts, dim = _parts_of(node)
    return lm.Stack(node.name, list(dict.fromkeys(operands)), parts, dim)


def _slice(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    start = 0 if a["start"] is None else a["start"]
    stop = torch.iinfo(torch.int64).max if a["end"] is None else a["end"]
    if not all(isinstance(v, int) for v in (start, stop, a["step"])):
        return None
    return lm.Slice(node.name, operands, a["dim"], start, stop, a["step"], drop=False)


def _select(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    index: Any = a["index"]
    if not isinstance(index, int):
        return None
    size = int(shape_of(node.args[0])[a["dim"]])
    return lm.Slice(node.name, operands, a["dim"], index % size, index % size + 1, 1, drop=True)


def _narrow(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    if not isinstance(a["start"], int):
        return None
    return lm.Slice(node.name, operands, a["dim"], a["start"], a["start"] + a["length"], 1, drop=False)


def _index(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    if node.target is aten.index_select.default:
        dim, chosen = node.args[1], node.args[2]
    else:
        indices: Any = node.args[1]
        given = [(d, i) for d, i in enumerate(indices) if i is not None]
        if len(given) != 1:
            return None
        dim, chosen = given[0]
    index = captured.constants.get(str(chosen.target)) if is_node(chosen) and chosen.op == "get_attr" else None
    if index is None or index.dtype not in (torch.int64, torch.int32):
        return None
    rank, size = len(shape_of(node.args[0])), shape_of(node.args[0])[dim]
    return lm.IndexAlong(node.name, operands, dim % rank, index.reshape(-1) % int(size))


def _gather(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.Gather(node.name, operands, node.args[1], node.args[2].name)


def _roll(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    return lm.Roll(node.name, operands, a["shifts"], a["dims"]) if a["dims"] else None


def _flip(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.Flip(node.name, operands, node.args[1])


def _pad(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    a = bound_args(node)
    return lm.Pad(node.name, operands, a["pad"], _scalar(node, a["value"]))


def _pad_by_index(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    """Reflecting, replicating and circular padding of one axis copy elements; of several axes, not yet one map."""
    a = bound_args(node)
    pads = list(a["pad"] if "pad" in a else a["padding"])
    mode = a.get("mode") or ("reflect" if "reflection" in str(node.target) else "replicate")
    touched = [k for k in range(len(pads) // 2) if pads[2 * k] or pads[2 * k + 1]]
    rank = len(shape_of(node))
    if len(touched) != 1:
        return None
    axis = rank - 1 - touched[0]
    size = int(shape_of(node.args[0])[axis])
    positions = torch.arange(size, dtype=torch.float64).reshape(1, 1, -1)
    index = F.pad(positions, pads[2 * touched[0] : 2 * touched[0] + 2], mode=mode)
    return lm.IndexAlong(node.name, operands, axis, index.reshape(-1).long())


def _pixel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return lm.PixelShuffle(node.name, operands, node.args[1], node.target is aten.pixel_unshuffle.default)


def _channel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    channels, groups = int(shape_of(node)[1]), int(node.args[1])
    return lm.IndexAlong(node.name, operands, 1, torch.arange(channels).reshape(groups, -1).T.reshape(-1))


def _scalar(node: Node, value: float) -> Tensor:
    """A number as a tensor of the node's type and device."""
    val = node.meta["val"]
    return torch.tensor(float(value), dtype=val.dtype, device=val.device)


def _keep(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    a: Any = node.args
    if node.target is not aten.where.self:
        return lm.Keep(node.name, operands, a[1].name, [False], _scalar(node, a[2]))
    keep = [(n, k) for n, k in ((a[1], True), (a[2], False)) if n.name in operands]
    other = [n.name for n in a[1:] if n.name not in operands]
    return lm.Keep(node.name, [n.name for n, _ in keep], a[0].name, [k for _, k in keep], other[0] if other else None)


# --- mixing -------------------------------------------------------------------------------------------------------


def _weight_of(node: Any, captured: Captured) -> Tensor | None:
    return captured.constants.get(str(node.target)) if is_node(node) and node.op == "get_attr" else None


def _name(node: Any) -> str | None:
    return None if node is None else str(node.name)


def _linear(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    weight = _weight_of(a["weight"], captured)
    return None if weight is None else lm.Linear(node.name, operands, a["weight"].name, weight, _name(a["bias"]))


def _convolution(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    weight = _weight_of(a["weight"], captured)
    if weight is None:
        return None
    up = "output_padding" in a
    return lm.Convolution(
        node.name, operands, a["weight"].name, weight, _name(a["bias"]), a["stride"], a["padding"], a["dilation"], a["groups"], up,
        a.get("output_padding", 0),
    )  # fmt: skip


def product_map(node: Node, fixed: Node, signal: Node, non_negative: bool) -> lm.LinearMap | None:
    """A matrix product with one factor fixed."""
    if node.target is aten.einsum.default:
        equation, (first, second) = node.args
        left, out = equation.split("->")
        terms = dict(zip((first, second), left.split(","), strict=True))
        data, other = terms[signal], terms[fixed]
        if first is second or len(set(data)) != len(data) or not set(data) <= set(other + out):
            return None
        return lm.Einsum(node.name, [signal.name], fixed.name, (data, other, out), non_negative)
    if min(len(shape_of(fixed)), len(shape_of(signal))) < 2:
        return None
    return lm.MatMul(node.name, [signal.name], fixed.name, node.args[0] is fixed, non_negative)


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64).unsqueeze(0)


def _avg_pool(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    n = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}[node.target]
    a = bound_args(node)
    sizes = shape_of(node.args[0])[-n:]
    kernel, padding = wide(a["kernel_size"], n), wide(a["padding"], n)
    stride = wide(a["stride"], n) if a["stride"] else kernel
    matrices = []
    for size, k, s, p in zip(sizes, kernel, stride, padding, strict=True):
        averaged = F.avg_pool1d(_eye(int(size)), k, s, p, a["ceil_mode"], a["count_include_pad"])[0].T
        matrices.append((averaged != 0).double() if a.get("divisor_override") else averaged)
    if a.get("divisor_override"):
        matrices[0] = matrices[0] / a["divisor_override"]
    return _separable(node, captured, operands, matrices)


def _adaptive_avg_pool(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    wanted: Any = node.args[1]
    n = len(wanted)
    sizes = shape_of(node.args[0])[-n:]
    outputs = [int(size) if w is None else w for size, w in zip(sizes, wanted, strict=True)]
    matrices = [F.adaptive_avg_pool1d(_eye(int(s)), w)[0].T for s, w in zip(sizes, outputs, strict=True)]
    return _separable(node, captured, operands, matrices)


def _interpolate(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    name = str(node.target)
    mode = "nearest-exact" if "exact" in name else "nearest" if "nearest" in name else "linear"
    a = bound_args(node)
    n = len(shape_of(node)) - 2
    sizes, outputs = shape_of(node.args[0])[-n:], shape_of(node)[-n:]
    scales = a.get("scale_factors") or [None] * n
    matrices = []
    for size, output, scale in zip(sizes, outputs, scales, strict=True):
        how = {"size": int(output)} if scale is None else {"scale_factor": scale}
        corners = {"align_corners": a["align_corners"]} if mode == "linear" else {}
        matrices.append(F.interpolate(_eye(int(size)), mode=mode, **how, **corners)[0].T)
    return _separable(node, captured, operands, matrices)


def _separable(node: Node, captured: Captured, operands: Sequence[str], matrices: list[Tensor]) -> lm.LinearMap:
    val = node.meta["val"]
    return lm.Separable(node.name, operands, [m.contiguous().to(dtype=val.dtype, device=val.device) for m in matrices])


def _reduce(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    dims = a.get("dim")
    if not dims:
        return None
    return lm.Reduce(node.name, operands, dims, mean=node.target is aten.mean.dim)


def _centre(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    _, gamma, beta, axes, groups = node.args
    return lm.Centre(node.name, operands, _name(gamma), _name(beta), axes, groups)


# --- diagonal and sum ---------------------------------------------------------------------------------------------


def _scale_shift(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    scale: Any = node.args[1]
    known = _weight_of(scale, captured)
    has_negative = scale is not None and (known is None or bool((known < 0).any()))
    return lm.Diagonal(node.name, operands, _name(scale), _name(node.args[2]), has_negative)


def _sum(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    alpha: Any = node.kwargs.get("alpha", 1)
    return lm.Sum(node.name, operands, (1.0, float(-alpha if node.target is aten.sub.Tensor else alpha)))


# --- the table ----------------------------------------------------------------------------------------------------

TABLE: dict[Any, Flow] = {
    aten.relu.default: Flow("rectifier"),
    aten.relu6.default: Flow("rectifier"),
    **dict.fromkeys(
        [
            aten.hardtanh.default,
            aten.clamp.default,
            aten.clamp_min.default,
            aten.clamp_max.default,
            aten.threshold.default,
            aten.leaky_relu.default,
            aten._prelu_kernel.default,
            aten.prelu.default,
            aten.rrelu.default,
            aten.elu.default,
            aten.celu.default,
            aten.selu.default,
            aten.gelu.default,
            aten.silu.default,
            aten.mish.default,
            aten.hardswish.default,
            aten.sigmoid.default,
            aten.hardsigmoid.default,
            aten.tanh.default,
            aten.softplus.default,
            aten.log_sigmoid.default,
            aten.log_sigmoid_forward.default,
            aten.hardshrink.default,
            aten.softshrink.default,
            aten.abs.default,
            aten.pow.Tensor_Scalar,
            aten.square.default,
            aten.sqrt.default,
            aten.exp.default,
            aten.expm1.default,
            aten.log1p.default,
            aten.erf.default,
            aten.sin.default,
            aten.cos.default,
            aten.atan.default,
        ],
        Flow("activation"),
    ),
    **dict.fromkeys(
        [
            aten.view.default,
            aten._unsafe_view.default,
            aten.reshape.default,
            aten.flatten.using_ints,
            aten.unflatten.int,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.squeeze.default,
            aten.unsqueeze.default,
            aten.view_as.default,
            aten.reshape_as.default,
        ],
        Flow("structural", _reshape),
    ),
    **dict.fromkeys(
        [
            aten.permute.default,
            aten.transpose.int,
            aten.t.default,
            aten.numpy_T.default,
            aten.mT.default,
            aten.swapaxes.default,
        ],
        Flow("structural", _permute),
    ),
    aten.movedim.int: Flow("structural", _movedim),
    aten.movedim.intlist: Flow("structural", _movedim),
    aten.expand.default: Flow("structural", _expand),
    aten.expand_as.default: Flow("structural", _expand),
    aten.repeat.default: Flow("structural", _repeat),
    aten.tile.default: Flow("structural", _repeat),
    aten.repeat_interleave.self_int: Flow("structural", _repeat_interleave),
    ops.repeat_heads: Flow("structural", _repeat_interleave),
    aten.cat.default: Flow("structural", _cat),
    aten.concat.default: Flow("structural", _cat),
    aten.stack.default: Flow("structural", _stack),
    aten.slice.Tensor: Flow("structural", _slice),
    aten.select.int: Flow("structural", _select),
    aten.narrow.default: Flow("structural", _narrow),
    aten.index.Tensor: Flow("structural", _index),
    aten.index_select.default: Flow("structural", _index),
    aten.gather.default: Flow("structural", _gather),
    aten.roll.default: Flow("structural", _roll),
    aten.flip.default: Flow("structural", _flip),
    aten.constant_pad_nd.default: Flow("structural", _pad),
    **dict.fromkeys(
        [
            aten.pad.default,
            aten.reflection_pad1d.default,
            aten.reflection_pad2d.default,
            aten.reflection_pad3d.default,
            aten.replication_pad1d.default,
            aten.replication_pad2d.default,
            aten.replication_pad3d.default,
        ],
        Flow("structural", _pad_by_index),
    ),
    aten.pixel_shuffle.default: Flow("structural", _pixel_shuffle),
    aten.pixel_unshuffle.default: Flow("structural", _pixel_shuffle),
    aten.channel_shuffle.default: Flow("structural", _channel_shuffle),
    aten.masked_fill.Scalar: Flow("structural", _keep),
    aten.where.self: Flow("structural", _keep),
    aten.linear.default: Flow("mixing", _linear),
    **dict.fromkeys(
        [
            aten.conv1d.default,
            aten.conv2d.default,
            aten.conv3d.default,
            aten.conv_transpose1d.default,
            aten.conv_transpose2d.input,
            aten.conv_transpose3d.input,
        ],
        Flow("mixing", _convolution),
    ),
    **dict.fromkeys(
        [aten.matmul.default, aten.mm.default, aten.bmm.default, aten.einsum.default, aten.mul.Tensor], Flow("product")
    ),
    aten.div.Tensor: Flow("quotient"),
    **dict.fromkeys(
        [aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default], Flow("mixing", _avg_pool)
    ),
    **dict.fromkeys(
        [
            aten.adaptive_avg_pool1d.default,
            aten.adaptive_avg_pool2d.default,
            aten.adaptive_avg_pool3d.default,
            aten._adaptive_avg_pool2d.default,
            aten._adaptive_avg_pool3d.default,
        ],
        Flow("mixing", _adaptive_avg_pool),
    ),
    **dict.fromkeys(
        [
            aten.upsample_nearest1d.vec,
            aten.upsample_nearest2d.vec,
            aten.upsample_nearest3d.vec,
            aten._upsample_nearest_exact1d.vec,
            aten._upsample_nearest_exact2d.vec,
            aten._upsample_nearest_exact3d.vec,
            aten.upsample_linear1d.vec,
            aten.upsample_bilinear2d.vec,
            aten.upsample_trilinear3d.vec,
        ],
        Flow("mixing", _interpolate),
    ),
    aten.mean.dim: Flow("mixing", _reduce),
    aten.sum.dim_IntList: Flow("mixing", _reduce),
    ops.centre: Flow("mixing", _centre),
    ops.scale_shift: Flow("diagonal", _scale_shift),
    aten.add.Tensor: Flow("sum", _sum),
    aten.sub.Tensor: Flow("sum", _sum),
    ops.divide_by_std: Flow("pass"),
    ops.divide_by_rms: Flow("pass"),
    ops.max_pool: Flow("max"),
    ops.adaptive_max_pool: Flow("max"),
    aten.amax.default: Flow("max"),
    ops.lp_pool: Flow("lp"),
    aten.softmax.int: Flow("softmax"),
    aten._softmax.default: Flow("softmax"),
    aten.embedding.default: Flow("embedding"),
}
