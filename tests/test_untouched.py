"""The user's network is bit for bit what it was, whatever happens."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from untouched import changes, snapshot

pytestmark = pytest.mark.filterwarnings("ignore::deeptaylor.errors.DeepTaylorWarning")


class Busy(nn.Module):
    """Everything a network may carry: buffers, attributes of all kinds, a shared module, in-place operations, noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.twice, self.act = nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)
        self.also_head = self.head
        self.scale = nn.Parameter(torch.rand(4, 1, 1), requires_grad=False)
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.register_buffer("hidden", torch.rand(2), persistent=False)
        self.register_buffer("nothing", None)
        self.names = ["cat", "dog", "cow"]
        self.config = {"depth": 2, "tags": {"a", "b"}, "nested": [1, [2, 3]]}
        self.constant = torch.rand(2)
        self.owner = object()
        self.score = lambda out: out[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn(self.conv(x - self.mean))
        h = self.act(h)
        h = self.twice(self.twice(h)) + h
        h = F.relu_(h) * self.scale
        h += 1.0
        return self.head(self.drop(h.mean((2, 3))))


def busy() -> Busy:
    """A network in the middle of its life: trained, hooked, partly frozen, partly in eval mode."""
    net = Busy()
    net(torch.rand(2, 3, 6, 6)).sum().backward()
    net.conv.requires_grad_(False)
    net.bn.eval()
    net.conv.register_forward_hook(lambda module, inputs, output: None)
    net.twice.register_forward_hook(lambda module, inputs, output: output * 2)
    net.head.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    net.head.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    net.register_state_dict_post_hook(lambda *_: None)
    net.head.weight.register_hook(lambda grad: grad)
    net.head.weight.note = "mine"  # type: ignore[attr-defined]
    return net


def pictures(size: int = 6) -> Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size))


def check(model: nn.Module, act: Callable[[], Any], error: type[Exception] | None = None) -> None:
    """Do something to a model, expecting an error or none, and find it as it was."""
    before = snapshot(model)
    modes = torch.is_grad_enabled(), torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled()
    random = torch.get_rng_state()
    filters = list(warnings.filters)
    if error is None:
        act()
    else:
        with pytest.raises(error):
            act()
    assert changes(model, before) == []
    assert modes == (torch.is_grad_enabled(), torch.get_default_dtype(), torch.backends.mha.get_fastpath_enabled())
    assert torch.equal(random, torch.get_rng_state()), "random numbers were drawn"
    assert filters == list(warnings.filters)


def test_after_capture() -> None:
    net = busy()
    check(net, lambda: dt.Explainer(net, pictures(), dt.Box(0, 1), bias="neuron"))


def test_after_explaining_in_every_way() -> None:
    net, x = busy(), pictures()
    explainer = dt.Explainer(net, x, dt.Box(0, 1), bias="spread")
    weights = torch.rand(2, 3)

    def act() -> None:
        for target in (None, 1, torch.tensor([0, 2]), torch.tensor([[0, 1], [2, 1]]), weights, dt.margin()):
            explainer.explain(x, target)
        explainer(x, torch.tensor([0, 1]))
        explainer.explain(x, net.score)
        explainer.explain(pictures(8)).at("bn")
        explainer.explain(x).check()

    check(net, act)


def test_after_refreshing_and_converting_the_explainer() -> None:
    net, x = busy(), pictures()
    explainer = dt.Explainer(net, x, dt.Box(0, 1), bias="neuron")
    check(net, lambda: explainer.refresh().to(torch.float64).explain(x.double()))
    check(net, lambda: explainer.to(torch.bfloat16).train().requires_grad_(False).zero_grad())


def test_after_the_one_call() -> None:
    net = busy()
    check(net, lambda: dt.explain(net, pictures(), domain=dt.Box(0, 1), max_pool="winner", bias="neuron"))


@pytest.mark.parametrize(
    ("x", "target", "error"),
    [
        (torch.full((2, 3, 6, 6), float("nan")), None, dt.InputError),
        (torch.full((2, 3, 6, 6), 9.0), None, dt.InputError),
        (torch.rand(2, 1, 6, 6), None, dt.InputError),
        (torch.rand(2, 3, 6, 6), 3, dt.TargetError),
        (torch.rand(2, 3, 6, 6), torch.zeros(2, 4), dt.TargetError),
        (torch.rand(2, 3, 6, 6), lambda out: out[:, 9], dt.DeepTaylorError),
        (torch.rand(2, 3, 0, 6), None, dt.DeepTaylorError),
    ],
    ids=["nan", "box", "channels", "class", "weights", "callable", "no pixels"],
)
def test_after_an_explanation_that_fails(x: Tensor, target: Any, error: type[Exception]) -> None:
    net = busy()
    explainer = dt.Explainer(net, pictures(), dt.Box(0, 1), bias="neuron")
    check(net, lambda: explainer.explain(x, target), error)


class Fails(Busy):
    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        self.config["depth"] = 3
        raise RuntimeError("half-way")
        return h


class Branches(Busy):
    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        return h if h.sum() > 0 else -h


class Unsupported(Busy):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(super().forward(x), 1)


@pytest.mark.parametrize(
    ("network", "error"),
    [(Fails, dt.CaptureError), (Branches, dt.CaptureError), (Unsupported, dt.UnsupportedOpError)],
    ids=lambda c: c.__name__,
)
def test_after_a_capture_that_fails(network: type[Busy], error: type[Exception]) -> None:
    net = network()
    net.drop.eval()
    check(net, lambda: dt.Explainer(net, pictures(), bias="neuron"), error)


def test_after_a_plan_that_fails() -> None:
    net = busy()
    check(net, lambda: dt.Explainer(net, pictures(), rules={"nowhere": dt.rules.Flat()}, bias="neuron"), dt.PlanError)
    check(net, lambda: dt.Explainer(net, pictures(), output=4, bias="neuron"), dt.PlanError)


class Remembers(nn.Module):
    """A forward pass with side effects, as in many a notebook."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.calls, self.last = nn.Linear(4, 3), 0, None
        self.seen: list[torch.Size] = []
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(x.shape)
        self.count += 1
        self.last = self.fc(x)
        return self.last


def test_a_forward_pass_with_side_effects() -> None:
    net, x = Remembers().eval(), torch.rand(2, 4)
    check(net, lambda: dt.explain(net, x, bias="neuron"))
    assert (net.calls, net.seen, net.last, float(net.count)) == (0, [], None, 0.0)


def test_hooks_still_work_and_can_be_removed() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).eval()
    seen: list[torch.Size] = []
    handle = net[0].register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    x = torch.rand(2, 4)
    check(net, lambda: dt.explain(net, x, bias="neuron"))
    seen.clear()
    net(torch.rand(5, 4))
    assert seen == [torch.Size([5, 4])]
    handle.remove()
    net(torch.rand(5, 4))
    assert seen == [torch.Size([5, 4])]


def test_an_optimizer_made_before_still_trains() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    dt.explain(net, torch.rand(2, 4), bias="neuron")
    before = net[0].weight.clone()
    net(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, net[0].weight)


def test_the_input_is_untouched() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2.0)
            return x.relu_().sum(1, keepdim=True)

    x = torch.rand(2, 4)
    leaf = torch.rand(2, 4, requires_grad=True)
    for t in (x, leaf):
        value, version, attributes = t.detach().clone(), t._version, dict(vars(t))
        explainer = dt.Explainer(Writes(), t, dt.NonNegative(), bias="neuron")
        e = explainer.explain(t)
        explainer(t.detach(), None)
        assert torch.equal(t.detach(), value)
        assert (t._version, dict(vars(t)), t.grad) == (version, attributes, None)
        assert not e.relevance.requires_grad
        assert torch.allclose(e.score, 2 * value.sum(1))


def test_a_change_would_be_noticed() -> None:
    net = busy()
    with pytest.raises(AssertionError, match=r"bn\.training"):
        check(net, net.bn.train)
    with pytest.raises(AssertionError, match=r"head\.weight"):
        check(net, lambda: net.head.weight.data.add_(1))


def _written(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.mul_(2)


def _other_data(model: nn.Sequential) -> None:
    model[0].weight.data = model[0].weight.data * 2


def _other_layer(model: nn.Sequential) -> None:
    model[0] = nn.Linear(4, 3)


def _other_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach() * 2)


@pytest.mark.parametrize("change", [_written, _other_data, _other_layer, _other_parameter])
def test_the_quick_look_sees_that_a_network_changed(change: Callable[[nn.Sequential], None]) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.rand(2, 4)
    explainer = dt.Explainer(model, x, dt.NonNegative(), bias="neuron")
    for _ in range(2):
        explainer(x)
    change(model)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x)
    explainer.refresh()(x)
