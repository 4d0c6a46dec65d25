"""What is found in a graph and computed in one piece, or sooner.

whole_attention   as torch has it, or written out as products of matrices and a softmax
sooner_picked     tokens that are picked behind a linear layer, as a language model's answers are, before it
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from deeptaylor.graph.places import Node, is_node
from deeptaylor.maps import ops
from deeptaylor.run.engine import Engine
from deeptaylor.secant.attention import attend, attend_keys
from deeptaylor.secant.narrow import is_fast
from deeptaylor.secant.products import picked_layer

__all__ = ["sooner_picked", "whole_attention"]

aten = torch.ops.aten
_PRODUCTS = (aten.matmul.default, aten.bmm.default)
_SOFTMAX = (aten.softmax.int, aten._softmax.default)


class _Scores(NamedTuple):
    """What a softmax reads: q k · scale + mask."""

    q: Node
    k: Node
    scale: Any = None
    mask: Any = None


_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # an operation, its arguments, its keywords


def sooner_picked(node: Node, engine: Engine) -> _Call | None:
    """A linear layer of the tokens that are picked behind it, all of whose features are; None for anything else."""
    if node.target is not aten.gather.default or node.kwargs or node.args[1] not in (1, -2):
        return None
    layer, _, index = node.args
    if not _is(layer, aten.linear.default, ops.linear) or layer.kwargs or not _is(index, aten.expand.default):
        return None
    picked, sizes = index.args
    if not (is_node(picked) and picked.target is aten.unsqueeze.default and picked.args[1] in (-1, 2)):
        return None
    shape = engine.layout[layer.name].shape(1)
    if len(shape) != 3 or list(sizes[-1:]) != [shape[-1]]:
        return None
    h, weight, bias = (*layer.args, None)[:3]
    return picked_layer, (h, weight, bias, index), {}


def whole_attention(node: Node, engine: Engine) -> _Call | None:
    """Attention, at the product that is its last step; None for anything else."""
    if node.target not in _PRODUCTS or not all(is_node(a) for a in node.args):
        return None
    weights, v = node.args
    if len(weights.users) != 1:
        return None
    narrow = engine.one.dtype if is_fast(engine.one.dtype, engine.one.device) else None
    if weights.target is ops.attention_weights:
        q, k, mask, causal, scale, grouped = weights.args
        return attend_keys, (q, k, v, scale, mask, causal, grouped, narrow), {}
    found = _scores(weights, engine)
    return None if found is None else (attend, (found.q, found.k, v, found.scale, found.mask, False, narrow), {})


def _scores(softmax: Node, engine: Engine) -> _Scores | None:
    """The scores of a softmax along the last axis, if they are written as we know them."""
    if softmax.target not in _SOFTMAX:
        return None
    if softmax.args[1] not in (-1, len(engine.layout[softmax.name].shape(1)) - 1):
        return None
    scores, mask, scale = softmax.args[0], None, None
    if _is(scores, aten.add.Tensor) and not scores.kwargs and all(is_node(a) for a in scores.args):
        scores, mask = scores.args if _is_scored(scores.args[0]) else scores.args[::-1]
    if _is(scores, ops.scale_shift) and (mask is None or scores.args[2] is None):
        scores, scale, shift = scores.args
        mask = shift if mask is None else mask
    if not (_is(scores, *_PRODUCTS) and all(is_node(a) for a in scores.args)):
        return None
    if scale is not None and engine.constant(scale.name).numel() != 1:
        return None
    q, k = scores.args
    return _Scores(q, k, scale, mask)


def _is(node: Any, *targets: Any) -> bool:
    """True for an operation whose result is read once."""
    return is_node(node) and node.target in targets and len(node.users) == 1


def _is_scored(node: Node) -> bool:
    return _is(node, *_PRODUCTS) or (_is(node, ops.scale_shift) and _is(node.args[0], *_PRODUCTS))
