"""Losses on maps: small numbers by hand, gradients that make them smaller, and plain errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.losses import share_inside
from trained_networks import make_trained

LOSSES = ("share_inside", "share_outside", "squared_inside", "total_variation", "map_distance", "class_overlap")


def one_layer() -> tuple[nn.Module, Tensor]:
    """f_0 = 2 x_0 + x_1, f_1 = x_1 + x_2: the margin of class 0 is 2 x_0 − x_2."""
    network = nn.Linear(3, 2, bias=False)
    network.weight.data = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    return network, torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])


def plain() -> tuple[dt.Explainer, Tensor]:
    network, x = one_layer()
    return dt.Explainer(network, x, dt.NonNegative(), live=True), x


def by_secants() -> tuple[dt.Explainer, Tensor]:
    """Maps of the first sample's margins: (2, 0, −1) for class 0, (−2, 0, 1) for class 1."""
    network, x = one_layer()
    return dt.Explainer(network, x, method="secant", reference="zeros", live=True), x


def test_a_share_is_that_of_the_margin() -> None:
    explainer, x = by_secants()
    assert share_inside(explainer, x, torch.tensor([0, 0, 1]), 0, reference="zeros", reduction="none").tolist() == [
        pytest.approx(1 / 3), 1.0,
    ]  # fmt: skip
    mean = share_inside(explainer, x, torch.tensor([0, 0, 1]), 0, reference="zeros")
    assert float(mean.detach()) == pytest.approx(2 / 3)
    outside = dt.losses.share_outside(explainer, x, torch.tensor([0, 0, 1]), 0, reference="zeros", reduction="none")
    assert outside.tolist() == [pytest.approx(2 / 3), 0.0]


def test_the_default_target_is_the_top_class_against_its_best_rival() -> None:
    explainer, x = plain()
    mask = torch.tensor([0.5, 0.0, 1.0])
    found = dt.losses.share_inside(explainer, x, mask, reduction="none")  # all on x_0, all on x_2
    assert found.tolist() == [0.5, 1.0]
    # The second sample is not of class 0: it has no positive margin, so no relevance, and counts as 0.
    assert dt.losses.share_inside(explainer, x, mask, torch.tensor([0, 0]), reduction="none").tolist() == [0.5, 0.0]
    whole = dt.losses.share_inside(explainer, x, mask, target=0, reduction="none")  # 2 x_0 + x_1
    assert whole.tolist() == [pytest.approx(1 / 3), 0.0]


def test_a_square_is_of_the_relevance_itself() -> None:
    explainer, x = by_secants()
    found = dt.losses.squared_inside(explainer, x, torch.tensor([1, 0, 0.5]), 0, reference="zeros", reduction="none")
    assert found.tolist() == [pytest.approx(4 + 0.25), pytest.approx(0.25)]


def test_total_variation_by_hand() -> None:
    explainer, x = by_secants()
    found = dt.losses.total_variation(explainer, x, 0, reference="zeros", reduction="none")
    assert found.tolist() == [pytest.approx((2 + 1) / 3), pytest.approx(1.0)]  # (2, 0, −1), (0, 0, −1)


def test_a_distance_by_hand() -> None:
    explainer, x = by_secants()
    other = torch.tensor([[0.0, 3.0, -3.0], [0.0, 0.0, 0.0]])
    found = dt.losses.map_distance(explainer, x, other, 0, reference="zeros", reduction="none")
    assert found.tolist() == [pytest.approx((2 / 3 + 1 / 2 + 1 / 6) / 2), 0.0]
    same = dt.losses.map_distance(explainer, x, explainer, 0, reference="zeros", reduction="none")
    assert same.tolist() == [0.0, 0.0]


def test_an_overlap_by_hand() -> None:
    explainer, x = by_secants()
    found = dt.losses.class_overlap(explainer, x, 0, 1, reference="zeros", reduction="none")
    assert found.tolist() == [0.0, 0.0]  # margins of two classes are opposite
    found = dt.losses.class_overlap(explainer, x, 0, 0, reference="zeros", reduction="none")
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("method", ["deep-taylor", "secant"])
def test_a_step_against_the_gradient_makes_a_loss_smaller(name: str, method: str) -> None:
    t = make_trained("batch norm", seed=1)
    explainer = dt.Explainer(t.model, t.x, t.domain, method=method, live=True)
    reference = {"reference": "zeros"} if name == "class_overlap" else {}  # one class alone has a positive margin
    mask = torch.ones(8, 8).triu()
    masked = dict.fromkeys(("share_inside", "share_outside", "squared_inside"), (mask,))
    others = {"map_distance": (torch.rand_like(t.x),), "class_overlap": (0, torch.tensor([1, 2, 1]))}
    given = {**masked, **others}.get(name, ())
    function = getattr(dt.losses, name)
    loss = function(explainer, t.x, *given, **reference)
    gradients = torch.autograd.grad(loss, list(t.model.parameters()))
    size = sum(float(g.square().sum()) for g in gradients)
    assert size > 0
    with torch.no_grad():
        for p, g in zip(t.model.parameters(), gradients, strict=True):
            p.sub_(1e-5 * g / size**0.5)
    change = float((function(explainer, t.x, *given, **reference) - loss).detach())
    assert change == pytest.approx(-1e-5 * size**0.5, rel=1e-2)


def test_of_tokens_with_an_attention_mask_the_map_is_that_of_the_tokens() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
            h = torch.relu(self.embed(tokens)) * attention_mask.unsqueeze(-1)
            return self.head(h.sum(1) / attention_mask.sum(1, keepdim=True))

    torch.manual_seed(0)
    tokens, attention = torch.randint(0, 9, (3, 5)), torch.ones(3, 5, dtype=torch.long)
    attention[:, 4] = 0
    explainer = dt.Explainer(Masked(), (tokens, attention), live=True)
    found = dt.losses.share_outside(explainer, (tokens, attention), torch.tensor([1, 1, 1, 1, 0]), reduction="none")
    assert found.tolist() == [0.0, 0.0, 0.0]
    assert dt.losses.share_inside(explainer, (tokens, attention), torch.tensor([1, 0, 0, 0, 0])).requires_grad


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 2, 8, 8), (3, 1, 8, 8), (1, 1, 8, 8), (2, 8, 8), (3, 8, 8), (8, 8)])
def test_masks_of_every_shape_that_fits(shape: tuple[int, ...]) -> None:
    t = make_trained("cnn")
    explainer = dt.Explainer(t.model, t.x, t.domain, live=True)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[..., 2:4, 5] = True
    R = explainer.relevance(t.x, dt.margin()).detach()
    expected = R[:, :, 2:4, 5].flatten(1).sum(1) / R.flatten(1).sum(1)
    found = dt.losses.share_inside(explainer, t.x, mask, reduction="none").detach()
    assert torch.allclose(found, expected, atol=1e-15)


def test_channels_last_are_read_as_the_network_does() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.conv(x.permute(0, 3, 1, 2))).mean((2, 3)))

    torch.manual_seed(0)
    x = torch.rand(3, 6, 5, 2)
    explainer = dt.Explainer(Last(), x, dt.NonNegative(), live=True)
    mask = torch.zeros(6, 5)
    mask[1:3] = 1
    R = explainer.relevance(x, dt.margin()).detach()
    found = dt.losses.share_inside(explainer, x, mask, reduction="none").detach()
    assert torch.allclose(found, R[:, 1:3].flatten(1).sum(1) / R.flatten(1).sum(1))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_mask_of_another_shape_is_refused() -> None:
    t = make_trained("cnn")
    explainer = dt.Explainer(t.model, t.x, t.domain, live=True)
    with pytest.raises(dt.InputError, match=r"The mask has shape \(8, 7\); for these maps it has \(3, 2, 8, 8\)"):
        dt.losses.share_inside(explainer, t.x, torch.ones(8, 7))
    with pytest.raises(dt.InputError, match="outside of"):
        dt.losses.share_inside(explainer, t.x, torch.full((8, 8), 2.0))
    with pytest.raises(dt.InputError, match="A mask is a tensor"):
        dt.losses.share_inside(explainer, t.x, [[1, 0]])  # type: ignore[arg-type]


def test_as_many_samples_as_channels_make_a_mask_ambiguous() -> None:
    t = make_trained("cnn")
    explainer = dt.Explainer(t.model, t.x, t.domain, live=True)
    with pytest.raises(dt.InputError, match="ambiguous"):
        dt.losses.share_inside(explainer, t.x[:2], torch.ones(2, 8, 8))
    dt.losses.share_inside(explainer, t.x[:2], torch.ones(2, 1, 8, 8))


def test_what_is_not_live_is_refused() -> None:
    t = make_trained("cnn")
    explainer = dt.Explainer(t.model, t.x, t.domain)
    with pytest.raises(dt.InputError, match="live=True"):
        dt.losses.total_variation(explainer, t.x)


def test_a_loss_without_gradients_is_refused() -> None:
    explainer, x = plain()
    with torch.no_grad(), pytest.raises(dt.InputError, match=r"torch.no_grad"):
        dt.losses.total_variation(explainer, x)


def test_other_mistakes_are_named() -> None:
    explainer, x = plain()
    with pytest.raises(dt.TargetError, match="not both"):
        dt.losses.total_variation(explainer, x, 0, target=1)
    with pytest.raises(dt.TargetError, match="several"):
        dt.losses.total_variation(explainer, x, target=[0, 1])
    with pytest.raises(dt.InputError, match="reduction is"):
        dt.losses.total_variation(explainer, x, reduction="sum")  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match="give the same shapes"):
        dt.losses.map_distance(explainer, x, torch.ones(2, 4))
    two = dt.Explainer(_Two(), (x, x), live=True)
    with pytest.raises(dt.InputError, match="has 2 inputs with maps"):
        dt.losses.total_variation(two, (x, x))


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(x + y)
