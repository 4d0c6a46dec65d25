"""A trained network with what belongs to it: preprocessing, domain and class names.

    photograph ──► Pretrained.read ──► Explainer ──► Pretrained.attach_photos: the answer with pictures and class names

A photograph is a file, a Pillow image or an array of pixels (uint8). A tensor, or an array of real numbers with four
axes, is an input that is preprocessed already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.engine.inputs import ModelSource, first_float
from deeptaylor.engine.place_target import PlaceTarget
from deeptaylor.engine.target import Logit, Margin, Negative, Probability, Unit
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.graph.modes import eval_mode
from deeptaylor.models.networks.preprocessing import Preparation, Scaling
from deeptaylor.rules import Rule
from deeptaylor.settings import AUTO
from deeptaylor.support.class_names import class_number, to_probabilities
from deeptaylor.support.explainer_cache import ExplainerCache
from deeptaylor.support.tables import read_rows

__all__ = ["Photo", "Prediction", "Pretrained"]

_Answer = TypeVar("_Answer", bound=Explanation)
Photo = str | os.PathLike[str] | Image.Image | npt.NDArray[np.uint8]


class PhotoSource(NamedTuple):
    """A photograph as the network saw it, and where to read it again to draw it: the original is large."""

    picture: npt.NDArray[np.uint8]
    photo: str | os.PathLike[str] | Image.Image


@dataclass(frozen=True)
class Prediction:
    """A class and its probability; None if the model has no probabilities, only scores."""

    name: str
    probability: float | None
    index: int


@dataclass(frozen=True)
class Pretrained(ModelSource):
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
    probabilities: Callable[[Tensor], Tensor] | None = to_probabilities  # of outputs; None: they are scores alone
    explainer_cache: ExplainerCache[Explainer] = field(
        init=False, repr=False, compare=False, default_factory=partial(ExplainerCache, 1)
    )

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
        preset: str | None = None,
        reference: Any = None,
        background: Any = None,
        rules: Mapping[str, Rule] | None = None,
        first: Rule | None = None,
        bias: str | None = None,
        max_pool: str | None = None,
        local: bool | None = None,
        output: int | str | None = None,
    ) -> Explainer:
        """Return an `Explainer` for many photographs: it captures once, and knows names and preparation.

        Settings are those of `Explainer`. The network is captured with the first input that is explained.

        >>> import deeptaylor as dt
        >>> p = Pretrained(nn.Linear(2, 2), ("cat", "dog"), None, domain=dt.NonNegative())
        >>> p.explainer().explain([[1.0, 2.0]], "dog").relevance.shape
        torch.Size([1, 2])
        """
        return Explainer(
            self, method=method, preset=preset, reference=reference, background=background, rules=rules, first=first,
            bias=bias, max_pool=max_pool, local=local, output=output,
        )  # fmt: skip

    def class_index(self, text: str) -> int:
        """Return the number of a class by its number or its name; raise an error with similar names."""
        return class_number(self.class_names, text)

    def read(self, x: Any, like: Tensor | None = None) -> tuple[Any, tuple[Any, ...]]:
        """Return photographs as inputs, with the dtype and device of `like`, and the source of each photograph.

        Rows of a table are scaled, tensors too, and returned with the names of their columns. Anything else is an input
        already and is returned unchanged.
        """
        if self.feature_names is not None:
            rows, names = read_rows(x, self.feature_names)
            return rows if self.scaling is None else self.scaling(rows, like), names
        some = list(x) if isinstance(x, (list, tuple)) or (_is_pixels(x) and x.ndim == 4) else [x]
        if isinstance(x, (list, tuple)) and not some:
            raise InputError("No photograph was given." if self.preparation is not None else "No input was given.")
        if self.preparation is None and not any(isinstance(one, (str, os.PathLike, Image.Image)) for one in some):
            return x, ()
        if all(_is_preprocessed(one) for one in some):
            return _to_batch(some) if isinstance(x, (list, tuple)) else x, ()
        photos = [_to_photo(photo) for photo in some]
        prepared = [self.preprocess(photo) for photo in photos]
        inputs = torch.cat([p[0] for p in prepared])
        seen = tuple(
            PhotoSource(np.asarray(picture), photo) for photo, (_, picture) in zip(photos, prepared, strict=True)
        )
        return inputs if like is None else inputs.to(like), seen

    def attach_photos(  # type: ignore[override]  # every answer is an explanation
        self, answer: _Answer, x: Any, sources: tuple[Any, ...], target: Any
    ) -> _Answer:
        """Return an explanation with its photographs, as `read` returned them, and the names of its classes."""
        if self.feature_names is not None:
            answer, sources = replace(answer, feature_names=sources), ()
        if not sources:
            if self.class_names is None or not isinstance(x, Tensor):
                return answer
            titles, probabilities = _name_classes(self, x, target)
            return replace(answer, titles=titles, probabilities=probabilities, class_names=self.class_names)
        assert self.preparation is not None
        titles, probabilities = _name_classes(self, x, target)
        return replace(
            answer,
            titles=titles,
            probabilities=probabilities,
            photos=tuple(s.picture for s in sources),
            originals=tuple(partial(self.preparation.original, s.photo, s.picture) for s in sources),
            class_names=self.class_names or (),
        )

    def random_input(self) -> Tensor | None:
        """Return a random input from the domain, shaped like a photograph; None if inputs are not photographs."""
        if self.preparation is None:
            return None
        drawn = torch.rand(1, *self.preparation.shape, generator=torch.Generator().manual_seed(0))
        low, high = self.preparation.domain.bounds(drawn)
        return low + (high - low) * drawn

    def preprocess(self, photo: str | os.PathLike[str] | Image.Image) -> tuple[Tensor, Image.Image]:
        """Return the input (1, channels, height, width) for a photograph, and the part that the network sees."""
        if self.preparation is None:
            raise InputError("This network has a domain but no preparation: its inputs are not photographs.")
        return self.preparation(photo)

    def output(self, x: Tensor) -> Tensor:
        """Return the output in eval mode: (batch, classes), or one number per sample.

        ``x`` is prepared already, but rows of a table are in their own units.
        """
        return self.run_network(x if self.scaling is None else self.scaling(x))

    def run_network(self, x: Tensor) -> Tensor:
        """Return the output for inputs that `read` returned."""
        with eval_mode(self.network), torch.no_grad():
            output: Tensor = self.network(x)
        return output

    def top(self, x: Any, k: int = 5) -> list[list[Prediction]]:
        """Return the k most probable classes of each sample, or photograph, or row of a table; the first one first.

        Where the model has no probabilities, as a LinearSVC, they are those of the highest scores.
        """
        like = first_float(self.network.parameters())
        inputs = torch.as_tensor(self.read(x, like)[0])
        return self.rank_classes(self.run_network(inputs if like is None else inputs.to(like)), k)

    def rank_classes(self, output: Tensor, k: int = 5) -> list[list[Prediction]]:
        """Return the k most probable classes of each sample from the output of the network."""
        if output.ndim != 2:
            raise InputError(
                f"Classes need an output of shape (batch, classes); that of the network is {tuple(output.shape)}."
            )
        self.check_outputs(output.shape)
        likely = None if self.probabilities is None else self.probabilities(output)
        value, index = (output if likely is None else likely).topk(min(k, output.shape[1]))
        return [
            [Prediction(self.class_name(i), None if likely is None else v, i) for v, i in zip(vs, indices, strict=True)]
            for vs, indices in zip(value.tolist(), index.tolist(), strict=True)
        ]

    def check_outputs(self, shape: Sequence[int]) -> None:
        """Raise if an output of this shape does not have as many classes as there are names."""
        if self.class_names is not None and len(shape) == 2 and len(self.class_names) != shape[1]:
            raise InputError(f"The network has {shape[1]} outputs, but there are {len(self.class_names)} class names.")

    def class_name(self, index: int) -> str:
        """Return the name of a class; its number if classes have no names."""
        return self.class_names[index] if self.class_names is not None else f"class {index}"


def _is_pixels(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.uint8


def _is_preprocessed(x: Any) -> bool:
    return isinstance(x, (Tensor, Mapping)) or (isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim == 4)


def _to_batch(inputs: Sequence[Any]) -> Tensor:
    """Join preprocessed inputs, each of one sample or several, to one batch."""
    parts = [torch.as_tensor(x) for x in inputs]
    shapes = list(dict.fromkeys(tuple(x.shape[1:]) for x in parts))
    if len(shapes) > 1:
        raise InputError(
            f"The inputs of one batch have one shape; these have {', '.join(map(str, shapes))}. Give photographs, "
            "which are prepared alike, or bring them to one shape."
        )
    return torch.cat(parts)


def _to_photo(photo: Any) -> str | os.PathLike[str] | Image.Image:
    if isinstance(photo, (str, os.PathLike, Image.Image)):
        return photo
    if not isinstance(photo, np.ndarray):
        raise InputError(
            f"A photograph is a file, a Pillow image or an array of pixels, got {type(photo).__name__}; an input that "
            "is prepared already is a torch tensor, or an array of real numbers."
        )
    shape = photo.shape
    if photo.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or not photo.size:
        raise InputError(
            f"An array of pixels is uint8, 0 to 255, of shape (height, width), (…, 3) or (…, 4); got {photo.dtype} "
            f"{shape}. White is not guessed. (An array of real numbers is a batch that is prepared already, with "
            "four axes: samples, channels, height, width.)"
        )
    return Image.fromarray(np.ascontiguousarray(photo))


class _Named(NamedTuple):
    """What is explained of each sample: the names, and the probabilities where these are classes."""

    titles: tuple[tuple[str, ...], ...] = ()
    probabilities: tuple[tuple[float, ...], ...] = ()


def _name_classes(model: Pretrained, x: Tensor, target: Any) -> _Named:
    """Name the explained classes of each sample; return no names if there are none for them."""
    if isinstance(target, PlaceTarget):
        named = [] if target.target is None else [model.class_name(int(target.target))]
        return _Named((tuple(named),) * len(x)) if named else _Named()
    if isinstance(target, Unit):
        return _Named((target.names,) * len(x))
    if isinstance(target, Margin):
        ends = [_name_classes(model, x, end).titles for end in (target.target, target.other) if end is not None]
        if len(ends) < 2 or not all(ends):
            return _Named()
        return _Named(tuple((f"{a[0]} rather than {b[0]}",) for a, b in zip(*ends, strict=True)))
    if isinstance(target, (Logit, Probability)):
        return _name_classes(model, x, target.target)
    if isinstance(target, Negative):
        found = _name_classes(model, x, target.target).titles
        return _Named(tuple((f"the negative of {name}",) for (name,) in found))
    like = first_float(model.network.parameters())
    output = model.run_network(x if like is None else x.to(like))
    if output.ndim != 2:
        return _Named()
    classes = output.argmax(1) if target is None else target
    if isinstance(classes, int):
        classes = torch.full((len(x),), classes)
    if not isinstance(classes, Tensor) or classes.is_floating_point():
        return _Named()
    index = classes.reshape(len(x), -1).to(output.device).long()
    rows: list[list[int]] = index.tolist()
    titles = tuple(tuple(model.class_name(k) for k in row) for row in rows)
    if model.probabilities is None or output.shape[1] < 2:
        return _Named(titles)
    return _Named(titles, tuple(map(tuple, model.probabilities(output).gather(1, index).tolist())))
