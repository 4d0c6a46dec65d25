"""The tab for texts in a real Chromium: words in colours, refusals, by keyboard, on a phone and in the dark."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

import deeptaylor as dt
from browser import PHONE, in_view, opened, shoot, violations
from deeptaylor.app.server.main import serve
from small_texts import classifier, embedder, llama

pytestmark = pytest.mark.browser

TEXT = "The films was not bad at all"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True, "is_mobile": True},
}


def served(model: dt.TextModel) -> str:
    told: queue.Queue[str] = queue.Queue()
    arguments = {"model": model, "ready": told.put, "title": "mine"}
    threading.Thread(target=serve, kwargs=arguments, daemon=True).start()
    return told.get(timeout=30)


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return classifier()


@pytest.fixture(scope="module")
def texts(p: dt.TextModel) -> str:
    return served(p)


def settled(page: Any) -> None:
    page.wait_for_selector("#text-stage:not([aria-busy])")


def write(page: Any, text: str = TEXT) -> None:
    page.fill("#text", text)
    page.click("#text-form button[type=submit]")
    settled(page)


def explained(page: Any) -> None:
    write(page)
    page.wait_for_selector(".text-pane:not([hidden])")


def rather(page: Any) -> None:
    explained(page)
    page.fill("#text-wanted", "positive")
    page.fill("#text-against", "negative")
    page.press("#text-against", "Enter")
    page.locator(".text-pane .title", has_text="'positive' rather than 'negative'").wait_for()
    settled(page)


def unknown(page: Any) -> None:
    explained(page)
    page.fill("#text-wanted", "positve")
    page.press("#text-wanted", "Enter")
    page.wait_for_selector("#text-refusal:not([hidden])")
    settled(page)


def empty(page: Any) -> None:
    write(page, "  ")
    page.wait_for_selector("#text-refusal:not([hidden])")


def unfolded(page: Any) -> None:
    explained(page)
    for summary in page.locator("#text-details summary").all():
        summary.click()


def long(page: Any) -> None:
    write(page, "the film was not bad and a very dull plot " * 6)
    page.wait_for_selector(".text-pane:not([hidden])")


STATES: dict[str, Callable[[Any], None]] = {
    "start": lambda page: None,
    **{state.__name__: state for state in (explained, rather, unknown, empty, unfolded, long)},
}


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_wrong_in_any_state(chromium: Any, texts: str, look: str) -> None:
    for name, state in STATES.items():
        with opened(chromium, texts, **LOOKS[look]) as page:
            state(page)
            assert violations(page) == [], name
            shoot(page, f"text_{look}_{name}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} scrolls sideways"


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("state", ["explained", "rather", "long"])
def test_the_words_are_in_view_without_scrolling(chromium: Any, texts: str, state: str, look: str) -> None:
    with opened(chromium, texts, **LOOKS[look]) as page:
        STATES[state](page)
        in_view(page, ".coloured")
        if look == "phone":
            first, field = page.locator(".coloured").bounding_box(), page.locator("#text").bounding_box()
            assert first["y"] < field["y"], "the words come first"
        else:
            assert page.evaluate("scrollY") == 0
            in_view(page, ".text-pane .says")


def test_the_words_are_the_librarys(chromium: Any, texts: str, p: dt.TextModel) -> None:
    with opened(chromium, texts) as page:
        explained(page)
        e = p.explain(TEXT)
        assert page.inner_text(".text-pane .title") == e.title()
        assert page.locator(".word").all_inner_texts() == list(e.words().words)
        largest = max(zip(e.words().values, e.words().words, strict=True), key=lambda pair: abs(pair[0]))
        assert page.locator(".largest tbody th").first.inner_text() == largest[1]
        page.check("[name=pieces][value=Tokens]")
        assert page.locator(".word").all_inner_texts() == list(e.tokens().words)
        page.select_option("#text-method", "cp-lrp")
        page.locator(".made", has_text="CP-LRP").wait_for()
        assert page.locator("#text-reference").is_hidden()
        for name in ("Page (HTML)", "Picture (PNG)"):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=name).click()
            assert waiting.value.suggested_filename.startswith("words.")


def test_refusals_offer_what_could_be_meant(chromium: Any, texts: str) -> None:
    with opened(chromium, texts) as page:
        unknown(page)
        assert "No class is called 'positve'." in page.inner_text("#text-refusal")
        page.locator("#text-refusal").get_by_role("button", name="positive").click()
        page.locator(".text-pane .title", has_text="Which words speak for 'positive'?").wait_for()
        settled(page)
        assert page.locator("#text-refusal").is_hidden()
        write(page, "film " * 100)
        assert "at most 64: shorten it" in page.inner_text("#text-refusal")
        assert page.locator(".text-pane").is_hidden(), "nothing of the text before stays"


def test_by_keyboard(chromium: Any, texts: str) -> None:
    def tab_to(page: Any, wanted: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == wanted:
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"{wanted} cannot be reached with Tab")

    with opened(chromium, texts) as page:
        tab_to(page, "text")
        page.keyboard.type(TEXT)
        page.keyboard.press("Control+Enter")
        page.wait_for_selector(".text-pane:not([hidden])")
        settled(page)
        tab_to(page, "text-wanted")
        page.keyboard.type("positive")
        page.keyboard.press("Enter")
        page.locator(".text-pane .title", has_text="'positive'").wait_for()
        settled(page)
        tab_to(page, "text-method")
        page.keyboard.press("ArrowDown")
        page.locator(".made", has_text="Deep Taylor").wait_for()
        settled(page)
        page.focus("#tab-texts")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.id") == "tab-pictures"
        assert page.inner_text("h1") == "Which pixels decided the network’s answer?"
        assert page.locator("#pick").is_visible()
        page.keyboard.press("End")
        assert page.locator(".text-pane").is_visible()


def test_without_a_network_the_tab_says_how_to_get_one(chromium: Any, address: str) -> None:
    for look, given in LOOKS.items():
        with opened(chromium, address, **given) as page:
            page.click("#tab-texts")
            assert "deeptaylor serve --model hf:FOLDER" in " ".join(page.inner_text("#texts").split())
            assert page.locator("#text").is_hidden()
            assert violations(page) == []
            shoot(page, f"text_{look}_none")


def test_language_models_and_embeddings(chromium: Any) -> None:
    with opened(chromium, served(llama())) as page:
        write(page, "the capital of france is")
        page.locator("#text-guesses button").nth(1).click()
        page.wait_for_selector("#text-guesses li:nth-child(2) [aria-pressed=true]")
        page.fill("#text-wanted", "paris")
        page.fill("#text-against", "london")
        page.press("#text-against", "Enter")
        page.locator(".title", has_text="'paris' rather than 'london' next").wait_for()
        settled(page)
        assert violations(page) == []
        shoot(page, "text_language_model")
    with opened(chromium, served(embedder())) as page:
        page.fill("#other-text", "some one performs music")
        write(page, "a man plays guitar")
        page.locator(".title", has_text="the similarity of the two texts").wait_for()
        assert page.locator("#text-question").is_hidden()
        assert violations(page) == []
        shoot(page, "text_similarity")
