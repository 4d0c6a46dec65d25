"""The paper's maps computed a second time in NumPy alone, slowly: from files of weights to pixels, matrix by matrix.

min-max     the plainly trained relevance model, from its saved weights (section IV-A)
Taylor      nearest roots of the one-layer network, by the optimality conditions solved as equations (section II-A)
figure 10   the paper's rule on an inception network of Caffe (section IV-D)
figure S4   LRP with α = 2, β = 1 on the same network (supplement, section IV)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeptaylor as dt
from caffe_reference import COMPUTE, Layer, Name, caffemodel, convolution, forward, prototxt
from deeptaylor.models.caffe import read_caffe
from deeptaylor.models.networks.paper_networks import BOX, WEIGHTS
from deeptaylor.paper.mnist_arrays import METHODS, load_networks

pytest.importorskip("safetensors")

Array = np.ndarray[Any, Any]
LOW, HIGH = -0.5, 1.5
COUNT = 10


def divide(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    found: Array = np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape), where=b != 0)
    return found


# --- digits -----------------------------------------------------------------------------------------------------------


def read_weights(name: str) -> dict[str, Array]:
    """Tensors of a safetensors file: a length, a header in JSON, then the numbers."""
    data = (WEIGHTS / f"{name}.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    found = {}
    for key, of in header.items():
        if key != "__metadata__":
            assert of["dtype"] == "F32"
            start, end = of["data_offsets"]
            found[key] = np.frombuffer(body[start:end], "<f4").reshape(of["shape"]).astype(float)
    return found


@pytest.fixture(scope="module")
def pairs() -> Array:
    """Pictures that both networks take for a zero beside a stroke: rings of ten sizes, left or right."""
    rows, columns = np.mgrid[:28, :28]
    pictures = np.full((COUNT, 28, 56), LOW)
    for n in range(COUNT):
        radius = np.hypot((rows - 13.5) / (1.1 + 0.03 * n), columns - 13.5)
        ring = np.exp(-0.5 * ((radius - 6.5 - 0.1 * n) / 1.2) ** 2)
        stroke = np.exp(-0.5 * ((columns - 14 + 0.3 * (rows - 14)) / 1.5) ** 2) * (abs(rows - 14) < 9)
        halves = (ring, stroke) if n % 2 else (stroke, ring)
        pictures[n] += 2 * np.concatenate(halves, axis=1)
    return pictures.reshape(COUNT, -1)


def tensor(x: Array) -> torch.Tensor:
    return torch.from_numpy(x).reshape(-1, 1, 28, 56)


def test_the_min_max_model_of_plain_training(pairs: Array) -> None:
    network, model = read_weights("two-layer"), read_weights("min-max")
    x_j = np.maximum(pairs @ network["detection1.weight"].T + network["detection1.bias"], 0)
    x_k = x_j.reshape(COUNT, 100, 4).sum(2)
    R_l = np.maximum(x_k @ network["detection2.weight"].T + network["detection2.bias"], 0)  # R_l = x_l
    a_j = np.minimum(0, np.einsum("nl,lgu->ngu", R_l, model["v_lj"]) + model["d_j"])
    y_j = np.maximum(0, np.einsum("ni,igu->ngu", pairs, model["v_ij"]) + a_j)
    maps = np.zeros_like(pairs)
    for group in range(100):
        for unit in range(4):
            v = model["v_ij"][:, group, unit]
            q = pairs * v - LOW * np.maximum(v, 0) - HIGH * np.minimum(v, 0)
            maps += q / q.sum(1, keepdims=True) * y_j[:, group, unit, None]
    case = load_networks()["two-layer"]
    method = next(m for m in METHODS["two-layer"] if m.key == "min-max")
    found = method.prepare(case)(tensor(pairs), lambda done, of: None)
    assert R_l.sum(1).min() > 1
    largest = maps.max()
    np.testing.assert_allclose(found["predicted"].numpy(), y_j.sum(2), rtol=0, atol=1e-12 * y_j.max())
    np.testing.assert_allclose(found["maps"].flatten(1).numpy(), maps, rtol=0, atol=1e-12 * largest)
    guided = case.models["min-max-guided"]
    other = np.einsum("ni,igu->ngu", pairs, guided.v_ij.detach().numpy())
    assert abs(other - np.einsum("ni,igu->ngu", pairs, model["v_ij"])).max() > 0.1  # it is not the other model


def project(x: Array, G: Array, e: Array, start: Array) -> tuple[Array, Array]:
    """The point of the box nearest to x with G ξ ≤ e, and its multipliers, by accelerated steps on the dual problem."""
    rate = 1 / np.linalg.eigvalsh(G @ G.T)[-1]
    multipliers = ahead = start
    t = 1.0
    for _ in range(5000):
        new = np.maximum(ahead + rate * (G @ np.clip(x - ahead @ G, LOW, HIGH) - e), 0)
        step, t, before = new - multipliers, (1 + np.sqrt(1 + 4 * t * t)) / 2, t
        ahead = new + (before - 1) / t * step
        if (new - ahead) @ step > 0:
            ahead, t = new, 1.0
        multipliers = new
        if abs(step).max() <= 1e-9 * max(new.max(), 1e-12):
            break
    return np.clip(x - multipliers @ G, LOW, HIGH), multipliers


def solve_root(x: Array, W: Array, b: Array, goal: float) -> tuple[Array, Array]:
    """The nearest root in the box of f(ξ) = Σ_j max(0, w_j ξ + b_j) = goal, and the mixture of gradients at it.

    Where it is, x − ξ = λ g on pixels inside the box, g = Σ_j s_j w_j with s_j = 1 for units that fire, 0 for those
    that do not and between for units at their kink. First roughly, by tangents of f, which lie below it as f is convex:
    x is projected onto where all of them are at most the goal. Then exactly, by the equations of the sets of units and
    pixels that this gives.
    """
    xi, multipliers = x, np.zeros(0)
    fired, G, e = np.zeros((0, len(W)), dtype=bool), np.zeros((0, len(x))), np.zeros(0)
    for _ in range(150):
        z = W @ xi + b
        if np.maximum(z, 0).sum() < goal * (1 + 1e-7):
            break
        fired = np.vstack([fired, z > 0])
        G, e = np.vstack([G, W[z > 0].sum(0)]), np.append(e, goal - b[z > 0].sum())
        xi, multipliers = project(x, G, e, np.append(multipliers, 0.0))
    s = multipliers @ fired / multipliers.sum()
    kinks, fires = (s > 1e-3) & (s < 1 - 1e-3), s >= 1 - 1e-3
    for _ in range(30):
        # Unknown: u = λ s of the kinks, and λ. z is 0 at each kink, and f is what is asked.
        free = (xi > LOW) & (xi < HIGH)
        A = np.vstack([W[kinks], W[fires].sum(0)])
        edge = np.append(-b[kinks], goal - b[fires].sum())
        right = A[:, free] @ x[free] + A[:, ~free] @ xi[~free] - edge
        unknown = np.linalg.solve(A[:, free] @ A[:, free].T, right)
        new = np.clip(x - unknown @ A, LOW, HIGH)
        s = fires.astype(float)
        s[kinks] = unknown[:-1] / unknown[-1]
        z = W @ new + b
        over, under = kinks & (s > 1), kinks & (s < 0)
        crossed = ~kinks & ((z > 1e-9) != fires)
        if abs(new - xi).max() < 1e-13 and not (over | under | crossed).any():
            return new, s @ W
        xi, fires, kinks = new, (fires | over) & ~crossed, (kinks & ~over & ~under) | crossed
    raise AssertionError("the sets of units and pixels did not settle")


def test_taylor_at_the_nearest_root_of_ten_pairs(pairs: Array) -> None:
    weights = read_weights("one-layer")
    W, b = weights["detection.weight"], weights["detection.bias"]
    network = load_networks()["one-layer"].network
    x = tensor(pairs)
    root = dt.nearest_root(network, x, domain=BOX, level=0.1)
    maps = dt.taylor(network, x, root=root).relevance.flatten(1).numpy()
    kinks = 0
    for n, picture in enumerate(pairs):
        f = np.maximum(W @ picture + b, 0).sum()
        assert f > 1
        xi, gradient = solve_root(picture, W, b, 0.1 * f)
        R = gradient * (picture - xi)
        kinks += int((abs(W @ xi + b) < 1e-10).sum())
        assert np.maximum(W @ xi + b, 0).sum() == pytest.approx(0.1 * f, rel=1e-10)
        free = (xi > LOW) & (xi < HIGH)
        step = (picture - xi)[free] @ gradient[free] / (gradient[free] @ gradient[free])
        np.testing.assert_allclose((picture - xi)[free], step * gradient[free], atol=1e-10)  # x − ξ = λ g
        assert R.min() > -1e-10
        assert float(root.distance[n]) == pytest.approx(np.linalg.norm(picture - xi), rel=1e-7)
        np.testing.assert_allclose(maps[n], R, rtol=0, atol=1e-5 * R.max())
    assert kinks >= COUNT  # the nearest roots lie on kinks


# --- an inception network of Caffe ------------------------------------------------------------------------------------

SIDE = 21
MEAN = (104.0, 117.0, 123.0)
RNG = np.random.default_rng(5)


def conv(name: str, bottom: str, inputs: int, outputs: int, kernel: int, **more: int) -> list[Layer]:
    """A convolution with positive and negative biases, then a rectifier in place."""
    weight = RNG.normal(size=(outputs, inputs, kernel, kernel)) / np.sqrt(inputs * kernel**2)
    if bottom == "data":
        weight /= 60
    blobs = [weight.astype(np.float32), RNG.normal(0, 0.3, outputs).astype(np.float32)]
    p = {"num_output": outputs, "kernel_size": kernel, **more}
    return [
        Layer(name, "Convolution", bottom, "", {"convolution_param": p}, blobs),
        Layer(f"{name}/relu", "ReLU", name, name),
    ]


def pool(name: str, bottom: str, kind: str, **more: Any) -> Layer:
    return Layer(name, "Pooling", bottom, "", {"pooling_param": {"pool": Name(kind), **more}})


NETWORK = [
    *conv("conv1", "data", 3, 5, 5, stride=2, pad=2),
    pool("pool1", "conv1", "MAX", kernel_size=3, stride=2),
    Layer("norm1", "LRN", "pool1", "", {"lrn_param": {"local_size": 3, "alpha": 0.2, "beta": 0.75}}),
    *conv("one", "norm1", 5, 3, 1),
    *conv("three_reduce", "norm1", 5, 2, 1),
    *conv("three", "three_reduce", 2, 4, 3, pad=1),
    *conv("five_reduce", "norm1", 5, 2, 1),
    *conv("five", "five_reduce", 2, 3, 5, pad=2),
    pool("branch_pool", "norm1", "MAX", kernel_size=3, stride=1, pad=1),
    *conv("pool_proj", "branch_pool", 5, 2, 1),
    Layer("inception", "Concat", ["one", "three", "five", "pool_proj"]),
    pool("pool2", "inception", "MAX", kernel_size=3, stride=2),
    pool("average", "pool2", "AVE", kernel_size=2, stride=1),
    Layer("drop", "Dropout", "average", "average", {"dropout_param": {"dropout_ratio": 0.4}}),
    Layer(
        "classifier", "InnerProduct", "average", "", {"inner_product_param": {"num_output": 4}},
        [RNG.normal(size=(4, 12)).astype(np.float32), RNG.normal(1, 1, 4).astype(np.float32)],
    ),
    Layer("prob", "Softmax", "classifier"),
]  # fmt: skip

Rule = Callable[[Array, Array, Array, Array, bool], Array]  # x, W (inputs, outputs), b, R_j, first → R_i


def explain_as_in_the_paper(x: Array, W: Array, b: Array, R: Array, first: bool) -> Array:
    """z^B in the first layer, z⁺ above, max(0, b) in the denominator."""
    q = np.maximum(W, 0) * x[:, None]
    if first:
        bounds = [np.repeat([end - mean for mean in MEAN], len(x) // 3)[:, None] for end in (0, 255)]
        q = x[:, None] * W - bounds[0] * np.maximum(W, 0) - bounds[1] * np.minimum(W, 0)
    return q @ divide(R, q.sum(0) + np.maximum(b, 0))


def explain_by_lrp(x: Array, W: Array, b: Array, R: Array, first: bool) -> Array:
    """α = 2, β = 1 in every layer; a side with nothing on it leaves R_j to the other."""
    z = x[:, None] * W
    P, N = np.maximum(z, 0), np.minimum(z, 0)
    above, below = P.sum(0) + np.maximum(b, 0), N.sum(0) + np.minimum(b, 0)
    alpha, beta = np.where(below < 0, 2.0, 1.0), np.where(above > 0, 1.0, -1.0)
    return P @ divide(alpha * R, above) - N @ divide(beta * R, below)


def go_back(layers: Sequence[Layer], x: Array, target: int, rule: Rule) -> tuple[float, Array]:
    """The score of one picture (C, H, W), and its relevance, layer by layer from the last to the first."""
    blobs: dict[str, Array] = {"data": x[None].astype(float)}
    steps: list[tuple[Layer, Mapping[str, Any], list[Array]]] = []
    for layer in layers:
        p: Mapping[str, Any] = next((v for k, v in layer.param.items() if k.endswith("_param")), {})
        inputs = [blobs[name] for name in layer.bottoms]
        steps.append((layer, p, inputs))
        blobs[layer.tops[0]] = COMPUTE[layer.type](inputs, p, [blob.astype(float) for blob in layer.blobs])
    score = float(blobs["classifier"][0, target])
    R = {"prob": np.eye(4)[target] * score}
    for layer, p, inputs in reversed(steps):
        above, parts = R.pop(layer.tops[0]), []
        if layer.type == "Concat":
            ends = np.cumsum([one.shape[1] for one in inputs])
            parts = np.split(above.reshape(ends[-1], -1), ends[:-1])
        elif layer.type in ("Convolution", "InnerProduct"):
            W, b = as_matrix(layer, p, inputs[0])
            parts = [rule(inputs[0].ravel(), W, b, above.ravel(), layer.bottoms[0] == "data")]
        elif layer.type == "Pooling":
            parts = [spread_over_windows(inputs[0][0], p, above)]
        else:  # rectifiers, normalisation, dropout and the softmax pass it on
            parts = [above]
        for name, part in zip(layer.bottoms, parts, strict=True):
            R[name] = R.get(name, 0) + part.reshape(-1)
    return score, R["data"].reshape(x.shape)


def as_matrix(layer: Layer, p: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """A layer as a matrix (inputs, outputs), column by column, and its biases."""
    weight, bias = (blob.astype(float) for blob in layer.blobs)
    if layer.type == "InnerProduct":
        return weight.T, bias
    unit = np.eye(x.size).reshape(x.size, *x.shape[1:])
    columns = convolution(unit, p, weight, None)
    return columns.reshape(x.size, -1), np.repeat(bias, columns[0, 0].size)


def spread_over_windows(x: Array, p: Mapping[str, Any], above: Array) -> Array:
    """Relevance of pooled units on their windows, in proportion to activations; padding has none."""
    k, stride, pad = p["kernel_size"], p["stride"], p.get("pad", 0)
    side = round(np.sqrt(above.size / len(x)))
    R, found = above.reshape(len(x), side, side), np.zeros_like(x)
    for channel, of in enumerate(x):
        for i in range(side):
            for j in range(side):
                window = tuple(slice(max(n * stride - pad, 0), n * stride - pad + k) for n in (i, j))
                share = divide(of[window], of[window].sum())
                found[channel][window] += share * R[channel, i, j]
    return found


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    folder = tmp_path_factory.mktemp("caffe")
    text, weights = folder / "net.prototxt", folder / "net.caffemodel"
    text.write_text(prototxt((3, SIDE, SIDE), NETWORK))
    weights.write_bytes(caffemodel(NETWORK))
    return read_caffe(text, weights).double().eval()


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (explain_as_in_the_paper, {}),
        (explain_by_lrp, {"rules": {"*": dt.rules.AlphaBeta(2, 1)}}),
    ],
    ids=["figure10", "figureS4"],
)
def test_figures_10_and_s4_on_an_inception_network(
    network: torch.nn.Module, rule: Rule, settings: dict[str, Any]
) -> None:
    mean = np.array(MEAN)[:, None, None]
    pictures = np.random.default_rng(1).uniform(0, 255, (4, 3, SIDE, SIDE)) - mean
    x = torch.from_numpy(pictures)
    bounds = [torch.from_numpy(np.broadcast_to(end - mean, (3, 1, 1)).copy()) for end in (0, 255)]
    explainer = dt.Explainer(network, x, domain=dt.Box(*bounds), preset="paper", **settings)
    best = forward(NETWORK, pictures)["classifier"].argmax(axis=1)
    e = explainer.explain(x, target=torch.from_numpy(best))
    for n, (picture, target) in enumerate(zip(pictures, best, strict=True)):
        score, R = go_back(NETWORK, picture, int(target), rule)
        assert score > 0
        assert float(e.score[n]) == pytest.approx(score, rel=1e-12)
        np.testing.assert_allclose(e.relevance[n].numpy(), R, rtol=0, atol=1e-12 * abs(R).max())
        assert 0.05 * score < R.sum() < 0.99 * score  # biases keep a share, and not all
    other = dt.Explainer(network, x, domain=dt.Box(*bounds)).explain(x, target=torch.from_numpy(best))
    assert not torch.allclose(other.relevance, e.relevance, rtol=1e-3)


def test_files_are_read_where_they_are(tmp_path: Path) -> None:
    """The reader of weights is that of the format: it reads what the package writes."""
    from deeptaylor.models.networks.paper_networks import OneLayer, save_network

    network = OneLayer(seed=4)
    save_network(network, tmp_path / "own.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "WEIGHTS", tmp_path)
        found = read_weights("own")
    np.testing.assert_array_equal(found["detection.weight"], network.detection.weight.detach().numpy())
