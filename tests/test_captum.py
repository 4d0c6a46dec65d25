"""captum's interface: the checks that captum makes of its own methods, and captum's own tools around ours."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from captum.attr import DeepLift, GradientAttribution, IntegratedGradients, LayerIntegratedGradients, NoiseTunnel
from captum.metrics import infidelity, sensitivity_max
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.captum import Contrast, DeepTaylor, LayerDeepTaylor, LayerSecantAttribution, SecantAttribution
from untouched import changes, snapshot

PICTURE = dt.Box(0, 1)
TARGETS = [1, torch.tensor(1), (1,), torch.tensor([0, 1, 2, 0]), [0, 1, 2, 0], -1]


def pictures(batch: int = 4) -> Tensor:
    return torch.rand(batch, 1, 8, 8, dtype=torch.float64)


def classifier(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=bias), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3, bias=bias)
    ).double()


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 2, 3, padding=1)).double()


def positive(network: nn.Sequential) -> nn.Sequential:
    """The network with a last layer that gives positive scores, so that deep Taylor drops nothing."""
    network[-1].weight.data.abs_()
    return network


class Tokens(nn.Module):
    """Two inputs, and four further arguments of which one is a mask, one a number without samples and one a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.last = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, shift: Tensor, mask: Tensor, scale: Tensor, squashed: bool, unused: None) -> Tensor:
        assert mask.dtype == torch.bool
        h = self.last((self.embed(ids) * mask[..., None]).sum(1)) + shift
        return (torch.tanh(h) if squashed else h) * scale


def token_call() -> tuple[tuple[Tensor, Tensor], tuple[Any, ...]]:
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    inputs = torch.randint(0, 10, (2, 5)), torch.rand(2, 3, dtype=torch.float64)
    return inputs, (mask, torch.tensor(2.0, dtype=torch.float64), True, None)


# --- completeness and shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=repr)
@pytest.mark.parametrize("end", [[], [nn.Softmax(1)], [nn.LogSoftmax(1)], [nn.Sigmoid()]], ids=repr)
def test_secants_are_complete_for_the_networks_own_output(end: list[nn.Module], target: Any) -> None:
    network, x = nn.Sequential(*classifier(), *end), pictures()
    method = SecantAttribution(network)
    relevance, delta = method.attribute(x, 0.5, target, return_convergence_delta=True)
    assert relevance.shape == x.shape
    assert float(delta.abs().max()) < 1e-12
    # captum's own check, which runs the network at both points
    own = IntegratedGradients(network).compute_convergence_delta(relevance, torch.full_like(x, 0.5), x, target)
    assert float(own.abs().max()) < 1e-12
    assert method.multiplies_by_inputs


@pytest.mark.parametrize("target", TARGETS, ids=repr)
@pytest.mark.parametrize("end", [[], [nn.Softmax(1)]], ids=repr)
def test_deep_taylor_is_complete_without_biases(end: list[nn.Module], target: Any) -> None:
    network, x = nn.Sequential(*positive(classifier(bias=False)), *end), pictures()
    method = DeepTaylor(network, PICTURE)
    relevance, delta = method.attribute(x, target, return_convergence_delta=True)
    assert relevance.shape == x.shape
    assert float(relevance.min()) >= 0
    output = network(x)
    score = output[:, target] if isinstance(target, int) else output[torch.arange(4), torch.as_tensor(target)]
    assert float(delta.abs().max()) < 1e-12
    assert torch.allclose(method.compute_convergence_delta(relevance, score), torch.zeros(4, dtype=torch.float64))


def test_the_delta_of_deep_taylor_is_what_biases_keep() -> None:
    network, x = positive(classifier()), pictures()
    network[-1].bias.data.fill_(0.5)
    _, delta = DeepTaylor(network, PICTURE, bias="neuron").attribute(x, 0, return_convergence_delta=True)
    found = dt.Explainer(network, domain=PICTURE, bias="neuron").explain(x, 0)
    assert float(delta.min()) > 0.4
    assert torch.allclose(delta, found.score - found.relevance.flatten(1).sum(1))


@pytest.mark.parametrize("target", [(1, 2, 3), [(0, 1, 2), (1, 1, 1), (0, 0, 0), (1, 7, -1)]], ids=repr)
def test_dense_outputs_have_targets_that_are_tuples(target: Any) -> None:
    network, x = dense(), pictures()
    relevance, delta = SecantAttribution(network).attribute(x, None, target, return_convergence_delta=True)
    own = DeepLift(network).compute_convergence_delta(relevance, torch.zeros_like(x), x, target)
    assert float(delta.abs().max()) < 1e-12
    assert float(own.abs().max()) < 1e-12
    rows = target if isinstance(target, list) else [target] * 4
    far = relevance[0, 0, 6:, :3].abs().max() if rows[0][1:] == (2, 3) else relevance[0, 0, 6:].abs().max()
    assert float(far) == 0  # outside of what this place of the output sees


def test_a_sample_of_a_batch_is_the_same_alone() -> None:
    network, x = classifier(), pictures()
    method = SecantAttribution(network)
    together = method.attribute(x, 0, [0, 1, 2, 0])
    assert torch.allclose(together[2:3], method.attribute(x[2:3], 0, 2), atol=1e-14)


def test_one_output_needs_no_target() -> None:
    x = torch.rand(3, 5)
    for network in (nn.Linear(5, 1), nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))):
        assert torch.allclose(SecantAttribution(network).attribute(x), x * network.parameters().__next__(), atol=1e-6)


# --- baselines, tuples, additional arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "baselines", [None, 0, 0.5, torch.full((1, 1, 8, 8), 0.5), torch.rand(4, 1, 8, 8)], ids=["none", "0", "½", "1", "4"]
)
def test_baselines_are_captums(baselines: Any) -> None:
    network, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double(), pictures()
    given = baselines.double() if isinstance(baselines, Tensor) else baselines
    ours = SecantAttribution(network).attribute(x, given, 1)
    assert torch.allclose(ours, IntegratedGradients(network).attribute(x, given, 1), atol=1e-12)


def test_tuples_of_inputs_with_further_arguments() -> None:
    network = Tokens().double()
    inputs, further = token_call()
    method = SecantAttribution(network)
    maps, delta = method.attribute(inputs, (0, 0.0), 1, further, return_convergence_delta=True)
    assert isinstance(maps, tuple)
    assert [R.shape for R in maps] == [(2, 5), (2, 3)]
    own = LayerIntegratedGradients(network, network.embed).compute_convergence_delta(
        maps, (torch.zeros_like(inputs[0]), torch.zeros_like(inputs[1])), inputs, 1, further
    )
    assert float(delta.abs().max()) < 1e-12
    assert float(own.abs().max()) < 1e-12
    assert bool((maps[0][0, 3:] == 0).all())  # masked
    assert isinstance(method.attribute((inputs[0], inputs[1]), (0, 0.0), 1, further), tuple)
    plain = method.attribute(inputs, (0, 0.0), 1, (further[0], further[1], False, None))
    assert not torch.allclose(plain[1], maps[1])


def test_one_input_in_a_tuple_is_answered_by_a_tuple() -> None:
    network, x = classifier(), pictures()
    (relevance,) = DeepTaylor(network, PICTURE).attribute((x,), 0)
    assert torch.equal(relevance, DeepTaylor(network, PICTURE).attribute(x, 0))


def test_a_constant_tensor_that_changes_in_place_is_noticed() -> None:
    network, (inputs, further) = Tokens().double(), token_call()
    method = SecantAttribution(network)
    before = method.attribute(inputs, (0, 0.0), 1, further)
    further[1].mul_(3)
    assert torch.allclose(method.attribute(inputs, (0, 0.0), 1, further)[1], 3 * before[1])


def test_a_network_that_was_trained_on_is_explained_as_it_is_now() -> None:
    network, x = classifier(), pictures()
    method = SecantAttribution(network)
    before = method.attribute(x, 0, 1)
    network[-1].weight.data.mul_(2)
    assert torch.allclose(method.attribute(x, 0, 1), 2 * before)


# --- captum's tools ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nt_type", ["smoothgrad", "smoothgrad_sq", "vargrad"])
@pytest.mark.parametrize("method", [DeepTaylor, SecantAttribution, Contrast])
def test_noise_tunnel(method: Any, nt_type: str) -> None:
    network, x = classifier(), pictures()
    found = NoiseTunnel(method(network)).attribute(x, nt_type, nt_samples=3, stdevs=0.1, target=[0, 1, 2, 0])
    assert found.shape == x.shape
    assert bool(torch.isfinite(found).all())
    assert float(found.abs().max()) > 0


def test_noise_tunnel_without_noise_is_the_method_itself_with_its_delta() -> None:
    network, x = classifier(), pictures()
    method = SecantAttribution(network)
    found, delta = NoiseTunnel(method).attribute(
        x, nt_samples=4, nt_samples_batch_size=2, stdevs=0.0, target=2, baselines=0.5, return_convergence_delta=True
    )
    assert torch.allclose(found, method.attribute(x, 0.5, 2))
    assert delta.shape == (16,)
    assert float(delta.abs().max()) < 1e-12


def test_noise_tunnel_repeats_the_further_arguments() -> None:
    network, (inputs, further) = Tokens().double(), token_call()
    ids, shift = inputs

    class OfShift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, shift: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
            result: Tensor = self.network(ids, shift, mask, *further[1:])
            return result

    method = SecantAttribution(OfShift())
    found = NoiseTunnel(method).attribute(
        shift, nt_samples=2, stdevs=0.0, target=1, additional_forward_args=(ids, further[0])
    )
    assert torch.allclose(found, method.attribute(shift, None, 1, (ids, further[0])))


def test_captums_metrics_take_the_methods() -> None:
    network, x = classifier(), pictures()
    method = SecantAttribution(network)
    moved = sensitivity_max(method.attribute, x, target=1, n_perturb_samples=2)
    assert moved.shape == (4,)
    assert bool(torch.isfinite(moved).all())

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        noise = 0.01 * torch.randn_like(inputs)
        return noise, inputs - noise

    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    assert (
        float(
            infidelity(
                linear, perturb, x, torch.autograd.functional.jacobian(lambda t: linear(t)[:, 1].sum(), x), target=1
            ).max()
        )
        < 1e-20
    )
    assert infidelity(network, perturb, x, method.attribute(x, target=1), target=1).shape == (4,)


def test_methods_are_captums() -> None:
    for method in (DeepTaylor, SecantAttribution, Contrast, LayerDeepTaylor, LayerSecantAttribution):
        assert issubclass(method, GradientAttribution)
    assert SecantAttribution.get_name() == "Secant Attribution"
    network = classifier()
    assert DeepTaylor(network).has_convergence_delta()
    assert not Contrast(network).has_convergence_delta()
    twin = copy.deepcopy(SecantAttribution(network))
    assert twin.attribute(pictures(), target=0).shape == (4, 1, 8, 8)


# --- contrast ---------------------------------------------------------------------------------------------------------


def test_contrast_is_the_explainers() -> None:
    network, x = positive(classifier()), pictures()
    ours = Contrast(network, PICTURE).attribute(x, [0, 2, 2, 0], against=1, power=2)
    classes = torch.tensor([0, 2, 2, 0])
    wanted = dt.Explainer(network, domain=PICTURE, method="deep-taylor").contrast(x, classes, 1, 2)
    assert torch.equal(ours, wanted.relevance)
    by_secants = Contrast(network, method="secant").attribute(x, 0)
    assert torch.allclose(by_secants, dt.Explainer(network, method="secant").contrast(x, 0).relevance)
    assert float(by_secants.min()) < 0


# --- layers -----------------------------------------------------------------------------------------------------------


def test_layers_by_secants_are_complete() -> None:
    network, x = classifier(), pictures()
    before = snapshot(network)
    relevance, delta = LayerSecantAttribution(network, network[1]).attribute(x, None, 1, return_convergence_delta=True)
    assert relevance.shape == (4, 4, 6, 6)
    difference = (network(x) - network(torch.zeros_like(x)))[:, 1]
    assert torch.allclose(relevance.flatten(1).sum(1), difference, atol=1e-12)
    assert float(delta.abs().max()) < 1e-12
    assert not changes(network, before)


def test_what_passes_a_layer_by_stays_as_in_x() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.last(x + self.layer(x)))

    network, x = Residual().double(), torch.rand(3, 4, dtype=torch.float64)
    relevance = LayerSecantAttribution(network, network.layer).attribute(x, None, 0)
    other = torch.tanh(network.last(x + network.layer(torch.zeros_like(x))))
    assert torch.allclose(relevance.sum(1), (network(x) - other)[:, 0], atol=1e-12)
    integrated = LayerIntegratedGradients(network, network.layer).attribute(x, target=0, n_steps=200)
    assert torch.allclose(relevance.sum(1), integrated.sum(1), atol=1e-6)


def test_tokens_are_attributed_at_their_embedding() -> None:
    network, (inputs, further) = Tokens().double(), token_call()
    method = LayerSecantAttribution(network, network.embed)
    at_embedding = method.attribute(inputs, (0, 0.0), 1, further)
    # the shift is as in x in both, while it is zero in the baseline of the whole
    whole = SecantAttribution(network).attribute(inputs, (0, inputs[1]), 1, further)[0]
    assert at_embedding.shape == (2, 5, 4)
    assert torch.allclose(at_embedding.sum((1, 2)), whole.sum(1), atol=1e-12)


def test_layers_by_deep_taylor() -> None:
    network, x = positive(classifier(bias=False)), pictures()
    relevance, delta = LayerDeepTaylor(network, network[1], PICTURE).attribute(x, 1, return_convergence_delta=True)
    assert relevance.shape == (4, 4, 6, 6)
    assert float(delta.abs().max()) < 1e-12
    assert torch.equal(relevance, dt.Explainer(network, domain=PICTURE).explain(x, 1).at("1"))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "name one number"),
        (3, "out of range: the output has the shape"),
        ((0, 1), "a target is a tuple of 1 numbers"),
        ([0, 1], "2 targets were given for 4 samples"),
        (torch.tensor([0.5]), "whole numbers"),
        ("cat", "whole numbers"),
    ],
)
def test_targets_that_do_not_fit(target: Any, words: str) -> None:
    for method in (DeepTaylor(classifier()), SecantAttribution(classifier())):
        with pytest.raises(dt.TargetError, match=words):
            method.attribute(pictures(), target=target)


def test_a_class_of_a_dense_output_needs_its_place() -> None:
    with pytest.raises(dt.TargetError, match="a tuple of 3 numbers"):
        SecantAttribution(dense()).attribute(pictures(), target=1)


def test_other_refusals() -> None:
    network, x = classifier(), pictures()
    with pytest.raises(dt.InputError, match="shaped like its input"):
        SecantAttribution(network).attribute(x, torch.zeros(2, 1, 8, 8), 0)
    with pytest.raises(dt.InputError, match="2 baselines were given for 1 inputs"):
        SecantAttribution(network).attribute(x, (0, 0), 0)
    with pytest.raises(dt.InputError, match="a number or a tensor; got str"):
        SecantAttribution(network).attribute(x, "blur", 0)  # type: ignore[type-var]
    with pytest.raises(dt.InputError, match="a tensor, or a tuple of tensors; got list"):
        DeepTaylor(network).attribute([x], 0)  # type: ignore[type-var]
    with pytest.raises(dt.PlanError, match=r"Put the function into a torch\.nn\.Module"):
        DeepTaylor(lambda t: t)  # type: ignore[arg-type]
    with pytest.raises(dt.InputError, match="not a module inside the network"):
        LayerDeepTaylor(network, nn.ReLU())
    twice = nn.Sequential(network[0], activation := nn.ReLU(), nn.Conv2d(4, 1, 3).double(), activation)
    with pytest.raises(dt.InputError, match="calls the layer '1' 2 times"):
        LayerSecantAttribution(twice, activation).attribute(x, None, (0, 0, 0))
    pair = nn.Sequential(nn.GRU(4, 3), nn.Identity())
    with pytest.raises(dt.InputError, match="gives tuple, not one tensor"):
        LayerSecantAttribution(pair, pair[0]).attribute(torch.rand(2, 5, 4), None, 0)


def test_a_missing_captum_is_said() -> None:
    program = "import sys; sys.modules['captum'] = None; sys.modules['captum.attr'] = None; import deeptaylor.captum"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "deeptaylor.captum has captum's interface; the package" in done.stderr
