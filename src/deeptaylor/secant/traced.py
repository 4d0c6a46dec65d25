"""A comparison as one flat list of operations, both points and the way back: traced once for every shape.

Traced(walk, options)(x, x0, target)
├── alike            inputs that are the same at both points are one input of the program
├── make_fx          the operations that a walk and its reverse pass come to
└── torch.compile    of these; without options they run as they are

Where a walk has to look at values inside the network, to know whether a mask differs, nothing is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.run import target as targets
from deeptaylor.secant.pair import UndecidedError, tracing

__all__ = ["Found", "Traced", "Walk"]

Found = tuple[tuple[Tensor, ...], Tensor, Tensor, Tensor | None]  # relevance, both scores, the network's answer
Walk = Callable[[Sequence[Tensor], Sequence[Tensor], Any], Found]


class Traced:
    """A walk and its way back as a flat program.

    options   torch.compile's, if it is to be compiled; else None
    """

    def __init__(self, walk: Walk, options: dict[str, Any] | None) -> None:
        self._walk, self._options = walk, options
        self.programs: dict[Any, Callable[..., Any] | None] = {}

    def __call__(self, x: Sequence[Tensor], x0: Sequence[Tensor], target: Any) -> Found:
        target = targets.settled(target, x[0])
        given, form = ([], None) if target is None else pytree.tree_flatten(target)
        if not all(isinstance(t, Tensor) for t in given):
            return self._walk(x, x0, target)
        alike = tuple(a is b for a, b in zip(x, x0, strict=True))
        tensors = [*x, *(b for b, is_same in zip(x0, alike, strict=True) if not is_same), *given]
        key = (form, alike, tuple((t.shape, t.dtype, t.device) for t in tensors))
        if key not in self.programs:
            self.programs[key] = self._traced(tensors, len(x), alike, form)
        program = self.programs[key]
        if program is None:
            return self._walk(x, x0, target)
        with torch.no_grad():
            *maps, score, reference, chosen = program(*tensors)
        return tuple(maps), score, reference, chosen

    def _traced(self, tensors: Sequence[Tensor], count: int, alike: Sequence[bool], form: Any) -> Any:
        from torch.fx.experimental.proxy_tensor import make_fx  # takes long to import

        def flat(*given: Tensor) -> list[Any]:
            x, rest = given[:count], list(given[count:])
            x0 = [a if is_same else rest.pop(0) for a, is_same in zip(x, alike, strict=True)]
            maps, *scores = self._walk(x, x0, None if form is None else pytree.tree_unflatten(rest, form))
            return [*maps, *scores]

        try:
            # The way back in this thread, which knows that it is traced: a GPU has one of its own for it.
            with tracing(), torch.autograd.set_multithreading_enabled(False):
                program = make_fx(flat)(*tensors)
        except UndecidedError:
            return None
        program.graph.eliminate_dead_code()
        program.recompile()
        if self._options is None:
            return program
        return torch.compile(program, dynamic=False, fullgraph=True, options=self._options)
