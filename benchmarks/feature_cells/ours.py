"""deeptaylor."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor.methods.attnlrp import attnlrp
from feature_cells import networks as nets
from feature_cells.cell import (
    Cell,
    alike,
    error_of,
    fitted,
    gap,
    no,
    nowhere,
    part,
    pickled,
    shape,
    untouched,
    without_demo,
    yes,
)  # fmt: skip

DISTRIBUTION = "deeptaylor"
PREPARATION = dt.Preparation(
    size=32, resize=36, channels="RGB", white=1, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation="bilinear"
)
OPTIONS = [
    "--size",
    "32",
    "--resize",
    "36",
    "--channels",
    "RGB",
    "--white",
    "1",
    "--mean",
    "0",
    "--std",
    "1",
    "--interpolation",
    "bilinear",
]
BOX = dt.Box(0, 1)


def pretrained() -> dt.Pretrained:
    return dt.load(nets.picture_net(), preparation=PREPARATION, class_names=nets.NAMES)


def explained() -> dt.Explanation:
    return dt.explain(nets.picture_net(), nets.pictures(), domain=BOX)


def onnx_file(folder: Path) -> Path:
    path = folder / "network.onnx"
    with redirect_stdout(io.StringIO()):
        torch.onnx.export(nets.picture_net(), (nets.pictures(),), str(path), verbose=False)
    return path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "deeptaylor", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def for_command(folder: Path) -> list[str]:
    """The network as the command takes it."""
    onnx_file(folder)
    (folder / "names.txt").write_text("\n".join(nets.NAMES), encoding="utf-8")
    return ["--model", "network.onnx", *OPTIONS, "--class-names", "names.txt"]


# --- what can be explained --------------------------------------------------------------------------------------------


def functional() -> Cell:
    modules = dt.explain(nets.Residual(torch.nn.ReLU(), nets.Add()), nets.table(), 1, dt.NonNegative())
    functions = dt.explain(nets.Residual(), nets.table(), 1, dt.NonNegative())
    difference = gap(modules.relevance, functions.relevance)
    assert difference < 1e-6
    return yes("reads the exported graph", f"largest difference {difference:.1e} of the largest relevance")


def attention() -> Cell:
    network, x = nets.Transformer(), nets.pictures()
    explainer = dt.Explainer(network).make_unplanned()
    e, secants = dt.explain(network, x, domain=BOX), explainer.between(x, torch.zeros_like(x))
    of_others = attnlrp(explainer, x)
    assert all(found.check().accounted for found in (e, secants, of_others))
    return yes(
        "`between`, `attnlrp`; deep Taylor: attention weights as constants",
        f"{shape(e.relevance)}, {shape(secants.relevance)}, {shape(of_others.relevance)}; all accounted for",
    )


def two_inputs() -> Cell:
    e = dt.explain(nets.TwoInputs(), (nets.pictures(), nets.table()), domain=(BOX, dt.NonNegative()))
    return yes("a map for each", ", ".join(shape(r) for r in e.relevance))


def data_flow() -> Cell:
    x = nets.pictures()
    said = error_of(lambda: dt.explain(nets.Branching(), x, domain=BOX))
    e = dt.explain(dt.as_taken(nets.Branching(), x), x, domain=BOX)
    return yes(
        "`dt.as_taken`: the way it took", f"by itself: {said}; as taken: {shape(e.relevance)}, {e.check().conservative}"
    )


def any_function() -> Cell:
    from sklearn.ensemble import RandomForestRegressor

    e = dt.load(fitted(), domain=BOX).explainer().explain(np.eye(6)[5:])
    assert abs(float(e.score) - float(fitted().predict(np.eye(6)[5:])[0])) < 1e-10
    rows = np.random.default_rng(0).random((40, 6))
    forest = RandomForestRegressor(2, random_state=0).fit(rows, rows.sum(1))
    b = dt.shapley(forest.predict, rows[:1], rows.mean(0))
    assert b.check().accounted
    return yes(
        "`dt.shapley`: any function, by captum; `dt.load`: linear models, MLPs", f"{shape(e.relevance)}; {b.ledger}"
    )


def onnx_files() -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        p = dt.load(str(onnx_file(Path(folder))), preparation=PREPARATION, class_names=nets.NAMES)
    e = dt.explain(p, nets.pictures())
    difference = gap(explained().relevance, e.relevance)
    assert difference < 1e-4
    return yes("`dt.load`", f"{shape(e.relevance)}; difference to the network in memory {difference:.1e}")


def clips() -> Cell:
    e = dt.explain(nets.clip_net(), nets.clip(), domain=BOX)
    return yes("`dt.explain`", shape(e.heatmap()))


def segmentation() -> Cell:
    e = dt.explain(nets.Segmenting(), nets.pictures(), lambda out: out[:, 1, 8:16, 8:16].sum((1, 2)), BOX)
    return yes("any function of the output", shape(e.relevance))


def generated_text() -> Cell:
    network, tokenizer = nets.language_model()
    e = dt.explain(dt.load(network, tokenizer=tokenizer), " ".join(nets.WORDS), continuation="very good")
    assert e.check().accounted
    return yes("`dt.explain(…, continuation=…)`", f"{shape(e.relevance)}; {e.sentence()}")


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    e = dt.explain(nets.picture_net(), nets.pictures(), torch.tensor([[0, 1, 2]]), BOX)
    assert e.relevance.shape[:2] == (1, 3)
    return yes("in one pass", shape(e.relevance))


def rather_than() -> Cell:
    explainer = dt.Explainer(nets.picture_net(), nets.pictures(), BOX)
    first, second = nets.picture_net()(nets.pictures())[0].topk(2).indices.tolist()
    e = explainer.explain(nets.pictures(), dt.margin(first, second))
    c = explainer.contrast(nets.pictures(), first, against=second)
    return yes("`dt.margin`, `contrast`", f"margin: {shape(e.relevance)}; contrast: {shape(c.relevance)}")


def reference() -> Cell:
    b = dt.Explainer(nets.picture_net(), nets.pictures(), BOX).between(nets.pictures(), "mean", 0)
    assert b.check().accounted
    return yes("`explainer.between`: one or several", f"{shape(b.relevance)}; {b.ledger.sentence()}")


def inner_layer() -> Cell:
    return yes("`e.at`, by name", shape(explained().at("relu2")))


def one_unit() -> Cell:
    e = dt.explain(nets.picture_net(), nets.pictures(), dt.unit("relu1", 2, "max"), BOX)
    total, score = float(e.relevance.sum()), float(e.score)
    assert score > 0
    assert abs(total - score) < 1e-5 * score
    seen = f"{shape(e.relevance)}; activation {score:.4f}, the map sums to {total:.4f}"
    return yes("`target=dt.unit(layer, c)`", seen)


def class_names() -> Cell:
    with tempfile.TemporaryDirectory() as folder:
        e = dt.explain(pretrained(), nets.photograph(Path(folder)), target="class 2")
    return yes('`target="tabby"`', f"titles {e.titles}")


def smoothed() -> Cell:
    explainer = dt.Explainer(nets.picture_net(), nets.pictures(), BOX)
    e = dt.average_copies(explainer, nets.pictures(), copies=8)
    altered = dt.average_copies(explainer, nets.pictures(), copies=3, alter=lambda x, k: x / (k + 1))
    assert e.check().accounted
    assert altered.check().accounted
    said = f"{shape(e.relevance)}, {e.mean_of}; {altered.mean_of}; ledgers add up to the mean score"
    return yes("`dt.average_copies`", said)


def concepts() -> Cell:
    explainer = dt.Explainer(nets.picture_net(), nets.pictures(), BOX)
    e = explainer.explain(nets.pictures())
    c = e.channels("relu2")
    parts = c.maps(range(c.at.shape[1]))
    difference = gap(e.relevance, sum(part.relevance for part in parts) + c.past_map().relevance)
    assert difference < 1e-5
    found = dt.channel_examples(explainer, [nets.pictures()], "relu2", [c.top(1)[0][0]])
    crops = found.crops(c.top(1)[0][0])
    return yes(
        "`e.channels`: the channels of a layer",
        f"{len(parts)} channels; their maps sum to the whole but for {difference:.1e}; "
        f"{len(crops)} crop(s) of examples",
    )


def training_data() -> Cell:
    x, labels = torch.rand(20, 6), torch.arange(20) % 3
    explainer = dt.Explainer(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    found = dt.examples(explainer, x[:1], (x, labels), target=labels[:1])
    assert found.proponent_values[0, 0] > 0 > found.opponent_values[0, 0]
    return yes("`dt.examples`: last layer, by captum", f"{found.proponents.tolist()}")


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    e = dt.explain(nets.picture_net(), nets.pictures(), domain=BOX, bias="neuron")
    ledger = e.ledger
    total = float(ledger.input + ledger.bias + ledger.dropped)
    assert abs(total - float(e.score)) < 1e-4 * float(e.score)
    return yes("ledger, node by node", str(ledger).replace("\n", "; "))


def asks() -> Cell:
    check = explained().check(faithful=True)
    assert "Faithful" in str(check)
    return yes("`e.check(faithful=True)`", str(check).splitlines()[-1])


def judged() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        found = dt.evaluate(pretrained(), nets.photographs(Path(name)), ["deep Taylor", "random"])
    i = found.of("flipping", "deep Taylor").interval
    return yes("`dt.evaluate`", f"deep Taylor by flipping: {i.mean:.3f} [{i.low:.3f}, {i.high:.3f}]")


def leaves() -> Cell:
    return untouched(lambda n: dt.explain(n, nets.pictures(), domain=BOX), nets.picture_net(), "never written to")


# --- pictures ---------------------------------------------------------------------------------------------------------


def figure() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        drawn = dt.explain(pretrained(), nets.photograph(Path(name))).plot()
    return yes("`e.plot()`", f"a figure with {len(drawn.axes)} axes: photograph, heatmap, overlay, colour bar")


def files() -> Cell:
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    with tempfile.TemporaryDirectory() as name:
        for ending, start in starts.items():
            written = explained().save(Path(name) / f"map.{ending}")
            assert written.read_bytes().startswith(start)
    return yes("`e.save`", "PNG, PDF and SVG, each begins as its kind does")


def own_resolution() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        path = nets.photograph(Path(name))
        e = dt.explain(pretrained(), path)
        e.save(Path(name) / "over.png", overlay=True)
        drawn, wanted = e.overlay(original=True).shape[:2], Image.open(path).size[::-1]
    assert drawn == wanted
    return yes(
        "`e.save(overlay=True)`", f"photograph and overlay have {wanted[1]} × {wanted[0]} pixels; the network 32"
    )


def tokens() -> Cell:
    drawn = dt.explain(nets.Reader(), nets.embedded()).tokens(nets.WORDS)
    html = drawn._repr_html_()
    assert all(word in html for word in nets.WORDS)
    return yes("`e.tokens(words)`", f"HTML of {len(html)} characters with all words")


def bars() -> Cell:
    drawn = dt.explain(nets.table_net(), nets.table(), domain=dt.NonNegative()).bars([f"feature {k}" for k in range(6)])
    assert "feature 3" in str(drawn)
    return yes(
        "`e.bars(names)`", f"text of {len(str(drawn).splitlines())} lines; figure with {len(drawn.figure().axes)} axes"
    )


def curves() -> Cell:
    drawn = dt.explain(nets.signal_net(), nets.signal()).curve(nets.signal()[0], axis=())
    return yes("`e.curve(signal)`", f"a figure with {len(drawn.axes)} axes")


def slices() -> Cell:
    e = dt.explain(nets.clip_net(), nets.clip(), domain=BOX)
    drawn = e.volume(nets.clip()[0].mean(0), slices=6)
    return yes("`e.volume()`", f"a figure with {len(drawn.axes)} axes")


def notebook() -> Cell:
    return yes("`e`", f"_repr_html_ of {len(explained()._repr_html_())} characters, with pictures and check")


def interactive() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        e = dt.explain(pretrained(), nets.photograph(Path(name)))
        text = e.save(Path(name) / "map.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert all(part in text for part in ('type="range"', "pointermove", "keydown"))
    return yes('`e.save("map.html")`', f"a page of {len(text)} characters, with its program; it may load nothing")


def video_file() -> Cell:
    return no("has none", nowhere("deeptaylor", "mp4", "videowriter", "ffmpeg"))


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        e = dt.explain(pretrained(), str(nets.photograph(Path(name))))
    return yes('`dt.explain(p, "cat.jpg")`', shape(e.heatmap()))


def as_command() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done = command(folder, "explain", nets.photograph(folder).name, *for_command(folder), "--out", "out")
        written = sorted(p.suffix for p in (folder / "out").rglob("*") if p.is_file() and p.suffix)
    return yes("`deeptaylor explain`", f"wrote {', '.join(written)}; said {done.stdout.splitlines()[0]!r}")


def page() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [sys.executable, "-m", "deeptaylor", "serve", *for_command(folder)]
        process = subprocess.Popen(started, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = ""
            assert process.stdout is not None
            while not (found := re.search(r"http://\S+", said)):
                line = process.stdout.readline()
                assert line, said
                said += line
            with urllib.request.urlopen(found[0], timeout=30) as answer:
                html = answer.read().decode()
        finally:
            process.terminate()
            process.wait()
    assert "<html" in html.lower()
    return yes("`deeptaylor serve`", f"the page answered with {len(html)} characters of HTML")


def report() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nets.photographs(folder / "photos")
        command(folder, "explain", "photos", *for_command(folder), "--out", "out")
        html = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert html.count("<img") >= 6
    return yes("`report.html` of `explain`", f"six photographs, {html.count('<img')} pictures on one page")


def compiled() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    plain = dt.Explainer(network, x, BOX)
    faster = dt.Explainer(network, x, BOX).compile()
    difference = gap(plain(x)[1], faster(x)[1])
    assert difference < 1e-3
    return yes("`explainer.compile()`", f"difference to the plain call {difference:.1e}")


def bfloat16() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    narrow = dt.Explainer(network, x, BOX).to("cpu", torch.bfloat16)(x.bfloat16())[1]
    return yes("`explainer.to(…)`", f"correlation with float32 {alike(explained().relevance, narrow):.4f}")


def exported() -> Cell:
    from deeptaylor.models.onnx.exporter import export_explainer

    explainer = dt.Explainer(nets.picture_net(), nets.pictures(), BOX)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        made = export_explainer(explainer, nets.pictures(), Path(name) / "explainer.onnx")
    return yes("`deeptaylor export`", f"{made.size} bytes; onnxruntime differs by {made.relevance_gap:.1e}")


def saved_answer() -> Cell:
    e = explained()
    assert torch.equal(pickled(e).relevance, e.relevance)
    return yes("`pickle`", "the same relevance after reading it again")


def saved_explainer() -> Cell:
    explainer = dt.Explainer(nets.picture_net(), nets.pictures(), BOX)
    again = pickled(explainer).explain(nets.pictures())
    assert torch.equal(again.relevance, explained().relevance)
    return yes("`pickle`", "the same map after reading it again")


def hosted() -> Cell:
    missing = without_demo("deeptaylor")
    root = Path(__file__).resolve().parents[2]
    assert "\nsite:" in (root / "Makefile").read_text(encoding="utf-8")
    assert (root / "tests/app/server/browser/test_browser_live.py").is_file()
    shown = "`make site` builds it; hosting is one push away"
    return part(shown, f"none is hosted ({missing}); `make browser` tries the page in Chromium with the network off")


CELLS: dict[str, Any] = {"untouched": leaves, "command": as_command}
