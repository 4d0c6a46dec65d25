"""`python -m deeptaylor.demo`: what a real ImageNet network saw in five photographs.

For each: which pixels hold the score of the class that it recognised, and what sets that class apart from the others
that it considered. Prints the plan, the ledgers and the checks; writes heatmaps, overlays and a report.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import deeptaylor as dt
from deeptaylor import assets, heatmap
from deeptaylor.app.demo_page import Explained, Subject, page
from deeptaylor.models.loading.load import load_pretrained
from deeptaylor.models.photographs import class_index
from deeptaylor.shown import percent
from deeptaylor.support.files import outputs, write_whole

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
    parser.add_argument("--overwrite", action="store_true", help="replace what another command wrote, too")
    asked = parser.parse_args(arguments)
    out: Path = asked.out
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with outputs(out, "deeptaylor demo", asked.overwrite) as own:
            own.check(_expected(out))
            run(out)
        if own.replaced:
            print(f"{len(own.replaced)} of the files were there before, and are replaced.")
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
    photos |= dict.fromkeys(BOTH, heatmap.above(photos["cat"], photos["coffee"]))
    example, _ = model.preprocess(photos[PHOTOGRAPHS[0]])
    explainer = _explainer(model, example)
    plan = explainer.plan.summary()
    print(f"\nPlan:\n{plan}")
    subjects = []
    for number, name in enumerate(SUBJECTS, start=1):
        print(f"\n[{number}/{len(SUBJECTS)}] {name}", flush=True)
        subject = _explain(model, explainer, name, photos[name])
        _write_pictures(out, subject)
        subjects.append(subject)
    write_whole(out / "report.html", page(about, CREDIT, subjects, plan).encode("utf-8"))
    print(f"\nReport: {out / 'report.html'} (open it in a browser); all pictures at once: {out / 'montage.png'}")
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
    print("  recognised: " + ", ".join(f"{label} {percent(p)}" for label, p in recognised))
    target = class_index(model, BOTH[name]) if name in BOTH else best[0].index
    asked, explained = model.class_name(target), []
    for question in QUESTIONS:
        start = time.perf_counter()
        e = explainer.explain(x, target) if question == "evidence" else explainer.contrast(x, target)
        seconds = time.perf_counter() - start
        heat, check = heatmap.channel_sum(e.relevance[0]), str(e.check())
        about = _rivals(model, e) if isinstance(e, dt.Contrast) else f"Why {asked}?"
        print(f"  {about} ({seconds:.1f} s)")
        # The check first: it begins with what matters most, such as an input that holds less than half of the score.
        print("    " + check.replace("\n", "\n    "))
        print(f"    {e.ledger}", flush=True)
        explained.append(
            Explained(question, about, str(e.ledger), check, heatmap.colours(heat), heatmap.overlay(seen, heat))
        )
    return Subject(name, np.asarray(seen), asked, recognised, explained)


def _rivals(model: dt.Pretrained, c: dt.Contrast) -> str:
    """What is asked of a contrast, in words."""
    most = ", ".join(f"{model.class_name(k)} {percent(w, '.0f')}" for k, w in c.rivals[0][:3])
    return f"What sets it apart from its rivals ({most}, …)? {c.apart_text()[0].upper()}{c.apart_text()[1:]}."


def _write_pictures(out: Path, subject: Subject) -> None:
    stem = subject.name.replace(" ", "_")
    heatmap.save_png(out / f"{stem}_photo.png", subject.photo)
    for explained in subject.explained:
        heatmap.save_png(out / f"{stem}_{explained.question}_heatmap.png", explained.heatmap)
        heatmap.save_png(out / f"{stem}_{explained.question}_overlay.png", explained.overlay)


def _expected(out: Path) -> list[Path]:
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
        sure = "".join(f" {percent(p, '.0f')}" for label, p in subject.recognised if label == subject.asked)
        pictures.append(subject.photo)
        labels.append(f"why {subject.asked}{sure}?")
        for explained in subject.explained:
            pictures += [explained.heatmap, explained.overlay]
            labels += [titles[explained.question], "the same, over the photograph"]
    return heatmap.montage(pictures, labels, columns=1 + 2 * len(QUESTIONS))
