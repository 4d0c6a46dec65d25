"""The page in a real Chromium, by pointer: pictures explained, compared, looked into and kept."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import SHOWN, ask, explanation, photo, pixels, settled, shoot, upload
from deeptaylor.viz.heatmap import overlay, render, robust_scale

pytestmark = pytest.mark.browser


def seen(own: dt.Pretrained) -> np.ndarray[Any, Any]:
    return np.asarray(own.preprocess(Image.open(io.BytesIO(photo())))[1])


def test_upload(page: Any, own: dt.Pretrained) -> None:
    shoot(page, "start")
    upload(page, "../../x<img src=nowhere>.png")
    e = explanation(own)
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    assert page.locator("#classes button").count() == 5
    assert page.inner_text("#classes li:first-child button span:first-child") == own.top(x)[0][0].name
    assert "<b>bold</b>" in [button.inner_text() for button in page.locator("#classes button span:first-child").all()]
    assert page.locator("#classes b, #file-name img").count() == 0
    assert np.abs(pixels(page, SHOWN) - overlay(seen(own), e.heatmap()[0])).max() <= 1
    page.check("[value=map]")
    assert np.abs(pixels(page, SHOWN) - render(e.heatmap()[0])).max() <= 1
    page.check("[value=photograph]")
    assert (pixels(page, SHOWN) == seen(own)).all()
    assert "Where the score went" in page.inner_text(".ledger")
    assert page.locator(".layers button").count() >= 2
    shoot(page, "explained")


def test_drop(page: Any) -> None:
    data = page.evaluate_handle(
        """bytes => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"})); return t; }""",
        list(photo()),
    )
    page.dispatch_event("#drop", "drop", {"dataTransfer": data})
    settled(page)
    assert page.inner_text("#file-name") == "dropped.png"


def test_a_sample_is_explained_with_one_click(page: Any) -> None:
    first = page.locator(".sample").first
    if page.locator("#samples").is_hidden():
        pytest.skip("scikit-image is not installed")
    first.locator("img").wait_for()
    first.click()
    settled(page)
    assert page.inner_text("#file-name") == f"{first.get_attribute('data-sample')}.png"
    assert "scikit-image" in page.inner_text("#credits")


def test_a_photograph_of_too_many_pixels_is_shrunk_and_that_is_said(page: Any) -> None:
    file = io.BytesIO()
    Image.new("L", (9000, 4600), 90).save(file, "PNG")
    page.set_input_files("#file", {"name": "wide.png", "mimeType": "image/png", "buffer": file.getvalue()})
    settled(page)
    said = page.inner_text("#picture-note")
    assert said.startswith("It has 9000 × 4600 pixels and was shrunk to 2048 × 1047 before the upload")
    upload(page)
    assert page.inner_text("#picture-note") == ""


def test_little_in_the_input_is_said(page: Any) -> None:
    upload(page)
    assert page.inner_text(".warning").startswith("Conservative: no. Biases absorbed ")
    page.select_option("[name=method]", "deep-taylor")
    settled(page)
    page.check("[value=neuron]")
    settled(page)
    assert page.inner_text(".warning").startswith("The input accounts for only")
    page.check("[value=spread]")
    settled(page)
    assert page.locator(".warning").count() == 0


def test_two_ways_with_biases_side_by_side_on_one_scale(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.select_option("#compare", "bias")
    settled(page, 2)
    page.select_option("#beside", "spread")
    settled(page, 2)
    page.check("[value=map]")
    first, second = (page.locator(SHOWN).nth(k).bounding_box() for k in (0, 1))
    assert (first["y"], first["width"], first["height"]) == (second["y"], second["width"], second["height"])
    returned, spread = (explanation(own, bias=bias).heatmap()[0] for bias in ("returned", "spread"))
    beside = ".pane:nth-child(2) canvas.shown"
    assert np.abs(pixels(page, beside) - render(spread)).max() <= 1
    assert "The scale is this picture’s own." in page.inner_text(".pane:nth-child(2) .scale")
    page.check("#same-scale")
    scale = max(robust_scale(returned), robust_scale(spread))
    assert np.abs(pixels(page, SHOWN) - render(returned, scale)).max() <= 1
    assert np.abs(pixels(page, beside) - render(spread, scale)).max() <= 1
    assert "the same in both pictures" in page.inner_text(".pane:nth-child(2) .scale")
    assert "return their share to the inputs of each neuron" in page.inner_text(".pane:nth-child(2) .made")
    shoot(page, "compared")
    page.select_option("#compare", "")
    settled(page)
    assert page.locator(".pane").nth(1).is_hidden()


def test_two_classes_and_two_methods_side_by_side(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.select_option("#compare", "target")
    settled(page, 2)
    name = page.eval_on_selector("#beside", "s => s.selectedOptions[0].text")
    second = page.locator(".pane").nth(1)
    assert second.locator(".title").inner_text() == f"Which pixels speak for “{name}”"
    page.check("[value=map]")
    e = explanation(own, own.class_names.index(name) if own.class_names else 0)
    assert np.abs(pixels(page, ".pane:nth-child(2) canvas.shown") - render(e.heatmap()[0])).max() <= 1
    page.select_option("#compare", "method")
    settled(page, 2)
    page.select_option("#beside", "sensitivity")
    settled(page, 2)
    assert second.locator(".title").inner_text().startswith("Where a small change")
    # A squared gradient is no part of a score: there is no scale for both.
    assert page.locator("#same-label").is_hidden()
    shoot(page, "methods")


def test_two_networks_side_by_side(page: Any) -> None:
    page.select_option("#model", "one-layer")
    page.get_by_text("Ready.", exact=True).wait_for()
    page.get_by_role("button", name="Write them for me").click()
    settled(page)
    page.select_option("#compare", "model")
    settled(page, 2)
    made = [page.locator(".made").nth(k).inner_text() for k in (0, 1)]
    assert made[0].startswith("Digits, one layer. ")
    assert made[1].startswith("Digits, two layers. ")
    assert page.locator("#same-label").is_hidden()
    shoot(page, "networks")


def test_rules(page: Any) -> None:
    upload(page)
    page.select_option("[name=method]", "deep-taylor")
    settled(page)
    page.get_by_text("Rules", exact=True).click()
    ask(page, "[name=above]", "eps:0.25")
    page.locator(".layers", has_text="eps=0.25").wait_for()
    ask(page, "[name=above]", "nonsense")
    page.get_by_text("no rule is called 'nonsense'").wait_for()
    assert "The previous answer is shown below." in page.inner_text("#refusal")
    shoot(page, "refused")


def test_hover(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    heat = explanation(own).heatmap()[0]
    canvas = page.locator(SHOWN).first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 5.5 / 24, "y": box["height"] * 11.5 / 24})
    said = page.inner_text(".readout")
    assert said.startswith("Column 5, row 11: relevance ")
    assert "% of the score" in said
    assert float(said.split()[5].strip(",")) == pytest.approx(float(heat[11, 5]), rel=1e-2)
    page.locator("h1").hover()
    assert page.inner_text(".readout").startswith("Point at the picture")


def test_strength(page: Any) -> None:
    upload(page)
    page.locator(".opacity").fill("0")
    grey = pixels(page, SHOWN)
    assert (grey[..., 0] == grey[..., 1]).all()
    page.locator(".opacity").fill("100")
    assert (pixels(page, SHOWN) != grey).any()


def test_a_layer_over_the_photograph(page: Any, own: dt.Pretrained) -> None:
    upload(page)
    page.locator(".layers button", has_text="conv1").first.click()
    page.wait_for_selector(".channels:not([hidden])")
    node = page.get_attribute(".layers button[aria-pressed=true]", "data-node")
    at = explanation(own).at(node)[0]
    assert tuple(at.shape) == (8, 22, 22)
    places = (np.arange(24) + 0.5) * 22 // 24
    enlarged = at.sum(0).numpy()[places.astype(int)][:, places.astype(int)]
    painted = overlay(seen(own), enlarged, scale=robust_scale(at.sum(0)))
    assert np.abs(pixels(page, SHOWN) - painted).max() <= 1
    assert page.inner_text(".title") == "Evidence for “dog” inside the network, at conv1"
    assert "8 × 22 × 22 neurons (channels × rows × columns)" in page.inner_text(".facts")
    sums = at.sum((1, 2))
    strongest = [k for k in sums.argsort(descending=True).tolist() if sums[k] > 0]
    captions = [caption.inner_text() for caption in page.locator(".channels figcaption").all()]
    assert [int(re.findall(r"\d+", caption)[0]) for caption in captions] == strongest
    share = 100 * float(sums[strongest[0]] / explanation(own).score[0])
    assert captions[0].endswith(f"{share:.3g} %")
    shoot(page, "layer")
    page.select_option("#layer", "")
    page.get_by_text("Which pixels speak for “dog”").wait_for()
    assert page.locator(".channels").first.is_hidden()


def test_the_layers_begin_with_the_whole_score(page: Any, own: dt.Pretrained) -> None:
    """Down from the answer: what the biases of the topmost step took is among the bars."""
    upload(page)
    rows = page.locator(".layers li")
    ledger = explanation(own).ledger
    assert "linear_default" in rows.first.inner_text()
    assert rows.first.locator(".number").inner_text() == "100 %"
    taken = 100 * float(ledger.entries[0, 2, 0]) / float(ledger.score[0])
    assert taken > 1
    assert f"biases absorbed {taken:.3g} %" in rows.first.inner_text()
    page.get_by_text("also list layers that only pass relevance on").click()
    assert rows.count() == len(ledger.rows)
    # Its relevance is the score alone: there is no map to choose.
    assert rows.first.locator("button").count() == 0
    assert rows.nth(1).locator("button").count() == 1
    shoot(page, "layers")


def test_downloads(page: Any, own: dt.Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(page)
    files: dict[str, bytes] = {}
    for name in (
        "Picture as shown (PNG)",
        "Heatmap (PNG)",
        "Numbers (npz)",
        "What the network saw (PNG)",
        "Python",
    ):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=name, exact=True).click()
        files[waiting.value.suggested_filename] = Path(waiting.value.path()).read_bytes()
    stem = "photo_deep-taylor"
    assert list(files) == [f"{stem}_overlay.png", f"{stem}.png", f"{stem}.npz", f"{stem}_seen.png", f"{stem}.py"]
    kept = Image.open(io.BytesIO(files[f"{stem}_overlay.png"]))
    assert kept.size == (912, 912)  # 38 times what the network saw
    back = np.asarray(kept.convert("RGB").resize((24, 24), Image.Resampling.BOX)).astype(np.int64)
    assert np.abs(back - pixels(page, SHOWN)).mean() < 8
    enlarged = Image.open(io.BytesIO(files[f"{stem}.png"]))
    shown = np.asarray(enlarged.resize((24, 24), Image.Resampling.NEAREST)).astype(np.int64)
    page.check("[value=map]")
    assert np.abs(pixels(page, SHOWN) - shown).max() <= 1
    monkeypatch.chdir(tmp_path)
    Path("photo.png").write_bytes(photo())
    space: dict[str, Any] = {"own": own}
    exec(files[f"{stem}.py"].decode().replace("dt.load(…)", "own"), space)
    with np.load(io.BytesIO(files[f"{stem}.npz"])) as arrays:
        assert np.allclose(arrays["relevance"], space["e"].numpy()[0], rtol=1e-5)
    page.get_by_text("The same on the command line").click()
    assert "deeptaylor explain photo.png --model" in page.inner_text(".taking")


def test_the_guesses_of_another_picture_do_not_stay(page: Any) -> None:
    """Where a new picture cannot be explained; what is wrong with a setting leaves them, for they are still true."""
    upload(page)
    page.select_option("[name=method]", "deep-taylor")
    settled(page)
    page.get_by_text("Rules", exact=True).click()
    ask(page, "[name=above]", "nonsense")
    page.get_by_text("no rule is called 'nonsense'").wait_for()
    assert page.locator("#classes").is_visible()
    page.set_input_files("#file", {"name": "b.png", "mimeType": "image/png", "buffer": photo()})
    page.locator("#classes").wait_for(state="hidden")
    page.get_by_text("no rule is called 'nonsense'").wait_for()
    assert page.locator(SHOWN).first.is_hidden()
    ask(page, "[name=above]", "")
    settled(page)
    assert page.locator("#classes").is_visible()
