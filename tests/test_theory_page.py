"""The examples and the claims of docs/theory.md that can be computed are computed here, with the library."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor import rules
from deeptaylor.methods.root_point import root_point, taylor_term

TEXT = (Path(__file__).parents[1] / "docs" / "theory.md").read_text(encoding="utf-8")


def read_section(title: str) -> str:
    """Return the text below a heading, up to the next heading of the same level."""
    found = re.search(rf"^(#+) {re.escape(title)}$", TEXT, re.MULTILINE)
    assert found is not None, f"the page has no section {title!r}"
    rest = TEXT[found.end() :]
    end = re.search(rf"^#{{2,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def read_rows(title: str, column: str) -> dict[str, list[str]]:
    """Return the rows of a section's table that has this column, by their first cell."""
    for table in re.findall(r"(?:^\|.*\n)+", read_section(title), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        if column in [cell.strip(" |") for cell in head]:
            return {cells[0].strip("| "): [cell.strip("| ") for cell in cells[1:]] for cells in rows}
    raise AssertionError(f"no table of {title!r} has the column {column!r}")


def read_numbers(cell: str) -> list[float]:
    """Return the numbers of a cell such as `40/11, −2`."""
    return [float(Fraction(part.strip().replace("−", "-"))) for part in cell.split(",")]


def double(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def linear(weight: Sequence[Sequence[float]], bias: float | None = None) -> nn.Linear:
    """A layer of these weights, one row per unit, and one bias for all units."""
    made = nn.Linear(len(weight[0]), len(weight), bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        made.weight.copy_(double(*weight))
        if bias is not None:
            made.bias.fill_(bias)
    return made


def close(found: Any, expected: Sequence[float]) -> None:
    values = found.flatten().tolist() if isinstance(found, Tensor) else list(found)
    assert values == pytest.approx(list(expected), abs=1e-13)


# --- sections 1, 3 ----------------------------------------------------------------------------------------------------


def test_the_score() -> None:
    network = nn.Sequential(linear([[2], [-1]]), nn.Softmax(1))
    for target, R in ((0, 2), (1, 0)):
        e = dt.explain(network, double([1]), target, domain=dt.NonNegative(), method="deep-taylor")
        close(e.relevance, [R])
        close(e.score, [2 if target == 0 else -1])


def test_folding() -> None:
    norm = nn.BatchNorm1d(1, dtype=torch.float64, eps=0).eval()
    with torch.no_grad():
        norm.weight.fill_(3.0), norm.bias.fill_(-4.0)
    two, one = nn.Sequential(linear([[2]], 1), norm, nn.ReLU()), nn.Sequential(linear([[6]], -1), nn.ReLU())
    maps = [dt.explain(n.eval(), double([5]), domain=dt.Real(), method="deep-taylor").relevance for n in (two, one)]
    close(maps[0], maps[1].flatten().tolist())
    assert "become one layer, `6x − 1`" in TEXT


# --- sections 4 and 5: one unit ---------------------------------------------------------------------------------------

ROW_OF = {
    "z⁺": rules.ZPlus(), "z^B": rules.ZBox(-1.0, 4.0), "w²": rules.WSquare(), "flat": rules.Flat(), "z": rules.Z(),
    "z with bias": rules.Z(bias=True), "ε = 1": rules.Epsilon(1.0), "γ = 1/2": rules.Gamma(0.5),
    "α = 2, β = 1": rules.AlphaBeta(2, 1), "α = 1, β = 0": rules.AlphaBeta(1, 0),
}  # fmt: skip


def unit(sign: float = 1, x: tuple[float, float] = (3, 2), **settings: Any) -> tuple[float, ...]:
    """R of both inputs, of the bias, and dropped: of the unit of section 4, all its weights times `sign`."""
    last = nn.ReLU() if sign > 0 else linear([[-1]])  # a signed unit: |z| is the score
    network = nn.Sequential(linear([[2 * sign, -sign]], sign), last, linear([[1]]))
    e = dt.explain(network, double(x), domain=dt.NonNegative(), method="deep-taylor", **settings)
    return (*e.relevance[0].tolist(), float(e.ledger.bias), float(e.ledger.dropped))


def test_every_rule_is_in_the_table() -> None:
    assert set(read_rows("One unit under every rule", "dropped")) == set(ROW_OF)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ROW_OF)
def test_one_unit_under_every_rule(name: str, sign: int) -> None:
    _, *cells = read_rows("One unit under every rule", "dropped")[name]
    expected = [read_numbers(cell)[0] for cell in cells]
    assert sum(expected) == pytest.approx(5)
    found = unit(sign, bias="neuron", rules={"0": ROW_OF[name]})
    if sign < 0 and name.startswith("α"):
        assert found[:2] != pytest.approx(expected[:2])
        assert "except for αβ" in TEXT
    else:
        close(found, expected)


@pytest.mark.parametrize("name", ["neuron", "spread", "returned, a network without places"])
def test_ways_to_treat_biases(name: str) -> None:
    R_1, R_2, bias = (read_numbers(cell)[0] for cell in read_rows("5. Three ways to treat biases", "R₁")[name])
    close(unit(bias=name.partition(",")[0], rules={"0": rules.ZPlus()}), [R_1, R_2, bias, 0])


def test_a_unit_without_contributions() -> None:
    close(unit(x=(0, 0), bias="neuron"), [0, 0, 1, 0])
    close(unit(x=(0, 0), bias="spread"), [4 / 5, 1 / 5, 0, 0])
    assert "4/5 and 1/5, by squared weights" in TEXT


def test_quotients_are_bounded_by_the_factor_above() -> None:
    """At z = 2, R_j = C_j φ(z) with C_j = 1: R_j / Z_j exceeds C_j for SELU and not for the others."""
    z = torch.linspace(-6, 6, 2401, dtype=torch.float64)
    assert all(bool((phi(z).abs() <= z.abs()).all()) for phi in (F.gelu, F.silu, torch.tanh))
    e = dt.explain(nn.Sequential(linear([[1]]), nn.SELU(), linear([[1]])), double([2]), domain=dt.NonNegative())
    ratio = float(e.relevance) / 2
    assert f"`R_j / Z_j = {ratio:.3f} C_j`" in TEXT
    assert "at most `C_j` if `|φ(z)| ≤ |z|`, as for GELU, SiLU and tanh" in " ".join(TEXT.split())


# --- section 6 --------------------------------------------------------------------------------------------------------


class Pool(nn.Module):
    """One window over all values, times a factor."""

    def __init__(self, pool: nn.Module, factor: float) -> None:
        super().__init__()
        self.pool, self.last = pool, linear([[factor]])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.pool(x[:, None]).flatten(1))
        return y


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1].sigmoid() * x[:, 1:]


BETWEEN_BLOCKS = {
    "max pooling": (Pool(nn.MaxPool1d(3), 4 / 3), (3, 1, -2), 0),
    "max pooling, maximum not positive": (Pool(nn.MaxPool1d(2), -4), (-1, -3), 0),
    "L² pooling": (Pool(nn.LPPool1d(2, 2), 7 / 5), (3, -4), 0),
    "average, `local=False`": (Pool(nn.AvgPool1d(2), 1), (3, 1), 0),
    "sigmoid, φ(0) = 1/2": (nn.Sequential(linear([[1]]), nn.Sigmoid(), linear([[4]])), (math.log(3),), 2),
    "gate · signal, 1/4 · 8": (Gated(), (-math.log(3), 8), 0),
}


@pytest.mark.parametrize("name", BETWEEN_BLOCKS)
def test_between_blocks(name: str) -> None:
    network, x, bias = BETWEEN_BLOCKS[name]
    _, arrives, relevance = read_rows("6. Everything between blocks", "arrives")[name]
    numbers = re.sub(r"[a-z]+ |;.*", "", relevance)
    domain = dt.NonNegative() if min(x) >= 0 else dt.Real()
    explainer = dt.Explainer(network, double(x), domain, local=False, bias="neuron", method="deep-taylor")
    e = explainer.explain(double(x))
    close(e.relevance, read_numbers(numbers))
    close(e.score, read_numbers(arrives))
    assert float(e.ledger.bias) == pytest.approx(bias)


# --- sections 8 to 10 -------------------------------------------------------------------------------------------------


class Averaging(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = linear([[1, -1]])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x.mean(2))
        return y


@pytest.mark.parametrize("local", [True, False])
def test_local_evidence(local: bool) -> None:
    a = double([[4, 1], [1, 2]])  # features × places
    places = read_rows("8. Local evidence", "place 1")[f"`local={local}`"]
    e = dt.Explainer(Averaging(), a, dt.NonNegative(), local=local, method="deep-taylor").explain(a)
    close(e.relevance[0].T, [number for cell in places for number in read_numbers(cell)])


def test_the_root_of_an_averaging_unit_lies_before_the_end_of_its_segment() -> None:
    """t = (3, −1): the places that speak for the unit are silent at the end, where the unit is negative."""
    t = double(3, -1)
    v = t * (t > 0)
    root = t - t.mean() / v.mean() * v
    close(root, [1, -1])
    assert float(root.mean()) == 0
    assert float((t - v).mean()) < 0
    assert "the end is (0, −1), and the root is (1, −1)" in TEXT


@pytest.mark.parametrize("name", ["1", "2", "hard"])
def test_contrast(name: str) -> None:
    distinctive, shared = (read_numbers(cell) for cell in read_rows("9. Contrast", "distinctive")[name])
    explainer = dt.Explainer(linear([[3, 1], [1, 3]]), double([1, 1]), dt.NonNegative(), method="deep-taylor")
    c = explainer.contrast(double([1, 1]), 0, power=dt.HARD if name == "hard" else float(name))
    close(c.relevance, distinctive)
    close(c.shared, shared)


@pytest.mark.parametrize("name", ["neuron", "returned"])
def test_biases_place_by_place(name: str) -> None:
    conv = nn.Conv2d(1, 1, (1, 2), (1, 2), dtype=torch.float64)
    nn.init.ones_(conv.weight)
    nn.init.ones_(conv.bias)
    network, x = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), linear([[1, 2]])), double([[[1, 2, 0, 3]]])
    pixels, bias = read_rows("10. Redistribution of what biases absorbed", "pixels")[name]
    e = dt.explain(network, x, domain=dt.NonNegative(), bias=name, method="deep-taylor")
    close(e.relevance, read_numbers(pixels))
    close(e.ledger.bias, read_numbers(bias))


# --- section 11 -------------------------------------------------------------------------------------------------------

ROOTS = {"w²": rules.WSquare(), "z": rules.Z(), "z⁺": rules.ZPlus(), "z^B": rules.ZBox([-1.0, -2.0], [4.0, 3.0])}


@pytest.mark.parametrize("name", ROOTS)
def test_root_points(name: str) -> None:
    W, b, x = double([2], [-1]), double(-1), double(3, 1)
    cells = [read_numbers(cell) for cell in read_rows("11. Roots, measured", "root point")[name]]
    root = root_point(ROOTS[name], W, b, x)
    for found, expected in zip((root.direction, root.point, taylor_term(W, root, x)), cells, strict=True):
        close(found, expected)


def test_which_roots_lie_in_the_domain() -> None:
    """For b ≤ 0: those of z⁺ and of z^B with l ≤ 0 ≤ h always; of w², and of z^B without zero, not always."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(4, 50, generator=generator, dtype=torch.float64)
    b, x = -torch.rand(50, generator=generator, dtype=torch.float64), torch.rand(8, 4, generator=generator).double()
    assert float(root_point(rules.ZPlus(), W, b, x).point.min()) >= 0
    inside = root_point(rules.ZBox(-0.5, 1.5), W, b, x).point
    assert float(inside.min()) >= -0.5
    assert float(inside.max()) <= 1.5
    assert float(root_point(rules.WSquare(), W, b, x).point.min()) < 0
    with pytest.raises(dt.InputError, match="needs a box that holds 0"):
        root_point(rules.ZBox(1.0, 2.0), double([1]), double(0), double(2))
    # In [1, 2], w = 1 and b = 0, z^B moves x = 2 by t (x − l) = 2: to 0, outside of the box.
    assert 2 - 2 / (2 - 1) * (2 - 1) < 1
    assert "For `s_j b_j ≤ 0` it is, for z⁺, and for z^B with `l ≤ 0 ≤ h`" in " ".join(TEXT.split())


@pytest.mark.parametrize("name", [*ROOTS, "z⁺ with a bias neuron", "ε"])
def test_which_rules_are_taylor_terms(name: str) -> None:
    """R is the Taylor term of rules without bias neurons; under ε and with bias neurons its sum is another."""
    W, b, x = double([2], [-1]), double(1 if "bias" in name else -1), double(3, 1)
    rule = ROOTS.get(name, rules.Epsilon(2.0) if name == "ε" else rules.ZPlus())
    network = nn.Sequential(linear(W.T.tolist(), float(b)), nn.ReLU(), linear([[1]]))
    e = dt.explain(
        network, x[None], domain=dt.NonNegative(), rules={"0": rule}, bias="neuron", method="deep-taylor"
    )  # fmt: skip
    if name in ROOTS:
        close(e.relevance, taylor_term(W, root_point(rule, W, b, x), x).tolist())
    else:  # at a root, the Taylor term of a unit that is linear on the way is all of R_j
        assert abs(float(e.relevance.sum()) - float(e.score)) > 0.1


# --- sections 12 and 14 to 16 -----------------------------------------------------------------------------------------


class Computed(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


SECANTS = {
    "ReLU: the slope is 3/4": (torch.relu, (-1,), (3,)),
    "product: ā = 2, b̄ = 3": (lambda x: x[:, :1] * x[:, 1:], (1, 2), (3, 4)),
    "first value of a softmax, see below": (lambda x: x.softmax(1)[:, :1], (0, 0), (math.log(6), math.log(2))),
}


@pytest.mark.parametrize("name", SECANTS)
def test_secants(name: str) -> None:
    function, start, end = SECANTS[name]
    *_, before, after, relevance = read_rows("12. Between two inputs: secants", "relevance")[name]
    found = dt.Explainer(Computed(function)).between(double(end), double(start))
    assert found.relevance.flatten().tolist() == pytest.approx(read_numbers(relevance), abs=5e-4)
    change = read_numbers(after)[0] - read_numbers(before)[0]
    assert float(found.relevance.sum()) == pytest.approx(change, abs=1e-13)


def test_the_softmax_by_hand() -> None:
    L_1, L_2 = 0.25 / math.log(3 / 2), 0.25 / math.log(2)
    assert math.isclose(L_1 * L_2 / (L_1 + L_2), 1 / (4 * math.log(3)))
    assert "Relevance is ln 6 / (4 ln 3) and −ln 2 / (4 ln 3); the sum is ¼" in TEXT


def test_a_class_against_its_rivals() -> None:
    """The logits are the three pixels; at the mean of the picture s is zero, so that all of s is relevance."""
    network = nn.Sequential(nn.Flatten(), linear([[1, 0, 0], [0, 1, 0], [0, 0, 1]]))
    for shift in (0, 5):
        x = double([[[3 + shift, 1 + shift, 1 + shift]]])
        close(dt.explain(network, x, 0, method="secant").relevance.sum(), [2])


def test_what_patching_would_measure() -> None:
    found = dt.Explainer(Computed(lambda h: h * h)).between(double([4]), double([0]))
    m, g = float(found.relevance) / 4, 8
    assert (m, g * 2 + 0.5 * (m - g) * 2) == (4, 4**2 - 2**2)
    assert "16 + ½ · (4 − 8) · 2 = 12" in TEXT


def test_relevance_as_a_function_of_the_parameters() -> None:
    layer = linear([[3]])
    x = double([2]).requires_grad_()
    explainer = dt.Explainer(nn.Sequential(layer, nn.ReLU()), x.detach(), dt.NonNegative(), live=True)
    explainer.relevance(x, 0).sum().backward()
    assert (float(layer.weight.grad), float(x.grad)) == (2, 3)


def test_every_section_marks_what_it_chooses() -> None:
    """Every numbered section says Convention or Ours in bold, and none of its equations has another's number."""
    titles = re.findall(r"^## (\d+\. .+)$", TEXT, re.MULTILINE)
    assert [int(title.partition(".")[0]) for title in titles] == list(range(1, 17))
    for title in titles:
        section, number = read_section(title), title.partition(".")[0]
        assert re.search(r"\*\*(Convention|Conventions|Ours)\b", section), title
        equations = re.findall(r"^ {4,}.*\((\d+)\.(\d+)\)$", section, re.MULTILINE)
        assert [first for first, _ in equations] == [number] * len(equations), title
        assert [int(second) for _, second in equations] == list(range(1, len(equations) + 1)), title
