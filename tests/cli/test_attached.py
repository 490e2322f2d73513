"""What a spec attaches, counted by kind and width."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesbits as bb
from bayesbits.cli.attached import attached_rows
from tests.deploy.tables import Encoder, tokens
from tests.nn.recurrent import Sequences, inputs
from tests.report.made_runs import ENCODER, network


@pytest.fixture(scope="module")
def encoder():
    return network(ENCODER)


def test_every_kind_of_tensor_has_a_row(encoder):
    spec = replace(bb.Spec.for_backend("onnxruntime"), activation_products=True)
    rows = {kind: rest for kind, *rest in attached_rows(encoder, spec)}
    assert rows["weights"] == ["6", "2, 4 or 8, learned", "query.weight"]
    assert rows["inputs of layers"] == ["4", "2, 4 or 8, learned", "query.input"]
    assert rows["operands of products"] == ["4", "2, 4 or 8, learned", "matmul.left"]
    assert rows["tables of embeddings"] == ["2", "2, 4 or 8, learned", "words.weight"]
    assert rows["channels, by gates of their own"] == ["32", "kept or removed", "up"]


def test_the_rows_are_what_attach_makes(encoder):
    spec = bb.Spec(bits=(2, 4, 8), activation_products=True, rules={"head": {"skip": True}}, prune=False)
    rows = attached_rows(encoder, spec)
    assert ("weights", "1", "float", "head.weight") in rows
    assert not any("channels" in kind for kind, *_ in rows)
    attached = bb.attach(Encoder().eval(), tokens(1, 6), spec).attachment.quantizers
    assert sum(int(number) for _, number, bits, _ in rows if bits != "float") == len(attached)


def test_outputs_of_convolutions_in_front_of_float_operations_have_a_row():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.SiLU(), nn.Conv2d(4, 2, 1))
    rows = attached_rows(bb.trace(model, torch.zeros(1, 3, 4, 4)), bb.Spec.for_backend("onnxruntime"))
    assert ("outputs of convolutions", "1", "8, fixed", "0.output") in rows


def test_weights_of_recurrent_layers_have_a_row():
    rows = attached_rows(bb.trace(Sequences(num_layers=2), inputs()), bb.Spec(bits=(2, 8)))
    assert ("weights of recurrent layers", "4", "2 or 8, learned", "cell.weight_ih_l0") in rows


def test_widths_say_how_they_come_about():
    topology = bb.trace(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.zeros(1, 4))
    rows = attached_rows(topology, bb.Spec(activations="dynamic"))
    assert ("inputs of layers", "1", "8, by the range at run time", "1.input") in rows
    inputs = [row for row in attached_rows(topology, bb.Spec()) if row[0] == "inputs of the network"]
    assert inputs == [("inputs of the network", "1", "8, fixed", "0.input")]
