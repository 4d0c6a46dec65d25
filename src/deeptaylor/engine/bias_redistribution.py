"""Redistribute the relevance that biases absorbed to the pixels, place by place (bias="returned"; docs/theory.md, 10).

    R'_x = R_x (1 + Σ_p B_p(x) G_p / r_p)          the relevance that is shown at pixel x
    r_p  = Σ_x B_p(x) R_x                          the relevance that reached the pixels under place p
    G_p  = T w_p / Σ w                             the part of T that place p gets; T: all that biases absorbed
    w_p  = max(0, P_p − r_p) + A P_p / Σ P         what was absorbed below place p, and its part of A, absorbed above

P_p is the relevance of place p of the last feature map, summed over channels. B_p(x) is how much pixel x lies under
place p. If no relevance reached the pixels under a place, biases keep G_p. What was dropped stays dropped. In a network
without a feature map, biases keep all of T.

The result is a way to show a map, not a decomposition: nothing in the network assigns a bias to pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.result import Result
from deeptaylor.engine.sample_layout import Layout
from deeptaylor.engine.spatial import find_places
from deeptaylor.graph.capture import CapturedGraph
from deeptaylor.maps.convolution import Convolution
from deeptaylor.maps.linear_map import Maybe, sum_windows
from deeptaylor.plan.plan import StepPlan
from deeptaylor.rules.steps import ActivationStep, BlockStep, LpStep, MaxStep, PassStep, Step
from deeptaylor.settings import RETURNED

__all__ = ["FeatureMap", "PlaceCollector", "find_feature_map", "redistribute"]

Parts = tuple[Tensor, ...]
Sides = tuple[int, ...] | None


@dataclass(frozen=True)
class FeatureMap:
    """The last tensors with places (rows and columns), which are read by steps without places.

    nodes     the place axes of each tensor, in the order of the input's
    readers   the nodes of the steps that read them; None: the score's step
    channels  the channel axis of the input
    patches   the sides of the input's patches, if each place sees one patch
    """

    nodes: Mapping[str, tuple[int, ...]]
    readers: frozenset[str | None]
    channels: int = 1
    patches: Sides = None


def find_feature_map(
    captured: CapturedGraph, planned: StepPlan, layout: Mapping[str, Layout], bias: str, channels: int
) -> FeatureMap | None:
    """Return the feature map at which relevance first meets places; None if biases keep their share.

    They keep it for every other value of `bias`, if the network has no places or several inputs, and for rules that
    subtract: the sum of a map with both signs does not say how much relevance arrived.

    channels   the channel axis of the input
    """
    steps, inputs = planned.steps, planned.inputs
    signed = any(isinstance(step, BlockStep) and step.rule.cancels for step in steps)
    if bias != RETURNED or signed or len(inputs) != 1 or not _is_spatial(steps, layout, inputs[0], channels):
        return None
    axes = len(layout[inputs[0]].sizes)
    place_axes, default_axes = find_places(captured, layout, channels), tuple(range(2, axes))

    def count_places(name: str) -> tuple[int, ...]:
        """Return the number of places along each axis; () if the tensor has none."""
        where, shape = layout[name], layout[name].shape(1)
        along = place_axes.get(name, default_axes)
        if not where.plain or len(shape) != axes or not along:
            return ()
        sizes = tuple(shape[d] for d in along)
        return sizes if math.prod(sizes) > 1 else ()

    nodes: dict[str, tuple[int, ...]] = {}
    readers: list[str | None] = []
    for k, step in enumerate(steps):
        reader = None if k == 0 else step.node
        if reader is not None and count_places(reader):
            continue
        for name in step.inputs:
            same = not nodes or count_places(name) == count_places(next(iter(nodes)))
            if name not in inputs and count_places(name) and same:
                nodes[name] = place_axes.get(name, default_axes)
                readers.append(reader)
    if not nodes:
        return None
    return FeatureMap(nodes, frozenset(readers), channels, _find_patches(steps, nodes, inputs[0]))


def _is_spatial(steps: Iterable[Step], layout: Mapping[str, Layout], name: str, channels: int) -> bool:
    """Return True for pictures and volumes, and for signals along which a convolution or a pooling window slides."""
    shape = layout[name].shape(1)
    if len(shape) != 3:
        return len(shape) > 3
    length = shape[3 - channels]

    def runs_along(read: str) -> bool:
        return read in layout and len(layout[read].sizes) == 3 and layout[read].shape(1)[2] == length

    for step in steps:
        if isinstance(step, MaxStep | LpStep) and runs_along(step.inputs[0]):
            return True
        windows = step.block.maps if isinstance(step, BlockStep) else ()
        if any(isinstance(m, Convolution) and runs_along(m.operands[0]) for m in windows):
            return True
    return False


def _find_patches(steps: Iterable[Step], nodes: Iterable[str], name: str) -> Sides:
    """Return the sides of the input's patches; None if places do not see one patch each.

    They do if a convolution whose stride is its kernel reads the input, and only element-wise steps follow it.
    """
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
    """Sums the relevance that arrives at the last feature map during a reverse pass."""

    def __init__(self, run: ForwardValues, feature_map: FeatureMap | None) -> None:
        self._run, self._feature_map = run, feature_map
        self.sums: Parts = ()

    def collect(self, node: str | None, names: Sequence[str], outs: Sequence[Maybe]) -> None:
        """Add the relevance that the step at a node (None: the score) passes to its inputs."""
        if self._feature_map is None or node not in self._feature_map.readers:
            return
        for name, out in zip(names, outs, strict=True):
            if out is not None and name in self._feature_map.nodes:
                P = _sum_channels(out.expand(self._run.shape(name)), self._feature_map.nodes[name])
                self.sums = (self.sums[0] + P,) if self.sums else (P,)


def _sum_channels(t: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return a tensor summed over channels, with its place axes in this order."""
    return t.movedim(places, tuple(range(2, t.ndim))).sum(1)


def redistribute(result: Result, feature_map: FeatureMap) -> Result:
    """Return a result in which relevance absorbed by biases is redistributed to pixels.

    `Result.redistributed` is the amount. The map of the rivals, if there is one, is treated in the same way.
    """
    assert result.entries is not None
    lead, wide = result.score.ndim, torch.promote_types(result.score.dtype, torch.float32)
    absorbed = result.entries[..., 2, :].sum(-2, dtype=wide)
    absorbed = absorbed.movedim(0, 1) if lead == 2 else absorbed
    relevance, redistributed_relevance = _give_to_pixels(result.relevance, result.places, absorbed, lead, feature_map)
    rivals = result.rivals
    if rivals is not None:
        missing = (rivals.began.to(wide) - _sum_parts(rivals.relevance, lead, wide)).clamp(min=0)
        rival_maps, _ = _give_to_pixels(rivals.relevance, rivals.places, missing, lead, feature_map)
        rivals = replace(rivals, relevance=rival_maps)
    return replace(result, relevance=relevance, rivals=rivals, redistributed=redistributed_relevance)


def _give_to_pixels(
    parts: Parts, places: Parts, absorbed: Tensor, lead: int, feature_map: FeatureMap
) -> tuple[Parts, Tensor]:
    """Return R' and the part of the absorbed relevance that pixels received."""
    if not places:  # no relevance arrived at the feature map
        return parts, torch.zeros_like(absorbed)
    channels = lead + feature_map.channels - 1
    R, P = parts[0].sum(channels, dtype=absorbed.dtype), places[0].to(absorbed.dtype)
    sides = feature_map.patches or (None,) * (P.ndim - lead)
    overlaps = [_find_overlap(n, N, R, side) for n, N, side in zip(P.shape[lead:], R.shape[lead:], sides, strict=True)]
    r = R
    for d, (by_place, _) in enumerate(overlaps, start=lead):
        r = sum_windows(r, d, *by_place)
    total = _sum_from(P, lead)
    above = (_sum_from(R, lead) + absorbed - total).clamp(min=0) / torch.where(total > 0, total, 1)
    w = (P - r).clamp(min=0) + _append_axes(above, P) * P
    total_weight = _sum_from(w, lead)
    G = w * _append_axes(torch.where(total_weight > 0, absorbed / torch.where(total_weight > 0, total_weight, 1), 0), w)
    has_arrived = _has_arrived(r, P)
    times = torch.where(has_arrived, G / torch.where(has_arrived, r, 1), 0)
    for d, (_, by_pixel) in enumerate(overlaps, start=lead):
        times = sum_windows(times, d, *by_pixel)
    everywhere = (has_arrived | (G == 0)).flatten(lead).all(-1) & (total_weight > 0)
    redistributed_relevance = torch.where(everywhere, absorbed, _sum_from(torch.where(has_arrived, G, 0), lead))
    return ((parts[0] * (1 + times).unsqueeze(channels)).to(parts[0].dtype),), redistributed_relevance


def _find_overlap(places: int, pixels: int, like: Tensor, side: int | None = None) -> tuple[Parts, Parts]:
    """Return the overlap of pixels with the positions of a feature map along one axis.

    The result is, for each place, its first pixel and the weights of its pixels; and for each pixel, its first place
    and the weights of its places. A pixel lies under at most two places, with weights that sum to one.

    side   of patches, if each pixel lies under exactly one
    """
    step = 2 * pixels  # the distance of places; integers, so that positions are exact along a long signal
    x, p = torch.arange(pixels, device=like.device), torch.arange(places, device=like.device)
    if side is not None:
        cut = torch.where(x // side < places, x // side, places - 1)
        seen = (x < side * places).to(like.dtype)[:, None]
        return (p * side, like.new_ones(places, side)), (cut, seen)

    def find_position(x: Tensor) -> Tensor:
        at, last = (2 * x + 1) * places - pixels, step * (places - 1)
        return torch.where(at < 0, 0, torch.where(at > last, last, at))  # inductor fails on clamp in an index

    def find_weight(x: Tensor, p: Tensor) -> Tensor:
        near = (step - (find_position(x) - step * p).abs()).clamp(min=0)
        return torch.where(x < pixels, near, 0).to(like.dtype) / step

    first = torch.where(p > 0, ((2 * p - 1) * pixels - places) // (2 * places) + 1, 0)
    below = first[:, None] + torch.arange(min(-(-step // places), pixels), device=like.device)
    place = find_position(x) // step
    above = place[:, None] + torch.arange(2, device=like.device)
    return (first, find_weight(below, p[:, None])), (place, find_weight(x[:, None], above))


def _has_arrived(reached: Tensor, whole: Tensor) -> Tensor:
    """Return True where enough relevance arrived to be scaled; less is mostly rounding error."""
    least = torch.finfo(reached.dtype)
    return reached > whole * (least.tiny / least.eps)


def _sum_from(t: Tensor, lead: int) -> Tensor:
    """Return the sum over all axes but the first `lead`."""
    return t.flatten(lead).sum(-1)


def _sum_parts(parts: Parts, lead: int, dtype: torch.dtype) -> Tensor:
    """Return Σ R for each sample (and target)."""
    return torch.stack([R.flatten(lead).sum(-1, dtype=dtype) for R in parts]).sum(0)


def _append_axes(t: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with axes of size 1 appended, up to the number of axes of another tensor."""
    return t.reshape(*t.shape, *[1] * (like.ndim - t.ndim))
