"""Random networks, each written otherwise in one place: the same maps, but for what limits.md lists, and no raw error.

`python tests/helpers/fuzz.py FIRST LAST` (with src/ on the path) runs any of the pairs, saying how far it has come.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import deeptaylor as dt
from fuzz import EQUAL, captured_once, difference, maps, report, report_mixed

PAIRS, AT_ONCE = 2000, 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
def test_random_networks_respelled(first: int) -> None:
    wrong = [line for number in range(first, first + AT_ONCE) if (line := report(number))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 400, 20))])
def test_random_networks_that_mix_samples_are_rejected(first: int) -> None:
    wrong = [line for number in range(first, first + 20) if (line := report_mixed(number))]
    assert not wrong, "\n".join(wrong)


# --- data and constants, element by element --------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "−": operator.sub,
    "·": operator.mul,
    "/": operator.truediv,
}
DOMAINS = {"real": dt.Real(), "non-negative": dt.NonNegative(), "box": dt.Box(-4.0, 5.0)}
BIASES = ("neuron", "spread", "returned")
FEATURES = 6
# Each takes a quarter of a second to be exported; what fails is not made smaller for minutes.
QUICK = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(QUICK, max_examples=400)


class Around(nn.Module):
    """A function between two layers; `first`: a layer and a rectifier, a layer, or nothing below it."""

    def __init__(self, first: str, function: Callable[[Tensor], Tensor], features: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        below = {"rectified": [nn.Linear(features, features), nn.ReLU()], "linear": [nn.Linear(features, features)]}
        self.first = nn.Sequential(*below.get(first, []))
        self.function, self.second, self.last = function, nn.Linear(size, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.function(self.first(x)).flatten(1)).relu()) + 1


def gap(first: str, one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], domain: str) -> float:
    """How far the maps of a network with one function and with the other are apart, in any bias mode."""
    x = torch.randn(3, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    x = x.clamp(min=0) if domain == "non-negative" else x
    size = one(x)[0].numel()
    pair = [Around(first, f, FEATURES, size).double().eval() for f in (one, other)]
    worst = 0.0
    with captured_once():
        for bias in BIASES:
            ours, theirs = (maps(network, x, DOMAINS[domain], bias) for network in pair)
            assert not isinstance(ours, str), ours
            worst = max(worst, difference(ours, theirs))
    return worst


@st.composite
def broadcasts(draw: st.DrawFn) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A random operation with a random constant, or with data, that broadcasts; and its expanded form."""
    view = draw(st.sampled_from([(6,), (6, 1), (1, 6), (2, 3), (2, 1, 3), (1, 2, 3), (2, 3, 1), (1, 6, 1)]))
    kept = [n if n > 1 else draw(st.sampled_from([1, 2, 3])) for n in view]
    beside = [draw(st.sampled_from([1, n])) for n in kept]
    # Where both are one, the result is: the constant may also lack its first axes.
    whole = [max(n, b) for n, b in zip(view, beside, strict=True)]
    values = torch.rand(beside, dtype=torch.float64, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    values = (values + 0.3) * draw(st.sampled_from([1.0, -1.0]))
    lacks = 0
    while lacks < len(beside) - 1 and beside[lacks] == 1:
        lacks += 1
    values = values.reshape(beside[lacks:]) if draw(st.booleans()) else values
    operation = OPERATIONS[draw(st.sampled_from(sorted(OPERATIONS)))]
    data = draw(st.booleans()) and operation is not operator.truediv
    turned = draw(st.booleans()) and operation is not operator.truediv

    def beside_it(x: Tensor) -> Tensor:
        gate = x.mean(1, keepdim=True).sigmoid() if data else None
        return values if gate is None else values * gate.reshape(-1, *[1] * len(beside))

    def apply(a: Tensor, b: Tensor) -> Tensor:
        return operation(b, a) if turned else operation(a, b)

    def short(x: Tensor) -> Tensor:
        return apply(x.reshape(-1, *view), beside_it(x))

    def expanded(x: Tensor) -> Tensor:
        return apply(x.reshape(-1, *view).expand(-1, *whole), beside_it(x).expand(x.shape[0], *whole))

    return short, expanded


Filled = Callable[[Tensor, float], Any]
FILLED: dict[str, Filled] = {
    "ones_like": lambda x, c: torch.ones_like(x) * c,
    "ones": lambda x, c: torch.ones(x.shape[0], x.shape[1], dtype=x.dtype) * c,
    "full": lambda x, c: torch.full(x.shape, c, dtype=x.dtype),
    "full_like": torch.full_like,
    "new_ones": lambda x, c: x.new_ones(x.shape) * c,
    "new_full": lambda x, c: x.new_full((x.shape[0], 1), c),
    "zeros_like": lambda x, c: torch.zeros_like(x) + c,
    "zeros": lambda x, c: c - torch.zeros(1, x.shape[1], dtype=x.dtype),
    "tensor": lambda x, c: torch.tensor([[c]], dtype=x.dtype),
    "expand": lambda x, c: torch.tensor(c, dtype=x.dtype).expand(x.shape),
    "expand_as": lambda x, c: torch.tensor([c], dtype=x.dtype).expand_as(x),
    "repeat": lambda x, c: torch.tensor([c], dtype=x.dtype).repeat(x.shape[0], x.shape[1]),
    "arange": lambda x, c: torch.arange(x.shape[1], dtype=x.dtype) * 0 + c,
    "arange of samples": lambda x, c: torch.arange(x.shape[0], dtype=x.dtype)[:, None] * 0 + c,
    "eye": lambda x, c: torch.eye(x.shape[1], dtype=x.dtype).sum(0) * c,
    "cat": lambda x, c: torch.cat([torch.full_like(x[:, :2], c), torch.full_like(x[:, 2:], c)], 1),
    "stack": lambda x, c: torch.stack([torch.full_like(x[:, 0], c)] * FEATURES, 1),
    "where": lambda x, c: torch.where(torch.ones_like(x) > 0, torch.full_like(x, c), 0.0),
}


@st.composite
def constants(draw: st.DrawFn) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A random chain of operations with numbers, and the same with tensors that hold nothing else."""
    step = st.tuples(
        st.sampled_from(sorted(OPERATIONS)),
        st.sampled_from(sorted(FILLED)),
        st.sampled_from([-1.7, -0.5, 0.4, 1.0, 2.0]),
        st.booleans(),
    )
    steps = draw(st.lists(step, min_size=1, max_size=3))

    def run(x: Tensor, constant: Callable[[str, Tensor, float], Any]) -> Tensor:
        for sign, name, number, turned in steps:
            c = constant(name, x, number)
            x = OPERATIONS[sign](c, x) if turned and sign != "/" else OPERATIONS[sign](x, c)
        return x

    return lambda x: run(x, lambda name, x, c: c), lambda x: run(x, lambda name, x, c: FILLED[name](x, c))


FIRST, DOMAIN = st.sampled_from(["rectified", "linear", "input"]), st.sampled_from(sorted(DOMAINS))


@QUICK
@given(broadcasts(), FIRST, DOMAIN)
def test_broadcasting_has_the_map_of_its_expanded_form(pair: Any, first: str, domain: str) -> None:
    assert gap(first, *pair, domain) <= EQUAL


@QUICK
@given(constants(), FIRST, DOMAIN)
def test_constants_have_the_map_of_the_number_they_hold(pair: Any, first: str, domain: str) -> None:
    assert gap(first, *pair, domain) <= EQUAL


@pytest.mark.slow
@MANY
@given(broadcasts(), FIRST, DOMAIN)
def test_broadcasting_many_times(pair: Any, first: str, domain: str) -> None:
    assert gap(first, *pair, domain) <= EQUAL


@pytest.mark.slow
@MANY
@given(constants(), FIRST, DOMAIN)
def test_constants_many_times(pair: Any, first: str, domain: str) -> None:
    assert gap(first, *pair, domain) <= EQUAL
