"""Learn bits and channels with the Trainer of transformers, checkpoints and resume included.

python examples/transformers_trainer.py FOLDER

A tiny BERT, made from a configuration, tells from the first word of a made-up sentence which of two kinds it is. The
loss adds the penalty, the optimizer gets the parameter groups, and a callback watches the cost and writes the plan.
"""

import sys
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import bayesbits as bb

MU = 0.01
LR = {"weights": 3e-3, "gates": 1e-1, "ranges": 1e-3}


class BayesBitsCallback(TrainerCallback):
    """Logs the expected cost, and writes the plan at the end of training."""

    def __init__(self, compressor: bb.Compressor, folder: Path) -> None:
        self.compressor, self.folder = compressor, folder

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        expected = self.compressor.expected_relative_bops().item()
        print(f"epoch {state.epoch:.0f}: {expected:.3f}% of the bit operations expected")

    def on_train_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == state.max_steps:
            self.compressor.plan().save(self.folder / "plan.json")


def make_sentences(count: int = 512) -> list[dict[str, torch.Tensor]]:
    """Made-up sentences of 12 words of a vocabulary of 32; the label says whether the first word is above 15."""
    words = torch.randint(0, 32, (count, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": (row[0] > 15).long()} for row in words]


def make_trainer(folder: Path, sentences: list[dict[str, torch.Tensor]]) -> tuple[Trainer, bb.Compressor]:
    """A Trainer whose network learns its bits."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    words = torch.stack([sentence["input_ids"] for sentence in sentences])
    compressor = bb.attach(model, {"input_ids": words[:1]}, bb.Spec(bits=(2, 4, 8)))
    compressor.calibrate([{"input_ids": words[:128]}])
    groups = [group | {"lr": LR[group["name"]]} for group in compressor.parameter_groups()]

    def loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs["logits"], labels) + MU * compressor.penalty()

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=8, per_device_train_batch_size=32, save_strategy="epoch",
        logging_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=sentences, compute_loss_func=loss,
        optimizers=(torch.optim.Adam(groups), None), callbacks=[BayesBitsCallback(compressor, folder)],
    )  # fmt: skip
    return trainer, compressor


class StopAfter(TrainerCallback):
    """Ends training after some epochs, as an interruption would."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        control.should_training_stop = state.epoch >= self.epochs


def main(folder: Path) -> None:
    sentences = make_sentences()
    trainer, _ = make_trainer(folder, sentences)
    trainer.add_callback(StopAfter(4))
    trainer.train()
    print("interrupted; the last checkpoint goes on")
    trainer, compressor = make_trainer(folder, sentences)
    trainer.train(resume_from_checkpoint=True)

    compressor.fix(bb.Plan.load(folder / "plan.json"))
    model = compressor.model.eval()
    words = torch.stack([sentence["input_ids"] for sentence in sentences])
    labels = torch.stack([sentence["labels"] for sentence in sentences])
    with torch.no_grad():
        right = (model(input_ids=words).logits.argmax(1) == labels).float().mean()
    print(f"{100 * right:.1f}% accuracy at {compressor.cost().relative_bops:.2f}% of the bit operations")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
