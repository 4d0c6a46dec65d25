"""THE table of secants: operation → how its change is split over what it reads.

linear      the operation's own transpose
midway      the tangent halfway: exact for whatever is of degree two at most in all that changes
bent        straight pieces and steps: (φ(x) − φ(x0)) / (x − x0)
smooth      the same, and the tangent halfway where x and x0 nearly meet
of_form     the same by a formula that loses no digits

A split is called with an operation, its arguments and its keywords, pairs in the place of what changes, and gives a
pair. Every one is exact: Σ slope · Δ over what an operation reads is the Δ of what it gives. What is not here is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deeptaylor.maps import ops
from deeptaylor.secant import attention, choices, composed, largest, products, softmax, unary
from deeptaylor.secant.pair import Pair, RefusedError, changes, midway
from deeptaylor.secant.products import linear, real
from deeptaylor.secant.unary import bent, of_form, smooth

__all__ = ["BENT", "FORMS", "KINKED", "LINEAR", "OF_SCORES", "SMOOTH", "split_of"]

aten = torch.ops.aten

LINEAR = (
    # elements are moved
    aten.view, aten._unsafe_view, aten.reshape, aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze,
    aten.view_as, aten.reshape_as, aten.permute, aten.transpose, aten.swapaxes, aten.swapdims, aten.t, aten.mT,
    aten.numpy_T, aten.movedim, aten.moveaxis, aten.expand, aten.expand_as, aten.repeat, aten.tile,
    aten.repeat_interleave, aten.slice, aten.select, aten.narrow, aten.index, aten.index_select, aten.gather, aten.roll,
    aten.flip, aten.pixel_shuffle, aten.pixel_unshuffle, aten.channel_shuffle, aten.constant_pad_nd, aten.pad,
    aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d, aten.replication_pad1d,
    aten.replication_pad2d, aten.replication_pad3d, aten.cat, aten.concat, aten.stack, aten.clone, aten.contiguous,
    aten.alias, aten.detach, aten.tril, aten.triu, aten.diagonal, aten.slice_scatter, aten.select_scatter, aten.unfold,
    aten.im2col, aten.col2im, aten.to, aten._to_copy, aten.type_as, ops.repeat_heads,
    # elements are summed, with fixed weights
    aten.add, aten.sub, aten.subtract, aten.rsub, aten.neg, aten.negative, aten.mean, aten.sum, aten.cumsum,
    aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d, aten.adaptive_avg_pool1d, aten.adaptive_avg_pool2d,
    aten.adaptive_avg_pool3d, aten._adaptive_avg_pool2d, aten._adaptive_avg_pool3d, aten.upsample_nearest1d,
    aten.upsample_nearest2d, aten.upsample_nearest3d, aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d, aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d,
    aten.upsample_bicubic2d, ops.scale_shift, ops.centre,
)  # fmt: skip

_QUADRATIC = (
    aten.linear, ops.linear, aten.conv1d, aten.conv2d, aten.conv3d, aten.conv_transpose1d, aten.conv_transpose2d,
    aten.conv_transpose3d, aten.addmm, aten.baddbmm, aten.bilinear,
)  # fmt: skip

BENT = (
    aten.relu, aten.relu6, aten.hardtanh, aten.clamp, aten.clamp_min, aten.clamp_max, aten.threshold,
    aten.prelu, aten._prelu_kernel, aten.rrelu, aten.hardshrink, aten.softshrink, aten.abs, aten.sign,
    aten.floor, aten.ceil, aten.round, aten.trunc,
)  # fmt: skip

SMOOTH = (
    aten.softplus, aten.log_sigmoid, aten.log_sigmoid_forward, aten.mish, aten.log1p, aten.expm1, aten.atan, aten.asinh,
    aten.sinh, aten.cosh,
)  # fmt: skip

KINKED = (aten.elu, aten.celu, aten.selu)

FORMS = {
    aten.exp: unary.exp, aten.log: unary.log, aten.tanh: unary.tanh, aten.sigmoid: unary.sigmoid, aten.silu: unary.silu,
    aten.leaky_relu: unary.leaky_relu, aten.hardsigmoid: unary.hardsigmoid, aten.hardswish: unary.hardswish,
    aten.erf: unary.erf, aten.gelu: unary.gelu, aten.square: unary.square,
    aten.sqrt: unary.sqrt, aten.sin: unary.sin,
    aten.cos: unary.cos,
}  # fmt: skip


def _of_first(split: Callable[..., Any]) -> Callable[..., Any]:
    """A split that takes but the first argument to change: where another does, it is refused."""

    def checked(op: Any, args: Any, kwargs: Any) -> Any:
        first, *rest = args
        if not isinstance(first, Pair) or changes((rest, kwargs)):
            raise RefusedError("only the first value that it reads may depend on the input, and another does")
        return split(op, (real(first), *rest), kwargs)

    return checked


_OF_FIRST: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(BENT, bent),
    **dict.fromkeys(SMOOTH, smooth()),
    **dict.fromkeys(KINKED, smooth(kink=True)),
    **{operation: of_form(slope) for operation, slope in FORMS.items()},
    aten.reciprocal: products.one_over,
    aten.rsqrt: products.one_over_root,
    **dict.fromkeys((aten.softmax, aten._softmax), softmax.softmax),
    **dict.fromkeys((aten.log_softmax, aten._log_softmax), softmax.log_softmax),
    aten.logsumexp: softmax.log_sum_exp,
    composed.layer_norm: composed.normed,
    ops.divide_by_std: composed.divide_by_std,
    ops.divide_by_rms: composed.divide_by_rms,
    aten.var: midway,
    aten.std: composed.deviation,
    aten.linalg_vector_norm: composed.length,
    ops.lp_pool: composed.lp_pool,
    ops.max_pool: largest.pool,
    ops.adaptive_max_pool: largest.adaptive_pool,
    aten.amax: largest.along(1),
    aten.amin: largest.along(-1),
    **dict.fromkeys((aten.sort, aten.topk), choices.ordered),
}

TABLE: dict[Any, Callable[..., Any]] = {
    **{operation: _of_first(split) for operation, split in _OF_FIRST.items()},
    **dict.fromkeys(LINEAR, linear),
    **dict.fromkeys(_QUADRATIC, products.layer),
    aten.pow: products.power,
    aten.mul: products.multiply,
    aten.multiply: products.multiply,
    aten.div: products.divide,
    aten.divide: products.divide,
    aten.true_divide: products.divide,
    **dict.fromkeys((aten.matmul, aten.mm, aten.bmm, aten.mv, aten.dot), products.matmul),
    **dict.fromkeys((aten.einsum, aten.tensordot), products.contract),
    ops.attention_weights: attention.attention_weights,
    attention.attend: attention.attended,
    attention.attend_keys: attention.attended_keys,
    products.picked_layer: products.layer_of_picked,
    aten.maximum: largest.of_two(1),
    aten.minimum: largest.of_two(-1),
    **dict.fromkeys((aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne), choices.compare),
    **dict.fromkeys((aten.logical_not, aten.bitwise_not), choices.turned),
    **dict.fromkeys((aten.logical_and, aten.bitwise_and, aten.__and__), choices.both),
    **dict.fromkeys((aten.logical_or, aten.bitwise_or, aten.__or__), choices.either),
    **dict.fromkeys((aten.to, aten._to_copy), choices.convert),
    aten.where: choices.where,
    aten.masked_fill: choices.fill,
    aten.embedding: choices.embedding,
}


OF_SCORES: dict[Any, Callable[..., Any]] = {  # of scores that go to a softmax alone
    aten.where: choices.where_of_scores,
    aten.masked_fill: choices.fill_of_scores,
}


def split_of(operation: Any) -> Callable[..., Any] | None:
    """How an operation's change is split; None where that is not known."""
    return TABLE.get(operation) or TABLE.get(getattr(operation, "overloadpacket", None))
