"""Ways to explain one decision, by name, to be seen side by side.

deep-taylor   deep-taylor-spread     the paper's method, with biases as neurons or spread over their inputs
lrp-alpha2beta1   lrp-epsilon        layer-wise relevance propagation, by the same engine with other rules
sensitivity   taylor                 f seen from outside: its squared gradient; its expansion at the nearest root
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.heatmap import Heat
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.taylor import taylor
from deeptaylor.rules import AlphaBeta, Epsilon

__all__ = ["METHODS", "USUAL", "Method", "likeness", "method", "rank_correlation"]

Explain = Callable[[Tensor, Any], Explanation]
LEVEL = 0.1  # of the score, where the nearest root is looked for, as in the paper


@dataclass(frozen=True)
class Method:
    """A way to explain. `prepare` captures what it needs once, and returns what explains."""

    key: str
    title: str
    prepare: Callable[[nn.Module, Tensor, Domain], Explain]


def _engine(**settings: Any) -> Callable[[nn.Module, Tensor, Domain], Explain]:
    return lambda network, example, domain: Explainer(network, example, domain, **settings).explain


def _sensitivity(network: nn.Module, _example: Tensor, _domain: Domain) -> Explain:
    return lambda x, target: sensitivity(network, x, target)


def _taylor(network: nn.Module, _example: Tensor, domain: Domain) -> Explain:
    def explain(x: Tensor, target: Any) -> Explanation:
        return taylor(network, x, target, root=nearest_root(network, x, target, domain=domain, level=LEVEL))

    return explain


# Titles in plain letters: they are also drawn into pictures, and the font there has no Greek.
METHODS: Mapping[str, Method] = {
    m.key: m
    for m in (
        Method("auto", "The method that fits", _engine()),
        Method("deep-taylor", "Deep Taylor", _engine(method="deep-taylor")),
        Method("paper", "Deep Taylor, as in the paper", _engine(method="paper")),
        Method("secant", "Secants", _engine(method="secant")),
        Method("attnlrp", "AttnLRP", _engine(method="attnlrp")),
        Method("cp-lrp", "CP-LRP", _engine(method="cp-lrp")),
        Method("deep-taylor-neuron", "Deep Taylor, biases keep", _engine(bias="neuron")),
        Method("deep-taylor-spread", "Deep Taylor, biases spread", _engine(bias="spread")),
        Method("lrp-alpha2beta1", "LRP, alpha 2, beta 1", _engine(rules={"*": AlphaBeta(2, 1)})),
        Method("lrp-epsilon", "LRP, epsilon 0.25", _engine(rules={"*": Epsilon(0.25)})),
        Method("sensitivity", "Sensitivity", _sensitivity),
        Method("taylor", "Taylor at the nearest root", _taylor),
    )
}
USUAL = ("deep-taylor", "deep-taylor-spread", "lrp-alpha2beta1", "sensitivity")  # those that take about a second


def method(key: str) -> Method:
    """A method by name."""
    if key not in METHODS:
        raise InputError(f"no method is called {key!r}. There are: {', '.join(METHODS)}.")
    return METHODS[key]


def likeness(a: Heat, b: Heat) -> float | None:
    """Spearman's rank correlation of two heatmaps: 1 where they order the pixels alike; None where one is constant.

    >>> likeness(np.array([0.0, 1.0, 2.0]), np.array([0.0, 5.0, 9.0]))
    1.0
    """
    found = float(rank_correlation(a[None], b[None])[0, 0])
    return None if np.isnan(found) else round(found, 12)


def rank_correlation(heats: Heat, others: Heat) -> npt.NDArray[np.float64]:
    """Spearman's correlation of each of N maps (rows) with each of M others (columns); NaN for a constant map."""
    a, b = (np.stack([_standard_ranks(heat) for heat in some]) for some in (heats, others))
    found: npt.NDArray[np.float64] = a @ b.T
    return found


def _standard_ranks(heat: Heat) -> npt.NDArray[np.float64]:
    """Places in order, equal values sharing the mean of theirs; with mean 0 and length 1."""
    _, where, counts = np.unique(heat.ravel(), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    ranks -= ranks.mean()
    length = float(np.linalg.norm(ranks))
    return ranks / (length or np.nan)
