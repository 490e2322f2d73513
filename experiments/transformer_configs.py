"""Small configurations of networks of `transformers`, with random weights, and inputs of a few examples for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

EXAMPLES, TOKENS, PIXELS = 3, 16, 64

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 100, "max_position_embeddings": 64}
IMAGES = {"image_size": PIXELS, "patch_size": 16, "num_labels": 10}
PARTS = {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
}
LLAMA = TEXT | SMALL | {"num_key_value_heads": 2}
EXPERTS = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2"]}


def tokens() -> dict[str, Any]:
    """Tokens, with a mask that hides the last ones of one example."""
    mask = torch.ones(EXAMPLES, TOKENS, dtype=torch.int64)
    mask[1, TOKENS // 2 :] = 0
    return {"input_ids": torch.randint(3, 100, (EXAMPLES, TOKENS)), "attention_mask": mask}


def images() -> dict[str, Any]:
    """Images of random numbers."""
    return {"pixel_values": torch.randn(EXAMPLES, 3, PIXELS, PIXELS)}


def without_cache() -> dict[str, Any]:
    """Tokens for a decoder, which returns no cache of keys and values."""
    return tokens() | {"use_cache": False}


def clip_inputs() -> dict[str, Any]:
    """As many texts as images."""
    return tokens() | images()


def decoder_inputs() -> dict[str, Any]:
    """Tokens for an encoder and for a decoder."""
    return without_cache() | {"decoder_input_ids": torch.randint(3, 100, (EXAMPLES, TOKENS))}


@dataclass(frozen=True)
class Network:
    """A class of `transformers`, the options of its configuration, and what it is called with."""

    class_name: str
    options: Mapping[str, Any]
    inputs: Callable[[], dict[str, Any]]
    part: str = ""
    """The part of the network that is taken; empty: all of it."""
    nested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that are configurations themselves, each with its `model_type`."""


NETWORKS = {
    "ViT": Network("ViTForImageClassification", SMALL | IMAGES, images),
    "DeiT": Network("DeiTForImageClassification", SMALL | IMAGES, images),
    "Swin": Network(
        "SwinForImageClassification",
        {"image_size": PIXELS, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        images,
    ),
    "BERT": Network("BertForSequenceClassification", TEXT | SMALL, tokens),
    "DistilBERT": Network(
        "DistilBertForSequenceClassification",
        TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        tokens,
    ),
    "ALBERT": Network("AlbertForSequenceClassification", TEXT | SMALL | {"embedding_size": 16}, tokens),
    "GPT-2": Network(
        "GPT2LMHeadModel",
        {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
        | {"bos_token_id": 0, "eos_token_id": 0},
        without_cache,
    ),
    "Llama": Network("LlamaForCausalLM", LLAMA, without_cache),
    "T5": Network(
        "T5ForConditionalGeneration",
        {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        decoder_inputs,
    ),
    "Whisper's encoder": Network(
        "WhisperModel",
        PARTS | {"d_model": 32, "max_source_positions": 32, "num_mel_bins": 16, "vocab_size": 100, "pad_token_id": 0},
        lambda: {"input_features": torch.randn(EXAMPLES, 16, 64)},
        part="encoder",
    ),
    "CLIP": Network(
        "CLIPModel",
        {
            "text_config": TEXT | SMALL | {"bos_token_id": 98, "eos_token_id": 99},
            "vision_config": SMALL | {"image_size": PIXELS, "patch_size": 16},
            "projection_dim": 32,
        },
        clip_inputs,
    ),
    "SegFormer": Network("SegformerForSemanticSegmentation", {"num_labels": 5, "depths": [1, 1, 1, 1]}, images),
    "MobileViT": Network("MobileViTForImageClassification", {"image_size": PIXELS, "num_labels": 10}, images),
    "DETR": Network(
        "DetrForObjectDetection",
        PARTS | {"d_model": 32, "num_queries": 10, "num_labels": 5},
        images,
        nested={"backbone_config": RESNET},
    ),
    "Mamba": Network(
        "MambaForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
        lambda: {"input_ids": torch.randint(3, 100, (EXAMPLES, TOKENS)), "use_cache": False},
    ),
    "Mixtral": Network("MixtralForCausalLM", EXPERTS, without_cache),
    "Mixtral, batched_mm": Network(
        "MixtralForCausalLM", EXPERTS | {"experts_implementation": "batched_mm"}, without_cache
    ),
    "EnCodec's encoder": Network(
        "EncodecModel",
        {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "codebook_dim": 16},
        lambda: {"hidden_states": torch.randn(EXAMPLES, 1, 256)},
        part="encoder",
    ),
    "DeBERTa-v2": Network(
        "DebertaV2ForSequenceClassification",
        TEXT
        | SMALL
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm"},
        tokens,
    ),
    "Gemma 2": Network("Gemma2ForCausalLM", LLAMA | {"head_dim": 8, "sliding_window": 8}, without_cache),
    "BLOOM": Network(
        "BloomForCausalLM", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}, without_cache
    ),
    "Wav2Vec2": Network(
        "Wav2Vec2ForCTC",
        SMALL
        | {"vocab_size": 20, "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3]}
        | {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
        lambda: {"input_values": torch.randn(EXAMPLES, 800)},
    ),
    "ConvNeXt V2": Network(
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "num_labels": 10},
        images,
    ),
    "YOLOS": Network(
        "YolosForObjectDetection",
        SMALL | {"image_size": [PIXELS, PIXELS], "patch_size": 16, "num_detection_tokens": 5, "num_labels": 5},
        images,
    ),
}


def create(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network with random weights, in evaluation mode, and its inputs."""
    import transformers

    torch.manual_seed(0)
    wanted = NETWORKS[name]
    network = getattr(transformers, wanted.class_name)
    nested = {key: transformers.AutoConfig.for_model(**options) for key, options in wanted.nested.items()}
    model: nn.Module = network(network.config_class(**wanted.options, **nested))
    return (model.get_submodule(wanted.part) if wanted.part else model).eval(), wanted.inputs()
