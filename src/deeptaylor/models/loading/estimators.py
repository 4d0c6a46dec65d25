"""Fitted estimators of scikit-learn that are networks: linear models and multilayer perceptrons, also behind scalers.

An estimator is told by its class's name and what it has learnt, so that scikit-learn need not be installed. The network
is the model in float64. Scalers before it are the preprocessing: rows are given in their own units, and relevance is
that of the scaled columns, which does not depend on the units.
A classifier of two classes with the decision function z has the scores −z/2 and z/2: their difference is z.
Probabilities are those of predict_proba (`_find_probabilities`); a model without any has scores alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from deeptaylor.domain import Box, Domain, Real
from deeptaylor.errors import InputError, LoadError
from deeptaylor.models.loading.request import ClassNames
from deeptaylor.models.networks.preprocessing import Preparation, Scaling
from deeptaylor.models.networks.pretrained import Pretrained
from deeptaylor.support.tables import default_column_names

__all__ = ["has_layers", "has_scaler", "is_estimator", "load_estimator"]

_Array = npt.NDArray[np.float64]
_Layer = tuple[_Array, _Array]  # W (outputs, inputs) and b
_CLASSIFIERS = (
    "LogisticRegression", "LogisticRegressionCV", "LinearSVC", "SGDClassifier", "RidgeClassifier", "RidgeClassifierCV",
    "Perceptron",
)  # fmt: skip
_REGRESSORS = (
    "LinearRegression", "Ridge", "RidgeCV", "Lasso", "LassoCV", "ElasticNet", "ElasticNetCV", "SGDRegressor",
    "LinearSVR", "HuberRegressor",
)  # fmt: skip
_PERCEPTRONS = ("MLPClassifier", "MLPRegressor")
_SCALERS = ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler")
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


def is_estimator(source: object) -> bool:
    """Return whether an object looks like an estimator of scikit-learn, fitted or not."""
    return not isinstance(source, (type, nn.Module)) and all(hasattr(source, name) for name in ("get_params", "fit"))


def has_layers(source: object) -> bool:
    """Return whether an estimator, or the last step of a Pipeline, is one that `load_estimator` reads."""
    return type(_last_step(source)).__name__ in (*_CLASSIFIERS, *_REGRESSORS, *_PERCEPTRONS)


def has_scaler(source: object) -> bool:
    """Return whether an estimator is behind other steps, such as a scaler."""
    return _last_step(source) is not source


def _last_step(source: Any) -> Any:
    return _last_step(source.steps[-1][1]) if type(source).__name__ == "Pipeline" and source.steps else source


def load_estimator(
    source: Any, preparation: Preparation | None, domain: Domain | None, class_names: ClassNames
) -> Pretrained:
    """Return the estimator as a network in float64, with the names of its columns and classes."""
    if preparation is not None:
        raise LoadError("A preparation is for photographs; an estimator reads rows of a table: give a domain.")
    scalers, model = _split_pipeline(source)
    kind = type(model).__name__
    if kind not in (*_CLASSIFIERS, *_REGRESSORS, *_PERCEPTRONS):
        raise LoadError(_unsupported_message(kind))
    layers = _read_perceptron(model) if kind in _PERCEPTRONS else [_read_linear(model)]
    scalings = [_read_scaling(scaler, layers[0][0].shape[1]) for scaler in scalers]
    try:
        known = _find_domain(scalers, scalings, kind) if domain is None else _scale_domain(scalings, domain)
    except InputError as error:
        raise LoadError(str(error)) from error
    classes = _read_classes(model, layers[-1])
    if classes is not None and len(layers[-1][0]) == 1 and len(classes) == 2:
        layers[-1] = _split_in_two(layers[-1])
    given = classes if class_names is ... else class_names
    return Pretrained(
        _build_network(layers, getattr(model, "activation", "identity"), one_number=classes is None),
        None if given is None else tuple(map(str, given)),
        None,
        known,
        (f"{kind} of scikit-learn, as a network in float64",),
        _name_features(source, layers[0]),
        reduce(Scaling.then, scalings) if scalings else None,
        _find_probabilities(model, len(layers[-1][0])),
    )


def _unsupported_message(kind: str) -> str:
    return (
        f"{kind} has no layers that dt.load can read. Explain it by Shapley values: dt.explain(model, rows, "
        "background=X_train). Of scikit-learn, dt.load reads "
        f"{', '.join((*_PERCEPTRONS, *_CLASSIFIERS, *_REGRESSORS))}, alone or in a Pipeline after "
        f"{', '.join(_SCALERS)}."
    )


def _split_pipeline(source: Any) -> tuple[list[Any], Any]:
    """Return the scalers in order, and the model behind them."""
    if type(source).__name__ != "Pipeline":
        return [], source
    steps = [step for _, step in source.steps if step not in (None, "passthrough")]
    if not steps:
        raise LoadError("This Pipeline has no steps.")
    scalers: list[Any] = []
    for step in steps[:-1]:
        inner, last = _split_pipeline(step)
        if (kind := type(last).__name__) not in _SCALERS:
            raise LoadError(
                f"dt.load takes {', '.join(_SCALERS)} before a model, and this Pipeline has {kind}. Apply the steps "
                "yourself: dt.load(pipeline[-1], …), and give it rows of pipeline[:-1].transform(X)."
            )
        scalers += [*inner, last]
    inner, model = _split_pipeline(steps[-1])
    return [*scalers, *inner], model


# --- what was learnt --------------------------------------------------------------------------------------------------


def _read_fitted(estimator: Any, name: str) -> Any:
    if not hasattr(estimator, name):
        raise LoadError(f"This {type(estimator).__name__} has not been fitted yet: it has no {name}.")
    return getattr(estimator, name)


def _to_array(values: Any) -> _Array:
    return np.asarray(values.toarray() if hasattr(values, "toarray") else values, dtype=np.float64)


def _read_linear(model: Any) -> _Layer:
    W = np.atleast_2d(_to_array(_read_fitted(model, "coef_")))
    return W, np.broadcast_to(_to_array(_read_fitted(model, "intercept_")).reshape(-1), (len(W),)).copy()


def _read_perceptron(model: Any) -> list[_Layer]:
    end = _read_fitted(model, "out_activation_")
    if type(model).__name__ == "MLPRegressor" and end != "identity":
        raise LoadError(f"This MLPRegressor ends in {end}; dt.load needs the output of the last layer itself.")
    weights, biases = _read_fitted(model, "coefs_"), _read_fitted(model, "intercepts_")
    return [(_to_array(W).T, _to_array(b)) for W, b in zip(weights, biases, strict=True)]


def _read_scaling(scaler: Any, columns: int) -> Scaling:
    """Return what a fitted scaler does to the columns."""
    kind = type(scaler).__name__
    if getattr(scaler, "clip", False):
        raise LoadError(f"This {kind} cuts values off (clip=True), which no scaling does: fit it without.")
    scale = _read_fitted(scaler, "scale_")
    factor = np.ones(columns) if scale is None else _to_array(scale)
    center, shift = np.zeros(columns), np.zeros(columns)
    if kind == "MinMaxScaler":
        shift = _to_array(_read_fitted(scaler, "min_"))
    else:
        factor = 1 / factor
    for name, wanted in (("mean_", "with_mean"), ("center_", "with_centering")):
        if getattr(scaler, wanted, False):
            center = _to_array(_read_fitted(scaler, name))
    return Scaling(*(torch.from_numpy(np.ascontiguousarray(t)) for t in (center, factor, shift)))


def _split_in_two(layer: _Layer) -> _Layer:
    """Return −z/2 and z/2 of one z."""
    W, b = layer
    return np.concatenate([-W, W]) / 2, np.concatenate([-b, b]) / 2


# --- the network and what belongs to it -------------------------------------------------------------------------------


class _OneNumber(nn.Module):
    """(batch, 1) as (batch,): one number per sample, which is no class."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


def _build_network(layers: list[_Layer], activation: str, one_number: bool) -> nn.Sequential:
    modules: list[nn.Module] = []
    for k, (W, b) in enumerate(layers):
        if k:
            modules.append(_ACTIVATIONS[activation]())
        linear = nn.Linear(W.shape[1], len(W), dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(W)))
            linear.bias.copy_(torch.from_numpy(b))
        modules.append(linear)
    if one_number and len(layers[-1][0]) == 1:
        modules.append(_OneNumber())
    return nn.Sequential(*modules).eval()


def _read_classes(model: Any, last: _Layer) -> list[Any] | None:
    """Return the classes of a classifier; None for a regressor."""
    if type(model).__name__ not in (*_CLASSIFIERS, "MLPClassifier"):
        return None
    classes = list(_read_fitted(model, "classes_"))
    if any(isinstance(c, np.ndarray) for c in classes):  # a list of them, where there are several labels
        return list(range(len(last[0])))
    return classes


def _find_probabilities(model: Any, outputs: int) -> Callable[[Tensor], Tensor] | None:
    """Return what makes predict_proba of a classifier's scores; None if it has none, or one of another form."""
    kind, apart = type(model).__name__, False  # apart: each class against the rest
    if kind == "MLPClassifier":
        if model.out_activation_ == "logistic" and outputs == model.n_outputs_:  # labels that exclude nothing
            return torch.sigmoid
    elif kind in ("LogisticRegression", "LogisticRegressionCV"):
        way = getattr(model, "multi_class", "auto")
        if way == "multinomial" and outputs == 2:
            return None  # of older versions: the softmax of −z and z
        apart = way == "ovr" or (way != "multinomial" and getattr(model, "solver", "") == "liblinear")
    elif kind == "SGDClassifier" and model.loss in ("log_loss", "log"):
        apart = True
    else:
        return None
    return _one_versus_rest if apart and outputs > 2 else partial(torch.softmax, dim=1)


def _one_versus_rest(output: Tensor) -> Tensor:
    each = output.sigmoid()
    return each / each.sum(dim=1, keepdim=True)


def _find_domain(scalers: list[Any], scalings: list[Scaling], kind: str) -> Domain:
    """Return the range that a scaler has seen, with zero in it; otherwise any values, of columns that were scaled."""
    for k, scaler in enumerate(scalers):
        ends = {"MinMaxScaler": ("data_min_", "data_max_"), "MaxAbsScaler": ("max_abs_", "max_abs_")}
        if names := ends.get(type(scaler).__name__):
            low, high = (torch.from_numpy(_to_array(_read_fitted(scaler, name))) for name in names)
            seen = _scale_domain(scalings[k:], Box(-low if names[0] == names[1] else low, high))
            low, high = seen.bounds(low.unsqueeze(0))  # type: ignore[attr-defined]  # a box stays one
            return Box(low[0].clamp(max=0), high[0].clamp(min=0))
    if scalers:
        return Real()
    raise LoadError(
        f"{kind} was fitted without a scaler, so the units of its columns would decide their relevance. Fit it in a "
        "Pipeline, make_pipeline(StandardScaler(), …), or give the range of each column: domain=dt.Box(low, high), "
        "such as np.minimum(X.min(0), 0) and np.maximum(X.max(0), 0) of your data X."
    )


def _scale_domain(scalings: list[Scaling], domain: Domain) -> Domain:
    """Return a domain after some scalings."""
    return reduce(lambda known, scaling: scaling.domain(known), scalings, domain)


def _name_features(source: Any, first: _Layer) -> tuple[str, ...]:
    names = getattr(source, "feature_names_in_", None)
    return tuple(map(str, names)) if names is not None else default_column_names(first[0].shape[1])
