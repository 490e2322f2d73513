"""Networks from `transformers`: which channel groups are removable, by name and count, without any list of names."""

import pytest

from bayesbits.records.topology import Topology
from tests.graph.networks import TRANSFORMERS, traced


@pytest.fixture(scope="module")
def topologies() -> dict[str, Topology]:
    return {name: traced(name)[2] for name in TRANSFORMERS}


REMOVABLE = {
    "vit": {
        "vit.layers.0.attention.v_proj": 2,
        "vit.layers.0.mlp.fc1": 24,
        "vit.layers.1.attention.v_proj": 2,
        "vit.layers.1.mlp.fc1": 24,
    },
    "bert": {
        "bert.encoder.layer.0.attention.self.value": 2,
        "bert.encoder.layer.1.attention.self.value": 2,
        "bert.encoder.layer.0.intermediate.dense": 24,
        "bert.encoder.layer.1.intermediate.dense": 24,
        "bert.pooler.dense": 16,
    },
    "llama": {"model.layers.0.mlp.gate_proj": 24, "model.layers.1.mlp.gate_proj": 24},
    "convnext": {
        "convnext.encoder.stages.0.layers.0.pwconv1": 32,
        "convnext.encoder.stages.1.layers.0.pwconv1": 48,
        "convnext.encoder.stages.1.layers.1.pwconv1": 48,
    },
    "resnet": {
        "resnet.embedder.embedder.convolution": 8,
        "resnet.encoder.stages.0.layers.0.layer.0.convolution": 8,
        "resnet.encoder.stages.0.layers.1.layer.0.convolution": 8,
        "resnet.encoder.stages.1.layers.0.layer.0.convolution": 12,
        "resnet.encoder.stages.1.layers.0.layer.1.convolution": 12,
    },
}


@pytest.mark.parametrize("name", REMOVABLE)
def test_removable_groups(name: str, topologies: dict[str, Topology]) -> None:
    topology = topologies[name]
    assert topology.traced
    assert {group.name: group.size for group in topology.removable_groups} == REMOVABLE[name]


def test_removable_groups_of_mobilenet(topologies: dict[str, Topology]) -> None:
    """Every block's expanded channels with its depthwise filter, every stage's stream, the stem and the last one."""
    topology = topologies["mobilenet"]
    expected = {"mobilenet_v2.conv_stem.first_conv.convolution": 8, "mobilenet_v2.conv_stem.reduce_1x1.convolution": 8}
    widths = [8, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 40, 40, 40, 80]  # of the streams behind the 16 blocks
    for block, (before, width) in enumerate(zip([8, *widths], widths, strict=False)):
        expected[f"mobilenet_v2.layer.{block}.expand_1x1.convolution"] = 6 * before
        if block in (0, 2, 5, 9, 12, 15):
            expected[f"mobilenet_v2.layer.{block}.reduce_1x1.convolution"] = width
    expected["mobilenet_v2.conv_1x1.convolution"] = 1280
    assert {group.name: group.size for group in topology.removable_groups} == expected
    stream = topology.group("mobilenet_v2.layer.5.reduce_1x1.convolution")
    assert stream.producers == tuple(f"mobilenet_v2.layer.{block}.reduce_1x1.convolution" for block in (5, 6, 7, 8))


def test_gate_and_up_projection_go_together(topologies: dict[str, Topology]) -> None:
    group = topologies["llama"].group("model.layers.1.mlp.gate_proj")
    assert group.producers == ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj")
    assert group.consumers == ("model.layers.1.mlp.down_proj",)


def test_reasons_are_given(topologies: dict[str, Topology]) -> None:
    vit, convnext = topologies["vit"], topologies["convnext"]
    llama = topologies["llama"]  # all heads share one head of keys and values
    channel = llama.layer("model.layers.1.self_attn.v_proj").out_channels[0]
    assert llama.group_of(channel).reason == "passes mul with a value per channel (the output of arange)"
    assert vit.group("classifier").reason == "reaches the network's output"
    assert convnext.group("convnext.embeddings.patch_embeddings").reason == "passes layer_norm"
    assert convnext.output_layers == ("classifier",)


def test_query_key_and_value_share_their_input(topologies: dict[str, Topology]) -> None:
    names = tuple(f"bert.encoder.layer.1.attention.self.{name}" for name in ("query", "key", "value"))
    assert topologies["bert"].activation(f"{names[0]}.input").consumers == names


def test_every_batch_norm_of_a_convolutional_network_belongs_to_its_layer(topologies: dict[str, Topology]) -> None:
    for name in ("resnet", "mobilenet"):
        for layer in topologies[name].layers[:-1]:
            assert layer.norm == layer.name.removesuffix("convolution") + "normalization"


def test_residual_additions_and_where_their_operands_come_from(topologies: dict[str, Topology]) -> None:
    additions = {addition.name: addition.operands for addition in topologies["resnet"].additions}
    block = "resnet.encoder.stages.1.layers.0"
    assert len(additions) == 3
    assert additions[f"{block}.add"] == (f"{block}.layer", f"{block}.shortcut")
    assert [addition.name for addition in topologies["bert"].additions] == [
        f"bert.encoder.layer.{index}.{part}.add" for index in (0, 1) for part in ("attention.output", "output")
    ]
    assert topologies["bert"].additions[1].operands == (
        "bert.encoder.layer.0.output.dropout",
        "bert.encoder.layer.0.attention.output",
    )
    llama = {addition.name: addition.operands for addition in topologies["llama"].additions}
    assert list(llama) == [f"model.layers.{index}.add{more}" for index in (0, 1) for more in ("", "#2")]
    assert llama["model.layers.0.add#2"] == (None, "model.layers.0.mlp")
    assert "model.layers.0.add#2" in [entry.name for entry in topologies["llama"].unsupported]


def test_attention_products_are_counted(topologies: dict[str, Topology]) -> None:
    products = [entry for entry in topologies["vit"].unsupported if entry.what == "attention product"]
    assert [entry.macs for entry in products] == [2 * 17 * 17 * (8 + 8)] * 2


def test_residual_streams_of_transformers_are_normalized_and_those_of_convolutional_networks_are_not(
    topologies: dict[str, Topology],
) -> None:
    normalized = {name: {entry.normalized for entry in topology.additions} for name, topology in topologies.items()}
    assert normalized["vit"] == normalized["bert"] == normalized["llama"] == {True}
    assert normalized["resnet"] == normalized["mobilenet"] == {False}
    assert topologies["resnet"].normalized_tensors == frozenset()
    assert topologies["bert"].normalized_tensors == set(topologies["bert"].operand_tensors) - set(
        topologies["bert"].emitted_tensors
    )


def test_tables(topologies: dict[str, Topology]) -> None:
    names = ("word", "token_type", "position")
    assert {table.name for table in topologies["bert"].tables} == {
        f"bert.embeddings.{name}_embeddings" for name in names
    }
    assert [table.name for table in topologies["llama"].tables] == ["model.embed_tokens"]
