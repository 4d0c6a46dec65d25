"""Build Caffe's layers as torch modules, each from its fields in the ``.prototxt`` and the shapes of its inputs.

Shapes have the batch as their first axis. No layer may mix it with other axes, so that a network takes any batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.models.caffe.caffe_files import CaffeError, Fields

__all__ = ["LAYER_KINDS", "CaffeBatchNorm", "InnerProduct", "LayerKind", "Shape"]


# --- modules that torch does not have ---------------------------------------------------------------------------------


class InnerProduct(nn.Linear):
    """A linear layer on all axes from one on, flattened."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: int, transposed: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.axis, self.transposed = axis, transposed  # transposed: in the file, not here

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.flatten(x, self.axis))


class CaffeBatchNorm(nn.BatchNorm2d):
    """Normalisation of the second axis by learned mean and variance, for any shape; without factor and shift."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps=eps, affine=False)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        return


class Scale(nn.Module):
    """Multiply each channel by a factor and add a shift, if any; the factor may be a second input."""

    def __init__(self, shape: tuple[int, ...] | None, bias: bool, trailing: int) -> None:
        super().__init__()
        self.trailing = trailing  # axes after those of the factor
        self.weight = None if shape is None else nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if bias and shape is not None else None

    def reset_parameters(self) -> None:
        """Set factors to one and shifts to zero."""
        for values, start in ((self.weight, 1.0), (self.bias, 0.0)):
            if values is not None:
                nn.init.constant_(values, start)

    def forward(self, x: Tensor, by: Tensor | None = None) -> Tensor:
        factor = self.weight if by is None else by
        assert factor is not None
        y = x * self._align(factor)
        return y if self.bias is None else y + self._align(self.bias)

    def _align(self, t: Tensor) -> Tensor:
        return t.reshape(t.shape + (1,) * self.trailing)


class WideMaxPool(nn.Module):
    """Max pooling with more padding than half a window, which torch does not support."""

    def __init__(self, kernel: tuple[int, int], stride: tuple[int, int], padding: Sequence[int]) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, list(padding)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.pad(x, self.padding, value=torch.finfo(x.dtype).min), self.kernel, self.stride)


class WithinChannelNorm(nn.Module):
    """x / (1 + α · mean of x² over a square around each pixel)^β."""

    def __init__(self, size: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.size, self.alpha, self.beta = size, alpha, beta

    def forward(self, x: Tensor) -> Tensor:
        mean = F.avg_pool2d(x * x, self.size, stride=1, padding=self.size // 2)
        return x / (1 + self.alpha * mean).pow(self.beta)


class Concat(nn.Module):
    """Concatenate the inputs along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.axis)


class Eltwise(nn.Module):
    """Sum (each input times its coefficient), product or maximum of the inputs."""

    def __init__(self, operation: str, coefficients: Sequence[float]) -> None:
        super().__init__()
        self.operation, self.coefficients = operation, tuple(coefficients)

    def forward(self, *parts: Tensor) -> Tensor:
        if self.coefficients:
            parts = tuple(x if c == 1 else c * x for c, x in zip(self.coefficients, parts, strict=True))
        if self.operation == "MAX":
            return torch.stack(parts, 1).amax(1)  # a pooling over the inputs, which has a rule
        y = parts[0]
        for x in parts[1:]:
            y = y + x if self.operation == "SUM" else y * x
        return y


class SplitAxis(nn.Module):
    """Split the input along an axis into pieces of given sizes."""

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.axis, self.sizes = axis, list(sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, self.sizes, self.axis)


class Split(nn.Module):
    """Return the input several times."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,) * self.copies


class ReshapeSample(nn.Module):
    """Reshape each sample."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


class Power(nn.Module):
    """(shift + scale · x)^power."""

    def __init__(self, shift: float, scale: float, power: float) -> None:
        super().__init__()
        self.shift, self.scale, self.power = shift, scale, power

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.scale == 1 else x * self.scale
        x = x if self.shift == 0 else x + self.shift
        return x if self.power == 1 else x.pow(self.power)


class AbsVal(nn.Module):
    """|x|."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


Shape: TypeAlias = tuple[int, ...]
Pair: TypeAlias = tuple[int, int]

_LONGEST = 2**16  # pixels: more than any image has


# --- fields of a layer ------------------------------------------------------------------------------------------------


def _pair(p: Fields, name: str, default: int | None, lowest: int, short: str = "") -> Pair:
    """Return height and width, given as `name` once or twice, or as `short`_h and `short`_w."""
    tall, wide = f"{short or name}_h", f"{short or name}_w"
    sides = p.integers(name, lowest)
    if p.has(tall) or p.has(wide):
        if sides or not (p.has(tall) and p.has(wide)):
            raise CaffeError(f"{p.where}: give {name!r}, or {tall!r} and {wide!r}.")
        sides = p.integers(tall, lowest) + p.integers(wide, lowest)
    if not sides and default is not None:
        sides = [default]
    if len(sides) not in (1, 2):
        raise CaffeError(f"{p.where}: {name!r} should be given for an image's two axes, got {sides or 'nothing'}.")
    if max(sides) > _LONGEST:
        raise CaffeError(f"{p.where}: {name!r} is {max(sides):,}, above {_LONGEST:,}.")
    return sides[0], sides[-1]


def _axis(p: Fields, name: str, default: int, shape: Shape) -> int:
    """Return an axis, counted from the front; raise a CaffeError for the axis of the batch."""
    axis = p.integer(name, default, lowest=-len(shape))
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 < axis < len(shape):
        raise CaffeError(
            f"{p.where}: {name!r} is {axis}; of the shape {shape} the axes 1 to {len(shape) - 1} are supported."
        )
    return axis


def _require_images(p: Fields, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of the first input; raise a CaffeError if it is not a batch of images."""
    if len(shapes[0]) != 4:
        raise CaffeError(f"{p.where}: reads images (batch, channels, height, width), got the shape {shapes[0]}.")
    return shapes[0]


def _require_equal(p: Fields, shapes: Sequence[Shape]) -> None:
    if len(set(shapes)) > 1:
        raise CaffeError(f"{p.where}: its inputs have different shapes: {', '.join(map(str, shapes))}.")


# --- detection --------------------------------------------------------------------------------------------------------


def _convolution(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("convolution_param")
    channels = _require_images(p, shapes)[1]
    if p.integer("axis", 1) != 1:
        raise CaffeError(f"{p.where}: convolutions over other axes than an image's are not supported.")
    outputs, groups = p.integer("num_output", 0), p.integer("group", 1, lowest=1)
    if outputs == 0 or channels % groups or outputs % groups:
        raise CaffeError(f"{p.where}: {channels} to {outputs} channels in {groups} groups is not possible.")
    return nn.Conv2d(
        channels,
        outputs,
        _pair(p, "kernel_size", None, 1, short="kernel"),
        stride=_pair(p, "stride", 1, 1),
        padding=_pair(p, "pad", 0, 0),
        dilation=_pair(p, "dilation", 1, 1),
        groups=groups,
        bias=p.flag("bias_term", True),
    )


def _inner_product(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("inner_product_param")
    axis, outputs = _axis(p, "axis", 1, shapes[0]), p.integer("num_output", 0)
    if outputs == 0:
        raise CaffeError(f"{p.where}: it has no outputs.")
    inputs = math.prod(shapes[0][axis:])
    return InnerProduct(inputs, outputs, p.flag("bias_term", True), axis, p.flag("transpose", False))


def _batch_norm(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("batch_norm_param")
    if not p.flag("use_global_stats", True):
        raise CaffeError(
            f"{p.where}: normalises by the batch it sees (use_global_stats: false); that is not a function."
        )
    if len(shapes[0]) < 2:
        raise CaffeError(f"{p.where}: its input has no channels.")
    return CaffeBatchNorm(shapes[0][1], p.number("eps", 1e-5))


def _scale(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("scale_param")
    shape = shapes[0]
    bias = p.flag("bias_term", False)
    if len(shapes) == 2:
        covered = len(shapes[1])
        if p.integer("axis", 1) != 0 or bias or shapes[1] != shape[:covered]:
            raise CaffeError(f"{p.where}: a factor of the shape {shapes[1]} for {shape} needs axis: 0 and no bias.")
        return Scale(None, False, len(shape) - covered)
    axis = _axis(p, "axis", 1, shape)
    count = p.integer("num_axes", 1, lowest=-1)
    end = len(shape) if count == -1 else axis + count
    if len(shapes) > 2 or end > len(shape):
        raise CaffeError(f"{p.where}: {count} axes from {axis} on are more than the shape {shape} has.")
    return Scale(shape[axis:end], bias, len(shape) - end)


def _prelu(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    shared = layer.one("prelu_param").flag("channel_shared", False)
    return nn.PReLU(1 if shared or len(shapes[0]) < 2 else shapes[0][1])


# --- pooling and normalisation ----------------------------------------------------------------------------------------


def _count_windows(p: Fields, size: int, k: int, s: int, pad: int, up: bool) -> int:
    """Count Caffe's windows along an axis, rounded up; the last must begin in the image or the padding before it."""
    steps = size + 2 * pad - k
    count = (-(-steps // s) if up else steps // s) + 1
    if (count - 1) * s >= size + pad and not pad:
        raise CaffeError(f"{p.where}: its last window lies outside the image (size {size}, kernel {k}, stride {s}).")
    return count - 1 if (count - 1) * s >= size + pad else count


def _pooling(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("pooling_param")
    sizes = _require_images(p, shapes)[2:]
    how = p.choice("pool", "MAX", ("MAX", "AVE", "STOCHASTIC"))
    if how == "STOCHASTIC":
        raise CaffeError(f"{p.where}: stochastic pooling is not a function.")
    stride, pad = _pair(p, "stride", 1, 1), _pair(p, "pad", 0, 0)
    if p.flag("global_pooling", False):
        if stride != (1, 1) or pad != (0, 0):
            raise CaffeError(f"{p.where}: global pooling has neither stride nor padding.")
        return nn.AdaptiveAvgPool2d(1) if how == "AVE" else nn.AdaptiveMaxPool2d(1)
    kernel = _pair(p, "kernel_size", None, 1, short="kernel")
    up = p.choice("round_mode", "CEIL", ("CEIL", "FLOOR")) == "CEIL"
    axes = list(zip(sizes, kernel, stride, pad, strict=True))
    if any(b >= k for _, k, _, b in axes):
        raise CaffeError(f"{p.where}: the padding {pad} is not smaller than the kernel {kernel}.")
    counts = [_count_windows(p, *axis, up) for axis in axes]
    if min(counts) < 1:
        raise CaffeError(f"{p.where}: the kernel {kernel} is larger than the image {sizes}.")
    if all(2 * b <= k for _, k, _, b in axes):
        if how == "AVE":
            return nn.AvgPool2d(kernel, stride, pad, ceil_mode=up)
        return nn.MaxPool2d(kernel, stride, pad, ceil_mode=up)
    if how == "AVE":
        raise CaffeError(f"{p.where}: averages with a padding {pad} above half the kernel {kernel} are not supported.")
    margins = [(b, max(0, (n - 1) * s + k - size - b)) for (size, k, s, b), n in zip(axes, counts, strict=True)]
    return WideMaxPool(kernel, stride, [*margins[1], *margins[0]])


def _lrn(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("lrn_param")
    _require_images(p, shapes)
    size = p.integer("local_size", 5)
    if size % 2 == 0 or size > _LONGEST:
        raise CaffeError(f"{p.where}: 'local_size' should be odd and at most {_LONGEST:,}, got {size}.")
    alpha, beta = p.number("alpha", 1.0), p.number("beta", 0.75)
    if p.choice("norm_region", "ACROSS_CHANNELS", ("ACROSS_CHANNELS", "WITHIN_CHANNEL")) == "WITHIN_CHANNEL":
        return WithinChannelNorm(size, alpha, beta)
    return nn.LocalResponseNorm(size, alpha, beta, p.number("k", 1.0))


# --- several inputs, several outputs, other shapes --------------------------------------------------------------------


def _concat(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("concat_param")
    axis = _axis(p, "axis" if p.has("axis") else "concat_dim", 1, shapes[0])
    _require_equal(p, [shape[:axis] + shape[axis + 1 :] for shape in shapes])
    return Concat(axis)


def _eltwise(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("eltwise_param")
    _require_equal(p, shapes)
    operation, coefficients = p.choice("operation", "SUM", ("PROD", "SUM", "MAX")), p.numbers("coeff")
    if coefficients and (operation != "SUM" or len(coefficients) != len(shapes)):
        raise CaffeError(f"{p.where}: {len(coefficients)} coefficients for a {operation} of {len(shapes)} inputs.")
    return Eltwise(operation, coefficients)


def _slice(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("slice_param")
    axis = _axis(p, "axis" if p.has("axis") else "slice_dim", 1, shapes[0])
    size, pieces = shapes[0][axis], len(layer.strings("top"))
    points = p.integers("slice_point") or [size * k // pieces for k in range(1, pieces)]
    edges = [0, *points, size]
    sizes = [b - a for a, b in pairwise(edges)]
    if len(sizes) != pieces or min(sizes) < 1 or (not p.has("slice_point") and size % pieces):
        raise CaffeError(f"{p.where}: {size} channels cannot be cut at {points} into {pieces} pieces.")
    return SplitAxis(axis, sizes)


def _reshape(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("reshape_param")
    shape, dims = shapes[0], p.one("shape").integers("dim", lowest=-1)
    axis = p.integer("axis", 0, lowest=-len(shape) - 1)
    axis = axis + len(shape) + 1 if axis < 0 else axis
    count = p.integer("num_axes", -1, lowest=-1)
    end = len(shape) if count == -1 else axis + count
    wrong = CaffeError(f"{p.where}: the shape {shape} cannot become {dims} (axis {axis}, num_axes {count}).")
    if end > len(shape) or axis > len(shape) or len(dims) > 8 or dims.count(-1) > 1:
        raise wrong
    if any(d == 0 and axis + k >= len(shape) for k, d in enumerate(dims)):
        raise wrong
    wanted = [*shape[:axis], *[shape[axis + k] if d == 0 else d for k, d in enumerate(dims)], *shape[end:]]
    known = math.prod(d for d in wanted if d != -1)
    full = [math.prod(shape) // known if d == -1 else d for d in wanted]
    if math.prod(full) != math.prod(shape):
        raise wrong
    if full[0] != shape[0]:
        raise CaffeError(f"{p.where}: {shape} to {tuple(full)} mixes the samples of a batch.")
    return ReshapeSample(tuple(full[1:]))


def _flatten(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("flatten_param")
    first, last = _axis(p, "axis", 1, shapes[0]), _axis(p, "end_axis", -1, shapes[0])
    if last < first:
        raise CaffeError(f"{p.where}: 'end_axis' {last} comes before 'axis' {first}.")
    return nn.Flatten(first, last)


# --- element by element -----------------------------------------------------------------------------------------------


def _relu(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    slope = layer.one("relu_param").number("negative_slope", 0.0)
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


def _power(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("power_param")
    return Power(p.number("shift", 0.0), p.number("scale", 1.0), p.number("power", 1.0))


def _dropout(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    p = layer.one("dropout_param")
    ratio = p.number("dropout_ratio", 0.5)
    if not 0 <= ratio < 1:
        raise CaffeError(f"{p.where}: 'dropout_ratio' should be in [0, 1), got {ratio}.")
    return nn.Dropout(ratio)


def _softmax(layer: Fields, shapes: Sequence[Shape]) -> nn.Module:
    return nn.Softmax(_axis(layer.one("softmax_param"), "axis", 1, shapes[0]))


class LayerKind(NamedTuple):
    """The function that builds a layer, and the number of inputs the layer takes."""

    build: Callable[[Fields, Sequence[Shape]], nn.Module]
    fewest: int = 1
    most: int = 1


LAYER_KINDS = {
    "AbsVal": LayerKind(lambda layer, shapes: AbsVal()),
    "BatchNorm": LayerKind(_batch_norm),
    "Concat": LayerKind(_concat, most=10_000),
    "Convolution": LayerKind(_convolution),
    "Dropout": LayerKind(_dropout),
    "ELU": LayerKind(lambda layer, shapes: nn.ELU(layer.one("elu_param").number("alpha", 1.0))),
    "Eltwise": LayerKind(_eltwise, fewest=2, most=10_000),
    "Flatten": LayerKind(_flatten),
    "InnerProduct": LayerKind(_inner_product),
    "LRN": LayerKind(_lrn),
    "PReLU": LayerKind(_prelu),
    "Pooling": LayerKind(_pooling),
    "Power": LayerKind(_power),
    "ReLU": LayerKind(_relu),
    "Reshape": LayerKind(_reshape),
    "Scale": LayerKind(_scale, most=2),
    "Sigmoid": LayerKind(lambda layer, shapes: nn.Sigmoid()),
    "Slice": LayerKind(_slice),
    "Softmax": LayerKind(_softmax),
    "Split": LayerKind(lambda layer, shapes: Split(len(layer.strings("top")))),
    "TanH": LayerKind(lambda layer, shapes: nn.Tanh()),
}
