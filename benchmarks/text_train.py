"""Sentiment of reviews: MiniLM and a head, trained together; the vectors of the words stay as they are.

The trained network is kept in float16, in parts: it is those rounded weights that everything after reads.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from text_data import Reviews, reviews
from text_network import Sentiment

WORDS = "bert.embeddings.word_embeddings.weight"
SEED, BATCH, RATE, WARM, DECAY = 20, 64, 1e-4, 0.06, 0.01
PARTS = 2


def untrained(folder: Path) -> Sentiment:
    """MiniLM with a head of zeros."""
    network = Sentiment()
    held = torch.load(folder / "minilm.pt", weights_only=True)
    network.bert.load_state_dict({name: w.float() for name, w in held.items()})
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.zeros_(network.head.bias)
    return network


def load(folder: Path, trained: Path) -> Sentiment:
    """The trained network, in float32."""
    network = untrained(folder)
    for part in range(PARTS):
        state = torch.load(trained / f"sentiment{part}.pt", weights_only=True)
        network.load_state_dict({name: w.float() for name, w in state.items()}, strict=False)
    return network.eval().requires_grad_(False)


def save(network: Sentiment, folder: Path) -> None:
    """In float16, all but the vectors of the words."""
    state = {name: w.detach().half().cpu() for name, w in network.state_dict().items() if name != WORDS}
    room = sum(w.numel() for w in state.values()) / PARTS
    parts: list[dict[str, Tensor]] = [{} for _ in range(PARTS)]
    gone = 0
    for name, w in state.items():
        parts[min(PARTS - 1, int(gone // room))][name] = w.clone()
        gone += w.numel()
    for number, part in enumerate(parts):
        torch.save(part, folder / f"sentiment{number}.pt")


def trained(asked: Any) -> dict[str, Any]:
    """Train with fixed seeds, save, and say how often the saved network is right."""
    began = time.perf_counter()
    torch.manual_seed(SEED)
    held = reviews(asked.folder, "train")
    some = Reviews(*(t[: asked.reviews] for t in held)) if asked.reviews else held
    network = untrained(asked.folder).to(asked.device).train()
    network.bert.embeddings.word_embeddings.requires_grad_(False)
    fit(network, some, asked.epochs)
    asked.out.mkdir(parents=True, exist_ok=True)
    save(network, asked.out)
    test = reviews(asked.folder, "test")
    right = accuracy(load(asked.folder, asked.out).to(asked.device), test)
    record = {
        "part": "train", "reviews": len(some.labels), "epochs": asked.epochs, "rate": RATE, "batch": BATCH,
        "tested": len(test.labels), "right": right, "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    (asked.out / "text-train.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return record


def fit(network: Sentiment, data: Reviews, epochs: int) -> None:
    """AdamW; the rate rises, and falls to zero."""
    device = network.head.weight.device
    groups = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(groups, RATE, weight_decay=DECAY)
    steps = epochs * -(-len(data.labels) // BATCH)
    plan = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda k: min(k / max(1, WARM * steps), (steps - k) / max(1, (1 - WARM) * steps))
    )
    for epoch in range(epochs):
        order = torch.randperm(len(data.labels))
        lost: list[Tensor] = []
        for rows in order.split(BATCH):
            some = Reviews(*(t[rows].to(device) for t in data))
            tokens, labels, mask = *some, some.mask
            used = int(mask.sum(1).max())
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = network(tokens[:, :used], mask[:, :used])
            loss = F.cross_entropy(logits.float(), labels)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(groups, 1.0)
            optimiser.step()
            plan.step()
            lost.append(loss.detach())
        print(f"epoch {epoch + 1} of {epochs}: loss {float(torch.stack(lost).mean()):.4f}", flush=True)


@torch.no_grad()
def accuracy(network: Sentiment, data: Reviews) -> float:
    """The share of reviews whose sentiment the network finds."""
    device = network.head.weight.device
    found = [
        network(t.to(device), m.to(device)).argmax(1).cpu() == y
        for t, m, y in zip(data.tokens.split(100), data.mask.split(100), data.labels.split(100), strict=True)
    ]
    return float(torch.cat(found).float().mean())
