"""A network that changed is refused until refreshed; checksums that see every change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.change_detection import checksums
from refusals import mlp, noisy, refusal, says


def _step(net: nn.Module) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def _load(net: nn.Module) -> None:
    net.load_state_dict({k: v + 0.5 for k, v in net.state_dict().items()})


def _whole_data(net: nn.Module) -> None:
    net[0].weight.data.mul_(2)


def _one_value_of_data(net: nn.Module) -> None:
    net[0].weight.data[1, 1] += 1


def _other_data(net: nn.Module) -> None:
    net[0].weight.data = net[0].weight.data + 1


def _replaced(net: nn.Module) -> None:
    net[0].weight = nn.Parameter(net[0].weight.detach() * 2)


def _no_grad(net: nn.Module) -> None:
    with torch.no_grad():
        net[0].weight[3, 2] -= 1


def _fused_step(net: nn.Module) -> None:
    net(torch.ones(1, 4)).sum().backward()
    torch.optim.Adam(net.parameters(), lr=0.1, fused=True).step()  # writes without torch counting it


def _signs_of_data(net: nn.Module) -> None:
    net[0].weight.data[:, 3].neg_()


def _negated_data(net: nn.Module) -> None:
    net[0].weight.data.neg_()


def _permuted_data(net: nn.Module) -> None:
    net[0].weight.data.copy_(net[0].weight.data.flip(1))


CHANGES = [
    _step, _fused_step, _load, _whole_data, _one_value_of_data, _signs_of_data, _negated_data, _permuted_data,
    _other_data, _replaced, _no_grad
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_a_changed_network_is_refused_until_refreshed(change: Any) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    before = explainer.explain(x, 0)
    change(net)
    text = refusal(explainer, x, 0, dt.StaleModelError)
    says(text, "changed since it was captured", "0.weight", "explainer.refresh()")
    with pytest.raises(dt.StaleModelError):
        before.at("1")
    assert explainer.refresh() is explainer
    after = explainer.explain(x, 0)
    assert torch.equal(after.relevance, dt.Explainer(net, x, dt.NonNegative(), bias="neuron").explain(x, 0).relevance)
    assert torch.allclose(after.score, net(x)[:, 0])
    assert not torch.equal(after.score, before.score)


def test_plain_tensors_are_refused_too_where_the_network_changed() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    explainer(x, 0)
    with torch.no_grad():
        net[0].weight.mul_(2)
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x, 0)


@pytest.mark.parametrize("fused", [False, True])
def test_plain_tensors_are_refused_too_after_a_step_of_training(fused: bool) -> None:
    net, other, x = mlp(), mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    for trained in (other, net):  # the first is somebody else's
        explainer(x, 0)
        trained(x).sum().backward()
        torch.optim.AdamW(trained.parameters(), lr=0.1, fused=fused).step()
    with pytest.raises(dt.StaleModelError, match="refresh"):
        explainer(x, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.__setitem__(1, nn.Tanh()),
        lambda net: net.append(nn.Linear(3, 2)),
        lambda net: net.append(nn.ReLU()),
        lambda net: net.__setitem__(1, nn.LeakyReLU(0.5)),
    ],
    ids=["replaced", "layer more", "activation more", "other slope"],
)
def test_a_network_with_other_parts_is_refused(change: Any) -> None:
    x = torch.rand(2, 4)
    net = nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3)).eval()
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    change(net)
    says(refusal(explainer, x, 0, dt.StaleModelError), "(module)", "refresh()")
    with pytest.raises(dt.StaleModelError):
        explainer(x, 0)


def test_a_part_replaced_by_its_like_is_no_change() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    before = explainer(x, 0)[1]
    net[1] = nn.ReLU()
    assert torch.equal(explainer(x, 0)[1], before)
    assert torch.equal(explainer.explain(x, 0).relevance, before)


def test_what_modules_say_of_themselves_is_no_change() -> None:
    class Talking(nn.ReLU):
        """Says something else each time, as modules that count do; or fails."""

        said = 0

        def extra_repr(self) -> str:
            self.said += 1
            assert self.said < 3
            return str(self.said)

    net, x = nn.Sequential(nn.Linear(4, 5), Talking(), nn.Dropout(0.5), nn.Linear(5, 3)).eval(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    net[2].p = 0.1
    for _ in range(4):
        explainer.explain(x)


def checksum_of(t: Tensor) -> int:
    """Among others, which must not matter."""
    return checksums([torch.ones(3), t, torch.zeros(0), t[:1]])[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("size", [1, 7, 64, 1021, 30000, 600001])
def test_the_checksum_sees_a_bit_a_sign_and_an_order(dtype: torch.dtype, size: int) -> None:
    t = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 100).to(dtype)
    known = checksum_of(t)
    assert checksum_of(t.clone()) == known
    assert checksum_of(torch.cat([t[:1], t])[1:]) == known  # wherever it begins
    for k in {0, size // 3, size - 1}:
        bits = t.clone().view(torch.uint8)
        place = k * t.element_size()
        bits[place] ^= 1
        assert checksum_of(bits.view(dtype)) != known
        bits[place] ^= 1
        bits[place + t.element_size() - 1] ^= 128  # the sign
        assert checksum_of(bits.view(dtype)) != known
    if size > 1:
        assert checksum_of(t.roll(1)) != known
    assert checksum_of(-t) != known


def test_a_refresh_that_fails_leaves_the_network_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, dt.NonNegative(), bias="neuron")
    with torch.no_grad():
        net[0].weight.mul_(2)
    with monkeypatch.context() as broken:
        broken.setattr(net, "forward", lambda x: x.nonsense())
        with pytest.raises(dt.CaptureError):
            explainer.refresh()
    with pytest.raises(dt.StaleModelError):
        explainer(x, 0)
    explainer.refresh()
    explainer(x, 0)


def test_a_changed_buffer_is_refused() -> None:
    net, x = noisy().eval(), torch.rand(3, 4)
    explainer = dt.Explainer(net, x, bias="neuron")
    net.train()(x)  # updates the running statistics
    says(refusal(explainer, x, 0, dt.StaleModelError), "running_mean", "refresh()")


def test_a_changed_network_is_refused_for_a_callable_target_too() -> None:
    net, x = mlp(), torch.rand(2, 4)
    explainer = dt.Explainer(net, x, bias="neuron")

    def difference(out: Tensor) -> Tensor:
        return out[:, 1] - out[:, 0]

    explainer.explain(x, difference)
    _no_grad(net)
    with pytest.raises(dt.StaleModelError, match=r"refresh\(\)"):
        explainer.explain(x, difference)
    e = explainer.refresh().explain(x, difference)
    assert torch.allclose(e.score, difference(net(x)))


def test_gradients_and_modes_do_not_make_a_network_stale() -> None:
    net, x = noisy().eval(), torch.rand(3, 4)
    explainer = dt.Explainer(net, x, bias="neuron")
    net(x).sum().backward()
    net.train().requires_grad_(False)
    assert explainer.explain(x).relevance.shape == x.shape
