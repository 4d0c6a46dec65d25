"""Tiny networks that read texts, with random weights, and tokenizers made in place."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import deeptaylor as dt

TEXT = "the film was not bad at all a very dull plot and lovely actors capital of france is paris london"
WORDS = [*TEXT.split(), *["man", "plays", "guitar", "some", "one", "performs", "music", "##ing", "##s"]]
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SIZES = {**WIDTH, "vocab_size": 64, "max_position_embeddings": 64}


def library() -> Any:
    """`transformers`, which reaches nobody; or the test is skipped."""
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    with contextlib.suppress(ModuleNotFoundError):  # one that is there and broken would stop transformers
        importlib.import_module("torchvision_shim")
    return pytest.importorskip("transformers")


def tokenizer(mask: bool = True, pad: bool = True, pieces: bool = True) -> Any:
    """Words by number, with [CLS] and [SEP] around texts, as BERT has them; without `pieces` bare, as GPT has them."""
    hf, tokenizers = library(), importlib.import_module("tokenizers")
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"]
    numbers = {word: k for k, word in enumerate(dict.fromkeys([*special, *WORDS]))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    if pieces:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    named = {"unk_token": "[UNK]"} | ({"cls_token": "[CLS]", "sep_token": "[SEP]"} if pieces else {})
    named |= ({"mask_token": "[MASK]"} if mask else {}) | ({"pad_token": "[PAD]"} if pad else {})
    names = ["input_ids", "token_type_ids", "attention_mask"] if pieces else ["input_ids", "attention_mask"]
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=names, **named)


def network(model: str, config: str, **options: Any) -> Any:
    """A network of transformers with random weights, in eval mode."""
    hf = library()
    torch.manual_seed(0)
    made = getattr(hf, model)(getattr(hf, config)(**options)).eval()
    with torch.no_grad():
        for w in made.parameters():  # as they are drawn, they are too small to tell anything
            w.mul_(4 if w.ndim > 1 else 1)
    return made


def classifier(**more: Any) -> dt.TextModel:
    names = {0: "negative", 1: "positive"}
    bert = network("BertForSequenceClassification", "BertConfig", **SIZES, id2label=names, pad_token_id=4)
    return loaded(bert, tokenizer(), **more)


def llama(mask: bool = False, pad: bool = True) -> dt.TextModel:
    made = network("LlamaForCausalLM", "LlamaConfig", **SIZES, num_key_value_heads=2, tie_word_embeddings=True)
    return loaded(made, tokenizer(mask, pad, pieces=False))


def embedder() -> dt.TextModel:
    return loaded(network("BertModel", "BertConfig", **SIZES, pad_token_id=4), tokenizer())


def t5() -> dt.TextModel:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    made = network("T5ForConditionalGeneration", "T5Config", **sizes, pad_token_id=4, decoder_start_token_id=4)
    return loaded(made, tokenizer(mask=False, pieces=False))


def loaded(made: Any, own: Any, **more: Any) -> dt.TextModel:
    p = dt.load(made, tokenizer=own, **more)
    assert isinstance(p, dt.TextModel)
    return p
