"""A network around each spelling."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from network_modules import (
    Add,
    Concat,
    Divide,
    Heads,
    Mean,
    MergeHeads,
    Mul,
    Normalise,
    OnePlusSquare,
    PrependToken,
    Program,
    ScaledDotProduct,
    Shift,
    Subtract,
    Token,
)
from spellings.modules import (
    GLU,
    Causal,
    LargerHalf,
    OuterProduct,
    OuterSum,
    SelfAttention,
    SpreadDivide,
    SpreadFirst,
    SpreadMinus,
    SpreadPlus,
    SpreadTimes,
    SqueezeExcite,
    SwiGLU,
)
from spellings.table import Respell, Spelling, noise


class Usual(NamedTuple):
    """The module as it is usually written, for operands of that shape; `others` are computed from the first."""

    shape: tuple[int, ...]
    make: Callable[[tuple[int, ...]], nn.Module]
    others: tuple[str, ...] = ()


VECTOR, TOKENS, IMAGE = (6,), (3, 6), (4, 8, 8)


def _conv(*arguments: Any, **named: Any) -> Usual:
    return Usual(IMAGE, lambda s: nn.Conv2d(s[0], 4, *arguments, **named))


def _random_norm(s: tuple[int, ...]) -> nn.Module:
    norm = nn.BatchNorm2d(s[0])
    norm.running_mean, norm.running_var = noise(norm.weight, s[0]), 1 + noise(norm.weight, s[0])
    return norm


USUAL: dict[type[nn.Module], list[Usual]] = {
    nn.Linear: [
        Usual(VECTOR, lambda s: nn.Linear(s[-1], 6)),
        Usual(TOKENS, lambda s: nn.Linear(s[-1], 6)),
        Usual(VECTOR, lambda s: _of_rank(nn.Linear(s[-1], 6), 2)),
    ],
    nn.Conv2d: [_conv(3, 1, 1), _conv(1), _conv(3, 1, 1, groups=2), _conv(3, 1, 2, dilation=2)],
    nn.BatchNorm2d: [Usual(IMAGE, _random_norm)],
    Normalise: [
        Usual(IMAGE, lambda s: Normalise(noise(torch.ones(1), s[0], 1, 1), 1 + noise(torch.ones(1), s[0], 1, 1)))
    ],
    Shift: [Usual(TOKENS, lambda s: Shift(noise(torch.ones(1), 1, *s)))],
    nn.LayerNorm: [Usual(TOKENS, lambda s: nn.LayerNorm(s[-1]))],
    nn.GroupNorm: [
        Usual(IMAGE, lambda s: nn.GroupNorm(2, s[0])),
        Usual(IMAGE, lambda s: nn.GroupNorm(1, s[0])),
        Usual(IMAGE, lambda s: nn.GroupNorm(s[0], s[0])),
    ],
    nn.RMSNorm: [Usual(TOKENS, lambda s: nn.RMSNorm(s[-1], 1e-6))],
    nn.LeakyReLU: [Usual(IMAGE, lambda s: nn.LeakyReLU(0.2))],
    nn.AvgPool2d: [Usual(IMAGE, lambda s: nn.AvgPool2d(2))],
    nn.AdaptiveAvgPool2d: [Usual(IMAGE, lambda s: nn.AdaptiveAvgPool2d(2))],
    nn.MaxPool2d: [Usual(IMAGE, lambda s: nn.MaxPool2d(2))],
    nn.LPPool2d: [Usual(IMAGE, lambda s: nn.LPPool2d(2, 2))],
    nn.Softmax: [Usual(IMAGE, lambda s: nn.Softmax(1))],
    nn.Upsample: [Usual((4, 2, 2), lambda s: nn.Upsample(scale_factor=2))],
    Mean: [Usual(IMAGE, lambda s: Mean(2, 3))],
    Token: [Usual(TOKENS, lambda s: Token())],
    Heads: [Usual(TOKENS, lambda s: Heads(2))],
    MergeHeads: [Usual((2, 3, 4), lambda s: MergeHeads())],
    PrependToken: [Usual(TOKENS, lambda s: PrependToken(noise(torch.ones(1), 1, 1, s[-1])))],
    Concat: [Usual(IMAGE, lambda s: Concat(), ("layer", "layer"))],
    Add: [Usual(IMAGE, lambda s: Add(), ("layer",))],
    Subtract: [Usual(IMAGE, lambda s: Subtract(), ("layer",))],
    Mul: [Usual(IMAGE, lambda s: Mul(), ("gate",))],
    Divide: [Usual(IMAGE, lambda s: Divide(), ("denominator",))],
    ScaledDotProduct: [Usual(TOKENS, lambda s: ScaledDotProduct(), ("layer", "layer"))],
    Causal: [Usual(TOKENS, lambda s: Causal(), ("layer", "layer"))],
    SelfAttention: [Usual(TOKENS, lambda s: SelfAttention(s[-1]))],
    SwiGLU: [Usual(VECTOR, lambda s: SwiGLU(s[-1]))],
    GLU: [Usual(VECTOR, lambda s: GLU(s[-1]))],
    SpreadTimes: [Usual(VECTOR, lambda s: SpreadTimes())],
    SpreadPlus: [Usual(VECTOR, lambda s: SpreadPlus())],
    SpreadMinus: [Usual(TOKENS, lambda s: SpreadMinus())],
    SpreadDivide: [Usual(TOKENS, lambda s: SpreadDivide())],
    SpreadFirst: [Usual(TOKENS, lambda s: SpreadFirst())],
    OuterSum: [Usual(VECTOR, lambda s: OuterSum(), ("layer",))],
    OuterProduct: [Usual(VECTOR, lambda s: OuterProduct(), ("gate",))],
    LargerHalf: [Usual(IMAGE, lambda s: LargerHalf())],
    SqueezeExcite: [Usual(IMAGE, lambda s: SqueezeExcite(s[0]))],
}


def _of_rank(layer: nn.Linear, rank: int) -> nn.Linear:
    """The same layer with the first of its singular values alone."""
    u, s, v = torch.linalg.svd(layer.weight.detach().double())
    layer.weight.data = (u[:, :rank] * s[:rank]) @ v[:rank]
    return layer


class _Host:
    """A network with a slot in several places: at the input, behind a rectifier, between layers, before a layer."""

    def __init__(self, usual: Usual, slot: nn.Module | None = None) -> None:
        self.usual, self.model = usual, Program()
        self.generator = torch.Generator().manual_seed(0)
        self.example = torch.randn(2, *usual.shape, generator=self.generator, dtype=torch.float64)
        self.value = {"input": self.example}
        heads = [self._chain(k, places) for k, places in enumerate(("srslslr", "slr", "lrnslr"))]
        self.add("join", Add(), heads[0], heads[1])
        self.add("sum", Add(), "join", heads[2])
        # The top class has a positive score, or there would be nothing to compare.
        self.add("lift", Shift(0.3 - self.value["sum"].amax(1).min().reshape(1, 1)), "sum")

    def add(self, name: str, module: nn.Module, *operands: str) -> str:
        module = module.double().eval().requires_grad_(False)
        for parameter in module.parameters():
            if parameter.ndim == 1:  # biases and factors of norms, which begin as zeros and ones
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=self.generator, dtype=torch.float64))
        self.model.add_module(name, module)
        self.model.steps.append((name, operands))
        self.value[name] = module(*[self.value[o] for o in operands])
        return name

    def layer(self, name: str, operand: str) -> str:
        shape = self.value[operand].shape[1:]
        layer = nn.Conv2d(shape[0], 4, 3, padding=1) if len(shape) == 3 else nn.Linear(shape[-1], 6)
        with torch.no_grad():
            values = torch.randn(layer.weight.shape, generator=self.generator)
            layer.weight.copy_(1.4 * values / layer.weight[0].numel() ** 0.5)
        return self.add(name, layer, operand)

    def _chain(self, k: int, places: str) -> str:
        """s: the slot, if it fits; r: a rectifier; l: a layer; n: a factor and a summand."""
        h = "input"
        for n, place in enumerate(places):
            name = f"chain{k}_{n}"
            if place == "r":
                h = self.add(name, nn.ReLU(), h)
            elif place == "l":
                h = self.layer(name, h)
            elif place == "n":
                sizes = (*self.value[h].shape[1:2], *[1] * (self.value[h].ndim - 2))
                h = self.add(name, Normalise(noise(self.example, *sizes), 1 + noise(self.example, *sizes)), h)
            elif self._fits(shape := tuple(self.value[h].shape[1:])):
                others = [self._other(f"{name}_{m}", kind, h) for m, kind in enumerate(self.usual.others)]
                h = self.add(f"slot{name}", self.usual.make(shape), h, *others)
        h = self.add(f"flat{k}", nn.Flatten(), h)
        return self.add(f"head{k}", nn.Linear(self.value[h].shape[1], 3), h)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.usual.shape) and (len(shape) < 3 or shape[-1] > 1)

    def _other(self, name: str, kind: str, h: str) -> str:
        o = self.layer(name, h)
        if kind == "gate":
            return self.add(f"{name}_gate", nn.Sigmoid(), o)
        return self.add(f"{name}_below", OnePlusSquare(), o) if kind == "denominator" else o

    def respelled(self, respell: Respell) -> nn.Module | None:
        """The same network with every slot respelled; None where the spelling applies to none of them."""
        model, found = Program(), 0
        model.steps = self.model.steps
        for name, operands in self.model.steps:
            module = self.model.get_submodule(name)
            if name.startswith("slot"):
                other = respell(module, *[self.value[o] for o in operands])
                found += other is not None
                module = module if other is None else other
            model.add_module(name, module)
        return model.eval().requires_grad_(False) if found else None


class Pair(NamedTuple):
    """Two networks that are the same function, and an input."""

    usual: nn.Module
    other: nn.Module
    example: Tensor


@cache
def _host(kind: type[nn.Module], variant: int) -> _Host:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _Host(USUAL.get(kind, [Usual(IMAGE, lambda s: kind())])[variant])


def pair(spelling: Spelling) -> Pair:
    """The pair of a row of the table."""
    for variant in range(len(USUAL.get(spelling.usual, [None]))):
        host = _host(spelling.usual, variant)
        other = host.respelled(spelling.respell)
        if other is not None:
            return Pair(host.model, other, host.example)
    raise ValueError(f"{spelling.name}: no module of the table's is written so")
