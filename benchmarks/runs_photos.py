"""How fast a run over photographs is beside the bare explainer, decoding included; on a GPU compiled.

    python benchmarks/runs_photos.py --device cuda --count 8192 --json benchmarks/results/runs-h200.json
    python benchmarks/runs_photos.py --network squeezenet --count 256 --batch 16

Photographs are made first: JPEG files of 500 × 375 pixels, textures of the size that photographs have. Weights are
random, which takes as long as any. The bare explainer takes inputs that lie ready where the network is: `explain`, as
the run calls it, and the plain call, which gives map and score alone. It is measured before and after the run, and
between its stretches, so that whatever else the machine does slows both. Reading alone, by the run's own threads, is
measured as well: the run is not faster than that.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.datasets.explain_dataset import Progress, begin, work_of
from deeptaylor.datasets.store import zarr_package
from deeptaylor.models.networks.imagenet_networks import efficientnet_lite0, squeezenet1_1
from deeptaylor.models.networks.preprocessing import Preparation
from deeptaylor.models.networks.pretrained import Pretrained
from zoo import MEAN, STD, randomise

SETTLE = 0.5  # seconds in which the run's threads end what they do
KINDS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "resnet50":
        from speed import build

        return build(name)
    return randomise({"efficientnet-lite0": efficientnet_lite0, "squeezenet": squeezenet1_1}[name]().eval())


def photograph(seed: int) -> bytes:
    """A JPEG of a texture with large and small parts, about as large a file as a photograph."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    rough = small.resize((500, 375), Image.Resampling.BICUBIC)
    fine = np.asarray(rough, np.float32) + rng.normal(0, 6, (375, 500, 1)).astype(np.float32)
    file = io.BytesIO()
    Image.fromarray(fine.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make(folder: Path, count: int, threads: int) -> int:
    """The mean size of the files in bytes."""

    def one(k: int) -> int:
        path = folder / f"class{k % 10}" / f"{k:06d}.jpg"
        path.parent.mkdir(exist_ok=True)
        return path.write_bytes(photograph(k))

    with ThreadPoolExecutor(threads) as pool:
        return round(sum(pool.map(one, range(count))) / count)


def per_second(call: Callable[[Tensor], Any], batches: Sequence[Tensor], seconds: float) -> float:
    """Items per second of a call, over as many batches as the time allows."""
    for x in batches[:2]:
        call(x)
    synchronise(batches[0])
    began, items, k = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        call(batches[k % len(batches)])
        items, k = items + len(batches[0]), k + 1
    synchronise(batches[0])
    return items / (time.perf_counter() - began)


class Stretch:
    """A part of a run, on the clock."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, first: int) -> None:
        self.first, self._since = first, time.perf_counter()

    def per_second(self, last: int) -> float:
        return (last - self.first) / (time.perf_counter() - self._since)


def synchronise(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def reading(work: Any, items: Sequence[Any], threads: int) -> float:
    """Photographs per second that are read and decoded, with nothing else to do."""
    parts = [items[k : k + 16] for k in range(0, len(items), 16)]
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(work.read_batch, parts))
        return len(items) / (time.perf_counter() - began)


def measured(asked: argparse.Namespace, folder: Path, kind: str, batch: int) -> dict[str, Any]:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    preparation = Preparation(
        size=224, resize=256, channels="RGB", white=1, mean=tuple(MEAN), std=tuple(STD), interpolation="bilinear"
    )
    trained = Pretrained(network(asked.network).to(asked.device), None, preparation)
    explainer = trained.explainer()
    work = work_of(folder, explainer, None, None, False, (), None, None, {})
    begin(work, iter(()))
    explainer.to(KINDS[kind])
    if asked.device != "cpu":
        explainer.compile()
    items = list(listed(work))
    ready = [
        torch.stack([work.example(item)[0] for item in items[k : k + batch]]).to(explainer.captured.like)
        for k in range(0, 2 * batch, batch)
    ]
    bare, plain = [per_second(explainer.explain, ready, asked.seconds)], [per_second(explainer, ready, asked.seconds)]
    read = reading(work, items[: min(len(items), 2048)], asked.threads)
    stretch, pairs = Stretch(), list[tuple[float, float]]()

    def progress(p: Progress) -> None:
        if p.done - stretch.first >= asked.every or p.done == p.of:
            rate = stretch.per_second(p.done)
            time.sleep(SETTLE)
            pairs.append((rate, per_second(explainer.explain, ready, asked.seconds)))
            stretch.begin(p.done)

    with tempfile.TemporaryDirectory() as out:
        began, busy = time.perf_counter(), time.process_time()
        store = Path(out) / "store"
        dt.explain_dataset(
            folder, explainer, store, batch=batch, threads=asked.threads, processes=asked.processes, progress=progress
        )  # fmt: skip
        whole, used = time.perf_counter() - began, time.process_time() - busy
        stored = sum(p.stat().st_size for p in Path(out).rglob("*") if p.is_file())
    bare.append(per_second(explainer.explain, ready, asked.seconds))
    plain.append(per_second(explainer, ready, asked.seconds))
    pairs = pairs[1:] if len(pairs) > 1 else pairs  # while the first lasts, all begins
    ran, alone = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    simple = statistics.mean(plain)
    return {
        "network": asked.network, "kind": kind, "batch": batch, "count": len(items), "compiled": asked.device != "cpu",
        "run_per_second": ran, "bare_per_second": alone, "bare_plain_per_second": simple, "bare_runs": bare + plain,
        "reading_per_second": read, "ratio": statistics.median(r / b for r, b in pairs),
        "ratios": [r / b for r, b in pairs], "ratio_plain": ran / simple,
        "whole_run_seconds": whole, "processor_seconds": used, "threads": asked.threads, "processes": asked.processes,
        "bytes_per_item": stored / len(items),
    }  # fmt: skip


def listed(work: Any) -> Any:
    from deeptaylor.datasets.manifest import listed as entered

    return entered(work.source.entries(), work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet50", choices=("resnet50", "efficientnet-lite0", "squeezenet"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["float32"])
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--processes", type=int, default=0, help="that read in place of threads")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement of the bare explainer")
    parser.add_argument("--every", type=int, default=2048, help="items of a stretch")
    parser.add_argument("--photos", type=Path, help="where the photographs are, or are made; kept")
    parser.add_argument("--json", type=Path, help="what is measured is added to this file")
    asked = parser.parse_args()
    zarr_package()  # is it there? Else that would be said after minutes
    with tempfile.TemporaryDirectory() as own:
        folder = asked.photos or Path(own) / "photos"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            print(f"{make(folder, asked.count, asked.threads)} bytes per file", flush=True)
        for kind in asked.kinds:
            for batch in asked.batch:
                found = measured(asked, folder, kind, batch)
                print(json.dumps(found), flush=True)
                if asked.json:
                    keep(asked.json, found)


def keep(path: Path, found: dict[str, Any]) -> None:
    """Add what was measured, in place of what was of the same setting."""
    held = json.loads(path.read_text()) if path.exists() else {"runs": []}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    spins = os.environ.get("GOMP_SPINCOUNT")  # how long OpenMP's threads turn before they sleep
    held["machine"] = {"gpu": gpu, "cores": os.cpu_count(), "spincount": spins, **versions}
    setting = ("network", "kind", "batch", "processes")
    held["runs"] = [r for r in held["runs"] if any(r[key] != found[key] for key in setting)] + [found]
    path.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
