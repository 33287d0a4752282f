"""What every command ends with: one clear line for a user's mistake, a crash file for ours."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from poros._version import __version__
from poros.errors import (
    INTERRUPTED,
    PorosConfigError,
    PorosError,
    PorosHostMemoryError,
    PorosOutputError,
    PorosStorageError,
    escape_control,
)
from poros.variables import unread

BROKEN_PIPE = 141
"""Exit code when the reader of stdout went away: 128 + SIGPIPE."""

_TRAIN_PACKAGES = frozenset(
    {
        "accelerate",
        "bitsandbytes",
        "datasets",
        "gguf",
        "peft",
        "pyarrow",
        "safetensors",
        "torch",
        "transformers",
    }
)


# What click calls the kind of a number, and what people do.
_KIND = re.compile(r"is not a valid (float|integer)(?: range)?$")
_NUMBERS = {"float": "a number", "integer": "a whole number"}

_NOT_NEEDED = ("scipy", "sklearn", "torchaudio", "torchvision")

_NO_FOLDER = PorosOutputError(
    "the folder you are in was deleted", remediation="cd to one that is there"
)
_NO_MEMORY = PorosHostMemoryError(
    "the computer has too little memory", remediation="close other programs and run again"
)


@dataclass
class Guard:
    """Runs one command line and turns whatever comes out of it into an exit code.

    Attributes:
        run_folder: Where a crash file goes, once a command knows its run folder.
        tells_itself: The command writes its errors to stdout too, where that is JSON.
    """

    run_folder: Path | None = None
    tells_itself: bool = False
    _as_json: bool = False

    def run(self, command: click.Command, arguments: Sequence[str] | None, *, name: str) -> int:
        """Run a command line; ``arguments`` None is the process's own."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        # A line that can't be parsed is answered in the wanted form too.
        self._as_json = "--json" in words
        _tell_unread(words)
        try:
            result = self._run(command, words, name)
            sys.stdout.flush()
        except BrokenPipeError:
            return _abandon_stdout()
        except PorosError as error:
            return self._report(error)
        except click.Abort:
            return INTERRUPTED
        except KeyboardInterrupt:
            return _interrupted()
        except MemoryError:
            return self._report(_NO_MEMORY)
        except OSError as error:
            return self._report_os_error(error)
        except Exception as error:  # noqa: BLE001 - the top of the program: all else is our bug
            return self._report_crash(error)
        return result

    def _run(self, command: click.Command, words: list[str], name: str) -> int:
        try:
            # Not command.main(): it answers a broken pipe with exit code 1 by itself.
            with command.make_context(name, words, obj=self) as context:
                result = command.invoke(context)
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return error.exit_code
        except click.ClickException as error:
            return self._report(_usage_error(error, name))
        return result if isinstance(result, int) else 0

    def _report_os_error(self, error: OSError) -> int:
        """A failing stdout and a folder that went away are told; any other is our bug."""
        if isinstance(error, FileNotFoundError) and not _is_here():
            return self._report(_NO_FOLDER)
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO):
            _abandon_stdout()
            return tell(
                PorosStorageError(
                    f"stdout can't be written ({error.strerror})",
                    remediation="free space where the output goes",
                )
            )
        return self._report_crash(error)

    def _report_crash(self, error: Exception) -> int:
        report = _crash_report(error)
        what = f"{type(error).__name__}: {error}"
        try:
            path = _write_crash_file(self._logs(), report)
        except OSError:
            sys.stderr.write(report)
            fix = "a bug in Poros; please report the above"
        else:
            fix = f"a bug in Poros; please report {path}"
        return self._report(PorosError(what, remediation=fix))

    def _report(self, error: PorosError) -> int:
        """Tell it on stderr, and on stdout where JSON is awaited there; its exit code."""
        if self._as_json and not self.tells_itself:
            text = json.dumps({"error": error.record()}, ensure_ascii=False)
            # A stdout that takes nothing must not change the exit code.
            with contextlib.suppress(OSError):
                click.echo(text.encode("utf-8", "backslashreplace").decode())
        return tell(error)

    def _logs(self) -> Path:
        if self.run_folder is not None and self.run_folder.is_dir():
            return self.run_folder / "logs"
        from poros.user_cache import user_cache

        return user_cache() / "logs"


def call_engine(module: str, function: str, *arguments: Any, **named: Any) -> int:
    """Call a part of the engine that needs the train extra.

    Raises:
        PorosConfigError: The extra is not installed.
    """
    _before_libraries()
    try:
        run: Callable[..., int] = getattr(importlib.import_module(module), function)
        return run(*arguments, **named)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _TRAIN_PACKAGES:
            raise
        raise PorosConfigError(
            f"{package} is not installed",
            remediation='pip install "poros-tui[train]"',
        ) from None


def _before_libraries() -> None:
    """What torch, CUDA and bitsandbytes read only while they start, in a process of our own."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # Slots, ends and one layer's activations share a small card: no block may be left unusable.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Threads that spin while they wait take the cores from everything else on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # bitsandbytes fetches and runs code of the Hub at its import where `kernels` is installed.
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # None: can't be imported
    # Where they are installed, transformers imports them for models and tools that no run has.
    for name in _NOT_NEEDED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def _is_here() -> bool:
    """The folder that this process is in is still there."""
    try:
        return bool(Path.cwd())
    except FileNotFoundError:
        return False


def _usage_error(error: click.ClickException, name: str) -> PorosConfigError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else name
    message = " ".join(error.format_message().split()).rstrip(".?")
    message = _KIND.sub(lambda found: f"is not {_NUMBERS[found[1]]}", message)
    if isinstance(error, click.NoSuchOption) and (setting := _as_setting(error)):
        message = message.partition(". Did you mean")[0]
        return PorosConfigError(message, where=command, remediation=f"write {setting}")
    return PorosConfigError(message, where=command, remediation=f"see {command} --help")


def _as_setting(error: click.NoSuchOption) -> str:
    """What sets the key of the config that an unknown option is named after; empty: none does."""
    options = {name for each in error.ctx.command.params for name in each.opts} if error.ctx else ()
    if "--set" not in options:
        return ""
    from poros.config import field_schemas
    from poros.config_guesses import known_elsewhere

    name = error.option_name.lstrip("-").replace("-", "_")
    key = name if name in field_schemas() else known_elsewhere(name)
    own = f"--{key.replace('_', '-')}"
    return f"{own} VALUE" if own in options else f"--set {key}=VALUE" if key else ""


def tell(error: PorosError) -> int:
    """Write an error's lines to stderr; its exit code."""
    # A stderr that takes nothing must not change the exit code.
    with contextlib.suppress(OSError):
        for line in error.lines():
            click.echo(line, err=True)
    return error.exit_code


def _tell_unread(words: Sequence[str]) -> None:
    """Say which POROS_* variables nobody reads: a misspelt one would be missed in silence."""
    refuses = words[:1] == ["train"]  # what reads settings refuses those that are alike
    with contextlib.suppress(OSError):
        for name, meant in unread(os.environ).items():
            if not (meant and refuses):
                hint = f"did you mean {meant}?" if meant else "it is no variable of Poros"
                click.echo(
                    f"poros: warning: nothing reads {escape_control(name)}: {hint}", err=True
                )


def _interrupted() -> int:
    """Say so on a line of its own: the terminal shows ^C without one."""
    with contextlib.suppress(OSError):
        click.echo("\n" * sys.stderr.isatty() + "poros: interrupted", err=True)
    return INTERRUPTED


def _abandon_stdout() -> int:
    """Let the interpreter's own flush at exit write into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _crash_report(error: Exception) -> str:
    head = f"poros {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    command = f"command: {sys.argv}\n\n"
    return head + command + "".join(traceback.format_exception(error))


def _write_crash_file(logs: Path, report: str) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path.write_text(report, encoding="utf-8", errors="backslashreplace")
    return path
