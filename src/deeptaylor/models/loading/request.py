"""What the user says about a network, what its source says, and what one of them must say before it is used.

SourceContent      the network, and what its source knows
LoadRequest      what the user said; overrules the source
Asked.complete(found)  ──► Pretrained, tried once with a gray picture; or an error that shows what to write
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import DeepTaylorError, LoadError
from deeptaylor.graph.capture import list_outputs
from deeptaylor.graph.failure import first_line, is_input_rejected, summarise_error
from deeptaylor.graph.modes import eval_mode
from deeptaylor.models.networks.catalog import CATALOG
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained

__all__ = [
    "Architecture",
    "ClassNames",
    "LoadRequest",
    "MissingArgumentError",
    "SourceContent",
    "check_types",
    "make_gray_input",
]

Architecture = str | Callable[[], nn.Module]
ClassNames = Sequence[str] | None | EllipsisType  # None: they have no names; ...: nobody said

# What may be missing, how to say it, and what else could be said.
_ARCHITECTURE = (
    "what network its tensors belong to",
    'architecture="mobilenet_v2"',
    (
        f'architecture: a name ({", ".join(CATALOG)}), "torchvision:NAME", "timm:NAME", "module:function" '
        "(the module is then imported), or a function that builds the network."
    ),
)
_PREPARATION = (
    "how photographs are prepared",
    'preparation=dt.Preparation(size=224, resize=256, channels="RGB", white=1,\n'
    + " " * 37
    + "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),\n"
    + " " * 37
    + 'interpolation="bilinear")',
    "preparation: domain=dt.Real() or another domain in its place if inputs are not photographs.",
)
_CLASS_NAMES = (
    "what its classes are called",
    'class_names=["cat", "dog", "fish"]',
    'class_names: None if classes have no names, "imagenet" for the thousand of ILSVRC.',
)


class MissingArgumentError(LoadError):
    """The source does not say what is needed, and neither did the user.

    missing   what, in words, and the argument of `load` that says it
    """

    def __init__(self, name: str, missing: tuple[tuple[str, str], ...], message: str) -> None:
        super().__init__(message)
        self.name, self.missing = name, missing


@dataclass(frozen=True)
class SourceContent:
    """A network and what its source says about it."""

    network: nn.Module
    preparation: Preparation | None = None
    class_names: ClassNames = ...
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadRequest:
    """What the user asked for, and said about it; ``name`` is the source as errors call it."""

    name: str
    preparation: Preparation | None = None
    domain: Domain | None = None
    class_names: ClassNames = ...
    weights: Path | None = None
    prototxt: Path | None = None
    architecture: Architecture | None = None
    output: str | None = None
    trust: bool = False
    in_memory: bool = False  # the source is a network, and the name its class
    fixed: Mapping[str, Any] | None = None  # values of inputs that are not explained
    shapes: Mapping[str, Sequence[int | None]] | None = None  # of inputs whose sizes a file leaves open

    @property
    def source(self) -> str:
        """The source as one writes it in Python."""
        return "model" if self.in_memory else f'"{self.name}"'

    def require(self, preparation: bool = True, class_names: bool = True, architecture: bool = False) -> None:
        """Raise, with an example, if neither the user nor the source says what is needed."""
        missing = [
            (architecture, *_ARCHITECTURE),
            (preparation and self.preparation is None and self.domain is None, *_PREPARATION),
            (class_names and self.class_names is ..., *_CLASS_NAMES),
        ]
        asked = [(what, example, advice) for needed, what, example, advice in missing if needed]
        if asked:
            raise MissingArgumentError(
                self.name,
                tuple((what, example.partition("=")[0]) for what, example, _ in asked),
                f"{self.name} does not say {', nor '.join(what for what, _, _ in asked)}. A wrong guess would not be "
                "noticed, so nothing is guessed; please say it. An example, with numbers that are not yours:\n\n"
                + ",\n          ".join([f"  dt.load({self.source}", *(example for _, example, _ in asked)])
                + ")\n\n"
                + "\n".join(advice for _, _, advice in asked),
            )

    def complete(self, found: SourceContent) -> Pretrained:
        """Return the network with everything that belongs to it."""
        self.require(found.preparation is None, found.class_names is ...)
        names = found.class_names if isinstance(self.class_names, EllipsisType) else self.class_names
        class_names = None if names is None or isinstance(names, EllipsisType) else tuple(names)
        if self.domain is not None:
            return Pretrained(found.network, class_names, None, self.domain, found.notes)
        preparation = self.preparation or found.preparation
        assert preparation is not None
        network, notes = found.network, found.notes
        if _has_channels_last(network, preparation):
            network, notes = (
                _ChannelsLastNetwork(network),
                (*notes, "the file has the channels last; here they come first"),
            )
        model = Pretrained(network, class_names, preparation, notes=notes)
        self._try(model)
        return model

    def _try(self, model: Pretrained) -> None:
        """Run the network on one gray picture; raise if size, channels or number of classes do not fit."""
        assert model.preparation is not None
        weights = list(model.network.parameters())
        if any(w.is_meta for w in weights):
            raise LoadError(f"{self.name} has no weights yet: they are on the device 'meta'.")
        x = make_gray_input(model.preparation).to(weights[0].device if weights else "cpu")
        declared = getattr(model.network, "input_shape", None)
        if declared is not None and not _fits_shape(declared, tuple(x.shape[1:])):
            raise LoadError(
                f"{self.name} takes samples of shape {tuple(declared)}, but the preparation makes {tuple(x.shape[1:])}."
            )
        try:
            with eval_mode(model.network), torch.no_grad():
                output = model.network(x)
        except DeepTaylorError:
            raise
        except Exception as error:
            if not is_input_rejected(error):
                raise LoadError(f"{self.name}: its own forward pass raises {summarise_error(error)}.") from error
            raise LoadError(
                f"{self.name} does not take an input of shape {tuple(x.shape)}, as it is prepared: "
                + first_line(error)
                + "".join(
                    f". It computes in {kind}; convert it: network.float()" for kind in _find_other_dtypes(weights)
                )
            ) from error
        has_places = _has_places(output)
        if not has_places and (not isinstance(output, Tensor) or output.ndim not in (1, 2) or len(output) != 1):
            given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise LoadError(
                f"{self.name} gives {given} for one picture, and not one number per class, (1, classes); "
                "wrap the network in a module that returns that."
            )
        first = next(t for _, t in list_outputs(output))
        if not bool(first.isfinite().all()):
            given = ", ".join(f"{y:g}" for y in first.flatten()[:3].tolist())
            raise LoadError(
                f"{self.name} gives {given}, … for a gray picture: its weights are damaged, or the preparation "
                "is not the one it was trained with."
            )
        classes = first.numel()
        if not has_places and model.class_names is not None and len(model.class_names) != classes:
            raise LoadError(f"{self.name} has {classes} outputs, but there are {len(model.class_names)} class names.")


def _has_places(output: Any) -> bool:
    """Return True for boxes of a detector or a dense output, alone or among several."""
    tensors = [t for _, t in list_outputs(output)]
    return all(t.ndim and len(t) == 1 for t in tensors) and any(
        t.ndim in (3, 4) and t.shape[2:].numel() > 1 for t in tensors
    )


def _find_other_dtypes(weights: list[nn.Parameter]) -> list[str]:
    """List the real dtypes of weights that are not the dtype of a photograph."""
    return sorted({str(w.dtype) for w in weights if w.is_floating_point() and w.dtype is not torch.float32})


class _ChannelsLastNetwork(nn.Module):
    """A network that takes (batch, height, width, channels), for inputs with the channels first."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.network(x.permute(0, 2, 3, 1))
        return y


def _has_channels_last(network: nn.Module, preparation: Preparation) -> bool:
    """Return whether the declared input shape can only have the channels last."""
    declared, (channels, *sides) = getattr(network, "input_shape", None), preparation.shape
    if declared is None or _fits_shape(declared, preparation.shape):
        return False
    return _fits_shape(declared, (*sides, channels))


def make_gray_input(preparation: Preparation) -> Tensor:
    """Make an input in the middle of its box."""
    low, high = preparation.domain.bounds(torch.zeros(1, *preparation.shape))
    return ((low + high) / 2).expand(1, *preparation.shape).contiguous()


def _fits_shape(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    return len(declared) == len(shape) and all(d in (None, n) for d, n in zip(declared, shape, strict=True))


def check_types(source: object, preparation: object, domain: object, class_names: object) -> None:
    """Raise for arguments of a wrong type; class names in a dict or a set would be read in a wrong order."""
    for name, given, kinds, wanted in (
        ("source", source, (str, os.PathLike, nn.Module), "a name, a file or a torch.nn.Module"),
        ("preparation", preparation, (Preparation, NoneType), "a dt.Preparation"),
        ("domain", domain, (Domain, NoneType), "a domain, such as dt.Box(0, 1)"),
        ("class_names", class_names, (list, tuple, NoneType, EllipsisType), "a list of names, in order"),
    ):
        if not isinstance(given, kinds):
            raise LoadError(f"{name} is a {type(given).__name__}; it must be {wanted}.")
    if isinstance(class_names, list | tuple) and not all(isinstance(name, str) for name in class_names):
        raise LoadError("class_names must be text, each of them.")
