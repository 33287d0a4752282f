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
from poros.answering.talks import Talks, Who, sides
from poros.answering.told import shown, told
from poros.data.chat_template import ChatTemplate
from poros.errors import PorosDataError, PorosError, PorosHostMemoryError, PorosOOMError

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
        compare: Show the base's answer before the adapter's; each remembers its own.
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
        talks: What was said so far.
    """

    def __init__(
        self, speaker: Speaker, system: str | None, sampling: Sampling, *, compare: bool = False
    ) -> None:
        """Begin it."""
        self._speaker, self._sampling = speaker, sampling
        self._sides = sides(compare=compare)
        self.talks = Talks(system)

    def run(self) -> int:
        """Read lines until /exit or the end of stdin."""
        while (line := _next_line()) is not None:
            line = line.strip()
            if line in ("/exit", "/quit"):
                break
            if line == "/reset":
                self.talks.begin_anew()
                click.echo("A new conversation.", err=True)
            elif line.startswith("/"):
                click.echo(_HELP, err=True)
            elif line:
                self.take_turn(line)
        return 0

    def take_turn(self, text: str) -> None:
        """Ask, show the answer and remember both; what can't be asked is said and forgotten."""
        try:
            asked = {
                who: prompt_ids(self._speaker, self.talks.asked(who, text)) for who in self._sides
            }
        except PorosDataError as error:
            click.echo(f"{_without_way_out(error)} -> /reset begins anew", err=True)
            return
        stop = Stop()
        try:
            with _interrupts(stop):
                answers = self._said(asked, stop)
        except (PorosOOMError, PorosHostMemoryError) as error:
            shown("\n")
            if self._speaker.memory.is_lost:
                raise
            click.echo(f"{error}; /reset begins anew", err=True)
            return
        shown("\n")
        if stop.asked:
            click.echo("(stopped)", err=True)
        for who, answer in answers.items():
            self.talks.keep(who, text, answer)
        used = (self._length(asked[who], answer) for who, answer in answers.items())
        self._tell_room(max(used, default=0))

    def _said(self, asked: dict[Who, list[int]], stop: Stop) -> dict[Who, str]:
        """The answers; a side that was not asked any more, since somebody stopped, has none."""
        answers: dict[Who, str] = {}
        for who, ids in asked.items():
            if len(asked) > 1:
                shown(f"\n{who}: " if answers else f"{who}: ")
            if not stop.asked:
                answers[who] = self._speaker.answer(
                    ids, self._sampling, adapted=who == "adapter", show=shown, stop=stop
                )
        return answers

    def _length(self, ids: list[int], answer: str) -> int:
        return len(ids) + len(self._speaker.tokenizer(answer)["input_ids"])

    def _tell_room(self, used: int) -> None:
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
