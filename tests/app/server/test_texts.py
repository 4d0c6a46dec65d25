"""The page's server answers questions about texts as the library does, in plain sentences, and refuses in words."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

import deeptaylor as dt
from deeptaylor.app.server import main, texts
from deeptaylor.app.server.routes import LONG, NONE, make_app
from deeptaylor.app.server.schema import CHARACTERS, TextQuestion
from deeptaylor.app.server.texts import TextPage
from deeptaylor.text.text_explanation import format_signed
from page_client import BOUNDS, HOST, ORIGIN, TOKEN
from small_texts import classifier, embedder, llama

TEXT = "The films was not bad at all"


@pytest.fixture(scope="module")
def p() -> dt.TextModel:
    return classifier()


def open_page(model: dt.TextModel | None) -> TestClient:
    served = None if model is None else TextPage(model, "mine")
    app = make_app(frozenset({HOST}), TOKEN, bounds=BOUNDS, texts=served)
    return TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN})


@pytest.fixture(scope="module")
def client(p: dt.TextModel) -> Iterator[TestClient]:
    with open_page(p) as made:
        yield made


@pytest.fixture(scope="module")
def speaking() -> Iterator[TestClient]:
    with open_page(llama()) as made:
        yield made


def ask(client: TestClient, **question: Any) -> dict[str, Any]:
    response = client.post("/api/text", json={"text": TEXT, **question})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refused(client: TestClient, **question: Any) -> str:
    response = client.post("/api/text", json={"text": TEXT, **question})
    assert response.status_code == 422, response.text
    said: str = response.json()["error"]
    assert "Traceback" not in said
    return said


# --- classes ----------------------------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_library(client: TestClient, p: dt.TextModel) -> None:
    found, e = ask(client, target="positive"), p.explain(TEXT, "positive")
    assert [word["value"] for word in found["tokens"]] == pytest.approx(e.relevance[0].tolist(), abs=1e-6)
    assert [word["text"] for word in found["words"]] == list(e.words().words)
    assert [word["special"] for word in found["words"]] == [True, *[False] * 7, True]
    assert found["title"] == "Which words speak for 'positive'?"
    assert found["made"] == f"mine. Method: Secant; the text is compared with {e.copies}."
    assert found["score"] == pytest.approx(float(e.score[0]))
    assert found["table"] == e.table()


def test_the_account_adds_up_and_is_said(client: TestClient) -> None:
    found = ask(client, target="positive")
    score, *parts = (part["value"] for part in found["parts"])
    assert sum(parts) == pytest.approx(score, abs=1e-6)
    said = found["sentences"][0]
    assert said.startswith(f"The logit of 'positive' is {format_signed(score)}, a probability of ")
    assert " %. On average over 10 copies " in said
    assert said.endswith(f" = {format_signed(score)}.")
    assert "Special tokens and positions" in found["sentences"][1]


def test_the_best_guess_is_asked_about_and_marked(client: TestClient, p: dt.TextModel) -> None:
    found = ask(client)
    best = p.explainer().guesses(TEXT)[0]
    assert found["guesses"][0]["name"] == best.name
    assert found["guesses"][0]["probability"] == pytest.approx(best.probability)
    assert found["chosen"] == 0
    assert found["asked"] == repr(best.name)
    assert ask(client, target=found["guesses"][1]["name"])["chosen"] == 1


def test_one_class_rather_than_another(client: TestClient) -> None:
    best, other = (guess["name"] for guess in ask(client)["guesses"])
    found = ask(client, target=other, against=best)
    assert found["title"] == f"Which words speak for {other!r} rather than {best!r}?"
    assert found["sentences"][0].startswith(f"The difference of logits, {other!r} rather than {best!r}, is −")
    assert "It is below zero: the network prefers the other one." in found["sentences"]
    assert found["chosen"] is None


@pytest.mark.parametrize("method", ["deep Taylor", "cp-lrp"])
def test_other_methods_say_what_special_tokens_and_positions_took(client: TestClient, method: str) -> None:
    found = ask(client, method=method, reference="pad")  # which it has no use for
    assert found["method"] == method
    assert found["made"].endswith("words are compared with nothing.")
    score, *parts = found["parts"]
    assert sum(part["value"] for part in parts) == pytest.approx(score["value"], abs=1e-5)
    assert [part["name"] for part in parts] == ["words", "special", "rest", "unaccounted"]
    best, other = (guess["name"] for guess in ask(client)["guesses"])
    below = ask(client, method=method, target=other, against=best)
    assert below["parts"][0]["value"] < 0
    assert "explains what is above zero" in below["sentences"][0]


def test_what_the_softmax_leaves_out_is_a_line_of_its_own(client: TestClient) -> None:
    found = ask(client, method="attnlrp")
    score, *parts = found["parts"]
    assert [part["name"] for part in parts] == ["words", "special", "rest", "left", "unaccounted"]
    assert sum(part["value"] for part in parts) == pytest.approx(score["value"], abs=1e-5)
    assert "The softmax leaves out " in found["sentences"][0]


def test_references_are_those_that_the_tokenizer_has(client: TestClient) -> None:
    offer = client.get("/api/models").json()["text"]
    assert [(r["name"], r["title"]) for r in offer["references"]] == [
        ("", "all or half of the words missing"),
        ("mask", "[MASK]"),
        ("pad", "[PAD]"),
        ("mean", "the mean embedding"),
        ("hidden", "hidden"),
    ]
    assert offer["classes"] == ["negative", "positive"]
    assert [m["name"] for m in offer["methods"]] == ["secant", "deep Taylor", "cp-lrp", "attnlrp"]
    found = ask(client, reference="mean")
    assert found["made"].endswith("words are compared with the mean embedding.")
    assert "With the mean embedding in the place of every word it is" in found["sentences"][0]


def test_the_snippet_and_the_command_give_the_same(client: TestClient, p: dt.TextModel) -> None:
    found = ask(client, text="it's a film", target="positive", reference="pad")
    e: Any = None
    lines = found["snippet"].splitlines()
    call = next(line for line in lines if line.startswith("e = "))
    names: dict[str, Any] = {"dt": dt, "p": p, "e": e}
    exec(call, names)
    assert float(names["e"].score[0]) == pytest.approx(found["score"])
    assert found["command"].endswith("""--text 'it'"'"'s a film' --target positive --reference pad""")


# --- what follows, and what is alike ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_language_model_is_asked_what_follows(speaking: TestClient) -> None:
    prompt = "the capital of france is"
    found = ask(speaking, text=prompt)
    assert found["chosen"] == 0
    assert found["sentences"][0].startswith("The log-probability of ")
    assert "a probability of " in found["sentences"][0]
    second = ask(speaking, text=prompt, token=found["guesses"][1]["index"])
    assert second["chosen"] == 1
    between = ask(speaking, text=prompt, continuation="paris", against="london")
    assert between["title"] == "Which words speak for 'paris' rather than 'london' next?"
    assert "no token 99999" in refused(speaking, token=99999)


@pytest.mark.slow
def test_why_two_texts_are_alike() -> None:
    with open_page(embedder()) as client:
        found = ask(client, text="a man plays guitar", other="some one performs music")
        assert found["title"] == "Which words speak for the similarity of the two texts?"
        assert found["sentences"][0].startswith("The cosine similarity is ")
        assert ". With [MASK] in the place of every word, in one text at a time, it is " in found["sentences"][0]
        assert [word["breaks"] for word in found["words"]].count(True) == 1
        assert found["guesses"] == []
        assert "dt.similarity(p, 'a man plays guitar', 'some one performs music')" in found["snippet"]
        assert "The second text is empty" in refused(client, text="a man")
        assert len(client.get("/api/models").json()["text"]["methods"]) == 1


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_words_as_files(client: TestClient) -> None:
    page = client.post("/api/text/words.html", json={"text": "film", "target": "positive"})
    assert page.headers["content-type"] == "application/octet-stream"
    assert ">film</span>" in page.text
    assert "<title>Which words speak for &#x27;positive&#x27;?</title>" in page.text
    assert "in the place of every word" in page.text
    picture = client.post("/api/text/words.png", json={"text": TEXT})
    with Image.open(io.BytesIO(picture.content)) as image:
        assert image.format == "PNG"


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"text": " \n"}, "The text is empty: write one, or begin with an example."),
        ({"text": "film " * 100}, "The text has 102 tokens, and the network takes at most 64: shorten it."),
        ({"text": "a" * (CHARACTERS + 1)}, LONG),
        ({"text": "film", "other": "ä" * 15_000 + "b" * 5_001}, LONG),
        ({"text": "[CLS]"}, "special tokens alone"),
        ({"target": "positve"}, "No class is called 'positve'."),
        ({"target": "7"}, "There is no class 7: the network has 2 classes"),
        ({"against": "nobody"}, "No class is called 'nobody'."),
        ({"method": "guess"}, "a method is one of"),
        ({"reference": "a film"}, "is 2 tokens. It must be one token"),
        ({"weights": "/etc/passwd"}, "weights: Extra inputs are not permitted"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_explained_is_said_in_words(client: TestClient, question: dict[str, str], said: str) -> None:
    assert said in refused(client, **question)


def test_a_text_of_any_size_is_refused_in_words_for_texts(client: TestClient) -> None:
    assert LONG in refused(client, text="", other="b" * 190_000)
    response = client.post("/api/text", content=b" " * 400_000)
    assert response.status_code == 413
    assert response.json()["error"].startswith("the text is too large")


def test_what_is_no_question_is_refused(client: TestClient) -> None:
    for body in (b"", b"\xff", b"[]", b'{"text": 3}', b"{" * 1000):
        response = client.post("/api/text", content=body)
        assert response.status_code == 422
        assert set(response.json()) == {"error"}


def test_tokens_have_a_limit_where_the_network_has_none(monkeypatch: pytest.MonkeyPatch, p: dt.TextModel) -> None:
    monkeypatch.setattr(texts, "TOKENS", 8)
    with pytest.raises(dt.InputError, match="has 12 tokens, and this page explains at most 8"):
        TextPage(p).explain(TextQuestion(text="film " * 10))


def test_without_such_a_network_it_says_how_to_get_one() -> None:
    with open_page(None) as client:
        assert client.get("/api/models").json()["text"] is None
        assert refused(client) == NONE


def test_it_needs_the_token(client: TestClient) -> None:
    response = client.post("/api/text", json={"text": TEXT}, headers={"X-Deeptaylor-Token": "no"})
    assert response.status_code == 401


def test_an_unexpected_failure_has_no_stack_trace(p: dt.TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("/home/someone/secret.py")

    monkeypatch.setattr(TextPage, "explain", broken)
    app = make_app(frozenset({HOST}), TOKEN, bounds=BOUNDS, texts=TextPage(p))
    with TestClient(
        app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}, raise_server_exceptions=False
    ) as client:
        response = client.post("/api/text", json={"text": TEXT})
    assert response.status_code == 500
    assert "secret" not in response.text


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_folder_is_served(p: dt.TextModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(main.logging, "basicConfig", lambda **_: None)  # it would stay for the tests behind this one
    monkeypatch.setattr(main, "serve", lambda host, port, model, open_browser, title, run: found.extend([model, title]))
    folder = tmp_path / "sentiment"
    p.network.save_pretrained(folder)  # type: ignore[operator]
    p.tokenizer.save_pretrained(folder)
    names = tmp_path / "names.txt"
    names.write_text("bad\ngood\n")
    assert main.main(["--model", f"hf:{folder}", "--class-names", str(names)]) == 0
    assert isinstance(found[0], dt.TextModel)
    assert found[0].class_names == ("bad", "good")
    assert found[1] == "sentiment"
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_a_folder_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main.logging, "basicConfig", lambda **_: None)
    assert main.main(["--model", f"hf:{tmp_path}"]) == 2
    assert "error: hf:" in capsys.readouterr().err
