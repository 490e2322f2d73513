"""Networks that nobody here wrote, from attaching to a proven file: which ones pass every stage, and what stops others?

    python -m experiments.foreign_networks [NAME ...]

Networks of `transformers` and `pytorchcv` with random weights, on images of 64 pixels where they take images. Each is
attached, trained for one step, given a random plan of 2, 4 and 8 bits without 30% of its removable channels, deployed,
saved, loaded, exported in both forms and verified. Prints a line for each network; the error of one does not stop the
others. Both packages have to be installed.
"""

import argparse
import importlib
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesbits as bb

PIXELS = 64
EXAMPLES = 4

# The modules of pytorchcv that networks are in: its list of all networks needs torchvision.
PYTORCHCV = {
    "squeezenet_v1_1": "squeezenet", "mixnet_s": "mixnet", "hardnet39ds": "hardnet", "hrnet_w18_small_v1": "hrnet",
    "seresnet10": "seresnet", "preresnet10": "preresnet", "bagnet9": "bagnet", "diracnet18v2": "diracnetv2",
    "dla34": "dla", "resnesta18": "resnesta", "fbnet_cb": "fbnet", "proxylessnas_cpu": "proxylessnas",
    "fastscnn_cityscapes": "fastscnn", "dabnet_cityscapes": "dabnet", "selecsls42": "selecsls",
    "resattnet56": "resattnet",
}  # fmt: skip

IMAGES = {"image_size": PIXELS, "num_labels": 10}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 100, "max_position_embeddings": 32}

STAGES = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4]}

TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "mobilevit": ("MobileViTForImageClassification", IMAGES),
    "mobilevitv2": ("MobileViTV2ForImageClassification", IMAGES),
    "segformer": ("SegformerForSemanticSegmentation", {"num_labels": 5, "depths": [1, 1, 1, 1]}),
    "swin": ("SwinForImageClassification", IMAGES | STAGES | {"window_size": 4}),
    "deit": ("DeiTForImageClassification", IMAGES | SMALL),
    "beit": ("BeitForImageClassification", IMAGES | SMALL),
    "dinov2": ("Dinov2ForImageClassification", IMAGES | SMALL),
    "hiera": (
        "HieraForImageClassification",
        {"image_size": [PIXELS, PIXELS], "embed_dim": 32, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8]},
    ),
    "textnet": ("TextNetForImageClassification", {"num_labels": 10}),
    "yolos": (
        "YolosForObjectDetection",
        IMAGES | SMALL | {"image_size": [PIXELS, PIXELS], "num_detection_tokens": 8},
    ),
    "wav2vec2": (
        "Wav2Vec2ForSequenceClassification",
        SMALL | {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
    ),
    "distilbert": (
        "DistilBertForSequenceClassification",
        TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "albert": ("AlbertForSequenceClassification", TEXT | SMALL | {"embedding_size": 16}),
    "squeezebert": ("SqueezeBertForSequenceClassification", TEXT | SMALL | {"embedding_size": 32}),
    "opt": ("OPTForSequenceClassification", TEXT | SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "electra": ("ElectraForSequenceClassification", TEXT | SMALL | {"embedding_size": 16}),
}


def create(name: str) -> tuple[nn.Module, Any]:
    """A network with random weights, and inputs of a few examples."""
    torch.manual_seed(0)
    if name in PYTORCHCV:
        network = getattr(importlib.import_module(f"pytorchcv.models.{PYTORCHCV[name]}"), name)
        segments = {"aux": False} if name.endswith("cityscapes") else {}
        model: nn.Module = network(in_size=(PIXELS, PIXELS), **segments)
        for path, module in list(model.named_modules()):
            if isinstance(module, nn.AvgPool2d) and module.kernel_size in (4, 7, 13, 27):  # made for larger images
                model.set_submodule(path, nn.AdaptiveAvgPool2d(1))
        return model, torch.randn(EXAMPLES, 3, PIXELS, PIXELS)
    import transformers

    class_name, options = TRANSFORMERS[name]
    network = getattr(transformers, class_name)
    model = network(network.config_class(**options))
    if name == "wav2vec2":
        return model, {"input_values": torch.randn(EXAMPLES, 4000)}
    if "vocab_size" in options:
        return model, {"input_ids": torch.randint(3, 100, (EXAMPLES, 16))}
    return model, {"pixel_values": torch.randn(EXAMPLES, 3, PIXELS, PIXELS)}


def output_of(model: nn.Module, inputs: Any) -> Tensor:
    """The first tensor that a network returns."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    while not isinstance(output, Tensor):
        output = next(iter(output.values())) if hasattr(output, "values") else output[0]
    return output


def train_one_step(model: nn.Module, inputs: Any, compressor: bb.Compressor) -> None:
    """One step of training with some loss and the penalty."""
    model.train()
    (output_of(model, inputs).float().square().mean() + 1e-3 * compressor.penalty()).backward()
    torch.optim.SGD(compressor.parameter_groups(), lr=1e-4).step()
    model.eval()


def random_plan(topology: bb.Topology) -> bb.Plan:
    """Widths of 2, 4 and 8 bits at random, and 30% of the removable channels gone."""
    choose = random.Random(0)
    samples = (choose.sample(group.channels, int(0.3 * group.size)) for group in topology.removable_groups)
    removed = {channel for sample in samples for channel in sample}
    plan = bb.Plan.uniform(topology, 8, 8).without(topology, removed)
    return bb.Plan({tensor: choose.choice((2, 4, 8)) for tensor in plan.bits}, plan.kept)


def run_stages(name: str, folder: Path) -> str:
    """All stages for one network; the line about it, which names the stage that failed."""
    stage = "create"
    try:
        model, inputs = create(name)
        stage = "attach"
        compressor = bb.attach(model, inputs, bb.Spec(bits=(2, 4, 8)))
        compressor.calibrate([inputs])
        stage = "step"
        train_one_step(model, inputs, compressor)
        stage = "plan"
        topology = compressor.topology
        plan = random_plan(topology)
        quantizers = compressor.attachment.quantizers
        compressor.fix(bb.Plan({t: bits if t in quantizers else 32 for t, bits in plan.bits.items()}, plan.kept))
        stage = "deploy"
        small = bb.deploy(compressor)
        stage = "save"
        bb.save(small, folder / name)
        again = bb.load(folder / name)
        for form in ("fast", "compact"):
            stage = f"export {form}"
            path = folder / f"{name}-{form}.onnx"
            bb.export_onnx(again, inputs, path, form=form)
            stage = f"verify {form}"
            found = bb.verify(compressor, again, path, inputs)
        attached = 100 * sum(layer.macs for layer in topology.layers) / topology.macs
        return (
            f"passed; {attached:.1f}% of the MACs attached, {small.macs / topology.macs:.2f} of them left, "
            f"{len(found.integer_layers)} of {len(found.kernels)} layers in integers, {found.simulated.ties} ties"
        )
    except Exception as error:
        return f"FAILED at {stage}: {type(error).__name__}: {str(error)[:600]}"


def main() -> None:
    """Run the networks that are named, or all."""
    known = [*PYTORCHCV, *TRANSFORMERS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*known, []], metavar="NAME", help=", ".join(known))
    for name in parser.parse_args().names or known:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            line = run_stages(name, Path(folder))
        print(f"{name}: {line} ({time.process_time() - start:.0f} s of CPU time)", flush=True)


if __name__ == "__main__":
    main()
