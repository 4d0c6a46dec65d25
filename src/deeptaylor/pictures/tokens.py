"""Words in the colours of their relevance: in a notebook, in a terminal, as a page or as a picture."""

from __future__ import annotations

import html
import io
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from deeptaylor.errors import InputError, warn
from deeptaylor.heatmap import Heat, shades
from deeptaylor.pictures.files import kind_of
from deeptaylor.pictures.scale import Scale
from deeptaylor.shown import shown
from deeptaylor.support.files import write_whole

__all__ = ["KINDS", "PAGE", "Tokens", "tokens"]

KINDS = (".html", ".png", ".txt")
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body style="margin:2em;max-width:50em;background:white;color:black">{body}</body></html>
"""
_WIDTH, _SIZE, _PAD = 720, 18, 6  # pixels of a picture: how wide it is, how high letters are, the room around words


@dataclass(frozen=True, repr=False)
class Tokens:
    """Words and the relevance of each: red speaks for the decision, blue against it, white counts nothing."""

    words: tuple[str, ...]
    values: tuple[float, ...]
    scale: Scale
    title: str = ""
    caption: str = ""
    breaks: tuple[int, ...] = ()  # the words that begin a line
    legend: str = ""  # what the colours mean; said where there are some

    def _lines(self, words: Sequence[str], between: str) -> str:
        """Words that were made ready, with spaces between them, and something else where a line begins."""
        return "".join(
            f"{between if k in self.breaks else ' ' if k else ''}{word}" for k, word in enumerate(words)
        )  # fmt: skip

    @property
    def below(self) -> str:
        """What is said below words in colours."""
        return " ".join(part for part in (self.legend, self.caption) if part)

    def _rgb(self) -> list[tuple[int, int, int]]:
        rows = shades(self.scale(np.array([self.values])))[0].tolist()
        return [(r, g, b) for r, g, b in rows]

    def _repr_html_(self) -> str:
        spans = [
            f'<span title="{value:.4g}" style="background:rgb{rgb};color:{_ink(rgb)};padding:1px 3px;'
            f'border-radius:3px">{html.escape(shown(word))}</span>'
            for word, value, rgb in zip(self.words, self.values, self._rgb(), strict=True)
        ]
        head = f"<p><b>{html.escape(self.title)}</b></p>" if self.title else ""
        foot = f'<p style="font-size:smaller">{html.escape(self.below)}</p>' if self.below else ""
        return f'{head}<p style="line-height:1.9">{self._lines(spans, "<br>")}</p>{foot}'

    def coloured(self) -> str:
        """The words in the colours of a terminal."""
        inks = {"black": "30", "white": "97"}
        words = [
            f"\x1b[48;2;{';'.join(map(str, rgb))};{inks[_ink(rgb)]}m{shown(word)}\x1b[0m"
            for word, rgb in zip(self.words, self._rgb(), strict=True)
        ]
        return self._lines(words, "\n")

    def plain(self) -> str:
        """A line a word, with its number."""
        numbers = [f"{value:.4g}" for value in self.values]
        width = max(map(len, numbers), default=0)
        return "\n".join(f"{n.rjust(width)}  {shown(word)}" for n, word in zip(numbers, self.words, strict=True))

    def __str__(self) -> str:
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        body = (self.coloured(), self.below) if colours else (self.plain(), self.caption)
        return "\n".join(part for part in (self.title, *body) if part)

    __repr__ = __str__

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page (.html), a picture (.png) or numbers (.txt), whole or not at all."""
        return write_whole(path, self.file_bytes(kind_of(path, KINDS)))

    def file_bytes(self, kind: str) -> bytes:
        """What a file of this kind holds."""
        if kind == ".html":
            return PAGE.format(title=html.escape(self.title), body=self._repr_html_()).encode()
        if kind == ".txt":
            return f"{self.title}\n\n{self.plain()}\n\n{self.caption}\n".encode()
        data = io.BytesIO()
        _picture(self, self._rgb()).save(data, format="PNG", optimize=True)
        return data.getvalue()


def tokens(words: Sequence[str] | None, heat: Heat, scale: Scale, title: str, caption: str) -> Tokens:
    """The words with their relevance; without words, their numbers."""
    if heat.ndim != 1:
        raise InputError(f"One number a token is needed, and there is a map of shape {heat.shape}; say axis=.")
    if isinstance(words, str):
        raise InputError("words is a list of words, one per token; a single text would be taken letter by letter.")
    words = [str(k) for k in range(len(heat))] if words is None else [str(word) for word in words]
    if len(words) != len(heat):
        raise InputError(f"{len(words)} words were given for {len(heat)} tokens.")
    return Tokens(tuple(words), tuple(heat.tolist()), scale, title, caption)


def _ink(rgb: tuple[int, int, int]) -> str:
    """Black or white, whichever can be read on this colour."""
    r, g, b = rgb
    return "black" if 0.299 * r + 0.587 * g + 0.114 * b > 140 else "white"


def _picture(told: Tokens, colours: Sequence[tuple[int, int, int]]) -> Image.Image:
    font, small = _font(_SIZE), _font(12)
    _warn_of_missing_letters(" ".join(map(shown, told.words)), font)
    places = _places([int(font.getlength(shown(word))) + 2 * _PAD for word in told.words], told.breaks)
    room = places[-1][1] + (len(told.title) + len(told.below)) // 2 + 200  # more than enough; cut off below
    sheet = Image.new("RGB", (_WIDTH, room), "white")
    draw = ImageDraw.Draw(sheet)
    top = _paragraph(draw, told.title, font, 2 * _PAD)
    for word, rgb, (x, y, width) in zip(map(shown, told.words), colours, places, strict=True):
        draw.rounded_rectangle((x, top + y, x + width, top + y + _SIZE + _PAD), 4, fill=rgb)
        draw.text((x + _PAD, top + y + 1), word, fill=_ink(rgb), font=font)
    end = _paragraph(draw, told.below, small, top + places[-1][1] + _SIZE + 4 * _PAD)
    return sheet.crop((0, 0, _WIDTH, end + _PAD))


def _places(widths: Sequence[int], breaks: Sequence[int] = ()) -> list[tuple[int, int, int]]:
    """Where words of these widths stand: x, y and width, in lines that fit."""
    places, x, y = [], 2 * _PAD, 0
    for k, width in enumerate(widths):
        if (x + width > _WIDTH - _PAD or k in breaks) and x > 2 * _PAD:
            x, y = 2 * _PAD, y + _SIZE + 3 * _PAD
        places.append((x, y, width))
        x += width + 3
    return places


def _paragraph(draw: ImageDraw.ImageDraw, text: str, font: _Font, y: int) -> int:
    """Text in lines that fit; returns where it ends."""
    line = ""
    for word in [*re.split(r"\s+(?!%)", text.strip()), None]:  # a number and its % stay on one line
        longer = f"{line} {word}".strip()
        if line and (word is None or font.getlength(longer) > _WIDTH - 4 * _PAD):
            draw.text((2 * _PAD, y), line, fill="black", font=font)
            y, longer = y + int(font.size * 1.4), word or ""
        line = longer
    return y + _PAD


_Font = ImageFont.FreeTypeFont


def _font(size: int) -> _Font:
    """DejaVu, which has most alphabets, where it is installed; otherwise the font that comes with Pillow."""
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
