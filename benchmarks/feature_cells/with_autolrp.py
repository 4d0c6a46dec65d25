"""autoLRP."""

from __future__ import annotations

from functools import partial
from typing import Any

import autolrp
import torch
from torch import Tensor, nn

from feature_cells import networks as nets
from feature_cells.cell import (
    Cell,
    alike,
    error_of,
    gap,
    no,
    not_exported,
    nowhere,
    part,
    pickled,
    shape,
    untouched,
    without_command,
    without_demo,
    yes,
)  # fmt: skip

DISTRIBUTION = "autoLRP"


def attribute(network: Any, x: Tensor, score: Any = lambda out: out[0, 0], **how: Any) -> Tensor:
    """Return the relevance of a score, as its README shows it; by default of class 0."""
    return _attribute_all(network, (x,), score, **how)[0]


def _attribute_all(network: Any, inputs: tuple[Tensor, ...], score: Any, **how: Any) -> list[Tensor]:
    wrapped = [autolrp.tensor(x) for x in inputs]
    score(network(*wrapped)).lrp(**how)
    return [_plain(x.relevance) for x in wrapped]


def _plain(t: Tensor) -> Tensor:
    return t.detach().as_subclass(torch.Tensor)


# --- what can be explained --------------------------------------------------------------------------------------------


def functional() -> Cell:
    x, networks = nets.table(), (nets.Residual(nn.ReLU(), nets.Add()), nets.Residual())
    off = gap(*(attribute(network, x) for network in networks))
    assert off < 1e-6
    return yes("reads the graph of autograd", f"largest difference {off:.1e}")


def attention() -> Cell:
    maps = {name: attribute(nets.Transformer(), nets.pictures(), config=c) for name, c in _configs().items()}
    said = ", ".join(f"{name} sums to {float(m.sum()):.3f} of 1" for name, m in maps.items())
    return yes("its default, `ATTNLRP`, `CPLRP`", f"{shape(maps['ATTNLRP'])}; {said}")


def _configs() -> dict[str, Any]:
    rules = {"default": {}, "ATTNLRP": autolrp.ATTNLRP, "CPLRP": autolrp.CPLRP}
    return {name: autolrp.LRPConfig(rule={**autolrp.BASE, **more}) for name, more in rules.items()}


def two_inputs() -> Cell:
    maps = _attribute_all(nets.TwoInputs(), (nets.pictures(), nets.table()), lambda out: out[0, 0])
    return yes("a map for each", ", ".join(shape(t) for t in maps))


def data_flow() -> Cell:
    return yes("runs the network as it is", shape(attribute(nets.Branching(), nets.pictures())))


def any_function() -> Cell:
    return no("PyTorch networks alone", error_of(lambda: attribute(lambda x: x.numpy(), nets.table())))


def clips() -> Cell:
    return yes("`.lrp()`", shape(attribute(nets.clip_net(), nets.clip())))


def segmentation() -> Cell:
    found = attribute(nets.Segmenting(), nets.pictures(), lambda out: out[:, 1, 8:16, 8:16].sum())
    return yes("any function of the output", shape(found))


def generated_text() -> Cell:
    network, tokenizer = nets.language_model()
    words = tokenizer(" ".join([*nets.WORDS, "very", "good"]), return_tensors="pt")["input_ids"]
    at = torch.arange(len(nets.WORDS) - 1, words.shape[1] - 1)

    def score(out: Any) -> Tensor:
        return out[0, at, words[0, at + 1]].sum()

    vectors = network.get_input_embeddings()(words)
    found = attribute(lambda v: network(inputs_embeds=v).logits, vectors, score)
    return part("any function of the output, with your own vectors of the tokens", shape(found))


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    copies = nets.pictures().expand(3, -1, -1, -1)
    found = attribute(nets.picture_net(), copies, lambda out: out[torch.arange(3), torch.arange(3)].sum())
    return part("where you repeat the input", f"three copies of one input: {shape(found)}")


def rather_than() -> Cell:
    found = attribute(nets.picture_net(), nets.pictures(), lambda out: out[0, 1] - out[0, 0])
    return yes("any function of the output; `clrp`", shape(found))


def inner_layer() -> Cell:
    found = _capture_layers()
    return yes("`capture_layers=`, by operation", f"{len(found)} operations, among them {sorted(found)[0]}")


def _capture_layers() -> Any:
    x = autolrp.tensor(nets.pictures())
    return nets.picture_net()(x)[0, 0].lrp(config=autolrp.LRPConfig(capture_layers=True))


def one_unit() -> Cell:
    network, kept = nets.picture_net(), {}
    handle = network.relu2.register_forward_hook(lambda module, inputs, output: kept.update(relu2=output))
    x = autolrp.tensor(nets.pictures())
    network(x)
    handle.remove()
    kept["relu2"][0, 3].sum().lrp()
    return part("with a hook of your own", shape(_plain(x.relevance)))


def class_names() -> Cell:
    return no("by number", error_of(lambda: attribute(nets.picture_net(), nets.pictures(), lambda out: out["class 2"])))


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    x = autolrp.tensor(nets.pictures())
    nets.picture_net()(x)[0, 0].lrp()
    share = autolrp.metrics.conservation(x)
    return part("`metrics.conservation`: how much is missing, not where", f"{share:.3f} of the score")


def asks() -> Cell:
    x, network = autolrp.tensor(nets.pictures()), nets.picture_net()
    network(x)[0, 0].lrp()
    found = autolrp.metrics.faithfulness(x, lambda x: network(x)[0, 0], n_steps=5)
    return yes("`metrics.faithfulness`", ", ".join(f"{name} {value:.3f}" for name, value in found.items()))


def judged() -> Cell:
    return no("a number per input, which you gather", nowhere("autolrp", "bootstrap", "confidence"))


def leaves() -> Cell:
    return untouched(lambda n: attribute(n, nets.pictures()), nets.picture_net(), "never written to")


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    return no("takes tensors", error_of(lambda: autolrp.tensor("photo.png")))


def as_command() -> Cell:
    return no("has none", without_command(DISTRIBUTION, "autolrp"))


def compiled() -> Cell:
    x = nets.pictures()
    plain = attribute(nets.picture_net(), x)
    try:
        found = attribute(torch.compile(nets.picture_net()), x)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return no("ends with an error", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    off = gap(plain, found)
    if off < 1e-3:
        return yes("a compiled network", f"difference to the plain network {off:.1e}")
    return no("another map", f"difference to the plain network {off:.1e}")


def bfloat16() -> Cell:
    narrow = attribute(nets.picture_net().bfloat16(), nets.pictures().bfloat16())
    wide = attribute(nets.picture_net(), nets.pictures())
    return yes("networks in bfloat16", f"correlation with float32 {alike(wide, narrow):.4f}")


def exported() -> Cell:
    return not_exported("autolrp", attribute, nets.picture_net())


def saved_answer() -> Cell:
    found = attribute(nets.picture_net(), nets.pictures())
    assert torch.equal(pickled(found), found)
    return yes("they are tensors", "the same tensor after reading it again")


def saved_explainer() -> Cell:
    config = autolrp.LRPConfig.composite()
    again, x = pickled(config), nets.pictures()
    network = nets.picture_net()
    assert torch.equal(attribute(network, x, config=again), attribute(network, x, config=config))
    return yes("`pickle` of `LRPConfig`", "the same map after reading it again")


def hosted() -> Cell:
    return no("has none", without_demo(DISTRIBUTION))


def _find_none(*words: str) -> Cell:
    """Show that its source has none of these words."""
    return no("has none", nowhere("autolrp", *words))


DRAWS = ("matplotlib", "pyplot", "import PIL", "from PIL")
ABSENT: dict[str, tuple[str, ...]] = {
    "onnx_files": ("onnx",),
    "reference": ("reference input", r"reference=", "counterfactual"),
    "smoothed": ("smooth", "noise"),
    "concepts": ("concept",),
    "training_data": ("influence", r"\btracin\b"),
    "figure": DRAWS,
    "files": (*DRAWS, "savefig", "imsave"),
    "own_resolution": ("overlay", "resize"),
    "tokens": ("html", "tokenizer"),
    "bars": DRAWS,
    "curves": DRAWS,
    "slices": DRAWS,
    "notebook": ("_repr_html_", "_repr_png_", *DRAWS),
    "interactive": ("html", "javascript", "plotly"),
    "video_file": ("mp4", "videowriter", "ffmpeg"),
    "page": ("flask", "fastapi", "http.server", "html"),
    "report": ("html", "markdown"),
}
CELLS: dict[str, Any] = {
    "untouched": leaves,
    "command": as_command,
    **{key: partial(_find_none, *words) for key, words in ABSENT.items()},
}
