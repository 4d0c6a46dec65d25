"""Networks by way of other libraries, where they are installed: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``.

Each library says how photographs are prepared for a network, in words of its own. They are read into a `Preparation`,
which is then compared with what the library itself makes of a picture: where the two differ, or where something is not
said, the preparation counts as unknown. Weights are fetched by these libraries as they do by themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.errors import InputError, LoadError
from deeptaylor.models.loading.asked import ClassNames, Found
from deeptaylor.models.loading.files import COUNTS, listed
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.support.optional import optional_package

__all__ = ["HUBS", "called", "from_hub", "package", "read_folder", "untrained"]

HUBS = ("timm", "torchvision", "hf")
_TOLERANCE = 0.02  # of the box: a pixel's shift on the test picture is a third of it
_ILSVRC = re.compile(r"(^|_)in1k(_\d+)?$")  # how timm calls weights that were last trained on it
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def from_hub(source: str, weights: str | None) -> Found:
    """The trained network that a source such as ``timm:resnet50`` names; ``weights`` is a name among several."""
    library, _, name = source.partition(":")
    if weights is not None and library != "torchvision":
        raise LoadError(
            f"{source}: weights={weights!r} is not a file, and {library} knows its weights by the name alone."
        )
    return _timm(name) if library == "timm" else _transformers(name) if library == "hf" else _torchvision(name, weights)


def untrained(source: str) -> nn.Module:
    """The architecture alone, for weights out of a file."""
    library, _, name = source.partition(":")
    if library == "timm":
        network: nn.Module = called(source, lambda: package("timm").create_model(name, pretrained=False))
    elif library == "torchvision":
        network = called(source, lambda: package("torchvision.models").get_model(name, weights=None))
    else:
        raise LoadError(
            f"{source}: transformers needs its own folder with config.json; load it with dt.load({source!r})."
        )
    return network.eval()


def _timm(name: str) -> Found:
    timm, data = package("timm"), package("timm.data")
    network = called(f"timm:{name}", lambda: timm.create_model(name, pretrained=True)).eval()
    config = data.resolve_model_data_config(network)
    size = tuple(config["input_size"])[1:]
    larger = tuple(math.floor(side / config["crop_pct"]) for side in size)
    resize: Any = {"squash": larger, "center": larger[0] if size[0] == size[1] else None}.get(config["crop_mode"])
    said = {
        "size": size,
        "resize": resize,
        "channels": "RGB",
        "white": 1,
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
        "interpolation": config["interpolation"],
    }
    own = data.create_transform(**config, is_training=False)
    names: ClassNames = ...
    # Elsewhere timm concludes from the number of classes alone, which a network of somebody's own may share.
    if network.num_classes == 1000 and _ILSVRC.search(str(network.pretrained_cfg.get("tag", ""))):
        info = data.ImageNetInfo("imagenet-1k")
        names = tuple(str(info.index_to_description(index)).split(",")[0] for index in range(1000))
    return Found(network, _prepared(said, own), names)


def _torchvision(name: str, which: str | None) -> Found:
    models = package("torchvision.models")
    known = called(f"torchvision:{name}", lambda: models.get_model_weights(name))
    members = list(known.__members__)
    if not members or (which is not None and which not in members):
        raise LoadError(
            f"torchvision:{name} has no weights called {which or 'DEFAULT'}; there are: {', '.join(members) or 'none'}."
        )
    weights = known[which] if which is not None else known.DEFAULT
    network = called(f"torchvision:{name}", lambda: models.get_model(name, weights=weights)).eval()
    own = weights.transforms()
    said = {
        "size": _one(getattr(own, "crop_size", None)),
        "resize": _one(getattr(own, "resize_size", None)),
        "channels": "RGB",
        "white": 1,
        "mean": tuple(getattr(own, "mean", ())),
        "std": tuple(getattr(own, "std", ())),
        "interpolation": str(getattr(getattr(own, "interpolation", ""), "value", "")),
    }
    names = tuple(weights.meta.get("categories", ())) or ...
    return Found(network, _prepared(said, own), names, (f"weights: {weights}",))


class _Logits(nn.Module):
    """A network of transformers as a function from pixels to logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.network(pixel_values=pixel_values).logits
        return logits


def _transformers(name: str) -> Found:
    library = package("transformers")
    # Said each time: left unsaid, transformers asks at the terminal whether a repository's own Python files may run.
    safe = {"trust_remote_code": False}
    automatic = library.AutoModelForImageClassification
    network = read_folder(automatic, name, (), **safe)
    labels = {int(index): str(label) for index, label in network.config.id2label.items()}
    named = any(label != f"LABEL_{index}" for index, label in labels.items())
    names = tuple(labels[index] for index in sorted(labels)) if named else ...
    try:
        processor = library.AutoImageProcessor.from_pretrained(name, backend="pil", **safe)
    except (OSError, ValueError, ImportError, TypeError):
        return Found(_Logits(network), None, names)
    said = _from_processor(processor.to_dict())

    def own(picture: Image.Image) -> Tensor:
        pixels: Tensor = processor(picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    return Found(_Logits(network), _prepared(said, own), names)


def read_folder(automatic: Any, name: str, unused: tuple[str, ...], **settings: Any) -> Any:
    """Return the network of ``hf:name`` in eval mode; raise if weights are missing, which transformers draws at random.

    unused   how the names of weights begin that what is explained does not depend on
    """
    network, found = called(f"hf:{name}", lambda: automatic.from_pretrained(name, output_loading_info=True, **settings))
    missing = sorted(k for k in found["missing_keys"] if not k.endswith(COUNTS) and not k.startswith(unused))
    if missing:
        raise LoadError(
            f"the weights in hf:{name} do not fit {type(network).__name__}:"
            + listed("the network needs and the file lacks", missing)
            + listed("the file has and the network does not know", sorted(found["unexpected_keys"]))
            + "\nIs the file whole, and was it saved from this kind of network?"
        )
    return network.eval()


def _from_processor(config: Mapping[str, Any]) -> dict[str, Any]:
    size, crop = config.get("size") or {}, config.get("crop_size") or {}
    short, exact = size.get("shortest_edge"), (size.get("height"), size.get("width"))
    resize: Any = short or exact
    cut: Any = (crop.get("height"), crop.get("width")) if config.get("do_center_crop") else exact
    if short and config.get("crop_pct"):
        # ConvNeXt's: cut out of a larger picture when small, squeezed when large.
        cut, resize = (short, short), int(short / config["crop_pct"]) if short < 384 else (short, short)
    normalised = bool(config.get("do_normalize"))
    return {
        "size": cut,
        "resize": resize,
        "channels": "BGR" if config.get("do_flip_channel_order") else "RGB",
        "white": 255 * config["rescale_factor"] if config.get("do_rescale") else 255,
        "mean": tuple(config["image_mean"]) if normalised else 0.0,
        "std": tuple(config["image_std"]) if normalised else 1.0,
        "interpolation": _RESAMPLING.get(int(config.get("resample") or 0)),
    }


def _prepared(said: dict[str, Any], own: Callable[[Image.Image], Tensor]) -> Preparation | None:
    """The preparation, if it is whole and makes of a picture what the library's own makes of it."""
    try:
        preparation = Preparation(**said)
        picture = _gradients()
        ours, theirs = preparation(picture)[0][0], torch.as_tensor(own(picture))
    except (InputError, TypeError, ValueError, RuntimeError, KeyError):
        return None
    low, high = preparation.domain.bounds(ours.unsqueeze(0))
    if ours.shape != theirs.shape:
        return None
    return preparation if bool(((ours - theirs).abs() <= _TOLERANCE * (high - low)[0]).all()) else None


def _gradients() -> Image.Image:
    """A smooth picture, wider than high, with another colour everywhere."""
    rows, columns = np.mgrid[0:1:480j, 0:1:640j]
    values = np.stack([rows, columns, 1 - rows * columns], axis=2)
    return Image.fromarray(np.round(255 * values).astype(np.uint8))


def _one(sides: Any) -> Any:
    """torchvision writes a side as a list of one."""
    return sides[0] if isinstance(sides, list | tuple) and len(sides) == 1 else tuple(sides) if sides else None


def package(module: str) -> Any:
    """A library, or an error that says how to get it."""
    name = module.partition(".")[0]
    prefix, extra = ("hf", "text") if name == "transformers" else (name, None)
    return optional_package(module, f"{prefix}:… names a network of the package {name}", extra)


def called(source: str, call: Callable[[], Any]) -> Any:
    """What a library gives; whatever it raises is said with the source in front."""
    try:
        return call()
    except Exception as error:  # each library raises its own
        raise LoadError(f"{source} could not be had: {_line(error)}{_beneath(error)}") from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _beneath(error: BaseException) -> str:
    """Of a package that cannot be imported, what it stumbled over: often another one that does not fit to torch."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return f" What it stumbled over: {_line(first)}" if isinstance(error, ImportError) and first is not error else ""
