"""An engine's pass compiled by torch.compile: once for every shape, with CUDA graphs where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deeptaylor import target as targets
from deeptaylor.engine import Engine, Result

__all__ = ["Compiled"]


class Compiled:
    """`Engine.run`, compiled; its results are the caller's own, though the memory they came in is used again."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        def tensors(inputs: tuple[Tensor, ...], target: Any, ledger: bool, keep: frozenset[str]) -> tuple[Any, ...]:
            result = engine.run(inputs, target, ledger, keep)
            return result.score, result.relevance, result.entries, result.kept

        self._tensors = torch.compile(tensors, dynamic=False, fullgraph=True, options=options)

    def __call__(
        self, inputs: Sequence[Tensor], target: Any, ledger: bool = False, keep: frozenset[str] = frozenset()
    ) -> Result:
        settled = targets.settled(target, inputs[0])
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            score, relevance, entries, kept = self._tensors(tuple(inputs), settled, ledger, keep)
        return Result(
            score.clone(),
            tuple(r.clone() for r in relevance),
            None if entries is None else entries.clone(),
            {name: r.clone() for name, r in kept.items()},
        )
