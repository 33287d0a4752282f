"""The loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor

from poros import failpoints
from poros.control import Control, Request
from poros.data.batches import Batch, StepBatches
from poros.data.given import GivenBatches
from poros.errors import PorosNonFiniteError
from poros.events import Event, StepFinished
from poros.loading.phases import phase_events
from poros.loading.tensor_writer import write_tensors
from poros.training.checkpoint_keeper import CheckpointKeeper
from poros.training.memory_map import MemoryMapper
from poros.training.optimizer import AdapterAdamW, Params
from poros.training.room import Room
from poros.training.telemetry import Meter
from poros.training.train_step import loss_of, train_step


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the loop goes, and what it does when."""

    total_steps: int
    save_steps: int
    eval_steps: int | None
    """None: after the last step."""
    max_grad_norm: float
    autocast_dtype: torch.dtype | None
    learning_rate_at: Callable[[int], float]


@dataclass(kw_only=True)
class Trainer:
    """Trains an adapter; what it needs is made by `training.assembly`."""

    model: PeftModel
    params: Params
    optimizer: AdapterAdamW
    batches: StepBatches | GivenBatches
    pace: Pace
    device: torch.device
    checkpoints: CheckpointKeeper
    evaluate: Callable[[int], None]
    meter: Meter
    emit: Callable[[Event], None]
    control: Control
    logs: Path
    room: Room
    step: int = 0
    loss: float | None = None
    mapper: MemoryMapper | None = None
    """Maps the steps' memory, if somebody asked for that."""

    def train(self) -> str | None:
        """Go on to the last step; returns why it stopped before, if it did.

        Raises:
            PorosNonFiniteError: The step was not made; the last checkpoint is as it was.
            PorosStorageError: Checkpoints can't be written.
            StopNow: It was told to end at once.
        """
        self.model.train()
        stopped = None
        while self.step < self.pace.total_steps:
            request = self._poll()
            if request.checkpoint and self.step:
                self.checkpoints.save(self.step)
            if request.stop is not None:
                stopped = request.stop
                break
            if self.control.is_paused:  # a checkpoint was all that was asked for
                continue
            self.emit(self._make_step())
            if self._evaluates():
                self.evaluate(self.step)
            if self.step % self.pace.save_steps == 0:
                self.checkpoints.save(self.step, final=self.step == self.pace.total_steps)
        if self.step:
            self.checkpoints.save(self.step, final=True)
        return stopped

    def _poll(self) -> Request:
        """The orders; a pause is a phase of its own and counts for no step."""
        waits = self.control.is_paused
        with phase_events("pause", self.emit) if waits else contextlib.nullcontext():
            return self.control.poll()

    def _evaluates(self) -> bool:
        every = self.pace.eval_steps
        return self.step == self.pace.total_steps or bool(every and self.step % every == 0)

    def _make_step(self) -> StepFinished:
        epoch = self.batches.cursor["epoch"]
        micro_batches = self.batches.next_step()
        step = self.step + 1
        rate = self.pace.learning_rate_at(step)
        failpoints.hit("train.step")
        self.meter.restart()
        try:
            with self.mapper.step(step) if self.mapper else contextlib.nullcontext():
                result = train_step(
                    self.model,
                    self.params,
                    self.optimizer,
                    micro_batches,
                    device=self.device,
                    learning_rate=rate,
                    max_grad_norm=self.pace.max_grad_norm,
                    autocast_dtype=self.pace.autocast_dtype,
                    between=self.control.check,
                    make_room=self.room.maker(step, micro_batches, self._pass),
                )
        except PorosNonFiniteError as error:
            dump = self._dump(step, micro_batches)
            error.where = f"step {step}, {error.where}, batch in {dump}"
            raise
        failpoints.hit("train.after_step")
        self.step, self.loss = step, result.loss
        return StepFinished(
            step=step,
            epoch=epoch,
            loss=result.loss,
            grad_norm=result.grad_norm,
            learning_rate=rate,
            num_tokens=result.num_tokens,
            num_label_tokens=result.num_label_tokens,
            **self.meter.take(),
        )

    def _pass(self, batch: Batch) -> None:
        """Forward and backward of a batch for the memory that they take; changes nothing."""
        try:
            loss_of(self.model, batch, self.device, 1, self.pace.autocast_dtype).backward()
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def _dump(self, step: int, micro_batches: list[Batch]) -> Path:
        """Put the batch that went wrong into the logs."""
        tensors: dict[str, Tensor] = {}
        for index, batch in enumerate(micro_batches):
            named = batch.model_inputs(torch.device("cpu")) | {"labels": batch.labels_BT}
            tensors |= {f"{index}.{name}": tensor.contiguous() for name, tensor in named.items()}
        path = self.logs / f"non-finite-step-{step:06d}.safetensors"
        write_tensors(tensors, path)
        return path
