"""What a person or a script sees of a run without screens."""

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from poros import events, progress
from poros.config import PorosConfig
from poros.progress import JsonPrinter, LinePrinter
from poros.run_end import snippet

CONFIG = PorosConfig(model_name_or_path="some/model", dataset="d.jsonl", logging_steps=2)

RUN_STARTED = events.RunStarted(
    run_id="a", pid=1, output_dir="out", model="some/model", device="cpu", total_steps=4,
    resumed_from_step=None, versions={},
)  # fmt: skip


def step(number: int) -> events.StepFinished:
    return events.StepFinished(
        step=number, epoch=0, loss=1.25, grad_norm=1.0, learning_rate=1e-4, num_tokens=10,
        num_label_tokens=5, duration_s=0.5, copied_bytes=0, copy_wait_s=0.0,
        device_peak_bytes=3_100_000_000, device_reserved_bytes=0, host_rss_bytes=0,
    )  # fmt: skip


def finished(**changes: object) -> events.RunFinished:
    values = {
        "status": "finished", "step": 4, "final_loss": 1.25, "adapter_path": "out/adapter",
        "checkpoint_path": "out/checkpoints/step-000004", "duration_s": 65.0,
        "peak_vram_allocated_bytes": 0, "peak_vram_reserved_bytes": 0, "exit_code": 0,
    }  # fmt: skip
    return events.RunFinished(**(values | changes))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stdout: io.StringIO, *happened: events.Event) -> str:
    printer = LinePrinter(CONFIG, stdout, io.StringIO())
    for event in happened:
        printer(event, "")
    return stdout.getvalue()


def test_a_pipe_gets_a_line_every_logging_steps_and_after_a_while(monkeypatch):
    lines = show(io.StringIO(), RUN_STARTED, *map(step, (1, 2, 3, 4))).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["1/4", "2/4", "4/4"]
    assert "loss 1.2500" in lines[-1]
    assert "peak 3.10 GB" in lines[-1]
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    assert show(io.StringIO(), RUN_STARTED, *map(step, (1, 2, 3))).count("\nstep ") == 3


def test_the_time_left_counts_neither_the_load_nor_a_pause_but_what_is_between_steps(monkeypatch):
    now_s, stdout = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s[0])
    printer = LinePrinter(CONFIG, stdout, io.StringIO())

    def left_after(seconds: float, event: events.Event) -> str:
        now_s[0] += seconds
        printer(event, "")
        return stdout.getvalue().rpartition("  left ")[2].split()[0]

    printer(replace(RUN_STARTED, total_steps=1000), "")
    assert left_after(500, step(400)) == "5:00"  # as it took itself: half a second each
    assert left_after(2, step(402)) == "9:58"  # with what is between
    left_after(3000, events.PhaseFinished(phase="pause", duration_s=3000.0))
    assert left_after(0.5, step(404)) == "4:58"


def test_a_terminal_gets_one_line_that_is_redrawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = show(Terminal(), RUN_STARTED, step(1), step(2), finished())
    assert text.count("\r\x1b[Kstep") == 2
    assert "step 1/4" in text
    assert text.splitlines()[-1].startswith("    model = PeftModel")


def sample(stage: str, prompt: str, text: str) -> events.SampleGenerated:
    return events.SampleGenerated(step=0, stage=stage, prompt=prompt, text=text)


def test_samples_are_shown_before_and_after_in_a_line_each():
    asked = [f"question\x1b {k}?" for k in range(6)]
    happened = [
        *(sample("before", each, "dull\nand long " + "x" * 200) for each in asked),
        *(sample("after", each, "bright") for each in asked),
    ]
    lines = show(io.StringIO(), RUN_STARTED, *happened).splitlines()[1:]
    assert lines[0] == "sample: question\\x1b 0?"
    assert lines[1].startswith("  before: dull and long xxx")
    assert (len(lines[1]) < 140, lines[1].endswith(" ...")) == (True, True)
    assert lines[2] == "  after:  bright"
    assert len(lines) == 4 * 3 + 1
    assert lines[-1] == "... and more samples, in the run's report"


def test_a_run_that_had_finished_says_so_and_how_to_go_on(tmp_path):
    adapter = tmp_path / "my run" / "adapter"
    adapter.mkdir(parents=True)
    event = finished(already=True, adapter_path=str(adapter))
    lines = show(io.StringIO(), event).splitlines()
    assert lines[0].endswith("had finished before, 4 steps, loss 1.2500; nothing was trained now")
    assert lines[2] == f"to train anew: --output-dir '{tmp_path}/my run-2'"
    assert lines[3].startswith("to train it further: --set max_steps=N, above 4, and --allow-inex")
    assert len(lines) == 4


def test_a_dumb_terminal_is_a_pipe(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in show(Terminal(), RUN_STARTED, step(1))


def test_the_summary_loads_the_adapter_in_four_lines_with_the_flag_on_the_cpu():
    text = show(io.StringIO(), RUN_STARTED, finished())
    code = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert len(code) == 4
    for line in code:
        compile(line, "snippet", "exec")
    assert "support_avx512bf16_for_cpu = False" in code[2]
    assert "'out/adapter'" in code[3]
    gpu = snippet(CONFIG, "out/adapter", on_cpu=False)
    assert not any("avx512" in line for line in gpu)


def test_the_summary_names_the_text_class_of_a_multimodal_model():
    mapping = {r"^language_model\.model\.": "model."}
    loaded = events.ModelLoaded(
        model_type="gemma3_text", num_blocks=1, block_bytes=[1], num_slots=2, slot_bytes=1,
        host_bytes=1, resident_bytes=1, num_trainable_params=1, num_adapter_tensors=1,
        load_device_peak_bytes=0, from_cache=False, text_class="Gemma3ForCausalLM",
        key_mapping=mapping,
    )  # fmt: skip
    text = show(io.StringIO(), RUN_STARTED, loaded, finished())
    code = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert "import Gemma3ForCausalLM, BitsAndBytesConfig" in code[0]
    assert code[1].startswith("base = Gemma3ForCausalLM.from_pretrained('some/model', ")
    assert f"key_mapping={mapping!r}" in code[1]
    assert "AutoModel" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "saved step 4; resume with the same command"),
        ({"step": 5}, "stopped in step 6, unsaved; resume"),
        ({"checkpoint_path": None}, "stopped before a step was saved"),
    ],
)
def test_a_stopped_run_says_how_to_go_on(changes, expected):
    text = show(io.StringIO(), finished(status="stopped", adapter_path=None, **changes))
    assert expected in text


def plan(**changes):
    values = {
        "num_blocks": 28, "resident": [7, 20], "num_slots": 2, "on_host": ["head", "moments"],
        "head_prefetch": True, "num_rows": 512, "budget_bytes": 3 * 10**9,
        "peak_bytes": 2_900_000_000, "peak_phase": "loss", "device_bytes": 3_970_000_000,
        "copied_bytes": 10**10, "step_s": 0.456, "bottleneck": "the link", "from_measured": False,
    }  # fmt: skip
    return events.PlanMade(**values | changes)


def test_a_plan_says_what_lies_where_and_what_is_expected():
    assert show(io.StringIO(), plan()).splitlines() == [
        "plan: 2 of 28 blocks stay on the device, the others pass through 2 slots;"
        " on the host: head, Adam's moments",
        "  expected: peak 2.90 GB of 3.00 GB (loss), 3.97 GB of the card, 0.46 s/step;"
        " bottleneck the link",
    ]
    without_card = plan(peak_bytes=0, step_s=None, on_host=[])
    assert (
        show(io.StringIO(), without_card)
        == "plan: 2 of 28 blocks stay on the device, the others pass through 2 slots\n"
    )


def test_measured_values_stand_beside_what_was_expected():
    measured = events.PlanMeasured(
        step=3, peak_bytes=28 * 10**8, reserved_bytes=3 * 10**9, step_s=0.5,
        expected_peak_bytes=29 * 10**8, expected_step_s=0.456,
    )  # fmt: skip
    assert show(io.StringIO(), measured) == (
        "measured: peak 2.80 GB (2.90 GB expected), 0.50 s/step (0.46 expected)\n"
    )


def test_json_lines_pass_through_as_they_are():
    stdout = io.StringIO()
    JsonPrinter(stdout)(step(1), '{"event": "x"}\n')
    assert stdout.getvalue() == '{"event": "x"}\n'


def test_control_characters_of_a_name_never_reach_the_terminal():
    event = events.Warned(code="W", message="a\x1b[31mb\nc")
    stderr = io.StringIO()
    LinePrinter(CONFIG, io.StringIO(), stderr)(event, "")
    assert stderr.getvalue() == "poros: warning[W]: a\\x1b[31mb\\nc\n"


WRITER = """
import sys, time
from poros.progress import Output
out = Output(sys.stdout)
for _ in range(50):
    out.write("x" * 5000 + "\\n")
print("end", file=sys.stderr)
"""


@pytest.mark.parametrize("place", ["closed pipe", "/dev/full"])
def test_a_stream_that_goes_away_stops_nothing(place):
    if place == "/dev/full":
        target = os.open(place, os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", WRITER], stdout=target, stderr=subprocess.PIPE, timeout=60
    )
    os.close(target)
    assert (done.returncode, done.stderr) == (0, b"end\n")
