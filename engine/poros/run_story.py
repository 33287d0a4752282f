"""A run's story, folded from its event file: how far it came, what it lost, how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poros.event_log import read_lines

_DULL = '{"event": "heartbeat"'


@dataclass(slots=True)
class Story:
    """What the events tell.

    Attributes:
        ending: ``finished``, ``stopped``, ``failed``; empty: none was written.
        message: Of a failure, with its way out.
        losses: By step.
        eval_losses: By step.
        answers: Prompt, and the last answer after the training.
    """

    run_id: str = ""
    model: str = ""
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    started_s: float = 0.0
    last_s: float = 0.0
    step: int = 0
    total_steps: int = 0
    num_tokens: int = 0
    train_s: float = 0.0
    copied_bytes: int = 0
    copy_wait_s: float = 0.0
    peak_bytes: int = 0
    host_peak_bytes: int = 0
    losses: dict[int, float | None] = field(default_factory=dict)
    eval_losses: dict[int, float | None] = field(default_factory=dict)
    num_warnings: int = 0
    num_resumes: int = 0
    ending: str = ""
    message: str = ""
    adapter: str = ""
    damaged: bool = False

    @property
    def final_loss(self) -> float | None:
        """The last step's."""
        return self.losses[max(self.losses)] if self.losses else None

    @property
    def eval_loss(self) -> float | None:
        """The last evaluation's."""
        return self.eval_losses[max(self.eval_losses)] if self.eval_losses else None

    @property
    def tokens_per_s(self) -> float | None:
        """Over all steps that were told."""
        return self.num_tokens / self.train_s if self.train_s else None


def read_story(events: Path) -> Story:
    """Fold an event file; one that is missing tells nothing, a bad line is passed over."""
    story = Story()
    try:
        fold(story, read_lines(events))
    except (OSError, UnicodeDecodeError):
        story.damaged = events.exists()
    return story


def fold(story: Story, lines: Iterable[str]) -> None:
    """Add lines of an event file to a story."""
    for line in lines:
        if line.startswith(_DULL):
            continue
        try:
            record = json.loads(line)
            kind = record["event"]
            story.last_s = max(story.last_s, float(record.get("time_s") or 0))
            if kind in _FOLDS:
                _FOLDS[kind](story, record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            story.damaged = True


def _started(story: Story, record: dict[str, Any]) -> None:
    story.run_id, story.model = str(record["run_id"]), str(record["model"])
    story.device = str(record["device"])
    story.versions = {str(name): str(version) for name, version in dict(record["versions"]).items()}
    story.total_steps = int(record["total_steps"])
    story.started_s = story.started_s or float(record["time_s"])
    story.num_resumes += record.get("resumed_from_step") is not None
    story.ending = story.message = ""


def _stepped(story: Story, record: dict[str, Any]) -> None:
    story.step = int(record["step"])
    story.losses[story.step] = record["loss"]
    story.num_tokens += int(record["num_tokens"])
    story.train_s += float(record["duration_s"])
    story.copied_bytes += int(record["copied_bytes"])
    story.copy_wait_s += float(record["copy_wait_s"])
    story.peak_bytes = max(story.peak_bytes, int(record["device_peak_bytes"]))
    story.host_peak_bytes = max(story.host_peak_bytes, int(record["host_rss_bytes"]))


def _evaluated(story: Story, record: dict[str, Any]) -> None:
    story.eval_losses[int(record["step"])] = record["eval_loss"]


def _warned(story: Story, record: dict[str, Any]) -> None:
    story.num_warnings += 1


def _finished(story: Story, record: dict[str, Any]) -> None:
    story.ending = str(record["status"])
    story.adapter = str(record.get("adapter_path") or "")


def _failed(story: Story, record: dict[str, Any]) -> None:
    story.ending = "failed"
    message, fix = record["message"], record.get("remediation")
    story.message = f"{message} -> {fix}" if fix else str(message)


_FOLDS: dict[str, Callable[[Story, dict[str, Any]], None]] = {
    "run_started": _started,
    "step_finished": _stepped,
    "evaluation_finished": _evaluated,
    "warned": _warned,
    "run_finished": _finished,
    "run_failed": _failed,
}
