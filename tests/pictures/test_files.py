"""The ending of a file says what is written."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from deeptaylor.pictures.files import FIGURES, PIXELS, html_figure, kind_of, pixel_bytes


@pytest.mark.parametrize(("name", "said"), [("a.gif", "ends in .gif"), ("a", "has no ending"), ("x/.png", "no ending")])
def test_other_endings_are_refused_with_the_list(name: str, said: str) -> None:
    with pytest.raises(dt.InputError, match=rf"{said}; the ending says .* \.png, \.jpg, \.jpeg, \.pdf, \.svg"):
        kind_of(name, (*PIXELS, *FIGURES))


@pytest.mark.parametrize(("kind", "found"), [(".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG")])
def test_what_is_said_is_written(kind: str, found: str) -> None:
    picture = np.zeros((9, 7, 3), np.uint8) + np.array([200, 30, 30], np.uint8)
    image = Image.open(io.BytesIO(pixel_bytes(picture, kind)))
    assert image.format == found
    assert np.abs(np.asarray(image).astype(int) - picture).max() <= 3


def test_a_figure_of_a_page_holds_its_pictures() -> None:
    page = html_figure([(np.zeros((2, 2, 3), np.uint8), "black")], "two by two")
    assert page.count('<img alt="black"') == 1
    assert "<figcaption>two by two</figcaption>" in page
