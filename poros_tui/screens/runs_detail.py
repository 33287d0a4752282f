"""What is known of one run of the list: facts in lines, and its losses as a curve."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from textual.content import Content

from poros.runs import Run
from poros_tui import words
from poros_tui.engine.run_list import Listed
from poros_tui.widgets.plot import Curve
from poros_tui.widgets.run_lines import LOOKS, progress


def detail(listed: Listed, now_s: float) -> Content:
    """A line a fact; what is not known has none."""
    lines = [
        LOOKS[listed.run.state].content() + Content.styled(_ended(listed, now_s), "$secondary")
    ]
    message = listed.run.story.message
    if message:
        what, _, fix = message.partition(" -> ")
        lines.append(Content.styled(words.safe(what), "$error"))
        lines += [Content.styled(words.safe(fix), "$foreground")] if fix else []
    width = 10
    for name, value in _facts(listed):
        lines.append(Content.styled(f"{name:<{width}}", "$quiet") + Content(words.safe(value)))
    return Content("\n").join(lines)


def curve_of(run: Run, look: str = "curve") -> Iterator[Curve]:
    """The losses by step; none for a run without steps."""
    losses = run.story.losses
    if losses:
        steps = sorted(losses)
        values = [np.nan if (loss := losses[step]) is None else loss for step in steps]
        yield Curve(np.array(steps, dtype=float), np.array(values, dtype=float), look)


def _ended(listed: Listed, now_s: float) -> str:
    last_s = listed.run.story.last_s
    if not last_s:
        return ""
    return (
        f"  {words.ago(last_s, now_s)}, {time.strftime('%d %b %Y %H:%M', time.localtime(last_s))}"
    )


def _facts(listed: Listed) -> Iterator[tuple[str, str]]:
    run, story = listed.run, listed.run.story
    if done := progress(listed):
        yield "steps", done
    if story.final_loss is not None:
        evaluated = "" if story.eval_loss is None else f"   held out {story.eval_loss:.3f}"
        yield "loss", f"{story.final_loss:.3f}{evaluated}"
    if story.tokens_per_s:
        yield "speed", f"{story.tokens_per_s:,.0f} tokens/s over {words.duration(story.train_s)}"
    if story.peak_bytes:
        yield "peak", f"{words.gigabytes(story.peak_bytes)} of the card"
    if listed.checkpoint_step is not None:
        yield "saved", f"checkpoint of step {listed.checkpoint_step:,}"
    yield "model", str(story.model or run.identity.get("model") or "unknown")
    yield "data", words.short_path(str(run.identity.get("dataset") or "unknown"))
    yield "folder", f"{words.short_path(run.path)}   {words.gigabytes(run.num_bytes)}"
