"""What is attached hangs at the root: the network as a whole has it, and no part of it or walk over it does."""

import copy
import io
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesbits as bb
from bayesbits.nn import Gates
from bayesbits.zoo import models
from tests.nn.networks import Stem, attached


class Children(Stem):
    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = torch.relu(child(x))
        return x


class NamedChildren(Stem):
    def forward(self, x: Tensor) -> Tensor:
        for name, child in self.named_children():
            x = child(x) if name == "head" else torch.relu(child(x))
        return x


class Modules(Stem):
    def forward(self, x: Tensor) -> Tensor:
        for child in self._modules.values():
            x = torch.relu(child(x))  # type: ignore[misc]
        return x


class Several(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = torch.relu(layer(x))
        return x + 0.0 * len(self)


class Named(nn.ModuleDict):
    def forward(self, x: Tensor) -> Tensor:
        for name in self:
            x = torch.relu(self[name](x))
        return x


def layers() -> list[nn.Module]:
    return [nn.Linear(8, 16), nn.Linear(16, 4)]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "attributes": Stem,
    "children": Children,
    "named_children": NamedChildren,
    "_modules": Modules,
    "Sequential": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
    "named Sequential": lambda: nn.Sequential(OrderedDict(zip(("a", "b"), layers(), strict=True))),
    "ModuleList": lambda: Several(layers()),
    "ModuleDict": lambda: Named(dict(zip(("a", "b"), layers(), strict=True))),
    "one layer": lambda: nn.Linear(8, 4),
}


def test_freezing_or_evaluating_the_first_layer_leaves_gates_and_ranges_alone():
    model, x = Stem(), torch.randn(4, 8)
    compressor = attached(model, x)
    for parameter in model.stem.parameters():
        parameter.requires_grad_(False)
    model.stem.eval()
    groups = {group["name"]: group["params"] for group in compressor.parameter_groups()}
    idle = [q.log_alpha for q in compressor.attachment.quantizers.values() if not q.asymmetric]
    learning = [p for p in (*groups["gates"], *groups["ranges"]) if not any(p is other for other in idle)]
    assert all(parameter.requires_grad for parameter in learning)
    assert all(module.training for module in model.modules() if isinstance(module, Gates))
    (model(x).sum() + compressor.penalty()).backward()
    assert all(parameter.grad is not None for parameter in learning)
    assert model.stem.weight.grad is None
    assert not dict(model.stem.named_children())


COMPILED = ("_modules", "named_children", "Sequential", "one layer")


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in NETWORKS), *((n, True) for n in COMPILED)])
def test_code_that_walks_over_the_children_meets_only_the_float_networks(name, compiled):
    torch.manual_seed(0)
    model, x = NETWORKS[name](), torch.randn(5, 8)
    expected, children, keys = model(x), len(list(model.children())), list(model.state_dict())
    bits = {"bits": (2, 32)} if compiled else {}  # few widths are traced in half the time
    compressor = attached(model, x, bb.Spec(input_bits=32, **bits))
    torch._dynamo.reset()
    network = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    model.eval()
    torch.testing.assert_close(network(x), expected, rtol=1e-3, atol=1e-2)
    model.train()
    network(x).sum().backward()
    assert len(list(model.children())) == len(model._modules) == children
    assert [key for key in model.state_dict() if not key.startswith("bayesbits.")] == keys
    assert compressor.attachment in list(model.modules())
    compressor.detach()
    assert [name for name, _ in model.named_modules() if name.startswith("bayesbits")] == []
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_copies_files_and_moves_take_it_along(name):
    model, x = NETWORKS[name](), torch.randn(5, 8)
    compressor = attached(model, x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert bb.Compressor(other).plan() == compressor.plan()
        assert bb.Compressor(other).attachment is not compressor.attachment
        assert torch.equal(other.eval()(x), model.eval()(x))
        other.train()
        assert all(module.training for module in other.modules())
    moved = copy.deepcopy(model).to(torch.float64)
    assert {p.dtype for p in bb.Compressor(moved).attachment.parameters()} == {torch.float32}
    assert moved(x.double()).dtype == torch.float64
    model.to("meta")
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_a_state_loads_strictly_with_everything_or_with_nothing_of_what_is_attached():
    x = torch.randn(5, 8)
    model, other, float_network = Stem(), Stem(), Stem()
    compressor, target = attached(model, x), bb.attach(other, x)
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 8))
    whole = nn.Sequential(OrderedDict(part=other))  # prefixes too
    assert whole.load_state_dict({f"part.{k}": v for k, v in model.state_dict().items()}) is not None
    assert target.plan() == compressor.plan()
    assert torch.equal(other.eval()(x), model.eval()(x))
    assert not any(model.load_state_dict(float_network.state_dict()))
    assert compressor.plan() == target.plan()
    state = model.state_dict()
    beta = "bayesbits.tensors./head/weight.log_beta"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({k: v for k, v in state.items() if k != beta}, rf'Missing key.*"{beta}"'),
        ({**state, "bayesbits.more": torch.ones(1)}, r'Unexpected key.*"bayesbits.more"'),
        ({**state, beta: torch.ones(3)}, "size mismatch for tensors./head/weight.log_beta"),
        ({k: v for k, v in state.items() if k != "stem.bias"}, r'Missing key.*"stem.bias"'),
    ]
    for bad, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(bad)
    assert "bayesbits.more" in model.load_state_dict(wrong[1][0], strict=False).unexpected_keys


@pytest.mark.usefixtures("process_group")
def test_torchs_distributed_checkpoints_hold_it():
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

    model, x = Stem(), torch.randn(5, 8)
    compressor = attached(model, x)
    groups = [{"params": group["params"]} for group in compressor.parameter_groups()]
    optimizer = torch.optim.Adam(groups)
    (model(x).sum() + compressor.penalty()).backward()
    optimizer.step()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    states = get_state_dict(model, optimizer, options=options)
    learning = [parameter for group in groups for parameter in group["params"] if parameter.requires_grad]
    assert sum(key.endswith("exp_avg") for key in states[1]) == len(learning)
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)


class Failing(Stem):
    fails = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.fails:
            raise KeyError("the user's own")
        return self.head(torch.relu(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's own, where a graph breaks
@pytest.mark.parametrize("compiled", [False, True])
def test_a_pass_that_fails_leaves_no_trace(compiled):
    model, x = Failing(), torch.randn(4, 8)
    compressor = attached(model, x, bb.Spec(bits=(2, 8)))
    torch._dynamo.reset()
    network = torch.compile(model, backend="eager") if compiled else model
    model.fails = True
    with pytest.raises(KeyError, match="the user's own"):
        network(x)
    assert not compressor.attachment.in_pass
    model.stem(x).sum().backward()
    model.stem(x).sum().backward()  # of gates that were drawn again: the graph of the failed pass is gone
    model.fails = False
    network(x).sum().backward()


def test_children_that_are_put_back_leave_what_is_attached_where_it_is():
    model, x = Stem(), torch.randn(5, 8)
    compressor = attached(model, x)
    before = model.eval()(x)
    for name, child in model.named_children():
        setattr(model, name, child)
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model) is model
    assert torch.equal(model(x), before)
    assert "bayesbits" not in model._modules
    with pytest.raises(AttributeError, match=r"compressor.detach\(\) takes it away"):
        model.bayesbits = nn.Identity()
    compressor.detach()


def test_a_part_of_an_attached_network_takes_no_attachment_of_its_own():
    model, x = Stem(), torch.randn(5, 8)
    attached(model, x)
    with pytest.raises(ValueError, match="part of a network that has quantizers attached"):
        bb.attach(model.stem, x)


def test_before_calibration_a_forward_says_what_to_do():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    bb.attach(model, x)
    with pytest.raises(RuntimeError, match=r"call compressor\.calibrate"):
        model(x)


def test_parts_used_outside_of_a_forward_pass_draw_for_themselves():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    state = copy.deepcopy(model.state_dict())
    model(x).sum().backward()
    model[0](x).sum().backward()
    compressor.fix()
    model(x).sum().backward()
    model.load_state_dict(state)  # back to searching
    model(x).sum().backward()
    counter = compressor.attachment.bank.counter[1].item()
    model(x).sum().backward()
    assert compressor.attachment.bank.counter[1].item() == counter + 1
    assert compressor.attachment.bank.members


def test_noise_does_not_advance_in_evaluation():
    model, x = models.create("lenet5"), torch.randn(1, 1, 28, 28)
    compressor = bb.attach(model, x)
    compressor.calibrate([x])
    counter = compressor.attachment.bank.counter.clone()
    model.eval()(x)
    assert torch.equal(compressor.attachment.bank.counter, counter)
    model.train()(x)
    assert not torch.equal(compressor.attachment.bank.counter, counter)


def test_the_fused_transformer_layer_cannot_pass_the_quantizers_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model, x = nn.Sequential(layer, nn.Linear(16, 4)), torch.randn(2, 5, 16)
    compressor = bb.attach(model, x, bb.Spec.paper())
    compressor.calibrate([x])
    compressor.fix(bb.Plan({**compressor.plan().bits, "0.linear1.weight": 2}))
    model.eval()
    with_gradients = model(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), with_gradients)
    compressor.detach()
    assert not layer._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*of the MACs stay in float")
@pytest.mark.parametrize("root", [True, False])
def test_an_encoder_hands_no_nested_tensors_to_its_layers(root):
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0), 1)
    model = encoder if root else Padded(encoder)
    inputs = {"src": torch.randn(2, 5, 16), "src_key_padding_mask": torch.arange(5) > torch.tensor([[4], [2]])}
    compressor = bb.attach(model, inputs)
    compressor.calibrate([inputs])
    compressor.fix(bb.Plan.uniform(compressor.topology, 4, 4))
    trained = model(**inputs)
    again = copy.deepcopy(model).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs), trained)
    compressor.detach()
    assert (type(encoder), encoder.use_nested_tensor) == (nn.TransformerEncoder, True)


class Padded(nn.Module):
    """The mean over all positions, so that a padded one counts as it is computed."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(16, 4)

    def forward(self, src: torch.Tensor, src_key_padding_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(src, src_key_padding_mask=src_key_padding_mask).mean(1))


LOWER_ROOMS = ("nn", "functional", "utils")


def test_a_running_network_calls_nothing_above_nn():
    """No import shows a call through an attribute: here every function of the package that runs is looked at."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    x, package = torch.randn(2, 3, 4, 4), Path(bb.__file__).parent
    attached(model, x)
    called: set[Path] = set()

    def look(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            called.add(path.relative_to(package))

    sys.setprofile(look)
    try:
        model(x).sum().backward()
        model.eval()
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        model.to(torch.float64)(x.double())
    finally:
        sys.setprofile(None)
    assert {Path("nn/network.py"), Path("nn/layer.py"), Path("nn/batch_norm.py"), Path("nn/gates.py")} <= called
    assert {path.parts[0] for path in called} == set(LOWER_ROOMS)
