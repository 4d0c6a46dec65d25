"""Is all of a JPEG there? libjpeg fills what is missing with gray, and Pillow passes on no word of it.

A file that merely stops is refused by Pillow. But one that was cut and then closed with an end mark (by a camera that
lost power, a download that was mended) is decoded as if it were whole. So it is decoded once more with other bytes
before the mark: a decoder that had all it needed skips them, one that was still waiting for data takes them for pixels.
Of a progressive one, cut between two passes, the passes say themselves that some are missing.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

__all__ = ["is_whole"]

_PROGRESSIVE, _PASS, _END = 0xC2, 0xDA, 0xD9
_NOISE = bytes(np.random.default_rng(0).integers(0, 255, 512, dtype=np.uint8))  # 255 would begin a mark
# With the marks at which some decoders begin anew, for files that were cut right there.
_NEVER_MEANT = _NOISE + b"".join(bytes([0xFF, 0xD0 + k]) + _NOISE for k in range(8))


def is_whole(data: bytes, decoded: Image.Image) -> bool:
    """Whether a JPEG that was decoded holds all of its picture."""
    end, passes = None, _Passes()
    for at, mark in _marks(data):
        if mark == _END:
            end = at
            break
        passes.see(data, at, mark)
    if end is None:
        return True  # then libjpeg was never told that this is all, and Pillow has refused it if it is not
    if not passes.all_there():
        return False
    with Image.open(io.BytesIO(data[:end] + _NEVER_MEANT + data[end:]), formats=["JPEG"]) as again:
        again.load()
        return again.mode != decoded.mode or again.size != decoded.size or again.tobytes() == decoded.tobytes()


class _Passes:
    """What the passes of a progressive JPEG have brought: for each component and frequency, the bits still to come."""

    def __init__(self) -> None:
        self.missing: dict[tuple[int, int], int] = {}

    def see(self, data: bytes, at: int, mark: int) -> None:
        if mark == _PROGRESSIVE and len(data) > at + 9 + 3 * data[at + 9]:
            components = data[at + 10 : at + 10 + 3 * data[at + 9] : 3]
            self.missing = {(c, frequency): 16 for c in components for frequency in range(64)}
        elif mark == _PASS and self.missing and len(data) > at + 7 + 2 * data[at + 4]:
            count = data[at + 4]
            first, last, bits = data[at + 5 + 2 * count : at + 8 + 2 * count]
            for component in data[at + 5 : at + 5 + 2 * count : 2]:
                self.missing |= {(component, frequency): bits & 15 for frequency in range(first, last + 1)}

    def all_there(self) -> bool:
        return not any(self.missing.values())


def _marks(data: bytes) -> Iterator[tuple[int, int]]:
    """Every mark of the first picture and where it is, outside of the segments that say their length."""
    at = 2
    while 0 <= at < len(data) - 1:
        mark = data[at + 1]
        if data[at] != 0xFF:
            at = data.find(b"\xff", at)
        elif mark == 0xFF:
            at += 1
        elif mark in (0x00, 0x01) or 0xD0 <= mark <= 0xD7:
            at += 2
        else:
            yield at, mark
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
