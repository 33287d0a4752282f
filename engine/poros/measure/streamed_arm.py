"""The product's arm of the parity gate, as a process: `python -m poros.measure.streamed_arm`.

It reads the plan that the reference reads, makes the same steps through loader, streaming,
adapters and `train_step`, and writes the same lines, with proof that it streamed.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

import psutil
import torch
from safetensors import safe_open
from torch import Tensor

from poros.data.batches import Batch
from poros.loading.base_model import BaseModel, load_base_model, place_ends
from poros.measure.arm_measurements import measurements, memory_mapper, peak_rss_bytes
from poros.measure.cell_files import open_checkpoint, silent
from poros.measure.floors import floors
from poros.measure.live_arm import open_prepared
from poros.measure.plan import Cell, Plan, read_plan
from poros.measure.records import ArmRecord, Recorder
from poros.measure.running_out import running_out, to_the_smallest
from poros.measure.streamed_cell import StreamedCell
from poros.memory_plan import MemoryPlan
from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import boundaries_of
from poros.streaming.shortage import MakeRoom
from poros.training.checkpoint import TrainerState, save_checkpoint
from poros.training.determinism import enforce_determinism
from poros.training.host_adamw import HostAdamW, make_planned_optimizer, travelling_adapters
from poros.training.host_ends import HostEnds, take_ends
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora, trainable_params
from poros.training.memory_map import MemoryMapper
from poros.training.optimizer import Params
from poros.training.streamed_head import StreamedHead
from poros.training.train_step import train_step

RECOMPILE_LIMIT = 4096
"""Each layer is compiled by itself; dynamo's own limit would leave most of them eager."""

UNTIMED_STEPS = 2


def set_up(plan: Plan) -> torch.device:
    """Put the process into the state that the reference is in."""
    device = torch.device(plan.device)
    enforce_determinism(device)
    torch.set_num_threads(plan.num_threads)
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = RECOMPILE_LIMIT
    if plan.cap_bytes is not None:
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(plan.cap_bytes / total_bytes)
    return device


def open_streamed(
    plan: Plan, cell: Cell, device: torch.device, *, adapter: Path | None = None
) -> StreamedCell:
    """Load the cell's base and adapter (or another one) through the product; attach the ring."""
    if cell.prepared:
        return _open_live(plan, cell, device)
    base = load_base_model(
        open_checkpoint(Path(cell.streamed_folder or cell.base_folder)),
        device=device,
        quantization=cell.precision,
        dtype=getattr(torch, cell.dtype),
        layers_per_block=cell.block_size,
        attn_implementation=cell.attn_implementation,
        emit=silent,
        host_tier=cell.host_tier,
    )
    ends = take_ends(base, memory_plan_of(cell), device)
    place_ends(base, device, without=ends.paths)
    model = attach_lora(
        base,
        adapter_path=adapter or plan.folder / cell.adapter,
        dtype=getattr(torch, cell.adapter_dtype),
        on_host=cell.adapters_on_host,
    )
    model.config.use_cache = cell.use_cache
    model.train()
    if cell.compile:
        for layer in base.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False)
    manager = make_ring(base, cell, device)
    params = trainable_params(model)
    optimizer = cell_optimizer(base, params, cell, device)
    attachment = attach_ring(base, manager, cell, device, travelling=travelling_adapters(optimizer))
    head = attach_head(base, ends, manager, cell)
    return StreamedCell(
        base=base,
        plan=memory_plan_of(cell),
        device=device,
        model=model,
        ends=ends,
        manager=manager,
        attachment=attachment,
        head=head,
        params=params,
        optimizer=optimizer,
        accumulation=cell.accumulation,
    )


def _open_live(plan: Plan, cell: Cell, device: torch.device) -> StreamedCell:
    base, model, prepared = open_prepared(plan, cell, device)
    params = trainable_params(model)
    return StreamedCell(
        base=base,
        plan=memory_plan_of(cell),
        device=device,
        model=model,
        ends=HostEnds(device),
        manager=prepared.manager,
        attachment=prepared.attachment,
        head=None,
        params=params,
        optimizer=cell_optimizer(base, params, cell, device),
        accumulation=cell.accumulation,
    )


def memory_plan_of(cell: Cell) -> MemoryPlan:
    """What the cell has on the host."""
    return MemoryPlan(**{f.name: getattr(cell, f.name) for f in fields(MemoryPlan)})


def cell_optimizer(base: BaseModel, params: Params, cell: Cell, device: torch.device) -> HostAdamW:
    """The product's optimizer, with its state where the cell has it."""
    return make_planned_optimizer(
        memory_plan_of(cell),
        params,
        base.layers,
        layers_per_block=cell.block_size,
        weight_decay=cell.weight_decay,
        device=device,
    )


def make_ring(base: BaseModel, cell: Cell, device: torch.device) -> BlockManager:
    """The cell's ring, and the places of its resident blocks."""
    return BlockManager(
        base.blocks,
        device=device,
        num_slots=cell.num_slots,
        prefetch=cell.prefetch,
        resident=cell.resident,
    )


def attach_ring(
    base: BaseModel, manager: BlockManager, cell: Cell, device: torch.device, **options: Any
) -> Attachment:
    """Attach the streamed forwards as the trainer does; `options` override, for mutants."""
    settings: dict[str, Any] = {
        "device": device,
        "layers_per_block": cell.block_size,
        "drop": is_kv_cache,
        "preserve_rng": cell.preserve_rng,
        "rules": SideRules(
            per_layer_input=base.architecture.per_layer_input,
            shared_states=base.architecture.shared_states,
        ),
        "model": base.model,
        "boundaries": boundaries_of(memory_plan_of(cell), manager, device),
    }
    return attach(base.layers, manager, **settings | options)


def attach_head(
    base: BaseModel, ends: HostEnds, manager: BlockManager, cell: Cell
) -> StreamedHead | None:
    """Stream the cell's head as the trainer does."""
    head = ends.attach(
        base.model,
        manager,
        prefetch=cell.prefetch and cell.head_prefetch,
        emit=silent,
        num_chunk_rows=cell.loss_chunk_rows,
    )
    assert cell.head_on_host == (head is not None), ends.why_resident
    return head


def read_batches(plan: Plan, cell: Cell, step: int) -> list[Batch]:
    """The micro-batches of a step."""
    batches = []
    with safe_open(plan.folder / cell.batches, "pt") as file:
        keys = set(file.keys())
        for micro_batch in range(cell.accumulation):
            head = f"{step}.{micro_batch}."

            def get(name: str, head: str = head) -> Tensor | None:
                return file.get_tensor(head + name) if head + name in keys else None

            ids_BT, labels_BT = get("input_ids"), get("labels")
            assert ids_BT is not None
            assert labels_BT is not None
            sample_ids = tuple(range(len(ids_BT)))
            mask, position_ids_BT = get("attention_mask"), get("position_ids")
            batches.append(Batch(ids_BT, labels_BT, mask, position_ids_BT, sample_ids))
    return batches


def make_step(
    streamed: StreamedCell,
    batches: Sequence[Batch],
    cell: Cell,
    learning_rate: float,
    observe: Any = None,
    make_room: MakeRoom | None = None,
) -> dict[str, Any]:
    """One step through the product's own function; its values for the record."""
    result = train_step(
        streamed.model,
        streamed.params,
        streamed.optimizer,
        list(batches),
        device=streamed.device,
        learning_rate=learning_rate,
        max_grad_norm=cell.max_grad_norm,
        autocast_dtype=getattr(torch, cell.autocast) if cell.autocast else None,
        observe=observe,
        make_room=make_room,
    )
    return {"loss": result.loss, "grad_norm": result.grad_norm}


def run_cell(plan: Plan, cell: Cell, file: TextIO | None) -> ArmRecord:
    """All steps of a cell: the recorded ones, then those that are only timed."""
    process = psutil.Process()
    before = {"rss_before_loading_bytes": process.memory_info().rss}
    streamed = open_streamed(plan, cell, torch.device(plan.device))
    before |= {
        "rss_after_loading_bytes": process.memory_info().rss,
        "rss_peak_of_loading_bytes": peak_rss_bytes(),
        "ready_after_s": time.time() - process.create_time(),
    }
    recorder = Recorder(cell.name, file, dump=plan.dump)
    for name, parameter in streamed.params:
        recorder.note(f"adapter.{name}", parameter)
    recorder.end_step()
    torch.manual_seed(cell.seed)
    mapper = memory_mapper(plan, cell, streamed) if plan.memory_map else None
    for step in range(cell.num_steps):
        with mapper.step(step + 1) if mapper else contextlib.nullcontext():
            run_step(plan, cell, streamed, step, recorder)
        if step + 1 == cell.resume_at:
            save_for_resume(plan, cell, streamed)
    step_s = []
    for step in range(cell.num_timing_steps):
        started_s = time.perf_counter()
        run_step(plan, cell, streamed, step % cell.num_steps, None)
        step_s.append(time.perf_counter() - started_s)
    num_tokens = sum(batch.num_tokens for batch in read_batches(plan, cell, 0))
    num_steps = cell.num_steps + cell.num_timing_steps
    return finish(streamed, recorder, num_steps, step_s, num_tokens, mapper, **before)


def run_step(
    plan: Plan,
    cell: Cell,
    streamed: StreamedCell,
    step: int,
    recorder: Recorder | None,
) -> None:
    """One step of the plan, recorded or not."""
    batches = read_batches(plan, cell, step)
    observe = recorder.note if recorder else None
    rate, make_room = cell.learning_rates[step], None
    with contextlib.ExitStack() as stack:
        if step == cell.runs_out_at:
            stack.enter_context(running_out(streamed.base.layers, streamed.accumulation))
            make_room = to_the_smallest(streamed, cell, step)
        values = make_step(streamed, batches, cell, rate, observe, make_room)
    if recorder:
        recorder.end_step(**values)


def save_for_resume(plan: Plan, cell: Cell, streamed: StreamedCell) -> Path:
    """Write the product's checkpoint of this step, which another process continues."""
    assert cell.resume_at is not None
    folder = plan.checkpoint(cell)
    folder.parent.mkdir(exist_ok=True)
    state = TrainerState(
        run_id="parity",
        step=cell.resume_at,
        cursor={"epoch": 0, "position": cell.resume_at},
        events_bytes=0,
        loss=None,
        exact=True,
        inputs={},
    )
    save_checkpoint(
        folder,
        model=streamed.model,
        params=streamed.params,
        optimizer=streamed.optimizer,
        device=streamed.device,
        state=state,
    )
    return folder


def finish(
    streamed: StreamedCell,
    recorder: Recorder,
    num_steps: int,
    step_s: Sequence[float] = (),
    tokens_per_step: int = 0,
    mapper: MemoryMapper | None = None,
    **before: float,
) -> ArmRecord:
    """Close a cell's record with the proof that it streamed and with what was measured."""
    num_passes = num_steps * streamed.accumulation
    measured = before | measurements(streamed, num_passes)
    if mapper is not None and streamed.device.type == "cuda":
        # It begins the allocator's count anew at each step.
        for key, peak_bytes in (
            ("peak_allocated_bytes", mapper.peak_bytes),
            ("peak_reserved_bytes", mapper.peak_reserved_bytes),
        ):
            measured[key] = max(measured[key], peak_bytes)
    if step_s:
        measured |= floors(
            streamed.base,
            device=streamed.device,
            copied_bytes_per_step=streamed.manager.copied_bytes / num_steps,
            tokens_per_step=tokens_per_step,
        )
    shown = streamed.proof(num_steps)
    return recorder.end(streaming_proof=shown, step_s=list(step_s[UNTIMED_STEPS:]), **measured)


def main() -> None:
    """Run the chosen cells of a plan."""
    run_cells(run_cell)


def run_cells(run: Callable[[Plan, Cell, TextIO], object]) -> None:
    """Read the command line and run each chosen cell, its lines going to the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cells", default="")
    options = parser.parse_args()
    plan = read_plan(options.plan)
    set_up(plan)
    chosen = options.cells.split(",") if options.cells else [cell.name for cell in plan.cells]
    with options.output.open("w", encoding="utf-8") as file:
        for cell in plan.cells:
            if cell.name in chosen:
                run(plan, cell, file)


if __name__ == "__main__":
    main()
