"""All that is done once for a network and a shape of input, before anything is explained.

prepare(model, example, settings)
├── rebuilt            a network of our own as a flat graph, from its recipe
├── capture            any other, by torch.export; cut, where one of its layers is explained
├── check_mixing       every sample is computed from its own alone; refused where an operation mixes them
├── rewrite … split    many spellings to few, one type, constants folded, packed projections apart
├── Planner            one step a boundary, each with its rule
├── layouts            where the samples are in every tensor; refused where they are not apart
└── check_agreement    is the captured network the user's?
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.domain import Box, Domain
from deeptaylor.errors import CaptureError
from deeptaylor.graph.agreement import Answer, check_agreement
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.graph.capture import Captured, capture
from deeptaylor.graph.cutting import cut
from deeptaylor.graph.editing import copied
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.graph.exporting import exporting, interrupts_kept
from deeptaylor.graph.places import decides_by_data, explain_failure, short
from deeptaylor.graph.recipe import rebuilt
from deeptaylor.passes.fold import fold
from deeptaylor.passes.one_type import one_type
from deeptaylor.passes.rewrite import rewrite
from deeptaylor.passes.split_attention import split
from deeptaylor.plan.planner import Planner, without_rules
from deeptaylor.plan.table import Planned
from deeptaylor.rules import Rule
from deeptaylor.run.samples import check_mixing, check_samples, layouts
from deeptaylor.run.values import Layout

__all__ = ["Prepared", "Settings", "prepare"]


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    domains: tuple[Domain, ...]
    rules: Mapping[str, Rule]
    first: Rule | None
    bias: str
    max_pool: str
    local: bool
    output: int | str | None
    root: str = ""  # the module that paths are named from, where the network was wrapped
    layer: str = ""  # the layer at which the network is cut: what it gives is explained
    planned: bool = True  # False: captured alone, for what needs no rules
    keeps_final: bool = False  # True: a final softmax or sigmoid is not set aside
    method: str = "auto"  # one of the words of secant/front_door.py
    reference: Any = None  # what secants compare with, if the user named it
    background: Any = None  # data; secants compare with its mean

    @property
    def as_it_is(self) -> bool:
        """True if the network is neither wrapped nor cut, and its one output is explained."""
        return self.output is None and not self.root and not self.layer


@dataclass(frozen=True)
class Prepared:
    """A captured network with its plan: all that an engine needs."""

    captured: Captured
    planned: Planned
    layout: dict[str, Layout]
    settings: Settings
    one: Tensor  # a one where the network computes, and in its type
    fixed_batch: int | None  # how many samples the network insists on


def prepare(
    model: nn.Module, example: Sequence[Tensor], settings: Settings, own: Sequence[Tensor] | None = None,
    known: Answer | None = None,
) -> Prepared:  # fmt: skip
    """`own`: the user's whole batch, of which the example is the beginning; `known`: an answer of the network."""
    with interrupts_kept(), eval_mode(model), without_autocast(example), torch.no_grad():
        whole = example if own is None else own
        recipe = rebuilt(model, example) if settings.as_it_is else None
        if recipe is not None:
            with contextlib.suppress(Exception):  # whatever is wrong with it, or with what was asked: export tells
                return _prepared(model, recipe, example, settings, whole, known)
        with exporting():
            captured = capture(model, example, settings.output, settings.root)
        try:
            return _prepared(model, captured, example, settings, whole, known)
        except Exception as error:
            if not decides_by_data(error):
                raise
            raise CaptureError(explain_failure(error, model)) from short(error)


def _prepared(
    model: nn.Module, captured: Captured, example: Sequence[Tensor], settings: Settings, own: Sequence[Tensor],
    known: Answer | None,
) -> Prepared:  # fmt: skip
    with exporting():
        whole = _cut(model, captured, settings.layer)
        apart = check_mixing(captured)
        rewrite(captured)
        one_type(captured)
        boxes = {n for n, d in zip(captured.inputs, settings.domains, strict=True) if isinstance(d, Box)}
        fold(captured, boxes)
        split(captured)
    rewritten = copied(captured.graph)  # the plan may still set a softmax aside
    planned = _planned(captured, settings)
    layout = layouts(captured, example)
    explained = [name for s in planned.steps for name in (s.node, *s.inputs)] or [planned.output, *planned.inputs]
    check_samples(captured, layout, explained)
    with exporting():
        ours = fx.GraphModule(captured.constants, rewritten)
        if whole is model:
            check_agreement(model, ours, captured, own, settings.output, known, apart)
        else:
            check_agreement(whole, ours, captured, own, None, apart=apart)
    fixed = captured.batch if isinstance(captured.batch, int) else None
    _forget_fake_tensors(captured)
    return Prepared(captured, planned, layout, settings, _one(captured, example), fixed)


def _cut(model: nn.Module, captured: Captured, layer: str) -> nn.Module:
    """The network to agree with: the user's; cut at a layer, as it was exported, for the user's has no such output."""
    if not layer:
        return model
    cut(captured, layer)
    return fx.GraphModule(captured.constants, copied(captured.graph))


def _planned(captured: Captured, settings: Settings) -> Planned:
    if not settings.planned:
        return without_rules(captured, settings.keeps_final)
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


def _one(captured: Captured, example: Sequence[Tensor]) -> Tensor:
    like = next((t for t in (*captured.constants.values(), *example) if t.is_floating_point()), example[0])
    dtype = like.dtype if like.is_floating_point() else None
    return torch.ones((), dtype=dtype, device=example[0].device)


def _forget_fake_tensors(captured: Captured) -> None:
    """They are done with, and cannot be copied."""
    for node in captured.graph.nodes:
        node.meta = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")}
    captured.batch = None
