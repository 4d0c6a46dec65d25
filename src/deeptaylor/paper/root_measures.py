"""The properties of roots and of solutions, measured: nearest, unique, positive where f is smooth (both tables).

per_neuron    the root of each detection neuron that a rule expands at, over the nearest one there is in the domain
certified     how far the nearest root must at least be, for convex f: no search can do better
restarts      the maps of Taylor decomposition from searches that begin elsewhere
beyond        what the zB rule does to inputs outside of its box
unbounded     whether roots are found where pixels may have any value
refits        the maps of min-max models that were trained on other pairs
smooth        Taylor decomposition with the smooth detection function of the footnote in section III
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.domain import extent
from deeptaylor.methods.projection import project
from deeptaylor.methods.relevance_fit import BATCH
from deeptaylor.methods.relevance_samples import explain as explain_through
from deeptaylor.models.networks import min_max
from deeptaylor.models.networks.detection_pooling import OneLayer, TwoLayer
from deeptaylor.paper import measures
from deeptaylor.paper.data.digits import Digits
from deeptaylor.paper.data.pairs import PairSampler
from deeptaylor.paper.methods import BOX, LEVEL, STARTS, Case
from deeptaylor.paper.saved import Arrays, Talk
from deeptaylor.rules import Rule

__all__ = ["beyond", "certified", "per_neuron", "refits", "restarts", "smooth", "unbounded"]

SHARPNESS = 10.0  # t of the smooth detection function
_ACTIVE = 1e-6  # a neuron below this share of the strongest one has a root too near to divide by its distance


@torch.no_grad()
def per_neuron(rule: Rule, layer: nn.Linear, x: Tensor, domain: dt.Domain, talk: Talk) -> Arrays:
    """Root distances of every active neuron for every row of x (N, d): the rule's over the nearest in the domain.

    "ratio": one number per neuron; "outside": whether the rule's root lies outside of the domain.
    """
    W, b = layer.weight, layer.bias
    low, high = extent(domain, x[:1])
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
    low, high = extent(box, x[:1])
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
    a, low, high = x.flatten(1), *extent(BOX, x.flatten(1))
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


def restarts(case: Case, x: Tensor, seeds: int, talk: Talk) -> Arrays:
    """Taylor decomposition from x alone, and from the best of some starts, for several seeds.

    "alone" (N,), "distance" (seeds, N); "spread" (pairs of seeds, N) between the maps; "point" (N, …): the roots found
    from x alone.
    """
    alone = dt.nearest_root(case.network, x, domain=BOX, level=LEVEL)
    maps, distances = [], []
    for seed in range(seeds):

        def tell(done: int, of: int, seed: int = seed) -> None:
            talk.share(f"  restarts, seed {seed}", done, of)

        root = dt.nearest_root(case.network, x, domain=BOX, level=LEVEL, starts=STARTS, seed=seed, progress=tell)
        maps.append(dt.taylor(case.network, x, root=root).relevance[:, 0].numpy())
        distances.append(root.distance.numpy())
    return {
        "alone": alone.distance.numpy(),
        "distance": np.stack(distances),
        "spread": np.stack([measures.spread(R, S) for R, S in itertools.combinations(maps, 2)]),
        "point": alone.point.numpy(),
    }


def refits(case: Case, digits: Digits, x: Tensor, steps: int, talk: Talk) -> Arrays:
    """The spread between the maps of two min-max models that saw other training pairs and are trained equally long."""
    network = case.network
    assert isinstance(network, TwoLayer)
    explainer = min_max.two_layer_explainer(network)

    def maps(model: Any) -> measures.Array:
        e = explain_through(model, explainer, min_max.TWO_LAYER, x, dt.rules.ZBox(BOX.low, BOX.high))
        relevance: measures.Array = e.relevance[:, 0].numpy()
        return relevance

    sampler = PairSampler(digits.train_images, digits.train_labels)

    def images(seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield sampler.sample(min(5000, BATCH * steps), generator).images

    narrow = copy.deepcopy(network).float()
    fitted = []
    for seed in (1, 2):

        def tell(step: int, loss: float, seed: int = seed) -> None:
            talk.share(f"  fitting a min-max model, seed {seed}", step, steps)

        fitted.append(maps(min_max.fit_two_layer(narrow, images(seed), steps=steps, progress=tell).double()))
    return {"spread": measures.spread(*fitted)}


def smooth(case: Case, x: Tensor) -> Arrays:
    """Taylor maps of the network with the smooth detection function, and its scores."""
    network = dt.smoothed(case.network, SHARPNESS)
    root = dt.nearest_root(network, x, domain=BOX, level=LEVEL)
    e = dt.taylor(network, x, root=root)
    return {"maps": e.relevance[:, 0].numpy(), "score": e.score.numpy()}


def _distance(a: Tensor, b: Tensor) -> Tensor:
    distance: Tensor = torch.linalg.vector_norm(a - b, dim=1)
    return distance
