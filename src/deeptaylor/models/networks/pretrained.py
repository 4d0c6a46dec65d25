"""A trained network as one object with what belongs to it: how photographs are prepared, its domain, class names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.models import photographs
from deeptaylor.models.networks.preparation import Preparation, Scaling
from deeptaylor.rules import Rule
from deeptaylor.run.inputs import first_float
from deeptaylor.secant.front_door import AUTO
from deeptaylor.support.kept import Kept

__all__ = ["Pretrained", "Recognised"]


@dataclass(frozen=True)
class Recognised:
    """A class, and how probable the network holds it to be; None if the model has no probabilities, only scores."""

    name: str
    probability: float | None
    index: int


def _probabilities(output: Tensor) -> Tensor:
    """Softmax of logits; outputs that are a distribution already, after a softmax inside the network, stay."""
    sums = output.sum(dim=1)
    if bool((output >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
        return output
    return output.softmax(dim=1)


@dataclass(frozen=True)
class Pretrained:
    """A trained network, as `dt.load` returns it. Its domain follows from the preparation; it is given where inputs are
    no photographs.

    p.explainer().explain("photo.jpg", "zebra") explains a photograph; p.preprocess("photo.jpg") is its input.
    """

    network: nn.Module
    class_names: tuple[str, ...] | None
    preparation: Preparation | None
    domain: Domain = None  # type: ignore[assignment]  # set below, so that whoever reads it finds a domain
    notes: tuple[str, ...] = ()  # what was found out about the file, such as its hash
    feature_names: tuple[str, ...] | None = None  # of the columns, where the input is a table's row
    scaling: Scaling | None = None  # of the columns: rows are given in their own units, the network takes scaled ones
    probabilities: Callable[[Tensor], Tensor] | None = _probabilities  # of outputs; None: they are scores alone
    kept: Kept[Explainer] = field(init=False, repr=False, compare=False, default_factory=partial(Kept, 1))

    def __post_init__(self) -> None:
        if (self.preparation is None) == (self.domain is None):
            raise InputError(
                "Pretrained: give a preparation, from which the domain follows, or a domain where inputs are no "
                "photographs; not both."
            )
        if self.preparation is not None:
            object.__setattr__(self, "domain", self.preparation.domain)
        if self.class_names is not None:
            object.__setattr__(self, "class_names", tuple(self.class_names))

    def __repr__(self) -> str:
        classes = "classes without names" if self.class_names is None else f"{len(self.class_names)} classes"
        inputs = f"no photographs, domain {self.domain}" if self.preparation is None else repr(self.preparation)
        numbers = sum(w.numel() for w in self.network.parameters())
        notes = f"\n  {'; '.join(self.notes)}" if self.notes else ""
        return f"<Pretrained {type(self.network).__name__}: {numbers:,} parameters, {classes}\n  {inputs}{notes}>"

    def explainer(
        self,
        *,
        method: str = AUTO,
        reference: Any = None,
        background: Any = None,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str | None = None,
        max_pool: str | None = None,
        local: bool | None = None,
        output: int | str | None = None,
    ) -> Explainer:
        """An `Explainer` of this network, for many photographs: it captures once, and knows names and preparation.

        Settings are those of `Explainer`. The network is captured with the first input that is explained.

        >>> import deeptaylor as dt
        >>> p = Pretrained(nn.Linear(2, 2), ("cat", "dog"), None, domain=dt.NonNegative())
        >>> p.explainer().explain([[1.0, 2.0]], "dog").relevance.shape
        torch.Size([1, 2])
        """
        return Explainer(
            self, method=method, reference=reference, background=background, rules=rules, first=first, bias=bias,
            max_pool=max_pool, local=local, output=output,
        )  # fmt: skip

    def class_index(self, text: str) -> int:
        """The number of a class, by its number or its name; or an error with names like it."""
        return photographs.class_index(self, text)

    def read(self, x: Any, like: Tensor | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Photographs as inputs (where a tensor is, and of its type), with what the network sees of them.

        Rows of a table are scaled, tensors too. Anything else is an input already, and stays what it is.
        """
        return photographs.read(self, x, like)

    def shown(self, answer: Any, x: Any, seen: tuple[Any, ...], target: Any) -> Any:
        """An explanation with the photographs that it is of, and the names of the classes."""
        return photographs.shown(self, answer, x, seen, target)

    def blank(self) -> Tensor | None:
        """An input like photographs make, of random numbers from the domain; None where inputs are no photographs."""
        if self.preparation is None:
            return None
        drawn = torch.rand(1, *self.preparation.shape, generator=torch.Generator().manual_seed(0))
        low, high = self.preparation.domain.bounds(drawn)
        return low + (high - low) * drawn

    def preprocess(self, photo: str | os.PathLike[str] | Image.Image) -> tuple[Tensor, Image.Image]:
        """The input (1, channels, height, width) for a photograph, and the part of it that the network sees."""
        if self.preparation is None:
            raise InputError(
                "This network came with a domain and without a preparation: its inputs are no photographs."
            )
        return self.preparation(photo)

    def output(self, x: Tensor) -> Tensor:
        """What the network says, in eval mode: (batch, classes), or one number per sample.

        ``x`` is prepared already, but rows of a table are in their own units.
        """
        return self.answer(x if self.scaling is None else self.scaling(x))

    def answer(self, x: Tensor) -> Tensor:
        """The same of inputs that `read` returned."""
        with eval_mode(self.network), torch.no_grad():
            output: Tensor = self.network(x)
        return output

    def top(self, x: Any, k: int = 5) -> list[list[Recognised]]:
        """Return the k most probable classes of each sample, or photograph, or row of a table; the first one first.

        Where the model has no probabilities, as a LinearSVC, they are those of the highest scores.
        """
        like = first_float(self.network.parameters())
        inputs = torch.as_tensor(self.read(x, like)[0])
        return self.recognised(self.answer(inputs if like is None else inputs.to(like)), k)

    def recognised(self, output: Tensor, k: int = 5) -> list[list[Recognised]]:
        """The same, where what the network says (`output`) is known already."""
        if output.ndim != 2:
            raise InputError(
                f"The network's output has shape {tuple(output.shape)}; classes are told from (batch, classes)."
            )
        self.check_outputs(output.shape)
        likely = None if self.probabilities is None else self.probabilities(output)
        value, index = (output if likely is None else likely).topk(min(k, output.shape[1]))
        return [
            [Recognised(self.class_name(i), None if likely is None else v, i) for v, i in zip(vs, indices, strict=True)]
            for vs, indices in zip(value.tolist(), index.tolist(), strict=True)
        ]

    def check_outputs(self, shape: Sequence[int]) -> None:
        """Refuse names of classes that an output of this shape does not have."""
        if self.class_names is not None and len(shape) == 2 and len(self.class_names) != shape[1]:
            raise InputError(f"The network has {shape[1]} outputs, but there are {len(self.class_names)} class names.")

    def class_name(self, index: int) -> str:
        """What a class is called; its number where classes have no names."""
        return self.class_names[index] if self.class_names is not None else f"class {index}"
