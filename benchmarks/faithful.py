"""The study behind docs/faithful.md: are the maps faithful? faithful_page.py makes the page from the records.

    python benchmarks/faithful.py photographs --network efficientnet-lite0 --photos FOLDER --json FILE [--device cuda]
    python benchmarks/faithful.py criticisms  --network efficientnet-lite0 --photos FOLDER --json FILE
    python benchmarks/faithful.py digits      --json FILE
    python benchmarks/faithful.py synthetic   --json FILE
    python benchmarks/faithful.py photographs --network efficientnet-lite0 --photos FOLDER --json FILE \\
        --add "secant, blurred reference"

photographs   flipping on every photograph, grid pointing on mosaics of those that are recognised; every method
criticisms    other classes, permuted weights, cosine by layer, other fills: on some of the photographs
digits        the paper's two networks on pairs whose digit is known
synthetic     a network trained here on signs whose pixels are known
--add         a method that FILE does not have is measured on the same photographs, and put beside the others
FOLDER holds photographs by class (deeptaylor evaluate --help). On a GPU float32 is computed as float32, not as tf32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import time
import warnings
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import deeptaylor as dt
import synthetic_task
from convergence import convergence
from deeptaylor.engine.deletion import Flipping
from deeptaylor.evaluation.baselines import list_installed
from deeptaylor.evaluation.evaluate import LIBRARY_METHODS, evaluate, load_photographs
from deeptaylor.evaluation.scores import Evaluation, parse_evaluation

AGAIN = "gradient x input"  # measured again beside a method that is added: the same photographs give the same numbers
RANDOMISED = ("top-down randomisation", "emprt")
COMMON = (
    "deep Taylor", "deep Taylor, neuron", "deep Taylor, spread", "contrast", "contrast, spread", "grad-cam",
    "integrated gradients", "gradient x input", "lrp epsilon-plus", "lrp gamma", "random",
)  # fmt: skip


def methods(*, contrast: bool = True) -> list[str]:
    """Ours, and every baseline that is installed."""
    ours = [name for name in LIBRARY_METHODS if contrast or not name.startswith("contrast")]
    return ours + list_installed()


def judged(*args: Any, **kw: Any) -> Evaluation:
    """An evaluation with progress on standard error."""
    began = time.perf_counter()

    def progress(text: str, done: int, of: int) -> None:
        sys.stderr.write(f"\r{text:<40} {done}/{of} {time.perf_counter() - began:.0f} s ")

    found = evaluate(*args, progress=progress, **kw)
    sys.stderr.write("\n")
    return found


def record(found: Evaluation) -> dict[str, Any]:
    """As it goes into a file: values to four digits."""
    kept = found.record()
    for scores in kept["scores"]:
        scores["values"] = [None if v is None else round(v, 4) for v in scores["values"]]
        scores["curves"] = {name: [round(v, 4) for v in curve] for name, curve in scores["curves"].items()}
        for name in ("mean", "low", "high", "seconds"):
            scores[name] = round(scores[name], 4)
    return kept


def of_photographs(asked: argparse.Namespace) -> dict[str, Any]:
    """Every method by flipping and by grid pointing."""
    if asked.add:
        return with_one_more(asked)
    network, x, classes = loaded(asked)
    done: dict[str, Any] = {}

    def keep(so_far: Evaluation) -> None:
        now = {name: record(so_far) for name in so_far.metrics}
        asked.json.write_text(json.dumps({"broken off": True, **done, **now}), encoding="utf-8")

    own = {
        "classes": classes,
        "domain": network.domain,
        "batch": asked.batch,
        "explained": asked.explained,
        "keep": keep,
    }
    done["flipping"] = record(judged(network.network, x, methods(), ("flipping",), **own))
    # Occlusion would look at every mosaic 729 times, and at each for four classes.
    quick = [name for name in methods() if name != "occlusion"]
    grid = judged(network.network, x, quick, ("grid pointing",), mosaic_count=asked.mosaics, **own)
    return {**done, "grid pointing": record(grid), "right": accuracy(network, x, classes)}


def with_one_more(asked: argparse.Namespace) -> dict[str, Any]:
    """The record that there is, with one method more; a rival is measured again, to see that all else is the same."""
    whole = json.loads(asked.json.read_text(encoding="utf-8"))
    network, x, classes = loaded(asked)
    own = {"domain": network.domain, "batch": asked.batch, "explained": asked.explained}
    began, again = time.perf_counter(), {}
    for metric, some, count in (("flipping", asked.few, 0), ("grid pointing", len(x), asked.few // 4)):
        before = parse_evaluation(whole[metric])
        seen = judged(
            network.network, x[:some], (AGAIN,), (metric,), classes=classes[:some], mosaic_count=count, **own
        ).of(metric, AGAIN)  # fmt: skip
        again[metric] = float(abs(before.of(metric, AGAIN).values[: len(seen.values)] - seen.values).max())
        found = judged(
            network.network, x, (asked.add,), (metric,), classes=classes, mosaic_count=asked.mosaics, **own
        ).of(metric, asked.add)  # fmt: skip
        scores = [s for s in before.scores if s.method != asked.add]
        whole[metric] = record(replace(before, scores=(*scores, found)))
        about = {"machine": machine(asked.device), "seconds": round(time.perf_counter() - began, 1), AGAIN: again}
        whole["added"] = whole.get("added", {}) | {asked.add: about}
        asked.json.write_text(json.dumps(whole, ensure_ascii=False) + "\n", encoding="utf-8")
    return whole


def loaded(asked: argparse.Namespace) -> tuple[dt.Pretrained, Tensor, Tensor]:
    """The network on its device, photographs and classes."""
    network = dt.load(asked.network)
    found = load_photographs(asked.photos, network, asked.most)
    network.network.to(asked.device)
    return network, found.x.to(asked.device), found.classes.to(asked.device)


def accuracy(network: dt.Pretrained, x: Tensor, classes: Tensor) -> float:
    """The share of photographs whose class is the network's first."""
    found = torch.cat([network.output(part).argmax(1) for part in x.split(32)])
    return float((found == classes).float().mean())


def of_criticisms(asked: argparse.Namespace) -> dict[str, Any]:
    """What has been said against such maps, as numbers."""
    network, x, classes = loaded(asked)
    some, little = asked.some, asked.few
    few = [name for name in COMMON if name in methods()]
    own = {"domain": network.domain, "batch": asked.batch}
    parts = {
        "random logit": judged(network.network, x[:some], few, ("random logit",), classes=classes[:some], **own),
        "randomised": judged(network.network, x[:little], few, RANDOMISED, classes=classes[:little], **own),
    }
    for fill in ("mean", "zero"):
        name = f"flipping, {fill}"
        parts[name] = judged(network.network, x[:some], few, (Flipping(fill=fill),), classes=classes[:some], **own)
    cosines = {}
    output = network.output(x[:little])
    four = output.topk(4).indices
    for label, settings in (("local", {}), ("not local", {"local": False})):
        explainer = dt.Explainer(network.network, x[:2], network.domain, **settings)
        cosines[label] = {name: round(c, 4) for name, c in convergence(explainer, x[:little], four).items()}
    return {"cosines": cosines, **{name: record(found) for name, found in parts.items()}}


def of_digits(asked: argparse.Namespace) -> dict[str, Any]:
    """The share of relevance on the digit to detect, and flipping to black."""
    from deeptaylor.paper.digit_pairs import BLACK, held_out_pairs, load_digits

    pairs = held_out_pairs(load_digits(), 4 * asked.pairs, absent="distractor")
    with_target = (pairs.target > 0).nonzero().flatten()[: asked.pairs]
    x, ink = pairs.images[with_target].to(asked.device), pairs.target_ink()[with_target, 0]
    found = {}
    for name in ("one-layer", "two-layer"):
        network = dt.load(name)
        network.network.to(asked.device)
        metrics = ("inside", Flipping(patch=4, fill=lambda x: torch.full_like(x, BLACK)))
        found[name] = record(
            judged(network.network, x, methods(contrast=False), metrics, masks=ink, domain=network.domain)
        )
    return {"evaluations": found, "inside by chance": float(ink.float().mean())}


def of_synthetic(asked: argparse.Namespace) -> dict[str, Any]:
    """The share of relevance on the sign, and flipping."""
    model, right = synthetic_task.trained(asked.device)
    x, classes, masks = synthetic_task.pictures(asked.pairs, seed=2)
    x = x.to(asked.device)
    metrics = ("inside", Flipping(patch=8))
    found = judged(model, x, methods(), metrics, classes=classes, masks=masks, domain=dt.Box(0.0, 1.0))
    return {"evaluation": record(found), "right": right, "inside by chance": float(masks.float().mean())}


def machine(device: str) -> dict[str, Any]:
    """Where this was measured, and with what."""
    packages = {}
    for name in ("torch", "captum", "zennit", "grad-cam", "shap"):
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    where = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"device": where, "python": platform.python_version(), "packages": packages | {"deeptaylor": dt.__version__}}


PARTS = {"photographs": of_photographs, "criticisms": of_criticisms, "digits": of_digits, "synthetic": of_synthetic}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--network", default="efficientnet-lite0")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--most", type=int, default=None, help="at most so many photographs")
    parser.add_argument("--mosaics", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=500, help="of digits, or pictures of signs")
    parser.add_argument("--some", type=int, default=50, help="photographs, for criticisms that take long")
    parser.add_argument("--few", type=int, default=16, help="for those that take very long")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--explained", type=int, default=16, help="inputs that a method explains at once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--add", help="a method that is put beside those of the record")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    if asked.part in ("photographs", "criticisms") and asked.photos is None:
        parser.error("--photos FOLDER: where the photographs are")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    found = PARTS[asked.part](asked)
    about = {
        "part": asked.part,
        "network": asked.network,
        "machine": machine(asked.device),
        "seconds": time.perf_counter() - began,
    }
    asked.json.write_text(json.dumps({"about": about} | found, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
