"""The answer: relevance, score, the ledger that accounts for it, and how it shows itself."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from torch import Tensor

from deeptaylor import heatmap as colouring
from deeptaylor.concepts.channels import Channels, inside
from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.heatmap import Picture, png_bytes
from deeptaylor.ledger import Ledger
from deeptaylor.pictures import contrasted, explained, sentences
from deeptaylor.pictures.axes import Axis, input_part, summed
from deeptaylor.pictures.drawing import Drawing
from deeptaylor.pictures.files import html_figure
from deeptaylor.pictures.photograph import Photograph, readable
from deeptaylor.pictures.pictured import Pictured
from deeptaylor.pictures.scale import scale_of
from deeptaylor.properties import DEEP_TAYLOR, Check, check
from deeptaylor.run.seen import Seen
from deeptaylor.run.through import Through
from deeptaylor.shown import percent
from deeptaylor.support.plain import told

_MOST_SHOWN = 8  # heatmaps in a notebook
_FEW = 4  # scores and names in a line


@dataclass(frozen=True)
class Explanation(Pictured):
    """Which parts of the input made the network decide so, and how much each counted."""

    relevance: Any  # a tensor shaped like the input ((B, K, …) for K targets), or a tuple of them for several inputs
    score: Tensor
    ledger: Ledger
    target: Any
    notes: tuple[str, ...]
    source: Callable[[str], Tensor]
    flips: Callable[[Tensor, Axis], Tensor] | None = None  # a map → the area of flipping
    method: str = DEEP_TAYLOR
    photos: tuple[Picture, ...] = ()  # of each sample, what the network saw; where photographs were explained
    classes: Tensor | None = None  # (B,): the network's answer, where that was asked for (target=None)
    titles: tuple[tuple[str, ...], ...] = ()  # of each sample, the names of the classes that are explained
    originals: tuple[Callable[[], Photograph], ...] = ()  # of each sample, the photograph in its own resolution
    class_names: tuple[str, ...] = ()  # of all classes, where they are known
    inside: Callable[[str, int | None], Through] | None = None  # a layer → what passes through it
    feature_names: tuple[str, ...] = ()  # of the columns, where the input is a table's row that has names
    seen: Mapping[str, Seen] = field(default_factory=dict, repr=False)  # by layer that is watched (Explainer.watch)
    outputs: int | None = None  # how many numbers the network gives per sample, if that is known
    next_class: Callable[[], tuple[Tensor, Tensor]] | None = None  # the next class of each sample, and the overlap
    reason: str = ""  # which method answered, and why, in one sentence
    mean_of: str = ""  # "16 noisy copies", where map, score and ledger are means over them

    def at(self, name: str) -> Tensor:
        """The relevance at an inner node, by module path or node name; before any redistribution."""
        return self.source(name)

    def channels(self, layer: str, axis: int | None = None) -> Channels[Self]:
        """How much each channel of a layer counted, and (`.map(channel)`) the part of the map that passed through it.

        `axis`: that of the layer's output which counts the channels, as in `dt.unit`.
        """
        return Channels(self, layer, inside(self.inside, self.ledger, layer, axis))

    def noting(self, note: str) -> Self:
        """The same with a further note."""
        return replace(self, notes=(note, *self.notes))

    def __getstate__(self) -> dict[str, Any]:
        # A file holds the answer; the network that could be asked for more stays behind, and so does a function that
        # was the target, where it has no name to be found by.
        target = told(self.target) if callable(self.target) else self.target
        return {
            **self.__dict__,
            "source": _left_behind,
            "flips": None,
            "inside": None,
            "next_class": None,
            "target": target,
        }

    def __repr__(self) -> str:
        maps = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        shapes = ", ".join(str(tuple(t.shape)) for t in maps)
        scores = ", ".join(f"{f:.4g}" for f in self.score.flatten()[:_FEW].tolist())
        more = ", …" if self.score.numel() > _FEW else ""
        samples, targets = len(self.score), self.score.shape[1] if self.score.ndim == 2 else 1
        names = [self._named(s, t) for s in range(samples) for t in range(targets)][: _FEW + 1]
        names = names if all(names) else []
        of = f" of {', '.join(names[:_FEW])}{', …' if len(names) > _FEW else ''}" if names else ""
        mean = self.mean_of and f"mean of {self.mean_of}, "
        return f"<{type(self).__name__}{of}: {mean}relevance {shapes}, f = {scores}{more}; print it for the check>"

    def overlap(self) -> Tensor:
        """Return how much of each map is the same for the next class, 0 to 1: Σ min(N_a, N_b), one number per sample.

        N_a and N_b are the heatmaps of the explained class and of the best other class, each divided by its sum. Near 1
        the map does not depend on the class: `explainer.contrast(x)` then shows what sets the class apart. An empty
        map overlaps with none. Costs a forward pass and a contrast.
        """
        return self._next()[1]

    def _next(self) -> tuple[Tensor, Tensor]:
        if self.next_class is None:
            raise InputError(
                "The overlap with the next class is measured for classes that explain(x) or explain(x, c) explained; "
                "this answer is another, or was loaded from a file."
            )
        return self.next_class()

    def _next_named(self) -> tuple[tuple[float, ...], tuple[str, ...]]:
        """Overlap and name of each sample's next class."""
        classes, shares = self._next()
        names = [repr(self.class_names[k]) if self.class_names else str(k) for k in classes.tolist()]
        return tuple(shares.tolist()), tuple(names)

    def check(self, faithful: bool = False, axis: Axis = None, classes: bool = False) -> Check:
        """Conservative, positive, consistent, accounted: with the measured gaps.

        `faithful`: the network is asked, too. Patches are taken away, the least relevant first and the most relevant
        first; the mean difference of the class's probability is 0 for a map that knows nothing (`metrics.flipping`).
        `axis` is that of `heatmap`, for this question alone.
        `classes`: measure also how much of the map is the same for the next class (`overlap`).
        """
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.ledger
        found = check(
            parts, self.score, ledger.held, ledger.bias, ledger.dropped, self.notes, ledger.residual, self.method,
            ledger.own, self._flipping(axis) if faithful else None, ledger.returned,
        )  # fmt: skip
        shares, names = self._next_named() if classes else (None, ())
        return replace(found, outputs=self.outputs, overlap=shares, next_classes=names)

    def _flipping(self, axis: Axis) -> Tensor:
        if self.flips is None:
            raise InputError(
                "This explanation cannot ask its network: it was loaded from a file, or made by a method that sees the "
                "network from outside."
            )
        return self.flips(self.heatmap(axis=axis), axis)

    def heatmap(self, which: int = 0, axis: Axis = None) -> Tensor:
        """Relevance summed over channels: (B, H, W) for images; (B, N) of tokens and vectors stays as it is.

        which   the input, where there are several
        axis    the axis of the input to sum over, where it is not that of images (B, C, …); for inputs (B, a, b) it
                must be said: 1 for signals (B, channels, length), 2 for embeddings (B, tokens, features), () for none
        """
        return summed(input_part(self.relevance, which), self.score.ndim, axis)

    # --- how it shows itself --------------------------------------------------------------------------------------

    def drawing(self, sample: int, target: int, *where: Any) -> Drawing:
        """One map with its words, before anything is drawn."""
        said = (self._asked, self.titles, self.score, self.method, sample, target, self.mean_of)
        title = partial(sentences.title, *said)
        return explained.drawing(self, title, sample, target, *where)

    @property
    def _asked(self) -> Any:
        return self.classes if self.target is None else self.target

    def _named(self, sample: int, target: int) -> str:
        """The class that is explained, by name or number; empty where it is none."""
        return sentences.class_title(self._asked, self.titles, sample, target)

    def _repr_png_(self) -> bytes:
        return png_bytes(readable(explained.picture(self, 0, 0)))

    def _repr_html_(self) -> str:
        targets = self.score.shape[1] if self.score.ndim == 2 else 1
        shown = [(s, t) for s in range(self.score.shape[0]) for t in range(targets)]
        figures = "".join(self._figure(s, t) for s, t in shown[:_MOST_SHOWN])
        more = len(shown) - _MOST_SHOWN
        rest = f"<p>… and {more} more</p>" if more > 0 else ""
        return f"{figures}{rest}<pre>{html.escape(str(self.check()))}</pre>"

    def _figure(self, sample: int, target: int) -> str:
        images, said = explained.pictured(self, sample, target)
        if self.photos:
            low = scale_of(explained.whole_map(self, sample, target)).low  # as in the map beside it
            images.append((self.overlay(sample, target, floor=low), f"the same over the photograph of sample {sample}"))
        name = self._named(sample, target)
        title = f"{html.escape(name)}: " if name else ""
        score = float(self.score[sample].flatten()[target])
        mean = self.mean_of and f" (the mean of {self.mean_of})"
        return html_figure(images, " ".join([f"{title}f = {score:.4g}{mean}", *said]))

    def numpy(self) -> Any:
        """The relevance as NumPy array(s)."""
        if isinstance(self.relevance, tuple):
            return tuple(np.asarray(r.detach().cpu()) for r in self.relevance)
        return np.asarray(self.relevance.detach().cpu())

    def __str__(self) -> str:
        return "\n".join([str(self.check()), str(self.ledger), *[self.reason] * bool(self.reason)])


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

    def difference_picture(self, sample: int = 0, target: int = 0) -> Picture:
        """The difference in red and blue, over the photograph where there is one.

        Full colour is where it is as large as the class's own map: a difference of a per cent is hardly to be seen.
        """
        apart, scale = contrasted.difference(self, sample, target)
        if self.photos:
            return colouring.overlay(self.photos[sample], apart, scale=scale.high)
        return colouring.colours(apart, scale.high)

    def apart_text(self, sample: int = 0, target: int = 0) -> str:
        """How far apart the class and its rivals are, in words."""
        assert self.apart is not None
        size = float(self.apart[sample, target] if self.apart.ndim == 2 else self.apart[sample])
        return f"{percent(size)} of the relevance lies elsewhere than the rivals'"

    def drawing(self, sample: int, target: int, which: int = 0, axis: Axis = None, *where: Any) -> Drawing:
        d = explained.drawing(
            self, partial(contrasted.title, self, sample, target), sample, target, which, axis, *where
        )
        return contrasted.with_difference(self, d, sample, target, which, axis)

    def _figure(self, sample: int, target: int) -> str:
        said = f"for the class red, for its rivals blue: {html.escape(self.apart_text(sample, target))}"
        image = (self.difference_picture(sample, target), f"against its rivals, sample {sample}")
        return super()._figure(sample, target) + html_figure([image], said)


def _left_behind(name: str) -> Tensor:
    raise BoundaryError(
        f"This explanation was saved and loaded without its explainer, which alone can tell the relevance at {name!r}: "
        "ask explainer.relevance_at(name, x, target)."
    )
