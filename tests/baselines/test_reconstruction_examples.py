"""The examples of units: inputs of one network, targets of the other, and a bounded size."""

import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.baselines.layerwise import float_copy
from bayesbits.baselines.reconstruction_examples import Gathering, Networks, gather_block, gather_layer
from bayesbits.baselines.reconstruction_run import layer_unit, own_biases
from bayesbits.baselines.reconstruction_units import BlockUnit, Examples
from bayesbits.baselines.waiting_passes import waiting_passes

FLOAT_INPUT = bb.Spec(input_bits=32, residual_bits=None, prune=False)


def fixed(model: nn.Module, x: Tensor, weights: int = 2, activations: int = 8) -> bb.Compressor:
    compressor = bb.attach(model.eval(), x, FLOAT_INPUT)
    compressor.calibrate([x])
    compressor.fix(bb.Plan.uniform(compressor.topology, weights, activations, input_bits=32))
    return compressor


def gathered(
    compressor: bb.Compressor, name: str, batches: list[Tensor], block: bool = False, **options
) -> list[Examples]:
    chosen = {"limit": 1e9, "asymmetric": True, "float_inputs": False, "quantize": True, "seed": 0} | options
    reference = float_copy(compressor)
    with (
        waiting_passes(compressor.model, batches, [name]) as passes,
        waiting_passes(reference, batches, [name]) as reference_passes,
        torch.no_grad(),
    ):
        networks = Networks(compressor.model, reference, batches, passes, reference_passes)
        if block:
            unit = BlockUnit(name, compressor.model.get_submodule(name), [], [])
            return gather_block(unit, networks, Gathering(**chosen))
        layer = compressor.topology.layer(name)
        unit = layer_unit(compressor, layer, None, own_biases(compressor).get(name))
        return gather_layer(unit, networks, Gathering(**chosen))


def test_inputs_are_those_of_the_quantized_network_or_of_the_float_one():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(16, 3)
    compressor = fixed(model, x)
    reference = float_copy(compressor)
    with torch.no_grad():
        given, free = torch.relu(model[0](x)), torch.relu(reference[0](x))
        assert not torch.equal(given, free)
        quantizer = model[2].parts.input
        for asymmetric, wanted in ((True, given), (False, free)):
            (data,) = gathered(compressor, "2", [x[:8], x[8:]], asymmetric=asymmetric)
            torch.testing.assert_close(data.inputs[0].squeeze(1), quantizer(wanted))
            torch.testing.assert_close(data.targets, reference(x))
            assert data.quantized
        (data,) = gathered(compressor, "2", [x[:8], x[8:]], float_inputs=True, quantize=False)
        torch.testing.assert_close(data.inputs[0].squeeze(1), given)
        torch.testing.assert_close(data.float_inputs[0].squeeze(1), free)


def test_layers_of_images_have_rows_of_a_bounded_number():
    torch.manual_seed(0)
    x = torch.randn(8, 3, 12, 12)
    compressor = fixed(nn.Sequential(nn.Conv2d(3, 4, 3)), x)
    row = 4 * (27 + 4)  # bytes
    for rows in (16, 80):
        (data,) = gathered(compressor, "0", [x[:4], x[4:]], limit=rows * row)
        assert data.as_rows
        assert data.inputs[0].shape == (rows, 1, 27)
        assert data.targets.shape == (rows, 4)
    (data,) = gathered(compressor, "0", [x[:4], x[4:]])
    assert len(data) == 8 * 100


def test_layers_without_rows_leave_examples_out_where_there_are_too_many():
    torch.manual_seed(0)
    x = torch.randn(16, 2, 4, 4)
    compressor = fixed(nn.Sequential(nn.ConvTranspose2d(2, 3, 1)), x)
    size = 16 * 16 * 5 * 4
    assert [len(gathered(compressor, "0", [x[:8], x[8:]], limit=limit)[0]) for limit in (size, size / 2)] == [16, 8]


def test_a_block_has_the_arguments_that_it_is_called_with_before_it_writes_into_them():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, factor: float, *, other: Tensor) -> Tensor:
            return self.layer(x.relu_()) * factor + other

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(3, 3), Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.first(x), 2.0, other=x)

    torch.manual_seed(0)
    model, x = Network(), torch.randn(8, 3)
    compressor = fixed(model, x)
    reference = float_copy(compressor)
    (data,) = gathered(compressor, "block", [x[:4], x[4:]], block=True, float_inputs=True)
    with torch.no_grad():
        torch.testing.assert_close(data.inputs[0], model.first(x))
        torch.testing.assert_close(data.float_inputs[0], reference.first(x))
        torch.testing.assert_close(data.targets, reference(x))
    assert bool((data.float_inputs[0] < 0).any())
    assert torch.equal(data.inputs[1], x)
    (data,) = gathered(compressor, "block", [x[:4], x[4:]], block=True, limit=8 * 9 * 4 / 2)
    assert len(data) == 4
