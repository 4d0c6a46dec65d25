"""A network built twice at once: as a torch module and as a reference `Graph` with the same weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from network_modules import Add, Clamp, Concat, Mean, Mul, Normalise, Program, Total
from reference import Domain, Graph


class Network(NamedTuple):
    """One random network, twice."""

    model: nn.Module
    example: Tensor
    domain: Domain
    graph: Graph


class Builder:
    """Adds each operation to the module and to the graph; `value` keeps the example's tensors, for their shapes."""

    def __init__(self, seed: int, shape: Sequence[int], domain: str, averaged: bool = False) -> None:
        self.averaged = averaged  # the classes read an average
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

    def any_activation(self, name: str, operand: str) -> str:
        kinds = ["relu", "relu6", "clamp", "hardswish", "gelu", "leaky_relu", "tanh", "sigmoid", "softplus"]
        return self.activation(name, self.choose.choice(kinds), operand)

    def context(self, x: str) -> str:
        """A layer behind an average in the midst of a network: its result is added at every place, activated or not."""
        pool = self.choose.choice([Mean, Total])
        if len(self.shape(x)) == 2:
            g = self.affine("context.pool", pool(1, keepdim=True), x, kind="average")
            g = self.linear("context.layer", g, self.shape(x)[-1])
        else:
            pools = [pool(2, 3, keepdim=True), nn.AdaptiveAvgPool2d(1), nn.AvgPool2d(self.shape(x)[1:])]
            g = self.affine("context.pool", self.choose.choice(pools), x, kind="average")
            g = self.conv("context.layer", g, self.shape(x)[0], 1, 0, bias=self.maybe(0.8))
        if self.maybe(0.8):
            g = self.any_activation("context.act", g)
        return self.add("context.add", x, g)

    def average_all(self, operand: str) -> str:
        """Over places or tokens, in one of its spellings."""
        if len(self.shape(operand)) == 2:
            return self.affine("head.pool", self.choose.choice([Mean, Total])(1), operand, kind="average")
        if len(self.shape(operand)) == 1:
            return operand
        if self.maybe():
            return self.affine("head.pool", Mean(2, 3), operand, kind="average")
        pools = [nn.AdaptiveAvgPool2d(1), nn.AvgPool2d(self.shape(operand)[1:])]
        h = self.affine("head.pool", self.choose.choice(pools), operand, kind="average")
        return self.affine("head.flatten", nn.Flatten(), h, kind="structural")

    def head(self, operand: str) -> str:
        """Average or flatten, perhaps a hidden layer, then the classes."""
        h = operand
        if self.averaged:
            if len(self.shape(h)) > 1 and self.shape(h)[1] > 1 and self.maybe(0.4):
                h = self.context(h)
            h = self.average_all(h)
            if self.maybe():
                h = self.linear("head.hidden", h, 6)
                h = self.any_activation("head.act", h)
            return self.linear("head.classes", h, 3)
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
