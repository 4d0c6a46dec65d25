"""Networks of `transformers` as functions from token numbers to the scores that are explained.

Classes      class scores of texts
Spans        log-probabilities of tokens that follow a prompt; logits, where a method has no rule for the softmax
Similarity   cosine or dot product of the embeddings of two texts

The names of the inputs are those of the tokenizer, and `seen`, where words may be hidden (hiding.py). `vectors`: the
network is given embeddings in place of numbers, so that a reference may be a vector that no token has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "CAUSAL", "MASK", "SCORES", "SEEN", "Classes", "Similarity", "Spans", "additive", "embeddings_of", "logits_of",
]  # fmt: skip


SEEN = "seen"  # the name of one more input: 1 for tokens that others read, 0 for those that are hidden
# How words are hidden: by numbers that are added to the scores of attention (and nobody reads what comes later); or by
# the attention mask itself, as real numbers, wherever the network reads it.
SCORES, CAUSAL, MASK = "scores", "causal scores", "mask"
_FAR = -1e4  # exp(_FAR) is 0, and there are digits left for what it is added to


def additive(seen: Tensor, causal: bool) -> Tensor:
    """What is added to the scores of attention; `causal`: nobody reads what comes later.

    Every token reads itself: where all others are hidden, it would else be a choice among tokens that are all far away.
    """
    length = seen.shape[1]
    others = 1 - torch.eye(length, dtype=seen.dtype, device=seen.device)
    away = (1 - seen)[:, None, None, :] * (_FAR * others)
    if not causal:
        return away
    return away + torch.full_like(others, torch.finfo(seen.dtype).min).triu(1)


def embeddings_of(network: nn.Module) -> nn.Module:
    """The layer that looks up the vectors of tokens."""
    layer: nn.Module = network.get_input_embeddings()  # type: ignore[operator]
    return layer


class _Reading(nn.Module):
    """A network that is given its inputs by name; `hides`: how words are hidden, if `seen` is among them."""

    def __init__(self, network: nn.Module, names: Sequence[str], vectors: bool, hides: str = SCORES) -> None:
        super().__init__()
        self.network, self.names, self.vectors, self.hides = network, tuple(names), vectors, hides
        self.training = network.training

    def called(self, network: nn.Module, inputs: Sequence[Tensor], **more: Any) -> Any:
        """What the network returns."""
        given: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        if self.vectors:
            given["inputs_embeds"] = embeddings_of(self.network)(given.pop("input_ids"))
        if (seen := given.pop(SEEN, None)) is not None:
            mask = seen * given["attention_mask"]
            given["attention_mask"] = mask if self.hides == MASK else additive(mask, self.hides == CAUSAL)
        return network(**given, **more)


class Classes(_Reading):
    """The class scores of a text; of a decoder those at its last token, whatever token that is."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits, (batch, classes)."""
        head = getattr(self.network, "score", None)
        if head is None or not hasattr(self.network, "base_model"):
            found = self.called(self.network, inputs)
            logits: Tensor = found if isinstance(found, Tensor) else logits_of(found)
            return logits
        hidden = self.called(self.network.base_model, inputs, use_cache=False)[0]  # type: ignore[arg-type]
        mask = inputs[self.names.index("attention_mask")]
        return _at(head(hidden), mask.sum(1, keepdim=True) - 1)[:, 0]


class Spans(_Reading):
    """How likely each of some tokens is, at its place behind a prompt: (batch, tokens).

    After the inputs by name come the decoder's tokens, where the network has an encoder; the places whose next token
    is asked for; and those tokens.
    """

    def __init__(
        self, network: nn.Module, names: Sequence[str], vectors: bool, decoder: bool, log: bool, hides: str = SCORES
    ) -> None:
        super().__init__(network, names, vectors, hides)
        self.decoder, self.log = decoder, log

    def forward(self, *inputs: Tensor) -> Tensor:
        """Log-probabilities, or logits."""
        *inputs_, places, tokens = inputs
        more: dict[str, Any] = {"decoder_input_ids": inputs_.pop()} if self.decoder else {}
        logits = _at(logits_of(self.called(self.network, inputs_, use_cache=False, **more)), places)
        if self.log:
            logits = logits.log_softmax(-1)
        return logits.gather(2, tokens.unsqueeze(-1)).squeeze(-1)


class Similarity(_Reading):
    """How similar the embeddings of two texts are: (batch,)."""

    def __init__(self, network: nn.Module, names: Sequence[str], vectors: bool, pooling: str, dot: bool) -> None:
        super().__init__(network, names, vectors)
        self.pooling, self.dot = pooling, dot

    def forward(self, *inputs: Tensor) -> Tensor:
        """The inputs of the one text, and then those of the other."""
        count = len(self.names)
        a, b = self.embedding(inputs[:count]), self.embedding(inputs[count:])
        product = (a * b).sum(1)
        return product if self.dot else product / (a.norm(dim=1) * b.norm(dim=1))

    def embedding(self, inputs: Sequence[Tensor]) -> Tensor:
        """One vector a text, as its tokens' vectors are pooled."""
        hidden: Tensor = self.called(self.network, inputs)[0]
        if self.pooling == "first":
            return hidden[:, 0]
        if "attention_mask" not in self.names:  # nothing is padded
            return hidden[:, -1] if self.pooling == "last" else hidden.mean(1)
        mask = inputs[self.names.index("attention_mask")]
        if self.pooling == "last":
            return _at(hidden, mask.sum(1, keepdim=True) - 1)[:, 0]
        share = mask.to(hidden.dtype) / mask.sum(1, keepdim=True).to(hidden.dtype)
        return torch.einsum("bnd,bn->bd", hidden, share)


def logits_of(found: Any) -> Tensor:
    """The scores among what a network of transformers returns: by name, or first where it returns a tuple."""
    scores: Tensor = found[0] if isinstance(found, tuple) else found.logits
    return scores


def _at(values: Tensor, places: Tensor) -> Tensor:
    """The vectors (B, N, D) at some places (B, M)."""
    return values.gather(1, places.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
