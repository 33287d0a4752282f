"""What `poros doctor --json-lines` said so far, in groups and words for the screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Graphics card": ("driver", "gpu"),
    "This computer": ("host_memory", "cgroup", "pinned_limit", "wsl", "python", "terminal"),
    "Room for files": ("disk_",),
    "The Hub": ("hub", "hub_token"),
    "Software": ("packages", "package_", "stack", "environment", "env_"),
    "Tried out": ("torch", "bitsandbytes", "bf16", "nf4", "pinned", "link", "arithmetic"),
}
"""Title to the beginnings of the rows' names."""

TITLES: Mapping[str, str] = {
    "driver": "Driver",
    "gpu": "Card",
    "host_memory": "Memory (RAM)",
    "cgroup": "Memory limit",
    "pinned_limit": "Pinning limit",
    "wsl": "Windows (WSL)",
    "python": "Python",
    "terminal": "Terminal",
    "disk_hub": "Downloads",
    "disk_cache": "Prepared models",
    "disk_output": "Runs",
    "hub": "Models and data",
    "hub_token": "Token",
    "packages": "Packages",
    "stack": "Proved versions",
    "environment": "Variables",
    "torch": "torch",
    "bitsandbytes": "bitsandbytes",
    "bf16": "16-bit products",
    "nf4": "4-bit products",
    "pinned": "Pinned memory",
    "link": "Link speed",
    "arithmetic": "Card speed",
}

_OTHER = "Other"
_PROBES = GROUPS["Tried out"]
_ON_A_CARD = ("pinned", "link", "arithmetic")


@dataclass(frozen=True, slots=True)
class DoctorRow:
    """A row; ``state`` is the engine's, or ``trying`` or ``waiting``."""

    id: str
    state: str
    what: str
    meaning: str = ""
    fix: str = ""

    @property
    def title(self) -> str:
        """A name for people."""
        if self.id in TITLES:
            return TITLES[self.id]
        if self.id.startswith("gpu"):
            number, _, part = self.id.removeprefix("gpu").partition("_")
            return f"Card {number}" + (f": {part}" if part else "")
        return self.id.removeprefix("env_").removeprefix("package_")


@dataclass(slots=True)
class Doctor:
    """All rows that are known, by id.

    Attributes:
        rows: In the order in which they came.
        is_running: More may come.
        looked_at_s: When it ended, by the wall clock; None: not yet.
        failure: Why the command itself failed; empty: it did not.
    """

    rows: dict[str, DoctorRow] = field(default_factory=dict)
    is_running: bool = False
    looked_at_s: float | None = None
    failure: str = ""

    def begin(self, only: str = "") -> None:
        """Look at everything, or at one row again; old rows stay until new ones come."""
        self.is_running, self.failure = True, ""
        for name in [only] if only else list(self.rows):
            if name in self.rows:
                self.rows[name] = DoctorRow(name, "waiting", self.rows[name].what)

    def hear(self, records: Iterable[Any]) -> bool:
        """Take lines of the command; True: something is new."""
        found = [r for r in records if isinstance(r, dict)]
        for record in found:
            name = str(record.get("id", ""))
            if record.get("kind") == "row":
                texts = (str(record.get(key, "")) for key in ("state", "what", "meaning", "fix"))
                self.rows[name] = DoctorRow(name, *texts)
                if name == "packages":
                    self._expect_probes()
            elif record.get("kind") == "trying":
                self.rows[name] = DoctorRow(name, "trying", str(record.get("what", "")))
        return bool(found)

    def end(self, now_s: float, failure: str = "") -> None:
        """The command ended; rows that never came are gone."""
        self.is_running, self.failure = False, failure
        self.looked_at_s = now_s
        self.rows = {k: r for k, r in self.rows.items() if r.state not in ("trying", "waiting")}

    def _expect_probes(self) -> None:
        """What the child process will try, so that one sees what is still to come."""
        has_card = any(name.startswith("gpu0") for name in self.rows)
        for name in _PROBES:
            if name not in self.rows and (has_card or name not in _ON_A_CARD):
                self.rows[name] = DoctorRow(name, "waiting", "")

    def groups(self) -> Iterator[tuple[str, list[DoctorRow]]]:
        """Title and rows of each group that has some; what belongs to none is last."""
        by_group: dict[str, list[DoctorRow]] = {title: [] for title in [*GROUPS, _OTHER]}
        for row in self.rows.values():
            by_group[_group(row.id)].append(row)
        for title, rows in by_group.items():
            names = GROUPS.get(title, ())
            rows.sort(key=partial(_place, names))
            if rows:
                yield title, rows

    def count(self, state: str) -> int:
        """Rows in a state."""
        return sum(row.state == state for row in self.rows.values())

    @property
    def worst(self) -> str:
        """``bad``, ``warn``, ``unknown`` or ``ok``."""
        return next((s for s in ("bad", "warn", "unknown") if self.count(s)), "ok")

    @property
    def verdict(self) -> str:
        """A sentence about all of it."""
        bad, warn = self.count("bad"), self.count("warn")
        if self.failure:
            return f"The check itself failed: {self.failure}"
        if bad:
            return f"Not yet: {_things(bad)} must be mended first"
        if "packages" in self.rows and self.rows["packages"].state == "warn":
            return "What trains is not installed yet: see Packages"
        if warn:
            return f"This machine can train; {_things(warn)} could be better"
        return "This machine can train"

    def record(self) -> dict[str, Any]:
        """For a file: as `poros doctor --json` has it."""
        names = ("id", "state", "what", "meaning", "fix")
        rows = [{name: getattr(row, name) for name in names} for row in self.rows.values()]
        counts = {row.state: self.count(row.state) for row in self.rows.values()}
        return {"fit": not counts.get("bad"), "counts": counts, "rows": rows}


def _place(names: tuple[str, ...], row: DoctorRow) -> int:
    return next((k for k, name in enumerate(names) if row.id.startswith(name)), len(names))


def _group(name: str) -> str:
    # A whole name before a beginning: `pinned` is no `pinned_limit`, `packages` no `package_`.
    exact = [title for title, names in GROUPS.items() if name in names]
    begun = [title for title, names in GROUPS.items() if name.startswith(names)]
    return (exact or begun or [_OTHER])[0]


def _things(number: int) -> str:
    return "1 thing" if number == 1 else f"{number} things"
