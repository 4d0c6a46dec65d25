"""The answer: relevance, score, the ledger that accounts for it, and how it shows itself."""

from __future__ import annotations

import base64
import html
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from deeptaylor import heatmap as pictures
from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.ledger import Ledger, seen_from_outside
from deeptaylor.properties import DEEP_TAYLOR, Check, check
from deeptaylor.shown import percent

_MOST_SHOWN = 8  # heatmaps in a notebook
_FEW = 4  # scores and names in a line


@dataclass(frozen=True)
class Explanation:
    """Which parts of the input made the network decide so, and how much each counted."""

    relevance: Any  # a tensor shaped like the input ((B, K, …) for K targets), or a tuple of them for several inputs
    score: Tensor
    ledger: Ledger
    target: Any
    notes: tuple[str, ...]
    source: Callable[[str], Tensor]
    flips: Callable[[Tensor], Tensor] | None = None  # a map → the area of flipping, where the network can be asked
    method: str = DEEP_TAYLOR
    photos: tuple[pictures.Picture, ...] = ()  # of each sample, what the network saw; where photographs were explained
    titles: tuple[tuple[str, ...], ...] = ()  # of each sample, the names of the classes that are explained

    def at(self, name: str) -> Tensor:
        """The relevance at an inner node, by module path or node name; nothing was handed back to it yet."""
        return self.source(name)

    def noting(self, note: str) -> Self:
        """The same with a further note."""
        return replace(self, notes=(note, *self.notes))

    def __getstate__(self) -> dict[str, Any]:
        # What is written to a file is the answer; the network that could be asked for more stays behind, and so does a
        # function that was the target, where it has no name to be found by.
        target = _told(self.target) if callable(self.target) else self.target
        return {**self.__dict__, "source": _left_behind, "flips": None, "target": target}

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        scores = ", ".join(f"{f:.4g}" for f in self.score.flatten()[:_FEW].tolist())
        more = ", …" if self.score.numel() > _FEW else ""
        names = [name for row in self.titles for name in row]
        of = f" of {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}" if names else ""
        return f"<{type(self).__name__}{of}: relevance {shapes}, f = {scores}{more}; print it for the check>"

    def check(self, faithful: bool = False) -> Check:
        """Conservative, positive, consistent, accounted: with the measured gaps.

        `faithful`: the network is asked, too. Patches are taken away, the least relevant first and the most relevant
        first; the mean difference of the class's probability is 0 for a map that knows nothing (`metrics.flipping`).
        """
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.ledger
        return check(
            parts, self.score, ledger.held, ledger.bias, ledger.dropped, self.notes, ledger.residual, self.method,
            ledger.own, self._flipping() if faithful else None,
        )  # fmt: skip

    def _flipping(self) -> Tensor:
        if self.flips is None:
            raise InputError(
                "This explanation cannot ask its network: it was loaded from a file, or made by a method that sees the "
                "network from outside."
            )
        return self.flips(self.heatmap())

    def heatmap(self, which: int = 0) -> Tensor:
        """Relevance summed over channels: (B, H, W) for images, (B, T) for tokens and vectors."""
        relevance: Tensor = self.relevance[which] if isinstance(self.relevance, tuple) else self.relevance
        lead = self.score.ndim
        return relevance.sum(lead) if relevance.ndim - lead >= 2 else relevance

    def save(self, path: str | os.PathLike[str], sample: int = 0, target: int = 0) -> Path:
        """Write one sample's heatmap as a PNG, whole or not at all."""
        return pictures.save_png(path, self._picture(sample, target))

    def overlay(self, sample: int = 0, target: int = 0) -> pictures.Picture:
        """One sample's heatmap over its photograph, as the network saw it."""
        if not self.photos:
            raise InputError(
                "This explanation knows no photograph: explain one with a dt.Pretrained, or use "
                "deeptaylor.heatmap.overlay(photo, e.heatmap()[0])."
            )
        return pictures.overlay(self.photos[sample], self._heat(sample, target))

    def _heat(self, sample: int, target: int) -> Tensor:
        heat = self.heatmap()[sample]
        return (heat[target] if self.score.ndim == 2 else heat).detach().to("cpu", torch.float64)

    def _picture(self, sample: int = 0, target: int = 0) -> pictures.Picture:
        return pictures.colours(self._heat(sample, target))

    def _repr_png_(self) -> bytes:
        return pictures.png_bytes(self._picture())

    def _repr_html_(self) -> str:
        targets = self.score.shape[1] if self.score.ndim == 2 else 1
        shown = [(s, t) for s in range(self.score.shape[0]) for t in range(targets)]
        figures = "".join(self._figure(s, t) for s, t in shown[:_MOST_SHOWN])
        more = len(shown) - _MOST_SHOWN
        rest = f"<p>… and {more} more</p>" if more > 0 else ""
        return f"{figures}{rest}<pre>{html.escape(str(self.check()))}</pre>"

    def _figure(self, sample: int, target: int) -> str:
        images = [(self._picture(sample, target), f"heatmap of sample {sample}")]
        if self.photos:
            images.append((self.overlay(sample, target), f"the same over the photograph of sample {sample}"))
        shown = "".join(
            f'<img alt="{alt}" style="min-width:160px;image-rendering:pixelated" '
            f'src="data:image/png;base64,{base64.b64encode(pictures.png_bytes(picture)).decode()}">'
            for picture, alt in images
        )
        title = f"{html.escape(self.titles[sample][target])}: " if self.titles else ""
        score = float(self.score[sample].flatten()[target])
        return (
            f'<figure style="display:inline-block;margin:4px">{shown}'
            f"<figcaption>{title}f = {score:.4g}</figcaption></figure>"
        )

    def numpy(self) -> Any:
        """The relevance as NumPy array(s)."""
        if isinstance(self.relevance, tuple):
            return tuple(np.asarray(r.detach().cpu()) for r in self.relevance)
        return np.asarray(self.relevance.detach().cpu())

    def __str__(self) -> str:
        return f"{self.check()}\n{self.ledger}"


@dataclass(frozen=True, repr=False)
class Contrast(Explanation):
    """What sets a class apart from its rivals: `relevance` is that part of its map, `shared` the rest.

    rivals       of each sample (of K targets one after the other) classes and weights, the largest first
    difference   the class's map minus its rivals', both of the class's sum: red for the one, blue for the others
    apart        how large that is, 0 to 1: the part of the relevance that lies elsewhere than the rivals'
    """

    shared: Any = None
    rivals: tuple[tuple[tuple[int, float], ...], ...] = ()
    difference: Any = None
    apart: Tensor | None = None

    def difference_picture(self, sample: int = 0, target: int = 0) -> pictures.Picture:
        """The difference in red and blue, over the photograph where there is one.

        Full colour is where it is as large as the class's own map: a difference of a per cent is hardly to be seen.
        """
        own, shared, apart = (self._map(t, sample, target) for t in (self.relevance, self.shared, self.difference))
        scale = pictures.robust_scale(own + shared)
        if self.photos:
            return pictures.overlay(self.photos[sample], apart, scale=scale)
        return pictures.colours(apart, scale)

    def apart_text(self, sample: int = 0, target: int = 0) -> str:
        """How far apart the class and its rivals are, in words."""
        assert self.apart is not None
        size = float(self.apart[sample, target] if self.apart.ndim == 2 else self.apart[sample])
        return f"{percent(size)} of the relevance lies elsewhere than the rivals'"

    def _map(self, maps: Any, sample: int, target: int) -> Tensor:
        """One map of one sample, without channels, as it is drawn."""
        t: Tensor = (maps[0] if isinstance(maps, tuple) else maps)[sample]
        t = (t[target] if self.score.ndim == 2 else t).detach().to("cpu", torch.float64)
        return t.sum(0) if t.ndim >= 2 else t

    def _figure(self, sample: int, target: int) -> str:
        difference = pictures.png_bytes(self.difference_picture(sample, target))
        return (
            f'{super()._figure(sample, target)}<figure style="display:inline-block;margin:4px">'
            f'<img alt="against its rivals, sample {sample}" style="min-width:160px;image-rendering:pixelated" '
            f'src="data:image/png;base64,{base64.b64encode(difference).decode()}">'
            f"<figcaption>for the class red, for its rivals blue: {html.escape(self.apart_text(sample, target))}"
            "</figcaption></figure>"
        )


def _told(target: Any) -> Any:
    """A function, or where it cannot be written to a file, words for it."""
    try:
        pickle.dumps(target)
    except Exception:  # noqa: BLE001 - it may refuse in any way
        return f"a function that could not be saved: {getattr(target, '__qualname__', type(target).__name__)}"
    return target


def _left_behind(name: str) -> Tensor:
    raise BoundaryError(
        f"This explanation was saved and loaded without its explainer, which alone can tell the relevance at {name!r}: "
        "ask explainer.relevance_at(name, x, target)."
    )


def of_function(method: str, relevance: Tensor, score: Tensor, target: Any, notes: tuple[str, ...]) -> Explanation:
    """The explanation of a method that sees f from outside: all that it did not hand out is the residual."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"{method} explains f as a whole: there is no relevance at {name!r} inside of it.")

    return Explanation(relevance, score, seen_from_outside(relevance, score), target, notes, inner, method=method)
