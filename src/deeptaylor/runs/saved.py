"""A run as files that others read: a picture or a page of its maps, arrays, or a table."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deeptaylor import heatmap
from deeptaylor.errors import InputError
from deeptaylor.runs.reading import Run
from deeptaylor.runs.store import STATUS
from deeptaylor.shown import shown
from deeptaylor.support import report
from deeptaylor.support.files import write_whole
from deeptaylor.support.optional import optional_package

__all__ = ["KINDS", "save"]

KINDS = (".png", ".html", ".npz", ".parquet")
_SIDE = 112  # pixels that a map is enlarged to, where it is smaller


def save(run: Run, path: str | os.PathLike[str], most: int | None = None) -> Path:
    """Write what the ending of the file says: .png or .html, the first maps; .npz, maps and table; .parquet, the table.

    most   how many items; of .png and .html 100 unless said, of the others all
    """
    file = Path(path)
    made = {".png": _png, ".html": _html, ".npz": _npz, ".parquet": _parquet}.get(file.suffix.lower())
    if made is None:
        raise InputError(f"{shown(file)}: a run is exported to {', '.join(KINDS)}.")
    return write_whole(file, made(run, most))


class _Cell(NamedTuple):
    """A map in colours, with words; and whether it has negative values."""

    picture: heatmap.Picture
    text: str
    signed: bool


def _cells(run: Run, most: int | None) -> list[_Cell]:
    """The first items that were explained."""
    table = run.table
    good = np.flatnonzero(table["status"] == STATUS.index("explained"))[: most or 100]
    if not len(good):
        raise InputError(f"Nothing was explained yet in {shown(run.path)}.")
    if len(run.heatmaps.shape) != 3:
        raise InputError(f"Pictures are drawn of maps with height and width; these are {run.heatmaps.shape[1:]}.")
    cells = []
    for number in good.tolist():
        heat = run.heatmap(number)
        drawn = heatmap.colours(heat)
        times = max(1, _SIDE // min(drawn.shape[:2]))
        drawn = drawn.repeat(times, 0).repeat(times, 1)
        text = f"{shown(run.names[number])}\n{_answer(run, int(table['target'][number]))}"
        cells.append(_Cell(drawn, text, bool((heat < 0).any())))
    return cells


def _answer(run: Run, target: int) -> str:
    if target < 0:
        return ""
    return run.classes[target] if run.classes and target < len(run.classes) else f"class {target}"


def _png(run: Run, most: int | None) -> bytes:
    cells = _cells(run, most)
    return heatmap.png_bytes(heatmap.montage([c.picture for c in cells], [c.text for c in cells], min(10, len(cells))))


def _html(run: Run, most: int | None) -> bytes:
    cells = _cells(run, most)
    _, done, bad = run.progress
    lead: list[report.Part] = [
        f"{done} of {len(run)} items are done; {bad} of them could not be explained. The first {len(cells)} maps:",
        report.Legend(any(c.signed for c in cells)),
    ]
    row = report.Row(
        [report.Picture(heatmap.png_bytes(c.picture), c.text.replace("\n", ": "), c.text, _SIDE * 2) for c in cells]
    )
    sections = [report.Section("Heatmaps", [row])]
    if run.errors:
        lines = "\n".join(f"{shown(run.names[t.item])}: {shown(t.reason)}" for t in run.errors[:1000])
        sections.append(report.Section("Not explained", [report.Lines(lines)]))
    return report.page("Heatmaps of a run", lead, sections, "", contents=False).encode()


def _npz(run: Run, most: int | None) -> bytes:
    count = len(run) if most is None else min(most, len(run))
    data = io.BytesIO()
    columns: dict[str, Any] = {name: column[:count] for name, column in run.table.items()}
    np.savez_compressed(
        data, allow_pickle=False, heatmap=run.heatmaps[:count], name=np.array(run.names[:count]), **columns
    )
    return data.getvalue()


def _parquet(run: Run, most: int | None) -> bytes:
    parquet = optional_package("pyarrow.parquet", "A table is asked for as a parquet file")
    data = io.BytesIO()
    table = run.to_arrow()
    parquet.write_table(table if most is None else table.slice(0, most), data)
    return data.getvalue()
