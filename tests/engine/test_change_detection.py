"""A network that changed is refused, one that only looks different is not, and one that moved is followed."""

from __future__ import annotations

import copy
import dataclasses
import logging
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorWarning


class Options:
    """A plain object of the user's."""

    def __init__(self) -> None:
        self.gain = 1.0


class Net(nn.Module):
    """Reads everything that a forward pass may read."""

    shift = 0.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.scale, self.double, self.how = 1.0, False, "relu"
        self.powers = [1.0, [1.0]]
        self.table = {"gain": (1.0, {"deep": 1.0})}
        self.options = Options()
        self.plain = torch.ones(6)
        self.numpy = np.ones(6, dtype=np.float32)
        self.unlisted = [nn.Linear(3, 3)]
        self.calls, self.seen, self.recent = 0, [], None
        self.note, self.log = "mine", logging.getLogger("net")

    def gate(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(x))
        h = self.first(x)
        h = h.relu() if self.how == "relu" else h.abs()
        h = h * self.scale * (2.0 if self.double else 1.0) + self.shift
        h = h * self.powers[0] * self.powers[1][0] * self.table["gain"][0] * self.table["gain"][1]["deep"]
        h = self.gate(h * self.options.gain * self.plain * torch.from_numpy(self.numpy))
        self.recent = h.detach()
        return self.last(h)


def _weight_norm(net: Net) -> None:
    parametrize.register_parametrization(net.first, "weight", Twice())


class Twice(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return 2 * w


def _code_of_a_method(net: Net) -> None:
    net.gate = types.MethodType(lambda self, h: 2 * h, net)  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Net], Any]] = {
    "number": lambda net: setattr(net, "scale", 3.0),
    "flag": lambda net: setattr(net, "double", True),
    "word": lambda net: setattr(net, "how", "abs"),
    "in a list": lambda net: net.powers.__setitem__(0, 2.0),
    "in a nested list": lambda net: net.powers[1].__setitem__(0, 2.0),
    "in a nested dict": lambda net: net.table["gain"][1].__setitem__("deep", 2.0),
    "of an object": lambda net: setattr(net.options, "gain", 2.0),
    "plain tensor": lambda net: setattr(net, "plain", torch.full((6,), 2.0)),
    "plain tensor in place": lambda net: net.plain.mul_(2),
    "plain tensor by its data": lambda net: net.plain.data.mul_(2),
    "array in place": lambda net: net.numpy.__imul__(2),
    "forward hook": lambda net: net.first.register_forward_hook(lambda m, x, y: 2 * y),
    "forward pre-hook": lambda net: net.first.register_forward_pre_hook(lambda m, x: (2 * x[0],)),
    "forward of the instance": lambda net: setattr(net, "forward", lambda x: 2 * net.last(net.first(x).relu())),
    "forward of a part": lambda net: setattr(net.last, "forward", lambda h: 2 * h[:, :3]),
    "method of the instance": _code_of_a_method,
    "attribute of an own part": lambda net: setattr(net.last, "forward", types.MethodType(_halved, net.last)),
    "parametrisation": _weight_norm,
}


def _halved(self: nn.Linear, h: Tensor) -> Tensor:
    return nn.functional.linear(h, self.weight, self.bias) / 2


def explained() -> tuple[Net, dt.Explainer, Tensor]:
    net, x = Net().eval(), torch.rand(2, 4)
    return net, dt.Explainer(net, x, dt.NonNegative(), bias="neuron"), x


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_whatever_a_forward_pass_reads_is_noticed(change: Callable[[Net], Any]) -> None:
    net, explainer, x = explained()
    explainer.explain(x, 0)
    change(net)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer.explain(x, 0)
    assert torch.allclose(explainer.refresh().explain(x, 0).score, net(x)[:, 0])


@pytest.mark.parametrize(
    "change", [c for c in CHANGES if c.startswith(("number", "flag", "word", "forward", "method"))]
)
def test_a_plain_call_notices_numbers_hooks_and_forward(change: str) -> None:
    net, explainer, x = explained()
    explainer(x, 0)
    CHANGES[change](net)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x, 0)


@pytest.mark.parametrize("what", ["forward", "gate", "shift"])
def test_a_class_that_changed_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    _, explainer, x = explained()
    new = {"forward": lambda self, x: self.last(self.first(x).relu()) * 2, "gate": lambda self, h: 2 * h, "shift": 1.0}
    monkeypatch.setattr(Net, what, new[what])
    with pytest.raises(dt.StaleModelError, match=f"Net.{what}"):
        explainer.explain(x, 0)
    monkeypatch.undo()
    explainer.explain(x, 0)


@pytest.mark.parametrize("pre", [False, True])
def test_global_hooks_are_noticed(pre: bool) -> None:
    _, explainer, x = explained()
    if pre:
        handle = register_module_forward_pre_hook(lambda m, x: (2 * x[0],) if isinstance(m, nn.Linear) else None)
    else:
        handle = register_module_forward_hook(lambda m, x, y: 2 * y if isinstance(m, nn.Linear) else None)
    try:
        for call in (explainer, explainer.explain):
            with pytest.raises(dt.StaleModelError, match="global hooks"):
                call(x, 0)
    finally:
        handle.remove()
    explainer.explain(x, 0)


def test_a_removed_hook_is_noticed() -> None:
    net, x = Net().eval(), torch.rand(2, 4)
    handle = net.first.register_forward_hook(lambda m, x, y: 2 * y)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    explainer.explain(x, 0)
    handle.remove()
    with pytest.raises(dt.StaleModelError, match="first"):
        explainer.explain(x, 0)


def test_a_change_that_does_not_show_on_the_example_is_noticed() -> None:
    """On an example of zeros almost all networks without biases are the same."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3, bias=False), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    net = Scaled().eval()
    explainer = dt.Explainer(net, torch.zeros(1, 4), dt.NonNegative(), bias="neuron")
    net.scale = 3.0
    with pytest.raises(dt.StaleModelError, match="scale"):
        explainer.explain(torch.rand(2, 4), 0)


def test_what_does_not_change_the_answers_does_not_make_it_stale(recwarn: pytest.WarningsRecorder) -> None:
    net, explainer, x = explained()
    expected = explainer.explain(x, 0).relevance
    watched: list[Tensor] = []
    net.first.register_forward_hook(lambda m, x, y: watched.append(y.detach()))
    net.note, net.another = "yours", [1, 2]
    net.forward = net.forward  # type: ignore[method-assign]
    for _ in range(3):
        net(x)  # it counts
        net.train()
        assert torch.equal(explainer.explain(x, 0).relevance, expected)
        assert torch.equal(explainer(x, 0)[1], expected)
        net.eval()
    assert not [w for w in recwarn if issubclass(w.category, DeepTaylorWarning)]


def test_counters_do_not_cost_a_pass_each_time() -> None:
    net, explainer, x = explained()
    net(x)
    explainer.explain(x, 0)
    ran: list[int] = []
    inner = net.first.forward
    net.first.forward = lambda x: (ran.append(1), inner(x))[1]  # type: ignore[method-assign]
    explainer.explain(x, 0)  # a new forward is compared
    ran.clear()
    for _ in range(3):
        net.calls += 1
        net.seen.append(2)
        explainer.explain(x, 0)
        explainer(x, 0)
    assert not ran


def test_the_network_is_untouched_by_the_comparison() -> None:
    net, explainer, x = explained()
    net.register_buffer("counter", torch.zeros(()))
    inner = net.forward
    net.forward = lambda x: (net.counter.add_(1), inner(x))[1]  # type: ignore[method-assign]
    explainer.refresh()
    net.note = "yours"
    before = (net.calls, list(net.seen), net.recent, net.counter._version)
    explainer.explain(x, 0)
    assert (net.calls, list(net.seen), net.recent, net.counter._version) == before


# --- moved ------------------------------------------------------------------------------------------------------------


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("plain", [False, True])
def test_a_network_of_another_type_is_followed(dtype: torch.dtype, plain: bool) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    expected = explainer.explain(x, 0).relevance.double()
    net.to(dtype)
    call = explainer if plain else explainer.explain
    with pytest.warns(DeepTaylorWarning, match=f"moved to cpu as {dtype}"):
        call(x.to(dtype), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        e = explainer.explain(x.to(dtype), 0)
    assert e.relevance.dtype is dtype
    assert (e.relevance.double() - expected).abs().sum() <= 0.02 * expected.sum()
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError):
        explainer.explain(x.to(dtype), 0)


def test_a_network_that_becomes_wider_is_captured_with_all_its_digits() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    net.double()
    with pytest.warns(DeepTaylorWarning, match="its explainer was moved with it"):
        found = explainer.explain(x.double(), 0).relevance
    expected = dt.Explainer(net, x.double(), dt.NonNegative(), bias="neuron").explain(x.double(), 0).relevance
    assert torch.allclose(found, expected, rtol=1e-12, atol=0)


def test_an_explainer_that_is_elsewhere_stays_there() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron").double()
    expected = explainer.explain(x.double(), 0).relevance
    net.half()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(explainer.explain(x.double(), 0).relevance, expected)


def test_a_network_that_moved_there_and_back_is_the_same() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    expected = explainer.explain(x, 0).relevance
    net.double().float()
    assert torch.equal(explainer.explain(x, 0).relevance, expected)
    assert torch.equal(explainer(x, 0)[1], expected)


@pytest.mark.parametrize("counted", [False, True])
def test_values_that_were_left_behind_are_watched(counted: bool) -> None:
    """The captured network may share them."""
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    old = net[3].weight.data
    net[3].weight.data = old.clone()
    explainer.explain(x, 0)
    (old if counted else old.data).mul_(2)
    with pytest.raises(dt.StaleModelError, match=r"3\.weight"):
        explainer.explain(x, 0)


@pytest.mark.parametrize("before", [False, True])
def test_a_network_that_moved_and_changed_is_refused(before: bool) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    for act in (net.half, lambda: net[0].weight.data.mul_(2))[:: -1 if before else 1]:
        act()
    with pytest.raises(dt.StaleModelError):
        explainer.explain(x, 0)


def test_a_part_that_moved_is_a_change() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    net[0].half()
    with pytest.raises(dt.StaleModelError, match="0"):
        explainer.explain(x, 0)


def test_a_callable_target_follows_too() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")

    def score(out: Tensor) -> Tensor:
        return out[:, 0]

    expected = explainer.explain(x, score).relevance
    net.double()
    with pytest.warns(DeepTaylorWarning, match="its explainer was moved with it"):
        found = explainer.explain(x.double(), score).relevance
    assert torch.allclose(found, expected.double(), rtol=1e-5, atol=1e-7)


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_knows_attributes_too() -> None:
    net, explainer, x = explained()
    other = copy.deepcopy(explainer)
    assert torch.equal(other.explain(x, 0).relevance, explainer.explain(x, 0).relevance)
    other.model.scale = 3.0
    explainer.explain(x, 0)
    with pytest.raises(dt.StaleModelError, match="scale"):
        other.explain(x, 0)
    net.scale = 3.0
    with pytest.raises(dt.StaleModelError, match="scale"):
        copy.deepcopy(explainer).explain(x, 0)


# --- what the network's own objects hold ------------------------------------------------------------------------------

FACTOR = 1.0


@dataclasses.dataclass(slots=True)
class Slotted:
    gain: float = 1.0


class Derived(Slotted):
    __slots__ = ("more",)


class Holder:
    inner = Slotted()
    gain = 1.0

    @property
    def computed(self) -> float:
        return self.inner.gain

    @property
    def outside(self) -> float:
        return FACTOR

    def method(self) -> float:
        return 1.0


class Held(nn.Module):
    """A layer, times a number that some object has."""

    def __init__(self, made: Any, read: Callable[[Any], float]) -> None:
        super().__init__()
        self.layer, self.made, self.factor = nn.Linear(4, 3), made, read

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor(self.made)


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any, Any], None]]] = {
    "slot": (Slotted, lambda o: o.gain, lambda o, m: m.setattr(o, "gain", 6.0)),
    "inherited slot": (Derived, lambda o: o.gain, lambda o, m: m.setattr(o, "gain", 6.0)),
    "slot in a list": (lambda: [Slotted()], lambda o: o[0].gain, lambda o, m: m.setattr(o[0], "gain", 6.0)),
    "class attribute": (Holder, lambda o: o.gain, lambda o, m: m.setattr(Holder, "gain", 6.0)),
    "in a class attribute": (Holder, lambda o: o.inner.gain, lambda o, m: m.setattr(Holder.inner, "gain", 6.0)),
    "property": (Holder, lambda o: o.computed, lambda o, m: m.setattr(Holder.inner, "gain", 6.0)),
    "property of a global": (Holder, lambda o: o.outside, lambda o, m: m.setitem(globals(), "FACTOR", 6.0)),
    "method": (Holder, lambda o: o.method(), lambda o, m: m.setattr(Holder, "method", lambda self: 6.0)),
    "of a class": (lambda: Holder, lambda o: o.gain, lambda o, m: m.setattr(Holder, "gain", 6.0)),
}


@pytest.mark.parametrize("kind", HELD)
def test_what_an_object_or_its_class_holds_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, read, change = HELD[kind]
    net, x = Held(make(), read).eval(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, bias="neuron")
    explainer.explain(x, 0)
    explainer.explain(x, 0)
    change(net.made, monkeypatch)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer.explain(x, 0)
    assert torch.allclose(explainer.refresh().explain(x, 0).score, net(x)[:, 0])
