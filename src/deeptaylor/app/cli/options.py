"""Options that several verbs share, as groups: a verb that takes a group takes all of its options.

Model    the network, and the information that its file does not contain
How      the method and its settings
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import deeptaylor as dt
from deeptaylor.app.cli.values import load_class_names, load_reference, parse_domain, parse_numbers, parse_size
from deeptaylor.domain import Box
from deeptaylor.errors import InputError
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.loading.request import make_gray_input
from deeptaylor.models.networks.catalog import CATALOG
from deeptaylor.rules.parse import EXAMPLES, parse, parse_overrides
from deeptaylor.settings import AUTO, METHODS, PRESETS, read_preset, read_settings
from deeptaylor.text.text_explainer import METHOD_NAMES as TEXT_METHODS

__all__ = [
    "OUT",
    "MethodOptions",
    "ModelOptions",
    "Out",
    "Overwrite",
    "Shape",
    "Source",
    "format_command",
    "list_flags",
    "make_example",
    "model_option",
    "option",
    "resolve_reference",
]

OUT = Path("deeptaylor_output")

_MODEL = "What the model file does not contain"
_PHOTOGRAPHS = "Image preprocessing (give all of these options, or none)"
_HOW = "Method"


def complete_model(incomplete: str) -> list[str]:
    """Names of networks that begin so; files complete themselves."""
    return [n for n in (*CATALOG, "timm:", "torchvision:", "hf:") if n.startswith(incomplete)]


def model_option(text: str) -> Any:
    """--model, with its help."""
    return typer.Option(
        "--model", "-m", metavar="NAME|FILE", autocompletion=complete_model, show_default=False, help=text
    )


Source = Annotated[
    str, typer.Argument(metavar="MODEL", autocompletion=complete_model, help="A network by name, or a file.")
]
Shape = Annotated[
    str | None,
    typer.Option("--shape", help="Shape of one input, for models that don't take images.", metavar="N,N,…"),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder to save to.", metavar="DIR")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Also replace files that another command wrote.")]


def list_flags(*groups: Any) -> list[str]:
    """The options of some groups that were given: those that are not what they usually are."""
    return [_flag(f.name) for group in groups for f in fields(group) if getattr(group, f.name) != f.default]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def format_command(verb: str, what: Path, source: str, *groups: Any, **more: Any) -> str:
    """What is asked for, in full: two commands with the same words may replace each other's files."""
    given = {f.name: (getattr(group, f.name), f.default) for group in groups for f in fields(group)}
    given |= {name: (value, None) for name, value in more.items()}
    said = ["deeptaylor", verb, str(what.absolute()), "--model", source]
    for name, (value, usual) in given.items():
        if value != usual:
            flag = _flag(name)
            said += (
                [flag]
                if value is True
                else [w for v in ([value], value)[isinstance(value, list)] for w in (flag, str(v))]
            )
    return shlex.join(said)


@contextmanager
def _import_from_here() -> Iterator[None]:
    """Modules in the current folder are found, as whoever writes module:function expects; after all others.

    A command, unlike `python -m`, does not look there: whoever can put a file there could put code into it. So it does
    for the module that the user names alone, and no file there comes in the place of an installed module.
    """
    here = str(Path.cwd())
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with suppress(ValueError):
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def option(flag: str, text: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    """An option of a group, with the panel of the help that it is listed in."""
    return typer.Option(flag, help=text, rich_help_panel=panel, metavar=metavar, **more)


@dataclass(frozen=True)
class ModelOptions:
    """What `dt.load` asks for beside the source."""

    size: Annotated[
        str | None,
        option("--size", "Size of the centre crop that the network sees.", _PHOTOGRAPHS, "PIXELS|HxW"),
    ] = None
    resize: Annotated[
        str | None, option("--resize", "The shorter side after resizing, or HxW.", _PHOTOGRAPHS, "PIXELS|HxW")
    ] = None
    channels: Annotated[str | None, option("--channels", "Order of the channels.", _PHOTOGRAPHS, "RGB|BGR|L")] = None
    white: Annotated[
        float | None, option("--white", "The value of white before the mean is subtracted.", _PHOTOGRAPHS, "1|255")
    ] = None
    mean: Annotated[str | None, option("--mean", "Subtracted from each channel.", _PHOTOGRAPHS, "M|M,M,M")] = None
    std: Annotated[str | None, option("--std", "Each channel is divided by it.", _PHOTOGRAPHS, "S|S,S,S")] = None
    interpolation: Annotated[
        str | None, option("--interpolation", "How pictures are resized.", _PHOTOGRAPHS, "bilinear|bicubic|…")
    ] = None
    class_names: Annotated[
        str | None,
        option("--class-names", "Names of the classes, one per line.", _MODEL, "FILE|imagenet|none"),
    ] = None
    architecture: Annotated[
        str | None,
        option(
            "--architecture",
            "The network that a state dict belongs to. A module is imported, also from the current folder.",
            _MODEL,
            "NAME|MODULE:FUNCTION",
        ),
    ] = None
    weights: Annotated[str | None, option("--weights", "Weights file for a network given by name.", _MODEL, "FILE")] = (
        None
    )
    prototxt: Annotated[Path | None, option("--prototxt", "Network definition of a .caffemodel.", _MODEL, "FILE")] = (
        None
    )
    output: Annotated[
        str | None, option("--output", "The output to explain, of an ONNX or Caffe file.", _MODEL, "NAME")
    ] = None
    domain: Annotated[
        str | None,
        option(
            "--domain",
            "Range of input values, for models that don't take images.",
            _MODEL,
            "real|nonnegative|box:LOW,HIGH",
        ),
    ] = None
    trust: Annotated[bool, option("--trust", "Allow a TorchScript, .pt2 or pickle file to run its code.", _MODEL)] = (
        False
    )

    def load(self, source: str) -> dt.Pretrained:
        """The network; bad words are refused before anything is read."""
        given: dict[str, Any] = {}
        if self.class_names is not None:
            given["class_names"] = self.names()
        if self.domain is not None:
            given["domain"] = parse_domain(self.domain)
        preparation = self._preparation()
        with _import_from_here() if ":" in (self.architecture or "") else nullcontext():
            return load_pretrained(
                source,
                weights=self.weights,
                prototxt=self.prototxt,
                architecture=self.architecture,
                preparation=preparation,
                output=self.output,
                trust=self.trust,
                **given,
            )

    def names(self) -> Any:
        """The names of the classes, as they were given."""
        return load_class_names(str(self.class_names))

    def _preparation(self) -> dt.Preparation | None:
        names = [f.name for f in fields(dt.Preparation)]
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if not said:
            return None
        missing = [f"--{name}" for name in names if name not in said]
        if missing:
            raise InputError(
                f"give all preprocessing options or none: {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing, not {', '.join(f'--{name}' for name in said)}."
            )
        for name in ("size", "resize"):
            said[name] = parse_size(f"--{name}", said[name])
        for name in ("mean", "std"):
            said[name] = parse_numbers(f"--{name}", said[name])
        return dt.Preparation(**said)


@dataclass(frozen=True)
class MethodOptions:
    """The method and its settings."""

    method: Annotated[
        str,
        option(
            "--method",
            "The method. auto selects the method that fits the network and reports why. For texts: "
            f"{', '.join(TEXT_METHODS)}.",
            _HOW,
            "|".join(METHODS),
        ),
    ] = AUTO
    preset: Annotated[
        str | None,
        option(
            "--preset",
            "Another name for a method: --preset paper is the same as --method paper.",
            _HOW,
            "|".join(PRESETS),
        ),
    ] = None
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "The reference of secants; implies --method secant. FILE: a photograph or an array (.npy). For texts: "
            "mask, pad, mean or hidden. Default for texts: the mean over texts in which all or half of the words "
            "are missing.",
            _HOW,
            "mean|blur|zeros|FILE",
        ),
    ] = None
    bias: Annotated[
        str | None,
        option(
            "--bias",
            "What happens to relevance that biases absorb. returned (default): to the pixels; neuron: it stays with "
            "the biases; spread: to the inputs of each unit. Implies deep Taylor, as do the next three options.",
            _HOW,
            "returned|neuron|spread|both",
        ),
    ] = None
    rule: Annotated[
        list[str] | None,
        option("--rule", f"Rule for the layers that match a pattern; repeatable: {EXAMPLES}.", _HOW, "PATTERN=RULE"),
    ] = None
    first: Annotated[str | None, option("--first", "Rule of the layers that read the input.", _HOW, "RULE")] = None
    max_pool: Annotated[
        str | None, option("--max-pool", "How max pooling distributes relevance.", _HOW, "proportional|winner")
    ] = None

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of an Explainer for each way to treat biases; by bias, or by method if none was named.

        The reference is still a word: `resolve_reference` reads a file.
        """
        modes = {mode: [mode] for mode in ("returned", "neuron", "spread")} | {"both": ["neuron", "spread"]}
        if self.bias is not None and self.bias not in modes:
            raise InputError(f"--bias {self.bias}: returned, neuron, spread or both.")
        if self.max_pool not in (None, "proportional", "winner"):
            raise InputError(f"--max-pool {self.max_pool}: proportional or winner.")
        method = read_preset(self.preset, self.method)
        common: dict[str, Any] = {"method": method}
        if self.reference is not None:
            common["reference"] = self.reference
        if self.max_pool is not None:
            common["max_pool"] = self.max_pool
        if self.rule:
            common["rules"] = parse_overrides(self.rule)
        if self.first is not None:
            common["first"] = parse(self.first)
        given: dict[str, dict[str, Any]] = {bias: {"bias": bias} for bias in modes.get(str(self.bias), [])}
        found = {name: {**way, **common} for name, way in (given or {method: {}}).items()}
        for way in found.values():
            read_settings(**way)  # raises if they contradict each other
        return found

    def single(self) -> dict[str, Any]:
        """Return the settings of the one Explainer that is meant."""
        found = list(self.settings().values())
        if len(found) > 1:
            raise InputError(
                "--bias both makes two explanations, but this command takes one: use --bias neuron or --bias spread."
            )
        return found[0]


def resolve_reference(settings: Mapping[str, Any], network: dt.Pretrained) -> dict[str, Any]:
    """Return settings of an Explainer with the reference that they name: the word, or what the file holds."""
    named = settings.get("reference")
    return dict(settings) if named is None else {**settings, "reference": load_reference(named, network)}


# --- an input where no photograph is given ----------------------------------------------------------------------------


def make_example(model: dt.Pretrained, shape: str | None) -> Tensor:
    """A gray picture; or, where inputs are not photographs, ones of the shape that is given."""
    if model.preparation is not None:
        if shape is not None:
            raise InputError("--shape is for networks that do not take photographs; this one does.")
        return make_gray_input(model.preparation)
    if shape is None:
        raise InputError("the input shape is unknown for a network with a --domain: add it, as in --shape 3,32,32.")
    try:
        sides = [int(side) for side in shape.replace("x", ",").split(",")]
    except ValueError as error:
        raise InputError(
            f"--shape {shape}: give whole numbers separated by commas, without the batch size, as in 3,32,32."
        ) from error
    if min(sides) < 1:
        raise InputError(f"--shape {shape}: each number must be at least 1.")
    x = torch.ones(1, *sides)
    if isinstance(model.domain, Box):
        low, high = model.domain.bounds(x)
        x = ((low + high) / 2).expand_as(x).contiguous()
    return x
