"""Search for the nearest root of a network that is not convex: many starts, of which the best few are searched fully.

    search_globally ──► make_starts     x with a part blackened, x with random patches blackened
                        choose_starts   a few cheap steps from every start; the nearest roots that they meet
                        nearest_root    a full search from those, and from roots that are known

It finds roots that are nearer than those of a search from x. It proves nothing: there may be nearer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.domain import find_bounds
from deeptaylor.methods.bundle import clip, project
from deeptaylor.methods.root_search import Root
from deeptaylor.paper.digit_pairs import BLACK

SQUARES = (10, 7)  # sides of the parts that are blackened
APART = 5  # pixels between such parts
RANDOM = 24  # starts with random patches
PATCH, SHARE = 4, 0.3  # their side, and the share of a picture that they take
STEPS, KEPT = 4, 4  # cheap steps from every start; starts that are searched fully
_FARTHER = (1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0)  # times the way from x at which a root is looked for
_AT_ONCE = 20  # pictures

Tell = Callable[[int, int], None]


def search_globally(
    network: nn.Module,
    x: Tensor,
    *,
    level: float,
    domain: dt.Box,
    seed: int = 0,
    more: int = 1,
    known: Tensor | None = None,
    tell: Tell = lambda done, of: None,
) -> Root:
    """Return the nearest roots found from many starts for each picture in x (N, 1, height, width).

    more   how many times as many random starts, and as many full searches
    known  (K, N, 1, height, width): roots that other searches found; the search begins there as well
    """
    roots = []
    for start in range(0, len(x), _AT_ONCE):
        some = x[start : start + _AT_ONCE]
        begin = choose_starts(network, some, level, domain, seed, more)
        if known is not None:
            there = known[:, start : start + _AT_ONCE]
            begin = torch.cat([begin, torch.where(torch.isfinite(there), there, some)])
        roots.append(dt.nearest_root(network, some, domain=domain, level=level, begin=begin, seed=seed))
        tell(start + len(some), len(x))
    return _join(roots)


def _join(roots: Sequence[Root]) -> Root:
    """Return the roots of all pictures as one."""
    first, *_ = roots
    tensors: dict[str, Any] = {
        field.name: torch.cat([getattr(root, field.name) for root in roots])
        for field in fields(first)
        if isinstance(getattr(first, field.name), Tensor)
    }
    return replace(first, reason=tuple(text for root in roots for text in root.reason), **tensors)


def make_starts(x: Tensor, seed: int = 0, random: int = RANDOM) -> Tensor:
    """Return starts (K, N, 1, height, width): roots of a digit often lack a part of it."""
    height, width = x.shape[-2:]
    found = []
    for side in SQUARES:
        for row in range(2, height - side + 1, APART):
            for column in range(0, width - side + 1, APART):
                start = x.clone()
                start[..., row : row + side, column : column + side] = BLACK
                found.append(start)
    generator = torch.Generator().manual_seed(seed)
    patches = torch.rand(random, 1, 1, -(-height // PATCH), -(-width // PATCH), generator=generator) < SHARE
    black = patches.repeat_interleave(PATCH, 3).repeat_interleave(PATCH, 4)[..., :height, :width]
    return torch.cat([torch.stack(found), torch.where(black, BLACK, x)])


def choose_starts(network: nn.Module, x: Tensor, level: float, domain: dt.Box, seed: int, more: int) -> Tensor:
    """Return the best starts (K, N, 1, height, width) of each picture.

    From every start, project x onto the linearisation of f where the last step ended, a few times. The nearest root on
    the way, or beyond the last point as seen from x, is the start; best are the nearest of them.
    """
    begin = make_starts(x, seed, more * RANDOM)
    a, y = x.flatten(1).repeat(len(begin), 1), begin.flatten(0, 1).flatten(1)
    low, high = (bound.expand_as(a) for bound in find_bounds(domain, a))
    with torch.no_grad():
        goal = level * network(x).repeat(len(begin))
    distance, point = torch.full_like(goal, torch.inf), y

    def note(y: Tensor, f: Tensor) -> None:
        nonlocal distance, point
        far = torch.linalg.vector_norm(y - a, dim=1)
        nearer = (f <= goal) & (far < distance)
        distance, point = torch.where(nearer, far, distance), torch.where(nearer[:, None], y, point)

    for _ in range(STEPS):
        at = y.reshape(-1, *x.shape[1:]).requires_grad_()
        f = network(at)
        gradient = torch.autograd.grad(f.sum(), at)[0].flatten(1)
        f = f.detach()
        note(y, f)
        edge = goal - f + (gradient * y).sum(1)
        y = project(a, gradient[:, None], edge[:, None], low, high)[0]
    with torch.no_grad():
        for times in _FARTHER:
            farther = clip(a + times * (y - a), low, high)
            note(farther, network(farther.reshape(-1, *x.shape[1:])))
    best = distance.reshape(len(begin), -1).argsort(0)[: more * KEPT]
    each = torch.arange(len(x))
    return point.reshape(begin.shape)[best, each]
