"""Who reads whom in a Caffe network: the layers that take part, in order, as steps over numbered values.

A layer may write in place (its top is its bottom): that makes a new value under the old name, and whoever read the name
before keeps the old value. Values have numbers, so that the steps need no names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import nn

from deeptaylor.models.caffe.layers import KINDS, Shape
from deeptaylor.models.caffe.text import Fields
from deeptaylor.models.caffe.weights import CaffeError

__all__ = ["Step", "Wiring", "layers", "named", "needed", "wire"]

MAX_LAYERS = 4_000  # the deepest published networks have a quarter of it

# The old names of layers, where they are not the new ones in capitals.
_OLD_KINDS = {
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
    for kind in (*KINDS, "Accuracy", "ArgMax", "BNLL", "Data", "Deconvolution", "Exp", "MVN", "Silence", "Threshold")
}
_DATA = ("Data", "ImageData", "MemoryData", "DummyData", "WindowData", "HDF5Data", "AnnotatedData")
_IGNORED = ("Accuracy", "Silence", "HDF5Output")  # and everything that ends in Loss: they only look at the network
# Names that the imported module has itself.
_TAKEN = {*dir(nn.Module()), "title", "input_blob", "input_shape", "output_blob", "sink", "shapes", "steps"}


@dataclass(frozen=True)
class Step:
    """A layer in the graph; the values it reads and makes have numbers, 0 being the network's input."""

    module: str
    kind: str
    fields: Fields
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    tops: tuple[str, ...]
    spent: tuple[int, ...] = ()  # what nobody reads after this step


@dataclass
class Wiring:
    """What the text says about who reads whom."""

    steps: list[Step] = field(default_factory=list)
    current: dict[str, int] = field(default_factory=dict)  # blob: the number of its last value
    inputs: dict[int, tuple[str, Shape | None]] = field(default_factory=dict)  # value: blob and shape, where it is said
    blobs: list[str] = field(default_factory=list)  # of each value
    read: set[int] = field(default_factory=set)

    def value(self, blob: str) -> int:
        self.current[blob] = len(self.blobs)
        self.blobs.append(blob)
        return self.current[blob]


def layers(net: Fields) -> list[Fields]:
    """The layers of the test phase, each knowing its name."""
    old, new = net.messages("layers"), net.messages("layer")
    if old and new:
        raise CaffeError("it has layers of both formats ('layers' and 'layer'); Caffe reads neither then.")
    if any(layer.has("layer") for layer in old):
        raise CaffeError(
            "its layers are in the first format (V0, 2013). Convert it with Caffe's upgrade_net_proto_text."
        )
    found = old or new
    if not found:
        raise CaffeError("it has no layers.")
    if len(found) > MAX_LAYERS:
        raise CaffeError(f"it has {len(found):,} layers, above {MAX_LAYERS:,}.")
    for k, layer in enumerate(found):
        layer.where = f"layer {layer.string('name')[:99] or k!r} ({_kind(layer)[:99] or 'no type'})"
    return [layer for layer in found if _takes_part(layer)]


def _kind(layer: Fields) -> str:
    kind = layer.string("type")
    return _OLD_KINDS.get(kind, kind)


def _takes_part(layer: Fields) -> bool:
    """Whether a rule admits the layer in the test phase, at level 0 and without a stage."""

    def admits(rule: Fields) -> bool:
        return (
            rule.choice("phase", "TEST", ("TRAIN", "TEST")) == "TEST"
            and rule.integer("min_level", 0, lowest=-(2**31)) <= 0 <= rule.integer("max_level", 0, lowest=-(2**31))
            and not rule.has("stage")
        )

    if layer.has("include"):
        return any(admits(rule) for rule in layer.messages("include"))
    return not any(admits(rule) for rule in layer.messages("exclude"))


def _dims(shape: Fields) -> Shape:
    return tuple(shape.integers("dim", lowest=1))


def wire(net: Fields) -> Wiring:
    """The steps of all layers, and the inputs, of the text of a network."""
    w = Wiring()
    w.blobs.append("")  # number 0: the network's input, whichever of the inputs that will be
    names = net.strings("input")
    flat, shapes = net.integers("input_dim", lowest=1), [_dims(s) for s in net.messages("input_shape")]
    if flat and (shapes or len(flat) != 4 * len(names)):
        raise CaffeError(f"{len(names)} inputs need {4 * len(names)} 'input_dim', got {len(flat)}.")
    shapes = shapes or [tuple(flat[k : k + 4]) for k in range(0, len(flat), 4)]
    for k, name in enumerate(names):
        w.inputs[w.value(name)] = name, shapes[k] if len(shapes) == len(names) else shapes[0] if shapes else None
    listed = layers(net)
    later = {top: layer.where for layer in listed for top in layer.strings("top")}
    used: set[str] = set()
    for number, layer in enumerate(listed):
        _wire_one(w, layer, number, later, used)
    return w


def _wire_one(w: Wiring, layer: Fields, number: int, later: dict[str, str], used: set[str]) -> None:
    kind, bottoms, tops = _kind(layer), layer.strings("bottom"), layer.strings("top")
    if kind in _IGNORED or kind.endswith("Loss"):
        return
    missing = [b for b in bottoms if b not in w.current]
    if missing:
        whose = (
            f"; it is made by {later[missing[0]]}, which comes later or reads this one" if missing[0] in later else ""
        )
        raise CaffeError(f"{layer.where} reads {missing[0]!r}, which no layer before it makes{whose}.")
    reads = tuple(w.current[b] for b in bottoms)
    in_place, made = set(bottoms), set[str]()
    for top in tops:
        if top in made or (top in w.current and top not in in_place):
            raise CaffeError(f"{layer.where} makes {top!r}, which exists already.")
        made.add(top)
    if kind == "Input" or kind in _DATA:
        given = [_dims(s) for s in layer.one("input_param").messages("shape")]
        for k, top in enumerate(tops):
            w.inputs[w.value(top)] = top, given[k] if len(given) == len(tops) else given[0] if given else None
        return
    module = _module_name(layer.string("name"), number, used)
    w.read.update(reads)
    w.steps.append(Step(module, kind, layer, reads, tuple(w.value(t) for t in tops), tuple(tops)))


def _module_name(name: str, number: int, used: set[str]) -> str:
    """The layer's name, changed only where a torch module cannot have it."""
    module = name.replace(".", "_")
    while not module or module in used or module in _TAKEN:
        module = f"{module}#{number}"
    used.add(module)
    return module


def needed(w: Wiring, output: str | None) -> tuple[list[Step], int, int]:
    """The steps that the output depends on, the number of the input they read, and of the output."""
    ends = [k for step in w.steps for k in step.makes if k not in w.read]
    if output is not None:
        if output not in w.current or w.current[output] in w.inputs:
            raise CaffeError(f"no layer makes the output {output!r}; there are {named(w.blobs[k] for k in ends)}.")
        ends = [w.current[output]]
    if len(ends) != 1:
        raise CaffeError(f"it has {len(ends)} outputs: choose one with output=…: {named(w.blobs[k] for k in ends)}.")
    wanted, kept = {ends[0]}, []
    for step in reversed(w.steps):
        if wanted.intersection(step.makes):
            wanted.update(step.reads)
            kept.append(step)
    unknown = [step.fields.where for step in reversed(kept) if step.kind not in KINDS]
    if unknown:
        raise CaffeError(f"{len(unknown)} layers that are not known: {named(unknown, 999)}. Known: {named(KINDS, 99)}.")
    sources = sorted(wanted.intersection(w.inputs))
    if len(sources) != 1:
        raise CaffeError(f"networks with one input are read; this has {named(w.inputs[k][0] for k in sources)}.")
    return _scheduled(kept[::-1], sources[0], ends[0]), sources[0], ends[0]


def _scheduled(steps: list[Step], source: int, sink: int) -> list[Step]:
    """The steps with the input as number 0, and with what nobody reads after each."""
    last = {k: n for n, step in enumerate(steps) for k in (*step.makes, *step.reads)}
    done = []
    for n, step in enumerate(steps):
        spent = {k for k in (*step.reads, *step.makes) if last[k] == n and k not in (source, sink)}
        reads = tuple(0 if k == source else k for k in step.reads)
        done.append(replace(step, reads=reads, spent=tuple(sorted(spent))))
    return done


def named(names: Iterable[str], most: int = 8) -> str:
    """Names for a message, the first few of many."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return (", ".join(listed[:most]) or "none") + more
