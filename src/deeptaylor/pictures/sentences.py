"""What stands above and below a picture: only what was computed, in full sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deeptaylor.ledger import Ledger
from deeptaylor.properties import DEEP_TAYLOR
from deeptaylor.run.contrast import POWER
from deeptaylor.run.target import Margin, Negative
from deeptaylor.run.unit import Unit
from deeptaylor.shown import percent

__all__ = ["account", "against", "class_title", "hardly_apart", "listed", "nothing_apart", "split", "stronger", "title"]

_NONE = 5e-7  # of the score: shown as nothing
_EQUAL: float = 0.5**POWER  # what counts as a class's own where its rivals have equal shares everywhere
_FLOOR, _HARDLY = 1.25 * _EQUAL, 2 * _EQUAL  # so little more than that is nothing, or hardly anything


def account(ledger: Ledger, sample: int, target: int, what: str, method: str = DEEP_TAYLOR) -> str:
    """Where the score of one sample went; ``what`` holds relevance: pixels, tokens, …"""

    def pick(t: Tensor) -> float:
        return float(t[sample, target] if t.ndim == 2 else t[sample])

    f = pick(ledger.score)
    if f <= 0:
        return "The score is not positive: there is nothing to share out, and the map is empty." * (
            method == DEEP_TAYLOR
        )
    held, bias, dropped, residual = (pick(t) / f for t in (ledger.held, ledger.bias, ledger.dropped, ledger.residual))
    if method != DEEP_TAYLOR:
        rest = f"; {method} does not share out the rest" if abs(residual) > _NONE else ""
        return f"The {what} sum to {percent(held)} of the score{rest}."
    returned = 0.0 if ledger.returned is None else pick(ledger.returned) / f
    if ledger.own is not None and abs(returned) > _NONE:
        said = rescaled(bias + returned, held)
        return f"{said[0].upper()}{said[1:]}."
    taken = [f"biases absorbed {percent(bias)}"] * (abs(bias) > _NONE)
    taken += [f"{percent(dropped)} was dropped"] * (abs(dropped) > _NONE)
    if not taken:
        return f"The {what} account for the whole score."
    only = "only " if held < 0.5 else ""
    return f"The {what} account for {only}{percent(held)} of the score; {'; '.join(taken)}."


def rescaled(absorbed: float, held: float) -> str:
    """Say that a map shows what biases absorbed, too.

    >>> rescaled(0.99998, 1.0)
    'biases absorbed 99.998 % of the score; the map is rescaled to the score'
    """
    to = "the score" if held >= 1 - _NONE else f"{percent(held)} of the score"
    return f"biases absorbed {percent(absorbed)} of the score; the map is rescaled to {to}"


def split(ledger: Ledger, sample: int, target: int) -> str:
    """How the map of a class was split in two."""
    assert ledger.shared is not None
    own, both = (t[sample, target] if t.ndim == 2 else t[sample] for t in (ledger.input, ledger.held))
    if float(both) <= 0:
        return ""
    share = float(own) / float(both)
    return hardly_apart(share) or (
        f"{percent(share)} of the class's relevance sets it apart; {percent(1 - share)} is shared with its rivals."
    )


def hardly_apart(share: float, name: str = "the class") -> str:
    """That nothing, or next to nothing, sets a class apart from its rivals; empty where something does.

    >>> hardly_apart(0.02, "lynx")
    'Hardly anything sets lynx apart: 2.0 % of its relevance counts as its own, and equal shares would give 1.6 %.'
    """
    counted = f"sets {name} apart: {percent(share)} of its relevance counts as its own"
    if nothing_apart(share):
        return f"Nothing {counted}, as where class and rivals have equal shares everywhere."
    return f"Hardly anything {counted}, and equal shares would give {percent(_EQUAL)}." if share <= _HARDLY else ""


def nothing_apart(share: float) -> bool:
    """Whether so small a part of a map sets its class apart that it might as well be none."""
    return share <= _FLOOR


def stronger(times: float, name: str = "the class") -> str:
    """How the colours of what sets a class apart relate to those of its own map (`contrasted.strength`)."""
    if times == 0:
        return "No map of it is drawn: it would show the evidence that all of them share."
    return f"The map shows it in colours {times:.0f} times as strong as those of {name}'s own map." if times > 1 else ""


def title(
    target: Any, titles: Sequence[Sequence[str]], score: Tensor, method: str, sample: int, which: int, mean_of: str = ""
) -> str:
    """What is shown, and the score that was shared out; ``mean_of`` some copies of the input, where it is."""
    name = class_title(target, titles, sample, which)
    how = "" if method == DEEP_TAYLOR else f" by {method}"
    what = f"mean score of {mean_of}" if mean_of else "score"
    return f"Relevance{how}{name and f' for {name}'} ({what} {float(score[sample].flatten()[which]):.4g})"


def class_title(target: Any, titles: Sequence[Sequence[str]], sample: int, which: int) -> str:
    """The name of the class that is explained, or its number; empty where neither is known."""
    if titles:
        return titles[sample][which]
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


def against(name: str, rivals: Sequence[tuple[int, float]], class_names: Sequence[str]) -> str:
    """The title of a contrast; rivals are classes and what each counts.

    >>> against("cat", [(1, 0.75), (2, 0.25)], ["cat", "lynx", "dog"])
    'What sets cat apart from lynx (75 %) and dog (25 %)'
    """
    names = [class_names[k] if class_names else f"class {k}" for k, _ in rivals]
    if not names:
        return f"Relevance for {name}, which has no rival"
    if len(names) > 1:
        names = [f"{n} ({percent(w, '.0f')})" for n, (_, w) in zip(names, rivals, strict=True)]
    return f"What sets {name} apart from {listed(names)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a', 'a and b', 'a, b, c and 2 more')
    """
    first, more = list(names[:most]), len(names) - most
    first += [f"{more} more"] if more > 0 else []
    return first[0] if len(first) == 1 else f"{', '.join(first[:-1])} and {first[-1]}"
