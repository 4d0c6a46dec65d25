"""The nearest root of a function in a constrained domain (section II-A of the paper).

nearest_root: minimise ‖ξ − x‖² subject to f(ξ) ≤ level · f(x), ξ in the domain
├── starts        x itself, and points spread over the domain by the same random numbers for every sample
├── Rows          all starts of some samples at once, each a search at its own pace (bundle.py)
├── polish        where f is smooth, the best root of a sample made exact (polish.py)
└── optimality    the angle between gradient and x − ξ, and the residual of the Karush–Kuhn–Tucker conditions
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.domain import Domain, check_inside
from deeptaylor.errors import InputError
from deeptaylor.methods.bundle import PLANES
from deeptaylor.methods.projection import clip
from deeptaylor.methods.root_problem import Effort, Outcome, Problem
from deeptaylor.methods.score import Function, Score, quiet
from deeptaylor.run.inputs import as_domains

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
    kkt         (B,): residual of the Karush–Kuhn–Tucker conditions, over the distance; 0 at an optimum
                where f is smooth. At a kink of a piecewise linear f several gradients share the work, and one alone
                does not reach 0.
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
    with quiet(f):
        score = Score(f, x, target, output)
        chosen = as_domains(domain, [score.x])[0]
        check_inside(score.x, chosen, "x")
        default = 64 if score.x[0].numel() <= 8 else 1
        return _solve(Problem(score, chosen, level), Effort(starts or default, iterations, seed, progress))


def _check_arguments(level: float, starts: int | None, iterations: int) -> None:
    if not 0 <= level < 1:
        raise InputError(
            f"level must lie in [0, 1), got {level!r}: it is the share of f(x) that may remain at the root; at 1 every "
            "point would be its own root."
        )
    if (starts is not None and starts < 1) or iterations < 1:
        raise InputError(f"starts and iterations must be at least 1, got {starts!r} and {iterations!r}.")


def _solve(problem: Problem, effort: Effort) -> Root:
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


def _rounds(problem: Problem, some: Tensor, effort: Effort) -> Outcome:
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


def _no_root(wanted: float, outcome: Outcome, effort: Effort) -> str:
    seen = f"the smallest f seen is {float(outcome.lowest):.6g}, the level asks for {wanted:.6g}"
    if bool(outcome.exhausted):
        return f"budget spent: no root after {effort.iterations} evaluations from each start ({seen}); raise iterations"
    return f"no root in the domain was found ({seen})"


def _result(problem: Problem, point: Tensor, spent: Tensor, reason: list[str]) -> Root:
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
