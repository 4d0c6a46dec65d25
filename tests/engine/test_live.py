"""Live explainers: relevance is differentiable in the parameters, and maps follow the parameters without a capture."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine import captured_network
from deeptaylor.engine.live import LiveEngine
from small_networks import close
from trained_networks import KINDS, Trained, make_trained

BIASES = ("returned", "neuron", "spread")
PICTURES = [kind for kind in KINDS if kind not in ("attention", "gated", "tokens", "table")]
GAP = 1e-8  # of a gradient, relative to the sum of its parts
STEP = 3e-6  # of finite differences


def live(t: Trained, **settings: Any) -> dt.Explainer:
    return dt.Explainer(t.model, t.x, t.domain, live=True, **settings)


def zeros(x: Tensor) -> Any:
    return "zeros" if x.is_floating_point() else torch.zeros_like(x)


def check_gradients(t: Trained, relevance: Callable[[Tensor], Tensor]) -> None:
    """Compare the derivative along one direction of all parameters and inputs with finite differences."""
    inputs = [t.x.clone().requires_grad_()] if t.x.is_floating_point() else []
    moved = list(t.model.parameters())
    R = relevance(inputs[0] if inputs else t.x)
    directions = [torch.randn_like(p) for p in (*inputs, *moved)]
    weights = torch.randn_like(R)
    found = torch.autograd.grad((R * weights).sum(), [*inputs, *moved])
    parts = [float((g * d).sum()) for g, d in zip(found, directions, strict=True)]

    @torch.no_grad()
    def at(h: float) -> float:
        along = directions[len(inputs) :]
        for p, d in zip(moved, along, strict=True):
            p.add_(h * d)
        value = float((relevance(t.x + h * directions[0] if inputs else t.x) * weights).sum())
        for p, d in zip(moved, along, strict=True):
            p.sub_(h * d)
        return value

    near, far = at(STEP) - at(-STEP), at(2 * STEP) - at(-2 * STEP)
    expected, size = (8 * near - far) / (12 * STEP), sum(map(abs, parts))
    assert size > 0, "nothing agrees with nothing"
    assert abs(sum(parts) - expected) <= GAP * size, (sum(parts), expected, size)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_deep_taylor_agree_with_finite_differences(kind: str, bias: str) -> None:
    t = make_trained(kind)
    explainer = live(t, bias=bias)
    check_gradients(t, lambda x: explainer.relevance(x, dt.margin()))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_contrasts_agree_with_finite_differences(kind: str) -> None:
    t = make_trained(kind)
    with torch.no_grad():
        next(p for name, p in t.model.named_parameters() if p.shape == (3,)).add_(2)  # rivals have positive scores
    explainer = live(t, bias="neuron")
    check_gradients(t, lambda x: explainer.relevance(x, contrast=True))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_secants_agree_with_finite_differences(kind: str) -> None:
    t = make_trained(kind, seed=1)
    explainer = live(t, method="secant")
    check_gradients(t, lambda x: explainer.relevance(x, dt.margin(), reference=zeros(x)))


@pytest.mark.parametrize("kind", PICTURES)
def test_gradients_of_smoothed_secants_against_rivals_agree_with_finite_differences(kind: str) -> None:
    t = make_trained(kind, seed=1)
    explainer = live(t, method="secant")
    check_gradients(t, lambda x: explainer.relevance(x, 1))


@pytest.mark.parametrize(
    "settings",
    [{"local": False}, {"max_pool": "winner"}, {"rules": {"*": dt.rules.Epsilon(0.1)}}, {"method": "paper"},
     {"first": dt.rules.WSquare()}],
    ids=str,
)  # fmt: skip
def test_gradients_with_other_settings_agree_with_finite_differences(settings: dict[str, Any]) -> None:
    t = make_trained("batch norm")
    explainer = live(t, **settings)
    check_gradients(t, lambda x: explainer.relevance(x, dt.margin()))


TARGETS = {
    "class": 1,
    "two classes": [0, 2],
    "a class a sample": torch.tensor([0, 2, 1]),
    "negative": dt.negative(0),
    "probability": dt.probability(1),
    "function": lambda o: o[:, 0] - o[:, 2],
}


@pytest.mark.parametrize("name", TARGETS)
def test_gradients_of_any_target_agree_with_finite_differences(name: str) -> None:
    t, target = make_trained("cnn"), TARGETS[name]
    with torch.no_grad():
        t.model[-1].bias.add_(-2 if name == "negative" else 2)  # type: ignore[index]
    explainer = live(t)
    check_gradients(t, lambda x: explainer.relevance(x, target))


def test_of_several_inputs_every_map_is_differentiable() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(F.relu(self.a(x) + self.b(y)))

    torch.manual_seed(3)
    model = Two().double()
    x, y = torch.rand(3, 3, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    explainer = dt.Explainer(model, (x, y), live=True)
    t = Trained(model, torch.cat([x, y], 1), dt.Real())
    check_gradients(t, lambda v: torch.cat(explainer.relevance((v[:, :3], v[:, 3:]), dt.margin()), 1))


def test_no_gradient_is_none() -> None:
    t = make_trained("cnn")
    t.model.add_module("unused", nn.Linear(2, 2).double())
    t.model.forward = t.model[:7].forward  # type: ignore[index, method-assign]
    explainer = live(t, method="secant")
    found = torch.autograd.grad(explainer.relevance(t.x, 0, reference="zeros").square().sum(), t.model.parameters())
    by_name = dict(zip(dict(t.model.named_parameters()), found, strict=True))
    assert not by_name["unused.weight"].any()
    assert not by_name["6.bias"].any()  # of the last layer: it is the same at both points
    assert by_name["0.weight"].any()


def test_a_frozen_parameter_takes_no_gradient() -> None:
    t = make_trained("batch norm")
    t.model[0].weight.requires_grad_(False)  # type: ignore[index]
    live(t).relevance(t.x, dt.margin()).square().sum().backward()  # type: ignore[no-untyped-call]
    assert t.model[0].weight.grad is None  # type: ignore[index]
    assert t.model[0].bias.grad is not None  # type: ignore[index]


# --- maps follow the parameters ---------------------------------------------------------------------------------------


class Captures:
    """Counts how often networks are captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, make = 0, captured_network.make_live_engine

        def counted(*args: Any) -> Any:
            self.count += 1
            return make(*args)

        monkeypatch.setattr(captured_network, "make_live_engine", counted)


def train(t: Trained, explainer: dt.Explainer, steps: int = 4, rate: float = 0.05) -> None:
    """Train on cross-entropy and a loss on relevance, in training mode."""
    optimiser = torch.optim.Adam(t.model.parameters(), rate)
    labels = torch.arange(len(t.x)) % 3
    t.model.train()
    for _ in range(steps):
        optimiser.zero_grad()
        R = explainer.relevance(t.x, dt.margin(labels))
        (F.cross_entropy(t.model(t.x), labels) + R.square().sum()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def fresh(t: Trained, explainer: dt.Explainer) -> dt.Explainer:
    """An explainer of the network as it is now, which knows nothing of `live`."""
    s = explainer.settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is in training mode
        return dt.Explainer(
            t.model, t.x, t.domain, method=s.method, **({"bias": s.bias} if s.method == "deep-taylor" else {})
        )


def same_maps(t: Trained, explainer: dt.Explainer) -> None:
    other = fresh(t, explainer)
    if explainer.settings.method == "deep-taylor":
        a, b = (e.explain(t.x, dt.margin()) for e in (explainer, other))
        assert torch.equal(a.relevance, b.relevance)
        assert torch.equal(a.ledger.bias, b.ledger.bias)
        assert torch.equal(explainer.contrast(t.x).relevance, other.contrast(t.x).relevance)
        assert torch.equal(explainer(t.x, 0)[1], other(t.x, 0)[1])
        with torch.no_grad():
            assert torch.equal(explainer.relevance(t.x, 0), other(t.x, 0)[1])
    a, b = (e.between(t.x, zeros(t.x), 0) for e in (explainer, other))
    assert torch.equal(a.relevance, b.relevance)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("kind", KINDS)
def test_after_training_maps_equal_those_of_a_fresh_explainer(
    kind: str, bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = make_trained(kind)
    captures = Captures(monkeypatch)
    explainer = live(t, bias=bias)
    train(t, explainer)
    same_maps(t, explainer)
    assert captures.count == 1


@pytest.mark.parametrize("kind", PICTURES)
def test_after_training_secants_equal_those_of_a_fresh_explainer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    t = make_trained(kind)
    captures = Captures(monkeypatch)
    explainer = live(t, method="secant")
    train(t, explainer)
    same_maps(t, explainer)
    other = fresh(t, explainer)
    assert torch.equal(explainer.explain(t.x, 1).relevance, other.explain(t.x, 1).relevance)
    assert torch.equal(explainer.relevance(t.x, 1), other.explain(t.x, 1).relevance)
    assert captures.count == 1


# --- when it is captured again ----------------------------------------------------------------------------------------


def test_a_decision_that_falls_otherwise_captures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    t = make_trained("cnn")
    for p in t.model.parameters():
        p.data.abs_()  # nothing is negative: no step reads a negative part
    captures = Captures(monkeypatch)
    explainer = live(t)
    assert explainer.relevance(t.x, 0).requires_grad
    t.model[3].weight.data.neg_()  # type: ignore[index]
    same_maps(t, explainer)
    assert captures.count == 2
    t.model[3].weight.data.mul_(2)  # type: ignore[index]
    same_maps(t, explainer)
    assert captures.count == 2


def test_initial_zeros_cost_one_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """γ = 1, β = 0 and running means of 0 are decisions that the first step changes."""
    torch.manual_seed(0)
    t = Trained(KINDS["batch norm"][0]().double(), make_trained("batch norm").x, dt.NonNegative())
    captures = Captures(monkeypatch)
    explainer = live(t)
    train(t, explainer, steps=6)
    same_maps(t, explainer)
    assert captures.count <= 2


def test_another_dtype_parameter_or_attribute_captures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(nn.Sequential):
        factor = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.factor * super().forward(x)

    t = make_trained("cnn")
    model = Scaled(*t.model)  # type: ignore[misc]
    captures = Captures(monkeypatch)
    explainer = dt.Explainer(model, t.x, t.domain, live=True)
    before = explainer.relevance(t.x, dt.margin()).detach()
    model.factor = 2.0
    close(explainer.relevance(t.x, dt.margin()).detach(), 2 * before)
    model[6] = nn.Linear(20, 4).double()
    assert explainer.explain(t.x, [0, 3]).relevance.shape[1] == 2
    model.float()
    assert explainer.relevance(t.x.float(), 0).dtype is torch.float32
    assert captures.count == 4


def test_the_moments_of_batch_norm_are_followed() -> None:
    t = make_trained("batch norm")
    explainer = live(t)
    before = explainer.relevance(t.x, dt.margin())
    t.model.train()(5 + t.x)
    after = explainer.relevance(t.x, dt.margin())
    assert not torch.allclose(before, after)
    t.model.eval()
    assert torch.equal(explainer.relevance(t.x, dt.margin()), after)  # the running statistics, in both modes
    same_maps(t, explainer)


def test_explanations_that_were_made_before_a_step_say_so() -> None:
    t = make_trained("cnn")
    explainer = live(t)
    e = explainer.explain(t.x, 0)
    assert e.at("3").shape == (3, 5, 2, 2)
    t.model[6].weight.data.mul_(1.5)  # type: ignore[index]
    with pytest.raises(dt.StaleModelError, match="explain again"):
        e.at("3")


def test_the_network_is_left_as_it_was() -> None:
    t = make_trained("batch norm")
    before = {name: v.clone() for name, v in t.model.state_dict().items()}
    explainer = live(t)
    explainer.relevance(t.x, 0).sum().backward()  # type: ignore[no-untyped-call]
    explainer.explain(t.x)
    assert all(torch.equal(v, before[name]) for name, v in t.model.state_dict().items())
    assert t.model.training
    assert t.model[0].weight.grad is not None  # type: ignore[index]


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copied", "pickled"])
def test_a_twin_follows_its_own_network(twin: Callable[[dt.Explainer], dt.Explainer]) -> None:
    t = make_trained("batch norm")
    explainer = live(t)
    other = twin(explainer)
    first = explainer.relevance(t.x, dt.margin())
    for p in other.model.parameters():
        p.data.mul_(1.1)
    theirs = other.relevance(t.x, dt.margin())
    assert torch.equal(explainer.relevance(t.x, dt.margin()), first)
    assert not torch.allclose(theirs, first)
    same_maps(Trained(other.model, t.x, t.domain), other)


def test_batches_of_other_sizes_and_shapes_share_the_parameters() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)
    ).double()
    x = torch.rand(2, 2, 6, 6, dtype=torch.float64)
    explainer = dt.Explainer(model, x, dt.NonNegative(), live=True)
    for some in (x, torch.rand(5, 2, 6, 6, dtype=torch.float64), torch.rand(3, 2, 9, 7, dtype=torch.float64)):
        model[0].weight.data.mul_(1.1)
        other = dt.Explainer(model, some, dt.NonNegative(), method="deep-taylor")
        close(explainer.relevance(some, dt.margin()).detach(), other.explain(some, dt.margin()).relevance)
        assert torch.equal(explainer.explain(some, 0).relevance, other.explain(some, 0).relevance)


def test_constants_are_put_back_after_a_pass() -> None:
    t = make_trained("batch norm")
    explainer = live(t)
    explainer.explain(t.x)
    engine = explainer.captured.engine
    assert isinstance(engine, LiveEngine)
    before = dict(engine.named_buffers())
    with pytest.raises(dt.TargetError):
        explainer.relevance(t.x, 17)
    explainer.relevance(t.x, 0)
    assert all(v is before[name] and not v.requires_grad for name, v in engine.named_buffers())


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_plain_explainer_has_no_relevance_to_train_on() -> None:
    t = make_trained("cnn")
    explainer = dt.Explainer(t.model.eval(), t.x, t.domain)
    with pytest.raises(dt.InputError, match=r"Make it with live=True"):
        explainer.relevance(t.x)


@pytest.mark.parametrize("method", ["attnlrp", "sensitivity", "taylor"])
def test_other_methods_cannot_be_live(method: str) -> None:
    with pytest.raises(dt.InputError, match=f"{method!r} is not differentiable in parameters"):
        dt.Explainer(nn.Linear(2, 2), method=method, live=True)


def test_a_live_explainer_is_not_moved() -> None:
    t = make_trained("cnn")
    with pytest.raises(dt.InputError, match="move or convert the network"):
        live(t).float()


def test_secants_that_depend_on_values_are_refused() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x).sort(1).values

    explainer = dt.Explainer(Chosen(), torch.rand(2, 3), method="secant", live=True)
    with pytest.raises(dt.UnsupportedOpError, match="depends on values"):
        explainer.relevance(torch.rand(2, 3), 0, reference="zeros")


def test_relevance_under_no_grad_is_the_same_without_a_record() -> None:
    t = make_trained("batch norm")
    explainer = live(t)
    with torch.no_grad():
        plain = explainer.relevance(t.x, 0)
    assert not plain.requires_grad
    assert torch.equal(explainer.relevance(t.x, 0), plain)


@pytest.mark.filterwarnings("ignore")  # of torch.compile
@pytest.mark.parametrize("method", ["deep-taylor", pytest.param("secant", marks=pytest.mark.slow)])
def test_compiled_passes_have_the_same_maps_and_gradients(method: str) -> None:
    t = make_trained("table")
    explainer = live(t, method=method)
    given = {"reference": "zeros"} if method == "secant" else {}

    def gradients() -> tuple[Tensor, ...]:
        R = explainer.relevance(t.x, dt.margin(), **given)
        return (R.detach(), *torch.autograd.grad(R.square().sum(), list(t.model.parameters())))

    plain = gradients()
    explainer.compile()
    for compiled, eager in zip(gradients(), plain, strict=True):
        assert torch.allclose(compiled, eager, rtol=1e-9, atol=1e-14)
    with torch.no_grad():
        for p in t.model.parameters():
            p.mul_(1.1)
    moved = gradients()
    assert not torch.allclose(moved[0], plain[0])
    other = live(t, method=method)
    assert torch.allclose(moved[0], other.relevance(t.x, dt.margin(), **given).detach(), rtol=1e-9, atol=1e-14)
