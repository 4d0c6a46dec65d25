"""Rules as words: a symbol with its numbers after a colon, never code. ``z+``, ``eps:0.25``, ``features.*=ab:2,1``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from deeptaylor.errors import PlanError
from deeptaylor.rules.base import Rule
from deeptaylor.rules.lrp import AlphaBeta, Epsilon, Flat, Gamma, Pass, Z
from deeptaylor.rules.paper import WSquare, ZBox, ZPlus

__all__ = ["EXAMPLES", "RULES", "parse", "placed", "spelled"]

RULES: Mapping[str, type[Rule]] = {
    kind.symbol: kind for kind in (ZBox, ZPlus, WSquare, Z, Epsilon, Gamma, AlphaBeta, Flat, Pass)
}
EXAMPLES = "w2, z, z+, zB, flat, pass, ab:2,1, eps:0.25 or gamma:0.25"


def parse(text: str) -> Rule:
    """A rule by its symbol, with its numbers after a colon.

    >>> parse("eps:0.25")
    Epsilon(epsilon=0.25)
    """
    symbol, colon, rest = (part.strip() for part in text.partition(":"))
    if symbol not in RULES:
        raise PlanError(f"no rule is called {symbol!r}; there are: {EXAMPLES}.")
    kind = RULES[symbol]
    return kind(*_numbers(text, kind, rest)) if colon else kind()


def _numbers(text: str, kind: type[Rule], rest: str) -> list[float]:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every rule of RULES is a dataclass
    try:
        found = [float(part) for part in rest.split(",")]
    except ValueError as error:
        raise PlanError(f"the rule {text!r}: what follows the colon are numbers; rules: {EXAMPLES}.") from error
    if len(found) > len(names):
        raise PlanError(f"the rule {kind.symbol} takes {len(names)} number(s), got {len(found)}; rules: {EXAMPLES}.")
    if len(found) < len(names):
        raise PlanError(f"the rule {kind.symbol} takes both numbers, {' and '.join(names)}; rules: {EXAMPLES}.")
    if not all(0 <= number <= 1e6 for number in found):
        raise PlanError(f"the rule {text!r}: its numbers lie between 0 and a million.")
    return found


def spelled(rule: Rule) -> str:
    """The words that `parse` reads.

    >>> spelled(AlphaBeta(2, 1)), spelled(ZBox())
    ('ab:2,1', 'zB')
    """
    numbers = [value for value in vars(rule).values() if isinstance(value, int | float) and value is not False]
    return f"{rule.symbol}:{','.join(f'{n:.15g}' for n in numbers)}" if numbers else rule.symbol


def placed(texts: Iterable[str]) -> dict[str, Rule]:
    """Rules for some of a network, each PATTERN=RULE.

    >>> placed(["features.*=eps:0.25"])
    {'features.*': Epsilon(epsilon=0.25)}
    """
    found: dict[str, Rule] = {}
    for text in texts:
        pattern, _, rule = text.rpartition("=")
        if not pattern.strip():
            raise PlanError(
                f"{text!r}: write PATTERN=RULE, such as features.0=w2 or classifier.*=eps:0.25; the patterns are the "
                "module paths and node names that the plan lists: print(explainer.plan)."
            )
        found[pattern.strip()] = parse(rule)
    return found
