"""Paths as users type them, and as others may see them: the user's own folder is ``~``."""

from __future__ import annotations

import os
import re
from pathlib import Path, PosixPath


def with_tilde(text: str) -> str:
    """The text with each path below the user's home told from ``~`` on."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111  Path raises where there is none
    if not home.startswith("/"):
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])", "~", text)


def typed_path(text: str | Path) -> Path:
    """What a user typed for a path, which may be any text: a name too long, or ``~`` of nobody.

    Asked whether something is there, it and the paths made of it say no, and never raise.
    """
    return _Typed(os.path.expanduser(text))  # noqa: PTH111  Path raises for a user that is not there


class _Typed(PosixPath):
    def exists(self, **_: bool) -> bool:
        return os.path.exists(self)  # noqa: PTH110  Path raises for a name that is too long

    def is_dir(self, **_: bool) -> bool:
        return os.path.isdir(self)  # noqa: PTH112

    def is_file(self, **_: bool) -> bool:
        return os.path.isfile(self)  # noqa: PTH113
