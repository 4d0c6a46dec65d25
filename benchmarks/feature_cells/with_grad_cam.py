"""grad-cam."""

from __future__ import annotations

import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_grad_cam as gc
import torch
from PIL import Image
from pytorch_grad_cam.utils.image import scale_cam_image, show_cam_on_image
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget, FinerWeightedTarget, SemanticSegmentationTarget
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

DISTRIBUTION = "grad-cam"
PACKAGE = "pytorch_grad_cam"


def cam_of(network: nn.Module, layer: nn.Module, x: Any, targets: Any = None, **kw: Any) -> np.ndarray:
    """As its README shows it."""
    with gc.GradCAM(network, [layer], **kw) as cam:
        return cam(x, targets if targets is not None else [ClassifierOutputTarget(0)])


def cam(network: Any = None, x: Tensor | None = None, targets: Any = None) -> np.ndarray:
    network = nets.picture_net() if network is None else network
    return cam_of(network, network.relu2, nets.pictures() if x is None else x, targets)


# --- what can be explained --------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """The picture network with functions in place of modules, and an addition; or all of it as modules."""

    def __init__(self, modules: bool) -> None:
        super().__init__()
        network = nets.picture_net()
        self.conv1, self.conv2, self.classify = network.conv1, network.conv2, network.classify
        self.skip = nn.Conv2d(3, 16, 1)
        torch.nn.init.constant_(self.skip.weight, 0.1)
        torch.nn.init.zeros_(self.skip.bias)
        self.relu, self.add = (nn.ReLU(), nets.Add()) if modules else (torch.relu, torch.add)

    def forward(self, x: Tensor) -> Tensor:
        h = self.add(self.conv2(self.relu(self.conv1(x))), self.skip(x))
        return self.classify(self.relu(h).mean((2, 3)))


def functional() -> Cell:
    networks = Functional(modules=True), Functional(modules=False)
    difference = gap(*[cam_of(n, n.conv2, nets.pictures()) for n in networks])
    assert difference < 1e-6
    return yes("gradients at one layer", f"largest difference {difference:.1e}")


def attention() -> Cell:
    network = nets.Transformer()
    found = cam_of(
        network, network.block, nets.pictures(),
        reshape_transform=lambda t: t.reshape(t.shape[0], 4, 4, -1).permute(0, 3, 1, 2),
    )  # fmt: skip
    return yes("`reshape_transform=`", shape(found))


def two_inputs() -> Cell:
    network = nets.TwoInputs()
    return no("one input", error_of(lambda: cam_of(network, network.see.relu2, (nets.pictures(), nets.table()))))


def data_flow() -> Cell:
    network = nets.Branching()
    return yes("runs the network as it is", shape(cam_of(network, network.bright.relu2, nets.pictures())))


def any_function() -> Cell:
    return no("PyTorch modules alone", error_of(lambda: gc.GradCAM(lambda x: x.numpy(), [])))


def onnx_files() -> Cell:
    return no("has none", nowhere(PACKAGE, "onnx"))


def clips() -> Cell:
    network = nets.clip_net()
    return yes("`GradCAM` …", shape(cam_of(network, network[1], nets.clip())))


def segmentation() -> Cell:
    mask = np.zeros((32, 32), np.float32)
    mask[8:16, 8:16] = 1
    network = nets.Segmenting()
    found = cam_of(network, network.body[1], nets.pictures(), [SemanticSegmentationTarget(1, mask)])
    return yes("`SemanticSegmentationTarget` …", shape(found))


def generated_text() -> Cell:
    return no("pictures alone", nowhere(PACKAGE, "tokenizer", "generate"))


# --- which question ---------------------------------------------------------------------------------------------------


def several_classes() -> Cell:
    one = cam(targets=[ClassifierOutputTarget(k) for k in range(3)])
    found = cam(x=nets.pictures().expand(3, -1, -1, -1), targets=[ClassifierOutputTarget(k) for k in range(3)])
    assert len(one) == 1
    return part("where you repeat the input", f"three targets, one input: {one.shape}; three copies: {shape(found)}")


def rather_than() -> Cell:
    network = nets.picture_net()
    finer = gc.FinerCAM(network, [network.relu2])(nets.pictures(), targets=[FinerWeightedTarget(0, [1], 1.0)])
    return yes("`FinerCAM`", shape(finer))


def reference() -> Cell:
    return no("has none", nowhere(PACKAGE, "baseline", "reference_input"))


def inner_layer() -> Cell:
    network = nets.picture_net()
    return yes("`target_layers=`, by module", shape(cam_of(network, network.relu1, nets.pictures())))


def one_unit() -> Cell:
    return no("only where you cut the network", nowhere(PACKAGE, "neuron"))


def class_names() -> Cell:
    with redirect_stdout(io.StringIO()) as said:
        assert cam(targets=[ClassifierOutputTarget("class 2")]) is None
    return no("by number", said.getvalue().strip())


def smoothed() -> Cell:
    network = nets.picture_net()
    with gc.GradCAM(network, [network.relu2]) as made:
        found = made(nets.pictures(), [ClassifierOutputTarget(0)], aug_smooth=True)
    return yes("`aug_smooth`: over flips and brightness", shape(found))


def concepts() -> Cell:
    network = nets.picture_net()
    made = gc.DeepFeatureFactorization(network, network.relu2)
    _, found = made(nets.pictures(), 2)
    return yes("`DeepFeatureFactorization`", shape(found[0]))


def training_data() -> Cell:
    return no("has none", nowhere(PACKAGE, "influence", r"\btracin\b"))


# --- can it be trusted ------------------------------------------------------------------------------------------------


def adds_up() -> Cell:
    found = cam()
    return no(
        "maps are scaled from 0 to 1", f"smallest {found.min():.3f}, largest {found.max():.3f}, whatever the score"
    )


def asks() -> Cell:
    from pytorch_grad_cam.metrics.road import ROADCombined

    score = ROADCombined(percentiles=[20, 40, 60, 80])(
        nets.pictures(), cam(), [ClassifierOutputTarget(0)], nets.picture_net()
    )
    return yes("`ROADCombined` …", f"one number for one input: {score.tolist()}")


def judged() -> Cell:
    return no("a number per input, which you gather", nowhere(PACKAGE, "bootstrap", "interval", "listdir"))


def leaves() -> Cell:
    return untouched(cam, nets.picture_net(), "`GradCAM`")


# --- pictures ---------------------------------------------------------------------------------------------------------


def overlay() -> np.ndarray:
    return show_cam_on_image(nets.pictures()[0].permute(1, 2, 0).numpy(), cam()[0], use_rgb=True)


def figure() -> Cell:
    return part("the overlay (`show_cam_on_image`)", f"an array {overlay().shape}; {nowhere(PACKAGE, 'colorbar')}")


def files() -> Cell:
    with tempfile.TemporaryDirectory() as name:
        Image.fromarray(overlay()).save(Path(name) / "map.png")
    return part("an array, which you save", f"{type(overlay()).__name__}; {nowhere(PACKAGE, 'savefig', 'imwrite')}")


def own_resolution() -> Cell:
    larger = scale_cam_image(cam(), (90, 60))[0]
    drawn = show_cam_on_image(np.random.default_rng(0).random((60, 90, 3)).astype(np.float32), larger, use_rgb=True)
    return part("where you enlarge the map to it", f"a map of 32 × 32 enlarged, over a picture {drawn.shape}")


def tokens() -> Cell:
    return no("pictures alone", nowhere(PACKAGE, "html", "words"))


def bars() -> Cell:
    network = nets.table_net()
    return no("pictures alone", error_of(lambda: cam_of(network, network[1], nets.table())))


def curves() -> Cell:
    network = nets.signal_net()
    return no("pictures alone", error_of(lambda: cam_of(network, network[1], nets.signal())))


def slices() -> Cell:
    network = nets.clip_net()
    volume = cam_of(network, network[1], nets.clip())[0]
    said = error_of(lambda: show_cam_on_image(np.zeros((*volume.shape, 3), np.float32), volume))
    return no("one slice at a time", f"show_cam_on_image of a volume: {said}")


def notebook() -> Cell:
    shown = overlay()
    assert not hasattr(shown, "_repr_png_")
    return part("an array, which you draw", f"{type(shown).__name__} {shown.shape}")


def interactive() -> Cell:
    return no("has none", nowhere(PACKAGE, "html", "javascript", "plotly"))


def video_file() -> Cell:
    return no("has none", nowhere(PACKAGE, "mp4", "videowriter", "ffmpeg"))


# --- how it is used ---------------------------------------------------------------------------------------------------


def one_call() -> Cell:
    return no("takes tensors", error_of(lambda: cam(x="photo.png")))  # type: ignore[arg-type]


def as_command() -> Cell:
    said = "its README names a script of its repository, cam.py, which was not run"
    return part("a script in its repository", f"{without_command('grad-cam', PACKAGE)}; {said}")


def page() -> Cell:
    return no("has none", nowhere(PACKAGE, "flask", "fastapi", "gradio", "http.server"))


def report() -> Cell:
    return no("has none", nowhere(PACKAGE, "report", "html"))


def compiled() -> Cell:
    network, x = nets.picture_net(), nets.pictures()
    plain = cam(network, x)

    def after(compiled: Any) -> np.ndarray:
        with gc.GradCAM(compiled, [network.relu2]) as made:
            return made(x, [ClassifierOutputTarget(0)])

    torch.compiler.reset()
    difference = gap(plain, after(torch.compile(network)))
    assert difference < 1e-3
    torch.compiler.reset()
    used = torch.compile(network)
    used(x)
    said = error_of(lambda: after(used))
    torch.compiler.reset()
    return part(
        "a compiled network that has not run yet",
        f"difference to the plain network {difference:.1e}; after a call of the compiled network: {said}",
    )


def bfloat16() -> Cell:
    try:
        narrow = cam(nets.picture_net().bfloat16(), nets.pictures().bfloat16())
    except Exception as error:  # noqa: BLE001 - whatever it is
        return no("ends with an error", f"{type(error).__name__}: {error}")
    return yes("networks in bfloat16", f"correlation with float32 {alike(cam(), narrow):.4f}")


def exported() -> Cell:
    return not_exported(PACKAGE, cam, nets.picture_net())


def saved_answer() -> Cell:
    found = cam()
    assert np.array_equal(pickled(found), found)
    return yes("they are arrays", "the same array after reading it again")


def saved_explainer() -> Cell:
    network = nets.picture_net()
    made = gc.GradCAM(network, [network.relu2])
    try:
        again = pickled(made)
        found = again(nets.pictures(), [ClassifierOutputTarget(0)])
    except Exception as error:  # noqa: BLE001 - whatever it is
        return no("cannot be pickled", f"{type(error).__name__}: {error}")
    assert gap(cam(), found) < 1e-6
    return yes("`pickle`", "the same map after reading it again")


def hosted() -> Cell:
    return no("has none", without_demo("grad-cam"))


CELLS: dict[str, Any] = {"untouched": leaves, "command": as_command}
