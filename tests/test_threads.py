"""Threads that share an explainer, or capture one network, get right results; an interrupted capture is interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt

THREADS = 12
INTERRUPTS = 26


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()


def at_once(work: Callable[[int], Tensor], expected: list[Tensor]) -> None:
    """Each thread's result, all begun together, is what it would be alone."""
    found: list[object] = [None] * THREADS
    begin = threading.Barrier(THREADS)

    def one(k: int) -> None:
        begin.wait()
        try:
            found[k] = bool(torch.allclose(work(k), expected[k], rtol=1e-4, atol=1e-6))
        except Exception as error:  # noqa: BLE001 - said by the assertion
            found[k] = error

    threads = [threading.Thread(target=one, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * THREADS


@pytest.mark.slow
def test_threads_share_an_explainer_and_capture_one_network() -> None:
    model = network()
    inputs = [torch.rand(2, 3, 8 + k % 6, 9) for k in range(THREADS)]
    expected = [dt.Explainer(model, x, bias="neuron").explain(x, 1).relevance for x in inputs]

    def shared() -> dt.Explainer:
        return dt.Explainer(model, torch.rand(1, 3, 8, 8), bias="neuron")

    one, two, three, four = shared(), shared(), shared(), shared()
    at_once(lambda k: one.explain(inputs[k], 1).relevance, expected)
    at_once(lambda k: two(inputs[k], 1)[1], expected)
    at_once(lambda k: three.explain(inputs[k], lambda out: out[:, 1]).relevance, expected)
    at_once(lambda k: four.explain(inputs[k], lambda out: out[:, 1] * out.exp().sum(1) ** 0).relevance, expected)
    at_once(lambda k: dt.Explainer(model, inputs[k], bias="neuron").explain(inputs[k], 1).relevance, expected)
    assert not any(m.training for m in model.modules())


class Slow(nn.Module):
    """A network whose export lasts until others have asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.exported = nn.Linear(4, 3), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            self.exported.set()
            time.sleep(0.5)
        return self.layer(x)


def test_threads_that_each_capture_a_network_of_their_own() -> None:
    torch.manual_seed(1)
    networks = [nn.Sequential(nn.Linear(4, 5 + k), nn.ReLU(), nn.Linear(5 + k, 3)).eval() for k in range(THREADS - 1)]
    slow, x = Slow(), torch.rand(2, 4)
    ready = dt.Explainer(networks[0], x, bias="neuron")
    expected = [dt.explain(network, x, 1, bias="neuron").relevance for network in (*networks, slow)]
    slow.exported.clear()

    def captured(k: int) -> Tensor:
        """One thread exports, and meanwhile the others begin."""
        if k == THREADS - 1:
            return dt.explain(slow, x, 1, bias="neuron").relevance
        slow.exported.wait(60)
        if k == 0:
            return ready(x, 1)[1]
        return dt.explain(networks[k], x, 1, bias="neuron").relevance

    at_once(captured, expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["default", "own handler", "alarm"])
def test_every_interrupt_of_a_capture_is_one(how: str) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()) for _ in range(20)]).eval()
    x = torch.rand(2, 8)
    dt.Explainer(model, x, bias="neuron")
    started = time.perf_counter()
    dt.Explainer(model, x, bias="neuron")
    takes = time.perf_counter() - started
    usual = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, stop if how == "own handler" else signal.default_int_handler)
    signal.signal(signal.SIGALRM, stop)
    seen: Counter[str] = Counter()
    try:
        for k in range(INTERRUPTS):
            after = (k + 0.5) / INTERRUPTS * takes * 0.9
            try:
                if how == "alarm":
                    signal.setitimer(signal.ITIMER_REAL, after)
                else:
                    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()
                dt.Explainer(model, x, bias="neuron")
                time.sleep(takes)  # it was faster this time
            except KeyboardInterrupt:
                seen["interrupt"] += 1
            except Exception as error:  # noqa: BLE001 - counted
                seen[type(error).__name__] += 1
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGALRM), usual, strict=True):
            signal.signal(number, handler)
    assert seen == {"interrupt": INTERRUPTS}
