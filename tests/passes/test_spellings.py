"""Equal functions have equal maps, however they are written: the table of `spellings`, but for those in limits.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from fuzz import BIASES, EQUAL, Maps, captured_once, difference, maps
from spellings import ALONE, DIFFER, Spelling, key, pair
from spellings.table import noise

ROOT = Path(__file__).parents[2]
DOMAINS = {"real": dt.Real(), "non-negative": dt.NonNegative(), "box": dt.Box(-4.0, 5.0)}
# What is named most often, what differs, and some of the rest; all of it is in the slow suite.
NAMED = (
    "low rank",
    "two linear",
    "multiply and",
    "layer norm of all axes",
    "sqrt",
    "channels last",
    "permuted",
    "by hand",
)
FAST = [s for k, s in enumerate(ALONE) if k % 16 == 0 or key(s) in DIFFER or any(name in s.name for name in NAMED)]


def input_in(domain: str, x: Tensor) -> Tensor:
    return x.clamp(min=0) if domain == "non-negative" else x


@cache
def usual_maps(model: nn.Module, domain: str, bias: str) -> Maps:
    """The maps of a network as it is usually written, which many rows share."""
    return maps(model, input_in(domain, EXAMPLES[model]), DOMAINS[domain], bias)


EXAMPLES: dict[nn.Module, Tensor] = {}


def gaps(spelling: Spelling, settings: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """How far the maps of a pair are apart, for each domain and bias."""
    usual, other, example = pair(spelling)
    EXAMPLES[usual] = example
    found = {}
    with captured_once():
        for domain, bias in settings:
            ours = usual_maps(usual, domain, bias)
            assert not isinstance(ours, str), ours
            found[domain, bias] = difference(
                ours, maps(other, input_in(domain, EXAMPLES[usual]), DOMAINS[domain], bias)
            )
    return found


# Constants beside the input of a box are not followed yet, nor are constants at an input whose first axis is not that
# of the samples.
NOT_IN_A_BOX = {
    "PrependToken: expanded otherwise",
    "Conv2d: padding by zeros beside it",
    "SpreadTimes: a new first axis, moved",
}


def check(spelling: Spelling, settings: list[tuple[str, str]]) -> None:
    if key(spelling) in NOT_IN_A_BOX:
        settings = [(domain, bias) for domain, bias in settings if domain != "box"]
    found = gaps(spelling, settings)
    if key(spelling) in DIFFER:
        # More than nothing, or it need not be listed; no more than the list says.
        assert EQUAL < max(found.values()) <= DIFFER[key(spelling)], found
    else:
        assert max(found.values()) <= EQUAL, found


def test_the_table_is_of_equal_functions() -> None:
    assert len(ALONE) >= 280
    assert len({key(s) for s in ALONE}) == len(ALONE)
    for spelling in ALONE:
        both = pair(spelling)
        with torch.no_grad():
            torch.testing.assert_close(both.usual(both.example), both.other(both.example), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spelling", FAST, ids=key)
def test_equal_functions_have_equal_maps(spelling: Spelling) -> None:
    check(spelling, [("real", "neuron"), ("non-negative", "spread"), ("box", "neuron")])


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ALONE, ids=key)
def test_equal_functions_have_equal_maps_in_every_mode(spelling: Spelling) -> None:
    check(spelling, [(domain, bias) for domain in DOMAINS for bias in BIASES])


def test_what_differs_is_listed_with_its_size() -> None:
    rows = re.findall(r"^\| `(.+?)` \|.*\| ([\d.]+) \|$", (ROOT / "docs" / "limits.md").read_text(), re.MULTILINE)
    assert {name: float(size) for name, size in rows} == DIFFER
    assert set(DIFFER) <= {key(s) for s in ALONE}


@pytest.mark.parametrize("bias", BIASES)
def test_the_larger_half_is_max_pooling_with_a_winner(bias: str) -> None:
    """The reason that limits.md gives for their difference."""
    both = pair(next(s for s in ALONE if key(s) == "LargerHalf: maximum of two halves"))
    x = input_in("non-negative", both.example) + 0.01 * noise(both.example, *both.example.shape).abs()  # no equals
    usual, other = (
        dt.Explainer(network, x, dt.NonNegative(), bias=bias, max_pool="winner").explain(x).relevance
        for network in both[:2]
    )
    torch.testing.assert_close(other, usual, rtol=1e-10, atol=1e-10)


# --- what used to be read wrongly -------------------------------------------------------------------------------------


class Root(nn.Module):
    """A root of an average of squares, with a divisor and a factor of its own."""

    def __init__(self, divisor: int | None, factor: float) -> None:
        super().__init__()
        self.divisor, self.factor = divisor, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.avg_pool2d(x.pow(2), 2, divisor_override=self.divisor)
        return (pooled * self.factor).pow(0.5).flatten(1)


@pytest.mark.parametrize(("divisor", "factor"), [(None, 4.0), (1, 4.0), (1, 1.0), (3, 2.5), (None, 1.0)])
def test_a_pooling_of_squares_keeps_its_factor(divisor: int | None, factor: float) -> None:
    """The score is the network's own, and shares are those of L² pooling whatever the factor."""
    network = Root(divisor, factor)
    x = torch.tensor([[[[3.0, 4.0], [0.0, 0.0]]]], dtype=torch.float64)  # (9 + 16) / 4 or / divisor
    e = dt.Explainer(network, x, dt.NonNegative(), bias="neuron").explain(x)
    f = (25 / (divisor or 4) * factor) ** 0.5
    torch.testing.assert_close(e.score, torch.tensor([f], dtype=torch.float64))
    torch.testing.assert_close(e.relevance[0, 0, 0], torch.tensor([3 / 7, 4 / 7], dtype=torch.float64) * f)


class Gated(nn.Module):
    """A product of two layers, one of them behind an activation that is written out."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.a, self.b, self.write = nn.Linear(4, 3), nn.Linear(4, 3), write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, z = self.a(x), self.b(x)
        if self.write == "product":
            return a * (z * torch.sigmoid(z))
        return a * (z / (1 + torch.exp(-z))) if self.write == "quotient" else torch.nn.functional.silu(z) * a


@pytest.mark.parametrize("write", ["product", "quotient"])
def test_an_activation_that_is_written_out_is_still_a_gate(write: str) -> None:
    torch.manual_seed(3)
    network = Gated(write).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    found = dt.Explainer(network, x, dt.Real(), bias="neuron").explain(x).relevance
    network.write = "silu"
    torch.testing.assert_close(
        found, dt.Explainer(network, x, dt.Real(), bias="neuron").explain(x).relevance, rtol=1e-10, atol=1e-10
    )
