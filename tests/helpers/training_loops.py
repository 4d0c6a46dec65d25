"""A stand-in for Lightning where it is not installed: the hooks that our documentation uses, called in its order."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn


class Callback:
    """Hooks that do nothing."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None: ...

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None: ...


class LightningModule(nn.Module):
    """A module with a training step."""


class Trainer:
    """Runs the training loop of a module."""

    def __init__(self, max_epochs: int, callbacks: Sequence[Callback], **_: Any) -> None:
        self.max_epochs, self.callbacks = max_epochs, callbacks

    def fit(self, module: Any, loader: Iterable[Any]) -> None:
        """Train, in the mode that the modules are in."""
        optimizer = module.configure_optimizers()
        for _ in range(self.max_epochs):
            for k, batch in enumerate(loader):
                for callback in self.callbacks:
                    callback.on_train_batch_start(self, module, batch, k)
                loss = module.training_step(batch, k)
                optimizer.zero_grad()
                loss.backward()
                for callback in self.callbacks:
                    callback.on_before_optimizer_step(self, module, optimizer)
                optimizer.step()


def provide_lightning() -> None:
    """Make `import lightning` work."""
    if importlib.util.find_spec("lightning") is None:
        stand_in: Any = types.ModuleType("lightning")
        stand_in.Callback, stand_in.LightningModule, stand_in.Trainer = Callback, LightningModule, Trainer
        sys.modules["lightning"] = stand_in
