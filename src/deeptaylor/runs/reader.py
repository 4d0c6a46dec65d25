"""Items are read, decoded and brought to the network's form; or it is said why not."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor.errors import InputError
from deeptaylor.models.networks.photo import opened
from deeptaylor.models.networks.preparation import Preparation
from deeptaylor.runs.commits import Item
from deeptaylor.runs.items import Content, Source
from deeptaylor.runs.prepared import Bad, Prepared
from deeptaylor.runs.store import STATUS
from deeptaylor.shown import printable, shown

__all__ = ["Reader", "said", "tried"]

T = TypeVar("T")
_UNREADABLE, _REFUSED = STATUS.index("unreadable"), STATUS.index("refused")
_NO_HASH = bytes(32)
_LONGEST = 500  # letters of a reason


@dataclass
class Reader:
    """Reads items, in any thread or process; nothing that is wrong with one stops a run.

    pixels   True: photographs as pixels, of which `Preparation.inputs` makes the network's inputs, four times as large
    """

    source: Source
    preparation: Preparation | None  # of photographs
    label_of: Callable[[str | int | None], int]
    pixels: bool = False

    def prepared(self, items: Sequence[Item], shape: Sequence[int]) -> Prepared:
        """Items of this shape in one tensor."""
        inputs: list[Tensor | None] = [None] * len(items)
        digests, labels, bad = [_NO_HASH] * len(items), [item.label for item in items], dict[int, Bad]()
        for k, (item, content) in enumerate(zip(items, self.contents(items), strict=True)):
            if isinstance(content, Content):
                digests[k], labels[k] = content.digest, self.label(item, content)
                inputs[k], why = self._fitting(content, item, shape)
            else:
                why = Bad(_UNREADABLE, said(content))
            if why is not None:
                bad[k] = why
        return Prepared.of(items, inputs, digests, labels, bad)

    def input(self, data: Any, name: str) -> Tensor:
        """The input that was read of an item."""
        if isinstance(data, Tensor):
            return data
        if isinstance(data, bytes):
            with opened(io.BytesIO(data), shown(name)) as image:
                return self._photo(image)
        if isinstance(data, Image.Image):
            return self._photo(data)
        if isinstance(data, np.ndarray) and data.dtype == np.uint8 and self.preparation is not None:
            if data.ndim not in (2, 3) or (data.ndim == 3 and data.shape[2] not in (3, 4)):
                raise InputError(f"A picture as bytes has the shape (height, width, 3); this one has {data.shape}.")
            return self._photo(Image.fromarray(data))
        return torch.as_tensor(data)

    def contents(self, items: Sequence[Item]) -> Sequence[Content | Exception]:
        """What is read of each item, all at once where the source can; or what went wrong with it."""
        many = getattr(self.source, "read_many", None)
        if many is not None:
            found: list[Content] | Exception | None = tried(many, [item.name for item in items])
            if isinstance(found, list):
                return found
        return [tried(self.source.read, item.name, item.place) for item in items]

    def label(self, item: Item, content: Content) -> int:
        """The number of an item's class: as the list has it, or as it was read."""
        return item.label if content.label is None else self.label_of(content.label)

    def _fitting(self, content: Content, item: Item, shape: Sequence[int]) -> tuple[Tensor | None, Bad | None]:
        """The input, or why there is none: it cannot be decoded, or does not fit the others."""
        x = tried(self.input, content.data, item.name)
        if isinstance(x, Exception):
            return None, Bad(_UNREADABLE, said(x))
        if x.shape != shape and not self.pixels:
            return None, Bad(_REFUSED, f"The input has the shape {tuple(x.shape)}, the others {tuple(shape)}.")
        return x, None

    def _photo(self, image: Image.Image) -> Tensor:
        if self.preparation is None:
            raise InputError("The network came without a preparation: it takes tensors, not pictures.")
        if self.pixels:
            return torch.from_numpy(self.preparation.pixels(image).copy())
        return self.preparation(image)[0][0]


def tried(read: Callable[..., T], *what: Any) -> T | Exception:
    """What is read, or whatever goes wrong with it; not too little memory, for which an item is not to blame."""
    try:
        return read(*what)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a user's Dataset may raise anything
        return error


def said(error: BaseException) -> str:
    """Why, in few words."""
    return printable(str(error).strip() or type(error).__name__)[:_LONGEST]
