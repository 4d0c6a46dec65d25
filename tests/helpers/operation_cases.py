"""The list of operations: each in a small network, with its explainer."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt

Op = Callable[[Tensor], Tensor]
BATCH, FEATURES = 3, 5


@dataclass(frozen=True)
class Case:
    """An operation on samples of one shape. `constants`: it brings constants in that may hold relevance themselves."""

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Op]
    constants: bool = False


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Op) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Network(nn.Module):
    """features → `shape`, signed or not → the operation → a score and its negative, so that one is positive."""

    def __init__(self, case: Case, signed: bool) -> None:
        super().__init__()
        self.shape = case.shape
        self.stem = nn.Linear(FEATURES, math.prod(case.shape))
        self.activation = nn.Tanh() if signed else nn.ReLU()
        made = case.make()
        self.op = made if isinstance(made, nn.Module) else Function(made)
        self.op.double().eval()
        with torch.no_grad():
            size = self.op(torch.rand(2, *case.shape, dtype=torch.float64)).flatten(1).shape[1]
        self.head = nn.Linear(size, 2, bias=False)
        with torch.no_grad():
            self.head.weight[1] = -self.head.weight[0]

    def forward(self, x: Tensor) -> Tensor:
        a = self.activation(self.stem(x)).unflatten(1, self.shape)
        return self.head(self.op(a).flatten(1))


def randomised(module: nn.Module) -> nn.Module:
    """Statistics and affine parameters as after training, some of them negative."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._NormBase) and m.running_mean is not None:
            nn.init.normal_(m.running_mean)
            nn.init.uniform_(m.running_var, 0.5, 2.0)
        if isinstance(m, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
            for p in m.parameters():
                nn.init.normal_(p)
        if isinstance(m, nn.PReLU):
            nn.init.uniform_(m.weight, 0.1, 0.4)
    return module


def chain(*modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: randomised(nn.Sequential(*[copy_of(m) for m in modules]))


def copy_of(module: nn.Module) -> nn.Module:
    """The module with new weights; a table entry is made once, a network often."""
    fresh = copy.deepcopy(module)
    for m in fresh.modules():
        if hasattr(m, "reset_parameters"):
            m.reset_parameters()
    return fresh


class TwoBranches(nn.Module):
    """combine(f(x), g(x)) of two linear branches."""

    def __init__(self, features: int, combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.f, self.g, self.combine = nn.Linear(features, features), nn.Linear(features, features), combine

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(self.f(x), self.g(x))


class Constant(nn.Module):
    """combine(x, c) with a constant tensor."""

    def __init__(self, shape: tuple[int, ...], combine: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.combine = combine
        self.register_buffer("c", torch.randn(shape))
        self.c: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(x, self.c)


class Attention(nn.Module):
    """One layer of attention, the product written by `attend(q, k, v)` on (batch, heads, tokens, features)."""

    def __init__(
        self, features: int, heads: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor], kv: int = 0
    ) -> None:
        super().__init__()
        self.heads, self.kv, self.attend = heads, kv or heads, attend
        width = features // heads
        self.q, self.k = nn.Linear(features, features), nn.Linear(features, width * self.kv)
        self.v, self.out = nn.Linear(features, width * self.kv), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = (m(x).unflatten(2, (self.kv, -1)).transpose(1, 2) for m in (self.k, self.v))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v).unflatten(0, (-1, 2))


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k), -1), v)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.tensor([[True, True, False], [True, False, True], [False, True, True]])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.tensor([[0.0, 1.0, -1.0], [0.5, 0.0, -2.0], [1.0, 0.0, 0.0]], dtype=q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.7)


sdpa = F.scaled_dot_product_attention
causal = functools.partial(sdpa, is_causal=True)
grouped = functools.partial(sdpa, enable_gqa=True)


def padded(*pads: int, mode: str = "constant", value: float | None = None) -> Op:
    return lambda x: F.pad(x, pads, mode, value)


def gathered(dim: int, index: Tensor) -> Op:
    return lambda x: x.gather(dim, index.expand(x.shape[0], *index.shape[1:]))


def mirrored(x: Tensor) -> Tensor:
    """Reads a tensor twice, which makes it a leaf of two paths."""
    return x + x.flip(1)


def with_token(x: Tensor, c: Tensor) -> Tensor:
    """A class token: one constant, expanded over the batch."""
    return torch.cat([c.expand(x.shape[0], 1, 4), x], 1)


def over_batch(c: Tensor, x: Tensor) -> Tensor:
    """A constant, expanded to a batch of the same size."""
    return c.expand(x.shape[0], *c.shape)


def conv_of_padded(x: Tensor) -> Tensor:
    return F.conv1d(F.pad(x, (1, 1), value=-0.5), torch.linspace(-1, 1, 12, dtype=x.dtype).reshape(1, 4, 3))


def resized(**how: object) -> Op:
    return lambda x: F.interpolate(x, **how)  # type: ignore[arg-type]


def shuffled(x: Tensor) -> Tensor:
    """Channel shuffle as ShuffleNet writes it."""
    b, c, h, w = x.shape
    return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


def plain(name: str, shape: tuple[int, ...], op: Op, constants: bool = False) -> Case:
    return Case(name, shape, lambda: op, constants)


def constant(
    name: str, shape: tuple[int, ...], size: tuple[int, ...], combine: Callable[[Tensor, Tensor], Tensor],
    constants: bool = False,
) -> Case:  # fmt: skip
    return Case(name, shape, lambda: Constant(size, combine), constants)


def layers(name: str, shape: tuple[int, ...], *modules: nn.Module, constants: bool = False) -> Case:
    return Case(name, shape, chain(*modules), constants)


LINE, IMAGE, VOLUME, TOKENS = (4, 7), (4, 5, 5), (2, 4, 4, 4), (3, 4)
INDEX = torch.tensor([[[0, 2, 1, 3], [3, 3, 0, 1]]])

WEIGHTED = [
    layers("linear", (6,), nn.Linear(6, 4)),
    layers("linear on tokens", TOKENS, nn.Linear(4, 2)),
    layers("conv1d", LINE, nn.Conv1d(4, 3, 3)),
    layers("conv1d stride padding dilation", LINE, nn.Conv1d(4, 3, 3, stride=2, padding=2, dilation=2)),
    layers("conv1d same", LINE, nn.Conv1d(4, 3, 3, padding="same", dilation=2)),
    layers("conv1d same, even kernel", LINE, nn.Conv1d(4, 3, 4, padding="same")),
    layers("conv2d", IMAGE, nn.Conv2d(4, 3, 3)),
    layers("conv2d stride, rows left over", (4, 6, 6), nn.Conv2d(4, 3, 3, stride=2)),
    layers("conv2d oblong", IMAGE, nn.Conv2d(4, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))),
    layers("conv2d same", IMAGE, nn.Conv2d(4, 3, 3, padding="same")),
    layers("conv2d valid", IMAGE, nn.Conv2d(4, 3, 3, padding="valid")),
    layers("conv2d groups", IMAGE, nn.Conv2d(4, 6, 3, groups=2)),
    layers("conv2d depthwise", IMAGE, nn.Conv2d(4, 8, 3, groups=4, padding=1)),
    layers("conv2d reflecting", IMAGE, nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect")),
    layers("conv2d circular", IMAGE, nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular")),
    layers("conv2d no bias", IMAGE, nn.Conv2d(4, 3, 3, bias=False)),
    layers("conv3d", VOLUME, nn.Conv3d(2, 3, 3, padding=1, stride=2)),
    layers("conv3d groups dilation", VOLUME, nn.Conv3d(2, 4, 2, dilation=2, groups=2)),
    layers("conv_transpose1d", LINE, nn.ConvTranspose1d(4, 2, 3, stride=2)),
    layers("conv_transpose1d output_padding", LINE, nn.ConvTranspose1d(4, 2, 3, stride=2, padding=1, output_padding=1)),
    layers("conv_transpose2d", IMAGE, nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1)),
    layers("conv_transpose2d groups dilation", IMAGE, nn.ConvTranspose2d(4, 4, 2, groups=2, dilation=2)),
    layers("conv_transpose2d with holes", IMAGE, nn.ConvTranspose2d(4, 2, 2, stride=3), constants=True),
    layers("conv_transpose3d", VOLUME, nn.ConvTranspose3d(2, 2, 2, stride=2)),
]  # fmt: skip

NORMS = [
    layers("batch_norm alone", IMAGE, nn.BatchNorm2d(4)),
    layers("batch_norm after conv", IMAGE, nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU()),
    layers("batch_norm before conv", IMAGE, nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3)),
    layers("batch_norm before padded conv", IMAGE, nn.BatchNorm2d(4), nn.Conv2d(4, 3, 3, padding=1)),
    layers("batch_norm before transposed conv", IMAGE, nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 3, groups=2)),
    layers("batch_norm after transposed conv", IMAGE, nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4)),
    layers("batch_norm1d of features", (6,), nn.BatchNorm1d(6), nn.Linear(6, 3)),
    layers("batch_norm1d", LINE, nn.BatchNorm1d(4), nn.ReLU()),
    layers("batch_norm3d", VOLUME, nn.BatchNorm3d(2)),
    layers("batch_norm, no affine", IMAGE, nn.BatchNorm2d(4, affine=False)),
    layers("layer_norm", TOKENS, nn.LayerNorm(4)),
    layers("layer_norm before linear", TOKENS, nn.LayerNorm(4), nn.Linear(4, 3)),
    layers("layer_norm, no affine", TOKENS, nn.LayerNorm(4, elementwise_affine=False)),
    layers("layer_norm of two axes", TOKENS, nn.LayerNorm((3, 4)), nn.Linear(4, 3)),
    layers("group_norm", IMAGE, nn.GroupNorm(2, 4)),
    layers("group_norm of one group", IMAGE, nn.GroupNorm(1, 4), nn.Conv2d(4, 2, 3)),
    layers("instance_norm1d", LINE, nn.InstanceNorm1d(4, affine=True)),
    layers("instance_norm2d", IMAGE, nn.InstanceNorm2d(4)),
    layers("instance_norm2d with statistics", IMAGE, nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
    layers("instance_norm3d", VOLUME, nn.InstanceNorm3d(2, affine=True)),
    layers("local_response_norm", IMAGE, nn.LocalResponseNorm(3, alpha=0.5, k=2.0)),
    layers("rms_norm", TOKENS, nn.RMSNorm(4)),
    layers("rms_norm, no affine", TOKENS, nn.RMSNorm(4, elementwise_affine=False), nn.Linear(4, 3)),
]  # fmt: skip

ACTIVATIONS = [
    *[
        layers(str(m), (6,), nn.Linear(6, 6), m, nn.Linear(6, 4))
        for m in (
            nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(), nn.RReLU(), nn.ELU(), nn.CELU(), nn.SELU(), nn.GELU(),
            nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.Hardtanh(), nn.Hardtanh(0.0, 0.5), nn.Hardtanh(0.25, 1.0),
            nn.Sigmoid(), nn.Hardsigmoid(), nn.Tanh(), nn.Softplus(), nn.LogSigmoid(), nn.Softmax(1),
            nn.Hardshrink(0.2), nn.Softshrink(0.2), nn.Threshold(0.0, 0.0),
        )
    ],
    layers("PReLU of channels", IMAGE, nn.Conv2d(4, 3, 3), nn.PReLU(3)),
    layers("GELU tanh", (6,), nn.Linear(6, 6), nn.GELU("tanh")),
    plain("clamp", (6,), lambda x: x.clamp(-0.25, 0.5)),
    plain("relu in place", (6,), lambda x: (x * 1.5).relu_()),
    plain("glu", (6,), lambda x: F.glu(x, 1)),
]  # fmt: skip

POOLING = [
    layers("max_pool1d", LINE, nn.MaxPool1d(2)),
    layers("max_pool1d ceil", LINE, nn.MaxPool1d(2, ceil_mode=True)),
    layers("max_pool2d", (4, 6, 6), nn.MaxPool2d(2)),
    layers("max_pool2d overlapping", IMAGE, nn.MaxPool2d(3, stride=2, padding=1)),
    layers("max_pool2d ceil padding", (2, 6, 6), nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)),
    layers("max_pool2d dilation", (2, 6, 6), nn.MaxPool2d(2, stride=1, dilation=2)),
    layers("max_pool2d rows left over", IMAGE, nn.MaxPool2d(2)),
    layers("max_pool3d", VOLUME, nn.MaxPool3d(2)),
    layers("max_pool3d padding", VOLUME, nn.MaxPool3d(3, stride=2, padding=1)),
    layers("adaptive_max_pool1d", LINE, nn.AdaptiveMaxPool1d(3)),
    layers("adaptive_max_pool2d", IMAGE, nn.AdaptiveMaxPool2d((2, 3))),
    layers("adaptive_max_pool3d", VOLUME, nn.AdaptiveMaxPool3d((2, 1, 3))),
    plain("max_pool2d with indices", (2, 4, 4), lambda x: F.max_pool2d(x, 2, return_indices=True)[0]),
    layers("avg_pool1d", LINE, nn.AvgPool1d(2, ceil_mode=True)),
    layers("avg_pool2d", (4, 6, 6), nn.AvgPool2d(2)),
    layers("avg_pool2d padding", IMAGE, nn.AvgPool2d(3, stride=2, padding=1)),
    layers("avg_pool2d not counting padding", IMAGE, nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False)),
    layers("avg_pool2d ceil padding", (2, 6, 6), nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True)),
    layers("avg_pool2d divisor", IMAGE, nn.AvgPool2d(2, divisor_override=3)),
    layers("avg_pool3d", VOLUME, nn.AvgPool3d(2, stride=1)),
    layers("adaptive_avg_pool1d", LINE, nn.AdaptiveAvgPool1d(3)),
    layers("adaptive_avg_pool2d", IMAGE, nn.AdaptiveAvgPool2d((2, None))),
    layers("adaptive_avg_pool2d to one", IMAGE, nn.AdaptiveAvgPool2d(1)),
    layers("adaptive_avg_pool3d", VOLUME, nn.AdaptiveAvgPool3d((2, 1, 3))),
    layers("lp_pool1d", LINE, nn.LPPool1d(2, 2)),
    layers("lp_pool2d", (2, 4, 4), nn.LPPool2d(2, 2)),
    layers("lp_pool2d of order 3", (2, 5, 5), nn.ReLU(), nn.LPPool2d(3, 2, stride=1)),
    layers("lp_pool2d ceil", IMAGE, nn.LPPool2d(2, 2, ceil_mode=True)),
    layers("lp_pool3d", VOLUME, nn.LPPool3d(2, 2)),
]  # fmt: skip

REDUCTIONS = [
    plain("mean", IMAGE, lambda x: x.mean((2, 3))),
    plain("mean keepdim", IMAGE, lambda x: x.mean(1, keepdim=True)),
    plain("sum", IMAGE, lambda x: x.sum((-2, -1))),
    plain("sum of all", (6,), lambda x: x.sum(-1, keepdim=True)),
    plain("amax", IMAGE, lambda x: x.amax((2, 3))),
    plain("amax keepdim", LINE, lambda x: x.amax(-1, keepdim=True)),
    plain("max of an axis", LINE, lambda x: x.max(1).values),
]  # fmt: skip

ARITHMETIC = [
    Case("add", (4,), lambda: TwoBranches(4, torch.add)),
    Case("add with alpha", (4,), lambda: TwoBranches(4, lambda a, b: torch.add(a, b, alpha=-0.5))),
    Case("add in place", (4,), lambda: TwoBranches(4, lambda a, b: a.add_(b))),
    Case("sub", (4,), lambda: TwoBranches(4, torch.sub)),
    Case("maximum", (4,), lambda: TwoBranches(4, torch.maximum)),
    Case("minimum", (4,), lambda: TwoBranches(4, torch.minimum)),
    plain("residual", (6,), lambda x: x + x.flip(1)),
    plain("a tensor plus itself", (6,), lambda x: x + x),
    plain("a tensor minus half of itself", (6,), lambda x: x - 0.5 * x),
    plain("add with broadcasting", TOKENS, lambda x: x + x.mean(1, keepdim=True)),
    Case("mul with a gate", (4,), lambda: TwoBranches(4, lambda a, b: a * torch.sigmoid(b))),
    Case("mul with a nonlinear factor", (4,), lambda: TwoBranches(4, lambda a, b: F.silu(a) * b)),
    plain("mul with itself", (6,), lambda x: x * x),
    plain("square", (6,), lambda x: x**2),
    plain("mul broadcast gate", IMAGE, lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()),
    plain("div", (6,), lambda x: x / (1 + x.abs().sum(1, keepdim=True))),
    plain("add a number", (6,), lambda x: x + 0.5, constants=True),
    plain("sub from a number", (6,), lambda x: 1 - x, constants=True),
    plain("mul and div by numbers", (6,), lambda x: -2.0 * x / 3),
    constant("add a constant", TOKENS, (3, 4), torch.add, True),
    constant("add a broadcast constant", TOKENS, (4,), torch.add, True),
    constant("sub from a constant", TOKENS, (3, 1), lambda x, c: c - x, True),
    constant("add a constant by expand_as", TOKENS, (3, 4), lambda x, c: mirrored(x + c.expand_as(x)), True),
    constant("add a constant over the batch", TOKENS, (3, 4), lambda x, c: mirrored(x + over_batch(c, x)), True),
    constant("mul by a constant over the batch", TOKENS, (3, 4), lambda x, c: mirrored(x * over_batch(c, x))),
    constant("mul by a constant", TOKENS, (4,), torch.mul),
    constant("div by a constant", TOKENS, (3, 1), torch.div),
    constant("mul that grows", (4, 1), (4, 3), torch.mul),
    constant("add that grows", (4, 1), (4, 3), torch.add, True),
    plain("neg", (6,), lambda x: -x),
]  # fmt: skip

STRUCTURE = [
    plain("cat", LINE, lambda x: torch.cat([x, x.flip(1)], 1)),
    plain("cat of one tensor twice", LINE, lambda x: torch.cat([x, x], 2)),
    constant("cat with a token", TOKENS, (1, 4), with_token, True),
    constant("cat with a token, read twice", TOKENS, (1, 4), lambda x, c: mirrored(with_token(x, c)), True),
    constant("stack with a constant", (4,), (4,), lambda x, c: torch.stack([x, over_batch(c, x)], 1), True),
    plain("stack", LINE, lambda x: torch.stack([x, x.flip(2), x], 1)),
    plain("split", LINE, lambda x: torch.split(x, 3, 2)[1] * 2 + torch.split(x, 3, 2)[0]),
    plain("split by sizes", LINE, lambda x: torch.split(x, [2, 5], 2)[1]),
    plain("chunk", LINE, lambda x: torch.cat(torch.chunk(x, 3, -1)[::-1], -1)),
    plain("unbind", LINE, lambda x: x.unbind(1)[2]),
    plain("getitem", LINE, lambda x: x[:, 1:, -2]),
    plain("getitem with None and dots", LINE, lambda x: x[:, None, ..., 2:5]),
    plain("select", LINE, lambda x: x.select(-1, -1)),
    plain("narrow", LINE, lambda x: x.narrow(2, 1, 3)),
    plain("slice", LINE, lambda x: x[:, :, 1:-1]),
    plain("slice with step", LINE, lambda x: x[:, ::3, 1::2]),
    plain("slice with step, cut short", LINE, lambda x: x[:, :, 1:6:3]),
    plain("index", LINE, lambda x: x[:, [3, 0, 0]]),
    plain("index by a matrix", LINE, lambda x: x[:, :, torch.tensor([[0, 6], [-1, 2]])]),
    plain("index_select", LINE, lambda x: x.index_select(2, torch.tensor([5, 1]))),
    plain("index of two axes", LINE, lambda x: x[:, [0, 1, 2], [3, 3, 6]]),
    plain("index of a step of each sample", LINE, lambda x: x[torch.arange(x.shape[0]), (x[:, 0, 0] > 0).long() * 2]),
    plain("gather", (4, 4), gathered(1, INDEX)),
    plain("gather along the last axis", (4, 4), gathered(-1, INDEX.transpose(1, 2).contiguous())),
    plain("view", LINE, lambda x: x.view(x.shape[0], 2, 14)),
    plain("reshape", LINE, lambda x: x.transpose(1, 2).reshape(x.shape[0], -1)),
    plain("reshape over the batch", LINE, lambda x: F.relu(x.reshape(-1, 7) - 0.1).reshape(-1, 4, 7), constants=True),
    plain("flatten", IMAGE, lambda x: x.flatten(2).flatten(1)),
    plain("unflatten", LINE, lambda x: x.unflatten(1, (2, 2))),
    plain("permute", IMAGE, lambda x: x.permute(0, 3, 1, 2)),
    plain("permute, batch inside", IMAGE, lambda x: x.permute(2, 0, 1, 3).relu().permute(1, 0, 2, 3)),
    plain("transpose", LINE, lambda x: x.transpose(-1, -2)),
    plain("movedim", IMAGE, lambda x: x.movedim(1, -1)),
    plain("mT", LINE, lambda x: x.mT),
    plain("squeeze", (4, 1, 3, 1), lambda x: x.squeeze(2).squeeze(-1)),
    plain("squeeze of two axes", (4, 1, 3, 1), lambda x: x.squeeze((2, 4))),
    plain("unsqueeze", LINE, lambda x: x.unsqueeze(1).unsqueeze(-1)),
    plain("expand", (4, 1), lambda x: x.expand(-1, -1, 3)),
    plain("expand_as", TOKENS, lambda x: x.mean(1, keepdim=True).expand_as(x)),
    plain("view_as and reshape_as", TOKENS, lambda x: x.view_as(x.flip(1)).reshape_as(x)),
    plain("repeat", TOKENS, lambda x: x.repeat(1, 2, 3)),
    plain("repeat with a new axis", TOKENS, lambda x: x.unsqueeze(1).repeat(1, 2, 1, 1)),
    plain("repeat_interleave", TOKENS, lambda x: x.repeat_interleave(2, 1)),
    plain("pad", IMAGE, padded(1, 2, 0, 1)),
    plain("pad that crops", IMAGE, padded(1, -1, -2, 0)),
    plain("pad with a constant", LINE, padded(1, 2, value=0.75), constants=True),
    plain("pad with a constant before conv", LINE, conv_of_padded, constants=True),
    plain("pad reflecting", LINE, padded(2, 1, mode="reflect")),
    plain("pad replicating", LINE, padded(2, 1, mode="replicate")),
    plain("pad circular", LINE, padded(2, 1, mode="circular")),
    plain("pad reflecting, image", IMAGE, padded(1, 1, 2, 1, mode="reflect")),
    plain("pad replicating, image", IMAGE, padded(1, 1, 2, 1, mode="replicate")),
    plain("pad circular, image", IMAGE, padded(1, 1, 2, 1, mode="circular")),
    plain("pad replicating, volume", VOLUME, padded(1, 0, 0, 2, 1, 1, mode="replicate")),
    plain("roll", IMAGE, lambda x: torch.roll(x, (1, -2), (2, 3))),
    plain("flip", IMAGE, lambda x: x.flip((1, 3))),
    plain("pixel_shuffle", IMAGE, lambda x: F.pixel_shuffle(x, 2)),
    plain("pixel_unshuffle", (2, 4, 6), lambda x: F.pixel_unshuffle(x, 2)),
    plain("channel shuffle", IMAGE, shuffled),
    layers("channel_shuffle", (6, 2, 2), nn.ChannelShuffle(3)),
    plain("where", LINE, lambda x: torch.where(torch.arange(7) % 2 == 0, x, x.flip(2))),
    plain("masked_fill", LINE, lambda x: x.masked_fill(torch.arange(7) > 4, 0.25), constants=True),
]  # fmt: skip

INTERPOLATION = [
    plain("nearest 1-D", LINE, resized(scale_factor=2)),
    plain("nearest", IMAGE, resized(scale_factor=2)),
    plain("nearest to a size", IMAGE, resized(size=(7, 3))),
    plain("nearest-exact", IMAGE, resized(size=(7, 8), mode="nearest-exact")),
    plain("nearest 3-D", VOLUME, resized(scale_factor=1.5)),
    plain("linear interpolation", LINE, resized(scale_factor=2, mode="linear")),
    plain("bilinear", IMAGE, resized(scale_factor=2, mode="bilinear")),
    plain("bilinear with corners", IMAGE, resized(size=(8, 7), mode="bilinear", align_corners=True)),
    plain("bilinear down", IMAGE, resized(size=(3, 2), mode="bilinear")),
    plain("bilinear by 1.7", IMAGE, resized(scale_factor=1.7, mode="bilinear")),
    plain("trilinear", VOLUME, resized(scale_factor=2, mode="trilinear")),
]  # fmt: skip

PRODUCTS = [
    constant("matmul with a constant", TOKENS, (4, 2), torch.matmul),
    constant("matmul with a constant before", TOKENS, (2, 3), lambda x, c: c @ x),
    constant("matmul with a constant vector", TOKENS, (4,), torch.matmul),
    constant("mm of features", (6,), (6, 4), torch.mm),
    constant("bmm", TOKENS, (4, 2), lambda x, c: torch.bmm(x, over_batch(c, x))),
    constant("bmm, read twice", TOKENS, (4, 2), lambda x, c: mirrored(torch.bmm(x, over_batch(c, x)))),
    constant("einsum with a constant", TOKENS, (4, 2, 3), lambda x, c: torch.einsum("bti,ioh->btoh", x, c)),
    constant("einsum with dots", IMAGE, (5, 2), lambda x, c: torch.einsum("...i,io->...o", x, c)),
]  # fmt: skip

ATTENTION = [
    Case("attention by hand", TOKENS, lambda: Attention(4, 2, by_hand)),
    Case("attention by bmm", TOKENS, lambda: Attention(4, 2, by_bmm)),
    Case("attention by einsum", TOKENS, lambda: Attention(4, 2, by_einsum)),
    Case("scaled_dot_product_attention", TOKENS, lambda: Attention(4, 2, sdpa)),
    Case("scaled_dot_product_attention causal", TOKENS, lambda: Attention(4, 2, causal)),
    Case("scaled_dot_product_attention with a mask", TOKENS, lambda: Attention(4, 2, masked)),
    Case("scaled_dot_product_attention with an additive mask", TOKENS, lambda: Attention(4, 2, additive)),
    Case("scaled_dot_product_attention, grouped queries", TOKENS, lambda: Attention(4, 4, grouped, kv=2)),
]  # fmt: skip

DROPOUT = [
    layers("dropout", (6,), nn.Dropout(0.5), nn.Linear(6, 4), nn.Dropout(0.5)),
    layers("dropout2d", IMAGE, nn.Dropout2d(), nn.Conv2d(4, 2, 3)),
    layers("alpha_dropout", (6,), nn.AlphaDropout()),
]  # fmt: skip

CASES = [
    *WEIGHTED, *NORMS, *ACTIVATIONS, *POOLING, *REDUCTIONS, *ARITHMETIC, *STRUCTURE, *INTERPOLATION, *PRODUCTS,
    *ATTENTION, *DROPOUT,
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
# Where the domain x ≥ 0 takes another way through the code, or a constant ends it, both kinds of input are tried.
BOTH = [
    *(c for c in POOLING if "avg" not in c.name), *(c for c in [*ARITHMETIC, *STRUCTURE] if c.constants),
    *(c for c in ARITHMETIC if "mul" in c.name or "sub" in c.name), *PRODUCTS,
]  # fmt: skip
NETWORKS = list(dict.fromkeys([(c.name, True) for c in CASES] + [(c.name, False) for c in BOTH]))


@functools.cache
def network_of(name: str, signed: bool) -> Network:
    torch.manual_seed(sum(map(ord, name)) + 7 * signed)
    with warnings.catch_warnings():
        # torch says that an even kernel with padding="same" copies its input.
        warnings.filterwarnings("ignore", "Using padding='same'")
        return Network(BY_NAME[name], signed).double().eval()


@functools.cache
def explainer_of(name: str, signed: bool, bias: str, max_pool: str = "proportional") -> dt.Explainer:
    """Captured with one sample."""
    x = torch.randn(1, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return dt.Explainer(network_of(name, signed), x, bias=bias, max_pool=max_pool)


def close(a: Tensor, b: Tensor, scale: Tensor) -> bool:
    """Equal to 1e-9 of the scores."""
    return bool((a - b).abs().max() <= 1e-9 * scale.abs().max())
