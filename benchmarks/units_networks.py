"""Small networks set by hand, each with an input, a reference and the answer that is right.

The right answer is the Shapley value of the named parts of the input: every order in which they pass from the reference
to the input counts the same. `why` names the axioms that give it without any computation, if there are such: symmetry
(parts with the same role get the same), dummy (a part without effect gets nothing), and the sum (all parts together
get the difference of the scores).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt

Rows = Sequence[Sequence[float]]


@dataclass
class Unit:
    """A network and a question with a known answer, one number for each part of the input."""

    name: str
    network: nn.Module
    x: Tensor
    answer: tuple[float, ...]
    why: str
    reference: Any = "zeros"  # None: the question has no natural reference, so none is given
    target: Any = 0
    parts: Tensor | None = None  # number of the part of each input element, from 0; None: each element is a part

    def __post_init__(self) -> None:
        self.network = self.network.double().eval()
        if self.parts is None:
            self.parts = torch.arange(self.x[0].numel()).reshape(self.x.shape[1:])

    @property
    def compared(self) -> Tensor:
        """The reference as a tensor; zeros if the question has none, as in the definition of a mark on empty ground."""
        return self.reference if isinstance(self.reference, Tensor) else torch.zeros_like(self.x)

    def by_part(self, relevance: Tensor) -> Tensor:
        """Sum relevance (1, …) over the parts."""
        assert self.parts is not None
        R = relevance[0].detach().double().flatten()
        return R.new_zeros(int(self.parts.max()) + 1).index_add(0, self.parts.flatten(), R)


# --- how networks are set ---------------------------------------------------------------------------------------------


def linear(weight: Rows, bias: Sequence[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias) if bias else torch.zeros(len(weight)))
    return layer


def perceptron(*layers: Any, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Layers (weight, bias) or weight, with an activation between them."""
    made: list[nn.Module] = []
    for layer in layers:
        made += [linear(*layer) if isinstance(layer, tuple) else linear(layer), act()]
    return nn.Sequential(*made[:-1])


class Formula(nn.Module):
    """A function of the columns, written as a formula; activations are modules, so that captum sees them."""

    def __init__(self, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        self.formula = formula
        self.relu, self.sigmoid, self.silu = nn.ReLU(), nn.Sigmoid(), nn.SiLU()
        self.tanh, self.softmax = nn.Tanh(), nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self, *x.unbind(1)).unsqueeze(1)


def formula(f: Callable[..., Tensor]) -> Formula:
    return Formula(f)


class Norm(nn.Module):
    """A norm of the columns, then a linear layer."""

    def __init__(self, norm: nn.Module, weight: Rows) -> None:
        super().__init__()
        self.norm, self.out = norm, linear(weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.norm(x))
        return y


class Residual(nn.Module):
    """x + branch(x), then a linear layer."""

    def __init__(self, branch: nn.Module, weight: Rows) -> None:
        super().__init__()
        self.branch, self.out = branch, linear(weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(x + self.branch(x))
        return y


class Attention(nn.Module):
    """Tokens of a key and a value; a fixed query reads the value whose key is largest."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.key, self.value = linear([[sharpness, 0.0]]), linear([[0.0, 1.0]])
        self.softmax = nn.Softmax(1)

    def forward(self, tokens: Tensor) -> Tensor:
        weights = self.softmax(self.key(tokens))
        return (weights * self.value(tokens)).sum(1)


class Detector(nn.Module):
    """A convolution that answers to a pattern, an activation, and a pool over all places."""

    def __init__(
        self, patterns: Tensor, bias: float, pool: str, act: nn.Module | None = None, out: Rows = ((1.0,),)
    ) -> None:
        super().__init__()
        axes = patterns.ndim - 2
        kind = nn.Conv1d if axes == 1 else nn.Conv2d
        self.conv = kind(patterns.shape[1], len(patterns), tuple(patterns.shape[2:]))  # type: ignore[arg-type]
        with torch.no_grad():
            self.conv.weight.copy_(patterns)
            assert self.conv.bias is not None
            self.conv.bias.fill_(bias)
        pools = {
            ("max", 1): nn.AdaptiveMaxPool1d, ("max", 2): nn.AdaptiveMaxPool2d,
            ("mean", 1): nn.AdaptiveAvgPool1d, ("mean", 2): nn.AdaptiveAvgPool2d,
        }  # fmt: skip
        self.act, self.pool, self.flatten = act or nn.ReLU(), pools[pool, axes](1), nn.Flatten()
        self.out = linear(out)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.flatten(self.pool(self.act(self.conv(x)))))
        return y


class Gated(Detector):
    """The same, its places multiplied by a gate that the mean of the picture opens."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.conv(x))
        gate = torch.sigmoid(8 * x.mean((2, 3), keepdim=True))
        y: Tensor = self.out(self.flatten(self.pool(h * gate)))
        return y


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def even(value: float, parts: int) -> tuple[float, ...]:
    return (value / parts,) * parts


# --- logic ------------------------------------------------------------------------------------------------------------

AND, OR = ([[1, 1]], [-1]), ([[-1, -1]], [1])
SYMMETRY, DUMMY, SHAPLEY = "symmetry", "dummy", "Shapley value"


def logic() -> list[Unit]:
    one = [[1]]
    xor = perceptron(([[1, 1, 0], [1, 1, 0], [0, 0, 1]], [0, -1, 0]), [[1, -2, 1]])
    both = perceptron(
        ([[-1, -1, 0, 0], [0, 0, -1, -1]], [1, 1]), ([[-1, -1]], [1]), [[1]]
    )  # 1 − OR(a, b), 1 − OR(c, d); one minus both
    majority = perceptron(([[1, 1, 1], [1, 1, 1]], [-1, -2]), [[1, -1]])
    return [
        Unit("AND", perceptron(AND, one), row(1, 1), (0.5, 0.5), SYMMETRY),
        Unit("AND of three", perceptron(([[1] * 3], [-2]), one), row(1, 1, 1), even(1, 3), SYMMETRY),
        Unit("OR", perceptron(OR, ([[-1]], [1])), row(1, 1), (0.5, 0.5), SYMMETRY),
        Unit("OR, one is there", perceptron(OR, ([[-1]], [1])), row(1, 0), (1, 0), DUMMY),
        Unit("OR of three", perceptron(([[-1] * 3], [1]), ([[-1]], [1])), row(1, 1, 1), even(1, 3), SYMMETRY),
        Unit("AND of two ORs", both, row(1, 1, 1, 1), even(1, 4), SYMMETRY),
        Unit("AND of two ORs, one is missing", both, row(1, 0, 1, 1), (2 / 3, 0, 1 / 6, 1 / 6), SHAPLEY),
        Unit("majority of three", majority, row(1, 1, 1), even(1, 3), SYMMETRY),
        Unit("majority of three, two are there", majority, row(1, 1, 0), (0.5, 0.5, 0), f"{SYMMETRY}, {DUMMY}"),
        Unit("XOR, one is there", xor, row(1, 0, 0), (1, 0, 0), DUMMY),
        Unit("XOR of both, and a third", xor, row(1, 1, 1), (0, 0, 1), f"{SYMMETRY}, sum"),
        Unit(
            "AND of unequal weights", perceptron(([[2, 1]], [-2]), one), row(1, 1), (0.5, 0.5),
            "Shapley value: neither alone has an effect",
        ),
    ]  # fmt: skip


# --- absence, interaction, cancellation -------------------------------------------------------------------------------


def effects() -> list[Unit]:
    absent, other = row(1, 0), row(0, 1)
    eye = [[1, 0], [0, 1]]
    return [
        Unit("absence", perceptron(([[-1, 0]], [1]), [[1]]), row(0, 1), (1, 0), DUMMY, row(1, 1)),
        Unit("pertinent negative", perceptron([[1, -1]], [[1]]), absent, (0.5, 0.5), SYMMETRY, other),
        Unit(
            "pertinent negative beside a feature",
            perceptron(([[1, 0], [0, -1]], [0, 1]), [[1, 2]]), absent, (1, 2), SHAPLEY, other,
        ),
        Unit(
            "interacting features: b adds to the weight of a",
            perceptron(([[1, 0], [1, 1]], [0, -1]), [[1, 2]]), row(1, 1), (2, 1), SHAPLEY,
        ),
        Unit(
            "interacting features: a turns the sign of b",
            perceptron(([[2, 1], [-2, 1]], [-2, 0]), [[1, -1]]), row(1, 1), (1, 0), SHAPLEY,
        ),
        Unit(
            "conflict: c cancels a", perceptron([[1, 0, -1], [0, 1, 0]], [[1, 1]]), row(1, 1, 1),
            (0.5, 1, -0.5), SHAPLEY,
        ),
        Unit("b − b + a", perceptron([[0, 1], [0, 1], [1, 0]], [[1, -1, 1]]), row(1, 1), (1, 0), DUMMY),
        Unit("(a + b) − b, in layers", perceptron([[1, 1], [0, 1]], [[1, -1]], [[1]]), row(1, 1), (1, 0), DUMMY),
        Unit("less inhibition", perceptron(([[-1, 0]], [1]), ([[-1]], [1]), [[1]]), row(1, 1), (1, 0), DUMMY),
        Unit("duplicated feature", perceptron(([[1, 1]], [-0.5]), [[1]]), row(1, 1), (0.75, 0.75), SYMMETRY),
        Unit("dead feature", perceptron(([[1, 0], [0, 1]], [0, -10]), [[1, 5]]), row(1, 3), (1, 0), DUMMY),
        Unit("constant", perceptron((eye, [0.5, 0]), ([[1, 0]], [5])), row(1, 1), (1, 0), DUMMY),
        Unit(
            "zigzag (shattered gradient)", perceptron((
                [[1, 0], [1, 0], [1, 0], [0, 1], [0, 1]], [0, -1, -2, 0, -1]
            ), [[4, -8, 8, 4, -8]]), row(2.5, 1.25), (2, 3), "additive",
        ),
        Unit("negative weight", perceptron(eye, [[1, -0.5]]), row(1, 1), (1, -0.5), "additive"),
        Unit("negative value", perceptron(eye, [[2, 1]], act=nn.LeakyReLU), row(1, -1), (2, -0.01), "additive"),
    ]  # fmt: skip


# --- shapes of one value ----------------------------------------------------------------------------------------------


def curves() -> list[Unit]:
    step = perceptron(([[1, 0], [1, 0], [0, 1]], [-1, -2, 0]), [[1, -1, 0.5]])
    high = torch.tensor(3, dtype=torch.float64)
    return [
        Unit(
            "saturation", perceptron(([[-1, 0], [0, 1]], [1, 0]), ([[-1, 0.5]], [1])), row(3, 1), (1, 0.5),
            "additive",
        ),
        Unit("threshold", step, row(3, 1), (1, 0.5), "additive"),
        Unit(
            "tanh that saturates", perceptron([[3, 0], [0, 0.5]], [[1, 1]], act=nn.Tanh), row(1, 1),
            (float(torch.tanh(high)), float(torch.tanh(high / 6))), "additive",
        ),
        Unit(
            "sigmoid of a sum", perceptron([[1, 1, 0]], [[1]], act=nn.Sigmoid), row(1, 1, 1),
            (*even(float(torch.sigmoid(high - 1)) - 0.5, 2), 0), f"{SYMMETRY}, {DUMMY}",
        ),
        Unit("square", formula(lambda m, a, b: a**2 + b), row(2, 1), (4, 1), "additive"),
        Unit("maximum, equal", formula(lambda m, a, b: torch.maximum(a, b)), row(1, 1), (0.5, 0.5), SYMMETRY),
        Unit("maximum, unequal", formula(lambda m, a, b: torch.maximum(a, b)), row(2, 1), (1.5, 0.5), SHAPLEY),
        Unit(
            "maximum by a rectifier", perceptron([[1, -1], [0, 1]], [[1, 1]]), row(2, 1), (1.5, 0.5), SHAPLEY
        ),
        Unit("minimum, equal", formula(lambda m, a, b: torch.minimum(a, b)), row(1, 1), (0.5, 0.5), SYMMETRY),
        Unit(
            "minimum, unequal", formula(lambda m, a, b: torch.minimum(a, b)), row(2, 1), (0.5, 0.5),
            "Shapley value: neither alone has an effect",
        ),
    ]  # fmt: skip


# --- gates, products and attention ------------------------------------------------------------------------------------


def gates() -> list[Unit]:
    def sigmoid(v: float) -> float:
        return float(torch.sigmoid(torch.tensor(v, dtype=torch.float64)))

    def silu(v: float) -> float:
        return v * sigmoid(v)

    opened, closed, sharp = sigmoid(2), sigmoid(-8), sigmoid(10)
    tokens = torch.tensor([[[10, 1], [0, 0]]], dtype=torch.float64)
    two = perceptron([[1, 1, 0]], [[1]], act=nn.GELU)
    gelu = 2 * float(torch.special.ndtr(torch.tensor(2, dtype=torch.float64)))
    return [
        Unit("product", formula(lambda m, a, b: a * b), row(2, 3), (3, 3), SYMMETRY),
        Unit("product of three", formula(lambda m, a, b, c: a * b * c), row(1, 1, 1), even(1, 3), SYMMETRY),
        Unit(
            "a · sigmoid(b), open", formula(lambda m, a, b: a * m.sigmoid(b)), row(1, 2),
            ((0.5 + opened) / 2, (opened - 0.5) / 2), SHAPLEY,
        ),
        Unit(
            "a · sigmoid(b), closed", formula(lambda m, a, b: a * m.sigmoid(b)), row(1, -8),
            ((0.5 + closed) / 2, (closed - 0.5) / 2), SHAPLEY,
        ),
        Unit("silu(a) · b", formula(lambda m, a, b: m.silu(a) * b), row(2, 1), even(silu(2), 2), SYMMETRY),
        Unit("GELU of a sum", two, row(1, 1, 1), (*even(gelu, 2), 0), f"{SYMMETRY}, {DUMMY}"),
        Unit(
            "SiLU, b − b + a", perceptron([[0, 1], [0, 1], [1, 0]], [[1, -1, 1]], act=nn.SiLU), row(1, 1),
            (silu(1), 0), DUMMY,
        ),
        Unit("hard swish of a sum", perceptron([[1, 1]], [[1]], act=nn.Hardswish), row(2, 2), (2, 2), SYMMETRY),
        Unit(
            "attention picks one of two values", Attention(1), tokens,
            ((sharp - 0.5) / 2, (0.5 + sharp) / 2, 0, 0), SHAPLEY,
        ),
        Unit(
            "attention: the other token is not read", Attention(4),
            torch.tensor([[[10, 1], [0, 5]]], dtype=torch.float64), (1, 0),
            "dummy (but for e⁻⁴⁰), whole tokens, the key of the first in the reference",
            torch.tensor([[[10, 0], [0, 0]]], dtype=torch.float64), 0, torch.tensor([[0, 0], [1, 1]]),
        ),
        Unit(
            "normalised by the sum, one changed", formula(lambda m, a, b: a / (a + b)), row(3, 1), (0.25, 0), DUMMY,
            row(1, 1),
        ),
        Unit(
            "normalised by the sum, both changed", formula(lambda m, a, b: a / (a + b)), row(3, 2),
            ((1 / 4 + 3 / 5 - 1 / 3) / 2, (1 / 3 - 1 / 2 + 3 / 5 - 3 / 4) / 2), SHAPLEY, row(1, 1),
        ),
    ]  # fmt: skip


# --- norms, residuals, classes ----------------------------------------------------------------------------------------


def layers() -> list[Unit]:
    n = 1 / (0.5 + 1e-5) ** 0.5
    branch = perceptron([[0, 1]], [[0], [-1]])  # takes b away again
    shared = linear([[1, 0, 1], [0, 1, 1]])
    three = nn.Sequential(
        linear([[1, 0, 1], [0, 1, 1], [0, 0, 1]]),
        nn.ReLU(),
        linear([[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    )
    norm = nn.BatchNorm1d(2)
    norm.running_mean, norm.running_var = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.25])
    normed = nn.Sequential(norm, linear([[1, 1]], [0]), nn.ReLU(), linear([[1]]))
    top = float(normed.double().eval()(row(1, 1)).detach())

    top_two = float(torch.sigmoid(torch.tensor(2, dtype=torch.float64))) - 0.5

    def odds(*z: float) -> float:
        return z[0] - float(torch.logsumexp(torch.tensor(z[1:], dtype=torch.float64), 0))

    alone = odds(2, 0, 0) - odds(0, 0, 0), odds(0, 1, 0) - odds(0, 0, 0)
    last = odds(2, 1, 0) - odds(0, 1, 0), odds(2, 1, 0) - odds(2, 0, 0)
    return [
        Unit("batch norm before AND", normed, row(1, 1), even(top, 2), SYMMETRY),
        Unit(
            "layer norm, a difference", Norm(nn.LayerNorm(4), [[1, -1, 0, 0]]), row(1, -1, 0, 0), (n, n, 0, 0),
            f"{SYMMETRY}, {DUMMY}",
        ),
        Unit("RMS norm, one changed", Norm(nn.RMSNorm(2, eps=0), [[1, 0]]), row(7, 1), (0.4, 0), DUMMY, row(1, 1)),
        Unit("less the mean", formula(lambda m, a, b, c: m.relu(a - (a + b + c) / 3)), row(3, 0, 0), (2, 0, 0), DUMMY),
        Unit("residual that keeps a and takes b away", Residual(branch, [[1, 1]]), row(1, 1), (1, 0), DUMMY),
        Unit(
            "residual with AND", Residual(perceptron(AND, [[2], [0]]), [[1, 1]]), row(1, 1), (2, 2), SYMMETRY
        ),
        Unit(
            "probability, a feature of both classes", nn.Sequential(shared, nn.Softmax(1)), row(2, 2, 5),
            (top_two, -top_two, 0), f"{SYMMETRY}, {DUMMY}", "zeros", dt.probability(0),
        ),
        Unit("difference of two classes", shared, row(2, 1, 5), (2, -1, 0), DUMMY, "zeros", dt.margin(0, 1)),
        Unit(
            "log-odds, a feature of all classes", three, row(2, 1, 5), (
                (alone[0] + last[0]) / 2, (alone[1] + last[1]) / 2, 0
            ), f"{SHAPLEY}, {DUMMY}", "zeros", dt.log_odds(0),
        ),
    ]  # fmt: skip


# --- signals and pictures ---------------------------------------------------------------------------------------------

SIDE, MARGIN = 16, 2  # of a picture; pixels around a mark that belong to it, because maps of pictures are smoothed
NEAR, FAR = 3, 10  # first row and column of a mark
CROSS = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
CORNERS = 1 - CROSS
IS_CROSS, IS_CORNERS = CROSS - CORNERS, CORNERS - CROSS  # the answer is 5 or 4 for the mark, less for any other


def ground(*marks: tuple[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Marks on empty ground, and the number of each pixel's part: the ground is the last."""
    x = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64)
    parts = torch.full((1, SIDE, SIDE), len(marks))
    for k, (at, mark) in enumerate(marks):
        around = slice(at - MARGIN, at + 3 + MARGIN)
        x[0, 0, at : at + 3, at : at + 3], parts[0, around, around] = mark.double(), k
    return x, parts


def signal(*peaks: tuple[int, float]) -> tuple[Tensor, Tensor]:
    """Peaks of a signal, and the number of each place's part: the rest is the last."""
    x, parts = torch.zeros(1, 1, SIDE, dtype=torch.float64), torch.full((1, SIDE), len(peaks))
    for k, (at, height) in enumerate(peaks):
        x[0, 0, at], parts[0, at] = height, k
    return x, parts


def signals() -> list[Unit]:
    point, pulse = torch.ones(1, 1, 1), torch.tensor([[[1, -2, 1]]])
    two, two_parts = signal((4, 3), (11, 3))
    one, one_parts = signal((4, 3), (11, 1))
    shape, _ = signal((6, 1), (8, 1))
    inside = ((torch.arange(SIDE) < 6) | (torch.arange(SIDE) > 8)).long()[None]
    return [
        Unit(
            "signal: two equal peaks, the highest", Detector(point, -1, "max"), two, (1, 1, 0), f"{SYMMETRY}, {DUMMY}",
            parts=two_parts,
        ),
        Unit(
            "signal: two peaks, the mean", Detector(point, -0.5, "mean"), one, (2.5 / 16, 0.5 / 16, 0), "additive",
            parts=one_parts,
        ),
        Unit("signal: a shape", Detector(pulse, -1, "max"), shape, (1, 0), DUMMY, parts=inside),
        Unit("signal: a shape, no reference", Detector(pulse, -1, "max"), shape, (1, 0), DUMMY, None, parts=inside),
    ]  # fmt: skip


def pictures() -> list[Unit]:
    one, one_parts = ground((NEAR, CROSS))
    two, two_parts = ground((NEAR, CROSS), (FAR, CROSS))
    other, other_parts = ground((NEAR, CROSS), (FAR, CORNERS))
    cross, white = IS_CROSS[None, None], torch.ones(1, 1, SIDE, SIDE, dtype=torch.float64)
    both, each = torch.stack([IS_CROSS, IS_CORNERS])[:, None], ((1, 0), (0, 1))
    edges = torch.tensor([2, -3], dtype=torch.float64)
    first = torch.tensor([[1, 0]], dtype=torch.float64)  # weights of the outputs
    smooth = float(torch.diff(-torch.nn.functional.silu(edges)))
    opened = 2 * float(torch.sigmoid(8 * one.mean()))
    return [
        Unit("picture: a mark", Detector(cross, -3, "max"), one, (2, 0), DUMMY, parts=one_parts),
        Unit("picture: a mark, no reference", Detector(cross, -3, "max"), one, (2, 0), DUMMY, None, parts=one_parts),
        Unit(
            "picture: the same mark twice", Detector(cross, -3, "max"), two, (1, 1, 0), f"{SYMMETRY}, {DUMMY}",
            parts=two_parts,
        ),
        Unit(
            "picture: a mark beside another mark, no reference", Detector(both, -3, "max", out=each), other, (2, 0, 0),
            DUMMY, None, first, other_parts,
        ),
        Unit(
            "picture: a mark beside another mark", Detector(both, -3, "max", out=each), other, (2, 0, 0), DUMMY,
            target=first, parts=other_parts,
        ),
        Unit(
            "picture: two marks, class difference", Detector(both, -3, "max", out=each), other, (2, -1, 0), "additive",
            target=dt.margin(0, 1), parts=other_parts,
        ),
        Unit(
            "picture: a dark mark on white", Detector(-cross, -3, "max"), 1 - one, (1, 0), DUMMY, white,
            parts=one_parts,
        ),
        Unit(
            "picture: a mark, SiLU, no reference", Detector(cross, -3, "max", nn.SiLU()), one, (smooth, 0), DUMMY, None,
            parts=one_parts,
        ),
        Unit("picture: a gate by its mean", Gated(cross, -3, "max"), one, (opened, 0), DUMMY, parts=one_parts),
        Unit(
            "picture: mean ink", Detector(torch.full((1, 1, 3, 3), 1 / 9), 0, "mean"), two,
            (5 / 196, 5 / 196, 0), SYMMETRY, parts=two_parts,
        ),
    ]  # fmt: skip


def units() -> list[Unit]:
    """All of them, in the order of the table."""
    return [*logic(), *effects(), *curves(), *gates(), *layers(), *signals(), *pictures()]
