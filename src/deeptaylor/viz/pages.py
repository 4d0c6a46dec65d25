"""A map as one page that answers the pointer: `viewer.html` with the photograph, the numbers and the words put in.

The page holds everything that it shows and loads nothing; the browser is told to allow no connection.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from PIL import Image

from deeptaylor.errors import InputError
from deeptaylor.formatting import escape_text, format_percent, join_lines
from deeptaylor.viz.colors import RAMP, style_sheet
from deeptaylor.viz.drawings import Drawing
from deeptaylor.viz.heatmap import Heat, Picture, encode_pixels, encode_png

__all__ = [
    "GalleryItem",
    "Heading",
    "Legend",
    "Lines",
    "Overview",
    "Part",
    "PictureRow",
    "ReportPicture",
    "Section",
    "Shares",
    "Table",
    "render_gallery",
    "render_report",
    "render_viewer",
]


Cell = str | tuple[str, str]


@dataclass(frozen=True)
class Heading:
    """A title below the section's."""

    text: str

    def html(self) -> str:
        return f"<h3>{escape(self.text)}</h3>"


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names its row. A cell may be (what was measured, what is said of it)."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.head)
        rows = "\n".join(_format_row(row) for row in self.rows)
        return (
            f'<div class="wide"><table><caption>{_render_prose(self.caption)}</caption>\n'
            f"<thead><tr>{head}</tr></thead>\n"
            f"<tbody>{rows}</tbody></table></div>"
        )


def _format_row(row: Sequence[Cell]) -> str:
    name, *cells = (_format_cell(cell) for cell in row)
    return f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _format_cell(cell: Cell) -> str:
    return escape(cell) if isinstance(cell, str) else f"{escape(cell[0])} <small>{escape(cell[1])}</small>"


@dataclass(frozen=True)
class ReportPicture:
    """A PNG: its bytes, or its file, which is then named, as is the SVG beside it."""

    png: bytes | Path
    caption: str
    alt: str
    width: int | None = None  # in pixels of the page; all of it by default
    photo: bool = False  # of photographs: the page holds it as JPEG, a quarter as large

    def html(self) -> str:
        png, files = self.png, ""
        if isinstance(png, Path):
            files = f" <small>({escape(png.name)}, {escape(png.with_suffix('.svg').name)})</small>"
            png = png.read_bytes()
        style = f' style="max-width: {self.width}px"' if self.width else ""
        kind, content = ("jpeg", _encode_jpeg(png)) if self.photo else ("png", png)
        data = base64.b64encode(content).decode("ascii")
        return (
            f'<figure><img src="data:image/{kind};base64,{data}" alt="{_render_prose(self.alt)}"{style}>'
            f"<figcaption>{_render_prose(self.caption)}{files}</figcaption></figure>"
        )


def _encode_jpeg(png: bytes) -> bytes:
    """Encode a picture as JPEG with colours at full resolution: maps are thin red lines."""
    data = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").save(data, "JPEG", quality=80, subsampling=0, optimize=True)
    return data.getvalue()


@dataclass(frozen=True)
class PictureRow:
    """Pictures side by side, where there is room."""

    pictures: Sequence[ReportPicture]

    def html(self) -> str:
        return '<div class="row">' + "".join(picture.html() for picture in self.pictures) + "</div>"


@dataclass(frozen=True)
class Lines:
    """Text whose lines stay as they are; folded away where there is a summary."""

    text: str
    summary: str = ""

    def html(self) -> str:
        text = f"<pre>{escape(self.text)}</pre>"
        return f"<details><summary>{escape(self.summary)}</summary>{text}</details>" if self.summary else text


@dataclass(frozen=True)
class Shares:
    """Names and shares, each with a bar, in order."""

    rows: Sequence[tuple[str, float]]

    def html(self) -> str:
        return '<ol class="shares">' + "".join(_format_share(name, share) for name, share in self.rows) + "</ol>"


def _format_share(name: str, share: float) -> str:
    return f"<li><span>{escape(name)}</span> <meter min=0 max=1 value={share:.4f}></meter> {format_percent(share)}</li>"


@dataclass(frozen=True)
class Legend:
    """The colours of heatmaps (viz/heatmap.py)."""

    signed: bool = True  # False: no map has negative values

    def html(self) -> str:
        if not self.signed:
            return (
                '<div class="legend positive" role="img" aria-label="Colours: white nothing, red for the class">'
                '</div>\n<div class="ends two" aria-hidden="true"><span>0</span><span>for the class</span></div>'
            )
        return (
            '<div class="legend" role="img" aria-label="Colours: blue against the class, white nothing, red for it">'
            '</div>\n<div class="ends" aria-hidden="true"><span>against</span><span>0</span><span>for the class</span>'
            "</div>"
        )


@dataclass(frozen=True)
class Overview:
    """Small pictures (PNG; none where there is none) with their names, the n-th of which leads to the n-th section."""

    rows: Sequence[tuple[str, bytes | None]]

    def html(self) -> str:
        links = "".join(_format_link(n, name, png) for n, (name, png) in enumerate(self.rows, 1))
        return f'<nav class="overview" aria-label="Overview">{links}</nav>'


def _format_link(number: int, name: str, png: bytes | None) -> str:
    data = "" if png is None else base64.b64encode(_encode_jpeg(png)).decode("ascii")
    image = f'<img src="data:image/jpeg;base64,{data}" alt="">' if data else ""
    return f'<a href="#s{number}">{image}<span>{escape(name)}</span></a>'


Part = str | Heading | Table | ReportPicture | PictureRow | Lines | Shares | Legend | Overview


@dataclass(frozen=True)
class Section:
    """A title, then parts in their order."""

    title: str
    parts: Sequence[Part]


def render_report(
    title: str, lead: list[Part], sections: Sequence[Section], foot: str, *, contents: bool = True
) -> str:
    """Render the report as HTML; with contents its sections have numbers."""
    titles = [f"{n}. {s.title}" if contents else s.title for n, s in enumerate(sections, 1)]
    links = "".join(f'<li><a href="#s{n}">{escape(s.title)}</a></li>' for n, s in enumerate(sections, 1))
    return _PAGE.substitute(
        title=escape(title),
        lead=_render_parts(lead),
        contents=f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if contents else "",
        sections="\n".join(_render_section(n, titles[n - 1], section.parts) for n, section in enumerate(sections, 1)),
        foot=_render_prose(foot),
    )


def _render_section(number: int, title: str, parts: Sequence[Part]) -> str:
    head = f'<h2 id="s{number}">{escape(title)}</h2>'
    return f'<section aria-labelledby="s{number}">\n{head}\n{_render_parts(parts)}\n</section>'


def _render_parts(parts: Sequence[Part]) -> str:
    return "\n".join(f"<p>{_render_prose(part)}</p>" if isinstance(part, str) else part.html() for part in parts)


def _render_prose(text: str) -> str:
    return escape(join_lines(text))


_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>
:root { color-scheme: light dark; --text: #1b1b1f; --soft: #5a5a66; --page: #fbfbfd; --line: #d9d9e0; }
@media (prefers-color-scheme: dark) { :root { --text: #ececf1; --soft: #a9a9b6; --page: #17171b; --line: #3a3a44; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 66rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { line-height: 1.2; } h1, h2, h3 { overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
h3 { margin: 1.5rem 0 .5rem; font-size: 1rem; }
p { max-width: 46rem; }
figure { margin: 1.5rem 0; } img { width: 100%; height: auto; display: block; border-radius: .25rem; background: #fff; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(14rem, 100%), 1fr)); gap: 1rem; }
.row figure { margin: 0; }
figcaption, caption { color: var(--soft); font-size: .9rem; text-align: left; padding: .4rem 0; max-width: 46rem; }
.wide { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); } tbody th { font-weight: 500; }
small { color: var(--soft); } .shares { color: var(--soft); font-size: .9rem; }
pre { overflow-x: auto; white-space: pre-wrap;
  font-size: .8rem; line-height: 1.35; padding: .75rem; border: 1px solid var(--line); }
summary { cursor: pointer; }
.legend { height: .9rem; border: 1px solid var(--line); border-radius: .25rem;
  background: linear-gradient(90deg, rgb(16 0 150), rgb(70 92 250), #fff, rgb(250 92 70), rgb(150 0 16)); }
.positive { background: linear-gradient(90deg, #fff, rgb(250 92 70), rgb(150 0 16)); max-width: 24rem; }
.overview { display: grid; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
.overview a { color: inherit; font-size: .8rem; line-height: 1.3; overflow-wrap: anywhere; text-decoration: none; }
.overview a:hover span, .overview a:focus-visible span { text-decoration: underline; }
.overview span { display: block; padding-top: .2rem; }
.ends { display: grid; grid-template-columns: repeat(3, 1fr); color: var(--soft); font-size: .9rem; }
.ends :nth-child(2) { text-align: center; } .ends :nth-child(3) { text-align: right; }
.two { grid-template-columns: repeat(2, 1fr); max-width: 24rem; } .two :nth-child(2) { text-align: right; }
</style>
</head>
<body>
<main>
<h1>$title</h1>
$lead
$contents
$sections
<p><small>$foot</small></p>
</main>
</body>
</html>
""")


_PHOTO_SIDE = 1600  # pixels of a photograph: no screen shows more
_PATCH = 14  # patches along the shorter side of a map: a pixel alone is too small a part to say much
_LEAST_WIDTH = 640  # pixels of a page: a map or a photograph is at least shown as wide as this
_EACH = 60  # small pictures that a page shows at a time
_STRIP = 8  # of a map of one dimension: how much wider than high it is drawn


def render_viewer(d: Drawing, score: float, names: Sequence[str] = ()) -> str:
    """Render the page of a map; if ``score`` is not positive, values are given as they are and not as parts of it.

    names   of the places of a map of one dimension
    """
    if d.heat.ndim > 3:
        raise InputError(
            f"A page shows maps of one, two or three dimensions, and this one has the shape {d.heat.shape}."
        )
    heat = d.heat.reshape((1,) * (3 - d.heat.ndim) + d.heat.shape)
    photo = None if d.photo is None else d.photo.shrink_to(_PHOTO_SIDE)
    height, width = heat.shape[1:] if photo is None else photo.picture.shape[:2]
    left, top, right, bottom = (0, 0, width, height) if photo is None else photo.window
    data = {
        "ramp": RAMP,
        "shape": heat.shape,
        "values": base64.b64encode(heat.astype("<f4").tobytes()).decode(),
        "score": score,
        "low": d.scale.low,
        "high": d.scale.high,
        "signed": d.scale.signed,
        "patch": max(1, round(min(heat.shape[1:]) / _PATCH)),
        "names": [escape_text(name) for name in names] or None,
        "window": [left / width, top / height, (right - left) / width, (bottom - top) / height],
        "framed": photo is not None and photo.is_cropped,
        "beneath": photo is not None,
    }
    return _fill_template(
        "viewer.html",
        colors=style_sheet(),
        title=html.escape(escape_text(d.title)),
        alt=html.escape(escape_text(f"{d.title}: {d.name if photo is None else d.over}")),
        caption=html.escape(escape_text(_make_caption(d))),
        legend=html.escape(_make_legend(d, score)),
        beneath=_render_blank(heat) if photo is None else _render_photo(photo.picture, d.beneath),
        width=str(max(_LEAST_WIDTH, min(width, 900))),
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _fill_template(name: str, **parts: str) -> str:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    pieces = text.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # one after the other, so that what is put in is never searched
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


@dataclass(frozen=True)
class GalleryItem:
    """A small picture (JPEG) with its texts, as `render_gallery` shows it."""

    name: str
    class_name: str
    probability: float | None
    score: float
    label: str  # the item's own class, if the network's answer is another
    jpeg: bytes


def render_gallery(title: str, lead: Sequence[str], items: Sequence[GalleryItem], signed: bool, rest: str = "") -> str:
    """Render a page that shows many small pictures, some at a time, in several orders; it needs nothing else.

    signed   whether a map has negative values
    rest     lines that are folded away below: what has no picture
    """
    pictures = "".join(
        f'<script type="text/plain" id="i{k}">{base64.b64encode(item.jpeg).decode()}</script>\n'
        for k, item in enumerate(items)
    )
    data = [
        {
            "number": k, "name": item.name, "class": item.class_name, "probability": item.probability,
            "score": item.score, "label": item.label,
        }
        for k, item in enumerate(items)
    ]  # fmt: skip
    return _fill_template(
        "gallery.html",
        colors=style_sheet(),
        title=escape(escape_text(title)),
        lead=_render_parts([*map(escape_text, lead), Legend(signed)]),
        rest=Lines(rest, "Not explained").html() if rest else "",
        pictures=pictures,
        data=json.dumps(data).replace("<", "\\u003c"),
        each=str(_EACH),
    )


def _make_caption(d: Drawing) -> str:
    frame = ["The network saw what lies inside the frame."] * (d.photo is not None and d.photo.is_cropped)
    return " ".join(s for s in [*d.caption, d.scale.note, *frame] if s)


def _make_legend(d: Drawing, score: float) -> str:
    red = "Red speaks for the decision, blue against it" if d.scale.signed else "Red speaks for the decision"
    where = f"{100 * d.scale.high / score:.3g}\xa0% of the score" if score > 0 else f"a relevance of {d.scale.high:.3g}"
    beyond = " and beyond" if d.scale.largest > d.scale.high * (1 + 1e-6) else ""
    return f"{red}; full colour is at {where}{beyond}."


def _render_photo(picture: Picture, what: str) -> str:
    coded = base64.b64encode(encode_pixels(picture, ".jpg")).decode()
    return f'<img alt="{html.escape(what)}" src="data:image/jpeg;base64,{coded}">'


def _render_blank(heat: Heat) -> str:
    """Render room for a map without a photograph, in its own shape; a strip for a map of one dimension."""
    _, rows, columns = heat.shape
    shape = f"{_STRIP} / 1" if rows == 1 else f"{columns} / {rows}"
    return f'<div class="blank" style="aspect-ratio:{shape}"></div>'


def html_figure(images: Sequence[tuple[Picture, str]], caption: str) -> str:
    """Return pictures, each with its description, over a caption that is HTML already."""
    found = "".join(
        f'<img alt="{alt}" style="min-width:160px;image-rendering:pixelated" '
        f'src="data:image/png;base64,{base64.b64encode(encode_png(picture)).decode()}">'
        for picture, alt in images
    )
    return f'<figure style="display:inline-block;margin:4px">{found}<figcaption>{caption}</figcaption></figure>'
