"""Compress a language encoder of transformers, with `bb.search` and a rule for one layer.

python examples/language_encoder.py FOLDER

The encoder is a tiny BERT made from a configuration: nothing is downloaded. It is asked which of four words stands most
often in a made-up sentence.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel

import bayesbits as bb


class Classifier(nn.Module):
    """An encoder, and a linear layer on the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=16,
        )  # fmt: skip
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(32, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.head(states.mean(1))


def make_sentences(count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Sentences of 12 words out of four, and the word that stands most often in each."""
    words = torch.randint(4, (count, 12), generator=torch.Generator().manual_seed(count))
    labels = F.one_hot(words, 4).sum(1).argmax(1)
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}, labels


def batches(sentences: dict[str, Tensor], labels: Tensor, size: int = 64) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Pairs of inputs by name and labels."""
    starts = range(0, len(labels), size)
    return [({k: v[i : i + size] for k, v in sentences.items()}, labels[i : i + size]) for i in starts]


def main(folder: Path) -> None:
    torch.manual_seed(0)
    loader = batches(*make_sentences(1024))
    sentences, labels = make_sentences(256)
    example = {name: tensor[:1] for name, tensor in sentences.items()}
    spec = bb.Spec(bits=(2, 4, 8), rules={"head": {"bits": 8}})
    compressor = bb.attach(Classifier(), example, spec)
    print(f"{len(compressor.topology.layers)} layers; what stays in float:")
    for entry in compressor.topology.unsupported:
        print(f"  {entry.what}: {entry.reason}")

    config = bb.SearchConfig(epochs=10, mu=0.01, weights={"lr": 2e-3})
    bb.search(compressor, loader, F.cross_entropy, config, folder=folder, progress=False)
    compressor.fix()

    small = bb.deploy(compressor)
    right = (small(**sentences).argmax(1) == labels).float().mean()
    print(f"{100 * right:.1f}% accuracy at {compressor.cost().relative_bops:.2f}% of the bit operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
