"""Learning the rounding of one layer: its output with learned codes is brought close to the float network's.

What the layer reads and what it should return is gathered once and kept on the device. In the loop nothing waits for
the device: which examples a step takes is drawn beforehand, and errors are read when it is over. So on a GPU a step is
recorded and replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesbits.baselines.observing import along_channels, channel_axis
from bayesbits.baselines.rounding import RoundingGrid, logits_of, rectified_sigmoid, regularizer
from bayesbits.nn.layer import AttachedLayer
from bayesbits.records.topology import Layer
from bayesbits.utils.cuda_graph import Recorder


@dataclass(frozen=True)
class AdaRoundConfig:
    """How the rounding of weights is learned. Where the paper has a figure that is the default, but for `steps`."""

    steps: int = 2000
    """Steps for each layer. The paper takes 10,000."""
    batch: int = 32
    """Examples in a step."""
    lr: float = 1e-2
    """Adam's learning rate."""
    strength: float = 0.01
    """The weight of the regularizer beside the squared error."""
    warm_up: float = 0.2
    """The part of the steps, at the beginning, without the regularizer."""
    exponents: tuple[float, float] = (20.0, 2.0)
    """The exponent of the regularizer behind the warm-up and at the end; it falls linearly."""
    functions: bool = True
    """Whether errors are measured behind the function (ReLU and the like) that follows the layer, or before it."""
    asymmetric: bool = True
    """Whether a layer reads what the quantized layers before it return, as it will; or what the float ones do."""
    gibibytes: float = 2.0
    """What may be held of one layer's inputs and outputs; of more data than that, examples are left out evenly."""
    seed: int = 0
    """The seed of the choice of examples."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"AdaRoundConfig.{name} is {value!r}; it is an integer of at least 1")
        for name in ("lr", "gibibytes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"AdaRoundConfig.{name} is {getattr(self, name)!r}; it is a positive number")
        if not self.strength >= 0:
            raise ValueError(f"AdaRoundConfig.strength is {self.strength!r}; it is at least 0")
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"AdaRoundConfig.warm_up is {self.warm_up!r}; it is a part, from 0 up to and without 1")
        if len(self.exponents) != 2 or not self.exponents[0] >= self.exponents[1] > 0:
            raise ValueError(f"AdaRoundConfig.exponents is {self.exponents!r}; it is two numbers above 0 that fall")

    def regularization(self, step: int) -> tuple[float, float]:
        """The weight of the regularizer and its exponent at a step."""
        start = self.warm_up * self.steps
        first, last = self.exponents
        if step < start:
            return 0.0, first
        return self.strength, first + (last - first) * (step - start) / max(1.0, self.steps - 1 - start)


@dataclass(frozen=True)
class Examples:
    """What a layer reads and what it should return, for inputs of one shape; the first axis counts examples."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """A layer, and what becomes of its output before it is compared with the float network's."""

    layer: Layer
    module: AttachedLayer
    scale: Tensor | None
    """What the output channels are multiplied with: by a batch norm, and by gates; None: nothing."""
    shift: Tensor | None
    """What is added to them then."""
    function: Callable[[Tensor], Tensor]
    """The function that follows, or the identity."""

    def finish(self, output: Tensor) -> Tensor:
        """What is compared."""
        if self.scale is not None:
            output = output * along_channels(self.scale, self.layer, output)
        if self.shift is not None:
            output = output + along_channels(self.shift, self.layer, output)
        return self.function(output)

    def output(self, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """What is compared, when the layer has this weight."""
        size = list(targets.shape[2:]) if self.layer.kind == "conv_transpose" else None
        bias = None if self.module.bias is None else self.module.bias.detach()
        return self.finish(self.module.compute(inputs, weight.to(inputs.dtype), bias, size))

    def error(self, weight: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error: summed over channels, the mean over examples and positions."""
        difference = (self.output(weight, inputs, targets) - targets).float()
        return difference.square().sum(channel_axis(self.layer, difference)).mean()

    @torch.no_grad()
    def mean_error(self, weight: Tensor, data: list[Examples], batch: int) -> Tensor:
        """The squared error over all examples."""
        total, count = torch.zeros((), dtype=torch.float64, device=weight.device), 0
        for part in data:
            for inputs, targets in zip(torch.split(part.inputs, batch), torch.split(part.targets, batch), strict=True):
                total += self.error(weight, inputs, targets).double() * len(inputs)
                count += len(inputs)
        return total / count

    def learn(self, grid: RoundingGrid, data: list[Examples], config: AdaRoundConfig) -> Tensor:
        """Which codes are rounded up, learned from data: 1 where one is, else 0."""
        logits = logits_of(grid.fraction).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=config.lr, capturable=logits.is_cuda)
        schedule = torch.tensor([config.regularization(step) for step in range(config.steps)]).to(logits.device)
        parts, rows = _draw(data, config)
        taken = torch.zeros(1, dtype=torch.int64, device=logits.device)  # how many steps; counted where it is read

        def update(part: Examples) -> None:
            row = rows.index_select(0, taken).squeeze(0)
            strength, exponent = schedule.index_select(0, taken).squeeze(0).unbind()
            loss = self.loss(grid, logits, part.inputs[row], part.targets[row], strength, exponent)
            (logits.grad,) = torch.autograd.grad(loss, [logits])
            optimizer.step()
            taken.add_(1)

        recorders: list[Recorder] = []
        for _ in data if logits.is_cuda else ():
            recorders.append(Recorder(logits.device, beside=recorders[0] if recorders else None))
        for index in parts:
            if recorders:
                recorders[index].run(update, data[index])
            else:
                update(data[index])
        return (rectified_sigmoid(logits.detach()) >= 0.5).to(logits.dtype)

    def loss(
        self,
        grid: RoundingGrid,
        logits: Tensor,
        inputs: Tensor,
        targets: Tensor,
        strength: float | Tensor,
        exponent: float | Tensor,
    ) -> Tensor:
        """The error with softly rounded codes, and the regularizer with its weight."""
        error = self.error(grid.weight(rectified_sigmoid(logits)), inputs, targets)
        return error + strength * regularizer(logits, exponent)


def _draw(data: list[Examples], config: AdaRoundConfig) -> tuple[list[int], Tensor]:
    """For every step, which part of the data it takes its examples from, and which of them, in a row."""
    generator = torch.Generator().manual_seed(config.seed)
    sizes = torch.tensor([len(part.inputs) for part in data], dtype=torch.float64)
    parts = torch.multinomial(sizes, config.steps, replacement=True, generator=generator)
    drawn = torch.rand(config.steps, config.batch, dtype=torch.float64, generator=generator)
    return parts.tolist(), (drawn * sizes[parts, None]).long().to(data[0].inputs.device)
