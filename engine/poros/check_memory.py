"""What `poros check` says of memory: the plan that a card's room allows, from headers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from poros.check_sizes import Stored, is_head, is_tied, layer_of, stored_tensors
from poros.errors import PorosError, PorosOOMError
from poros.memory_plan import MemoryPlan, memory_plan
from poros.memory_planner import (
    Correct,
    Estimate,
    Rates,
    as_estimated,
    choose,
    estimate,
    rows_that_fit,
)
from poros.memory_sizes import (
    CONTEXT_BYTES,
    FLOAT_BYTES,
    FRAGMENTATION,
    LinearShape,
    ModelSizes,
    StepShape,
    device_level_bytes,
    lasting_bytes,
    phase_bytes,
)
from poros.told_sizes import told_size
from poros.weights_index import TensorHeader

Band = tuple[float, float]

ACCUMULATION = 8
"""As the setting's default."""
PEAK_BAND: Band = (0.94, 1.05)
"""In which measured peaks of the allocator lie around the estimate: those of docs/validation are
0.95 to 1.00 of it (a test holds this against them); the lowest had shorter rows than estimated."""
DEVICE_BAND: Band = (0.9, 1.05)
"""The same for what the process takes of the card: 0.91 to 0.99."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a run would be.

    Attributes:
        vram_gb: Of the card, CUDA's own part included; None: as little as possible.
        seq_len: Tokens of a sample.
        batch: Samples of a micro-batch.
        rank: Of the adapter.
    """

    vram_gb: float | None = None
    seq_len: int = 2048
    batch: int = 1
    rank: int = 16

    @property
    def step(self) -> StepShape:
        """Its optimizer step."""
        return StepShape(num_rows=self.seq_len * self.batch, accumulation=ACCUMULATION)


@dataclass(frozen=True, slots=True, eq=False)
class TextHeaders:
    """A text model's headers, from which the sizes of any adapter on it are computed.

    Two of them are never equal, so that what was computed from one can be kept.

    Attributes:
        headers: Of its tensors, by the model's own names.
        config: Of the text model.
        layers_path: Where its layers are.
        targets: The linears that get an adapter where nothing else is said.
    """

    headers: Mapping[str, TensorHeader]
    config: Mapping[str, Any]
    layers_path: str
    targets: tuple[str, ...]

    def sizes(
        self,
        *,
        rank: int,
        targets: Sequence[str] = (),
        adapter_weight_bytes: int = FLOAT_BYTES,
        layers_per_block: int = 1,
        is_dense: bool = False,
    ) -> ModelSizes | None:
        """What the planner wants to know; None if the linears' shapes can't be told.

        Args:
            rank: Of the adapter.
            targets: Names of its linears; empty: the family's.
            adapter_weight_bytes: Of one of its weights.
            layers_per_block: Layers that travel together.
            is_dense: The layers stay in 16 bits.
        """
        found = sizes_of(
            self.headers, self.config, self.layers_path,
            targets=targets or self.targets, rank=rank, is_dense=is_dense,
        )  # fmt: skip
        if found is None:
            return None
        layers = found.block_bytes
        starts = range(0, len(layers), layers_per_block)
        return replace(
            found,
            block_bytes=tuple(sum(layers[k : k + layers_per_block]) for k in starts),
            adapter_weight_bytes=adapter_weight_bytes,
        )


def planned(
    sizes: ModelSizes,
    wanted: Wanted,
    rates: Rates | None = None,
    correct: Correct = as_estimated,
) -> Estimate:
    """The plan of such a run.

    Args:
        sizes: Of the model.
        wanted: What it would be.
        rates: Of link and card; without them its time is unknown.
        correct: What earlier runs know.

    Raises:
        PorosOOMError: Not even the smallest fits; it says what would.
    """
    if wanted.vram_gb is None:
        return estimate(memory_plan("min"), sizes, wanted.step, rates=rates, correct=correct)
    room = _room_bytes(wanted.vram_gb)
    return choose(room, sizes, wanted.step, rates=rates, correct=correct)


def _room_bytes(vram_gb: float) -> int:
    """So that what the process is expected to take of the card is no more than was named."""
    return int(max(vram_gb * 1e9 - CONTEXT_BYTES, 0) / FRAGMENTATION)


def plan_rows(sizes: ModelSizes, wanted: Wanted) -> list[tuple[str, str]]:
    """Lines for people: the least that it takes, and the plan for the room that was named."""
    least = planned(sizes, Wanted(None, wanted.seq_len, wanted.batch, wanted.rank))
    rows = [("least memory", f"{_told(least)} for {_samples(wanted)}")]
    if wanted.vram_gb is not None:
        short = misfit(sizes, wanted)
        if short is None:
            found = planned(sizes, wanted)
            told = f"{_where(found.plan, sizes)}; {_told(found)}"
        else:
            told = f"does not fit: {short.message}; {short.remediation}"
        rows.append((f"in {wanted.vram_gb:g} GB", told))
    return rows


def trains_row(wanted: Wanted, short: PorosOOMError | None) -> tuple[str, str]:
    """The last line for people: whether such a run can be, on the card that was named."""
    if short is None:
        return ("trains", "yes")
    return ("trains", f"not in {wanted.vram_gb:g} GB with these samples")


def misfit(sizes: ModelSizes, wanted: Wanted) -> PorosOOMError | None:
    """Why it does not fit the card that was named, and what would; None: it does, or none was."""
    try:
        planned(sizes, wanted)
    except PorosOOMError as error:
        assert wanted.vram_gb is not None
        needed = between(device_level_bytes(error.asked_bytes), DEVICE_BAND)
        num_rows = rows_that_fit(_room_bytes(wanted.vram_gb), sizes, wanted.step)
        fits = "no sample fits: take a smaller model, or a larger card"
        if num_rows:
            fits = f"{num_rows} tokens a micro-batch would fit"
        return PorosOOMError(
            f"{_samples(wanted)} take {needed} of the card",
            where=f"--vram {wanted.vram_gb:g}",
            remediation=fits,
            phase="plan",
            asked_bytes=error.asked_bytes,
            cap_bytes=error.cap_bytes,
        )
    return None


def _samples(wanted: Wanted) -> str:
    return f"{wanted.batch} x {wanted.seq_len} tokens"


def plan_record(sizes: ModelSizes, wanted: Wanted) -> dict[str, Any]:
    """The same for JSON."""
    try:
        found = planned(sizes, wanted)
    except PorosError as error:
        return {"fits": False, "message": error.message, "remediation": error.remediation}
    return {
        "fits": True,
        "num_blocks": sizes.num_blocks,
        "resident": list(found.plan.resident),
        "num_slots": found.plan.num_slots,
        "on_host": on_host(found.plan),
        "peak_bytes": found.peak_bytes,
        "peak_phase": found.phase,
        "device_bytes": found.device_bytes,
        "copied_bytes": found.copied_bytes,
    }


def parts(found: Estimate, sizes: ModelSizes, step: StepShape) -> dict[str, int]:
    """What the process takes of the card, by what it is for, in bytes; they add up to all of it."""
    lasting = lasting_bytes(found.plan, sizes)
    in_step = phase_bytes(found.plan, sizes, step)[found.phase]
    rest = found.device_bytes - sum(lasting.values()) - in_step
    return lasting | {"activations and gradients": in_step, "CUDA and margin": rest}


def on_host(plan: MemoryPlan) -> list[str]:
    """The groups that lie on the host, beside the blocks."""
    names = ("head", "embeddings", "moments", "adapters", "boundaries")
    return [name for name in names if getattr(plan, f"{name}_on_host")]


def sizes_of(
    headers: Mapping[str, TensorHeader],
    config: Mapping[str, Any],
    layers_path: str,
    *,
    targets: Sequence[str],
    rank: int,
    is_dense: bool = False,
) -> ModelSizes | None:
    """What the planner wants to know, for blocks of one layer.

    Args:
        headers: As for `check_sizes.sizes`.
        config: Of the text model.
        layers_path: Where its layers are.
        targets: Names of the linears that get an adapter.
        rank: Of it.
        is_dense: The layers stay in 16 bits; else they are NF4.

    Returns:
        None if the linears' shapes can't be told: they are packed already.
    """
    hidden_size, vocab_size = config.get("hidden_size"), config.get("vocab_size")
    if not isinstance(hidden_size, int) or not isinstance(vocab_size, int):
        return None
    layers: dict[int, list[Stored]] = {}
    ends: list[Stored] = []
    for tensor in stored_tensors(headers, config, layers_path):
        index = layer_of(tensor.name, layers_path)
        (ends if index is None else layers.setdefault(index, [])).append(tensor)
    tied = is_tied(headers, config)
    shapes = [_linears(layers[index], targets) for index in sorted(layers)]
    if not shapes or any(len(x.shape) < 2 for layer in layers.values() for x in layer if x.packed):
        return None
    heads = [tensor for tensor in ends if is_head(tensor.name)]
    tables = [t for t in ends if t not in heads and len(t.shape) == 2 and not t.packed]
    words = max(tables, key=lambda t: t.num_params, default=None)
    head_bytes = sum(t.dense_bytes for t in ([words] if tied and words else heads))
    table_bytes = sum(t.dense_bytes for t in tables)
    rest = [t for t in ends if t not in heads and t not in tables]

    def stored(tensor: Stored) -> int:
        return tensor.dense_bytes if is_dense else tensor.nf4_bytes

    return ModelSizes(
        block_bytes=tuple(sum(map(stored, layers[index])) for index in sorted(layers)),
        num_layers=len(layers),
        linears=tuple(max(shapes, key=_num_weights)),
        num_weights=sum(map(_num_weights, shapes)),
        num_adapter_weights=rank
        * sum(x.num_inputs + x.num_outputs for layer in shapes for x in layer if x.adapted),
        adapter_weight_bytes=FLOAT_BYTES,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        head_bytes=head_bytes,
        embedding_bytes=table_bytes,
        tied=tied,
        other_bytes=sum(map(stored, rest)),
    )


def between(value: int, band: Band) -> str:
    """An estimate's range, for people."""
    low, high = (value * end / 1e9 for end in band)
    return f"{low:.3g} to {high:.3g} GB"


def _linears(layer: Sequence[Stored], targets: Sequence[str]) -> list[LinearShape]:
    return [
        LinearShape(tensor.shape[1], tensor.shape[0], _is_target(tensor.name, targets))
        for tensor in layer
        if tensor.packed and len(tensor.shape) == 2
    ]


def _is_target(name: str, targets: Sequence[str]) -> bool:
    module = name.removesuffix(".weight")
    return any(module.endswith(f".{target}") for target in targets)


def _num_weights(layer: Iterable[LinearShape]) -> int:
    return sum(x.num_inputs * x.num_outputs for x in layer)


def _where(plan: MemoryPlan, sizes: ModelSizes) -> str:
    away = on_host(plan)
    return f"{len(plan.resident)} of {sizes.num_blocks} blocks resident" + (
        f", on the host {', '.join(away)}" if away else ""
    )


def _told(found: Estimate) -> str:
    return (
        f"peak {told_size(found.peak_bytes)} ({found.phase}),"
        f" {between(found.device_bytes, DEVICE_BAND)} of the card"
    )
