"""Every heatmapping method of the paper's MNIST experiments, on the same held-out pairs (sections III-C and IV-C).

    one-layer    sensitivity   Taylor   deep Taylor: w², zB                       LRP: α1β0, α2β1, ε = 10
    two-layer    sensitivity   Taylor   deep Taylor: min-max, training-free       LRP: α1β0, α2β1, ε = 3

`explain_all` computes each once, in float64, and keeps it as float32 in a file (`Saved`). A method is prepared first,
then timed on all pairs at once, beside the forward and backward passes of the network on the same pairs.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.domain import find_bounds
from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.bundle import project
from deeptaylor.methods.relevance_fit import explain as explain_through
from deeptaylor.methods.relevance_model import MinMaxModel
from deeptaylor.methods.root_search import Root
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.paper_networks import (
    BOX,
    PAPER_NETWORKS,
    RELEVANCE_MODELS,
    TWO_LAYER,
    OneLayer,
    TwoLayer,
    load_network,
)
from deeptaylor.paper import measures, overview
from deeptaylor.paper import mnist_statements as statements
from deeptaylor.paper.digit_pairs import BLACK, TRAIN_SHIFT, WHITE, Digits, Pairs, held_out_pairs, training_pairs
from deeptaylor.paper.experiment import Arrays, Saved, Talk, digest
from deeptaylor.paper.global_search import search_globally
from deeptaylor.paper.relevance_training import compute_samples, estimate_gradient, train
from deeptaylor.paper.training import evaluate
from deeptaylor.rules import Rule

LEVEL = 0.1
SEEDS = (0, 1, 2)  # of the search for a root, where f is not convex
SHOWN = 40  # pairs whose roots are searched for with all seeds: those of the figures are among them
THOROUGH = 3  # times as many starts has the search that judges it, on a few pairs
SPREAD = 8  # starts in a convex f, of which every one finds the same root
REPEATS = 3
SOME = 20
AT_ONCE = 1000  # pairs that a network sees at once

Tell = Callable[[int, int], None]
Run = Callable[[Tensor, Tell], Mapping[str, Tensor]]


class MnistError(DeepTaylorError, ValueError):
    """The experiments cannot be made as asked."""


@dataclass(frozen=True)
class MnistEffort:
    """How many pairs are explained, and how much is spent on what is measured on fewer of them."""

    pairs: int = 500
    roots: int = 100  # pairs whose neurons' roots are measured
    restarts: int = 25  # pairs on which searches are begun elsewhere
    seeds: int = 3
    fit_steps: int = 2000  # of each of two min-max models
    held_out: int = 20_000  # pairs that the quality is measured on
    gradient: int = 20_000  # training pairs of the gradient of the min-max model


FULL = MnistEffort()
QUICK = MnistEffort(pairs=40, roots=4, restarts=3, seeds=2, fit_steps=20, held_out=200, gradient=200)


@dataclass(frozen=True)
class DigitNetwork:
    """A network, as it is explained: in float64.

    models   relevance models of the two-layer network, by name: "min-max" and "min-max-guided"
    """

    name: str
    network: nn.Module
    models: Mapping[str, MinMaxModel] = field(default_factory=dict)

    def digest(self, *models: str) -> str:
        """A hash of the network's weights, and of those of some relevance models."""
        return digest(self.network, *[self.models[name] for name in models])


@dataclass(frozen=True)
class DigitMethod:
    """A way to make heatmaps. `prepare` returns what turns images into arrays; "maps" is one of them."""

    key: str
    title: str
    formula: str  # in matplotlib's mathematics, for figures
    prepare: Callable[[DigitNetwork], Run]
    deep_taylor: bool = False
    model: str = ""  # the relevance model that it needs
    slow: bool = False  # explains only the first SOME pairs of an untrained network


def _sensitivity(case: DigitNetwork) -> Run:
    """Squared gradients, all scaled by one factor, such that all maps together hold all scores together.

    One factor a map would put every point of the scatter plot onto the diagonal, and say nothing.
    """

    def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
        e = dt.sensitivity(case.network, x)
        total = float(e.relevance.sum())
        return {"maps": e.relevance * (float(e.score.clamp(min=0).sum()) / total if total else 0.0)}

    return run


def _taylor(case: DigitNetwork) -> Run:
    """Taylor decomposition at the nearest root that was found.

    f of the one-layer network is convex, and one search finds the nearest root; that of the two-layer network is not,
    and the nearest of the roots found from many starts is taken: for the first SHOWN pairs with every seed, each search
    beginning at the roots of the one before it as well.
    """

    def expand(x: Tensor, root: Root) -> dict[str, Tensor]:
        maps = dt.taylor(case.network, x, root=root).relevance
        return {"maps": maps, "distance": root.distance, "found": root.converged, "evaluations": root.iterations}

    def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
        if case.name == "one-layer":
            return expand(x, dt.nearest_root(case.network, x, domain=BOX, level=LEVEL, progress=tell))
        parts = []
        for some, seeds in ((x[:SHOWN], SEEDS), (x[SHOWN:], SEEDS[:1])):
            if not len(some):
                continue
            root = search_globally(case.network, some, level=LEVEL, domain=BOX, seed=seeds[0], tell=tell)
            for seed in seeds[1:]:
                known = root.point[None]
                root = search_globally(case.network, some, level=LEVEL, domain=BOX, seed=seed, known=known, tell=tell)
            parts.append(expand(some, root))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return run


def _rules(**settings: Any) -> Callable[[DigitNetwork], Run]:
    def prepare(case: DigitNetwork) -> Run:
        explainer = dt.Explainer(case.network, _example(case.network), domain=BOX, method="paper", **settings)
        return lambda x, tell: {"maps": explainer.explain(x).relevance}

    return prepare


def _lrp(rule: dt.rules.Rule) -> Callable[[DigitNetwork], Run]:
    """The same rule in every detection layer; sums hand on in proportion."""
    return _rules(rules={"detection*": rule})


def _min_max(name: str) -> Callable[[DigitNetwork], Run]:
    """z⁺ above, then the relevance model, decomposed with the zB rule."""

    def prepare(case: DigitNetwork) -> Run:
        model, network = case.models[name], case.network
        explainer = dt.Explainer(network, _example(network), domain=BOX, method="paper")

        def run(x: Tensor, tell: Tell) -> Mapping[str, Tensor]:
            e = explain_through(model, explainer, paper_networks.TWO_LAYER, x, dt.rules.ZBox(BLACK, WHITE))
            return {"maps": e.relevance, "predicted": e.predicted}

        return run

    return prepare


_SENSITIVITY = DigitMethod("sensitivity", "Sensitivity (rescaled)", "Sensitivity (rescaled)", _sensitivity)
_TAYLOR = DigitMethod("taylor", "Taylor (nearest root)", "Taylor (nearest root)", _taylor, slow=True)
_ALPHA1 = DigitMethod(
    "alpha1beta0", "LRP (α = 1, β = 0)", r"LRP ($\alpha=1,\ \beta=0$)", _lrp(dt.rules.AlphaBeta(1, 0))
)
_ALPHA2 = DigitMethod(
    "alpha2beta1", "LRP (α = 2, β = 1)", r"LRP ($\alpha=2,\ \beta=1$)", _lrp(dt.rules.AlphaBeta(2, 1))
)


def _epsilon(epsilon: int) -> DigitMethod:
    return DigitMethod(
        "epsilon", f"LRP (ε = {epsilon})", rf"LRP ($\epsilon={epsilon}$)", _lrp(dt.rules.Epsilon(epsilon))
    )


METHODS: Mapping[str, tuple[DigitMethod, ...]] = {
    "one-layer": (
        _SENSITIVITY,
        _TAYLOR,
        DigitMethod("w2", "Deep Taylor (w²)", "Deep Taylor ($w^2$)", _rules(first=dt.rules.WSquare()), True),
        DigitMethod("zB", "Deep Taylor (zB)", r"Deep Taylor ($z^\mathcal{B}$)", _rules(), True),
        _ALPHA1,
        _ALPHA2,
        _epsilon(10),
    ),
    "two-layer": (
        _SENSITIVITY,
        _TAYLOR,
        DigitMethod("min-max", "Deep Taylor (min-max)", "Deep Taylor (min-max)", _min_max("min-max"), model="min-max"),
        DigitMethod("training-free", "Deep Taylor (training-free)", "Deep Taylor (training-free)", _rules(), True),
        DigitMethod(
            "min-max-guided",
            "Deep Taylor (min-max, our training)",
            "Deep Taylor (min-max, ours)",
            _min_max("min-max-guided"),
            model="min-max-guided",
        ),
        _ALPHA1,
        _ALPHA2,
        _epsilon(3),
    ),
}


def load_networks(weights: Path | None = None) -> dict[str, DigitNetwork]:
    """Both networks with their trained weights: those shipped, or those of a folder."""

    def file(name: str) -> Path | None:
        return None if weights is None else weights / f"{name}.safetensors"

    cases = {name: DigitNetwork(name, load_network(name, file(name)).double()) for name in PAPER_NETWORKS}
    models = {name: paper_networks.load_relevance_model(file(name), name).double() for name in RELEVANCE_MODELS}
    return cases | {"two-layer": DigitNetwork("two-layer", cases["two-layer"].network, models)}


def explain_all(cases: Mapping[str, DigitNetwork], pairs: Pairs, saved: Saved) -> dict[str, dict[str, Arrays]]:
    """Maps of every method on every pair, and the shares that an untrained network's maps have on the target.

    Of a method: "maps" (N, 28, 56), "score" (N,), "seconds", "gradient_seconds", what else it returns, and
    "untrained_half", "untrained_ink" (N,), from the same network before its training.
    """
    x = pairs.images.double()
    common = {"pairs": digest(pairs.images), "version": dt.__version__, "level": LEVEL, "seeds": SEEDS}
    found: dict[str, dict[str, Arrays]] = {}
    for name, case in cases.items():
        untrained = DigitNetwork(name, PAPER_NETWORKS[name](seed=0).double())
        found[name] = {}
        for method in METHODS[name]:
            weights = case.digest(*([method.model] if method.model else []))
            settings = common | {"network": weights, "method": f"{name} {method.title}"}
            arrays = saved.get(f"{name}-{method.key}", settings, _explaining(case, method, x, saved.talk))
            found[name][method.key] = arrays
            if not method.model:
                settings |= {"network": untrained.digest()}
                extra = saved.get(
                    f"{name}-{method.key}-untrained", settings, _untrained(untrained, method, x, pairs, saved.talk)
                )
                arrays |= {f"untrained_{key}": value for key, value in extra.items()}
    return found


def _explaining(case: DigitNetwork, method: DigitMethod, x: Tensor, talk: Talk) -> Callable[[], Arrays]:
    return lambda: _timed(case, method, x, talk)


def _untrained(case: DigitNetwork, method: DigitMethod, x: Tensor, pairs: Pairs, talk: Talk) -> Callable[[], Arrays]:
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


def _timed(case: DigitNetwork, method: DigitMethod, x: Tensor, talk: Talk) -> Arrays:
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


def _teller(talk: Talk, method: DigitMethod) -> Tell:
    return lambda done, of: talk.share(f"  {method.title}", done, of)


SHARPNESS = 10.0  # t of the smooth detection function
_ACTIVE = 1e-6  # a neuron below this share of the strongest one has a root too near to divide by its distance


def measure_properties(
    cases: Mapping[str, DigitNetwork],
    digits: Digits,
    pairs: Pairs,
    maps: Mapping[str, Mapping[str, Arrays]],
    effort: MnistEffort,
    saved: Saved,
) -> dict[str, Arrays]:
    """What is measured beside the maps: roots, restarts, refits, the true R_k, the quality of the networks."""
    talk = saved.talk
    scores = [next(iter(methods.values()))["score"] for methods in maps.values()]
    good = torch.from_numpy((pairs.side.numpy() >= 0) & np.all([f > 0 for f in scores], axis=0))
    if not bool(good.any()):
        raise MnistError("No pair with a target digit has a positive score from both networks: are they trained?")
    x = pairs.images[good].double()
    few, many = x[: effort.restarts], x[: effort.roots]
    one, two = cases["one-layer"], cases["two-layer"]
    assert isinstance(one.network, OneLayer)
    assert isinstance(two.network, TwoLayer)
    model = two.models["min-max"]
    below, above = one.network.detection, two.network.detection2
    with torch.no_grad():
        features = two.network.features(many)
    box, real, rules = BOX, dt.Real(), dt.rules
    extra: dict[str, Arrays] = {}

    def keep(name: str, case: DigitNetwork, at: Tensor, make: Any, **settings: object) -> None:
        weights = case.digest(*(("min-max",) if name == "overview-two-layer" else ()))
        known = {"network": weights, "at": digest(at), "version": dt.__version__} | settings
        extra[name] = saved.get(name, known, make)

    w2, zb, flat = rules.WSquare(), rules.ZBox(BOX.low, BOX.high), many.flatten(1)
    keep("roots-w2", one, many, lambda: per_neuron(w2, below, flat, real, talk))
    keep("roots-w2-in-box", one, many, lambda: per_neuron(w2, below, flat, box, talk))
    keep("roots-zB", one, many, lambda: per_neuron(zb, below, flat, box, talk))
    keep("roots-zplus", two, many, lambda: _zplus(above, features, talk))
    positive = dt.NonNegative()
    keep("roots-w2-positive", two, many, lambda: per_neuron(w2, above, features, positive, talk))
    keep("one-layer-beyond", one, many, lambda: beyond(below, flat, BOX))
    shown = overview.choose_pair(pairs, torch.from_numpy(np.stack(scores)))
    picture = pairs.images[shown : shown + 1].double()
    keep("overview-one-layer", one, picture, lambda: overview.compute_one_layer(one.network, picture, LEVEL))
    keep(
        "overview-two-layer",
        two,
        picture,
        lambda: overview.compute_two_layer(two.network, model, picture),
    )
    for case in cases.values():
        keep(
            f"{case.name}-restarts",
            case,
            few,
            lambda case=case: restarts(case, few, effort.seeds, talk),
            seeds=effort.seeds,
        )
        keep(f"{case.name}-smooth", case, few, lambda case=case: smooth(case, few))
        for name, shift in (("held_out", 0), ("moved", TRAIN_SHIFT)):
            keep(
                f"{case.name}-quality-{name}",
                case,
                torch.tensor([effort.held_out, shift]),
                lambda case=case, shift=shift: _evaluate(
                    case, held_out_pairs(digits, effort.held_out, max_shift=shift)
                ),
                digits=digest(torch.from_numpy(digits.test_images.copy())),
                shift=shift,
            )
        keep(
            f"{case.name}-silent",
            case,
            torch.tensor([effort.held_out, 0]),
            lambda case=case: count_silent(case, held_out_pairs(digits, effort.held_out)),
            digits=digest(torch.from_numpy(digits.test_images.copy())),
        )
        keep(
            f"{case.name}-quality-shown",
            case,
            pairs.images,
            lambda case=case: _evaluate(case, pairs),
            target=digest(pairs.target),
        )
    point = torch.from_numpy(extra["one-layer-restarts"]["point"])
    network = one.network
    keep("one-layer-real", one, few, lambda: unbounded(network, few))
    keep("one-layer-kinks", one, few, lambda: kinks(network, few))
    keep("one-layer-certified", one, point, lambda: certified(network, few, point, talk))
    keep(
        "two-layer-refits",
        two,
        few,
        lambda: refits(two, digits, few, effort.fit_steps, talk),
        steps=effort.fit_steps,
    )
    before = OneLayer(seed=0).double()
    keep("one-layer-garson", one, many, lambda: statements.compare_with_garson(network, before, many))
    keep("one-layer-reuse", one, many, lambda: statements.reuse_matrices(network, before, many, BOX))
    above_network = two.network
    keep(
        "two-layer-context",
        two,
        few,
        lambda: statements.follow_context(above_network, model, few, BOX),
        model=two.digest("min-max"),
    )
    keep(
        "two-layer-gradient",
        two,
        torch.tensor([effort.gradient]),
        lambda: _estimate_gradient(two, digits, effort.gradient),
        model=two.digest("min-max"),
        digits=digest(torch.from_numpy(digits.train_images.copy())),
    )
    keep("two-layer-layers", two, many, lambda: statements.follow_layers(above_network, many, BOX))
    for case in cases.values():
        keep(f"{case.name}-box", case, many, lambda case=case: statements.widen_box(case.network, many, BOX))
    keep("two-layer-relevance", two, pairs.images, lambda: _true_relevance(two, pairs))
    return extra


def _zplus(layer: torch.nn.Linear, features: Tensor, talk: Talk) -> Arrays:
    return per_neuron(dt.rules.ZPlus(), layer, features, dt.NonNegative(), talk)


def _true_relevance(case: DigitNetwork, pairs: Pairs) -> Arrays:
    """R_k of the pooled units, with z⁺ above."""
    x = pairs.images.double()
    R_k = dt.Explainer(case.network, x[:2], domain=BOX, method="paper").relevance_at(TWO_LAYER.pooled, x)
    return {"R_k": R_k.numpy()}


def _estimate_gradient(case: DigitNetwork, digits: Digits, count: int) -> Arrays:
    """The gradient of the min-max model's loss over training pairs, other ones than it learned from."""
    network, model = copy.deepcopy(case.network).float(), copy.deepcopy(case.models["min-max"]).float()
    assert isinstance(network, TwoLayer)
    pairs = training_pairs(digits, count, seed=1, max_shift=TRAIN_SHIFT)
    found = estimate_gradient(model, compute_samples(network, pairs.images))
    return {name: np.array(value) for name, value in found.items()}


def _evaluate(case: DigitNetwork, pairs: Pairs) -> Arrays:
    found = evaluate(copy.deepcopy(case.network).float(), pairs)
    return {key: np.array(value) for key, value in found.items()} | {"pairs": np.array(len(pairs))}


@torch.no_grad()
def count_silent(case: DigitNetwork, pairs: Pairs) -> Arrays:
    """Count the detection units of each layer that fire for none of these pairs: "silent" and "units" (layers,)."""
    network = copy.deepcopy(case.network).float()
    fired: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            now = (output > 0).any(0)
            fired[name] = fired[name] | now if name in fired else now

        return hook

    for name, module in network.named_modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(note(name))
    for images in pairs.images.float().split(AT_ONCE):
        network(images)
    return {
        "silent": np.array([int((~f).sum()) for f in fired.values()]),
        "units": np.array([len(f) for f in fired.values()]),
    }


@torch.no_grad()
def per_neuron(rule: Rule, layer: nn.Linear, x: Tensor, domain: dt.Domain, talk: Talk) -> Arrays:
    """Root distances of every active neuron for every row of x (N, d): the rule's over the nearest in the domain.

    "ratio": one number per neuron; "outside": whether the rule's root lies outside of the domain.
    """
    W, b = layer.weight, layer.bias
    low, high = find_bounds(domain, x[:1])
    ratios, outside = [], []
    for k, point in enumerate(x.split(1)):
        z = point @ W.T + b
        active = torch.nonzero(z[0] > _ACTIVE * z.max().clamp(min=1e-12)).flatten()
        if not len(active):
            continue
        w = W[active]
        root = dt.root_point(rule, w.T, b[active], point[0], domain if isinstance(rule, dt.rules.ZBox) else None)
        n = len(active)
        nearest, _ = project(point.expand(n, -1), w[:, None], -b[active, None], low.expand(n, -1), high.expand(n, -1))
        ratios.append(_distance(root.point, point) / _distance(nearest, point))
        outside.append(((root.point < low - 1e-9) | (root.point > high + 1e-9)).any(1))
        talk.share(f"  roots of neurons, {rule}", k + 1, len(x))
    return {
        "ratio": torch.cat(ratios).numpy() if ratios else np.zeros(0),
        "outside": torch.cat(outside).numpy() if outside else np.zeros(0, dtype=bool),
    }


@torch.no_grad()
def beyond(layer: nn.Linear, x: Tensor, box: dt.Box) -> Arrays:
    """The share of negative relevance by the rules w² and zB where pixels leave the box: x is doubled.

    Written out, because an explainer refuses such inputs.
    """
    W, b, x = layer.weight, layer.bias, 2 * x
    low, high = find_bounds(box, x[:1])
    R_j = (x @ W.T + b).clamp(min=0)
    found = {}
    for name in ("w2", "zB"):
        negative = total = 0.0
        for point, R in zip(x, R_j, strict=True):
            q = W.square() if name == "w2" else W * point - low * W.clamp(min=0) - high * W.clamp(max=0)
            R_i = (q / q.sum(1, keepdim=True) * R[:, None]).sum(0)
            negative += float(R_i.clamp(max=0).abs().sum())
            total += float(R_i.abs().sum())
        found[name] = np.array(negative / total if total else 0.0)
    return found


def unbounded(network: OneLayer, x: Tensor) -> Arrays:
    """Whether a nearest root was found in ℝᵈ, for each image; and in the box, for comparison."""
    return {
        name: dt.nearest_root(network, x, domain=domain, level=LEVEL).converged.numpy()
        for name, domain in (("real", dt.Real()), ("box", BOX))
    }


def certified(network: OneLayer, x: Tensor, found: Tensor, talk: Talk, cuts: int = 40) -> Arrays:
    """A distance below which x (N, 1, 28, 56) has no root, where f is convex: f = Σ_j max(0, ·) is.

    Every tangent of f lies below f, so that a root satisfies g·ξ ≤ c for the tangents at any points; multipliers of
    these inequalities prove a distance, however they were found (weak duality). Tangents are taken where the nearest
    point that satisfies those before it is, beginning at the roots that were found.
    """
    a, low, high = x.flatten(1), *find_bounds(BOX, x.flatten(1))
    goal = LEVEL * network(x).detach()
    G, e = a.new_zeros(len(a), cuts, a.shape[1]), a.new_zeros(len(a), cuts)
    best, guess = a.new_zeros(len(a)), a.new_zeros(len(a), cuts)
    y = found.flatten(1)
    for k in range(cuts):
        xi = y.detach().reshape(x.shape).requires_grad_()
        f = network(xi)
        (gradient,) = torch.autograd.grad(f.sum(), xi)
        G[:, k] = gradient.flatten(1)
        e[:, k] = goal - f.detach() + (G[:, k] * y).sum(1)
        with torch.no_grad():
            y, guess = project(a, G, e, low, high, guess)
            violation = torch.bmm(G, y[:, :, None])[:, :, 0] - e
            dual = 0.5 * (y - a).square().sum(1) + (guess.clamp(min=0) * violation).sum(1)
            best = torch.maximum(best, (2 * dual.clamp(min=0)).sqrt())
        talk.share("  lower bounds of distances", k + 1, cuts)
    return {"least": best.numpy(), "found": _distance(found.flatten(1), a).numpy()}


def restarts(case: DigitNetwork, x: Tensor, seeds: int, talk: Talk) -> Arrays:
    """Taylor decomposition from x alone, and from the best of many starts, for several seeds.

    "alone" (N,), "distance" (seeds, N); "spread" (pairs of seeds, N) between the maps; "point" (N, …): the roots found
    from x alone; "thorough" (N,): the distance of the nearest root that a search from more places finds, beginning at
    the roots of all seeds as well, where f is not convex. (`certified` judges the one-layer network.)
    """
    alone = dt.nearest_root(case.network, x, domain=BOX, level=LEVEL)
    roots = []
    for seed in range(seeds):

        def tell(done: int, of: int, seed: int = seed) -> None:
            talk.share(f"  restarts, seed {seed}", done, of)

        if case.name == "one-layer":
            root = dt.nearest_root(case.network, x, domain=BOX, level=LEVEL, starts=SPREAD, seed=seed, progress=tell)
        else:
            root = search_globally(case.network, x, level=LEVEL, domain=BOX, seed=seed, tell=tell)
        roots.append(root)
    maps = [dt.taylor(case.network, x, root=root).relevance[:, 0].numpy() for root in roots]
    distances = np.stack([root.distance.numpy() for root in roots])
    nearest = distances.min(0)
    if case.name != "one-layer":
        judge = search_globally(
            case.network, x, level=LEVEL, domain=BOX, seed=seeds, more=THOROUGH,
            known=torch.stack([root.point for root in roots]),
            tell=lambda done, of: talk.share("  the judge", done, of),
        )  # fmt: skip
        nearest = np.minimum(nearest, judge.distance.numpy())
    return {
        "alone": alone.distance.numpy(),
        "thorough": nearest,
        "distance": distances,
        "spread": np.stack([measures.spread(R, S) for R, S in itertools.combinations(maps, 2)]),
        "point": alone.point.numpy(),
    }


@torch.no_grad()
def kinks(network: OneLayer, x: Tensor) -> Arrays:
    """What the gradient at a kink decides: Σ R / f of three expansions at the same nearest roots, (3, N).

    With the gradient a little beyond the root, with the subgradient of a nearest root, and with the gradient a little
    before it. "units": how many detection units have their kink at the root.
    """
    root = dt.nearest_root(network, x, domain=BOX, level=LEVEL)
    away, f = x - root.point, network(x)
    z = network.detection(root.point.flatten(1)).abs()
    gradients = []
    for side in (-1e-6, 1e-6):
        with torch.enable_grad():
            at = (root.point + side * away).requires_grad_()
            gradients.append(torch.autograd.grad(network(at).sum(), at)[0])
    shares = [(g * away).flatten(1).sum(1) / f for g in (gradients[0], root.gradient, gradients[1])]
    return {"shares": torch.stack(shares).numpy(), "units": (z < 1e-6 * z.amax(1, keepdim=True)).sum(1).numpy()}


def refits(case: DigitNetwork, digits: Digits, x: Tensor, steps: int, talk: Talk) -> Arrays:
    """The spread between the maps of two min-max models, trained plainly, with other starts and pairs."""
    network = case.network
    assert isinstance(network, TwoLayer)
    explainer = paper_networks.two_layer_explainer(network)

    def maps(model: Any) -> measures.Array:
        e = explain_through(model, explainer, paper_networks.TWO_LAYER, x, dt.rules.ZBox(BOX.low, BOX.high))
        relevance: measures.Array = e.relevance[:, 0].numpy()
        return relevance

    narrow = copy.deepcopy(network).float()
    fitted = []
    for seed in (1, 2):

        def tell(step: int, loss: float, seed: int = seed) -> None:
            talk.share(f"  fitting a min-max model, seed {seed}", step, steps)

        model = train(narrow, digits, training="plain", begin="random", seed=seed, steps=steps, progress=tell)
        fitted.append(maps(model.double()))
    return {"spread": measures.spread(*fitted)}


def smooth(case: DigitNetwork, x: Tensor) -> Arrays:
    """Taylor maps of the network with the smooth detection function, and its scores."""
    network = dt.smoothed(case.network, SHARPNESS)
    root = dt.nearest_root(network, x, domain=BOX, level=LEVEL)
    e = dt.taylor(network, x, root=root)
    return {"maps": e.relevance[:, 0].numpy(), "score": e.score.numpy()}


def _distance(a: Tensor, b: Tensor) -> Tensor:
    distance: Tensor = torch.linalg.vector_norm(a - b, dim=1)
    return distance
