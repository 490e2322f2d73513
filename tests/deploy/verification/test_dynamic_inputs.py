"""Grids and codes of inputs at run time, derived a second time."""

import ast
from pathlib import Path

import numpy as np
import torch

from bayesbits.deploy.verification import dynamic_inputs
from bayesbits.deploy.verification.dynamic_inputs import quantize_dynamically


def test_the_example_of_the_definition():
    found = quantize_dynamically("x", torch.tensor([0.0, 2.0, -3.0, -2.5, 1.34, 0.5]))
    assert (found.grid.low, found.grid.high, found.grid.zero_point, found.grid.bits) == (-153, 102, 153, 8)
    assert found.grid.step == float(np.float32(5) / np.float32(255))
    assert (found.grid.alpha, found.grid.beta) == (-3.0, 2.0)
    assert (found.codes + 153).tolist() == [153, 255, 0, 26, 221, 179]
    assert torch.equal(found.code_tensor, torch.from_numpy(found.codes))


def test_zeros_and_tensors_without_values():
    assert quantize_dynamically("x", torch.zeros(3)).grid.step == 1.0
    assert quantize_dynamically("x", torch.zeros(0, 3)).codes.shape == (0, 3)
    assert quantize_dynamically("x", torch.tensor([2.0, 5.1])).grid.low == 0  # zero is in the range


def test_it_imports_nothing_that_layers_quantize_with():
    tree = ast.parse(Path(dynamic_inputs.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name and "functional" in name for name in imported)
