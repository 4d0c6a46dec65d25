"""Methods of captum (Kokhlikyan et al., 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.evaluation.baselines.calling import (
    ROWS,
    ROWS_FORWARD,
    ClassScore,
    fix_seed,
    ignore_warnings,
    trace_modules,
    use_copy,
)
from deeptaylor.support.optional import MissingPackageError, optional_package

__all__ = [
    "STEPS",
    "deeplift",
    "grad_cam",
    "guided_backpropagation",
    "integrated_gradients",
    "last_feature_map",
    "load_captum",
    "load_grad_cam",
    "occlusion",
    "run_captum",
    "run_grad_cam",
    "smoothgrad",
    "window_of",
]


def load_grad_cam() -> Any:
    """pytorch-grad-cam, or captum's methods where that does not import: it wants a torchvision that does."""
    try:
        return optional_package("pytorch_grad_cam", "Grad-CAM comes from the package grad-cam", "evaluation")
    except MissingPackageError:
        return load_captum()


@use_copy
def grad_cam(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """max(0, Σ_k α_k A_k) of the last feature map A, enlarged; α_k is the mean of ∂f/∂A_k over places."""
    if x.ndim != 4:
        raise InputError(f"Grad-CAM explains pictures (B, C, H, W); the input has shape {tuple(x.shape)}.")
    network = trace_modules(network, x)
    layer = last_feature_map(network, x)
    found = load_grad_cam()
    cam = (run_grad_cam if hasattr(found, "GradCAM") else run_captum)(found, network, layer, x, classes)
    return F.interpolate(cam.clamp(min=0), x.shape[2:], mode="bilinear", align_corners=False).squeeze(1)


def run_grad_cam(pytorch_grad_cam: Any, network: nn.Module, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Σ_k α_k A_k, (B, 1, h, w), before pytorch-grad-cam scales it to between 0 and 1."""
    targets = [lambda row, c=c: row if row.ndim == 0 else row[c] for c in classes.tolist()]
    with pytorch_grad_cam.GradCAM(network, [layer]) as method:
        method(x.requires_grad_(), targets)
        (features,), (slopes,) = method.activations_and_grads.activations, method.activations_and_grads.gradients
        cam = method.get_cam_image(x, layer, targets, features.numpy(), slopes.numpy())
    return torch.as_tensor(cam, dtype=x.dtype, device=x.device).unsqueeze(1)


def run_captum(attr: Any, network: nn.Module, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Σ_k α_k A_k, (B, 1, h, w)."""
    cam: Tensor = attr.LayerGradCam(ClassScore(network), layer).attribute(x, additional_forward_args=classes)
    return cam


def last_feature_map(network: nn.Module, x: Tensor) -> nn.Module:
    """The last module with an output (B, C, h, w) of more than one place; after it, nothing has places any more."""
    seen: list[tuple[nn.Module, torch.Size]] = []

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append((module, output.shape))

    handles = [m.register_forward_hook(look) for m in network.modules() if not any(m.children())]
    try:
        with torch.no_grad():
            network(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    with_places = [k for k, (_, shape) in enumerate(seen) if math.prod(shape[2:]) > 1]
    if not with_places or len(seen[with_places[-1]][1]) != 4:
        raise InputError(
            "Grad-CAM needs a last feature map (B, C, h, w), after which the network pools over places or flattens; "
            "this network has none. Leave Grad-CAM out for it."
        )
    return seen[with_places[-1]][0]


STEPS = 16  # of integrated gradients, and samples of SmoothGrad
NOISE = 0.15  # its standard deviation, of the range of an input's values
WINDOW = 32  # pixels, at most
_ABOUT_HOOKS = ("Setting (forward, )?backward hooks",)


def load_captum() -> Any:
    """captum's methods."""
    return optional_package("captum.attr", "This method is captum's", "evaluation")


@use_copy
def integrated_gradients(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """x ∫ ∂f/∂x(t x) dt over 0 < t < 1, from the zero input of the units that the network is given."""
    method = load_captum().IntegratedGradients(ClassScore(network))
    rows = max(len(x), ROWS)
    relevance: Tensor = method.attribute(
        x, additional_forward_args=classes, n_steps=STEPS, method="gausslegendre", internal_batch_size=rows
    )
    return relevance


class _UnitRange(nn.Module):
    """A network of inputs that were divided by their own range, so that one size of noise fits all."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.scored = ClassScore(network)

    def forward(self, u: Tensor, extent: Tensor, classes: Tensor) -> Tensor:
        score: Tensor = self.scored(u * extent, classes)
        return score


@use_copy
def smoothgrad(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """The mean of (∂f/∂x)² at inputs with noise added, 15 % of the range of their values."""
    attr = load_captum()
    extent = (x.flatten(1).amax(1) - x.flatten(1).amin(1)).reshape(-1, *[1] * (x.ndim - 1))
    extent = torch.where(extent > 0, extent, 1)
    method = attr.NoiseTunnel(attr.Saliency(_UnitRange(network)))
    with fix_seed(x):
        relevance: Tensor = method.attribute(
            x / extent,
            additional_forward_args=(extent, classes),
            nt_type="smoothgrad_sq",
            nt_samples=STEPS,
            nt_samples_batch_size=max(1, ROWS // len(x)),
            stdevs=NOISE,
        )
    return relevance / extent.square()


@use_copy
def occlusion(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """What the score loses where a window is filled with zeros, a mean over the windows that cover an element."""
    window, stride = window_of(x)
    relevance: Tensor = (
        load_captum()
        .Occlusion(ClassScore(network))
        .attribute(
            x,
            additional_forward_args=classes,
            sliding_window_shapes=window,
            strides=stride,
            perturbations_per_eval=max(1, ROWS_FORWARD // len(x)),
        )
    )
    return relevance


def window_of(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a picture a seventh of its shorter side, 32 pixels at most, and half of that further; else one element."""
    if x.ndim != 4:
        return (1,) * (x.ndim - 1), (1,) * (x.ndim - 1)
    channels = x.shape[1]
    side = min(WINDOW, max(1, min(x.shape[2:]) // 7))
    step = max(1, side // 2)
    return (channels, side, side), (channels, step, step)


class _TwoReLUs(nn.Module):
    """min(max(0, x), top) as top − max(0, top − max(0, x)): DeepLIFT knows ReLU, and nothing that is cut above."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.lower, self.upper, self.top = nn.ReLU(), nn.ReLU(), top

    def forward(self, x: Tensor) -> Tensor:
        cut: Tensor = self.top - self.upper(self.top - self.lower(x))
        return cut


class _CutReLU(nn.ReLU):
    """min(max(0, x), top) that captum knows for a ReLU."""

    def __init__(self, top: float) -> None:
        super().__init__()
        self.top = top

    def forward(self, x: Tensor) -> Tensor:
        return x.clamp(0, self.top)


class _SeparatePool(nn.Module):
    """Max pooling whose windows share no elements: those that several windows look at are repeated.

    captum gives an element what one of its windows hands it, and not the sum over all that it wins.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.size, self.stride, self.padding = (_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
        self.ceil_mode = pool.ceil_mode
        self.pool = nn.MaxPool2d(self.size)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            windows = F.max_pool2d(x, self.size, self.stride, self.padding, ceil_mode=self.ceil_mode).shape[2:]
        rows, columns = (self._places(x, axis, windows[axis]) for axis in (0, 1))
        largest: Tensor = self.pool(x[:, :, rows[:, None], columns])
        return largest

    def _places(self, x: Tensor, axis: int, windows: int) -> Tensor:
        """Which element lies where, window by window; beyond the edge the last one, which is in the window anyway."""
        first = torch.arange(windows, device=x.device) * self.stride[axis] - self.padding[axis]
        places = first[:, None] + torch.arange(self.size[axis], device=x.device)
        return places.flatten().clamp(0, x.shape[2 + axis] - 1)


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value


def _replace(network: nn.Module, other: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """The network with others in the place of some modules."""
    for name, module in list(network.named_modules()):
        new = other(module)
        if new is not None:
            network.set_submodule(name, new)
    return network


def _replace_for_deeplift(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.MaxPool2d) and _pair(module.dilation) == (1, 1) and not module.return_indices:
        return _SeparatePool(module)
    return _TwoReLUs(module.max_val) if _has_ceiling(module) else None


def _replace_for_guided(module: nn.Module) -> nn.Module | None:
    return _CutReLU(module.max_val) if _has_ceiling(module) else None


def _has_ceiling(module: nn.Module) -> TypeGuard[nn.Hardtanh]:
    return isinstance(module, nn.Hardtanh) and module.min_val == 0


@use_copy
def deeplift(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """DeepLIFT's rescale rule, from the zero input."""
    method = load_captum().DeepLift(ClassScore(_replace(trace_modules(network, x), _replace_for_deeplift)))
    with ignore_warnings(*_ABOUT_HOOKS):
        relevance: Tensor = method.attribute(x.requires_grad_(), additional_forward_args=classes)
    return relevance


@use_copy
def guided_backpropagation(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """The gradient; every ReLU passes only its positive part."""
    method = load_captum().GuidedBackprop(ClassScore(_replace(trace_modules(network, x), _replace_for_guided)))
    with ignore_warnings(*_ABOUT_HOOKS):
        relevance: Tensor = method.attribute(x.requires_grad_(), additional_forward_args=classes)
    return relevance
