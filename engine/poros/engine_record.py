"""A note that an engine process leaves in its run's logs: who it is, for whoever finds it dead."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path

from poros.atomic import write_file
from poros.errors import PorosStorageError
from poros.host_room import own_cgroup

ENGINE_RECORD = "engine.json"


def write_engine_record(logs: Path) -> None:
    """Write the note; that it can't be written stops nothing."""
    cgroup = own_cgroup()
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started_s": time.time(),
        "cgroup": str(cgroup),
        "oom_kills": read_oom_kills(cgroup),
    }
    with contextlib.suppress(OSError, PorosStorageError):
        write_file(logs / ENGINE_RECORD, json.dumps(record) + "\n")


def read_oom_kills(cgroup: Path) -> int | None:
    """Processes of a cgroup that the system ended for memory so far; None: it does not say."""
    for name in ("memory.events", "memory.oom_control"):
        try:
            lines = (cgroup / name).read_text("ascii").splitlines()
        except (OSError, ValueError):
            continue
        counted = dict(line.split(" ", 1) for line in lines if " " in line)
        if counted.get("oom_kill", "").isdigit():
            return int(counted["oom_kill"])
    return None
