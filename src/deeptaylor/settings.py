"""Settings of an explainer: the names for `method=`, one frozen object, and the checks of both."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError, PlanError
from deeptaylor.rules import Rule, Z

__all__ = [
    "ATTNLRP", "AUTO", "CP_LRP", "DEEP_TAYLOR", "METHODS", "PAPER", "PRESETS", "RETURNED", "SECANT",
    "Settings", "check_setting", "read_preset", "read_settings",
]  # fmt: skip

AUTO, DEEP_TAYLOR, PAPER, SECANT, ATTNLRP, CP_LRP = "auto", "deep-taylor", "paper", "secant", "attnlrp", "cp-lrp"
METHODS: Mapping[str, str] = {
    AUTO: "the method that fits the network and the input; the answer says which one and why",
    DEEP_TAYLOR: "deep Taylor decomposition with local evidence, biases redistributed to the pixels",
    PAPER: "deep Taylor decomposition as in the paper: biases keep their share, averages are pooling",
    SECANT: "the difference to a reference, exact and of both signs",
    ATTNLRP: "AttnLRP (Achtibat et al., 2024)",
    CP_LRP: "CP-LRP: attention weights and norms as constants, the z rule everywhere",
    "sensitivity": "the squared gradient",
    "taylor": "a first-order expansion at the nearest root",
}
PRESETS = (DEEP_TAYLOR, PAPER, CP_LRP)  # deep Taylor's engine with different settings
RETURNED = "returned"
_BIASES = (RETURNED, "neuron", "spread")
_POOLINGS = ("proportional", "winner")
_PRESET_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    PAPER: {"bias": "neuron", "local": False},
    CP_LRP: {"bias": "neuron", "rules": {"*": Z(bias=True)}},
}


@dataclass(frozen=True)
class Settings:
    """How a network is captured, planned and explained."""

    domains: tuple[Domain, ...] = ()  # one per input; set by the first capture
    rules: Mapping[str, Rule] = field(default_factory=dict)
    first: Rule | None = None
    bias: str = RETURNED
    max_pool: str = "proportional"
    local: bool = True
    output: int | str | None = None
    root: str = ""  # the module that paths are named from, if the network was wrapped
    layer: str = ""  # the layer at which the network is cut; its output is explained
    planned: bool = True  # False: captured without a plan, for methods that need no rules
    keeps_final: bool = False  # True: a final softmax or sigmoid is not removed
    method: str = AUTO  # one of METHODS
    reference: Any = None  # the input that secants compare with, if the user gave one
    background: Any = None  # data; secants compare with its mean
    live: bool = False  # True: constants follow the network's parameters (engine/live.py)

    @property
    def explains_model_output(self) -> bool:
        """True if the network is neither wrapped nor cut, and its one output is explained."""
        return self.output is None and not self.root and not self.layer


def read_settings(
    method: str = AUTO, reference: Any = None, background: Any = None, output: int | str | None = None,
    live: bool = False, **rule_settings: Any,
) -> Settings:  # fmt: skip
    """Return the settings of an explainer; raise InputError if they contradict each other.

    rule_settings   settings of deep Taylor (rules, first, bias, max_pool, local); None for any the user did not give
    """
    if method not in tuple(METHODS):  # also if it cannot be hashed
        near = difflib.get_close_matches(str(method).lower().replace("_", "-"), METHODS, 1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(f"The method {method!r} is not known; the methods are {', '.join(map(repr, METHODS))}.{meant}")
    if reference is not None and background is not None:
        raise InputError("Give reference= or background=, not both: the mean of the background is the reference.")
    compared = "reference" if reference is not None else "background" if background is not None else ""
    rules = [name for name, value in rule_settings.items() if value is not None]
    chosen: dict[str, Any] = {name: ... for name in (compared, *rules[:1]) if name}  # as the user gave them
    if compared and method not in (AUTO, SECANT):
        raise InputError(
            f"{{{compared}}} belongs to the method 'secant'; {method!r} has no reference. Leave one of them out.",
            **chosen,
        )
    if rules and compared:
        raise InputError(
            f"{{{rules[0]}}} is a setting of deep Taylor and {{{compared}}} one of secants; leave one of them out.",
            **chosen,
        )
    fixed = _PRESET_SETTINGS.get(method, {})
    clash = [name for name in rules if method not in (AUTO, DEEP_TAYLOR, PAPER) or name in fixed]
    if clash:
        chosen = {clash[0]: ...}
        raise InputError(
            f"{{{clash[0]}}} is a setting of the method 'deep-taylor'; it cannot be used with {method!r}.",
            **chosen,
        )
    if live and method not in (AUTO, SECANT, *PRESETS):
        raise InputError(
            f"live=True is for deep Taylor and secants; relevance by {method!r} is not differentiable in parameters."
        )
    if method == AUTO and (rules or live):
        method = SECANT if compared else DEEP_TAYLOR
    chosen = {**_PRESET_SETTINGS.get(method, {}), **{name: rule_settings[name] for name in rules}}
    settings = Settings(
        **chosen, output=output, planned=method in (AUTO, *PRESETS), method=method, reference=reference,
        background=background, live=live,
    )  # fmt: skip
    check_setting("bias", settings.bias, _BIASES)
    check_setting("max_pool", settings.max_pool, _POOLINGS)
    for name, rule in (*settings.rules.items(), *([("first", settings.first)] if settings.first is not None else [])):
        if not isinstance(rule, Rule):
            raise PlanError(f"The rule for {name!r} must be one of dt.rules, such as dt.rules.ZPlus(); got {rule!r}.")
    return settings


def read_preset(preset: str | None, method: str = AUTO) -> str:
    """Return the method of a preset, or `method` if there is no preset; raise InputError if they contradict."""
    if preset is None:
        return method
    if preset not in PRESETS:
        raise InputError(f"The preset {preset!r} is not known; the presets are {', '.join(map(repr, PRESETS))}.")
    if method not in (AUTO, preset):
        raise InputError(
            "{preset} and {method} name different methods; leave one of them out.", preset=preset, method=method
        )
    return preset


def check_setting(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise PlanError unless a setting has one of the allowed values."""
    if value not in allowed:
        raise PlanError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")
