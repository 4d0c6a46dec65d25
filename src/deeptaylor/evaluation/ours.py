"""This library's own ways to explain, as methods to be judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.evaluation.case import Maps
from deeptaylor.explainer import Explainer
from deeptaylor.run.contrast import HARD, POWER

__all__ = ["OURS", "ours"]

# What is asked of an explainer with these settings: a plain map, or a contrast to this power.
OURS: Mapping[str, tuple[dict[str, Any], float | None]] = {
    "deep Taylor, neuron": ({"bias": "neuron"}, None),
    "deep Taylor, spread": ({"bias": "spread"}, None),
    "deep Taylor, neuron, not local": ({"bias": "neuron", "local": False}, None),
    "deep Taylor, spread, not local": ({"bias": "spread", "local": False}, None),
    "contrast, neuron, k = 1": ({"bias": "neuron"}, 1.0),
    "contrast, neuron": ({"bias": "neuron"}, POWER),
    "contrast, neuron, hard": ({"bias": "neuron"}, HARD),
    "contrast, spread, k = 1": ({"bias": "spread"}, 1.0),
    "contrast, spread": ({"bias": "spread"}, POWER),
    "contrast, spread, hard": ({"bias": "spread"}, HARD),
}


def ours(domain: Domain | None) -> dict[str, Maps]:
    """Our methods by name, for networks whose inputs lie in this domain; those that can share an explainer do."""
    explainers = _Explainers(domain)
    return {name: partial(_maps, explainers, settings, power) for name, (settings, power) in OURS.items()}


def _maps(
    explainers: Callable[..., Explainer], settings: dict[str, Any], power: float | None,
    network: nn.Module, x: Tensor, classes: Tensor,
) -> Tensor:  # fmt: skip
    explainer = explainers(network, x, settings)
    answer = explainer.explain(x, classes) if power is None else explainer.contrast(x, classes, power=power)
    relevance: Tensor = answer.relevance
    return relevance


class _Explainers:
    """Explainers of one network by their settings; another network takes their place."""

    def __init__(self, domain: Domain | None) -> None:
        self.domain = domain
        self.network: nn.Module | None = None
        self.made: dict[str, Explainer] = {}

    def __call__(self, network: nn.Module, x: Tensor, settings: dict[str, Any]) -> Explainer:
        if network is not self.network:
            self.network, self.made = network, {}
        key = repr(sorted(settings.items()))
        if key not in self.made:
            self.made[key] = Explainer(network, x[:2], self.domain, **settings)
        return self.made[key]
