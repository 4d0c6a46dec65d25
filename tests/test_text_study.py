"""The text study's own networks, rivals and tables: against transformers, captum and lxt, and by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lxt_here
from lxt_here import skip_without

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
import text_data
import text_methods
import text_rivals
import text_smollm
from text_network import Llama, LlamaShape, Sentiment, Shape
from text_prompts import prompts
from text_study import Remembered, judged, maps, record

LXT = """
import sys; sys.path[:0] = {paths!r}
from hf_zoo import hf
import torch
import lxt_here
monkey_patch = lxt_here.load()
from lxt.efficient.models import llama
from transformers.models.llama import modeling_llama
import text_rivals
from text_network import Llama, LlamaShape

monkey_patch(modeling_llama, patch_map=llama.{theirs})
config = hf.LlamaConfig(
    vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    intermediate_size=48, rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True, attn_implementation="eager",
)
theirs, ours = modeling_llama.LlamaForCausalLM(config).eval(), Llama(LlamaShape(60, 24, 2, 6, 2, 48)).eval()
for p in ours.parameters():
    torch.nn.init.normal_(p, 0, 0.3)
theirs.model.load_state_dict(ours.state_dict())
tokens = torch.randint(0, 60, (3, 7))
vectors = ours.embed_tokens(tokens).detach()
R = text_rivals.lrp(lambda v: ours(v, torch.ones_like(tokens))[:, 3], vectors, text_rivals.{ours})
there = lambda v: theirs(inputs_embeds=v, use_cache=False).logits[:, -1, 3]
assert torch.allclose(R, text_rivals.gradient_times_input(there, vectors), atol=1e-5)
"""
SMALL = Shape(vocabulary=60, width=24, layers=2, heads=4, inner=48, positions=16)
SMALL_LLAMA = LlamaShape(60, 24, 2, 6, 2, 48)


def larger(network: nn.Module) -> Any:
    """Random weights far from zero, so that nothing is nearly linear."""
    torch.manual_seed(0)
    for name, p in network.named_parameters():
        nn.init.normal_(p, 1.0 if name.lower().endswith("norm.weight") else 0.0, 0.3)
    return network.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def sentiment() -> Sentiment:
    return larger(Sentiment(SMALL))


@pytest.fixture(scope="module")
def task(sentiment: Sentiment) -> text_methods.Task:
    tokens = torch.randint(5, 60, (4, 9), generator=torch.Generator().manual_seed(1))
    tokens[:, 0], tokens[1, 6:] = 1, 0
    mask = (tokens > 0).long()
    found = sentiment(tokens, mask).argmax(1)
    return text_methods.Task(
        sentiment, sentiment.bert.embeddings.word_embeddings, tokens, mask, tokens >= 5, found, 1 - found,
        {"[MASK]": 3, "[PAD]": 0}, 2, read=lambda m: m / m.sum(1, keepdim=True),
    )  # fmt: skip


# --- networks ---------------------------------------------------------------------------------------------------------


def test_the_encoder_is_that_of_transformers(sentiment: Sentiment, task: text_methods.Task) -> None:
    pytest.importorskip("transformers")
    from hf_zoo import hf

    config = hf.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=16,
    )  # fmt: skip
    theirs = hf.BertModel(config, add_pooling_layer=False).eval()
    theirs.load_state_dict(sentiment.bert.state_dict(), strict=False)
    found = theirs(input_ids=task.tokens, attention_mask=task.mask).last_hidden_state
    assert torch.allclose(sentiment.bert(task.tokens, task.mask)[task.mask.bool()], found[task.mask.bool()], atol=1e-5)


def test_the_language_model_is_that_of_transformers() -> None:
    pytest.importorskip("transformers")
    from hf_zoo import hf

    ours = larger(Llama(SMALL_LLAMA))
    config = hf.LlamaConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=48, rope_theta=1e5, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    theirs = hf.LlamaForCausalLM(config).eval()
    theirs.model.load_state_dict(ours.state_dict())
    tokens = torch.randint(0, 60, (3, 7))
    assert torch.allclose(ours(tokens, torch.ones_like(tokens)), theirs(input_ids=tokens).logits[:, -1], atol=1e-4)


def test_padding_on_the_left_changes_nothing() -> None:
    network = larger(Llama(SMALL_LLAMA))
    tokens = torch.randint(3, 60, (2, 6))
    padded = torch.cat([torch.full((2, 3), 2), tokens], 1)
    whole = network(tokens, torch.ones_like(tokens))
    assert torch.allclose(network(padded, (padded != 2).long()), whole, atol=1e-4)


# --- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["secant, [MASK]", "secant, [MASK] by halves", "integrated gradients, [MASK]"])
def test_the_sum_is_the_difference_from_the_reference(task: text_methods.Task, name: str) -> None:
    everything = torch.arange(4)
    difference = task.margin(task.tokens, task.mask, everything) - task.margin(task.filled(3), task.mask, everything)
    R = text_methods.methods(task.instead)[name](task)
    assert torch.allclose(R.sum(1), difference, atol=2e-3)
    assert not R[~task.free].any()


def test_words_that_the_mask_hides_are_compared_with_words_that_it_shows(task: text_methods.Task) -> None:
    everything, bare = torch.arange(4), task.mask * ~task.free
    difference = task.margin(task.tokens, task.mask, everything) - task.margin(task.tokens, bare, everything)
    R = text_methods.methods(task.instead)["secant, hidden"](task)
    assert torch.allclose(R.sum(1), difference, atol=1e-4)


def test_texts_without_one_half_of_their_words_are_compared_with_the_whole(task: text_methods.Task) -> None:
    numbers, drawn = torch.arange(4), torch.Generator().manual_seed(task.seed)
    halves = [torch.randint(2, task.tokens.shape, generator=drawn).bool() for _ in range(text_methods.DRAWN)]
    scores = []
    for gone in [g & task.free for half in halves for g in (half, ~half)]:
        scores += [
            task.margin(task.tokens.masked_fill(gone, 3), task.mask, numbers),
            task.margin(task.tokens, task.mask * ~gone, numbers),
        ]
    R = text_methods.methods(task.instead)["secant, [MASK] and hidden in one half"](task)
    difference = task.margin(task.tokens, task.mask, numbers) - torch.stack(scores).mean(0)
    assert torch.allclose(R.sum(1), difference, atol=2e-3)
    assert not R[~task.free].any()


def test_integrated_gradients_are_those_of_captum(task: text_methods.Task) -> None:
    captum = pytest.importorskip("captum.attr")
    end = task.words(task.filled(3))
    steps = text_rivals.STEPS
    for i in range(4):
        one = task.some(slice(i, i + 1))

        def score(v: Tensor, one: text_methods.Task = one) -> Tensor:
            return one.margin(v, one.mask.expand(len(v), -1), torch.zeros(len(v), dtype=torch.long))

        theirs = captum.IntegratedGradients(score).attribute(one.vectors, end[i : i + 1], n_steps=steps).sum(-1)
        ours = text_rivals.integrated(one.score, one.vectors, end[i : i + 1])
        assert torch.allclose(ours, theirs.float(), atol=1e-5)


@pytest.mark.parametrize("rules", [text_rivals.ATTN, text_rivals.CP])
def test_rules_of_rivals_leave_the_score_as_it_is(task: text_methods.Task, rules: dict[str, Any]) -> None:
    seen: list[Tensor] = []

    def score(vectors: Tensor) -> Tensor:
        seen.append(task.score(vectors))
        return seen[-1]

    R = text_rivals.lrp(score, task.vectors, rules)
    assert torch.allclose(seen[0], task.score(task.vectors), atol=1e-5)
    assert not torch.allclose(R, text_rivals.gradient_times_input(task.score, task.vectors), atol=1e-2)


@pytest.mark.parametrize(("ours", "theirs"), [(text_rivals.ATTN, "attnLRP"), (text_rivals.CP, "cp_LRP")])
def test_rules_of_rivals_are_those_of_lxt(ours: dict[str, Any], theirs: str) -> None:
    """Where lxt is installed, with the transformers that it needs."""
    skip_without()
    # lxt changes classes of transformers for good: in a process of its own
    code = LXT.format(
        paths=[str(Path(text_rivals.__file__).parent), str(Path(lxt_here.__file__).parent)],
        theirs=theirs,
        ours="ATTN" if ours is text_rivals.ATTN else "CP",
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rollout_of_uniform_attention_is_uniform(task: text_methods.Task) -> None:
    network = larger(Sentiment(SMALL))
    for layer in network.bert.encoder["layer"]:
        nn.init.zeros_(layer.attention["self"].query.weight)
        nn.init.zeros_(layer.attention["self"].query.bias)
    tokens, all_shown = task.tokens[:1, :6], torch.ones(1, 6)
    # each layer: half stays, half is the mean; what is read is the mean already
    found = text_rivals.rollout(
        lambda v: network(v, all_shown), network.bert.embeddings.word_embeddings(tokens), all_shown / 6
    )
    assert torch.allclose(found, all_shown / 6, atol=1e-6)


# --- data -------------------------------------------------------------------------------------------------------------


def test_reviews_are_split_by_seed_and_never_shared() -> None:
    lengths = [int(n) for n in np.random.default_rng(0).integers(50, 300, 60_000)]
    train, test = text_data.split(lengths)
    assert len(test) == text_data.TESTED
    assert len(train) == text_data.TRAINED
    assert not set(train) & set(test)
    assert max(lengths[i] for i in test) <= text_data.SHORT
    assert [*text_data.split(lengths)[1]] == [*test]


def test_prompts_are_many_and_their_continuations_differ() -> None:
    found = list(prompts())
    assert len(found) >= 150
    assert len({prompt for prompt, _, _ in found}) == len(found)
    assert all(right != wrong and right[0] == wrong[0] == " " for _, right, wrong in found)


def test_quantised_blocks_by_hand() -> None:
    half, one = np.float16(0.5).tobytes(), np.float16(1).tobytes()
    eight = np.frombuffer(half + bytes([2, 254] + [0] * 30), np.uint8).reshape(1, -1)
    assert text_smollm.numbers("Q8_0", eight)[0, :3].tolist() == [1, -1, 0]
    four = np.frombuffer(half + one + bytes([0x31] + [0] * 15), np.uint8).reshape(1, -1)
    found = text_smollm.numbers("Q4_1", four)[0]  # 0.5 · 1 + 1 is the first, 0.5 · 3 + 1 the seventeenth
    assert [found[0], found[1], found[16]] == [1.5, 1, 2.5]


# --- the study --------------------------------------------------------------------------------------------------------


def test_maps_are_made_once_and_judged(
    task: text_methods.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def few(instead: Any) -> dict[str, Any]:
        known = text_methods.methods(instead)

        def of(name: str) -> Any:
            return lambda t: made.append(name) or known[name](t)

        return {name: of(name) for name in ("secant, [MASK]", "random")}

    monkeypatch.setattr("text_study.methods", few)
    found, seconds = maps(task, tmp_path / "maps.npz", batch=3)
    assert made == ["secant, [MASK]"] * 2 + ["random"] * 2  # 3 texts and 1
    assert list(seconds) == list(found) == ["secant, [MASK]", "random"]
    again, none = maps(task, tmp_path / "maps.npz")
    assert len(made) == 4
    assert not none
    assert torch.equal(again["random"], found["random"])
    kept = record(judged(task, found, 16), "secant, [MASK]")
    assert len(kept["scores"]) == 8
    own = next(s for s in kept["scores"] if s["method"] == "secant, [MASK]")
    assert own["ahead mean"] == own["ahead low"] == own["ahead high"] == 0


def test_only_wanted_maps_are_made(task: text_methods.Task, tmp_path: Path) -> None:
    found, _ = maps(task, tmp_path / "maps.npz", wanted=lambda name: name == "random")
    assert list(found) == ["random"]


def test_a_score_is_computed_once_for_what_is_left_of_a_text() -> None:
    seen: list[int] = []

    def score(tokens: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
        seen.append(len(tokens))
        return (tokens * mask).sum(1).float() + 100 * numbers

    remembered = Remembered(score)
    tokens, mask = torch.tensor([[1, 2]] * 3), torch.tensor([[1, 1], [0, 1], [1, 1]])
    numbers = torch.zeros(3)
    assert remembered(tokens, mask, numbers.long()).tolist() == [3, 2, 3]
    assert remembered(tokens, mask, numbers.long() + 1).tolist() == [103, 102, 103]
    assert remembered(tokens.flip(0), mask.flip(0), numbers.long()).tolist() == [3, 2, 3]
    assert seen == [2, 2]
