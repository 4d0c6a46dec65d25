"""Caffe's files written and Caffe's layers computed a second time, slowly, to judge the importer by.

A network is a list of `Layer`. From it come the text (`prototxt`), the weights in protobuf's wire format
(`caffemodel`), both in the old and the new layer format, and the result in float64 NumPy loops (`forward`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OLD_TYPES = {
    "Convolution": ("CONVOLUTION", 4),
    "InnerProduct": ("INNER_PRODUCT", 14),
    "Pooling": ("POOLING", 17),
    "LRN": ("LRN", 15),
    "ReLU": ("RELU", 18),
    "Concat": ("CONCAT", 3),
    "Eltwise": ("ELTWISE", 25),
    "Dropout": ("DROPOUT", 6),
    "Softmax": ("SOFTMAX", 20),
    "Flatten": ("FLATTEN", 8),
}


class Name(str):
    """A constant of the text, written without quotes."""

    __slots__ = ()


@dataclass(frozen=True)
class Layer:
    name: str
    type: str
    bottom: str | Sequence[str]
    top: str | Sequence[str] = ""
    param: Mapping[str, Any] = field(default_factory=dict)
    blobs: Sequence[np.ndarray] = ()

    @property
    def bottoms(self) -> list[str]:
        return [self.bottom] if isinstance(self.bottom, str) else list(self.bottom)

    @property
    def tops(self) -> list[str]:
        tops = self.top or self.name
        return [tops] if isinstance(tops, str) else list(tops)


# --- the text -------------------------------------------------------------------------------------------------------


def _lines(name: str, value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        yield f"{name} {{"
        for k, v in value.items():
            yield from (f"  {line}" for line in _lines(k, v))
        yield "}"
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _lines(name, v)
    elif isinstance(value, bool):
        yield f"{name}: {str(value).lower()}"
    elif isinstance(value, Name) or not isinstance(value, str):
        yield f"{name}: {value}"
    else:
        yield f'{name}: "{value}"'


def prototxt(shape: Sequence[int], layers: Sequence[Layer], old: bool = False, batch: int = 1) -> str:
    lines = ['name: "reference"']
    if old:
        lines += ['input: "data"', *[f"input_dim: {n}" for n in (batch, *shape)]]
    else:
        dims = {"shape": {"dim": [batch, *shape]}}
        lines += _lines("layer", {"name": "data", "type": "Input", "top": "data", "input_param": dims})
    for layer in layers:
        kind = Name(OLD_TYPES[layer.type][0]) if old else layer.type
        fields = {"name": layer.name, "type": kind, "bottom": layer.bottoms, "top": layer.tops, **layer.param}
        lines += _lines("layers" if old else "layer", fields)
    return "\n".join(lines) + "\n"


# --- the wire format ------------------------------------------------------------------------------------------------


def varint(n: int) -> bytes:
    out = bytearray()
    n &= 2**64 - 1
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(tag: int, n: int) -> bytes:
    return varint(tag << 3) + varint(n)


def chunk(tag: int, payload: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(payload)) + payload


def blob(array: np.ndarray, old: bool = False, double: bool = False, packed: bool = True) -> bytes:
    values = np.asarray(array, "<f8" if double else "<f4").ravel()
    tag, kind = (8, 1) if double else (5, 5)
    data = chunk(tag, values.tobytes())
    if not packed:
        data = b"".join(varint(tag << 3 | kind) + v.tobytes() for v in values)
    if old:
        dims = (1,) * (4 - array.ndim) + array.shape
        return b"".join(number(k + 1, n) for k, n in enumerate(dims)) + data
    shape = b"".join(map(varint, array.shape))
    return data + chunk(7, chunk(1, shape) if packed else b"".join(number(1, n) for n in array.shape))


def old_layer(name: str, kind: int, blobs: Sequence[bytes]) -> bytes:
    fields = chunk(2, b"bottom") + chunk(3, b"top") + chunk(4, name.encode()) + number(5, kind)
    learning = b"".join(varint(7 << 3 | 5) + struct.pack("<f", 1.0) for _ in blobs)
    return fields + b"".join(chunk(6, b) for b in blobs) + learning


def new_layer(name: str, kind: str, blobs: Sequence[bytes]) -> bytes:
    fields = chunk(1, name.encode()) + chunk(2, kind.encode()) + chunk(3, b"bottom") + chunk(4, b"top")
    return fields + b"".join(chunk(7, b) for b in blobs) + number(10, 1)


def caffemodel(layers: Sequence[Layer], old: bool = False, **how: bool) -> bytes:
    parts = [chunk(1, b"reference")]
    for layer in layers:
        blobs = [blob(b, old, **how) for b in layer.blobs]
        if old:
            parts.append(chunk(2, old_layer(layer.name, OLD_TYPES[layer.type][1], blobs)))
        else:
            parts.append(chunk(100, new_layer(layer.name, layer.type, blobs)))
    return b"".join(parts)


# --- the layers -----------------------------------------------------------------------------------------------------


def _two(p: Mapping[str, Any], name: str, short: str, default: int) -> tuple[int, int]:
    if f"{short}_h" in p:
        return p[f"{short}_h"], p[f"{short}_w"]
    n = p.get(name, default)
    return (n[0], n[-1]) if isinstance(n, (list, tuple)) else (n, n)


def convolution(x: np.ndarray, p: Mapping[str, Any], weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    (kh, kw), (sh, sw) = _two(p, "kernel_size", "kernel", 0), _two(p, "stride", "stride", 1)
    (ph, pw), (dh, dw) = _two(p, "pad", "pad", 0), _two(p, "dilation", "dilation", 1)
    groups, (batch, channels, h, w), outputs = p.get("group", 1), x.shape, weight.shape[0]
    rows, cols = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (w + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    wide = np.zeros((batch, channels, h + 2 * ph, w + 2 * pw))
    wide[:, :, ph : ph + h, pw : pw + w] = x
    y = np.zeros((batch, outputs, rows, cols))
    for o in range(outputs):
        group = o * groups // outputs
        mine = wide[:, group * channels // groups : (group + 1) * channels // groups]
        for i in range(rows):
            for j in range(cols):
                seen = mine[:, :, i * sh : i * sh + dh * kh : dh, j * sw : j * sw + dw * kw : dw]
                y[:, o, i, j] = (seen[:, :, :kh, :kw] * weight[o]).sum((1, 2, 3))
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def pooled_size(size: int, k: int, s: int, pad: int) -> int:
    count = math.ceil((size + 2 * pad - k) / s) + 1
    return count - 1 if pad and (count - 1) * s >= size + pad else count


def pooling(x: np.ndarray, p: Mapping[str, Any]) -> np.ndarray:
    h, w = x.shape[2:]
    if p.get("global_pooling"):
        p = {"pool": p.get("pool", "MAX"), "kernel_h": h, "kernel_w": w}
    (kh, kw), (sh, sw) = _two(p, "kernel_size", "kernel", 0), _two(p, "stride", "stride", 1)
    ph, pw = _two(p, "pad", "pad", 0)
    y = np.zeros((*x.shape[:2], pooled_size(h, kh, sh, ph), pooled_size(w, kw, sw, pw)))
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            top, left = i * sh - ph, j * sw - pw
            bottom, right = min(top + kh, h + ph), min(left + kw, w + pw)
            members = (bottom - top) * (right - left)  # padding counts, but not what lies beyond it
            seen = x[:, :, max(top, 0) : min(bottom, h), max(left, 0) : min(right, w)]
            y[:, :, i, j] = seen.sum((2, 3)) / members if p.get("pool") == "AVE" else seen.max((2, 3))
    return y


def lrn(x: np.ndarray, p: Mapping[str, Any]) -> np.ndarray:
    n, alpha, beta, k = p.get("local_size", 5), p.get("alpha", 1.0), p.get("beta", 0.75), p.get("k", 1.0)
    y = np.zeros_like(x)
    if p.get("norm_region") == "WITHIN_CHANNEL":
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                seen = x[:, :, max(0, i - n // 2) : i + n // 2 + 1, max(0, j - n // 2) : j + n // 2 + 1]
                y[:, :, i, j] = x[:, :, i, j] / (1 + alpha * (seen**2).sum((2, 3)) / n**2) ** beta
        return y
    for c in range(x.shape[1]):
        total = (x[:, max(0, c - n // 2) : c + n // 2 + 1] ** 2).sum(1)
        y[:, c] = x[:, c] / (k + alpha / n * total) ** beta
    return y


def _batch_norm(x: np.ndarray, p: Mapping[str, Any], blobs: Sequence[np.ndarray]) -> np.ndarray:
    factor = 0 if blobs[2][0] == 0 else 1 / blobs[2][0]
    mean, variance = (_channels(b, x) * factor for b in blobs[:2])
    return (x - mean) / np.sqrt(variance + p.get("eps", 1e-5))


def _scale(xs: list[np.ndarray], p: Mapping[str, Any], blobs: Sequence[np.ndarray]) -> np.ndarray:
    x, axis = xs[0], p.get("axis", 1)
    factors = [xs[1]] if len(xs) == 2 else list(blobs)
    wide = [f.reshape((1,) * axis + f.shape + (1,) * (x.ndim - axis - f.ndim)) for f in factors]
    return x * wide[0] + (wide[1] if len(wide) > 1 else 0)


def _inner_product(x: np.ndarray, p: Mapping[str, Any], weight: np.ndarray, *bias: np.ndarray) -> np.ndarray:
    flat = x.reshape(*x.shape[: p.get("axis", 1)], -1)
    return flat @ (weight if p.get("transpose") else weight.T) + sum(bias)


def _eltwise(xs: list[np.ndarray], p: Mapping[str, Any]) -> np.ndarray:
    stack = np.stack(xs)
    if p.get("operation", "SUM") == "SUM":
        return np.tensordot(np.array(p.get("coeff", [1] * len(xs)), float), stack, 1)
    return stack.prod(0) if p["operation"] == "PROD" else stack.max(0)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _reshape(x: np.ndarray, p: Mapping[str, Any]) -> np.ndarray:
    return x.reshape(len(x), *[x.shape[k] if d == 0 else d for k, d in enumerate(p["shape"]["dim"])][1:])


def _channels(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    return values.reshape((1, -1) + (1,) * (like.ndim - 2))


# Inputs, parameters and arrays to the output, or to a list of several.
COMPUTE: dict[str, Callable[[list[np.ndarray], Mapping[str, Any], list[np.ndarray]], Any]] = {
    "AbsVal": lambda xs, p, b: np.abs(xs[0]),
    "BatchNorm": lambda xs, p, b: _batch_norm(xs[0], p, b),
    "Concat": lambda xs, p, b: np.concatenate(xs, p.get("axis", p.get("concat_dim", 1))),
    "Convolution": lambda xs, p, b: convolution(xs[0], p, b[0], b[1] if len(b) > 1 else None),
    "Dropout": lambda xs, p, b: xs[0],
    "ELU": lambda xs, p, b: np.where(xs[0] > 0, xs[0], p.get("alpha", 1) * (np.exp(xs[0]) - 1)),
    "Eltwise": lambda xs, p, b: _eltwise(xs, p),
    "Flatten": lambda xs, p, b: xs[0].reshape(len(xs[0]), -1),
    "InnerProduct": lambda xs, p, b: _inner_product(xs[0], p, *b),
    "LRN": lambda xs, p, b: lrn(xs[0], p),
    "PReLU": lambda xs, p, b: np.where(xs[0] > 0, xs[0], xs[0] * _channels(b[0], xs[0])),
    "Pooling": lambda xs, p, b: pooling(xs[0], p),
    "Power": lambda xs, p, b: (p.get("shift", 0) + p.get("scale", 1) * xs[0]) ** p.get("power", 1),
    "ReLU": lambda xs, p, b: np.where(xs[0] > 0, xs[0], p.get("negative_slope", 0) * xs[0]),
    "Reshape": lambda xs, p, b: _reshape(xs[0], p),
    "Scale": _scale,
    "Sigmoid": lambda xs, p, b: 1 / (1 + np.exp(-xs[0])),
    "Slice": lambda xs, p, b: np.split(xs[0], p["slice_point"], axis=p.get("axis", 1)),
    "Softmax": lambda xs, p, b: _softmax(xs[0]),
    "Split": lambda xs, p, b: [xs[0], xs[0]],
    "TanH": lambda xs, p, b: np.tanh(xs[0]),
}


def forward(layers: Sequence[Layer], x: np.ndarray) -> dict[str, np.ndarray]:
    """Every blob; those written in place as they are in the end."""
    blobs = {"data": x.astype(float)}
    for layer in layers:
        p: Mapping[str, Any] = next((v for k, v in layer.param.items() if k.endswith("_param")), {})
        made = COMPUTE[layer.type]([blobs[b] for b in layer.bottoms], p, [b.astype(float) for b in layer.blobs])
        blobs.update(zip(layer.tops, made if isinstance(made, list) else [made], strict=True))
    return blobs
