"""`python -m deeptaylor.paper.training`: train the paper's networks to detect a digit 0–3 beside a distractor.

Plain stochastic gradient descent on the mean square error between the score and its target, 0 or 100:

    θ ← θ − η_t ∂/∂θ mean (f(x) − t)²,    then  b ← min(b, 0)

The learning rate η_t rises along a straight line in the first hundredth of the steps, is constant for two thirds, then
falls to zero along a straight line. Without the rise most detection neurons die in the first steps, when the scores of
random weights, about 200, are pulled down to 50.

    train ──► for every stretch of steps
                 PairSampler.sample    the images of the whole stretch at once
                 Descent.run          the steps; on a GPU one recorded graph, replayed
                 checkpoint, progress

Chance comes from one generator. A run that is interrupted and resumed from its checkpoint ends with the same bits as
one that is not.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from deeptaylor.errors import DeepTaylorError
from deeptaylor.formatting import format_percent
from deeptaylor.models.networks.paper_networks import PAPER_NETWORKS, DetectionPooling, save_network
from deeptaylor.paper.digit_pairs import (
    PRESENT,
    TRAIN_SHIFT,
    Absent,
    Digits,
    Pairs,
    PairSampler,
    held_out_pairs,
    load_digits,
)
from deeptaylor.paper.experiment import provenance, run
from deeptaylor.support.tensor_files import Checkpoint


class Descent:
    """Steps of gradient descent, a stretch of them at a time.

    A step is some fifteen kernels of microseconds each; launching them one by one from Python would take longer than
    running them. On a GPU the kernels of a whole stretch are therefore recorded once, reading from tensors that stay
    where they are (`_images`, `_targets`, `_rates`), and replayed with new contents.
    """

    def __init__(self, network: DetectionPooling, batch: int, stretch: int) -> None:
        self._network, self._batch, self._stretch = network, batch, stretch
        self._parameters = list(network.parameters())
        self._graph: torch.cuda.CUDAGraph | None = None
        self._images = self._targets = self._rates = self._losses = torch.empty(0)

    def run(self, pairs: Pairs, rates: Sequence[float]) -> float:
        """One step for every learning rate; the mean of their losses."""
        eta = torch.tensor(rates, device=pairs.images.device)
        if not pairs.images.is_cuda or len(rates) != self._stretch:
            return float(self._steps(pairs.images, pairs.target, eta).mean())
        if self._graph is None:
            self._graph = self._record(pairs, eta)
        self._images.copy_(pairs.images)
        self._targets.copy_(pairs.target)
        self._rates.copy_(eta)
        self._graph.replay()
        return float(self._losses.mean())

    def _steps(self, images: Tensor, targets: Tensor, eta: Tensor) -> Tensor:
        losses = torch.empty_like(eta)
        stretch = zip(images.split(self._batch), targets.split(self._batch), eta, losses, strict=True)
        for x, t, rate, kept in stretch:
            loss = (self._network(x) - t).square().mean()
            gradients = torch.autograd.grad(loss, self._parameters)
            with torch.no_grad():
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.addcmul_(gradient, rate, value=-1)
            self._network.project_()
            kept.copy_(loss.detach())
        return losses

    def _record(self, pairs: Pairs, eta: Tensor) -> torch.cuda.CUDAGraph:
        self._images, self._targets, self._rates = (x.clone() for x in (pairs.images, pairs.target, eta))
        # Libraries set themselves up at the first use, which must not be recorded. At a rate of zero nothing moves.
        aside = torch.cuda.Stream(eta.device)
        aside.wait_stream(torch.cuda.current_stream(eta.device))
        with torch.cuda.stream(aside):
            few = 3 * self._batch
            self._steps(self._images[:few], self._targets[:few], torch.zeros_like(eta[:3]))
        torch.cuda.current_stream(eta.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(eta.device), torch.cuda.graph(graph):
            self._losses = self._steps(self._images, self._targets, self._rates)
        return graph


STEPS, BATCH = 300_000, 20
LEARNING_RATES = {"one-layer": 2e-4, "two-layer": 1e-4}
_RISE, _FALL = 1 / 100, 1 / 3  # shares of the steps at the beginning and at the end
_HELD_OUT = 20_000


class TrainingError(DeepTaylorError, ValueError):
    """Training cannot begin, go on or be resumed as asked."""


@dataclass(frozen=True)
class Progress:
    """How far a training is: ``loss`` is the mean square error over the stretch of steps just made."""

    step: int
    steps: int
    loss: float
    learning_rate: float


def train(
    network: DetectionPooling,
    digits: Digits,
    *,
    learning_rate: float,
    steps: int = STEPS,
    batch: int = BATCH,
    seed: int = 0,
    max_shift: int = TRAIN_SHIFT,
    absent: Absent = "either",
    device: torch.device | str = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 20_000,
    stretch: int = 500,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Train a network in place, moved to a device; what `progress` was last told is returned.

    With a ``checkpoint`` the state is written to that file about every ``checkpoint_every`` steps; if the file is
    there already, training goes on from it, provided that it is of the same training. ``stretch`` is how many steps
    are made between two calls of ``progress``.
    """
    for name, value in (
        ("steps", steps),
        ("batch", batch),
        ("stretch", stretch),
        ("checkpoint_every", checkpoint_every),
    ):
        if type(value) is not int or value < 1:
            raise TrainingError(f"{name} must be a whole number, at least 1; got {value!r}")
    if not 0 < learning_rate < math.inf:
        raise TrainingError(f"learning_rate must be a positive number; got {learning_rate!r}")
    device = device_of(device)
    sampler = PairSampler(digits.train_images, digits.train_labels, max_shift=max_shift, absent=absent, device=device)
    generator = torch.Generator().manual_seed(seed)
    network.to(device).project_()
    state = Checkpoint(
        Path(checkpoint) if checkpoint is not None else None,
        {
            "network": type(network).__name__,
            "learning_rate": learning_rate,
            "steps": steps,
            "batch": batch,
            "seed": seed,
            "max_shift": max_shift,
            "absent": absent,
            "stretch": stretch,
            "digits": digits_digest(digits),
        },
        TrainingError,
    )
    now = Progress(0, steps, math.nan, learning_rate)

    def restore(kept: dict[str, Any]) -> None:
        nonlocal now
        network.load_state_dict(kept["network"])
        generator.set_state(kept["generator"])
        last = _rate(max(kept["step"] - 1, 0), steps, learning_rate)
        now = Progress(kept["step"], steps, kept["loss"], last)

    state.resume(restore)
    descent = Descent(network, batch, stretch)
    while now.step < steps:
        count = min(stretch, steps - now.step)
        rates = [_rate(step, steps, learning_rate) for step in range(now.step, now.step + count)]
        loss = descent.run(sampler.sample(count * batch, generator), rates)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is no longer a number after step {now.step}; "
                f"the learning rate {learning_rate:g} is too large"
            )
        before, now = now, Progress(now.step + count, steps, loss, rates[-1])
        if now.step == steps or now.step // checkpoint_every > before.step // checkpoint_every:
            state.write(
                {
                    "step": now.step,
                    "loss": now.loss,
                    "network": network.state_dict(),
                    "generator": generator.get_state(),
                }
            )
        progress(now)
    return now


def digits_digest(digits: Digits) -> int:
    """A number that tells training digits apart."""
    return zlib.crc32(digits.train_labels.tobytes(), zlib.crc32(digits.train_images.tobytes()))


def evaluate(network: torch.nn.Module, pairs: Pairs, batch: int = 1000) -> dict[str, float]:
    """The mean square error, and the share of pairs on whose right side of 50 the score is."""
    device = next(network.parameters()).device
    with torch.no_grad():
        score = torch.cat([network(images.to(device)) for images in pairs.images.split(batch)]).double()
    target = pairs.target.to(score)
    middle = PRESENT / 2
    return {
        "mse": float((score - target).square().mean()),
        "accuracy": float(((score > middle) == (target > middle)).double().mean()),
    }


def _rate(step: int, steps: int, learning_rate: float) -> float:
    """η_t: up from zero before the first step, constant, down to zero after the last."""
    return learning_rate * min((step + 1) / (_RISE * steps), 1.0, (steps - step) / (_FALL * steps))


def device_of(name: torch.device | str) -> torch.device:
    """The device of that name, refused where training cannot run on it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainingError(f"there is no device {name!r}: {str(error).splitlines()[0]}") from error
    if device.type not in ("cpu", "cuda"):
        raise TrainingError(f"training runs on cpu or cuda; got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TrainingError("there is no CUDA device here; leave the device out to train on the CPU")
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one network and write its weights; 0 if all went well, 2 if not."""
    options = _parser().parse_args(arguments)
    return run(lambda: _trained(options))


def _trained(options: argparse.Namespace) -> list[str]:
    rate = LEARNING_RATES[options.network] if options.learning_rate is None else options.learning_rate
    options.out.parent.mkdir(parents=True, exist_ok=True)
    digits = load_digits(options.digits)
    network = PAPER_NETWORKS[options.network](seed=options.seed)
    line = Progressing()
    same = ("steps", "batch", "seed", "max_shift", "absent")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in (*same, "device", "checkpoint")}
    done = train(network, digits, learning_rate=rate, **chosen, progress=line.show)
    line.clear()
    about = {name: str(getattr(options, name)) for name in ("network", *same)} | {"learning_rate": f"{rate:g}"}
    about |= provenance(next(network.parameters()).device)
    said = [f"{options.network}: {done.steps} steps in {line.seconds():.0f} s, last training loss {done.loss:.1f}"]
    for name, where, pairs in held_out(digits, options):
        found = evaluate(network, pairs)
        about |= {f"{name}_mse": f"{found['mse']:.2f}", f"{name}_accuracy": f"{found['accuracy']:.4f}"}
        said.append(
            f"{where}: accuracy {format_percent(found['accuracy'], '.2f')}, mean square error {found['mse']:.1f}"
        )
    return [*said, f"weights in {save_network(network, options.out, about)}"]


def held_out(digits: Digits, options: argparse.Namespace) -> Iterator[tuple[str, str, Pairs]]:
    """Pairs that no training saw, as in MNIST and moved: how a header and how a reader calls them, and they."""
    for name, shift in (("held_out", 0), ("held_out_moved", options.max_shift)):
        pairs = held_out_pairs(digits, _HELD_OUT, max_shift=shift, absent=options.absent)
        yield name, f"held-out digits moved by up to {shift} pixels", pairs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deeptaylor.paper.training", description="Train a network of the paper."
    )
    add = parser.add_argument
    add("--network", choices=list(PAPER_NETWORKS), required=True)
    add("--learning-rate", type=float, help=f"by default {LEARNING_RATES}")
    add_options(parser, STEPS, BATCH)
    return parser


def add_options(parser: argparse.ArgumentParser, steps: int, batch: int) -> None:
    """Options of every training on pairs of digits."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="safetensors file to write the result to")
    add("--checkpoint", type=Path, help="file to keep the state in, and to go on from")
    add("--steps", type=int, default=steps, help="steps of gradient descent (%(default)s)")
    add("--batch", type=int, default=batch, help="pairs per step (%(default)s)")
    add("--seed", type=int, default=0, help="of the first weights and of the pairs (%(default)s)")
    add("--max-shift", type=int, default=TRAIN_SHIFT, help="pixels that digits are moved by at most (%(default)s)")
    add("--absent", choices=get_args(Absent), default="either", help="what stands in for no digit 0–3")
    add("--device", default="cpu", help="cpu or cuda (%(default)s)")
    add("--digits", type=Path, help="folder with the four files of MNIST; by default they are fetched")


class Progressing:
    """One line on a terminal that is written over; elsewhere nothing."""

    def __init__(self) -> None:
        self._began, self._first = time.monotonic(), -1

    def seconds(self) -> float:
        """Since the first step that was shown."""
        return time.monotonic() - self._began

    def show(self, now: Progress) -> None:
        """How far it is, and how long it will take."""
        if not sys.stderr.isatty():
            return
        if self._first < 0:
            self._began, self._first = time.monotonic(), now.step
            return
        pace = (now.step - self._first) / max(self.seconds(), 1e-9)
        left = (now.steps - now.step) / pace
        sys.stderr.write(
            f"\r\x1b[Kstep {now.step} of {now.steps}, loss {now.loss:.1f}, {pace:.0f} steps/s, {left:.0f} s left"
        )
        sys.stderr.flush()

    def clear(self) -> None:
        """An empty line."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
