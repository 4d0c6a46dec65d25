"""Many photographs in one call: a page with all of them, and a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from deeptaylor import heatmap
from deeptaylor.support import report

__all__ = ["CONTACT_SHEET", "REPORT", "Shown", "contact_sheet", "page"]

REPORT, CONTACT_SHEET = "report.html", "contact_sheet.png"
_SIDE = 224  # of a picture on the page and the sheet, in pixels
_MOST = 500  # photographs on the page: more would be too much for a browser

_MEANING = """Red pixels speak for what the caption names. Each map has its own colour scale: full colour is where it
    reaches its 99.5th percentile, so compare where the colour is, not how strong it is between maps."""


@dataclass
class Shown:
    """A photograph with its maps, small, as page and sheet show them; or why there are none."""

    name: str
    lines: Sequence[str]
    recognised: Sequence[tuple[str, float]] = ()
    pictures: list[tuple[str, heatmap.Picture]] = field(default_factory=list)  # captions and pictures


def page(command: str, network: str, photographs: Sequence[Shown]) -> str:
    """All photographs on one page that needs nothing else."""
    lead: list[report.Part] = [_counted(photographs, network), _MEANING, report.Legend()]
    if len(photographs) > _MOST:
        lead.append(f"The first {_MOST} are on this page; the pictures of all of them lie beside it.")
    sections = [_section(photo) for photo in photographs[:_MOST]]
    how = report.Section("How it was computed", [report.Lines(command)])
    return report.page("Which pixels made the network say so?", lead, [*sections, how], "", contents=False)


def _counted(photographs: Sequence[Shown], network: str) -> str:
    bad = [photo.name for photo in photographs if not photo.pictures]
    rest = f" Not explained: {', '.join(bad)}." if bad else ""
    return f"{len(photographs) - len(bad)} photographs, explained with {network}.{rest}"


def _section(photo: Shown) -> report.Section:
    row = [
        report.Picture(heatmap.png_bytes(_small(picture)), caption, f"{caption}: {photo.name}")
        for caption, picture in photo.pictures
    ]
    parts: list[report.Part] = [*photo.lines]
    if row:
        parts.append(report.Row(row))
    if photo.recognised:
        parts.append(report.Shares(photo.recognised))
    return report.Section(photo.name, parts)


def contact_sheet(photographs: Sequence[Shown]) -> heatmap.Picture:
    """The maps of all photographs in one picture: each over its photograph, with file and class below."""
    cells = [
        (_small(picture), f"{photo.name}\n{caption}")
        for photo in photographs
        for caption, picture in photo.pictures[1:]  # the first is the photograph itself
    ]
    return heatmap.montage([c for c, _ in cells], [label for _, label in cells], columns=min(6, len(cells)))


def _small(picture: heatmap.Picture) -> heatmap.Picture:
    image = Image.fromarray(picture)
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image)
