"""`deeptaylor check`, `compare`, `export` and `doctor`."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import deeptaylor as dt
from cli_model import MODEL, SAID, flower_net, said, write
from deeptaylor import methods
from deeptaylor.app.cli import doctor
from deeptaylor.models.onnx import exporter
from deeptaylor.support import optional


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_counts_operations_and_rules(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, "check", *SAID, "--bias", "both")
    assert err == ""
    assert out.splitlines()[0].startswith("flowers.pth: 1,827 parameters, inputs (3, 24, 24) in [")
    assert "can be explained, bias=neuron: " in out
    assert "can be explained, bias=spread: " in out
    assert ["max_pool", "1", "proportional", "x", "≥", "0"] in [line.split() for line in out.splitlines()]


def test_check_with_the_whole_plan_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "check", *SAID, "--plan")
    rows = [line.split() for line in out.splitlines()]
    assert ["node", "module", "operation", "domain", "rule", "why"] in rows
    found = json.loads(said(capsys, 0, "check", *SAID, "--json")[0])
    assert found["explainable"] is True
    assert [s["rule"] for s in found["plans"]["auto"]["steps"]][-1] == "zB"


SUMS = ["sums.pth", "--architecture", "cli_model:sums_net", "--class-names", "none", "--domain", "real"]


def test_check_of_what_cannot_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 1, "check", *SUMS, "--shape", "4")
    assert "cannot be explained: 1 operation(s) on the path of the relevance cannot be explained" in out
    assert "cumsum: no rule; at" in out or "no rule for cumsum" in out
    assert "cli_model.py" in out
    assert err == ""
    assert json.loads(said(capsys, 1, "check", *SUMS, "--shape", "4", "--json")[0])["explainable"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (SUMS, "add it, as in --shape 3,32,32"),
        ([*SUMS, "--shape", "a"], "--shape a: give whole numbers"),
        ([*SUMS, "--shape", "0"], "each number must be at least 1"),
        ([*SAID, "--shape", "4"], "networks that do not take photographs"),
        ([*SUMS, "--domain", "round"], "--domain round: give real, nonnegative or box:LOW,HIGH"),
    ],
)
def test_check_with_wrong_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in said(capsys, 2, "check", *words)[1]


def test_an_architecture_in_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_nets.py").write_text("from my_layers import layers\n\n\ndef net():\n    return layers()\n")
    Path("my_layers.py").write_text("from torch import nn\n\n\ndef layers():\n    return nn.Linear(4, 3)\n")
    Path("json.py").write_text("raise RuntimeError('not the one that is meant')")
    torch.save(torch.nn.Linear(4, 3).state_dict(), "mine.pth")
    before = list(sys.path)
    words = ["mine.pth", "--class-names", "none", "--domain", "real", "--shape", "4", "--architecture"]
    assert "can be explained" in said(capsys, 0, "check", *words, "my_nets:net")[0]
    assert sys.path == before
    assert "No module named 'my_pets'" in said(capsys, 2, "check", *words, "my_pets:net")[1]
    assert (
        f"the module that was found is {Path.cwd() / 'my_nets.py'}" in said(capsys, 2, "check", *words, "my_nets:x")[1]
    )
    assert "json/__init__.py" in said(capsys, 2, "check", *words, "json:net")[1]  # installed modules go first


# --- compare ----------------------------------------------------------------------------------------------------------


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    every = ",".join(methods.METHODS)
    out, err = said(capsys, 0, "compare", "photo.png", *MODEL, "--methods", every, "--target", "tulip", "--out", "o")
    assert err == ""
    assert "explained: tulip (2), score " in out
    assert all(method.title in out for method in methods.METHODS.values())
    assert "The method that fits: Method: deep Taylor, because the network consists of " in out
    head = next(line for line in out.splitlines() if line.split()[:1] == ["method"])
    columns = ("of the score", "lowest relevance", "same ranking")
    assert all(name in head and f"{name.capitalize()}: " in out for name in columns)  # explained below
    assert re.search(r"Deep Taylor, biases spread +100 % +[\d.e-]+ % ", out)
    assert {p.name for p in Path("o").glob("[!.]*")} == {f"photo_compare.{kind}" for kind in ("png", "npz", "json")}
    found = json.loads(Path("o/photo_compare.json").read_text())
    rows = {row["key"]: row for row in found["methods"]}
    assert rows["deep-taylor"]["likeness"] == 1.0
    assert rows["deep-taylor-spread"]["input_share"] == pytest.approx(1, abs=1e-5)
    scores = [row["score"] for key, row in rows.items() if key != "secant"]  # which may explain log-odds
    assert scores == pytest.approx([scores[0]] * len(scores), rel=1e-6)  # float32, by ways of its own in each method
    with np.load("o/photo_compare.npz") as arrays:
        assert set(arrays) == set(methods.METHODS)
        assert all(arrays[key].shape == (3, 24, 24) for key in arrays)
    with Image.open("o/photo_compare.png") as sheet:
        assert sheet.size == (4 * (24 + 8) + 8, 4 * (24 + 8 + 18) + 8)


def test_compare_as_json_and_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--methods", "deep-taylor,sensitivity", "--out", "o"]
    assert [r["key"] for r in json.loads(said(capsys, 0, "compare", "photo.png", *MODEL, *few, "--json")[0])["methods"]]
    assert said(capsys, 0, "compare", "photo.png", *MODEL, *few, "--quiet") == ("", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "guess"], "no method is called 'guess'. There are: auto, deep-taylor, paper, secant, "),
        (["--methods", ","], "--methods names no method"),
        (["--target", "all-top-5"], "compare explains one class"),
    ],
)
def test_compare_with_wrong_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in said(capsys, 2, "compare", "photo.png", *MODEL, *words)[1]


def test_likeness_is_a_rank_correlation() -> None:
    scipy = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    a, b = random.integers(0, 5, (6, 6)).astype(float), random.normal(size=(6, 6))
    assert methods.likeness(a, b) == pytest.approx(scipy.spearmanr(a.ravel(), b.ravel()).statistic)
    assert methods.likeness(a, np.zeros((6, 6))) is None


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_export(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    out, err = said(capsys, 0, "export", *SAID[:1], "e.onnx", *SAID[1:], "--photo", "photo.png", "--target", "rose")
    assert err == ""
    assert "in   x (batch, 3, 24, 24)" in out
    assert "out  score (batch)" in out
    assert "checked with onnxruntime on 6 inputs" in out
    x, network = loaded()
    e = dt.Explainer(network, x, preparation().domain).explain(x, 1)
    score, relevance = runtime.InferenceSession("e.onnx").run(["score", "relevance"], {"x": x.numpy()})
    assert score == pytest.approx(e.score.numpy(), rel=1e-4)
    assert np.abs(relevance - e.numpy()).max() <= 1e-4 * e.numpy().max()
    about = {p.key: p.value for p in onnx.load("e.onnx").metadata_props}
    assert about["target"] == "1"
    assert json.loads(about["model"])["preparation"]["size"] == 24


def preparation() -> dt.Preparation:
    return dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        interpolation="bilinear",
    )  # fmt: skip


def loaded() -> tuple[Tensor, torch.nn.Module]:
    network = flower_net()
    network.load_state_dict(torch.load("flowers.pth", weights_only=True))
    return preparation()("photo.png")[0], network


def test_an_export_that_differs_is_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def differs(*_: object, **__: object) -> None:
        raise exporter.ExportError("e.onnx was not written: it differs")

    monkeypatch.setattr("deeptaylor.app.cli.export.export_explainer", differs)
    out, err = said(capsys, 1, "export", *SAID[:1], "e.onnx", *SAID[1:])
    assert (out, "e.onnx was not written: it differs" in err) == ("", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["e.txt", *SAID[1:]], "give a file that ends in .onnx"),
        (["no/e.onnx", *SAID[1:]], "there is no folder no"),
        (["e.onnx", *SAID[1:], "--bias", "both"], "--bias both makes two explanations"),
        (["e.onnx", *SAID[1:], "--target", "lily"], "No class is called 'lily'"),
        (["e.onnx", *SAID[1:], "--photo", "no.png"], "no such file: no.png"),
    ],
)
def test_export_with_wrong_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in said(capsys, 2, "export", *SAID[:1], *words)[1]


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    findings = doctor.examine()
    code = int(any(f.state == "problem" for f in findings))
    out, err = said(capsys, code, "doctor")
    assert err == ""
    assert all(f.what in out for f in findings)
    assert [f.state for f in findings if f.what in ("Python", "torch", "self-test")] == ["fine"] * 3
    assert said(capsys, code, "doctor", "--quiet") == ("", "")


def test_doctor_sees_traps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor.torch, "__version__", "2.4.1")
    monkeypatch.setattr(doctor.torch, "get_num_threads", lambda: 1000)
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(doctor.sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: "0.1" if name == "torchvision" else None)
    found = {f.what: f for f in doctor.examine()}
    assert found["torch"].advice == "2.10 or later is needed: use an environment with a newer torch"
    assert found["threads"].advice.startswith("set OMP_NUM_THREADS=")
    assert "operator torchvision::nms does not exist" in found["torchvision"].found
    assert said(capsys, 1, "doctor")[0].count("PROBLEM") == 3


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.14.0.dev20260101+cu128"])
@pytest.mark.parametrize("clone", [(None, False), ("/src/dt", True)])
def test_no_advice_changes_torch(monkeypatch: pytest.MonkeyPatch, version: str, clone: tuple[Any, bool]) -> None:
    known = optional.importlib.metadata.version
    monkeypatch.setattr(
        optional.importlib.metadata, "version", lambda name: version if name == "torch" else known(name)
    )
    monkeypatch.setattr(optional, "_clone", lambda: clone)
    monkeypatch.setattr(doctor, "_version", lambda name: None)  # nothing is installed
    advice = [f.advice for f in doctor.examine() if "pip install" in f.advice and "pillow" not in f.advice]
    assert len(advice) >= 8
    pin = f'"torch=={version.partition("+")[0]}"'
    assert all(text.count("pip install") == text.count(pin) for text in advice)
    monkeypatch.setattr(doctor, "extras", dict)
    (tree,) = doctor._extras()
    assert tree.advice == f"pip install -e . {pin} to see its extras"
    for name, wanted in (
        ("pytorch_grad_cam", "pip install --no-deps grad-cam ttach opencv-python-headless"),
        ("zennit", "pip install --no-deps zennit==0.5.1"),
        ("timm", f"pip install timm {pin}"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(optional.MissingPackageError) as error:
            optional.optional_package(name, "why", "evaluation" if name != "timm" else None)
        assert str(error.value).endswith(wanted)


def test_no_extra_asks_for_a_torchvision() -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    users = [line for name, lines in extras.items() if name != "bench" for line in lines]
    assert not any(re.match(r"(grad-cam|zennit|torchvision|timm)\b", line) for line in users)


def test_a_ledger_that_does_not_close_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeptaylor.check.TOLERANCE", {torch.float32: -1.0})
    (found,) = doctor._self_test()
    assert found.state == "problem"
