"""docs/own_models.md runs, and names every source."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deeptaylor as dt
from caffe_reference import Layer, caffemodel, prototxt
from deeptaylor.models.loading import hubs
from deeptaylor.models.networks import CATALOG
from deeptaylor.models.networks.catalog import CatalogEntry
from loading import NAMES, PREPARATION, TIMM, Named, caffe_layers, load_module, use_timm, use_torchvision
from pages import blocks


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.onnx.export, of torch itself
def test_every_snippet_of_the_page_runs(
    packages: Path, transformers: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of docs/own_models.md in order; what needs other packages with stand-ins for their weights."""
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    layers = caffe_layers()
    layers[2] = Layer(
        "fc", "InnerProduct", "conv", "", layers[2].param, [np.ones((3, 4 * 62 * 62), np.float32), np.ones(3)]
    )
    Path("mine.caffemodel").write_bytes(caffemodel(layers))
    Path("deploy.prototxt").write_text(prototxt((3, 64, 64), layers))
    Path("bvlc_googlenet.caffemodel").write_bytes(content := caffemodel(caffe_layers()))
    published = CatalogEntry(
        Named, PREPARATION, published=("bvlc_googlenet.caffemodel", hashlib.sha1(content).hexdigest())
    )
    lite0 = CatalogEntry(
        CATALOG["efficientnet-lite1"].build, CATALOG["efficientnet-lite0"].preparation, "efficientnet-lite1"
    )
    monkeypatch.setattr(load_module, "CATALOG", {"googlenet": published, "efficientnet-lite0": lite0})
    monkeypatch.syspath_prepend(str(folder))

    text = (Path(__file__).parents[3] / "docs" / "own_models.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    ran = 0
    for language, body, line in blocks(text):
        if language not in ("python", "py"):
            continue
        with monkeypatch.context() as context:
            if "timm:" in body:
                use_timm(context, TIMM)
            if "torchvision:" in body:
                use_torchvision(context)
            classes = tuple(f"name {i}" for i in range(1000)) if "lite0" in body else NAMES
            context.setattr(load_module, "imagenet_names", lambda classes=classes: classes)
            exec(compile("\n" * line + body, "own_models.md", "exec"), namespace)
        ran += 1
        if "dt.load(" in body and "except" not in body:
            assert isinstance(namespace["p"], dt.Pretrained)
    assert ran >= 13
    assert "SHA-1 matches" in capsys.readouterr().out


def test_the_page_has_every_source() -> None:
    text = (Path(__file__).parents[3] / "docs" / "own_models.md").read_text(encoding="utf-8")
    for name in CATALOG:
        assert name.removeprefix("efficientnet") in text
    for hub in hubs.HUBS:
        assert f'dt.load("{hub}:' in text
    for ending in (".onnx", ".caffemodel", ".pt2", ".pth", ".safetensors"):
        assert ending in text
