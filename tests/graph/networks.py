"""Small networks for the tests of `graph`, each with one thing to find, and random small ones from `transformers`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from bayesbits.graph.trace import trace
from bayesbits.records.topology import Topology


class Residual(nn.Module):
    """Two convolutions around a residual addition, with batch norms, and a linear layer after pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(6)
        self.inner = nn.Conv2d(6, 4, 1)
        self.outer = nn.Conv2d(4, 6, 3, padding=1)
        self.outer_norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)), inplace=True)
        y = self.outer_norm(self.outer(F.gelu(self.inner(x))))
        y += x
        return self.head(F.relu(y).mean((2, 3)))


class Concatenation(nn.Module):
    """Two branches that read one tensor and are concatenated, and a flatten before the linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 2, 1)
        self.head = nn.Linear(6 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat((F.silu(self.left(x)), F.leaky_relu(self.right(x))), dim=1)
        return self.head(F.max_pool2d(joined, 4).flatten(1))


class Depthwise(nn.Module):
    """Expand, filter every channel by itself, reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, 8, 1)
        self.filter = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.reduce = nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.expand(x))
        x = F.relu6(self.norm(self.filter(x)))
        return self.head(F.adaptive_avg_pool2d(self.reduce(x), 1).flatten(1))


class PaddedShortcut(nn.Module):
    """The CIFAR ResNets' shortcut without weights: every second pixel, and channels of zeros on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = self.down(x) + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return self.head(F.relu(y).mean((2, 3)))


class Shuffled(nn.Module):
    """Channels are split, shuffled across halves by reshapes, and interleaved again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 1)
        self.halved = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(8, 3, 1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = F.relu(self.first(x)).chunk(2, dim=1)
        x = torch.cat((kept, F.relu(self.halved(changed))), dim=1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)
        return self.head(F.relu(self.last(x)).amax((2, 3)))


class Twice(nn.Module):
    """One module that runs twice, on different tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.shared = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.shared(x))
        return self.head(F.relu(self.shared(x)).mean((2, 3)))


class Tied(nn.Module):
    """Two linear layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class TwoInputs(nn.Module):
    """Two inputs, of which each has a layer of its own, and a branch in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 4)
        self.right = nn.Linear(5, 4)
        self.never = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor, extra: bool = False) -> Tensor:
        x = self.left(left) + torch.tanh(self.right(right))
        if extra:
            x = self.never(x)
        return self.head(F.elu(x))


class Between(nn.Module):
    """A module or function between two layers."""

    def __init__(self, middle: Callable[[Tensor], Tensor] | nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1)
        self.middle = middle
        self.last = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class DataDependent(nn.Module):
    """A branch that depends on the data, which torch.export cannot take."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.twin = nn.Linear(4, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) + self.twin(x)
        return self.last(F.relu(y)) if y.sum() > 0 else self.last(F.relu(-y))


class Other(nn.Module):
    """Weights and products that are not those of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.layer = nn.Linear(4, 4)
        self.normed = weight_norm(nn.Linear(4, 4))
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lstm = nn.LSTM(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.normed(self.layer(self.table(words)))
        x = self.attention(x, x, x, need_weights=False)[0]
        y = F.linear(x, self.weight) + x @ self.weight.T
        return torch.einsum("btd,bsd->bts", y, self.lstm(x)[0])


IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8).sin()
ROWS = torch.linspace(-1, 1, 12).reshape(3, 4).cos()

OWN: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "residual": (Residual, IMAGES),
    "concatenation": (Concatenation, IMAGES),
    "depthwise": (Depthwise, IMAGES),
    "padded shortcut": (PaddedShortcut, IMAGES),
    "shuffled": (Shuffled, IMAGES),
    "twice": (Twice, IMAGES),
    "two inputs": (TwoInputs, (torch.ones(2, 3), torch.ones(2, 5))),
}


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter and statistic a random value, so that nothing hides behind an initial 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 1.0 if parameter.dim() < 2 else (2.0 / parameter[0].numel()) ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
            if name.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model


def transformer(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small random network from `transformers`, with inputs."""
    import transformers as hf

    images = {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32).mul(40).sin()}
    words = {"input_ids": torch.arange(12).reshape(2, 6)}
    common = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    text = common | {"vocab_size": 20, "max_position_embeddings": 8}
    makers: dict[str, Callable[[], tuple[nn.Module, dict[str, Tensor]]]] = {
        "vit": lambda: (
            hf.ViTForImageClassification(hf.ViTConfig(**common, image_size=32, patch_size=8)), images),
        "bert": lambda: (hf.BertForSequenceClassification(hf.BertConfig(**text)), words),
        "llama": lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(**text, num_key_value_heads=1)), words),
        "convnext": lambda: (hf.ConvNextForImageClassification(
            hf.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 2], num_stages=2, image_size=32)), images),
        "resnet": lambda: (hf.ResNetForImageClassification(
            hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[2, 1], layer_type="basic")), images),
        "mobilenet": lambda: (hf.MobileNetV2ForImageClassification(
            hf.MobileNetV2Config(depth_multiplier=0.25, image_size=32)), images),
    }  # fmt: skip
    model, inputs = makers[name]()
    return model, inputs


@cache
def traced(name: str) -> tuple[nn.Module, Any, Topology]:
    """One of the networks with random weights, its inputs and its topology; shared by tests that do not change it."""
    model, inputs = transformer(name) if name in TRANSFORMERS else (OWN[name][0](), OWN[name][1])
    return model, inputs, trace(randomize(model), inputs)


TRANSFORMERS = ("vit", "bert", "llama", "convnext", "resnet", "mobilenet")


def output_of(model: nn.Module, inputs: Any) -> Tensor:
    """The network's output in evaluation mode, as one tensor."""
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    with torch.no_grad():
        output = model.eval()(*args, **kwargs)
    return output if isinstance(output, Tensor) else output.logits
