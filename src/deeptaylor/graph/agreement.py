"""Check that the captured graph computes the same as the user's network, on the user's inputs.

check_agreement(model, module, captured, inputs, output)
├── _run_trials             run the network on one sample, on two, and on the user's batch
├── _check_samples          the output has its samples along the first axis, for every batch size
├── _check_mixing           no output depends on another sample; skipped if the graph already proves it
├── _measure_difference     the captured graph agrees with the network to half of the dtype's digits
├── _is_nondeterministic    the network gives the same output when it is called again
└── _explain_mismatch       the cause: random numbers, mixed samples, the batch size, writes in place
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from deeptaylor.errors import InputError, MismatchError, PlanError
from deeptaylor.graph.capture import CapturedGraph, pick_output
from deeptaylor.graph.failure import is_out_of_memory, summarise_error

__all__ = ["ROUNDING_FACTOR", "KnownOutput", "check_agreement", "make_other_samples"]

_MIXED_SAMPLES = (
    "No sample has a map of its own: its output depends on the other samples of its batch (a mean, a roll or a product "
    "over the first axis?). Explain a network that treats samples independently. If the first axis of its input does "
    "not count samples, explain a module that moves it."
)
_NONDETERMINISM = (
    "The network gives another result each time it is called: does it draw random numbers, or count its calls? "
    "Make it a function of its input alone."
)
ROUNDING_FACTOR = 100  # two equal forward passes on a GPU differ by at most this many times the dtype's epsilon
_TF32 = 2.0**-10  # the epsilon of TensorFloat-32, in which a GPU may compute products of float32
_SCALES = (1, 10, -1)  # the factors by which replaced samples are multiplied


@dataclass(frozen=True)
class _Trial:
    """Some samples, and the network's output for them."""

    inputs: Sequence[Tensor]
    output: Tensor

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.inputs[0].shape[0])


@dataclass(frozen=True)
class KnownOutput:
    """Inputs on which the network was already run, and everything that it returned."""

    inputs: Sequence[Tensor]
    output: Any

    def is_for(self, inputs: Sequence[Tensor]) -> bool:
        """Return True if the output belongs to exactly these inputs."""
        pairs = zip(inputs, self.inputs, strict=True)
        return all(a.shape == b.shape and a.dtype is b.dtype and torch.equal(a, b) for a, b in pairs)


def check_agreement(
    model: nn.Module, module: fx.GraphModule, captured: CapturedGraph, inputs: Sequence[Tensor],
    output: int | str | None, known_output: KnownOutput | None = None, is_independent: bool = False,
) -> None:  # fmt: skip
    """Raise if the captured graph differs from the network, or if samples depend on each other.

    Call it in eval mode and under no_grad.

    module           the captured graph, ready to run
    known_output     an earlier run of the network, which is not repeated
    is_independent   True if no operation of the graph mixes samples, so that this is not measured again

    Raises an InputError, a PlanError or a MismatchError that names the likely cause.
    """
    with _protect_buffers(model):
        trials = _run_trials(model, captured, inputs, output, known_output)
        _check_samples([(t.samples, tuple(t.output.shape)) for t in trials])
        largest = trials[-1]
        found = _flatten_samples(_run_captured(module, largest.inputs), largest.samples)
        tolerance = _find_tolerance(captured, largest.output)
        if not is_independent:
            _check_mixing(model, module, trials, output, tolerance)
        for trial in reversed(trials):
            expected, got = _flatten_samples(trial.output, trial.samples), found[: trial.samples]
            if _differs(got, expected, tolerance):
                if trial is not largest and not _mixes_samples(module, largest, tolerance):  # it may depend on the size
                    got = _flatten_samples(module(*trial.inputs), trial.samples)
                if _differs(got, expected, tolerance):
                    cause = _explain_mismatch(model, module, captured, trial, largest, got, output, tolerance)
                    raise MismatchError(f"{cause} {_describe_difference(got, expected)}")
        if _is_nondeterministic(model, trials[0], output, min(tolerance, ROUNDING_FACTOR * tolerance**2)):
            raise MismatchError(_NONDETERMINISM)


def _run_captured(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Tensor:
    """Run the captured graph on inputs that the network accepts; raise MismatchError if the graph fails on them."""
    try:
        result: Tensor = module(*inputs)
    except (RuntimeError, IndexError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise MismatchError(
            f"The captured network raises {summarise_error(error)}, on inputs that the network accepts. The network "
            "handles some values specially, such as negative indices: change such values in the input."
        ) from error
    return result


@contextlib.contextmanager
def _protect_buffers(model: nn.Module) -> Iterator[None]:
    """Let forward passes write to copies of buffers and tensor attributes (a counter, a cache)."""
    originals = [(d, dict(d)) for m in model.modules() for d in (m._buffers, m.__dict__)]
    try:
        for attributes, _ in originals:
            attributes.update({name: t.clone() for name, t in attributes.items() if isinstance(t, Tensor)})
        yield
    finally:
        for attributes, before in originals:
            attributes.update({name: t for name, t in before.items() if isinstance(t, Tensor)})


def _run_trials(
    model: nn.Module, captured: CapturedGraph, inputs: Sequence[Tensor], output: int | str | None,
    known_output: KnownOutput | None,
) -> list[_Trial]:  # fmt: skip
    """Run the network on one sample, on two and on the user's batch, as far as it accepts these batch sizes."""
    size, (least, most) = inputs[0].shape[0], captured.batch_range
    is_same = size == 1 or all(torch.equal(x[0], x[1]) for x in inputs)
    two = [torch.cat([x[:1], make_other_samples(x[:1])]) if is_same else x[:2] for x in inputs]
    samples = [[x[:1] for x in inputs], two, inputs] if size > 2 else [[x[:1] for x in inputs], two]
    accepted = [s for s in samples if least <= s[0].shape[0] and (most is None or s[0].shape[0] <= most)]
    made: list[_Trial] = []
    for trial in accepted:
        try:
            results = known_output.output if known_output is not None and known_output.is_for(trial) else None
            tried = _Trial(trial, _run_network(model, trial, output, results))
            if is_same and trial is two and bool(tried.output.isnan().any()):  # a made-up mask: use the user's
                masked = [two[0], *(torch.cat([x[:1], x[:1]]) for x in inputs[1:])]
                tried = _Trial(masked, _run_network(model, masked, output))
            made.append(tried)
        except Exception as error:  # a network may raise anything
            if is_out_of_memory(error) and made:
                break
            if trial is accepted[-1]:
                raise InputError(f"The network itself fails on this input: {summarise_error(error)}.") from error
    return made


def make_other_samples(x: Tensor) -> Tensor:
    """Return different samples from the same values, so that token numbers stay valid.

    The values are reversed. Floats that are all equal get an increasing ramp added.
    """
    other = x.flatten().roll(1).flip(0).reshape(x.shape)
    if x.is_floating_point() and torch.equal(other, x):
        return x + torch.linspace(0, 1, x.numel(), dtype=x.dtype, device=x.device).reshape(x.shape)
    return other


def _run_network(model: nn.Module, inputs: Sequence[Tensor], output: int | str | None, results: Any = None) -> Tensor:
    """Return the chosen output of the network; of `results`, if the network was already run."""
    results = model(*[x.clone() for x in inputs]) if results is None else results
    chosen: Tensor = pick_output(results, output, Tensor)[0]
    return chosen


def _check_samples(shapes: Sequence[tuple[int, tuple[int, ...]]]) -> None:
    """Raise a PlanError if the first axis of the output does not follow the number of samples."""
    rest = shapes[-1][1][1:]
    if all(shape == (n, *rest) or (n == 1 < len(shapes) and shape == rest) for n, shape in shapes):
        return
    listed = ", ".join(f"{shape} for {_format_sample_count(n)}" for n, shape in shapes)
    (n, shape), (m, other) = shapes[-1], shapes[0]
    along = [d for d, (a, b) in enumerate(zip(shape, other, strict=False)) if (a, b) == (n, m) and n != m]
    way = f"output.movedim({along[0]}, 0)" if along and len(shape) == len(other) else "output.reshape(batch, -1)"
    raise PlanError(
        f"The network's output has shape {listed}. It must have its samples along the first axis: (batch,) or "
        f"(batch, classes, …). Explain a module that calls the network and returns {way} instead."
    )


def _flatten_samples(output: Tensor, samples: int) -> Tensor:
    """Return the output as (samples, rest); a network with `.squeeze()` drops the axis of a single sample."""
    return output.reshape(samples, -1)


def _check_mixing(
    model: nn.Module, module: fx.GraphModule, trials: Sequence[_Trial], output: int | str | None, tolerance: float
) -> None:
    """Raise a MismatchError if a sample's output changes with another sample."""
    run: Callable[..., Tensor] = module
    several = next((t for t in trials if t.samples > 1), None)
    if several is None:  # captured for one sample alone; the network itself may accept two
        two = [torch.cat([x, make_other_samples(x)]) for x in trials[0].inputs]
        run = lambda *x: _run_network(model, x, output)  # noqa: E731
        with contextlib.suppress(Exception):  # it may insist on one
            several = _Trial(two, run(*two))
    if several is not None and len(several.output) == several.samples and _mixes_samples(run, several, tolerance):
        raise MismatchError(_MIXED_SAMPLES)


def _mixes_samples(run: Callable[..., Tensor], trial: _Trial, tolerance: float) -> bool:
    """Return True if the first sample's output changes with the other samples, or theirs with the first."""
    n = trial.samples
    if n == 1:
        return False
    before = _flatten_samples(run(*trial.inputs), n)
    for fixed, others in ((slice(0, 1), slice(1, n)), (slice(1, n), slice(0, 1))):
        for factor in _SCALES:
            changed = [x.clone() for x in trial.inputs]
            for x in changed:
                x[others] = _scale_floats(make_other_samples(x[others]), factor)
            try:
                now = _flatten_samples(run(*changed), n)
            except Exception as error:  # a network may raise anything for made-up inputs
                if is_out_of_memory(error):
                    raise
                continue
            if _differs(now[fixed], before[fixed], tolerance):
                return True
    return False


def _scale_floats(x: Tensor, factor: int) -> Tensor:
    """Return a floating-point tensor times a factor, and any other tensor as it is."""
    return x * factor if x.is_floating_point() else x  # tokens and masks stay valid


def _find_tolerance(captured: CapturedGraph, output: Tensor) -> float:
    """Return the allowed relative difference: half the digits of the lowest precision in the network."""
    dtypes = [output.dtype, *([captured.lowest_precision[0]] if captured.lowest_precision else [])]
    epsilons = [torch.finfo(t).eps for t in dtypes if t.is_floating_point]
    return float(max(*epsilons, _TF32 if output.is_cuda and output.dtype is torch.float32 else 0) ** 0.5)


def _differs(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return True if two outputs differ by more than the tolerance times the largest magnitude expected."""
    return _measure_difference(got, expected) > tolerance * _measure_magnitude(expected)


def _measure_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; equal infinities, and NaN in both, count as equal."""
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0, (a.double() - b.double()).abs())
    return float(difference.nan_to_num(torch.inf).max())


def _measure_magnitude(output: Tensor) -> float:
    """Return the largest finite absolute value."""
    finite = output[output.isfinite()].double().abs()
    return max(float(finite.max()) if finite.numel() else 0.0, torch.finfo(output.dtype).tiny)


def _describe_difference(got: Tensor, expected: Tensor) -> str:
    """Return a sentence about how two outputs differ."""
    gap = (got.double() - expected.double()).abs().nan_to_num(torch.inf)
    sample, index = divmod(int(gap.argmax()), max(1, got.shape[1]))
    return (
        f"(For {_format_sample_count(len(got))}, output {index} of sample {sample} is "
        f"{float(expected[sample, index]):.6g}; the captured network gives {float(got[sample, index]):.6g}. "
        f"The largest output is {_measure_magnitude(expected):.4g}.)"
    )


def _format_sample_count(n: int) -> str:
    """Return "1 sample" or "n samples"."""
    return f"{n} sample{'s' if n > 1 else ''}"


def _is_nondeterministic(model: nn.Module, trial: _Trial, output: int | str | None, tolerance: float) -> bool:
    """Return True if the network gives a different output when it is called again."""
    again = _run_network(model, trial.inputs, output)
    return again.shape != trial.output.shape or _differs(again, trial.output, tolerance)


def _explain_mismatch(
    model: nn.Module, module: fx.GraphModule, captured: CapturedGraph, trial: _Trial, largest: _Trial, got: Tensor,
    output: int | str | None, tolerance: float,
) -> str:  # fmt: skip
    """Return the likely cause of a mismatch, and what to do."""
    if _is_nondeterministic(model, trial, output, tolerance):
        return _NONDETERMINISM
    if _mixes_samples(module, largest, tolerance):
        return _MIXED_SAMPLES
    if trial is not largest:
        return (
            f"The network computes something else for {_format_sample_count(trial.samples)} than for "
            f"{largest.samples}: does it depend on the size of the batch? Make it treat every batch size alike."
        )
    dtype = trial.output.dtype
    lowest = captured.lowest_precision[0] if captured.lowest_precision else dtype
    if bool(trial.output.isnan().any()) and torch.finfo(lowest).eps > torch.finfo(dtype).eps:
        return (
            f"The network itself gives NaN for this input, and the captured network, in {dtype} throughout, does not. "
            f"The network converts to {lowest} on the way, where the lowest number of {dtype} is infinite, and a "
            f"softmax over a row that is masked entirely by it is NaN. Explain network.to({lowest})."
        )
    expected = _flatten_samples(trial.output, trial.samples)
    finite = expected.isfinite()
    if not bool(finite.all()) and not _differs(got.where(finite, 0), expected.where(finite, 0), tolerance):
        return (
            "The network itself gives infinite values or NaN for this input, which no map explains: does it divide by "
            "zero, or overflow?"
        )
    if captured.in_place_writes:
        return (
            f"The network writes in place, at {captured.in_place_writes[0]}, perhaps to a tensor that something else "
            "reads. Write y = y + … instead of y += …, there and wherever else it does so."
        )
    return "The captured network is not this network: an operation was captured wrongly. Please report it."
