"""What can be asked of an explanation, and the Python and the command that give the same.

A rule is written as its symbol with its numbers, never as code: ``eps:0.25``, ``ab:2,1``, ``z+``.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deeptaylor import rules
from deeptaylor.errors import PlanError
from deeptaylor.rules import Rule
from deeptaylor.shown import HIDDEN, shown

__all__ = ["RULES", "Options", "Settings", "command", "parse_rule", "parse_rules", "snippet"]

RULES: Mapping[str, type[Rule]] = {
    "zB": rules.ZBox,
    "z+": rules.ZPlus,
    "w2": rules.WSquare,
    "z": rules.Z,
    "eps": rules.Epsilon,
    "gamma": rules.Gamma,
    "ab": rules.AlphaBeta,
    "flat": rules.Flat,
    "pass": rules.Pass,
}
_LEVEL = 0.1  # of the root, as the command has it
_NUMBERS = {"eps": 1, "gamma": 1, "ab": 2}

Text = Annotated[str, Field(max_length=200)]
Class = Annotated[int, Field(ge=0, lt=1_000_000)]


class Settings(BaseModel):
    """How an explainer is built; two requests with equal settings share one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bias: Literal["neuron", "spread"] = Field(
        default="neuron", description="whether biases keep their share of the score"
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
    method: Literal["deep-taylor", "sensitivity", "taylor"] = Field(default="deep-taylor", description="the method")
    target: Class | None = Field(default=None, description="the class to explain; left out: the most probable one")
    against: Class | None = Field(default=None, description="explain why `target` rather than this class")
    level: float = Field(default=_LEVEL, ge=0, le=0.99, description="taylor: the score at the root, as a part of f(x)")
    file: Text = Field(
        default="picture.png", description="the picture's name, for the Python and the command; never opened"
    )

    @property
    def settings(self) -> Settings:
        """What of this an explainer depends on."""
        return Settings(**{name: getattr(self, name) for name in Settings.model_fields})


def parse_rule(text: str) -> Rule:
    """A rule from its symbol and numbers."""
    symbol, colon, rest = (part.strip() for part in text.partition(":"))
    if symbol not in RULES:
        raise PlanError(f"no rule is called {symbol!r}; there are: {', '.join(RULES)}.")
    try:
        numbers = [float(part) for part in rest.split(",")] if colon else []
    except ValueError as error:
        raise PlanError(f"the rule {text!r}: what follows the colon are numbers.") from error
    if len(numbers) > _NUMBERS.get(symbol, 0):
        raise PlanError(f"the rule {symbol} takes {_NUMBERS.get(symbol, 0)} number(s), got {len(numbers)}.")
    if not all(math.isfinite(n) and 0 <= n <= 1e6 for n in numbers):
        raise PlanError(f"the rule {text!r}: its numbers lie between 0 and a million.")
    if symbol == "ab" and len(numbers) == 1:
        raise PlanError("the rule ab takes both numbers, alpha and beta: ab:2,1.")
    return RULES[symbol](*numbers)


def parse_rules(text: str) -> dict[str, Rule]:
    """Rules for single layers: ``features.0=w2; classifier.*=eps:0.25``."""
    found: dict[str, Rule] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        pattern, equals, rule = part.rpartition("=")
        if not (pattern.strip() and equals):
            raise PlanError(f"{part!r} is not `layer=rule`, such as features.0=w2 or classifier.*=eps:0.25.")
        found[pattern.strip()] = parse_rule(rule)
    return found


def snippet(options: Options, load: str, layers: Mapping[str, Rule], first: Rule | None, target: str) -> str:
    """Python that gives the same explanation."""
    lines = ["import deeptaylor as dt", "", load, f"x, seen = p.preprocess({options.file!r})"]
    asked = f", target={target}" if target else ""
    if options.method == "sensitivity":
        lines.append(f"e = dt.sensitivity(p.network, x{asked})")
    elif options.method == "taylor":
        lines.append(f"root = dt.nearest_root(p.network, x{asked}, domain=p.domain, level={options.level!r})")
        lines.append(f"e = dt.taylor(p.network, x{asked}, root=root)")
    else:
        more = f", bias={options.bias!r}"
        if options.max_pool != "proportional":
            more += f", max_pool={options.max_pool!r}"
        if first is not None:
            more += f", first={_call(first)}"
        if layers:
            lines.append(f"rules = {{{', '.join(f'{name!r}: {_call(rule)}' for name, rule in layers.items())}}}")
            more += ", rules=rules"
        lines.append(f"explainer = dt.Explainer(p.network, x, domain=p.domain{more})")
        lines.append(f"e = explainer.explain(x{asked})")
    return "\n".join([*lines, "print(e.check())", "print(e.ledger.table())", 'e.save("heatmap.png")', ""])


def command(options: Options, model: str, layers: Mapping[str, Rule], first: Rule | None, target: int | None) -> str:
    """The command that gives the same explanation; words where there is none."""
    explains = options.method == "deep-taylor"
    if not explains and (options.against is not None or (options.method == "taylor" and options.level != _LEVEL)):
        return "# No command gives this one; the Python does."
    words = ["deeptaylor", "explain" if explains else "compare", options.file, "--model", model]
    if options.file.startswith("-"):
        words[2] = f"./{options.file}"
    if not explains:
        words += ["--methods", options.method]
    if target is not None:
        words += ["--target", str(target)]
    if options.against is not None:
        words += ["--against", str(options.against)]
    if explains:
        words += ["--bias", options.bias]
        if options.max_pool != "proportional":
            words += ["--max-pool", options.max_pool]
        if first is not None:
            words += ["--first", _symbol(first)]
        for name, rule in layers.items():
            words += ["--rule", f"{name}={_symbol(rule)}"]
    return " ".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Quoted for the shell; spelled out where it would do something to the terminal it is pasted into."""
    if shown(text) == text:
        return shlex.quote(text)
    spelled = re.sub(f"[{HIDDEN}]", lambda c: f"\\u{ord(c[0]):04x}", re.sub(r"([\\'])", r"\\\1", text))
    return f"$'{spelled}'"


def _call(rule: Rule) -> str:
    return f"dt.rules.{rule!r}".replace("low=None, high=None", "")


def _symbol(rule: Rule) -> str:
    symbol = next(name for name, kind in RULES.items() if type(rule) is kind)
    numbers = [getattr(rule, name) for name in vars(rule)][: _NUMBERS.get(symbol, 0)]
    return f"{symbol}:{','.join(f'{n:g}' for n in numbers)}" if numbers else symbol
