"""Networks of transformers that read texts: from a folder, and from memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors

import deeptaylor as dt
from small_texts import classifier, embedder, library, llama, t5, tokenizer


def saved(p: dt.TextModel, folder: Path) -> str:
    p.network.save_pretrained(folder)  # type: ignore[operator]
    p.tokenizer.save_pretrained(folder)
    return f"hf:{folder}"


def test_a_folder_says_all(folder: Path, transformers: Any) -> None:
    own = classifier()
    p = dt.load(saved(own, folder))
    assert isinstance(p, dt.TextModel)
    assert (p.kind, p.class_names) == ("classifier", ("negative", "positive"))
    text = p.tokenizer("the film was not bad", return_tensors="pt")
    assert torch.allclose(p.network(**text).logits, own.network(**text).logits, atol=1e-6)
    assert not p.network.training
    named = dt.load(f"hf:{folder}", class_names=["bad", "good"])
    assert isinstance(named, dt.TextModel)
    assert named.class_names == ("bad", "good")
    unnamed = dt.load(f"hf:{folder}", class_names=None)
    assert isinstance(unnamed, dt.TextModel)
    assert unnamed.class_names is None


def test_pooling_is_read_from_the_folder(folder: Path, transformers: Any) -> None:
    source = saved(embedder(), folder)
    p = dt.load(source)
    assert isinstance(p, dt.TextModel)
    assert (p.kind, p.pooling) == ("embedding", "mean")
    assert p.notes == ("the source does not say how the vectors of tokens are pooled: their mean is taken",)
    (folder / "1_Pooling").mkdir()
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    p = dt.load(source)
    assert isinstance(p, dt.TextModel)
    assert (p.pooling, p.notes) == ("first", ())
    config.write_text(json.dumps({"pooling_mode": "lasttoken"}))
    assert dt.load(f"hf:{folder}").pooling == "last"
    parts = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(parts))
    assert dt.load(f"hf:{folder}").pooling == "last"
    (folder / "modules.json").write_text(json.dumps([*parts, {"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(dt.LoadError, match="a part called Dense behind the pooling"):
        dt.load(f"hf:{folder}")
    (folder / "modules.json").unlink()
    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(dt.LoadError, match="only one pooling can be explained: mean, first or last token"):
        dt.load(source)


def test_a_kind_may_be_said(folder: Path, transformers: Any) -> None:
    source = saved(classifier(), folder)
    p = dt.load(source, kind="embedding")
    assert isinstance(p, dt.TextModel)
    assert p.kind == "embedding"
    with pytest.raises(dt.LoadError, match="kind='poet': one of"):
        dt.load(source, kind="poet")
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["BertForMaskedLM"]}))
    with pytest.raises(dt.LoadError, match="is BertForMaskedLM by its configuration, which does not determine"):
        dt.load(source)


def test_weights_that_hold_code_are_not_read(folder: Path, transformers: Any) -> None:
    source = saved(classifier(), folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(dt.LoadError, match="could not be loaded"):
        dt.load(source)


def without(folder: Path, *names: str) -> None:
    """Take weights out of a folder's safetensors file."""
    place = folder / "model.safetensors"
    state = safetensors.load_file(place)
    assert set(names) <= state.keys()
    safetensors.save_file({k: v.clone() for k, v in state.items() if k not in names}, place, {"format": "pt"})


INNER = "bert.encoder.layer.0.intermediate.dense.weight"


@pytest.mark.parametrize("names", [("classifier.weight",), (INNER,), ("classifier.weight", INNER)])
def test_weights_that_are_missing_are_listed(folder: Path, transformers: Any, names: tuple[str, ...]) -> None:
    source = saved(classifier(), folder)
    without(folder, *names)
    with pytest.raises(dt.LoadError, match=r"do not fit BertForSequenceClassification") as raised:
        dt.load(source)
    assert f"the file lacks ({len(names)}):" in str(raised.value)
    assert all(name in str(raised.value) for name in names)


def test_a_classifier_of_a_folder_without_one_is_refused(folder: Path, transformers: Any) -> None:
    with pytest.raises(dt.LoadError, match=r"classifier\.weight"):
        dt.load(saved(embedder(), folder), kind="classifier")


@pytest.mark.parametrize("made", [llama, t5])
def test_tied_weights_are_not_missing(folder: Path, transformers: Any, made: Any) -> None:
    p = dt.load(saved(made(), folder))
    assert isinstance(p, dt.TextModel)


def test_an_embedding_needs_no_pooler(folder: Path, transformers: Any) -> None:
    source = saved(embedder(), folder)
    without(folder, "pooler.dense.weight", "pooler.dense.bias")
    assert dt.load(source).kind == "embedding"
    without(folder, "encoder.layer.0.output.dense.bias")
    with pytest.raises(dt.LoadError, match=r"lacks \(1\):\n    encoder\.layer\.0\.output\.dense\.bias"):
        dt.load(source)


def test_from_memory(transformers: Any) -> None:
    p = llama()
    assert p.kind == "language model"
    with pytest.raises(dt.LoadError, match="tokenizer is a str; one of transformers is needed"):
        dt.load(p.network, tokenizer="bert")
    with pytest.raises(dt.LoadError, match="belong to networks of transformers that read texts"):
        dt.load("squeezenet1_1", tokenizer=tokenizer())
    with pytest.raises(dt.LoadError, match="the network is Linear by its configuration"):
        dt.load(torch.nn.Linear(2, 2), tokenizer=tokenizer())


def test_where_photographs_are_needed_it_is_refused(folder: Path, transformers: Any) -> None:
    from deeptaylor.models.loading.load import load_pretrained

    with pytest.raises(dt.LoadError, match="reads texts; a network for photographs or numbers is needed here"):
        load_pretrained(saved(llama(), folder))


def test_a_folder_is_read_without_a_bar(folder: Path, transformers: Any, capfd: pytest.CaptureFixture[str]) -> None:
    source = saved(classifier(), folder)
    capfd.readouterr()
    dt.load(source)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["./none", "~/none-of-it", "/none/of/it", "none/of/it"])
def test_a_folder_that_is_not_there_is_not_looked_for_on_the_hub(name: str, transformers: Any) -> None:
    with pytest.raises(dt.LoadError, match=r"none.*: there is no such folder\.$"):
        dt.load(f"hf:{name}")


def test_a_name_that_is_no_folder_is_said_to_be_none(transformers: Any) -> None:
    with pytest.raises(dt.LoadError, match=r"^hf:none, which is no folder here and was looked for on the hub, could"):
        dt.load("hf:none")


def test_a_pipeline_of_transformers_is_loaded_with_its_tokenizer() -> None:
    hf, text = library(), "the film was not bad"
    for p in (classifier(), llama()):
        task = "text-classification" if p.kind == "classifier" else "text-generation"
        pipeline = hf.pipeline(task, model=p.network, tokenizer=p.tokenizer)
        found = dt.load(pipeline)
        assert isinstance(found, dt.TextModel)
        assert found.kind == p.kind
        assert torch.equal(dt.explain(pipeline, text).relevance[0], dt.explain(p, text).relevance[0])


def test_a_pipeline_that_reads_photographs_is_loaded_with_its_preparation() -> None:
    hf, size = library(), {"height": 16, "width": 16}
    network = hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16,
            patch_size=8, id2label={0: "cat", 1: "dog"},
        )
    )  # fmt: skip
    processor = hf.ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    p = dt.load(hf.pipeline("image-classification", model=network, image_processor=processor))
    assert isinstance(p, dt.Pretrained)
    assert p.class_names == ("cat", "dog")
    assert p.preparation is not None
    assert (p.preparation.size, p.preparation.std) == ((16, 16), (0.25, 0.25, 0.25))


def test_a_network_that_reads_texts_is_missing_its_tokenizer() -> None:
    p = classifier()
    with pytest.raises(dt.LoadError, match=r"BertForSequenceClassification reads texts. Give its tokenizer, too"):
        dt.load(p.network)
    with pytest.raises(dt.InputError, match=r"got str. Load a network that reads texts with its tokenizer"):
        dt.explain(p.network, "the film")


def test_a_tokenizer_in_one_call(transformers: Any) -> None:
    own = classifier()
    e = dt.explain(own.network, "the film was not bad", 1, tokenizer=own.tokenizer)
    assert isinstance(e, dt.TextExplanation)
    assert torch.allclose(e.relevance[0], own.explain("the film was not bad", 1).relevance[0], atol=1e-6)
    with pytest.raises(dt.InputError, match="was loaded with its tokenizer: leave tokenizer= out"):
        dt.explain(own, "the film was not bad", tokenizer=own.tokenizer)
