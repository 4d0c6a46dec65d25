"""Options that several verbs share, as groups: a verb that takes a group takes all of its options.

Model    what the network is, and what its file does not say
How      by which method, and by which rules
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

import typer

import deeptaylor as dt
from deeptaylor.app.cli import words
from deeptaylor.errors import InputError
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.networks.named import NAMED
from deeptaylor.rules.parse import EXAMPLES, parse, placed
from deeptaylor.secant.front_door import AUTO, METHODS, read_settings
from deeptaylor.text.explainer import WORDS as TEXT_METHODS

__all__ = [
    "OUT",
    "How",
    "Model",
    "Out",
    "Overwrite",
    "Shape",
    "Source",
    "flags",
    "network_option",
    "option",
    "referring",
    "the_command",
]

OUT = Path("deeptaylor_output")

_MODEL = "What the model file does not contain"
_PHOTOGRAPHS = "Image preprocessing (give all of these options, or none)"
_HOW = "How it is explained"


def complete_model(incomplete: str) -> list[str]:
    """Names of networks that begin so; files complete themselves."""
    return [n for n in (*NAMED, "timm:", "torchvision:", "hf:") if n.startswith(incomplete)]


def network_option(text: str) -> Any:
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


def flags(*groups: Any) -> list[str]:
    """The options of some groups that were given: those that are not what they usually are."""
    return [_flag(f.name) for group in groups for f in fields(group) if getattr(group, f.name) != f.default]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def the_command(verb: str, what: Path, source: str, *groups: Any, **more: Any) -> str:
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
def _this_folder_too() -> Iterator[None]:
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
class Model:
    """What `dt.load` asks for beside the source."""

    size: Annotated[
        str | None,
        option("--size", "What the network sees, from the middle.", _PHOTOGRAPHS, "PIXELS|HxW"),
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
            "What a state dict belongs to; a module is imported, from the current folder too.",
            _MODEL,
            "NAME|MODULE:FUNCTION",
        ),
    ] = None
    weights: Annotated[str | None, option("--weights", "A file for a network by name.", _MODEL, "FILE")] = None
    prototxt: Annotated[Path | None, option("--prototxt", "The definition beside a .caffemodel.", _MODEL, "FILE")] = (
        None
    )
    output: Annotated[str | None, option("--output", "Which output of an ONNX or Caffe file.", _MODEL, "NAME")] = None
    domain: Annotated[
        str | None,
        option(
            "--domain",
            "Range of input values, for models that don't take images.",
            _MODEL,
            "real|nonnegative|box:LOW,HIGH",
        ),
    ] = None
    trust: Annotated[bool, option("--trust", "Run the program in a TorchScript, .pt2 or pickle file.", _MODEL)] = False

    def load(self, source: str) -> dt.Pretrained:
        """The network; bad words are refused before anything is read."""
        given: dict[str, Any] = {}
        if self.class_names is not None:
            given["class_names"] = self.names()
        if self.domain is not None:
            given["domain"] = words.domain(self.domain)
        preparation = self._preparation()
        with _this_folder_too() if ":" in (self.architecture or "") else nullcontext():
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
        return words.class_names(str(self.class_names))

    def _preparation(self) -> dt.Preparation | None:
        names = [f.name for f in fields(dt.Preparation)]
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if not said:
            return None
        missing = [f"--{name}" for name in names if name not in said]
        if missing:
            raise InputError(
                f"give all preprocessing options or none: {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing beside {', '.join(f'--{name}' for name in said)}."
            )
        for name in ("size", "resize"):
            said[name] = words.sides(f"--{name}", said[name])
        for name in ("mean", "std"):
            said[name] = words.numbers(f"--{name}", said[name])
        return dt.Preparation(**said)


@dataclass(frozen=True)
class How:
    """The method and its settings."""

    method: Annotated[
        str,
        option(
            "--method",
            "What answers. auto: the method that fits the network, named in the answer with the reason. Of texts: "
            f"{', '.join(TEXT_METHODS)}.",
            _HOW,
            "|".join(METHODS),
        ),
    ] = AUTO
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "What secants compare with; naming one means secants. FILE: a photograph or an array (.npy). Of texts: "
            "mask, pad, mean or hidden; by default the mean over texts that lack all or half of their words.",
            _HOW,
            "mean|blur|zeros|FILE",
        ),
    ] = None
    bias: Annotated[
        str | None,
        option(
            "--bias",
            "What biases absorb is redistributed to the pixels (the default), kept by biases, or given to the inputs "
            "of each unit. This and the next three are settings of deep Taylor: naming one means that method.",
            _HOW,
            "returned|neuron|spread|both",
        ),
    ] = None
    rule: Annotated[
        list[str] | None,
        option("--rule", f"A rule for some of the network, repeatable: {EXAMPLES}.", _HOW, "PATTERN=RULE"),
    ] = None
    first: Annotated[str | None, option("--first", "The rule of the layers that read the input.", _HOW, "RULE")] = None
    max_pool: Annotated[
        str | None, option("--max-pool", "Who gets relevance at max pooling.", _HOW, "proportional|winner")
    ] = None

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of an Explainer for each way to treat biases; by bias, or by method if none was named.

        The reference is still a word: `referring` reads a file.
        """
        modes = {mode: [mode] for mode in ("returned", "neuron", "spread")} | {"both": ["neuron", "spread"]}
        if self.bias is not None and self.bias not in modes:
            raise InputError(f"--bias {self.bias}: returned, neuron, spread or both.")
        if self.max_pool not in (None, "proportional", "winner"):
            raise InputError(f"--max-pool {self.max_pool}: proportional or winner.")
        common: dict[str, Any] = {"method": self.method}
        if self.reference is not None:
            common["reference"] = self.reference
        if self.max_pool is not None:
            common["max_pool"] = self.max_pool
        if self.rule:
            common["rules"] = placed(self.rule)
        if self.first is not None:
            common["first"] = parse(self.first)
        if self.bias is None:
            found = {self.method: common}
        else:
            found = {bias: {"bias": bias, **common} for bias in modes[self.bias]}
        named = {"rules": common.get("rules"), "first": common.get("first"), "max_pool": self.max_pool}
        read_settings(self.method, self.reference, None, None, bias=self.bias, **named)  # refuses what does not fit
        return found

    def single(self) -> dict[str, Any]:
        """Return the settings of the one Explainer that is meant."""
        found = list(self.settings().values())
        if len(found) > 1:
            raise InputError("--bias both makes two explanations; say --bias neuron or --bias spread here.")
        return found[0]


def referring(settings: Mapping[str, Any], network: dt.Pretrained) -> dict[str, Any]:
    """Return settings of an Explainer with the reference that they name: the word, or what the file holds."""
    named = settings.get("reference")
    return dict(settings) if named is None else {**settings, "reference": words.reference(named, network)}
