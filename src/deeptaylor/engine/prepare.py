"""Capture, rewrite, plan and check a network, once per input shape.

prepare(model, example, settings)
├── rebuild_graph      the flat graph of a network by name, from its recipe
├── capture            the flat graph of any other network, by torch.export; cut if one of its layers is explained
├── check_mixing       raise if an operation mixes samples
├── rewrite, unify_dtype, fold, split_attention    the passes over the graph
├── Planner            one step for each boundary, with its rule
├── find_layouts       the sample axis of every tensor; raise if samples cannot be told apart
└── check_agreement    raise if the graph does not compute what the user's network computes
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from deeptaylor.domain import Box
from deeptaylor.engine.sample_layout import Layout, check_mixing, check_samples, find_layouts
from deeptaylor.errors import CaptureError
from deeptaylor.graph.agreement import KnownOutput, check_agreement
from deeptaylor.graph.capture import CapturedGraph, capture
from deeptaylor.graph.editing import copy_graph, cut_at_layer
from deeptaylor.graph.failure import explain_capture_failure, is_data_dependent, strip_traceback
from deeptaylor.graph.modes import disable_autocast, eval_mode, isolate_export, preserve_interrupts
from deeptaylor.graph.recipe import rebuild_graph
from deeptaylor.graph.recording import Recording
from deeptaylor.passes.fold import fold
from deeptaylor.passes.rewrite import rewrite, split_attention, unify_dtype
from deeptaylor.plan.plan import StepPlan
from deeptaylor.plan.planner import Planner, make_plan_without_rules
from deeptaylor.settings import Settings

__all__ = ["PlannedNetwork", "prepare"]


@dataclass(frozen=True)
class PlannedNetwork:
    """A captured network with its plan: everything that an engine needs."""

    captured: CapturedGraph
    planned: StepPlan
    layout: dict[str, Layout]
    settings: Settings
    one: Tensor  # the number 1 with the device and dtype of the network
    fixed_batch: int | None  # the batch size, if the network accepts no other


def prepare(
    model: nn.Module, example: Sequence[Tensor], settings: Settings, full_batch: Sequence[Tensor] | None = None,
    known_output: KnownOutput | None = None, recording: Recording | None = None,
) -> PlannedNetwork:  # fmt: skip
    """Capture, rewrite, plan and check a network; return what an engine needs.

    example        the inputs to capture with
    full_batch     the user's whole batch, if the example is only its first samples
    known_output   an earlier output of the network
    recording      records how constants are computed, for a live explainer

    Raises a CaptureError, MismatchError, PlanError or InputError.
    """
    with preserve_interrupts(), eval_mode(model), disable_autocast(example), torch.no_grad():
        batch = example if full_batch is None else full_batch
        recipe = rebuild_graph(model, example) if settings.explains_model_output else None
        if recipe is not None:
            with contextlib.suppress(Exception):  # if it fails, torch.export gives the error
                return _prepare(model, recipe, example, settings, batch, known_output, recording)
        with isolate_export():
            captured = capture(model, example, settings.output, settings.root)
        try:
            return _prepare(model, captured, example, settings, batch, known_output, recording)
        except Exception as error:
            if not is_data_dependent(error):
                raise
            raise CaptureError(explain_capture_failure(error, model)) from strip_traceback(error)


def _prepare(
    model: nn.Module, captured: CapturedGraph, example: Sequence[Tensor], settings: Settings, batch: Sequence[Tensor],
    known_output: KnownOutput | None, recording: Recording | None,
) -> PlannedNetwork:  # fmt: skip
    """Rewrite, plan and check a captured network."""
    recorded = contextlib.nullcontext() if recording is None else recording
    with isolate_export():
        compared_network = _find_compared_network(model, captured, settings.layer)
        is_independent = check_mixing(captured)
    if recording is not None:
        recording.start(model, captured.constants)
    with isolate_export(), recorded:
        rewrite(captured)
        unify_dtype(captured)
        boxes = {n for n, d in zip(captured.inputs, settings.domains, strict=True) if isinstance(d, Box)}
        fold(captured, boxes)
        split_attention(captured)
    rewritten = copy_graph(captured.graph)  # the plan may still remove a final softmax
    with recorded:
        planned = _plan_steps(captured, settings)
    layout = find_layouts(captured, example)
    explained = [name for s in planned.steps for name in (s.node, *s.inputs)] or [planned.output, *planned.inputs]
    check_samples(captured, layout, explained)
    with isolate_export():
        module = fx.GraphModule(captured.constants, rewritten)
        if compared_network is model:
            check_agreement(model, module, captured, batch, settings.output, known_output, is_independent)
        else:
            check_agreement(compared_network, module, captured, batch, None, is_independent=is_independent)
    fixed = captured.batch_size if isinstance(captured.batch_size, int) else None
    _forget_fake_tensors(captured)
    return PlannedNetwork(captured, planned, layout, settings, _make_one(captured, example), fixed)


def _find_compared_network(model: nn.Module, captured: CapturedGraph, layer: str) -> nn.Module:
    """Return the network to compare with: the user's, or the exported graph cut at a layer."""
    if not layer:
        return model
    cut_at_layer(captured, layer)
    return fx.GraphModule(captured.constants, copy_graph(captured.graph))


def _plan_steps(captured: CapturedGraph, settings: Settings) -> StepPlan:
    """Return the plan for these settings."""
    if not settings.planned:
        return make_plan_without_rules(captured, settings.keeps_final)
    return Planner(
        captured,
        settings.domains,
        settings.rules,
        settings.first,
        settings.bias == "spread",
        settings.max_pool == "winner",
        settings.local,
        settings.keeps_final,
    ).make()


def _make_one(captured: CapturedGraph, example: Sequence[Tensor]) -> Tensor:
    """Return the number 1 with the device and dtype of the network."""
    like = next((t for t in (*captured.constants.values(), *example) if t.is_floating_point()), example[0])
    dtype = like.dtype if like.is_floating_point() else None
    return torch.ones((), dtype=dtype, device=example[0].device)


def _forget_fake_tensors(captured: CapturedGraph) -> None:
    """Remove the fake tensors from the graph: they are no longer needed, and they cannot be copied."""
    for node in captured.graph.nodes:
        node.meta = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")}
    captured.batch_size = None
