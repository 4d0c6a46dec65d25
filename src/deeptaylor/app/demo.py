"""`python -m deeptaylor.demo`: what a real ImageNet network saw in five photographs.

Prints what was recognised, the plan, the ledger and the consistency check; writes heatmaps, overlays and a report.
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
from deeptaylor.app.demo_page import Account, Explained, Subject, page
from deeptaylor.shown import percent
from deeptaylor.support.files import outputs, write_whole

PHOTOGRAPHS = ("cat", "coffee", "rocket", "pagoda", "flower")
BIAS_MODES = ("neuron", "spread")
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
    """Explain every photograph with every bias mode and write the results into a folder that exists."""
    model = dt.load("efficientnet-lite0")
    parameters = sum(p.numel() for p in model.network.parameters())
    about = f"EfficientNet-Lite0, trained on ImageNet: {parameters / 1e6:.1f} million parameters, 1000 classes."
    print(about)
    photos = {name: Image.open(assets.path(name)) for name in PHOTOGRAPHS}
    example, _ = model.preprocess(photos[PHOTOGRAPHS[0]])
    explainers = {bias: _explainer(model, example, bias) for bias in BIAS_MODES}
    plans = {bias: explainer.plan.summary() for bias, explainer in explainers.items()}
    for bias, plan in plans.items():
        print(f'\nPlan with bias="{bias}":\n{plan}')
    subjects = []
    for number, name in enumerate(PHOTOGRAPHS, start=1):
        print(f"\n[{number}/{len(PHOTOGRAPHS)}] {name}", flush=True)
        subject = _explain(model, explainers, name, photos[name])
        _write_pictures(out, subject)
        subjects.append(subject)
    write_whole(out / "report.html", page(about, CREDIT, subjects, plans).encode("utf-8"))
    print(f"\nReport: {out / 'report.html'} (open it in a browser); all pictures at once: {out / 'montage.png'}")
    heatmap.save_png(out / "montage.png", _montage(subjects))


def _explainer(model: dt.Pretrained, example: torch.Tensor, bias: str) -> dt.Explainer:
    print(f'Capturing and planning the network, bias="{bias}" …', end=" ", flush=True)
    start = time.perf_counter()
    explainer = dt.Explainer(model.network, example, domain=model.domain, bias=bias)
    print(f"{time.perf_counter() - start:.1f} s")
    return explainer


def _explain(model: dt.Pretrained, explainers: dict[str, dt.Explainer], name: str, photo: Image.Image) -> Subject:
    x, seen = model.preprocess(photo)
    best = model.top(x, 3)[0]
    recognised = [(found.name, found.probability) for found in best]
    print("  recognised: " + ", ".join(f"{label} {percent(p)}" for label, p in recognised))
    target = best[0].index
    explained = []
    for bias, explainer in explainers.items():
        start = time.perf_counter()
        e = explainer.explain(x, target=target)
        heat = heatmap.channel_sum(e.relevance[0])
        ledger = e.ledger
        account = Account(float(e.score[0]), float(ledger.input[0]), float(ledger.bias[0]), float(ledger.dropped[0]))
        check = str(e.check())
        print(f'  bias="{bias}" ({time.perf_counter() - start:.1f} s)')
        # The check first: it begins with what matters most, such as an input that holds less than half of the score.
        print("    " + check.replace("\n", "\n    "))
        print(f"    ledger: {account}", flush=True)
        explained.append(Explained(bias, account, check, heatmap.colours(heat), heatmap.overlay(seen, heat)))
    return Subject(name, np.asarray(seen), recognised, explained)


def _write_pictures(out: Path, subject: Subject) -> None:
    heatmap.save_png(out / f"{subject.name}_photo.png", subject.photo)
    for explained in subject.explained:
        heatmap.save_png(out / f"{subject.name}_{explained.bias}_heatmap.png", explained.heatmap)
        heatmap.save_png(out / f"{subject.name}_{explained.bias}_overlay.png", explained.overlay)


def _expected(out: Path) -> list[Path]:
    """All that will be written."""
    kinds = ["photo", *[f"{bias}_{kind}" for bias in BIAS_MODES for kind in ("heatmap", "overlay")]]
    return [out / f"{name}_{kind}.png" for name in PHOTOGRAPHS for kind in kinds] + [
        out / name for name in ("montage.png", "report.html")
    ]


def _montage(subjects: Sequence[Subject]) -> heatmap.Picture:
    """A row for each photograph: itself, then heatmap and overlay for each bias mode."""
    pictures, labels = [], []
    for subject in subjects:
        label, probability = subject.recognised[0]
        pictures.append(subject.photo)
        labels.append(f"{label} {percent(probability, '.0f')}")
        for explained in subject.explained:
            pictures += [explained.heatmap, explained.overlay]
            labels += [f"heatmap, bias={explained.bias}", f"overlay, bias={explained.bias}"]
    return heatmap.montage(pictures, labels, columns=1 + 2 * len(BIAS_MODES))
