"""Claim C's arm: another process continues from the streamed arm's checkpoint.

`python -m poros.measure.resume_arm PLAN_FOLDER OUTPUT`, after the streamed arm has ended.
"""

from __future__ import annotations

from typing import TextIO

import torch

from poros.measure.plan import Cell, Plan
from poros.measure.records import ArmRecord, Recorder
from poros.measure.streamed_arm import finish, open_streamed, run_cells, run_step
from poros.training.checkpoint import load_checkpoint, verify


def resume_cell(plan: Plan, cell: Cell, file: TextIO | None) -> ArmRecord | None:
    """The steps after the checkpoint; nothing for a cell that wrote none."""
    if cell.resume_at is None:
        return None
    folder = plan.checkpoint(cell)
    state = verify(folder)
    streamed = open_streamed(plan, cell, torch.device(plan.device), adapter=folder)
    load_checkpoint(
        folder, params=streamed.params, optimizer=streamed.optimizer, device=streamed.device
    )
    first = state.cursor["position"]
    recorder = Recorder(cell.name, file, step=first + 1)
    for step in range(first, cell.num_steps):
        run_step(plan, cell, streamed, step, recorder)
    return finish(streamed, recorder, cell.num_steps - first)


if __name__ == "__main__":
    run_cells(resume_cell)
