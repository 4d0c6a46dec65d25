"""Reject operations that low-precision dtypes cannot represent; find results that overflowed or underflowed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from deeptaylor.engine import target as targets
from deeptaylor.engine.captured_network import Batch
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import check_processor
from deeptaylor.engine.result import Result
from deeptaylor.errors import NOT_FINITE, InputError, PlanError, TargetError, warn
from deeptaylor.maps.linear_map import Sum
from deeptaylor.plan import domains
from deeptaylor.rules.steps import BlockStep

__all__ = ["LOW_PRECISION", "check_float16", "check_precision", "dtype_of", "ensure_finite", "find_problem"]

LOW_PRECISION = (torch.float16, torch.bfloat16)

_SPACING = 2.0**-24  # of float16 numbers around zero; rounding errors are up to half of it
_UNDERFLOW = 0.02  # the largest part of a map that these rounding errors may be


def dtype_of(inputs: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype that a network computes in: that of its first floating-point input."""
    return next((x.dtype for x in inputs if x.is_floating_point()), torch.float32)


def format_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")


def check_precision(engine: Engine, inputs: Sequence[Tensor], target: object, values: bool = True) -> None:
    """Raise if rules or target take differences of nearly equal numbers, which a low-precision dtype cannot represent.

    values   False: tensors on a GPU are not read (see `target.check`)
    """
    dtype = dtype_of(inputs)
    if dtype not in LOW_PRECISION:
        return
    check_processor(inputs)
    instead = "Explain it in float32: explainer.float(), and x.float()."
    for step in engine.planned.steps:
        if isinstance(step, BlockStep) and step.rule.cancels:
            what = f"The rule {step.rule} (at {step.node}) takes differences, and {format_dtype(dtype)} is too coarse."
            raise PlanError(f"{what} {instead}")
    if dtype is torch.float16 and engine.lost_squares:
        raise PlanError(f"The squared weights at {engine.lost_squares} are too small for float16. {instead}")
    if _has_both_signs(target, values) or any(isinstance(m, Sum) and m.has_negative for m in engine.score.block.maps):
        raise TargetError(f"A logit difference is too fine for {format_dtype(dtype)}. {instead}")


def _has_both_signs(target: object, values: bool) -> bool:
    """Return True for a margin, and for weights with both signs in one sample."""
    if isinstance(target, Tensor) and target.is_floating_point() and target.ndim > 1:
        signs = (target > 0).flatten(1).any(1) & (target < 0).flatten(1).any(1)
        return targets.can_read(target, values) and bool(signs.any())
    return isinstance(target, targets.Margin)


def check_float16(result: Result, inputs: Sequence[Tensor]) -> None:
    """Raise InputError if a result overflowed or underflowed in float16 and must not be recomputed."""
    if dtype_of(inputs) is torch.float16 and (problem := find_problem(result, torch.float16)):
        raise InputError(f"{problem}. Explain in bfloat16 or float32: explainer.float(), and x.float().")


def ensure_finite(engine: Engine, batch: Batch, result: Result) -> tuple[Result, list[str]]:
    """Return the result and notes; if a low-precision dtype overflowed, recompute the result in float32.

    Raises InputError if values overflow in float32 too.
    """
    dtype = dtype_of(batch.inputs)
    wrong = find_problem(result, dtype)
    if not wrong:
        domains.check_signs(engine.watched, engine.planned.sign_assumptions, result.lowest)
        return result, []
    # The score of a class that does not exist is NaN.
    targets.check(batch.target, tuple(engine.layout[engine.planned.output].shape(len(batch))), values=True)
    if dtype in LOW_PRECISION:
        problem = f"{wrong}; the explanation was computed again in float32"
        warn(problem)
        wider = [x.float() if x.is_floating_point() else x for x in batch.inputs]
        result = copy.deepcopy(engine).float().run(wider, batch.target, batch.detail, batch.keep)
        if not find_problem(result, torch.float32):
            domains.check_signs(engine.watched, engine.planned.sign_assumptions, result.lowest)
            return result, [problem]
    bad = "relevance" if bool(torch.isfinite(result.score).all()) else "score"
    raise InputError(
        f"The network's {bad} is not finite for this input: its values overflow. Check weights and input scale.",
        kind=NOT_FINITE,
    )


def find_problem(result: Result, dtype: torch.dtype) -> str:
    """Return a sentence about an overflow or underflow of a dtype in a result; "" if there is none."""
    numbers = _gather_entries(result)  # on the CPU, which synchronises with a GPU once
    if not (bool(torch.isfinite(numbers).all()) or _are_finite([result.score, *result.relevance])):
        return f"{format_dtype(dtype)} overflowed"
    if (
        dtype in LOW_PRECISION
        and result.entries is not None
        and not _is_balanced(numbers[: result.entries.numel()], result.entries)
    ):
        return f"{format_dtype(dtype)} overflowed"
    if dtype is torch.float16 and _underflows(result):
        return "float16 cannot hold relevances this small"
    return ""


def _gather_entries(result: Result) -> Tensor:
    """Return the ledger entries, or else the sums of the relevance, and the score, as one tensor on the CPU.

    If the score or a relevance is not finite, one of these numbers is not.
    """
    sums = [R.sum() for R in result.relevance] if result.entries is None else [result.entries]
    return torch.cat([t.reshape(-1) for t in (*sums, result.score)]).to("cpu")


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if all values of all tensors are finite."""
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _is_balanced(entries: Tensor, like: Tensor) -> bool:
    """Return True if every ledger row balances to a tenth: division by infinity loses relevance silently."""
    arrived, passed, bias, dropped = entries.reshape(like.shape).double().unbind(-2)
    return bool(((arrived - passed - bias - dropped).abs() <= 0.1 * arrived.abs() + 1e-12).all())


def _underflows(result: Result) -> bool:
    """Return True if rounding errors near zero in float16 may be too large a part of a map."""
    score = result.score
    found, rounding = torch.zeros_like(score, dtype=torch.float32), 0.0
    for R in result.relevance:
        own = R.flatten(score.ndim) if R.ndim > score.ndim else R.unsqueeze(-1)
        found += own.sum(-1, dtype=torch.float32)
        rounding += own.shape[-1] * _SPACING / 2
    return bool(((score > 0) & (found < rounding / _UNDERFLOW)).any())
