"""The control of the penalty's weight, so that a search arrives at its budget early enough for weights to settle.

    loss + sum over the limits of mu * log(expected cost / limit)

Each limit of the budget has a weight mu of its own, a Lagrange multiplier. The target of its cost falls from what the
network costs at the start to the limit, by equal factors in equal times, over the first part of the search. After every
step mu grows where the cost is above the target, and shrinks where it is below:

    error  = log(cost / target), limited to -1 and 1
    log mu = the sum of all errors, times a gain, + a multiple of this error

While the target falls, mu stays at its first value or above: the widest widths are given up at once, long before the
target asks for it, and a mu that had shrunk meanwhile would come too late for the narrow ones.

The cost is at first the expected one, which gates move before any of them closes, and towards the end of the schedule
that of the gates' decision, which is the one that has to fit. Every step computes the cost of that decision without the
channels that groups take back; what these add is counted a hundred times in a search. Logarithms make all of it
independent of the units.

Then the gates are projected onto the budget (see `compression.projection`) and learn no more: in the last part of the
search weights and ranges settle with the bits and channels that are final.

Everything is a tensor on the device: a recorded CUDA graph holds the update, and only counting waits for the device.
"""

import math

import torch
from torch import Tensor, nn

from bayesbits.compression.budget import Budget
from bayesbits.compression.compressor import Compressor
from bayesbits.compression.expected_costs import ExpectedCosts
from bayesbits.functional.gates import INITIAL_LOGIT as OPEN_LOGIT

SCHEDULE = (0.05, 0.45)  # the parts of the search between which the target falls
SETTLE = 0.6  # the part after which the gates are projected, and learn no more
INITIAL_LOGIT = 3.0  # gates start nearer to the decision than in a search by mu, so that costs follow mu without delay
INITIAL_MU = 1e-2  # and the least while the target falls
LEAST_MU, MOST_MU = 1e-6, 1e3
GAIN = 30.0  # how much log mu grows in a whole search with an error of 1
PROPORTIONAL = 4.0  # how much of log mu is due to the present error
COUNTS = 100  # how often the cost is counted in a search
LEAST_COST = 1e-12  # for the logarithm of a cost


class BudgetControl(nn.Module):
    """The weights of a budget's limits; `penalty` is added to the loss, and `update` is called after every step.

    Its state belongs into the checkpoint. `steps` is the number of steps of the whole search.
    """

    log_limit: Tensor
    """[limits]: the logarithm of each."""
    log_start: Tensor
    """[limits]: the logarithms of the costs before the first step."""
    total: Tensor
    """[limits]: the logarithm of mu, without the part of the present error."""
    log_mu: Tensor
    """[limits]: the logarithm of mu for the next step."""
    log_costs: Tensor
    """[2, limits]: the logarithms of the costs of the latest step, expected and decided."""
    taken_back: Tensor
    """[limits]: the logarithm of how much more the gates' decision costs with the channels that groups take back."""
    part: Tensor
    """The part of the search that is done, from 0 to 1."""
    has_settled: Tensor
    """Whether the gates are projected; on the host."""

    def __init__(self, compressor: Compressor, budget: Budget, steps: int) -> None:
        super().__init__()
        self.budget = budget
        self.costs = ExpectedCosts(compressor.attachment, budget)
        limits = self.costs.limits
        self.names, self.gain, self._interval = tuple(limits), GAIN / max(1, steps), max(1, steps // COUNTS)
        # A plain container: these modules are owned by the network.
        self._compressor = (compressor,)
        device = next(compressor.model.parameters()).device
        log_limit = torch.tensor([math.log(limit) for limit in limits.values()], device=device)
        with torch.no_grad():
            costs = self.measure()
        start = torch.maximum(costs[0], log_limit)
        initial = torch.full_like(log_limit, math.log(INITIAL_MU))
        buffers = {
            "log_limit": log_limit,
            "log_start": start,
            "total": initial,
            "log_mu": initial.clone(),
            "log_costs": costs,
            "taken_back": torch.zeros_like(log_limit),
            "part": torch.zeros((), device=device),
            "has_settled": torch.tensor(False),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def set_progress(self, part: float, step: int) -> None:
        """Say which part of the search is done, from 0 to 1, and how many steps; count where it is time."""
        self.part.fill_(part)
        if step % self._interval == 0 and not self.settled:
            self._count()

    @torch.no_grad()
    def _count(self) -> None:
        cost = self._compressor[0].cost(table=self.budget.table)
        counts = torch.tensor([max(LEAST_COST, float(getattr(cost, name))) for name in self.names])
        self.taken_back.copy_(counts.log().to(self.taken_back.device) - self.measure()[1])

    @property
    def settled(self) -> bool:
        """Whether the gates are projected onto the budget."""
        return bool(self.has_settled)

    def settle(self) -> None:
        """Project the gates onto the budget, after which no noise changes them."""
        self._compressor[0].project(self.budget, certain=True)
        self.taken_back.zero_()  # a plan within the budget has complete groups
        self.has_settled.fill_(True)

    def measure(self) -> Tensor:
        """The logarithms of the expected and of the decided costs, [2, limits]; the first are differentiable."""
        expected = self.costs()
        with torch.no_grad():
            decided = self.costs(decided=True)
        return torch.stack([expected, decided]).clamp_min(LEAST_COST).log()

    def penalty(self, log_costs: Tensor) -> Tensor:
        """What is added to the loss; `log_costs` are those of `measure`."""
        return (self.log_mu.exp() * (log_costs[0] - self.log_limit)).sum()

    @torch.no_grad()
    def update(self, log_costs: Tensor) -> None:
        """Change mu by the costs that a step has measured."""
        scheduled = self._scheduled()
        cost = torch.lerp(log_costs[0], log_costs[1] + self.taken_back, scheduled)
        error = (cost - self._log_target(scheduled)).clamp(-1.0, 1.0)
        falls = (scheduled < 1) & (self.log_start > self.log_limit)
        least = torch.where(falls, math.log(INITIAL_MU), math.log(LEAST_MU))
        most = torch.full_like(least, math.log(MOST_MU))
        self.total.copy_((self.total + self.gain * error).clamp(least, most))
        self.log_mu.copy_((self.total + PROPORTIONAL * error).clamp(least, most))
        self.log_costs.copy_(log_costs)

    def values(self) -> dict[str, float]:
        """For the metrics: of every limit mu, target, expected and decided cost; it waits for the device."""
        target = self._log_target(self._scheduled())
        decided = self.log_costs[1] + self.taken_back
        rows = torch.cat([self.log_mu, target, self.log_costs[0], decided]).exp().reshape(4, -1).T.tolist()
        kinds = ("mu", "target", "expected", "decided")
        return {
            f"{kind}_{name}": value
            for name, row in zip(self.names, rows, strict=True)
            for kind, value in zip(kinds, row, strict=True)
        }

    def _scheduled(self) -> Tensor:
        """How much of the schedule of the target is done, from 0 to 1."""
        first, last = SCHEDULE
        return ((self.part - first) / (last - first)).clamp(0.0, 1.0)

    def _log_target(self, scheduled: Tensor) -> Tensor:
        return torch.lerp(self.log_start, self.log_limit, scheduled)


@torch.no_grad()
def start_gates(compressor: Compressor) -> None:
    """Put gates that have not learned yet nearer to the decision."""
    attachment = compressor.attachment
    gates = [quantizer.gates for quantizer in attachment.quantizers.values() if quantizer.mode == "learning"]
    gates += [channels.gates for channels in attachment.channel_gates.values() if not channels.fixed]
    for member in gates:
        if bool((member.logits == OPEN_LOGIT).all()):
            member.logits.fill_(INITIAL_LOGIT)
