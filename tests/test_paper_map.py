"""docs/paper_map.md is complete and names only what exists; some of its rows are computed again, from nothing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.methods.relevance_model import MinMaxModel

ROOT = Path(__file__).parents[1]
MAP = ROOT / "docs" / "paper_map.md"
HEAD = ["item", "label", "says", "carried by", "checked by", "how far"]

# The paper's labelled items in their order, the supplement's numbers with an S.
LABELS = {
    "Fig. 1": "figure:overview",
    "Def. 1": "def:conservative",
    "Def. 2": "def:positive",
    "Def. 3": "def:consistent",
    "Eq. 1": "eq:conservation-1",
    "Eq. 2": "eq:conservation-2",
    "Eq. 3": "eq:taylordecomposition",
    "Fig. 2": "fig:heatmap",
    "Fig. 3": "figure:neuralnet",
    "Eq. 4": "eq:taylorprop",
    "Eq. 5": "eq:onelayer-1",
    "Eq. 6": "eq:onelayer-2",
    "Fig. 4": "fig:onelayer",
    "Eq. 7": "eq:pooling-rel",
    "Eq. 8": "eq:toplayer-taylor",
    "Eq. 9": "eq:relprop-x",
    "Eq. 10": "eq:onelayer-rel",
    "Eq. 11": "eq:onelayer",
    "Eq. 12": "eq:relprop-w2",
    "Prop. 1": "prop:w2rule-consistent",
    "Prop. 2": "prop:zprule-consistent",
    "Prop. 3": "prop:zbrule-consistent",
    "Fig. 5": "fig:shallow-heatmaps",
    "Fig. 6": "fig:shallow-scatter",
    "Fig. 7": "figure:hierarchy",
    "Eq. 13": "eq:rm-x",
    "Eq. 14": "eq:rm-q",
    "Fig. 8": "fig:deep-heatmaps",
    "Fig. 9": "fig:deep-scatter",
    "Fig. 10": "fig:ilsvrc",
    "Fig. 11": "fig:zoom",
    "Eq. S1": "eq:relmod",
    "Eq. S2": "eq:search",
    "Eq. S3": "eq:root0",
    "Eq. S4": "eq:root",
    "Eq. S5": "eq:relprop-original",
    "Eq. S6": "eq:relprop-split",
    "Eq. S7": "eq:relprop",
    "Fig. S1": "figure:rules-root",
    "Fig. S2": "fig:onelayer",
    "Fig. S3": "fig:twolayers",
    "Fig. S4": "fig:ilsvrc",
}
# How many of each kind the paper and its supplement have.
COUNTS = {"Def.": 3, "Eq.": 14 + 7, "Prop.": 3, "Alg.": 4, "Fig.": 11 + 4, "Table": 2}
# Displayed equations without a number, and sentences that act like one: section to the last letter.
UNNUMBERED = {
    "II": "a",
    "II-A": "c",
    "II-B": "b",
    "II-C": "a",
    "III-A": "a",
    "III-B": "e",
    "III-C": "a",
    "IV-A": "c",
    "IV-B": "f",
    "IV-C": "a",
    "IV-D": "c",
    "S-I": "k",
    "S-III": "f",
    "S-IV": "c",
}

Row = dict[str, str]


def rows(text: str) -> list[Row]:
    """The rows of the page's tables."""
    found = []
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            assert len(cells) == len(HEAD), f"{len(cells)} cells, not {len(HEAD)}: {line}"
            if cells != HEAD:
                found.append(dict(zip(HEAD, cells, strict=True)))
    return found


ROWS = rows(MAP.read_text(encoding="utf-8"))
row = pytest.mark.parametrize("row", ROWS, ids=lambda r: r["item"].replace(" ", ""))


def names(cell: str) -> list[str]:
    """What stands in code quotes."""
    return re.findall(r"`([^`]+)`", cell)


def check_function(name: str) -> None:
    """`module.function` or `module.Class.method` exists in the package, in whatever folder."""
    parts = name.split(".")
    assert len(parts) > 1, f"{name}: not of the form module.function"
    try:
        found = importlib.import_module(f"deeptaylor.{parts.pop(0)}")
    except ModuleNotFoundError as error:
        raise AssertionError(f"{name}: there is no module {error.name}") from error
    while hasattr(found, "__path__") and importlib.util.find_spec(f"{found.__name__}.{parts[0]}"):
        found = importlib.import_module(f"{found.__name__}.{parts.pop(0)}")
    for part in parts:
        assert hasattr(found, part), f"{name}: no {part}"
        found = getattr(found, part)
    assert callable(found), f"{name} is no function or class"


@cache
def named_tests(file: str) -> frozenset[str]:
    path = ROOT / file
    assert path.is_file(), f"there is no {file}"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def check_test(name: str) -> None:
    """`tests/file.py::test_name` exists."""
    file, _, test = name.partition("::")
    assert re.fullmatch(r"tests/(\w+/)*test_\w+\.py", file), f"{name}: not of the form tests/test_file.py::test_name"
    assert test in named_tests(file), f"{name}: there is no such test"


@row
def test_names_exist(row: Row) -> None:
    functions, tests = names(row["carried by"]), names(row["checked by"])
    assert functions, f"{row['item']}: a test but no function"
    assert tests, f"{row['item']}: code without a test"
    for name in functions:
        check_function(name)
    for name in tests:
        check_test(name)


@row
def test_what_is_not_full_has_a_reason(row: Row) -> None:
    assert re.fullmatch(r"full(; .{20,})?|(different|ours): .{40,}", row["how far"]), f"{row['item']}: {row['how far']}"


def test_every_labelled_item_is_there_once_and_in_order() -> None:
    found = [(r["item"], *names(r["label"])) for r in ROWS if r["label"]]
    assert found == list(LABELS.items())


@pytest.mark.parametrize("kind", COUNTS)
def test_every_numbered_item_is_there_once(kind: str) -> None:
    numbers = [r["item"].removeprefix(kind).strip() for r in ROWS if r["item"].startswith(kind)]
    paper = [n for n in numbers if not n.startswith("S")]
    supplement = [n for n in numbers if n.startswith("S")]
    assert len(numbers) == COUNTS[kind]
    assert paper == [str(k + 1) for k in range(len(paper))]
    assert supplement == [f"S{k + 1}" for k in range(len(supplement))]


def test_the_rest_is_lettered_without_gaps() -> None:
    kinds = tuple(COUNTS)
    found = [r["item"] for r in ROWS if not r["item"].startswith(kinds)]
    letters = {s: [chr(k) for k in range(ord("a"), ord(last) + 1)] for s, last in UNNUMBERED.items()}
    assert found == [f"{section}.{letter}" for section in letters for letter in letters[section]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rules.ZMinus", "no ZMinus"),
        ("rules.ZPlus.backward", "no backward"),
        ("nothing.at_all", "no module deeptaylor.nothing"),
        ("check", "not of the form"),
        ("viz.heatmap.STRIP_HEIGHT", "no function"),
    ],
)
def test_a_wrong_function_is_noticed(name: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_function(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests/helpers/test_reference.py::test_nothing", "no such test"),
        ("tests/helpers/test_reference_rules.py::check", "no such test"),
        ("tests/test_nothing.py::test_z", "there is no tests/test_nothing.py"),
        ("test_z", "not of the form"),
    ],
)
def test_a_wrong_test_is_noticed(name: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_test(name)


# --- some rows, in NumPy alone ----------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 2, 6)  # in the box [−1, 2]
P = np.abs(X)  # where inputs are not negative
W = RNG.normal(size=(6, 5))
B = np.array([0.5, 0.4, -0.3, 0.2, -0.1])
LOW, HIGH = -1.0, 2.0


def layer(bias: np.ndarray, scale: float = 1) -> nn.Linear:
    found = nn.Linear(6, 5, dtype=torch.float64)
    with torch.no_grad():
        found.weight.copy_(scale * torch.from_numpy(W.T))
        found.bias.copy_(torch.from_numpy(bias))
    return found


class Sum(nn.Module):
    """x_k = Σ_j x_j."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1)


def explain(x: np.ndarray, bias: np.ndarray, domain: dt.Domain, **settings: object) -> np.ndarray:
    """What the package gives the inputs of a detection-pooling network."""
    network, one = nn.Sequential(layer(bias), nn.ReLU(), Sum()), torch.from_numpy(x)[None]
    e = dt.Explainer(network, one, domain=domain, preset="paper", **settings).explain(one)
    found: np.ndarray = e.relevance[0].numpy()
    return found


def loop(x: np.ndarray, bias: np.ndarray, q: Callable[[float, float], float], neuron: bool = False) -> np.ndarray:
    """R_i = Σ_j q_ij / (Σ_i' q_i'j [+ max(0, b_j)]) R_j, with R_j = max(0, Σ_i x_i w_ij + b_j), number by number."""
    found = np.zeros(6)
    for j in range(5):
        R_j = max(0.0, sum(x[i] * W[i, j] for i in range(6)) + bias[j])
        total = sum(q(x[i], W[i, j]) for i in range(6)) + (max(0.0, bias[j]) if neuron else 0)
        for i in range(6):
            found[i] += q(x[i], W[i, j]) / total * R_j
    return found


def box(x: float, w: float) -> float:
    return x * w - LOW * max(w, 0) - HIGH * min(w, 0)


def w_square() -> tuple[np.ndarray, np.ndarray]:
    return explain(X, -np.abs(B), dt.Real()), loop(X, -np.abs(B), lambda x, w: w * w)


def z_plus() -> tuple[np.ndarray, np.ndarray]:
    return explain(P, -np.abs(B), dt.NonNegative()), loop(P, -np.abs(B), lambda x, w: x * max(w, 0))


def z_box() -> tuple[np.ndarray, np.ndarray]:
    return explain(X, -np.abs(B), dt.Box(LOW, HIGH)), loop(X, -np.abs(B), box)


def positive_biases() -> tuple[np.ndarray, np.ndarray]:
    return explain(X, B, dt.Box(LOW, HIGH)), loop(X, B, box, neuron=True)


def pooling() -> tuple[np.ndarray, np.ndarray]:
    """R_j of the detection neurons is x_j."""
    network, one = nn.Sequential(layer(B), nn.ReLU(), Sum()), torch.from_numpy(X)[None]
    e = dt.Explainer(network, one, domain=dt.Box(LOW, HIGH), preset="paper").explain(one)
    return e.at("1")[0].numpy(), np.array([max(0.0, sum(X * W[:, j]) + B[j]) for j in range(5)])


def windows() -> tuple[np.ndarray, np.ndarray]:
    """Maxima over four units of five hand on R_k in proportion to activations, then z⁺."""
    network = nn.Sequential(layer(-np.abs(B)), nn.ReLU(), nn.Unflatten(1, (1, 5)), nn.MaxPool1d(4), nn.Flatten(), Sum())
    one = torch.from_numpy(P)[None]
    e = dt.Explainer(network, one, domain=dt.NonNegative(), preset="paper").explain(one)
    a = np.array([max(0.0, sum(P * W[:, j]) - abs(B[j])) for j in range(5)])
    R_j = np.append(a[:4] / a[:4].sum() * a[:4].max(), 0.0)
    found = np.zeros(6)
    for j in range(4):
        q = [P[i] * max(W[i, j], 0) for i in range(6)]
        found += np.array(q) / sum(q) * R_j[j]
    return e.relevance[0].numpy(), found


def taylor() -> tuple[np.ndarray, np.ndarray]:
    """f = Σ_j max(0, z_j) at a point ξ: the gradient is the sum of the active weights."""
    network, at = nn.Sequential(layer(B), nn.ReLU(), Sum()), X / 3
    active = [j for j in range(5) if sum(at * W[:, j]) + B[j] > 0]
    e = dt.taylor(network, torch.from_numpy(X)[None], root=torch.from_numpy(at)[None])
    return e.relevance[0].numpy(), W[:, active].sum(1) * (X - at)


def sensitivity() -> tuple[np.ndarray, np.ndarray]:
    network = nn.Sequential(layer(B), nn.ReLU(), Sum())
    active = [j for j in range(5) if sum(X * W[:, j]) + B[j] > 0]
    return dt.sensitivity(network, torch.from_numpy(X)[None]).relevance[0].numpy(), W[:, active].sum(1) ** 2


def min_max() -> tuple[np.ndarray, np.ndarray]:
    """y_j = max(0, Σ_i x_i v_ij + min(0, Σ_l R_l v_lj + d_j)), summed in groups of three."""
    model = MinMaxModel(inputs=6, upper=2, groups=2, units=3, seed=1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(RNG.normal(size=parameter.shape)))
    v, u, d = (p.detach().numpy() for p in (model.v_ij, model.v_lj, model.d_j))
    R_l = np.array([0.7, 1.3])
    expected = [
        sum(max(0.0, X @ v[:, k, j] + min(0.0, R_l @ u[:, k, j] + d[k, j])) for j in range(3)) for k in range(2)
    ]
    found = model(torch.from_numpy(X)[None], torch.from_numpy(R_l)[None])[0].detach().numpy()
    return found, np.array(expected)


def alpha_beta() -> tuple[np.ndarray, np.ndarray]:
    """α = 2, β = 1, with the biases in both denominators."""
    found = np.zeros(6)
    for j in range(5):
        z = X * W[:, j]
        R_j = max(0.0, z.sum() + B[j])
        above, below = np.maximum(z, 0), np.minimum(z, 0)
        found += (2 * above / (above.sum() + max(B[j], 0)) - below / (below.sum() + min(B[j], 0))) * R_j
    return explain(X, B, dt.Box(LOW, HIGH), rules={"0": dt.rules.AlphaBeta(2, 1)}), found


AGAIN = {
    "Eq. 3": taylor, "II-B.a": sensitivity, "Eq. 9": pooling, "Eq. 12": w_square, "III-B.a": z_plus, "III-B.d": z_box,
    "IV-A.a": min_max, "IV-B.d": windows, "IV-D.a": positive_biases, "S-IV.a": alpha_beta,
}  # fmt: skip


@pytest.mark.parametrize("item", AGAIN)
def test_rows_computed_again_from_nothing(item: str) -> None:
    assert next(r for r in ROWS if r["item"] == item)["how far"].startswith("full")
    found, expected = AGAIN[item]()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
