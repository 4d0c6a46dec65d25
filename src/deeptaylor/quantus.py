"""Explanations for Quantus: pass `explain_func` to its metrics and to `quantus.evaluate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from deeptaylor.engine.inputs import first_float
from deeptaylor.errors import InputError
from deeptaylor.explainer import Explainer
from deeptaylor.settings import AUTO
from deeptaylor.support.explainer_cache import ExplainerCache, SameObject

__all__ = ["explain_func"]

_SETTINGS = ("domain", "reference", "background", "rules", "first", "bias", "max_pool", "local", "output")
_cache: ExplainerCache[Explainer] = ExplainerCache(2)  # metrics ask about the same network again and again


def explain_func(
    model: nn.Module, inputs: Any, targets: Any, *, method: str = AUTO, contrast: bool = False,
    device: Any = None, **settings: Any,
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the relevance of inputs, an array of their shape, for Quantus.

    model      the network, a torch.nn.Module
    inputs     an array, samples along the first axis
    targets    the class of each sample, or one class for all
    method     as for dt.Explainer
    contrast   True: what distinguishes each class from its rivals, see `Explainer.contrast`
    device     without effect: Quantus passes it, and the network computes where it is
    settings   further settings of dt.Explainer, such as domain and reference

    Quantus passes what its argument `explain_func_kwargs` holds.

    >>> import numpy as np, torch
    >>> explain_func(torch.nn.Linear(2, 3), np.ones((4, 2)), np.array([0, 1, 2, 0]), method="deep-taylor").shape
    (4, 2)
    """
    strange = [name for name in settings if name not in _SETTINGS]
    if strange:
        raise InputError(
            f"explain_func has no setting {strange[0]!r}: it has method, contrast and {', '.join(_SETTINGS)}."
        )
    like = first_float(model.parameters())
    x = torch.as_tensor(np.asarray(inputs))
    x = x.to(like) if like is not None and x.is_floating_point() else x
    classes = torch.as_tensor(np.asarray(targets), device=x.device)
    classes = classes.long().reshape(-1).expand(len(x)) if classes.numel() == 1 else classes.long().reshape(-1)

    def make() -> Explainer:
        return Explainer(model, method=method, **settings)

    def ask(explainer: Explainer) -> Any:
        found = explainer.contrast(x, classes) if contrast else explainer.explain(x, classes)
        return found.relevance

    key = (SameObject(model), method, *((name, SameObject(value)) for name, value in sorted(settings.items())))
    relevance: npt.NDArray[Any] = _cache.answer(key, make, ask).detach().cpu().numpy()
    return relevance
