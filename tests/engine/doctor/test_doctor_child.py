"""The child that tries kernels: what it says, and how its crash or hang is told."""

import contextlib
import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from poros.doctor_child import (
    PROBES,
    live_rows,
    measured_rates,
    probe_rows,
    rows_without_torch,
    runs_on,
)
from poros.doctor_probe import Outcome, run_probe, watch
from poros.memory_planner import Rates

TORCH = {"version": "2.11.0", "cuda_build": "12.6", "cuda_available": True, "archs": ["sm_90"]}
CARD = (9, 0)


def child(code: str, **options):
    started = json.dumps({"probe": "torch", "state": "done", **TORCH})
    said = f"print({started!r}, flush=True); import os, time; {code}"
    return run_probe(
        **{"gpu": 0, "timeout_s": 20.0} | options, command=[sys.executable, "-c", said]
    )


def outcome(**records) -> Outcome:
    return Outcome(
        {name: {"probe": name, "state": "done"} | record for name, record in records.items()}
    )


def states(found: Outcome, capability=CARD) -> dict[str, str]:
    return {row.id: row.state for row in probe_rows(found, capability)}


def all_done(**changes) -> Outcome:
    good = {
        "torch": TORCH,
        "bitsandbytes": {"version": "0.50.2"},
        "bf16": {"device": "cuda:0"},
        "nf4": {"device": "cuda:0"},
        "pinned": {"num_bytes": 2**28},
        "link": {"bytes_per_s": 25e9},
        "arithmetic": {"operations_per_s": 150e12},
    }
    return outcome(**good | changes)


def test_a_good_stack_is_ok_in_all_rows():
    assert states(all_done()) == dict.fromkeys(PROBES, "ok")


def test_the_rates_of_a_card_are_handed_on_if_both_were_measured():
    assert measured_rates(all_done()) == Rates(25e9, 150e12)
    assert measured_rates(all_done(arithmetic={"state": "failed", "error": "x"})) is None
    assert measured_rates(outcome()) is None


def test_the_cpu_has_no_rows_of_the_link():
    found = outcome(torch=TORCH, bitsandbytes={}, bf16={"device": "cpu"}, nf4={"device": "cpu"})
    assert states(found, None) == dict.fromkeys(["torch", "bitsandbytes", "bf16", "nf4"], "ok")


def test_a_slow_link_is_a_warning():
    assert states(all_done(link={"bytes_per_s": 3e9}))["link"] == "warn"


def test_memory_that_cannot_be_pinned_is_a_warning():
    broken = {"state": "failed", "error": "AcceleratorError: out of memory"}
    assert states(all_done(pinned=broken))["pinned"] == "warn"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cuda_build": ""}, "can't use the GPU"),
        ({"cuda_available": False}, "too old"),
        ({"archs": ["sm_70", "sm_80"]}, "no kernel image"),
    ],
)
def test_a_build_that_does_not_suit_the_card_is_bad(changes, word):
    [row, *_] = probe_rows(all_done(torch=TORCH | changes), CARD)
    assert row.state == "bad"
    assert word in row.meaning
    assert row.fix


@pytest.mark.parametrize(
    ("capability", "archs", "runs"),
    [
        ((8, 9), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_89"], False),
        ((12, 0), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((9, 0), ["sm_90a"], True),
        ((10, 0), ["sm_90a"], False),
        ((12, 0), ["sm_120"], True),
        ((9, 0), [], False),
    ],
)
def test_kernels_run_on_their_generation_or_are_compiled(capability, archs, runs):
    assert runs_on(capability, archs) is runs


def test_a_wrong_kernel_is_bad_and_later_rows_are_still_told():
    found = states(all_done(nf4={"state": "failed", "error": "ValueError: the product is wrong"}))
    assert found["nf4"] == "bad"
    assert found["link"] == found["arithmetic"] == "ok"


def test_a_crash_names_the_probe_it_happened_in():
    line = json.dumps({"probe": "bf16", "state": "started"})
    found = child(f"print({line!r}, flush=True); os.kill(os.getpid(), 11)")
    rows = {row.id: row for row in probe_rows(found, CARD)}
    assert rows["torch"].state == "ok"
    assert rows["bf16"].state == "bad"
    assert "SIGSEGV" in rows["bf16"].what
    assert rows["nf4"].state == "unknown"


def test_a_hang_ends_at_the_time_limit_with_what_the_child_started():
    line = json.dumps({"probe": "link", "state": "started"})
    started_s = time.monotonic()
    found = child(
        f"print({line!r}, flush=True); import subprocess; subprocess.run(['sleep', '60'])",
        timeout_s=2.0,
    )
    assert time.monotonic() - started_s < 30
    rows = {row.id: row for row in probe_rows(found, CARD)}
    assert rows["link"].state == "bad"
    assert "within 2 s" in rows["link"].what


def test_a_row_is_told_when_its_probe_ends_and_not_when_the_child_does():
    line = json.dumps({"probe": "link", "state": "started"})
    code = f"print({line!r}, flush=True); import time; time.sleep(60)"
    said = json.dumps({"probe": "torch", "state": "done", **TORCH})
    command = [sys.executable, "-c", f"print({said!r}, flush=True); {code}"]
    begun = []
    rows = live_rows(
        watch(gpu=0, timeout_s=300, command=command), CARD, trying=lambda *said: begun.append(said)
    )
    assert next(rows).id == "torch"
    rows.close()  # the child is killed: else this test takes a minute
    assert begun == []


def test_probes_that_were_not_asked_for_have_no_row():
    line = json.dumps({"probe": "link", "state": "started"})
    done = json.dumps({"probe": "link", "state": "done", "bytes_per_s": 25e9})
    command = [sys.executable, "-c", f"print({line!r}); print({done!r})"]
    begun = []
    rows = live_rows(
        watch(gpu=0, timeout_s=300, command=command),
        CARD,
        trying=lambda *said: begun.append(said),
        only=["link"],
    )
    assert [(row.id, row.state) for row in rows] == [("link", "ok")]
    assert begun == [("link", "the link's bandwidth")]


def test_what_libraries_print_is_passed_over():
    found = child("print('a banner'); print('[1]'); print('{')")
    assert set(found.found) == {"torch"}
    assert found.ending == ""


def test_without_torch_the_rows_say_what_was_not_looked_at():
    rows = list(rows_without_torch("torch", gpu=True))
    assert [row.id for row in rows] == list(PROBES)
    assert {row.state for row in rows} == {"unknown"}
    assert all("torch is not installed" in row.what for row in rows)
    assert len(list(rows_without_torch("torch", gpu=False))) == 4


def test_the_real_child_tries_its_kernels_on_the_cpu():
    pytest.importorskip("torch")
    found = run_probe(gpu=None, timeout_s=200)
    assert found.ending == ""
    assert states(found, None) == dict.fromkeys(["torch", "bitsandbytes", "bf16", "nf4"], "ok")


STUCK = """
import time
from poros.measure import kernel_probe

kernel_probe._look_at_torch = lambda: time.sleep(600)
kernel_probe.main(-1)
"""
# It keeps what `watch` gave: let go of, that ends the child by itself.
PARENT = f"""
import sys, time
from poros.doctor_probe import watch

said = watch(gpu=None, timeout_s=600, command=(sys.executable, "-c", {STUCK!r}))
print(next(said), flush=True)
time.sleep(600)
"""


def is_at_work(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_hangs_ends_with_a_parent_that_is_killed(number):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        try:
            assert b"started" in parent.stdout.readline()
            (probe,) = psutil.Process(parent.pid).children()
            parent.send_signal(number)
            parent.wait()
        finally:
            parent.kill()
    try:
        until_s = time.monotonic() + 10
        while is_at_work(probe) and time.monotonic() < until_s:
            time.sleep(0.01)
        assert not is_at_work(probe)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            probe.kill()
