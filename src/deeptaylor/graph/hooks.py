"""Hooks: functions of the user's that run in a forward pass beside the modules' own."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as nn_module

__all__ = ["global_hooks", "hooks_of"]

_GLOBAL = ("_global_forward_hooks", "_global_forward_pre_hooks")


def hooks_of(module: nn.Module) -> tuple[dict[Any, Any], ...]:
    """Where a module's hooks are that run in a forward pass."""
    return module._forward_hooks, module._forward_pre_hooks


def global_hooks() -> tuple[dict[Any, Any], ...]:
    """The same for those that run in every module's."""
    return tuple(getattr(nn_module, name) for name in _GLOBAL)
