"""The MNIST report: every figure is there, its numbers are those of the saved arrays, a second run reuses them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS, OneLayer, TwoLayer, save_network
from deeptaylor.paper import measures, mnist, mnist_arrays
from deeptaylor.paper.digit_pairs import Digits, held_out_pairs
from deeptaylor.paper.experiment import ConsistencyError, Saved, Talk
from deeptaylor.paper.mnist_arrays import METHODS, shares
from deeptaylor.paper.mnist_numbers import check_consistent
from deeptaylor.paper.mnist_verdicts import judge_paper, judge_supplement
from deeptaylor.paper.verdicts import serialize_verdicts
from deeptaylor.viz.pages import Section, Table, render_report
from min_max_samples import fit_two_layer

pytest.importorskip("matplotlib")
pytest.importorskip("safetensors")

FIGURES = (
    *[f"figure{n}" for n in range(1, 10)],
    "figureS2",
    "figureS2_numbers",
    "figureS3",
    "figureS3_numbers",
    "min_max_fit",
    "root_points",
    "shares",
)

pytestmark = pytest.mark.slow  # a whole report, drawn
QUIET = Talk(quiet=True)


def bars(count: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Stand-ins for digits: a bar of its own row for every class, with noise around it."""
    labels = (np.arange(count) % 10).astype(np.uint8)
    images = np.random.default_rng(seed).integers(0, 40, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label + 4 : 2 * label + 6, 6:22] = 255
    return images, labels


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stand-ins for MNIST's files and for trained weights."""
    folder = tmp_path_factory.mktemp("inputs")
    parts = {"train": bars(40, 0), "t10k": bars(30, 1)}
    for part, (images, labels) in parts.items():
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *images.shape) + images.tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, len(labels)) + labels.tobytes())
    for name, network in PAPER_NETWORKS.items():
        save_network(network(seed=3), folder / f"{name}.safetensors", {"steps": "0"})
    pairs = held_out_pairs(Digits(*parts["train"], *parts["t10k"]), 40)
    model = fit_two_layer(TwoLayer(seed=3), pairs.images, steps=3)
    for name in paper_networks.RELEVANCE_MODELS:
        paper_networks.save_relevance_model(model, folder / f"{name}.safetensors", {"steps": "3"})
    return folder


@pytest.fixture(scope="module")
def out(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    assert mnist.main(command(inputs, folder)) == 0
    return folder


def command(inputs: Path, out: Path) -> list[str]:
    return ["--out", str(out), "--digits", str(inputs), "--weights", str(inputs), "--quick", "--pairs", "12"]


def arrays(out: Path, name: str) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(out / "arrays" / f"{name}.npz") as file:
        return dict(file)


def read(out: Path) -> Any:
    return json.loads((out / "numbers.json").read_text())


def test_the_report_holds_every_figure_and_nothing_from_elsewhere(out: Path) -> None:
    text = (out / "report.html").read_text()
    for name in FIGURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (out / f"{name}.svg").read_bytes()
        assert f"{name}.png" in text
    assert text.count("data:image/png;base64,") == len(FIGURES)
    assert "src=" not in text.replace('src="data:', "")
    assert "href=" not in text.replace('href="#', "")
    assert "nan" not in text.split("<main>")[1].split("data:image")[0]
    assert len(text) < 5e6
    for title in (*[f"Figure {n}" for n in range(1, 10)], "Figure S1", "Figure S2", "Figure S3", "Table 1", "Table 2"):
        assert title in text
    for row in (
        "𝒳 = ℝᵈ<",
        "𝒳 = ℝᵈ₊, 𝓑",
        "nearest root on 𝒳",
        "conservative",
        "positive",
        "consistent",
        "unique",
        "fast",
    ):
        assert row in text.split("Table 1 (section III)")[1].split("</table>")[0]
    for row in ("consistent", "unique solution", "training-free", "fast computation"):
        assert row in text.split("Table 2 (section IV)")[1].split("</table>")[0]
    for methods in METHODS.values():
        for method in methods:
            assert method.title in text
    assert not list(out.rglob("*.part"))


def test_a_second_run_reuses_the_arrays(
    out: Path, inputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures would be drawn again: that takes its time, and they are not what is asked here.
    monkeypatch.setattr(mnist, "draw", lambda *_: {name: out / f"{name}.png" for name in FIGURES})
    before = {p: p.stat().st_mtime_ns for p in (out / "arrays").iterdir()}
    numbers = (out / "numbers.json").read_bytes()
    assert mnist.main(command(inputs, out)) == 0
    assert {p: p.stat().st_mtime_ns for p in (out / "arrays").iterdir()} == before
    assert (out / "numbers.json").read_bytes() == numbers
    said = capsys.readouterr()
    assert "0 of the arrays were computed" in said.err
    assert said.out.splitlines()[-2:] == [str(out / "report.html"), str(out / "numbers.json")]


def test_the_numbers_are_those_of_the_arrays(out: Path) -> None:
    """Recomputed plainly, pair by pair, by code that shares nothing with the report's."""
    numbers, pairs = read(out), arrays(out, "pairs")
    for network, methods in METHODS.items():
        for method in methods:
            a, found = arrays(out, f"{network}-{method.key}"), numbers["methods"][network][method.key]
            R, f = a["maps"].astype(float), a["score"]
            gaps, halves, inks, with_target, without = [], [], [], [], []
            for r, score, side, image in zip(R, f, pairs["side"], pairs["images"][:, 0], strict=True):
                if score > 0:
                    gaps.append(abs(r.sum() - score) / score)
                (with_target if side >= 0 else without).append(abs(r).sum())
                if side >= 0 and score > 0:
                    half = slice(0, 28) if side == 0 else slice(28, 56)
                    positive = np.maximum(r, 0)
                    halves.append(positive[:, half].sum() / positive.sum())
                    inks.append(positive[:, half][image[:, half] > 0.5].sum() / positive.sum())
            assert found["conservation_gap"]["worst"] == pytest.approx(max(gaps), rel=1e-3, abs=1e-12)
            detected = [g for g, score in zip(gaps, f[f > 0], strict=True) if score > 50]
            assert found["conservation_gap"]["worst_detected"] == pytest.approx(max(detected), rel=1e-3, abs=1e-12)
            assert found["conservation_gap"]["median"] == pytest.approx(np.median(gaps), rel=1e-3, abs=1e-12)
            assert found["negative_share"] == pytest.approx(-R[R < 0].sum() / abs(R).sum(), abs=1e-9)
            assert found["kept"] == pytest.approx(R.sum() / f.sum())
            assert found["on_half"]["mean"] == pytest.approx(np.mean(halves))
            assert found["on_half"]["low"] <= found["on_half"]["mean"] <= found["on_half"]["high"]
            assert found["on_ink"]["mean"] == pytest.approx(np.mean(inks))
            assert found["without_target"]["all"] == pytest.approx(np.mean(without) / np.mean(with_target))
            assert found["time_in_gradients"] == pytest.approx(float(a["seconds"] / a["gradient_seconds"]))
    R_k, predicted = arrays(out, "two-layer-relevance")["R_k"], arrays(out, "two-layer-min-max")["predicted"]
    expected = 1 - ((predicted - R_k) ** 2).sum() / ((R_k - R_k.mean()) ** 2).sum()
    assert numbers["min_max"]["r_squared"] == pytest.approx(expected, rel=1e-5)
    ratio = arrays(out, "roots-zB")["ratio"]
    assert numbers["roots"]["zB"]["median"] == pytest.approx(np.median(ratio))
    assert numbers["roots"]["zB"]["neurons"] == len(ratio) > 100


def test_the_scores_are_those_of_the_networks(out: Path) -> None:
    x = torch.from_numpy(arrays(out, "pairs")["images"]).double()
    for name, network in PAPER_NETWORKS.items():
        f = network(seed=3).double()(x).detach().numpy()
        for method in METHODS[name]:
            np.testing.assert_allclose(arrays(out, f"{name}-{method.key}")["score"], f, rtol=1e-12)
    explainer = dt.Explainer(OneLayer(seed=3).double(), x[:2], domain=dt.Box(-0.5, 1.5), bias="neuron")
    maps = explainer.explain(x).relevance[:, 0].numpy()
    np.testing.assert_allclose(arrays(out, "one-layer-zB")["maps"], maps, rtol=1e-6, atol=1e-9)


def test_units_that_never_fire_are_counted(out: Path) -> None:
    """Of a network whose first two units have weights of zero and a bias below it."""
    network = OneLayer(seed=3)
    with torch.no_grad():
        network.detection.weight[:2] = 0
        network.detection.bias[:2] = -1
    pairs = held_out_pairs(Digits(*bars(20, 0), *bars(20, 1)), 30)
    found = mnist_arrays.count_silent(mnist_arrays.DigitNetwork("one-layer", network), pairs)
    fires = (pairs.images.flatten(1) @ network.detection.weight.T + network.detection.bias > 0).any(0)
    assert found["silent"].tolist() == [int((~fires).sum())]
    assert found["silent"][0] >= 2
    assert found["units"].tolist() == [400]
    text = " ".join((out / "report.html").read_text().split())
    q = read(out)["quality"]
    assert f"one-layer: {q['one-layer']['silent']['silent'][0]} of 400; two-layer: " in text
    assert "Our guided training of the min-max model pulls v_ij" in text


def test_deep_taylor_maps_are_consistent(out: Path) -> None:
    for name in ("one-layer-w2", "one-layer-zB", "two-layer-training-free"):
        a = arrays(out, name)
        assert (a["maps"] >= 0).all()
        np.testing.assert_allclose(a["maps"].sum((1, 2), dtype=float), a["score"], rtol=1e-6)
    assert (arrays(out, "two-layer-min-max")["maps"] >= 0).all()
    a = arrays(out, "one-layer-sensitivity")
    assert a["maps"].sum(dtype=float) == pytest.approx(a["score"].sum(), rel=1e-6)


def test_roots_are_measured_against_the_nearest(out: Path) -> None:
    roots = read(out)["roots"]
    assert (roots["w2"]["least"], roots["w2"]["most"]) == pytest.approx((1, 1), abs=1e-6)
    assert roots["w2-in-box"]["outside"] > 0.5
    assert roots["zB"]["least"] > 1
    assert roots["zB"]["outside"] == 0
    assert roots["zplus"]["least"] >= 1 - 1e-9
    # No search beats the bound, and ours comes near it.
    bound = arrays(out, "one-layer-certified")
    assert (bound["found"] >= bound["least"] * (1 - 1e-9)).all()
    assert roots["taylor"]["most"] < 1.05
    assert read(out)["smooth_taylor"]["one-layer"]["negative_share"] < 1e-3


def test_verdicts_are_those_of_the_numbers_and_none_is_met_blindly(out: Path) -> None:
    found = read(out)
    judged = serialize_verdicts([*judge_paper(found), *judge_supplement(found)])
    assert [(v["quote"], v["holds"]) for v in found["verdicts"]] == [(v["quote"], v["holds"]) for v in judged]
    for verdict in found["verdicts"]:
        assert verdict["reason"]
        for criterion in verdict["criteria"]:
            assert criterion["measured"]
            assert criterion["uninformed"]
            assert criterion["decides"] or verdict["joint"] or verdict["holds"] != "yes"
    text = (out / "report.html").read_text()
    assert text.count("Our weights, trained by the paper&#x27;s recipe") == len(judged)


def test_rules_outside_of_their_domain_by_hand() -> None:
    """w = (1, 1), b = 0, x = (2, −1) doubled to (4, −2), box [0, 1]: q = x w − 0 = (4, −2), R_j = 2, R_i = (4, −2)."""
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 1.0]]))
        layer.bias.fill_(0)
    x = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    found = mnist_arrays.beyond(layer, x, dt.Box(0.0, 1.0))
    assert float(found["zB"]) == pytest.approx(1 / 3)
    assert float(found["w2"]) == 0


def test_roots_of_the_two_layer_network_are_the_nearest_of_several(out: Path) -> None:
    text = " ".join((out / "report.html").read_text().split())
    assert "from 104 pictures with parts blackened a few cheap steps are taken" in text
    assert "That there is none nearer, nothing here certifies" in text
    taylor, again = arrays(out, "two-layer-taylor"), arrays(out, "two-layer-restarts")
    there = (arrays(out, "pairs")["side"] >= 0) & (taylor["score"] > 0)
    nearest = taylor["distance"][there][: len(again["alone"])]
    assert (nearest <= again["alone"] * (1 + 1e-4)).all()


def test_a_report_that_is_not_consistent_is_refused(out: Path) -> None:
    found = read(out)
    check_consistent(found)
    found["methods"]["one-layer"]["zB"]["conservation_gap"]["worst"] = 2e-5
    with pytest.raises(ConsistencyError, match=r"one-layer, Deep Taylor \(zB\): the conservation gap is up to 2"):
        check_consistent(found)
    found = read(out)
    found["methods"]["two-layer"]["training-free"] |= {"negative_pixels": 3, "lowest": -0.5}
    with pytest.raises(ConsistencyError, match=r"training-free\): 3 pixels are negative, down to -5.00e-01"):
        check_consistent(found)


def test_the_root_of_one_neuron_by_hand() -> None:
    """f = max(0, x₁ + x₂ − 1) at (1.5, 0.5), box [−0.5, 1.5].

    Nearest: (1, 0), √½ away, which w² finds. zB searches towards (−0.5, −0.5): v = (2, 1), t = −1/3, √5 / 3 away.
    """
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.fill_(1)
        layer.bias.fill_(-1)
    x = torch.tensor([[1.5, 0.5]], dtype=torch.float64)
    box = dt.Box(-0.5, 1.5)
    zb = mnist_arrays.per_neuron(dt.rules.ZBox(-0.5, 1.5), layer, x, box, QUIET)
    assert zb["ratio"] == pytest.approx(np.array([5**0.5 / 3 / 0.5**0.5]))
    w2 = mnist_arrays.per_neuron(dt.rules.WSquare(), layer, x, dt.Real(), QUIET)
    assert w2["ratio"] == pytest.approx(np.ones(1))
    assert not mnist_arrays.per_neuron(dt.rules.WSquare(), layer, -x / 10, dt.Real(), QUIET)["ratio"].size


def test_measures_by_hand() -> None:
    R = np.zeros((2, 28, 56))
    R[0, 10, 5], R[0, 10, 40], R[0, 0, 0], R[0, 20, 20] = 6, 2, 2, -1
    f = np.array([10.0, 0.0])
    assert measures.conservation_gap(R, f).tolist() == [0.1]
    assert measures.kept(R, f) == 0.9
    assert measures.negative_share(R) == pytest.approx(1 / 11)
    assert str(measures.negative_share(np.abs(R))) == "0.0"  # not −0
    left = np.broadcast_to(np.arange(56) < 28, R.shape)
    assert measures.on(R, left)[0] == 0.8
    assert np.isnan(measures.on(R, left)[1])
    assert measures.on(R, measures.frame())[0] == 0.2
    ink = np.zeros(R.shape, dtype=bool)
    ink[0, 10, 5:9] = True
    assert measures.coverage(R, ink)[0] == 0.25
    assert measures.spread(R, 0 * R)[0] == 2
    assert measures.spread(R, R)[0] == 0
    assert measures.r_squared(np.array([0.0, 1.0]), np.array([0.0, 2.0])) == 0.5
    whole = measures.bootstrap_pairs(np.array([1.0, 1.0, np.nan]))
    assert whole == {"mean": 1, "low": 1, "high": 1, "pairs": 2}
    assert measures.bootstrap_pairs(np.arange(100.0))["low"] == pytest.approx(49.5 - 1.96 * 28.9 / 10, abs=0.7)


def test_shares_without_a_target_are_not_numbers() -> None:
    digits = Digits(*bars(20, 0), *bars(20, 1))
    pairs = held_out_pairs(digits, 20)
    found = shares(np.ones((20, 28, 56), dtype=np.float32), pairs)
    there = pairs.side.numpy() >= 0
    assert np.isnan(found["half"][~there]).all()
    np.testing.assert_allclose(found["half"][there], 0.5)


def test_saved_arrays_are_made_again_when_settings_change_or_the_file_is_damaged(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"a": np.arange(3)}

    saved = Saved(tmp_path, QUIET)
    for settings in ({"k": 1}, {"k": 1}, {"k": 2}):
        assert saved.get("x", settings, make)["a"].tolist() == [0, 1, 2]
    assert len(made) == saved.computed == 2
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:100])
    assert saved.get("x", {"k": 2}, make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 3
    Saved(tmp_path, QUIET, again=True).get("x", {"k": 2}, make)
    assert len(made) == 4


def test_errors_say_what_to_do(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = command(inputs, tmp_path / "out")
    for change, text in (
        (["--pairs", "0"], "--pairs is the number of pairs to explain, at least 1; got 0."),
        (["--pairs", "1"], "1 pairs are too few: some must have a target digit and some not."),
        (["--digits", str(tmp_path / "none")], f"{tmp_path / 'none'} is not a folder"),
        (["--weights", str(tmp_path)], "no weights could be read from"),
    ):
        assert mnist.main([*good, *change]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"error: {text}" in said.err
    (tmp_path / "file").write_text("")
    assert mnist.main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_a_page_escapes_its_texts() -> None:
    names = "abcdefghij"
    t, lead, s, p, caption, head, row, cell, said, foot = (f"<x{name}>" for name in names)
    text = render_report(t, [lead], [Section(s, [p, Table(caption, (head,), [(row, (cell, said))])])], foot)
    for name in names:
        assert f"&lt;x{name}&gt;" in text
        assert f"<x{name}>" not in text
