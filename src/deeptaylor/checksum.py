"""Checksums of tensors that see every bit, every sign and the order of elements; of each, or of many together.

A word is eight bytes. Sums of words are exact modulo 2⁶⁴, whatever adds them up: a CPU and a GPU agree. Of whole words
they lose the first bit, a sign, so that the upper half of each is added once more. Words are summed in columns, which
reads them once, and the columns with weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Together", "checksums"]

_COLUMNS = 1021  # a prime: hardly any permutation of weights moves elements by multiples of it alone
_ROWS = {False: 512, True: 2**14}  # at a time, on a CPU (from its cache) and on a GPU
_LARGE = {False: 2**16, True: 2**24}  # words, from which a tensor is summed where it lies
_UPPER = 0x9E3779B1  # times the upper half; any large odd number


@torch.no_grad()
def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """One number a tensor."""
    numbers = []
    for t in tensors:
        flat = _bytes(t.detach().contiguous())
        words, rest = _split(flat.clone() if flat.storage_offset() % 8 else flat)
        numbers.append(_number([words]) + _UPPER * _number([_in_words([rest])]))
    return _read(numbers)()


class Together:
    """Tensors of which checksums are taken again and again: small ones are laid one behind the other.

    Hundreds of them take the launches of a few. A number is that of many, and tells whether one of them changed.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._words: list[list[Tensor]] = []
        self._bytes: list[list[Tensor]] = []  # what does not fill words
        for device in dict.fromkeys(t.device for t in tensors):
            parts = [_split(_bytes(t.detach())) for t in tensors if t.device == device]
            self._words += _groups([words for words, _ in parts])
            self._bytes.append([rest for _, rest in parts if len(rest)])

    @torch.no_grad()
    def begin(self) -> Callable[[], list[int]]:
        """Begin to sum; the function returned waits for the numbers."""
        return _read([_number(some) for some in (*self._words, *([_in_words(b)] for b in self._bytes if b))])


def _bytes(t: Tensor) -> Tensor:
    """The memory between a tensor's first element and its last, as it lies there."""
    if not t.numel():
        return torch.zeros(0, dtype=torch.uint8, device=t.device)
    span = 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((span,), (1,)).view(torch.uint8)


def _split(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Words, and the bytes behind them; of memory that does not begin at a word, bytes alone."""
    whole = 0 if flat.storage_offset() % 8 else len(flat) - len(flat) % 8
    return flat[:whole].view(torch.int64), flat[whole:]


def _in_words(parts: Sequence[Tensor]) -> Tensor:
    missing = -sum(map(len, parts)) % 8
    return torch.cat([*parts, parts[0].new_zeros(missing)]).view(torch.int64)


def _groups(parts: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Large ones by themselves, small ones together."""
    together: list[Tensor] = []
    size = 0
    for words in parts:
        large = _LARGE[words.is_cuda]
        if len(words) >= large:
            yield [words]
        elif len(words):
            together.append(words)
            size += len(words)
            if size >= large:
                yield together
                together, size = [], 0
    if together:
        yield together


def _number(parts: Sequence[Tensor]) -> Tensor:
    """One number for some tensors of words, laid one behind the other."""
    words = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    rows = len(words) // _COLUMNS
    columns = words.new_zeros(2, _COLUMNS)
    at_once = _ROWS[words.is_cuda]
    halves = words.new_empty(min(rows, at_once), _COLUMNS)  # one for all: new memory takes longer than the sums
    for some in words[: rows * _COLUMNS].view(rows, _COLUMNS).split(at_once):
        upper = torch.bitwise_right_shift(some, 32, out=halves[: len(some)])
        columns[0] += some.sum(0)
        columns[1] += upper.sum(0)
    rest = words[rows * _COLUMNS :]
    columns[0, : len(rest)] += rest
    columns[1, : len(rest)] += rest >> 32
    odd = torch.arange(1, 2 * _COLUMNS, 2, device=words.device)
    return ((columns[0] + columns[1] * _UPPER) * odd).sum()


def _read(numbers: Sequence[Tensor]) -> Callable[[], list[int]]:
    """Wait for numbers, once for each device."""
    places: dict[torch.device, list[int]] = {}
    for k, number in enumerate(numbers):
        places.setdefault(number.device, []).append(k)
    begun = [(where, torch.stack([numbers[k] for k in where])) for where in places.values()]

    def read() -> list[int]:
        found: dict[int, int] = {}
        for where, stacked in begun:
            found |= zip(where, stacked.tolist(), strict=True)
        return [found[k] for k in range(len(numbers))]

    return read
