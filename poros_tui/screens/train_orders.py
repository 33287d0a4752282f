"""What a person can tell a run from the Train screen, each confirmed where it loses something."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from poros.errors import PorosError
from poros_tui.engine import commands
from poros_tui.engine.way_out import WayOut
from poros_tui.widgets.confirm import Answer, ConfirmDialog
from poros_tui.words import count

if TYPE_CHECKING:
    from poros_tui.screens.train import TrainScreen

TOLD = {
    "checkpoint": "Saving after this step.",
    "pause": "It pauses after this step; p goes on.",
    "resume": "It goes on.",
    "stop": "It finishes the step, saves, and ends.",
    "stop_now": "It ends.",
}


class Orders:
    """Gives orders of one screen; dialogs before those that lose something."""

    def __init__(self, screen: TrainScreen) -> None:
        """For this screen's run."""
        self.screen = screen

    def give(self, command: str) -> None:
        """Send an order; the answer comes as a notice."""

        def then(answer: commands.Answer) -> None:
            told = TOLD.get(command, answer.detail) if answer.taken else answer.detail
            self.screen.notify(
                told, severity="information" if answer.taken else "error", markup=False
            )

        self.screen.shell.runs.order(cast(commands.Command, command), then)

    def ask_stop(self) -> None:
        """It ends the run, and keeps everything."""
        self._ask(
            "Stop the training?",
            [
                Answer("stop", "Stop and save", "It can go on from here later.", "s"),
                Answer("", "Keep training", "", "k"),
            ],
            f"The step that runs now is finished first. {self._reached()}",
        )

    def ask_abort(self) -> None:
        """It loses the steps since the last checkpoint."""
        followed = self.screen.followed
        if followed is None:
            return
        run = followed.run
        saved = run.saved_step or 0
        lost = max(0, run.step - saved)
        words = "1 step is" if lost == 1 else f"{count(lost)} steps are"
        loses = f"{words} lost, those since step {count(saved)}." if lost else ""
        if run.saved_step is None:
            loses = "Nothing was saved yet: all of it is lost."
        self._ask(
            "Abort the training at once?",
            [
                Answer("", "Keep training", "", "k"),
                Answer("stop", "Stop and save instead", "A step later, and nothing is lost.", "s"),
                Answer("stop_now", "Abort", loses, "x", loses=True),
            ],
            self._reached(),
        )

    def resume(self, settings: tuple[str, ...] = ()) -> None:
        """Start the run's engine again; it goes on from its last checkpoint, if it has one."""
        followed = self.screen.followed
        if followed is not None and not followed.is_going:
            self.screen.shell.runs.go_on(followed.folder, settings)

    def apply(self, way_out: WayOut) -> None:
        """Go on with the change that helps; one that changes the result begins another run."""
        if way_out.goes_on:
            self.resume(way_out.settings)
            return
        followed = self.screen.followed
        assert followed is not None
        try:
            self.screen.shell.draft.begin_from(
                followed.folder, f"as {followed.folder.name} was", way_out.settings
            )
        except PorosError as error:
            self.screen.notify(str(error), severity="error", markup=False)
            return
        self.screen.shell.go("config")
        self.screen.notify(
            f"It changes the result, so it is another run: {way_out.words} is set; f5 starts it.",
            timeout=10,
            markup=False,
        )

    def _ask(self, question: str, answers: list[Answer], detail: str) -> None:
        def chosen(value: str | None) -> None:
            if value:
                self.give(value)

        self.screen.app.push_screen(ConfirmDialog(question, answers, detail), chosen)

    def _reached(self) -> str:
        followed = self.screen.followed
        if followed is None or not followed.run.total_steps:
            return ""
        run = followed.run
        return f"It is at step {count(run.step)} of {count(run.total_steps)}."
