"""The nearest root of a function in a constrained domain (section II-A of the paper).

nearest_root: minimise ‖ξ − x‖² subject to f(ξ) ≤ level · f(x), ξ in the domain
├── starts        x itself, and points spread over the domain by the same random numbers for every sample
├── Rows          all starts of some samples at once, each a search at its own pace (bundle.py)
├── tighten       move the best root of a sample towards x as far as it stays one
└── optimality    the angle between gradient and x − ξ, and the residual of the Karush–Kuhn–Tucker conditions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from deeptaylor.bundle import PLANES, Rows
from deeptaylor.domain import Box, Domain, NonNegative, check_inside
from deeptaylor.errors import InputError
from deeptaylor.inputs import as_domains
from deeptaylor.polish import polish
from deeptaylor.projection import clip
from deeptaylor.score import Function, Score, quiet

ELEMENTS = 1 << 24  # of the rows that are searched at once, with their linearisations: bounds the memory
NARROWINGS = 10  # of the segment between x and a root
AGAIN = 8  # starts, at least, for a sample without a root
NUDGES = 8
# f at a root stays below its level by this share of f(x): the same point in another batch rounds otherwise.
SLACK = {torch.float64: 1e-11, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Root:
    """Where f falls to its level nearest to x, sample by sample, and how sure that is.

    point       (B, …): x itself where f(x) ≤ 0; NaN where no root was found
    distance    (B,): ‖x − point‖
    value       (B,): f(point), never above level · f(x)
    iterations  (B,): evaluations of f and its gradient, over all starts
    converged   (B,): True where `point` is a root, False where none was found
    angle       (B,): between the gradient at the point and x − point over the coordinates that are not at a bound, in
                degrees; 0 at an optimum
    kkt         (B,): residual of the Karush–Kuhn–Tucker conditions, over the distance; 0 at an optimum where f is
                smooth. At a kink of a piecewise linear f several gradients share the work, and one alone does not reach 0.
    reason      a text a sample: why there is no root to find, or ""
    """

    point: Tensor
    distance: Tensor
    value: Tensor
    iterations: Tensor
    converged: Tensor
    angle: Tensor
    kkt: Tensor
    reason: tuple[str, ...]
    level: float

    def __str__(self) -> str:
        return "\n".join(f"sample {k}: {reason or self._line(k)}" for k, reason in enumerate(self.reason))

    def _line(self, k: int) -> str:
        return (
            f"distance {float(self.distance[k]):.6g}, f = {float(self.value[k]):.6g}, "
            f"angle {float(self.angle[k]):.2g}°, KKT residual {float(self.kkt[k]):.2g}, {int(self.iterations[k])} evaluations"
        )


@dataclass
class _Effort:
    """How hard to search, and how far the search has come."""

    starts: int
    iterations: int
    seed: int
    progress: Callable[[int, int], None] | None
    ended: int = 0
    searches: int = 0

    def count(self, ended: int) -> None:
        """Tell that searches have ended."""
        self.ended += ended
        if self.progress is not None:
            self.progress(self.ended, self.searches)


def nearest_root(
    f: Function,
    x: Tensor,
    target: Any = None,
    domain: Domain | None = None,
    level: float = 0.1,
    *,
    output: int | str | None = None,
    starts: int | None = None,
    iterations: int = 100,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Root:
    """The nearest point where f falls to a level: min ‖ξ − x‖² subject to f(ξ) ≤ level · f(x), ξ ∈ domain.

    f           a network (with `target` and `output` as in `explain`), or any differentiable function of a batch
    domain      Real() (the default), NonNegative() or Box(low, high)
    starts      how many places the search of a sample begins at, the first being x; default 64 in up to 8 dimensions,
                else 1; a sample left without a root is searched for from more
    iterations  the most evaluations of f and its gradient from each start
    seed        of the other places
    progress    called as progress(searches ended, searches begun or known to follow)

    The problem is not convex in general: what is returned is the best local optimum of all starts.

    >>> import torch, deeptaylor as dt
    >>> root = dt.nearest_root(lambda x: x.sum(1), torch.tensor([[3.0, 1.0]]), level=0.0)
    >>> [round(float(v), 4) for v in root.point[0]]
    [1.0, -1.0]
    """
    _check_arguments(level, starts, iterations)
    with quiet(f), torch.no_grad():
        score = Score(f, x, target, output)
        chosen = as_domains(domain, [score.x])[0]
        check_inside(score.x, chosen, "x")
        default = 64 if score.x[0].numel() <= 8 else 1
        return _solve(_Problem(score, chosen, level), _Effort(starts or default, iterations, seed, progress))


def _check_arguments(level: float, starts: int | None, iterations: int) -> None:
    if not 0 <= level < 1:
        raise InputError(
            f"level must lie in [0, 1), got {level!r}: it is the share of f(x) that may remain at the root; at 1 every "
            "point would be its own root."
        )
    if (starts is not None and starts < 1) or iterations < 1:
        raise InputError(f"starts and iterations must be at least 1, got {starts!r} and {iterations!r}.")


class _Problem:
    """One batch: x and its bounds as flat vectors, f(x), and what f must fall to."""

    def __init__(self, score: Score, domain: Domain, level: float) -> None:
        self.score, self.level = score, level
        self.low, self.high = _bounds(domain, score.x)
        self.x = clip(score.x.flatten(1), self.low, self.high)  # it may stick out of its box by rounding
        self.f, self.gradient = score.at_x, score.gradient_at_x.flatten(1)
        self.goal = (level - SLACK[score.x.dtype]) * self.f

    def evaluate(self, points: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """f and its gradient at flat points."""
        value, gradient = self.score.with_gradient(self._shaped(points), samples)
        return value, gradient.flatten(1)

    def excess(self, points: Tensor, samples: Tensor) -> Tensor:
        """How far f lies above its goal; a root has none."""
        return self.score.values(self._shaped(points), samples) - self.goal[samples]

    def _shaped(self, points: Tensor) -> Tensor:
        return points.reshape(-1, *self.score.x.shape[1:])

    def search(self, samples: Tensor, start: Tensor, effort: _Effort) -> _Outcome:
        """Search from every start (n, k, d) of some samples, k rows each; rows that end drop out."""
        each = samples.repeat_interleave(start.shape[1])
        x, low, high, f, goal = (t[each] for t in (self.x, self.low, self.high, self.f, self.goal))
        rows = Rows.begin(each, x, low, high, f, goal, start.flatten(0, 1))
        alive = rows.keep(rows.number)
        for time in range(1, effort.iterations + 1):
            lives = alive.advance(self.evaluate, self.tighten, time)
            if not bool(lives.all()):
                rows.put(alive)
                alive = alive.keep(lives)
            effort.count(len(lives) - len(alive.number))
            if not len(alive.number):
                break
        rows.put(alive)
        effort.count(len(alive.number))
        return _Outcome.of(rows, start.shape[1], effort.iterations)

    def spread(self, samples: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """x, then k − 1 points spread evenly over a box, or at distances in equal ratios where the domain is open."""
        x, low, high = (t[samples, None] for t in (self.x, self.low, self.high))
        uniform, normal = self._random(k, generator)
        slope = torch.linalg.vector_norm(self.gradient, dim=1)
        newton = torch.where(slope > 0, self.f / slope, 1 + torch.linalg.vector_norm(self.x, dim=1))
        ratio = torch.logspace(-1, 2, k, dtype=torch.float64).to(x)[:, None]
        start = _reflect(x + newton[samples, None, None] * ratio * normal / x.shape[2] ** 0.5, low, high)
        closed = torch.isfinite(low) & torch.isfinite(high)
        start = torch.where(closed, (low + uniform * (high - low)).nan_to_num(), start)
        start[:, 0] = x[:, 0]
        return start

    def around(self, samples: Tensor, radius: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """k points nearer to x than a radius, where every better root is."""
        x, low, high = (t[samples, None] for t in (self.x, self.low, self.high))
        uniform, normal = self._random(k, generator)
        share = uniform[:, :1] ** (1 / x.shape[2]) / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
        return _reflect(x + radius[:, None, None] * share * normal, low, high)

    def _random(self, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniform and normal numbers (k, d), the same for every sample."""
        size = (k, self.x.shape[1])
        uniform = torch.rand(size, generator=generator, dtype=torch.float64)
        return uniform.to(self.x), torch.randn(size, generator=generator, dtype=torch.float64).to(self.x)

    def tighten(self, origin: Tensor, point: Tensor, samples: Tensor) -> Tensor:
        """The root nearest to an origin that the Illinois method finds between it and each root."""
        low, high = self.low[samples], self.high[samples]
        # At the share `outer` of the way f is above its goal, at `inner` not; the two close in on each other.
        outer, inner = torch.zeros_like(self.f[samples]), torch.ones_like(self.f[samples])
        above, below = (self.excess(p, samples) for p in (origin, point))
        above, below = above.clamp(min=0), below.clamp(max=0)
        nearest = point
        for _ in range(NARROWINGS):
            share = outer + (inner - outer) * (above / (above - below)).nan_to_num(0.5).clamp(0.05, 0.95)
            middle = clip(origin + share[:, None] * (point - origin), low, high)
            excess = self.excess(middle, samples)
            root = excess <= 0
            nearest = torch.where(root[:, None], middle, nearest)
            above, below = torch.where(root, above / 2, excess), torch.where(root, excess, below / 2)
            outer, inner = torch.where(root, outer, share), torch.where(root, share, inner)
        return nearest

    def polished(self, outcome: _Outcome, samples: Tensor) -> _Outcome:
        """The same roots, more exact where f is smooth; a root that would be farther stays as it is."""
        found = torch.nonzero(torch.isfinite(outcome.distance)).flatten()
        if not len(found):
            return outcome
        own = samples[found]
        x, low, high, goal = self.x[own], self.low[own], self.high[own], self.goal[own]
        point = outcome.point[found]
        exact, spent = polish(x, point, low, high, goal, lambda xi, rows: self.evaluate(xi, own[rows]))
        exact = torch.where((self.excess(exact, own) > 0)[:, None], self.tighten(exact, point, own), exact)
        distance = torch.linalg.vector_norm(exact - x, dim=1)
        nearer = distance <= outcome.distance[found]
        outcome.point[found] = torch.where(nearer[:, None], exact, point)
        outcome.distance[found] = torch.where(nearer, distance, outcome.distance[found])
        outcome.spent[found] += spent
        return outcome


def _solve(problem: _Problem, effort: _Effort) -> Root:
    """Search for all samples with f(x) > 0, as many at once as the memory allows."""
    f, x = problem.f, problem.x
    point = torch.where((f > 0)[:, None], torch.nan, x)
    spent = torch.zeros(len(f), dtype=torch.long, device=f.device)
    reason = [f"f(x) = {v:.6g} ≤ 0: x is already a root" if v <= 0 else "" for v in f.tolist()]
    todo = torch.nonzero(f > 0).flatten()
    effort.searches = effort.starts * len(todo)
    flat = 0
    for some in todo.split(max(1, ELEMENTS // (min(PLANES, x.shape[1]) * x.shape[1] * effort.starts))):
        outcome = problem.polished(_rounds(problem, some, effort), some)
        point[some], spent[some] = outcome.point, outcome.spent
        for k in torch.nonzero(~torch.isfinite(outcome.distance)).flatten().tolist():
            flat += float(outcome.slope[k]) == 0
            reason[int(some[k])] = _no_root(problem.level * float(f[some[k]]), outcome.keep(k), effort)
    if flat and flat == len(todo):
        raise InputError(
            "f is constant: its gradient is zero at x and wherever else the search began, for every sample. Is the "
            "network saturated or detached, or the target independent of the input?"
        )
    return _result(problem, point, spent, reason)


@dataclass(frozen=True)
class _Outcome:
    """The best of the rows of each sample."""

    point: Tensor
    distance: Tensor
    lowest: Tensor
    slope: Tensor
    spent: Tensor
    exhausted: Tensor  # a row was still moving when its budget ended

    @classmethod
    def of(cls, rows: Rows, k: int, iterations: int) -> _Outcome:
        """The best of k rows a sample."""
        distance, which = rows.distance.reshape(-1, k).min(1)
        best = rows.best[which + k * torch.arange(len(which), device=which.device)]
        lowest, slope = rows.lowest.reshape(-1, k).amin(1), rows.slope.reshape(-1, k).amax(1)
        spent = rows.spent.reshape(-1, k)
        return cls(best, distance, lowest, slope, spent.sum(1), (spent >= iterations).any(1))

    def keep(self, these: Tensor | int) -> _Outcome:
        """Some of the samples."""
        return _Outcome(*(getattr(self, field.name)[these] for field in fields(self)))

    def or_better(self, other: _Outcome, these: Tensor) -> _Outcome:
        """The nearer root of two outcomes, and what both saw; `other` knows only these samples."""
        own = self.keep(these)
        better = _Outcome(
            torch.where((other.distance < own.distance)[:, None], other.point, own.point),
            torch.minimum(own.distance, other.distance),
            torch.minimum(own.lowest, other.lowest),
            torch.maximum(own.slope, other.slope),
            own.spent + other.spent,
            own.exhausted | other.exhausted,
        )
        return _Outcome(*(getattr(self, f.name).index_copy(0, these, getattr(better, f.name)) for f in fields(self)))


def _rounds(problem: _Problem, some: Tensor, effort: _Effort) -> _Outcome:
    """Half of the starts spread over the domain, half within the distance of the best root so far; then, for the
    samples still without a root, more over the domain.
    """
    generator = torch.Generator().manual_seed(effort.seed)
    near = effort.starts // 2
    outcome = problem.search(some, problem.spread(some, effort.starts - near, generator), effort)
    found = torch.nonzero(torch.isfinite(outcome.distance)).flatten()
    if near and len(found):
        start = problem.around(some[found], outcome.distance[found], near, generator)
        outcome = outcome.or_better(problem.search(some[found], start, effort), found)
    missing = torch.nonzero(~torch.isfinite(outcome.distance)).flatten()
    if len(missing):
        more = max(AGAIN, near)
        effort.searches += (more - near) * len(missing)
        start = problem.spread(some[missing], more + 1, generator)[:, 1:]
        outcome = outcome.or_better(problem.search(some[missing], start, effort), missing)
    return outcome


def _no_root(wanted: float, outcome: _Outcome, effort: _Effort) -> str:
    seen = f"the smallest f seen is {float(outcome.lowest):.6g}, the level asks for {wanted:.6g}"
    if bool(outcome.exhausted):
        return f"budget spent: no root after {effort.iterations} evaluations from each start ({seen}); raise iterations"
    return f"no root in the domain was found ({seen})"


def _result(problem: _Problem, point: Tensor, spent: Tensor, reason: list[str]) -> Root:
    """Roots with their distances, and how optimal each is."""
    f, x, wanted = problem.f, problem.x, problem.level * problem.f
    everyone = torch.arange(len(f), device=f.device)
    found = torch.isfinite(point).all(1)
    there = torch.where(found[:, None], point, x)
    # Rounding differs from batch to batch: in this one, the user's own, every root must be one.
    for k in range(NUDGES):
        value, gradient = problem.evaluate(there, everyone)
        short = found & (f > 0) & (value > wanted)
        if not bool(short.any()):
            break
        farther = clip(x + (1 + 1e-6 * 4**k) * (there - x), problem.low, problem.high)
        there = torch.where(short[:, None], farther, there)
    for k in torch.nonzero(short).flatten().tolist():
        found[k], reason[k] = False, "no root that rounding would not undo was found: f is too small for its type"
    angle, kkt = optimality(x, there, gradient, problem.low, problem.high)
    unused = (wanted - value).clamp(min=0) / f.clamp(min=torch.finfo(f.dtype).tiny)
    searched = found & (f > 0)
    angle, kkt = torch.where(searched, angle, 0), torch.where(searched, torch.maximum(kkt, unused), 0)
    point = torch.where(found[:, None], there, torch.nan)
    return Root(
        point=point.reshape(problem.score.x.shape),
        distance=torch.linalg.vector_norm(point - x, dim=1),
        value=torch.where(found, value, torch.nan),
        iterations=spent,
        converged=found,
        angle=torch.where(found, angle, torch.nan),
        kkt=torch.where(found, kkt, torch.nan),
        reason=tuple(reason),
        level=problem.level,
    )


def optimality(x: Tensor, xi: Tensor, gradient: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """How well ξ = clip(x − λ g) holds for some λ ≥ 0, which is what the nearest root of a smooth f satisfies.

    Returns the angle between x − ξ and g over the free coordinates, in degrees, and ‖ξ − clip(x − λ g)‖ / ‖x − ξ‖.
    """
    tiny = torch.finfo(x.dtype).tiny
    free = (xi > low) & (xi < high)
    g, r = torch.where(free, gradient, 0), torch.where(free, x - xi, 0)
    size = torch.linalg.vector_norm(g, dim=1)
    unit = g / size.clamp(min=tiny)[:, None]
    along = (unit * r).sum(1)
    across = torch.linalg.vector_norm(r - along[:, None] * unit, dim=1)
    angle = torch.rad2deg(torch.atan2(across, along))
    # Without free coordinates λ need only be large enough to hold every other one at its bound.
    held = torch.where(~free & (gradient != 0), (x - xi) / gradient, 0).amax(1)
    multiplier = torch.where(size > 0, along / size.clamp(min=tiny), held).clamp(min=0)
    wanted = clip(x - multiplier[:, None] * gradient, low, high)
    distance = torch.linalg.vector_norm(x - xi, dim=1).clamp(min=tiny)
    return angle, torch.linalg.vector_norm(xi - wanted, dim=1) / distance


def _bounds(domain: Domain, x: Tensor) -> tuple[Tensor, Tensor]:
    """The domain as bounds of every element, infinite where it is open."""
    if isinstance(domain, Box):
        low, high = (t.expand_as(x).flatten(1) for t in domain.bounds(x))
        return low, high
    low = torch.full_like(x, 0 if isinstance(domain, NonNegative) else -torch.inf).flatten(1)
    return low, torch.full_like(low, torch.inf)


def _reflect(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """A point outside of its bounds mirrored at them: clipped, most points would lie on faces."""
    y = torch.where(y < low, 2 * low - y, y)
    return clip(torch.where(y > high, 2 * high - y, y), low, high)
