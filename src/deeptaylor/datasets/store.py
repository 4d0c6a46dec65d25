"""The arrays of a store: zarr v3, one file per array and shard, written whole before the shard is entered.

The ledger has the hash of every chunk. Whoever reads a chunk compares it first (`Stored`); what is missing or is not
what was written is an error, and never reads as items that wait.
"""

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

from deeptaylor.datasets.commits import Commits, Digests, Item, ShardRecord, StoreError, Trouble, describe_damage
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import DiskFullError, format_size, run_for_each, write_together, write_whole
from deeptaylor.support.optional import optional_package

__all__ = [
    "ABOUT",
    "CHANGED",
    "PARTS",
    "PARTS_IN",
    "STATUS",
    "BatchRows",
    "EncodedShard",
    "Field",
    "Shard",
    "ShardPart",
    "StoredArray",
    "create",
    "damaged_files",
    "digests_of",
    "encode_shard",
    "fields_of",
    "files_of",
    "is_there",
    "no_room",
    "numbers_of",
    "observer_file",
    "open_arrays",
    "read_checked",
    "room",
    "rows_in",
    "save_part",
    "totals",
    "write_shard",
]

PARTS = ("input", "bias", "dropped", "residual", "returned", "own", "shared")  # the columns of ledger/
STATUS = ("waiting", "explained", "unreadable", "not finite", "refused")
PARTS_IN = "parts"  # the folder of what was saved of shards that are not done
ABOUT = "zarr.json"  # in the store and in every array: what zarr reads first
_MAPS = 8  # heatmaps in a chunk, which is what is read at least; of small ones more
_CHUNK = 2**17  # bytes that are compressed together at least, where a shard has as many
_SMALL = 64  # numbers of an item, of which whole shards are compressed together
CHANGED = "it has changed since it was written"
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

    def chunks(self, shard: int) -> int:
        """Return how many chunks a shard of so many items has."""
        return shard // self.chunk(shard)

    def chunk(self, shard: int) -> int:
        """Return how many items are compressed together: a few maps, so that one can be read alone."""
        if math.prod(self.shape) <= _SMALL:
            return shard
        return math.gcd(shard, max(_MAPS, 2 ** math.ceil(math.log2(_CHUNK / self.bytes))))


def fields_of(
    heat: tuple[int, ...], relevance: tuple[int, ...] | None, contrast: bool, probability: bool = True
) -> list[Field]:
    """Return the arrays of a run whose heatmaps have this shape.

    relevance     the shape of raw relevance, if it is saved
    probability   False: a store of an older release, which saved no probabilities
    """
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
    if probability:
        made.append(Field("probability", "float32", fill=float("nan")))
    if contrast:
        made += [Field("contrast", "float16", heat), Field("contrast_scale", "float32")]
    if relevance is not None:
        made.append(Field("relevance", "float32", relevance))
    return made


def zarr_package() -> Any:
    """Return the package zarr, which stores are written and read with."""
    return optional_package("zarr", "runs are stored with zarr", "runs")


def create(store: Path, fields: Sequence[Field], items: int, shard: int) -> dict[str, bytes]:
    """Write the arrays without their values, those that are not there yet; return what zarr reads first, by file."""
    zarr = zarr_package()
    group = zarr.open_group(store=str(store), mode="a", attributes={"made_by": "deeptaylor run"})
    for one in fields:
        if not (store / one.name / ABOUT).exists():
            _array(group, one.name, one, items, shard)
    names = [ABOUT, *(f"{one.name}/{ABOUT}" for one in fields)]
    return {name: (store / name).read_bytes() for name in names}


def _array(group: Any, name: str, one: Field, items: int, shard: int) -> Any:
    """Create an array in a group, with the layout that `_encode_field` writes."""
    from zarr.codecs import ZstdCodec

    return group.create_array(
        name,
        shape=(items, *one.shape),
        dtype=one.dtype,
        shards=(shard, *one.shape),
        chunks=(one.chunk(shard), *one.shape),
        compressors=[ZstdCodec(level=_LEVEL, checksum=True)],
        fill_value=one.fill,
    )


# --- a shard ----------------------------------------------------------------------------------------------------------


@dataclass
class BatchRows:
    """What was computed of a batch, by field."""

    arrays: dict[str, Array]
    troubles: list[Trouble]
    also: dict[str, Mapping[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardPart:
    """Some batches of a shard that is not done: they are saved, so that they need not be computed again."""

    number: int  # of the shard
    first: int  # item in the shard
    batches: Sequence[BatchRows]


@dataclass
class Shard:
    """What was computed of a shard: arrays of its items by field, and what observers keep of it."""

    number: int
    items: int
    arrays: dict[str, Array]
    troubles: list[Trouble] = field(default_factory=list)
    also: dict[str, Mapping[str, Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class EncodedShard:
    """A shard as the bytes of its files, by their names in the store."""

    number: int
    items: int
    files: dict[str, bytes]
    troubles: list[Trouble]
    digests: Digests

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(map(len, self.files.values()))


def encode_shard(shard: Shard, fields: Sequence[Field], size: int) -> EncodedShard:
    """Return the files of a shard; the same bytes for the same arrays, wherever it is done."""
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // _CORES)) as pool:
        files = {_file(one, shard.number): _encode_field(one, shard.arrays[one.name], size, pool.map) for one in fields}
    for name, state in shard.also.items():
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **{key: np.asarray(value) for key, value in state.items()})
        files[observer_file(name, shard.number)] = data.getvalue()
    chunks = {_file(one, shard.number): one.chunks(size) for one in fields}
    digests = {name: digests_of(data, chunks.get(name, 0)) for name, data in files.items()}
    return EncodedShard(shard.number, shard.items, files, shard.troubles, digests)


def digests_of(data: bytes, chunks: int) -> list[Any]:
    """Return a file's size, and the hashes of its chunks and of the index behind them; 0 chunks: of the whole."""
    view, ends = memoryview(data), [len(data)]
    if chunks:
        index = np.frombuffer(data[-_index_size(chunks) : -4], "<u8").reshape(-1, 2)
        ends = [*np.cumsum(index[:, 1]).tolist(), len(data)]
    return [len(data), *(_hash(view[a:b]) for a, b in zip([0, *ends], ends, strict=False))]


def _index_size(chunks: int) -> int:
    return 16 * chunks + 4


def _hash(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def files_of(shard: int, fields: Iterable[Field], also: Iterable[str]) -> list[str]:
    """Return the names of the files of a shard that is done."""
    return [*(_file(one, shard) for one in fields), *(observer_file(name, shard) for name in also)]


def observer_file(name: str, shard: int) -> str:
    """Return the file in which an observer keeps what it saw of a shard."""
    return f"also/{name}/{shard:05d}.npz"


def _encode_field(one: Field, values: Array, size: int, each: Callable[..., Iterable[bytes]]) -> bytes:
    """Values as zarr's codec `sharding_indexed` lays them out: chunks, then where each lies, and a checksum of that.

    zarr's own writer gives what reads the same and takes twenty times as long, for a shard has hundreds of chunks.
    """
    zstd = optional_package("numcodecs.zstd", "runs are stored with zarr", "runs").Zstd(level=_LEVEL, checksum=True)
    checksum = optional_package("google_crc32c", "runs are stored with zarr", "runs")
    whole = np.full((size, *one.shape), one.fill, dtype=np.dtype(one.dtype).newbyteorder("<"))
    whole[: len(values)] = values
    chunk = one.chunk(size)
    chunks = list(each(lambda k: bytes(zstd.encode(whole[k : k + chunk])), range(0, size, chunk)))
    lengths = np.array([len(c) for c in chunks], dtype="<u8")
    index = np.stack([np.cumsum(lengths) - lengths, lengths], 1).astype("<u8").tobytes()
    return b"".join([*chunks, index, checksum.value(index).to_bytes(4, "little")])


def _file(one: Field, shard: int) -> str:
    return "/".join([one.name, "c", str(shard), *["0"] * len(one.shape)])


def write_shard(store: Path, shard: EncodedShard, commits: Commits) -> None:
    """Write a shard's files, each whole and on the disk, and then enter it in the ledger."""
    room(store, 2 * shard.size)
    places = {store / name: data for name, data in shard.files.items()}
    folders = {place.parent for place in places}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    write_together(places, len(places))
    run_for_each(_settle, folders, len(folders))
    before = commits.shard(shard.number)
    commits.commit(shard.number, shard.items, shard.digests, shard.troubles)
    if not before.done:
        for name in before.digests:
            (store / name).unlink(missing_ok=True)


# --- a shard that is not done -----------------------------------------------------------------------------------------


def save_part(store: Path, part: ShardPart, commits: Commits) -> int:
    """Write some batches of a shard to a file of their own, and enter it; return how many items they are of."""
    values: dict[str, Array] = {}
    for k, rows in enumerate(part.batches):
        values |= {f"{k}/{name}": array for name, array in rows.arrays.items()}
        values |= {f"{k}/also/{n}/{key}": np.asarray(v) for n, state in rows.also.items() for key, v in state.items()}
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **values)
    data, name = packed.getvalue(), f"{PARTS_IN}/{part.number:05d}.{part.first:08d}.npz"
    room(store, 2 * len(data))
    (store / PARTS_IN).mkdir(exist_ok=True)
    write_whole(store / name, data)
    _settle(store / PARTS_IN)
    before = commits.shard(part.number)
    troubles = [*before.troubles, *(t for rows in part.batches for t in rows.troubles)]
    items = sum(len(rows.arrays["status"]) for rows in part.batches)
    digests = before.digests | {name: digests_of(data, 0)}
    commits.commit(part.number, before.items + items, digests, troubles, done=False)
    return items


def rows_in(store: Path, shard: ShardRecord) -> list[BatchRows]:
    """Return the batches that were saved of a shard that is not done."""
    if shard.done:
        return []
    found: list[BatchRows] = []
    for name in sorted(shard.digests):
        with open_arrays(read_checked(store, name, shard)) as packed:
            batches: dict[int, BatchRows] = {}
            for key in packed.files:
                k, _, what = key.partition("/")
                rows = batches.setdefault(int(k), BatchRows({}, []))
                if what.startswith("also/"):
                    _, observer, part = what.split("/", 2)
                    rows.also.setdefault(observer, {})[part] = packed[key]  # type: ignore[index]
                else:
                    rows.arrays[what] = packed[key]
        found += [batches[k] for k in sorted(batches)]
    if found:
        found[0].troubles.extend(shard.troubles)
    return found


def totals(shards: Iterable[ShardRecord]) -> tuple[int, int, int]:
    """Return how many shards are done; the items in them, and in parts of others; and how many of these are bad."""
    every = list(shards)
    return sum(s.done for s in every), sum(s.items for s in every), sum(len(s.troubles) for s in every)


def open_arrays(data: bytes) -> Any:
    """Return the arrays that were packed by `numpy.savez`; no pickle is loaded."""
    return np.load(io.BytesIO(data), allow_pickle=False)


def read_checked(store: Path, name: str, shard: ShardRecord) -> bytes:
    """Read a file of a shard as one piece; raise where it has changed since it was written."""
    what = f"{name}, of shard {shard.number},"
    try:
        data = (store / name).read_bytes()
    except OSError as error:
        raise StoreError(describe_damage(store, f"{what} cannot be read: {_why(error)}")) from error
    if shard.digests.get(name) != digests_of(data, 0):
        raise StoreError(describe_damage(store, f"{what} has changed since it was written"))
    return data


def damaged_files(store: Path, shard: ShardRecord, names: Iterable[str]) -> list[str]:
    """Return what is wrong with the files of a shard, each by its name; `names`: those that it has once it is done."""
    wanted = names if shard.done else shard.digests
    return [why for name in wanted if (why := _damage(store, name, shard.digests.get(name, [])))]


def _damage(store: Path, name: str, digests: Sequence[Any]) -> str:
    try:
        data = (store / name).read_bytes()
    except OSError as error:
        return f"{name}: {_why(error)}"
    if digests and len(data) == digests[0]:
        with contextlib.suppress(ValueError, OverflowError):  # an index that says nonsense
            if digests_of(data, len(digests) - 2) == list(digests):
                return ""
    return f"{name}: {CHANGED}"


def is_there(store: Path, shard: ShardRecord, names: Iterable[str]) -> bool:
    """Do the files of a shard exist, in their sizes? What they hold is not looked at."""
    try:
        return all((store / n).stat().st_size == shard.digests[n][0] for n in (names if shard.done else shard.digests))
    except (OSError, KeyError):
        return False


def _why(error: OSError) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)


# --- reading ----------------------------------------------------------------------------------------------------------


def numbers_of(which: Any, count: int) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the rows that an index chooses, and whether it chooses one alone: an int, a slice, a list, a mask."""
    if isinstance(which, slice):
        return np.arange(*which.indices(count), dtype=np.int64), False
    numbers = np.asarray(which)
    if numbers.dtype == bool:
        if numbers.shape != (count,):
            raise IndexError(f"A mask of {count} items has as many values; this one has the shape {numbers.shape}.")
        numbers = np.flatnonzero(numbers)
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise IndexError(f"Items are chosen by whole numbers, slices or masks; got {which!r}.")
    numbers = numbers.astype(np.int64)
    out = numbers[(numbers < -count) | (numbers >= count)]
    if out.size:
        raise IndexError(f"There are {count} items; got {int(out.flat[0])}.")
    if numbers.ndim > 1:
        raise IndexError(f"Items are chosen by numbers in one row; these have the shape {numbers.shape}.")
    return np.atleast_1d(numbers % max(count, 1)), numbers.ndim == 0


@dataclass(frozen=True)
class StoredArray:
    """An array of a store, read as it is asked for; every chunk is compared with its hash in the ledger."""

    store: Path
    field: Field
    items: int
    shard: int  # items of a shard

    @property
    def shape(self) -> tuple[int, ...]:
        """One row per item."""
        return (self.items, *self.field.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its values."""
        return np.dtype(self.field.dtype)

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.items

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, which: Any) -> Array:
        """Rows by a number, a slice, or numbers or a mask in a list or an array; other axes as NumPy has them."""
        first, *rest = which if isinstance(which, tuple) else (which,)
        if first is ...:
            everything: Array = self[:][which]
            return everything
        numbers, alone = numbers_of(first, self.items)
        found = self.rows(numbers)
        chosen: Array = found[0][tuple(rest)] if alone else found[(slice(None), *rest)]
        return chosen

    def rows(self, numbers: npt.NDArray[np.int64]) -> Array:
        """Return the rows of items; those of items that wait are empty."""
        made = np.full((len(numbers), *self.field.shape), self.field.fill, dtype=self.dtype)
        order = np.argsort(numbers // self.shard, kind="stable")
        shards = (numbers // self.shard)[order]
        ends = [*(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)] if len(order) else []
        with Commits(self.store) as commits:
            for first, last in zip([0, *ends], ends, strict=False):
                places = order[first:last]
                self._read(commits, int(shards[first]), numbers[places] % self.shard, made, places)
        return made

    def _read(self, commits: Commits, shard: int, inside: Array, made: Array, places: Array) -> None:
        """Put rows of a shard in their places; once more where a run wrote the shard meanwhile."""
        entered = commits.shard(shard)
        while True:
            try:
                if entered.done:
                    self._read_chunks(commits, entered, inside, made, places)
                elif entered.items:
                    self._read_parts(entered, inside, made, places)
                return
            except StoreError:
                before, entered = entered, commits.shard(shard)
                if before == entered:
                    raise

    def _read_parts(self, entered: ShardRecord, inside: Array, made: Array, places: Array) -> None:
        saved = np.concatenate([rows.arrays[self.field.name] for rows in rows_in(self.store, entered)])
        there = inside < len(saved)
        made[places[there]] = saved[inside[there]]

    def _read_chunks(self, commits: Commits, entered: ShardRecord, inside: Array, made: Array, places: Array) -> None:
        zstd = optional_package("numcodecs.zstd", "runs are stored with zarr", "runs").Zstd()
        name = _file(self.field, entered.number)
        kind = self.dtype.newbyteorder("<")
        digests = entered.digests.get(name, [])
        count = len(digests) - 2
        if count < 1:
            raise self._damaged(commits, entered.number, 0, self.shard, "the ledger has no hashes of it")
        each = self.shard // count
        try:
            with (self.store / name).open("rb") as file:
                if os.fstat(file.fileno()).st_size != digests[0]:
                    raise self._damaged(commits, entered.number, 0, self.shard, "its size has changed")
                file.seek(-_index_size(count), os.SEEK_END)
                index = file.read()
                if _hash(index) != digests[-1]:
                    raise self._damaged(commits, entered.number, 0, self.shard, "its index has changed")
                where = np.frombuffer(index[:-4], "<u8").reshape(-1, 2)
                chunks = inside // each
                for chunk in np.unique(chunks).tolist():
                    file.seek(int(where[chunk, 0]))
                    data = file.read(int(where[chunk, 1]))
                    if _hash(data) != digests[1 + chunk]:
                        first = chunk * each
                        raise self._damaged(commits, entered.number, first, first + each, CHANGED)
                    rows = np.frombuffer(zstd.decode(data), kind).reshape(each, *self.field.shape)
                    of = np.flatnonzero(chunks == chunk)
                    made[places[of]] = rows[inside[of] - chunk * each]
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise self._damaged(commits, entered.number, 0, self.shard, _why(error)) from error

    def _damaged(self, commits: Commits, shard: int, first: int, last: int, why: str) -> StoreError:
        """Name what is damaged: the array, the shard, and the items of it."""
        low, high = shard * self.shard + first, min(shard * self.shard + last, self.items) - 1
        named = " to ".join(f"{k} ({escape_name(_name(commits, k))})" for k in dict.fromkeys((low, high)))
        many = "item" if low == high else "items"
        return StoreError(describe_damage(self.store, f"{self.field.name} of {many} {named}, in shard {shard}: {why}"))


def _name(commits: Commits, number: int) -> str:
    try:
        item: Item = next(commits.items(number, number + 1))
    except StoreError:
        return "its name is damaged, too"
    return item.name


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
        raise DiskFullError(
            no_room(store, f": {format_size(needed)} are needed next, and {format_size(free)} are free")
        )


def no_room(store: Path, more: str = "") -> str:
    """Return what to report of a full disk."""
    return (
        f"There is no room in {escape_name(store)}{more}. All saved items are safe; free some space, and the same "
        "command continues."
    )
