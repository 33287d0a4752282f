"""Looks at the model between its steps: the held-out loss, and answers to the sample prompts.

A look that the device's memory is not enough for is made smaller or left out; no run is lost by it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch
from peft import PeftModel

from poros.config import PorosConfig
from poros.data.batches import batches_in_order
from poros.data.samples import Prepared
from poros.events import EvaluationFinished, Event, PhaseProgressed, SampleGenerated
from poros.loading.phases import phase_events
from poros.training.determinism import rng_state, set_rng_state
from poros.training.evaluate import EvalResult, evaluate
from poros.training.inputs import Inputs
from poros.training.room import Room
from poros.training.run_inputs import device_inputs, versions
from poros.training.samples import AnswerCache, answer


class Looks:
    """What a run reports of its model beside its steps.

    Args:
        config: The run's settings.
        inputs: With the held-out data, if there are some.
        model: The base with its adapter.
        base_digest: Of the base's bytes.
        room: For what has no memory.
        emit: Takes the events.
        autocast_dtype: As in the steps.
    """

    def __init__(
        self,
        config: PorosConfig,
        inputs: Inputs,
        *,
        model: PeftModel,
        base_digest: str,
        room: Room,
        emit: Callable[[Event], None],
        autocast_dtype: torch.dtype | None,
    ) -> None:
        """Look at nothing yet."""
        self._config, self._inputs, self._model = config, inputs, model
        self._device = inputs.device
        self._base_digest, self._room, self._emit = base_digest, room, emit
        self._autocast_dtype = autocast_dtype

    def evaluate(self, step: int) -> None:
        """Report the held-out loss, where there are held-out data."""
        held_out = self._inputs.held_out
        if held_out is None:
            return
        started_s, size = time.monotonic(), self._config.per_device_batch_size
        # Rows of a batch, halved down to one.
        sizes = [size >> k for k in range(size.bit_length())]
        attempts = [
            (f"{num_rows} rows at a time", functools.partial(self._evaluated, held_out, num_rows))
            for num_rows in sizes
        ]
        with phase_events("evaluate", self._emit):
            result = self._room.first_that_fits("evaluate", step, attempts)
        if result is None:
            return
        self._emit(
            EvaluationFinished(
                step=step,
                eval_loss=result.loss,
                eval_perplexity=result.perplexity,
                num_label_tokens=result.num_label_tokens,
                duration_s=time.monotonic() - started_s,
            )
        )

    def _evaluated(self, held_out: Prepared, num_rows: int) -> EvalResult:
        num_batches = -(-len(held_out.samples) // num_rows)

        def progress(done: int) -> None:
            self._emit(
                PhaseProgressed(phase="evaluate", done=done, total=num_batches, unit="batches")
            )

        return evaluate(
            self._model,
            batches_in_order(
                held_out.samples,
                batch_size=num_rows,
                pad_token_id=held_out.report.pad_token_id,
            ),
            device=self._device,
            autocast_dtype=self._autocast_dtype,
            progress=progress,
        )

    def ask(self, stage: str, step: int) -> None:
        """Report the model's answers to the sample prompts; draws no random number."""
        prompts, num_tokens = self._config.samples, self._config.sample_tokens
        if not prompts:
            return
        state = rng_state(self._device)
        cache = AnswerCache(
            base=self._base_digest,
            quantization=self._config.quantization,
            dtype=self._config.torch_dtype,
            template=self._inputs.train.report.template_sha256,
            prompts=list(prompts),
            num_tokens=num_tokens,
            attention=self._config.attn_implementation,
            machine=device_inputs(self._device) | versions(),
        )
        # An adapter before its first step adds nothing, so these answers are the base model's.
        answers = cache.read() if stage == "before" else None
        if answers is None:
            answers, whole = self._answers(prompts, step)
            if stage == "before" and whole:
                cache.write(answers)
        for prompt, text in zip(prompts, answers, strict=False):
            self._emit(SampleGenerated(step=step, stage=stage, prompt=prompt, text=text))
        set_rng_state(state, self._device)

    def _answers(self, prompts: Sequence[str], step: int) -> tuple[list[str], bool]:
        """The answers, and whether all were made together; none if memory is not enough."""
        most = self._config.sample_tokens

        def progress(done: int) -> None:
            self._emit(PhaseProgressed(phase="sample", done=done, total=most, unit="tokens"))

        def together(some: Sequence[str]) -> list[str]:
            return answer(
                self._model,
                self._inputs.tokenizer,
                some,
                max_new_tokens=most,
                device=self._device,
                progress=progress,
            )

        attempts = [
            ("all at once", lambda: (together(prompts), True)),
            ("one by one", lambda: ([text for p in prompts for text in together([p])], False)),
        ]
        with phase_events("sample", self._emit):
            found = self._room.first_that_fits("sample", step, attempts)
        return found or ([], False)
