"""The methods of others that maps are compared with, each through its own library, imported when it is asked for.

Each takes a network in eval mode, a batch and a class per sample, and leaves the network as it was. All explain the
score that the network gives for the class: where it ends in a softmax, a probability. "Zero input" is a zero of the
units that the network is given: after the usual preparations a grey picture, not a black one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from deeptaylor.evaluation.opponents import captum, grad_cam, plain, shap, zennit
from deeptaylor.evaluation.opponents.calling import Maps
from deeptaylor.support.optional import MissingPackageError

__all__ = ["OPPONENTS", "Maps", "Opponent", "installed"]


@dataclass(frozen=True)
class Opponent:
    """Another way to explain: what it is called, the package it needs, the maps, and a sentence about it."""

    name: str
    package: str | None
    maps: Maps
    about: str


_ALL = (
    Opponent("gradient", None, plain.gradient, "The size of the gradient, |∂f/∂x|."),
    Opponent("squared gradient", None, plain.squared_gradient, "Sensitivity analysis: the squared gradient."),
    Opponent("gradient x input", None, plain.gradient_times_input, "The gradient times the input."),
    Opponent(
        "integrated gradients",
        "captum",
        captum.integrated_gradients,
        f"The gradient's mean on the way from the zero input, times the input; {captum.STEPS} steps.",
    ),
    Opponent(
        "smoothgrad",
        "captum",
        captum.smoothgrad,
        f"The mean of the squared gradient at {captum.STEPS} inputs with noise added, {captum.NOISE:.0%} of the range "
        "of their values.",
    ),
    Opponent(
        "grad-cam",
        "pytorch_grad_cam",
        grad_cam.grad_cam,
        "Grad-CAM at the last feature map, enlarged; by pytorch-grad-cam, or by captum's LayerGradCam where that "
        "package does not import.",
    ),
    Opponent(
        "occlusion",
        "captum",
        captum.occlusion,
        f"What the score loses where a window of {captum.WINDOW} pixels is set to zero, moved by half its width; in "
        "small pictures a seventh of the shorter side.",
    ),
    Opponent("deeplift", "captum", captum.deeplift, "DeepLIFT's rescale rule, from the zero input."),
    Opponent(
        "shap",
        "shap",
        shap.expected_gradients,
        f"Expected gradients, {shap.SAMPLES} samples on the ways from the zero input and from the input blurred.",
    ),
    Opponent(
        "lrp epsilon",
        "zennit",
        zennit.epsilon,
        f"LRP, ε in every layer: {zennit.EPSILON:g} of the root mean square of its values.",
    ),
    Opponent("lrp gamma", "zennit", zennit.gamma, f"LRP, γ = {zennit.GAMMA:g} in every layer."),
    Opponent(
        "lrp alpha2 beta1", "zennit", zennit.alpha2_beta1, "LRP, α = 2 and β = 1 in convolutions, ε in linear layers."
    ),
    Opponent("lrp epsilon-plus", "zennit", zennit.epsilon_plus, "LRP, z⁺ in convolutions, ε in linear layers."),
    Opponent(
        "guided backpropagation",
        "captum",
        captum.guided_backpropagation,
        "The gradient, of which every ReLU lets only the positive part through.",
    ),
    Opponent("random", None, plain.random, "Noise: what any method must beat."),
)
OPPONENTS: Mapping[str, Opponent] = MappingProxyType({opponent.name: opponent for opponent in _ALL})

_PACKAGES = {"captum": captum, "pytorch_grad_cam": grad_cam, "shap": shap, "zennit": zennit}


def installed() -> list[str]:
    """The names of the methods whose package can be imported; each is imported to see."""
    return [name for name, opponent in OPPONENTS.items() if opponent.package is None or _imports(opponent.package)]


def _imports(package: str) -> bool:
    try:
        _PACKAGES[package].package()
    except MissingPackageError:
        return False
    return True
