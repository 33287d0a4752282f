"""What is said when a run ends: how it went, what its model answers, where the adapter lies."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from poros import events
from poros.errors import PorosError, PorosOOMError, escape_control
from poros.run_folder import free_name
from poros.told_sizes import told_size

if TYPE_CHECKING:
    from poros.config import PorosConfig

_MOST_SAMPLES = 4
_MOST_CHARACTERS = 120


def failed_event(error: PorosError, *, step: int) -> events.RunFailed:
    """The record of a run's end by an error."""
    return events.RunFailed(
        step=step,
        type=error.type,
        code=error.code,
        message=error.message,
        where=error.where,
        remediation=error.remediation,
        exit_code=error.exit_code,
        memory=error.sizes if isinstance(error, PorosOOMError) else {},
    )


def summary(
    event: events.RunFinished,
    config: PorosConfig,
    loaded: events.ModelLoaded | None = None,
    *,
    on_cpu: bool,
) -> list[str]:
    """What is said at the end of a run."""
    if event.status != "finished":
        path = event.checkpoint_path
        if path is None:
            return ["stopped before a step was saved; the same command starts again"]
        saved = path.endswith(f"step-{event.step:06d}")
        head = f"saved step {event.step}" if saved else f"stopped in step {event.step + 1}, unsaved"
        return [f"{head}; resume with the same command, or --resume {escape_control(path)}"]
    adapter = str(event.adapter_path)
    loss = "" if event.final_loss is None else f", loss {event.final_loss:.4f}"
    if event.already:
        return _finished_before(event, config, adapter, loss)
    peak = event.peak_vram_allocated_bytes
    memory = f", device peak {told_size(peak)}" if peak else ""
    head = f"done: {event.step} steps in {duration(event.duration_s)}{loss}{memory}"
    run = shlex.quote(str(Path(adapter).parent))
    return [
        head,
        escape_control(
            f"poros chat {run} talks to it, poros export {run} -o merged makes a model of it"
        ),
        f"the adapter lies in {escape_control(adapter)}; load it with",
        *(f"    {line}" for line in snippet(config, adapter, loaded, on_cpu=on_cpu)),
    ]


def _finished_before(
    event: events.RunFinished, config: PorosConfig, adapter: str, loss: str
) -> list[str]:
    """That nothing was trained, and what else may have been meant."""
    run = Path(adapter).parent
    further = f"--set max_steps=N, above {event.step}"
    if config.lr_scheduler != "constant":
        further += ", and --allow-inexact-resume: the learning rate then takes another way"
    return [
        f"this run had finished before, {event.step} steps{loss}; nothing was trained now",
        f"the adapter lies in {escape_control(adapter)}",
        escape_control(f"to train anew: --output-dir {shlex.quote(str(free_name(run)))}"),
        f"to train it further: {further}",
    ]


class Samples:
    """Answers to the sample prompts: one line of each, as it was before and as it is after."""

    def __init__(self) -> None:
        """None were given yet."""
        self._before: dict[str, str] = {}
        self._num_shown = 0

    def lines(self, event: events.SampleGenerated) -> list[str]:
        """What is said of an answer."""
        if event.stage == "before":
            self._before[event.prompt] = event.text
        if event.stage != "after":
            return []
        self._num_shown += 1
        if self._num_shown > _MOST_SAMPLES:
            # poros report has them all.
            return ["... and more samples, in the run's report"] * (
                self._num_shown == _MOST_SAMPLES + 1
            )
        before = self._before.get(event.prompt)
        return [
            f"sample: {_brief(event.prompt)}",
            *([] if before is None else [f"  before: {_brief(before)}"]),
            f"  after:  {_brief(event.text)}",
        ]


def _brief(text: str) -> str:
    words = " ".join(text.split())
    return escape_control(
        words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]} ..."
    )


def snippet(
    config: PorosConfig,
    adapter: str,
    loaded: events.ModelLoaded | None = None,
    *,
    on_cpu: bool,
) -> list[str]:
    """Python that loads the adapter on the stock base; it gives the run's own logits.

    Of a multimodal checkpoint the text class must be named: the auto class opens the whole, on
    which the adapter's names fit nothing and PEFT only warns.
    """
    how = f"dtype=torch.{config.torch_dtype}"
    text_class = loaded.text_class if loaded else ""
    imports = model_class = text_class or "AutoModelForCausalLM"
    if loaded and text_class:
        how += f", key_mapping={loaded.key_mapping!r}"
    if config.quantization == "nf4":
        imports += ", BitsAndBytesConfig"
        how += (
            ", quantization_config=BitsAndBytesConfig(load_in_4bit=True,"
            " bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,"
            f" bnb_4bit_compute_dtype=torch.{config.torch_dtype})"
        )
    place = "cpu" if on_cpu else "cuda"
    name = config.model_name_or_path
    lines = [
        f"import torch; from peft import PeftModel; from transformers import {imports}",
        f"base = {model_class}.from_pretrained({name!r}, device_map={place!r}, {how})",
        f"model = PeftModel.from_pretrained(base, {adapter!r})",
    ]
    if on_cpu and config.quantization == "nf4":
        # Otherwise bitsandbytes repacks the weights in place, and rounds in another way.
        flag = "for module in base.modules(): module.support_avx512bf16_for_cpu = False"
        lines.insert(2, flag)
    return lines


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
