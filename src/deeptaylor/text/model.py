"""A network that reads texts, with its tokenizer and all that belongs to it: what `dt.load("hf:…")` returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from deeptaylor.errors import LoadError
from deeptaylor.methods.activation_patching import Direction, Patching, Site
from deeptaylor.support.class_names import class_number
from deeptaylor.support.explainer_cache import ExplainerCache
from deeptaylor.text.networks import get_embeddings
from deeptaylor.text.text_explainer import SECANT, TextExplainer
from deeptaylor.text.text_explanation import TextExplanation
from deeptaylor.text.text_references import resolve_reference

__all__ = ["KINDS", "POOLINGS", "TextModel", "find_kind"]

KINDS = ("classifier", "language model", "encoder–decoder", "embedding")
POOLINGS = ("mean", "first", "last")
_ENDINGS = {
    "ForSequenceClassification": "classifier",
    "ForCausalLM": "language model",
    "LMHeadModel": "language model",
    "ForConditionalGeneration": "encoder–decoder",
    "Model": "embedding",
}
_Answer = TypeVar("_Answer")
_MOST_EXPLAINERS = 4  # explainers, one a method and reference
_UNLIMITED = 10**6  # what a tokenizer says that knows no limit is larger
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "mamba")  # positions are not counted: what the config says is no limit


def find_kind(architecture: str) -> str | None:
    """Return what a network of transformers does, by the name of its class.

    >>> find_kind("BertForSequenceClassification"), find_kind("GPT2LMHeadModel"), find_kind("BertForMaskedLM")
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
    _explainers: ExplainerCache[TextExplainer] = field(
        init=False, repr=False, default_factory=partial(ExplainerCache, _MOST_EXPLAINERS)
    )

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LoadError(f"kind={self.kind!r}: one of {', '.join(map(repr, KINDS))}.")
        if self.pooling not in POOLINGS:
            raise LoadError(f"pooling={self.pooling!r}: one of {', '.join(map(repr, POOLINGS))}.")
        rows, tokens = self._find_embeddings().shape[0], len(self.tokenizer)
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
            object.__setattr__(self, "longest", _find_longest(self.network, self.tokenizer))

    def _find_embeddings(self) -> Tensor:
        try:
            table = get_embeddings(self.network).weight
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
        """Return the number of a class by its number or its name; raise an error with similar names."""
        return class_number(self.class_names, text)

    def class_name(self, index: int) -> str:
        """Return the name of a class; its number if classes have no names."""
        return self.class_names[index] if self.class_names is not None else f"class {index}"

    def explainer(self, method: str | None = None, reference: Any = None) -> TextExplainer:
        """Return an explainer for many texts, which captures the network once for each padded length."""
        return TextExplainer(self, method, reference)

    def explain(
        self, texts: Any, target: Any = None, *, continuation: Any = None, against: Any = None,
        method: str | None = None, reference: Any = None,
    ) -> TextExplanation:  # fmt: skip
        """Explain texts (see `TextExplainer.explain`); the network is captured for the first of each padded length."""
        return self._ask_cached(method, reference, lambda explainer: explainer.explain(
            texts, target, continuation=continuation, against=against
        ))  # fmt: skip

    def similarity(self, a: Any, b: Any, dot: bool = False, reference: Any = None) -> TextExplanation:
        """Explain which words of both texts make them similar (see `TextExplainer.similarity`)."""
        return self._ask_cached(None, reference, lambda explainer: explainer.similarity(a, b, dot))

    def patching(
        self, clean: Any, corrupted: Any, answer: Any = None, *, against: Any = None,
        at: str | Site | Sequence[str | Site] | None = None, direction: Direction = "noising", verify: int = 10,
    ) -> Patching:  # fmt: skip
        """Estimate what activation patching would measure for all components (see `TextExplainer.patching`)."""
        return self._ask_cached(None, None, lambda explainer: explainer.patching(
            clean, corrupted, answer, against=against, at=at, direction=direction, verify=verify
        ))  # fmt: skip

    def _ask_cached(self, method: str | None, reference: Any, ask: Callable[[TextExplainer], _Answer]) -> _Answer:
        """Ask a cached explainer; a new one if the reference is in numbers, which may change."""
        make, asked = partial(self.explainer, method, reference), _to_tuple(reference)
        if not all(name is None or isinstance(name, str) for name in asked):
            return ask(make())
        words = tuple(resolve_reference(self.tokenizer, name) for name in asked)  # the tokenizer may have changed
        return self._explainers.answer((SECANT if method is None else method, reference is None, words), make, ask)


def _to_tuple(reference: Any) -> tuple[Any, ...]:
    return reference if isinstance(reference, tuple) else (reference,)


def _find_longest(network: nn.Module, tokenizer: Any) -> int | None:
    """Return the largest number of tokens by the tokenizer, the configuration and the table of positions."""
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
