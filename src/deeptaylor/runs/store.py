"""The arrays of a store: zarr v3, one file per array and shard, written whole before the shard is entered."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deeptaylor.runs.commits import Commits, Trouble
from deeptaylor.shown import shown
from deeptaylor.support.files import DiskFullError, at_once, size, write_together
from deeptaylor.support.optional import optional_package

__all__ = [
    "ABOUT",
    "PARTS",
    "STATUS",
    "Field",
    "Shard",
    "Written",
    "create",
    "encoded",
    "fields_of",
    "no_room",
    "room",
    "written",
]

PARTS = ("input", "bias", "dropped", "residual", "returned", "own", "shared")  # the columns of ledger/
STATUS = ("waiting", "explained", "unreadable", "not finite", "refused")
ABOUT = "zarr.json"  # in the store and in every array: what zarr reads first
_MAPS = 8  # heatmaps in a chunk, which is what is read at least; of small ones more
_CHUNK = 2**17  # bytes that are compressed together at least, where a shard has as many
_SMALL = 64  # numbers of an item, of which whole shards are compressed together
_LEVEL = 1  # of zstd
_CORES = 4  # of which one compresses

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Field:
    """An array of the store: what it holds of each item."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    fill: Any = 0

    @property
    def bytes(self) -> int:
        """Of an item, before compression."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def chunk(self, shard: int) -> int:
        """How many items are compressed together: of maps a few, so that one can be read alone."""
        if math.prod(self.shape) <= _SMALL:
            return shard
        return math.gcd(shard, max(_MAPS, 2 ** math.ceil(math.log2(_CHUNK / self.bytes))))


def fields_of(heat: tuple[int, ...], relevance: tuple[int, ...] | None, contrast: bool) -> list[Field]:
    """The arrays of a run whose heatmaps have this shape; `relevance`: that of raw relevance, where it is kept."""
    made = [
        Field("heatmap", "float16", heat),
        Field("scale", "float32"),
        Field("score", "float32", fill=float("nan")),
        Field("target", "int32", fill=-1),
        Field("prediction", "int32", fill=-1),
        Field("label", "int32", fill=-1),
        Field("status", "uint8"),
        Field("ledger", "float32", (len(PARTS),), float("nan")),
        Field("input_hash", "uint8", (32,)),
    ]
    if contrast:
        made += [Field("contrast", "float16", heat), Field("contrast_scale", "float32")]
    if relevance is not None:
        made.append(Field("relevance", "float32", relevance))
    return made


def zarr_package() -> Any:
    """The package zarr, which stores are written and read with."""
    return optional_package("zarr", "A run is kept in a zarr store", "runs")


def create(store: Path, fields: Sequence[Field], items: int, shard: int) -> None:
    """The arrays without their values, those that are not there yet: what zarr reads first."""
    zarr = zarr_package()
    group = zarr.open_group(store=str(store), mode="a", attributes={"made_by": "deeptaylor run"})
    for one in fields:
        if not (store / one.name / ABOUT).exists():
            _array(group, one.name, one, items, shard)


def _array(group: Any, name: str, one: Field, items: int, shard: int) -> Any:
    """An array in a group, with the layout that `_sharded` writes."""
    from zarr.codecs import ZstdCodec

    return group.create_array(
        name,
        shape=(items, *one.shape),
        dtype=one.dtype,
        shards=(shard, *one.shape),
        chunks=(one.chunk(shard), *one.shape),
        compressors=[ZstdCodec(level=_LEVEL)],
        fill_value=one.fill,
    )


# --- a shard ----------------------------------------------------------------------------------------------------------


@dataclass
class Shard:
    """What was computed of a shard: arrays of its items by field, and what observers keep of it."""

    number: int
    items: int
    arrays: dict[str, Array]
    troubles: list[Trouble] = field(default_factory=list)
    also: dict[str, Mapping[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """A shard as the bytes of its files, by their names in the store."""

    number: int
    items: int
    files: dict[str, bytes]
    troubles: list[Trouble]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.files.values()))


def encoded(shard: Shard, fields: Sequence[Field], size: int) -> Written:
    """The files of a shard; the same bytes for the same arrays, wherever it is done."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // _CORES)) as pool:
        files = {_file(one, shard.number): _sharded(one, shard.arrays[one.name], size, pool.map) for one in fields}
    for name, state in shard.also.items():
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **{key: np.asarray(value) for key, value in state.items()})
        files[f"also/{name}/{shard.number:05d}.npz"] = data.getvalue()
    return Written(shard.number, shard.items, files, shard.troubles)


def _sharded(one: Field, values: Array, size: int, each: Callable[..., Iterable[bytes]]) -> bytes:
    """Values as zarr's codec `sharding_indexed` lays them out: chunks, then where each lies, and a checksum of that.

    zarr's own writer gives what reads the same and takes twenty times as long, for a shard has hundreds of chunks.
    """
    zstd = optional_package("numcodecs.zstd", "A run is kept in a zarr store", "runs").Zstd(level=_LEVEL)
    checksum = optional_package("google_crc32c", "A run is kept in a zarr store", "runs")
    whole = np.full((size, *one.shape), one.fill, dtype=np.dtype(one.dtype).newbyteorder("<"))
    whole[: len(values)] = values
    chunk = one.chunk(size)
    chunks = list(each(lambda k: bytes(zstd.encode(whole[k : k + chunk])), range(0, size, chunk)))
    lengths = np.array([len(c) for c in chunks], dtype="<u8")
    index = np.stack([np.cumsum(lengths) - lengths, lengths], 1).astype("<u8").tobytes()
    return b"".join([*chunks, index, checksum.value(index).to_bytes(4, "little")])


def _file(one: Field, shard: int) -> str:
    return "/".join([one.name, "c", str(shard), *["0"] * len(one.shape)])


def written(store: Path, shard: Written, commits: Commits) -> None:
    """Write a shard's files, each whole and on the disk, and then enter it in the ledger."""
    room(store, 2 * shard.size)
    places = {store / name: data for name, data in shard.files.items()}
    folders = {place.parent for place in places}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    write_together(places, len(places))
    at_once(_settle, folders, len(folders))
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in shard.files.items()}
    commits.commit(shard.number, shard.items, digests, shard.troubles)


def _settle(folder: Path) -> None:
    """Have the names of new files on the disk, too, where the system can be asked to."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def room(store: Path, needed: int) -> None:
    """Refuse to go on where there is no room for what comes next."""
    free = shutil.disk_usage(store).free
    if free < needed:
        raise DiskFullError(no_room(store, f": {size(needed)} are needed next, and {size(free)} are free"))


def no_room(store: Path, more: str = "") -> str:
    """What is said of a full disk."""
    return (
        f"There is no room in {shown(store)}{more}. All that was entered so far is safe; make room, and the same "
        "command goes on."
    )
