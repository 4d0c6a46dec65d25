"""What secants cost beside the gradient, for networks that read tokens: medians in milliseconds, and peak memory.

    python benchmarks/text_speed.py bert  --json FILE [--device cuda]     BERT-base's shape, 16 texts of 128 tokens
    python benchmarks/text_speed.py llama --json FILE [--layers 1,2,4,8]  Llama-8B's shape, one text of 4,096 tokens
    python benchmarks/text_speed.py smollm --json FILE                    SmolLM2 itself, a prompt of ten tokens

Of the first two, weights are random. The gradient is that of the margin with respect to the vectors of the tokens,
forward and backward, of the same network. Peak memory is above what weights and inputs take, in MiB. Layers are added
until memory runs out.
SmolLM2 is read from its GGUF file, for which `gguf` and `accelerate` are needed: how long the first answer takes, which
captures, and those after it, with the ten comparisons of the default and with one.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.assets import fetch
from text_network import BERT_BASE, LLAMA_8B, Llama, Sentiment
from text_smollm import FILE
from text_study import machine

MASK = 103
REPEATS = 11
PROMPT = "The capital city of the country France is called the"


def timed(call: Callable[[], Any], cuda: bool, repeats: int) -> dict[str, float]:
    """Median milliseconds, and on a GPU the peak of memory."""
    for _ in range(3 if cuda else 1):
        call()
    gc.collect()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        if cuda:
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    times = {"ms": round(statistics.median(found), 2), "slowest": round(max(found), 2)}
    return times | {"mib": round((torch.cuda.max_memory_allocated() - before) / 2**20)} if cuda else times


def gradient(network: Callable[..., Tensor], words: nn.Embedding, tokens: Tensor, mask: Tensor) -> Tensor:
    """Of the margin of two answers, at the vectors of the tokens."""
    vectors = words(tokens).detach().requires_grad_()
    out = network(vectors, mask)
    (found,) = torch.autograd.grad((out[:, 1] - out[:, 0]).sum(), vectors)
    return found


def margin(tokens: Tensor, answers: int) -> Tensor:
    """The same margin as a target."""
    asked = torch.zeros(len(tokens), answers, device=tokens.device)
    asked[:, 1], asked[:, 0] = 1, -1
    return asked


class Case:
    """A network with its gradient and its secants."""

    def __init__(self, network: nn.Module, words: nn.Embedding, tokens: Tensor, answers: int) -> None:
        self.network, self.words, self.tokens = network, words, tokens
        self.mask, self.reference = torch.ones_like(tokens), torch.full_like(tokens, MASK)
        self.asked, self.explainer = margin(tokens, answers), dt.Explainer(network)

    def secant(self) -> dt.Between:
        return self.explainer.between((self.tokens, self.mask), (self.reference, None), self.asked)

    def measured(self, network: nn.Module, repeats: int, name: str = "") -> dict[str, Any]:
        """Times and memory of both, and how many times one takes the other's."""
        cuda = self.tokens.is_cuda
        slopes = timed(lambda: gradient(network, self.words, self.tokens, self.mask), cuda, repeats)
        secant = timed(self.secant, cuda, repeats)
        found = {"gradient": slopes, "secant": secant, "ratio": round(secant["ms"] / slopes["ms"], 2)}
        return {key + name: value for key, value in found.items()}

    def eager(self, repeats: int) -> dict[str, Any]:
        """As they are."""
        return {"gap": float(self.secant().ledger.gap.max()), **self.measured(self.network, repeats)}

    def compiled(self, repeats: int) -> dict[str, Any]:
        """Both compiled by torch.compile."""
        self.explainer.compile()
        gap = float(self.secant().ledger.gap.max())
        return {"gap compiled": gap, **self.measured(torch.compile(self.network), repeats, " compiled")}


def of_bert(asked: argparse.Namespace) -> dict[str, Any]:
    """BERT-base's shape; what is compiled comes last, since a process that has compiled is slower at all else."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    cases: dict[str, Case] = {}
    for dtype in asked.types.split(","):
        network = Sentiment(BERT_BASE).eval().requires_grad_(False).to(asked.device, getattr(torch, dtype))
        tokens = torch.randint(1000, 30000, (asked.texts, asked.tokens or 128), device=asked.device)
        cases[dtype] = Case(network, network.bert.embeddings.word_embeddings, tokens, 2)
        found[dtype] = cases[dtype].eager(asked.repeats)
        print(dtype, found[dtype], flush=True)
    for dtype, case in cases.items() if asked.compiled else ():
        found[dtype] |= case.compiled(asked.repeats)
        print(dtype, found[dtype], flush=True)
    return found


def of_llama(asked: argparse.Namespace) -> dict[str, Any]:
    """Llama-8B's shape, more and more layers of it."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for layers in map(int, asked.layers.split(",")):
        with torch.device(asked.device):
            network = Llama(replace(LLAMA_8B, layers=layers)).eval().requires_grad_(False).to(torch.bfloat16)
            tokens = torch.randint(1000, 30000, (1, asked.tokens or 4096))
        try:
            found[str(layers)] = Case(network, network.embed_tokens, tokens, LLAMA_8B.vocabulary).eager(repeats=3)
        except (torch.OutOfMemoryError, dt.DeepTaylorError) as error:
            print(error, flush=True)
            found[str(layers)] = "out of memory" if "memory" in str(error).lower() else "refused"
            break
        finally:
            print(layers, found.get(str(layers)), flush=True)
            del network
            gc.collect()
            torch.cuda.empty_cache()
    return found


def of_smollm(asked: argparse.Namespace) -> dict[str, Any]:
    """SmolLM2-135M as a user asks it, beside its own gradient for as many texts as are compared."""
    import transformers

    file = fetch(FILE)
    read = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    network = transformers.AutoModelForCausalLM.from_pretrained(**read, dtype="float32").eval().requires_grad_(False)
    p = dt.load(network, tokenizer=transformers.AutoTokenizer.from_pretrained(**read))
    found: dict[str, Any] = {"tokens": len(p.tokenizer(PROMPT)["input_ids"]), "threads": torch.get_num_threads()}
    for name, reference in (("default", None), ("one comparison", "pad")):
        began = time.perf_counter()
        e = p.explain(PROMPT, continuation=" Paris", reference=reference)
        found[f"{name}, first, s"] = round(time.perf_counter() - began, 2)
        found[f"{name}, gap"] = float(e.answer.ledger.gap.max())
        ask = partial(p.explain, PROMPT, continuation=" Paris", reference=reference)
        found[name] = timed(ask, False, asked.repeats)
    tokens = torch.tensor([p.tokenizer(PROMPT)["input_ids"]] * 10)
    found["gradient of ten"] = timed(lambda: next_token_gradient(network, tokens), False, asked.repeats)
    print(found, flush=True)
    return found


def next_token_gradient(network: Any, tokens: Tensor) -> Tensor:
    """Of a token's score behind some prompts, at the vectors of their tokens."""
    vectors = network.get_input_embeddings()(tokens).requires_grad_()
    out = network(inputs_embeds=vectors, use_cache=False, logits_to_keep=1).logits
    (found,) = torch.autograd.grad(out[:, 0, 0].sum(), vectors)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("bert", "llama", "smollm"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--layers", default="1,2,4,8,16,32")
    parser.add_argument("--types", default="float32,bfloat16", help="of BERT's numbers")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--compiled", action="store_true", help="also compiled by torch.compile")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    found = {"bert": of_bert, "llama": of_llama, "smollm": of_smollm}[asked.part](asked)
    about = {"part": asked.part, "machine": machine(asked.device)}
    asked.json.write_text(json.dumps({"about": about, **found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
