"""What lies on the host although a resident run has it on the device; it changes no bit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Which groups of tensors lie on the host between their uses.

    Attributes:
        head_on_host: The head's weight; it visits the device for the loss.
        embeddings_on_host: The embeddings; rows are gathered on the CPU.
        moments_on_host: Adam's moments; each block's visit the device for its step.
        adapters_on_host: The adapters' weights and gradients; they travel with their block.
        boundaries_on_host: The hidden states between blocks that backward needs again.
    """

    head_on_host: bool = False
    embeddings_on_host: bool = False
    moments_on_host: bool = False
    adapters_on_host: bool = False
    boundaries_on_host: bool = False


def memory_plan(vram_budget: float | str) -> MemoryPlan:
    """The plan that the setting ``vram_budget`` asks for: ``min`` is all that there is."""
    smallest = vram_budget == "min"
    return MemoryPlan(
        head_on_host=smallest,
        embeddings_on_host=smallest,
        moments_on_host=smallest,
        adapters_on_host=smallest,
    )
