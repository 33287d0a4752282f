"""`poros chat` and `poros generate`: their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from poros.cli_answers import Gigabytes, as_json_option
from poros.cli_guard import call_engine

Command = TypeVar("Command", bound=Callable[..., Any])

_SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")


_OPTIONS = (
    click.option("--base", metavar="MODEL", help="The base, if not the one the adapter names."),
    click.option("--system", metavar="TEXT", help="A system turn before the first question."),
    click.option("--compare", is_flag=True, help="The base's answer first, then the adapter's."),
    click.option("--max-new-tokens", type=click.IntRange(min=1), default=512, show_default=True),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        help="0 always takes the likeliest token.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(min=0, max=1, min_open=True),
        default=1.0,
        show_default=True,
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
    click.option("--device", default="auto", show_default=True, metavar="DEVICE"),
    click.option(
        "--quantization",
        type=click.Choice(["nf4", "bf16", "fp16"]),
        help="Of the base; as in the run, or nf4; a whole model's as it is.",
    ),
    click.option(
        "--vram-budget",
        type=Gigabytes("auto", "min"),
        metavar="auto|min|GB",
        default="auto",
        show_default=True,
        help="auto keeps the blocks on the card that fit.",
    ),
)


def _answer_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("generate")
@click.argument("adapter")
@click.option(
    "-p", "--prompt", "prompts", multiple=True, required=True, help="A question; - is stdin."
)
@_answer_options
@as_json_option
def generate(adapter: str, **options: Any) -> int:
    """Answer prompts with ADAPTER on its base, streamed as in training.

    ADAPTER is a LoRA folder, a run's folder, the beginning of a run's number, or a whole
    model's folder. Without a chat
    template a prompt is a text to go on with.
    """
    return _call("poros.answering.generate", "run_generate", adapter, options)


@click.command("chat")
@click.argument("adapter")
@_answer_options
@click.option("--json-lines", is_flag=True, help="For programs: a JSON object a line, either way.")
def chat(adapter: str, *, json_lines: bool, **options: Any) -> int:
    """Talk to ADAPTER on its base, streamed as in training. /exit ends.

    ADAPTER is a LoRA folder, a run's folder, the beginning of a run's number, or a whole
    model's folder.
    """
    if json_lines:
        return _call("poros.answering.chat_lines", "run_chat_lines", adapter, options)
    return _call("poros.answering.chat", "run_chat", adapter, options)


def _call(module: str, function: str, adapter: str, options: dict[str, Any]) -> int:
    from poros.adapter_files import find_adapter
    from poros.errors import PorosConfigError, escape_control

    found = find_adapter(adapter, whole_models=True)  # a mistake is told before torch is there
    if found.whole and (options["compare"] or options["base"]):
        raise PorosConfigError(
            "a whole model, which has no base beside it",
            where=escape_control(adapter),
            remediation="leave --compare and --base out, or give an adapter",
        )
    sampling = {key: options.pop(key) for key in _SAMPLING}
    return call_engine(module, function, adapter, sampling=sampling, **options)
