"""The networks of the text study in plain torch, with the parameter names of `transformers`: weights of either fit.

Sentiment   BERT's encoder (MiniLM: six layers), the mean over the tokens that the mask keeps, a linear head
Llama       a language model of Llama's shape (SmolLM2): the logits of the next token after the last one
tests/test_text_study.py holds both against `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FAR = -1e4  # added to the attention of a token that is left out: its weight is zero in float32


def hidden(mask: Tensor) -> Tensor:
    """What is added to the attention that tokens with a mask of 0 get from all others; every token reads itself."""
    others = 1 - torch.eye(mask.shape[1], dtype=mask.dtype, device=mask.device)
    return (1 - mask)[:, None, None, :] * (FAR * others)


DROPPED = 0.1  # while training


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder; those of MiniLM."""

    vocabulary: int = 30522
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1536
    positions: int = 512


BERT_BASE = Shape(width=768, layers=12, inner=3072)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, tokens, heads · d) as (B, heads, tokens, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """A LayerNorm of x. Rules of rivals take its place, and that of the four functions below."""
    found: Tensor = norm(x)
    return found


def activated(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A pointwise function of x."""
    return function(x)


def scaled(x: Tensor, eps: float) -> Tensor:
    """x divided by its root mean square."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def gated(gate: Tensor, x: Tensor) -> Tensor:
    """A SiLU of the gate, times x."""
    return activated(F.silu, gate) * x


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Softmax attention, written out: (B, heads, tokens, d) as (B, tokens, heads · d)."""
    weights = (q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


class _Embeddings(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(shape.vocabulary, shape.width)
        self.position_embeddings = nn.Embedding(shape.positions, shape.width)
        self.token_type_embeddings = nn.Embedding(2, shape.width)
        self.LayerNorm = nn.LayerNorm(shape.width, eps=1e-12)

    def forward(self, words: Tensor) -> Tensor:
        places = self.position_embeddings.weight[: words.shape[1]]
        found = normed(self.LayerNorm, words + places + self.token_type_embeddings.weight[0])
        return F.dropout(found, DROPPED, self.training)


class _SelfAttention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query, self.key, self.value = (nn.Linear(shape.width, shape.width) for _ in range(3))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (_split(linear(x), self.heads) for linear in (self.query, self.key, self.value))
        return attention(q, k, v, bias)


class _Output(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inputs, width), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return normed(self.LayerNorm, F.dropout(self.dense(x), DROPPED, self.training) + skipped)


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": _SelfAttention(shape), "output": _Output(shape.width, shape.width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(shape.width, shape.inner)})
        self.output = _Output(shape.inner, shape.width)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, bias), x)
        found: Tensor = self.output(activated(F.gelu, self.intermediate["dense"](x)), x)
        return found


class Encoder(nn.Module):
    """BERT without its pooler: tokens (B, T), or their vectors (B, T, width), and a mask (B, T) of ones and zeros."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings = _Embeddings(shape)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(shape) for _ in range(shape.layers))})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        words = x if x.is_floating_point() else self.embeddings.word_embeddings(x)
        x = self.embeddings(words)
        bias = hidden(mask.to(x.dtype))
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


class Sentiment(nn.Module):
    """Two logits, negative and positive, of a review: the head reads the mean over the tokens that the mask keeps."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        shape = shape or Shape()
        self.bert = Encoder(shape)
        self.head = nn.Linear(shape.width, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        m = mask.unsqueeze(-1).to(self.head.weight.dtype)
        mean = (self.bert(x, mask) * m).sum(1) / m.sum(1)
        found: Tensor = self.head(mean)
        return found


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a Llama; those of SmolLM2-135M."""

    vocabulary: int = 49152
    width: int = 576
    layers: int = 30
    heads: int = 9
    shared: int = 3  # heads of keys and values
    inner: int = 1536
    theta: float = 100000.0
    eps: float = 1e-5


LLAMA_8B = LlamaShape(128256, 4096, 32, 32, 8, 14336, 500000.0)


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.weight * scaled(x, self.eps)
        return found


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: the two halves of every head are turned against each other."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class _LlamaAttention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape, d = shape, shape.width // shape.heads
        self.q_proj, self.o_proj = (nn.Linear(shape.width, shape.width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(shape.width, shape.shared * d, bias=False) for _ in range(2))

    def forward(self, x: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads, shared = self.shape.heads, self.shape.shared
        q = _turned(_split(self.q_proj(x), heads), cos, sin)
        k = _turned(_split(self.k_proj(x), shared), cos, sin).repeat_interleave(heads // shared, 1)
        v = _split(self.v_proj(x), shared).repeat_interleave(heads // shared, 1)
        found: Tensor = self.o_proj(attention(q, k, v, bias))
        return found


class _LlamaLayer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = _LlamaAttention(shape)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(shape.width, shape.inner, bias=False),
                "up_proj": nn.Linear(shape.width, shape.inner, bias=False),
                "down_proj": nn.Linear(shape.inner, shape.width, bias=False),
            }
        )
        self.input_layernorm = _Norm(shape.width, shape.eps)
        self.post_attention_layernorm = _Norm(shape.width, shape.eps)

    def forward(self, x: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), bias, cos, sin)
        y = self.post_attention_layernorm(x)
        found: Tensor = x + self.mlp["down_proj"](gated(self.mlp["gate_proj"](y), self.mlp["up_proj"](y)))
        return found


class Llama(nn.Module):
    """Logits (B, vocabulary) of the token after the last; a mask (B, T) of zeros takes tokens out of the attention."""

    def __init__(self, shape: LlamaShape | None = None) -> None:
        super().__init__()
        shape = shape or LlamaShape()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(_LlamaLayer(shape) for _ in range(shape.layers))
        self.norm = _Norm(shape.width, shape.eps)

    def rotary(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every place."""
        d = self.shape.width // self.shape.heads
        speed = self.shape.theta ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
        turn = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)[:, None] * speed
        turn = torch.cat([turn, turn], -1)
        return turn.cos().to(x.dtype), turn.sin().to(x.dtype)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x if x.is_floating_point() else self.embed_tokens(x)
        cos, sin = self.rotary(x)
        later = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=x.dtype).triu(1) * FAR
        bias = later + hidden(mask.to(x.dtype))
        for layer in self.layers:
            x = layer(x, bias, cos, sin)
        return F.linear(self.norm(x[:, -1]), self.embed_tokens.weight)
