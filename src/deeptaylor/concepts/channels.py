"""How much each channel of a layer counted for a decision, and the part of the map that passed through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from deeptaylor.errors import BoundaryError, InputError
from deeptaylor.ledger import Ledger, held
from deeptaylor.pictures import sentences
from deeptaylor.run.through import Part, Through
from deeptaylor.run.unit import check_channel
from deeptaylor.shown import percent

__all__ = ["Channels"]

_SHOWN = 10  # channels in a table
_LENGTH = 24  # letters of the longest bar


class _Explained(Protocol):
    """Of an explanation, what its channels need."""

    @property
    def score(self) -> Tensor: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def target(self) -> Any: ...
    @property
    def classes(self) -> Tensor | None: ...
    @property
    def titles(self) -> tuple[tuple[str, ...], ...]: ...


E = TypeVar("E", bound=Any)


@dataclass(frozen=True, repr=False)
class Channels(Generic[E]):
    """The relevance at a layer by channel: it adds up to the score, with what went past the layer and what biases took.

    relevance   (B, channels): what arrived at each channel of the layer, summed over its places
    past        (B,): what reached the input past the layer, by a skip connection or another branch
    bias        (B,): what biases took outside of the layer, before relevance came to it or on its way past it
    dropped     (B,): the same of what could not be handed on
    at          (B, channels, …): the relevance at the layer, place by place
    """

    explanation: E
    layer: str
    through: Through

    @property
    def at(self) -> Tensor:
        """(B, channels, …): the relevance at the layer, place by place."""
        return self.through.at

    @property
    def relevance(self) -> Tensor:
        """(B, channels): what arrived at each channel of the layer."""
        return self.at.flatten(2).sum(2) if self.at.ndim > 2 else self.at

    @property
    def past(self) -> Tensor:
        """(B,): what reached the input past the layer."""
        return self.through.past

    @property
    def bias(self) -> Tensor:
        """(B,): what biases took outside of the layer."""
        return self.through.bias

    @property
    def dropped(self) -> Tensor:
        """(B,): what was dropped outside of the layer."""
        return self.through.dropped

    @property
    def total(self) -> Tensor:
        """(B,): all of it, equal to max(0, f) but for rounding."""
        return self.relevance.sum(1) + self.past + self.bias + self.dropped

    def top(self, count: int = _SHOWN, sample: int = 0) -> list[tuple[int, float]]:
        """The channels that counted most for a sample, whether for or against, each with its relevance."""
        R = self.relevance[sample]
        order = R.abs().argsort(descending=True, stable=True)[:count].tolist()
        return [(channel, float(R[channel])) for channel in order]

    # --- parts of the map -----------------------------------------------------------------------------------------

    def map(self, channel: int) -> E:
        """The part of the map that passed through one channel, as an explanation of its own."""
        return self.maps([channel])[0]

    def maps(self, channels: Sequence[int]) -> list[E]:
        """The same of several channels, computed together. Those of all channels and `past_map()` sum to the map.

        With bias="returned" every part is enlarged at each pixel by the same factor as the whole map.
        """
        for channel in channels:
            check_channel(self.layer, channel, self.at.shape[1])
        parts = self.through.parts(list(channels)) if len(channels) else []
        return [
            self._explained(part, f"through channel {c} of {self.layer}")
            for c, part in zip(channels, parts, strict=True)
        ]

    def past_map(self) -> E:
        """The part of the map that went past the layer; empty where everything passes through it."""
        return self._explained(self.through.past_it(), f"past {self.layer}")

    def _explained(self, part: Part, way: str) -> E:
        e: _Explained = self.explanation
        arrived = torch.stack([part.arrived, part.own, part.bias, part.dropped])[None]
        ledger = Ledger(
            input=part.own,
            bias=part.bias,
            dropped=part.dropped,
            residual=torch.zeros_like(part.own),
            score=part.arrived,
            rows=((self.layer, "", way, "all steps"),),
            by_step=arrived,
            score_is=f"the relevance that goes {way}",
        )
        score = part.arrived
        if self.through.redistributes:
            none, score = torch.zeros_like(part.own), held(part.relevance, many=False)
            ledger = replace(
                ledger, input=score, bias=none, dropped=none, score=score, returned=score - part.own, own=part.own,
                score_is=f"the part of the score that went {way}",
            )  # fmt: skip
        asked = e.classes if e.target is None else e.target
        whose = [sentences.class_title(asked, e.titles, k, 0) for k in range(len(score))]
        titles = tuple((f"{who} {way}".strip(),) for who in whose)
        relevance = part.relevance[0] if len(part.relevance) == 1 else part.relevance
        return replace(
            self.explanation, relevance=relevance, score=score, ledger=ledger, titles=titles, source=_only_a_part,
            inside=None, next_class=None, seen={},
        )  # fmt: skip

    # --- how it shows itself --------------------------------------------------------------------------------------

    def table(self, sample: int = 0, count: int = _SHOWN) -> str:
        """The channels that counted most, the others together, and all that makes up the rest of the score."""
        f, shown = float(self.explanation.score[sample].clamp(min=0)), self.top(count, sample)
        rest = float(self.relevance[sample].sum()) - sum(R for _, R in shown)
        others = self.at.shape[1] - len(shown)
        lines = [(f"channel {c}", R) for c, R in shown]
        lines += [(f"{others} other channels", rest)] * (others > 0)
        lines += [("past the layer", float(self.past[sample])), ("biases outside of it", float(self.bias[sample]))]
        lines += [("dropped", float(self.dropped[sample]))] * bool(self.dropped[sample])
        lines.append(("score", float(self.total[sample])))
        names, numbers = [name for name, _ in lines], [f"{R:.4g}" for _, R in lines]
        shares = [percent(R / f) if f > 0 else "–" for _, R in lines]
        longest = max([abs(R) for _, R in shown] or [0.0]) or 1.0
        bars = ["█" * round(_LENGTH * abs(R) / longest) for _, R in shown] + [""] * (len(lines) - len(shown))
        wide = [max(map(len, column)) for column in (names, numbers, shares)]
        rows = [
            f"{name.ljust(wide[0])}  {number.rjust(wide[1])}  {share.rjust(wide[2])}  {bar}".rstrip()
            for name, number, share, bar in zip(names, numbers, shares, bars, strict=True)
        ]
        return "\n".join([f"Relevance of the {self.at.shape[1]} channels of {self.layer}, sample {sample}", *rows])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        samples, channels = self.at.shape[:2]
        return f"<Channels of {self.layer}: {channels} channels, {samples} sample(s); print it for the table>"


def _only_a_part(name: str) -> Tensor:
    raise BoundaryError(f"This map is a part of an explanation: ask that one for the relevance at {name!r}.")


def inside(ask: Callable[[str, int | None], Through] | None, ledger: Ledger, layer: str, axis: int | None) -> Through:
    """What passes through a layer of an explanation, if its network can be asked."""
    if ledger.shared is not None:
        raise InputError("Channels are told of a class's whole map: explainer.explain(x, c).channels(layer).")
    if ask is None:
        raise InputError(
            "This explanation cannot ask its network about channels: it was loaded from a file, is a part of another, "
            "or was made by a method without relevance inside the network: name method='deep-taylor'."
        )
    return ask(layer, axis)
