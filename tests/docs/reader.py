"""A reader who does what a page says, among tiny models under the names that pages use."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from poros.cli import cli
from poros.cli_guard import Guard
from tests.docs.pages import ROOT, CodeBlock
from tests.engine.command_line import poros_here
from tests.tui.pty_bench import Terminal

MODELS = ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "path/to/model")
"""Folders of these names lie where the reader works, and a folder goes before the Hub."""

ONLY_READ = {
    "demo": "fetches a model",
    "doctor": "its child may take two minutes; a bad row of this machine is no fault of the page",
    "parity": "takes minutes, or a GPU; `make gate` and the GPU tests run it",
}
"""Commands that are not run but read by the real parser, and why. `make` and `pip` aren't either:
a target must be there, an installation would change what is tested."""

ENVIRON = {"POROS_MAX_STEPS": "1", "POROS_GRADIENT_ACCUMULATION_STEPS": "2", "POROS_DEVICE": "cpu"}


def command_lines(text: str) -> list[tuple[str, list[str]]]:
    """The lines of a shell block, continued ones joined, each with its words; comments left out."""
    lines = text.replace("\\\n", " ").splitlines()
    return [(line, words) for line in lines if (words := shlex.split(line, comments=True))]


def parse(words: list[str]) -> None:
    """What the real parser makes of ``poros ...``; a mistake raises."""
    command: click.Command = cli
    name, rest = "poros", words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, rest = rest[0], rest[1:]
        found = command.commands.get(name)
        assert found is not None, f"no command {name}"
        command = found
    with contextlib.suppress(click.exceptions.Exit), contextlib.redirect_stdout(io.StringIO()):
        command.make_context(name, rest, obj=Guard())


def run_poros(words: list[str], place: str) -> None:
    """Run ``poros ...`` in this process; it must end well."""
    parse(words)
    if words[1] in ONLY_READ:
        return
    more = {"chat": ["--max-new-tokens", "2"], "generate": ["--max-new-tokens", "2"]}
    ended = poros_here(*words[1:], *more.get(words[1], []), **ENVIRON)
    assert ended.returncode == 0, f"{place}: {shlex.join(words)}: {ended.stderr}"


def open_and_leave_the_app(place: str) -> None:
    """On a terminal, with nothing kept from before; it must end well."""
    with tempfile.TemporaryDirectory() as home, Terminal([], home=Path(home)) as screen:
        screen.until_shown("1 Home")
        screen.press("q")
        assert screen.ended() == 0, place


def run_shell(block: CodeBlock) -> None:
    """Do what each line of a shell block says, as far as a test can."""
    for line, words in command_lines(block.text):
        if words[0] == "poros":
            run_poros(words, block.place)
        elif words == ["poros-tui"]:
            open_and_leave_the_app(block.place)
        elif words[0] in ("mkdir", "printf"):
            subprocess.run(["bash", "-c", line], check=True)
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), f"{block.place}: {words}"
        elif words[0] == "python":
            files = [word for word in words if word.startswith(("docs/", "tests/"))]
            assert files, f"{block.place}: {words}"
            assert all((ROOT / file).exists() for file in files), f"{block.place}: {words}"
        else:
            assert words[0] in ("pip", "export"), f"{block.place}: nobody runs {words[0]}"


def run_python(text: str, place: str, namespace: dict[str, Any]) -> None:
    """Run a block in the page's namespace; what it prints is not looked at."""
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, place, "exec"), namespace)


def quiet_stdin() -> io.StringIO:
    """For `poros chat`: one question, then the end."""
    return io.StringIO("Who are you?\n/exit\n")
