"""From a node to its linear map: one small function for each family of operations, used by the table in flow.py.

Each takes the node, the captured network and the names of the operands that carry relevance; it returns None where
this use of the operation has no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args, shape_of, wide
from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import contractions, ops, selections
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import structural as st
from deeptaylor.maps.convolution import Convolution

aten = torch.ops.aten

# --- structural ---------------------------------------------------------------------------------------------------


def reshape(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return st.Reshape(node.name, operands)


def permute(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    rank = len(shape_of(node))
    if node.target is aten.permute.default:
        return st.Permute(node.name, operands, node.args[1])
    order = list(range(rank))
    if node.target in (aten.t.default, aten.numpy_T.default, aten.mT.default):
        i, j = (-1, -2) if rank > 1 else (0, 0)
        if node.target is aten.numpy_T.default:
            return st.Permute(node.name, operands, order[::-1])
    else:
        i, j = node.args[1], node.args[2]
    order[i], order[j] = order[j], order[i]
    return st.Permute(node.name, operands, order)


def movedim(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    order = torch.empty([1] * 0 + list(range(1, len(shape_of(node)) + 1)))
    moved = torch.movedim(order, node.args[1], node.args[2])
    return st.Permute(node.name, operands, [n - 1 for n in moved.shape])


def expand(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return st.Expand(node.name, operands)


def repeat(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return st.Repeat(node.name, operands)


def repeat_interleave(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    if node.target is ops.repeat_heads:
        return st.RepeatInterleave(node.name, operands, node.args[1], -3)
    a = bound_args(node)
    return None if a["dim"] is None else st.RepeatInterleave(node.name, operands, a["repeats"], a["dim"])


def _parts_of(node: Node) -> tuple[list[str], int]:
    parts: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [p.name for p in parts], dim % len(shape_of(node))


def cat(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    parts, dim = _parts_of(node)
    return st.Cat(node.name, list(dict.fromkeys(operands)), parts, dim)


def stack(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    parts, dim = _parts_of(node)
    return st.Stack(node.name, list(dict.fromkeys(operands)), parts, dim)


def slicing(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    start = 0 if a["start"] is None else a["start"]
    stop = torch.iinfo(torch.int64).max if a["end"] is None else a["end"]
    if not all(isinstance(v, int) for v in (start, stop, a["step"])):
        return None
    return st.Slice(node.name, operands, a["dim"], start, stop, a["step"], drop=False)


def select(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    index: Any = a["index"]
    if not isinstance(index, int):
        return None
    size = int(shape_of(node.args[0])[a["dim"]])
    return st.Slice(node.name, operands, a["dim"], index % size, index % size + 1, 1, drop=True)


def narrow(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    if not isinstance(a["start"], int):
        return None
    return st.Slice(node.name, operands, a["dim"], a["start"], a["start"] + a["length"], 1, drop=False)


def index(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    """Constant integer positions along one axis, or along neighbouring axes at once."""
    if node.target is aten.index_select.default:
        given = [(node.args[1], node.args[2])]
    else:
        given = [(d, i) for d, i in enumerate(node.args[1]) if i is not None]
    first, span = given[0][0], len(given)
    sizes = shape_of(node.args[0])
    positions: Tensor | None = None
    for k, (dim, chosen) in enumerate(given):
        constant = _weight_of(chosen, captured)
        if dim != first + k or constant is None or constant.dtype not in (torch.int64, torch.int32):
            return None
        here = constant.long() % int(sizes[dim])
        positions = here if positions is None else positions * int(sizes[dim]) + here
    assert positions is not None
    return selections.IndexAlong(node.name, operands, [(first % len(sizes), span, positions.reshape(-1))])


def gather(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return selections.Gather(node.name, operands, node.args[1], node.args[2].name)


def roll(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    return st.Roll(node.name, operands, a["shifts"], a["dims"]) if a["dims"] else None


def flip(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return st.Flip(node.name, operands, node.args[1])


def pad(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    a = bound_args(node)
    return st.Pad(node.name, operands, a["pad"], _scalar(node, a["value"]))


def pad_by_index(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    """Reflecting, replicating and circular padding copy elements, axis by axis."""
    a = bound_args(node)
    pads = list(a["pad"] if "pad" in a else a["padding"])
    mode = a.get("mode") or ("reflect" if "reflection" in str(node.target) else "replicate")
    rank, picks = len(shape_of(node)), []
    for k in range(len(pads) // 2):
        if pads[2 * k] or pads[2 * k + 1]:
            axis = rank - 1 - k
            positions = torch.arange(int(shape_of(node.args[0])[axis]), dtype=torch.float64).reshape(1, 1, -1)
            picked = F.pad(positions, pads[2 * k : 2 * k + 2], mode=mode)
            picks.append((axis, 1, picked.reshape(-1).long().to(node.meta["val"].device)))
    return selections.IndexAlong(node.name, operands, picks)


def pixel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    return st.PixelShuffle(node.name, operands, node.args[1], node.target is aten.pixel_unshuffle.default)


def channel_shuffle(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    channels, groups = int(shape_of(node)[1]), int(node.args[1])
    order = torch.arange(channels, device=node.meta["val"].device).reshape(groups, -1).T.reshape(-1)
    return selections.IndexAlong(node.name, operands, [(1, 1, order)])


def _scalar(node: Node, value: float) -> Tensor:
    """A number as a tensor of the node's type and device."""
    val = node.meta["val"]
    return torch.tensor(float(value), dtype=val.dtype, device=val.device)


def keep(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    a: Any = node.args
    if node.target is not aten.where.self:
        return st.Keep(node.name, operands, a[1].name, [False], _scalar(node, a[2]))
    keep = [(n, k) for n, k in ((a[1], True), (a[2], False)) if n.name in operands]
    other = [n.name for n in a[1:] if n.name not in operands]
    return st.Keep(node.name, [n.name for n, _ in keep], a[0].name, [k for _, k in keep], other[0] if other else None)


# --- mixing -------------------------------------------------------------------------------------------------------


def _weight_of(node: Any, captured: Captured) -> Tensor | None:
    return captured.constants.get(str(node.target)) if is_node(node) and node.op == "get_attr" else None


def _name(node: Any) -> str | None:
    return None if node is None else str(node.name)


def linear(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    weight = _weight_of(a["weight"], captured)
    return None if weight is None else lm.Linear(node.name, operands, a["weight"].name, weight, _name(a["bias"]))


def convolution(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    weight = _weight_of(a["weight"], captured)
    if weight is None:
        return None
    up = "output_padding" in a
    return Convolution(
        node.name,
        operands,
        a["weight"].name,
        weight,
        _name(a["bias"]),
        a["stride"],
        a["padding"],
        a["dilation"],
        a["groups"],
        up,
        a.get("output_padding", 0),
    )


def product_map(node: Node, fixed: Node, signal: Node, non_negative: bool) -> lm.LinearMap | None:
    """A matrix product with one factor fixed."""
    if node.target is aten.einsum.default:
        equation, (first, second) = node.args
        left, out = equation.split("->")
        terms = dict(zip((first, second), left.split(","), strict=True))
        data, other = terms[signal], terms[fixed]
        if first is second or len(set(data)) != len(data) or not set(data) <= set(other + out):
            return None
        return contractions.Einsum(node.name, [signal.name], fixed.name, (data, other, out), non_negative)
    if min(len(shape_of(fixed)), len(shape_of(signal))) < 2:
        return None
    return contractions.MatMul(node.name, [signal.name], fixed.name, node.args[0] is fixed, non_negative)


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64).unsqueeze(0)


def avg_pool(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    n = {aten.avg_pool1d.default: 1, aten.avg_pool2d.default: 2, aten.avg_pool3d.default: 3}[node.target]
    a = bound_args(node)
    if (a.get("divisor_override") or 1) < 0:
        return None  # an average has no negative weights
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


def adaptive_avg_pool(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    wanted: Any = node.args[1]
    n = len(wanted)
    sizes = shape_of(node.args[0])[-n:]
    outputs = [int(size) if w is None else w for size, w in zip(sizes, wanted, strict=True)]
    if all(w == 1 for w in outputs):
        return lm.Reduce(node.name, operands, range(-n, 0), mean=True)
    matrices = [F.adaptive_avg_pool1d(_eye(int(s)), w)[0].T for s, w in zip(sizes, outputs, strict=True)]
    return _separable(node, captured, operands, matrices)


def interpolate(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
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


def reduce(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap | None:
    a = bound_args(node)
    dims = a.get("dim")
    if not dims:
        return None
    return lm.Reduce(node.name, operands, dims, mean=node.target is aten.mean.dim)


def centre(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    _, gamma, beta, axes, groups = node.args
    return lm.Centre(node.name, operands, _name(gamma), _name(beta), axes, groups)


# --- diagonal and sum ---------------------------------------------------------------------------------------------


def scale_shift(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    scale: Any = node.args[1]
    known = _weight_of(scale, captured)
    has_negative = scale is not None and (known is None or bool((known < 0).any()))
    return lm.Diagonal(node.name, operands, _name(scale), _name(node.args[2]), has_negative)


def add_or_sub(node: Node, captured: Captured, operands: Sequence[str]) -> lm.LinearMap:
    alpha: Any = node.kwargs.get("alpha", 1)
    return lm.Sum(node.name, operands, (1.0, float(-alpha if node.target is aten.sub.Tensor else alpha)))
