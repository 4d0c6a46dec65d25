"""Every heatmapping method of the paper's MNIST experiments, on the same held-out pairs (sections III-C and IV-C).

    one-layer    sensitivity   Taylor   deep Taylor: w², zB                       LRP: α1β0, α2β1, ε = 10
    two-layer    sensitivity   Taylor   deep Taylor: min-max, training-free       LRP: α1β0, α2β1, ε = 3

`explain_all` computes each once, in float64, and keeps it as float32 in a file (saved.py). A method is prepared first,
then timed on all pairs at once, beside the forward and backward passes of the network on the same pairs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.methods.relevance_samples import explain as explain_through
from deeptaylor.models.networks import min_max
from deeptaylor.models.networks.detection_pooling import NETWORKS, load
from deeptaylor.paper import measures
from deeptaylor.paper.data.pairs import BLACK, WHITE, Pairs
from deeptaylor.paper.saved import Arrays, Saved, Talk, digest

__all__ = [
    "BOX",
    "LEVEL",
    "METHODS",
    "STARTS",
    "Case",
    "Method",
    "explain_all",
    "gradient_seconds",
    "load_cases",
    "shares",
]

BOX = dt.Box(BLACK, WHITE)
LEVEL = 0.1
STARTS = 4  # of the search for a root, where f is not convex
REPEATS = 3
SOME = 200

Tell = Callable[[int, int], None]
Run = Callable[[Tensor, Tell], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Case:
    """A network, as it is explained: in float64. `relevance_model` is the min-max model of the two-layer network."""

    name: str
    network: nn.Module
    relevance_model: MinMaxModel | None = None

    def digest(self, *, relevance_model: bool = False) -> str:
        """A hash of the network's weights, and of its relevance model's where that counts."""
        model = self.relevance_model if relevance_model else None
        return digest(self.network, *([] if model is None else [model]))


@dataclass(frozen=True)
class Method:
    """A way to make heatmaps. `prepare` returns what turns images into arrays; "maps" is one of them."""

    key: str
    title: str
    formula: str  # in matplotlib's mathematics, for figures
    prepare: Callable[[Case], Run]
    deep_taylor: bool = False
    trained: bool = False  # needs a relevance model
    slow: bool = False  # explains only the first SOME pairs of an untrained network


def _sensitivity(case: Case) -> Run:
    """Squared gradients, all scaled by one factor, such that all maps together hold all scores together.

    One factor a map would put every point of the scatter plot onto the diagonal, and say nothing.
    """

    def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
        e = dt.sensitivity(case.network, x)
        total = float(e.relevance.sum())
        return {"maps": e.relevance * (float(e.score.clamp(min=0).sum()) / total if total else 0.0)}

    return run


def _taylor(case: Case) -> Run:
    """Taylor decomposition at the nearest root that was found.

    f of the one-layer network is convex, and one search finds the nearest root; that of the two-layer network is not,
    and the nearest of the roots found from several starts is taken.
    """
    starts = 1 if case.name == "one-layer" else STARTS

    def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
        root = dt.nearest_root(case.network, x, domain=BOX, level=LEVEL, starts=starts, progress=tell)
        maps = dt.taylor(case.network, x, root=root).relevance
        return {"maps": maps, "distance": root.distance, "found": root.converged, "evaluations": root.iterations}

    return run


def _rules(**settings: Any) -> Callable[[Case], Run]:
    def prepare(case: Case) -> Run:
        explainer = dt.Explainer(case.network, _example(case.network), domain=BOX, **{"bias": "neuron", **settings})
        return lambda x, tell: {"maps": explainer.explain(x).relevance}

    return prepare


def _lrp(rule: dt.rules.Rule) -> Callable[[Case], Run]:
    """The same rule in every detection layer; sums hand on in proportion."""
    return _rules(rules={"detection*": rule})


def _min_max(case: Case) -> Run:
    """z⁺ above, then the relevance model, decomposed with the zB rule."""
    model, network = case.relevance_model, case.network
    assert model is not None
    explainer = dt.Explainer(network, _example(network), domain=BOX, bias="neuron")

    def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
        e = explain_through(model, explainer, min_max.TWO_LAYER, x, dt.rules.ZBox(BLACK, WHITE))
        return {"maps": e.relevance, "predicted": e.predicted}

    return run


_SENSITIVITY = Method("sensitivity", "Sensitivity (rescaled)", "Sensitivity (rescaled)", _sensitivity)
_TAYLOR = Method("taylor", "Taylor (nearest root)", "Taylor (nearest root)", _taylor, slow=True)
_ALPHA1 = Method("alpha1beta0", "LRP (α = 1, β = 0)", r"LRP ($\alpha=1,\ \beta=0$)", _lrp(dt.rules.AlphaBeta(1, 0)))
_ALPHA2 = Method("alpha2beta1", "LRP (α = 2, β = 1)", r"LRP ($\alpha=2,\ \beta=1$)", _lrp(dt.rules.AlphaBeta(2, 1)))


def _epsilon(epsilon: int) -> Method:
    return Method("epsilon", f"LRP (ε = {epsilon})", rf"LRP ($\epsilon={epsilon}$)", _lrp(dt.rules.Epsilon(epsilon)))


METHODS: Mapping[str, tuple[Method, ...]] = {
    "one-layer": (
        _SENSITIVITY,
        _TAYLOR,
        Method("w2", "Deep Taylor (w²)", "Deep Taylor ($w^2$)", _rules(first=dt.rules.WSquare()), True),
        Method("zB", "Deep Taylor (zB)", r"Deep Taylor ($z^\mathcal{B}$)", _rules(), True),
        _ALPHA1,
        _ALPHA2,
        _epsilon(10),
    ),
    "two-layer": (
        _SENSITIVITY,
        _TAYLOR,
        Method("min-max", "Deep Taylor (min-max)", "Deep Taylor (min-max)", _min_max, trained=True),
        Method("training-free", "Deep Taylor (training-free)", "Deep Taylor (training-free)", _rules(), True),
        _ALPHA1,
        _ALPHA2,
        _epsilon(3),
    ),
}


def load_cases(weights: Path | None = None) -> dict[str, Case]:
    """Both networks with their trained weights: those shipped, or those of a folder."""

    def file(name: str) -> Path | None:
        return None if weights is None else weights / f"{name}.safetensors"

    cases = {name: Case(name, load(name, file(name)).double()) for name in NETWORKS}
    model = min_max.load(file("min-max")).double()
    return cases | {"two-layer": Case("two-layer", cases["two-layer"].network, model)}


def explain_all(cases: Mapping[str, Case], pairs: Pairs, saved: Saved) -> dict[str, dict[str, Arrays]]:
    """Maps of every method on every pair, and the shares that an untrained network's maps have on the target.

    Of a method: "maps" (N, 28, 56), "score" (N,), "seconds", "gradient_seconds", what else it returns, and
    "untrained_half", "untrained_ink" (N,), from the same network before its training.
    """
    x = pairs.images.double()
    common = {"pairs": digest(pairs.images), "version": dt.__version__, "level": LEVEL, "starts": STARTS}
    found: dict[str, dict[str, Arrays]] = {}
    for name, case in cases.items():
        untrained = Case(name, NETWORKS[name](seed=0).double())
        found[name] = {}
        for method in METHODS[name]:
            weights = case.digest(relevance_model=method.trained)
            settings = common | {"network": weights, "method": f"{name} {method.title}"}
            arrays = saved.get(f"{name}-{method.key}", settings, _explaining(case, method, x, saved.talk))
            found[name][method.key] = arrays
            if not method.trained:
                settings |= {"network": untrained.digest()}
                extra = saved.get(
                    f"{name}-{method.key}-untrained", settings, _untrained(untrained, method, x, pairs, saved.talk)
                )
                arrays |= {f"untrained_{key}": value for key, value in extra.items()}
    return found


def _explaining(case: Case, method: Method, x: Tensor, talk: Talk) -> Callable[[], Arrays]:
    return lambda: _timed(case, method, x, talk)


def _untrained(case: Case, method: Method, x: Tensor, pairs: Pairs, talk: Talk) -> Callable[[], Arrays]:
    """Shares on the target; NaN for pairs that are left out."""

    def make() -> Arrays:
        some = x[:SOME] if method.slow else x
        maps = np.full((len(x), *x.shape[2:]), np.nan, dtype=np.float32)
        maps[: len(some)] = _float32(method.prepare(case)(some, _teller(talk, method))["maps"])
        return shares(maps, pairs)

    return make


def shares(maps: measures.Array, pairs: Pairs) -> Arrays:
    """The share of each map's positive relevance on the target digit's half, and on its ink; NaN without a target."""
    there = pairs.side.numpy() >= 0
    return {
        "half": np.where(there, measures.on(maps, pairs.target_half().numpy()[:, 0]), np.nan),
        "ink": np.where(there, measures.on(maps, pairs.target_ink().numpy()[:, 0]), np.nan),
    }


def _timed(case: Case, method: Method, x: Tensor, talk: Talk) -> Arrays:
    """One method's arrays, and the processor time it took, beside that of the network's gradients right before.

    Processor time: other programs do not change it much.
    """
    run, tell = method.prepare(case), _teller(talk, method)
    gradient = gradient_seconds(case.network, x)
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < 2:
        began = time.process_time()
        found = run(x, tell)
        times.append(time.process_time() - began)
    with torch.no_grad():
        score = case.network(x)
    return {key: _float32(value) for key, value in found.items()} | {
        "score": score.numpy(),
        "seconds": np.array(statistics.median(times)),
        "gradient_seconds": np.array(gradient),
    }


def gradient_seconds(network: nn.Module, x: Tensor) -> float:
    """How long one forward and backward pass of these images takes: the median of a few."""
    times = []
    for _ in range(REPEATS + 2):
        began = time.process_time()
        xi = x.clone().requires_grad_()
        torch.autograd.grad(network(xi).sum(), xi)
        times.append(time.process_time() - began)
    return statistics.median(times)


def _example(network: nn.Module) -> Tensor:
    return torch.zeros(2, 1, 28, 56, dtype=next(network.parameters()).dtype)


def _float32(value: Tensor) -> Any:
    """An array to keep; maps (N, 1, 28, 56) lose their channel."""
    array = value.detach().numpy()
    array = array[:, 0] if array.ndim == 4 else array
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _teller(talk: Talk, method: Method) -> Tell:
    return lambda done, of: talk.share(f"  {method.title}", done, of)
