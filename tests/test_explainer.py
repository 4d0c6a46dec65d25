"""The public interface, used as design.md shows it, and the questions a sceptical user asks of its answers."""

from __future__ import annotations

import copy
import dataclasses
import inspect

import pytest
import torch
from torch import nn

import deeptaylor as dt
from small_networks import TOP, batch, close, mlp, net

pytestmark = pytest.mark.usefixtures("seeded")


def test_public_names() -> None:
    assert sorted(dt.__all__) == [
        "Between",
        "BoundaryError",
        "Box",
        "CaptureError",
        "ChannelExamples",
        "Channels",
        "Check",
        "Concepts",
        "Contrast",
        "DeepTaylorError",
        "DeepTaylorWarning",
        "Domain",
        "ExampleSearch",
        "Examples",
        "Explainer",
        "Explanation",
        "HARD",
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
        "Run",
        "SmoothReLU",
        "StaleModelError",
        "TargetError",
        "TextExplainer",
        "TextExplanation",
        "TextModel",
        "UnsupportedOpError",
        "as_taken",
        "at_step",
        "averaged",
        "channel_examples",
        "contrast",
        "evaluate",
        "examples",
        "explain",
        "load",
        "log_odds",
        "logit",
        "margin",
        "nearest_root",
        "negative",
        "open_run",
        "probability",
        "relevance_models",
        "root_point",
        "rules",
        "run",
        "sensitivity",
        "shapley",
        "similarity",
        "smoothed",
        "taylor",
        "unit",
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
    assert list(explainer) == [
        "model", "example", "domain", "method", "reference", "background", "rules", "first", "bias", "max_pool",
        "local", "output",
    ]  # fmt: skip
    defaults = {k: p.default for k, p in explainer.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {
        "example": None,
        "domain": None,
        "method": "auto",
        "reference": None,
        "background": None,
        "rules": None,
        "first": None,
        "bias": None,
        "max_pool": None,
        "local": None,
        "output": None,
    }
    assert list(inspect.signature(dt.Explainer.explain).parameters) == ["self", "x", "target", "reference"]
    assert list(inspect.signature(dt.Explainer.forward).parameters) == ["self", "x", "target"]
    contrast = list(inspect.signature(dt.Explainer.contrast).parameters)
    assert contrast == ["self", "x", "target", "against", "power"]
    settings = ["rules", "first", "bias", "max_pool", "local", "output"]
    of_texts = ["continuation", "against", "method", "reference"]
    asked = ["model", "x", "target", "domain", *settings, *of_texts, "background"]
    assert list(inspect.signature(dt.explain).parameters) == asked
    asked = ["model", "x", "target", "against", "power", "domain"]
    assert list(inspect.signature(dt.contrast).parameters) == [*asked, *settings, "method", "reference"]
    assert list(inspect.signature(dt.Pretrained.explainer).parameters) == [
        "self", "method", "reference", "background", *settings
    ]  # fmt: skip
    for made in (dt.explain, dt.contrast, dt.Pretrained.explainer):
        given = inspect.signature(made).parameters
        assert {name: given[name].default for name in settings} == {name: defaults[name] for name in settings}
    assert list(inspect.signature(dt.evaluate).parameters)[:4] == ["model", "data", "methods", "metrics"]
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
    ledger = dt.explain(network, x, bias="neuron").ledger
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
    again = dt.Explainer(model, batch(2), dt.Box(0, 1), bias="neuron").explain(batch(), TOP)
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


def test_a_copy_explains_and_knows_when_its_network_changed() -> None:
    x = torch.rand(2, 4, dtype=torch.float64)
    explainer = dt.Explainer(mlp(), x, bias="neuron")
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
