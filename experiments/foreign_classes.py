"""Networks of MONAI and `diffusers` for `experiments.foreign_files`: small, in two and three dimensions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Network:
    """Where a network is, how it is made, and the shapes of its inputs, by name."""

    place: str
    """A file of `pytorchcv.models`, a class of `transformers`, or the full name of any other class or function."""
    shapes: Mapping[str, tuple[int, ...] | bool]
    """The shape of one example of every input; a name with `ids` holds tokens, one with `mask` ones."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """An option that is a `Network` is created, too."""
    nested: tuple[str, ...] = ()
    """Options that are configurations themselves, each with its `model_type`."""


def monai(name: str, shape: tuple[int, ...], **options: Any) -> Network:
    """A network of MONAI that reads one image or volume."""
    return Network(f"monai.networks.nets.{name}", {"x": shape}, options)


SCAN = {"in_channels": 1, "out_channels": 3}
FLAT = SCAN | {"spatial_dims": 2}
VOLUME = SCAN | {"spatial_dims": 3}
TWO: dict[str, Any] = {"channels": (16, 32), "strides": (2, 2)}
STRIDES: dict[str, Any] = {"channels": (16, 32, 64), "strides": (2, 2)}
DYNAMIC: dict[str, Any] = {"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2)}

MONAI = {
    "BasicUNet": monai("BasicUNet", (1, 32, 32), **FLAT, features=(16, 16, 32, 32, 64, 16)),
    "UNet-2D": monai("UNet", (1, 32, 32), **FLAT, **STRIDES, num_res_units=2),
    "UNet-3D": monai("UNet", (1, 16, 16, 16), **VOLUME, **STRIDES, norm="batch"),
    "SegResNet": monai("SegResNet", (1, 16, 16, 16), **VOLUME, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    "DynUNet": monai("DynUNet", (1, 32, 32), **FLAT, **DYNAMIC, filters=(16, 32, 64), res_block=True),
    "VNet": monai("VNet", (1, 16, 16, 16), **VOLUME),
    "AttentionUnet": monai("AttentionUnet", (1, 32, 32), **FLAT, **STRIDES),
    "HighResNet": monai("HighResNet", (1, 8, 8, 8), **VOLUME),
    "DenseNet-3D": monai(
        "DenseNet", (1, 32, 32, 32), **VOLUME, init_features=16, growth_rate=8, block_config=(2, 2, 2)
    ),
    "SEResNet50": monai("SEResNet50", (3, 64, 64), spatial_dims=2, in_channels=3, num_classes=10),
    "EfficientNetBN": monai(
        "EfficientNetBN", (3, 64, 64), model_name="efficientnet-b0", pretrained=False, num_classes=10
    ),
    "FlexibleUNet": monai("FlexibleUNet", (3, 64, 64), in_channels=3, out_channels=2, backbone="efficientnet-b0"),
    "AutoEncoder": monai("AutoEncoder", (1, 32, 32), **FLAT, **TWO, inter_channels=(32, 32), num_res_units=1),
    "VarAutoEncoder": monai(
        "VarAutoEncoder",
        (1, 32, 32),
        spatial_dims=2,
        in_shape=(1, 32, 32),
        out_channels=1,
        latent_size=8,
        **TWO,
    ),
    "FullyConnectedNet": monai(
        "FullyConnectedNet", (24,), in_channels=24, out_channels=4, hidden_channels=(64, 32), dropout=0.1
    ),
    "Regressor": monai("Regressor", (1, 32, 32), in_shape=(1, 32, 32), out_shape=(5,), **STRIDES),
    "Generator": monai("Generator", (16,), latent_shape=(16,), start_shape=(16, 4, 4), **TWO),
    "MILModel": monai(
        "MILModel",
        (2, 3, 64, 64),
        num_classes=4,
        mil_mode="att_trans",
        pretrained=False,
        trans_blocks=1,
        backbone=Network("monai.networks.nets.resnet10", {}, {"spatial_dims": 2, "feed_forward": False}),
        backbone_num_features=512,
    ),
    "VQVAE": monai(
        "VQVAE",
        (1, 32, 32),
        **FLAT,
        channels=(16, 32, 32),
        num_res_channels=(16, 32, 32),
        num_res_layers=1,
        embedding_dim=8,
        num_embeddings=32,
    ),
    "RegUNet": monai("RegUNet", (2, 32, 32), spatial_dims=2, in_channels=2, num_channel_initial=8, depth=2),
    "MedNeXt": monai(
        "MedNeXt",
        (1, 32, 32),
        **FLAT,
        init_filters=8,
        kernel_size=3,
        blocks_down=(1, 1),
        blocks_up=(1, 1),
        blocks_bottleneck=1,
    ),
    "VoxelMorphUNet": monai(
        "VoxelMorphUNet",
        (2, 32, 32),
        spatial_dims=2,
        in_channels=2,
        unet_out_channels=8,
        channels=(8, 16, 16, 8),
        final_conv_channels=(8,),
    ),
    "BasicUNet++": monai("BasicUNetPlusPlus", (1, 32, 32), **FLAT, features=(8, 8, 16, 16, 32, 8)),
    "SegResNetDS": monai("SegResNetDS", (1, 32, 32), **FLAT, init_filters=8, blocks_down=(1, 1, 1)),
    "UNETR": monai("UNETR", (1, 32, 32), **FLAT, img_size=32, feature_size=8, hidden_size=48, mlp_dim=64, num_heads=4),
    "SwinUNETR": monai("SwinUNETR", (1, 64, 64), **FLAT, feature_size=12, window_size=4, num_heads=(1, 2, 2, 4)),
    "PatchDiscriminator": monai("PatchDiscriminator", (3, 32, 32), spatial_dims=2, in_channels=3, channels=16),
}

CODER: dict[str, Any] = {"block_out_channels": (16, 32), "norm_num_groups": 8}
CODER |= {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
PICTURE = {"sample": (3, 32, 32)}
LATENT: dict[str, Any] = {"hidden_states": (4, 16, 16), "timestep": ()}
PROMPT = {"encoder_hidden_states": (8, 24)}
PATCHES: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2}
PATCHES |= {"sample_size": 16, "in_channels": 4}
ONCE = {"norm_num_groups": 8, "layers_per_block": 1}

DIFFUSERS = {
    "UNet2D": Network(
        "diffusers.UNet2DModel",
        {"sample": (3, 32, 32), "timestep": ()},
        ONCE
        | {
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
    ),
    "UNet2DCondition": Network(
        "diffusers.UNet2DConditionModel",
        {"sample": (4, 16, 16), "timestep": (), "encoder_hidden_states": (8, 24)},
        ONCE
        | {
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 24,
            "attention_head_dim": 4,
        },
    ),
    "AutoencoderKL": Network("diffusers.AutoencoderKL", PICTURE, CODER),
    "VQModel": Network("diffusers.VQModel", PICTURE, CODER | {"num_vq_embeddings": 32}),
    "AutoencoderTiny": Network(
        "diffusers.AutoencoderTiny",
        PICTURE,
        {
            "encoder_block_out_channels": (16, 16),
            "decoder_block_out_channels": (16, 16),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
    ),
    "UNet1D": Network(
        "diffusers.UNet1DModel",
        {"sample": (2, 64), "timestep": ()},
        {
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D"),
            "up_block_types": ("UpBlock1D", "UpBlock1DNoSkip"),
            "mid_block_type": "UNetMidBlock1D",
            "extra_in_channels": 32,
        },
    ),
    "DiT": Network(
        "diffusers.DiTTransformer2DModel",
        LATENT | {"class_labels": ()},
        PATCHES | {"norm_num_groups": 8, "num_embeds_ada_norm": 100},
    ),
    "PixArt": Network(
        "diffusers.PixArtTransformer2DModel",
        LATENT | PROMPT,
        PATCHES
        | {"out_channels": 8, "cross_attention_dim": 32, "caption_channels": 24, "use_additional_conditions": False},
    ),
    "SD3": Network(
        "diffusers.SD3Transformer2DModel",
        LATENT | PROMPT | {"pooled_projections": (16,)},
        PATCHES
        | {"joint_attention_dim": 24, "caption_projection_dim": 32, "pooled_projection_dim": 16, "out_channels": 4},
    ),
    "Sana": Network(
        "diffusers.SanaTransformer2DModel",
        LATENT | PROMPT,
        PATCHES
        | {
            "out_channels": 4,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 32,
            "caption_channels": 24,
        },
    ),
}
