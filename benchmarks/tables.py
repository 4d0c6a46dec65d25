"""Which method ranks the columns of a table as the network does? Rank correlation with Shapley values.

    python benchmarks/tables.py            some minutes

Three data sets of scikit-learn, standardised; on each a perceptron, a gated network and one with attention on the
columns, trained on two thirds of the rows. Explained are rows of the other third, for the class that the network
chooses (diabetes: for its only output). The Shapley values compare with the mean row of the training data; they are
means over random orders of the columns, each order beside its reverse. Needs the extra `demo`.

default       dt.Explainer(model, x, background=X_train).explain(x, target): what `method="auto"` gives
deep Taylor   the same without background; null where an operation has no rule
repeated      rank correlation of the Shapley values from one half of the orders with those from the other half
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import UnsupportedOpError
from deeptaylor.support.statistics import spearman

RECORD = Path(__file__).resolve().parent / "results/tables.json"
ROWS, ORDERS, STEPS = 60, 400, 150
SETS = {"breast cancer": load_breast_cancer, "wine": load_wine, "diabetes": load_diabetes}


class Gated(nn.Module):
    """GELU, then a gated unit: a ⊙ silu(b)."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.first, self.value, self.gate = nn.Linear(columns, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(self.first(x))
        y: Tensor = self.out(self.value(h) * nn.functional.silu(self.gate(h)))
        return y


class Attention(nn.Module):
    """Each column is a token, its value times a vector of its own; they attend to each other, and the mean is read."""

    def __init__(self, columns: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(columns, width) * 0.5) for _ in range(2))
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(-1) * self.scale + self.shift
        n = self.norm(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        y: Tensor = self.out(h.mean(1))
        return y


def perceptron(columns: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(columns, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, outputs)
    )  # fmt: skip


NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "perceptron, ReLU": perceptron, "gated, GELU and SiLU": Gated, "attention on the columns": Attention,
}  # fmt: skip


def standardised(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """X and y for training, X and y of the other rows."""
    data = SETS[name]()
    order = np.random.default_rng(0).permutation(len(data.data))
    X, y = data.data[order], data.target[order]
    at = 2 * len(X) // 3
    X = torch.tensor((X - X[:at].mean(0)) / X[:at].std(0), dtype=torch.float32)
    if y.dtype.kind == "f":
        y = torch.tensor((y - y[:at].mean()) / y[:at].std(), dtype=torch.float32)[:, None]
    else:
        y = torch.tensor(y)
    return X[:at], y[:at], X[at:], y[at:]


def trained(make: Callable[[int, int], nn.Module], X: Tensor, y: Tensor, stopped: bool) -> nn.Module:
    """Train on all rows, or on four fifths until the loss on the others is least (`stopped`)."""
    torch.manual_seed(0)
    model = make(X.shape[1], 1 if y.is_floating_point() else int(y.max()) + 1)
    loss = nn.functional.mse_loss if y.is_floating_point() else nn.functional.cross_entropy
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=1e-3)
    at = 4 * len(X) // 5 if stopped else len(X)
    least, best = torch.inf, model.state_dict()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model(X[:at]), y[:at]).backward()
        optimizer.step()
        if stopped:
            with torch.no_grad():
                now = float(loss(model(X[at:]), y[at:]))
            if now < least:
                least, best = now, {name: t.clone() for name, t in model.state_dict().items()}
    model.load_state_dict(best)
    return model.eval()


def right(model: nn.Module, X: Tensor, y: Tensor) -> float:
    """Share of right classes; of numbers, the share of the variance that is explained."""
    with torch.no_grad():
        z = model(X)
    if y.is_floating_point():
        return float(1 - (z - y).square().mean() / y.var(correction=0))
    return float((z.argmax(1) == y).float().mean())


def shapley(model: nn.Module, x: Tensor, mean: Tensor, chosen: Tensor, orders: int, seed: int) -> Tensor:
    """Shapley values of all rows: columns pass from the mean row to x in random orders, each beside its reverse."""
    lot, columns = torch.Generator().manual_seed(seed), x.shape[1]
    total = torch.zeros_like(x)
    for _ in range(orders // 2):
        order = torch.randperm(columns, generator=lot)
        for sequence in (order, order.flip(0)):
            place = sequence.argsort()  # of each column in this order
            switched = place < torch.arange(columns + 1)[:, None]  # (columns + 1, columns): after 0, 1, … columns
            points = torch.where(switched[:, None], x, mean)
            with torch.no_grad():
                z = model(points.flatten(0, 1)).reshape(columns + 1, len(x), -1)
            scores = z.gather(2, chosen.expand(columns + 1, -1, 1))[..., 0]
            total += scores.diff(dim=0)[place].T
    return total / orders


def deep_taylor(model: nn.Module, x: Tensor, chosen: Tensor) -> Tensor | None:
    try:
        return dt.Explainer(model, x).explain(x, chosen).relevance
    except UnsupportedOpError:
        return None


def measure(name: str, network: str, stopped: bool = True) -> dict[str, Any]:
    X, y, X_test, y_test = standardised(name)
    model = trained(NETWORKS[network], X, y, stopped)
    x = X_test[:ROWS]
    with torch.no_grad():
        chosen = model(x).argmax(1)
    halves = [shapley(model, x, X.mean(0), chosen[:, None], ORDERS // 2, seed) for seed in (0, 1)]
    wanted = (halves[0] + halves[1]) / 2
    answer = dt.Explainer(model, x, background=X).explain(x, chosen)
    maps = {"default": answer.relevance, "deep Taylor": deep_taylor(model, x, chosen)}

    def rank(R: Tensor | None) -> float | None:
        return None if R is None else round(float(spearman(R, wanted).nanmean()), 3)

    return {
        "data": name, "network": network, "columns": x.shape[1], "rows": len(x),
        "right": round(right(model, X_test, y_test), 3),
        "repeated": round(float(spearman(*halves).nanmean()), 3), "rank": {m: rank(R) for m, R in maps.items()},
        "reason": answer.reason,
    }  # fmt: skip


def lines(record: list[dict[str, Any]]) -> str:
    """The table of the how-to."""
    rows = [
        (m["data"], m["network"], *("no rule" if r is None else f"{r:.3f}" for r in m["rank"].values())) for m in record
    ]
    head = ("data", "network", "`background=X_train`", "deep Taylor, without it")
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    record = {
        "stopped": [measure(name, network) for name in SETS for network in NETWORKS],
        "overfitted": [measure("diabetes", network, stopped=False) for network in NETWORKS],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(lines(record["stopped"] + record["overfitted"]))


if __name__ == "__main__":
    main()
