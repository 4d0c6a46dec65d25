"""What does choosing a method cost, and what does an answer? In gradients of the input, in process time.

    python benchmarks/front_door_cost.py [--networks vit_b_16,convnext_tiny] [--batch 2] [--threads 1] [--json FILE]

The self-test runs once per network; it is measured on a fresh explainer that has captured the network already.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import deeptaylor as dt
from torchvision_shim import models


def seconds(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="vit_b_16,convnext_tiny")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    record = {}
    for name in asked.networks.split(","):
        torch.manual_seed(0)
        network = getattr(models, name)(weights=None).eval().requires_grad_(False)
        x = torch.rand(asked.batch, 3, 224, 224)

        def gradient(network: torch.nn.Module = network, x: torch.Tensor = x) -> None:
            t = x.clone().requires_grad_()
            network(t).amax(1).sum().backward()

        made = dt.Explainer(network, x, dt.Box(0.0, 1.0))
        made.between(x, "mean")  # what is captured for secants stays
        secant = dt.Explainer(network, x, dt.Box(0.0, 1.0), method="secant")
        secant.explain(x)
        times: dict[str, list[float]] = {"gradient": [], "secant": []}
        for _ in range(asked.repeats):
            times["gradient"].append(seconds(gradient))
            times["secant"].append(seconds(lambda e=secant, x=x: e.explain(x)))
        unit = statistics.median(times["gradient"])
        test = seconds(lambda e=made, x=x: e.choose(x, None))
        row = {
            "gradient, s": round(unit, 3), "self-test": round(test / unit, 2),
            "secant": round(statistics.median(times["secant"]) / unit, 2),
        }  # fmt: skip
        print(name, row, made.choice, flush=True)
        record[name] = row
    if asked.json:
        about = {"batch": asked.batch, "threads": asked.threads, "rows": record}
        asked.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
