"""The boxes and class scores in the output of a detector, by the layout of the output.

read_boxes(returned, size)
├── yolov8       (B, 4 + C, N): centre, size, class scores; mask coefficients may follow the scores
├── yolov5       (B, N, 5 + C): centre, size, objectness, class scores
├── yolox        the same before decoding: offsets in cells of a grid, and the logarithm of the size
├── detr         (B, N, 4) and logits (B, N, C + 1), the last for "no object"; softmax
├── rt-detr      (B, N, 4) and logits or scores (B, N, C); sigmoid
├── torchvision  {"boxes": (B, N, 4), "scores": (B, N), "labels": (B, N)}, or scores (B, N, C) without labels
└── centerface   heatmap (B, C, h, w), log sizes (B, 2, h, w), offsets (B, 2, h, w)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import TargetError
from deeptaylor.graph.capture import list_outputs

__all__ = ["LAYOUTS", "Boxes", "measure_overlap", "read_boxes"]

Named = Sequence[tuple[str, Tensor]]  # the tensors that the network returned, with their names
Size = tuple[int, int]  # rows and columns of the picture
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32), (8,), (16,), (32,))


@dataclass(frozen=True)
class Boxes:
    """What a detector found.

    boxes    (B, N, 4): x1, y1, x2, y2 in pixels of the input
    scores   (B, N, C), from 0 to 1
    layout   the name of the layout
    output   the number of the output that holds the scores
    spread   turns weights over the scores into weights over this output
    """

    boxes: Tensor
    scores: Tensor
    layout: str
    output: int
    spread: Callable[[Tensor], Tensor]


def read_boxes(returned: Any, size: Size, layout: str | None = None) -> Boxes:
    """Return the boxes and scores in what a detector returned.

    returned   one tensor, or several in a tuple or dictionary
    size       rows and columns of the input picture
    layout     one of LAYOUTS; None: found by the shapes and values

    >>> output = torch.zeros(1, 6, 84)  # four numbers of a box, two classes; 8² + 4² + 2² boxes
    >>> read_boxes(output, (64, 64)).layout
    'yolov8'
    """
    tensors = [(name, t.detach()) for name, t in list_outputs(returned)]
    if layout is not None and layout not in LAYOUTS:
        raise TargetError(f"The layout {layout!r} is not known; the layouts are {', '.join(map(repr, LAYOUTS))}.")
    for read in LAYOUTS.values() if layout is None else [LAYOUTS[layout]]:
        if (found := read(tensors, size, layout is not None)) is not None:
            return found
    shapes = ", ".join(f"{name or 'output'} {tuple(t.shape)}" for name, t in tensors)
    found_none = "its layout is not known. Name it" if layout is None else f"it does not fit {layout!r}. Name another"
    raise TargetError(
        f"The network returns {shapes} for a picture of {size[0]} × {size[1]} pixels: {found_none}, layout= one of "
        f"{', '.join(map(repr, LAYOUTS))}; or explain a number of the output, target=lambda output: output[:, i, j]."
    )


def measure_overlap(boxes: Tensor, box: Tensor) -> Tensor:
    """Return the intersection over union of boxes (B, N, 4) with one box per sample, (B, 4)."""
    low, high = torch.maximum(boxes[..., :2], box[:, None, :2]), torch.minimum(boxes[..., 2:], box[:, None, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    union = _areas(boxes) + _areas(box)[:, None] - common
    return common / torch.where(union > 0, union, 1)


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)


# --- one tensor -------------------------------------------------------------------------------------------------------


def _read_yolov8(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    for k, t in _of_rank(tensors, 3):
        masks = [other.shape[1] for _, other in _of_rank(tensors, 4)]
        classes = t.shape[1] - 4 - (masks[0] if len(masks) == 1 else 0)
        fits = classes > 0 and (is_named or find_strides(t.shape[2], size) is not None)
        if fits and _is_share(t[:, 4 : 4 + classes]):
            scores = slice(4, 4 + classes)

            def spread(v: Tensor, t: Tensor = t, scores: slice = scores) -> Tensor:
                return _place(t, (slice(None), scores), v.mT)

            return Boxes(_from_centres(t[:, :4].mT), t[:, scores].mT, "yolov8", k, spread)
    return None


def _read_yolov5(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    for k, t in _of_rank(tensors, 3):
        anchors = [n for n in (1, 3) if t.shape[1] % n == 0 and find_strides(t.shape[1] // n, size) is not None]
        if t.shape[2] > 5 and (is_named or anchors) and _is_share(t[..., 4:]):
            if not is_named and anchors == [1] and _is_raw(t, size):
                return None
            return _with_objectness(t, _from_centres(t[..., :4]), "yolov5", k)
    return None


def _read_yolox(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    for k, t in _of_rank(tensors, 3):
        strides = find_strides(t.shape[1], size)
        if t.shape[2] > 5 and strides is not None and _is_share(t[..., 4:]):
            grid, stride = make_grid(strides, size, t)
            centres = torch.cat([(t[..., :2] + grid) * stride, t[..., 2:4].exp() * stride], -1)
            return _with_objectness(t, _from_centres(centres), "yolox", k)
    return None


def _with_objectness(t: Tensor, boxes: Tensor, layout: str, output: int) -> Boxes:
    """Return boxes whose scores are objectness times class score; both logits are explained."""

    def spread(v: Tensor) -> Tensor:
        return _place(t, (slice(None), slice(None), slice(4, None)), torch.cat([v.sum(-1, keepdim=True), v], -1))

    return Boxes(boxes, t[..., 4:5] * t[..., 5:], layout, output, spread)


def find_strides(places: int, size: Size) -> tuple[int, ...] | None:
    """Return the strides of the grids that together have this many places; None if no usual ones have."""
    return next((s for s in _STRIDES if sum(_rows(size[0], k) * _rows(size[1], k) for k in s) == places), None)


def _rows(length: int, stride: int) -> int:
    return -(-length // stride)


def make_grid(strides: Sequence[int], size: Size, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return column and row of every place (N, 2), and its stride (N, 1)."""
    grids, each = [], []
    for stride in strides:
        rows, columns = (torch.arange(_rows(n, stride)).to(like) for n in size)
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        grids.append(torch.stack([x, y], -1).reshape(-1, 2))
        each.append(torch.full((len(grids[-1]), 1), float(stride)).to(like))
    return torch.cat(grids), torch.cat(each)


def _is_raw(t: Tensor, size: Size) -> bool:
    """Return True if centres are offsets in cells of a grid: they lie closer to zero than to their own places."""
    strides = find_strides(t.shape[1], size)
    assert strides is not None
    grid, stride = make_grid(strides, size, t)
    return bool(t[..., :2].abs().mean() < (t[..., :2] - (grid + 0.5) * stride).abs().mean())


def _of_rank(tensors: Named, rank: int) -> list[tuple[int, Tensor]]:
    return [(k, t) for k, (_, t) in enumerate(tensors) if t.ndim == rank]


def _is_share(t: Tensor) -> bool:
    """Return True for numbers from 0 to 1."""
    return t.numel() > 0 and bool(((t >= 0) & (t <= 1)).all())


def _place(t: Tensor, where: tuple[slice, ...], v: Tensor) -> Tensor:
    """Return weights like t that are v somewhere, and zero elsewhere."""
    whole = torch.zeros_like(t)
    whole[where] = v.to(t)
    return whole


def _from_centres(t: Tensor) -> Tensor:
    """Return corners for centres and sizes."""
    return torch.cat([t[..., :2] - t[..., 2:4] / 2, t[..., :2] + t[..., 2:4] / 2], -1)


# --- several tensors --------------------------------------------------------------------------------------------------


def _read_torchvision(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    names = [name.rpartition(".")[2] for name, _ in tensors]
    if "boxes" not in names or "scores" not in names:
        return None
    k = names.index("scores")
    boxes, scores = tensors[names.index("boxes")][1], tensors[k][1]
    if "labels" not in names or scores.ndim == 3:
        return _of_queries(boxes, scores, "torchvision", k, 0)
    labels = tensors[names.index("labels")][1]
    if boxes.shape != (*scores.shape, 4) or labels.shape != scores.shape or not labels.numel():
        return None
    own = torch.nn.functional.one_hot(labels.long(), int(labels.max()) + 1).to(scores)
    return Boxes(boxes, scores[..., None] * own, "torchvision", k, lambda v: (v * own).sum(-1))


def _read_detr(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    pair = _find_queries(tensors)
    if pair is None or (not is_named and _is_share(tensors[pair[1]][1])):
        return None
    boxes, logits = (tensors[k][1] for k in pair)
    most = logits.argmax(-1) == logits.shape[-1] - 1  # most queries find nothing, which is the last class
    if logits.shape[-1] < 2 or (not is_named and float(most.to(logits).mean()) < 0.5):
        return None
    return _of_queries(_scale(boxes, size), logits.softmax(-1), "detr", pair[1], 1)


def _read_rt_detr(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    pair = _find_queries(tensors)
    if pair is None:
        return None
    boxes, logits = (tensors[k][1] for k in pair)
    scores = logits if _is_share(logits) else logits.sigmoid()
    return _of_queries(_scale(boxes, size), scores, "rt-detr", pair[1], 0)


def _find_queries(tensors: Named) -> tuple[int, int] | None:
    """Return the numbers of the boxes (B, N, 4) and of their logits (B, N, C); None unless there is one pair."""
    named = {name.rpartition(".")[2]: k for k, (name, _) in enumerate(tensors)}
    own = [named[name] for name in ("pred_boxes", "logits") if name in named]
    own = own if len(own) == 2 else [named[name] for name in ("pred_boxes", "pred_logits") if name in named]
    if len(own) != 2:
        three = [k for k, t in _of_rank(tensors, 3)]
        boxes = [k for k in three if tensors[k][1].shape[2] == 4 and _is_share(tensors[k][1])]
        if len(three) != 2 or not boxes:
            return None
        own = [boxes[0], next(k for k in three if k != boxes[0])]
    (_, boxes_), (_, logits) = tensors[own[0]], tensors[own[1]]
    fits = boxes_.ndim == logits.ndim == 3 and boxes_.shape[:2] == logits.shape[:2] and boxes_.shape[2] == 4
    return (own[0], own[1]) if fits else None


def _of_queries(boxes: Tensor, scores: Tensor, layout: str, output: int, without: int) -> Boxes | None:
    """Return boxes with scores in a tensor of their own; its last classes may be left out."""
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape != (*scores.shape[:2], 4):
        return None

    def spread(v: Tensor) -> Tensor:
        return torch.nn.functional.pad(v, (0, without))

    return Boxes(boxes, scores[..., : scores.shape[-1] - without], layout, output, spread)


def _scale(boxes: Tensor, size: Size) -> Tensor:
    """Return corners in pixels for centres and sizes in shares of the picture."""
    return _from_centres(boxes) * boxes.new_tensor([size[1], size[0]] * 2)


def _read_centerface(tensors: Named, size: Size, is_named: bool) -> Boxes | None:
    maps = _of_rank(tensors, 4)
    heat = next(((k, t) for k, t in maps if _is_share(t)), None)
    if heat is None or len(maps) < 3 or any(t.shape[2:] != heat[1].shape[2:] for _, t in maps):
        return None
    pairs = [t for k, t in maps if k != heat[0] and t.shape[1] == 2]
    if len(pairs) != 2:
        return None
    k, heatmap = heat
    (sizes, offsets), (rows, columns) = pairs, heatmap.shape[2:]
    stride = size[0] / rows
    y, x = torch.meshgrid(torch.arange(rows).to(heatmap), torch.arange(columns).to(heatmap), indexing="ij")
    centres = torch.stack([x + offsets[:, 1] + 0.5, y + offsets[:, 0] + 0.5], -1) * stride
    whole = torch.cat([centres, sizes.flip(1).exp().movedim(1, -1) * stride], -1)

    def spread(v: Tensor) -> Tensor:
        return v.mT.reshape(heatmap.shape)

    return Boxes(_from_centres(whole).flatten(1, 2), heatmap.flatten(2).mT, "centerface", k, spread)


LAYOUTS: dict[str, Callable[[Named, Size, bool], Boxes | None]] = {
    "torchvision": _read_torchvision,
    "detr": _read_detr,
    "rt-detr": _read_rt_detr,
    "yolov8": _read_yolov8,
    "yolov5": _read_yolov5,
    "yolox": _read_yolox,
    "centerface": _read_centerface,
}
