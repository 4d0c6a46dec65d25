"""Small random networks from `transformers`, without torchvision, held to the same checks as the zoo in zoo.py.

    python benchmarks/hf_zoo.py [--families vit,bert] [--bias neuron|spread|both] [--json FILE]

Vision networks read 3 x 32 x 32 or 3 x 64 x 64 images, language networks token numbers (relevance a token).
The networks are tiny, so one of them is explained in a second or so; tests/test_zoo_fast.py runs a few.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with contextlib.suppress(ModuleNotFoundError):  # not needed; but one that is there and broken would stop transformers
    import torchvision_shim  # noqa: F401
import torch
import transformers as hf
from torch import Tensor, nn

from zoo import Network, images, main, seeded


class Logits(nn.Module):
    """The network as a function from one tensor to its logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x).logits
        return logits


@dataclass(frozen=True)
class Family:
    """How to build a family. `size` is the image's side, or None where the input is `TOKENS` token numbers."""

    model: str
    config: str
    options: dict[str, Any]
    size: int | None = 32
    convolutional: bool = False


LABELS, TOKENS, VOCABULARY = 10, 12, 50

_ATTENTION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
}
_VIT = {**_ATTENTION, "image_size": 32, "patch_size": 8}
_TEXT = {**_ATTENTION, "vocab_size": VOCABULARY, "max_position_embeddings": 32}
_STAGES = {"hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 2, 1]}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}

FAMILIES: dict[str, Family] = {
    # convolutional
    "resnet": Family(
        "ResNetForImageClassification", "ResNetConfig", {**_STAGES, "embedding_size": 8}, convolutional=True
    ),
    "resnet_basic": Family(
        "ResNetForImageClassification",
        "ResNetConfig",
        {**_STAGES, "embedding_size": 8, "layer_type": "basic"},
        convolutional=True,
    ),
    "regnet": Family(
        "RegNetForImageClassification",
        "RegNetConfig",
        {**_STAGES, "embedding_size": 8, "groups_width": 4},
        convolutional=True,
    ),
    "convnext": Family("ConvNextForImageClassification", "ConvNextConfig", _STAGES, size=64, convolutional=True),
    "convnextv2": Family("ConvNextV2ForImageClassification", "ConvNextV2Config", _STAGES, size=64, convolutional=True),
    "mobilenet_v1": Family(
        "MobileNetV1ForImageClassification",
        "MobileNetV1Config",
        {"depth_multiplier": 0.25, "min_depth": 4},
        size=64,
        convolutional=True,
    ),
    "mobilenet_v2": Family(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"depth_multiplier": 0.25, "min_depth": 4},
        size=64,
        convolutional=True,
    ),
    "efficientnet": Family(
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320, "image_size": 64},
        size=64,
        convolutional=True,
    ),
    "bit": Family(
        "BitForImageClassification",
        "BitConfig",
        {**_STAGES, "embedding_size": 8, "num_groups": 4},
        convolutional=True,
    ),
    "poolformer": Family(
        "PoolFormerForImageClassification",
        "PoolFormerConfig",
        {**_STAGES, "layer_scale_init_value": 0.5},
        size=64,
        convolutional=True,
    ),
    "focalnet": Family(
        "FocalNetForImageClassification",
        "FocalNetConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "focal_levels": [2, 2]},
        convolutional=True,
    ),
    # attention on images
    "vit": Family("ViTForImageClassification", "ViTConfig", _VIT),
    "vit_eager": Family("ViTForImageClassification", "ViTConfig", {**_VIT, "attn_implementation": "eager"}),
    "deit": Family("DeiTForImageClassification", "DeiTConfig", _VIT),
    "beit": Family("BeitForImageClassification", "BeitConfig", {**_VIT, "use_relative_position_bias": True}),
    "dinov2": Family("Dinov2ForImageClassification", "Dinov2Config", {**_VIT, "mlp_ratio": 2}),
    "dinov2_swiglu": Family(
        "Dinov2ForImageClassification", "Dinov2Config", {**_VIT, "mlp_ratio": 2, "use_swiglu_ffn": True}
    ),
    "swin": Family("SwinForImageClassification", "SwinConfig", _SWIN),
    "swinv2": Family("Swinv2ForImageClassification", "Swinv2Config", _SWIN),
    "levit": Family(
        "LevitForImageClassification",
        "LevitConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [4, 4, 4],
        },
        size=64,
    ),
    "cvt": Family(
        "CvtForImageClassification",
        "CvtConfig",
        {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]},
        size=64,
    ),
    "pvt": Family(
        "PvtForImageClassification",
        "PvtConfig",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 16, 24],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 3],
        },
        size=64,
    ),
    "segformer": Family(
        "SegformerForImageClassification",
        "SegformerConfig",
        {"hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 3]},
        size=64,
    ),
    "mobilevit": Family(
        "MobileViTForImageClassification",
        "MobileViTConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 20, 24],
            "neck_hidden_sizes": [8, 8, 12, 12, 16, 16, 32],
            "num_attention_heads": 2,
        },
        size=64,
    ),
    # attention on tokens
    "bert": Family("BertForSequenceClassification", "BertConfig", _TEXT, size=None),
    "bert_eager": Family(
        "BertForSequenceClassification", "BertConfig", {**_TEXT, "attn_implementation": "eager"}, size=None
    ),
    "distilbert": Family(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 32,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 3,
            "hidden_dim": 48,
        },
        size=None,
    ),
    "roberta": Family("RobertaForSequenceClassification", "RobertaConfig", _TEXT, size=None),
    "electra": Family("ElectraForSequenceClassification", "ElectraConfig", {**_TEXT, "embedding_size": 16}, size=None),
    "albert": Family("AlbertForSequenceClassification", "AlbertConfig", {**_TEXT, "embedding_size": 16}, size=None),
}


def family(name: str, seed: int = 0) -> Network:
    """The family's network with random weights and statistics, and an input for it."""
    chosen = FAMILIES[name]

    def build() -> nn.Module:
        options = dict(chosen.options)
        attention = options.pop("attn_implementation", None)
        config = getattr(hf, chosen.config)(**options, num_labels=LABELS)
        if hasattr(config, "initializer_range"):
            config.initializer_range = 0.2  # the usual 0.02 leaves next to nothing of the image in networks this narrow
        if attention:
            config._attn_implementation = attention
        return Logits(getattr(hf, chosen.model)(config))

    example: Callable[[], Tensor] = (
        (lambda: torch.randint(3, VOCABULARY, (2, TOKENS)))  # the first few are special: padding and such
        if chosen.size is None
        else lambda: images(2, chosen.size or 0)
    )
    return seeded(name, build, example, convolutional=chosen.convolutional, seed=seed)


if __name__ == "__main__":
    sys.exit(main(["--hf", *sys.argv[1:]]))
