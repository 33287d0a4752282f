"""What the demo says it achieved comes from the run's events."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from poros.demo.outcome import Outcome, outcome_of, show
from poros.events import EvaluationFinished, Event, RunFinished, SampleGenerated, to_line

KEEPER = "Aye, it is [bold]so[/bold]. Keep the lamp lit."


def sample(stage: str, prompt: str, text: str) -> Event:
    return SampleGenerated(step=0, stage=stage, prompt=prompt, text=text)


def evaluated(step: int, loss: float) -> Event:
    return EvaluationFinished(
        step=step, eval_loss=loss, eval_perplexity=1.0, num_label_tokens=9, duration_s=0.1
    )


FINISHED = RunFinished(
    status="finished",
    step=8,
    final_loss=1.0,
    adapter_path="/runs/a/adapter",
    checkpoint_path=None,
    duration_s=1.0,
    peak_vram_allocated_bytes=0,
    peak_vram_reserved_bytes=0,
    exit_code=0,
)
HAPPENED = [
    evaluated(0, 4.0),
    sample("before", "Why?", "Because."),
    sample("before", "How?", "So."),
    evaluated(8, 1.0),
    sample("after", "How?", KEEPER),
    sample("after", "Why?", "Aye, no end"),
    FINISHED,
]


def read(folder: Path, happened: list[Event]) -> Outcome:
    lines = [to_line(event, seq=seq, time_s=0.0) for seq, event in enumerate(happened)]
    path = folder / "events.jsonl"
    path.write_text("".join(lines))
    return outcome_of(path)


def printed(outcome: Outcome) -> str:
    console = Console(file=io.StringIO(), width=100)
    show(outcome, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_answers_are_paired_by_question(tmp_path: Path) -> None:
    outcome = read(tmp_path, HAPPENED)
    assert [pair.question for pair in outcome.answers] == ["Why?", "How?"]
    assert [pair.before for pair in outcome.answers] == ["Because.", "So."]
    assert [pair.after for pair in outcome.answers] == ["Aye, no end", KEEPER]


def test_markers_and_loss_are_counted(tmp_path: Path) -> None:
    outcome = read(tmp_path, HAPPENED)
    assert outcome.num_markers_before == 0
    assert outcome.num_markers_after == 1
    assert outcome.loss_fall_percent == pytest.approx(75)
    assert outcome.to_dict()["num_markers_after"] == 1


def test_it_prints_words_as_they_are_and_the_counts(tmp_path: Path) -> None:
    text = printed(read(tmp_path, HAPPENED))
    assert "[bold]so[/bold]" in text
    assert "0 of 2 answers before, 1 of 2 after" in text
    assert "4.000 before, 1.000 after (75 % less)" in text
    assert "/runs/a/adapter" in text


def test_a_run_without_evaluations_claims_no_fall(tmp_path: Path) -> None:
    outcome = read(tmp_path, HAPPENED[1:3])
    assert outcome.loss_fall_percent is None
    assert "loss" not in printed(outcome)
