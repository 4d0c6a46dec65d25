"""Compare a batch with its references: run both points through the graph, and redistribute the difference.

compare(engine, run, inputs, references, target)
├── group_references    short references that run as one larger batch: weights are read once
├── compare_group       such a batch, split again afterwards
└── run                 one comparison: compare_once, or FlatProgram, the same traced and compiled
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.engine import target as targets
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.secant_walk import SecantRun, redistribute, run_at_both_points, secant_dtype
from deeptaylor.engine.spatial import smooth
from deeptaylor.errors import NOT_FINITE, BoundaryError, InputError, UnsupportedOpError
from deeptaylor.secants.arithmetic import declare_copies
from deeptaylor.secants.low_precision import is_fast
from deeptaylor.secants.pair import Pair, TracedValueError, trace_walk

__all__ = [
    "CompareFunction",
    "Comparison",
    "FlatProgram",
    "InnerChange",
    "compare",
    "compare_inside",
    "compare_once",
    "describe_mean",
]

Inputs = Sequence[Tensor]
ComparedBatch = tuple[
    tuple[Tensor, ...], Tensor, Tensor, Tensor | None
]  # relevance, both scores, the classes if target=None
CompareFunction = Callable[[Inputs, Inputs, Any], ComparedBatch]  # x, reference, target
_MAX_TOKENS = 4096  # in a batch of several references; a larger batch uses the processor fully alone


class Comparison(NamedTuple):
    """How the score of x differs from that of its references; maps are (B, …), or (B, K, …) for K targets."""

    relevance: tuple[Tensor, ...]  # one per input
    score: Tensor
    reference_score: Tensor
    in_favour: Tensor  # the sum of the positive relevance
    against: Tensor  # the sum of the negative relevance, as a positive number
    classes: Tensor | None  # the network's answer, if target=None
    notes: tuple[str, ...]


def compare(
    engine: Engine, run: CompareFunction, inputs: Inputs, references: Sequence[Inputs], target: Any, width: float = 0.0
) -> Comparison:
    """Compare x with every reference, and return the mean.

    run     the function that compares with one reference
    width   the standard deviation, in pixels, of the smoothing of pictures' relevance; 0: no smoothing
    """
    with torch.inference_mode(False), torch.enable_grad():
        x = [t.detach().clone() if t.is_inference() else t.detach() for t in inputs]
        others = [[_detach(t0, t, own) for t0, t, own in zip(x0, inputs, x, strict=True)] for x0 in references]
        groups = group_references(others, x, engine, target)
        each = [scored for group in groups for scored in compare_group(run, x, group, target)]
    relevance = tuple(torch.stack(maps).mean(0) for maps in zip(*(e[0] for e in each), strict=True))
    score, reference = each[0][1], torch.stack([e[2] for e in each]).mean(0)
    if width:
        axis = engine.channel_axis
        relevance = tuple(smooth(R, width, x.ndim - 2, axis) for R, x in zip(relevance, inputs, strict=True))
    _check_finite(score, reference, relevance)
    lead = score.ndim
    in_favour, against = (torch.stack([_sum_positive(s * R, lead) for R in relevance]).sum(0) for s in (1, -1))
    notes = [describe_mean(len(each))] * (len(each) > 1)
    if secant_dtype(engine) is not engine.one.dtype:
        dtype = str(engine.one.dtype).removeprefix("torch.")
        products = (
            "; large products of matrices read pairs of such numbers" if is_fast(engine.one.dtype, x[0].device) else ""
        )
        notes.append(
            f"computed in float32, with the weights of the network in {dtype}: differences need the digits{products}"
        )
    return Comparison(relevance, score, reference, in_favour, against, each[0][3], tuple(notes))


def describe_mean(count: int) -> str:
    """Return the note of an answer with several references."""
    return f"the reference's score and the relevance are means over {count} references"


def _check_finite(score: Tensor, reference: Tensor, relevance: Sequence[Tensor]) -> None:
    """Raise InputError if a score or the relevance is NaN or infinite."""
    *scores, maps = torch.stack([
        torch.isfinite(score).all(), torch.isfinite(reference).all(),
        torch.stack([torch.isfinite(R).all() for R in relevance]).all(),
    ]).tolist()  # fmt: skip  # at once: it synchronises with a GPU
    for what, finite in zip(("input", "reference"), scores, strict=True):
        if not finite:
            raise InputError(
                f"The network's score of the {what} is NaN or infinite: there is no difference to explain.",
                kind=NOT_FINITE,
            )
    if not maps:
        raise InputError(
            "The slopes between the input and the reference overflow, though both scores are finite: compare in "
            "float64, or with another reference.",
            kind=NOT_FINITE,
        )


def _sum_positive(R: Tensor, lead: int) -> Tensor:
    """Sum the positive values over all axes but the first `lead`: samples and targets."""
    return R.clamp(min=0).reshape(*R.shape[:lead], -1).sum(-1)


def _detach(reference: Tensor, x: Tensor, detached_x: Tensor) -> Tensor:
    """Return a reference detached; return `detached_x` if the reference is x."""
    if reference is x or (not x.is_floating_point() and reference.dtype is x.dtype and torch.equal(reference, x)):
        return detached_x
    return reference.detach().clone() if reference.is_inference() else reference.detach()


# --- one reference ----------------------------------------------------------------------------------------------------


def compare_once(engine: Engine, x: Inputs, x0: Inputs, target: Any) -> ComparedBatch:
    """Return the comparison with one reference, computed step by step."""
    return _redistribute_score(engine, run_at_both_points(engine, x, x0), target, len(x[0]))


class InnerChange(NamedTuple):
    """The change of an inner value between reference and input; tensors (B, …), or (B, K, …) for K targets."""

    relevance: Tensor  # multiplier · change: its sum is the part of the score's change that passes this value
    multiplier: Tensor  # the slope of the score, as a secant
    change: Tensor  # of the value: (B, …)


def compare_inside(engine: Engine, x: Inputs, x0: Inputs, target: Any, node: str) -> InnerChange:
    """Compare with one reference; return the relevance of an inner value, its multiplier and its change."""
    found: list[Any] = []

    def keep(name: str, value: Any) -> Any:
        if name == node:
            found.append(value)
        return value

    with torch.inference_mode(False), torch.enable_grad():
        way = run_at_both_points(engine, [t.detach() for t in x], [t.detach() for t in x0], keep)
        value = found[0]
        if not (value.x if isinstance(value, Pair) else value).is_floating_point():
            raise BoundaryError(f"The value {node!r} does not hold real numbers, so its change has no relevance.")
        if isinstance(value, Pair) and value.x.requires_grad:
            leaf, change = value.x, value.change
        else:
            leaf, change = torch.zeros_like(value).requires_grad_(), torch.zeros_like(value)
        to_value = way._replace(leaves=(leaf,), changes=(torch.ones_like(change),))
        (multiplier,), score, _, _ = _redistribute_score(engine, to_value, target, len(x[0]))
    over = change.unsqueeze(1) if score.ndim == 2 else change
    return InnerChange(multiplier * over, multiplier, change)


def _redistribute_score(engine: Engine, way: SecantRun, target: Any, batch: int) -> ComparedBatch:
    """Redistribute the change of the score, or of each of K scores, to the leaves of a run."""
    if isinstance(target, targets.LogOdds):
        return _compare_log_odds(way, target)
    against = isinstance(target, targets.Against)
    v, many = (targets.against_weights if against else targets.output_weights)(target, way.output.detach())
    layout = engine.layout[engine.planned.output]

    def compute_score(weights: Tensor, output: Tensor) -> Tensor:
        return layout.sum_per_sample(weights * output, batch)

    if not many:
        f = compute_score(v, way.output)
        top = target.target if against else target
        classes = v.argmax(1) if top is None and v.ndim == 2 else None
        return redistribute(way, f), f.detach(), compute_score(v, way.output0), classes
    fs = [compute_score(w, way.output) for w in v]
    maps = [redistribute(way, f, keep=k < len(fs) - 1) for k, f in enumerate(fs)]
    relevance = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
    return relevance, torch.stack(fs, 1).detach(), torch.stack([compute_score(w, way.output0) for w in v], 1), None


def _compare_log_odds(way: SecantRun, target: targets.LogOdds) -> ComparedBatch:
    """Compare the log-odds of a class, or of K classes."""
    asked, output = target.target, way.output.detach()
    z, z0 = (targets.class_scores(asked, at) for at in (output, way.output0))
    chosen, many = targets.output_weights(targets.class_of(asked), z)
    classes = chosen if many else chosen.unsqueeze(0)
    v = [targets.spread_over_output(asked, targets.log_odds_weights(c, z, z0), output) for c in classes]
    maps = [redistribute(way, (w * way.output).flatten(1).sum(1), keep=k < len(v) - 1) for k, w in enumerate(v)]
    scores = [targets.log_odds_of(classes, at) for at in (z, z0)]
    if not many:
        return maps[0], scores[0][0], scores[1][0], chosen.argmax(1) if asked is None else None
    relevance = tuple(torch.stack(of_input, 1) for of_input in zip(*maps, strict=True))
    return relevance, scores[0].movedim(0, 1), scores[1].movedim(0, 1), None


# --- several references at once ---------------------------------------------------------------------------------------


def group_references(references: Sequence[Inputs], x: Inputs, engine: Engine, target: Any) -> list[list[Inputs]]:
    """Return groups of references to compare in one batch: references of the same form, up to a maximum size."""
    rows = len(x[0])
    max_count = (
        _MAX_TOKENS // max(1, x[0].numel()) if engine.fixed_batch is None and _can_repeat(target, x, rows) else 1
    )
    groups: list[list[Inputs]] = []
    for reference in references:
        last = groups[-1] if groups else []
        if (
            last
            and len(last) < max_count
            and engine.accepts_batch(rows * (len(last) + 1))
            and _has_form(last[0], reference)
        ):
            last.append(reference)
        else:
            groups.append([reference])
    return groups


def _can_repeat(target: Any, x: Inputs, rows: int) -> bool:
    """Return True if inputs and target have a batch axis, so that they can be repeated."""
    leaves = pytree.tree_leaves(targets.to_tensors(target, x[0]))
    tensors = [t for t in leaves if t is not None]
    return all(isinstance(t, Tensor) and t.ndim > 0 and len(t) == rows for t in (*x, *tensors))


def _has_form(a: Inputs, b: Inputs) -> bool:
    """Return True if two points have the same shapes and dtypes."""
    return all((r.shape, r.dtype) == (s.shape, s.dtype) for r, s in zip(a, b, strict=True))


def compare_group(run: CompareFunction, x: Inputs, references: Sequence[Inputs], target: Any) -> list[ComparedBatch]:
    """Compare with a group of references as one batch, and return the result of each.

    References may differ from x in different inputs, and an operation may not be able to split both changes at once.
    Then references with the same changed inputs form a batch each, and the results follow the order of these batches.
    """
    kinds: dict[tuple[bool, ...], list[Inputs]] = {}
    for reference in references:
        kinds.setdefault(tuple(r is t for r, t in zip(reference, x, strict=True)), []).append(reference)
    try:
        return _compare_batch(run, x, references, target)
    except UnsupportedOpError:
        if len(kinds) == 1:
            raise
        return [scored for kind in kinds.values() for scored in _compare_batch(run, x, kind, target)]


def _compare_batch(run: CompareFunction, x: Inputs, references: Sequence[Inputs], target: Any) -> list[ComparedBatch]:
    """Compare with several references in one batch, and return the result of each."""
    count, rows = len(references), len(x[0])
    if count == 1:
        return [run(x, references[0], target)]
    repeated_x = [torch.cat([t] * count) for t in x]
    others = [
        repeated if all(one is t for one in given) else torch.cat(given)
        for t, repeated, given in zip(x, repeated_x, map(list, zip(*references, strict=True)), strict=True)
    ]
    tensor_target = targets.to_tensors(target, x[0])
    repeated_target = pytree.tree_map_only(Tensor, lambda t: torch.cat([t] * count), tensor_target)
    with declare_copies(count):
        maps, score, reference, classes = run(repeated_x, others, repeated_target)
    parts = [slice(k * rows, (k + 1) * rows) for k in range(count)]
    return [
        (tuple(R[part] for R in maps), score[part], reference[part], None if classes is None else classes[part])
        for part in parts
    ]


# --- traced -----------------------------------------------------------------------------------------------------------


class FlatProgram:
    """A comparison traced as one flat list of operations, once per shape.

    If it reads values inside the network, to know whether a mask differs, it runs step by step.

    options   options of torch.compile; None: do not compile
    """

    def __init__(self, run: CompareFunction, options: dict[str, Any] | None) -> None:
        self._run, self._options = run, options
        self.programs: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, x: Inputs, x0: Inputs, target: Any) -> ComparedBatch:
        target = targets.to_tensors(target, x[0])
        given, form = ([], None) if target is None else pytree.tree_flatten(target)
        if not all(isinstance(t, Tensor) for t in given):
            return self._run(x, x0, target)
        equal = tuple(a is b for a, b in zip(x, x0, strict=True))  # these are one input of the program
        tensors = [*x, *(b for b, is_same in zip(x0, equal, strict=True) if not is_same), *given]
        key = (form, equal, tuple((t.shape, t.dtype, t.device) for t in tensors))
        if key not in self.programs:
            self.programs[key] = self._trace(tensors, len(x), equal, form)
        program = self.programs[key]
        if program is None:
            return self._run(x, x0, target)
        with torch.no_grad():
            *maps, score, reference, classes = program(*tensors)
        return tuple(maps), score, reference, classes

    def _trace(self, tensors: Sequence[Tensor], count: int, equal: Sequence[bool], form: Any) -> Any:
        """Trace both points and the reverse pass; return None if a decision depends on values."""
        from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

        def run_flat(*given: Tensor) -> list[Any]:
            x, rest = given[:count], list(given[count:])
            x0 = [a if is_same else rest.pop(0) for a, is_same in zip(x, equal, strict=True)]
            maps, *scores = self._run(x, x0, None if form is None else pytree.tree_unflatten(rest, form))
            return [*maps, *scores]

        try:
            # Run the reverse pass in this thread, where tracing is known: on a GPU it would run in another one.
            with trace_walk(), torch.autograd.set_multithreading_enabled(False):
                program = make_fx(run_flat)(*tensors)
        except TracedValueError:
            return None
        program.graph.eliminate_dead_code()
        program.recompile()
        if self._options is None:
            return program
        return torch.compile(program, dynamic=False, fullgraph=True, options=self._options)
