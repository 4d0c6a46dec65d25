"""A unit of an inner layer as the target: its activation is the score that is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.errors import TargetError

__all__ = ["Unit", "channel_axis", "check_channel", "unit"]

Place = tuple[int, ...] | Literal["max"] | None
_MOST: Literal["max"] = "max"  # as a place: the most active one


@dataclass(frozen=True)
class Unit:
    """A channel of a layer, or several: summed over its places, at its most active place, or at a given one."""

    layer: str
    channel: int | tuple[int, ...]
    place: Place = None
    axis: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is explained, in words: one name a channel."""
        return tuple(f"channel {c} of {self.layer}{self._where}" for c in self.channels)

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels, of which there may be one."""
        return self.channel if isinstance(self.channel, tuple) else (self.channel,)

    @property
    def _where(self) -> str:
        if isinstance(self.place, tuple):
            return f" at place {', '.join(map(str, self.place))}"
        return " at its most active place" if self.place == _MOST else ""

    def said(self, shape: Sequence[int]) -> str:
        """The score in words, where the layer's output has this shape."""
        summed = ", summed over its places" if self.place is None and len(shape) > 2 else ""
        several = f"each of {len(self.channels)} channels of {self.layer}{self._where}"
        name = self.names[0] if len(self.channels) == 1 else several
        return f"activation of {name}{summed}"

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse a unit that a layer of this shape does not have."""
        axis = channel_axis(self.layer, shape, self.axis)
        for channel in self.channels:
            check_channel(self.layer, channel, shape[axis])
        places = tuple(n for d, n in enumerate(shape) if d not in (0, axis))
        if isinstance(self.place, tuple):
            if len(self.place) != len(places):
                raise TargetError(
                    f"The layer {self.layer!r} has places of {len(places)} numbers, {places}; got {self.place}."
                    if places
                    else f"The layer {self.layer!r} has no places, one number per channel; leave place out."
                )
            if not all(0 <= p < n for p, n in zip(self.place, places, strict=True)):
                raise TargetError(
                    f"The place {self.place} is out of range: the layer {self.layer!r} has {places} places, from 0 on."
                )

    def weights(self, output: Tensor) -> Tensor:
        """Weights over what the layer gives, one where the unit is and zero elsewhere; (K, …) for K channels."""
        axis = channel_axis(self.layer, tuple(output.shape), self.axis)
        if isinstance(self.channel, int):
            return self._of(self.channel, output, axis)
        return torch.stack([self._of(channel, output, axis) for channel in self.channel])

    def _of(self, channel: int, output: Tensor, axis: int) -> Tensor:
        v = torch.zeros_like(output)
        own = v.movedim(axis, 1)[:, channel]  # a view: what is written to it is in v
        if self.place is None:
            own.fill_(1)
        elif self.place == _MOST:
            a = output.movedim(axis, 1)[:, channel].reshape(len(output), -1)
            most = torch.arange(a.shape[1], device=a.device) == a.argmax(1, keepdim=True)
            own.copy_(most.to(v.dtype).reshape(own.shape))
        else:
            here: tuple[Any, ...] = (slice(None), *self.place)
            own[here] = 1
        return v


# Of one piece: what compiles and exports finds no tensor in it.
pytree.register_pytree_node(Unit, lambda u: ([], u), lambda _, u: u)


def unit(
    layer: str, channel: int | Sequence[int], place: int | Sequence[int] | Literal["max"] | None = None,
    axis: int | None = None,
) -> Unit:  # fmt: skip
    """Explain the activation of one unit of an inner layer, as a target: what did it respond to?

    layer     the layer, by module path or node name, as for `Explanation.at`; the path of a ReLU explains what comes
              out of it, the path of a convolution what comes out of that, before the ReLU
    channel   its number, from 0 on; or several: a map for each
    place     None: its activation is summed over all places; "max": where it is most active; or a place of the layer:
              (row, column) of pictures, a number of signals and tokens
    axis      the axis of the layer's output that counts the channels, where it is not 1: 2 for (samples, tokens,
              features), 3 for (samples, rows, columns, channels)

    >>> unit("features.3", 5)
    Unit(layer='features.3', channel=5, place=None, axis=None)
    """
    if not isinstance(layer, str):
        raise TargetError(f"A layer is given by its name, such as 'features.3'; got {type(layer).__name__}.")
    channels = _whole(channel, "channel")
    if place is None or isinstance(place, str):
        if place not in (None, _MOST):
            raise TargetError(f"The place of a unit is None, 'max' or numbers such as (row, column); got {place!r}.")
        return Unit(layer, channels, place, axis)
    where = _whole(place, "place")
    return Unit(layer, channels, where if isinstance(where, tuple) else (where,), axis)


def _whole(value: Any, name: str) -> int | tuple[int, ...]:
    """A whole number, or several."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        value = value.tolist()
    several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not several or not all(isinstance(v, int) and not isinstance(v, bool) for v in several):
        raise TargetError(f"The {name} of a unit is a whole number, or several; got {value!r}.")
    return tuple(several)


def channel_axis(layer: str, shape: Sequence[int], axis: int | None) -> int:
    """The axis of a layer's output that counts its channels; `shape`: with the samples in front."""
    if len(shape) < 2:
        raise TargetError(f"The layer {layer!r} gives one number per sample and has no channels: name another layer.")
    if axis is None:
        if len(shape) == 3:
            raise TargetError(
                f"Each sample of the layer {layer!r} has the shape {tuple(shape[1:])}: say axis=1 if the first counts "
                "the channels (signals), or axis=2 if the second does (features of tokens)."
            )
        return 1
    if axis not in range(1, len(shape)) and axis not in range(1 - len(shape), 0):
        raise TargetError(
            f"axis={axis!r}: the axis of {layer!r} that counts the channels, 1 to {len(shape) - 1}, for 0 counts the "
            "samples."
        )
    return axis % len(shape)


def check_channel(layer: str, channel: int, channels: int) -> None:
    """Refuse a channel that there is not."""
    if not 0 <= channel < channels:
        raise TargetError(
            f"The channel {channel} is out of range: the layer {layer!r} has {channels} channels, 0 to {channels - 1}."
        )
