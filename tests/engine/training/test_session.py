"""Runs from a config to an adapter, stopped and resumed, refused and failed."""

import json
import math
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from poros import events, failpoints
from poros.config import PorosConfig
from poros.errors import (
    PorosConfigError,
    PorosDataError,
    PorosDeviceLostError,
    PorosHostMemoryError,
    PorosNonFiniteError,
    PorosOOMError,
    PorosOutputError,
    PorosResumeError,
    PorosStorageError,
)
from poros.event_log import read_events
from poros.run_folder import read_run
from poros.run_registry import known_runs
from poros.training import trainer as trainer_module
from poros.training.checkpoint import verify
from poros.training.session import Session
from tests.engine.training.tiny_run import results_of, tiny_settings, write_rows


@pytest.fixture
def settings(chat_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    failpoints.reset()
    yield tiny_settings(chat_folder, tmp_path)
    torch.use_deterministic_algorithms(False)


def train(settings, *, session_of=Session, **changes):
    """The run's events, as listeners see them."""
    seen = []
    config = PorosConfig(**(settings | changes))
    session = session_of(config, listeners=[lambda event, line: seen.append(event)])
    session.run()
    return seen


def stop_after(step):
    """A session that is asked to stop once ``step`` steps are done."""

    def make(config, *, listeners):
        session = Session(config, listeners=listeners)

        def listen(event, line):
            if isinstance(event, events.StepFinished) and event.step == step:
                session.control.stop("test")

        session._listeners.append(listen)
        return session

    return make


def kinds(seen, kind):
    return [event for event in seen if isinstance(event, kind)]


def out(settings) -> Path:
    return Path(settings["output_dir"])


def test_a_run_leaves_its_adapter_events_and_two_checkpoints(settings):
    seen = train(settings, eval_dataset=settings["dataset"], samples=("why?",), sample_tokens=3)
    folder = out(settings)
    assert [e.step for e in kinds(seen, events.StepFinished)] == [1, 2, 3, 4, 5, 6]
    assert [e.step for e in kinds(seen, events.EvaluationFinished)] == [0, 6]
    assert [e.stage for e in kinds(seen, events.SampleGenerated)] == ["before", "after"]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [
        "step-000004",
        "step-000006",
    ]
    assert verify(folder / "adapter").step == 6
    finished = seen[-1]
    assert isinstance(finished, events.RunFinished)
    assert (finished.status, finished.exit_code) == ("finished", 0)
    assert finished.adapter_path == str(folder / "adapter")
    assert list(read_events(folder / "events.jsonl")) == seen


def test_a_run_is_remembered_and_one_that_never_began_is_not(settings, tmp_path, monkeypatch):
    with pytest.raises(PorosDataError):
        train(settings, dataset=str(tmp_path / "no.jsonl"))
    assert known_runs() == []
    monkeypatch.setattr(trainer_module, "train_step", Mock(side_effect=MemoryError))
    for _ in range(2):
        with pytest.raises(PorosHostMemoryError):
            train(settings)
        assert [(run.path, run.gone) for run in known_runs()] == [(out(settings), False)]


def test_a_stopped_and_resumed_run_has_the_bits_of_an_uninterrupted_one(settings, tmp_path):
    train(settings)
    whole = results_of(out(settings))
    settings["output_dir"] = str(tmp_path / "again")
    for step, budget in ((1, "min"), (3, "auto"), (4, "min")):
        seen = train(settings, session_of=stop_after(step), vram_budget=budget)
        assert seen[-1].status == "stopped"
        assert seen[-1].checkpoint_path.endswith(f"step-{step:06d}")
    # What is declared invariant may change on the way.
    train(settings, block_size=2, num_slots=3, enable_prefetch=False, save_steps=3)
    assert results_of(out(settings)) == whole


def test_the_smallest_budget_moves_trained_state_over_the_link_too(settings):
    copied = []
    for budget in ("auto", "min"):
        folder = settings["output_dir"] + budget
        seen = train(settings, output_dir=folder, vram_budget=budget, max_steps=2)
        copied.append([event.copied_bytes for event in kinds(seen, events.StepFinished)])
    # Moments go both ways in each step, weights and sums of gradients home at least.
    num_params = kinds(seen, events.ModelLoaded)[0].num_trainable_params
    assert all(least - auto >= 6 * 4 * num_params for auto, least in zip(*copied, strict=True))


def test_events_of_a_resumed_run_have_no_gap_and_no_double(settings):
    train(settings, session_of=stop_after(3))
    path = out(settings) / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'{"event": "step_fin')
    train(settings)
    steps = [e.step for e in kinds(read_events(path), events.StepFinished)]
    assert steps == [1, 2, 3, 4, 5, 6]
    numbers = [json.loads(line)["seq"] for line in path.read_text().splitlines()]
    assert numbers == list(range(len(numbers)))


def test_a_finished_run_started_again_trains_nothing(settings):
    train(settings)
    before = results_of(out(settings))
    log = (out(settings) / "events.jsonl").read_bytes()
    seen = train(settings)
    assert kinds(seen, events.StepFinished) == kinds(seen, events.ModelLoaded) == []
    assert (seen[-1].already, seen[-1].step, seen[-1].exit_code) == (True, 6, 0)
    assert seen[-1].final_loss in before["steps"][-1]
    assert results_of(out(settings)) == before
    assert (out(settings) / "events.jsonl").read_bytes() == log


def test_a_run_whose_end_was_cut_off_is_ended_when_started_again(settings, tmp_path):
    train(settings, max_steps=2)
    before = results_of(out(settings))
    for lost in ("the adapter", "the last event"):
        folder = shutil.copytree(out(settings), tmp_path / lost)
        path = folder / "events.jsonl"
        if lost == "the adapter":
            shutil.rmtree(folder / "adapter")
        else:
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
        seen = train(settings, max_steps=2, output_dir=str(folder))
        assert not seen[-1].already
        assert results_of(folder) == before
        assert list(read_events(path))[-1] == seen[-1]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"learning_rate": 2e-3}, "learning_rate: 0.001 -> 0.002"),
        ({"seed": 1}, "seed: 42 -> 1"),
        ({"max_steps": 7}, "total_steps: 6 -> 7"),
        ({"lora_dropout": 0.5}, "lora_dropout"),
        ({"cpu_threads": 2}, "cpu threads: 1 -> 2"),
    ],
)
def test_a_change_of_numbers_is_refused_and_leaves_the_run_as_it_is(settings, change, named):
    train(settings, session_of=stop_after(2))
    files = {
        p: p.read_bytes() for p in out(settings).rglob("*") if p.is_file() and p.name != "lock"
    }
    try:
        with pytest.raises(PorosResumeError, match=named) as caught:
            train(settings, **change)
    finally:
        torch.set_num_threads(1)
    assert caught.value.exit_code == 6
    assert all(path.read_bytes() == content for path, content in files.items())


def test_changed_data_are_refused_and_an_inexact_run_is_marked_for_ever(settings):
    train(settings, session_of=stop_after(2))
    write_rows(Path(settings["dataset"]), num_rows=21)
    with pytest.raises(PorosResumeError, match="dataset sha256"):
        train(settings)
    train(settings, allow_inexact_resume=True, session_of=stop_after(3))
    assert read_run(out(settings))["exact"] is False
    train(settings)
    assert verify(out(settings) / "adapter").exact is False
    assert read_run(out(settings))["exact"] is False


def test_a_constant_rate_may_be_trained_on(settings):
    settings["lr_scheduler"] = "constant"
    train(settings, max_steps=2)
    train(settings)
    lengthened = results_of(out(settings))
    settings["output_dir"] += "-2"
    train(settings)
    assert results_of(out(settings)) == lengthened


def test_another_run_or_resume_never_does_not_touch_the_folder(settings, tmp_path):
    train(settings, session_of=stop_after(2))
    other = str(write_rows(tmp_path / "other.jsonl"))
    with pytest.raises(PorosOutputError, match=r"other dataset.*out-2"):
        train(settings, dataset=other)
    with pytest.raises(PorosOutputError, match=r"never.*out-2"):
        train(settings, resume="never")


def test_an_explicit_checkpoint_starts_a_new_folder(settings, tmp_path):
    train(settings)
    whole = results_of(out(settings))
    checkpoint = out(settings) / "checkpoints" / "step-000004"
    train(settings, output_dir=str(tmp_path / "new"), resume=str(checkpoint))
    new = results_of(tmp_path / "new")
    assert new.pop("steps") == whole.pop("steps")[4:]
    assert new == whole


def test_an_older_checkpoint_of_the_run_sets_the_newer_ones_aside(settings):
    train(settings)
    whole = results_of(out(settings))
    checkpoints = out(settings) / "checkpoints"
    train(settings, resume=str(checkpoints / "step-000004"))
    assert results_of(out(settings)) == whole
    assert sorted(path.name for path in checkpoints.iterdir()) == [
        "set-aside-step-000006",
        "step-000004",
        "step-000006",
    ]


def test_auto_skips_a_damaged_checkpoint_with_a_warning(settings):
    train(settings)
    whole = results_of(out(settings))
    (out(settings) / "checkpoints/step-000006/adapter_config.json").write_text("{}")
    seen = train(settings)
    assert [e.code for e in kinds(seen, events.Warned)] == ["W-checkpoint-skipped"]
    assert [e.step for e in kinds(seen, events.StepFinished)] == [5, 6]
    assert results_of(out(settings)) == whole


def test_bad_input_leaves_no_folder_and_no_run_in_the_list(settings, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n{"prompt"\n')
    with pytest.raises(PorosDataError, match=r"bad\.jsonl:2"):
        train(settings, dataset=str(bad))
    with pytest.raises(PorosConfigError, match="128 positions"):
        train(settings, max_seq_length=256)
    assert not out(settings).exists()
    assert known_runs() == []


def test_one_full_disk_is_survived_and_three_in_a_row_end_the_run(settings, monkeypatch):
    monkeypatch.setenv(failpoints.VARIABLE, "checkpoint.tensors:enospc@1")
    seen = train(settings)
    [failed] = kinds(seen, events.CheckpointFailed)
    assert (failed.step, failed.needed_bytes > 0, failed.free_bytes > 0) == (2, True, True)
    assert [e.step for e in kinds(seen, events.CheckpointSaved)] == [4, 6]
    failpoints.reset()
    monkeypatch.setenv(failpoints.VARIABLE, "checkpoint.tensors:enospc@2+")
    settings["output_dir"] += "-2"
    with pytest.raises(PorosStorageError, match="disk full") as caught:
        train(settings, save_steps=1)
    assert caught.value.exit_code == 8
    found = list(read_events(out(settings) / "events.jsonl"))
    assert [e.step for e in kinds(found, events.CheckpointFailed)] == [2, 3, 4]
    assert isinstance(found[-1], events.RunFailed)
    assert [p.name for p in (out(settings) / "checkpoints").iterdir()] == ["step-000001"]


def test_the_final_save_must_succeed(settings, monkeypatch):
    monkeypatch.setenv(failpoints.VARIABLE, "checkpoint.begin:enospc")
    with pytest.raises(PorosStorageError):
        train(settings, save_steps=100)


def test_a_non_finite_loss_keeps_the_last_checkpoint_and_dumps_the_batch(settings, monkeypatch):
    real = trainer_module.train_step

    def poisoned(model, params, *arguments, **named):
        if named["learning_rate"] and poisoned.step == 3:
            with torch.no_grad():
                params[0][1].fill_(math.nan)
        poisoned.step += 1
        return real(model, params, *arguments, **named)

    poisoned.step = 1
    monkeypatch.setattr(trainer_module, "train_step", poisoned)
    with pytest.raises(PorosNonFiniteError, match=r"step 3, samples \d+") as caught:
        train(settings)
    assert caught.value.exit_code == 12
    assert (out(settings) / "logs/non-finite-step-000003.safetensors").exists()
    assert [p.name for p in (out(settings) / "checkpoints").iterdir()] == ["step-000002"]
    last = list(read_events(out(settings) / "events.jsonl"))[-1]
    assert (last.type, last.exit_code) == ("PorosNonFiniteError", 12)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), PorosOOMError),
        (torch.AcceleratorError("CUDA error: device-side assert"), PorosDeviceLostError),
        (MemoryError(), PorosHostMemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), PorosHostMemoryError),
    ],
)
def test_memory_and_device_failures_are_recorded_with_their_codes(
    settings, monkeypatch, error, kind
):
    monkeypatch.setattr(trainer_module, "train_step", Mock(side_effect=error))
    with pytest.raises(kind):
        train(settings)
    last = list(read_events(out(settings) / "events.jsonl"))[-1]
    assert (last.type, last.exit_code) == (kind.__name__, kind.exit_code)
    # None was saved, so none may be promised.
    assert "nothing was saved yet" in last.remediation
    assert "checkpoint" not in last.remediation


def test_a_pause_waits_and_a_checkpoint_can_be_asked_for(settings):
    saved = threading.Event()

    def make(config, *, listeners):
        session = Session(config, listeners=listeners)

        def listen(event, line):
            if isinstance(event, events.StepFinished) and event.step == 3:
                session.control.pause()
                session.control.checkpoint()
            if isinstance(event, events.CheckpointSaved) and event.step == 3:
                saved.set()
                threading.Timer(0.2, session.control.resume).start()

        session._listeners.append(listen)
        return session

    train(settings, session_of=make)
    assert saved.is_set()


def test_a_full_small_disk_keeps_the_checkpoints_that_fit(settings, tmp_path, small_disk):
    settings["output_dir"] = str(small_disk / "out")
    with pytest.raises(PorosStorageError, match="disk full"):
        train(settings, save_steps=1, lora_rank=16)
    checkpoints = small_disk / "out" / "checkpoints"
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names
    assert all(verify(checkpoints / name).step for name in names)


@pytest.fixture
def small_disk(tmp_path):
    """1 MB of tmpfs; where mounting is not allowed, a folder that failpoints fill."""
    import subprocess

    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    monkeypatch = pytest.MonkeyPatch()
    if not mounted:
        monkeypatch.setenv(failpoints.VARIABLE, "checkpoint.tensors:enospc@2+")
    yield place
    monkeypatch.undo()
    if mounted:
        subprocess.run(["umount", str(place)], check=True)
    shutil.rmtree(place, ignore_errors=True)


def test_a_run_that_is_asked_to_map_its_memory_writes_and_tells_it(settings, tmp_path):
    def mapped(config, *, listeners):
        return Session(config, listeners=listeners, memory_map=True)

    plain = train(settings)
    seen = train(settings | {"output_dir": str(tmp_path / "mapped")}, session_of=mapped)
    [told] = kinds(seen, events.MemoryMapped)
    record = json.loads((tmp_path / "mapped" / "memory_map.json").read_text())
    assert record["host"] == told.host_bytes
    assert set(told.host_bytes) == {"blocks"}
    assert told.device_bytes["slots of the ring"] > 0
    assert told.device_bytes["moments"] > 1.9 * told.device_bytes["adapters"]
    assert not told.activations_seen
    assert not kinds(plain, events.MemoryMapped)
    assert results_of(tmp_path / "out") == results_of(tmp_path / "mapped")
