"""The page's server: what it answers is the library's own."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import nn

import deeptaylor as dt
from deeptaylor.app.server import explanations, main
from deeptaylor.app.server.explanations import command, parse_rules
from deeptaylor.app.server.models import OWN, OfferedNetworks
from deeptaylor.app.server.routes import make_app
from deeptaylor.app.server.schema import ExplainOptions
from deeptaylor.app.server.security import hide_folders
from deeptaylor.rules.parse import RULES, format_rule, parse
from deeptaylor.support.optional import how_to_install
from page_client import BOUNDS, HOST, ORIGIN, TOKEN, digits, explain, png, values

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("bias", ["neuron", "spread"])
def test_the_answer_is_that_of_the_library(client: TestClient, own: dt.Pretrained, bias: str) -> None:
    picture = png(3)
    found = explain(client, picture, bias=bias)
    x, seen = own.preprocess(Image.open(io.BytesIO(picture)))
    best = own.top(x, 5)[0]
    e = dt.Explainer(own.network, x, domain=own.domain, bias=bias).explain(x, best[0].index)
    assert np.allclose(values(found["heat"]), e.heatmap()[0].numpy(), rtol=1e-6)
    assert found["score"] == pytest.approx(float(e.score[0]))
    account = found["account"]
    assert account["input"] == pytest.approx(float(e.ledger.input[0]))
    assert account["bias"] == pytest.approx(float(e.ledger.bias[0]))
    assert account["input"] + account["bias"] + account["dropped"] == pytest.approx(account["score"], rel=1e-5)
    assert [c["index"] for c in found["classes"]] == [c.index for c in best]
    assert [row["node"] for row in found["layers"]] == [row[0] for row in e.ledger.rows]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(found["seen"]))))
    assert (shown == np.asarray(seen)).all()


def test_less_than_half_is_said_first(client: TestClient) -> None:
    neuron, spread = (explain(client, png(3), bias=bias) for bias in ("neuron", "spread"))
    assert neuron["account"]["input"] < 0.5 * neuron["account"]["score"]
    assert neuron["warning"].startswith("The input accounts for only")
    assert neuron["check"].startswith(neuron["warning"].split(" (")[0])
    assert spread["warning"] == ""


def test_a_negative_score_is_said_first(client: TestClient) -> None:
    worst = min(range(4), key=lambda k: explain(client, png(3), target=k)["score"])
    negative = explain(client, png(3), target=worst)
    assert negative["score"] < 0
    assert negative["title"] == f"Nothing here speaks for “{negative['target_name']}”"
    assert "there is no map" in negative["sentences"][0]
    assert negative["account"] is None
    nothing = explain(client, b"P5\n56 28\n255\n" + bytes(28 * 56), model="two-layer")
    assert nothing["title"] == "The network’s answer is zero"
    assert not values(negative["heat"]).any()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("method", ["deep-taylor", "sensitivity", "taylor"])
def test_one_output_below_zero_is_explained_with_the_other_sign(flat: bool, method: str, own: dt.Pretrained) -> None:
    assert own.preparation is not None
    side = nn.Linear(math.prod(own.preparation.shape), 1)
    with torch.no_grad():
        side.bias.fill_(-5 - float(own.preparation.domain.span()[1]) * float(side.weight.abs().sum()))
    network = nn.Sequential(nn.Flatten(), side, *[nn.Flatten(0)] * flat).eval()
    doubt = dt.load(network, preparation=own.preparation, class_names=None)
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(doubt), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        found = explain(made, png(3), model=OWN, method=method)
    assert found["score"] > 0
    assert "below zero: its negative" in found["sentences"][0]
    assert "target=dt.negative()" in found["snippet"]
    if method == "deep-taylor":
        assert found["title"] == "Which pixels speak for the network’s answer"
        assert "--target negative" in found["command"]
        assert values(found["heat"]).any()
    else:
        assert found["command"] == "# There is no equivalent command; use the Python code."


def test_another_class(client: TestClient) -> None:
    first = explain(client, png(3))
    other = next(c["index"] for c in first["classes"] if c["index"] != first["target"])
    second = explain(client, png(3), target=other)
    assert second["target"] == other
    assert second["classes"] == first["classes"]
    assert second["score"] != first["score"]


@pytest.mark.parametrize("method", ["sensitivity", "taylor"])
def test_other_methods(client: TestClient, method: str) -> None:
    found = explain(client, digits(), model="two-layer", method=method)
    p = dt.load("two-layer")
    x, _ = p.preprocess(Image.open(io.BytesIO(digits())))
    if method == "sensitivity":
        e = dt.sensitivity(p.network, x)
    else:
        e = dt.taylor(p.network, x, root=dt.nearest_root(p.network, x, domain=p.domain, level=0.1))
    assert np.allclose(values(found["heat"]), e.heatmap()[0].numpy(), rtol=1e-5)
    assert found["layers"] == []
    assert found["account"] is None


def test_a_layer(client: TestClient, own: dt.Pretrained) -> None:
    found = explain(client, png(3))
    node = found["layers"][-1]["node"]
    options = {"model": OWN}
    layer = client.post(f"/api/layers/{node}", params=options, content=png(3)).json()
    x, _ = own.preprocess(Image.open(io.BytesIO(png(3))))
    wanted = dt.Explainer(own.network, x, domain=own.domain, bias="neuron").explain(x, found["target"]).at(node)[0]
    assert layer["shape"] == list(wanted.shape)
    assert np.allclose(values(layer["heat"]), wanted.sum(0).numpy(), rtol=1e-6)
    refused = client.post(f"/api/layers/{found['layers'][0]['node']}", params=options, content=png(3))
    assert refused.status_code == 422
    assert "Ask for a boundary" in refused.json()["error"]


def test_every_layer_but_the_output_can_be_seen(client: TestClient) -> None:
    found = explain(client, digits(), model="two-layer")
    for row in found["layers"][1:]:
        response = client.post(f"/api/layers/{row['node']}", params={"model": "two-layer"}, content=digits())
        assert response.status_code == 200
        assert response.json()["total"] == pytest.approx(row["arrived"], rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": "spread", "target": 1},
        {"first": "w2", "max_pool": "winner"},
        {"above": "eps:0.25"},
        {"above": "eps:0.25", "model": "two-layer"},
        {"above": "gamma:0.5", "first": "flat"},
        {"rules": "fc=ab:2,1", "question": "apart"},
        {"method": "sensitivity", "target": 1},
        {"method": "taylor", "level": 0.3, "model": "two-layer"},
    ],
    ids=str,
)
def test_the_snippet_gives_the_same(
    client: TestClient, own: dt.Pretrained, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"model": OWN, **options}
    sent = png(5) if options["model"] == OWN else digits(5)
    (tmp_path / "a 'quoted' name.png").write_bytes(sent)
    found = explain(client, sent, file="a 'quoted' name.png", **options)
    space: dict[str, Any] = {"own": own}
    exec(found["snippet"].replace("dt.load(…)", "own"), space)
    heat = client.post("/api/explanation.npz", params=options, content=sent)
    with np.load(io.BytesIO(heat.content)) as arrays:
        assert np.allclose(arrays["relevance"], space["e"].numpy()[0], rtol=1e-5, atol=1e-12)
        assert float(arrays["score"][0]) == pytest.approx(float(space["e"].score[0]))
        assert arrays["heatmap"].shape == arrays["relevance"].shape[1:]
        assert "layers" not in arrays or arrays["layer_entries"].shape == (len(arrays["layers"]), 4)
    picture = client.post("/api/heatmap.png", params=options, content=sent)
    assert picture.content == (tmp_path / "heatmap.png").read_bytes()


def test_digits(client: TestClient) -> None:
    found = explain(client, digits(), model="two-layer")
    assert found["classes"] == []
    assert found["target"] is None
    assert (found["heat"]["height"], found["heat"]["width"]) == (28, 56)
    assert found["notes"] == []
    assert found["account"]["input"] == pytest.approx(found["score"], rel=1e-4)


def test_notes_say_what_was_converted(client: TestClient) -> None:
    assert explain(client, png(1, mode="L"))["notes"] == ["the picture is grayscale; converted to RGB."]
    assert explain(client, png(1))["notes"] == []


# --- options ---------------------------------------------------------------------------------------------------------


def test_rules_are_words_and_numbers_and_never_code() -> None:
    assert parse("eps:0.25") == dt.rules.Epsilon(0.25)
    assert parse(" ab : 2 , 1 ") == dt.rules.AlphaBeta(2, 1)
    assert parse_rules("a.*=w2; b=c=flat;") == {"a.*": dt.rules.WSquare(), "b=c": dt.rules.Flat()}
    assert all(parse(symbol) == kind() for symbol, kind in RULES.items())
    assert all(
        parse(format_rule(rule)) == rule for rule in (*[kind() for kind in RULES.values()], dt.rules.ZBox(0.0, 1.0))
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exec", "no rule is called 'exec'"),
        ("eps:x", "only numbers may follow the colon"),
        ("eps:1,2", "takes 1 number"),
        ("z+:1", "takes 0 number"),
        ("eps:nan", "between 0 and a million"),
        ("eps:-1", "between 0 and a million"),
        ("ab:2", "needs 2 numbers"),
        ("ab:3,1", "alpha − beta = 1"),
        ("__import__('os')", "no rule is called"),
    ],
)
def test_rules_that_are_none(client: TestClient, text: str, said: str) -> None:
    with pytest.raises(dt.PlanError, match=re.escape(said)):
        parse(text)
    response = client.post("/api/explain", params={"model": OWN, "above": text}, content=png())
    assert response.status_code == 422
    assert said in response.json()["error"]


def test_the_command_is_quoted_for_the_shell(client: TestClient) -> None:
    file = "a'; rm -rf ~ #.png"
    said = explain(client, digits(), model="two-layer", file=file, rules="detection2=ab:2,1", above="eps:0.1")
    assert said["command"] == (
        "deeptaylor explain 'a'\"'\"'; rm -rf ~ #.png' --model two-layer --bias returned "
        "--rule detection2=ab:2,1 --rule sum_2=eps:0.1 --rule sum_1=eps:0.1"
    )
    dashed = explain(client, png(), file="--out", first="w2", target=1, max_pool="winner")["command"]
    assert dashed == (
        "deeptaylor explain ./--out --model … --target 1 --bias returned --max-pool winner --first w2"
    ).replace("…", "'…'")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "sensitivity"}, "deeptaylor compare picture.png --model m --methods sensitivity --target 3"),
        ({"method": "taylor"}, "deeptaylor compare picture.png --model m --methods taylor --target 3"),
        ({"method": "taylor", "level": 0.2}, "# There is no equivalent command; use the Python code."),
    ],
    ids=str,
)
def test_the_command_of_other_methods(options: dict[str, Any], said: str) -> None:
    assert command(ExplainOptions(model="m", **options), "m", {}, None, 3) == said


# --- many at once ---------------------------------------------------------------------------------------------------


def test_past_the_queue_is_429_and_places_come_back(
    client: TestClient, own: dt.Pretrained, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), explanations.PictureExplainer.explain

    def slow(self: Any, *given: Any) -> Any:
        assert go.wait(20)
        return real(self, *given)

    monkeypatch.setattr(explanations.PictureExplainer, "explain", slow)
    answers: list[int] = []

    def ask() -> None:
        answers.append(client.post("/api/explain", params={"model": OWN}, content=png()).status_code)

    threads = [threading.Thread(target=ask) for _ in range(BOUNDS.places + 3)]
    for thread in threads:
        thread.start()
    for _ in range(400):
        if len(answers) == 3:
            break
        time.sleep(0.01)
    assert answers == [429] * 3
    busy = client.post("/api/explain", params={"model": OWN}, content=png())
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
    go.set()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * BOUNDS.places + [429] * 3
    assert explain(client, png())["model"] == OWN


def test_a_network_is_prepared_before_its_first_picture(own: dt.Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(own), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        for _ in range(2):
            assert made.post(f"/api/models/{OWN}/prepare").json()["name"] == OWN
        assert (
            made.post("/api/explain", params={"model": OWN}, content=b"").status_code == 415
        )  # behind it in the queue
        monkeypatch.setattr(explanations, "Explainer", lambda *_, **__: pytest.fail("it is captured again"))
        assert explain(made, png(3))["model"] == OWN
        assert made.post("/api/models/one-layer/prepare").status_code == 409


def test_a_picture_that_is_kept_changes_no_answer(client: TestClient) -> None:
    """Another class of the same picture; then another picture, another network, and the first again."""
    gray = png(1, mode="L")
    first = explain(client, gray)
    assert explain(client, gray, target=0)["notes"] == first["notes"] == ["the picture is grayscale; converted to RGB."]
    other = explain(client, png(2))
    assert other["seen"] != first["seen"]
    assert other["notes"] == []
    assert explain(client, gray) == first


def test_explainers_kept_are_bounded(own: dt.Pretrained) -> None:
    made = explanations.PictureExplainer(10**6)
    for k in range(explanations.KEPT + 2):
        made.explain(own, png(), ExplainOptions(model=OWN, above=f"eps:0.{k + 1}"))
    assert len(made._kept) <= explanations.KEPT


# --- the command ----------------------------------------------------------------------------------------------------


def test_it_listens_on_this_machine_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_bind", lambda host, port: pytest.fail(f"it would listen on {host}"))
    assert main.main(["--host", "0.0.0.0"]) == 2
    assert "this machine alone" in capsys.readouterr().err


def test_an_unknown_network_or_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--model", "nothing"]) == 2
    assert "no network is called 'nothing', and there is no such file" in capsys.readouterr().err
    taken = main._bind("127.0.0.1", 0)
    try:
        assert main.main(["--port", str(taken.getsockname()[1])]) == 2
    finally:
        taken.close()
    assert "is not free" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(dt.DeepTaylorError, match=re.escape(how_to_install("web"))):
        main.serve()


# --- the built page -------------------------------------------------------------------------------------------------


STATIC, WEB = ROOT / "src" / "deeptaylor" / "app" / "server" / "static", ROOT / "web"


def test_the_page_was_built_from_the_sources_as_they_are() -> None:
    hashed = hashlib.sha256()
    source = WEB / "src"
    for name in sorted(p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()):
        hashed.update(name.encode() + b"\0" + (source / name).read_bytes() + b"\0")
    said = (STATIC / "sources.sha256").read_text().strip()
    assert said == hashed.hexdigest(), "web/src changed: build it with `npm ci && npm run build` in web/"


def test_building_gives_the_files_that_are_shipped(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip("the page is built with node and esbuild: `npm ci` in web/ installs it")
    subprocess.run([node, "build.mjs", str(tmp_path)], cwd=WEB, check=True, capture_output=True)
    built = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert built == {p.name: p.read_bytes() for p in STATIC.iterdir()}


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        found = re.findall(r"""(?:https?:)?//[\w.-]+\.\w+""", file.read_text(encoding="utf-8"))
        assert [address for address in found if "www.w3.org" not in address] == [], file.name
    assert "http" not in (WEB / "package-lock.json").read_text(encoding="utf-8")


# --- no word about this machine ---------------------------------------------------------------------------------------


class Sums(nn.Module):
    """An operation without a rule; the error says where it stands."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x.flatten(1)[:, :4], 1)


class Branching(nn.Module):
    """Cannot be captured; the error says where."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :4] if x.sum() > 0 else -x.flatten(1)[:, :4]


@pytest.mark.parametrize(("network", "said"), [(Sums(), "cumsum"), (Branching(), "cannot be captured")])
def test_errors_on_the_page_do_not_name_folders(network: nn.Module, said: str, own: dt.Pretrained) -> None:
    assert own.preparation is not None
    bad = dt.load(network.eval(), preparation=own.preparation, class_names=own.class_names)
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(bad), chosen=OWN, bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        asked = {"model": OWN, "method": "deep-taylor"}
        response = made.post("/api/explain", params=asked, content=png())
    assert response.status_code == 422
    words = response.json()["error"]
    assert said in words
    assert "test_server.py:" in words  # where it stands is said, in which folder is not
    assert str(ROOT) not in words
    assert str(Path.home()) not in words


def test_weights_that_cannot_be_had_do_not_name_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(_: str) -> None:
        raise dt.LoadError(f"weights.h5 cannot be kept in the cache folder {tmp_path / 'a cache'} (full)")

    monkeypatch.setattr("deeptaylor.app.server.models.load_pretrained", fail)
    app = make_app(frozenset({HOST}), TOKEN, models=OfferedNetworks(), bounds=BOUNDS)
    with TestClient(app, base_url=ORIGIN, headers={"X-Deeptaylor-Token": TOKEN}) as made:
        made.post("/api/models/mobilenet_v2/load")
        late = time.monotonic() + 10
        while (state := made.get("/api/models/mobilenet_v2").json())["state"] != "failed" and time.monotonic() < late:
            time.sleep(0.02)
    assert state["state"] == "failed"
    assert "weights.h5 cannot be kept" in state["message"]
    assert str(tmp_path) not in state["message"]


def test_other_words_stay() -> None:
    for text in ("0/0 and/or 1/2", "see https://example.org/a/b.html", "mean=0.485, std=0.229 / white", "conv/relu_1"):
        assert hide_folders(text) == text
    assert hide_folders(r"at C:\Users\jo\nets\mine.py:3: x") == "at mine.py:3: x"
    assert hide_folders(f"at {Path.cwd() / 'two words' / 'a.py'}:3") == f"at two words{os.sep}a.py:3"
