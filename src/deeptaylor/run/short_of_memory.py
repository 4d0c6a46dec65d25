"""A batch that does not fit into memory: explained in parts, or keeping less; and that is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deeptaylor.errors import TooLargeError, warn
from deeptaylor.run import target as targets
from deeptaylor.run.books import Kept
from deeptaylor.run.engine import Engine
from deeptaylor.run.result import Result, joined
from deeptaylor.support.out_of_memory import out_of_memory

__all__ = ["Batch", "explain_in_parts"]


@dataclass(frozen=True)
class Batch:
    """What is explained in one go: inputs, targets, and what is wanted besides the map."""

    inputs: tuple[Tensor, ...]
    target: Any
    books: Kept
    keep: frozenset[str]

    def __len__(self) -> int:
        return int(self.inputs[0].shape[0])

    def run(self, run: Callable[..., Result], samples: slice) -> Result:
        """Explain some of the samples."""
        return run([x[samples] for x in self.inputs], targets.part(self.target, samples), self.books, self.keep)


def explain_in_parts(
    engine: Engine, batch: Batch, runner: Callable[[], Callable[..., Result]], keep_less: Callable[[], Any]
) -> Result:
    """Halve what does not fit until it does; of a single sample keep less; refuse what does not fit even then.

    `runner` says how an engine is run, `keep_less` makes it keep less from now on.
    """
    size = len(batch)
    while True:
        samples = [slice(k, k + size) for k in range(0, len(batch), size)]
        try:
            run = runner()
            parts = [batch.run(run, s) for s in samples]
            break
        except (RuntimeError, MemoryError) as error:
            one = size == 1 or engine.fixed_batch is not None
            if not out_of_memory(error):
                raise
            if one and engine.recomputes:
                raise TooLargeError(_too_large(engine, batch, error)) from error
        if batch.inputs[0].is_cuda:
            torch.cuda.empty_cache()
        if one:
            warn("A sample does not fit into memory; less is kept and more computed again from now on.")
            keep_less()
        else:
            size = (size + 1) // 2
    if len(parts) == 1:
        return parts[0]
    warn(f"A batch of {len(batch)} does not fit into memory; it was explained {size} at a time.")
    return joined(parts, {name: engine.layout[name] for name in batch.keep})


def _too_large(engine: Engine, batch: Batch, error: BaseException) -> str:
    shapes = ", ".join(str(tuple(x.shape[1:])) for x in batch.inputs)
    what = "A sample" if engine.fixed_batch is None else f"The batch of {engine.fixed_batch}, which the network fixes,"
    said = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"{what} of shape {shapes} does not fit into memory, even with all computed again that can be ({said[0]}). "
        "Explain smaller inputs, in fewer digits (explainer.to(torch.bfloat16)), or where there is more memory."
    )
