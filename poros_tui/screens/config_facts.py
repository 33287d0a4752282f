"""What the wizard has to look up: the model's headers, the data's rows, the machine's rates.

Each look-up is a daemon thread of its own; the screen asks on its tick what has come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Generic, TypeVar

from poros.check_memory import TextHeaders
from poros.demo_settings import is_demo_data
from poros.errors import PorosDataError, PorosError
from poros.home_paths import typed_path
from poros.memory_planner import Rates
from poros.row_shapes import detect_shape, to_messages
from poros.rows import BadLines, Row, looks_like_path, read_rows, refuse_missing
from poros_tui.engine.machine import Machine
from poros_tui.screens.config_cost import Computer
from poros_tui.screens.config_form import SEPARATOR
from poros_tui.screens.config_wizard import Known

_FREE_STEP_BYTES = 200_000_000
_MOST_COUNTED_BYTES = 10**8
_ASKED_ROWS = 50
_LONGEST_PROMPT = 200
_NUM_PROMPTS = 2
_COUNTED = (".jsonl", ".ndjson", ".json", ".csv")


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model.

    Attributes:
        text: Its headers; None: they can't be read, or it can't be trained.
        told: In a few words: its size, or what is wrong.
        is_wrong: It can't be trained.
    """

    text: TextHeaders | None = None
    told: str = ""
    is_wrong: bool = False


@dataclass(frozen=True)
class DataFacts:
    """What is known of data.

    Attributes:
        num_rows: None: not counted.
        told: In a few words.
        is_wrong: It can't be read.
        bad_lines: Those that can't be read, in words; empty: all can.
        prompts: The first ones that may be asked before and after; empty: there are none.
    """

    num_rows: int | None = None
    told: str = ""
    is_wrong: bool = False
    bad_lines: str = ""
    prompts: tuple[str, ...] = ()


Found = TypeVar("Found")


class Lookup(Generic[Found]):
    """Keeps answers by question and asks each once, in a thread of its own.

    Attributes:
        answers: What came, by question.
    """

    def __init__(self, look: Callable[[str], Found]) -> None:
        """``look`` is called in the thread."""
        self._look = look
        self._asked: set[str] = set()
        self.answers: dict[str, Found] = {}

    def ask(self, question: str) -> Found | None:
        """The answer; None until there is one."""
        if question and question not in self._asked:
            self._asked.add(question)
            threading.Thread(
                target=self._run, args=(question,), name="config look-up", daemon=True
            ).start()
        return self.answers.get(question)

    def put(self, question: str, answer: Found) -> None:
        """Take an answer that is known already."""
        self._asked.add(question)
        self.answers[question] = answer

    def forget(self, question: str) -> None:
        """Look again at the next `ask`."""
        self._asked.discard(question)
        self.answers.pop(question, None)

    def _run(self, question: str) -> None:
        self.answers[question] = self._look(question)


def look_at_model(model: str) -> ModelFacts:
    """Read a model's headers, from its folder, the Hub's cache, or the Hub."""
    from poros.check import check_model
    from poros.hub_model import refuse_large_download

    try:
        report = check_model(model)
    except (PorosError, OSError) as error:
        return ModelFacts(told=_why(error), is_wrong=True)
    if report.refusals:
        return ModelFacts(told=str(report.refusals[0]), is_wrong=True)
    if report.folder is None and report.facts is not None and report.facts.download_bytes:
        try:
            refuse_large_download(report.facts.name, report.facts.download_bytes)
        except PorosError as error:
            return ModelFacts(report.text, str(error), is_wrong=True)
    size = f"{_count(report.sizes.num_params)} weights" if report.sizes else report.model_type
    here = "here" if report.folder else "to be downloaded"
    return ModelFacts(report.text, f"{size}, {here}")


def look_at_data(dataset: str) -> DataFacts:
    """Count a file's rows; of names for `datasets` nothing is known."""
    path = typed_path(dataset)
    if not path.is_file():
        if path.is_dir():
            return DataFacts(told="that is a folder: name the file in it", is_wrong=True)
        if looks_like_path(dataset):
            return DataFacts(told="there is no such file", is_wrong=True)
        return DataFacts(told="not a file here: looked for on the Hub when the run starts")
    if path.suffix.lower() not in _COUNTED:
        return DataFacts(told="a file; its rows are counted when the run starts")
    try:
        if path.stat().st_size > _MOST_COUNTED_BYTES:
            return DataFacts(told="a large file; its rows are counted when the run starts")
        bad_lines = BadLines("skip")
        rows = read_rows(path, bad_lines=bad_lines)
    except (PorosError, OSError) as error:
        return DataFacts(told=_why(error), is_wrong=True)
    if not rows:
        return DataFacts(told="the file has no rows", is_wrong=True)
    whose = "the demo's " if is_demo_data(dataset) else ""
    return DataFacts(
        len(rows),
        f"{whose}{len(rows):,} rows",
        bad_lines=_told_bad(bad_lines),
        prompts=_prompts(rows[:_ASKED_ROWS]),
    )


def _prompts(rows: Sequence[Row]) -> tuple[str, ...]:
    """The first prompts that fit an entry of one line and stand alone, as a sample is asked."""
    found: dict[str, None] = {}
    with contextlib.suppress(PorosDataError):  # of another shape: Data and the run say so
        shape = detect_shape(rows)
        for row in rows if shape.is_conversation else ():
            for first in to_messages(row, shape)[:1]:  # a row may hold none
                text = first["content"].strip()
                is_plain = text.isprintable() and SEPARATOR.strip() not in text
                if first["role"] == "user" and is_plain and 0 < len(text) <= _LONGEST_PROMPT:
                    found[text] = None
    return tuple(found)[:_NUM_PROMPTS]


def _why(error: PorosError | OSError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _told_bad(bad_lines: BadLines) -> str:
    if not bad_lines.found:
        return ""
    number, first = len(bad_lines.found), bad_lines.found[0]
    lines = "1 line" if number == 1 else f"{number} lines"
    return f"{lines} of the data can't be read, {PurePath(first.where).name}: {first.message}"


def look_up_rates(card: str) -> Rates | None:
    """What `poros doctor` measured of link and card."""
    from poros.machine_rates import kept_rates

    found = kept_rates(card or None)
    return found[1] if found else None


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.0f} million"


class Lookups:
    """All that the wizard looks up, and when something new has come.

    Attributes:
        models: By name or folder.
        data: By file or name.
        rates: By card.
        refuse_missing: As of `poros.rows`, for an answer at once.
    """

    def __init__(self) -> None:
        """Nothing is known."""
        self.models: Lookup[ModelFacts] = Lookup(look_at_model)
        self.data: Lookup[DataFacts] = Lookup(look_at_data)
        self.rates: Lookup[Rates | None] = Lookup(look_up_rates)
        self.refuse_missing: Callable[[str], None] = refuse_missing
        self._seen: tuple[object, ...] = ()

    def known_of(self, model: str, dataset: str, machine: Machine, typed: str) -> Known | None:
        """What is known now; None: nothing new since the last call.

        Args:
            model: Name or folder.
            dataset: File or name.
            machine: As it was sampled last.
            typed: Key of the entry that has the keyboard: a name is looked up when it is typed,
                not at each of its letters.
        """
        is_free = typed != "model_name_or_path"
        about = self.models.ask(model) if is_free else self.models.answers.get(model)
        rows = self.data.ask(dataset) if typed != "dataset" else self.data.answers.get(dataset)
        computer = _computer(machine, self.rates.ask(machine.card))
        seen = (model, dataset, about, rows, computer)
        if seen == self._seen:
            return None
        self._seen = seen
        return Known(
            about.text if about else None,
            rows.num_rows if rows else None,
            computer,
            rows.bad_lines if rows else "",
            rows.prompts if rows else (),
        )

    def look_again(self) -> None:
        """The next call of `known_of` answers."""
        self._seen = ()

    def told(self, name: str, *, is_data: bool) -> tuple[str, bool]:
        """What is said of a model or of data, and whether it is wrong."""
        facts = self.data.answers.get(name) if is_data else self.models.answers.get(name)
        return (facts.told, facts.is_wrong) if facts else ("", False)

    def why_not(self, model: str, dataset: str) -> tuple[str, str]:
        """The setting that was found wrong, and why; empty: neither was."""
        for key, name, what in (
            ("model_name_or_path", model, "model"),
            ("dataset", dataset, "data"),
        ):
            told, is_wrong = self.told(name, is_data=key == "dataset")
            if is_wrong:
                return key, f"the {what}: {told}"
        return "", ""


def _computer(machine: Machine, rates: Rates | None) -> Computer:
    """In steps, so that memory that comes and goes makes no new plan four times a second."""

    def stepped(num_bytes: int | None) -> int:
        return max(num_bytes or 0, 0) // _FREE_STEP_BYTES * _FREE_STEP_BYTES

    def known(num_bytes: int | None) -> int:
        return 0 if num_bytes is None else max(stepped(num_bytes), 1)  # full is not unknown

    total = machine.card_total_bytes or 0
    return Computer(
        card=machine.card if total else "",
        total_bytes=total,
        free_bytes=stepped(total - (machine.card_used_bytes or 0)),
        rates=rates if total else None,
        host_bytes=known(machine.ram_free_bytes),
        disk_bytes=known(machine.disk_free_bytes),
    )
