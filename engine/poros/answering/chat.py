"""`poros chat`: a conversation on a plain terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

from poros.answering.generate import prompt_ids
from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling, Speaker, Stop
from poros.answering.told import shown, told
from poros.data.chat_template import ChatTemplate
from poros.errors import PorosDataError, PorosError, PorosHostMemoryError, PorosOOMError
from poros.row_shapes import Message

_HELP = "/exit ends, /reset begins anew, Ctrl-C stops an answer"


def run_chat(
    adapter: str,
    *,
    system: str | None,
    compare: bool,
    sampling: dict[str, Any],
    **options: Any,
) -> int:
    """Talk until the user leaves; returns the exit code.

    Args:
        adapter: A run or an adapter's folder.
        system: The first turn.
        compare: Show the base's answer before the adapter's, which alone is remembered.
        sampling: Fields of `Sampling`.
        options: Of `load_speaker`.

    Raises:
        KeyboardInterrupt: Ctrl-C where a line was awaited.
    """
    speaker = load_speaker(adapter, emit=told, **options)
    ChatTemplate(speaker.tokenizer)  # refuses a model that knows no turns
    click.echo(f"{_context(speaker)}. {_HELP}.", err=True)
    return Chat(speaker, system, Sampling(**sampling), compare=compare).run()


class Chat:
    """One conversation.

    Attributes:
        messages: What was said so far.
    """

    def __init__(
        self, speaker: Speaker, system: str | None, sampling: Sampling, *, compare: bool = False
    ) -> None:
        """Begin it."""
        self._speaker, self._sampling, self._compare = speaker, sampling, compare
        self._first: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages: list[Message] = list(self._first)

    def run(self) -> int:
        """Read lines until /exit or the end of stdin."""
        while (line := _next_line()) is not None:
            line = line.strip()
            if line in ("/exit", "/quit"):
                break
            if line == "/reset":
                self.messages = list(self._first)
                click.echo("A new conversation.", err=True)
            elif line.startswith("/"):
                click.echo(_HELP, err=True)
            elif line:
                self.take_turn(line)
        return 0

    def take_turn(self, text: str) -> None:
        """Ask, show the answer and remember both; what can't be asked is said and forgotten."""
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        try:
            ids = prompt_ids(self._speaker, messages)
        except PorosDataError as error:
            click.echo(f"{_without_way_out(error)} -> /reset begins anew", err=True)
            return
        stop = Stop()
        try:
            with _interrupts(stop):
                answer = self._said(ids, stop)
        except (PorosOOMError, PorosHostMemoryError) as error:
            shown("\n")
            if self._speaker.memory.is_lost:
                raise
            click.echo(f"{error}; /reset begins anew", err=True)
            return
        shown("\n")
        if stop.asked:
            click.echo("(stopped)", err=True)
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        self._tell_room(len(ids), answer)

    def _said(self, ids: list[int], stop: Stop) -> str:
        if self._compare:
            shown("base: ")
            self._speaker.answer(ids, self._sampling, adapted=False, show=shown, stop=stop)
            shown("\nadapter: ")
        if stop.asked:
            return ""
        return self._speaker.answer(ids, self._sampling, show=shown, stop=stop)

    def _tell_room(self, num_tokens: int, answer: str) -> None:
        used = num_tokens + len(self._speaker.tokenizer(answer)["input_ids"])
        room = self._speaker.room(used)
        if room is not None and room < self._sampling.max_new_tokens:
            limit = self._speaker.context_tokens
            click.echo(
                f"{used} of the context's {limit} tokens are used; /reset begins anew", err=True
            )


def _context(speaker: Speaker) -> str:
    limit = speaker.context_tokens
    return f"{speaker.base}, context {limit} tokens" if limit else speaker.base


def _without_way_out(error: PorosError) -> str:
    return f"{error.message}, {error.where}" if error.where else error.message


def _next_line() -> str | None:
    """A line; None at the end of stdin. Ctrl-C ends the program."""
    if not sys.stdin.isatty():
        return sys.stdin.readline() or None
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # line editing and history for input()
    try:
        return input("> ")
    except EOFError:
        click.echo(err=True)
        return None


@contextlib.contextmanager
def _interrupts(stop: Stop) -> Iterator[None]:
    """Let the first Ctrl-C end the answer after its next token, and the second one the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
