"""What the Train screen shows of a run, drawn into its panels: only what is new costs anything."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from poros_tui import glyphs
from poros_tui.engine.run_alerts import Alert
from poros_tui.engine.run_state import RunState
from poros_tui.screens import train_numbers
from poros_tui.screens.train_curves import at_cursor, legend, picture_of
from poros_tui.screens.train_keys import CurveScreen
from poros_tui.widgets.block_map import BlockMap, Blocks, passed_between, planned
from poros_tui.widgets.log_pane import LogPane
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.plot import Plot

QUIET = "$quiet"
_AS_HIGH_AS_IT_IS = ("#alerts", "#ending-lines", "#start-lines", "#answers-lines", "#nothing")
"""Texts that make their own room; all others have a fixed one, by the styles."""


class Panels:
    """The panels of one screen.

    Attributes:
        alerts_shown: Codes of the notices that stand there.
    """

    def __init__(self, screen: CurveScreen) -> None:
        """Nothing is drawn yet."""
        self.alerts_shown: list[str] = []
        self._screen = screen
        self._signs = glyphs.chosen()
        self._drawn: tuple[object, ...] = ()
        self._num_log_lines = 0
        self._computed: int | None = None
        self._answer = 0
        self._filled: dict[str, Content] = {}
        self._away: set[str] = set()

    def forget(self) -> None:
        """Another run is shown from now on."""
        self._num_log_lines, self._answer, self._computed = 0, 0, None
        self._away.clear()
        self._screen.query_one("#log-pane", LogPane).lines.clear()

    def next_answer(self) -> None:
        """Of the next prompt, when it is drawn again."""
        self._answer += 1

    def put_away(self) -> None:
        """The first notice; it comes back only when its reason does."""
        self._away.update(self.alerts_shown[:1])

    def draw_alerts(self, alerts: list[Alert]) -> None:
        """The two worst that were not put away."""
        codes = {alert.code for alert in alerts}
        self._away &= codes
        shown = [alert for alert in alerts if alert.code not in self._away][:2]
        lines = []
        for alert in shown:
            sign = self._signs.error if alert.level == "error" else self._signs.warn
            line = Content.assemble(
                (f"{sign} {alert.says} ", f"bold ${alert.level}"),
                (alert.advice, QUIET),
            )
            lines.append(line.truncate(max(20, self._screen.size.width - 8), ellipsis=True))
        bar = self._screen.query_one("#alerts", Static)
        bar.set_class(bool(lines), "-shown")
        self.fill("#alerts", Content("\n").join(lines))
        self.alerts_shown = [alert.code for alert in shown]

    def draw_plot(self, run: RunState) -> None:
        """The curve, if it or how it is looked at changed."""
        view = self._screen.view
        plot, panel = self._screen.query_one("#plot", Plot), self._screen.query_one("#loss", Panel)
        key = (run.version, run.step, view, repr(view))
        if key != self._drawn:
            self._drawn = key
            plot.show(picture_of(run, view, self._signs))
        panel.border_title = view.quantity.capitalize()
        panel.border_subtitle = at_cursor(run, view) or legend(run, view, self._signs)

    def draw_numbers(self, run: RunState, scene: train_numbers.Scene, name: str) -> None:
        """The run and its memory, and what the model answered; ``name`` is its folder's."""
        is_short = self._screen.has_class("-narrow")
        lines = train_numbers.short_run_lines if is_short else train_numbers.run_lines
        panel = self._screen.query_one("#run", Panel)
        panel.border_title = self._title(run, name)
        self.fill("#run-lines", lines(run, scene, panel.content_size.width))
        width = self._screen.query_one("#memory", Panel).content_size.width
        short = self._screen.has_class("-short")
        self.fill("#memory-lines", train_numbers.memory_lines(run, scene, width, short=short))
        box = self._screen.query_one("#answer", Panel)
        answers = list(run.answers.values())
        if answers:
            index = self._answer % len(answers)
            box.border_subtitle = f"{index + 1} of {len(answers)}" if len(answers) > 1 else ""
            when = f"Heard at step {answers[index].step:,}" if answers[index].now else "Before"
            box.border_title = when
        size = box.content_size
        self.fill(
            "#answer-lines",
            train_numbers.answer_lines(answers, self._answer, size.width, size.height),
        )
        if self._screen.has_class("-page-answers"):
            self.fill("#answers-lines", train_numbers.all_answers(run, self._screen.size.width - 6))

    def _title(self, run: RunState, name: str) -> str:
        return f"Run {self._signs.dot} {name}" if name and run.started else "Run"

    def draw_blocks(self, run: RunState, scene: train_numbers.Scene) -> None:
        """The block map: as it is now, or as it is planned."""
        blocks = Blocks()
        on_cpu = run.started is not None and run.started.device == "cpu"
        live = scene.live
        if live is not None and live.blocks:
            passed = frozenset[int]()
            if live.computing is not None:
                passed = passed_between(
                    self._computed, live.computing, live.direction, len(live.blocks)
                )
            self._computed = live.computing
            blocks = Blocks(live.blocks, passed, live.direction, on_cpu)
        elif run.plan is not None:
            blocks = planned(run.plan.num_blocks, run.plan.resident, on_cpu=on_cpu)
        self._screen.query_one("#blocks", BlockMap).show(blocks)
        width = self._screen.query_one("#model", Panel).content_size.width
        self.fill("#blocks-status", train_numbers.blocks_status(run, scene, width))
        self.fill("#blocks-legend", train_numbers.blocks_legend(run, self._signs, width))

    def draw_log(self, run: RunState) -> None:
        """Its new lines."""
        num_new = run.num_log_lines - self._num_log_lines
        pane = self._screen.query_one("#log-pane", LogPane).lines
        if num_new < 0:
            pane.clear()
            num_new = run.num_log_lines
        if num_new:
            pane.add(list(run.log)[-num_new:])
        self._num_log_lines = run.num_log_lines

    def fill(self, selector: str, content: Content) -> None:
        """Show a text; one that is there already costs nothing, one of a fixed height little."""
        before = self._filled.get(selector)
        if before is not None and before.plain == content.plain and before.spans == content.spans:
            return
        self._filled[selector] = content
        self._screen.query_one(selector, Static).update(
            content, layout=selector in _AS_HIGH_AS_IT_IS
        )
