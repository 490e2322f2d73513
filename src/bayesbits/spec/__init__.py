"""What a user chooses, and what it means for a network."""

from bayesbits.spec.options import Rule, Spec
from bayesbits.spec.resolve import Choices, resolve_rules

__all__ = ["Choices", "Rule", "Spec", "resolve_rules"]
