"""Networks of `transformers` with random weights: how much of each computes in integers, and which sizes it takes.

    python -m experiments.transformer_networks [NAME ...] [--json FILE]

Each network is attached, trained for one step, given a plan of 8 bits, deployed, saved, loaded, exported, and verified
at the sizes of its example and at smaller ones, where its sizes may change. Prints a line for each network, and writes
`experiments/results/transformer-networks.json`, from which the page of results has its table. The error of one network
does not stop the others; networks that are not named keep the rows that they have.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bayesbits as bb
from bayesbits.utils.files import write_atomically
from experiments.foreign_networks import train_one_step

RESULTS = Path(__file__).parent / "results" / "transformer-networks.json"
EXAMPLES, TOKENS, PIXELS = 3, 16, 64

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {"vocab_size": 100, "max_position_embeddings": 64}
IMAGES = {"image_size": PIXELS, "patch_size": 16, "num_labels": 10}
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
WHISPER = {"d_model": 32, "max_source_positions": 32, "num_mel_bins": 16} | {
    f"{part}_{name}": size
    for part in ("encoder", "decoder")
    for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
}
LLAMA = TEXT | SMALL | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 100, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
STAGES = {"image_size": PIXELS, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}


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


CLIP = {
    "text_config": TEXT | SMALL | {"eos_token_id": 99},
    "vision_config": SMALL | {"image_size": PIXELS, "patch_size": 16},
    "projection_dim": 32,
}

NETWORKS: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "ViT": ("ViTForImageClassification", SMALL | IMAGES, images),
    "DeiT": ("DeiTForImageClassification", SMALL | IMAGES, images),
    "Swin": ("SwinForImageClassification", STAGES, images),
    "BERT": ("BertForSequenceClassification", TEXT | SMALL, tokens),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        TEXT | {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        tokens,
    ),
    "ALBERT": ("AlbertForSequenceClassification", TEXT | SMALL | {"embedding_size": 16}, tokens),
    "GPT-2": ("GPT2LMHeadModel", GPT2, without_cache),
    "Llama": ("LlamaForCausalLM", LLAMA, without_cache),
    "T5": ("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}, decoder_inputs),
    "Whisper's encoder": (
        "WhisperModel",
        WHISPER | {"vocab_size": 100, "pad_token_id": 0},
        lambda: {"input_features": torch.randn(EXAMPLES, 16, 64)},
    ),
    "CLIP": ("CLIPModel", CLIP, clip_inputs),
    "SegFormer": ("SegformerForSemanticSegmentation", {"num_labels": 5, "depths": [1, 1, 1, 1]}, images),
    "MobileViT": ("MobileViTForImageClassification", {"image_size": PIXELS, "num_labels": 10}, images),
    "Mamba": (
        "MambaForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
        lambda: {"input_ids": torch.randint(3, 100, (EXAMPLES, TOKENS)), "use_cache": False},
    ),
    "Mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}, without_cache),
    "EnCodec's encoder": (
        "EncodecModel",
        {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "codebook_dim": 16},
        lambda: {"input": torch.randn(EXAMPLES, 1, 256)},
    ),
}


def create(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """A network with random weights, and the inputs of a few examples."""
    import transformers

    torch.manual_seed(0)
    class_name, options, inputs = NETWORKS[name]
    network = getattr(transformers, class_name)
    model: nn.Module = network(network.config_class(**options))
    if name.endswith("encoder"):
        model = model.get_encoder() if hasattr(model, "get_encoder") and name != "EnCodec's encoder" else model.encoder
    if name == "EnCodec's encoder":
        return model, {next(iter(_parameters(model))): inputs()["input"]}
    return model.eval(), inputs()


def _parameters(model: nn.Module) -> list[str]:
    import inspect

    return list(inspect.signature(model.forward).parameters)


def smaller_inputs(small: bb.DeployedNetwork, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with every size that may change cut to about one half; a batch to two examples."""
    structure = small.integer.structure
    given = {structure.inputs.index(name): name for name in inputs if name in structure.inputs}
    cut = dict(inputs)
    for size in structure.sizes or ():
        for number, dim in size.places:
            tensor = cut[given[number]]
            wanted = 2 if dim == 0 else size.smaller(tensor.shape[dim]) or tensor.shape[dim]
            cut[given[number]] = tensor.narrow(dim, 0, min(wanted, tensor.shape[dim]))
    return cut


def shapes_of(inputs: dict[str, Any]) -> str:
    """The shapes of the tensors of a call."""
    shapes = ["x".join(map(str, x.shape)) for x in inputs.values() if isinstance(x, torch.Tensor)]
    return ", ".join(dict.fromkeys(shapes))


def run_stages(name: str, folder: Path) -> dict[str, Any]:
    """All stages for one network: its row of the table, or the stage that failed and why."""
    stage, row = "create", dict[str, Any]()
    try:
        model, inputs = create(name)
        stage = "attach"
        compressor = bb.attach(model, inputs, bb.Spec(bits=(4, 8)))
        topology = compressor.topology
        row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        row["attached"] = 100 * sum(layer.macs for layer in topology.layers) / topology.macs
        compressor.calibrate([inputs])
        stage = "step"
        train_one_step(model, inputs, compressor)
        stage = "plan"
        compressor.fix(bb.Plan.uniform(topology, 8, 8))
        stage = "deploy"
        small = bb.deploy(compressor)
        structure = small.integer.structure
        row["sizes"] = [str(size) for size in structure.sizes or ()]
        row["fixed"] = list(structure.fixed_sizes)
        integer = sum(layer.macs for layer in small.integer.layers if layer.arithmetic == "integer")
        row["integer"] = 100 * integer / small.macs
        with torch.no_grad():
            row["returns"] = type(small(**inputs)).__name__
            if type(small(**inputs)) is not type(model(**inputs)):
                raise TypeError(f"the deployed network returns a {row['returns']}")
        stage = "save"
        bb.save(small, folder / "small")
        again = bb.load(folder / "small")
        stage = "export"
        path = folder / "small.onnx"
        bb.export_onnx(again, inputs, path)
        row["verified"] = []
        other = smaller_inputs(again, inputs)
        for call in (inputs, other) if shapes_of(other) != shapes_of(inputs) else (inputs,):
            stage = f"verify at {shapes_of(call)}"
            bb.verify(compressor, again, path, call)
            row["verified"].append(shapes_of(call))
        return row | {"passed": True}
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        return row | {"passed": False, "stage": stage, "error": f"{type(error).__name__}: {first[:300]}"}


def main() -> None:
    """Run the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []], metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--json", type=Path, default=RESULTS, help="the file with the rows of all networks")
    options = parser.parse_args()
    kept = json.loads(options.json.read_text()) if options.json.exists() else {"networks": {}}
    for name in options.names or NETWORKS:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = run_stages(name, Path(folder))
        kept["networks"][name] = row
        kept["versions"] = {package: __import__(package).__version__ for package in ("torch", "transformers")}
        ordered = {network: kept["networks"][network] for network in NETWORKS if network in kept["networks"]}
        write_atomically(options.json, (json.dumps(kept | {"networks": ordered}, indent=1) + "\n").encode())
        print(f"{name}: {json.dumps(row)} ({time.process_time() - start:.0f} s of CPU time)", flush=True)


if __name__ == "__main__":
    main()
