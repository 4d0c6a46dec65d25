"""What the user calls: `between`, for a network that is captured, with a plan or without one.

Comparing.between(x, reference, target)
├── opened       checked inputs and their engine; where there are no rules for a network, one without a plan
├── references   what x is compared with
└── compared     the walk at both points, and back; the answer is a `Between`
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from torch import Tensor

from deeptaylor.errors import UnsupportedOpError
from deeptaylor.explanation import Explanation
from deeptaylor.graph.autocast import without_autocast
from deeptaylor.pictures.axes import Axis
from deeptaylor.run.asking import PROBABILITY_NOTE, Asking
from deeptaylor.run.engine import Engine
from deeptaylor.run.faithful import flipping_area
from deeptaylor.run.inputs import Inputs
from deeptaylor.run.target import Against, Logit, LogOdds, Probability, against_rivals
from deeptaylor.secant.between import Between
from deeptaylor.secant.compare import answered, compared, one
from deeptaylor.secant.front_door import channel_axis, smoothing_width
from deeptaylor.secant.references import references, usual_reference
from deeptaylor.secant.traced import Traced, Walk

__all__ = ["LOG_ODDS_NOTE", "Comparing", "is_against_rivals"]

CONTRAST_WIDTH = 1.6  # a contrast is smoothed so many times as wide: it is asked where, rather than how much
LOG_ODDS_NOTE = "the score is the log-odds of the class against the others, log p / (1 − p) of the softmax"
_AGAINST = "the score is the logit of the class minus the mean logit of its rivals, weighted by "


class Comparing(Asking):
    """A captured network whose score is compared with that of a reference."""

    _alone: tuple[Comparing, ...] = ()  # the same without a plan, once rules for it were not found

    def between(self, x: Any, reference: Any, target: Any = None) -> Between:
        """What took the score from a reference's to that of x, exactly: Σ R = f(x) − f(reference), of both signs.

        x           as for `explain`
        reference   "zeros"; of pictures also "blur" or "mean"; a tensor like x, or like one sample of it; of tokens
                    other tokens, or vectors; a tuple or {name: …}, one an input (None: as in x); a list of several, of
                    which the mean is taken
        target      as for `explain`; None: the top class of x. If the network ends in softmax or sigmoid, a class
                    means its logit: score, reference_score and Σ R are of logits. dt.probability(c), or a callable,
                    asks about the network's own output

        The network runs at both points, and the difference is taken back once, with secants in the place of slopes
        (docs/theory.md, section 12). No rules are needed, and no domain. What has no secant is refused by name.

        >>> import torch, deeptaylor as dt
        >>> network = torch.nn.Linear(2, 1, bias=False)
        >>> _ = network.weight.data.copy_(torch.tensor([[2.0, -1.0]]))
        >>> b = dt.Explainer(network).between([[1.0, 3.0]], "zeros", 0)
        >>> b.relevance, b.in_favour, b.against
        (tensor([[ 2., -3.]]), tensor([[2., 0.]]), tensor([[0., 3.]]))
        >>> b.ledger
        <Ledger of 1 sample(s): score -1 = reference's 0 + 2 for − 3 against (residual 0)>
        """
        x, seen = self.read(x)
        asked = self.asked_for(target, x)
        with without_autocast(x):
            answer = self.compare(x, reference, asked)
        return answer if self.trained is None else self.trained.shown(answer, x, seen, asked)

    def compare(self, x: Inputs, reference: Any, target: Any, usual: bool = False) -> Between:
        """Compare with references; `usual`: as method="secant" does, see `_read_usual`; also without a reference."""
        if self._alone:
            return self._alone[0].compare(x, reference, target, usual)
        try:
            return self._compared(x, reference, target, usual)
        except UnsupportedOpError:
            if not self.settings.planned:
                raise
        twin = self.unplanned()
        answer = twin.compare(x, reference, target, usual)
        self._alone = (twin,)
        return answer

    def _compared(self, x: Inputs, reference: Any, target: Any, usual: bool) -> Between:
        engine, inputs, look = self.opened(x)
        asked, width = self.weights_of(target, engine, inputs), 0.0
        if usual:
            asked, width = self._read_usual(engine, inputs, asked, isinstance(target, Logit))
        if other := self.elsewhere(asked, engine, inputs):
            answer = other[0].compare(x, reference, other[1], usual)
            return answer.noting(PROBABILITY_NOTE) if isinstance(asked, Probability) else answer
        self.check_target(engine, asked, inputs)
        if reference is None and usual:
            reference = usual_reference(engine, inputs)
        others = references(reference, inputs, engine, lambda given: self.read(given)[0])
        found = compared(engine, self._comparison(engine), inputs, others, asked, width)
        if inputs[0].is_cuda:
            self.original.check(look)
        compares = isinstance(asked, LogOdds | Against)  # one class with others
        about = [_score_note(asked)] if compares else list(map(_logit_note, engine.planned.set_aside))
        target = asked.target if compares else asked if isinstance(target, Logit) else target
        notes = (*self.moves(), *about, *[_smoothing_note(width)] * (width > 0))
        return answered(found, target, partial(self.flips, inputs, target), notes)

    def _read_usual(
        self, engine: Engine, inputs: Sequence[Tensor], asked: Any, keep_class: bool = False
    ) -> tuple[Any, float]:
        """Return target and smoothing of method="secant": a class of a picture or signal is set against its rivals."""
        if len(inputs) > 1 or inputs[0].ndim < 3 or not inputs[0].is_floating_point():
            return asked, 0.0
        width = smoothing_width(inputs[0], channel_axis(engine)) * (CONTRAST_WIDTH if isinstance(asked, Against) else 1)
        if not (keep_class or self.settings.keeps_final):  # of probabilities, a class is the class alone
            shape = engine.layout[engine.planned.output].shape(inputs[0].shape[0])
            asked = against_rivals(asked, shape, engine.planned.set_aside)
        return asked, width

    def _comparison(self, engine: Engine) -> Walk:
        """How one comparison is run: step by step, or compiled, if that was asked for."""

        def made(options: dict[str, Any] | None) -> Walk:
            walk = partial(one, engine)
            return walk if options is None else Traced(walk, options)

        run: Walk = self.kept_run(engine, "between", made)
        return run

    def compile(self, graphs: bool | None = None, **options: Any) -> Self:  # type: ignore[override]
        """Compile every pass from now on: slow the first time for each shape, then faster.

        ``graphs``: record passes of `explain` on a GPU as CUDA graphs, which keep their memory; None: where launching
        them takes most of the time. ``options`` are those of torch.compile's inductor.
        """
        for twin in self._alone:
            twin.compile(graphs, **options)
        return super().compile(graphs, **options)

    def refresh(self) -> Self:
        """Capture the network again, after its parameters changed."""
        self._alone = ()
        return super().refresh()

    def flips(self, inputs: tuple[Tensor, ...], target: Any, R: Tensor, axis: Axis = None) -> Tensor:
        """What the network says when this map is believed, if it is still the same network."""
        self.original.check()
        return flipping_area(self.model, inputs, target, R, axis)

    def unplanned(self) -> Comparing:
        """The same network for what needs no rules, captured with the same example, if there was one."""
        raise NotImplementedError


def is_against_rivals(answer: Explanation) -> bool:
    """True if the score is that of a class minus the mean of its rivals'."""
    return any(note.startswith(_AGAINST) for note in answer.notes)


def _score_note(asked: LogOdds | Against) -> str:
    """Say what the score is if a class is compared with others."""
    if isinstance(asked, LogOdds):
        return LOG_ODDS_NOTE
    if asked.rivals is not None:
        return f"{_AGAINST}the numbers in against="
    return f"{_AGAINST}their softmax; dt.logit(c) explains the logit alone"


def _smoothing_note(width: float) -> str:
    """Say that a map was smoothed."""
    return (
        f"smoothed: each pixel's relevance is spread over its neighbours (standard deviation {width:.3g} pixels); the "
        "sum is unchanged. between(x, reference) gives the relevance of single pixels"
    )


def _logit_note(operation: str) -> str:
    """What is said of a final operation that was set aside."""
    return (
        f"the final {operation} is set aside: score, reference_score and the sum of the relevance are of its input, "
        "the logit; target=dt.probability(c) explains the network's own output"
    )
