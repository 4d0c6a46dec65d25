"""Questions that captum answers: Shapley values of any function, and the training examples behind a decision.

shapley    captum's ShapleyValues or ShapleyValueSampling, as a comparison of two scores with its ledger
examples   captum's TracInCPFast with one checkpoint, the network as it is

captum comes with the extra `evaluation`. docs/howto/examples.md says what the answers mean.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from deeptaylor.between import Between, BetweenLedger
from deeptaylor.errors import BoundaryError, InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.modes import eval_mode
from deeptaylor.support.optional import optional_package

__all__ = ["Examples", "examples", "shapley"]

_MOST_EXACT = 9  # values of a sample, of which all orders may be tried


def shapley(
    f: Callable[[Any], Any], x: Any, reference: Any, target: int | None = None, *,
    orders: int = 32, seed: int = 0, batch: int = 4096,
) -> Between:  # fmt: skip
    """Return the Shapley values of any function, computed by captum: Σ R = f(x) − f(reference).

    Values are switched from the reference's to those of x, one after another, and each gets the change that it causes.
    The answer is the mean over random orders. It is exact if x has so few values that `orders` allows all of their
    orders (4 values have 24). f is called with orders × values + 1 points per sample. This suits tables and functions
    without gradients; for a network, `Explainer.between` costs three passes.

    f           takes points like x, (n, …), of the type of x (array, tensor or data frame), and returns n numbers,
                or n rows
    x           the samples, (samples, …); of a data frame the columns keep their names
    reference   one sample, or one for each
    target      index into a row of outputs; None: the largest output at x
    orders      how many orders are drawn
    seed        the same orders every time
    batch       the largest number of points in one call of f

    It raises InputError for inputs that are not finite numbers, and MissingPackageError without captum.

    >>> import numpy as np, deeptaylor as dt
    >>> b = dt.shapley(lambda rows: rows[:, 0] * rows[:, 1] + rows[:, 2], np.array([[2.0, 3.0, 1.0]]), np.zeros(3))
    >>> b.relevance
    tensor([[3., 3., 1.]])
    """
    if orders < 1:
        raise InputError(f"orders={orders}: at least one order is needed.")
    captum = optional_package("captum.attr", "Shapley values are computed by captum", "evaluation")
    at, start = _as_points(x, "x"), _as_points(reference, "the reference")
    if at.ndim < 2 or not len(at):
        raise InputError(f"x must hold samples along its first axis, (samples, values); got shape {tuple(at.shape)}.")
    if start.shape not in (at.shape, at.shape[1:]):
        raise InputError(
            f"The reference has shape {tuple(start.shape)}; x has {tuple(at.shape)}. Give the shape of "
            "x, or of one sample."
        )
    start = start.to(at).expand_as(at)
    evaluate = _evaluate_rows(f, x)
    values = at[0].numel()
    is_exact = values <= _MOST_EXACT and math.factorial(values) <= orders
    method = (captum.ShapleyValues if is_exact else captum.ShapleyValueSampling)(
        lambda points, columns: evaluate(points).gather(1, columns[:, None])[:, 0]
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        outputs = evaluate(at)
        columns = _choose_columns(outputs, target)
        relevance: Tensor = method.attribute(
            at,
            baselines=start,
            additional_forward_args=columns,
            perturbations_per_eval=max(1, min(values, batch // len(at))),
            **({} if is_exact else {"n_samples": orders}),
        )
        f_x, f_0 = (out.gather(1, columns[:, None])[:, 0] for out in (outputs, evaluate(start)))
    score, reference_score = f_x.to(relevance), f_0.to(relevance)
    signs = [(s * relevance).clamp(min=0).flatten(1).sum(1) for s in (1, -1)]
    counted = math.factorial(values) if is_exact else orders
    note = f"Shapley values by captum, the mean over {'all ' * is_exact}{counted} orders of the values."
    return Between(
        relevance=relevance, score=score, ledger=BetweenLedger.from_scores(score, reference_score, *signs),
        target=target if target is not None else columns, notes=(note,), source=_raise_for_inner_node,
        method="Shapley values", reference_score=reference_score,
        feature_names=tuple(map(str, getattr(x, "columns", ()))),
    )  # fmt: skip


def _raise_for_inner_node(name: str) -> Tensor:
    raise BoundaryError(f"Shapley values only call the function: there is no relevance at {name!r} inside it.")


def _as_points(values: Any, what: str) -> Tensor:
    """Return finite floating-point numbers as a tensor; raise if they are anything else."""
    try:
        points = torch.as_tensor(np.array(values)) if not isinstance(values, Tensor) else values.detach()
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} holds something other than numbers: {error}") from error
    if not points.is_floating_point():
        points = points.to(torch.float64)
    if not bool(torch.isfinite(points).all()):
        raise InputError(f"{what} has values that are NaN or infinite.")
    return points


def _evaluate_rows(f: Callable[[Any], Any], x: Any) -> Callable[[Tensor], Tensor]:
    """Return f as a function from points (n, …) to rows (n, outputs) in float64; f receives points of the type of x."""

    def to_kind(points: Tensor) -> Any:
        if isinstance(x, Tensor):
            return points
        array = points.cpu().numpy()
        return type(x)(array, columns=x.columns) if hasattr(x, "columns") else array

    def evaluate(points: Tensor) -> Tensor:
        outputs = torch.as_tensor(np.asarray(f(to_kind(points))) if not isinstance(x, Tensor) else f(points))
        if outputs.ndim not in (1, 2) or len(outputs) != len(points):
            raise TargetError(
                f"f must return one number or one row per point: for {len(points)} points it returned shape "
                f"{tuple(outputs.shape)}."
            )
        return outputs.to(points.device, torch.float64).reshape(len(points), -1)

    return evaluate


def _choose_columns(outputs: Tensor, target: int | None) -> Tensor:
    """Return the index of the explained output for each sample."""
    if target is None:
        return outputs.argmax(1)
    if not -outputs.shape[1] <= target < outputs.shape[1]:
        raise TargetError(f"target={target}: f returns {outputs.shape[1]} number(s) per point.")
    return torch.full((len(outputs),), target % outputs.shape[1], device=outputs.device)


# --- training examples ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """The training examples that count most, by their positions in the data; one row for each explained input.

    proponents, opponents                 positions (B, k): the largest values first, and the smallest first
    proponent_values, opponent_values     dot products of two gradients of the loss
    targets                               (B,): the class (or, of a regression, the number) of each input
    """

    proponents: Tensor
    proponent_values: Tensor
    opponents: Tensor
    opponent_values: Tensor
    targets: Tensor

    def __str__(self) -> str:
        lines = []
        for k, target in enumerate(self.targets.tolist()):
            raising, lowering = (
                ", ".join(f"{n} ({v:.3g})" for n, v in zip(positions[k].tolist(), values[k].tolist(), strict=True))
                for positions, values in (
                    (self.opponents, self.opponent_values),
                    (self.proponents, self.proponent_values),
                )
            )
            lines += [
                f"input {k} (target {target:g}):",
                f"  a step of training on them lowers the loss most: {lowering}",
                f"  lowers it least, or raises it: {raising}",
            ]
        return "\n".join(lines)


def examples(explainer: Explainer, x: Any, training_data: Any, *, target: Any = None, k: int = 5) -> Examples:
    """Return the training examples that would change the loss of an input most, computed by captum's TracInCPFast.

    A value is the dot product of two gradients of the loss with respect to the last layer's weights, at the input and
    at the example. It estimates by how much a small training step on the example lowers the loss of the input. The
    network is not retrained, and earlier layers count only through their activations.

    x               inputs as for `explainer.explain`
    training_data   (inputs, labels) as two arrays or tensors, or a DataLoader of such batches for the network
    target          the class of each input: None for the predicted class, a class, a name, or one per input; for a
                    regression the true value
    k               how many examples of each sign

    The loss is the cross-entropy of classes, or the squared error of a network with one output. The network must end
    in nn.Linear, with nothing but a softmax after it; otherwise InputError is raised.

    >>> import torch, deeptaylor as dt
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> data = torch.rand(20, 2), torch.randint(2, (20,))
    >>> dt.examples(dt.Explainer(network), data[0][:3], data, k=4).proponents.shape
    torch.Size([3, 4])
    """
    if k < 1:
        raise InputError(f"k={k!r}: it must be a whole number, at least 1.")
    captum = optional_package("captum.influence", "Training examples are found by captum", "evaluation")
    inputs = _as_inputs(explainer, x)
    network: nn.Module = explainer.model
    with eval_mode(network):
        last = _LastLayer(copy.deepcopy(network))
        z = last.find_logits(inputs)
        has_classes = z.shape[1] > 1
        targets = _find_targets(explainer, z, target)
        loss = nn.CrossEntropyLoss(reduction="sum") if has_classes else _SquaredError(reduction="sum")
        tracin = captum.TracInCPFast(
            last, last.layer, _make_dataset(explainer, training_data, z), ["now"], lambda *_: 1.0, loss, batch_size=64
        )
        batch = (*inputs, targets)
        most, least = (tracin.influence(batch, k=k, proponents=sign) for sign in (True, False))
    return Examples(most.indices, most.influence_scores, least.indices, least.influence_scores, targets)


class _LastLayer(nn.Module):
    """A network up to the output of its last linear layer, before a softmax; it keeps a hook on that layer."""

    layer: nn.Linear

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._calls: list[tuple[nn.Linear, Tensor]] = []
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._record)

    def _record(self, layer: nn.Linear, _inputs: Any, output: Tensor) -> None:
        self._calls.append((layer, output))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits."""
        self._calls.clear()
        self.network(*inputs)
        return self._calls[-1][1]

    def find_logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """Find the last linear layer and return its output; raise if it does not give the network's output."""
        self._calls.clear()
        with torch.no_grad():
            output = self.network(*inputs)
        output = getattr(output, "logits", output)
        if not self._calls or not isinstance(output, Tensor) or not _is_output(output, self._calls[-1][1]):
            raise InputError(
                "Training examples are found through the last layer. It must be nn.Linear and give the network's "
                "output, with nothing but a softmax after it."
            )
        self.layer, logits = self._calls[-1]
        return logits


class _SquaredError(nn.MSELoss):
    """The squared error of outputs (B, 1) against targets (B,)."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002  as in torch
        return super().forward(input[:, 0], target.to(input))


def _is_output(output: Tensor, z: Tensor) -> bool:
    """Return whether an output is z, or a softmax of it."""
    if z.ndim != 2 or output.numel() != z.numel():
        return False
    flat = output.reshape(z.shape)
    return any(torch.allclose(flat, t, rtol=1e-4, atol=1e-6) for t in (z, z.softmax(1), z.log_softmax(1)))


def _as_inputs(explainer: Explainer, x: Any) -> tuple[Tensor, ...]:
    """Convert inputs to the network's arguments."""
    inputs = explainer.captured.read(x)[0]
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _find_targets(explainer: Explainer, z: Tensor, target: Any) -> Tensor:
    """Return one class per input; for a network with one output, the true values."""
    has_classes = z.shape[1] > 1
    if target is None:
        return z.argmax(1) if has_classes else z[:, 0]
    if isinstance(target, (list, tuple)):
        target = [explainer.target_reader.read(t, z) for t in target]
    labels = torch.as_tensor(target if isinstance(target, list) else explainer.target_reader.read(target, z))
    return _check_labels(labels.expand(len(z)) if labels.ndim == 0 else labels, z, len(z), "target")


def _check_labels(labels: Tensor, z: Tensor, count: int, what: str) -> Tensor:
    """Convert labels for the loss; raise InputError if they do not fit the inputs or the classes."""
    labels = labels.reshape(-1).to(z.device, torch.long if z.shape[1] > 1 else z.dtype)
    if len(labels) != count:
        raise InputError(f"There is one {what} for each input: {count} inputs, {len(labels)} {what}s.")
    if z.shape[1] > 1 and not bool(((labels >= 0) & (labels < z.shape[1])).all()):
        raise InputError(f"A {what} is out of range: the network has {z.shape[1]} classes, from 0 on.")
    return labels


def _make_dataset(explainer: Explainer, data: Any, z: Tensor) -> Any:
    """Convert training data to a dataset for captum."""
    if isinstance(data, DataLoader):
        return data
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not all(hasattr(part, "__len__") for part in data):
        raise InputError(
            f"training_data must be (inputs, labels), or a DataLoader of such batches; got {type(data).__name__}."
        )
    if not len(data[0]):
        raise InputError("The training data is empty.")
    inputs = _as_inputs(explainer, data[0])
    return TensorDataset(*inputs, _check_labels(torch.as_tensor(data[1]), z, len(inputs[0]), "label"))
