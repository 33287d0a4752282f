"""`AppState`: what the screens share, kept in the user's state folder between sessions."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poros.home_paths import typed_path
from poros_tui.engine.machine import Machine

if TYPE_CHECKING:
    from poros_tui.engine.followed import FollowedRun

_KEPT = ("model", "data", "config_path", "values", "run_folder", "recent_models", "recent_data")
_MOST_RECENT = 12


@dataclass(slots=True)
class AppState:
    """What one screen leaves for the next. Change it with `update`, which remembers to save.

    Attributes:
        model: Name on the Hub or folder, as a config's ``model_name_or_path``; empty: not chosen.
        data: File or name, as a config's ``dataset``; empty: not chosen.
        values: Settings of the wizard that differ from the defaults, by key of `PorosConfig`.
        config_path: The YAML file that was saved or loaded last.
        config_to_open: The file that the command line named, until Config has opened it.
        run_folder: The run that Train and Result show: running, finished or killed.
        followed: The same run as it goes, brought up to date on each tick; None: no run is shown.
            Set both through the app's ``runs.follow``.
        recent_models: The latest first.
        recent_data: The latest first.
        done: Steps of the guided path that were passed in this session, by screen name.
        machine: Memory of card and host, room on the disk; sampled once a second.
    """

    model: str = ""
    data: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    config_path: Path | None = None
    config_to_open: Path | None = None
    run_folder: Path | None = None
    recent_models: list[str] = field(default_factory=list)
    recent_data: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    machine: Machine = field(default_factory=Machine)
    followed: FollowedRun | None = None
    is_dirty: bool = False

    def update(self, **changes: Any) -> None:
        """Set fields by name; a chosen model or data set becomes the most recent one."""
        for name, value in changes.items():
            if getattr(self, name) == value:
                continue
            setattr(self, name, value)
            self.is_dirty = True
        if changes.get("model"):
            self.recent_models = _first(changes["model"], self.recent_models)
        if changes.get("data"):
            self.recent_data = _first(changes["data"], self.recent_data)

    def to_json(self) -> str:
        """What is kept; also marks it as saved."""
        self.is_dirty = False
        record = {name: getattr(self, name) for name in _KEPT}
        return json.dumps(record, default=str, ensure_ascii=True, indent=1) + "\n"


def state_file() -> Path:
    """Beside the list of runs; ``XDG_STATE_HOME`` moves both."""
    import platformdirs

    return typed_path(platformdirs.user_state_path("poros", appauthor=False)) / "app.json"


def load(path: Path | None = None) -> AppState:
    """What the last session left; a missing or damaged file is as good as none."""
    try:
        record = json.loads((path or state_file()).read_text("utf-8"))
    except (OSError, ValueError):
        return AppState()
    state = AppState()
    for kept in dataclasses.fields(AppState):
        if kept.name in _KEPT and isinstance(record, dict) and kept.name in record:
            _take(state, kept.name, record[kept.name])
    return state


def save(text: str, path: Path | None = None) -> None:
    """Write what `AppState.to_json` gave; that it can't be written stops nothing."""
    place = path or state_file()
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{os.getpid()}")
        temporary.write_text(text, "utf-8")
        temporary.replace(place)


def _take(state: AppState, name: str, value: Any) -> None:
    """Keep a value of the right kind."""
    if name in ("config_path", "run_folder"):
        setattr(state, name, typed_path(value) if isinstance(value, str) and value else None)
    elif isinstance(value, type(getattr(state, name))):
        setattr(state, name, value)


def _first(latest: str, earlier: list[str]) -> list[str]:
    return [latest, *(one for one in earlier if one != latest)][:_MOST_RECENT]
