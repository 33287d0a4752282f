"""The wizard's file: saved, opened, looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.config_yaml import read_document
from poros.errors import PorosConfigError, PorosError
from poros.home_paths import typed_path
from poros_tui import words
from poros_tui.screens.config_preview import (
    PathDialog,
    PreviewDialog,
    command_of,
    difference_lines,
    yaml_of,
)
from poros_tui.widgets.confirm import Answer, ConfirmDialog

if TYPE_CHECKING:
    from poros_tui.screens.config import ConfigScreen

_DEFAULT_NAME = "train.yaml"


class ConfigFiles:
    """What belongs to the form as a file."""

    def __init__(self, screen: ConfigScreen) -> None:
        """Nothing is saved."""
        self._screen = screen
        self._saved: tuple[Path, dict[str, Any]] | None = None

    def saved_path(self, settings: Mapping[str, Any]) -> Path | None:
        """The file that holds exactly these settings, if they were saved or opened just so."""
        if self._saved is not None and self._saved[1] == dict(settings):
            return self._saved[0] if self._saved[0].is_file() else None
        return None

    def preview(self) -> None:
        """Show file, command line and changes."""
        screen = self._screen
        settings = self._settings()
        if settings is None:
            return
        preset = screen.wizard.preset().settings
        changes = difference_lines(settings, preset)
        against = f"the preset ({screen.wizard.effort})"
        path = self.saved_path(settings)
        screen.app.push_screen(
            PreviewDialog(yaml_of(settings, path), command_of(path), changes, against)
        )

    def save(self) -> None:
        """Ask for a name."""
        if self._settings() is None:
            return
        name = str(self._screen.state.config_path or _DEFAULT_NAME)
        self._screen.app.push_screen(PathDialog("Save these settings as", name), self._save_as)

    def load(self) -> None:
        """Ask which file."""
        name = str(self._screen.state.config_path or _DEFAULT_NAME)
        dialog = PathDialog("Open the settings of which file?", name, button="Enter opens")
        self._screen.app.push_screen(dialog, self.open)

    def open_named(self) -> None:
        """Open what the command line named, once."""
        path = self._screen.state.config_to_open
        if path is not None:
            self._screen.state.update(config_to_open=None)
            self.open(str(path))

    def _settings(self) -> dict[str, Any] | None:
        config = self._screen.checked.config
        if config is None:
            self._screen.notify(
                "Mend what is wrong first: f7 does what it can", severity="error", timeout=4
            )
            return None
        return config.model_dump()

    def _save_as(self, name: str | None) -> None:
        settings = self._settings()
        if not name or settings is None:
            return
        path = typed_path(name)
        if path.exists() and path != self._screen.state.config_path:
            answers = [
                Answer("", "Back", "choose another name", key="b"),
                Answer("over", "Write over it", "what is in it now is lost", key="o", loses=True),
            ]
            dialog = ConfirmDialog(f"{words.short_path(path, 50)} is there already", answers)

            def answered(value: str | None) -> None:
                if value == "over":
                    self._write(path, settings)

            self._screen.app.push_screen(dialog, answered)
            return
        self._write(path, settings)

    def _write(self, path: Path, settings: dict[str, Any]) -> None:
        from poros import atomic

        try:
            atomic.write_file(path, yaml_of(settings, path))
        except (OSError, PorosError) as error:
            told = getattr(error, "strerror", None) or str(error)
            self._screen.notify(
                f"{told}: {path}", title="Not saved", severity="error", markup=False
            )
            return
        self._saved = (path, settings)
        self._screen.state.update(config_path=path)
        self._screen.notify(f"Saved as {path}", timeout=4, markup=False)

    def open(self, name: str | None) -> None:
        """Take a file's settings; None or nothing: the question was left."""
        if not name:
            return
        path = typed_path(name)
        screen = self._screen
        try:
            values = read_document(path).values
        except PorosConfigError as error:
            screen.notify(str(error), title="Not opened", severity="error", markup=False)
            return
        for problem in screen.draft.give(values, f"from {path.name}"):
            told = f"{problem.message}: {problem.way_out}"
            screen.notify(told, title="Left out", severity="warning", markup=False)
        screen.state.update(config_path=path)
        screen.loaded()
        if screen.checked.config is not None:
            self._saved = (path, screen.checked.config.model_dump())
