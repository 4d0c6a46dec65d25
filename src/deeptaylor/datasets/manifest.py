"""The manifest of a run: network, plan and input set with their fingerprints; a store of another run is rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from deeptaylor.datasets.commits import LEDGER, Commits, Item, ShardRecord, StoreError, describe_damage, describe_loss
from deeptaylor.datasets.items import Entry
from deeptaylor.datasets.store import ABOUT, Field, create, digests_of, fields_of, files_of
from deeptaylor.datasets.work import Work
from deeptaylor.engine.method_choice import Choice, describe_method
from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import escape_name
from deeptaylor.settings import DEEP_TAYLOR, PRESETS
from deeptaylor.support.files import write_whole
from deeptaylor.support.provenance import to_json_values, versions, weights_fingerprint

__all__ = [
    "MANIFEST",
    "ChangedError",
    "about",
    "as_bytes",
    "check",
    "check_ledger",
    "check_network",
    "check_settings",
    "chosen_method",
    "count_new_items",
    "damaged_abouts",
    "fields_in",
    "is_old",
    "items_in",
    "listed",
    "read",
    "restore",
    "save",
    "shards_in",
    "upgrade",
]

MANIFEST = "manifest.json"
_FORMAT, _OLD = 3, 2  # the older one had no hashes of chunks and no seals in its ledger
_SHOWN = 5  # class names that an error shows
_WHAT = {"network": "network", "plan": "plan", "inputs": "input set"}


class ChangedError(DeepTaylorError, ValueError):
    """A store belongs to another network, plan or input set than the run that should resume it."""


def read(store: Path) -> dict[str, Any] | None:
    """Return the manifest of a store; None if there is none yet. Raise StoreError if it was changed."""
    try:
        data = (store / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        data = b""
    except OSError as error:
        raise StoreError(describe_loss(store, MANIFEST, error)) from error
    if not (store / LEDGER).exists():
        if data:
            raise StoreError(describe_loss(store, LEDGER))
        return None
    if is_old(store):
        raise ChangedError(
            f"{escape_name(store)} was written by an older release without checksums of chunks. Run `deeptaylor verify "
            f"--repair {escape_name(store)}` once: it checks every file against its saved hash and adds the checksums."
        )
    try:
        with Commits(store) as commits:
            kept, begun = commits.kept(MANIFEST), commits.begun()
    except StoreError:
        if data:
            raise
        return None  # a run was killed before there was a store
    if not data and not begun:
        return None
    if kept is None or data != kept:
        raise StoreError(
            describe_damage(store, f"{MANIFEST} {'is missing' if not data else 'has changed since it was written'}")
        )
    found: dict[str, Any] = json.loads(data)
    if found.get("format") != _FORMAT:
        raise ChangedError(
            f"{escape_name(store)} was written in format {found.get('format')}; this version reads {_FORMAT}."
        )
    return found


def is_old(store: Path) -> bool:
    """Return whether a store has the format of an older release."""
    try:
        return bool(json.loads((store / MANIFEST).read_bytes())["format"] == _OLD)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def as_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest as the bytes of its file."""
    return (json.dumps(manifest, indent=1) + "\n").encode()


def save(store: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, which makes the folder a store."""
    write_whole(store / MANIFEST, as_bytes(manifest))


def shards_in(manifest: Mapping[str, Any]) -> int:
    """Return how many shards a store has."""
    return -(-int(manifest["items"]) // int(manifest["shard"]))


def items_in(manifest: Mapping[str, Any], shard: int) -> range:
    """Return the numbers of a shard's items."""
    each = int(manifest["shard"])
    return range(shard * each, min((shard + 1) * each, int(manifest["items"])))


def about(work: Work, heat: Sequence[int], relevance: Sequence[int] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest without the list of items."""
    explainer, model = work.explainer, work.model
    also = [f"{one.name} {getattr(one, 'settings', '')}".strip() for one in work.also]
    said = {**_settings(work), "relevance": relevance is not None, "also": also}
    choice = chosen_method(work)
    by_plan = choice.method in PRESETS
    text = str(explainer.plan) if by_plan else ""
    named = None if model is None else model.class_names
    return {
        "format": _FORMAT,
        "heatmap": list(heat),
        "relevance": None if relevance is None else list(relevance),
        "contrast": work.contrast,
        "probability": True,
        "also": [one.name for one in work.also],
        "classes": None if named is None else list(named),
        "network": {
            "kind": type(explainer.model).__name__,
            "fingerprint": weights_fingerprint(explainer.model),
            "parameters": sum(p.numel() for p in explainer.model.parameters()),
        },
        "method": {"asked": explainer.settings.method, **asdict(choice)},
        "plan": {
            "fingerprint": _hash(said, text),
            "summary": explainer.plan.summary() if by_plan else describe_method(choice),
            **said,
        },
        "versions": versions(),
        **more,
    }


def _settings(work: Work) -> dict[str, Any]:
    """Return all settings that maps depend on, as values of JSON."""
    explainer, model = work.explainer, work.model
    settings = explainer.settings
    said = {
        "bias": settings.bias,
        "max_pool": settings.max_pool,
        "local": settings.local,
        "output": settings.output,
        "first": None if settings.first is None else repr(settings.first),
        "rules": {name: repr(rule) for name, rule in settings.rules.items()},
        "domain": repr(explainer.domain),
        "target": work.target,
        "contrast": work.contrast,
        "axis": work.axis,
        "preparation": None if model is None or model.preparation is None else asdict(model.preparation),
    }
    method = chosen_method(work).method
    if method != DEEP_TAYLOR:  # left out, so that stores of older releases, which had no other, are gone on with
        said |= {
            "method": method,
            "reference": _fingerprint(settings.reference),
            "background": _fingerprint(settings.background),
        }
    made: dict[str, Any] = json.loads(json.dumps(to_json_values(said), default=str))
    return made


def chosen_method(work: Work) -> Choice:
    """Return the method by which every item of a run is explained."""
    found = work.explainer.choice
    assert found is not None  # it is settled before a manifest is written or read
    return found


def _fingerprint(given: Any) -> Any:
    """Return a reference or a background for a fingerprint: words unchanged, numbers as a hash."""
    if given is None or (isinstance(given, str) and not Path(given).is_file()):
        return given
    if isinstance(given, Mapping):
        return {str(name): _fingerprint(one) for name, one in given.items()}
    if isinstance(given, (list, tuple)):
        return [_fingerprint(one) for one in given]
    if isinstance(given, (str, Path)):
        return hashlib.sha256(Path(given).read_bytes()).hexdigest()
    values = np.ascontiguousarray(given.detach().cpu().float() if isinstance(given, Tensor) else given)
    return f"{hashlib.sha256(values.tobytes()).hexdigest()} {values.shape}"


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def fields_in(manifest: Mapping[str, Any]) -> list[Field]:
    """Return the arrays of a store; one of an older release has no probabilities."""
    raw = manifest["relevance"]
    return fields_of(
        tuple(manifest["heatmap"]),
        None if raw is None else tuple(raw),
        manifest["contrast"],
        manifest.get("probability", False),
    )


def check(store: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise ChangedError if network or plan differ from those that the store was started with."""
    for key in ("network", "plan"):
        was, now = old[key]["fingerprint"], new[key]["fingerprint"]
        if was != now:
            names = [name for name in {**old[key], **new[key]} if name != "fingerprint"]
            other = [name for name in names if old[key].get(name) != new[key].get(name)]
            differ = f" They differ in: {', '.join(other)}." if other else ""
            raise ChangedError(_changed(store, key, was, now) + differ)
    if old["classes"] != new["classes"]:
        raise ChangedError(
            f"{escape_name(store)} was started with other class names: {_names(old['classes'], new['classes'])}; now "
            f"there are {_names(new['classes'], old['classes'])}. Write to another folder, or use the original names."
        )
    if new.get("shard") not in (None, old["shard"]):
        raise ChangedError(
            f"{escape_name(store)} was started with shards of {old['shard']} items; leave shard= out to resume it."
        )


def _names(names: Sequence[str] | None, others: Sequence[str] | None) -> str:
    """Name the classes that differ from others, a few of them."""
    if names is None:
        return "none"
    other = others or ()
    differ = [f"{k} {escape_name(n)}" for k, n in enumerate(names) if k >= len(other) or other[k] != n]
    more = f", and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
    return f"{len(names)} ({', '.join(differ[:_SHOWN]) or 'the first ones of the others'}{more})"


def check_ledger(commits: Commits, manifest: Mapping[str, Any]) -> None:
    """Raise StoreError if the ledger does not list the items of the manifest."""
    if commits.listed() != manifest["items"]:
        raise StoreError(
            describe_damage(commits.store, f"its ledger lists {commits.listed()} of {manifest['items']} items")
        )


def restore(store: Path, commits: Commits, manifest: Mapping[str, Any]) -> list[str]:
    """Restore the metadata files of zarr that were changed; return their names."""
    fields = fields_in(manifest)
    changed = damaged_abouts(store, commits, fields)
    for name in changed:
        (store / name).unlink(missing_ok=True)
        if (kept := commits.kept(name)) is not None:
            (store / name).parent.mkdir(exist_ok=True)
            write_whole(store / name, kept)
    if changed:
        files = create(store, fields, manifest["items"], manifest["shard"])
        commits.keep({name: files[name] for name in changed})
    return changed


def damaged_abouts(store: Path, commits: Commits, fields: Sequence[Field]) -> list[str]:
    """Return the names of the metadata files of zarr that were changed."""
    names = [ABOUT, *(f"{one.name}/{ABOUT}" for one in fields)]
    return [name for name in names if _content(store / name) != (commits.kept(name) or b"")]


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def upgrade(store: Path) -> None:
    """Convert a store of an older release to this format; shards with damaged files are discarded."""
    manifest = {**json.loads((store / MANIFEST).read_bytes()), "format": _FORMAT}
    fields, each = fields_in(manifest), int(manifest["shard"])
    with Commits(store, write=True) as commits:
        if commits.is_old:
            check_ledger(commits, manifest)
            shards = [ShardRecord(k, False, 0, {}, ()) for k in range(shards_in(manifest))]
            for number, items, whole in commits.old_shards():
                read = {name: _content(store / name) for name in files_of(number, fields, manifest["also"])}
                if all(d is not None and hashlib.sha256(d).hexdigest() == whole.get(n) for n, d in read.items()):
                    chunks = {one.name: one.chunks(each) for one in fields}
                    digests = {n: digests_of(d or b"", chunks.get(n.partition("/")[0], 0)) for n, d in read.items()}
                    shards[number] = ShardRecord(number, True, items, digests, ())
            files = create(store, fields, manifest["items"], each)
            commits.upgrade(shards, each, files | {MANIFEST: as_bytes(manifest)})
    save(store, manifest)


def check_network(store: Path, old: Mapping[str, Any], network: nn.Module) -> None:
    """Raise ChangedError if this is not the network of the store."""
    was, now = old["network"]["fingerprint"], weights_fingerprint(network)
    if was != now:
        raise ChangedError(
            f"{escape_name(store)} was explained with another network: its fingerprint is {was}, and that of the given "
            f"network is {now}. Give the network of the run."
        )


def check_settings(store: Path, old: Mapping[str, Any], work: Work) -> None:
    """Raise ChangedError if these are not the settings of the store."""
    was, now = old["plan"], _settings(work)
    names = [name for name in {**was, **now} if name in now or name in ("method", "reference", "background")]
    other = [
        f"{name} was {was.get(name)!r}, now it is {now.get(name)!r}" for name in names if was.get(name) != now.get(name)
    ]
    if other:
        raise ChangedError(
            f"{escape_name(store)} was explained with another plan: {'; '.join(other)}. Give the settings of the run."
        )


def _changed(store: Path, key: str, was: str, now: str) -> str:
    return (
        f"{escape_name(store)} was started with another {_WHAT[key]}: its fingerprint was {was}, now it is {now}. "
        f"Write to another folder, or use the original {_WHAT[key]}."
    )


# --- the input set ----------------------------------------------------------------------------------------------------


def listed(entries: Iterator[Entry], work: Work) -> Iterator[Item]:
    """Yield the items for the list, with the numbers of their classes."""
    for number, entry in enumerate(entries):
        yield Item(number, entry.name, entry.place, entry.size, work.label_of.listed(entry.label))


def count_new_items(store: Path, commits: Commits, work: Work, old: Mapping[str, Any]) -> int:
    """Return the number of new items; raise if a listed item was removed, changed or moved."""
    was, now = (about.get("digest") for about in (old["inputs"], work.source.about))
    if was not in (None, now):  # a store of an older version has none
        raise ChangedError(_changed(store, "inputs", was, str(now)))
    known, labels = commits.items(), work.label_of
    labels.go_on(old.get("label_names"))
    expected, new, found = next(known, None), 0, hashlib.sha256()
    for entry in work.source.entries():
        found.update(entry.line())
        if expected is None or (entry.name, entry.place, entry.size) != expected[1:4]:
            new += 1
            continue
        label = labels.listed(entry.label)
        if label != expected.label:
            raise ChangedError(
                f"{escape_name(store)} was started with other classes: that of {escape_name(entry.name)} was "
                f"{expected.label}, now it is {label} (−1: none). Write to another folder, or use the original classes."
            )
        expected = next(known, None)
    if expected is not None:
        was, now = old["inputs"]["fingerprint"], found.hexdigest()
        raise ChangedError(
            f"{_changed(store, 'inputs', was, now)} The first item that was removed, changed or moved: "
            f"{escape_name(expected.name)}."
        )
    return new
