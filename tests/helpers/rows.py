"""An example of every operation in the table that has a flow or a range: its arguments, the first of them data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deeptaylor.maps import ops
from graphs import Fixed

aten = torch.ops.aten


def drawn(*shape: int) -> Tensor:
    """Numbers of both signs, the same at every call; nowhere near zero, where a few functions have no value."""
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x + 0.05 * x.sign()


def fixed(*shape: int) -> Fixed:
    return Fixed(drawn(*shape).flip(0))


LINE, IMAGE, VOLUME = drawn(2, 4, 6), drawn(2, 4, 6, 6), drawn(2, 3, 4, 4, 4)
ONE, OTHER, ABOVE = LINE[:, :1], LINE.flip(1) * 1.5, LINE.abs()
MASK, PICKS = Fixed(LINE[0] > 0), Fixed(torch.tensor([3, 0, 0]))
SHAPED = {1: LINE, 2: IMAGE, 3: VOLUME}

MOVES = [
    *[(t, LINE, [2, 24]) for t in (aten.view.default, aten._unsafe_view.default, aten.reshape.default)],
    (aten.flatten.using_ints, LINE, 1, 2),
    (aten.unflatten.int, LINE, 1, [2, 2]),
    (aten.squeeze.dim, ONE, 1),
    (aten.squeeze.dims, ONE, [1]),
    (aten.squeeze.default, ONE),
    (aten.unsqueeze.default, LINE, 1),
    *[(t, LINE, drawn(2, 24)) for t in (aten.view_as.default, aten.reshape_as.default)],
    (aten.permute.default, IMAGE, [0, 2, 3, 1]),
    *[(t, IMAGE, 1, -1) for t in (aten.transpose.int, aten.swapaxes.default)],
    (aten.t.default, drawn(2, 3)),
    (aten.mT.default, LINE),
    (aten.numpy_T.default, drawn(2, 3)),
    (aten.movedim.int, IMAGE, 1, -1),
    (aten.movedim.intlist, IMAGE, [1, 2], [3, 1]),
    (aten.expand.default, ONE, [-1, 4, -1]),
    (aten.expand_as.default, ONE, LINE),
    *[(t, LINE, [1, 2, 3]) for t in (aten.repeat.default, aten.tile.default)],
    (aten.repeat_interleave.self_int, LINE, 2, 1),
    (aten.slice.Tensor, LINE, 2, 1, 6, 2),
    (aten.select.int, LINE, 1, -1),
    (aten.narrow.default, LINE, 2, 1, 3),
    (aten.index.Tensor, LINE, [None, PICKS]),
    (aten.index_select.default, LINE, 1, PICKS),
    (aten.gather.default, LINE, 1, Fixed(torch.arange(24).reshape(2, 2, 6) % 4)),
    (aten.roll.default, LINE, [1], [2]),
    (aten.flip.default, LINE, [1, 2]),
    (aten.pixel_shuffle.default, IMAGE, 2),
    (aten.pixel_unshuffle.default, IMAGE, 3),
    (aten.channel_shuffle.default, IMAGE, 2),
    (aten.constant_pad_nd.default, LINE, [1, 2], 0.5),
    (aten.pad.default, LINE, [2, 1], "reflect"),
    *[(getattr(aten, f"reflection_pad{n}d").default, x, [1, 0] * n) for n, x in SHAPED.items()],
    *[(getattr(aten, f"replication_pad{n}d").default, x, [1, 2] * n) for n, x in SHAPED.items()],
    (ops.repeat_heads, IMAGE, 2),
]
JOINS = [
    *[(t, [LINE, OTHER], 1) for t in (aten.cat.default, aten.concat.default, aten.stack.default)],
    (aten.where.self, MASK, LINE, OTHER),
    (aten.masked_fill.Scalar, LINE, MASK, 0.25),
    *[(t, LINE, OTHER) for t in (aten.maximum.default, aten.minimum.default)],
]
LAYERS = [
    (aten.linear.default, LINE, fixed(3, 6), fixed(3)),
    *[(getattr(aten, f"conv{n}d").default, x, fixed(5, x.shape[1], *[3] * n), fixed(5)) for n, x in SHAPED.items()],
    (aten.conv_transpose1d.default, LINE, fixed(4, 5, 3), fixed(5)),
    (aten.conv_transpose2d.input, IMAGE, fixed(4, 5, 2, 2), fixed(5), [2, 2]),
    (aten.conv_transpose3d.input, VOLUME, fixed(3, 5, 2, 2, 2), fixed(5)),
    (ops.centre, LINE, fixed(6), fixed(6), 1, 0),
    (ops.scale_shift, LINE, fixed(6), fixed(6)),
]
AVERAGES = [
    *[(getattr(aten, f"avg_pool{n}d").default, x, [2] * n, [1] * n, [1] * n) for n, x in SHAPED.items()],
    *[(getattr(aten, f"adaptive_avg_pool{n}d").default, x, [3] * n) for n, x in SHAPED.items()],
    *[(getattr(aten, f"_adaptive_avg_pool{n}d").default, x, [1] * n) for n, x in SHAPED.items() if n > 1],
    *[(getattr(aten, f"upsample_nearest{n}d").vec, x, None, [2.0] * n) for n, x in SHAPED.items()],
    *[(getattr(aten, f"_upsample_nearest_exact{n}d").vec, x, [7] * n, None) for n, x in SHAPED.items()],
    (aten.upsample_linear1d.vec, LINE, [9], False, None),
    (aten.upsample_bilinear2d.vec, IMAGE, None, True, [2.0, 1.5]),
    (aten.upsample_trilinear3d.vec, VOLUME, [5, 3, 4], False, None),
    (aten.mean.dim, LINE, [1, 2]),
    (aten.sum.dim_IntList, LINE, [2], True),
]
PRODUCTS = [
    (aten.add.Tensor, LINE, OTHER),
    (aten.sub.Tensor, LINE, OTHER),
    (aten.matmul.default, LINE, drawn(2, 6, 3)),
    (aten.mm.default, drawn(2, 3), drawn(3, 4)),
    (aten.bmm.default, LINE, drawn(2, 6, 3)),
    (aten.einsum.default, "bij,bjk->bik", [LINE, drawn(2, 6, 3)]),
]
AFFINE = [*MOVES, *JOINS, *LAYERS, *AVERAGES, *PRODUCTS]

ELEMENTWISE = [
    *[
        (t, LINE)
        for t in (
            aten.relu.default,
            aten.relu6.default,
            aten.hardtanh.default,
            aten.leaky_relu.default,
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
            aten.hardshrink.default,
            aten.softshrink.default,
            aten.abs.default,
            aten.exp.default,
            aten.expm1.default,
            aten.erf.default,
            aten.sin.default,
            aten.cos.default,
            aten.atan.default,
            aten.asinh.default,
            aten.square.default,
            aten.sign.default,
            aten.reciprocal.default,
        )
    ],
    *[(t, ABOVE) for t in (aten.log.default, aten.log1p.default, aten.sqrt.default, aten.rsqrt.default)],
    (aten.log_sigmoid_forward.default, LINE),
    *[(t, LINE, -0.5, 0.5) for t in (aten.clamp.default, aten.threshold.default)],
    (aten.clamp_min.default, LINE, -0.5),
    (aten.clamp_max.default, LINE, 0.5),
    (aten.prelu.default, LINE, Fixed(torch.tensor([0.25], dtype=torch.float64))),
    (aten._prelu_kernel.default, LINE, Fixed(torch.tensor([-0.25], dtype=torch.float64))),
    (aten.softmax.int, LINE, -1),
    (aten._softmax.default, LINE, -1, False),
    (aten.pow.Tensor_Scalar, LINE, 2),
    (aten.mul.Tensor, LINE, OTHER),
    (aten.div.Tensor, LINE, OTHER),
    (ops.divide_by_std, LINE, 1e-5, 1, 0),
    (ops.divide_by_rms, LINE, 1e-5, 1),
    (aten.embedding.default, Fixed(drawn(7, 3)), torch.tensor([[0, 6], [2, 2]])),
    (ops.max_pool, IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False),
    (ops.adaptive_max_pool, IMAGE, [3, 3]),
    (ops.lp_pool, ABOVE, 3.0, [2], [2], False),
    (aten.amax.default, LINE, [1]),
]
# In gates and denominators, and beside the data; a row may be for all overloads of a name.
RANGED = [
    (aten.add.Scalar, LINE, 0.5),
    (aten.sub.Scalar, LINE, 0.5),
    (aten.mul.Scalar, LINE, -2.0),
    (aten.div.Scalar, LINE, -2.0),
    (aten.neg.default, LINE),
    (aten.amin.default, LINE, [1]),
    (aten.mean.default, LINE),
    (aten.sum.default, LINE),
    (aten.cumsum.default, ABOVE, 1),
    (aten.pow.Tensor_Tensor, ABOVE, OTHER),
    (aten.pow.Scalar, 2.0, LINE),
    (aten.var.correction, LINE),
    (aten.std.correction, LINE),
    (aten.linalg_vector_norm.default, LINE),
    (ops.attention_weights, IMAGE, IMAGE.flip(2), None, True, None, False),
    (aten.to.dtype, LINE, torch.int64),
    (aten.to.dtype_layout, LINE),
    (aten.to.device, LINE, torch.device("cpu"), torch.float64),
    (aten.to.other, LINE, fixed(1)),
    (aten._to_copy.default, LINE),
    (aten.zeros.default, [2, 3]),
    (aten.ones.default, [2, 3]),
    (aten.full.default, [2, 3], -0.5),
    (aten.zeros_like.default, LINE),
    (aten.ones_like.default, LINE),
    (aten.full_like.default, LINE, 3.0),
    (aten.new_zeros.default, LINE, [2, 3]),
    (aten.new_ones.default, LINE, [2, 3]),
    (aten.new_full.default, LINE, [2, 3], 3.0),
    (aten.rand.default, [2, 3]),
    (aten.rand_like.default, LINE),
    (aten.scalar_tensor.default, 2.0),
    (aten.sym_size.int, LINE, 1),
]  # fmt: skip
EXAMPLES: list[tuple[Any, ...]] = [*AFFINE, *ELEMENTWISE, *RANGED]


def label(example: tuple[Any, ...]) -> str:
    """An example's operation, by its short name."""
    return str(example[0]).removeprefix("aten.") if hasattr(example[0], "_schema") else str(example[0].__name__)
