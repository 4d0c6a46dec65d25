"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import PlanError, StaleModelError
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.autocast import AUTOCAST_NOTE, autocasting, without_autocast
from deeptaylor.ledger import Ledger, held
from deeptaylor.rules import Rule
from deeptaylor.run import contrast as contrasts
from deeptaylor.run import target as targets
from deeptaylor.run.books import Kept
from deeptaylor.run.callables import Scored, ScoreFunction, read
from deeptaylor.run.engine import Engine
from deeptaylor.run.faithful import flipping_area
from deeptaylor.run.freshness import Look
from deeptaylor.run.inputs import (
    Inputs,
    as_domains,
    as_tuple,
    check_batch,
    check_choice,
    check_place,
    check_processor,
    check_rules,
    check_values,
    checked,
    first_float,
)
from deeptaylor.run.network import CapturedNetwork, State
from deeptaylor.run.precision import check_half, check_precision, sound
from deeptaylor.run.prepare import Settings
from deeptaylor.run.result import Result
from deeptaylor.run.returned import RETURNED, returned
from deeptaylor.run.short_of_memory import Batch


class Explainer(CapturedNetwork):
    """Explains the decisions of a network by deep Taylor decomposition.

    model     any exportable network; it is never changed
    example   an input (or a tuple of inputs) as the network takes it
    domain    what values the input may take: Real(), NonNegative() or Box(low, high); a tuple for several inputs
    rules     {node name, module path or pattern: rule} in place of the rules that follow from the domains
    first     the rule of the blocks that read the input
    bias      "returned": biases take their share, which is handed back at the end, place by place;
              "neuron": they keep it, as in the paper; "spread": it goes back to the inputs of each unit
    max_pool  "proportional" to activations, as in the paper, or "winner" takes all
    local     a layer behind an average is read as a detector at every place; False: as one of the averages
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
        bias: str = RETURNED,
        max_pool: str = "proportional",
        local: bool = True,
        output: int | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise PlanError(f"The network must be a torch.nn.Module, got {type(model).__name__}.")
        check_choice("bias", bias, (RETURNED, "neuron", "spread"))
        check_choice("max_pool", max_pool, ("proportional", "winner"))
        check_rules(rules or {}, first)
        inputs = as_tuple(example)
        root = "model" if isinstance(model, Scored) else ""
        settings = Settings(as_domains(domain, inputs), dict(rules or {}), first, bias, max_pool, local, output, root)
        check_place(inputs, first_float(model.parameters()), "example", "model")
        check_processor(inputs)
        super().__init__(model, inputs, settings)

    def __reduce__(self) -> Any:
        """To a file goes what an explainer was made of; it is captured again when it is read."""
        return _made_again, (self.model, self.example, self.settings, self.state())

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
            self.original.look(self.follow)
            check_batch(inputs)
        engine = self.engine_for(inputs)
        if targets.is_callable(target):
            target = self._weights_of(target, engine, inputs)
            if targets.is_callable(target):
                return self._for_score(target, engine, inputs).forward(x)
        if not torch.compiler.is_compiling():
            self._check_target(engine, target, inputs, values=False)
        check_precision(engine, inputs, target, values=False)
        result = self.run_batch(engine, inputs, target)
        if not torch.compiler.is_compiling():
            check_half(result, inputs)
        result = self._with_returned(engine, result)
        relevance = result.relevance if result.rivals is None else contrasts.split(result, contrasts.POWER)[0]
        return result.score, relevance[0] if len(inputs) == 1 else relevance

    def explain(self, x: Inputs, target: Any = None) -> Explanation:
        """Explain a batch: relevance, score, ledger and what there is to say about them.

        target   None: the top class; an int; an integer tensor (B,) or (B, K): K maps a sample; a float tensor shaped
                 like the output: weights; dt.margin(a, b): a logit difference; a callable on the output
        """
        if autocasting(x):
            with without_autocast(x):
                return self.explain(x, target).noting(AUTOCAST_NOTE)
        engine, inputs, look = self._begun(x)
        with torch.no_grad():
            asked = self._weights_of(target, engine, inputs)
            if targets.is_callable(asked):
                return self._for_score(asked, engine, inputs).explain(x)
            result, notes = self._answer(engine, inputs, asked, look)
        return self._explanation(engine, inputs, target, result, self._with_returned(engine, result), notes)

    def contrast(self, x: Inputs, target: Any = None, against: Any = None, power: float = contrasts.POWER) -> Contrast:
        """What sets a class apart from its rivals: its map in two parts that are never negative and add up to it.

        target    None: the top class; an int; an integer tensor (B,) or (B, K)
        against   None: the classes that the network itself considers, by its softmax; a class; several; {class:
                  weight}; or a float tensor, one weight a class
        power     how strictly: a pixel's part is (how likely a unit of relevance there is the class's) to this power,
                  so ½^power, 1.6 %, where rivals have the same share; dt.HARD: only what exceeds the rivals' share
        """
        if autocasting(x):
            with without_autocast(x):
                return self.contrast(x, target, against, power).noting(AUTOCAST_NOTE)
        engine, inputs, look = self._begun(x)
        shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
        targets.check(targets.Against(), tuple(shape))
        with torch.no_grad():
            asked = targets.settled(contrasts.asked(target, against, shape[0], shape[1], power), inputs[0])
            result, notes = self._answer(engine, inputs, asked, look)
            assert result.rivals is not None
            if against is not None:
                contrasts.check_rivals(result.rivals)
            elif alone := contrasts.without_rivals(result.rivals):
                notes += [_no_rival(alone)]
            whole = self._with_returned(engine, result)
            return _contrast(self._explanation(engine, inputs, target, result, whole, notes), whole, power)

    def _begun(self, x: Inputs) -> tuple[Engine, tuple[Tensor, ...], Look | None]:
        """What an answer begins with: inputs that were checked, their engine, and a look at the network."""
        look = self.original.begin_look(self.follow)
        inputs = tuple(t.detach().clone() for t in self._checked(x))
        if not inputs[0].is_cuda:
            self.original.check(look)
        with torch.no_grad():
            return self.engine_for(inputs), inputs, look

    def _answer(
        self, engine: Engine, inputs: tuple[Tensor, ...], asked: Any, look: Look | None
    ) -> tuple[Result, list[str]]:
        self._check_target(engine, asked, inputs, values=not inputs[0].is_cuda)
        check_precision(engine, inputs, asked)
        # On a GPU, launching the books of every step would take long, and the look goes on beside the pass.
        if inputs[0].is_cuda:
            return self._run(engine, inputs, asked, "in total", look=look)
        return self._run(engine, inputs, asked, "by step")

    def relevance_at(self, name: str, x: Inputs, target: Any = None) -> Tensor:
        """The relevance at an inner boundary, by node name or module path."""
        self.original.look(self.follow)
        inputs = tuple(t.detach() for t in self._checked(x))
        self.original.check()
        return self._at(name, inputs, target)

    def _later(self, captures: int, inputs: tuple[Tensor, ...], target: Any, name: str | None = None) -> Tensor:
        """More of an explanation that was made before, if the network is still the same."""
        self.original.check()
        if captures != self.captures:
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
        result = self.run_batch(engine, inputs, target, books, keep)
        if look is not None:
            self.original.check(look)
        return sound(engine, Batch(tuple(inputs), target, books, keep), result)

    def _weights_of(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> Any:
        """A function of the output as weights over it, where it is linear; anything else as it is."""
        if not targets.is_callable(target) or engine.planned.set_aside:
            return target
        weights = read(target, _output_like(engine, inputs)).weights
        return target if weights is None else weights

    def _for_score(self, score: ScoreFunction, engine: Engine, inputs: Sequence[Tensor]) -> Explainer:
        """An explainer of score(network(x)), captured together; remembered by what the function computes now."""
        return self.scored(read(score, _output_like(engine, inputs)).signature, partial(self._captured_with, score))

    def _captured_with(self, score: ScoreFunction) -> Explainer:
        whole = Scored(self.model, score, self.settings.output)
        return _made_again(whole, self.example, replace(self.settings, output=None), self.state())

    def _explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, whole: Result, notes: list[str]
    ) -> Explanation:
        later = partial(self._later, self.captures, inputs, target)
        ledger = Ledger.of(result, engine.plan, later)
        if whole is not result:
            ledger = ledger.returning(whole.relevance)
        return Explanation(
            relevance=whole.relevance[0] if len(inputs) == 1 else whole.relevance,
            score=result.score,
            ledger=ledger,
            target=target,
            notes=(*notes, *engine.plan.notes),
            source=later,
            flips=partial(self._flips, inputs, target),
        )

    def _flips(self, inputs: tuple[Tensor, ...], target: Any, R: Tensor, axis: Any = None) -> Tensor:
        """What the network says when this map is believed, if it is still the same network."""
        self.original.check()
        return flipping_area(self.model, inputs, target, R, axis)

    def _with_returned(self, engine: Engine, result: Result) -> Result:
        """The result as the user asked for it: what biases took handed back, or not."""
        return returned(result) if engine.hands_back else result

    # --- checks ---------------------------------------------------------------------------------------------------

    def _checked(self, x: Inputs) -> tuple[Tensor, ...]:
        return checked(x, self.example, self.settings.domains, self.engine)

    def _check_target(self, engine: Engine, target: Any, inputs: Sequence[Tensor], values: bool = True) -> None:
        targets.check(target, tuple(engine.layout[engine.planned.output].shape(inputs[0].shape[0])), values)


def _contrast(whole: Explanation, result: Result, power: float) -> Contrast:
    """The explanation of a class with its map in two parts."""
    parts = contrasts.split(result, power)
    differences, apart = contrasts.difference(result)
    many = result.score.ndim == 2
    distinctive, shared = (held(p, many) for p in parts)
    maps = [p[0] if len(p) == 1 else p for p in (*parts, differences)]
    assert result.rivals is not None
    return Contrast(
        **{f.name: getattr(whole, f.name) for f in fields(whole)}
        | {"relevance": maps[0], "ledger": replace(whole.ledger, input=distinctive, shared=shared)},
        shared=maps[1],
        rivals=contrasts.named(result.rivals),
        difference=maps[2],
        apart=apart,
    )


def _no_rival(samples: Sequence[int]) -> str:
    which = ", ".join(map(str, samples[:5])) + (", …" if len(samples) > 5 else "")
    return (
        f"no other class has a positive score (sample {which}): nothing is shared with rivals, and the map is the "
        "plain one. dt.margin(c, k) as a target asks why c rather than k."
    )


def _output_like(engine: Engine, inputs: Sequence[Tensor]) -> Tensor:
    """A tensor shaped like the output for this many inputs; its values do not matter."""
    shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
    return torch.empty(shape, dtype=engine.one.dtype, device=engine.one.device)


def _made_again(model: nn.Module, example: tuple[Tensor, ...], chosen: Settings, state: State) -> Explainer:
    """An explainer with the settings of another, moved and run like it; also one that was read from a file."""
    explainer = Explainer(
        model,
        example,
        chosen.domains,
        rules=chosen.rules,
        first=chosen.first,
        bias=chosen.bias,
        max_pool=chosen.max_pool,
        local=chosen.local,
        output=chosen.output,
    )
    return explainer.brought_to(state)


def explain(
    model: nn.Module, x: Inputs, target: Any = None, domain: Domain | Sequence[Domain] | None = None, **settings: Any
) -> Explanation:
    """Capture, plan and explain in one call; for many inputs keep an Explainer."""
    inputs = as_tuple(x)
    check_values(inputs, as_domains(domain, inputs), [f"input {k}" for k in range(len(inputs))])
    return Explainer(model, x, domain, **settings).explain(x, target)
