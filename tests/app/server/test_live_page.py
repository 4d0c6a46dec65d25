"""The files of the page that explains photographs inside a browser; the page itself is tried in Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.app.server import live_page
from deeptaylor.models.onnx.exporter import ExportError
from page_client import Several

SAID = {
    "size": 8, "resize": (8, 9), "channels": "BGR", "white": 1, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.25, 1.0),
    "interpolation": "bilinear",
}  # fmt: skip
NAMES = ("one", "two", "three", "four")


def load() -> dt.Pretrained:
    preparation = dt.Preparation(**SAID)  # type: ignore[arg-type]
    loaded = dt.load(Several().eval(), preparation=preparation, class_names=NAMES)
    assert isinstance(loaded, dt.Pretrained)
    return loaded


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 10, 3), dtype=np.uint8)
    files = [tmp_path / f"{k}.png" for k in range(2)]
    for file, photo in zip(files, pixels, strict=True):
        Image.fromarray(photo).save(file)
    return files


def test_the_page_knows_how_photographs_are_preprocessed(photos: list[Path]) -> None:
    network = load()
    about = live_page.describe(network)
    assert about["classes"] == list(NAMES)
    assert (about["resize"], about["size"], about["channels"]) == ([8, 9], [8, 8], "BGR")
    levels = torch.tensor(about["levels"])
    assert levels.shape == (3, 256)
    x, seen = network.preprocess(photos[0])
    channels = torch.from_numpy(np.asarray(seen)[..., ::-1].copy()).long().permute(2, 0, 1)
    assert torch.equal(torch.stack([levels[k][channels[k]] for k in range(3)]), x[0])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"interpolation": "bicubic"}, "interpolation='bicubic'"),
        ({"resize": 8}, "resize=8"),
        ({"channels": "L", "mean": 0.5, "std": 0.5}, "channels='L'"),
    ],
)
def test_what_the_page_cannot_preprocess_is_said(said: dict[str, object], words: str) -> None:
    with pytest.raises(dt.InputError, match=words):
        live_page.describe(dt.Pretrained(Several(), NAMES, dt.Preparation(**SAID | said)))  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match="whose classes have names"):
        live_page.describe(dt.Pretrained(Several(), None, load().preparation))


def test_the_file_answers_as_the_library(photos: list[Path]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = load()
    session = runtime.InferenceSession(live_page.export(network, photos))
    x, _ = network.preprocess(photos[1])
    logits = network.network(x).detach()
    for target in (-1, 0, 1, 2, 3):
        found = session.run(live_page.OUTPUTS, {"x": x.numpy(), "target": np.array([target])})
        e = dt.Explainer(network.network, x, network.domain).explain(x, None if target < 0 else target)
        ledger = [e.ledger.input, e.ledger.bias, e.ledger.dropped, e.ledger.returned]
        assert ledger[3] is not None
        wanted = [logits, e.score, e.heatmap(), torch.cat([part for part in ledger if part is not None])]
        for ours, theirs in zip(found, wanted, strict=True):
            assert np.abs(ours - theirs.numpy()).max() <= 1e-5 * max(1, float(e.score.abs().max()))


class Session:
    """Stands in for onnxruntime: the library's own answers, with heat that is a little stronger."""

    def __init__(self, explainer: dt.Explainer, network: dt.Pretrained, factor: float) -> None:
        self.explainer, self.network, self.factor = explainer, network, factor

    def run(self, _: object, feed: dict[str, Any]) -> list[Any]:
        x = torch.from_numpy(feed["x"])
        logits = self.network.network(x).detach()
        target = feed["target"][0]
        e = self.explainer.explain(x, int(logits.argmax()) if target < 0 else target)
        heat = e.relevance.sum(1) * self.factor
        return [part.numpy() for part in (logits, e.score, heat, live_page.read_ledger(e.ledger))]


def test_a_file_that_differs_is_refused(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    network = load()
    inputs = [network.preprocess(photo)[0] for photo in photos]
    explainer = dt.Explainer(network.network, inputs[0], network.domain)
    monkeypatch.setattr(live_page, "open_session", lambda factor: Session(explainer, network, factor))
    live_page.check_export(1.0, explainer, inputs)  # type: ignore[arg-type]
    for factor, words in ((1.001, "heat 1.0e-03"), (float("nan"), "heat nan")):
        with pytest.raises(ExportError, match=f"differs from the library .*{words}"):
            live_page.check_export(factor, explainer, inputs)  # type: ignore[arg-type]


def test_licences_are_those_of_the_packages() -> None:
    text = live_page.read_licences(("numpy", "pytest"))
    assert text.startswith("numpy ")
    assert "NumPy Developers" in text
    assert "Holger Krekel" in text
    with pytest.raises(dt.DeepTaylorError, match="no-such-package, which is not installed: run `make site`, it"):
        live_page.read_licences(("no-such-package",))


def test_the_files_of_the_page(
    tmp_path: Path, photos: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_page, "load_pretrained", lambda _: load())
    monkeypatch.setattr(live_page, "PHOTOGRAPHS", {"first": "First"})
    monkeypatch.setattr(assets, "path", lambda _: photos[0])
    monkeypatch.setattr(live_page, "read_licences", lambda: "a licence")
    monkeypatch.setattr(live_page, "export", lambda _, paths: b"".join(path.read_bytes() for path in paths))
    folder = tmp_path / "page"
    assert live_page.main([str(folder)]) == 0
    written = {"model.json", "colors.css", "licences.txt", "explainer.onnx", "0.png"}
    assert {file.name for file in folder.iterdir()} == written
    assert json.loads((folder / "model.json").read_text("utf-8"))["examples"] == [{"title": "First", "file": "0.png"}]

    def refuse() -> str:
        raise dt.InputError("there is none")

    monkeypatch.setattr(live_page, "read_licences", refuse)
    assert live_page.main([str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err == "error: there is none\n"
    assert not (tmp_path / "other").exists()
