"""Networks of `transformers` as functions from token numbers to the scores that are explained, and their guesses.

ClassScores          class scores of texts
ContinuationScores   log-probabilities of tokens that follow a prompt; logits, if a method has no rule for the softmax
Similarity           cosine or dot product of the embeddings of two texts
Guess                a class of a text, or the token that follows it, with its probability

The names of the inputs are those of the tokenizer, and `seen`, where words may be hidden (hiding.py). `vectors`: the
network is given embeddings in place of numbers, so that a reference may be a vector that no token has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deeptaylor.support.class_names import to_probabilities

__all__ = [
    "CAUSAL",
    "MASK",
    "SCORES",
    "SEEN",
    "ClassScores",
    "ContinuationScores",
    "Guess",
    "Similarity",
    "get_embeddings",
    "get_logits",
    "make_additive_mask",
    "rank_guesses",
]

SEEN = "seen"  # the name of one more input: 1 for tokens that others read, 0 for those that are hidden
# How words are hidden: by numbers that are added to the scores of attention (and nobody reads what comes later); or by
# the attention mask itself, as real numbers, wherever the network reads it.
SCORES, CAUSAL, MASK = "scores", "causal scores", "mask"
_FAR = -1e4  # exp(_FAR) is 0, and there are digits left for what it is added to


def make_additive_mask(seen: Tensor, causal: bool) -> Tensor:
    """Return what is added to the scores of attention; `causal`: no token reads later ones.

    Every token reads itself: where all others are hidden, it would else be a choice among tokens that are all far away.
    """
    length = seen.shape[1]
    others = 1 - torch.eye(length, dtype=seen.dtype, device=seen.device)
    away = (1 - seen)[:, None, None, :] * (_FAR * others)
    if not causal:
        return away
    return away + torch.full_like(others, torch.finfo(seen.dtype).min).triu(1)


def get_embeddings(network: nn.Module) -> nn.Module:
    """Return the layer that looks up the vectors of tokens."""
    layer: nn.Module = network.get_input_embeddings()  # type: ignore[operator]
    return layer


class _NamedInputs(nn.Module):
    """A network that is given its inputs by name; `hides`: how words are hidden, if `seen` is among them."""

    def __init__(self, network: nn.Module, names: Sequence[str], vectors: bool, hides: str = SCORES) -> None:
        super().__init__()
        self.network, self.names, self.vectors, self.hides = network, tuple(names), vectors, hides
        self.training = network.training

    def call(self, network: nn.Module, inputs: Sequence[Tensor], **more: Any) -> Any:
        """Call the network with its inputs by name."""
        given: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        if self.vectors:
            given["inputs_embeds"] = get_embeddings(self.network)(given.pop("input_ids"))
        if (seen := given.pop(SEEN, None)) is not None:
            mask = seen * given["attention_mask"]
            given["attention_mask"] = mask if self.hides == MASK else make_additive_mask(mask, self.hides == CAUSAL)
        return network(**given, **more)


class ClassScores(_NamedInputs):
    """The class scores of a text; of a decoder those at its last token, whatever token that is."""

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return logits, (batch, classes)."""
        head = getattr(self.network, "score", None)
        if head is None or not hasattr(self.network, "base_model"):
            found = self.call(self.network, inputs)
            logits: Tensor = found if isinstance(found, Tensor) else get_logits(found)
            return logits
        hidden = self.call(self.network.base_model, inputs, use_cache=False)[0]  # type: ignore[arg-type]
        mask = inputs[self.names.index("attention_mask")]
        return _gather_places(head(hidden), mask.sum(1, keepdim=True) - 1)[:, 0]


class ContinuationScores(_NamedInputs):
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
        """Return log-probabilities, or logits."""
        *inputs_, places, tokens = inputs
        more: dict[str, Any] = {"decoder_input_ids": inputs_.pop()} if self.decoder else {}
        logits = _gather_places(get_logits(self.call(self.network, inputs_, use_cache=False, **more)), places)
        if self.log:
            logits = logits.log_softmax(-1)
        return logits.gather(2, tokens.unsqueeze(-1)).squeeze(-1)


class Similarity(_NamedInputs):
    """How similar the embeddings of two texts are: (batch,)."""

    def __init__(self, network: nn.Module, names: Sequence[str], vectors: bool, pooling: str, dot: bool) -> None:
        super().__init__(network, names, vectors)
        self.pooling, self.dot = pooling, dot

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the similarity; inputs are those of the one text, then those of the other."""
        count = len(self.names)
        a, b = self.embed(inputs[:count]), self.embed(inputs[count:])
        product = (a * b).sum(1)
        return product if self.dot else product / (a.norm(dim=1) * b.norm(dim=1))

    def embed(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return one vector per text, pooled from the vectors of its tokens."""
        hidden: Tensor = self.call(self.network, inputs)[0]
        if self.pooling == "first":
            return hidden[:, 0]
        if "attention_mask" not in self.names:  # nothing is padded
            return hidden[:, -1] if self.pooling == "last" else hidden.mean(1)
        mask = inputs[self.names.index("attention_mask")]
        if self.pooling == "last":
            return _gather_places(hidden, mask.sum(1, keepdim=True) - 1)[:, 0]
        share = mask.to(hidden.dtype) / mask.sum(1, keepdim=True).to(hidden.dtype)
        return torch.einsum("bnd,bn->bd", hidden, share)


def get_logits(found: Any) -> Tensor:
    """Return the logits in an output of transformers: by name, or the first of a tuple."""
    scores: Tensor = found[0] if isinstance(found, tuple) else found.logits
    return scores


def _gather_places(values: Tensor, places: Tensor) -> Tensor:
    """Return the vectors (B, N, D) at some places (B, M)."""
    return values.gather(1, places.unsqueeze(-1).expand(-1, -1, values.shape[-1]))


# --- what the scores mean ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guess:
    """A class, or the next token, and how probable the network holds it to be.

    index   the number of the class, or of the token
    """

    index: int
    name: str
    probability: float


def rank_guesses(scores: Tensor, name: Callable[[int], str], most: int, several: bool = False) -> list[Guess]:
    """Return the most probable classes, the first one first; `several`: a text may have more than one class."""
    if len(scores) < 2:
        return []  # a number, and no classes
    found = to_probabilities(scores.float(), several)
    best, index = found.topk(min(most, len(found)))
    return [Guess(k, name(k), p) for k, p in zip(index.tolist(), best.tolist(), strict=True)]
