"""Many photographs in one call: a page with all of them, and a contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from deeptaylor import heatmap
from deeptaylor.app.cli.asked import HANDED_BACK
from deeptaylor.support import report

__all__ = ["CONTACT_SHEET", "REPORT", "Shown", "contact_sheet", "page"]

REPORT, CONTACT_SHEET = "report.html", "contact_sheet.png"
_SIDE, _THUMBNAIL = 224, 160  # of a picture on the page and the sheet, and in the overview, in pixels
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
    short: Sequence[str] = ()  # the lines beneath `HANDED_BACK`, where that is so of every map
    signed: bool = False  # whether a map has negative values
    without: str = ""  # the classes for which there is no evidence, where there is none for any that was asked


def page(command: str, network: str, photographs: Sequence[Shown]) -> str:
    """All photographs on one page that needs nothing else."""
    explained = [photo for photo in photographs if photo.pictures and not photo.without]
    short = bool(explained) and all(photo.short for photo in explained)
    lead: list[report.Part] = [_counted(photographs, network), *[HANDED_BACK] * short, _MEANING]
    lead.append(report.Legend(any(photo.signed for photo in photographs)))
    if len(photographs) > _MOST:
        lead.append(f"The first {_MOST} are on this page; the pictures of all of them lie beside it.")
    lead.append(report.Overview([(photo.name, _thumbnail(photo)) for photo in photographs[:_MOST]]))
    sections = [_section(photo, short) for photo in photographs[:_MOST]]
    how = report.Section("How it was computed", [report.Lines(command)])
    return report.page("Which pixels made the network say so?", lead, [*sections, how], "", contents=False)


def _counted(photographs: Sequence[Shown], network: str) -> str:
    bad = [photo.name for photo in photographs if not photo.pictures]
    rest = f" Not explained: {', '.join(bad)}." if bad else ""
    without: dict[str, list[str]] = {}
    for photo in photographs:
        if photo.without:
            without.setdefault(photo.without, []).append(photo.name)
    for classes, names in without.items():
        rest += f" No evidence for {classes}, whose score is not above zero: {', '.join(names)}."
    count = len(photographs) - len(bad) - sum(map(len, without.values()))
    return f"{count} photograph{'s' * (count != 1)}, explained with {network}.{rest}"


def _thumbnail(photo: Shown) -> bytes | None:
    """The first map over its photograph; the photograph where there is no map."""
    return heatmap.png_bytes(_small(photo.pictures[:2][-1][1], _THUMBNAIL)) if photo.pictures else None


def _section(photo: Shown, short: bool) -> report.Section:
    row = [
        report.Picture(heatmap.png_bytes(_small(picture)), caption, f"{caption}: {photo.name}", 2 * _SIDE)
        for caption, picture in photo.pictures
    ]
    parts: list[report.Part] = [*(photo.short if short and photo.short else photo.lines)]
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
        for caption, picture in photo.pictures[1:] or photo.pictures  # the first is the photograph itself
    ]
    return heatmap.montage([c for c, _ in cells], [label for _, label in cells], columns=min(6, len(cells)))


def _small(picture: heatmap.Picture, side: int = _SIDE) -> heatmap.Picture:
    image = Image.fromarray(picture)
    image.thumbnail((side, side))
    return np.asarray(image)
