"""What a run starts from: files that cannot be used are named, and leave nothing in the way of the next try."""

import pytest
import torch

from bayesbits.zoo import models
from tests.cli.test_commands import bayesbits
from tests.cli.test_posttrain import RUN

QUICK = [*RUN, "--steps", "1", "--labels", "none"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save(models.create("lenet5").state_dict(), tmp_path / "trained.pth")
    return tmp_path


def test_a_wrong_checkpoint_is_one_message_and_the_right_one_can_follow(here):
    (here / "notes.txt").write_text("hello there")
    torch.save(models.create("lenet5"), here / "whole.pth")
    for name, words in (
        ("notes.txt", "notes.txt is not a checkpoint"),
        ("whole.pth", "save model.state_dict() instead"),
        ("none.pth", "none.pth is not there"),
        (".", "is a folder"),
    ):
        shown = bayesbits("posttrain", *QUICK, "--checkpoint", name, code=1).stderr
        assert words in shown
        assert "unexpected error" not in shown
        assert not (here / "run").exists()
    bayesbits("posttrain", *QUICK, "--checkpoint", "trained.pth")


def test_a_search_that_could_not_start_leaves_nothing_behind(here):
    search = ["search", "mine.toml", "--device", "cpu", "--out", "run"]
    (here / "mine.toml").write_text(
        '[data]\nname = "digits"\n[model]\nname = "lenet5"\n[search]\nepochs = 1\nepoch_steps = 1\n'
    )
    wrong = bayesbits(*search, "--set", "model.checkpoint=none.pth", code=1).stderr
    assert "none.pth is not there" in wrong
    bayesbits(*search, "--set", "model.checkpoint=trained.pth")


@pytest.mark.parametrize("out", ["trained.pth", "trained.pth/run"])
def test_a_file_in_the_place_of_the_folder_is_named(out):
    for command in (["posttrain", *QUICK], ["search", "digits-lenet5"]):
        shown = bayesbits(*command, "--out", out, code=1).stderr
        assert "trained.pth is a file; choose another by --out" in shown
