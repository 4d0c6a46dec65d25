"""Any function, from outside: values are switched from a reference's to those of x, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor.errors import BoundaryError, InputError, TargetError
from deeptaylor.secant.between import Between, BetweenLedger

__all__ = ["shapley"]

Points = Callable[[Tensor], Tensor]  # points (N, …) → outputs (N, …)


def shapley(
    f: Callable[[Any], Any], x: Any, reference: Any, target: int | None = None, *,
    orders: int = 32, seed: int = 0, batch: int = 4096,
) -> Between:  # fmt: skip
    """What took f from its value at a reference to that at x, for any function: Σ R = f(x) − f(reference), exactly.

    Values are switched from the reference's to those of x, one after another, and each gets the change that it makes;
    this is averaged over random orders, each beside its reverse. These are Shapley values, sampled: more orders, less
    noise, and the sum is exact for any number of them. f is called orders × (values + 1) times for each sample, in
    batches: it is for tables and for functions without gradients. Of a network, `Explainer.between` costs three passes.

    f           takes points like x, (n, …), as an array or a tensor, whichever x is, and returns n numbers, or n rows
    x           the samples, (samples, …)
    reference   one sample, or one for each
    target      which number of a row; None: the largest at x

    >>> import numpy as np, deeptaylor as dt
    >>> b = dt.shapley(lambda rows: rows[:, 0] * rows[:, 1] + rows[:, 2], np.array([[2.0, 3.0, 1.0]]), np.zeros(3))
    >>> b.relevance
    tensor([[3., 3., 1.]], dtype=torch.float64)
    """
    if orders < 1:
        raise InputError(f"orders={orders}: at least one order is needed.")
    as_array = not isinstance(x, Tensor)
    at, start = _points(x, "x"), _points(reference, "the reference")
    if at.ndim < 2 or not len(at):
        raise InputError(f"x is samples along a first axis, (samples, values); got shape {tuple(at.shape)}.")
    if start.shape not in (at.shape, at.shape[1:]):
        raise InputError(
            f"The reference has shape {tuple(start.shape)}; x has {tuple(at.shape)}: like it, or one sample."
        )
    start = start.to(at).expand_as(at)

    def ask(points: Tensor) -> Tensor:
        found = f(points.cpu().numpy() if as_array else points)
        outputs = torch.as_tensor(found)
        if outputs.ndim not in (1, 2) or len(outputs) != len(points):
            raise TargetError(
                f"f must return one number or one row per point: of {len(points)} points it made shape "
                f"{tuple(outputs.shape)}."
            )
        return outputs.to(torch.float64).reshape(len(points), -1)

    with torch.no_grad():
        whole = ask(at)
        chosen = _chosen(whole, target)
        lot = torch.Generator().manual_seed(seed)
        maps = [
            _one(ask, at[k], start[k], int(chosen[k]), orders, lot, batch).reshape(at.shape[1:]) for k in range(len(at))
        ]
        f_x = whole.gather(1, chosen[:, None])[:, 0]
        f_0 = ask(start).gather(1, chosen[:, None])[:, 0]
    relevance = torch.stack(maps)
    signs = [(s * relevance).clamp(min=0).flatten(1).sum(1) for s in (1, -1)]
    ledger = BetweenLedger.made(f_x, f_0, *signs)
    note = f"Shapley values, the mean over {2 * ((orders + 1) // 2)} orders in which values were switched."
    return Between(
        relevance=relevance, score=f_x, ledger=ledger, target=target if target is not None else chosen, notes=(note,),
        source=_inner, method="Shapley values", reference_score=f_0,
    )  # fmt: skip


def _inner(name: str) -> Tensor:
    raise BoundaryError(f"The function was only called: there is no relevance at {name!r} inside of it.")


def _points(given: Any, what: str) -> Tensor:
    try:
        points = torch.as_tensor(np.asarray(given)) if not isinstance(given, Tensor) else given.detach()
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} holds something other than numbers: {error}") from error
    if not points.is_floating_point():
        points = points.to(torch.float64)
    if not bool(torch.isfinite(points).all()):
        raise InputError(f"{what} has values that are NaN or infinite.")
    return points


def _chosen(outputs: Tensor, target: int | None) -> Tensor:
    if target is None:
        return outputs.argmax(1)
    if not -outputs.shape[1] <= target < outputs.shape[1]:
        raise TargetError(f"target={target}: f returns {outputs.shape[1]} number(s) per point.")
    return torch.full((len(outputs),), target % outputs.shape[1], device=outputs.device)


def _one(ask: Points, x: Tensor, x0: Tensor, target: int, orders: int, lot: torch.Generator, batch: int) -> Tensor:
    """One sample: the changes along every order, and along its reverse."""
    n = x.numel()
    total = torch.zeros(n, dtype=torch.float64)
    rows = list(_orders(n, orders, lot))
    for some in range(0, len(rows), max(1, batch // (n + 1))):
        part = torch.stack(rows[some : some + max(1, batch // (n + 1))])
        rank = part.argsort(1)  # when each value is switched
        on = rank[:, None, :] < torch.arange(n + 1)[:, None]  # (orders, steps, values)
        points = torch.where(on.to(x.device), x.flatten(), x0.flatten())
        found = ask(points.reshape(-1, *x.shape))[:, target].reshape(len(part), n + 1).cpu()
        total += found.diff(dim=1).gather(1, rank).sum(0)
    return total / len(rows)


def _orders(n: int, orders: int, lot: torch.Generator) -> Iterator[Tensor]:
    for _ in range((orders + 1) // 2):
        order = torch.randperm(n, generator=lot)
        yield order
        yield order.flip(0)
