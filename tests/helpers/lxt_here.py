"""lxt 2.1, the authors' own AttnLRP and CP-LRP, where it is installed; and its maps of small networks of transformers.

    python tests/helpers/lxt_here.py FAMILY attnLRP|cp_LRP

compares them with ours, in a process of its own, since lxt changes the classes of transformers for good. It needs a
transformers of its time (4.52.4), so that it is run in an environment of its own: `pip install transformers==4.52.4`,
and `pip install --no-deps lxt==2.1`.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CONFIG: dict[str, Any] = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6}
INNER = {"intermediate_size": 48}
GROUPED = {**CONFIG, **INNER, "num_key_value_heads": 2}
FAMILIES = {
    "llama": ("Llama", "LlamaForCausalLM", GROUPED),
    "qwen3": ("Qwen3", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 4}),
    "gemma3": ("Gemma3Text", "Gemma3ForCausalLM", {**GROUPED, "head_dim": 4, "query_pre_attn_scalar": 4}),
    "gpt2": ("GPT2", "GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 32}),
    "bert": ("Bert", "BertForSequenceClassification", {**CONFIG, **INNER, "num_labels": 4}),
}


def load() -> Any:
    """lxt's way to change classes; its part for torchvision, which may not be there, is left out."""
    absent: Any = types.ModuleType("lxt.efficient.models.vit_torch")
    absent.vision_transformer, absent.cp_LRP = absent, {}
    sys.modules[absent.__name__] = absent
    return importlib.import_module("lxt.efficient").monkey_patch


def skip_without() -> None:
    """Skip a test where lxt is not installed, or does not fit the transformers that is."""
    if wrong := _wrong():
        pytest.skip(f"lxt does not import here: {wrong}")


@cache
def _wrong() -> str:
    program = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import lxt_here; lxt_here.load()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def _compared(family: str, rules: str) -> None:
    sys.path[:0] = [str(BENCHMARKS)]
    import torch

    import deeptaylor as dt
    from deeptaylor.methods.attnlrp import attnlrp
    from deeptaylor.text.text_explainer import METHODS
    from hf_zoo import hf

    class Scores(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return _scores(self.model, input_ids=tokens)

    config_of, of, settings = FAMILIES[family]
    made: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    torch.manual_seed(0)
    config = getattr(hf, f"{config_of}Config")(**settings, attn_implementation="eager", use_cache=False)
    model = getattr(made, of)(config).double().eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, 0.2, 0.3)
    tokens = torch.randint(1, 60, (3, 7))
    answer = Scores(model)(tokens).argmax(1)  # above zero, which CP-LRP wants
    if rules == "attnLRP":
        ours = attnlrp(dt.Explainer(Scores(model)).make_unplanned(), tokens, answer).relevance
    else:
        ours = dt.Explainer(Scores(model), **METHODS["cp-lrp"]).explain(tokens, answer).relevance

    load()(made, patch_map=getattr(importlib.import_module(f"lxt.efficient.models.{family}"), rules))
    changed = getattr(made, of)(config).double().eval()  # of BERT, lxt has classes of its own
    changed.load_state_dict(model.state_dict())
    vectors = changed.get_input_embeddings()(tokens).detach().requires_grad_()
    _scores(changed, inputs_embeds=vectors).gather(1, answer.unsqueeze(1)).sum().backward()
    theirs = (vectors * vectors.grad).sum(-1).detach()
    off = float((ours - theirs).abs().max() / theirs.abs().max())
    print(f"{family}, {rules}: they differ by {off:.1e} of the largest relevance")
    assert off < 2e-6, (ours, theirs)  # norms of language models are computed in float32


def _scores(model: Any, **inputs: Any) -> Any:
    """Class scores, or those of the token behind the text."""
    logits = model(**inputs).logits
    return logits if logits.ndim == 2 else logits[:, -1]


if __name__ == "__main__":
    _compared(*sys.argv[1:])
