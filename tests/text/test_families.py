"""Families of transformers through the same door: captured, and Σ R = f(x) − f(reference) in both precisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import deeptaylor as dt
from small_texts import SIZES, WIDTH, library, loaded, network, tokenizer

_GROUPED = {**SIZES, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
_OPT = {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}
_GEMMA = {"head_dim": 8, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_FALCON = {**WIDTH, "vocab_size": 64, "alibi": True, "pad_token_id": 4}
_BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "pad_token_id": 4}
_BART = {
    "d_model": 32, **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
    (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}, "vocab_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
_ENDS = {"pad_token_id": 4, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 4}


@dataclass(frozen=True)
class Family:
    model: str
    config: str
    options: dict[str, Any]
    own: dict[str, bool] = field(default_factory=lambda: {"mask": False, "pad": False, "pieces": False})


_ENCODER: dict[str, bool] = {}
_PADDED = {"mask": False, "pieces": False}
FAMILIES = {
    "bert": Family("BertForSequenceClassification", "BertConfig", {**SIZES, "pad_token_id": 4}, _ENCODER),
    "roberta": Family("RobertaForSequenceClassification", "RobertaConfig", {**SIZES, "pad_token_id": 4}, _ENCODER),
    "modernbert": Family(
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {
            **SIZES,
            **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"), 1),
            "pad_token_id": 4,
        },
        _ENCODER,
    ),
    "distilbert": Family(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 64, "pad_token_id": 4},
        _ENCODER,
    ),
    "llama": Family("LlamaForCausalLM", "LlamaConfig", {**_GROUPED, "tie_word_embeddings": True}),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", {**_GROUPED, **_GEMMA}),
    "mistral": Family("MistralForCausalLM", "MistralConfig", _GROUPED),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "pad_token_id": 4}),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "opt": Family("OPTForCausalLM", "OPTConfig", _OPT),
    "mamba": Family("MambaForCausalLM", "MambaConfig", _MAMBA),
    "t5": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        {**_T5, "pad_token_id": 4, "decoder_start_token_id": 4, "feed_forward_proj": "gated-gelu"},
        _PADDED,
    ),
    "t5, classes": Family("T5ForSequenceClassification", "T5Config", {**_T5, **_ENDS}, _ENCODER),
    "bart": Family("BartForSequenceClassification", "BartConfig", {**_BART, **_ENDS}, _ENCODER),
    "bloom": Family("BloomForSequenceClassification", "BloomConfig", _BLOOM, _PADDED),
    "falcon": Family("FalconForSequenceClassification", "FalconConfig", _FALCON, _PADDED),
}
FAST = ("roberta", "gpt2")


def explained(name: str, dtype: torch.dtype) -> dt.TextExplanation:
    family = FAMILIES[name]
    p = loaded(network(family.model, family.config, **family.options).to(dtype), tokenizer(**family.own))
    if p.kind == "classifier":
        return p.explain("The films was not bad at all", 1)
    return p.explain("the capital of france is", continuation="paris and london")


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES])
def test_texts(name: str, dtype: torch.dtype, bound: float) -> None:
    e = explained(name, dtype)
    assert float(e.ledger.gap.max()) <= bound  # type: ignore[attr-defined]
    assert float(e.relevance[0].abs().max()) > 0


# --- pictures and sounds ----------------------------------------------------------------------------------------------

_VISION = {**WIDTH, "image_size": 32, "patch_size": 8}
OTHERS = {
    "vit": ("ViTModel", "ViTConfig", _VISION, (3, 32, 32)),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", _VISION, (3, 32, 32)),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", _VISION, (3, 32, 32)),
    "whisper": (
        "WhisperEncoder",
        "WhisperConfig",
        {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
         "num_mel_bins": 16, "max_source_positions": 20},
        (16, 40),
    ),
}  # fmt: skip


class First(torch.nn.Module):
    """The mean of the last vectors."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.model(x)[0].mean(1)
        return y


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", OTHERS)
def test_pictures_and_sounds(name: str, dtype: torch.dtype, bound: float) -> None:
    model, config, options, shape = OTHERS[name]
    if name == "whisper":
        whisper = library().models.whisper.modeling_whisper.WhisperEncoder
        torch.manual_seed(0)
        made = whisper(library().WhisperConfig(**options)).eval()
    else:
        made = network(model, config, **options)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    b = dt.Explainer(First(made.to(dtype)).eval()).between(x, "zeros", 0)
    assert float(b.ledger.gap.max()) <= bound
    assert float(b.relevance.abs().max()) > 0
