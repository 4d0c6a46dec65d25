"""The explainer: a network captured and planned once, then any number of explanations."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from deeptaylor.between import (
    AGAINST_RIVALS,
    LOG_ODDS,
    OUTPUT,
    Between,
    InnerChanges,
    ScoreKind,
    describe_score,
    make_answer,
)
from deeptaylor.domain import Domain
from deeptaylor.engine import contrast as contrasts
from deeptaylor.engine import references as refs
from deeptaylor.engine import target as targets
from deeptaylor.engine.captured_network import Batch, CapturedNetwork, RunState
from deeptaylor.engine.change_detection import PendingCheck
from deeptaylor.engine.comparison import (
    CompareFunction,
    FlatProgram,
    InnerChange,
    compare,
    compare_inside,
    compare_once,
)
from deeptaylor.engine.deletion import measure_flipping_area
from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import Inputs, ModelSource, NamedInputs, as_tuple, check_network
from deeptaylor.engine.layer_relevance import LayerRecord, LayerRelevance, find_watched_nodes, read_layers
from deeptaylor.engine.ledger_entries import DROPPED, EntryDetail
from deeptaylor.engine.live import connect, relevance_by_rules, relevance_by_secants
from deeptaylor.engine.method_choice import (
    BLIND,
    MOST_TIES,
    TESTED,
    Choice,
    add_alternatives,
    choose_by_graph,
    choose_by_test,
    choose_without_rules,
    describe_method,
    find_unusual_operation,
    read_named_choice,
)
from deeptaylor.engine.place_target import PlaceTarget
from deeptaylor.engine.precision import check_float16, check_precision, ensure_finite
from deeptaylor.engine.result import Result
from deeptaylor.engine.secant_walk import Side, find_inner_value
from deeptaylor.engine.target import Unit
from deeptaylor.engine.target_reader import PROBABILITY_NOTE, TargetReader, Variant, cut_at, find_variant
from deeptaylor.errors import InputError, PlanError, TargetError, UnsupportedOpError
from deeptaylor.explanation import Contrast, Explanation, make_contrast
from deeptaylor.formatting import format_percent
from deeptaylor.graph.modes import AUTOCAST_NOTE, disable_autocast, is_autocast_enabled, is_compiling
from deeptaylor.ledger import Ledger
from deeptaylor.plan.plan import Plan
from deeptaylor.rules import Rule
from deeptaylor.settings import AUTO, CP_LRP, DEEP_TAYLOR, PRESETS, SECANT, Settings, read_preset, read_settings
from deeptaylor.viz.heatmap import Axis

_Answer = TypeVar("_Answer")
_Explanation = TypeVar("_Explanation", bound=Explanation)
_VARIANTS = 5  # explainers of the same network with another output that are cached
_UNPLANNED = "unplanned"  # the same network without a plan, once rules for it were not found
# Methods that stand above this module (deeptaylor.methods.registry adds them): explainer, inputs, target → answer.
ANSWERS: dict[str, Callable[[Explainer, Inputs, Any], Explanation]] = {}


class Explainer(nn.Module):
    """Explains the decisions of a network.

    model     any exportable network; it is never changed. Or what dt.load returns: then photographs are inputs, and
              names of classes are targets
    example   an input (or a tuple of inputs) as the network takes it; without one, the network is captured with the
              first input that is explained
    domain    what values the input may take: Real(), NonNegative() or Box(low, high); a tuple for several inputs
    method    "auto": the method that fits; `reason` of every answer says which one and why. Or by name: "deep-taylor",
              "paper" (deep Taylor as in the paper), "secant", "attnlrp", "cp-lrp", "sensitivity", "taylor"
    preset    the same for the methods that are settings of deep Taylor: preset="paper" is method="paper"
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
    live      True: follow the parameters while the network is trained, and allow `relevance`, which is differentiable
              in them; by deep Taylor, or by secants if these are named

    rules, first, bias, max_pool and local are settings of deep Taylor: naming one of them means that method. Left out,
    they are bias="returned", max_pool="proportional", local=True. method="paper" is bias="neuron", local=False; rules,
    first and max_pool may be named beside it.

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
        model: nn.Module | ModelSource,
        example: Any = None,
        domain: Domain | Sequence[Domain] | None = None,
        *,
        method: str = AUTO,
        preset: str | None = None,
        reference: Any = None,
        background: Any = None,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str | None = None,
        max_pool: str | None = None,
        local: bool | None = None,
        output: int | str | None = None,
        live: bool = False,
    ) -> None:
        named = {"rules": rules or None, "first": first, "bias": bias, "max_pool": max_pool, "local": local}
        super().__init__()
        self.source = model if isinstance(model, ModelSource) else ModelSource(model, domain)
        check_network(self.source.network)
        if isinstance(self.source.network, Explainer):
            raise PlanError("This is an explainer already: call its own explain(x).")
        if self.source is model and domain is not None:
            raise InputError("The Pretrained already has a domain; leave domain out.")
        settings = read_settings(read_preset(preset, method), reference, background, output, live, **named)
        self.captured = CapturedNetwork(self.source, settings)
        self.target_reader = TargetReader(self.source)
        self._variants: dict[str, Explainer] = {}  # of the same network with another output; the latest last
        self._choice: Choice | None = None  # what `auto` came to
        self._ties = 0  # tests so far that could not tell which method is better
        self._watched: tuple[str, ...] = ()
        if example is not None:
            self._capture_example(self.captured.read(example)[0])

    def _capture_example(self, example: Any) -> None:
        try:
            self.captured.capture(example, "example")
        except UnsupportedOpError as error:
            raise add_alternatives(error, self.settings.method) from error
        if self._without_rule is not None and self.named_choice is None:
            self._go_without_rules(self.captured.engine, as_tuple(example))

    def __repr__(self) -> str:
        network, chosen = self.model.model if isinstance(self.model, NamedInputs) else self.model, self.settings
        shapes = ", ".join(str(tuple(x.shape[1:])) for x in self.captured.example) if self.captured.is_captured else ""
        captured = f"captured for samples of shape {shapes}" if shapes else "not captured yet"
        own = f", {len(chosen.rules)} rule(s) of your own" if chosen.rules else ""
        return f"<{type(self).__name__} of {type(network).__name__}, {captured}: bias={chosen.bias!r}{own}>"

    @property
    def model(self) -> nn.Module:
        """The user's network."""
        return self.captured.model

    @property
    def domain(self) -> Any:
        """What values the input may take, as the user gave it."""
        return self.source.domain

    @property
    def settings(self) -> Settings:
        """How the network is captured, planned and explained."""
        return self.captured.settings

    @property
    def plan(self) -> Plan:
        """What will be done, as a printable table."""
        return self.captured.plan

    # --- how it is run --------------------------------------------------------------------------------------------

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed; method="auto" chooses anew."""
        if self.settings.planned:  # else only secants can answer
            self._ties, self._choice = 0, None
        self.captured.refresh()
        self._variants.clear()
        return self

    def engine_for(self, inputs: Sequence[Tensor]) -> Engine:
        """Return the engine for some inputs; deprecated: call `explainer.captured.engine_for`."""
        warnings.warn("explainer.engine_for is now explainer.captured.engine_for.", DeprecationWarning, stacklevel=2)
        return self.captured.engine_for(inputs)

    def compile(self, graphs: bool | None = None, **options: Any) -> Self:  # type: ignore[override]
        """Compile every pass from now on, with its gradient for `relevance`: slow once for each shape, then faster.

        ``graphs``: record passes of `explain` on a GPU as CUDA graphs, which keep their memory; None: only if
        kernel launches take most of the time. ``options`` are those of torch.compile's inductor.
        """
        self.captured.compile(graphs, **options)
        return self

    def recompute(self, on: bool = True) -> Self:
        """Cache less of the forward pass, and recompute it during the reverse pass.

        For deep networks and large inputs: this uses the memory of a few layers instead of all, for the time of one
        more forward pass. If a single sample does not fit into memory, it is switched on automatically, with a warning.
        """
        self.captured.recompute(on)
        return self

    def __reduce__(self) -> Any:
        """Pickle the arguments of the explainer; the network is captured again when it is loaded."""
        source = ModelSource(self.model, self.domain) if type(self.source) is ModelSource else self.source
        example = self.captured.example if self.captured.is_captured else None
        return _restore, (source, example, self.settings, self.captured.run_state(), self._cached_choice)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy({**self.__dict__, "_variants": {}}, memo))  # type: ignore[no-untyped-call]
        return twin

    # --- which method ---------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice | None:
        """The chosen method, the reason, and what a test measured; None before the first input."""
        return self.named_choice or self._choice

    @property
    def named_choice(self) -> Choice | None:
        """The method that the user named by `method=` or `reference=`; None for `auto`."""
        return read_named_choice(self.settings)

    def set_choice(self, choice: Choice) -> Self:
        """Use an earlier choice, such as the one that a run recorded; a method that the user named stays."""
        self._ties, self._choice = 0, choice
        return self

    @property
    def _cached_choice(self) -> Choice | None:
        """The choice of `auto` for all later calls; None if there is none yet."""
        return None if 0 < self._ties < MOST_TIES else self._choice

    def choose(self, x: Inputs, target: Any, reference: Any = None) -> Choice:
        """Return the method for these inputs and this target; test both on x if the network does not decide it."""
        chosen = self.settings.method
        if reference is not None and chosen not in (AUTO, SECANT):
            raise InputError(f"Only the method 'secant' takes a reference; this explainer has the method {chosen!r}.")
        if reference is not None and chosen == AUTO:
            return Choice(SECANT, "a reference was given")
        if isinstance(target, targets.LogOdds) and chosen == AUTO:
            return Choice(SECANT, "they explain log-odds")
        if named := self.named_choice:
            return named
        if (made := self._cached_choice) is not None:
            return made
        with self.captured.lock:  # threads that share a new explainer wait for one test
            if (made := self._cached_choice) is not None:
                return made
            found = self._choose(x, target.target if isinstance(target, targets.Probability) else target)
            if not isinstance(target, Unit) or target.layer == self.settings.layer:
                self._ties = self._ties + 1 if found.is_tie else 0
                self._choice = found
            return found

    def _choose(self, x: Inputs, target: Any) -> Choice:
        """Choose by graph or by test; if the target needs a variant of the network, let its explainer choose."""
        engine, inputs, _ = self.captured.open(x)
        if engine.planned.without_rule is not None:
            return self._go_without_rules(engine, inputs)
        found: Choice | None
        if found := choose_by_graph(engine, inputs):
            return found
        asked = self.target_reader.to_weights(target, engine, inputs)
        if other := self.find_variant(asked, engine, inputs):
            return other[0].choose(x, other[1])
        few, axis = (inputs[0][:TESTED],), engine.channel_axis
        part = targets.select_samples(asked, slice(0, TESTED))

        try:
            by_secants = self._explain_by_secants(few[0], part, None)
        except UnsupportedOpError:
            return Choice(DEEP_TAYLOR, "secants do not support an operation of this network")

        def output(some: Tensor) -> Tensor:
            with torch.no_grad():
                own = some.movedim(1, axis)
                ready = self.captured.engine_for((own,))
                found: Tensor = ready.forward_pass((own,)).values[ready.planned.output]
            return found

        answered = output(few[0].movedim(axis, 1))
        by_rules, same = self._map_and_overlap(engine, few, part, answered)
        if same is not None and same >= BLIND:
            return Choice(
                SECANT,
                f"deep Taylor's map hardly depends on the class here: {format_percent(same)} of it is the same for the "
                "least likely class",
            )
        maps = {DEEP_TAYLOR: by_rules, SECANT: contrasts.first_map(by_secants.relevance, by_secants.score, axis)}
        v, many = targets.output_weights(part, answered)
        return choose_by_test(
            output, few[0].movedim(axis, 1), v[0] if many else v, maps, find_unusual_operation(engine),
            "sigmoid" not in engine.planned.removed_operations, self._ties + 1 == MOST_TIES,
        )  # fmt: skip

    def _map_and_overlap(
        self, engine: Engine, x: tuple[Tensor], asked: Any, output: Tensor
    ) -> tuple[Tensor, float | None]:
        """Return deep Taylor's map (B, …), and its overlap with the map of the least likely class.

        The overlap is a mean over the samples; None unless one class of several is explained.
        """
        with disable_autocast(x), torch.no_grad():
            axis = engine.channel_axis
            if not contrasts.is_one_class(asked, output):
                answer = self._explain_by_rules(x[0], asked)
                return contrasts.first_map(answer.relevance, answer.score, axis), None
            other = contrasts.find_least_likely(targets.output_weights(asked, output)[0], output)
            result = self._run_against(engine, x, asked, other)
        return result.relevance[0].sum(axis), float(contrasts.measure_overlap(result, axis).mean())

    @property
    def _without_rule(self) -> UnsupportedOpError | None:
        """Why `auto` found no plan for this network; None if there is one, or none was wanted."""
        return self.captured.engine.planned.without_rule if self.captured.is_captured else None

    def _go_without_rules(self, engine: Engine, inputs: Sequence[Tensor]) -> Choice:
        """Choose secants, because deep Taylor has no rule for the network; raise if they have no default reference."""
        error = self._without_rule
        assert error is not None
        try:
            reference = refs.choose_reference(engine, inputs)
        except InputError:
            raise add_alternatives(error, DEEP_TAYLOR) from None
        self.captured.settings = replace(self.settings, planned=False)  # also for inputs of other shapes
        self._choice = choose_without_rules(error, reference.said)
        return self._choice

    def _explain_by_method(self, x: Inputs, target: Any, reference: Any) -> Explanation:
        """Explain by the method that was named or chosen."""
        choice = self.choose(x, target, reference)
        try:
            if choice.method == SECANT:
                answer: Explanation = self._explain_by_secants(x, target, reference)
            elif choice.method in PRESETS:
                answer = self._explain_by_rules(x, target)
                answer = replace(answer, method=CP_LRP) if choice.method == CP_LRP else answer
            else:
                answer = ANSWERS[choice.method](self, x, target)
        except UnsupportedOpError as error:
            if choice.method == SECANT and self._without_rule is not None:
                raise  # by neither method
            raise add_alternatives(error, choice.method) from error
        return replace(answer, reason=describe_method(choice))

    def _explain_by_secants(self, x: Inputs, target: Any, reference: Any) -> Between:
        with disable_autocast(x):
            try:
                return self.compare(x, self._reference_for(as_tuple(x), reference), target, usual=True)
            except UnsupportedOpError as error:
                if self._without_rule is None:
                    raise
                said = str(error.wording).partition("\nWhat to do")[0]
                raise self._without_rule.extend(f"Secants: {said}") from error

    def _reference_for(self, inputs: tuple[Tensor, ...], reference: Any) -> Any:
        """Return the reference of secants: that of the call or of the explainer; None for the default."""
        given = self.settings.reference if reference is None else reference
        if given is None and self.settings.background is not None:
            return refs.average_data(self.captured.read(self.settings.background)[0], inputs)
        return given

    # --- explain --------------------------------------------------------------------------------------------------

    def forward(self, x: Inputs, target: Any = None) -> tuple[Tensor, Any]:
        """Return score and relevance as plain tensors; torch.compile and torch.export use this method.

        It never synchronises with the GPU: if a tensor names a class that does not exist, score and relevance are NaN.
        """
        if is_autocast_enabled(x):
            with disable_autocast(x):
                return self.forward(x, target)
        if not is_compiling():
            x = self.captured.read(x)[0]
            target = self.target_reader.read(target, x)
            if not self.captured.is_captured:
                self.captured.capture(x, "input")
        elif self.source.scaling is not None:
            x = self.source.scaling(x)
        inputs = as_tuple(x) if not is_compiling() else (x,) if isinstance(x, Tensor) else tuple(x)
        if not is_compiling():
            self.captured.check_quickly()
            self.captured.check_kind(inputs)
        if self._resolve_method(x, target) not in PRESETS:
            answer = self._explain_by_method(x, target, None)
            return answer.score, answer.relevance
        engine = self.captured.engine_for(inputs)
        target = self.target_reader.to_weights(target, engine, inputs)
        if other := self.find_variant(target, engine, inputs):
            return other[0].forward(x, other[1])
        if not is_compiling():
            self.target_reader.check(target, engine, inputs, values=False)
        check_precision(engine, inputs, target, values=False)
        result = self.captured.run_batch(engine, inputs, target, DROPPED if engine.redistributes else None)
        if not is_compiling():
            check_float16(result, inputs)
        relevance = contrasts.read_map(engine.redistribute(result), engine.channel_axis)
        return result.score, relevance[0] if len(inputs) == 1 else relevance

    def relevance(
        self, x: Any, target: Any = None, *, contrast: bool = False, against: Any = None, reference: Any = None
    ) -> Any:
        """Return the relevance of a live explainer, differentiable in the network's parameters and in x.

        x, target   as for `explain`; several inputs: a tuple of tensors
        contrast    True: return the distinctive part of the class, as in `contrast`
        against     its rivals, as for `contrast`
        reference   return the relevance of `between(x, reference, target)`; None: that of `explain(x, target)`

        The network is read as in eval mode: BatchNorm uses its running statistics. Every call computes the constants of
        the plan from the current parameters, so an optimiser's step needs no new capture.
        """
        if not self.settings.live:
            raise InputError(
                "The parameters are constants of this explainer, so relevance is not differentiable in them. Make it "
                "with {live}.",
                live=True,
            )
        x = self.captured.read(x)[0]
        asked, rivals = self.target_reader.read(target, x), self.target_reader.read_rivals(against)
        with disable_autocast(x), self.captured.open_live(x) as (engine, inputs):
            asked = self.target_reader.to_weights(asked, engine, inputs)
            if other := self.find_variant(asked, engine, inputs):
                return other[0].relevance(x, other[1], contrast=contrast, against=against, reference=reference)
            if contrast or against is not None:
                shape = targets.class_shape(asked, engine.output_shape(len(inputs[0])))
                asked = contrasts.read_contrast(asked, rivals, shape[0], shape[1], contrasts.POWER)
            width = 0.0
            if by_secants := self.settings.method == SECANT or reference is not None:
                if reference is None:
                    keeps_class = self.settings.keeps_final or isinstance(target, targets.Logit)
                    asked, width = refs.choose_secant_defaults(engine, inputs, asked, keeps_class)
                    reference = self._reference_for(inputs, None) or refs.choose_reference(engine, inputs).inputs
                others = refs.read_references(reference, inputs, engine, lambda given: self.captured.read(given)[0])
            self.target_reader.check(asked, engine, inputs)
            check_precision(engine, inputs, asked)
            asked, compiled = targets.to_tensors(asked, inputs[0]), self.captured.run_state().compiled
            options = compiled and compiled[1]
            if by_secants:
                found = relevance_by_secants(engine, inputs, others, asked, width, options)
            else:
                found = relevance_by_rules(engine, inputs, asked, options)
        found = connect(found, self.model)
        return found[0] if len(found) == 1 else found

    def _resolve_method(self, x: Any, target: Any) -> str:
        """Return the method of a plain call; raise while the call is traced, if it is not deep Taylor."""
        if not is_compiling():
            return self.choose(x, target).method
        choice = self.choice or choose_by_graph(self.captured.engine, as_tuple(x))
        if choice is None or choice.method not in PRESETS:
            answered = (
                "no method was chosen for this network yet" if choice is None else f"this one uses {choice.method!r}"
            )
            raise InputError(
                f"torch.export and torch.compile of an explainer support only deep Taylor, and {answered}: choose it, "
                "dt.Explainer(model, example, method='deep-taylor'). explainer.compile() compiles secants, too."
            )
        return choice.method

    def explain(self, x: Any, target: Any = None, *, reference: Any = None) -> Explanation:
        """Explain a batch: return relevance, score, ledger and notes.

        x        inputs; or photographs (files, Pillow images, arrays of uint8), if the network came from dt.load
        target   None: the top class; a class; a list of K classes: K maps of every sample; an integer tensor or array
                 (B,) or (B, K): one class per sample, or K; real numbers shaped like the output: weights;
                 dt.margin(a, b): a logit difference; dt.negative(c): evidence against a class; dt.at_step(t, c): a
                 class at a step of (batch, steps, classes); dt.log_odds(c): a class against all others;
                 dt.unit(layer, c): an inner unit; dt.box(corners, c), dt.best_box(c), dt.region(mask, c), dt.pixel(y,
                 x, c): boxes and places; a callable on the output. A class is a number, or a name if the network has
                 class names. If the network ends in softmax or sigmoid, a class means
                 its logit, as dt.logit(c) does; by secants a class of a picture or signal means the class against
                 its rivals: its logit minus the mean logit of the others, weighted by their softmax.
                 dt.probability(c) and callables such as lambda o: o[:, c] explain the output itself
        reference   what to compare with, see `between`; with a reference, the method is secants

        >>> import torch, deeptaylor as dt
        >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.NonNegative())
        >>> explainer.explain([[1.0, 2.0]], [0, 2]).relevance.shape  # one sample, two classes
        torch.Size([1, 2, 2])
        """
        x, photos = self.captured.read(x)
        asked = self.target_reader.read(target, x)
        explainer, weights, notes = self._open_place(asked, x)
        answer = explainer._explain_by_method(x, weights, reference)
        return explainer._complete(answer.noting(*notes), x, photos, asked)

    def _explain_by_rules(self, x: Inputs, target: Any) -> Explanation:
        if is_autocast_enabled(x):
            with disable_autocast(x):
                return self._explain_by_rules(x, target).noting(AUTOCAST_NOTE)
        engine, inputs, look = self.captured.open(x)
        with torch.no_grad():
            asked = self.target_reader.to_weights(target, engine, inputs)
            if other := self.find_variant(asked, engine, inputs):
                answer = other[0]._explain_by_rules(x, other[1])
                if isinstance(asked, targets.Probability):
                    return answer.noting(PROBABILITY_NOTE)
                return replace(answer, outputs=None, next_class=None)
            result, notes = self._run_checked(engine, inputs, asked, look)
        target = asked if isinstance(target, targets.Logit) else target
        return self._make_explanation(engine, inputs, target, result, engine.redistribute(result), notes)

    def between(self, x: Any, reference: Any, target: Any = None) -> Between:
        """Explain exactly how the score went from a reference's to that of x: Σ R = f(x) − f(reference), of both signs.

        x           as for `explain`
        reference   "zeros"; of pictures also "blur" or "mean"; a tensor like x, or like one sample of it; of tokens
                    other tokens, or vectors; a tuple or {name: …} with one per input (None: as in x); a list of
                    references, over which the relevance is averaged
        target      as for `explain`; None: the top class of x. If the network ends in softmax or sigmoid, a class
                    means its logit: score, reference_score and Σ R are of logits. dt.probability(c), or a callable,
                    explains the network's own output

        The network runs at both points, and one backward pass redistributes the difference, with secants instead of
        gradients (docs/theory.md, section 12). It needs no rules and no domain. Operations without a secant raise
        UnsupportedOpError.

        >>> import torch, deeptaylor as dt
        >>> network = torch.nn.Linear(2, 1, bias=False)
        >>> _ = network.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
        >>> b = dt.Explainer(network).between([[1.0, 3.0]], "zeros", 0)
        >>> b.relevance, b.in_favour, b.against
        (tensor([[ 2., -3.]]), tensor([[2., 0.]]), tensor([[0., 3.]]))
        >>> b.ledger
        <Ledger of 1 sample(s): score -1 = reference's 0 + 2 for − 3 against (residual 0)>
        """
        x, photos = self.captured.read(x)
        asked = self.target_reader.read(target, x)
        explainer, weights, notes = self._open_place(asked, x)
        with disable_autocast(x):
            answer = explainer.compare(x, reference, weights)
        return explainer._complete(answer.noting(*notes), x, photos, asked)

    def compare(self, x: Inputs, reference: Any, target: Any, usual: bool = False) -> Between:
        """Compare with references; `usual`: with the defaults of method="secant", also without a reference."""
        return self.ask_for_secants(lambda explainer: explainer._compare(x, reference, target, usual))

    def ask_for_secants(self, ask: Callable[[Explainer], _Answer]) -> _Answer:
        """Compare with this explainer; or with one without a plan, if the rewritten graph lacks a secant."""
        if (twin := self._variants.get(_UNPLANNED)) is not None:
            twin.captured.set_run_state(self.captured.run_state())
            return ask(twin)
        try:
            return ask(self)
        except UnsupportedOpError:
            if not self.settings.planned or self._without_rule is not None:
                raise
        twin = self.make_unplanned()
        answer = ask(twin)
        self._variants[_UNPLANNED] = twin
        return answer

    def _compare(self, x: Inputs, reference: Any, target: Any, usual: bool) -> Between:
        engine, inputs, look = self.captured.open(x)
        asked, width = self.target_reader.to_weights(target, engine, inputs), 0.0
        if usual:
            keeps_class = self.settings.keeps_final or isinstance(target, targets.Logit)
            asked, width = refs.choose_secant_defaults(engine, inputs, asked, keeps_class)
        if other := self.find_variant(asked, engine, inputs):
            answer = other[0].compare(x, reference, other[1], usual)
            return answer.noting(PROBABILITY_NOTE) if isinstance(asked, targets.Probability) else answer
        self.target_reader.check(asked, engine, inputs)
        by_default: list[str] = []
        if reference is None and usual:
            reference, said = refs.choose_reference(engine, inputs)
            by_default = [f"compared with {said}"] * (len(inputs) > 1 or not inputs[0].is_floating_point())
        others = refs.read_references(reference, inputs, engine, lambda given: self.captured.read(given)[0])
        found = compare(engine, self._comparison(engine), inputs, others, asked, width)
        if inputs[0].is_cuda:
            self.captured.check_unchanged(look)
        kind: ScoreKind = LOG_ODDS if isinstance(asked, targets.LogOdds) else OUTPUT
        kind = AGAINST_RIVALS if isinstance(asked, targets.Against) else kind
        about = describe_score(kind, getattr(asked, "rivals", None) is not None, engine.planned.removed_operations)
        target = asked.target if kind != OUTPUT else asked if isinstance(target, targets.Logit) else target
        notes = (*self.captured.take_move_notes(), *by_default, *about, *[refs.smoothing_note(width)] * (width > 0))
        return make_answer(
            found, kind, target=target, flips=partial(self.flips, inputs, target), notes=notes,
            channel_axis=engine.channel_axis,
            source=InnerChanges(partial(self._compare_inside, self.captured.captures, inputs, others, asked)),
        )  # fmt: skip

    def _compare_inside(
        self, captures: int, inputs: tuple[Tensor, ...], references: Sequence[Sequence[Tensor]], target: Any,
        layer: str, side: Side,
    ) -> list[InnerChange]:  # fmt: skip
        """Return how a layer's value changed from each reference, for an earlier result."""
        self.captured.check_captures(captures)
        with disable_autocast(inputs):
            engine = self.captured.engine_for(inputs)
            node = find_inner_value(engine, layer, side)
            return [compare_inside(engine, inputs, reference, target, node) for reference in references]

    def _comparison(self, engine: Engine) -> CompareFunction:
        """Return the function that runs one comparison: step by step, or compiled."""

        def make_run(options: dict[str, Any] | None) -> CompareFunction:
            run = partial(compare_once, engine)
            return run if options is None else FlatProgram(run, options)

        run: CompareFunction = self.captured.cached_run(engine, "between", make_run)
        return run

    def flips(self, inputs: tuple[Tensor, ...], target: Any, R: Tensor, axis: Axis = None) -> Tensor:
        """Measure how the output falls as regions are deleted by a map; raise if the network changed."""
        self.captured.check_unchanged()
        return measure_flipping_area(self.model, inputs, target, R, axis)

    def contrast(
        self, x: Any, target: Any = None, against: Any = None, power: float = contrasts.POWER
    ) -> Contrast | Between:
        """Explain what sets a class apart from its rivals.

        By deep Taylor: the map of the class in two parts that are never negative and add up to it. By secants: the
        logit of the class minus the mean logit of its rivals, of both signs (without `power`).

        x         as for `explain`
        target    None: the top class; a class; a list of K classes; an integer tensor or array (B,) or (B, K)
        against   None: all classes, weighted by the network's softmax; a class; several; {class: weight}; or real
                  numbers, one weight per class
        power     how strict to be: a pixel's distinctive share is (class's share / sum of both shares)^power. Where
                  rivals have the same share, that is ½^power, 1.6 %; dt.HARD: only the excess over their share

        >>> import torch, deeptaylor as dt
        >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.NonNegative())
        >>> c = explainer.contrast([[1.0, 2.0]], 0)
        >>> torch.equal(c.relevance + c.shared, explainer.explain([[1.0, 2.0]], 0).relevance)
        True
        """
        x, photos = self.captured.read(x)
        asked, rivals = self.target_reader.read(target, x), self.target_reader.read_rivals(against)
        if (choice := self.choose(x, asked)).method not in (*PRESETS, SECANT):
            raise InputError(
                f"The method {choice.method!r} has no contrast; choose 'deep-taylor' or 'secant', which have one."
            )
        if choice.method == SECANT:
            answer: Contrast | Between = self._contrast_by_secants(x, asked, rivals)
        else:
            answer = self._contrast_by_rules(x, asked, rivals, power)
        return self._complete(replace(answer, reason=describe_method(choice)), x, photos, asked)

    def _contrast_by_secants(self, x: Inputs, target: Any, against: Any) -> Between:
        engine, inputs, _ = self.captured.open(x)
        shape = targets.class_shape(target, engine.output_shape(len(inputs[0])))
        targets.check(targets.Against(), shape)
        asked = contrasts.read_contrast(target, against, shape[0], shape[1], contrasts.POWER)
        if asked.rivals is not None and isinstance(target, int) and bool((asked.rivals == target).all()):
            raise TargetError(f"The only rival of class {target} is the class itself; name another.")
        return self._explain_by_secants(x, asked, None)

    def _contrast_by_rules(self, x: Inputs, target: Any, against: Any, power: float) -> Contrast:
        if is_autocast_enabled(x):
            with disable_autocast(x):
                return self._contrast_by_rules(x, target, against, power).noting(AUTOCAST_NOTE)
        engine, inputs, look = self.captured.open(x)
        shape = targets.class_shape(target, engine.output_shape(len(inputs[0])))
        targets.check(targets.Against(), shape)
        with torch.no_grad():
            asked = targets.to_tensors(contrasts.read_contrast(target, against, shape[0], shape[1], power), inputs[0])
            result, notes = self._run_checked(engine, inputs, asked, look)
            assert result.rivals is not None
            if against is not None:
                contrasts.check_rivals(result.rivals)
            elif alone := contrasts.find_without_rivals(result.rivals):
                notes += [contrasts.describe_no_rivals(alone)]
            whole = engine.redistribute(result)
            return make_contrast(self._make_explanation(engine, inputs, target, result, whole, notes), whole, power)

    def _run_checked(
        self, engine: Engine, inputs: tuple[Tensor, ...], asked: Any, look: PendingCheck | None
    ) -> tuple[Result, list[str]]:
        self.target_reader.check(asked, engine, inputs, values=not inputs[0].is_cuda)
        check_precision(engine, inputs, asked)
        keep = find_watched_nodes(engine, self._watched) if self._watched else frozenset()
        # On a GPU, launching the ledger entries of every step would take long, and the look goes on beside the pass.
        if inputs[0].is_cuda:
            return self._run(engine, inputs, asked, "in total", keep, look)
        return self._run(engine, inputs, asked, "by step", keep)

    def watch(self, layers: Sequence[str]) -> Self:
        """Record these layers in every pass from now on: `Explanation.seen` has their relevance and activation."""
        self._watched = tuple(layers)
        return self

    @property
    def watched(self) -> tuple[str, ...]:
        """The layers that every pass records."""
        return self._watched

    def _read_watched_layers(
        self, engine: Engine, inputs: tuple[Tensor, ...], result: Result
    ) -> dict[str, LayerRecord]:
        if not self._watched:
            return {}
        return read_layers(engine, result, self._watched, lambda layer: self.activations(layer, inputs))

    def relevance_at(self, name: str, x: Any, target: Any = None) -> Tensor:
        """Return the relevance at an inner boundary, by node name or module path."""
        x, _ = self.captured.read(x)
        target = self.target_reader.read(target, x)
        _, inputs, look = self.captured.open(x)
        self.captured.check_unchanged(look)
        return self._relevance_inside(name, inputs, target)

    def activations(self, layer: str, x: Any) -> Tensor:
        """Return the output of an inner layer for a batch: the scores that `dt.unit` explains.

        layer   its module path or node name
        """
        x, _ = self.captured.read(x)
        _, _, look = self.captured.open(x)
        engine, inputs, _ = self.cut_at(layer).captured.open(x)
        with disable_autocast(inputs), torch.no_grad():
            given: Tensor = engine.forward_pass(inputs).values[engine.planned.output]
        self.captured.check_unchanged(look)
        return given

    def _compute_later(self, captures: int, inputs: tuple[Tensor, ...], target: Any, name: str | None = None) -> Tensor:
        self.captured.check_captures(captures)  # raises StaleModelError
        return self._relevance_inside(name, inputs, target)

    def _pass_through_layer(
        self, captures: int, inputs: tuple[Tensor, ...], target: Any, layer: str, axis: int | None
    ) -> LayerRelevance:
        """Return the relevance that passes through a layer, for an earlier explanation."""
        self.captured.check_captures(captures)
        with disable_autocast(inputs):
            engine = self.captured.engine_for(inputs)
            asked = self.target_reader.to_weights(target, engine, inputs)
            if other := self.find_variant(asked, engine, inputs):
                return other[0]._pass_through_layer(other[0].captured.captures, inputs, other[1], layer, axis)
            return LayerRelevance(engine, inputs, asked, layer, axis, partial(self.captured.check_captures, captures))

    def _next_class(self, captures: int, inputs: tuple[Tensor, ...], target: Any) -> tuple[Tensor, Tensor]:
        """Return the best class of each sample other than the one that was explained, and the overlap of both maps."""
        self.captured.check_captures(captures)
        with disable_autocast(inputs), torch.no_grad():
            engine = self.captured.engine_for(inputs)
            output = engine.forward_pass(inputs).values[engine.planned.output]
            contrasts.check_one_class(target, output)
            classes = contrasts.find_next_class(targets.output_weights(target, output)[0], output)
            result = self._run_against(engine, inputs, target, classes)
            return classes, contrasts.measure_overlap(result, engine.channel_axis)

    def _run_against(self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, rivals: Tensor) -> Result:
        against = targets.Against(target, rivals[:, None], torch.ones_like(rivals[:, None], dtype=inputs[0].dtype))
        run = self.captured.run_batch(engine, inputs, targets.to_tensors(against, inputs[0]), DROPPED)
        return engine.redistribute(run)

    def _relevance_inside(self, name: str | None, inputs: tuple[Tensor, ...], target: Any) -> Tensor:
        """Return the relevance at an inner boundary; without a name, the ledger entries of every step."""
        with disable_autocast(inputs), torch.no_grad():
            engine = self.captured.engine_for(inputs)
            asked = self.target_reader.to_weights(target, engine, inputs)
            if other := self.find_variant(asked, engine, inputs):
                return other[0]._relevance_inside(name, inputs, other[1])
            self.target_reader.check(asked, engine, inputs)
            check_precision(engine, inputs, asked)
            if name is None:
                result, _ = self._run(engine, inputs, asked, "by step")
                assert result.entries is not None
                return result.entries
            node = engine.boundary(name)
            result, _ = self._run(engine, inputs, asked, "in total", frozenset([node]))
        return result.kept[node]

    def _run(
        self, engine: Engine, inputs: Sequence[Tensor], target: Any, detail: EntryDetail,
        keep: frozenset[str] = frozenset(), look: PendingCheck | None = None,
    ) -> tuple[Result, list[str]]:  # fmt: skip
        """Explain a batch, check the result, and collect notes."""
        result = self.captured.run_batch(engine, inputs, target, detail, keep)
        if look is not None:
            self.captured.check_unchanged(look)
        return ensure_finite(engine, Batch(tuple(inputs), target, detail, keep), result)

    # --- the same network with another output ---------------------------------------------------------------------

    def find_variant(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> tuple[Explainer, Any] | None:
        """Return the explainer and the target to use for a target; None if it refers to this network's output.

        Probabilities, functions of the output and inner units are outputs of a variant of the network.
        """
        variant = find_variant(target, self.model, self.settings, engine, inputs)
        return None if variant is None else (self._explainer_of(variant), variant.target)

    def cut_at(self, layer: str) -> Explainer:
        """Return an explainer of the network that ends at a layer."""
        return self._explainer_of(cut_at(layer, self.model, self.settings))

    def _explainer_of(self, variant: Variant) -> Explainer:
        """Return the explainer of a variant, moved and run like this one; cached if it has a signature."""
        name = variant.signature
        with self.captured.lock:
            explainer = self._variants.pop(name, None) if name is not None else None
            if explainer is None:
                source = ModelSource(variant.model, variant.settings.domains)
                explainer = _restore(source, self.captured.example, variant.settings, self.captured.run_state())
            explainer.captured.set_run_state(self.captured.run_state())
            if name is not None:
                self._variants[name] = explainer
                while len(self._variants) > _VARIANTS:
                    self._variants.pop(next(iter(self._variants)))
        return explainer

    def make_unplanned(self) -> Explainer:
        """Return an explainer of the same network for methods that need no rules, captured with the same example."""
        return self._twin(planned=False, method=SECANT)

    def _twin(self, **changes: Any) -> Explainer:
        source = ModelSource(self.model, self.domain) if type(self.source) is ModelSource else self.source
        example = self.captured.example if self.captured.is_captured else None
        return _restore(source, example, replace(self.settings, **changes), self.captured.run_state())

    def _open_place(self, target: Any, x: Inputs) -> tuple[Explainer, Any, tuple[str, ...]]:
        """Return the explainer, the weights and the notes of a box, region or pixel; other targets are unchanged."""
        if not isinstance(target, PlaceTarget):
            return self, target, ()
        found = self.target_reader.read_place(target, self.model, as_tuple(x), self.settings.output)
        explainer, name = self, f"output {found.output}"
        if found.output not in (None, self.settings.output):
            self._variants[name] = explainer = self._variants.get(name) or self._twin(output=found.output)
        return explainer, found.target, found.notes

    # --- answers --------------------------------------------------------------------------------------------------

    def _complete(self, answer: _Explanation, x: Inputs, photos: tuple[Any, ...], target: Any) -> _Explanation:
        """Return the explanation with its inputs or photographs, and the names of its classes, for drawing."""
        answer = replace(answer, inputs=() if photos else tuple(t.detach() for t in as_tuple(x)))
        answer = self.source.attach_photos(answer, x, photos, target)
        asked = self if self.captured.is_captured else self._variants.get(_UNPLANNED, self)
        with_sigmoid = "sigmoid" in asked.captured.engine.planned.removed_operations
        return replace(answer, probabilities=()) if with_sigmoid else answer

    def _make_explanation(
        self, engine: Engine, inputs: tuple[Tensor, ...], target: Any, result: Result, whole: Result, notes: list[str]
    ) -> Explanation:
        later = partial(self._compute_later, self.captured.captures, inputs, target)
        ledger = Ledger.from_result(result, engine.plan, later)
        if whole is not result:
            ledger = ledger.with_redistribution(whole)
        if isinstance(target, Unit):
            ledger = replace(ledger, score_is=target.said(engine.layout[engine.planned.output].shape(1)))
        return Explanation(
            relevance=whole.relevance[0] if len(inputs) == 1 else whole.relevance,
            score=result.score,
            ledger=ledger,
            target=target,
            classes=result.chosen,
            notes=(*self.captured.take_move_notes(), *notes, *engine.plan.notes),
            source=later,
            flips=partial(self.flips, inputs, target),
            inside=partial(self._pass_through_layer, self.captured.captures, inputs, target),
            outputs=math.prod(engine.layout[engine.planned.output].shape(1)[1:]),
            next_class=partial(self._next_class, self.captured.captures, inputs, target),
            channel_axis=engine.channel_axis,
            seen=self._read_watched_layers(engine, inputs, result),
        )


def _restore(
    source: ModelSource, example: tuple[Tensor, ...] | None, settings: Settings, state: RunState,
    choice: Choice | None = None,
) -> Explainer:  # fmt: skip
    """Return an explainer with the settings of another, moved and run like it; also used for unpickling."""
    explainer = Explainer(source)
    explainer.captured.settings = replace(settings, domains=(), root="")
    if example is not None:
        explainer.captured.capture(example, "example")
    if choice is not None:
        explainer.set_choice(choice)
    explainer.captured.set_run_state(state)
    return explainer
