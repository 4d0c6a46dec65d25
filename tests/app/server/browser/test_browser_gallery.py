"""The gallery over a run in a real Chromium: grid, filters, clusters, channels, and one click to an explanation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import PHONE, opened, settled, shoot, violations
from deeptaylor.app.server.main import serve

pytestmark = pytest.mark.browser

LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "has_touch": True, "is_mobile": True},
}
READY = "All 31 items"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, own: dt.Pretrained) -> dt.Run:
    """Thirty pictures with a bright square in one of two places, and a file that is none."""
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(0)
    for k in range(30):
        picture = generator.integers(0, 90, (28, 28, 3), dtype=np.uint8)
        picture[slice(3, 10) if k % 2 else slice(17, 24), 4:11] = 250
        file = folder / "pictures" / ("cat" if k % 2 else "dog") / f"{k:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    (folder / "pictures" / "cat" / "broken.png").write_bytes(b"no picture")
    return dt.explain_dataset(folder / "pictures", own, folder / "store", also=[dt.Concepts("relu")])


@pytest.fixture(scope="module")
def gallery(run: dt.Run, own: dt.Pretrained) -> str:
    told: queue.Queue[str] = queue.Queue()
    arguments = {"model": own, "ready": told.put, "title": "mine", "run": run.path}
    threading.Thread(target=serve, kwargs=arguments, daemon=True).start()
    return told.get(timeout=30)


def loaded(page: Any, within: str = "#gallery-grid") -> None:
    page.wait_for_selector(f"#gallery-stage:not([aria-busy]) {within} .picture[data-loaded]")


def clustered(page: Any) -> None:
    page.click("#find-clusters")
    page.wait_for_selector(".scatter")
    loaded(page, "#clusters")


def one(page: Any) -> None:
    page.locator("#gallery-grid .tile").nth(1).click()
    page.wait_for_selector("#item-dialog .picture[data-loaded]")


def channel(page: Any) -> None:
    page.select_option("#channel-layer", "0")
    page.locator("#channel-items", has_text="Above: the part of the photograph").wait_for()
    loaded(page, "#channel-items")


def means(page: Any) -> None:
    page.click("#means-details summary")
    loaded(page, "#class-means")


STATES: dict[str, Callable[[Any], None]] = {
    "grid": loaded, "clusters": clustered, "item": one, "channel": channel, "means": means,
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_wrong_in_any_state(chromium: Any, gallery: str, look: str) -> None:
    for name, reach in STATES.items():
        with opened(chromium, gallery, READY, **LOOKS[look]) as page:
            reach(page)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
            shoot(page, f"gallery-{name}-{look}")


def test_filters_choose_what_is_in_the_grid(chromium: Any, gallery: str, run: dt.Run) -> None:
    with opened(chromium, gallery, READY) as page:
        loaded(page)
        assert page.locator("#gallery-grid .tile").count() == 31
        wrong = len(run.where(right=False, status="explained"))
        page.select_option("select[name=right]", "false")
        page.get_by_text(f"{wrong} of 31 items", exact=True).wait_for()
        assert page.locator("#gallery-grid .wrong").count() == wrong
        page.click("button[type=reset]")
        page.get_by_text(READY, exact=True).wait_for()
        page.select_option("#filter-status", "2")
        page.get_by_text("1 of 31 items", exact=True).wait_for()
        page.locator("#gallery-grid .tile").click()
        page.locator("#item-dialog", has_text="It could not be read.").wait_for()
        page.keyboard.press("Escape")
        page.fill("#filter-low", "1e9")
        page.press("#filter-low", "Enter")
        page.get_by_text("No item matches.", exact=True).wait_for()


def test_one_click_explains_an_item_anew(chromium: Any, gallery: str, run: dt.Run) -> None:
    with opened(chromium, gallery, READY) as page:
        one(page)
        assert "The network says" in page.inner_text("#item-dialog")
        page.keyboard.press("ArrowRight")
        page.locator("#item-title", has_text="(item 2)").wait_for()
        page.get_by_role("button", name="Explain it again").click()
        settled(page)
        assert page.inner_text("#file-name") == run.names[2]
        assert page.get_attribute("#tab-pictures", "aria-selected") == "true"
        score = f"{float(run.table['score'][2]):.3g}"
        assert f"is {score};" in page.inner_text("#panes")


def test_a_cluster_is_chosen_by_its_points_and_left_again(chromium: Any, gallery: str, run: dt.Run) -> None:
    expected = run.where(status="explained").clusters()
    with opened(chromium, gallery, READY) as page:
        clustered(page)
        assert page.locator(".cluster-list button").count() == expected.count
        page.locator(".scatter circle[data-cluster='1']").first.click(force=True)
        page.get_by_text(f"Cluster 1: {expected.sizes[1]} of 31 items", exact=True).wait_for()
        assert page.locator(".scatter circle:not(.pale)").count() == expected.sizes[1]
        assert page.get_attribute(".cluster-list li:nth-child(2) button", "aria-pressed") == "true"
        page.click("#cluster-chosen")
        page.get_by_text(READY, exact=True).wait_for()


def test_by_keyboard(chromium: Any, gallery: str) -> None:
    with opened(chromium, gallery, READY) as page:
        loaded(page)
        page.focus("#tab-gallery")
        page.keyboard.press("Home")
        assert page.is_visible("#pictures")
        page.keyboard.press("End")
        assert page.is_visible("#gallery-grid")
        page.locator("#gallery-grid .tile").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#item-dialog[open] .picture[data-loaded]")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement === document.querySelector('#gallery-grid .tile')")


def test_without_a_run_there_is_no_such_tab(page: Any) -> None:
    assert page.is_hidden("#tab-gallery")
    page.focus("#tab-pictures")
    page.keyboard.press("End")
    assert page.is_visible("#no-text")
