"""The states of the screen `train` that have pictures."""

import random
from dataclasses import replace
from pathlib import Path

from poros import events
from poros_tui.app import PorosApp
from poros_tui.engine.commands import DeviceNow, LiveSample
from poros_tui.engine.process import Ending
from poros_tui.engine.run_state import RunState
from tests.tui import made_runs
from tests.tui.pilot import MACHINE, NOW, app_of
from tests.tui.scene import SIZES, Scene

GB = 10**9
RECORDINGS = Path(__file__).parents[1] / "recordings"


class TellRun:
    """A followed run without files, sockets or threads: what its lines say, standing still."""

    def __init__(
        self,
        lines: list[str],
        *,
        live: LiveSample | None = None,
        ending: Ending | None = None,
        folder: str = "/home/you/harbour-voice",
    ) -> None:
        """Told at once, and its last line is a second old."""
        self.run = RunState()
        self.run.take_lines(lines)
        later_s = NOW - 1.0 - self.run.last_s
        self.run = RunState()
        for line in lines:
            event = events.from_line(line)
            assert event is not None
            self.run.take(event, _time_of(line) + later_s)
        self.folder = Path(folder)
        self.live, self.ending = live, ending
        self.start, self.unread = None, ""
        self.process = "ended" if ending else "running"
        self.caught_up, self.is_behind, self.is_starting = True, False, False

    @property
    def is_going(self) -> bool:
        """Until its ending."""
        return self.ending is None

    def tick(self) -> None:
        """Nothing comes."""

    def watch(self, wanted: bool) -> None:
        """What it does is set already."""

    def close(self) -> None:
        """Nothing to close."""


def _time_of(line: str) -> float:
    import json

    return float(json.loads(line)["time_s"])


def app_with(run: TellRun) -> PorosApp:
    """An app that follows it."""
    used = run.live.device.used if run.live and run.live.device else MACHINE.card_used_bytes
    app = app_of(machine=replace(MACHINE, card_used_bytes=used))
    app.state.followed = run  # type: ignore[assignment]
    app.state.update(model="Qwen/Qwen2.5-7B-Instruct", data="harbour.jsonl", run_folder=run.folder)
    return app


def sample(computing: int = 15, direction: str = "backward") -> LiveSample:
    """A moment: one block computes, the one before it is there still, the next ones arrive."""
    states = ["r" if index in made_runs.RESIDENT else "." for index in range(28)]
    step = -1 if direction == "backward" else 1
    states[computing] = "c"
    ahead = [i for i in range(computing + step, -1 if step < 0 else 28, step) if states[i] == "."]
    for index, sign in zip(ahead[:2], "da", strict=False):
        states[index] = sign
    device = DeviceNow(
        used=int(8.1 * GB), total=MACHINE.card_total_bytes, allocated=int(5.9 * GB),
        reserved=int(6.6 * GB), others=int(1.5 * GB),
        celsius=64, watts=172.0, slowed=False,
    )  # fmt: skip
    return LiveSample(412, "train", "".join(states), direction, computing, int(7.4 * GB), device)


def going() -> PorosApp:
    """In the middle of it."""
    return app_with(TellRun(made_runs.trained(412).lines, live=sample()))


def beginning() -> PorosApp:
    """The model is being packed."""
    lines = made_runs.begun().lines
    end = next(i for i, line in enumerate(lines) if '"quantise"' in line) + 1
    made = made_runs.Made(now_s=_time_of(lines[end - 1]), seq=end, lines=lines[:end])
    made.tell(
        events.PhaseProgressed(phase="quantise", done=18, total=28, unit="layers"), after_s=39.0
    )
    return app_with(TellRun(made.lines))


def troubled() -> PorosApp:
    """The loss climbs, and memory ran out once."""
    made = made_runs.trained(330)
    draw = random.Random(4)
    made.tell(
        events.PlanShrunk(
            step=331, phase="backward", change="4 blocks stay instead of 8",
            plan={"resident": [5, 11, 17, 23]}, asked_bytes=GB, in_use_bytes=6 * GB,
            cap_bytes=7 * GB,
        )
    )  # fmt: skip
    for step in range(331, 413):
        event = made_runs.step_event(step, 1_200, draw)
        made.tell(replace(event, loss=event.loss * (1 + (step - 331) / 30)), event.duration_s)
    return app_with(TellRun(made.lines, live=sample(6, "forward")))


def failed_early() -> PorosApp:
    """It was killed before anything was saved."""
    ending = Ending("killed", -9, "the run was killed", "step 13", "")
    return app_with(TellRun(made_runs.trained(12).lines, ending=ending))


def failed() -> PorosApp:
    """Memory ran out, and nothing smaller is left."""
    made = made_runs.trained(412)
    remedy = "set vram_budget: min, num_slots: 2 (same bits) and run again"
    remedy += "; the last checkpoint is intact"
    message = "CUDA out of memory: everything that can be is on the host"
    made.tell(
        events.RunFailed(
            step=412, type="PorosOOMError", code="E-device-memory", message=message,
            where="step 413, backward", remediation=remedy, exit_code=10,
        )
    )  # fmt: skip
    ending = Ending("failed", 10, message, "step 413, backward", remedy, "E-device-memory")
    return app_with(TellRun(made.lines, ending=ending))


def done() -> PorosApp:
    """The demo, as it was recorded."""
    lines = (RECORDINGS / "demo.jsonl").read_text().splitlines()
    run = TellRun(lines, ending=Ending("finished", 0, "finished"), folder="/home/you/poros_demo")
    return app_with(run)


SCENES = [
    Scene("train", "empty"),
    Scene("train", "ok", going),
    Scene("train", "starting", beginning),
    Scene("train", "alerts", troubled),
    Scene("train", "error", failed),
    Scene("train", "done", done),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["ok"].without_colours(SIZES), by_state["ok"].in_light()]
