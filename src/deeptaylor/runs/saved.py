"""A run as files that others read: a picture or a page of its maps, arrays, or a table."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

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
_READ = 256  # maps that are read at once
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
    view, cells = run.view(good), []
    for k, number in enumerate(good.tolist()):
        heat = run.heatmap(number)
        drawn = view.drawn(k, heat)
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
    photos = run.manifest["inputs"]["kind"] != "dataset"
    _, done, bad = run.progress
    over = ", each over its photograph in grey where that can be read" * photos
    lead: list[report.Part] = [
        f"{done} of {len(run)} items are done; {bad} of them could not be explained.",
        f"The first {len(cells)} maps{over}:",
        report.Legend(any(c.signed for c in cells)),
    ]
    made = [(heatmap.png_bytes(c.picture), c.text.replace("\n", ": "), c.text) for c in cells]
    row = report.Row([report.Picture(png, caption, alt, _SIDE * 2, photos) for png, caption, alt in made])
    sections = [report.Section("Heatmaps", [row])]
    if run.errors:
        lines = "\n".join(f"{shown(run.names[t.item])}: {shown(t.reason)}" for t in run.errors[:1000])
        sections.append(report.Section("Not explained", [report.Lines(lines)]))
    return report.page("Heatmaps of a run", lead, sections, "", contents=False).encode()


def _npz(run: Run, most: int | None) -> bytes:
    """As numpy writes it, but some maps after the other: all of them at once may be more than there is memory."""
    count = len(run) if most is None else min(most, len(run))
    maps, data = run.heatmaps, io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, values in {"name": np.array(run.names[:count]), **run.table}.items():
            with file.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, values[:count], allow_pickle=False)
        with file.open("heatmap.npy", "w", force_zip64=True) as entry:
            head = {"descr": "<f4", "fortran_order": False, "shape": (count, *maps.shape[1:])}
            np.lib.format.write_array_header_1_0(entry, head)
            for first in range(0, count, _READ):
                entry.write(maps[first : min(first + _READ, count)].astype("<f4").tobytes())
    return data.getvalue()


def _parquet(run: Run, most: int | None) -> bytes:
    parquet = optional_package("pyarrow.parquet", "A table is asked for as a parquet file", "reading")
    data = io.BytesIO()
    table = run.to_arrow()
    parquet.write_table(table if most is None else table.slice(0, most), data)
    return data.getvalue()
