"""ONNX files of whole networks: architectures exported by torch, and the files inside packages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.models.networks.imagenet_networks import efficientnet_lite0
from deeptaylor.models.onnx.file import OnnxError
from deeptaylor.models.onnx.importer import read_onnx
from onnx_files import Array, TensorProto, agree, helper, numpy_helper, onnx, ort, ours, rand, runtime, written


class Caffe(nn.Module):
    """AlexNet's ingredients: grouped convolution, LRN, ceiling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 5, 2), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.pool = nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(8 * 7 * 7, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(torch.relu(self.a(x))))
        y: Tensor = self.head(torch.relu(self.b(x)).flatten(1))
        return y


class Inception(nn.Module):
    """Branches of several kernels, concatenated; average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
        self.branches = nn.ModuleList(
            [nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 3, padding=1), nn.Conv2d(8, 3, 5, padding=2)]
        )
        self.head = nn.Linear(21, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([*[torch.relu(b(x)) for b in self.branches], F.max_pool2d(x, 3, 1, 1)], 1)
        y: Tensor = self.head(F.avg_pool2d(x, 3, 2, 1).mean((2, 3)))
        return y


class Dense(nn.Module):
    """DenseNet: BatchNorm, ReLU, convolution, and everything before concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2, 1)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.BatchNorm2d(6 + 4 * k), nn.ReLU(), nn.Conv2d(6 + 4 * k, 4, 3, padding=1)) for k in (0, 1)]
        )
        self.head = nn.Sequential(
            nn.BatchNorm2d(14), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(14, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        y: Tensor = self.head(x)
        return y


class Shuffle(nn.Module):
    """ShuffleNet: halves, channels shuffled by reshape and transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        a, b = x.chunk(2, 1)
        x = torch.cat([a, torch.relu(self.branch(b))], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        y: Tensor = self.head(x.mean([2, 3]))
        return y


def vgg() -> nn.Module:
    conv: list[nn.Module] = []
    for before, after in [(3, 8), (8, 12), (12, 16)]:
        conv += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*conv, nn.Flatten(), nn.Linear(16 * 16, 20), nn.ReLU(), nn.Linear(20, 10))


def lite() -> nn.Module:
    return efficientnet_lite0(classes=10)


def from_zoo(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        pytest.importorskip("transformers")
        folder = str(Path(__file__).resolve().parents[3] / "benchmarks")
        if folder not in sys.path:
            sys.path.append(folder)
        import hf_zoo

        built: nn.Module = hf_zoo.family(name, seed=0).model
        return built

    return build


SIZES = {"convnext": 64, "mobilenet_v2": 64, "segformer": 64, "levit": 64, "lite": 64}
OWN: dict[str, Callable[[], nn.Module]] = {
    "caffe": Caffe,
    "vgg": vgg,
    "inception": Inception,
    "dense": Dense,
    "shuffle": Shuffle,
    "resnet": from_zoo("resnet"),
    "vit": from_zoo("vit"),
}
LARGER = {
    "lite": lite,
    **{
        k: from_zoo(k)
        for k in ("convnext", "regnet", "mobilenet_v2", "poolformer", "swin", "segformer", "levit", "focalnet")
    },
}


def exported(name: str, folder: Path, dynamo: bool) -> tuple[Path, nn.Module, Tensor]:
    torch.manual_seed(0)
    network = (OWN | LARGER)[name]().eval()
    for m in network.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, 0, 0.1)
            nn.init.uniform_(m.running_var, 0.5, 1.5)
    x = torch.rand(2, 3, SIZES.get(name, 32), SIZES.get(name, 32))
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            pytest.importorskip("onnxscript")
            free = ({0: torch.export.Dim.DYNAMIC},)
            torch.onnx.export(network, (x,), str(path), dynamo=True, dynamic_shapes=free, verbose=False)
        else:
            axes = {"x": {0: "n"}}
            torch.onnx.export(network, (x,), str(path), dynamo=False, input_names=["x"], dynamic_axes=axes)
    return path, network, x


# The exporter writes their norms and windows in other operations, which are explained each by itself.
RESPELLED = {"poolformer", "swin"}


def hold(path: Path, original: nn.Module, x: Tensor) -> None:
    """onnxruntime's outputs; the books close; and the explanation is that of the network it was exported from."""
    network = agree(path, x.numpy(), 1e-4)
    assert network.batch is None
    explainer = dt.Explainer(network, x, dt.Box(0.0, 1.0), bias="neuron")
    assert not [note for note in explainer.plan.notes if "batch" in note]
    target = int(network(x)[0].argmax())
    explanation = explainer.explain(x, target)
    found = explanation.check()
    assert found.accounted, str(found)
    assert found.positive, str(found)
    assert found.negative + found.empty < found.samples
    if path.stem in RESPELLED:
        return
    expected = dt.Explainer(original, x, dt.Box(0.0, 1.0), bias="neuron").explain(x, target)
    scale = float(expected.relevance.abs().max())
    torch.testing.assert_close(explanation.relevance, expected.relevance, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("name", OWN)
def test_exported(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGER)
def test_exported_larger(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, "lite", "convnext", "regnet", "segformer"])
def test_exported_by_dynamo(name: str, tmp_path: Path) -> None:
    hold(*exported(name, tmp_path, dynamo=True))


# --- files inside packages -------------------------------------------------------------------------------------------


WHEEL = Path(onnx.__file__).parent / "backend" / "test" / "data"


def stored(path: Path) -> Array:
    proto = TensorProto()
    proto.ParseFromString(path.read_bytes())
    array: Array = numpy_helper.to_array(proto)
    return array


CONVERTED = sorted(p.parent for k in ("pytorch-converted", "pytorch-operator") for p in WHEEL.glob(f"{k}/*/model.onnx"))


def test_the_wheel_holds_files() -> None:
    assert len(CONVERTED) > 100


@pytest.mark.parametrize("folder", CONVERTED, ids=lambda p: p.name)
def test_file_of_the_onnx_wheel(folder: Path) -> None:
    """The standard's own examples, by its own outputs."""
    network = read_onnx(folder / "model.onnx")
    data = folder / "test_data_set_0"
    found = ours(network, *[stored(data / f"input_{k}.pb") for k in range(len(network.input_names))])
    for k, y in enumerate(found):
        np.testing.assert_allclose(y, stored(data / f"output_{k}.pb"), rtol=1e-4, atol=1e-4)


def randomised(name: str, folder: Path) -> Path:
    """A network of the model zoo with random weights; in the wheel they are constants, and all classes are alike."""
    model = onnx.load(WHEEL / "light" / f"light_{name}.onnx")
    random = np.random.default_rng(0)
    shapes = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    variances = {n.input[4] for n in model.graph.node if n.op_type == "BatchNormalization"}
    nodes = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shape = [int(s) for s in shapes[node.input[0]]]
        fan = max(int(np.prod(shape[1:])), 1)
        values = random.normal(0, (2 / fan) ** 0.5 if len(shape) > 1 else 0.1, shape)
        if node.output[0] in variances:
            values = random.uniform(0.5, 1.5, shape)
        elif any(k in node.output[0] for k in ("_s_", "scale", "_gamma")) and len(shape) == 1:
            values += 1
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return written(model, folder)


PARAMETERS = {"bvlc_alexnet": 60_965_224, "inception_v1": 6_998_552, "squeezenet": 1_235_496, "resnet50": 25_557_032}
QUICK = ("squeezenet", "shufflenet")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(k, marks=() if k in QUICK else pytest.mark.slow)
        for k in (
            *QUICK,
            "bvlc_alexnet",
            "densenet121",
            "inception_v1",
            "inception_v2",
            "resnet50",
            "zfnet512",
            "vgg19",
        )
    ],
)
def test_network_of_the_model_zoo(name: str, tmp_path: Path) -> None:
    path = randomised(name, tmp_path)
    x = rand(2, 3, 224, 224, low=0.0)
    network = read_onnx(path, flatten=True)
    assert (network.batch, network.input_shape) == (None, (3, 224, 224))
    if name in PARAMETERS:
        assert sum(p.numel() for p in network.parameters()) == PARAMETERS[name]
    last = onnx.load(path, load_external_data=False).graph.node[-1]
    logits = last.input[0] if last.op_type == "Softmax" else last.output[0]
    model = onnx.load(path)
    model.graph.output.append(helper.make_empty_tensor_value_info(logits))
    found = read_onnx(path, outputs=[logits], flatten=True)
    [y] = ours(found, x)
    there = [runtime(written(model, tmp_path, "more.onnx"), {network.input_names[0]: x[k : k + 1]})[-1] for k in (0, 1)]
    expected = np.concatenate(there).reshape(2, -1)
    assert expected.std() > 1e-3
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    picture = torch.from_numpy(x[:1])
    check = dt.Explainer(network, picture, dt.Box(0.0, 1.0), bias="neuron").explain(picture).check()
    assert check.accounted, str(check)
    assert check.positive, str(check)


def test_files_of_the_onnxruntime_wheel() -> None:
    folder = Path(ort.__file__).parent / "datasets"
    agree(folder / "mul_1.onnx", rand(3, 2))
    agree(folder / "sigmoid.onnx", rand(3, 4, 5))
    with pytest.raises(OnnxError, match=r"outside the ONNX standard: ai\.onnx\.ml::LinearClassifier"):
        read_onnx(folder / "logreg_iris.onnx")
