"""Delete regions of inputs in the order of a map and measure how the network's output changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.engine.contrast import names_classes
from deeptaylor.errors import InputError
from deeptaylor.graph.modes import eval_mode
from deeptaylor.support.class_names import is_distribution

__all__ = [
    "BATCH",
    "FILLS",
    "Case",
    "ChannelsFirst",
    "Deletion",
    "Fill",
    "Flipping",
    "Insertion",
    "Maps",
    "Measurement",
    "Metric",
    "Regions",
    "cut_patches",
    "cut_pixels",
    "cut_regions",
    "find_fill",
    "flatten_map",
    "gives_probabilities",
    "list_further_maps",
    "measure_flipping_area",
    "run_answers",
    "run_flipped",
    "run_verdicts",
]

Maps = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (network, x, classes) → relevance
BATCH = 64  # inputs in one forward pass


@dataclass(frozen=True)
class Case:
    """Inputs and the classes that are explained, with everything else that metrics need."""

    network: nn.Module
    x: Tensor
    classes: Tensor
    inside: Tensor | None = None  # the true evidence: (B, height, width), True inside
    groups: Tensor | None = None  # samples that belong together, such as the four maps of a mosaic
    softmax: bool = True  # True: outputs are turned into probabilities by softmax; False: they are used as they are
    batch: int = BATCH
    seed: int = 0
    compiled: Callable[[Tensor], Tensor] | None = None  # the same network, compiled; it only gets full batches


@dataclass(frozen=True)
class Measurement:
    """One value per sample; and curves by name, one row per sample, with the abscissas ``at``."""

    values: Tensor
    curves: Mapping[str, Tensor] = field(default_factory=dict)
    at: tuple[float, ...] = ()


class Metric(Protocol):
    """A metric of maps."""

    @property
    def name(self) -> str:
        """The name of the metric."""
        ...

    @property
    def about(self) -> str:
        """What it measures, in one phrase."""
        ...

    @property
    def higher(self) -> bool | None:
        """True if higher is better, False if lower is; None if neither is."""
        ...

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        """Measure maps R (B, …) without channels; ``method`` computes maps of further inputs."""
        ...


def flatten_map(R: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return maps summed over channels, in float32 or wider, and True for those that are finite; others are zeros.

    Samples with two axes, such as grey pictures, have no channels: their maps are returned as they are.
    """
    given = tuple(R.shape)
    if R.shape == x.shape and x.ndim > 3:
        R = R.sum(dim=1)
    without = (x.shape[0], *x.shape[2:])
    if R.shape not in ((x.shape,) if x.ndim == 2 else (x.shape, without) if x.ndim == 3 else (without,)):
        expected = f"{tuple(x.shape)} or {without}" if x.ndim > 2 else f"{tuple(x.shape)}"
        raise InputError(f"the method's maps have shape {given}; expected {expected}")
    R = R.detach().to(torch.promote_types(R.dtype, torch.float32))
    finite = R.flatten(1).isfinite().all(dim=1)
    return torch.where(finite.reshape(-1, *[1] * (R.ndim - 1)), R, 0), finite


def list_further_maps(case: Case, method: Maps, network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """Return a method's maps of further inputs, without channels; NaN for maps that are not finite.

    They are computed in batches of the case's size, which the method was able to explain before.
    """
    found = []
    for part, of in zip(x.split(len(case.x)), classes.split(len(case.x)), strict=True):
        R, finite = flatten_map(method(network, part, of), part)
        found.append(torch.where(finite.reshape(-1, *[1] * (R.ndim - 1)), R, torch.nan))
    return torch.cat(found)


def run_answers(case: Case, count: int, inputs: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """Return the network's output for one class of each of ``count`` inputs.

    inputs   returns the inputs with given numbers, and their classes
    """
    return run_verdicts(case, count, inputs)[0]


def run_verdicts(case: Case, count: int, inputs: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the network's output for one class of each of ``count`` inputs, and True where it is the top class.

    Inputs are made and run ``case.batch`` at a time, across samples and steps.
    """
    found, first = [], []
    with torch.no_grad():
        for numbers in torch.arange(count, device=case.x.device).split(case.batch):
            x, classes = inputs(numbers)
            out = _run_network(case, x).reshape(len(x), -1)
            out = out.softmax(dim=1) if case.softmax else out
            found.append(out.gather(1, classes[:, None])[:, 0])
            first.append(out.argmax(dim=1) == classes)
    return torch.cat(found), torch.cat(first)


def _run_network(case: Case, x: Tensor) -> Tensor:
    """Return the network's output; on a GPU with channels-last inputs, for which convolutions are fastest."""
    if x.ndim == 4 and x.is_cuda:
        x = x.contiguous(memory_format=torch.channels_last)
    if case.compiled is None:
        out: Tensor = case.network(x)
        return out
    missing = case.batch - len(x)
    whole = torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) if missing else x
    return case.compiled(whole)[: len(x)]


def gives_probabilities(network: nn.Module, x: Tensor) -> bool:
    """Return True if the network's outputs are non-negative and sum to one, as after a softmax."""
    with torch.no_grad():
        return is_distribution(network(x))


# --- fills: values that replace deleted regions; no fill is neutral, so use several ---

Fill = Callable[[Tensor], Tensor]  # a batch of inputs → values that replace them, in the same shape
SIGMA = 12.0  # of the blur, in pixels of a picture of 224


def blur(x: Tensor) -> Tensor:
    """Blur each picture by a Gaussian; beyond its edges it is continued by its edge pixels."""
    if x.ndim != 4:
        raise InputError(f"Only pictures can be blurred, not inputs of shape {tuple(x.shape[1:])}; use mean or zero.")
    sigma = SIGMA * min(x.shape[2:]) / 224
    reach = max(1, round(3 * sigma))
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype) / sigma).square())
    bell = bell / bell.sum()
    channels = x.shape[1]
    x = F.pad(x, (reach, reach, reach, reach), mode="replicate")
    x = F.conv2d(x, bell.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(x, bell.reshape(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def mean(x: Tensor) -> Tensor:
    """Return pictures filled with the mean of each channel."""
    return x.mean(dim=tuple(range(2, x.ndim)), keepdim=True).expand_as(x) if x.ndim > 2 else torch.zeros_like(x)


FILLS: Mapping[str, Fill] = {"blur": blur, "mean": mean, "zero": torch.zeros_like}


def find_fill(named: str | Fill) -> Fill:
    """Return the fill of this name, or the user's own function; raise InputError for an unknown name."""
    if callable(named):
        return named
    if named not in FILLS:
        raise InputError(f"There is no fill called {named!r}; use {', '.join(FILLS)}, or a function of a batch.")
    return FILLS[named]


# --- regions: patches of a picture, single pixels, or tokens ---

_ACROSS = 14


@dataclass(frozen=True)
class Regions:
    """A division of a map into regions: ``labels`` is the number of each place's region, in the shape of the map."""

    labels: Tensor
    count: int

    def sums(self, R: Tensor) -> Tensor:
        """Return the relevance of each region: (B, count) from maps (B, …)."""
        labels = self.labels.to(R.device).flatten().expand(len(R), -1)
        return R.new_zeros(len(R), self.count).scatter_add_(1, labels, R.flatten(1))

    def ranks(self, R: Tensor, seed: int = 0) -> Tensor:
        """Return the rank of each region by relevance, 0 for the most relevant; ties are broken at random."""
        lot = torch.randperm(self.count, generator=torch.Generator().manual_seed(seed)).to(R.device)
        order = lot[self.sums(R)[:, lot].argsort(dim=1, descending=True, stable=True)]
        places = torch.arange(self.count, device=R.device).expand_as(order)
        return torch.empty_like(order).scatter_(1, order, places)

    def spread(self, values: Tensor) -> Tensor:
        """Expand one value per region (B, count) to one value per pixel (B, …)."""
        return values[:, self.labels.to(values.device).flatten()].reshape(-1, *self.labels.shape)


def cut_regions(shape: Sequence[int], patch: int | None) -> Regions:
    """Cut a map into regions: patches with this side, pixels (0), or fourteen patches along the shorter side (None).

    >>> cut_regions((224, 280), None).count == cut_patches((224, 280), 16).count
    True
    """
    if patch is None:
        patch = max(1, round(min(shape) / _ACROSS)) if len(shape) == 2 else 0
    return cut_patches(shape, patch) if patch else cut_pixels(shape)


def cut_patches(shape: Sequence[int], size: int) -> Regions:
    """Return squares of ``size`` pixels over a picture (height, width); those at the far edges may be smaller.

    >>> cut_patches((4, 6), 2).count
    6
    """
    if len(shape) != 2 or not 0 < size <= min(shape):
        raise InputError(
            f"Patches of {size} pixels need pictures (height, width) of at least that size; got the "
            f"shape {tuple(shape)}."
        )
    rows, columns = (torch.arange(n) // size for n in shape)
    across = int(columns[-1]) + 1
    return Regions(rows[:, None] * across + columns, (int(rows[-1]) + 1) * across)


def cut_pixels(shape: Sequence[int]) -> Regions:
    """Return one region per element of a map: pixels, or the tokens of a text."""
    count = torch.Size(shape).numel()
    return Regions(torch.arange(count).reshape(tuple(shape)), count)


# --- flipping: delete the most relevant regions first, and the least relevant first ---

# The shares of regions that are deleted at each step; 196 is the number of patches of a picture.
SHARES = tuple(n / 196 for n in (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 196))


def run_flipped(case: Case, ranks: Tensor, regions: Regions, fills: Tensor, gone: Sequence[int]) -> Tensor:
    """Return the network's outputs (orders · B, steps) while regions are replaced by fills in the order of ``ranks``.

    ranks   (orders · B, regions): one or several orders of the samples, one after the other
    gone    how many regions are replaced at each step
    """
    steps = torch.tensor(tuple(gone), device=case.x.device)

    def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
        row, step = numbers // len(steps), numbers % len(steps)
        sample = row % len(case.x)
        away = regions.spread(ranks[row] < steps[step, None])
        away = away.unsqueeze(1) if case.x.ndim > away.ndim else away
        return torch.where(away, fills[sample], case.x[sample]), case.classes[sample]

    return run_answers(case, len(ranks) * len(steps), inputs).reshape(-1, len(steps))


@dataclass(frozen=True)
class Flipping:
    """The area between two curves: while the least relevant regions are deleted, and the most relevant."""

    patch: int | None = None  # the side of patches; 0: single pixels or tokens; None: about fourteen along a side
    fill: str | Fill = "blur"
    shares: tuple[float, ...] = SHARES

    name = "flipping"
    about = (
        "mean probability of the class while the least relevant regions are taken away, minus the same for the most "
        "relevant; a random map scores 0"
    )
    higher = True

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= s <= 1 for s in self.shares) or list(self.shares) != sorted(self.shares):
            raise InputError(f"shares must be increasing fractions of all regions, from 0 to 1; got {self.shares}.")
        find_fill(self.fill)  # raises for an unknown name before any work

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measurement:
        most, least = self.curves(case, R, -R)
        return Measurement((least - most).mean(dim=1), {"most first": most, "least first": least}, self.shares)

    def curves(self, case: Case, *maps: Tensor) -> tuple[Tensor, ...]:
        """Return for each map the outputs (B, steps) while its most relevant regions are deleted first."""
        regions = cut_regions(maps[0].shape[1:], self.patch)
        gone = [round(share * regions.count) for share in self.shares]
        ranks = torch.cat([regions.ranks(R, case.seed) for R in maps])
        return tuple(run_flipped(case, ranks, regions, find_fill(self.fill)(case.x), gone).split(len(case.x)))

    def curve(self, case: Case, R: Tensor) -> Tensor:
        """Return the outputs (B, steps) while the most relevant regions of R are deleted first."""
        return self.curves(case, R)[0]


@dataclass(frozen=True)
class Deletion(Flipping):
    """The mean probability while the most relevant regions are deleted."""

    name = "deletion"
    about = "mean probability of the class while the most relevant regions are taken away: low is good"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measurement:
        most = self.curve(case, R)
        return Measurement(most.mean(dim=1), {"most first": most}, self.shares)


@dataclass(frozen=True)
class Insertion(Flipping):
    """The mean probability while the most relevant regions are put back into a filled input."""

    name = "insertion"
    about = "mean probability of the class while the most relevant regions are put back, one by one: high is good"

    def measure(self, case: Case, R: Tensor, method: Maps | None = None) -> Measurement:
        least = self.curve(case, -R)
        back = tuple(1 - share for share in reversed(self.shares))
        return Measurement(least.mean(dim=1), {"put back": least.flip(1)}, back)


# --- one number for an explanation ------------------------------------------------------------------------------------


class ChannelsFirst(nn.Module):
    """A network for inputs whose channel axis was moved to 1, or was added.

    axis   the channel axis of the network's own inputs; () if they have none
    """

    def __init__(self, model: nn.Module, axis: int | tuple[()]) -> None:
        super().__init__()
        self.model, self.axis = model, axis

    def rearrange(self, x: Tensor) -> Tensor:
        """Return inputs of the network in the shape that this one takes."""
        return x.movedim(self.axis, 1) if isinstance(self.axis, int) else x.unsqueeze(1)

    def forward(self, x: Tensor) -> Any:
        """Return the network's output for rearranged inputs."""
        return self.model(x.movedim(1, self.axis) if isinstance(self.axis, int) else x.squeeze(1))


def measure_flipping_area(
    model: nn.Module, inputs: tuple[Tensor, ...], target: Any, R: Tensor, axis: int | tuple[()] | None = None
) -> Tensor:
    """Return the flipping area (see `Flipping`) for maps R (B, …) of one class per sample.

    axis   the channel axis of the input, over which R was summed; () if it has none
    """
    if axis not in (None, 1) and len(inputs) == 1 and inputs[0].ndim > 2:
        assert axis is not None
        moved = ChannelsFirst(model, axis)
        return measure_flipping_area(moved, (moved.rearrange(inputs[0]),), target, R)
    x = inputs[0]
    several = isinstance(target, Tensor) and target.ndim > 1
    if len(inputs) > 1 or several or (target is not None and not names_classes(target)):
        raise InputError("Flipping measures maps of one class of one input: explain(x, c), with a class as the target.")
    with eval_mode(model), torch.no_grad():
        output = model(x)
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] < 2:
            raise InputError("Flipping needs the probability of a class: an output of shape (batch, classes ≥ 2).")
        classes = output.argmax(1) if target is None else torch.as_tensor(target, device=x.device).expand(len(x))
        case = Case(model, x, classes.long(), softmax=not gives_probabilities(model, x))
        return (
            Flipping(fill="blur" if R.ndim == 3 else "mean")
            .measure(case, R.to(torch.promote_types(R.dtype, torch.float32)))
            .values
        )
