"""`poros parity`: the gate's command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from poros.cli_answers import Gigabytes
from poros.cli_guard import call_engine

Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDER = click.Path(path_type=Path)
_COUNT = click.IntRange(min=1)


_OPTIONS = (
    click.option("--demo", is_flag=True, help="The demo's model, in all the ways the gate covers."),
    click.option(
        "--shape",
        metavar="NAME",
        help="Random weights in a real shape: qwen2.5-7b; a wrong name lists all.",
    ),
    click.option(
        "--family",
        metavar="NAME",
        help="Tiny random models of a family, of several (a,b) or of all; a wrong name lists all.",
    ),
    click.option("--steps", type=_COUNT, help="Optimizer steps that are compared."),
    click.option("--mutants", is_flag=True, help="Also break each protection and see it go red."),
    click.option("--json", "json_lines", is_flag=True, help="The report as JSON on stdout."),
    click.option("-o", "--output", type=_FOLDER, help="Folder for the artifacts."),
    click.option("--quick", is_flag=True, default=None, help="Leave out claims A and C."),
    click.option("--work", type=_FOLDER, help="Folder for what both arms read; kept."),
    click.option("--keep-going", is_flag=True, help="Compare all cells, though one failed."),
)
VARIANTS = ("random", "autocast", "padding", "packing")


def _variants(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    names = tuple(value.split(",")) if value else None
    for name in names or ():
        if name not in VARIANTS:
            message = f"{name!r} is none of {', '.join(VARIANTS)}"
            raise click.BadParameter(message, context, parameter)
    return names


_SHAPE_OPTIONS = (
    click.option(
        "--variants",
        metavar="A,B",
        callback=_variants,
        help="Cells of the shape: random, autocast, padding, packing (the last two of chat data).",
    ),
    click.option("--tokenizer", metavar="FOLDER", help="What reads the chat data."),
    click.option("--num-parallel", type=_COUNT, help="Processes at a time; times then say little."),
    click.option("--device", metavar="DEVICE", help="cpu or cuda:N (families: cpu)."),
    click.option("--num-layers", type=_COUNT, help="Fewer layers than the shape has."),
    click.option("--seq-len", type=_COUNT, help="Tokens of a sample."),
    click.option("--batch-size", type=_COUNT, help="Samples of a micro-batch."),
    click.option("--accumulation", type=_COUNT, help="Micro-batches of a step."),
    click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), help="LoRA dropout."),
    click.option("--autocast", type=click.Choice(["bfloat16"]), help="Run under autocast."),
    click.option("--block-size", type=_COUNT, help="Layers of a block."),
    click.option("--num-slots", type=click.IntRange(min=2), help="Blocks on the device at once."),
    click.option("--num-timing-steps", type=_COUNT, help="Further steps that are only timed."),
    click.option("--compile", is_flag=True, default=None, help="Compile every layer, both arms."),
    click.option(
        "--cap-gb",
        type=Gigabytes(),
        help="Hard limit on the streamed arm's device memory, in GB of 1e9 bytes.",
    ),
    click.option(
        "--vram-budget",
        type=Gigabytes("auto", "min"),
        help="The streamed arm's: auto (the bare ring), min, or GB of the card.",
    ),
    click.option(
        "--host-tier",
        type=click.Choice(["auto", "registered", "pageable", "disk"]),
        help="The streamed arm's setting.",
    ),
    click.option(
        "--memory-map",
        is_flag=True,
        default=None,
        help="Name what lies in the streamed arm's memory at its peak.",
    ),
    click.option(
        "--gradient-checkpointing",
        is_flag=True,
        default=None,
        help="The reference recomputes its layers, to fit the card.",
    ),
    click.option(
        "--through-files", is_flag=True, default=None, help="By way of safetensors files on disk."
    ),
)


_SHAPE_NAMES = {
    "device", "num_layers", "seq_len", "batch_size", "accumulation", "dropout", "autocast",
    "block_size", "num_slots", "num_timing_steps", "compile", "cap_gb", "gradient_checkpointing",
    "through_files", "vram_budget", "host_tier", "memory_map", "variants", "tokenizer",
    "num_parallel",
}  # fmt: skip


def parity_options(command: Command) -> Command:
    """Give a click command the options of the gate."""
    for option in reversed(_OPTIONS + _SHAPE_OPTIONS):
        command = option(command)
    return command


def parity(
    path: Path | None, *, demo: bool, shape: str | None, family: str | None, **options: Any
) -> int:
    """Run the gate on the demo's model, families, a shape or a config; returns the exit code.

    Raises:
        click.UsageError: Not exactly one of the four is given.
    """
    if sum((demo, shape is not None, family is not None, path is not None)) != 1:
        raise click.UsageError("Give one of --demo, --family NAME, --shape NAME and CONFIG")
    if shape is None:
        others = (
            {"cap_gb", "memory_map"}
            if path is not None
            else {"device"}
            if family is not None
            else set()
        )
        _refuse_shape_options(options, allowed=others)
    config = None
    if path is not None:
        from poros.config_load import load_config

        config = load_config(path).config
    cap_gb = options.pop("cap_gb", None)
    options["cap_bytes"] = None if cap_gb is None else round(cap_gb * 1e9)
    given = {key: value for key, value in options.items() if value is not None}
    targets = {"demo": demo, "shape": shape, "family": family}
    return call_engine("poros.measure.gate", "run_parity", config, **targets, **given)


def _refuse_shape_options(options: dict[str, Any], *, allowed: set[str]) -> None:
    """Refuse settings that only a shape takes: the demo and a config have their own.

    Raises:
        click.UsageError: Names the option.
    """
    for name in _SHAPE_NAMES - allowed:
        if options[name] is not None:
            among = "--shape and --family" if name == "device" else "--shape"
            raise click.UsageError(f"--{name.replace('_', '-')} goes with {among} only")
