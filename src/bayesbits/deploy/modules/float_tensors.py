"""The tensors of a deployed network that stay in float."""

from collections.abc import Collection

from torch import Tensor, nn

from bayesbits.deploy.modules.targets import FLOATS, target_of
from bayesbits.utils.naming import key_of


class FloatTensors(nn.Module):
    """The parameters, buffers and constants of the user's network that operations outside of layers read."""

    def add(self, name: str, tensor: Tensor, *, parameter: bool) -> str:
        """Copy a tensor of the user's network into this module; returns the target of its get_attr nodes."""
        key = key_of(name)
        if not hasattr(self, key):
            self.set(key, tensor.detach().clone(), parameter=parameter)
        return target_of(FLOATS, name)

    def add_positions(self, positions: Tensor) -> str:
        """Add the positions of an index_select under a new name; returns the target of its get_attr node."""
        return self.add(f"positions.{len(list(self.buffers()))}", positions, parameter=False)

    def set(self, key: str, tensor: Tensor, *, parameter: bool) -> None:
        """Register a tensor under a key."""
        if parameter and tensor.is_floating_point():
            self.register_parameter(key, nn.Parameter(tensor, requires_grad=False))
        else:
            self.register_buffer(key, tensor)

    def remove_unread(self, targets: Collection[str]) -> None:
        """Remove every tensor that is not among the targets of a graph's get_attr nodes."""
        names = [name for name, _ in (*self.named_parameters(), *self.named_buffers())]
        for key in names:
            if f"{FLOATS}.{key}" not in targets:
                delattr(self, key)
