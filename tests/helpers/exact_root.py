"""The nearest root of a tiny ReLU network, exactly: a judge which shares no code with the package.

    minimise ‖ξ − x‖  subject to  f(ξ) ≤ c,  low ≤ ξ ≤ high

The signs of the hidden units cut the input space into cells, and in a cell f is affine. So the nearest root in a cell
is the projection of x onto a polyhedron, and the nearest root of all is the best of finitely many projections. The
search takes the cells in the order of their distance from x: a cell is a tuple of signs, a shorter tuple is a union of
cells, and what is nearest to x in the union bounds from below what is nearest in each part. The first root to come off
the queue is therefore the nearest one, and the cells behind it are never opened.

Every projection is certified from both sides before it is believed: its point must lie in the polyhedron, and its
multipliers must prove that no point of the polyhedron is nearer. What fails raises; there is no silent near miss.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np
from scipy.optimize import nnls

DOMAINS = ("real", "nonnegative", "box")
LEVEL = 0.1
TOLERANCE = 1e-9  # of a certificate, relative to the sizes it compares
FARTHEST = 1e6  # in units of 1 + ‖x‖: a polyhedron which is farther away than this counts as empty
SLACK = 1e-13  # in the same units: every wall stands back by this, so that rounding cannot empty a cell without inside
FLAT = 1e-12  # of a slope, relative to the weights it comes from: below it the slope is rounding


@dataclass(frozen=True, eq=False)
class TinyNetwork:
    """Layers (W, b) with W of shape (out, in), a ReLU after every layer but the last, which has one output."""

    layers: list[tuple[np.ndarray, np.ndarray]]

    def __call__(self, xi: np.ndarray) -> np.ndarray:
        """f of every row of a batch (n, d)."""
        *hidden, (W, b) = self.layers
        for V, a in hidden:
            xi = np.maximum(xi @ V.T + a, 0)
        return (xi @ W.T + b)[:, 0]


@dataclass(frozen=True, eq=False)
class Exact:
    """The nearest root and how far it is from x."""

    distance: float
    point: np.ndarray


@dataclass(frozen=True, eq=False)
class Case:
    """One problem: the nearest ξ in [low, high] to x with f(ξ) ≤ c = level · f(x)."""

    network: TinyNetwork
    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    c: float
    level: float = LEVEL


def exact_root(network: TinyNetwork, x: np.ndarray, c: float, low: np.ndarray, high: np.ndarray) -> Exact | None:
    """The root nearest to x, or None where the domain holds none (within FARTHEST)."""
    *hidden, (W_out, b_out) = network.layers
    domain = box_rows(low, high)
    queue: list[tuple[float, int, np.ndarray, tuple[bool, ...] | None]] = []
    ticket = count()  # settles ties, so that the queue never compares arrays

    def enqueue(rows: list[np.ndarray], signs: tuple[bool, ...] | None) -> None:
        nearest = nearest_point(x, rows)
        if nearest is not None:
            heapq.heappush(queue, (nearest.distance, next(ticket), nearest.point, signs))

    enqueue(domain, ())
    while queue:
        distance, _, p, signs = heapq.heappop(queue)
        if signs is None:  # a cell cut by f ≤ c
            return certified_root(Case(network, x, low, high, c), Exact(distance, p))
        # Walk on through the cell that p lies in. The cells on the far side of each wall wait in the queue.
        rows, walked = list(domain), ()
        S, t, size = np.eye(len(x)), np.zeros(len(x)), 1.0  # what a layer reads is S ξ + t in this cell
        for W, b in hidden:
            S, t, size = W @ S, W @ t + b, size * np.abs(W).sum(1).max()
            known = signs[len(walked) : len(walked) + len(b)]
            on = S @ p + t > 0
            on[: len(known)] = known
            for k, is_on in enumerate(on.tolist()):
                wall = halfspace(S[k], t[k], FLAT * size)
                if wall is not None:
                    if k >= len(known):
                        enqueue([*rows, wall if not is_on else -wall], (*walked, not is_on))
                    rows.append(wall if is_on else -wall)
                walked = (*walked, is_on)
            S, t = on[:, None] * S, on * t
        slope, offset = W_out[0] @ S, W_out[0] @ t + b_out[0] - c
        below = halfspace(-slope, -offset, FLAT * size * np.abs(W_out).sum())
        if below is not None:
            enqueue([*rows, below], None)
        elif offset <= 0:  # f is constant in the cell: all of it is roots
            enqueue(rows, None)
    return None


def halfspace(slope: np.ndarray, offset: float, flat: float) -> np.ndarray | None:
    """The row (g, h) of {ξ: g·ξ ≥ h} = {ξ: slope·ξ + offset ≥ 0} with ‖g‖ = 1, or None where the slope is flat.

    The opposite halfspace is the negated row. A flat unit is constant, so no wall separates its two signs.
    """
    norm = np.linalg.norm(slope)
    return None if norm <= flat else np.append(slope, -offset) / norm


def box_rows(low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """The finite bounds as rows (g, h)."""
    axes = np.eye(len(low))
    above = [np.append(e, a) for e, a in zip(axes, low, strict=True) if np.isfinite(a)]
    below = [np.append(-e, -a) for e, a in zip(axes, high, strict=True) if np.isfinite(a)]
    return above + below


def nearest_point(x: np.ndarray, rows: list[np.ndarray]) -> Exact | None:
    """The projection of x onto {ξ: g·ξ ≥ h for all rows (g, h)}, or None where that is empty.

    Lawson and Hanson's least distance programming: with ζ = ξ − x and the rows G ζ ≥ k, let u ≥ 0 minimise
    ‖(Gᵀ, kᵀ) u − (0, 1)‖. The rows with u > 0 are those that ζ lies on, and ζ is their shortest solution. Where the
    minimum is 0 the rows contradict each other.

    Any u ≥ 0 proves that ζ is at least uᵀk / ‖Gᵀu‖ long, for uᵀk ≤ uᵀGζ ≤ ‖Gᵀu‖ ‖ζ‖. This bound is what tells an empty
    polyhedron, and that it meets ‖ζ‖ is what certifies a projection.
    """
    if not rows:
        return Exact(0.0, x)
    stacked = np.array(rows)
    G = stacked[:, :-1]
    size = 1 + np.linalg.norm(x)
    k = stacked[:, -1] - G @ x - SLACK * size
    if k.max() <= 0:
        return Exact(0.0, x)
    E = np.vstack([G.T, k])
    u, _ = nnls(E, np.append(np.zeros(len(x)), 1.0))
    pull, gain = G.T @ u, k @ u
    if gain > FARTHEST * size * np.linalg.norm(pull):
        return None
    active = u > 0
    zeta = np.linalg.lstsq(G[active], k[active], rcond=None)[0]
    if not is_projection(zeta, G, k, pull, gain):
        raise ArithmeticError(f"no certified projection of {x} onto {stacked}: {zeta}")
    return Exact(float(np.linalg.norm(zeta)), x + zeta)


def is_projection(zeta: np.ndarray, G: np.ndarray, k: np.ndarray, pull: np.ndarray, gain: float) -> bool:
    """Whether ζ satisfies the rows and is as short as the multipliers prove it must be."""
    length = np.linalg.norm(zeta)
    bound = gain / np.linalg.norm(pull)
    return bool((k - G @ zeta).max() <= TOLERANCE * (1 + length) and length - bound <= TOLERANCE * (1 + length))


def certified_root(case: Case, root: Exact) -> Exact:
    """The root, once the network itself has confirmed it."""
    f_x, f = case.network(np.array([case.x, root.point]))
    excess = (f - case.c) / max(abs(f_x), abs(case.c), np.finfo(float).tiny)
    outside = max((case.low - root.point).max(), (root.point - case.high).max()) / (1 + np.abs(root.point).max())
    if max(excess, outside) > TOLERANCE:
        raise ArithmeticError(f"{root.point} is no root: {excess:.1e} above c, {outside:.1e} outside the domain")
    return root


def random_case(seed: int, domain: str) -> Case:
    """A problem drawn from the seed.

    Signed networks fold both ways; the paper's networks have positive output weights and no positive biases, so that
    their roots lie where all detectors are silent; a floor adds a positive output bias, which may keep f above c
    everywhere.
    """
    rng = np.random.default_rng([seed, DOMAINS.index(domain)])
    kind = rng.choice(["signed", "paper", "floor"], p=[0.6, 0.3, 0.1])
    d = int(rng.integers(2, 6))
    while True:
        network = random_network(rng, d, kind)
        low, high = random_bounds(rng, d, domain)
        candidates = random_points(rng, low, high, 64)
        f = network(candidates)
        clear = np.flatnonzero(f > 0.1 * np.abs(f).mean())
        if len(clear):
            break
    x, fx = candidates[clear[0]], f[clear[0]]
    if kind == "floor":
        *hidden, (W, b) = network.layers
        network = TinyNetwork([*hidden, (W, b + rng.uniform(0, 0.2) * fx)])
        fx = network(x[None])[0]
    return Case(network, x, low, high, LEVEL * float(fx))


def random_network(rng: np.random.Generator, d: int, kind: str) -> TinyNetwork:
    """One hidden layer of 3 to 12 units, or two of at most 12 units in all."""
    if rng.random() < 0.6:
        widths = [d, int(rng.integers(3, 13)), 1]
    else:
        first = int(rng.integers(3, 9))
        widths = [d, first, int(rng.integers(2, 13 - first)), 1]
    layers, size = [], 1.0
    for n_in, n_out in pairwise(widths):
        W = rng.normal(size=(n_out, n_in)) / np.sqrt(n_in)
        b = rng.uniform(0.1, 1) * rng.normal(size=n_out)
        scale = 10 ** rng.uniform(-1, 1) if rng.random() < 0.5 else 1.0
        if n_out == 1:
            b *= size * rng.choice([0.2, 2], p=[0.8, 0.2])  # a large bias drives the roots far away, or leaves none
        size *= scale
        if kind != "signed":
            W, b = (np.abs(W), np.zeros(1)) if n_out == 1 else (W, -np.abs(b))
        layers.append((scale * W, scale * b))
    return TinyNetwork(layers)


def random_bounds(rng: np.random.Generator, d: int, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Open ends are infinite; a box is uneven, and need not contain the origin."""
    if domain == "box":
        low = rng.uniform(-3, 0.2, d)
        return low, low + rng.uniform(1, 8, d)
    return np.full(d, 0.0 if domain == "nonnegative" else -np.inf), np.full(d, np.inf)


def random_points(rng: np.random.Generator, low: np.ndarray, high: np.ndarray, n: int) -> np.ndarray:
    """Points in the domain; in every third one, each coordinate lies on a bound as likely as not."""
    shape = (n, len(low))
    if np.isfinite(high).all():
        inside = rng.uniform(low, high, shape)
    else:
        inside = rng.normal(size=shape) * rng.choice([1.0, 3.0], size=(n, 1))
        inside = np.where(np.isfinite(low), np.abs(inside), inside)
    bound = np.where(np.isfinite(high) & (rng.random(shape) < 0.5), high, low)
    on_bound = (rng.random((n, 1)) < 1 / 3) & (rng.random(shape) < 0.5) & np.isfinite(bound)
    return np.where(on_bound, bound, inside)
