"""`python -m deeptaylor.demo`: explain five photographs with a real ImageNet network.

For each photograph: which pixels carry the score of the recognised class, and what sets that class apart from its
rivals. Saves heatmaps, overlays, and a report with the plan, the ledgers and the checks.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.formatting import format_percent
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.support.files import outputs, write_whole
from deeptaylor.viz import heatmap, pages
from deeptaylor.viz.heatmap import Picture, encode_png

__all__ = ["main", "run"]

PHOTOGRAPHS = ("cat", "coffee", "rocket", "pagoda", "flower")
# The cat above the cup, in one picture: two classes, each explained.
BOTH = {"cat above cup": "tabby", "cup below cat": "espresso"}
SUBJECTS = (*BOTH, *PHOTOGRAPHS)
QUESTIONS = ("evidence", "contrast")
CREDIT = (
    "Photographs: cat, coffee and rocket from scikit-image (public domain); pagoda by danielbuechele and flower by "
    "vultilion on Flickr, both CC BY 2.0, from scikit-learn."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if all went well, 2 if an explanation could not be made."""
    parser = argparse.ArgumentParser(prog="deeptaylor demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder to write to (%(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="also replace files that another command wrote")
    asked = parser.parse_args(arguments)
    out: Path = asked.out
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with outputs(out, "deeptaylor demo", asked.overwrite) as own:
            own.check(_list_outputs(out))
            run(out)
        if own.replaced:
            print(f"{len(own.replaced)} existing files were replaced.")
    except (dt.DeepTaylorError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(out: Path) -> None:
    """Explain every photograph and write the results into a folder that exists."""
    model = load_pretrained("efficientnet-lite0")
    parameters = sum(p.numel() for p in model.network.parameters())
    about = f"EfficientNet-Lite0, trained on ImageNet: {parameters / 1e6:.1f} million parameters, 1000 classes."
    print(about)
    photos: dict[str, Image.Image] = {name: Image.open(assets.path(name)) for name in PHOTOGRAPHS}
    photos |= dict.fromkeys(BOTH, heatmap.stack_photos(photos["cat"], photos["coffee"]))
    example, _ = model.preprocess(photos[PHOTOGRAPHS[0]])
    explainer = _explainer(model, example)
    plan = explainer.plan.summary()
    print(f"{len(PHOTOGRAPHS)} photographs, {len(SUBJECTS)} questions:")
    subjects = []
    for number, name in enumerate(SUBJECTS, start=1):
        print(f"[{number}/{len(SUBJECTS)}] {name}: ", end="", flush=True)
        subject = _explain(model, explainer, name, photos[name])
        _write_pictures(out, subject)
        subjects.append(subject)
    write_whole(out / "report.html", render_page(about, CREDIT, subjects, plan).encode("utf-8"))
    print(f"Report: {out / 'report.html'} (open it in a browser); all pictures at once: {out / 'montage.png'}")
    heatmap.save_png(out / "montage.png", _montage(subjects))


def _explainer(model: dt.Pretrained, example: torch.Tensor) -> dt.Explainer:
    print("Capturing and planning the network …", end=" ", flush=True)
    start = time.perf_counter()
    explainer = dt.Explainer(model.network, example, domain=model.domain)
    print(f"{time.perf_counter() - start:.1f} s")
    return explainer


def _explain(model: dt.Pretrained, explainer: dt.Explainer, name: str, photo: Image.Image) -> Subject:
    x, seen = model.preprocess(photo)
    best = model.top(x, 5)[0]
    recognised = [(found.name, found.probability) for found in best if found.probability is not None]
    print(", ".join(f"{label} {format_percent(p)}" for label, p in recognised[:3]))
    target = model.class_index(BOTH[name]) if name in BOTH else best[0].index
    asked, explained = model.class_name(target), []
    for question in QUESTIONS:
        e = explainer.explain(x, target) if question == "evidence" else explainer.contrast(x, target)
        heat, check = heatmap.to_heat(e.relevance[0]), str(e.check())
        about = _describe_rivals(model, e) if isinstance(e, dt.Contrast) else f"Why {asked}?"
        if isinstance(e, dt.Contrast):
            print(f"      {asked}: {e.apart_text()}", flush=True)
        explained.append(
            DemoMap(question, about, str(e.ledger), check, heatmap.render(heat), heatmap.overlay(seen, heat))
        )
    return Subject(name, np.asarray(seen), asked, recognised, explained)


def _describe_rivals(model: dt.Pretrained, c: dt.Contrast) -> str:
    """What is asked of a contrast, in words."""
    most = ", ".join(f"{model.class_name(k)} {format_percent(w, '.0f')}" for k, w in c.rivals[0][:3])
    return f"What sets it apart from its rivals ({most}, …)? {c.apart_text()[0].upper()}{c.apart_text()[1:]}."


def _write_pictures(out: Path, subject: Subject) -> None:
    stem = subject.name.replace(" ", "_")
    heatmap.save_png(out / f"{stem}_photo.png", subject.photo)
    for explained in subject.explained:
        heatmap.save_png(out / f"{stem}_{explained.question}_heatmap.png", explained.heatmap)
        heatmap.save_png(out / f"{stem}_{explained.question}_overlay.png", explained.overlay)


def _list_outputs(out: Path) -> list[Path]:
    """All that will be written."""
    kinds = ["photo", *[f"{question}_{kind}" for question in QUESTIONS for kind in ("heatmap", "overlay")]]
    return [out / f"{name.replace(' ', '_')}_{kind}.png" for name in SUBJECTS for kind in kinds] + [
        out / name for name in ("montage.png", "report.html")
    ]


def _montage(subjects: Sequence[Subject]) -> heatmap.Picture:
    """A row for each photograph: itself, then heatmap and overlay of each question."""
    pictures, labels = [], []
    titles = {"evidence": "where its evidence lies", "contrast": "what sets it apart"}
    for subject in subjects:
        sure = "".join(f" {format_percent(p, '.0f')}" for label, p in subject.recognised if label == subject.asked)
        pictures.append(subject.photo)
        labels.append(f"why {subject.asked}{sure}?")
        for explained in subject.explained:
            pictures += [explained.heatmap, explained.overlay]
            labels += [titles[explained.question], "the same, over the photograph"]
    return heatmap.montage(pictures, labels, columns=1 + 2 * len(QUESTIONS))


# --- the report -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DemoMap:
    """One explanation of one photograph."""

    question: str  # evidence, or contrast
    about: str  # the same as a sentence
    ledger: str
    check: str
    heatmap: Picture
    overlay: Picture


@dataclass(frozen=True)
class Subject:
    """A photograph, what the network made of it, and its explanations."""

    name: str
    photo: Picture
    asked: str  # the class that is explained
    recognised: Sequence[tuple[str, float]]
    explained: Sequence[DemoMap]


def render_page(network: str, credit: str, subjects: Sequence[Subject], plan: str) -> str:
    """The report as HTML. Every text that comes from elsewhere is escaped."""
    how = [pages.Lines(plan, "Plan")]
    sections = [*[_subject(subject) for subject in subjects], pages.Section("How it was computed", how)]
    lead: list[pages.Part] = [network, _MEANING, pages.Legend(signed=False)]
    return pages.render_report(
        "What the network saw: deep Taylor decomposition", lead, sections, credit, contents=False
    )


def _subject(subject: Subject) -> pages.Section:
    top = subject.asked
    parts = [part for explained in subject.explained for part in _answer_parts(subject, top, explained)]
    return pages.Section(f"{subject.name.capitalize()}: {top}", [pages.Shares(subject.recognised), *parts])


def _answer_parts(subject: Subject, top: str, explained: DemoMap) -> list[pages.Part]:
    what = f"“{top}”" if explained.question == "evidence" else f"what sets “{top}” apart"
    pictures = (
        (subject.photo, "photograph", f"Photograph: {subject.name}, as the network sees it"),
        (explained.heatmap, "heatmap", f"Heatmap for {what}: red pixels speak for the class"),
        (explained.overlay, "overlay", f"Heatmap for {what}, laid over the photograph in grey"),
    )
    return [
        pages.Heading(explained.about),
        pages.PictureRow(
            [pages.ReportPicture(encode_png(picture), caption, alt) for picture, caption, alt in pictures]
        ),
        explained.ledger,
        pages.Lines(explained.check, "Check"),
    ]


_MEANING = """Each heatmap distributes the score of one class among the pixels (deep Taylor decomposition). The first
    map shows the evidence: how much of the score each pixel carries. The second map shows what sets the class apart:
    the part of the first that its rivals, other probable classes, do not share. Biases of the network absorb a part of
    the score; each map is rescaled to the full score, and the check states how much biases absorbed. Each map has its
    own colour scale, which saturates at its 99.5th percentile: compare places between maps, not intensities."""


if __name__ == "__main__":
    raise SystemExit(main())
