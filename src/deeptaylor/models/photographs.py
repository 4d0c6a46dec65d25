"""Photographs and a trained network: `dt.explain` takes both as they are.

    photograph ──► Pretrained.preprocess ──► Explainer ──► Explanation, with what the network saw and the classes' names

A photograph is a file, a Pillow image or an array of pixels (uint8). A tensor is an input that is prepared already.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explainer import explain as explain_inputs
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.run.contrast import POWER

__all__ = ["Photo", "class_index", "contrast", "explain"]

_Answer = TypeVar("_Answer", bound=Explanation)
Photo = str | os.PathLike[str] | Image.Image | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Seen:
    """What the network saw of a photograph, and the photograph: to be read again when it is drawn, for it is large."""

    picture: npt.NDArray[np.uint8]
    photo: str | os.PathLike[str] | Image.Image


def explain(
    model: nn.Module | Pretrained,
    x: Any,
    target: Any = None,
    domain: Domain | Sequence[Domain] | None = None,
    **kw: Any,
) -> Explanation:
    """Capture, plan and explain in one call; for many inputs keep an Explainer.

    With a `Pretrained`, ``x`` may be a photograph (a file, a Pillow image, an array of uint8) or a list of them, and
    ``target`` the name of a class. More settings are those of `Explainer`: rules, first, bias, max_pool.
    """
    if not isinstance(model, Pretrained):
        return explain_inputs(model, x, target, domain, **kw)
    target = _numbered(model, target)
    explainer, inputs, seen = _prepared(model, x, domain, kw)
    return _shown(model, explainer.explain(inputs, target), inputs, seen, target)


def contrast(
    model: nn.Module | Pretrained,
    x: Any,
    target: Any = None,
    against: Any = None,
    power: float = POWER,
    domain: Domain | Sequence[Domain] | None = None,
    **kw: Any,
) -> Contrast:
    """What sets a class apart from its rivals, in one call (see `Explainer.contrast`); classes may be names.

    With a `Pretrained`, ``x`` may be photographs, as for `explain`.
    """
    if not isinstance(model, Pretrained):
        return Explainer(model, x, domain, **kw).contrast(x, target, against, power)
    target, against = _numbered(model, target), _numbered(model, against)
    explainer, inputs, seen = _prepared(model, x, domain, kw)
    return _shown(model, explainer.contrast(inputs, target, against, power), inputs, seen, target)


def _numbered(model: Pretrained, named: Any) -> Any:
    """Classes by number where they were given by name: one, several, or with weights."""
    if isinstance(named, str):
        return class_index(model, named)
    if isinstance(named, Mapping):
        return {_numbered(model, name): weight for name, weight in named.items()}
    return [_numbered(model, name) for name in named] if isinstance(named, (list, tuple)) else named


def _prepared(
    model: Pretrained, x: Any, domain: Any, settings: Mapping[str, Any]
) -> tuple[Explainer, Tensor, tuple[_Seen, ...]]:
    """An explainer, its inputs, and of photographs what the network sees."""
    if domain is not None:
        raise InputError("The domain belongs to the Pretrained already; leave it out.")
    if isinstance(x, Tensor):
        return Explainer(model.network, x, model.domain, **settings), x, ()
    photos = [_as_photo(photo) for photo in (x if isinstance(x, (list, tuple)) else [x])]
    if not photos:
        raise InputError("No photograph was given.")
    prepared = [model.preprocess(photo) for photo in photos]
    inputs = torch.cat([p[0] for p in prepared])
    place = next((w for w in model.network.parameters() if w.is_floating_point()), None)
    inputs = inputs if place is None else inputs.to(place.device)
    seen = tuple(_Seen(np.asarray(picture), photo) for photo, (_, picture) in zip(photos, prepared, strict=True))
    return Explainer(model.network, inputs, model.domain, **settings), inputs, seen


def _shown(model: Pretrained, answer: _Answer, inputs: Tensor, seen: tuple[_Seen, ...], target: Any) -> _Answer:
    if not seen:
        return answer
    assert model.preparation is not None
    return replace(
        answer,
        photos=tuple(s.picture for s in seen),
        originals=tuple(partial(model.preparation.original, s.photo, s.picture) for s in seen),
        titles=_titles(model, inputs, target),
        class_names=model.class_names or (),
    )


def class_index(model: Pretrained, text: str) -> int:
    """The number of a class, by its number or its name (upper or lower case); or an error with names like it.

    >>> from deeptaylor.domain import Real
    >>> class_index(Pretrained(nn.Identity(), ("cat", "dog"), None, domain=Real()), "Dog")
    1
    """
    text = text.strip()
    if text.isdecimal():
        index = int(text)
        if model.class_names is not None and index >= len(model.class_names):
            raise TargetError(
                f"There is no class {index}: the network has {len(model.class_names)} classes, from 0 on."
            )
        return index
    if model.class_names is None:
        raise TargetError(f"The classes of this network have no names; give the number of the class, not {text!r}.")
    names = [name.casefold() for name in model.class_names]
    found = [k for k, name in enumerate(names) if name == text.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(f"{len(found)} classes are called {text!r}; give a number: {', '.join(map(str, found))}.")
    asked = text.casefold()
    near = [name for name in names if asked in re.split(r"[\W_]+", name)]  # "cat": tabby cat, tiger cat, …
    near += difflib.get_close_matches(asked, names, n=4, cutoff=0.6)
    near = list(dict.fromkeys(near + [name for name in names if asked in name]))[:8]
    hint = "".join(f"\n  {names.index(name)}  {model.class_names[names.index(name)]}" for name in near)
    raise TargetError(f"No class is called {text!r}." + (f" Names like it:{hint}" if near else ""))


def _as_photo(photo: Any) -> str | os.PathLike[str] | Image.Image:
    if isinstance(photo, (str, os.PathLike, Image.Image)):
        return photo
    if not isinstance(photo, np.ndarray):
        raise InputError(
            f"A photograph is a file, a Pillow image or an array of pixels, got {type(photo).__name__}; an input that "
            "is prepared already is a torch tensor."
        )
    shape = photo.shape
    if photo.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or not photo.size:
        raise InputError(
            f"An array of pixels is uint8, 0 to 255, of shape (height, width), (…, 3) or (…, 4); got {photo.dtype} "
            f"{shape}. Its white is not guessed."
        )
    return Image.fromarray(np.ascontiguousarray(photo))


def _titles(model: Pretrained, x: Tensor, target: Any) -> tuple[tuple[str, ...], ...]:
    """What is explained of each sample, in words; none where there are no words for it."""
    output = model.output(x)
    if output.ndim != 2:
        return ()
    classes = output.argmax(1) if target is None else target
    if isinstance(classes, int):
        classes = torch.full((len(x),), classes)
    if not isinstance(classes, Tensor) or classes.is_floating_point():
        return ()
    rows: list[list[int]] = classes.reshape(len(x), -1).tolist()
    return tuple(tuple(model.class_name(index) for index in row) for row in rows)
