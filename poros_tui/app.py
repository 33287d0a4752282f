"""`PorosApp`: the modes, the keys that work everywhere, the palette, the tick that feeds them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App, ScreenStackError
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.dom import DOMNode
from textual.driver import Driver
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen
from textual.worker import WorkerFailed

from poros.home_paths import typed_path
from poros.starting_runs import starting_in
from poros_tui import glyphs, keys, settings, state, themes, words
from poros_tui.driver import HUNG_UP, ContinuedDriver, driver_for
from poros_tui.engine.followed import card_of
from poros_tui.engine.machine import MachineWatch
from poros_tui.engine.run_list import RunList
from poros_tui.engine.tasks import Task
from poros_tui.palette import Actions
from poros_tui.run_control import RunControl
from poros_tui.screens.base import MODES, PorosScreen
from poros_tui.widgets.header import Summary, summary_of
from poros_tui.widgets.help_panel import HelpDialog
from poros_tui.widgets.key_turns import KeyTurns
from poros_tui.widgets.mode_bar import ModeBar
from poros_tui.widgets.steady import Notice, Palette

if TYPE_CHECKING:
    from poros_tui.screens.config_draft import Draft

TICK_S = 0.25
LET_GO_AFTER_S = 3.0
"""Of a terminal that takes nothing, once a signal asked the app to end."""
CATCH_UP_S = 0.05
"""A run that has much to tell, such as one that is opened late, is read in small pieces."""


def _key(key: str, action: str, id: str, does: str, short: str = "") -> Binding:
    """A binding; it stands in the footer if it has a ``short`` name."""
    return Binding(key, action, short, id=id, show=bool(short), tooltip=does)


def _maker(name: str) -> Callable[[], Screen[None]]:
    return lambda: keys.screen_class(name)()


class PorosApp(App[int]):
    """The terminal app. Its result is the process's exit code; None: 0.

    Screens use: `state`, `go`, `clock`, `perform`, `make_task`, Textual's ``notify`` and
    ``push_screen``.

    Attributes:
        make_task: Runs a command of `poros`; tests put recorded answers in its place.
        runs: Start, follow, resume, open and leave runs.
        let_go_of_terminal: As `terminal.only_ours` gives it.
        last_words: What the command says on stderr once the terminal is given back.
        crash: The exception that ended the app: a bug.
    """

    TITLE = "Poros"
    CSS_PATH = "styles/app.tcss"
    COMMANDS: ClassVar = {Actions}
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            _key(str(number), f"go('{name}')", f"go.{name}", f"Go to {title}")
            for number, (name, title) in enumerate(MODES.items(), 1)
        ),
        _key(
            "question_mark,f1", "explain", "app.help", "What is this, and what can I press", "Help"
        ),
        _key("ctrl+p", "command_palette", "app.palette", "All commands", "Commands"),
        _key("q,ctrl+q", "leave", "app.quit", "Leave Poros", "Quit"),
        _key("ctrl+c", "interrupt", "app.interrupt", "Leave Poros; twice: stop the run and save"),
        _key("f2", "next_theme", "app.theme", "Next theme: dark, light, ansi, colour-blind safe"),
        _key(
            "escape",
            "leave_field",
            "app.leave-field",
            "Leave a field, or a part that is shown alone",
        ),
    ]
    MODES: ClassVar = {name: _maker(name) for name in MODES}
    DEFAULT_MODE = "home"

    def __init__(
        self,
        shared: state.AppState | None = None,
        chosen: settings.Settings | None = None,
        *,
        watch: MachineWatch | None = None,
        run_list: RunList | None = None,
        clock: Callable[[], float] = time.time,
        keep: bool = True,
        first: str = "home",
    ) -> None:
        """Put together; nothing is drawn.

        Args:
            shared: What the last session left; None reads it.
            chosen: Theme and keys; None reads the user's file.
            watch: Samples card, RAM and disk; None makes one.
            run_list: The runs of this machine; None: those that are remembered, and here.
            clock: Wall clock, seconds since the epoch.
            keep: Save the state when it changes.
            first: The mode that it opens on.
        """
        # Textual opens on it by itself: a screen that nobody asked for is not built.
        self.DEFAULT_MODE = first  # type: ignore[misc]
        super().__init__()
        self.state = shared if shared is not None else state.load()
        self.settings = chosen if chosen is not None else settings.load()
        self.clock = clock
        self.make_task: Callable[..., Task] = Task
        self.animation_level = "none"
        started_in = typed_path(Path.cwd())
        self._watch = watch or MachineWatch(started_in)
        self._keep = keep
        self.runs = RunControl(self, run_list or RunList([started_in]))
        self.last_words = ""
        self.let_go_of_terminal: Callable[[], None] = lambda: None
        self._is_ending = False
        self._key_turns = KeyTurns(self, super().on_event)
        self._draft: Draft | None = None
        self.crash: Exception | None = None

    def get_driver_class(self) -> type[Driver]:
        """One that can be continued."""
        return driver_for(super().get_driver_class())

    def on_load(self) -> None:
        """One order of things on every Python: tasks begin at the loop's next turn.

        From 3.12 on Textual has them begin at once (textual 8.2). A screen is then put together
        before it is the app's, and the first one with a filled field finds no screen.
        """
        asyncio.get_running_loop().set_task_factory(None)

    def on_mount(self) -> None:
        """Themes, keys, timer."""
        for theme in themes.OWN:
            self.register_theme(theme)
        self.set_class(glyphs.chosen().is_plain, "-plain")
        self.theme = themes.textual_name(self.settings.theme)
        self.set_keymap(self.settings.keys)
        for problem in self.settings.problems:
            self.notify(problem, title="Settings", severity="warning", markup=False)
        self._watch.start()
        self.set_interval(TICK_S, self.tick)
        self.set_interval(CATCH_UP_S, self._catch_up)
        self._obey_signals()
        # Back from ctrl+z: the terminal shows the shell's lines until all is drawn again.
        self.app_resume_signal.subscribe(self, lambda _: self._draw_all())
        shown = self.state.run_folder
        is_there = shown is not None and (shown.is_dir() or starting_in(shown) is not None)
        if self.state.followed is None and is_there:
            self.runs.follow(shown)

    async def on_event(self, event: events.Event) -> None:
        """A key waits until the one before is done; all else is Textual's."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            await self._key_turns.take(event)
        else:
            await super().on_event(event)

    def action_command_palette(self) -> None:
        """Every action, found by typing."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(Palette())

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Say something in a corner for some seconds. For any thread."""
        seconds = self.NOTIFICATION_TIMEOUT if timeout is None else timeout
        self.post_message(Notify(Notice(message, title, severity, seconds, markup=markup)))

    def on_unmount(self) -> None:
        """The thread ends by itself."""
        self._watch.stop()

    def _obey_signals(self) -> None:
        """The terminal is given back, and the exit code says why it ended."""
        if self.is_headless:
            return
        loop, asked = asyncio.get_running_loop(), threading.Event()

        def watch() -> None:
            asked.wait()
            time.sleep(LET_GO_AFTER_S)
            self.let_go_of_terminal()

        is_asked = False

        def end(number: int, frame: FrameType | None) -> None:
            nonlocal is_asked
            if not is_asked:  # not by the event, whose lock a signal within this one would wait for
                is_asked = True
                asked.set()
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self.exit, 128 + number)

        # Not by the loop, which waits while the terminal takes nothing (a link that is dead).
        threading.Thread(target=watch, name="terminal", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, end)
        self.set_interval(1.0, self._end_with_terminal)

    def thread_failed(self, told: threading.ExceptHookArgs) -> None:
        """A look-up whose thread ends by a bug would be waited for without end: all ends by it."""
        if isinstance(told.exc_value, Exception) and not self._exit:
            self.call_later(self._handle_exception, told.exc_value)

    def _end_with_terminal(self) -> None:
        """It hung up, and SIGHUP went elsewhere: nobody can see or end the app any more."""
        if isinstance(self._driver, ContinuedDriver) and self._driver.is_gone:
            self.exit(HUNG_UP)

    def _draw_all(self) -> None:
        self.screen.refresh(layout=True)
        self.call_after_refresh(self.screen.refresh)

    async def _shutdown(self) -> None:
        """From here on widgets go, one by one: no tick may look for them."""
        self._is_ending = True
        await super()._shutdown()

    def _handle_exception(self, error: Exception) -> None:
        """Once the app ends, widgets go and no more are mounted: who looks for one finds none."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not (self._exit and isinstance(cause, NoMatches | ScreenStackError)):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """A bug: the terminal is given back, and the command line writes the crash file."""
        self.crash = self._exception
        self._close_messages_no_wait()

    def _catch_up(self) -> None:
        """Fold events between ticks too, while many wait."""
        followed = self.state.followed
        if followed is not None and followed.is_behind:
            followed.tick()

    async def tick(self) -> None:
        """What is new reaches the shown screen."""
        await self._key_turns.tick()
        self._catch_size()
        self.state.machine = self._watch.latest
        if self.state.followed is not None:
            self.state.followed.tick()
        # Between two modes, and at the end, there is no screen.
        stack: Sequence[Screen[object]] = ()
        with contextlib.suppress(ScreenStackError):
            stack = self.screen_stack
        if not self._is_ending:
            for screen in stack:
                if isinstance(screen, PorosScreen) and screen is not stack[-1]:
                    screen.fit()  # it is seen below a dialog
                elif isinstance(screen, PorosScreen):
                    screen.tick()
        if self.state.is_dirty and self._keep:
            await asyncio.to_thread(state.save, self.state.to_json())

    def _catch_size(self) -> None:
        """Of two signals of another size that come at once, Textual may tell the first one last."""
        if isinstance(self._driver, ContinuedDriver):
            size = self._driver.size_now()
            if size != self.size:
                self.post_message(events.Resize(size, size))

    def watch_disk(self, folder: Path) -> None:
        """From the next look on the disk is the one of this folder."""
        self._watch.folder = folder

    def summary(self) -> Summary:
        """What the header says."""
        machine = self.state.machine
        used, total = machine.card_used_bytes, machine.card_total_bytes
        followed = self.state.followed
        if followed is not None and (card := card_of(followed)) is not None:
            used, total = card.used, card.total
        facts = []
        if total is not None:
            facts.append(f"VRAM {words.of_gigabytes(used or 0, total)}")
        if machine.disk_free_bytes is not None:
            facts.append(f"disk {words.gigabytes(machine.disk_free_bytes)} free")
        facts.append(words.clock(self.clock()))
        return summary_of(followed, tuple(facts))

    @property
    def draft(self) -> Draft:
        """The config that is being put together; made when a screen asks for it first."""
        if self._draft is None:
            from poros_tui.screens.config_draft import Draft

            self._draft = Draft()
        return self._draft

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Variables that Textual's own themes lack."""
        return {"quiet": "ansi_bright_black"}

    def get_css_variables(self) -> dict[str, str]:
        """The theme's; where there are no colours, errors are not the faintest."""
        variables = super().get_css_variables()
        if self.no_color:
            variables.update(themes.without_colours(self.current_theme.dark))
        return variables

    def go(self, mode: str) -> None:
        """Show a screen, by its name in `MODES`."""
        if isinstance(self.screen, CommandPalette) and not self.screen.is_mounted:
            self.call_later(self.go, mode)  # it looks for the screen below it when it comes up
        else:
            self.switch_mode(mode)

    def on_mode_bar_chosen(self, event: ModeBar.Chosen) -> None:
        """A click on the mode bar."""
        self.go(event.mode)

    def action_go(self, mode: str) -> None:
        """By number key."""
        self.go(mode)

    async def perform(self, action: keys.Action) -> None:
        """Run an action of the palette; one of another screen goes there first."""
        if action.screen and action.screen != self.current_mode:
            await self.switch_mode(action.screen)
        place: DOMNode = self.screen if action.screen else self
        if action.part is not None:
            place = self.screen.query_one(action.part)
        await self.run_action(action.action, place)

    def action_explain(self) -> None:
        """Help for the focused field, and the keys that work here."""
        screen = self.screen
        if isinstance(screen, PorosScreen):
            told = keys.told(screen.mode_name, list(self.BINDINGS), self.settings.keys)
            self.push_screen(HelpDialog(MODES[screen.mode_name], screen.explanation(), told))

    def action_next_theme(self) -> None:
        """Through our themes, in order."""
        names = [themes.textual_name(name) for name in themes.NAMES]
        now = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(now + 1) % len(names)]
        self.notify(f"Theme: {themes.NAMES[(now + 1) % len(names)]}", timeout=2)

    def action_leave_field(self) -> None:
        """Keys are commands again."""
        if isinstance(self.screen, PorosScreen):
            self.screen.leave()
        else:
            self.screen.set_focus(None)

    def action_leave(self) -> None:
        """Quit, and ask first if a run goes on."""
        self.runs.leave()

    async def action_quit(self) -> None:
        """Ctrl+q in a dialog, and what Textual calls so: as `leave`."""
        self.runs.leave()

    def action_interrupt(self) -> None:
        """As quit; twice stops the run."""
        self.runs.interrupt()
