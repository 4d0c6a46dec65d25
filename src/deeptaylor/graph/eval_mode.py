"""A network as it is used: training flags lowered for a moment, and everything as it was afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from deeptaylor.errors import warn

__all__ = ["LOCK", "eval_mode"]

# Capture lowers training flags and a global switch for a moment; two captures at once would restore them wrongly, and
# whoever looks at a network meanwhile would not see it as it is.
LOCK = threading.RLock()


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Lower every training flag, one by one so that no overridden `train()` runs, and put each back."""
    with LOCK:
        training = [m for m in model.modules() if m.training]
        noisy = sorted({type(m).__name__ for m in training if _behaves_differently(m)})
        if noisy:
            warn(
                f"The network is in training mode ({', '.join(noisy)} behave differently there). It is "
                "explained in eval "
                "mode; its own mode is restored. Call model.eval() to silence this.",
            )
        random = torch.get_rng_state()
        saved = [(m, dict(m.__dict__), _contents(m)) for m in model.modules()]
        fastpath = torch.backends.mha.get_fastpath_enabled()
        try:
            for module in training:
                module.training = False
            # The fused inference kernels of attention layers are opaque: no rule could look inside.
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            torch.set_rng_state(random)
            for module, attributes, contents in saved:
                # Export puts copies in place of lists and dicts, and a forward pass may count its calls.
                module.__dict__.clear()
                module.__dict__.update(attributes)
                for container, items in contents:
                    _refill(container, items)
            for module in training:
                module.training = True


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    """Copies of what a module's plain lists, dicts and sets hold."""
    return [(v, v.copy()) for v in module.__dict__.values() if type(v) in (list, dict, set)]


def _refill(container: Any, items: Any) -> None:
    if container != items or (isinstance(items, dict) and list(container) != list(items)):
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(items)


def _behaves_differently(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
