"""Channels of a layer that a run watched: the items in which each counted most, and the pieces that it counted in.

The items are in the store. The pieces are not: they are computed by the network of the run, where the page serves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deeptaylor import heatmap
from deeptaylor.app.server.gallery import Gallery
from deeptaylor.app.server.gallery_pictures import enlarged
from deeptaylor.app.server.gallery_schema import ChannelAnswer, ChannelItem, ChannelList
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.pictures.crops import Crop
from deeptaylor.runs.concepts import ChannelTable
from deeptaylor.runs.view import View
from deeptaylor.secant.front_door import DEEP_TAYLOR, PRESETS
from deeptaylor.support.fingerprint import weights_fingerprint

__all__ = ["Channels"]

_BEST = 8  # items of a channel
_LISTED = 200  # channels
_SIDE = 128  # pixels of a piece


@dataclass
class Channels:
    """The channels of a gallery's run; `network`: the one that the page serves."""

    gallery: Gallery
    network: Callable[[], Pretrained]
    _tables: dict[str, tuple[Any, ChannelTable]] = field(init=False, default_factory=dict)
    _explainer: tuple[Pretrained, Explainer] | None = field(init=False, default=None)
    _crops: dict[tuple[str, int], list[Crop]] = field(init=False, default_factory=dict)

    def layer(self, place: int) -> str:
        """A watched layer by its place in the offer."""
        layers = self.gallery.layers
        if not 0 <= place < len(layers):
            raise InputError(f"The run watched {len(layers)} layers; there is none of number {place}.")
        return layers[place]

    def _table(self, place: int) -> ChannelTable:
        layer, done = self.layer(place), self.gallery.run.progress
        if layer not in self._tables or self._tables[layer][0] != done:
            self._tables[layer] = done, self.gallery.run.channels(layer)
            self._crops.clear()
        return self._tables[layer][1]

    def all(self, place: int) -> ChannelList:
        """The channels of a layer."""
        table = self._table(place)
        if table.relevance is None:
            channels, order = list(range(table.channels))[:_LISTED], "in their order"
        else:
            channels, order = [c for c, _ in table.strongest(_LISTED)], "the greatest mean relevance first"
        return ChannelList(
            layer=table.layer, channels=channels, sentence=f"{table.channels} channels, {order}."
        )  # fmt: skip

    def one(self, place: int, channel: int) -> ChannelAnswer:
        """The items in which a channel counted most."""
        table = self._table(place)
        best = table.top(channel)[:_BEST]
        listed = self.gallery.listed(self.gallery.view[np.array([k for k, _ in best], dtype=np.int64)])
        items = [ChannelItem(**item.model_dump(), value=v) for item, (_, v) in zip(listed, best, strict=True)]
        what = f"Channel {channel} of the layer {table.layer}"
        sentence = f"{what} counted in none of the {len(table.numbers):,} items."
        if items:
            sentence = (
                f"{what}: the {len(items)} of {len(table.numbers):,} items in which most relevance arrived at it."
            )
        return ChannelAnswer(layer=table.layer, channel=channel, sentence=sentence, items=items)

    def crop(self, place: int, channel: int, which: int) -> bytes:
        """The piece of one of those items in which most of the channel's relevance lies, and its map beneath it."""
        table = self._table(place)
        key = table.layer, channel
        if key not in self._crops:
            explainer, view = self._own(), self.gallery.view
            found = table.examples(
                explainer, lambda k: self._photo(view, k), [channel], view.table["target"], count=_BEST
            )
            self._crops = {key: found.crops(channel)}
        crops = self._crops[key]
        if not 0 <= which < len(crops):
            raise InputError(f"Channel {channel} has {len(crops)} pieces; there is none of number {which}.")
        piece = _coloured(crops[which].picture)
        under = heatmap.overlay(piece, np.clip(crops[which].heat, 0, None))
        return enlarged(np.concatenate([piece, under]), 2 * _SIDE)

    def _photo(self, view: View, item: int) -> Any:
        return view.run.picture(item)

    def _own(self) -> Explainer:
        """The explainer of the run's network; refused where another is served."""
        served = self.network()
        if self._explainer is not None and self._explainer[0] is served:
            return self._explainer[1]
        manifest = self.gallery.run.manifest
        plan = manifest["plan"]
        if served.preparation is None or weights_fingerprint(served.network) != manifest["network"]["fingerprint"]:
            raise InputError("Pieces are cut with the run's own network, and the page serves another one.")
        if (method := plan.get("method", DEEP_TAYLOR)) not in PRESETS:
            raise InputError(f"The run was explained by {method!r}, which says nothing of the channels inside.")
        if plan["rules"] or plan["first"]:
            raise InputError("The run has rules of its own, with which the page does not cut pieces.")
        made = served.explainer(
            bias=plan["bias"], max_pool=plan["max_pool"], local=plan["local"], output=plan["output"]
        )  # fmt: skip
        self._explainer = served, made
        return made


def _coloured(picture: heatmap.Picture) -> heatmap.Picture:
    return picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, 2)
