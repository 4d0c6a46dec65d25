"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from deeptaylor import target as targets
from deeptaylor.capture import pick_output
from deeptaylor.compiled import Compiled
from deeptaylor.domain import Domain
from deeptaylor.engine import Engine, Result, Settings, joined
from deeptaylor.errors import CaptureError, InputError, PlanError, StaleModelError, TargetError, warn
from deeptaylor.explanation import Explanation, Ledger
from deeptaylor.freshness import Known, Look
from deeptaylor.inputs import (
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
from deeptaylor.plan import Plan
from deeptaylor.precision import NARROW, check_precision, dtype_of, problem
from deeptaylor.rules import Rule

# The reverse pass reads what the forward pass kept, in the order in which it was written: reordered, it keeps more at
# once. Channels are last already. Padded matrix products cost more than they give here.
_INDUCTOR = {
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
    "layout_optimization": False,
    "shape_padding": False,
}


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
        self._scored: dict[int, tuple[Any, Explainer]] = {}
        self._compile: tuple[bool | None, dict[str, Any]] | None = None  # CUDA graphs, inductor's options; once asked
        self._recompute = False
        self._runs: dict[int, Compiled] = {}
        self._known = Known(model, self._example, self.settings.domains)
        self.engines = nn.ModuleDict()
        try:
            engine = self._capture(inputs)
        except CaptureError:  # two samples were not enough for a network that insists on its batch size
            if inputs[0].shape[0] <= 2:
                raise
            engine = self._capture(inputs, whole=True)
            self._example = tuple(x.detach() for x in inputs)
        self.engines[_key(inputs)] = engine

    # --- capture --------------------------------------------------------------------------------------------------

    def _capture(self, inputs: Sequence[Tensor], whole: bool = False) -> Engine:
        """Capture the network for these shapes, and bring the result to where this explainer was moved."""
        own = _first_float(self._model[0].parameters())
        example = [x.detach() if whole else x[:2].detach() for x in inputs]
        if own is not None:
            example = [x.to(own) if x.is_floating_point() else x.to(own.device) for x in example]
        engine = Engine(self._model[0], example, self.settings)
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
        now = Known(self._model[0], self._example, self.settings.domains)
        self._capture_again()
        self._scored.clear()
        self._known = now
        return self

    def _capture_again(self) -> None:
        again = self._capture(self._example, whole=True)
        self.engines = nn.ModuleDict({_key(self._example): again})
        self._runs.clear()

    def _engine(self, inputs: Sequence[Tensor]) -> Engine:
        """The engine for these shapes, captured anew where they are new."""
        key = _key(inputs)
        if key in self.engines:
            return cast("Engine", self.engines[key])
        same = f"{_key(inputs)}@{inputs[0].shape[0]}"
        if same in self.engines:
            return cast("Engine", self.engines[same])
        try:
            engine = self._capture(inputs)
        except CaptureError as error:
            wanted = [tuple(x.shape[1:]) for x in self._example]
            raise InputError(
                f"The network was captured for samples of shape {_shapes(wanted)} and does not take "
                f"{_shapes([tuple(x.shape[1:]) for x in inputs])}."
            ) from error
        self.engines[key] = engine
        return engine

    def compile(self, graphs: bool | None = None, **options: Any) -> Explainer:  # type: ignore[override]
        """Compile every pass from now on: slow the first time for each shape, then faster.

        ``graphs``: record passes on a GPU as CUDA graphs, which keep their memory; None: where launching them takes
        most of the time. ``options`` are those of torch.compile's inductor.
        """
        self._compile = (graphs, _INDUCTOR | options)
        self._runs.clear()
        for _, scored in self._scored.values():
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
        for _, scored in self._scored.values():
            scored.recompute(on)
        return self

    def _result(
        self,
        engine: Engine,
        inputs: Sequence[Tensor],
        target: Any,
        ledger: bool = False,
        keep: frozenset[str] = frozenset(),
    ) -> Result:
        """Run a batch; what does not fit into memory is explained in parts, or keeping less, and that is said."""
        run, batch = self._runner(engine), inputs[0].shape[0]
        if torch.compiler.is_compiling():
            return run(inputs, target, ledger, keep)
        size = batch
        while True:
            samples = [slice(k, k + size) for k in range(0, batch, size)]
            try:
                parts = [run([x[s] for x in inputs], targets.part(target, s), ledger, keep) for s in samples]
                break
            except RuntimeError as error:
                one = size == 1 or engine.fixed_batch is not None
                if not _out_of_memory(error) or (one and engine.recomputes):
                    raise
            if inputs[0].is_cuda:
                torch.cuda.empty_cache()
            if one:
                warn("A sample does not fit into memory; less is kept and more computed again from now on.")
                run = self.recompute()._runner(engine)
            else:
                size = (size + 1) // 2
        if len(parts) == 1:
            return parts[0]
        warn(f"A batch of {batch} does not fit into memory; it was explained {size} at a time.")
        return joined(parts, {name: engine.layout[name] for name in keep})

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
        for _, scored in self._scored.values():
            scored._apply(fn, recurse)
        now, own = _type_of(self._first.network.buffers()), _type_of(self._model[0].parameters())
        if _wider(now, before) and _wider(own, before) and not self._known.changed():
            self._capture_again()  # what was rounded stays so, but the network itself was not rounded, or less
        return self

    def _places(self) -> list[tuple[int, torch.dtype]]:
        return [(t.data_ptr(), t.dtype) for t in self.buffers()]

    def __getstate__(self) -> dict[str, Any]:
        # These belong to this object; a copy makes its own. Its network's tensors lie elsewhere, with the same values.
        return {**self.__dict__, "_runs": {}, "_scored": {}, "_known": self._known.changed()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._known = Known(self._model[0], self._example, self.settings.domains)
        self._known.stale = state["_known"]

    # --- explain --------------------------------------------------------------------------------------------------

    def forward(self, x: Inputs, target: Any = None) -> tuple[Tensor, Any]:
        """Score and relevance as plain tensors; this is what compiles and exports.

        It looks at no values, for which a GPU would be waited for: where a tensor names a class that does not exist,
        score and relevance are NaN.
        """
        inputs = (x,) if isinstance(x, Tensor) else tuple(x)
        if targets.is_callable(target):
            return self._for_score(target).forward(x)
        if not torch.compiler.is_compiling():
            self._look()
            check_batch(inputs)
        engine = self._engine_for_batch(inputs)
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
        if targets.is_callable(target):
            return self._for_score(target).explain(x)
        self._look()
        inputs = tuple(t.detach().clone() for t in self._checked(x))
        look: Look | None = self._known.look()
        if not inputs[0].is_cuda:  # a GPU is not waited for in between: it is read after the pass
            self._check_fresh(look)
            look = None
        with torch.no_grad():
            engine = self._engine_for_batch(inputs)
            self._check_target(engine, target, inputs)
            check_precision(engine, inputs, target)
            result, notes = self._run(engine, inputs, target, frozenset(), look)
        return self._explanation(engine, inputs, target, result, notes)

    def relevance_at(self, name: str, x: Inputs, target: Any = None) -> Tensor:
        """The relevance at an inner boundary, by node name or module path."""
        if targets.is_callable(target):
            return self._for_score(target).relevance_at(name, x)
        self._look()
        inputs = tuple(t.detach() for t in self._checked(x))
        self._check_fresh()
        engine = self._engine_for_batch(inputs)
        self._check_target(engine, target, inputs)
        check_precision(engine, inputs, target)
        return self._at(engine, name, inputs, target)

    def _later(self, engine: Engine, name: str, inputs: tuple[Tensor, ...], target: Any) -> Tensor:
        """More of an explanation that was made before, if the network is still the same."""
        self._check_fresh()
        if not any(engine is e for e in self.engines.values()):
            raise StaleModelError("The explainer was refreshed since this explanation was made; explain again.")
        return self._at(engine, name, inputs, target)

    def _at(self, engine: Engine, name: str, inputs: tuple[Tensor, ...], target: Any) -> Tensor:
        node = engine.boundary(name)
        with torch.no_grad():
            result, _ = self._run(engine, inputs, target, frozenset([node]))
        return result.kept[node]

    def _engine_for_batch(self, inputs: Sequence[Tensor]) -> Engine:
        engine = self._engine(inputs)
        if engine.fixed_batch is None or engine.fixed_batch == inputs[0].shape[0]:
            return engine
        key = f"{_key(inputs)}@{inputs[0].shape[0]}"
        if key not in self.engines:
            self.engines[key] = self._capture(inputs, whole=True)
        return cast("Engine", self.engines[key])

    def _run(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, keep: frozenset[str], look: Look | None = None
    ) -> tuple[Result, list[str]]:
        """Explain; where a narrow type was too narrow, say so and do it again in float32."""
        result = self._result(engine, inputs, target, ledger=True, keep=keep)
        if look is not None:
            self._check_fresh(look)
        dtype = dtype_of(inputs)
        wrong = problem(result, dtype)
        if not wrong:
            return result, []
        if dtype in NARROW:
            said = f"{wrong}; the explanation was computed again in float32"
            warn(said)
            wide = copy.deepcopy(engine).float()
            wider = [x.float() if x.is_floating_point() else x for x in inputs]
            result = wide.run(wider, target, ledger=True, keep=keep)
            if not problem(result, torch.float32):
                return result, [said]
        bad = "score" if not bool(torch.isfinite(result.score).all()) else "relevance"
        raise InputError(
            f"The network's {bad} is not finite for this input: its values overflow. Check weights and input scale."
        )

    def _for_score(self, score: Callable[[Tensor], Tensor]) -> Explainer:
        """An explainer of score(network(x)), captured together and remembered."""
        known = self._scored.get(id(score))
        if known is None:
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
            if self._recompute:
                scored.recompute()
            known = self._scored[id(score)] = (score, scored)
        return known[1]

    def _explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, notes: list[str]
    ) -> Explanation:
        return Explanation(
            relevance=result.relevance[0] if len(inputs) == 1 else result.relevance,
            score=result.score,
            ledger=Ledger.of(result, engine.plan),
            target=target,
            notes=(*notes, *engine.plan.notes),
            source=lambda name: self._later(engine, name, inputs, target),
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
        if not self._known.quick():
            moved = self._known.moved()
            if moved is not None:
                self._follow(*moved)
            self._check_fresh()

    def _follow(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the network went, and become the type it became, unless this explainer was elsewhere already."""
        was, own = self._known.place, _first_float(self._first.network.buffers())
        self._known = Known(self._model[0], self._example, self.settings.domains)
        if was is None or own is None:
            return
        there = (device if own.device == was[0] else own.device, dtype if own.dtype == was[1] else own.dtype)
        if there != (own.device, own.dtype):
            warn(f"The network was moved to {device} as {dtype}; its explainer follows, and takes inputs like it.")
            self.to(device=there[0], dtype=there[1])

    def _check_fresh(self, look: Look | None = None) -> None:
        """Refuse a network that changed; `look`, where that look has begun."""
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
        score: Any = self.score(chosen)
        if not isinstance(score, Tensor) or score.ndim not in (1, 2) or (score.ndim == 2 and score.shape[1] != 1):
            raise TargetError(
                "A callable target must return one number a sample: a tensor of shape (batch,) or (batch, 1)."
            )
        return score


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


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


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
