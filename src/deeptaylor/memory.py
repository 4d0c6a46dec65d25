"""What does not fit into memory."""

from __future__ import annotations

import torch

__all__ = ["out_of_memory"]


def out_of_memory(error: BaseException) -> bool:
    """True if an error says that memory ran out, on a GPU or in the machine."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
