"""A network in training mode: a warning, an explanation in eval mode, and the mode as it was."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.errors import MismatchError
from refusals import mlp, noisy, says

HERE = __file__


def test_training_mode_warns_and_is_explained_in_eval_mode() -> None:
    net, x = noisy(), torch.rand(3, 4)
    net[4].eval()
    modes = [m.training for m in net.modules()]
    with pytest.warns(dt.DeepTaylorWarning) as record:
        e = dt.explain(net, x, 1, dt.NonNegative(), bias="neuron")
    says(record[0].message, "training mode", "BatchNorm1d", "Dropout", "eval", "restored", "model.eval()")
    assert [m.training for m in net.modules()] == modes
    quiet = dt.explain(net.eval(), x, 1, dt.NonNegative(), bias="neuron")
    assert torch.equal(e.relevance, quiet.relevance)
    assert torch.allclose(e.score, net(x)[:, 1], atol=1e-6)


def test_the_training_warning_points_at_the_users_line() -> None:
    with pytest.warns(dt.DeepTaylorWarning) as record:
        dt.Explainer(noisy(), torch.rand(3, 4), bias="neuron")
    assert [w.filename for w in record] == [HERE]


def test_training_mode_is_restored_after_an_exception() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    net = nn.Sequential(noisy(), Fails())
    net[0][3].eval()
    modes = [m.training for m in net.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.warns(dt.DeepTaylorWarning, match="training mode"), pytest.raises(dt.CaptureError):
        dt.Explainer(net, torch.rand(3, 4), bias="neuron")
    assert [m.training for m in net.modules()] == modes
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_training_mode_of_what_does_not_differ_is_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dt.Explainer(mlp().train(), torch.rand(2, 4), bias="neuron")


def test_batch_norm_without_statistics_mixes_samples_and_is_refused() -> None:
    net = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 3)
    ).eval()
    with pytest.raises(MismatchError) as info:
        dt.Explainer(net, torch.rand(2, 4), bias="neuron")
    says(info.value, "depends on the other samples", "batch_norm", "module '1'")
