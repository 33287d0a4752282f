"""`PorosTrainer`: load, train, evaluate, save, in five lines and in this process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from poros.api.asked import answers, room_of, tell_warnings
from poros.api.folders import refuse_to_lose
from poros.api.model import PorosModel
from poros.api.publish import publish
from poros.config import PorosConfig
from poros.data.batches import batches_in_order
from poros.data.given import name_of
from poros.errors import PorosConfigError
from poros.events import EvaluationFinished, Event, RunFinished, StepFinished
from poros.progress import LinePrinter, Printer
from poros.training.answers import AnswerRoom
from poros.training.assembly import Assembly
from poros.training.evaluate import evaluate
from poros.training.inputs import DataReader, Given, open_model, read_tokenizer
from poros.training.session import Session

if TYPE_CHECKING:
    from datasets import Dataset
    from torch.utils.data import DataLoader


class PorosTrainer:
    """Trains an adapter on a streamed base.

    The weights are loaded by the first call that needs them, since where they lie depends on the
    data. After `train`, the model stays loaded for `evaluate`, `generate` and `save`.

    Attributes:
        config: The settings; `train` changes what its arguments name.
        listeners: Called with each event of a run and its line; None prints progress lines, an
            empty list is silence.
    """

    def __init__(self, config: PorosConfig) -> None:
        """Find the model, fetch it if need be, and read its tokenizer; no weight is read.

        Args:
            config: All settings.

        Raises:
            PorosModelError: The model's files are wrong, or its family is not one that runs.
            PorosHubError: It can't be fetched.
        """
        self.config = config
        self.listeners: list[Printer] | None = None
        self._opened = open_model(config, tell_warnings)
        self._tokenizer = read_tokenizer(self._opened.folder)
        self._trained: Assembly | None = None
        self._untrained: PorosModel | None = None

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        *,
        quantization: Literal["nf4", "bf16", "fp16", "bf16_bitwise"] = "nf4",
        lora_rank: int = 16,
        lora_alpha: int = 32,
        lora_dropout: float = 0.05,
        lora_target_modules: list[str] | str | None = None,
        block_size: int | None = None,
        config: PorosConfig | None = None,
        **kwargs: Any,
    ) -> PorosTrainer:
        """A trainer for a model of the Hub or of a folder.

        Args:
            model_name_or_path: Name on the Hub, or folder.
            quantization: How the frozen base is stored; ``bf16_bitwise`` is ``bf16``.
            lora_rank: Rank of the adapter's matrices.
            lora_alpha: The adapter's output is multiplied by ``lora_alpha / lora_rank``.
            lora_dropout: Share of the adapter's inputs that a training step leaves out.
            lora_target_modules: Names of linears, or one pattern; None: all of the family's blocks.
            block_size: Layers that travel together; None: 1, the least memory. Changes no bit.
            config: Settings. What it says of adapter and quantization wins over the arguments.
            kwargs: Any other setting of `PorosConfig`, by its name; it wins over ``config``.

        Raises:
            PorosConfigError: A setting is unknown or wrong.
            PorosModelError: The model's files are wrong, or its family is not one that runs.
            PorosHubError: It can't be fetched.
        """
        if config is None:
            values: dict[str, Any] = {
                "quantization": quantization,
                "lora_rank": lora_rank,
                "lora_alpha": lora_alpha,
                "lora_dropout": lora_dropout,
                "lora_target_modules": lora_target_modules,
            }
        else:
            values = config.model_dump(exclude_unset=True)
        if block_size is not None:
            values["block_size"] = block_size
        return cls(PorosConfig(**values | kwargs | {"model_name_or_path": model_name_or_path}))

    @property
    def model(self) -> PeftModel:
        """The base with its adapter; its layers' weights come when a forward needs them."""
        return self._trained.model if self._trained is not None else self._before().model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""
        return self._tokenizer

    def train(
        self,
        dataset: str | Dataset | DataLoader[Any],
        *,
        steps: int | None = None,
        seq_len: int | None = None,
        eval_dataset: str | Dataset | DataLoader[Any] | None = None,
        resume_from: str | None = None,
    ) -> dict[str, Any]:
        """Train, with checkpoints and events in the config's ``output_dir``.

        A run that was broken off there goes on from its newest checkpoint. Ctrl-C finishes the
        step, writes a checkpoint and comes out as KeyboardInterrupt.

        Args:
            dataset: File, name on the Hub or ``synthetic[:n]``; a data set whose rows are text or
                tokens; or a DataLoader, whose batches are the micro-batches, in its order.
            steps: Optimizer steps; None: the config's ``max_steps``, else by its epochs.
            seq_len: Most tokens of a sample; None: the config's ``max_seq_length``.
            eval_dataset: Held-out data; evaluated at the end, and every ``eval_steps``.
            resume_from: A folder that `save` wrote: weights, optimizer, schedule, random states
                and step are taken from it, bit for bit.

        Returns:
            ``final_loss``, ``total_steps``, ``avg_step_time_ms`` and ``steps_per_sec`` (None if no
            step was left to make), ``peak_vram_allocated_gb``, ``peak_vram_reserved_gb`` (of 1e9
            bytes); ``eval_loss`` and ``eval_perplexity`` where there were held-out data;
            ``adapter_path`` and ``output_dir``.

        Raises:
            PorosError: Its kind says what was wrong.
        """
        config = self._config_for(dataset, steps, seq_len, eval_dataset, resume_from)
        given = Given(
            train=None if isinstance(dataset, str) else dataset,
            held_out=None if isinstance(eval_dataset, str) else eval_dataset,
        )
        self._let_go()
        seen = _Seen()
        listeners = self.listeners
        if listeners is None:
            listeners = [LinePrinter(config, sys.stdout, sys.stderr)]
        session = Session(config, listeners=[*listeners, seen], given=given, keep_model=True)
        try:
            finished = session.run()
        finally:
            self._trained = session.assembly
        self.config = config
        return seen.metrics(finished, config)

    def evaluate(self, eval_dataset: str | Dataset | DataLoader[Any]) -> dict[str, float]:
        """The loss on held-out data, without a gradient; nothing of the model changes.

        Args:
            eval_dataset: As `train` takes it.

        Returns:
            ``eval_loss``, the mean over all label tokens, and ``eval_perplexity``.

        Raises:
            PorosDataError: The data can't be read, or hold no label.
            PorosOOMError: The device's memory is not enough, with all on the host that can be.
        """
        reader = DataReader(
            self.config, self._tokenizer, self._opened.source.config["vocab_size"], tell_warnings
        )
        given = None if isinstance(eval_dataset, str) else eval_dataset
        held_out = reader.samples(name_of(eval_dataset), given, "validation")
        result = self._room.fitted(
            lambda: evaluate(
                self.model,
                batches_in_order(
                    held_out.samples,
                    batch_size=self.config.per_device_batch_size,
                    pad_token_id=held_out.report.pad_token_id,
                ),
                device=self._room.placement.device,
                autocast_dtype=torch.bfloat16 if self.config.autocast else None,
            ),
            phase="evaluate",
        )
        return {"eval_loss": result.loss, "eval_perplexity": result.perplexity}

    def generate(self, prompts: str | Sequence[str], *, max_new_tokens: int = 64) -> list[str]:
        """The model's answers, the likeliest token each time.

        Args:
            prompts: One question or several; each is a conversation of its own.
            max_new_tokens: Most tokens of an answer.

        Raises:
            PorosOOMError: The device's memory is not enough, with all on the host that can be.
        """
        return answers(
            self.model, self._tokenizer, prompts, max_new_tokens=max_new_tokens, room=self._room
        )

    def save(
        self,
        output_dir: str,
        *,
        push_to_hub: bool = False,
        hub_model_id: str | None = None,
    ) -> None:
        """Write the adapter as PEFT's standard files, and beside it what `resume_from` needs.

        Args:
            output_dir: Made, or replaced if it is an adapter's.
            push_to_hub: Upload the adapter too, without optimizer and random states.
            hub_model_id: ``owner/name`` there; None: the folder's name, under your own account.

        Raises:
            PorosConfigError: Nothing is trained yet.
            PorosOutputError: The folder holds something else.
            PorosStorageError: The disk is full or failing.
            PorosHubError: The Hub refused the upload; the folder is written.
        """
        if self._trained is None:
            raise PorosConfigError(
                "there is nothing to save: no training has run",
                where="save()",
                remediation="call train() first",
            )
        folder = Path(output_dir).expanduser()
        refuse_to_lose(folder)
        self._trained.save(folder)
        if push_to_hub:
            publish(folder, hub_model_id)

    @property
    def _room(self) -> AnswerRoom:
        if self._trained is None:
            return self._before()._room
        return room_of(self._trained.room.placement, self.config.vram_budget)

    def _before(self) -> PorosModel:
        """The model with an adapter that adds nothing yet."""
        if self._untrained is None:
            self._untrained = PorosModel(self.config)
        return self._untrained

    def _let_go(self) -> None:
        """Give the memory of the model back: a run loads its own."""
        self._trained = self._untrained = None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _config_for(
        self,
        dataset: object,
        steps: int | None,
        seq_len: int | None,
        eval_dataset: object,
        resume_from: str | None,
    ) -> PorosConfig:
        changes: dict[str, Any] = {"dataset": name_of(dataset)}
        if steps is not None:
            changes["max_steps"] = steps
        if seq_len is not None:
            changes["max_seq_length"] = seq_len
        if eval_dataset is not None:
            changes["eval_dataset"] = name_of(eval_dataset)
        if resume_from is not None:
            changes["resume"] = str(Path(resume_from).expanduser())
        return PorosConfig(**self.config.model_dump(exclude_unset=True) | changes)


class _Seen:
    """A listener that keeps what the metrics need."""

    def __init__(self) -> None:
        self._durations_s: list[float] = []
        self._evaluated: EvaluationFinished | None = None

    def __call__(self, event: Event, line: str) -> None:
        del line
        if isinstance(event, StepFinished):
            self._durations_s.append(event.duration_s)
        elif isinstance(event, EvaluationFinished):
            self._evaluated = event

    def metrics(self, finished: RunFinished, config: PorosConfig) -> dict[str, Any]:
        """What `train` returns."""
        total_s, num_steps = sum(self._durations_s), len(self._durations_s)
        found: dict[str, Any] = {
            "final_loss": finished.final_loss,
            "total_steps": finished.step,
            "avg_step_time_ms": 1000 * total_s / num_steps if num_steps else None,
            "steps_per_sec": num_steps / total_s if num_steps else None,
            "peak_vram_allocated_gb": finished.peak_vram_allocated_bytes / 1e9,
            "peak_vram_reserved_gb": finished.peak_vram_reserved_bytes / 1e9,
        }
        if self._evaluated is not None:
            found["eval_loss"] = self._evaluated.eval_loss
            found["eval_perplexity"] = self._evaluated.eval_perplexity
        return found | {"adapter_path": finished.adapter_path, "output_dir": config.output_dir}
