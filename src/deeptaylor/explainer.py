"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import (
    CaptureError,
    InputError,
    MismatchError,
    PlanError,
    StaleModelError,
    warn,
)
from deeptaylor.explanation import Explanation, Ledger
from deeptaylor.graph.agreement import Answer
from deeptaylor.graph.autocast import AUTOCAST_NOTE, autocasting, without_autocast
from deeptaylor.graph.capture import pick_output
from deeptaylor.graph.eval_mode import LOCK
from deeptaylor.plan.table import Plan
from deeptaylor.rules import Rule
from deeptaylor.run import target as targets
from deeptaylor.run.books import Kept
from deeptaylor.run.callables import ScoreFunction, one_number_a_sample, read
from deeptaylor.run.compiled import Compiled
from deeptaylor.run.engine import Engine, Settings
from deeptaylor.run.fitting import Batch, explain_in_parts
from deeptaylor.run.freshness import Known, Look
from deeptaylor.run.inputs import (
    Inputs,
    as_domains,
    as_tuple,
    check_batch,
    check_choice,
    check_like,
    check_place,
    check_processor,
    check_rules,
    check_tokens,
    check_values,
)
from deeptaylor.run.precision import check_precision, dtype_of, problem, sound
from deeptaylor.run.result import Result

# The reverse pass reads what the forward pass kept, in the order in which it was written: reordered, it keeps more at
# once. Channels are last already. Padded matrix products cost more than they give here.
_INDUCTOR = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "shape_padding": False,
}


_ENGINES = 8  # shapes of input, and numbers of samples, that are remembered beside the first
_SCORED = 4  # functions of the output


class Explainer(nn.Module):
    """Explains the decisions of a network by deep Taylor decomposition.

    model     any exportable network; it is never changed
    example   an input (or a tuple of inputs) as the network takes it
    domain    what values the input may take: Real(), NonNegative() or Box(low, high); a tuple for several inputs
    rules     {node name, module path or pattern: rule} in place of the rules that follow from the domains
    first     the rule of the blocks that read the input
    bias      "neuron": biases keep their share, as in the paper; "spread": it goes back to the unit's inputs
    max_pool  "proportional" to activations, as in the paper, or "winner" takes all
    output    which output to explain, where the network has several: its number or name

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> explainer = dt.Explainer(network, torch.ones(1, 2), domain=dt.NonNegative())
    >>> explainer.explain(torch.ones(1, 2)).relevance.shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        example: Inputs,
        domain: Domain | Sequence[Domain] | None = None,
        *,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str = "neuron",
        max_pool: str = "proportional",
        output: int | str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise PlanError(f"The network must be a torch.nn.Module, got {type(model).__name__}.")
        check_choice("bias", bias, ("neuron", "spread"))
        check_choice("max_pool", max_pool, ("proportional", "winner"))
        check_rules(rules or {}, first)
        inputs = as_tuple(example)
        root = "model" if isinstance(model, _Scored) else ""
        self.settings = Settings(as_domains(domain, inputs), dict(rules or {}), first, bias, max_pool, output, root)
        check_place(inputs, _first_float(model.parameters()), "example", "model")
        check_processor(inputs)
        # In a tuple, so that nn.Module does not take the user's network for a part of this one.
        self._model = (model,)
        self._example = tuple(x[:2].detach() for x in inputs)
        self._scored: dict[str, Explainer] = {}  # by what the function computes, the latest last
        self._compile: tuple[bool | None, dict[str, Any]] | None = None  # CUDA graphs, inductor's options; once asked
        self._recompute = False
        self._runs: dict[int, Compiled] = {}
        self._known, known = self._look_closely()
        self._lock, self._captures = threading.RLock(), 0
        self.engines = nn.ModuleDict()
        try:
            engine = self._capture(inputs, known=known)
        except MismatchError:
            raise
        except CaptureError:  # two samples were not enough for a network that insists on its batch size
            if inputs[0].shape[0] <= 2:
                raise
            engine = self._capture(inputs, whole=True)
            self._example = tuple(x.detach() for x in inputs)
        self.engines[_key(inputs)] = engine

    def _look_closely(self) -> tuple[Known, Answer | None]:
        """The network as it is now, and what it said of the example."""
        known = Known(self._model[0], self._example, self.settings.domains)
        return known, known.answer()

    # --- capture --------------------------------------------------------------------------------------------------

    def _capture(self, inputs: Sequence[Tensor], whole: bool = False, known: Answer | None = None) -> Engine:
        """Capture the network for these shapes, and bring the result to where this explainer was moved."""
        like = _first_float(self._model[0].parameters())
        own = [x.detach() for x in inputs]
        if like is not None:
            own = [x.to(like) if x.is_floating_point() else x.to(like.device) for x in own]
        engine = Engine(self._model[0], own if whole else [x[:2] for x in own], self.settings, own, known)
        if self._recompute:
            engine.recompute()
        moved = _first_float(self._first.network.buffers()) if len(self.engines) else None
        return engine if moved is None else engine.to(device=moved.device, dtype=moved.dtype)

    @property
    def plan(self) -> Plan:
        """What will be done, as a printable table."""
        return self._first.plan

    @property
    def _first(self) -> Engine:
        return cast("Engine", next(iter(self.engines.values())))

    def refresh(self) -> Explainer:
        """Capture the network again, after its parameters changed."""
        now, known = self._look_closely()
        self._capture_again(known)
        self._scored.clear()
        self._known = now
        return self

    def _capture_again(self, known: Answer | None = None) -> None:
        again = self._capture(self._example, whole=True, known=known)
        self.engines = nn.ModuleDict({_key(self._example): again})
        self._captures += 1
        self._runs.clear()

    def engine_for(self, inputs: Sequence[Tensor]) -> Engine:
        """The engine for inputs of these shapes, and this many of them; captured anew where they are new."""
        known = self._remembered(inputs)
        if known is not None:
            return known
        with self._lock:
            known = self._remembered(inputs)
            return self._new(inputs) if known is None else known

    def _remembered(self, inputs: Sequence[Tensor]) -> Engine | None:
        for key in (_key(inputs), f"{_key(inputs)}@{inputs[0].shape[0]}"):
            if key in self.engines:
                engine = cast("Engine", self.engines[key])
                if engine.takes(inputs[0].shape[0]):
                    return engine
        return None

    def _new(self, inputs: Sequence[Tensor]) -> Engine:
        """Capture for another shape or number of samples; what was captured longest ago is forgotten."""
        key, shape_is_new = _key(inputs), _key(inputs) not in self.engines
        try:
            engine = self._capture(inputs, whole=not shape_is_new)
            if not engine.takes(inputs[0].shape[0]):
                engine, shape_is_new = self._capture(inputs, whole=True), False
        except MismatchError:
            raise
        except CaptureError as error:
            wanted = [tuple(x.shape[1:]) for x in self._example]
            raise InputError(
                f"The network was captured for samples of shape {_shapes(wanted)} and does not take "
                f"{_shapes([tuple(x.shape[1:]) for x in inputs])}."
            ) from error
        while len(self.engines) > _ENGINES:
            oldest = next(k for k in self.engines if k != _key(self._example))
            self._runs.pop(id(self.engines.pop(oldest)), None)
        self.engines[key if shape_is_new else f"{key}@{inputs[0].shape[0]}"] = engine
        return engine

    def compile(self, graphs: bool | None = None, **options: Any) -> Explainer:  # type: ignore[override]
        """Compile every pass from now on: slow the first time for each shape, then faster.

        ``graphs``: record passes on a GPU as CUDA graphs, which keep their memory; None: where launching them takes
        most of the time. ``options`` are those of torch.compile's inductor.
        """
        self._compile = (graphs, _INDUCTOR | options)
        self._runs.clear()
        for scored in self._scored.values():
            scored.compile(graphs, **options)
        return self

    def recompute(self, on: bool = True) -> Explainer:
        """Keep less of the forward pass, and compute it again when the reverse pass comes to it.

        For deep networks and large inputs: the memory of a few layers instead of all, for the time of one more forward
        pass. What is in the way of a single sample is computed again without being asked for, and that is said.
        """
        self._recompute = on
        for engine in self.engines.values():
            cast("Engine", engine).recompute(on)
        self._runs.clear()
        for scored in self._scored.values():
            scored.recompute(on)
        return self

    def _result(
        self,
        engine: Engine,
        inputs: Sequence[Tensor],
        target: Any,
        books: Kept = None,
        keep: frozenset[str] = frozenset(),
    ) -> Result:
        """Run a batch; what does not fit into memory is explained in parts, or keeping less, and that is said."""
        if torch.compiler.is_compiling():
            return self._runner(engine)(inputs, target, books, keep)
        batch = Batch(tuple(inputs), target, books, keep)
        return explain_in_parts(engine, batch, lambda: self._runner(engine), self.recompute)

    def _runner(self, engine: Engine) -> Callable[..., Result]:
        """How a batch is run: by the engine itself, or compiled."""
        if self._compile is None or torch.compiler.is_compiling():
            return engine.run
        if id(engine) not in self._runs:
            graphs, options = self._compile
            self._runs[id(engine)] = Compiled(engine, options, graphs)
        return self._runs[id(engine)]

    def _apply(self, fn: Any, recurse: bool = True) -> Explainer:
        places, before = self._places(), _type_of(self._first.network.buffers())
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._places() != places:
            self._runs.clear()
        for scored in self._scored.values():
            scored._apply(fn, recurse)
        now, own = _type_of(self._first.network.buffers()), _type_of(self._model[0].parameters())
        if _wider(now, before) and _wider(own, before) and not self._known.changed():
            self._capture_again()  # what was rounded stays so, but the network itself was not rounded, or less
        return self

    def _places(self) -> list[tuple[int, torch.dtype]]:
        return [(t.data_ptr(), t.dtype) for t in self.buffers()]

    def __deepcopy__(self, memo: dict[int, Any]) -> Explainer:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __reduce__(self) -> Any:
        """To a file goes what an explainer was made of; it is captured again when it is read."""
        like = _first_float(self._first.network.buffers())
        moved = None if like is None else (like.device, like.dtype)
        return _made_again, (self._model[0], self._example, self.settings, moved, self._compile, self._recompute)

    def __getstate__(self) -> dict[str, Any]:
        # These belong to this object; a copy makes its own. Its network's tensors lie elsewhere, with the same values.
        return {**self.__dict__, "_runs": {}, "_scored": {}, "_known": self._known.changed(), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._known, _ = self._look_closely()
        self._known.stale, self._lock = state["_known"], threading.RLock()

    # --- explain --------------------------------------------------------------------------------------------------

    def forward(self, x: Inputs, target: Any = None) -> tuple[Tensor, Any]:
        """Score and relevance as plain tensors; this is what compiles and exports.

        It looks at no values, for which a GPU would be waited for: where a tensor names a class that does not exist,
        score and relevance are NaN.
        """
        if autocasting(x):
            with without_autocast(x):
                return self.forward(x, target)
        inputs = (x,) if isinstance(x, Tensor) else tuple(x)
        if not torch.compiler.is_compiling():
            self._look()
            check_batch(inputs)
        engine = self.engine_for(inputs)
        if targets.is_callable(target):
            target = self._weights_of(target, engine, inputs)
            if targets.is_callable(target):
                return self._for_score(target, engine, inputs).forward(x)
        if not torch.compiler.is_compiling():
            self._check_target(engine, target, inputs, values=False)
        check_precision(engine, inputs, target, values=False)
        result = self._result(engine, inputs, target)
        if (
            dtype_of(inputs) is torch.float16
            and not torch.compiler.is_compiling()
            and (said := problem(result, torch.float16))
        ):
            raise InputError(f"{said}. Explain in bfloat16 or float32: explainer.float(), and x.float().")
        return result.score, result.relevance[0] if len(inputs) == 1 else result.relevance

    def explain(self, x: Inputs, target: Any = None) -> Explanation:
        """Explain a batch: relevance, score, ledger and what there is to say about them.

        target   None: the top class; an int; an integer tensor (B,) or (B, K): K maps a sample; a float tensor shaped
                 like the output: weights; dt.margin(a, b): a logit difference; a callable on the output
        """
        if autocasting(x):
            with without_autocast(x):
                return self.explain(x, target).noting(AUTOCAST_NOTE)
        look = self._begin_look()
        inputs = tuple(t.detach().clone() for t in self._checked(x))
        if not inputs[0].is_cuda:
            self._check_fresh(look)
        with torch.no_grad():
            engine = self.engine_for(inputs)
            asked = self._weights_of(target, engine, inputs)
            if targets.is_callable(asked):
                return self._for_score(asked, engine, inputs).explain(x)
            self._check_target(engine, asked, inputs, values=not inputs[0].is_cuda)
            check_precision(engine, inputs, asked)
            # On a GPU, launching the books of every step would take long, and the look goes on beside the pass.
            if inputs[0].is_cuda:
                result, notes = self._run(engine, inputs, asked, "in total", look=look)
            else:
                result, notes = self._run(engine, inputs, asked, "by step")
        return self._explanation(engine, inputs, target, result, notes)

    def relevance_at(self, name: str, x: Inputs, target: Any = None) -> Tensor:
        """The relevance at an inner boundary, by node name or module path."""
        self._look()
        inputs = tuple(t.detach() for t in self._checked(x))
        self._check_fresh()
        return self._at(name, inputs, target)

    def _later(self, captures: int, inputs: tuple[Tensor, ...], target: Any, name: str | None = None) -> Tensor:
        """More of an explanation that was made before, if the network is still the same."""
        self._check_fresh()
        if captures != self._captures:
            raise StaleModelError("The explainer was refreshed since this explanation was made; explain again.")
        return self._at(name, inputs, target)

    def _at(self, name: str | None, inputs: tuple[Tensor, ...], target: Any) -> Tensor:
        """The relevance at an inner boundary; or, of no name, the books of every step."""
        with without_autocast(inputs), torch.no_grad():
            engine = self.engine_for(inputs)
            asked = self._weights_of(target, engine, inputs)
            if targets.is_callable(asked):
                return self._for_score(asked, engine, inputs)._at(name, inputs, None)
            self._check_target(engine, asked, inputs)
            check_precision(engine, inputs, asked)
            if name is None:
                result, _ = self._run(engine, inputs, asked, "by step")
                assert result.entries is not None
                return result.entries
            node = engine.boundary(name)
            result, _ = self._run(engine, inputs, asked, "in total", frozenset([node]))
        return result.kept[node]

    def _run(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, books: Kept,
        keep: frozenset[str] = frozenset(), look: Look | None = None,
    ) -> tuple[Result, list[str]]:  # fmt: skip
        """Explain, and look at what came of it; with what there is to say of that."""
        result = self._result(engine, inputs, target, books, keep)
        if look is not None:
            self._check_fresh(look)
        return sound(engine, Batch(tuple(inputs), target, books, keep), result)

    def _weights_of(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> Any:
        """A function of the output as weights over it, where it is linear; anything else as it is."""
        if not targets.is_callable(target) or engine.planned.set_aside:
            return target
        weights = read(target, self._output_like(engine, inputs)).weights
        return target if weights is None else weights

    def _output_like(self, engine: Engine, inputs: Sequence[Tensor]) -> Tensor:
        shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
        return torch.empty(shape, dtype=engine.one.dtype, device=engine.one.device)

    def _for_score(self, score: ScoreFunction, engine: Engine, inputs: Sequence[Tensor]) -> Explainer:
        """An explainer of score(network(x)), captured together; remembered by what the function computes now."""
        signature = read(score, self._output_like(engine, inputs)).signature
        with self._lock:
            known = self._scored.pop(signature, None) if signature is not None else None
            if known is None:
                known = self._captured_with(score)
            if signature is not None:
                self._scored[signature] = known
                while len(self._scored) > _SCORED:
                    self._scored.pop(next(iter(self._scored)))
        return known

    def _captured_with(self, score: ScoreFunction) -> Explainer:
        chosen = self.settings
        scored = Explainer(
            _Scored(self._model[0], score, chosen.output),
            self._example,
            chosen.domains,
            rules=chosen.rules,
            first=chosen.first,
            bias=chosen.bias,
            max_pool=chosen.max_pool,
        )
        moved = _first_float(self._first.network.buffers())
        if moved is not None:
            scored.to(device=moved.device, dtype=moved.dtype)
        scored._compile = self._compile
        return scored.recompute() if self._recompute else scored

    def _explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, notes: list[str]
    ) -> Explanation:
        later = partial(self._later, self._captures, inputs, target)
        return Explanation(
            relevance=result.relevance[0] if len(inputs) == 1 else result.relevance,
            score=result.score,
            ledger=Ledger.of(result, engine.plan, later),
            target=target,
            notes=(*notes, *engine.plan.notes),
            source=later,
        )

    # --- checks ---------------------------------------------------------------------------------------------------

    def _checked(self, x: Inputs) -> tuple[Tensor, ...]:
        """The inputs, or a clear error before any work."""
        inputs, names = as_tuple(x), self._first.planned.inputs
        if len(inputs) != len(self._example):
            raise InputError(f"The network takes {len(self._example)} input(s), got {len(inputs)}.")
        for x_k, example, name in zip(inputs, self._example, names, strict=True):
            check_like(x_k, example, name)
        check_batch(inputs)
        check_place(inputs, _first_float(self._first.network.buffers()), "input", "explainer")
        check_values(inputs, self.settings.domains, names)
        for x_k, name in zip(inputs, names, strict=True):
            if name in self._first.token_limits:
                check_tokens(x_k, name, self._first.token_limits[name])
        return inputs

    def _check_target(self, engine: Engine, target: Any, inputs: Sequence[Tensor], values: bool = True) -> None:
        targets.check(target, tuple(engine.layout[engine.planned.output].shape(inputs[0].shape[0])), values)

    def _look(self) -> None:
        """Refuse a network that changed, if that is easily seen, and follow one that moved."""
        if self._known.quick():
            return
        with LOCK:  # another thread may be capturing it, with its flags lowered
            if not self._known.quick():
                moved = self._known.moved()
                if moved is not None:
                    self._follow(*moved)
                self._check_fresh()

    def _begin_look(self) -> Look | None:
        """The same, and begin to look at every value; None where that was done already."""
        with LOCK:
            look = self._known.look()
        if look is None:
            self._look()
        return look

    def _follow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the network went, and become the type it became, unless this explainer was elsewhere already."""
        was, own = self._known.place, _first_float(self._first.network.buffers())
        self._known, _ = self._look_closely()
        if was is None or own is None:
            return
        there = (device if own.device == was[0] else own.device, dtype if own.dtype == was[1] else own.dtype)
        if there != (own.device, own.dtype):
            warn(f"The network was moved to {device} as {dtype}; its explainer follows, and takes inputs like it.")
            self.to(device=there[0], dtype=there[1])

    def _check_fresh(self, look: Look | None = None) -> None:
        """Refuse a network that changed; `look`, where that look has begun."""
        with LOCK:
            changed = self._known.changed(look)
        if changed:
            raise StaleModelError(
                f"The network changed since it was captured ({len(changed)} parts, among them "
                f"{', '.join(changed[:3])}). Call explainer.refresh() to explain the network as it is now."
            )


class _Scored(nn.Module):
    """score(network(x)): a callable target made part of the network."""

    def __init__(self, model: nn.Module, score: Callable[[Tensor], Tensor], output: int | str | None) -> None:
        super().__init__()
        self.model, self.score, self.output = model, score, output
        self.training = model.training

    def forward(self, *inputs: Tensor) -> Tensor:
        """The score of a batch."""
        chosen, _ = pick_output(self.model(*inputs), self.output, Tensor)
        return one_number_a_sample(self.score(chosen), chosen)


def _made_again(
    model: nn.Module, example: tuple[Tensor, ...], chosen: Settings, moved: Any, compiled: Any, recompute: bool
) -> Explainer:
    """An explainer that was read from a file."""
    explainer = Explainer(
        model,
        example,
        chosen.domains,
        rules=chosen.rules,
        first=chosen.first,
        bias=chosen.bias,
        max_pool=chosen.max_pool,
        output=chosen.output,
    )
    explainer._compile = compiled
    if moved is not None:
        explainer.to(*moved)
    return explainer.recompute() if recompute else explainer


def explain(
    model: nn.Module, x: Inputs, target: Any = None, domain: Domain | Sequence[Domain] | None = None, **settings: Any
) -> Explanation:
    """Capture, plan and explain in one call; for many inputs keep an Explainer."""
    inputs = as_tuple(x)
    check_values(inputs, as_domains(domain, inputs), [f"input {k}" for k in range(len(inputs))])
    return Explainer(model, x, domain, **settings).explain(x, target)


def _wider(a: torch.dtype, b: torch.dtype) -> bool:
    """True if a type has more digits, or a wider range, than another."""
    return torch.finfo(a).eps < torch.finfo(b).eps or torch.finfo(a).max > torch.finfo(b).max


def _first_float(tensors: Iterable[Tensor]) -> Tensor | None:
    """The tensor that tells where and in which type a network computes."""
    return next((t for t in tensors if t.is_floating_point() and t.ndim), None)


def _type_of(tensors: Iterable[Tensor]) -> torch.dtype:
    first = _first_float(tensors)
    return torch.float32 if first is None else first.dtype


def _key(inputs: Sequence[Tensor]) -> str:
    """Everything but the batch size that a capture depends on; free of dots, as module names must be."""
    return "_".join(
        "x".join(str(int(n)) for n in x.shape[1:]) + ("f" if x.is_floating_point() else "i") for x in inputs
    )


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))
