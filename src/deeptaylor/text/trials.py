"""What a network does with padding, hidden words and vectors: tried on texts that are made for it.

The user's texts are no trial. One of a single token says the same whether or not a token reads those behind it, and one
that is shorter than a window of attention the same as without a window; but the next text may be longer.

Trial           two texts of a length, the second of which is padded from its half on
apart, bound    by how much two answers to it differ, and may
pads_freely     does padding leave the answers as they are?
check_vectors   are the vectors of tokens as good as the tokens?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.text.networks import Classes

if TYPE_CHECKING:
    from deeptaylor.text.model import TextModel

__all__ = ["Trial", "apart", "bound", "check_vectors", "pads_freely", "trial"]

_FEW = 256  # units of the last digit, relative to the largest score, by which two answers that are the same may differ
_LENGTH = 16


class Trial(NamedTuple):
    """Two texts: their tensors by name, what the network takes behind them, and how many tokens each has."""

    inputs: dict[str, Tensor]
    more: tuple[Tensor, ...] = ()
    lengths: tuple[int, int] = (0, 0)


def trial(tokenizer: Any, like: dict[str, Tensor], more: Sequence[Tensor] = (), padded: bool = True) -> Trial:
    """Texts of ordinary tokens, always the same, as long as those of `like`; `padded`: the second one is.

    more   what the network takes behind those: of a language model the places to read, and the tokens there
    """
    given = like["input_ids"]
    length, draw = given.shape[1], torch.Generator().manual_seed(0)
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    ids = ordinary[torch.randint(len(ordinary), (2, length), generator=draw)]
    lengths = length, (length + 1) // 2 if padded else length
    before, behind = _frame(tokenizer)
    for row, n in zip(ids, lengths, strict=True):
        if n > len(before) + len(behind):
            row[: len(before)], row[n - len(behind) : n] = torch.tensor(before), torch.tensor(behind)
    mask = torch.arange(length) < torch.tensor(lengths)[:, None]
    made = {
        "input_ids": torch.where(mask, ids, tokenizer.pad_token_id or 0),
        "attention_mask": mask.long(),
        "token_type_ids": torch.zeros_like(ids),
    }
    inputs = {name: made[name].to(given.device) for name in like}
    if len(more) == 2:  # a language model: places from the first token to the last, and what might come next
        places = torch.tensor([[(n - 1) * k // 3 for k in range(4)] for n in lengths])
        more = places.to(given.device), ids[:, :1].expand(-1, 4).to(given.device)
    else:
        more = [t[:1].expand(2, *t.shape[1:]) for t in more]
    return Trial(inputs, tuple(more), lengths)


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before a text and behind it: there are networks that look for them."""
    found = tokenizer("a", return_special_tokens_mask=True, verbose=False)
    ids, special = found["input_ids"], found["special_tokens_mask"]
    words = [k for k, extra in enumerate(special) if not extra]
    return (ids[: words[0]], ids[words[-1] + 1 :]) if words else ([], [])


def apart(found: Tensor, wanted: Tensor) -> float:
    """By how much of the largest score two answers differ."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny))


def bound(dtype: torch.dtype) -> float:
    """By how much they may, in a type of numbers."""
    return min(_FEW * torch.finfo(dtype).eps, 0.02)


def check_vectors(made: Callable[..., nn.Module], texts: Trial) -> None:
    """Refuse vectors in the place of tokens where the network says something else of them."""
    numbers, vectors = (made(names=tuple(texts.inputs), vectors=v) for v in (False, True))
    with eval_mode(numbers), torch.no_grad():
        found, wanted = (n(*texts.inputs.values(), *texts.more) for n in (vectors, numbers))
    if apart(found, wanted) > bound(wanted.dtype):
        raise InputError(
            "The network says another thing of the vectors of tokens than of the tokens themselves, so that there is "
            "no reference 'mean': ask for 'mask', 'pad' or another token."
        )


def pads_freely(model: TextModel) -> bool:
    """False where tokens behind a text that the attention mask leaves out change what the network says of it.

    A network that does not take the trial says nothing about it: what is wrong with it is told where it is captured.
    """
    length = min(_LENGTH, model.longest or _LENGTH)
    device = next(model.network.parameters()).device
    like = {name: torch.zeros(1, length, dtype=torch.long, device=device) for name in model.inputs}
    made = trial(model.tokenizer, like)
    count = made.lengths[1]
    padded, alone = ({k: t[1:, :n] for k, t in made.inputs.items()} for n in (length, count))
    with eval_mode(model.network), torch.no_grad(), suppress(Exception):
        found, wanted = (_answer(model, inputs, count) for inputs in (padded, alone))
        return apart(found, wanted) <= bound(wanted.dtype)
    return True


def _answer(model: TextModel, inputs: dict[str, Tensor], count: int) -> Tensor:
    """What a network says of one text of so many tokens, which may be padded."""
    network: Any = model.network
    if model.kind == "classifier":
        found = Classes(network, tuple(inputs), vectors=False)(*inputs.values())
    elif model.decoder_start is not None:
        start = torch.full_like(inputs["input_ids"][:, :1], model.decoder_start)
        found = network(**inputs, decoder_input_ids=start, use_cache=False)[0]
    else:
        found = network(**inputs, **({"use_cache": False} if model.speaks else {}))[0][:, :count]
    assert isinstance(found, Tensor)
    return found
