"""A report: one HTML file that needs nothing else, pictures included."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

__all__ = ["Picture", "Section", "Table", "page"]


@dataclass(frozen=True)
class Table:
    """Rows of texts; the first column names its row. A cell may be (what was measured, what the paper says)."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | tuple[str, str]]]


@dataclass(frozen=True)
class Picture:
    """A figure in a PNG file, with an SVG beside it."""

    path: Path
    caption: str
    alt: str
    width: int | None = None  # in pixels of the page; all of it by default


@dataclass(frozen=True)
class Section:
    """A title, then paragraphs, tables and pictures in their order."""

    title: str
    parts: Sequence[str | Table | Picture]


def page(title: str, lead: str, sections: Sequence[Section], foot: str) -> str:
    """The report as HTML. Every text is escaped."""
    contents = "".join(f'<li><a href="#s{n}">{escape(s.title)}</a></li>' for n, s in enumerate(sections, 1))
    return _PAGE.substitute(
        title=escape(title),
        lead=escape(lead),
        contents=contents,
        sections="\n".join(_section(n, section) for n, section in enumerate(sections, 1)),
        foot=escape(foot),
    )


def _section(number: int, section: Section) -> str:
    parts = "\n".join(_part(part) for part in section.parts)
    return (
        f'<section aria-labelledby="s{number}">\n<h2 id="s{number}">{number}. {escape(section.title)}</h2>\n{parts}\n'
        "</section>"
    )


def _part(part: str | Table | Picture) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    return _table(part) if isinstance(part, Table) else _picture(part)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "\n".join(
        f'<tr><th scope="row">{_cell(row[0])}</th>' + "".join(f"<td>{_cell(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: str | tuple[str, str]) -> str:
    if isinstance(cell, str):
        return escape(cell)
    measured, said = cell
    return f"{escape(measured)} <small>{escape(said)}</small>"


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.path.read_bytes()).decode("ascii")
    style = f' style="max-width: {picture.width}px"' if picture.width else ""
    vector = picture.path.with_suffix(".svg").name
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}"{style}>'
        f"<figcaption>{escape(picture.caption)} <small>({escape(picture.path.name)}, {escape(vector)})</small>"
        "</figcaption></figure>"
    )


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
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
p { max-width: 46rem; }
figure { margin: 1.5rem 0; } img { width: 100%; height: auto; display: block; border-radius: .25rem; background: #fff; }
figcaption, caption { color: var(--soft); font-size: .9rem; text-align: left; padding: .4rem 0; max-width: 46rem; }
.wide { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--line); } tbody th { font-weight: 500; }
small { color: var(--soft); }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p>$lead</p>
<nav aria-label="Contents"><ol>$contents</ol></nav>
$sections
<p><small>$foot</small></p>
</main>
</body>
</html>
""")
