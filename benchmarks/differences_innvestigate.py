"""What iNNvestigate does with the networks of differences.py: for docs/compare.md.

    python -m venv other
    other/bin/pip install innvestigate
    other/bin/python benchmarks/differences_innvestigate.py

It needs TensorFlow below 2.15 and NumPy below 2, so it gets an environment of its own.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import innvestigate  # type: ignore[import-not-found]
import numpy as np
import tensorflow as tf  # type: ignore[import-not-found]

layers = tf.keras.layers
X = np.array([[1.0, 2.0]])
METHODS = ("deep_taylor", "lrp.alpha_1_beta_0", "lrp.epsilon")


def dense(units: int, activation: str = "relu", **given: Any) -> Any:
    return layers.Dense(units, activation=activation, **given)


def biased() -> Any:
    x, detect = tf.keras.Input((2,)), dense(2)
    model = tf.keras.Model(x, dense(1, use_bias=False, kernel_initializer="ones")(detect(x)))
    detect.set_weights([np.array([[1.0, -1.0], [2.0, 3.0]]), np.array([4.0, -1.0])])
    return model


def residual() -> Any:
    x, detect = tf.keras.Input((2,)), dense(2, use_bias=False)
    model = tf.keras.Model(x, dense(1, use_bias=False, kernel_initializer="ones")(layers.Add()([x, detect(x)])))
    detect.set_weights([np.array([[1.0, 0.0], [2.0, 3.0]])])
    return model


def attention() -> Any:
    x = tf.keras.Input((2,))
    t = dense(4, use_bias=False, kernel_initializer="ones")(layers.Reshape((2, 1))(x))
    t = layers.MultiHeadAttention(1, 4, use_bias=False, kernel_initializer="ones")(t, t)
    return tf.keras.Model(x, dense(1, use_bias=False, kernel_initializer="ones")(layers.Flatten()(t)))


def show(name: str, build: Callable[[], Any]) -> None:
    for method in METHODS:
        model = build()
        f = model.predict(X, verbose=0).item()
        try:
            found = np.asarray(innvestigate.create_analyzer(method, model).analyze(X)).ravel()
            said = f"{found.round(4).tolist()} sum {found.sum():.6g}"
        except Exception as error:  # noqa: BLE001  whatever it is, it is the fact to report
            said = repr(error)
        print(f"{name:<10} {method:<20} f = {f:.6g}: {said}")


if __name__ == "__main__":
    tf.compat.v1.disable_eager_execution()
    print("innvestigate", version("innvestigate"), "tensorflow", tf.__version__)
    show("bias", biased)
    show("plus", residual)
    show("attention", attention)
