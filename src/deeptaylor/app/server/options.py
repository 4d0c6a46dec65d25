"""What can be asked of an explanation, and the Python and the command that give the same.

A rule is written as its symbol with its numbers, never as code (rules/parse.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deeptaylor.rules import Rule
from deeptaylor.rules.parse import placed, spelled
from deeptaylor.secant.front_door import DEEP_TAYLOR
from deeptaylor.shown import HIDDEN, shown

__all__ = ["OUTSIDE", "Options", "Settings", "Word", "command", "parse_rules", "snippet"]

_CHECKED = ["print(e.check())", "print(e.ledger.table())"]
_LEVEL = 0.1  # of the root, as the command has it

Text = Annotated[str, Field(max_length=200)]


Word = Literal["auto", "deep-taylor", "paper", "secant", "attnlrp", "cp-lrp", "sensitivity", "taylor"]
OUTSIDE = ("sensitivity", "taylor")  # they see the network from outside
_DEEP = ("bias", "max_pool", "first", "above", "rules")  # settings of deep Taylor


class Settings(BaseModel):
    """How an explainer is built; two requests with equal settings share one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Word = Field(default="auto", description="the method; auto: the one that fits the network")
    bias: Literal["returned", "neuron", "spread"] = Field(
        default="returned", description="what becomes of the biases' share of the score"
    )
    max_pool: Literal["proportional", "winner"] = Field(default="proportional", description="how max pooling hands on")
    first: Text = Field(
        default="", description="rule of the layer that reads the picture; empty: what the domain asks for"
    )
    above: Text = Field(default="", description="rule of all other layers; empty: what each domain asks for")
    rules: Annotated[str, Field(max_length=2000)] = Field(
        default="", description="`pattern=rule` for single layers, by `;`"
    )


class Options(Settings):
    """Everything that is said with a picture."""

    model: Text = Field(description="the network, by name")
    question: Literal["evidence", "apart"] = Field(
        default="evidence", description="all evidence for a class, or what sets it apart from its rivals"
    )
    target: Text = Field(default="", description="the class, by number or name; left out: the most probable one")
    against: Text = Field(default="", description="the one rival to set it apart from, by number or name")
    level: float = Field(default=_LEVEL, ge=0, le=0.99, description="taylor: the score at the root, as a part of f(x)")
    file: Text = Field(
        default="picture.png", description="the picture's name, for the Python and the command; never opened"
    )

    @property
    def settings(self) -> Settings:
        """What of this an explainer depends on; naming a setting of deep Taylor means that method."""
        if self.method == "auto" and not self.model_fields_set.isdisjoint(_DEEP):
            return self._settings(method="deep-taylor")
        if self.method == "deep-taylor":
            return self._settings()
        return Settings(method=self.method)

    def _settings(self, **instead: Word) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields} | instead)


def parse_rules(text: str) -> dict[str, Rule]:
    """Rules for single layers: ``features.0=w2; classifier.*=eps:0.25``."""
    return placed(filter(None, (piece.strip() for piece in text.split(";"))))


def snippet(
    options: Options, load: str, layers: Mapping[str, Rule], first: Rule | None, target: int | str | None,
    rival: int | None, by_secants: bool = False,
) -> str:  # fmt: skip
    """Python that gives the same explanation."""
    lines = ["import deeptaylor as dt", "", load, f"x, seen = p.preprocess({options.file!r})"]
    asked = "" if target is None else f", target={target}"
    if options.method == "sensitivity":
        lines.append(f"e = dt.sensitivity(p.network, x{asked})")
    elif options.method == "taylor":
        lines.append(f"root = dt.nearest_root(p.network, x{asked}, domain=p.domain, level={options.level!r})")
        lines += [f"e = dt.taylor(p.network, x{asked}, root=root)", "print(e.check())"]
    else:
        lines += [*_explainer_lines(options, layers, first), _explain_line(options, asked, rival, by_secants)]
        lines += ["print(e)"] if options.settings.method != DEEP_TAYLOR else _CHECKED
    return "\n".join([*lines, 'e.save("heatmap.png")', ""])


def _explainer_lines(options: Options, layers: Mapping[str, Rule], first: Rule | None) -> list[str]:
    if options.settings.method != DEEP_TAYLOR:
        named = "" if options.method == "auto" else f", method={options.method!r}"
        return [f"explainer = dt.Explainer(p.network, x, domain=p.domain{named})"]
    lines, more = [], f", bias={options.bias!r}"
    if options.max_pool != "proportional":
        more += f", max_pool={options.max_pool!r}"
    if first is not None:
        more += f", first={_call(first)}"
    if layers:
        lines.append(f"rules = {{{', '.join(f'{name!r}: {_call(rule)}' for name, rule in layers.items())}}}")
        more += ", rules=rules"
    return [*lines, f"explainer = dt.Explainer(p.network, x, domain=p.domain{more})"]


def _explain_line(options: Options, asked: str, rival: int | None, by_secants: bool) -> str:
    if rival is None and options.question == "evidence":
        return f"e = explainer.explain(x{asked})"
    against = "" if rival is None else f", against={rival}"
    line = f"e = explainer.contrast(x{asked}{against})"
    return line if by_secants else f"{line}\nprint(e.apart_text())"


def command(
    options: Options, model: str, layers: Mapping[str, Rule], first: Rule | None, target: int | str | None,
    against: str | None = None,
) -> str:  # fmt: skip
    """The command that gives the same explanation; words where there is none."""
    explains = options.method not in OUTSIDE
    if (options.method == "taylor" and options.level != _LEVEL) or (target == "negative" and not explains):
        return "# No command gives this one; the Python does."
    words = ["deeptaylor", "explain" if explains else "compare", options.file, "--model", model]
    if options.file.startswith("-"):
        words[2] = f"./{options.file}"
    if not explains:
        words += ["--methods", options.method]
    if target is not None:
        words += ["--target", str(target)]
    if against is not None:
        words += ["--against", against]
    if explains and options.settings.method != DEEP_TAYLOR:
        words += ["--method", options.method] if options.method != "auto" else []
    elif explains:
        words += ["--bias", options.bias]
        if options.max_pool != "proportional":
            words += ["--max-pool", options.max_pool]
        if first is not None:
            words += ["--first", spelled(first)]
        for name, rule in layers.items():
            words += ["--rule", f"{name}={spelled(rule)}"]
    return " ".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Quoted for the shell; spelled out where it would do something to the terminal it is pasted into."""
    if shown(text) == text:
        return shlex.quote(text)
    spelled = re.sub(f"[{HIDDEN}]", lambda c: f"\\u{ord(c[0]):04x}", re.sub(r"([\\'])", r"\\\1", text))
    return f"$'{spelled}'"


def _call(rule: Rule) -> str:
    return f"dt.rules.{rule!r}".replace("low=None, high=None", "")
