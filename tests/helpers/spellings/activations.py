"""Activations, written otherwise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from network_modules import Clamp
from spellings.table import Spelled, simple, spelling

simple("relu", nn.ReLU, "F.relu", F.relu)
simple("relu", nn.ReLU, "clamp(min=0)", lambda x: x.clamp(min=0))
simple("relu", nn.ReLU, "clamp_min", lambda x: torch.clamp_min(x, 0.0))
simple("relu", nn.ReLU, "maximum", lambda x: torch.maximum(x, torch.zeros(()).to(x)))
simple("relu", nn.ReLU, "maximum of a tensor of zeros", lambda x: torch.max(x, torch.zeros_like(x)))
simple("relu", nn.ReLU, "x · (x > 0)", lambda x: x * (x > 0))
simple("relu", nn.ReLU, "x · (x > 0) as numbers", lambda x: x * (x > 0).to(x.dtype))
simple("relu", nn.ReLU, "threshold", lambda x: F.threshold(x, 0.0, 0.0))
simple("relu", nn.ReLU, "where", lambda x: torch.where(x > 0, x, 0.0))
simple("relu", nn.ReLU, "where, zeros first", lambda x: torch.where(x <= 0, torch.zeros_like(x), x))
simple("relu", nn.ReLU, "masked_fill", lambda x: x.masked_fill(x < 0, 0.0))
simple("relu", nn.ReLU, "leaky with slope 0", lambda x: F.leaky_relu(x, 0.0))
simple("relu", nn.ReLU, "(x + |x|) / 2", lambda x: (x + x.abs()) / 2)
simple("relu", nn.ReLU, "twice", lambda x: F.relu(F.relu(x)))
simple("relu", nn.ReLU, "in place", lambda x: (x * 1).relu_())
simple("relu", nn.ReLU, "clip", lambda x: torch.clip(x, 0.0))
simple("relu", nn.ReLU, "clamp up to infinity", lambda x: x.clamp(0.0, math.inf))
simple("relu", nn.ReLU, "maximum of zeros of the batch", lambda x: torch.maximum(torch.zeros(x.shape).to(x), x))
simple("relu", nn.ReLU, "maximum of new zeros", lambda x: torch.maximum(x, x.new_zeros(x.shape)))
simple("relu", nn.ReLU, "maximum of one sample of zeros", lambda x: torch.maximum(x, torch.zeros(x.shape[1:]).to(x)))
simple("relu", nn.ReLU, "where, zeros by full_like", lambda x: torch.where(x > 0, x, torch.full_like(x, 0.0)))
simple("relu", nn.ReLU, "where, a zero as a tensor", lambda x: torch.where(x >= 0, x, torch.zeros(()).to(x)))
simple("relu", nn.ReLU, "masked_fill by a tensor", lambda x: x.masked_fill(x <= 0, torch.tensor(0.0).to(x)))
simple("relu", nn.ReLU, "(x > 0) · x", lambda x: x.gt(0).to(x.dtype) * x)
simple("relu", nn.ReLU, "then clamped again", lambda x: x.relu().clamp(min=0))
simple("relu", nn.ReLU, "of x · 1", lambda x: F.relu(1.0 * x))
simple("relu", Clamp, "relu", F.relu)
simple("relu", nn.ReLU6, "clamp(0, 6)", lambda x: x.clamp(0, 6))
simple("relu", nn.ReLU6, "hardtanh", lambda x: F.hardtanh(x, 0.0, 6.0))
simple("relu", nn.ReLU6, "minimum of relu and 6", lambda x: F.relu(x).clamp(max=6))
simple("relu", nn.ReLU6, "F.relu6", F.relu6)
simple("relu", nn.ReLU6, "clamp twice", lambda x: x.clamp(min=0).clamp(max=6))
simple("activation", nn.SiLU, "F.silu", F.silu)
simple("activation", nn.SiLU, "x · sigmoid(x) in place", lambda x: torch.sigmoid(x).mul_(x))
simple("activation", nn.SiLU, "a product of x and a quotient", lambda x: x * (1 / (1 + torch.exp(-x))))
simple("activation", nn.GELU, "F.gelu", F.gelu)
simple("activation", nn.Hardswish, "F.hardswish", F.hardswish)
simple("activation", nn.Hardswish, "x · clamp(x + 3, 0, 6) / 6", lambda x: x * (x + 3).clamp(0, 6) / 6)
simple("activation", nn.Mish, "F.mish", F.mish)
simple("activation", nn.ELU, "F.elu", F.elu)
simple("activation", nn.Hardtanh, "F.hardtanh", F.hardtanh)
simple("activation", nn.Sigmoid, "torch.sigmoid", torch.sigmoid)
simple("activation", nn.Softplus, "F.softplus", F.softplus)
simple("activation", nn.Softmax, "F.softmax", lambda x: F.softmax(x, 1))
simple("activation", nn.Softmax, "channels last", lambda x: torch.softmax(x.movedim(1, -1), -1).movedim(-1, 1))
simple("activation", nn.Softmax, "exp and a quotient", lambda x: (e := x.exp()) / e.sum(1, keepdim=True))
simple("activation", nn.SiLU, "x · sigmoid(x)", lambda x: x * torch.sigmoid(x))
simple("activation", nn.SiLU, "sigmoid(x) · x", lambda x: torch.sigmoid(x) * x)
simple("activation", nn.SiLU, "x / (1 + exp(−x))", lambda x: x / (1 + torch.exp(-x)))
simple("activation", nn.SiLU, "glu of a copy", lambda x: F.glu(torch.cat([x, x], 1), 1))
simple("activation", nn.GELU, "with erf", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)))
simple("activation", nn.GELU, "x · Φ(x)", lambda x: x * (0.5 + 0.5 * torch.erf(x * 0.5**0.5)))
simple("activation", nn.Hardswish, "x · hardsigmoid(x)", lambda x: x * F.hardsigmoid(x))
simple("activation", nn.Hardswish, "x · relu6(x + 3) / 6", lambda x: x * F.relu6(x + 3) / 6)
simple("activation", nn.Mish, "x · tanh(softplus(x))", lambda x: x * torch.tanh(F.softplus(x)))
simple("activation", nn.Hardtanh, "clamp", lambda x: x.clamp(-1, 1))
simple("activation", nn.Sigmoid, "half of tanh", lambda x: 0.5 + 0.5 * torch.tanh(x / 2))
simple("activation", nn.Softplus, "log(1 + exp)", lambda x: torch.log1p(torch.exp(x)))
simple("activation", nn.Tanh, "torch.tanh", torch.tanh)
simple("activation", nn.Softmax, "torch.softmax", lambda x: torch.softmax(x, 1))
simple(
    "activation",
    nn.SELU,
    "a factor and elu",
    lambda x: 1.0507009873554804934193349852946 * F.elu(x, 1.6732632423543772848170429916717),
)


@spelling("activation", nn.LeakyReLU, "where")
def _(m: nn.LeakyReLU, x: Tensor) -> nn.Module:
    return Spelled(
        lambda s, x: torch.where(x > 0, 1.0, s.slope) * x, slope=torch.tensor(m.negative_slope, dtype=x.dtype)
    )


@spelling("activation", nn.LeakyReLU, "PReLU")
def _(m: nn.LeakyReLU, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.prelu(x, s.slope), slope=torch.full([1], m.negative_slope, dtype=x.dtype))


@spelling("activation", nn.PReLU, "a slope for each channel")
def _(m: nn.PReLU, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: F.prelu(x, s.slope), slope=m.weight.expand(x.shape[1]))
