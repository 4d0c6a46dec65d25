"""A picture and options to an explanation, by the library's own Explainer, sensitivity and taylor.

All of it runs in one thread (`jobs.py`): torch.export and the collecting of warnings are not made for several.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor import heatmap, rules
from deeptaylor.app.server.explained import Explained, Question, Shown
from deeptaylor.app.server.options import OUTSIDE, Options, Settings, parse_rules
from deeptaylor.app.server.words import higher, no_rival_map
from deeptaylor.errors import DeepTaylorWarning, InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.taylor import taylor
from deeptaylor.models.loading.asked import gray
from deeptaylor.models.networks.photo import opened
from deeptaylor.models.networks.pretrained import Pretrained, Recognised
from deeptaylor.models.photographs import class_index
from deeptaylor.plan.table import Row
from deeptaylor.rules import Rule
from deeptaylor.rules.parse import parse
from deeptaylor.secant.between import Between
from deeptaylor.secant.front_door import DEEP_TAYLOR, SECANT, choose_by_graph
from deeptaylor.shown import shown

__all__ = ["Explaining", "PictureError", "RivalError"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
KEPT = 6  # explainers; each holds the weights of its network some three times
NAME = "the picture"
_BLOCK_RULES = {rules.ZPlus.symbol, rules.ZBox.symbol, rules.WSquare.symbol}  # what a plan chooses by itself


class PictureError(InputError):
    """What was sent is no picture that a network can be given; other settings would not help."""


class RivalError(TargetError):
    """The class that was named as a rival scores higher: the question is to be asked the other way round."""

    def __init__(self, message: str, target: int, against: int) -> None:
        super().__init__(message)
        self.target, self.against = target, against  # as they should be asked


@dataclass
class Explaining:
    """Explains, and keeps the explainers that were used last."""

    most_pixels: int

    def __post_init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Settings], Explainer] = OrderedDict()
        self._last: tuple[tuple[str, bytes], Shown] | None = None

    def explain(self, loaded: Pretrained, picture: bytes | bytearray, options: Options) -> Explained:
        """Decode, classify, explain; what the library warned of is in the notes."""
        shown = self._shown(loaded, picture, options)
        question = _question(loaded, options, shown.classes, shown.x)
        explainer = None
        with _warned() as said:
            if options.method in OUTSIDE:
                e = _from_outside(loaded, shown.x, question, options)
            else:
                explainer = self._explainer(loaded, shown.x, options.model, options.settings)
                e = _explained(loaded, explainer, shown.x, question)
        own = e.notes if isinstance(e, Between) else ()
        notes = tuple(dict.fromkeys((*shown.notes, *own, *said, *loaded.notes)))
        return Explained(options, loaded, question, shown, e, notes, explainer)

    def prepare(self, loaded: Pretrained, model: str) -> None:
        """Capture and plan a network as it is explained without further settings."""
        assert loaded.preparation is not None
        x = gray(loaded.preparation)
        explainer = self._explainer(loaded, x, model, Settings())
        if choose_by_graph(explainer.engine, (x,)) is not None:  # else methods are tested on the first picture
            explainer.explain(x)

    def forget(self, model: str) -> None:
        """Drop the explainers of a network that is gone."""
        for key in [key for key in self._kept if key[0] == model]:
            del self._kept[key]
        self._last = None

    def _shown(self, loaded: Pretrained, picture: bytes | bytearray, options: Options) -> Shown:
        """The picture as the network sees it, and what it takes it for; the last one is kept, by its hash."""
        key = (options.model, hashlib.sha256(picture).digest())
        if self._last is None or self._last[0] != key:
            with _warned() as said:
                x, seen = self._prepared(loaded, picture, options)
                classes = _classes(loaded, x)
            self._last = key, Shown(x, seen, heatmap.png_bytes(np.asarray(seen)), tuple(classes), tuple(said))
        return self._last[1]

    def _prepared(self, loaded: Pretrained, picture: bytes | bytearray, options: Options) -> tuple[Tensor, Image.Image]:
        try:
            if not picture:
                raise InputError(f"{NAME} is empty.")
            with opened(io.BytesIO(picture), NAME, FORMATS, self.most_pixels) as image:
                return loaded.preprocess(image)
        except InputError as error:
            # By the name it was sent with, which must not reach Pillow: it opens what it takes for a file's name.
            name = shown(options.file) if "file" in options.model_fields_set else "what was sent"
            words = str(error)
            raise PictureError(name + words.removeprefix(NAME) if words.startswith(NAME) else words) from error

    def _explainer(self, loaded: Pretrained, x: Tensor, model: str, settings: Settings) -> Explainer:
        """The explainer for these settings, captured anew where they are new."""
        key = (model, settings)
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            layers = parse_rules(settings.rules)
            first = parse(settings.first) if settings.first else None
            deep = settings.method == DEEP_TAYLOR
            if settings.above:
                plain = self._explainer(loaded, x, model, Settings(method="deep-taylor"))
                layers |= _above(plain.plan.rows, layers, parse(settings.above))
            made = Explainer(
                loaded.network,
                x,
                domain=loaded.domain,
                method=settings.method,
                rules=layers,
                first=first,
                bias=settings.bias if deep else None,
                max_pool=settings.max_pool if deep else None,
            )
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = made
        self._kept.move_to_end(key)
        return self._kept[key]


@contextmanager
def _warned() -> Iterator[list[str]]:
    """What the library warns of, once the block has ended."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(w.message) for w in caught if issubclass(w.category, DeepTaylorWarning)]


def _classes(loaded: Pretrained, x: Tensor) -> Sequence[Recognised]:
    """The five most probable classes; none where the network answers with one number."""
    output = loaded.output(x)
    return loaded.recognised(output)[0] if output.ndim == 2 and output.shape[1] > 1 else ()


# --- what is asked ----------------------------------------------------------------------------------------------------


def _question(loaded: Pretrained, options: Options, classes: Sequence[Recognised], x: Tensor) -> Question:
    """Classes by number, whatever they were called by; a name that no class has is refused here."""
    index = class_index(loaded, options.target) if options.target else classes[0].index if classes else None
    rival = class_index(loaded, options.against) if options.against else None
    apart = options.question == "apart" or rival is not None
    if apart and options.method in ("attnlrp", *OUTSIDE):
        raise InputError(
            "Only deep Taylor decomposition and secants set a class apart from others; choose one of them as the "
            "method, or ask for the evidence alone."
        )
    if apart and not classes:
        raise InputError("This network answers with one number: there are no classes to set apart from each other.")
    if rival is not None and rival == index:
        raise TargetError(f"“{loaded.class_name(rival)}” cannot be set against itself; name another class.")
    return Question(index, rival, apart, negative=not classes and float(loaded.output(x).reshape(-1)[0]) < 0)


def _explained(loaded: Pretrained, explainer: Explainer, x: Tensor, asked: Question) -> Explanation:
    if not asked.apart:
        return explainer.explain(x, asked.argument)
    if asked.rival is None:
        return explainer.contrast(x, asked.target)
    assert asked.target is not None
    if explainer.choose(x, asked.target).method == SECANT:  # a difference of scores may have either sign
        return explainer.contrast(x, asked.target, asked.rival)
    output = loaded.output(x)[0]
    if max(asked.target, asked.rival) >= len(output):
        raise TargetError(f"There is no such class: the network has {len(output)}, from 0 on.")
    if output[asked.rival] > output[asked.target]:
        own, other = _scores(explainer, x, asked.target, asked.rival)
        names = loaded.class_name(asked.target), loaded.class_name(asked.rival)
        raise RivalError(higher(*names, other - own), asked.rival, asked.target)
    try:
        return explainer.contrast(x, asked.target, asked.rival)
    except TargetError as error:
        own, other = _scores(explainer, x, asked.target, asked.rival)
        if other > 0:
            raise
        words = no_rival_map(loaded.class_name(asked.target), loaded.class_name(asked.rival), other)
        raise TargetError(words) from error


def _scores(explainer: Explainer, x: Tensor, *classes: int) -> list[float]:
    """As the explainer has them: before a softmax at the end."""
    found: list[float] = explainer.explain(x, torch.tensor([classes])).score[0].tolist()
    return found


def _from_outside(loaded: Pretrained, x: Tensor, asked: Question, options: Options) -> Explanation:
    if options.method == "sensitivity":
        return sensitivity(loaded.network, x, asked.argument)
    root = nearest_root(loaded.network, x, asked.argument, domain=loaded.domain, level=options.level)
    return taylor(loaded.network, x, asked.argument, root=root)


def _above(rows: Sequence[Row], given: Mapping[str, Rule], rule: Rule) -> dict[str, Rule]:
    """A rule for every block but the lowest and those that have one: by name, for a pattern would reach into others."""
    blocks = [row for row in rows[:-1] if row.rule in _BLOCK_RULES]
    return {
        row.node: rule for row in blocks if not any(fnmatchcase(n, p) for p in given for n in (row.node, row.module))
    }
