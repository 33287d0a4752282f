"""What a run takes of the device under a plan, in bytes: from shapes alone, without torch.

R rows of a micro-batch (samples x tokens), D model width, V vocabulary.

[Note: what is known and what is estimated]
Weights, slots, adapters and boundaries are counted and exact. What one layer has alive in its
backward, and the loss's buffers, are estimated from what stock's modules save; the constants below
say from what. Measured peaks of earlier runs correct them (`plan_history`).
"""

from __future__ import annotations

from dataclasses import dataclass

from poros.memory_plan import FEWEST_SLOTS, MemoryPlan

CONTEXT_BYTES = 900_000_000
"""Of CUDA itself, beside the allocator: 0.70 to 0.79 GB in the runs of docs/validation, and room
for another driver."""

CUBLAS_WORKSPACE_BYTES = 8 * 4096 * 2**10
"""What CUBLAS_WORKSPACE_CONFIG=:4096:8 makes cuBLAS hold for a thread that multiplies."""

WORKSPACE_BYTES = 2 * CUBLAS_WORKSPACE_BYTES + 13_000_000
"""cuBLAS in its deterministic mode has 8 buffers of 4 MiB a thread that multiplies: forward's and
backward's. The rest is what the peaks of 7B and 32B (docs/validation) leave after all that is
counted here."""
FRAGMENTATION = 1.06
"""What the allocator reserves over what is allocated: 1.04 to 1.09 in docs/validation."""
LEAST_MARGIN_BYTES = 64 * 2**20
MARGIN_PART = 0.03
"""What a plan leaves of a budget, the larger of both: what is reserved is bounded, a peak is of
what is allocated. Without expandable segments torch reserves 20 MiB at once for requests of 1 to
10 MiB (2 MiB for smaller ones), for each stream its own: computing, and copies in either direction,
with one such segment hardly used each, and a few small ones. Seen: 31 MiB idle when a cap of 600 MB
ran out. With expandable segments gaps are rarer; the margin is the same."""
STOCK_LOSS_BYTES = 12
"""For each logit at stock's loss: log-softmax, its gradient and the picked gradient, as floats; the
peaks of 7B and 32B are these to 1 %."""
LOGIT_BYTES = 2
"""Of a logit that the exact loss keeps: its gradient takes its place."""
CHUNK_BUFFERS, CHUNK_BYTES = 3, 32 * 2**20
"""Float buffers of the exact loss's chunk of rows, and the most that each takes."""
BOUNDARIES_AT_ONCE = 2
"""Of hidden states that wait on the host: one layer's in use, the next one's on its way. None while
the loss is computed (`streaming/boundaries.py`)."""
SAVED_NORM_BYTES = 8
"""For each element of the hidden states: both norms of a layer save a float copy."""
WIDEST_GRADIENT_BYTES = 8
"""For each input of the widest adapted linear and each row, while a float adapter's backward runs:
7.9 and 7.0 at the peaks of 7B x 16,384 and 32B x 8,192 tokens in docs/validation. Adapters that
multiply in 16 bits are taken for half of it."""
SHORT_BYTES = 2
FLOAT_BYTES = 4
MOMENTS = 2


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One linear of a layer."""

    num_inputs: int
    num_outputs: int
    adapted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What of a model the plan depends on.

    Attributes:
        block_bytes: Of each block, as it travels.
        num_layers: Decoder layers.
        linears: Of the largest layer.
        num_weights: Of all layers' linears, for arithmetic.
        num_adapter_weights: Of the whole adapter.
        adapter_weight_bytes: Of one of its weights.
        hidden_size: D.
        vocab_size: V.
        head_bytes: The head, also where it is the embeddings' own tensor.
        embedding_bytes: All embeddings.
        tied: Whether the head is the embeddings' own tensor.
        other_bytes: What else lies outside the layers.
    """

    block_bytes: tuple[int, ...]
    num_layers: int
    linears: tuple[LinearShape, ...]
    num_weights: int
    num_adapter_weights: int
    adapter_weight_bytes: int
    hidden_size: int
    vocab_size: int
    head_bytes: int
    embedding_bytes: int
    tied: bool
    other_bytes: int

    @property
    def num_blocks(self) -> int:
        """Blocks that can be resident."""
        return len(self.block_bytes)

    @property
    def adapter_bytes(self) -> int:
        """The adapter's weights; as much again are its gradients."""
        return self.num_adapter_weights * self.adapter_weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What of a step the plan depends on.

    Attributes:
        num_rows: R, of the longest micro-batch.
        accumulation: Micro-batches of a step.
        dropout: Whether adapters drop inputs.
        short_adapters: Whether adapters multiply in 16 bits, under autocast or by their type.
    """

    num_rows: int
    accumulation: int = 1
    dropout: bool = True
    short_adapters: bool = False


def lasting_bytes(plan: MemoryPlan, sizes: ModelSizes) -> dict[str, int]:
    """What lies on the device for the whole run, by group."""
    travelling = [n for k, n in enumerate(sizes.block_bytes) if k not in plan.resident]
    num_slots = min(plan.num_slots, len(travelling))
    head = 0 if plan.head_on_host else sizes.head_bytes
    embeddings = 0 if plan.embeddings_on_host else sizes.embedding_bytes
    if sizes.tied and not plan.embeddings_on_host:
        head = 0  # one tensor for both
    weights, moments = sizes.adapter_bytes, MOMENTS * sizes.adapter_bytes
    if plan.adapters_on_host:
        # Slots for weights and for gradients.
        weights = 2 * FEWEST_SLOTS * _largest_adapter(sizes)
    if plan.moments_on_host or plan.adapters_on_host:
        moments = 0
    return {
        "resident blocks": sum(sizes.block_bytes[k] for k in plan.resident),
        "slots of the ring": num_slots * max(travelling, default=0),
        "head": head,
        "embeddings": embeddings,
        "norms and the like": sizes.other_bytes,
        "adapters": weights,
        "moments": moments,
        "workspaces": WORKSPACE_BYTES,
    }


def phase_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> dict[str, int]:
    """What each phase of a step adds to what lasts; the peak is in the phase that adds most."""
    boundary = step.num_rows * sizes.hidden_size * SHORT_BYTES
    away = plan.boundaries_on_host
    boundaries = boundary * (BOUNDARIES_AT_ONCE if away else sizes.num_layers)
    gradients = 0 if plan.adapters_on_host else sizes.adapter_bytes
    earlier = gradients if step.accumulation > 1 else 0
    visit = sizes.head_bytes if plan.head_on_host else 0
    layer = layer_bytes(sizes, step)
    backward = layer + gradient_bytes(sizes, step)
    block_state = _largest_adapter(sizes) * MOMENTS
    moments_on_host = plan.moments_on_host or plan.adapters_on_host
    return {
        "forward": boundaries + earlier + layer + (visit if plan.head_prefetch else 0),
        "loss": (boundary if away else boundaries)
        + earlier
        + visit
        + loss_bytes(plan, sizes, step),
        # The last layer's comes first: all boundaries are there, gradients only of former passes.
        "backward": boundaries + earlier + backward,
        "backward's end": boundary + gradients + backward,
        "optimizer step": gradients
        + (FEWEST_SLOTS * block_state + block_state if moments_on_host else sizes.adapter_bytes),
    }


def layer_bytes(sizes: ModelSizes, step: StepShape) -> int:
    """The graph of one layer's recompute, and the weight that bitsandbytes unpacks beside it.

    Each adapter saves its input in its own type, as a mask too where it drops some; the linears'
    outputs are saved by what follows them (attention, the activation and its product).
    """
    adapter_bytes = SHORT_BYTES if step.short_adapters else FLOAT_BYTES
    per_row = 0
    for linear in sizes.linears:
        per_row += SHORT_BYTES * linear.num_outputs
        if linear.adapted:
            per_row += (adapter_bytes + step.dropout) * linear.num_inputs
    widest = max((linear.num_inputs for linear in sizes.linears), default=0)
    per_row += SHORT_BYTES * (widest + sizes.hidden_size) + SAVED_NORM_BYTES * sizes.hidden_size
    unpacked = max((x.num_inputs * x.num_outputs for x in sizes.linears), default=0)
    return step.num_rows * per_row + SHORT_BYTES * unpacked


def gradient_bytes(sizes: ModelSizes, step: StepShape) -> int:
    """What the backward of the widest adapted linear has alive beside the layer's graph."""
    widest = max((linear.num_inputs for linear in sizes.linears if linear.adapted), default=0)
    each = WIDEST_GRADIENT_BYTES // (2 if step.short_adapters else 1)
    return each * step.num_rows * widest


def loss_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """The logits and what the loss makes of them."""
    num_logits = step.num_rows * sizes.vocab_size
    if plan.head_on_host:
        chunk = min(CHUNK_BYTES, FLOAT_BYTES * num_logits)
        return LOGIT_BYTES * num_logits + CHUNK_BUFFERS * chunk
    return STOCK_LOSS_BYTES * num_logits


def peak_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """The most that is allocated at once."""
    return sum(lasting_bytes(plan, sizes).values()) + max(phase_bytes(plan, sizes, step).values())


def usable_bytes(budget_bytes: int) -> int:
    """What of a budget a plan may fill."""
    return max(budget_bytes - max(LEAST_MARGIN_BYTES, round(MARGIN_PART * budget_bytes)), 0)


def budget_for(peak: int) -> int:
    """The least budget that a plan with this peak fits."""
    budget_bytes = max(peak + LEAST_MARGIN_BYTES, round(peak / (1 - MARGIN_PART)))
    while usable_bytes(budget_bytes) < peak:
        budget_bytes += 1  # what rounding took
    return budget_bytes


def device_level_bytes(peak: int) -> int:
    """What the whole process takes of the card at that peak."""
    return round(peak * FRAGMENTATION) + CONTEXT_BYTES


def copied_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """Bytes over the link in one optimizer step, both ways, once the run is under way."""
    travelling = [n for k, n in enumerate(sizes.block_bytes) if k not in plan.resident]
    # At each turn-around the blocks in the slots stay.
    num_copied = max(len(travelling) - plan.num_slots, 0)
    blocks = 2 * num_copied * sum(travelling) // max(len(travelling), 1)
    visit = sizes.head_bytes if plan.head_on_host else 0
    boundary = step.num_rows * sizes.hidden_size * SHORT_BYTES
    boundaries = 2 * sizes.num_layers * boundary if plan.boundaries_on_host else 0
    # Weights come twice; the gradients' sums come and go.
    adapters = 4 * sizes.adapter_bytes if plan.adapters_on_host else 0
    return step.accumulation * (blocks + visit + boundaries + adapters) + _state_bytes(plan, sizes)


def waited_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """Those of them that nothing computes beside: the optimizer's, and a head that comes late."""
    late = plan.head_on_host and not plan.head_prefetch
    return _state_bytes(plan, sizes) + (step.accumulation * sizes.head_bytes if late else 0)


def _state_bytes(plan: MemoryPlan, sizes: ModelSizes) -> int:
    moments = plan.moments_on_host or plan.adapters_on_host
    state = 2 * MOMENTS * sizes.adapter_bytes if moments else 0
    return state + (3 * sizes.adapter_bytes if plan.adapters_on_host else 0)


def operations(sizes: ModelSizes, step: StepShape) -> float:
    """Additions and multiplications of one step's products: see `measure/floors.py`."""
    head = sizes.head_bytes // SHORT_BYTES
    return 2.0 * step.num_rows * step.accumulation * (3 * sizes.num_weights + 2 * head)


def _largest_adapter(sizes: ModelSizes) -> int:
    return -(-sizes.adapter_bytes // max(sizes.num_blocks, 1))
