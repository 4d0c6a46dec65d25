"""`python docs/make_pictures.py`: the pictures of the documentation, computed from photographs that anyone may use.

Cat, cup of coffee and rocket come with scikit-image and are in the public domain (CC0 or NASA). Needs the extra `demo`.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import deeptaylor as dt
from deeptaylor import assets
from deeptaylor.app.server.routes import list_samples
from deeptaylor.formatting import format_percent
from deeptaylor.methods import COMMON_METHODS, METHODS
from deeptaylor.support.files import write_whole
from deeptaylor.viz import heatmap

OUT = Path(__file__).parent / "pictures"
SIDE = 176  # of one picture in a row
RED, GREY, INK = (200, 30, 30), (190, 190, 190), (40, 40, 40)


def cell(picture: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def bar(width: int, name: str, ledger: dt.Ledger) -> Image.Image:
    """The ledger as a bar: what the input holds in red, what biases took in grey."""
    score, held, bias = (float(t[0]) for t in (ledger.score, ledger.input, ledger.bias))
    image = Image.new("RGB", (width, 44), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=13)
    split = 8 + round((width - 16) * held / score)
    draw.rectangle((8, 22, width - 8, 38), fill=GREY)
    if split > 8:
        draw.rectangle((8, 22, split, 38), fill=RED)
    text = (
        f'bias="{name}":  f = {score:.3f} = input {held:.3g} + bias {bias:.3g} + dropped {float(ledger.dropped[0]):.3g}'
    )
    draw.text((8, 3), text, fill=INK, font=font)
    return image


def stacked(rows: Sequence[Image.Image]) -> Image.Image:
    whole = Image.new("RGB", (max(r.width for r in rows), sum(r.height for r in rows)), "white")
    top = 0
    for row in rows:
        whole.paste(row, (0, top))
        top += row.height
    return whole


def save(name: str, picture: Image.Image, colours: int = 128) -> None:
    """As PNG with few colours: a page loads it at once, and the repository stays small."""
    few = picture.quantize(colours, dither=Image.Dither.NONE)
    OUT.mkdir(exist_ok=True)
    few.save(OUT / f"{name}.part", format="PNG", optimize=True)
    data = (OUT / f"{name}.part").read_bytes()
    (OUT / f"{name}.part").unlink()
    write_whole(OUT / f"{name}.png", data)
    print(f"{name}.png: {len(data) / 1000:.0f} kB")


def two(p: dt.Pretrained) -> None:
    """Two classes in one picture: where the evidence of each lies, what sets each apart, and one against the other."""
    both = heatmap.stack_photos(Image.open(assets.path("cat")), Image.open(assets.path("coffee")))
    x, seen = p.preprocess(both)
    cat, cup = (p.class_index(name) for name in ("tabby", "espresso"))
    explainer, asked = dt.Explainer(p.network, x, domain=p.domain), torch.tensor([[cat, cup]])
    evidence, apart = explainer.explain(x, asked).heatmap()[0], explainer.contrast(x, asked).heatmap()[0]
    against = replace(explainer.contrast(x, cat, against=cup), photos=(np.asarray(seen),))
    maps = [heatmap.overlay(seen, heat) for heat in (*evidence, *apart)]
    lines = [
        "A cat and a cup in one\npicture, made of two",
        "Why tabby?\nWhere its evidence lies",
        "Why espresso?\nWhere its evidence lies",
        "What sets tabby apart\nfrom its rivals",
        "What sets espresso apart\nfrom its rivals",
        f"tabby red, espresso blue:\n{format_percent(float(against.apart[0]), '.0f')} lies elsewhere",
    ]
    pictures = [np.asarray(seen), *maps, against.difference_picture()]
    save("two", Image.fromarray(heatmap.montage([cell(m) for m in pictures], lines)), colours=256)


def ledger(p: dt.Pretrained) -> None:
    """A cat explained twice, biases as neurons and biases spread, with where the score went."""
    photo = assets.path("cat")
    neuron, spread = (dt.explain(p, photo, bias=bias) for bias in ("neuron", "spread"))
    pictures = [neuron.photos[0], neuron.overlay(), spread.overlay()]
    row = heatmap.montage(
        [cell(x) for x in pictures], [f"explained: {neuron.titles[0][0]}", 'bias="neuron"', 'bias="spread"']
    )
    image = Image.fromarray(row)
    save(
        "ledger", stacked([image, bar(image.width, "neuron", neuron.ledger), bar(image.width, "spread", spread.ledger)])
    )


def targets(p: dt.Pretrained) -> None:
    """The three most probable classes of one photograph."""
    x, seen = p.preprocess(assets.path("coffee"))
    best = p.top(x, 3)[0]
    e = dt.Explainer(p.network, x, domain=p.domain, bias="spread").explain(
        x, target=torch.tensor([[found.index for found in best]])
    )
    maps = [heatmap.overlay(seen, heat) for heat in e.heatmap()[0]]
    labels = ["photograph", *[f"{found.name} {found.probability:.0%}" for found in best]]
    save("targets", Image.fromarray(heatmap.montage([cell(m) for m in (np.asarray(seen), *maps)], labels)))


def methods(p: dt.Pretrained) -> None:
    """Four methods on the same decision."""
    x, seen = p.preprocess(assets.path("rocket"))
    pictures, labels = [np.asarray(seen)], [p.top(x, 1)[0][0].name]
    for key in COMMON_METHODS:
        e = METHODS[key].prepare(p.network, x, p.domain)(x, None)
        pictures.append(heatmap.render(e.heatmap()[0]))
        labels.append(METHODS[key].title)
    save("methods", Image.fromarray(heatmap.montage([cell(m) for m in pictures], labels)))


def curve() -> None:
    """What the page about signals draws."""
    page = (Path(__file__).parent / "howto" / "signals.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0].replace('savefig("curve.png")', "savefig(drawn)")
    drawn = io.BytesIO()
    exec(code, {"drawn": drawn, "__name__": "__main__"})
    save("curve", Image.open(drawn).convert("RGB"), 32)


def channel() -> None:
    """The photographs of the page in which a channel was most active."""
    photos = [Image.open(io.BytesIO(sample.read())).convert("RGB") for sample in list_samples()]
    explainer = dt.load("squeezenet1_1").explainer()
    found = dt.channel_examples(explainer, [photos], "fire9.expand3x3", [232], by="activation", top=4)
    drawn = io.BytesIO()
    found.figure(232).savefig(drawn, dpi=100)
    save("channel", Image.open(drawn).convert("RGB"), 40)


if __name__ == "__main__":
    curve()
    channel()
    network = dt.load("efficientnet-lite0")
    for draw in (two, ledger, targets, methods):
        draw(network)
