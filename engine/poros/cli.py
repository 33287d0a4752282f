"""The command `poros`: everything that a script can do.

Nothing heavy is imported here: each command imports what it needs when it runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from poros._version import __version__
from poros.cli_answers import as_json_option, print_json
from poros.cli_cache import cache
from poros.cli_chat import chat, generate
from poros.cli_check import check, check_options
from poros.cli_completion import SHELLS, answer, script
from poros.cli_data import data
from poros.cli_doctor import doctor
from poros.cli_export import export
from poros.cli_guard import BROKEN_PIPE, Guard, call_engine
from poros.cli_init import init
from poros.cli_leaderboard import leaderboard
from poros.cli_models import models
from poros.cli_parity import parity, parity_options
from poros.cli_report import report
from poros.cli_runs import runs
from poros.cli_train import errors_as_events, train, train_options

_FOLDER = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="poros")
def cli() -> None:
    """Fine-tune large models on small GPUs, bit for bit as a resident run would."""


@cli.command("train")
@click.argument("config", type=_FOLDER)
@train_options
@click.pass_obj
def train_command(guard: Guard, /, config: Path, **options: Any) -> int:
    """Train as the YAML file CONFIG says.

    Flags beat POROS_* variables (POROS_LEARNING_RATE=1e-4), which beat the file.
    """
    return train(guard, config, **options)


@cli.command("run", hidden=True)
@click.argument("config", type=_FOLDER)
@train_options
@click.pass_obj
def run_command(guard: Guard, /, config: Path, **options: Any) -> int:
    """Train as `train` does, for an app that may go: without a terminal, output in the run's logs.

    The last event goes to stdout in any case.
    """
    return train(guard, config, detached=True, **options)


@cli.command("check")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
@check_options
def check_command(model: str, *, as_json: bool, **options: Any) -> int:
    """Say whether MODEL can be trained, what is proved of it, how large it is and what it takes.

    MODEL is a folder, a model's name on the Hub (NAME@REVISION too), or the address of its page.
    Reads config.json and the headers of the weights; needs neither torch nor a GPU.
    """
    return check(model, as_json=as_json, **options)


@cli.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON on stdout.")
@click.option("--json-lines", is_flag=True, help="Each row as a line of JSON when it is known.")
@click.option("--row", "only", multiple=True, metavar="ID", help="Only this row; can be repeated.")
@click.option("--kernels/--no-kernels", default=True, help="Try real kernels in a child process.")
@click.option("--network/--no-network", default=True, help="Ask whether the Hub answers.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="For that child.",
)
@click.option("--output-dir", type=_FOLDER, default=Path(), help="Where a run would write.")
def doctor_command(**options: Any) -> int:
    """Look at this machine: is it fit for training, and what mends it?

    The exit code is 1 if a row is bad. Needs neither torch nor a GPU; without torch it says what
    could not be looked at.
    """
    return doctor(**options)


@cli.command()
@click.option("--json", is_flag=True, expose_value=False, help="As without it: always JSON.")
def schema() -> None:
    """Print the JSON Schema of a config."""
    from poros.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@cli.command("parity")
@click.argument("config", type=_FOLDER, required=False)
@parity_options
def parity_command(config: Path | None, **options: Any) -> int:
    """Compare the streamed run with a stock resident one, byte for byte.

    Give one of --demo, --family, --shape and CONFIG; the options from --device on are for --shape,
    --device for --family and --cap-gb for CONFIG too.
    """
    return parity(config, **options)


@cli.command()
@click.option("--fetch-only", is_flag=True, help="Get the model into the cache and stop.")
@click.option("--json", "json_lines", is_flag=True, help="Events as JSON lines on stdout.")
@click.option("-o", "--output", type=_FOLDER, help="The run's folder.")
@click.pass_obj
def demo(guard: Guard, /, *, json_lines: bool, **options: Any) -> int:
    """Teach a small real model a voice, streamed, and ask it the same questions twice."""
    with errors_as_events(guard, json_lines=json_lines):
        return call_engine("poros.demo.demo", "run_demo", json_lines=json_lines, **options)


@cli.command("init")
@click.argument("file", type=_FOLDER)
@click.option("-m", "--model", required=True, help="Folder, or name on the Hub.")
@click.option("-d", "--data", required=True, help="JSONL, JSON, CSV or Parquet file, or a name.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@as_json_option
def init_command(file: Path, **options: Any) -> int:
    """Write a commented config to FILE (- is stdout), sized for this machine."""
    return init(file, **options)


@cli.command("report")
@click.argument("run")
@click.option("-o", "--output", type=_FOLDER, help="The file; - is stdout. Else in RUN's folder.")
@click.option("--md", "as_markdown", is_flag=True, help="Markdown instead of HTML.")
@click.option("--force", is_flag=True, help="Write over a file that is no report.")
@as_json_option
def report_command(run: str, **options: Any) -> int:
    """Write RUN's report: one HTML file with its curves, memory, samples and config.

    RUN is its folder, or the beginning of its number. The file needs no network.
    """
    return report(run, **options)


@cli.command("leaderboard")
@click.argument("folders", nargs=-1, type=_FOLDER)
@click.option("--shipped", is_flag=True, help="Beside FOLDERS, those that ship with Poros.")
@click.option("--model", metavar="TEXT", help="Only models with this in their names.")
@as_json_option
def leaderboard_command(folders: tuple[Path, ...], **options: Any) -> int:
    """Stock and streamed runs side by side: memory, time, and whether the bytes are equal.

    FOLDERS have artifacts of `poros parity -o`, or runs; without any, what ships is shown.
    """
    return leaderboard(folders, **options)


cli.add_command(runs)
cli.add_command(cache)
cli.add_command(export)
cli.add_command(chat)
cli.add_command(generate)
cli.add_command(data)
cli.add_command(models)


@cli.command("help")
@click.argument("topic", type=click.Choice(["exit-codes"]), default="exit-codes")
@as_json_option
def help_command(topic: str, *, as_json: bool) -> None:
    """Explain a topic: exit-codes."""
    codes = {"exit-codes": _exit_codes}[topic]()
    if as_json:
        print_json({str(code): meaning for code, meaning in codes.items()})
        return
    for code, meaning in codes.items():
        click.echo(f"{code:>4}  {meaning}")


@cli.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands and options; its first line says where."""
    click.echo(script(shell))


def main() -> None:
    """Run the process's command line and exit."""
    code = answer(cli)
    sys.exit(code if code is not None else Guard().run(cli, None, name="poros"))


def _exit_codes() -> dict[int, str]:
    from poros import errors

    meanings = {0: "All went well.", 1: "A bug in Poros; the traceback is in logs/crash-*.txt."}
    for kind in errors.PorosError.__subclasses__():
        meanings[kind.exit_code] = str(kind.__doc__).partition("\n")[0]
    for code, name in (
        (errors.HUNG_UP, "the terminal closed (SIGHUP)"),
        (errors.INTERRUPTED, "Ctrl-C (SIGINT)"),
        (errors.TERMINATED, "SIGTERM"),
    ):
        meanings[code] = f"Stopped by {name}; a run saved its checkpoint first."
    meanings[BROKEN_PIPE] = "The reader of stdout went away."
    return {code: meanings[code] for code in sorted(meanings)}
