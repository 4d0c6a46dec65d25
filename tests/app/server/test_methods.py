"""The choice of a method on the page: every word, the reason, and maps that do not depend on the class."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import nn

import deeptaylor as dt
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import make_app
from deeptaylor.app.server.schema import ExplainOptions, MethodName
from deeptaylor.settings import METHODS
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, explain, png, values


class Soft(nn.Module):
    """A network whose operations do not decide the method; all of its classes read the same features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return y + torch.tensor([2.0, 1.0, -9.0])


def asking(network: nn.Module) -> TestClient:
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    loaded = dt.load(network.eval(), preparation=preparation, class_names=("one", "two", "three"))
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(loaded), chosen=OWN, bounds=BOUNDS)
    return TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN})


@pytest.fixture(scope="module")
def soft() -> Iterator[TestClient]:
    with asking(Soft()) as made:
        yield made


def test_the_page_has_the_words_of_the_library() -> None:
    assert get_args(MethodName) == tuple(METHODS)


@pytest.mark.parametrize("word", METHODS)
def test_every_word_is_answered_as_the_library_answers(soft: TestClient, word: str) -> None:
    found = explain(soft, png(3), method=word, target=0)
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    x, _ = preparation(Image.open(io.BytesIO(png(3))))
    e = dt.explain(Soft().eval(), x, 0, preparation.domain, method=word)
    assert np.allclose(values(found["heat"]), e.heatmap()[0].numpy(), atol=1e-6)
    assert found["method"] == (word if word != "auto" else "secant" if isinstance(e, dt.Between) else "deep-taylor")
    assert found["reason"] == (e.reason if word == "auto" else "")
    assert (found["account"] is not None) == (found["method"] in ("deep-taylor", "paper", "cp-lrp"))
    outside = word in ("sensitivity", "taylor")
    given = "" if word == "auto" else f"--methods {word}" if outside else f"--method {word}"
    assert given in found["command"] or word == "deep-taylor"


def test_the_reason_of_auto_has_the_numbers_of_the_test(soft: TestClient) -> None:
    assert "because the network has gelu, so both methods were tested" in explain(soft, png(3))["reason"]


def test_a_setting_of_deep_taylor_means_it() -> None:
    assert ExplainOptions(model="m").settings.method == "auto"
    assert ExplainOptions(model="m", bias="returned").settings.method == "deep-taylor"
    assert (
        ExplainOptions(model="m", method="secant", bias="spread").settings
        == ExplainOptions(model="m", method="secant").settings
    )


def test_secants_explain_scores_below_zero_with_both_signs(soft: TestClient) -> None:
    assert not values(explain(soft, png(3), target=2, method="deep-taylor")["heat"]).any()
    found = explain(soft, png(3), target=2, method="secant")
    heat = values(found["heat"])
    assert heat.min() < 0 < heat.max()
    assert found["title"] == "Which pixels speak for “three”, and which for its rivals"
    assert found["sentences"][0].startswith("The score of “three” minus the mean of its rivals is -")
    assert "blue ones lower it by" in found["sentences"][0]
    with np.load(io.BytesIO(_npz(soft, method="secant"))) as arrays:
        reference, raised, lowered = arrays["ledger"]
        assert reference + raised - lowered == pytest.approx(float(arrays["score"][0]), abs=1e-5)


def _npz(client: TestClient, **options: str) -> bytes:
    return bytes(client.post("/api/explanation.npz", params={"model": OWN, **options}, content=png(3)).content)


@pytest.mark.parametrize("against", ["", "two"])
def test_secants_set_a_class_apart_by_the_difference_of_scores(soft: TestClient, against: str) -> None:
    found = explain(soft, png(3), method="secant", target="one", question="apart", against=against)
    preparation = dt.Preparation(size=8, resize=8, channels="RGB", white=1, mean=0.5, std=0.5, interpolation="bilinear")
    x, _ = preparation(Image.open(io.BytesIO(png(3))))
    explainer = dt.Explainer(Soft().eval(), x, preparation.domain, method="secant")
    wanted = explainer.contrast(x, 0, 1 if against else None)
    assert np.allclose(values(found["heat"]), wanted.heatmap()[0].numpy(), atol=1e-6)
    assert found["title"] == (
        "“one” against “two”" if against else "Which pixels speak for “one”, and which for its rivals"
    )
    assert found["sentences"][0].startswith("The score of “one” minus ")
    assert "apart_text" not in found["snippet"]


def test_a_map_that_does_not_depend_on_the_class_says_so_first() -> None:
    network = Soft()
    with torch.no_grad():
        rows = network.body[3].weight.abs()  # type: ignore[operator]
        network.body[3].weight.copy_(20 * rows[:1].repeat(3, 1))  # type: ignore[operator, union-attr]
    with asking(network) as made:
        found = explain(made, png(3), method="deep-taylor", target=0)
        assert found["same"].startswith("This map does not depend on the class: ")
        assert "is the same for the next class, “two”. Ask what is specific to “one”" in found["same"]


def test_a_map_that_does_depend_on_it_says_how_much_is_shared(soft: TestClient) -> None:
    found = explain(soft, png(3), method="deep-taylor", target=0)
    assert found["same"] == ""
    assert found["sentences"][-1].endswith(" of the map is the same for the next class, “two”.")
