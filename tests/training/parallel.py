"""One of several processes that train together: runs every case below and saves what came of it."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bayesbits as bb
from bayesbits.training.distributed import full_model_state
from bayesbits.zoo.models import LeNet5
from tests.training.problems import Failing, Labeled, Network, compressor, config, data, noisy


def large_data() -> Labeled:
    generator = torch.Generator().manual_seed(2)
    return Labeled(torch.randn(64, 1, 28, 28, generator=generator), torch.randint(10, (64,), generator=generator))


def still() -> nn.Module:
    return Network(dropout=0.0)


class Case:
    """A search in which every process starts with weights and randomness of its own."""

    def __init__(self, make: Callable[[], nn.Module], entry: Labeled, rank: int, world: int) -> None:
        self.handle = compressor(make=make, example=entry.images[:2])
        torch.manual_seed(50 + rank)
        with torch.no_grad():
            for parameter in self.handle.model.parameters():
                parameter.add_(rank)
        self.loader: Any = bb.DeviceLoader(entry, 16 // world, transform=noisy, rank=rank, world_size=world)

    def search(self, loss_fn: Any = F.cross_entropy, budget: str | None = None, **options: Any) -> dict[str, Any]:
        settings = config(epochs=2, frozen_statistics=1.0, checkpoint_seconds=1e6, budget=budget)
        try:
            plan = bb.search(self.handle, self.loader, loss_fn, settings, progress=False, **options)
        except bb.TrainingError as error:
            return {"error": type(error).__name__, "message": str(error)}
        return {"state": full_model_state(self.handle.model), "plan": plan.to_json()}


class Sharded(Case):
    """A search of a network whose weights are sharded, if there are several processes."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(still, data(), 0, world)
        self.loader = bb.DeviceLoader(data(), 16 // world, transform=noisy, rank=rank, world_size=world)
        self.handle.calibrate([data().images])
        if world > 1:
            mesh = init_device_mesh("cpu", (world,))
            fully_shard(self.handle.model, mesh=mesh, ignored_params=set(self.handle.attachment.parameters()))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def results(rank: int, world: int, folder: Path) -> dict[str, dict[str, Any]]:
    """What came of every case."""
    found = {
        "lenet5": Case(LeNet5, large_data(), rank, world).search(folder=folder / "lenet5"),
        "frozen norm": Case(still, data(), rank, world).search(),
        "budget": Case(still, data(), rank, world).search(budget="1% bops"),
    }
    sharded = Sharded(rank, world)
    found["sharded"] = sharded.search()
    if world == 1:
        return found
    noticing = Failing(3, interrupt) if rank == 1 else F.cross_entropy
    found["sharded, interrupted"] = Sharded(rank, world).search(noticing, folder=folder / "sharded")
    found["sharded, resumed"] = Sharded(rank, world).search(folder=folder / "sharded", resume=True)

    noticing = Failing(3, interrupt) if rank == 1 else F.cross_entropy
    found["interrupted"] = Case(still, data(), rank, world).search(noticing, folder=folder / "stop")
    found["resumed"] = Case(still, data(), rank, world).search(folder=folder / "stop", resume=True)

    broken = Case(still, data(), rank, world)
    broken.loader = Broken(list(broken.loader)) if rank == 1 else list(broken.loader)
    broken.handle.attachment.calibrated = True
    found["loader"] = broken.search()

    uneven = Case(still, data(), rank, world)
    uneven.loader = list(uneven.loader)[: 3 - rank]
    found["uneven"] = uneven.search(folder=folder / "uneven")

    infinite = Case(still, data(), rank, world)
    found["infinite"] = infinite.search(lambda output, y: F.cross_entropy(output, y) * (float("inf") if rank else 1))
    return found


class Broken:
    """A loader that fails."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        yield from self.batches[:2]
        raise OSError("the disk of the data is gone")


if __name__ == "__main__":
    own, processes, target = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
    torch.save(results(own, processes, target), target / f"{own}.pt")
