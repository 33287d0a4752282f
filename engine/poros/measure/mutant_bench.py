"""Where mutants are tried: one loaded model, put back to its start before every run.

A mutant breaks one protection. It must turn the gate red at the place that follows from what it
breaks, and nowhere else: red elsewhere means that the gate, or our reason, is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from poros.data.batches import Batch
from poros.measure.compare import judge
from poros.measure.disturbances import CopyFailedError, disturbed
from poros.measure.plan import Cell, Plan
from poros.measure.records import ArmRecord, Recorder
from poros.measure.running_out import nothing_to_move
from poros.measure.streamed_arm import (
    attach_head,
    attach_ring,
    cell_optimizer,
    make_ring,
    make_step,
    open_streamed,
    read_batches,
    save_for_resume,
)
from poros.measure.streamed_cell import StreamedCell
from poros.memory_plan import evenly_spaced
from poros.streaming.ambient import RandomState
from poros.training.checkpoint import load_checkpoint
from poros.training.host_adamw import travelling_adapters
from poros.training.optimizer import AdapterAdamW

KIND_ORDER = ("loss", "grad", "grad_norm", "adapter", "exp_avg", "exp_avg_sq")

NUM_STEPS = 2
PLAIN_TOKENS = 10

Filter = Callable[[str, Tensor], Tensor | None]
"""What a recorder is given in place of a tensor; None: nothing at all."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run of the bench differs from the bench's cell."""

    autocast: str | None = None
    use_cache: bool = False
    plain: bool = False
    """Batches without a mask, all rows of one length."""
    compile: bool = False
    disturb: str | None = None
    """What happens around the steps, by its name in `disturbances`."""
    note: Filter | None = None
    on_host: str = ""
    """``moments``, ``adapters`` (and moments) or ``boundaries``."""
    num_resident: int = 0
    """Blocks with a place of their own, evenly spaced."""


@dataclass
class Bench:
    """The loaded model of one cell, and its adapter's first values."""

    plan: Plan
    cell: Cell
    streamed: StreamedCell
    first_values: list[Tensor] = field(default_factory=list)
    attach_options: dict[str, Any] = field(default_factory=dict)
    batch_order: Callable[[list[Batch]], list[Batch]] = lambda batches: batches
    between_steps: Callable[[int], None] = lambda _: None
    optimizer_made: Callable[[torch.optim.Optimizer], None] = lambda _: None
    resumed: Callable[[torch.optim.Optimizer], None] = lambda _: None
    """Called when a checkpoint has been loaded."""
    batches_skipped: int = 0
    """By a resume."""

    @classmethod
    def open(cls, plan: Plan, cell: Cell) -> Bench:
        """Load the cell."""
        streamed = open_streamed(plan, cell, torch.device(plan.device))
        values = [parameter.detach().clone() for _, parameter in streamed.params]
        return cls(plan, cell, streamed, values)

    @property
    def has_biases(self) -> bool:
        """Whether biases travel with the blocks."""
        return any(place.name.endswith(".bias") for place in self.streamed.base.blocks[0].places)

    @property
    def num_layers(self) -> int:
        """Decoder layers, each a block of its own."""
        return len(self.streamed.base.layers)

    def run(self, setting: Setting, *, num_steps: int = NUM_STEPS) -> ArmRecord:
        """Steps from the adapter's first values on a fresh ring."""
        cell = dataclasses.replace(
            self.cell, autocast=setting.autocast, num_steps=num_steps, use_cache=setting.use_cache,
            resident=evenly_spaced(self.num_layers, setting.num_resident),
            moments_on_host=setting.on_host in ("moments", "adapters"),
            adapters_on_host=setting.on_host == "adapters",
            boundaries_on_host=setting.on_host == "boundaries",
        )  # fmt: skip
        self._put_back(cell, compiled=setting.compile)
        recorder = Recorder(cell.name, None)
        note = _filtered(recorder, setting.note)
        with disturbed(self.streamed, setting.disturb):
            optimizer = self._attach(cell)
            self.optimizer_made(optimizer)
            for name, parameter in self.streamed.params:
                recorder.note(f"adapter.{name}", parameter)
            recorder.end_step()
            torch.manual_seed(cell.seed)
            for step in range(num_steps):
                batches = self.batch_order(self._batches(step, plain=setting.plain))
                self._make_step(batches, cell, step, note)
                recorder.end_step()
                self.between_steps(step)
        shown = self.streamed.proof(num_steps)
        return recorder.end(streaming_proof=shown)

    def _make_step(
        self,
        batches: Sequence[Batch],
        cell: Cell,
        step: int,
        note: Callable[[str, Tensor], None],
    ) -> None:
        """One step; from its beginning again, if a copy fails."""
        rate = cell.learning_rates[step % self.cell.num_steps]
        random = RandomState.capture(self.streamed.device)
        try:
            make_step(self.streamed, batches, cell, rate, note, nothing_to_move)
        except CopyFailedError:
            random.restore(self.streamed.device)
            self.streamed.optimizer.zero_grad(set_to_none=True)
            make_step(self.streamed, batches, cell, rate, note)

    def save(self) -> ArmRecord:
        """Run with a checkpoint one step before the end; the record of the step after it."""
        cell = dataclasses.replace(self.cell, resume_at=NUM_STEPS)

        def save_now(step: int) -> None:
            if step + 1 == NUM_STEPS:
                save_for_resume(self.plan, cell, self.streamed)

        self.between_steps = save_now
        try:
            record = self.run(Setting(), num_steps=NUM_STEPS + 1)
        finally:
            self.between_steps = _ignore
        return dataclasses.replace(record, steps=record.steps[-1:])

    def resume(self) -> ArmRecord:
        """Continue from the checkpoint of `save` for one step."""
        folder = self.plan.checkpoint(self.cell)
        streamed = self.streamed
        self._put_back(self.cell, compiled=False)
        saved = load_file(folder / "adapter_model.safetensors")
        with torch.no_grad():
            for name, parameter in streamed.params:
                parameter.copy_(saved[name.replace(".default.", ".")])
        optimizer = self._attach(self.cell)
        load_checkpoint(folder, params=streamed.params, optimizer=optimizer, device=streamed.device)
        self.resumed(optimizer)
        recorder = Recorder(self.cell.name, None, step=NUM_STEPS + 1)
        batches = self._batches(NUM_STEPS + self.batches_skipped, plain=False)
        rate = self.cell.learning_rates[NUM_STEPS % self.cell.num_steps]
        make_step(streamed, batches, self.cell, rate, recorder.note)
        recorder.end_step()
        return recorder.record

    def _put_back(self, cell: Cell, *, compiled: bool) -> None:
        streamed = self.streamed
        streamed.attachment.detach()
        for layer in streamed.base.layers:
            layer.__dict__.pop("forward", None)  # compiled for another mutant
            if compiled:
                layer.forward = torch.compile(layer.forward, dynamic=False)
        streamed.manager.forget()
        streamed.manager = make_ring(streamed.base, cell, streamed.device)
        if streamed.head is not None:
            streamed.head.detach()
        streamed.head = attach_head(streamed.base, streamed.ends, streamed.manager, cell)
        travelling = travelling_adapters(streamed.optimizer)
        if travelling is not None:
            travelling.give_back()
        with torch.no_grad():
            for (_, parameter), value in zip(streamed.params, self.first_values, strict=True):
                parameter.copy_(value)
                parameter.grad = None
        streamed.model.config.use_cache = cell.use_cache
        streamed.model.train()

    def _attach(self, cell: Cell) -> AdapterAdamW:
        """A fresh optimizer, and the layers on the ring."""
        streamed = self.streamed
        optimizer = cell_optimizer(streamed.base, streamed.params, cell, streamed.device)
        travelling = travelling_adapters(optimizer)
        options = {"travelling": travelling} | self.attach_options
        streamed.optimizer = optimizer
        streamed.attachment = attach_ring(
            streamed.base, streamed.manager, cell, streamed.device, **options
        )
        return optimizer

    def _batches(self, step: int, *, plain: bool) -> list[Batch]:
        batches = read_batches(self.plan, self.cell, step % self.cell.num_steps)
        if not plain:
            return batches
        return [
            Batch(
                batch.input_ids_BT[:, :PLAIN_TOKENS],
                batch.labels_BT[:, :PLAIN_TOKENS],
                None,
                None,
                batch.sample_ids,
            )
            for batch in batches
        ]


@dataclass(frozen=True)
class Mutant:
    """One broken protection, and where that must show.

    Args:
        name: What is broken.
        patch: Breaks it for as long as the context lasts.
        setting: The run that shows it.
        first: Pattern of the first item that differs.
        equal: Patterns of items that stay equal in that step.
        differ: Patterns of items that all differ in that step.
        step: The step of the first difference.
        word: The verdict; REFUSED for runs that prove nothing.
    """

    name: str
    patch: Callable[[Bench], contextlib.AbstractContextManager[None]]
    setting: Setting = Setting()
    first: str = ""
    equal: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()
    step: int = 1
    word: str = "FAIL"
    resumed: bool = False
    """Shown by continuing from a checkpoint."""
    ends: bool = False
    """Shown with head and embeddings on the host."""
    tier: bool = False
    """Shown with blocks that pass through staging."""
    live: bool = False
    """Shown with a model that transformers loaded and `poros.prepare` streams."""
    left_out: Callable[[Bench], str] = lambda _: ""
    """Says why a cell can't show it; empty: it can."""


def try_mutant(bench: Bench, mutant: Mutant, baseline: ArmRecord) -> dict[str, Any]:
    """Run the mutant and say whether it showed where predicted."""
    try:
        with mutant.patch(bench):
            mutated = bench.resume() if mutant.resumed else bench.run(mutant.setting)
    except Exception as error:  # noqa: BLE001  # one that breaks more than it should hides no other
        text = str(error).splitlines()
        return _result(mutant, False, f"{type(error).__name__}: {text[0] if text else ''}")
    if mutant.word == "REFUSED":
        words = [_word(claim, bench, baseline, mutated) for claim in ("B-fwd", "B-bwd", "D")]
        ok = all(word == "REFUSED" for word in words)
        return _result(mutant, ok, " ".join(words))
    where = first_difference(baseline, mutated)
    if where is None:
        return _result(mutant, False, "nothing differed")
    found = f"step {where[0]}, {where[1]}"
    problem = _problem(mutant, where, baseline, mutated, bench.num_layers)
    return _result(mutant, not problem, f"{found}: {problem}" if problem else found)


def not_applicable(mutant: Mutant, reason: str) -> dict[str, Any]:
    """The record of a mutant that was not tried: neither red nor a failure (``ok`` is None)."""
    return {"name": mutant.name, "ok": None, "predicted": "", "found": f"not applicable: {reason}"}


def first_difference(left: ArmRecord, right: ArmRecord) -> tuple[int, str] | None:
    """Step and item where two runs first part, in the order in which a step makes its items."""
    for a, b in zip(left.steps, right.steps, strict=True):
        for item in in_order([*a.digests, *b.digests]):
            if a.digests.get(item) != b.digests.get(item):
                return a.step, item
    return None


def in_order(items: Sequence[str]) -> list[str]:
    """Items of a step: losses, gradients, the norm, adapters, moments."""
    unique = list(dict.fromkeys(items))
    return sorted(unique, key=lambda item: KIND_ORDER.index(item.partition(".")[0]))


def _problem(
    mutant: Mutant,
    where: tuple[int, str],
    baseline: ArmRecord,
    mutated: ArmRecord,
    num_layers: int,
) -> str:
    step, item = where
    if step != mutant.step:
        return f"predicted in step {mutant.step}"
    if not re.search(_layers(mutant.first, num_layers), item):
        return f"predicted at {mutant.first}"
    a, b = (arm.steps[-1 if mutant.resumed else step].digests for arm in (baseline, mutated))
    for pattern, equal in [(p, True) for p in mutant.equal] + [(p, False) for p in mutant.differ]:
        chosen = [name for name in a if re.search(_layers(pattern, num_layers), name)]
        wrong = [name for name in chosen if (a[name] == b.get(name)) is not equal]
        if wrong or not chosen:
            word = "equal" if equal else "different"
            some = wrong[0] if wrong else "no item"
            return f"{len(wrong)} of {len(chosen)} of {pattern} are not {word}, {some}"
    return ""


def _layers(pattern: str, num_layers: int) -> str:
    """Put layer numbers into a pattern: ``{last}``, ``{middle}``, ``{below_middle}`` and so on."""
    middle = num_layers // 2
    return (
        pattern.replace("{last}", str(num_layers - 1))
        .replace("{middle}", str(middle))
        .replace("{two_last}", _any(range(num_layers - 2, num_layers)))
        .replace("{below_last_three}", _any(range(num_layers - 3)))
        .replace("{not_middle}", "|".join(str(k) for k in range(num_layers) if k != middle))
        .replace("{above_middle}", _any(range(middle + 1, num_layers)))
        .replace("{below_middle}", _any(range(middle)))
    )


def _any(numbers: range) -> str:
    return "(" + "|".join(map(str, numbers)) + ")"


def _word(claim: str, bench: Bench, left: ArmRecord, right: ArmRecord) -> str:
    cell = dataclasses.replace(bench.cell, num_steps=NUM_STEPS)
    count = len(bench.streamed.params)
    return judge(claim, cell, left, right, num_adapter_tensors=count).word


def _result(mutant: Mutant, ok: bool, found: str) -> dict[str, Any]:
    predicted = mutant.word if mutant.word == "REFUSED" else f"step {mutant.step}, {mutant.first}"
    return {"name": mutant.name, "ok": ok, "predicted": predicted, "found": found}


def _ignore(_: object) -> None:
    """Do nothing."""


def _filtered(recorder: Recorder, keep: Filter | None) -> Callable[[str, Tensor], None]:
    if keep is None:
        return recorder.note

    def note(name: str, tensor: Tensor) -> None:
        kept = keep(name, tensor)
        if kept is not None:
            recorder.note(name, kept)

    return note
