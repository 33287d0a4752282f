"""Random scripts of keys and sizes against a run that goes on: no traceback, no lost run."""

import asyncio
import contextlib
import random
import sys
import time

import psutil
import pytest
from textual import events
from textual.geometry import Size

from poros_tui import state
from poros_tui.app import PorosApp
from poros_tui.engine import process
from poros_tui.engine.run_list import RunList
from poros_tui.settings import Settings
from poros_tui.widgets import waiting
from tests.tui import storms
from tests.tui.live_run import LIMIT_S, LiveRun, keep_below
from tests.tui.pilot import StandingWatch
from tests.tui.pty_bench import Terminal
from tests.tui.recorded import RecordedTask, answers

STUB = (sys.executable, "-m", "tests.tui.engine.stub_engine")
IN_A_ROW = 20
"""Scripts of one app: the next one meets what the one before has left."""
NUM_IN_PROCESS, NUM_ON_TERMINAL = 400, 100
NUM_STEPS = 10


def refused(words, **_):
    """What a command says that finds no network."""
    error = {"message": "the Hub can't be reached", "remediation": "look at the network"}
    record = {"error": error | {"code": "E-hub", "exit_code": 4}}
    return RecordedTask(words, [record], exit_code=4, stderr=["poros: error[E-hub]: no network"])


def recorded_commands():
    """What children say, as it was recorded."""
    from tests.tui.scenes import data, doctor, model

    def data_said(words):
        said = data.recorded("data-voice") if "-m" in words else data.raw()
        return RecordedTask(words, [said])

    return answers(
        {
            "doctor": lambda words: RecordedTask(words, doctor.GOOD),
            "models --json": lambda words: RecordedTask(words, [model.suggested()]),
            "models --hub": refused,
            "demo": refused,
            "check no": refused,
            "check": lambda words: RecordedTask(words, [model.report()]),
            "data no": refused,
            "data": data_said,
            "report": lambda words: RecordedTask(words, [{"path": "report.html"}]),
        }
    )


def app_of_run(run, home):
    app = PorosApp(
        state.AppState(
            model=str(home / "model"), data=str(home / "data.jsonl"),
            config_path=run.config, run_folder=run.folder,
        ),
        Settings(), watch=StandingWatch(), run_list=RunList([home]),
    )  # fmt: skip
    app.make_task = recorded_commands()
    return app


async def stormed(app, seeds, num_steps=NUM_STEPS):
    """Let scripts rage in an app of this process; how many of them it outlived."""
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.pause()
        for number, seed in enumerate(seeds, 1):
            app.go(random.Random(seed).choice(list(app.MODES)))
            for step in storms.script(seed, num_steps):
                send(app, step)
                await asyncio.sleep(step.wait_s)
                if has_left(app):
                    return number
            if not await comes_to_rest(app, pilot):
                return number
        app.exit(0)
    return len(seeds)


def send(app, step):
    """As the driver of a terminal does."""
    for key in step.keys:
        app.post_message(events.Key(key, key if len(key) == 1 else {"space": " "}.get(key)))
    if step.paste:
        app.post_message(events.Paste(step.paste))
    if step.size:
        size = Size(*step.size)
        app._driver._size = size
        app.post_message(events.Resize(size, size))
    if step.click and Size(*app.size).contains(*step.click):
        for kind in (events.MouseDown, events.MouseUp):
            app.post_message(kind(None, *step.click, 0, 0, 1, False, False, False, *step.click))


def has_left(app):
    return not app.is_running or app._exit


async def comes_to_rest(app, pilot):
    """It answers still: dialogs close, and a number key goes to its screen; whether it is there."""
    send(app, storms.Step(size=(80, 24)))
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        if has_left(app):  # a key that waited for its turn
            return False
        if app.current_mode == "home" and len(app.screen_stack) == 1:
            return True
        send(app, storms.Step(keys=("escape", "1")))
        await pilot.pause(0.05)
    raise AssertionError(f"it is stuck at {app.screen_stack}, focus {app.focused}")


def stormed_terminal(screen, seeds):
    """Let scripts rage in an app on a terminal; how many of them it outlived."""
    for number, seed in enumerate(seeds, 1):
        for step in storms.script(seed, NUM_STEPS):
            if step.size:
                screen.resize(*step.size)
            with contextlib.suppress(OSError):  # it has just left
                screen.press(storms.bytes_of(step))
            screen.read(0.005)
            time.sleep(step.wait_s)
        screen.resize(80, 24)
        if not screen.comes_to_rest():
            return number
    return len(seeds)


class Stormed(Terminal):
    """A terminal whose app may leave."""

    def comes_to_rest(self):
        """It shows Home again, or has left: whether it is there."""
        until_s = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < until_s, "it is stuck at\n" + "\n".join(self.screen())
            self.press("\x1b")
            self.read(0.3)
            self.press("1")
            self.read(0.3)
            if any("Start the guided setup" in line for line in self.screen()):
                return True
        return False

    def leave(self, but):
        """The app and what it began are gone, but for the run."""
        began = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for child in began:
            if child.pid != but:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("storms")
    with pytest.MonkeyPatch.context() as patch:
        keep_below(path, patch.setenv)
        patch.chdir(path)
        patch.setattr(waiting, "Task", refused)
        yield path


@pytest.fixture
def stub_run(home, monkeypatch):
    """A run of an engine without a trainer."""
    monkeypatch.setattr(process, "PROGRAM", STUB)
    (home / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    settings = {"dataset": "data.jsonl", "output_dir": str(home / "run"), "max_steps": 10**6}
    with LiveRun.at_work(home / "train.yaml", settings) as run:
        yield run


def test_scripts_of_keys_and_sizes_harm_neither_app_nor_run(home, stub_run):
    app = app_of_run(stub_run, home)
    asyncio.run(stormed(app, range(2), 8))
    stub_run.judge()


@pytest.fixture(scope="module")
def real_run(home):
    """A run of the real engine on a tiny model."""
    from tests.engine.training.tiny_run import tiny_settings, write_chat_model

    settings = tiny_settings(write_chat_model(home / "model"), home)
    settings |= {"max_steps": 10**6, "save_steps": 10**6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POROS_FAILPOINT", "train.step:sleep=0.2")  # leave the processor to the app
        with LiveRun.at_work(home / "train.yaml", settings) as run:
            yield run


@pytest.mark.long
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("first", range(0, NUM_IN_PROCESS, IN_A_ROW))
def test_scripts_harm_neither_app_nor_the_real_run(first, home, real_run):
    seeds = list(range(first, first + IN_A_ROW))
    while seeds:
        del seeds[: asyncio.run(stormed(app_of_run(real_run, home), seeds))]
        real_run.judge()


@pytest.mark.long
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("first", range(1_000, 1_000 + NUM_ON_TERMINAL, IN_A_ROW))
def test_scripts_on_a_terminal_harm_neither_app_nor_run(first, home, real_run):
    seeds = list(range(first, first + IN_A_ROW))
    while seeds:
        with Stormed(["attach", str(real_run.folder)], home=home) as screen:
            screen.until_shown("6 Train")
            num_outlived = stormed_terminal(screen, seeds)
            if screen.process.poll() is None:
                screen.leave(but=real_run.engine.pid)
            else:
                assert screen.ended() == 0, f"{seeds[:num_outlived]}: {crash_of(home)}"
                assert screen.is_restored
        assert "Traceback" not in (home / "state" / "poros" / "app.log").read_text()
        assert not crash_of(home)
        del seeds[:num_outlived]
        real_run.judge()


def crash_of(home):
    """What the crash files say, the latest last."""
    return "\n".join(path.read_text() for path in sorted((home / "cache" / "logs").glob("*")))
