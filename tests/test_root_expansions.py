"""Roots, measured: layers small enough to work out by hand, and the library's own roots and maps as judges."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.rules import AlphaBeta, Flat, Rule, WSquare, Z, ZBox, ZPlus

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
from root_expansions import BEFORE, Expansions, Nearest, Passes, apart, expansions, nearest, roots

ONE = torch.ones(1, 2, dtype=torch.float64)


class Summed(nn.Module):
    """Layers, and the sum of what they give."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x).flatten(1).sum(1)
        return y


def linear(*rows: Sequence[float], bias: Sequence[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows)).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def passes(network: nn.Module, x: Tensor, domain: dt.Domain | None = None, **settings: str) -> Passes:
    settings = {"bias": "spread"} | settings
    return Passes(dt.Explainer(network, x, domain or dt.NonNegative(), **settings), x)


def expanded(p: Passes, unit: int, block: int = -1) -> Expansions:
    step = p.blocks[block]
    return expansions(p, step, step.rule, torch.tensor([unit]))


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "move", "inside"),
    [
        # z = 1 − ½ + 2 = 2½. Along v = (1, 0): Σ v w = 1, t = 2½, x̃ = (−1½, 1): a value that no rectifier gives.
        (ZPlus(), (-2.5, 0.0), False),
        # v = (1, −½): Σ v w = 1¼, t = 2, x̃ = (−1, 2).
        (WSquare(), (-2.0, 1.0), False),
        # v = (1, 1): Σ v w = ½, t = 5, x̃ = (−4, −4).
        (Z(), (-5.0, -5.0), False),
        # v = (1, −2): Σ v w = 2, t = 1¼, x̃ = (−¼, 3½).
        (Flat(), (-1.25, 2.5), False),
        # v = (1, 1 − 7): Σ v w = 1 + 3 = 4, t = ⅝, x̃ = (⅜, 4¾).
        (ZBox(0.0, 7.0), (-0.625, 3.75), True),
        # The first input can give 1 and no more, so the second gives 1½: x̃ = (0, 4).
        (Nearest(), (-1.0, 3.0), True),
    ],
    ids=str,
)
def test_a_root_that_leaves_the_domain(rule: Rule, move: tuple[float, ...], inside: bool) -> None:
    p = passes(Summed(linear((1, -0.5), (2, 1), bias=(2, -1)), nn.ReLU()), ONE)
    found = roots(rule, p.blocks[0], p.here, torch.tensor([0]))
    torch.testing.assert_close(found.move[0], torch.tensor([move], dtype=torch.float64), rtol=0, atol=1e-10)
    assert (found.found.tolist(), found.inside.tolist()) == ([True], [inside])


def test_a_negative_bias_keeps_the_root_inside() -> None:
    # z = 2 + 1 − 1 = 2, v = (1, 1), Σ v w = 3, t = ⅔.
    p = passes(Summed(linear((1, -0.5), (2, 1), bias=(2, -1)), nn.ReLU()), ONE)
    found = roots(ZPlus(), p.blocks[0], p.here, torch.tensor([1]))
    torch.testing.assert_close(found.move[0], torch.full_like(ONE, -2 / 3))
    assert (found.inside.tolist(), found.left.tolist()) == ([True], [0.0])


def test_what_a_bias_neuron_keeps() -> None:
    """β / (Σ q + β) = 2 / 3, and the ledger of the engine that has the neuron says the same."""
    network = Summed(linear((1, -0.5), bias=(2,)), nn.ReLU())
    p = passes(network, ONE)
    found = roots(ZPlus(), p.blocks[0], p.here, torch.tensor([0]))
    e = dt.explain(network, ONE, domain=dt.NonNegative(), bias="neuron")
    assert found.left.item() == pytest.approx(2 / 3)
    assert float(e.ledger.bias / e.score) == pytest.approx(2 / 3)


def test_another_unit_switches() -> None:
    """Units x₁, x₁ − ½ x₂ and x₂ at (1, 1): the root (0, 1) of the first turns the second off, not so the other."""
    p = passes(Summed(linear((1, 0), (1, -0.5), (0, 1), bias=(0, 0, 0)), nn.ReLU()), ONE)
    first, second = (expanded(p, unit).summary() for unit in (0, 1))
    # The third unit is not reached by the move; one other is.
    assert (first["beside"], first["region"], first["own"]) == (1, 0, 1)
    assert (second["beside"], second["region"], second["own"]) == (0, 1, 1)
    assert first["above"] is None
    assert max(abs(e[q] or 0) for e in (first, second) for q in ("model", "true")) < 1e-12  # R_j = x_j: c_j is 1


@pytest.mark.parametrize(("bias", "switched"), [(-1.0, 0), (-1.5, 1)])
def test_the_relevance_function_is_not_the_model(bias: float, switched: int) -> None:
    """f = max(0, h₁ + h₂ + b) with h = max(0, x): R₁ = f h₁ / (h₁ + h₂), which is not h₁ times a constant.

    At (1, 1) it is (2 + b) / 2; shortly before the root (0, 1) of the first unit, at (θ, 1), θ max(0, θ + 1 + b) /
    (1 + θ), which grows with a slope that is nearly nothing.
    """
    p = passes(Summed(linear((1, 0), (0, 1), bias=(0, 0)), nn.ReLU(), linear((1, 1), bias=(bias,)), nn.ReLU()), ONE)
    e = expanded(p, 0).summary()
    R, (near, further) = (2 + bias) / 2, (t * max(0.0, t + 1 + bias) / (1 + t) for t in (BEFORE, 2 * BEFORE))
    assert e["true"] == pytest.approx((R - near - (1 - BEFORE) * (further - near) / BEFORE) / R)
    assert e["true"] == pytest.approx(1, abs=0.01)
    assert e["stays"] == pytest.approx(near / R)
    assert e["model"] == pytest.approx(0, abs=1e-12)
    assert (e["above"], e["region"]) == (switched, 1 - switched)
    assert e["beside"] is None  # the other unit does not read what was moved


def test_relevance_that_stays_at_a_root() -> None:
    """f = h₁ − ½ h₂ + 2, its bias spread: all of it is h₁'s, however small h₁ is; 2½ at (1, 1), 1½ + θ at (θ, 1)."""
    p = passes(Summed(linear((1, 0), (0, 1), bias=(0, 0)), nn.ReLU(), linear((1, -0.5), bias=(2,)), nn.ReLU()), ONE)
    e = expanded(p, 0).summary()
    assert e["stays"] == pytest.approx((1.5 + BEFORE) / 2.5)
    assert e["true"] == pytest.approx(0, abs=1e-9)


def test_beyond_a_ceiling_the_unit_itself_is_on_another_piece() -> None:
    # z = 9, but max(0, min(6, z)) = 6: a step of 9 at slope 1 is 3 too much, half of 6.
    e = expanded(passes(Summed(linear((1,), bias=(0,)), nn.ReLU6()), 9 * ONE[:, :1]), 0).summary()
    assert (e["own"], e["region"]) == (0, 0)
    assert (e["model"], e["true"]) == pytest.approx((0.5, 0.5))


def test_shares_at_the_nearest_root() -> None:
    # As above x̃ = (0, 4): w (x − x̃) = (1, 1½), all of z = 2½.
    p = passes(Summed(linear((1, -0.5), bias=(2,)), nn.ReLU()), ONE)
    got = p.reverse(p.here, instead={p.blocks[0].node: Nearest()})["x"]
    torch.testing.assert_close(got, torch.tensor([[1.0, 1.5]], dtype=torch.float64))


def test_a_unit_without_a_root_in_the_domain() -> None:
    # z = x₁ + x₂ + 1 is nowhere 0 for x ≥ 0; the nearest is (0, 0), and the shares are as the inputs.
    p = passes(Summed(linear((1, 1), bias=(1,)), nn.ReLU()), torch.tensor([[3.0, 1.0]], dtype=torch.float64))
    assert not roots(Nearest(), p.blocks[0], p.here, torch.tensor([0])).found
    got = p.reverse(p.here, instead={p.blocks[0].node: Nearest()})["x"]
    torch.testing.assert_close(got, torch.tensor([[3.75, 1.25]], dtype=torch.float64))


def test_two_maps() -> None:
    # (1, 1, 2) / 4 and (2, 1, 1) / 4: ½ (¼ + 0 + ¼); 5 / 6; ranks (1½, 1½, 3) and (3, 1½, 1½).
    found = apart(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([4.0, 2.0, 2.0]))
    assert (found.moved, found.cosine, found.rank) == pytest.approx((0.25, 5 / 6, -0.5))
    assert apart(torch.ones(3), torch.ones(3)).rank is None


# --- with the library as the judge ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "domain"),
    [(ZPlus(), dt.NonNegative()), (Z(), dt.NonNegative()), (ZBox(), dt.Box(-1.0, 2.0)), (WSquare(), dt.Real())],
    ids=str,
)
def test_roots_are_those_of_root_point(rule: Rule, domain: dt.Domain) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5).double()
    with torch.no_grad():
        layer.bias.clamp_(max=0)
    x = torch.rand(1, 6, dtype=torch.float64)
    p = passes(Summed(layer, nn.ReLU()), x, domain)
    units = torch.nonzero(layer(x)[0] > 0).flatten()
    assert len(units) > 1
    found = roots(rule, p.blocks[0], p.here, units)
    known = dt.root_point(rule, layer.weight.T, layer.bias, x[0], domain).point[units]
    torch.testing.assert_close(x + found.move[0], known, rtol=0, atol=1e-10)
    assert found.inside.all()


class Fire(nn.Module):
    """Two convolutions side by side and one that reads both, strided and padded; or the same as a matrix."""

    def __init__(self, dense: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 3, 3, padding=1)
        self.last = nn.Conv2d(5, 4, 3, stride=2, padding=1)
        self.matrix = nn.Linear(5 * 5 * 5, 4 * 3 * 3)
        with torch.no_grad():
            columns = torch.nn.functional.conv2d(torch.eye(125).reshape(-1, 5, 5, 5), self.last.weight, None, 2, 1)
            self.matrix.weight.copy_(columns.flatten(1).T)
            self.matrix.bias.copy_(self.last.bias.repeat_interleave(9))
        self.dense = dense

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x).relu(), self.right(x).relu()], 1)
        return (self.matrix(both.flatten(1)) if self.dense else self.last(both)).relu().flatten(1).sum(1)


def test_windows_of_a_convolution_are_rows_of_a_matrix() -> None:
    x = torch.rand(1, 2, 5, 5, dtype=torch.float64)
    maps = []
    for dense in (False, True):
        p = passes(Fire(dense).double(), x)
        maps.append(p.reverse(p.here, instead={p.blocks[0].node: Nearest()})["x"])
        assert float(maps[-1].sum()) == pytest.approx(float(p.relevance["x"].sum()))
        assert len(p.blocks[0].block.leaves) == 2
    torch.testing.assert_close(*maps, rtol=0, atol=1e-10)
    assert apart(maps[0], p.relevance["x"]).moved > 0.01


def test_a_network_run_again_is_the_network() -> None:
    network, x = Fire(False).double(), torch.rand(1, 2, 5, 5, dtype=torch.float64)
    explainer = dt.Explainer(network, x, dt.NonNegative(), bias="spread")
    p = Passes(explainer, x)
    for path in ("left", "last"):
        found = p.relevance[explainer.captured.engine.boundary(path)]
        torch.testing.assert_close(found, explainer.relevance_at(path, x), rtol=0, atol=1e-12)
    three = torch.rand(3, 2, 5, 5, dtype=torch.float64)
    run = p.moved({"x": three})
    torch.testing.assert_close(p.reverse(run)["x"], explainer(three)[1], rtol=0, atol=1e-12)
    # From the middle: what does not depend on the moved tensor stays as it is.
    a, b = p.blocks[0].block.leaves
    again = p.moved({a: run.values[a][:2]})
    assert torch.equal(again.values[b], p.here.values[b].expand(2, -1, -1, -1))
    joined = torch.cat([again.values[a], again.values[b]], 1)
    torch.testing.assert_close(again.values[p.engine.planned.output], network.last(joined).relu().flatten(1).sum(1))
    explainer.float()
    torch.testing.assert_close(Passes(explainer, x.float()).relevance["x"], explainer(x.float())[1])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (lambda p: Passes(p, ONE.repeat(2, 1)), "roots are measured one input at a time; this is a batch of 2."),
        (
            lambda p: roots(AlphaBeta(), Passes(p, ONE).blocks[0], Passes(p, ONE).here, torch.tensor([0])),
            "AlphaBeta(alpha=2.0, beta=1.0) has no root; ZPlus(), ZBox(), WSquare(), Z(), Flat() and Nearest() have.",
        ),
    ],
)
def test_what_cannot_be_measured(what: Callable[[dt.Explainer], object], text: str) -> None:
    network = Summed(linear((1, 1), bias=(-1,)), nn.ReLU())
    with pytest.raises(dt.DeepTaylorError, match=f"^{re.escape(text)}$"):
        what(dt.Explainer(network, ONE, dt.NonNegative(), bias="neuron"))


def test_the_nearest_root_needs_a_plain_convolution_and_one_input() -> None:
    x = torch.rand(1, 2, 3, 3)
    network = Summed(nn.Conv2d(2, 2, 3, groups=2), nn.ReLU())
    p = passes(network, x)
    with pytest.raises(dt.PlanError, match="the nearest root is not sought in the block of 'conv2d': no plain conv"):
        p.reverse(p.here, instead={"conv2d": Nearest()})
    with pytest.raises(dt.InputError, match="sought for one input, not for 2 at once"):
        dt.Explainer(network, x, dt.NonNegative(), rules={"conv2d": Nearest()}, bias="neuron")(x.repeat(2, 1, 1, 1))


@pytest.mark.parametrize(("high", "point"), [(9.0, (0.0, 4.0)), (3.0, (0.0, 3.0))])
def test_the_nearest_point_of_a_box(high: float, point: tuple[float, ...]) -> None:
    """As in the first case; where the second input may not become 4, the corner is as near to zero as can be."""
    w, z = torch.tensor([[1.0, -0.5]], dtype=torch.float64), torch.tensor([2.5], dtype=torch.float64)
    found = nearest(ONE, w, z, torch.zeros_like(ONE), torch.full_like(ONE, high))
    torch.testing.assert_close(found, torch.tensor([point], dtype=torch.float64))
