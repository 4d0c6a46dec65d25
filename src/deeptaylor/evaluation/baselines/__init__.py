"""The methods of others that maps are compared with, each through its own library, imported when it is asked for.

Each takes a network in eval mode, a batch and a class per sample, and leaves the network as it was. All explain the
score that the network gives for the class: where it ends in a softmax, a probability. "Zero input" is a zero of the
units that the network is given: after the usual preparations a grey picture, not a black one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deeptaylor.evaluation.baselines import calling, captum, shap, zennit
from deeptaylor.evaluation.baselines.calling import Maps
from deeptaylor.support.optional import MissingPackageError

__all__ = ["BASELINES", "Baseline", "Maps", "list_installed"]


@dataclass(frozen=True)
class Baseline:
    """Another way to explain: what it is called, the package it needs, the maps, and a sentence about it."""

    name: str
    package: str | None
    maps: Maps
    about: str


_ALL = (
    Baseline("gradient", None, calling.gradient, "The size of the gradient, |∂f/∂x|."),
    Baseline("squared gradient", None, calling.squared_gradient, "Sensitivity analysis: the squared gradient."),
    Baseline("gradient x input", None, calling.gradient_times_input, "The gradient times the input."),
    Baseline(
        "integrated gradients",
        "captum",
        captum.integrated_gradients,
        f"The mean gradient on the line from the zero input, times the input; {captum.STEPS} steps.",
    ),
    Baseline(
        "smoothgrad",
        "captum",
        captum.smoothgrad,
        f"The mean of the squared gradient at {captum.STEPS} inputs with noise added, {captum.NOISE:.0%} of the range "
        "of their values.",
    ),
    Baseline(
        "grad-cam",
        "pytorch_grad_cam",
        captum.grad_cam,
        "Grad-CAM at the last feature map, enlarged; by pytorch-grad-cam, or by captum's LayerGradCam where that "
        "package does not import.",
    ),
    Baseline(
        "occlusion",
        "captum",
        captum.occlusion,
        f"What the score loses where a window of {captum.WINDOW} pixels is set to zero, moved by half its width; in "
        "small pictures a seventh of the shorter side.",
    ),
    Baseline("deeplift", "captum", captum.deeplift, "DeepLIFT's rescale rule, from the zero input."),
    Baseline(
        "shap",
        "shap",
        shap.expected_gradients,
        f"Expected gradients, {shap.SAMPLES} samples on the ways from the zero input and from the input blurred.",
    ),
    Baseline(
        "lrp epsilon",
        "zennit",
        zennit.epsilon,
        f"LRP, ε in every layer: {zennit.EPSILON:g} of the root mean square of its values.",
    ),
    Baseline("lrp gamma", "zennit", zennit.gamma, f"LRP, γ = {zennit.GAMMA:g} in every layer."),
    Baseline(
        "lrp alpha2 beta1", "zennit", zennit.alpha2_beta1, "LRP, α = 2 and β = 1 in convolutions, ε in linear layers."
    ),
    Baseline("lrp epsilon-plus", "zennit", zennit.epsilon_plus, "LRP, z⁺ in convolutions, ε in linear layers."),
    Baseline(
        "guided backpropagation",
        "captum",
        captum.guided_backpropagation,
        "The gradient; every ReLU passes only its positive part.",
    ),
    Baseline("random", None, calling.random, "Noise, which any method must beat."),
)
BASELINES: Mapping[str, Baseline] = MappingProxyType({baseline.name: baseline for baseline in _ALL})

_LOADERS = {
    "captum": captum.load_captum, "pytorch_grad_cam": captum.load_grad_cam, "shap": shap.load_shap,
    "zennit": zennit.load_zennit,
}  # fmt: skip


def list_installed() -> list[str]:
    """Return the names of the baselines whose package can be imported; import each to find out."""
    return [name for name, baseline in BASELINES.items() if baseline.package is None or _imports(baseline.package)]


def _imports(package: str) -> bool:
    try:
        _LOADERS[package]()
    except MissingPackageError:
        return False
    return True
