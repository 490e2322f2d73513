"""Further networks of `pytorchcv`, `transformers`, MONAI and `diffusers` for `experiments.foreign_files`.

They are small, with random weights. Batch norms get factors and statistics like those of trained networks: factors over
orders of magnitude, some of them nearly zero, and statistics of the data that they read.
"""

import importlib
import math
from typing import Any

import torch
from torch import nn

from experiments.foreign_classes import DIFFUSERS, MONAI, Network

EXAMPLES = 4
DEAD = 1 / 32
"""The part of the factors of a batch norm that are nearly zero."""


def image(size: int, channels: int = 3) -> dict[str, tuple[int, ...]]:
    """An image for a network of `pytorchcv`."""
    return {"x": (channels, size, size)}


def cv(place: str, size: int = 64, **options: Any) -> Network:
    """A network of `pytorchcv` that reads images."""
    return Network(place, image(size), {"in_size": (size, size)} | options)


PYTORCHCV = {
    "cbam_resnet18": cv("cbamresnet"),
    "bam_resnet18": cv("bamresnet"),
    "vovnet27s": cv("vovnet"),
    "peleenet": cv("peleenet"),
    "shufflenet_g3_wd4": cv("shufflenet"),
    "igcv3_wd4": cv("igcv3"),
    "menet108_8x1_g3": cv("menet"),
    "octresnet10_ad2": cv("octresnet"),
    "channelnet": cv("channelnet"),
    "darknet_tiny": cv("darknet"),
    "revnet38": cv("revnet"),
    "sharesnet18": cv("sharesnet"),
    "sqnxt23_w1": cv("squeezenext"),
    "densenet40_k12_bc_cifar10": cv("densenet_cifar", 32),
    "diapreresnet20_cifar10": cv("diapreresnet_cifar", 32),
    "nin_cifar10": cv("nin_cifar", 32),
    "shakeshakeresnet20_2x16d_cifar10": cv("shakeshakeresnet_cifar", 32),
    "bisenet_resnet18_celebamaskhq": cv("bisenet", aux=False),
    "ctxnet_cityscapes": cv("contextnet", aux=False),
    "enet_cityscapes": cv("enet"),
    "erfnet_cityscapes": cv("erfnet"),
    "espcnet_cityscapes": cv("espcnet"),
    "centernet_resnet18_voc": cv("centernet"),
    "simplepose_mobile_mobilenetv2b_w1_coco": cv("simpleposemobile_coco"),
    "superpointnet": Network("superpointnet", image(64, 1)),
    "quartznet5x5_en_ls": Network("quartznet", {"x": (64, 96), "x_len": ()}, {"from_audio": False, "num_classes": 29}),
    "voca8flame": Network("voca", {"x": (1, 16, 29), "pid": ()}, {}),
    "airnext50_32x4d_r2": cv("airnext"),
    "condensenet74_c8_g8": cv("condensenet"),
    "ibn_resnet50": cv("ibnresnet"),
    "mnasnet_small": cv("mnasnet"),
    "rir_cifar10": cv("rir_cifar", 32),
    "fractalnet_cifar10": cv("fractalnet_cifar", 32),
    "dicenet_wd5": cv("dicenet"),
    "fdmobilenet_wd4": cv("fdmobilenet"),
    "tresnet_m": cv("tresnet"),
    "isqrtcovresnet18": cv("isqrtcovresnet"),
    "sinet_cityscapes": cv("sinet", 128, aux=False),
    "lednet_cityscapes": cv("lednet"),
    "linknet_cityscapes": cv("linknet"),
    "cgnet_cityscapes": cv("cgnet"),
    "nasnet_4a1056": Network("nasnet", image(64)),
    "densenet121": cv("densenet"),
    "preresnet18": cv("preresnet"),
    "xdensenet40_2_k24_bc_cifar10": cv("xdensenet_cifar", 32),
    "scneta50": cv("scnet", 128),
    "edanet_cityscapes": cv("edanet", aux=False),
    "espnetv2_wd2": cv("espnetv2"),
    "lffd20x5s320v2_widerface": cv("lffd", 128),
    "dpn68": cv("dpn"),
}

PIXELS = 64
PICTURE = {"pixel_values": (3, PIXELS, PIXELS)}
IMAGES = {"image_size": PIXELS, "num_labels": 10}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 100, "max_position_embeddings": 64}
TOKENS = {"input_ids": (16,), "attention_mask": (16,)}
SPEECH = SMALL | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
AUDIO = {"input_values": (4000,)}
RESNET = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32, 32, 64], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage1", "stage2", "stage3", "stage4"]}
TINY_VIT = SMALL | {"image_size": PIXELS, "patch_size": 16}
DECODER = TEXT | SMALL
SEQUENCE = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SEQUENCE |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}

TRANSFORMERS = {
    "MobileNetV1": Network("MobileNetV1ForImageClassification", PICTURE, {"depth_multiplier": 0.25}),
    "PoolFormer": Network(
        "PoolFormerForImageClassification", PICTURE, {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
    ),
    "SwiftFormer": Network(
        "SwiftFormerForImageClassification",
        PICTURE,
        {"embed_dims": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": PIXELS},
    ),
    "LeViT": Network(
        "LevitForImageClassification",
        PICTURE,
        {
            "hidden_sizes": [32, 48, 64],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "image_size": PIXELS,
        },
    ),
    "PVTv2": Network(
        "PvtV2ForImageClassification",
        PICTURE,
        {
            "hidden_sizes": [16, 32, 48, 64],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "image_size": PIXELS,
        },
    ),
    "FocalNet": Network(
        "FocalNetForImageClassification",
        PICTURE,
        {
            "embed_dim": 16,
            "depths": [1, 1, 1],
            "image_size": PIXELS,
            "focal_levels": [2, 2, 2],
            "focal_windows": [3, 3, 3],
            "hidden_sizes": [16, 32, 64],
        },
    ),
    "BiT": Network(
        "BitForImageClassification",
        PICTURE,
        {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 8},
    ),
    "SwinV2": Network(
        "Swinv2ForImageClassification",
        PICTURE,
        IMAGES | {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "UperNet": Network(
        "UperNetForSemanticSegmentation",
        PICTURE,
        {
            "backbone_config": RESNET,
            "hidden_size": 32,
            "auxiliary_in_channels": 32,
            "auxiliary_channels": 16,
            "num_labels": 5,
        },
        nested=("backbone_config",),
    ),
    "RT-DETR": Network(
        "RTDetrForObjectDetection",
        PICTURE,
        {
            "backbone_config": {
                "model_type": "rt_detr_resnet",
                "embedding_size": 16,
                "hidden_sizes": [16, 32, 48, 64],
                "depths": [1, 1, 1, 1],
                "layer_type": "basic",
                "out_features": ["stage2", "stage3", "stage4"],
            },
            "encoder_hidden_dim": 32,
            "d_model": 32,
            "encoder_in_channels": [32, 48, 64],
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "decoder_layers": 1,
            "num_queries": 10,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "decoder_in_channels": [32, 32, 32],
            "num_denoising": 0,
        },
        nested=("backbone_config",),
    ),
    "Swin2SR": Network(
        "Swin2SRForImageSuperResolution",
        {"pixel_values": (3, 32, 32)},
        {"image_size": 32, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4},
    ),
    "SigLIP": Network(
        "SiglipModel",
        PICTURE | {"input_ids": (16,)},
        {
            "text_config": {"model_type": "siglip_text_model"} | DECODER,
            "vision_config": {"model_type": "siglip_vision_model"} | TINY_VIT,
        },
        nested=("text_config", "vision_config"),
    ),
    "TimeSformer": Network(
        "TimesformerForVideoClassification",
        {"pixel_values": (4, 3, 32, 32)},
        SMALL | {"image_size": 32, "patch_size": 16, "num_frames": 4},
    ),
    "AST": Network(
        "ASTForAudioClassification", {"input_values": (64, 32)}, SMALL | {"max_length": 64, "num_mel_bins": 32}
    ),
    "HuBERT": Network("HubertForSequenceClassification", AUDIO, SPEECH),
    "WavLM": Network("WavLMForSequenceClassification", AUDIO, SPEECH),
    "SEW": Network("SEWForSequenceClassification", AUDIO, SPEECH | {"conv_dim": [32] * 13, "squeeze_factor": 2}),
    "PatchTST": Network(
        "PatchTSTForPrediction",
        {"past_values": (64, 3)},
        {
            "num_input_channels": 3,
            "context_length": 64,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 32,
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "ffn_dim": 64,
            "prediction_length": 8,
        },
    ),
    "PatchTSMixer": Network(
        "PatchTSMixerForPrediction",
        {"past_values": (64, 3)},
        {
            "num_input_channels": 3,
            "context_length": 64,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_layers": 2,
            "prediction_length": 8,
        },
    ),
    "FNet": Network("FNetForSequenceClassification", {"input_ids": (16,)}, TEXT | SMALL),
    "ConvBERT": Network("ConvBertForSequenceClassification", TOKENS, TEXT | SMALL | {"embedding_size": 32}),
    "MPNet": Network("MPNetForSequenceClassification", TOKENS, TEXT | SMALL),
    "RoFormer": Network("RoFormerForSequenceClassification", TOKENS, TEXT | SMALL | {"embedding_size": 32}),
    "MobileBERT": Network(
        "MobileBertForSequenceClassification",
        TOKENS,
        TEXT | SMALL | {"intra_bottleneck_size": 16, "embedding_size": 16, "true_hidden_size": 16},
    ),
    "Funnel": Network(
        "FunnelForSequenceClassification",
        TOKENS,
        {"vocab_size": 100, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
    ),
    "XLNet": Network(
        "XLNetForSequenceClassification",
        TOKENS,
        {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    "LayoutLM": Network("LayoutLMForSequenceClassification", TOKENS, TEXT | SMALL),
    "GPT-NeoX": Network(
        "GPTNeoXForSequenceClassification", TOKENS | {"use_cache": False}, DECODER | {"pad_token_id": 0}
    ),
    "BART": Network("BartModel", TOKENS | {"use_cache": False}, TEXT | SEQUENCE),
    "RWKV": Network(
        "RwkvModel",
        {"input_ids": (8,)},
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 16},
    ),
}

TRANSFORMERS |= {
    "GLPN": Network(
        "GLPNForDepthEstimation",
        PICTURE,
        {
            "hidden_sizes": [16, 32, 48, 64],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 16,
            "num_attention_heads": [1, 2, 3, 4],
        },
    ),
    "DeBERTa-v2": Network(
        "DebertaV2ForSequenceClassification",
        TOKENS,
        TEXT | SMALL | {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]},
    ),
    "ModernBERT": Network("ModernBertForSequenceClassification", TOKENS, TEXT | SMALL | {"pad_token_id": 0}),
    "Nystromformer": Network(
        "NystromformerForSequenceClassification",
        {"input_ids": (16,)},
        TEXT | SMALL | {"segment_means_seq_len": 16, "num_landmarks": 4, "conv_kernel_size": 5},
    ),
    "Gemma2": Network(
        "Gemma2ForSequenceClassification",
        TOKENS | {"use_cache": False},
        DECODER | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "sliding_window": 8},
    ),
    "DPT": Network(
        "DPTForDepthEstimation",
        PICTURE,
        TINY_VIT
        | {
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 16, 24, 32],
            "fusion_hidden_size": 16,
        },
    ),
}

TRANSFORMERS |= {
    "ConvNeXtV2": Network(
        "ConvNextV2ForImageClassification",
        PICTURE,
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": PIXELS},
    ),
    "HGNetV2": Network(
        "HGNetV2ForImageClassification",
        PICTURE,
        {
            "embedding_size": 16,
            "hidden_sizes": [16, 32, 48, 64],
            "depths": [1, 1, 1, 1],
            "stem_channels": [3, 8, 16],
            "stage_in_channels": [16, 16, 32, 48],
            "stage_mid_channels": [8, 8, 16, 16],
            "stage_out_channels": [16, 32, 48, 64],
            "stage_num_blocks": [1, 1, 1, 1],
            "stage_numb_of_layers": [2, 2, 2, 2],
        },
    ),
    "I-BERT": Network("IBertForSequenceClassification", TOKENS, TEXT | SMALL),
    "EnCodec": Network(
        "EncodecModel",
        {"input_values": (1, 640)},
        {"num_filters": 8, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16, "num_lstm_layers": 1},
    ),
    "DAC": Network(
        "DacModel",
        {"input_values": (1, 640)},
        {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "n_codebooks": 2, "codebook_size": 32},
    ),
    "Conformer": Network("Wav2Vec2ConformerForSequenceClassification", AUDIO, SPEECH),
    "SuperPoint": Network(
        "SuperPointForKeypointDetection",
        PICTURE,
        {"encoder_hidden_sizes": [16, 16, 32, 32], "decoder_hidden_size": 32, "descriptor_decoder_dim": 32},
    ),
}

NETWORKS: dict[str, Network] = PYTORCHCV | TRANSFORMERS | MONAI | DIFFUSERS


def create(name: str) -> tuple[nn.Module, Any]:
    """A network with random weights and trained-like batch norms, in evaluation mode, and inputs of a few examples."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    if "." in network.place:
        model = _of_class(network)
    else:
        model = _pytorchcv(name, network) if name in PYTORCHCV else _transformer(network)
    inputs = {key: _input(key, shape) for key, shape in network.shapes.items()}
    given: Any = tuple(inputs.values()) if name in PYTORCHCV and len(inputs) > 1 else inputs
    given = inputs["x"] if list(inputs) == ["x"] else given
    set_statistics(model, given)
    return model.eval(), given


def _pytorchcv(name: str, network: Network) -> nn.Module:
    module = importlib.import_module(f"pytorchcv.models.{network.place}")
    model: nn.Module = getattr(module, name)(**network.options)
    for path, child in list(model.named_modules()):
        if (
            isinstance(child, nn.AvgPool2d) and isinstance(child.kernel_size, int) and child.kernel_size >= 7
        ):  # made for larger images
            model.set_submodule(path, nn.AdaptiveAvgPool2d(1))
    return model


def _of_class(network: Network) -> nn.Module:
    place, name = network.place.rsplit(".", 1)
    options = {key: _of_class(each) if isinstance(each, Network) else each for key, each in network.options.items()}
    model: nn.Module = getattr(importlib.import_module(place), name)(**options)
    return model


def _transformer(network: Network) -> nn.Module:
    import transformers

    options = dict(network.options)
    for key in network.nested:
        nested = dict(options[key])
        options[key] = transformers.AutoConfig.for_model(nested.pop("model_type"), **nested)
    chosen = getattr(transformers, network.place)
    model: nn.Module = chosen(chosen.config_class(**options))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and not hasattr(module, "parametrizations"):
            nn.init.xavier_normal_(module.weight)  # its library starts with nearly zero
    return model


def _input(name: str, shape: tuple[int, ...] | bool) -> Any:
    if isinstance(shape, bool):
        return shape
    if "mask" in name:
        mask = torch.ones(EXAMPLES, *shape, dtype=torch.int64)
        mask[1, shape[0] // 2 :] = 0
        return mask
    if "ids" in name or name == "inputs":
        return torch.randint(3, 100, (EXAMPLES, *shape))
    if name == "x_len":
        return torch.tensor([96, 80, 96, 64][:EXAMPLES])
    if name == "timestep":
        return torch.tensor([3, 40, 500, 999][:EXAMPLES])
    if name in ("pid", "class_labels"):
        return torch.tensor([0, 1, 2, 3][:EXAMPLES])
    return torch.randn(EXAMPLES, *shape)


def call(model: nn.Module, inputs: Any) -> Any:
    """What a network returns."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def set_statistics(model: nn.Module, inputs: Any) -> None:
    """Give batch norms factors from 0.1 to 3, some nearly zero, and about the statistics of what they read."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and m.affine]
    for norm in norms:
        factors = torch.empty_like(norm.weight).uniform_(math.log(0.3), math.log(3)).exp_()
        factors[torch.rand_like(factors) < DEAD] = 1e-6
        norm.weight.data = factors * torch.where(torch.rand_like(factors) < 0.05, -1.0, 1.0)
        norm.bias.data.normal_(0, 0.3)
    if norms:
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            call(model.train(), inputs)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.7, 1.4)
