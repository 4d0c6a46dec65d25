from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deeptaylor as dt
from deeptaylor.models.networks import paper_networks
from deeptaylor.models.networks.paper_networks import (
    PAPER_NETWORKS,
    DetectionPooling,
    OneLayer,
    TwoLayer,
    WeightsError,
    load_network,
    save_network,
)
from deeptaylor.support.optional import how_to_install

safetensors = pytest.importorskip("safetensors.torch")


def images(count: int = 6) -> torch.Tensor:
    return torch.rand(count, 1, 28, 56, generator=torch.Generator().manual_seed(1)) * 2 - 0.5


def with_biases(network: DetectionPooling) -> DetectionPooling:
    """Biases −0.3 … 0, so that they count."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.3, 0, generator=generator)
    return network.eval()


def arrays(network: DetectionPooling) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    return {name: value.double().numpy() for name, value in network.state_dict().items()}


def test_one_layer_is_the_formula() -> None:
    network = with_biases(OneLayer(seed=5))
    p, x = arrays(network), images().double().numpy().reshape(6, 1568)
    expected = np.maximum(0, x @ p["detection.weight"].T + p["detection.bias"]).sum(1)
    with torch.no_grad():
        f = network(images())
    assert f.shape == (6,)
    np.testing.assert_allclose(f.numpy(), expected, rtol=1e-5)


def test_two_layers_are_the_formula() -> None:
    network = with_biases(TwoLayer(seed=5))
    p, x = arrays(network), images().double().numpy().reshape(6, 1568)
    x_j = np.maximum(0, x @ p["detection1.weight"].T + p["detection1.bias"])
    x_k = np.stack([x_j[:, 4 * k : 4 * k + 4].sum(1) for k in range(100)], 1)
    expected = np.maximum(0, x_k @ p["detection2.weight"].T + p["detection2.bias"]).sum(1)
    assert isinstance(network, TwoLayer)
    with torch.no_grad():
        np.testing.assert_allclose(network.features(images()).numpy(), x_k, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(network(images()).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_how_weights_begin(name: str) -> None:
    network = PAPER_NETWORKS[name](seed=3)
    for key, value in network.state_dict().items():
        if key.endswith("bias"):
            assert (value == 0).all()
        else:
            assert abs(float(value.mean())) < 0.001
            assert abs(float(value.std()) - 0.05) < 0.001
    again, other = PAPER_NETWORKS[name](seed=3), PAPER_NETWORKS[name](seed=4)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(network.parameters()), next(other.parameters()))


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_projection_makes_no_bias_positive_and_changes_nothing_else(name: str) -> None:
    network = PAPER_NETWORKS[name]()
    with torch.no_grad():
        for key, value in network.named_parameters():
            if key.endswith("bias"):
                value.copy_(torch.linspace(-1, 1, 400))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.project_()
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key].clamp(max=0) if key.endswith("bias") else before[key])


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_explanations_are_consistent_and_biases_get_nothing(name: str) -> None:
    network = with_biases(PAPER_NETWORKS[name]())
    x = images()
    e = dt.Explainer(network, x, domain=dt.Box(-0.5, 1.5), bias="neuron").explain(x)
    assert e.relevance.shape == x.shape
    assert e.check().consistent
    assert (e.ledger.bias == 0).all()
    torch.testing.assert_close(e.relevance.sum((1, 2, 3)), network(x).detach())


@pytest.mark.parametrize("name", PAPER_NETWORKS)
def test_weights_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    network = with_biases(PAPER_NETWORKS[name](seed=9))
    file = save_network(network, tmp_path / "weights.safetensors", {"steps": "300"})
    back = load_network(name, file)
    assert type(back) is PAPER_NETWORKS[name]
    assert not back.training
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), back.parameters(), strict=True))
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"steps": "300"}


def test_half_precision_is_widened(tmp_path: Path) -> None:
    tensors = {key: value.half() for key, value in OneLayer().state_dict().items()}
    (tmp_path / "half").write_bytes(safetensors.save(tensors))
    network = load_network("one-layer", tmp_path / "half")
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert torch.equal(network.state_dict()["detection.weight"], tensors["detection.weight"].float())


def test_shipped_weights_are_looked_for_beside_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paper_networks, "WEIGHTS", tmp_path)
    with pytest.raises(
        WeightsError, match=r"two-layer\.safetensors .*make them with: python -m deeptaylor\.paper\.train"
    ):
        load_network("two-layer")
    save_network(TwoLayer(seed=1), tmp_path / "two-layer.safetensors")
    assert torch.equal(next(load_network("two-layer").parameters()), next(TwoLayer(seed=1).parameters()))


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    file = save_network(OneLayer(), tmp_path / "one")
    with pytest.raises(WeightsError, match=r"one holds \{'detection\.bias'.*expected \{'detection1\.weight'"):
        load_network("two-layer", file)
    with pytest.raises(WeightsError, match="no network is called 'three-layer'; there are: one-layer, two-layer"):
        load_network("three-layer")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(WeightsError, match="junk is not a safetensors file"):
        load_network("one-layer", tmp_path / "junk")
    for key, value, message in (
        ("detection.weight", float("nan"), "detection.weight must hold finite"),
        ("detection.bias", 0.1, "detection.bias holds positive numbers"),
    ):
        network = OneLayer()
        with torch.no_grad():
            network.get_parameter(key).view(-1)[7] = value
        with pytest.raises(WeightsError, match=message):
            load_network("one-layer", save_network(network, tmp_path / "wrong"))


def test_without_safetensors_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(dt.DeepTaylorError, match=re.escape(how_to_install("paper"))):
        load_network("one-layer")
    with pytest.raises(dt.DeepTaylorError, match=re.escape(how_to_install("paper"))):
        save_network(OneLayer(), tmp_path / "file")
