"""A run as it goes: loss, speed, memory, and the model streaming through the card."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from poros_tui import glyphs
from poros_tui.engine.followed import FollowedRun, card_of
from poros_tui.engine.run_alerts import Surroundings, alerts_of
from poros_tui.engine.run_log import LogLine
from poros_tui.engine.run_pace import pace_of
from poros_tui.engine.run_state import PAUSED, STARTING, WAITING, RunState
from poros_tui.screens import train_numbers
from poros_tui.screens.train_ending import Told, makes_sense, restart_word, told_ending
from poros_tui.screens.train_keys import CURVE_KEYS, RUN_KEYS, CurveScreen
from poros_tui.screens.train_orders import Orders
from poros_tui.screens.train_panels import Panels
from poros_tui.screens.train_start import start_lines
from poros_tui.state import AppState
from poros_tui.widgets.block_map import BlockMap
from poros_tui.widgets.log_pane import LogPane
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.plot import Plot
from poros_tui.words import safe

QUIET = "$quiet"
PAGES = ("all", "plot", "answers", "log")


class TrainScreen(CurveScreen):
    """The mode `train`."""

    TITLE = "Train"
    HELP = "A run as it goes: loss, speed, memory, and the model streaming through the card."
    LAYOUT_STYLE = "fill"
    CSS_PATH = "../styles/train.tcss"
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012  Textual declares it so
        (0, "-low"), (20, "-short"), (30, "-tall"), (38, "-roomy"),
    ]  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [*RUN_KEYS, *CURVE_KEYS]

    def __init__(self) -> None:
        """Nothing is followed yet."""
        super().__init__()
        self.signs = glyphs.chosen()
        self.orders = Orders(self)
        self.panels = Panels(self)
        self.told: Told | None = None
        self._followed: FollowedRun | None = None
        self._since_s = 0.0
        self._offered: tuple[object, ...] = ()
        self._is_frozen = False

    def body(self) -> ComposeResult:
        """All pages' parts; classes say which are shown."""
        signs = self.signs
        yield Static(id="alerts")
        yield Static(id="nothing")
        with Panel("Getting ready", id="start", help="What happens before the first step."):
            yield Static(id="start-lines")
        with Panel("", id="ending", help="How the run ended, and what can be done now."):
            yield Static(id="ending-lines")
        with Horizontal(id="top"):
            yield Panel("Loss", Plot(glyphs=signs, id="plot"), term="loss", id="loss")
            yield Panel("Run", Static(id="run-lines"), term="step", id="run")
        with Panel("The model, streaming", id="model", term="block map"):
            yield BlockMap(glyphs=signs, id="blocks")
            yield Static(id="blocks-status")
            yield Static(id="blocks-legend")
        with Horizontal(id="middle"):
            yield Panel("Memory", Static(id="memory-lines"), term="VRAM", id="memory")
            yield Panel("Heard just now", Static(id="answer-lines"), term="sample", id="answer")
        with VerticalScroll(id="answers"):
            yield Static(id="answers-lines")
        yield Panel("Log", LogPane(glyphs=signs, id="log-pane"), id="log")

    @property
    def followed(self) -> FollowedRun | None:
        """The run that is shown."""
        return self.state.followed

    def on_tick(self, state: AppState) -> None:
        """Draw what is new."""
        followed = state.followed
        if followed is not self._followed:
            self._forget(followed)
        if followed is None:
            self._show_part("nothing")
            self._show_nothing()
            return
        followed.watch(self.is_current)
        if not self._is_frozen:
            self._draw(followed, state)

    def on_screen_suspend(self) -> None:
        """Nobody looks: no live samples are made."""
        if self._followed is not None:
            self._followed.watch(False)

    def _forget(self, followed: FollowedRun | None) -> None:
        """Another run."""
        self._followed, self.told = followed, None
        self._since_s = self.shell.clock()
        self._is_frozen = False
        self.view.reset()
        self.panels.forget()

    def _show_part(self, part: str) -> None:
        """``nothing``, ``start``, ``going``, ``ended`` or ``failed``."""
        for name in ("nothing", "start", "going", "ended", "failed"):
            self.set_class(name == part, f"-{name}")

    def _show_nothing(self) -> None:
        text = Content.assemble(
            ("No run is open.\n\n", "bold"),
            ("Start one in ", QUIET), ("5 Config", "$accent"),
            (", or open one in ", QUIET), ("8 Runs", "$accent"), (".", QUIET),
        )  # fmt: skip
        self.panels.fill("#nothing", text)

    def _draw(self, followed: FollowedRun, state: AppState) -> None:
        run, now_s = followed.run, self.shell.clock()
        ending = followed.ending
        part = self._part(followed)
        self._show_part(part)
        self.set_class(run.plan is not None, "-planned")
        self.set_class(not len(run.steps), "-stepless")
        scene = train_numbers.Scene(
            now_s=now_s,
            glyphs=self.signs,
            pace=pace_of(run),
            machine=state.machine,
            live=followed.live,
            weight=self.view.weight(len(run.steps)),
            is_going=followed.is_going and run.status != PAUSED and not run.has_ended,
        )
        around = self._around(followed, state, now_s)
        self.panels.draw_alerts([] if followed.is_starting else alerts_of(run, around))
        if part == "start":
            self._draw_start(followed, now_s)
        self.panels.draw_plot(run)
        self.panels.draw_numbers(run, scene, followed.folder.name)
        self.panels.draw_blocks(run, scene)
        self.panels.draw_log(run)
        if ending is not None:
            self._draw_ending(followed)
        else:
            self.told = None  # of a folder that was put back, or gone on in
        self._offer(followed)

    def _draw_start(self, followed: FollowedRun, now_s: float) -> None:
        # While its engine starts, the events are still those of the process before it.
        run = RunState() if followed.is_starting else followed.run
        width = self._room_in("#start")
        text = start_lines(run, now_s, now_s - self._since_s, width, self.signs)
        self.panels.fill("#start-lines", text)

    def _room_in(self, panel: str) -> int:
        """Its columns; one that was not laid out yet is as wide as the window allows."""
        return self.query_one(panel, Panel).content_size.width or self.size.width - 6

    def _offer(self, followed: FollowedRun) -> None:
        """The footer follows what can be done; it is costly to make."""
        self.key_names = {"resume": restart_word(followed.run)}
        offered = (followed.is_going, self.told and (self.told.kind, self.told.way_out))
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()

    def _part(self, followed: FollowedRun) -> str:
        run, ending = followed.run, followed.ending
        if ending is not None:
            return "failed" if ending.status in ("failed", "killed", "lost") else "ended"
        if followed.is_starting or run.status in (WAITING, STARTING):
            return "start"
        return "going"

    def _around(self, followed: FollowedRun, state: AppState, now_s: float) -> Surroundings:
        live = followed.live
        card = card_of(followed)
        return Surroundings(
            now_s=now_s,
            is_alive=followed.is_going,
            disk_free_bytes=state.machine.disk_free_bytes,
            unwritten=live.unwritten if live is not None else "",
            unread=followed.unread,
            card_total_bytes=card.total if card else None,
            card_used_bytes=card.used if card else None,
            card_celsius=card.celsius if card else None,
            card_slowed=card.slowed if card else None,
        )

    def _draw_ending(self, followed: FollowedRun) -> None:
        ending = followed.ending
        assert ending is not None
        panel = self.query_one("#ending", Panel)
        width = self._room_in("#ending")
        if self.told is None:
            # What the process wrote itself; the events hold none of it.
            last_s = followed.run.last_s or self.shell.clock()
            lines = [LogLine(last_s, "info", safe(text)) for text in ending.log_lines]
            self.query_one("#log-pane", LogPane).lines.add(lines)
        self.told = told_ending(followed.run, ending, width, self.signs)
        panel.border_title = {"finished": "Done", "stopped": "Stopped", "failed": "What happened"}[
            self.told.kind
        ]
        panel.set_class(self.told.kind == "failed", "-bad")
        panel.set_class(self.told.kind == "finished", "-good")
        self.panels.fill("#ending-lines", self.told.text)

    def redraw(self) -> None:
        """Show a change of ours without waiting for the tick."""
        if self._followed is not None:
            self._draw(self._followed, self.state)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that make no sense now are not in the footer."""
        is_going = self._followed is not None and self._followed.is_going
        return makes_sense(action, is_going, self.told)

    @property
    def idle_actions(self) -> frozenset[str]:
        """Without a run there is nothing to look at."""
        pages = frozenset(f"page('{name}')" for name in PAGES[1:])
        return pages if self._followed is None else frozenset()

    def action_page(self, page: str) -> None:
        """One part alone, or all of them."""
        there = self.has_class(f"-page-{page}")
        for name in PAGES[1:]:
            self.set_class(name == page and not there, f"-page-{name}")
        self.call_after_refresh(self.redraw)

    def leave(self) -> None:
        """From a field, or else from a part that is shown alone."""
        alone = [page for page in PAGES[1:] if self.has_class(f"-page-{page}")]
        if self.focused is None and alone:
            self.action_page(alone[0])
        super().leave()

    def action_find(self) -> None:
        """Type a word; only lines with it are shown."""
        if not self.query_one("#log").region.height:
            self.action_page("log")
        self.query_one("#log-pane", LogPane).open_filter()

    def action_next_answer(self) -> None:
        """Another prompt."""
        self.panels.next_answer()
        self.redraw()

    def action_freeze(self) -> None:
        """Hold the display."""
        self._is_frozen = not self._is_frozen
        told = "The display stands still; the training goes on." if self._is_frozen else "Live."
        self.notify(told, timeout=3)

    def action_put_away(self) -> None:
        """The first notice; it comes back only when its reason does."""
        self.panels.put_away()
        self.redraw()

    def action_order(self, command: str) -> None:
        """Something that loses nothing."""
        self.orders.give(command)

    def action_pause(self) -> None:
        """Pause or go on."""
        paused = self._followed is not None and self._followed.run.status == PAUSED
        self.orders.give("resume" if paused else "pause")

    def action_stop(self) -> None:
        """Ask, then stop."""
        self.orders.ask_stop()

    def action_abort(self) -> None:
        """Ask, then abort."""
        self.orders.ask_abort()

    def action_detach(self) -> None:
        """Ask, then leave."""
        self.shell.runs.leave()

    def action_resume(self) -> None:
        """Start its engine again."""
        self.orders.resume()

    def action_apply(self) -> None:
        """With the change that helps."""
        assert self.told is not None
        if self.told.way_out is not None:
            self.orders.apply(self.told.way_out)

    def action_result(self) -> None:
        """What came out of it."""
        self.shell.go("result")
