"""A map that is a mean over noisy or altered copies of the input, with the mean of their ledgers.

x ──copy k──► x_k ──Explainer──► R_k, f_k        R = (1/n) Σ R_k        f = (1/n) Σ max(0, f_k)

Each copy's ledger adds up to max(0, f_k), and sums are linear: the mean of the ledgers adds up to the mean score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.domain import Box, Domain, extent
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import Ledger

__all__ = ["averaged"]

Alter = Callable[[Any, int], Any]
_APART = 1_000_003  # between the random numbers of one seed and the next: more than anyone's copies


def averaged(
    explainer: Explainer, x: Any, target: Any = None, *, copies: int = 16, noise: float = 0.1,
    alter: Alter | None = None, seed: int = 0, batch: int = 16,
) -> Explanation:  # fmt: skip
    """The mean map over copies of an input: score and ledger are means over the copies, too, and add up.

    x, target   as for `explainer.explain`; None: the top class of x itself. Where a margin leaves a class open, each
                copy settles it for itself
    copies      how many; x itself is not among them
    noise       Gaussian, its standard deviation as a part of the range of the input's box; where the domain has no
                range, of the range from the smallest to the largest value of each sample. What leaves the domain is set
                to its edge
    alter       in place of noise: a function of the inputs, as tensors, and the number of the copy. It must leave
                places where they are, for maps are averaged place by place, and give the same whenever it is called
    seed        the same copies every time
    batch       how many inputs are explained at once; it changes nothing but time and memory

    A copy whose score is not positive has an empty map, and counts as 0 in the mean score.

    >>> import torch, deeptaylor as dt
    >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.Box(0, 1))
    >>> e = dt.averaged(explainer, [[0.2, 0.4]], 0, copies=4)
    >>> e.relevance.shape, e.mean_of
    (torch.Size([1, 2]), '4 noisy copies')
    """
    _check(copies, noise, batch)
    of_x = explainer.explain(x, target)
    inputs = pytree.tree_leaves(explainer.read(x)[0])
    asked = of_x.classes if target is None else explainer.asked_for(target, inputs[0])
    copied = _Copies(tuple(inputs), explainer.settings.domains, copies, noise, alter, seed)
    if alter is None:
        copied.check()
    answers = partial(_answers, explainer, copied, asked, max(1, batch // len(inputs[0])))
    sums = _Sums()
    for group, e in answers():
        sums.add(e, group)
    return sums.mean(of_x, copied, partial(_entries, answers), partial(_at, explainer, copied, asked))


@dataclass(frozen=True)
class _Copies:
    """The copies of some inputs, each made when it is needed."""

    inputs: tuple[Tensor, ...]
    domains: tuple[Domain, ...]
    count: int
    noise: float
    alter: Alter | None
    seed: int

    @property
    def name(self) -> str:
        kind = "noisy" if self.alter is None else "altered"
        return f"{self.count} {kind} {'copy' if self.count == 1 else 'copies'}"

    def check(self) -> None:
        if not any(x.is_floating_point() for x in self.inputs):
            raise InputError(
                "These inputs are whole numbers, which take no noise: give alter=, which makes the copies."
            )

    def groups(self, most: int) -> Iterator[tuple[int, Any]]:
        """So many copies at once, as one batch, with their number."""
        for start in range(0, self.count, most):
            numbers = range(start, min(start + most, self.count))
            parts = [self.copy(k) for k in numbers]
            together = tuple(torch.cat(ts) for ts in zip(*parts, strict=True))
            yield len(numbers), together[0] if len(together) == 1 else together

    def copy(self, k: int) -> tuple[Tensor, ...]:
        if self.alter is not None:
            return self._altered(self.alter, k)
        random = torch.Generator().manual_seed(self.seed * _APART + k)
        return tuple(self._noisy(x, d, random) for x, d in zip(self.inputs, self.domains, strict=True))

    def _altered(self, alter: Alter, k: int) -> tuple[Tensor, ...]:
        one = len(self.inputs) == 1
        changed = alter(self.inputs[0].clone() if one else tuple(x.clone() for x in self.inputs), k)
        parts = (changed,) if one else tuple(changed)
        shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in parts]
        if shapes != [tuple(x.shape) for x in self.inputs]:
            wanted = ", ".join(str(tuple(x.shape)) for x in self.inputs)
            raise InputError(f"alter must return tensors shaped like the inputs, {wanted}; got {shapes}.")
        return parts

    def _noisy(self, x: Tensor, domain: Domain, random: torch.Generator) -> Tensor:
        if not x.is_floating_point():
            return x
        low, high = extent(domain, x)
        drawn = torch.randn(x.shape, generator=random, dtype=torch.promote_types(x.dtype, torch.float32))
        return (x + self.noise * (_range(x, domain) * drawn.to(x))).clamp(low, high)


def _range(x: Tensor, domain: Domain) -> Tensor:
    """From the lowest to the highest value: of the box, or of each sample where the domain has no end."""
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        return high - low
    flat = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return (flat.amax(1) - flat.amin(1)).reshape(-1, *[1] * (x.ndim - 1))


def _answers(explainer: Explainer, copied: _Copies, target: Any, most: int) -> Iterator[tuple[int, Explanation]]:
    """The explanations of the copies, so many at once."""
    for group, together in copied.groups(most):
        yield group, explainer.explain(together, _repeated(target, group))


class _Sums:
    """Running sums over copies: memory does not grow with their number."""

    def __init__(self) -> None:
        self.maps: list[Tensor] = []
        self.numbers: dict[str, Tensor] = {}
        self.entries: Tensor | int = 0
        self.score: Tensor | None = None
        self.without: int = 0  # scores that are not positive

    def add(self, e: Explanation, group: int) -> None:
        maps = [_summed(R, group) for R in (e.relevance if isinstance(e.relevance, tuple) else (e.relevance,))]
        self.maps = [a + b for a, b in zip(self.maps, maps, strict=True)] if self.maps else maps
        for name, t in _numbers(e.ledger).items():
            self.numbers[name] = self.numbers.get(name, 0) + _summed(t, group)
        if isinstance(e.ledger.by_step, Tensor):  # on a GPU they are asked for later, if at all
            self.entries = self.entries + _by_copy(e.ledger.by_step, group)
        score = _summed(e.score, group)
        self.score = score if self.score is None else self.score + score
        self.without += int((e.score <= 0).sum())

    def mean(
        self, of_x: Explanation, copied: _Copies, later: Callable[[], Tensor], source: Callable[[str], Tensor]
    ) -> Explanation:
        assert self.score is not None
        maps = tuple(R / copied.count for R in self.maps)
        numbers: dict[str, Any] = {name: t / copied.count for name, t in self.numbers.items()}
        entries = self.entries / copied.count if isinstance(self.entries, Tensor) else later
        ledger = replace(of_x.ledger, **numbers, by_step=entries)
        notes = [f"Map, score and ledger are means over {copied.name} of the input."]
        if self.without:
            total = of_x.score.numel() * copied.count
            notes.append(f"{self.without} of {total} scores of copies are not positive and count as 0 in the mean.")
        return replace(
            of_x,
            relevance=maps[0] if len(maps) == 1 else maps,
            score=torch.where(ledger.score > 0, ledger.score, self.score / copied.count),
            ledger=ledger,
            notes=(*notes, *of_x.notes),
            source=source,
            next_class=None,
            seen={},
            mean_of=copied.name,
        )


def _numbers(ledger: Ledger) -> dict[str, Tensor]:
    """The ledger's totals, by name."""
    found = {f.name: getattr(ledger, f.name) for f in fields(ledger) if f.name != "by_step"}
    return {name: t for name, t in found.items() if isinstance(t, Tensor)}


def _summed(t: Tensor, group: int) -> Tensor:
    """The sum over copies of a batch that holds them one after the other."""
    found: Tensor = t.unflatten(0, (group, -1)).sum(0)
    return found


def _by_copy(entries: Tensor, group: int) -> Tensor:
    """The same of a ledger's entries, whose last axis is that of the batch."""
    found: Tensor = entries.unflatten(-1, (group, -1)).sum(-2)
    return found


def _entries(answers: Callable[[], Iterator[tuple[int, Explanation]]]) -> Tensor:
    """The mean of the books of every step, where they were not kept along the way."""
    found = [(group, _by_copy(e.ledger.entries, group)) for group, e in answers()]
    return torch.stack([t for _, t in found]).sum(0) / sum(group for group, _ in found)


def _repeated(target: Any, group: int) -> Any:
    """The target of a batch for a batch of so many copies of it."""

    def one(t: Any) -> Any:
        return t.repeat(group, *[1] * (t.ndim - 1)) if isinstance(t, Tensor) and t.ndim else t

    return pytree.tree_map(one, target)


def _at(explainer: Explainer, copied: _Copies, target: Any, name: str) -> Tensor:
    """The mean relevance at an inner node."""
    found = [explainer.relevance_at(name, together, target) for _, together in copied.groups(1)]
    return torch.stack(found).mean(0)


def _check(copies: int, noise: float, batch: int) -> None:
    for name, value in (("copies", copies), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name}={value!r}: a whole number, at least 1.")
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise={noise!r}: a number from 0 on, such as 0.1, a tenth of the range of the input.")
