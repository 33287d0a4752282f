"""Named places where a run can be made to fail on purpose, for tests of crashes and full disks.

`POROS_FAILPOINT=name:action[@n]` arms one or more of them, comma-separated:
`checkpoint.tensors:kill@2` kills the process the second time it gets there; `@2+` means the second
time and every later one; no `@n` means every time.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time

from poros.errors import PorosConfigError

VARIABLE = "POROS_FAILPOINT"

POINTS: dict[str, str] = {
    "atomic.begin": "the temporary folder or file was just made",
    "atomic.written": "the content is written, nothing is fsynced",
    "atomic.file_fsync": "before the fsync of each file",
    "atomic.manifest": "before the manifest is written",
    "atomic.dir_fsync": "before the fsync of each folder inside",
    "atomic.rename": "everything is fsynced, the name is still the temporary one",
    "atomic.parent_fsync": "renamed, the parent folder is not fsynced",
    "events.write": "before an event line is written",
    "checkpoint.begin": "before a checkpoint's first byte",
    "checkpoint.adapter": "the adapter is written, the state is not",
    "checkpoint.tensors": "optimizer and random states are written, trainer.json is not",
    "checkpoint.rotate": "before an old checkpoint is removed",
    "train.step": "before an optimizer step",
    "train.forward": "before a micro-batch's forward",
    "train.backward": "before a micro-batch's backward",
    "train.norm": "before the gradients' norm",
    "train.room": "before device memory is taken for bytes that travel",
    "train.copy": "before bytes are copied to the device",
    "train.optimizer": "some weights were just stepped, which can still be undone",
    "train.after_step": "after an optimizer step, before its event",
}
"""Every name `hit` is called with, and where that is."""

_ERRNO_OF_ACTION = {"enospc": errno.ENOSPC, "eio": errno.EIO, "edquot": errno.EDQUOT}
_ACTIONS = ("kill", "enospc", "eio", "edquot", "memory", "oom", "term", "sleep=SECONDS")

_num_hits: dict[str, int] = {}


def hit(name: str) -> None:
    """Do what the environment asks for at this place; nothing when it asks for nothing."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    assert name in POINTS, name
    _num_hits[name] = count = _num_hits.get(name, 0) + 1
    for wanted, action, first, every in armed(text):
        if wanted == name and (count == first or (every and count > first)):
            _act(name, action)


def reset() -> None:
    """Count from zero again."""
    _num_hits.clear()


def any_armed() -> bool:
    """Whether the environment asks for anything."""
    return bool(os.environ.get(VARIABLE))


def check_variable() -> None:
    """Refuse a variable that arms nothing, before a run meets it half way.

    Raises:
        PorosConfigError: An entry is malformed or names no failpoint.
    """
    text = os.environ.get(VARIABLE)
    if text:
        armed(text)


def armed(text: str) -> list[tuple[str, str, int, bool]]:
    """(name, action, first hit, later ones too) of each entry.

    Raises:
        PorosConfigError: An entry is malformed or names no failpoint.
    """
    entries = []
    for entry in text.split(","):
        name, _, rest = entry.strip().partition(":")
        action, _, nth = rest.partition("@")
        every = nth == "" or nth.endswith("+")
        number = nth.rstrip("+") or "1"
        if name not in POINTS or not _known(action) or not number.isdigit():
            raise PorosConfigError(
                f"not a failpoint: {entry.strip()!r}",
                where=VARIABLE,
                remediation=f"write name:action[@n]; actions: {', '.join(_ACTIONS)};"
                f" names: {', '.join(POINTS)}",
            )
        entries.append((name, action, int(number), every))
    return entries


def _known(action: str) -> bool:
    if action.startswith("sleep="):
        return action.removeprefix("sleep=").replace(".", "", 1).isdigit()
    return action in _ACTIONS


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif action == "memory":
        raise MemoryError(f"failpoint {name}")
    elif action == "oom":
        # Not imported here: only a run can get to such a place, and it has loaded torch.
        raise sys.modules["torch"].OutOfMemoryError(f"failpoint {name}")
    elif action.startswith("sleep="):
        time.sleep(float(action.removeprefix("sleep=")))
    else:
        number = _ERRNO_OF_ACTION[action]
        raise OSError(number, os.strerror(number), f"failpoint {name}")
