"""A network that reads texts, with its tokenizer and all that belongs to it: what `dt.load("hf:…")` returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from deeptaylor.errors import LoadError
from deeptaylor.support.class_names import class_number
from deeptaylor.support.kept import Kept
from deeptaylor.text.explainer import SECANT, TextExplainer
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.networks import embeddings_of
from deeptaylor.text.references import reference_for

__all__ = ["KINDS", "POOLINGS", "TextModel", "kind_named"]

KINDS = ("classifier", "language model", "encoder–decoder", "embedding")
POOLINGS = ("mean", "first", "last")
_ENDINGS = {
    "ForSequenceClassification": "classifier",
    "ForCausalLM": "language model",
    "LMHeadModel": "language model",
    "ForConditionalGeneration": "encoder–decoder",
    "Model": "embedding",
}
_KEPT = 4  # explainers, one a method and reference
_UNLIMITED = 10**6  # what a tokenizer says that knows no limit is larger
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "mamba")  # positions are not counted: what the config says is no limit


def kind_named(architecture: str) -> str | None:
    """What a network of transformers does, by the name of its class.

    >>> kind_named("BertForSequenceClassification"), kind_named("GPT2LMHeadModel"), kind_named("BertForMaskedLM")
    ('classifier', 'language model', None)
    """
    return next((kind for ending, kind in _ENDINGS.items() if architecture.endswith(ending)), None)


@dataclass(frozen=True, eq=False)
class TextModel:
    """A network with its tokenizer.

    network       a network of transformers, or one whose forward takes the same names; it is never changed
    tokenizer     its tokenizer
    kind          "classifier", "language model", "encoder–decoder" or "embedding"
    class_names   of a classifier, where it has names
    pooling       of an embedding: "mean" of the tokens' vectors, "first" or "last" of them
    longest       how many tokens it takes; None: no limit is known
    """

    network: nn.Module
    tokenizer: Any
    kind: str
    class_names: tuple[str, ...] | None = None
    pooling: str = "mean"
    longest: int | None = None
    notes: tuple[str, ...] = ()
    _kept: Kept[TextExplainer] = field(init=False, repr=False, default_factory=partial(Kept, _KEPT))

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LoadError(f"kind={self.kind!r}: one of {', '.join(map(repr, KINDS))}.")
        if self.pooling not in POOLINGS:
            raise LoadError(f"pooling={self.pooling!r}: one of {', '.join(map(repr, POOLINGS))}.")
        rows, tokens = self._table().shape[0], len(self.tokenizer)
        if tokens > rows:
            raise LoadError(
                f"The tokenizer does not fit: it has {tokens} tokens, and the network has embeddings for {rows}."
            )
        if "input_ids" not in self.inputs:
            raise LoadError(
                f"The forward of the network, a {type(self.network).__name__}, has no argument input_ids, by which "
                "tokens are given to it; rename its argument, or wrap it."
            )
        if self.longest is None:
            object.__setattr__(self, "longest", _longest(self.network, self.tokenizer))

    def _table(self) -> Tensor:
        try:
            table = embeddings_of(self.network).weight
        except (AttributeError, NotImplementedError) as error:
            raise LoadError(
                f"The network, a {type(self.network).__name__}, does not tell its embeddings: it needs a method "
                "get_input_embeddings(), as networks of transformers have. Without one, give token numbers to "
                "dt.Explainer(network), and words to e.tokens(words)."
            ) from error
        assert isinstance(table, Tensor)
        return table

    def __repr__(self) -> str:
        classes = f", {len(self.class_names)} classes" if self.class_names else ""
        limit = f", at most {self.longest} tokens" if self.longest else ""
        return f"<TextModel {type(self.network).__name__}: {self.kind}{classes}, {len(self.tokenizer)} tokens{limit}>"

    @property
    def speaks(self) -> bool:
        """True if it continues texts."""
        return self.kind in ("language model", "encoder–decoder")

    @property
    def decoder(self) -> bool:
        """True if a decoder speaks, and the text is read by an encoder."""
        return self.kind == "encoder–decoder"

    @property
    def decoder_start(self) -> int | None:
        """The token that a decoder begins with."""
        if not self.decoder:
            return None
        config: Any = self.network.config
        start = config.decoder_start_token_id
        return int(config.pad_token_id if start is None else start)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the network takes of what the tokenizer makes."""
        known = inspect.signature(self.network.forward).parameters
        made = (
            "input_ids",
            "attention_mask",
            *["token_type_ids"] * ("token_type_ids" in self.tokenizer.model_input_names),
        )
        return tuple(name for name in made if name in known)

    def class_index(self, text: str) -> int:
        """The number of a class, by its number or its name; or an error with names like it."""
        return class_number(self.class_names, text)

    def class_name(self, index: int) -> str:
        """What a class is called; its number where classes have no names."""
        return self.class_names[index] if self.class_names is not None else f"class {index}"

    def explainer(self, method: str | None = None, reference: Any = None) -> TextExplainer:
        """An explainer for many texts: it captures the network once for each padded length."""
        return TextExplainer(self, method, reference)

    def explain(
        self, texts: Any, target: Any = None, *, continuation: Any = None, against: Any = None,
        method: str | None = None, reference: Any = None,
    ) -> TextExplanation:  # fmt: skip
        """Explain texts (see `TextExplainer.explain`); the network is captured for the first of each padded length."""
        return self._asked(method, reference, lambda explainer: explainer.explain(
            texts, target, continuation=continuation, against=against
        ))  # fmt: skip

    def similarity(self, a: Any, b: Any, dot: bool = False, reference: Any = None) -> TextExplanation:
        """Which words of both texts make them similar (see `TextExplainer.similarity`)."""
        return self._asked(None, reference, lambda explainer: explainer.similarity(a, b, dot))

    def _asked(
        self, method: str | None, reference: Any, ask: Callable[[TextExplainer], TextExplanation]
    ) -> TextExplanation:
        """What an explainer says; it is kept, unless its reference is in numbers, which may be others the next time."""
        make, asked = partial(self.explainer, method, reference), _several(reference)
        if not all(name is None or isinstance(name, str) for name in asked):
            return ask(make())
        words = tuple(reference_for(self.tokenizer, name) for name in asked)  # the tokenizer may have changed
        return self._kept.asked((SECANT if method is None else method, reference is None, words), make, ask)


def _several(reference: Any) -> tuple[Any, ...]:
    return reference if isinstance(reference, tuple) else (reference,)


def _longest(network: nn.Module, tokenizer: Any) -> int | None:
    """How many tokens there may be, by what the tokenizer and the configuration say, and the table of positions."""
    config: Any = getattr(network, "config", None)
    limits = [tokenizer.model_max_length]
    if config is not None and getattr(config, "model_type", "") not in _RELATIVE:
        places: Sequence[str] = ("max_position_embeddings", "n_positions")
        limits += [next((n for name in places if isinstance(n := getattr(config, name, None), int)), None)]
    # A table that has a row for padding, as RoBERTa's, counts from behind it.
    tables = [m for path, m in network.named_modules() if path.endswith("position_embeddings")]
    limits += [
        t.num_embeddings - t.padding_idx - 1
        for t in tables
        if isinstance(t, nn.Embedding) and t.padding_idx is not None
    ]
    return min((n for n in limits if n is not None and 0 < n < _UNLIMITED), default=None)
