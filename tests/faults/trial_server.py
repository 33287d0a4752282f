"""A process that has torch loaded and forks a child for each command line: a start costs no import.

Requests and answers are JSON lines on stdin and stdout. A child is a process like any other: own
session, own environment, real signals, real file descriptors.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

POLL_S = 0.01


def main() -> None:
    """Serve until stdin ends."""
    import poros.cli
    import poros.training.session  # noqa: F401  what every child needs

    gc.freeze()  # a collection in a child would copy all of torch's pages
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        if request["do"] == "wait":
            answer = _wait(request["pid"], request["timeout_s"])
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                answers.close()
                return _be_poros(request)
        print(json.dumps(answer), file=answers, flush=True)
    return None


def _wait(pid: int, timeout_s: float) -> int | None:
    """The exit code, negative for a signal; None: it runs on."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    return None


def _be_poros(trial: dict[str, Any]) -> None:
    """Take the trial's place in the world, plant its fault, and run its command line."""
    os.setsid()
    os.chdir(trial["folder"])
    os.environ.clear()
    os.environ.update(trial["environ"])
    _redirect(trial["stdout"], trial["stderr"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["poros", *map(os.fsdecode, map(bytes.fromhex, trial["arguments"]))]
    if trial["plant"]:
        getattr(importlib.import_module("tests.faults.plants"), trial["plant"])()
    from poros.cli import main as poros

    try:
        poros()
    except SystemExit as end:
        _exit(end.code)


def _exit(code: object) -> NoReturn:
    """Flush as the interpreter does; taking torch down would take seconds."""
    assert isinstance(code, int)
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"Exception ignored in stdout: {error!r}\n")
        code = 120
    os._exit(code)


def _redirect(stdout: str, stderr: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, path in ((1, stdout), (2, stderr)):
        if path == "closed pipe":
            read_end, descriptor = os.pipe()
            os.close(read_end)
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", 0), encoding="utf-8", errors="strict")
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", 0), encoding="utf-8", errors="backslashreplace", write_through=True
    )


if __name__ == "__main__":
    main()
