"""Relevance models (section IV): functions that predict the relevance R_k of a pooled unit, and can be decomposed.

    min-max         y_j = max(0, Σ_i x_i v_ij + a_j)       the units j of the group k, trained to predict R_k
                    a_j = min(0, Σ_l R_l v_lj + d_j)       inhibition that the relevance R_l above lifts
                    R̂_k = Σ_j y_j

    training-free   R_k = (Σ_j x_j) · c_k · d_k            the network's own detection units, nothing to train
                    c_k = ‖x‖_p / ‖x‖_1                    `measure_pooling_ratio`; d_k comes from above

Both have the structure of the paper's one-layer network, so its rules decompose them. The training-free model is what
the engine does at every pooling layer (R_j = x_j / Σ_j' x_j' R_k, pooling.py); the min-max model is here. How it is
fitted to a network: relevance_fit.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, Domain, NonNegative, Real, check_inside
from deeptaylor.engine.forward import ForwardValues
from deeptaylor.engine.sample_layout import Layout
from deeptaylor.errors import InputError, PlanError
from deeptaylor.maps.affine_map import AffineMap
from deeptaylor.maps.block import Block
from deeptaylor.maps.division import divide, undivided
from deeptaylor.maps.linear_map import Linear
from deeptaylor.rules import Rule, WSquare, ZBox, ZPlus
from deeptaylor.support.tensor_files import WeightsError

__all__ = ["MinMaxExplanation", "MinMaxModel", "from_tensors", "measure_pooling_ratio", "measure_r_squared"]

DEVIATION = 0.05  # of the first weights, as for the paper's networks
_CHUNK = 1000


@dataclass(frozen=True, eq=False)
class MinMaxExplanation:
    """What a min-max model says about a batch of B inputs.

    relevance   R_i, shaped like x, never negative; Σ_i R_i = Σ_k R̂_k − dropped
    score       (B,) what was to be redistributed: f, or Σ_l R_l
    predicted   (B, G) R̂_k
    dropped     (B,) what units without a connection that counts could not hand on: the 0/0 of a rule
    """

    relevance: Tensor
    score: Tensor
    predicted: Tensor
    dropped: Tensor

    @property
    def residual(self) -> Tensor:
        """score − Σ_i R_i, (B,): the error of the model's fit, and dropped relevance."""
        return self.score - self.relevance.flatten(1).sum(1)


class MinMaxModel(nn.Module):
    """A min-max relevance model of G pooled units, each with U detection units of its own (section IV-A).

    inputs   d, how many x_i the layer below has
    upper    L, how many detection units l the layer above has
    groups   G pooled units k
    units    U detection units j in each group

    Weights begin at random, inhibition at zero; `relevance_fit.fit` gives them a better start and trains them. It holds
    d·G·U + L·G·U + G·U numbers.

    >>> model = MinMaxModel(inputs=3, upper=2, groups=4, units=2)
    >>> model(torch.ones(5, 3), torch.ones(5, 2)).shape
    torch.Size([5, 4])
    """

    def __init__(self, inputs: int, upper: int, groups: int, units: int = 4, seed: int = 0) -> None:
        super().__init__()
        for name, value in (("inputs", inputs), ("upper", upper), ("groups", groups), ("units", units)):
            if type(value) is not int or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1; got {value!r}.")
        generator = torch.Generator().manual_seed(seed)
        self.v_ij = nn.Parameter(DEVIATION * torch.randn(inputs, groups, units, generator=generator))
        self.v_lj = nn.Parameter(torch.zeros(upper, groups, units))
        self.d_j = nn.Parameter(torch.zeros(groups, units))

    def inhibition(self, R_l: Tensor) -> Tensor:
        """Return a_j = min(0, Σ_l R_l v_lj + d_j), (B, G, U)."""
        c_j = R_l.flatten(1) @ self.v_lj.flatten(1) + self.d_j.flatten()
        a_j: Tensor = c_j.clamp(max=0).unflatten(1, self.d_j.shape)
        return a_j

    def detection(self, x: Tensor, R_l: Tensor) -> Tensor:
        """Return y_j = max(0, Σ_i x_i v_ij + a_j), (B, G, U)."""
        z_j = (x.flatten(1) @ self.v_ij.flatten(1)).unflatten(1, self.d_j.shape)
        y_j: Tensor = (z_j + self.inhibition(R_l)).clamp(min=0)
        return y_j

    def forward(self, x: Tensor, R_l: Tensor) -> Tensor:
        """Return R̂_k = Σ_j y_j, (B, G)."""
        return self.detection(x, R_l).sum(2)

    @torch.no_grad()
    def explain(self, x: Tensor, R_l: Tensor, rule: Rule, score: Tensor | None = None) -> MinMaxExplanation:
        """Redistribute the prediction of the model onto x (section IV-A).

            R_j = y_j,    R_i = Σ_j q_ij / Σ_i' q_i'j R_j

        rule    WSquare(): q_ij = v²_ij, for any x; ZPlus(): q_ij = x_i v⁺_ij, for x ≥ 0;
                ZBox(l, h): q_ij = x_i v_ij − l_i v⁺_ij − h_i v⁻_ij, for l ≤ x ≤ h
        score   (B,) the score f, if it differs from Σ_l R_l
        """
        domain = _find_domain(rule)
        self._check(x, R_l)
        check_inside(x, domain, "x")
        y_j = self.detection(x, R_l)
        inside = x.clamp(min=0) if domain.non_negative else x  # rounding may have left it outside
        if isinstance(domain, Box):
            low, high = (t.expand(1, *x.shape[1:]).flatten() for t in domain.bounds(x))
            rule = ZBox(low, high)
        R_i, dropped = _redistribute(rule, inside.flatten(1), self.v_ij.flatten(1), y_j.flatten(1))
        total = R_l.flatten(1).sum(1) if score is None else score
        return MinMaxExplanation(R_i.reshape(x.shape), total, y_j.sum(2), dropped)

    def _check(self, x: Tensor, R_l: Tensor) -> None:
        for name, t, size in (("x", x, self.v_ij.shape[0]), ("R_l", R_l, self.v_lj.shape[0])):
            if t.ndim < 2 or math.prod(t.shape[1:]) != size or len(t) != len(x):
                raise InputError(f"{name} must hold {size} numbers for each of {len(x)} samples, got {tuple(t.shape)}.")
            if (t.dtype, t.device) != (self.d_j.dtype, self.d_j.device):
                raise InputError(
                    f"The model is {self.d_j.dtype} on {self.d_j.device}, {name} is {t.dtype} on {t.device}; convert "
                    "one with .to()."
                )
            if not bool(torch.isfinite(t).all()):
                raise InputError(f"{name} holds numbers that are NaN or infinite.")
        if bool((R_l < 0).any()):
            raise InputError("R_l holds negative numbers; the relevance of the layer above is never negative under z+.")

    def extra_repr(self) -> str:
        d, G, U = self.v_ij.shape
        return f"inputs={d}, upper={self.v_lj.shape[0]}, groups={G}, units={U}"


def from_tensors(tensors: Mapping[str, Tensor], source: str) -> MinMaxModel:
    """Make a model from its tensors; raise, with the name of their source, if they are not those of a model."""
    v_ij, v_lj, d_j = (tensors.get(name, torch.empty(0)) for name in ("v_ij", "v_lj", "d_j"))
    if len(tensors) != 3 or v_ij.ndim != 3 or v_lj.ndim != 3 or {v_ij.shape[1:], v_lj.shape[1:]} != {d_j.shape}:
        found = {key: tuple(value.shape) for key, value in sorted(tensors.items())}
        raise WeightsError(f"{source} holds {found}, expected v_ij (d, G, U), v_lj (L, G, U) and d_j (G, U)")
    if not all(t.is_floating_point() and bool(t.isfinite().all()) for t in tensors.values()):
        raise WeightsError(f"{source} must hold finite floating-point numbers")
    model = MinMaxModel(len(v_ij), len(v_lj), *d_j.shape).to(d_j.dtype)
    model.load_state_dict(dict(tensors))
    return model.eval()


def _find_domain(rule: Rule) -> Domain:
    """Return the domain of a rule."""
    if isinstance(rule, WSquare):
        return Real()
    if isinstance(rule, ZPlus):
        return NonNegative()
    if isinstance(rule, ZBox) and rule.low is not None and rule.high is not None:
        return Box(rule.low, rule.high)
    raise PlanError(f"A relevance model is decomposed by dt.rules.WSquare(), ZPlus() or ZBox(low, high); got {rule!r}.")


def _redistribute(rule: Rule, x: Tensor, V: Tensor, R_j: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a rule at the detection units of a model; return R_i and the dropped relevance.

    The block needs no bias, because a_j ≤ 0 absorbs no relevance.
    """
    weight = V.T.contiguous()
    block = Block("z", [Linear("z", ["x"], "v", weight, None)], ["x"])
    layout = {"x": Layout(((1, True), (x.shape[1], False)), 0), "z": Layout(((1, True), (V.shape[1], False)), 0)}
    run = ForwardValues({"x": x, "v": weight}, {}.__getitem__, layout, len(x))
    ledger = _DropSum(torch.zeros_like(R_j[:, 0]))
    (R_i,) = rule(AffineMap(block, run, [isinstance(rule, ZPlus)], [None], rectified=True, spread=False), R_j, ledger)
    return torch.zeros_like(x) if R_i is None else R_i, ledger.lost


class _DropSum:
    """Takes what a rule did not hand on, one number per sample."""

    open = True

    def __init__(self, nothing: Tensor) -> None:
        self.lost = nothing

    def bias(self, share: Tensor, weight: Tensor | None = None) -> None:
        """Ignore biases: there is no bias neuron."""

    def dropped(self, share: Tensor) -> None:
        self.lost = self.lost + share.sum(1)

    def undivided(self, R: Tensor, Z: Tensor) -> None:
        self.dropped(undivided(R, Z))


@torch.no_grad()
def measure_r_squared(model: MinMaxModel, x: Tensor, R_l: Tensor, R_k: Tensor) -> float:
    """Return the share of the variance of R_k that the model explains, over all samples and all units k.

    1 − Σ (R̂_k − R_k)² / Σ (R_k − ⟨R_k⟩)²
    """
    R = R_k.flatten(1).double()
    parts = zip(x.split(_CHUNK), R_l.split(_CHUNK), strict=True)
    predicted = torch.cat([model(*part) for part in parts]).double()
    variance = (R - R.mean()).square().sum()
    if not float(variance):
        raise InputError("R_k is the same everywhere: there is no variance to explain.")
    return float(1 - (predicted - R).square().sum() / variance)


def measure_pooling_ratio(x: Tensor, p: float, dim: int = -1) -> Tensor:
    """Return c = ‖x‖_p / ‖x‖_1 of x ≥ 0, for 1 ≤ p ≤ ∞ (section IV-B); 0 where all of x is zero.

    p = 1 is sum pooling, p = ∞ max pooling. The order and the scale of x do not change it; n^(1/p − 1) ≤ c ≤ 1 for n
    elements.

    >>> measure_pooling_ratio(torch.tensor([3.0, 4.0]), 2)
    tensor(0.7143)
    """
    if not p >= 1:
        raise InputError(f"p must be a number from 1 to infinity; got {p!r}.")
    check_inside(x, NonNegative(), "x")
    u = divide(x, x.amax(dim, keepdim=True).expand_as(x))  # so that no power overflows
    return divide(torch.linalg.vector_norm(u, p, dim), u.sum(dim))
