"""The folder for what can be made again: downloads, quantised blocks, crash files without a run."""

from __future__ import annotations

import os
from pathlib import Path

from poros.home_paths import typed_path

CACHE_VARIABLE = "POROS_CACHE"


def user_cache() -> Path:
    """The folder that ``POROS_CACHE`` names, or the system's place for caches."""
    override = os.environ.get(CACHE_VARIABLE)
    if override:
        return typed_path(override)
    import platformdirs

    return typed_path(platformdirs.user_cache_path("poros", appauthor=False))
