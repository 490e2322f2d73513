"""Every command with its options and its help. A command imports its implementation when it runs, not before."""

from collections.abc import Callable

from bayesbits.cli.commands import deployment, networks, posttraining, runs, training

COMMANDS: tuple[Callable[..., None], ...] = (
    training.demo,
    networks.recipes,
    networks.inspect,
    training.search,
    training.sweep,
    runs.plan,
    runs.report,
    runs.watch,
    runs.explain,
    posttraining.posttrain,
    posttraining.sensitivity,
    deployment.export,
    deployment.verify,
    deployment.bench,
    networks.measure,
)
"""All commands, in the order in which the help shows them."""
