"""The page in a real Chromium: by pointer, by keyboard, on a phone, in the dark; and what other sites cannot do to it.

Skipped where there is no Chromium (`make browser` installs Debian's where apt is there). Set DEEPTAYLOR_SCREENSHOTS to
a folder to keep a picture of every state.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
from deeptaylor.app.server.main import serve
from deeptaylor.heatmap import colours

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}
DONE = ".panel:not([aria-busy]) .result:not([hidden])"


class Small(nn.Module):
    """Pictures (batch, 3, 24, 24) to six classes, with biases that take more than half of the score."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 6)
        nn.init.constant_(self.conv1.bias, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return torch.abs(self.fc.weight.sum()) + self.fc(h.mean((2, 3)))


def photo() -> bytes:
    """A picture with a bright disc, left of the middle."""
    y, x = np.mgrid[:48, :64]
    disc = ((x - 24) ** 2 + (y - 24) ** 2 < 150).astype(np.float64)
    picture = np.stack([40 + 200 * disc, 60 + 100 * disc, 90 + 2.0 * x], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def own() -> dt.Pretrained:
    preparation = dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear"
    )
    names = ("cat", "dog", "<b>bold</b>", "sun", "moon", "star")
    return dt.load(Small().eval(), preparation=preparation, class_names=names)


@pytest.fixture(scope="module")
def address(own: dt.Pretrained) -> str:
    """A server on a free port of 127.0.0.1, in a thread that ends with the tests."""
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve, kwargs={"model": own, "ready": told.put}, daemon=True).start()
    return told.get(timeout=30)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(chromium: Any, address: str, **context: Any) -> Iterator[Any]:
    """The page in a window of its own; an error in its console fails the test."""
    window = chromium.new_context(**{"viewport": DESK, **context})
    page, errors = window.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.set_default_timeout(20_000)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    page.get_by_text("Ready.", exact=True).wait_for()
    yield page
    window.close()
    assert [error for error in errors if "status of 4" not in error] == []


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    with opened(chromium, address) as made:
        yield made


def upload(page: Any, name: str = "photo.png") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": photo()})
    page.wait_for_selector(DONE)


def settled(page: Any, panels: int = 1) -> None:
    """Wait until nothing is being explained and so many panels show a result."""
    page.wait_for_selector(f"#panels:not(:has([aria-busy])):has(> :nth-child({panels}) .result:not([hidden]))")


def shoot(page: Any, name: str) -> None:
    if folder := os.environ.get("DEEPTAYLOR_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def pixels(page: Any, selector: str) -> np.ndarray[Any, Any]:
    flat, width = page.eval_on_selector(
        selector, "c => [[...c.getContext('2d').getImageData(0, 0, c.width, c.height).data], c.width]"
    )
    return np.array(flat, dtype=np.int64).reshape(-1, width, 4)[..., :3]


def explanation(own: dt.Pretrained, target: int | None = None, bias: str = "neuron") -> dt.Explanation:
    x, _ = own.preprocess(Image.open(io.BytesIO(photo())))
    return dt.Explainer(own.network, x, domain=own.domain, bias=bias).explain(x, target)


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


def score_of(page: Any) -> float:
    said = re.search(r" is (\S+)[;:]", page.inner_text(".score"))
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
    seen = pixels(page, "canvas.input")
    assert seen.shape == (28, 56, 3)
    assert seen[5:20, 13:15].min() > 150
    assert seen[:, 28:].max() == 0
    assert page.locator("#answer").is_hidden()
    shoot(page, "drawn")
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#result").is_hidden()
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
    written = pixels(page, "canvas.input")
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
    seen = pixels(page, "canvas.input")
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


def test_an_upload_that_is_too_large(page: Any) -> None:
    page.set_input_files("#file", {"name": "huge.png", "mimeType": "image/png", "buffer": bytes(13 * 2**20)})
    page.get_by_text("huge.png is too large: 13.0 MiB; at most 12 MiB are taken.").wait_for()
    shoot(page, "too_large")
    # And past the page's own check, by the server.
    status = page.evaluate(
        """async () => { const token = sessionStorage.getItem("deeptaylor-token");
        const answer = await fetch("/api/explain?model=yours", {method: "POST", body: new Uint8Array(13 * 2 ** 20),
          headers: {"X-Deeptaylor-Token": token}}); return [answer.status, (await answer.json()).error]; }"""
    )
    assert status == [413, "the picture is too large: at most 12 MiB are taken."]


REFUSED = {
    "text.jpg": (b"just words", "text.jpg is not a picture that can be read, whatever its name says."),
    "cut.png": (photo()[:200], "cut.png is damaged or cut short"),
    "empty.png": (b"", "empty.png is empty."),
    "huge.png": (bytes(13 * 2**20), "huge.png is too large: 13.0 MiB; at most 12 MiB are taken."),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("before", ["first", "after a photograph"])
def test_what_is_no_picture(page: Any, before: str, name: str) -> None:
    if before != "first":
        upload(page)
        page.check("#compare")
        settled(page, 2)
    data, words = REFUSED[name]
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    said = page.locator("#drop [role=alert]")
    said.filter(has_text=words).wait_for()
    assert page.get_by_text(words).count() == 1
    # Nothing of another picture stands below it.
    for gone in ("#result", "#answer", "canvas.heatmap", "#preview"):
        assert not page.locator(gone).first.is_visible(), gone
    assert page.inner_text("#file-name") == ""
    shoot(page, f"no_picture_{name}")
    upload(page, "good.png")
    settled(page, 2 if before != "first" else 1)
    assert said.is_hidden()
    assert page.locator("#answer").is_visible()
    assert page.inner_text("#file-name") == "good.png"


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


def test_without_the_token(chromium: Any, address: str) -> None:
    page = chromium.new_page()
    page.goto(address.partition("#")[0])
    page.get_by_text("the token is missing or old").wait_for()
    shoot(page, "no_token")
    page.close()


def test_another_site_cannot_use_the_page(chromium: Any, address: str) -> None:
    """A page of another origin knows the address and even the token; it still gets nothing."""

    class Evil(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, token = address.split("/#token=")
    page = chromium.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/")
    tried = page.evaluate(
        """async ([base, token]) => { const results = [];
        for (const init of [{}, {headers: {"X-Deeptaylor-Token": token}}, {method: "POST", body: "x"},
          {mode: "no-cors"}, {mode: "no-cors", method: "POST", body: "x"}]) {
          try { results.push((await fetch(base + "/api/models", init)).status); } catch (e) { results.push(e.name); } }
        return results; }""",
        [base, token],
    )
    assert tried == ["TypeError"] * 5
    framed = page.evaluate(
        """base => new Promise(done => { const frame = document.createElement("iframe"); frame.src = base + "/";
        frame.onload = () => { try { done(String(frame.contentDocument?.title)); } catch (e) { done(e.name); } };
        document.body.append(frame); })""",
        base,
    )
    assert framed in ("null", "undefined", "SecurityError", "")
    page.close()
    server.shutdown()
    server.server_close()


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_digits_page_as_files_alone(chromium: Any, tmp_path: Path) -> None:
    """Network and explanation inside the browser; nothing but the folder's files is asked for."""
    web, node = Path(__file__).parents[3] / "web", shutil.which("node")
    if node is None or not (web / "node_modules" / "onnxruntime-web").is_dir():
        pytest.skip("this page is built with node: `npm ci` in web/ installs what it needs")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    from deeptaylor.app.server import digits

    subprocess.run([node, "build_digits.mjs", str(tmp_path)], cwd=web, check=True, capture_output=True)
    assert digits.main([str(tmp_path)]) == 0
    handler = functools.partial(Files, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
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
        e = dt.Explainer(network.network, x, domain=network.domain).explain(x)
        said = re.search(r"score is (\S+);", page.inner_text("#score"))
        assert said
        assert float(said[1]) == pytest.approx(float(e.score[0]), rel=1e-3)
        assert np.abs(pixels(page, "canvas.heatmap") - colours(e.heatmap()[0])).max() <= 1
        shoot(page, f"files_{name}")
    assert errors == []
    assert all(url.startswith((base, "blob:", "data:")) for url in asked)
    page.close()
    server.shutdown()
    server.server_close()
