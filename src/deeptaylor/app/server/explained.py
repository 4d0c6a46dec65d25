"""An explanation with all that belongs to it, and what the page is answered: numbers, maps, words and files."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from deeptaylor import heatmap
from deeptaylor.app.server import words
from deeptaylor.app.server.folders import without_folders
from deeptaylor.app.server.models import is_own
from deeptaylor.app.server.options import Options, command, snippet
from deeptaylor.app.server.schema import (
    Account,
    Answer,
    Apart,
    BelievedAnswer,
    Channel,
    Found,
    Heat,
    Layer,
    LayerAnswer,
    Rival,
)
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Contrast, Explanation
from deeptaylor.models.networks.pretrained import Pretrained, Recognised
from deeptaylor.pictures.explained import picture
from deeptaylor.pictures.photograph import readable
from deeptaylor.rules import Rule
from deeptaylor.run.faithful import flipping_area
from deeptaylor.run.target import negative
from deeptaylor.secant.between import BetweenLedger
from deeptaylor.secant.front_door import DEEP_TAYLOR, PRESETS, SECANT
from deeptaylor.shown import percent

__all__ = ["Explained", "Question", "Shown"]

CHANNELS = 8  # of a layer, the strongest
RIVALS = 8  # as many as are listed


@dataclass(frozen=True)
class Question:
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
class Shown:
    """A picture as the network sees it, and what it takes it for."""

    x: Tensor
    seen: Image.Image
    png: bytes
    classes: tuple[Recognised, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Explained:
    """One explanation with all that belongs to it."""

    options: Options
    loaded: Pretrained
    question: Question
    shown: Shown
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
            reason=words.reason(e.reason),
            bias=self.options.settings.bias if method == DEEP_TAYLOR else None,
            target=self.question.target,
            target_name=name,
            against=self.question.rival,
            against_name=rival,
            question="apart" if self.question.apart else "evidence",
            classes=[
                Found(index=c.index, name=c.name, probability=c.probability)
                for c in self.shown.classes
                if c.probability is not None
            ],
            score=score,
            title=words.title(method, e, name, rival),
            sentences=[*words.sentences(method, e, name, rival), *shared],
            same=same,
            warning=words.warning(str(check)) if by_rules else "",
            consistent=words.consistency(check, isinstance(e, Contrast))
            if (by_rules or method == "taylor") and score > 0
            else "",
            account=self._account() if positive else None,
            check="" if method == "sensitivity" else str(check).replace("1 of 1 scores are", "The score is"),
            notes=[words.note(without_folders(note)) for note in self.notes],
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
        title = words.layer_title(self._called(node), self._name(self.question.target))
        said = words.layer(self.e, shape, total, returned)
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

    def believed(self) -> BelievedAnswer:
        """What the network says when this map is believed."""
        area = flipping_area(self.loaded.network, (self.shown.x,), self.question.target, self.e.heatmap())
        value = float(area.mean())
        said = words.believed(value, self._name(self.question.target), isinstance(self.e, Contrast))
        return BelievedAnswer(area=value, sentence=said)

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
                "ledger": np.array([float(t[0]) for t in (ledger.held, ledger.bias, ledger.dropped)]),
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
        return heatmap.png_bytes(readable(picture(self.e, 0, 0)))

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
        check = replace(self.e, class_names=tuple(self.loaded.class_names or ())).check(classes=True)
        assert check.overlap is not None
        (share,), (other,) = check.overlap, check.next_classes
        said = words.overlap(share, self._name(self.question.target), other.strip("'"))
        return (said, []) if check.same_for_classes else ("", [said])

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

    def _apart(self) -> Apart | None:
        e = self.e
        assert isinstance(e, Contrast)
        assert e.apart is not None
        if not e.rivals[0]:
            return None
        difference = heatmap.channel_sum(e.difference[0])
        return Apart(
            size=float(e.apart[0]),
            percent=percent(float(e.apart[0])),
            sentence=words.apart(self._name(self.question.target), self._name(self.question.rival)),
            nothing=words.nothing_apart(e),
            difference=_heat(torch.from_numpy(difference), self._whole_scale()),
            rivals=[Rival(index=k, name=self._name(k), weight=w) for k, w in e.rivals[0][:RIVALS]],
            more=max(0, len(e.rivals[0]) - RIVALS),
        )

    def _whole_scale(self) -> float | None:
        """Where full colour begins in parts of a class's map: where it does in the whole of it."""
        if not isinstance(self.e, Contrast):
            return None
        return heatmap.robust_scale(heatmap.channel_sum((self.e.relevance + self.e.shared)[0]))

    def _layers(self) -> list[Layer]:
        ledger = self.e.ledger
        return [
            Layer(node=node, module=module, op=op, rule=rule, arrived=n[0], onward=n[1], bias=n[2], dropped=n[3])
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
