"""The table itself, and what its rows are made with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Respell = Callable[..., "nn.Module | None"]


class Spelling(NamedTuple):
    """One way to write what modules of a type do; `respell(module, *operands)` gives None where it does not apply."""

    family: str
    usual: type[nn.Module]
    name: str
    respell: Respell


TABLE: list[Spelling] = []


def spelling(family: str, usual: type[nn.Module], name: str) -> Callable[[Respell], Respell]:
    """Add a row to the table."""

    def add(respell: Respell) -> Respell:
        assert (usual, name) not in {(s.usual, s.name) for s in TABLE}, name
        TABLE.append(Spelling(family, usual, name, respell))
        return respell

    return add


class Spelled(nn.Module):
    """A function of tensors that it holds (as buffers, `s.weight`) and of its operands."""

    def __init__(self, write: Callable[..., Tensor], **held: Tensor | nn.Module | None) -> None:
        super().__init__()
        self.write = write
        for name, value in held.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                self.register_buffer(name, None if value is None else value.detach().clone())

    def forward(self, *x: Tensor) -> Tensor:
        return self.write(self, *x)


def simple(family: str, usual: type[nn.Module], name: str, write: Callable[..., Tensor]) -> None:
    """A spelling that needs nothing of the module but that it is one; `write(*operands)`."""
    spelling(family, usual, name)(lambda m, *x: Spelled(lambda s, *x: write(*x)))


def bias_of(m: Any) -> Tensor:
    """The bias, or zeros where there is none."""
    return m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias


def noise(like: Tensor, *shape: int) -> Tensor:
    """Numbers that depend on nothing but the shape."""
    n = math.prod(shape)
    return (torch.arange(1, n + 1, dtype=torch.float64).mul(2.399).sin() / 2).reshape(shape).to(like)
