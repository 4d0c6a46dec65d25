"""zennit's rules as an baseline, and the rewriting of a network that it and others need."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.errors import InputError, UnsupportedOpError
from deeptaylor.evaluation.baselines import BASELINES, calling, zennit
from deeptaylor.evaluation.baselines.calling import PoolModule, ScaleModule, trace_modules

CLASSES = torch.tensor([0, 3])
_LARGE = 1e5  # beside which the 1e-6 that zennit adds to every denominator is nothing


@pytest.fixture
def _zennit() -> None:
    if importlib.util.find_spec("zennit") is None:
        pytest.skip("zennit is not installed")


needs_zennit = pytest.mark.usefixtures("_zennit")


def close(a: Tensor, b: Tensor, gap: float) -> None:
    assert a.shape == b.shape
    scale = float(b.abs().max())
    assert scale > 0, "nothing agrees with nothing"
    assert float((a - b).abs().max()) <= gap * scale


# --- zennit against others --------------------------------------------------------------------------------------------


class Functions(nn.Module):
    """All nonlinearities, pools and sums written as functions; biases are negative, as z⁺ and γ read them alike."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two, self.three = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 5)
        with torch.no_grad():
            for layer in (self.one, self.two, self.three):
                layer.bias.copy_(-_LARGE / 10 * layer.bias.abs())
            nn.init.uniform_(self.head.weight, -0.2, 0.5)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.one(x))
        h = torch.relu(self.two(h)) + h
        h = F.max_pool2d(F.relu(self.three(h)), 2)
        return self.head(h.mean((2, 3)))


def setting() -> tuple[Functions, Tensor]:
    network = Functions().eval().double()
    x = _LARGE * torch.rand(2, 2, 14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert bool((network(x).gather(1, CLASSES[:, None]) > 0).all())
    return network, x


def make_library_methods(network: nn.Module, x: Tensor, rules: dict[str, Any]) -> Tensor:
    explainer = dt.Explainer(network, x, dt.NonNegative(), rules=rules, max_pool="winner", local=False)
    relevance: Tensor = explainer(x, CLASSES)[1]
    return relevance


@needs_zennit
@pytest.mark.parametrize(
    ("name", "below", "above"),
    [
        ("lrp epsilon-plus", dt.rules.ZPlus(), dt.rules.Epsilon(1e-6)),
        ("lrp gamma", dt.rules.Gamma(0.25), dt.rules.Gamma(0.25)),
        ("lrp epsilon", dt.rules.Epsilon(1e-6), dt.rules.Epsilon(1e-6)),
    ],
)
def test_zennit_and_we_agree(name: str, below: Any, above: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zennit, "EPSILON", 1e-12)
    network, x = setting()
    rules = {"one": below, "two": below, "three": below, "head": above}
    close(BASELINES[name].maps(network, x, CLASSES), make_library_methods(network, x, rules), 1e-5)


@needs_zennit
def test_alpha_beta_by_hand() -> None:
    # x = (1, 2, 3), a convolution of one place with weights (2, 1, −1) and no bias: z = 2 + 2 − 3 = 1, and a linear
    # layer of weight 4 gives f = 4. R = 2 · (2, 2, 0) / 4 · 4 − 1 · (0, 0, −3) / −3 · 4 = (4, 4, −4).
    network = nn.Sequential(nn.Conv2d(3, 1, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(1, 1, bias=False)).eval()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([2.0, 1.0, -1.0]).reshape(1, 3, 1, 1))
        network[3].weight.fill_(4.0)
    relevance = BASELINES["lrp alpha2 beta1"].maps(
        network, torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1), torch.zeros(1, dtype=torch.int64)
    )
    close(relevance.flatten(), torch.tensor([4.0, 4.0, -4.0]), 1e-5)


@needs_zennit
def test_epsilon_without_biases_is_gradient_times_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As is known of networks of ReLU (Ancona et al., 2018), when ε goes to zero; so ε is large here."""
    network, x = setting()
    for layer in (network.one, network.two, network.three):
        nn.init.zeros_(layer.bias)
    large, simple = (
        BASELINES["lrp epsilon"].maps(network, x, CLASSES),
        calling.gradient_times_input(network, x, CLASSES),
    )
    assert float((large - simple).abs().max()) > 0.1 * float(simple.abs().max())
    monkeypatch.setattr(zennit, "EPSILON", 1e-12)
    close(BASELINES["lrp epsilon"].maps(network, x, CLASSES), simple, 1e-5)


@needs_zennit
def test_epsilon_by_hand() -> None:
    # z = (3, 1 − 5) of x = (1, 5), and f = z₁; ε is a quarter of √((3² + 4²) / 2).
    network = nn.Linear(2, 2, bias=False).eval()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[-2.0, 1.0], [1.0, -1.0]]))
    relevance = BASELINES["lrp epsilon"].maps(network, torch.tensor([[1.0, 5.0]]), torch.tensor([0]))
    close(relevance, torch.tensor([[-2.0, 5.0]]) * 3 / (3 + 0.25 * 12.5**0.5), 1e-6)


class Normalised(nn.Module):
    """A convolution with BatchNorm, cut at six; the BatchNorm that comes first is behind no linear layer."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv, self.bn = nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3, eps=0.5)
        self.head = nn.Linear(3, 5)
        nn.init.uniform_(self.bn.running_mean, -0.2, 0.2)
        nn.init.uniform_(self.bn.running_var, 0.1, 0.5)
        nn.init.uniform_(self.bn.bias, 0.1, 0.5)
        nn.init.uniform_(self.first.running_var, 0.1, 0.5)
        self.double()
        if merged:
            self.conv = torch.nn.utils.fusion.fuse_conv_bn_eval(self.conv.eval(), self.bn.eval())
            self.bn = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(F.relu6(self.bn(self.conv(self.first(x)))), 1).flatten(1))


@needs_zennit
@pytest.mark.parametrize("name", ["lrp epsilon", "lrp gamma", "lrp alpha2 beta1", "lrp epsilon-plus"])
def test_batch_norm_is_merged_into_the_layer_before(name: str) -> None:
    x = 9 * torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    apart, merged = (Normalised(merged).eval() for merged in (False, True))
    assert torch.allclose(apart(x), merged(x), rtol=1e-10)
    assert bool((apart.bn(apart.conv(apart.first(x))) > 6).any())
    close(BASELINES[name].maps(apart, x, CLASSES), BASELINES[name].maps(merged, x, CLASSES), 1e-8)


class LeavesOutItsBias(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, padding=1)


@needs_zennit
def test_another_network_is_not_explained() -> None:
    network = nn.Sequential(LeavesOutItsBias(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5))
    nn.init.uniform_(network[1].bias, 0.5, 1.0)
    with pytest.raises(InputError, match=r"its scores differ by up to .* leaves out its bias"):
        BASELINES["lrp gamma"].maps(network.eval(), torch.rand(1, 2, 4, 4), CLASSES[:1])


@needs_zennit
@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda h: h * h.mean((2, 3), keepdim=True), "mul"),
        (lambda h: h - h.flip(1), "flip, sub"),
        (lambda h: F.softmax(h, 1), "softmax"),
        (nn.LocalResponseNorm(3), "LocalResponseNorm"),
    ],
)
def test_what_zennit_has_no_rule_for_is_named(forward: Callable[[Tensor], Tensor], named: str) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(3, 5)
            self.between = forward

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.between(self.conv(x)).mean((2, 3)))

    with pytest.raises(UnsupportedOpError, match=f"zennit has no rule for {named}, and would send the plain gradient"):
        BASELINES["lrp epsilon-plus"].maps(Between().eval(), torch.rand(1, 2, 5, 5), CLASSES[:1])


class Prepares(nn.Module):
    """A network that prepares its pictures itself, and reshapes by hand what it has pooled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(12, 5)
        self.register_buffer("mean", torch.tensor([0.4, 0.6]).reshape(1, 2, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.5]).reshape(1, 2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.prepared((2 * x - self.mean) / self.std)

    def prepared(self, x: Tensor) -> Tensor:
        h = F.adaptive_avg_pool2d(F.relu(self.conv(x)), 2)
        return self.head(h.reshape(h.shape[0], h.size(1) * 4))


@needs_zennit
@pytest.mark.parametrize("name", ["lrp epsilon", "lrp gamma", "lrp alpha2 beta1", "lrp epsilon-plus"])
def test_relevance_passes_through_the_preparation(name: str) -> None:
    network, x = Prepares().eval().double(), torch.rand(2, 2, 6, 6, dtype=torch.float64)
    plain_one = nn.Sequential(network.conv, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), network.head).eval()
    prepared = (2 * x - network.mean) / network.std
    expected = BASELINES[name].maps(plain_one, prepared, CLASSES)
    close(BASELINES[name].maps(network, x, CLASSES), expected, 1e-10)


@needs_zennit
def test_zennit_is_imported_where_torchvision_is_not() -> None:
    program = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from deeptaylor.evaluation.baselines import zennit\n"
        "found = zennit.load_zennit()\n"
        "assert found.composites.EpsilonPlus and zennit.load_zennit() is found\n"
        "assert 'zennit.torchvision' not in sys.modules, 'whoever wants it later shall hear why it fails'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- the rewriting ----------------------------------------------------------------------------------------------------


def kinds(network: nn.Module, x: Tensor) -> list[str]:
    """The modules that a rewritten network calls, in their order."""
    made = trace_modules(network, x)
    assert torch.equal(made(x), network(x))
    return [type(made.get_submodule(str(n.target))).__name__ for n in made.graph.nodes if n.op == "call_module"]


class Written(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.act, self.body = nn.ReLU(), forward
        self.register_buffer("std", torch.tensor([2.0, 4.0]).reshape(1, 2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (lambda m, x: F.relu(x), ["ReLU"]),
        (lambda m, x: x.clone().relu_(), ["ReLU"]),
        (lambda m, x: F.relu6(x, inplace=False), ["ReLU6"]),
        (lambda m, x: F.leaky_relu(x, 0.3), ["LeakyReLU"]),
        (lambda m, x: F.gelu(x, approximate="tanh"), ["GELU"]),
        (lambda m, x: torch.sigmoid(x), ["Sigmoid"]),
        (lambda m, x: F.max_pool2d(x, 3, stride=2, ceil_mode=True), ["MaxPool2d"]),
        (lambda m, x: torch.max_pool2d(x, 3, 2, 1), ["MaxPool2d"]),
        (lambda m, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), ["AvgPool2d"]),
        (lambda m, x: F.adaptive_avg_pool2d(x, (2, 1)), ["AdaptiveAvgPool2d"]),
        (lambda m, x: x.mean(dim=(2, 3), keepdim=True), ["PoolModule"]),
        (lambda m, x: torch.sum(x, 1), ["PoolModule"]),
        (lambda m, x: x + x.mean((2, 3), True), ["PoolModule", "PoolModule"]),
        (lambda m, x: torch.add(x, x), ["PoolModule"]),
        (lambda m, x: x + 1.0, []),
        (lambda m, x: 3 * x / m.std, ["ScaleModule", "ScaleModule"]),
        (lambda m, x: 1 / (x + 9), []),
        (lambda m, x: m.act(m.act(x) - 1), ["ReLU", "ReLU"]),
        (lambda m, x: x.reshape(x.shape[0], -1), []),
    ],
)
def test_functions_become_modules(forward: Callable[[Any, Tensor], Tensor], found: list[str]) -> None:
    x = torch.randn(2, 2, 7, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert kinds(Written(forward), x) == found


def test_a_module_that_is_called_twice_becomes_two() -> None:
    network = Written(lambda m, x: m.act(m.act(x) - 1))
    made = trace_modules(network, torch.randn(1, 2, 3, 3))
    first, second = (n.target for n in made.graph.nodes if n.op == "call_module")
    assert made.get_submodule(first) is not made.get_submodule(second)


def test_a_layer_alone_is_a_network() -> None:
    assert kinds(nn.Linear(3, 2), torch.rand(2, 3)) == ["Linear"]


def test_pools_and_scales() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert PoolModule(torch.mean, 1, keepdim=True)(x).tolist() == [[1.5], [4.0]]
    assert PoolModule(torch.sum, (0, 1))(x).tolist() == 11.0
    assert ScaleModule(torch.div, 2.0)(x).tolist() == [[0.5, 1.0], [1.5, 2.5]]


def test_what_cannot_be_followed_is_said() -> None:
    network = Written(lambda m, x: x if x.sum() > 0 else -x)
    with pytest.raises(InputError, match=r"torch.fx cannot follow this one: .* such as integrated gradients"):
        trace_modules(network, torch.rand(1, 2, 3, 3))


def test_a_hook_that_changes_the_result_is_noticed() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    network.register_forward_hook(lambda module, inputs, output: output + 1)
    with pytest.raises(InputError, match="its scores differ by up to 1, so another"):
        trace_modules(network, torch.rand(1, 2))
