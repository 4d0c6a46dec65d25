"""Grad-CAM (Selvaraju et al., 2017), by pytorch-grad-cam or by captum."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.errors import InputError
from deeptaylor.evaluation.opponents import captum
from deeptaylor.evaluation.opponents.calling import Scored, on_a_copy
from deeptaylor.evaluation.opponents.modules import as_modules
from deeptaylor.support.optional import MissingPackageError, optional_package

__all__ = ["by_captum", "by_grad_cam", "grad_cam", "last_feature_map", "package"]


def package() -> Any:
    """pytorch-grad-cam, or captum's methods where that does not import: it wants a torchvision that does."""
    try:
        return optional_package("pytorch_grad_cam", "Grad-CAM is of the package grad-cam", "evaluation")
    except MissingPackageError:
        return captum.package()


@on_a_copy
def grad_cam(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """max(0, Σ_k α_k A_k) of the last feature map A, enlarged; α_k is the mean of ∂f/∂A_k over places."""
    if x.ndim != 4:
        raise InputError(f"Grad-CAM explains pictures (B, C, H, W); the input has shape {tuple(x.shape)}.")
    network = as_modules(network, x)
    layer = last_feature_map(network, x)
    found = package()
    cam = (by_grad_cam if hasattr(found, "GradCAM") else by_captum)(found, network, layer, x, classes)
    return F.interpolate(cam.clamp(min=0), x.shape[2:], mode="bilinear", align_corners=False).squeeze(1)


def by_grad_cam(pytorch_grad_cam: Any, network: nn.Module, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Σ_k α_k A_k, (B, 1, h, w), before pytorch-grad-cam scales it to between 0 and 1."""
    targets = [lambda row, c=c: row if row.ndim == 0 else row[c] for c in classes.tolist()]
    with pytorch_grad_cam.GradCAM(network, [layer]) as method:
        method(x.requires_grad_(), targets)
        (features,), (slopes,) = method.activations_and_grads.activations, method.activations_and_grads.gradients
        cam = method.get_cam_image(x, layer, targets, features.numpy(), slopes.numpy())
    return torch.as_tensor(cam, dtype=x.dtype, device=x.device).unsqueeze(1)


def by_captum(attr: Any, network: nn.Module, layer: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Σ_k α_k A_k, (B, 1, h, w)."""
    cam: Tensor = attr.LayerGradCam(Scored(network), layer).attribute(x, additional_forward_args=classes)
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
