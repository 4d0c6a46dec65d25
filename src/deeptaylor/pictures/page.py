"""A map as one page that answers the pointer: `viewer.html` with the photograph, the numbers and the words put in.

The page holds everything that it shows and loads nothing; the browser is told to allow no connection.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from deeptaylor.errors import InputError
from deeptaylor.heatmap import Heat, Picture
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.files import jpeg_bytes
from deeptaylor.shown import printable

__all__ = ["page"]

_SIDE = 1600  # pixels of a photograph: no screen shows more
_PATCH = 14  # patches along the shorter side of a map: a pixel alone is too small a part to say much
_WIDE = 640  # pixels of a page: a map or a photograph is at least shown as wide as this
_STRIP = 8  # of a map of one dimension: how much wider than high it is drawn


def page(d: Drawing, score: float, names: Sequence[str] = ()) -> str:
    """The page of a map; a ``score`` that is not positive: values are told as they are, and not as parts of it.

    names   of the places of a map of one dimension
    """
    if d.heat.ndim > 3:
        raise InputError(
            f"A page shows maps of one, two or three dimensions, and this one has the shape {d.heat.shape}."
        )
    heat = d.heat.reshape((1,) * (3 - d.heat.ndim) + d.heat.shape)
    photo = None if d.photo is None else d.photo.at_most(_SIDE)
    height, width = heat.shape[1:] if photo is None else photo.picture.shape[:2]
    left, top, right, bottom = (0, 0, width, height) if photo is None else photo.window
    data = {
        "shape": heat.shape,
        "values": base64.b64encode(heat.astype("<f4").tobytes()).decode(),
        "score": score,
        "low": d.scale.low,
        "high": d.scale.high,
        "signed": d.scale.signed,
        "patch": max(1, round(min(heat.shape[1:]) / _PATCH)),
        "names": [printable(name) for name in names] or None,
        "window": [left / width, top / height, (right - left) / width, (bottom - top) / height],
        "framed": photo is not None and photo.cropped,
        "beneath": photo is not None,
    }
    return _filled(
        title=html.escape(printable(d.title)),
        alt=html.escape(printable(f"{d.title}: {d.name if photo is None else d.over}")),
        caption=html.escape(printable(_caption(d))),
        legend=html.escape(_legend(d, score)),
        beneath=_blank(heat) if photo is None else _image(photo.picture, d.beneath),
        width=str(max(_WIDE, min(width, 900))),
        data=json.dumps(data).replace("<", "\\u003c"),
    )


def _filled(**parts: str) -> str:
    text = Path(__file__).with_name("viewer.html").read_text(encoding="utf-8")
    pieces = text.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:  # one after the other, so that what is put in is never searched
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _caption(d: Drawing) -> str:
    frame = ["The network saw what lies inside the frame."] * (d.photo is not None and d.photo.cropped)
    return " ".join(s for s in [*d.caption, d.scale.said, *frame] if s)


def _legend(d: Drawing, score: float) -> str:
    red = "Red speaks for the decision, blue against it" if d.scale.signed else "Red speaks for the decision"
    where = f"{100 * d.scale.high / score:.3g}\xa0% of the score" if score > 0 else f"a relevance of {d.scale.high:.3g}"
    beyond = " and beyond" if d.scale.largest > d.scale.high * (1 + 1e-6) else ""
    return f"{red}; full colour is at {where}{beyond}."


def _image(picture: Picture, what: str) -> str:
    coded = base64.b64encode(jpeg_bytes(picture)).decode()
    return f'<img alt="{html.escape(what)}" src="data:image/jpeg;base64,{coded}">'


def _blank(heat: Heat) -> str:
    """Room for a map without a photograph, in its own shape; a strip for a map of one dimension."""
    _, rows, columns = heat.shape
    shape = f"{_STRIP} / 1" if rows == 1 else f"{columns} / {rows}"
    return f'<div class="blank" style="aspect-ratio:{shape}"></div>'
