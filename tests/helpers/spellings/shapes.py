"""Rearrangements, written otherwise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from network_modules import Concat, Heads, MergeHeads, PrependToken, Token
from spellings.modules import Crop, Halve, Pad, Reflect
from spellings.table import Spelled, simple, spelling

simple("shape", nn.Flatten, "flatten(1)", lambda x: x.flatten(1))
simple("shape", nn.Flatten, "view", lambda x: x.view(x.shape[0], -1))
simple("shape", nn.Flatten, "view(-1, n)", lambda x: x.reshape(-1, x[0].numel()))
simple("shape", nn.Flatten, "axis by axis", lambda x: x.flatten(2).flatten(1))
simple(
    "shape", nn.Flatten, "permuted there and back", lambda x: x.permute(0, 2, 3, 1).movedim(3, 1).reshape(len(x), -1)
)
simple("shape", nn.Flatten, "rows one by one", lambda x: torch.cat([r.flatten(1) for r in x.split(1, 1)], 1))
simple("shape", nn.Flatten, "unbound and stacked", lambda x: torch.stack(x.unbind(1), 1).flatten(1))
simple("shape", nn.Flatten, "chunks", lambda x: torch.cat(x.chunk(2, 1), 1).flatten(1))
simple("shape", nn.Flatten, "rolled there and back", lambda x: x.roll(1, 2).roll(-1, 2).flatten(1))
simple("shape", nn.Flatten, "flipped there and back", lambda x: x.flip(2).flip(2).flatten(1))
simple("shape", nn.Flatten, "index of all", lambda x: x.flatten(1)[:, torch.arange(x[0].numel())])
simple("shape", nn.Flatten, "einsum", lambda x: torch.einsum("bchw->bhwc", x).permute(0, 3, 1, 2).flatten(1))
simple("shape", nn.Flatten, "squeezed", lambda x: x.unsqueeze(1).squeeze(1).flatten(1))
simple("shape", nn.Flatten, "padded and cut", lambda x: F.pad(x, [1, 1])[..., 1:-1].flatten(1))
simple("shape", Token, "narrow", lambda x: x.narrow(1, 0, 1).squeeze(1))
simple("shape", Token, "select", lambda x: x.select(1, 0))
simple("shape", Token, "index_select", lambda x: x.index_select(1, torch.tensor([0])).flatten(1))
simple("shape", Token, "unbind", lambda x: x.unbind(1)[0])
simple("shape", Token, "product with a unit vector", lambda x: torch.eye(x.shape[1])[0].to(x) @ x)


@spelling("shape", Heads, "view and permute")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x.view(x.shape[0], x.shape[1], m.heads, -1).permute(0, 2, 1, 3))


@spelling("shape", Heads, "unflatten and movedim")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: x.unflatten(-1, (m.heads, -1)).movedim(2, 1))


@spelling("shape", Heads, "chunks stacked")
def _(m: Heads, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: torch.stack(x.chunk(m.heads, -1), 1))


simple("shape", MergeHeads, "permute and reshape", lambda x: x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))
simple("shape", MergeHeads, "heads side by side", lambda x: torch.cat(x.unbind(1), -1))
simple("shape", Concat, "torch.concat", lambda *x: torch.concat(x, 1))
simple("shape", Concat, "channels last", lambda *x: torch.cat([t.movedim(1, -1) for t in x], -1).movedim(-1, 1))
simple("shape", Concat, "two by two", lambda a, *x: torch.cat([a, torch.cat(x, 1)], 1) if x else a)


@spelling("shape", PrependToken, "expanded otherwise")
def _(m: PrependToken, x: Tensor) -> nn.Module:
    return Spelled(lambda s, x: torch.cat([s.token.repeat(x.shape[0], 1, 1), x], 1), token=m.token)


@spelling("shape", nn.Upsample, "repeated")
def _(m: nn.Upsample, x: Tensor) -> nn.Module | None:
    write = lambda s, x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)  # noqa: E731
    return Spelled(write) if m.mode == "nearest" else None


simple("indexing", Crop, "narrow", lambda x: x.narrow(2, 1, x.shape[2] - 2).narrow(3, 1, x.shape[3] - 2))
simple("indexing", Crop, "negative padding", lambda x: F.pad(x, [-1, -1, -1, -1]))
simple("indexing", Crop, "one axis after the other", lambda x: x[..., 1:-1][:, :, 1:-1])
simple("indexing", Crop, "split", lambda x: x.split([1, x.shape[2] - 2, 1], 2)[1].split([1, x.shape[3] - 2, 1], 3)[1])
simple("indexing", Crop, "index_select", lambda x: _chosen(_chosen(x, 2), 3))
simple("indexing", Halve, "one axis after the other", lambda x: x[:, :, ::2][..., ::2])
simple(
    "indexing",
    Halve,
    "a view and its first",
    lambda x: x.unflatten(3, (-1, 2))[..., 0].unflatten(2, (-1, 2))[:, :, :, 0],
)
simple("indexing", Halve, "by a list", lambda x: x[:, :, list(range(0, x.shape[2], 2))][..., ::2])
simple("padding", Pad, "ZeroPad2d", nn.ZeroPad2d(1))
simple("padding", Pad, "one axis after the other", lambda x: F.pad(F.pad(x, [1, 1]), [0, 0, 1, 1]))
simple("padding", Pad, "a constant of zero", lambda x: torch.constant_pad_nd(x, [1, 1, 1, 1], 0.0))
simple("padding", Pad, "too much and cut", lambda x: F.pad(x, [2, 2, 2, 2])[:, :, 1:-1, 1:-1])
simple("padding", Reflect, "ReflectionPad2d", nn.ReflectionPad2d(1))
simple(
    "padding",
    Reflect,
    "one axis after the other",
    lambda x: F.pad(F.pad(x, [1, 1, 0, 0], mode="reflect"), [0, 0, 1, 1], mode="reflect"),
)
simple("padding", Reflect, "by places", lambda x: _mirrored(_mirrored(x, 2), 3))


def _chosen(x: Tensor, axis: int) -> Tensor:
    return x.index_select(axis, torch.arange(1, x.shape[axis] - 1))


def _mirrored(x: Tensor, axis: int) -> Tensor:
    n = x.shape[axis]
    return x.index_select(axis, torch.tensor([1, *range(n), n - 2]))
