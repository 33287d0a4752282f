"""What came out of a run, as the Result screen tells it: from the run's folder, in a thread."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poros.errors import PorosError
from poros.run_folder import is_held

if TYPE_CHECKING:
    from poros.report_facts import Facts

ADAPTER_FILE = "adapter_model.safetensors"


@dataclass(frozen=True)
class Asked:
    """A prompt and its answers; empty: not asked then."""

    prompt: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Outcome:
    """A run as it stands.

    Attributes:
        folder: Its folder.
        state: As in `poros.runs`; empty: it can't be read.
        title: Model and data.
        lead: How it stands, in a sentence.
        when: Day and times.
        tiles: Figures: name, value, note.
        notes: What a reader must know.
        asked: Samples, those with two answers first.
        adapter: The adapter's folder, or the last checkpoint's; None: there is none yet.
        adapter_bytes: Of its weights.
        is_final: The adapter is the run's result, not a checkpoint.
        base: The model that the adapter belongs to.
        load_lines: Python that loads the adapter on the stock base, with the run's own logits.
        error: Why nothing can be told.
    """

    folder: Path
    state: str = ""
    title: str = ""
    lead: str = ""
    when: str = ""
    tiles: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    asked: tuple[Asked, ...] = ()
    adapter: Path | None = None
    adapter_bytes: int = 0
    is_final: bool = False
    base: str = ""
    load_lines: tuple[str, ...] = ()
    error: str = ""


def read_outcome(folder: Path) -> Outcome:
    """Read a run's folder; never raises for what lies in it."""
    from poros.report_facts import read_facts
    from poros.report_view import view_of

    try:
        facts = read_facts(str(folder))
        view = view_of(facts)
    except PorosError as error:
        return Outcome(folder, error=str(error))
    except OSError as error:  # it changes while it is read, or its disk fails
        return Outcome(folder, error=f"the run can't be read: {error.strerror or error}")
    adapter, is_final = _adapter(folder)
    return Outcome(
        folder=folder,
        state=view.state,
        title=view.title,
        lead=view.lead,
        when=view.when,
        tiles=tuple((tile.name, tile.value, tile.note) for tile in view.tiles),
        notes=tuple(view.notes),
        asked=_asked(view.samples),
        adapter=adapter,
        adapter_bytes=_size(adapter / ADAPTER_FILE) if adapter else 0,
        is_final=is_final,
        base=str(facts.identity.get("model") or ""),
        load_lines=_load_lines(folder, facts, adapter) if adapter else (),
    )


class OutcomeReader:
    """Reads in a daemon thread whenever the run's events have grown.

    Attributes:
        latest: The newest outcome; None: none was read yet.
    """

    def __init__(self) -> None:
        """Nothing is followed."""
        self.latest: Outcome | None = None
        self._folder: Path | None = None
        self._seen: tuple[object, ...] | None = None
        self._is_reading = False

    def follow(self, folder: Path | None) -> None:
        """Look at a run, if something has changed; returns at once."""
        if folder != self._folder:
            self._folder, self._seen, self.latest = folder, None, None
        if folder is None or self._is_reading:
            return
        seen = _stamp(folder)
        if seen == self._seen:
            return
        self._seen, self._is_reading = seen, True
        threading.Thread(target=self._read, args=(folder,), name="outcome", daemon=True).start()

    def _read(self, folder: Path) -> None:
        try:
            found = read_outcome(folder)
            if folder == self._folder:
                self.latest = found
        finally:
            self._is_reading = False


def _load_lines(folder: Path, facts: Facts, adapter: Path) -> tuple[str, ...]:
    from poros.config_load import load_config
    from poros.events import ModelLoaded, from_line
    from poros.run_end import snippet

    try:
        config = load_config(folder / "config.yaml", environ={}).config
        loaded = from_line(json.dumps(facts.records["model_loaded"]))
        on_cpu = not facts.story.device.startswith("cuda")
        told = loaded if isinstance(loaded, ModelLoaded) else None
        return tuple(snippet(config, str(adapter), told, on_cpu=on_cpu))
    except (PorosError, KeyError, ValueError, TypeError):  # a line of another's making
        return ()


def _asked(samples: dict[str, list[tuple[str, str]]]) -> tuple[Asked, ...]:
    asked = []
    for prompt, answers in samples.items():
        before = next((text for stage, text in answers if stage.startswith("before")), "")
        after = next((text for stage, text in reversed(answers) if stage.startswith("after")), "")
        if not after:
            after = next(
                (t for stage, t in reversed(answers) if not stage.startswith("before")), ""
            )
        asked.append(Asked(prompt, before, after))
    return tuple(sorted(asked, key=lambda each: not (each.before and each.after)))


def _adapter(folder: Path) -> tuple[Path | None, bool]:
    if (folder / "adapter" / ADAPTER_FILE).is_file():
        return folder / "adapter", True
    steps = sorted((folder / "checkpoints").glob(f"step-*/{ADAPTER_FILE}"))
    return (steps[-1].parent if steps else None), False


def _stamp(folder: Path) -> tuple[object, ...]:
    """Changes with the events, their rights, and with the lock that says whether it runs."""
    held = is_held(folder)
    try:
        events = (folder / "events.jsonl").stat()
    except OSError as error:
        return held, error.errno
    return held, events.st_ino, events.st_mtime_ns, events.st_ctime_ns, events.st_size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
