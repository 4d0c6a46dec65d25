"""Random small networks, each as a torch module and as a reference `Graph` with the same weights.

`build(seed)` gives both; `reference_relevances(seed, ...)` gives what the package has to reproduce. The seed chooses
the family (`family(seed)`), the domain of the input and everything inside. Names of the graph's nodes are paths of
submodules, so that the relevance of a block boundary can be asked for by its module path.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference import Array, Bias, Domain, Graph, MaxPool, Relevances


class Network(NamedTuple):
    """One random network, twice."""

    model: nn.Module
    example: Tensor
    domain: Domain
    graph: Graph


# --------------------------------------------------------------------------------------------------------------------
# Operations as modules, so that their outputs have names
# --------------------------------------------------------------------------------------------------------------------


class Add(nn.Module):
    """a + b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Subtract(nn.Module):
    """a − b."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b


class Mul(nn.Module):
    """a · b, element by element."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Divide(nn.Module):
    """a / b, element by element."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b


class Square(nn.Module):
    """A tensor times itself."""

    def forward(self, a: Tensor) -> Tensor:
        return a * a


class Concat(nn.Module):
    """Concatenation along the channels."""

    def forward(self, *tensors: Tensor) -> Tensor:
        return torch.cat(tensors, dim=1)


class Clamp(nn.Module):
    """max(0, x), written as a clamp."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)


class Mean(nn.Module):
    """Mean over some dimensions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=self.dims)


class Normalise(nn.Module):
    """(x − mean) / std with constants."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Shift(nn.Module):
    """x plus a constant tensor (a positional embedding)."""

    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.shift = nn.Parameter(shift)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class PrependToken(nn.Module):
    """A constant token before the others."""

    def __init__(self, token: Tensor) -> None:
        super().__init__()
        self.token = nn.Parameter(token)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)


class Token(nn.Module):
    """The first token."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Part(nn.Module):
    """One of `parts` equal slices of the last dimension."""

    def __init__(self, k: int, parts: int) -> None:
        super().__init__()
        self.k, self.parts = k, parts

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[-1] // self.parts
        return x[..., self.k * n : (self.k + 1) * n]


class Heads(nn.Module):
    """(B, T, D) to (B, heads, T, D / heads)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        return x.reshape(B, T, self.heads, D // self.heads).transpose(1, 2)


class MergeHeads(nn.Module):
    """(B, heads, T, d) to (B, T, heads · d)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)


class Scores(nn.Module):
    """Q Kᵀ / √d."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5


class MatMul(nn.Module):
    """A V."""

    def forward(self, a: Tensor, v: Tensor) -> Tensor:
        return a @ v


class ScaledDotProduct(nn.Module):
    """softmax(Q Kᵀ / √d) V in one operation."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class OnePlusSquare(nn.Module):
    """1 + x²: a denominator."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 + x**2


class Program(nn.Module):
    """Named submodules called in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, tuple[str, ...]]] = []

    def forward(self, x: Tensor) -> Tensor:
        tensors = {"input": x}
        for name, operands in self.steps:
            tensors[name] = self.get_submodule(name)(*[tensors[o] for o in operands])
        return tensors[self.steps[-1][0]]


# --------------------------------------------------------------------------------------------------------------------
# Building both at once
# --------------------------------------------------------------------------------------------------------------------


class Builder:
    """Adds each operation to the module and to the graph; `value` keeps the example's tensors, for their shapes."""

    def __init__(self, seed: int, shape: Sequence[int], domain: str) -> None:
        self.choose = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.model = Program()
        self.graph = Graph()
        self.domain, self.example = self._input(shape, domain)
        self.graph.input("input", self.domain)
        self.value = {"input": self.example}

    # -- chance ------------------------------------------------------------------------------------------------------

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def maybe(self, probability: float = 0.5) -> bool:
        return self.choose.random() < probability

    def _input(self, shape: Sequence[int], kind: str) -> tuple[Domain, Tensor]:
        if kind == "real":
            return Domain("real"), self.normal(2, *shape)
        if kind == "nonnegative":
            return Domain("nonnegative"), self.normal(2, *shape).clamp(min=0)
        bounds = [shape[0]] + [1] * (len(shape) - 1) if self.maybe() else [1] * len(shape)
        low, high = -2 * self.uniform(*bounds), 2 * self.uniform(*bounds) + 0.1
        x = low + (high - low) * self.uniform(2, *shape)
        corner = self.uniform(2, *shape)
        x = torch.where(corner < 0.1, low, torch.where(corner > 0.9, high, x))
        return Domain("box", low.numpy(), high.numpy()), x

    # -- one operation -----------------------------------------------------------------------------------------------

    def module(self, name: str, module: nn.Module, *operands: str) -> str:
        """Add a module at a dotted path, with random parameters and statistics, and run it on the example."""
        module = module.double().eval()
        self._randomise(module)
        *path, last = name.split(".")
        parent: nn.Module = self.model
        for part in path:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        parent.add_module(last, module)
        self.model.steps.append((name, operands))
        with torch.no_grad():
            self.value[name] = module(*[self.value[o] for o in operands])
        return name

    def _randomise(self, module: nn.Module) -> None:
        with torch.no_grad():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                module.weight.copy_(self.normal(*module.weight.shape) * 1.4 / module.weight[0].numel() ** 0.5)
                if module.bias is not None:
                    # Now and then mostly negative: dead units, whose readers have nothing but their bias.
                    module.bias.copy_(0.4 * self.normal(*module.bias.shape) - (0.8 if self.maybe(0.25) else 0.0))
            elif isinstance(module, nn.BatchNorm2d):
                n = module.num_features
                module.running_mean.copy_(0.3 * self.normal(n))
                module.running_var.copy_(0.5 + self.uniform(n))
                module.weight.copy_(0.3 + self.normal(n))
                module.bias.copy_(0.4 * self.normal(n))
            elif isinstance(module, nn.LayerNorm | nn.GroupNorm):
                module.weight.copy_(1 + 0.4 * self.normal(*module.weight.shape))
                module.bias.copy_(0.4 * self.normal(*module.bias.shape))
            elif isinstance(module, nn.PReLU):
                module.weight.copy_(0.1 + 0.4 * self.uniform(*module.weight.shape))

    def affine(self, name: str, module: nn.Module, *operands: str, kind: str) -> str:
        self.module(name, module, *operands)
        return self.graph.affine(name, module, *operands, kind=kind)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.value[name].shape[1:])

    def conv(self, name: str, operand: str, channels: int, kernel: int = 3, padding: int | str = 1, stride: int = 1,
             groups: int = 1, dilation: int = 1, bias: bool = True) -> str:  # fmt: skip
        conv = nn.Conv2d(
            self.shape(operand)[0], channels, kernel, stride, padding, dilation=dilation, groups=groups, bias=bias
        )
        return self.affine(name, conv, operand, kind="convolution")

    def any_conv(self, name: str, operand: str, channels: int) -> str:
        """A convolution of a random kind: plain, strided, 'same', dilated, grouped, depthwise, pointwise, unpadded."""
        c, side, _ = self.shape(operand)
        bias = self.maybe(0.8)
        kinds = ["plain", "same", "dilated", "grouped", "pointwise", "depthwise"]
        if side >= 4:
            kinds += ["strided", "unpadded"]
        kind = self.choose.choice(kinds)
        if kind == "same":
            # Not an even kernel with an odd dilation: torch warns about the copy it makes.
            kernel, dilation = self.choose.choice([(3, 1), (3, 2), (2, 2)])
            return self.conv(name, operand, channels, kernel, "same", dilation=dilation, bias=bias)
        if kind == "dilated":
            return self.conv(name, operand, channels, 3, 2, dilation=2, bias=bias)
        if kind == "grouped" and c % 2 == 0 and channels % 2 == 0:
            return self.conv(name, operand, channels, 3, 1, groups=2, bias=bias)
        if kind == "depthwise":
            return self.conv(name, operand, 2 * c if c <= 3 else c, 3, 1, groups=c, bias=bias)
        if kind == "pointwise":
            return self.conv(name, operand, channels, 1, 0, bias=bias)
        if kind == "strided":
            return self.conv(name, operand, channels, self.choose.choice([2, 3]), 1, stride=2, bias=bias)
        if kind == "unpadded":
            return self.conv(name, operand, channels, self.choose.choice([2, 3]), 0, bias=bias)
        return self.conv(name, operand, channels, 3, 1, bias=bias)

    def linear(self, name: str, operand: str, units: int, bias: bool = True) -> str:
        return self.affine(name, nn.Linear(self.shape(operand)[-1], units, bias=bias), operand, kind="linear")

    def batch_norm(self, name: str, operand: str) -> str:
        return self.affine(name, nn.BatchNorm2d(self.shape(operand)[0]), operand, kind="diagonal")

    def normalise(self, name: str) -> str:
        """Constants before the first layer; the mean lies in the box, so zero stays inside after it."""
        c, *rest = self.shape("input")
        bounds = [c] + [1] * len(rest)
        mean = 0.3 * self.normal(*bounds)
        if self.domain.kind == "box":
            low, high = (torch.as_tensor(t, dtype=torch.float64) for t in (self.domain.low, self.domain.high))
            mean = low + (high - low) * (0.2 + 0.6 * self.uniform(*bounds))
        return self.affine(name, Normalise(mean, 0.5 + self.uniform(*bounds)), "input", kind="diagonal")

    def layer_norm(self, name: str, operand: str) -> str:
        shape = self.shape(operand)
        norm = nn.LayerNorm(shape[-1])
        self.module(name, norm, operand)
        groups = int(np.prod(shape[:-1]))
        return self.graph.norm(name, operand, groups, norm.weight, norm.bias, norm.eps, kind="layer_norm")

    def group_norm(self, name: str, operand: str) -> str:
        # A group of one element would be normalised to a constant.
        c, *rest = self.shape(operand)
        groups = self.choose.choice([g for g in (1, 2, c) if c % g == 0 and c // g * np.prod(rest) > 1])
        norm = nn.GroupNorm(groups, c)
        self.module(name, norm, operand)
        weight, bias = norm.weight[:, None, None], norm.bias[:, None, None]
        return self.graph.norm(name, operand, groups, weight, bias, norm.eps)

    def activation(self, name: str, kind: str, operand: str) -> str:
        module = ACTIVATIONS[kind]()
        self.module(name, module, operand)
        phi = torch.exp if kind == "softmax" else None
        return self.graph.activation(name, module, operand, rectifier=kind in RECTIFIERS, phi=phi)

    def rectifier(self, name: str, operand: str) -> str:
        return self.activation(name, self.choose.choice(RECTIFIERS), operand)

    def add(self, name: str, a: str, b: str) -> str:
        return self.affine(name, Add(), a, b, kind="sum")

    def concat(self, name: str, *operands: str) -> str:
        return self.affine(name, Concat(), *operands, kind="structural")

    def gate(self, name: str, module: nn.Module, signal: str, *gates: str, swapped: bool = False) -> str:
        """A product or quotient; `swapped`: the module reads the gate first."""
        order = (*gates, signal) if swapped else (signal, *gates)
        self.module(name, module, *order)
        return self.graph.gate(name, lambda s, *g: module(*g, s) if swapped else module(s, *g), signal, *gates)

    def function(self, name: str, module: nn.Module, *operands: str) -> str:
        self.module(name, module, *operands)
        return self.graph.function(name, module, *operands)

    def max_pool(self, name: str, operand: str) -> str:
        side = self.shape(operand)[-1]
        choices = [(2, 2, 0, 1), (3, 2, 1, 1), (2, 1, 0, 1)] + ([(2, 1, 1, 2)] if side > 3 else [])
        window = self.choose.choice(choices)
        self.module(name, nn.MaxPool2d(*window), operand)
        return self.graph.max_pool(name, operand, *window)

    def lp_pool(self, name: str, operand: str, p: int) -> str:
        kernel, stride = self.choose.choice([(2, 2), (2, 1)])
        self.module(name, nn.LPPool2d(p, kernel, stride), operand)
        return self.graph.lp_pool(name, operand, p, kernel, stride)

    def average_pool(self, name: str, operand: str) -> str:
        pools = [nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False)]
        return self.affine(name, self.choose.choice([*pools, nn.AdaptiveAvgPool2d(2)]), operand, kind="average")

    def pool(self, name: str, operand: str) -> str:
        """Pooling of non-negative maps: all kinds."""
        kind = self.choose.choice(["max", "max", "average", "lp2", "lp3", "lp4"])
        if kind == "max":
            return self.max_pool(name, operand)
        return self.average_pool(name, operand) if kind == "average" else self.lp_pool(name, operand, int(kind[-1]))

    # -- several operations ------------------------------------------------------------------------------------------

    def stem(self, channels: int = 4) -> str:
        """The input, normalised or not, through a convolution and a rectifier."""
        h = self.normalise("normalise") if self.maybe(0.3) else "input"
        h = self.any_conv("stem.conv", h, channels)
        if self.maybe(0.3):
            h = self.batch_norm("stem.bn", h)
        return self.rectifier("stem.relu", h)

    def head(self, operand: str) -> str:
        """Average or flatten, perhaps a hidden layer, then the classes."""
        h = operand
        if len(self.shape(h)) == 3:
            if self.maybe():
                h = self.affine("head.pool", Mean(2, 3), h, kind="average")
            else:
                if self.shape(h)[-1] > 4 and self.maybe():
                    h = self.affine("head.pool", nn.AdaptiveAvgPool2d(2), h, kind="average")
                h = self.affine("head.flatten", nn.Flatten(), h, kind="structural")
        if self.maybe(0.3):
            h = self.linear("head.hidden", h, 6)
            h = self.rectifier("head.relu", h)
        return self.linear("head.classes", h, 3)

    def squeeze_excite(self, name: str, x: str) -> str:
        c = self.shape(x)[0]
        g = self.affine(f"{name}.pool", nn.AdaptiveAvgPool2d(1), x, kind="average")
        g = self.conv(f"{name}.fc1", g, max(2, c // 2), 1, 0)
        g = self.activation(f"{name}.relu", self.choose.choice(["relu", "silu"]), g)
        g = self.conv(f"{name}.fc2", g, c, 1, 0)
        g = self.activation(f"{name}.scale", self.choose.choice(["sigmoid", "hardsigmoid"]), g)
        return self.gate(f"{name}.mul", Mul(), x, g, swapped=self.maybe())

    def finish(self) -> Network:
        """Give the top class of every sample a positive score."""
        top = self.value[self.model.steps[-1][0]].max(dim=1).values.min().item()
        if top <= 0.05:
            with torch.no_grad():
                self.model.get_submodule("head.classes").bias += 0.3 - top
        return Network(self.model.eval().requires_grad_(False), self.example, self.domain, self.graph)


# --------------------------------------------------------------------------------------------------------------------
# Families
# --------------------------------------------------------------------------------------------------------------------

RECTIFIERS = ["relu", "relu6", "clamp"]
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "clamp": Clamp,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "hardtanh": nn.Hardtanh,
    "sigmoid": nn.Sigmoid,
    "hardsigmoid": nn.Hardsigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "softmax": lambda: nn.Softmax(dim=1),
}


def plain(b: Builder, k: int) -> None:
    """Convolutions, norms, rectifiers and every pooling."""
    h = b.normalise("normalise") if b.maybe(0.3) else "input"
    for n in range(b.choose.choice([2, 3])):
        h = b.any_conv(f"layer{n}.conv", h, b.choose.choice([4, 6]))
        if b.maybe(0.25):
            h = b.group_norm(f"layer{n}.norm", h)
        if b.maybe(0.2) and b.shape(h)[-1] > 2:
            h = b.max_pool(f"layer{n}.early", h)
        h = b.rectifier(f"layer{n}.relu", h)
        if b.shape(h)[-1] > 2:
            h = b.pool(f"layer{n}.pool", h)
    b.head(h)


def residual(b: Builder, k: int) -> None:
    """ResNet blocks, with and without a rectifier after the sum."""
    h = b.stem(4)
    for n in range(b.choose.choice([1, 2])):
        c = b.shape(h)[0]
        f = b.conv(f"block{n}.conv1", h, c)
        f = b.batch_norm(f"block{n}.bn1", f)
        f = b.rectifier(f"block{n}.relu1", f)
        f = b.conv(f"block{n}.conv2", f, c, bias=b.maybe())
        if b.maybe(0.8):
            f = b.batch_norm(f"block{n}.bn2", f)
        skip = h
        if b.maybe(0.4):
            skip = b.conv(f"block{n}.down", h, c, 1, 0)
            if b.maybe():
                skip = b.batch_norm(f"block{n}.down_bn", skip)
        join = Subtract() if b.maybe(0.2) else Add()
        h = b.affine(f"block{n}.add", join, f, skip, kind="sum")
        if b.maybe(0.7):
            h = b.rectifier(f"block{n}.relu2", h)
    b.head(h)


def branches(b: Builder, k: int) -> None:
    """Several branches read one tensor, the input itself in some, and meet in a sum or a concatenation."""
    h = "input" if b.maybe() else b.stem(4)
    if h == "input" and b.maybe(0.3):
        h = b.normalise("normalise")
    for n in range(b.choose.choice([1, 2])):
        outs = []
        for m in range(b.choose.choice([2, 3])):
            name = f"mix{n}.branch{m}"
            kind = b.choose.choice(["conv", "conv_bn", "conv_relu", "pool_conv", "identity"])
            if kind == "identity" and b.shape(h)[0] == 3:
                outs.append(h)
                continue
            if kind == "pool_conv":
                o = b.affine(f"{name}.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
                o = b.conv(f"{name}.conv", o, 3, 1, 0)
            else:
                o = b.conv(f"{name}.conv", h, 3, *b.choose.choice([(1, 0), (3, 1)]))
            if kind == "conv_bn":
                o = b.batch_norm(f"{name}.bn", o)
            if kind == "conv_relu":
                o = b.rectifier(f"{name}.relu", o)
            outs.append(o)
        if b.maybe():
            h = b.concat(f"mix{n}.concat", *outs)
        else:
            h = outs[0]
            for m, o in enumerate(outs[1:]):
                h = b.add(f"mix{n}.add{m}", h, o)
        if b.maybe(0.3):
            h = b.batch_norm(f"mix{n}.bn", h)
        if b.maybe(0.7):
            h = b.rectifier(f"mix{n}.relu", h)
    b.head(h)


def dense(b: Builder, k: int) -> None:
    """DenseNet: BN, ReLU, convolution on a concatenation of all that came before."""
    features = [b.stem(3)]
    chained = b.maybe()
    for n in range(b.choose.choice([2, 3])):
        name = f"dense{n}"
        h = features[0] if len(features) == 1 else b.concat(f"{name}.concat", *features)
        if chained:
            features = [h]
        h = b.batch_norm(f"{name}.bn", h)
        h = b.rectifier(f"{name}.relu", h)
        h = b.conv(f"{name}.conv", h, 2, bias=b.maybe())
        features.append(h)
    h = b.concat("final.concat", *features)
    h = b.batch_norm("final.bn", h)
    h = b.rectifier("final.relu", h)
    if b.maybe() and b.shape(h)[-1] > 2:
        h = b.conv("transition.conv", h, 4, 1, 0)
        h = b.affine("transition.pool", nn.AvgPool2d(2), h, kind="average")
    b.head(h)


def squeeze_excite(b: Builder, k: int) -> None:
    """Channel gates after a rectifier, another activation, or BatchNorm alone; perhaps in a residual branch."""
    h = b.stem(4)
    for n in range(b.choose.choice([1, 2])):
        skip, c = h, b.shape(h)[0]
        h = b.conv(f"block{n}.conv", h, c)
        h = b.batch_norm(f"block{n}.bn", h)
        act = b.choose.choice(["none", "relu", "silu", "hardswish"])
        if act != "none":
            h = b.activation(f"block{n}.act", act, h)
        h = b.squeeze_excite(f"block{n}.se", h)
        if b.maybe():
            h = b.conv(f"block{n}.project", h, c, 1, 0)
        if b.maybe():
            h = b.add(f"block{n}.add", skip, h)
        if b.maybe(0.4):
            h = b.rectifier(f"block{n}.relu", h)
    b.head(h)


def bottleneck(b: Builder, k: int) -> None:
    """Inverted residuals: expand, depthwise, project without an activation, add."""
    h = b.stem(3)
    for n in range(b.choose.choice([2, 3])):
        name, skip, c = f"block{n}", h, b.shape(h)[0]
        act = b.choose.choice(["relu6", "relu6", "hardswish"])
        h = b.conv(f"{name}.expand", h, 2 * c, 1, 0, bias=False)
        h = b.batch_norm(f"{name}.expand_bn", h)
        h = b.activation(f"{name}.expand_act", act, h)
        h = b.conv(f"{name}.depthwise", h, 2 * c, 3, 1, groups=2 * c, bias=False)
        h = b.batch_norm(f"{name}.depthwise_bn", h)
        h = b.activation(f"{name}.depthwise_act", act, h)
        if b.maybe(0.2):
            h = b.squeeze_excite(f"{name}.se", h)
        h = b.conv(f"{name}.project", h, c, 1, 0, bias=b.maybe())
        if b.maybe(0.8):
            h = b.batch_norm(f"{name}.project_bn", h)
        if b.maybe():
            h = b.add(f"{name}.add", skip, h)
    b.head(h)


def batch_norm(b: Builder, k: int) -> None:
    """BatchNorm before and after, padded and unpadded, alone, read twice, between two convolutions, by an average."""
    h = "input"
    if b.maybe(0.3) and b.domain.kind != "box":
        h = b.batch_norm("first_bn", h)
    h = b.any_conv("first.conv", h, 4)
    h = b.rectifier("first.relu", h)
    place = b.choose.choice(["padded", "unpadded", "between", "average", "twice", "pooled", "deep"])
    if place == "pooled":
        h = b.affine("mid.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
    if place in ("between", "deep"):
        h = b.conv("mid.before", h, 4)
    h = b.batch_norm("mid.bn", h)
    if place == "deep":
        h = b.batch_norm("mid.bn2", h)
    if place == "average":
        h = b.affine("mid.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
    elif place == "twice":
        o = b.conv("mid.conv", h, b.shape(h)[0])
        h = b.add("mid.add", h, o)
    else:
        h = b.conv("mid.conv", h, 4, *((1, 0) if place == "unpadded" else (3, 1)))
    h = b.batch_norm("last.bn", h)
    h = b.rectifier("last.relu", h)
    if b.maybe():
        h = b.max_pool("last.pool", h) if b.shape(h)[-1] > 2 else h
    b.head(h)


def layer_norm(b: Builder, k: int) -> None:
    """LayerNorm read by one linear layer, by two, by a gate and a signal, or by something else."""
    h = "input"
    if b.maybe(0.8):
        h = b.linear("embed", h, 8)
    for n in range(b.choose.choice([1, 2])):
        name, skip = f"block{n}", h
        d = b.shape(h)[-1]
        h = b.layer_norm(f"{name}.norm", h)
        reader = b.choose.choice(["one", "two", "gated", "relu"])
        if reader == "one":
            h = b.linear(f"{name}.fc1", h, 10)
        elif reader == "relu":
            h = b.rectifier(f"{name}.relu", h)
            h = b.linear(f"{name}.fc1", h, 10)
        else:
            left, right = b.linear(f"{name}.left", h, 10), b.linear(f"{name}.right", h, 10)
            if reader == "two":
                h = b.add(f"{name}.join", left, right)
            else:
                g = b.activation(f"{name}.open", b.choose.choice(["sigmoid", "silu", "gelu"]), right)
                h = b.gate(f"{name}.mul", Mul(), left, g, swapped=b.maybe())
        h = b.activation(f"{name}.act", b.choose.choice(["gelu", "relu", "silu", "tanh"]), h)
        h = b.linear(f"{name}.fc2", h, d)
        if b.maybe(0.7):
            h = b.add(f"{name}.add", skip, h)
    if b.maybe(0.3):
        h = b.layer_norm("final_norm", h)
    if len(b.shape(h)) == 2:
        h = b.affine("tokens", Mean(1), h, kind="average")
    b.head(h)


def attention(b: Builder, k: int) -> None:
    """Pre-norm transformer blocks: softmax(QKᵀ)V written out or fused, one head or two, with a class token or not."""
    h = b.linear("embed", "input", 6)
    token = b.maybe(0.4)
    if token:
        h = b.affine("token", PrependToken(b.normal(1, 1, 6)), h, kind="structural")
    if b.maybe():
        h = b.affine("position", Shift(0.3 * b.normal(1, *b.shape(h))), h, kind="diagonal")
    for n in range(b.choose.choice([1, 1, 2])):
        name, skip = f"block{n}", h
        h = b.layer_norm(f"{name}.norm1", h) if b.maybe(0.8) else h
        if b.maybe(0.3):
            qkv = b.linear(f"{name}.attn.qkv", h, 18)
            q, k_, v = (b.affine(f"{name}.attn.{p}", Part(m, 3), qkv, kind="structural") for m, p in enumerate("qkv"))
        else:
            q, k_, v = (b.linear(f"{name}.attn.{p}", h, 6, bias=b.maybe(0.8)) for p in "qkv")
        heads = b.maybe(0.3)
        if heads:
            q, k_, v = (b.affine(t + "_heads", Heads(2), t, kind="structural") for t in (q, k_, v))
        if b.maybe():
            s = b.function(f"{name}.attn.scores", Scores(), q, k_)
            a = b.function(f"{name}.attn.softmax", nn.Softmax(dim=-1), s)
            h = b.module(f"{name}.attn.mix", MatMul(), a, v)
            b.graph.affine(h, lambda v, a: a @ v, v, kind="average", gates=(a,))
        else:
            h = b.module(f"{name}.attn.mix", ScaledDotProduct(), q, k_, v)
            b.graph.function(f"{h}/weights", lambda q, k: Scores()(q, k).softmax(dim=-1), q, k_)
            b.graph.affine(h, lambda v, a: a @ v, v, kind="average", gates=(f"{h}/weights",))
        if heads:
            h = b.affine(f"{name}.attn.merge", MergeHeads(), h, kind="structural")
        h = b.linear(f"{name}.attn.proj", h, 6)
        h = b.add(f"{name}.add1", skip, h)
        if b.maybe(0.7):
            skip = h
            h = b.layer_norm(f"{name}.norm2", h)
            h = b.linear(f"{name}.fc1", h, 8)
            h = b.activation(f"{name}.act", b.choose.choice(["gelu", "relu"]), h)
            h = b.linear(f"{name}.fc2", h, 6)
            h = b.add(f"{name}.add2", skip, h)
    if token:
        h = b.affine("first", Token(), h, kind="structural")
        h = b.layer_norm("final_norm", h) if b.maybe() else h
    else:
        h = b.layer_norm("final_norm", h) if b.maybe() else h
        h = b.affine("tokens", Mean(1), h, kind="average")
    b.head(h)


def unet(b: Builder, k: int) -> None:
    """Down, up again by interpolation or transposed convolution, with skips concatenated."""
    h = b.conv("enc1.conv", "input", 3)
    skip = h = b.rectifier("enc1.relu", h)
    down = b.choose.choice(["max", "average", "strided"])
    if down == "max":
        window = (2, 2, 0, 1)
        b.module("down", nn.MaxPool2d(*window), h)
        h = b.graph.max_pool("down", h, *window)
    elif down == "average":
        h = b.affine("down", nn.AvgPool2d(2), h, kind="average")
    else:
        h = b.conv("down", h, 3, 2, 0, stride=2)
    h = b.conv("enc2.conv", h, 4)
    if b.maybe():
        h = b.batch_norm("enc2.bn", h)
    if b.maybe(0.8):
        h = b.rectifier("enc2.relu", h)
    up = b.choose.choice(["nearest", "bilinear", "aligned", "transposed", "overlapping"])
    if up == "transposed":
        h = b.affine("up", nn.ConvTranspose2d(4, 3, 2, 2), h, kind="convolution")
    elif up == "overlapping":
        h = b.affine("up", nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2), h, kind="convolution")
    elif up == "nearest":
        h = b.affine("up", nn.Upsample(scale_factor=2, mode="nearest"), h, kind="average")
    else:
        resize = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=up == "aligned")
        h = b.affine("up", resize, h, kind="average")
    h = b.concat("skip", skip, h)
    h = b.conv("dec.conv", h, 3)
    if b.maybe():
        h = b.batch_norm("dec.bn", h)
    h = b.rectifier("dec.relu", h)
    b.head(h)


def activations(b: Builder, k: int) -> None:
    """Every activation in turn, three a network."""
    h, names = "input", list(ACTIVATIONS)
    image = len(b.shape(h)) == 3
    for n in range(3):
        h = b.any_conv(f"layer{n}.conv", h, 4) if image else b.linear(f"layer{n}.fc", h, 8)
        h = b.activation(f"layer{n}.act", names[(3 * k + n) % len(names)], h)
    b.head(h)


def gates(b: Builder, k: int) -> None:
    """Products and quotients of data, one for each way of telling the gate."""
    h = b.stem(4)
    c = b.shape(h)[0]
    kind = ["bounded", "computed", "nonlinear", "self", "quotient", "swish"][k % 6]
    if kind == "bounded":
        a, g = b.conv("left", h, c), b.conv("right", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "sigmoid", g), swapped=b.maybe())
    elif kind == "computed":
        a = b.conv("left", h, c) if b.maybe() else h
        g = b.activation("open", "tanh", b.conv("right", a, c))
        h = b.gate("mul", Mul(), a, g, swapped=b.maybe())
    elif kind == "nonlinear":
        a, g = b.conv("left", h, c), b.conv("right", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "silu", g), swapped=b.maybe())
    elif kind == "self":
        h = b.gate("mul", Square(), b.conv("left", h, c))
    elif kind == "quotient":
        a = b.conv("left", h, c)
        g = b.function("denominator", OnePlusSquare(), a if b.maybe() else b.conv("right", h, c))
        h = b.gate("mul", Divide(), a, g)
    else:
        a = b.conv("left", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "sigmoid", a), swapped=b.maybe())
    if b.maybe():
        h = b.conv("after.conv", h, 4)
        h = b.rectifier("after.relu", h)
    b.head(h)


FAMILIES: dict[str, Callable[[Builder, int], None]] = {
    "plain": plain,
    "residual": residual,
    "branches": branches,
    "dense": dense,
    "squeeze_excite": squeeze_excite,
    "bottleneck": bottleneck,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "attention": attention,
    "unet": unet,
    "activations": activations,
    "gates": gates,
}


def family(seed: int) -> str:
    """The name of the family a seed belongs to."""
    return list(FAMILIES)[seed % len(FAMILIES)]


def build(seed: int) -> Network:
    """The network of a seed: a float64 module in eval mode, a batch of two, the domain, the graph."""
    name, k = family(seed), seed // len(FAMILIES)
    choose = random.Random(-1 - seed)
    if name == "attention":
        shape = [choose.choice([3, 4]), 5]
    elif name == "layer_norm":
        shape = choose.choice([[8], [4, 6]])
    elif name == "activations" and choose.random() < 0.4:
        shape = [8]
    elif name == "unet":
        shape = [2, 6, 6]
    else:
        shape = [choose.choice([2, 3]), *[choose.choice([5, 6])] * 2]
    with torch.random.fork_rng(devices=[]):
        # `k // 6` so that a family that takes turns by k meets every domain.
        builder = Builder(seed, shape, ["real", "nonnegative", "box"][(k + k // 6) % 3])
        FAMILIES[name](builder, k)
        return builder.finish()


_build = lru_cache(maxsize=None)(build)


def explain(
    seed: int, target: int | Sequence[int] | Array | None, bias: Bias = "neuron", max_pool: MaxPool = "proportional"
) -> Relevances:
    """The reference's decomposition of the seed's example."""
    network = _build(seed)
    return network.graph.explain(network.example, target, bias, max_pool)


def reference_relevances(
    seed: int,
    target: int | Sequence[int] | Array | None = None,
    bias: Bias = "neuron",
    max_pool: MaxPool = "proportional",
) -> dict[str, Array]:
    """Relevance (B, ...) by module path at every block boundary, with `input`, and `bias`, `dropped`, `score` (B,)."""
    result = explain(seed, target, bias, max_pool)
    # A name with a slash has no module behind it (LayerNorm's u = x/σ).
    named = {name: R for name, R in result.at.items() if "/" not in name}
    return {**named, "bias": result.bias, "dropped": result.dropped, "score": result.score}
