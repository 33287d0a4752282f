"""Paths as others may see them: the user's own folder is ``~``."""

from __future__ import annotations

import os
import re


def with_tilde(text: str) -> str:
    """The text with each path below the user's home told from ``~`` on."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111  Path raises where there is none
    if not home.startswith("/"):
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])", "~", text)
