"""What stands above and below a picture: only what was computed, in full sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deeptaylor.check import DEEP_TAYLOR
from deeptaylor.engine.contrast import POWER
from deeptaylor.engine.target import Margin, Negative, Unit
from deeptaylor.formatting import format_percent
from deeptaylor.ledger import Ledger

__all__ = [
    "class_title",
    "contrast_title",
    "describe_absorbed_range",
    "describe_account",
    "describe_indistinct",
    "describe_specific",
    "describe_split",
    "describe_strength",
    "is_indistinct",
    "join_names",
    "map_title",
]

_NEGLIGIBLE = 5e-7  # of the score: shown as nothing
_EQUAL: float = 0.5**POWER  # what counts as a class's own where its rivals have equal shares everywhere
_FLOOR, _HARDLY = 1.25 * _EQUAL, 2 * _EQUAL  # so little more than that is nothing, or hardly anything


def describe_account(ledger: Ledger, sample: int, target: int, what: str, method: str = DEEP_TAYLOR) -> str:
    """Describe where the score of one sample went; ``what`` holds relevance: pixels, tokens, …"""

    def pick(t: Tensor) -> float:
        return float(t[sample, target] if t.ndim == 2 else t[sample])

    f = pick(ledger.score)
    if f <= 0:
        return "The score is not positive: there is nothing to share out, and the map is empty." * (
            method == DEEP_TAYLOR
        )
    held, bias, dropped, residual = (
        pick(t) / f for t in (ledger.input_total, ledger.bias, ledger.dropped, ledger.residual)
    )
    if method != DEEP_TAYLOR:
        rest = f"; {method} does not share out the rest" if abs(residual) > _NEGLIGIBLE else ""
        return f"The {what} sum to {format_percent(held)} of the score{rest}."
    returned = 0.0 if ledger.returned is None else pick(ledger.returned) / f
    if ledger.own is not None and abs(returned) > _NEGLIGIBLE:
        said = describe_rescaling(bias + returned, held)
        return f"{said[0].upper()}{said[1:]}."
    taken = [f"biases absorbed {format_percent(bias)}"] * (abs(bias) > _NEGLIGIBLE)
    taken += [f"{format_percent(dropped)} was dropped"] * (abs(dropped) > _NEGLIGIBLE)
    if not taken:
        return f"The {what} account for the whole score."
    only = "only " if held < 0.5 else ""
    return f"The {what} account for {only}{format_percent(held)} of the score; {'; '.join(taken)}."


def describe_rescaling(absorbed: float, held: float) -> str:
    """Say that a map shows what biases absorbed, too.

    >>> describe_rescaling(0.99998, 1.0)
    'biases absorbed 99.998 % of the score; the map is rescaled to the score'
    """
    to = "the score" if held >= 1 - _NEGLIGIBLE else f"{format_percent(held)} of the score"
    return f"biases absorbed {format_percent(absorbed)} of the score; the map is rescaled to {to}"


def describe_absorbed_range(shares: Sequence[float], details: str = "") -> str:
    """Say once, for several maps, what biases absorbed of their scores.

    details   where the share of each map is

    >>> describe_absorbed_range([0.75, 0.9], "--check prints each share")
    'Biases absorbed 75.0 % to 90.0 % of the scores; each map is rescaled to its score (--check prints each share).'
    """
    ends = list(dict.fromkeys(format_percent(share) for share in (min(shares), max(shares))))
    where = f" ({details})" if details else ""
    return f"Biases absorbed {' to '.join(ends)} of the scores; each map is rescaled to its score{where}."


def describe_split(ledger: Ledger, sample: int, target: int) -> str:
    """Describe how the map of a class was split in two."""
    assert ledger.shared is not None
    own, both = (t[sample, target] if t.ndim == 2 else t[sample] for t in (ledger.input, ledger.input_total))
    if float(both) <= 0:
        return ""
    share = float(own) / float(both)
    return describe_indistinct(share) or (
        f"{format_percent(share)} of the class's relevance is distinctive; {format_percent(1 - share)} is shared with "
        "its rivals."
    )


def describe_specific(name: str, rivals: str) -> str:
    """Say what a percentage of a class's map means: the part that overlaps with no map of a rival.

    >>> describe_specific("tabby", "its rivals")
    'of the map is specific to tabby; it shares the rest with its rivals'
    """
    return f"of the map is specific to {name}; it shares the rest with {rivals}"


def describe_indistinct(share: float, name: str = "the class") -> str:
    """Say that little or nothing distinguishes a class from its rivals; return "" if something does.

    >>> describe_indistinct(0.02, "it")
    'Hardly anything distinguishes it from its rivals: 2.0 % of its relevance is distinctive; equal maps give 1.6 %.'
    """
    if share > _HARDLY:
        return ""
    return (
        f"{'Nothing' if is_indistinct(share) else 'Hardly anything'} distinguishes {name} from its rivals: "
        f"{format_percent(share)} of its relevance is distinctive; equal maps give {format_percent(_EQUAL)}."
    )


def is_indistinct(share: float) -> bool:
    """Return whether the distinctive share of a map is so small that it might as well be none."""
    return share <= _FLOOR


def describe_strength(times: float, name: str = "the class") -> str:
    """Say how the colours of the distinctive part relate to those of the class's own map (`color_strength`)."""
    if times == 0:
        return "No map of the distinctive part is drawn: it would show shared evidence."
    return f"Its colours are {times:.0f} times as strong as those of {name}'s own map." if times > 1 else ""


def map_title(label: str, score: Tensor | float, method: str, mean_of: str = "", reference: float | None = None) -> str:
    """Return the title of a map with the explained score.

    label       what is explained; "" if that is no class
    mean_of     copies of the input, if the score is a mean
    reference   the score of the reference, if there is one

    >>> map_title("cat, 39 %", 2.5, "secants", reference=0.5)
    'Relevance by secants for cat, 39 % (score 2.5, reference 0.5)'
    """
    how = "" if method == DEEP_TAYLOR else f" by {method}"
    what = f"mean score of {mean_of}" if mean_of else "score"
    compared = "" if reference is None else f", reference {reference:.4g}"
    return f"Relevance{how}{label and f' for {label}'} ({what} {float(score):.4g}{compared})"


def class_title(target: Any, titles: Sequence[Sequence[str]], sample: int, which: int) -> str:
    """Return the name of the explained class, or its number; "" if neither is known."""
    if titles:
        name = titles[sample][which]
        return f"class {name}" if name.isdecimal() else name
    if isinstance(target, Unit):
        return target.names[which]
    if isinstance(target, Margin):
        ends = [class_title(end, (), sample, which) for end in (target.target, target.other)]
        return f"{ends[0]} rather than {ends[1]}" if all(ends) else ""
    if isinstance(target, Negative):
        return f"the negative of {class_title(target.target, (), sample, which)}"
    if isinstance(target, Tensor) and not target.is_floating_point() and target.ndim:
        row = target[sample] if target.ndim == 2 or len(target) > 1 else target[0]
        return f"class {int(row[which] if row.ndim else row)}"
    return f"class {target}" if isinstance(target, int) and not isinstance(target, bool) else ""


def contrast_title(name: str, rivals: Sequence[tuple[int, float]], class_names: Sequence[str]) -> str:
    """Return the title of a contrast; rivals are classes with their weights.

    >>> contrast_title("cat", [(1, 0.75), (2, 0.25)], ["cat", "lynx", "dog"])
    'What sets cat apart from lynx (75 %) and dog (25 %)'
    """
    names = [class_names[k] if class_names else f"class {k}" for k, _ in rivals]
    if not names:
        return f"Relevance for {name}, which has no rival"
    if len(names) > 1:
        names = [f"{n} ({format_percent(w, '.0f')})" for n, (_, w) in zip(names, rivals, strict=True)]
    return f"What sets {name} apart from {join_names(names)}"


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join names for a sentence.

    >>> join_names(["a"]), join_names(["a", "b"]), join_names(["a", "b", "c", "d", "e"])
    ('a', 'a and b', 'a, b, c and 2 more')
    """
    first, more = list(names[:most]), len(names) - most
    first += [f"{more} more"] if more > 0 else []
    return first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"
