"""Do secants that are smoothed and set against rivals point on photographs as well? The four networks of faithful.py.

    python benchmarks/modern_photos.py --photos FOLDER [--network efficientnet-lite0] [--mosaics 12] [--flipped 24]

Grid pointing on mosaics (all four classes), flipping on single photographs (patches of 16 px; fills: blur, mean).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.engine.method_choice import choose_by_test
from deeptaylor.evaluation.evaluate import load_photographs
from deeptaylor.evaluation.metrics import GridPointing, find_confident, make_mosaics
from deeptaylor.support.statistics import bootstrap

SIGMAS = (4.0, 8.0, 14.0, 28.0)
AT_ONCE = 4


def smooth(R: Tensor, sigma: float) -> Tensor:
    """Blur maps (B, H, W) so that their sums stay the same."""
    for d in (1, 2):
        at = torch.arange(R.shape[d], dtype=R.dtype, device=R.device)
        bell = torch.exp(-((at[:, None] - at) / sigma).square() / 2)
        R = (R.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True))).movedim(-1, d)
    return R


def all_maps(explainer: dt.Explainer, secant: dt.Explainer, case: Case) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {}
    for start in range(0, len(case.x), AT_ONCE):
        k = slice(start, start + AT_ONCE)
        x, classes = case.x[k], case.classes[k]
        c = explainer.contrast(x, classes)
        maps = {
            "explain": c.relevance + c.shared,
            "contrast": c.relevance,
            "contrast difference": c.difference,
            "secant": secant.explain(x, classes).relevance,
            "secant, contrast": secant.contrast(x, classes).relevance,
            "between, mean": secant.between(x, "mean", classes).relevance,
            "between, mean, log-odds": secant.between(x, "mean", dt.log_odds(classes)).relevance,
            "between, blur, log-odds": secant.between(x, "blur", dt.log_odds(classes)).relevance,
        }
        for name, R in maps.items():
            found.setdefault(name, []).append(R.sum(1).detach())
    whole = {name: torch.cat(parts) for name, parts in found.items()}
    for name in ("between, mean, log-odds", "between, blur, log-odds"):
        for sigma in SIGMAS:
            whole[f"{name} | smooth {sigma:g}"] = smooth(whole[name], sigma)
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--mosaics", type=int, default=12)
    parser.add_argument("--flipped", type=int, default=24)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    loaded = dt.load(asked.network)
    network: nn.Module = loaded.network.to(asked.device)
    data = load_photographs(asked.photos, loaded, asked.most)
    data = replace(data, x=data.x.to(asked.device), classes=data.classes.to(asked.device))
    began, record = time.perf_counter(), {}

    def judge(label: str, case: Case, metrics: dict[str, Callable[[Tensor], Tensor]]) -> None:
        explainer = dt.Explainer(network, case.x[:2], loaded.domain, method="deep-taylor")
        secant = dt.Explainer(network, case.x[:2], loaded.domain, method="secant")
        maps = all_maps(explainer, secant, case)
        print(f"{label}: {len(case.x)} maps, {time.perf_counter() - began:.0f} s", flush=True)
        for name, R in maps.items():
            found = {m: bootstrap(np.asarray(f(R).cpu(), dtype=float), groups=case.groups) for m, f in metrics.items()}
            record.setdefault(name, {}).update(
                {m: [round(i.mean, 4), round(i.low, 4), round(i.high, 4)] for m, i in found.items()}
            )
            print(f"  {name:<40}" + "  ".join(f"{m} {i}" for m, i in found.items()), flush=True)
        if label == "flipping":  # what the self-test would choose if the operations did not decide
            pairs = zip(case.x.split(1), case.classes.split(1), maps["explain"], maps["secant"], strict=True)
            tests = [
                choose_by_test(
                    network,
                    x,
                    F.one_hot(c, 1000).to(x),
                    {"deep-taylor": a[None].to(x), "secant": b[None].to(x)},
                    "",
                    True,
                ).areas
                for x, c, a, b in pairs
            ]
            areas = {name: float(np.mean([t[name] for t in tests])) for name in tests[0]}
            ahead = float(np.mean([t["secant"] > t["deep-taylor"] for t in tests]))
            print(f"  self-test: {areas}, secants ahead in {ahead:.2f}", flush=True)

    if asked.flipped:
        known = find_confident(network, data.x, data.classes, 16, 0.5, True)[: asked.flipped]
        case = Case(network, data.x[known], data.classes[known], batch=16)
        fills = ("blur", "mean")
        judge("flipping", case, {
            f"flip, {fill}": lambda R, fill=fill: Flipping(fill=fill).measure(case, R).values for fill in fills
        })  # fmt: skip
    if asked.mosaics:
        grid = make_mosaics(network, data.x, data.classes, asked.mosaics, batch=16)
        judge("grid", grid, {"grid": lambda R: GridPointing().measure(grid, R, lambda *_: R).values})
    if asked.json:
        about = {"network": asked.network, "mosaics": asked.mosaics, "flipped": asked.flipped, "rows": record}
        asked.json.write_text(json.dumps(about, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
