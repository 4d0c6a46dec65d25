"""The page that explains photographs as files alone, in a real Chromium whose network is off once it has loaded."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deeptaylor as dt
from browser import DESK, PHONE, WEB, in_view, pixels, run_node, served, shoot, violations
from deeptaylor import assets
from deeptaylor.app.server import live_page
from deeptaylor.models.loading.load import load_pretrained

pytestmark = pytest.mark.browser

MOST_BYTES, MOST_SECONDS, MOST_GAP = 40e6, 5, 1e-4
DROP = """([name, type, data]) => {
  const moved = new DataTransfer();
  moved.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name, { type }));
  for (const kind of ["dragenter", "dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: moved, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def network() -> dt.Pretrained:
    return load_pretrained(live_page.NETWORK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, as `make site` writes them."""
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    made: Path = tmp_path_factory.mktemp("live")
    run_node("build_pages.mjs", "live", str(made))
    assert live_page.main([str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def base(folder: Path) -> Iterator[str]:
    with served(folder) as address:
        yield address


@pytest.fixture
def page(chromium: Any, base: str) -> Iterator[Any]:
    """The page with its network loaded, and then with no way out."""
    yield from visit(chromium, base, viewport=DESK)


def visit(chromium: Any, base: str, **context: Any) -> Iterator[Any]:
    window = chromium.new_context(**context)
    page, errors, asked = window.new_page(), list[str](), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(60_000)
    page.goto(f"{base}/index.html")
    page.get_by_text("SqueezeNet v1.1 is ready.", exact=True).wait_for()
    page.wait_for_load_state("networkidle")
    assert all(url.startswith((base, "blob:", "data:")) for url in asked)
    window.set_offline(True)
    yield page
    window.close()
    assert errors == []


def drop(page: Any, name: str, data: bytes, kind: str = "image/png") -> None:
    page.evaluate(DROP, [name, kind, base64.b64encode(data).decode()])


def explained(page: Any, name: str) -> float:
    """Wait for the answer about a file; return the seconds that it says it took."""
    page.wait_for_selector("#stage:not([aria-busy]) #result:not([hidden])")
    page.locator("#file-name", has_text=name).wait_for()
    said = re.search(r"in this browser in (\S+) s", page.inner_text("#busy"))
    assert said
    return float(said[1])


def numbers(page: Any) -> np.ndarray[Any, Any]:
    """The map that the page saves."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Numbers (npy)").click()
    return np.load(waiting.value.path())


def gap(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def test_drop_heatmap_and_another_class_with_the_network_off(page: Any, network: dt.Pretrained) -> None:
    photo = assets.path("cat")
    began = time.perf_counter()
    drop(page, "my cat.png", photo.read_bytes())
    seconds = explained(page, "my cat.png")
    waited = time.perf_counter() - began
    print(f"first heatmap: {waited:.2f} s, of which the explainer ran {seconds} s")
    assert waited <= MOST_SECONDS
    x, seen = network.preprocess(photo)
    explainer, best = dt.Explainer(network.network, x, network.domain), network.top(x, 5)[0]
    assert (pixels(page, "canvas.input") == np.asarray(seen)).all()
    assert page.inner_text("#title") == f"{best[0].name}, {100 * best[0].probability:.1f} %"
    guesses = page.locator("#classes button")
    assert guesses.locator("span:first-child").all_inner_texts() == [guess.name for guess in best]
    for k in (0, 1, 4):
        guesses.nth(k).click()
        page.wait_for_selector(f"#stage:not([aria-busy]) >> text={best[k].name}, ")
        e = explainer.explain(x, best[k].index)
        found = gap(numbers(page), e.heatmap()[0].numpy())
        print(f"{best[k].name}: the map differs by {found:.1e} of its largest value")
        assert found <= MOST_GAP
        assert guesses.nth(k).get_attribute("aria-pressed") == "true"
        line = re.fullmatch(
            r"Score (\S+) = picture (\S+) \(of which (\S+) was absorbed by biases and redistributed\) "
            r"\+ biases (\S+) \+ dropped (\S+)\.",
            page.inner_text("#ledger"),
        )
        assert line
        ledger = (e.score, e.ledger.input, e.ledger.returned, e.ledger.bias, e.ledger.dropped)
        assert [float(number) for number in line.groups()] == pytest.approx(
            [float(part[0]) for part in ledger], rel=1e-3
        )
    shoot(page, "live_desk")
    in_view(page, "canvas.heatmap")
    in_view(page, "canvas.overlay")


def test_examples(page: Any, network: dt.Pretrained) -> None:
    for name, title in live_page.PHOTOGRAPHS.items():
        page.locator("#tiles").get_by_role("button", name=title).click()
        explained(page, title)
        photo = assets.path(name)
        x, seen = network.preprocess(photo)
        # Two decoders of JPEG may round differently.
        assert np.abs(pixels(page, "canvas.input") - np.asarray(seen)).max() <= (photo.suffix != ".png")
        found = gap(numbers(page), dt.Explainer(network.network, x, network.domain).explain(x).heatmap()[0].numpy())
        print(f"{title}: the map differs by {found:.1e} of its largest value")
        assert found <= MOST_GAP
        shoot(page, f"live_{name}")


def picture(kind: str) -> bytes:
    """A photograph as files can have it: transparent, turned by its EXIF data, grey, larger than a strip."""
    photo, out = Image.open(assets.path("cat")).convert("RGB"), io.BytesIO()
    if kind == "transparent":
        photo.putalpha(Image.linear_gradient("L").resize(photo.size).point(lambda v: 255 * (v > 99)))
    if kind == "grey":
        photo = photo.convert("L")
    if kind == "tall":
        photo = photo.resize((600, 2222))  # columns are resized first, in several strips
    if kind == "wide":
        photo = photo.resize((2222, 600))
    exif = photo.getexif()
    if kind == "turned":
        exif[0x0112] = 6
    photo.save(out, "PNG", exif=exif)
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:.*(transparent|grayscale)")
def test_files_are_read_as_the_library_reads_them(page: Any, network: dt.Pretrained) -> None:
    for kind in ("transparent", "turned", "grey", "tall", "wide"):
        drop(page, f"{kind}.png", picture(kind))
        explained(page, kind)
        _, seen = network.preprocess(Image.open(io.BytesIO(picture(kind))))
        assert (pixels(page, "canvas.input") == np.asarray(seen)).all(), kind


def test_what_is_no_picture_is_said_and_the_next_photograph_is_explained(page: Any) -> None:
    drop(page, "letter.txt", b"Dear sir", "text/plain")
    page.get_by_text("letter.txt is not a picture that this browser can read.").wait_for()
    assert page.locator("#result").is_hidden()
    drop(page, "cat.png", assets.path("cat").read_bytes())
    explained(page, "cat.png")
    assert page.locator("#problem").is_hidden()


def test_before_the_network_is_there(chromium: Any, base: str) -> None:
    page = chromium.new_page()
    held = list[Any]()
    page.route("**/explainer.onnx", lambda route: held.append(route))  # noqa: PLW0108 - playwright needs a function
    page.goto(f"{base}/index.html")
    drop(page, "early.png", assets.path("cat").read_bytes())
    page.get_by_text("Waiting for the network …").wait_for()
    held.pop().continue_()
    explained(page, "early.png")
    page.route("**/explainer.onnx", lambda route: route.fulfill(status=404))
    page.reload()
    page.get_by_text(
        "The network could not be loaded: the file explainer.onnx is missing on the server (404)"
    ).wait_for()
    drop(page, "late.png", assets.path("cat").read_bytes())
    page.wait_for_timeout(200)
    assert "explainer.onnx is missing" in page.inner_text("#problem")
    assert page.locator("#busy").inner_text() == ""
    page.close()


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_every_state_on_a_desk_and_on_a_phone(chromium: Any, base: str, viewport: Any, scheme: str) -> None:
    name = f"live_{viewport['width']}_{scheme}"
    for page in visit(chromium, base, viewport=viewport, color_scheme=scheme, has_touch=viewport == PHONE):
        assert violations(page) == []
        in_view(page, "#pick")
        shoot(page, f"{name}_before")
        page.set_input_files("#file", str(assets.path("coffee")))
        explained(page, "coffee.png")
        assert violations(page) == []
        in_view(page, "#title")
        in_view(page, "canvas.overlay")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, f"{name}_after")


def test_by_keyboard(page: Any) -> None:
    def tab_to(selector: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
                return
        raise AssertionError(f"{selector} cannot be reached with Tab")

    tab_to("#pick")
    tab_to("#tiles li:nth-child(2) button")
    page.keyboard.press("Enter")
    explained(page, "Coffee")
    assert page.inner_text("#title").startswith("espresso, ")
    tab_to("#classes li:nth-child(2) button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage:not([aria-busy]) >> text=consomme, ")
    assert page.evaluate("document.activeElement.matches('#classes li:nth-child(2) button')")
    tab_to("canvas.heatmap")
    page.keyboard.press("ArrowRight")
    assert re.match(r"Column 114, row 113: relevance \S+, \S+ % of the score", page.inner_text(".readout"))


def test_resizing_is_pillows(tmp_path: Path) -> None:
    plain = {"entryPoints": ["live/resize.ts"], "outfile": f"{tmp_path}/resize.mjs", "format": "esm"}
    build = f"import {{ buildSync }} from 'esbuild'; buildSync({json.dumps(plain)})"
    run_node("--input-type=module", "--eval", build, needs="esbuild")
    generator, cases = np.random.default_rng(0), []
    for height, width in (
        (300, 451),
        (451, 300),
        (1111, 90),
        (340, 299),
        (40, 31),
        (256, 700),
        (700, 256),
        (1, 1),
        (3, 977),
    ):
        for rows, columns in ((256, 256), (13, 301)):
            noise = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
            cases += [(noise, rows, columns), (np.where(noise > 127, np.uint8(255), np.uint8(0)), rows, columns)]
    data = [[before.tobytes().hex(), *before.shape[:2], *after] for before, *after in cases]
    (tmp_path / "cases.json").write_text(json.dumps(data))
    (tmp_path / "run.mjs").write_text(
        "import { readFileSync } from 'node:fs'; import { columnsFirst, resizeAxis, windows } from './resize.mjs';"
        "const cases = JSON.parse(readFileSync(new URL('cases.json', import.meta.url)));"
        "console.log(JSON.stringify(cases.map(([hex, height, width, rows, columns]) => {"
        "  const pixels = Uint8Array.from(Buffer.from(hex, 'hex'));"
        "  const [down, across] = [windows(height, rows), windows(width, columns)];"
        "  const out = columnsFirst([height, width], [rows, columns])"
        "    ? resizeAxis(resizeAxis(pixels, height, width, down, true), rows, width, across, false)"
        "    : resizeAxis(resizeAxis(pixels, height, width, across, false), height, columns, down, true);"
        "  return Buffer.from(out).toString('hex'); })));"
    )
    found = json.loads(run_node(str(tmp_path / "run.mjs"), needs="esbuild"))
    for ours, (before, rows, columns) in zip(found, cases, strict=True):
        wanted = Image.fromarray(before).resize((columns, rows), Image.Resampling.BILINEAR)
        assert bytes.fromhex(ours) == wanted.tobytes(), (before.shape, rows, columns)


def test_the_page_is_small(folder: Path) -> None:
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{size / 1e6:.1f} MB")
    assert size <= MOST_BYTES
    said = re.search(r"about (\d+) MB", (WEB / "live" / "live.ts").read_text("utf-8"))
    assert said
    files = [file for file in folder.iterdir() if file.suffix in (".onnx", ".wasm")]
    assert abs(sum(file.stat().st_size for file in files) / 1e6 - int(said[1])) < 1
