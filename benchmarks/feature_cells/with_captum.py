"""captum."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Any

import captum.attr as ca
import numpy as np
import torch
from captum.attr import visualization
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
    without_demo,
    yes,
)  # fmt: skip

DISTRIBUTION = "captum"


def integrated(network: Any, x: Any, target: Any = 0, **kw: Any) -> Any:
    return ca.IntegratedGradients(network).attribute(x, target=target, n_steps=20, **kw)


def shown(**kw: Any) -> Any:
    """The figure that the documentation shows: photograph and map beside each other."""
    picture = nets.pictures()
    attribution = integrated(nets.picture_net(), picture)
    return visualization.visualize_image_attr_multiple(
        attribution[0].permute(1, 2, 0).numpy(), picture[0].permute(1, 2, 0).numpy(),
        ["original_image", "blended_heat_map"], ["all", "all"], show_colorbar=True, use_pyplot=False, **kw,
    )[0]  # fmt: skip


# --- what can be explained --------------------------------------------------------------------------------------------


def functional() -> Cell:
    from captum.attr._utils.custom_modules import Addition_Module

    x = nets.table()
    modules, functions = nets.Residual(nn.ReLU(), Addition_Module()), nets.Residual()
    same = gap(integrated(modules, x, 1), integrated(functions, x, 1))
    lrp = [ca.LRP(n).attribute(x, target=1) for n in (nets.Residual(nn.ReLU(), Addition_Module()), nets.Residual())]
    lift = [
        ca.DeepLift(n).attribute(x, target=1) for n in (nets.Residual(nn.ReLU(), Addition_Module()), nets.Residual())
    ]
    off = gap(*lrp), gap(*lift)
    assert same < 1e-6
    assert off[0] > 0.1
    return part(
        "gradients and perturbations; not LRP",
        f"largest difference: IntegratedGradients {same:.1e}, LRP {off[0]:.1e}, DeepLift {off[1]:.1e}",
    )


def attention() -> Cell:
    a = integrated(nets.Transformer(), nets.pictures())
    said = error_of(lambda: ca.LRP(nets.Transformer()).attribute(nets.pictures(), target=0))
    return yes("`IntegratedGradients` …; not LRP", f"IntegratedGradients: {shape(a)}; LRP: {said}")


def two_inputs() -> Cell:
    a = integrated(nets.TwoInputs(), (nets.pictures(), nets.table()))
    return yes("a map for each", ", ".join(shape(t) for t in a))


def data_flow() -> Cell:
    a = integrated(nets.Branching(), nets.pictures())
    return yes("runs the network as it is", f"IntegratedGradients: {shape(a)}")


def any_function() -> Cell:
    a = ca.FeatureAblation(lambda x: torch.from_numpy(fitted().predict(x.numpy()))).attribute(nets.table())
    return yes("`FeatureAblation` …, on tensors", f"a LinearRegression of scikit-learn: {shape(a)}")


def onnx_files() -> Cell:
    return no("has none", nowhere("captum", "onnx"))


def clips() -> Cell:
    return yes("`IntegratedGradients` …", shape(integrated(nets.clip_net(), nets.clip())))


def segmentation() -> Cell:
    def summed(x: Tensor) -> Tensor:
        return nets.Segmenting()(x)[:, 1, 8:16, 8:16].sum((1, 2))

    return yes("any function of the output", shape(integrated(summed, nets.pictures(), None)))


def generated_text() -> Cell:
    network, tokenizer = nets.language_model()
    found = ca.LLMAttribution(ca.FeatureAblation(network), tokenizer).attribute(
        ca.TextTokenInput(" ".join(nets.WORDS), tokenizer), target="very good", use_cached_outputs=False
    )
    return yes("`LLMAttribution`", f"four words, answer of two words: {shape(found.token_attr)}")


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    said = error_of(lambda: integrated(nets.picture_net(), nets.pictures(), torch.tensor([0, 1, 2])))
    a = integrated(nets.picture_net(), nets.pictures().expand(3, -1, -1, -1), torch.tensor([0, 1, 2]))
    return part("where you repeat the input", f"one input: {said}; three copies: {shape(a)}")


def rather_than() -> Cell:
    network = nets.picture_net()
    a = integrated(lambda x: network(x)[:, 1] - network(x)[:, 0], nets.pictures(), None)
    return yes("any function of the output", shape(a))


def reference() -> Cell:
    a = integrated(nets.picture_net(), nets.pictures(), baselines=torch.full_like(nets.pictures(), 0.5))
    return yes("`baselines=`", shape(a))


def inner_layer() -> Cell:
    network, small = nets.picture_net(), nets.table_net()
    a = ca.LayerIntegratedGradients(network, network.relu2).attribute(nets.pictures(), target=0, n_steps=10)
    b = ca.LayerLRP(small, small[0]).attribute(nets.table(), 0)
    return yes("`LayerIntegratedGradients` …, by module", f"LayerIntegratedGradients: {shape(a)}; LayerLRP: {shape(b)}")


def one_unit() -> Cell:
    network = nets.picture_net()
    a = ca.NeuronIntegratedGradients(network, network.conv1).attribute(nets.pictures(), (2, 5, 5), n_steps=10)
    return yes("`NeuronIntegratedGradients` …", shape(a))


def class_names() -> Cell:
    return no("by number", error_of(lambda: integrated(nets.picture_net(), nets.pictures(), "class 2")))


def smoothed() -> Cell:
    tunnel = ca.NoiseTunnel(ca.Saliency(nets.picture_net()))
    return yes("`NoiseTunnel`", shape(tunnel.attribute(nets.pictures(), nt_samples=4, target=0)))


def concepts() -> Cell:
    from captum.concept import TCAV, Concept

    network = nets.picture_net()
    sets = [Concept(k, f"c{k}", _loader(nets.pictures(8) + k)) for k in range(2)]
    with tempfile.TemporaryDirectory() as name:
        tcav = TCAV(network, ["relu2"], save_path=name)
        scores = tcav.interpret(nets.pictures(), [sets], target=0)
    found = scores["0-1"]["relu2"]["magnitude"]
    return yes("`TCAV`", f"magnitudes of two concepts {[round(v, 2) for v in found.tolist()]}")


def _loader(x: Tensor) -> Any:
    return torch.utils.data.DataLoader(x, batch_size=4)


def training_data() -> Cell:
    from captum.influence import TracInCP

    network, x = nets.table_net(), torch.rand(8, 6)
    classes = torch.arange(8) % 3
    with tempfile.TemporaryDirectory() as name:
        path = os.fspath(Path(name) / "checkpoint.pt")
        torch.save(network.state_dict(), path)
        loss, data = nn.CrossEntropyLoss(reduction="none"), torch.utils.data.TensorDataset(x, classes)
        found = TracInCP(network, data, [path], loss_fn=loss, batch_size=4).influence((x[:2], classes[:2]))
    return yes("`TracInCP`", f"influence of eight examples on two: {tuple(found.shape)}")


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    _, delta = ca.LRP(nets.table_net()).attribute(nets.table(), 0, return_convergence_delta=True)
    return part("how much is missing, not where", f"return_convergence_delta: {delta.tolist()}")


def asks() -> Cell:
    from captum.metrics import infidelity

    def perturbed(x: Tensor) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.randn_like(x)
        return noise, x - noise

    network, x = nets.picture_net(), nets.pictures()
    value = infidelity(network, perturbed, x, integrated(network, x), target=0)
    return yes("`infidelity`", f"one number for one input: {value.tolist()}")


def judged() -> Cell:
    return no("a number per input, which you gather", nowhere("captum.metrics", "bootstrap", "interval", "folder"))


def leaves() -> Cell:
    assert untouched(lambda n: integrated(n, nets.table()), nets.table_net(), "").answer == "yes"
    network = nets.table_net()
    before = set(vars(network[0]))
    ca.LRP(network).attribute(nets.table(), 0)
    left = set(vars(network[0])) - before
    assert left == {"activations"}
    return part("`LRP` leaves `activations` in layers", "IntegratedGradients leaves nothing; LRP leaves " + str(left))


# --- pictures ---------------------------------------------------------------------------------------------------------


def figure() -> Cell:
    return yes("`visualize_image_attr_multiple`", f"a figure with {len(shown().axes)} axes, colour bar included")


def files() -> Cell:
    return yes("figures of matplotlib", saved_figure(shown()))


def own_resolution() -> Cell:
    larger = ca.LayerAttribution.interpolate(integrated(nets.picture_net(), nets.pictures()), (60, 90), "bilinear")
    drawn, _ = visualization.visualize_image_attr(
        larger[0].permute(1, 2, 0).numpy(),
        np.random.default_rng(0).random((60, 90, 3)),
        "blended_heat_map",
        use_pyplot=False,
    )
    said = f"a map of 32 × 32 enlarged to {tuple(larger.shape[2:])}, over a picture of that size"
    assert drawn.axes
    return part("where you enlarge the map to it", said)


def tokens() -> Cell:
    a = integrated(nets.Reader(), nets.embedded()).sum(2)[0]
    html = visualization.visualize_text(
        [visualization.VisualizationDataRecord(a / a.abs().max(), 0.9, 0, 0, 0, a.sum().item(), nets.WORDS, 0.0)]
    )
    assert all(word in html.data for word in nets.WORDS)
    return yes("`visualize_text`", f"HTML of {len(html.data)} characters with all words")


def bars() -> Cell:
    network, tokenizer = nets.language_model()
    words = ca.TextTokenInput(" ".join(nets.WORDS), tokenizer)
    result = ca.LLMAttribution(ca.FeatureAblation(network), tokenizer).attribute(
        words, target="good", use_cached_outputs=False
    )
    drawn, _ = result.plot_seq_attr()
    return no("only of prompts (`plot_seq_attr`)", f"of a prompt: {len(drawn.axes)} axes; of a table nothing is drawn")


def curves() -> Cell:
    from matplotlib import cm, colormaps

    x = nets.signal()
    a = integrated(nets.signal_net(), x)
    arguments = (a[0].numpy(), x[0].numpy())
    said = ""
    if not hasattr(cm, "get_cmap"):
        said = error_of(
            lambda: visualization.visualize_timeseries_attr(*arguments, channels_last=False, use_pyplot=False)
        )
        cm.get_cmap = colormaps.__getitem__  # as matplotlib had it before
    try:
        drawn, _ = visualization.visualize_timeseries_attr(*arguments, channels_last=False, use_pyplot=False)
    finally:
        if said:
            del cm.get_cmap
    evidence = f"a figure with {len(drawn.axes)} axes"
    if said:
        return yes(
            "`visualize_timeseries_attr`, with matplotlib before 3.9",
            f"with the matplotlib here: {said}; with get_cmap put back: {evidence}",
        )
    return yes("`visualize_timeseries_attr`", evidence)


def slices() -> Cell:
    a = integrated(nets.clip_net(), nets.clip())[0].permute(1, 2, 3, 0).numpy()
    said = error_of(lambda: visualization.visualize_image_attr(a, a, "heat_map", use_pyplot=False))
    return no("one slice at a time", f"visualize_image_attr of a volume: {said}")


def notebook() -> Cell:
    return yes("figures and HTML", f"visualize_text gives HTML; figures are of {type(shown()).__module__}")


def interactive() -> Cell:
    assert importlib.util.find_spec("captum.insights") is None
    return no("Captum Insights is not in 0.9.0", "there is no captum.insights")


def video_file() -> Cell:
    return no("has none", nowhere("captum", "mp4", "videowriter", "ffmpeg", "animation"))


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    return no("takes tensors", error_of(lambda: integrated(nets.picture_net(), "photo.png")))


def as_command() -> Cell:
    return no("has none", without_command("captum", "captum"))


def page() -> Cell:
    assert importlib.util.find_spec("captum.insights") is None
    return no(
        "Captum Insights is not in 0.9.0", f"no captum.insights; {nowhere('captum', 'flask', 'fastapi', 'http.server')}"
    )


def report() -> Cell:
    return no("has none", nowhere("captum", "report.html", "def .*report", "write_html"))


def compiled() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    difference = gap(integrated(network, x), integrated(torch.compile(network), x))
    assert difference < 1e-3
    return yes("a compiled network", f"IntegratedGradients: difference to the plain network {difference:.1e}")


def bfloat16() -> Cell:
    narrow = integrated(nets.picture_net().bfloat16(), nets.pictures().bfloat16())
    wide = integrated(nets.picture_net(), nets.pictures())
    return yes("networks in bfloat16", f"IntegratedGradients: correlation with float32 {alike(wide, narrow):.4f}")


def exported() -> Cell:
    return not_exported("captum", integrated, nets.picture_net())


def saved_answer() -> Cell:
    a = integrated(nets.picture_net(), nets.pictures())
    assert torch.equal(pickled(a), a)
    return yes("they are tensors", "the same tensor after reading it again")


def saved_explainer() -> Cell:
    again = pickled(ca.IntegratedGradients(nets.picture_net())).attribute(nets.pictures(), target=0, n_steps=20)
    assert torch.equal(again, integrated(nets.picture_net(), nets.pictures()))
    return yes("`pickle`", "IntegratedGradients: the same map after reading it again")


def hosted() -> Cell:
    return no("has none", without_demo("captum"))


CELLS: dict[str, Any] = {"untouched": leaves, "command": as_command}
