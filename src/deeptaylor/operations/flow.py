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

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import bound_args
from deeptaylor.graph.places import Node
from deeptaylor.maps import linear_map as lm
from deeptaylor.maps import ops
from deeptaylor.operations import build

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
        Flow("structural", build.reshape),
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
        Flow("structural", build.permute),
    ),
    aten.movedim.int: Flow("structural", build.movedim),
    aten.movedim.intlist: Flow("structural", build.movedim),
    aten.expand.default: Flow("structural", build.expand),
    aten.expand_as.default: Flow("structural", build.expand),
    aten.repeat.default: Flow("structural", build.repeat),
    aten.tile.default: Flow("structural", build.repeat),
    aten.repeat_interleave.self_int: Flow("structural", build.repeat_interleave),
    ops.repeat_heads: Flow("structural", build.repeat_interleave),
    aten.cat.default: Flow("structural", build.cat),
    aten.concat.default: Flow("structural", build.cat),
    aten.stack.default: Flow("structural", build.stack),
    aten.slice.Tensor: Flow("structural", build.slicing),
    aten.select.int: Flow("structural", build.select),
    aten.narrow.default: Flow("structural", build.narrow),
    aten.index.Tensor: Flow("structural", build.index),
    aten.index_select.default: Flow("structural", build.index),
    aten.gather.default: Flow("structural", build.gather),
    aten.roll.default: Flow("structural", build.roll),
    aten.flip.default: Flow("structural", build.flip),
    aten.constant_pad_nd.default: Flow("structural", build.pad),
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
        Flow("structural", build.pad_by_index),
    ),
    aten.pixel_shuffle.default: Flow("structural", build.pixel_shuffle),
    aten.pixel_unshuffle.default: Flow("structural", build.pixel_shuffle),
    aten.channel_shuffle.default: Flow("structural", build.channel_shuffle),
    aten.masked_fill.Scalar: Flow("structural", build.keep),
    aten.where.self: Flow("structural", build.keep),
    aten.linear.default: Flow("mixing", build.linear),
    **dict.fromkeys(
        [
            aten.conv1d.default,
            aten.conv2d.default,
            aten.conv3d.default,
            aten.conv_transpose1d.default,
            aten.conv_transpose2d.input,
            aten.conv_transpose3d.input,
        ],
        Flow("mixing", build.convolution),
    ),
    **dict.fromkeys(
        [aten.matmul.default, aten.mm.default, aten.bmm.default, aten.einsum.default, aten.mul.Tensor], Flow("product")
    ),
    aten.div.Tensor: Flow("quotient"),
    **dict.fromkeys(
        [aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default], Flow("mixing", build.avg_pool)
    ),
    **dict.fromkeys(
        [
            aten.adaptive_avg_pool1d.default,
            aten.adaptive_avg_pool2d.default,
            aten.adaptive_avg_pool3d.default,
            aten._adaptive_avg_pool2d.default,
            aten._adaptive_avg_pool3d.default,
        ],
        Flow("mixing", build.adaptive_avg_pool),
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
        Flow("mixing", build.interpolate),
    ),
    aten.mean.dim: Flow("mixing", build.reduce),
    aten.sum.dim_IntList: Flow("mixing", build.reduce),
    ops.centre: Flow("mixing", build.centre),
    ops.scale_shift: Flow("diagonal", build.scale_shift),
    aten.add.Tensor: Flow("sum", build.add_or_sub),
    aten.sub.Tensor: Flow("sum", build.add_or_sub),
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
