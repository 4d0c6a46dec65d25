"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError, TargetError, UnsupportedOpError
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.graph.autocast import AUTOCAST_NOTE, autocasting, without_autocast
from deeptaylor.graph.exporting import is_compiling
from deeptaylor.ledger import Ledger, held
from deeptaylor.rules import Rule
from deeptaylor.run import contrast as contrasts
from deeptaylor.run import target as targets
from deeptaylor.run.asking import PROBABILITY_NOTE
from deeptaylor.run.books import DROPPED, Kept
from deeptaylor.run.engine import Engine
from deeptaylor.run.freshness import Look
from deeptaylor.run.inputs import Inputs, as_tuple
from deeptaylor.run.network import State
from deeptaylor.run.precision import check_half, check_precision, sound
from deeptaylor.run.prepare import Settings
from deeptaylor.run.reading import Trained
from deeptaylor.run.result import Result
from deeptaylor.run.seen import seen_layers, watched_nodes
from deeptaylor.run.short_of_memory import Batch
from deeptaylor.run.through import Through
from deeptaylor.run.unit import Unit
from deeptaylor.secant.between import Between
from deeptaylor.secant.comparing import Comparing
from deeptaylor.secant.front_door import (
    AS_ASKED,
    AUTO,
    BLIND,
    CP_LRP,
    DEEP_TAYLOR,
    PRESETS,
    SECANT,
    TESTED,
    Choice,
    channel_axis,
    choose_by_graph,
    choose_by_test,
    has_pixels,
    method_sentence,
    read_settings,
    unusual_operation,
    with_alternatives,
)
from deeptaylor.secant.references import mean_of_data
from deeptaylor.shown import percent

# Methods that stand above this module (deeptaylor.methods.words adds them): explainer, inputs, target → answer.
ANSWERS: dict[str, Callable[[Explainer, Inputs, Any], Explanation]] = {}


class Explainer(Comparing):
    """Explains the decisions of a network.

    model     any exportable network; it is never changed. Or what dt.load returns: then photographs are inputs, and
              names of classes are targets
    example   an input (or a tuple of inputs) as the network takes it; without one, the network is captured with the
              first input that is explained
    domain    what values the input may take: Real(), NonNegative() or Box(low, high); a tuple for several inputs
    method    "auto": the method that fits; `reason` of every answer says which one and why. Or by name: "deep-taylor",
              "paper" (deep Taylor as in the paper), "secant", "attnlrp", "cp-lrp", "sensitivity", "taylor"
    reference, background    what secants compare with: an input or several, "mean", "blur", "zeros", see `between`; or
              data, whose mean is the reference. Naming either means secants
    rules     {node name, module path or pattern: rule} in place of the rules that follow from the domains
    first     the rule of the blocks that read the input
    bias      "neuron": biases keep the relevance that they absorb, as in the paper; "returned": the same, and at the
              end pixels are given what biases absorbed, place by place, so that the map can be read (networks without
              a feature map: as "neuron"); "spread": it goes to the inputs of each unit
    max_pool  "proportional" to activations, as in the paper, or "winner" takes all
    local     a layer behind an average is read as a detector at every place; False: as one of the averages
    output    which output to explain, where the network has several: its number or name

    rules, first, bias, max_pool and local are settings of deep Taylor: naming one of them means that method. Left out,
    they are bias="returned", max_pool="proportional", local=True.

    An input is a tensor, an array of NumPy, numbers in lists; several are a tuple, or {name of the argument: input}, as
    a tokenizer of transformers returns them. The first axis counts the samples.

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    >>> explainer = dt.Explainer(network, domain=dt.NonNegative())
    >>> explainer.explain(torch.ones(1, 2)).relevance.shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        model: nn.Module | Trained,
        example: Any = None,
        domain: Domain | Sequence[Domain] | None = None,
        *,
        method: str = AUTO,
        reference: Any = None,
        background: Any = None,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str | None = None,
        max_pool: str | None = None,
        local: bool | None = None,
        output: int | str | None = None,
    ) -> None:
        named = {"rules": rules or None, "first": first, "bias": bias, "max_pool": max_pool, "local": local}
        super().__init__(model, domain, read_settings(method, reference, background, output, **named))
        if example is not None:
            self._capture_example(self.read(example)[0])

    _watched: tuple[str, ...] = ()
    _choice: Choice | None = None  # what `auto` came to
    _is_tied: bool = False  # True: the test could not tell on those inputs, so the next ones are tested, too
    _without_rule: UnsupportedOpError | None = None  # why deep Taylor cannot explain this network

    def _capture_example(self, example: Any) -> None:
        try:
            self.begin_with(example, "example")
        except UnsupportedOpError as error:
            self._go_without_rules(example, "example", error)

    def __reduce__(self) -> Any:
        """To a file goes what an explainer was made of; it is captured again when it is read."""
        made_of = (self.model, self.domain) if self.trained is None else (self.trained, None)
        example = self.example if self.begun else None
        return _made_again, (*made_of, example, self.settings, self.state(), self._lasting_choice)

    # --- which method ---------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice | None:
        """The method that answers, why, and what a test measured; None before the first input decided it."""
        return self.by_name or self._choice

    @property
    def by_name(self) -> Choice | None:
        """The method that was named, by `method=` or by a reference; None for `auto`."""
        return _named_choice(self.settings)

    def settle(self, choice: Choice) -> Self:
        """Answer by a choice that was made before, such as the one that a run recorded; a method by name stays."""
        self._is_tied, self._choice = False, choice
        return self

    @property
    def _lasting_choice(self) -> Choice | None:
        """The choice of `auto` that later questions keep; None if there is none yet."""
        return None if self._is_tied else self._choice

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed; method="auto" chooses anew."""
        if self.settings.planned:  # else only secants can answer
            self._is_tied, self._choice = False, None
        return super().refresh()

    def choose(self, x: Inputs, target: Any, reference: Any = None) -> Choice:
        """Return the method that answers this question; test both on x if the network does not decide it."""
        chosen = self.settings.method
        if reference is not None and chosen not in (AUTO, SECANT):
            raise InputError(f"A reference belongs to the method 'secant'; this explainer has method={chosen!r}.")
        if reference is not None and chosen == AUTO:
            return Choice(SECANT, "a reference was given")
        if isinstance(target, targets.LogOdds) and chosen == AUTO:
            return Choice(SECANT, "they explain log-odds")
        if named := self.by_name:
            return named
        if (made := self._lasting_choice) is not None:
            return made
        with self.lock:  # threads that share a new explainer wait for one test
            if (made := self._lasting_choice) is not None:
                return made
            found = self._choose(x, target.target if isinstance(target, targets.Probability) else target)
            if not isinstance(target, Unit) or target.layer == self.settings.layer:
                self._is_tied, self._choice = found.is_tie, found
            return found

    def _choose(self, x: Inputs, target: Any) -> Choice:
        """Choose by graph or by test; for a question about another output, its explainer does."""
        try:
            engine, inputs, _ = self.opened(x)
        except UnsupportedOpError as error:
            return self._go_without_rules(x, "input", error)
        found: Choice | None
        if found := choose_by_graph(engine, inputs):
            return found
        asked = self.weights_of(target, engine, inputs)
        if other := self.elsewhere(asked, engine, inputs):
            return other[0].choose(x, other[1])
        few, axis = (inputs[0][:TESTED],), channel_axis(engine)
        part = targets.part(asked, slice(0, TESTED))

        try:
            by_secants = self._by_secants(few[0], part, None)
        except UnsupportedOpError:
            return Choice(DEEP_TAYLOR, "secants do not support an operation of this network")

        def output(some: Tensor) -> Tensor:
            with torch.no_grad():
                own = some.movedim(1, axis)
                ready = self.engine_for((own,))
                found: Tensor = ready.forward_pass((own,)).values[ready.planned.output]
            return found

        answered = output(few[0].movedim(axis, 1))
        by_rules, same = self._map_and_overlap(engine, few, part, answered)
        if same is not None and same >= BLIND:
            return Choice(
                SECANT,
                f"deep Taylor's map hardly depends on the class here: {percent(same)} of it is the same for the least "
                "likely class",
            )
        maps = {DEEP_TAYLOR: by_rules, SECANT: _one_map(by_secants.relevance, by_secants.score, axis)}
        v, many = targets.weights(part, answered)
        return choose_by_test(
            output, few[0].movedim(axis, 1), v[0] if many else v, maps, unusual_operation(engine),
            "sigmoid" not in engine.planned.set_aside,
        )  # fmt: skip

    def _map_and_overlap(
        self, engine: Engine, x: tuple[Tensor], asked: Any, output: Tensor
    ) -> tuple[Tensor, float | None]:
        """Return deep Taylor's map (B, …), and the share that is the same for the least likely class.

        The share is a mean over the samples; None if the question is not about one class of several, or
        channels are not the second axis.
        """
        with without_autocast(x), torch.no_grad():
            if channel_axis(engine) != 1 or not contrasts.is_one_class(asked, output):
                answer = self._explain(x[0], asked)
                return _one_map(answer.relevance, answer.score, channel_axis(engine)), None
            other = contrasts.least_likely(targets.weights(asked, output)[0], output)
            against = targets.Against(asked, other[:, None], torch.ones_like(output[:, :1]))
            result = engine.redistribute(self.run_batch(engine, x, targets.settled(against, x[0]), DROPPED))
        return result.relevance[0].sum(1), float(contrasts.overlap(result).mean())

    def _go_without_rules(self, x: Any, whose: str, error: UnsupportedOpError) -> Choice:
        """Capture the network for secants alone, where deep Taylor has no rule for it; raise if none is to be had."""
        first = as_tuple(x)[0]
        chosen = self.settings
        named = DEEP_TAYLOR if chosen.method == AUTO else chosen.method
        if chosen.method != AUTO or self.begun or not first.is_floating_point() or first.ndim < 3:
            raise with_alternatives(error, named) from error
        self.settings = replace(chosen, planned=False)
        self.begin_with(x, whose)
        if not has_pixels(self.engine, first):
            self.settings, self.engines = chosen, nn.ModuleDict()
            raise with_alternatives(error, named) from error
        self._without_rule = error
        self._choice = Choice(SECANT, "deep Taylor has no rule for an operation of this network; secants need none")
        return self._choice

    def _by_method(self, x: Inputs, target: Any, reference: Any) -> Explanation:
        """Explain by the method that was named or chosen."""
        choice = self.choose(x, target, reference)
        try:
            if choice.method == SECANT:
                answer: Explanation = self._by_secants(x, target, reference)
            elif choice.method in PRESETS:
                answer = self._explain(x, target)
                answer = replace(answer, method=CP_LRP) if choice.method == CP_LRP else answer
            else:
                answer = ANSWERS[choice.method](self, x, target)
        except UnsupportedOpError as error:
            raise with_alternatives(error, choice.method) from error
        return replace(answer, reason=method_sentence(choice))

    def _by_secants(self, x: Inputs, target: Any, reference: Any) -> Between:
        with without_autocast(x):
            try:
                return self.compare(x, self._reference_for(as_tuple(x), reference), target, usual=True)
            except UnsupportedOpError as error:
                if self._without_rule is None:
                    raise
                raise UnsupportedOpError(f"{self._without_rule}\nSecants: {error}") from error

    def _reference_for(self, inputs: tuple[Tensor, ...], reference: Any) -> Any:
        """Return what secants compare with: the reference of the call or of the explainer; None: the usual one."""
        chosen = self.settings
        if reference is None and chosen.reference is not None:
            reference = chosen.reference
        if reference is not None:
            return reference
        if chosen.background is not None:
            return mean_of_data(self.read(chosen.background)[0], inputs)
        return None

    # --- explain --------------------------------------------------------------------------------------------------

    def forward(self, x: Inputs, target: Any = None) -> tuple[Tensor, Any]:
        """Score and relevance as plain tensors; this is what compiles and exports.

        It looks at no values, for which a GPU would be waited for: where a tensor names a class that does not exist,
        score and relevance are NaN.
        """
        if autocasting(x):
            with without_autocast(x):
                return self.forward(x, target)
        if not is_compiling():
            x = self.read(x)[0]
            target = self.asked_for(target, x)
            if not self.begun:
                self.begin_with(x, "input")
        elif self.scaling is not None:
            x = self.scaling(x)
        inputs = as_tuple(x) if not is_compiling() else (x,) if isinstance(x, Tensor) else tuple(x)
        if not is_compiling():
            self.original.look(self.follow)
            self.check_kind(inputs)
        if self._settled_method(x, target) not in PRESETS:
            answer = self._by_method(x, target, None)
            return answer.score, answer.relevance
        engine = self.engine_for(inputs)
        target = self.weights_of(target, engine, inputs)
        if other := self.elsewhere(target, engine, inputs):
            return other[0].forward(x, other[1])
        if not is_compiling():
            self.check_target(engine, target, inputs, values=False)
        check_precision(engine, inputs, target, values=False)
        result = self.run_batch(engine, inputs, target, DROPPED if engine.redistributes else None)
        if not is_compiling():
            check_half(result, inputs)
        result = engine.redistribute(result)
        relevance = result.relevance if result.rivals is None else contrasts.split(result, contrasts.POWER)[0]
        return result.score, relevance[0] if len(inputs) == 1 else relevance

    def _settled_method(self, x: Any, target: Any) -> str:
        """Return the method of a plain call; raise while the call is traced, if it is not deep Taylor."""
        if not is_compiling():
            return self.choose(x, target).method
        choice = self.choice or choose_by_graph(self.engine, as_tuple(x))
        if choice is None or choice.method not in PRESETS:
            answered = (
                "no method was chosen for this network yet"
                if choice is None
                else f"this one answers by {choice.method!r}"
            )
            raise InputError(
                f"torch.export and torch.compile of an explainer support deep Taylor alone, and {answered}: name it, "
                "dt.Explainer(model, example, method='deep-taylor'). explainer.compile() compiles secants, too."
            )
        return choice.method

    def explain(self, x: Any, target: Any = None, *, reference: Any = None) -> Explanation:
        """Explain a batch: relevance, score, ledger and what there is to say about them.

        x        inputs; or photographs (files, Pillow images, arrays of uint8), where the network came from dt.load
        target   None: the top class; a class; a list of K classes: K maps of every sample; an integer tensor or array
                 (B,) or (B, K): one class a sample, or K; real numbers shaped like the output: weights;
                 dt.margin(a, b): a logit difference; dt.negative(c): what speaks against a class; dt.at_step(t, c): a
                 class at a step of (batch, steps, classes); dt.log_odds(c): a class against all others;
                 dt.unit(layer, c): the activation of an inner unit; a callable on the output. A class is a number, or a
                 name, where the network has names. If the network ends in softmax or sigmoid, a class means its logit,
                 as dt.logit(c) does; by secants a class of a picture or signal means the class against
                 its rivals: its logit minus the mean logit of the others, weighted by their softmax.
                 dt.probability(c) and callables such as lambda o: o[:, c] ask about the output itself
        reference   what to compare with, see `between`; naming one means secants

        >>> import torch, deeptaylor as dt
        >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.NonNegative())
        >>> explainer.explain([[1.0, 2.0]], [0, 2]).relevance.shape  # one sample, two classes
        torch.Size([1, 2, 2])
        """
        x, seen = self.read(x)
        asked = self.asked_for(target, x)
        answer = self._by_method(x, asked, reference)
        return answer if self.trained is None else self.trained.shown(answer, x, seen, asked)

    def _explain(self, x: Inputs, target: Any) -> Explanation:
        if autocasting(x):
            with without_autocast(x):
                return self._explain(x, target).noting(AUTOCAST_NOTE)
        engine, inputs, look = self.opened(x)
        with torch.no_grad():
            asked = self.weights_of(target, engine, inputs)
            if other := self.elsewhere(asked, engine, inputs):
                answer = other[0]._explain(x, other[1])
                if isinstance(asked, targets.Probability):
                    return answer.noting(PROBABILITY_NOTE)
                return replace(answer, outputs=None, next_class=None)
            result, notes = self._answer(engine, inputs, asked, look)
        target = asked if isinstance(target, targets.Logit) else target
        return self._explanation(engine, inputs, target, result, engine.redistribute(result), notes)

    def contrast(
        self, x: Any, target: Any = None, against: Any = None, power: float = contrasts.POWER
    ) -> Contrast | Between:
        """Explain what sets a class apart from its rivals.

        By deep Taylor: the map of the class in two parts that are never negative and add up to it. By secants: the
        logit of the class minus the mean logit of its rivals, of both signs (without `power`).

        x         as for `explain`
        target    None: the top class; a class; a list of K classes; an integer tensor or array (B,) or (B, K)
        against   None: the classes that the network itself considers, by its softmax; a class; several; {class:
                  weight}; or real numbers, one weight per class
        power     how strictly: a pixel's part is (how likely a unit of relevance there is the class's) to this power,
                  so ½^power, 1.6 %, where rivals have the same share; dt.HARD: only what exceeds the rivals' share

        >>> import torch, deeptaylor as dt
        >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.NonNegative())
        >>> c = explainer.contrast([[1.0, 2.0]], 0)
        >>> torch.equal(c.relevance + c.shared, explainer.explain([[1.0, 2.0]], 0).relevance)
        True
        """
        x, seen = self.read(x)
        asked, rivals = self.asked_for(target, x), targets.numbered(against, self.number)
        choice = self.choose(x, asked)
        if choice.method not in (*PRESETS, SECANT):
            raise InputError(
                f"method={choice.method!r} has no contrast; deep Taylor and secants have one: method='deep-taylor' or "
                "'secant'."
            )
        by_secants = choice.method == SECANT
        answer = self._contrast_by_secants(x, asked, rivals) if by_secants else self._contrast(x, asked, rivals, power)
        answer = replace(answer, reason=method_sentence(choice))
        return answer if self.trained is None else self.trained.shown(answer, x, seen, asked)

    def _contrast_by_secants(self, x: Inputs, target: Any, against: Any) -> Between:
        engine, inputs, _ = self.opened(x)
        shape = targets.class_shape(target, engine.layout[engine.planned.output].shape(inputs[0].shape[0]))
        targets.check(targets.Against(), shape)
        asked = contrasts.asked(target, against, shape[0], shape[1], contrasts.POWER)
        if asked.rivals is not None and isinstance(target, int) and bool((asked.rivals == target).all()):
            raise TargetError(f"The only rival of class {target} is the class itself; name another.")
        return self._by_secants(x, asked, None)

    def _contrast(self, x: Inputs, target: Any, against: Any, power: float) -> Contrast:
        if autocasting(x):
            with without_autocast(x):
                return self._contrast(x, target, against, power).noting(AUTOCAST_NOTE)
        engine, inputs, look = self.opened(x)
        shape = targets.class_shape(target, engine.layout[engine.planned.output].shape(inputs[0].shape[0]))
        targets.check(targets.Against(), shape)
        with torch.no_grad():
            asked = targets.settled(contrasts.asked(target, against, shape[0], shape[1], power), inputs[0])
            result, notes = self._answer(engine, inputs, asked, look)
            assert result.rivals is not None
            if against is not None:
                contrasts.check_rivals(result.rivals)
            elif alone := contrasts.without_rivals(result.rivals):
                notes += [contrasts.no_rival(alone)]
            whole = engine.redistribute(result)
            return _contrast(self._explanation(engine, inputs, target, result, whole, notes), whole, power)

    def _answer(
        self, engine: Engine, inputs: tuple[Tensor, ...], asked: Any, look: Look | None
    ) -> tuple[Result, list[str]]:
        self.check_target(engine, asked, inputs, values=not inputs[0].is_cuda)
        check_precision(engine, inputs, asked)
        keep = watched_nodes(engine, self._watched)
        # On a GPU, launching the books of every step would take long, and the look goes on beside the pass.
        if inputs[0].is_cuda:
            return self._run(engine, inputs, asked, "in total", keep, look)
        return self._run(engine, inputs, asked, "by step", keep)

    def watch(self, layers: Sequence[str]) -> Self:
        """See these layers in every pass from now on: `Explanation.seen` has their relevance and activation."""
        self._watched = tuple(layers)
        return self

    @property
    def watched(self) -> tuple[str, ...]:
        """The layers that every pass sees."""
        return self._watched

    def relevance_at(self, name: str, x: Any, target: Any = None) -> Tensor:
        """The relevance at an inner boundary, by node name or module path."""
        x, _ = self.read(x)
        target = self.asked_for(target, x)
        if not self.begun:
            self.begin_with(x, "input")
        self.original.look(self.follow)
        inputs = tuple(t.detach() for t in self.checked(x))
        self.original.check()
        return self._at(name, inputs, target)

    def activations(self, layer: str, x: Any) -> Tensor:
        """What an inner layer gives for a batch, by module path or node name: the scores that `dt.unit` explains."""
        x, _ = self.read(x)
        _, _, look = self.opened(x)
        engine, inputs, _ = self.cut_at(layer).opened(x)
        with without_autocast(inputs), torch.no_grad():
            given: Tensor = engine.forward_pass(inputs).values[engine.planned.output]
        self.original.check(look)
        return given

    def _later(self, captures: int, inputs: tuple[Tensor, ...], target: Any, name: str | None = None) -> Tensor:
        """More of an explanation that was made before, if the network is still the same."""
        self.check_fresh(captures)
        return self._at(name, inputs, target)

    def _inside(self, captures: int, inputs: tuple[Tensor, ...], target: Any, layer: str, axis: int | None) -> Through:
        """What passes through a layer of an explanation that was made before."""
        self.check_fresh(captures)
        with without_autocast(inputs):
            engine = self.engine_for(inputs)
            asked = self.weights_of(target, engine, inputs)
            if other := self.elsewhere(asked, engine, inputs):
                return other[0]._inside(other[0].captures, inputs, other[1], layer, axis)
            return Through(engine, inputs, asked, layer, axis, partial(self.check_fresh, captures))

    def _next_class(self, captures: int, inputs: tuple[Tensor, ...], target: Any) -> tuple[Tensor, Tensor]:
        """The best class of each sample other than the one that was explained, and the overlap of both maps."""
        self.check_fresh(captures)
        with without_autocast(inputs), torch.no_grad():
            engine = self.engine_for(inputs)
            output = engine.forward_pass(inputs).values[engine.planned.output]
            contrasts.check_one_class(target, output)
            classes = contrasts.next_class(targets.weights(target, output)[0], output)
            against = targets.Against(target, classes[:, None], torch.ones_like(output[:, :1]))
            result = self.run_batch(engine, inputs, targets.settled(against, inputs[0]), DROPPED)
            return classes, contrasts.overlap(engine.redistribute(result))

    def _at(self, name: str | None, inputs: tuple[Tensor, ...], target: Any) -> Tensor:
        """The relevance at an inner boundary; or, of no name, the books of every step."""
        with without_autocast(inputs), torch.no_grad():
            engine = self.engine_for(inputs)
            asked = self.weights_of(target, engine, inputs)
            if other := self.elsewhere(asked, engine, inputs):
                return other[0]._at(name, inputs, other[1])
            self.check_target(engine, asked, inputs)
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

    def made_with(self, model: nn.Module, settings: Settings) -> Explainer:
        """Another explainer, with these settings, moved and run like this one."""
        return _made_again(model, settings.domains, self.example, settings, self.state())

    def unplanned(self) -> Explainer:
        """The same network for what needs no rules, captured with the same example, if there was one."""
        model = self.model if self.trained is None else self.trained
        domain = self.domain if self.trained is None else None
        example = self.example if self.begun else None
        settings = replace(self.settings, planned=False, method=SECANT)
        return _made_again(model, domain, example, settings, self.state())

    def _explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, whole: Result, notes: list[str]
    ) -> Explanation:
        later = partial(self._later, self.captures, inputs, target)
        ledger = Ledger.of(result, engine.plan, later)
        if whole is not result:
            ledger = ledger.redistributing(whole)
        if isinstance(target, Unit):
            ledger = replace(ledger, score_is=target.said(engine.layout[engine.planned.output].shape(1)))
        return Explanation(
            relevance=whole.relevance[0] if len(inputs) == 1 else whole.relevance,
            score=result.score,
            ledger=ledger,
            target=target,
            classes=result.chosen,
            notes=(*self.moves(), *notes, *engine.plan.notes),
            source=later,
            flips=partial(self.flips, inputs, target),
            inside=partial(self._inside, self.captures, inputs, target),
            outputs=math.prod(engine.layout[engine.planned.output].shape(1)[1:]),
            next_class=partial(self._next_class, self.captures, inputs, target),
            seen=seen_layers(engine, result, self._watched, lambda layer: self.activations(layer, inputs)),
        )


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
        | {"next_class": None, "relevance": maps[0], "ledger": replace(whole.ledger, input=distinctive, shared=shared)},
        shared=maps[1],
        rivals=contrasts.named(result.rivals),
        difference=maps[2],
        apart=apart,
    )


def _made_again(
    model: nn.Module | Trained, domain: Any, example: tuple[Tensor, ...] | None, chosen: Settings, state: State,
    choice: Choice | None = None,
) -> Explainer:  # fmt: skip
    """An explainer with the settings of another, moved and run like it; also one that was read from a file."""
    explainer = Explainer(model, None, domain)
    explainer.settings = replace(chosen, domains=(), root="")
    if example is not None:
        explainer.begin_with(example, "example")
    if choice is not None:
        explainer.settle(choice)
    return explainer.brought_to(state)


def _one_map(relevance: Tensor, score: Tensor, axis: int) -> Tensor:
    """Return maps without channels, (B, …); of K targets the first."""
    return (relevance[:, 0] if score.ndim == 2 else relevance).sum(axis)


def _named_choice(settings: Settings) -> Choice | None:
    """Return the choice that the settings are; None for `auto`."""
    if settings.method != AUTO:
        return Choice(settings.method, AS_ASKED)
    if settings.reference is not None or settings.background is not None:
        given = "a reference" if settings.reference is not None else "a background"
        return Choice(SECANT, f"{given} was given")
    return None
