"""`--method` and `--reference`: every word of them, through every verb that takes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import deeptaylor as dt
from cli_model import PREPARATION, pixels, plain_net, said, soft_net
from deeptaylor.app.cli.options import MethodOptions
from deeptaylor.errors import InputError

WORDS = {
    "auto": "deep Taylor, because the network consists of ",
    "deep-taylor": "deep Taylor, as asked",
    "paper": "deep Taylor as in the paper, as asked",
    "secant": "secants, as asked",
    "attnlrp": "attnlrp, as asked",
    "cp-lrp": "cp-lrp, as asked",
    "sensitivity": "sensitivity, as asked",
    "taylor": "taylor, as asked",
}
SAID = ["--architecture", "cli_model:soft_net", "--class-names", "names.txt", *PREPARATION]
SOFT = ["--model", "soft.pth", *SAID]
PLAIN = ["--model", "plain.pth", *[w.replace("soft_net", "plain_net") for w in SAID]]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, make in (("soft", soft_net), ("plain", plain_net)):
        torch.manual_seed(0)
        network = make()
        with torch.no_grad():
            network[-1].bias.add_(torch.tensor([0.5, -3.0, 1.5]))  # a score below zero, too
        torch.save(network.state_dict(), f"{name}.pth")
    Path("names.txt").write_text("daisy\nrose\ntulip\n")
    Path("photos").mkdir()
    for k in range(5):
        Image.fromarray(pixels(k)).save(f"photos/{k}.png")
    Image.fromarray(pixels()).save("photo.png")


def record(*words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path("o/photo_record.json").read_text())["explanations"][0]
    return found


@pytest.mark.parametrize("word", WORDS)
def test_every_word_explains_and_is_named(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, "explain", "photo.png", *PLAIN, "--method", word, "--check", "--out", "o")
    assert err == ""
    assert f"  Method: {WORDS[word]}" in out
    found = record()
    assert str(found["reason"]).startswith(f"Method: {WORDS[word]}")
    assert found["method"]["asked"] == word  # type: ignore[index]
    network = dt.load("plain.pth", architecture=plain_net, class_names=["daisy", "rose", "tulip"], preparation=_prep())
    e = dt.explain(network, "photo.png", method=word)
    with np.load("o/photo_relevance.npz") as arrays:
        assert np.allclose(arrays["relevance"][0], e.numpy()[0], atol=1e-6)


def test_the_preset_of_the_paper_is_its_method(capsys: pytest.CaptureFixture[str]) -> None:
    maps = []
    for words in (["--preset", "paper"], ["--method", "paper"]):
        out, _ = said(capsys, 0, "explain", "photo.png", *PLAIN, *words, "--out", "o", "--overwrite")
        assert "  Method: deep Taylor as in the paper, as asked" in out
        with np.load("o/photo_relevance.npz") as arrays:
            maps.append(arrays["relevance"])
    assert np.array_equal(*maps)


def _prep() -> dt.Preparation:
    return dt.Preparation(
        size=24, resize=28, channels="RGB", white=1, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
        interpolation="bilinear",
    )  # fmt: skip


def test_a_network_that_does_not_decide_is_tested_and_the_numbers_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "explain", "photo.png", *SOFT, "--out", "o")
    assert "because the network has gelu, so both methods were tested on the first input" in out
    assert set(record()["method"]["areas"]) == {"deep-taylor", "secant"}  # type: ignore[index]


def test_secants_say_what_raised_and_lowered_the_score_and_draw_both_signs(capsys: pytest.CaptureFixture[str]) -> None:
    # The score of roses is below zero: deep Taylor has no map of it.
    rose = ["explain", "photo.png", *PLAIN, "--target", "rose", "--out", "o"]
    assert "not above zero" in said(capsys, 2, *rose)[1]
    out, _ = said(capsys, 0, *rose, "--method", "secant")
    assert "The score against its rivals is -" in out
    assert "; pixels raise it by " in out
    assert "biases" not in out
    with Image.open("o/photo_rose_heatmap.png") as picture:
        colours = np.asarray(picture.convert("RGB"), dtype=int).reshape(-1, 3)
    assert (colours[:, 0] > colours[:, 2] + 40).any()  # red
    assert (colours[:, 2] > colours[:, 0] + 40).any()  # blue


@pytest.mark.parametrize("word", ["mean", "blur", "zeros", "other.png", "other.npy"])
def test_a_reference_is_a_word_or_a_file_and_means_secants(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(pixels(3)).save("other.png")
    network = dt.load("plain.pth", architecture=plain_net, class_names=["daisy", "rose", "tulip"], preparation=_prep())
    other = network.preprocess("other.png")[0]
    np.save("other.npy", other.numpy())
    out, _ = said(capsys, 0, "explain", "photo.png", *PLAIN, "--reference", word, "--out", "o")
    assert "Method: secants, because a reference was given." in out
    e = dt.explain(network, "photo.png", reference=other if "." in word else word)
    with np.load("o/photo_relevance.npz") as arrays:
        assert np.allclose(arrays["relevance"][0], e.numpy()[0], atol=1e-6)


def test_secants_against_a_class_and_against_all_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    network = dt.load("plain.pth", architecture=plain_net, class_names=["daisy", "rose", "tulip"], preparation=_prep())
    for against, rival in (("rose", 1), ("rivals", None)):
        words = ["--target", "tulip", "--against", against, "--method", "secant", "--out", f"o-{against}"]
        said(capsys, 0, "explain", "photo.png", *PLAIN, *words)
        wanted = dt.contrast(network, "photo.png", 2, rival, method="secant").numpy()[0]
        with np.load(next(Path(f"o-{against}").glob("*.npz"))) as arrays:
            assert np.allclose(arrays["relevance"][0], wanted, atol=1e-6)
    _, err = said(capsys, 2, "explain", "photo.png", *PLAIN, "--against", "rose", "--method", "attnlrp", "--out", "o")
    assert "The method 'attnlrp' has no contrast" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "lrp"], "The method 'lrp' is not known; the methods are 'auto', 'deep-taylor', "),
        (
            ["--method", "secant", "--bias", "spread"],
            "--bias … is a setting of the method 'deep-taylor'; it cannot be used ",
        ),
        (
            ["--reference", "blur", "--max-pool", "winner"],
            "--max-pool … is a setting of deep Taylor and --reference … one ",
        ),
        (["--preset", "paper", "--method", "secant"], "--preset paper and --method secant name different methods"),
        (["--preset", "lrp"], "The preset 'lrp' is not known; the presets are 'deep-taylor', 'paper', 'cp-lrp'."),
        (["--method", "taylor", "--reference", "mean"], "--reference … belongs to the method 'secant'"),
        (
            ["--reference", "nothing.png"],
            "--reference nothing.png: give one of zeros, mean, blur, or a file that exists",
        ),
        (["--reference", "names.txt"], "names.txt is not a picture that can be read"),
        (["--reference", "bad.npy"], "--reference bad.npy: not an array of numbers"),
        (["--reference", "small.npy"], "The reference of 'x' has shape (3, 2, 2); the input has (1, 3, 24, 24)"),
    ],
)
def test_what_does_not_fit_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.npy").write_text("words")
    np.save("small.npy", np.zeros((3, 2, 2), dtype=np.float32))
    err = said(capsys, 2, "explain", "photo.png", *PLAIN, *words, "--out", "o")[1]
    assert message in err.replace("input_1", "x").replace("'input'", "'x'")


def test_a_setting_of_deep_taylor_means_it() -> None:
    assert MethodOptions().settings() == {"auto": {"method": "auto"}}
    assert MethodOptions(bias="both").settings().keys() == {"neuron", "spread"}
    assert dt.Explainer(plain_net(), **MethodOptions(max_pool="winner").single()).settings.method == "deep-taylor"
    with pytest.raises(InputError, match="--bias both makes two explanations"):
        MethodOptions(bias="both").single()


def test_a_map_that_does_not_depend_on_the_class_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.load("plain.pth")
    state["4.weight"] = state["4.weight"].abs().mean(0, keepdim=True).repeat(3, 1)  # all classes have the same map
    state["4.bias"] = torch.tensor([0.1, 0.2, 0.3])
    torch.save(state, "plain.pth")
    out, _ = said(capsys, 0, "explain", "photos", *PLAIN, "--check", "--out", "o")
    first = "This map does not depend on the class: "
    assert first in out
    assert "Ask what sets the class apart: --against rivals." in out
    html = Path("o/report.html").read_text(encoding="utf-8")
    assert html.index(first) < html.index("Biases absorbed")
    assert json.loads(Path("o/0_record.json").read_text())["said_first"][0].startswith(first)


# --- other verbs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WORDS)
def test_check_says_which_method_answers(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, 0, "check", *PLAIN[1:], "--method", word, "--json")[0])["plans"][word]
    assert found["reason"].startswith(f"Method: {WORDS[word]}")
    assert bool(found["steps"]) == (word in ("auto", "deep-taylor", "paper", "cp-lrp"))


def test_check_says_that_methods_will_be_tested(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, 0, "check", *SOFT[1:])[0]
    assert "Method: deep Taylor or secants; both are tested on the first inputs that are explained." in out


def test_a_run_keeps_to_the_method_that_it_began_with(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, 0, "run", "photos", *SOFT, "--out", "store")[0]
    kept = json.loads(Path("store/manifest.json").read_text())["method"]
    assert "because the network has gelu, so both methods were tested on the first 4 inputs" in out
    assert set(kept["areas"]) == {"deep-taylor", "secant"}
    assert said(capsys, 0, "verify", "store", *SOFT)[1] == ""
    other = "secant" if kept["method"] == "deep-taylor" else "deep-taylor"
    assert "differ in: " in said(capsys, 2, "run", "photos", *SOFT, "--out", "store", "--method", other)[1]


@pytest.mark.parametrize("words", [["--method", "secant"], ["--reference", "photo.png"]])
def test_a_run_by_secants_has_maps_of_both_signs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, 0, "run", "photos", *SOFT, "--out", "store", *words)
    run = dt.open_dataset("store")
    assert run.manifest["method"]["method"] == "secant"
    assert run.heatmaps[:].min() < 0 < run.heatmaps[:].max()
    assert said(capsys, 0, "verify", "store", *SOFT, *words)[1] == ""
    err = said(capsys, 2, "run", "photos", *SOFT, "--out", "store", "--reference", "blur")[1]
    assert "They differ in: " in err
    assert "reference" in err


@pytest.mark.parametrize("word", ["auto", "deep-taylor", "paper", "cp-lrp"])
def test_export_names_the_method(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*PLAIN[1:2], "e.onnx", *PLAIN[2:], "--photo", "photo.png", "--method", word]
    found = json.loads(said(capsys, 0, "export", *words, "--json")[0])
    assert found["reason"].startswith(f"Method: {WORDS[word]}")


def test_export_of_what_is_not_settled_or_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "soft.pth", "e.onnx", *SAID]
    assert "only your photographs can decide between them. Give --photo FILE" in said(capsys, 2, *words)[1]
    err = said(capsys, 2, *words, "--method", "secant", "--photo", "photo.png")[1]
    assert "Only explainers by deep Taylor" in err


def test_texts_take_the_same_words() -> None:
    with pytest.raises(InputError, match="Of texts, a method is one of 'auto', 'secant', 'deep-taylor'"):
        dt.text.text_explainer.TextExplainer(None, "paper")  # type: ignore[arg-type]
