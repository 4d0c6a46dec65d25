"""What figures 1 to 4 and 7 of the paper sketch, computed for a real pair of digits and real neurons, as arrays.

`chosen`         the pair: the first zero beside a distractor that both networks detect
`one_layer`      figures 1 and 4: neurons, what each redistributes onto the pixels; figure 2: x, root, gradient
`two_layer`      figure 3: activations and relevances of every layer; figure 7: one pooled unit, in both models
"""

from __future__ import annotations

import torch
from torch import Tensor

import deeptaylor as dt
from deeptaylor.methods.relevance_model import pooling_ratio
from deeptaylor.models.networks.detection_pooling import DETECTIONS, FEATURES, OneLayer, TwoLayer
from deeptaylor.paper.data.pairs import BLACK, PRESENT, WHITE, Pairs
from deeptaylor.paper.methods import BOX, LEVEL, Case
from deeptaylor.paper.saved import Arrays

__all__ = ["chosen", "one_layer", "two_layer"]

SHOWN = 3  # neurons in figure 1, the most active ones
DRAWN = 6  # in figure 4


def chosen(pairs: Pairs, scores: Tensor) -> int:
    """The first pair with a zero that all networks detect, scores (networks, N); else the first with any target."""
    there = (pairs.side >= 0) & (scores > 0).all(0)
    zero = there & (pairs.labels == 0).any(1) & (scores > PRESENT / 2).all(0)
    return int(torch.nonzero(zero if bool(zero.any()) else there)[0, 0])


def one_layer(case: Case, x: Tensor) -> Arrays:
    """Of one image x (1, 1, 28, 56): its neurons, the most active first, and its Taylor decomposition.

    "weights", "bias", "activation" of the DRAWN most active neurons; "maps": what the first SHOWN of them redistribute
    onto the pixels by zB, each expanded at its own root; "map": all of them. "root", "gradient" there, and "taylor",
    the product of x − root with it.
    """
    network = case.network
    assert isinstance(network, OneLayer)
    W, b = network.detection.weight.detach(), network.detection.bias.detach()
    x_j = (x.flatten(1) @ W.T + b).clamp(min=0)[0]
    first = x_j.argsort(descending=True)
    point = dt.root_point(dt.rules.ZBox(BLACK, WHITE), W.T, b, x.flatten(), BOX).point
    R_ij = W * (x.flatten() - point)  # Equation 11: ∂R_j/∂x_i is w_ij
    root = dt.nearest_root(network, x, domain=BOX, level=LEVEL)
    at = root.point.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(network(at).sum(), at)
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
        "gradient": gradient[0, 0],
        "taylor": dt.taylor(network, x, root=root).relevance.detach()[0, 0],
    }
    return {name: value.numpy() for name, value in found.items()}


def two_layer(case: Case, x: Tensor) -> Arrays:
    """Of one image: activations x and relevances R of every layer; and both relevance models of one pooled unit.

    The unit is the most relevant one, k: "w_ij" of its detection units with "x_j", "c_k" and "d_k"; "v_ij" of the
    min-max model with "z_j", "a_j" and "y_j". "R_hat" is what the latter predicts.
    """
    network, model = case.network, case.relevance_model
    assert isinstance(network, TwoLayer)
    assert model is not None
    e = dt.Explainer(network, x, domain=BOX, bias="neuron").explain(x)
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
        c_k = pooling_ratio(x_j[own][None], 1)[0]
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
