"""What a model file is, told without running anything in it, and the weights read out of it.

kind_of(path), by the first bytes and, in a zip archive, the names of its members
├── constants.pkl, code/      TORCHSCRIPT      a program              ┐
├── archive_format            PT2              an exported program    ├ read only if the user trusts the file
├── data.pkl                  PICKLE           pickled objects ...    ┘
│                                              ... or only tensors: a state dict, read with weights_only
├── {" behind a length        SAFETENSORS      a state dict
├── gzip, called .tgz         NPM              an npm package
└── anything else             its ending: .onnx, .caffemodel; or what it seems to be, for the error
"""

from __future__ import annotations

import io
import os
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import LoadError, warn
from deeptaylor.support.files import special_kind
from deeptaylor.support.optional import optional_package

__all__ = ["COUNTS", "Kind", "check_memory", "fill", "kind_of", "listed", "pickled_names", "read_state", "unwrapped"]

_COPIES = 2  # the file's tensors, and the network that they are copied into
_SHOWN = 6
COUNTS = "num_batches_tracked"  # only counted in training, and left out by old files
_LARGEST_PICKLE = 2**26  # names and shapes of a state dict; its numbers lie beside it
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights")
# What a pickle of names and tensors needs; torch's own restricted reader decides, this is for telling them apart.
_OF_TENSORS = re.compile(
    r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.\w*Storage|torch\.(Size|device)|__builtin__\.set"
)


class Kind(Enum):
    """What a model file is; the value is how a sentence calls it."""

    TORCHSCRIPT = "a TorchScript program"
    PT2 = "a program exported by torch.export"
    PICKLE = "a file of torch.save"
    SAFETENSORS = "a safetensors file"
    ONNX = "an ONNX file"
    CAFFE = "a Caffe weights file"
    NPM = "an npm package"


_ENDINGS = {
    ".onnx": (Kind.ONNX,),
    ".caffemodel": (Kind.CAFFE,),
    ".safetensors": (Kind.SAFETENSORS,),
    ".pt2": (Kind.PT2,),
    ".pt": (Kind.PICKLE, Kind.TORCHSCRIPT),
    ".pth": (Kind.PICKLE, Kind.TORCHSCRIPT),
    ".ckpt": (Kind.PICKLE,),
    ".bin": (Kind.PICKLE,),
    ".tgz": (Kind.NPM,),
}
_STRANGERS = (
    (b"version https://git-lfs", "a pointer of git-lfs, not the file itself (fetch it with: git lfs pull)"),
    (b"<!doctype html", "a web page, perhaps the error of a download"),
    (b"<html", "a web page, perhaps the error of a download"),
    (b"\x89HDF", "an HDF5 file, as Keras writes them; export the network to ONNX"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"PK", "a zip archive that does not come from torch.save, torch.jit or torch.export"),
)


def kind_of(path: Path) -> Kind:
    """What a file is, by its content; refused where that and its name disagree, or where it is nothing known."""
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
    found = _by_content(path, start)
    if found is None and said in ((Kind.ONNX,), (Kind.CAFFE,)):
        found = next((words for sign, words in _STRANGERS if start.lower().startswith(sign.lower())), None)
        if found is None:
            return said[0]  # both are protobuf without a mark of their own; their readers look closer
    if isinstance(found, Kind) and (said is None or found in said):
        return found
    if said is None and not isinstance(found, Kind):
        raise LoadError(
            f"{path} is no model file that is known here; these are: {', '.join(sorted(_ENDINGS))}."
            + (f" It is {found}." if found else "")
        )
    words = found.value if isinstance(found, Kind) else found
    raise LoadError(
        f"{path} is not what its name says: a {path.suffix.lower()} file is "
        f"{' or '.join(kind.value for kind in said or ())}, and this is {words or 'neither, or damaged'}."
    )


def _by_content(path: Path, start: bytes) -> Kind | str | None:
    """A kind, or words for something else, or nothing."""
    if start.startswith(b"PK") and zipfile.is_zipfile(path):
        try:
            members = _members(path)
        except zipfile.BadZipFile as error:
            raise LoadError(f"{path} is damaged or cut short: {error}.") from error
        # Members lie in one folder, which is called as the file was.
        names = {name.partition("/")[2] for name in members}
        if "archive_format" in names or any(name.startswith("serialized_exported_program") for name in members):
            return Kind.PT2
        if "constants.pkl" in names:
            return Kind.TORCHSCRIPT
        if "data.pkl" in names:
            return Kind.PICKLE
    elif start.startswith(b"PK"):
        raise LoadError(f"{path} is damaged or cut short: a zip archive without its end.")
    if start.startswith(b"\x80") and start[1] in (2, 3, 4, 5):
        return Kind.PICKLE
    if len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size:
        return Kind.SAFETENSORS
    if start.startswith(b"\x1f\x8b") and path.suffix.lower() == ".tgz":
        return Kind.NPM
    return next((words for sign, words in _STRANGERS if start.lower().startswith(sign.lower())), None)


def _members(path: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(path) as archive:
        return {info.filename: info for info in archive.infolist()}


def check_memory(path: Path, size: int = 0) -> None:
    """Refuse a model that does not fit into memory, with the numbers, before it is read; `size`: if that is known."""
    size = max(size, path.stat().st_size)
    if zipfile.is_zipfile(path):
        size = max(size, sum(info.file_size for info in _members(path).values()))  # members may be compressed
    free = _free_memory()
    if free is not None and _COPIES * size > free:
        raise LoadError(
            f"{path} would take about {_gib(_COPIES * size)} of memory ({_gib(size)} of numbers, read and then copied "
            f"into the network), and {_gib(free)} are free. Free some, or load it on a larger machine."
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _free_memory() -> int | None:
    """Bytes that can still be had: of the machine, of this process and its group; None where nobody says."""
    found = _below_the_limit()
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


def _below_the_limit() -> list[int]:
    """What `ulimit -v` leaves."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return [] if most == resource.RLIM_INFINITY else [max(0, most - pages * resource.getpagesize())]
    except (ImportError, OSError):
        return []


def pickled_names(path: Path) -> list[str]:
    """What unpickling a file of torch.save would fetch and call beside tensors, read off without doing so."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inner = next(name for name in archive.namelist() if name.partition("/")[2] == "data.pkl")
            size = archive.getinfo(inner).file_size
            if size > _LARGEST_PICKLE:
                raise LoadError(
                    f"{path} is refused: its list of names unpacks to {_gib(size)}, which no network needs."
                )
            names = set(_globals(io.BytesIO(archive.read(inner))))
    else:
        with path.open("rb") as file:
            names = set(_globals(file))
    return sorted(name for name in names if not _OF_TENSORS.fullmatch(name))


def _globals(file: IO[bytes]) -> Iterator[str]:
    """Every name that a pickle looks up, module and all."""
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


def read_state(path: Path, kind: Kind) -> tuple[dict[str, Tensor], tuple[str, ...]] | None:
    """Return the tensors of a state dict, and notes; or None if a file of torch.save holds other objects too."""
    if kind is Kind.SAFETENSORS:
        why = f"{path} is a safetensors file"
        safetensors = optional_package("safetensors", why)
        reader = optional_package("safetensors.torch", why)
        try:
            tensors: dict[str, Tensor] = reader.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise LoadError(f"{path} is damaged or cut short: {error}") from error
        return tensors, ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a newer pickle protocol: it works, or it raises
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        return None
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise LoadError(f"{path} is damaged or cut short: {str(error).splitlines()[0]}") from error
    return unwrapped(path, saved)


def unwrapped(path: Path, saved: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the state dict itself, also out of a checkpoint of a training program; and a note if it is one of several.

    Beside it lie, for example, the means of the weights over the training ("ema").
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
    """True for a state dict, also in one more wrapper; that of an optimizer is none: it has numbers for names."""
    inner = (value.get(key) for key in (*_WRAPPERS, "module", "shadow")) if isinstance(value, Mapping) else ()
    return _is_state(value) or any(map(_is_state, inner))


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())
    )


def fill(network: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put weights into a network; refused, with every difference, where they do not fit it exactly."""
    wanted = network.state_dict()
    state = _without_wrappers(state, wanted)
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
            + listed("the network needs and the file lacks", missing)
            + listed("the file has and the network does not know", unexpected)
            + listed("of another shape", shapes)
            + listed("not plain real numbers: quantised, sparse, complex or without data", numbers)
            + "\nIs this the architecture, with as many classes, that the file was saved from?"
        )
    broken = [k for k, v in state.items() if v.is_floating_point() and not bool(v.isfinite().all())]
    if broken:
        raise LoadError(f"the weights in {source} are damaged:" + listed("not finite", broken))
    network.load_state_dict(dict(state), strict=False)


def _without_wrappers(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The names as the network has them, where all begin with more, as DataParallel and torch.compile do it."""
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


def listed(title: str, lines: list[str]) -> str:
    """List lines under a title, the first of them; "" if there are none."""
    if not lines:
        return ""
    more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return f"\n  {title} ({len(lines)}):" + "".join(f"\n    {line}" for line in [*lines[:_SHOWN], *more])
