"""A network for the page's server, pictures for it, and its answers."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import nn

from deeptaylor.app.server.models import OWN
from deeptaylor.app.server.routes import Bounds

TOKEN = "the-token"
HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"
BOUNDS = Bounds(bytes=200_000, pixels=1_000_000, places=4)


class Small(nn.Module):
    """Pictures (batch, 3, 8, 8) to four classes, with biases that take a lot."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.relu, self.pool = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        self.fc = nn.Linear(64, 4)
        nn.init.constant_(self.conv.bias, 3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.pool(self.relu(self.conv(x))).flatten(1))


class Several(Small):
    """The same with scores above zero for three of the classes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.tensor([1.0, 4.0, 6.0, 4.0])


def png(seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> bytes:
    generator = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    file = io.BytesIO()
    Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def digits(seed: int = 0) -> bytes:
    return png(seed, (56, 28), "L")


def explain(client: TestClient, picture: bytes, **options: Any) -> dict[str, Any]:
    response = client.post("/api/explain", params={"model": OWN, **options}, content=picture)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def values(heat: dict[str, Any]) -> np.ndarray[Any, Any]:
    flat = np.frombuffer(base64.b64decode(heat["values"]), "<f4")
    return flat.reshape(heat["height"], heat["width"])
