"""The page in a real Chromium, by pointer: pictures explained, compared, looked into and kept."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import DONE, explanation, photo, pixels, settled, shoot, upload
from deeptaylor.heatmap import colours

pytestmark = pytest.mark.browser


def test_upload(page: Any, own: dt.Pretrained) -> None:
    shoot(page, "start")
    upload(page, "../../x<img src=nowhere>.png")
    assert page.inner_text("#file-name") == "../../x<img src=nowhere>.png"
    e = explanation(own)
    x, seen = own.preprocess(Image.open(io.BytesIO(photo())))
    assert page.locator("#classes button").count() == 5
    assert page.inner_text("#classes li:first-child button span:first-child") == own.top(x)[0][0].name
    assert "<b>bold</b>" in [button.inner_text() for button in page.locator("#classes button span:first-child").all()]
    assert page.locator("#classes b, #file-name img").count() == 0
    assert np.abs(pixels(page, "canvas.heatmap") - colours(e.heatmap()[0])).max() <= 1
    assert (pixels(page, "canvas.input") == np.asarray(seen)).all()
    # The whole of the account is on the page.
    words = page.inner_text(".ledger")
    assert "Where the score went" in words
    assert page.locator(".layers button").count() >= 2
    shoot(page, "explained")


def test_drop(page: Any) -> None:
    data = page.evaluate_handle(
        """bytes => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"})); return t; }""",
        list(photo()),
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": data})
    page.wait_for_selector(DONE)
    assert page.inner_text("#file-name") == "dropped.png"


def test_little_in_the_input_is_said_first_and_both_modes_compared(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    warning = page.locator(".warning")
    assert warning.inner_text().startswith("The input holds only")
    assert warning.get_attribute("role") == "alert"
    above, below = (page.locator(s).first.bounding_box()["y"] for s in (".warning", ".pictures"))
    assert above < below
    page.get_by_role("button", name="Compare both ways").click()
    settled(page, 2)
    first, second = (page.locator(".panel").nth(k) for k in (0, 1))
    assert first.locator("[value=neuron]").is_checked()
    assert second.locator("[value=spread]").is_checked()
    assert second.locator(".warning").is_hidden()
    assert "100 % the picture" in second.locator(".parts").inner_text()
    shoot(page, "compared")
    neuron, spread = (explanation(own, bias=bias).heatmap()[0].numpy() for bias in ("neuron", "spread"))
    page.check("#same-scale")
    scale = max(np.percentile(np.abs(h), 99.5) for h in (neuron, spread))
    assert np.abs(pixels(page, ".panel:first-child canvas.heatmap") - colours(neuron, scale)).max() <= 1
    page.uncheck("#compare")
    assert page.locator(".panel").count() == 1


def test_compare_two_methods_and_two_rules(page: Any) -> None:
    upload(page)
    page.check("#compare")
    settled(page, 2)
    second = page.locator(".panel").nth(1)
    second.locator("[name=method]").select_option("sensitivity")
    settled(page, 2)
    second.locator(".parts", has_text="not handed out by this method").wait_for()
    assert second.locator(".layers button").count() == 0
    shoot(page, "methods")
    second.locator("[name=method]").select_option("deep-taylor")
    second.get_by_text("More settings").click()
    second.locator("[name=above]").fill("eps:0.25")
    second.locator("[name=above]").press("Enter")
    second.locator(".layers", has_text="eps=0.25").wait_for()
    shoot(page, "rules")
    second.locator("[name=above]").fill("nonsense")
    second.locator("[name=above]").press("Enter")
    second.get_by_text("no rule is called 'nonsense'").wait_for()
    shoot(page, "refused")


def test_another_class(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    third = page.locator("#classes button").nth(2)
    name = third.locator("span").first.inner_text()
    third.click()
    page.get_by_text(f"Why “{name}”?").or_(page.get_by_text(f"The score of “{name}”")).wait_for()
    settled(page)
    assert page.locator("#classes [aria-pressed=true] span").first.inner_text() == name
    e = explanation(own, own.class_names.index(name) if own.class_names else 0)
    assert np.abs(pixels(page, "canvas.heatmap") - colours(e.heatmap()[0])).max() <= 1
    page.fill("#class-name", "<b>bold</b>")
    page.press("#class-name", "Enter")
    page.get_by_text("“<b>bold</b>”").first.wait_for()
    page.fill("#class-name", "unicorn")
    page.press("#class-name", "Enter")
    page.get_by_text("No class is called “unicorn”").wait_for()


def test_hover(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    heat = explanation(own).heatmap()[0]
    for name in ("input", "heatmap", "overlay"):
        canvas = page.locator(f"canvas.{name}")
        box = canvas.bounding_box()
        canvas.hover(position={"x": box["width"] * 5.5 / 24, "y": box["height"] * 11.5 / 24})
        said = page.inner_text(".readout")
        assert said.startswith("Column 5, row 11: relevance ")
        assert float(said.split()[5].strip(",")) == pytest.approx(float(heat[11, 5]), rel=1e-2)
    page.locator("#result-heading").hover()
    assert page.inner_text(".readout").startswith("Point at a pixel")


def test_overlay_slider(page: Any) -> None:
    upload(page)
    page.locator(".opacity").fill("0")
    grey = pixels(page, "canvas.overlay")
    assert (grey[..., 0] == grey[..., 1]).all()
    page.locator(".opacity").fill("100")
    assert (pixels(page, "canvas.overlay") != grey).any()


def test_a_layer(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.locator(".layers button", has_text="conv1").first.click()
    page.wait_for_selector(".layer figure")
    found = pixels(page, ".layer canvas")
    assert found.shape == (22, 22, 3)
    assert "8 × 22 × 22" in page.inner_text(".layer")
    shoot(page, "layer")


def test_the_layers_begin_with_the_whole_score(page: Any, own: dt.Pretrained) -> None:
    """Down from the answer: what the biases of the topmost step took is among the bars."""
    upload(page)
    rows = page.locator(".layers li")
    ledger = explanation(own).ledger
    assert "linear_default" in rows.first.inner_text()
    assert rows.first.locator(".number").inner_text() == "100 %"
    taken = 100 * float(ledger.entries[0, 2, 0]) / float(ledger.score[0])
    assert taken > 1
    assert f"biases took {taken:.3g} %" in rows.first.inner_text()
    page.get_by_text("also steps that only hand on").click()
    assert rows.count() == len(ledger.rows)
    # Its relevance is the score alone: there is no map to choose.
    assert rows.first.locator("button").count() == 0
    assert rows.nth(1).locator("button").count() == 1
    shoot(page, "layers")


def test_downloads(page: Any, own: dt.Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(page)
    files: dict[str, bytes] = {}
    for name in ("Heatmap (PNG)", "Numbers (npz)", "What the network saw (PNG)", "Python"):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name, exact=True).click()
        files[waiting.value.suggested_filename] = Path(waiting.value.path()).read_bytes()
    assert list(files) == [
        "photo_deep-taylor.png",
        "photo_deep-taylor.npz",
        "photo_deep-taylor_seen.png",
        "photo_deep-taylor.py",
    ]
    shown = np.asarray(Image.open(io.BytesIO(files["photo_deep-taylor.png"]))).astype(np.int64)
    assert np.abs(pixels(page, "canvas.heatmap") - shown).max() <= 1
    monkeypatch.chdir(tmp_path)
    Path("photo.png").write_bytes(photo())
    space: dict[str, Any] = {"own": own}
    exec(files["photo_deep-taylor.py"].decode().replace("dt.load(…)", "own"), space)
    with np.load(io.BytesIO(files["photo_deep-taylor.npz"])) as arrays:
        assert np.allclose(arrays["relevance"], space["e"].numpy()[0], rtol=1e-5)
    page.get_by_text("The same on the command line").click()
    assert "deeptaylor explain photo.png --model" in page.inner_text(".more")


def test_the_guesses_of_another_picture_do_not_stay(page: Any) -> None:
    """Where a new picture cannot be explained; what is wrong with a setting leaves them, for they are still true."""
    upload(page)
    page.get_by_text("More settings").click()
    page.locator("[name=above]").fill("nonsense")
    page.locator("[name=above]").press("Enter")
    page.get_by_text("no rule is called 'nonsense'").wait_for()
    assert page.locator("#answer").is_visible()
    page.set_input_files("#file", {"name": "b.png", "mimeType": "image/png", "buffer": photo()})
    page.locator("#answer").wait_for(state="hidden")
    page.get_by_text("no rule is called 'nonsense'").wait_for()
    page.locator("[name=above]").fill("")
    page.locator("[name=above]").press("Enter")
    settled(page)
    assert page.locator("#answer").is_visible()
