"""A picture and options to an explanation, by the library's own Explainer, sensitivity and taylor.

All of it runs in one thread (`jobs.py`): torch.export and the collecting of warnings are not made for several.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor import heatmap, rules
from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.models import OWN
from deeptaylor.app.server.options import Options, Settings, command, parse_rules, snippet
from deeptaylor.app.server.schema import Account, Answer, Found, Heat, Layer, LayerAnswer
from deeptaylor.errors import DeepTaylorWarning, InputError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.sensitivity import sensitivity
from deeptaylor.methods.taylor import taylor
from deeptaylor.models.networks.photo import opened
from deeptaylor.models.networks.pretrained import Pretrained, Recognised
from deeptaylor.plan.table import Row
from deeptaylor.rules import Rule
from deeptaylor.rules.parse import parse
from deeptaylor.run.target import margin
from deeptaylor.shown import shown

__all__ = ["Explained", "Explaining", "PictureError"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
KEPT = 6  # explainers; each holds the weights of its network some three times
NAME = "the picture"
_BLOCK_RULES = {rules.ZPlus.symbol, rules.ZBox.symbol, rules.WSquare.symbol}  # what a plan chooses by itself


class PictureError(InputError):
    """What was sent is no picture that a network can be given; other settings would not help."""


@dataclass(frozen=True)
class Explained:
    """One explanation with all that belongs to it."""

    options: Options
    x: Tensor
    seen: Image.Image
    e: Explanation
    classes: Sequence[Recognised]
    target: int | None
    notes: tuple[str, ...]
    explainer: Explainer | None  # of deep Taylor; the other methods see the network from outside

    def answer(self, loaded: Pretrained) -> Answer:
        """As the page takes it."""
        ledger, e = self.e.ledger, self.e
        check = str(e.check())
        first = check.split("\n", 1)[0]
        said_first = (
            first if first.startswith(("The input holds only", "The input itself")) or "scores are" in first else ""
        )
        names = loaded.class_names
        named = "" if self.target is None else names[self.target] if names is not None else f"class {self.target}"
        return Answer(
            model=self.options.model,
            method=self.options.method,
            target=self.target,
            target_name=named,
            classes=[Found(index=c.index, name=c.name, probability=c.probability) for c in self.classes],
            score=float(e.score[0]),
            warning=_on_the_page(said_first, bool(self.classes)),
            account=Account(
                score=float(ledger.score[0]),
                input=float(ledger.input[0]),
                bias=float(ledger.bias[0]),
                dropped=float(ledger.dropped[0]),
                residual=float(ledger.residual[0]),
                returned=0.0 if ledger.returned is None else float(ledger.returned[0]),
            ),
            check=_one(check),
            notes=[without_folders(note) for note in self.notes],
            seen=base64.b64encode(heatmap.png_bytes(np.asarray(self.seen))).decode("ascii"),
            heat=_heat(e.heatmap()[0]),
            layers=[
                Layer(node=node, module=module, op=op, rule=rule, arrived=n[0], onward=n[1], bias=n[2], dropped=n[3])
                for (node, module, op, rule), n in zip(ledger.rows, ledger.entries[:, :, 0].tolist(), strict=True)
            ],
            plan="" if self.explainer is None else str(self.explainer.plan),
            snippet=self._snippet(),
            command=self._command(),
        )

    def layer(self, node: str) -> LayerAnswer:
        """Relevance inside the network."""
        relevance = self.e.at(node)[0]
        heat = relevance.sum(0) if relevance.ndim == 3 else relevance.flatten()[None]
        return LayerAnswer(node=node, shape=list(relevance.shape), total=float(relevance.sum()), heat=_heat(heat))

    def npz(self) -> bytes:
        """Everything as arrays; numpy.load reads them."""
        ledger, file = self.e.ledger, io.BytesIO()
        np.savez_compressed(
            file,
            relevance=self.e.numpy()[0],
            heatmap=self.e.heatmap()[0].detach().numpy(),
            input=self.x[0].numpy(),
            seen=np.asarray(self.seen),
            score=self.e.score.numpy(),
            target=np.array([-1 if self.target is None else self.target]),
            ledger=np.array([float(t[0]) for t in (ledger.input, ledger.bias, ledger.dropped, ledger.residual)]),
            ledger_names=np.array(["input", "bias", "dropped", "residual"]),
            layers=np.array([row[0] for row in ledger.rows], dtype=str),
            layer_entries=ledger.entries[:, :, 0].numpy(),
        )
        return file.getvalue()

    def png(self) -> bytes:
        """The heatmap in colours, as `Explanation.save` writes it."""
        return self.e._repr_png_()

    def _snippet(self) -> str:
        own = self.options.model == OWN
        load = "p = dt.load(…)  # as you loaded it" if own else f"p = dt.load({self.options.model!r})"
        target = "" if self.target is None else str(self.target)
        if self.options.against is not None:
            target = f"dt.margin({target}, {self.options.against})"
        return snippet(self.options, load, *self._rules(), target)

    def _command(self) -> str:
        model = "…" if self.options.model == OWN else self.options.model
        return command(self.options, model, *self._rules(), self.target)

    def _rules(self) -> tuple[dict[str, Rule], Rule | None]:
        """Those that were chosen, not those that follow from the domains."""
        if self.explainer is None:
            return {}, None
        return dict(self.explainer.settings.rules), self.explainer.settings.first


class Explaining:
    """Explains, and keeps the explainers that were used last."""

    def __init__(self, most_pixels: int) -> None:
        self.most_pixels = most_pixels
        self._kept: OrderedDict[tuple[str, Settings], Explainer] = OrderedDict()

    def explain(self, loaded: Pretrained, picture: bytes | bytearray, options: Options) -> Explained:
        """Decode, classify, explain; what the library warned of is in the notes."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x, seen = self._prepared(loaded, picture, options)
            classes = _classes(loaded, x)
            index = options.target if options.target is not None else classes[0].index if classes else None
            target: Any = index if options.against is None else margin(index, options.against)
            explainer = None
            if options.method == "sensitivity":
                e = sensitivity(loaded.network, x, target)
            elif options.method == "taylor":
                root = nearest_root(loaded.network, x, target, domain=loaded.domain, level=options.level)
                e = taylor(loaded.network, x, target, root=root)
            else:
                explainer = self._explainer(loaded, x, options.model, options.settings)
                e = explainer.explain(x, target)
        said = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, DeepTaylorWarning))
        return Explained(options, x, seen, e, classes, index, (*said, *loaded.notes), explainer)

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
            if settings.above:
                plain = self._explainer(loaded, x, model, Settings())
                layers |= _above(plain.plan.rows, layers, parse(settings.above))
            made = Explainer(
                loaded.network,
                x,
                domain=loaded.domain,
                rules=layers,
                first=first,
                bias=settings.bias,
                max_pool=settings.max_pool,
            )
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = made
        self._kept.move_to_end(key)
        return self._kept[key]


def _classes(loaded: Pretrained, x: Tensor) -> Sequence[Recognised]:
    """The five most probable classes; none where the network answers with one number."""
    with torch.no_grad():
        output = loaded.network(x)
    return loaded.top(x, 5)[0] if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] > 1 else ()


def _above(rows: Sequence[Row], given: Mapping[str, Rule], rule: Rule) -> dict[str, Rule]:
    """A rule for every block but the lowest and those that have one: by name, for a pattern would reach into others."""
    blocks = [row for row in rows[:-1] if row.rule in _BLOCK_RULES]
    return {
        row.node: rule for row in blocks if not any(fnmatchcase(n, p) for p in given for n in (row.node, row.module))
    }


def _heat(heat: Tensor) -> Heat:
    values = heat.detach().to("cpu", torch.float32).contiguous()
    return Heat(
        height=values.shape[0],
        width=values.shape[1],
        scale=heatmap.robust_scale(values),
        values=base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii"),
    )


def _one(text: str) -> str:
    """The library speaks of batches; here there is one picture."""
    return text.replace("1 of 1 scores are", "The score is")


def _on_the_page(text: str, classes: bool) -> str:
    """The library's words about what to write in Python, as what to choose on the page."""
    rather = " Choose another class under “Rather than class” to ask why one and not the other." if classes else ""
    text = re.sub(r" To ask why one class .*$", rather, _one(text))
    return text.replace('bias="returned" hands', "the first way to treat biases hands").replace(
        'bias="neuron" leaves', "the second way to treat biases leaves"
    )
