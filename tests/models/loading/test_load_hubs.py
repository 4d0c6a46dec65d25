"""Networks out of other libraries: timm, torchvision, transformers. Nothing here reaches the network."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.models.loading.hubs import call_library
from deeptaylor.support.optional import how_to_install
from loading import MEAN, NAMES, PREPARATION, SAID, STD, TIMM, explained, refused, small, use_timm, use_torchvision


def test_timm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_timm(monkeypatch, TIMM)
    model = dt.load("timm:resnet18.a1_in1k")
    assert model.preparation == dt.Preparation(
        size=(16, 16), resize=20, channels="RGB", white=1, mean=MEAN, std=STD, interpolation="bilinear"
    )
    assert model.class_names is not None
    assert (len(model.class_names), model.class_names[3]) == (1000, "class 3")
    refused("timm:none could not be loaded: Unknown model (none)", "timm:none")
    refused(
        "timm:resnet18: the weights 'v2' are not a file, and timm finds weights by the network's name alone.",
        "timm:resnet18",
        weights="v2",
    )
    torch.save(small().state_dict(), "a.pth")
    explained(dt.load("timm:resnet18", weights="a.pth", **SAID))
    explained(dt.load("a.pth", architecture="timm:resnet18", **SAID))


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_pct": 1.0},
        {"crop_mode": "border"},
        {"crop_mode": "squash"},
        {"mean": (0.6, 0.5, 0.4)},
        {"std": (0.25, 0.3, 0.4)},
        {"input_size": (3, 20, 20)},
        {"interpolation": "random"},
    ],
)
def test_what_a_library_says_is_compared_with_what_it_does(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_timm(monkeypatch, TIMM | wrong)
    refused("timm:resnet18 does not say how photographs are prepared.", "timm:resnet18")
    assert dt.load("timm:resnet18", preparation=PREPARATION).preparation is PREPARATION


@pytest.mark.parametrize(("tag", "classes"), [("mine", 1000), ("in12k", 11821), ("", 1000), ("in1k", 5)])
def test_timm_class_names_only_of_ilsvrc(tag: str, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_timm(monkeypatch, TIMM, tag=tag, classes=classes)
    refused("timm:resnet18 does not say what its classes are called.", "timm:resnet18")


def test_torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_torchvision(monkeypatch)
    for which, resize in ((None, 20), ("IMAGENET1K_V1", 18), ("IMAGENET1K_V2", 20)):
        model = dt.load("torchvision:resnet50", weights=which)
        assert model.preparation is not None
        assert (model.preparation.size, model.preparation.resize) == (16, resize)
        assert model.class_names == NAMES
        assert model.notes == (f"weights: Weights.{which or 'IMAGENET1K_V2'}",)
        explained(model)
    refused(
        "torchvision:resnet50 has no weights called V3; there are: IMAGENET1K_V1, IMAGENET1K_V2",
        "torchvision:resnet50",
        weights="V3",
    )
    refused("torchvision:none could not be loaded: Unknown model none", "torchvision:none")
    torch.save(small().state_dict(), "a.pth")
    refused("torchvision:resnet50 does not say how photographs are prepared", "torchvision:resnet50", weights="a.pth")
    explained(dt.load("torchvision:resnet50", weights="a.pth", **SAID))
    refused("there is no file none.pth.", "torchvision:resnet50", weights="none.pth", **SAID)


@pytest.mark.parametrize(
    ("package", "source"), [("timm", "timm:x"), ("torchvision", "torchvision:x"), ("transformers", "hf:x")]
)
def test_libraries_that_are_not_there(package: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    install = how_to_install("text") if package == "transformers" else f"pip install {package}"
    missing = f"the package {package} is not installed. Install it with: {install}"
    refused(f"names a network of the package {package}; {missing}", source)


def test_a_library_that_does_not_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    refused("the package timm is installed but does not import: operator torchvision::nms does not exist", "timm:x")
    Path("timm.py").write_text("import a_module_that_is_missing")
    importlib.invalidate_caches()
    refused("the package timm is installed but does not import: No module named 'a_module_that_is_missing'", "timm:x")


def resnet_folder(transformers: Any, processor: dict[str, Any] | None, labels: tuple[str, ...] | None = NAMES) -> None:
    names = {"id2label": dict(enumerate(labels))} if labels else {"num_labels": 3}
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", **names
    )
    transformers.ResNetForImageClassification(config).save_pretrained("net")
    if processor is not None:
        Path("net/preprocessor_config.json").write_text(json.dumps(processor))


STANDARD = {"image_mean": MEAN, "image_std": STD, "resample": 2}


@pytest.mark.parametrize(
    ("processor", "size", "resize"),
    [
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 40}}, (32, 40), (32, 40)),
        (
            {
                "image_processor_type": "MobileNetV2ImageProcessor",
                "size": {"shortest_edge": 40},
                "crop_size": {"height": 32, "width": 32},
            },
            (32, 32),
            40,
        ),
        (
            {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 56}, "crop_pct": 0.875},
            (56, 56),
            64,
        ),
    ],
)
def test_transformers(transformers: Any, folder: Path, processor: dict[str, Any], size: Any, resize: Any) -> None:
    resnet_folder(transformers, STANDARD | processor)
    model = dt.load("hf:net")
    assert model.preparation is not None
    assert (model.preparation.size, model.preparation.resize) == (size, resize)
    assert (model.preparation.mean, model.preparation.std) == (MEAN, STD)
    assert (model.preparation.white, model.preparation.interpolation) == (pytest.approx(1), "bilinear")
    assert model.class_names == NAMES
    x, _ = model.preprocess(Image.new("RGB", (100, 70), "teal"))
    assert (
        dt.Explainer(model.network, x, domain=model.domain, bias="neuron")
        .explain(x, target=dt.margin())
        .check()
        .accounted
    )


@pytest.mark.parametrize(
    "processor",
    [
        None,
        # These do something of their own that their settings do not say.
        {"image_processor_type": "LevitImageProcessor", "size": {"shortest_edge": 224}},
        {"image_processor_type": "EfficientNetImageProcessor", "include_top": True, **STANDARD},
        {"image_processor_type": "NoSuchImageProcessor"},
    ],
)
def test_transformers_with_a_preparation_of_its_own_kind(transformers: Any, folder: Path, processor: Any) -> None:
    resnet_folder(transformers, processor)
    refused("hf:net does not say how photographs are prepared.", "hf:net")
    assert dt.load("hf:net", preparation=PREPARATION).class_names == NAMES


def test_transformers_without_class_names_or_without_a_model(transformers: Any, folder: Path) -> None:
    resnet_folder(transformers, STANDARD | {"image_processor_type": "ViTImageProcessor"}, labels=None)
    refused("hf:net does not say what its classes are called.", "hf:net")
    Path("empty").mkdir()
    refused("hf:empty could not be loaded: ", "hf:empty")
    torch.save(small().state_dict(), "a.pth")
    refused("hf:net: transformers needs its own folder with config.json", "a.pth", architecture="hf:net", **SAID)


def test_weights_that_are_missing_are_listed(transformers: Any, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    resnet_folder(
        transformers, STANDARD | {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    )
    state = load_file("net/model.safetensors")
    counts = {k for k in state if k.endswith("num_batches_tracked")}
    assert counts
    save_file({k: v for k, v in state.items() if k not in counts}, "net/model.safetensors", {"format": "pt"})
    dt.load("hf:net")
    inner = next(k for k in state if k.endswith("convolution.weight"))
    for names in ({"classifier.1.weight"}, {inner}):
        save_file({k: v for k, v in state.items() if k not in names}, "net/model.safetensors", {"format": "pt"})
        with pytest.raises(dt.LoadError, match="the file lacks") as raised:
            dt.load("hf:net")
        assert all(name in str(raised.value) for name in names)


def test_the_code_of_a_repository_is_not_run_whatever_is_answered(
    transformers: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnet_folder(transformers, None)
    config = json.loads(Path("net/config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    Path("net/config.json").write_text(json.dumps(config))
    Path("net/own.py").write_text(
        "import pathlib\n\npathlib.Path('ran').touch()\nfrom transformers import ResNetConfig as Config\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    refused("hf:net could not be loaded: ", "hf:net", **SAID)
    assert not Path("ran").exists()


def test_a_package_that_stumbles_over_another_says_over_which() -> None:
    def broken() -> None:
        raise ModuleNotFoundError("Could not import module 'Bert'.") from RuntimeError("torchvision::nms is missing")

    with pytest.raises(dt.LoadError, match="The cause: torchvision::nms is missing"):
        call_library("hf:net", broken)
