"""Which method ranks the columns of a table as the network does? Rank correlation with setting one column to its mean.

    python benchmarks/tables.py

scikit-learn's breast cancer data (569 rows of 30 columns, standardised: the mean is zero), a perceptron with two
hidden layers, the first 200 rows, each explained for the class that the network chooses. Needs the extra `demo`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.metrics.similarity import spearman

RECORD = Path(__file__).resolve().parent / "results/tables.json"
ROWS = 200


def trained(X: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(X.shape[1], 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), y).backward()
        optimizer.step()
    return model.eval()


def drops(model: nn.Module, x: Tensor, chosen: Tensor) -> Tensor:
    """By how much the score of each row falls, for every column that is set to its mean."""
    columns = x.shape[1]
    without = x.repeat_interleave(columns, 0) * (1 - torch.eye(columns).repeat(len(x), 1))
    with torch.no_grad():
        before, after = (
            model(t).gather(1, k) for t, k in ((x, chosen), (without, chosen.repeat_interleave(columns, 0)))
        )
    return before - after.reshape(len(x), columns)


def main() -> None:
    data = load_breast_cancer()
    X = torch.tensor((data.data - data.data.mean(0)) / data.data.std(0), dtype=torch.float32)
    model = trained(X, torch.tensor(data.target))
    x, box = X[:ROWS], dt.Box(X.amin(0), X.amax(0))
    chosen = model(x).argmax(1, keepdim=True)
    wanted = drops(model, x, chosen)
    maps = {
        "deep Taylor, any values": dt.Explainer(model, x).explain(x, chosen[:, 0]).relevance,
        "deep Taylor, box of the data": dt.Explainer(model, x, box).explain(x, chosen[:, 0]).relevance,
        "between the row and the mean": dt.Explainer(model, x).between(x, torch.zeros_like(x), chosen[:, 0]).relevance,
    }
    found = {name: round(float(spearman(R, wanted).nanmean()), 2) for name, R in maps.items()}
    right = float((model(X).argmax(1) == torch.tensor(data.target)).float().mean())
    RECORD.write_text(json.dumps({"rows": ROWS, "right": round(right, 3), "rank": found}, indent=1) + "\n")
    print(RECORD.read_text())


if __name__ == "__main__":
    main()
