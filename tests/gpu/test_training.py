"""The engine on a device: feeding data and running steps never wait for it, and a run goes on from a checkpoint."""

import pytest
import torch
import torch.nn.functional as F

import bayesbits as bb
from tests.training.problems import Failing, compressor, config, data


def noisy(images, generator):
    return images + 0.1 * torch.randn(images.shape, generator=generator, device=images.device)


def handle_and_loader():
    handle = compressor()
    handle.model.cuda()
    return handle, bb.DeviceLoader(data(), 12, device="cuda", transform=noisy)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device_between_steps():
    handle, loader = handle_and_loader()

    def watching(output, targets):
        # From the first step of the first epoch on, up to where the epoch ends.
        torch.cuda.set_sync_debug_mode("error" if len(seen) < 3 else "default")
        seen.append(targets.shape)
        return F.cross_entropy(output, targets)

    seen = []
    try:
        bb.search(handle, loader, watching, config(epochs=1, log_steps=50), progress=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(seen) == 4


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    class StopError(Exception):
        pass

    def stop():
        raise StopError

    whole, loader = handle_and_loader()
    plan = bb.search(whole, loader, F.cross_entropy, config(), progress=False)
    stopped, loader = handle_and_loader()
    with pytest.raises(StopError):
        bb.search(stopped, loader, Failing(6, stop), config(), folder=tmp_path, progress=False)
    resumed, loader = handle_and_loader()
    assert bb.search(resumed, loader, F.cross_entropy, config(), folder=tmp_path, resume=True, progress=False) == plan
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
