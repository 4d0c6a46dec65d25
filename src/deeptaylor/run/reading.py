"""A captured network that takes what users have: photographs and names of classes, arrays, lists, inputs by name.

Reading(CapturedNetwork)
├── read         whatever was given, as tensors (given.py), with what the network sees of photographs
├── asked_for    the target in numbers and tensors (target.py)
├── begin_with   the first capture, after all checks: with an example, or with the first input that is explained
└── opened       what every answer begins with: checked inputs, their engine, a look at the network
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError, PlanError, TargetError
from deeptaylor.graph.exporting import is_compiling
from deeptaylor.run import target as targets
from deeptaylor.run.callables import Scored, read
from deeptaylor.run.engine import Engine
from deeptaylor.run.freshness import Look
from deeptaylor.run.given import ByName, by_name, check_arguments, check_initialised, check_network, given, names_of
from deeptaylor.run.inputs import (
    Inputs,
    as_domains,
    as_tuple,
    check_choice,
    check_kind,
    check_place,
    check_processor,
    check_rules,
    check_values,
    checked,
    first_float,
)
from deeptaylor.run.network import CapturedNetwork
from deeptaylor.run.prepare import Settings
from deeptaylor.run.returned import RETURNED

__all__ = ["Reading", "Trained", "output_like"]


class Trained(Protocol):
    """A network with what belongs to it (`Pretrained`)."""

    @property
    def network(self) -> nn.Module:
        """The network itself."""

    @property
    def domain(self) -> Domain:
        """What values its input may take."""

    def class_index(self, text: str) -> int:
        """The number of a class, by its name."""

    def check_outputs(self, shape: Sequence[int]) -> None:
        """Refuse names of classes that the network's output does not have."""

    @property
    def scaling(self) -> Callable[[Any], Tensor] | None:
        """How rows of a table are scaled before the network takes them."""

    def read(self, x: Any, like: Tensor | None) -> tuple[Any, tuple[Any, ...]]:
        """Photographs as inputs beside a tensor, with what the network sees of them; anything else as it is."""

    def shown(self, answer: Any, x: Any, seen: tuple[Any, ...], target: Any) -> Any:
        """An explanation with its photographs and the names of the classes."""

    def blank(self) -> Tensor | None:
        """An input of the shape that photographs are brought to, where they are."""


class Reading(CapturedNetwork):
    """A captured network with a domain, and perhaps with what it was loaded with."""

    def __init__(
        self, model: nn.Module | Trained, domain: Domain | Sequence[Domain] | None, settings: Settings
    ) -> None:
        trained = None if isinstance(model, nn.Module) else model
        network = model if isinstance(model, nn.Module) else getattr(model, "network", None)
        check_network(model if network is None else network)
        assert isinstance(network, nn.Module)
        if isinstance(network, CapturedNetwork):
            raise PlanError("This is an explainer already: call its own explain(x).")
        if trained is not None and domain is not None:
            raise InputError("The domain belongs to the Pretrained already; leave it out.")
        check_choice("bias", settings.bias, (RETURNED, "neuron", "spread"))
        check_choice("max_pool", settings.max_pool, ("proportional", "winner"))
        check_rules(settings.rules, settings.first)
        super().__init__(network, settings)
        self.trained = trained
        self.domain = domain if trained is None else trained.domain

    def __repr__(self) -> str:
        network, chosen = self.model.model if isinstance(self.model, ByName) else self.model, self.settings
        captured = "not captured yet"
        if self.begun:
            captured = f"captured for samples of shape {', '.join(str(tuple(x.shape[1:])) for x in self.example)}"
        own = f", {len(chosen.rules)} rule(s) of your own" if chosen.rules else ""
        return f"<{type(self).__name__} of {type(network).__name__}, {captured}: bias={chosen.bias!r}{own}>"

    @property
    def number(self) -> targets.Number | None:
        """How the number of a class is found by its name, where classes have names."""
        return None if self.trained is None else self.trained.class_index

    @property
    def scaling(self) -> Callable[[Any], Tensor] | None:
        """How rows of a table are scaled before the network takes them; None if they are not."""
        return None if self.trained is None else self.trained.scaling

    def read(self, x: Any) -> tuple[Any, tuple[Any, ...]]:
        """What the user gave as tensors; and of photographs, what the network sees of them."""
        if self.begun:
            self._check_outputs()
        if isinstance(x, Tensor) and self.scaling is None:
            return x, ()
        if self.begun:
            self.original.look(self.follow)  # it may have moved, and the inputs go where it is
        like = self.like if self.begun else first_float(self.model.parameters())
        seen: tuple[Any, ...] = ()
        if self.trained is not None:
            x, seen = self.trained.read(x, like)
        if isinstance(x, Mapping) and not self.begun:
            names = by_name(x, self.model)
            if names_of(self.model, len(names)) != names:  # arguments between them are left out
                self.wrap(ByName(self.model, names))
        return given(x, self.model, like), seen

    def asked_for(self, target: Any, x: Any) -> Any:
        """The target in numbers and tensors."""
        if target is None or isinstance(target, (Tensor, int)):
            return target
        first = x[0] if isinstance(x, tuple) and x else x
        return targets.plain(target, first.shape[0] if isinstance(first, Tensor) and first.ndim else 1, self.number)

    def begin_with(self, x: Any, whose: str) -> None:
        """Capture the network with the first inputs that there are: an example, or the first that are explained."""
        if is_compiling():
            super().begin_unasked()
        inputs = as_tuple(x)
        check_initialised(self.model)
        check_arguments(self.model, inputs)
        domains = as_domains(self.domain, inputs)
        check_place(inputs, first_float(self.model.parameters()), whose, "model")
        if whose == "input":
            check_values(inputs, domains, [f"input {k}" for k in range(len(inputs))])
        check_processor(inputs)
        with self.lock:
            if not self.begun:
                self.settings = replace(self.settings, domains=domains, root=_root(self.model))
                self.begin(inputs)
        self._check_outputs()

    def _check_outputs(self) -> None:
        if self.trained is not None:
            self.trained.check_outputs(self.engine.layout[self.engine.planned.output].shape(1))

    def begin_unasked(self) -> None:
        """The first capture without an input: with one of the shape that photographs are brought to."""
        blank = None if self.trained is None else self.trained.blank()
        if blank is None:
            super().begin_unasked()
        else:
            like = first_float(self.model.parameters())
            self.begin_with(blank if like is None else blank.to(like), "example")

    def opened(self, x: Inputs) -> tuple[Engine, tuple[Tensor, ...], Look | None]:
        """What an answer begins with: inputs that were checked, their engine, and a look at the network."""
        if not self.begun:
            self.begin_with(x, "input")
        look = self.original.begin_look(self.follow)
        inputs = tuple(t.detach().clone() for t in self.checked(x))
        if not inputs[0].is_cuda:
            self.original.check(look)
        with torch.no_grad():
            return self.engine_for(inputs), inputs, look

    def weights_of(self, target: Any, engine: Engine, inputs: Sequence[Tensor]) -> Any:
        """A linear function of the output as weights over it, a logit as its class; anything else as it is."""
        if isinstance(target, (targets.Logit, targets.Probability)):
            self.check_target(engine, target, inputs, values=not inputs[0].is_cuda)
        if isinstance(target, targets.Logit):
            return target.target
        if not targets.is_callable(target) or engine.planned.set_aside:
            return target
        weights = read(target, output_like(engine, inputs)).weights
        return target if weights is None else weights

    # --- checks ---------------------------------------------------------------------------------------------------

    def checked(self, x: Inputs) -> tuple[Tensor, ...]:
        """The inputs, or a clear error before any work."""
        return checked(x, self.example, self.settings.domains, self.engine)

    def check_kind(self, inputs: tuple[Tensor, ...]) -> None:
        """Refuse inputs of another type, place or number than the network takes; their values are not looked at."""
        check_kind(inputs, self.example, self.engine)

    def check_target(self, engine: Engine, target: Any, inputs: Sequence[Tensor], values: bool = True) -> None:
        """Refuse a target that does not fit the output."""
        targets.check(target, tuple(engine.layout[engine.planned.output].shape(inputs[0].shape[0])), values)
        if isinstance(target, targets.LogOdds) and "sigmoid" in engine.planned.set_aside:
            raise TargetError(
                "Log-odds are of a softmax over classes, and this network ends in sigmoid: each class has its own "
                "probability p, and log p / (1 − p) is its logit. Ask for target=dt.logit(c)."
            )


def output_like(engine: Engine, inputs: Sequence[Tensor]) -> Tensor:
    """A tensor shaped like the output for this many inputs; its values do not matter."""
    shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
    return torch.empty(shape, dtype=engine.one.dtype, device=engine.one.device)


def _root(model: nn.Module) -> str:
    """The path of the user's network in what was wrapped around it."""
    steps = []
    while isinstance(model, (Scored, ByName)):
        steps.append("model")
        model = model.model
    return ".".join(steps)
