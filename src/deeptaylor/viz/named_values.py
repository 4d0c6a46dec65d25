"""Names with their relevance: words in colours, and the values of a table as bars, the longest first.

Both show themselves in a notebook and a terminal, and write themselves to a file. Only the figure of bars needs
matplotlib.
"""

from __future__ import annotations

import html
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deeptaylor.errors import InputError, warn
from deeptaylor.formatting import escape_name
from deeptaylor.support.files import output_suffix, write_whole
from deeptaylor.viz.colors import BLUE, RED, Rgb, choose_ink, relevance_to_rgb
from deeptaylor.viz.heatmap import ColorScale, Heat

if TYPE_CHECKING:
    from deeptaylor.viz.figures import Figure, Size

__all__ = ["TEXT_KINDS", "TEXT_PAGE", "Bars", "TokenMap", "make_bars", "make_tokens"]

# DOC """The values of a table and what each counted: bars, the longest first."""


TEXT_KINDS = (".html", ".png", ".txt")
TEXT_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="margin:2em;max-width:50em;background:white;color:black">{body}</body></html>
"""
_WIDTH, _SIZE, _PAD = 720, 18, 6  # pixels of a picture: how wide it is, how high letters are, the room around words


@dataclass(frozen=True, repr=False)
class TokenMap:
    """Words and the relevance of each: red speaks for the decision, blue against it, white counts nothing."""

    words: tuple[str, ...]
    values: tuple[float, ...]
    scale: ColorScale
    title: str = ""
    caption: str = ""
    breaks: tuple[int, ...] = ()  # the words that begin a line
    legend: str = ""  # what the colours mean; said where there are some

    def _lines(self, words: Sequence[str], between: str) -> str:
        """Join prepared words with spaces, and with `between` where a line begins."""
        return "".join(
            f"{between if k in self.breaks else ' ' if k else ''}{word}" for k, word in enumerate(words)
        )  # fmt: skip

    @property
    def below(self) -> str:
        """What is said below words in colours."""
        return " ".join(part for part in (self.legend, self.caption) if part)

    def _rgb(self) -> list[Rgb]:
        rows = relevance_to_rgb(self.scale(np.array([self.values])))[0].tolist()
        return [(r, g, b) for r, g, b in rows]

    def _repr_html_(self) -> str:
        spans = [
            f'<span title="{value:.4g}" style="background:rgb{rgb};color:{choose_ink(rgb)};padding:1px 3px;'
            f'border-radius:3px">{html.escape(escape_name(word))}</span>'
            for word, value, rgb in zip(self.words, self.values, self._rgb(), strict=True)
        ]
        head = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        foot = f'<p style="font-size:smaller">{html.escape(self.below)}</p>' if self.below else ""
        return f'{head}<p style="line-height:1.9">{self._lines(spans, "<br>")}</p>{foot}'

    def coloured(self) -> str:
        """Return the words in the colours of a terminal."""
        inks = {"black": "30", "white": "97"}
        words = [
            f"\x1b[48;2;{';'.join(map(str, rgb))};{inks[choose_ink(rgb)]}m{escape_name(word)}\x1b[0m"
            for word, rgb in zip(self.words, self._rgb(), strict=True)
        ]
        return self._lines(words, "\n")

    def plain(self) -> str:
        """Return a line per word, with its number."""
        numbers = [f"{value:.4g}" for value in self.values]
        width = max(map(len, numbers), default=0)
        return "\n".join(f"{n.rjust(width)}  {escape_name(word)}" for n, word in zip(numbers, self.words, strict=True))

    def __str__(self) -> str:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        body = (self.coloured(), self.below) if colours else (self.plain(), self.caption)
        return "\n".join(part for part in (self.title, *body) if part)

    __repr__ = __str__

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page (.html), a picture (.png) or numbers (.txt), whole or not at all."""
        return write_whole(path, self.file_bytes(output_suffix(path, TEXT_KINDS)))

    def file_bytes(self, kind: str) -> bytes:
        """Return the content of a file of this kind."""
        if kind == ".html":
            return TEXT_PAGE.format(title=html.escape(self.title), body=self._repr_html_()).encode()
        if kind == ".txt":
            return f"{self.title}\n\n{self.plain()}\n\n{self.caption}\n".encode()
        data = io.BytesIO()
        _draw_words(self, self._rgb()).save(data, format="PNG", optimize=True)
        return data.getvalue()


def make_tokens(words: Sequence[str] | None, heat: Heat, scale: ColorScale, title: str, caption: str) -> TokenMap:
    """Return the words with their relevance; without words, their numbers."""
    if heat.ndim != 1:
        raise InputError(f"One number per token is needed; this map has the shape {heat.shape}; give axis=.")
    if isinstance(words, str):
        raise InputError("words is a list of words, one per token; a single text would be taken letter by letter.")
    words = [str(k) for k in range(len(heat))] if words is None else [str(word) for word in words]
    if len(words) != len(heat):
        raise InputError(f"{len(words)} words were given for {len(heat)} tokens.")
    return TokenMap(tuple(words), tuple(heat.tolist()), scale, title, caption)


def _draw_words(told: TokenMap, colours: Sequence[Rgb]) -> Image.Image:
    font, small = _find_font(_SIZE), _find_font(12)
    _warn_of_missing_letters(" ".join(map(escape_name, told.words)), font)
    places = _place_words([int(font.getlength(escape_name(word))) + 2 * _PAD for word in told.words], told.breaks)
    room = places[-1][1] + (len(told.title) + len(told.below)) // 2 + 200  # more than enough; cut off below
    sheet = Image.new("RGB", (_WIDTH, room), "white")
    draw = ImageDraw.Draw(sheet)
    top = _draw_paragraph(draw, told.title, font, 2 * _PAD)
    for word, rgb, (x, y, width) in zip(map(escape_name, told.words), colours, places, strict=True):
        draw.rounded_rectangle((x, top + y, x + width, top + y + _SIZE + _PAD), 4, fill=rgb)
        draw.text((x + _PAD, top + y + 1), word, fill=choose_ink(rgb), font=font)
    end = _draw_paragraph(draw, told.below, small, top + places[-1][1] + _SIZE + 4 * _PAD)
    return sheet.crop((0, 0, _WIDTH, end + _PAD))


def _place_words(widths: Sequence[int], breaks: Sequence[int] = ()) -> list[tuple[int, int, int]]:
    """Place words of these widths in lines that fit: x, y and width."""
    places, x, y = [], 2 * _PAD, 0
    for k, width in enumerate(widths):
        if (x + width > _WIDTH - _PAD or k in breaks) and x > 2 * _PAD:
            x, y = 2 * _PAD, y + _SIZE + 3 * _PAD
        places.append((x, y, width))
        x += width + 3
    return places


def _draw_paragraph(draw: ImageDraw.ImageDraw, text: str, font: _Font, y: int) -> int:
    """Draw text in lines that fit; return where it ends."""
    line = ""
    for word in [*re.split(r"\s+(?!%)", text.strip()), None]:  # a number and its % stay on one line
        longer = f"{line} {word}".strip()
        if line and (word is None or font.getlength(longer) > _WIDTH - 4 * _PAD):
            draw.text((2 * _PAD, y), line, fill="black", font=font)
            y, longer = y + int(font.size * 1.4), word or ""
        line = longer
    return y + _PAD


_Font = ImageFont.FreeTypeFont


def _find_font(size: int) -> _Font:
    """Load DejaVu, which has most alphabets, if it is installed; otherwise the font of Pillow."""
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        found = ImageFont.load_default(size)
        assert isinstance(found, ImageFont.FreeTypeFont)
        return found


def _warn_of_missing_letters(text: str, font: _Font) -> None:
    nothing = bytes(font.getmask("\U0010ffff"))  # what is drawn where a font has no shape
    missing = sorted({letter for letter in text if not letter.isspace() and bytes(font.getmask(letter)) == nothing})
    if missing:
        warn(f"The font has no shape for {' '.join(missing[:8])}; save as .html, which a browser shows in full.")


# --- bars -------------------------------------------------------------------------------------------------------------


_KINDS = (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".txt")
_LENGTH = 30  # letters of the longest bar in a text


@dataclass(frozen=True, repr=False)
class Bars:
    """Names and the relevance of each, the largest first; `figure()` draws them, `str()` needs no matplotlib."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    rest: str = ""  # what was left out
    title: str = ""
    caption: str = ""

    def __str__(self) -> str:
        numbers = [f"{value:.4g}" for value in self.values]
        names, width = max(map(len, self.names)), max(map(len, numbers))
        longest = max(map(abs, self.values)) or 1.0
        lines = [
            f"{name.ljust(names)}  {number.rjust(width)}  {'█' * round(_LENGTH * abs(value) / longest)}".rstrip()
            for name, number, value in zip(self.names, numbers, self.values, strict=True)
        ]
        return "\n".join(part for part in (self.title, *lines, self.rest, self.caption) if part)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        longest = max(map(abs, self.values)) or 1.0
        rows = "".join(
            f'<tr><td style="text-align:right">{html.escape(name)}</td><td style="text-align:right">{value:.4g}</td>'
            f'<td style="text-align:left"><div style="height:1em;width:{200 * abs(value) / longest:.0f}px;'
            f'background:{RED if value >= 0 else BLUE}"></div></td></tr>'
            for name, value in zip(self.names, self.values, strict=True)
        )
        below = " ".join(html.escape(part) for part in (self.rest, self.caption) if part)
        return f"<p><b>{html.escape(self.title)}</b></p><table>{rows}</table><p>{below}</p>"

    def figure(self, size: Size = None) -> Figure:
        """Draw the bars as a figure of matplotlib."""
        from deeptaylor.viz.figures import plot_bars

        return plot_bars([self], size)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the figure (.png, .jpg, .pdf, .svg) or the text (.txt), whole or not at all."""
        kind = output_suffix(path, _KINDS)
        if kind == ".txt":
            return write_whole(path, f"{self}\n".encode())
        figure = self.figure()
        from deeptaylor.viz.figures import close_figure, encode_figure

        close_figure(figure)
        return write_whole(path, encode_figure(figure, kind[1:]))


def make_bars(names: Sequence[str] | None, heat: Heat, top: int, title: str, caption: str) -> Bars:
    """Return the ``top`` values that count most, whether for or against."""
    if heat.ndim != 1:
        raise InputError(f"Bars need one number per name; this map has the shape {heat.shape}; give axis=.")
    if top < 1:
        raise InputError(f"top={top}: at least one.")
    names = [f"input {k}" for k in range(len(heat))] if names is None else list(names)
    if len(names) != len(heat):
        raise InputError(f"{len(names)} names were given for {len(heat)} values.")
    order = np.argsort(-np.abs(heat), kind="stable")
    first, left = order[:top], order[top:]
    rest = f"{len(left)} more sum to {heat[left].sum():.4g}." if len(left) else ""
    return Bars(tuple(escape_name(names[k]) for k in first), tuple(heat[first].tolist()), rest, title, caption)
