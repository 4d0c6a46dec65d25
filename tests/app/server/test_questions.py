"""What is asked of the page's server, and what it says: only what was computed, in plain sentences."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

import deeptaylor as dt
from deeptaylor.app.server import explanations, sentences
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import make_app
from deeptaylor.engine.deletion import measure_flipping_area
from deeptaylor.viz.captions import describe_split
from deeptaylor.viz.heatmap import robust_scale
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, Several, digits, explain, png, values


@pytest.fixture(scope="module")
def several(own: dt.Pretrained) -> dt.Pretrained:
    """For png(3) the scores are about −1.6, 3.3, 4 and 7.2."""
    return dt.load(Several().eval(), preparation=own.preparation, class_names=own.class_names)


@pytest.fixture(scope="module")
def asked(several: dt.Pretrained) -> Iterator[TestClient]:
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(several), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        yield made


def refused(client: TestClient, **options: Any) -> dict[str, Any]:
    response = client.post("/api/explain", params={"model": OWN, **options}, content=png(3))
    assert response.status_code == 422, response.text
    found: dict[str, Any] = response.json()
    return found


def contrast(model: dt.Pretrained, **asked: Any) -> dt.Contrast:
    x, _ = model.preprocess(Image.open(io.BytesIO(png(3))))
    return dt.Explainer(model.network, x, domain=model.domain).contrast(x, **asked)


# --- one class against another ----------------------------------------------------------------------------------------


def test_one_class_against_another_is_the_contrast(asked: TestClient, several: dt.Pretrained) -> None:
    found = explain(asked, png(3), target="four", against="<SCRIPT>")
    c = contrast(several, target=3, against=2)
    assert c.apart is not None
    assert found["title"] == "“four” against “<script>”"
    assert (found["target"], found["against"], found["against_name"]) == (3, 2, "<script>")
    assert np.allclose(values(found["heat"]), c.heatmap()[0].numpy(), rtol=1e-5)
    apart = found["apart"]
    assert apart["size"] == pytest.approx(float(c.apart[0]))
    assert c.apart_text().startswith(apart["percent"])
    assert apart["sentence"] == "of the map is specific to “four”; it shares the rest with “<script>”."
    assert np.allclose(values(apart["difference"]), c.difference[0].sum(0).numpy(), atol=1e-7)
    assert apart["difference"]["scale"] == pytest.approx(robust_scale((c.relevance + c.shared)[0].sum(0)))
    account = found["account"]
    parts = account["input"] + account["shared"] + account["bias"] + account["dropped"]
    assert parts == pytest.approx(account["score"], rel=1e-5)
    assert account["shared"] > 0
    assert "lies where" in found["sentences"][1]


@pytest.mark.parametrize("alike", [True, False])
def test_that_nothing_sets_a_class_apart_is_said_as_in_a_figure(several: dt.Pretrained, alike: bool) -> None:
    network = Several().eval()
    if alike:
        with torch.no_grad():
            network.fc.weight[2], network.fc.bias[2] = network.fc.weight[3], network.fc.bias[3] - 2.5
    model = dt.load(network, preparation=several.preparation, class_names=several.class_names)
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(model), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        found = explain(made, png(3), target=3, against=2)
    caption = describe_split(contrast(model, target=3, against=2).ledger, 0, 0)
    assert caption.startswith("Nothing distinguishes the class from its rivals: ") == alike
    assert found["apart"]["nothing"] == (caption if alike else "")


def test_what_sets_a_class_apart_lists_the_rivals(asked: TestClient, several: dt.Pretrained) -> None:
    found = explain(asked, png(3), question="apart")
    c = contrast(several)
    assert found["title"] == "What is specific to “four”"
    rivals = found["apart"]["rivals"]
    assert [(r["index"], round(r["weight"], 5)) for r in rivals] == [(k, round(w, 5)) for k, w in c.rivals[0]]
    assert [r["name"] for r in rivals] == ["<script>", "two"]
    assert found["apart"]["more"] == 0
    assert found["against"] is None


def test_a_class_without_rivals(client: TestClient) -> None:
    """Of the plain small network only one class has a positive score."""
    found = explain(client, png(3), question="apart")
    assert found["title"] == "“four” has no rival here"
    assert found["apart"] is None
    assert "all evidence is shown" in found["sentences"][1]
    assert "dt.margin" not in str(found["notes"])


def test_a_rival_that_scores_higher_is_asked_the_other_way_round(asked: TestClient, several: dt.Pretrained) -> None:
    found = refused(asked, target="two", against="four")
    x, _ = several.preprocess(Image.open(io.BytesIO(png(3))))
    scores = several.output(x)[0]
    by = f"{float(scores[3] - scores[1]):.3g}"
    assert found["error"] == f"“four” scores higher by {by}: ask for “four” against “two”."
    assert found["swap"] == {"target": 3, "against": 1}
    assert explain(asked, png(3), **found["swap"])["title"] == "“four” against “two”"


def test_behind_a_softmax_scores_are_those_before_it(several: dt.Pretrained) -> None:
    soft = dt.load(
        torch.nn.Sequential(several.network, torch.nn.Softmax(1)).eval(),
        preparation=several.preparation,
        class_names=several.class_names,
    )
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(soft), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        x, _ = several.preprocess(Image.open(io.BytesIO(png(3))))
        scores = several.output(x)[0]
        assert f"higher by {float(scores[3] - scores[1]):.3g}:" in refused(made, target="two", against="four")["error"]


def test_a_rival_that_the_network_does_not_see(asked: TestClient) -> None:
    words = refused(asked, target="four", against="one")["error"]
    assert words.startswith("The score of “one” is -1.")
    assert "no evidence for it to compare “four” with" in words
    assert "dt." not in words


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"against": "banana split with extra nonsense"}, "No class is called 'banana split with extra nonsense'."),
        ({"against": "17"}, "There is no class 17: the network has 4 classes, from 0 on."),
        ({"against": "four"}, "“four” cannot be set against itself; name another class."),
        ({"against": "two", "method": "sensitivity"}, "Only deep Taylor decomposition and secants compare a class"),
        ({"question": "apart", "method": "taylor"}, "Only deep Taylor decomposition and secants compare a class"),
    ],
    ids=str,
)
def test_what_is_no_question_is_refused(asked: TestClient, options: dict[str, str], said: str) -> None:
    found = refused(asked, **options)
    assert found["error"].startswith(said)
    assert found.get("swap") is None


@pytest.mark.parametrize(
    ("options", "index", "name"), [({"against": "too"}, 1, "two"), ({"target": "fourr"}, 3, "four")]
)
def test_similar_classes_are_offered_for_an_unknown_one(
    asked: TestClient, options: dict[str, str], index: int, name: str
) -> None:
    found = refused(asked, **options)
    assert found["error"] == f"No class is called {next(iter(options.values()))!r}."
    assert found["classes"] == [{"index": index, "name": name}]


def test_numbers_of_classes_without_names(several: dt.Pretrained) -> None:
    plain = dt.load(Several().eval(), preparation=several.preparation, class_names=None)
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(plain), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        assert explain(made, png(3), target=3, against=2)["title"] == "“class 3” against “class 2”"
        assert refused(made, against=9)["error"] == "There is no such class: the network has 4, from 0 on."


def test_one_number_has_no_rivals(client: TestClient) -> None:
    params = {"model": "two-layer", "question": "apart"}
    response = client.post("/api/explain", params=params, content=digits())
    assert response.status_code == 422
    assert "there are no classes to compare" in response.json()["error"]


# --- what is said -----------------------------------------------------------------------------------------------------


def test_sensitivity_has_no_ledger(asked: TestClient) -> None:
    found = explain(asked, png(3), method="sensitivity")
    assert found["title"] == "Where a small change alters the score of “four” most"
    assert found["account"] is None
    assert "does not split the score" in found["sentences"][1]
    assert "%" not in " ".join([found["title"], *found["sentences"], found["warning"], found["check"]])
    assert found["consistent"] == ""
    assert "ledger" not in found["snippet"]


def test_taylor_says_what_it_leaves_out(client: TestClient) -> None:
    found = explain(client, digits(), model="two-layer", method="taylor")
    assert found["account"] is None
    assert "the higher-order terms" in found["sentences"][1]
    assert found["consistent"].startswith("Not consistent: ")


def test_evidence_says_its_score_and_whether_it_is_consistent(asked: TestClient) -> None:
    found = explain(asked, png(3))
    assert found["title"] == "Which pixels speak for “four”"
    assert found["sentences"][0].startswith(f"The score of “four” is {found['score']:.3g}; ")
    assert found["consistent"].startswith("Not consistent: before rescaling the relevances add up to ")
    spread = explain(asked, png(3), bias="spread")
    assert spread["consistent"] == "Consistent: all values are zero or positive, and the pixels add up to the score."
    kept = explain(asked, png(3), bias="neuron")
    assert kept["consistent"].startswith("Not consistent: the relevances add up to ")
    assert (found["bias"], kept["bias"]) == ("returned", "neuron")


@pytest.mark.parametrize("options", [{}, {"question": "apart"}, {"method": "sensitivity"}], ids=str)
def test_whether_the_network_believes_a_map(asked: TestClient, several: dt.Pretrained, options: dict[str, str]) -> None:
    response = asked.post("/api/believed", params={"model": OWN, **options}, content=png(3))
    assert response.status_code == 200, response.text
    x, _ = several.preprocess(Image.open(io.BytesIO(png(3))))
    heat = torch.from_numpy(values(explain(asked, png(3), **options)["heat"]).copy())[None]
    area = float(measure_flipping_area(several.network, (x,), 3, heat)[0])
    assert response.json()["area"] == pytest.approx(area, abs=1e-6)
    part = "the distinctive part of the map" if "question" in options else "the map"
    assert f"in the order of {part}. " in response.json()["sentence"]


def test_the_words_of_belief() -> None:
    assert "0.21 higher on average when the least relevant patches were hidden first" in sentences.describe_deletion(
        0.21, "cup", parts=False
    )
    assert "0.10 lower on average" in sentences.describe_deletion(-0.1, "cup", parts=False)
    assert "made no difference to the probability of “cup”" in sentences.describe_deletion(0.001, "cup", parts=False)


# --- layers -----------------------------------------------------------------------------------------------------------


def test_the_channels_of_a_layer_that_hold_most(asked: TestClient, several: dt.Pretrained) -> None:
    node = explain(asked, png(3))["layers"][-1]["node"]
    layer = asked.post(f"/api/layers/{node}", params={"model": OWN}, content=png(3)).json()
    x, _ = several.preprocess(Image.open(io.BytesIO(png(3))))
    R = dt.Explainer(several.network, x, domain=several.domain).explain(x, 3).at(node)[0]
    sums = R.sum((1, 2))
    best = [k for k in sums.argsort(descending=True).tolist() if sums[k] > 0][: explanations.CHANNELS]
    assert [c["index"] for c in layer["channels"]] == best
    assert len(best) >= 2
    for channel in layer["channels"]:
        assert np.allclose(values(channel["heat"]), R[channel["index"]].numpy(), atol=1e-7)
        assert channel["total"] == pytest.approx(float(sums[channel["index"]]), rel=1e-5)
    assert layer["title"] == "Evidence for “four” inside the network, at conv"
    assert "What biases absorbed is redistributed to the pixels only" in layer["sentence"]


def test_a_layer_of_a_contrast_says_that_all_evidence_is_shown(asked: TestClient) -> None:
    node = explain(asked, png(3))["layers"][-1]["node"]
    params = {"model": OWN, "against": "two"}
    layer = asked.post(f"/api/layers/{node}", params=params, content=png(3)).json()
    plain = asked.post(f"/api/layers/{node}", params={"model": OWN}, content=png(3)).json()
    assert layer["heat"] == plain["heat"]
    assert layer["title"].startswith("Evidence for “four”")
    assert "It shows all evidence" in layer["sentence"]
