"""What is explained: a class or several, weights over the output, a logit difference, a unit of an inner layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.errors import TargetError
from deeptaylor.graph.modes import is_compiling

# None, int, integer tensor (B,) or (B, K), float tensor like the output, Margin, Negative, Logit, Probability,
# LogOdds, Unit, callable
Target = Any
Number = Callable[[str], int]  # of a class, by its name


@dataclass(frozen=True)
class Margin:
    """The difference of two logits; `other=None` means the best of the other classes."""

    target: int | str | Tensor | None = None
    other: int | str | Tensor | None = None


def margin(target: int | str | Tensor | None = None, other: int | str | Tensor | None = None) -> Margin:
    """Explain why `target` (default: the top class) beats `other` (default: the best of the rest).

    The logit difference is positive whenever the class wins, even if its own logit is not. Classes are numbers, an
    integer tensor with one number per sample, or names if the network has class names.

    >>> margin("zebra", "tiger")
    Margin(target='zebra', other='tiger')
    """
    return Margin(target, other)


@dataclass(frozen=True)
class Negative:
    """The score of a class with the other sign: what speaks against it."""

    target: int | str | Tensor = 0


def negative(target: int | str | Tensor = 0) -> Negative:
    """Explain −f: what speaks against a class, or why a network with one output gives a negative number.

    target   the class: a number, an integer tensor with one number per sample, or a name if the network has names

    >>> negative()
    Negative(target=0)
    """
    return Negative(target)


@dataclass(frozen=True)
class Logit:
    """The logit of a class, before the final softmax or sigmoid."""

    target: Any = None


def logit(target: Any = None) -> Logit:
    """Explain a logit: the input of the final softmax, log-softmax or sigmoid, or the output of a network without one.

    target   a class or several, as for `explain`; None: the top class

    >>> logit("cat")
    Logit(target='cat')
    """
    return Logit(target)


@dataclass(frozen=True)
class Probability:
    """The probability of a class."""

    target: Any = None


def probability(target: Any = None) -> Probability:
    """Explain a probability: the output of the final softmax or sigmoid instead of the logit before it.

    target   a class or several, as for `explain`; None: the top class

    If the network ends in log-softmax, its exponential is explained. If it ends in logits, their softmax over the
    classes is; for a network with one output, their sigmoid.

    >>> probability(3)
    Probability(target=3)
    """
    return Probability(target)


@dataclass(frozen=True)
class LogOdds:
    """The log-odds of a class against all others."""

    target: Any = None


def log_odds(target: Any = None) -> LogOdds:
    """Explain the log-odds of a class, log p / (1 − p), where p is its probability by softmax.

    target   a class or several, as for `explain`; None: the top class

    Log-odds depend on all other classes, so they answer "why this class and no other?". A logit alone does not: adding
    a number to all logits changes no probability. Only secants explain log-odds; `Explainer.contrast` uses them.

    >>> log_odds(3)
    LogOdds(target=3)
    """
    return LogOdds(target)


@dataclass(frozen=True)
class AtStep:
    """A class at one step of an output of shape (batch, steps, classes)."""

    step: int | Tensor
    target: Any = None


def at_step(step: int | Tensor, target: Any = None) -> AtStep:
    """Explain a class at one step of a sequence, such as a letter that a text recogniser reads, or the tag of a word.

    step     the step; or an integer tensor (batch,), one per sample
    target   a class or several, as for `explain`; None: the top class at that step

    >>> at_step(5, 3)
    AtStep(step=5, target=3)
    """
    return AtStep(step, target)


@dataclass(frozen=True)
class ShiftedWeights:
    """Weights over the output, and a number that is added to the score of each sample if the output is logits.

    f = Σ v z + shift, if a final sigmoid was removed; deep Taylor alone adds it.
    """

    weights: Tensor
    shift: Tensor


RIVALS = 8  # of the network's own: those that it considers most


@dataclass(frozen=True)
class Against:
    """A class with its rivals: its map, and beside it one of a mixture of the others.

    `rivals` (B, M) and their `weights` (B, M), which add up to one; None: those that the network itself considers.
    """

    target: int | Tensor | None = None
    rivals: Tensor | None = None
    weights: Tensor | None = None


for _kind in (
    Margin,
    Negative,
    Logit,
    Probability,
    LogOdds,
    AtStep,
    ShiftedWeights,
    Against,
):  # so that their tensors are seen by what compiles and exports
    pytree.register_dataclass(_kind)


# --- as the user writes them ------------------------------------------------------------------------------------------


def to_numbers(target: Any, batch: int, number: Number | None = None) -> Target:
    """Return a target with numbers for class names and tensors for arrays; repeat a list of K classes per sample.

    >>> to_numbers(["cat", 0], 2, {"cat": 4}.__getitem__)
    tensor([[4, 0],
            [4, 0]])
    """
    if isinstance(target, Margin):
        return Margin(replace_names(target.target, number), replace_names(target.other, number))
    if isinstance(target, Negative):
        return Negative(replace_names(target.target, number))
    if isinstance(target, (Logit, Probability, LogOdds)):
        return type(target)(to_numbers(target.target, batch, number))
    if isinstance(target, AtStep):
        return AtStep(replace_names(target.step), to_numbers(target.target, batch, number))
    if not isinstance(target, Mapping):
        target = replace_names(target, number)
    if not isinstance(target, (list, tuple)) or not target:
        return target
    rows = target if all(isinstance(row, (list, tuple)) for row in target) else [target] * batch
    whole = all(isinstance(k, int) and not isinstance(k, bool) for row in rows for k in row)
    if not whole or len({len(row) for row in rows}) > 1:
        raise TargetError(
            "A list as a target must hold classes, by number or name (K maps for every sample), or one "
            "such list per sample, all of one length; got {target!r}."
        )
    return torch.tensor(rows)


def replace_names(classes: Any, number: Number | None = None) -> Any:
    """Replace class names by numbers, and NumPy's numbers and arrays by Python's and torch's."""
    if isinstance(classes, str):
        return (number or raise_no_names)(classes)
    if isinstance(classes, (np.ndarray, np.generic)):
        return (
            replace_names(classes.tolist(), number)
            if classes.ndim == 0 or classes.dtype.kind in "UOS"
            else _to_tensor(classes)
        )
    if isinstance(classes, Mapping):
        return {replace_names(name, number): weight for name, weight in classes.items()}
    return [replace_names(name, number) for name in classes] if isinstance(classes, (list, tuple)) else classes


def raise_no_names(name: str) -> NoReturn:
    """Raise TargetError because a class was given by name, but the network has no class names."""
    raise TargetError(
        f"The class {name!r} is given by name, but this network has no class names: give the number of the "
        'class, or load it with names: dt.load(network, class_names=["cat", …], …).'
    )


def _to_tensor(classes: Any) -> Tensor:
    if classes.dtype.kind not in "biuf":
        raise TargetError(f"An array as a target must hold whole or real numbers; got {classes.dtype}.")
    return torch.as_tensor(np.ascontiguousarray(classes))


# --- checks -----------------------------------------------------------------------------------------------------------


def check(target: Target, shape: tuple[int, ...], values: bool = True) -> None:
    """Raise TargetError for a target that does not fit an output of this shape, before any work.

    values   False: values of tensors are checked only if reading them does not synchronise with a GPU (`can_read`)
    """
    if isinstance(target, Against):
        _check_rivals(class_shape(target.target, shape))
        target = target.target
    if isinstance(target, ShiftedWeights):
        target = target.weights
    if isinstance(target, AtStep):
        _check_step(target, shape, values)
        target, shape = target.target, class_shape(target, shape)
    if target is None or is_callable(target):
        if target is None and len(shape) > 2:
            raise TargetError(_no_classes(shape))
        return
    if isinstance(target, Unit):
        target.check(shape)
        return
    if isinstance(target, Margin):
        _check_margin(target, shape, values)
        return
    if isinstance(target, (Negative, Logit, Probability, LogOdds)):
        check(_inner_class(target, shape), shape, values)
        return
    if isinstance(target, Tensor) and target.is_floating_point():
        _check_weights(target, shape, values)
        return
    if not _is_integer(target):
        raise TargetError(
            "A target must be None, an int, a list of them, an integer tensor, a float tensor, dt.margin(…), "
            "dt.negative(…), dt.logit(…), dt.probability(…), dt.log_odds(…), dt.at_step(…), dt.unit(…) or a callable; "
            f"got {_type_name(target)}."
        )
    if len(shape) == 1 and (isinstance(target, Tensor) or target != 0):
        raise TargetError("The network gives one number per sample; there is no class to choose. Leave target out.")
    if len(shape) > 2:
        raise TargetError(_no_classes(shape))
    if len(shape) == 2:
        _check_classes(target, shape, "target", (1, 2), values)


def _check_weights(target: Tensor, shape: tuple[int, ...], values: bool) -> None:
    if tuple(target.shape) != shape:
        raise TargetError(f"Weights must have the output's shape {shape}; got {tuple(target.shape)}.")
    if can_read(target, values) and not bool(torch.isfinite(target).all()):
        raise TargetError("Weights must be finite: some are NaN or infinite.")


def _inner_class(target: Negative | Logit | Probability | LogOdds, shape: tuple[int, ...]) -> Target:
    """Return the class that a target wraps; raise if it wraps anything else."""
    found = target.target
    if isinstance(target, LogOdds):
        over = class_shape(found, shape)
        if len(over) != 2 or over[1] < 2:
            raise TargetError(f"Log-odds need an output of shape (batch, classes ≥ 2); this one has {shape}.")
        if isinstance(found, AtStep):
            return found
    if isinstance(target, Negative) and (not _is_integer(found) or getattr(found, "ndim", 1) > 1):
        raise TargetError(
            "dt.negative(target) takes one class: a number, its name, or an integer tensor with one class per "
            f"sample; got {_type_name(found)}."
        )
    if found is not None and not _is_integer(found):
        raise TargetError(
            f"dt.{_function_name(target)}(target) takes a class, several, or None for the top class; got "
            f"{_type_name(found)}."
        )
    return found


def _function_name(target: Logit | Probability | LogOdds | Negative) -> str:
    """Return the public function that makes a target."""
    return "log_odds" if isinstance(target, LogOdds) else type(target).__name__.lower()


def _check_margin(target: Margin, shape: tuple[int, ...], values: bool) -> None:
    if len(shape) != 2 or shape[1] < 2:
        raise TargetError(f"A margin needs an output of shape (batch, classes ≥ 2); this one has {shape}.")
    for name, value in (("target", target.target), ("other", target.other)):
        if value is not None:
            _check_classes(value, shape, name, (1,), values)
    if isinstance(target.target, int) and isinstance(target.other, int) and target.target == target.other:
        raise TargetError(f"A margin needs two different classes; both are class {target.other}.")


def _check_step(target: AtStep, shape: tuple[int, ...], values: bool) -> None:
    """Raise TargetError unless the output has steps, and this is one of them."""
    step = target.step
    if target.target is not None and not _is_integer(target.target):
        raise TargetError(f"dt.at_step(step, target) takes a class, several, or None; got {_type_name(target.target)}.")
    if len(shape) != 3:
        raise TargetError(f"dt.at_step needs an output of shape (batch, steps, classes); this one has {shape}.")
    if not _is_integer(step) or (isinstance(step, Tensor) and tuple(step.shape) not in ((), (shape[0],))):
        raise TargetError(
            f"A step must be a whole number, or an integer tensor of shape ({shape[0]},), one per sample; got {step!r}."
        )
    t = torch.as_tensor(step)
    if can_read(t, values) and not bool(((t >= 0) & (t < shape[1])).all()):
        raise TargetError(f"The step {step!r} is out of range: the output has {shape[1]} steps, 0 to {shape[1] - 1}.")


def _check_rivals(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[1] < 2:
        raise TargetError(
            f"A contrast needs rivals: an output of shape (batch, classes ≥ 2); this one has {shape}. "
            "Call explain(x), which explains the one number; for (batch, steps, classes), use "
            "dt.at_step(step, c)."
        )


def can_read(t: Tensor, values: bool) -> bool:
    """Return True if a tensor's values can be read; without `values`, only if that does not synchronise with a GPU."""
    hidden = is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(t)
    return not hidden and (values or not t.is_cuda)


def _type_name(target: Target) -> str:
    return f"a tensor of {target.dtype}" if isinstance(target, Tensor) else type(target).__name__


def _no_classes(shape: tuple[int, ...]) -> str:
    return (
        f"The network's output has shape {shape}; classes need (batch, classes). Give a float tensor of that shape as "
        "weights, or a callable that makes one number per sample of it."
    )


def _is_integer(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return isinstance(value, int) and not isinstance(value, bool)


def _check_classes(value: Any, shape: tuple[int, ...], name: str, ranks: tuple[int, ...], values: bool) -> None:
    """Raise TargetError unless these are integers of the right shape that are classes of the network."""
    if not _is_integer(value):
        raise TargetError(
            f"The {name} of dt.margin(target, other) must be None, an int, the name of a class, or an "
            "integer tensor with one class per sample (give a callable as the target itself); got "
            f"{_type_name(value)}."
        )
    t = torch.as_tensor(value)
    if t.ndim and (t.ndim not in ranks or t.shape[0] != shape[0] or t.numel() == 0):
        wanted = " or ".join(["(batch,)", "(batch, K)"][: len(ranks)])
        raise TargetError(
            f"An integer target (or margin) must have shape {wanted} with batch {shape[0]} and K ≥ 1; "
            f"got {tuple(t.shape)}."
        )
    if not can_read(t, values):
        return
    low, high = torch.stack(t.aminmax()).tolist()
    if low < 0 or high >= shape[1]:
        has = f"{shape[1]} classes, 0 to {shape[1] - 1}" if shape[1] > 1 else "one output, number 0"
        raise TargetError(f"The {name} {low if low < 0 else high} is out of range: the network has {has}.")


def select_samples(target: Target, samples: slice | list[int]) -> Target:
    """Return the target of some of the samples."""
    if isinstance(target, (Margin, Negative, LogOdds, AtStep, ShiftedWeights, Against)):
        return pytree.tree_map(lambda t: select_samples(t, samples), target)
    if isinstance(target, (Logit, Probability)):
        return replace(target, target=select_samples(target.target, samples))
    return target[samples] if isinstance(target, Tensor) and target.ndim else target


def to_tensors(target: Target, x: Tensor) -> Target:
    """Replace a target's numbers by tensors on the input's device, or torch.compile would recompile for each."""
    if isinstance(target, (Margin, Negative, LogOdds, AtStep, ShiftedWeights, Against)):
        return pytree.tree_map(lambda t: to_tensors(t, x), target)
    if isinstance(target, int):
        return torch.full((x.shape[0],), target, device=x.device)
    return target.to(x.device) if isinstance(target, Tensor) else target


def output_weights(target: Target, output: Tensor) -> tuple[Tensor, bool]:
    """Return the target as weights v over the output, f = Σ v z, and whether there are K targets: then v is (K, …)."""
    if isinstance(target, Unit):
        return target.weights(output), isinstance(target.channel, tuple)
    if isinstance(target, ShiftedWeights):
        return target.weights.to(output), False
    if isinstance(target, AtStep):
        v, many = output_weights(target.target, class_scores(target, output))
        return spread_over_output(target, v, output), many
    if isinstance(target, Margin):
        return _margin_weights(target, output), False
    if isinstance(target, (Logit, Probability)):
        raise TargetError(
            f"dt.{type(target).__name__.lower()}(c) works only in explain and between. Here, give a class, or a "
            "function of the network's output: lambda o: o[:, c]."
        )
    if isinstance(target, LogOdds):
        raise TargetError(
            "Log-odds are explained by secants: between(x, reference, dt.log_odds(c)), or explain with {method}.",
            method="secant",
        )
    if isinstance(target, Negative):
        return -output_weights(target.target, output)[0], False
    if isinstance(target, Tensor) and target.is_floating_point():
        return target.to(output), False
    if output.ndim == 1:
        return torch.ones_like(output), False
    if target is None:
        return one_hot(output.argmax(1), output), False
    classes = torch.as_tensor(target, device=output.device).long()
    if classes.ndim == 0:
        classes = classes.expand(output.shape[0])
    return one_hot(classes.movedim(-1, 0), output), classes.ndim == 2


# --- classes at a step ------------------------------------------------------------------------------------------------


def class_shape(target: Target, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape (batch, classes) of an output, without its steps."""
    return (shape[0], *shape[2:]) if isinstance(target, AtStep) and len(shape) == 3 else tuple(shape)


def class_of(target: Target) -> Target:
    """Return the class of a target, without its step."""
    return target.target if isinstance(target, AtStep) else target


def class_scores(target: Target, output: Tensor) -> Tensor:
    """Return the scores of the classes, (batch, classes): the output, or one step of it."""
    if not isinstance(target, AtStep):
        return output
    step = torch.as_tensor(target.step, device=output.device).expand(len(output))
    return output.gather(1, step[:, None, None].expand(-1, 1, output.shape[2])).squeeze(1)


def spread_over_output(target: Target, v: Tensor, output: Tensor) -> Tensor:
    """Return weights over classes (…, batch, classes) as weights over the whole output."""
    if not isinstance(target, AtStep):
        return v
    step = torch.as_tensor(target.step, device=output.device).expand(len(output))
    here = torch.arange(output.shape[1], device=output.device) == step[:, None]
    return torch.where(here.unsqueeze(-1), v.unsqueeze(-2), 0)


# --- a class against others -------------------------------------------------------------------------------------------


def against_rivals(target: Target, shape: Sequence[int], set_aside: Sequence[str]) -> Target:
    """Replace a class by the class against its rivals; return any other target unchanged.

    shape       of the output; without several classes there are no rivals
    set_aside   the final operations that were removed: after a sigmoid, classes do not compete
    """
    asked = class_of(target)
    is_class = asked is None or (_is_integer(asked) and (isinstance(asked, int) or asked.ndim < 3))
    shape = class_shape(target, shape)
    competes = len(shape) == 2 and shape[1] > 1 and "sigmoid" not in set_aside
    return Against(target) if is_class and competes else target


def _mask_class(own: Tensor, output: Tensor) -> Tensor:
    """Return the output with minus infinity at the class itself; `own` is 1 at the class and 0 elsewhere."""
    return output.masked_fill(own > 0, float("-inf"))


def log_odds_of(own: Tensor, output: Tensor) -> Tensor:
    """Return z_c − log Σ exp z_k over the other classes; `own` is 1 at c and 0 elsewhere."""
    return (own * output).sum(-1) - _mask_class(own, output).logsumexp(-1)


def against_weights(asked: Against, output: Tensor) -> tuple[Tensor, bool]:
    """Return weights v = 1 at the class, −q at its rivals, and whether there are K classes per sample.

    q is the softmax without the class, or the weights that the user named, without the class.
    """
    z = class_scores(asked.target, output)
    own, many = output_weights(class_of(asked.target), z)
    if asked.rivals is None or asked.weights is None:
        q = _mask_class(own, z).softmax(-1)
    else:
        q = torch.where(own > 0, 0, torch.zeros_like(z).scatter_(1, asked.rivals, asked.weights.to(z)))
        total = q.sum(-1, keepdim=True)
        q = q / torch.where(total > 0, total, 1)
    return spread_over_output(asked.target, own - q, output), many


_NODES = 32  # points between both outputs at which softmax is taken


def log_odds_weights(own: Tensor, output: Tensor, output0: Tensor) -> Tensor:
    """Return weights v over the classes with Σ v (z − z0) = the difference of the log-odds, exactly.

    v = 1 at the class, −q elsewhere; q is the mean of the softmax without the class on the line from z0 to z. A sum
    over points of that line leaves a small error, which the classes share by distance from the mean difference.
    """
    change = output - output0
    at = (torch.arange(_NODES, dtype=output.dtype, device=output.device) + 0.5) / _NODES
    line = output0 + at.reshape(-1, *[1] * output.ndim) * change
    q = _mask_class(own, line).softmax(-1).mean(0)
    rise, rise0 = (_mask_class(own, z).logsumexp(-1, keepdim=True) for z in (output, output0))
    middle = (q * change).sum(-1, keepdim=True)
    apart = change - middle
    spread = (q * apart.square()).sum(-1, keepdim=True)
    q = q * (1 + apart * (rise - rise0 - middle) / torch.where(spread > 0, spread, 1))
    return own - q


def choose_rivals(asked: Against, v: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return classes (B, M) and weights of the rivals of the class that v chooses; no rival has weight zero.

    By default, rivals are all classes with a positive score, weighted by the network's softmax without v's class.
    """
    v, output = class_scores(asked.target, v), class_scores(asked.target, output)
    if asked.rivals is not None and asked.weights is not None:
        own = v.gather(1, asked.rivals) > 0  # no class is its own rival
        return asked.rivals, torch.where(own, 0, asked.weights.to(output.dtype))
    among = output.masked_fill((v > 0) | (output <= 0), float("-inf"))
    logits, classes = among.topk(min(RIVALS, output.shape[1] - 1), 1)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    likely = torch.exp(wide - wide[:, :1].clamp(min=0))  # of none at all, minus infinity
    return classes, (likely / likely.sum(1, keepdim=True).clamp(min=1e-30)).to(output.dtype)


def one_hot(classes: Tensor, output: Tensor) -> Tensor:
    """Return 1 at each class, 0 elsewhere; NaN for a class that does not exist."""
    there = (classes == classes.clamp(0, output.shape[1] - 1)).unsqueeze(-1)
    chosen = torch.arange(output.shape[1], device=output.device) == classes.unsqueeze(-1)
    return torch.where(there, chosen.to(output.dtype), torch.nan)


def _margin_weights(target: Margin, output: Tensor) -> Tensor:
    batch = output.shape[0]

    def as_classes(value: Any) -> Tensor:
        return torch.as_tensor(value, device=output.device).expand(batch)

    top = output.argmax(1) if target.target is None else as_classes(target.target)
    plus = one_hot(top, output)
    rest = (
        output.masked_fill(plus.bool(), float("-inf")).argmax(1) if target.other is None else as_classes(target.other)
    )
    return plus - one_hot(rest, output)


def is_callable(target: Target) -> bool:
    """Return True for a function of the output (modules and plain callables)."""
    return callable(target) and not isinstance(target, Tensor)


ScoreFunction = Callable[[Tensor], Tensor]


# --- units of inner layers --------------------------------------------------------------------------------------------


Place = tuple[int, ...] | Literal["max"] | None
_MOST: Literal["max"] = "max"  # as a place: the most active one


@dataclass(frozen=True)
class Unit:
    """A channel of a layer, or several: summed over its places, at its most active place, or at a given one."""

    layer: str
    channel: int | tuple[int, ...]
    place: Place = None
    axis: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is explained, as text: one name per channel."""
        return tuple(f"channel {c} of {self.layer}{self._where}" for c in self.channels)

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels as a tuple, even if there is only one."""
        return self.channel if isinstance(self.channel, tuple) else (self.channel,)

    @property
    def _where(self) -> str:
        if isinstance(self.place, tuple):
            return f" at place {', '.join(map(str, self.place))}"
        return " at its most active place" if self.place == _MOST else ""

    def said(self, shape: Sequence[int]) -> str:
        """Return a description of the score, for a layer output of this shape."""
        summed = ", summed over its places" if self.place is None and len(shape) > 2 else ""
        several = f"each of {len(self.channels)} channels of {self.layer}{self._where}"
        name = self.names[0] if len(self.channels) == 1 else several
        return f"activation of {name}{summed}"

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise TargetError if a layer of this shape does not have the unit."""
        axis = find_channel_axis(self.layer, shape, self.axis)
        for channel in self.channels:
            check_channel(self.layer, channel, shape[axis])
        places = tuple(n for d, n in enumerate(shape) if d not in (0, axis))
        if isinstance(self.place, tuple):
            if len(self.place) != len(places):
                count = "1 index" if len(places) == 1 else f"{len(places)} indices, each"
                raise TargetError(
                    f"place must be {count} smaller than the layer's size {places}; got {self.place}."
                    if places
                    else f"The layer {self.layer!r} has one number per channel and no places; leave place out."
                )
            if not all(0 <= p < n for p, n in zip(self.place, places, strict=True)):
                raise TargetError(
                    f"The place {self.place} is out of range: the layer {self.layer!r} has {places} places, from 0 on."
                )

    def weights(self, output: Tensor) -> Tensor:
        """Return weights over the layer's output: one at the unit and zero elsewhere; (K, …) for K channels."""
        axis = find_channel_axis(self.layer, tuple(output.shape), self.axis)
        if isinstance(self.channel, int):
            return self._of(self.channel, output, axis)
        return torch.stack([self._of(channel, output, axis) for channel in self.channel])

    def _of(self, channel: int, output: Tensor, axis: int) -> Tensor:
        v = torch.zeros_like(output)
        own = v.movedim(axis, 1)[:, channel]  # a view: what is written to it is in v
        if self.place is None:
            own.fill_(1)
        elif self.place == _MOST:
            a = output.movedim(axis, 1)[:, channel].reshape(len(output), -1)
            most = torch.arange(a.shape[1], device=a.device) == a.argmax(1, keepdim=True)
            own.copy_(most.to(v.dtype).reshape(own.shape))
        else:
            here: tuple[Any, ...] = (slice(None), *self.place)
            own[here] = 1
        return v


# Of one piece: what compiles and exports finds no tensor in it.
pytree.register_pytree_node(Unit, lambda u: ([], u), lambda _, u: u)


def unit(
    layer: str, channel: int | Sequence[int], place: int | Sequence[int] | Literal["max"] | None = None,
    axis: int | None = None,
) -> Unit:  # fmt: skip
    """Explain the activation of one unit of an inner layer, as a target: what did it respond to?

    layer     module path or node name, as for `Explanation.at`; a ReLU's path explains its output, a
              convolution's path its output before the ReLU
    channel   its number, from 0 on; or several: a map for each
    place     None: its activation is summed over all places; "max": where it is most active; or a position:
              (row, column) in pictures, a number in signals and tokens
    axis      the channel axis of the layer's output if it is not 1: 2 for (samples, tokens,
              features), 3 for (samples, rows, columns, channels)

    >>> unit("features.3", 5)
    Unit(layer='features.3', channel=5, place=None, axis=None)
    """
    if not isinstance(layer, str):
        raise TargetError(f"A layer is given by its name, such as 'features.3'; got {type(layer).__name__}.")
    channels = _is_integer_place(channel, "channel")
    if place is None or isinstance(place, str):
        if place not in (None, _MOST):
            raise TargetError(
                f"The place of a unit must be None, 'max' or numbers such as (row, column); got {place!r}."
            )
        return Unit(layer, channels, place, axis)
    where = _is_integer_place(place, "place")
    return Unit(layer, channels, where if isinstance(where, tuple) else (where,), axis)


def _is_integer_place(value: Any, name: str) -> int | tuple[int, ...]:
    """Return True for a whole number, or several."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        value = value.tolist()
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not several or not all(isinstance(v, int) and not isinstance(v, bool) for v in several):
        raise TargetError(f"The {name} of a unit must be a whole number, or several; got {value!r}.")
    return tuple(several)


def find_channel_axis(layer: str, shape: Sequence[int], axis: int | None) -> int:
    """Return the channel axis of a layer's output; `shape`: including the batch axis."""
    if len(shape) < 2:
        raise TargetError(f"The layer {layer!r} gives one number per sample and has no channels: name another layer.")
    if axis is None:
        if len(shape) == 3:
            raise TargetError(
                f"Each sample of the layer {layer!r} has the shape {tuple(shape[1:])}: give axis=1 if the "
                "channels are along the first of these axes (signals), or axis=2 if along the second "
                "(features of tokens)."
            )
        return 1
    if axis not in range(1, len(shape)) and axis not in range(1 - len(shape), 0):
        raise TargetError(
            f"axis={axis!r}: the channel axis of {layer!r} must be 1 to {len(shape) - 1}; axis 0 holds the samples."
        )
    return axis % len(shape)


def check_channel(layer: str, channel: int, channels: int) -> None:
    """Raise TargetError for a channel that does not exist."""
    if not 0 <= channel < channels:
        raise TargetError(
            f"The channel {channel} is out of range: the layer {layer!r} has {channels} channels, 0 to {channels - 1}."
        )
