"""A network of one's own on the page in a real Chromium: dropped or opened, read after a question."""

from __future__ import annotations

from typing import Any

import pytest

from browser import SHOWN, in_view, settled, shoot, upload, violations
from small_onnx import SAID, small_onnx

pytestmark = pytest.mark.browser


def drop(page: Any, name: str, data: bytes) -> None:
    held = page.evaluate_handle(
        """([name, bytes]) => { const t = new DataTransfer();
        t.items.add(new File([new Uint8Array(bytes)], name)); return t; }""",
        [name, list(data)],
    )
    page.dispatch_event("#stage", "drop", {"dataTransfer": held})


def fill(page: Any) -> None:
    for name in ("size", "resize", "mean", "std"):
        page.fill(f"#network-dialog [name={name}]", SAID[name])
    for name in ("channels", "white", "interpolation", "names"):
        page.select_option(f"#network-dialog [name={name}]", SAID[name])


def test_a_network_that_is_dropped(page: Any) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    upload(page)
    drop(page, "mine.onnx", small_onnx())
    dialog = page.locator("#network-dialog")
    dialog.wait_for()
    assert "Explain the network mine.onnx?" in dialog.inner_text()
    assert "no code in it is run" in dialog.inner_text()
    # Nothing is filled in before it is asked for, and nothing was sent.
    for name in ("size", "resize", "mean", "std", "channels", "white", "interpolation", "names"):
        assert page.input_value(f"#network-dialog [name={name}]") == ""
    assert not any("/api/networks" in url for url in sent)
    assert violations(page) == []
    shoot(page, "network_dialog")
    page.get_by_role("button", name="Read and explain it").click()
    assert dialog.is_visible(), "without a size nothing is read"
    page.get_by_role("button", name="Fill in what is usual for ImageNet").click()
    assert page.input_value("#network-dialog [name=mean]") == "0.485,0.456,0.406"
    fill(page)
    page.get_by_role("button", name="Read and explain it").click()
    dialog.wait_for(state="hidden")
    page.locator(".made", has_text="mine.onnx").wait_for()
    settled(page)
    assert page.inner_text(".title").startswith("Which pixels speak for “class ")
    assert page.eval_on_selector("#model", "s => s.selectedOptions[0].text") == "mine.onnx"
    in_view(page)
    shoot(page, "network")


def test_it_can_be_left(page: Any) -> None:
    drop(page, "mine.onnx", small_onnx())
    page.locator("#network-dialog").wait_for()
    page.keyboard.press("Escape")
    page.locator("#network-dialog").wait_for(state="hidden")
    assert page.eval_on_selector("#model", "s => s.value") == "yours"


def test_a_size_that_does_not_fit_is_said(page: Any) -> None:
    upload(page)
    drop(page, "mine.onnx", small_onnx())
    fill(page)
    page.fill("#network-dialog [name=size]", "26")
    page.get_by_role("button", name="Read and explain it").click()
    page.locator("#refusal", has_text="takes samples of shape (3, 24, 24)").wait_for()
    assert page.locator(SHOWN).first.is_hidden()


def test_a_wrong_number_is_said_in_the_dialog(page: Any) -> None:
    drop(page, "mine.onnx", small_onnx())
    fill(page)
    page.fill("#network-dialog [name=mean]", "red")
    page.get_by_role("button", name="Read and explain it").click()
    page.locator("dialog [role=alert]", has_text="mean red: give a number").wait_for()


def test_only_onnx_is_opened(page: Any) -> None:
    with page.expect_file_chooser() as waiting:
        page.get_by_role("button", name="Open your own network (ONNX)").click()
    waiting.value.set_files({"name": "mine.pt", "mimeType": "application/octet-stream", "buffer": b"x"})
    page.locator("#refusal", has_text="mine.pt is not an ONNX file").wait_for()
    assert page.locator("#network-dialog").is_hidden()
