"""The answer about a photograph: pictures, arrays, lines, a record; of many photographs a page and a contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import deeptaylor as dt
from deeptaylor.app import record
from deeptaylor.app.cli.photos import Photo, silence_libtiff
from deeptaylor.app.cli.questions import MOSTLY_BIAS, NoEvidenceError, PhotoQuestion, absorbed_share, is_mostly_bias
from deeptaylor.app.cli.values import format_wording
from deeptaylor.check import BY_RULES
from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import format_percent
from deeptaylor.viz import heatmap, pages
from deeptaylor.viz.drawings import class_heat, render_map
from deeptaylor.viz.heatmap import fit_scale
from deeptaylor.viz.photograph import Photograph, enlarge_small

__all__ = [
    "CONTACT_SHEET",
    "REPORT",
    "PhotoAnswer",
    "ReportEntry",
    "draw_contact_sheet",
    "explain_photo",
    "render_page",
    "report_failure",
]

_LARGEST = 1600  # pixels of the longer side of a picture that is written


@dataclass(frozen=True)
class PhotoAnswer:
    """A photograph with its explanations, one for each way to treat biases."""

    asked: PhotoQuestion
    explanations: Mapping[str, dt.Explanation]
    checks: Mapping[str, dt.Check]
    smooth: bool = False  # whether pictures show the map without the grid of dots that strides leave

    def _drawn(self) -> dict[str, dt.Explanation]:
        """Return the explanations as they are drawn."""
        return {bias: e.smooth() if self.smooth else e for bias, e in self.explanations.items()}

    def pictures(self) -> dict[str, heatmap.Picture]:
        """By the end of a file's name: each map, and each over the photograph; of a contrast, both sides too."""
        made: dict[str, heatmap.Picture] = {}
        for bias, e in self._drawn().items():
            way = f"_{bias}" if len(self.explanations) > 1 else ""
            for k in range(len(self.asked.classes)):
                name, strength = f"{self.asked.slug(k)}{way}", self.asked.strength(e, k)
                if strength:
                    made[f"{name}_heatmap"] = render_map(e, 0, k, strength=strength)
                    made[f"{name}_overlay"] = e.overlay(0, k, original=True, strength=strength)
                if isinstance(e, dt.Contrast):
                    made[f"{name}_difference"] = e.difference_picture(0, k)
        return made

    def files(self, out: Path, stem: str, question: str, arrays: str) -> dict[Path, bytes]:
        """The pictures, and the raw relevance (classes, channels, height, width) of each way to treat biases."""
        drawn = {name: enlarge_small(drawn) for name, drawn in self.pictures().items()}  # a small one enlarged
        made = {out / f"{stem}_{name}.png": heatmap.encode_png(pixels) for name, pixels in drawn.items()}
        raw: dict[str, Any] = {"classes": [-1 if index is None else index for index, _ in self.asked.classes]}
        chances = [self.asked.probability(k) for k in range(len(self.asked.classes))]
        if None not in chances:
            raw["probabilities"] = chances
        for bias, e in self.explanations.items():
            way = f"_{bias}" if len(self.explanations) > 1 else ""
            raw[f"relevance{way}"], raw["score"] = _maps(e), e.score[0].reshape(-1).cpu().numpy()
            if isinstance(e, dt.Contrast):
                raw[f"shared{way}"] = e.shared[0].reshape(raw[f"relevance{way}"].shape).cpu().numpy()
        if arrays in ("npz", "both"):
            names = [name for _, name in self.asked.classes]  # a .safetensors file has no texts
            made[out / f"{stem}{question}_relevance.npz"] = record.npz({**raw, "class_names": names})
        if arrays in ("safetensors", "both"):
            made[out / f"{stem}{question}_relevance.safetensors"] = record.safetensors_bytes(raw)
        return made

    def report_entry(self, called: str) -> ReportEntry:
        """The photograph and its maps, for page and sheet."""
        pictures = [("photograph", np.asarray(self.asked.photo.seen.convert("RGB")))]
        for bias, e in self._drawn().items():
            way = f", biases: {bias}" if len(self.explanations) > 1 else ""
            strengths = enumerate(self.asked.strength(e, k) for k in range(len(self.asked.classes)))
            pictures += [(f"{self.asked.headline(k)}{way}", e.overlay(0, k, strength=s)) for k, s in strengths if s]
        maps = [(e, k) for e in self.explanations.values() for k in range(len(self.asked.classes))]
        notes = [f"Note: {note}" for note in self.asked.photo.notes]
        return ReportEntry(
            called,
            [*self.same_map(), *self.lines(), *dict.fromkeys(self.reasons()), *notes],
            list_predictions(self.asked.photo),
            pictures,
            short=[*self.same_map(), *self.lines(short=True), *dict.fromkeys(self.reasons()), *notes]
            if all(is_mostly_bias(e, k) for e, k in maps)
            else (),
            signed=any(fit_scale(class_heat(e, 0, k)).signed for e, k in maps),
        )

    def lines(self, short: bool = False) -> list[str]:
        """One plain line for each map."""
        several = len(self.explanations) > 1
        return [
            (f"biases {bias}, " if several else "") + self.asked.line(e, k, short)
            for bias, e in self.explanations.items()
            for k in range(len(self.asked.classes))
        ]

    def accounts(self) -> list[str]:
        """Return where the score of each class went, one line for each map."""
        several = len(self.asked.classes) > 1, len(self.explanations) > 1
        said = [
            f"{self.asked.classes[k][1]}: " * several[0] + f"bias={bias}: " * several[1] + self.asked.account(e, k)
            for bias, e in self.explanations.items()
            for k in range(len(self.asked.classes))
        ]
        return said if any(several) else [f"{line[0].upper()}{line[1:]}" for line in said]

    def absorbed_shares(self) -> list[float]:
        """Return what biases absorbed of each score, if that is most of it and all there is to say; else nothing."""
        maps = [(e, k) for e in self.explanations.values() for k in range(len(self.asked.classes))]
        is_simple = self.asked.against is None and all(is_mostly_bias(e, k) for e, k in maps)
        return [absorbed_share(e, k) for e, k in maps] if is_simple else []

    def reasons(self) -> list[str]:
        """Which method answered, and why."""
        return [e.reason for e in self.explanations.values() if e.reason]

    def same_map(self) -> list[str]:
        """That a map does not depend on the class, and what to ask instead; if that was measured."""
        return [format_wording(c.sentences()[0]) for c in self.checks.values() if c.same_for_classes]

    def warnings(self) -> list[str]:
        """What must be said first: where the input holds less than half of a score."""
        some = {b: replace(c, overlap=None) for b, c in self.checks.items() if c.own_share < 0.5}
        several = len(self.checks) > 1
        return [f"biases {bias}: " * several + format_wording(check.sentences()[0]) for bias, check in some.items()]

    def record(
        self, model: Mapping[str, Any], explainers: Mapping[str, dt.Explainer], files: list[str]
    ) -> dict[str, Any]:
        """All of it, for programs."""
        photo = self.asked.photo
        return {
            "said_first": [*self.same_map(), *self.warnings()],
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
                            "probability": self.asked.probability(k),
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


def report_failure(called: str, error: DeepTaylorError, text: str) -> ReportEntry:
    """A photograph without maps, for page and sheet: why there are none."""
    if not isinstance(error, NoEvidenceError):
        return ReportEntry(called, [f"Not explained: {text}"])
    pictures = [("photograph", np.asarray(error.photo.seen.convert("RGB")))]
    return ReportEntry(called, [error.line], list_predictions(error.photo), pictures, without=error.names)


def list_predictions(photo: Photo) -> list[tuple[str, float]]:
    """What the network takes a photograph for."""
    return [(r.name, r.probability) for r in photo.recognised if r.probability is not None]


def _maps(e: dt.Explanation) -> Any:
    """The relevance of the photograph: (classes, channels, height, width)."""
    maps = e.numpy()[0]
    return maps if e.score.ndim == 2 else maps[None]


def _original(preparation: dt.Preparation, photo: Photo) -> Photograph:
    """The photograph in its own size, as far as a screen shows it."""
    with silence_libtiff():
        return preparation.original(photo.path, np.asarray(photo.seen)).shrink_to(_LARGEST)


def explain_photo(
    asked: PhotoQuestion,
    network: dt.Pretrained,
    explainers: Mapping[str, dt.Explainer],
    flip: bool,
    check: bool = False,
    smooth: bool = False,
) -> PhotoAnswer:
    """Explain what was asked, once for each way to treat biases.

    flip    measure also whether the network agrees with the map
    check   measure also how much of the map of one class is the same for the next class
    smooth  draw the map without the grid of dots that strides leave
    """
    seen = (np.asarray(asked.photo.seen.convert("RGB")),)
    assert network.preparation is not None  # a photograph was prepared by it
    original = partial(_original, network.preparation, asked.photo)
    found = {b: replace(asked.answer(e), photos=seen, originals=(original,)) for b, e in explainers.items()}
    shares = check and asked.one_class

    def checked(e: dt.Explanation) -> dt.Check:
        named = replace(e, class_names=tuple(network.class_names or ()))
        return named.check(faithful=flip, classes=shares and e.next_class is not None)

    return PhotoAnswer(asked, found, {b: checked(e) for b, e in found.items()}, smooth)


def _share(part: float, score: float) -> str:
    return f"{part:.4g} ({format_percent(part / score, '.3g')})" if score > 0 else f"{part:.4g}"


# --- many photographs -------------------------------------------------------------------------------------------------

REPORT, CONTACT_SHEET = "report.html", "contact_sheet.png"
_SIDE, _THUMBNAIL = 224, 160  # of a picture on the page and the sheet, and in the overview, in pixels
_MOST = 500  # photographs on the page: more would be too much for a browser

_MEANING = """Red pixels support the class in the caption. Each map has its own colour scale, which saturates at
    its 99.5th percentile: compare places between maps, not intensities."""


@dataclass
class ReportEntry:
    """A photograph with its maps, small, as page and sheet show them; or why there are none."""

    name: str
    lines: Sequence[str]
    recognised: Sequence[tuple[str, float]] = ()
    pictures: list[tuple[str, heatmap.Picture]] = field(default_factory=list)  # captions and pictures
    short: Sequence[str] = ()  # the lines beneath `MOSTLY_BIAS`, where that is so of every map
    signed: bool = False  # whether a map has negative values
    without: str = ""  # the classes for which there is no evidence, where there is none for any that was asked


def render_page(command: str, network: str, photographs: Sequence[ReportEntry]) -> str:
    """All photographs on one page that needs nothing else."""
    explained = [photo for photo in photographs if photo.pictures and not photo.without]
    short = bool(explained) and all(photo.short for photo in explained)
    lead: list[pages.Part] = [_describe_count(photographs, network), *[MOSTLY_BIAS] * short, _MEANING]
    lead.append(pages.Legend(any(photo.signed for photo in photographs)))
    if len(photographs) > _MOST:
        lead.append(
            f"This page shows the first {_MOST} photographs; the pictures of all of them are in the same folder."
        )
    lead.append(pages.Overview([(photo.name, _thumbnail(photo)) for photo in photographs[:_MOST]]))
    sections = [_section(photo, short) for photo in photographs[:_MOST]]
    how = pages.Section("How it was computed", [pages.Lines(command)])
    return pages.render_report("Which pixels decided the network's answer?", lead, [*sections, how], "", contents=False)


def _describe_count(photographs: Sequence[ReportEntry], network: str) -> str:
    bad = [photo.name for photo in photographs if not photo.pictures]
    rest = f" Not explained: {', '.join(bad)}." if bad else ""
    without: dict[str, list[str]] = {}
    for photo in photographs:
        if photo.without:
            without.setdefault(photo.without, []).append(photo.name)
    for classes, names in without.items():
        rest += f" No evidence for {classes}, whose score is not above zero: {', '.join(names)}."
    count = len(photographs) - len(bad) - sum(map(len, without.values()))
    return f"{count} photograph{'s' * (count != 1)}, explained with {network}.{rest}"


def _thumbnail(photo: ReportEntry) -> bytes | None:
    """The first map over its photograph; the photograph where there is no map."""
    return heatmap.encode_png(_small(photo.pictures[:2][-1][1], _THUMBNAIL)) if photo.pictures else None


def _section(photo: ReportEntry, short: bool) -> pages.Section:
    row = [
        pages.ReportPicture(heatmap.encode_png(_small(picture)), caption, f"{caption}: {photo.name}", 2 * _SIDE)
        for caption, picture in photo.pictures
    ]
    parts: list[pages.Part] = [pages.PictureRow(row)] if row else []
    parts += photo.short if short and photo.short else photo.lines
    if photo.recognised:
        parts.append(pages.Shares(photo.recognised))
    return pages.Section(photo.name, parts)


def draw_contact_sheet(photographs: Sequence[ReportEntry]) -> heatmap.Picture:
    """Draw a row for each photograph: itself with its file's name, then its maps, each with its class."""
    rows = [photo for photo in photographs if photo.pictures]
    columns = max(len(photo.pictures) for photo in rows)
    blank = np.full((1, 1, 3), 255, np.uint8)
    cells = []
    for photo in rows:
        cells += [(_small(picture), caption) for caption, picture in photo.pictures]
        cells[-len(photo.pictures)] = cells[-len(photo.pictures)][0], photo.name
        cells += [(blank, "")] * (columns - len(photo.pictures))
    return heatmap.montage([c for c, _ in cells], [label for _, label in cells], columns)


def _small(picture: heatmap.Picture, side: int = _SIDE) -> heatmap.Picture:
    image = Image.fromarray(picture)
    image.thumbnail((side, side))
    return np.asarray(image)
