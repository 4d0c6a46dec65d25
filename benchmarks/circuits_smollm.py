"""Circuits of SmolLM2: how near estimates come to activation patching, for every attention block, MLP and head.

    python benchmarks/circuits_smollm.py pairs   FOLDER                      weights and prompts; needs gguf, tokenizers
    python benchmarks/circuits_smollm.py measure FOLDER --values FILE        patching for real, and every method
    python benchmarks/circuits_smollm.py judge   FILE --json FILE            correlations and errors
    python benchmarks/circuits_smollm.py cost    FOLDER --json FILE          time of ours as a multiple of AtP's
    python benchmarks/circuits_smollm.py picture FOLDER                      docs/images/circuits.png; needs gguf

Truth      the network runs on from the layer that is patched, in plain torch; what comes before the first word that
           differs is equal in both runs and is computed once
ours       dt.patching: tangent + share (secant − tangent)
secant     the secant alone; AtP: the tangent alone
RelP       the tangent of a network with frozen norms and attention, half of every product (own version)
IG         mean gradient at 10 points between the embeddings of both prompts, at every component (as EAP-IG at nodes)
AtP*       differs from AtP in what it does for queries and keys, which are not components here, and in one further
           backward pass per layer, 30 of them: it is not a method of at most ten passes
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

import deeptaylor as dt
import text_network
import text_smollm
from deeptaylor.methods.activation_patching import Direction
from deeptaylor.support.statistics import pearson, spearman
from text_network import Llama
from text_rivals import ATTN, CP

PEOPLE = "Alice Tom, Emma Jack, Sarah Mark, Lucy Ben, Jane Adam, Kate Sam, Rose Luke, Grace Paul, Helen Max, Julia Dan"
PLACES = "park, school, office, beach, market, museum"
THINGS = "book, ball, ring, letter, key, flower"
STORIES = (
    "Yesterday {a} and {b} went to the {place}, and {c} gave a {thing} to",
    "After {a} and {b} left the {place}, {c} handed a {thing} to",
    "While {a} and {b} were at the {place}, {c} showed a {thing} to",
)
FACTS = {
    "{} lies in the country of": "Paris France, Rome Italy, Tokyo Japan, London England, Berlin Germany, Moscow Russia",
    "People who live in {} speak": "France French, Italy Italian, Japan Japanese, Germany German, Russia Russian, "
    "China Chinese, Spain Spanish, Poland Polish",
    "If something is not {}, it is": "hot cold, big small, old new, open closed, true false, wet dry",
}
VERBS = (
    "The {} of the old teacher", "The {} behind the tall trees", "Nobody knew where the {} that she bought last year",
    "The {} near the big house",
)  # fmt: skip
NUMBERS = "key keys, book books, dog dogs, car cars, door doors, flower flowers"
IG_POINTS = 10
Array = npt.NDArray[np.float64]
GROUPS = ("attention", "mlp", "heads")


class Pair(NamedTuple):
    """Two prompts with as many tokens, and the two tokens of which the one is right after the clean prompt."""

    kind: str
    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    right: int
    wrong: int


# --- prompts ----------------------------------------------------------------------------------------------------------


def _texts() -> Iterator[tuple[str, str, str, str, str]]:
    """Kind, clean and corrupted prompt, right and wrong continuation."""
    rng = np.random.default_rng(0)
    people = [p.split() for p in PEOPLE.split(", ")]
    for story in STORIES:
        for a, b in (pair[::order] for pair in people for order in (1, -1)):
            place, thing = rng.choice(PLACES.split(", ")), rng.choice(THINGS.split(", "))
            clean, corrupted = (story.format(a=a, b=b, c=c, place=place, thing=thing) for c in (b, a))
            yield "object", clean, corrupted, f" {a}", f" {b}"
    for text, listed in FACTS.items():
        known = [fact.split() for fact in listed.split(", ")]
        for k, (a, right) in enumerate(known):
            b, wrong = known[(k + 1) % len(known)]
            yield "fact", text.format(a), text.format(b), f" {right}", f" {wrong}"
    for text in VERBS:
        for pair in NUMBERS.split(", "):
            one, many = pair.split()
            yield "number", text.format(one), text.format(many), " was", " were"
            yield "number", text.format(many), text.format(one), " were", " was"


def make_pairs(folder: Path) -> None:
    """Write weights and pairs; of these those where the network prefers the right token, in both prompts."""
    import gguf

    text_smollm.prepared(folder)
    held = gguf.GGUFReader(text_smollm.fetch(text_smollm.FILE))
    words, merges = (held.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    tokenizer = text_smollm._tokenizer(words, merges)
    network, kept = text_smollm.load(folder), []
    for kind, clean, corrupted, right, wrong in _texts():
        a, b = ((text_smollm.START, *tokenizer.encode(text).ids) for text in (clean, corrupted))
        r, w = (tokenizer.encode(text).ids for text in (right, wrong))
        if len(a) != len(b) or len(r) != 1 or len(w) != 1:
            continue
        with torch.no_grad():
            tokens = torch.tensor([a, b])
            logits = network(tokens, torch.ones_like(tokens))
        margin = (logits[:, r[0]] - logits[:, w[0]]).tolist()
        if margin[0] > 0 > margin[1]:
            kept.append(Pair(kind, a, b, r[0], w[0])._asdict())
    (folder / "pairs.json").write_text(json.dumps(kept))
    print(len(kept), {kind: sum(p["kind"] == kind for p in kept) for kind in ("object", "fact", "number")})


# --- truth ------------------------------------------------------------------------------------------------------------


class _Trace(NamedTuple):
    """The values of both runs, (2, tokens, …), clean first; and keys and values of the tokens that are equal."""

    stream: list[Tensor]  # in front of each layer
    read: list[Tensor]  # what each o_proj reads
    attended: list[Tensor]
    mlp: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


class Truth:
    """Runs of the network in which one component has its value from the other prompt."""

    def __init__(self, network: Llama, pair: Pair) -> None:
        tokens = torch.tensor([pair.clean, pair.corrupted])
        self.network, self.pair = network, pair
        self.first = int((tokens[0] != tokens[1]).nonzero()[0])  # equal in front of it
        self.cos, self.sin = network.rotary(network.embed_tokens(tokens))
        self.trace = self._run_both(tokens)

    def _run_both(self, tokens: Tensor) -> _Trace:
        network, found = self.network, _Trace([], [], [], [], [], [])
        x = network.embed_tokens(tokens)
        for layer in network.layers:
            found.stream.append(x)
            read, k, v = self._read(layer, x, None, 0)
            attended = layer.self_attn.o_proj(read)
            x = x + attended
            y = self._mlp(layer, x)
            x = x + y
            for values, value in zip(found[1:], (read, attended, y, k, v), strict=True):
                values.append(value)
        self.scores = self._score(x)
        return found

    def _read(
        self, layer: Any, x: Tensor, before: tuple[Tensor, Tensor] | None, start: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what o_proj reads, with keys and values, for tokens from `start` on."""
        own, shape = layer.self_attn, self.network.shape
        y, cos, sin = layer.input_layernorm(x), self.cos[start:], self.sin[start:]
        q = text_network._turned(text_network._split(own.q_proj(y), shape.heads), cos, sin)
        k = text_network._turned(text_network._split(own.k_proj(y), shape.shared), cos, sin)
        v = text_network._split(own.v_proj(y), shape.shared)
        if before is not None:
            k, v = (torch.cat([b.expand(len(t), -1, -1, -1), t], 2) for b, t in zip(before, (k, v), strict=True))
        times = shape.heads // shape.shared
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        bias = torch.zeros(later.shape).masked_fill(later, -torch.inf)
        read = text_network.attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), bias)
        return read, k, v

    def _mlp(self, layer: Any, x: Tensor) -> Tensor:
        y = layer.post_attention_layernorm(x)
        found: Tensor = layer.mlp["down_proj"](F.silu(layer.mlp["gate_proj"](y)) * layer.mlp["up_proj"](y))
        return found

    def _score(self, x: Tensor) -> Tensor:
        logits = F.linear(
            self.network.norm(x[:, -1]), self.network.embed_tokens.weight[[self.pair.right, self.pair.wrong]]
        )
        return logits[:, 0] - logits[:, 1]

    def effects(self) -> dict[str, Array]:
        """Return how much the clean value raises the score: (2, layers) and (2, layers · heads), noising first."""
        p, trace, heads = self.first, self.trace, self.network.shape.heads
        rows = torch.zeros(0, len(self.cos) - p, self.network.shape.width)
        for number, layer in enumerate(self.network.layers):
            before = tuple(t[number][:1, :, :p] for t in (trace.keys, trace.values))
            if len(rows):
                rows = rows + layer.self_attn.o_proj(self._read(layer, rows, before, p)[0])
            stream, read, attended, mlp = (t[number][:, p:] for t in trace[:4])
            own = [stream + attended.flip(0)]  # the other prompt's attention
            for head in read.unflatten(-1, (heads, -1)).flip(0).unbind(2):
                at = len(own) - 1
                mixed = read.unflatten(-1, (heads, -1)).clone()
                mixed[:, :, at] = head
                own.append(stream + layer.self_attn.o_proj(mixed.flatten(2)))
            rows = torch.cat([rows, *own])
            rows = rows + self._mlp(layer, rows)
            rows = torch.cat([rows, stream + attended + mlp.flip(0)])
        scores = self._score(rows).double().reshape(len(self.network.layers), heads + 2, 2)
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64)
        moved = ((self.scores.double() - scores) * signs).permute(2, 0, 1).numpy()
        return {"attention": moved[:, :, 0], "heads": moved[:, :, 1:-1].reshape(2, -1), "mlp": moved[:, :, -1]}


# --- methods ----------------------------------------------------------------------------------------------------------


def _components(network: Llama, vectors: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """Run the network on embeddings, and return what o_proj reads, attention and MLP of every layer, and the logits."""
    read: list[Tensor] = []
    attended: list[Tensor] = []
    mlp: list[Tensor] = []
    handles = []
    for layer in network.layers:
        handles += [
            layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: read.append(given[0])),
            layer.self_attn.register_forward_hook(lambda _, __, out: attended.append(out)),
            layer.mlp["down_proj"].register_forward_hook(lambda _, __, out: mlp.append(out)),
        ]
    logits = network(vectors, torch.ones(vectors.shape[:2]))
    for handle in handles:
        handle.remove()
    return read, attended, mlp, logits


def _slopes(network: Llama, vectors: Tensor, pair: Pair) -> list[list[Tensor]]:
    with torch.enable_grad():
        *values, logits = _components(network, vectors.requires_grad_())
        flat = [t for group in values for t in group]
        found = list(torch.autograd.grad((logits[:, pair.right] - logits[:, pair.wrong]).sum(), flat))
    count = len(network.layers)
    return [found[:count], found[count : 2 * count], found[2 * count :]]


def _products(slopes: list[list[Tensor]], change: list[list[Tensor]], heads: int) -> dict[str, Array]:
    """Return Σ slope · Δ of every head, attention and MLP."""
    read, attended, mlp = ([a * b for a, b in zip(*pair, strict=True)] for pair in zip(slopes, change, strict=True))
    by_head = [t.unflatten(-1, (heads, -1)).sum((0, 1, 3)) for t in read]
    return {
        "attention": torch.stack([t.sum() for t in attended]).double().numpy(),
        "mlp": torch.stack([t.sum() for t in mlp]).double().numpy(),
        "heads": torch.cat(by_head).double().numpy(),
    }


def rivals(network: Llama, pair: Pair) -> dict[str, dict[str, Array]]:
    """Return the estimates of AtP, RelP and IG, noising first."""
    vectors = network.embed_tokens(torch.tensor([pair.clean, pair.corrupted]))
    with torch.no_grad():
        *values, _ = _components(network, vectors)
    change = [[t[:1] - t[1:] for t in group] for group in values]
    heads = network.shape.heads

    def both(find: Callable[[Tensor], list[list[Tensor]]]) -> dict[str, Array]:
        ends = [_products(find(vectors[k : k + 1].clone()), change, heads) for k in range(2)]
        return {group: np.stack([end[group] for end in ends]) for group in GROUPS}

    def relp(at: Tensor) -> list[list[Tensor]]:
        with patch.multiple(text_network, **RELP):
            return _slopes(network, at, pair)

    found = {"AtP": both(lambda at: _slopes(network, at, pair)), "RelP": both(relp)}
    steps = [(k + 0.5) / IG_POINTS for k in range(IG_POINTS)]
    total: list[list[Tensor]] | None = None
    for t in steps:
        own = _slopes(network, torch.lerp(vectors[1:], vectors[:1], t), pair)
        total = (
            own if total is None else [[a + b for a, b in zip(*g, strict=True)] for g in zip(total, own, strict=True)]
        )
    assert total is not None
    mean = _products([[t / IG_POINTS for t in group] for group in total], change, heads)
    found["IG"] = {group: np.stack([mean[group]] * 2) for group in GROUPS}
    return found


RELP = {**CP, "gated": ATTN["gated"]}  # frozen norms and attention, half of every product


class Ours:
    """dt.patching of attention, MLPs and heads."""

    def __init__(self, network: Llama) -> None:
        self.network, self.explainer = network, dt.Explainer(network).make_unplanned()

    def estimate(self, pair: Pair, direction: Direction = "noising") -> dt.Patching:
        """Return the estimates of one direction."""
        heads = dt.heads("layers.*.self_attn.o_proj", self.network.shape.heads)
        clean, corrupted = (torch.tensor([ids]) for ids in (pair.clean, pair.corrupted))
        mask = torch.ones_like(clean)
        return dt.patching(
            self.explainer, (clean, mask), (corrupted, mask), pair.right, against=pair.wrong, direction=direction,
            at=["layers.*.self_attn", "layers.*.mlp.down_proj", heads], verify=0,
        )  # fmt: skip

    def __call__(self, pair: Pair) -> dict[str, dict[str, Array]]:
        """Return estimates and secants of both directions, noising first."""
        both = [self.estimate(pair), self.estimate(pair, "denoising")]
        names = both[0].names
        kinds = ["heads" if " head " in n else "mlp" if "mlp" in n else "attention" for n in names]
        assert len(set(names)) == len(names)
        return {
            label: {
                group: np.stack([
                    getattr(p, attribute)[0, [k for k, kind in enumerate(kinds) if kind == group]].double().numpy()
                    for p in both
                ])
                for group in GROUPS
            }
            for label, attribute in (("ours", "estimate"), ("secant", "secant"))
        }  # fmt: skip


def measure(folder: Path, file: Path, limit: int | None) -> None:
    """Write truth and estimates of every pair; pairs that the file has already are not measured again."""
    network, pairs = text_smollm.load(folder), read_pairs(folder)
    order = sorted(range(len(pairs)), key=lambda k: len(pairs[k].clean))[:limit]
    done = _load(file) if file.exists() else {}
    ours = Ours(network)
    for count, k in enumerate(order, 1):
        if str(k) in done:
            continue
        pair, began = pairs[k], time.process_time()
        with torch.no_grad():
            truth = Truth(network, pair)
            effects = truth.effects()
        methods = {"truth": effects, **rivals(network, pair), **ours(pair)}
        done[str(k)] = {f"{name}/{group}": methods[name][group] for name in methods for group in GROUPS}
        done[str(k)]["scores"] = truth.scores.double().numpy()
        done[str(k)]["kind"] = np.array(pair.kind)
        _save(file, done)
        print(
            f"{count} of {len(order)}: {pair.kind}, {len(pair.clean)} tokens, {time.process_time() - began:.1f} s",
            flush=True,
        )


def _save(file: Path, done: Mapping[str, Mapping[str, Any]]) -> None:
    part = file.with_suffix(".part.npz")
    np.savez_compressed(part, **{f"{k}:{name}": a for k, arrays in done.items() for name, a in arrays.items()})
    part.replace(file)


def _load(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with np.load(file) as held:
        for key in held.files:
            k, _, name = key.partition(":")
            found.setdefault(k, {})[name] = held[key]
    return found


# --- judged -----------------------------------------------------------------------------------------------------------


def judge(file: Path) -> dict[str, Any]:
    """Return Pearson, Spearman and L1 error of every method, with intervals that draw pairs."""
    held = _load(file)
    names = ("ours", "secant", "AtP", "RelP", "IG")
    kinds = [str(arrays["kind"]) for arrays in held.values()]
    record: dict[str, Any] = {
        "pairs": len(held),
        "kinds": {k: kinds.count(k) for k in sorted(set(kinds))},
        "results": {},
    }
    for direction, end in (("noising", 0), ("denoising", 1)):
        for group in GROUPS:
            for skipped in (0, 1):
                cut = skipped * (9 if group == "heads" else 1)
                true = np.stack([a[f"truth/{group}"][end, cut:] for a in held.values()])
                row = {}
                for name in names:
                    told = np.stack([a[f"{name}/{group}"][end, cut:] for a in held.values()])
                    row[name] = {**_agreement(true, told), "intervals": _intervals(true, told)}
                record["results"][f"{direction}, {group}" + ", without layer 0" * skipped] = row
    return record


def _agreement(true: Array, told: Array) -> dict[str, float]:
    a, b = (torch.from_numpy(t).reshape(1, -1) for t in (true, told))
    return {
        "pearson": float(pearson(a, b)), "spearman": float(spearman(a, b)),
        "l1": float((a - b).abs().sum() / a.abs().sum()),
    }  # fmt: skip


def _intervals(true: Array, told: Array, draws: int = 300) -> dict[str, tuple[float, float]]:
    rng = np.random.default_rng(0)
    drawn = [_agreement(true[rows], told[rows]) for rows in rng.integers(0, len(true), (draws, len(true)))]
    ends = {name: np.percentile([d[name] for d in drawn], [2.5, 97.5]) for name in drawn[0]}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


# --- cost -------------------------------------------------------------------------------------------------------------


def measure_cost(folder: Path, turns: int = 7) -> dict[str, Any]:
    """Return the processor time of both, in turns, for prompts of three lengths."""
    network, pairs = text_smollm.load(folder), read_pairs(folder)
    ours, record = Ours(network), dict[str, Any]()
    for length in sorted({len(pair.clean) for pair in pairs})[:: max(1, len({len(p.clean) for p in pairs}) // 3)]:
        pair = next(p for p in pairs if len(p.clean) == length)
        times: dict[str, list[float]] = {"AtP": [], "ours": []}
        for turn in range(turns + 1):
            for name, run in (("AtP", partial(_atp, network, pair)), ("ours", partial(ours.estimate, pair))):
                began = time.process_time()
                run()
                if turn:  # the first captures the network for this length
                    times[name].append(time.process_time() - began)
        ratios = [b / a for a, b in zip(times["AtP"], times["ours"], strict=True)]
        record[str(length)] = {
            "AtP, s": float(np.median(times["AtP"])), "ours, s": float(np.median(times["ours"])),
            "ratio": float(np.median(ratios)), "from": min(ratios), "to": max(ratios),
        }  # fmt: skip
        print(length, record[str(length)], flush=True)
    return record


def _atp(network: Llama, pair: Pair) -> dict[str, Array]:
    """Attribution patching of one direction: both prompts forwards, one backwards."""
    vectors = network.embed_tokens(torch.tensor([pair.clean, pair.corrupted]))
    with torch.no_grad():
        *other, _ = _components(network, vectors[1:])
    with torch.enable_grad():
        *values, logits = _components(network, vectors[:1].clone().requires_grad_())
        flat = [t for group in values for t in group]
        slopes = list(torch.autograd.grad((logits[:, pair.right] - logits[:, pair.wrong]).sum(), flat))
    count = len(network.layers)
    parts = [slopes[k * count : (k + 1) * count] for k in range(3)]
    change = [[a.detach() - b for a, b in zip(*pair, strict=True)] for pair in zip(values, other, strict=True)]
    return _products(parts, change, network.shape.heads)


def draw(folder: Path) -> None:
    """Draw the estimates of the first pair that asks for the indirect object."""
    import gguf

    network = text_smollm.load(folder)
    pair = next(pair for pair in read_pairs(folder) if pair.kind == "object")
    words = gguf.GGUFReader(text_smollm.fetch(text_smollm.FILE)).fields["tokenizer.ggml.tokens"].contents()
    said = tuple(words[token].replace("Ġ", " ").replace("<|endoftext|>", "·") for token in pair.clean)
    tokens = [torch.tensor([ids]) for ids in (pair.clean, pair.corrupted)]
    mask = torch.ones_like(tokens[0])
    found = dt.patching(
        dt.Explainer(network).make_unplanned(), (tokens[0], mask), (tokens[1], mask), pair.right, against=pair.wrong
    )
    print(found)
    figure = replace(found, words=(said,)).plot(size=(8.0, 11.0))
    figure.savefig(Path(__file__).resolve().parents[1] / "docs" / "images" / "circuits.png", dpi=90)


def read_pairs(folder: Path) -> list[Pair]:
    """Return the pairs that `make_pairs` wrote."""
    held = json.loads((folder / "pairs.json").read_text())
    return [Pair(**{**p, "clean": tuple(p["clean"]), "corrupted": tuple(p["corrupted"])}) for p in held]


def main() -> None:
    """Run one step of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("pairs", "measure", "judge", "cost", "picture"))
    parser.add_argument("path", type=Path)
    parser.add_argument("--values", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.step == "pairs":
        make_pairs(args.path)
    elif args.step == "measure":
        measure(args.path, args.values, args.limit)
    elif args.step == "picture":
        draw(args.path)
    else:
        found = judge(args.path) if args.step == "judge" else measure_cost(args.path)
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
