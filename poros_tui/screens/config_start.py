"""Starts the run that the wizard describes: its file, and then its process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.errors import PorosError
from poros.home_paths import typed_path
from poros_tui.screens.config_preview import yaml_of

if TYPE_CHECKING:
    from poros_tui.screens.config import ConfigScreen


class Starter:
    """One start at a time.

    Attributes:
        is_starting: One is under way.
    """

    def __init__(self, screen: ConfigScreen) -> None:
        """Nothing is started."""
        self._screen = screen
        self.is_starting = False

    def start(self) -> None:
        """Begin; returns at once. Nothing while another start is under way."""
        config = self._screen.checked.config
        if config is not None and not self.is_starting:
            self.is_starting = True
            self._screen.show_all()
            self._screen.run_worker(self._start(config.model_dump()))

    async def _start(self, settings: dict[str, Any]) -> None:
        screen = self._screen
        try:
            path = screen.files.saved_path(settings)
            if path is None:
                path = await asyncio.to_thread(written_beside, settings)
            screen.state.update(config_path=path)
            if await screen.shell.runs.start(path):
                screen.state.done.add("config")
        except (PorosError, OSError) as error:
            told = getattr(error, "strerror", None) or str(error)
            where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
            screen.notify(
                f"{told}{where}", title="It could not be started", severity="error", markup=False
            )
        finally:
            self.is_starting = False
            if screen.is_running and screen.app.is_running:
                screen.show_all()


def written_beside(settings: dict[str, Any]) -> Path:
    """Write the config beside the run's folder, under its name; never over another file.

    Raises:
        OSError: It can't be written.
    """
    from poros import atomic
    from poros.run_folder import free_name

    folder = typed_path(settings["output_dir"])
    folder = folder if folder.name else folder.absolute()
    path = folder.with_name(folder.name + ".yaml")
    text = yaml_of(settings, path)
    if path.exists() and path.read_text("utf-8", "replace") != text:
        path = free_name(path.with_suffix("")).with_suffix(".yaml")
        while path.exists():
            path = free_name(path.with_suffix("")).with_suffix(".yaml")
        text = yaml_of(settings, path)
    atomic.write_file(path, text)
    return path
