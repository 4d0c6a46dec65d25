"""The page in a real Chromium by keyboard, for screen readers, on a phone and in the dark."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import torch
from torch import nn

import deeptaylor as dt
from browser import DONE, PHONE, opened, photo, pixels, settled, shoot, upload
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
    tab_to(page, "pad")
    page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press("Space")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Space")
    settled(page)
    assert page.inner_text("#pad-said").startswith("Pen up, left half, column 14, row 22")
    assert pixels(page, "canvas.input")[10:22, 14].min() > 150
    tab_to(page, "write")
    page.keyboard.press("Enter")
    settled(page)
    tab_to(page, "compare")
    page.keyboard.press("Space")
    settled(page, 2)
    page.keyboard.press("Space")
    tab_to(page, "method")
    page.keyboard.type("Sens")
    settled(page)
    page.locator(".parts", has_text="not handed out").wait_for()
    page.keyboard.press("ArrowUp")
    page.locator(".layers").wait_for()
    tab_to(page, "bias")
    page.keyboard.press("ArrowDown")
    settled(page)
    tab_to(page, "heatmap")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".readout").startswith("Column 29, row 14: relevance ")
    page.keyboard.press("Shift+ArrowUp")
    assert page.inner_text(".readout").startswith("Column 29, row 4: ")
    tab_to(page, "opacity")
    page.keyboard.press("Home")
    assert page.locator(".opacity").input_value() == "0"
    page.keyboard.press("Tab")  # the box for all steps
    page.keyboard.press("Tab")  # the first layer
    page.keyboard.press("Enter")
    page.wait_for_selector(".layer figure")
    with page.expect_download():
        page.keyboard.press("Tab")
        for _ in range(12):
            if page.evaluate("document.activeElement.textContent") == "Numbers (npz)":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")


def test_pick_by_keyboard(page: Any) -> None:
    # Asked for before the way there: the browser is told to report choosers without waiting until it knows, and a key
    # that overtakes that word opens one which nobody hears of. What is asked of the page on the way comes after it.
    with page.expect_file_chooser() as waiting:
        tab_to(page, "pick")
        page.keyboard.press("Enter")
    waiting.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": photo()})
    page.wait_for_selector(DONE)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.parentElement?.parentElement?.id") == "classes":
            break
    page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.firstChild.textContent")
    page.keyboard.press("Enter")
    page.locator(".score", has_text=f"“{name}”").wait_for()
    settled(page)
    # The keyboard is where it was, not at the top of the page again.
    assert page.evaluate("document.activeElement.firstChild?.textContent") == name


def test_a_screen_reader_finds_a_name_for_everything(page: Any) -> None:
    upload(page)
    page.locator(".layers button").first.click()
    page.wait_for_selector(".layer figure")
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
    assert {"main", "alert", "heading"} <= set(roles)
    label = page.get_attribute("canvas.heatmap", "aria-label")
    assert "Most of it: " in label


@pytest.mark.parametrize("look", ["phone", "dark", "phone-dark"])
def test_phone_and_dark(chromium: Any, address: str, look: str) -> None:
    given: dict[str, Any] = {"color_scheme": "dark" if "dark" in look else "light"}
    if "phone" in look:
        given |= {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    with opened(chromium, address, **given) as page:
        shoot(page, f"{look}_start")
        upload(page)
        page.check("#compare")
        settled(page, 2)
        page.locator(".layers button").first.click()
        page.wait_for_selector(".layer figure")
        for summary in page.locator("details > summary").all():
            summary.click()
        shoot(page, f"{look}_compared")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        assert page.eval_on_selector(".scroll", "s => s.scrollWidth <= s.clientWidth"), "the layers scroll sideways"
        page.select_option("#model", "one-layer")
        page.get_by_text("Ready.", exact=True).wait_for()
        page.get_by_role("button", name="Write them for me").click()
        settled(page, 2)
        shoot(page, f"{look}_digits")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(int(n) for n in background[4:-1].split(",")) > 3 * 128
        assert light != ("dark" in look)


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
