"""What does not fit into memory."""

from __future__ import annotations

import torch

__all__ = ["out_of_memory"]


# torch's own words on a CPU, and oneDNN's, which does not say why it cannot make a convolution ready.
_WORDS = ("can't allocate memory", "could not create a primitive", "Cannot allocate memory")


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory ran out, on a GPU or in the machine."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in str(error) for words in _WORDS)
