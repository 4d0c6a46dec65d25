"""einsum in few words: a sum and a permutation of one tensor, or products of two.

One operand: a sum over the letters that the result lacks, and a permutation. Three and more, of which at most two are
data: one pair after the other. A letter that one term has twice (a diagonal) is left as it is, and has no rule.
"""

from __future__ import annotations

from typing import Any

import torch

from deeptaylor.graph.capture import Captured
from deeptaylor.graph.editing import insert, replace, shape_of
from deeptaylor.graph.places import Node

__all__ = ["respell"]

aten = torch.ops.aten


def respell(captured: Captured, node: Node, data: set[Node]) -> None:
    """Put an einsum into explicit form, ellipses written out; one of one operand, or of many, in smaller steps."""
    equation, operands = node.args[0], node.args[1]
    if not isinstance(equation, str) or not isinstance(operands, (list, tuple)):
        return
    terms, out = _explicit(equation, [len(shape_of(o)) for o in operands])
    node.args = (f"{','.join(terms)}->{out}", list(operands))
    if any(len(set(term)) != len(term) for term in (*terms, out)):
        return
    if len(operands) == 1:
        _sum_and_permute(captured, node, operands[0], terms[0], out)
    elif len(operands) > 2:
        _in_pairs(captured, node, list(zip(operands, terms, strict=True)), out, data)


def _explicit(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The terms and the result, with letters for ellipses and for what is implied."""
    text = equation.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    widths = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    dots = "".join(spare[: max(widths)])
    if not arrow:
        letters = left.replace(",", "").replace("...", "")
        out = "..." * ("..." in left) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms = [t.replace("...", dots[len(dots) - width :]) for t, width in zip(terms, widths, strict=True)]
    return terms, out.replace("...", dots)


def _sum_and_permute(captured: Captured, node: Node, x: Node, term: str, out: str) -> None:
    gone = [k for k, letter in enumerate(term) if letter not in out]
    if gone:
        x = insert(captured, node, aten.sum.dim_IntList, (x, gone), x.meta["val"].sum(gone))
    left = [letter for letter in term if letter in out]
    replace(captured, node, aten.permute.default, (x, [left.index(letter) for letter in out]))


def _in_pairs(captured: Captured, node: Node, factors: list[tuple[Node, str]], out: str, data: set[Node]) -> None:
    """The first data operand times every constant, then times the other data operand, if there is one."""
    first, *others = [f for f in factors if f[0] in data]
    if len(others) > 1:
        return
    (x, term), rest = first, [*(f for f in factors if f[0] not in data), *others]
    while rest:
        (factor, letters), *rest = rest
        asked = set(out).union(*(t for _, t in rest))
        kept = out if not rest else "".join(dict.fromkeys(c for c in term + letters if c in asked))
        args: tuple[Any, ...] = (f"{term},{letters}->{kept}", [x, factor])
        if not rest:
            replace(captured, node, aten.einsum.default, args)
            return
        val = torch.einsum(args[0], x.meta["val"], factor.meta["val"])
        x, term = insert(captured, node, aten.einsum.default, args, val), kept
