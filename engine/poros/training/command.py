"""A run as a command: what is printed of it, its signals, its exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from typing import TextIO

import transformers

from poros.config import PorosConfig
from poros.engine_process import LogFiles, leave_terminal
from poros.errors import PorosDeviceLostError, PorosError
from poros.progress import JsonPrinter, LinePrinter, Printer
from poros.training.session import Session


def _quiet_libraries() -> None:
    """Only our own lines: what the libraries say to developers helps no user of a command."""
    warnings.simplefilter("ignore", FutureWarning)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # It tells each try of a download, and the error that we then show.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _detach() -> LogFiles:
    leave_terminal()
    return LogFiles()


def run_session(
    config: PorosConfig,
    *,
    json_lines: bool,
    memory_map: bool = False,
    began_s: float | None = None,
    detached: bool = False,
    samples: bool = True,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run a config as a command does: print, take signals, return the exit code.

    Args:
        config: Its settings.
        json_lines: Print events, not lines for people.
        memory_map: As `Session` takes it.
        began_s: When the command began, by the monotonic clock; None: nobody noted it.
        detached: The process runs for somebody who may go: it leaves the terminal, and what it says
            while it has the run's folder goes into the logs there.
        samples: Show answers to the sample prompts, before and after.
        stdout: The process's own, if left out.
        stderr: The process's own, if left out.
    """
    _quiet_libraries()
    log_files = _detach() if detached else None
    lines = LinePrinter(
        config,
        stdout or sys.stdout,
        stderr or sys.stderr,
        redraws=False if detached else None,
        samples=samples,
    )
    printer: Printer = JsonPrinter(stdout or sys.stdout) if json_lines else lines
    session = Session(
        config,
        listeners=[printer, *([log_files] if log_files else [])],
        handle_signals=True,
        memory_map=memory_map,
        starting_s=None if began_s is None else time.monotonic() - began_s,
        log_files=log_files,
    )
    try:
        with contextlib.ExitStack() as stack:
            if log_files is not None:
                stack.callback(log_files.give_back)
            return session.run().exit_code
    except PorosError as error:
        lines.fail(error.lines())
        if isinstance(error, PorosDeviceLostError):
            # A device in a sticky error must not be called again, as destructors would.
            os._exit(error.exit_code)
        return error.exit_code
