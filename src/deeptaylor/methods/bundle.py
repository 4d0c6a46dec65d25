"""Searches for near roots, many at once: every row is one search, at its own pace, from its own start.

A row first looks for any root: it projects its start onto the linearisation of f (`anchor` is the start), and walks
away from x where f is flat. Once it has a root it turns: it goes back towards x as far as f allows, and from there
projects x onto its last few linearisations and the domain, as bundle methods do, so that several gradients meet at a
kink of f. Linearisations that lie above f at the best point so far, which happens where f is not convex, are lowered
to it; if as many steps as there are linearisations bring nothing, the row goes on with the one at its best point and
halves its steps. A row that no longer moves looks once more straight towards x, and ends if that brings nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

QUICK, CAREFUL = 8, 24  # steps
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.01)  # of a step, tried when care is needed


def project(
    a: Tensor, G: Tensor, e: Tensor, low: Tensor, high: Tensor, guess: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return y = argmin ‖y − a‖² with G y ≤ e and low ≤ y ≤ high, and the multipliers λ ≥ 0 of the inequalities.

    a, low, high (N, d); G (N, m, d), a row of zeros is not an inequality; e (N, m). The solution has the form
    y(λ) = clip(a − Gᵀλ), where λ maximises the concave dual function. λ is found by Newton's method; every step
    determines the active inequalities and free coordinates again. Full steps come first; if they cycle, the best of a
    few fractions of each step is taken. If no point satisfies all inequalities, y is the point of the box that came
    closest to the conditions.
    """
    boxes = _Boxes(a, G, e, low, high, G.square().sum(2))
    multipliers, gap = _maximise_dual(boxes, torch.zeros_like(e) if guess is None else guess, QUICK, (1.0,))
    rest = torch.nonzero(~torch.isfinite(gap) | (gap > 0)).flatten()
    if len(rest):
        careful, smaller = _maximise_dual(boxes.keep(rest), torch.zeros_like(e[rest]), CAREFUL, _SHARES)
        multipliers[rest] = torch.where((smaller < gap[rest])[:, None], careful, multipliers[rest])
    return boxes.point(multipliers), multipliers


@dataclass(frozen=True)
class _Boxes:
    """The problems: every field has one entry a box."""

    a: Tensor
    G: Tensor
    e: Tensor
    low: Tensor
    high: Tensor
    scale: Tensor  # ‖G_i‖² of every inequality

    def keep(self, these: Tensor) -> _Boxes:
        return _Boxes(*(getattr(self, field.name)[these] for field in fields(self)))

    def unclip(self, multipliers: Tensor) -> Tensor:
        return self.a - torch.bmm(multipliers[:, None], self.G)[:, 0]

    def point(self, multipliers: Tensor) -> Tensor:
        """Return y(λ)."""
        return clip(self.unclip(multipliers), self.low, self.high)

    def violation(self, y: Tensor) -> Tensor:
        return torch.bmm(self.G, y[:, :, None])[:, :, 0] - self.e

    def dual(self, multipliers: Tensor) -> Tensor:
        """Return the dual function, which the multipliers maximise."""
        y = self.point(multipliers)
        return 0.5 * (y - self.a).square().sum(1) + (multipliers * self.violation(y)).sum(1)


def _maximise_dual(boxes: _Boxes, start: Tensor, steps: int, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return the best multipliers found, and by how much they miss the conditions: a length, 0 up to rounding."""
    best, least = start.clone(), torch.full_like(start[:, 0], torch.inf)
    rows = torch.arange(len(start), device=start.device)
    multipliers = start
    for _ in range(steps):
        u = boxes.unclip(multipliers)
        y = clip(u, boxes.low, boxes.high)
        r = boxes.violation(y)
        gap = _gap(boxes, y, multipliers, r)
        better = gap < least[rows]
        best[rows[better]], least[rows[better]] = multipliers[better], gap[better]
        going = torch.nonzero(gap > 0).flatten()
        if not len(going):
            break
        if 2 * len(going) < len(gap):
            boxes, rows = boxes.keep(going), rows[going]
            u, r, multipliers = u[going], r[going], multipliers[going]
        new = _step(boxes, u, r, multipliers)
        if len(shares) > 1:
            tried = torch.stack([multipliers + share * (new - multipliers) for share in shares])
            which = torch.stack([boxes.dual(t) for t in tried]).argmax(0)
            new = tried[which, torch.arange(len(which), device=which.device)]
        multipliers = new
    return best, least


def _gap(boxes: _Boxes, y: Tensor, multipliers: Tensor, r: Tensor) -> Tensor:
    """Return by how much λ ≥ 0, r ≤ 0, λ r = 0 are violated, in units of y; 0 up to rounding."""
    eps = torch.finfo(y.dtype).eps
    gap = torch.minimum(multipliers * boxes.scale, -r).abs().div(boxes.scale.sqrt().clamp(min=eps)).amax(1)
    small = eps**0.5 * torch.linalg.vector_norm(y - boxes.a, dim=1) + 10 * eps * boxes.a.abs().amax(1)
    return torch.where(gap <= small, 0, gap)


def _step(boxes: _Boxes, u: Tensor, r: Tensor, multipliers: Tensor) -> Tensor:
    """Return Newton's step: r would vanish on the active inequalities if the free coordinates stayed the same."""
    eps = torch.finfo(u.dtype).eps
    free = (u >= boxes.low) & (u <= boxes.high)
    H = torch.bmm(boxes.G * free[:, None], boxes.G.transpose(1, 2))
    h = H.diagonal(dim1=1, dim2=2)
    movable = h > eps * boxes.scale
    active = (multipliers * boxes.scale + r > 0) & movable
    ridge = torch.where(active, 1e2 * eps * h.amax(1, keepdim=True), 1)
    system = torch.where(active[:, :, None] & active[:, None, :], H, 0) + torch.diag_embed(ridge)
    right = torch.where(active, r + torch.bmm(H, multipliers[:, :, None])[:, :, 0], 0)
    solved = torch.linalg.solve(system, right).clamp(min=0)
    # An inequality whose coordinates are all at their bounds keeps its multiplier: no step would change it.
    return torch.where(movable | (r <= 0), solved, multipliers)


def clip(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the nearest point of the box."""
    return torch.minimum(torch.maximum(y, low), high)


PLANES = 8  # linearisations of f that a row remembers
SHORTEST = 1e-3  # step, as a share of the full one, at which a row gives up
LOWEST_AIM = 0.3  # below the level, as a share of f(x)
LAP = 10  # steps in which a row with a root must come nearer
GAIN = 1e-3  # of the distance: less is not worth another turn

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Tighten = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class SearchRows:
    """Searches in progress: every field has one entry per row."""

    number: Tensor  # which search this is, also when others have ended
    sample: Tensor  # which sample of the batch it belongs to
    x: Tensor
    low: Tensor
    high: Tensor
    top: Tensor  # f(x)
    level: Tensor  # what f must fall to
    anchor: Tensor  # the point that is projected
    trial: Tensor  # the next point to evaluate
    centre: Tensor  # the best point so far by distance and violation together
    centre_value: Tensor
    centre_gradient: Tensor
    penalty: Tensor  # what a violation of 1 costs, in squared distance
    aim: Tensor  # how far below the level to aim, as a share of f(x): small once roots are hit
    step: Tensor
    nulls: Tensor  # steps since the centre moved
    mark: Tensor  # distance and violation together, a lap ago
    G: Tensor  # (n, m, d): the linearisations G ξ ≤ e
    e: Tensor
    multipliers: Tensor  # (n, m): the shares of the linearisations in the last projection
    used: Tensor  # (n, m): when each was last active, 0 for none
    best: Tensor
    distance: Tensor  # of the best root, infinite before there is one
    lowest: Tensor  # the smallest f seen
    slope: Tensor  # the largest gradient seen
    spent: Tensor

    @classmethod
    def begin(
        cls, sample: Tensor, x: Tensor, low: Tensor, high: Tensor, top: Tensor, level: Tensor, start: Tensor
    ) -> SearchRows:
        """Return rows that will evaluate their starting points first."""
        n, d = x.shape
        m = min(PLANES, d)
        number = torch.arange(n, device=x.device)

        def each(value: float) -> Tensor:
            return torch.full_like(top, value)

        return cls(
            number=number,
            sample=sample,
            x=x,
            low=low,
            high=high,
            top=top,
            level=level,
            anchor=start,
            trial=start,
            centre=start,
            centre_value=each(torch.inf),
            centre_gradient=torch.zeros_like(x),
            penalty=each(0),
            aim=each(1e-3),
            step=each(1),
            nulls=torch.zeros_like(number),
            mark=each(torch.inf),
            G=x.new_zeros(n, m, d),
            e=x.new_zeros(n, m),
            multipliers=x.new_zeros(n, m),
            used=number.new_zeros(n, m),
            best=torch.full_like(x, torch.nan),
            distance=each(torch.inf),
            lowest=each(torch.inf),
            slope=each(0),
            spent=torch.zeros_like(number),
        )

    def keep(self, these: Tensor) -> SearchRows:
        """Return some of the rows."""
        return SearchRows(**{field.name: getattr(self, field.name)[these] for field in fields(self)})

    def put(self, rows: SearchRows) -> None:
        """Write the results of selected rows back to all rows."""
        for name in ("best", "distance", "lowest", "slope", "spent"):
            getattr(self, name)[rows.number] = getattr(rows, name)

    # --- one step -------------------------------------------------------------------------------------------------

    def advance(self, evaluate: Evaluate, tighten: Tighten, time: int) -> Tensor:
        """Evaluate the trial of every row and choose the next; return True where the row goes on."""
        value, gradient = evaluate(self.trial, self.sample)
        sound = torch.isfinite(value) & torch.isfinite(gradient).all(1)
        value, gradient = torch.where(sound, value, torch.inf), torch.where(sound[:, None], gradient, 0)
        steep = gradient.abs().amax(1)
        self.spent = self.spent + 1
        self.lowest = torch.minimum(self.lowest, value)
        self.slope = torch.maximum(self.slope, steep)
        turned = self._note_root(value)
        self._remember(value, gradient, time)
        self._choose_centre(value, gradient, time)
        lost = (steep == 0) & ~torch.isfinite(self.distance)
        trial = torch.where(lost[:, None], self._go_farther(), self._project(time))
        still = self._is_near(trial, self.trial)
        self.nulls = torch.where(still, self.nulls + self.G.shape[1], self.nulls)
        # Without a root yet, rounding may be what holds it: it aims lower.
        held = still & ~torch.isfinite(self.distance) & (self.aim < LOWEST_AIM)
        self.aim = torch.where(held, 4 * self.aim, self.aim)
        ended = ~sound | (self.step <= SHORTEST) | (still & ~held & self._is_near(trial, self.centre)) | self._is_idle()
        self.trial = trial
        return ~ended | self._turn(turned | ended, tighten)

    def _is_idle(self) -> Tensor:
        """Return True where a lap has ended in which a row with a root found no nearer one."""
        lap = self.spent % LAP == 0
        merit = self._merit(self.centre, self.centre_value)
        idle = lap & torch.isfinite(self.distance) & (merit > (1 - GAIN) * self.mark)
        self.mark = torch.where(lap, merit, self.mark)
        return idle

    def _is_near(self, a: Tensor, b: Tensor) -> Tensor:
        """Return True where two points are equal up to rounding."""
        tiny = 1e-9 if a.dtype == torch.float64 else 1e-5
        return _norm(a - b) <= tiny * (_norm(a - self.x) + _norm(b - self.x))

    def _note_root(self, value: Tensor) -> Tensor:
        """Keep the nearest root; return True where it is the first of a row that did not start at x."""
        root, far = value <= self.level, _norm(self.trial - self.x)
        first = root & (self.anchor != self.x).any(1)
        nearer = root & (far < self.distance)
        self.distance = torch.where(nearer, far, self.distance)
        self.best = torch.where(nearer[:, None], self.trial, self.best)
        known = torch.isfinite(self.distance)
        self.aim = torch.where(root, self.aim / 4, torch.where(known, self.aim, (1.5 * self.aim).clamp(max=LOWEST_AIM)))
        return first

    def _turn(self, these: Tensor, tighten: Tighten) -> Tensor:
        """Move from the best root towards x as far as f allows, and restart there; return True where that helped."""
        rows = torch.nonzero(these & torch.isfinite(self.distance)).flatten()
        worth = torch.zeros_like(these)
        if not len(rows):
            return worth
        x, best, centre, sample = self.x[rows], self.best[rows], self.centre[rows], self.sample[rows]
        # The centre may be nearer and not quite a root: the root beside it, if that is nearer still, is the better one.
        short = (self.centre_value > self.level)[rows] & (self.anchor[rows] == x).all(1)
        beside = tighten(torch.where(short[:, None], centre, x), best, sample)
        nearer = torch.where((_norm(beside - x) < _norm(best - x))[:, None], beside, best)
        nearer = tighten(x, nearer, sample)
        far = _norm(nearer - x)
        worth[rows] = (far < (1 - GAIN) * self.distance[rows]) | (self.anchor[rows] != x).any(1)
        self.best[rows], self.distance[rows] = nearer, far
        self.trial[rows] = nearer
        self.anchor = torch.where(worth[:, None], self.x, self.anchor)
        self.centre_value = torch.where(worth, torch.inf, self.centre_value)
        self._forget(torch.nonzero(worth).flatten())
        return worth

    def _forget(self, row: Tensor) -> None:
        """Remove all linearisations of some rows."""
        self.G[row], self.e[row], self.used[row], self.multipliers[row] = 0, 0, 0, 0

    def _remember(self, value: Tensor, gradient: Tensor, time: int) -> None:
        """Add f(trial) + g·(ξ − trial) ≤ level, unless flat, replacing the linearisation that was unused longest."""
        row = torch.nonzero(gradient.any(1)).flatten()
        slot = self.used[row].argmin(1)
        self.G[row, slot] = gradient[row]
        self.e[row, slot] = (self.level - value + (gradient * self.trial).sum(1))[row]
        self.used[row, slot] = time
        self.multipliers[row, slot] = 0

    def _choose_centre(self, value: Tensor, gradient: Tensor, time: int) -> None:
        """Move the centre to the trial where its distance and violation are better."""
        better = self._merit(self.trial, value) < self._merit(self.centre, self.centre_value)
        better = better | ~torch.isfinite(self.centre_value)
        self.centre = torch.where(better[:, None], self.trial, self.centre)
        self.centre_value = torch.where(better, value, self.centre_value)
        self.centre_gradient = torch.where(better[:, None], gradient, self.centre_gradient)
        self.nulls = torch.where(better, 0, self.nulls + 1)
        tired = self.nulls > self.G.shape[1]
        self.step = torch.where(tired, self.step / 2, 1.0)
        row = torch.nonzero(tired & self.centre_gradient.any(1)).flatten()
        self._forget(row)
        self.G[row, 0] = self.centre_gradient[row]
        self.e[row, 0] = (self.level - self.centre_value + (self.centre_gradient * self.centre).sum(1))[row]
        self.used[row, 0] = time
        above = torch.bmm(self.G, self.centre[:, :, None])[:, :, 0] - self.e - (self.centre_value - self.level)[:, None]
        self.e = self.e + torch.where(self.used > 0, above.clamp(min=0), 0)

    def _merit(self, point: Tensor, value: Tensor) -> Tensor:
        violation = (value - self.level).clamp(min=0)
        return 0.5 * (point - self.anchor).square().sum(1) + self.penalty * violation

    def _project(self, time: int) -> Tensor:
        """Return the anchor projected onto linearisations and domain, or a point on the way to it."""
        below = torch.where(self.used > 0, self.e - (self.aim * self.top)[:, None], 0)
        y, multipliers = project(self.anchor, self.G, below, self.low, self.high, self.multipliers)
        self.multipliers = multipliers
        self.used = torch.where(multipliers > 0, time, self.used)
        self.penalty = torch.maximum(self.penalty, 2 * multipliers.sum(1))
        return self.centre + self.step[:, None] * (y - self.centre)

    def _go_farther(self) -> Tensor:
        """Return a point twice as far from x, to leave regions where f is flat."""
        return clip(self.x + 2 * (self.trial - self.x), self.low, self.high)


def _norm(t: Tensor) -> Tensor:
    return torch.linalg.vector_norm(t, dim=1)  # type: ignore[no-any-return]
