"""A map as a page: one file that needs nothing else, and answers pointer and keys."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from browser import launched, pixels, violations
from deeptaylor.viz.colors import relevance_to_rgb
from deeptaylor.viz.heatmap import fit_scale
from deeptaylor.viz.pages import render_viewer

NASTY = "</script><b>rose</b>"


class Weighted(nn.Module):
    """Sums its inputs with weights 1, 2, 3, … to one class, and with a tenth of them to another."""

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.relu(x).flatten(1)
        weights = torch.arange(1.0, flat.shape[1] + 1)
        return torch.stack([flat @ weights, 0.1 * (flat @ weights)], 1)


def explained(*shape: int) -> dt.Explanation:
    return dt.explain(Weighted(), torch.ones(1, *shape), 0, dt.NonNegative())


def photographed() -> dt.Explanation:
    preparation = dt.Preparation(size=24, resize=28, channels="RGB", white=1, mean=0, std=1, interpolation="bilinear")
    p = dt.load(Weighted(), preparation=preparation, class_names=[NASTY, "tulip"])
    return dt.explain(p, np.random.default_rng(0).integers(0, 255, (56, 84, 3)).astype(np.uint8), NASTY)


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    read["values"] = np.frombuffer(base64.b64decode(read["values"]), "<f4").reshape(read["shape"])
    return read


def test_the_page_holds_photograph_map_and_words_and_loads_nothing(tmp_path: Path) -> None:
    e = photographed()
    text = e.save(tmp_path / "map.html").read_text("utf-8")
    assert not re.search(r"https?:|//[a-z]", re.sub(r'base64,[^"]*|"values": "[^"]*"', "", text))
    assert "default-src 'none'" in text
    assert text.count("<script") == 2  # the name of the class begins none
    assert "&lt;b&gt;rose" in text
    assert "<b>rose" not in text
    assert text.count("data:image/jpeg;base64,") == 1
    found = data(text)
    assert np.allclose(found["values"][0], e.heatmap()[0], rtol=1e-6)
    assert found["score"] == pytest.approx(float(e.score))
    assert found["values"].sum() / found["score"] == pytest.approx(1)  # so the shares add up to the whole score
    assert found["window"] == pytest.approx([(84 - 48) / 2 / 84, 4 / 56, 48 / 84, 48 / 56], abs=0.02)
    assert "The pixels account for the whole score." in text
    assert "The network saw what lies inside the frame." in text


def test_other_shapes_other_scores_and_a_picture_of_ones_own(tmp_path: Path) -> None:
    assert data(explained(6).save(tmp_path / "a.html").read_text("utf-8"))["shape"] == [1, 1, 6]
    assert data(explained(1, 3, 4, 5).save(tmp_path / "b.html").read_text("utf-8"))["shape"] == [3, 4, 5]
    negative = dt.explain(Weighted(), torch.ones(1, 6), torch.tensor([[-1.0, 0.0]]), dt.NonNegative())
    assert data(negative.save(tmp_path / "c.html").read_text("utf-8"))["score"] == 0
    sensitive = dt.sensitivity(Weighted(), torch.ones(1, 6), 0)
    assert data(sensitive.save(tmp_path / "d.html").read_text("utf-8"))["score"] == 0  # its values are no shares
    own = Image.new("L", (40, 20), 128)
    assert '<img alt="picture"' in explained(1, 4, 5).save(tmp_path / "e.html", photo=own).read_text("utf-8")
    named = render_viewer(explained(2).drawing(0, 0), 1.0, [NASTY, "b"])
    assert data(named)["names"] == [NASTY, "b"]
    assert named.count("</script>") == 2
    with pytest.raises(dt.InputError, match="one, two or three dimensions"):
        render_viewer(explained(1, 2, 2, 2, 2).drawing(0, 0, 0, ()), 1.0)


@pytest.mark.browser
def test_it_answers_pointer_and_keys(tmp_path: Path) -> None:
    e = photographed()
    path = e.save(tmp_path / "map.html")
    share = 100 * e.heatmap()[0] / float(e.score)
    with launched() as chromium:
        for scheme in ("light", "dark"):
            window = chromium.new_page(color_scheme=scheme)
            errors, asked = list[str](), list[str]()
            window.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            window.on("request", lambda request, asked=asked: asked.append(request.url[:5]))
            window.goto(path.as_uri())
            window.keyboard.press("Tab")
            window.keyboard.press("ArrowRight")  # the first press begins in the middle
            for key in ("ArrowRight", "Shift+ArrowDown"):
                window.keyboard.press(key)
            said = window.inner_text("#said")
            assert said.startswith("Row 22, column 13: ")
            assert float(re.findall(r": ([\d.e-]+)\s% of the score", said)[0]) == pytest.approx(
                float(share[22, 13]), rel=6e-3
            )
            box = window.locator("#map").bounding_box()
            window.mouse.move(box["x"] + box["width"] * 0.5 / 24, box["y"] + box["height"] * 1.5 / 24)
            assert window.inner_text("#said").startswith("Row 1, column 0: ")
            window.keyboard.press("Tab")
            for _ in range(85):
                window.keyboard.press("ArrowLeft")  # the map fades, the photograph stays
            alpha = window.eval_on_selector(
                "#map",
                "c => Math.max(...c.getContext('2d').getImageData(0, 0, 24, 24).data.filter((_, k) => k % 4 == 3))",
            )
            assert alpha == 0
            assert errors == []
            assert set(asked) <= {"file:", "data:"}
            window.close()


@pytest.mark.browser
def test_axe_finds_nothing_wrong(tmp_path: Path) -> None:
    with launched() as chromium:
        for e in (photographed(), explained(1, 3, 4, 5)):
            window = chromium.new_page()
            window.goto(e.save(tmp_path / "map.html").as_uri())
            assert violations(window) == []


@pytest.mark.browser
def test_its_colours_are_those_of_every_other_picture(tmp_path: Path) -> None:
    e = dt.explain(Weighted(), torch.ones(1, 12), torch.tensor([[1.0, 0.0]]), dt.Real(), rules={"*": dt.rules.Z()})
    d = e.drawing(0, 0)
    path = tmp_path / "colours.html"
    signed = d.heat - d.heat.mean()
    path.write_text(render_viewer(replace(d, heat=signed, scale=fit_scale(signed)), 0.0), "utf-8")
    with launched() as chromium:
        window = chromium.new_page()
        window.goto(path.as_uri())
        found = pixels(window, "#map")
    assert np.abs(found - relevance_to_rgb(fit_scale(signed)(signed[None])).astype(int)).max() <= 1
