"""The page on modern networks is made of the records, and its sentences hold for them."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import modern_page

Record = dict[str, Any]


@pytest.fixture(scope="module")
def found() -> dict[str, Record]:
    return modern_page.records()


def test_the_page_is_made_of_the_records(found: dict[str, Record]) -> None:
    assert modern_page.PAGE.read_text(encoding="utf-8") == modern_page.page(found)
    other = copy.deepcopy(found)
    other["modern-test"]["networks"]["digits, vit, seed 0"]["rows"]["default"]["disc"] = [0.5, 0.4, 0.6]
    assert modern_page.page(other) != modern_page.page(found)


def test_every_network_and_every_method_of_the_default_is_on_the_page(found: dict[str, Record]) -> None:
    study = found["modern-test"]
    assert all(len(modern_page.networks(study, t, k)) == 2 for t in modern_page.TASKS for k in modern_page.KINDS)
    assert len(study["networks"]) == 2 * len(modern_page.TASKS) * len(modern_page.KINDS)
    measured = {m for n in study["networks"].values() for m in n["rows"]}
    assert measured == set(modern_page.ROWS)


def test_the_short_table_has_means_over_the_modern_networks(found: dict[str, Record]) -> None:
    study = found["modern-test"]
    values = [n["rows"]["default"]["disc"][0] for n in modern_page.modern(study).values()]
    assert f"| **default** | {sum(values) / len(values):.3f} |" in modern_page.shorten(study)


def test_first_is_judged_by_the_interval_of_the_highest() -> None:
    rows = {"default": {"disc": [0.8, 0.7, 0.9]}, "a": {"disc": [0.85, 0.79, 0.9]}, "b": {"disc": [0.1, 0.1, 0.1]}}
    assert modern_page.within({"rows": rows}, "disc", ("a", "b"))
    rows["a"]["disc"][1] = 0.81
    assert not modern_page.within({"rows": rows}, "disc", ("a", "b"))
    assert modern_page.within({"rows": rows}, "disc", ("b", "not measured"))


def apart(a: list[float], b: list[float]) -> bool:
    return a[1] > b[2] or b[1] > a[2]


def test_sentences_about_photographs_and_letters_hold(found: dict[str, Record]) -> None:
    photos = found["modern-photos"]
    told = {
        (network, measure)
        for network in modern_page.PHOTO_NETWORKS
        for measure in ("grid", "flip, blur", "flip, mean")
        if apart(photos[network]["rows"]["explain"][measure], photos[network]["rows"]["secant"][measure])
    }
    assert told == {("mobilenet_v2", "grid")}
    for network in modern_page.PHOTO_NETWORKS:
        rows = photos[network]["rows"]
        assert rows["contrast difference"]["flip, blur"][0] < 0.6 * rows["contrast"]["flip, blur"][0]
    letters = found["modern-ocr"]["rows"]
    few = {m: r for m, r in letters.items() if m != "occlusion"}
    assert max(few, key=lambda m: few[m]["share"][0]) == "default"
    assert max(r["flip"][0] for r in few.values()) > few["default"]["flip"][0]
    assert all(letters["occlusion"][m][0] > letters["default"][m][0] for m in ("share", "own", "flip"))


def test_the_limits_say_what_was_measured(found: dict[str, Record]) -> None:
    limits = (modern_page.ROOT / "docs/limits.md").read_text(encoding="utf-8")
    study = found["modern-test"]
    for others in (modern_page.ONE_CLASS, modern_page.ONE_CLASS | modern_page.LOG_ODDS):
        assert f"{24 - len(modern_page.behind(study, 'flip', others))} of 24" in limits
    assert modern_page.listed(modern_page.behind(study, "disc", modern_page.ONE_CLASS)) in limits
    control = modern_page.control(study)
    for number in ("0.555", "0.729", "0.742", "0.831", "0.938", "0.968", "0.998"):
        assert number in control
        assert number in limits
