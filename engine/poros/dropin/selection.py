"""What of a live model's layers travels: frozen tensors, no adapter's and none that is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from poros.loading.nf4 import frozen_tensors
from poros.streaming.block import FrozenTensor

Manages = Callable[[str, nn.Parameter], bool]
"""False for a parameter, by its name in the model, that is to stay on the device."""


def travelling_tensors(
    model: nn.Module, layers: Sequence[nn.Module], *, layers_per_block: int, manages: Manages
) -> list[list[FrozenTensor]]:
    """Block by block, what travels.

    Args:
        model: The model around the layers.
        layers: Its decoder layers.
        layers_per_block: Layers that share one block.
        manages: The user's say.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    stays = _held_twice(model, layers) | {
        id(p) for layer in layers for p in adapter_parameters(layer)
    }

    def travels(entry: FrozenTensor) -> bool:
        holder = entry.holder
        if isinstance(holder, nn.Parameter):
            if holder.requires_grad or id(holder) in stays:
                return False
            if not manages(names[id(holder)], holder):
                return False
        elif id(entry.value) in stays:
            return False
        # A copy is contiguous, and kernels may be chosen by strides.
        return entry.value.is_contiguous()

    groups = []
    for first in range(0, len(layers), layers_per_block):
        group = layers[first : first + layers_per_block]
        groups.append([f for k, layer in enumerate(group) for f in frozen_tensors(layer, f"{k}.")])
    # Layers that share a weight share what its quantisation state holds as well.
    met = Counter((id(f.holder), f.attribute) for group in groups for f in group)
    return [
        [f for f in group if met[id(f.holder), f.attribute] == 1 and travels(f)] for group in groups
    ]


def adapter_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """What PEFT put on, trained at the moment or not: an optimizer may step it at any time."""
    for part in module.modules():
        if isinstance(part, BaseTunerLayer):
            own = {id(p) for p in part.get_base_layer().parameters()}
        elif isinstance(part, AuxiliaryTrainingWrapper):
            own = {id(p) for p in part.original_module.parameters()}
        else:
            continue
        yield from (p for p in part.parameters() if id(p) not in own)


def move_rest(model: nn.Module, device: torch.device) -> None:
    """Bring what does not travel to `device`; parameters stay the objects that they are."""
    for module in model.modules():
        module._apply(lambda tensor: tensor.to(device), recurse=False)


def _held_twice(model: nn.Module, layers: Sequence[nn.Module]) -> set[int]:
    """Tensors that hang in more than one place: two blocks would point them two ways."""
    held = Counter(id(tensor) for module in model.modules() for tensor in _own(module))
    # A module that hangs in several layers (VeRA's matrices) is one place, and in several blocks.
    reached = Counter(
        key
        for layer in layers
        for key in {id(tensor) for module in layer.modules() for tensor in _own(module)}
    )
    return {key for counts in (held, reached) for key, count in counts.items() if count > 1}


def _own(module: nn.Module) -> Iterator[Tensor]:
    tensors = [*module._parameters.values(), *module._buffers.values()]
    yield from (tensor for tensor in tensors if tensor is not None)
