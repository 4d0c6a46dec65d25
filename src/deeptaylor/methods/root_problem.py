"""One batch of root searches: the bounds, the levels, the places to start at, and the best of what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from deeptaylor.domain import Domain, extent
from deeptaylor.methods.bundle import Rows
from deeptaylor.methods.polish import polish
from deeptaylor.methods.projection import clip
from deeptaylor.methods.score import Score

NARROWINGS = 10  # of the segment between x and a root
# f at a root stays below its level by this share of f(x): the same point in another batch rounds otherwise.
SLACK = {torch.float64: 1e-11, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@dataclass
class Effort:
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


@dataclass(frozen=True)
class Outcome:
    """The best of the rows of each sample."""

    point: Tensor
    distance: Tensor
    lowest: Tensor
    slope: Tensor
    spent: Tensor
    exhausted: Tensor  # a row was still moving when its budget ended

    @classmethod
    def of(cls, rows: Rows, k: int, iterations: int) -> Outcome:
        """The best of k rows per sample."""
        distance, which = rows.distance.reshape(-1, k).min(1)
        best = rows.best[which + k * torch.arange(len(which), device=which.device)]
        lowest, slope = rows.lowest.reshape(-1, k).amin(1), rows.slope.reshape(-1, k).amax(1)
        spent = rows.spent.reshape(-1, k)
        return cls(best, distance, lowest, slope, spent.sum(1), (spent >= iterations).any(1))

    def keep(self, these: Tensor | int) -> Outcome:
        """Some of the samples."""
        return Outcome(*(getattr(self, field.name)[these] for field in fields(self)))

    def or_better(self, other: Outcome, these: Tensor) -> Outcome:
        """The nearer root of two outcomes, and what both saw; `other` knows only these samples."""
        own = self.keep(these)
        better = Outcome(
            torch.where((other.distance < own.distance)[:, None], other.point, own.point),
            torch.minimum(own.distance, other.distance),
            torch.minimum(own.lowest, other.lowest),
            torch.maximum(own.slope, other.slope),
            own.spent + other.spent,
            own.exhausted | other.exhausted,
        )
        return Outcome(*(getattr(self, f.name).index_copy(0, these, getattr(better, f.name)) for f in fields(self)))


class Problem:
    """One batch: x and its bounds as flat vectors, f(x), and what f must fall to."""

    def __init__(self, score: Score, domain: Domain, level: float) -> None:
        self.score, self.level = score, level
        self.low, self.high = (bound.flatten(1) for bound in extent(domain, score.x))
        self.x = clip(score.x.flatten(1), self.low, self.high)  # it may stick out of its box by rounding
        self.f, self.gradient = score.at_x, score.gradient_at_x.flatten(1)
        # At level 0 f may have no room below: a sum of ReLUs has none.
        self.goal = (level - SLACK[score.x.dtype] if level > 0 else 0.0) * self.f

    def evaluate(self, points: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """f and its gradient at flat points."""
        value, gradient = self.score.with_gradient(self._shaped(points), samples)
        return value, gradient.flatten(1)

    def excess(self, points: Tensor, samples: Tensor) -> Tensor:
        """How far f lies above its goal; a root has none."""
        return self.score.values(self._shaped(points), samples) - self.goal[samples]

    def _shaped(self, points: Tensor) -> Tensor:
        return points.reshape(-1, *self.score.x.shape[1:])

    def search(self, samples: Tensor, start: Tensor, effort: Effort) -> Outcome:
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
        return Outcome.of(rows, start.shape[1], effort.iterations)

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

    def polished(self, outcome: Outcome, samples: Tensor) -> Outcome:
        """The same roots, more exact where f is smooth; a root that would be farther stays as it is."""
        found = torch.nonzero(torch.isfinite(outcome.distance)).flatten()
        if not len(found):
            return outcome
        own = samples[found]
        x, low, high = self.x[own], self.low[own], self.high[own]
        # A little below the goal, so that what remains of the error does not lift it above.
        goal = self.goal[own] - SLACK[x.dtype] * self.f[own]
        point = outcome.point[found]
        exact, spent = polish(x, point, low, high, goal, lambda xi, rows: self.evaluate(xi, own[rows]))
        exact = torch.where((self.excess(exact, own) > 0)[:, None], self.tighten(exact, point, own), exact)
        distance = torch.linalg.vector_norm(exact - x, dim=1)
        nearer = distance <= (1 + 1e-6) * outcome.distance[found]
        outcome.point[found] = torch.where(nearer[:, None], exact, point)
        outcome.distance[found] = torch.where(nearer, distance, outcome.distance[found])
        outcome.spent[found] += spent
        return outcome


def _reflect(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """A point outside of its bounds mirrored at them: clipped, most points would lie on faces."""
    y = torch.where(y < low, 2 * low - y, y)
    return clip(torch.where(y > high, 2 * high - y, y), low, high)
