"""Signals stop training after a whole step, and the message says how to resume."""

import os
import signal
import threading

import pytest
import torch.nn.functional as F

import bayesbits as bb
from bayesbits.training.errors import StopSignals
from tests.training.problems import Failing, compressor, config, data, loaders, noisy, resumed, same, undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(number, tmp_path):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    interrupting = Failing(6, lambda: os.kill(os.getpid(), number))
    with pytest.raises(bb.Interrupted, match=r"after 6 steps .*search\.checkpoint.*resume=True") as caught:
        bb.search(
            compressor(), loaders()["device"], interrupting, config(checkpoint_seconds=1e6),
            folder=tmp_path, progress=False,
        )  # fmt: skip
    assert caught.value.signal == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert same(resumed("device", tmp_path)[0], undisturbed("device")[0])


def test_a_signal_without_a_folder_says_that_nothing_was_saved():
    interrupting = Failing(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(bb.Interrupted, match="nothing was saved"):
        bb.search(compressor(), loaders()["device"], interrupting, config(), progress=False)


def test_a_signal_that_ends_the_workers_of_a_loader_too_is_still_a_signal(tmp_path):
    class Losing(bb.DeviceLoader):
        def batches_from(self, first):
            for number, batch in enumerate(super().batches_from(first), first):
                if self.epoch == 1 and number == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                    raise RuntimeError("a worker exited unexpectedly")
                yield batch

    losing = Losing(data(), 12, transform=noisy, seed=5)
    with pytest.raises(bb.Interrupted, match="after 6 steps"):
        bb.search(
            compressor(), losing, F.cross_entropy, config(checkpoint_seconds=1e6), folder=tmp_path, progress=False
        )
    assert same(resumed("device", tmp_path)[0], undisturbed("device")[0])


def test_outside_of_the_main_thread_training_runs_without_handlers():
    results = []
    thread = threading.Thread(target=lambda: results.append(undisturbed("device")))
    thread.start()
    thread.join()
    assert same(results[0][0], undisturbed("device")[0])


def test_a_second_signal_does_what_it_did_before_training(request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
