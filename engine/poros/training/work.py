"""What the worker thread does, from the first file read to the adapter saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from poros.config import PorosConfig
from poros.config_load import dump_config
from poros.control import Control
from poros.event_log import EventLog
from poros.events import Event, PhaseStarted, RunStarted, Warned
from poros.loading.phases import phase_events
from poros.run_folder import RunFolder
from poros.streaming.block_manager import BlockManager
from poros.training.ahead import Ahead, start_device
from poros.training.assembly import Assembly, Surroundings
from poros.training.batching import make_batches, num_total_steps, warmup_warning
from poros.training.cap import own_limit_comes_back
from poros.training.determinism import enforce_determinism, prepare_cuda
from poros.training.inputs import Given, Inputs, choose_device, read_inputs
from poros.training.resume import ResumePoint, finished_before, set_aside_newer
from poros.training.run_inputs import compare_inputs, run_inputs, versions


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended that did not fail."""

    stopped: str | None = None
    loss: float | None = None
    adapter: Path | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    assembly: Assembly | None = None
    already: bool = False


def _nobody(manager: BlockManager) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Work:
    """One run, in one thread."""

    config: PorosConfig
    run_folder: RunFolder
    log: EventLog
    emit: Callable[[Event], None]
    control: Control
    point: ResumePoint | None
    memory_map: bool = False
    given: Given | None = None
    show: Callable[[BlockManager], None] = _nobody
    """Called with the ring as soon as it is there."""
    needs_model: bool = False

    def run(self) -> Outcome:
        """Read, load, train, save.

        Raises:
            PorosError: Something of the user's is wrong.
            StopNow: It was told to end at once.
        """
        config, point = self.config, self.point
        inputs, starting = self._read()
        batches = make_batches(config, inputs)
        if self.control.is_stopping:
            return Outcome(stopped=self.control.poll().stop)
        total_steps = num_total_steps(config, batches)
        self._wait_for(inputs, starting)
        recorded, exact = self._compared(inputs, total_steps)
        ended = finished_before(self.run_folder, point, total_steps)
        if ended is not None and not self.needs_model:
            # Its events and its checkpoints stay as they are.
            return Outcome(loss=ended.final_loss, adapter=self.run_folder.adapter, already=True)
        around = self._accept(recorded, exact=exact)
        self._start(inputs.device, total_steps)
        with own_limit_comes_back(inputs.device):
            outcome = self._train(Assembly(config, inputs, batches, around, point))
        return outcome if ended is None else replace(outcome, already=True)

    def _train(self, assembly: Assembly) -> Outcome:
        self.show(assembly.streamed.manager)
        if self.memory_map:
            assembly.map_memory()
        if self.point is None and not self.control.is_stopping:
            assembly.looks.evaluate(0)
            assembly.looks.ask("before", 0)
        self.emit(PhaseStarted(phase="train"))
        trainer = assembly.trainer
        stopped = trainer.train()
        if stopped is None:
            with phase_events("save", self.emit):
                assembly.save(self.run_folder.adapter)
            assembly.looks.ask("after", trainer.step)
        return Outcome(
            stopped=stopped,
            loss=trainer.loss,
            adapter=self.run_folder.adapter if stopped is None else None,
            peak_allocated_bytes=trainer.meter.peak_allocated_bytes,
            peak_reserved_bytes=trainer.meter.peak_reserved_bytes,
            assembly=assembly,
        )

    def _read(self) -> tuple[Inputs, Ahead]:
        """The run's inputs; the device starts beside."""
        config = self.config
        prepare_cuda()  # asking which GPU is free starts CUDA
        device = choose_device(config.device)
        enforce_determinism(device, num_threads=config.cpu_threads)
        starting = Ahead(lambda: start_device(device))
        with phase_events("inputs", self.emit):
            return read_inputs(config, device, self.emit, self.given), starting

    def _wait_for(self, inputs: Inputs, starting: Ahead) -> None:
        """What went on beside the reading is done, or fails here."""
        with phase_events("hash", self.emit):
            if inputs.hashing is not None:
                inputs.hashing.wait()
            inputs.source.digest()
        with phase_events("device", self.emit):
            starting.wait()
            start_device(inputs.device)

    def _start(self, device: torch.device, total_steps: int) -> None:
        config = self.config
        on_cuda = device.type == "cuda"
        self.emit(
            RunStarted(
                run_id=self.run_folder.run_id,
                pid=os.getpid(),
                output_dir=str(self.run_folder.path),
                model=config.model_name_or_path,
                device=f"{device} ({torch.cuda.get_device_name(device)})" if on_cuda else "cpu",
                total_steps=total_steps,
                resumed_from_step=self.point.state.step if self.point is not None else None,
                versions=versions(),
            )
        )
        if (warning := warmup_warning(config, total_steps)) is not None:
            self.emit(warning)

    def _compared(self, inputs: Inputs, total_steps: int) -> tuple[dict[str, Any], bool]:
        """What the run depends on, and whether it would go on bit for bit.

        Raises:
            PorosResumeError: It would not, and nobody asked for that.
        """
        run, point, config = self.run_folder, self.point, self.config
        recorded = run_inputs(
            config,
            device=inputs.device,
            dataset_digest=inputs.train.digest,
            template_sha256=inputs.train.report.template_sha256,
            base_digest=inputs.source.digest(),
            total_steps=total_steps,
        )
        exact = run.exact
        if point is not None:
            error = compare_inputs(point.state.inputs, recorded, where=str(point.folder))
            if error is not None and not config.allow_inexact_resume:
                raise error
            exact = exact and point.state.exact and error is None
        return recorded, exact

    def _accept(self, recorded: dict[str, Any], *, exact: bool) -> Surroundings:
        """From here on the run's folder is ours to change."""
        run, point, config = self.run_folder, self.point, self.config
        if not exact:
            message = "the run went on under changed conditions; it is marked as not exact"
            self.emit(Warned(code="W-inexact", message=message))
        run.exact = exact
        if point is not None and point.in_this_run:
            set_aside_newer(run, point)
        run.record(dump_config(config))
        self.log.release()
        return Surroundings(run, self.log, self.emit, self.control, recorded, exact)
