"""Judge maps on a trained attention network whose truth can be rendered: PP-OCRv6 text recognition.

    pip download --no-deps rapidocr==3.9.2        then take rapidocr/models/PP-OCRv6_rec_small.onnx out of the wheel
    python benchmarks/modern_ocr.py FILE.onnx [--letters 60] [--split validation] [--device cuda] [--json FILE]
    python benchmarks/modern_ocr.py --join PART0.json PART1.json [--json FILE]

Words are rendered in several fonts over crops of photographs (of scikit-image and scikit-learn, or of --photos). For
each letter of a word that is read correctly, the logit of its character at its time step is explained. The test split
has other fonts, words and crops.

share        positive relevance in the glyph's box / all positive relevance
own          positive relevance in the glyph's box / (its box + those of its neighbours)
flip         insertion − deletion: patches of 6 px are replaced by the word's ground, least relevant first minus most
             relevant first; mean difference of the character's probability near its time step
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import deeptaylor as dt
from deeptaylor.engine.deletion import Case, Flipping
from deeptaylor.errors import DeepTaylorError
from deeptaylor.methods.attnlrp import attnlrp
from deeptaylor.support.statistics import bootstrap

HEIGHT, WIDTH, PATCH = 48, 192, 6
SHARES = (0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8)
FONTS = {
    "validation": ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans-Bold"),
    "test": ("DejaVuSerif-Bold", "DejaVuSans-Oblique", "DejaVuSansMono-Bold", "STIXGeneral"),
}
WORDS = {
    "validation": "House Market Window Garden Bright Silver Orange Planet Forest Bridge Castle Winter Kitchen Pocket",
    "test": "Harbour Yellow Summer Pencil Doctor Violet Engine Rocket Stable Mirror Ticket Copper Jungle Basket Velvet",
}


@dataclass(frozen=True)
class Letter:
    """One letter of a rendered word: the picture, its ground, the character at its time step, boxes."""

    x: Tensor
    ground: Tensor
    step: int
    number: int
    own: Tensor
    neighbours: Tensor

    def to(self, device: str) -> Letter:
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return Letter(**{name: v.to(device) if isinstance(v, Tensor) else v for name, v in moved.items()})


def photographs(folder: Path | None) -> list[Image.Image]:
    """Photographs for the ground: of a folder, or those that come with scikit-image and scikit-learn."""
    if folder is None:
        from skimage.data import astronaut, chelsea, rocket
        from sklearn.datasets import load_sample_images

        found = [astronaut(), chelsea(), rocket(), *load_sample_images().images]
        return [Image.fromarray(np.asarray(a)) for a in found]
    return [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]


def font_folder(folder: Path | None) -> Path:
    if folder is not None:
        return folder
    from matplotlib import get_data_path

    return Path(get_data_path()) / "fonts" / "ttf"


def ground_of(photo: Image.Image, lot: np.random.Generator) -> Tensor:
    """A crop of a photograph, of random size and place, in pale colours."""
    width = int(lot.integers(WIDTH, min(photo.width, 2 * WIDTH) + 1))
    height = width * HEIGHT // WIDTH
    left, top = int(lot.integers(photo.width - width + 1)), int(lot.integers(photo.height - height + 1))
    crop = photo.crop((left, top, left + width, top + height)).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    return 0.5 + 0.45 * torch.from_numpy(np.asarray(crop, dtype=np.float32) / 255).permute(2, 0, 1)


def render(
    word: str, font_file: Path, photo: Image.Image, lot: np.random.Generator
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return a word's picture in [−1, 1], the same without letters, and a mask for each glyph."""
    font = ImageFont.truetype(str(font_file), 30)
    ground = ground_of(photo, lot)
    ink = Image.new("L", (WIDTH, HEIGHT), 0)
    left, top = 8, 6
    ImageDraw.Draw(ink).text((left, top), word, fill=255, font=font)
    masks = []
    for k, letter in enumerate(word):
        a, b, c, d = font.getbbox(letter)
        at = left + font.getlength(word[: k + 1]) - font.getlength(letter)
        mask = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
        mask[max(0, top + b - 1) : top + d + 1, max(0, round(at + a) - 1) : round(at + c) + 1] = True
        masks.append(mask)
    alpha = torch.from_numpy(np.asarray(ink, dtype=np.float32) / 255)
    colour = torch.from_numpy(lot.random((3, 1, 1), dtype=np.float32)) * 0.35
    noise = torch.from_numpy(lot.normal(0, 0.02, ground.shape).astype(np.float32))
    whole, empty = ((p + noise).clamp(0, 1) * 2 - 1 for p in (ground * (1 - alpha) + colour * alpha, ground))
    return whole, empty, masks


def letters(
    network: nn.Module,
    characters: list[str],
    split: str,
    count: int,
    fonts: Path,
    photos: list[Image.Image],
    device: str,
) -> list[Letter]:
    """Letters of words that the network reads correctly."""
    lot = np.random.default_rng({"validation": 1, "test": 2}[split])
    found: list[Letter] = []
    words = WORDS[split].split()
    while len(found) < count:
        word, font = str(lot.choice(words)), str(lot.choice(FONTS[split]))
        photo = photos[int(lot.integers(len(photos)))]
        x, ground, masks = render(word, fonts / f"{font}.ttf", photo, lot)
        with torch.no_grad():
            said = network(x[None].to(device))[0].cpu()
        best, top = said.max(1)
        runs: list[list[int]] = []
        for t, number in enumerate(top.tolist()):
            if number == 0:
                continue
            if runs and runs[-1][-1] == t - 1 and top[t - 1] == number:
                runs[-1].append(t)
            else:
                runs.append([t])
        if [characters[int(top[r[0]])] for r in runs] != list(word):
            continue
        for k, run in enumerate(runs):
            step = max(run, key=lambda t: float(best[t]))
            beside = [masks[j] for j in (k - 1, k + 1) if 0 <= j < len(masks)]
            near = torch.stack(beside).any(0) & ~masks[k]
            found.append(Letter(x, ground, step, int(top[step]), masks[k], near).to(device))
    return found[:count]


class NearStep(nn.Module):
    """The probabilities of characters at one time step or beside it."""

    def __init__(self, network: nn.Module, step: int) -> None:
        super().__init__()
        self.network, self.step = network, step

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[:, max(0, self.step - 1) : self.step + 2].amax(1)


def blurred(x: Tensor, sigma: float) -> Tensor:
    for d in (2, 3):
        at = torch.arange(x.shape[d], dtype=x.dtype, device=x.device)
        bell = torch.exp(-((at[:, None] - at) / sigma).square() / 2)
        x = (x.movedim(d, -1) @ (bell / bell.sum(1, keepdim=True)).mT).movedim(-1, d)
    return x


Maps = Callable[[Letter], Tensor]  # a letter → a map (1, 3, H, W)


def methods(network: nn.Module, example: Tensor) -> dict[str, Maps]:
    made: dict[str, dt.Explainer] = {}

    def explainer(**settings: Any) -> dt.Explainer:
        key = repr(settings)
        if key not in made:
            made[key] = dt.Explainer(network, example, dt.Box(-1.0, 1.0), **settings)
        return made[key]

    def explain(**settings: Any) -> Maps:
        return lambda q: explainer(**settings).explain(q.x[None], dt.at_step(q.step, q.number)).relevance

    def between(reference: Callable[[Letter], Any], odds: bool = False) -> Maps:
        def make(q: Letter) -> Tensor:
            target = dt.at_step(q.step, q.number)
            return explainer().between(q.x[None], reference(q), dt.log_odds(target) if odds else target).relevance

        return make

    def contrast(q: Letter) -> Tensor:
        return explainer(method="auto").contrast(q.x[None], dt.at_step(q.step, q.number)).relevance

    def integrated(q: Letter) -> Tensor:
        """Integrated gradients of the log-probability from the picture's mean, 16 steps."""
        x, even = q.x[None], q.x[None].mean((2, 3), keepdim=True)
        total = torch.zeros_like(x)
        for k in range(16):
            at = (even + (k + 0.5) / 16 * (x - even)).requires_grad_()
            score = network(at)[0, q.step, q.number].clamp(min=1e-30).log()
            total += torch.autograd.grad(score, at)[0] / 16
        return total * (x - even)

    def occlusion(q: Letter) -> Tensor:
        """The fall of the probability while a window of 12 px shows the picture's mean."""
        windows = [(t, s) for t in range(0, HEIGHT - 11, 6) for s in range(0, WIDTH - 11, 6)]
        x = q.x.expand(len(windows), -1, -1, -1).clone()
        even, total = q.x.mean((1, 2), keepdim=True), torch.zeros_like(q.x[None, :1])
        times = torch.zeros_like(q.x[0])
        for k, (t, s) in enumerate(windows):
            x[k, :, t : t + 12, s : s + 12] = even
        with torch.no_grad():
            said = torch.cat([NearStep(network, q.step)(part)[:, q.number] for part in x.split(64)])
            fall = NearStep(network, q.step)(q.x[None])[0, q.number] - said
        for k, (t, s) in enumerate(windows):
            total[..., t : t + 12, s : s + 12] += fall[k]
            times[t : t + 12, s : s + 12] += 1
        return total / times.clamp(min=1)

    return {
        "default": explain(method="auto"),
        "default, contrast": contrast,
        "deep Taylor, neuron": explain(bias="neuron"),
        "deep Taylor, spread": explain(bias="spread"),
        "secant": explain(method="secant"),
        "between, mean": between(lambda q: "mean"),
        "between, mean, log-odds": between(lambda q: "mean", True),
        "between, blur": between(lambda q: blurred(q.x[None], 3.0)),
        "between, background": between(lambda q: q.ground[None]),
        "integrated gradients": integrated,
        "AttnLRP": lambda q: attnlrp(explainer().make_unplanned(), q.x[None], dt.at_step(q.step, q.number)).relevance,
        "occlusion": occlusion,
    }


def explainer_choice(network: nn.Module, q: Letter) -> str:
    e = dt.Explainer(network, q.x[None], dt.Box(-1.0, 1.0)).explain(q.x[None], dt.at_step(q.step, q.number))
    return e.reason


def judge(network: nn.Module, q: Letter, R: Tensor) -> dict[str, float]:
    positive = R.clamp(min=0)
    own, near, whole = (float(p.sum()) for p in (positive[:, q.own], positive[:, q.neighbours], positive))
    case = Case(
        NearStep(network, q.step), q.x[None], torch.tensor([q.number], device=q.x.device), softmax=False, batch=9
    )
    fills = q.ground[None]
    flip = Flipping(patch=PATCH, fill=lambda _: fills, shares=SHARES).measure(case, R).values
    nan = float("nan")
    return {
        "share": own / whole if whole else nan, "own": own / (own + near) if own + near else nan,
        "flip": float(flip),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--part", type=int, default=0, help="of --parts: letters part, part + parts, …")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--join", type=Path, nargs="+", help="records of the parts; their letters are put together")
    parser.add_argument("--letters", type=int, default=60)
    parser.add_argument("--split", choices=sorted(WORDS), default="validation")
    parser.add_argument("--photos", type=Path, help="a folder of photographs for the ground")
    parser.add_argument("--fonts", type=Path, help="a folder of fonts; else those of matplotlib")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.join:
        join(asked.join, asked.json)
        return
    warnings.simplefilter("ignore")
    import onnx

    stored = {p.key: p.value for p in onnx.load(asked.file, load_external_data=False).metadata_props}
    characters = ["", *stored["character"].split("\n"), " "]
    network = dt.load(str(asked.file), domain=dt.Box(-1.0, 1.0), class_names=None).network.eval()
    network = network.to(asked.device)
    photos, fonts = photographs(asked.photos), font_folder(asked.fonts)
    photos = photos[asked.split == "test" :: 2]
    shown = letters(network, characters, asked.split, asked.letters, fonts, photos, asked.device)
    shown = shown[asked.part :: asked.parts]
    chance = float(torch.stack([q.own for q in shown]).float().mean())
    print(f"{len(shown)} letters, chance {chance:.3f}", flush=True)
    made, values, began = methods(network, shown[0].x[None]), {}, time.perf_counter()
    for k, q in enumerate(shown):
        maps = {}
        for name in list(made):
            try:
                maps[name] = made[name](q).detach().float().sum(1)
            except DeepTaylorError as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                del made[name]
        for name, R in maps.items():
            for measure, value in judge(network, q, R).items():
                values.setdefault(name, {}).setdefault(measure, []).append(value)
        if k % 10 == 9:
            print(f"{k + 1} letters, {time.perf_counter() - began:.0f} s", flush=True)
    record = {"split": asked.split, "chance": chance, "choice": explainer_choice(network, shown[0]), "values": values}
    if asked.json:
        asked.json.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(table(values))


def table(values: dict[str, dict[str, list[float]]]) -> str:
    return "\n".join(
        f"  {name:<30}" + "  ".join(f"{m} {bootstrap(np.array(v))}" for m, v in by.items())
        for name, by in values.items()
    )


def join(parts: Sequence[Path], to: Path | None) -> None:
    """Put the letters of several records together."""
    records = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
    values: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for name, by in record["values"].items():
            for measure, found in by.items():
                values.setdefault(name, {}).setdefault(measure, []).extend(found)
    print(table(values))
    rows = {
        name: {
            m: [round(v, 4) for v in (i.mean, i.low, i.high)] for m, f in by.items() if (i := bootstrap(np.array(f)))
        }
        for name, by in values.items()
    }
    first = records[0]
    whole = {
        "split": first["split"], "letters": len(next(iter(values.values()))["share"]), "choice": first["choice"],
        "chance": round(float(np.mean([r["chance"] for r in records])), 4), "rows": rows,
    }  # fmt: skip
    if to is not None:
        to.write_text(json.dumps(whole, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
