"""Values outside of a network that its forward pass reads: a change is noticed, and nothing else is taken for one."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.change_detection import find_outer_values
from refusals import mlp, says

K, FLAG, NAME = 5.0, True, "relu"
LIMIT = 50.0
SCALE = torch.ones(4)
TABLE = {"scale": 2.0, "deep": {"more": [1.0, 2.0]}}
UNREAD = 1.0
CALLS = 0
CACHE: dict[Any, Any] = {}
cfg = types.ModuleType("cfg")
cfg.scale = 2.0  # type: ignore[attr-defined]
space = types.SimpleNamespace(scale=2.0, other=1.0)


class Config:
    """A class whose attributes are read."""

    scale = 2.0


class Derived(Config):
    """A class that inherits the attribute."""


class Holder:
    """An object whose attributes are read."""

    def __init__(self) -> None:
        self.scale = 2.0


holder = Holder()


def helper(x: Tensor, times: float = 2.0) -> Tensor:
    return x * times


def twice(x: Tensor) -> Tensor:
    return helper(x[:, :3]) * K


class Net(nn.Module):
    """A network of which one expression is given."""

    def __init__(self, f: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.f = mlp(), f

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.f(x) if self.f is not nothing else self.net(x)


def nothing(x: Tensor) -> float:
    return 1.0


class Direct(nn.Module):
    """A network whose own methods read the global."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if FLAG else x

    def inner(self, x: Tensor) -> Tensor:
        times = lambda v: v * K  # noqa: E731 - a code object inside another
        return times(self.net(x))  # type: ignore[no-any-return]


def _closing() -> Callable[[Tensor], Any]:
    factor = [2.0]

    def closed(x: Tensor) -> float:
        return factor[0]

    closed.factor = factor  # type: ignore[attr-defined]
    return closed


def _set(name: str, value: Any) -> Callable[[], None]:
    return lambda: globals().__setitem__(name, value)


CLOSED = _closing()
CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], str]] = {
    "number": (lambda: Net(lambda x: K), _set("K", 6.0), "K"),
    "in a method": (Direct, _set("K", 6.0), "K"),
    "flag": (Direct, _set("FLAG", False), "FLAG"),
    "word": (lambda: Net(lambda x: {"relu": 1.0, "none": 2.0}[NAME]), _set("NAME", "none"), "NAME"),
    "of a function that is called": (lambda: Net(twice), _set("K", 6.0), "K"),
    "that matters for other inputs": (
        lambda: Net(lambda x: x.sum(1, keepdim=True).clamp(max=LIMIT)),
        _set("LIMIT", 9.0),
        "LIMIT",
    ),
    "tensor": (lambda: Net(lambda x: SCALE[:3]), _set("SCALE", torch.full((4,), 2.0)), "SCALE"),
    "tensor in place": (lambda: Net(lambda x: SCALE[:3]), lambda: SCALE.mul_(2), "SCALE"),
    "tensor data": (lambda: Net(lambda x: SCALE[:3]), lambda: SCALE.data.mul_(2), "SCALE"),
    "dict": (lambda: Net(lambda x: TABLE["scale"]), lambda: TABLE.update(scale=3.0), "TABLE"),
    "deep in a dict": (
        lambda: Net(lambda x: TABLE["deep"]["more"][1]),
        lambda: TABLE["deep"]["more"].append(9.0) or TABLE["deep"]["more"].__setitem__(1, 9.0),
        "TABLE",
    ),  # type: ignore[index, attr-defined]
    "function": (lambda: Net(lambda x: helper(x[:, :3])), _set("helper", lambda x, times=3.0: x * times), "helper"),
    "default": (lambda: Net(lambda x: helper(x[:, :3])), lambda: setattr(helper, "__defaults__", (3.0,)), "helper"),
    "closure": (lambda: Net(CLOSED), lambda: CLOSED.factor.__setitem__(0, 3.0), "f"),  # type: ignore[attr-defined]
    "class attribute": (lambda: Net(lambda x: Config.scale), lambda: setattr(Config, "scale", 3.0), "Config.scale"),
    "inherited": (lambda: Net(lambda x: Derived.scale), lambda: setattr(Config, "scale", 3.0), "Derived.scale"),
    "module": (lambda: Net(lambda x: cfg.scale), lambda: setattr(cfg, "scale", 3.0), "cfg.scale"),
    "namespace": (lambda: Net(lambda x: space.scale), lambda: setattr(space, "scale", 3.0), "space.scale"),
    "object": (lambda: Net(lambda x: holder.scale), lambda: setattr(holder, "scale", 3.0), "holder.scale"),
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Put every value of this module back."""
    kept = {"K": 5.0, "FLAG": True, "NAME": "relu", "LIMIT": 50.0, "UNREAD": 1.0, "CALLS": 0, "helper": helper}
    yield
    globals().update(kept, SCALE=torch.ones(4))
    kept["helper"].__defaults__ = (2.0,)  # type: ignore[attr-defined]
    TABLE.update(scale=2.0, deep={"more": [1.0, 2.0]})
    CLOSED.factor[0] = 2.0  # type: ignore[attr-defined]
    CACHE.clear()
    Config.scale = cfg.scale = space.scale = holder.scale = 2.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_of_what_forward_reads_is_noticed_and_named(kind: str) -> None:
    make, change, name = CHANGES[kind]
    network, x = make().eval(), torch.rand(2, 4)
    explainer = dt.Explainer(network, x, bias="neuron")
    explainer.explain(x, 0)
    change()
    with pytest.raises(dt.StaleModelError) as info:
        explainer.explain(x, 0)
    says(info.value, name, "explainer.refresh()")
    if kind != "flag":
        explainer.refresh()
        torch.testing.assert_close(explainer.explain(x, 0).score, network(x)[:, 0])


def test_the_call_of_an_explainer_notices_a_number_too() -> None:
    explainer, x = dt.Explainer(Net(lambda x: K).eval(), torch.rand(2, 4)), torch.rand(2, 4)
    explainer(x, 0)
    _set("K", 6.0)()
    with pytest.raises(dt.StaleModelError, match="K"):
        explainer(x, 0)


def _counts(x: Tensor) -> float:
    global CALLS  # noqa: PLW0603
    CALLS += 1
    return 1.0


def _caches(x: Tensor) -> Tensor:
    if x.shape[1] not in CACHE:
        CACHE[x.shape[1]] = 2.0
    return CACHE[x.shape[1]]  # type: ignore[no-any-return]


HARMLESS: dict[str, tuple[Callable[[Tensor], Any], Callable[[], Any]]] = {
    "a global that is not read": (nothing, _set("UNREAD", 2.0)),
    "the same number again": (lambda x: K, _set("K", float("5.0"))),
    "a counter": (_counts, lambda: mlp()(torch.rand(1, 4))),
    "a counter that others write to": (_counts, _set("CALLS", 99)),
    "a cache": (_caches, lambda: CACHE.update({99: 1.0})),
    "an attribute that is not read": (lambda x: space.scale, lambda: setattr(space, "other", 7.0)),
    "the same function made again": (lambda x: helper(x[:, :3]), _set("helper", lambda x, times=2.0: x * times)),
    "a tensor of the same values": (lambda x: SCALE[:3], _set("SCALE", torch.ones(4))),
    "a library's": (lambda x: torch.ones(3), _set("UNREAD", 3.0)),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_changes_nothing_is_no_change(kind: str) -> None:
    f, change = HARMLESS[kind]
    network, x = Net(f).eval(), torch.rand(2, 4)
    network(x)
    explainer = dt.Explainer(network, x, bias="neuron")
    for _ in range(3):
        found = explainer.explain(x, 0)
        change()
        network(x)
    torch.testing.assert_close(found.score, network(x)[:, 0])


def test_names_of_torch_and_of_networks_without_globals_are_not_followed() -> None:
    assert list(find_outer_values(mlp())) == []
    assert {name.rpartition(".")[2] for name, _, _ in find_outer_values(Direct())} == {"K (global)", "FLAG (global)"}


def test_looking_takes_little_time() -> None:
    network = nn.Sequential(*[Net(twice) for _ in range(50)])
    list(find_outer_values(network))
    began = time.perf_counter()
    for _ in range(20):
        list(find_outer_values(network))
    assert (time.perf_counter() - began) / 20 < 0.02
