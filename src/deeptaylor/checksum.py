"""Checksums of tensors that see every bit, every sign and the order of elements; of many tensors at once.

A word is eight bytes. Sums of words are exact modulo 2⁶⁴, whatever adds them up: a CPU and a GPU agree. Of whole words
they lose the first bit, a sign, so that the upper half of each is added once more.

Large tensors are summed in columns, which read them once. Small ones, and what is left of large ones below the columns,
are laid one behind the other: hundreds of tensors take the launches of a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["checksums"]

_COLUMNS = 1021  # a prime: hardly any permutation of weights moves elements by multiples of it alone
_ROWS = {False: 512, True: 2**14}  # at a time, on a CPU (from its cache) and on a GPU
_LARGE = 2**19  # bytes, from which a tensor is summed by itself
_TOGETHER = 2**22  # bytes that small ones are laid together to
_UPPER = 0x9E3779B1  # times the upper half; any large odd number


def checksums(tensors: Sequence[Tensor]) -> Callable[[], list[int]]:
    """Begin to sum; the function returned waits for the numbers, one a tensor."""
    places: dict[torch.device, list[int]] = {}
    for k, t in enumerate(tensors):
        places.setdefault(t.device, []).append(k)
    begun = [(where, _begin([_bytes(tensors[k]) for k in where])) for where in places.values()]

    def read() -> list[int]:
        found: dict[int, int] = {}
        for where, numbers in begun:
            found |= zip(where, numbers.tolist(), strict=True)  # one wait for each device
        return [found[k] for k in range(len(tensors))]

    return read


def _bytes(t: Tensor) -> Tensor:
    if not t.numel():
        return torch.zeros(0, dtype=torch.uint8, device=t.device)
    flat = t.detach().reshape(-1).view(torch.uint8)
    return flat.clone() if flat.storage_offset() % 8 else flat


@torch.no_grad()
def _begin(parts: list[Tensor]) -> Tensor:
    """One number for each of some tensors of bytes on one device."""
    large: dict[int, Tensor] = {}
    for k, flat in enumerate(parts):
        if len(flat) >= _LARGE:
            rows = len(flat) // (8 * _COLUMNS)
            large[k] = _in_columns(flat[: rows * 8 * _COLUMNS].view(torch.int64).reshape(rows, _COLUMNS))
            parts[k] = flat[rows * 8 * _COLUMNS :]
    numbers = torch.cat([_together(some) for some in _groups(parts)])
    if large:
        at = torch.tensor(list(large), device=numbers.device)
        numbers.index_add_(0, at, torch.stack(list(large.values())))
    return numbers


def _in_columns(words: Tensor) -> Tensor:
    columns = words.new_zeros(2, _COLUMNS)
    halves = torch.empty_like(words[: _ROWS[words.is_cuda]])  # one for all: new memory takes longer than the sums
    for some in words.split(_ROWS[words.is_cuda]):
        upper = torch.bitwise_right_shift(some, 32, out=halves[: len(some)])
        columns[0] += some.sum(0)
        columns[1] += upper.sum(0)
    odd = torch.arange(1, 2 * _COLUMNS, 2, device=words.device)
    return ((columns[0] + columns[1] * _UPPER) * odd).sum()


def _groups(parts: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: list[list[Tensor]] = [[]]
    size = 0
    for flat in parts:
        size += len(flat)
        if size > _TOGETHER and groups[-1]:
            groups.append([])
            size = len(flat)
        groups[-1].append(flat)
    return groups


def _together(parts: list[Tensor]) -> Tensor:
    """One number for each, from its words times odd numbers that grow along it."""
    nothing = parts[0].new_zeros(8)
    words = [-(-len(flat) // 8) for flat in parts]
    padded = [p for flat, n in zip(parts, words, strict=True) for p in (flat, nothing[: 8 * n - len(flat)]) if len(p)]
    ends = torch.tensor(list(itertools.accumulate(words, initial=0)), device=parts[0].device)
    if not padded:
        return torch.zeros_like(ends[1:])
    flat = torch.cat(padded).view(torch.int64)
    flat = flat + (flat >> 32).mul_(_UPPER)
    counts = torch.tensor(words, device=flat.device)
    first = torch.repeat_interleave(ends[:-1], counts, output_size=len(flat))
    odd = torch.arange(len(flat), device=flat.device).sub_(first).mul_(2).add_(1)
    sums = torch.cat([flat.new_zeros(1), flat.mul_(odd).cumsum_(0)])[ends]
    return sums.diff()
