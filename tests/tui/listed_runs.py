"""Runs as a list shows them, made up: one in each state."""

from pathlib import Path

from poros.run_registry import Known
from poros.run_story import Story
from poros.runs import Run
from poros_tui.engine.run_list import Listed, RunList
from tests.tui.pilot import NOW

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def listed(
    name: str,
    state: str,
    step: int,
    total_steps: int,
    *,
    model: str = "Qwen/Qwen2.5-7B-Instruct",
    ago_s: float = 5 * MINUTE,
    checkpoint_step: int | None = None,
    message: str = "",
    num_bytes: int = 412_000_000,
) -> Listed:
    """One run; its loss falls from 3 in a curve of its own."""
    begin = 2.4 + len(name) / 20
    losses = {
        i: begin / (1 + i / 60) + 0.07 * ((i * 7919) % 13 - 6) / 6 for i in range(1, step + 1)
    }
    story = Story(
        run_id=f"{abs(hash_of(name)):016x}", model=model, device="NVIDIA GeForce RTX 4070",
        started_s=NOW - ago_s - step * 3, last_s=NOW - ago_s, step=step, total_steps=total_steps,
        num_tokens=step * 4096, train_s=step * 2.9, peak_bytes=1_980_000_000,
        losses=losses, ending=state if state in ("finished", "stopped", "failed") else "",
        message=message,
    )  # fmt: skip
    known = Known(story.run_id, Path("/home/ada/poros") / name, gone=state == "gone")
    identity = {"model": model, "dataset": "/home/ada/data/harbour.jsonl"}
    return Listed(Run(known, state, story, identity, num_bytes=num_bytes), checkpoint_step)


def hash_of(name: str) -> int:
    """The same in every process."""
    return int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "big")


OOM = "the card has 11.4 GB for this run, 12.1 GB are needed -> lower max_seq_length to 2048"
EACH_STATE = (
    listed("harbour-voice", "running", 412, 1200, ago_s=2, checkpoint_step=400),
    listed("harbour-voice-r32", "killed", 287, 1200, ago_s=3 * HOUR, checkpoint_step=200),
    listed("contracts-long", "failed", 0, 600, ago_s=20 * HOUR, message=OOM, num_bytes=2_100_000),
    listed("recipes", "stopped", 150, 400, ago_s=30 * HOUR, model="meta-llama/Llama-3.1-8B",
           checkpoint_step=150),
    listed("poros_demo", "finished", 40, 40, ago_s=2 * DAY, model="smollm2-135m-instruct"),
    listed("first-try", "gone", 0, 0, ago_s=9 * DAY, num_bytes=0),
)  # fmt: skip


class StandingRuns(RunList):
    """Says always the same."""

    def __init__(self, *runs: Listed) -> None:
        """No folder is looked at."""
        super().__init__()
        self.latest, self.was_read, self.version = runs, True, 1

    def refresh(self) -> None:
        """Nothing new."""

    def going_now(self) -> list[Path]:
        """Those that are said to run."""
        return [one.run.path for one in self.latest if one.run.state == "running"]
