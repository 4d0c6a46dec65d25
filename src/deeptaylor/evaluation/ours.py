"""This library's own ways to explain, as methods to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.explainer import Explainer
from deeptaylor.metrics.case import Maps
from deeptaylor.run.contrast import HARD, POWER

__all__ = ["OURS", "ours"]

# What is asked of an explainer with these settings: a plain map, or a contrast to this power.
OURS: Mapping[str, tuple[dict[str, Any], float | None]] = {
    "deep Taylor": ({}, None),
    "deep Taylor, neuron": ({"bias": "neuron"}, None),
    "deep Taylor, spread": ({"bias": "spread"}, None),
    "deep Taylor, not local": ({"local": False}, None),
    "deep Taylor, spread, not local": ({"bias": "spread", "local": False}, None),
    "contrast": ({}, POWER),
    "contrast, k = 1": ({}, 1.0),
    "contrast, k = 3": ({}, 3.0),
    "contrast, hard": ({}, HARD),
    "contrast, spread": ({"bias": "spread"}, POWER),
    "contrast, spread, k = 1": ({"bias": "spread"}, 1.0),
    "contrast, spread, k = 3": ({"bias": "spread"}, 3.0),
    "contrast, spread, hard": ({"bias": "spread"}, HARD),
}


def ours(domain: Domain | None) -> dict[str, Maps]:
    """Our methods by name, for networks whose inputs lie in this domain; those that can share an explainer do."""
    explainers = _Explainers(domain)
    return {name: partial(_maps, explainers, settings, power) for name, (settings, power) in OURS.items()}


def _maps(
    explainers: _Explainers, settings: dict[str, Any], power: float | None,
    network: nn.Module, x: Tensor, classes: Tensor,
) -> Tensor:  # fmt: skip
    explainer = explainers(network, x, settings)
    target = None if explainers.one_number else classes
    answer = explainer.explain(x, target) if power is None else explainer.contrast(x, target, power=power)
    relevance: Tensor = answer.relevance
    return relevance


class _Explainers:
    """Explainers of one network by their settings; another network takes their place."""

    def __init__(self, domain: Domain | None) -> None:
        self.domain = domain
        self.network: nn.Module | None = None
        self.made: dict[str, Explainer] = {}
        self.one_number = False  # the network gives no classes, but a number

    def __call__(self, network: nn.Module, x: Tensor, settings: dict[str, Any]) -> Explainer:
        if network is not self.network:
            self.network, self.made = network, {}
            with torch.no_grad():
                self.one_number = network(x[:1]).numel() == 1
        key = repr(sorted(settings.items()))
        if key not in self.made:
            self.made[key] = Explainer(network, x[:2], self.domain, **settings)
        return self.made[key]
