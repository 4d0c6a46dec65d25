"""Gradient descent on pairs of digits, fast on a GPU too: a stretch of steps is one recorded graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deeptaylor.models.networks.detection_pooling import DetectionPooling
from deeptaylor.paper.data.pairs import Pairs


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
