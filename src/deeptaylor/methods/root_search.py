"""The nearest root of a function in a constrained domain (section II-A of the paper).

nearest_root: minimise ‖ξ − x‖² subject to f(ξ) ≤ level · f(x), ξ in the domain
├── starts        x itself, and points spread over the domain by the same random numbers for every sample
├── SearchRows    all starts of some samples at once, each a search at its own pace (bundle.py)
├── polish        where f is smooth, the best root of a sample made exact
├── settle        where f has kinks, the same, and the subgradient that satisfies the optimality conditions
└── measure_optimality    the angle between gradient and x − ξ, and the residual of the Karush–Kuhn–Tucker conditions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from deeptaylor.domain import Domain, check_inside, find_bounds
from deeptaylor.engine.inputs import as_domains
from deeptaylor.errors import InputError
from deeptaylor.methods.bundle import PLANES, SearchRows, clip, project
from deeptaylor.methods.score import Function, Score, disable_gradients

MEMORY = 10
STEPS = 80
PATIENCE = 8  # steps in which the residual must halve
ENOUGH = {torch.float64: 1e-9}  # residual, over the distance


def polish(
    x: Tensor,
    start: Tensor,
    low: Tensor,
    high: Tensor,
    goal: Tensor,
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Iterate T; return T(ξ) with the smallest residual ‖T(ξ) − ξ‖ / ‖x − ξ‖, and the number of evaluations."""
    n, d = x.shape
    best, least = start.clone(), torch.full_like(goal, torch.inf)
    spent = torch.zeros(n, dtype=torch.long, device=x.device)
    rows = torch.arange(n, device=x.device)
    xi, due, mark = start, torch.full_like(spent, PATIENCE), torch.full_like(goal, torch.inf)
    steps, residuals = x.new_zeros(n, 0, d), x.new_zeros(n, 0, d)  # differences of consecutive ξ and T(ξ) − ξ
    last: tuple[Tensor, Tensor] | None = None
    for k in range(STEPS):
        value, g = evaluate(xi, rows)
        spent[rows] += 1
        edge = goal[rows] - value + (g * xi).sum(1)
        y, _ = project(x[rows], g[:, None], edge[:, None], low[rows], high[rows])
        r = y - xi
        size = torch.linalg.vector_norm(r, dim=1) / torch.linalg.vector_norm(y - x[rows], dim=1)
        size = torch.where(torch.isfinite(size), size, torch.inf)
        better = size < least[rows]
        best[rows[better]], least[rows[better]] = y[better], size[better]
        if last is not None:
            steps = torch.cat([steps, (xi - last[0])[:, None]], 1)[:, -MEMORY:]
            residuals = torch.cat([residuals, (r - last[1])[:, None]], 1)[:, -MEMORY:]
        halved = least[rows] <= 0.5 * mark
        mark, due = torch.where(halved, least[rows], mark), torch.where(halved, k + PATIENCE, due)
        going = torch.isfinite(size) & (least[rows] > ENOUGH.get(x.dtype, 1e-5)) & (due > k)
        if not bool(going.any()):
            break
        rows, xi, r, steps, residuals, due, mark = (t[going] for t in (rows, xi, r, steps, residuals, due, mark))
        last = (xi, r)
        xi = clip(_accelerate(xi, r, steps, residuals), low[rows], high[rows])
    return best, spent


def _accelerate(xi: Tensor, r: Tensor, steps: Tensor, residuals: Tensor) -> Tensor:
    """Return ξ + r − (ΔΞ + ΔR) γ, with γ such that r − ΔR γ is smallest."""
    if not steps.shape[1]:
        return xi + r
    gram = torch.bmm(residuals, residuals.transpose(1, 2))
    size = gram.diagonal(dim1=1, dim2=2)
    ridge = 10 * torch.finfo(r.dtype).eps * size + torch.finfo(r.dtype).tiny
    right = torch.bmm(residuals, r[:, :, None])
    gamma = torch.linalg.solve(gram + torch.diag_embed(ridge), right)
    return xi + r - torch.bmm((steps + residuals).transpose(1, 2), gamma)[:, :, 0]


GRADIENTS, SLOTS = 64, 16  # that are collected around a root, and that are kept at once
# How far from a root they are taken, as shares of its distance: at first, at most.
REACH, FARTHEST = {torch.float64: 1e-6}, 1e-2
SETTLED = {torch.float64: 1e-7}  # ‖y − ξ‖ / ‖x − ξ‖ of a root that satisfies the conditions


def settle(
    x: Tensor,
    start: Tensor,
    low: Tensor,
    high: Tensor,
    goal: Tensor,
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    tighten: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nearest roots ξ near the given ones, the subgradient that each satisfies, and how many evaluations.

    At a nearest root x − ξ = λ g on all coordinates that are not at a bound, for a λ ≥ 0 and a subgradient g: a mixture
    of the gradients on the pieces of f that meet at ξ. The gradients are collected one by one. Let y be the
    projection of x onto the linearisations collected so far, which are lowered where they cut ξ off. If y = ξ, the
    multipliers of this
    projection are the mixture. Otherwise the linearisation a little beyond ξ towards y either cuts y off, and is
    collected, or f has room that way, and ξ moves.
    """
    tolerance = SETTLED.get(x.dtype, 1e-4)
    point, gradient = start.clone(), torch.zeros_like(x)
    spent = torch.zeros(len(x), dtype=torch.long, device=x.device)
    least = torch.full_like(goal, torch.inf)
    rows = torch.arange(len(x), device=x.device)
    slots, nearest = min(SLOTS, x.shape[1] + 1), REACH.get(x.dtype, 1e-3)
    G, edge = x.new_zeros(len(x), slots, x.shape[1]), x.new_zeros(len(x), slots)
    shares, reach, trial = torch.zeros_like(edge), torch.full_like(goal, nearest), start
    value, g = evaluate(trial, rows)
    for _ in range(GRADIENTS):
        spent[rows] += 1
        each, slot = torch.arange(len(rows), device=x.device), shares.argmin(1)  # one without a share, if there is one
        G[each, slot], edge[each, slot], shares[each, slot] = g, goal[rows] - value + (g * trial).sum(1), 0
        xi = point[rows]
        lowered = torch.maximum(edge, torch.bmm(G, xi[:, :, None])[:, :, 0])
        y, shares = project(x[rows], G, lowered, low[rows], high[rows], shares)
        G = torch.where(shares[:, :, None] > 0, G, 0)  # those without a share would only make the projection harder
        far = torch.linalg.vector_norm(xi - x[rows], dim=1)
        gap = torch.linalg.vector_norm(y - xi, dim=1) / far
        mixed = torch.bmm(shares[:, None], G)[:, 0] / shares.sum(1, keepdim=True)
        better = (gap < least[rows]) & (shares.sum(1) > 0)
        gradient[rows[better]], least[rows[better]] = mixed[better], gap[better]
        going = torch.isfinite(gap) & (gap > tolerance) & (reach <= FARTHEST)
        if not bool(going.any()):
            break
        rows, G, edge, shares, reach = (t[going] for t in (rows, G, edge, shares, reach))
        xi, y, far, gap = (t[going] for t in (xi, y, far, gap))
        towards = (y - xi) / torch.linalg.vector_norm(y - xi, dim=1, keepdim=True)
        trial = clip(xi + (reach * far)[:, None] * towards, low[rows], high[rows])
        value, g = evaluate(trial, rows)
        # By how much y lies above this linearisation, which is lowered to ξ like the others.
        above = (g * y).sum(1) - torch.maximum(goal[rows] - value + (g * trial).sum(1), (g * xi).sum(1))
        falls = above <= 1e-2 * torch.linalg.vector_norm(g, dim=1) * gap * far
        nearer = torch.where(falls[:, None], tighten(y, xi, rows), xi)
        moves = torch.linalg.vector_norm(nearer - x[rows], dim=1) < (1 - 1e-9) * far
        point[rows] = torch.where(moves[:, None], nearer, xi)
        least[rows] = torch.where(moves, torch.inf, least[rows])
        reach = torch.where(falls, torch.where(moves, nearest, 10 * reach), reach)
    return point, gradient, spent


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
    begin: Tensor | None = None  # (K, B, d): points to begin at, beside x and the random ones
    ended: int = 0
    searches: int = 0

    def count(self, ended: int) -> None:
        """Count searches that have ended."""
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
    def of(cls, rows: SearchRows, k: int, iterations: int) -> Outcome:
        """Return the best of k rows per sample."""
        distance, which = rows.distance.reshape(-1, k).min(1)
        best = rows.best[which + k * torch.arange(len(which), device=which.device)]
        lowest, slope = rows.lowest.reshape(-1, k).amin(1), rows.slope.reshape(-1, k).amax(1)
        spent = rows.spent.reshape(-1, k)
        return cls(best, distance, lowest, slope, spent.sum(1), (spent >= iterations).any(1))

    def keep(self, these: Tensor | int) -> Outcome:
        """Return some of the samples."""
        return Outcome(*(getattr(self, field.name)[these] for field in fields(self)))

    def or_better(self, other: Outcome, these: Tensor) -> Outcome:
        """Return the nearer root of two outcomes, with the effort of both; `other` has only these samples."""
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
        self.low, self.high = (bound.flatten(1) for bound in find_bounds(domain, score.x))
        self.x = clip(score.x.flatten(1), self.low, self.high)  # it may stick out of its box by rounding
        self.f, self.gradient = score.at_x, score.gradient_at_x.flatten(1)
        # At level 0 f may have no room below: a sum of ReLUs has none.
        self.goal = (level - SLACK[score.x.dtype] if level > 0 else 0.0) * self.f

    def evaluate(self, points: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and its gradient at flat points."""
        value, gradient = self.score.with_gradient(self._reshape(points), samples)
        return value, gradient.flatten(1)

    def excess(self, points: Tensor, samples: Tensor) -> Tensor:
        """Return how far f lies above its goal; a root has none."""
        return self.score.values(self._reshape(points), samples) - self.goal[samples]

    def _reshape(self, points: Tensor) -> Tensor:
        return points.reshape(-1, *self.score.x.shape[1:])

    def search(self, samples: Tensor, start: Tensor, effort: Effort) -> Outcome:
        """Search from every start (n, k, d) of some samples, k rows each; rows that have ended are removed."""
        each = samples.repeat_interleave(start.shape[1])
        x, low, high, f, goal = (t[each] for t in (self.x, self.low, self.high, self.f, self.goal))
        rows = SearchRows.begin(each, x, low, high, f, goal, start.flatten(0, 1))
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
        """Return x, then k − 1 points spread over a box, or at distances in equal ratios if the domain is open."""
        x, low, high = (t[samples, None] for t in (self.x, self.low, self.high))
        uniform, normal = self._random(k, generator)
        slope = torch.linalg.vector_norm(self.gradient, dim=1)
        newton = torch.where(slope > 0, self.f / slope, 1 + torch.linalg.vector_norm(self.x, dim=1))
        ratio = torch.logspace(-1, 2, k, dtype=torch.float64).to(x)[:, None]
        start = _reflect_into_box(x + newton[samples, None, None] * ratio * normal / x.shape[2] ** 0.5, low, high)
        closed = torch.isfinite(low) & torch.isfinite(high)
        start = torch.where(closed, (low + uniform * (high - low)).nan_to_num(), start)
        start[:, 0] = x[:, 0]
        return start

    def around(self, samples: Tensor, radius: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """Return k points nearer to x than a radius; every better root lies there."""
        x, low, high = (t[samples, None] for t in (self.x, self.low, self.high))
        uniform, normal = self._random(k, generator)
        share = uniform[:, :1] ** (1 / x.shape[2]) / torch.linalg.vector_norm(normal, dim=1, keepdim=True)
        return _reflect_into_box(x + radius[:, None, None] * share * normal, low, high)

    def _random(self, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return uniform and normal numbers (k, d), the same for every sample."""
        size = (k, self.x.shape[1])
        uniform = torch.rand(size, generator=generator, dtype=torch.float64)
        return uniform.to(self.x), torch.randn(size, generator=generator, dtype=torch.float64).to(self.x)

    def tighten(self, origin: Tensor, point: Tensor, samples: Tensor) -> Tensor:
        """Return the root nearest to an origin that the Illinois method finds between it and each root."""
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

    def polish(self, outcome: Outcome, samples: Tensor) -> tuple[Outcome, Tensor]:
        """Refine the roots; return them with the subgradient at each, and keep a root that would move farther away."""
        gradient = torch.zeros_like(outcome.point)
        found = torch.nonzero(torch.isfinite(outcome.distance)).flatten()
        if not len(found):
            return outcome, gradient
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

        def evaluate(xi: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return self.evaluate(xi, own[rows])

        def tighten(origin: Tensor, root: Tensor, rows: Tensor) -> Tensor:
            return self.tighten(origin, root, own[rows])

        settled, gradient[found], spent = settle(x, outcome.point[found], low, high, goal, evaluate, tighten)
        outcome.point[found], outcome.distance[found] = settled, torch.linalg.vector_norm(settled - x, dim=1)
        outcome.spent[found] += spent
        return outcome, gradient


def _reflect_into_box(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Mirror a point at the bounds that it exceeds: clipped, most points would lie on faces."""
    y = torch.where(y < low, 2 * low - y, y)
    return clip(torch.where(y > high, 2 * high - y, y), low, high)


ELEMENTS = 1 << 24  # of the rows that are searched at once, with their linearisations: bounds the memory
AGAIN = 8  # starts, at least, for a sample without a root
NUDGES = 12  # beyond a root that rounding undid, each four times as far


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
    gradient    (B, …): of f at the point; where f has a kink there, the subgradient that satisfies the conditions of
                a nearest root, x − point = λ g; 0 where there is nothing to search
    kkt         (B,): residual of the Karush–Kuhn–Tucker conditions with this gradient, over the distance; 0 at an
                optimum
    reason      a text per sample: why there is no root to find, or ""
    """

    point: Tensor
    distance: Tensor
    value: Tensor
    iterations: Tensor
    converged: Tensor
    angle: Tensor
    gradient: Tensor
    kkt: Tensor
    reason: tuple[str, ...]
    level: float

    def __repr__(self) -> str:
        return f"<Root of {len(self.reason)} sample(s), {int(self.converged.sum())} found; print it for the distances>"

    def __str__(self) -> str:
        return "\n".join(f"sample {k}: {reason or self._line(k)}" for k, reason in enumerate(self.reason))

    def _line(self, k: int) -> str:
        return (
            f"distance {float(self.distance[k]):.6g}, f = {float(self.value[k]):.6g}, "
            f"angle {float(self.angle[k]):.2g}°, KKT residual {float(self.kkt[k]):.2g}, "
            f"{int(self.iterations[k])} evaluations"
        )


def nearest_root(
    f: Function,
    x: Tensor,
    target: Any = None,
    domain: Domain | None = None,
    level: float = 0.1,
    *,
    output: int | str | None = None,
    starts: int | None = None,
    begin: Tensor | None = None,
    iterations: int = 100,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Root:
    """Find the nearest point where f falls to a level: min ‖ξ − x‖² subject to f(ξ) ≤ level · f(x), ξ ∈ domain.

    f           a network (with `target` and `output` as in `explain`), or any differentiable function of a batch
    domain      Real() (the default), NonNegative() or Box(low, high)
    starts      how many starting points per sample, x first; default 64 in up to 8 dimensions, else 1; samples without
                a root get more
    begin       (K, B, …): K additional starting points in the domain for every sample
    iterations  the most evaluations of f and its gradient from each start
    seed        of the other starting points
    progress    called as progress(searches ended, searches begun or known to follow)

    The problem is not convex in general. The result is the best local optimum of all starts.

    >>> import torch, deeptaylor as dt
    >>> root = dt.nearest_root(lambda x: x.sum(1), torch.tensor([[3.0, 1.0]]), level=0.0)
    >>> [round(float(v), 4) for v in root.point[0]]
    [1.0, -1.0]
    """
    _check_arguments(level, starts, iterations)
    with disable_gradients(f):
        score = Score(f, x, target, output)
        chosen = as_domains(domain, [score.x])[0]
        check_inside(score.x, chosen, "x")
        default = 64 if score.x[0].numel() <= 8 else 1
        if begin is not None:
            if begin.ndim != score.x.ndim + 1 or begin.shape[1:] != score.x.shape:
                raise InputError(f"begin must hold points shaped like x, (K, {', '.join(map(str, score.x.shape))}).")
            begin = begin.to(score.x).flatten(2)
        return _solve(Problem(score, chosen, level), Effort(starts or default, iterations, seed, progress, begin))


def _check_arguments(level: float, starts: int | None, iterations: int) -> None:
    if not 0 <= level < 1:
        raise InputError(
            f"level must lie in [0, 1), got {level!r}: it is the share of f(x) that may remain at the root; at 1 every "
            "point would be its own root."
        )
    if (starts is not None and starts < 1) or iterations < 1:
        raise InputError(f"starts and iterations must be at least 1, got {starts!r} and {iterations!r}.")


def _solve(problem: Problem, effort: Effort) -> Root:
    """Search for all samples with f(x) > 0, as many at once as fit into memory."""
    f, x = problem.f, problem.x
    point, gradient = torch.where((f > 0)[:, None], torch.nan, x), torch.zeros_like(x)
    spent = torch.zeros(len(f), dtype=torch.long, device=f.device)
    reason = [f"f(x) = {v:.6g} ≤ 0: x is already a root" if v <= 0 else "" for v in f.tolist()]
    todo = torch.nonzero(f > 0).flatten()
    each = effort.starts + (0 if effort.begin is None else len(effort.begin))
    effort.searches = each * len(todo)
    flat = 0
    for some in todo.split(max(1, ELEMENTS // (min(PLANES, x.shape[1]) * x.shape[1] * each))):
        outcome, gradient[some] = problem.polish(_run_rounds(problem, some, effort), some)
        point[some], spent[some] = outcome.point, outcome.spent
        for k in torch.nonzero(~torch.isfinite(outcome.distance)).flatten().tolist():
            flat += float(outcome.slope[k]) == 0
            reason[int(some[k])] = _no_root_message(problem.level * float(f[some[k]]), outcome.keep(k), effort)
    if flat and flat == len(todo):
        raise InputError(
            "f is constant: its gradient is zero at x and wherever else the search began, for every sample. Is the "
            "network saturated or detached, or the target independent of the input?"
        )
    return _make_root(problem, point, gradient, spent, reason)


def _run_rounds(problem: Problem, some: Tensor, effort: Effort) -> Outcome:
    """Search in rounds and return the best roots.

    Half of the starts, and those that were given, are spread over the domain; half lie within the distance of the best
    root so far. Then samples still without a root get more starts over the domain.
    """
    generator = torch.Generator().manual_seed(effort.seed)
    near = effort.starts // 2
    start = problem.spread(some, effort.starts - near, generator)
    if effort.begin is not None:
        given = effort.begin[:, some].movedim(0, 1)
        start = torch.cat([start, clip(given, problem.low[some, None], problem.high[some, None])], 1)
    outcome = problem.search(some, start, effort)
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


def _no_root_message(wanted: float, outcome: Outcome, effort: Effort) -> str:
    seen = f"the smallest f seen is {float(outcome.lowest):.6g}, the level asks for {wanted:.6g}"
    if bool(outcome.exhausted):
        return f"budget spent: no root after {effort.iterations} evaluations from each start ({seen}); raise iterations"
    return f"no root in the domain was found ({seen})"


def _make_root(problem: Problem, point: Tensor, gradient: Tensor, spent: Tensor, reason: list[str]) -> Root:
    """Return roots with their distances, and how optimal each is."""
    f, x, wanted = problem.f, problem.x, problem.level * problem.f
    found = torch.isfinite(point).all(1)
    there = torch.where(found[:, None], point, x)
    # Rounding differs from batch to batch: in this one, the user's own, every root must be one.
    for k in range(NUDGES):
        value = problem.score.values(there.reshape(problem.score.x.shape))
        short = found & (f > 0) & (value > wanted)
        if not bool(short.any()):
            break
        farther = clip(x + (1 + 1e-6 * 4**k) * (there - x), problem.low, problem.high)
        there = torch.where(short[:, None], farther, there)
    for k in torch.nonzero(short).flatten().tolist():
        found[k], reason[k] = False, "no root that rounding would not undo was found: f is too small for its type"
    angle, kkt = measure_optimality(x, there, gradient, problem.low, problem.high)
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
        gradient=torch.where(searched[:, None], gradient, 0).reshape(problem.score.x.shape),
        kkt=torch.where(found, kkt, torch.nan),
        reason=tuple(reason),
        level=problem.level,
    )


def measure_optimality(x: Tensor, xi: Tensor, gradient: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Measure how well ξ = clip(x − λ g) holds for some λ ≥ 0, as it does for the nearest root of a smooth f.

    Returns the angle between x − ξ and g over the free coordinates, in degrees, and ‖ξ − clip(x − λ g)‖ / ‖x − ξ‖.
    """
    tiny = torch.finfo(x.dtype).tiny
    distance = torch.linalg.vector_norm(x - xi, dim=1).clamp(min=tiny)
    near = SETTLED.get(x.dtype, 1e-4) * distance[:, None]  # of a bound: rounding leaves coordinates a little inside
    free = (xi > low + near) & (xi < high - near)
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
    return angle, torch.linalg.vector_norm(xi - wanted, dim=1) / distance
