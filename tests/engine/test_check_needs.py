"""What `poros check` says that a run takes: against what was measured, and its bands."""

import json
from pathlib import Path

import pytest

from poros.check import check_model
from poros.check_memory import DEVICE_BAND, PEAK_BAND, Wanted
from poros.check_needs import (
    HOST_BAND,
    TIME_BAND,
    host_bytes,
    merged,
    need_rows,
    needs,
    smallest_card,
)
from poros.machine_rates import FILE, keep_rates, kept_rates
from poros.memory_plan import MemoryPlan, memory_plan
from poros.memory_planner import Rates, estimate
from poros.memory_sizes import StepShape
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.engine.test_check import SMALL

VALIDATION = Path(__file__).parents[2] / "docs/validation"
LARGER = {"num_key_value_heads": 8}
QWEN_32B = QWEN_7B | LARGER | {
    "hidden_size": 5120, "intermediate_size": 27648,
    "num_hidden_layers": 64, "num_attention_heads": 40,
}  # fmt: skip
QWEN_72B = QWEN_7B | LARGER | {
    "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
RESIDENT = MemoryPlan(head_prefetch=False)
RUNS = [
    ("h200-memory-qwen2.5-7b", QWEN_7B, 512, 1, memory_plan("min")),
    ("h200-memory-qwen2.5-32b", QWEN_32B, 512, 1, memory_plan("min")),
    ("h200-memory-qwen2.5-72b", QWEN_72B, 512, 1, memory_plan("min")),
    ("h200-memory-qwen2.5-7b-16k", QWEN_7B, 16384, 1, memory_plan("min")),
    ("h200-memory-qwen2.5-32b-8k", QWEN_32B, 8192, 1, memory_plan("min")),
    ("h200-memory-qwen2.5-32b-disk", QWEN_32B, 512, 1, memory_plan("min")),
    ("h200-qwen2.5-7b", QWEN_7B, 512, 2, RESIDENT),
    ("h200-qwen2.5-32b", QWEN_32B, 512, 2, RESIDENT),
]


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    known = {}

    def of(config):
        name = str(config["hidden_size"])
        if name not in known:
            folder = tmp_path_factory.mktemp("m") / name
            report = check_model(str(write_headers(folder, config, qwen_tensors(config))))
            known[name] = report.memory
        return known[name]

    return of


@pytest.mark.parametrize(("folder", "config", "rows", "accumulation", "plan"), RUNS)
def test_what_was_measured_lies_within_the_bands(sizes, folder, config, rows, accumulation, plan):
    record = json.loads((VALIDATION / folder / "gate.json").read_text())
    streamed = [m for m in record["measurements"] if m["arm"] == "streamed"]
    assert streamed
    step = StepShape(num_rows=rows, accumulation=accumulation)
    expected = estimate(plan, sizes(config), step)
    host = host_bytes(plan, sizes(config), step)
    for m in streamed:
        on_disk = m.get("host_tier") == "disk"
        pairs = [
            (m["peak_allocated_bytes"], expected.peak_bytes, PEAK_BAND),
            (m.get("device_level_peak_bytes"), expected.device_bytes, DEVICE_BAND),
            (
                m.get("host_rss_peak_bytes", m["host_rss_bytes"]),
                host - on_disk * sum(sizes(config).block_bytes),
                HOST_BAND,
            ),
        ]
        for measured, estimated, (low, high) in pairs:
            assert measured is None or low <= measured / estimated <= high


def test_measured_steps_lie_within_the_band_of_their_floors(sizes):
    # Floor of the link in seconds, as the table of docs/validation/README.md has it.
    for folder, floor_s in (("h200-qwen2.5-7b", 0.226), ("h200-qwen2.5-32b", 1.147)):
        record = json.loads((VALIDATION / folder / "gate.json").read_text())
        measured_s = record["measurements"][1]["median_step_s"]
        assert TIME_BAND[0] <= measured_s / floor_s <= TIME_BAND[1]


def test_a_small_card_is_enough_for_a_small_model_and_none_for_a_giant():
    assert smallest_card(int(3.2e9)) == 4
    assert smallest_card(int(7.2e9)) == 8
    assert smallest_card(int(400e9)) is None


def test_blocks_on_disk_leave_the_rest_in_memory(sizes):
    found = needs(sizes(QWEN_7B), Wanted())
    assert found.host_bytes - found.disk_tier_bytes == sum(sizes(QWEN_7B).block_bytes)


def test_a_packed_model_needs_no_cache(sizes):
    assert needs(sizes(QWEN_7B), Wanted()).cache_bytes > 5e9
    assert needs(sizes(QWEN_7B), Wanted(), prequantised=True).cache_bytes == 0


def test_what_does_not_fit_is_told_for_the_smallest_plan(sizes):
    least = needs(sizes(QWEN_7B), Wanted())
    assert needs(sizes(QWEN_7B), Wanted(vram_gb=1.0)) == least


def test_the_plan_for_a_card_stays_below_it(sizes):
    for vram_gb in (4.0, 6.0, 8.0, 12.0, 24.0):
        assert needs(sizes(QWEN_7B), Wanted(vram_gb=vram_gb)).plan.device_bytes <= vram_gb * 1e9


def test_a_time_needs_both_rates(sizes):
    slow, fast = Rates(4e9, 50e12), Rates(50e9, 400e12)
    assert needs(sizes(QWEN_7B), Wanted()).step_s is None
    assert needs(sizes(QWEN_7B), Wanted(), merged(Rates(4e9), None)).step_s is None
    times = [needs(sizes(QWEN_7B), Wanted(), rates).step_s for rates in (slow, fast)]
    assert times[0] > 5 * times[1] > 0
    assert merged(Rates(1.0), fast) == Rates(1.0, 400e12)


def test_without_rates_the_row_says_how_they_come(sizes):
    rows = need_rows(needs(sizes(QWEN_7B), Wanted()), download_bytes=10**9, rates=None, rates_of="")
    assert "poros doctor" in dict(rows)["a step"]
    assert dict(rows)["disk"].startswith("1.00 GB of downloads, 5.55 GB of NF4 cache")


def test_rates_are_kept_by_card(tmp_path, monkeypatch):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    assert kept_rates() is None
    keep_rates("RTX 3060", Rates(10e9, 40e12))
    keep_rates("RTX 4090", Rates(20e9, 150e12))
    assert kept_rates() == ("RTX 4090", Rates(20e9, 150e12))
    assert kept_rates("RTX 3060") == ("RTX 3060", Rates(10e9, 40e12))
    assert kept_rates("another") is None
    keep_rates("RTX 3060", Rates(11e9, 41e12))
    assert kept_rates() == ("RTX 3060", Rates(11e9, 41e12))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"x": 1}', '{"x": [1, 2]}', '{"x": [NaN, 1.0]}', '{"x": [1.0]}', "\0" * 9],
)
def test_a_damaged_file_of_rates_is_as_good_as_none(tmp_path, monkeypatch, text):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    (tmp_path / FILE).write_text(text)
    assert kept_rates() is None


def test_the_command_tells_needs_from_given_and_from_measured_rates(tmp_path, monkeypatch):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    folder = str(write_headers(tmp_path / "model", SMALL, qwen_tensors(SMALL)))
    given = json.loads(
        poros_here("check", folder, "--link", "8", "--tflops", "40", "--json").stdout
    )
    assert given["needs"]["rates_of"] == "rates as given"
    low, high = given["needs"]["step_s"]
    assert 0 < low < high
    assert given["needs"]["smallest_card_gb"] == 4
    keep_rates("RTX 3060", Rates(10e9, 40e12))
    told = poros_here("check", folder).stdout
    assert "measured on RTX 3060" in told
    for row in ("smallest card  4 GB", "host memory  ", "disk  "):
        assert row in told
    assert poros_here("check", folder, "--tflops", "0").returncode == 2
