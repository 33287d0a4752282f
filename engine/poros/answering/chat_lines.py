"""`poros chat --json-lines`: the conversation for programs, one JSON object a line either way.

stdin: ``{"say": TEXT}``, ``{"say": TEXT, "compare": true}``, ``{"stop": true}`` ends the answer
that is being made, ``{"reset": true}`` begins anew; its end ends the program. stdout: an object
with ``event``, for each of them see docs/after-training.md. Everything else goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from poros.answering.generate import prompt_ids
from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling, Speaker, Stop
from poros.answering.talks import Talks, Who, sides
from poros.data.chat_template import ChatTemplate
from poros.errors import PorosError
from poros.events import Event, PhaseStarted, Warned

Tell = Callable[[dict[str, Any]], None]
Order = dict[str, Any]

_SHAPE = '{"say": TEXT}, {"stop": true} or {"reset": true}'


def run_chat_lines(
    adapter: str,
    *,
    system: str | None,
    compare: bool,
    sampling: dict[str, Any],
    **options: Any,
) -> int:
    """Answer until stdin ends; returns the exit code.

    Args:
        adapter: A run or an adapter's folder.
        system: The first turn.
        compare: Also give the base's answer, before the adapter's; a line may say otherwise.
        sampling: Fields of `Sampling`.
        options: Of `load_speaker`.

    Raises:
        PorosError: It can't be loaded; a ``failed`` line was written.
    """
    tell = teller(sys.stdout)
    # What libraries print must not come between the lines.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            speaker = load_speaker(adapter, emit=lambda event: _told(event, tell), **options)
            ChatTemplate(speaker.tokenizer)  # refuses a model that knows no turns
        except PorosError as error:
            tell({"event": "failed", **_parts(error), "exit_code": error.exit_code})
            raise
        chat = LineChat(speaker, system, Sampling(**sampling), tell, compare=compare)
        tell({"event": "ready", "base": speaker.base, "context_tokens": speaker.context_tokens})
        threading.Thread(target=chat.read, args=(sys.stdin,), daemon=True).start()
        chat.run()
    return 0


class LineChat:
    """One conversation.

    Attributes:
        talks: What was said so far.
    """

    def __init__(
        self,
        speaker: Speaker,
        system: str | None,
        sampling: Sampling,
        tell: Tell,
        *,
        compare: bool = False,
    ) -> None:
        """Begin it."""
        self._speaker, self._sampling, self._compare = speaker, sampling, compare
        self._tell = tell
        self.talks = Talks(system)
        self._orders: queue.SimpleQueue[tuple[Order, Stop] | None] = queue.SimpleQueue()

    def read(self, lines: TextIO) -> None:
        """Take orders until the lines end; for a thread of its own, so that an answer can stop."""
        stop = Stop()
        for line in filter(str.strip, lines):
            order = _order_of(line)
            if order.get("stop"):
                stop.asked = True
                continue
            stop = Stop()
            self._orders.put((order, stop))
        self._orders.put(None)

    def run(self) -> None:
        """Carry the orders out, one after the other."""
        while (waiting := self._orders.get()) is not None:
            self.take(*waiting)

    def take(self, order: Order, stop: Stop) -> None:
        """Carry one out; what can't be done is told, and the conversation stays as it was."""
        if "wrong" in order:
            self._refuse(f"not a line of this kind: {order['wrong']}", f"write {_SHAPE}")
        elif order.get("reset"):
            self.talks.begin_anew()
            self._tell({"event": "reset"})
        elif not isinstance(order.get("say"), str) or not order["say"].strip():
            self._refuse("nothing was said", f"write {_SHAPE}")
        else:
            compare = order.get("compare")
            self._turn(order["say"], stop, self._compare if compare is None else bool(compare))

    def _turn(self, text: str, stop: Stop, compare: bool) -> None:
        answers: dict[Who, str] = {}
        try:
            asked = {
                who: prompt_ids(self._speaker, self.talks.asked(who, text))
                for who in sides(compare=compare)
            }
            for who, ids in asked.items():
                if not stop.asked:
                    answers[who] = self._answer(who, ids, stop)
        except PorosError as error:
            self._tell({"event": "refused", **_parts(error)})
            if self._speaker.memory.is_lost:
                raise
            return
        for who, answer in answers.items():
            self.talks.keep(who, text, answer)
        self._tell(
            {
                "event": "turn_finished",
                "stopped": stop.asked,
                "used_tokens": self._used(asked, answers),
                "context_tokens": self._speaker.context_tokens,
            }
        )

    def _used(self, asked: dict[Who, list[int]], answers: dict[Who, str]) -> int:
        """Of the context, by the side that has said most."""
        size = self._speaker.tokenizer
        return max(
            len(ids) + len(size(answers.get(who, ""))["input_ids"]) for who, ids in asked.items()
        )

    def _answer(self, who: Who, ids: list[int], stop: Stop) -> str:
        def show(text: str) -> None:
            if text:
                self._tell({"event": "text", "who": who, "text": text})

        adapted = who == "adapter"
        answer = self._speaker.answer(ids, self._sampling, adapted=adapted, show=show, stop=stop)
        self._tell({"event": "answered", "who": who, "text": answer, "stopped": stop.asked})
        return answer

    def _refuse(self, message: str, remediation: str) -> None:
        told = {"code": "E-line", "message": message, "where": "stdin", "remediation": remediation}
        self._tell({"event": "refused", **told})


def teller(file: TextIO) -> Tell:
    """Writes each object as a line of its own, at once."""
    lock = threading.Lock()

    def tell(told: dict[str, Any]) -> None:
        with lock:
            file.write(json.dumps(told, ensure_ascii=False) + "\n")
            file.flush()

    return tell


def _order_of(line: str) -> Order:
    """What a line asks for; one of another kind as ``wrong``."""
    with contextlib.suppress(ValueError, RecursionError):
        order = json.loads(line)
        if isinstance(order, dict) and {"say", "stop", "reset"} & set(order):
            return order
    return {"wrong": line.strip()[:80]}


def _told(event: Event, tell: Tell) -> None:
    if isinstance(event, PhaseStarted):
        tell({"event": "phase", "phase": event.phase})
    elif isinstance(event, Warned):
        tell({"event": "warned", "code": event.code, "message": event.message})


def _parts(error: PorosError) -> dict[str, str]:
    return {
        "code": error.code,
        "message": error.message,
        "where": error.where,
        "remediation": error.remediation,
    }
