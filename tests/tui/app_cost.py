"""What an open app costs the trainer: python -m tests.tui.app_cost [--blocks 150] [--model FOLDER].

One engine trains on a core of its own; on the other an app shows the run and is kept busy with keys
and sizes. It is stopped (SIGSTOP) by turns: a block is four windows of a second, stopped, busy,
busy, stopped, for a virtual machine's speed wanders within seconds. The result is JSON on stdout:
steps a second of each window; the share of its rate that the trainer keeps, which is the blocks'
median; and, as the noise of such a median, the same of the two stopped windows of each block.
Exits with 1 below 98 %.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from poros.event_log import read_lines
from poros_tui.engine import process
from tests.tui.live_run import LiveRun, keep_below
from tests.tui.pty_bench import Terminal

LEAST_SHARE = 0.98
KEYS = ("v", "y", "w", "t", "+", "-", "\x1b[C", "\x1b[D", "0", "z", "z", "l", "l", "m", "m", "n")
"""Keys of Train that draw much and harm nothing."""
KEYS_PER_S = 4
BLOCK = (False, True, True, False)
"""Is the app busy in the window?"""
SIZES = ((140, 45), (100, 30), (80, 24), (120, 40))


def main() -> int:
    """Measure, print, judge."""
    wanted = _wanted()
    process.PROGRAM = ("taskset", "-c", str(wanted.trainer_core), sys.executable, "-m", "poros")
    os.sched_setaffinity(0, {wanted.app_core})
    with tempfile.TemporaryDirectory() as folder, _trained(Path(folder), wanted) as run:
        with _opened(run, Path(folder), wanted) as screen:
            windows = [_window(screen, is_busy, wanted) for is_busy in BLOCK * wanted.blocks]
        rates = _rates(run, windows)
    blocks = [rates[at : at + len(BLOCK)] for at in range(0, len(rates), len(BLOCK))]
    kept, low, high = _median([(b + c) / (a + d) for a, b, c, d in blocks])
    noise = _median([a / d for a, _, _, d in blocks])
    result = {
        "model": str(wanted.model or "two tiny layers"), "window_s": wanted.window_s,
        "kept": kept, "kept_low": low, "kept_high": high, "stopped_to_stopped": noise,
        "load_before": wanted.load, "load_after": os.getloadavg()[0], "blocks": blocks,
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if kept >= LEAST_SHARE else 1


def _wanted() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=150)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--model", type=Path, help="a model's folder, such as the demo's")
    parser.add_argument("--trainer-core", type=int, default=0)
    parser.add_argument("--app-core", type=int, default=1)
    return parser.parse_args(namespace=argparse.Namespace(load=os.getloadavg()[0]))


@contextmanager
def _trained(home: Path, wanted: argparse.Namespace) -> Iterator[LiveRun]:
    """A run that makes steps until the end."""
    from tests.engine.training.tiny_run import tiny_settings, write_chat_model

    keep_below(home, os.environ.__setitem__)
    model = wanted.model or write_chat_model(home / "model")
    settings = tiny_settings(Path(model), home) | {"max_steps": 10**6, "save_steps": 10**6}
    rows = [{"prompt": f"what is {i:02}?", "completion": f"it is {i:04}."} for i in range(20)]
    Path(settings["dataset"]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings["nf4_cache"] = str(home / "nf4")
    with LiveRun.at_work(home / "train.yaml", settings) as run:
        time.sleep(3)
        yield run


@contextmanager
def _opened(run: LiveRun, home: Path, wanted: argparse.Namespace) -> Iterator[Terminal]:
    """The app beside it, on its own core."""
    program = ("taskset", "-c", str(wanted.app_core), sys.executable, "-m", "poros_tui")
    with Terminal(["attach", str(run.folder)], home=home, size=SIZES[0], program=program) as screen:
        screen.until_shown("The model, streaming")
        yield screen
        screen.read(1.0)  # a key that comes while it takes the terminal anew is lost
        screen.resize(*SIZES[0])
        screen.press("\x03")
        screen.until_shown("Leave it running")
        screen.press("l")
        assert screen.ended() == 0


def _window(screen: Terminal, is_busy: bool, wanted: argparse.Namespace) -> tuple[float, float]:
    """When it began and ended, as the event file tells time."""
    screen.signal(signal.SIGCONT if is_busy else signal.SIGSTOP)
    began_s, until_s = time.time(), time.monotonic() + wanted.window_s
    while (left_s := until_s - time.monotonic()) > 0:
        if is_busy:
            screen.press(random.choice(KEYS))
            if random.random() < 0.1:
                screen.resize(*random.choice(SIZES))
            screen.read(min(left_s, 1 / KEYS_PER_S))
        else:
            time.sleep(left_s)
    screen.signal(signal.SIGCONT)
    return began_s, time.time()


def _rates(run: LiveRun, windows: list[tuple[float, float]]) -> list[float]:
    """Steps a second in each window, by the times in the event file."""
    records = map(json.loads, read_lines(run.folder / "events.jsonl"))
    times = np.array([r["time_s"] for r in records if r["event"] == "step_finished"])
    inside = [times[(times > began_s) & (times < ended_s)] for began_s, ended_s in windows]
    return [round((len(steps) - 1) / (steps[-1] - steps[0]), 3) for steps in inside]


def _median(shares: list[float]) -> tuple[float, float, float]:
    """The median, and the 95 % of it by drawing the shares again."""
    draw = np.random.default_rng(0)
    again = np.median(draw.choice(shares, (2000, len(shares))), axis=1)
    low, high = np.percentile(again, (2.5, 97.5))
    return round(float(np.median(shares)), 4), round(float(low), 4), round(float(high), 4)


if __name__ == "__main__":
    sys.exit(main())
