"""The Result screen: what a run's folder tells, samples, the talk, export and report."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input, Static

from poros.events import (
    Event,
    ModelLoaded,
    RunFinished,
    RunStarted,
    SampleGenerated,
    StepFinished,
    to_line,
)
from poros_tui.app import PorosApp
from poros_tui.engine.tasks import Result
from poros_tui.screens import result_told
from poros_tui.screens.config_preview import PathDialog
from poros_tui.screens.result import ResultScreen
from poros_tui.screens.result_chat import ChatPane
from poros_tui.screens.result_facts import ADAPTER_FILE, Asked, OutcomeReader, read_outcome
from poros_tui.screens.result_jobs import Job, Told, exported
from tests.tui.pilot import footer, piloted
from tests.tui.result_fixtures import (
    END,
    FAILED,
    FINISHED,
    result_app,
    said,
    shown,
    talks,
    until,
    write_run,
)


def told_events(folder: Path) -> list[str]:
    events: list[Event] = [
        RunStarted(run_id="ab12cd34ef", pid=1, output_dir=str(folder), model="m", device="cpu",
                   total_steps=2, resumed_from_step=None, versions={}),
        ModelLoaded(model_type="llama", num_blocks=2, block_bytes=[1, 1], num_slots=2, slot_bytes=1,
                    host_bytes=2, resident_bytes=1, num_trainable_params=1, num_adapter_tensors=1,
                    load_device_peak_bytes=0, from_cache=False),
        SampleGenerated(step=0, stage="before", prompt="Who?", text="A model."),
        *(StepFinished(step=k, epoch=0, loss=3.0 / k, grad_norm=1.0, learning_rate=1e-4,
                       num_tokens=10, num_label_tokens=5, duration_s=1.0, copied_bytes=10,
                       copy_wait_s=0.0, device_peak_bytes=0, device_reserved_bytes=0,
                       host_rss_bytes=10**9) for k in (1, 2)),
        SampleGenerated(step=2, stage="after", prompt="Who?", text="Aye, the keeper."),
        RunFinished(status="finished", step=2, final_loss=1.5, adapter_path=str(folder / "adapter"),
                    checkpoint_path=None, duration_s=3.0, peak_vram_allocated_bytes=0,
                    peak_vram_reserved_bytes=0, exit_code=0),
    ]  # fmt: skip
    return [to_line(event, seq=seq, time_s=1.8e9 + seq) for seq, event in enumerate(events)]


def finished_run(folder: Path) -> Path:
    write_run(folder, told_events(folder), model="org/m", dataset="d.jsonl")
    (folder / "adapter").mkdir()
    (folder / "adapter" / ADAPTER_FILE).write_bytes(b"x" * 1000)
    return folder


def test_an_outcome_is_read_from_the_runs_folder(tmp_path: Path) -> None:
    found = read_outcome(finished_run(tmp_path / "run"))
    assert found.state == "finished"
    assert [(each.prompt, each.before, each.after) for each in found.asked] == [
        ("Who?", "A model.", "Aye, the keeper.")
    ]
    assert (found.adapter, found.is_final) == (tmp_path / "run" / "adapter", True)
    assert found.adapter_bytes == 1000
    assert ("steps", "2", "of 2") in found.tiles
    assert any(str(found.adapter) in line for line in found.load_lines)
    assert "no run" in read_outcome(tmp_path / "nowhere").error


ODD = [5, "x", None, [1], [[1]], {"a": 5}, {"a": None}, [{"a": [1]}]]


def test_an_outcome_is_read_whatever_the_events_hold(tmp_path: Path) -> None:
    folder = finished_run(tmp_path / "run")
    file = folder / "events.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    firsts = {line["event"]: number for number, line in reversed(list(enumerate(lines)))}
    for number in firsts.values():
        line = lines[number]
        for changed in [line | {key: value} for key in line for value in ODD]:
            told = [*lines[:number], changed, *lines[number + 1 :]]
            file.write_text("".join(json.dumps(each) + "\n" for each in told))
            found = read_outcome(folder)  # raises nothing
            assert found.state or found.error, changed


def test_a_run_that_grows_is_read_again_and_a_checkpoint_serves_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lines = told_events(folder)
    write_run(folder, lines[:-1], model="org/m")
    step = folder / "checkpoints" / "step-000002"
    step.mkdir(parents=True)
    (step / ADAPTER_FILE).write_bytes(b"x")
    reader = OutcomeReader()

    def until(state: str) -> None:
        for _ in range(2000):
            reader.follow(folder)
            if reader.latest is not None and reader.latest.state == state:
                return
            time.sleep(0.01)
        raise AssertionError(reader.latest)

    until("killed")
    assert reader.latest is not None
    assert (reader.latest.adapter, reader.latest.is_final) == (step, False)
    (folder / "events.jsonl").write_text("".join(lines))
    until("finished")
    reader.follow(None)
    assert reader.latest is None


def result(size: tuple[int, int] = (100, 30)) -> Any:
    return piloted(mode="result", size=size, make=result_app)


def text_of(screen: ResultScreen, id: str) -> str:
    return str(screen.query_one(f"#{id}", Static).content)


@result(size=(80, 24))
async def test_small_windows_show_one_pane_by_its_letter(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    for key, name in (("b", "samples"), ("u", "use"), ("c", "talk"), ("escape,o", "overview")):
        await pilot.press(*key.split(","))
        visible = [n for n in ("overview", "samples", "talk", "use") if
                   screen.query_one(f"#{n}").region.area]  # fmt: skip
        assert visible == [name]


@result()
async def test_samples_are_leafed_through(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    assert "Why do ships carry" in text_of(screen, "sample")
    await pilot.press("right")
    assert "What is fog?" in text_of(screen, "sample")
    await pilot.press("n")
    assert "1 of 2" in text_of(screen, "sample")
    await pilot.press("p")
    assert "2 of 2" in text_of(screen, "sample")


@result()
async def test_an_answer_without_a_word_is_told(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    talks(screen, [*said(""), END], [*said("", "base"), *said("Aye."), END])
    await pilot.press("c", "W", "enter")
    await until(app, pilot, lambda: len(screen.query(".said")) == 2)
    await until(app, pilot, lambda: "ready for the next" in text_of(screen, "talk-state"))
    await pilot.press("x", "enter")
    await until(app, pilot, lambda: len(screen.query(".said")) == 5)
    assert [str(one.content) for one in screen.query(".said").results(Static)] == [
        "W", "(nothing)", "x", "untrained: (nothing)", "Aye.",
    ]  # fmt: skip


@result((80, 24))
async def test_the_last_line_names_the_pane_that_enter_shows(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    named = []
    for key in ("o", "b", "u"):
        await pilot.press(key)
        await app.tick()
        await pilot.pause()
        named.append(footer(app)["onward"])
    assert named == ["Next: Samples", "Next: Chat", "Next: Export"]
    screen.exporting.told = Told("ok", "written")
    await app.tick()
    await pilot.pause()
    assert "onward" not in footer(app)


@pytest.mark.parametrize("size", [(80, 24), (100, 30)])
def test_enter_leads_neither_to_a_talk_nor_to_an_export_without_an_adapter(
    size: tuple[int, int],
) -> None:
    @result(size)
    async def run(app: PorosApp, pilot: Any) -> None:
        screen = await shown(app, pilot, replace(FAILED, adapter=None))
        named = []
        for _ in range(5):
            await pilot.press("enter")
            await app.tick()
            await pilot.pause()
            named.append(footer(app).get("onward", ""))
        assert named == (["Next: Use it", *[""] * 4] if size == (80, 24) else [""] * 5)
        assert app.screen is screen
        assert not screen.has_class("-talk")

    run()


@result()
async def test_a_question_is_answered_word_by_word(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    talker = talks(screen, [*said("Aye, the keeper."), END], said("Half an"))
    await pilot.press("c", "W", "h", "o", "enter")
    await until(app, pilot, lambda: "ready for the next" in text_of(screen, "talk-state"))
    assert talker.sent == [{"say": "Who", "compare": False}]
    assert [str(one.content) for one in screen.query(".said").results(Static)] == [
        "Who", "Aye, the keeper.",
    ]  # fmt: skip
    assert footer(app)["back"] == "Leave field"
    await pilot.press("ctrl+t", "x", "enter")
    await until(app, pilot, lambda: {"say": "x", "compare": True} in talker.sent)
    await until(app, pilot, lambda: footer(app).get("back") == "Stop")
    await pilot.press("escape")
    await until(app, pilot, lambda: {"stop": True} in talker.sent)
    assert app.focused is screen.query_one("#question", Input)
    await pilot.press("escape")  # it does not stop at once
    await until(app, pilot, lambda: app.focused is None)
    await pilot.press("c")
    talker._waiting.append(END | {"stopped": True})
    await until(app, pilot, lambda: "stopped" in text_of(screen, "talk-state"))
    await pilot.press("ctrl+n")
    await until(app, pilot, lambda: not screen.query(".said"))
    assert talker.sent[-1] == {"reset": True}
    await pilot.press("escape")
    await until(app, pilot, lambda: app.focused is None)


@result()
async def test_what_cannot_be_loaded_is_told(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    refusal = {"event": "failed", "message": "the base is not here", "remediation": "download it"}
    talker = talks(screen, [refusal])
    await pilot.press("c", "a", "enter")
    told = "the base is not here: download it"
    await until(app, pilot, lambda: told in text_of(screen, "talk-state"))
    talker.result = Result("done", 5, (), ("poros: error[E-hub]: offline -> connect",))
    talker.done = True
    await until(app, pilot, lambda: "offline" in text_of(screen, "talk-state"))
    assert not screen.query_one(ChatPane).is_answering


@result()
async def test_another_run_ends_the_talk(app: PorosApp, pilot: Any) -> None:
    screen = await shown(app, pilot)
    talker = talks(screen, [*said("Aye."), END])
    await pilot.press("c", "a", "enter")
    await until(app, pilot, lambda: bool(talker.sent))
    screen.query_one(ChatPane).use(Path("/elsewhere"))
    assert talker.hung_up


class Finished:
    """A command that has ended."""

    done, elapsed_s = True, 3.0

    def __init__(self, arguments: Any, result: Result) -> None:
        self.arguments, self.result = arguments, result

    def cancel(self) -> None:
        """It is over."""


@result()
async def test_export_and_report_are_commands_whose_answer_is_told(
    app: PorosApp, pilot: Any
) -> None:
    screen = await shown(app, pilot)
    started: list[list[str]] = []
    logits = [{"same_next_token": True}] * 3
    answers = {
        "export": {"output": "/x/merged", "num_bytes": 269e6, "logits": logits},
        "report": {"path": "/x/report.html"},
    }

    def start(arguments: Any) -> Finished:
        started.append(list(arguments))
        return Finished(arguments, Result("done", 0, (answers[arguments[0]],), ()))

    screen.exporting._start = screen.reporting._start = start
    await pilot.press("e")
    assert isinstance(app.screen, PathDialog)
    assert app.screen.query_one(Input).value == "/home/ada/poros_demo-merged"
    await pilot.press("enter")
    await until(app, pilot, lambda: "/x/merged" in text_of(screen, "use-text"))
    await pilot.press("h")
    await until(app, pilot, lambda: "report.html" in text_of(screen, "use-text"))
    told = text_of(screen, "use-text")
    assert started[0] == ["export", "/home/ada/poros_demo", "-o", "/home/ada/poros_demo-merged",
                          "--json"]  # fmt: skip
    assert "0.3 GB in /x/merged; the same next word in 3 of 3 prompts" in told
    assert "/x/report.html" in told


def test_a_job_that_fails_says_why_and_a_check_that_differs_warns() -> None:
    error = Result("done", 8, (), ("poros: error[E-storage]: the disk is full -> free some",))
    job = Job("merging", exported, lambda arguments: Finished(arguments, error))
    job.start(["export"])
    assert job.is_running
    assert job.tick()
    assert job.told is not None
    assert (job.told.kind, job.told.text) == ("error", "the disk is full -> free some")
    checks = [{"same_next_token": True}, {"same_next_token": False}]
    assert exported({"output": "o", "num_bytes": 1e9, "logits": checks}).kind == "warn"


@result()
async def test_a_failed_run_says_so_and_its_checkpoint_can_be_used(
    app: PorosApp, pilot: Any
) -> None:
    screen = await shown(app, pilot, FAILED)
    assert "lower learning_rate" in text_of(screen, "overview-text")
    assert "last checkpoint" in text_of(screen, "use-text")
    assert "samples" in text_of(screen, "sample")
    asked = (Asked("Who?", "A model."),)
    assert "after  (not yet)" in result_told.sample(replace(FAILED, asked=asked), 0).plain
    assert "after  (nothing)" in result_told.sample(replace(FINISHED, asked=asked), 0).plain
    assert "lower loss" not in text_of(screen, "overview-text")
    assert "train" not in app.state.done
    screen.reader.latest = FINISHED
    await app.tick()
    assert "lower loss is better; the held-out" in text_of(screen, "overview-text")


def test_the_talkers_lines_are_those_that_the_engine_writes() -> None:
    engine = Path(__file__).parents[2] / "engine/poros/answering/chat_lines.py"
    written = engine.read_text("utf-8")
    for event in ("phase", "ready", "text", "answered", "turn_finished", "refused", "failed"):
        assert json.dumps(event) in written


@result()
async def test_a_text_whose_room_was_forgotten_gets_it_with_the_next_tick(
    app: PorosApp, pilot: Any
) -> None:
    screen = await shown(app, pilot)
    text = screen.query_one("#overview-text", Static)
    before = text.size.height
    update, texts = text.update, ["one\n" * (before + 3)]
    text.update = lambda content: update(texts[0], layout=False)  # type: ignore[method-assign, misc]
    screen._show()
    await pilot.pause()
    await app.tick()
    await pilot.pause()
    assert text.size.height > before
