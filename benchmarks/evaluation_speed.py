"""How fast maps are judged: eight methods by flipping on a thousand pictures, and pixel flipping beside Quantus' own.

    python benchmarks/evaluation_speed.py --photos FOLDER --json FILE --device cuda

The photographs are repeated, moved by some pixels, until there are enough. Beside Quantus the work is the same: the
same network, pictures, maps and numbers of removed pixels, each curve from all pixels to none; one run, in turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.evaluation.evaluate import evaluate, load_photographs
from faithful import machine

EIGHT = (
    "deep Taylor", "deep Taylor, spread", "contrast", "contrast, spread", "gradient x input", "squared gradient",
    "integrated gradients", "random",
)  # fmt: skip
STEPS = 336  # so many times the network looks at each picture; Quantus counts channels, and takes divisors only


def many(x: Tensor, count: int) -> Tensor:
    """Pictures again and again, each time moved by some more pixels."""
    turns = [x.roll((3 * k, 5 * k), (2, 3)) for k in range(-(-count // len(x)))]
    return torch.cat(turns)[:count]


def flipping(network: dt.Pretrained, x: Tensor, device: str, batch: int) -> dict[str, Any]:
    """Eight methods, all pictures."""
    began = time.perf_counter()

    def progress(text: str, done: int, of: int) -> None:
        sys.stderr.write(f"\r{text:<30} {done}/{of} {time.perf_counter() - began:.0f} s ")

    found = evaluate(
        network.network, x, EIGHT, domain=network.domain, batch=batch, explained=50, progress=progress
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return {
        "methods": len(EIGHT), "pictures": len(x), "seconds": round(seconds, 1), "failed": dict(found.failed),
        "by method": {s.method: round(s.seconds, 1) for s in found.scores},
    }  # fmt: skip


def beside_quantus(network: dt.Pretrained, x: Tensor, device: str, batch: int, turns: int) -> dict[str, Any]:
    """The same curves by both, in turns; seconds for all pictures."""
    import numpy as np
    import quantus

    classes = network.output(x).argmax(1)
    R = torch.rand(len(x), *x.shape[2:], generator=torch.Generator().manual_seed(0)).to(device)
    shares = tuple(k / STEPS for k in range(1, STEPS + 1))
    ours_, case = Flipping(patch=0, fill="zero", shares=shares), Case(network.network, x, classes, batch=batch)
    fast = replace(case, compiled=torch.compile(network.network, dynamic=False))
    theirs_ = quantus.PixelFlipping(
        features_in_step=x[0].numel() // STEPS, perturb_baseline="black", return_auc_per_sample=False,
        normalise=False, abs=False, disable_warnings=True, display_progressbar=False,
    )  # fmt: skip
    arrays = x.cpu().numpy(), classes.cpu().numpy(), np.repeat(R.cpu().numpy()[:, None], x.shape[1], axis=1)

    def ours() -> Any:
        return ours_.curve(case, R).cpu()

    def compiled() -> Any:
        return ours_.curve(fast, R).cpu()

    def theirs() -> Any:
        return theirs_(
            model=network.network, x_batch=arrays[0], y_batch=arrays[1], a_batch=arrays[2], device=device,
            softmax=True, batch_size=len(x), channel_first=True,
        )  # fmt: skip

    runs = {"ours": ours, "ours, compiled": compiled, "quantus": theirs}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            found = run()
            if turn:  # the first warms up
                taken[name].append(time.perf_counter() - began)
            print(name, turn, f"{time.perf_counter() - began:.2f} s", np.asarray(found).shape, flush=True)
    best = {name: min(values) for name, values in taken.items()}
    ratios = {name: round(best["quantus"] / best[name], 1) for name in ("ours", "ours, compiled")}
    return {"pictures": len(x), "steps": STEPS, "seconds": taken, "times faster": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=64, help="pictures beside Quantus")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    network = dt.load(asked.network)
    x = load_photographs(asked.photos, network).x.to(asked.device)
    network.network.to(asked.device)
    found: dict[str, Any] = {"about": {"network": asked.network, "machine": machine(asked.device)}}
    found["beside quantus"] = beside_quantus(network, x[: asked.beside], asked.device, asked.batch, asked.turns)
    found["flipping"] = flipping(network, many(x, asked.pictures), asked.device, asked.batch)
    asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
