"""Digits in a real Chromium: drawn by hand, and the digits page as files alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import DESK, SHOWN, pixels, run_node, served, settled, shoot
from deeptaylor.viz.heatmap import render

pytestmark = pytest.mark.browser


def score_of(page: Any) -> float:
    said = re.search(r" is (\S+)\.", page.inner_text(".says"))
    assert said
    return float(said[1])


def test_draw(page: Any) -> None:
    page.select_option("#model", "two-layer")
    page.get_by_text("Ready.", exact=True).wait_for()
    box = page.locator("#pad").bounding_box()

    def at(column: float, row: float) -> tuple[float, float]:
        return box["x"] + box["width"] * column / 56, box["y"] + box["height"] * row / 28

    page.mouse.move(*at(14, 5))
    page.mouse.down()
    for k in range(8):
        page.mouse.move(*at(14, 5 + 2.4 * k), steps=3)
    page.mouse.up()
    settled(page)
    page.check("[value=photograph]")
    seen = pixels(page, SHOWN)
    assert seen.shape == (28, 56, 3)
    assert seen[5:20, 13:15].min() > 150
    assert seen[:, 28:].max() == 0
    assert page.locator("#question").is_hidden()
    shoot(page, "drawn")
    page.get_by_role("button", name="Clear").click()
    assert page.locator(SHOWN).first.is_hidden()
    page.get_by_role("button", name="Write them for me").click()
    settled(page)
    assert score_of(page) > 50  # there is a 3
    page.select_option("#write-left", "7")
    page.get_by_role("button", name="Write them for me").click()
    page.wait_for_timeout(100)
    settled(page)
    assert score_of(page) < 50


def test_the_choice_of_digits_does_not_name_what_is_drawn_by_hand(page: Any) -> None:
    page.select_option("#model", "two-layer")
    page.get_by_text("Ready.", exact=True).wait_for()

    def chosen() -> list[str]:
        return [page.eval_on_selector(f"#write-{s}", "s => s.selectedOptions[0].text") for s in ("left", "right")]

    assert chosen() == ["3", "8"]
    page.get_by_role("button", name="Write them for me").click()
    settled(page)
    page.check("[value=photograph]")
    written = pixels(page, SHOWN)
    page.locator("#pad").click(position={"x": 9, "y": 9})
    assert chosen() == ["by hand", "by hand"]
    page.wait_for_timeout(100)
    settled(page)
    shoot(page, "by_hand")
    # A half that is drawn by hand stays when a digit is written beside it.
    page.focus("#write-right")
    page.keyboard.press("1")
    assert chosen() == ["by hand", "1"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert chosen() == ["by hand", "nothing"]  # what is by hand cannot be chosen
    page.get_by_role("button", name="Write them for me").click()
    page.wait_for_timeout(100)
    settled(page)
    seen = pixels(page, SHOWN)
    assert seen[:, 28:].max() == 0
    assert (seen[8:, :28] == written[8:, :28]).all()
    page.get_by_role("button", name="Clear").click()
    assert chosen() == ["3", "nothing"]
    # By keyboard alike; and with nothing chosen since, the button writes what it wrote before.
    page.focus("#pad")
    page.keyboard.press("Space")
    assert chosen() == ["by hand", "by hand"]
    page.keyboard.press("Space")
    page.get_by_role("button", name="Write them for me").click()
    assert chosen() == ["3", "nothing"]
    settled(page)


def test_the_digits_page_as_files_alone(chromium: Any, tmp_path: Path) -> None:
    """Network and explanation inside the browser; nothing but the folder's files is asked for."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from deeptaylor.app.server import digits

    run_node("build_pages.mjs", "digits", str(tmp_path))
    assert digits.main([str(tmp_path)]) == 0
    with served(tmp_path) as base:
        explain_digits(chromium, base)


def explain_digits(chromium: Any, base: str) -> None:
    page, asked, errors = chromium.new_page(viewport=DESK), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{base}/index.html")
    for name in ("two-layer", "one-layer"):
        page.select_option("#model", name)
        page.get_by_text("Ready.", exact=True).wait_for(timeout=60_000)
        page.get_by_role("button", name="Write them for me").click()
        page.locator("#score", has_text="which pixels hold it").wait_for()
        page.wait_for_timeout(300)
        network = dt.load(name)
        x, _ = network.preprocess(Image.fromarray(pixels(page, "canvas.input")[..., 0].astype(np.uint8)))
        e = dt.Explainer(network.network, x, domain=network.domain, bias="neuron").explain(x)
        said = re.search(r"score is (\S+);", page.inner_text("#score"))
        assert said
        assert float(said[1]) == pytest.approx(float(e.score[0]), rel=1e-3)
        assert np.abs(pixels(page, "canvas.heatmap") - render(e.heatmap()[0])).max() <= 1
        shoot(page, f"files_{name}")
    assert errors == []
    assert all(url.startswith((base, "blob:", "data:")) for url in asked)
    page.close()
