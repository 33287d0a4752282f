"""What earlier runs measured: kept, read back, used with care, and never trusted when damaged."""

from __future__ import annotations

import dataclasses
import json

import pytest

from poros.memory_plan import MemoryPlan
from poros.plan_history import (
    MOST_RUNS,
    About,
    Measured,
    corrected,
    keep_run,
    keep_shortage,
    key_of,
    read_runs,
    run_of,
    runs_about,
)

PLAN = MemoryPlan(resident=(1, 3))
RUN = Measured(
    plan=PLAN, estimated_bytes=100, peak_bytes=90, reserved_bytes=95, step_s=0.5, whole=True
)
SHORT = dataclasses.replace(RUN, peak_bytes=130, step_s=0.0, whole=False, ran_out=True)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    return tmp_path


def changed(**fields) -> Measured:
    return dataclasses.replace(RUN, **fields)


def test_runs_come_back_and_a_later_one_of_the_same_plan_takes_the_place() -> None:
    other = changed(plan=MemoryPlan(num_slots=3))
    for run in (RUN, other, changed(peak_bytes=91)):
        keep_run("k", run)
    assert read_runs("k") == [other, changed(peak_bytes=91)]
    assert read_runs("another") == []
    assert run_of(PLAN, read_runs("k")) == changed(peak_bytes=91)
    assert run_of(MemoryPlan(), read_runs("k")) is None


def test_a_plan_that_ran_out_is_kept_unless_one_of_it_had_as_high_a_peak() -> None:
    keep_shortage("k", SHORT)
    assert read_runs("k") == [SHORT]
    assert run_of(PLAN, read_runs("k")) is None
    keep_run("k", RUN)
    keep_shortage("k", dataclasses.replace(SHORT, peak_bytes=90))
    assert read_runs("k") == [RUN]
    keep_shortage("k", SHORT)
    assert read_runs("k") == [SHORT]


def test_only_the_latest_runs_are_kept() -> None:
    for number in range(MOST_RUNS + 4):
        keep_run("k", changed(plan=MemoryPlan(num_slots=2 + number)))
    assert [run.plan.num_slots for run in read_runs("k")][:: MOST_RUNS - 1] == [6, MOST_RUNS + 5]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", '{"version": 1}', '{"version": 9, "runs": []}',
        '{"version": 1, "runs": [7]}', '{"version": 1, "runs": {"a": 1}}', "[" * 100_000,
        '{"version": 1, "runs": [{"plan": {}}]}', "\x00",
    ],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_written_anew(cache, text) -> None:
    keep_run("k", RUN)
    (file,) = (cache / "plans").iterdir()
    file.write_text(text)
    assert read_runs("k") == []
    keep_run("k", RUN)
    assert read_runs("k") == [RUN]


@pytest.mark.parametrize(
    ("field", "value"),
    [("peak_bytes", -1), ("peak_bytes", "9"), ("step_s", "NaN"), ("reserved_bytes", 1e300)],
)
def test_values_that_mean_nothing_are_ignored(cache, field, value) -> None:
    keep_run("k", RUN)
    (file,) = (cache / "plans").iterdir()
    record = json.loads(file.read_text())
    record["runs"][0][field] = value
    file.write_text(json.dumps(record))
    assert read_runs("k") == []


def test_runs_are_found_by_model_and_card_by_those_who_know_no_key(cache) -> None:
    about = About(model="m", card="c", num_rows=512, rank=16)
    keep_run("k", RUN, about)
    keep_shortage("k", dataclasses.replace(SHORT, plan=MemoryPlan()))  # keeps what it is about
    keep_run("l", RUN, dataclasses.replace(about, card="another"))
    keep_run("older", RUN)
    (cache / "plans" / "broken.json").write_text('{"about": {"model": 3}}')
    (cache / "plans" / "odd.json").write_text(
        '{"about": {"model": "m", "card": "c", "num_rows": "512", "rank": 16}}'
    )
    found = runs_about({"m", "/folder/of/m"}, {"c"})
    assert [(of, run.ran_out) for of, run in found] == [(about, False), (about, True)]
    assert runs_about({"n"}, {"c"}) == []


def test_a_cache_that_cannot_be_written_stops_nothing(cache) -> None:
    (cache / "plans").write_text("a file where the folder would be")
    keep_run("k", RUN)
    assert read_runs("k") == []


@pytest.mark.parametrize(
    ("plan", "runs", "expected"),
    [
        (PLAN, [], 100),
        (PLAN, [RUN], 90),
        (PLAN, [changed(whole=False)], 100),
        (PLAN, [changed(peak_bytes=120, whole=False)], 120),
        (MemoryPlan(), [RUN], 90),
        (MemoryPlan(), [changed(whole=False)], 100),
        (MemoryPlan(), [changed(peak_bytes=130, whole=False)], 130),
        (MemoryPlan(head_on_host=True), [RUN], 100),
        (PLAN, [changed(peak_bytes=130, whole=False, ran_out=True)], 130),
        (MemoryPlan(), [changed(peak_bytes=130, whole=False, ran_out=True)], 130),
        (MemoryPlan(), [changed(peak_bytes=70, whole=False, ran_out=True)], 100),
        (MemoryPlan(), [SHORT, changed(plan=MemoryPlan(num_slots=3))], 130),
        (MemoryPlan(num_slots=3), [SHORT, changed(plan=MemoryPlan(num_slots=3))], 90),
    ],
)
def test_a_peak_is_corrected_by_what_was_seen_and_lowered_only_by_whole_runs(
    plan, runs, expected
) -> None:
    assert corrected(plan, 100, runs) == expected


def test_any_other_fact_is_another_key() -> None:
    assert key_of({"model": "a", "card": "b"}) == key_of({"card": "b", "model": "a"})
    assert key_of({"model": "a", "card": "b"}) != key_of({"model": "a", "card": "c"})
