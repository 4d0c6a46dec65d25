"""Checksums of tensors that see every bit, every sign and the order of elements; of each, or of many together.

A word is eight bytes. Sums of words are exact modulo 2⁶⁴, whatever adds them up: a CPU and a GPU agree. Of whole words
they lose the first bit, a sign, so that the upper half of each is added once more. Words are summed in columns, which
reads them once, and the columns with weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Together", "checksums"]

_COLUMNS = 1021  # a prime: hardly any permutation of weights moves elements by multiples of it alone
_ROWS = {False: 512, True: 2**14}  # at a time, on a CPU (from its cache) and on a GPU
_ALONE = {False: 256, True: 2**14}  # rows from which words are summed where they lie, and not laid behind others first
_UPPER = 0x9E3779B1  # times the upper half; any large odd number


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """One number a tensor."""
    begun = [Together([_aligned(t.detach().contiguous())], beside=False).begin() for t in tensors]
    return [sum(numbers()) % 2**64 for numbers in begun]


def _aligned(t: Tensor) -> Tensor:
    return t.clone() if t.storage_offset() * t.element_size() % 8 else t


class Together:
    """Tensors of which checksums are taken again and again: small ones are laid one behind the other.

    Hundreds of them take the launches of a few. A number is that of many, and tells whether one of them changed.
    """

    def __init__(self, tensors: Sequence[Tensor], beside: bool = True) -> None:
        """`beside`: a GPU sums beside whatever comes after; the tensors must then stay until it was waited for."""
        self._places: list[_OnDevice] = [
            _OnDevice([t.detach() for t in tensors if t.device == device], beside)
            for device in dict.fromkeys(t.device for t in tensors)
        ]

    def begin(self) -> Callable[[], list[int]]:
        """Begin to sum; the function returned waits for the numbers."""
        begun = [place.begin() for place in self._places]
        return lambda: [n for numbers in begun for n in numbers()]


class _OnDevice:
    """Those on one device, in groups of which each is at most as much as is summed at a time."""

    def __init__(self, tensors: Sequence[Tensor], beside: bool) -> None:
        self._cuda = tensors[0].is_cuda
        self._stream = torch.cuda.Stream(tensors[0].device) if self._cuda and beside else None
        rows = _ROWS[self._cuda]
        parts = [_words(t) for t in tensors]
        self._bytes = [rest for _, rest in parts if len(rest)]
        split = [w for words, _ in parts for w in words.split(rows * _COLUMNS)]
        ends = [_end(len(w), _ALONE[self._cuda]) for w in split]
        self._full = [w[:end].view(-1, _COLUMNS) for w, end in zip(split, ends, strict=True) if end]
        self._small = list(_groups([w[end:] for w, end in zip(split, ends, strict=True) if end < len(w)], rows))

    @torch.no_grad()
    def begin(self) -> Callable[[], list[int]]:
        if self._stream is None:
            return self._sums().tolist
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            sums = self._sums()

        def read() -> list[int]:
            with torch.cuda.stream(self._stream):  # it alone is waited for
                return sums.tolist()

        return read

    def _sums(self) -> Tensor:
        groups = [*self._full, *(torch.cat(parts).view(-1, _COLUMNS) for parts in self._small)]
        if self._bytes:
            groups.append(_padded(self._bytes))
        if not groups:
            return torch.zeros(0)
        halves = groups[0].new_empty(max(map(len, groups)), _COLUMNS)  # new memory takes longer than the sums
        columns = []
        for words in groups:
            upper = torch.bitwise_right_shift(words, 32, out=halves[: len(words)])
            columns += [words.sum(0), upper.sum(0)]
        of_words, of_upper = torch.stack(columns).view(-1, 2, _COLUMNS).unbind(1)
        return torch.add(of_words, of_upper, alpha=_UPPER).mul_(_odd(of_words.device)).sum(1)


@functools.cache
def _odd(device: torch.device) -> Tensor:
    odd = torch.arange(1, 2 * _COLUMNS, 2, device=device)
    if odd.is_cuda:
        torch.cuda.synchronize(device)  # once: every stream may read it from now on
    return odd


def _words(t: Tensor) -> tuple[Tensor, Tensor]:
    """The memory between a tensor's first element and its last: words, and the bytes behind them.

    Of memory that does not begin at a word, bytes alone.
    """
    if not t.numel():
        return t.new_zeros(0, dtype=torch.int64), t.new_zeros(0, dtype=torch.uint8)
    span = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    flat = t.as_strided((span,), (1,)).view(torch.uint8)
    whole = 0 if flat.storage_offset() % 8 else len(flat) - len(flat) % 8
    return flat[:whole].view(torch.int64), flat[whole:]


def _end(words: int, least: int) -> int:
    """How many of some words are whole rows, if these are not few."""
    rows = words // _COLUMNS
    return rows * _COLUMNS if rows >= least else 0


def _groups(parts: Sequence[Tensor], rows: int) -> Iterator[list[Tensor]]:
    """Words that are laid one behind the other, with zeros up to a whole row."""
    group: list[Tensor] = []
    size = 0
    for words in (*parts, None):
        if group and (words is None or size + len(words) > rows * _COLUMNS):
            yield [*group, group[0].new_zeros(-size % _COLUMNS)]
            group, size = [], 0
        if words is not None:
            group.append(words)
            size += len(words)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Bytes as rows of words, with zeros behind them."""
    missing = -sum(map(len, parts)) % (8 * _COLUMNS)
    return torch.cat([*parts, parts[0].new_zeros(missing)]).view(torch.int64).view(-1, _COLUMNS)
