"""Does a loss on relevance repair a network that learned a planted mark? Two data sets, with and without BatchNorm.

    python benchmarks/relevance_loss.py             about an hour on one core; writes results/relevance_loss.json
    python benchmarks/relevance_loss.py --page      writes the table into docs/howto/losses.md

In training, every sample of one class has a bright mark, and no other sample has one. The penalties know where the mark
is, on the marked samples of a batch alone. Measured is the accuracy on test samples without the mark, and on the same
samples all of which have the mark: a network that reads the mark then answers its class.

cross-entropy       no penalty
input gradients     right for the right reasons (Ross et al., 2017): the squared gradient of Σ log p inside the mask
deep Taylor         dt.losses.share_inside, bias="neuron": relevance of one sign, the margin of the class
secants             dt.losses.share_inside, secants against the mean of the samples without the mark: both signs
secants, squared    dt.losses.squared_inside with the same secants: the margin of the class
secants, any class  the same of a random contrast of all classes, drawn anew for every sample of every step

The weight of each penalty is one of four, chosen on validation samples that are in neither of the other splits: the
best mean of both accuracies over two seeds. These two seeds are not among those that are reported.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.support.provenance import versions

RECORD = Path(__file__).resolve().parent / "results/relevance_loss.json"
PAGE = Path(__file__).resolve().parents[1] / "docs/howto/losses.md"
SEEDS, TUNING = (0, 1, 2, 3, 4), (100, 101)
EPOCHS, BATCH, RATE, WIDTH = 30, 64, 1e-2, 12


# --- data -------------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Samples, and a function that puts the mark on some and says where it is."""

    x: Tensor
    classes: Tensor
    put_mark: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
    marked: int  # the class that has the mark in training
    sizes: tuple[int, int]  # of the training and the validation split


def make_digits(lot: torch.Generator) -> Task:
    """The digits of scikit-learn, 8 × 8, and a bright square of 2 × 2 in the lower left corner."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=lot)
    x, classes = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)

    def put_mark(some: Tensor, _: torch.Generator) -> tuple[Tensor, Tensor]:
        mask = torch.zeros_like(some)
        mask[:, :, 6:, :2] = 1
        return torch.where(mask > 0, 1, some), mask

    return Task(x[order], classes[order], put_mark, 8, (900, 400))


def make_shapes(lot: torch.Generator) -> Task:
    """Pictures of 16 × 16 with one of six shapes, dark or bright, under noise; a mark of 3 × 3 in a random corner."""
    count, side, reach = 2500, 16, 5
    at = torch.arange(side)
    row, column = (torch.randint(reach, side - reach, (count, 1, 1), generator=lot) for _ in range(2))
    dy, dx = at[:, None] - row, at - column
    far, near = torch.maximum(dy.abs(), dx.abs()), torch.minimum(dy.abs(), dx.abs())
    round_ = (dy.square() + dx.square()).float().sqrt()
    shapes = torch.stack([
        (round_ <= 4.5) & (round_ >= 3),  # a ring
        (far <= 4) & (far >= 3),  # a frame
        (near < 1) & (far <= 4),  # a cross
        ((dy.abs() - dx.abs()).abs() < 1) & (far <= 4),  # two diagonals
        (dy % 3 == 0) & (far <= 4),  # lying stripes
        (dx % 3 == 0) & (far <= 4),  # standing stripes
    ])  # fmt: skip
    classes = torch.randint(6, (count,), generator=lot)
    shape = shapes[classes, torch.arange(count)].float()[:, None]
    ink = torch.where(torch.rand(count, 1, 1, 1, generator=lot) < 0.5, -0.4, 0.4)
    x = (0.5 + ink * shape + 0.15 * torch.randn(count, 1, side, side, generator=lot)).clamp(0, 1)

    def put_mark(some: Tensor, drawn: torch.Generator) -> tuple[Tensor, Tensor]:
        corner = torch.randint(4, (len(some),), generator=drawn)
        top, left = (torch.where(part > 0, side - 3, 0) for part in (corner // 2, corner % 2))
        inside_rows = (at >= top[:, None]) & (at < top[:, None] + 3)
        inside_columns = (at >= left[:, None]) & (at < left[:, None] + 3)
        mask = (inside_rows[:, :, None] & inside_columns[:, None])[:, None].float()
        return torch.where(mask > 0, 1, some), mask

    return Task(x, classes, put_mark, 2, (1300, 400))


TASKS: Mapping[str, Callable[[torch.Generator], Task]] = {"digits": make_digits, "shapes": make_shapes}


class Splits(NamedTuple):
    """What a network is trained on, and two further splits: samples as they are, all marked, and their classes."""

    x: Tensor
    classes: Tensor
    mask: Tensor
    has_mark: Tensor
    validation: tuple[Tensor, Tensor, Tensor]
    test: tuple[Tensor, Tensor, Tensor]


def make_splits(task: str, seed: int) -> Splits:
    """Return the data for a seed."""
    lot = torch.Generator().manual_seed(seed)
    t = TASKS[task](lot)
    first, second = t.sizes[0], sum(t.sizes)
    x, classes = t.x[:first], t.classes[:first]
    marked, mask = t.put_mark(x, lot)
    has = classes == t.marked
    others = [
        (t.x[part], t.put_mark(t.x[part], lot)[0], t.classes[part])
        for part in (slice(first, second), slice(second, None))
    ]
    pick = has[:, None, None, None]
    return Splits(torch.where(pick, marked, x), classes, torch.where(pick, mask, 0), has, *others)


# --- networks and penalties -------------------------------------------------------------------------------------------


def make_network(side: int, classes: int, batch_norm: bool) -> nn.Sequential:
    """Three convolutions with ReLU and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, WIDTH, 1), (WIDTH, 2 * WIDTH, 2), (2 * WIDTH, 2 * WIDTH, 2)):
        layers.append(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(outputs)] * batch_norm + [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * WIDTH * (side // 4) ** 2, classes))


Penalty = Callable[[Tensor, Tensor, Tensor], Tensor]  # of marked samples, their classes and masks: one number each


def by_gradients(model: nn.Module, data: Splits) -> Penalty:
    """Σ over the mask of (∂/∂x Σ_c log p_c)²."""

    def penalty(x: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        total = model(x).log_softmax(1).sum()
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        return (gradient * mask).square().flatten(1).sum(1)

    return penalty


def by_deep_taylor(model: nn.Module, data: Splits) -> Penalty:
    """The share of the margin's relevance inside the mask."""
    explainer = dt.Explainer(model, data.x[:2], dt.NonNegative(), bias="neuron", live=True)
    return lambda x, classes, mask: dt.losses.share_inside(explainer, x, mask, classes, reduction="none")


def explain_by_secants(model: nn.Module, data: Splits) -> tuple[dt.Explainer, Tensor]:
    """Return a live explainer, and the mean of the samples without the mark, with which it compares."""
    plain = data.x[~data.has_mark]
    return dt.Explainer(model, plain[:2], method="secant", live=True), plain.mean(0, keepdim=True)


def by_secants(model: nn.Module, data: Splits) -> Penalty:
    """The share of the margin's relevance inside the mask, of both signs."""
    explainer, reference = explain_by_secants(model, data)

    def penalty(x: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        return dt.losses.share_inside(explainer, x, mask, classes, reference=reference, reduction="none")

    return penalty


def by_squares(model: nn.Module, data: Splits) -> Penalty:
    """Σ R² over the mask."""
    explainer, reference = explain_by_secants(model, data)

    def penalty(x: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        return dt.losses.squared_inside(explainer, x, mask, classes, reference=reference, reduction="none")

    return penalty


def by_any_class(model: nn.Module, data: Splits) -> Penalty:
    """Σ R² over the mask, for weights of the classes that are random and add up to zero."""
    explainer, reference = explain_by_secants(model, data)
    count = int(data.classes.max()) + 1

    def penalty(x: Tensor, classes: Tensor, mask: Tensor) -> Tensor:
        v = torch.randn(len(x), count)
        v = v - v.mean(1, keepdim=True)
        return dt.losses.squared_inside(explainer, x, mask, target=v, reference=reference, reduction="none")

    return penalty


SHARES, SQUARES = (3.0, 10.0, 30.0, 100.0), (0.1, 1.0, 10.0, 100.0)
METHODS: Mapping[str, tuple[Callable[[nn.Module, Splits], Penalty], tuple[float, ...]]] = {  # with the weights tried
    "input gradients": (by_gradients, SQUARES),
    "deep Taylor": (by_deep_taylor, SHARES),
    "secants": (by_secants, SHARES),
    "secants, squared": (by_squares, SQUARES),
    "secants, any class": (by_any_class, SQUARES),
}


def train(data: Splits, method: str | None, weight: float, batch_norm: bool, seed: int) -> nn.Module:
    """Return a network trained with a penalty of this weight; None: on cross-entropy alone."""
    torch.manual_seed(seed)
    model = make_network(data.x.shape[-1], int(data.classes.max()) + 1, batch_norm)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    steps = EPOCHS * (len(data.x) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    penalty = None if method is None else METHODS[method][0](model, data)
    for _ in range(EPOCHS):
        order = torch.randperm(len(data.x))
        for k in range(0, len(order) - BATCH + 1, BATCH):
            optimizer.zero_grad()
            compute_loss(model, data, order[k : k + BATCH], penalty, weight).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
    return model.eval()


def compute_loss(model: nn.Module, data: Splits, some: Tensor, penalty: Penalty | None, weight: float) -> Tensor:
    """Cross-entropy of a batch, and the penalty of its marked samples."""
    loss = F.cross_entropy(model(data.x[some]), data.classes[some])
    marked = some[data.has_mark[some]]
    if penalty is None or not len(marked):
        return loss
    return loss + weight * penalty(data.x[marked], data.classes[marked], data.mask[marked]).sum() / len(some)


@torch.no_grad()
def measure(model: nn.Module, split: tuple[Tensor, Tensor, Tensor]) -> tuple[float, float]:
    """Return the accuracy on samples as they are, and with the mark on all of them."""
    clean, marked, classes = split
    a, b = (float((model(x).argmax(1) == classes).double().mean()) for x in (clean, marked))
    return a, b


# --- the study --------------------------------------------------------------------------------------------------------


def choose_weight(task: str, method: str, batch_norm: bool) -> tuple[float, dict[str, float]]:
    """Return the weight that is best on validation samples, and the score of each."""
    found = {}
    for weight in METHODS[method][1]:
        scores = []
        for seed in TUNING:
            data = make_splits(task, seed)
            scores += measure(train(data, method, weight, batch_norm, seed), data.validation)
        found[f"{weight:g}"] = sum(scores) / len(scores)
        print(f"    weight {weight:g}: {found[f'{weight:g}']:.3f}", flush=True)
    best = max(found, key=lambda w: found[w])
    return float(best), found


def study(task: str, batch_norm: bool) -> dict[str, Any]:
    """Return both accuracies of every method on every seed."""
    rows: dict[str, Any] = {}
    for method in (None, *METHODS):
        print(f"  {method or 'cross-entropy'}", flush=True)
        weight, scores = (0.0, {}) if method is None else choose_weight(task, method, batch_norm)
        each = []
        for seed in SEEDS:
            data = make_splits(task, seed)
            each.append(measure(train(data, method, weight, batch_norm, seed), data.test))
        rows[method or "cross-entropy"] = {
            "weight": weight, "validation": scores, "clean": [a for a, _ in each], "marked": [b for _, b in each],
        }  # fmt: skip
        print(f"    clean {mean(a for a, _ in each):.3f}, marked {mean(b for _, b in each):.3f}", flush=True)
    return rows


def mean(numbers: Any) -> float:
    """Return the mean of some numbers."""
    listed = list(numbers)
    return math.fsum(listed) / len(listed)


def measure_cost(task: str, batch_norm: bool, repeats: int = 40) -> dict[str, dict[str, float]]:
    """Return the process time of a step in milliseconds, with each penalty and without, in turn.

    on all   every sample of the batch is marked: cross-entropy and penalty read the same samples
    """
    data = make_splits(task, 0)
    few = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0))[:BATCH]
    own = data.has_mark.nonzero().flatten()[:BATCH]
    found: dict[str, dict[str, float]] = {}
    for name, some in (("as drawn", few), ("all marked", own)):
        steps: dict[str, Callable[[], None]] = {}
        for method in (None, *METHODS):
            torch.manual_seed(0)
            model = make_network(data.x.shape[-1], int(data.classes.max()) + 1, batch_norm)
            optimizer = torch.optim.Adam(model.parameters(), RATE)
            penalty = None if method is None else METHODS[method][0](model, data)

            def step(
                model: Any = model, optimizer: Any = optimizer, penalty: Any = penalty, some: Tensor = some
            ) -> None:
                optimizer.zero_grad()
                compute_loss(model, data, some, penalty, 1.0).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

            steps[method or "cross-entropy"] = step
        spent: dict[str, list[float]] = {m: [] for m in steps}
        for k in range(repeats + 5):
            for method, step in steps.items():
                began = time.process_time()
                step()
                if k >= 5:
                    spent[method].append(1000 * (time.process_time() - began))
        found[name] = {m: sorted(times)[len(times) // 2] for m, times in spent.items()}
        found[name]["marked samples"] = int(data.has_mark[some].sum())
    return found


def run() -> None:
    """Run the study and write its record, part by part: what is there already is kept."""
    torch.set_num_threads(1)
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for task in TASKS:
        for batch_norm in (True, False):
            part = f"{task}, {'with' if batch_norm else 'without'} BatchNorm"
            if part in record.get("accuracy", {}):
                continue
            print(part, flush=True)
            rows = study(task, batch_norm)
            record.setdefault("accuracy", {})[part] = rows
            record.setdefault("cost", {})[part] = measure_cost(task, batch_norm)
            record["versions"] = versions()
            RECORD.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the table from the record into the how-to")
    if parser.parse_args().page:
        raise SystemExit("not yet")
    run()


if __name__ == "__main__":
    main()
