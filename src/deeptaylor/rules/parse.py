"""Rules as text: a symbol, with its numbers after a colon, never code. ``z+``, ``eps:0.25``, ``features.*=ab:2,1``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from deeptaylor.errors import PlanError
from deeptaylor.rules import lrp, paper
from deeptaylor.rules.base import Rule

__all__ = ["EXAMPLES", "RULES", "format_rule", "parse", "parse_overrides"]

RULES: Mapping[str, type[Rule]] = {kind.symbol: kind for kind in (*paper.RULES, *lrp.RULES)}


def parse(text: str) -> Rule:
    """Return the rule that a text names by its symbol, with its numbers after a colon.

    >>> parse("eps:0.25")
    Epsilon(epsilon=0.25)
    """
    symbol, colon, rest = (part.strip() for part in text.partition(":"))
    if symbol not in RULES:
        raise PlanError(f"no rule is called {symbol!r}; there are: {EXAMPLES}.")
    kind = RULES[symbol]
    return kind(*_numbers(text, kind, rest)) if colon else kind()


def _numbers(text: str, kind: type[Rule], rest: str) -> list[float]:
    """Return the numbers after the colon; raise PlanError if the rule does not take them."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every rule of RULES is a dataclass
    try:
        found = [float(part) for part in rest.split(",")]
    except ValueError as error:
        raise PlanError(f"the rule {text!r}: only numbers may follow the colon; rules: {EXAMPLES}.") from error
    if len(found) > len(names):
        raise PlanError(f"the rule {kind.symbol} takes {len(names)} number(s), got {len(found)}; rules: {EXAMPLES}.")
    if len(found) < len(names):
        raise PlanError(f"the rule {kind.symbol} needs {len(names)} numbers, {', '.join(names)}; rules: {EXAMPLES}.")
    if not all(0 <= number <= 1e6 for number in found):
        raise PlanError(f"the rule {text!r}: its numbers must lie between 0 and a million.")
    return found


def format_rule(rule: Rule) -> str:
    """Return the text that `parse` reads as this rule.

    >>> format_rule(lrp.AlphaBeta(2, 1)), format_rule(paper.ZBox())
    ('ab:2,1', 'zB')
    """
    numbers = [value for value in vars(rule).values() if isinstance(value, int | float) and value is not False]
    return f"{rule.symbol}:{','.join(f'{n:.15g}' for n in numbers)}" if numbers else rule.symbol


def parse_overrides(texts: Iterable[str]) -> dict[str, Rule]:
    """Return the rules for parts of a network; each text is PATTERN=RULE.

    >>> parse_overrides(["features.*=eps:0.25"])
    {'features.*': Epsilon(epsilon=0.25)}
    """
    found: dict[str, Rule] = {}
    for text in texts:
        pattern, _, rule = text.rpartition("=")
        if not pattern.strip():
            raise PlanError(
                f"{text!r}: write PATTERN=RULE, such as features.0=w2 or classifier.*=eps:0.25; the patterns are "
                "the module paths and node names that the plan lists: {plan}.",
                plan=...,
            )
        found[pattern.strip()] = parse(rule)
    return found


EXAMPLES = ", ".join(format_rule(kind()) for kind in RULES.values())
