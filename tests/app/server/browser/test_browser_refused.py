"""What the page in a real Chromium refuses, and what other sites cannot do to it."""

from __future__ import annotations

import http.server
import threading
from typing import Any

import pytest

from browser import SHOWN, ask, photo, pixels, settled, shoot, upload

pytestmark = pytest.mark.browser


def test_an_upload_that_is_too_large(page: Any) -> None:
    page.set_input_files("#file", {"name": "huge.png", "mimeType": "image/png", "buffer": bytes(13 * 2**20)})
    page.get_by_text("huge.png is too large: 13.0 MiB; at most 12 MiB are accepted.").wait_for()
    shoot(page, "too_large")
    # And past the page's own check, by the server.
    status = page.evaluate(
        """async () => { const token = sessionStorage.getItem("deeptaylor-token");
        const answer = await fetch("/api/explain?model=yours", {method: "POST", body: new Uint8Array(13 * 2 ** 20),
          headers: {"X-Deeptaylor-Token": token}}); return [answer.status, (await answer.json()).error]; }"""
    )
    assert status == [413, "the picture is too large: at most 12 MiB are accepted."]


REFUSED = {
    "text.jpg": (b"just words", "text.jpg is not a picture that can be read, whatever its name says."),
    "cut.png": (photo()[:200], "the picture is damaged or cut short"),
    "empty.png": (b"", "empty.png is empty."),
    "huge.png": (bytes(13 * 2**20), "huge.png is too large: 13.0 MiB; at most 12 MiB are accepted."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture(page: Any, name: str) -> None:
    data, words = REFUSED[name]
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    said = page.locator("#picture-problem")
    said.filter(has_text=words).wait_for()
    assert page.get_by_text(words).count() == 1
    for none in (".pane", "#classes", "canvas.shown", "#toolbar", ".details"):
        assert not page.locator(none).first.is_visible(), none
    assert page.locator("#welcome").is_visible()
    assert page.inner_text("#file-name") == ""
    assert "answer" not in said.inner_text()
    shoot(page, f"no_picture_{name}")
    upload(page, "good.png")
    assert said.is_hidden()
    assert page.locator("#classes").is_visible()
    assert page.inner_text("#file-name") == "good.png"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_picture_leaves_the_answer_before(page: Any, name: str) -> None:
    upload(page)
    ask(page, "#against", "moon")
    page.locator(".title", has_text="“dog” against “moon”").wait_for()
    page.select_option("#compare", "bias")
    settled(page, 2)
    page.check("[value=map]")
    beside = ".pane:nth-child(2) canvas.shown"
    before = [pixels(page, SHOWN), pixels(page, beside)]
    data, words = REFUSED[name]
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    said = page.locator("#picture-problem")
    said.filter(has_text=words).wait_for()
    settled(page, 2)
    assert page.get_by_text(words).count() == 1
    assert "The previous answer, for photo.png, is still shown." in said.inner_text()
    assert page.inner_text("#file-name") == "photo.png"
    assert [page.locator(".title").nth(k).inner_text() for k in (0, 1)] == ["“dog” against “moon”"] * 2
    assert [(pixels(page, SHOWN) == before[0]).all(), (pixels(page, beside) == before[1]).all()] == [True, True]
    assert page.locator("#welcome").is_hidden()
    for shown in ("#classes", "#toolbar", ".details"):
        assert page.locator(shown).first.is_visible(), shown
    assert page.input_value("#against") == "moon"
    shoot(page, f"no_picture_after_{name}")
    # It is the picture that further questions are about.
    page.locator("#classes button", has_text="star").click()
    page.locator(".title", has_text="What is specific to “star”").first.wait_for()
    settled(page, 2)
    upload(page, "good.png")
    settled(page, 2)
    assert said.is_hidden()
    assert page.inner_text("#file-name") == "good.png"


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
