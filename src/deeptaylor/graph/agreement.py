"""Is the captured network the user's? Both are run on the user's own values, and their outputs compared.

check_agreement(model, ours, captured, inputs, output)
├── _trials            one sample, two, and the user's own batch; of the sizes that this capture is for
├── _check_mixing      if the graph did not tell: do outputs change with the other samples? (run/samples.py)
├── _check_samples     the output has its samples along the first axis, whatever their number
├── _check_values      the captured network gives what the network gives, with half of the type's digits
├── _answers_anew      asked once more, the network says the same
└── _cause             why not: random numbers, samples that are mixed, the batch's size, writes in place
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import InputError, MismatchError, PlanError
from deeptaylor.graph.capture import Captured, pick_output
from deeptaylor.graph.failing import name_failure
from deeptaylor.support.out_of_memory import out_of_memory

__all__ = ["ROUNDING", "Answer", "check_agreement", "different"]

_MIXED = (
    "A sample's output depends on the other samples of its batch (a mean, a roll or a product over the first axis?), "
    "so that no sample has a map of its own. Explain a network that keeps samples apart; if the first axis of its "
    "input is not the samples', explain a module that moves it."
)
_ANEW = (
    "The network gives another result each time it is called: does it draw random numbers, or count its calls? "
    "Make it a function of its input alone."
)
ROUNDING = 100  # times the spacing of a type's numbers: as far as two equal passes may be apart on a GPU
_TF32 = 2.0**-10  # the digits of products on a GPU, which may be computed so in float32


@dataclass(frozen=True)
class _Trial:
    """Some samples and what the network itself makes of them."""

    inputs: Sequence[Tensor]
    output: Tensor

    @property
    def samples(self) -> int:
        return int(self.inputs[0].shape[0])


@dataclass(frozen=True)
class Answer:
    """What the network was asked already, and all that it answered."""

    inputs: Sequence[Tensor]
    output: Any

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """True if it was just this."""
        pairs = zip(inputs, self.inputs, strict=True)
        return all(a.shape == b.shape and a.dtype is b.dtype and torch.equal(a, b) for a, b in pairs)


def check_agreement(
    model: nn.Module, ours: fx.GraphModule, captured: Captured, inputs: Sequence[Tensor], output: int | str | None,
    known: Answer | None = None, apart: bool = False,
) -> None:  # fmt: skip
    """Refuse a captured network that is not the user's, and one whose samples are not apart, with the numbers.

    To be called in eval mode and without gradients. `apart`: it is known that no operation mixes samples.
    """
    with _own_memory(model):
        trials = _trials(model, captured, inputs, output, known)
        _check_samples([(t.samples, tuple(t.output.shape)) for t in trials])
        whole = trials[-1]
        found = _in_rows(ours(*whole.inputs), whole.samples)
        allowed = _allowed(captured, whole.output)
        if not apart:
            _check_mixing(model, ours, trials, output, allowed)
        for trial in reversed(trials):
            theirs, mine = _in_rows(trial.output, trial.samples), found[: trial.samples]
            if _apart(mine, theirs) > allowed * _scale(theirs):
                if trial is not whole and not _mixes(ours, whole, allowed):  # it may follow the size of the batch
                    mine = _in_rows(ours(*trial.inputs), trial.samples)
                if _apart(mine, theirs) > allowed * _scale(theirs):
                    cause = _cause(model, ours, captured, trial, whole, mine, output, allowed)
                    raise MismatchError(f"{cause} {_numbers(mine, theirs)}")
        if _answers_anew(model, trials[0], output, min(allowed, ROUNDING * allowed**2)):
            raise MismatchError(_ANEW)


@contextlib.contextmanager
def _own_memory(model: nn.Module) -> Iterator[None]:
    """A forward pass may write to buffers and other tensors of a network (a counter, a cache): to copies, in here."""
    held = [(d, dict(d)) for m in model.modules() for d in (m._buffers, m.__dict__)]
    try:
        for module in model.modules():
            for kept in (module._buffers, module.__dict__):
                kept.update({name: t.clone() for name, t in kept.items() if isinstance(t, Tensor)})
        yield
    finally:
        for kept, before in held:
            kept.update({name: t for name, t in before.items() if isinstance(t, Tensor)})


def _trials(
    model: nn.Module, captured: Captured, inputs: Sequence[Tensor], output: int | str | None, known: Answer | None
) -> list[_Trial]:
    """From few samples to the user's own batch. A network that insists on a size is tried at that size alone."""
    own, (least, most) = inputs[0].shape[0], captured.batches
    alike = own == 1 or all(torch.equal(x[0], x[1]) for x in inputs)
    two = [torch.cat([x[:1], different(x[:1])]) if alike else x[:2] for x in inputs]
    samples = [[x[:1] for x in inputs], two, inputs] if own > 2 else [[x[:1] for x in inputs], two]
    fitting = [s for s in samples if least <= s[0].shape[0] and (most is None or s[0].shape[0] <= most)]
    made: list[_Trial] = []
    for trial in fitting:
        try:
            answered = known.output if known is not None and known.fits(trial) else None
            tried = _Trial(trial, _output(model, trial, output, answered))
            if alike and trial is two and bool(tried.output.isnan().any()):  # made up: with the masks that were given
                kept = [two[0], *(torch.cat([x[:1], x[:1]]) for x in inputs[1:])]
                tried = _Trial(kept, _output(model, kept, output))
            made.append(tried)
        except Exception as error:  # a network may raise anything
            if out_of_memory(error) and made:
                break
            if trial is fitting[-1]:
                raise InputError(f"The network itself fails on this input: {name_failure(error)}.") from error
    return made


def different(x: Tensor) -> Tensor:
    """Other samples of the same kind: reversed, so that token numbers stay legal; numbers that are all alike rise."""
    other = x.flatten().roll(1).flip(0).reshape(x.shape)
    if x.is_floating_point() and torch.equal(other, x):
        return x + torch.linspace(0, 1, x.numel(), dtype=x.dtype, device=x.device).reshape(x.shape)
    return other


def _output(model: nn.Module, inputs: Sequence[Tensor], output: int | str | None, answered: Any = None) -> Tensor:
    whole = model(*[x.clone() for x in inputs]) if answered is None else answered
    chosen: Tensor = pick_output(whole, output, Tensor)[0]
    return chosen


def _check_samples(shapes: Sequence[tuple[int, tuple[int, ...]]]) -> None:
    """Refuse an output without an axis for the samples in front."""
    rest = shapes[-1][1][1:]
    if all(shape == (n, *rest) or (n == 1 < len(shapes) and shape == rest) for n, shape in shapes):
        return
    said = ", ".join(f"{shape} for {n} sample{'s' if n > 1 else ''}" for n, shape in shapes)
    (n, shape), (m, other) = shapes[-1], shapes[0]
    along = [d for d, (a, b) in enumerate(zip(shape, other, strict=False)) if (a, b) == (n, m) and n != m]
    way = f"output.movedim({along[0]}, 0)" if along and len(shape) == len(other) else "output.reshape(batch, -1)"
    raise PlanError(
        f"The network's output has shape {said}. It must have its samples along the first axis: (batch,) or "
        f"(batch, classes, …). Explain a module that calls the network and returns {way} instead."
    )


def _in_rows(output: Tensor, samples: int) -> Tensor:
    """The output as it is for several samples: `.squeeze()` takes the axis of a single one away."""
    return output.reshape(samples, -1)


_FACTORS = (1, 10, -1)  # by which a sample is changed, once it is replaced by another


def _check_mixing(
    model: nn.Module, ours: fx.GraphModule, trials: Sequence[_Trial], output: int | str | None, allowed: float
) -> None:
    """Raise if a sample's output changes with another sample: with the first, or with those after it."""
    run: Callable[..., Tensor] = ours
    several = next((t for t in trials if t.samples > 1), None)
    if several is None:  # captured for one sample alone; the network itself may take two
        two = [torch.cat([x, different(x)]) for x in trials[0].inputs]
        run = lambda *x: _output(model, x, output)  # noqa: E731
        with contextlib.suppress(Exception):  # it may insist on one
            several = _Trial(two, run(*two))
    if several is not None and len(several.output) == several.samples and _mixes(run, several, allowed):
        raise MismatchError(_MIXED)


def _mixes(run: Callable[..., Tensor], trial: _Trial, allowed: float) -> bool:
    """True if the first sample's output changes with the others, or theirs with the first."""
    n = trial.samples
    if n == 1:
        return False
    before = _in_rows(run(*trial.inputs), n)
    for own, others in ((slice(0, 1), slice(1, n)), (slice(1, n), slice(0, 1))):
        for factor in _FACTORS:
            changed = [x.clone() for x in trial.inputs]
            for x in changed:
                x[others] = _scaled(different(x[others]), factor)
            try:
                now = _in_rows(run(*changed), n)
            except Exception as error:  # a network may raise anything for numbers that are not its own
                if out_of_memory(error):
                    raise
                continue
            if _apart(before[own], now[own]) > allowed * _scale(before[own]):
                return True
    return False


def _scaled(x: Tensor, factor: int) -> Tensor:
    return x * factor if x.is_floating_point() else x  # tokens and masks stay legal


def _allowed(captured: Captured, output: Tensor) -> float:
    """Half of the digits of the narrowest type in which the network computes."""
    types = [output.dtype, *([captured.narrowest[0]] if captured.narrowest else [])]
    widths = [torch.finfo(t).eps for t in types if t.is_floating_point]
    return float(max(*widths, _TF32 if output.is_cuda and output.dtype is torch.float32 else 0) ** 0.5)


def _apart(mine: Tensor, theirs: Tensor) -> float:
    """The largest difference; what is infinite or no number in both is the same."""
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(same, 0, (mine.double() - theirs.double()).abs())
    return float(difference.nan_to_num(torch.inf).max())


def _scale(output: Tensor) -> float:
    finite = output[output.isfinite()].double().abs()
    return max(float(finite.max()) if finite.numel() else 0.0, torch.finfo(output.dtype).tiny)


def _numbers(mine: Tensor, theirs: Tensor) -> str:
    gap = (mine.double() - theirs.double()).abs().nan_to_num(torch.inf)
    sample, index = divmod(int(gap.argmax()), max(1, mine.shape[1]))
    return (
        f"(For {len(mine)} sample{'s' if len(mine) > 1 else ''}, output {index} of sample {sample} is "
        f"{float(theirs[sample, index]):.6g}; the captured network gives {float(mine[sample, index]):.6g}. Outputs "
        f"reach {_scale(theirs):.4g}.)"
    )


def _answers_anew(model: nn.Module, trial: _Trial, output: int | str | None, allowed: float) -> bool:
    """Return True if the network, asked once more, says something else."""
    again = _output(model, trial.inputs, output)
    return again.shape != trial.output.shape or _apart(again, trial.output) > allowed * _scale(trial.output)


def _cause(
    model: nn.Module, ours: fx.GraphModule, captured: Captured, trial: _Trial, whole: _Trial, mine: Tensor,
    output: int | str | None, allowed: float,
) -> str:  # fmt: skip
    """The likely reason, and what to do."""
    if _answers_anew(model, trial, output, allowed):
        return _ANEW
    if _mixes(ours, whole, allowed):
        return _MIXED
    if trial is not whole:
        return (
            f"The network computes something else for {trial.samples} sample{'s' if trial.samples > 1 else ''} than "
            f"for {whole.samples}: does it ask for the size of the batch? Make it treat every size alike."
        )
    own = trial.output.dtype
    narrow = captured.narrowest[0] if captured.narrowest else own
    if bool(trial.output.isnan().any()) and torch.finfo(narrow).eps > torch.finfo(own).eps:
        return (
            f"The network itself gives NaN for this input, and the captured network, in {own} throughout, does not: "
            f"the network converts to {narrow} on the way, where the lowest number of {own} is infinite, and a softmax "
            f"of what is masked whole by it is NaN. Explain network.to({narrow})."
        )
    theirs = _in_rows(trial.output, trial.samples)
    numbers = theirs.isfinite()
    if not bool(numbers.all()) and _apart(mine.where(numbers, 0), theirs.where(numbers, 0)) <= allowed * _scale(theirs):
        return (
            "The network itself gives infinite numbers or NaN for this input, which no map explains: does it divide by "
            "zero, or overflow?"
        )
    if captured.in_place:
        return (
            f"The network writes in place, at {captured.in_place[0]}, perhaps to a tensor that something else reads. "
            "Write y = y + … instead of y += …, there and where else it does."
        )
    return "The captured network is not this network: an operation was read wrongly. Please report it."
