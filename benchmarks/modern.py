"""Judge maps on small modern networks whose truth is known: two tasks (modern_tasks.py), seven networks each.

    python benchmarks/modern_networks.py                          train them first (one to fifteen minutes each)
    python benchmarks/modern.py [--split validation] [--json FILE] [--pictures 60] [--networks vit,swin] [--device cuda]

disc        positive relevance in the object's own box / (own box + the other object's); chance .50
flip        patches of 4 px are replaced by the ground of another picture, least relevant first minus most relevant
            first: mean difference of the class's probability
insertion   mean probability while the most relevant patches are put back into that ground
apart       1 − cosine between the positive maps of the two classes of one picture: 0 for maps blind to the class
blur        flip with a blurred picture as the fill: what a self-test on the user's own input measures

Both classes of every picture are explained, in pictures where the network's first two classes are the right ones.
Choose on `validation`; `test` has other digits and is for the final tables.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
import modern_networks
from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.attnlrp import attnlrp
from deeptaylor.support.statistics import bootstrap
from modern_networks import NETWORKS, as_grid, hooked
from modern_rivals import attnlrp_gamma, chefer
from modern_tasks import CLASSES, SIDE, Pictures, pictures

AT_ONCE, STEPS, PATCH = 32, 16, 4
SHARES = (0.03, 0.06, 0.12, 0.2, 0.3, 0.45, 0.6, 0.8)  # of the patches that are gone
SELF_TESTS = (
    ("explain", "between, mean"),
    ("explain", "secant"),
)
MEASURES = ("disc", "flip", "insertion", "apart", "blur")


@dataclass
class Question:
    """A network, the pictures it recognises, and both classes of each, one map per row."""

    name: str
    model: nn.Module
    stride: int
    x: Tensor
    ground: Tensor
    classes: Tensor
    own: Tensor
    other: Tensor
    sigmoid: bool

    @cached_property
    def logits(self) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.model(x) for x in self.x.split(128)])

    @cached_property
    def against_rivals(self) -> Tensor:
        """Weights e_c − q: the class minus the others by softmax without the class."""
        own = F.one_hot(self.classes, self.logits.shape[1])
        return own - self.logits.masked_fill(own.bool(), float("-inf")).softmax(1)

    @cached_property
    def explainers(self) -> dict[str, dt.Explainer]:
        return {}

    def explainer(self, **settings: Any) -> dt.Explainer:
        settings = {"method": "deep-taylor"} | settings
        key = repr(sorted(settings.items()))
        if key not in self.explainers:
            self.explainers[key] = dt.Explainer(self.model, self.x[:2], dt.Box(0.0, 1.0), **settings)
        return self.explainers[key]

    def batches(self) -> Iterator[slice]:
        for start in range(0, len(self.x), AT_ONCE):
            yield slice(start, min(start + AT_ONCE, len(self.x)))


def question(
    task: str, name: str, seed: int, cache: Path, shown: Pictures, count: int, device: str
) -> tuple[Question, float]:
    """Return the pictures that a network recognises, as questions, and its accuracy on all of them."""
    model, shown = modern_networks.load(task, name, seed, cache).to(device), shown.to(device)
    right = modern_networks.accuracy(model, shown)
    with torch.no_grad():
        top = torch.cat([model(x) for x in shown.x.split(250)]).topk(2).indices
    known = (top.sort(1).values == shown.classes.sort(1).values).all(1).nonzero().flatten()[:count]
    two = known.repeat_interleave(2)
    masks = shown.masks()[known]
    return Question(
        name, model, NETWORKS[name].stride, shown.x[two], shown.ground[two], shown.classes[known].flatten(),
        masks.flatten(0, 1), masks.flip(1).flatten(0, 1), task == "textures",
    ), right  # fmt: skip


# --- methods: a question → maps (N, 48, 48) ---------------------------------------------------------------------------

Method = Callable[[Question], Tensor]


def by_batch(make: Callable[[Question, slice], Tensor]) -> Method:
    return lambda q: torch.cat([make(q, part).detach() for part in q.batches()]).sum(1)


def explain(**settings: Any) -> Method:
    return by_batch(lambda q, k: q.explainer(**settings).explain(q.x[k], q.classes[k]).relevance)


def contrast(part: str, **settings: Any) -> Method:
    return by_batch(lambda q, k: getattr(q.explainer(**settings).contrast(q.x[k], q.classes[k]), part))


def blurred(x: Tensor, sigma: float) -> Tensor:
    at = torch.arange(SIDE, dtype=x.dtype, device=x.device)
    bell = torch.exp(-((at[:, None] - at) / sigma).square() / 2)
    bell = bell / bell.sum(1, keepdim=True)
    return bell @ x @ bell.mT


def mean(x: Tensor) -> Tensor:
    return x.mean((2, 3), keepdim=True).expand_as(x)


REFERENCES: dict[str, Callable[[Question, slice], Any]] = {
    "mean": lambda q, k: mean(q.x[k]),
    "median": lambda q, k: q.x[k].flatten(2).median(2).values[..., None, None].expand_as(q.x[k]),
    "mean and median": lambda q, k: [REFERENCES["mean"](q, k), REFERENCES["median"](q, k)],
    "blur": lambda q, k: blurred(q.x[k], 3.0),
    "wide blur": lambda q, k: blurred(q.x[k], 8.0),
    "background": lambda q, k: q.ground[k],
    "mean and blurs": lambda q, k: [mean(q.x[k]), blurred(q.x[k], 3.0), blurred(q.x[k], 8.0)],
}


ASKED: dict[str, Callable[[Question, slice], Any]] = {
    "": lambda q, k: q.classes[k],
    ", log-odds": lambda q, k: dt.log_odds(q.classes[k]),
    ", rivals": lambda q, k: q.against_rivals[k],
}


def between(reference: str, asked: str) -> Method:
    def make(q: Question, k: slice) -> Tensor:
        target = ASKED[asked](q, k)
        return q.explainer().between(q.x[k], REFERENCES[reference](q, k), target).relevance

    return by_batch(make)


def all_and_halves(reference: str, asked: str, cell: int = 8) -> Method:
    """Half from the whole picture against the reference, half from the two halves of a checkerboard."""
    at = torch.arange(SIDE) // cell
    squares = (at[:, None] + at) % 2 == 0

    def make(q: Question, k: slice) -> Tensor:
        board = squares.to(q.x.device)
        x, target = q.x[k], ASKED[asked](q, k)
        hidden = REFERENCES[reference](q, k)
        whole = q.explainer().between(x, hidden, target).relevance
        halves = [q.explainer().between(x, torch.where(b, hidden, x), target).relevance for b in (board, ~board)]
        return (whole + halves[0] + halves[1]) / 2

    return by_batch(make)


def gradient(q: Question, x: Tensor, k: slice, weights: Tensor | None = None) -> Tensor:
    x = x.detach().requires_grad_()
    out = q.model(x)
    score = out.gather(1, q.classes[k, None]).sum() if weights is None else (out * weights).sum()
    return torch.autograd.grad(score, x)[0]


def integrated(reference: str, rivals: bool = False) -> Method:
    def make(q: Question, k: slice) -> Tensor:
        x0, weights = REFERENCES[reference](q, k), q.against_rivals[k] if rivals else None
        at = [(s + 0.5) / STEPS for s in range(STEPS)]
        return (q.x[k] - x0) * sum(gradient(q, x0 + t * (q.x[k] - x0), k, weights) for t in at) / STEPS

    return by_batch(make)


def grad_cam(q: Question) -> Tensor:
    """Grad-CAM at the last feature map; of the ViT with a class token, in front of its last attention."""
    layer = q.model.blocks[-1].norm1 if q.name == "vit" else NETWORKS[q.name].cells(q.model)
    found = []
    for k in q.batches():
        kept: list[Tensor] = []
        with hooked(layer, kept):
            score = q.model(q.x[k].clone().requires_grad_()).gather(1, q.classes[k, None]).sum()
        slope = torch.autograd.grad(score, kept[0])[0]
        a, g = as_grid(kept[0].detach()), as_grid(slope)
        cam = (g.mean((1, 2), keepdim=True) * a).sum(3).clamp(min=0)
        found.append(F.interpolate(cam[:, None], SIDE, mode="bilinear")[:, 0])
    return torch.cat(found)


def by_attention(q: Question) -> Tensor:
    """Chefer's relevance of patches, spread evenly over their pixels."""
    parts = [chefer(q.model, q.x[k], q.classes[k], q.name == "vit") for k in q.batches()]
    return F.interpolate(torch.cat(parts)[:, None], SIDE, mode="nearest")[:, 0]


def occlusion(window: int, step: int, rivals: bool = False) -> Method:
    """The fall of the logit while a window shows the picture's mean, averaged over the windows at each pixel."""

    def make(q: Question) -> Tensor:
        even = mean(q.x)
        total, times = torch.zeros_like(even[:, 0]), torch.zeros_like(even[0, 0])
        score = q.logits * q.against_rivals if rivals else q.logits.gather(1, q.classes[:, None])
        for top in range(0, SIDE - window + 1, step):
            for left in range(0, SIDE - window + 1, step):
                here = (..., slice(top, top + window), slice(left, left + window))
                x = q.x.clone()
                x[here] = even[here]
                with torch.no_grad():
                    out = torch.cat([q.model(part) for part in x.split(128)])
                now = out * q.against_rivals if rivals else out.gather(1, q.classes[:, None])
                total[here] += (score - now).sum(1)[:, None, None]
                times[here] += 1
        return total / times

    return make


METHODS: dict[str, Method] = {
    "default": explain(method="auto"),
    "secant": explain(method="secant"),
    "default, contrast": by_batch(lambda q, k: q.explainer(method="auto").contrast(q.x[k], q.classes[k]).relevance),
    "explain": explain(),
    "explain, neuron": explain(bias="neuron"),
    "explain, spread": explain(bias="spread"),
    "contrast": contrast("relevance"),
    "contrast difference": contrast("difference"),
    **{f"between, {r}{asked}": between(r, asked) for r in REFERENCES for asked in ASKED},
    **{f"halves, mean{asked}": all_and_halves("mean", asked) for asked in ASKED},
    "integrated gradients": integrated("mean"),
    "integrated gradients, rivals": integrated("mean", rivals=True),
    "gradient x input": by_batch(lambda q, k: gradient(q, q.x[k], k) * q.x[k]),
    "Grad-CAM": grad_cam,
    "occlusion, 8 px": occlusion(8, 4),
    "occlusion, 12 px": occlusion(12, 6),
    "AttnLRP": by_batch(lambda q, k: attnlrp(q.explainer().make_unplanned(), q.x[k], q.classes[k]).relevance),
    "AttnLRP, γ": by_batch(lambda q, k: attnlrp_gamma(q.model, q.x[k], q.classes[k])),
    "Chefer": by_attention,
}
OF_TRANSFORMERS = ("AttnLRP, γ", "Chefer")


# --- maps made of maps ------------------------------------------------------------------------------------------------


def summed(R: Tensor, patch: int) -> Tensor:
    """Sums over patches, spread evenly over their pixels."""
    return F.interpolate(F.avg_pool2d(R[:, None], patch), SIDE, mode="nearest")[:, 0]


def smooth(R: Tensor, sigma: float) -> Tensor:
    return blurred(R[:, None], sigma)[:, 0]


def derive(maps: dict[str, Tensor], stride: int) -> dict[str, Tensor]:
    """Maps that need no further pass: summed over patches of the first stride, or smoothed."""
    found: dict[str, Tensor] = {}
    for name in (
        "between, mean", "between, mean, log-odds", "between, mean, rivals", "halves, mean, log-odds",
        "integrated gradients", "integrated gradients, rivals", "AttnLRP",
    ):  # fmt: skip
        if name in maps:
            found[f"{name} | stride"] = summed(maps[name], stride)
            for sigma in (1.5, 2.4, 3.0, 3.6, 4.8):
                found[f"{name} | smooth {sigma:g}"] = smooth(maps[name], sigma)
    return found


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(q: Question, R: Tensor, self_test: bool) -> dict[str, Tensor]:
    """One value per map and measure; NaN where a map is empty."""
    positive = R.clamp(min=0)
    own, other = ((positive * m).flatten(1).sum(1) for m in (q.own, q.other))
    one, two = positive[0::2].flatten(1), positive[1::2].flatten(1)
    model = nn.Sequential(q.model, nn.Sigmoid()) if q.sigmoid else q.model
    case = Case(model, q.x, q.classes, softmax=not q.sigmoid, batch=128)
    fills = q.ground.roll(2, 0)  # of another picture
    most, least = Flipping(patch=PATCH, fill=lambda _: fills, shares=SHARES).curves(case, R, -R)
    found = {
        "disc": own / (own + other),
        "flip": (least - most).mean(1),
        "insertion": least.mean(1),
        "apart": (1 - F.cosine_similarity(one, two)).repeat_interleave(2),
    }
    if self_test:
        found["blur"] = Flipping(patch=PATCH, shares=SHARES).measure(case, R).values
    return found


def judge_all(q: Question, wanted: Callable[[str], bool], said: Callable[[str], None]) -> dict[str, dict[str, Tensor]]:
    """Every method's values on one network; a method that raises is named and left out."""
    maps: dict[str, Tensor] = {}
    for name, method in METHODS.items():
        if not wanted(name) or (name in OF_TRANSFORMERS and not q.name.startswith("vit")):
            continue
        began = time.perf_counter()
        try:
            maps[name] = method(q).float()
        except DeepTaylorError as error:
            said(f"  {name}: {type(error).__name__}: {error}")
        said(f"  {name} {time.perf_counter() - began:.1f} s")
    if "default" in maps:
        said(f"  {q.explainer(method='auto').choice}")
    tested = {name for pair in SELF_TESTS for name in pair}
    return {name: judge(q, R, name in tested) for name, R in (maps | derive(maps, q.stride)).items()}


def choices(values: dict[str, dict[str, Tensor]], first: str, second: str) -> dict[str, float]:
    """How a self-test by flipping with a blur chooses between two maps, and how often pointing agrees.

    `first` and `second` are shares of groups of n pictures in which the self-test takes the map whose disc (or flip
    with another fill) is the better one over all pictures.
    """
    a, b = values[first], values[second]
    found = {}
    for count in (1, 2, 4, 8):
        one, two = (v["blur"].unflatten(0, (-1, 2)).mean(1) for v in (a, b))
        groups = len(one) // count
        chosen = (two[: groups * count].unflatten(0, (groups, count)).mean(1)
                  > one[: groups * count].unflatten(0, (groups, count)).mean(1))  # fmt: skip
        for measure in ("disc", "flip"):
            better = float(b[measure].nanmean()) > float(a[measure].nanmean())
            found[f"{measure}, {count}"] = round(float((chosen == better).float().mean()), 3)
        found[f"second, {count}"] = round(float(chosen.float().mean()), 3)
    return found


def row(values: dict[str, Tensor]) -> dict[str, list[float]]:
    """Mean and 95 % interval of each measure; pictures are drawn, not maps."""
    groups = np.arange(len(values["disc"])) // 2
    intervals = {m: bootstrap(v.double().cpu().numpy(), groups=groups) for m, v in values.items()}
    return {m: [round(i.mean, 4), round(i.low, 4), round(i.high, 4)] for m, i in intervals.items()}


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    lines = [f"  {'':<46}" + "".join(f"{m:>18}" for m in MEASURES)]
    for name, by in rows.items():
        cells = "".join(f"{by[m][0]:9.3f} ±{(by[m][2] - by[m][1]) / 2:.3f}  " for m in MEASURES if m in by)
        lines.append(f"  {name:<46}{cells}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(CLASSES))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--pictures", type=int, default=60, help="recognised pictures; two maps of each")
    parser.add_argument("--only", default="", help="methods that contain one of these words, separated by |")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=modern_networks.default_cache())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"split": asked.split, "pictures": asked.pictures, "seed": asked.seed, "networks": {}}
    if asked.json and asked.json.exists():  # networks are added one by one
        before = json.loads(asked.json.read_text(encoding="utf-8"))
        if all(before[k] == record[k] for k in ("split", "pictures", "seed")):
            record = before
    words = [w for w in asked.only.split("|") if w]
    for task in asked.tasks.split(","):
        shown = pictures(task, asked.split, 3 * asked.pictures)
        for name in asked.networks.split(","):
            if not modern_networks.weights_file(asked.cache, task, name, asked.seed).exists():
                print(f"{task}, {name}: not trained", flush=True)
                continue
            began = time.perf_counter()
            q, right = question(task, name, asked.seed, asked.cache, shown, asked.pictures, asked.device)
            values = judge_all(
                q, lambda m: not words or any(w in m for w in words), lambda text: print(text, flush=True)
            )
            rows = {method: row(v) for method, v in values.items()}
            tests = {f"{a} / {b}": choices(values, a, b) for a, b in SELF_TESTS if a in values and b in values}
            print(f"{task}, {name}: right {right:.3f}, {len(q.x)} maps, {time.perf_counter() - began:.0f} s")
            print(table(rows), flush=True)
            for pair, found in tests.items():
                print(f"  self-test {pair}: {found}", flush=True)
            record["networks"][f"{task}, {name}"] = {
                "right": round(right, 4), "maps": len(q.x), "stride": q.stride, "rows": rows, "self-test": tests,
            }  # fmt: skip
            if asked.json:
                asked.json.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
