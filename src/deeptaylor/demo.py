"""`python -m deeptaylor.demo`: explain five photographs with a real ImageNet network.

For each photograph: which pixels carry the score of a class, and how much of that map is specific to the class.
Saves heatmaps, overlays, and a report with the plan, the ledgers and the checks.
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
from deeptaylor.viz import captions, heatmap, pages
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
    print(f"{len(SUBJECTS)} questions about {len(PHOTOGRAPHS)} photographs:")
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
    explainer = dt.Explainer(model, example)
    print(f"{time.perf_counter() - start:.1f} s")
    return explainer


def _explain(model: dt.Pretrained, explainer: dt.Explainer, name: str, photo: Image.Image) -> Subject:
    x, seen = model.preprocess(photo)
    best = model.top(x, 5)[0]
    recognised = [(found.name, found.probability) for found in best if found.probability is not None]
    target = model.class_index(BOTH[name]) if name in BOTH else best[0].index
    asked, explained = model.class_name(target), []
    for question in QUESTIONS:
        e = explainer.explain(x, target) if question == "evidence" else explainer.contrast(x, target)
        heat = heatmap.to_heat(e.relevance[0])
        print(f"      {e.apart_text()}" if isinstance(e, dt.Contrast) else e.label(), flush=True)
        about = _describe_rivals(model, e) if isinstance(e, dt.Contrast) else f"The evidence for {e.label()}."
        check = e.check()
        lines = check.sentences()[1:] if check.is_rescaled else check.sentences()  # the report says the first line once
        details = "\n".join(map(str, [e.ledger, *lines]))
        pictures = heatmap.render(heat), heatmap.overlay(seen, heat)
        explained.append(DemoMap(question, about, details, check.bias_share, *pictures))
    return Subject(name, np.asarray(seen), asked, recognised, explained)


def _describe_rivals(model: dt.Pretrained, c: dt.Contrast) -> str:
    """Describe a contrast: how much of the map is specific to the class, and who its rivals are."""
    most = ", ".join(f"{model.class_name(k)} {format_percent(w, '.0f')}" for k, w in c.rivals[0][:3])
    return f"{c.apart_text()} ({most}, …)."


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
    titles = {"evidence": "where its evidence lies", "contrast": "what its rivals do not share"}
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
    about: str  # the answer, as a sentence
    details: str  # ledger and check
    absorbed: float  # by biases, of the score
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
    absorbed = [explained.absorbed for subject in subjects for explained in subject.explained]
    biases = captions.describe_absorbed_range(absorbed, "constants that the layers of the network add")
    lead: list[pages.Part] = [network, _MEANING, biases, pages.Legend(signed=False)]
    return pages.render_report("Which pixels carry the score?", lead, sections, credit, contents=False)


def _subject(subject: Subject) -> pages.Section:
    top = subject.asked
    parts = [part for explained in subject.explained for part in _answer_parts(subject, top, explained)]
    recognised: list[pages.Part] = ["What the network recognises:", pages.Shares(subject.recognised)]
    return pages.Section(f"{subject.name.capitalize()}: {top}", [*parts, *recognised])


def _answer_parts(subject: Subject, top: str, explained: DemoMap) -> list[pages.Part]:
    what = f"“{top}”" if explained.question == "evidence" else f"what is specific to “{top}”"
    pictures = (
        (subject.photo, "photograph", f"Photograph: {subject.name}, as the network sees it"),
        (explained.heatmap, "heatmap", f"Heatmap for {what}: red pixels speak for the class"),
        (explained.overlay, "overlay", f"Heatmap for {what}, laid over the photograph in grey"),
    )
    return [
        pages.PictureRow(
            [pages.ReportPicture(encode_png(picture), caption, alt) for picture, caption, alt in pictures]
        ),
        explained.about,
        pages.Lines(explained.details, "Ledger and check"),
    ]


_MEANING = """Each heatmap distributes the score of one class among the pixels (deep Taylor decomposition). The first
    map shows the evidence: how much of the score each pixel carries. The second map shows the part of the first that
    the rivals of the class, other probable classes, do not share. Each map has its own colour scale, which saturates at
    its 99.5th percentile: compare places between maps, not intensities."""


if __name__ == "__main__":
    raise SystemExit(main())
