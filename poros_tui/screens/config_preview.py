"""The config as a file: its text with comments, the equal command line, what differs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from poros_tui.screens.config_form import differences, fields, shown
from poros_tui.widgets.steady import Dialog


def yaml_of(settings: Mapping[str, Any], path: Path | None = None) -> str:
    """The file: every setting with its sentence, those that keep their default as comments.

    Args:
        settings: By key, checked.
        path: Where it will lie; for its first line.
    """
    from poros import init_file

    kept = {k: v for k, v in settings.items() if k in fields() and v != fields()[k].default}
    for key in ("model_name_or_path", "dataset", "output_dir"):
        if key in settings:
            kept[key] = settings[key]
    return init_file.render(kept, [f"poros train {path or 'FILE'}"])


def command_of(path: Path | None) -> str:
    """What trains the same without the app."""
    return f"poros train {shlex.quote(str(path)) if path else 'FILE'}"


def difference_lines(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Key, value of the preset, own value."""
    return [
        (key, shown(b) or "empty", shown(a) or "empty") for key, a, b in differences(mine, theirs)
    ]


class PreviewDialog(Dialog[None]):
    """Command line, changes, file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,q,enter,v,f6",
            "dismiss",
            "Close",
            id="preview.close",
            tooltip="In the file's preview: close it",
        ),
        Binding(
            "y",
            "copy",
            "Copy the file's text",
            id="preview.copy",
            tooltip="In the file's preview: copy its text",
        ),
    ]

    def __init__(
        self, text: str, command: str, changes: list[tuple[str, ...]], against: str
    ) -> None:
        """What was made of the form; ``against`` names what the changes are told from."""
        super().__init__()
        self._text, self._command = text, command
        self._changes, self._against = changes, against

    def compose(self) -> ComposeResult:
        """Three parts in one scroll."""
        with Vertical(classes="dialog preview"):
            yield Static("The same as a file", classes="dialog-title")
            with VerticalScroll():
                yield Static(self._content())
            yield Static("y copies it   esc closes", classes="quiet")

    def on_mount(self) -> None:
        """The arrows scroll."""
        self.query_one(VerticalScroll).focus()

    def action_copy(self) -> None:
        """Into the terminal's clipboard."""
        self.app.copy_to_clipboard(self._text)
        self.notify("The file's text was copied", timeout=3)

    def _content(self) -> Content:
        parts = [
            Content.styled("On the command line, once it is saved", "$secondary"),
            Content(f"  {self._command}"),
            Content(""),
            Content.styled(f"Changed from {self._against}", "$secondary"),
        ]
        width = max((len(key) for key, *_ in self._changes), default=0)
        for key, before, now in self._changes:
            parts.append(
                Content.assemble(f"  {key:<{width}}  ", (before, "$secondary"), " to ", now)
            )
        if not self._changes:
            parts.append(Content.styled("  nothing", "$secondary"))
        parts += [Content(""), Content.styled("The file", "$secondary")]
        return Content("\n").join(parts + [_coloured(line) for line in self._text.splitlines()])


class PathDialog(Dialog[str]):
    """Asks for a file's name; gives it back, or ``""``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="name.back", tooltip="Naming a file: back"),
    ]

    def __init__(self, question: str, name: str, *, button: str = "Enter saves") -> None:
        """``name`` stands there already."""
        super().__init__()
        self._question, self._name, self._button = question, name, button

    def compose(self) -> ComposeResult:
        """One line to type in."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            field = Input(self._name, id="path")
            field.cursor_blink = False
            yield field
            yield Static(f"{self._button}   esc goes back", classes="quiet")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Nothing was named."""
        self.dismiss("")


def _coloured(line: str) -> Content:
    if line.startswith("# ==="):
        return Content.styled(f"  {line}", "$secondary")
    if line.startswith("#"):
        return Content.styled(f"  {line}", "$secondary")
    key, colon, value = line.partition(":")
    return Content.assemble("  ", (key, "$accent"), colon, value)
