"""The public interface, used as design.md shows it, and the questions a sceptical user asks of its answers."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pkgutil

import pytest
import torch
from torch import nn

import deeptaylor as dt
from small_networks import TOP, batch, close, mlp, net


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
        "Patching",
        "PlanError",
        "Preparation",
        "Pretrained",
        "Real",
        "Root",
        "RootPoint",
        "Run",
        "Site",
        "SmoothReLU",
        "StaleModelError",
        "TargetError",
        "TextExplainer",
        "TextExplanation",
        "TextModel",
        "UnsupportedOpError",
        "as_taken",
        "at_step",
        "average_copies",
        "best_box",
        "box",
        "channel_examples",
        "channels",
        "contrast",
        "evaluate",
        "examples",
        "explain",
        "explain_dataset",
        "heads",
        "load",
        "log_odds",
        "logit",
        "losses",
        "margin",
        "nearest_root",
        "negative",
        "open_dataset",
        "patching",
        "pixel",
        "probability",
        "region",
        "relevance_models",
        "root_point",
        "rules",
        "sensitivity",
        "shapley",
        "similarity",
        "smoothed",
        "taylor",
        "unit",
    ]
    for name in dt.__all__:
        assert hasattr(dt, name)


@pytest.mark.parametrize(
    ("old", "new"), [("averaged", "average_copies"), ("run", "explain_dataset"), ("open_run", "open_dataset")]
)
def test_former_names_give_the_same_object_and_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"^dt\.{old} is now dt\.{new}\.$"):
        assert getattr(dt, old) is getattr(dt, new)
    assert old not in dt.__all__
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = dt.other  # type: ignore[attr-defined]


def test_the_ledger_of_rules_has_its_former_name_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"^dt\.rules\.Book is now dt\.rules\.LedgerWriter\.$"):
        assert dt.rules.Book is dt.rules.LedgerWriter  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = dt.rules.other  # type: ignore[attr-defined]


def test_modules_are_attributes_of_the_package() -> None:
    """No public name hides a folder: `import deeptaylor.engine.forward` binds what `dt.engine.forward` is."""
    for info in pkgutil.iter_modules(dt.__path__):
        module = importlib.import_module(f"deeptaylor.{info.name}")
        if info.ispkg:
            assert getattr(dt, info.name) is module, info.name


def test_public_rules() -> None:
    for name in ("WSquare", "Z", "ZPlus", "ZBox", "AlphaBeta", "Epsilon", "Gamma", "Flat", "Pass", "Signal"):
        assert issubclass(getattr(dt.rules, name), dt.rules.Rule)
        getattr(dt.rules, name)()  # each has usable defaults
    assert dt.rules.Epsilon(0.25).epsilon == 0.25


def test_signatures() -> None:
    explainer = inspect.signature(dt.Explainer).parameters
    assert list(explainer) == [
        "model", "example", "domain", "method", "preset", "reference", "background", "rules", "first", "bias",
        "max_pool", "local", "output", "live",
    ]  # fmt: skip
    defaults = {k: p.default for k, p in explainer.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {
        "example": None,
        "domain": None,
        "method": "auto",
        "preset": None,
        "reference": None,
        "background": None,
        "rules": None,
        "first": None,
        "bias": None,
        "max_pool": None,
        "local": None,
        "output": None,
        "live": False,
    }
    assert list(inspect.signature(dt.Explainer.relevance).parameters) == [
        "self", "x", "target", "contrast", "against", "reference"
    ]  # fmt: skip
    assert list(inspect.signature(dt.Explainer.explain).parameters) == ["self", "x", "target", "reference"]
    assert list(inspect.signature(dt.Explainer.forward).parameters) == ["self", "x", "target"]
    contrast = list(inspect.signature(dt.Explainer.contrast).parameters)
    assert contrast == ["self", "x", "target", "against", "power"]
    settings = ["rules", "first", "bias", "max_pool", "local", "output"]
    of_texts = ["continuation", "against", "method", "reference"]
    asked = ["model", "x", "target", "domain", *settings, *of_texts, "background", "class_names", "device", "tokenizer"]
    assert list(inspect.signature(dt.explain).parameters) == asked
    asked = ["model", "x", "target", "against", "power", "domain"]
    names = ["method", "reference", "class_names", "device"]
    assert list(inspect.signature(dt.contrast).parameters) == [*asked, *settings, *names]
    assert list(inspect.signature(dt.Pretrained.explainer).parameters) == [
        "self", "method", "preset", "reference", "background", *settings
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
        other.model[0].weight.mul_(2)
    assert torch.equal(explainer.explain(x).relevance, expected)
    with pytest.raises(dt.StaleModelError):
        other(x)
    with pytest.raises(dt.StaleModelError):
        copy.deepcopy(other).explain(x)  # a copy of what is stale is stale
    assert not torch.equal(other.refresh().explain(x).relevance, expected)


def test_the_preset_of_the_paper_is_its_method() -> None:
    """Bias neurons, averages as pooling, max pooling in proportion, z^B first and z⁺ above, whatever name is used."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU())
    network = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 4, 4)).double()
    with torch.no_grad():
        network[0].bias.fill_(0.2)  # some relevance goes to the biases
    x, box = torch.rand(2, 3, 14, 14, dtype=torch.float64), dt.Box(0, 1)

    def explain(**settings: object) -> torch.Tensor:
        e = dt.Explainer(network, x, domain=box, **settings).explain(x)
        assert bool((e.score > 0).all())
        return e.relevance

    named = explain(preset="paper")
    assert torch.equal(named, explain(method="paper"))
    assert torch.equal(named, explain(preset="paper", method="paper"))
    assert torch.equal(named, explain(bias="neuron", local=False, max_pool="proportional"))
    assert torch.equal(named, explain(preset="paper", first=dt.rules.ZBox(0.0, 1.0)))
    assert not torch.allclose(named, explain(preset="deep-taylor"))
    p = dt.Pretrained(network, None, None, domain=box)
    assert torch.equal(named, p.explainer(preset="paper").explain(x).relevance)
    with pytest.raises(dt.InputError, match="preset='paper' and method='secant' name different methods"):
        dt.Explainer(network, preset="paper", method="secant")
    with pytest.raises(dt.InputError, match="The preset 'lrp' is not known; the presets are 'deep-taylor', 'paper'"):
        dt.Explainer(network, preset="lrp")
