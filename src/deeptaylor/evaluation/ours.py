"""This library's own ways to explain, as methods to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.metrics.case import Maps
from deeptaylor.run.contrast import HARD, POWER

__all__ = ["OURS", "ours"]


class Way(NamedTuple):
    """What is asked of an explainer with these settings: a map; or a contrast; or a comparison with a reference."""

    settings: dict[str, Any]
    power: float | None = None
    reference: str | None = None


OURS: Mapping[str, Way] = {
    "deep Taylor": Way({}),
    "deep Taylor, neuron": Way({"bias": "neuron"}),
    "deep Taylor, spread": Way({"bias": "spread"}),
    "deep Taylor, not local": Way({"local": False}),
    "deep Taylor, spread, not local": Way({"bias": "spread", "local": False}),
    "contrast": Way({}, POWER),
    "contrast, k = 1": Way({}, 1.0),
    "contrast, k = 3": Way({}, 3.0),
    "contrast, hard": Way({}, HARD),
    "contrast, spread": Way({"bias": "spread"}, POWER),
    "contrast, spread, k = 1": Way({"bias": "spread"}, 1.0),
    "contrast, spread, k = 3": Way({"bias": "spread"}, 3.0),
    "contrast, spread, hard": Way({"bias": "spread"}, HARD),
    "secant, blurred reference": Way({}, reference="blur"),
}


def ours(domain: Domain | None) -> dict[str, Maps]:
    """Our methods by name, for networks whose inputs lie in this domain; those that can share an explainer do."""
    explainers = _Explainers(domain)
    return {name: partial(_maps, explainers, way) for name, way in OURS.items()}


def _maps(explainers: _Explainers, way: Way, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    explainer = explainers(network, x, way.settings)
    target = None if explainers.one_number else classes
    relevance: Tensor = _answer(explainer, way, x, target).relevance
    return relevance


def _answer(explainer: Explainer, way: Way, x: Tensor, target: Tensor | None) -> Explanation:
    if way.reference is not None:
        return explainer.between(x, way.reference, target)
    return explainer.explain(x, target) if way.power is None else explainer.contrast(x, target, power=way.power)


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
