"""Two networks for compiled passes, targets for them, and when two results agree."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ONE = torch.tensor([1, 3])
MANY = torch.tensor([[1, 2, 0], [0, 3, 3]])


class Residual(nn.Module):
    """Convolutions with BatchNorm, a residual sum and max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.pool, self.fc = nn.MaxPool2d(2), nn.Linear(36, 4)
        for bn in (self.bn1, self.bn2):
            nn.init.uniform_(bn.running_mean, -0.2, 0.2)
            nn.init.uniform_(bn.running_var, 0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)) + h)
        return self.fc(self.pool(h).flatten(1))


class Attention(nn.Module):
    """One pre-norm attention layer over a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)
        self.attend, self.fc = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        n = self.norm(h)
        h = h + self.attend(n, n, n, need_weights=False)[0]
        return self.fc(F.gelu(h).mean(1))


def agree(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    scale = float(theirs[0].abs().max())
    assert float(theirs[1].abs().max()) > 0, "an empty map agrees with anything empty"
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= 1e-5 * scale
