"""Tiny networks and inputs with random weights, the same for every tool."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

NAMES = [f"class {k}" for k in range(5)]
WORDS = ["the", "film", "was", "good"]


def pictures(n: int = 1, size: int = 32) -> Tensor:
    """Pictures in [0, 1]."""
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(1))


def picture_net() -> nn.Sequential:
    """A small convolutional network of five classes, of modules alone."""
    torch.manual_seed(0)
    parts = {
        "conv1": nn.Conv2d(3, 8, 3, padding=1),
        "relu1": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(8, 16, 3, padding=1),
        "relu2": nn.ReLU(),
        "average": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "classify": nn.Linear(16, 5),
    }
    network = nn.Sequential(OrderedDict(parts)).eval()
    network.classify.weight.data *= 10.0  # so that the decision depends on the picture
    network.classify.bias.data += 1.0  # scores above 0
    return network


class Residual(nn.Module):
    """x + relu(W x), without biases: with modules for both where they are given, as functions where not."""

    def __init__(self, relu: nn.Module | None = None, add: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.detect, self.classify = nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False)
        self.classify.weight.data.abs_()
        if relu is not None:
            self.relu = relu
        if add is not None:
            self.add = add

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.detect(x)) if hasattr(self, "relu") else torch.relu(self.detect(x))
        return self.classify(self.add(x, h) if hasattr(self, "add") else x + h)


class Add(nn.Module):
    """`+` as a module."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


def table() -> Tensor:
    """One row of six values."""
    return torch.rand(1, 6, generator=torch.Generator().manual_seed(2)) + 0.1


def table_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


class Transformer(nn.Module):
    """A vision transformer of one block: sixteen patches, two heads, five classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 8, stride=8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(8)
        self.classify = nn.Linear(8, 5)
        self.classify.bias.data += 1.0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.classify(self.norm(self.block(tokens)).mean(1))


class TwoInputs(nn.Module):
    """A picture and a row of a table, one decision."""

    def __init__(self) -> None:
        super().__init__()
        self.see, self.read = picture_net(), table_net()
        self.decide = nn.Linear(8, 2)
        self.decide.bias.data += 1.0
        self.eval()

    def forward(self, picture: Tensor, row: Tensor) -> Tensor:
        return self.decide(torch.relu(torch.cat([self.see(picture), self.read(row)], 1)))


class Branching(nn.Module):
    """A network that goes another way where its input is bright: control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.dark, self.bright = picture_net(), picture_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.bright(x) if float(x.mean()) > 0.4 else self.dark(x)


class Segmenting(nn.Module):
    """Two classes for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1))
        self.body[2].bias.data += 1.0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def clip() -> Tensor:
    """A clip of six frames."""
    return torch.rand(1, 3, 6, 16, 16, generator=torch.Generator().manual_seed(3))


def clip_net() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv3d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 3)
    ).eval()
    network[4].bias.data += 1.0
    return network


def signal() -> Tensor:
    """Two channels of a signal."""
    t = torch.linspace(0, 6.28, 64)
    return torch.stack([torch.sin(3 * t), torch.cos(5 * t)])[None]


def signal_net() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(2, 6, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3)
    ).eval()
    network[4].bias.data += 1.0
    return network


def embedded() -> Tensor:
    """The four words as vectors of eight numbers."""
    return torch.randn(1, len(WORDS), 8, generator=torch.Generator().manual_seed(4))


class Reader(nn.Module):
    """Two classes of a text that is given as vectors, one per word."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.look, self.classify = nn.Linear(8, 16), nn.Linear(16, 2)
        self.classify.bias.data += 1.0
        self.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classify(torch.relu(self.look(tokens)).mean(1))


def photograph(folder: Path, name: str = "photo.png", size: tuple[int, int] = (90, 60)) -> Path:
    """A photograph of its own size: a bright disc before a dark ground, with noise."""
    y, x = np.mgrid[: size[1], : size[0]]
    disc = ((x - size[0] / 2) ** 2 + (y - size[1] / 2) ** 2 < (size[1] / 4) ** 2).astype(float)
    noise = np.random.default_rng(sum(map(ord, name))).random((size[1], size[0], 3))
    pixels = 255 * np.clip(0.2 + 0.6 * disc[..., None] + 0.15 * noise, 0, 1)
    path = folder / name
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def photographs(folder: Path) -> Path:
    """A folder of photographs, a subfolder per class."""
    for k, name in enumerate(NAMES[:2]):
        (folder / name).mkdir(parents=True)
        for n in range(3):
            photograph(folder / name, f"photo {k}{n}.png")
    return folder


def language_model() -> tuple[Any, Any]:
    """A language model of one block and its tokenizer: eight words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["[UNK]", "[PAD]", *WORDS, "bad", "very"]
    plain = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]")
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(words),
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=2,
        eos_token_id=1,
        bos_token_id=1,
        pad_token_id=1,
    )
    return GPT2LMHeadModel(config).eval(), tokenizer
