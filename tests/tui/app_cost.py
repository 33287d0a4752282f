"""What an open app costs the trainer: python -m tests.tui.app_cost [--pairs 10] [--model FOLDER].

One engine trains on a core of its own, and the app, on another core, comes and goes: for a window
of each pair it shows the run and is kept busy with keys and sizes, for the other nobody looks. The
result is JSON on stdout: steps a second of both windows of each pair, and the share that the
trainer keeps, which is their median. Exits with 1 below 98 %.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poros.event_log import read_lines
from poros_tui.engine import process
from tests.tui.live_run import LiveRun, keep_below
from tests.tui.pty_bench import Terminal

LEAST_SHARE = 0.98
KEYS = ("v", "y", "w", "t", "+", "-", "\x1b[C", "\x1b[D", "0", "z", "z", "l", "l", "m", "m", "n")
"""Keys of Train that draw much and harm nothing."""
KEYS_PER_S = 4
SIZES = ((140, 45), (100, 30), (80, 24), (120, 40))


def main() -> int:
    """Measure, print, judge."""
    wanted = _wanted()
    process.PROGRAM = ("taskset", "-c", str(wanted.trainer_core), sys.executable, "-m", "poros")
    os.sched_setaffinity(0, {wanted.app_core})
    with tempfile.TemporaryDirectory() as folder, _trained(Path(folder), wanted) as run:
        pairs = [_pair(run, Path(folder), number, wanted) for number in range(wanted.pairs)]
    shares = [pair["with_app"] / pair["alone"] for pair in pairs]
    kept = statistics.median(shares)
    result = {
        "model": str(wanted.model or "two tiny layers"), "window_s": wanted.window_s,
        "pairs": pairs, "shares": [round(share, 4) for share in shares], "kept": round(kept, 4),
        "load_before": wanted.load, "load_after": os.getloadavg()[0],
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    return 0 if kept >= LEAST_SHARE else 1


def _wanted() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=15.0)
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
    run = LiveRun(home / "train.yaml", settings | {"nf4_cache": str(home / "nf4")})
    try:
        run.start()
        run.wait_until_it_steps()
        time.sleep(3)
        yield run
    finally:
        run.kill()


def _pair(run: LiveRun, home: Path, number: int, wanted: argparse.Namespace) -> dict[str, Any]:
    """Both windows, the order by turns."""
    rates = {}
    for with_app in (True, False) if number % 2 else (False, True):
        name = "with_app" if with_app else "alone"
        rates[name] = _with_app(run, home, wanted) if with_app else _rate(run, wanted.window_s)
    print(number, rates, file=sys.stderr, flush=True)
    return rates


def _with_app(run: LiveRun, home: Path, wanted: argparse.Namespace) -> float:
    program = ("taskset", "-c", str(wanted.app_core), sys.executable, "-m", "poros_tui")
    with Terminal(["attach", str(run.folder)], home=home, size=SIZES[0], program=program) as screen:
        screen.until_shown("The model, streaming")
        draw = random.Random(1)

        def busy() -> None:
            screen.press(draw.choice(KEYS))
            screen.read(1 / KEYS_PER_S)
            if draw.random() < 0.1:
                screen.resize(*draw.choice(SIZES))

        rate = _rate(run, wanted.window_s, busy)
        screen.resize(*SIZES[0])
        screen.press("\x03")
        screen.until_shown("Leave it running")
        screen.press("l")
        assert screen.ended() == 0
    return rate


def _rate(run: LiveRun, window_s: float, busy: Any = lambda: time.sleep(0.1)) -> float:
    """Steps a second from now on, by the times in the event file."""
    began_s, until_s = time.time(), time.monotonic() + window_s
    while time.monotonic() < until_s:
        busy()
    times = []
    for line in read_lines(run.folder / "events.jsonl"):
        record = json.loads(line)
        if record["event"] == "step_finished" and record["time_s"] > began_s:
            times.append(record["time_s"])
    return round((len(times) - 1) / (times[-1] - times[0]), 3)


if __name__ == "__main__":
    sys.exit(main())
