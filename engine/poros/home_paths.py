"""Paths as users type them, and as others may see them: the user's own folder is ``~``."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath
from typing import Self


def with_tilde(text: str) -> str:
    """The text with each path below the user's home told from ``~`` on."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111  Path raises where there is none
    if not home.startswith("/"):
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])", "~", text)


def typed_path(text: str | Path) -> Path:
    """What a user typed for a path, which may be any text: a name too long, or ``~`` of nobody.

    Asked whether something is there, it and the paths made of it say no, and never raise: neither
    for a name that can't be, nor in a folder that may not be looked into.
    """
    return _Typed(os.path.expanduser(text))  # noqa: PTH111  Path raises for a user that is not there


def here() -> Path:
    """The folder that this process is in, as `typed_path` gives it; by its name if it is gone."""
    try:
        return _Typed(os.getcwd())  # noqa: PTH109
    except OSError:
        return _Typed(os.readlink("/proc/self/cwd").removesuffix(" (deleted)"))  # noqa: PTH115


class _Typed(PosixPath):
    def exists(self, **_: bool) -> bool:
        # Path raises for a name that is too long, and in a folder without the right to look.
        return os.path.exists(self)  # noqa: PTH110

    def is_dir(self, **_: bool) -> bool:
        return os.path.isdir(self)  # noqa: PTH112

    def is_file(self, **_: bool) -> bool:
        return os.path.isfile(self)  # noqa: PTH113

    def absolute(self) -> Self:
        """Also where the folder that we are in is gone."""
        return self if self.is_absolute() else type(self)(here(), self)

    def resolve(self, strict: bool = False) -> Self:
        """As it is where links lead in a circle."""
        try:
            return super().resolve(strict)
        except RuntimeError:
            return self.absolute()
