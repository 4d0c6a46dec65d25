"""Random small networks, each as a torch module and as a reference `Graph` with the same weights.

`build(seed)` gives both; `reference_relevances(seed, ...)` gives what the package has to reproduce. The seed chooses
the family (`family(seed)`), the domain of the input and everything inside. Names of the graph's nodes are paths of
submodules, so that the relevance of a block boundary can be asked for by its module path.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn

import deeptaylor as dt
from network_builder import ACTIVATIONS, Builder, Network
from network_modules import (
    Add,
    Divide,
    Heads,
    MatMul,
    Mean,
    MergeHeads,
    Mul,
    OnePlusSquare,
    Part,
    PrependToken,
    ScaledDotProduct,
    Scores,
    Shift,
    Square,
    Subtract,
    Token,
)
from reference import Array, Bias, Domain, MaxPool, Relevances


def plain(b: Builder, k: int) -> None:
    """Convolutions, norms, rectifiers and every pooling."""
    h = b.normalise("normalise") if b.maybe(0.3) else "input"
    for n in range(b.choose.choice([2, 3])):
        h = b.any_conv(f"layer{n}.conv", h, b.choose.choice([4, 6]))
        if b.maybe(0.25):
            h = b.group_norm(f"layer{n}.norm", h)
        if b.maybe(0.2) and b.shape(h)[-1] > 2:
            h = b.max_pool(f"layer{n}.early", h)
        h = b.rectifier(f"layer{n}.relu", h)
        if b.shape(h)[-1] > 2:
            h = b.pool(f"layer{n}.pool", h)
    b.head(h)


def residual(b: Builder, k: int) -> None:
    """ResNet blocks, with and without a rectifier after the sum."""
    h = b.stem(4)
    for n in range(b.choose.choice([1, 2])):
        c = b.shape(h)[0]
        f = b.conv(f"block{n}.conv1", h, c)
        f = b.batch_norm(f"block{n}.bn1", f)
        f = b.rectifier(f"block{n}.relu1", f)
        f = b.conv(f"block{n}.conv2", f, c, bias=b.maybe())
        if b.maybe(0.8):
            f = b.batch_norm(f"block{n}.bn2", f)
        skip = h
        if b.maybe(0.4):
            skip = b.conv(f"block{n}.down", h, c, 1, 0)
            if b.maybe():
                skip = b.batch_norm(f"block{n}.down_bn", skip)
        join = Subtract() if b.maybe(0.2) else Add()
        h = b.affine(f"block{n}.add", join, f, skip, kind="sum")
        if b.maybe(0.7):
            h = b.rectifier(f"block{n}.relu2", h)
    b.head(h)


def branches(b: Builder, k: int) -> None:
    """Several branches read one tensor, the input itself in some, and meet in a sum or a concatenation."""
    h = "input" if b.maybe() else b.stem(4)
    if h == "input" and b.maybe(0.3):
        h = b.normalise("normalise")
    for n in range(b.choose.choice([1, 2])):
        outs = []
        for m in range(b.choose.choice([2, 3])):
            name = f"mix{n}.branch{m}"
            kind = b.choose.choice(["conv", "conv_bn", "conv_relu", "pool_conv", "identity"])
            if kind == "identity" and b.shape(h)[0] == 3:
                outs.append(h)
                continue
            if kind == "pool_conv":
                o = b.affine(f"{name}.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
                o = b.conv(f"{name}.conv", o, 3, 1, 0)
            else:
                o = b.conv(f"{name}.conv", h, 3, *b.choose.choice([(1, 0), (3, 1)]))
            if kind == "conv_bn":
                o = b.batch_norm(f"{name}.bn", o)
            if kind == "conv_relu":
                o = b.rectifier(f"{name}.relu", o)
            outs.append(o)
        if b.maybe():
            h = b.concat(f"mix{n}.concat", *outs)
        else:
            h = outs[0]
            for m, o in enumerate(outs[1:]):
                h = b.add(f"mix{n}.add{m}", h, o)
        if b.maybe(0.3):
            h = b.batch_norm(f"mix{n}.bn", h)
        if b.maybe(0.7):
            h = b.rectifier(f"mix{n}.relu", h)
    b.head(h)


def dense(b: Builder, k: int) -> None:
    """DenseNet: BN, ReLU, convolution on a concatenation of all that came before."""
    features = [b.stem(3)]
    chained = b.maybe()
    for n in range(b.choose.choice([2, 3])):
        name = f"dense{n}"
        h = features[0] if len(features) == 1 else b.concat(f"{name}.concat", *features)
        if chained:
            features = [h]
        h = b.batch_norm(f"{name}.bn", h)
        h = b.rectifier(f"{name}.relu", h)
        h = b.conv(f"{name}.conv", h, 2, bias=b.maybe())
        features.append(h)
    h = b.concat("final.concat", *features)
    h = b.batch_norm("final.bn", h)
    h = b.rectifier("final.relu", h)
    if b.maybe() and b.shape(h)[-1] > 2:
        h = b.conv("transition.conv", h, 4, 1, 0)
        h = b.affine("transition.pool", nn.AvgPool2d(2), h, kind="average")
    b.head(h)


def squeeze_excite(b: Builder, k: int) -> None:
    """Channel gates after a rectifier, another activation, or BatchNorm alone; perhaps in a residual branch."""
    h = b.stem(4)
    for n in range(b.choose.choice([1, 2])):
        skip, c = h, b.shape(h)[0]
        h = b.conv(f"block{n}.conv", h, c)
        h = b.batch_norm(f"block{n}.bn", h)
        act = b.choose.choice(["none", "relu", "silu", "hardswish"])
        if act != "none":
            h = b.activation(f"block{n}.act", act, h)
        h = b.squeeze_excite(f"block{n}.se", h)
        if b.maybe():
            h = b.conv(f"block{n}.project", h, c, 1, 0)
        if b.maybe():
            h = b.add(f"block{n}.add", skip, h)
        if b.maybe(0.4):
            h = b.rectifier(f"block{n}.relu", h)
    b.head(h)


def bottleneck(b: Builder, k: int) -> None:
    """Inverted residuals: expand, depthwise, project without an activation, add."""
    h = b.stem(3)
    for n in range(b.choose.choice([2, 3])):
        name, skip, c = f"block{n}", h, b.shape(h)[0]
        act = b.choose.choice(["relu6", "relu6", "hardswish"])
        h = b.conv(f"{name}.expand", h, 2 * c, 1, 0, bias=False)
        h = b.batch_norm(f"{name}.expand_bn", h)
        h = b.activation(f"{name}.expand_act", act, h)
        h = b.conv(f"{name}.depthwise", h, 2 * c, 3, 1, groups=2 * c, bias=False)
        h = b.batch_norm(f"{name}.depthwise_bn", h)
        h = b.activation(f"{name}.depthwise_act", act, h)
        if b.maybe(0.2):
            h = b.squeeze_excite(f"{name}.se", h)
        h = b.conv(f"{name}.project", h, c, 1, 0, bias=b.maybe())
        if b.maybe(0.8):
            h = b.batch_norm(f"{name}.project_bn", h)
        if b.maybe():
            h = b.add(f"{name}.add", skip, h)
    b.head(h)


def batch_norm(b: Builder, k: int) -> None:
    """BatchNorm before and after, padded and unpadded, alone, read twice, between two convolutions, by an average."""
    h = "input"
    if b.maybe(0.3) and b.domain.kind != "box":
        h = b.batch_norm("first_bn", h)
    h = b.any_conv("first.conv", h, 4)
    h = b.rectifier("first.relu", h)
    place = b.choose.choice(["padded", "unpadded", "between", "average", "twice", "pooled", "deep"])
    if place == "pooled":
        h = b.affine("mid.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
    if place in ("between", "deep"):
        h = b.conv("mid.before", h, 4)
    h = b.batch_norm("mid.bn", h)
    if place == "deep":
        h = b.batch_norm("mid.bn2", h)
    if place == "average":
        h = b.affine("mid.pool", nn.AvgPool2d(3, 1, 1), h, kind="average")
    elif place == "twice":
        o = b.conv("mid.conv", h, b.shape(h)[0])
        h = b.add("mid.add", h, o)
    else:
        h = b.conv("mid.conv", h, 4, *((1, 0) if place == "unpadded" else (3, 1)))
    h = b.batch_norm("last.bn", h)
    h = b.rectifier("last.relu", h)
    if b.maybe():
        h = b.max_pool("last.pool", h) if b.shape(h)[-1] > 2 else h
    b.head(h)


def layer_norm(b: Builder, k: int) -> None:
    """LayerNorm read by one linear layer, by two, by a gate and a signal, or by something else."""
    h = "input"
    if b.maybe(0.8):
        h = b.linear("embed", h, 8)
    for n in range(b.choose.choice([1, 2])):
        name, skip = f"block{n}", h
        d = b.shape(h)[-1]
        h = b.layer_norm(f"{name}.norm", h)
        reader = b.choose.choice(["one", "two", "gated", "relu"])
        if reader == "one":
            h = b.linear(f"{name}.fc1", h, 10)
        elif reader == "relu":
            h = b.rectifier(f"{name}.relu", h)
            h = b.linear(f"{name}.fc1", h, 10)
        else:
            left, right = b.linear(f"{name}.left", h, 10), b.linear(f"{name}.right", h, 10)
            if reader == "two":
                h = b.add(f"{name}.join", left, right)
            else:
                g = b.activation(f"{name}.open", b.choose.choice(["sigmoid", "silu", "gelu"]), right)
                h = b.gate(f"{name}.mul", Mul(), left, g, swapped=b.maybe())
        h = b.activation(f"{name}.act", b.choose.choice(["gelu", "relu", "silu", "tanh"]), h)
        h = b.linear(f"{name}.fc2", h, d)
        if b.maybe(0.7):
            h = b.add(f"{name}.add", skip, h)
    if b.maybe(0.3):
        h = b.layer_norm("final_norm", h)
    if len(b.shape(h)) == 2:
        h = b.affine("tokens", Mean(1), h, kind="average")
    b.head(h)


def attention(b: Builder, k: int) -> None:
    """Pre-norm transformer blocks: softmax(QKᵀ)V written out or fused, one head or two, with a class token or not."""
    h = b.linear("embed", "input", 6)
    token = b.maybe(0.4)
    if token:
        h = b.affine("token", PrependToken(b.normal(1, 1, 6)), h, kind="structural")
    if b.maybe():
        h = b.affine("position", Shift(0.3 * b.normal(1, *b.shape(h))), h, kind="diagonal")
    for n in range(b.choose.choice([1, 1, 2])):
        name, skip = f"block{n}", h
        h = b.layer_norm(f"{name}.norm1", h) if b.maybe(0.8) else h
        if b.maybe(0.3):
            qkv = b.linear(f"{name}.attn.qkv", h, 18)
            q, k_, v = (b.affine(f"{name}.attn.{p}", Part(m, 3), qkv, kind="structural") for m, p in enumerate("qkv"))
        else:
            q, k_, v = (b.linear(f"{name}.attn.{p}", h, 6, bias=b.maybe(0.8)) for p in "qkv")
        heads = b.maybe(0.3)
        if heads:
            q, k_, v = (b.affine(t + "_heads", Heads(2), t, kind="structural") for t in (q, k_, v))
        if b.maybe():
            s = b.function(f"{name}.attn.scores", Scores(), q, k_)
            a = b.function(f"{name}.attn.softmax", nn.Softmax(dim=-1), s)
            h = b.module(f"{name}.attn.mix", MatMul(), a, v)
            b.graph.affine(h, lambda v, a: a @ v, v, kind="average", gates=(a,))
        else:
            h = b.module(f"{name}.attn.mix", ScaledDotProduct(), q, k_, v)
            b.graph.function(f"{h}/weights", lambda q, k: Scores()(q, k).softmax(dim=-1), q, k_)
            b.graph.affine(h, lambda v, a: a @ v, v, kind="average", gates=(f"{h}/weights",))
        if heads:
            h = b.affine(f"{name}.attn.merge", MergeHeads(), h, kind="structural")
        h = b.linear(f"{name}.attn.proj", h, 6)
        h = b.add(f"{name}.add1", skip, h)
        if b.maybe(0.7):
            skip = h
            h = b.layer_norm(f"{name}.norm2", h)
            h = b.linear(f"{name}.fc1", h, 8)
            h = b.activation(f"{name}.act", b.choose.choice(["gelu", "relu"]), h)
            h = b.linear(f"{name}.fc2", h, 6)
            h = b.add(f"{name}.add2", skip, h)
    if token:
        h = b.affine("first", Token(), h, kind="structural")
        h = b.layer_norm("final_norm", h) if b.maybe() else h
    else:
        h = b.layer_norm("final_norm", h) if b.maybe() else h
        h = b.affine("tokens", Mean(1), h, kind="average")
    b.head(h)


def unet(b: Builder, k: int) -> None:
    """Down, up again by interpolation or transposed convolution, with skips concatenated."""
    h = b.conv("enc1.conv", "input", 3)
    skip = h = b.rectifier("enc1.relu", h)
    down = b.choose.choice(["max", "average", "strided"])
    if down == "max":
        window = (2, 2, 0, 1)
        b.module("down", nn.MaxPool2d(*window), h)
        h = b.graph.max_pool("down", h, *window)
    elif down == "average":
        h = b.affine("down", nn.AvgPool2d(2), h, kind="average")
    else:
        h = b.conv("down", h, 3, 2, 0, stride=2)
    h = b.conv("enc2.conv", h, 4)
    if b.maybe():
        h = b.batch_norm("enc2.bn", h)
    if b.maybe(0.8):
        h = b.rectifier("enc2.relu", h)
    up = b.choose.choice(["nearest", "bilinear", "aligned", "transposed", "overlapping"])
    if up == "transposed":
        h = b.affine("up", nn.ConvTranspose2d(4, 3, 2, 2), h, kind="convolution")
    elif up == "overlapping":
        h = b.affine("up", nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, groups=2), h, kind="convolution")
    elif up == "nearest":
        h = b.affine("up", nn.Upsample(scale_factor=2, mode="nearest"), h, kind="average")
    else:
        resize = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=up == "aligned")
        h = b.affine("up", resize, h, kind="average")
    h = b.concat("skip", skip, h)
    h = b.conv("dec.conv", h, 3)
    if b.maybe():
        h = b.batch_norm("dec.bn", h)
    h = b.rectifier("dec.relu", h)
    b.head(h)


def activations(b: Builder, k: int) -> None:
    """Every activation in turn, three a network."""
    h, names = "input", list(ACTIVATIONS)
    image = len(b.shape(h)) == 3
    for n in range(3):
        h = b.any_conv(f"layer{n}.conv", h, 4) if image else b.linear(f"layer{n}.fc", h, 8)
        h = b.activation(f"layer{n}.act", names[(3 * k + n) % len(names)], h)
    b.head(h)


def gates(b: Builder, k: int) -> None:
    """Products and quotients of data, one for each way of telling the gate."""
    h = b.stem(4)
    c = b.shape(h)[0]
    kind = ["bounded", "computed", "nonlinear", "self", "quotient", "swish"][k % 6]
    if kind == "bounded":
        a, g = b.conv("left", h, c), b.conv("right", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "sigmoid", g), swapped=b.maybe())
    elif kind == "computed":
        a = b.conv("left", h, c) if b.maybe() else h
        g = b.activation("open", "tanh", b.conv("right", a, c))
        h = b.gate("mul", Mul(), a, g, swapped=b.maybe())
    elif kind == "nonlinear":
        a, g = b.conv("left", h, c), b.conv("right", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "silu", g), swapped=b.maybe())
    elif kind == "self":
        h = b.gate("mul", Square(), b.conv("left", h, c))
    elif kind == "quotient":
        a = b.conv("left", h, c)
        g = b.function("denominator", OnePlusSquare(), a if b.maybe() else b.conv("right", h, c))
        h = b.gate("mul", Divide(), a, g)
    else:
        a = b.conv("left", h, c)
        h = b.gate("mul", Mul(), a, b.activation("open", "sigmoid", a), swapped=b.maybe())
    if b.maybe():
        h = b.conv("after.conv", h, 4)
        h = b.rectifier("after.relu", h)
    b.head(h)


FAMILIES: dict[str, Callable[[Builder, int], None]] = {
    "plain": plain,
    "residual": residual,
    "branches": branches,
    "dense": dense,
    "squeeze_excite": squeeze_excite,
    "bottleneck": bottleneck,
    "batch_norm": batch_norm,
    "layer_norm": layer_norm,
    "attention": attention,
    "unet": unet,
    "activations": activations,
    "gates": gates,
}


def package_domain(domain: Domain) -> dt.Domain:
    """Return the package's domain for one of the reference."""
    if domain.kind == "box":
        return dt.Box(torch.as_tensor(domain.low), torch.as_tensor(domain.high))
    return dt.NonNegative() if domain.kind == "nonnegative" else dt.Real()


def family(seed: int) -> str:
    """The name of the family a seed belongs to."""
    return list(FAMILIES)[seed % len(FAMILIES)]


def build(seed: int, averaged: bool = False) -> Network:
    """The network of a seed: a float64 module in eval mode, a batch of two, the domain, the graph.

    `averaged`: its classes read an average, wherever there is something to average over.
    """
    name, k = family(seed), seed // len(FAMILIES)
    choose = random.Random(-1 - seed)
    if name == "attention":
        shape = [choose.choice([3, 4]), 5]
    elif name == "layer_norm":
        shape = choose.choice([[8], [4, 6]])
    elif name == "activations" and choose.random() < 0.4:
        shape = [8]
    elif name == "unet":
        shape = [2, 6, 6]
    else:
        shape = [choose.choice([2, 3]), *[choose.choice([5, 6])] * 2]
    with torch.random.fork_rng(devices=[]):
        # `k // 6` so that a family that takes turns by k meets every domain.
        builder = Builder(seed, shape, ["real", "nonnegative", "box"][(k + k // 6) % 3], averaged)
        FAMILIES[name](builder, k)
        return builder.finish()


_build = lru_cache(maxsize=None)(build)


def explain(
    seed: int, target: int | Sequence[int] | Array | None, bias: Bias = "neuron", max_pool: MaxPool = "proportional",
    averaged: bool = False,
) -> Relevances:  # fmt: skip
    """The reference's decomposition of the seed's example."""
    network = _build(seed, averaged)
    return network.graph.explain(network.example, target, bias, max_pool)


def reference_relevances(
    seed: int,
    target: int | Sequence[int] | Array | None = None,
    bias: Bias = "neuron",
    max_pool: MaxPool = "proportional",
    averaged: bool = False,
) -> dict[str, Array]:
    """Relevance (B, ...) by module path at every block boundary, with `input`, and `bias`, `dropped`, `score` (B,)."""
    result = explain(seed, target, bias, max_pool, averaged)
    # A name with a slash has no module behind it (LayerNorm's u = x/σ).
    named = {name: R for name, R in result.at.items() if "/" not in name}
    return {**named, "bias": result.bias, "dropped": result.dropped, "score": result.score}
