"""Random networks, each written otherwise in one place: the same maps, but for what limits.md lists, and no raw error.

`python tests/helpers/fuzz.py FIRST LAST` (with src/ on the path) runs any of the pairs, saying how far it has come.
"""

from __future__ import annotations

import pytest

from fuzz import report

PAIRS, AT_ONCE = 2000, 50


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PAIRS, AT_ONCE))
def test_random_networks_respelled(first: int) -> None:
    wrong = [line for number in range(first, first + AT_ONCE) if (line := report(number))]
    assert not wrong, "\n".join(wrong)
