"""Small modern networks, trained here with seeds; weights go to a cache folder as safetensors.

    python benchmarks/modern_networks.py [--tasks digits,textures] [--networks vit,...] [--seed 0] [--device cuda]

vit           patches of 6, class token, four blocks            vit-mean     the same, mean of all tokens
convnext      depthwise 7 × 7, LayerNorm, GELU, layer scale      mobilenetv3  inverted residuals, SE, hardswish
swin          windows of 6, shifted, patch merging               resnet-gelu  BatchNorm and GELU
cnn           BatchNorm, ReLU, max pooling: the control
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from deeptaylor import assets
from modern_tasks import CHANNELS, CLASSES, SIDE, Pictures, pictures

# --- transformers -----------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias_side: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        if bias_side:  # Swin's bias by relative position
            at = torch.stack(torch.meshgrid(*[torch.arange(bias_side)] * 2, indexing="ij")).flatten(1)
            apart = at[:, :, None] - at[:, None, :] + bias_side - 1
            self.register_buffer("which", apart[0] * (2 * bias_side - 1) + apart[1], persistent=False)
            self.bias = nn.Parameter(torch.zeros(heads, (2 * bias_side - 1) ** 2))
        self.relative = bool(bias_side)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        if self.relative:
            a = a + self.bias[:, self.which]
        if mask is not None:
            windows = mask.shape[0]
            a = (a.reshape(-1, windows, *a.shape[1:]) + mask[:, None]).reshape(a.shape)
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(batch, count, width))


def mlp(width: int, times: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, times * width), nn.GELU(), nn.Linear(times * width, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), mlp(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, channels: int, classes: int, pool: str, width: int = 64, depth: int = 4, patch: int = 6) -> None:
        super().__init__()
        self.pool = pool
        self.patches = nn.Conv2d(channels, width, patch, patch)
        count = (SIDE // patch) ** 2
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if pool == "token" else None
        self.place = nn.Parameter(0.02 * torch.randn(1, count + (pool == "token"), width))
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.place
        for block in self.blocks:
            x = block(x)
        if self.pool == "token":
            return self.head(self.norm(x)[:, 0])
        return self.head(self.norm(x.mean(1)))


class SwinBlock(nn.Module):
    def __init__(self, width: int, side: int, heads: int, shift: int, window: int = 6) -> None:
        super().__init__()
        self.side, self.shift, self.window = side, shift, window
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads, window), mlp(width, 2)
        mask = None
        if shift:
            region = torch.zeros(side, side)
            parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for k, rows in enumerate(parts):
                for j, columns in enumerate(parts):
                    region[rows, columns] = 3 * k + j
            region = self.windows(region[None, :, :, None]).squeeze(-1)
            mask = torch.where(region[:, :, None] == region[:, None, :], 0.0, -100.0)
        self.register_buffer("mask", mask, persistent=False)

    def windows(self, x: Tensor) -> Tensor:
        n, w = self.side // self.window, self.window
        x = x.reshape(-1, n, w, n, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, w * w, x.shape[-1])

    def whole(self, x: Tensor) -> Tensor:
        n, w = self.side // self.window, self.window
        return x.reshape(-1, n, n, w, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * w, n * w, x.shape[-1])

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.whole(self.attention(self.windows(y), self.mask))
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self, channels: int, classes: int, width: int = 48) -> None:
        super().__init__()
        self.patches, self.norm0 = nn.Conv2d(channels, width, 4, 4), nn.LayerNorm(width)
        self.first = nn.Sequential(SwinBlock(width, 12, 3, 0), SwinBlock(width, 12, 3, 3))
        self.merging, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)
        self.second = nn.Sequential(SwinBlock(2 * width, 6, 6, 0), SwinBlock(2 * width, 6, 6, 0))
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.norm0(self.patches(x).permute(0, 2, 3, 1)))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = self.second(self.reduce(self.merging(x)))
        return self.head(self.norm(x).mean((1, 2)))


# --- convolutions -----------------------------------------------------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width), mlp(width, 4)
        self.scale = nn.Parameter(0.3 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))) * self.scale
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, channels: int, classes: int, width: int = 40) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 4, 4), ChannelNorm(width),
            ConvNeXtBlock(width, 7), ConvNeXtBlock(width, 7),
            ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, 2),
            ConvNeXtBlock(2 * width, 5), ConvNeXtBlock(2 * width, 5),
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x).mean((2, 3))))


def conv(inputs: int, outputs: int, kernel: int, stride: int, act: type[nn.Module], groups: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), act()]


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    def __init__(self, inputs: int, inner: int, outputs: int, kernel: int, stride: int, se: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv(inputs, inner, 1, 1, nn.Hardswish), *conv(inner, inner, kernel, stride, nn.Hardswish, inner),
            *([SqueezeExcite(inner)] if se else []), *conv(inner, outputs, 1, 1, nn.Identity),
        )  # fmt: skip
        self.same = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.same else self.layers(x)


def mobilenet_v3(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *conv(channels, 16, 3, 2, nn.Hardswish),
        Inverted(16, 48, 24, 3, 2, False), Inverted(24, 72, 24, 3, 1, True),
        Inverted(24, 96, 40, 5, 2, True), Inverted(40, 160, 40, 5, 1, True),
        *conv(40, 160, 1, 1, nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(160, 128), nn.Hardswish(), nn.Linear(128, classes),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv(inputs, outputs, 3, stride, nn.GELU), *conv(outputs, outputs, 3, 1, nn.Identity)
        )
        self.skip = nn.Sequential(*conv(inputs, outputs, 1, stride, nn.Identity))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.skip(x) + self.layers(x))


def resnet_gelu(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *conv(channels, 16, 3, 2, nn.GELU), Residual(16, 16, 1), Residual(16, 40, 2), Residual(40, 80, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, classes),
    )  # fmt: skip


def cnn(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *conv(channels, 16, 3, 1, nn.ReLU), nn.MaxPool2d(2), *conv(16, 40, 3, 1, nn.ReLU), nn.MaxPool2d(2),
        *conv(40, 80, 3, 1, nn.ReLU), nn.MaxPool2d(2), *conv(80, 96, 3, 1, nn.ReLU),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """How a network is built and trained; `stride` is that of its first layers, `cells` gives its last feature map."""

    build: Callable[[int, int], nn.Module]
    stride: int
    epochs: int
    cells: Callable[[nn.Module], nn.Module]
    labelled: bool = False  # every place of the last feature map has a label of its own in the first half of training


NETWORKS = {
    "vit": Kind(lambda c, k: ViT(c, k, "token"), 6, 14, lambda m: m.blocks[-1], True),
    "vit-mean": Kind(lambda c, k: ViT(c, k, "mean"), 6, 14, lambda m: m.blocks[-1], True),
    "convnext": Kind(ConvNeXt, 4, 6, lambda m: m.features, True),
    "mobilenetv3": Kind(mobilenet_v3, 2, 4, lambda m: m[9]),
    "swin": Kind(Swin, 4, 6, lambda m: m.second, True),
    "resnet-gelu": Kind(resnet_gelu, 2, 4, lambda m: m[5]),
    "cnn": Kind(cnn, 2, 5, lambda m: m[13]),
}
COUNT, BATCH, RATE = 20_000, 32, 2e-3


# --- training ---------------------------------------------------------------------------------------------------------


def loss_of(task: str, logits: Tensor, classes: Tensor) -> Tensor:
    target = torch.zeros_like(logits).scatter_(1, classes, 1.0)
    if task == "digits":
        return F.cross_entropy(logits, target / 2)
    return logits.shape[1] * F.binary_cross_entropy_with_logits(logits, target)


def accuracy(model: nn.Module, held: Pictures) -> float:
    """The share of the two classes that are among the network's first two."""
    with torch.no_grad():
        top = torch.cat([model(x) for x in held.x.split(250)]).topk(2).indices
    return float((held.classes[:, :, None] == top[:, None, :]).any(2).float().mean())


def weights_file(cache: Path, task: str, name: str, seed: int) -> Path:
    return cache / f"{task}-{name}-{seed}.safetensors"


def default_cache() -> Path:
    return assets.cache_folder() / "modern"


def load(task: str, name: str, seed: int, cache: Path) -> nn.Module:
    """Return a network that was trained before."""
    model = NETWORKS[name].build(CHANNELS[task], CLASSES[task])
    model.load_state_dict(load_file(weights_file(cache, task, name, seed)))
    return model.eval().requires_grad_(False)


def as_grid(a: Tensor) -> Tensor:
    """A feature map (B, H, W, C) of tokens (B, [1 +] H W, C), or of channels in front or behind."""
    if a.ndim == 3:
        side = int(a.shape[1] ** 0.5)
        return a[:, -side * side :].unflatten(1, (side, side))
    return a if a.shape[1] == a.shape[2] else a.permute(0, 2, 3, 1)


@contextmanager
def hooked(layer: nn.Module, keep: list[Tensor]) -> Iterator[None]:
    """Keep the outputs of a layer."""
    handle = layer.register_forward_hook(lambda _module, _inputs, out: keep.append(out))
    try:
        yield
    finally:
        handle.remove()


def labels_of(side: int, boxes: Tensor, classes: Tensor, none: int) -> Tensor:
    """The class of the box that holds the middle of each cell (B, side, side), or none."""
    middle = (torch.arange(side, device=boxes.device) + 0.5) * SIDE / side
    top, left, bottom, right = (boxes[:, :, k, None] for k in range(4))
    inside = ((middle > top) & (middle < bottom))[..., :, None] & ((middle > left) & (middle < right))[..., None, :]
    return torch.where(
        inside[:, 0], classes[:, 0, None, None], torch.where(inside[:, 1], classes[:, 1, None, None], none)
    )


def train(task: str, name: str, seed: int, data: Pictures, held: Pictures, device: str) -> nn.Module:
    """Train one network on a device and print its progress; return it on the CPU.

    Token labelling (Jiang et al., 2021) in the first half of the steps lets transformers learn from few pictures.
    """
    torch.manual_seed(seed)
    kind, count = NETWORKS[name], len(data.x) // BATCH
    model, none = kind.build(CHANNELS[task], CLASSES[task]).to(device), CLASSES[task]
    at_cells = nn.LazyLinear(none + 1).to(device)
    data, held = data.to(device), held.to(device)
    epochs = kind.epochs if task == "digits" else -(-kind.epochs // 2)  # textures are learned sooner
    steps, step, began = epochs * count, 0, time.perf_counter()
    kept: list[Tensor] = []
    with hooked(kind.cells(model), kept), torch.no_grad():
        model(data.x[:2])
        at_cells(as_grid(kept[0]))
    optimizer = torch.optim.AdamW([*model.parameters(), *at_cells.parameters()], RATE, weight_decay=0.02)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    for epoch in range(epochs):
        model.train()
        order, mean = torch.randperm(len(data.x)).to(device), torch.zeros((), device=device)
        for k in order.split(BATCH)[:count]:
            kept.clear()
            with hooked(kind.cells(model), kept):
                loss = loss_of(task, model(data.x[k]), data.classes[k])
            mean += loss.detach() / count
            if kind.labelled and 2 * step < steps:
                cells = as_grid(kept[0])
                truth = labels_of(cells.shape[1], data.boxes[k], data.classes[k], none)
                loss = loss + F.cross_entropy(at_cells(cells).flatten(0, 2), truth.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            step += 1
        model.eval()
        print(
            f"{task:<9}{name:<12}epoch {epoch + 1}/{epochs}  loss {mean:.3f}  "
            f"right {accuracy(model, held):.3f}  {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    return model.eval().cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(CLASSES))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    for task in asked.tasks.split(","):
        data, held = pictures(task, "train", COUNT), pictures(task, "validation", 500)
        for name in asked.networks.split(","):
            file = weights_file(asked.cache, task, name, asked.seed)
            if not file.exists():
                save_file(train(task, name, asked.seed, data, held, asked.device).state_dict(), file)


if __name__ == "__main__":
    main()
