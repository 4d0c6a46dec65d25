"""References, with which x is compared: zeros, a blurred or averaged picture, the user's own inputs; one or several.

read_references(given, x, …)
├── "zeros", "mean", "blur"    computed from x
├── a tensor, an array         shaped like x or one sample; with one more axis, several; for tokens also vectors
├── a tuple, {name: …}         one for each input; None, or no name: the same as in x
└── a list                     several references, over which the result is averaged
choose_reference          the reference of method="secant" if none was given, and its description
choose_secant_defaults    its target and its smoothing
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from deeptaylor.engine.engine import Engine
from deeptaylor.engine.inputs import check_tokens
from deeptaylor.engine.spatial import has_pixels, smoothing_width
from deeptaylor.engine.target import Against, against_rivals
from deeptaylor.errors import InputError
from deeptaylor.graph.node import Node, is_node
from deeptaylor.operations.table import flow_of, row_of, secant_of
from deeptaylor.secants.choices import split_comparison

__all__ = [
    "NAMED",
    "DefaultReference",
    "average_data",
    "choose_reference",
    "choose_secant_defaults",
    "read_references",
    "smoothing_note",
]

Reference = tuple[Tensor, ...]  # one tensor for each input, in its shape (for tokens also their vectors)
_WIDTH = 1 / 16  # of a picture's side: the standard deviation of the blur
_CONTRAST_WIDTH = 1.6  # the factor by which contrasts are smoothed more: they show where, not how much


# --- made of x --------------------------------------------------------------------------------------------------------


def _make_zeros(x: Tensor) -> Tensor:
    """Return zeros in the shape of x."""
    return torch.zeros_like(x)


def _average_pixels(x: Tensor) -> Tensor:
    """Return a picture filled with the mean of each channel."""
    return x.mean(list(range(2, x.ndim)), keepdim=True).expand(x.shape)


def _blur(x: Tensor) -> Tensor:
    """Return a picture blurred by a Gaussian; pixels outside of the picture do not count."""
    for d in range(2, x.ndim):
        n = x.shape[d]
        at = torch.arange(n, dtype=x.dtype, device=x.device)
        bell = torch.exp(-((at[:, None] - at) / max(n * _WIDTH, 0.5)).square() / 2)
        x = (x.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True)).mT).movedim(-1, d)
    return x


NAMED: Mapping[str, Callable[[Tensor], Tensor]] = {"zeros": _make_zeros, "mean": _average_pixels, "blur": _blur}


def _read_name(name: str, inputs: Sequence[Tensor], axis: int) -> Reference:
    if name not in NAMED:
        raise InputError(f"A reference by name must be one of {', '.join(map(repr, NAMED))}; got {name!r}.")
    if not any(x.is_floating_point() for x in inputs):
        raise InputError(f"Tokens have no {name!r}: give other token numbers of the same length as the reference.")
    flat = next((x for x in inputs if x.is_floating_point() and x.ndim < 3), None)
    if name != "zeros" and flat is not None:
        raise InputError(
            f"The reference {name!r} is for pictures (batch, channels, height, width) and signals (batch, channels, "
            f"length); the input has shape {tuple(flat.shape)}: give a tensor."
        )
    axes = (axis, *[1] * (len(inputs) - 1))
    return tuple(_make_reference(name, x, a) if x.is_floating_point() else x for x, a in zip(inputs, axes, strict=True))


def _make_reference(name: str, x: Tensor, axis: int) -> Tensor:
    """Return the reference of this name for x; `axis`: the channel axis."""
    return NAMED[name](x) if axis == 1 else NAMED[name](x.movedim(axis, 1)).movedim(1, axis)


class DefaultReference(NamedTuple):
    """The reference that is used if none was given: one tensor per input, None for an input that stays as it is."""

    inputs: tuple[Tensor | None, ...]
    said: str  # what it is, for the reason and the notes of an answer


def choose_reference(engine: Engine, inputs: Sequence[Tensor]) -> DefaultReference:
    """Return the default reference: the mean of each channel, or of all embeddings; raise InputError if none is known.

    Of several inputs, pictures and tokens change; masks, token types and other whole numbers stay.
    """
    tables = _find_tables(engine)
    most = max((len(table) for table in tables.values()), default=0)
    chosen, said = list[Tensor | None](), list[str]()
    for k, (x, name) in enumerate(zip(inputs, engine.planned.inputs, strict=True)):
        if len(tables.get(name, ())) == most > 0:
            reference, words = _average_embedding(engine, x, name, tables[name])
        elif not x.is_floating_point():
            reference, words = None, ""
        elif has_pixels(engine, x) if k == 0 else x.ndim > 3:
            reference, words = _make_reference("mean", x, engine.channel_axis if k == 0 else 1), "each channel's mean"
        else:
            _raise_no_reference(inputs)
        chosen.append(reference)
        said += [f"{words} ({name})" if words and len(inputs) > 1 else words] * bool(words)
    if not said:
        _raise_no_reference(inputs)
    unchanged = [name for name, r in zip(engine.planned.inputs, chosen, strict=True) if r is None]
    said += [f"{', '.join(unchanged)} as in the input"] * bool(unchanged)
    return DefaultReference(tuple(chosen), "; ".join(said))


def _raise_no_reference(inputs: Sequence[Tensor]) -> NoReturn:
    shapes = ", ".join(str(tuple(t.shape)) for t in inputs)
    real = all(t.is_floating_point() for t in inputs)
    such = "the mean of the training data" if real else "other tokens of the same length"
    raise InputError(
        f"Secants compare with a reference, and none is known for inputs of shape {shapes}: give {{reference}}, "
        f"such as {such}.",
        reference=...,
    )


# --- tokens -----------------------------------------------------------------------------------------------------------


def _find_tables(engine: Engine) -> dict[str, Tensor]:
    """Return the embeddings of every input that holds tokens; the larger table if two read the same input."""
    tables: dict[str, Tensor] = {}
    for node in engine.captured.graph.nodes:
        if not flow_of(node).looks_up_tokens or node.args[0].op != "get_attr":
            continue
        table, read = engine.constant(node.args[0].name), node.args[1]
        while is_node(read) and flow_of(read).moves and read.args:
            read = read.args[0]
        if is_node(read) and read.op == "placeholder" and len(table) > len(tables.get(read.name, ())):
            tables[read.name] = table
    return tables


def _average_embedding(engine: Engine, x: Tensor, name: str, table: Tensor) -> tuple[Tensor, str]:
    """Return the mean of all embeddings in place of every token, and its description.

    If the network reads the numbers of tokens elsewhere, too, return the token next to the mean. Tokens that the
    network looks for by number, such as padding or the end of a text, stay: they say which places are read.
    """
    mean = table.float().mean(0)
    node = next(n for n in engine.captured.inputs if n.name == name)
    if all(flow_of(n).looks_up_tokens or row_of(n).reads in ("shape", "type") for n in node.users):
        vectors = mean.to(table.dtype).expand(*x.shape, -1)
        return vectors, f"the mean of the {len(table)} embeddings in place of every token"
    nearest = int((table.float() - mean).norm(dim=1).argmin())
    kept = sorted(_find_compared_tokens(engine, node))
    found = torch.where(torch.isin(x, torch.tensor(kept, dtype=x.dtype, device=x.device)), x, nearest)
    words = f"token {nearest}, whose embedding is next to the mean of all {len(table)}, in place of every token"
    present = [str(token) for token in kept if bool((x == token).any())]
    return found, words + f" but {', '.join(present)}, which the network looks for by number" * bool(present)


def _find_compared_tokens(engine: Engine, node: Node) -> set[int]:
    """Return the numbers with which tokens are compared."""
    found = set[int]()
    for user in node.users:
        if flow_of(user).moves:
            found |= _find_compared_tokens(engine, user)
        elif secant_of(user.target) is split_comparison:
            for other in user.args:
                value = engine.constant(other.name) if is_node(other) and other.op == "get_attr" else other
                if isinstance(value, numbers.Integral) or (isinstance(value, Tensor) and value.numel() == 1):
                    found.add(int(value))
    return found


# --- the mean of data -------------------------------------------------------------------------------------------------


def average_data(data: Any, inputs: Sequence[Tensor]) -> Tensor | Reference:
    """Return the mean of data (N, …) as one sample; for several inputs, a tuple of means."""
    each = data if isinstance(data, tuple) else (data,)
    if len(each) != len(inputs):
        raise InputError(
            f"background= must be a tuple with data for each input: the network has {len(inputs)} "
            "input(s), and data for "
            f"{len(each)} was given."
        )
    means = tuple(_mean_sample(rows, x) for rows, x in zip(each, inputs, strict=True))
    return means if len(means) > 1 else means[0]


def _mean_sample(rows: Any, x: Tensor) -> Tensor:
    """Return the mean of the rows as one sample like x; raise InputError if they do not fit."""
    if not x.is_floating_point():
        raise InputError(
            f"background= needs inputs of real numbers, but the input holds {x.dtype}: tokens have no mean. Give "
            "other tokens of the same length as reference=…."
        )
    if not isinstance(rows, Tensor) or rows.ndim != x.ndim or rows.shape[1:] != x.shape[1:] or not len(rows):
        got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        values = " Give its numbers: background=data.to_numpy()." if got == "DataFrame" else ""
        sample = ", ".join(map(str, x.shape[1:]))
        raise InputError(f"background= must be data like the input, of shape (N, {sample}); got {got}.{values}")
    if not bool(torch.isfinite(rows).all()):
        raise InputError("background= has values that are NaN or infinite; leave those samples out.")
    return rows.to(x).mean(0, keepdim=True)


def choose_secant_defaults(
    engine: Engine, inputs: Sequence[Tensor], asked: Any, keeps_class: bool
) -> tuple[Any, float]:
    """Return the target and the width of smoothing for method="secant": rivals for a class of a picture or signal.

    keeps_class   True: a class gets no rivals, as for probabilities
    """
    if len(inputs) > 1 or inputs[0].ndim < 3 or not inputs[0].is_floating_point():
        return asked, 0.0
    width = smoothing_width(inputs[0], engine.channel_axis) * (_CONTRAST_WIDTH if isinstance(asked, Against) else 1)
    if not keeps_class:
        shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
        asked = against_rivals(asked, shape, engine.planned.removed_operations)
    return asked, width


def smoothing_note(width: float) -> str:
    """Return the note about a smoothed map."""
    return (
        f"smoothed: each pixel's relevance is spread over its neighbours (standard deviation {width:.3g} pixels); the "
        "sum is unchanged. between(x, reference) gives the relevance of single pixels"
    )


# --- given ------------------------------------------------------------------------------------------------------------


def read_references(
    given: Any, inputs: Sequence[Tensor], engine: Engine, read: Callable[[Any], Any]
) -> list[Reference]:
    """Return every reference as one tensor for each input; raise InputError if one does not fit.

    given   as the user writes it; see above
    read    returns arrays and photographs as tensors
    """
    names, limits = engine.planned.inputs, engine.token_limits
    if isinstance(given, list) and not _of_numbers(given):
        if not given:
            raise InputError("No reference was given: the list is empty.")
        return [one for g in given for one in read_references(g, inputs, engine, read)]
    if isinstance(given, str) and not _is_file(given):
        return [_read_name(given, inputs, engine.channel_axis)]
    if isinstance(given, Mapping):
        strange = [name for name in given if name not in names]
        if strange:
            raise InputError(f"The reference names the input {strange[0]!r}; the network has {', '.join(names)}.")
        given = tuple(given.get(name) for name in names)
    if isinstance(given, tuple):
        if len(given) != len(inputs):
            raise InputError(
                f"A tuple holds one reference for each input: the network has {len(inputs)}, the tuple "
                f"{len(given)}. Give several references as a list."
            )
        each = [
            [x] if g is None else _fit_to_input(read(g), x, name, limits)
            for g, x, name in zip(given, inputs, names, strict=True)
        ]
        if any(len(some) > 1 for some in each):
            raise InputError("For several inputs, give several references as a list of tuples.")
        return [tuple(some[0] for some in each)]
    return [(one, *inputs[1:]) for one in _fit_to_input(read(given), inputs[0], names[0], limits)]


def _is_file(text: str) -> bool:
    """Return True for the path of a photograph."""
    return "." in text or "/" in text


def _of_numbers(given: Any) -> bool:
    """Return True for a list of numbers, which is one reference."""
    while isinstance(given, list) and given:
        given = given[0]
    return isinstance(given, numbers.Real)


def _fit_to_input(r: Any, x: Tensor, name: str, limits: Mapping[str, int]) -> list[Tensor]:
    """Return one or several references for one input, in the shape of x."""
    if not isinstance(r, Tensor):
        raise InputError(
            f"A reference must be a tensor, an array, or one of {', '.join(NAMED)}; got {type(r).__name__}."
        )
    _check_kind(r, x, name)
    vectors = r.is_floating_point() and not x.is_floating_point()
    sample = (*x.shape[1:], r.shape[-1]) if vectors else tuple(x.shape[1:])
    if r.shape == sample:
        r = r.unsqueeze(0)
    several = r if r.ndim == len(sample) + 2 else r.unsqueeze(0)
    if several.ndim != len(sample) + 2 or several.shape[2:] != sample or several.shape[1] not in (1, x.shape[0]):
        raise InputError(
            f"The reference of {name!r} has shape {tuple(r.shape)}; the input has {tuple(x.shape)}. Give"
            " one reference of the input's shape or of one sample's, or several stacked along a new "
            "first axis."
        )
    if not len(several):
        raise InputError("No reference was given: the tensor is empty.")
    if name in limits and not vectors:
        check_tokens(r, name, limits[name])
    return [one.expand(x.shape[0], *sample) for one in several]


def _check_kind(r: Tensor, x: Tensor, name: str) -> None:
    """Raise InputError unless a reference has the dtype and device of x, and finite values."""
    if r.device != x.device:
        raise InputError(f"The reference of {name!r} is on {r.device}, the input on {x.device}; move one of them.")
    if x.is_floating_point() and r.dtype is not x.dtype:
        raise InputError(f"The reference of {name!r} is {r.dtype}, the input {x.dtype}; give reference.to({x.dtype}).")
    if r.dtype is torch.bool or r.is_complex():
        raise InputError(f"The reference of {name!r} is {r.dtype}; real numbers, or numbers of tokens, are needed.")
    if r.is_floating_point() and not bool(torch.isfinite(r).all()):
        raise InputError(f"The reference of {name!r} has values that are NaN or infinite.")
