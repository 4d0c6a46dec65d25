"""Tables as users give them: data frames, one row of a data frame, arrays and lists, as real numbers with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from deeptaylor.errors import InputError

__all__ = ["column_names", "default_column_names", "read_rows", "to_numbers"]


def column_names(x: Any) -> tuple[str, ...]:
    """Return the names of the columns of a data frame, or of one row of it; () for anything else."""
    if not hasattr(x, "to_numpy"):
        return ()
    names = x.index if hasattr(x, "to_frame") else getattr(x, "columns", ())
    return tuple(map(str, names))


def read_rows(x: Any, names: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Return rows of a table as real numbers, and the names of its columns.

    Of a data frame the columns that the network knows, in its order; of one that was fitted without names all of them.
    One row of a data frame, such as df.iloc[0], is a table of one row.
    """
    if hasattr(x, "to_frame") and hasattr(x, "to_numpy"):
        x = x.to_frame().T
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        named = {str(column): column for column in x.columns}
        missing = [name for name in names if name not in named]
        if missing and names != default_column_names(len(names)):
            raise InputError(f"The table has no column called {', '.join(missing)}; the network was fitted with it.")
        if missing and len(x.columns) != len(names):
            raise InputError(
                f"The table has {len(x.columns)} columns, and the network, which was fitted without names of columns, "
                f"reads {len(names)}."
            )
        if missing:
            names = tuple(map(str, x.columns))
        else:
            x = x[[named[name] for name in names]]
        x = x.to_numpy()
    rows = x if isinstance(x, (Tensor, tuple, Mapping)) else to_numbers(x, names)
    return rows, tuple(names)


def to_numbers(rows: Any, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return rows of a table as an array of real numbers; raise an InputError for anything else in it."""
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().numpy()
    try:
        if not np.iscomplexobj(rows):  # numpy would drop the imaginary part, with a warning
            return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(_describe_bad_value(rows, names))


def _describe_bad_value(rows: Any, names: Sequence[str]) -> str:
    """Say which value of a table is not a real number, or what is not a table."""
    try:
        values = np.array(rows, dtype=object)
    except ValueError:
        values = np.zeros((0, 0))
    for place, value in np.ndenumerate(values) if values.ndim == 2 and values.shape[1] == len(names) else ():
        try:
            float(value)
        except (TypeError, ValueError):
            return (
                f"Column {names[place[1]]!r} has a value that is not a real number, in row {place[0]}: "
                f"{str(value)[:40]!r} ({type(value).__name__}). Encode texts, and fill in what is missing, as you did "
                "to fit the model."
            )
    return (
        f"Rows of a table are a data frame, an array or lists of {len(names)} real numbers each; got "
        f"{type(rows).__name__}{f' of shape {values.shape}' if values.ndim else ''}."
    )


def default_column_names(count: int) -> tuple[str, ...]:
    """Return names for columns without names: x0, x1, …"""
    return tuple(f"x{k}" for k in range(count))
