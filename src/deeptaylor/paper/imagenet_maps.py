"""Photographs, networks and their heatmaps for the ILSVRC experiment (section IV-D), kept as arrays.

Each network prepares a photograph in its own way: some keep proportions, some do not, and they cut differently. Of a
square of 256 pixels all of them cut out the middle and resample nothing, so that a pixel of one network's map is a
pixel of the other's (`Case.common`); this is checked for every photograph.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks.photo_files import load_photo
from deeptaylor.paper.experiment import Arrays, Saved, digest

SIDE = 256  # of the squares, which every network's preparation cuts and leaves as they are
COMMON = 224  # of the middle that every network sees
COPY = 112  # of a small copy
GRAY = (128, 128, 128)

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]  # left, top, right, bottom in a square


class ImagenetError(DeepTaylorError, ValueError):
    """The experiment cannot be made as asked."""


@dataclass(frozen=True)
class PhotoContent:
    """What is on a photograph: classes that are right, a box around the object, and boxes around parts of it.

    Boxes were drawn by hand, on the photographs alone, before any heatmap of them was seen.
    """

    classes: tuple[str, ...]
    object: Box | None = None  # None where it fills the picture
    part: str = ""
    parts: tuple[Box, ...] = ()


# Eight, as in the paper; those that both networks recognise come first.
PHOTO_CONTENTS: Mapping[str, PhotoContent] = {
    "coffee": PhotoContent(
        ("espresso", "cup", "coffee mug"), (44, 8, 204, 134), "the cup's opening", ((44, 8, 204, 134),)
    ),
    "camera": PhotoContent(("tripod",), (112, 96, 206, 256)),
    "lion": PhotoContent(("lion",), (0, 2, 186, 250), "the lion's head", ((62, 2, 180, 135),)),
    "cheetah": PhotoContent(("cheetah",), (22, 26, 244, 256), "the cheetah's head", ((22, 26, 226, 186),)),
    "cheetah-cub": PhotoContent(("cheetah",), (6, 18, 244, 252), "the cub's head", ((6, 18, 240, 172),)),
    "cat": PhotoContent(
        ("tabby", "tiger cat", "Egyptian cat"), None, "the cat's eyes", ((48, 64, 116, 132), (184, 88, 234, 144))
    ),
    "motorcycle": PhotoContent(
        ("moped", "motor scooter"), (0, 56, 256, 236), "the wheels", ((0, 122, 82, 212), (192, 132, 256, 236))
    ),
    "pagoda": PhotoContent(("palace", "monastery", "stupa"), (0, 14, 158, 232)),
}
CREDIT = (
    "cat, coffee and camera from scikit-image (public domain), motorcycle from the Middlebury stereo datasets by way "
    "of scikit-image; pagoda by danielbuechele on Flickr, CC BY 2.0, from scikit-learn; lion and both "
    "cheetahs from gradio"
)


def load_photographs(folder: Path | None = None) -> dict[str, Image.Image]:
    """The squares of the photographs in a folder, by name; of those in packages if none is given."""
    if folder is None:
        return {name: crop_square(assets.path(name)) for name in PHOTO_CONTENTS}
    if not folder.is_dir():
        raise ImagenetError(f"{folder} is not a folder; --photos takes one with photographs in it.")
    known = Image.registered_extensions()
    files = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in known and path.is_file()]
    if not files:
        raise ImagenetError(f"{folder} has no picture in it: no file ends in .jpg, .png or the like.")
    stems = [path.stem for path in files]
    return {path.stem if stems.count(path.stem) == 1 else path.name: crop_square(path) for path in files}


def crop_square(photo: Path | Image.Image) -> Image.Image:
    """The middle of a photograph as a square of 256 pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dt.DeepTaylorWarning)  # gray or transparent pictures are shown as converted
        image = load_photo(photo, "RGB")
    return ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.LANCZOS)


def paste_two_copies(photo: Image.Image) -> Image.Image:
    """Two small copies of a square side by side, gray above and below."""
    found = paste_one_copy(photo)
    found.paste(_copy(photo), (SIDE // 2, (SIDE - COPY) // 2))
    return found


def paste_one_copy(photo: Image.Image) -> Image.Image:
    """The left one of the two copies alone; where the right one was there is gray."""
    found = Image.new("RGB", (SIDE, SIDE), GRAY)
    found.paste(_copy(photo), (SIDE // 2 - COPY, (SIDE - COPY) // 2))
    return found


def paste_beside(photo: Image.Image, other: Image.Image) -> Image.Image:
    """A small copy of a square on the left and one of another photograph on the right."""
    found = paste_one_copy(photo)
    found.paste(_copy(other), (SIDE // 2, (SIDE - COPY) // 2))
    return found


def compose(photos: Sequence[Image.Image]) -> dict[str, list[Image.Image]]:
    """The composed pictures by their kinds: "twice_", "once_" and, of several photographs, "beside_"."""
    away = len(photos) // 2
    return {
        "twice_": [paste_two_copies(photo) for photo in photos],
        "once_": [paste_one_copy(photo) for photo in photos],
        **({"beside_": [paste_beside(photo, photos[n - away]) for n, photo in enumerate(photos)]} if away else {}),
    }


def crop_middle(pictures: Pixels) -> Pixels:
    """What every network sees of squares (…, 256, 256, 3)."""
    start = (SIDE - COMMON) // 2
    return pictures[..., start : start + COMMON, start : start + COMMON, :]


def _copy(photo: Image.Image) -> Image.Image:
    margin = (SIDE - COMMON) // 2
    middle = photo.crop((margin, margin, margin + COMMON, margin + COMMON))
    return middle.resize((COPY, COPY), Image.Resampling.LANCZOS)


def mask_boxes(boxes: Sequence[Box]) -> npt.NDArray[np.bool_]:
    """Where the middle that every network sees lies in one of the boxes."""
    margin = (SIDE - COMMON) // 2
    found = np.zeros((SIDE, SIDE), dtype=bool)
    for left, top, right, bottom in boxes:
        found[top:bottom, left:right] = True
    return found[margin : margin + COMMON, margin : margin + COMMON]


BATCH = 4
ROOT_STEPS = 20  # of the search for a root that is timed
_TIMES = 3  # that a heatmap and a gradient are computed when they are timed


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhotoNetwork:
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


def load_networks(caffenet: Path | None = None, googlenet: Path | None = None) -> dict[str, PhotoNetwork]:
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
        found[key] = PhotoNetwork(key, title if file is None else place, place, model)
    return found


# --- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhotoMethod:
    """A way to explain: its settings for an Explainer, or None for sensitivity."""

    key: str
    title: str
    settings: Mapping[str, Any] | None
    deep_taylor: bool = False  # must be positive


PAPER = "paper"  # what verdicts are about: the paper's rule
METHODS = (
    PhotoMethod("sensitivity", "Sensitivity", None),
    PhotoMethod(PAPER, "Deep Taylor", {"method": "paper"}, deep_taylor=True),
    PhotoMethod("lrp", "LRP (α = 2, β = 1)", {"method": "paper", "rules": {"*": dt.rules.AlphaBeta(2, 1)}}),
    PhotoMethod("ours", "Ours: biases returned, local evidence", {"method": "deep-taylor"}, deep_taylor=True),
)

# What LRP's pixels hold where a bias is no neuron and its share is spread: this is ours, and no figure shows it.
SPREAD = PhotoMethod(
    "lrp-spread",
    "LRP, biases spread",
    {"method": "deep-taylor", "bias": "spread", "local": False, "rules": {"*": dt.rules.AlphaBeta(2, 1)}},
)


def explain_all(
    cases: Mapping[str, PhotoNetwork],
    photos: Mapping[str, Image.Image],
    saved: Saved,
    targets: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Arrays]]:
    """Of every network: "recognised", and every method's maps.

    recognised   "index", "probability" (N,) of the class that is explained: the most probable one ("top"), or the one
                 that ``targets`` names for this photograph ("" for all); "twice", "once": the top class of the composed
                 picture
    a method     "maps" (N, H, W), "score", "input", "bias", "dropped" (N,); for the composed pictures the same with
                 "twice_", "once_" and "beside_" before them, always of the class that the photograph itself was given
    lrp-spread   the same of the photographs alone
    cost         what a root of the first photograph takes, see `measure_cost`
    """
    made = {"": list(photos.values()), **compose(list(photos.values()))}
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
        seen = saved.get(f"{key}-recognised", known, partial(_recognise, case, x, asked))
        found[key] = {"recognised": seen}
        for method in (*METHODS, SPREAD):
            explained = {"": x[""]} if method is SPREAD else x
            make = _prepare_maps(case, method, explained, torch.from_numpy(seen["index"]), saved)
            settings = known | {"method": f"{method.key} {method.settings}"}
            found[key][method.key] = saved.get(f"{key}-{method.key}", settings, make)
        first, target = x[""][:1], int(seen["index"][0])
        found[key]["cost"] = saved.get(f"{key}-cost", known, partial(measure_cost, case, first, target))
    return found


def measure_cost(case: PhotoNetwork, x: Tensor, target: int) -> Arrays:
    """Measure what a short search for a root of one photograph takes, beside a heatmap and a gradient.

    "gradient", "map", "root": seconds of processor time; "kkt": how far the root is from satisfying the conditions of a
    nearest one, over its distance; 1 if no root was found.
    """
    network = case.model.network
    explain = _prepare_method(case, METHODS[1], x)
    explain(x, torch.tensor([target]))  # the first one captures the network

    def take_gradient() -> None:
        y = x.clone().requires_grad_()
        torch.autograd.grad(network(y)[0, target], y)

    def measure(run: Callable[[], object], times: int) -> npt.NDArray[np.float64]:
        began = time.process_time()
        for _ in range(times):
            run()
        return np.array((time.process_time() - began) / times)

    gradient = measure(take_gradient, _TIMES)
    heatmap = measure(lambda: explain(x, torch.tensor([target])), _TIMES)
    began = time.process_time()
    root = dt.nearest_root(network, x, target, domain=case.model.domain, iterations=ROOT_STEPS)
    seconds = np.array(time.process_time() - began)
    kkt = torch.where(root.converged, root.kkt, 1.0)
    return {"gradient": gradient, "map": heatmap, "root": seconds, "kkt": kkt.numpy()}


def _recognise(case: PhotoNetwork, x: Mapping[str, Tensor], asked: Sequence[str | None]) -> Arrays:
    tops = {name: np.array([case.model.top(one, 1)[0][0].index for one in x[name].split(1)]) for name in x}
    index = np.array(
        [top if name is None else case.model.class_index(name) for top, name in zip(tops[""], asked, strict=True)]
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


def _prepare_maps(
    case: PhotoNetwork, method: PhotoMethod, x: Mapping[str, Tensor], target: Tensor, saved: Saved
) -> Callable[[], Arrays]:
    def make() -> Arrays:
        explain = _prepare_method(case, method, x[""][:1])
        found: dict[str, list[npt.NDArray[Any]]] = {}
        for n, name in enumerate(x):
            for start in range(0, len(target), BATCH):
                some = slice(start, start + BATCH)
                e = explain(x[name][some], target[some])
                for part, value in _split_explanation(e).items():
                    found.setdefault(f"{name}{part}", []).append(value)
                saved.talk.share(f"  {case.title}, {method.title}", n * len(target) + start, len(x) * len(target))
        return {part: np.concatenate(values) for part, values in found.items()}

    return make


def _prepare_method(
    case: PhotoNetwork, method: PhotoMethod, example: Tensor
) -> Callable[[Tensor, Tensor], dt.Explanation]:
    network, settings = case.model.network, method.settings
    if settings is None:
        return lambda x, target: dt.sensitivity(network, x, target=target)
    explainer = dt.Explainer(network, example, domain=case.model.domain, **settings)
    return lambda x, target: explainer.explain(x, target=target)


def _split_explanation(e: dt.Explanation) -> Arrays:
    """Heatmaps, and where the scores went."""
    ledger = {name: getattr(e.ledger, name) for name in ("input", "bias", "dropped")}
    parts = {"maps": e.heatmap(), "score": e.score} | ledger
    return {name: value.detach().numpy() for name, value in parts.items()}
