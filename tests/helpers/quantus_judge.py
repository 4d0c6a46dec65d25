"""What Quantus says of judged.py: python tests/helpers/quantus_judge.py > tests/golden/quantus.json

Quantus makes tensors of torch's default type, so that this is a program of its own. Where a torchvision that was built
for another torch does not load, which Quantus imports for two of its networks, its compiled parts are left out.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
import torch

from deeptaylor.evaluation.metrics import add_noise
from judged import CLASSES, classes, colours, maps, masks, network, noise_maps, pictures

OWN = {"abs": False, "normalise": False, "disable_warnings": True}
EACH = {"normalise_func_kwargs": {"normalise_axes": [1, 2, 3]}}  # maps are scaled one by one, not by the batch
PERCENTAGES = [0.78125, 1.5625, 3.125, 6.25, 50, 87.5]  # of 256 pixels
SEED, AMOUNT, DRAWS, FEATURES = 42, 0.02, 3, 16


def explained(model: Any, inputs: Any, targets: Any, **_: Any) -> np.ndarray:
    return maps(model, torch.as_tensor(inputs), torch.as_tensor(targets)).numpy()


def judged(q: Any) -> dict[str, Any]:
    """Every number by the name of Quantus' metric."""
    net, x, y = network(), pictures(), classes()
    R = explained(net, x, y)
    given = {"model": net, "x_batch": x, "y_batch": y, "a_batch": R, "explain_func": explained, "softmax": True}
    road = q.ROAD(percentages=PERCENTAGES, noise=0.0, **OWN)
    found = {
        "PixelFlipping": q.PixelFlipping(features_in_step=FEATURES, perturb_baseline=0.0, **OWN)(**given),
        "RegionPerturbation": q.RegionPerturbation(patch_size=4, perturb_baseline="black", **OWN)(**given),
        "RegionPerturbation, lerf": q.RegionPerturbation(patch_size=4, order="lerf", **OWN)(**given),
        "ROAD": list(road(**given).values()),
        "ROAD, least first": list(road(**given | {"a_batch": -R}).values()),
        "ROAD, noise": list(road(**given | {"a_batch": noise_maps()}).values()),
        "FaithfulnessEstimate": q.FaithfulnessEstimate(perturb_baseline=0.0, **OWN)(**given),
        "RelevanceMassAccuracy": q.RelevanceMassAccuracy(**OWN)(**given | {"a_batch": abs(R)}, s_batch=masks()),
        "MPRT, top-down": q.MPRT(layer_order="top_down", seed=SEED, **OWN)(**given),
        "MPRT, bottom-up": q.MPRT(layer_order="bottom_up", seed=SEED, **OWN)(**given),
        "EfficientMPRT": q.EfficientMPRT(seed=SEED, **OWN)(**given),
        "Continuity": q.Continuity(**OWN | EACH | {"normalise": True})(**given),
    }
    picture, away = colours()
    imputation = importlib.import_module("quantus.functions.perturb_func").noisy_linear_imputation
    found["noisy_linear_imputation"] = imputation(picture, np.flatnonzero(away), noise=0.0)
    for name, similarity in (("ssim", q.ssim), ("spearman", q.correlation_spearman)):
        seen: list[list[int]] = []

        def watched(targets: Any, seen: list[list[int]] = seen, **of: Any) -> np.ndarray:
            seen.append(np.asarray(targets).tolist())
            return explained(targets=targets, **of)

        metric = q.RandomLogit(similarity_func=similarity, num_classes=CLASSES, **OWN | EACH | {"normalise": True})
        found[f"RandomLogit, {name}"] = metric(**given | {"explain_func": watched})
        found["RandomLogit, others"] = seen[-1]
    moved = add_noise(torch.from_numpy(x), AMOUNT, DRAWS, SEED).numpy()
    found["MaxSensitivity"] = [
        q.MaxSensitivity(nr_samples=1, perturb_func=lambda arr, to=to, **_: to.reshape(arr.shape), **OWN)(**given)
        for to in moved
    ]  # of every draw: they are not of quite the same length
    return {"version": version("quantus"), **{name: plain(value) for name, value in found.items()}}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return np.asarray(value).round(10).tolist()


def text(found: dict[str, Any]) -> str:
    """JSON with a line a metric."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()) + "\n}"


def load() -> Any:
    try:
        return importlib.import_module("quantus")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [n for n in sys.modules if n.partition(".")[0] in ("torchvision", "quantus")]:
        del sys.modules[name]
    for name in ("torchvision._meta_registrations", "torchvision._autograd_registrations"):
        sys.modules[name] = ModuleType(name)
    return importlib.import_module("quantus")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    print(text(judged(load())))
