"""The answer: relevance, score, the ledger that accounts for it, and how it shows itself."""

from __future__ import annotations

import base64
import functools
import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeptaylor import heatmap as pictures
from deeptaylor.errors import BoundaryError, InputError, StaleModelError
from deeptaylor.plan.table import Plan
from deeptaylor.properties import DEEP_TAYLOR, TOLERANCE, Check, check
from deeptaylor.run.result import Result

_MOST_SHOWN = 8  # heatmaps in a notebook


@dataclass(frozen=True)
class Ledger:
    """f(x) = input + bias + dropped + residual, one number a sample (and target); each summed from its own entries.

    entries    ([K,] steps, 4, batch): what arrived at each step, went on, biases took, was dropped; of an explanation
               that was made on a GPU they are computed when they are first asked for
    residual   what a method that does not redistribute the whole score leaves out; deep Taylor has none
    """

    input: Tensor
    bias: Tensor
    dropped: Tensor
    residual: Tensor
    score: Tensor
    rows: tuple[tuple[str, str, str, str], ...]
    by_step: Tensor | Callable[[], Tensor]  # the entries, or where to ask for them

    @classmethod
    def of(cls, result: Result, plan: Plan, later: Callable[[], Tensor]) -> Ledger:
        """The ledger of a run that kept books; `later` computes those of every step, where they were kept in total."""
        assert result.entries is not None
        many = result.entries.ndim == 4
        _, on, bias, dropped = result.entries.unbind(-2)
        in_total = on.shape[-2] == 1 < len(plan.rows)
        return cls(
            input=_by_sample(on.sum(-2), many) if in_total else _held(result.relevance, many),
            bias=_by_sample(bias.sum(-2), many),
            dropped=_by_sample(dropped.sum(-2), many),
            residual=torch.zeros_like(result.score),
            score=result.score.clamp(min=0),
            rows=tuple((row.node, row.module, row.op, row.rule) for row in plan.rows),
            by_step=later if in_total else result.entries,
        )

    @functools.cached_property
    def entries(self) -> Tensor:
        """([K,] steps, 4, batch): what arrived at each step, went on, biases took, was dropped."""
        return self.by_step if isinstance(self.by_step, Tensor) else self.by_step()

    def __getstate__(self) -> dict[str, Any]:
        # What is written to a file is the answer, whole if the network can still be asked; it stays behind.
        try:
            return {**self.__dict__, "by_step": self.entries}
        except StaleModelError:
            return {**self.__dict__, "by_step": _steps_left_behind}

    @property
    def total(self) -> Tensor:
        """input + bias + dropped + residual; equal to max(0, f) but for rounding."""
        return self.input + self.bias + self.dropped + self.residual

    def table(self, sample: int = 0, target: int = 0) -> str:
        """The ledger along the network, for one sample."""
        entries = self.entries[target] if self.entries.ndim == 4 else self.entries
        head = ("node", "module", "op", "rule", "arrived", "went on", "bias", "dropped")
        lines: list[tuple[str, ...]] = [head]
        for row, numbers in zip(self.rows, entries[:, :, sample].tolist(), strict=True):
            lines.append((*row, *[f"{n:.6g}" for n in numbers]))
        widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
        text = [
            "  ".join(c.ljust(w) if k < 4 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        return "\n".join([text[0], "  ".join("─" * w for w in widths), *text[1:], str(self._line(sample, target))])

    def _line(self, sample: int, target: int) -> str:
        def pick(t: Tensor) -> float:
            return float(t[sample, target] if t.ndim == 2 else t[sample])

        if not self.rows:
            return f"f = {pick(self.score):.6g} = input {pick(self.input):.6g} + residual {pick(self.residual):.6g}"
        gap = pick(self.score) - pick(self.total)
        wrong = abs(gap) > TOLERANCE.get(self.score.dtype, 1e-4) * pick(self.score)
        return (
            f"f = {pick(self.score):.6g} = input {pick(self.input):.6g} + bias {pick(self.bias):.6g} + "
            f"dropped {pick(self.dropped):.6g}" + (f"; NOT accounted for: {gap:.6g}" if wrong else "")
        )

    def __str__(self) -> str:
        batch = self.score.shape[0]
        return "\n".join(f"sample {k}: {self._line(k, 0)}" for k in range(batch))


def _held(relevance: Sequence[Tensor], many: bool) -> Tensor:
    """ΣR over everything but the sample (and the target), and all inputs."""
    kept = 2 if many else 1
    sums = [R.sum(tuple(range(kept, R.ndim))) if R.ndim > kept else R for R in relevance]
    return torch.stack(sums, -1).sum(-1)


def _by_sample(t: Tensor, many: bool) -> Tensor:
    """The sample's axis first, then the target's."""
    return t.movedim(0, 1) if many else t


@dataclass(frozen=True)
class Explanation:
    """Which parts of the input made the network decide so, and how much each counted."""

    relevance: Any  # a tensor shaped like the input ((B, K, …) for K targets), or a tuple of them for several inputs
    score: Tensor
    ledger: Ledger
    target: Any
    notes: tuple[str, ...]
    source: Callable[[str], Tensor]
    method: str = DEEP_TAYLOR
    photos: tuple[pictures.Picture, ...] = ()  # of each sample, what the network saw; where photographs were explained
    titles: tuple[tuple[str, ...], ...] = ()  # of each sample, the names of the classes that are explained

    def at(self, name: str) -> Tensor:
        """The relevance at an inner node, by module path or node name."""
        return self.source(name)

    def noting(self, note: str) -> Explanation:
        """The same with a further note."""
        return replace(self, notes=(note, *self.notes))

    def __getstate__(self) -> dict[str, Any]:
        # What is written to a file is the answer; the network that could be asked for more stays behind.
        return {**self.__dict__, "source": _left_behind}

    def check(self) -> Check:
        """Conservative, positive, consistent, accounted: with the measured gaps."""
        parts = self.relevance if isinstance(self.relevance, tuple) else (self.relevance,)
        ledger = self.ledger
        return check(
            parts, self.score, ledger.input, ledger.bias, ledger.dropped, self.notes, ledger.residual, self.method
        )

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


def _steps_left_behind() -> Tensor:
    raise BoundaryError(
        "This ledger was saved after its network had changed, before anyone asked for the numbers of every step: only "
        "the totals are known. Explain again for the rest."
    )


def _left_behind(name: str) -> Tensor:
    raise BoundaryError(
        f"This explanation was saved and loaded without its explainer, which alone can tell the relevance at {name!r}: "
        "ask explainer.relevance_at(name, x, target)."
    )


def of_function(method: str, relevance: Tensor, score: Tensor, target: Any, notes: tuple[str, ...]) -> Explanation:
    """The explanation of a method that sees f from outside: all that it did not hand out is the residual."""

    def inner(name: str) -> Tensor:
        raise BoundaryError(f"{method} explains f as a whole: there is no relevance at {name!r} inside of it.")

    held = relevance.flatten(1).sum(1)
    none = torch.zeros_like(score)
    ledger = Ledger(
        input=held,
        bias=none,
        dropped=none,
        residual=score - held,
        score=score,
        rows=(),
        by_step=score.new_zeros(0, 4, len(score)),
    )
    return Explanation(relevance, score, ledger, target, notes, inner, method)
