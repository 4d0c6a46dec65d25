"""What is asked of the page in a real Chromium, and that nothing false is ever said above a picture."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import SHOWN, ask, in_view, photo, pixels, refused, settled, shoot, upload
from deeptaylor.viz.captions import describe_split
from deeptaylor.viz.heatmap import render, robust_scale

pytestmark = pytest.mark.browser


def contrast(own: dt.Pretrained, **asked: Any) -> dt.Contrast:
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    return dt.Explainer(own.network, x, domain=own.domain).contrast(x, **asked)


def whole_scale(c: dt.Contrast) -> float:
    """Where full colour begins in the whole map of the class."""
    return robust_scale((c.relevance + c.shared)[0].sum(0))


def title(page: Any) -> str:
    said: str = page.locator(".title").first.inner_text()
    return said


def test_one_class_against_another_by_name(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    ask(page, "#against", "<B>Bold</b>")
    settled(page)
    assert title(page) == "“dog” against “<b>bold</b>”"
    c = contrast(own, target=1, against=2)
    size = c.apart_text().split(" of ")[0]
    assert (
        page.inner_text(".apart") == f"{size} of the map is specific to “dog”; it shares the rest with “<b>bold</b>”."
    )
    page.check("[value=map]")
    difference = c.difference[0].sum(0)
    assert np.abs(pixels(page, SHOWN) - render(difference, whole_scale(c))).max() <= 1
    assert [end.inner_text() for end in page.locator(".ends span").all()] == ["“<b>bold</b>”", "0", "“dog”"]
    assert page.is_checked("[value=apart]")
    page.check("[value=own]")
    assert np.abs(pixels(page, SHOWN) - render(c.heatmap()[0], whole_scale(c))).max() <= 1
    in_view(page)
    shoot(page, "against")


def test_that_nothing_sets_a_class_apart_is_said_beside_the_picture(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    ask(page, "#against", "moon")
    settled(page)
    said = page.inner_text(".nothing")
    assert said == describe_split(contrast(own, target=1, against=4).ledger, 0, 0)  # as a figure of the library has it
    assert said.startswith("Nothing distinguishes the class from its rivals: 1.7 % of its relevance is distinctive")
    ask(page, "#against", "star")
    page.locator(".title", has_text="“star”").wait_for()
    settled(page)
    assert page.locator(".nothing").count() == 0


def test_the_little_that_sets_a_class_apart_in_colours_of_its_own(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    scales = page.get_by_role("group", name="Colour scale").first
    assert scales.is_hidden()
    ask(page, "#against", "moon")
    settled(page)
    page.check("[value=map]")
    page.check("[value=own]")
    c = contrast(own, target=1, against=4)
    whole, heat, difference = whole_scale(c), c.heatmap()[0], c.difference[0].sum(0)
    assert scales.get_by_label("As in the whole map").is_checked()
    assert np.abs(pixels(page, SHOWN) - render(heat, whole)).max() <= 1
    said = page.inner_text(".scale")
    assert "as in the whole map of “dog”." in said
    part = f"{100 * robust_scale(heat) / whole:.2g} %"
    assert f"It is barely visible at this scale: only one pixel in 200 has more than {part} of full colour." in said
    scales.get_by_label("Its own").check()
    assert np.abs(pixels(page, SHOWN) - render(heat, robust_scale(heat))).max() <= 1
    said = page.inner_text(".scale")
    assert f"its own scale: colours are {whole / robust_scale(heat):.0f} times as strong as in the whole map" in said
    assert page.get_attribute(SHOWN, "aria-label").startswith("Map: “dog” against “moon”, with its own colour scale. ")
    shoot(page, "own_scale")
    page.check("[value=difference]")
    assert np.abs(pixels(page, SHOWN) - render(difference, robust_scale(difference))).max() <= 1
    times = whole / robust_scale(difference)
    assert f"colours are {times:.2g} times as strong as in the whole map of “dog”." in page.inner_text(".scale")
    # It stays for the next question, and is said there, too; there is none where all evidence is shown, or a layer.
    ask(page, "#against", "star")
    page.locator(".title", has_text="“star”").wait_for()
    settled(page)
    assert "times as strong" in page.inner_text(".scale")
    page.locator(".layers button").first.click()
    page.wait_for_selector(".channels:not([hidden])")
    assert scales.is_hidden()
    page.select_option("#layer", "")
    page.check("[value=photograph]")
    assert scales.is_hidden()
    page.check("[value=evidence]")
    settled(page)
    page.check("[value=map]")
    assert scales.is_hidden()
    assert "times as strong" not in page.inner_text(".scale")


def test_one_scale_for_both_pictures_leaves_no_choice(page: Any) -> None:
    upload(page)
    page.check("[value=apart]")
    settled(page)
    page.select_option("#compare", "bias")
    settled(page, 2)
    scales = page.get_by_role("group", name="Colour scale")
    assert scales.count() == 2
    scales.first.get_by_label("Its own").check()
    assert scales.last.get_by_label("As in the whole map").is_checked()  # each picture has a choice
    page.check("#same-scale")
    assert scales.count() == 0
    assert "the same in both pictures" in page.inner_text(".scale")
    assert "times as strong" not in page.inner_text(".scale")


def test_both_classes_typed_before_one_is_sent(page: Any) -> None:
    """The fields read as one sentence: "or another dog, rather than cat"; what was asked before does not count."""
    upload(page)
    ask(page, "#class-name", "cat")
    settled(page)
    page.fill("#class-name", "dog")
    ask(page, "#against", "cat")
    settled(page)
    assert title(page) == "“dog” against “cat”"


@pytest.mark.parametrize("way", ["typed", "clicked"])
@pytest.mark.parametrize("other", ["cat", "moon"])
def test_another_class_is_a_new_question(page: Any, other: str, way: str) -> None:
    """The rival of the question before is gone, also where it scores higher or is the class that is asked for."""
    upload(page)
    ask(page, "#against", "moon")
    settled(page)
    assert page.input_value("#against") == "moon"
    if way == "typed":
        ask(page, "#class-name", other)
    else:
        page.locator("#classes button", has_text=other).click()
    page.locator(".title", has_text=f"“{other}”").wait_for()
    settled(page)
    assert title(page) == f"What is specific to “{other}”"
    assert page.input_value("#against") == ""
    assert page.locator("#refusal").is_hidden()


def test_a_corrected_name_asks_what_was_meant(page: Any) -> None:
    """The question that was refused, with the name in its place: not what stands in the answer before."""
    upload(page)
    ask(page, "#against", "cat")
    settled(page)
    ask(page, "#class-name", "moom")
    refused(page)
    page.locator("#refusal").get_by_role("button", name="moon", exact=True).click()
    page.locator(".title", has_text="What is specific to “moon”").wait_for()
    settled(page)
    page.fill("#class-name", "dog")
    ask(page, "#against", "satr")
    refused(page)
    page.locator("#refusal").get_by_role("button", name="star", exact=True).click()
    page.locator(".title", has_text="“dog” against “star”").wait_for()
    settled(page)


def test_an_unknown_name_changes_no_title(page: Any) -> None:
    upload(page)
    before = title(page), pixels(page, SHOWN)
    ask(page, "#against", "banana split with extra nonsense")
    assert refused(page).startswith("No class is called 'banana split with extra nonsense'.")
    assert title(page) == before[0] == "Which pixels speak for “dog”"
    assert (pixels(page, SHOWN) == before[1]).all()
    assert "nonsense" not in page.inner_text("#panes")
    assert page.input_value("#against") == ""
    assert page.is_checked("[value=evidence]")
    shoot(page, "unknown")
    ask(page, "#class-name", "moom")
    assert "Did you mean:" in refused(page)
    page.get_by_role("button", name="moon", exact=True).last.click()
    settled(page)
    assert title(page) == "Which pixels speak for “moon”"
    assert page.locator("#refusal").is_hidden()


def test_a_rival_that_scores_higher(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    ask(page, "#class-name", "cat")
    settled(page)
    before = pixels(page, SHOWN)
    ask(page, "#against", "dog")
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    scores = own.output(x)[0]
    by = f"{float(scores[1] - scores[0]):.3g}"
    assert refused(page).startswith(f"“dog” scores higher by {by}: ask for “dog” against “cat”.")
    assert title(page) == "Which pixels speak for “cat”"
    assert (pixels(page, SHOWN) == before).all()  # no blank picture
    shoot(page, "higher")
    page.get_by_role("button", name="Swap the two classes").click()
    settled(page)
    assert title(page) == "“dog” against “cat”"
    assert page.input_value("#against") == "cat"


def test_what_sets_it_apart_lists_its_rivals(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.check("[value=apart]")
    settled(page)
    c = contrast(own)
    assert title(page) == "What is specific to “dog”"
    names = [own.class_name(k) for k, _ in c.rivals[0]]
    assert [row.inner_text() for row in page.locator(".rivals li span:first-child").all()] == names
    weights = [row.inner_text() for row in page.locator(".rivals .number").all()]
    assert [float(w.split()[0]) for w in weights] == pytest.approx([100 * w for _, w in c.rivals[0]], rel=1e-2)
    assert "where rivals have evidence as well" in page.inner_text(".ledger")
    page.check("[value=map]")
    assert np.abs(pixels(page, SHOWN) - render(c.heatmap()[0], whole_scale(c))).max() <= 1
    shoot(page, "apart")
    page.check("[value=evidence]")
    settled(page)
    assert title(page) == "Which pixels speak for “dog”"
    assert page.locator(".rivals").count() == 0


def test_another_class(page: Any) -> None:
    upload(page)
    third = page.locator("#classes button").nth(2)
    name = third.locator("span").first.inner_text()
    third.click()
    settled(page)
    assert title(page) == f"Which pixels speak for “{name}”"
    assert page.locator("#classes [aria-pressed=true] span").first.inner_text() == name


def test_sensitivity_has_no_ledger(page: Any) -> None:
    upload(page)
    page.select_option("[name=method]", "sensitivity")
    settled(page)
    page.get_by_text("Where a small change alters the score of “dog” most").wait_for()
    assert page.locator(".ledger").first.is_hidden()
    said = page.inner_text("#stage")
    assert "It does not split the score" in said
    assert "%" not in said
    assert "the picture" not in page.inner_text("#details")
    page.locator(SHOWN).first.hover()
    assert "squared gradient" in page.inner_text(".readout")
    assert "of the score" not in page.inner_text(".readout")
    # It sets no classes apart.
    assert page.locator("#rather").is_hidden()
    assert page.locator("[value=apart]").is_hidden()
    shoot(page, "sensitivity")


def test_the_network_is_asked_whether_it_believes_the_map(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.get_by_role("button", name="Check this map: hide patches and watch the score").click()
    page.locator(".believed .size").wait_for()
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    area = dt.Explainer(own.network, x, domain=own.domain).explain(x).check(faithful=True).flipping
    assert page.inner_text(".believed .size") == f"{area:.2f}"
    assert "A random map scores 0" in page.inner_text(".believed")
    assert page.inner_text(".consistent").startswith("Not consistent: before rescaling ")
    shoot(page, "believed")


def test_secants_draw_both_signs_and_the_answer_says_which_method_it_is(page: Any) -> None:
    upload(page)
    assert page.inner_text(".reason").startswith("Method: deep Taylor, because the network consists of ")
    page.select_option("[name=method]", "secant")
    settled(page)
    assert title(page).startswith("Which pixels speak for “dog”, and which for its rivals")
    assert page.locator(".reason").count() == 0
    assert page.locator(".legend").first.get_attribute("aria-label") == "Colours from against to for"
    assert page.locator("[value=apart]").is_visible()
    shoot(page, "secants")
