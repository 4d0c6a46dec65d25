"""Rules as text, and back: `parse` reads what `format_rule` writes."""

from __future__ import annotations

import pytest

import deeptaylor as dt
from deeptaylor import rules
from deeptaylor.rules import lrp, paper
from deeptaylor.rules.parse import EXAMPLES, RULES, format_rule, parse, parse_overrides

ALL = [
    paper.ZBox(), paper.ZPlus(), paper.WSquare(), lrp.Z(), lrp.Epsilon(0.25), lrp.Epsilon(1e-6), lrp.Gamma(0.1),
    lrp.AlphaBeta(2, 1), lrp.AlphaBeta(1.5, 0.5), lrp.Flat(), lrp.Pass(),
]  # fmt: skip


@pytest.mark.parametrize("rule", ALL, ids=format_rule)
def test_words_and_rules_are_a_round_trip(rule: rules.Rule) -> None:
    assert parse(format_rule(rule)) == rule


def test_every_rule_that_has_a_word_is_tried_and_one_of_the_examples() -> None:
    assert {type(rule) for rule in ALL} == set(RULES.values())
    named = {text.partition(":")[0] for text in EXAMPLES.split(", ")}
    assert named == set(RULES)
    assert {type(parse(text)) for text in RULES} == set(RULES.values())


def test_spaces_do_not_count_and_numbers_may_be_left_out() -> None:
    assert parse(" ab : 2, 1 ") == lrp.AlphaBeta(2, 1)
    assert parse("eps") == lrp.Epsilon()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epsilon", "no rule is called 'epsilon'"),
        ("eps:", "only numbers"),
        ("eps:__import__", "only numbers"),
        ("eps:1,2", r"takes 1 number\(s\), got 2"),
        ("ab:2", "needs 2 numbers, alpha, beta; rules"),
        ("eps:-1", "between 0 and a million"),
        ("eps:nan", "between 0 and a million"),
        ("w2:1", r"takes 0 number\(s\)"),
        ("ab:2,2", "alpha − beta = 1"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, said: str) -> None:
    with pytest.raises(dt.PlanError, match=said):
        parse(text)


def test_a_pattern_is_all_before_the_last_equals_sign() -> None:
    assert parse_overrides(["features.*=eps:0.25", " a=b = w2"]) == {
        "features.*": lrp.Epsilon(0.25),
        "a=b": paper.WSquare(),
    }
    for text in ("w2", "=w2"):
        with pytest.raises(dt.PlanError, match="write PATTERN=RULE"):
            parse_overrides([text])
