"""SHAP."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import shap
import shap.benchmark
import torch
from PIL import Image
from torch import Tensor, nn

from feature_cells import networks as nets
from feature_cells.cell import (
    Cell,
    alike,
    error_of,
    fitted,
    gap,
    no,
    not_exported,
    nowhere,
    part,
    pickled,
    saved_figure,
    shape,
    untouched,
    without_command,
    yes,
)  # fmt: skip

DISTRIBUTION = "shap"


def expected(network: Any, x: Any, **kw: Any) -> Any:
    """Expected gradients against a black background; the same random numbers in every call."""
    background = [torch.zeros_like(t) for t in x] if isinstance(x, list) else torch.zeros_like(x)
    made = shap.GradientExplainer(network, background, local_smoothing=kw.pop("local_smoothing", 0))
    return made.shap_values(x, nsamples=20, rseed=0, **kw)


def score(pictures: np.ndarray) -> np.ndarray:
    """The picture network as a function of arrays (pictures, height, width, channels), of whatever size."""
    x = torch.nn.functional.interpolate(torch.from_numpy(pictures).float().permute(0, 3, 1, 2), (32, 32))
    with torch.no_grad():
        return nets.picture_net()(x).numpy()


def array() -> np.ndarray:
    return nets.pictures().permute(0, 2, 3, 1).numpy()


def partitioned(pictures: np.ndarray, **kw: Any) -> Any:
    """Shapley values of parts of a picture, against the picture out of focus; the model is a function."""
    masker = shap.maskers.Image("blur(8,8)", pictures.shape[1:])
    return shap.Explainer(score, masker, output_names=nets.NAMES)(pictures, max_evals=60, silent=True, **kw)


def words() -> Any:
    """A text of four words: the score is the length of all that is not hidden."""

    def score_of(texts: Any) -> np.ndarray:
        return np.array([[float("good" in t), 0.1 * len(t)] for t in texts])

    masker = shap.maskers.Text(r"\W+")
    return shap.Explainer(score_of, masker, output_names=["good", "long"])([" ".join(nets.WORDS)], silent=True)


def first_score(rows: Any) -> np.ndarray:
    """The first score of the table's network as a function of arrays."""
    with torch.no_grad():
        return nets.table_net()(torch.from_numpy(np.asarray(rows)).float()).numpy()[:, 0]


def tabular() -> Any:
    names = [f"feature {k}" for k in range(6)]
    return shap.Explainer(first_score, np.zeros((1, 6)), feature_names=names)(nets.table().numpy(), silent=True)


# --- what can be explained --------------------------------------------------------------------------------------------


def functional() -> Cell:
    x = nets.table()
    modules, functions = (expected(n, x) for n in (nets.Residual(nn.ReLU(), nets.Add()), nets.Residual()))
    assert gap(modules, functions) < 1e-6
    lift = [shap.DeepExplainer(n, torch.zeros_like(x)).shap_values(x, check_additivity=False)
            for n in (nets.Residual(nn.ReLU(), nets.Add()), nets.Residual())]  # fmt: skip
    return part(
        "gradients and functions; not `DeepExplainer`",
        f"largest difference: GradientExplainer {gap(modules, functions):.1e}, DeepExplainer {gap(*lift):.1e}",
    )


def attention() -> Cell:
    found = expected(nets.Transformer(), nets.pictures())
    said = error_of(lambda: shap.DeepExplainer(nets.Transformer(), nets.pictures() * 0).shap_values(nets.pictures()))
    return yes("`GradientExplainer` …; not `DeepExplainer`", f"{shape(found)}; DeepExplainer: {said}")


def two_inputs() -> Cell:
    found = expected(nets.TwoInputs(), [nets.pictures(), nets.table()])
    return yes("a map for each", ", ".join(shape(t) for t in found))


def data_flow() -> Cell:
    return yes("runs the network as it is", shape(expected(nets.Branching(), nets.pictures())))


def any_function() -> Cell:
    from sklearn.tree import DecisionTreeRegressor

    found = shap.Explainer(fitted().predict, np.eye(6))(nets.table().numpy(), silent=True)
    tree = shap.TreeExplainer(DecisionTreeRegressor().fit(np.eye(6), np.arange(6.0))).shap_values(np.eye(6))
    said = f"a LinearRegression of scikit-learn: {shape(found.values)}; a tree: {shape(tree)}"
    return yes("any function; trees exactly", said)


def onnx_files() -> Cell:
    return no("has none", nowhere("shap", "onnx"))


def clips() -> Cell:
    return yes("`GradientExplainer`", shape(expected(nets.clip_net(), nets.clip())))


def segmentation() -> Cell:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = nets.Segmenting()

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)[:, 1, 8:16, 8:16].sum((1, 2))[:, None]

    return yes("any function of the output", shape(expected(Summed(), nets.pictures())))


def generated_text() -> Cell:
    network, tokenizer = nets.language_model()
    network.config.is_decoder = True
    network.config.task_specific_params = {
        "text-generation": {"do_sample": False, "min_new_tokens": 2, "max_new_tokens": 2}
    }
    found = shap.Explainer(network, tokenizer)([" ".join(nets.WORDS)], silent=True)
    return yes("`Explainer(model, tokenizer)`", f"{shape(found.values)}")


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    found = expected(nets.picture_net(), nets.pictures())
    assert found.shape[-1] == 5
    return yes("all, or `ranked_outputs=`", shape(found))


def rather_than() -> Cell:
    found = shap.Explainer(lambda x: score(x)[:, 1] - score(x)[:, 0], shap.maskers.Image("blur(8,8)", (32, 32, 3)))
    return yes("any function of the output", shape(found(array(), max_evals=60, silent=True).values))


def reference() -> Cell:
    grey = torch.full_like(nets.pictures(), 0.5)
    found = shap.GradientExplainer(nets.picture_net(), grey).shap_values(nets.pictures(), nsamples=20)
    return yes("the background: one input or many", shape(found))


def inner_layer() -> Cell:
    network = nets.picture_net()
    found = shap.GradientExplainer((network, network.conv2), nets.pictures() * 0).shap_values(
        nets.pictures(), nsamples=5
    )
    return yes("`(model, layer)`, by module", shape(found))


def one_unit() -> Cell:
    return no("only where you cut the network", nowhere("shap.explainers", "neuron_selector", "neuron index"))


def class_names() -> Cell:
    found = words()[0, :, "good"]
    return yes("`output_names=`, then by name", shape(found.values))


def smoothed() -> Cell:
    return yes("`local_smoothing=`", shape(expected(nets.picture_net(), nets.pictures(), local_smoothing=0.1)))


def concepts() -> Cell:
    return no("has none", nowhere("shap", "tcav", "concept activation", "factorization"))


def training_data() -> Cell:
    return no("has none", nowhere("shap", r"\btracin\b", "influence function"))


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    found = partitioned(array())
    total = float(found.values[..., 0].sum() + np.ravel(found.base_values[..., 0])[0])
    assert abs(total - score(array())[0, 0]) < 1e-4
    said = error_of(lambda: shap.DeepExplainer(nets.Residual(), nets.table() * 0).shap_values(nets.table()))
    return yes(
        "the rest is the background's score",
        f"values and base value: {total:.4f}, the score: {score(array())[0, 0]:.4f}; DeepExplainer checks: {said}",
    )


def asks() -> Cell:
    masker, x = shap.maskers.Independent(np.zeros((1, 6))), nets.table().numpy()
    masked = shap.benchmark.SequentialMasker("remove", "positive", masker, first_score, x)
    result = masked(tabular(), "values", silent=True)
    return yes("`benchmark.SequentialMasker`", f"{result.metric} of one input: area {float(result.value):.4f}")


def judged() -> Cell:
    x = np.random.default_rng(0).random((4, 6))
    masker = shap.maskers.Independent(np.zeros((1, 6)))
    masked = shap.benchmark.SequentialMasker("remove", "positive", masker, first_score, x)
    results = [
        masked(shap.Explainer(first_score, masker)(x, silent=True), "shap", silent=True),
        masked(np.random.default_rng(1).normal(size=x.shape), "random", silent=True),
    ]
    shap.plots.benchmark(results, show=False)
    plt.close("all")
    return part(
        "arrays (`shap.benchmark`), standard errors",
        ", ".join(f"{r.method}: {r.value:.3f}, standard error up to {r.curve_y_std.max():.3f}" for r in results),
    )


def leaves() -> Cell:
    def both(network: nn.Module) -> None:
        expected(network, nets.pictures())
        shap.DeepExplainer(network, nets.pictures() * 0).shap_values(nets.pictures(), check_additivity=False)

    return untouched(both, nets.picture_net(), "`GradientExplainer`, `DeepExplainer`")


# --- pictures ---------------------------------------------------------------------------------------------------------


def drawn() -> Any:
    shap.plots.image(partitioned(array())[..., 0:1], show=False)
    return plt.gcf()


def figure() -> Cell:
    made = drawn()
    axes = len(made.axes)
    plt.close("all")
    return yes("`plots.image`", f"a figure with {axes} axes: photograph, overlay, colour bar")


def files() -> Cell:
    said = saved_figure(drawn())
    plt.close("all")
    return yes("figures of matplotlib", said)


def own_resolution() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        pixels = np.asarray(Image.open(nets.photograph(Path(name))))[None] / 255.0
    found = partitioned(pixels)
    assert found.values.shape[1:3] == pixels.shape[1:3]
    return yes("the map has the photograph's size", shape(found.values[..., 0]))


def tokens() -> Cell:
    html = shap.plots.text(words()[0, :, "good"], display=False)
    assert all(word in html for word in nets.WORDS)
    return yes("`plots.text`", f"HTML of {len(html)} characters with all words")


def bars() -> Cell:
    shap.plots.bar(tabular()[0], show=False)
    labels = [t.get_text() for t in plt.gca().get_yticklabels()]
    plt.close("all")
    assert all(any(f"feature {k}" in label for label in labels) for k in range(6))
    return yes("`plots.bar`", "a figure that names all six values")


def curves() -> Cell:
    return no("has none", nowhere("shap.plots", "timeseries", "time series", "waveform"))


def slices() -> Cell:
    found = expected(nets.clip_net(), nets.clip())[0, ..., 0]  # channels, frames, height, width
    frames, values = (np.moveaxis(t, 0, -1) for t in (nets.clip()[0].numpy(), found))
    shap.plots.image([values], frames, show=False)
    axes = len(plt.gcf().axes)
    plt.close("all")
    return yes("`plots.image`, a row per slice", f"six frames as six pictures: {axes} axes")


def notebook() -> Cell:
    html = shap.plots.text(words()[0, :, "good"], display=False)
    return yes("figures and HTML", f"figures of matplotlib; text as HTML of {len(html)} characters")


def interactive() -> Cell:
    found = tabular()[0]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "force.html"
        shap.save_html(
            str(path), shap.plots.force(float(found.base_values), found.values.astype(float), found.data.astype(float))
        )
        size = len(path.read_text(encoding="utf-8"))
    return yes("`plots.force`, `save_html`", f"a page of {size} characters, with its program")


def video_file() -> Cell:
    return no("has none", nowhere("shap", "mp4", "videowriter", "ffmpeg"))


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    made = shap.GradientExplainer(nets.picture_net(), nets.pictures())
    return no("takes arrays and tensors", error_of(lambda: made.shap_values("photo.png")))


def as_command() -> Cell:
    return no("has none", without_command("shap", "shap"))


def page() -> Cell:
    return no("has none", nowhere("shap", "flask", "fastapi", "http.server", "streamlit"))


def report() -> Cell:
    return no("has none", nowhere("shap", "report.html", "def .*report"))


def compiled() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    difference = gap(expected(network, x), expected(torch.compile(network), x))
    assert difference < 1e-3
    return yes("a compiled network", f"GradientExplainer: difference to the plain network {difference:.1e}")


def bfloat16() -> Cell:
    said = error_of(lambda: expected(nets.picture_net().bfloat16(), nets.pictures().bfloat16()))

    def narrow(pictures: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(pictures).bfloat16().permute(0, 3, 1, 2)
        with torch.no_grad():
            return nets.picture_net().bfloat16()(x).float().numpy()

    masker = shap.maskers.Image("blur(8,8)", (32, 32, 3))
    found = shap.Explainer(narrow, masker)(array(), max_evals=60, silent=True)
    correlation = alike(partitioned(array()).values, found.values)
    return part(
        "networks behind a function; not `GradientExplainer`",
        f"a function around the network: correlation with float32 {correlation:.4f}; GradientExplainer: {said}",
    )


def exported() -> Cell:
    return not_exported("shap", expected, nets.picture_net())


def saved_answer() -> Cell:
    found = tabular()
    assert np.array_equal(pickled(found).values, found.values)
    return yes("`pickle`", "the same values after reading them again")


def saved_explainer() -> Cell:
    made = shap.Explainer(np.sum, shap.maskers.Independent(np.zeros((1, 6))))
    out = io.BytesIO()
    with redirect_stdout(io.StringIO()):
        made.save(out)
        out.seek(0)
        again = shap.Explainer.load(out)
    return yes("`Explainer.save`, `load`", f"{out.tell()} bytes, read again as {type(again).__name__}")


def hosted() -> Cell:
    from importlib.metadata import distribution

    text = distribution("shap").metadata["Description"] or str(distribution("shap").metadata.get_payload())
    assert "mybinder.org/v2" in text
    return part("its notebooks on Binder", "its README leads to mybinder.org, which was not opened")


CELLS: dict[str, Any] = {"untouched": leaves, "command": as_command}
