"""A command line in this process: a process of its own costs half a second of start."""

import contextlib
import importlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from poros.cli_guard import Guard


@dataclass(frozen=True)
class Ended:
    """How a command line ended; the names are those of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def poros_here(*arguments: str, module: str = "poros", **environ: str) -> Ended:
    """What `poros` or `poros_tui` does in a process of its own, but for what imports leave behind.

    Not for what is read from the environment when a library is imported.
    """
    command = importlib.import_module(f"{module}.cli").cli
    name = module.replace("_", "-")
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(sys, "argv", [name, *arguments]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        code = Guard().run(command, None, name=name)
    return Ended(code, stdout.getvalue(), stderr.getvalue())
