"""Networks that read texts, by way of `transformers`: a folder or a name, or a network and its tokenizer in memory.

Weights are read from safetensors files alone, and no code of a repository is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from deeptaylor.errors import LoadError
from deeptaylor.models.loading.asked import ClassNames
from deeptaylor.models.loading.hubs import called, package, read_folder
from deeptaylor.text.model import TextModel, kind_named

__all__ = ["text_network"]

_AUTOMATIC = {
    "classifier": "AutoModelForSequenceClassification",
    "language model": "AutoModelForCausalLM",
    "encoder–decoder": "AutoModelForSeq2SeqLM",
    "embedding": "AutoModel",
}
_MEAN = "the source does not say how the vectors of tokens are pooled: their mean is taken"
# Said each time: left unsaid, transformers asks at the terminal whether a repository's own Python files may run.
_SAFE = {"trust_remote_code": False}


def text_network(source: object, tokenizer: Any, kind: str | None, class_names: ClassNames) -> TextModel | None:
    """What reads texts, with its tokenizer; None for any other network."""
    if isinstance(source, nn.Module) and tokenizer is not None:
        return _in_memory(source, tokenizer, kind, class_names)
    if isinstance(source, str) and source.startswith("hf:"):
        name = source.removeprefix("hf:")
        name = str(Path(name).expanduser()) if name.startswith("~") else name
        config = _config(name)
        other = [name for name in _architectures(config) if "Image" in name or "Audio" in name]
        if not other and (kind is not None or _architectures(config)):
            return _from_folder(name, config, kind, tokenizer, class_names)
    if tokenizer is not None or kind is not None:
        raise LoadError(
            "tokenizer= and kind= belong to networks of transformers that read texts: hf:NAME, or a module."
        )
    return None


def _from_folder(name: str, config: Any, kind: str | None, tokenizer: Any, class_names: ClassNames) -> TextModel:
    """The network that ``hf:name`` is, with its tokenizer."""
    library = package("transformers")
    kind = kind or _kind(f"hf:{name}", _architectures(config))
    if kind not in _AUTOMATIC:
        raise LoadError(f"kind={kind!r}: one of {', '.join(map(repr, _AUTOMATIC))}.")
    automatic = getattr(library, _AUTOMATIC[kind])
    with _without_bar(library, name):
        # An embedding pools the vectors of tokens itself, and many such folders leave the network's own pooler out.
        unused = ("pooler.",) if kind == "embedding" else ()
        network = read_folder(automatic, name, unused, use_safetensors=True, **_SAFE)
    if tokenizer is None:
        tokenizer = called(f"hf:{name}", lambda: library.AutoTokenizer.from_pretrained(name, **_SAFE))
    pooling, notes = _pooling(name) if kind == "embedding" else ("mean", ())
    return TextModel(network, tokenizer, kind, _names(network, kind, class_names), pooling, notes=notes)


@contextmanager
def _without_bar(library: Any, name: str) -> Iterator[None]:
    """Without the bar that transformers draws while it reads a folder; downloads keep theirs."""
    logging = library.utils.logging
    shown = Path(name).is_dir() and logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _in_memory(network: nn.Module, tokenizer: Any, kind: str | None, class_names: ClassNames) -> TextModel:
    """A network and its tokenizer."""
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise LoadError(
            f"tokenizer is a {type(tokenizer).__name__}; one of transformers is needed, such as "
            "PreTrainedTokenizerFast(tokenizer_object=…)."
        )
    kind = kind or _kind("the network", [type(network).__name__])
    notes = (_MEAN,) if kind == "embedding" else ()
    return TextModel(network, tokenizer, kind, _names(network, kind, class_names), notes=notes)


def _config(name: str) -> Any:
    library = package("transformers")
    there = Path(name).is_dir()
    if not there and (name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1):
        raise LoadError(f"hf:{name}: there is no such folder.")
    source = f"hf:{name}" if there else f"hf:{name}, which is no folder here and was looked for on the hub,"
    return called(source, lambda: library.AutoConfig.from_pretrained(name, **_SAFE))


def _architectures(config: Any) -> list[str]:
    return [str(name) for name in getattr(config, "architectures", None) or []]


def _kind(source: str, architectures: list[str]) -> str:
    found = next((kind for kind in map(kind_named, architectures) if kind is not None), None)
    if found is None:
        said = ", ".join(architectures) or "nothing"
        raise LoadError(
            f"{source} says of itself that it is {said}, which does not tell what is to be explained; say "
            f"kind= one of {', '.join(map(repr, _AUTOMATIC))}."
        )
    return found


def _names(network: nn.Module, kind: str, asked: ClassNames) -> tuple[str, ...] | None:
    """The classes' names: those that the user gave, or the network's own; none where it only numbers them."""
    if asked is None or kind != "classifier":
        return None
    if asked is not ...:
        return tuple(asked)
    own = {int(index): str(label) for index, label in getattr(getattr(network, "config", None), "id2label", {}).items()}
    named = any(label != f"LABEL_{index}" for index, label in own.items())
    return tuple(own[index] for index in sorted(own)) if named else None


_POOLINGS = {"mean": "pooling_mode_mean_tokens", "first": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
_NAMED = {"mean": "mean", "cls": "first", "lasttoken": "last"}  # as a newer file says it in one word


def _pooling(name: str) -> tuple[str, tuple[str, ...]]:
    """How the vectors of tokens become one, as sentence-transformers writes it into the folder."""
    _check_modules(Path(name) / "modules.json")
    for place in sorted(Path(name).glob("*Pooling/config.json")):
        said = json.loads(place.read_text(encoding="utf-8"))
        chosen = [pooling for pooling, key in _POOLINGS.items() if said.get(key)]
        chosen += [_NAMED[said["pooling_mode"]]] if said.get("pooling_mode") in _NAMED else []
        if len(chosen) == 1:
            return chosen[0], ()
        raise LoadError(f"{place}: of its ways to pool, mean, first or last token can be explained, and one at a time.")
    return "mean", (_MEAN,)


def _check_modules(place: Path) -> None:
    """Refuse parts of sentence-transformers that come behind the pooling, but scaling, which leaves the cosine."""
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
