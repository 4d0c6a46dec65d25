"""The public interface, used as design.md shows it, and the questions a sceptical user asks of its answers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.run import prepare as prepare_module
from deeptaylor.run.engine import Engine
from deeptaylor.run.inputs import _survives_bfloat16
from deeptaylor.run.values import ForwardValues

GOLDEN = Path(__file__).parent / "golden"
LEDGER_GAP = 1e-12  # of the score, in float64
TOP = 7  # the class of Net with a positive score for every picture used here


class Net(nn.Module):
    """A small residual network with BatchNorm, squeeze-excite, max pooling and biases."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(6, classes)
        for bn in (self.bn1, self.bn2):
            nn.init.uniform_(bn.running_mean, -0.2, 0.2)
            nn.init.uniform_(bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        h = F.relu(self.bn2(self.conv2(h * gate)) + h)
        return self.head(self.pool(h).mean((2, 3)))


def small_cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
        nn.Softmax(1),
    ).eval()


def mlp(last: int = 3, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias), nn.ReLU(), nn.Linear(6, last, bias)).eval().double()


def batch(size: int = 3, side: int = 6) -> Tensor:
    return torch.rand(size, 3, side, side, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


@functools.cache
def net(bias: str = "neuron") -> tuple[Net, dt.Explainer]:
    """A network in float64 with its explainer, shared by tests that change neither."""
    model = Net().eval().double()
    return model, dt.Explainer(model, batch(1), dt.Box(0, 1), bias=bias)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is captured from here on."""
    seen: list[Any] = []
    real = prepare_module.capture

    def counted(model: nn.Module, inputs: Any, *rest: Any) -> Any:
        seen.append(tuple(tuple(x.shape) for x in inputs))
        return real(model, inputs, *rest)

    monkeypatch.setattr(prepare_module, "capture", counted)
    return seen


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def close(a: Tensor, b: Tensor, gap: float = 1e-12) -> None:
    assert a.shape == b.shape
    scale = float(b.abs().max())
    assert scale > 0, "nothing agrees with nothing"
    assert float((a - b).abs().max()) <= gap * scale


# --- the public interface -----------------------------------------------------------------------------------------


def test_public_names() -> None:
    assert sorted(dt.__all__) == [
        "BoundaryError",
        "Box",
        "CaptureError",
        "Check",
        "DeepTaylorError",
        "DeepTaylorWarning",
        "Domain",
        "Explainer",
        "Explanation",
        "InputError",
        "Ledger",
        "LoadError",
        "NonNegative",
        "PlanError",
        "Preparation",
        "Pretrained",
        "Real",
        "Root",
        "RootPoint",
        "SmoothReLU",
        "StaleModelError",
        "TargetError",
        "UnsupportedOpError",
        "explain",
        "load",
        "margin",
        "nearest_root",
        "root_point",
        "rules",
        "sensitivity",
        "smoothed",
        "taylor",
    ]
    for name in dt.__all__:
        assert hasattr(dt, name)


def test_public_rules() -> None:
    for name in ("WSquare", "Z", "ZPlus", "ZBox", "AlphaBeta", "Epsilon", "Gamma", "Flat", "Pass", "Signal"):
        assert issubclass(getattr(dt.rules, name), dt.rules.Rule)
        getattr(dt.rules, name)()  # each has usable defaults
    assert dt.rules.Epsilon(0.25).epsilon == 0.25


def test_signatures() -> None:
    explainer = inspect.signature(dt.Explainer).parameters
    assert list(explainer) == ["model", "example", "domain", "rules", "first", "bias", "max_pool", "output"]
    defaults = {k: p.default for k, p in explainer.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {
        "domain": None,
        "rules": None,
        "first": None,
        "bias": "neuron",
        "max_pool": "proportional",
        "output": None,
    }
    assert list(inspect.signature(dt.Explainer.explain).parameters) == ["self", "x", "target"]
    assert list(inspect.signature(dt.Explainer.forward).parameters) == ["self", "x", "target"]
    assert list(inspect.signature(dt.explain).parameters)[:4] == ["model", "x", "target", "domain"]
    assert list(inspect.signature(dt.margin).parameters) == ["target", "other"]
    assert list(inspect.signature(dt.Box).parameters) == ["low", "high"]
    assert list(inspect.signature(dt.Box.from_normalisation).parameters) == ["mean", "std"]


def test_an_explanation_has_what_the_design_names() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for name in ("relevance", "score", "ledger", "check", "heatmap", "save", "at", "_repr_png_", "_repr_html_"):
        assert hasattr(e, name), name
    for name in ("input", "bias", "dropped", "total"):
        assert getattr(e.ledger, name).shape == (3,), name
    for name in ("conservative", "positive", "consistent", "accounted"):
        assert isinstance(getattr(e.check(), name), bool), name
    assert isinstance(e.ledger.table(), str)


def test_a_ledger_that_does_not_add_up_says_so() -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.rand(1, 4)
    ledger = dt.explain(network, x).ledger
    wrong = dataclasses.replace(ledger, input=ledger.input - 0.25)
    assert "NOT" not in str(ledger)
    assert str(wrong).endswith("; NOT accounted for: 0.25")
    assert wrong.table().endswith("; NOT accounted for: 0.25")


def test_results_are_frozen() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for frozen, name in ((e, "relevance"), (e.ledger, "bias"), (e.check(), "positive"), (explainer.plan, "rows")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, name, None)
    assert isinstance(explainer.plan.rows, tuple)


def test_the_explainer_is_a_module_that_does_not_own_the_network() -> None:
    model, explainer = net()
    assert isinstance(explainer, nn.Module)
    assert model not in list(explainer.modules())
    assert not list(explainer.parameters())


def test_the_plain_call_returns_score_and_relevance() -> None:
    _, explainer = net()
    score, relevance = explainer(batch(), torch.tensor([4, 7, 9]))
    e = explainer.explain(batch(), torch.tensor([4, 7, 9]))
    assert torch.equal(score, e.score)
    assert torch.equal(relevance, e.relevance)


def test_the_one_call_is_the_same() -> None:
    model, explainer = net()
    e = dt.explain(model, batch(), TOP, domain=dt.Box(0, 1), bias="neuron")
    assert torch.equal(e.relevance, explainer.explain(batch(), TOP).relevance)


def test_explaining_twice_gives_the_same_bits() -> None:
    model, explainer = net()
    first, second = explainer.explain(batch(), TOP), explainer.explain(batch(), TOP)
    again = dt.Explainer(model, batch(2), dt.Box(0, 1)).explain(batch(), TOP)
    for other in (second, again):
        assert torch.equal(first.relevance, other.relevance)
        assert torch.equal(first.ledger.entries, other.ledger.entries)


def test_the_score_is_the_networks() -> None:
    model, explainer = net()
    close(explainer.explain(batch(), 4).score, model(batch())[:, 4].detach())


def test_memory_layout_does_not_matter() -> None:
    _, explainer = net()
    expected = explainer.explain(batch(), TOP).relevance
    strided = torch.rand(3, 6, 6, 3, dtype=torch.float64).permute(0, 3, 1, 2).copy_(batch())
    for x in (batch().contiguous(memory_format=torch.channels_last), strided, batch().requires_grad_()):
        close(explainer.explain(x, TOP).relevance, expected)


# --- the ledger ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)
        self.token = nn.Parameter(torch.rand(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), self.embed(x)], 1)
        n = self.norm(h)
        return self.head(F.gelu(h + self.attend(n, n, n, need_weights=False)[0])[:, 0])


@functools.cache
def attention(bias: str) -> tuple[Attention, dt.Explainer]:
    model = Attention().eval().double()
    return model, dt.Explainer(model, torch.rand(1, 3, 4, dtype=torch.float64), bias=bias)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
@pytest.mark.parametrize("kind", ["convolutional", "attention"])
@pytest.mark.parametrize("many", [False, True])
def test_every_row_of_the_ledger_closes(kind: str, bias: str, many: bool) -> None:
    if kind == "convolutional":
        (model, explainer), x = net(bias), batch()
    else:
        (model, explainer), x = attention(bias), torch.rand(3, 3, 4, dtype=torch.float64)
    target = model(x).topk(2).indices if many else None
    e = explainer.explain(x, target)
    scale = float(e.score.max())
    entries = e.ledger.entries if many else e.ledger.entries[None]
    arrived, on, bias_taken, dropped = entries.unbind(2)  # (K, steps, batch) each
    assert entries.shape[1] == len(e.ledger.rows) == len(explainer.plan.rows)
    assert float((arrived - on - bias_taken - dropped).abs().max()) <= LEDGER_GAP * scale
    score = e.score if many else e.score[:, None]
    close(arrived[:, 0], score.clamp(min=0).T)
    total = e.ledger.total if many else e.ledger.total[:, None]
    close(total, score.clamp(min=0), 1e-10)
    relevance = e.relevance.flatten(2).sum(2) if many else e.relevance.flatten(1).sum(1)
    close(e.ledger.input, relevance)
    for name, column in (("bias", bias_taken), ("dropped", dropped)):
        booked = getattr(e.ledger, name) if many else getattr(e.ledger, name)[:, None]
        assert float((booked - column.sum(1).T).abs().max()) <= LEDGER_GAP * scale, name
    assert float(e.relevance.min()) >= 0


def test_what_one_row_hands_on_arrives_in_another() -> None:
    # Every boundary's arrivals are what the steps above it handed to it: nothing is made between two rows.
    _, explainer = net()
    e = explainer.explain(batch())
    arrived, on = e.ledger.entries[:, 0], e.ledger.entries[:, 1]
    close(on.sum(0), arrived[1:].sum(0) + e.ledger.input, 1e-10)


def test_the_ledgers_table_names_nodes_and_numbers() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), 4)
    table = e.ledger.table(sample=1)
    lines = table.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == [
        "node",
        "module",
        "op",
        "rule",
        "arrived",
        "went on",
        "bias",
        "dropped",
    ]
    assert len(lines) == 2 + len(explainer.plan.rows) + 1
    assert lines[2].startswith(explainer.plan.rows[0].node)
    assert f"{float(e.score[1].clamp(min=0)):.6g}" in lines[2]
    assert lines[-1].startswith("f = ")
    assert "input" in lines[-1]
    many = explainer.explain(batch(), torch.tensor([[4, 7]] * 3))
    assert many.ledger.table(1, 0) == table
    assert many.ledger.table(1, 1) == explainer.explain(batch(), 7).ledger.table(1)


# --- targets ------------------------------------------------------------------------------------------------------


def test_no_target_is_the_top_class() -> None:
    model, explainer = net()
    top = model(batch()).argmax(1)
    e = explainer.explain(batch())
    close(e.score, model(batch()).max(1).values.detach())
    assert torch.equal(e.relevance, explainer.explain(batch(), top).relevance)


def test_an_int_is_one_class_for_all() -> None:
    _, explainer = net()
    a = explainer.explain(batch(), 4)
    for same in (torch.tensor(4), torch.full((3,), 4), torch.full((3,), 4, dtype=torch.int32)):
        assert torch.equal(a.relevance, explainer.explain(batch(), same).relevance)


@pytest.mark.parametrize(
    "kind", ["convolutional-neuron", "convolutional-spread", "attention-neuron", "attention-spread"]
)
def test_many_targets_are_the_same_as_separate_calls(kind: str) -> None:
    network, bias = kind.split("-")
    if network == "convolutional":
        (_, explainer), x = net(bias), batch(2)
    else:
        (_, explainer), x = attention(bias), torch.rand(2, 3, 4, dtype=torch.float64)
    order = torch.stack([torch.arange(10), torch.arange(10).flip(0)])
    e = explainer.explain(x, order)
    assert e.relevance.shape == (2, 10, *x.shape[1:])
    assert e.score.shape == e.ledger.input.shape == (2, 10)
    assert float(e.relevance.max()) > 0
    for k in range(10):
        one = explainer.explain(x, order[:, k])
        scale = float(one.score.abs().max())
        assert float((e.relevance[:, k] - one.relevance).abs().max()) <= 1e-12 * scale
        assert float((e.score[:, k] - one.score).abs().max()) <= 1e-12 * scale
        for name in ("input", "bias", "dropped"):
            assert float((getattr(e.ledger, name)[:, k] - getattr(one.ledger, name)).abs().max()) <= 1e-12 * scale


def test_weights_over_the_output() -> None:
    model, explainer = net()
    v = torch.rand(3, 10, dtype=torch.float64) - 0.3
    e = explainer.explain(batch(), v)
    close(e.score, (v * model(batch()).detach()).sum(1))
    hot = F.one_hot(torch.tensor([4, 7, 9]), 10).double()
    assert torch.equal(
        explainer.explain(batch(), hot).relevance, explainer.explain(batch(), torch.tensor([4, 7, 9])).relevance
    )


def test_a_margin_is_a_difference_of_logits() -> None:
    model, explainer = net()
    out = model(batch()).detach()
    e = explainer.explain(batch(), dt.margin(7, 2))
    close(e.score, out[:, 7] - out[:, 2])
    v = torch.zeros(3, 10, dtype=torch.float64)
    v[:, 7], v[:, 2] = 1, -1
    close(e.relevance, explainer.explain(batch(), v).relevance)
    top = out.topk(2).values
    close(explainer.explain(batch(), dt.margin()).score, top[:, 0] - top[:, 1])
    close(explainer.explain(batch(), dt.margin(torch.tensor([0, 1, 2]), 9)).score, out[range(3), range(3)] - out[:, 9])


def test_a_callable_target_scores_what_it_returns() -> None:
    model, explainer = net()
    out = model(batch()).detach()
    for a, b in ((1, 0), (0, 1)):  # one of the two differences is positive
        e = explainer.explain(batch(), lambda out, a=a, b=b: out[:, a] - out[:, b])
        close(e.score, out[:, a] - out[:, b])
        assert e.check().accounted
        assert float(e.relevance.min()) >= 0


def test_a_callable_that_picks_a_class_is_that_class() -> None:
    model, explainer = net()
    top = int(model(batch()).min(0).values.argmax())
    e, expected = explainer.explain(batch(), lambda out: out[:, top]), explainer.explain(batch(), top)
    assert float(expected.score.min()) > 0
    close(e.relevance, expected.relevance)
    close(e.ledger.bias, expected.ledger.bias)
    score, relevance = explainer(batch(), lambda out: out[:, top])
    assert torch.equal(score, e.score)
    assert torch.equal(relevance, e.relevance)


def test_a_callable_target_may_be_nonlinear_and_of_one_column() -> None:
    model, explainer = net()
    e = explainer.explain(batch(), lambda out: F.relu(out[:, :3]).sum(1, keepdim=True))
    close(e.score, F.relu(model(batch())[:, :3]).sum(1).detach())
    assert e.check().accounted


def test_a_callable_target_is_captured_once(captures: list[Any]) -> None:
    explainer = dt.Explainer(mlp(), torch.rand(1, 4, dtype=torch.float64))

    def largest(out: Tensor) -> Tensor:
        return out.amax(1)

    assert len(captures) == 1
    first = explainer.explain(torch.rand(2, 4, dtype=torch.float64), largest)
    assert len(captures) == 2
    explainer.explain(torch.rand(5, 4, dtype=torch.float64), lambda out: out.amax(1))
    explainer(torch.rand(2, 4, dtype=torch.float64), largest)
    first.at("relu")
    assert len(captures) == 2
    explainer.explain(torch.rand(2, 4, dtype=torch.float64), lambda out: out[:, 2].exp())
    assert len(captures) == 3


def test_a_linear_callable_is_the_weights_that_it_stands_for(captures: list[Any]) -> None:
    """Its last steps and the last layer are one unit, as with weights or a margin; nothing is captured for it."""
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer, w = dt.Explainer(mlp(), x), mlp()(x)[0].detach()
    order = w.argsort(descending=True)
    top, low, sign = int(order[0]), int(order[-1]), float(w.sum().sign())
    for score, same in [
        (lambda out: out[:, top] - out[:, low], dt.margin(top, low)),
        (lambda out: sign * out.sum(1), sign * torch.ones(3, 3, dtype=torch.float64)),
        (lambda out: (out @ w).unsqueeze(1), w.expand(3, 3)),
        (lambda out: 2 * out[torch.arange(3), torch.tensor([top] * 3)] / 2, torch.tensor([top] * 3)),
    ]:
        e, expected = explainer.explain(x, score), explainer.explain(x, same)
        close(e.relevance, expected.relevance)
        close(e.score, expected.score)
        close(e.at("relu"), expected.at("relu"))
        close(explainer(x, score)[1], expected.relevance)
    assert len(captures) == 1


def test_a_callable_target_is_looked_at_anew(captures: list[Any]) -> None:
    """A class, a tensor or a branch that it closes over may change between two calls of the very same function."""
    x, chosen = torch.rand(2, 4, dtype=torch.float64), {"k": 0, "squared": False}
    weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x)

    def score(out: Tensor) -> Tensor:
        picked = (out * weights).sum(1) + out[:, chosen["k"]]
        return picked**2 if chosen["squared"] else picked

    def expected() -> Tensor:
        return score(mlp()(x)).detach()

    for change in ({"k": 1}, {"squared": True}, {"k": 2}):
        chosen.update(change)
        close(explainer.explain(x, score).score, expected())
        weights.copy_(weights.roll(1) * 2)
        close(explainer.explain(x, score).score, expected())
        close(explainer(x, score)[0], expected())


def test_functions_and_shapes_are_forgotten_after_some() -> None:
    x = torch.rand(1, 2, 6, 6)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    explainer = dt.Explainer(network, x)
    first = explainer.explain(torch.rand(1, 2, 7, 7))
    for k in range(12):
        explainer.explain(x, lambda out, k=k: out.exp().sum(1) * k)
        explainer.explain(torch.rand(1, 2, 8 + k, 8))
    assert len(explainer._scored) <= 4
    assert len(explainer.engines) <= 9
    assert "2x6x6f" in explainer.engines
    assert first.at("1").shape == (1, 3, 5, 5)  # captured once more


def test_a_callable_that_mixes_samples_is_refused() -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x)
    with pytest.raises(dt.TargetError, match="mixes samples"):
        explainer.explain(x, lambda out: out[:, 0] - out[:, 0].mean())
    with pytest.raises(dt.DeepTaylorError, match="depends on the other samples"):
        explainer.explain(x, lambda out: out[:, 0].softmax(0))
    with pytest.raises(dt.TargetError, match=r"returned shape \(3, 3\)"):
        explainer.explain(x, lambda out: out)


def test_a_callable_target_follows_the_explainer_to_another_type(captures: list[Any]) -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer, score = dt.Explainer(mlp(), x), lambda out: out.amax(1)
    before = explainer.explain(x, score)
    after = explainer.float().explain(x.float(), score)
    assert after.score.dtype is torch.float32
    torch.testing.assert_close(after.relevance.double(), before.relevance, rtol=0, atol=1e-6)
    assert len(captures) == 2


def test_a_copy_has_callable_targets_of_its_own() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x)
    explainer.explain(x, lambda out: out.amax(1))
    assert not copy.deepcopy(explainer)._scored
    assert len(explainer._scored) == 1


def test_a_copy_explains_and_knows_when_its_network_changed() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x)
    expected = explainer.explain(x).relevance
    other = copy.deepcopy(explainer)
    assert torch.equal(other.explain(x).relevance, expected)
    with torch.no_grad():
        other._model[0][0].weight.mul_(2)
    assert torch.equal(explainer.explain(x).relevance, expected)
    with pytest.raises(dt.StaleModelError):
        other(x)
    with pytest.raises(dt.StaleModelError):
        copy.deepcopy(other).explain(x)  # a copy of what is stale is stale
    assert not torch.equal(other.refresh().explain(x).relevance, expected)


def test_rules_and_names_hold_for_a_callable_target() -> None:
    model, x = mlp(), torch.rand(2, 4, dtype=torch.float64)
    nn.init.uniform_(model[2].weight)
    explainer = dt.Explainer(model, x, dt.NonNegative(), rules={"0": dt.rules.Flat()})
    e, expected = explainer.explain(x, lambda out: out[:, 1]), explainer.explain(x, 1)
    assert float(expected.score.min()) > 0
    close(e.relevance, expected.relevance)
    close(e.at("1"), expected.at("1"))


@pytest.mark.parametrize(
    "last",
    [
        nn.Softmax(1),
        nn.LogSoftmax(1),
        nn.Sigmoid(),
        nn.Sequential(nn.Identity(), nn.Softmax(-1)),
        nn.Sequential(nn.Unflatten(1, (-1, 1, 1)), nn.Softmax(1), nn.Flatten()),  # as many files have it
    ],
)
def test_the_final_activation_is_set_aside(last: nn.Module) -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    bare, explainer = mlp(), dt.Explainer(nn.Sequential(mlp(), last), x, dt.NonNegative())
    e, expected = explainer.explain(x), dt.explain(bare, x, domain=dt.NonNegative())
    assert torch.equal(e.relevance, expected.relevance)
    close(e.score, bare(x).max(1).values.detach())
    said = [n for n in explainer.plan.notes if "set aside" in n and "logit" in n]
    assert len(said) == 1
    assert said[0] in str(explainer.plan)
    assert said[0] in str(e.check())


# --- several inputs, several outputs, tokens ----------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Conv2d(3, 5, 6), nn.Linear(5, 3)

    def forward(self, vector: Tensor, picture: Tensor) -> Tensor:
        return self.c(F.relu(self.a(vector) + self.b(picture).flatten(1)))


def test_several_inputs_each_have_their_relevance() -> None:
    model, inputs = TwoInputs().eval().double(), (torch.rand(3, 4, dtype=torch.float64), batch())
    explainer = dt.Explainer(model, inputs, (dt.NonNegative(), dt.Box(0, 1)))
    e = explainer.explain(inputs, dt.margin())
    assert isinstance(e.relevance, tuple)
    assert [r.shape for r in e.relevance] == [x.shape for x in inputs]
    assert all(float(r.sum()) > 0 for r in e.relevance)
    close(e.ledger.input, sum(r.flatten(1).sum(1) for r in e.relevance))
    assert e.check().accounted
    assert [e.heatmap(k).shape for k in (0, 1)] == [(3, 4), (3, 6, 6)]
    many = explainer.explain(inputs, torch.tensor([[0, 1]] * 3))
    assert [r.shape for r in many.relevance] == [(3, 2, 4), (3, 2, 3, 6, 6)]


def test_an_input_that_does_not_matter_is_noted() -> None:
    class Ignores(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return 2 * a

    inputs = (torch.rand(2, 3), torch.rand(2, 3))
    e = dt.explain(Ignores(), inputs, domain=dt.NonNegative())
    assert any("'b'" in n and "does not reach" in n for n in e.notes)
    assert not e.relevance[1].any()
    assert e.check().accounted


class Several(nn.Module):
    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.form = mlp(4), form

    def forward(self, x: Tensor) -> Any:
        y = self.body(x)
        return self.form(y, 2 * y + 1)


FORMS: list[tuple[Callable[[Tensor, Tensor], Any], Any]] = [
    (lambda y, z: (y, z), 1),
    (lambda y, z: [y, z], 1),
    (lambda y, z: {"logits": y, "other": z}, "other"),
    (lambda y, z: {"logits": y, "other": z}, 1),
    (lambda y, z: ((y, z), y), 1),
]


@pytest.mark.parametrize(("form", "output"), FORMS, ids=["tuple", "list", "dict by name", "dict by number", "nested"])
@pytest.mark.parametrize("callable_target", [False, True])
def test_one_of_several_outputs(form: Any, output: Any, callable_target: bool) -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(Several(form).eval(), x, dt.NonNegative(), output=output)
    e = explainer.explain(x, (lambda out: out[:, 2]) if callable_target else 2)
    close(e.score, 2 * mlp(4)(x)[:, 2].detach() + 1)
    assert e.check().accounted


def test_tokens_have_one_relevance_each() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.norm, self.head = nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(F.relu(self.embed(ids))).mean(1))

    ids = torch.tensor([[0, 3, 6, 3], [1, 1, 2, 5]])
    explainer = dt.Explainer(Words().eval().double(), ids)
    e = explainer.explain(ids, dt.margin())
    assert e.relevance.shape == ids.shape
    assert e.relevance.is_floating_point()
    assert e.heatmap().shape == ids.shape
    assert e.check().accounted
    close(e.relevance, e.at("embed").sum(-1))
    close(e.relevance[0, 1], e.relevance[0, 3])  # the same word in a network that does not know positions
    longer = explainer.explain(torch.tensor([[0, 3, 6, 3, 2, 2]]))
    assert longer.relevance.shape == (1, 6)


# --- shapes -------------------------------------------------------------------------------------------------------


def test_the_batch_size_is_free_after_a_capture_with_one(captures: list[Any]) -> None:
    explainer = dt.Explainer(Net().eval().double(), batch(1), dt.Box(0, 1))
    whole = explainer.explain(batch(5))
    for k in range(5):
        one = explainer.explain(batch(5)[k : k + 1])
        close(one.relevance[0], whole.relevance[k], 1e-10)
    assert len(captures) == 1
    assert not [n for n in explainer.plan.notes if "batch" in n]


def test_another_size_is_captured_anew_and_remembered(captures: list[Any]) -> None:
    explainer = dt.Explainer(Net().eval().double(), batch(1), dt.Box(0, 1))
    large = explainer.explain(batch(2, side=8))
    assert large.relevance.shape == (2, 3, 8, 8)
    assert large.check().accounted
    assert large.at("pool").shape == (2, 6, 4, 4)
    assert [shape[0][2:] for shape in captures] == [(6, 6), (8, 8)]
    explainer.explain(batch(4, side=8))
    explainer.explain(batch(4))
    assert len(captures) == 2
    close(large.relevance, dt.explain(Net().eval().double(), batch(2, side=8), domain=dt.Box(0, 1)).relevance)


# --- programs that compute the same are explained the same --------------------------------------------------------


class Program(nn.Module):
    """Two layers and a head without biases, combined by a function."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.head, self.wide = nn.Linear(4, 3, bias=False), nn.Linear(8, 3, bias=False)
        self.act, self.inplace, self.run = nn.ReLU(), nn.ReLU(inplace=True), run
        for layer in (self.a, self.b):
            nn.init.uniform_(layer.weight, -0.5, 1.0)  # most units are active

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _residual(m: Any, x: Tensor) -> Tensor:
    h = m.act(m.a(x))
    return m.head(m.act(m.b(h) + h))


def _residual_functional(m: Any, x: Tensor) -> Tensor:
    h = F.relu(F.linear(x, m.a.weight))
    return F.linear(torch.relu(torch.add(h, m.b(h))), m.head.weight)


def _residual_in_place(m: Any, x: Tensor) -> Tensor:
    h = m.inplace(m.a(x))
    y = m.b(h)
    y += h
    y.relu_()
    return m.head(y)


def _residual_clamped(m: Any, x: Tensor) -> Tensor:
    h = m.a(x).clamp(min=0)
    return m.head(m.act(h + m.b(h)))


def _concatenated(m: Any, x: Tensor) -> Tensor:
    return m.wide(torch.cat([m.act(m.a(x)), m.act(m.b(x))], 1))


def _concatenated_in_two_layers(m: Any, x: Tensor) -> Tensor:
    left, right = m.wide.weight.chunk(2, 1)
    return F.linear(m.act(m.a(x)), left) + F.linear(m.act(m.b(x)), right)


def _split(m: Any, x: Tensor) -> Tensor:
    both = torch.cat([m.a(x), m.b(x)], 1).relu_()
    a, b = both.split(4, 1)
    return m.wide(torch.stack([a, b], 1).flatten(1))


def _shared(m: Any, x: Tensor) -> Tensor:
    return m.head(m.act(m.a(m.act(m.a(x)))))


def _unshared(m: Any, x: Tensor) -> Tensor:
    weight = m.a.weight + 0
    return m.head(F.relu(F.linear(F.relu(m.a(x)), weight)))


SAME = [
    (_residual, _residual_functional),
    (_residual, _residual_in_place),
    (_residual, _residual_clamped),
    (_concatenated, _concatenated_in_two_layers),
    (_concatenated, _split),
    (_shared, _unshared),
]


@pytest.mark.parametrize("pair", SAME, ids=lambda p: p[1].__name__.strip("_"))
@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_the_same_network_written_otherwise_has_the_same_explanation(pair: Any, bias: str) -> None:
    x = torch.rand(5, 4, dtype=torch.float64)
    one, other = (dt.explain(Program(run).eval().double(), x, dt.margin(), dt.NonNegative(), bias=bias) for run in pair)
    assert float(one.score.min()) > 0
    close(other.score, one.score)
    close(other.relevance, one.relevance, 1e-10)


@pytest.mark.parametrize(
    "run", [_residual, _residual_in_place, _concatenated, _split, _shared], ids=lambda f: f.__name__
)
def test_nothing_is_counted_twice(run: Any) -> None:
    # Without biases the input holds the whole score; hook-based tools give twice of it for h + f(h).
    x = torch.rand(5, 4, dtype=torch.float64)
    e = dt.explain(Program(run).eval().double(), x, dt.margin(), dt.NonNegative())
    close(e.relevance.sum(1), e.score, 1e-10)
    check = e.check()
    assert (check.conservative, check.positive, check.consistent, check.accounted) == (True, True, True, True)


# --- inner relevance ----------------------------------------------------------------------------------------------


def test_inner_relevance_by_module_path_and_node_name() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    by_path, by_node = e.at("pool"), e.at(next(r.node for r in explainer.plan.rows if r.module == "pool"))
    assert by_path.shape == (3, 6, 3, 3)
    assert torch.equal(by_path, by_node)
    # What arrives at a row of the ledger is the relevance at its node.
    for row, arrived in zip(e.ledger.rows[1:], e.ledger.entries[1:, 0], strict=True):
        close(e.at(row[0]).flatten(1).sum(1), arrived, 1e-10)


def test_inner_relevance_at_the_input_is_the_relevance() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), TOP)
    assert torch.equal(e.at("x"), e.relevance)


def test_inner_relevance_of_many_targets() -> None:
    model, explainer = net()
    target = model(batch()).topk(2).indices
    e = explainer.explain(batch(), target)
    assert e.at("pool").shape == (3, 2, 6, 3, 3)
    close(e.at("pool")[:, 1], explainer.explain(batch(), target[:, 1]).at("pool"), 1e-10)


def test_inside_a_block_the_boundaries_to_ask_are_named() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for name in ("conv2", "bn2", "head", "conv1"):
        with pytest.raises(dt.BoundaryError) as info:
            e.at(name)
        text = str(info.value)
        assert name in text
        assert "no relevance of its own" in text
        assert "Ask for" in text
        offered = re.findall(r"'([^']+)'", text.split("Ask for")[1])
        assert offered, text
        for other in offered:
            assert e.at(other).shape[0] == 3


def test_a_gate_says_that_it_carries_none() -> None:
    _, explainer = net()
    e = explainer.explain(batch())
    for name in ("excite", "squeeze", "sigmoid"):
        with pytest.raises(dt.BoundaryError, match=f"'{name}'.*carries no relevance.*gate"):
            e.at(name)


def test_an_unknown_name_offers_similar_ones() -> None:
    _, explainer = net()
    with pytest.raises(dt.BoundaryError, match=r"no node or module 'pol'.*Did you mean.*'pool'"):
        explainer.explain(batch()).at("pol")
    with pytest.raises(KeyError):  # as a dictionary would
        explainer.explain(batch()).at("")


def test_an_explanation_is_about_the_input_it_was_made_of() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    e = dt.Explainer(mlp(), x, dt.NonNegative()).explain(x, dt.margin())
    before = e.at("1").clone()
    x.zero_()
    assert torch.equal(e.at("1"), before)


def test_an_explanation_is_about_the_network_it_was_made_of() -> None:
    model, x = mlp(), torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(model, x, dt.NonNegative())
    e = explainer.explain(x, dt.margin())
    before = e.at("1").clone()
    with torch.no_grad():
        model[2].weight.mul_(3)
    explainer.refresh()
    try:
        after = e.at("1")
    except dt.StaleModelError:
        return  # refusing is as good as remembering
    assert torch.equal(after, before)


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_plan_prints_as_a_table() -> None:
    """Golden: to renew, write str(plan) to tests/golden/plan_small_cnn.txt and read every line of it."""
    plan = dt.Explainer(small_cnn(), torch.rand(1, 1, 8, 8), dt.Box(0, 1)).plan
    assert str(plan) + "\n" == (GOLDEN / "plan_small_cnn.txt").read_text(encoding="utf-8")


def test_the_plan_follows_from_the_domain() -> None:
    x = torch.rand(1, 4, dtype=torch.float64)
    for domain, rule in ((dt.Box(0, 1), "zB"), (dt.NonNegative(), "z+"), (dt.Real(), "w2"), (None, "w2")):
        rows = dt.Explainer(mlp(), x, domain).plan.rows
        assert [r.rule for r in rows] == ["z+", "pass", rule]
        assert rows[-1].domain == str(domain or dt.Real())


def test_rules_by_name_path_and_pattern() -> None:
    x = torch.rand(1, 4, dtype=torch.float64)

    def rules(**chosen: Any) -> list[str]:
        return [r.rule for r in dt.Explainer(mlp(), x, dt.NonNegative(), **chosen).plan.rows]

    assert rules(rules={"0": dt.rules.Flat()}) == ["z+", "pass", "flat"]
    assert rules(rules={"linear": dt.rules.Flat()}) == ["z+", "pass", "flat"]
    assert rules(rules={"linear*": dt.rules.Gamma(0.5)}) == ["gamma=0.5", "pass", "gamma=0.5"]
    assert rules(rules={"linear*": dt.rules.Gamma(0.5), "0": dt.rules.WSquare()}) == ["gamma=0.5", "pass", "w2"]
    assert rules(rules={"0": dt.rules.WSquare(), "[02]": dt.rules.Epsilon(0.25)}) == ["eps=0.25", "pass", "w2"]
    assert rules(first=dt.rules.AlphaBeta(2, 1)) == ["z+", "pass", "alpha=2 beta=1"]
    assert rules(first=dt.rules.Flat(), rules={"0": dt.rules.WSquare()}) == ["z+", "pass", "w2"]


def test_a_chosen_rule_changes_the_relevance_and_is_marked() -> None:
    x = torch.rand(3, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, dt.NonNegative(), rules={"0": dt.rules.Flat()})
    assert "chosen by the user" in explainer.plan.rows[-1].why
    e = explainer.explain(x, dt.margin())
    close(e.relevance, e.at("0").sum(1, keepdim=True).expand(3, 4) / 4)


def test_the_plan_in_short() -> None:
    summary = dt.Explainer(small_cnn(), torch.rand(1, 1, 8, 8), dt.Box(0, 1)).plan.summary()
    assert "zB × 1" in summary
    assert "set aside" in summary


# --- boxes --------------------------------------------------------------------------------------------------------

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def test_a_box_from_a_normalisation() -> None:
    box = dt.Box.from_normalisation(MEAN, STD)
    low, high = box.bounds(torch.rand(1, 3, 2, 2))
    for c in range(3):
        assert float(low[0, c]) == pytest.approx((0 - MEAN[c]) / STD[c])
        assert float(high[0, c]) == pytest.approx((1 - MEAN[c]) / STD[c])


class Normalised(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(MEAN, dtype=torch.float64).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD, dtype=torch.float64).reshape(3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model((pixels - self.mean) / self.std)


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_normalising_inside_the_network_is_normalising_outside(bias: str) -> None:
    model = Net().eval().double()
    mean, std = (torch.tensor(t, dtype=torch.float64).reshape(3, 1, 1) for t in (MEAN, STD))
    inside = dt.explain(Normalised(model).eval(), batch(), TOP, dt.Box(0, 1), bias=bias)
    box = dt.Box.from_normalisation(torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64))
    outside = dt.explain(model, (batch() - mean) / std, TOP, box, bias=bias)
    close(inside.score, outside.score)
    close(inside.relevance, outside.relevance, 1e-10)
    close(inside.ledger.total, outside.ledger.total, 1e-10)


def test_per_element_bounds() -> None:
    model, x = Net().eval().double(), batch()
    low, high = torch.zeros(3, 6, 6, dtype=torch.float64), torch.ones(3, 6, 6, dtype=torch.float64)
    e = dt.explain(model, x, TOP, dt.Box(low, high))
    close(e.relevance, dt.explain(model, x, TOP, dt.Box(0, 1)).relevance)


# --- what it says about itself ------------------------------------------------------------------------------------


def with_bias(share: float) -> nn.Module:
    """f = Σ x + b with a bias that takes `share` of the score of x = (1, 1)."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(2 * share / (1 - share))
    return layer.eval()


def test_the_check_begins_with_a_small_share_of_the_input() -> None:
    e = dt.explain(with_bias(0.75), torch.ones(2, 2), domain=dt.NonNegative())
    first, *rest = str(e.check()).splitlines()
    assert first.startswith("The input holds only 25.0 % of the score; biases took 75.0 %")
    assert 'bias="spread"' in first
    assert [line.split()[0] for line in rest] == ["conservative", "positive", "consistent", "accounted"]
    assert str(e).startswith("The input holds only")
    assert "The input holds only" in e._repr_html_()


def test_the_check_begins_so_even_where_other_samples_are_empty() -> None:
    x = torch.tensor([[1.0, 1.0], [-9.0, -9.0]])
    e = dt.explain(with_bias(0.75), x, domain=dt.Real(), first=dt.rules.ZPlus())
    assert e.score.tolist() == [8.0, -12.0]
    assert str(e.check()).startswith("The input holds only 25.0 %")
    assert "1 of 2 scores are negative" in str(e.check())


def test_the_check_measures_the_gaps() -> None:
    check = dt.explain(with_bias(0.25), torch.ones(2, 2), domain=dt.NonNegative()).check()
    assert not str(check).startswith("The input holds only")
    assert (check.conservative, check.positive, check.consistent, check.accounted) == (False, True, False, True)
    assert check.conservation_gap == pytest.approx(0.25)
    assert check.accounting_gap <= 1e-6
    assert check.input_share == pytest.approx(0.75)
    assert str(check).startswith("conservative  no   the input holds 75.0 % of the score or more: |Σ R − f| ≤ 2.50e-01")
    assert "NO" not in str(check)
    spread = dt.explain(with_bias(0.25), torch.ones(2, 2), domain=dt.NonNegative(), bias="spread").check()
    assert spread.consistent
    assert spread.conservation_gap <= 1e-6


def test_negative_relevance_is_not_positive() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    check = dt.explain(mlp(bias=False), x, dt.margin(), dt.NonNegative(), rules={"linear*": dt.rules.Z()}).check()
    assert (check.conservative, check.positive, check.consistent) == (True, False, False)
    assert check.most_negative < 0
    assert "positive      no   some relevance is negative: the smallest is -" in str(check)


def test_the_check_catches_a_map_that_was_tampered_with() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), dt.margin())
    assert e.check().accounted
    ledger = dataclasses.replace(e.ledger, bias=e.ledger.bias * 1.01 + 1e-3)
    tampered = dataclasses.replace(e, ledger=ledger).check()
    assert not tampered.accounted
    assert "accounted     NO   not all of the score is accounted for: " in str(tampered)
    assert not dataclasses.replace(e, relevance=e.relevance - 1e-3).check().positive


# --- pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "heat"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), (3, 4, 4), (4, 4)),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (3, 4), (4,)),
        (nn.Linear(5, 2), (5,), (5,)),
    ],
)
def test_heatmaps_sum_over_channels(model: nn.Module, shape: tuple[int, ...], heat: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape)
    explainer = dt.Explainer(model.eval(), x, dt.Box(0, 1))
    e = explainer.explain(x, dt.margin())
    assert e.heatmap().shape == (2, *heat)
    assert torch.allclose(e.heatmap().flatten(1).sum(1), e.ledger.input)
    assert explainer.explain(x, torch.tensor([[0, 1, 1]] * 2)).heatmap().shape == (2, 3, *heat)


def test_save_writes_the_picture_of_one_sample_and_target(tmp_path: Path) -> None:
    model, explainer = net()
    e = explainer.explain(batch(), model(batch()).topk(2).indices)
    path = e.save(tmp_path / "heatmap.png", sample=1, target=1)
    assert path == tmp_path / "heatmap.png"
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert picture.shape == (6, 6, 3)
    heat = e.heatmap()[1, 1]
    hottest = np.unravel_index(int(heat.argmax()), (6, 6))
    assert picture[hottest][0] > picture[hottest][2], "red where it speaks for the decision"
    other = e.save(str(tmp_path / "other.png"), sample=0)
    assert not np.array_equal(np.asarray(Image.open(other).convert("RGB")), picture)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["heatmap.png", "other.png"]


def test_it_shows_itself_in_a_notebook() -> None:
    _, explainer = net()
    e = explainer.explain(batch(), dt.margin())
    assert Image.open(io.BytesIO(e._repr_png_())).size == (6, 6)
    html = e._repr_html_()
    assert html.count("<img") == 3
    assert html.count("data:image/png;base64,") == 3
    assert "conservative" in html
    assert f"{float(e.score[0]):.4g}" in html


def test_an_empty_map_is_white() -> None:
    x = torch.zeros(1, 2)
    e = dt.explain(nn.Linear(2, 1, bias=False).eval(), x, domain=dt.NonNegative())
    picture = np.asarray(Image.open(io.BytesIO(e._repr_png_())).convert("RGB"))
    assert picture.min() == 255
    assert "no evidence" in e._repr_html_()


# --- types --------------------------------------------------------------------------------------------------------


def test_the_explainer_moves_to_another_type_and_the_network_stays() -> None:
    model = Net().eval()
    explainer = dt.Explainer(model, batch(1).float(), dt.Box(0, 1))
    single = explainer.explain(batch().float(), TOP)
    assert explainer.to(torch.float64) is explainer
    double = explainer.explain(batch(), TOP)
    assert double.relevance.dtype == double.ledger.bias.dtype == torch.float64
    assert torch.allclose(double.relevance.float(), single.relevance, atol=1e-5 * float(single.score.abs().max()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_moved_explainer_stays_moved() -> None:
    explainer = dt.Explainer(Net().eval(), batch(1).float(), dt.Box(0, 1)).to(torch.float64)
    assert explainer.explain(batch(2, side=8), TOP).relevance.dtype == torch.float64
    assert explainer.explain(batch(), lambda out: out[:, TOP]).relevance.dtype == torch.float64
    assert explainer.refresh().explain(batch(), TOP).relevance.dtype == torch.float64


def test_bfloat16_is_close() -> None:
    if not _survives_bfloat16():
        pytest.skip("this processor dies of matrix products in bfloat16")
    model = Net().eval()
    exact = dt.Explainer(model.double(), batch(1), dt.Box(0, 1)).explain(batch(), TOP)
    x = batch().bfloat16()
    coarse = dt.Explainer(Net().eval().bfloat16(), x, dt.Box(0, 1)).explain(x, TOP)
    assert coarse.relevance.dtype == torch.bfloat16
    gap = (coarse.relevance.double() - exact.relevance).abs().sum() / exact.relevance.sum()
    assert float(gap) < 0.03


def test_vectors_picked_by_positions_are_constants() -> None:
    class Positions(nn.Module):
        """Positions counted from the tokens, as RoBERTa does."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(7, 4), nn.Embedding(9, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            positions = torch.cumsum((tokens != 0).long(), 1) + 1
            return self.head(torch.relu(self.words(tokens) + self.places(positions)).mean(1))

    net, tokens = Positions().double(), torch.tensor([[1, 2, 0, 4], [5, 3, 6, 1]])
    e = dt.explain(net, tokens, dt.margin())
    assert e.relevance.shape == tokens.shape
    assert float(e.relevance.min()) >= 0
    assert torch.allclose(e.ledger.total, e.score, atol=0, rtol=1e-12)
    assert float(e.ledger.bias.min()) > 0


# --- where the samples are ----------------------------------------------------------------------------------------


class Sideways(nn.Module):
    """A network that works on (length, batch, features), and may insist on its batch size."""

    def __init__(self, fixed: int | None) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second, self.fixed = nn.Linear(4, 6), nn.Linear(6, 2), fixed
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        if self.fixed is not None:
            turned = turned.reshape(3, self.fixed, 4)
        hidden = torch.relu(self.first(turned))
        return self.second(hidden.reshape(3, -1, 6).mean(0))


@pytest.mark.parametrize("fixed", [1, 2, 3])
def test_a_fixed_batch_that_is_not_the_first_axis(fixed: int) -> None:
    x = torch.rand(fixed, 3, 4, dtype=torch.float64)
    target = torch.tensor([[1, 0]] * fixed)
    e = dt.explain(Sideways(fixed), x, target, dt.NonNegative())
    expected = dt.explain(Sideways(None), x, target, dt.NonNegative())
    assert expected.relevance.any()
    close(e.relevance, expected.relevance)
    close(e.ledger.bias, expected.ledger.bias)
    close(e.ledger.input + e.ledger.bias + e.ledger.dropped, e.score.clamp(min=0))


def test_tiny_scores_are_explained_as_exactly_as_others() -> None:
    """Relevances near the smallest numbers there are: they would lose digits, and make convolutions slow."""

    def network(scale: float) -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
        last = nn.Linear(8 * 36, 4)
        with torch.no_grad():
            last.weight.mul_(scale)
            last.bias.mul_(scale)
        return nn.Sequential(*layers, last)

    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = dt.explain(network(1.0), x, domain=dt.Box(0, 1))
    tiny = dt.explain(network(2.0**-110), x, domain=dt.Box(0, 1))
    assert (plain.score > 0).all()
    assert torch.equal(tiny.score, plain.score * 2.0**-110)
    # The results themselves are as exact as so small numbers can be: a step of the smallest is 1.4e-45.
    assert ((tiny.relevance.double() - plain.relevance.double() * 2.0**-110).abs() <= 1.5e-45).all()
    assert torch.allclose(tiny.ledger.bias * 2.0**110, plain.ledger.bias, rtol=1e-4)
    boundary = (tiny.at("1").double() - plain.at("1").double() * 2.0**-110).abs()
    assert (boundary <= 1.5e-45).all()


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [None, 4, torch.tensor([4, 7, 9, 1, 2]), torch.tensor([[4, 7]] * 5), dt.margin(torch.arange(5), 6)],
    ids=["top", "int", "each", "many", "margin"],
)
def test_a_batch_that_does_not_fit_is_halved(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, explainer = net("neuron")
    x = batch(5)
    whole, inside = explainer.explain(x, target), explainer.relevance_at("pool", x, target)
    run = Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)
    with pytest.warns(
        dt.DeepTaylorWarning, match="A batch of 5 does not fit into memory; it was explained 2 at a time"
    ):
        halves = explainer.explain(x, target)
    close(halves.relevance, whole.relevance)
    close(halves.score, whole.score)
    close(halves.ledger.entries, whole.ledger.entries)
    with pytest.warns(dt.DeepTaylorWarning, match="does not fit"):
        close(explainer.relevance_at("pool", x, target), inside)
    with pytest.warns(dt.DeepTaylorWarning, match="does not fit"):
        close(explainer(x, target)[1], whole.relevance)


class Deep(nn.Module):
    """Residual blocks, a skip over all of them, pooling and a gate."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(40))
        self.pool, self.gate, self.fc = nn.MaxPool2d(2), nn.Linear(8, 8), nn.Linear(8, 4)
        nn.init.constant_(self.fc.bias, 1.0)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        first = h = F.relu(self.stem(x))
        for block in self.blocks:
            h = F.relu(h + block(h) / 8)
        h = self.pool(h + first)
        h = h * torch.sigmoid(self.gate(h.mean((2, 3))))[:, :, None, None]
        return self.fc(h.mean((2, 3)))


def most_kept(explainer: dt.Explainer, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most elements that wait for the reverse pass at once."""
    found, value = [0], ForwardValues.value

    def counted(self: ForwardValues, name: str) -> Any:
        result = value(self, name)
        found.append(sum(t.numel() for t in self.values.values() if isinstance(t, Tensor)))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(ForwardValues, "value", counted)
        explainer(x, 0)
    return max(found)


def test_what_is_kept_can_be_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(Deep(), x, dt.Box(0, 1), bias="spread")
    many = torch.tensor([[0, 1], [2, 3], [1, 1]])
    plain, inside, before = (
        explainer.explain(x, many),
        explainer.relevance_at("pool", x, 1),
        most_kept(explainer, x, monkeypatch),
    )
    assert explainer.recompute() is explainer
    again = explainer.explain(x, many)
    assert torch.equal(again.relevance, plain.relevance)
    assert torch.equal(again.ledger.entries, plain.ledger.entries)
    assert torch.equal(explainer.relevance_at("pool", x, 1), inside)
    assert most_kept(explainer, x, monkeypatch) < 0.6 * before
    explainer.recompute(False)
    assert most_kept(explainer, x, monkeypatch) == before
    assert torch.equal(explainer.explain(x, many).relevance, plain.relevance)


def test_computing_again_holds_for_other_types_shapes_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    x, wide = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.rand(2, 1, 12, 12, dtype=torch.float64)
    explainer, thrifty = (dt.Explainer(Deep(), x, dt.Box(0, 1)) for _ in range(2))
    thrifty.float().recompute()
    explainer.float()
    assert torch.equal(thrifty(x.float(), 0)[1], explainer(x.float(), 0)[1])
    thrifty.double()
    explainer.double()
    score = lambda out: out[:, 0].exp() + out[:, 1]  # noqa: E731
    assert torch.equal(thrifty(wide, 0)[1], explainer(wide, 0)[1])
    assert torch.equal(thrifty(x, score)[1], explainer(x, score)[1])
    (scored,) = thrifty._scored.values()
    for engine in (*thrifty.engines.values(), *scored.engines.values()):
        assert engine.recomputes


def test_a_sample_that_does_not_fit_is_computed_again_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    explainer = dt.Explainer(Deep(), x, dt.Box(0, 1))
    expected, run = explainer(x, 0), Engine.run

    def small(self: Engine, inputs: Any, *rest: Any, **named: Any) -> Any:
        if len(inputs[0]) > 1 or not self.recomputes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, inputs, *rest, **named)

    monkeypatch.setattr(Engine, "run", small)
    with (
        pytest.warns(dt.DeepTaylorWarning, match="explained 1 at a time"),
        pytest.warns(
            dt.DeepTaylorWarning, match="A sample does not fit into memory; less is kept and more computed again"
        ),
    ):
        found = explainer(x, 0)
    close(found[1], expected[1])


def test_a_single_sample_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, explainer = net("neuron")

    def none(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Engine, "run", none)
    with (
        pytest.raises(dt.DeepTaylorError, match=r"does not fit into memory.*CUDA out of memory.*Explain smaller") as e,
        pytest.warns(dt.DeepTaylorWarning, match="A sample does not fit"),
    ):
        explainer.explain(batch(1))
    assert isinstance(e.value, MemoryError)


# --- folding ------------------------------------------------------------------------------------------------------


class Turned(nn.Module):
    """A normalisation, axes that change place, and a linear layer: as nn.MultiheadAttention does with batch_first."""

    def __init__(self, turn: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.norm, self.linear, self.head, self.turn = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 2), turn
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        h = torch.relu(self.linear(y.transpose(0, 1)).transpose(0, 1) if self.turn else self.linear(y))
        return self.head(h.mean(1)) + 3


def test_a_normalisation_is_folded_through_axes_that_change_place() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    turned, plain = (dt.Explainer(Turned(turn), x) for turn in (True, False))
    assert not any("centre" in row.op for row in turned.plan.rows)
    close(turned.explain(x).relevance, plain.explain(x).relevance)
    assert plain.explain(x).relevance.any()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("could not create a primitive"),  # oneDNN's convolutions
    ],
)
def test_whatever_says_that_memory_ran_out_halves_the_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval(), torch.rand(6, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative())
    expected, plain = explainer.explain(x).relevance, Engine.run

    def narrow(engine: Engine, inputs: Any, *rest: Any) -> Any:
        if len(inputs[0]) > 2:
            raise error
        return plain(engine, inputs, *rest)

    monkeypatch.setattr(Engine, "run", narrow)
    assert torch.allclose(explainer.explain(x).relevance, expected)
    assert "2 at a time" in str(recwarn[-1].message)
