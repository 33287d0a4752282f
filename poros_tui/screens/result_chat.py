"""A talk with the adapter: a child process that answers in JSON lines, shown as it speaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from poros_tui import glyphs, words

_LOADING = {
    "download": "getting the base model",
    "quantise": "quantising the base, once",
    "load": "loading the base",
}
_EMPTY = "Ask it something: the model is loaded at the first question."


class Talker(Protocol):
    """What the pane needs of `engine.tasks.Task`."""

    @property
    def done(self) -> bool:
        """It ended."""

    @property
    def result(self) -> Any:
        """How."""

    def drain(self) -> list[Any]:
        """New lines."""

    def send(self, value: Any) -> None:
        """A line to it."""

    def hang_up(self) -> None:
        """No more lines."""


class ChatPane(Vertical):
    """Questions and answers, a line to type in, a line about the state.

    Attributes:
        told: What `?` says.
        is_answering: A question is being answered.
    """

    told = (
        "Talk to what was trained. The model is loaded in a process of its own at the first"
        " question. ctrl+t asks the untrained model too, to compare."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Stop", id="chat.back",
                tooltip="Stop the answer; leave a field or a part"),
        Binding("ctrl+n", "anew", "New talk", id="chat.anew",
                tooltip="Forget what was said"),
        Binding("ctrl+t", "compare", "Compare", id="chat.compare",
                tooltip="Ask the untrained model too"),
    ]  # fmt: skip

    class Ended(Message):
        """Enter without a question."""

    def __init__(self, start: Callable[[Path], Talker]) -> None:
        """Nothing is loaded; ``start`` begins a talk with an adapter or a run."""
        super().__init__(id="chat")
        self._start = start
        self._talker: Talker | None = None
        self._adapter: Path | None = None
        self._state = ""
        self._bubble: Static | None = None
        self._heard = ""
        self._asked_s = 0.0
        self.is_answering = False
        self._is_told_to_stop = False
        self.is_comparing = False

    def compose(self) -> ComposeResult:
        """Talk above, field below."""
        with VerticalScroll(id="said", can_focus=False):
            yield Static(_EMPTY, id="said-nothing", classes="quiet")
        yield Static("", id="talk-state")
        field = Input(placeholder="your question; Enter alone goes on", id="question", compact=True)
        field.cursor_blink = False
        yield field

    def use(self, adapter: Path | None) -> None:
        """Talk to this one; another than before ends the talk."""
        if adapter != self._adapter:
            self.end()
            self._adapter = adapter
            self._clear()

    def end(self) -> None:
        """Let the process go; its memory is free then."""
        if self._talker is not None:
            self._talker.hang_up()
            self._talker = None
        self.is_answering = False

    def on_unmount(self) -> None:
        """The app ends."""
        self.end()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask."""
        event.stop()
        text = event.value.strip()
        if self.is_answering:
            return
        if not text:
            self.post_message(self.Ended())
            return
        if self._adapter is None:
            self._tell("there is no adapter to talk to yet", "warn")
            return
        event.input.value = ""
        if self._talker is None or self._talker.done:
            self._talker = self._start(self._adapter)
            self._tell("starting", "busy")
        self._add(f"{text}", "asked")
        self.is_answering, self._asked_s = True, time.monotonic()
        self._is_told_to_stop = False
        self._talker.send({"say": text, "compare": self.is_comparing})

    @property
    def can_stop(self) -> bool:
        """It answers, and was not told to stop: a model that is being loaded stops later."""
        return self.is_answering and not self._is_told_to_stop

    def tick(self) -> None:
        """Show what was said since the last one."""
        if self._talker is None:
            return
        for line in self._talker.drain():
            if isinstance(line, dict):
                self._take(line)
        if self._talker is not None and self._talker.done:
            result = self._talker.result
            self._talker = None
            if self.is_answering or (result and result.exit_code):
                self._failed(result.error if result else "it ended")
        elif self.is_answering and self._state:
            waited = words.duration(time.monotonic() - self._asked_s)
            self._tell(f"{self._state}  {waited}", "busy", keep=True)

    def action_back(self) -> None:
        """Stop the answer; leave the field where there is none, or it does not stop at once."""
        if self.can_stop and self._talker is not None:
            self._is_told_to_stop = True
            self._talker.send({"stop": True})
        else:
            self.screen.set_focus(None)

    def action_anew(self) -> None:
        """Forget what was said."""
        if self.is_answering:
            return
        if self._talker is not None:
            self._talker.send({"reset": True})
        self._clear()

    def action_compare(self) -> None:
        """Ask both, or the adapter alone."""
        self.is_comparing = not self.is_comparing
        both = "both answer: without and with the adapter"
        self._tell(both if self.is_comparing else "the adapter answers alone", "ok")

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("event")
        if kind == "phase":
            self._state = _LOADING.get(str(line.get("phase")), "loading")
        elif kind == "ready":
            self._state = "thinking"
        elif kind == "text":
            self._hear(str(line.get("who")), str(line.get("text", "")))
        elif kind == "answered":
            self._answered(str(line.get("who")))
        elif kind == "turn_finished":
            self.is_answering = False
            self._tell_room(line)
        elif kind == "refused":
            self.is_answering = False
            self._failed(f"{line.get('message')}: {line.get('remediation')}")
        elif kind == "failed":
            self._failed(f"{line.get('message')}: {line.get('remediation')}")

    def _hear(self, who: str, text: str) -> None:
        if self._bubble is None:
            self._heard = ""
            self._bubble = self._add("", "base" if who == "base" else "answer")
        self._heard += text
        shown = "\n".join(words.safe(part) for part in self._heard.strip().split("\n"))
        name = Content.styled("untrained: ", "$secondary") if who == "base" else Content("")
        self._bubble.update(name + Content(shown))
        self._tell("answering; esc stops it", "busy")
        self.query_one("#said", VerticalScroll).scroll_end(animate=False)

    def _answered(self, who: str) -> None:
        if self._bubble is None or not self._heard.strip():
            self._hear(who, "(nothing)")
        self._bubble = None

    def _tell_room(self, line: dict[str, Any]) -> None:
        used, limit = line.get("used_tokens"), line.get("context_tokens")
        told = "stopped" if line.get("stopped") else "ready for the next question"
        if used and limit and used > limit // 2:
            told += f"; {used} of {limit} tokens are used, ctrl+n begins anew"
        self._state = ""
        self._tell(told, "ok")

    def _failed(self, told: str) -> None:
        self.is_answering = False
        self._state = ""
        self._bubble = None
        self._tell(words.safe(told), "error")

    def _tell(self, told: str, kind: str, *, keep: bool = False) -> None:
        if not keep and kind == "busy":
            self._state = told
        colour = {"ok": "$success", "warn": "$warning", "error": "$error", "busy": "$accent"}[kind]
        sign = getattr(glyphs.chosen(), kind)
        content = Content.assemble((f"{sign} ", colour), (told, "$secondary"))
        self.query_one("#talk-state", Static).update(content)

    def _add(self, text: str, kind: str) -> Static:
        self.query_one("#said-nothing").display = False
        said = Static(text, classes=f"said -{kind}", markup=False)
        talk = self.query_one("#said", VerticalScroll)
        talk.mount(said)
        talk.scroll_end(animate=False)
        return said

    def _clear(self) -> None:
        if self.is_mounted:
            self.query(".said").remove()
            self.query_one("#said-nothing").display = True
            self.query_one("#talk-state", Static).update("")
        self._bubble = None
