"""A row of the leaderboard: one method in one setting, with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poros.report_facts import number

STOCK, EQUAL, DIFFERS, UNPROVED = "reference", "equal", "differs", "unproved"
UNCOMPARED = "uncompared"
ON_HOST = ("head", "embeddings", "moments", "adapters", "boundaries")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method in one artifact.

    Attributes:
        model: The shape's or the model's name.
        num_layers: None: all of them.
        seq_len: Tokens of a row; None: not recorded.
        batch_size: Rows of a micro-batch.
        accumulation: Micro-batches of a step.
        device: The card's name.
        method: In words.
        num_cells: Settings that were run; the figures are the highest of them.
        step_s: Median of the timed steps, None: not timed.
        peak_bytes: Of the allocator; `reserved_bytes` too.
        process_bytes: What the whole process took of the card.
        host_bytes: Resident set, at most.
        cap_bytes: The hard limit that the allocator had.
        verdict: ``reference``, ``equal``, ``differs``, ``unproved`` or ``uncompared``.
        num_compared: Tensors compared by their bytes.
        stack: Versions.
        artifact: Its folder's name.
        told_tokens_per_s: As counted, where rows are not all full; None: they are.
    """

    model: str
    num_layers: int | None
    seq_len: int | None
    batch_size: int
    accumulation: int
    device: str
    method: str
    num_cells: int
    num_steps: int
    step_s: float | None
    peak_bytes: int | None
    reserved_bytes: int | None
    process_bytes: int | None
    host_bytes: int | None
    cap_bytes: int | None
    verdict: str
    num_compared: int
    stack: str
    artifact: str
    told_tokens_per_s: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """As counted, or of full rows."""
        if self.told_tokens_per_s is not None:
            return self.told_tokens_per_s
        if not self.step_s or self.seq_len is None:
            return None
        return self.seq_len * self.batch_size * self.accumulation / self.step_s

    @property
    def setting(self) -> tuple[Any, ...]:
        """What must be the same for two methods to stand side by side."""
        return (self.model, self.num_layers, self.seq_len, self.batch_size, self.accumulation,
                self.device)  # fmt: skip


def streamed_method(on_host: Sequence[str], num_resident: int, *, from_disk: bool) -> str:
    """What of a streamed run lies where, in words.

    Args:
        on_host: Of `ON_HOST`.
        num_resident: Blocks that stay on the card.
        from_disk: Whether blocks are read from files.
    """
    words = ["Poros"]
    if set(ON_HOST[:4]) <= set(on_host):
        words.append("all on the host")
    elif on_host:
        words.append(f"{', '.join(on_host)} on the host")
    if num_resident:
        words.append(f"{num_resident} blocks resident")
    if from_disk:
        words.append("blocks on disk")
    return ", ".join(words)


def whole(value: object) -> int | None:
    """A finite number as an integer, of anything else None."""
    found = number(value)
    return None if found is None else int(found)


def stack(packages: Mapping[str, Any]) -> str:
    """Versions of the libraries that compute."""
    names = ("torch", "transformers", "peft", "bitsandbytes")
    return ", ".join(f"{name} {packages[name]}" for name in names if name in packages)
