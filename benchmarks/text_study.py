"""The study behind docs/faithful_text.md: are the maps of tokens true? text_page.py makes the page from the records.

    python benchmarks/text_study.py prepare   --folder FOLDER                packages into small files; needs a network
    python benchmarks/text_study.py train     --folder FOLDER --out FOLDER [--device cuda]
    python benchmarks/text_study.py sentiment --folder FOLDER --trained FOLDER --out FOLDER [--device cuda]
    python benchmarks/text_study.py smollm    --folder FOLDER --out FOLDER [--device cuda]

train       MiniLM and a head on IMDb; the trained network and text-train.json
sentiment   maps of every method (kept in sentiment-maps.npz, and not made again), judged: text-sentiment.json
smollm      the same of SmolLM2 and prompts with two continuations: text-smollm.json
On a GPU float32 is computed as float32, not as tf32.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import deeptaylor as dt
import text_data
import text_smollm
import text_train
from deeptaylor.evaluation.scores import Evaluation
from deeptaylor.evaluation.text_metrics import Score, Texts, evaluate_texts
from text_methods import Task, methods

HIDDEN = "hidden"
EXPLAINED = 25  # texts that a method explains at once


def machine(device: str) -> dict[str, str]:
    """Where this was measured, and with what."""
    where = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "deeptaylor": dt.__version__}
    return {"device": where, **versions}


def maps(
    task: Task, file: Path, batch: int = EXPLAINED, wanted: Callable[[str], object] = bool
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The wanted methods' maps, and seconds; those in the file are there already, and not made again."""
    found: dict[str, Tensor] = {}
    if file.is_file():
        with np.load(file) as held:
            found = {name: torch.from_numpy(held[name]) for name in held.files}
    seconds: dict[str, float] = {}
    for name, method in methods(task.instead).items():
        if name in found or not wanted(name):
            continue
        began = time.perf_counter()
        parts = [method(task.some(slice(i, i + batch))).detach().cpu() for i in range(0, len(task.tokens), batch)]
        found[name] = torch.cat(parts).float()
        seconds[name] = round(time.perf_counter() - began, 2)
        print(f"{name}: {seconds[name]} s", flush=True)
        np.savez_compressed(file, **{k: v.numpy() for k, v in found.items()})  # type: ignore[arg-type]
    return found, seconds


class Remembered:
    """A score that is computed once for every text and what is left of it: short texts have few ways to lose words."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.known: dict[bytes, Tensor] = {}

    def __call__(self, tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        rows = torch.cat([numbers[:, None], tokens, mask], 1).to(torch.int32).cpu().numpy()
        keys = [row.tobytes() for row in rows]
        new = {key: k for k, key in enumerate(keys) if key not in self.known}
        if new:
            some = torch.tensor(list(new.values()), device=tokens.device)
            self.known.update(zip(new, self.score(tokens[some], mask[some], numbers[some]), strict=True))
        return torch.stack([self.known[key] for key in keys])


def judged(task: Task, found: dict[str, Tensor], batch: int) -> Evaluation:
    """By token flipping and leaving one out, both ways to take a token away."""
    first = next(iter(task.instead))
    texts = Texts(Remembered(task.margin), task.tokens, task.mask, task.free, batch=batch)
    here = {name: R.to(task.tokens.device) for name, R in found.items()}
    return evaluate_texts(texts, here, {first: task.instead[first], HIDDEN: None})


def record(found: Evaluation, default: str) -> dict[str, Any]:
    """Means with intervals, and how much more than each method the default gets on the same texts."""
    scores = []
    for s in found.scores:
        ahead = found.difference(s.metric, default, s.method)
        intervals = {"": s.interval, "ahead ": ahead}
        numbers = {f"{w}{k}": round(getattr(i, k), 4) for w, i in intervals.items() for k in ("mean", "low", "high")}
        about = {"method": s.method, "metric": s.metric, "samples": s.interval.samples}
        curves = {name: [round(float(v), 4) for v in curve] for name, curve in s.curves.items()}
        scores.append({**about, **numbers, "curves": curves})
    return {"default": default, "scores": scores}


def sentiment_task(asked: argparse.Namespace) -> Task:
    """The trained network and the reviews that test it."""
    network = text_train.load(asked.folder, asked.trained).to(asked.device)
    held = text_data.reviews(asked.folder, "test")
    count = asked.reviews or len(held.labels)
    tokens, mask = held.tokens[:count].to(asked.device), held.mask[:count].to(asked.device)
    special = torch.tensor([text_data.PAD, text_data.CLS, text_data.SEP], device=asked.device)
    with torch.no_grad():
        found = torch.cat([network(t, m).argmax(1) for t, m in zip(tokens.split(100), mask.split(100), strict=True)])
    instead = {"[MASK]": text_data.MASK, "[PAD]": text_data.PAD}
    return Task(
        network, network.bert.embeddings.word_embeddings, tokens, mask, ~torch.isin(tokens, special), found, 1 - found,
        instead, 2, read=lambda m: m / m.sum(1, keepdim=True),
    )  # fmt: skip


def smollm_task(asked: argparse.Namespace) -> Task:
    """SmolLM2 and the prompts after which it prefers the right continuation.

    The token that begins every text stays, and so does the last, at which the answer is read.
    """
    network = text_smollm.load(asked.folder).to(asked.device)
    held = text_smollm.held_prompts(asked.folder)
    tokens, right, wrong, mask = (t.to(asked.device) for t in (*held, held.mask))
    with torch.no_grad():
        out = torch.cat([network(t, m) for t, m in zip(tokens.split(16), mask.split(16), strict=True)])
    rows = torch.arange(len(out), device=out.device)
    kept = (out[rows, right] > out[rows, wrong]).nonzero().flatten()[: asked.reviews or None]
    free = mask.bool() & (tokens != text_smollm.START)
    free[:, -1] = False
    return Task(
        network, network.embed_tokens, tokens[kept], mask[kept], free[kept], right[kept], wrong[kept],
        text_smollm.INSTEAD, text_smollm.SHAPE.vocabulary, read=_at_the_end,
    )  # fmt: skip


def _at_the_end(mask: Tensor) -> Tensor:
    weights = torch.zeros(mask.shape, device=mask.device)
    weights[:, -1] = 1
    return weights


def study(task: Task, asked: argparse.Namespace, part: str) -> dict[str, Any]:
    """Maps, judged, into a record."""
    asked.out.mkdir(parents=True, exist_ok=True)
    found, seconds = maps(task, asked.out / f"{part}-maps.npz", asked.explained, re.compile(asked.methods).match)
    kept = record(judged(task, found, asked.batch), next(iter(methods(task.instead))))
    about = {"part": part, "texts": len(task.tokens), "tokens": round(float(task.free.sum(1).float().mean()), 1)}
    kept = {"about": {**about, "machine": machine(asked.device)}, "seconds": seconds, **kept}
    (asked.out / f"text-{part}.json").write_text(json.dumps(kept, ensure_ascii=False) + "\n", encoding="utf-8")
    return kept


def of_prepare(asked: argparse.Namespace) -> None:
    """Packages into small files."""
    text_data.prepared(asked.folder)
    text_smollm.prepared(asked.folder)


def of_train(asked: argparse.Namespace) -> None:
    """MiniLM and a head."""
    print(text_train.trained(asked))


def of_sentiment(asked: argparse.Namespace) -> None:
    """Reviews."""
    show(study(sentiment_task(asked), asked, "sentiment"))


def of_smollm(asked: argparse.Namespace) -> None:
    """Prompts."""
    show(study(smollm_task(asked), asked, "smollm"))


def show(kept: dict[str, Any]) -> None:
    """The table on standard output."""
    metrics = list(dict.fromkeys(s["metric"] for s in kept["scores"]))
    cells = {(s["method"], s["metric"]): f"{s['mean']:.3f} [{s['low']:.3f}, {s['high']:.3f}]" for s in kept["scores"]}
    print("; ".join(metrics))
    for method in dict.fromkeys(s["method"] for s in kept["scores"]):
        print(f"{method:<40}", *(f"{cells[method, metric]:<26}" for metric in metrics))


PARTS = {"prepare": of_prepare, "train": of_train, "sentiment": of_sentiment, "smollm": of_smollm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path, required=True, help="what prepare wrote")
    parser.add_argument("--trained", type=Path, help="where the trained network is")
    parser.add_argument("--out", type=Path, help="where results go")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--reviews", type=int, default=0, help="at most so many, or prompts")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="texts in one forward pass of a metric")
    parser.add_argument("--methods", default="", help="those whose names begin so, as a regular expression")
    parser.add_argument("--explained", type=int, default=EXPLAINED, help="texts that a method explains at once")
    asked = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    PARTS[asked.part](asked)


if __name__ == "__main__":
    main()
