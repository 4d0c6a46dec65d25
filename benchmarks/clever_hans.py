"""A planted mark is found by what heatmaps show: the Clever Hans study.

Every training picture of one class has a small white square in a corner. A network that is trained on them looks at the
square. The training pictures are explained by a run, their heatmaps clustered, and the cluster that agrees best with
the mark is told: how many of its maps are of marked pictures (purity), how many marked pictures it has (recall).

    python benchmarks/clever_hans.py OUT --seeds 3 --count 2000

The pictures are those of `synthetic_task`: six signs at random places on coloured grounds, so that no class has a place
of its own. A second study explains other pictures: half of the class, and a tenth of all others, have the mark.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.viz.heatmap import save_png
from synthetic_task import CLASSES, network, pictures

MARKED, SQUARE, INSET = 2, 6, 3  # the class, the side of its mark, and how far from the corner
BATCH = 64


def marked(x: Tensor, which: Tensor) -> Tensor:
    """The same pictures, some with a white square near the upper left corner."""
    x = x.clone()
    x[which, :, INSET : INSET + SQUARE, INSET : INSET + SQUARE] = 1.0
    return x


def training(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures, classes, and which have the mark: every one of one class, and no other."""
    x, classes, _ = pictures(count, seed)
    which = classes == MARKED
    return marked(x, which), classes, which


def testing(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Other pictures: half of the class has the mark, and a tenth of the others."""
    x, classes, _ = pictures(count, seed)
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    which = torch.where(classes == MARKED, drawn < 0.5, drawn < 0.1)
    return marked(x, which), classes, which


def trained(x: Tensor, classes: Tensor, epochs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = network().train()
    steps = epochs * (len(x) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for k in range(0, len(x) - BATCH + 1, BATCH):
            some = order[k : k + BATCH]
            loss = F.cross_entropy(model(x[some]), classes[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return model.eval()


def study(out: Path, seed: int, count: int, epochs: int, embedding: str) -> dict[str, Any]:
    """One network: trained, its training pictures and others explained, clustered, and drawn."""
    x, classes, which = training(count, 100 + seed)
    began = time.perf_counter()
    model = trained(x, classes, epochs, seed)
    took = time.perf_counter() - began
    found: dict[str, Any] = {"seed": seed, "training_seconds": took}
    other = testing(count // 2, 500 + seed)
    for name, (inputs, own, mark) in {"training": (x, classes, which), "others": other}.items():
        store = out / f"{name}-{seed}"
        data = [(one, int(c)) for one, c in zip(inputs, own, strict=True)]
        run = dt.explain_dataset(data, model, store, domain=dt.Box(0, 1), batch=32)
        t, flags = run.table, mark.numpy()
        right = float((t["prediction"] == t["label"]).mean())
        alone = float((t["prediction"][flags & (t["label"] != MARKED)] == MARKED).mean()) if name == "others" else None
        view = run.view() if name == "training" else run.where(prediction=MARKED)
        clusters = view.clusters(embedding=embedding)
        best = clusters.found(flags[view.rows])
        found[name] = {
            "items": len(run), "clustered": len(view), "right": right, "mark_alone_decides": alone,
            "clusters": clusters.count, "sizes": clusters.sizes.tolist(), "alike": clusters.alike.round(3).tolist(),
            "cluster": best.cluster, "purity": best.purity, "recall": best.recall,
            "most_alike": int(np.argmax(clusters.alike)),
        }  # fmt: skip
        clusters.figure().savefig(out / f"{name}-{seed}.png", dpi=120)
        inside = view[clusters.of(best.cluster)]
        save_png(out / f"{name}-{seed}-cluster.png", inside.montage(12, 6, data=data))
        save_png(out / f"{name}-{seed}-means.png", run.means("label").picture(CLASSES))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--embedding", default="tsne")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in range(asked.seeds):
        results.append(study(asked.out, seed, asked.count, asked.epochs, asked.embedding))
        print(json.dumps(results[-1]), flush=True)
        (asked.out / "clever_hans.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
