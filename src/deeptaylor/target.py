"""What is explained: the top class, a class, several classes, weights over the output, or a logit difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import TargetError

Target = Any  # None, int, integer tensor (B,) or (B, K), float tensor like the output, Margin, or a callable


@dataclass(frozen=True)
class Margin:
    """The difference of two logits; `other=None` means the best of the other classes."""

    target: int | Tensor | None = None
    other: int | Tensor | None = None


def margin(target: int | Tensor | None = None, other: int | Tensor | None = None) -> Margin:
    """Explain why `target` (default: the top class) beats `other` (default: the best of the rest).

    A logit difference is positive whenever the class wins, also where its own logit is not.
    """
    return Margin(target, other)


def weights(target: Target, output: Tensor) -> tuple[Tensor, bool]:
    """The target as weights v over the output, f = Σ v z: shaped like it, or (K, …) for K targets; and whether K."""
    if isinstance(target, Margin):
        return _margin_weights(target, output), False
    if isinstance(target, Tensor) and target.is_floating_point():
        return _float_weights(target, output), False
    if output.ndim == 1:
        if target not in (None, 0):
            raise TargetError("The network gives one number a sample; there is no class to choose. Leave target out.")
        return torch.ones_like(output), False
    if output.ndim != 2:
        raise TargetError(
            f"The network's output has shape {tuple(output.shape)}; classes need (batch, classes). Give a "
            "float tensor of that "
            "shape as weights, or a callable that makes one number a sample of it."
        )
    if target is None:
        return _one_hot(output.argmax(1), output), False
    if isinstance(target, bool) or not isinstance(target, (int, Tensor)):
        raise TargetError(
            f"A target is None, an int, an integer tensor, a float tensor, dt.margin(…) or a callable; got "
            f"{type(target).__name__}."
        )
    classes = torch.as_tensor(target, device=output.device)
    if classes.ndim == 0:
        classes = classes.expand(output.shape[0])
    if classes.ndim not in (1, 2) or classes.shape[0] != output.shape[0]:
        raise TargetError(
            f"An integer target has shape (batch,) or (batch, K) with batch {output.shape[0]}; got "
            f"{tuple(classes.shape)}."
        )
    if classes.ndim == 1:
        return _one_hot(classes, output), False
    return torch.stack([_one_hot(c, output) for c in classes.unbind(1)]), True


def check_range(target: Target, classes: int) -> None:
    """Refuse classes that do not exist, before any work."""
    for name, value in (
        (("target", target),)
        if not isinstance(target, Margin)
        else (("target", target.target), ("other", target.other))
    ):
        if (
            value is None
            or isinstance(value, bool)
            or callable(value)
            or (isinstance(value, Tensor) and value.is_floating_point())
        ):
            continue
        if not isinstance(value, (int, Tensor)):
            continue
        t = torch.as_tensor(value)
        if t.numel() and (int(t.min()) < 0 or int(t.max()) >= classes):
            wrong = int(t.min()) if int(t.min()) < 0 else int(t.max())
            raise TargetError(
                f"The {name} {wrong} is out of range: the network has {classes} classes, 0 to {classes - 1}."
            )


def _one_hot(classes: Tensor, output: Tensor) -> Tensor:
    hot = torch.zeros_like(output)
    return hot.scatter(1, classes.reshape(-1, 1).long(), 1.0)


def _float_weights(target: Tensor, output: Tensor) -> Tensor:
    if target.shape != output.shape:
        raise TargetError(f"Weights must have the output's shape {tuple(output.shape)}; got {tuple(target.shape)}.")
    if not bool(torch.isfinite(target).all()):
        raise TargetError("Weights must be finite.")
    return target.to(output)


def _margin_weights(target: Margin, output: Tensor) -> Tensor:
    if output.ndim != 2 or output.shape[1] < 2:
        raise TargetError(
            f"A margin needs an output of shape (batch, classes ≥ 2); this one has {tuple(output.shape)}."
        )
    batch = output.shape[0]

    def as_classes(value: int | Tensor) -> Tensor:
        return torch.as_tensor(value, device=output.device).expand(batch)

    top = output.argmax(1) if target.target is None else as_classes(target.target)
    plus = _one_hot(top, output)
    rest = (
        output.masked_fill(plus.bool(), float("-inf")).argmax(1) if target.other is None else as_classes(target.other)
    )
    return plus - _one_hot(rest, output)


def is_callable(target: Target) -> bool:
    """True for a function of the output (modules and plain callables)."""
    return callable(target) and not isinstance(target, Tensor)


ScoreFunction = Callable[[Tensor], Tensor]
