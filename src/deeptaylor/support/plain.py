"""Values as JSON and files take them."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["plain", "told"]


def plain(value: Any) -> Any:
    """Numbers of Python, and None for every number that is not finite: JSON has no word for them.

    >>> plain({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def told(target: Any) -> Any:
    """A function, or where it cannot be written to a file, words for it."""
    try:
        pickle.dumps(target)
    except Exception:  # noqa: BLE001 - it may refuse in any way
        return f"a function that could not be saved: {getattr(target, '__qualname__', type(target).__name__)}"
    return target
