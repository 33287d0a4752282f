"""`poros runs`: found again, summed up, compared and removed."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest

from poros import events, run_registry, run_story, runs
from poros.config import PorosConfig
from poros.config_load import dump_config
from poros.errors import PorosConfigError, PorosOutputError
from poros.event_log import EventLog
from poros.run_folder import holding, is_held, open_run_folder
from tests.engine.command_line import poros_here


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def started(run_id: str, folder) -> events.RunStarted:
    return events.RunStarted(
        run_id=run_id, pid=1, output_dir=str(folder), model="m", device="cpu", total_steps=3,
        resumed_from_step=None, versions={"torch": "2.11"},
    )  # fmt: skip


def stepped(step: int, loss: float) -> events.StepFinished:
    fields = dict.fromkeys([f.name for f in dataclasses.fields(events.StepFinished)], 0)
    return events.StepFinished(
        **fields | {"step": step, "loss": loss, "num_tokens": 10, "duration_s": 0.5}
    )


def finished(status: str = "finished") -> events.RunFinished:
    fields = dict.fromkeys([f.name for f in dataclasses.fields(events.RunFinished)], 0)
    return events.RunFinished(**fields | {"status": status, "adapter_path": "a"})


FAILED = events.RunFailed(
    step=1, type="PorosDataError", code="E-data", message="bad row", where="x:1",
    remediation="mend it", exit_code=3,
)  # fmt: skip


def make(folder, losses=(3.0, 2.0, 1.0), end=None, **settings):
    """A run's folder as a run leaves it."""
    with open_run_folder(folder, identity={"model": "m", "dataset": "d"}) as run:
        run.record(dump_config(PorosConfig(**settings)))
        (run.checkpoints / "step-000003").mkdir()
        with EventLog(run.events_path, keep_bytes=0, held=False) as log:
            log.append(started(run.run_id, folder))
            for step, loss in enumerate(losses, 1):
                log.append(stepped(step, loss))
            log.append(finished() if end is None else end)
    run_registry.keep(run.run_id, folder)
    return runs.find_run(str(folder))


def look(folder) -> runs.Run:
    return runs.look_at(runs.find_run(str(folder)))


def test_a_run_is_found_again_and_summed_up(tmp_path):
    make(tmp_path / "a")
    [run] = runs.list_runs()
    assert (run.path, run.state) == (tmp_path / "a", "finished")
    assert runs.results(run)["loss"] == 1.0
    assert runs.results(run)["tokens_per_s"] == 20.0
    assert run.identity == {"model": "m", "dataset": "d"}


def test_runs_that_were_never_told_are_found_in_folders(tmp_path):
    known = make(tmp_path / "a")
    run_registry.forget(known.run_id)
    assert runs.list_runs() == []
    assert [run.path for run in runs.list_runs([tmp_path])] == [tmp_path / "a"]
    assert [run.path for run in runs.list_runs([tmp_path / "a"])] == [tmp_path / "a"]


@pytest.mark.parametrize(
    ("end", "state"),
    [(finished("stopped"), "stopped"), (FAILED, "failed"), (stepped(4, 1.0), "killed")],
)
def test_the_end_of_a_run(tmp_path, end, state):
    make(tmp_path / "a", end=end)
    assert look(tmp_path / "a").state == state


def test_a_failure_is_told_with_its_way_out(tmp_path):
    make(tmp_path / "a", end=FAILED)
    assert look(tmp_path / "a").story.message == "bad row -> mend it"


def test_a_run_of_another_process_is_at_work(tmp_path):
    make(tmp_path / "a")
    code = (
        "import sys, pathlib; from poros.run_folder import holding\n"
        "with holding(pathlib.Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": str(runs.Path(runs.__file__).parents[1])},
    )  # fmt: skip
    with holder:
        assert holder.stdout.readline() == "held\n"
        run = look(tmp_path / "a")
        assert run.state == "running"
        with pytest.raises(PorosOutputError, match="the run is at work") as caught:
            runs.remove_run(run)
        assert f"kill -INT {holder.pid}" in str(caught.value)
        asked = poros_here("runs", "rm", str(tmp_path / "a"))
        assert (asked.returncode, asked.stderr.count("\n")) == (7, 1)
        assert str(caught.value) in asked.stderr
        holder.stdin.close()
    assert look(tmp_path / "a").state == "finished"


def test_asking_who_holds_a_folder_takes_no_lock(tmp_path):
    make(tmp_path / "a")
    with holding(tmp_path / "a"):
        assert is_held(tmp_path / "a")
        with pytest.raises(PorosOutputError), holding(tmp_path / "a"):
            pass
    assert not is_held(tmp_path / "a")
    assert not is_held(tmp_path / "nowhere")


def test_a_deleted_run_is_gone_and_can_be_forgotten(tmp_path):
    make(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    [run] = runs.list_runs()
    assert run.state == "gone"
    with pytest.raises(PorosConfigError, match="moved or deleted"):
        runs.compare([run, run])
    assert runs.remove_run(run) == []
    assert runs.list_runs() == []


def test_a_moved_run_is_found_where_it_is_now(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert [run.state for run in runs.list_runs()] == ["gone"]
    [run] = runs.list_runs([tmp_path])
    assert (run.path, run.known.moved_from) == (tmp_path / "b", tmp_path / "a")
    assert run.state == "finished"


def test_another_run_in_its_place_is_told_apart(tmp_path):
    first = make(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    second = make(tmp_path / "a")
    states = {run.known.run_id: run.state for run in runs.list_runs()}
    assert states == {first.run_id: "gone", second.run_id: "finished"}


def test_a_run_is_named_by_its_folder_or_the_beginning_of_its_number(tmp_path):
    known = make(tmp_path / "a")
    assert runs.find_run(known.run_id[:6]).path == tmp_path / "a"
    for name in ("nonsense", known.run_id[:2]):
        with pytest.raises(PorosConfigError, match="no run is named"):
            runs.find_run(name)


def test_runs_are_compared_by_settings_results_and_losses(tmp_path):
    make(tmp_path / "a", (3.0, 2.0, 1.0), lora_rank=8)
    make(tmp_path / "b", (3.0, 2.0, 1.5), lora_rank=16)
    record = runs.compare([look(tmp_path / "a"), look(tmp_path / "b")])
    assert record["settings"] == {"lora_rank": [8, 16]}
    assert record["results"]["loss"] == [1.0, 1.5]
    assert record["same_losses_until_step"] == 2


@pytest.mark.parametrize("inner", ["", "checkpoints"])
def test_a_run_that_cannot_be_removed_keeps_its_files_and_is_said(tmp_path, monkeypatch, inner):
    make(tmp_path / "a")
    (tmp_path / "a" / "checkpoints").mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    protected = tmp_path / "a" / inner if inner else tmp_path / "a"
    monkeypatch.setattr(runs.os, "access", lambda path, mode: path != protected)
    ended = poros_here("runs", "rm", str(tmp_path / "a"), "--yes")
    assert (ended.returncode, ended.stdout) == (7, "")
    assert f"the folder can't be changed, {protected} -> mend its rights" in ended.stderr
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name != "lock"] == [
        p for p in before if p.name != "lock"
    ]


def test_files_that_do_not_go_are_an_error_and_the_run_is_not_forgotten(tmp_path, monkeypatch):
    make(tmp_path / "a")
    monkeypatch.setattr(runs.atomic, "remove", lambda path: None)
    with pytest.raises(PorosOutputError, match=r"events\.jsonl.* can't be removed"):
        runs.remove_run(look(tmp_path / "a"))
    assert len(runs.list_runs()) == 1


def test_the_same_losses_are_the_same_to_the_last_bit():
    almost = 2.0000000000000004
    assert runs.same_until([{1: 3.0, 2: 2.0}, {1: 3.0, 2: almost}]) == 1
    assert runs.same_until([{1: 3.0}, {1: 3.0, 2: 2.0}]) == 1
    assert runs.same_until([{1: 3.0}, {}]) == 0


def test_removing_a_run_leaves_what_is_not_the_runs(tmp_path):
    make(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("mine")
    assert runs.remove_run(look(tmp_path / "a")) == ["notes.txt"]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["notes.txt"]
    make(tmp_path / "b")
    EventLog(tmp_path / "b" / "events.jsonl")  # never closed, as by a run that was killed
    assert (tmp_path / "b" / "events.last").exists()
    assert runs.remove_run(look(tmp_path / "b")) == []
    assert not (tmp_path / "b").exists()
    assert runs.list_runs() == []


def test_a_damaged_line_is_passed_over(tmp_path):
    make(tmp_path / "a")
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write("{]\n[]\n{}\n")
    story = run_story.read_story(tmp_path / "a" / "events.jsonl")
    assert (story.ending, story.damaged) == ("finished", True)


def test_a_resume_begins_anew_what_it_ends_with():
    story = run_story.Story()
    lines = [started("1", "x"), stepped(1, 3.0), finished("stopped"), started("1", "x")]
    run_story.fold(story, [events.to_line(e, seq=n, time_s=n) for n, e in enumerate(lines)])
    assert (story.ending, story.step, story.last_s) == ("", 1, 3)


def test_a_damaged_registry_is_as_good_as_none(tmp_path):
    make(tmp_path / "a")
    folder = run_registry.registry_folder()
    for name, text in (("1234.json", "{"), ("5678.json", "[]"), ("9abc.json", "{}")):
        (folder / name).write_text(text)
    assert len(runs.list_runs()) == 1


def test_a_registry_that_cannot_be_written_stops_no_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run_registry.keep("abcd", tmp_path)
    assert run_registry.known_runs() == []


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # runs that lie where one is are listed too
    known = make(tmp_path / "a")
    make(tmp_path / "b", (3.0, 2.0, 1.5))
    listed = json.loads(poros_here("runs", "list", "--json").stdout)
    assert {run["path"] for run in listed} == {str(tmp_path / "a"), str(tmp_path / "b")}
    assert "finished" in poros_here("runs", "list").stdout
    shown = json.loads(poros_here("runs", "show", known.run_id, "--json").stdout)
    assert shown["losses"] == {"1": 3.0, "2": 2.0, "3": 1.0}
    assert shown["settings"]["lora_rank"] == 16
    assert "1.000000" in poros_here("runs", "show", str(tmp_path / "a")).stdout
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    assert "up to step 2" in poros_here("runs", "compare", *both).stdout


def test_nothing_is_removed_without_a_yes(tmp_path):
    make(tmp_path / "a")
    refused = poros_here("runs", "rm", str(tmp_path / "a"))
    assert (refused.returncode, "--yes" in refused.stderr) == (2, True)
    assert look(tmp_path / "a").state == "finished"
    [removed] = json.loads(poros_here("runs", "rm", str(tmp_path / "a"), "--yes", "--json").stdout)
    assert removed["path"] == str(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_all_that_are_gone_are_forgotten_at_once(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    assert poros_here("runs", "rm", "--gone").returncode == 0
    assert [run.path for run in runs.list_runs()] == [tmp_path / "b"]
