"""The app's own settings: theme and keys, in one small YAML file of the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from poros.errors import PorosConfigError
from poros.home_paths import typed_path
from poros_tui.themes import NAMES

_KNOWN = ("theme", "keys")


@dataclass(frozen=True)
class Settings:
    """What the file says.

    Attributes:
        theme: One of `themes.NAMES`.
        keys: Binding's id to the keys that take its place, as Textual writes them: ``f6,ctrl+k``.
        problems: What of the file was not taken, a line each.
    """

    theme: str = "dark"
    keys: dict[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def settings_file() -> Path:
    """Where it is looked for; ``XDG_CONFIG_HOME`` moves it."""
    import platformdirs

    return typed_path(platformdirs.user_config_path("poros", appauthor=False)) / "app.yaml"


def load(path: Path | None = None) -> Settings:
    """Read the file; one that is not there gives the defaults, a wrong one the rest of itself."""
    place = path or settings_file()
    if not place.is_file():
        return Settings()
    from poros.config_yaml import read_document

    try:
        values = read_document(place).values
    except PorosConfigError as error:
        return Settings(problems=(str(error),))
    problems = [f"{place}: {key} is no setting of the app" for key in values if key not in _KNOWN]
    theme, keys = values.get("theme", "dark"), values.get("keys") or {}
    if theme not in NAMES:
        problems.append(f"{place}: theme {theme!r} is none of {', '.join(NAMES)}")
        theme = "dark"
    if not isinstance(keys, dict):
        problems.append(f"{place}: keys must be a mapping, as in `app.quit: ctrl+q`")
        keys = {}
    taken = {str(key): value for key, value in keys.items() if isinstance(value, str)}
    problems += [f"{place}: the keys of {key} must be text" for key in keys if key not in taken]
    return Settings(str(theme), taken, tuple(problems))
