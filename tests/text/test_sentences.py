"""Sentences about a text: every number with what it is."""

from __future__ import annotations

from deeptaylor.text.sentences import Difference, Shared, below, number


def test_nothing_is_zero_without_a_sign() -> None:
    assert [number(x) for x in (-0.0, -1.5, 2.0)] == ["0", "−1.5", "2"]


def test_a_log_probability_is_told_as_a_probability() -> None:
    said = Difference(-0.258, -13.9, 13.7, 0.0, None).said("log-probability", "' Paris' next", "With [PAD] everywhere")
    assert said == (
        "The log-probability of ' Paris' next is −0.258, a probability of 77.3 %. With [PAD] everywhere it is −13.9. "
        "What speaks for it adds 13.7, and what speaks against it takes 0: −13.9 + 13.7 − 0 = −0.258."
    )


def test_a_logit_has_its_name_and_its_probability() -> None:
    said = Difference(0.84, -1.0, 2.0, 0.16, None).said("logit", "'complaint'", "With [MASK]", 0.6987)
    assert said.startswith("The logit of 'complaint' is 0.84, a probability of 69.9 %. With [MASK] it is −1.")
    assert "is 4, a probability of 98.2 %. The words" in Shared(4.0, 4.0, 0, 0, 0).said("logit", "'a'", 0.982)
    assert below("logit", "'a'", -2.0, 0.12).startswith("The logit of 'a' is −2, a probability of 12 %. This method")


def test_what_does_not_add_up_is_said() -> None:
    said = Difference(1.0, 0.0, 0.5, 0.0, 0.5).said("score", "'good'", "With [MASK]")
    assert said.endswith("= 1. NOT accounted for: 0.5.")


def test_the_account_of_what_is_shared_out() -> None:
    said = Shared(4.13, 0.5, 0.2, 0.26, 3.17).said("difference of logits", "'a' rather than 'b' next")
    assert said == (
        "The difference of logits, 'a' rather than 'b' next, is 4.13. The words hold 0.5 of it, special tokens 0.2, "
        "and positions, biases and what has no word 0.26. The softmax leaves out 3.17, which no token holds."
    )
    assert below("score", "'good'", -2.0).startswith("The score of 'good' is −2. This method explains what is above")
