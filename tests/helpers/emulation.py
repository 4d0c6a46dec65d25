"""Other processors than the one at hand: every operation in float32, and its result rounded to the type as they do.

nearest      units of bfloat16 with sums in float32: one rounding for an operation, to the nearest number
in parts     a product in two parts, and its bias, each rounded on its own
at random    up or down by chance, in proportion: the error of a rounding is up to twice as large
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

NARROW = (torch.float16, torch.bfloat16)
PROCESSORS = ("nearest", "in parts", "at random")
_aten = torch.ops.aten
_MOVES = {
    _aten.clone.default, _aten._to_copy.default, _aten.copy_.default, _aten.cat.default, _aten.stack.default,
    _aten.set_.source_Storage_storage_offset,
}  # fmt: skip


class Processor(TorchDispatchMode):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.dice, self.operations = kind, torch.Generator().manual_seed(0), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found: list[torch.dtype] = []
        tree_map(lambda t: found.append(t.dtype) if isinstance(t, Tensor) and t.dtype in NARROW else None, args)
        if not found or func.is_view or func in _MOVES:
            return func(*args, **kwargs)
        assert not func._schema.is_mutable, func
        self.operations += 1
        wide = tree_map(lambda t: t.float() if isinstance(t, Tensor) and t.dtype in NARROW else t, args)
        if kwargs.get("dtype") is not None:
            return func(*wide, **kwargs)
        if self.kind == "in parts" and func is _aten.convolution.default:
            return self._in_parts(func, found[0], *wide)
        results = func(*wide, **kwargs)
        return tree_map(lambda t: self._rounded(t, found[0]) if _is_float(t) else t, results)

    def _rounded(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        near = t.to(dtype)
        if self.kind != "at random":
            return near
        other = torch.nextafter(near, torch.where(t > near, torch.inf, -torch.inf).to(dtype))
        chance = ((t - near) / (other.float() - near)).nan_to_num(0)
        return torch.where(torch.rand(t.shape, generator=self.dice) < chance, other, near)

    def _in_parts(
        self, func: Callable[..., Tensor], dtype: torch.dtype, x: Tensor, w: Tensor, bias: Tensor | None, *how: Any
    ) -> Tensor:
        transposed, groups, half = how[3], how[5], x.shape[1] // 2
        if groups == 1 and half:
            parts = zip(x.split([half, x.shape[1] - half], 1), w.split([half, x.shape[1] - half], 1 - transposed),
                        strict=True)  # fmt: skip
            a, b = (self._rounded(func(xk, wk, None, *how), dtype).float() for xk, wk in parts)
            y = self._rounded(a + b, dtype)
        else:
            y = self._rounded(func(x, w, None, *how), dtype)
        return y if bias is None else self._rounded(y.float() + bias.reshape(-1, *[1] * (y.ndim - 2)), dtype)


def _is_float(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype is torch.float32
