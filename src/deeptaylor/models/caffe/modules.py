"""What Caffe computes and no torch module does alike, as torch modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = [
    "AbsVal",
    "BatchNorm",
    "Concat",
    "Eltwise",
    "InnerProduct",
    "Power",
    "Reshape",
    "Scale",
    "Slice",
    "Split",
    "WideMaxPool",
    "WithinChannelNorm",
]


class InnerProduct(nn.Linear):
    """A linear layer on everything from one axis on."""

    def __init__(self, inputs: int, outputs: int, bias: bool, axis: int, transposed: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.axis, self.transposed = axis, transposed  # transposed: in the file, not here

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.flatten(x, self.axis))


class BatchNorm(nn.BatchNorm2d):
    """Mean and variance as learned, over the second axis of any shape; Caffe's has no factor and no shift."""

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__(channels, eps=eps, affine=False)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        return


class Scale(nn.Module):
    """Each channel times a factor, plus a shift if there is one; the factor may be a second input."""

    def __init__(self, shape: tuple[int, ...] | None, bias: bool, trailing: int) -> None:
        super().__init__()
        self.trailing = trailing  # axes after those of the factor
        self.weight = None if shape is None else nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if bias and shape is not None else None

    def reset_parameters(self) -> None:
        for values, start in ((self.weight, 1.0), (self.bias, 0.0)):
            if values is not None:
                nn.init.constant_(values, start)

    def forward(self, x: Tensor, by: Tensor | None = None) -> Tensor:
        factor = self.weight if by is None else by
        assert factor is not None
        y = x * self._wide(factor)
        return y if self.bias is None else y + self._wide(self.bias)

    def _wide(self, t: Tensor) -> Tensor:
        return t.reshape(t.shape + (1,) * self.trailing)


class WideMaxPool(nn.Module):
    """Max pooling with more padding than half a window, which torch's does not take."""

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
    """Its inputs side by side along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.axis)


class Eltwise(nn.Module):
    """The sum (each input with its coefficient), product or maximum of its inputs."""

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


class Slice(nn.Module):
    """Its input in pieces along an axis."""

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.axis, self.sizes = axis, list(sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, self.sizes, self.axis)


class Split(nn.Module):
    """The same tensor under several names."""

    def __init__(self, copies: int) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,) * self.copies


class Reshape(nn.Module):
    """Every sample in another shape."""

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
