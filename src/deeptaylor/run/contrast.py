"""What sets a class apart from its rivals: its map split in two, exactly (docs/theory.md, section 9).

N_c, N_q   the maps of the class and of the mixture of its rivals, each divided by its sum
p          N_c / (N_c + N_q): given a unit of relevance here, how likely is it the class's and not its rivals'?
R_c        = R_c p^k (distinctive) + R_c (1 − p^k) (shared with rivals)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import TargetError
from deeptaylor.run.result import Result, Rivals
from deeptaylor.run.target import Against, class_of

__all__ = [
    "HARD",
    "POWER",
    "asked",
    "check_one_class",
    "check_rivals",
    "difference",
    "is_one_class",
    "least_likely",
    "named",
    "names_classes",
    "next_class",
    "no_rival",
    "overlap",
    "split",
    "without_rivals",
]  # fmt: skip

POWER = 6.0  # by default: where rivals have the same share, 1.6 % counts as the class's own (docs/faithful.md)
HARD = float("inf")  # as a power: only what exceeds the rivals' share counts
Parts = tuple[Tensor, ...]


def asked(target: Any, rivals: Any, batch: int, classes: int, power: float) -> Against:
    """What a user asks for, in tensors; refused where it makes no sense."""
    if not power > 0:
        raise TargetError(f"power is a number above zero, or dt.HARD; got {power!r}.")
    if class_of(target) is not None and not names_classes(target):
        raise TargetError(
            "A contrast sets a class apart from others: target is None, an int or an integer tensor; got "
            f"{type(target).__name__}."
        )
    return Against(target) if rivals is None else _given(target, rivals, batch, classes)


def names_classes(target: Any) -> bool:
    """True for the number of a class, or a tensor of such."""
    target = class_of(target)
    whole = isinstance(target, Tensor) and not target.is_floating_point() and target.dtype is not torch.bool
    return isinstance(target, int) or whole


def _given(target: Any, rivals: Any, batch: int, classes: int) -> Against:
    """Rivals that the user names: a class, several, {class: weight}, or weights over all classes."""
    if isinstance(rivals, Tensor) and rivals.is_floating_point():
        rivals = _of_weights(rivals, classes)
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
        raise TargetError(f"The weights of rivals are numbers ≥ 0, not all zero; got {weights}.")
    q = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return Against(target, torch.tensor([numbers]).expand(batch, -1), q.expand(batch, -1))


def _of_weights(weights: Tensor, classes: int) -> dict[int, float]:
    if weights.ndim != 1 or len(weights) != classes:
        raise TargetError(
            f"Weights of rivals are one number per class, here {classes}; got shape {tuple(weights.shape)}."
        )
    return {k: w for k, w in enumerate(weights.tolist()) if w}


# --- the split --------------------------------------------------------------------------------------------------------


def split(result: Result, power: float) -> tuple[Parts, Parts]:
    """A map's distinctive and shared parts, for each input."""
    own, others = _normalised(result)
    lead = result.score.ndim
    parts = [_distinctive(R, a, b, lead, power) for R, a, b in zip(result.relevance, own, others, strict=True)]
    # The rest is taken from the map itself, so that both add up to it.
    return tuple(parts), tuple(R - d for R, d in zip(result.relevance, parts, strict=True))


def _distinctive(R: Tensor, own: Tensor, others: Tensor, lead: int, power: float) -> Tensor:
    if R.ndim - lead >= 3:  # channels of one pixel share one posterior
        own, others = own.sum(lead, keepdim=True), others.sum(lead, keepdim=True)
    if power == HARD:
        share = 1 - others / torch.where(own > 0, own, 1)
    else:
        both = own + others
        share = (own / torch.where(both > 0, both, 1)).pow(power)
    return R * share.clamp(0, 1).to(R.dtype)


def _normalised(result: Result) -> tuple[Parts, Parts]:
    """N_c and N_q, in enough digits for a quotient."""
    assert result.rivals is not None
    lead = result.score.ndim
    return _of_sum_one(result.relevance, lead), _of_sum_one(result.rivals.relevance, lead)


def _of_sum_one(parts: Parts, lead: int) -> Parts:
    wide = [R.to(torch.promote_types(R.dtype, torch.float32)) for R in parts]
    total = _total(wide, lead)
    scale = torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
    return tuple(R * scale.reshape(*scale.shape, *[1] * (R.ndim - lead)) for R in wide)


def _total(parts: Sequence[Tensor], lead: int) -> Tensor:
    """The sum over everything but the sample (and the target), and all inputs."""
    return torch.stack([R.flatten(lead).sum(-1) if R.ndim > lead else R for R in parts]).sum(0)


def difference(result: Result) -> tuple[Parts, Tensor]:
    """N_c − N_q in units of the class's relevance, for each input; and half the sum of |N_c − N_q|."""
    own, others = _normalised(result)
    lead = result.score.ndim
    held, apart = _total(result.relevance, lead), [a - b for a, b in zip(own, others, strict=True)]
    size = _total([d.abs() for d in apart], lead) / 2
    size = torch.where(_total(others, lead) > 0, size, 1)  # without rivals all of it is the class's
    return tuple(d * held.reshape(*held.shape, *[1] * (d.ndim - lead)) for d in apart), size


def overlap(result: Result) -> Tensor:
    """Σ min(N_c, N_q) of each sample: 1 for the same heatmap, 0 if nothing is in common, or if one is empty."""
    lead = result.score.ndim
    smaller = []
    for a, b in zip(*_normalised(result), strict=True):
        pixels = a.ndim - lead >= 3  # channels of one pixel are one place
        smaller.append(torch.minimum(a.sum(lead), b.sum(lead)) if pixels else torch.minimum(a, b))
    return _total(smaller, lead).clamp(0, 1)


def next_class(v: Tensor, output: Tensor) -> Tensor:
    """The best class of each sample other than the one that v chooses."""
    return output.masked_fill(v > 0, float("-inf")).argmax(1)


def least_likely(v: Tensor, output: Tensor) -> Tensor:
    """The least likely class with a positive score other than the one that v chooses; if there is none, the next."""
    none = (v > 0) | (output <= 0)
    least = output.masked_fill(none, float("inf")).argmin(1)
    return torch.where(none.all(1), next_class(v, output), least)


def is_one_class(target: Any, output: Tensor) -> bool:
    """True if one class of several is explained per sample."""
    one = target is None or (names_classes(target) and getattr(target, "ndim", 1) < 2)
    return one and output.ndim == 2 and output.shape[1] > 1


def check_one_class(target: Any, output: Tensor) -> None:
    """Raise unless one class of several is explained per sample."""
    if not is_one_class(target, output):
        raise TargetError(
            "The overlap with the next class needs one class per sample, of a network with several: explain(x) or "
            "explain(x, c)."
        )


def named(rivals: Rivals) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Of each sample (and target, one after the other) classes and weights, the largest first, without zeros."""
    classes, weights = rivals.classes.flatten(0, -2).tolist(), rivals.weights.flatten(0, -2).tolist()
    pairs = [zip(c, w, strict=True) for c, w in zip(classes, weights, strict=True)]
    return tuple(tuple(sorted(((c, w) for c, w in p if w > 0), key=lambda cw: -cw[1])) for p in pairs)


def without_rivals(rivals: Rivals) -> list[int]:
    """The samples of which no rival has a positive score."""
    none = (rivals.weights.flatten(1) > 0).any(1).logical_not()
    return [int(k) for k in none.nonzero().flatten()]


def no_rival(samples: Sequence[int]) -> str:
    """What to say of these samples."""
    which = ", ".join(map(str, samples[:5])) + (", …" if len(samples) > 5 else "")
    return (
        f"no other class has a positive score (sample {which}): nothing is shared with rivals, and the map is the "
        "plain one. dt.margin(c, k) as a target asks why c rather than k."
    )


def check_rivals(rivals: Rivals) -> None:
    """Refuse rivals that the user named, and that have no map to be set against."""
    below = ((rivals.scores <= 0) & (rivals.weights > 0)).nonzero()
    if len(below):
        sample = int(below[0][0])
        score = float(rivals.scores[tuple(below[0])])
        number = int(rivals.classes[tuple(below[0])])
        raise TargetError(
            f"Class {number} has the score {score:.4g} for sample {sample}: a class without a positive score has an "
            f"empty map, and nothing to be set apart from. Explain the difference instead: dt.margin(CLASS, {number})."
        )
    if without := without_rivals(rivals):
        raise TargetError(f"For sample {without[0]} the only rival is the class itself; name another.")
