"""The app on a card, on a pseudo-terminal: it shows the driver's and the allocator's figures."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest

from poros.event_log import read_events
from poros.events import Heartbeat, RunFinished, StepFinished
from poros_tui.words import gigabytes
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.tiny_run import tiny_settings
from tests.tui.pty_bench import Terminal

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MIB = 1 << 20
OTHER_BYTES = 3 << 30
OTHER = f"""
import torch
kept = torch.zeros({OTHER_BYTES}, dtype=torch.uint8, device="cuda")
print("there", flush=True)
input()
"""
F5 = "\x1b[15~"
SHOWN = {
    "used": r"card .* ([\d.]+) of [\d.]+ GB",
    "total": r"card .* [\d.]+ of ([\d.]+) GB",
    "ours": r" run ([\d.]+)",
    "others": r"others ([\d.]+|unknown)",
    "peak": r"peak(?: \w+)* ([\d.]+)",
}
CARD = "--id=" + os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
NUM_STEPS = 120


def asked(what, query):
    found = subprocess.run(
        ["nvidia-smi", f"--{what}={query}", "--format=csv,noheader,nounits", CARD],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.replace(" ", "").split(",") for line in found.stdout.splitlines()]
    # A driver that hides a size writes a word.
    return [[int(cell) for cell in row] for row in rows if all(c.isdigit() for c in row)]


def driver_says():
    """Total and used MiB of each card; MiB of each process on it."""
    memory = asked("query-gpu", "memory.total,memory.used")
    return memory, dict(asked("query-compute-apps", "pid,used_memory"))


@pytest.fixture
def other():
    """Another program that has a good piece of the card."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline() == "there\n"
        yield program
        program.kill()


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "model"
    write_model(
        folder, hidden_size=2048, intermediate_size=5504, num_hidden_layers=8, vocab_size=64_000,
        num_attention_heads=16, num_key_value_heads=16, head_dim=128, max_position_embeddings=2048,
    )  # fmt: skip
    tiny_tokenizer().save_pretrained(folder)
    rows = [{"text": f"row {k} " + "many words " * 300} for k in range(40)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = tiny_settings(folder, tmp_path) | {
        "device": "cuda:0", "max_steps": NUM_STEPS, "max_seq_length": 512, "save_steps": 10_000,
        "vram_budget": "min", "per_device_batch_size": 1,
    }  # fmt: skip
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps(settings))
    return path


def shown_gb(terminal, pattern):
    """Figures of the screen, as they stand there."""
    return re.findall(pattern, "\n".join(terminal.screen()))


def events_of(config, kind):
    path = config.parent / "out" / "events.jsonl"
    return [e for e in read_events(path) if isinstance(e, kind)] if path.exists() else []


def watched(config, home):
    """Trains by the app; what the driver, the heartbeat and the screen said while it went."""
    with Terminal([str(config)], home=home, size=(140, 45)) as terminal:
        # Asked for before it was checked, a start is a question.
        terminal.until(lambda: "\u2713 ready" in "\n".join(terminal.screen()), "a checked config")
        terminal.press(F5)
        terminal.until(lambda: len(events_of(config, StepFinished)) > 20, "steps", within_s=200)
        terminal.until(lambda: shown_gb(terminal, r"others ([\d.]+|unknown)") != [], "others")
        (memory, *_), processes = driver_says()
        terminal.read(1.0)
        going = terminal.screen()
        shown = {name: shown_gb(terminal, pattern) for name, pattern in SHOWN.items()}
        num_beats = len(events_of(config, Heartbeat))
        terminal.until(lambda: len(events_of(config, Heartbeat)) > num_beats, "a heartbeat")
        beat = events_of(config, Heartbeat)[-1]
        terminal.until(lambda: events_of(config, RunFinished) != [], "its end", within_s=300)
        terminal.read(2.0)
        ended = terminal.screen()
        shown["peak"] += shown_gb(terminal, SHOWN["peak"])
    seen = {"memory_mib": memory, "processes_mib": processes, "beat": dataclasses.asdict(beat)}
    return seen | {"shown_gb": shown, "going": going, "ended": ended}


def in_gb(num_bytes):
    return gigabytes(num_bytes).removesuffix(" GB")


def test_the_memory_shown_is_the_drivers_and_the_allocators(config, other, tmp_path):
    seen = watched(config, tmp_path)
    print(json.dumps(seen, indent=1))
    beat, shown = seen["beat"], seen["shown_gb"]
    total_mib, used_mib = seen["memory_mib"]
    assert beat["device_total_bytes"] // MIB == total_mib
    assert abs(beat["device_used_bytes"] / MIB - used_mib) <= 1
    assert shown["used"] == [in_gb(used_mib * MIB)]
    assert shown["total"] == [in_gb(total_mib * MIB)]
    assert shown["ours"] == [in_gb(beat["device_reserved_bytes"])]
    peak = max(step.device_peak_bytes for step in events_of(config, StepFinished))
    assert peak == events_of(config, RunFinished)[0].peak_vram_allocated_bytes
    assert in_gb(peak) in shown["peak"]
    if not seen["processes_mib"]:  # the driver hides who has what
        assert beat["device_others_bytes"] is None
        assert shown["others"] == ["unknown"]
        return
    others = seen["processes_mib"][other.pid] * MIB
    assert others > OTHER_BYTES
    assert abs(beat["device_others_bytes"] - others) <= 0.05 * others
    assert abs(float(shown["others"][0]) * 1e9 - others) <= 0.05 * others
