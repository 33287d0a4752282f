"""The cell whose model transformers loads and `poros.prepare` streams."""

import dataclasses

from poros.measure.cells import CPU_LEVELS
from poros.measure.live_arm import may_be_live, with_a_live_model
from poros.measure.prepare import prepare
from poros.measure.streamed_arm import run_cell


def test_one_of_the_demo_s_cells_has_a_live_model_and_no_other_task(tiny_request, tmp_path):
    request = dataclasses.replace(tiny_request, folder=str(tmp_path), levels=CPU_LEVELS)
    [cell] = [cell for cell in prepare(request).cells if cell.prepared]
    assert may_be_live(cell)
    assert (cell.resume_at, cell.runs_out_at, cell.resident) == (None, None, ())
    assert not cell.compile


def test_a_live_model_s_steps_are_the_loader_s(tiny_plan):
    cell = dataclasses.replace(tiny_plan.cells[0], num_steps=2, resume_at=None)
    loaded = run_cell(tiny_plan, cell, None)
    live = run_cell(tiny_plan, with_a_live_model(cell), None)
    assert live.end["streaming_proof"]["proved"]
    assert [step.digests for step in live.steps] == [step.digests for step in loaded.steps]
    assert len(live.steps[-1].digests) > 100
