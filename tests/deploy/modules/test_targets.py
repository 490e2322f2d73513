"""The names by which a graph refers to modules and tensors."""

from bayesbits.deploy.modules.targets import target_of


def test_targets_name_the_folder_and_the_key():
    assert target_of("layers", "block.0.conv") == "layers./block/0/conv"
    assert target_of("quantizers", "a/b.input") == "quantizers./a~1b/input"
