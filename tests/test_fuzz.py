"""Random networks, each written otherwise in one place: the same maps, but for what limits.md lists, and no raw error.

`python tests/helpers/fuzz.py FIRST LAST` (with src/ on the path) runs any of the pairs, saying how far it has come.
"""

from __future__ import annotations

import pytest

from fuzz import report, report_mixed

PAIRS, AT_ONCE = 2000, 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
def test_random_networks_respelled(first: int) -> None:
    wrong = [line for number in range(first, first + AT_ONCE) if (line := report(number))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 400, 20))])
def test_random_networks_that_mix_samples_are_rejected(first: int) -> None:
    wrong = [line for number in range(first, first + 20) if (line := report_mixed(number))]
    assert not wrong, "\n".join(wrong)
