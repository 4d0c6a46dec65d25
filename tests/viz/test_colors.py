"""One definition of colours: what HTML pages and scripts read is what pictures are made of."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from deeptaylor.viz.colors import DARK, GROUPS, LIGHT, RAMP, choose_ink, pale_grey, relevance_to_rgb, style_sheet

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "deeptaylor"


def test_the_ramp_is_reached_at_its_places_and_mirrored_for_negative_values() -> None:
    steps = np.linspace(0, 1, len(RAMP))
    assert relevance_to_rgb(steps).tolist() == [list(rgb) for rgb in RAMP]
    assert relevance_to_rgb(-steps).tolist() == [list(rgb[::-1]) for rgb in RAMP]


def test_pages_read_the_same_colours_by_day_and_by_night() -> None:
    day, night = style_sheet().split("@media (prefers-color-scheme: dark)")
    for palette, text in ((LIGHT, day), (DARK, night)):
        found = dict(re.findall(r"--([\w-]+): ([^;]+);", text))
        assert {name: found[name] for name in palette} == palette
    found = dict(re.findall(r"--([\w-]+): ([^;]+);", day))
    assert [tuple(map(int, rgb.split())) for rgb in found["ramp"].split(",")] == list(RAMP)
    assert [found[f"group-{k}"] for k in range(len(GROUPS))] == list(GROUPS)
    assert found["positive"].count("rgb(") == len(RAMP)
    halves = relevance_to_rgb(np.array([0.5, -0.5])).tolist()
    assert [found["half-for"], found["half-against"]] == ["rgb({} {} {})".format(*rgb) for rgb in halves]
    assert found["signed"].count("rgb(") == 2 * len(RAMP) - 1


@pytest.mark.parametrize(
    "file",
    ["viz/viewer.html", "app/server/static/page.css", "app/server/static/page.js", "app/server/static/index.html"],
)
def test_pages_name_no_colours_of_maps_themselves(file: str) -> None:
    text = (PACKAGE / file).read_text(encoding="utf-8")
    for rgb in RAMP[1:]:
        assert not re.search(r"{}\D+{}\D+{}\b".format(*rgb), text), f"{file} repeats the colours of viz/colors.py"


def test_ink_can_be_read_on_every_colour_of_a_map() -> None:
    inks = [choose_ink(tuple(rgb)) for rgb in relevance_to_rgb(np.linspace(-1, 1, 21)).tolist()]
    assert (inks[0], inks[10], inks[20]) == ("white", "black", "white")


def test_pale_grey_leaves_white_white() -> None:
    assert pale_grey(np.array([255.0, 0.0]), 0.25).tolist() == [255.0, 191.25]
