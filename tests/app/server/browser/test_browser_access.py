"""The page in a real Chromium by keyboard, for screen readers, on a phone and in the dark."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from browser import DESK, PHONE, SHOWN, ask, in_view, opened, photo, refused, settled, shoot, upload, violations
from deeptaylor.app.server.main import serve

pytestmark = pytest.mark.browser


def focused(page: Any) -> str:
    found: str = page.evaluate(
        "document.activeElement.id || document.activeElement.name || document.activeElement.className"
    )
    return found


def tab_to(page: Any, wanted: str) -> None:
    """Press Tab until something has the focus; it must be visible that it has."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if focused(page) == wanted:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"{wanted} does not show its focus"
            return
    raise AssertionError(f"{wanted} cannot be reached with Tab")


def test_keyboard_only(page: Any) -> None:
    tab_to(page, "model")
    page.keyboard.type("Digits, two")
    page.get_by_text("One digit in each half").wait_for()
    page.get_by_text("Ready.", exact=True).wait_for()
    page.keyboard.press("Shift+Tab")
    for _ in range(10):
        if focused(page) == "pad":
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Space")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Space")
    settled(page)
    assert page.inner_text("#pad-said").startswith("Pen up, left half, column 14, row 22")
    tab_to(page, "write")
    page.keyboard.press("Enter")
    settled(page)
    tab_to(page, "compare")
    page.keyboard.type("another m")
    settled(page, 2)
    page.keyboard.press("Home")
    settled(page)
    tab_to(page, "method")
    page.keyboard.type("Sens")
    page.get_by_text("It does not split the score").first.wait_for()
    page.keyboard.press("Home")
    settled(page)
    page.keyboard.press("ArrowDown")
    page.locator(".layers").first.wait_for()
    settled(page)
    tab_to(page, "bias")
    page.keyboard.press("ArrowDown")
    settled(page)
    tab_to(page, "look")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("[value=map]")
    tab_to(page, "opacity")
    page.keyboard.press("Home")
    assert page.locator(".opacity").input_value() == "0"
    tab_to(page, "layer")
    page.keyboard.press("ArrowDown")
    page.get_by_text("inside the network, at").wait_for()
    page.keyboard.press("Home")
    page.get_by_text("Which pixels speak for the network’s answer").first.wait_for()
    tab_to(page, "shown crisp")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith("Column 29, row 14: relevance ")
    page.keyboard.press("Shift+ArrowUp")
    assert page.inner_text(".readout").startswith("Column 29, row 4: ")
    page.keyboard.press("Tab")  # the box for all steps
    page.keyboard.press("Tab")  # the first layer
    page.keyboard.press("Enter")
    page.get_by_text("inside the network, at").wait_for()
    with page.expect_download():
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Numbers (npz)":
                break
        page.keyboard.press("Enter")


def test_a_question_by_keyboard(page: Any) -> None:
    # Asked for before the way there: the browser is told to report choosers without waiting until it knows, and a key
    # that overtakes that word opens one which nobody hears of. What is asked of the page on the way comes after it.
    with page.expect_file_chooser() as waiting:
        tab_to(page, "pick")
        page.keyboard.press("Enter")
    waiting.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": photo()})
    settled(page)
    tab_to(page, "question")
    for _ in range(2):
        page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.firstChild.textContent")
    page.keyboard.press("Enter")
    page.locator(".title", has_text=f"“{name}”").wait_for()
    settled(page)
    # The keyboard is where it was, not at the top of the page again.
    assert page.evaluate("document.activeElement.firstChild?.textContent") == name
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # the best guess again
    page.locator(".title", has_text="Which pixels speak for “dog”").wait_for()
    tab_to(page, "against")
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    page.locator(".title", has_text=f"“dog” against “{name}”").wait_for()
    settled(page)
    # The colour scale, and back.
    page.locator(SHOWN).first.focus()
    page.keyboard.press("Tab")
    assert page.get_by_label("As in the whole map").first.evaluate("radio => radio === document.activeElement")
    page.keyboard.press("ArrowRight")
    assert "times as strong" in page.inner_text(".scale")
    assert page.get_by_label("Its own", exact=True).first.evaluate("radio => radio === document.activeElement")
    page.focus("#against")
    page.keyboard.press("Control+A")
    page.keyboard.type("nobody")
    page.keyboard.press("Enter")
    assert refused(page).startswith("No class is called 'nobody'.")


def test_a_screen_reader_finds_a_name_for_everything(page: Any) -> None:
    upload(page)
    page.locator(".layers button").first.click()
    page.wait_for_selector(".channels:not([hidden])")
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "checkbox", "radio", "slider", "combobox", "textbox", "spinbutton", "image", "img", "Canvas"}
    seen = set()
    for node in nodes:
        role = node.get("role", {}).get("value", "")
        if role in named and not node.get("ignored"):
            seen.add(role)
            assert node.get("name", {}).get("value"), node
    assert {"button", "checkbox", "radio", "slider"} <= seen
    roles = [n.get("role", {}).get("value") for n in nodes if not n.get("ignored")]
    assert {"main", "heading"} <= set(roles)
    label = page.get_attribute("canvas.shown", "aria-label")
    assert "Most of it: " in label


def test_a_phone_speaks_of_touching_and_not_of_pointers_and_keys(chromium: Any, address: str) -> None:
    with opened(chromium, address, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        upload(page)
        assert page.inner_text(".readout") == "Touch the picture to read single values."
        canvas = page.locator(SHOWN).first
        described = page.locator(f"#{canvas.get_attribute('aria-describedby')}").text_content()
        assert described == "Touch the picture to read single pixels."
        box = canvas.bounding_box()
        canvas.tap(position={"x": box["width"] * 5.5 / 24, "y": box["height"] * 11.5 / 24})
        assert page.inner_text(".readout").startswith("Column 5, row 11: relevance ")  # also once the finger is gone
        page.select_option("#model", "one-layer")
        page.get_by_text("Ready.", exact=True).wait_for()
        assert page.inner_text("#pad-help") == "One digit in each half."
        for words in ("Point at", "arrow", "keyboard"):
            assert words not in page.inner_text("body"), words


def test_a_desk_speaks_of_pointers_and_keys(page: Any) -> None:
    upload(page)
    assert page.inner_text(".readout") == "Point at the picture to read single values."
    described = page.get_attribute(f"{SHOWN} >> nth=0", "aria-describedby")
    assert page.locator(f"#{described}").text_content() == (
        "Move with the arrow keys to read single pixels; with Shift by ten."
    )
    page.select_option("#model", "one-layer")
    page.get_by_text("Ready.", exact=True).wait_for()
    assert page.inner_text("#pad-help").endswith("By keyboard: arrows move the pen, Space puts it down or up.")


# --- every state, by axe-core -----------------------------------------------------------------------------------------


def explained(page: Any) -> None:
    upload(page)


def set_apart(page: Any) -> None:
    upload(page)
    page.check("[value=apart]")
    settled(page)


def against(page: Any) -> None:
    upload(page)
    ask(page, "#against", "moon")
    settled(page)


def stretched(page: Any) -> None:
    against(page)
    page.get_by_role("group", name="Colour scale").get_by_label("Its own").check()


def unknown(page: Any) -> None:
    upload(page)
    ask(page, "#against", "moom")
    refused(page)


def higher(page: Any) -> None:
    upload(page)
    ask(page, "#class-name", "cat")
    settled(page)
    ask(page, "#against", "dog")
    refused(page)


def insensitive(page: Any) -> None:
    upload(page)
    page.select_option("[name=method]", "sensitivity")
    settled(page)


def layer(page: Any) -> None:
    upload(page)
    page.locator(".layers button").first.click()
    page.wait_for_selector(".channels:not([hidden])")


def two(page: Any) -> None:
    upload(page)
    page.select_option("#compare", "target")
    settled(page, 2)


def believed(page: Any) -> None:
    upload(page)
    page.locator(".believe").first.click()
    page.locator(".believed .size").wait_for()


def no_picture(page: Any) -> None:
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"words"})
    page.locator("#picture-problem").wait_for()


def drawn(page: Any) -> None:
    page.select_option("#model", "one-layer")
    page.get_by_text("Ready.", exact=True).wait_for()
    page.get_by_role("button", name="Write them for me").click()
    settled(page)


def unfolded(page: Any) -> None:
    upload(page)
    for summary in page.locator("details > summary").all():
        if summary.is_visible():
            summary.click()


EVERY = (
    explained, set_apart, against, stretched, unknown, higher, insensitive, layer, two, believed, no_picture, drawn,
    unfolded,
)  # fmt: skip
STATES: dict[str, Callable[[Any], None]] = {"start": lambda page: None} | {state.__name__: state for state in EVERY}


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_wrong(chromium: Any, address: str, state: str, look: str) -> None:
    given: dict[str, Any] = {"color_scheme": "dark" if look == "dark" else "light"}
    if look == "phone":
        given |= {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    with opened(chromium, address, **given) as page:
        STATES[state](page)
        assert violations(page) == []
        shoot(page, f"{look}_{state}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"


# --- in view ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["desk", "wide", "phone"])
@pytest.mark.parametrize("state", ["explained", "set_apart", "against", "insensitive", "two"])
def test_the_picture_is_in_view_without_scrolling(chromium: Any, address: str, state: str, look: str) -> None:
    phone: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    given = {"desk": {}, "wide": {"viewport": {"width": 1920, "height": 800}}, "phone": phone}[look]
    with opened(chromium, address, **given) as page:
        STATES[state](page)
        in_view(page)
        box = page.locator("canvas.shown").first.bounding_box()
        if look != "phone":
            assert page.evaluate("scrollY") == 0
            assert box["x"] > page.locator("#controls").bounding_box()["width"] - 1
            assert box["width"] > (400 if state == "two" else 500)
        else:
            assert box["y"] < page.locator("#photograph").bounding_box()["y"], "the picture comes first"
            assert box["width"] > (150 if state == "two" else 350)


def test_the_phone_s_first_screen_has_the_button_that_it_speaks_of(chromium: Any, address: str) -> None:
    with opened(chromium, address, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        if page.locator("#samples").is_visible():
            page.locator("#tiles img").last.wait_for()
        assert "Pick a photograph to begin." in page.inner_text("#welcome")
        assert page.evaluate("scrollY") == 0
        assert page.inner_text("#begin") == "Pick a photograph"
        in_view(page, "#begin")
        with page.expect_file_chooser() as waiting:
            page.tap("#begin")
        waiting.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": photo()})
        settled(page)
        in_view(page)


def test_a_desk_has_one_button_to_pick_a_photograph(page: Any) -> None:
    assert page.locator("button:visible:text-is('Pick a photograph')").count() == 1
    in_view(page, "#pick")


def test_a_layer_chosen_below_brings_the_picture_back_into_view(page: Any) -> None:
    layer(page)
    in_view(page)


@pytest.mark.parametrize("look", ["light", "dark"])
def test_the_page_follows_the_system(chromium: Any, address: str, look: str) -> None:
    with opened(chromium, address, color_scheme=look) as page:
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(n) for n in background[4:-1].split(",")) > 3 * 128
        assert light == (look == "light")


class Deep(nn.Module):
    """Pictures (batch, 3, 24, 24) to six classes, through sixty layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        inside = [module for _ in range(58) for module in (nn.Conv2d(4, 4, 1), nn.ReLU())]
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *inside)
        self.fc = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layers(x).mean((2, 3)))


@pytest.mark.parametrize("look", ["desk", "phone"])
def test_the_page_ends_with_its_footer(chromium: Any, own: dt.Pretrained, look: str) -> None:
    """Also where the list of layers is long: it scrolls in itself."""
    deep = dt.load(Deep().eval(), preparation=own.preparation, class_names=own.class_names)
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve, kwargs={"model": deep, "ready": told.put}, daemon=True).start()
    phone: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    with opened(chromium, told.get(timeout=30), **(phone if look == "phone" else {})) as page:
        upload(page)
        assert page.eval_on_selector(".scroll", "s => s.scrollHeight > 3 * s.clientHeight")
        ends = page.eval_on_selector("footer", "f => f.getBoundingClientRect().bottom + scrollY")
        assert page.evaluate("document.scrollingElement.scrollHeight") <= ends + 40
        shoot(page, f"deep_{look}")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_tour_on_the_first_visit_can_be_followed_and_skipped(
    chromium: Any, address: str, size: dict[str, int]
) -> None:
    with opened(chromium, address, tour=True, viewport=size) as page:
        steps = []
        for _ in range(3):
            steps.append(page.inner_text("#tour-title"))
            in_view(page, "#tour")
            assert violations(page) == []
            shoot(page, f"tour_{len(steps)}_{size['width']}")
            page.click("#tour .main")
        assert steps == ["1 of 3: Choose a photograph", "2 of 3: Read the answer", "3 of 3: Ask further"]
        assert page.locator("#tour").is_hidden()
        assert page.locator(".toured").count() == 0
        page.reload()  # it is shown once
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#tour").is_hidden()
        for key in ("Enter", "Escape"):  # on the button that skips, and anywhere
            page.evaluate("localStorage.clear()")
            page.reload()
            page.get_by_role("button", name="Skip the tour").press(key)
            assert page.locator("#tour").is_hidden()
        upload(page)


def test_method_and_reference_stand_beside_the_map(page: Any) -> None:
    upload(page)
    page.select_option("[name=method]", "secant")
    page.locator(".made", has_text="Method: Secants. Reference: the picture’s own mean colour.").wait_for()
    page.select_option("[name=method]", "paper")
    page.locator(".made", has_text="Reference: none.").wait_for()
