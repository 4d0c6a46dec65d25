"""Which training examples an answer rests on, as far as the last layer tells: z = W h + b (docs/howto/examples.md).

by="gradients"   (r_x · r_t)(h_x · h_t), where r is ∂loss/∂z: the dot product of the two gradients of the loss with
                 respect to W, in closed form, for ∂loss/∂W = r hᵀ (TracIn with one checkpoint, of the last layer)
by="relevance"   Σ_c min(e_c(x), e_c(t)) / Σ_c e_c(x), where e_c = max(0, w_c h_c) is what unit c says for the class:
                 the relevance that x has in common with t, as a part of all that x has there
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.run.inputs import check_choice

__all__ = ["Examples", "examples"]

By = Literal["gradients", "relevance"]
_BATCH = 64  # training examples at once, where they come as one array


@dataclass(frozen=True)
class Examples:
    """The training examples that count most, by their numbers in the data; a row for each input that was asked about.

    proponents, opponents                 numbers (B, k): the largest values first, and the smallest first
    proponent_values, opponent_values     what each counts; by="relevance" knows no opponents, and they are empty
    targets                               (B,): the class (or, of a regression, the number) that was asked about
    """

    proponents: Tensor
    proponent_values: Tensor
    opponents: Tensor
    opponent_values: Tensor
    targets: Tensor
    by: By
    seen: int  # how many training examples there were

    def __str__(self) -> str:
        lines = []
        for k in range(len(self.proponents)):
            lines.append(f"input {k} (target {self.targets[k].item():g}), of {self.seen} training examples:")
            lines.append(f"  {self._words[0]} {_list(self.proponents[k], self.proponent_values[k], self.by)}")
            if self.opponents.shape[1]:
                lines.append(f"  {self._words[1]} {_list(self.opponents[k], self.opponent_values[k], self.by)}")
        return "\n".join(lines)

    @property
    def _words(self) -> tuple[str, str]:
        if self.by == "relevance":
            return "most in common:", ""
        return "a step of training on them lowers the loss most:", "lowers it least, or raises it:"


def _list(numbers: Tensor, values: Tensor, by: By) -> str:
    shown = [f"{100 * v:.1f} %" if by == "relevance" else f"{v:.3g}" for v in values.tolist()]
    return ", ".join(f"{n} ({v})" for n, v in zip(numbers.tolist(), shown, strict=True))


def examples(
    explainer: Explainer, x: Any, training_data: Any, *, by: By = "gradients", target: Any = None, k: int = 5
) -> Examples:
    """The training examples that an answer rests on, as far as the network's last layer tells, which must be linear.

    x               inputs as for `explainer.explain`
    training_data   (inputs, labels) as two arrays or tensors, or any iterable of such batches, as a DataLoader is;
                    for by="relevance" batches may come without labels. It is read once, batch by batch
    by              "gradients": by how much a small step of training on the example would lower (or raise) the loss of
                    x through the last layer's weights; the cross-entropy of classes, half the squared error of one
                    number. "relevance": the share of what the last layer holds for the class of x that the example
                    holds as well, unit by unit
    target          the class of each input: None for the network's answer, a class, a name, or one per input; of a
                    regression the right number, None for the network's own, which has no error and so no gradient
    k               how many of each

    It looks at the network as it is and trains nothing anew: it does not tell what the network would be without an
    example, as influence functions estimate.

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> data = torch.rand(20, 2), torch.randint(2, (20,))
    >>> dt.examples(dt.Explainer(network), data[0][:3], data, k=4).proponents.shape
    torch.Size([3, 4])
    """
    check_choice("by", by, ("gradients", "relevance"))
    if k < 1:
        raise InputError(f"k={k!r}: a whole number, at least 1.")
    last = _LastLayer(explainer)
    asked = last.at(explainer.read(x)[0])
    targets = _targets(explainer, asked, target)
    measure: _Gradients | _Relevance = (_Gradients if by == "gradients" else _Relevance)(asked, targets)
    best, worst, seen = _Best(k, largest=True), _Best(k, largest=False), 0
    for inputs, labels in _batches(training_data):
        there = last.at(explainer.read(inputs)[0])
        values = measure(there, labels)
        best.add(values, seen)
        worst.add(values, seen)
        seen += len(there.h)
    if not seen:
        raise InputError("The training data is empty.")
    most = best.found
    least = worst.found if by == "gradients" else (most[0][:, :0], most[1][:, :0])
    return Examples(*most, *least, targets, by, seen)


# --- the last layer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """What the last layer reads and says: h (B, units), its weights (classes, units), z (B, classes)."""

    h: Tensor
    W: Tensor
    z: Tensor


class _Watched(TorchFunctionMode):
    """Sees the linear layers that a network calls, without a hook or any other change to it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: _Read | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is F.linear and out.ndim == 2:
            self.last = _Read(args[0], args[1], out)
        return out


class _LastLayer:
    def __init__(self, explainer: Explainer) -> None:
        self.model: nn.Module = explainer.model

    def at(self, inputs: Any) -> _Read:
        """What the last layer reads and says of some inputs; refused where it is not linear."""
        with eval_mode(self.model), torch.no_grad(), _Watched() as watched:
            output = self.model(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        output = getattr(output, "logits", output)
        last: _Read | None = watched.last
        if last is None or not isinstance(output, Tensor) or not _says(output, last.z):
            raise InputError(
                "The training examples are told by the last layer, which must be linear (nn.Linear) and give the "
                "network's output, with nothing but a softmax after it; in this network it is not."
            )
        return last


def _says(output: Tensor, z: Tensor) -> bool:
    """True if an output is z, or a softmax of it."""
    if output.numel() != z.numel():
        return False
    flat = output.reshape(z.shape)
    return any(torch.allclose(flat, t, rtol=1e-4, atol=1e-6) for t in (z, z.softmax(1), z.log_softmax(1)))


def _targets(explainer: Explainer, asked: _Read, target: Any) -> Tensor:
    """One class an input, or of one output the number that is right."""
    classes = asked.z.shape[1] > 1
    if target is None:
        return asked.z.argmax(1) if classes else asked.z[:, 0]
    if isinstance(target, (list, tuple)):  # of `explain`, several classes of every input; here one for each
        target = [explainer.asked_for(t, asked.z) for t in target]
    given = torch.as_tensor(target if isinstance(target, list) else explainer.asked_for(target, asked.z))
    given = given.to(asked.z.device, torch.long if classes else asked.z.dtype)
    return given.expand(len(asked.z)) if given.ndim == 0 else _checked(given, asked, "target")


def _checked(labels: Tensor, there: _Read, what: str) -> Tensor:
    labels = labels.reshape(-1)
    if len(labels) != len(there.z):
        raise InputError(f"There is one {what} for each input: {len(there.z)} inputs, {len(labels)} {what}s.")
    if there.z.shape[1] > 1 and not bool(((labels >= 0) & (labels < there.z.shape[1])).all()):
        raise InputError(f"A {what} is out of range: the network has {there.z.shape[1]} classes, from 0 on.")
    return labels


# --- the two measures -------------------------------------------------------------------------------------------------


class _Gradients:
    """(r_x · r_t)(h_x · h_t): the dot product of ∂loss/∂W at x and at t."""

    def __init__(self, asked: _Read, targets: Tensor) -> None:
        self.h, self.r = asked.h, _residual(asked, targets)

    def __call__(self, there: _Read, labels: Any) -> Tensor:
        if labels is None:
            raise InputError('by="gradients" needs the labels of the training data: batches of (inputs, labels).')
        given = torch.as_tensor(labels).to(there.z.device)
        r = _residual(there, _checked(given, there, "label"))
        return (self.r @ r.T) * (self.h @ there.h.T)


def _residual(there: _Read, labels: Tensor) -> Tensor:
    """∂loss/∂z: of the cross-entropy softmax(z) − the class; of half the squared error z − the number."""
    if there.z.shape[1] == 1:
        return there.z - labels.to(there.z.dtype)[:, None]
    return there.z.softmax(1) - F.one_hot(labels.long(), there.z.shape[1]).to(there.z.dtype)


class _Relevance:
    """Σ_c min(e_c(x), e_c(t)) / Σ_c e_c(x), with e_c = max(0, w_c h_c) for the class of x."""

    def __init__(self, asked: _Read, targets: Tensor) -> None:
        one = asked.z.shape[1] == 1
        self.w = asked.W[torch.zeros_like(targets).long() if one else targets]
        self.e = (self.w * asked.h).clamp(min=0)

    def __call__(self, there: _Read, labels: Any) -> Tensor:
        whole = self.e.sum(1)
        rows = [torch.minimum(e, w * there.h).clamp(min=0).sum(1) for e, w in zip(self.e, self.w, strict=True)]
        return torch.stack(rows) / torch.where(whole > 0, whole, 1)[:, None]


# --- streaming --------------------------------------------------------------------------------------------------------


class _Best:
    """The k largest (or smallest) values of each row that have passed by, with their numbers."""

    def __init__(self, k: int, largest: bool) -> None:
        self.k, self.largest = k, largest
        self.values: Tensor | None = None
        self.numbers: Tensor | None = None

    def add(self, values: Tensor, first: int) -> None:
        numbers = torch.arange(first, first + values.shape[1], device=values.device).expand_as(values)
        if self.values is not None and self.numbers is not None:
            values, numbers = torch.cat([self.values, values], 1), torch.cat([self.numbers, numbers], 1)
        order = values.sort(dim=1, descending=self.largest, stable=True).indices[:, : self.k]
        self.values, self.numbers = values.gather(1, order), numbers.gather(1, order)

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        """Numbers and values."""
        assert self.values is not None
        assert self.numbers is not None
        return self.numbers, self.values


def _batches(data: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and labels, batch by batch."""
    if isinstance(data, (tuple, list)) and len(data) == 2 and all(isinstance(t, (Tensor, np.ndarray)) for t in data):
        inputs, labels = data
        if len(inputs) != len(labels):
            raise InputError(f"The training data has {len(inputs)} inputs, but {len(labels)} labels.")
        starts = range(0, len(inputs), _BATCH)
        yield from ((inputs[s : s + _BATCH], labels[s : s + _BATCH]) for s in starts)
        return
    if isinstance(data, (Tensor, np.ndarray)):
        yield from ((data[s : s + _BATCH], None) for s in range(0, len(data), _BATCH))
        return
    if not isinstance(data, Iterable):
        raise InputError(
            "training_data is (inputs, labels), or an iterable of such batches, as torch's DataLoader is; got "
            f"{type(data).__name__}."
        )
    for batch in data:
        if isinstance(batch, Sequence) and len(batch) == 2:
            yield batch[0], batch[1]
        else:
            yield batch, None
