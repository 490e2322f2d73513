"""The tensors that the cost of a network is computed from, by hand for a small residual network."""

from bayesbits.cost.indices import cost_indices
from tests.graph.networks import traced


def test_a_residual_network_by_hand() -> None:
    # stem (6 channels) and outer (6) make one stream, which inner (4) and head (5 outputs, which stay) read.
    indices = cost_indices(traced("residual")[2])
    zero, one = 21, 22  # behind the gates of 6 + 4 + 6 + 5 output channels
    stream = [[gate, 10 + gate] for gate in range(6)]
    inner = [[6 + gate, zero] for gate in range(4)]
    inputs, outputs = [[one, zero]] * 3, [[one, zero]] * 5
    assert sorted(indices["producers"].T.tolist()) == sorted(inputs + stream + inner + outputs)
    assert indices["own"].tolist() == [*range(6), *range(6, 10), *range(10, 16), *[one] * 5]
    assert indices["layer_of"].tolist() == [0] * 6 + [1] * 4 + [2] * 6 + [3] * 5
    assert indices["joined"].tolist() == [False, True, False, True]
    assert indices["inputs"].tolist() == [3, 6, 4, 6]
    assert indices["outputs"].tolist() == [6, 4, 6, 5]
    assert indices["macs"].tolist() == [20736, 3072, 27648, 60]


def test_bundles_hold_what_every_layer_reads_and_makes() -> None:
    for name in ("residual", "depthwise", "concatenation", "twice"):
        topology = traced(name)[2]
        indices = cost_indices(topology)
        bundle_of = indices["bundle_of"].tolist()
        assert len(bundle_of) == topology.channels
        for index, layer in enumerate(topology.layers):
            for key, channels in (("reads", layer.in_channels), ("makes", layer.out_channels)):
                counts = [indices[key][index, bundle_of[channel]].item() for channel in range(topology.channels)]
                assert counts == [channels.count(channel) for channel in range(topology.channels)]


def test_a_depthwise_layer_has_no_gates_of_its_own() -> None:
    indices = cost_indices(traced("depthwise")[2])
    assert indices["own"].tolist() == [*range(8), *range(8), *range(8, 12), *[15] * 2]
    assert indices["depthwise"].tolist() == [False, True, False, False]
