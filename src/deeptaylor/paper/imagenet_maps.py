"""Photographs, networks and their heatmaps for the ILSVRC experiment (section IV-D), kept as arrays.

Each network prepares a photograph in its own way: some keep proportions, some do not, and they cut differently. Of a
square of 256 pixels all of them cut out the middle and resample nothing, so that a pixel of one network's map is a
pixel of the other's (`Case.common`); this is checked for every photograph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.photographs import class_index
from deeptaylor.paper.imagenet_photos import COMMON, SIDE, ImagenetError, once, twice
from deeptaylor.paper.saved import Arrays, Saved, digest

__all__ = ["METHODS", "Case", "explain_all", "load_cases"]

BATCH = 4


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network of the experiment; ``place`` is the paper's network whose place it takes."""

    key: str
    title: str
    place: str
    model: dt.Pretrained

    @property
    def stride(self) -> int:
        """Of the first convolution."""
        first = next(m for m in self.model.network.modules() if isinstance(m, nn.Conv2d))
        return int(first.stride[0])

    def inputs(self, photos: Sequence[Image.Image]) -> Tensor:
        """Inputs of squares; refused where this network sees anything but their middle."""
        found = []
        for photo in photos:
            x, seen = self.model.preprocess(photo)
            side = seen.width
            start = (SIDE - side) // 2
            expected = photo.crop((start, start, start + side, start + side))
            if side < COMMON or seen.size != expected.size or seen.tobytes() != expected.tobytes():
                raise ImagenetError(
                    f"{self.title} resamples a square of {SIDE} pixels, so that its maps cannot be laid over others."
                )
            found.append(x)
        return torch.cat(found)

    def common(self, maps: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """The part of maps (N, H, W) that every network sees: the middle 224 × 224 of the square."""
        start = (SIDE - COMMON) // 2 - (SIDE - maps.shape[-1]) // 2
        return maps[..., start : start + COMMON, start : start + COMMON]


def load_cases(caffenet: Path | None = None, googlenet: Path | None = None) -> dict[str, Case]:
    """The paper's networks from their files; in the place of one without a file, a network that packages bring."""
    known = {
        "CaffeNet": ("caffenet", caffenet, "squeezenet1_1", "SqueezeNet v1.1"),
        "GoogLeNet": ("googlenet", googlenet, "efficientnet-lite0", "EfficientNet-Lite0"),
    }
    found = {}
    for place, (name, file, other, title) in known.items():
        if file is not None and not file.is_file():
            raise ImagenetError(f"{file} is not a file; --{name} takes the published .caffemodel of {place}.")
        key = other if file is None else name
        model = load_pretrained(other) if file is None else load_pretrained(name, weights=file)
        found[key] = Case(key, title if file is None else place, place, model)
    return found


# --- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A way to explain: its settings for an Explainer, or None for sensitivity."""

    key: str
    title: str
    settings: Mapping[str, Any] | None
    deep_taylor: bool = False  # must be positive


_LRP = {"rules": {"*": dt.rules.AlphaBeta(2, 1)}}
METHODS = (
    Method("sensitivity", "Sensitivity", None),
    Method("neuron", "Deep Taylor", {"bias": "neuron"}, deep_taylor=True),
    Method("spread", "Deep Taylor, biases spread", {"bias": "spread"}, deep_taylor=True),
    Method("lrp", "LRP (α = 2, β = 1)", {"bias": "neuron"} | _LRP),
    Method("lrp-spread", "LRP (α = 2, β = 1), biases spread", {"bias": "spread"} | _LRP),
)


def explain_all(
    cases: Mapping[str, Case],
    photos: Mapping[str, Image.Image],
    saved: Saved,
    targets: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Arrays]]:
    """Of every network: "recognised", and every method's maps.

    recognised   "index", "probability" (N,) of the class that is explained: the most probable one ("top"), or the one
                 that ``targets`` names for this photograph ("" for all); "twice", "once": the top class of the composed
                 picture
    a method     "maps" (N, H, W), "score", "input", "bias", "dropped" (N,); for the composed pictures the same with
                 "twice_" and "once_" before them, always of the class that the photograph itself was given
    """
    made = {
        "": list(photos.values()),
        "twice_": [twice(photo) for photo in photos.values()],
        "once_": [once(photo) for photo in photos.values()],
    }
    found: dict[str, dict[str, Arrays]] = {}
    for key, case in cases.items():
        x = {name: case.inputs(pictures) for name, pictures in made.items()}
        asked = [(targets or {}).get(name, (targets or {}).get("")) for name in photos]
        known: dict[str, object] = {
            "network": digest(case.model.network),
            "photos": digest(*x.values()),
            "version": dt.__version__,
        }
        known |= {"targets": asked} if any(asked) else {}
        seen = saved.get(f"{key}-recognised", known, partial(_recognised, case, x, asked))
        found[key] = {"recognised": seen}
        for method in METHODS:
            make = _explaining(case, method, x, torch.from_numpy(seen["index"]), saved)
            settings = known | {"method": f"{method.key} {method.settings}"}
            found[key][method.key] = saved.get(f"{key}-{method.key}", settings, make)
    return found


def _recognised(case: Case, x: Mapping[str, Tensor], asked: Sequence[str | None]) -> Arrays:
    tops = {name: np.array([case.model.top(one, 1)[0][0].index for one in x[name].split(1)]) for name in x}
    index = np.array(
        [top if name is None else class_index(case.model, name) for top, name in zip(tops[""], asked, strict=True)]
    )
    with torch.no_grad():
        scores = torch.cat([case.model.network(one) for one in x[""].split(1)])
    probability = scores.softmax(1)[torch.arange(len(index)), torch.from_numpy(index)]
    return {
        "index": index,
        "probability": probability.numpy(),
        "top": tops[""],
        "twice": tops["twice_"],
        "once": tops["once_"],
    }


def _explaining(
    case: Case, method: Method, x: Mapping[str, Tensor], target: Tensor, saved: Saved
) -> Callable[[], Arrays]:
    def make() -> Arrays:
        explain = _explainer(case, method, x[""][:1])
        found: dict[str, list[npt.NDArray[Any]]] = {}
        for n, name in enumerate(x):
            for start in range(0, len(target), BATCH):
                some = slice(start, start + BATCH)
                e = explain(x[name][some], target[some])
                for part, value in _parts(e).items():
                    found.setdefault(f"{name}{part}", []).append(value)
                saved.talk.share(f"  {case.title}, {method.title}", n * len(target) + start, len(x) * len(target))
        return {part: np.concatenate(values) for part, values in found.items()}

    return make


def _explainer(case: Case, method: Method, example: Tensor) -> Callable[[Tensor, Tensor], dt.Explanation]:
    network, settings = case.model.network, method.settings
    if settings is None:
        return lambda x, target: dt.sensitivity(network, x, target=target)
    explainer = dt.Explainer(network, example, domain=case.model.domain, **{"bias": "neuron", **settings})
    return lambda x, target: explainer.explain(x, target=target)


def _parts(e: dt.Explanation) -> Arrays:
    """Heatmaps, and where the scores went."""
    ledger = {name: getattr(e.ledger, name) for name in ("input", "bias", "dropped")}
    parts = {"maps": e.heatmap(), "score": e.score} | ledger
    return {name: value.detach().numpy() for name, value in parts.items()}
