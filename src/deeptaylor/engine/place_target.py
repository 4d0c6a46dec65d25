"""Targets in the picture: a box of a detector, a region or a pixel of a network with dense outputs.

box, best_box, region, pixel    what the user writes
read_place                      run the network once, and turn such a target into weights over one of its outputs

The weights hold the choice fixed: which boxes, which class, which places. The notes of the answer report it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.engine.box_layouts import Boxes, Size, measure_overlap, read_boxes
from deeptaylor.engine.target import ShiftedWeights
from deeptaylor.errors import TargetError
from deeptaylor.graph.capture import list_outputs, pick_output
from deeptaylor.graph.modes import eval_mode

__all__ = [
    "BoxTarget", "PlaceTarget", "PlaceWeights", "RegionTarget", "best_box", "box", "pixel", "read_place", "region",
]  # fmt: skip

Name = Callable[[int], str]  # of a class
_LEAST = 0.05  # the score below which a detector finds nothing
_LISTED = 3  # samples of which the notes report the choice
_DENSE = ("out", "logits", "masks", "pred_masks", "heatmap")  # names of the dense output among several


@dataclass(frozen=True)
class PlaceTarget:
    """What is explained at a place of the picture; `target`: the class, None for the most probable one."""

    target: int | str | None = None


@dataclass(frozen=True)
class BoxTarget(PlaceTarget):
    """The boxes of a detector that overlap a box; without one, its best box."""

    corners: Tensor | None = None
    layout: str | None = None
    overlap: float = 0.5
    least: float = _LEAST


@dataclass(frozen=True)
class RegionTarget(PlaceTarget):
    """The places of a dense output under a mask, or the one under a pixel."""

    mask: Tensor | None = None
    place: tuple[int, int] | None = None


def box(
    corners: Any, target: int | str | None = None, *, layout: str | None = None, overlap: float = 0.5,
    least: float = _LEAST,
) -> BoxTarget:  # fmt: skip
    """Explain why a detector finds an object here: the score of its boxes that overlap a box.

    corners   (x1, y1, x2, y2) in pixels of the network's input, x to the right and y down; or one box per sample
    target    the class, by number or name; None: the one with the highest score there
    layout    how to read the output, such as "yolov8"; None: found by the shapes and values
    overlap   the least intersection over union with the given box
    least     the score below which there is no object; 0 asks why a detector does not find one

    The score is the mean logit of these boxes, weighted by their score times overlap; boxes with less than half of the
    best product are left out. If the detector multiplies the class score by an objectness, both logits are added. Deep
    Taylor explains how far they are above the logit of `least`, so that also an uncertain box has an explanation.

    >>> box((10, 20, 50, 60), 1).overlap
    0.5
    """
    t = _as_numbers(corners, "A box needs four numbers, x1, y1, x2, y2, or four per sample")
    if t.shape[-1:] != (4,) or t.ndim > 2:
        raise TargetError(
            f"A box needs four numbers, x1, y1, x2, y2, or four per sample; got the shape {tuple(t.shape)}."
        )
    if bool((t[..., 2:] <= t[..., :2]).any()):
        raise TargetError(f"A box needs x1 < x2 and y1 < y2, and two opposite corners; got {_describe_box(t)}.")
    return BoxTarget(target, t, layout, _check_share(overlap, "overlap"), _check_share(least, "least"))


def best_box(
    target: int | str | None = None, *, layout: str | None = None, overlap: float = 0.5, least: float = _LEAST
) -> BoxTarget:
    """Explain the box that a detector is most certain of, with the boxes that overlap it.

    The arguments are those of `box`.

    >>> best_box(1).corners is None
    True
    """
    return BoxTarget(target, None, layout, _check_share(overlap, "overlap"), _check_share(least, "least"))


def region(mask: Any, target: int | str | None = None) -> RegionTarget:
    """Explain the class of a region in a dense output (batch, classes, rows, columns): its mean logit there.

    If the output holds probabilities, the mean is weighted by them: places that the network does not give to the class
    count little.

    mask     True at the places of the region: (rows, columns) of the picture or of the output, or one mask per sample
    target   the class, by number or name; None: the one with the highest mean score there

    >>> region([[True, False]], 1).target
    1
    """
    t = _as_numbers(mask, "A mask needs rows and columns")
    t = t[:, 0] if t.ndim == 4 and t.shape[1] == 1 else t
    if t.ndim not in (2, 3):
        raise TargetError(f"A mask needs the shape (rows, columns), or (batch, rows, columns); got {tuple(t.shape)}.")
    if not bool((t != 0).flatten(-2).any(-1).all()):
        raise TargetError("The mask is empty: set it to True, or 1, where the region is.")
    return RegionTarget(target, t != 0)


def pixel(y: int, x: int, target: int | str | None = None) -> RegionTarget:
    """Explain the class of one pixel in a dense output (batch, classes, rows, columns).

    y, x     row and column in the picture; the output's place that covers them is explained
    target   the class, by number or name; None: the most probable one there

    >>> pixel(3, 5).place
    (3, 5)
    """
    if not all(isinstance(v, (int, np.integer)) for v in (y, x)):
        raise TargetError(f"A pixel is two whole numbers, row and column: dt.pixel(y, x); got {y!r}, {x!r}.")
    return RegionTarget(target, None, (int(y), int(x)))


def _as_numbers(given: Any, wanted: str) -> Tensor:
    try:
        t = given.detach().cpu() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError, RuntimeError):
        raise TargetError(f"{wanted}; got {given!r}.") from None
    if t.is_complex() or (t.is_floating_point() and not bool(t.isfinite().all())):
        raise TargetError(f"{wanted}, all of them finite; got {given!r}.")
    return t.to(torch.float64)


def _check_share(value: float, name: str) -> float:
    if not 0 <= value <= 1:
        raise TargetError(f"{name} is a number from 0 to 1; got {value!r}.")
    return float(value)


def _describe_box(corners: Tensor) -> str:
    rows = [f"({', '.join(f'{v:.4g}' for v in row)})" for row in corners.reshape(-1, 4).tolist()]
    return ", ".join(rows[:_LISTED]) + ", …" * (len(rows) > _LISTED)


# --- read -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlaceWeights:
    """A target as weights over one output of the network, and what was chosen.

    shift     (B,): what deep Taylor adds to the score; None: nothing
    output    the number of the output; None if there is only one
    notes     what was chosen in each sample
    corners   (B, 4): the boxes that were chosen; None for other targets
    """

    weights: Tensor
    output: int | None
    notes: tuple[str, ...]
    corners: Tensor | None = None
    shift: Tensor | None = None

    @property
    def target(self) -> Tensor | ShiftedWeights:
        """What an explainer is asked for."""
        return self.weights if self.shift is None else ShiftedWeights(self.weights, self.shift)


def read_place(
    target: PlaceTarget, model: nn.Module, inputs: Sequence[Tensor], output: int | str | None = None,
    call: Name = "class {}".format,
) -> PlaceWeights:  # fmt: skip
    """Run a network on inputs, and return the weights over one of its outputs that a target stands for.

    output   the output that the user chose
    call     returns the name of a class
    """
    x = inputs[0]
    if x.ndim != 4:
        raise TargetError(
            f"Boxes, regions and pixels need a picture, (batch, channels, rows, columns); the input has the shape "
            f"{tuple(x.shape)}. Explain a number of the output: a class, weights or a function."
        )
    size = (int(x.shape[2]), int(x.shape[3]))
    if isinstance(target, BoxTarget) and target.corners is not None:
        _check_inside(target.corners, size, len(x))
    if isinstance(target, RegionTarget) and target.place is not None:
        y, column = target.place
        if not (0 <= y < size[0] and 0 <= column < size[1]):
            raise TargetError(
                f"The pixel {target.place} is outside of the picture: rows are 0 to {size[0] - 1}, columns 0 to "
                f"{size[1] - 1}; the row comes first."
            )
    with eval_mode(model), torch.no_grad():
        returned = model(*inputs)
    if isinstance(target, BoxTarget):
        return _read_box(target, read_boxes(returned, size, target.layout), returned, call)
    assert isinstance(target, RegionTarget)
    return _read_region(target, returned, output, size, call)


def _check_inside(corners: Tensor, size: Size, batch: int) -> None:
    if corners.ndim == 2 and len(corners) not in (1, batch):
        raise TargetError(f"{len(corners)} boxes were given for {batch} samples: give one, or one per sample.")
    rows = corners.reshape(-1, 4)
    picture = torch.tensor([[0.0, 0.0, size[1], size[0]]], dtype=rows.dtype)
    outside = measure_overlap(rows[None], picture)[0] == 0
    if bool(outside.any()):
        raise TargetError(
            f"The box {_describe_box(rows[outside])} is outside of the picture: x is 0 to {size[1]} and y is 0 to "
            f"{size[0]}, in pixels of the network's input; give x1, y1, x2, y2."
        )


def _read_class(target: int | str | None, classes: int) -> int | None:
    """Return the class; raise TargetError if the network does not have it."""
    if target is None:
        return None
    if isinstance(target, bool) or not isinstance(target, int):
        raise TargetError(f"A box, region or pixel has one class: a number, a name or None; got {target!r}.")
    if not 0 <= target < classes:
        raise TargetError(f"The class {target} is out of range: the network has {classes} classes, 0 to {classes - 1}.")
    return target


def _fill(scores: Tensor, wanted: int | None) -> Tensor:
    """Return the wanted class of every sample, or the best one by scores (B, C)."""
    return scores.argmax(1) if wanted is None else torch.full((len(scores),), wanted, device=scores.device)


def _number(returned: Any, output: int) -> int | None:
    return output if len(list_outputs(returned)) > 1 else None


# --- boxes ------------------------------------------------------------------------------------------------------------


def _read_box(target: BoxTarget, found: Boxes, returned: Any, call: Name) -> PlaceWeights:
    scores, samples = found.scores, torch.arange(len(found.scores))
    wanted = _read_class(target.target, scores.shape[2])
    if target.corners is None:
        best = scores.amax(2) if wanted is None else scores[..., wanted]
        asked = found.boxes[samples, best.argmax(1)]
    else:
        asked = target.corners.to(found.boxes).expand(len(scores), 4)
    overlap = measure_overlap(found.boxes, asked)
    here = (overlap >= target.overlap) & (overlap > 0)
    _check_any(target, here, overlap, found, asked)
    strength = scores.clamp(min=1e-12) * (overlap * here)[..., None]
    strength = strength.where(strength >= strength.amax(1, keepdim=True) / 2, 0)
    classes = _fill(strength.amax(1), wanted)
    own = strength[samples, :, classes]
    best = scores[samples, own.argmax(1), classes]
    _check_found(target, best, scores, here, "an object" if wanted is None else call(wanted), call)
    share = own / own.sum(1, keepdim=True)
    v = torch.zeros_like(scores)
    v[samples, :, classes] = share
    corners = found.boxes[samples, own.argmax(1)]
    counts = (share > 0).sum(1).tolist()
    lines = [
        f"{call(int(c))}, score {p:.2g}, in the box {_describe_box(b)}{_describe_others(n - 1)}"
        for c, p, b, n in zip(classes.tolist(), best.tolist(), corners, counts, strict=True)
    ]
    notes = [
        *_list_samples(lines),
        f"the boxes are read as {found.layout}, in pixels of the network's input; which ones are explained is fixed",
    ]
    weights, shift = found.spread(v), None
    if 0 < target.least < 1:
        shift = -math.log(target.least / (1 - target.least)) * weights.flatten(1).sum(1)
        notes.append(f"deep Taylor's score is how far their mean logit is above that of {target.least:g}")
    return PlaceWeights(weights, _number(returned, found.output), tuple(notes), corners, shift)


def _describe_others(count: int) -> str:
    return f" (and {count} more that overlap it, weighted by score times overlap)" if count else ""


def _list_samples(lines: Sequence[str]) -> tuple[str, ...]:
    """Return one note for each of the first samples, and one about the rest."""
    if len(lines) == 1:
        return (f"explained: {lines[0]}",)
    more = (f"explained in {len(lines) - _LISTED} more samples, likewise",) if len(lines) > _LISTED else ()
    return (*(f"explained in sample {k}: {line}" for k, line in enumerate(lines[:_LISTED])), *more)


def _check_any(target: BoxTarget, here: Tensor, overlap: Tensor, found: Boxes, asked: Tensor) -> None:
    """Raise TargetError if no box of the detector overlaps the given one, with the nearest one."""
    for k in (~here.any(1)).nonzero().flatten().tolist():
        likely = overlap[k] * (found.scores[k].amax(1) >= target.least)
        most = likely if bool((likely > 0).any()) else overlap[k]
        nearest, share = found.boxes[k, most.argmax()], float(most.max())
        hint = f"the nearest is {_describe_box(nearest)}, with {share:.2f}: give that one, or a smaller overlap="
        which = f", sample {k}" if len(here) > 1 else ""
        raise TargetError(
            f"No box of the detector overlaps {_describe_box(asked[k])} by {target.overlap:g} or more (intersection "
            f"over union){which}; {hint if share > 0 else 'dt.best_box() has its best one'}."
        )


def _check_found(target: BoxTarget, best: Tensor, scores: Tensor, here: Tensor, what: str, call: Name) -> None:
    """Raise TargetError if the detector finds nothing of the class there, with the classes that it finds."""
    for k in (best < target.least).nonzero().flatten().tolist():
        there = scores[k][here[k]].amax(0) if target.corners is not None else scores[k].amax(0)
        top = [(c, float(there[c])) for c in there.topk(min(3, len(there))).indices.tolist()]
        listed = ", ".join(f"{call(c)} ({p:.2g})" for c, p in top if p >= target.least)
        where = " there" if target.corners is not None else " in the picture"
        raise TargetError(
            f"The detector does not find {what}{where}{f', in sample {k}' * (len(best) > 1)}: its best score is "
            f"{float(best[k]):.2g}. " + (f"It finds {listed}." if listed else "It finds no other class, either.")
            + " To ask why it finds none, give least=0."
        )  # fmt: skip


# --- regions and pixels -----------------------------------------------------------------------------------------------


def _read_region(target: RegionTarget, returned: Any, output: int | str | None, size: Size, call: Name) -> PlaceWeights:
    number, scores = _find_dense(returned, output)
    wanted = _read_class(target.target, scores.shape[1])
    shape = (int(scores.shape[2]), int(scores.shape[3]))
    mask = _place_mask(target, len(scores), size, shape).to(scores)
    means = (scores * mask[:, None]).sum((2, 3)) / mask.sum((1, 2))[:, None]
    classes, samples = _fill(means, wanted), torch.arange(len(scores))
    v, share = torch.zeros_like(scores), mask
    if bool(((scores >= 0) & (scores <= 1)).all()):  # places that the network does not give to the class count less
        share = mask * scores[samples, classes].clamp(min=1e-12)
    v[samples, classes] = share / share.sum((1, 2), keepdim=True)
    counts = mask.flatten(1).sum(1).int().tolist()
    where = _describe_place(target, size, shape)
    lines = [
        f"{call(int(c))}, {'mean output' if n > 1 else 'output'} {float(m[c]):.3g}, {where or f'over {n} places'}"
        for c, m, n in zip(classes.tolist(), means, counts, strict=True)
    ]
    return PlaceWeights(v, number, _list_samples(lines))


def _describe_place(target: RegionTarget, size: Size, shape: Size) -> str:
    if target.place is None:
        return ""
    y, x = _shrink(target.place, size, shape)
    said = f"at row {target.place[0]}, column {target.place[1]}"
    return said if shape == size else f"{said} (row {y}, column {x} of the output's {shape[0]} × {shape[1]} places)"


def _shrink(place: tuple[int, int], size: Size, shape: Size) -> tuple[int, int]:
    """Return the place of an output that covers a pixel."""
    return place[0] * shape[0] // size[0], place[1] * shape[1] // size[1]


def _find_dense(returned: Any, output: int | str | None) -> tuple[int | None, Tensor]:
    """Return the output (B, C, H, W), and its number if there are several."""
    tensors = list_outputs(returned)
    if output is not None:
        chosen = pick_output(returned, output, Tensor)[0]
        places = [k for k, (_, t) in enumerate(tensors) if t is chosen and t.ndim == 4]
    else:
        dense = [(k, name) for k, (name, t) in enumerate(tensors) if t.ndim == 4 and t.is_floating_point()]
        named = [k for k, name in dense if name.rpartition(".")[2] in _DENSE]
        places = named[:1] or [k for k, _ in dense]
    if len(places) != 1:
        shapes = ", ".join(f"{name or 'output'} {tuple(t.shape)}" for name, t in tensors)
        raise TargetError(
            "A region or a pixel needs one output of shape (batch, classes, rows, columns); the network returns "
            f"{shapes}. " + ("Choose one: Explainer(…, output=k)." if places else "For a detector: dt.box(…).")
        )
    return (places[0] if len(tensors) > 1 else None), tensors[places[0]][1]


def _place_mask(target: RegionTarget, batch: int, size: Size, shape: Size) -> Tensor:
    """Return 1 at the places of the output that are explained, (B, rows, columns)."""
    if target.place is not None:
        mask = torch.zeros(batch, *shape)
        y, x = _shrink(target.place, size, shape)
        mask[:, y, x] = 1
        return mask
    assert target.mask is not None
    mask = target.mask.float()
    mask = mask.expand(batch, *mask.shape[-2:]) if mask.ndim == 2 or len(mask) == 1 else mask
    given = (int(mask.shape[1]), int(mask.shape[2]))
    if len(mask) != batch:
        raise TargetError(f"{len(mask)} masks were given for {batch} samples: give one, or one per sample.")
    if given not in (size, shape):
        has = f"{size[0]} × {size[1]} pixels" + (f", the output {shape[0]} × {shape[1]}" if shape != size else "")
        raise TargetError(f"The mask has {given[0]} × {given[1]} places; the picture has {has}. Give one of this size.")
    if given != shape:
        mean = nn.functional.adaptive_avg_pool2d(mask[:, None], shape)[:, 0]
        most = mean.amax((1, 2), keepdim=True).clamp(max=0.5)  # thin regions keep the places that they cover most
        mask = (mean >= most).float()
    return mask
