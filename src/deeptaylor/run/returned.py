"""Redistribute what biases absorbed to the pixels, place by place (bias="returned"; docs/theory.md, 10).

    R'_x = R_x (1 + Σ_p B_p(x) G_p / r_p)          what pixel x shows
    r_p  = Σ_x B_p(x) R_x                          what reached the pixels under place p
    G_p  = T w_p / Σ w                             what place p is given of T, the relevance absorbed by biases
    w_p  = max(0, P_p − r_p) + A P_p / Σ P         what was absorbed below place p, and its part of A, absorbed above

P_p is the relevance of place p of the last feature map, all channels together; B_p(x) says how much pixel x lies under
place p. Where nothing reached the pixels under a place, biases keep G_p. What was dropped stays dropped. A network
without a feature map has no places: biases keep all of T.

The result is a way to show a map, not a decomposition: nothing in the network assigns a bias to pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.linear_map import Maybe, sum_windows
from deeptaylor.rules.steps import ActivationStep, BlockStep, LpStep, MaxStep, PassStep, Step
from deeptaylor.run.result import Result
from deeptaylor.run.values import ForwardValues, Layout

__all__ = ["RETURNED", "FeatureMap", "PlaceCollector", "find_feature_map", "redistribute"]

RETURNED = "returned"
Parts = tuple[Tensor, ...]
Sides = tuple[int, ...] | None


class FeatureMap:
    """The last tensors with places, read by steps without.

    patches   the sides of the patches of the input, if each place sees one of its own
    """

    def __init__(self, nodes: frozenset[str], readers: frozenset[str | None], patches: Sides) -> None:
        self.nodes, self.readers, self.patches = nodes, readers, patches


def find_feature_map(
    steps: Sequence[Step], layout: Mapping[str, Layout], inputs: Sequence[str], bias: str
) -> FeatureMap | None:
    """Find where relevance first meets places; None if biases keep their share.

    They keep it if another mode is asked for, if the network has no places or several inputs, and under rules that
    subtract: the sum of a map of both signs does not say how much arrived.
    """
    signed = any(isinstance(step, BlockStep) and step.rule.cancels for step in steps)
    if bias != RETURNED or signed or len(inputs) != 1 or not _is_spatial(steps, layout, inputs[0]):
        return None
    axes = len(layout[inputs[0]].sizes)

    def has_places(name: str) -> bool:
        where = layout[name]
        return where.plain and len(where.sizes) == axes and where.shape(1)[2:].numel() > 1

    nodes: dict[str, None] = {}
    readers: list[str | None] = []
    for k, step in enumerate(steps):
        reader = None if k == 0 else step.node
        if reader is not None and has_places(reader):
            continue
        for name in step.inputs:
            same = not nodes or layout[name].shape(1)[2:] == layout[next(iter(nodes))].shape(1)[2:]
            if name not in inputs and has_places(name) and same:
                nodes[name] = None
                readers.append(reader)
    if not nodes:
        return None
    return FeatureMap(frozenset(nodes), frozenset(readers), _find_patches(steps, nodes, inputs[0]))


def _is_spatial(steps: Iterable[Step], layout: Mapping[str, Layout], name: str) -> bool:
    """True if the axes behind the first two are places: always of pictures; of (batch, a, b) if windows run along b."""
    shape = layout[name].shape(1)
    if len(shape) != 3:
        return len(shape) > 3

    def runs_along(read: str) -> bool:
        return read in layout and len(layout[read].sizes) == 3 and layout[read].shape(1)[2] == shape[2]

    for step in steps:
        if isinstance(step, MaxStep | LpStep) and runs_along(step.inputs[0]):
            return True
        windows = step.block.maps if isinstance(step, BlockStep) else ()
        if any(isinstance(m, Convolution) and runs_along(m.operands[0]) for m in windows):
            return True
    return False


def _find_patches(steps: Iterable[Step], nodes: Iterable[str], name: str) -> Sides:
    """Find the sides of patches: a convolution with the kernel as stride cuts the input, element by element after."""
    by_node = {step.node: step for step in steps}
    below, sides = list(nodes), set[Sides]()
    while below:
        step = by_node.get(below.pop())
        if isinstance(step, PassStep | ActivationStep):
            below += step.inputs
        else:
            maps = step.block.maps if isinstance(step, BlockStep) and step.inputs == (name,) else ()
            sides.add(next((m.stride for m in maps if isinstance(m, Convolution) and m.patches), None))
    return sides.pop() if len(sides) == 1 else None


class PlaceCollector:
    """Sums up, during a reverse pass, the relevance that arrives at the last feature map."""

    def __init__(self, run: ForwardValues, found: FeatureMap | None) -> None:
        self._run, self._found = run, found
        self.sums: Parts = ()

    def collect(self, node: str | None, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """Add what the step at a node (None: the score) gives to its inputs."""
        if self._found is None or node not in self._found.readers:
            return
        for name, out in zip(names, outs, strict=True):
            if out is not None and name in self._found.nodes:
                P = out.expand(self._run.shape(name)).sum(1)
                self.sums = (self.sums[0] + P,) if self.sums else (P,)


def redistribute(result: Result, patches: Sides = None) -> Result:
    """Give what biases absorbed to the pixels, in the map and in its rivals'; `Result.redistributed` says how much.

    patches   as in `FeatureMap`
    """
    assert result.entries is not None
    lead, wide = result.score.ndim, torch.promote_types(result.score.dtype, torch.float32)
    absorbed = result.entries[..., 2, :].sum(-2, dtype=wide)
    absorbed = absorbed.movedim(0, 1) if lead == 2 else absorbed
    relevance, given = _by_place(result.relevance, result.places, absorbed, lead, patches)
    rivals = result.rivals
    if rivals is not None:
        missing = (rivals.began.to(wide) - _sum(rivals.relevance, lead, wide)).clamp(min=0)
        theirs, _ = _by_place(rivals.relevance, rivals.places, missing, lead, patches)
        rivals = replace(rivals, relevance=theirs)
    return replace(result, relevance=relevance, rivals=rivals, redistributed=given)


def _by_place(parts: Parts, places: Parts, absorbed: Tensor, lead: int, patches: Sides) -> tuple[Parts, Tensor]:
    """R' and the part of the absorbed relevance that pixels were given."""
    if not places:  # no relevance came to the feature map
        return parts, torch.zeros_like(absorbed)
    R, P = parts[0].sum(lead, dtype=absorbed.dtype), places[0].to(absorbed.dtype)
    sides = patches or (None,) * (P.ndim - lead)
    under = [_overlap(n, N, R, side) for n, N, side in zip(P.shape[lead:], R.shape[lead:], sides, strict=True)]
    r = R
    for d, (by_place, _) in enumerate(under, start=lead):
        r = sum_windows(r, d, *by_place)
    total = _whole(P, lead)
    above = (_whole(R, lead) + absorbed - total).clamp(min=0) / torch.where(total > 0, total, 1)
    w = (P - r).clamp(min=0) + _as(above, P) * P
    all_of_it = _whole(w, lead)
    G = w * _as(torch.where(all_of_it > 0, absorbed / torch.where(all_of_it > 0, all_of_it, 1), 0), w)
    some = _has_arrived(r, P)
    times = torch.where(some, G / torch.where(some, r, 1), 0)
    for d, (_, by_pixel) in enumerate(under, start=lead):
        times = sum_windows(times, d, *by_pixel)
    everywhere = (some | (G == 0)).flatten(lead).all(-1)
    given = torch.where(everywhere, absorbed, _whole(torch.where(some, G, 0), lead))
    return ((parts[0] * (1 + times).unsqueeze(lead)).to(parts[0].dtype),), given


def _overlap(places: int, pixels: int, like: Tensor, side: int | None = None) -> tuple[Parts, Parts]:
    """How much pixels lie under places along one side: for each place, then for each pixel, the first and its weights.

    A pixel lies under two places at most, and its weights add up to one; of patches with a `side`, under its own.
    """
    step = 2 * pixels  # from place to place; in whole numbers, so that no digits are lost along a long signal
    x, p = torch.arange(pixels, device=like.device), torch.arange(places, device=like.device)
    if side is not None:
        cut = torch.where(x // side < places, x // side, places - 1)
        seen = (x < side * places).to(like.dtype)[:, None]
        return (p * side, like.new_ones(places, side)), (cut, seen)

    def position(x: Tensor) -> Tensor:
        at, last = (2 * x + 1) * places - pixels, step * (places - 1)
        return torch.where(at < 0, 0, torch.where(at > last, last, at))  # not clamp: inductor fails on one in an index

    def weight(x: Tensor, p: Tensor) -> Tensor:
        near = (step - (position(x) - step * p).abs()).clamp(min=0)
        return torch.where(x < pixels, near, 0).to(like.dtype) / step

    first = torch.where(p > 0, ((2 * p - 1) * pixels - places) // (2 * places) + 1, 0)
    below = first[:, None] + torch.arange(min(-(-step // places), pixels), device=like.device)
    place = position(x) // step
    above = place[:, None] + torch.arange(2, device=like.device)
    return (first, weight(below, p[:, None])), (place, weight(x[:, None], above))


def _has_arrived(reached: Tensor, whole: Tensor) -> Tensor:
    """True where enough arrived to be enlarged: of less, too few digits are left."""
    least = torch.finfo(reached.dtype)
    return reached > whole * (least.tiny / least.eps)


def _whole(t: Tensor, lead: int) -> Tensor:
    return t.flatten(lead).sum(-1)


def _sum(parts: Parts, lead: int, dtype: torch.dtype) -> Tensor:
    """Σ R of each sample (and target)."""
    return torch.stack([R.flatten(lead).sum(-1, dtype=dtype) for R in parts]).sum(0)


def _as(t: Tensor, like: Tensor) -> Tensor:
    return t.reshape(*t.shape, *[1] * (like.ndim - t.ndim))
