"""A network with its tokenizer, captured once for every length of texts; then any number of explanations.

TextExplainer.explain(texts)       classes of texts, or what follows a prompt (continuations.py)
TextExplainer.similarity(a, b)     why two texts are similar
TextExplainer.guesses(text)        what the network holds to be most probable
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deeptaylor.errors import InputError, TargetError
from deeptaylor.explainer import Explainer
from deeptaylor.explanation import Explanation
from deeptaylor.graph.eval_mode import eval_mode
from deeptaylor.methods.attnlrp import METHOD as ATTNLRP
from deeptaylor.methods.attnlrp import attnlrp
from deeptaylor.properties import DEEP_TAYLOR
from deeptaylor.rules import Z
from deeptaylor.run import target as targets
from deeptaylor.run.contrast import names_classes
from deeptaylor.run.target import margin
from deeptaylor.secant.compare import means_note
from deeptaylor.text.continuations import Asked, combined, questions, tensors
from deeptaylor.text.encoding import Line, batch, encoded, pieces_of
from deeptaylor.text.explanation import TextExplanation
from deeptaylor.text.guesses import Guess, guesses, probabilities
from deeptaylor.text.hiding import Hidings, all_seen, folded, keeps_tokens
from deeptaylor.text.networks import MASK, SEEN, Classes, Similarity, Spans, logits_of
from deeptaylor.text.references import HIDDEN, Compared, Reference, all_said, parts, reference_for, words_of
from deeptaylor.text.trials import check_vectors, pads_freely, trial

if TYPE_CHECKING:
    from deeptaylor.text.model import TextModel

__all__ = ["METHODS", "SECANT", "WORDS", "TextExplainer"]

SECANT = "secant"
# CP-LRP: attention weights and the scales of norms are constants, and every layer has the z rule with its bias.
METHODS: Mapping[str, Mapping[str, Any]] = {
    SECANT: {},
    DEEP_TAYLOR: {"method": "deep-taylor"},
    "cp-lrp": {"rules": {"*": Z(bias=True)}, "bias": "neuron"},
    ATTNLRP: {},
}
WORDS: Mapping[str, str] = {
    "auto": SECANT, SECANT: SECANT, "deep-taylor": DEEP_TAYLOR, "cp-lrp": "cp-lrp", ATTNLRP: ATTNLRP,
}  # fmt: skip  # as `method=` names them for every network
_WITHOUT_RULES = (SECANT, ATTNLRP)  # they need no plan: without one, networks are captured faster, and more of them


class TextExplainer:
    """Explains texts to a network with a tokenizer; keep it for many texts, since it captures once per length.

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
        self.model, self.method = model, SECANT if method is None else WORDS.get(method, method)
        if self.method not in METHODS:
            raise InputError(f"Of texts, a method is one of {', '.join(map(repr, WORDS))}; got {method!r}.")
        if self.method != SECANT and reference is not None:
            raise InputError(f"A reference belongs to the method 'secant'; {self.method!r} has none.")
        asked = reference if isinstance(reference, tuple) else (reference,)
        self.references: tuple[Reference, ...] = tuple(reference_for(model.tokenizer, one) for one in asked)
        self.by_parts = self.method == SECANT and reference is None
        self._explainers: dict[Any, Explainer] = {}
        self._hidings, self._checked = Hidings(), set[Any]()  # the latter: questions for which vectors will do

    def __repr__(self) -> str:
        compared = all_said(self.references) if self.method == SECANT else "no reference"
        return f"<TextExplainer of {self.model!r}: {self.method}, {compared}>"

    def explain(
        self, texts: Any, target: Any = None, *, continuation: Any = None, against: Any = None
    ) -> TextExplanation:
        """Which words speak for a class, or for what a language model says next.

        texts          a text, a pair (a, b), a list of either, or what the tokenizer returns
        target         of a classifier: None for its answer; a class by name or number; a list of classes
        continuation   of a language model: the text whose log-probability is explained; None: the most likely token
        against        a class, or a continuation, in the place of which: the difference of both is explained
        """
        if self.model.kind == "embedding":
            raise InputError(
                "The network gives embeddings and no classes: ask dt.similarity(p, text, other), or say --similar-to."
            )
        if self.model.speaks:
            if target is not None:
                raise TargetError("A language model has no classes: say continuation=… in place of target=…")
            return self._continued(texts, continuation, against)
        if continuation is not None:
            raise InputError(
                "The network is a classifier, and continues no text: say target=… in place of continuation=…"
            )
        return self._classified(texts, target, against)

    # --- classes --------------------------------------------------------------------------------------------------

    def _classified(self, texts: Any, target: Any, against: Any) -> TextExplanation:
        model, lines = self.model, encoded(self.model.tokenizer, texts)
        made = partial(Classes, model.network, vectors=self._vectors)
        plain = self._batch(lines)
        network, inputs = self._opened("classes", made, lines, plain)
        asked = targets.plain(margin(target, against) if against is not None else target, len(lines), model.class_index)
        if isinstance(asked, targets.Margin):
            self._check_rival(asked, plain)
        answer, compared = self._answer(network, lines, inputs, (), asked)
        chosen = answer.classes if asked is None else asked
        names = [self._classes(chosen, k) for k in range(len(lines))]
        if isinstance(asked, targets.Margin):
            return self._explained(answer, compared, lines, names, "difference of logits")
        scores = self._class_scores(plain)
        if scores.shape[1] < 2 or not names_classes(chosen):  # a number, or what was asked for is not a class
            return self._explained(answer, compared, lines, names, "score")
        told = torch.stack([probabilities(row, self._several) for row in scores]).cpu()
        classes = torch.as_tensor(chosen).cpu()
        classes = classes if classes.ndim else classes.expand(len(lines))
        chances = told.gather(1, classes.reshape(len(lines), -1).long()).tolist()
        found = self._explained(answer, compared, lines, names, "logit")
        return replace(found, probabilities=tuple(map(tuple, chances)))

    def _check_rival(self, asked: targets.Margin, inputs: Any) -> None:
        """Refuse a class that is set against itself, also where it is the network's answer: all would be zero."""
        if not isinstance(asked.other, int) or not (asked.target is None or isinstance(asked.target, int)):
            return
        same = asked.target == asked.other
        if same or (asked.target is None and bool((self._class_scores(inputs).argmax(1) == asked.other).any())):
            what = "target and against" if same else "the network's answer and against"
            raise TargetError(
                f"{what} are the same class, {self.model.class_name(asked.other)!r}: their difference is zero."
            )

    def _class_scores(self, inputs: Any) -> Tensor:
        """What the network says of each text, one number per class."""
        with eval_mode(self.model.network), torch.no_grad():
            scores: Tensor = Classes(self.model.network, tuple(inputs), vectors=False)(*inputs.values())
        return scores

    @property
    def _several(self) -> bool:
        """True if more than one class may be true of a text."""
        config = getattr(self.model.network, "config", None)
        return getattr(config, "problem_type", None) == "multi_label_classification"

    def _classes(self, chosen: Any, sample: int) -> tuple[str, ...]:
        """What is explained of a sample, in words."""
        if isinstance(chosen, targets.Margin):
            a, b = (
                "the network's answer" if end is None else repr(self.model.class_name(int(end)))
                for end in (chosen.target, chosen.other)
            )
            return (f"{a} rather than {b}",)
        if isinstance(chosen, (targets.Logit, targets.Probability)) and chosen.target is not None:
            kind = type(chosen).__name__.lower()
            return tuple(f"the {kind} of {name}" for name in self._classes(chosen.target, sample))
        if isinstance(chosen, targets.Negative):
            return tuple(f"the negative of {name}" for name in self._classes(chosen.target, sample))
        if isinstance(chosen, int):
            return (repr(self.model.class_name(chosen)),)
        if isinstance(chosen, Tensor) and not chosen.is_floating_point():
            return tuple(repr(self.model.class_name(int(k))) for k in chosen[sample].reshape(-1).tolist())
        return ("what was asked for",)

    # --- what follows ---------------------------------------------------------------------------------------------

    def _continued(self, prompts: Any, continuation: Any, against: Any) -> TextExplanation:
        model, log = self.model, self.method == SECANT
        lines = encoded(model.tokenizer, prompts, drop_end=not model.decoder)
        if continuation is None:
            continuation = [[token] for token in self._next(lines)]
        asked = questions(model.tokenizer, lines, continuation, against, spaced=not model.decoder)
        for wanted, rival in zip(asked.wanted, asked.rivals or (), strict=False):
            if wanted == rival:
                raise InputError(
                    f"The continuation and the one against it are the same, {self._text(rival)!r}: their difference is "
                    "zero."
                )
        if asked.two and self.method != SECANT:
            raise InputError("Two continuations that are not one token each are compared by the method 'secant' alone.")
        rows = asked.rows(model.decoder_start)
        inputs = self._batch([row.line for row in rows], alike=len({len(line) for line in lines}) == 1)
        more, signs = tensors(rows)
        more = [self._placed(t) for t in more]
        made = partial(Spans, model.network, vectors=self._vectors, decoder=model.decoder, log=log)
        weights, own = signs.to(next(model.network.parameters())), [row.line for row in rows]
        network, inputs = self._opened(("spans", log), made, own, inputs, more)
        answer, compared = self._answer(network, own, inputs, more, weights)
        if asked.two:
            answer = combined(answer, len(lines))
        answer = replace(answer, notes=(*answer.notes, *asked.notes))
        quantity = "log-probability" if log else "logit"
        said = [(self._said(asked, k),) for k in range(len(lines))]
        return self._explained(
            answer, compared, own[: len(lines)], said,
            f"difference of {'log-probabilities' if log else 'logits'}" if against is not None else quantity,
            sink=not model.decoder,
        )  # fmt: skip

    def _said(self, asked: Asked, sample: int) -> str:
        a = self._text(asked.wanted[sample])
        return f"{a!r} next" if asked.rivals is None else f"{a!r} rather than {self._text(asked.rivals[sample])!r} next"

    def _text(self, ids: Sequence[int]) -> str:
        own = self.model.tokenizer
        return pieces_of(own, ids)[0] if len(ids) == 1 else str(own.decode(ids))

    def _next(self, lines: Sequence[Line]) -> list[int]:
        """The most likely token behind each prompt."""
        return [int(row.argmax()) for row in self._next_scores(lines)]

    def _next_scores(self, lines: Sequence[Line]) -> list[Tensor]:
        """The logits of the token behind each prompt."""
        inputs, network = self._batch(lines, alike=len({len(line) for line in lines}) == 1), self.model.network
        more, start = {}, self.model.decoder_start
        if start is not None:
            more["decoder_input_ids"] = self._placed(torch.full((len(lines), 1), start))
        with eval_mode(network), torch.no_grad():
            logits = logits_of(network(**inputs, **more, use_cache=False))
        last = [0 if self.model.decoder else len(line) - 1 for line in lines]
        return [logits[k, place] for k, place in enumerate(last)]

    # --- what the network would say -------------------------------------------------------------------------------

    def guesses(self, text: Any, most: int = 5) -> list[Guess]:
        """The most probable classes of one text, or the most probable next tokens; none where it has neither."""
        model = self.model
        if model.kind == "embedding":
            return []
        if model.speaks:
            lines = encoded(model.tokenizer, text, drop_end=not model.decoder)
            (scores,) = self._next_scores(lines)
            return guesses(scores, lambda token: self._text([token]), most)
        inputs = self._batch(encoded(model.tokenizer, text))
        (scores,) = self._class_scores(inputs)
        return guesses(scores, model.class_name, most, self._several)

    # --- similarity -----------------------------------------------------------------------------------------------

    def similarity(self, a: Any, b: Any, dot: bool = False) -> TextExplanation:
        """Which words of both texts make them similar.

        a, b   a text each; or lists of as many
        dot    the dot product of the embeddings in place of their cosine

        Each text in turn is compared with its reference while the other stays as it is; the mean of both is taken.
        """
        model = self.model
        if model.kind != "embedding":
            raise InputError(f"The network is a {model.kind}; similarity is asked of one that gives embeddings.")
        if self.method != SECANT:
            raise InputError(f"A similarity is explained by the method 'secant'; {self.method!r} has no rule for it.")
        if any(reference.hidden for reference in self.references):
            raise InputError("Words of two texts are not hidden: ask for a reference such as 'mask', 'pad' or 'mean'.")
        sides = [encoded(model.tokenizer, texts) for texts in (a, b)]
        if len(sides[0]) != len(sides[1]):
            raise InputError(f"There are {len(sides[0])} texts on the one side, and {len(sides[1])} on the other.")
        inputs = [self._batch(lines) for lines in sides]
        names = tuple(inputs[0])
        network = self._network(
            ("similarity", dot), Similarity(model.network, names, self._vectors, model.pooling, dot)
        )  # fmt: skip
        both = [t for side in inputs for t in side.values()]
        others: list[Any] = []
        for k, lines in enumerate(sides):
            for reference in self.references:
                one: list[Any] = [None] * len(both)
                one[k * len(names)] = reference.of(lines, inputs[k]["input_ids"], model.network)
                others.append(tuple(one))
        answer = network.between(tuple(both), others)
        R = [answer.relevance[0], answer.relevance[len(names)]]
        joined = [x.beside(y) for x, y in zip(*sides, strict=True)]
        maps = [torch.cat([R[0][k, : len(x)], R[1][k, : len(y)]]) for k, (x, y) in enumerate(zip(*sides, strict=True))]
        what = "dot product" if dot else "cosine similarity"
        asked = (("the similarity of the two texts",),) * len(joined)
        replaced = f"{all_said(self.references)}, in one text at a time"
        return TextExplanation(self._noted(answer), tuple(maps), tuple(joined), asked, what, replaced)

    # --- common ---------------------------------------------------------------------------------------------------

    @property
    def _vectors(self) -> bool:
        return self.method == SECANT and any(reference.vectors for reference in self.references)

    @cached_property
    def _pads(self) -> bool:
        return pads_freely(self.model)

    def _placed(self, t: Tensor) -> Tensor:
        return t.to(next(self.model.network.parameters()).device)

    def _batch(self, lines: Sequence[Line], alike: bool = False) -> dict[str, Tensor]:
        """The tensors of some texts; `alike`: of prompts of one length, whatever follows them."""
        model = self.model
        if len({len(line) for line in lines}) > 1 and not self._pads:
            said = "The texts have different numbers of tokens, and padding changes what the network says of a text"
            raise InputError(f"{said}: explain them one at a time.")
        padding = model.tokenizer.pad_token_id if "attention_mask" in model.inputs and self._pads else None
        if padding is None and alike and model.kind == "language model":
            padding = 0  # what comes behind a text has no influence on it, whatever it is
        made = batch(lines, model.inputs, padding, model.longest)
        return {name: self._placed(t) for name, t in made.items()}

    def _network(self, key: Any, network: nn.Module) -> Explainer:
        """The explainer of a question; captured when it is first asked."""
        if key not in self._explainers:
            explainer = Explainer(network, **METHODS[self.method])
            self._explainers[key] = explainer.unplanned() if self.method in _WITHOUT_RULES else explainer
        return self._explainers[key]

    def _opened(
        self,
        key: Any,
        made: Callable[..., nn.Module],
        lines: Sequence[Line],
        inputs: dict[str, Tensor],
        more: Sequence[Tensor] = (),
    ) -> tuple[Explainer, dict[str, Tensor]]:
        """The explainer of a question, and its inputs: one more, where words can be hidden and are to be.

        `made`: the network of some names of inputs; and `hides`, how words are hidden.
        """
        asked, length = any(reference.hidden for reference in self.references), inputs["input_ids"].shape[1]
        texts = partial(trial, self.model.tokenizer, inputs, more, self._pads)
        if self._vectors and key not in self._checked:
            check_vectors(made, texts())
            self._checked.add(key)
        if not (self.by_parts or asked):
            return self._network((key, None, None), made(names=tuple(inputs))), inputs
        names = (*inputs, SEEN)

        def hidden(how: str) -> Explainer:
            """Numbers, as `seen` holds them, have one shape for each explainer; tokens may have any."""
            return self._network((key, how, length), made(names=names, hides=how))

        how, why = self._hidings.of(key, made, texts, length, lambda *given: hidden(MASK).between(*given))
        if how == MASK and not keeps_tokens(lines, inputs, first=self.model.kind == "language model"):
            how, why = None, "a text begins with a word or has no other tokens, so that nothing would be left to read"
        if how is not None:
            return hidden(how), {**inputs, SEEN: all_seen(inputs, next(self.model.network.parameters()))}
        if asked:
            raise InputError(
                f"Words cannot be hidden from this network: {why}. Ask for a reference such as 'mask', 'pad' or 'mean'."
            )
        return self._network((key, None, None), made(names=tuple(inputs))), inputs

    def _answer(
        self,
        network: Explainer,
        lines: Sequence[Line],
        inputs: Mapping[str, Tensor],
        more: Sequence[Tensor],
        target: Any,
    ) -> tuple[Explanation, Compared]:
        """The explanation, and what the texts were compared with."""
        x = (*inputs.values(), *more)
        if self.method == ATTNLRP:
            return attnlrp(network, x, target), Compared()
        if self.method != SECANT:
            return replace(network.explain(x, target), method=self.method), Compared()
        ids, kinds = inputs["input_ids"], self.references
        words = words_of(lines, ids)
        missing = parts(words) if self.by_parts else [words]
        if self.by_parts and SEEN in inputs:
            kinds = (*kinds, HIDDEN)

        def without(kind: Reference, gone: Tensor) -> tuple[Any, ...]:
            """One reference; what it does not name is as in the text."""
            if kind.hidden:
                other = {SEEN: (~gone).to(inputs[SEEN].dtype)}
            else:
                other = {"input_ids": kind.of(lines, ids, self.model.network, gone)}
            return (*[other.get(name) for name in inputs], *[None] * len(more))

        answer = network.between(x, [without(kind, gone) for kind in kinds for gone in missing], target)
        if SEEN in inputs:
            answer = folded(answer, list(inputs).index(SEEN))
        return answer, Compared(all_said(kinds), len(kinds) * len(missing) if len(missing) > 1 else 0)

    def _explained(
        self, answer: Explanation, compared: Compared, lines: Sequence[Line], asked: Sequence[tuple[str, ...]],
        quantity: str, sink: bool = False,
    ) -> TextExplanation:  # fmt: skip
        R: Tensor = answer.relevance[0] if isinstance(answer.relevance, tuple) else answer.relevance
        maps = tuple(R[k, ..., : len(line)] for k, line in enumerate(lines))
        said = means_note(compared.parts)  # the sentence has it, too
        answer = replace(answer, notes=tuple(note for note in answer.notes if note != said))
        return TextExplanation(
            self._noted(answer), maps, tuple(lines), tuple(asked), quantity, compared.said, sink, compared.parts
        )  # fmt: skip

    def _noted(self, answer: Explanation) -> Explanation:
        notes = self.model.notes
        return replace(answer, notes=(*notes, *answer.notes)) if notes else answer
