"""Networks by way of other libraries, where they are installed: ``timm:NAME``, ``torchvision:NAME``, ``hf:NAME``.

Each library says how photographs are prepared for a network, in words of its own. They are read into a `Preparation`,
which is then compared with what the library itself makes of a picture: where the two differ, or where something is not
said, the preparation counts as unknown. Weights are fetched by these libraries as they do by themselves.

Networks that read texts come from `transformers`: a folder or a name, or a network and its tokenizer in memory. Their
weights are read from safetensors files alone, and no code of a repository is run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.errors import InputError, LoadError
from deeptaylor.graph.failure import first_line
from deeptaylor.models.loading.model_files import COUNTS, format_list
from deeptaylor.models.loading.request import ClassNames, SourceContent
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.support.optional import optional_package
from deeptaylor.text.model import TextModel, find_kind

__all__ = [
    "HUBS",
    "build_untrained",
    "call_library",
    "from_hub",
    "import_package",
    "is_pipeline",
    "load_text_model",
    "read_folder",
    "read_image_pipeline",
]

HUBS = ("timm", "torchvision", "hf")
_TOLERANCE = 0.02  # of the box: a pixel's shift on the test picture is a third of it
_ILSVRC = re.compile(r"(^|_)in1k(_\d+)?$")  # how timm calls weights that were last trained on it
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def from_hub(source: str, weights: str | None) -> SourceContent:
    """Load the trained network that a source such as ``timm:resnet50`` names; ``weights`` is a name among several."""
    library, _, name = source.partition(":")
    if weights is not None and library != "torchvision":
        raise LoadError(
            f"{source}: the weights {weights!r} are not a file, and {library} finds weights by the network's name "
            "alone."
        )
    return (
        _load_timm(name)
        if library == "timm"
        else _load_transformers(name)
        if library == "hf"
        else _load_torchvision(name, weights)
    )


def build_untrained(source: str) -> nn.Module:
    """Build the architecture alone, for weights out of a file."""
    library, _, name = source.partition(":")
    if library == "timm":
        network: nn.Module = call_library(source, lambda: import_package("timm").create_model(name, pretrained=False))
    elif library == "torchvision":
        network = call_library(source, lambda: import_package("torchvision.models").get_model(name, weights=None))
    else:
        raise LoadError(
            f"{source}: transformers needs its own folder with config.json; load it with dt.load({source!r})."
        )
    return network.eval()


def _load_timm(name: str) -> SourceContent:
    timm, data = import_package("timm"), import_package("timm.data")
    network = call_library(f"timm:{name}", lambda: timm.create_model(name, pretrained=True)).eval()
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
    return SourceContent(network, _make_preparation(said, own), names)


def _load_torchvision(name: str, which: str | None) -> SourceContent:
    models = import_package("torchvision.models")
    known = call_library(f"torchvision:{name}", lambda: models.get_model_weights(name))
    members = list(known.__members__)
    if not members or (which is not None and which not in members):
        raise LoadError(
            f"torchvision:{name} has no weights called {which or 'DEFAULT'}; there are: {', '.join(members) or 'none'}."
        )
    weights = known[which] if which is not None else known.DEFAULT
    network = call_library(f"torchvision:{name}", lambda: models.get_model(name, weights=weights)).eval()
    own = weights.transforms()
    said = {
        "size": _unwrap_side(getattr(own, "crop_size", None)),
        "resize": _unwrap_side(getattr(own, "resize_size", None)),
        "channels": "RGB",
        "white": 1,
        "mean": tuple(getattr(own, "mean", ())),
        "std": tuple(getattr(own, "std", ())),
        "interpolation": str(getattr(getattr(own, "interpolation", ""), "value", "")),
    }
    names = tuple(weights.meta.get("categories", ())) or ...
    return SourceContent(network, _make_preparation(said, own), names, (f"weights: {weights}",))


class _Logits(nn.Module):
    """A network of transformers as a function from pixels to logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.network(pixel_values=pixel_values).logits
        return logits


def _load_transformers(name: str) -> SourceContent:
    library = import_package("transformers")
    # Said each time: left unsaid, transformers asks at the terminal whether a repository's own Python files may run.
    safe = {"trust_remote_code": False}
    automatic = library.AutoModelForImageClassification
    network = read_folder(automatic, name, (), **safe)
    try:
        processor = library.AutoImageProcessor.from_pretrained(name, backend="pil", **safe)
    except (OSError, ValueError, ImportError, TypeError):
        processor = None
    return _read_image_network(network, processor)


def _read_image_network(network: Any, processor: Any) -> SourceContent:
    """Return a network of transformers that reads photographs, with what its processor says of their preparation."""
    labels = {int(index): str(label) for index, label in network.config.id2label.items()}
    named = any(label != f"LABEL_{index}" for index, label in labels.items())
    names = tuple(labels[index] for index in sorted(labels)) if named else ...
    if processor is None:
        return SourceContent(_Logits(network), None, names)
    said = _read_processor(processor.to_dict())

    def own(picture: Image.Image) -> Tensor:
        pixels: Tensor = processor(picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    return SourceContent(_Logits(network), _make_preparation(said, own), names)


def read_folder(automatic: Any, name: str, unused: tuple[str, ...], **settings: Any) -> Any:
    """Return the network of ``hf:name`` in eval mode; raise if weights are missing, which transformers draws at random.

    unused   how the names of weights begin that what is explained does not depend on
    """
    network, found = call_library(
        f"hf:{name}", lambda: automatic.from_pretrained(name, output_loading_info=True, **settings)
    )
    missing = sorted(k for k in found["missing_keys"] if not k.endswith(COUNTS) and not k.startswith(unused))
    if missing:
        raise LoadError(
            f"the weights in hf:{name} do not fit {type(network).__name__}:"
            + format_list("the network needs and the file lacks", missing)
            + format_list("the file has and the network lacks", sorted(found["unexpected_keys"]))
            + "\nIs the file whole, and was it saved from this kind of network?"
        )
    return network.eval()


def _read_processor(config: Mapping[str, Any]) -> dict[str, Any]:
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


def _make_preparation(said: dict[str, Any], own: Callable[[Image.Image], Tensor]) -> Preparation | None:
    """Return the preparation if it is complete and agrees with the library's own on a test picture, else None."""
    try:
        preparation = Preparation(**said)
        picture = _make_gradients()
        ours, theirs = preparation(picture)[0][0], torch.as_tensor(own(picture))
    except (InputError, TypeError, ValueError, RuntimeError, KeyError):
        return None
    low, high = preparation.domain.bounds(ours.unsqueeze(0))
    if ours.shape != theirs.shape:
        return None
    return preparation if bool(((ours - theirs).abs() <= _TOLERANCE * (high - low)[0]).all()) else None


def _make_gradients() -> Image.Image:
    """Make a smooth picture, wider than high, with another colour everywhere."""
    rows, columns = np.mgrid[0:1:480j, 0:1:640j]
    values = np.stack([rows, columns, 1 - rows * columns], axis=2)
    return Image.fromarray(np.round(255 * values).astype(np.uint8))


def _unwrap_side(sides: Any) -> Any:
    """Return the side of a list of one, as torchvision writes it."""
    return sides[0] if isinstance(sides, list | tuple) and len(sides) == 1 else tuple(sides) if sides else None


def import_package(module: str) -> Any:
    """Import a library; raise an error that says how to install it."""
    name = module.partition(".")[0]
    prefix, extra = ("hf", "text") if name == "transformers" else (name, None)
    return optional_package(module, f"{prefix}:… names a network of the package {name}", extra)


def call_library(source: str, call: Callable[[], Any]) -> Any:
    """Return the result of a library's function; raise a LoadError that names the source if it fails."""
    try:
        return call()
    except Exception as error:  # each library raises its own
        raise LoadError(f"{source} could not be loaded: {first_line(error)}{_describe_cause(error)}") from error


def _describe_cause(error: BaseException) -> str:
    """Name the first cause of a failed import: often another package that does not fit torch."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return f" The cause: {first_line(first)}" if isinstance(error, ImportError) and first is not error else ""


# --- pipelines --------------------------------------------------------------------------------------------------------


def is_pipeline(source: object) -> bool:
    """Return whether an object is a pipeline of transformers."""
    return any(kind.__module__.startswith("transformers.pipelines") for kind in type(source).__mro__)


def read_image_pipeline(source: Any) -> SourceContent:
    """Return the network of a pipeline that reads photographs; raise LoadError if it reads anything else."""
    if "ImageClassification" not in type(source.model).__name__:
        raise LoadError(
            f"Pipelines that classify texts or pictures, continue texts or embed them can be loaded; this "
            f"{type(source).__name__} has the network {type(source.model).__name__}."
        )
    return _read_image_network(source.model.eval(), source.image_processor)


# --- networks that read texts -----------------------------------------------------------------------------------------


_AUTO_CLASSES = {
    "classifier": "AutoModelForSequenceClassification",
    "language model": "AutoModelForCausalLM",
    "encoder–decoder": "AutoModelForSeq2SeqLM",
    "embedding": "AutoModel",
}
_MEAN = "the source does not say how the vectors of tokens are pooled: their mean is taken"
# Said each time: left unsaid, transformers asks at the terminal whether a repository's own Python files may run.
_SAFE = {"trust_remote_code": False}


def load_text_model(source: object, tokenizer: Any, kind: str | None, class_names: ClassNames) -> TextModel | None:
    """Load a network that reads texts, with its tokenizer; return None for any other network."""
    if is_pipeline(source) and find_kind(type(source.model).__name__) is not None:  # type: ignore[attr-defined]
        source, tokenizer = source.model, tokenizer or source.tokenizer  # type: ignore[attr-defined]
    if isinstance(source, nn.Module) and tokenizer is not None:
        return _wrap_in_memory(source, tokenizer, kind, class_names)
    if isinstance(source, str) and source.startswith("hf:"):
        name = source.removeprefix("hf:")
        name = str(Path(name).expanduser()) if name.startswith("~") else name
        config = _read_config(name)
        other = [name for name in _list_architectures(config) if "Image" in name or "Audio" in name]
        if not other and (kind is not None or _list_architectures(config)):
            return _load_text_folder(name, config, kind, tokenizer, class_names)
    if tokenizer is not None or kind is not None:
        raise LoadError(
            "tokenizer= and kind= belong to networks of transformers that read texts: hf:NAME, or a module."
        )
    return None


def _load_text_folder(name: str, config: Any, kind: str | None, tokenizer: Any, class_names: ClassNames) -> TextModel:
    """Load the network of ``hf:name`` with its tokenizer."""
    library = import_package("transformers")
    kind = kind or _find_kind(f"hf:{name}", _list_architectures(config))
    if kind not in _AUTO_CLASSES:
        raise LoadError(f"kind={kind!r}: one of {', '.join(map(repr, _AUTO_CLASSES))}.")
    automatic = getattr(library, _AUTO_CLASSES[kind])
    with _hide_progress_bar(library, name):
        # An embedding pools the vectors of tokens itself, and many such folders leave the network's own pooler out.
        unused = ("pooler.",) if kind == "embedding" else ()
        network = read_folder(automatic, name, unused, use_safetensors=True, **_SAFE)
    if tokenizer is None:
        tokenizer = call_library(f"hf:{name}", lambda: library.AutoTokenizer.from_pretrained(name, **_SAFE))
    pooling, notes = _read_pooling(name) if kind == "embedding" else ("mean", ())
    return TextModel(network, tokenizer, kind, _find_class_names(network, kind, class_names), pooling, notes=notes)


@contextmanager
def _hide_progress_bar(library: Any, name: str) -> Iterator[None]:
    """Hide the progress bar of transformers while it reads a folder; downloads keep theirs."""
    logging = library.utils.logging
    shown = Path(name).is_dir() and logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _wrap_in_memory(network: nn.Module, tokenizer: Any, kind: str | None, class_names: ClassNames) -> TextModel:
    """Return a network in memory with its tokenizer as a text model."""
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise LoadError(
            f"tokenizer is a {type(tokenizer).__name__}; one of transformers is needed, such as "
            "PreTrainedTokenizerFast(tokenizer_object=…)."
        )
    kind = kind or _find_kind("the network", [type(network).__name__])
    notes = (_MEAN,) if kind == "embedding" else ()
    return TextModel(network, tokenizer, kind, _find_class_names(network, kind, class_names), notes=notes)


def _read_config(name: str) -> Any:
    library = import_package("transformers")
    there = Path(name).is_dir()
    if not there and (name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1):
        raise LoadError(f"hf:{name}: there is no such folder.")
    source = f"hf:{name}" if there else f"hf:{name}, which is no folder here and was looked for on the hub,"
    return call_library(source, lambda: library.AutoConfig.from_pretrained(name, **_SAFE))


def _list_architectures(config: Any) -> list[str]:
    return [str(name) for name in getattr(config, "architectures", None) or []]


def _find_kind(source: str, architectures: list[str]) -> str:
    found = next((kind for kind in map(find_kind, architectures) if kind is not None), None)
    if found is None:
        said = ", ".join(architectures) or "nothing"
        raise LoadError(
            f"{source} is {said} by its configuration, which does not determine what is to be explained; say "
            f"kind= one of {', '.join(map(repr, _AUTO_CLASSES))}."
        )
    return found


def _find_class_names(network: nn.Module, kind: str, asked: ClassNames) -> tuple[str, ...] | None:
    """Return the class names of the user, or those of the network unless it only numbers its classes."""
    if asked is None or kind != "classifier":
        return None
    if asked is not ...:
        return tuple(asked)
    own = {int(index): str(label) for index, label in getattr(getattr(network, "config", None), "id2label", {}).items()}
    named = any(label != f"LABEL_{index}" for index, label in own.items())
    return tuple(own[index] for index in sorted(own)) if named else None


_POOLINGS = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
_NAMED = {"mean": "mean", "cls": "first", "lasttoken": "last"}  # as a newer file says it in one word


def _read_pooling(name: str) -> tuple[str, tuple[str, ...]]:
    """Return how the vectors of tokens become one, as sentence-transformers writes it into the folder, and notes."""
    _check_modules(Path(name) / "modules.json")
    for place in sorted(Path(name).glob("*Pooling/config.json")):
        said = json.loads(place.read_text(encoding="utf-8"))
        chosen = [pooling for pooling, key in _POOLINGS.items() if said.get(key)]
        chosen += [_NAMED[said["pooling_mode"]]] if said.get("pooling_mode") in _NAMED else []
        if len(chosen) == 1:
            return chosen[0], ()
        raise LoadError(f"{place}: only one pooling can be explained: mean, first or last token.")
    return "mean", (_MEAN,)


def _check_modules(place: Path) -> None:
    """Raise if parts of sentence-transformers other than scaling, which leaves the cosine, follow the pooling."""
    if not place.is_file():
        return
    kinds = [str(part.get("type", "")).rpartition(".")[2] for part in json.loads(place.read_text(encoding="utf-8"))]
    strange = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if strange:
        raise LoadError(
            f"{place}: the embedding goes through a part called {strange[0]} behind the pooling, which is not read "
            "here, so that another similarity would be explained. Write the network as one module, and give it to "
            'dt.load(network, tokenizer=…, kind="embedding").'
        )
