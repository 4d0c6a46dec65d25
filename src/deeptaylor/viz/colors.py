"""The colours of heatmaps, figures, words, reports, the viewer and the page: their one definition.

Relevance is white at zero, red for the decision and blue against it; blue is red with its channels reversed. HTML pages
read the same colours as variables of CSS (`style_sheet`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "BLUE",
    "DARK",
    "EDGE",
    "FRAME",
    "GREY",
    "GROUPS",
    "INK",
    "LIGHT",
    "OUTSIDE",
    "PALE",
    "PALER",
    "RAMP",
    "RED",
    "choose_ink",
    "pale_grey",
    "relevance_to_rgb",
    "style_sheet",
]

Rgb = tuple[int, int, int]

# White, red and dark red at 0, 1/2 and 1. Lightness falls all the way, so that maps also read in grey.
RAMP: tuple[Rgb, ...] = ((255, 255, 255), (250, 92, 70), (150, 0, 16))
RED, BLUE = "#c62828", "#1f4fbf"  # bars and lines: for the decision, and against it
INK, GREY, FRAME, EDGE = "#222222", "#8a8a8a", "#444444", "#cccccc"  # lines, from dark to light
OUTSIDE = 235  # grey of a panel outside of its map
PALE, PALER = 0.6, 0.25  # how much of a photograph's darkness is left beneath a map, and outside of it
# Clusters by number, on white and on black.
GROUPS = (
    "#d9412f", "#2f6fd9", "#2b9a4b", "#b07a00", "#8a4fd0", "#0e9aa7", "#c2428f", "#6b7f1d", "#7a5a45", "#e0792b",
    "#5c6bc0", "#7f8791",
)  # fmt: skip
# HTML pages by day and by night. `input`, `against`, `shared`, `bias` and `dropped` are the parts of the ledger.
LIGHT = {
    "text": "#1b1b1f", "soft": "#55555f", "page": "#f4f4f7", "card": "#fff", "line": "#d9d9e1", "edge": "#83838f",
    "main": "#a3121f", "on-main": "#fff", "chosen": "#fbe9e7", "input": "#d9412f", "against": "#3a55d9",
    "shared": "#f0a79b", "bias": "#84848f", "dropped": "#16161a", "warn": "#fff4d6", "warn-line": "#b07a00",
    "error": "#a3121f",
}  # fmt: skip
DARK = {
    "text": "#ececf1", "soft": "#b4b4c0", "page": "#131316", "card": "#1d1d22", "line": "#35353f", "edge": "#8a8a98",
    "main": "#ff8a75", "on-main": "#1b0d0b", "chosen": "#3a211d", "input": "#fa6c56", "against": "#6f86ff",
    "shared": "#8f4a3f", "bias": "#8d8d9a", "dropped": "#f2f2f7", "warn": "#3a2f12", "warn-line": "#d9a441",
    "error": "#ff9b8c",
}  # fmt: skip


def relevance_to_rgb(t: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return values in [−1, 1] as RGB: white at 0, dark red at 1, dark blue at −1.

    >>> relevance_to_rgb(np.array([0.0, 0.5, -1.0])).tolist()
    [[255, 255, 255], [250, 92, 70], [16, 0, 150]]
    """
    ramp, places = np.array(RAMP, dtype=np.float64), np.linspace(0, 1, len(RAMP))
    red = np.stack([np.interp(np.abs(t), places, channel) for channel in ramp.T], axis=-1)
    return np.rint(np.where(t[..., None] < 0, red[..., ::-1], red)).astype(np.uint8)


def pale_grey(lightness: npt.NDArray[np.float64], darkness: float = PALE) -> npt.NDArray[np.float64]:
    """Return greys (0 to 255) of which only this part of the darkness is left."""
    return 255 - darkness * (255 - lightness)


def choose_ink(rgb: Rgb) -> str:
    """Return "black" or "white", whichever can be read on this colour."""
    r, g, b = rgb
    return "black" if 0.299 * r + 0.587 * g + 0.114 * b > 140 else "white"


def style_sheet() -> str:
    """Return the variables of CSS that HTML pages read: the names of `LIGHT` and `DARK`, and those of heatmaps.

    --ramp                    the numbers of `RAMP`, for scripts
    --signed, --positive      gradients from −1, and from 0, to 1
    --half-for, --half-against  the colours of 1/2 and −1/2
    --group-0, --group-1, …   the colours of `GROUPS`
    """
    up = [f"rgb({r} {g} {b})" for r, g, b in RAMP]
    down = [f"rgb({b} {g} {r})" for r, g, b in RAMP[:0:-1]]
    maps = {
        "ramp": ", ".join(" ".join(map(str, rgb)) for rgb in RAMP),
        "signed": f"linear-gradient(90deg, {', '.join([*down, *up])})",
        "positive": f"linear-gradient(90deg, {', '.join(up)})",
        "half-for": up[len(RAMP) // 2],
        "half-against": down[(len(RAMP) - 1) // 2],
    }
    groups = {f"group-{k}": colour for k, colour in enumerate(GROUPS)}
    return (
        f":root {{ color-scheme: light dark; {_format_variables(LIGHT | maps | groups)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_format_variables(DARK)} }} }}\n"
    )


def _format_variables(values: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values.items())
