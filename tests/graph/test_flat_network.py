"""A network as a function from tensors to tensors."""

import pytest
import torch
from torch import Tensor, nn

from bayesbits.graph.flat_network import FlatNetwork, ForwardError, inner_path, returned_tensors


class Options(nn.Module):
    def forward(
        self, x: Tensor, pair: tuple[Tensor, Tensor], *, factor: float = 1.0
    ) -> dict[str, Tensor | list[Tensor]]:
        if factor < 0:
            raise ValueError("a negative factor")
        return {"sum": x + pair[0], "others": [factor * pair[1]]}


def test_tensors_go_where_the_example_had_them_and_the_rest_is_constant() -> None:
    x, y, z = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0])
    flat = FlatNetwork(Options().eval(), (x, (y, z)), {"factor": 3.0})
    assert not flat.training
    assert [tensor.item() for tensor in flat.examples()] == [1, 2, 4]
    assert flat.examples()[0] is not x
    assert [tensor.item() for tensor in flat(torch.tensor([10.0]), y, torch.tensor([5.0]))] == [12, 15]
    assert flat.returns().kind == "dict"
    assert flat.returns().keys == ('"sum"', '"others"')


def test_one_tensor_given_twice_is_two_inputs() -> None:
    x = torch.tensor([1.0])
    first, second, _ = FlatNetwork(Options(), (x, (x, x)), {}).examples()
    assert first is not second


def test_an_error_of_the_network_is_the_cause() -> None:
    x = torch.zeros(1)
    flat = FlatNetwork(Options(), (x, (x, x)), {"factor": -1.0})
    with pytest.raises(ForwardError, match="a negative factor") as caught:
        flat(*flat.examples())
    assert type(caught.value.__cause__) is ValueError


def test_tensors_in_an_unknown_class_are_refused() -> None:
    class Box:
        def __init__(self) -> None:
            self.content = torch.zeros(1)

    with pytest.raises(TypeError, match="takes tensors inside a Box, which torch cannot take apart"):
        FlatNetwork(Options(), (Box(),), {})


def test_a_network_that_returns_no_tensors_is_refused() -> None:
    assert len(returned_tensors([torch.zeros(1), {"x": torch.zeros(1)}])) == 2
    with pytest.raises(TypeError, match="returns no tensors, but a dict without any"):
        returned_tensors({"loss": 0.5})


def test_paths_of_the_network_itself() -> None:
    paths = [inner_path(path) for path in ("network", "network.stem.0", "network.network", "networks")]
    assert paths == ["", "stem.0", "network", "networks"]
