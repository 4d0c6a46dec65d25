"""A network with its tokenizer, captured once for every length of texts; then any number of explanations.

TextExplainer.explain(texts)       classes of texts, or what follows a prompt (continuations.py)
TextExplainer.similarity(a, b)     why two texts are similar
TextExplainer.patching(a, b)       which components would move an answer, if they were patched
TextExplainer.guesses(text)        what the network holds to be most probable
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deeptaylor import settings
from deeptaylor.check import DEEP_TAYLOR
from deeptaylor.engine import target as targets
from deeptaylor.engine.comparison import describe_mean
from deeptaylor.engine.contrast import names_classes
from deeptaylor.engine.target import margin
from deeptaylor.errors import InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.graph.modes import eval_mode
from deeptaylor.methods.activation_patching import Direction, Patching, Site, estimate_patching
from deeptaylor.methods.attnlrp import attnlrp
from deeptaylor.settings import ATTNLRP, AUTO, CP_LRP, SECANT
from deeptaylor.support.class_names import to_probabilities
from deeptaylor.text.encoding import Line, decode_pieces, encode_texts, make_batch
from deeptaylor.text.networks import (
    MASK,
    SEEN,
    ClassScores,
    ContinuationScores,
    Guess,
    Similarity,
    get_logits,
    rank_guesses,
)
from deeptaylor.text.text_explanation import TextExplanation
from deeptaylor.text.text_references import (
    HIDDEN,
    HidingCache,
    Reference,
    ReferenceSummary,
    check_vectors,
    fold_hidden,
    ignores_padding,
    join_references,
    keeps_tokens,
    make_seen,
    make_trial,
    mask_words,
    resolve_reference,
    split_words,
)

if TYPE_CHECKING:
    from deeptaylor.text.model import TextModel
from dataclasses import dataclass

from deeptaylor.between import Between, BetweenLedger
from deeptaylor.text.encoding import encode_continuation

__all__ = [
    "METHODS",
    "METHOD_NAMES",
    "SECANT",
    "ContinuationQuestion",
    "PromptRow",
    "TextExplainer",
    "make_tensors",
    "read_continuations",
    "subtract_rivals",
]

METHODS: Mapping[str, Mapping[str, Any]] = {  # by name, with the settings of their explainers
    SECANT: {},
    DEEP_TAYLOR: {"method": settings.DEEP_TAYLOR},
    CP_LRP: {"method": CP_LRP},
    ATTNLRP: {},
}
METHOD_NAMES: Mapping[str, str] = {  # as `method=` names them for every network
    AUTO: SECANT,
    SECANT: SECANT,
    settings.DEEP_TAYLOR: DEEP_TAYLOR,
    CP_LRP: CP_LRP,
    ATTNLRP: ATTNLRP,
}
_WITHOUT_RULES = (SECANT, ATTNLRP)  # they need no plan: without one, networks are captured faster, and more of them


class TextExplainer:
    """Explains a network that reads texts; keep it for many texts, since it captures once per length.

    model       what dt.load("hf:…") returns
    method      "auto" or None: "secant", which fits transformers; or by name "deep-taylor", "cp-lrp", "attnlrp"
    reference   what words are compared with. None: the text without all of its words and without each half of them,
                which are [MASK] (or padding, or the end of a text, by what the tokenizer has) and, in a second
                comparison, hidden from the other tokens, where the network lets them be: the mean is taken. Or with
                all words at once "mask", "pad", "mean", "hidden", another token; token numbers, as many as the text
                has; a tuple of these, of which the mean is taken

    Texts are padded to a multiple of 16 tokens, where the tokenizer has a padding token and the network, as it is tried
    once, says the same of a text that is padded.
    """

    def __init__(self, model: TextModel, method: str | None = None, reference: Any = None) -> None:
        self.model, self.method = model, SECANT if method is None else METHOD_NAMES.get(method, method)
        if self.method not in METHODS:
            raise InputError(f"Of texts, a method is one of {', '.join(map(repr, METHOD_NAMES))}; got {method!r}.")
        if self.method != SECANT and reference is not None:
            raise InputError(f"Only the method 'secant' takes a reference; {self.method!r} has none.")
        asked = reference if isinstance(reference, tuple) else (reference,)
        self.references: tuple[Reference, ...] = tuple(resolve_reference(model.tokenizer, one) for one in asked)
        self.by_parts = self.method == SECANT and reference is None
        self._explainers: dict[Any, Explainer] = {}
        self._hiding_cache, self._checked = HidingCache(), set[Any]()  # the latter: questions for which vectors will do

    def __repr__(self) -> str:
        compared = join_references(self.references) if self.method == SECANT else "no reference"
        return f"<TextExplainer of {self.model!r}: {self.method}, {compared}>"

    def explain(
        self, texts: Any, target: Any = None, *, continuation: Any = None, against: Any = None
    ) -> TextExplanation:
        """Explain which words speak for a class, or for the next words of a language model.

        texts          a text, a pair (a, b), a list of either, or what the tokenizer returns
        target         of a classifier: None for its answer; a class by name or number; a list of classes
        continuation   of a language model: the text whose log-probability is explained; None: the most likely token
        against        a class, or a continuation, in the place of which: the difference of both is explained
        """
        if self.model.kind == "embedding":
            raise InputError(
                "The network gives embeddings and no classes: use dt.similarity(p, text, other), or --similar-to."
            )
        if self.model.speaks:
            if target is not None:
                raise TargetError("A language model has no classes: use continuation=… instead of target=…")
            return self._explain_continuation(texts, continuation, against)
        if continuation is not None:
            raise InputError(
                "The network is a classifier and does not continue texts: use target=… instead of continuation=…"
            )
        return self._explain_classes(texts, target, against)

    # --- classes --------------------------------------------------------------------------------------------------

    def _explain_classes(self, texts: Any, target: Any, against: Any) -> TextExplanation:
        model, lines = self.model, encode_texts(self.model.tokenizer, texts)
        made = partial(ClassScores, model.network, vectors=self._uses_vectors)
        plain = self._make_batch(lines)
        network, inputs = self._prepare("classes", made, lines, plain)
        asked = targets.to_numbers(
            margin(target, against) if against is not None else target, len(lines), model.class_index
        )
        if isinstance(asked, targets.Margin):
            self._check_rival(asked, plain)
        answer, compared = self._run(network, lines, inputs, (), asked)
        chosen = answer.classes if asked is None else asked
        names = [self._describe_target(chosen, k) for k in range(len(lines))]
        if isinstance(asked, targets.Margin):
            return self._make_explanation(answer, compared, lines, names, "difference of logits")
        scores = self._class_scores(plain)
        if scores.shape[1] < 2 or not names_classes(chosen):  # a number, or what was asked for is not a class
            return self._make_explanation(answer, compared, lines, names, "score")
        told = torch.stack([to_probabilities(row.float(), self._is_multi_label) for row in scores]).cpu()
        classes = torch.as_tensor(chosen).cpu()
        classes = classes if classes.ndim else classes.expand(len(lines))
        chances = told.gather(1, classes.reshape(len(lines), -1).long()).tolist()
        found = self._make_explanation(answer, compared, lines, names, "logit")
        return replace(found, probabilities=tuple(map(tuple, chances)))

    def _check_rival(self, asked: targets.Margin, inputs: Any) -> None:
        """Raise if a class is compared with itself, also as the network's answer: all would be zero."""
        if not isinstance(asked.other, int) or not (asked.target is None or isinstance(asked.target, int)):
            return
        same = asked.target == asked.other
        if same or (asked.target is None and bool((self._class_scores(inputs).argmax(1) == asked.other).any())):
            what = "target and against" if same else "the network's answer and against"
            raise TargetError(
                f"{what} are the same class, {self.model.class_name(asked.other)!r}: their difference is zero."
            )

    def _class_scores(self, inputs: Any) -> Tensor:
        """Compute one score per class for each text."""
        with eval_mode(self.model.network), torch.no_grad():
            scores: Tensor = ClassScores(self.model.network, tuple(inputs), vectors=False)(*inputs.values())
        return scores

    @property
    def _is_multi_label(self) -> bool:
        """True if more than one class may be true of a text."""
        config = getattr(self.model.network, "config", None)
        return getattr(config, "problem_type", None) == "multi_label_classification"

    def _describe_target(self, chosen: Any, sample: int) -> tuple[str, ...]:
        """Describe the explained classes of a sample."""
        if isinstance(chosen, targets.Margin):
            a, b = (
                "the network's answer" if end is None else repr(self.model.class_name(int(end)))
                for end in (chosen.target, chosen.other)
            )
            return (f"{a} rather than {b}",)
        if isinstance(chosen, (targets.Logit, targets.Probability)) and chosen.target is not None:
            kind = type(chosen).__name__.lower()
            return tuple(f"the {kind} of {name}" for name in self._describe_target(chosen.target, sample))
        if isinstance(chosen, targets.Negative):
            return tuple(f"the negative of {name}" for name in self._describe_target(chosen.target, sample))
        if isinstance(chosen, int):
            return (repr(self.model.class_name(chosen)),)
        if isinstance(chosen, Tensor) and not chosen.is_floating_point():
            return tuple(repr(self.model.class_name(int(k))) for k in chosen[sample].reshape(-1).tolist())
        return ("what was asked for",)

    # --- what follows ---------------------------------------------------------------------------------------------

    def _explain_continuation(self, prompts: Any, continuation: Any, against: Any) -> TextExplanation:
        model, log = self.model, self.method == SECANT
        lines = encode_texts(model.tokenizer, prompts, drop_end=not model.decoder)
        if continuation is None:
            continuation = [[token] for token in self._predict_next(lines)]
        asked = read_continuations(model.tokenizer, lines, continuation, against, spaced=not model.decoder)
        for wanted, rival in zip(asked.wanted, asked.rivals or (), strict=False):
            if wanted == rival:
                raise InputError(
                    f"The continuation and the one against it are the same, {self._decode(rival)!r}: their difference "
                    "is zero."
                )
        if asked.has_long_rivals and self.method != SECANT:
            raise InputError("Two continuations that are not one token each are compared by the method 'secant' alone.")
        rows = asked.make_rows(model.decoder_start)
        inputs = self._make_batch([row.line for row in rows], alike=len({len(line) for line in lines}) == 1)
        more, signs = make_tensors(rows)
        more = [self._to_device(t) for t in more]
        made = partial(ContinuationScores, model.network, vectors=self._uses_vectors, decoder=model.decoder, log=log)
        weights, own = signs.to(next(model.network.parameters())), [row.line for row in rows]
        network, inputs = self._prepare(("spans", log), made, own, inputs, more)
        answer, compared = self._run(network, own, inputs, more, weights)
        if asked.has_long_rivals:
            answer = subtract_rivals(answer, len(lines))
        answer = replace(answer, notes=(*answer.notes, *asked.notes))
        quantity = "log-probability" if log else "logit"
        said = [(self._describe_question(asked, k),) for k in range(len(lines))]
        return self._make_explanation(
            answer, compared, own[: len(lines)], said,
            f"difference of {'log-probabilities' if log else 'logits'}" if against is not None else quantity,
            sink=not model.decoder,
        )  # fmt: skip

    def _describe_question(self, asked: ContinuationQuestion, sample: int) -> str:
        a = self._decode(asked.wanted[sample])
        return (
            f"{a!r} next" if asked.rivals is None else f"{a!r} rather than {self._decode(asked.rivals[sample])!r} next"
        )

    def _decode(self, ids: Sequence[int]) -> str:
        own = self.model.tokenizer
        return decode_pieces(own, ids)[0] if len(ids) == 1 else str(own.decode(ids))

    def _predict_next(self, lines: Sequence[Line]) -> list[int]:
        """Return the most likely token behind each prompt."""
        return [int(row.argmax()) for row in self._compute_next_scores(lines)]

    def _compute_next_scores(self, lines: Sequence[Line]) -> list[Tensor]:
        """Compute the logits of the token behind each prompt."""
        inputs, network = self._make_batch(lines, alike=len({len(line) for line in lines}) == 1), self.model.network
        more, start = {}, self.model.decoder_start
        if start is not None:
            more["decoder_input_ids"] = self._to_device(torch.full((len(lines), 1), start))
        with eval_mode(network), torch.no_grad():
            logits = get_logits(network(**inputs, **more, use_cache=False))
        last = [0 if self.model.decoder else len(line) - 1 for line in lines]
        return [logits[k, place] for k, place in enumerate(last)]

    # --- what the network would say -------------------------------------------------------------------------------

    def guesses(self, text: Any, most: int = 5) -> list[Guess]:
        """Return the most probable classes of one text, or next tokens; none if it has neither."""
        model = self.model
        if model.kind == "embedding":
            return []
        if model.speaks:
            lines = encode_texts(model.tokenizer, text, drop_end=not model.decoder)
            (scores,) = self._compute_next_scores(lines)
            return rank_guesses(scores, lambda token: self._decode([token]), most)
        inputs = self._make_batch(encode_texts(model.tokenizer, text))
        (scores,) = self._class_scores(inputs)
        return rank_guesses(scores, model.class_name, most, self._is_multi_label)

    # --- patching ---------------------------------------------------------------------------------------------------

    def patching(
        self, clean: Any, corrupted: Any, answer: Any = None, *, against: Any = None,
        at: str | Site | Sequence[str | Site] | None = None, direction: Direction = "noising", verify: int = 10,
    ) -> Patching:  # fmt: skip
        """Estimate what activation patching would measure, for all components at once (see `dt.patching`).

        clean, corrupted   texts, or lists of as many, with the same number of tokens
        answer             of a language model: the continuation whose log-probability is asked about; of a classifier:
                           a class. None: what the network itself answers to the clean text
        against            another continuation, or class, in the place of which: the difference of both
        """
        model = self.model
        if model.kind == "embedding":
            raise InputError("The network gives embeddings: patching needs a score, of a class or of what follows.")
        lines, others = (
            encode_texts(model.tokenizer, texts, drop_end=model.speaks and not model.decoder)
            for texts in (clean, corrupted)
        )
        self._check_exchangeable(lines, others)
        if model.speaks:
            network, x, x0, target = self._ask_to_continue(lines, others, answer, against)
        else:
            made = partial(ClassScores, model.network, vectors=False)
            given = [self._make_batch(some) for some in (lines, others)]
            x, x0 = (tuple(one.values()) for one in given)
            network = self._get_explainer("classes to patch", made(names=tuple(given[0])))
            asked = margin(answer, against) if against is not None else answer
            target = targets.to_numbers(asked, len(lines), model.class_index)
        found = estimate_patching(
            network, x, x0, target, at, direction=direction, verify=verify, root="network."
        )  # fmt: skip
        return replace(found, words=tuple(line.pieces for line in lines))

    def _check_exchangeable(self, lines: Sequence[Line], others: Sequence[Line]) -> None:
        """Raise InputError unless both texts of every pair have the same number of tokens."""
        if len(lines) != len(others):
            raise InputError(f"There are {len(lines)} clean texts, and {len(others)} corrupted ones.")
        for a, b in zip(lines, others, strict=True):
            if len(a) != len(b):
                raise InputError(
                    f"The clean text has {len(a)} tokens and the corrupted one {len(b)}: their values can be exchanged "
                    f"only if both have the same number. They are {'|'.join(a.pieces)} and {'|'.join(b.pieces)}."
                )

    def _ask_to_continue(
        self, lines: Sequence[Line], others: Sequence[Line], answer: Any, against: Any
    ) -> tuple[Explainer, tuple[Tensor, ...], tuple[Tensor, ...], Tensor]:
        """Return the explainer of a continuation's log-probability, both inputs, and the weights of its tokens."""
        model = self.model
        wanted = [[token] for token in self._predict_next(lines)] if answer is None else answer
        asked = read_continuations(model.tokenizer, lines, wanted, against, spaced=not model.decoder)
        if asked.has_long_rivals:
            raise InputError("Two continuations that are compared by patching are one token each.")
        inputs: list[tuple[Tensor, ...]] = []
        for some in (lines, others):
            rows = replace(asked, lines=tuple(some)).make_rows(model.decoder_start)
            made = self._make_batch([row.line for row in rows], alike=len({len(line) for line in some}) == 1)
            more, signs = make_tensors(rows)
            inputs.append((*made.values(), *map(self._to_device, more)))
        network = self._get_explainer(
            "continuations to patch",
            ContinuationScores(model.network, tuple(made), vectors=False, decoder=model.decoder, log=True),
        )
        return network, inputs[0], inputs[1], signs.to(next(model.network.parameters()))

    # --- similarity -----------------------------------------------------------------------------------------------

    def similarity(self, a: Any, b: Any, dot: bool = False) -> TextExplanation:
        """Explain which words of both texts make them similar.

        a, b   a text each; or lists of as many
        dot    the dot product of the embeddings in place of their cosine

        Each text in turn is compared with its reference while the other stays as it is; the mean of both is taken.
        """
        model = self.model
        if model.kind != "embedding":
            raise InputError(f"The network is a {model.kind}; a similarity needs a network that gives embeddings.")
        if self.method != SECANT:
            raise InputError(f"A similarity is explained by the method 'secant'; {self.method!r} has no rule for it.")
        if any(reference.hidden for reference in self.references):
            raise InputError("Words of two texts cannot be hidden: choose a reference such as 'mask', 'pad' or 'mean'.")
        sides = [encode_texts(model.tokenizer, texts) for texts in (a, b)]
        if len(sides[0]) != len(sides[1]):
            raise InputError(f"There are {len(sides[0])} texts on the one side, and {len(sides[1])} on the other.")
        inputs = [self._make_batch(lines) for lines in sides]
        names = tuple(inputs[0])
        network = self._get_explainer(
            ("similarity", dot), Similarity(model.network, names, self._uses_vectors, model.pooling, dot)
        )  # fmt: skip
        both = [t for side in inputs for t in side.values()]
        others: list[Any] = []
        for k, lines in enumerate(sides):
            for reference in self.references:
                one: list[Any] = [None] * len(both)
                one[k * len(names)] = reference.replace_words(lines, inputs[k]["input_ids"], model.network)
                others.append(tuple(one))
        answer = network.between(tuple(both), others)
        R = [answer.relevance[0], answer.relevance[len(names)]]
        joined = [x.join(y) for x, y in zip(*sides, strict=True)]
        maps = [torch.cat([R[0][k, : len(x)], R[1][k, : len(y)]]) for k, (x, y) in enumerate(zip(*sides, strict=True))]
        what = "dot product" if dot else "cosine similarity"
        asked = (("the similarity of the two texts",),) * len(joined)
        replaced = f"{join_references(self.references)}, in one text at a time"
        return TextExplanation(self._add_notes(answer), tuple(maps), tuple(joined), asked, what, replaced)

    # --- common ---------------------------------------------------------------------------------------------------

    @property
    def _uses_vectors(self) -> bool:
        return self.method == SECANT and any(reference.vectors for reference in self.references)

    @cached_property
    def _can_pad(self) -> bool:
        return ignores_padding(self.model)

    def _to_device(self, t: Tensor) -> Tensor:
        return t.to(next(self.model.network.parameters()).device)

    def _make_batch(self, lines: Sequence[Line], alike: bool = False) -> dict[str, Tensor]:
        """Return the tensors of some texts; `alike`: of prompts of one length, whatever follows them."""
        model = self.model
        if len({len(line) for line in lines}) > 1 and not self._can_pad:
            said = "The texts have different numbers of tokens, and padding changes what the network says of a text"
            raise InputError(f"{said}: explain them one at a time.")
        padding = model.tokenizer.pad_token_id if "attention_mask" in model.inputs and self._can_pad else None
        if padding is None and alike and model.kind == "language model":
            padding = 0  # what comes behind a text has no influence on it, whatever it is
        made = make_batch(lines, model.inputs, padding, model.longest)
        return {name: self._to_device(t) for name, t in made.items()}

    def _get_explainer(self, key: Any, network: nn.Module) -> Explainer:
        """Return the explainer of a question; create it if there is none."""
        if key not in self._explainers:
            explainer = Explainer(network, **METHODS[self.method])
            self._explainers[key] = explainer.make_unplanned() if self.method in _WITHOUT_RULES else explainer
        return self._explainers[key]

    def _prepare(
        self,
        key: Any,
        made: Callable[..., nn.Module],
        lines: Sequence[Line],
        inputs: dict[str, Tensor],
        more: Sequence[Tensor] = (),
    ) -> tuple[Explainer, dict[str, Tensor]]:
        """Return the explainer of a question and its inputs, with `seen` if words are to be hidden.

        `made`: the network of some names of inputs; and `hides`, how words are hidden.
        """
        asked, length = any(reference.hidden for reference in self.references), inputs["input_ids"].shape[1]
        texts = partial(make_trial, self.model.tokenizer, inputs, more, self._can_pad)
        if self._uses_vectors and key not in self._checked:
            check_vectors(made, texts())
            self._checked.add(key)
        if not (self.by_parts or asked):
            return self._get_explainer((key, None, None), made(names=tuple(inputs))), inputs
        names = (*inputs, SEEN)

        def hidden(how: str) -> Explainer:
            """Return an explainer for one length: `seen` is real numbers, whose shape is fixed."""
            return self._get_explainer((key, how, length), made(names=names, hides=how))

        how, why = self._hiding_cache.find(key, made, texts, length, lambda *given: hidden(MASK).between(*given))
        if how == MASK and not keeps_tokens(lines, inputs, first=self.model.kind == "language model"):
            how, why = None, "a text begins with a word or has no other tokens, so nothing would be left to read"
        if how is not None:
            return hidden(how), {**inputs, SEEN: make_seen(inputs, next(self.model.network.parameters()))}
        if asked:
            raise InputError(
                f"Words cannot be hidden from this network: {why}. Ask for a reference such as 'mask', 'pad' or 'mean'."
            )
        return self._get_explainer((key, None, None), made(names=tuple(inputs))), inputs

    def _run(
        self,
        network: Explainer,
        lines: Sequence[Line],
        inputs: Mapping[str, Tensor],
        more: Sequence[Tensor],
        target: Any,
    ) -> tuple[Explanation, ReferenceSummary]:
        """Return the explanation, and a summary of the references."""
        x = (*inputs.values(), *more)
        if self.method == ATTNLRP:
            return attnlrp(network, x, target), ReferenceSummary()
        if self.method != SECANT:
            return replace(network.explain(x, target), method=self.method), ReferenceSummary()
        ids, kinds = inputs["input_ids"], self.references
        words = mask_words(lines, ids)
        missing = split_words(words) if self.by_parts else [words]
        if self.by_parts and SEEN in inputs:
            kinds = (*kinds, HIDDEN)

        def without(kind: Reference, gone: Tensor) -> tuple[Any, ...]:
            """Return one reference; inputs that it does not name stay as they are."""
            if kind.hidden:
                other = {SEEN: (~gone).to(inputs[SEEN].dtype)}
            else:
                other = {"input_ids": kind.replace_words(lines, ids, self.model.network, gone)}
            return (*[other.get(name) for name in inputs], *[None] * len(more))

        answer = network.between(x, [without(kind, gone) for kind in kinds for gone in missing], target)
        if SEEN in inputs:
            answer = fold_hidden(answer, list(inputs).index(SEEN))
        return answer, ReferenceSummary(join_references(kinds), len(kinds) * len(missing) if len(missing) > 1 else 0)

    def _make_explanation(
        self, answer: Explanation, compared: ReferenceSummary, lines: Sequence[Line], asked: Sequence[tuple[str, ...]],
        quantity: str, sink: bool = False,
    ) -> TextExplanation:  # fmt: skip
        R: Tensor = answer.relevance[0] if isinstance(answer.relevance, tuple) else answer.relevance
        maps = tuple(R[k, ..., : len(line)] for k, line in enumerate(lines))
        said = describe_mean(compared.parts)  # the sentence has it, too
        answer = replace(answer, notes=tuple(note for note in answer.notes if note != said))
        return TextExplanation(
            self._add_notes(answer), maps, tuple(lines), tuple(asked), quantity, compared.said, sink, compared.parts
        )  # fmt: skip

    def _add_notes(self, answer: Explanation) -> Explanation:
        notes = self.model.notes
        return replace(answer, notes=(*notes, *answer.notes)) if notes else answer


# --- continuations of a prompt, perhaps compared with a rival ---------------------------------------------------------


@dataclass(frozen=True)
class PromptRow:
    """One text for the network: the places whose next token is read, these tokens, and their signs."""

    line: Line
    decoder: tuple[int, ...]  # what the decoder is given, where there is an encoder
    places: tuple[int, ...]
    tokens: tuple[int, ...]
    signs: tuple[int, ...]


@dataclass(frozen=True)
class ContinuationQuestion:
    """Prompts, and the tokens of the continuation of each; `rivals`: those that they are compared with."""

    tokenizer: Any
    lines: tuple[Line, ...]
    wanted: tuple[tuple[int, ...], ...]
    rivals: tuple[tuple[int, ...], ...] | None
    notes: tuple[str, ...] = ()

    @property
    def has_long_rivals(self) -> bool:
        """True if the rivals are texts of their own."""
        return self.rivals is not None and any(len(ids) > 1 for ids in (*self.wanted, *self.rivals))

    def make_rows(self, start: int | None) -> list[PromptRow]:
        """Return one row per prompt, then those of longer rivals. `start`: the first token of the decoder."""
        pairs = zip(self.lines, self.wanted, strict=True)
        if self.rivals is None:
            return [self._make_row(line, ids, start) for line, ids in pairs]
        if self.has_long_rivals:
            others = zip(self.lines, self.rivals, strict=True)
            return [self._make_row(line, ids, start) for line, ids in (*pairs, *others)]
        both = zip(self.lines, self.wanted, self.rivals, strict=True)
        return [_add_rival(self._make_row(line, a, start), b[0]) for line, a, b in both]

    def _make_row(self, line: Line, ids: Sequence[int], start: int | None) -> PromptRow:
        before, count = ids[:-1], len(ids)
        if start is not None:
            return PromptRow(line, (start, *before), tuple(range(count)), tuple(ids), (1,) * count)
        first = len(line) - 1
        whole = line.extend(before, decode_pieces(self.tokenizer, before))
        return PromptRow(whole, (), tuple(range(first, first + count)), tuple(ids), (1,) * count)


def _add_rival(row: PromptRow, other: int) -> PromptRow:
    return replace(row, places=row.places * 2, tokens=(*row.tokens, other), signs=(1, -1))


def read_continuations(
    tokenizer: Any, lines: Sequence[Line], wanted: Any, rivals: Any, spaced: bool = False
) -> ContinuationQuestion:
    """Read continuations as tokens: a text for all prompts, or a list of one each; lists of numbers are tokens.

    spaced   they follow the prompt, from which a space sets a new word apart
    """
    texts = [t for given in (wanted, rivals) for t in (given if isinstance(given, list) else [given])]
    notes = _warn_of_missing_space(tokenizer, [t for t in texts if isinstance(t, str)]) if spaced else []
    return ContinuationQuestion(
        tokenizer, tuple(lines), _read_each(tokenizer, wanted, len(lines)),
        None if rivals is None else _read_each(tokenizer, rivals, len(lines)), tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _warn_of_missing_space(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Return notes on words without a leading space if the tokenizer has another token with one."""
    return [
        f"the continuation {text!r} begins without a space, so that it is read as the end of the word before it; a new "
        f"word is {' ' + text!r}"
        for text in texts
        if text[:1].isalnum() and encode_continuation(tokenizer, text) != encode_continuation(tokenizer, f" {text}")
    ]


def _read_each(tokenizer: Any, texts: Any, count: int) -> tuple[tuple[int, ...], ...]:
    listed = texts if isinstance(texts, list) else [texts] * count
    if len(listed) != count:
        raise InputError(f"There are {len(listed)} continuations for {count} prompts; give one for each, or one text.")
    return tuple(_check_tokens(t) if isinstance(t, list) else tuple(encode_continuation(tokenizer, t)) for t in listed)


def _check_tokens(ids: list[Any]) -> tuple[int, ...]:
    """Check tokens that are given by their numbers."""
    if not ids or not all(type(token) is int and token >= 0 for token in ids):
        raise InputError(f"A continuation in numbers is a list of tokens, each from 0 on; got {str(ids)[:80]}.")
    return tuple(ids)


def make_tensors(rows: Sequence[PromptRow]) -> tuple[list[Tensor], Tensor]:
    """Return the inputs behind the prompts, and the weights of the tokens' scores.

    Their number is rounded up to a power of two with weights of zero, so that few have to be captured.
    """
    count = 1 << (max(len(row.tokens) for row in rows) - 1).bit_length()
    columns = [[row.places for row in rows], [row.tokens for row in rows]]
    if rows[0].decoder:
        columns.insert(0, [row.decoder for row in rows])
    signs = torch.tensor([_pad(row.signs, count) for row in rows])
    return [torch.tensor([_pad(values, count) for values in column]) for column in columns], signs


def _pad(values: Sequence[int], count: int) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def subtract_rivals(answer: Explanation, count: int) -> Between:
    """Subtract the answers of the rivals from those of the first texts: relevance of the prompt, and the ledger."""
    assert isinstance(answer, Between)
    R = answer.relevance[0]
    difference = R[:count] - R[count:]
    score, reference = (t[:count] - t[count:] for t in (answer.score, answer.reference_score))
    sums = [(sign * difference).clamp(min=0).sum(1) for sign in (1, -1)]
    return replace(
        answer,
        relevance=difference,
        score=score,
        reference_score=reference,
        ledger=BetweenLedger.from_scores(score, reference, *sums),
        source=lambda name: answer.at(name)[:count] - answer.at(name)[count:],
    )
