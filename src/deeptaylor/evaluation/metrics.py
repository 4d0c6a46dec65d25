"""The metrics of `dt.evaluate`, besides those of engine/deletion.py; METRICS at the end has all by name.

A metric has a name, a sentence about it, says whether more is better, and measures one value for each sample:
`measure(case, R, method)`. To add one, write a class like those below and add it to METRICS.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor.engine.deletion import (
    BATCH,
    Case,
    Deletion,
    Fill,
    Flipping,
    Insertion,
    Maps,
    Measurement,
    Metric,
    Regions,
    cut_pixels,
    cut_regions,
    find_fill,
    list_further_maps,
    run_answers,
    run_verdicts,
)
from deeptaylor.errors import InputError
from deeptaylor.support.statistics import scale, spearman, ssim

__all__ = [
    "METRICS",
    "BottomUp",
    "Complexity",
    "Continuity",
    "GridPointing",
    "How",
    "Inside",
    "LeaveOneOut",
    "MaxSensitivity",
    "RandomLogit",
    "RandomLogitSSIM",
    "Road",
    "TopDown",
    "add_noise",
    "complexity",
    "draw_other_class",
    "impute",
    "list_layers",
    "make_mosaics",
    "measure_drops",
    "randomise",
    "shift",
]


# --- leave one out ----------------------------------------------------------------------------------------------------
# Regions are taken away one at a time: does the relevance of a region say how much the answer falls?
# With pixels as regions and Pearson's correlation this is Quantus' FaithfulnessEstimate with one feature per step. With
# more features per step Quantus takes pixels of neighbouring ranks together: regions that the judged map itself
# chooses. Here regions are the same for every map.


def measure_drops(case: Case, regions: Regions, fills: Tensor) -> Tensor:
    """Return by how much the answer falls (B, regions) when each region alone is filled."""
    steps = regions.count + 1  # the last of a sample takes nothing away
    labels = regions.labels.to(case.x.device)

    def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
        sample, region = numbers // steps, numbers % steps
        away = labels == region.reshape(-1, *[1] * labels.ndim)
        away = away.unsqueeze(1) if case.x.ndim > away.ndim else away
        return torch.where(away, fills[sample], case.x[sample]), case.classes[sample]

    found = run_answers(case, len(case.x) * steps, inputs).unflatten(0, (-1, steps))
    fallen: Tensor = found[:, -1:] - found[:, :-1]
    return fallen


@dataclass(frozen=True)
class LeaveOneOut:
    """The correlation of relevance, region by region, with what the answer loses; ``by``: spearman or pearson."""

    patch: int | None = None  # as in flipping
    fill: str | Fill = "blur"
    by: Callable[[Tensor, Tensor], Tensor] = spearman

    name = "leave one out"
    about = (
        "rank correlation of a region's relevance with the fall of the probability when that region alone is taken "
        "away; a random map scores 0"
    )
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        regions = cut_regions(R.shape[1:], self.patch)
        return Measurement(self.by(regions.sums(R), measure_drops(case, regions, find_fill(self.fill)(case.x))))


# --- random logit -----------------------------------------------------------------------------------------------------
# Is the map of another class another map (Sixt et al., 2020)? A method that shows where there is something to see,
# whatever is asked, gives the same map for every class. Maps that are constant, such as those of a class with a
# negative score in deep Taylor decomposition, are not counted.
# Quantus 0.6 takes SSIM of maps laid out in one row, where pixels below each other are not neighbours, and scales maps
# by the largest value of the whole batch. Here SSIM is of pictures, each scaled by its own.


def draw_other_class(case: Case) -> Tensor:
    """Return a class for each sample that is not its own, drawn at random."""
    with torch.no_grad():
        classes = case.network(case.x[:1]).shape[1]
    lot = torch.Generator().manual_seed(case.seed)
    ahead = torch.randint(1, classes, (len(case.x),), generator=lot).to(case.classes)
    others: Tensor = (case.classes + ahead) % classes
    return others


@dataclass(frozen=True)
class RandomLogit:
    """How alike the maps of the class and of another are; ``by`` compares maps (B, …) scaled to 1, pair by pair."""

    by: Callable[[Tensor, Tensor], Tensor] = spearman

    name = "random logit"
    about = "rank correlation of the map with that of a random other class: 1 if the map does not depend on the class"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        return Measurement(self.likeness(case, R, method, draw_other_class(case)))

    def likeness(self, case: Case, R: Tensor, method: Maps, others: Tensor) -> Tensor:
        """Return how alike the maps are to those of these other classes; NaN if one of the two is constant."""
        S = list_further_maps(case, method, case.network, case.x, others)
        constant = [maps.flatten(1).amin(dim=1) == maps.flatten(1).amax(dim=1) for maps in (R, S)]
        return torch.where(constant[0] | constant[1], torch.nan, self.by(scale(R), scale(S)))


@dataclass(frozen=True)
class RandomLogitSSIM(RandomLogit):
    """The same by structural similarity."""

    by: Callable[[Tensor, Tensor], Tensor] = ssim

    name = "random logit ssim"
    about = "structural similarity to the map of a random other class: 1 if the map does not depend on the class"


# --- pointing ---------------------------------------------------------------------------------------------------------
# Four pictures of four classes in one mosaic: does the map of a class lie in its own cell? A random map has
# a quarter of its positive relevance there. The network was trained on single pictures, so only pictures that it
# classifies with confidence take part, and each class is explained at its own score.

SIDE = 2  # cells along a side
SURE = 0.8  # so probable must a picture's class be to take part


@dataclass(frozen=True)
class Inside:
    """The share of positive relevance where the truth lies: in a box, a mask, or a mosaic's cell."""

    name = "inside"
    about = "share of the positive relevance inside the box or mask; a random map scores the share of the area"
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        if case.inside is None:
            raise InputError(f"{self.name} needs the true regions: give masks, (samples, height, width)")
        positive = R.clamp(min=0).to(torch.float64).flatten(1)
        held, all_of_it = (positive * case.inside.to(R.device).flatten(1)).sum(1), positive.sum(1)
        return Measurement(torch.where(all_of_it > 0, held / all_of_it, torch.nan))


@dataclass(frozen=True)
class GridPointing(Inside):
    """The share of positive relevance in the class's own cell of a mosaic."""

    name = "grid pointing"
    about = "share of the positive relevance in the class's own cell of a mosaic of four; a random map scores .25"


def make_mosaics(
    network: nn.Module, x: Tensor, classes: Tensor, count: int, *,
    seed: int = 0, batch: int = BATCH, sure: float = SURE, softmax: bool = True,
) -> Case:  # fmt: skip
    """Return a case of ``count`` mosaics of 2 × 2 pictures of different classes; each class of each is explained."""
    if x.ndim != 4:
        raise InputError(f"Mosaics are made of pictures, not of inputs of shape {tuple(x.shape[1:])}.")
    known = find_confident(network, x, classes, batch, sure, softmax)
    by_class: dict[int, list[int]] = {}
    for index in known:
        by_class.setdefault(int(classes[index]), []).append(index)
    cells = SIDE * SIDE
    if len(by_class) < cells:
        raise InputError(
            f"Grid pointing needs pictures of at least {cells} classes that the network recognises (its first class, "
            f"with a probability of {sure:g} or more); of {len(x)} pictures {len(known)} are recognised, of "
            f"{len(by_class)} classes."
        )
    lot = random.Random(seed)  # noqa: S311  no secret
    chosen = [[lot.choice(by_class[c]) for c in lot.sample(sorted(by_class), cells)] for _ in range(count)]
    pictures = torch.stack([make_mosaic([x[i] for i in four]) for four in chosen])
    places = torch.stack([cell_mask(k, x.shape[2:]) for k in range(cells)])
    repeated = torch.arange(count).repeat_interleave(cells)
    return Case(
        network,
        pictures[repeated.to(x.device)],
        classes[torch.tensor(chosen, device=classes.device).flatten()],
        inside=places.repeat(count, 1, 1).to(x.device),
        groups=repeated,
        softmax=softmax,
        batch=batch,
        seed=seed,
    )


def find_confident(network: nn.Module, x: Tensor, classes: Tensor, batch: int, sure: float, softmax: bool) -> list[int]:
    """Return the pictures whose class is the network's first, with this probability or more."""
    with torch.no_grad():
        out = torch.cat([network(part).reshape(len(part), -1) for part in x.split(batch)])
    probability, first = (out.softmax(dim=1) if softmax else out).max(dim=1)
    return [int(k) for k in ((first == classes) & (probability >= sure)).nonzero().flatten()]


def make_mosaic(four: Sequence[Tensor]) -> Tensor:
    """Pictures (channels, height, width) row by row in one."""
    rows = [torch.cat(list(four[k : k + SIDE]), dim=2) for k in range(0, len(four), SIDE)]
    return torch.cat(rows, dim=1)


def cell_mask(number: int, sides: Sequence[int]) -> Tensor:
    """Return True inside one cell of a mosaic of pictures with these sides."""
    height, width = sides
    row, column = divmod(number, SIDE)
    inside = torch.zeros(SIDE * height, SIDE * width, dtype=torch.bool)
    inside[row * height : (row + 1) * height, column * width : (column + 1) * width] = True
    return inside


How = Literal["permuted", "reset"]


# --- randomised parameters --------------------------------------------------------------------------------------------
# Parameters are randomised, layer by layer (Adebayo et al., 2018): does the map notice? Top-down goes from the output
# towards the input, bottom-up from the input towards the output. Layers stay randomised while further ones are. A layer
# is a module with parameters of its own, or a normalisation with running statistics; the order is that in which modules
# run. "permuted": the values of every parameter change places at random, so that layers keep their scale; running means
# and variances of normalisations are permuted in the same way, each by itself. "reset": the module's own
# `reset_parameters`, as Quantus does; layers without one are left as they are, and normalisations are set back (mean 0,
# variance 1), which need not fit what arrives there. Every step is a copy: the user's network is not changed.
# eMPRT (Hedström et al., 2024) asks for no similarity: a random network should have a random, more complex map.
# Complexity is the entropy of a histogram of the map's values.
# Quantus 0.6 counts the map itself (similarity 1) among the layers when it averages: it leaves out a layer called
# "orig", but calls it "original". A map that is constant is not counted here; Quantus calls its complexity 0.

STEPS = 8  # at which the method is asked again
BINS = 100  # of the histogram


def list_layers(network: nn.Module, x: Tensor) -> list[str]:
    """Return the names of the modules that are randomised, as they run; one that is only read, as its parent runs."""
    own = [name for name, module in network.named_modules() if _own_tensors(module)]
    began: dict[str, int] = {}

    def begins(name: str, module: nn.Module, inputs: object) -> None:
        began.setdefault(name, len(began))

    handles = [m.register_forward_pre_hook(partial(begins, name)) for name, m in network.named_modules()]
    try:
        with torch.no_grad():
            network(x[:1])
    finally:
        for handle in handles:
            handle.remove()

    def when(name: str) -> int:
        return began[name] if name in began else when(name.rpartition(".")[0])

    return sorted(own, key=when)


def _own_tensors(module: nn.Module) -> list[Tensor]:
    """Return what is randomised of a module: its own parameters, and the statistics of a normalisation."""
    own: list[Tensor] = list(module.parameters(recurse=False))
    if isinstance(module, nn.modules.batchnorm._NormBase):
        own += [b for b in module.buffers(recurse=False) if b.is_floating_point()]
    return own


def randomise(
    network: nn.Module, x: Tensor, *, top_down: bool, steps: int | None = None, how: How = "permuted", seed: int = 0
) -> Iterator[tuple[float, nn.Module]]:
    """Copies of the network with ever more layers randomised, each with its share of layers; the last has all.

    ``steps``: how many copies; None: one per layer.
    """
    if how not in ("permuted", "reset") or (steps is not None and steps < 1):
        raise InputError(
            f"Layers are randomised by how='permuted' or 'reset', in 1 step or more; got {how!r}, {steps}."
        )
    network = copy.deepcopy(network)
    names = list_layers(network, x)
    if not names:
        raise InputError(f"{type(network).__name__} has no parameters that could be randomised.")
    seeds = {name: seed + number for number, name in enumerate(names)}  # the same in both orders
    names = names[::-1] if top_down else names
    steps = len(names) if steps is None else min(steps, len(names))
    known: set[int] = set()  # of tensors that several layers share
    done = 0
    for step in range(1, steps + 1):
        until = -(-step * len(names) // steps)
        for name in names[done:until]:
            own = [t for t in _own_tensors(network.get_submodule(name)) if id(t) not in known]
            known.update(map(id, own))
            if how == "permuted":
                _permute(own, seeds[name])
            elif own:
                _reset(network.get_submodule(name), seed)
        done = until
        yield done / len(names), copy.deepcopy(network)


def _permute(own: Sequence[Tensor], seed: int) -> None:
    lot = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for t in own:
            places = torch.randperm(t.numel(), generator=lot).to(t.device)
            t.copy_(t.flatten()[places].reshape(t.shape))


def _reset(module: nn.Module, seed: int) -> None:
    """Reset a module by its own way, from a seed that is the same for every layer, as Quantus does."""
    if (reset := getattr(module, "reset_parameters", None)) is not None:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed + 1)
            reset()


@dataclass(frozen=True)
class _Randomisation:
    """The rank correlation of the map with those of ever more random networks; the value is its mean."""

    steps: int | None = STEPS  # None: after every layer
    how: How = "permuted"

    higher = False
    top_down = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        at, found = [], []
        for share, network in randomise(
            case.network, case.x, top_down=self.top_down, steps=self.steps, how=self.how, seed=case.seed
        ):
            at.append(share)
            found.append(spearman(R, list_further_maps(case, method, network, case.x, case.classes)))
        alike = torch.stack(found, dim=1)
        return Measurement(alike.nanmean(dim=1), {"rank correlation": alike}, tuple(at))


@dataclass(frozen=True)
class TopDown(_Randomisation):
    """From the output towards the input."""

    name = "top-down randomisation"
    about = (
        "rank correlation of the map with itself while layers are randomised, from the output down: 1 for a map that "
        "does not depend on what was learned"
    )


@dataclass(frozen=True)
class BottomUp(_Randomisation):
    """From the input towards the output."""

    name = "bottom-up randomisation"
    about = (
        "rank correlation of the map with itself while layers are randomised, from the input up: 1 for a map that does "
        "not depend on what was learned"
    )
    top_down = False


def complexity(R: Tensor, bins: int = BINS) -> Tensor:
    """Return the entropy of a histogram over the range of each map (B, …); NaN for a constant one.

    >>> complexity(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), bins=2)  # log 2
    tensor([0.6931], dtype=torch.float64)
    """
    R = R.flatten(1).double()
    low, high = R.amin(dim=1, keepdim=True), R.amax(dim=1, keepdim=True)
    numbers = (high > low) & R.isfinite().all(dim=1, keepdim=True)
    bin_of = torch.where(numbers, (R - low) / (high - low) * bins, 0).long().clamp(max=bins - 1)
    share = torch.zeros(len(R), bins, dtype=R.dtype, device=R.device)
    share = share.scatter_add_(1, bin_of, torch.ones_like(R)) / R.shape[1]
    return torch.where(numbers[:, 0], -torch.xlogy(share, share).sum(dim=1), torch.nan)


@dataclass(frozen=True)
class Complexity:
    """eMPRT: how much more complex, relatively, the map of a wholly randomised network is."""

    how: How = "permuted"
    bins: int = BINS

    name = "emprt"
    about = "relative rise of the map's complexity when all weights are randomised: above 0 if the map depends on them"
    higher = True

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        [(_, network)] = randomise(case.network, case.x, top_down=False, steps=1, how=self.how, seed=case.seed)
        before, after = (
            complexity(maps, self.bins)
            for maps in (R, list_further_maps(case, method, network, case.x, case.classes))
        )  # fmt: skip
        return Measurement((after - before) / before)


# --- ROAD -------------------------------------------------------------------------------------------------------------
# Removed pixels are filled in from those that stay, so that no hole tells what was there (Rong et al., 2022). Every
# removed pixel is the weighted mean of its eight neighbours, removed or not, 1/6 each beside it and 1/12 each across a
# corner, plus a little noise; at the border the weights of those that exist are made to add up to one. That is a system
# of linear equations for each picture and channel, solved for a whole batch at once by conjugate gradients.
# Quantus 0.6 has the share of pictures that keep their class while the most relevant pixels go. It takes only the first
# batch (`evaluation_scores[0]`) and fails on pictures with several channels, whose maps it repeats: indices run beyond
# the picture. Its way to fill pixels is the same as here.

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
NOISE = 0.01  # in the network's own units
TOLERANCE = 1e-8  # of the residual; pixels are then right to about 1e-6
MOST = 20_000  # steps of conjugate gradients; a picture of 224 pixels takes up to 800
_LOOKS = 16  # steps between two looks at what is left: on a GPU each look waits


def impute(x: Tensor, away: Tensor) -> Tensor:
    """Pictures (B, channels, height, width) whose pixels ``away`` (B, height, width) are filled in from the others.

    >>> x = torch.tensor([[[[0.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 6.0, 0.0]]]])
    >>> impute(x, torch.tensor([[[False, False, False], [False, True, False], [False, False, False]]]))[0, 0, 1, 1]
    tensor(1.)
    """
    if x.ndim != 4:
        raise InputError(f"ROAD fills in pixels of pictures; these inputs have shape {tuple(x.shape[1:])}.")
    gone = away.unsqueeze(1).double()
    stay = 1 - gone
    # All is seen from the mean of what stays: it solves the equations where nothing else is known.
    mean = (x * stay).sum((2, 3), keepdim=True) / stay.sum((2, 3), keepdim=True)
    mean = mean.where(mean.isfinite(), x.double().mean((2, 3), keepdim=True))
    known = (x - mean) * stay
    weights = _sum_neighbours(torch.ones_like(gone[:1]))
    filled = _solve(lambda u: gone * (weights * u - _sum_neighbours(u)), gone * _sum_neighbours(known))
    return torch.where(away.unsqueeze(1), (mean + filled).to(x.dtype), x)


def _sum_neighbours(v: Tensor) -> Tensor:
    """Twelve times the weighted sum around every pixel, [1 2 1] along both sides; zero beyond the border.

    The pixel itself is in it four times, which stands on both sides of its equation.
    """
    v = F.pad(v, (1, 1, 1, 1))
    rows = v[..., :-2, :] + 2 * v[..., 1:-1, :] + v[..., 2:, :]
    return rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]


def _solve(A: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """Return u with A u = b for a batch of pictures, by conjugate gradients: A is symmetric and never negative."""
    u, r = torch.zeros_like(b), b
    p, rr = r, _square(r)
    least = TOLERANCE**2 * rr
    for step in range(MOST):
        if step % _LOOKS == 0 and not bool((rr > least).any()):
            return u
        Ap = A(p)
        length = torch.where(rr > least, rr / _square(p, Ap), 0)
        u, r = u + length * p, r - length * Ap
        before, rr = rr, _square(r)
        p = r + torch.where(before > least, rr / before, 0) * p
    raise InputError(
        f"The pixels that ROAD takes away could not be filled in: {MOST} steps of conjugate gradients are not enough "
        f"for pictures of {b.shape[2]} × {b.shape[3]} pixels; evaluate on smaller ones."
    )


def _square(a: Tensor, b: Tensor | None = None) -> Tensor:
    return (a * (a if b is None else b)).sum((2, 3), keepdim=True)


@dataclass(frozen=True)
class Road:
    """The area between the probabilities of the class while the least and the most relevant pixels are imputed."""

    shares: tuple[float, ...] = SHARES
    noise: float = NOISE

    name = "road"
    about = (
        "mean probability of the class while the least relevant pixels are filled in from their neighbours, minus the "
        "same for the most relevant; a random map scores 0"
    )
    higher = True

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= s <= 1 for s in self.shares) or list(self.shares) != sorted(self.shares):
            raise InputError(f"Steps of ROAD are shares of all pixels, 0 to 1, growing; got {self.shares}.")

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        """Measure the area; curves: the probability of the class, and whether it is still the first."""
        regions, samples = cut_pixels(R.shape[1:]), len(case.x)
        ranks = torch.cat([regions.ranks(sign * R, case.seed) for sign in (1, -1)])
        steps = torch.tensor([round(s * regions.count) for s in self.shares], device=case.x.device)
        noise = self.noise * _noise(case)

        def inputs(numbers: Tensor) -> tuple[Tensor, Tensor]:
            order, step = numbers // len(steps), numbers % len(steps)
            sample = order % samples
            away = regions.spread(ranks[order] < steps[step, None])
            return impute(case.x[sample], away) + noise[sample] * away.unsqueeze(1), case.classes[sample]

        answers, first = run_verdicts(case, 2 * samples * len(steps), inputs)
        most, least = answers.reshape(2, samples, -1)
        most_first, least_first = first.to(answers.dtype).reshape(2, samples, -1)
        curves = {
            "most first": most,
            "least first": least,
            "most first, class kept": most_first,
            "least first, class kept": least_first,
        }
        return Measurement((least - most).mean(dim=1), curves, self.shares)


def _noise(case: Case) -> Tensor:
    """Return the same noise for every step of a sample, so that steps differ by what is away alone."""
    lot = torch.Generator().manual_seed(case.seed)
    return torch.randn(case.x.shape, generator=lot, dtype=torch.float32).to(case.x)


# --- continuity -------------------------------------------------------------------------------------------------------
# How much does a map move when the input moves by little? Continuity: the picture is shifted sideways, the largest ‖R −
# R'‖₁ / ‖x − x'‖₂ (Montavon et al., 2018). Max-sensitivity: a little noise is added, the largest relative change of the
# map, as a multiple of the input's. Inputs that were moved stay within the range of each channel: some methods raise an
# error for what is not a picture.
# Quantus 0.6 has the first, with shifts up to the whole width, after which nothing of the picture is left; it ignores
# the baseline that it is given, fills in the smallest value of all channels, and scales maps by the largest value of
# the whole batch. Here shifts are a few pixels, and maps are scaled one by one. Its MaxSensitivity is the second
# without the division.

SHIFTS = (-8, -4, -2, -1, 1, 2, 4, 8)  # pixels
AMOUNT = 0.02  # the noise's length, as a share of the input's
DRAWS = 8


def shift(x: Tensor, by: int) -> Tensor:
    """Pictures moved to the right by so many pixels; what comes in has the smallest value of its channel."""
    if x.ndim != 4 or not 0 < abs(by) < x.shape[3]:
        raise InputError(
            f"Inputs of shape {tuple(x.shape[1:])} cannot be shifted by {by} pixels: only pictures, by less than they "
            "are wide."
        )
    darkest = x.amin((2, 3), keepdim=True).expand(*x.shape[:3], abs(by))
    return torch.cat([darkest, x[..., :-by]] if by > 0 else [x[..., -by:], darkest], dim=3)


@dataclass(frozen=True)
class Continuity:
    """The largest change of the map, its largest value being 1, over the change of a picture that is shifted."""

    shifts: tuple[int, ...] = SHIFTS

    name = "continuity"
    about = "how much the map changes when the picture is shifted by a few pixels, at most: 0 if it never changes"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        moved = torch.cat([shift(case.x, by) for by in self.shifts])
        times = len(self.shifts)
        maps = list_further_maps(case, method, case.network, moved, case.classes.repeat(times))
        change = (scale(maps) - scale(R).repeat(times, *[1] * (R.ndim - 1))).flatten(1).abs().sum(dim=1)
        by = (moved - case.x.repeat(times, 1, 1, 1)).flatten(1).norm(dim=1)
        each = torch.where(by > 0, change / by, torch.nan).reshape(times, -1)
        return Measurement(_largest_finite(each), {"change": each.T}, tuple(map(float, self.shifts)))


@dataclass(frozen=True)
class MaxSensitivity:
    """The largest relative change of the map over that of the input, for small random noise."""

    amount: float = AMOUNT
    draws: int = DRAWS

    name = "max-sensitivity"
    about = "relative change of the map over that of the input when a little noise is added, at most: low is steady"
    higher = False

    def measure(self, case: Case, R: Tensor, method: Maps) -> Measurement:
        moved = add_noise(case.x, self.amount, self.draws, case.seed)
        maps = list_further_maps(case, method, case.network, moved.flatten(0, 1), case.classes.repeat(self.draws))
        change = _relative_change(maps.unflatten(0, (self.draws, -1)), R)
        return Measurement(_largest_finite(change / _relative_change(moved, case.x)))


def add_noise(x: Tensor, amount: float, draws: int, seed: int) -> Tensor:
    """Inputs (draws, B, …) with Gaussian noise whose length is this share of theirs.

    They stay between the smallest and the largest value of each channel, so that they lie in the domain of the input.
    """
    lot = np.random.default_rng(seed)
    noise = torch.from_numpy(lot.standard_normal((draws, *x.shape))).to(x)
    lengths = x.flatten(1).norm(dim=1) / noise.flatten(2).norm(dim=2)
    places = tuple(range(2, x.ndim)) or (1,)
    low, high = x.amin(places, keepdim=True), x.amax(places, keepdim=True)
    moved: Tensor = x + amount * lengths.reshape(draws, -1, *[1] * (x.ndim - 1)) * noise
    return moved.clamp(low, high)


def _relative_change(moved: Tensor, still: Tensor) -> Tensor:
    """Return how far each (draws, B, …) has moved from where it was (B, …), as a share of that."""
    away: Tensor = (moved - still).flatten(2).norm(dim=2) / still.flatten(1).norm(dim=1)
    return away


def _largest_finite(each: Tensor) -> Tensor:
    """Return the largest of a column; NaN only where all are."""
    largest = each.nan_to_num(nan=-torch.inf).amax(dim=0)
    return torch.where(largest.isneginf(), torch.nan, largest)


# --- by name ----------------------------------------------------------------------------------------------------------

METRICS: Mapping[str, Callable[[], Metric]] = {
    m.name: cast("Callable[[], Metric]", m)
    for m in (
        Flipping,
        Deletion,
        Insertion,
        Road,
        GridPointing,
        Inside,
        RandomLogit,
        RandomLogitSSIM,
        TopDown,
        BottomUp,
        Complexity,
        LeaveOneOut,
        Continuity,
        MaxSensitivity,
    )
}
