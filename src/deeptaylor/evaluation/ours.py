"""This library's own ways to explain, as methods to be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.metrics.case import Maps
from deeptaylor.run.contrast import HARD, POWER
from deeptaylor.secant.front_door import AUTO, METHODS, method_sentence

__all__ = ["OURS", "Ours", "ours"]


class Way(NamedTuple):
    """What is asked of an explainer with these settings: a map; or a contrast; or a comparison with a reference."""

    settings: dict[str, Any]
    power: float | None = None
    reference: str | None = None


_DEEP = {"method": "deep-taylor"}
OURS: Mapping[str, Way] = {
    **{word: Way({"method": word}) for word in METHODS},
    "deep Taylor": Way(_DEEP),
    "deep Taylor, neuron": Way({"bias": "neuron"}),
    "deep Taylor, spread": Way({"bias": "spread"}),
    "deep Taylor, not local": Way({"local": False}),
    "deep Taylor, spread, not local": Way({"bias": "spread", "local": False}),
    "contrast": Way(_DEEP, POWER),
    "contrast, k = 1": Way(_DEEP, 1.0),
    "contrast, k = 3": Way(_DEEP, 3.0),
    "contrast, hard": Way(_DEEP, HARD),
    "contrast, spread": Way({"bias": "spread"}, POWER),
    "contrast, spread, k = 1": Way({"bias": "spread"}, 1.0),
    "contrast, spread, k = 3": Way({"bias": "spread"}, 3.0),
    "contrast, spread, hard": Way({"bias": "spread"}, HARD),
    "secant, blurred reference": Way(_DEEP, reference="blur"),
}


@dataclass(frozen=True)
class Ours:
    """One of our methods, as it is judged."""

    explainers: _Explainers
    way: Way

    def __call__(self, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        explainer = self.explainers(network, x, self.way.settings)
        target = None if self.explainers.one_number else classes
        relevance: Tensor = _answer(explainer, self.way, x, target).relevance
        return relevance

    @property
    def reason(self) -> str:
        """Which method `auto` came to, and why; empty for methods by name, and before it explained."""
        if self.way.settings.get("method") != AUTO or (made := self.explainers.of(self.way.settings)) is None:
            return ""
        return "" if made.choice is None else method_sentence(made.choice)


def ours(domain: Domain | None) -> dict[str, Maps]:
    """Our methods by name, those of `method=` first, for networks whose inputs lie in this domain.

    Those that can share an explainer do.
    """
    explainers = _Explainers(domain)
    return {name: Ours(explainers, way) for name, way in OURS.items()}


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
        key = _key(settings)
        if key not in self.made:
            self.made[key] = Explainer(network, x[:2], self.domain, **settings)
        return self.made[key]

    def of(self, settings: dict[str, Any]) -> Explainer | None:
        """Return the explainer with these settings, if there is one."""
        return self.made.get(_key(settings))


def _key(settings: dict[str, Any]) -> str:
    return repr(sorted(settings.items()))
