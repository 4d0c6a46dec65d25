"""Losses on relevance, for training; each is one number that a network is trained to make small.

Every loss reads the relevance of a live explainer, dt.Explainer(model, x, live=True), and is differentiable in the
parameters of its network. Unless a target is named, it is about the margin: the class minus its best rival.

All but `squared_inside` read a map as shares: every element is divided by Σ |R| of its sample, so that a network cannot
make a loss small by small scores. A sample without relevance has no shares; its loss is 0. By deep Taylor that is a
sample whose margin is not positive, such as one that is misclassified: cross-entropy has to correct it first.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from deeptaylor.engine.target import margin
from deeptaylor.errors import InputError, TargetError
from deeptaylor.explainer import Explainer

__all__ = ["class_overlap", "map_distance", "share_inside", "share_outside", "squared_inside", "total_variation"]

Reduction = Literal["mean", "none"]


def share_inside(
    explainer: Explainer, x: Any, mask: Tensor, labels: int | Tensor | None = None, *, target: Any = None,
    reduction: Reduction = "mean", **how: Any,
) -> Tensor:  # fmt: skip
    """Return the share of |relevance| inside a mask: what should not count, such as a watermark.

    explainer   a live one
    x           a batch
    mask        1 (or True) where relevance is counted; numbers between 0 and 1 count in part. Shaped like x, like one
                sample, or like these without channels
    labels      the classes: the relevance of each class minus its best rival is read; None: the top classes
    target      another target, as for `explain`, in place of the margin
    reduction   "mean" over the samples, or "none": one number per sample
    how         of `Explainer.relevance`: contrast, against, reference

    >>> import torch, deeptaylor as dt
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> x = torch.rand(5, 4)
    >>> explainer = dt.Explainer(network, x, dt.NonNegative(), live=True)
    >>> loss = dt.losses.share_inside(explainer, x, torch.tensor([0, 0, 0, 1]))
    >>> loss.backward()
    >>> network[0].weight.grad.shape
    torch.Size([8, 4])
    """
    R = _read_shares(explainer, x, labels, target, how).abs()
    inside = R * _fit_mask(mask, R, _channel_axis(explainer))
    return _reduce(_sum(inside), reduction)


def share_outside(
    explainer: Explainer, x: Any, mask: Tensor, labels: int | Tensor | None = None, *, target: Any = None,
    reduction: Reduction = "mean", **how: Any,
) -> Tensor:  # fmt: skip
    """Return the share of |relevance| outside of a mask: of all but the object, such as the background.

    The arguments are those of `share_inside`.
    """
    R = _read_shares(explainer, x, labels, target, how).abs()
    outside = R * (1 - _fit_mask(mask, R, _channel_axis(explainer)))
    return _reduce(_sum(outside), reduction)


def squared_inside(
    explainer: Explainer, x: Any, mask: Tensor, labels: int | Tensor | None = None, *, target: Any = None,
    reduction: Reduction = "mean", **how: Any,
) -> Tensor:  # fmt: skip
    """Return Σ R² inside a mask: how much the score owes to what should not count, in units of the score.

    Unlike a share, it cannot be made small by more relevance elsewhere. It needs relevance of both signs, so use
    secants. The arguments are those of `share_inside`.
    """
    _check_gradients()
    R = _read_map(explainer, x, labels, target, how)
    return _reduce(_sum((R * _fit_mask(mask, R, _channel_axis(explainer))).square()), reduction)


def total_variation(
    explainer: Explainer, x: Any, labels: int | Tensor | None = None, *, target: Any = None,
    reduction: Reduction = "mean", **how: Any,
) -> Tensor:  # fmt: skip
    """Return how rough maps are: Σ |R_p − R_q| / Σ |R| over neighbouring places p, q, channels summed.

    A map that is even has 0, a map whose relevance lies on single pixels of a picture 4. The arguments are those of
    `share_inside`.
    """
    R = _read_shares(explainer, x, labels, target, how)
    if R.ndim > 2:
        R = R.sum(_channel_axis(explainer))
    rough = [_sum((R.narrow(d, 1, R.shape[d] - 1) - R.narrow(d, 0, R.shape[d] - 1)).abs()) for d in range(1, R.ndim)]
    return _reduce(torch.stack(rough).sum(0), reduction)


def map_distance(
    explainer: Explainer, x: Any, other: Explainer | Tensor, labels: int | Tensor | None = None, *, target: Any = None,
    reduction: Reduction = "mean", **how: Any,
) -> Tensor:  # fmt: skip
    """Return how far maps are from those of another network: 0 for the same shares, 1 for maps without overlap.

    It is ½ Σ |r − r'|, the part of the relevance that lies elsewhere.

    other   the other network's explainer, which is asked the same question, or its maps, shaped like x. No gradient
            goes to it. The other arguments are those of `share_inside`
    """
    r = _read_shares(explainer, x, labels, target, how)
    if isinstance(other, Explainer):
        with torch.no_grad():
            theirs = _read_map(other, x, labels, target, how)
    else:
        theirs = other.detach()
    if theirs.shape != r.shape:
        raise InputError(
            f"The maps have shape {tuple(r.shape)}, and the others {tuple(theirs.shape)}; give the same shapes."
        )
    return _reduce(_distance(r, _divide_by_sum(theirs.to(r))), reduction)


def class_overlap(
    explainer: Explainer, x: Any, first: int | Tensor, second: int | Tensor, *, reduction: Reduction = "mean",
    **how: Any,
) -> Tensor:  # fmt: skip
    """Return how much of the maps of two classes is the same: 1 − ½ Σ |r − r'|. Making it small sets classes apart.

    first, second   the classes: a number, or an integer tensor with one class per sample. The relevance of each class
                    minus its best rival is read. Samples in which one of both has no relevance count as 0: by deep
                    Taylor only one class has a positive margin, so name `reference`, or dt.Explainer(method="secant")

    The other arguments are those of `share_inside`.
    """
    r, other = (_read_shares(explainer, x, c, None, how) for c in (first, second))
    both = (_sum(r.abs()) > 0) & (_sum(other.abs()) > 0)
    return _reduce(torch.where(both, 1 - _distance(r, other), 0), reduction)


# --- parts ------------------------------------------------------------------------------------------------------------


def _read_shares(explainer: Explainer, x: Any, labels: Any, target: Any, how: dict[str, Any]) -> Tensor:
    _check_gradients()
    return _divide_by_sum(_read_map(explainer, x, labels, target, how))


def _check_gradients() -> None:
    if not torch.is_grad_enabled():
        raise InputError(
            "Gradients are switched off (torch.no_grad), and a loss could train nothing. To measure it, call it under "
            "torch.enable_grad() and detach it."
        )


def _read_map(explainer: Explainer, x: Any, labels: Any, target: Any, how: dict[str, Any]) -> Tensor:
    """Return the relevance of one map per sample."""
    if labels is not None and target is not None:
        raise TargetError("Give labels= (the margin of these classes) or target=, not both.")
    R: Tensor | tuple[Tensor, ...] = explainer.relevance(x, margin(labels) if target is None else target, **how)
    maps, example, engine = (R if isinstance(R, tuple) else (R,)), explainer.captured.example, explainer.captured.engine
    # An input of whole numbers that are no tokens, such as an attention mask, has no map.
    own = [k for k, t in enumerate(example) if t.is_floating_point() or engine.planned.inputs[k] in engine.token_limits]
    if len(own) != 1:
        raise InputError(
            f"The network has {len(own)} inputs with maps, but a loss takes one. Build it from explainer.relevance."
        )
    if maps[own[0]].ndim > example[own[0]].ndim:
        raise TargetError("A loss needs one map per sample; this target gives several.")
    return maps[own[0]]


def _divide_by_sum(R: Tensor) -> Tensor:
    """Return a map as shares of Σ |R|; zeros for a sample without relevance."""
    total = _sum(R.abs())
    some = total > 0
    scale = torch.where(some, 1 / torch.where(some, total, 1), 0)
    return R * scale.reshape(-1, *[1] * (R.ndim - 1))


def _sum(R: Tensor) -> Tensor:
    """Return the sum over each sample."""
    return R.flatten(1).sum(1)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """Return ½ Σ |a − b| of each sample; 0 if one of both has no relevance."""
    both = (_sum(a.abs()) > 0) & (_sum(b.abs()) > 0)
    return torch.where(both, _sum((a - b).abs()) / 2, 0)


def _channel_axis(explainer: Explainer) -> int:
    return explainer.captured.engine.channel_axis


def _fit_mask(mask: Tensor, R: Tensor, channels: int) -> Tensor:
    """Return a mask that broadcasts against the maps; raise if it has another shape."""
    batch, sample = len(R), tuple(R.shape[1:])
    places = tuple(n for d, n in enumerate(sample, start=1) if d != channels)
    if not isinstance(mask, Tensor):
        raise InputError(
            f"A mask is a tensor of numbers between 0 and 1, or of True and False; got {type(mask).__name__}."
        )
    shape = tuple(mask.shape)
    if mask.ndim == R.ndim and all(n in (1, size) for n, size in zip(shape, R.shape, strict=True)):
        fitted = mask
    elif shape == sample and (shape != (batch, *places) or batch == 1):
        fitted = mask.unsqueeze(0)
    elif R.ndim > 2 and shape == places:
        fitted = mask.unsqueeze(channels - 1).unsqueeze(0)
    elif R.ndim > 2 and shape == (batch, *places) and shape != sample:
        fitted = mask.unsqueeze(channels)
    else:
        ways = dict.fromkeys([tuple(R.shape), sample, *([places, (batch, *places)] if R.ndim > 2 else [])])
        raise InputError(
            f"The mask has shape {shape}; for these maps it has {', '.join(map(str, ways))}: one of all samples, or "
            "one each, with or without channels. If a shape is ambiguous, add axes of length 1."
        )
    fitted = fitted.to(R)
    if bool(((fitted < 0) | (fitted > 1)).any()):
        raise InputError("The mask has values outside of [0, 1]; 1 (or True) marks what is counted.")
    return fitted


def _reduce(each: Tensor, reduction: Reduction) -> Tensor:
    if reduction not in ("mean", "none"):
        raise InputError(f"reduction is 'mean' or 'none'; got {reduction!r}.")
    return each.mean() if reduction == "mean" else each
