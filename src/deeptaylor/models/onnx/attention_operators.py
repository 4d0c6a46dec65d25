"""ONNX's attention, rotary embeddings and linear attention, written out in operations of torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from deeptaylor.models.onnx.file import TYPES

__all__ = ["attention", "causal_conv", "linear_attention", "rotary_embedding"]


def _split_heads(x: Tensor, heads: int | None) -> Tensor:
    """Return (batch, heads, tokens, features) of (batch, tokens, heads · features)."""
    if x.ndim == 4:
        return x
    if not heads:
        raise ValueError("inputs of three axes need the numbers of heads")
    apart: Tensor = x.unflatten(2, (heads, -1))
    return apart.transpose(1, 2)


def _share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values for the queries that share them."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    is_causal: int = 0,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    softmax_precision: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Attention: softmax(s Q Kᵀ + mask) V, with the keys and values, and the scores at the stage that is asked for."""
    packed = q.ndim == 3
    q, k, v = _split_heads(q, q_num_heads), _split_heads(k, kv_num_heads), _split_heads(v, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    stages = [(q * root) @ (_share_heads(k, q.shape[1]) * root).transpose(-1, -2)]
    stages.append(softcap * torch.tanh(stages[0] / softcap) if softcap else stages[0])
    allowed, bias = _read_mask(attn_mask, k.shape[2])
    near = _visible(stages[0], past, nonpad_kv_seqlen, bool(is_causal), left_window_size, right_window_size)
    allowed = near if allowed is None else allowed if near is None else allowed & near
    biased = stages[1] if bias is None else stages[1] + bias
    stages.append(biased if allowed is None else biased.masked_fill(~allowed, -torch.inf))
    weights = _softmax(stages[2], softmax_precision)
    by_place = attn_mask is None and nonpad_kv_seqlen is None
    if not (by_place and _always_open(q.shape[2] + past, k.shape[2], left_window_size)):
        weights = _clear_masked_rows(weights, allowed, bias)
    stages.append(weights)
    y = weights @ _share_heads(v, q.shape[1])
    y = y.transpose(1, 2).flatten(2) if packed else y
    return (y, k, v, stages[qk_matmul_output_mode])[:outputs]


def _softmax(scores: Tensor, precision: int | None) -> Tensor:
    if precision is None or TYPES[precision] == scores.dtype:
        return torch.softmax(scores, -1)
    return torch.softmax(scores.to(TYPES[precision]), -1).to(scores.dtype)


def _clear_masked_rows(weights: Tensor, allowed: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return weights that are zero where a query sees no key at all, for which softmax is NaN."""
    seen = None if bias is None else bias > -torch.inf
    seen = allowed if seen is None else seen if allowed is None else allowed & seen
    return weights if seen is None else torch.where(seen.any(-1, keepdim=True), weights, 0)


def _read_mask(mask: Tensor | None, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask as what is allowed, or as what is added; a mask that is too short hides the rest."""
    if mask is None:
        return None, None
    missing = keys - mask.shape[-1]
    if mask.dtype == torch.bool:
        return F.pad(mask, (0, missing)) if missing else mask, None
    return None, F.pad(mask, (0, missing), value=-torch.inf) if missing else mask


def _visible(scores: Tensor, past: int, lengths: Tensor | None, causal: bool, left: int, right: int) -> Tensor | None:
    """Return which keys each query may see by their places; None: all."""
    queries, keys = scores.shape[-2:]
    place = torch.arange(keys, device=scores.device)
    row = torch.arange(queries, device=scores.device).unsqueeze(1) + past
    found = None
    if lengths is not None:
        of_sample = lengths.reshape(-1, 1, 1, 1)
        found = place < of_sample
        row = row - past + of_sample - queries
    bounds = []
    if causal:
        bounds.append(place <= row)
    if left >= 0:
        bounds.append(place >= row - left)
    if right >= 0:
        bounds.append(place <= row + right)
    for bound in bounds:
        found = bound if found is None else found & bound
    return found


def _always_open(queries: int, keys: int, left: int) -> bool:
    """Return True if every query sees a key, where places alone hide keys."""
    return left < 0 or queries <= keys


def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    interleaved: int = 0,
) -> Tensor:
    """RotaryEmbedding: pairs of features are rotated by an angle that depends on the token's place."""
    heads = x.unflatten(2, (num_heads, -1)) if x.ndim == 3 else x.transpose(1, 2)  # (batch, tokens, heads, features)
    size = rotary_embedding_dim or heads.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    if position_ids is not None:
        cos, sin = (F.embedding(position_ids, table) for table in (cos, sin))
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    both = torch.stack([real, imaginary], -1).flatten(-2) if interleaved else torch.cat([real, imaginary], -1)
    y = torch.cat([both, rest], -1) if rest.shape[-1] else both
    return y.flatten(2) if x.ndim == 3 else y.transpose(1, 2)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
    chunk_size: int = 64,
    outputs: int,
) -> tuple[Tensor, ...]:
    """LinearAttention: a state that each token's key and value change, and its query reads."""
    q, k, v = _split_heads(q, q_num_heads), _split_heads(k, kv_num_heads), _split_heads(v, kv_num_heads)
    factor = scale or 1 / math.sqrt(q.shape[-1])
    groups = q_num_heads // kv_num_heads
    state = q.new_zeros(q.shape[0], kv_num_heads, k.shape[-1], v.shape[-1]) if past_state is None else past_state
    gate = None if decay is None or "gated" not in update_rule else torch.exp(_split_heads(decay, kv_num_heads))
    rate = None if beta is None or "delta" not in update_rule else _split_heads(beta, kv_num_heads)
    seen = []
    for t in range(q.shape[2]):
        key, value = k[:, :, t].unsqueeze(-1), v[:, :, t].unsqueeze(-2)
        state = state if gate is None else gate[:, :, t].unsqueeze(-1) * state
        if "delta" in update_rule:
            value = value - (state * key).sum(-2, keepdim=True)
        state = state + (key if rate is None else rate[:, :, t].unsqueeze(-1) * key) * value
        query = q[:, :, t].unflatten(1, (kv_num_heads, groups))
        seen.append((factor * (query @ state)).flatten(1, 2))
    y = torch.stack(seen, 1).flatten(2)
    return (y, state)[:outputs]


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
    outputs: int,
) -> tuple[Tensor, ...]:
    """CausalConvWithState: a convolution of each channel that reads no later place."""
    before = weight.shape[-1] - 1
    past = x.new_zeros(*x.shape[:2], before) if past_state is None else past_state
    whole = torch.cat([past, x], -1)
    y = F.conv1d(whole, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        y = F.silu(y)
    elif activation != "none":
        raise ValueError(f"the activation {activation!r} is not known")
    return (y, whole[..., whole.shape[-1] - before :])[:outputs]
