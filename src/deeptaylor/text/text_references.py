"""What words are compared with: the same text whose words are [MASK], padding, hidden, or the mean of all embeddings.

Special tokens, and those that belong to the question, are in the reference what they are in the text. Unless a
reference was asked for, words are missing in several ways (`split_words`): all of them, and each half of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from deeptaylor.between import Between, BetweenLedger
from deeptaylor.errors import InputError
from deeptaylor.graph.modes import eval_mode
from deeptaylor.text.encoding import Line
from deeptaylor.text.networks import CAUSAL, MASK, SCORES, SEEN, ClassScores, get_embeddings

if TYPE_CHECKING:
    from deeptaylor.text.model import TextModel

__all__ = [
    "GIVEN",
    "HIDDEN",
    "Hiding",
    "HidingCache",
    "Reference",
    "ReferenceSummary",
    "TrialTexts",
    "check_vectors",
    "explain_refusal",
    "find_hiding",
    "find_tolerance",
    "fold_hidden",
    "ignores_padding",
    "join_references",
    "keeps_tokens",
    "make_seen",
    "make_trial",
    "mask_words",
    "relative_difference",
    "resolve_reference",
    "split_words",
]

MEAN = "the mean embedding"
GIVEN = "the tokens of the reference"


@dataclass(frozen=True)
class Reference:
    """What every word token is replaced by.

    said    in words, as the answer says it
    token   its number; None: the mean of all embeddings, or `ids`
    ids     whole texts in numbers, one per text, where those were given
    hidden  words stay, and no other token reads them
    """

    said: str
    token: int | None = None
    ids: tuple[tuple[int, ...], ...] | None = None
    hidden: bool = False

    @property
    def vectors(self) -> bool:
        """True where no token has this vector."""
        return self.token is None and self.ids is None and not self.hidden

    def replace_words(
        self, lines: Sequence[Line], inputs: Tensor, network: nn.Module, gone: Tensor | None = None
    ) -> Tensor:
        """Return padded tokens, or vectors, with words replaced; `gone`: which words, if not all."""
        if self.ids is not None:
            return self._insert_tokens(lines, inputs)
        chosen = mask_words(lines, inputs) if gone is None else gone
        if self.token is not None:
            return inputs.masked_fill(chosen, self.token)
        table: Tensor = get_embeddings(network).weight.detach()  # type: ignore[operator]
        return torch.where(chosen.unsqueeze(-1), table.mean(0), table[inputs])

    def _insert_tokens(self, lines: Sequence[Line], inputs: Tensor) -> Tensor:
        assert self.ids is not None
        given, other = self.ids if len(self.ids) == len(lines) else self.ids * len(lines), inputs.clone()
        if len(given) != len(lines):
            raise InputError(f"The reference holds {len(self.ids)} texts, and {len(lines)} are explained.")
        for row, line, own in zip(other, lines, given, strict=True):
            prompt = len(line) - line.held
            if len(own) != prompt:
                raise InputError(
                    f"The reference has {len(own)} tokens, and the text has {prompt}: it must have as many."
                )
            row[:prompt] = torch.tensor(own)
        return other


HIDDEN = Reference("hidden", hidden=True)


class ReferenceSummary(NamedTuple):
    """What texts were compared with, in words; and with how many texts that lack all or half of their words."""

    said: str = ""
    parts: int = 0


def join_references(references: Sequence[Reference]) -> str:
    """Name several references, each once."""
    return " or ".join(dict.fromkeys(reference.said for reference in references))


def mask_words(lines: Sequence[Line], inputs: Tensor) -> Tensor:
    """Return True for the tokens of words, in the shape of padded token numbers."""
    found = torch.zeros(inputs.shape, dtype=torch.bool)
    for row, line in zip(found, lines, strict=True):
        row[: len(line)] = torch.tensor(line.replaced)
    return found.to(inputs.device)


def split_words(words: Tensor) -> list[Tensor]:
    """Return the tokens missing in each comparison: all; every second one, the others; every second pair, the rest.

    With all of them gone, one learns what words do with nothing beside them; with half of them, what they do among the
    others. A half that is empty, as in very short texts, is all of them.

    >>> import torch
    >>> [part.int().tolist()[0] for part in split_words(torch.tensor([[False, True, True, True, True]]))]
    [[0, 1, 1, 1, 1], [0, 0, 1, 0, 1], [0, 1, 0, 1, 0], [0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]
    """
    place, found = words.cumsum(1) - 1, [words]
    for run in (1, 2):
        second = words & (place // run % 2 == 1)
        found += [torch.where(half.any(1, keepdim=True), half, words) for half in (second, words & ~second)]
    return found if any(not torch.equal(part, words) for part in found) else [words]


def resolve_reference(tokenizer: Any, asked: Any) -> Reference:
    """Return the requested reference, or by default [MASK], padding or the end of a text; else the mean."""
    if asked is None:
        return _choose_default(tokenizer)
    if isinstance(asked, str):
        return _find_named(tokenizer, asked)
    rows = asked.tolist() if isinstance(asked, Tensor) else asked
    rows = rows if isinstance(rows, list) and rows and isinstance(rows[0], list) else [rows]
    if not all(isinstance(row, list) and row and all(type(token) is int for token in row) for row in rows):
        raise InputError(
            "A reference is 'mask', 'pad', 'mean', 'hidden', a token by its text, or token numbers, as many as the "
            f"text has; got {asked!r}."
        )
    return Reference(GIVEN, ids=tuple(map(tuple, rows)))


def _choose_default(tokenizer: Any) -> Reference:
    for name in ("mask", "pad", "eos"):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            return Reference(getattr(tokenizer, f"{name}_token"), number)
    return Reference(MEAN)


def _find_named(tokenizer: Any, asked: str) -> Reference:
    if asked == "mean":
        return Reference(MEAN)
    if asked == "hidden":
        return HIDDEN
    if asked in ("mask", "pad"):
        token = getattr(tokenizer, f"{asked}_token")
        if token is None:
            raise InputError(
                f"The tokenizer has no {asked} token: give {{reference}}, or name another token.", reference="mean"
            )
        return Reference(token, getattr(tokenizer, f"{asked}_token_id"))
    ids = tokenizer(asked, add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(
            f"The reference {asked!r} is {len(ids)} tokens. It must be one token, which replaces every word, or "
            "'mask', 'pad', 'mean', 'hidden'."
        )
    if ids[0] == tokenizer.unk_token_id and asked != tokenizer.unk_token:
        return Reference(
            f"{asked!r}, which the tokenizer does not know: the unknown token {tokenizer.unk_token}", ids[0]
        )
    return Reference(repr(asked), ids[0])


# --- what a network does with padding, hidden words and vectors, tried on texts made for it ---------------------------


_FEW = 256  # units of the last digit, relative to the largest score, by which two answers that are the same may differ
_LENGTH = 16


class TrialTexts(NamedTuple):
    """Two texts: their tensors by name, what the network takes behind them, and how many tokens each has."""

    inputs: dict[str, Tensor]
    more: tuple[Tensor, ...] = ()
    lengths: tuple[int, int] = (0, 0)


def make_trial(tokenizer: Any, like: dict[str, Tensor], more: Sequence[Tensor] = (), padded: bool = True) -> TrialTexts:
    """Make two constant texts of ordinary tokens, as long as those of `like`; `padded`: pad the second one.

    more   what the network takes behind those: of a language model the places to read, and the tokens there
    """
    given = like["input_ids"]
    length, draw = given.shape[1], torch.Generator().manual_seed(0)
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    ids = ordinary[torch.randint(len(ordinary), (2, length), generator=draw)]
    lengths = length, (length + 1) // 2 if padded else length
    before, behind = _find_frame(tokenizer)
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
    return TrialTexts(inputs, tuple(more), lengths)


def _find_frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens before and behind a text, which some networks look for."""
    found = tokenizer("a", return_special_tokens_mask=True, verbose=False)
    ids, special = found["input_ids"], found["special_tokens_mask"]
    words = [k for k, extra in enumerate(special) if not extra]
    return (ids[: words[0]], ids[words[-1] + 1 :]) if words else ([], [])


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference of two answers relative to the largest score."""
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(wanted.dtype).tiny))


def find_tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference that rounding explains in a dtype."""
    return min(_FEW * torch.finfo(dtype).eps, 0.02)


def check_vectors(made: Callable[..., nn.Module], texts: TrialTexts) -> None:
    """Raise if the network computes other scores from the vectors of tokens than from the tokens."""
    numbers, vectors = (made(names=tuple(texts.inputs), vectors=v) for v in (False, True))
    with eval_mode(numbers), torch.no_grad():
        found, wanted = (n(*texts.inputs.values(), *texts.more) for n in (vectors, numbers))
    if relative_difference(found, wanted) > find_tolerance(wanted.dtype):
        raise InputError(
            "The network gives other scores for the vectors of tokens than for the tokens themselves, so the reference "
            "'mean' is not available: use 'mask', 'pad' or another token."
        )


def ignores_padding(model: TextModel) -> bool:
    """Return whether the scores stay the same with padding behind a text that the attention mask leaves out.

    A network that does not take the trial says nothing about it: what is wrong with it is told where it is captured.
    """
    length = min(_LENGTH, model.longest or _LENGTH)
    device = next(model.network.parameters()).device
    like = {name: torch.zeros(1, length, dtype=torch.long, device=device) for name in model.inputs}
    made = make_trial(model.tokenizer, like)
    count = made.lengths[1]
    padded, alone = ({k: t[1:, :n] for k, t in made.inputs.items()} for n in (length, count))
    with eval_mode(model.network), torch.no_grad(), suppress(Exception):
        found, wanted = (_compute_scores(model, inputs, count) for inputs in (padded, alone))
        return relative_difference(found, wanted) <= find_tolerance(wanted.dtype)
    return True


def _compute_scores(model: TextModel, inputs: dict[str, Tensor], count: int) -> Tensor:
    """Compute the scores of one text of so many tokens, which may be padded."""
    network: Any = model.network
    if model.kind == "classifier":
        found = ClassScores(network, tuple(inputs), vectors=False)(*inputs.values())
    elif model.decoder_start is not None:
        start = torch.full_like(inputs["input_ids"][:, :1], model.decoder_start)
        found = network(**inputs, decoder_input_ids=start, use_cache=False)[0]
    else:
        found = network(**inputs, **({"use_cache": False} if model.speaks else {}))[0][:, :count]
    assert isinstance(found, Tensor)
    return found


# --- hidden words -----------------------------------------------------------------------------------------------------


class Hiding(NamedTuple):
    """How words are hidden from a network: SCORES, CAUSAL or MASK; None if they cannot be, and why."""

    how: str | None
    why: str = ""


def find_hiding(made: Callable[..., nn.Module], texts: TrialTexts) -> Hiding:
    """Find how words can be hidden from a network.

    made    the network that takes inputs of some `names`; and `hides`, how
    texts   on which it is tried: the nearer one of SCORES and CAUSAL, if it is the same; else MASK
    """
    inputs, more = texts.inputs, texts.more
    if "attention_mask" not in inputs:
        return Hiding(None, "it has no attention mask")
    given, names, errors = tuple(inputs.values()), (*inputs, SEEN), dict[str, float]()
    with torch.no_grad(), suppress(Exception):  # whatever a network says to a text, or to a mask that it does not know
        shown = [make_seen(inputs, inputs["attention_mask"]), make_trial_seen(texts)]
        plain, masked = made(names=tuple(inputs)), made(names=names, hides=MASK)
        with eval_mode(plain), eval_mode(masked):
            wanted = [plain(*given, *more), masked(*given, shown[1], *more)]
        for how in (SCORES, CAUSAL, MASK):
            other = made(names=names, hides=how)
            with eval_mode(other), suppress(Exception):
                found = [other(*given, seen.to(wanted[0].dtype), *more) for seen in shown]
                errors[how] = max(map(relative_difference, found, wanted))
        most = find_tolerance(wanted[0].dtype)
        nearest = min((how for how in errors if how != MASK), key=lambda how: errors[how], default=MASK)
        for how in (nearest, MASK):
            if errors.get(how, most + 1) <= most:
                return Hiding(how)
    return Hiding(
        None,
        "it takes an attention mask neither as numbers that are added to the attention scores nor as real numbers "
        "between zero and one",
    )


def make_trial_seen(texts: TrialTexts) -> Tensor:
    """Return which tokens are seen if every third one is hidden, but for the last and those that are read."""
    mask = texts.inputs["attention_mask"]
    seen = torch.ones_like(mask)
    seen[:, 1:-1:3] = 0
    if len(texts.more) == 2:  # of a language model the places to read
        seen.scatter_(1, texts.more[0], 1)
    last = mask.sum(1, keepdim=True) - 1
    return seen.scatter_(1, last.clamp(min=0), 1)


def explain_refusal(
    compare: Callable[[Any, Any, int], Between], made: Callable[..., nn.Module], texts: TrialTexts
) -> str:
    """Return why texts cannot be compared with their words hidden by the mask itself; "" if they can."""
    inputs, more, some = texts.inputs, texts.more, make_trial_seen(texts)
    plain = made(names=(*inputs, SEEN), hides=MASK)
    with torch.no_grad(), eval_mode(plain):
        wanted = plain(*inputs.values(), some, *more)[:, 0]
    seen = make_seen(inputs, wanted)
    try:
        answer = compare(
            (*inputs.values(), seen, *more), (*[None] * len(inputs), some.to(seen.dtype), *[None] * len(more)), 0
        )
    except Exception as refused:  # noqa: BLE001 - whatever a network says that is captured with such a mask
        return str(refused).partition("\n")[0].rstrip(".")
    if relative_difference(answer.reference_score.to(wanted.dtype), wanted) > find_tolerance(wanted.dtype):
        return "with hidden words, its score differs from that of the network itself"
    return ""


class HidingCache:
    """How words can be hidden from a network: tried once for each question and length."""

    def __init__(self) -> None:
        self._cache: dict[Any, Hiding] = {}

    def find(
        self, question: Any, made: Callable[..., nn.Module], texts: Callable[[], TrialTexts], length: int,
        compare: Callable[[Any, Any, int], Between],
    ) -> Hiding:  # fmt: skip
        """Return what was found of texts of a length.

        compare   x, a reference and a target, where words are hidden by the mask itself
        """
        if (question, length) not in self._cache:
            tried = texts()
            found = find_hiding(made, tried)
            why = explain_refusal(compare, made, tried) if found.how == MASK else ""
            self._cache[question, length] = Hiding(None, why) if why else found
        return self._cache[question, length]


def make_seen(inputs: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Return the input of a text none of whose words is hidden."""
    return torch.ones(inputs["input_ids"].shape, dtype=like.dtype, device=like.device)


def keeps_tokens(lines: Sequence[Line], inputs: Mapping[str, Tensor], first: bool) -> bool:
    """Return whether every text has a visible token when its words are hidden; `first`: whether it is the first."""
    kept = inputs["attention_mask"].bool() & ~mask_words(lines, inputs["input_ids"])
    return bool((kept[:, 0] if first else kept.any(1)).all())


def fold_hidden(answer: Between, seen: int) -> Between:
    """Add the relevance of a word's visibility, input `seen`, to that of its meaning."""
    maps = list(answer.relevance)
    maps[0], maps[seen] = maps[0] + maps[seen], torch.zeros_like(maps[seen])
    lead = answer.score.ndim
    sums = [(s * maps[0]).clamp(min=0).flatten(lead).sum(lead) for s in (1, -1)]
    ledger = BetweenLedger.from_scores(answer.score, answer.reference_score, *sums)
    return replace(answer, relevance=tuple(maps), ledger=ledger)
