"""Every word of `method=` with K targets, low precision, compiled passes, copies in files, and exported programs."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.settings import METHODS, PRESETS
from deeptaylor.support.optional import MissingPackageError

WORDS = tuple(METHODS)
BOX = dt.Box(0, 1)
NAMES = {"deep-taylor": "deep Taylor", "paper": "deep Taylor as in the paper", "secant": "secants"}
pytestmark = pytest.mark.filterwarnings("ignore::deeptaylor.DeepTaylorWarning")


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A network of which the operations do not decide the method, with scores above zero."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 3))
    with torch.no_grad():
        net[4].weight.mul_(4)
        net[4].bias.add_(1)
    return net.eval().to(dtype)


def inputs(count: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 1, 10, 10, generator=torch.Generator().manual_seed(count)).to(dtype)


@functools.cache
def explainer(word: str) -> dt.Explainer:
    return dt.Explainer(network(), inputs(1), BOX, method=word)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("word", WORDS)
def test_k_targets_are_k_maps_of_one_target_each(word: str) -> None:
    together = explainer(word).explain(inputs(), [0, 2])
    assert together.relevance.shape == (2, 2, 1, 10, 10)
    for k, target in enumerate((0, 2)):
        alone = explainer(word).explain(inputs(), target)
        assert close(together.relevance[:, k], alone.relevance, 1e-3 if word == "taylor" else 1e-5)
        assert close(together.score[:, k], alone.score)
        assert alone.method == together.method


def test_negative_scores_have_no_root_and_that_is_said() -> None:
    e = explainer("taylor").explain(inputs(), dt.negative(1))
    assert bool((e.score < 0).all())
    assert not e.relevance.any()
    assert "scores are negative" in str(e.check())


@pytest.mark.parametrize("word", WORDS)
def test_the_answer_names_its_method(word: str) -> None:
    e = explainer(word).explain(inputs(), 1)
    if word == "auto":
        assert "because the network has gelu, so both methods were tested" in e.reason
    else:
        assert e.reason == f"Method: {NAMES.get(word, word)}, as asked."
    assert str(e).splitlines()[-1] == e.reason
    assert (e.method == "cp-lrp") == (word == "cp-lrp")


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision(word: str, dtype: torch.dtype) -> None:
    made = dt.Explainer(network(dtype), inputs(1, dtype), BOX, method=word)
    if word in ("cp-lrp", "taylor"):
        with pytest.raises((dt.InputError, dt.PlanError), match=r"is too coarse. Explain .*in float32"):
            made.explain(inputs(2, dtype), 1)
        return
    low, full = made.explain(inputs(2, dtype), 1), explainer(word).explain(inputs(), 1)
    a, b = low.relevance.double().flatten(1), full.relevance.double().flatten(1)
    assert bool(torch.isfinite(a).all())
    if made.choice == explainer(word).choice or word != "auto":
        assert float(torch.cosine_similarity(a, b).min()) > (0.9 if dtype is torch.bfloat16 else 0.99)


@pytest.mark.parametrize("word", WORDS)
def test_a_copy_in_a_file_answers_the_same_by_the_same_method(word: str) -> None:
    explainer(word).explain(inputs(), 1)
    there = pickle.loads(pickle.dumps(explainer(word)))
    assert there.choice == explainer(word).choice
    assert there.choice is not None
    assert close(there.explain(inputs(3), 1).relevance, explainer(word).explain(inputs(3), 1).relevance)


@pytest.mark.slow
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own imports
def test_compiled_passes_say_the_same(word: str) -> None:
    made = dt.Explainer(network(), inputs(1), BOX, method=word)
    wanted = made.explain(inputs(), 1)
    made.compile()
    assert close(made.explain(inputs(), 1).relevance, wanted.relevance, 1e-4)


@pytest.mark.parametrize("word", WORDS)
def test_exported_programs_say_the_same_or_a_sentence_says_what_is_exported(word: str) -> None:
    made = dt.Explainer(network(), inputs(1), BOX, method=word)
    if word == "auto":
        with pytest.raises(dt.InputError, match="no method was chosen for this network yet"):
            torch.export.export(made, (inputs(),), strict=False)
    e = made.explain(inputs())
    assert made.choice is not None
    if made.choice.method in PRESETS:
        score, relevance = torch.export.export(made, (inputs(),), strict=False).module()(inputs())
        assert close(relevance, e.relevance)
        assert close(score, e.score)
    else:
        with pytest.raises(dt.InputError, match=f"this one uses '{made.choice.method}'.*explainer.compile"):
            torch.export.export(made, (inputs(),), strict=False)


@pytest.mark.parametrize("word", WORDS)
def test_an_onnx_file_is_written_or_a_sentence_says_why_not(word: str, tmp_path: Any) -> None:
    from deeptaylor.models.onnx.exporter import export_explainer

    made = dt.Explainer(network(), inputs(1), BOX, method=word)
    try:
        if word in PRESETS:
            assert export_explainer(made, inputs(), tmp_path / "e.onnx").path.is_file()
            return
        if made.choose(inputs(), None).method not in PRESETS:
            with pytest.raises(dt.InputError, match="Only explainers by deep Taylor, 'paper' and"):
                export_explainer(made, inputs(), tmp_path / "e.onnx")
    except MissingPackageError:
        pytest.skip("the packages of the extra export are not here")


@pytest.mark.parametrize("word", WORDS)
def test_the_network_stays_as_it_was(word: str) -> None:
    net = network()
    before = copy.deepcopy(net.state_dict())
    dt.explain(net, inputs(), 1, BOX, method=word)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not any(p.grad is not None for p in net.parameters())
