"""The gated quantizer as a module: states, decision, codes, and what a user's code does with modules."""

import copy
import io

import pytest
import torch
from torch import nn

from bayesbits.functional import dequantize, gated_quantize
from bayesbits.nn import GatedQuantizer, KnownRangeQuantizer


def set_open(quantizer: GatedQuantizer, count: int) -> None:
    with torch.no_grad():
        quantizer.gates.logits.fill_(-6.0)
        quantizer.gates.logits[:count] = 6.0


@pytest.mark.parametrize(("open_gates", "bits"), [(0, 2), (1, 4), (2, 8), (3, 16), (4, 32)])
def test_the_number_of_open_gates_is_the_number_of_bits(open_gates, bits):
    quantizer = GatedQuantizer(signed=True)
    set_open(quantizer, open_gates)
    assert quantizer.effective_bits() == bits


def test_a_closed_gate_takes_the_wider_ones_with_it():
    quantizer = GatedQuantizer(signed=True)
    with torch.no_grad():
        quantizer.gates.logits.copy_(torch.tensor([6.0, -6.0, 6.0, 6.0]))
    assert quantizer.effective_bits() == 4


def test_zero_bits_where_the_first_gate_may_learn():
    quantizer = GatedQuantizer(signed=True, zero=True)
    assert quantizer.gates.logits.numel() == 5
    set_open(quantizer, 0)
    assert quantizer.effective_bits() == 0
    quantizer.eval()
    assert not quantizer(torch.randn(10)).any()
    assert not quantizer.codes(torch.randn(10)).any()


@pytest.mark.parametrize("signed", [True, False])
def test_evaluation_is_the_decision_and_codes_are_what_it_emits(signed):
    quantizer = GatedQuantizer(signed=signed, beta=1.3).eval()
    set_open(quantizer, 1)
    x = torch.randn(1000)
    codes = quantizer.codes(x)
    assert torch.equal(quantizer(x), dequantize(codes, quantizer.beta.detach(), bits=4, signed=signed))
    assert codes.unique().numel() == (15 if signed else 16)


def test_codes_with_a_range_for_each_channel():
    quantizer = GatedQuantizer(signed=True, beta=[1.0, 2.0]).eval()
    quantizer.fix(8)
    x = torch.randn(2, 50)
    step = quantizer.beta.detach()[:, None] * 2 / 255
    assert torch.equal(quantizer(x), quantizer.codes(x) * step)


def test_training_draws_gates_and_gradients_reach_everything_that_learns():
    torch.manual_seed(0)
    quantizer = GatedQuantizer(signed=True, beta=2.0)
    with torch.no_grad():
        quantizer.gates.logits.fill_(0.0)
    x = torch.randn(100, requires_grad=True)
    outputs = [quantizer(x) for _ in range(20)]
    assert len({output.sum().item() for output in outputs}) > 10
    sum((output**2).sum() for output in outputs).backward()
    assert x.grad.any()
    assert quantizer.log_beta.grad.any()
    assert (quantizer.gates.logits.grad != 0).all()


@pytest.mark.parametrize("kind", ["hard_sigmoid", "sigmoid"])
def test_deterministic_gates_repeat(kind):
    quantizer = GatedQuantizer(signed=True, gates=kind)
    with torch.no_grad():
        quantizer.gates.logits.fill_(0.3)
    x = torch.randn(50)
    assert torch.equal(quantizer(x), quantizer(x))
    quantizer(x).sum().backward()
    assert quantizer.gates.logits.grad.any()


@pytest.mark.parametrize("push", [1e6, -1e6])
def test_the_range_stays_positive_and_finite_whatever_the_optimizer_does(push):
    quantizer = GatedQuantizer(signed=True)
    optimizer = torch.optim.SGD([quantizer.log_beta], lr=1.0)
    quantizer.log_beta.grad = torch.tensor(push)
    optimizer.step()
    beta = quantizer.beta.item()
    assert 0 < beta < float("inf")
    quantizer.fix(8)
    assert quantizer(torch.randn(10)).isfinite().all()


def test_gradients_of_the_range_are_those_of_its_logarithm():
    quantizer = GatedQuantizer(signed=True, beta=0.7)
    quantizer.fix(4)
    x = torch.randn(1000)
    quantizer(x).sum().backward()
    beta = torch.tensor(0.7, requires_grad=True)
    gated_quantize(x, beta, torch.ones(1), signed=True, bits=(4,)).sum().backward()
    assert quantizer.log_beta.grad.item() == pytest.approx(beta.grad.item() * 0.7, rel=1e-5)


@pytest.mark.parametrize("bits", [0, 2, 3, 8, 32])
def test_fixed_bits_are_final_in_training_too_and_the_range_still_learns(bits):
    quantizer = GatedQuantizer(signed=True, beta=0.5)
    quantizer.fix(bits)
    x = torch.linspace(-0.4, 1.0, 200)  # more beyond one end than beyond the other, or clipping cancels out
    assert torch.equal(quantizer(x), quantizer(x))
    assert quantizer.effective_bits() == bits
    quantizer(x).sum().backward()
    assert quantizer.gates.logits.grad is None
    assert (quantizer.log_beta.grad != 0) == (bits != 0)


def test_off_is_the_identity_and_learning_can_be_taken_up_again():
    quantizer = GatedQuantizer(signed=True, beta=0.1)
    x = torch.randn(10)
    quantizer.turn_off()
    assert quantizer(x) is x
    quantizer.learn()
    assert quantizer(x).abs().max() <= 0.1


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf"), [1.0, 0.0], []])
def test_a_range_that_is_no_range_is_refused_at_construction_and_when_set(beta):
    with pytest.raises(ValueError, match=r"range|beta"):
        GatedQuantizer(signed=True, beta=beta)
    with pytest.raises(ValueError, match=r"range|beta"):
        GatedQuantizer(signed=True).set_range(beta)


def test_fixing_with_a_broken_range_or_width_is_refused():
    quantizer = GatedQuantizer(signed=True)
    with pytest.raises(ValueError, match="between 2 and 32"):
        quantizer.fix(1)
    with torch.no_grad():
        quantizer.log_beta.fill_(float("nan"))
    with pytest.raises(ValueError, match="range"):
        quantizer.fix(8)


@pytest.mark.parametrize("prepare", ["learn", "turn_off", "fix"])
def test_state_dict_deepcopy_and_save_keep_everything(prepare):
    quantizer = GatedQuantizer(signed=False, beta=[1.0, 3.0], bits=(2, 4, 8))
    with torch.no_grad():
        quantizer.gates.logits.copy_(torch.tensor([1.5, -2.0]))
    getattr(quantizer, prepare)()
    restored = GatedQuantizer(signed=True, beta=[0.1, 0.1], bits=(2, 4, 8))
    file = io.BytesIO()
    torch.save(quantizer.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    file = io.BytesIO()
    torch.save(quantizer, file)
    file.seek(0)
    for other in (restored, copy.deepcopy(quantizer), torch.load(file, weights_only=False)):
        assert repr(other) == repr(quantizer)
        assert torch.equal(other.eval()(torch.ones(2, 3)), quantizer.eval()(torch.ones(2, 3)))
        assert (other.mode, other.fixed_bits, other.signed) == (quantizer.mode, quantizer.fixed_bits, quantizer.signed)


def test_the_representation_reads_well():
    quantizer = GatedQuantizer(signed=False, beta=1.5)
    set_open(quantizer, 2)
    assert "learning 8 bits of (2, 4, 8, 16, 32), unsigned, beta=1.5" in repr(quantizer)


def test_a_layer_ends_with_the_bits_that_the_loss_asks_for():
    """Matching x itself under a small price a bit: a coarse grid is not enough, a fine one not worth its price."""
    torch.manual_seed(0)
    x = torch.rand(512) * 2 - 1
    widths = {}
    for price in (1e-5, 3e-3):
        quantizer = GatedQuantizer(signed=True, beta=1.0)
        optimizer = torch.optim.Adam(quantizer.gates.parameters(), lr=0.05)
        for _ in range(400):
            on = quantizer.gates.probability_on()
            cost = (torch.tensor([4.0, 8, 16, 32]) * torch.stack([on[: i + 1].prod() for i in range(4)])).sum()
            optimizer.zero_grad()
            (((quantizer(x) - x) ** 2).mean() + price * cost).backward()
            optimizer.step()
        widths[price] = quantizer.effective_bits()
    assert widths[3e-3] < widths[1e-5] < 32


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.quantizer = GatedQuantizer(signed=True, beta=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quantizer(self.linear(x)).relu()


def test_inside_of_torch_compile_with_its_neighbors_and_equal_to_eager():
    torch.manual_seed(0)
    model, x = Pair().eval(), torch.randn(16, 8)
    set_open(model.quantizer, 1)
    expected = model(x)
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in (model.linear.weight, model.quantizer.log_beta)]
    model.zero_grad()
    actual = torch.compile(model, fullgraph=True)(x)
    actual.sum().backward()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close([model.linear.weight.grad, model.quantizer.log_beta.grad], gradients)


def test_torch_export_gives_plain_operations():
    model, x = Pair().eval(), torch.randn(4, 8)
    program = torch.export.export(model, (x,), strict=False)
    assert {str(node.target).split(".")[0] for node in program.graph.nodes if node.op == "call_function"} <= {
        "aten", "<built-in function getitem>",
    }  # fmt: skip
    torch.testing.assert_close(program.module()(x), model(x))


def test_under_autocast_the_input_dtype_is_kept():
    model, x = Pair(), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
        y.sum().backward()
    assert model.linear.weight.grad.dtype == torch.float32


def test_non_reentrant_checkpointing_repeats_the_same_gates():
    torch.manual_seed(0)
    model, x = Pair(), torch.randn(64, 8)
    with torch.no_grad():
        model.quantizer.gates.logits.fill_(0.0)

    def gradients(checkpointed: bool) -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
        (y**2).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    for with_checkpoint, without in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(with_checkpoint, without)


def asymmetric(alpha: float = -0.3, beta: float = 1.2, **options) -> GatedQuantizer:
    quantizer = GatedQuantizer(signed=False, asymmetric=True, **options)
    quantizer.set_range(beta, alpha=alpha)
    return quantizer


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_an_asymmetric_range_emits_its_codes_between_both_ends_and_zero_as_zero(bits):
    quantizer = asymmetric().eval()
    quantizer.fix(bits)
    x = torch.cat([torch.linspace(-1, 2, 999), torch.zeros(1)])
    codes, step = quantizer.codes(x), 1.5 / (2**bits - 1)
    assert quantizer.step().item() == pytest.approx(step)
    assert torch.equal(quantizer(x), codes * quantizer.step())
    assert (codes.min().item(), codes.max().item()) == quantizer.code_bounds()
    assert quantizer.code_bounds() == (round(-0.3 / step), round(-0.3 / step) + 2**bits - 1)
    assert quantizer(x)[-1] == 0


def test_both_ends_learn_as_logarithms_and_an_unsigned_range_has_one():
    quantizer = asymmetric()
    quantizer.fix(4)
    x = torch.linspace(-1, 2, 1000)
    quantizer(x).sum().backward()
    alpha, beta = torch.tensor(-0.3, requires_grad=True), torch.tensor(1.2, requires_grad=True)
    gated_quantize(x, beta, torch.ones(1), signed=True, bits=(4,), alpha=alpha).sum().backward()
    assert quantizer.log_beta.grad.item() == pytest.approx(beta.grad.item() * 1.2, rel=1e-4)
    assert quantizer.log_alpha.grad.item() == pytest.approx(alpha.grad.item() * -0.3, rel=1e-4)
    assert [len(q.range_parameters()) for q in (quantizer, GatedQuantizer(signed=True))] == [2, 1]
    quantizer.set_range(1.0, signed=False)
    assert (quantizer.kind, quantizer.alpha, quantizer.log_alpha.requires_grad) == ("unsigned", None, False)
    quantizer.set_range(1.0, alpha=-1.0)
    assert (quantizer.kind, quantizer.log_alpha.requires_grad) == ("asymmetric", True)


@pytest.mark.parametrize("push", [1e6, -1e6])
def test_zero_stays_inside_of_an_asymmetric_range_whatever_the_optimizer_does(push):
    quantizer = asymmetric()
    quantizer.fix(8)
    optimizer = torch.optim.SGD(quantizer.range_parameters(), lr=1.0)
    quantizer.log_alpha.grad, quantizer.log_beta.grad = torch.tensor(push), torch.tensor(0.0)
    optimizer.step()
    assert -float("inf") < quantizer.alpha.item() < 0 < quantizer.beta.item()
    y = quantizer(torch.tensor([-1.0, 0.0, 1.0]))
    assert y.isfinite().all()
    assert y[1] == 0


@pytest.mark.parametrize("prepare", ["learn", "turn_off", "fix"])
def test_an_asymmetric_range_is_part_of_the_state(prepare):
    quantizer = asymmetric(bits=(2, 4, 8))
    getattr(quantizer, prepare)()
    restored = GatedQuantizer(signed=False, asymmetric=True, bits=(2, 4, 8))
    restored.set_range(1.0, signed=False)
    restored.load_state_dict(quantizer.state_dict())
    for other in (restored, copy.deepcopy(quantizer)):
        assert repr(other) == repr(quantizer)
        assert other.log_alpha.requires_grad == quantizer.log_alpha.requires_grad == (prepare != "turn_off")
        assert torch.equal(other.eval()(torch.ones(3) * -0.2), quantizer.eval()(torch.ones(3) * -0.2))


def test_states_of_symmetric_quantizers_load_as_what_they_were():
    symmetric, quantizer = GatedQuantizer(signed=True, beta=0.7), asymmetric()
    quantizer.load_state_dict(symmetric.state_dict())
    assert (quantizer.kind, quantizer.beta, quantizer.log_alpha.requires_grad) == ("symmetric", symmetric.beta, False)
    x = torch.linspace(-1, 1, 99)
    assert torch.equal(quantizer.eval()(x), symmetric.eval()(x))
    with pytest.raises(ValueError, match=r"attach with Spec\(asymmetric_activations=True\)"):
        symmetric.load_state_dict(asymmetric().state_dict(), strict=False)
    with pytest.raises(RuntimeError, match="log_alpha"):
        quantizer.load_state_dict({k: v for k, v in asymmetric().state_dict().items() if k != "log_alpha"})


def test_a_frozen_range_stays_frozen_with_both_ends():
    quantizer = asymmetric()
    for parameter in quantizer.range_parameters():
        parameter.requires_grad_(False)
    quantizer.fix(4)
    quantizer.set_range(2.0, signed=False)
    quantizer.set_range(2.0, alpha=-1.0)
    assert not any(parameter.requires_grad for parameter in quantizer.range_parameters())


def test_ends_that_are_no_asymmetric_range_are_refused():
    for alpha in (0.0, 0.5, float("nan"), -float("inf")):
        quantizer = asymmetric()
        with pytest.raises(ValueError, match="a range must be a number"):
            quantizer.set_range(1.0, alpha=alpha)
        assert "alpha=-0.3, beta=1.2" in repr(quantizer)
    with pytest.raises(ValueError, match="a range for each index of axis 0 cannot be asymmetric"):
        GatedQuantizer(signed=True, beta=[1.0, 2.0], asymmetric=True)
    with pytest.raises(ValueError, match="symmetric or unsigned"):
        GatedQuantizer(signed=True).set_range(1.0, alpha=-1.0)
    quantizer = asymmetric()
    with torch.no_grad():
        quantizer.log_alpha.fill_(float("nan"))
    with pytest.raises(ValueError, match="a range must be"):
        quantizer.fix(8)


def test_a_range_that_is_known_stays_where_it_is():
    quantizer = KnownRangeQuantizer(signed=False, beta=1.0, bits=(2, 8), learn_range=False)
    quantizer.set_range(3.0, signed=True)
    assert (quantizer.beta.item(), quantizer.kind) == (1.0, "unsigned")
    assert not quantizer.log_beta.requires_grad
    assert quantizer.step().item() == pytest.approx(1 / 255)
