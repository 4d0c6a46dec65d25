"""A picture and options in, an explanation out: numbers, maps, sentences, files, and the code that gives the same.

All of it runs in one thread (`jobs.py`): torch.export and the collecting of warnings are not thread-safe.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor import rules
from deeptaylor.app.server import sentences
from deeptaylor.app.server.models import is_own
from deeptaylor.app.server.schema import (
    LEVEL,
    OUTSIDE,
    Account,
    Answer,
    Channel,
    ClassProbability,
    DeletionAnswer,
    ExplainerOptions,
    ExplainOptions,
    Heat,
    LayerAnswer,
    LayerRow,
    Rival,
    Separation,
)
from deeptaylor.app.server.security import hide_folders
from deeptaylor.app.server.sentences import describe_missing_rival, describe_stronger_rival
from deeptaylor.between import Between, BetweenLedger
from deeptaylor.check import MAX_OVERLAP
from deeptaylor.engine.deletion import measure_flipping_area
from deeptaylor.engine.method_choice import choose_by_graph
from deeptaylor.engine.target import negative
from deeptaylor.errors import DeepTaylorWarning, InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.formatting import CONTROL_CHARACTERS, escape_name, format_percent
from deeptaylor.methods.root_search import nearest_root
from deeptaylor.methods.taylor import sensitivity, taylor
from deeptaylor.models.loading.request import make_gray_input
from deeptaylor.models.networks.photo_files import open_picture
from deeptaylor.models.networks.pretrained import Prediction, Pretrained
from deeptaylor.plan.plan import PlanRow
from deeptaylor.rules import Rule
from deeptaylor.rules.parse import format_rule, parse, parse_overrides
from deeptaylor.settings import AUTO, DEEP_TAYLOR, PRESETS, SECANT
from deeptaylor.viz import heatmap
from deeptaylor.viz.drawings import render_map
from deeptaylor.viz.photograph import enlarge_small

__all__ = [
    "PictureAnswer",
    "PictureError",
    "PictureExplainer",
    "PictureQuestion",
    "RivalError",
    "SeenPicture",
    "command",
    "parse_rules",
    "snippet",
]

CHANNELS = 8  # of a layer, the strongest
RIVALS = 8  # as many as are listed


@dataclass(frozen=True)
class PictureQuestion:
    """What is asked about a picture: of which class, and whether what sets it apart (from one rival or from all)."""

    target: int | None
    rival: int | None = None
    apart: bool = False
    negative: bool = False  # the network has one output, which is below zero: it is explained with the other sign

    @property
    def argument(self) -> Any:
        """The target as `Explainer.explain` takes it."""
        return negative() if self.negative else self.target


@dataclass(frozen=True)
class SeenPicture:
    """A picture as the network sees it, and what it takes it for."""

    x: Tensor
    seen: Image.Image
    png: bytes
    classes: tuple[Prediction, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PictureAnswer:
    """One explanation with all that belongs to it."""

    options: ExplainOptions
    loaded: Pretrained
    question: PictureQuestion
    shown: SeenPicture
    e: Explanation
    notes: tuple[str, ...]
    explainer: Explainer | None  # none of methods that see the network from outside

    @property
    def method(self) -> str:
        """The method that answered."""
        choice = None if self.explainer is None else self.explainer.choice
        return self.options.method if choice is None else choice.method

    def answer(self) -> Answer:
        """As the page takes it."""
        e, method = self.e, self.method
        by_rules, positive = method in PRESETS, method in PRESETS and float(self.e.score[0]) > 0
        name, rival, score = self._name(self.question.target), self._name(self.question.rival), float(self.e.score[0])
        check = e.check()
        same, shared = self._overlap() if positive else ("", [])
        return Answer(
            model=self.options.model,
            method=method,
            reason=e.reason if self.options.settings.method == AUTO else "",
            bias=self.options.settings.bias if method == DEEP_TAYLOR else None,
            target=self.question.target,
            target_name=name,
            against=self.question.rival,
            against_name=rival,
            question="apart" if self.question.apart else "evidence",
            classes=[
                ClassProbability(index=c.index, name=c.name, probability=c.probability)
                for c in self.shown.classes
                if c.probability is not None
            ],
            score=score,
            title=sentences.write_title(method, e, name, rival),
            sentences=[*sentences.write_sentences(method, e, name, rival), *shared],
            same=same,
            warning=sentences.find_warning(check) if by_rules else "",
            consistent=sentences.describe_consistency(check, isinstance(e, Contrast))
            if (by_rules or method == "taylor") and score > 0
            else "",
            account=self._account() if positive else None,
            check="" if method == "sensitivity" else str(check),
            notes=[hide_folders(note) for note in self.notes],
            seen=base64.b64encode(self.shown.png).decode("ascii"),
            heat=_heat(e.heatmap()[0], self._whole_scale()),
            apart=self._apart() if isinstance(e, Contrast) and score > 0 else None,
            layers=self._layers() if positive else [],
            plan=str(self.explainer.plan) if self.explainer is not None and by_rules else "",
            snippet=self._snippet(),
            command=self._command(),
        )

    def layer(self, node: str) -> LayerAnswer:
        """Relevance inside the network, and the channels that hold most of it."""
        relevance = self.e.at(node)[0].detach()
        shape, total = list(relevance.shape), float(relevance.sum())
        returned = self.e.ledger.returned is not None
        title = sentences.write_layer_title(self._called(node), self._name(self.question.target))
        said = sentences.describe_layer(self.e, shape, total, returned)
        if relevance.ndim != 3:
            flat = _heat(relevance.flatten()[None])
            return LayerAnswer(node=node, shape=shape, total=total, title=title, sentence=said, heat=flat, channels=[])
        sums = relevance.sum((1, 2))
        best = [int(k) for k in sums.topk(min(CHANNELS, len(sums))).indices if sums[k] > 0]
        channels = [Channel(index=k, total=float(sums[k]), heat=_heat(relevance[k])) for k in best]
        heat = _heat(relevance.sum(0))
        return LayerAnswer(
            node=node, shape=shape, total=total, title=title, sentence=said, heat=heat, channels=channels
        )

    def believed(self) -> DeletionAnswer:
        """What the network says when this map is believed."""
        e, x = self.e, self.shown.x
        area = measure_flipping_area(self.loaded.network, (x,), self.question.target, e.heatmap(), e.axis_of())
        value = float(area.mean())
        said = sentences.describe_deletion(value, self._name(self.question.target), isinstance(self.e, Contrast))
        return DeletionAnswer(area=value, sentence=said)

    def npz(self) -> bytes:
        """Everything as arrays; numpy.load reads them."""
        ledger, file, e = self.e.ledger, io.BytesIO(), self.e
        arrays = {
            "relevance": e.numpy()[0],
            "heatmap": e.heatmap()[0].detach().numpy(),
            "input": self.shown.x[0].numpy(),
            "seen": np.asarray(self.shown.seen),
            "score": e.score.numpy(),
            "target": np.array([-1 if self.question.target is None else self.question.target]),
        }
        if isinstance(ledger, BetweenLedger):
            parts = (ledger.reference, ledger.in_favour, ledger.against)
            arrays |= {
                "ledger": np.array([float(t[0]) for t in parts]),
                "ledger_names": np.array(["reference", "in_favour", "against"]),
            }
        elif self.method in PRESETS:
            arrays |= {
                "ledger": np.array([float(t[0]) for t in (ledger.input_total, ledger.bias, ledger.dropped)]),
                "ledger_names": np.array(["input", "bias", "dropped"]),
                "layers": np.array([row[0] for row in ledger.rows], dtype=str),
                "layer_entries": ledger.entries[:, :, 0].numpy(),
            }
        if isinstance(e, Contrast):
            assert e.apart is not None
            arrays |= {"shared": e.shared[0].numpy(), "difference": e.difference[0].numpy(), "apart": e.apart.numpy()}
        np.savez_compressed(file, **arrays)
        return file.getvalue()

    def png(self) -> bytes:
        """The heatmap in colours, as `Explanation.save` writes it."""
        return heatmap.encode_png(enlarge_small(render_map(self.e, 0, 0)))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _name(self, index: int | None) -> str:
        return "" if index is None else self.loaded.class_name(index)

    def _called(self, node: str) -> str:
        """A layer by the name of its module, where it has one."""
        return next((row[1] for row in self.e.ledger.rows if row[0] == node and row[1]), node)

    def _overlap(self) -> tuple[str, list[str]]:
        """That the map does not depend on the class, or how much of it does not; nothing if that cannot be asked."""
        if isinstance(self.e, Contrast) or self.question.target is None or not self.shown.classes:
            return "", []
        assert self.e.next_class is not None
        (other,), (share,) = self.e.next_class()
        said = sentences.describe_overlap(float(share), self._name(self.question.target), self._name(int(other)))
        return (said, []) if share > MAX_OVERLAP else ("", [said])

    def _account(self) -> Account:
        ledger = self.e.ledger
        return Account(
            score=float(ledger.score[0]),
            input=float(ledger.input[0]),
            shared=0.0 if ledger.shared is None else float(ledger.shared[0]),
            bias=float(ledger.bias[0]),
            dropped=float(ledger.dropped[0]),
            returned=0.0 if ledger.returned is None else float(ledger.returned[0]),
        )

    def _apart(self) -> Separation | None:
        e = self.e
        assert isinstance(e, Contrast)
        assert e.apart is not None
        if not e.rivals[0]:
            return None
        difference = heatmap.to_heat(e.difference[0])
        return Separation(
            size=float(e.apart[0]),
            percent=format_percent(float(e.apart[0])),
            sentence=sentences.describe_separation(self._name(self.question.target), self._name(self.question.rival)),
            nothing=sentences.describe_no_separation(e),
            difference=_heat(torch.from_numpy(difference), self._whole_scale()),
            rivals=[Rival(index=k, name=self._name(k), weight=w) for k, w in e.rivals[0][:RIVALS]],
            more=max(0, len(e.rivals[0]) - RIVALS),
        )

    def _whole_scale(self) -> float | None:
        """Where full colour begins in parts of a class's map: where it does in the whole of it."""
        if not isinstance(self.e, Contrast):
            return None
        return heatmap.robust_scale(heatmap.to_heat((self.e.relevance + self.e.shared)[0]))

    def _layers(self) -> list[LayerRow]:
        ledger = self.e.ledger
        return [
            LayerRow(node=node, module=module, op=op, rule=rule, arrived=n[0], onward=n[1], bias=n[2], dropped=n[3])
            for (node, module, op, rule), n in zip(ledger.rows, ledger.entries[:, :, 0].tolist(), strict=True)
        ]

    def _snippet(self) -> str:
        own = is_own(self.options.model)
        load = "p = dt.load(…)  # as you loaded it" if own else f"p = dt.load({self.options.model!r})"
        asked = "dt.negative()" if self.question.negative else self.question.target
        by_secants = self.method == SECANT
        return snippet(self.options, load, *self._rules(), asked, self.question.rival, by_secants)

    def _command(self) -> str:
        model = "…" if is_own(self.options.model) else self.options.model
        against = None
        if self.question.apart:
            against = "rivals" if self.question.rival is None else str(self.question.rival)
        asked = "negative" if self.question.negative else self.question.target
        return command(self.options, model, *self._rules(), asked, against)

    def _rules(self) -> tuple[dict[str, Rule], Rule | None]:
        """Those that were chosen, not those that follow from the domains."""
        if self.explainer is None or self.explainer.settings.method != DEEP_TAYLOR:
            return {}, None
        return dict(self.explainer.settings.rules), self.explainer.settings.first


def _heat(heat: Tensor, scale: float | None = None) -> Heat:
    values = heat.detach().to("cpu", torch.float32).contiguous()
    return Heat(
        height=values.shape[0],
        width=values.shape[1],
        scale=heatmap.robust_scale(values) if scale is None else scale,
        values=base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii"),
    )


# --- from a picture and options to an explanation ---------------------------------------------------------------------

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
KEPT = 6  # explainers; each holds the weights of its network some three times
_BLOCK_RULES = {rules.ZPlus.symbol, rules.ZBox.symbol, rules.WSquare.symbol}  # what a plan chooses by itself


class PictureError(InputError):
    """What was sent is no picture that a network can be given; other settings would not help."""


class RivalError(TargetError):
    """The class that was named as a rival scores higher: the question is to be asked the other way round."""

    def __init__(self, message: str, target: int, against: int) -> None:
        super().__init__(message)
        self.target, self.against = target, against  # as they should be asked


@dataclass
class PictureExplainer:
    """Explains, and keeps the explainers that were used last."""

    most_pixels: int

    def __post_init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ExplainerOptions], Explainer] = OrderedDict()
        self._last: tuple[tuple[str, bytes], SeenPicture] | None = None

    def explain(self, loaded: Pretrained, picture: bytes | bytearray, options: ExplainOptions) -> PictureAnswer:
        """Decode, classify, explain; what the library warned of is in the notes."""
        shown = self._shown(loaded, picture, options)
        question = _question(loaded, options, shown.classes, shown.x)
        explainer = None
        with _collect_warnings() as said:
            if options.method in OUTSIDE:
                e = _explain_outside(loaded, shown.x, question, options)
            else:
                explainer = self._explainer(loaded, shown.x, options.model, options.settings)
                e = _explained(loaded, explainer, shown.x, question)
        own = e.notes if isinstance(e, Between) else ()
        notes = tuple(dict.fromkeys((*shown.notes, *own, *said, *loaded.notes)))
        return PictureAnswer(options, loaded, question, shown, e, notes, explainer)

    def prepare(self, loaded: Pretrained, model: str) -> None:
        """Capture and plan a network as it is explained without further settings."""
        assert loaded.preparation is not None
        x = make_gray_input(loaded.preparation)
        explainer = self._explainer(loaded, x, model, ExplainerOptions())
        if choose_by_graph(explainer.captured.engine, (x,)) is not None:  # else methods are tested on the first picture
            explainer.explain(x)

    def forget(self, model: str) -> None:
        """Drop the explainers of a network that is gone."""
        for key in [key for key in self._kept if key[0] == model]:
            del self._kept[key]
        self._last = None

    def _shown(self, loaded: Pretrained, picture: bytes | bytearray, options: ExplainOptions) -> SeenPicture:
        """The picture as the network sees it, and what it takes it for; the last one is kept, by its hash."""
        key = (options.model, hashlib.sha256(picture).digest())
        if self._last is None or self._last[0] != key:
            with _collect_warnings() as said:
                x, seen = self._prepared(loaded, picture, options)
                classes = _classes(loaded, x)
            self._last = key, SeenPicture(x, seen, heatmap.encode_png(np.asarray(seen)), tuple(classes), tuple(said))
        return self._last[1]

    def _prepared(
        self, loaded: Pretrained, picture: bytes | bytearray, options: ExplainOptions
    ) -> tuple[Tensor, Image.Image]:
        try:
            name = escape_name(options.file) if "file" in options.model_fields_set else "the picture"
            if not picture:
                raise InputError(f"{name} is empty.")
            with open_picture(io.BytesIO(picture), name, FORMATS, self.most_pixels) as image:
                return loaded.preprocess(image)
        except InputError as error:
            raise PictureError(error.wording) from error

    def _explainer(self, loaded: Pretrained, x: Tensor, model: str, settings: ExplainerOptions) -> Explainer:
        """The explainer for these settings, captured anew where they are new."""
        key = (model, settings)
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                self._kept.popitem(last=False)
            layers = parse_rules(settings.rules)
            first = parse(settings.first) if settings.first else None
            deep = settings.method == DEEP_TAYLOR
            if settings.above:
                plain = self._explainer(loaded, x, model, ExplainerOptions(method="deep-taylor"))
                layers |= _rules_above(plain.plan.rows, layers, parse(settings.above))
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
def _collect_warnings() -> Iterator[list[str]]:
    """What the library warns of, once the block has ended."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(w.message) for w in caught if issubclass(w.category, DeepTaylorWarning)]


def _classes(loaded: Pretrained, x: Tensor) -> Sequence[Prediction]:
    """The five most probable classes; none where the network answers with one number."""
    output = loaded.output(x)
    return loaded.rank_classes(output)[0] if output.ndim == 2 and output.shape[1] > 1 else ()


# --- what is asked ----------------------------------------------------------------------------------------------------


def _question(loaded: Pretrained, options: ExplainOptions, classes: Sequence[Prediction], x: Tensor) -> PictureQuestion:
    """Classes by number, whatever they were called by; a name that no class has is refused here."""
    index = loaded.class_index(options.target) if options.target else classes[0].index if classes else None
    rival = loaded.class_index(options.against) if options.against else None
    apart = options.question == "apart" or rival is not None
    if apart and options.method in ("attnlrp", *OUTSIDE):
        raise InputError(
            "Only deep Taylor decomposition and secants compare a class with its rivals. Choose one of them as the "
            "method, or ask for all evidence."
        )
    if apart and not classes:
        raise InputError("This network has one output: there are no classes to compare.")
    if rival is not None and rival == index:
        raise TargetError(f"“{loaded.class_name(rival)}” cannot be set against itself; name another class.")
    return PictureQuestion(index, rival, apart, negative=not classes and float(loaded.output(x).reshape(-1)[0]) < 0)


def _explained(loaded: Pretrained, explainer: Explainer, x: Tensor, asked: PictureQuestion) -> Explanation:
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
        raise RivalError(describe_stronger_rival(*names, other - own), asked.rival, asked.target)
    try:
        return explainer.contrast(x, asked.target, asked.rival)
    except TargetError as error:
        own, other = _scores(explainer, x, asked.target, asked.rival)
        if other > 0:
            raise
        words = describe_missing_rival(loaded.class_name(asked.target), loaded.class_name(asked.rival), other)
        raise TargetError(words) from error


def _scores(explainer: Explainer, x: Tensor, *classes: int) -> list[float]:
    """As the explainer has them: before a softmax at the end."""
    found: list[float] = explainer.explain(x, torch.tensor([classes])).score[0].tolist()
    return found


def _explain_outside(loaded: Pretrained, x: Tensor, asked: PictureQuestion, options: ExplainOptions) -> Explanation:
    if options.method == "sensitivity":
        return sensitivity(loaded.network, x, asked.argument)
    root = nearest_root(loaded.network, x, asked.argument, domain=loaded.domain, level=options.level)
    return taylor(loaded.network, x, asked.argument, root=root)


def _rules_above(rows: Sequence[PlanRow], given: Mapping[str, Rule], rule: Rule) -> dict[str, Rule]:
    """A rule for every block but the lowest and those that have one: by name, for a pattern would reach into others."""
    blocks = [row for row in rows[:-1] if row.rule in _BLOCK_RULES]
    return {
        row.node: rule for row in blocks if not any(fnmatchcase(n, p) for p in given for n in (row.node, row.module))
    }


# --- the same in Python and on the command line -----------------------------------------------------------------------

_CHECKED = ["print(e.check())", "print(e.ledger.table())"]


def parse_rules(text: str) -> dict[str, Rule]:
    """Rules for single layers: ``features.0=w2; classifier.*=eps:0.25``."""
    return parse_overrides(filter(None, (piece.strip() for piece in text.split(";"))))


def snippet(
    options: ExplainOptions, load: str, layers: Mapping[str, Rule], first: Rule | None, target: int | str | None,
    rival: int | None, by_secants: bool = False,
) -> str:  # fmt: skip
    """Python that gives the same explanation."""
    lines = ["import deeptaylor as dt", "", load, f"x, seen = p.preprocess({options.file!r})"]
    asked = "" if target is None else f", target={target}"
    if options.method == "sensitivity":
        lines.append(f"e = dt.sensitivity(p.network, x{asked})")
    elif options.method == "taylor":
        lines.append(f"root = dt.nearest_root(p.network, x{asked}, domain=p.domain, level={options.level!r})")
        lines += [f"e = dt.taylor(p.network, x{asked}, root=root)", "print(e.check())"]
    else:
        lines += [*_explainer_lines(options, layers, first), _explain_line(options, asked, rival, by_secants)]
        lines += ["print(e)"] if options.settings.method != DEEP_TAYLOR else _CHECKED
    return "\n".join([*lines, 'e.save("heatmap.png")', ""])


def _explainer_lines(options: ExplainOptions, layers: Mapping[str, Rule], first: Rule | None) -> list[str]:
    if options.settings.method != DEEP_TAYLOR:
        named = "" if options.method == "auto" else f", method={options.method!r}"
        return [f"explainer = dt.Explainer(p.network, x, domain=p.domain{named})"]
    lines, more = [], f", bias={options.bias!r}"
    if options.max_pool != "proportional":
        more += f", max_pool={options.max_pool!r}"
    if first is not None:
        more += f", first={_call(first)}"
    if layers:
        lines.append(f"rules = {{{', '.join(f'{name!r}: {_call(rule)}' for name, rule in layers.items())}}}")
        more += ", rules=rules"
    return [*lines, f"explainer = dt.Explainer(p.network, x, domain=p.domain{more})"]


def _explain_line(options: ExplainOptions, asked: str, rival: int | None, by_secants: bool) -> str:
    if rival is None and options.question == "evidence":
        return f"e = explainer.explain(x{asked})"
    against = "" if rival is None else f", against={rival}"
    line = f"e = explainer.contrast(x{asked}{against})"
    return line if by_secants else f"{line}\nprint(e.apart_text())"


def command(
    options: ExplainOptions, model: str, layers: Mapping[str, Rule], first: Rule | None, target: int | str | None,
    against: str | None = None,
) -> str:  # fmt: skip
    """The command that gives the same explanation; words where there is none."""
    explains = options.method not in OUTSIDE
    if (options.method == "taylor" and options.level != LEVEL) or (target == "negative" and not explains):
        return "# There is no equivalent command; use the Python code."
    words = ["deeptaylor", "explain" if explains else "compare", options.file, "--model", model]
    if options.file.startswith("-"):
        words[2] = f"./{options.file}"
    if not explains:
        words += ["--methods", options.method]
    if target is not None:
        words += ["--target", str(target)]
    if against is not None:
        words += ["--against", against]
    if explains and options.settings.method != DEEP_TAYLOR:
        words += ["--method", options.method] if options.method != "auto" else []
    elif explains:
        words += ["--bias", options.bias]
        if options.max_pool != "proportional":
            words += ["--max-pool", options.max_pool]
        if first is not None:
            words += ["--first", format_rule(first)]
        for name, rule in layers.items():
            words += ["--rule", f"{name}={format_rule(rule)}"]
    return " ".join(_word(word) for word in words)


def _word(text: str) -> str:
    """Quoted for the shell; spelled out where it would do something to the terminal it is pasted into."""
    if escape_name(text) == text:
        return shlex.quote(text)
    spelled = re.sub(f"[{CONTROL_CHARACTERS}]", lambda c: f"\\u{ord(c[0]):04x}", re.sub(r"([\\'])", r"\\\1", text))
    return f"$'{spelled}'"


def _call(rule: Rule) -> str:
    return f"dt.rules.{rule!r}".replace("low=None, high=None", "")
