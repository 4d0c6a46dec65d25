"""Mixtures of experts of transformers, rewritten so that every token reads every expert, weighted by its routing.

transformers sorts the tokens of a batch by expert, so that one product mixes samples. The sum over all experts,

    y = Σ_e w_e E_e(x)        w_e is the routing weight of expert e, zero where the token was not routed to it

is the same function, and computes each sample independently. Only the captured graph has this form.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["write_experts_out"]

_GATE = "_apply_gate"  # the method that computes the hidden units from the first projection
_ATTRIBUTES = ("num_experts", "has_gate", "has_bias", "is_transposed", "has_post_expert_norm", _GATE)


def write_experts_out(model: nn.Module) -> None:
    """Give all experts a forward that reads every expert; call this inside `eval_mode`, which restores them."""
    for module in model.modules():
        # The attributes that transformers.integrations.moe.use_experts_implementation adds to a class of experts.
        if all(hasattr(module, name) for name in _ATTRIBUTES):
            module.forward = partial(_forward, module)


def _forward(experts: Any, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Return the weighted sum of all experts, for tokens (tokens, features)."""
    numbers = torch.arange(experts.num_experts, device=x.device)
    routed = (top_k_index.unsqueeze(-1) == numbers).to(x.dtype)  # (tokens, k, experts)
    weights = (routed * top_k_weights.to(x.dtype).unsqueeze(-1)).sum(1)
    total: Tensor | None = None
    for e in range(experts.num_experts):
        y = weights[:, e : e + 1] * _apply_expert(experts, x, e)
        total = y if total is None else total + y
    assert total is not None
    return total


def _apply_expert(experts: Any, x: Tensor, e: int) -> Tensor:
    """Return the output of one expert for all tokens."""
    if experts.has_gate:
        h = getattr(experts, _GATE)(_apply_linear(experts, "gate_up_proj", x, e))
    else:
        h = experts.act_fn(_apply_linear(experts, "up_proj", x, e))
    y = _apply_linear(experts, "down_proj", h, e)
    if experts.has_post_expert_norm:
        y = experts.post_expert_norm(y)
    return y


def _apply_linear(experts: Any, name: str, x: Tensor, e: int) -> Tensor:
    """Apply a projection of one expert."""
    weight = getattr(experts, name)[e]
    bias = getattr(experts, f"{name}_bias")[e] if experts.has_bias else None
    return torch.nn.functional.linear(x, weight.t() if experts.is_transposed else weight, bias)
