"""A trainer made from a config: model on the ring, adapter, optimizer, data, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from poros.config import PorosConfig
from poros.control import Control
from poros.data.batches import StepBatches
from poros.data.given import GivenBatches
from poros.event_log import EventLog
from poros.events import Event, ModelLoaded
from poros.loading.base_model import BaseModel, Meanwhile
from poros.loading.phases import phase_events
from poros.loading.text_part import TextPart
from poros.memory_plan import MemoryPlan
from poros.run_folder import RunFolder
from poros.training.batching import num_total_steps
from poros.training.checkpoint import (
    TrainerState,
    load_checkpoint,
    needed_bytes,
    save_checkpoint,
)
from poros.training.checkpoint_keeper import CheckpointKeeper
from poros.training.determinism import seed_all
from poros.training.host_adamw import make_planned_optimizer, travelling_adapters
from poros.training.inputs import Inputs
from poros.training.looks import Looks
from poros.training.lora import trainable_params
from poros.training.memory_map import MemoryMapper, mapped_parts
from poros.training.optimizer import learning_rate_at
from poros.training.placement import Placement
from poros.training.planning import PlanWatch, longest_rows, plan_run
from poros.training.rates import link_rate
from poros.training.resume import ResumePoint
from poros.training.room import Room
from poros.training.streamed_model import load_configured, stream_model
from poros.training.telemetry import Meter
from poros.training.trainer import Pace, Trainer

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Surroundings:
    """What a run has beside its config and inputs.

    Attributes:
        run: Its folder.
        log: Its event file.
        emit: Takes its events.
        control: Its orders.
        recorded: The inputs that its checkpoints record.
        exact: Whether it was never continued under changed conditions.
    """

    run: RunFolder
    log: EventLog
    emit: Emit
    control: Control
    recorded: dict[str, Any]
    exact: bool


class Assembly:
    """The parts of one run, put together in the order in which they need each other."""

    def __init__(
        self,
        config: PorosConfig,
        inputs: Inputs,
        batches: StepBatches | GivenBatches,
        around: Surroundings,
        point: ResumePoint | None,
    ) -> None:
        """Load the base, attach adapters and ring, and take the state of ``point``."""
        self.config, self.inputs, self.around, self._point = config, inputs, around, point
        self.device = inputs.device
        self.base = self._load_base(lambda base: self._prepare(base, batches))
        self.room = self._make_room()
        self.looks = Looks(
            config,
            inputs,
            model=self.model,
            base_digest=self.base.digest,
            room=self.room,
            emit=around.emit,
            autocast_dtype=self._autocast_dtype,
        )
        self.trainer = self._make_trainer(batches)
        self._emit_loaded()
        seed_all(config.seed)
        if point is not None:
            batches.seek(point.state.cursor)
            load_checkpoint(
                point.folder, params=self.params, optimizer=self.optimizer, device=self.device
            )

    def _prepare(self, base: BaseModel, batches: StepBatches | GivenBatches) -> None:
        """Plan and attach while the blocks' bytes are still on their way."""
        self.base = base
        with phase_events("plan", self.around.emit):
            self.plan = self._make_plan(batches)
        with phase_events("attach", self.around.emit):
            self._attach()

    def _attach(self) -> None:
        """Ends, adapters and ring, then the optimizer."""
        config, point = self.config, self._point
        self.streamed = stream_model(
            self.base,
            self.plan,
            config,
            device=self.device,
            emit=self.around.emit,
            adapter=None if point is None else point.folder,
        )
        self.model = self.streamed.model
        self.params = trainable_params(self.model)
        self.optimizer = make_planned_optimizer(
            self.plan,
            self.params,
            self.base.layers,
            layers_per_block=config.layers_per_block,
            weight_decay=config.weight_decay,
            device=self.device,
        )
        self.streamed.attachment.travel(travelling_adapters(self.optimizer))

    def _make_room(self) -> Room:
        return Room(
            Placement.of(self.streamed, self.optimizer, emit=self.around.emit),
            self.config,
            self._emit_trained,
        )

    def save(self, folder: Path) -> int:
        """Write the adapter and the training state as they are now."""
        state = TrainerState(
            run_id=self.around.run.run_id,
            step=self.trainer.step,
            cursor=self.trainer.batches.cursor,
            events_bytes=self.around.log.sync(),
            loss=self.trainer.loss,
            exact=self.around.exact,
            inputs=self.around.recorded,
        )
        return save_checkpoint(
            folder,
            model=self.model,
            params=self.params,
            optimizer=self.optimizer,
            device=self.device,
            state=state,
        )

    def map_memory(self) -> None:
        """From now on, write down what lies in memory at the peak of the highest step."""
        parts = mapped_parts(
            self.base,
            model=self.model,
            params=self.params,
            optimizer=self.optimizer,
            manager=self.streamed.manager,
            device=self.device,
            attachment=self.streamed.attachment,
            ends=self.streamed.ends,
        )
        self.trainer.mapper = MemoryMapper(parts, self.around.run.memory_map, self.around.emit)

    @property
    def _autocast_dtype(self) -> torch.dtype | None:
        return torch.bfloat16 if self.config.autocast else None

    def _make_plan(self, batches: StepBatches | GivenBatches) -> MemoryPlan:
        if isinstance(batches, GivenBatches):
            num_rows = batches.most_tokens
        else:
            num_rows = longest_rows(self.config, [len(s) for s in self.inputs.train.samples])
        planned = plan_run(
            self.config,
            self.base,
            device=self.device,
            num_rows=num_rows,
            emit=self.around.emit,
        )
        self._watch = PlanWatch(
            planned, steps_per_epoch=batches.steps_per_epoch, emit=self.around.emit
        )
        return planned.plan

    def _emit_trained(self, event: Event) -> None:
        self.around.emit(event)
        self._watch.hear(event)

    def _load_base(self, meanwhile: Meanwhile) -> BaseModel:
        if self.device.type == "cuda":
            link_rate(self.device)  # now: beside the blocks' reads it would seem slower
        return load_configured(
            self.config,
            self.inputs.source,
            self.inputs.architecture,
            device=self.device,
            emit=self.around.emit,
            meanwhile=meanwhile,
        )

    def _make_trainer(self, batches: StepBatches | GivenBatches) -> Trainer:
        config, point = self.config, self._point
        total_steps = num_total_steps(config, batches)
        keeper = CheckpointKeeper(
            self.around.run.checkpoints,
            keep=config.keep_checkpoints,
            write=self.save,
            needed_bytes=needed_bytes(self.params),
            emit=self.around.emit,
            saved_step=point.state.step if point is not None and point.in_this_run else None,
        )
        pace = Pace(
            total_steps=total_steps,
            save_steps=config.save_steps,
            eval_steps=config.eval_steps,
            max_grad_norm=config.max_grad_norm,
            autocast_dtype=self._autocast_dtype,
            learning_rate_at=lambda step: learning_rate_at(
                step,
                base=config.learning_rate,
                warmup_steps=config.warmup_steps,
                total_steps=total_steps,
                schedule=config.lr_scheduler,
            ),
        )
        return Trainer(
            model=self.model,
            params=self.params,
            optimizer=self.optimizer,
            batches=batches,
            pace=pace,
            device=self.device,
            checkpoints=keeper,
            evaluate=self.looks.evaluate,
            meter=Meter(self.device, self.streamed.manager, self.optimizer),
            emit=self._emit_trained,
            control=self.around.control,
            logs=self.around.run.logs,
            room=self.room,
            step=point.state.step if point is not None else 0,
            loss=point.state.loss if point is not None else None,
        )

    def _emit_loaded(self) -> None:
        base, block_bytes = self.base, [block.num_bytes for block in self.base.blocks]
        source = self.inputs.source
        part = source if isinstance(source, TextPart) else None
        self.around.emit(
            ModelLoaded(
                model_type=base.architecture.model_type,
                num_blocks=len(base.blocks),
                block_bytes=block_bytes,
                num_slots=self.streamed.manager.num_slots,
                slot_bytes=self.streamed.manager.slot_bytes,
                host_bytes=sum(b.host_bytes for b in base.blocks) + self.streamed.ends.num_bytes,
                resident_bytes=base.resident_bytes - self.streamed.ends.num_bytes,
                num_trainable_params=sum(p.numel() for _, p in self.params),
                num_adapter_tensors=len(self.params),
                load_device_peak_bytes=base.load_device_peak_bytes,
                from_cache=base.from_cache,
                host_tier=base.host_tier,
                disk_bytes=sum(b.num_bytes - b.host_bytes for b in base.blocks),
                text_class=base.architecture.hf_class if part else "",
                key_mapping=part.key_mapping if part else {},
            )
        )
