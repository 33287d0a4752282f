import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poros import events
from poros_tui.engine import run_log, run_state
from poros_tui.engine.run_pace import pace_of, phase_left_s
from poros_tui.engine.run_state import RunState
from poros_tui.engine.smoothing import smoothed
from poros_tui.engine.step_table import StepTable
from tests.tui import made_runs

RECORDINGS = Path(__file__).parent / "recordings"


def folded(lines):
    run = RunState()
    run.take_lines(lines)
    return run


def recording(name):
    return folded((RECORDINGS / f"{name}.jsonl").read_text().splitlines())


@pytest.fixture
def going():
    return made_runs.trained(412)


def test_a_real_run_is_told_from_its_first_phase_to_its_end():
    run = recording("demo")
    assert (run.status, run.step, run.total_steps) == ("finished", 40, 40)
    assert [p.name for p in run.start_phases][:4] == ["inputs", "tokenise", "hash", "device"]
    assert all(phase.duration_s is not None for phase in run.start_phases)
    assert [found.step for found in run.evals] == [0, 40]
    assert run.steps["loss"][0] > 4 > run.steps["loss"][-1] > 2
    assert run.finished.adapter_path == "poros_demo/adapter"
    answer = run.answers["Why is grass green?"]
    assert answer.before.startswith("Grass is often")
    assert answer.now.startswith("Aye")
    assert run.num_bad_lines == 0


def test_a_real_resumed_run_goes_on_where_its_checkpoint_was():
    run = recording("resumed")
    assert (run.status, run.first_step, run.step) == ("finished", 4, 20)
    assert run.steps["step"].tolist() == list(range(1, 21))
    assert run.num_steps_here == 16
    assert run.started.pid == 15497


def test_the_second_process_of_a_run_shows_its_own_start():
    lines = (RECORDINGS / "resumed.jsonl").read_text().splitlines()
    again = next(i for i, line in enumerate(lines) if '"resumed_from_step": 4' in line)
    run = folded(lines[: again - 3])
    assert run.status == "starting"
    assert [phase.name for phase in run.start_phases] == ["tokenise"]
    assert len(run.steps) == 4


def test_what_comes_after_a_checkpoint_goes_when_the_run_resumes_there(going):
    again = made_runs.begun(1_200, resumed_from=200)
    run = folded(going.lines + again.lines)
    assert run.steps["step"][-1] == 200
    assert [found.step for found in run.evals] == [100, 200]
    assert pace_of(run).left_s is None


def test_time_left_counts_only_steps_since_the_resume(going):
    made = made_runs.begun(1_200, resumed_from=400)
    made.lines[:0] = going.lines
    slow, draw = 50.0, random.Random(5)
    for step in range(401, 405):
        event = made_runs.step_event(step, 1_200, draw)
        made.tell(replace(event, duration_s=slow), slow)
    pace = pace_of(folded(made.lines))
    assert pace.step_s == pytest.approx(slow)
    assert pace.left_s == pytest.approx(796 * slow)


def test_a_pause_is_no_part_of_the_pace():
    made, draw = made_runs.begun(), random.Random(2)
    for step in range(1, 21):
        if step == 10:
            made.tell(events.CommandAcknowledged(command="pause", detail="waiting"))
            made.tell(events.PhaseStarted(phase="pause"))
            made.tell(made_runs.heartbeat(9, "pause"), 5_000)
            assert folded(made.lines).status == "paused"
            made.tell(events.CommandAcknowledged(command="resume", detail=""))
            made.tell(events.PhaseFinished(phase="pause", duration_s=5_000))
        event = made_runs.step_event(step, 1_200, draw)
        made.tell(event, event.duration_s)
    run = folded(made.lines)
    assert run.status == "training"
    assert run.overhead_s < 1
    assert pace_of(run).left_s == pytest.approx(1_180 * 5.7, rel=0.05)


def test_evaluations_count_into_the_time_left(going):
    run = folded(going.lines)
    pace = pace_of(run)
    assert run.overhead_s == pytest.approx(4 * 9 + 2 * 1.1 + 412 * 0.02, rel=0.05)
    assert pace.left_s > 788 * pace.step_s


def test_rates_are_those_of_the_newest_steps(going):
    pace = pace_of(folded(going.lines))
    assert pace.tokens_per_s == pytest.approx(16_384 / 5.7, rel=0.05)
    assert pace.link_bytes_per_s == pytest.approx(24.1e9, rel=0.01)
    assert pace.waiting_share == pytest.approx(0.03)


def test_torn_and_garbled_lines_are_counted_and_passed_over(going):
    good = going.lines
    torn = [good[5][:40], "{}", "null", "[1]", '{"event": "step_finished", "time_s": 1}', ""]
    run = folded([*good[:50], *torn, *good[50:]])
    assert run.num_bad_lines == len(torn)
    assert run.step == 412


def test_an_event_of_a_later_version_is_no_bad_line():
    line = '{"event": "moon_rose", "v": 9, "seq": 0, "time_s": 5.0, "phase": "full"}'
    run = folded([line])
    assert (run.num_bad_lines, run.status) == (0, "waiting")


def test_a_loss_that_is_no_number_stays_one(going):
    event = made_runs.step_event(413, 1_200, random.Random(0))
    going.tell(replace(event, loss=math.nan))
    run = folded(going.lines)
    assert math.isnan(run.steps["loss"][-1])
    assert run.step == 413


def test_a_failed_run_keeps_its_reason(going):
    failed = events.RunFailed(
        step=412, type="PorosOOMError", code="E-device-memory", message="out of memory",
        where="step 413, backward", remediation="set vram_budget: min (same bits)", exit_code=10,
    )  # fmt: skip
    going.tell(failed)
    run = folded(going.lines)
    assert (run.status, run.failed) == ("failed", failed)
    assert run.log[-1].level == run_log.ERROR
    assert "vram_budget: min" in run.log[-1].text


def test_a_smaller_plan_shows_fewer_blocks_that_stay(going):
    shrunk = events.PlanShrunk(
        step=412, phase="backward", change="4 blocks stay instead of 8",
        plan={"resident": [5, 11, 17, 23], "num_slots": 2, "head_on_host": False},
        asked_bytes=1, in_use_bytes=2, cap_bytes=3,
    )  # fmt: skip
    going.tell(shrunk)
    run = folded(going.lines)
    assert run.plan.resident == [5, 11, 17, 23]
    assert run.shrinks[-1].change == "4 blocks stay instead of 8"


def test_the_phase_that_goes_on_is_the_innermost():
    made = made_runs.begun()
    run = folded(made.lines[:3])
    assert run.phase.name == "tokenise"
    run = folded(made.lines[:4])
    assert run.phase.name == "inputs"


def test_a_phase_says_how_long_it_will_go_on():
    run = RunState()
    run.take(events.PhaseStarted(phase="quantise"), 100.0)
    assert phase_left_s(run.phase, 105.0) is None
    run.take(events.PhaseProgressed(phase="quantise", done=5, total=20, unit="layers"), 110.0)
    assert phase_left_s(run.phase, 110.0) == pytest.approx(30.0)
    assert phase_left_s(run.phase, 112.0) == pytest.approx(28.0)


def test_every_kind_of_event_is_folded_or_left_out_on_purpose():
    on_purpose = {events.Warned, events.MemoryMapped}
    folds = set(run_state._FOLDS)
    assert folds | on_purpose == set(events._EVENT_TYPES.values())
    assert not folds & on_purpose


def test_steps_stay_in_bounds_and_keep_their_spikes():
    table, draw = StepTable(max_rows=1_024), random.Random(1)
    for step in range(1, 20_001):
        event = made_runs.step_event(step, 20_000, draw)
        if step == 3_333:
            event = replace(event, loss=99.0)
        table.add(event)
    assert len(table) <= 1_024
    assert table.num_steps == 20_000
    assert table["loss"].max() == 99.0
    assert (np.diff(table["step"]) > 0).all()
    assert table.last("trained_tokens") == pytest.approx(20_000 * 16_384, rel=0.01)


def test_a_held_column_does_not_change_when_the_run_goes_back(going):
    run = folded(going.lines)
    held = run.steps["loss"]
    before = held.copy()
    run.take_lines(made_runs.begun(1_200, resumed_from=100).lines)
    run.take(made_runs.step_event(101, 1_200, random.Random(9)), 1.0)
    assert (held == before).all()


@pytest.mark.parametrize("weight", [0.0, 0.6, 0.98])
def test_smoothing_is_the_decaying_mean_of_what_is_finite(weight):
    draw = np.random.default_rng(3)
    values = draw.normal(size=500)
    values[[0, 7, 300]] = math.nan
    sums = num = 0.0
    expected = []
    for value in values:
        sums, num = sums * weight, num * weight
        if math.isfinite(value):
            sums, num = sums + value, num + 1
        expected.append(sums / num if num else math.nan)
    if weight == 0:
        expected = values
    np.testing.assert_allclose(smoothed(values, weight), expected, rtol=1e-9)
