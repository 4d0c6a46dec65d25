"""A known circuit: a small transformer that learned to continue repeated sequences, patched head by head.

    python benchmarks/circuits_induction.py --json FILE

The network reads 6 to 12 different tokens, again and again, and learns to continue. The period is not told, so that
places alone do not help. What such networks learn is known: heads of the first layer read the token before each place,
and heads of the second layer then find the place behind the earlier occurrence of the present token. What the heads
attend to is recorded. The corrupted input has another token at the earlier occurrence, so that the search fails.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.support.statistics import pearson, spearman

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 24, 18, 64, 4, 2
SHORTEST, LONGEST, PERIOD = 6, 12, 11  # of what is repeated; PERIOD: in the pairs that are patched
STEPS, BATCH, PAIRS, IG_POINTS = 2500, 64, 200, 10
RULES = {"frozen": False}  # RelP: norms and attention weights count as constants while it computes its gradient


class _Norm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not RULES["frozen"]:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt().detach() * self.weight + self.bias


class Layer(nn.Module):
    """Attention and an MLP, each added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = _Norm(WIDTH), _Norm(WIDTH)
        self.qkv, self.o_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what every place attends to, (B, heads, places, places), and the values."""
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) * -1e4
        return (q @ k.mT * q.shape[-1] ** -0.5 + later).softmax(-1), v

    def forward(self, x: Tensor) -> Tensor:
        attended, v = self.weights(x)
        attended = attended.detach() if RULES["frozen"] else attended
        x = x + self.o_proj((attended @ v).transpose(1, 2).flatten(2))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Network(nn.Module):
    """Logits of the token after the last; `all_places`: after every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.3)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = _Norm(WIDTH), nn.Linear(WIDTH, WORDS)

    def all_places(self, tokens: Tensor) -> Tensor:
        """Return the logits after every token."""
        x = tokens if tokens.is_floating_point() else self.embed(tokens)
        found: Tensor = self.head(self.norm(self.layers(x + self.places[: x.shape[1]])))
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        return self.all_places(tokens)[:, -1]


def train(seed: int) -> tuple[Network, float]:
    """Return a trained network, and the share of second halves that it predicts right."""
    torch.manual_seed(seed)
    network = Network()
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, STEPS)
    for step in range(STEPS):
        tokens, period = repeat_tokens(BATCH)
        loss = F.cross_entropy(
            network.all_places(tokens)[:, period - 1 : -1].flatten(0, 1), tokens[:, period:].flatten()
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    network.eval().requires_grad_(False)
    shares = []
    for _ in range(20):
        tokens, period = repeat_tokens(BATCH)
        shares.append((network.all_places(tokens)[:, period:-1].argmax(-1) == tokens[:, period + 1 :]).float().mean())
    return network, float(torch.stack(shares).mean())


def repeat_tokens(count: int, period: int | None = None) -> tuple[Tensor, int]:
    """Return sequences of different tokens that repeat, and after how many."""
    period = period or int(torch.randint(SHORTEST, LONGEST + 1, (1,)))
    once = torch.stack([torch.randperm(WORDS)[:period] for _ in range(count)])
    return once.repeat(1, 1 + LENGTH // period)[:, :LENGTH], period


def make_pairs(network: Network, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return clean and corrupted sequences, the token that continues the clean one, and what the other run says."""
    torch.manual_seed(seed)
    clean, _ = repeat_tokens(4 * PAIRS, PERIOD)
    earlier = LENGTH - 1 - PERIOD
    corrupted = clean.clone()
    for row in corrupted:
        row[earlier] = next(k for k in range(WORDS) if k not in row)
    right = clean[:, earlier + 1]
    said = network(corrupted).argmax(1)
    kept = (network(clean).argmax(1) == right) & (said != right)
    return clean[kept][:PAIRS], corrupted[kept][:PAIRS], right[kept][:PAIRS], said[kept][:PAIRS]


def find_circuit(network: Network, clean: Tensor) -> dict[str, list[float]]:
    """Return how much each head attends to the place before, and to the place behind the earlier occurrence."""
    x, found = network.embed(clean) + network.places[: clean.shape[1]], dict[str, list[float]]()
    last = clean.shape[1] - 1
    for k, layer in enumerate(network.layers):
        weights = layer.weights(x)[0]
        before = weights.diagonal(-1, 2, 3)[..., 1:].mean((0, 2))
        behind = weights[:, :, last, last - PERIOD + 1].mean(0)
        for head in range(HEADS):
            found[f"layers.{k}.o_proj head {head}"] = [float(before[head]), float(behind[head])]
        x = layer(x)
    return found


# --- truth and rivals -------------------------------------------------------------------------------------------------


def score(network: Network, tokens: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    """Return the logit of one token minus that of another."""
    logits = network(tokens)
    return (logits.gather(1, right[:, None]) - logits.gather(1, wrong[:, None]))[:, 0]


def keep_values(network: Network, vectors: Tensor, right: Tensor, wrong: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Return what each o_proj reads and each MLP gives, with the scores."""
    kept: dict[str, Tensor] = {}
    handles = []
    for k, layer in enumerate(network.layers):
        handles.append(layer.o_proj.register_forward_pre_hook(lambda _, given, k=k: kept.update({f"{k}.o": given[0]})))
        handles.append(layer.mlp.register_forward_hook(lambda _, __, out, k=k: kept.update({f"{k}.m": out})))
    f = score(network, vectors, right, wrong)
    for handle in handles:
        handle.remove()
    return kept, f


def split(values: dict[str, Tensor]) -> Tensor:
    """Return the sum over each head and each MLP: (B, layers · (heads + 1))."""
    columns = []
    for k in range(LAYERS):
        columns.append(values[f"{k}.o"].unflatten(-1, (HEADS, -1)).sum((1, 3)))
        columns.append(values[f"{k}.m"].sum((1, 2))[:, None])
    return torch.cat(columns, 1)


def slopes(network: Network, vectors: Tensor, right: Tensor, wrong: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the score at every value."""
    with torch.enable_grad():
        kept, f = keep_values(network, vectors.clone().requires_grad_(), right, wrong)
        return dict(zip(kept, torch.autograd.grad(f.sum(), list(kept.values())), strict=True))


def estimates(network: Network, pairs: tuple[Tensor, ...], end: int) -> dict[str, Tensor]:
    """Return the estimates of AtP, RelP and IG; `end`: 0 for noising, 1 for denoising."""
    clean, corrupted, right, wrong = pairs
    ends = [network.embed(t) for t in (clean, corrupted)]
    values = [keep_values(network, t, right, wrong)[0] for t in ends]
    change = {name: values[0][name] - values[1][name] for name in values[0]}

    def product(g: dict[str, Tensor]) -> Tensor:
        return split({name: g[name] * change[name] for name in g})

    found = {"AtP": product(slopes(network, ends[end], right, wrong))}
    RULES["frozen"] = True
    found["RelP"] = product(slopes(network, ends[end], right, wrong))
    RULES["frozen"] = False
    along = [product(slopes(network, torch.lerp(ends[1], ends[0], (k + 0.5) / IG_POINTS), right, wrong))
             for k in range(IG_POINTS)]  # fmt: skip
    found["IG"] = torch.stack(along).mean(0)
    return found


def patch_for_real(network: Network, pairs: tuple[Tensor, ...], end: int) -> Tensor:
    """Return how much the clean value of each component raises the score."""
    clean, corrupted, right, wrong = pairs
    base, other = (clean, corrupted) if end == 0 else (corrupted, clean)
    held = keep_values(network, network.embed(other), right, wrong)[0]
    start, columns = score(network, base, right, wrong), []
    size = WIDTH // HEADS
    for k, layer in enumerate(network.layers):
        for head in range(HEADS):

            def put(_: Any, given: Any, k: int = k, head: int = head) -> Any:
                mixed = given[0].clone()
                mixed[..., head * size : head * size + size] = held[f"{k}.o"][..., head * size : head * size + size]
                return (mixed,)

            handle = layer.o_proj.register_forward_pre_hook(put)
            columns.append(score(network, base, right, wrong))
            handle.remove()
        handle = layer.mlp.register_forward_hook(lambda _, __, out, k=k: held[f"{k}.m"])
        columns.append(score(network, base, right, wrong))
        handle.remove()
    return torch.stack([(start - c) * (1 if end == 0 else -1) for c in columns], 1)


def measure(seed: int) -> dict[str, Any]:
    """Train a network, and compare every estimate with patching for real."""
    began = time.process_time()
    network, right = train(seed)
    with torch.no_grad():
        pairs = make_pairs(network, seed + 1)
        record: dict[str, Any] = {"seed": seed, "accuracy": right, "pairs": len(pairs[0])}
        attends = find_circuit(network, pairs[0])
        record["attends"], record["results"] = attends, {}
        explainer = dt.Explainer(network, method="secant")
        at = [one for k in range(LAYERS) for one in (dt.heads(f"layers.{k}.o_proj", HEADS), f"layers.{k}.mlp")]
        target = dt.margin(pairs[2], pairs[3])
        for end, direction in enumerate(("noising", "denoising")):
            true = patch_for_real(network, pairs, end)
            own = dt.patching(explainer, *pairs[:2], target, at=at, direction=direction, verify=0)
            told = {"ours": own.estimate, "secant": own.secant, **estimates(network, pairs, end)}
            rows = {}
            for name, value in told.items():
                a, b = (t.double().reshape(1, -1) for t in (true, value))
                rows[name] = {
                    "pearson": float(pearson(a, b)), "spearman": float(spearman(a, b)),
                    "l1": float((a - b).abs().sum() / a.abs().sum()),
                    "finds the first": float((true.argmax(1) == value.argmax(1)).double().mean()),
                }  # fmt: skip
            truth = dict(zip(own.names, true.mean(0).tolist(), strict=True))
            record["results"][direction] = {"patching": truth, **rows}
    print(f"seed {seed}: accuracy {right:.3f}, {time.process_time() - began:.0f} s", flush=True)
    return record


def main() -> None:
    """Measure three networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.json.write_text(json.dumps([measure(seed) for seed in range(args.seeds)], indent=1) + "\n")


if __name__ == "__main__":
    main()
