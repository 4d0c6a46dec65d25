"""f as one number per sample: a network with a target, or any differentiable callable, at any points of its domain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.domain import Real
from deeptaylor.engine import target as targets
from deeptaylor.engine.inputs import as_tuple, check_place, check_values, first_float, read_input
from deeptaylor.engine.target import Unit
from deeptaylor.errors import BoundaryError, InputError, TargetError
from deeptaylor.explanation import Explanation
from deeptaylor.graph.capture import pick_output
from deeptaylor.graph.modes import eval_mode
from deeptaylor.ledger import make_residual_ledger

__all__ = ["Function", "Score", "check_finite", "check_input", "disable_gradients", "make_explanation"]


def make_explanation(method: str, relevance: Tensor, score: Tensor, target: Any, notes: tuple[str, ...]) -> Explanation:
    """Return an explanation whose residual is the part of the score that the method did not redistribute."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"{method} explains f as a whole: it has no relevance at {name!r} inside f.")

    return Explanation(relevance, score, make_residual_ledger(relevance, score), target, notes, inner, method=method)


Function = Callable[..., Any]


class Score:
    """f(ξ) and ∂f/∂ξ for points near a batch x.

    The target is settled once, at x: the top class there, or the rival of a margin, stays the same at every ξ.
    """

    def __init__(self, f: Function, x: Tensor, target: Any = None, output: int | str | None = None) -> None:
        if not callable(f):
            raise InputError(
                f"f must be a network or a function of a tensor, got {type(f).__name__} (of a Pretrained p, give "
                "p.network, and inputs from p.preprocess)."
            )
        self.f, self.output = f, output
        self.x = check_input(f, x)
        self.target = targets.to_numbers(target, self.x.shape[0])
        self.weights: Tensor | None = None
        if not targets.is_callable(target):
            self.weights = self._settle()
        self.at_x, self.gradient_at_x = self.with_gradient(self.x)
        check_finite(self.at_x, "f(x)")
        check_finite(self.gradient_at_x, "the gradient of f at x")

    def _settle(self) -> Tensor:
        """Return the target as weights over the output, f = Σ v z."""
        if isinstance(self.target, Unit):
            raise TargetError(
                "An inner unit is explained by dt.Explainer or dt.explain; here, give a function that ends in it."
            )
        output = self._output(self.x)
        if output.ndim == 0 or output.shape[0] != self.x.shape[0]:
            raise TargetError(
                f"f must return one row per sample: for {self.x.shape[0]} samples it returned shape "
                f"{tuple(output.shape)}."
            )
        targets.check(self.target, tuple(output.shape))
        weights, many = targets.output_weights(self.target, output)
        if many:
            raise TargetError("This method explains one target per sample: call it once for each of the K targets.")
        return weights

    def _output(self, points: Tensor) -> Tensor:
        chosen, _ = pick_output(self.f(points), self.output, Tensor)
        output: Tensor = chosen
        return output

    def values(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return f at points, one number each; `rows`: the index of each point's sample."""
        output = self._output(points)
        if self.weights is None:
            value: Any = self.target(output)
            if not isinstance(value, Tensor) or value.numel() != points.shape[0] or value.shape[:1] != points.shape[:1]:
                raise TargetError(
                    "A callable target must return one number per sample: a tensor of shape (batch,) or (batch, 1)."
                )
            return value.reshape(-1)
        weights = self.weights if rows is None else self.weights[rows]
        return (output * weights).flatten(1).sum(1) if output.ndim > 1 else output * weights

    def with_gradient(self, points: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return f and ∂f/∂ξ at points."""
        with torch.enable_grad():
            xi = points.detach().clone().requires_grad_()
            value = self.values(xi, rows)
            gradient = torch.autograd.grad(value.sum(), xi, allow_unused=True)[0] if value.requires_grad else None
        if gradient is None:
            raise InputError(
                "f does not depend on its input through differentiable operations: its gradient does not exist. "
                "Is f constant, or computed under torch.no_grad()?"
            )
        return value.detach(), gradient.detach()


@contextlib.contextmanager
def disable_gradients(f: Function) -> Iterator[None]:
    """Disable gradients, and switch a network to eval mode; restore both afterwards."""
    eval_or_not = eval_mode(f) if isinstance(f, nn.Module) else contextlib.nullcontext()
    with torch.inference_mode(False), torch.no_grad(), eval_or_not:
        yield


def check_input(f: Function, x: Any) -> Tensor:
    """Return one batch of finite numbers on the device of the network."""
    like = first_float(f.parameters()) if isinstance(f, nn.Module) else None
    if isinstance(x, (np.ndarray, list)):
        x = read_input(x, nn.Identity(), like)
    if not isinstance(x, Tensor):
        raise InputError(f"This method takes one input tensor with a batch dimension, got {type(x).__name__}.")
    as_tuple(x)
    if not x.is_floating_point():
        raise InputError(f"The input holds {x.dtype}: there is no gradient with respect to integers.")
    if isinstance(f, nn.Module):
        check_place([x], like, "input", "model")
    check_values([x], [Real()], ["x"])
    return x.detach()


def check_finite(t: Tensor, what: str) -> None:
    """Raise for values that are not finite, naming the first sample that has one."""
    bad = ~torch.isfinite(t.flatten(1) if t.ndim > 1 else t.unsqueeze(1)).all(1)
    if bool(bad.any()):
        raise InputError(
            f"{what} is NaN or infinite for {int(bad.sum())} of {t.shape[0]} samples, the first of them "
            f"{int(torch.nonzero(bad)[0])}. Look for sqrt, log or division by zero in f, and check its weights."
        )
