"""One captured network with its plan: forward once, keep what the steps read, then the steps in reverse.

Engine.run(inputs, target)
├── network(*inputs)      the rewritten graph; returns only the values that steps read
└── reverse               R_f = max(0, f), then one step a boundary, freeing values as they are used up
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.domain import Box, Domain
from deeptaylor.graph.agreement import Answer, check_agreement
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.graph.capture import capture
from deeptaylor.graph.editing import copied
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.graph.exporting import exporting, interrupts_kept
from deeptaylor.graph.places import Node
from deeptaylor.maps.convolution import Convolution, channels_last
from deeptaylor.maps.division import weighted
from deeptaylor.maps.linear_map import Maybe, Weighted, plus
from deeptaylor.operations.flows import Tokens
from deeptaylor.operations.table import convolves, flow_of, run_fast
from deeptaylor.passes.fold import fold
from deeptaylor.passes.one_type import one_type
from deeptaylor.passes.rewrite import rewrite
from deeptaylor.passes.split_attention import split
from deeptaylor.plan import guard
from deeptaylor.plan.planner import Planner
from deeptaylor.plan.table import Plan
from deeptaylor.rules import Rule, WSquare
from deeptaylor.rules.steps import BlockStep, ScoreStep
from deeptaylor.run import target as targets
from deeptaylor.run.again import Again, Segments, find
from deeptaylor.run.books import Books, Kept
from deeptaylor.run.boundaries import boundary
from deeptaylor.run.result import Result
from deeptaylor.run.samples import check_samples, layouts
from deeptaylor.run.values import Pass

_LIFTED = 1  # small scores are lifted to about one; higher, a tiny denominator (biases spread) would overflow
_HALF = 12  # in float16 every score is lifted to about 2¹²: what is left of its range is for the steps
_LOST = 0.01  # the part of all squared weights that rounding may take at most
_HIGHEST = 100  # the highest lift, a number of float32 itself


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    domains: tuple[Domain, ...]
    rules: Mapping[str, Rule]
    first: Rule | None
    bias: str
    max_pool: str
    output: int | str | None
    root: str = ""  # the module that paths are named from, where the network was wrapped


def _or_zeros(R: Maybe, shape: torch.Size, like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=like.dtype, device=like.device) if R is None else R


def _lift(f: Tensor) -> Tensor | None:
    """A power of two for each sample that lifts a small score's relevance out of the range of denormal numbers.

    There convolutions take hundreds of times as long on a CPU, and float16 has few digits left. Relevance is linear in
    its start, and a power of two changes no digit. None where it is not needed, or would not be traced.
    """
    if f.dtype is torch.float16:
        return torch.exp2(torch.floor(_HALF - torch.log2(f.clamp(min=torch.finfo(f.dtype).tiny))).clamp(max=15))
    if f.device.type != "cpu" or f.dtype is not torch.float32 or torch.compiler.is_compiling():
        return None
    _, exponent = torch.frexp(f.clamp(min=0))
    return torch.ldexp(torch.ones_like(f), (_LIFTED - exponent).clamp(min=0, max=_HIGHEST))


class Engine(nn.Module):
    """A network captured for one input shape, ready to explain."""

    def __init__(
        self, model: nn.Module, example: Sequence[Tensor], settings: Settings, own: Sequence[Tensor] | None = None,
        known: Answer | None = None,
    ) -> None:  # fmt: skip
        """`own`: the user's whole batch, of which the example is the beginning; `known`: an answer of the network."""
        super().__init__()
        spread = settings.bias == "spread"
        with interrupts_kept(), eval_mode(model), without_autocast(example), torch.no_grad():
            with exporting():
                captured = capture(model, example, settings.output, settings.root)
                rewrite(captured)
                one_type(captured)
                boxes = {n for n, d in zip(captured.inputs, settings.domains, strict=True) if isinstance(d, Box)}
                fold(captured, boxes)
                split(captured)
            rewritten = copied(captured.graph)  # the plan may still set a softmax aside
            planned = Planner(
                captured, settings.domains, settings.rules, settings.first, spread, settings.max_pool == "winner"
            ).make()
            self.layout = layouts(captured, example)
            check_samples(captured, self.layout, [name for s in planned.steps for name in (s.node, *s.inputs)])
            with exporting():
                ours = fx.GraphModule(captured.constants, rewritten)
                check_agreement(model, ours, captured, example if own is None else own, settings.output, known)
        self.plan: Plan = planned.plan
        self.planned, self.captured = planned, captured
        self.steps = nn.ModuleList(planned.steps)  # so that they move and convert with the engine
        like = next((t for t in (*captured.constants.values(), *example) if t.is_floating_point()), example[0])
        dtype = like.dtype if like.is_floating_point() else None
        self.register_buffer("one", torch.ones((), dtype=dtype, device=example[0].device), persistent=False)
        self.one: Tensor
        self.recomputes, self.cheap = False, find(captured, self._readers())
        self._keep(self.cheap, captured.constants)
        self.non_negative = [d.non_negative for d in settings.domains]
        self.watched = guard.first_reads(planned.steps, planned.watched)
        self.fixed_batch: int | None = captured.batch if isinstance(captured.batch, int) else None
        self.batches = captured.batches
        self.token_limits = self._token_limits()
        for node in (*captured.graph.nodes, *self.network.graph.nodes):
            # Fake tensors are done with, and cannot be copied.
            node.meta = {k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")}
        captured.batch = None
        self._lay_out_weights()
        self.lost_squares = self._lost_squares()

    def takes(self, batch: int) -> bool:
        """True if this many samples go the way that was captured."""
        least, most = self.batches
        return least <= batch and (most is None or batch <= most)

    @property
    def score(self) -> ScoreStep:
        """The step that begins with the score."""
        first = self.planned.steps[0]
        assert isinstance(first, ScoreStep)
        return first

    def _token_limits(self) -> dict[str, int]:
        """For every input that an embedding reads directly, how many tokens there are."""
        nodes = [n for n in self.captured.graph.nodes if isinstance(flow_of(n), Tokens)]
        return {
            n.args[1].name: int(self.captured.constants[str(n.args[0].target)].shape[0])
            for n in nodes
            if n.args[1].op == "placeholder" and n.args[0].op == "get_attr"
        }

    def _readers(self) -> dict[str, list[int]]:
        """For every value that steps read, the numbers of these steps."""
        readers: dict[str, list[int]] = {}
        for k, step in enumerate(self.planned.steps):
            for name in step.needs:
                readers.setdefault(name, []).append(k)
        return readers

    def recompute(self, on: bool = True) -> None:
        """Keep little more than what crosses between segments of the network; or again what makes a pass fastest."""
        self.recomputes, cheap, again = on, self.cheap, self.cheap
        if on:
            segments = Segments(self.captured, self._uses(cheap), self._elements)
            read = {name for segment in segments.again(self._uses(cheap)) for name in segment.reads}
            cheap = {name: one for name, one in cheap.items() if name not in read}
            again = cheap | {name: one for one in segments.again(self._uses(cheap)) for name in one.results}
        self._keep(again, dict(self.network.named_buffers(remove_duplicate=False)))

    def _elements(self, name: str) -> int:
        return math.prod(self.layout[name].shape(self.fixed_batch or 1)) if name in self.layout else 0

    def _keep(self, again: Mapping[str, Again], constants: Mapping[str, Tensor]) -> None:
        """Choose what the forward pass keeps, given what is computed again."""
        self.again = again
        uses = self._uses(again)
        self.kept = tuple(dict.fromkeys([self.planned.output, *(name for name in uses if name not in again)]))
        self.network = self._network(constants)
        self.last_use: dict[int, list[str]] = {}  # after which step a value can go
        for name, at in uses.items():
            self.last_use.setdefault(max(at), []).append(name)

    def _uses(self, again: Mapping[str, Again]) -> dict[str, list[int]]:
        """For every value the numbers of the steps that read it, or at which something is computed from it again."""
        uses = self._readers()
        for one in dict.fromkeys(again.values()):
            first = min(k for name in one.results for k in uses[name])
            for name in one.reads:
                if name not in one.constants:
                    uses.setdefault(name, []).append(first)
        return uses

    def _network(self, constants: Mapping[str, Tensor]) -> fx.GraphModule:
        """The rewritten graph as a module that returns just the values to keep."""
        graph = fx.Graph()
        copies: dict[Node, Node] = {}
        graph.graph_copy(self.captured.graph, copies)
        by_name = {old.name: new for old, new in copies.items()}
        graph.output(tuple(by_name[name] for name in self.kept))
        graph.eliminate_dead_code()
        run_fast(graph)
        used = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
        constants = {k: v for k, v in constants.items() if k in used or self._read_by_step(k)}
        module = fx.GraphModule({k: v for k, v in constants.items() if k in used}, graph)
        for name, value in constants.items():
            if name not in used:
                module.register_buffer(name, value)
        # Weights may be the user's own tensors: no state dict is ever loaded into them.
        module._non_persistent_buffers_set.update(constants)
        self.constant_names = {
            n.name: str(n.target)
            for n in self.captured.graph.nodes
            if n.op == "get_attr" and str(n.target) in constants
        }
        return module

    def _read_by_step(self, constant: str) -> bool:
        return any(n.op == "get_attr" and n.target == constant for n in self.captured.graph.nodes)

    def constant(self, name: str) -> Any:
        """A constant of the network, by its node's name."""
        return getattr(self.network, self.constant_names[name])

    def _apply(self, fn: Any, recurse: bool = True) -> Engine:
        before = self.one.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if torch.finfo(self.one.dtype).bits >= torch.finfo(before).bits and self.one.dtype is not before:
            self._read_weights_again()
        self._lay_out_weights()
        self.lost_squares = self._lost_squares()
        return self

    def _lost_squares(self) -> str:
        """The first node where a w² rule's weights, squared, are too small for float16; empty where there is none."""
        for step in self.planned.steps:
            if isinstance(step, BlockStep) and isinstance(step.rule, WSquare):
                rounding = held = 0.0
                for m in step.block.maps:
                    squared = m._buffers.get("squared")
                    if isinstance(m, Weighted) and squared is not None and squared.dtype is torch.float16:
                        rounding += int((self.constant(m.name) != 0).sum()) * 2.0**-25
                        held += float(squared.sum(dtype=torch.float32))
                if rounding > _LOST * held:
                    return step.node
        return ""

    def _read_weights_again(self) -> None:
        """A type of more digits, or another range: readings of the weights are rounded no further than these."""
        constants = {name: self.constant(name) for name in self.constant_names}
        for step in self.planned.steps:
            if isinstance(step, BlockStep):
                step.block.prepare_again(constants)

    def _lay_out_weights(self) -> None:
        weights = {str(n.args[1].target) for n in self.network.graph.nodes if convolves(n)}
        for module in self.modules():
            names = weights if module is self.network else module._buffers if isinstance(module, Convolution) else ()
            for name in names:
                value = module._buffers.get(name)
                if value is not None:
                    module._buffers[name] = channels_last(value)

    def forward_pass(self, inputs: Sequence[Tensor]) -> Pass:
        """The network once, with the values that steps will read."""
        # An input may be below its domain by a rounding error, which would make relevance negative.
        inside = [x.clamp(min=0) if above else x for x, above in zip(inputs, self.non_negative, strict=True)]
        values = self.network(*[channels_last(x) for x in inside])
        again = {name: partial(again.values, one=self.one) for name, again in self.again.items()}
        kept = dict(zip(self.kept, values, strict=True))
        return Pass(kept, self.constant, self.layout, inputs[0].shape[0], again, self.planned.never_negative)

    def run(
        self, inputs: Sequence[Tensor], target: Any, books: Kept = None, keep: frozenset[str] = frozenset()
    ) -> Result:
        """Explain a batch."""
        run = self.forward_pass(inputs)
        output = run.values[self.planned.output]
        v, many = targets.weights(target, output)
        if not many:
            look = output.device.type == "cpu" and not torch.compiler.is_compiling()
            return self.reverse(run, output, v, books, keep, look)

        def one(v: Tensor) -> tuple[Any, ...]:
            result = self.reverse(run, output, v, books, keep, look=False)
            booked = (result.entries, result.lowest) if books else ()
            return result.score, result.relevance, tuple(t for t in booked if t is not None), result.kept

        score, relevance, booked, kept = torch.vmap(one)(v)
        return Result(
            score.movedim(0, 1),
            tuple(r.movedim(0, 1) for r in relevance),
            booked[0] if booked else None,
            {name: r.movedim(0, 1) for name, r in kept.items()},
            booked[1][0] if len(booked) > 1 else None,
        )

    def reverse(
        self, run: Pass, output: Tensor, v: Tensor, books: Kept = None, keep: frozenset[str] = frozenset(),
        look: bool = False,
    ) -> Result:  # fmt: skip
        """The steps, from the score Σ v z down to the inputs."""
        f = run.per_sample(self.planned.output, weighted(v, output))
        relevance: dict[str, Maybe] = {}
        account = Books(run, books, look)
        kept: dict[str, Tensor] = {}
        lowest: list[Tensor] = []
        lift = _lift(f)
        for k, step in enumerate(self.planned.steps):
            if isinstance(step, ScoreStep):
                R = f.clamp(min=0)
                R = R if lift is None else R * lift
                page = account.page(None, R, settled=False)
                outs = step.start(R, v, f, run, page)
            else:
                R = _or_zeros(relevance.pop(step.node, None), run.shape(step.node), f)
                if step.node in keep:
                    kept[step.node] = R
                page = account.page(step.node, R, step.settled)
                outs = step.back(R, run, page)
            account.hand_on(page, step.inputs, outs)
            for name, out in zip(step.inputs, outs, strict=True):
                relevance[name] = plus(relevance.get(name), out)
            if books:
                lowest += guard.lowest(self.watched.get(k, ()), run)
            for name in self.last_use.get(k, ()):
                run.values.pop(name, None)
            out = None
            del R, outs
        final = []
        for name in self.planned.inputs:
            R = _or_zeros(relevance.get(name), run.shape(name), f).expand(run.shape(name))
            final.append(R)
            if name in keep:
                kept[name] = R
        entries = account.close(f, self.planned.inputs, final)
        if lift is not None:
            final = [R / run.spread_out(name, lift) for name, R in zip(self.planned.inputs, final, strict=True)]
            kept = {name: R / run.spread_out(name, lift) for name, R in kept.items()}
            entries = None if entries is None else entries / lift
        return Result(f, tuple(final), entries, kept, torch.stack(lowest) if lowest else None)

    def boundary(self, name: str) -> str:
        """The tensor behind a module path or node name, if relevance is defined there."""
        return boundary(self, name)
