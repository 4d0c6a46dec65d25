"""The methods of others: every one gives maps, leaves everything as it was, and is what its name says."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.evaluation import baselines
from deeptaylor.evaluation.baselines import BASELINES, calling, captum, shap
from deeptaylor.support.optional import MissingPackageError
from untouched import changes, snapshot

NAMES = [
    "gradient", "squared gradient", "gradient x input", "integrated gradients", "smoothgrad", "grad-cam", "occlusion",
    "deeplift", "shap", "lrp epsilon", "lrp gamma", "lrp alpha2 beta1", "lrp epsilon-plus", "guided backpropagation",
    "random",
]  # fmt: skip
CLASSES = torch.tensor([0, 4, 2])


class Busy(nn.Module):
    """A small network with all that trips other libraries up: functions, ReLU6, a sum, BatchNorm, in-place modules."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(6, 5)
        nn.init.uniform_(self.head.weight, -0.2, 0.5)  # every class has places that speak for it
        for bn in (self.bn1, self.bn2):
            nn.init.uniform_(bn.running_mean, -0.2, 0.2)
            nn.init.uniform_(bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu6(self.bn1(self.conv1(x)))
        h = self.act(self.bn2(self.conv2(h))) + h
        return self.head(F.max_pool2d(h, 3, stride=2).mean((2, 3)))


def busy() -> Busy:
    """In the middle of its life: with gradients, partly frozen, with a hook of its owner's."""
    network = Busy().eval()
    network(pictures()).sum().backward()
    network.conv1.requires_grad_(False)
    network.act.register_forward_hook(lambda module, inputs, output: None)
    return network


def pictures(size: int = 3) -> Tensor:
    return 2 * torch.randn(size, 3, 20, 24, generator=torch.Generator().manual_seed(5))


def numpy_state() -> Any:
    state: Any = np.random.get_state()  # noqa: NPY002 - the global one is meant
    return np.append(state[1], state[2])


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What a package does to the world when it is first imported is no matter of ours."""
    baselines.list_installed()
    importlib.import_module("sympy")  # by torch, for a function of autograd that others write


def maps(name: str, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """The maps of a method; skipped where its package is missing."""
    package = "captum" if name == "grad-cam" else BASELINES[name].package  # Grad-CAM has a second way
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return BASELINES[name].maps(network, x, classes)


def attr() -> Any:
    return pytest.importorskip("captum.attr", reason="captum is not installed")


def close(a: Tensor, b: Tensor, gap: float = 1e-5) -> None:
    assert a.shape == b.shape
    scale = float(b.abs().max())
    assert scale > 0, "nothing agrees with nothing"
    assert float((a - b).abs().max()) <= gap * scale


# --- all of them ------------------------------------------------------------------------------------------------------


def test_these_are_the_baselines() -> None:
    assert list(BASELINES) == NAMES
    assert all(name == baseline.name and baseline.about.endswith(".") for name, baseline in BASELINES.items())
    with pytest.raises(TypeError):
        BASELINES["mine"] = BASELINES["random"]  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
def test_a_map_for_every_sample_and_everything_as_it_was(name: str) -> None:
    network, x = busy(), pictures()
    before, taken = x.clone(), snapshot(network)
    torch.manual_seed(7)
    states = torch.get_rng_state(), numpy_state(), random.getstate()
    filters = list(warnings.filters)
    relevance = maps(name, network, x, CLASSES)
    assert changes(network, taken) == []
    assert torch.equal(x, before)
    assert (x.requires_grad, x.grad) == (False, None)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(numpy_state(), states[1])
    assert random.getstate() == states[2]
    assert list(warnings.filters) == filters
    assert relevance.shape in (x.shape, (3, 20, 24))
    assert relevance.dtype == x.dtype
    assert relevance.device == x.device
    assert not relevance.requires_grad
    assert bool(relevance.isfinite().all())
    assert bool((relevance.flatten(1).abs().amax(1) > 0).all()), "an empty map"


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_has_its_own_class_and_its_own_map(name: str) -> None:
    network, x = busy(), pictures()
    together = maps(name, network, x, CLASSES)
    torch.manual_seed(11)
    np.random.seed(11)  # noqa: NPY002 - the global one is meant
    assert torch.equal(together, maps(name, network, x, CLASSES)), "the same twice"
    if name == "smoothgrad":  # the noise belongs to the place in the batch
        return
    for k in range(3):
        close(together[k : k + 1], maps(name, network, x[k : k + 1], CLASSES[k : k + 1]), 1e-4)
    if name != "random":
        other = maps(name, network, x, CLASSES.flip(0))
        assert not torch.allclose(other[0], together[0], rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_wherever_it_is_called(name: str, without: Callable[[], Any]) -> None:
    network, x = busy(), pictures(2)
    outside = maps(name, network, x, CLASSES[:2])
    with without():
        assert torch.equal(maps(name, network, x, CLASSES[:2]), outside)


@pytest.mark.parametrize("name", NAMES)
def test_vectors_and_networks_with_one_score(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 1), nn.Flatten(0)).eval().double()
    x = torch.randn(3, 7, dtype=torch.float64)
    if name == "grad-cam":
        with pytest.raises(InputError, match=r"Grad-CAM explains pictures .* shape \(3, 7\)"):
            maps(name, network, x, torch.zeros(3, dtype=torch.int64))
        return
    relevance = maps(name, network, x, torch.zeros(3, dtype=torch.int64))
    assert relevance.shape == x.shape
    assert bool(relevance.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 20])
def test_no_more_rows_at_a_time_than_said(name: str, size: int) -> None:
    network, rows = Busy().eval(), []
    network.conv1.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    maps(name, network, pictures(size), torch.arange(size) % 5)
    limit = calling.ROWS_FORWARD if name == "occlusion" else calling.ROWS
    assert max(rows, default=0) <= max(limit, 2 * size if name == "deeplift" else size)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu_as_on_the_cpu(name: str) -> None:
    network, x = busy(), pictures()
    here = maps(name, network, x, CLASSES)
    there = maps(name, network.cuda(), x.cuda(), CLASSES.cuda())
    assert there.is_cuda
    if name != "smoothgrad":  # other random numbers
        close(there.cpu(), here, 1e-3)


# --- packages ---------------------------------------------------------------------------------------------------------


class Nowhere:
    """Finds none of some packages, whether they are installed or not."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for module in [m for m in sys.modules if m.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Nowhere(*packages), *sys.meta_path])


def test_without_any_package_those_of_torch_alone_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "captum", "pytorch_grad_cam", "shap", "zennit")
    assert baselines.list_installed() == ["gradient", "squared gradient", "gradient x input", "random"]
    for name in NAMES:
        if BASELINES[name].package is not None:
            with pytest.raises(
                MissingPackageError, match=r"Install it with: pip install (.*\[evaluation\]|--no-deps zennit)"
            ):
                BASELINES[name].maps(Busy().eval(), pictures(1), CLASSES[:1])


def test_those_that_import_are_installed() -> None:
    attr()
    expected = {"gradient", "random", "integrated gradients", "grad-cam"}
    assert expected <= set(baselines.list_installed()) <= set(NAMES)


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_asked_for() -> None:
    program = (
        "import sys, deeptaylor.evaluation.baselines; "
        "print({'captum', 'zennit', 'shap', 'pytorch_grad_cam', 'torchvision', 'cv2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- gradients --------------------------------------------------------------------------------------------------------


def test_gradients_by_hand() -> None:
    # f = relu(2 a − 3 b) at (2, 1) is 1, its slopes are 2 and −3.
    network = nn.Sequential(nn.Linear(2, 1, bias=False), nn.ReLU()).eval()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[2.0, -3.0]]))
    x, zero = torch.tensor([[2.0, 1.0]]), torch.tensor([0])
    assert calling.gradient(network, x, zero).tolist() == [[2, 3]]
    assert calling.squared_gradient(network, x, zero).tolist() == [[4, 9]]
    assert calling.gradient_times_input(network, x, zero).tolist() == [[4, -3]]


def test_gradient_times_input_is_that_of_captum() -> None:
    network, x = busy(), pictures()
    theirs = attr().InputXGradient(network).attribute(x.clone().requires_grad_(), target=CLASSES).detach()
    close(calling.gradient_times_input(network, x, CLASSES), theirs, 1e-6)


def by_hand(network: nn.Module, x: Tensor, index: int, points: Tensor, weights: Tensor) -> Tensor:
    """x Σ w ∂f/∂x(t x) over points t with weights w."""
    way = (points[:, None, None, None] * x).requires_grad_()
    return x * (torch.autograd.grad(network(way)[:, index].sum(), way)[0] * weights[:, None, None, None]).sum(0)


def test_integrated_gradients_sum_to_the_rise_of_the_score() -> None:
    """The slope along the way jumps at kinks, so that a rule of sixteen points errs by its heaviest weight × the
    total of all jumps at most (Koksma): each point stands for no more than its weight.
    """
    attr()
    network, x = Busy().eval().double(), pictures().double()
    points, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(16))  # on −1 … 1
    heaviest = float(weights.max()) / 2
    at = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for k in range(3):
        way = (at[:, None, None, None] * x[k]).requires_grad_()
        slopes = (torch.autograd.grad(network(way)[:, CLASSES[k]].sum(), way)[0] * x[k]).flatten(1).sum(1)
        jumps = float(slopes.diff().abs().sum())
        relevance = captum.integrated_gradients(network, x[k : k + 1], CLASSES[k : k + 1])
        total = float(relevance.sum())
        with torch.no_grad():
            rise = float((network(x[k : k + 1]) - network(0 * x[k : k + 1]))[0, CLASSES[k]])
        close(relevance[0], by_hand(network, x[k], int(CLASSES[k]), (points + 1) / 2, weights / 2), 1e-6)
        assert abs(total - rise) <= heaviest * jumps
        assert heaviest * jumps < 0.5 * abs(rise), "a bound that says something"


def test_smoothgrad_without_noise_is_the_squared_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    attr()
    network, x = busy(), pictures()
    noisy = captum.smoothgrad(network, x, CLASSES)
    monkeypatch.setattr(captum, "NOISE", 0.0)
    close(captum.smoothgrad(network, x, CLASSES), calling.squared_gradient(network, x, CLASSES), 1e-5)
    assert not torch.allclose(noisy, calling.squared_gradient(network, x, CLASSES), rtol=0.1)


def test_the_noise_of_smoothgrad_follows_the_units_of_the_input() -> None:
    attr()
    network = busy()

    class Hundredfold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x / 100)

    x = pictures()
    close(captum.smoothgrad(Hundredfold(), 100 * x, CLASSES), captum.smoothgrad(network, x, CLASSES) / 1e4, 1e-4)


def test_guided_backpropagation_by_hand() -> None:
    # f = −max(0, a) + 2 min(max(0, b), 6) + 3 max(0, c) − min(max(0, d), 6) at (1, 2, −1, 1): the first and the last
    # slope are negative and are stopped at their ReLU, the second is 2, and the third ReLU is off. At b = 7 the second
    # is cut.
    attr()

    class Four(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            above = 3 * F.relu(x[:, 2:3]) + 2 * F.relu6(x[:, 1:2])
            return above - F.relu(x[:, :1]) - F.relu6(x[:, 3:])

    x = torch.tensor([[1.0, 2.0, -1.0, 1.0], [1.0, 7.0, 1.0, 1.0]])
    zeros = torch.zeros(2, dtype=torch.int64)
    assert captum.guided_backpropagation(Four().eval(), x, zeros).tolist() == [[0, 2, 0, 0], [0, 0, 3, 0]]


@pytest.mark.parametrize("pool", [(3, 2, 0), (3, 2, 1), (2, 2, 0), (3, 1, 1)])
def test_deeplift_sums_to_the_rise_of_the_score(pool: tuple[int, int, int]) -> None:
    """Also where windows of max pooling overlap, and where a ReLU is cut at six, neither of which captum knows."""
    attr()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.MaxPool2d(*pool, ceil_mode=True), nn.Conv2d(4, 4, 3), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    ).eval().double()  # fmt: skip
    x = 10 * torch.randn(3, 3, 13, 14, dtype=torch.float64)
    assert bool((network[0](x) > 6).any())
    rise = (network(x) - network(torch.zeros_like(x))).gather(1, CLASSES[:, None]).squeeze(1)
    close(captum.deeplift(network, x, CLASSES).flatten(1).sum(1), rise.detach(), 1e-7)


# --- others -----------------------------------------------------------------------------------------------------------


def linear(size: tuple[int, int], seed: int = 0) -> tuple[nn.Module, Tensor]:
    """f = w · x of pictures with two channels, and w."""
    weight = torch.randn(2, *size, generator=torch.Generator().manual_seed(seed))
    layer = nn.Linear(weight.numel(), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight.reshape(1, -1))
    return nn.Sequential(nn.Flatten(), layer).eval(), weight


def test_occlusion_of_a_linear_network_by_hand() -> None:
    """A seventh of 28 are windows of 4, moved by 2: every place has the mean of the windows that cover it."""
    attr()
    network, weight = linear((28, 28))
    x = torch.randn(1, 2, 28, 28)
    lost, covering = torch.zeros(28, 28), torch.zeros(28, 28)
    for top in range(0, 25, 2):
        for left in range(0, 25, 2):
            window = (slice(top, top + 4), slice(left, left + 4))
            lost[window] += (weight * x[0])[:, window[0], window[1]].sum()
            covering[window] += 1
    relevance = captum.occlusion(network, x, torch.tensor([0]))
    close(relevance[0, 0], lost / covering, 1e-4)
    assert torch.equal(relevance[0, 0], relevance[0, 1])


def test_the_windows_of_a_photograph() -> None:
    assert captum.window_of(torch.zeros(1, 3, 224, 448)) == ((3, 32, 32), (3, 16, 16))
    assert captum.window_of(torch.zeros(1, 3, 448, 448)) == ((3, 32, 32), (3, 16, 16))
    assert captum.window_of(torch.zeros(1, 1, 28, 56)) == ((1, 4, 4), (1, 2, 2))
    assert captum.window_of(torch.zeros(1, 1, 5, 9)) == ((1, 1, 1), (1, 1, 1))
    assert captum.window_of(torch.zeros(4, 6, 7)) == ((1, 1), (1, 1))


def test_expected_gradients_of_a_linear_network_by_hand() -> None:
    pytest.importorskip("shap", reason="shap is not installed")
    torch.manual_seed(0)
    network = nn.Linear(4, 3, bias=False).eval()
    x, classes = torch.randn(2, 4), torch.tensor([2, 0])
    close(shap.expected_gradients(network, x, classes), x * network.weight.detach()[classes], 1e-6)
    # A picture is compared with zeros and with itself blurred: of one colour, that is the picture itself.
    image, weight = linear((32, 32))
    flat = torch.full((1, 2, 32, 32), 3.0)
    relevance = shap.expected_gradients(image, flat, torch.tensor([0]))[0]
    share = float((relevance * weight).sum() / (3 * weight * weight).sum())
    assert 0 < share < 1
    close(relevance, share * 3 * weight, 1e-5)


def test_noise_belongs_to_the_sample() -> None:
    x = pictures()
    noise = calling.random(nn.Identity(), x, CLASSES)
    assert torch.equal(noise[1], calling.random(nn.Identity(), x[1:2], CLASSES[:1])[0])
    assert float((noise[0] - noise[1]).abs().mean()) == pytest.approx(1 / 3, abs=0.05)
    assert 0 <= float(noise.min()) < float(noise.max()) < 1


# --- Grad-CAM ---------------------------------------------------------------------------------------------------------


class TwoDetectors(nn.Module):
    """A = relu(a), relu(b) of two channels; the score of class 0 is 2 mean A₁ − mean A₂, that of class 1 mean A₂."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[2.0, -1.0], [0.0, 1.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(F.relu(F.avg_pool2d(x, 2)), 1).flatten(1))


def ways() -> list[tuple[str, Any, Any]]:
    return [("captum.attr", "captum", captum.run_captum), ("pytorch_grad_cam", "grad-cam", captum.run_grad_cam)]


@pytest.mark.parametrize(("module", "package", "way"), ways(), ids=["captum", "grad-cam"])
def test_grad_cam_by_hand(module: str, package: str, way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        found = __import__(module, fromlist=["*"])
    except (ImportError, RuntimeError) as error:  # a torchvision that does not fit its torch
        pytest.skip(f"{package} does not import: {error}")
    monkeypatch.setattr(captum, "load_grad_cam", lambda: found)
    # After pooling the channels are (4, 0; 0, 0) and (0, 8; −8, 0). Slopes are w / 4 places: (1/2, −1/4) and (0, 1/4).
    first, second = torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 8.0], [-8.0, 0.0]])
    x = torch.stack([first, second]).repeat_interleave(2, 1).repeat_interleave(2, 2).unsqueeze(0)
    relevance = BASELINES["grad-cam"].maps(TwoDetectors().eval(), x.repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    # Class 0: 4 / 2 and −8 / 4, which is cut to 0; class 1: 8 / 4 at the upper right.
    cams = torch.tensor([[[[2.0, 0.0], [0.0, 0.0]]], [[[0.0, 2.0], [0.0, 0.0]]]])
    close(relevance, F.interpolate(cams, (4, 4), mode="bilinear").squeeze(1), 1e-6)


def test_the_last_feature_map_is_found() -> None:
    x = pictures(1)
    flat = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 5, 1), nn.Flatten())
    assert captum.last_feature_map(flat, x) is flat[1]
    places = nn.Sequential(
        nn.Conv2d(3, 4, 4, stride=4), nn.Flatten(2), nn.Linear(30, 8), nn.Flatten(), nn.Linear(32, 5)
    )
    with pytest.raises(InputError, match="this network has none"):
        captum.last_feature_map(places, x)
