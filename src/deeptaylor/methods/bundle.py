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

from deeptaylor.methods.projection import clip, project

PLANES = 8  # linearisations of f that a row remembers
SHORTEST = 1e-3  # step, as a share of the full one, at which a row gives up
LOWEST_AIM = 0.3  # below the level, as a share of f(x)
LAP = 10  # steps in which a row with a root must come nearer
GAIN = 1e-3  # of the distance: less is not worth another turn

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Tighten = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass
class Rows:
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
    ) -> Rows:
        """Rows about to evaluate their starts."""
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

    def keep(self, these: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(**{field.name: getattr(self, field.name)[these] for field in fields(self)})

    def put(self, rows: Rows) -> None:
        """Write what rows found back to where they came from."""
        for name in ("best", "distance", "lowest", "slope", "spent"):
            getattr(self, name)[rows.number] = getattr(rows, name)

    # --- one step -------------------------------------------------------------------------------------------------

    def advance(self, evaluate: Evaluate, tighten: Tighten, time: int) -> Tensor:
        """Evaluate the trial of every row and choose the next; True where the row lives on."""
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
        trial = torch.where(lost[:, None], self._farther(), self._projected(time))
        still = self._near(trial, self.trial)
        self.nulls = torch.where(still, self.nulls + self.G.shape[1], self.nulls)
        # Without a root yet, rounding may be what holds it: it aims lower.
        held = still & ~torch.isfinite(self.distance) & (self.aim < LOWEST_AIM)
        self.aim = torch.where(held, 4 * self.aim, self.aim)
        ended = ~sound | (self.step <= SHORTEST) | (still & ~held & self._near(trial, self.centre)) | self._idle()
        self.trial = trial
        return ~ended | self._turn(turned | ended, tighten)

    def _idle(self) -> Tensor:
        """True where a lap has ended that brought a row with a root no nearer."""
        lap = self.spent % LAP == 0
        merit = self._merit(self.centre, self.centre_value)
        idle = lap & torch.isfinite(self.distance) & (merit > (1 - GAIN) * self.mark)
        self.mark = torch.where(lap, merit, self.mark)
        return idle

    def _near(self, a: Tensor, b: Tensor) -> Tensor:
        """True where two points are the same but for rounding."""
        tiny = 1e-9 if a.dtype == torch.float64 else 1e-5
        return _length(a - b) <= tiny * (_length(a - self.x) + _length(b - self.x))

    def _note_root(self, value: Tensor) -> Tensor:
        """Keep the nearest root; True where it is the first of a row that did not start at x."""
        root, far = value <= self.level, _length(self.trial - self.x)
        first = root & (self.anchor != self.x).any(1)
        nearer = root & (far < self.distance)
        self.distance = torch.where(nearer, far, self.distance)
        self.best = torch.where(nearer[:, None], self.trial, self.best)
        known = torch.isfinite(self.distance)
        self.aim = torch.where(root, self.aim / 4, torch.where(known, self.aim, (1.5 * self.aim).clamp(max=LOWEST_AIM)))
        return first

    def _turn(self, these: Tensor, tighten: Tighten) -> Tensor:
        """Go from the best root towards x as far as f allows, and begin anew there; True where that was worth it."""
        rows = torch.nonzero(these & torch.isfinite(self.distance)).flatten()
        worth = torch.zeros_like(these)
        if not len(rows):
            return worth
        x, best, centre, sample = self.x[rows], self.best[rows], self.centre[rows], self.sample[rows]
        # The centre may be nearer and not quite a root: the root beside it, if that is nearer still, is the better one.
        short = (self.centre_value > self.level)[rows] & (self.anchor[rows] == x).all(1)
        beside = tighten(torch.where(short[:, None], centre, x), best, sample)
        nearer = torch.where((_length(beside - x) < _length(best - x))[:, None], beside, best)
        nearer = tighten(x, nearer, sample)
        far = _length(nearer - x)
        worth[rows] = (far < (1 - GAIN) * self.distance[rows]) | (self.anchor[rows] != x).any(1)
        self.best[rows], self.distance[rows] = nearer, far
        self.trial[rows] = nearer
        self.anchor = torch.where(worth[:, None], self.x, self.anchor)
        self.centre_value = torch.where(worth, torch.inf, self.centre_value)
        self._forget(torch.nonzero(worth).flatten())
        return worth

    def _forget(self, row: Tensor) -> None:
        """Drop all linearisations of some rows."""
        self.G[row], self.e[row], self.used[row], self.multipliers[row] = 0, 0, 0, 0

    def _remember(self, value: Tensor, gradient: Tensor, time: int) -> None:
        """Add f(trial) + g·(ξ − trial) ≤ level, unless flat, in the place of the linearisation longest without use."""
        row = torch.nonzero(gradient.any(1)).flatten()
        slot = self.used[row].argmin(1)
        self.G[row, slot] = gradient[row]
        self.e[row, slot] = (self.level - value + (gradient * self.trial).sum(1))[row]
        self.used[row, slot] = time
        self.multipliers[row, slot] = 0

    def _choose_centre(self, value: Tensor, gradient: Tensor, time: int) -> None:
        """Move the centre where the trial is better by distance and violation."""
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

    def _projected(self, time: int) -> Tensor:
        """The anchor projected onto linearisations and domain, or a part of the way there."""
        below = torch.where(self.used > 0, self.e - (self.aim * self.top)[:, None], 0)
        y, multipliers = project(self.anchor, self.G, below, self.low, self.high, self.multipliers)
        self.multipliers = multipliers
        self.used = torch.where(multipliers > 0, time, self.used)
        self.penalty = torch.maximum(self.penalty, 2 * multipliers.sum(1))
        return self.centre + self.step[:, None] * (y - self.centre)

    def _farther(self) -> Tensor:
        """Twice as far from x: where f is flat there is no better advice."""
        return clip(self.x + 2 * (self.trial - self.x), self.low, self.high)


def _length(t: Tensor) -> Tensor:
    return torch.linalg.vector_norm(t, dim=1)  # type: ignore[no-any-return]
