"""A photograph with its explanations: pictures, arrays, lines and a record of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import deeptaylor as dt
from deeptaylor import heatmap
from deeptaylor.app import record
from deeptaylor.app.cli.asked import Asked, NoEvidenceError, handed_back
from deeptaylor.app.cli.many import Shown
from deeptaylor.app.cli.photos import Prepared, libtiff_silent
from deeptaylor.app.cli.words import as_options
from deeptaylor.errors import DeepTaylorError
from deeptaylor.pictures.explained import picture, whole_map
from deeptaylor.pictures.photograph import Photograph, readable
from deeptaylor.pictures.scale import scale_of
from deeptaylor.properties import BY_RULES
from deeptaylor.shown import percent

__all__ = ["Answered", "answered", "not_explained"]

_LARGEST = 1600  # pixels of the longer side of a picture that is written


@dataclass(frozen=True)
class Answered:
    """A photograph with its explanations, one for each way to treat biases."""

    asked: Asked
    explanations: Mapping[str, dt.Explanation]
    checks: Mapping[str, dt.Check]

    def pictures(self) -> dict[str, heatmap.Picture]:
        """By the end of a file's name: each map, and each over the photograph; of a contrast, both sides too."""
        made: dict[str, heatmap.Picture] = {}
        for bias, e in self.explanations.items():
            way = f"_{bias}" if len(self.explanations) > 1 else ""
            for k in range(len(self.asked.classes)):
                name, strength = f"{self.asked.slug(k)}{way}", self.asked.strength(e, k)
                if strength:
                    made[f"{name}_heatmap"] = picture(e, 0, k, strength=strength)
                    made[f"{name}_overlay"] = e.overlay(0, k, original=True, strength=strength)
                if isinstance(e, dt.Contrast):
                    made[f"{name}_difference"] = e.difference_picture(0, k)
        return made

    def files(self, out: Path, stem: str, question: str, arrays: str) -> dict[Path, bytes]:
        """The pictures, and the raw relevance (classes, channels, height, width) of each way to treat biases."""
        drawn = {name: readable(drawn) for name, drawn in self.pictures().items()}  # a small one enlarged
        made = {out / f"{stem}_{name}.png": heatmap.png_bytes(pixels) for name, pixels in drawn.items()}
        raw: dict[str, Any] = {"classes": [-1 if index is None else index for index, _ in self.asked.classes]}
        for bias, e in self.explanations.items():
            way = f"_{bias}" if len(self.explanations) > 1 else ""
            raw[f"relevance{way}"], raw["score"] = _maps(e), e.score[0].reshape(-1).numpy()
            if isinstance(e, dt.Contrast):
                raw[f"shared{way}"] = e.shared[0].reshape(raw[f"relevance{way}"].shape).numpy()
        if arrays in ("npz", "both"):
            made[out / f"{stem}{question}_relevance.npz"] = record.npz(raw)
        if arrays in ("safetensors", "both"):
            made[out / f"{stem}{question}_relevance.safetensors"] = record.safetensors_bytes(raw)
        return made

    def shown(self, called: str) -> Shown:
        """The photograph and its maps, for page and sheet."""
        pictures = [("photograph", np.asarray(self.asked.photo.seen.convert("RGB")))]
        for bias, e in self.explanations.items():
            way = f", biases: {bias}" if len(self.explanations) > 1 else ""
            strengths = enumerate(self.asked.strength(e, k) for k in range(len(self.asked.classes)))
            pictures += [(f"{self.asked.title(k)}{way}", e.overlay(0, k, strength=s)) for k, s in strengths if s]
        maps = [(e, k) for e in self.explanations.values() for k in range(len(self.asked.classes))]
        notes = [f"Note: {note}" for note in self.asked.photo.notes]
        return Shown(
            called,
            [*self.same_map(), *self.lines(), *dict.fromkeys(self.reasons()), *notes],
            recognised(self.asked.photo),
            pictures,
            short=[*self.same_map(), *self.lines(short=True), *dict.fromkeys(self.reasons()), *notes]
            if all(handed_back(e, k) for e, k in maps)
            else (),
            signed=any(scale_of(whole_map(e, 0, k)).signed for e, k in maps),
        )

    def lines(self, short: bool = False) -> list[str]:
        """One plain line for each map."""
        several = len(self.explanations) > 1
        return [
            (f"biases {bias}, " if several else "") + self.asked.line(e, k, short)
            for bias, e in self.explanations.items()
            for k in range(len(self.asked.classes))
        ]

    def reasons(self) -> list[str]:
        """Which method answered, and why."""
        return [as_options(e.reason) for e in self.explanations.values() if e.reason]

    def same_map(self) -> list[str]:
        """That a map does not depend on the class, and what to ask instead; if that was measured."""
        return [as_options(str(c).splitlines()[0]) for c in self.checks.values() if c.same_for_classes]

    def little(self) -> list[str]:
        """What must be said first: where the input holds less than half of a score."""
        some = {b: replace(c, overlap=None) for b, c in self.checks.items() if c.own_share < 0.5}
        several = len(self.checks) > 1
        return [f"biases {bias}: " * several + as_options(str(check).splitlines()[0]) for bias, check in some.items()]

    def record(
        self, model: Mapping[str, Any], explainers: Mapping[str, dt.Explainer], files: list[str]
    ) -> dict[str, Any]:
        """All of it, for programs."""
        photo = self.asked.photo
        return {
            "said_first": [*self.same_map(), *self.little()],
            "photo": str(photo.path),
            "sha256": photo.sha256,
            "notes": photo.notes,
            "recognised": [vars(r) for r in photo.recognised],
            "model": model,
            "against": None if self.asked.against is None else self.asked.against[1],
            "explanations": [
                {
                    **record.about_explainer(explainers[bias]),
                    "reason": e.reason,
                    "check": record.about_check(self.checks[bias]),
                    "targets": [
                        {
                            "class": index,
                            "name": name,
                            "line": self.asked.line(e, k),
                            "colours_times": self.asked.strength(e, k),
                            **record.about_explanation(e, 0, k),
                        }
                        for k, (index, name) in enumerate(self.asked.classes)
                    ],
                }
                for bias, e in self.explanations.items()
            ],
            "versions": record.versions(),
            "files": files,
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The ledger of each map by rules, for a table."""
        rows = []
        for bias, e in self.explanations.items():
            if e.method not in BY_RULES:
                continue
            for k, (index, name) in enumerate(self.asked.classes):
                found = record.about_explanation(e, 0, k)
                ledger = found["ledger"]
                parts = (ledger["input"] + ledger.get("shared", 0.0), ledger["bias"], ledger["dropped"])
                label = name if index is None else f"{name} ({index})"
                kept = "neuron" if e.ledger.returned is None else "returned"
                rows.append(
                    (
                        "",
                        label,
                        bias if len(self.explanations) > 1 else kept,
                        f"{found['score']:.4g}",
                        *[_share(p, found["score"]) for p in parts],
                    )
                )
        return rows


def not_explained(called: str, error: DeepTaylorError, text: str) -> Shown:
    """A photograph without maps, for page and sheet: why there are none."""
    if not isinstance(error, NoEvidenceError):
        return Shown(called, [f"Not explained: {text}"])
    pictures = [("photograph", np.asarray(error.photo.seen.convert("RGB")))]
    return Shown(called, [error.line], recognised(error.photo), pictures, without=error.names)


def recognised(photo: Prepared) -> list[tuple[str, float]]:
    """What the network takes a photograph for."""
    return [(r.name, r.probability) for r in photo.recognised if r.probability is not None]


def _maps(e: dt.Explanation) -> Any:
    """The relevance of the photograph: (classes, channels, height, width)."""
    maps = e.numpy()[0]
    return maps if e.score.ndim == 2 else maps[None]


def _original(preparation: dt.Preparation, photo: Prepared) -> Photograph:
    """The photograph in its own size, as far as a screen shows it."""
    with libtiff_silent():
        return preparation.original(photo.path, np.asarray(photo.seen)).at_most(_LARGEST)


def answered(
    asked: Asked, network: dt.Pretrained, explainers: Mapping[str, dt.Explainer], flip: bool, check: bool = False
) -> Answered:
    """Explain what was asked, once for each way to treat biases.

    flip    measure also whether the network agrees with the map
    check   measure also how much of the map of one class is the same for the next class
    """
    seen = (np.asarray(asked.photo.seen.convert("RGB")),)
    assert network.preparation is not None  # a photograph was prepared by it
    original = partial(_original, network.preparation, asked.photo)
    found = {b: replace(asked.answer(e), photos=seen, originals=(original,)) for b, e in explainers.items()}
    shares = check and asked.one_class

    def checked(e: dt.Explanation) -> dt.Check:
        named = replace(e, class_names=tuple(network.class_names or ()))
        return named.check(faithful=flip, classes=shares and e.next_class is not None)

    return Answered(asked, found, {b: checked(e) for b, e in found.items()})


def _share(part: float, score: float) -> str:
    return f"{part:.4g} ({percent(part / score, '.3g')})" if score > 0 else f"{part:.4g}"
