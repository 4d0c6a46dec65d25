"""A model file: what it is, told without running anything in it, and the weights or the program read out of it.

find_kind(path), by the first bytes and, in a zip archive, the names of its members
├── constants.pkl, code/      TORCHSCRIPT      a program              ┐
├── archive_format            PT2              an exported program    ├ read only if the user trusts the file
├── data.pkl                  PICKLE           pickled objects ...    ┘
│                                              ... or only tensors: a state dict, read with weights_only
├── {" behind a length        SAFETENSORS      a state dict
├── gzip, called .tgz         NPM              an npm package
└── anything else             its ending: .onnx, .caffemodel; or what it seems to be, for the error

To read a program is to run it: `read_exported`, `read_torchscript` and `unpickle` are called only if the user trusts
the file explicitly (`deeptaylor.load`).
"""

from __future__ import annotations

import io
import os
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import LoadError, warn
from deeptaylor.graph.failure import first_line
from deeptaylor.support.files import special_kind
from deeptaylor.support.optional import optional_package

__all__ = [
    "COUNTS",
    "STATE_READERS",
    "FileKind",
    "check_memory",
    "fill_network",
    "find_kind",
    "format_list",
    "list_pickled_names",
    "read_exported",
    "read_state",
    "read_torchscript",
    "unpickle",
    "unwrap_state",
]

_COPIES = 2  # the file's tensors, and the network that they are copied into
_SHOWN = 6
COUNTS = "num_batches_tracked"  # only counted in training, and left out by old files
_LARGEST_PICKLE = 2**26  # names and shapes of a state dict; its numbers lie beside it
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")
# What a pickle of names and tensors needs; torch's own restricted reader decides, this is for telling them apart.
_OF_TENSORS = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.\w*Storage|torch\.(Size|device)|__builtin__\.set"
)


class FileKind(Enum):
    """What a model file is; the value is how a sentence calls it."""

    TORCHSCRIPT = "a TorchScript program"
    PT2 = "a program exported by torch.export"
    PICKLE = "a file of torch.save"
    SAFETENSORS = "a safetensors file"
    ONNX = "an ONNX file"
    CAFFE = "a Caffe weights file"
    NPM = "an npm package"


_ENDINGS = {
    ".onnx": (FileKind.ONNX,),
    ".caffemodel": (FileKind.CAFFE,),
    ".safetensors": (FileKind.SAFETENSORS,),
    ".pt2": (FileKind.PT2,),
    ".pt": (FileKind.PICKLE, FileKind.TORCHSCRIPT),
    ".pth": (FileKind.PICKLE, FileKind.TORCHSCRIPT),
    ".ckpt": (FileKind.PICKLE,),
    ".bin": (FileKind.PICKLE,),
    ".tgz": (FileKind.NPM,),
}
_STRANGERS = (
    (b"version https://git-lfs", "a pointer of git-lfs, not the file itself (fetch it with: git lfs pull)"),
    (b"<!doctype html", "a web page, perhaps the error of a download"),
    (b"<html", "a web page, perhaps the error of a download"),
    (b"\x89HDF", "an HDF5 file, as Keras writes them; export the network to ONNX"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"PK", "a zip archive that does not come from torch.save, torch.jit or torch.export"),
)


def find_kind(path: Path) -> FileKind:
    """Return the kind of a file by its content; raise if its name disagrees or the kind is unknown."""
    if path.is_dir():
        raise LoadError(f'{path} is a folder; a folder of transformers is loaded with dt.load("hf:{path}").')
    if what := special_kind(path):
        raise LoadError(f"{path} is {what}, and a network is read from a plain file; copy it into one.")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise LoadError(f"there is no file {path}.") from error
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not start:
        raise LoadError(f"{path} is empty.")
    said = _ENDINGS.get(path.suffix.lower())
    found = _inspect_content(path, start)
    if found is None and said in ((FileKind.ONNX,), (FileKind.CAFFE,)):
        found = next((words for sign, words in _STRANGERS if start.lower().startswith(sign.lower())), None)
        if found is None:
            return said[0]  # both are protobuf without a mark of their own; their readers look closer
    if isinstance(found, FileKind) and (said is None or found in said):
        return found
    if said is None and not isinstance(found, FileKind):
        raise LoadError(
            f"{path} is not a known model file; known are: {', '.join(sorted(_ENDINGS))}."
            + (f" It is {found}." if found else "")
        )
    words = found.value if isinstance(found, FileKind) else found
    raise LoadError(
        f"{path} is not what its name says: a {path.suffix.lower()} file is "
        f"{' or '.join(kind.value for kind in said or ())}, and this is {words or 'neither, or damaged'}."
    )


def _inspect_content(path: Path, start: bytes) -> FileKind | str | None:
    """Return a kind, or a description of something else, or None."""
    if start.startswith(b"PK") and zipfile.is_zipfile(path):
        try:
            members = _list_members(path)
        except zipfile.BadZipFile as error:
            raise LoadError(f"{path} is damaged or cut short: {error}.") from error
        # Members lie in one folder, which is called as the file was.
        names = {name.partition("/")[2] for name in members}
        if "archive_format" in names or any(name.startswith("serialized_exported_program") for name in members):
            return FileKind.PT2
        if "constants.pkl" in names:
            return FileKind.TORCHSCRIPT
        if "data.pkl" in names:
            return FileKind.PICKLE
    elif start.startswith(b"PK"):
        raise LoadError(f"{path} is damaged or cut short: a zip archive without its end.")
    if start.startswith(b"\x80") and start[1] in (2, 3, 4, 5):
        return FileKind.PICKLE
    if len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return FileKind.SAFETENSORS
    if start.startswith(b"\x1f\x8b") and path.suffix.lower() == ".tgz":
        return FileKind.NPM
    return next((words for sign, words in _STRANGERS if start.lower().startswith(sign.lower())), None)


def _list_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info for info in archive.infolist()}


def check_memory(path: Path, size: int = 0) -> None:
    """Raise, before it is read, if a model does not fit into memory; `size`: its size if known."""
    size = max(size, path.stat().st_size)
    if zipfile.is_zipfile(path):
        size = max(size, sum(info.file_size for info in _list_members(path).values()))  # members may be compressed
    free = _measure_free_memory()
    if free is not None and _COPIES * size > free:
        raise LoadError(
            f"{path} would take about {_format_gib(_COPIES * size)} of memory ({_format_gib(size)} of numbers, read "
            f"and then copied into the network), and {_format_gib(free)} are free. Free some, or load it on a larger "
            "machine."
        )


def _format_gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _measure_free_memory() -> int | None:
    """Return the bytes free on the machine, to this process and to its group; None if unknown."""
    found = _read_address_limits()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        names = ("SC_AVPHYS_PAGES", "SC_PAGE_SIZE")
        if all(name in getattr(os, "sysconf_names", {}) for name in names):
            found.append(os.sysconf(names[0]) * os.sysconf(names[1]))
    try:
        group = Path("/sys/fs/cgroup")
        most, used = ((group / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
        if most != "max":
            found.append(max(0, int(most) - int(used)))
    except (OSError, ValueError):
        pass
    return min(found) if found else None


def _read_address_limits() -> list[int]:
    """Return the bytes that `ulimit -v` leaves."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return [] if most == resource.RLIM_INFINITY else [max(0, most - pages * resource.getpagesize())]
    except (ImportError, OSError):
        return []


def list_pickled_names(path: Path) -> list[str]:
    """List the names other than tensors that unpickling would import and call, without unpickling."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inner = next(name for name in archive.namelist() if name.partition("/")[2] == "data.pkl")
            size = archive.getinfo(inner).file_size
            if size > _LARGEST_PICKLE:
                raise LoadError(
                    f"{path} is rejected: its list of names unpacks to {_format_gib(size)}, which no network needs."
                )
            names = set(_list_globals(io.BytesIO(archive.read(inner))))
    else:
        with path.open("rb") as file:
            names = set(_list_globals(file))
    return sorted(name for name in names if not _OF_TENSORS.fullmatch(name))


def _list_globals(file: IO[bytes]) -> Iterator[str]:
    """Yield every name that a pickle looks up, with its module."""
    # Before zip archives there were four pickles: a magic number, a version, words on the system, the object.
    for _ in range(4):
        strings: list[str] = []
        memo: dict[int, str] = {}
        before = ""  # the string that the opcode before has put on the stack
        try:
            for opcode, argument, _position in pickletools.genops(file):
                if opcode.name in ("GLOBAL", "INST"):
                    yield str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL":
                    yield ".".join(strings[-2:])
                elif opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
                    memo[len(memo) if argument is None else int(argument)] = before
                    continue
                before = ""
                if "UNICODE" in opcode.name:
                    before = str(argument)
                elif opcode.name in ("BINGET", "LONG_BINGET"):
                    before = memo.get(int(argument or 0), "")
                strings += [before] if before else []
        except ValueError:
            return  # its end; or damaged, and whoever reads it for good will say so


def read_state(path: Path, kind: FileKind) -> tuple[dict[str, Tensor], tuple[str, ...]] | None:
    """Return the tensors of a state dict, and notes; or None if a file of torch.save holds other objects too."""
    if kind in STATE_READERS:
        return STATE_READERS[kind](path), ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a newer pickle protocol: it works, or it raises
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        return None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise LoadError(f"{path} is damaged or cut short: {str(error).splitlines()[0]}") from error
    return unwrap_state(path, saved)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    why = f"{path} is a safetensors file"
    safetensors = optional_package("safetensors", why)
    reader = optional_package("safetensors.torch", why)
    try:
        tensors: dict[str, Tensor] = reader.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise LoadError(f"{path} is damaged or cut short: {error}") from error
    return tensors


# Files that hold names and tensors and nothing else.
STATE_READERS: Mapping[FileKind, Callable[[Path], dict[str, Tensor]]] = {
    FileKind.SAFETENSORS: _read_safetensors,
}


def unwrap_state(path: Path, saved: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the state dict itself, also out of a checkpoint of a training program; and a note if it is one of several.

    The file also holds, for example, the means of the weights over the training ("ema").
    """
    if isinstance(saved, Mapping):
        if _is_state(saved):
            return dict(saved), ()
        inside = [key for key in _WRAPPERS if _is_state(saved.get(key))]
        if len(inside) > 1:
            raise LoadError(
                f"{path} holds several state dicts: {', '.join(map(repr, inside))}. Save the one that you mean in a "
                "file of its own."
            )
        if inside:
            others = [repr(key) for key, value in saved.items() if key != inside[0] and _holds_state(value)]
            note = f"{path.name} holds several state dicts: {inside[0]!r} was taken, and not {', '.join(others)}"
            if others:
                warn(f"{note}. Save the other one in a file of its own to explain it.")
            return dict(saved[inside[0]]), (note,) if others else ()
        held = f"a dict with the keys {', '.join(map(repr, list(saved)[:_SHOWN]))}"
    else:
        held = f"a {type(saved).__name__}"
    raise LoadError(f"{path} holds no state dict (names and tensors), but {held}.")


def _holds_state(value: Any) -> bool:
    """Return whether a value is a state dict or wraps one; that of an optimizer numbers its entries and is none."""
    inner = (value.get(key) for key in (*_WRAPPERS, "module", "shadow")) if isinstance(value, Mapping) else ()
    return _is_state(value) or any(map(_is_state, inner))


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def fill_network(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a network; refused, with every difference, where they do not fit it exactly."""
    wanted = network.state_dict()
    state = _strip_wrappers(state, wanted)
    missing = [k for k in wanted if k not in state and not k.endswith(COUNTS)]
    unexpected = [k for k in state if k not in wanted]
    shapes = [
        f"{k}: {tuple(state[k].shape)} in the file, {tuple(wanted[k].shape)} in the network"
        for k in wanted
        if k in state and state[k].shape != wanted[k].shape
    ]
    numbers = [
        f"{k}: {'sparse, ' if v.layout is not torch.strided else ''}{v.dtype}, on {v.device}"
        for k, v in state.items()
        if k in wanted and wanted[k].is_floating_point() and not _is_real(v)
    ]
    if missing or unexpected or shapes or numbers:
        raise LoadError(
            f"the weights in {source} do not fit {type(network).__name__}:"
            + format_list("the network needs and the file lacks", missing)
            + format_list("the file has and the network lacks", unexpected)
            + format_list("of another shape", shapes)
            + format_list("not plain real numbers: quantised, sparse, complex or without data", numbers)
            + "\nIs this the architecture, with as many classes, that the file was saved from?"
        )
    broken = [k for k, v in state.items() if v.is_floating_point() and not bool(v.isfinite().all())]
    if broken:
        raise LoadError(f"the weights in {source} are damaged:" + format_list("not finite", broken))
    network.load_state_dict(dict(state), strict=False)


def _strip_wrappers(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Remove prefixes that all names share, as DataParallel and torch.compile add them."""
    inner = state
    while inner and not inner.keys() <= wanted.keys():
        heads = {name.partition(".")[0] for name in inner}
        if len(heads) > 1 or not all("." in name for name in inner):
            return state
        inner = {name.partition(".")[2]: tensor for name, tensor in inner.items()}
    return inner


def _is_real(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_meta
    return plain and tensor.is_floating_point() and tensor.element_size() > 1  # a float8 is nothing without its scale


def format_list(title: str, lines: list[str]) -> str:
    """List lines under a title, the first of them; "" if there are none."""
    if not lines:
        return ""
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return f"\n  {title} ({len(lines)}):" + "".join(f"\n    {line}" for line in [*lines[:_SHOWN], *more])


# --- programs ---------------------------------------------------------------------------------------------------------


aten = torch.ops.aten


class _Program(nn.Module):
    """A program as an ordinary module: inspected, switched to eval mode and captured like any other."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: Tensor) -> Any:
        return self.program(x)


def read_exported(path: Path) -> nn.Module:
    """Read the network in a file of torch.export.save."""
    try:
        return _Program(torch.export.load(path).module())
    except Exception as error:  # whatever a damaged or newer program raises
        raise LoadError(f"{path} cannot be read by torch {torch.__version__}: {first_line(error)}") from error


def read_torchscript(path: Path, example: Tensor) -> tuple[nn.Module, bool]:
    """Read a TorchScript file as operations that torch.export takes; return also whether its batch size is free.

    It is traced with an example of its input: two samples first, and one where the program insists on that.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript itself is on its way out
            program = _Program(torch.jit.load(path, map_location="cpu").eval())
        with torch.no_grad():
            traced = _trace(program, torch.cat([example, example]))
            try:
                traced(example)
            except RuntimeError:
                return _trace(program, example), False
            return traced, True
    except Exception as error:
        raise LoadError(f"{path} cannot be read by torch {torch.__version__}: {first_line(error)}") from error


def _trace(program: nn.Module, example: Tensor) -> nn.Module:
    from torch.fx.experimental.proxy_tensor import make_fx  # not everyone needs it, and it is slow to import

    trace = make_fx(program, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
    graph = trace(example)
    for node in graph.graph.find_nodes(op="call_function", target=aten._convolution.default):
        # TorchScript's own spelling of a convolution: four flags of cuDNN more.
        node.target, node.args = aten.convolution.default, node.args[:9]
    graph.recompile()
    return graph


def unpickle(path: Path) -> Any:
    """Unpickle a file of torch.save, which runs its code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        raise LoadError(
            f"{path} cannot be unpickled: {first_line(error)}. The code of its classes must be importable here."
        ) from error
