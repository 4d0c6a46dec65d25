"""What every opponent needs: a copy of the network that it may do anything to, and the score of a class."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["ROWS", "ROWS_FORWARD", "SEED", "Maps", "Scored", "chosen", "on_a_copy", "quiet", "seeded"]

# (network in eval mode, inputs (B, …), classes (B,)) to relevance of the inputs' shape, or without the channel axis.
Maps = Callable[[nn.Module, Tensor, Tensor], Tensor]

SEED = 0
# A method that looks at many variations of an input sends so many rows, or the batch as it came, through the network
# at a time; more where no gradient is kept.
ROWS, ROWS_FORWARD = 16, 64


def on_a_copy(maps: Maps) -> Maps:
    """The same method on a copy of the network and of the inputs: whatever a library leaves behind, it leaves there.

    The copy's parameters ask for no gradient, and its modules do not write over their input.
    """

    @functools.wraps(maps)
    def careful(network: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            own = copy.deepcopy(network).requires_grad_(False)
            for module in own.modules():
                if hasattr(module, "inplace"):
                    setattr(module, "inplace", False)  # noqa: B010 - whatever kind of module it is
            relevance = maps(own, x.detach().clone(), classes.detach().to(x.device, torch.int64, copy=True))
            return relevance.detach()

    return careful


def chosen(output: Tensor, classes: Tensor) -> Tensor:
    """The score of each sample's class, (B,); of a network with one score a sample, that score."""
    return output if output.ndim == 1 else output.gather(1, classes.unsqueeze(1)).squeeze(1)


class Scored(nn.Module):
    """A network whose output is the score of a class: (inputs, classes) to (B,)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        """The score of each sample's class."""
        return chosen(self.network(x), classes)


@contextlib.contextmanager
def seeded(x: Tensor) -> Iterator[None]:
    """The same random numbers at every call, where x is; the generators of torch are afterwards where they were."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.default_generator.manual_seed(SEED)
        if x.is_cuda:
            with torch.cuda.device(x.device):
                torch.cuda.manual_seed(SEED)
        yield


@contextlib.contextmanager
def quiet(*messages: str) -> Iterator[None]:
    """Without some warnings, named by how they begin: what a library says about itself whenever it is called."""
    with warnings.catch_warnings():
        for message in messages:
            warnings.filterwarnings("ignore", message)
        yield
