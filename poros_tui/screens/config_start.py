"""Starts the run that the wizard describes: its file, its folder's place, its process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.errors import PorosError
from poros_tui.engine.process import Engine, start_run
from poros_tui.screens.config_preview import yaml_of

if TYPE_CHECKING:
    from poros_tui.screens.config import ConfigScreen


@dataclass(frozen=True)
class Started:
    """What became of a start: an engine with the file it was started from, or why not."""

    engine: Engine | None = None
    path: Path | None = None
    error: str = ""


class Starter:
    """One start at a time, in a thread of its own."""

    def __init__(self, screen: ConfigScreen) -> None:
        """Nothing is started."""
        self._screen = screen
        self._is_starting = False
        self._started: Started | None = None

    def start(self) -> None:
        """Begin; `tick` finishes it. Nothing while another start is under way."""
        config = self._screen.checked.config
        if config is None or self._is_starting:
            return
        self._is_starting = True
        settings = config.model_dump()
        saved = self._screen.files.saved_path(settings)
        threading.Thread(
            target=self._run, args=(settings, saved), name="start run", daemon=True
        ).start()

    def tick(self) -> None:
        """Go to Train once the engine is there, or say why it is not."""
        started, self._started = self._started, None
        if started is None:
            return
        self._is_starting = False
        screen = self._screen
        if started.engine is None:
            screen.notify(
                started.error, title="It could not be started", severity="error", markup=False
            )
            return
        state = screen.state
        state.update(
            run_folder=started.engine.folder,
            config_path=started.path,
            done=state.done | {"config"},
        )
        state.engine = started.engine
        screen.shell.go("train")

    def _run(self, settings: dict[str, Any], saved: Path | None) -> None:
        try:
            path = saved or written_beside(settings)
            self._started = Started(start_run(path), path)
        except PorosError as error:
            self._started = Started(error=str(error))
        except OSError as error:
            told = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
            self._started = Started(error=told)


def written_beside(settings: dict[str, Any]) -> Path:
    """Write the config beside the run's folder, under its name; never over another file.

    Raises:
        OSError: It can't be written.
    """
    from poros import atomic
    from poros.run_folder import free_name

    folder = Path(settings["output_dir"]).expanduser()
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(folder.name + ".yaml")
    text = yaml_of(settings, path)
    if path.exists() and path.read_text("utf-8", "replace") != text:
        path = free_name(path.with_suffix("")).with_suffix(".yaml")
        while path.exists():
            path = free_name(path.with_suffix("")).with_suffix(".yaml")
        text = yaml_of(settings, path)
    atomic.write_file(path, text)
    return path
