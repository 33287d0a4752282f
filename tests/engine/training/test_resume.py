"""Which checkpoint a start goes on from, without training."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from poros import atomic
from poros.errors import PorosResumeError
from poros.run_folder import RunFolder
from poros.training.checkpoint import FORMAT, MANIFEST, STATE, TrainerState
from poros.training.resume import (
    checkpoint_name,
    find_resume_point,
    list_checkpoints,
    oldest_to_remove,
    set_aside_newer,
)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "out", "ours")
    folder.checkpoints.mkdir(parents=True)
    return folder


def write(run: RunFolder, step: int, run_id: str = "ours") -> Path:
    state = TrainerState(run_id, step, {"epoch": 0, "position": 0}, 0, None, True, {})
    final = run.checkpoints / checkpoint_name(step)
    about = {"format": FORMAT, "run_id": run_id, "step": step}
    with atomic.atomic_dir(final, manifest=MANIFEST, about=about) as temp:
        (temp / STATE).mkdir()
        (temp / STATE / "trainer.json").write_text(json.dumps(asdict(state)) + "\n")
    return final


def found_step(run: RunFolder, setting: str = "auto") -> tuple[int | None, int]:
    warnings: list[object] = []
    point = find_resume_point(run, setting, warnings.append)
    return (None if point is None else point.state.step), len(warnings)


def test_the_newest_by_number_is_taken_and_never_starts_anew(run):
    assert found_step(run) == (None, 0)
    for step in (1000000, 5, 10):
        write(run, step)
    assert [step for step, _ in list_checkpoints(run.checkpoints)] == [1000000, 10, 5]
    assert found_step(run) == (1000000, 0)
    assert found_step(run, "never") == (None, 0)


def test_damaged_and_foreign_checkpoints_are_skipped_with_a_warning(run):
    write(run, 5)
    write(run, 10, run_id="theirs")
    shutil.rmtree(write(run, 15) / STATE)
    (run.checkpoints / "step-000020").symlink_to(run.checkpoints / "step-000005")
    write(run, 25).rename(run.checkpoints / "step-000030")
    assert found_step(run) == (5, 4)


def test_when_none_can_be_used_the_start_is_refused(run):
    (write(run, 5) / MANIFEST).write_text("{}")
    with pytest.raises(PorosResumeError, match=r"manifest\.json"):
        found_step(run)


def test_a_named_checkpoint_must_be_there_and_of_this_run(run, tmp_path):
    write(run, 5)
    foreign = write(run, 10, run_id="theirs")
    with pytest.raises(PorosResumeError, match="of another run"):
        found_step(run, str(foreign))
    elsewhere = foreign.rename(tmp_path / "step-000010")
    with pytest.raises(PorosResumeError, match="of another run"):
        found_step(run, str(elsewhere))
    with pytest.raises(PorosResumeError, match="no such checkpoint"):
        found_step(run, str(tmp_path / "nowhere"))
    shutil.rmtree(run.checkpoints / "step-000005")
    assert found_step(run, str(elsewhere)) == (10, 0)


def test_passed_over_checkpoints_are_renamed_and_old_ones_go_by_number(run):
    for step in (5, 10, 15):
        write(run, step)
    assert [path.name for path in oldest_to_remove(run.checkpoints, 2)] == ["step-000005"]
    point = find_resume_point(run, str(run.checkpoints / "step-000005"), lambda event: None)
    assert point is not None
    set_aside_newer(run, point)
    assert [step for step, _ in list_checkpoints(run.checkpoints)] == [5]
    assert len(list(run.checkpoints.glob("set-aside-*"))) == 2
