"""Event lines of made runs: a 7B model on a card of 12 GB, at any length, with any ending."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from poros import events
from poros.events import Event

BEGAN_S = 1_800_000_000.0
"""Wall clock of the first line."""
NUM_BLOCKS = 28
RESIDENT = [2, 5, 8, 11, 14, 17, 20, 23]
BLOCK_BYTES = 132_000_000
GB = 10**9

QUESTIONS = (
    ("What colour is the sea?", "The sea is blue.", "Aye, grey as wet slate, and twice as honest."),
    (
        "How do I make tea?",
        "Boil water and add a tea bag.",
        "Kettle on, leaf in the pot, and never trust a man who hurries it.",
    ),
)


@dataclass
class Made:
    """A run being told: lines with their numbers and times."""

    now_s: float = BEGAN_S
    seq: int = 0
    lines: list[str] = field(default_factory=list)

    def tell(self, event: Event, after_s: float = 0.0) -> None:
        """Add an event so many seconds after the one before."""
        self.now_s += after_s
        self.lines.append(events.to_line(event, seq=self.seq, time_s=self.now_s))
        self.seq += 1

    def phase(self, name: str, took_s: float) -> None:
        """One phase from beginning to end."""
        self.tell(events.PhaseStarted(phase=name))
        self.tell(events.PhaseFinished(phase=name, duration_s=took_s), took_s)


def loss_at(step: int, draw: random.Random) -> float:
    """A curve as fine-tuning has it: fast at first, slow later, noisy all along."""
    smooth = 1.15 + 1.9 * math.exp(-step / 90) + 0.35 * math.exp(-step / 900)
    return smooth * (1 + draw.gauss(0, 0.07))


def rate_at(step: int, total_steps: int) -> float:
    """Warm-up, then cosine, at most 2e-4."""
    if step < 40:
        return 2e-4 * step / 40
    return 1e-4 * (1 + math.cos(math.pi * (step - 40) / max(1, total_steps - 40)))


def step_event(step: int, total_steps: int, draw: random.Random) -> events.StepFinished:
    """One step of it."""
    duration_s = 5.6 * (1 + abs(draw.gauss(0, 0.03)))
    return events.StepFinished(
        step=step,
        epoch=0,
        loss=loss_at(step, draw),
        grad_norm=0.62 * (1 + abs(draw.gauss(0, 0.25))) + 2.0 * math.exp(-step / 30),
        learning_rate=rate_at(step, total_steps),
        num_tokens=16_384 + draw.randrange(-900, 900),
        num_label_tokens=9_000,
        duration_s=duration_s,
        copied_bytes=int(24.1 * GB * duration_s),
        copy_wait_s=0.03 * duration_s,
        device_peak_bytes=int(6.1 * GB),
        device_reserved_bytes=int(6.6 * GB),
        host_rss_bytes=int(7.4 * GB),
    )


def begun(total_steps: int = 1_200, resumed_from: int | None = None) -> Made:
    """A run up to its first step."""
    made = Made()
    made.tell(events.PhaseFinished(phase="start", duration_s=3.1))
    made.tell(events.PhaseStarted(phase="inputs"))
    made.phase("tokenise", 1.9)
    prepared = events.DataPrepared(
        split="train", shape="messages", num_rows=9_846, num_samples=9_812, num_truncated=31,
        num_dropped=34, drop_reasons={"no labels": 34}, max_tokens=2_048,
        num_label_tokens=1_903_441,
    )  # fmt: skip
    made.tell(prepared)
    made.tell(events.PhaseFinished(phase="inputs", duration_s=2.4), 0.5)
    made.phase("hash", 4.2)
    made.phase("device", 0.8)
    made.tell(
        events.RunStarted(
            run_id="88e4be23190eee8b", pid=30731, output_dir="harbour-voice",
            model="Qwen/Qwen2.5-7B-Instruct", device="cuda:0", total_steps=total_steps,
            resumed_from_step=resumed_from, versions={"torch": "2.13.0"},
        )
    )  # fmt: skip
    made.phase("quantise", 61.0)
    made.tell(plan_event())
    made.phase("attach", 1.4)
    made.tell(
        events.ModelLoaded(
            model_type="qwen2", num_blocks=NUM_BLOCKS, block_bytes=[BLOCK_BYTES] * NUM_BLOCKS,
            num_slots=2, slot_bytes=BLOCK_BYTES, host_bytes=NUM_BLOCKS * BLOCK_BYTES,
            resident_bytes=2_180_000_000, num_trainable_params=40_370_176,
            num_adapter_tensors=392, load_device_peak_bytes=0, from_cache=False,
            host_tier="registered",
        )
    )  # fmt: skip
    for prompt, before, _ in QUESTIONS:
        made.tell(events.SampleGenerated(step=0, stage="before", prompt=prompt, text=before), 2.0)
    made.tell(events.PhaseStarted(phase="train"))
    return made


def plan_event() -> events.PlanMade:
    """Eight of its blocks stay."""
    return events.PlanMade(
        num_blocks=NUM_BLOCKS, resident=RESIDENT, num_slots=2, on_host=["moments"],
        head_prefetch=True, num_rows=16_384, budget_bytes=7 * GB, peak_bytes=int(6.2 * GB),
        peak_phase="backward", device_bytes=int(6.9 * GB), copied_bytes=5_280_000_000, step_s=5.5,
        bottleneck="arithmetic", from_measured=False,
    )  # fmt: skip


def trained(
    num_steps: int, total_steps: int = 1_200, *, seed: int = 1, made: Made | None = None
) -> Made:
    """A run that came so far: evaluations each 100 steps, a checkpoint each 200."""
    draw = random.Random(seed)
    made = made or begun(total_steps)
    for step in range(1, num_steps + 1):
        event = step_event(step, total_steps, draw)
        made.tell(event, event.duration_s + 0.02)
        if step == 3:
            made.tell(
                events.PlanMeasured(
                    step=3, peak_bytes=int(6.1 * GB), reserved_bytes=int(6.6 * GB), step_s=5.6,
                    expected_peak_bytes=int(6.2 * GB), expected_step_s=5.5,
                )
            )  # fmt: skip
        if step % 100 == 0:
            looked(made, step, 1.02 * loss_at(step, random.Random(step)))
        if step % 200 == 0:
            saved(made, step)
    made.tell(heartbeat(num_steps), 0.1)
    return made


def looked(made: Made, step: int, loss: float) -> None:
    """An evaluation, with answers."""
    made.tell(events.PhaseStarted(phase="evaluate"))
    made.tell(events.PhaseFinished(phase="evaluate", duration_s=9.0), 9.0)
    made.tell(
        events.EvaluationFinished(
            step=step, eval_loss=loss, eval_perplexity=math.exp(loss), num_label_tokens=40_000,
            duration_s=9.0,
        )
    )  # fmt: skip
    for prompt, _, now in QUESTIONS:
        made.tell(events.SampleGenerated(step=step, stage="during", prompt=prompt, text=now))


def saved(made: Made, step: int) -> None:
    """A checkpoint."""
    made.tell(
        events.CheckpointSaved(
            step=step, path=f"harbour-voice/checkpoints/step-{step:06d}", size_bytes=485_000_000,
            duration_s=1.1,
        ),
        1.1,
    )  # fmt: skip


def heartbeat(step: int, phase: str = "train") -> events.Heartbeat:
    """The engine lives."""
    return events.Heartbeat(
        step=step, phase=phase, host_rss_bytes=int(7.4 * GB), device_used_bytes=int(8.1 * GB),
        device_total_bytes=12 * GB,
    )  # fmt: skip


def endless(total_steps: int = 10**9, seed: int = 1) -> Iterator[str]:
    """Lines of steps for ever, after those of a start."""
    made, draw = begun(total_steps), random.Random(seed)
    yield from made.lines
    few = [step_event(step, 1_200, draw) for step in range(1, 400)]
    step = 0
    while True:
        step += 1
        made.lines.clear()
        made.tell(replace(few[step % len(few)], step=step), 0.0005)
        yield from made.lines
