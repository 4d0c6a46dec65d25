"""Where white and full colour are, and that a floor which is taken away is said."""

from __future__ import annotations

import numpy as np
import pytest

import deeptaylor as dt
from deeptaylor.pictures.scale import Scale, scale_of


def floor_map() -> np.ndarray:
    """1 everywhere, and 3 more on a tenth of it: 1 of 1.3 lies in the floor."""
    heat = np.ones((10, 10))
    heat[0] += 3
    return heat


def test_a_positive_map_goes_from_zero_and_a_signed_one_is_symmetric() -> None:
    positive = scale_of(np.array([[0.0, 1.0], [0.5, 0.25]]))
    assert (positive.low, positive.signed) == (0, False)
    assert positive(np.array([[0.0, 1.0]])).tolist() == [[0, pytest.approx(1, abs=0.02)]]
    signed = scale_of(np.array([[-2.0, 1.0]]))
    assert (signed.low, signed.signed) == (0, True)
    assert signed(np.array([[-9.0, 0.0, 9.0]])).tolist() == [[-1, 0, 1]]


def test_what_no_one_can_see_does_not_make_a_map_signed() -> None:
    assert not scale_of(np.array([[-1e-9, 1.0]])).signed
    assert scale_of(np.array([[-0.01, 1.0]])).signed


def test_a_map_that_is_mostly_floor_begins_there_and_says_so() -> None:
    scale = scale_of(floor_map())
    assert scale.low == 1
    assert scale.beneath == pytest.approx(1 / 1.3)
    assert scale.said == "Colours begin at 1 and not at 0: 76.9 % of the relevance lies beneath that."
    assert scale(floor_map())[5, 5] == 0
    assert scale(floor_map())[0, 0] == 1


def test_a_map_with_little_floor_begins_at_zero_and_says_nothing() -> None:
    heat = floor_map() - 0.9  # 0.1 of 0.4
    assert scale_of(heat).low == 0
    assert scale_of(heat).said == ""
    lifted = scale_of(heat, "auto")
    assert lifted.low == pytest.approx(0.1)
    assert "25.0 % of the relevance" in lifted.said


def test_where_nothing_can_be_said_nothing_is_taken_away() -> None:
    assert scale_of(floor_map(), automatic=False).low == 0
    assert scale_of(floor_map(), 0).low == 0
    assert scale_of(floor_map().flatten()).low == 0  # a table or a text is no picture
    assert scale_of(floor_map(), 2.0, automatic=False).low == 2.0


def test_an_even_map_keeps_its_colour() -> None:
    assert scale_of(np.ones((4, 4))).low == 0
    assert scale_of(np.ones((4, 4)), "auto").low == 0
    assert scale_of(np.zeros((4, 4)), "auto") == Scale(1.0)


@pytest.mark.parametrize("floor", [-1, 9, "low", np.nan])
def test_a_floor_that_makes_no_sense(floor: object) -> None:
    with pytest.raises(dt.InputError, match=r"floor=.*below full colour, which is at 4"):
        scale_of(floor_map(), floor)  # type: ignore[arg-type]


def test_a_signed_map_has_no_floor() -> None:
    with pytest.raises(dt.InputError, match=r"floor=0\.5 is for maps without negative values"):
        scale_of(np.array([[-1.0, 1.0]]), 0.5)
    assert scale_of(np.array([[-1.0, 1.0]]), 0).signed
