"""Commands that were run before: what a screen gets from `Task`, without a process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poros_tui.engine.tasks import Result


class RecordedTask:
    """Says what it was told to; with ``goes_on`` it never ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        records: Sequence[Any] = (),
        *,
        exit_code: int = 0,
        stderr: Sequence[str] = (),
        goes_on: bool = False,
        elapsed_s: float = 3.0,
    ) -> None:
        """All of it is there at once."""
        self.arguments = tuple(arguments)
        self._left = list(records)
        self.elapsed_s = elapsed_s
        done = Result("done", exit_code, tuple(records), tuple(stderr))
        self.result: Result | None = None if goes_on else done

    @property
    def done(self) -> bool:
        """It ended."""
        return self.result is not None

    def drain(self) -> list[Any]:
        """What was not drained yet."""
        found, self._left = self._left, []
        return found

    def cancel(self) -> None:
        """As a child that was ended."""
        if self.result is None:
            self.result = Result("cancelled", None, (), ())

    def send(self, value: Any) -> None:
        """Said to one that answers nothing."""

    def hang_up(self) -> None:
        """As a talk that ended."""
        self.cancel()


Answer = Callable[[Sequence[str]], RecordedTask]


def answers(by_command: Mapping[str, Answer], asked: list[tuple[str, ...]] | None = None) -> Any:
    """What stands in an app's ``make_task``: the answer of the first command that begins so.

    Others never say anything.

    Args:
        by_command: Beginnings of command lines, words parted by spaces.
        asked: Gets each command line.
    """

    def make(arguments: Sequence[str], **_: Any) -> RecordedTask:
        if asked is not None:
            asked.append(tuple(arguments))
        line = " ".join(arguments)
        for beginning, answer in by_command.items():
            if line.startswith(beginning):
                return answer(arguments)
        return no_answer(arguments)

    return make


def no_answer(arguments: Sequence[str], **_: Any) -> RecordedTask:
    """A command that never says anything."""
    return RecordedTask(arguments, goes_on=True)
