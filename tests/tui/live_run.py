"""A run that goes on while an app is stormed, and the judge of what became of it."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from poros.events import CommandAcknowledged, RunStarted, StepFinished
from poros_tui.engine.commands import order_later
from poros_tui.engine.follow import Follower
from poros_tui.engine.process import Engine, engine_at, start_run

LIMIT_S = 120.0
"""Generous: a busy machine is no failure."""
_STOPS = {"stop", "stop_now"}


def wait_for(true: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Until something is true; its value.

    Raises:
        AssertionError: It is not, within a generous time.
    """
    until_s = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < until_s, f"it did not come: {what}"
        time.sleep(0.02)
    return found


class LiveRun:
    """A run without an end.

    Attributes:
        config: Its YAML file.
        folder: Its own.
        num_stops: Scripts that asked it to stop, and confirmed it.
    """

    def __init__(self, config: Path, settings: dict[str, Any]) -> None:
        """Nothing is started yet; ``settings`` are the config's."""
        self.config, self.folder = config, Path(settings["output_dir"])
        config.write_text(json.dumps(settings))
        self.num_stops = 0
        self._follower = Follower(self.folder / "events.jsonl")
        self._own: Engine | None = None
        self._num_steps, self._was_told = 0, False

    @classmethod
    @contextmanager
    def at_work(cls, config: Path, settings: dict[str, Any]) -> Iterator[Self]:
        """One that makes steps, until the context ends."""
        run = cls(config, settings)
        try:
            run.start()
            run.wait_until_it_steps()
            yield run
        finally:
            run.kill()

    @property
    def engine(self) -> Engine:
        """Whoever has the folder now: an app may have started it again."""
        return engine_at(self.folder)

    def start(self) -> None:
        """Begin, or go on."""
        self._own = start_run(self.config, settings=[f"output_dir={self.folder}"])

    def wait_until_it_steps(self) -> None:
        """It makes steps."""
        begin = self._look()
        wait_for(lambda: self._look() > begin, "another step")

    def judge(self) -> None:
        """It goes on and can be told what to do, or it was asked to stop and did; then it goes on.

        Raises:
            AssertionError: It is lost.
        """
        self._look()
        if self.engine.poll() == "running":
            answer = order_later(self.folder, "resume", limit_s=LIMIT_S).wait()
            # A script may have paused it; one that was stopped may be on its way out.
            assert answer.taken or "not paused" in answer.detail or self._is_stopping(), answer
        if self._is_stopping():
            self._go_on_again()
        assert self.engine.poll() == "running", f"the run was lost: {self.engine.ending()}"

    def kill(self) -> None:
        """The end of the test."""
        for engine in (self.engine, self._own):
            if engine is not None and engine.kill():
                wait_for(lambda engine=engine: engine.poll() == "ended", "its end")
        self._follower.close()

    def _is_stopping(self) -> bool:
        self._look()
        return self._was_told

    def _go_on_again(self) -> None:
        """It ends as it was told to, and starts again from where it was."""
        self.num_stops += 1
        wait_for(lambda: self.engine.poll() == "ended" or not self._is_stopping(), "its end")
        if self.engine.poll() == "ended" and self.folder.exists():
            ending = self.engine.ending()
            assert ending is not None
            assert (ending.status, ending.exit_code) in (("stopped", 0), ("stopped", 130)), ending
        # One that an app has started meanwhile gets the folder, or is refused it: both are right.
        self.start()
        self._was_told = False
        wait_for(lambda: self.engine.poll() == "running", "the run again")
        self.wait_until_it_steps()

    def _look(self) -> int:
        """Read what it told; how many steps it has made."""
        more = True
        while more:
            batch = self._follower.poll()
            more = batch.more or batch.restarted
            for line in batch.lines:
                event = line.event
                if isinstance(event, StepFinished):
                    self._num_steps += 1
                elif isinstance(event, RunStarted):
                    self._was_told = False
                elif isinstance(event, CommandAcknowledged):
                    self._was_told |= event.command in _STOPS
        return self._num_steps


def keep_below(home: Path, setenv: Callable[[str, str], None]) -> None:
    """What this process and those it starts read and write lies below a folder; no network."""
    root = Path(__file__).parents[2]
    setenv("PYTHONPATH", os.pathsep.join([str(root / "engine"), str(root)]))
    for name, part in (
        ("HOME", ""), ("XDG_STATE_HOME", "state"), ("XDG_CONFIG_HOME", "config"),
        ("XDG_CACHE_HOME", "cache"), ("POROS_CACHE", "cache"), ("HF_HOME", "hub"),
    ):  # fmt: skip
        setenv(name, str(home / part))
    setenv("OMP_NUM_THREADS", "1")
    setenv("HF_HUB_OFFLINE", "1")
    setenv("PIP_NO_INDEX", "1")
