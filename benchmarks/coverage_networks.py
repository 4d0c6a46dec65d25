"""Tiny random networks of every type of `transformers` that can be made small from its configuration alone.

A type is built by the first of its tasks in TASKS. Settings of its configuration that say how large it is get the value
in SMALL; a few types need values of their own, in OWN. No file is read, and no weights are downloaded.
"""

import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
with contextlib.suppress(ModuleNotFoundError):  # not needed; but one that is there and broken would stop transformers
    import torchvision_shim  # noqa: F401
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_zoo import FAMILIES, family

__all__ = ["TASKS", "Built", "build", "list_types"]

VOCABULARY, TOKENS, LABELS, SIDE = 64, 9, 5, 64
SPECIAL = 3  # the first token numbers: padding, beginning and end of a text
MOST_PARAMETERS = 6_000_000
STD = 0.2  # of random weights: the usual 0.02 leaves next to nothing of the input in networks this narrow


@dataclass(frozen=True)
class Task:
    """What networks of a mapping of `transformers` read and give.

    mapping   the name of the mapping
    reads     "tokens", "pixels", "sound" or "video"
    pick      returns (batch, classes) from the network and its input
    kind      of the text face; "" if it has none
    """

    mapping: str
    reads: str
    pick: Callable[[nn.Module, Tensor], Tensor]
    kind: str = ""


def _logits(network: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = network(x).logits
    return found


def _last(network: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = network(input_ids=x).logits[:, -1]
    return found


def _decoded(network: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = network(input_ids=x, decoder_input_ids=x[:, :2]).logits[:, -1]
    return found


def _flat(network: nn.Module, x: Tensor) -> Tensor:
    return _logits(network, x).flatten(1)


def _place(network: nn.Module, x: Tensor) -> Tensor:
    return _logits(network, x)[:, :, 2, 2]


def _depth(network: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = network(x).predicted_depth.flatten(1)[:, ::97]
    return found


TASKS = {
    "class of a text": Task("SEQUENCE_CLASSIFICATION", "tokens", _logits, "classifier"),
    "class of a picture": Task("IMAGE_CLASSIFICATION", "pixels", _logits),
    "class of a sound": Task("AUDIO_CLASSIFICATION", "sound", _logits),
    "class of a video": Task("VIDEO_CLASSIFICATION", "video", _logits),
    "translation": Task("SEQ_TO_SEQ_CAUSAL_LM", "tokens", _decoded, "encoder–decoder"),
    "next token": Task("CAUSAL_LM", "tokens", _last, "language model"),
    "hidden token": Task("MASKED_LM", "tokens", _last),
    "objects": Task("OBJECT_DETECTION", "pixels", _flat),
    "segments": Task("SEMANTIC_SEGMENTATION", "pixels", _place),
    "depth": Task("DEPTH_ESTIMATION", "pixels", _depth),
    "letters of a sound": Task("CTC", "sound", _flat),
}

# What makes a network small, by the name of the setting.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embed_dim": 32, "embedding_size": 32,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "d_inner": 48, "n_inner": 48, "hidden_dim": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "ffn_hidden_size": 48, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "expert_ffn_hidden_size": 16, "dense_ffn_hidden_size": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "d_kv": 8, "d_head": 8, "kv_channels": 8, "attention_head_size": 8,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_seq_len": 64, "seq_length": 64,
    "context_length": 64, "max_source_positions": 64, "max_target_positions": 64,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "num_expert_groups": 2, "first_k_dense_replace": 1, "moe_k": 2, "moe_topk": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "sliding_window": 4, "attention_window": 4,
    "state_size": 4, "ssm_state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "mamba_n_groups": 1, "chunk_size": 8,
    "mamba_chunk_size": 8, "time_step_rank": 4, "mamba_dt_rank": 4, "lru_width": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "image_size": SIDE, "patch_size": 16, "tubelet_size": 2, "num_frames": 4, "frames_per_clip": 4, "crop_size": SIDE,
    "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "embedding_dim": 32, "window_size": 4,
    "neck_hidden_sizes": [8, 8, 12, 12, 16, 16, 32], "decoder_hidden_size": 16, "fusion_hidden_size": 16,
    "conv_dim": [8, 8], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16, "squeeze_factor": 1,
    "max_length": 64, "num_mel_bins": 16, "num_queries": 6, "num_detection_tokens": 5,
    "encoder_hidden_dim": 32, "projection_dim": 16, "entity_emb_size": 16, "entity_vocab_size": 20,
    "rotary_dim": 8, "num_buckets": 8, "relative_attention_num_buckets": 8, "use_cache": False,
    "use_timm_backbone": False, "use_pretrained_backbone": False, "dropout": 0.0,
}  # fmt: skip

_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 1, 1]}
_BY_RESNET = {"backbone": None, "backbone_config": hf.ResNetConfig(**_RESNET, out_features=["stage4"])}
_TWO_TOWERS = {
    "text_config": {name: SMALL[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "projection_dim")},
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
        "patch_size": 8,
    },
}  # fmt: skip
_EQUAL_HEADS = {"num_key_value_heads": 4}
_PYRAMID = {
    "image_size": SIDE, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 3],
    "decoder_hidden_size": 16, "patch_size": None,
}  # fmt: skip

# Settings by type, beside those of SMALL; None: the default of the configuration.
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "esmc", "glm4_moe_lite", "glm_moe_dsa",
            "longcat_flash", "minicpm3", "mistral4", "youtu",
        ),
        _EQUAL_HEADS,
    ),
    **{name: {"conv_kernel": 4} for name in ("mamba", "mamba2", "falcon_mamba", "nemotron_h")},
    **dict.fromkeys(("conditional_detr", "dab-detr", "deformable_detr", "detr", "table-transformer"), _BY_RESNET),
    **dict.fromkeys(("clip", "metaclip_2", "siglip", "siglip2"), _TWO_TOWERS),
    **dict.fromkeys(("segformer", "glpn", "pvt", "pvt_v2"), _PYRAMID),
    "donut-swin": {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 2, "image_size": 32},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "mpnet": {"relative_attention_num_buckets": None},
    "neomme": {"head_dim": 32},
    "reformer": {"axial_pos_embds": False},
    "upernet": {
        "backbone_config": hf.ConvNextConfig(
            hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
        ),
        "auxiliary_in_channels": 16, "auxiliary_channels": 8,
    },
    "vivit": {"tubelet_size": [2, 16, 16]},
    "xmod": {"default_language": "en_XX"},
    "yolos": {"image_size": [SIDE, SIDE]},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1]},
}  # fmt: skip


class Function(nn.Module):
    """A network as a function from one tensor to (batch, classes)."""

    def __init__(self, network: nn.Module, pick: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.pick = network, pick

    def forward(self, x: Tensor) -> Tensor:
        return self.pick(self.network, x)


@dataclass(frozen=True)
class Built:
    """A network of one type, its inputs, and other inputs of the same shape to compare with."""

    task: Task
    network: nn.Module
    function: nn.Module
    x: Tensor
    other: Tensor


def list_types() -> dict[str, str]:
    """Return the task of every type, by its name."""
    found: dict[str, str] = {}
    for task, how in TASKS.items():
        for name in getattr(modeling_auto, f"MODEL_FOR_{how.mapping}_MAPPING_NAMES"):
            found.setdefault(name, task)
    return found


def _settings(kind: type, own: dict[str, Any]) -> dict[str, Any]:
    """Return the small settings that a configuration knows."""
    known = set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "__annotations__", {}))
    for base in kind.__mro__:
        known |= set(getattr(base, "__annotations__", {}))
    chosen = {name: value for name, value in SMALL.items() if name in known} | own
    return {name: value for name, value in chosen.items() if value is not None}


def build(name: str, seed: int = 0) -> Built:
    """Return a network of this type; raise whatever `transformers` raises if it cannot be built."""
    task = TASKS[list_types()[name]]
    torch.manual_seed(seed)
    if name in FAMILIES and name not in OWN and task.reads == "pixels":
        drawn = family(name, seed)
        function = Function(drawn.model.network, task.pick).eval()  # type: ignore[arg-type]
        return Built(task, function.network, function, drawn.x, torch.full_like(drawn.x, 0.5))
    config = CONFIG_MAPPING[name](**_settings(CONFIG_MAPPING[name], OWN.get(name, {})))
    with contextlib.suppress(Exception):
        config.num_labels = LABELS
    for part in [config, *[v for v in vars(config).values() if isinstance(v, hf.PreTrainedConfig)]]:
        with contextlib.suppress(Exception):
            part.use_cache = False
    if task.reads == "tokens" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 1
    named = getattr(modeling_auto, f"MODEL_FOR_{task.mapping}_MAPPING_NAMES")[name]
    network: nn.Module = getattr(hf, named if isinstance(named, str) else named[0])(config).eval()
    count = sum(p.numel() for p in network.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} million parameters: no setting makes it smaller")
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=STD)
    network.requires_grad_(False)
    x, other = _make_input(task, config, 2 if task.reads != "pixels" or task.pick is not _flat else 1)
    function = Function(network, task.pick).eval()
    with torch.no_grad():
        output = function(x)
    if output.ndim != 2:
        raise ValueError(f"its output has the shape {tuple(output.shape)}")
    return Built(task, network, function, x, other)


def _make_input(task: Task, config: Any, batch: int) -> tuple[Tensor, Tensor]:
    """Return an input for a network, and another one; tokens end with the end of a text."""
    if task.reads == "tokens":
        x, other = torch.randint(SPECIAL, VOCABULARY - 8, (2, batch, TOKENS))
        if task.kind == "classifier":
            x[:, -1] = other[:, -1] = 2
        return x, other
    if task.reads == "sound":
        shape = _sound_shape(config)
        return torch.randn(batch, *shape), torch.zeros(batch, *shape)
    towers = getattr(config, "vision_config", config)
    side = getattr(towers, "image_size", None) or SIDE
    sides = (side, side) if isinstance(side, int) else tuple(side)[-2:]
    channels = getattr(config, "num_channels", 3)
    if task.reads == "video":
        frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", 4)
        return torch.rand(batch, frames, channels, *sides), torch.full((batch, frames, channels, *sides), 0.5)
    return torch.rand(batch, channels, *sides), torch.full((batch, channels, *sides), 0.5)


def _sound_shape(config: Any) -> tuple[int, ...]:
    if config.model_type == "audio-spectrogram-transformer":
        return config.max_length, config.num_mel_bins
    if config.model_type == "whisper":
        return config.num_mel_bins, 2 * config.max_source_positions
    if config.model_type == "wav2vec2-bert":
        return 16, config.feature_projection_input_dim
    return (400,)
