"""Our own method among the others; its quantizer is tested in tests/nn/test_gated_quantizer.py."""

import bayesbits as bb
from bayesbits.nn import GatedQuantizer
from tests.methods.quantizers import IMAGES, network


def test_the_default_is_our_own_with_gates_and_folded_batch_norms():
    compressor = bb.attach(network(), IMAGES[:1])
    assert compressor.spec.method == "bayesian_bits"
    assert all(type(q) is GatedQuantizer for q in compressor.attachment.quantizers.values())
    assert compressor.model[0].parts.norm is compressor.model[1]
    assert compressor.attachment.channel_gates
    assert not any("score" in name for name in compressor.model.state_dict())


def test_others_round_the_weight_itself():
    compressor = bb.attach(network(), IMAGES[:1], bb.Spec(method="lsq"))
    assert compressor.model[0].parts.norm is None
    assert compressor.model[0].parts.norm_behind is compressor.model[1]
    assert not compressor.attachment.channel_gates
