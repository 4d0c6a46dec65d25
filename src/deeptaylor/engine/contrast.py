"""What distinguishes a class from its rivals: its map split exactly in two (docs/theory.md, section 9).

N_c, N_q   the maps of the class and of the mixture of its rivals, each divided by its sum
p          N_c / (N_c + N_q): the probability that a unit of relevance here belongs to the class, not to its rivals
R_c        = R_c p^k (distinctive) + R_c (1 − p^k) (shared with rivals)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.engine.result import Result, Rivals
from deeptaylor.engine.target import Against, class_of
from deeptaylor.errors import TargetError

__all__ = [
    "HARD",
    "POWER",
    "check_one_class",
    "check_rivals",
    "describe_no_rivals",
    "find_least_likely",
    "find_next_class",
    "find_without_rivals",
    "is_one_class",
    "list_rivals",
    "measure_overlap",
    "names_classes",
    "read_contrast",
    "read_map",
    "split_map",
    "subtract_rivals",
]  # fmt: skip

POWER = 6.0  # by default: where rivals have the same share, 1.6 % counts as the class's own (docs/faithful.md)
HARD = float("inf")  # as a power: only what exceeds the rivals' share counts
Parts = tuple[Tensor, ...]


def read_contrast(target: Any, rivals: Any, batch: int, classes: int, power: float) -> Against:
    """Return a class with its rivals as tensors; raise TargetError if they do not fit the output."""
    if not power > 0:
        raise TargetError(f"power must be a positive number or dt.HARD; got {power!r}.")
    if class_of(target) is not None and not names_classes(target):
        raise TargetError(
            "A contrast compares a class with others: target must be None, an int or an integer tensor; got "
            f"{type(target).__name__}."
        )
    return Against(target) if rivals is None else _read_rivals(target, rivals, batch, classes)


def names_classes(target: Any) -> bool:
    """Return True for the number of a class, or a tensor of class numbers."""
    target = class_of(target)
    whole = isinstance(target, Tensor) and not target.is_floating_point() and target.dtype is not torch.bool
    return isinstance(target, int) or whole


def _read_rivals(target: Any, rivals: Any, batch: int, classes: int) -> Against:
    """Return the user's rivals: a class, several classes, {class: weight}, or weights over all classes."""
    if isinstance(rivals, Tensor) and rivals.is_floating_point():
        rivals = _list_weights(rivals, classes)
    if isinstance(rivals, Tensor):
        rivals = rivals.tolist()
    if isinstance(rivals, Mapping):
        numbers, weights = list(rivals), [float(w) for w in rivals.values()]
    else:
        numbers = [rivals] if isinstance(rivals, int) else list(rivals)
        weights = [1.0] * len(numbers)
    if not numbers or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise TargetError(
            "against= takes a class, several classes, {class: weight} or a float tensor of weights over all classes, "
            f"by number; got {rivals!r}."
        )
    out = [n for n in numbers if not 0 <= n < classes]
    if out:
        raise TargetError(f"The rival {out[0]} is out of range: the network has {classes} classes.")
    if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise TargetError(f"The weights of rivals must be numbers ≥ 0, not all zero; got {weights}.")
    q = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return Against(target, torch.tensor([numbers]).expand(batch, -1), q.expand(batch, -1))


def _list_weights(weights: Tensor, classes: int) -> dict[int, float]:
    """Return the nonzero weights by class; raise TargetError if there is not one per class."""
    if weights.ndim != 1 or len(weights) != classes:
        raise TargetError(
            f"Weights of rivals must be one number per class, here {classes}; got shape {tuple(weights.shape)}."
        )
    return {k: w for k, w in enumerate(weights.tolist()) if w}


# --- the split --------------------------------------------------------------------------------------------------------


def split_map(result: Result, power: float, channels: int = 1) -> tuple[Parts, Parts]:
    """Return the distinctive and the shared part of a map, for each input.

    channels   the channel axis of the first input
    """
    class_maps, rival_maps = _normalise_maps(result)
    lead = result.score.ndim
    parts = [
        _select_distinctive(R, a, b, lead if k else lead + channels - 1, lead, power)
        for k, (R, a, b) in enumerate(zip(result.relevance, class_maps, rival_maps, strict=True))
    ]
    # The shared part is the difference to the map, so that both add up to it.
    return tuple(parts), tuple(R - d for R, d in zip(result.relevance, parts, strict=True))


def read_map(result: Result, channels: int = 1) -> Parts:
    """Return the map of each input; if the class has rivals, its distinctive part."""
    return result.relevance if result.rivals is None else split_map(result, POWER, channels)[0]


def first_map(relevance: Tensor, score: Tensor, axis: int) -> Tensor:
    """Return maps summed over channels, (B, …); for K targets, those of the first target."""
    return (relevance[:, 0] if score.ndim == 2 else relevance).sum(axis)


def _select_distinctive(
    R: Tensor, class_maps: Tensor, rival_maps: Tensor, axis: int, lead: int, power: float
) -> Tensor:
    """Return the part of a map that is distinctive of the class."""
    if R.ndim - lead >= 3:  # channels of one pixel share one posterior
        class_maps, rival_maps = class_maps.sum(axis, keepdim=True), rival_maps.sum(axis, keepdim=True)
    if power == HARD:
        share = 1 - rival_maps / torch.where(class_maps > 0, class_maps, 1)
    else:
        total = class_maps + rival_maps
        share = (class_maps / torch.where(total > 0, total, 1)).pow(power)
    return R * share.clamp(0, 1).to(R.dtype)


def _normalise_maps(result: Result) -> tuple[Parts, Parts]:
    """Return the maps of the class and of its rivals, N_c and N_q, each divided by its sum over all inputs."""
    assert result.rivals is not None
    lead = result.score.ndim
    return _normalise(result.relevance, lead), _normalise(result.rivals.relevance, lead)


def _normalise(parts: Parts, lead: int) -> Parts:
    """Return maps divided by their sum over all inputs, in float32 or wider; zeros for an empty map."""
    wide = [R.to(torch.promote_types(R.dtype, torch.float32)) for R in parts]
    total = _sum_inputs(wide, lead)
    scale = torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
    return tuple(R * scale.reshape(*scale.shape, *[1] * (R.ndim - lead)) for R in wide)


def _sum_inputs(parts: Sequence[Tensor], lead: int) -> Tensor:
    """Return the sum over all inputs and all axes but the sample (and the target)."""
    return torch.stack([R.flatten(lead).sum(-1) if R.ndim > lead else R for R in parts]).sum(0)


def subtract_rivals(result: Result) -> tuple[Parts, Tensor]:
    """Return N_c − N_q times the class's relevance, for each input; and half the sum of |N_c − N_q|."""
    class_maps, rival_maps = _normalise_maps(result)
    lead = result.score.ndim
    held, differences = (
        _sum_inputs(result.relevance, lead),
        [a - b for a, b in zip(class_maps, rival_maps, strict=True)],
    )
    size = _sum_inputs([d.abs() for d in differences], lead) / 2
    size = torch.where(_sum_inputs(rival_maps, lead) > 0, size, 1)  # without rivals, everything belongs to the class
    return tuple(d * held.reshape(*held.shape, *[1] * (d.ndim - lead)) for d in differences), size


def measure_overlap(result: Result, channels: int = 1) -> Tensor:
    """Return Σ min(N_c, N_q) of each sample: 1 for equal maps, 0 for maps without overlap, or if one is empty.

    channels   the channel axis of the first input
    """
    lead = result.score.ndim
    smaller = []
    for k, (a, b) in enumerate(zip(*_normalise_maps(result), strict=True)):
        axis = lead if k else lead + channels - 1
        pixels = a.ndim - lead >= 3  # channels of one pixel are one place
        smaller.append(torch.minimum(a.sum(axis), b.sum(axis)) if pixels else torch.minimum(a, b))
    return _sum_inputs(smaller, lead).clamp(0, 1)


def find_next_class(v: Tensor, output: Tensor) -> Tensor:
    """Return the best class of each sample other than the one that v chooses."""
    return output.masked_fill(v > 0, float("-inf")).argmax(1)


def find_least_likely(v: Tensor, output: Tensor) -> Tensor:
    """Return the least likely class with a positive score other than the one that v chooses; else the next best."""
    none = (v > 0) | (output <= 0)
    least = output.masked_fill(none, float("inf")).argmin(1)
    return torch.where(none.all(1), find_next_class(v, output), least)


def is_one_class(target: Any, output: Tensor) -> bool:
    """Return True if one class of several is explained per sample."""
    one = target is None or (names_classes(target) and getattr(target, "ndim", 1) < 2)
    return one and output.ndim == 2 and output.shape[1] > 1


def check_one_class(target: Any, output: Tensor) -> None:
    """Raise TargetError unless one class of several is explained per sample."""
    if not is_one_class(target, output):
        raise TargetError(
            "The overlap with the next class needs a network with several classes and one class per "
            "sample: explain(x) or "
            "explain(x, c)."
        )


def list_rivals(rivals: Rivals) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the rival classes and their weights for each sample (and target), largest first, without zeros."""
    classes, weights = rivals.classes.flatten(0, -2).tolist(), rivals.weights.flatten(0, -2).tolist()
    pairs = [zip(c, w, strict=True) for c, w in zip(classes, weights, strict=True)]
    return tuple(tuple(sorted(((c, w) for c, w in p if w > 0), key=lambda cw: -cw[1])) for p in pairs)


def find_without_rivals(rivals: Rivals) -> list[int]:
    """Return the samples for which no rival has a positive score."""
    none = (rivals.weights.flatten(1) > 0).any(1).logical_not()
    return [int(k) for k in none.nonzero().flatten()]


def describe_no_rivals(samples: Sequence[int]) -> str:
    """Return the note about samples without rivals."""
    listed = ", ".join(map(str, samples[:5])) + (", …" if len(samples) > 5 else "")
    return (
        f"no other class has a positive score (sample {listed}): nothing is shared with rivals, and the map is the "
        "plain one. dt.margin(c, k) as a target asks why c rather than k."
    )


def check_rivals(rivals: Rivals) -> None:
    """Raise TargetError if a rival that the user named has no positive score, and so no map."""
    below = ((rivals.scores <= 0) & (rivals.weights > 0)).nonzero()
    if len(below):
        sample = int(below[0][0])
        score = float(rivals.scores[tuple(below[0])])
        number = int(rivals.classes[tuple(below[0])])
        raise TargetError(
            f"Class {number} has the score {score:.4g} for sample {sample}: a class without a positive "
            "score has an empty map, and there is nothing to compare. Explain the difference instead: "
            f"dt.margin(CLASS, {number})."
        )
    if without := find_without_rivals(rivals):
        raise TargetError(f"For sample {without[0]} the only rival is the class itself; name another.")
