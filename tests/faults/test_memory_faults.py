"""Faults 36 to 39: memory, the device, and numbers that are none."""

import re

import pytest
from safetensors.torch import load_file

from poros import events
from poros.event_log import read_events
from tests.engine.training.tiny_run import results_of
from tests.faults.bench import Case, expect


def plant(name):
    def put(bench):
        bench.plant = name

    return put


def huge_rate(bench):
    bench.settings |= {"learning_rate": 1e30, "warmup_steps": 0, "lr_scheduler": "constant"}
    bench.settings |= {"max_grad_norm": 1e30}


CASES = [
    Case(36, "a full device", plant("no_device_memory_at_step_3"), 10, (
        "CUDA out of memory", "step 3", "max_seq_length", "the last checkpoint is intact")),
    Case(37, "no memory for Python", plant("no_memory_at_step_3"), 9, ("step 3", "intact")),
    Case(37, "no memory for a tensor", plant("no_tensor_memory_at_step_3"), 9, ("step 3",)),
    Case(37, "a limit of address space", plant("little_address_space_at_step_3"), 9, ("step 3",)),
    Case(38, "a lost device", plant("device_lost_at_step_3"), 11, (
        "device-side assert", "step 3", "start again")),
    Case(39, "a NaN in a weight", plant("nan_weight_at_step_3"), 12, ("step 3", "samples")),
    Case(39, "an infinite activation", plant("inf_activation_at_step_3"), 12, (
        "the loss of micro-batch 0 is not finite", "step 3", "samples")),
    Case(39, "a NaN in a gradient", plant("nan_gradient_at_step_3"), 12, (
        "the gradient of", "step 3", "samples")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_that_can_t_go_on_says_why_and_keeps_its_checkpoint(case, bench, world):
    case.plant(bench)
    ended = bench.run()
    expect(ended, case.code, *case.words)
    assert bench.checkpoints() == [2]
    assert not (bench.out / "adapter").exists()
    last = list(read_events(bench.out / "events.jsonl"))[-1]
    assert isinstance(last, events.RunFailed)
    assert (last.exit_code, last.step) == (case.code, 2)
    bench.plant = ""
    expect(bench.run(), 0, num_errors=0)
    assert results_of(bench.out) == results_of(world.folder / "whole" / "out")


def test_the_batch_of_a_step_that_is_not_finite_is_named_and_can_be_read(bench):
    bench.plant = "inf_activation_at_step_3"
    [line] = bench.run().error_lines
    [path] = re.findall(r"batch in (\S+\.safetensors)", line)
    tensors = load_file(bench.folder / path)
    assert {"0.input_ids", "0.labels", "1.input_ids", "1.labels"} <= tensors.keys()
    [samples] = re.findall(r"samples ([\d, ]+\d)", line)
    assert len(samples.split(", ")) == 2


def test_a_rate_beyond_all_reason_ends_before_a_bad_weight_is_kept(bench):
    huge_rate(bench)
    bench.settings["save_steps"] = 1
    ended = bench.run()
    expect(ended, 12, "not finite", "learning_rate")
    saved = bench.checkpoints()
    assert not (bench.out / "adapter").exists()
    for step in saved:
        weights = load_file(bench.out / f"checkpoints/step-{step:06d}/adapter_model.safetensors")
        assert all(tensor.isfinite().all() for tensor in weights.values())


def test_memory_that_ends_in_the_main_thread_is_no_bug(bench):
    bench.plant = "no_memory_in_main_thread"
    with bench.unchanged():
        expect(bench.run(), 9)


def test_a_refused_registration_changes_no_bit(bench, world):
    """Fault 37."""
    bench.plant = "no_pinned_memory"
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert results_of(bench.out) == results_of(world.folder / "whole" / "out")
