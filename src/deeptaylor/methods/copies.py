"""The mean map over noisy or altered copies of the input, with the mean of their ledgers.

x ──copy k──► x_k ──Explainer──► R_k, f_k        R = (1/n) Σ R_k        f = (1/n) Σ max(0, f_k)

The ledger of each copy adds up to max(0, f_k). Sums are linear, so the mean ledger adds up to the mean score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeptaylor.domain import Box, Domain, find_bounds
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.ledger import Ledger

__all__ = ["average_copies"]

Alter = Callable[[Any, int], Any]
_SEED_STEP = 1_000_003  # distance between the random seeds of two calls: larger than any number of copies


def average_copies(
    explainer: Explainer, x: Any, target: Any = None, *, copies: int = 16, noise: float = 0.1,
    alter: Alter | None = None, seed: int = 0, batch: int = 16,
) -> Explanation:  # fmt: skip
    """Return the mean map over copies of an input; score and ledger are means, too, so conservation holds.

    x, target   as for `explainer.explain`; None: the top class of x itself. If a margin leaves a class open, each copy
                chooses its own
    copies      how many; x itself is not among them
    noise       standard deviation of Gaussian noise, as a share of the range of the input's box; if the domain is
                unbounded, of the range of each sample's values. Values outside the domain are clipped
    alter       replaces the noise: a function of the inputs, as tensors, and the number of the copy. It must be
                deterministic and must not move objects, because maps are averaged pixel by pixel
    seed        of the noise
    batch       how many inputs are explained at once; it affects only time and memory

    A copy whose score is not positive has an empty map and counts as 0 in the mean score. InputError is raised for
    settings out of range, and for inputs of integers without `alter`.

    >>> import torch, deeptaylor as dt
    >>> explainer = dt.Explainer(torch.nn.Linear(2, 3), domain=dt.Box(0, 1))
    >>> e = dt.average_copies(explainer, [[0.2, 0.4]], 0, copies=4)
    >>> e.relevance.shape, e.mean_of
    (torch.Size([1, 2]), '4 noisy copies')
    """
    _check_arguments(copies, noise, batch)
    of_x = explainer.explain(x, target)
    inputs = pytree.tree_leaves(explainer.captured.read(x)[0])
    asked = of_x.classes if target is None else explainer.target_reader.read(target, inputs[0])
    copies_of_x = _Copies(tuple(inputs), explainer.settings.domains, copies, noise, alter, seed)
    if alter is None:
        copies_of_x.check()
    answers = partial(_explain_copies, explainer, copies_of_x, asked, max(1, batch // len(inputs[0])))
    sums = _RunningSums()
    for group, e in answers():
        sums.add(e, group)
    return sums.mean(
        of_x, copies_of_x, partial(_mean_entries, answers), partial(_relevance_at, explainer, copies_of_x, asked)
    )


@dataclass(frozen=True)
class _Copies:
    """The copies of some inputs, each computed when it is needed."""

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
                "These inputs are integers, to which noise cannot be added. Give alter=, a function that makes copies."
            )

    def groups(self, most: int) -> Iterator[tuple[int, Any]]:
        """Yield batches of at most `most` copies, each with the number of copies in it."""
        for start in range(0, self.count, most):
            numbers = range(start, min(start + most, self.count))
            parts = [self.copy(k) for k in numbers]
            together = tuple(torch.cat(ts) for ts in zip(*parts, strict=True))
            yield len(numbers), together[0] if len(together) == 1 else together

    def copy(self, k: int) -> tuple[Tensor, ...]:
        if self.alter is not None:
            return self._alter_copy(self.alter, k)
        random = torch.Generator().manual_seed(self.seed * _SEED_STEP + k)
        return tuple(self._add_noise(x, d, random) for x, d in zip(self.inputs, self.domains, strict=True))

    def _alter_copy(self, alter: Alter, k: int) -> tuple[Tensor, ...]:
        one = len(self.inputs) == 1
        changed = alter(self.inputs[0].clone() if one else tuple(x.clone() for x in self.inputs), k)
        parts = (changed,) if one else tuple(changed)
        shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in parts]
        if shapes != [tuple(x.shape) for x in self.inputs]:
            wanted = ", ".join(str(tuple(x.shape)) for x in self.inputs)
            raise InputError(f"alter must return tensors shaped like the inputs, {wanted}; got {shapes}.")
        return parts

    def _add_noise(self, x: Tensor, domain: Domain, random: torch.Generator) -> Tensor:
        if not x.is_floating_point():
            return x
        low, high = find_bounds(domain, x)
        drawn = torch.randn(x.shape, generator=random, dtype=torch.promote_types(x.dtype, torch.float32))
        return (x + self.noise * (_find_range(x, domain) * drawn.to(x))).clamp(low, high)


def _find_range(x: Tensor, domain: Domain) -> Tensor:
    """Return the range of the box, or of each sample's values if the domain is unbounded."""
    if isinstance(domain, Box):
        low, high = domain.bounds(x)
        return high - low
    flat = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return (flat.amax(1) - flat.amin(1)).reshape(-1, *[1] * (x.ndim - 1))


def _explain_copies(
    explainer: Explainer, copies_of_x: _Copies, target: Any, most: int
) -> Iterator[tuple[int, Explanation]]:
    """Yield the explanations of the copies, batch by batch."""
    for group, together in copies_of_x.groups(most):
        yield group, explainer.explain(together, _repeat_target(target, group))


class _RunningSums:
    """Running sums over copies, so that memory does not grow with their number."""

    def __init__(self) -> None:
        self.maps: list[Tensor] = []
        self.numbers: dict[str, Tensor] = {}
        self.entries: Tensor | int = 0
        self.score: Tensor | None = None
        self.unexplained: int = 0  # number of scores that are not positive

    def add(self, e: Explanation, group: int) -> None:
        maps = [_sum_copies(R, group) for R in (e.relevance if isinstance(e.relevance, tuple) else (e.relevance,))]
        self.maps = [a + b for a, b in zip(self.maps, maps, strict=True)] if self.maps else maps
        for name, t in _list_totals(e.ledger).items():
            self.numbers[name] = self.numbers.get(name, 0) + _sum_copies(t, group)
        if isinstance(e.ledger.by_step, Tensor):  # on a GPU they are computed later, if at all
            self.entries = self.entries + _sum_entries(e.ledger.by_step, group)
        score = _sum_copies(e.score, group)
        self.score = score if self.score is None else self.score + score
        self.unexplained += int((e.score <= 0).sum())

    def mean(
        self, of_x: Explanation, copies_of_x: _Copies, later: Callable[[], Tensor], source: Callable[[str], Tensor]
    ) -> Explanation:
        assert self.score is not None
        maps = tuple(R / copies_of_x.count for R in self.maps)
        numbers: dict[str, Any] = {name: t / copies_of_x.count for name, t in self.numbers.items()}
        entries = self.entries / copies_of_x.count if isinstance(self.entries, Tensor) else later
        ledger = replace(of_x.ledger, **numbers, by_step=entries)
        notes = [f"Map, score and ledger are means over {copies_of_x.name} of the input."]
        if self.unexplained:
            total = of_x.score.numel() * copies_of_x.count
            notes.append(f"{self.unexplained} of {total} scores of copies are not positive and count as 0 in the mean.")
        return replace(
            of_x,
            relevance=maps[0] if len(maps) == 1 else maps,
            score=torch.where(ledger.score > 0, ledger.score, self.score / copies_of_x.count),
            ledger=ledger,
            notes=(*notes, *of_x.notes),
            source=source,
            next_class=None,
            seen={},
            mean_of=copies_of_x.name,
        )


def _list_totals(ledger: Ledger) -> dict[str, Tensor]:
    """Return the ledger's totals by name."""
    found = {f.name: getattr(ledger, f.name) for f in fields(ledger) if f.name != "by_step"}
    return {name: t for name, t in found.items() if isinstance(t, Tensor)}


def _sum_copies(t: Tensor, group: int) -> Tensor:
    """Return the sum over copies, which follow one another in the batch."""
    found: Tensor = t.unflatten(0, (group, -1)).sum(0)
    return found


def _sum_entries(entries: Tensor, group: int) -> Tensor:
    """Return the sum over copies of a ledger's entries, whose last axis is the batch."""
    found: Tensor = entries.unflatten(-1, (group, -1)).sum(-2)
    return found


def _mean_entries(answers: Callable[[], Iterator[tuple[int, Explanation]]]) -> Tensor:
    """Return the mean ledger entries of every step, computed on demand."""
    found = [(group, _sum_entries(e.ledger.entries, group)) for group, e in answers()]
    return torch.stack([t for _, t in found]).sum(0) / sum(group for group, _ in found)


def _repeat_target(target: Any, group: int) -> Any:
    """Return the target of a batch, repeated for several copies of it."""

    def one(t: Any) -> Any:
        return t.repeat(group, *[1] * (t.ndim - 1)) if isinstance(t, Tensor) and t.ndim else t

    return pytree.tree_map(one, target)


def _relevance_at(explainer: Explainer, copies_of_x: _Copies, target: Any, name: str) -> Tensor:
    """Return the mean relevance at an inner node."""
    found = [explainer.relevance_at(name, together, target) for _, together in copies_of_x.groups(1)]
    return torch.stack(found).mean(0)


def _check_arguments(copies: int, noise: float, batch: int) -> None:
    for name, value in (("copies", copies), ("batch", batch)):
        if value < 1:
            raise InputError(f"{name}={value!r}: it must be a whole number, at least 1.")
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise={noise!r}: it must be at least 0, such as 0.1 for a tenth of the input's range.")
