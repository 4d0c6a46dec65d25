"""`explain_func` for Quantus: arrays in and out, cached explainers, and Quantus' own metrics where it is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import deeptaylor as dt
import quantus_judge as judge
from deeptaylor.quantus import explain_func
from layout import ROOT


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()


def test_arrays_in_and_out() -> None:
    net, x = network(), np.random.default_rng(0).random((4, 1, 8, 8))  # float64, as Quantus gives them
    classes = np.array([0, 1, 2, 0])
    found = explain_func(net, x, classes, method="secant", device="cpu")
    assert isinstance(found, np.ndarray)
    assert found.shape == x.shape
    wanted = dt.explain(net, torch.tensor(x, dtype=torch.float32), torch.tensor(classes), method="secant").relevance
    np.testing.assert_array_equal(found, wanted.numpy())
    one = explain_func(model=net, inputs=x[:1], targets=1, method="secant")
    np.testing.assert_allclose(one, found[:0].sum() + explain_func(net, x[:1], [1], method="secant"))


def test_domain_and_contrast() -> None:
    net, x = network(), np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    whole = explain_func(net, x, [0, 1], method="deep-taylor", domain=dt.Box(0, 1))
    part = explain_func(net, x, [0, 1], method="deep-taylor", domain=dt.Box(0, 1), contrast=True)
    assert float(whole.min()) >= 0
    assert part.sum() < whole.sum()


def test_a_network_that_is_randomised_is_explained_as_it_is_now() -> None:
    net, x = network(), np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    before = explain_func(net, x, [0, 1], method="secant", reference="zeros")
    with torch.no_grad():
        net[3].weight.mul_(-1)
    after = explain_func(net, x, [0, 1], method="secant", reference="zeros")
    assert not np.allclose(before, after)


def test_the_network_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = network(), np.random.default_rng(0).random((2, 1, 8, 8), dtype=np.float32)
    made: list[int] = []
    real = dt.Explainer.__init__

    def counted(self: dt.Explainer, *args: object, **kwargs: object) -> None:
        made.append(1)
        real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(dt.Explainer, "__init__", counted)
    for _ in range(3):
        explain_func(net, x, [0, 1], method="deep-taylor", bias="spread")
    assert len(made) == 1
    explain_func(net, x, [0, 1], method="deep-taylor", bias="neuron")
    assert len(made) == 2


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(dt.InputError, match="has no setting 'xai_lib'"):
        explain_func(network(), np.zeros((1, 1, 8, 8)), [0], xai_lib="captum")


METRICS = """
import json, warnings
import numpy as np, torch
import quantus_judge, judged
from deeptaylor.quantus import explain_func
warnings.simplefilter("ignore")
torch.set_num_threads(1)
q = quantus_judge.load()
net, x, y = judged.network().float(), judged.pictures().astype("float32")[:3], judged.classes()[:3]
own = {"disable_warnings": True}
given = dict(
    model=net, x_batch=x, y_batch=y, explain_func=explain_func,
    explain_func_kwargs={"method": "secant", "reference": "mean"}, device="cpu",
)
found = {
    "MaxSensitivity": q.MaxSensitivity(nr_samples=2, **own)(**given),
    "PixelFlipping": [float(np.mean(s)) for s in q.PixelFlipping(features_in_step=64, **own)(**given)],
    "FaithfulnessCorrelation": q.FaithfulnessCorrelation(nr_runs=10, subset_size=32, **own)(**given),
    "MPRT": [float(v) for scores in q.MPRT(seed=0, **own)(**given).values() for v in np.ravel(scores)],
    "Sparseness": q.Sparseness(**own)(**given),
    "Completeness": [bool(s) for s in q.Completeness(**own)(**given)],
}
print(json.dumps({k: [float(v) for v in np.ravel(s)] for k, s in found.items()}))
"""


@pytest.mark.skipif(importlib.util.find_spec("quantus") is None, reason="Quantus is not installed")
def test_the_metrics_of_quantus_take_it() -> None:
    helpers = Path(judge.__file__).parent
    program = f"import sys; sys.path[:0] = {[str(helpers), str(ROOT / 'src')]!r}\n{METRICS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) == 6
    assert all(values and np.isfinite(values).all() for values in found.values()), found
    assert np.std(found["MPRT"]) > 0
