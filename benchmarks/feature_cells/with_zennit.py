"""zennit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from zennit import image
from zennit.attribution import Gradient, IntegratedGradients, SmoothGrad
from zennit.composites import EpsilonPlus
from zennit.image import imgify, imsave

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

DISTRIBUTION = "zennit"


def one_hot(output: Tensor, k: int = 0) -> Tensor:
    return torch.eye(output.shape[1])[[k]].to(output).expand_as(output)


def attributed(network: nn.Module, x: Tensor, output: Any = one_hot) -> Tensor:
    """As its README shows it: a composite of rules, the relevance of class 0."""
    with Gradient(network, EpsilonPlus()) as attributor:
        return attributor(x.clone(), output)[1].detach()


# --- what can be explained --------------------------------------------------------------------------------------------


def functional() -> Cell:
    from zennit.layer import Sum

    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sum = Sum()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.sum(torch.stack([a, b], -1))

    x = nets.table()
    off = gap(attributed(nets.Residual(nn.ReLU(), Stacked()), x), attributed(nets.Residual(), x))
    plain = [
        IntegratedGradients(n)(x.clone(), one_hot)[1] for n in (nets.Residual(nn.ReLU(), Stacked()), nets.Residual())
    ]
    assert off > 0.1 > 1e-6 > gap(*plain)
    return part("gradients; not with rules", f"largest difference: EpsilonPlus {off:.1e}, gradients {gap(*plain):.1e}")


def attention() -> Cell:
    network, x = nets.Transformer(), nets.pictures()
    score, found = float(network(x)[0, 0]), attributed(network, x)
    plain = IntegratedGradients(network)(x, one_hot)[1]
    return part(
        "gradients; it has no rule for attention",
        f"EpsilonPlus: {shape(found)}, sum {float(found.sum()):.3f} of the score {score:.3f}; "
        f"IntegratedGradients: {shape(plain)}; {nowhere('zennit', 'MultiheadAttention', 'softmax')}",
    )


def two_inputs() -> Cell:
    said = error_of(lambda: Gradient(nets.TwoInputs(), EpsilonPlus())((nets.pictures(), nets.table()), one_hot))
    network, picture, row = nets.TwoInputs(), nets.pictures().requires_grad_(), nets.table().requires_grad_()
    with EpsilonPlus().context(network) as changed:
        output = changed(picture, row)
        maps = torch.autograd.grad(output, (picture, row), one_hot(output))
    return part("with a composite and your own gradient", f"Gradient: {said}; {', '.join(shape(t) for t in maps)}")


def data_flow() -> Cell:
    return yes("runs the network as it is", shape(attributed(nets.Branching(), nets.pictures())))


def any_function() -> Cell:
    return no("PyTorch modules alone", error_of(lambda: attributed(lambda x: x.numpy(), nets.table())))


def onnx_files() -> Cell:
    return no("has none", nowhere("zennit", "onnx"))


def clips() -> Cell:
    return yes("`Gradient` with a composite", shape(attributed(nets.clip_net(), nets.clip())))


def segmentation() -> Cell:
    def where(output: Tensor) -> Tensor:
        weights = torch.zeros_like(output)
        weights[:, 1, 8:16, 8:16] = 1
        return weights

    return yes("any weights over the output", shape(attributed(nets.Segmenting(), nets.pictures(), where)))


def generated_text() -> Cell:
    return no("has none", nowhere("zennit", "tokenizer", "generated text"))


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    copies = nets.pictures().expand(3, -1, -1, -1)
    a = attributed(nets.picture_net(), copies, lambda out: torch.eye(out.shape[1])[[0, 1, 2]])
    return part("where you repeat the input", f"three copies of one input: {shape(a)}")


def rather_than() -> Cell:
    a = attributed(nets.picture_net(), nets.pictures(), lambda out: one_hot(out, 1) - one_hot(out, 0))
    return yes("any weights over the output", shape(a))


def reference() -> Cell:
    baseline = IntegratedGradients(nets.picture_net(), baseline_fn=lambda x: torch.full_like(x, 0.5))
    return part("gradients; not with rules", f"IntegratedGradients: {shape(baseline(nets.pictures(), one_hot)[1])}")


def inner_layer() -> Cell:
    network, kept = nets.picture_net(), {}

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        kept["relu2"] = output

    handle = network.relu2.register_forward_hook(keep)
    with EpsilonPlus().context(network) as changed:
        output = changed(nets.pictures().requires_grad_())
        output.backward(one_hot(output))
    handle.remove()
    return part("with a hook of your own", shape(kept["relu2"].grad))


def one_unit() -> Cell:
    network, kept, x = nets.picture_net(), {}, nets.pictures().requires_grad_()
    with EpsilonPlus().context(network) as changed:  # its hooks come first, then ours
        handle = network.relu2.register_forward_hook(lambda module, inputs, output: kept.update(relu2=output))
        changed(x)
        handle.remove()
        weights = torch.zeros_like(kept["relu2"])
        weights[:, 3] = 1
        (relevance,) = torch.autograd.grad(kept["relu2"], x, weights)
    return part("with a hook of your own", shape(relevance))


def class_names() -> Cell:
    said = error_of(lambda: attributed(nets.picture_net(), nets.pictures(), "class 2"))
    return no("by weights over the output", said)


def smoothed() -> Cell:
    return yes(
        "`SmoothGrad`", shape(SmoothGrad(nets.picture_net(), EpsilonPlus(), n_iter=4)(nets.pictures(), one_hot)[1])
    )


def concepts() -> Cell:
    return no("has none", nowhere("zennit", "concept"))


def training_data() -> Cell:
    return no("has none", nowhere("zennit", "influence", r"\btracin\b"))


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    with Gradient(nets.picture_net(), EpsilonPlus()) as attributor:
        output, relevance = attributor(nets.pictures(), one_hot)
    return no(
        "not said", f"returns output {float(output[0, 0]):.3f} and a map that sums to {float(relevance.sum()):.3f}"
    )


def asks() -> Cell:
    return no("has none", nowhere("zennit", "infidelity", "flipping", "faithful", "perturbation"))


def judged() -> Cell:
    return no("has none", nowhere("zennit", "benchmark", "bootstrap", "faithful"))


def leaves() -> Cell:
    return untouched(lambda n: attributed(n, nets.pictures()), nets.picture_net(), "changes it for the time of a call")


# --- pictures ---------------------------------------------------------------------------------------------------------
# zennit hands its palette to Pillow as an array, which Pillow 13 no longer takes. Where that is so, it is handed over
# as bytes, and the cell says so.

OLDER = ""
try:
    imgify([[0.0, 1.0]]).load()
except TypeError:
    _palette, OLDER = image.palette, " (with Pillow 12)"
    image.palette = lambda *given, **named: _palette(*given, **named).tobytes()


def heat() -> Tensor:
    return attributed(nets.picture_net(), nets.pictures()).sum(1)


def figure() -> Cell:
    picture = imgify(heat()[0], symmetric=True)
    picture.load()
    return part(
        f"the map alone: `imgify`{OLDER}",
        f"a picture of {picture.size}; {nowhere('zennit', 'colorbar', 'overlay', 'blend')}",
    )


def files() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        for ending in ("png", "pdf"):
            imsave(Path(name) / f"map.{ending}", heat()[0], symmetric=True)
        assert (Path(name) / "map.png").read_bytes().startswith(b"\x89PNG")
        assert (Path(name) / "map.pdf").read_bytes().startswith(b"%PDF")
        said = error_of(lambda: imsave(Path(name) / "map.svg", heat()[0], symmetric=True))
    return part(f"`imsave`{OLDER}: no SVG", f"PNG and PDF; SVG: {said}")


def own_resolution() -> Cell:
    return no("has no overlay", nowhere("zennit", "overlay", "blend", "resize"))


def tokens() -> Cell:
    return no("has none", nowhere("zennit", "html", "words"))


def bars() -> Cell:
    return no("has none", nowhere("zennit", "matplotlib", "pyplot"))


def curves() -> Cell:
    return no("has none", nowhere("zennit", "matplotlib", "pyplot"))


def slices() -> Cell:
    volume = attributed(nets.clip_net(), nets.clip()).sum(1)[0]
    picture = imgify(volume, symmetric=True, grid=True)
    picture.load()
    return yes(f"`imgify(grid=True)`{OLDER}", f"six slices of 16 × 16 in one picture of {picture.size}, one scale each")


def notebook() -> Cell:
    picture = imgify(heat()[0], symmetric=True)
    assert picture._repr_png_()
    return yes(f"`imgify`{OLDER}", f"a picture of {picture.size}, which notebooks show")


def interactive() -> Cell:
    return no("has none", nowhere("zennit", "html", "javascript", "plotly"))


def video_file() -> Cell:
    return no("has none", nowhere("zennit", "mp4", "videowriter", "ffmpeg"))


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    return no("takes tensors", error_of(lambda: Gradient(nets.picture_net(), EpsilonPlus())("photo.png", one_hot)))


def as_command() -> Cell:
    said = "its README names a script of its repository, share/example/feed_forward.py, which was not run"
    return part("a script in its repository", f"{without_command('zennit', 'zennit')}; {said}")


def page() -> Cell:
    return no("has none", nowhere("zennit", "flask", "fastapi", "http.server", "html"))


def report() -> Cell:
    return no("has none", nowhere("zennit", "report", "html"))


def compiled() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    plain = attributed(network, x)
    with EpsilonPlus().context(network) as changed:
        faster = torch.compile(changed)
        x = x.clone().requires_grad_()
        output = faster(x)
        (relevance,) = torch.autograd.grad(output, x, one_hot(output))
    return _compiled(gap(plain, relevance))


def _compiled(difference: float) -> Cell:
    if difference < 1e-3:
        return yes("a compiled network", f"EpsilonPlus: difference to the plain network {difference:.1e}")
    return no("another map, without a warning", f"EpsilonPlus: difference to the plain network {difference:.1e}")


def bfloat16() -> Cell:
    narrow = attributed(nets.picture_net().bfloat16(), nets.pictures().bfloat16())
    wide = attributed(nets.picture_net(), nets.pictures())
    return yes("networks in bfloat16", f"EpsilonPlus: correlation with float32 {alike(wide, narrow):.4f}")


def exported() -> Cell:
    return not_exported("zennit", attributed, nets.picture_net())


def saved_answer() -> Cell:
    a = heat()
    assert torch.equal(pickled(a), a)
    return yes("they are tensors", "the same tensor after reading it again")


def saved_explainer() -> Cell:
    made = Gradient(nets.picture_net(), EpsilonPlus())
    try:
        again = pickled(made)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return no("cannot be pickled", f"{type(error).__name__}: {error}")
    assert torch.equal(again(nets.pictures(), one_hot)[1], attributed(nets.picture_net(), nets.pictures()))
    return yes("`pickle`", "the same map after reading it again")


def hosted() -> Cell:
    return no("has none", without_demo("zennit"))


CELLS: dict[str, Any] = {"untouched": leaves, "command": as_command}
