"""Photographs and a trained network: `dt.explain`, and every explainer of a `Pretrained`, takes both as they are.

    photograph ──► Pretrained.preprocess ──► Explainer ──► Explanation, with what the network saw and the classes' names

A photograph is a file, a Pillow image or an array of pixels (uint8). A tensor, or an array of real numbers, is an input
that is prepared already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.domain import Domain
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.rules import Rule
from deeptaylor.run.contrast import POWER
from deeptaylor.run.inputs import first_float
from deeptaylor.run.target import Logit, Margin, Negative, Probability
from deeptaylor.run.unit import Unit
from deeptaylor.secant.between import Between
from deeptaylor.secant.front_door import AUTO, SECANT
from deeptaylor.support.class_names import class_number
from deeptaylor.support.kept import Kept
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.model import TextModel

if TYPE_CHECKING:
    from deeptaylor.models.networks.pretrained import Pretrained

__all__ = ["Photo", "class_index", "contrast", "explain", "read", "shown", "similarity"]

_OF_RULES = ("rules", "first", "bias", "max_pool", "local")
_Answer = TypeVar("_Answer", bound=Explanation)
Photo = str | os.PathLike[str] | Image.Image | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Seen:
    """What the network saw of a photograph, and the photograph: to be read again when it is drawn, for it is large."""

    picture: npt.NDArray[np.uint8]
    photo: str | os.PathLike[str] | Image.Image


@overload
def explain(
    model: TextModel, x: Any, target: Any = None, *, continuation: Any = None, against: Any = None,
    method: str | None = None, reference: Any = None,
) -> TextExplanation: ...  # fmt: skip


@overload
def explain(
    model: nn.Module | Pretrained, x: Any, target: Any = None, domain: Domain | Sequence[Domain] | None = None, *,
    rules: Mapping[str, Rule] | None = None, first: Rule | None = None, bias: str | None = None,
    max_pool: str | None = None, local: bool | None = None, output: int | str | None = None,
    method: str | None = None, reference: Any = None, background: Any = None,
) -> Explanation: ...  # fmt: skip


def explain(
    model: nn.Module | Pretrained | TextModel,
    x: Any,
    target: Any = None,
    domain: Domain | Sequence[Domain] | None = None,
    *,
    rules: Mapping[str, Rule] | None = None,
    first: Rule | None = None,
    bias: str | None = None,
    max_pool: str | None = None,
    local: bool | None = None,
    output: int | str | None = None,
    continuation: Any = None,
    against: Any = None,
    method: str | None = None,
    reference: Any = None,
    background: Any = None,
) -> Explanation | TextExplanation:
    """Capture, plan and explain in one call; for many inputs keep an `Explainer`, which captures once.

    With a `Pretrained`, ``x`` may be a photograph (a file, a Pillow image, an array of uint8) or a list of them, and
    ``target`` the name of a class; it keeps what was captured last. Inputs and targets are those of
    `Explainer.explain`, the settings those of `Explainer`. With a `TextModel`, ``x`` is a text, a pair of texts or a
    list of them, and the settings are those of `TextModel.explain`: continuation, against, method, reference.

    ``method``, ``reference`` and ``background`` are those of `Explainer`; the answer says which method it is and why.
    With a model of scikit-learn, ``x`` is a row of its table or several, and ``background`` is data such as X_train:
    unless another method is named, the answer is what took the score from that of the mean row to that of x.

    >>> import torch, deeptaylor as dt
    >>> dt.explain(torch.nn.Linear(2, 3), [[1.0, 2.0]], target=0, domain=dt.NonNegative()).relevance.shape
    torch.Size([1, 2])
    """
    if isinstance(model, TextModel):
        if domain is not None or rules or first is not None:
            raise InputError("Domain and rules are for other networks; one that reads texts is told its method=.")
        if background is not None:
            raise InputError("background= is for tables; a text is compared with reference=, see dt.TextExplainer.")
        return model.explain(
            x, target, continuation=continuation, against=against, method=method, reference=reference
        )  # fmt: skip
    for name, value in (("continuation", continuation), ("against", against)):
        if value is not None:
            raise InputError(f"{name}= is for networks that read texts; load one with its tokenizer: dt.load(…).")
    settings = {
        "method": method or AUTO, "background": background, "rules": rules, "first": first, "bias": bias,
        "max_pool": max_pool, "local": local, "output": output,
    }  # fmt: skip
    if not isinstance(model, nn.Module) and getattr(model, "feature_names", None) is not None:
        return _of_table(model, x, target, settings, domain, reference)
    return _asked(model, domain, settings, lambda explainer: explainer.explain(x, target, reference=reference))


def _of_table(
    model: Pretrained, x: Any, target: Any, settings: dict[str, Any], domain: Any, reference: Any
) -> Explanation:
    """Explain rows of a table: by secants, with the mean row or the reference that is given, unless told otherwise."""
    if settings["method"] not in (AUTO, SECANT):
        return _asked(model, domain, settings, lambda explainer: explainer.explain(x, target, reference=reference))
    by_rules = domain is not None or any(settings[name] is not None for name in _OF_RULES)
    if reference is None or by_rules:
        reference = _mean_row(model, settings["background"], by_rules)
    settings["background"] = None
    return _asked(model, None, settings, lambda explainer: explainer.explain(x, target, reference=reference))


def _mean_row(model: Pretrained, background: Any, by_rules: bool) -> npt.NDArray[np.float64]:
    """The mean row of the data that a row of a table is compared with, in the table's own units."""
    rules = "For a deep Taylor decomposition by rules, say method='deep-taylor'."
    if by_rules:
        raise InputError(f"A row of a table is compared with the mean row, which takes no domain and no rules. {rules}")
    if background is None:
        raise InputError(
            "A row of a table is compared with the mean row of data: give background=X_train, the rows that the model "
            f"was fitted on or others like them, or a row of your own, reference=. {rules}"
        )
    assert model.feature_names is not None
    found, columns = _rows(background, model.feature_names)
    rows = _numbers(found.detach().cpu().numpy() if isinstance(found, Tensor) else found, columns)
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != len(model.feature_names):
        raise InputError(
            f"background= is rows of {len(model.feature_names)} columns, such as X_train; got shape {rows.shape}."
        )
    if not np.isfinite(rows).all():
        k = int((~np.isfinite(rows)).any(0).argmax())
        raise InputError(
            f"background= has values that are missing (NaN) or infinite, the first in column {columns[k]!r}: leave "
            "those rows out, or fill them in as you did to fit the model."
        )
    mean: npt.NDArray[np.float64] = rows.mean(0, keepdims=True)
    return mean


def similarity(model: TextModel, a: Any, b: Any, *, dot: bool = False, reference: Any = None) -> TextExplanation:
    """Why are two texts similar? Which words of both make the embeddings point the same way.

    model       a network that gives embeddings, as dt.load("hf:…") returns it
    a, b        a text each, or lists of as many
    dot         explain the dot product in place of the cosine
    reference   what words are replaced by (see `TextExplainer`)
    """
    if not isinstance(model, TextModel):
        raise InputError(
            f"A similarity is asked of a network with its tokenizer, as dt.load gives it; got {type(model).__name__}."
        )
    return model.similarity(a, b, dot, reference)


def contrast(
    model: nn.Module | Pretrained,
    x: Any,
    target: Any = None,
    against: Any = None,
    power: float = POWER,
    domain: Domain | Sequence[Domain] | None = None,
    *,
    rules: Mapping[str, Rule] | None = None,
    first: Rule | None = None,
    bias: str | None = None,
    max_pool: str | None = None,
    local: bool | None = None,
    output: int | str | None = None,
    method: str = AUTO,
    reference: Any = None,
) -> Contrast | Between:
    """What sets a class apart from its rivals, in one call (see `Explainer.contrast`); classes may be names.

    With a `Pretrained`, ``x`` may be photographs, as for `explain`. The settings are those of `Explainer`.
    """
    if isinstance(model, TextModel):
        raise InputError(
            "A contrast is of networks that read pictures or numbers. What speaks for one class of a text rather than "
            "for another is dt.explain(p, text, target=…, against=…)."
        )
    settings = {
        "method": method, "reference": reference, "rules": rules, "first": first, "bias": bias, "max_pool": max_pool,
        "local": local, "output": output,
    }  # fmt: skip
    return _asked(model, domain, settings, lambda explainer: explainer.contrast(x, target, against, power))


def _asked(
    model: nn.Module | Pretrained, domain: Any, settings: Mapping[str, Any], ask: Callable[[Explainer], _Answer]
) -> _Answer:
    """What an explainer says; that of a `Pretrained` is kept, but with rules or data of one's own, which may change."""
    make = partial(Explainer, model, None, domain, **settings)
    kept: Kept[Explainer] | None = None if isinstance(model, nn.Module) else getattr(model, "kept", None)
    data = [settings.get(name) for name in ("reference", "background")]
    own_data = any(one is not None and not isinstance(one, str) for one in data)
    if kept is None or domain is not None or settings["rules"] or settings["first"] or own_data:
        return ask(make())
    named = {name: value for name, value in sorted(settings.items()) if value is not None}
    return kept.asked(repr(named), make, ask)


# --- photographs ------------------------------------------------------------------------------------------------------


def read(model: Pretrained, x: Any, like: Tensor | None) -> tuple[Any, tuple[Any, ...]]:
    """Photographs as inputs beside a tensor, with what the network sees of them (`Seen`); anything else as it is.

    Rows of a table come with the names of their columns.
    """
    if model.feature_names is not None:
        rows, names = _rows(x, model.feature_names)
        return rows if model.scaling is None else model.scaling(rows, like), names
    some = list(x) if isinstance(x, (list, tuple)) or (_pixels(x) and x.ndim == 4) else [x]
    if isinstance(x, (list, tuple)) and not some:
        raise InputError("No photograph was given." if model.preparation is not None else "No input was given.")
    if model.preparation is None and not any(isinstance(one, (str, os.PathLike, Image.Image)) for one in some):
        return x, ()
    if all(_prepared_already(one) for one in some):
        return _batch(some) if isinstance(x, (list, tuple)) else x, ()
    photos = [_as_photo(photo) for photo in some]
    prepared = [model.preprocess(photo) for photo in photos]
    inputs = torch.cat([p[0] for p in prepared])
    seen = tuple(Seen(np.asarray(picture), photo) for photo, (_, picture) in zip(photos, prepared, strict=True))
    return inputs if like is None else inputs.to(like), seen


def _rows(x: Any, names: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    """Rows of a table as real numbers, and the names of its columns.

    Of a data frame the columns that the network knows, in its order; of one that was fitted without names all of them.
    One row of a data frame, such as df.iloc[0], is a table of one row.
    """
    if hasattr(x, "to_frame") and hasattr(x, "to_numpy"):
        x = x.to_frame().T
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        named = {str(column): column for column in x.columns}
        missing = [name for name in names if name not in named]
        if missing and names != unnamed(len(names)):
            raise InputError(f"The table has no column called {', '.join(missing)}; the network was fitted with it.")
        if missing and len(x.columns) != len(names):
            raise InputError(
                f"The table has {len(x.columns)} columns, and the network, which was fitted without names of columns, "
                f"reads {len(names)}."
            )
        if missing:
            names = tuple(map(str, x.columns))
        else:
            x = x[[named[name] for name in names]]
        x = x.to_numpy()
    rows = x if isinstance(x, (Tensor, tuple, Mapping)) else _numbers(x, names)
    return rows, tuple(names)


def _numbers(rows: Any, names: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return rows of a table as an array of real numbers; raise an InputError for anything else in it."""
    try:
        if not np.iscomplexobj(rows):  # numpy would drop the imaginary part, with a warning
            return np.array(rows, dtype=np.float64)
    except (TypeError, ValueError):
        pass
    raise InputError(_no_numbers(rows, names))


def _no_numbers(rows: Any, names: Sequence[str]) -> str:
    """Say which value of a table is not a real number, or what is not a table."""
    try:
        values = np.array(rows, dtype=object)
    except ValueError:
        values = np.zeros((0, 0))
    for place, value in np.ndenumerate(values) if values.ndim == 2 and values.shape[1] == len(names) else ():
        try:
            float(value)
        except (TypeError, ValueError):
            return (
                f"Column {names[place[1]]!r} has a value that is not a real number, in row {place[0]}: "
                f"{str(value)[:40]!r} ({type(value).__name__}). Encode texts, and fill in what is missing, as you did "
                "to fit the model."
            )
    return (
        f"Rows of a table are a data frame, an array or lists of {len(names)} real numbers each; got "
        f"{type(rows).__name__}{f' of shape {values.shape}' if values.ndim else ''}."
    )


def unnamed(count: int) -> tuple[str, ...]:
    """What columns without names are called: x0, x1, …"""
    return tuple(f"x{k}" for k in range(count))


def shown(model: Pretrained, answer: _Answer, x: Any, seen: tuple[Any, ...], target: Any) -> _Answer:
    """An explanation with its photographs and the names of the classes."""
    if model.feature_names is not None:
        answer, seen = replace(answer, feature_names=seen), ()
    if not seen:
        if model.class_names is None or not isinstance(x, Tensor):
            return answer
        return replace(answer, titles=_titles(model, x, target), class_names=model.class_names)
    assert model.preparation is not None
    return replace(
        answer,
        photos=tuple(s.picture for s in seen),
        originals=tuple(partial(model.preparation.original, s.photo, s.picture) for s in seen),
        titles=_titles(model, x, target),
        class_names=model.class_names or (),
    )


def _pixels(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.uint8


def _prepared_already(x: Any) -> bool:
    return isinstance(x, (Tensor, Mapping)) or (isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.ndim == 4)


def _batch(inputs: Sequence[Any]) -> Tensor:
    """Prepared inputs, each of one sample or several, as one batch."""
    parts = [torch.as_tensor(x) for x in inputs]
    shapes = list(dict.fromkeys(tuple(x.shape[1:]) for x in parts))
    if len(shapes) > 1:
        raise InputError(
            f"The inputs of one batch have one shape; these have {', '.join(map(str, shapes))}. Give photographs, "
            "which are prepared alike, or bring them to one shape."
        )
    return torch.cat(parts)


def class_index(model: Pretrained, text: str) -> int:
    """The number of a class, by its number or its name (upper or lower case); or an error with names like it.

    >>> from deeptaylor.domain import Real
    >>> from deeptaylor.models.networks.pretrained import Pretrained
    >>> class_index(Pretrained(nn.Identity(), ("cat", "dog"), None, domain=Real()), "Dog")
    1
    """
    return class_number(model.class_names, text)


def _as_photo(photo: Any) -> str | os.PathLike[str] | Image.Image:
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
            f"{shape}. Its white is not guessed. (An array of real numbers is a batch that is prepared already, with "
            "four axes: samples, channels, height, width.)"
        )
    return Image.fromarray(np.ascontiguousarray(photo))


def _titles(model: Pretrained, x: Tensor, target: Any) -> tuple[tuple[str, ...], ...]:
    """What is explained of each sample, in words; none where there are no words for it."""
    if isinstance(target, Unit):
        return (target.names,) * len(x)
    if isinstance(target, Margin):
        ends = [_titles(model, x, end) for end in (target.target, target.other) if end is not None]
        if len(ends) < 2 or not all(ends):
            return ()
        return tuple((f"{a[0]} rather than {b[0]}",) for a, b in zip(*ends, strict=True))
    if isinstance(target, (Logit, Probability)):
        return _titles(model, x, target.target)
    if isinstance(target, Negative):
        return tuple((f"the negative of {name}",) for (name,) in _titles(model, x, target.target))
    like = first_float(model.network.parameters())
    output = model.answer(x if like is None else x.to(like))
    if output.ndim != 2:
        return ()
    classes = output.argmax(1) if target is None else target
    if isinstance(classes, int):
        classes = torch.full((len(x),), classes)
    if not isinstance(classes, Tensor) or classes.is_floating_point():
        return ()
    rows: list[list[int]] = classes.reshape(len(x), -1).tolist()
    return tuple(tuple(model.class_name(index) for index in row) for row in rows)
