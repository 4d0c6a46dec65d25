"""A small network of one's own for the tests of the command line: a state dict, class names, and how it is prepared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from deeptaylor.app.cli import main

PREPARATION = [
    "--size", "24", "--resize", "28", "--channels", "RGB", "--white", "1", "--mean", "0.485,0.456,0.406",
    "--std", "0.229,0.224,0.225", "--interpolation", "bilinear",
]  # fmt: skip
SAID = ["flowers.pth", "--architecture", "cli_model:flower_net", "--class-names", "names.txt", *PREPARATION]
MODEL = ["--model", *SAID]


def flower_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    ).eval()  # fmt: skip


def doubt_net() -> nn.Module:
    """One output, below zero whatever it sees."""
    return nn.Sequential(*list(flower_net())[:-1], nn.Linear(16, 1)).eval()


def soft_net() -> nn.Module:
    """A network that rectified detectors and pooling do not describe: its methods are tested."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2), nn.GELU(), nn.Conv2d(6, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    ).eval()  # fmt: skip


def plain_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    ).eval()


class Sums(nn.Module):
    """An operation without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(self.linear(x), 1)


def sums_net() -> nn.Module:
    return Sums().eval()


def write(folder: Path) -> None:
    """The files that SAID and MODEL name, a photograph, and a network that cannot be explained."""
    torch.manual_seed(0)
    network = flower_net()
    with torch.no_grad():
        network[7].bias.add_(0.3)  # biases that take more than half of a score, and scores above zero
    torch.save(network.state_dict(), folder / "flowers.pth")
    torch.save(sums_net().state_dict(), folder / "sums.pth")
    doubt = doubt_net()
    with torch.no_grad():
        doubt[7].weight.abs_().neg_()
        doubt[7].bias.fill_(-0.1)
    torch.save(doubt.state_dict(), folder / "doubt.pth")
    (folder / "names.txt").write_text("daisy\nrose\ntulip\n")
    Image.fromarray(pixels()).save(folder / "photo.png")


def pixels(seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A colourful picture of 40 x 50 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((50, 40)))


def said(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> tuple[str, str]:
    """What a command says on standard output and error; its exit code must be this one."""
    assert main(list(words)) == code, capsys.readouterr()
    return tuple(capsys.readouterr())  # type: ignore[return-value]
