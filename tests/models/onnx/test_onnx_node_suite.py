"""The onnx package's own tests of single operators: read right or refused, never wrong, and no other error.

Each test is read twice: as it is, and with all inputs but the first stored in the file, as networks have them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import deeptaylor as dt
from deeptaylor.errors import DeepTaylorError
from deeptaylor.models.onnx.file import TYPES

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
from onnx_nodes import array_of, cases, tensor, verdict

pytestmark = pytest.mark.slow

# Of 1,884 tests as they are, and of 1,361 with stored inputs, in onnx 1.23; more may be read, and not fewer.
RIGHT, RIGHT_STORED = 1173, 1113
# onnxruntime computes these otherwise than the standard, so they are refused where it is installed.
OTHERWISE = {
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
    # scores that are masked: minus infinity by the standard, the lowest number in onnxruntime
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
}


@pytest.mark.parametrize(("stored", "least"), [(False, RIGHT), (True, RIGHT_STORED)], ids=["as given", "stored"])
def test_no_operator_is_read_wrong(stored: bool, least: int, tmp_path: Path) -> None:
    found = {name: verdict(*case, tmp_path / "model.onnx").partition(":")[0] for name, *case in cases(stored)}
    counts = Counter(found.values())
    print(f"\n{'stored' if stored else 'as given'}: {dict(counts)}")
    assert [name for name, said in found.items() if said == "wrong"] == []
    assert {name for name, said in found.items() if said == "differs from onnxruntime"} <= OTHERWISE
    assert counts["right"] >= least


@pytest.mark.parametrize("stored", [False, True], ids=["as given", "stored"])
def test_what_is_read_is_explained_or_refused(stored: bool, tmp_path: Path) -> None:
    """Shapes are kept, and there is no error but the library's own."""
    counts: Counter[str] = Counter()
    for name, model, inputs, outputs in cases(stored):
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            loaded = dt.load(path, domain=dt.Real(), class_names=None)
        except DeepTaylorError:
            counts["refused"] += 1
            continue
        network: Any = loaded.network  # type: ignore[union-attr]
        if len(network.input_names) > 1:
            counts["several inputs"] += 1
            continue
        kind = model.graph.input[0].type.tensor_type.elem_type
        x = tensor(inputs[0], torch.float32 if TYPES[kind].is_floating_point else TYPES[kind])
        assert network(x).shape == array_of(outputs[0]).shape, name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dt.explain(network, x, domain=dt.Real(), target=lambda o: o.flatten(1).sum(1) if o.ndim > 1 else o)
        except DeepTaylorError:
            counts["not explained"] += 1
            continue
        counts["explained"] += 1
    print(f"\n{dict(counts)}")
    assert counts["explained"] >= (110 if not stored else 230)
