"""Calling torch.export: what is read, and that neither the network nor the user's process notices."""

import logging
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from bayesbits.graph.export import EXPORT_LOGGER, export_flat, export_functional, output_shapes
from bayesbits.graph.flat_network import FlatNetwork
from bayesbits.graph.symbolic_sizes import mark_sizes
from bayesbits.graph.trace import trace
from bayesbits.records.topology import Topology
from tests.graph.networks import ROWS, DataDependent


def removable(topology: Topology) -> dict[str, int]:
    return {group.name: group.size for group in topology.removable_groups}


class Autocast(nn.Module):
    """Three layers, the first two in half precision; `watch` is called inside the region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.register_buffer("scale", torch.eye(6))

    def watch(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = F.relu(self.first(x))
            self.watch()
            x = x @ self.scale.to(x.dtype)  # fails where only one of both is in half precision
            with torch.autocast("cpu", enabled=False):
                x = F.relu(self.middle(x.float()))
        return self.last(x)


def test_layers_under_autocast_and_no_grad_are_found() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                x = F.relu(self.first(x))
            with torch.no_grad():
                x = F.relu(self.middle(x))
            return self.last(x)

    topology = trace(Wrapped(), ROWS)
    assert [layer.name for layer in topology.layers] == ["first", "middle", "last"]
    assert removable(topology) == {"first": 6, "middle": 6}


def test_layers_in_half_precision_are_read_as_if_they_were_not() -> None:
    topology = trace(Autocast(), ROWS)
    assert topology.traced
    assert [layer.name for layer in topology.layers] == ["first", "middle", "last"]
    assert removable(topology) == {"middle": 6}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert trace(Autocast(), ROWS) == topology
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_of_other_threads_has_its_effect_meanwhile() -> None:
    seen: list[torch.dtype] = []

    def compute() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append(F.linear(torch.ones(1, 2), torch.ones(1, 2)).dtype)

    class Watching(Autocast):
        def watch(self) -> None:
            assert not torch.is_autocast_enabled("cpu")
            other = threading.Thread(target=compute)
            other.start()
            other.join()

    assert trace(Watching(), ROWS).traced
    assert seen == [torch.bfloat16]


def test_what_the_network_prints_and_warns_of_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    class Printing(Autocast):
        def watch(self) -> None:
            print("printed by the network")
            warnings.warn("warned by the network", stacklevel=1)

    with pytest.warns(UserWarning, match="warned by the network"):
        assert trace(Printing(), ROWS).traced
    assert capsys.readouterr().out == "printed by the network\n"


@pytest.mark.filterwarnings("ignore:.*torch.export cannot take it")
def test_torch_does_not_print_the_graph_that_it_could_not_finish(capfd: pytest.CaptureFixture[str]) -> None:
    assert not trace(DataDependent(), torch.ones(2, 4)).traced
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_only_this_threads_records_of_one_logger_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(EXPORT_LOGGER)

    class Logging(Autocast):
        def watch(self) -> None:
            logger.warning("in this thread")
            other = threading.Thread(target=lambda: logger.warning("in another thread"))
            other.start()
            other.join()

    handler = caplog.handler
    logger.addHandler(handler)
    try:
        assert trace(Logging(), ROWS).traced
        assert [record.message for record in caplog.records if record.name == EXPORT_LOGGER] == ["in another thread"]
        logger.warning("afterwards")
        assert caplog.records[-1].message == "afterwards"
    finally:
        logger.removeHandler(handler)


def test_an_error_of_the_network_arrives_as_it_was_raised() -> None:
    cause = KeyError("deep inside")

    class Failing(Autocast):
        def watch(self) -> None:
            raise ValueError("said by the network") from cause

    flat = FlatNetwork(Failing(), (ROWS,), {})
    with pytest.raises(ValueError, match="said by the network") as caught:
        export_flat(flat, flat.examples())
    assert caught.value.__cause__ is cause


@pytest.mark.filterwarnings("ignore:.*torch.export cannot take it")
def test_a_failed_export_leaves_the_example_as_it_was() -> None:
    class Strange(nn.Module):
        """Fails when it is exported the first time."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
            self.fails = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fails and torch.compiler.is_exporting():
                raise RuntimeError("not today")
            return self.last(torch.relu(self.first(x)))

    model, x = Strange(), torch.randn(3, 4)
    before = set(vars(x))
    assert not trace(model, x).traced
    flat = FlatNetwork(model, (x,), {})
    with pytest.raises(RuntimeError, match="not today"):
        export_functional(flat, *mark_sizes(flat.examples(), {(0, 0): Dim.AUTO}))
    assert set(vars(x)) == before
    model.fails = False
    assert trace(model, x).removable_groups


def test_shapes_of_modules_that_return_one_tensor() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.MultiheadAttention(6, 1))
    with output_shapes(model) as shapes, pytest.raises(TypeError):
        model(torch.zeros(2, 4))
    assert shapes == {"0": (2, 6)}
    model[0](torch.zeros(5, 4))
    assert shapes == {"0": (2, 6)}, "hooks are removed"
