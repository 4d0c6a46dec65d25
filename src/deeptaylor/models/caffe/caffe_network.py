"""Import a Caffe network as one torch module.

read_caffe
├── wire               the steps of all layers: which value each layer reads and makes
├── select_steps       the layers that the output depends on, and the one input they read
├── _build             a module for each layer and the shape of every blob, on the meta device
└── _load_weights      copy the file's arrays into the modules, once their shapes are known to fit

A layer may write in place (its top is its bottom). That makes a new value under the old name; layers that read the name
before keep the old value. Values have numbers, so that steps need no names.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from deeptaylor.errors import Wording
from deeptaylor.models.caffe.caffe_files import Blob, CaffeError, Fields, read_prototxt, read_weights
from deeptaylor.models.caffe.caffe_layers import LAYER_KINDS, CaffeBatchNorm, InnerProduct, Shape

__all__ = ["CaffeGraph", "read_caffe"]


# --- steps ------------------------------------------------------------------------------------------------------------


MAX_ELEMENTS = 2**28  # of a blob for one sample, and of all random weights together: a GiB of float32
MAX_BATCH = 2**16
MAX_LAYERS = 4_000  # the deepest published networks have a quarter of it

# The names of layers in the old format, to the new ones.
_V1_KINDS = {
    "INNER_PRODUCT": "InnerProduct",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "HINGE_LOSS": "HingeLoss",
    "INFOGAIN_LOSS": "InfogainLoss",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "IMAGE_DATA": "ImageData",
    "MEMORY_DATA": "MemoryData",
    "DUMMY_DATA": "DummyData",
    "WINDOW_DATA": "WindowData",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
} | {
    kind.upper(): kind
    for kind in (
        *LAYER_KINDS,
        "Accuracy",
        "ArgMax",
        "BNLL",
        "Data",
        "Deconvolution",
        "Exp",
        "MVN",
        "Silence",
        "Threshold",
    )
}
_DATA = ("Data", "ImageData", "MemoryData", "DummyData", "WindowData", "HDF5Data", "AnnotatedData")
_IGNORED = ("Accuracy", "Silence", "HDF5Output")  # and everything that ends in Loss: they do not change its outputs
# Attributes of the imported module, which no submodule may replace.
_RESERVED = {*dir(nn.Module()), "title", "input_blob", "input_shape", "output_blob", "sink", "shapes", "steps"}


@dataclass(frozen=True)
class CaffeStep:
    """A layer in the graph; the values it reads and makes are numbers, 0 being the network's input."""

    module: str
    kind: str
    fields: Fields
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    tops: tuple[str, ...]
    last_reads: tuple[int, ...] = ()  # values that no later step reads


@dataclass
class Wiring:
    """The steps of all layers, and the values and inputs of the network."""

    steps: list[CaffeStep] = field(default_factory=list)
    current: dict[str, int] = field(default_factory=dict)  # blob: the number of its last value
    inputs: dict[int, tuple[str, Shape | None]] = field(
        default_factory=dict
    )  # value: blob and shape, if it is declared
    blobs: list[str] = field(default_factory=list)  # of each value
    read: set[int] = field(default_factory=set)

    def add_value(self, blob: str) -> int:
        """Add a value of a blob and return its number."""
        self.current[blob] = len(self.blobs)
        self.blobs.append(blob)
        return self.current[blob]


def _list_layers(net: Fields) -> list[Fields]:
    """Return the layers of the test phase; set the name that errors call each by."""
    old, new = net.messages("layers"), net.messages("layer")
    if old and new:
        raise CaffeError("it has layers of both formats ('layers' and 'layer'); Caffe reads neither then.")
    if any(layer.has("layer") for layer in old):
        raise CaffeError(
            "its layers are in the first format (V0, 2013). Convert it with Caffe's upgrade_net_proto_text."
        )
    layers = old or new
    if not layers:
        raise CaffeError("it has no layers.")
    if len(layers) > MAX_LAYERS:
        raise CaffeError(f"it has {len(layers):,} layers, above {MAX_LAYERS:,}.")
    for k, layer in enumerate(layers):
        layer.where = f"layer {layer.string('name')[:99] or k!r} ({_kind(layer)[:99] or 'no type'})"
    return [layer for layer in layers if _is_in_test_phase(layer)]


def _kind(layer: Fields) -> str:
    kind = layer.string("type")
    return _V1_KINDS.get(kind, kind)


def _is_in_test_phase(layer: Fields) -> bool:
    """Return True if the layer's rules admit it in the test phase, at level 0 and without a stage."""

    def is_admitted(rule: Fields) -> bool:
        return (
            rule.choice("phase", "TEST", ("TRAIN", "TEST")) == "TEST"
            and rule.integer("min_level", 0, lowest=-(2**31)) <= 0 <= rule.integer("max_level", 0, lowest=-(2**31))
            and not rule.has("stage")
        )

    if layer.has("include"):
        return any(is_admitted(rule) for rule in layer.messages("include"))
    return not any(is_admitted(rule) for rule in layer.messages("exclude"))


def _dims(shape: Fields) -> Shape:
    return tuple(shape.integers("dim", lowest=1))


def wire(net: Fields) -> Wiring:
    """Return the steps of all layers, and the inputs, of the text of a network."""
    w = Wiring()
    w.blobs.append("")  # number 0: the network's input, whichever of the inputs that will be
    names = net.strings("input")
    flat, shapes = net.integers("input_dim", lowest=1), [_dims(s) for s in net.messages("input_shape")]
    if flat and (shapes or len(flat) != 4 * len(names)):
        raise CaffeError(f"{len(names)} inputs need {4 * len(names)} 'input_dim', got {len(flat)}.")
    shapes = shapes or [tuple(flat[k : k + 4]) for k in range(0, len(flat), 4)]
    for k, name in enumerate(names):
        w.inputs[w.add_value(name)] = name, _pick_shape(shapes, k, len(names))
    listed = _list_layers(net)
    later = {top: layer.where for layer in listed for top in layer.strings("top")}
    used: set[str] = set()
    for number, layer in enumerate(listed):
        _wire_layer(w, layer, number, later, used)
    return w


def _pick_shape(shapes: list[Shape], k: int, count: int) -> Shape | None:
    """Return the shape of input k of several; one shape holds for all."""
    return shapes[k] if len(shapes) == count else shapes[0] if shapes else None


def _wire_layer(w: Wiring, layer: Fields, number: int, later: dict[str, str], used: set[str]) -> None:
    kind, bottoms, tops = _kind(layer), layer.strings("bottom"), layer.strings("top")
    if kind in _IGNORED or kind.endswith("Loss"):
        return
    missing = [b for b in bottoms if b not in w.current]
    if missing:
        maker = f"; {later[missing[0]]} makes it, which comes later or reads this one" if missing[0] in later else ""
        raise CaffeError(f"{layer.where} reads {missing[0]!r}, which no layer before it makes{maker}.")
    reads = tuple(w.current[b] for b in bottoms)
    in_place, made = set(bottoms), set[str]()
    for top in tops:
        if top in made or (top in w.current and top not in in_place):
            raise CaffeError(f"{layer.where} makes {top!r}, which exists already.")
        made.add(top)
    if kind == "Input" or kind in _DATA:
        declared = [_dims(s) for s in layer.one("input_param").messages("shape")]
        for k, top in enumerate(tops):
            w.inputs[w.add_value(top)] = top, _pick_shape(declared, k, len(tops))
        return
    module = _module_name(layer.string("name"), number, used)
    w.read.update(reads)
    w.steps.append(CaffeStep(module, kind, layer, reads, tuple(w.add_value(t) for t in tops), tuple(tops)))


def _module_name(name: str, number: int, used: set[str]) -> str:
    """Return the layer's name, changed only if a torch module cannot have it."""
    module = name.replace(".", "_")
    while not module or module in used or module in _RESERVED:
        module = f"{module}#{number}"
    used.add(module)
    return module


def select_steps(w: Wiring, output: str | None) -> tuple[list[CaffeStep], int, int]:
    """Return the steps that the output depends on, the number of the input they read, and that of the output."""
    ends = [k for step in w.steps for k in step.makes if k not in w.read]
    if output is not None:
        if output not in w.current or w.current[output] in w.inputs:
            raise CaffeError(
                f"no layer makes the output {output!r}; there are {_join_names(w.blobs[k] for k in ends)}."
            )
        ends = [w.current[output]]
    if len(ends) != 1:
        raise CaffeError(
            f"it has {len(ends)} outputs, {_join_names(w.blobs[k] for k in ends)}: choose one, {{output}}.", output=...
        )
    wanted, steps = {ends[0]}, []
    for step in reversed(w.steps):
        if wanted.intersection(step.makes):
            wanted.update(step.reads)
            steps.append(step)
    unknown = [step.fields.where for step in reversed(steps) if step.kind not in LAYER_KINDS]
    if unknown:
        raise CaffeError(
            f"{len(unknown)} layers are not supported: {_join_names(unknown, 999)}. "
            f"Supported: {_join_names(LAYER_KINDS, 99)}."
        )
    sources = sorted(wanted.intersection(w.inputs))
    if len(sources) != 1:
        raise CaffeError(
            f"only networks with one input are supported; this one has {_join_names(w.inputs[k][0] for k in sources)}."
        )
    return _schedule(steps[::-1], sources[0], ends[0]), sources[0], ends[0]


def _schedule(steps: list[CaffeStep], source: int, sink: int) -> list[CaffeStep]:
    """Set the input's number to 0, and record for each step the values that no later one reads."""
    last = {k: n for n, step in enumerate(steps) for k in (*step.makes, *step.reads)}
    scheduled = []
    for n, step in enumerate(steps):
        unread = {k for k in (*step.reads, *step.makes) if last[k] == n and k not in (source, sink)}
        reads = tuple(0 if k == source else k for k in step.reads)
        scheduled.append(replace(step, reads=reads, last_reads=tuple(sorted(unread))))
    return scheduled


def _join_names(names: Iterable[str], most: int = 8) -> str:
    """Join names for a message; of many, the first few."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "none") + more


# --- the network ------------------------------------------------------------------------------------------------------


class CaffeGraph(nn.Module):
    """An imported network from an input blob to an output blob, for any batch size; layers are submodules by name.

    input_shape   of one sample, without the batch
    shapes        of every blob for one sample, by its name
    """

    def __init__(self, title: str, input_blob: str, output_blob: str, steps: Sequence[CaffeStep], sink: int) -> None:
        super().__init__()
        self.title, self.input_blob, self.output_blob = title, input_blob, output_blob
        self.steps, self.sink = tuple(steps), sink
        self.shapes: dict[str, Shape] = {}
        self.input_shape: Shape = ()

    def forward(self, x: Tensor) -> Tensor:
        values = {0: x}
        for step in self.steps:
            made = self.get_submodule(step.module)(*[values[k] for k in step.reads])
            values.update(zip(step.makes, made if isinstance(made, tuple) else (made,), strict=True))
            for k in step.last_reads:
                del values[k]
        return values[self.sink]

    def extra_repr(self) -> str:
        """Return title, input and output."""
        return f"{self.title!r}: {self.input_blob!r} {self.input_shape} to {self.output_blob!r}"


def read_caffe(
    prototxt: str | os.PathLike[str],
    caffemodel: str | os.PathLike[str] | None = None,
    *,
    input_shape: Sequence[int] | None = None,
    output: str | None = None,
) -> CaffeGraph:
    """Return the network of a Caffe file in eval mode, with its weights, or with random ones if no weights are given.

    input_shape   shape of one sample, such as (3, 227, 227), if the text does not declare it (training networks)
    output        the blob to compute, if the text leaves several unread (auxiliary classifiers)
    """
    net = read_prototxt(prototxt)
    try:
        wiring = wire(net)
        steps, source, sink = select_steps(wiring, output)
        blob, declared = wiring.inputs[source]
        shape = _batch_shape(blob, declared, input_shape)
        graph = CaffeGraph(net.string("name"), blob, wiring.blobs[sink], steps, sink)
        _build(graph, shape)
    except CaffeError as error:
        raise CaffeError(Wording(f"{prototxt}: ") + error.wording) from None
    if caffemodel is None:
        _randomise(graph, prototxt)
    else:
        weights = read_weights(caffemodel)
        try:
            _load_weights(graph, weights)
        except CaffeError as error:
            raise CaffeError(f"{caffemodel}: {error}") from None
    return graph.eval()


def _batch_shape(blob: str, declared: Shape | None, sample: Sequence[int] | None) -> Shape:
    """Return the shape of a batch of the network's input."""
    shape = declared or (None if sample is None else (1, *map(int, sample)))
    if not shape:
        raise CaffeError(
            f"the shape of the input {blob!r} is not declared. Give it: input_shape=(channels, height, width)."
        )
    if len(shape) < 2 or min(shape) < 1 or math.prod(shape[1:]) > MAX_ELEMENTS or shape[0] > MAX_BATCH:
        raise CaffeError(f"the input {blob!r} cannot have the shape {shape}.")
    return shape


# --- the modules ------------------------------------------------------------------------------------------------------


def _build(graph: CaffeGraph, shape: Shape) -> None:
    """Add the modules and compute all shapes on the meta device, without allocating memory."""
    values = {0: torch.empty(shape, device="meta")}
    graph.input_shape = shape[1:]
    graph.shapes[graph.input_blob] = shape[1:]
    for step in graph.steps:
        where, kind = step.fields.where, LAYER_KINDS[step.kind]
        if not kind.fewest <= len(step.reads) <= kind.most or not step.makes:
            raise CaffeError(f"{where} cannot have {len(step.reads)} inputs and {len(step.makes)} outputs.")
        inputs = [values[k] for k in step.reads]
        try:
            with torch.device("meta"):
                module = kind.build(step.fields, [tuple(x.shape) for x in inputs]).eval()
            with torch.no_grad():
                made = module(*inputs)
        except CaffeError:
            raise
        except (RuntimeError, ValueError, IndexError, OverflowError) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CaffeError(f"{where} does not fit its input {[tuple(x.shape) for x in inputs]}: {reason}") from error
        outputs = made if isinstance(made, tuple) else (made,)
        if len(outputs) != len(step.makes):
            raise CaffeError(f"{where} makes {len(outputs)} outputs, the text names {len(step.makes)}.")
        for k, top, y in zip(step.makes, step.tops, outputs, strict=True):
            if min(y.shape) < 1 or math.prod(y.shape[1:]) > MAX_ELEMENTS:
                raise CaffeError(f"{where} makes {top!r} with the shape {tuple(y.shape)}.")
            values[k] = y
            graph.shapes[top] = tuple(y.shape[1:])
        graph.add_module(step.module, module)


def _randomise(graph: CaffeGraph, prototxt: str | os.PathLike[str]) -> None:
    count = sum(p.numel() for p in graph.parameters())
    if count > MAX_ELEMENTS:
        raise CaffeError(f"{prototxt}: {count:,} random weights asked for, above {MAX_ELEMENTS:,}.")
    graph.to_empty(device="cpu")
    for module in graph.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()


# --- the weights ------------------------------------------------------------------------------------------------------


def _load_weights(graph: CaffeGraph, weights: dict[str, list[Blob]]) -> None:
    """Copy the file's arrays into the modules; raise a CaffeError that names every misfit before anything is copied."""
    wanted = {}
    for step in graph.steps:
        shapes = _blob_shapes(graph.get_submodule(step.module))
        name = step.fields.string("name")
        if shapes and name in wanted:
            raise CaffeError(
                f"two layers of the text are called {name!r} and need weights: the file does not tell them apart."
            )
        if shapes:
            wanted[name] = (step, shapes)
    missing = [step.fields.where for name, (step, _) in wanted.items() if name not in weights]
    if missing:
        raise CaffeError(f"it has no weights for {_join_names(missing)}; it has them for {_join_names(weights)}.")
    wrong = []
    for name, (step, shapes) in wanted.items():
        found = [blob.shape for blob in weights[name]]
        if [_strip_ones(s) for s in found] != [_strip_ones(s) for s in shapes]:
            wrong.append(f"{step.fields.where} expects {shapes}, received {found}")
    if wrong:
        raise CaffeError(f"the weights do not fit the text: {'; '.join(wrong[:8])}.")
    for name, (step, shapes) in wanted.items():
        arrays = [_to_tensor(b, s, step.fields.where) for b, s in zip(weights[name], shapes, strict=True)]
        _assign(graph.get_submodule(step.module), arrays, step.fields.where)


def _blob_shapes(module: nn.Module) -> list[Shape]:
    """Return the shapes of the arrays that Caffe stores for a layer."""
    if isinstance(module, CaffeBatchNorm):
        return [(module.num_features,), (module.num_features,), (1,)]
    shapes = [tuple(p.shape) for p in module.parameters()]
    if isinstance(module, InnerProduct) and module.transposed:
        shapes[0] = shapes[0][::-1]
    return shapes


def _strip_ones(shape: Shape) -> Shape:
    """Remove the leading ones with which old files pad a shape to four axes."""
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _to_tensor(blob: Blob, shape: Shape, where: str) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        tensor = torch.from_numpy(blob.data.astype(np.float32)).reshape(shape)
    if not bool(torch.isfinite(tensor).all()):
        raise CaffeError(f"{where} has weights that are not finite.")
    return tensor


def _assign(module: nn.Module, arrays: list[Tensor], where: str) -> None:
    if isinstance(module, CaffeBatchNorm):
        # The file holds sums; the third array is their divisor.
        mean, variance, count = arrays
        factor = 0.0 if float(count) == 0 else 1 / float(count)
        module.running_mean, module.running_var = mean * factor, variance * factor
        module.num_batches_tracked = torch.tensor(0)
        if not bool((module.running_var + module.eps > 0).all()) or not bool(torch.isfinite(module.running_mean).all()):
            raise CaffeError(f"{where} has variances that are not positive, or statistics that are not finite.")
        return
    if isinstance(module, InnerProduct) and module.transposed:
        arrays = [arrays[0].T.contiguous(), *arrays[1:]]
    for (name, _), array in zip(list(module.named_parameters()), arrays, strict=True):
        setattr(module, name, nn.Parameter(array))
