"""Where one starts: recent runs, the guided setup, the demo, a run that can go on."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from poros_tui import glyphs, words
from poros_tui.engine.run_list import UNFINISHED, Listed
from poros_tui.screens.base import PorosScreen
from poros_tui.state import AppState
from poros_tui.widgets import machine_lines, run_lines
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.steady import Choices

_MOST_RECENT = 12
_REFRESH_TICKS = 8

WELCOME = "Teach a large language model something of yours, on the card you have."
NO_RUNS = "No run yet. The first one takes a few minutes: try the demo, or start the guided setup."


def _key(key: str, way: str, short: str, does: str) -> Binding:
    return Binding(key, f"choose('{way}')", short, id=f"home.{way}", tooltip=does)


class HomeScreen(PorosScreen):
    """The mode `home`."""

    TITLE = "Home"
    HELP = (
        "Choose with the arrow keys and Enter. The guided setup leads from a check of this machine"
        " to a trained adapter; the demo does all of it by itself with a small model."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("s", "setup", "Setup", "Start the guided setup"),
        _key("d", "demo", "Demo", "Try the demo"),
        _key("g", "resume", "Go on", "Go on with the run that was cut off"),
    ]

    def __init__(self) -> None:
        """Nothing is known yet."""
        super().__init__()
        self._drawn: tuple[object, ...] = ()
        self._runs: tuple[Listed, ...] = ()
        self._ticks = 0

    def body(self) -> ComposeResult:
        """Left what one can do, right what was done."""
        yield Static(WELCOME, id="welcome")
        with Container(id="home"):
            with Vertical(id="home-left"):
                with Panel("Start", id="start"):
                    yield Choices(id="ways")
                with Panel("This machine", id="machine", term="VRAM"):
                    yield Static(id="machine-facts")
            with Panel("Recent runs", id="recent", term="run"):
                yield Choices(id="recent-runs")
                yield Static(NO_RUNS, id="no-runs", classes="quiet")

    def on_mount(self) -> None:
        """The arrow keys work at once."""
        self.query_one("#ways").focus()

    def on_tick(self, state: AppState) -> None:
        """Look at the runs every two seconds; draw what changed."""
        if self._ticks % _REFRESH_TICKS == 0:
            self.shell.runs.list.refresh()
        self._ticks += 1
        runs = self.shell.runs.list.latest
        # A list that is not shown, since it is empty, has no width.
        lines, panel = self.query_one("#recent-runs"), self.query_one("#recent")
        room = lines.scrollable_content_region.width or panel.content_size.width
        self.query_one("#machine-facts", Static).update(machine_lines.told(state.machine, 44))
        minute = int(self.shell.clock() // 60)
        drawn = (self.shell.runs.list.version, room, minute, self.shell.runs.list.was_read)
        if room and drawn != self._drawn:
            self._drawn, self._runs = drawn, runs[:_MOST_RECENT]
            self.key_names = {} if self._going_on else {"choose('resume')": "Begin anew"}
            self._draw(room)

    def action_choose(self, way: str) -> None:
        """As if the line were chosen."""
        going = self._going_on
        if way == "setup":
            self.state.done.clear()
            self.shell.go("doctor")
        elif way == "demo":
            self.shell.runs.demo()
        elif way == "resume" and going is not None:
            self.shell.runs.resume(going)
        elif way == "resume" and self._cut_off is not None:
            self.shell.runs.resume(self._cut_off)
        elif way == "resume":
            self.notify("No run was cut off: there is nothing to go on with.", timeout=6)
        elif way == "running":
            self.shell.runs.open(self._runs[0])
        else:
            self.shell.go(way)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click."""
        event.stop()
        if event.option_list.id == "ways":
            self.action_choose(str(event.option.id))
        else:
            self.shell.runs.open(self._runs[event.option_index])

    @property
    def idle_actions(self) -> frozenset[str]:
        """Nothing to go on with."""
        return frozenset() if self._cut_off else frozenset({"choose('resume')"})

    @property
    def _cut_off(self) -> Listed | None:
        """The latest run, if it ended before its last step."""
        ended = [one for one in self._runs if not one.is_going]
        return ended[0] if ended and ended[0].run.state in UNFINISHED else None

    @property
    def _going_on(self) -> Listed | None:
        """The same, if it has a checkpoint."""
        found = self._cut_off
        return found if found is not None and found.can_resume else None

    def _draw(self, room: int) -> None:
        ways = self.query_one("#ways", OptionList)
        before = ways.highlighted
        ways.clear_options()
        ways.add_options(self._ways())
        ways.highlighted = min(before or 0, ways.option_count - 1)
        recent = self.query_one("#recent-runs", OptionList)
        kept = recent.highlighted
        recent.clear_options()
        now_s = self.shell.clock()
        recent.add_options([Option(run_lines.line(one, now_s, room)) for one in self._runs])
        if kept is not None and self._runs:
            recent.highlighted = min(kept, len(self._runs) - 1)
        recent.display = bool(self._runs)
        self.query_one("#no-runs").display = not self._runs and self.shell.runs.list.was_read

    def _ways(self) -> list[Option]:
        ways = []
        first, going = next(iter(self._runs), None), self._going_on
        if first is not None and first.is_going:
            done = run_lines.progress(first)
            about = f"{_short(first)}, {f'step {done}' if done else 'starting'}"
            ways.append(_way("running", "Watch the run that is going on", about))
        if going is not None:
            total = going.run.story.total_steps
            about = f"{_short(going)}, step {going.checkpoint_step:,} of {total:,}"
            ways.append(_way("resume", "Go on with the run that was cut off", about))
        ways += [
            _way("setup", "Start the guided setup", "From a check of this machine to an adapter"),
            _way("demo", "Try the demo", "A small model, minutes, no card needed"),
            _way("config", "Open or write a config", "For those who know what they want"),
            _way("runs", "All runs", "Compare, clone, resume, delete"),
        ]
        return ways


def _short(listed: Listed) -> str:
    return words.shortened(words.safe(listed.name), 18)


def _way(name: str, title: str, note: str) -> Option:
    sign = glyphs.chosen().forward
    text = Content.styled(f"{sign} ", "$accent") + Content.styled(title, "bold")
    return Option(text + Content.styled(f"\n  {note}", "$quiet"), id=name)
