"""What figures 1 to 4 and 7 of the paper sketch, computed for a real pair of digits and real neurons, as arrays.

`chosen`         the pair: the first zero beside a distractor that both networks detect
`one_layer`      figures 1 and 4: neurons, what each redistributes onto the pixels; figure 2: x, root, gradient
`two_layer`      figure 3: activations and relevances of every layer; figure 7: one pooled unit, in both models
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.methods.relevance_model import MinMaxModel, measure_pooling_ratio
from deeptaylor.models.networks.paper_networks import BOX, DETECTIONS, FEATURES, OneLayer, TwoLayer
from deeptaylor.paper.digit_pairs import BLACK, PRESENT, WHITE, Pairs
from deeptaylor.paper.experiment import Arrays, figure_class
from deeptaylor.viz.colors import GREY, INK, RED
from deeptaylor.viz.heatmap import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Values = npt.NDArray[np.floating]

INCH = 0.1  # of a unit: a picture of 28 × 56 pixels is 14 units wide and 7 high


class _Sheet:
    """A figure on which pictures, arrows and texts are put by their middle, in units of INCH."""

    def __init__(self, width: float, height: float) -> None:
        self.figure: Figure = figure_class()(figsize=(width * INCH, height * INCH), dpi=130)
        self.ax: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.ax.set_axis_off()
        self.limits = {"xlim": (0, width), "ylim": (0, height)}

    def done(self) -> Figure:
        self.ax.set(**self.limits)
        return self.figure

    def put(self, picture: npt.NDArray[np.uint8], x: float, y: float, width: float = 14) -> None:
        """A picture with a thin frame, around (x, y)."""
        height = width * picture.shape[0] / picture.shape[1]
        box = (x - width / 2, x + width / 2, y - height / 2, y + height / 2)
        self.ax.imshow(picture, extent=box, interpolation="nearest", aspect="auto", zorder=2)
        sides = ([box[0], box[1], box[1], box[0], box[0]], [box[2], box[2], box[3], box[3], box[2]])
        self.ax.plot(*sides, color=GREY, linewidth=0.6, zorder=3)

    def say(self, text: str, x: float, y: float, size: float = 9, **style: Any) -> None:
        self.ax.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "linespacing": 1.3, **style})

    def arrow(self, start: tuple[float, float], end: tuple[float, float], colour: str = INK, weight: float = 1) -> None:
        tip = {"arrowstyle": "-|>", "color": colour, "linewidth": weight, "shrinkA": 0, "shrinkB": 0}
        self.ax.annotate("", end, start, arrowprops=tip, zorder=1)

    def neuron(self, text: str, x: float, y: float, colour: str = "white") -> None:
        self.ax.plot(x, y, "o", markersize=22, markerfacecolor=colour, markeredgecolor=INK, zorder=3)
        self.say(text, x, y, 8, zorder=4)


def _grey(image: Values) -> npt.NDArray[np.uint8]:
    shade = np.rint(255 * np.clip((image - BLACK) / (WHITE - BLACK), 0, 1)).astype(np.uint8)
    return np.repeat(shade[:, :, None], 3, axis=2)


def _grid(values: Values, columns: int) -> npt.NDArray[np.uint8]:
    """Numbers of neurons as a grid of red squares."""
    return render(values.reshape(-1, columns))


def draw_overview(a: Arrays) -> Figure:
    """Figure 1: a score, redistributed on hidden neurons, then on pixels; the right side mirrors the left."""
    s = _Sheet(112, 47)
    rows = [34, 23, 12]
    others = float(a["score"] - a["activation"][: len(rows)].sum())
    s.put(_grey(a["image"]), 10, 23)
    s.say("image $x$", 10, 28.5)
    for n, (y, w, x_j, part) in enumerate(zip(rows, a["weights"], a["activation"], a["maps"], strict=False), 1):
        s.arrow((17.5, 23), (24.5, y))
        s.put(render(w), 32, y)
        s.say(f"weights of neuron {n}", 32, y + 4.9, 7.5, color=GREY)
        s.arrow((39.5, y), (42.6, y))
        s.neuron(f"$x_{n}$", 44.5, y)
        s.say(f"{x_j:.1f}", 44.5, y - 3.2, 8)
        s.arrow((46.5, y), (54, 23))
        s.arrow((58, 23), (65.5, y), RED, 0.6 + 2.5 * x_j / a["activation"][0])
        s.neuron(f"$R_{n}$", 67.5, y, "#fbd5cf")
        s.say(f"{part.sum():.1f}", 67.5, y - 3.2, 8)
        s.arrow((69.5, y), (72.5, y), RED)
        s.put(render(part), 80, y)
        s.say(f"what neuron {n} gives the pixels", 80, y + 4.9, 7.5, color=GREY)
        s.arrow((87.5, y), (94.5, 23), RED)
    s.neuron("$f$", 56, 23)
    s.say(f"$f(x) = {float(a['score']):.1f}$\n$= R_f$", 56, 28.5, 9)
    s.put(render(a["map"]), 102, 23)
    s.say("heatmap", 102, 28.5)
    s.say("forward: is a digit 0 to 3 there?", 32, 44, 10.5)
    s.say("backward: why?", 80, 44, 10.5, color=RED)
    rest = f"and {int(a['active']) - len(rows)} more active neurons, together {others:.1f}"
    s.say(rest, 32, 4, 8.5, color=GREY)
    s.say("and what these give", 80, 4, 8.5, color=GREY)
    return s.done()


def draw_taylor(a: Arrays) -> Figure:
    """Figure 2: the heatmap of Taylor decomposition is the gradient at the root times the difference to it."""
    s = _Sheet(96, 17)
    difference = a["image"] - a["root"]
    panels = [
        (_grey(a["image"]), f"image $x$\n$f(x) = {float(a['score']):.1f}$"),
        (_grey(a["root"]), f"root $\\tilde{{x}}$\n$f(\\tilde{{x}}) = {float(a['root_score']):.1f}$"),
        (render(difference), "difference $x - \\tilde{x}$\n(red: brighter in $x$)"),
        (render(a["gradient"]), "gradient of $f$\nat the root"),
        (render(a["taylor"]), f"heatmap $R(x)$\n$\\Sigma_p R_p = {a['taylor'].sum():.1f}$"),
    ]
    for n, (picture, text) in enumerate(panels):
        x = 9 + 19.5 * n
        s.put(picture, x, 11)
        s.say(text, x, 3.6, 9)
    for n, sign in enumerate(("", "", "⊙", "=")):
        s.say(sign, 18.75 + 19.5 * n, 11, 15)
    return s.done()


def draw_flow(a: Arrays) -> Figure:
    """Figure 3: activations forward, relevances backward, layer by layer; each layer's relevances have the same sum."""
    s = _Sheet(112, 42)
    forward = [
        (_grey(a["image"]), 14, "pixels $x_p$"),
        (_grid(a["x_j"], 20), 10, "400 detection\nneurons $x_j$"),
        (_grid(a["x_k"], 10), 8, "100 pooled\nunits $x_k$"),
        (_grid(a["x_l"], 20), 10, "400 detection\nneurons $x_l$"),
    ]
    backward = [
        (render(a["map"]), 14, "R_p", a["map"]),
        (_grid(a["R_j"], 20), 10, "R_j", a["R_j"]),
        (_grid(a["R_k"], 10), 8, "R_k", a["R_k"]),
        (_grid(a["R_l"], 20), 10, "R_l", a["R_l"]),
    ]
    places = [11, 36, 58, 80]
    for (picture, width, text), x in zip(forward, places, strict=True):
        s.put(picture, x, 31, width)
        s.say(text, x, 39.4, 8.5)
    for (picture, width, name, values), x in zip(backward, places, strict=True):
        s.put(picture, x, 13, width)
        s.say(f"$\\Sigma {name} = {values.sum():.2f}$", x, 4.8, 9, color=RED)
    for left, right in ((18.5, 30.5), (41.5, 53.5), (62.5, 74.5), (85.5, 98)):
        s.arrow((left, 31), (right, 31))
        s.arrow((right, 13), (left, 13), RED)
    s.neuron("$x_f$", 101, 31)
    s.say(f"$f = {float(a['score']):.2f}$", 101, 35, 9)
    s.neuron("$R_f$", 101, 13, "#fbd5cf")
    s.say(f"$R_f = {float(a['score']):.2f}$", 101, 9, 9, color=RED)
    s.arrow((101, 28.6), (101, 15.4), RED)
    s.say("forward", 103, 39.4, 10)
    s.say("backward", 103, 4.8, 10, color=RED)
    return s.done()


def draw_detection_pooling(a: Arrays) -> Figure:
    """Figure 4: the one-layer network; its most active neurons with their weights, then the sum."""
    s = _Sheet(78, 61)
    count = len(a["activation"])
    rows = [53 - 9 * n for n in range(count)]
    s.put(_grey(a["image"]), 10, float(np.mean(rows)))
    s.say("input $\\{x_i\\}$", 10, float(np.mean(rows)) + 5.4)
    for y, w, b, x_j in zip(rows, a["weights"], a["bias"], a["activation"], strict=True):
        s.arrow((17.5, float(np.mean(rows))), (25.5, y))
        s.put(render(w), 33, y)
        s.arrow((40.5, y), (46.5, y))
        s.neuron("$x_j$", 48.5, y)
        s.say(f"{x_j:.1f}\n$b_j = {b:.2f}$", 52.2, y, 7.5, ha="left")
        s.arrow((59.5, y), (66.5, float(np.mean(rows))))
    s.neuron("$x_k$", 68.5, float(np.mean(rows)))
    s.say(f"$x_k = \\Sigma_j x_j$\n$= {float(a['score']):.1f}$", 70, float(np.mean(rows)) + 5.6, 9)
    s.say("detection: $x_j = \\max(0, \\Sigma_i x_i w_{ij} + b_j)$", 38, 59.3, 9)
    s.say("pooling", 69, 59.3, 9)
    rest = float(a["score"] - a["activation"].sum())
    s.say(
        f"the {count} most active neurons with their weights; {int(a['active']) - count} others: {rest:.1f}", 40, 1.8, 8
    )
    return s.done()


def draw_relevance_models(a: Arrays) -> Figure:
    """Figure 7: the deep network, and both relevance models of one pooled unit with its four detection units."""
    s = _Sheet(118, 51)
    k, rows = int(a["k"]), [38, 29, 20, 11]
    R_k = float(a["R_k"][k])
    s.say("the two-layer network", 15, 48.5, 10.5)
    s.put(_grey(a["image"]), 10, 8)
    s.put(_grid(a["x_j"], 20), 10, 20, 8)
    s.put(_grid(a["x_k"], 10), 10, 32, 6)
    s.put(_grid(a["x_l"], 20), 10, 42.4, 7)
    for low, high in ((11.8, 15.6), (24.3, 28.6), (35.3, 38.6)):
        s.arrow((10, low), (10, high))
    for y, text in (
        (8, "pixels"),
        (20, "detection,\n400"),
        (32, "pooled,\n100"),
        (42.4, "detection,\n400,\nthen the sum"),
    ):
        s.say(text, 18.5 if y > 8 else 20.5, y, 7.5, ha="left" if y > 8 else "center", color=GREY)
    s.say(f"1. min-max model of unit $k = {k}$", 50, 48.5, 10.5)
    s.say("$v_{ij}$", 38, 44.5)
    s.say("$y_j = \\max(0, \\Sigma_i x_i v_{ij} + a_j)$", 58, 44.5)
    for y, v, z, inhibition, y_j in zip(rows, a["unit_v"], a["z_j"], a["a_j"], a["y_j"], strict=True):
        s.put(render(v), 38, y)
        s.say(f"$\\max(0,\\ {z:.2f} {inhibition:+.2f})$\n$= {y_j:.2f}$", 56, y, 8)
        s.arrow((64, y), (69, 24.5))
    s.say(f"$\\hat{{R}}_k = \\Sigma_j y_j$\n$= {a['y_j'].sum():.2f}$\n\ntrue $R_k$\n$= {R_k:.2f}$", 74, 24.5, 9)
    s.say(f"2. training-free model of unit $k = {k}$", 98, 48.5, 10.5)
    s.say("$w_{ij}$", 88, 44.5)
    s.say("$x_j$", 99, 44.5)
    for y, w, x_j in zip(rows, a["unit_w"], a["unit_x"], strict=True):
        s.put(render(w), 88, y)
        s.say(f"${x_j:.2f}$", 99, y, 8)
        s.arrow((102, y), (105, 24.5))
    total = float(a["unit_x"].sum())
    s.say(
        f"$\\Sigma_j x_j = {total:.2f}$\n$c_k = {float(a['c_k']):.2f}$\n$d_k = {float(a['d_k']):.3f}$\n\n"
        f"$R_k = (\\Sigma_j x_j) c_k d_k$\n$= {total * float(a['c_k']) * float(a['d_k']):.2f}$",
        111,
        24.5,
        8.5,
    )
    s.say("$a_j \\leq 0$ comes from the relevances $R_l$ above", 52, 4.5, 8, color=GREY)
    s.say("$d_k$ comes from the relevances $R_l$ above", 98, 4.5, 8, color=GREY)
    return s.done()


SHOWN = 3  # neurons in figure 1, the most active ones
DRAWN = 6  # in figure 4


def choose_pair(pairs: Pairs, scores: Tensor) -> int:
    """The first pair with a zero that all networks detect, scores (networks, N); else the first with any target."""
    there = (pairs.side >= 0) & (scores > 0).all(0)
    zero = there & (pairs.labels == 0).any(1) & (scores > PRESENT / 2).all(0)
    return int(torch.nonzero(zero if bool(zero.any()) else there)[0, 0])


def compute_one_layer(network: OneLayer, x: Tensor, level: float) -> Arrays:
    """Of one image x (1, 1, 28, 56): its neurons, the most active first, and its Taylor decomposition.

    "weights", "bias", "activation" of the DRAWN most active neurons; "maps": what the first SHOWN of them redistribute
    onto the pixels by zB, each expanded at its own root; "map": all of them. "root", "gradient" there, and "taylor",
    the product of x − root with it.
    """
    W, b = network.detection.weight.detach(), network.detection.bias.detach()
    x_j = (x.flatten(1) @ W.T + b).clamp(min=0)[0]
    first = x_j.argsort(descending=True)
    point = dt.root_point(dt.rules.ZBox(BLACK, WHITE), W.T, b, x.flatten(), BOX).point
    R_ij = W * (x.flatten() - point)  # Equation 11: ∂R_j/∂x_i is w_ij
    root = dt.nearest_root(network, x, domain=BOX, level=level)
    found = {
        "image": x[0, 0],
        "score": network(x).detach()[0],
        "active": (x_j > 0).sum(),
        "weights": W[first[:DRAWN]].reshape(-1, *x.shape[2:]),
        "bias": b[first[:DRAWN]],
        "activation": x_j[first[:DRAWN]],
        "maps": R_ij[first[:SHOWN]].reshape(-1, *x.shape[2:]),
        "map": R_ij[x_j > 0].sum(0).reshape(x.shape[2:]),
        "root": root.point.detach()[0, 0],
        "root_score": root.value.detach()[0],
        "gradient": root.gradient[0, 0],
        "taylor": dt.taylor(network, x, root=root).relevance.detach()[0, 0],
    }
    return {name: value.numpy() for name, value in found.items()}


def compute_two_layer(network: TwoLayer, model: MinMaxModel, x: Tensor) -> Arrays:
    """Of one image: activations x and relevances R of every layer; and both relevance models of one pooled unit.

    The unit is the most relevant one, k: "w_ij" of its detection units with "x_j", "c_k" and "d_k"; "v_ij" of the
    min-max model with "z_j", "a_j" and "y_j". "R_hat" is what the latter predicts.
    """
    e = dt.Explainer(network, x, domain=BOX, method="paper").explain(x)
    R = {name: e.at(name).detach()[0] for name in ("relu1", "sum_1", "relu2")}
    with torch.no_grad():
        x_j = network.relu1(network.detection1(x.flatten(1)))[0]
        x_k = network.features(x)[0]
        x_l = network.relu2(network.detection2(x_k))
        k, units = int(R["sum_1"].argmax()), DETECTIONS // FEATURES
        own = slice(units * k, units * (k + 1))
        a_j = model.inhibition(R["relu2"][None])[0, k]
        z_j = (x.flatten(1) @ model.v_ij.flatten(1)).unflatten(1, model.d_j.shape)[0, k]
        w_kl, context = network.detection2.weight.clamp(min=0).T, (x_k @ network.detection2.weight.clamp(min=0).T)
        d_k = (w_kl[k] * R["relu2"] / context.clamp(min=torch.finfo(x.dtype).tiny)).sum()
        c_k = measure_pooling_ratio(x_j[own][None], 1)[0]
    found = {
        "image": x[0, 0],
        "score": e.score.detach()[0],
        "x_j": x_j,
        "x_k": x_k,
        "x_l": x_l,
        "R_j": R["relu1"],
        "R_k": R["sum_1"],
        "R_l": R["relu2"],
        "map": e.relevance.detach()[0, 0],
        "k": torch.tensor(k),
        "unit_w": network.detection1.weight.detach()[own].reshape(units, *x.shape[2:]),
        "unit_x": x_j[own],
        "c_k": c_k,
        "d_k": d_k,
        "unit_v": model.v_ij.detach()[:, k].T.reshape(-1, *x.shape[2:]),
        "z_j": z_j,
        "a_j": a_j,
        "y_j": (z_j + a_j).clamp(min=0),
    }
    return {name: value.detach().numpy() for name, value in found.items()}
