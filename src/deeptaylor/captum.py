"""Deep Taylor and secants with captum's interface, to take the place of captum's own methods.

DeepTaylor               called like LRP; the convergence delta is the part of the score that no input got
SecantAttribution        called like DeepLift: Σ R = f(x) − f(baseline), to rounding
Contrast                 called like Saliency: what distinguishes a class from its rivals
LayerDeepTaylor          called like LayerLRP
LayerSecantAttribution   called like LayerDeepLift

They explain the output of the network itself: if it ends in softmax, probabilities. captum comes with the extra
`evaluation`. docs/howto/captum.md shows how to use them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain, Real
from deeptaylor.engine.contrast import POWER
from deeptaylor.engine.inputs import ModelSource, NamedInputs, check_network
from deeptaylor.errors import InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.modes import eval_mode
from deeptaylor.settings import DEEP_TAYLOR, SECANT
from deeptaylor.support.explainer_cache import ExplainerCache, SameObject
from deeptaylor.support.optional import optional_package

__all__ = ["Contrast", "DeepTaylor", "LayerDeepTaylor", "LayerSecantAttribution", "SecantAttribution"]

if TYPE_CHECKING:  # captum has no types that mypy reads

    class GradientAttribution:
        """The base of captum's methods for networks, with what is used of it here."""

        forward_func: nn.Module

        def __init__(self, forward_func: nn.Module) -> None: ...
else:
    _captum = optional_package("captum.attr", "deeptaylor.captum has captum's interface", "evaluation")
    GradientAttribution = _captum.GradientAttribution

Tensors = TypeVar("Tensors", Tensor, tuple[Tensor, ...])  # one input, or several
Target = int | tuple[int, ...] | Tensor | list[int] | list[tuple[int, ...]] | None  # as captum's TargetType
Baseline = float | Tensor
Baselines = Baseline | tuple[Baseline, ...] | None  # as captum's BaselineType
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")
_MOST = 4  # explainers that are cached: one for each set of additional arguments


def _wrap(attribute: _Function) -> _Function:
    """Give a method the attribute `__wrapped__`: captum's NoiseTunnel calls that."""

    @functools.wraps(attribute)
    def call(*args: Any, **kwargs: Any) -> Any:
        return attribute(*args, **kwargs)

    return cast("_Function", call)


# --- additional arguments ---------------------------------------------------------------------------------------------


class _BoundNetwork(NamedInputs):
    """A network with its additional arguments bound.

    attributed   how many inputs are attributed
    constants    {place among the additional arguments: value}
    further      {place: dtype} of the arguments that have a row for each sample: they are further inputs
    """

    def __init__(
        self, model: nn.Module, attributed: int, constants: Mapping[int, Any], further: Mapping[int, torch.dtype]
    ) -> None:
        super().__init__(model, tuple(f"input {k}" for k in range(attributed + len(further))))
        self.attributed, self.further, self.values = attributed, dict(further), dict(constants)
        for place, value in constants.items():
            if isinstance(value, Tensor):  # as a buffer, so that a change of its values is noticed
                self.register_buffer(f"constant_{place}", value)
                self.values[place] = None

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output of the network."""
        tensors = dict(self.named_buffers(recurse=False))
        found = {place: tensors.get(f"constant_{place}", value) for place, value in self.values.items()}
        rest = inputs[self.attributed :]
        found |= {place: x.to(dtype) for (place, dtype), x in zip(self.further.items(), rest, strict=True)}
        return self.model(*inputs[: self.attributed], *(found[place] for place in sorted(found)))


class _Call:
    """The inputs and the additional arguments of one call of `attribute`."""

    def __init__(self, inputs: Any, additional: Any) -> None:
        self.is_tuple = isinstance(inputs, tuple)
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        for x in given:
            if not isinstance(x, Tensor):
                raise InputError(f"inputs is a tensor, or a tuple of tensors; got {type(x).__name__}.")
        self.inputs = tuple(x.detach() for x in given)
        values = () if additional is None else additional if isinstance(additional, tuple) else (additional,)
        further = {k: v.detach() for k, v in enumerate(values) if self._has_samples(v)}
        self.constants = {k: v for k, v in enumerate(values) if k not in further}
        self.dtypes = {k: t.dtype for k, t in further.items()}
        self.further = tuple(t.long() if t.dtype == torch.bool else t for t in further.values())

    def _has_samples(self, value: Any) -> bool:
        """Return True for a tensor with a row for each sample."""
        batch = self.inputs[0].shape[:1] if self.inputs else ()
        return isinstance(value, Tensor) and value.ndim > 0 and value.shape[:1] == batch

    @property
    def x(self) -> tuple[Tensor, ...]:
        """The inputs of the bound network."""
        return (*self.inputs, *self.further)

    @property
    def key(self) -> Hashable:
        """What tells the bound network from others."""
        constants = tuple((k, _constant_key(value)) for k, value in self.constants.items())
        return len(self.inputs), tuple(self.dtypes.items()), constants

    def bind(self, model: nn.Module) -> nn.Module:
        """Return the network as a function of `x`."""
        if not self.constants and not self.dtypes:
            return model
        return _BoundNetwork(model, len(self.inputs), self.constants, self.dtypes)

    def domains(self, domain: Any) -> Any:
        """Return the domain of each input of the bound network; further inputs may be any real number."""
        if domain is None or not self.further:
            return domain
        own = tuple(domain) if isinstance(domain, (tuple, list)) else (domain,) * len(self.inputs)
        return (*own, *[Real()] * len(self.further))

    def baselines(self, given: Any) -> tuple[Tensor, ...]:
        """Return the baseline of each input of the bound network, in its shape; further inputs are as in x."""
        several = given if isinstance(given, tuple) else (given,) * (len(self.inputs) if given is None else 1)
        if len(several) != len(self.inputs):
            raise InputError(f"{len(several)} baselines were given for {len(self.inputs)} inputs.")
        return (*map(_expand_baseline, several, self.inputs), *self.further)

    def format(self, maps: tuple[Tensor, ...]) -> Any:
        """Return the maps of the inputs as the inputs were given: a tensor or a tuple."""
        return maps[: len(self.inputs)] if self.is_tuple else maps[0]


def _constant_key(value: Any) -> Hashable:
    is_plain = isinstance(value, Hashable) and not isinstance(value, Tensor)
    return (type(value), value) if is_plain else SameObject(value)


def _expand_baseline(given: Any, x: Tensor) -> Tensor:
    """Return a baseline in the shape of an input; a number, one sample or as many as x has."""
    if given is None:
        return torch.zeros_like(x)
    if isinstance(given, (int, float)):
        return torch.full_like(x, given)
    if not isinstance(given, Tensor):
        raise InputError(f"A baseline is a number or a tensor; got {type(given).__name__}.")
    if given.shape[1:] != x.shape[1:] or given.ndim != x.ndim or given.shape[0] not in (1, x.shape[0]):
        raise InputError(
            f"A baseline is shaped like its input, {tuple(x.shape)}, or one sample of it; got {tuple(given.shape)}."
        )
    return given.detach().expand_as(x)


def _as_tuple(relevance: Any) -> tuple[Tensor, ...]:
    return relevance if isinstance(relevance, tuple) else (relevance,)


def _sum_samples(maps: tuple[Tensor, ...]) -> Tensor:
    """Return the sum of the maps, one number per sample."""
    total = sum(R.flatten(1).sum(1) for R in maps)
    assert isinstance(total, Tensor)
    return total


# --- targets ----------------------------------------------------------------------------------------------------------


def _read_target(target: Any, output: torch.Size) -> Tensor | None:
    """Return captum's target for an output of this shape: the class of each sample, or weights over the output."""
    wanted = len(output) - 1
    if target is None:
        if math.prod(output[1:]) != 1:
            raise TargetError(
                f"The network gives an output of shape {tuple(output[1:])} per sample: name one number, target=…."
            )
        return None if wanted < 2 else torch.ones(output)
    given = target.tolist() if isinstance(target, Tensor) else target
    listed = given if isinstance(given, list) else [given]
    rows = [tuple(row) if isinstance(row, (tuple, list)) else (row,) for row in listed]
    if len(rows) not in (1, output[0]):
        raise TargetError(f"{len(rows)} targets were given for {output[0]} samples.")
    for row in rows:
        _check_index(row, output)
    index = torch.tensor(rows).expand(output[0], wanted) % torch.tensor(output[1:])
    if wanted == 1:
        return index[:, 0]
    weights = torch.zeros(output)
    weights[(torch.arange(output[0]), *index.unbind(1))] = 1
    return weights


def _check_index(row: tuple[Any, ...], output: torch.Size) -> None:
    """Raise TargetError unless these are the indices of one number of a sample's output."""
    sizes = tuple(output[1:])
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in row):
        raise TargetError(f"A target is whole numbers, as captum takes them; got {row!r}.")
    if len(row) != len(sizes):
        raise TargetError(
            f"The network gives an output of shape {sizes} per sample: a target is a tuple of {len(sizes)} numbers, or "
            f"a list with such a tuple for each sample; got {row!r}."
        )
    if not all(-n <= k < n for k, n in zip(row, sizes, strict=True)):
        raise TargetError(f"The target {row!r} is out of range: the output has the shape {sizes} per sample.")


# --- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attributed:
    """The answer to one call: the maps, and the delta of each sample."""

    maps: tuple[Tensor, ...]
    delta: Tensor


class _Method(GradientAttribution):
    """A method of captum that asks an explainer.

    model      the network, a torch.nn.Module; or what dt.load returns
    domain     what values the inputs may take, as for dt.Explainer
    settings   further settings of dt.Explainer
    """

    _method = DEEP_TAYLOR
    _keeps_final = True  # a final softmax is explained, so that sums are those of the network's own output

    def __init__(
        self, model: nn.Module | ModelSource, domain: Domain | tuple[Domain, ...] | None = None, **settings: Any
    ) -> None:
        network = model.network if isinstance(model, ModelSource) else model
        check_network(network)
        super().__init__(network)
        self.domain = model.domain if isinstance(model, ModelSource) and domain is None else domain
        self.settings = {"method": self._method, **settings}
        self._cache: ExplainerCache[Explainer] = ExplainerCache(_MOST)

    @property
    def multiplies_by_inputs(self) -> bool:
        """True: attributions have the unit of the output."""
        return True

    def has_convergence_delta(self) -> bool:
        """Return True: `return_convergence_delta=True` returns it."""
        return True

    def _ask(self, call: _Call, ask: Callable[[Explainer], _Answer], layer: str = "") -> _Answer:
        """Ask the cached explainer for these arguments; a new one if the network changed."""

        def make() -> Explainer:
            model = _FromLayer(call.bind(self.forward_func), layer) if layer else call.bind(self.forward_func)
            explainer = Explainer(model, None, call.domains(self.domain), **self.settings)
            explainer.captured.settings = replace(
                explainer.settings, keeps_final=self._keeps_final, planned=self.settings["method"] != SECANT
            )
            return explainer

        return self._cache.answer((layer, call.key), make, ask)


def _to_output(explainer: Explainer, x: tuple[Tensor, ...], target: Any) -> Tensor | None:
    """Return captum's target as one of the explainer, on the device and in the dtype of the output."""
    engine, inputs, _ = explainer.captured.open(x)
    asked = _read_target(target, engine.output_shape(len(inputs[0])))
    return asked if asked is None or not asked.is_floating_point() else asked.to(engine.empty_output(1))


class DeepTaylor(_Method):
    """Deep Taylor decomposition, called like captum's LRP.

    model      the network, a torch.nn.Module; or what dt.load returns
    domain     what values the inputs may take, as for dt.Explainer
    settings   further settings of dt.Explainer: bias, rules, first, max_pool, local; method="paper" …

    >>> import torch, deeptaylor as dt
    >>> from deeptaylor.captum import DeepTaylor
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.ReLU())
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> R = DeepTaylor(network, dt.NonNegative()).attribute(x, target=int(network(x).argmax()))
    >>> torch.allclose(R.sum(), network(x).max())
    True
    """

    @overload
    def attribute(
        self, inputs: Tensors, target: Target = None, additional_forward_args: Any = None,
        return_convergence_delta: Literal[False] = False,
    ) -> Tensors: ...  # fmt: skip

    @overload
    def attribute(
        self, inputs: Tensors, target: Target = None, additional_forward_args: Any = None, *,
        return_convergence_delta: Literal[True],
    ) -> tuple[Tensors, Tensor]: ...  # fmt: skip

    @_wrap
    def attribute(
        self, inputs: Any, target: Any = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Return the relevance of each input.

        inputs                     a tensor, or a tuple of tensors; the first axis counts the samples
        target                     the number of the output to explain, in any of captum's forms
        additional_forward_args    further arguments of the network, which are not attributed
        return_convergence_delta   also return, for each sample, the score minus the sum of the relevance: what biases
                                   and additional arguments keep, and what was dropped
        """
        call = _Call(inputs, additional_forward_args)

        def ask(explainer: Explainer) -> _Attributed:
            found = explainer.explain(call.x, _to_output(explainer, call.x, target))
            maps = _as_tuple(found.relevance)[: len(call.inputs)]
            return _Attributed(maps, found.score.flatten() - _sum_samples(maps))

        found = self._ask(call, ask)
        return (call.format(found.maps), found.delta) if return_convergence_delta else call.format(found.maps)

    def compute_convergence_delta(self, attributions: Any, output: Tensor) -> Tensor:
        """Return the output minus the sum of attributions, one number per sample, as captum's LRP does."""
        return output.flatten() - _sum_samples(_as_tuple(attributions))


class Contrast(_Method):
    """What distinguishes a class from its rivals, called like captum's Saliency (see `Explainer.contrast`).

    model, domain, settings   as for DeepTaylor; method="secant": the class minus its rivals, of both signs
    """

    _keeps_final = False

    def has_convergence_delta(self) -> bool:
        """Return False: a contrast sums to a part of the score."""
        return False

    @_wrap
    def attribute(
        self, inputs: Tensors, target: Target = None, additional_forward_args: Any = None, *,
        against: Any = None, power: float = POWER,
    ) -> Tensors:  # fmt: skip
        """Return the relevance that a class does not share with its rivals.

        inputs, target, additional_forward_args   as for DeepTaylor; the output has the shape (samples, classes)
        against, power                            as for `Explainer.contrast`
        """
        call = _Call(inputs, additional_forward_args)

        def ask(explainer: Explainer) -> Any:
            return explainer.contrast(call.x, _to_output(explainer, call.x, target), against, power).relevance

        found: Tensors = call.format(_as_tuple(self._ask(call, ask)))
        return found


class SecantAttribution(_Method):
    """The exact difference to a baseline by secants, called like captum's DeepLift (see `Explainer.between`).

    The sum of the attributions is f(x) − f(baseline), to rounding. No rules are needed, and no domain.

    model      the network, a torch.nn.Module; or what dt.load returns

    >>> import torch
    >>> from deeptaylor.captum import SecantAttribution
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.GELU(), torch.nn.Linear(3, 1))
    >>> R, delta = SecantAttribution(network).attribute(torch.ones(1, 2), return_convergence_delta=True)
    >>> bool(delta.abs() < 1e-6)
    True
    """

    _method = SECANT

    @overload
    def attribute(
        self, inputs: Tensors, baselines: Baselines = None, target: Target = None, additional_forward_args: Any = None,
        return_convergence_delta: Literal[False] = False,
    ) -> Tensors: ...  # fmt: skip

    @overload
    def attribute(
        self, inputs: Tensors, baselines: Baselines = None, target: Target = None, additional_forward_args: Any = None,
        *, return_convergence_delta: Literal[True],
    ) -> tuple[Tensors, Tensor]: ...  # fmt: skip

    @_wrap
    def attribute(
        self, inputs: Any, baselines: Any = None, target: Any = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Return what each input added to the difference f(x) − f(baseline).

        baselines                  None: zeros; a number; a tensor like the input or like one sample, (1, …); a tuple
                                   with one of these for each input
        return_convergence_delta   also return, for each sample, Σ R − (f(x) − f(baseline)), which is rounding
        inputs, target, additional_forward_args   as for DeepTaylor
        """
        call = _Call(inputs, additional_forward_args)
        references = call.baselines(baselines)

        def ask(explainer: Explainer) -> _Attributed:
            return _subtract_baseline(explainer, call.x, references, target)

        found = self._ask(call, ask)
        return (call.format(found.maps), found.delta) if return_convergence_delta else call.format(found.maps)


def _subtract_baseline(
    explainer: Explainer, x: tuple[Tensor, ...], references: tuple[Tensor, ...], target: Any
) -> _Attributed:
    found = explainer.between(x, references, _to_output(explainer, x, target))
    maps = _as_tuple(found.relevance)
    difference = (found.score - found.reference_score).flatten()
    return _Attributed(maps, _sum_samples(maps) - difference)


# --- layers -----------------------------------------------------------------------------------------------------------


class _FromLayer(NamedInputs):
    """A network as a function of the output of one of its layers, the first input; the others are the network's."""

    def __init__(self, model: nn.Module, layer: str) -> None:
        super().__init__(model, ())
        self.layer = layer

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output of the network if its layer gives the first input."""
        with _hook_layer(self.model, self.layer, lambda _: inputs[0]):
            return self.model(*inputs[1:])


@contextmanager
def _hook_layer(model: nn.Module, layer: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Change the output of a layer; raise InputError unless the network calls the layer once."""
    calls = []

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        calls.append(1)
        if not isinstance(output, Tensor):
            raise InputError(f"The layer {layer!r} gives {type(output).__name__}, not one tensor; name another layer.")
        return change(output)

    handle = model.get_submodule(layer).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if len(calls) != 1:
        raise InputError(f"The network calls the layer {layer!r} {len(calls)} times; name a layer that it calls once.")


class _LayerMethod(_Method):
    """A method for the output of a layer."""

    def __init__(
        self, model: nn.Module | ModelSource, layer: nn.Module, domain: Domain | tuple[Domain, ...] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, domain, **settings)
        names = [name for name, module in self.forward_func.named_modules() if module is layer]
        if not names or names[0] == "":
            raise InputError("The layer is not a module inside the network: give one, such as model.layer4.")
        self.layer, self._name = layer, names[0]


class LayerDeepTaylor(_LayerMethod):
    """The relevance at the output of a layer, called like captum's LayerLRP (see `Explanation.at`).

    model, domain, settings   as for DeepTaylor
    layer                     a module of the network
    """

    @_wrap
    def attribute(
        self, inputs: Any, target: Target = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Return the relevance of each number that the layer gives; arguments as for DeepTaylor.

        It raises BoundaryError for a layer inside a detection block, where relevance is not defined; the error names
        the layers near it. What passes the layer by, as in a residual network, is in the delta.
        """
        call = _Call(inputs, additional_forward_args)

        def ask(explainer: Explainer) -> _Attributed:
            found = explainer.explain(call.x, _to_output(explainer, call.x, target))
            maps = (found.at(self._name),)
            return _Attributed(maps, found.score.flatten() - _sum_samples(maps))

        found = self._ask(call, ask)
        return (found.maps[0], found.delta) if return_convergence_delta else found.maps[0]


class LayerSecantAttribution(_LayerMethod):
    """The exact difference that the output of a layer makes, called like captum's LayerDeepLift.

    The sum is f(x) minus f of x with the layer's output as it is for the baseline. If nothing passes the layer by, that
    is f(x) − f(baseline).

    model   the network, a torch.nn.Module
    layer   a module of the network that is called once and gives one tensor
    """

    _method = SECANT

    @_wrap
    def attribute(
        self, inputs: Any, baselines: Baselines = None, target: Target = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Return what each number of the layer added to the difference; arguments as for SecantAttribution."""
        call = _Call(inputs, additional_forward_args)
        bound, references = call.bind(self.forward_func), call.baselines(baselines)
        layer = f"model.{self._name}" if bound is not self.forward_func else self._name
        h, h0 = (_compute_layer(bound, layer, x) for x in (call.x, references))

        def ask(explainer: Explainer) -> _Attributed:
            return _subtract_baseline(explainer, (h, *call.x), (h0, *call.x), target)

        found = self._ask(call, ask, layer)
        # Relevance of the network's own inputs is zero: they are the same in both.
        return (found.maps[0], found.delta) if return_convergence_delta else found.maps[0]


def _compute_layer(model: nn.Module, layer: str, x: tuple[Tensor, ...]) -> Tensor:
    """Return the output of a layer."""
    seen: list[Tensor] = []
    with eval_mode(model), torch.no_grad(), _hook_layer(model, layer, lambda h: seen.append(h.detach())):
        model(*x)
    return seen[0]
